//! The numbers of a server, shared by its threads.

use std::fmt;
use std::sync::Arc;

use sinew_mem::atomic::{AtomicU64, Ordering};

/// Most numbers of one call, unless a server sets another limit.
pub const COUNT_MAX_DEFAULT: u32 = 1 << 20;

/// The last number that is ever handed out. At a billion numbers a second, it is reached after 500 years.
pub const LAST: u64 = u64::MAX - 1;

/// One life of a server, from its start to its end. The value has no meaning, but must differ for each start: draw it
/// at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A record of ceilings that survives the server: see [`Sequence::with_ceiling_store`].
pub trait CeilingStore: Send + Sync {
    /// Records a ceiling of `needed` or higher, and returns it once it is durable; `None` when it cannot be recorded.
    ///
    /// A thread that was asked for numbers past the ceiling calls this, and its callers wait meanwhile. That is rare if
    /// [`Sequence::raise_ceiling`] is called ahead of need.
    fn raise(&self, needed: u64) -> Option<u64>;
}

/// The next numbers, the ceiling, and the limit of one call. Shared by a server's threads.
pub struct Sequence {
    next: CacheAligned,
    /// Numbers from here on may not be handed out yet.
    ceiling: AtomicU64,
    ceiling_store: Option<Arc<dyn CeilingStore>>,
    epoch: Epoch,
    count_max: u32,
}

/// A word that shares neither its cache line nor the adjacent one, which the processor fetches with it.
#[repr(align(128))]
struct CacheAligned(AtomicU64);

impl Sequence {
    /// Makes a sequence of numbers from `first` on, for the epoch `epoch` of a server. One call may have up to
    /// `count_max` of them.
    ///
    /// # Panics
    ///
    /// When `count_max` is 0.
    pub fn new(first: u64, epoch: Epoch, count_max: u32) -> Self {
        assert!(count_max > 0, "a call must be allowed at least one number");
        Self {
            next: CacheAligned(AtomicU64::new(first)),
            ceiling: AtomicU64::new(u64::MAX),
            ceiling_store: None,
            epoch,
            count_max,
        }
    }

    /// The server's epoch.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Most numbers of one call.
    #[inline]
    pub fn count_max(&self) -> u32 {
        self.count_max
    }

    /// The next number to be handed out.
    pub fn next(&self) -> u64 {
        self.next.0.load(Ordering::Relaxed)
    }

