//! Keys as stored in the tree: most comparisons are decided by the first eight bytes, which lie in the node itself.

use std::cmp::Ordering;
use std::ops::Bound;

use scc::{Comparable, Equivalent};

/// Bytes of a key that are stored in its node.
const HEAD_LEN: usize = 8;

/// A key that the tree owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The first bytes, big-endian, padded with zeros if the key is shorter.
    head: u64,
    len: u32,
    /// The bytes after the head.
    tail: Box<[u8]>,
}

/// A borrowed key, for lookups that allocate nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRef<'a> {
    head: u64,
    len: usize,
    tail: &'a [u8],
}

impl<'a> KeyRef<'a> {
    #[inline]
    pub fn new(key: &'a [u8]) -> Self {
        let (head, tail) = match key.split_first_chunk::<HEAD_LEN>() {
            Some((head, tail)) => (u64::from_be_bytes(*head), tail),
            None => {
                let mut head = [0; HEAD_LEN];
                head[..key.len()].copy_from_slice(key);
                (u64::from_be_bytes(head), &[][..])
            }
        };
        Self { head, len: key.len(), tail }
    }

    pub fn to_owned(self) -> Key {
        Key { head: self.head, len: self.len as u32, tail: self.tail.into() }
    }

    /// Compares two keys. If the heads are equal, the tails decide. If one key ends within its head, its tail is empty,
    /// and its padding equals zero bytes of the other: it is a prefix of the other, so the shorter key is less.
    #[inline]
    fn order(&self, other: KeyRef<'_>) -> Ordering {
        match self.head.cmp(&other.head) {
            Ordering::Equal => self.tail.cmp(other.tail).then(self.len.cmp(&other.len)),
            unequal => unequal,
        }
    }
}

impl Key {
    #[inline]
    fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { head: self.head, len: self.len as usize, tail: &self.tail }
    }

    /// Replaces the contents of `bytes` with the key.
    #[inline]
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let head = self.head.to_be_bytes();
        bytes.extend_from_slice(head.get(..self.len as usize).unwrap_or(&head));
        bytes.extend_from_slice(&self.tail);
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_ref().order(other.as_ref())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    #[inline]
    fn equivalent(&self, key: &Key) -> bool {
        self.order(key.as_ref()) == Ordering::Equal
    }
}

impl Comparable<Key> for KeyRef<'_> {
    #[inline]
    fn compare(&self, key: &Key) -> Ordering {
        self.order(key.as_ref())
    }
}

/// Converts a bound of bytes into a bound of keys.
pub(super) fn bound<'a>(bound: Bound<&'a [u8]>) -> Bound<KeyRef<'a>> {
    bound.map(KeyRef::new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_are_ordered_as_their_bytes_are(
            a in proptest::collection::vec(0u8..3, 0..12),
            b in proptest::collection::vec(0u8..3, 0..12),
        ) {
            let (left, right) = (KeyRef::new(&a), KeyRef::new(&b));
            prop_assert_eq!(left.order(right), a.cmp(&b));
            prop_assert_eq!(left.to_owned().cmp(&right.to_owned()), a.cmp(&b));
            prop_assert_eq!(left.equivalent(&right.to_owned()), a == b);
            prop_assert_eq!(left.compare(&right.to_owned()), a.cmp(&b));
        }

        #[test]
        fn a_key_gives_its_bytes_back(key in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = vec![1, 2, 3];
            KeyRef::new(&key).to_owned().write(&mut bytes);
            prop_assert_eq!(bytes, key);
        }
    }
}
