//! Division of a donor's memory into slabs, and their owners.

use std::ops::Range;

use super::protocol::LentSlab;

/// Slabs begin at multiples of this, and their lengths are multiples of it.
pub(super) const ALIGN: u64 = 4096;

/// The use of a part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartUse {
    /// Lent to this volume.
    Lent(u64),
    /// Someone who has lost access may still write there.
    SetAside,
    /// It was given back, and may hold bytes other than zero.
    Zeroing,
}

struct Part {
    lent: LentSlab,
    of: PartUse,
}

/// Reason why no slab was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlab {
    /// No gap is long enough.
    Full,
    /// There is a gap that is long enough once what was given back is zeroed.
    Zeroing,
}

/// Slabs of one memory, in the order of their addresses. What lies between them is zero: memory that has never belonged
/// to a slab, or that was zeroed after it was given back.
pub(super) struct Slabs {
    len: u64,
    parts: Vec<Part>,
    next: u64,
}

impl Slabs {
    pub fn new(len: u64) -> Self {
        Self { len, parts: Vec::new(), next: 1 }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self, is_counted: impl Fn(PartUse) -> bool) -> u64 {
        self.parts.iter().filter(|part| is_counted(part.of)).map(|part| part.lent.len).sum()
    }

    /// Bytes that can be lent now.
    pub fn free_bytes(&self) -> u64 {
        self.len - self.bytes(|_| true)
    }

    /// Bytes lent to volumes.
    pub fn lent_bytes(&self) -> u64 {
        self.bytes(|of| matches!(of, PartUse::Lent(_)))
    }

    /// Bytes lent to a volume.
    pub fn bytes_of(&self, volume: u64) -> u64 {
        self.bytes(|of| of == PartUse::Lent(volume))
    }

    /// Bytes that were given back and are not zeroed yet.
    pub fn zeroing_bytes(&self) -> u64 {
        self.bytes(|of| of == PartUse::Zeroing)
    }

    pub fn slabs_of(&self, volume: u64) -> impl Iterator<Item = LentSlab> {
        self.parts.iter().filter(move |part| part.of == PartUse::Lent(volume)).map(|part| part.lent)
    }

