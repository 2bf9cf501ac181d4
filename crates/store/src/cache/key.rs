//! Keys and their hashes.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// Longest key, in bytes.
pub const KEY_LEN_MAX: usize = u16::MAX as usize;

/// The largest [tag](Key::tag).
pub(crate) const TAG_MAX: u16 = 0x7FFF;

/// Hashes keys with a seed: without knowing it, nobody can choose keys that collide.
///
/// This protection is as strong as the hash, which is a fast one and not cryptographic.
#[derive(Clone, Debug)]
pub struct KeyHasher(RapidSecrets);

impl KeyHasher {
    /// Makes a hasher; the same seed gives the same hashes.
    pub fn new(seed: u64) -> Self {
        Self(RapidSecrets::seed(seed))
    }

    /// Hashes a key.
    #[inline(always)]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, hash: rapidhash_v3_inline::<true, false, false>(bytes, &self.0), hint: 0 }
    }
}

/// A key with its hash, of which different bits choose the partition, the bucket and the tag.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    bytes: &'a [u8],
    hash: u64,
    /// Slot of the bucket in which its item was seen, so that it need not be searched for again.
    pub(crate) hint: u32,
}

impl<'a> Key<'a> {
    /// The key itself.
    #[inline(always)]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the key's partition among `partitions`, of which there may be at most 65,536.
    #[inline(always)]
    pub fn partition(&self, partitions: usize) -> usize {
        (self.hash as u16 as usize * partitions) >> 16
    }

    /// Returns the key's bucket among `buckets`.
    #[inline(always)]
    pub(crate) fn bucket(&self, buckets: u32) -> usize {
        (((self.hash >> 32) * u64::from(buckets)) >> 32) as usize
    }

    /// Bits of the hash that tell the items of a bucket apart before their keys are read.
    #[inline(always)]
    pub(crate) fn tag(&self) -> u16 {
        (self.hash >> 16) as u16 & TAG_MAX
    }
}

/// The hash of a key and the place of its item, without the key's bytes: for callers that keep the bytes elsewhere
/// between the steps of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownKey {
    hash: u64,
    hint: u32,
}

impl Key<'_> {
    /// Returns the key without its bytes.
    #[inline(always)]
    pub fn known(&self) -> KnownKey {
        KnownKey { hash: self.hash, hint: self.hint }
    }
}

impl KnownKey {
    /// Restores the key. The bytes must be the same as before; with others, the key finds nothing.
    #[inline(always)]
    pub fn with_bytes(self, bytes: &[u8]) -> Key<'_> {
        Key { bytes, hash: self.hash, hint: self.hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_over_partitions_buckets_and_tags() {
        let hasher = KeyHasher::new(1);
        let (mut partitions, mut buckets, mut tags) = ([0; 3], [0; 10], std::collections::BTreeSet::new());
        for number in 0..30_000u32 {
            let bytes = number.to_le_bytes();
            let key = hasher.key(&bytes);
            partitions[key.partition(3)] += 1;
            buckets[key.bucket(10)] += 1;
            tags.insert(key.tag());
        }
        assert!(partitions.iter().all(|keys| (9_500..10_500).contains(keys)), "{partitions:?}");
        assert!(buckets.iter().all(|keys| (2_700..3_300).contains(keys)), "{buckets:?}");
        assert!(tags.len() > 19_000, "{}", tags.len());
    }

    #[test]
    fn another_seed_is_another_hash() {
        let hash = |seed| KeyHasher::new(seed).key(b"key").hash;
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }
}
