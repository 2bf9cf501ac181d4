//! Sequence numbers of requests that change the file system.

use std::collections::BTreeSet;

use crate::protocol::IN_FLIGHT_MAX;

/// The numbers used so far, and those without an answer.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    last: u64,
    in_flight: BTreeSet<u64>,
}

impl Sequences {
    /// Returns an unused number, or `None` if it would be [`IN_FLIGHT_MAX`] or more beyond the lowest one without an
    /// answer. The service keeps the answers to all numbers from that one on, and keeps no more of them.
    pub fn begin(&mut self) -> Option<u64> {
        if self.last + 1 - self.settled() >= IN_FLIGHT_MAX as u64 {
            return None;
        }
        self.last += 1;
        self.in_flight.insert(self.last);
        Some(self.last)
    }

    /// Records that a request has been answered.
    pub fn end(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    /// The lowest number without an answer: all below it have been answered.
    pub fn settled(&self) -> u64 {
        self.in_flight.first().copied().unwrap_or(self.last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_settled_in_order_and_bounded() {
        let mut sequences = Sequences::default();
        assert_eq!((sequences.settled(), sequences.begin(), sequences.begin()), (1, Some(1), Some(2)));
        sequences.end(2);
        assert_eq!(sequences.settled(), 1);
        sequences.end(1);
        assert_eq!(sequences.settled(), 3);
        (0..IN_FLIGHT_MAX).for_each(|_| assert!(sequences.begin().is_some()));
        assert_eq!((sequences.begin(), sequences.settled()), (None, 3));
    }

    #[test]
    fn while_one_request_waits_no_more_are_answered_than_the_service_keeps_answers_to() {
        let mut sequences = Sequences::default();
        assert_eq!(sequences.begin(), Some(1));
        let mut answered = 0;
        while let Some(number) = sequences.begin() {
            sequences.end(number);
            answered += 1;
        }
        assert_eq!((answered, sequences.settled()), (IN_FLIGHT_MAX - 1, 1));
        sequences.end(1);
        assert_eq!(sequences.begin(), Some(IN_FLIGHT_MAX as u64 + 1));
    }
}
