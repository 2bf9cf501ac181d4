//! The page table: four bytes for each page of the store.

/// An entry with this bit holds a frame. Any other non-zero entry is the value of `gone` when the page was evicted.
const HERE: u32 = 1 << 31;

/// The page table. It also remembers recent evictions, at no extra cost.
#[derive(Debug)]
pub struct Table {
    entries: Vec<u32>,
    /// Number of evictions, modulo 2^31 and never 0.
    gone: u32,
    /// A page was evicted recently if no more than this many were evicted after it.
    lately: u32,
}

impl Table {
    /// A table for `pages` pages, none of which is local.
    pub fn new(pages: usize, lately: u32) -> Self {
        Self { entries: vec![0; pages], gone: 1, lately }
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The frame that has a page.
    #[inline]
    pub fn frame(&self, page: u64) -> Option<u32> {
        let entry = self.entries[page as usize];
        (entry & HERE != 0).then_some(entry & !HERE)
    }

    /// Enters the frame of a page. Returns whether the page was evicted recently.
    pub fn put(&mut self, page: u64, frame: u32) -> bool {
        let was = std::mem::replace(&mut self.entries[page as usize], HERE | frame);
        was != 0 && (self.gone.wrapping_sub(was) & !HERE) <= self.lately
    }

    /// Records that a page was evicted.
    pub fn evict(&mut self, page: u64) {
        self.gone = ((self.gone + 1) & !HERE).max(1);
        self.entries[page as usize] = self.gone;
    }

    /// Records that a page is no longer local, without remembering it as evicted.
    pub fn forget(&mut self, page: u64) {
        self.entries[page as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_is_remembered_for_as_long_as_it_should_be() {
        let mut table = Table::new(10, 3);
        assert_eq!((table.put(0, 7), table.frame(0), table.frame(1)), (false, Some(7), None));
        for further in [3, 4] {
            table.evict(0);
            assert_eq!(table.frame(0), None);
            (1..=further).for_each(|page| table.evict(page));
            assert_eq!(table.put(0, 1), further == 3);
        }
        table.forget(0);
        assert!(!table.put(0, 1));
    }

    #[test]
    fn its_count_of_pages_that_went_begins_again() {
        let mut table = Table::new(10, 3);
        table.gone = HERE - 2;
        table.evict(0);
        table.evict(1);
        table.evict(2);
        assert!(table.gone < 3);
        assert!(table.put(0, 1) && table.put(1, 2) && table.put(2, 3));
    }
}