    /// Slabs that overlap these bytes, with their volumes; `None` where a slab is set aside.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Option<u64>, LentSlab)> {
        let touches = move |lent: &LentSlab| lent.base < range.end && range.start < lent.base + lent.len;
        self.parts.iter().filter(move |part| touches(&part.lent)).filter_map(|part| match part.of {
            PartUse::Lent(volume) => Some((Some(volume), part.lent)),
            PartUse::SetAside => Some((None, part.lent)),
            PartUse::Zeroing => None,
        })
    }

    /// Moves a slab to another place, under the same number. Returns the old place, which is set aside under a number
    /// of its own, and then the new one, which may hold bytes other than zero.
    pub fn relocate(&mut self, volume: u64, slab: u64) -> Option<(LentSlab, LentSlab)> {
        let old = self.slabs_of(volume).find(|lent| lent.slab == slab)?;
        let base = self.gap(old.len, true).or_else(|| self.gap(old.len, false))?;
        self.zeroing_no_more(base..base + old.len);
        let taken = self.insert(base, old.len, PartUse::Lent(volume));
        let [mut aside, mut moved] = [old, taken];
        for part in &mut self.parts {
            if part.lent.base == old.base {
                (part.of, part.lent.slab) = (PartUse::SetAside, taken.slab);
                aside = part.lent;
            } else if part.lent.base == taken.base {
                part.lent.slab = slab;
                moved = part.lent;
            }
        }
        Some((aside, moved))
    }

    /// Gives a place back that was set aside.
    pub fn release(&mut self, slab: u64) {
        self.zero_part(|part| part.lent.slab == slab && part.of == PartUse::SetAside);
    }

    /// Whether these bytes lie in a single slab of the volume.
    pub fn has(&self, volume: u64, range: &Range<u64>) -> bool {
        let behind = self.parts.partition_point(|part| part.lent.base <= range.start);
        let part = behind.checked_sub(1).and_then(|index| self.parts.get(index));
        part.is_some_and(|Part { lent, of }| *of == PartUse::Lent(volume) && range.end <= lent.base + lent.len)
    }

    /// Takes the first gap with room. All its bytes are zero.
    pub fn take(&mut self, volume: u64, len: u64) -> Result<LentSlab, NoSlab> {
        match self.gap(len, true) {
            Some(base) => Ok(self.insert(base, len, PartUse::Lent(volume))),
            None => Err(if self.gap(len, false).is_some() { NoSlab::Zeroing } else { NoSlab::Full }),
        }
    }

    pub fn give_back(&mut self, volume: u64, slab: u64) -> bool {
        self.zero_part(|part| part.lent.slab == slab && part.of == PartUse::Lent(volume))
    }

    /// Gives all slabs of a volume back.
    pub fn give_all_back(&mut self, volume: u64) {
        self.parts.iter_mut().filter(|part| part.of == PartUse::Lent(volume)).for_each(|part| {
            part.of = PartUse::Zeroing;
        });
    }

    /// Next bytes to zero, at most `len_max`; they count as zeroed from now on.
    pub fn next_to_zero(&mut self, len_max: u64) -> Option<Range<u64>> {
        let index = self.parts.iter().position(|part| part.of == PartUse::Zeroing)?;
        let lent = &mut self.parts[index].lent;
        // What is left begins at a multiple of the alignment, as slabs do.
        let len = lent.len.min((len_max / ALIGN).max(1) * ALIGN);
        let range = lent.base..lent.base + len;
        (lent.base, lent.len) = (range.end, lent.len - len);
        if lent.len == 0 {
            self.parts.remove(index);
        }
        Some(range)
    }

    fn zero_part(&mut self, is_it: impl Fn(&Part) -> bool) -> bool {
        let part = self.parts.iter_mut().find(|part| is_it(part));
        part.map(|part| part.of = PartUse::Zeroing).is_some()
    }

    /// First byte of the first gap of this length: between all parts, or also over those that are not zeroed yet.
    fn gap(&self, len: u64, is_zero: bool) -> Option<u64> {
        let mut base = 0u64;
        for part in self.parts.iter().filter(|part| is_zero || part.of != PartUse::Zeroing) {
            if part.lent.base.saturating_sub(base) >= len {
                return Some(base);
            }
            base = (part.lent.base + part.lent.len).next_multiple_of(ALIGN);
        }
        base.checked_add(len).filter(|end| *end <= self.len).map(|_| base)
    }

    fn insert(&mut self, base: u64, len: u64, of: PartUse) -> LentSlab {
        let lent = LentSlab { slab: self.next, base, len };
        self.next += 1;
        let index = self.parts.partition_point(|part| part.lent.base < base);
        self.parts.insert(index, Part { lent, of });
        lent
    }

    /// Takes these bytes out of what is to be zeroed.
    fn zeroing_no_more(&mut self, range: Range<u64>) {
        let end = range.end.next_multiple_of(ALIGN);
        let mut rest = Vec::new();
        self.parts.retain(|Part { lent, of }| {
            let lent_end = lent.base + lent.len;
            if *of != PartUse::Zeroing || lent_end <= range.start || end <= lent.base {
                return true;
            }
            rest.push(lent.base..range.start);
            rest.push(end..lent_end);
            false
        });
        for rest in rest.into_iter().filter(|rest| !rest.is_empty()) {
            self.insert(rest.start, rest.end - rest.start, PartUse::Zeroing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zero_all(slabs: &mut Slabs) {
        while slabs.next_to_zero(ALIGN).is_some() {}
    }

    #[test]
    fn gaps_are_used_again_once_they_are_zeroed() {
        let mut slabs = Slabs::new(5 * ALIGN);
        let first = slabs.take(1, 2 * ALIGN).unwrap();
        let second = slabs.take(2, 2 * ALIGN).unwrap();
        assert_eq!((first.base, second.base), (0, 2 * ALIGN));
        assert_eq!(slabs.next_to_zero(u64::MAX), None, "nothing was given back");
        let full = [2 * ALIGN, u64::MAX].map(|len| slabs.take(1, len));
        assert_eq!(full, [Err(NoSlab::Full); 2]);
        assert!(!slabs.give_back(2, first.slab) && slabs.give_back(1, first.slab));
        assert_eq!((slabs.free_bytes(), slabs.zeroing_bytes(), slabs.lent_bytes()), (ALIGN, 2 * ALIGN, 2 * ALIGN));
        assert_eq!(slabs.take(2, 2 * ALIGN), Err(NoSlab::Zeroing));
        assert_eq!(slabs.next_to_zero(ALIGN + 1), Some(0..ALIGN));
        assert_eq!(slabs.take(2, 2 * ALIGN), Err(NoSlab::Zeroing));
        let third = slabs.take(2, ALIGN).unwrap();
        assert_eq!(third.base, 0);
        assert_eq!((slabs.next_to_zero(u64::MAX), slabs.next_to_zero(1)), (Some(ALIGN..2 * ALIGN), None));
        assert!(third.slab > second.slab, "numbers are not used again");
        assert_eq!(slabs.slabs_of(2).count(), 2);
        let has = |volume, from, to| slabs.has(volume, &(from * ALIGN..to * ALIGN));
        assert!(has(2, 0, 1) && has(2, 2, 4) && has(2, 3, 4) && has(2, 1, 1));
        assert!(!has(1, 0, 1) && !has(2, 0, 2) && !has(2, 1, 2) && !has(2, 3, 5) && !has(2, 4, 5));
        assert_eq!(slabs.free_bytes(), 2 * ALIGN);
        slabs.give_all_back(2);
        assert_eq!((slabs.zeroing_bytes(), slabs.bytes_of(2)), (3 * ALIGN, 0));
        zero_all(&mut slabs);
        assert_eq!(slabs.take(1, 5 * ALIGN).unwrap().base, 0);
    }

    #[test]
    fn a_slab_that_moves_keeps_its_number_and_its_old_place_is_nobodys_until_it_is_released() {
        let mut slabs = Slabs::new(5 * ALIGN);
        let lent = slabs.take(1, 2 * ALIGN).unwrap();
        let other = slabs.take(2, ALIGN).unwrap();
        assert!(slabs.relocate(2, lent.slab).is_none());
        let (aside, moved) = slabs.relocate(1, lent.slab).unwrap();
        assert_eq!((aside.base, moved.slab, moved.base, moved.len), (0, lent.slab, 3 * ALIGN, 2 * ALIGN));
        assert!(![lent.slab, other.slab].contains(&aside.slab));
        assert_eq!(
            (slabs.slabs_of(1).collect::<Vec<_>>(), slabs.free_bytes(), slabs.lent_bytes()),
            (vec![moved], 0, 3 * ALIGN)
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
        assert_eq!((slabs.free_bytes(), slabs.zeroing_bytes()), (0, 2 * ALIGN), "it was somebody's");
        zero_all(&mut slabs);
        assert_eq!((slabs.free_bytes(), slabs.take(3, ALIGN).unwrap().base), (2 * ALIGN, 0));
    }

    #[test]
    fn a_slab_moves_to_a_place_that_is_not_zeroed_yet_and_what_is_left_of_that_is_zeroed() {
        let mut slabs = Slabs::new(6 * ALIGN);
        let lent = slabs.take(1, ALIGN).unwrap();
        let other = slabs.take(2, 5 * ALIGN).unwrap();
        slabs.give_back(2, other.slab);
        slabs.next_to_zero(ALIGN);
        // One page is zeroed, and is taken first.
        assert_eq!(slabs.relocate(1, lent.slab).unwrap().1.base, ALIGN);
        let (_, moved) = slabs.relocate(1, lent.slab).unwrap();
        assert_eq!((moved.base, slabs.zeroing_bytes(), slabs.free_bytes()), (2 * ALIGN, 3 * ALIGN, 0));
        assert_eq!(slabs.next_to_zero(u64::MAX), Some(3 * ALIGN..6 * ALIGN));
        assert_eq!(slabs.next_to_zero(u64::MAX), None);
        let pages = slabs.parts.iter().map(|part| part.lent.base / ALIGN).collect::<Vec<_>>();
        assert_eq!(pages, [0, 1, 2]);
    }
}
