//! Memory budget of all connections: bytes in use by their requests.

use std::collections::VecDeque;

use sinew_remote_memory::store::BLOCK;

/// Name of a connection: its place, and the generation of the connection in that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId {
    pub index: usize,
    pub generation: u64,
}

/// Bytes that data of this length count as.
#[inline]
pub(super) const fn claim_of(len: usize) -> usize {
    len.next_multiple_of(BLOCK)
}

/// A connection that waits for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub owner: ConnectionId,
    pub len: usize,
}

/// Bytes in use, and the connections that wait for some, in order of arrival.
#[derive(Debug)]
pub(super) struct Budget {
    max: usize,
    used: usize,
    waiting: VecDeque<Waiter>,
}

impl Budget {
    pub fn new(max: usize, connections: usize) -> Self {
        Self { max, used: 0, waiting: VecDeque::with_capacity(connections) }
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes `len` bytes if they are free and no connection waits. Returns whether it did.
    #[inline]
    pub fn try_take(&mut self, len: usize) -> bool {
        let fits = self.waiting.is_empty() && self.used + len <= self.max;
        if fits {
            self.used += len;
        }
        fits
    }

    #[inline]
    pub fn give_back(&mut self, len: usize) {
        self.used -= len;
    }

    pub fn wait(&mut self, waiter: Waiter) {
        self.waiting.push_back(waiter);
    }

    /// As [`Self::wait`], but at the head of the queue.
    pub fn wait_first(&mut self, waiter: Waiter) {
        self.waiting.push_front(waiter);
    }

    /// Takes the bytes of the first connection that waits, if there are enough.
    pub fn next(&mut self) -> Option<Waiter> {
        let waiter = *self.waiting.front()?;
        if self.used + waiter.len > self.max {
            return None;
        }
        self.used += waiter.len;
        self.waiting.pop_front()
    }

    /// Removes a connection that waits.
    pub fn remove(&mut self, owner: ConnectionId) {
        self.waiting.retain(|want| want.owner != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_does_not_pass_who_waits() {
        let connection = |index| ConnectionId { index, generation: 1 };
        let mut budget = Budget::new(100, 4);
        assert!(budget.try_take(60) && !budget.try_take(41));
        budget.wait(Waiter { owner: connection(0), len: 50 });
        budget.wait(Waiter { owner: connection(1), len: 10 });
        assert!(!budget.try_take(10) && budget.next().is_none());
        budget.give_back(10);
        assert_eq!(budget.next().map(|want| want.owner), Some(connection(0)));
        assert!(budget.next().is_none());
        budget.remove(connection(1));
        assert!(!budget.has_waiting());
        budget.give_back(100);
        assert!(budget.try_take(100) && budget.used() == 100);
    }
}
