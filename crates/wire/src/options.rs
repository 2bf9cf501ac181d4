//! Options of a call: eight bytes in front of the request's data.
//!
//! A message of kind [`RequestWithOptions`](crate::Kind::RequestWithOptions) begins with the options, and its length
//! includes them, so its first packet carries eight fewer bytes of the caller's data. Such requests have a packet kind
//! of their own, so that plain requests do not grow.
//!
//! The low 48 bits are the time for which the caller will still wait, in nanoseconds; if all of them are set, there is
//! no deadline. It is a duration, since the clocks of two machines are not synchronised, and is updated whenever the
//! packet is retransmitted. The high 16 bits are zero, and receivers that do not know their meaning ignore them.

/// Length of a call's options, in bytes.
pub const OPTIONS_LEN: usize = 8;
/// The longest remaining time that can be encoded, in nanoseconds: some 78 hours.
pub const REMAINING_MAX_NS: u64 = MASK - 1;

const MASK: u64 = (1 << 48) - 1;

/// A call's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time for which the caller will still wait, in nanoseconds; `None` without a deadline.
    pub remaining_ns: Option<u64>,
}

impl Options {
    /// The options as they go on the wire. A longer remaining time becomes [`REMAINING_MAX_NS`].
    #[inline]
    pub fn to_bytes(self) -> [u8; OPTIONS_LEN] {
        self.remaining_ns.map_or(MASK, |remaining_ns| remaining_ns.min(REMAINING_MAX_NS)).to_le_bytes()
    }

    /// Reads the options.
    #[inline]
    pub fn read(bytes: [u8; OPTIONS_LEN]) -> Self {
        let remaining_ns = u64::from_le_bytes(bytes) & MASK;
        Self { remaining_ns: (remaining_ns != MASK).then_some(remaining_ns) }
    }

    /// The caller's deadline, on the receiver's clock, by which the options arrived at `now_ns`; `None` without a
    /// deadline.
    #[inline]
    pub fn deadline_ns(self, now_ns: u64) -> Option<u64> {
        self.remaining_ns.map(|remaining_ns| now_ns.saturating_add(remaining_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_times_survive_the_wire_and_long_ones_are_cut() {
        for remaining_ns in [None, Some(0), Some(1), Some(REMAINING_MAX_NS)] {
            let options = Options { remaining_ns };
            assert_eq!(Options::read(options.to_bytes()), options);
        }
        let long = Options { remaining_ns: Some(u64::MAX) };
        assert_eq!(Options::read(long.to_bytes()).remaining_ns, Some(REMAINING_MAX_NS));
    }

    #[test]
    fn bits_of_the_future_are_ignored() {
        let mut bytes = Options { remaining_ns: Some(5) }.to_bytes();
        bytes[7] = 0xFF;
        assert_eq!(Options::read(bytes).remaining_ns, Some(5));
    }
}
