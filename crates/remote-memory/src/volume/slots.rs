//! Allocation of a segment's slots.

use super::slot::CHUNK;

/// A bit for each slot, and the position from which the next search starts. Slots are given out in consecutive runs, so
/// that pages written together lie together.
pub(super) struct Slots {
    taken: Vec<u64>,
    slots: u32,
    free: u32,
    next: u32,
    /// Chunk of which no slot is given out now.
    pub held_chunk: Option<u32>,
}

impl Slots {
    pub fn new(slots: u32) -> Self {
        Self { taken: vec![0; slots.div_ceil(64) as usize], slots, free: slots, next: 0, held_chunk: None }
    }

    #[cfg(test)]
    fn free(&self) -> u32 {
        self.free
    }

    pub fn is_taken(&self, slot: u32) -> bool {
        self.taken.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Takes a slot that was found in use.
    pub fn mark_taken(&mut self, slot: u32) {
        if !self.is_taken(slot) && slot < self.slots {
            self.taken[slot as usize / 64] |= 1 << (slot % 64);
            self.free -= 1;
        }
    }

    pub fn give_back(&mut self, slot: u32) {
        if self.is_taken(slot) {
            self.taken[slot as usize / 64] &= !(1 << (slot % 64));
            self.free += 1;
        }
    }

    /// Takes the next run of free slots: up to `count`, within one chunk. Returns the first slot and the number.
    pub fn take(&mut self, count: u32) -> Option<(u32, u32)> {
        if self.free == 0 || count == 0 {
            return None;
        }
        let from = self.next;
        let first = self.find(from, self.slots).or_else(|| self.find(0, from))?;
        let end = self.slots.min((first / CHUNK + 1) * CHUNK);
        let mut len = 0;
        while len < count && first + len < end && !self.is_taken(first + len) {
            self.mark_taken(first + len);
            len += 1;
        }
        self.next = if first + len < self.slots { first + len } else { 0 };
        Some((first, len))
    }

    fn find(&self, from: u32, to: u32) -> Option<u32> {
        let mut slot = from;
        while slot < to {
            if self.held_chunk == Some(slot / CHUNK) {
                slot = (slot / CHUNK + 1) * CHUNK;
                continue;
            }
            let free = !self.taken[slot as usize / 64] >> (slot % 64);
            let ahead = free.trailing_zeros();
            if ahead == 0 {
                return Some(slot);
            }
            slot += ahead.min(64 - slot % 64);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use sinew_fabric::{Generator, SeededGenerator};

    use super::*;

    #[test]
    fn runs_are_free_lie_in_one_chunk_and_all_slots_are_handed_out() {
        for seed in 0..20 {
            let mut random = SeededGenerator::new(seed);
            let count = 1 + random.below(3000) as u32;
            let mut slots = Slots::new(count);
            let mut taken = vec![false; count as usize];
            for _ in 0..2000 {
                if random.next_u64() & 3 == 0 {
                    let slot = random.below(u64::from(count)) as u32;
                    slots.give_back(slot);
                    taken[slot as usize] = false;
                    continue;
                }
                let Some((first, len)) = slots.take(1 + random.below(200) as u32) else {
                    assert!(taken.iter().all(|taken| *taken), "seed {seed}");
                    continue;
                };
                assert_eq!(first / CHUNK, (first + len - 1) / CHUNK);
                for slot in first..first + len {
                    assert!(!std::mem::replace(&mut taken[slot as usize], true), "seed {seed}: {slot}");
                }
                assert_eq!(slots.free() as usize, taken.iter().filter(|taken| !**taken).count());
            }
        }
    }

    #[test]
    fn nothing_of_a_chunk_that_is_held_is_handed_out() {
        let mut slots = Slots::new(2 * CHUNK);
        slots.held_chunk = Some(0);
        assert_eq!(slots.take(2 * CHUNK), Some((CHUNK, CHUNK)));
        assert_eq!(slots.take(1), None);
        slots.held_chunk = None;
        assert_eq!(slots.take(3), Some((0, 3)));
    }
}
