//! Division of a donor's memory into slabs, and their owners.

use std::ops::Range;

use super::protocol::LentSlab;

/// Slabs begin at multiples of this.
const ALIGN: u64 = 4096;

struct SlabEntry {
    lent: LentSlab,
    /// `None` once the slab is set aside, because someone who has lost access may still write there.
    volume: Option<u64>,
}

/// Slabs of one memory, in the order of their addresses.
pub(super) struct Slabs {
    len: u64,
    free: u64,
    owned: Vec<SlabEntry>,
    next: u64,
    /// No byte from here on has ever belonged to a slab.
    never_used_from: u64,
}

impl Slabs {
    pub fn new(len: u64) -> Self {
        Self { len, free: len, owned: Vec::new(), next: 1, never_used_from: 0 }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes in no slab, lent or set aside.
    pub fn free_bytes(&self) -> u64 {
        self.free
    }

    pub fn slabs_of(&self, volume: u64) -> impl Iterator<Item = LentSlab> {
        self.owned.iter().filter(move |owned| owned.volume == Some(volume)).map(|owned| owned.lent)
    }

    /// Slabs that overlap these bytes, with their volumes.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Option<u64>, LentSlab)> {
        let touches = move |lent: &LentSlab| lent.base < range.end && range.start < lent.base + lent.len;
        self.owned.iter().filter(move |owned| touches(&owned.lent)).map(|owned| (owned.volume, owned.lent))
    }

    /// Bytes set aside.
    pub fn set_aside_bytes(&self) -> u64 {
        self.owned.iter().filter(|owned| owned.volume.is_none()).map(|owned| owned.lent.len).sum()
    }

    /// Moves a slab to another place, under the same number. Returns the old place, which is set aside under a number
    /// of its own, and then the new one.
    pub fn relocate(&mut self, volume: u64, slab: u64) -> Option<(LentSlab, LentSlab)> {
        let old = self.slabs_of(volume).find(|lent| lent.slab == slab)?;
        let (taken, _) = self.take(volume, old.len)?;
        let [mut aside, mut moved] = [old, taken];
        for owned in &mut self.owned {
            if owned.lent.base == old.base {
                (owned.volume, owned.lent.slab) = (None, taken.slab);
                aside = owned.lent;
            } else if owned.lent.base == taken.base {
                owned.lent.slab = slab;
                moved = owned.lent;
            }
        }
        Some((aside, moved))
    }

    /// Frees a place that was set aside.
    pub fn release(&mut self, slab: u64) {
        if let Some(index) = self.owned.iter().position(|owned| owned.lent.slab == slab && owned.volume.is_none()) {
            self.free += self.owned.remove(index).lent.len;
        }
    }

    /// Whether these bytes lie in a single slab of the volume.
    pub fn has(&self, volume: u64, range: &Range<u64>) -> bool {
        let behind = self.owned.partition_point(|owned| owned.lent.base <= range.start);
        let owned = behind.checked_sub(1).and_then(|index| self.owned.get(index));
        owned.is_some_and(|SlabEntry { lent, volume: of }| *of == Some(volume) && range.end <= lent.base + lent.len)
    }

    /// Takes the first gap with room. Returns the slab, and the length of the prefix that may hold bytes other than
    /// zero.
    pub fn take(&mut self, volume: u64, len: u64) -> Option<(LentSlab, u64)> {
        let mut base = 0u64;
        let mut position = self.owned.len();
        for (index, owned) in self.owned.iter().enumerate() {
            if owned.lent.base - base >= len {
                position = index;
                break;
            }
            base = (owned.lent.base + owned.lent.len).next_multiple_of(ALIGN);
        }
        let end = base.checked_add(len).filter(|end| *end <= self.len)?;
        let lent = LentSlab { slab: self.next, base, len };
        self.next += 1;
        self.free -= len;
        self.owned.insert(position, SlabEntry { lent, volume: Some(volume) });
        let dirty = self.never_used_from.saturating_sub(base).min(len);
        self.never_used_from = self.never_used_from.max(end);
        Some((lent, dirty))
    }

    pub fn give_back(&mut self, volume: u64, slab: u64) -> bool {
        let Some(index) = self.owned.iter().position(|owned| owned.lent.slab == slab && owned.volume == Some(volume))
        else {
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
        assert_eq!(slabs.slabs_of(2).count(), 2);
        let has = |volume, from, to| slabs.has(volume, &(from * ALIGN..to * ALIGN));
        assert!(has(2, 0, 1) && has(2, 2, 4) && has(2, 3, 4) && has(2, 1, 1));
        assert!(!has(1, 0, 1) && !has(2, 0, 2) && !has(2, 1, 2) && !has(2, 3, 5) && !has(2, 4, 5));
        assert_eq!(slabs.free_bytes(), 2 * ALIGN);
    }
    #[test]
    fn a_slab_that_moves_keeps_its_number_and_its_old_place_is_nobodys_until_it_is_released() {
        let mut slabs = Slabs::new(5 * ALIGN);
        let (lent, _) = slabs.take(1, 2 * ALIGN).unwrap();
        let (other, _) = slabs.take(2, ALIGN).unwrap();
        assert!(slabs.relocate(2, lent.slab).is_none());
        let (aside, moved) = slabs.relocate(1, lent.slab).unwrap();
        assert_eq!((aside.base, moved.slab, moved.base, moved.len), (0, lent.slab, 3 * ALIGN, 2 * ALIGN));
        assert!(![lent.slab, other.slab].contains(&aside.slab));
        assert_eq!(
            (slabs.slabs_of(1).collect::<Vec<_>>(), slabs.free_bytes(), slabs.set_aside_bytes()),
            (vec![moved], 0, 2 * ALIGN)
        );
        let under = |slabs: &Slabs, range| slabs.overlapping(range).map(|(volume, _)| volume).collect::<Vec<_>>();
        assert_eq!(under(&slabs, ALIGN..2 * ALIGN + 1), [None, Some(2)]);
        assert_eq!(under(&slabs, 3 * ALIGN..3 * ALIGN + 1), [Some(1)]);
        assert!(!slabs.has(1, &(0..1)) && slabs.has(1, &(3 * ALIGN..5 * ALIGN)));
        assert!(slabs.relocate(1, lent.slab).is_none(), "there is no room");
        assert_eq!(slabs.slabs_of(1).count(), 1);
        assert!(!slabs.give_back(1, aside.slab));
        slabs.release(moved.slab);
        slabs.release(aside.slab);
        assert_eq!((slabs.free_bytes(), slabs.set_aside_bytes()), (2 * ALIGN, 0));
        assert_eq!(slabs.take(3, ALIGN).unwrap().1, ALIGN, "it was somebody's");
    }
}
