//! The mapping from keys to partitions.

use sinew_store::cache::KeyHasher;

/// The most partitions that a cache can have.
pub const PARTITIONS_MAX: usize = 1 << 10;

/// Seed of the hash that chooses partitions. It is fixed and public, since clients choose too; the hash by which a
/// table places its keys has a seed of its own.
const SEED: u64 = 0x5349_4E45_5750_4152;

/// The partitions of a cache, each of which one thread owns.
#[derive(Clone, Debug)]
pub struct Partitions {
    hasher: KeyHasher,
    count: usize,
}

impl Partitions {
    /// Divides the keys into `count` partitions, clamped to 1 to [`PARTITIONS_MAX`].
    pub fn new(count: usize) -> Self {
        Self { hasher: KeyHasher::new(SEED), count: count.clamp(1, PARTITIONS_MAX) }
    }

    /// Number of partitions.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The partition of a key.
    #[inline(always)]
    pub fn of(&self, key: &[u8]) -> usize {
        if self.count == 1 { 0 } else { self.hasher.key(key).partition(self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_of_a_key_is_fixed() {
        // Clients of one version meet servers of another.
        let partitions = Partitions::new(1000);
        let found: Vec<_> = [&b""[..], b"a", b"key", b"a-key-of-16-byte"].map(|key| partitions.of(key)).into();
        assert_eq!(found, [30, 499, 609, 354]);
        assert_eq!(Partitions::new(1).of(b"key"), 0);
    }

    #[test]
    fn partitions_get_like_shares() {
        let partitions = Partitions::new(3);
        let mut keys = [0; 3];
        (0..30_000u32).for_each(|key| keys[partitions.of(&key.to_be_bytes())] += 1);
        assert!(keys.iter().all(|keys| (9_500..10_500).contains(keys)), "{keys:?}");
    }
}
