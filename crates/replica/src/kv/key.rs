//! Keys as the store holds them.

use std::cmp::Ordering;
use std::sync::Arc;

/// Bytes of a key that lie in place.
const HEAD_LEN: usize = 16;

/// A key. Its first bytes lie in place, so that a search follows pointers only to keys that begin alike: with a million
/// keys of 16 bytes, those misses took a third of the members' time. A key without further bytes needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The first bytes, then zeros.
    head: [u8; HEAD_LEN],
    whole: Whole,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Whole {
    /// The key has this many bytes, all of them in the head.
    Head(u8),
    Bytes(Arc<[u8]>),
}

impl Key {
    /// Returns a key of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        let mut head = [0; HEAD_LEN];
        let head_len = bytes.len().min(HEAD_LEN);
        head[..head_len].copy_from_slice(&bytes[..head_len]);
        let whole = if bytes.len() > HEAD_LEN { Whole::Bytes(bytes.into()) } else { Whole::Head(head_len as u8) };
        Self { head, whole }
    }

    /// All of its bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.whole {
            Whole::Head(len) => &self.head[..usize::from(*len)],
            Whole::Bytes(bytes) => bytes,
        }
    }
}

impl Ord for Key {
    /// Orders keys as their bytes. Where the heads are equal, a key that ends in its head is the beginning of the
    /// other.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let heads = u128::from_be_bytes(self.head).cmp(&u128::from_be_bytes(other.head));
        heads.then_with(|| match (&self.whole, &other.whole) {
            (Whole::Head(len), Whole::Head(other_len)) => len.cmp(other_len),
            (Whole::Head(_), Whole::Bytes(_)) => Ordering::Less,
            (Whole::Bytes(_), Whole::Head(_)) => Ordering::Greater,
            (Whole::Bytes(bytes), Whole::Bytes(other_bytes)) => bytes[HEAD_LEN..].cmp(&other_bytes[HEAD_LEN..]),
        })
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few different bytes make long common beginnings, and zeros, likely.
        #[test]
        fn keys_are_ordered_as_their_bytes(
            a in proptest::collection::vec(0_u8..2, 0..20),
            b in proptest::collection::vec(0_u8..2, 0..20),
            common in proptest::collection::vec(0_u8..2, 0..20),
        ) {
            let (a, b) = ([&common[..], &a].concat(), [&common[..], &b].concat());
            let (key_a, key_b) = (Key::new(&a), Key::new(&b));
            prop_assert_eq!(key_a.bytes(), &a[..]);
            prop_assert_eq!(key_a.cmp(&key_b), a.cmp(&b));
            prop_assert_eq!(key_a == key_b, a == b);
        }
    }

    #[test]
    fn a_key_takes_no_more_room_than_its_head_and_a_pointer() {
        assert_eq!(size_of::<Key>(), HEAD_LEN + size_of::<Arc<[u8]>>());
    }
}
