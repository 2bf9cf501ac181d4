//! Which part of a donor's memory is whose.

use std::ops::Range;

use super::protocol::Lent;

/// Slabs begin at multiples of this.
const ALIGN: u64 = 4096;

struct Owned {
    lent: Lent,
    volume: u64,
}

/// The slabs of one memory, by where they lie.
pub(super) struct Slabs {
    len: u64,
    free: u64,
    owned: Vec<Owned>,
    next: u64,
    /// Bytes from here on were never anybody's.
    fresh: u64,
}

impl Slabs {
    pub fn new(len: u64) -> Self {
        Self { len, free: len, owned: Vec::new(), next: 1, fresh: 0 }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that are nobody's.
    pub fn free_bytes(&self) -> u64 {
        self.free
    }

    pub fn of(&self, volume: u64) -> impl Iterator<Item = Lent> {
        self.owned.iter().filter(move |owned| owned.volume == volume).map(|owned| owned.lent)
    }

    /// Whether these bytes lie in one slab of the volume.
    pub fn has(&self, volume: u64, range: &Range<u64>) -> bool {
        let behind = self.owned.partition_point(|owned| owned.lent.base <= range.start);
        let owned = behind.checked_sub(1).and_then(|index| self.owned.get(index));
        owned.is_some_and(|Owned { lent, volume: of }| *of == volume && range.end <= lent.base + lent.len)
    }

    /// The first gap that has room. Returns the slab, and how many of its bytes may be other than zero.
    pub fn take(&mut self, volume: u64, len: u64) -> Option<(Lent, u64)> {
        let mut base = 0u64;
        let mut place = self.owned.len();
        for (index, owned) in self.owned.iter().enumerate() {
            if owned.lent.base - base >= len {
                place = index;
                break;
            }
            base = (owned.lent.base + owned.lent.len).next_multiple_of(ALIGN);
        }
        let end = base.checked_add(len).filter(|end| *end <= self.len)?;
        let lent = Lent { slab: self.next, base, len };
        self.next += 1;
        self.free -= len;
        self.owned.insert(place, Owned { lent, volume });
        let dirty = self.fresh.saturating_sub(base).min(len);
        self.fresh = self.fresh.max(end);
        Some((lent, dirty))
    }

    pub fn give_back(&mut self, volume: u64, slab: u64) -> bool {
        let Some(index) = self.owned.iter().position(|owned| owned.lent.slab == slab && owned.volume == volume) else {
            return false;
        };
        self.free += self.owned.remove(index).lent.len;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_used_again_and_what_was_somebodys_is_said_to_be_dirty() {
        let mut slabs = Slabs::new(5 * ALIGN);
        let (first, dirty) = slabs.take(1, 2 * ALIGN).unwrap();
        assert_eq!((first.base, dirty), (0, 0));
        let (second, dirty) = slabs.take(2, 2 * ALIGN).unwrap();
        assert_eq!((second.base, dirty), (2 * ALIGN, 0));
        assert!(slabs.take(1, 2 * ALIGN).is_none() && slabs.take(1, u64::MAX).is_none());
        assert!(!slabs.give_back(2, first.slab) && slabs.give_back(1, first.slab));
        let (third, dirty) = slabs.take(2, ALIGN).unwrap();
        assert_eq!((third.base, dirty), (0, ALIGN));
        assert!(third.slab > second.slab, "numbers are not used again");
        assert_eq!(slabs.of(2).count(), 2);
        let has = |volume, from, to| slabs.has(volume, &(from * ALIGN..to * ALIGN));
        assert!(has(2, 0, 1) && has(2, 2, 4) && has(2, 3, 4) && has(2, 1, 1));
        assert!(!has(1, 0, 1) && !has(2, 0, 2) && !has(2, 1, 2) && !has(2, 3, 5) && !has(2, 4, 5));
        assert_eq!(slabs.free_bytes(), 2 * ALIGN);
    }
}
