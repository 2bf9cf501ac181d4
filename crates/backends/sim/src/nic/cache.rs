//! A NIC's caches of state that lies in its host's memory.

/// Most places of a set.
const WAYS: usize = 8;
const NONE: u64 = u64::MAX;

/// A set-associative cache of numbers. Sets have up to eight places, and evict the least recently used.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Sets, each with the most recently used number first.
    places: Vec<u64>,
    ways: usize,
}

impl Cache {
    /// A cache of `entries` places, at least one.
    pub fn new(entries: usize) -> Self {
        let ways = entries.clamp(1, WAYS);
        let sets = (entries / ways).max(1);
        Self { places: vec![NONE; sets * ways], ways }
    }

    /// Returns whether a number was cached; it is from now on.
    #[inline]
    pub fn touch(&mut self, number: u64) -> bool {
        let sets = self.places.len() / self.ways;
        // The hash spreads consecutive numbers over sets, and those a power of two apart too.
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let set = (hash as usize % sets) * self.ways;
        let set = &mut self.places[set..set + self.ways];
        match set.iter().position(|place| *place == number) {
            Some(0) => true,
            Some(at) => {
                set[..=at].rotate_right(1);
                true
            }
            None => {
                set.rotate_right(1);
                set[0] = number;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_found_again_and_of_more_only_a_part() {
        let mut cache = Cache::new(64);
        let hits = |cache: &mut Cache, count: u64| {
            (0..20).fold(0, |_, _| (0..count).filter(|number| cache.touch(*number)).count())
        };
        assert_eq!(hits(&mut cache, 16), 16);
        let of_many = hits(&mut cache, 640);
        assert!(of_many < 64, "{of_many} of 640 in 64 places");
        let mut one = Cache::new(0);
        assert_eq!([one.touch(1), one.touch(1), one.touch(2), one.touch(1)], [false, true, false, false]);
    }
}