    /// The ceiling: numbers from here on may not be handed out yet.
    pub fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Acquire)
    }

    /// As [`Self::new`], but hands out no number before a ceiling above it has been recorded in `ceiling_store`.
    /// `first` must be the ceiling that was recorded last.
    ///
    /// # Panics
    ///
    /// As [`Self::new`].
    pub fn with_ceiling_store(first: u64, epoch: Epoch, count_max: u32, ceiling_store: Arc<dyn CeilingStore>) -> Self {
        Self {
            ceiling: AtomicU64::new(first),
            ceiling_store: Some(ceiling_store),
            ..Self::new(first, epoch, count_max)
        }
    }

    /// Allows numbers below `ceiling`, which must have been recorded where it survives the server. A lower ceiling than
    /// the current one changes nothing.
    pub fn raise_ceiling(&self, ceiling: u64) {
        // Release: the ceiling was recorded before. Partner: the load in `take_below_ceiling`.
        self.ceiling.fetch_max(ceiling, Ordering::Release);
    }

    /// Takes `count` numbers and returns the first. Returns `None`, and takes nothing, when fewer are left below the
    /// ceiling and a higher ceiling cannot be recorded.
    ///
    /// It makes one access to the shared word, so a thread should take the numbers of all its pending requests together
    /// (atc16 4.2).
    #[inline]
    pub fn take(&self, count: u64) -> Option<u64> {
        match self.take_below_ceiling(count) {
            None => self.take_past_ceiling(count),
            first => first,
        }
    }

    #[inline]
    fn take_below_ceiling(&self, count: u64) -> Option<u64> {
        let ceiling = self.ceiling.load(Ordering::Acquire);
        let after = |next: u64| next.checked_add(count).filter(|&after| after <= ceiling);
        // Relaxed: the order of updates of this one word orders the calls, and nothing else is published with them.
        self.next.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()
    }

    #[cold]
    fn take_past_ceiling(&self, count: u64) -> Option<u64> {
        let ceiling_store = self.ceiling_store.as_ref()?;
        loop {
            let needed = self.next().checked_add(count)?;
            self.raise_ceiling(ceiling_store.raise(needed).filter(|ceiling| *ceiling >= needed)?);
            // Other threads may have taken the numbers below the ceiling that was recorded for this call.
            if let Some(first) = self.take_below_ceiling(count) {
                return Some(first);
            }
        }
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence")
            .field("next", &self.next())
            .field("ceiling", &self.ceiling())
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes ceilings in steps, up to a last one, and counts the notes.
    struct Steps {
        step: u64,
        last: u64,
        noted: AtomicU64,
        times: AtomicU64,
    }

    impl Steps {
        fn new(step: u64, last: u64) -> Arc<Self> {
            Arc::new(Self { step, last, noted: AtomicU64::new(0), times: AtomicU64::new(0) })
        }
    }

    impl CeilingStore for Steps {
        fn raise(&self, needed: u64) -> Option<u64> {
            let ceiling = needed.saturating_add(self.step).min(self.last);
            if ceiling < needed {
                return None;
            }
            self.times.fetch_add(1, Ordering::Relaxed);
            self.noted.fetch_max(ceiling, Ordering::Relaxed);
            Some(ceiling)
        }
    }

    #[test]
    fn nothing_is_handed_out_past_the_ceiling_and_nothing_is_lost_at_it() {
        let notes = Steps::new(0, 105);
        let sequence = Sequence::with_ceiling_store(100, Epoch(1), 10, notes.clone());
        assert_eq!(sequence.take(3), Some(100));
        assert_eq!((sequence.ceiling(), notes.noted.load(Ordering::Relaxed)), (103, 103));
        assert_eq!((sequence.take(3), sequence.take(2), sequence.take(1)), (None, Some(103), None));
        sequence.raise_ceiling(50);
        assert_eq!((sequence.ceiling(), sequence.take(1)), (105, None));
        sequence.raise_ceiling(110);
        assert_eq!((sequence.take(5), sequence.take(1)), (Some(105), None));
    }

    #[test]
    fn a_ceiling_that_is_too_low_is_not_asked_for_again_and_again() {
        struct Low;
        impl CeilingStore for Low {
            fn raise(&self, needed: u64) -> Option<u64> {
                Some(needed - 1)
            }
        }
        let sequence = Sequence::with_ceiling_store(100, Epoch(1), 10, Arc::new(Low));
        assert_eq!((sequence.take(2), sequence.next()), (None, 100));
    }

    #[test]
    fn numbers_to_the_last_come_from_notes_too() {
        let sequence = Sequence::with_ceiling_store(LAST - 1, Epoch(1), 10, Steps::new(1000, u64::MAX));
        assert_eq!((sequence.take(3), sequence.take(2), sequence.take(1)), (None, Some(LAST - 1), None));
    }

    #[test]
    fn threads_that_meet_the_ceiling_never_get_more_than_was_noted() {
        const CALLS: u64 = 20_000;
        let notes = Steps::new(50, u64::MAX);
        let sequence = Sequence::with_ceiling_store(0, Epoch(1), 10, notes.clone());
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for _ in 0..CALLS {
                        let first = sequence.take(3).unwrap();
                        assert!(first + 3 <= notes.noted.load(Ordering::Relaxed));
                    }
                });
            }
        });
        assert_eq!(sequence.next(), 3 * 3 * CALLS);
        assert!(notes.times.load(Ordering::Relaxed) > 100);
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
