//! Time for which a server kept a request, in 16 bits.
//!
//! The format is a small floating-point number of nanoseconds: 12 bits of mantissa and 4 of exponent. It is exact up to
//! 4,095 ns, and within 1/2048 up to 134 ms, which is also the largest value. A client subtracts it from a round trip,
//! so that slow handlers do not look like congestion.

/// The largest residence that can be encoded, in nanoseconds.
pub const RESIDENCE_MAX_NS: u64 = 4095 << 15;

/// Encodes a time, rounding down; longer ones become [`RESIDENCE_MAX_NS`].
#[inline]
pub fn encode(ns: u64) -> u16 {
    if ns < 1 << 12 {
        // Most times are below this limit, and are encoded as themselves.
        return ns as u16;
    }
    let ns = ns.min(RESIDENCE_MAX_NS);
    let exponent = 64 - ns.leading_zeros() - 12;
    ((exponent as u16) << 12) | (ns >> exponent) as u16
}

/// Decodes a time, in nanoseconds.
#[inline]
pub fn decode(packed: u16) -> u64 {
    u64::from(packed & 0xFFF) << (packed >> 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_are_exact_and_long_ones_are_close() {
        for ns in 0..4096 {
            assert_eq!(decode(encode(ns)), ns);
        }
        for ns in [4096, 5001, 65_535, 1_000_000, 50_000_001, RESIDENCE_MAX_NS] {
            let back = decode(encode(ns));
            assert!(back <= ns && ns - back <= ns / 2048, "{ns} became {back}");
        }
        assert_eq!(decode(encode(u64::MAX)), RESIDENCE_MAX_NS);
        for packed in 0..=u16::MAX {
            assert!(decode(packed) <= RESIDENCE_MAX_NS);
        }
    }
}
