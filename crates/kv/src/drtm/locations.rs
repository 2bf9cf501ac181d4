//! A client's memory of where it last saw items.

/// Places of a set, which is one cache line.
const WAYS: usize = 4;

/// Record of a key whose hash has this upper half.
#[derive(Clone, Copy, Debug, Default)]
struct Location {
    tag: u32,
    /// Record number plus one; 0 marks an empty place.
    record: u32,
    version: u64,
}

/// A cache of records and versions by hash. Entries replace each other, and may be out of date.
#[derive(Debug)]
pub(super) struct Locations {
    sets: Vec<[Location; WAYS]>,
}

impl Locations {
    /// Makes room for `count` locations, rounded up.
    pub fn new(count: usize) -> Self {
        Self { sets: vec![[Location::default(); WAYS]; count.div_ceil(WAYS).next_power_of_two()] }
    }

    #[inline(always)]
    fn set(&mut self, hash: u64) -> &mut [Location; WAYS] {
        let mask = self.sets.len() - 1;
        &mut self.sets[hash as usize & mask]
    }

    /// Returns the record and its version.
    #[inline(always)]
    pub fn get(&mut self, hash: u64) -> Option<(u32, u64)> {
        let tag = (hash >> 32) as u32;
        let location = self.set(hash).iter().find(|location| location.tag == tag && location.record != 0)?;
        Some((location.record - 1, location.version))
    }

    #[inline(always)]
    pub fn put(&mut self, hash: u64, record: u32, version: u64) {
        let tag = (hash >> 32) as u32;
        let set = self.set(hash);
        let existing = set.iter().position(|location| location.tag == tag && location.record != 0);
        let at = existing.or_else(|| set.iter().position(|location| location.record == 0));
        set[at.unwrap_or(tag as usize % WAYS)] = Location { tag, record: record + 1, version };
    }

    pub fn forget(&mut self, hash: u64) {
        let tag = (hash >> 32) as u32;
        for location in self.set(hash).iter_mut().filter(|location| location.tag == tag) {
            *location = Location::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_last_is_remembered_and_others_take_its_place() {
        let mut locations = Locations::new(8);
        assert_eq!(locations.sets.len(), 2);
        let hash = |nth: u64| nth << 32;
        locations.put(hash(1), 10, 0);
        locations.put(hash(1), 11, 5);
        locations.put(hash(2), 12, 6);
        assert_eq!((locations.get(hash(1)), locations.get(hash(2))), (Some((11, 5)), Some((12, 6))));
        assert_eq!((locations.get(hash(1) + 1), locations.get(hash(0))), (None, None));
        locations.forget(hash(1));
        assert_eq!((locations.get(hash(1)), locations.get(hash(2))), (None, Some((12, 6))));
        (0..100).for_each(|nth| locations.put(hash(nth), nth as u32, 0));
        assert_eq!((0..100).filter(|nth| locations.get(hash(*nth)).is_some()).count(), WAYS);
        assert_eq!(locations.get(hash(99)), Some((99, 0)));
    }
}
