//! The numbers of a server, shared by its threads.

use std::fmt;

use sinew_mem::atomic::{AtomicU64, Ordering};

/// Numbers that one call may ask for, unless a server says otherwise.
pub const COUNT_MAX_DEFAULT: u32 = 1 << 20;

/// The last number that is ever handed out. It takes 500 years to get there at a thousand million a second.
pub const LAST: u64 = u64::MAX - 1;

/// One life of a server, from its start to its end. Its value means nothing, beside being different for each start: draw it at
/// random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The next numbers, and how many a call may have. Shared by a server's threads.
#[derive(Debug)]
pub struct Sequence {
    next: Line,
    /// Numbers from here on may not be handed out yet.
    ceiling: AtomicU64,
    epoch: Epoch,
    count_max: u32,
}

/// A word that has its cache line, and the one fetched with it, for itself.
#[derive(Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Sequence {
    /// Numbers from `first` on, of a server's life `epoch`, of which one call may have up to `count_max`.
    ///
    /// # Panics
    ///
    /// When `count_max` is 0.
    pub fn new(first: u64, epoch: Epoch, count_max: u32) -> Self {
        assert!(count_max > 0, "a call that may have no number");
        Self { next: Line(AtomicU64::new(first)), ceiling: AtomicU64::new(u64::MAX), epoch, count_max }
    }

    /// The server's life.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Numbers that one call may have.
    #[inline]
    pub fn count_max(&self) -> u32 {
        self.count_max
    }

    /// The next number to be handed out.
    pub fn next(&self) -> u64 {
        self.next.0.load(Ordering::Relaxed)
    }

    /// Numbers from here on are not handed out.
    pub fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Acquire)
    }

    /// As [`Self::new`], but nothing is handed out before [`Self::raise_ceiling`]. `first` is the ceiling that was noted last.
    ///
    /// # Panics
    ///
    /// As [`Self::new`].
    pub fn from_notes(first: u64, epoch: Epoch, count_max: u32) -> Self {
        let sequence = Self::new(first, epoch, count_max);
        sequence.ceiling.store(first, Ordering::Relaxed);
        sequence
    }

    /// Allows numbers below `ceiling`, once that is noted where it survives the server. A lower one than before changes nothing.
    pub fn raise_ceiling(&self, ceiling: u64) {
        // Release: the note was made before. Partner: the load in `take`.
        self.ceiling.fetch_max(ceiling, Ordering::Release);
    }

    /// Takes `count` numbers and returns the first; `None`, and nothing is taken, when there are not as many below the ceiling.
    ///
    /// One access to the shared word, so a thread takes the numbers of all requests that it has at hand together (atc16 4.2).
    #[inline]
    pub fn take(&self, count: u64) -> Option<u64> {
        let ceiling = self.ceiling.load(Ordering::Acquire);
        let after = |next: u64| next.checked_add(count).filter(|&after| after <= ceiling);
        // Relaxed: numbers order calls by being taken one after the other, and publish nothing else.
        self.next.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_handed_out_past_the_ceiling_and_nothing_is_lost_at_it() {
        let sequence = Sequence::from_notes(100, Epoch(1), 10);
        assert_eq!(sequence.take(1), None);
        sequence.raise_ceiling(105);
        assert_eq!((sequence.take(3), sequence.take(3), sequence.take(2)), (Some(100), None, Some(103)));
        sequence.raise_ceiling(50);
        assert_eq!((sequence.ceiling(), sequence.take(1)), (105, None));
    }

    #[test]
    fn the_last_number_is_the_last() {
        let sequence = Sequence::new(LAST - 1, Epoch(1), 10);
        assert_eq!((sequence.take(3), sequence.take(2), sequence.take(1)), (None, Some(LAST - 1), None));
        assert_eq!(sequence.take(u64::MAX), None);
    }

    #[test]
    fn threads_never_get_the_same_number() {
        let sequence = Sequence::new(0, Epoch(1), 10);
        let taken: Vec<Vec<u64>> = std::thread::scope(|threads| {
            let take = || {
                let mut taken = Vec::new();
                while let Some(first) = sequence.take(3).filter(|first| *first < 300_000) {
                    taken.push(first);
                }
                taken
            };
            let threads: Vec<_> = (0..4).map(|_| threads.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(taken.iter().all(|taken| taken.is_sorted()));
        let mut all = taken.concat();
        all.sort_unstable();
        assert!(all.iter().copied().eq((0..100_000).map(|nth| nth * 3)));
    }
}
