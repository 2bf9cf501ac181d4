//! Pages that the service has reserved for this client, and for how many of them there is something to write.

use std::collections::VecDeque;

use crate::protocol::Pages;

/// Reserved pages.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    runs: VecDeque<Pages>,
    free: u64,
    promised: u64,
}

impl Reserve {
    /// Promises pages to whoever is about to change some, so that there is room when these are written. Returns how many more have to be reserved first; 0: it is promised.
    pub fn promise(&mut self, pages: u64) -> u64 {
        let missing = (self.promised + pages).saturating_sub(self.free);
        if missing == 0 {
            self.promised += pages;
        }
        missing
    }

    /// Promises pages whether they are there or not: what they are for has been written already.
    pub fn owe(&mut self, pages: u64) {
        self.promised += pages;
    }

    /// Gives a promise back.
    pub fn forgive(&mut self, pages: u64) {
        self.promised = self.promised.saturating_sub(pages);
    }

    /// More pages are reserved.
    pub fn add(&mut self, runs: impl IntoIterator<Item = Pages>) {
        for run in runs {
            self.free += u64::from(run.count);
            self.runs.push_back(run);
        }
    }

    /// Takes up to `count` pages in a row, for which there was a promise.
    pub fn take(&mut self, count: u32) -> Option<Pages> {
        let run = self.runs.front_mut().filter(|_| count > 0)?;
        let taken = Pages { count: run.count.min(count), ..*run };
        run.first += taken.count;
        run.count -= taken.count;
        if run.count == 0 {
            self.runs.pop_front();
        }
        self.free -= u64::from(taken.count);
        self.forgive(taken.count.into());
        Some(taken)
    }

    /// Pages that nobody was promised.
    pub fn spare(&self) -> u64 {
        self.free.saturating_sub(self.promised)
    }

    /// Takes up to `count` spare pages out, to be given back.
    pub fn shrink(&mut self, count: u64) -> Vec<Pages> {
        let mut left = self.spare().min(count);
        let mut out = Vec::new();
        while left > 0 {
            let Some(run) = self.runs.back_mut() else { break };
            let taken = u64::from(run.count).min(left) as u32;
            run.count -= taken;
            out.push(Pages { first: run.first + run.count, count: taken, ..*run });
            if run.count == 0 {
                self.runs.pop_back();
            }
            self.free -= u64::from(taken);
            left -= u64::from(taken);
        }
        out
    }

    /// The service knows of no reservation of ours any more. Promises stay: what they were made for has to be written all the same.
    pub fn lose(&mut self) {
        self.runs.clear();
        self.free = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u32, count: u32) -> Pages {
        Pages { segment: 1, first, count }
    }

    #[test]
    fn pages_are_promised_as_far_as_there_are_some_and_taken_in_order() {
        let mut reserve = Reserve::default();
        assert_eq!(reserve.promise(3), 3);
        reserve.add([pages(10, 4), pages(50, 2)]);
        assert_eq!((reserve.promise(5), reserve.promise(2), reserve.spare()), (0, 1, 1));
        assert_eq!((reserve.take(3), reserve.take(3), reserve.spare()), (Some(pages(10, 3)), Some(pages(13, 1)), 1));
        assert_eq!(reserve.shrink(9), [pages(51, 1)]);
        assert_eq!((reserve.take(9), reserve.take(1), reserve.spare()), (Some(pages(50, 1)), None, 0));
        reserve.add([pages(1, 1)]);
        reserve.lose();
        assert_eq!((reserve.take(1), reserve.spare()), (None, 0));
    }
}
