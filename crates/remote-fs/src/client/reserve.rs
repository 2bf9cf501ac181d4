//! Pages that the service has reserved for this client, and those of them that are promised to writes.

use std::collections::VecDeque;

use crate::protocol::Pages;
use crate::space::Purpose;

/// Numbers of pages, by the purpose for which they were promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub any: u64,
    pub overwrite: u64,
}

impl Counts {
    pub fn add(&mut self, purpose: Purpose, pages: u64) {
        match purpose {
            Purpose::Any => self.any += pages,
            Purpose::Overwrite => self.overwrite += pages,
        }
    }

    pub fn total(self) -> u64 {
        self.any + self.overwrite
    }
}

/// Reserved pages for both purposes.
#[derive(Debug, Default)]
pub(super) struct Reserves {
    any: Reserve,
    overwrite: Reserve,
}

impl Reserves {
    pub fn of(&mut self, purpose: Purpose) -> &mut Reserve {
        match purpose {
            Purpose::Any => &mut self.any,
            Purpose::Overwrite => &mut self.overwrite,
        }
    }

    pub fn promise_unreserved(&mut self, pages: Counts) {
        self.any.promise_unreserved(pages.any);
        self.overwrite.promise_unreserved(pages.overwrite);
    }

    pub fn withdraw(&mut self, pages: Counts) {
        self.any.withdraw(pages.any);
        self.overwrite.withdraw(pages.overwrite);
    }

    pub fn clear(&mut self, joined: u64) {
        self.any.clear(joined);
        self.overwrite.clear(joined);
    }
}

/// Reserved pages. Spare pages are those not promised to any write.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    runs: VecDeque<Pages>,
    free: u64,
    promised: u64,
    /// How often the client had joined when these pages were reserved. Pages of an earlier identity are not its own.
    joined: u64,
}

impl Reserve {
    /// Promises pages to a write, so that there is room when it is committed. Returns the number of pages that must be
    /// reserved first, or 0 if the promise is made.
    pub fn promise(&mut self, pages: u64) -> u64 {
        let missing = (self.promised + pages).saturating_sub(self.free);
        if missing == 0 {
            self.promised += pages;
        }
        missing
    }

    /// Promises as many of the spare pages as a write wants, up to `pages`. Returns their number.
    pub fn promise_some(&mut self, pages: u64) -> u64 {
        let promised = self.spare().min(pages);
        self.promised += promised;
        promised
    }

    /// Promises pages whether or not they are reserved, for data that has been written already.
    pub fn promise_unreserved(&mut self, pages: u64) {
        self.promised += pages;
    }

    /// Withdraws a promise.
    pub fn withdraw(&mut self, pages: u64) {
        self.promised = self.promised.saturating_sub(pages);
    }

    /// Adds pages that the service has reserved for the client that had joined `joined` times. Returns whether that is
    /// the present one.
    pub fn add(&mut self, joined: u64, runs: impl IntoIterator<Item = Pages>) -> bool {
        if joined != self.joined {
            return false;
        }
        for run in runs {
            self.free += u64::from(run.count);
            self.runs.push_back(run);
        }
        true
    }

    /// Whether the pages are those of the client that had joined `joined` times.
    pub fn is_of(&self, joined: u64) -> bool {
        self.joined == joined
    }

    /// Takes up to `count` consecutive pages, against an earlier promise.
    pub fn take(&mut self, count: u32) -> Option<Pages> {
        let run = self.runs.front_mut().filter(|_| count > 0)?;
        let taken = Pages { count: run.count.min(count), ..*run };
        run.first += taken.count;
        run.count -= taken.count;
        if run.count == 0 {
            self.runs.pop_front();
        }
        self.free -= u64::from(taken.count);
        self.withdraw(taken.count.into());
        Some(taken)
    }

    /// Reserved pages that are not promised.
    pub fn spare(&self) -> u64 {
        self.free.saturating_sub(self.promised)
    }

    /// Takes out up to `count` spare pages, to be given back to the service.
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

    /// Drops all reservations, which the service no longer knows: the client joins for the `joined`th time. Promises
    /// stay: their data still has to be written.
    pub fn clear(&mut self, joined: u64) {
        self.runs.clear();
        (self.free, self.joined) = (0, joined);
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
        assert!(reserve.add(0, [pages(10, 4), pages(50, 2)]));
        assert_eq!((reserve.promise(5), reserve.promise(2), reserve.spare()), (0, 1, 1));
        assert_eq!((reserve.take(3), reserve.take(3), reserve.spare()), (Some(pages(10, 3)), Some(pages(13, 1)), 1));
        assert_eq!(reserve.shrink(9), [pages(51, 1)]);
        assert_eq!((reserve.take(9), reserve.take(1), reserve.spare()), (Some(pages(50, 1)), None, 0));
        assert!(reserve.add(0, [pages(1, 1)]));
        reserve.clear(1);
        assert_eq!((reserve.take(1), reserve.spare()), (None, 0));
        assert!(!reserve.add(0, [pages(1, 1)]) && reserve.take(1).is_none(), "pages of an earlier identity");
        assert!(reserve.add(1, [pages(2, 1)]) && reserve.take(1) == Some(pages(2, 1)));
    }
}
