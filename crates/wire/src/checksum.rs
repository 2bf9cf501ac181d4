//! The Internet checksum (RFC 1071): the ones' complement of the ones' complement sum of 16-bit words.

/// An unfinished sum. It does not depend on the machine's byte order, as long as its result is written as it stands in
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of the pseudo-header that UDP over either IP version and ICMPv6 cover besides the payload (RFC 8200
    /// 8.1): both addresses, the payload's length in bytes, and its protocol.
    #[inline]
    pub fn of_pseudo_header(from: &[u8], to: &[u8], protocol: u8, len: u16) -> Self {
        Self::default().with(from).with(to).with_number(len).with_number(protocol.into())
    }

    /// Adds bytes, which must begin at an even offset of the summed data; so only the last piece may have an odd
    /// length.
    #[inline]
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let mut sum = u128::from(self.0);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            sum += u128::from(u64::from_ne_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        sum += u128::from(u64::from_ne_bytes(last));
        let halves = (sum >> 64) + (sum & u128::from(u64::MAX));
        Self((halves >> 64) as u64 + halves as u64)
    }

    /// Adds a 16-bit number in network byte order.
    #[inline]
    #[must_use]
    pub fn with_number(self, number: u16) -> Self {
        self.with(&number.to_be_bytes())
    }

    /// The 16 bits of the sum, as they stand in memory.
    #[inline]
    pub fn folded(self) -> [u8; 2] {
        let mut sum = (self.0 >> 32) + (self.0 & 0xFFFF_FFFF);
        while sum > 0xFFFF {
            sum = (sum >> 16) + (sum & 0xFFFF);
        }
        (sum as u16).to_ne_bytes()
    }

    /// The checksum, as it stands in memory.
    #[inline]
    pub fn checksum(self) -> [u8; 2] {
        self.folded().map(|byte| !byte)
    }

    /// Whether the summed bytes include a correct checksum.
    #[inline]
    pub fn is_right(self) -> bool {
        self.folded() == [0xFF; 2]
    }
}

/// The checksum after a word that it covers changes from `old` to `new` (RFC 1624, equation 3), each as it stands in
/// memory.
#[inline]
pub fn adjusted(checksum: [u8; 2], old: [u8; 2], new: [u8; 2]) -> [u8; 2] {
    let word = |bytes: [u8; 2]| u64::from(u16::from_ne_bytes(bytes));
    let not = |bytes: [u8; 2]| bytes.map(|byte| !byte);
    Sum(word(not(checksum)) + word(not(old)) + word(new)).checksum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071, word by word.
    fn oracle(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for word in bytes.chunks(2) {
            sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_comes_out() {
        let bytes = [0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7];
        assert_eq!(Sum::default().with(&bytes).folded(), [0xDD, 0xF2]);
    }

    #[test]
    fn a_checksum_adjusted_is_the_one_that_is_summed_anew() {
        let mut bytes = [0x45, 0, 0, 84, 0x12, 0x34, 0x40, 0, 64, 1, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = |bytes: &[u8]| Sum::default().with(bytes).checksum();
        for ttl in (1..=255u8).rev() {
            let (old, before) = ([bytes[8], bytes[9]], sum(&bytes));
            bytes[8] = ttl;
            assert_eq!(adjusted(before, old, [bytes[8], bytes[9]]), sum(&bytes));
        }
    }

    proptest! {
        #[test]
        fn a_checksum_is_that_of_the_words(mut bytes in prop::collection::vec(any::<u8>(), 2..300), cut in any::<prop::sample::Index>()) {
            let cut = cut.index(bytes.len()) & !1;
            let sum = Sum::default().with(&bytes[..cut]).with(&bytes[cut..]);
            prop_assert_eq!(u16::from_be_bytes(sum.checksum()), oracle(&bytes));
            bytes[..2].fill(0);
            let checksum = Sum::default().with(&bytes).checksum();
            bytes[..2].copy_from_slice(&checksum);
            prop_assert!(Sum::default().with(&bytes).is_right());
            bytes[1] ^= 1;
            prop_assert!(!Sum::default().with(&bytes).is_right());
        }
    }
}
