//! A hash that is the same on every machine and in every run: it chooses flows' routes, and digests everything that
//! happened.

/// State of a hash, and its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hash(pub u64);

impl Hash {
    /// Adds a word. (The finish of splitmix64, which mixes all bits into all.)
    #[inline]
    pub fn add(&mut self, word: u64) {
        let mut mixed = (self.0 ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = mixed ^ (mixed >> 31);
    }

    /// The hash of some words.
    pub fn of(words: &[u64]) -> u64 {
        let mut hash = Self::default();
        words.iter().for_each(|word| hash.add(*word));
        hash.0
    }
}
