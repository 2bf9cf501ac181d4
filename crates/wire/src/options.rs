//! What a call asks for beside its request: eight bytes in front of the request's data.
//!
//! A message of kind [`RequestWithOptions`](crate::Kind::RequestWithOptions) begins with them, and its length counts them: its first packet
//! carries eight bytes less of the caller's data. They are a word of its own kind of packet, so that plain requests stay as short as they are.
//!
//! The low 48 bits are the time that the caller still waits, in nanoseconds; all of them set stand for no deadline. It is a duration, since
//! the clocks of two machines have nothing in common, and is written anew whenever the packet is sent again. The high 16 bits are zero, and
//! ignored by those who do not know their meaning.

/// Bytes of a call's options.
pub const OPTIONS_LEN: usize = 8;
/// The longest remaining time that can be told, in nanoseconds: some 78 hours.
pub const REMAINING_MAX_NS: u64 = MASK - 1;

const MASK: u64 = (1 << 48) - 1;

/// A call's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long the caller still waits, in nanoseconds; none without a deadline.
    pub remaining_ns: Option<u64>,
}

impl Options {
    /// As they go on the wire. Longer times become [`REMAINING_MAX_NS`].
    #[inline]
    pub fn to_bytes(self) -> [u8; OPTIONS_LEN] {
        self.remaining_ns.map_or(MASK, |remaining_ns| remaining_ns.min(REMAINING_MAX_NS)).to_le_bytes()
    }

    /// Reads them.
    #[inline]
    pub fn read(bytes: [u8; OPTIONS_LEN]) -> Self {
        let remaining_ns = u64::from_le_bytes(bytes) & MASK;
        Self { remaining_ns: (remaining_ns != MASK).then_some(remaining_ns) }
    }

    /// When the caller waits no longer, on a clock on which they came at `now_ns`.
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
