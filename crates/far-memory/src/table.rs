//! The page table: four bytes for each page of the store.

/// An entry with this bit holds a frame. Any other non-zero entry is the value of `evictions` when the page was
/// evicted.
const PRESENT: u32 = 1 << 31;

/// The page table. It also remembers recent evictions, at no extra cost.
#[derive(Debug)]
pub struct Table {
    entries: Vec<u32>,
    /// Number of evictions, modulo 2^31 and never 0.
    evictions: u32,
    /// A page was evicted recently if no more than this many were evicted after it.
    recent_max: u32,
}

impl Table {
    /// A table for `pages` pages, none of which is local.
    pub fn new(pages: usize, recent_max: u32) -> Self {
        Self { entries: vec![0; pages], evictions: 1, recent_max }
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The frame that has a page.
    #[inline]
    pub fn frame(&self, page: u64) -> Option<u32> {
        let entry = self.entries[page as usize];
        (entry & PRESENT != 0).then_some(entry & !PRESENT)
    }

    /// Enters the frame of a page. Returns whether the page was evicted recently.
    pub fn insert(&mut self, page: u64, frame: u32) -> bool {
        let old_entry = std::mem::replace(&mut self.entries[page as usize], PRESENT | frame);
        old_entry != 0 && (self.evictions.wrapping_sub(old_entry) & !PRESENT) <= self.recent_max
    }

    /// Records that a page was evicted.
    pub fn evict(&mut self, page: u64) {
        self.evictions = ((self.evictions + 1) & !PRESENT).max(1);
        self.entries[page as usize] = self.evictions;
    }

    /// Records that a page is no longer local, without remembering it as evicted.
    pub fn remove(&mut self, page: u64) {
        self.entries[page as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_is_remembered_for_as_long_as_it_should_be() {
        let mut table = Table::new(10, 3);
        assert_eq!((table.insert(0, 7), table.frame(0), table.frame(1)), (false, Some(7), None));
        for further in [3, 4] {
            table.evict(0);
            assert_eq!(table.frame(0), None);
            (1..=further).for_each(|page| table.evict(page));
            assert_eq!(table.insert(0, 1), further == 3);
        }
        table.remove(0);
        assert!(!table.insert(0, 1));
    }

    #[test]
    fn its_count_of_pages_that_went_begins_again() {
        let mut table = Table::new(10, 3);
        table.evictions = PRESENT - 2;
        table.evict(0);
        table.evict(1);
        table.evict(2);
        assert!(table.evictions < 3);
        assert!(table.insert(0, 1) && table.insert(1, 2) && table.insert(2, 3));
    }
}
