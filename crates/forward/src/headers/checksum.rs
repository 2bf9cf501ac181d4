//! The checksum of the internet's protocols (RFC 1071), and its change with a word (RFC 1624).

use std::net::Ipv6Addr;

/// Adds bytes to a sum of 16-bit words; an odd last byte counts as if a zero followed.
#[inline]
pub fn sum(bytes: &[u8], start: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let total = words.iter().fold(start, |sum, word| sum + u64::from(u16::from_be_bytes(*word)));
    total + rest.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// The checksum of a sum: its complement, folded.
#[inline]
pub fn folded(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

/// The checksum of bytes. Over bytes that contain a right one it is 0.
#[inline]
pub fn of(bytes: &[u8]) -> u16 {
    folded(sum(bytes, 0))
}

/// What a checksum becomes when one of the words below it changes (RFC 1624, equation 3).
#[inline(always)]
pub fn adjusted(checksum: u16, old: u16, new: u16) -> u16 {
    folded(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// The checksum of an IPv6 payload with its pseudo header (RFC 8200 8.1). Over a payload that contains a right one it is 0.
pub fn of_ipv6(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload: &[u8]) -> u16 {
    let addresses = sum(&to.octets(), sum(&from.octets(), 0));
    folded(sum(payload, addresses + payload.len() as u64 + u64::from(protocol)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_sums_to_what_it_says() {
        assert_eq!(of(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]), !0xDDF2);
        assert_eq!(of(&[0xFF]), !0xFF00);
        assert_eq!(of(&[]), 0xFFFF);
    }

    #[test]
    fn a_checksum_adjusted_is_the_one_that_is_summed_anew() {
        let mut bytes = [0x45, 0, 0, 84, 0x12, 0x34, 0x40, 0, 64, 1, 10, 0, 0, 1, 10, 0, 0, 2];
        for ttl in (1..=255u8).rev() {
            let (old, before) = (u16::from_be_bytes([bytes[8], bytes[9]]), of(&bytes));
            bytes[8] = ttl;
            let new = u16::from_be_bytes([bytes[8], bytes[9]]);
            assert_eq!(adjusted(before, old, new), of(&bytes));
        }
    }
}
