//! State that all engines of one donor share.

use std::sync::PoisonError;

use sinew_mem::atomic::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering};

use super::admission::Admission;
use super::state::State;
use super::stats::EngineStats;

/// Limits of a [`Shared`].
#[derive(Clone, Copy, Debug)]
pub struct SharedConfig {
    /// Unfinished requests of all engines together, at most.
    pub depth: usize,
}

impl Default for SharedConfig {
    fn default() -> Self {
        Self { depth: 4096 }
    }
}

/// The merge queue of one donor, the order of overlapping requests, and the window of bytes in flight. The
/// [`Engine`](super::Engine) of each thread has a handle on it.
pub struct Shared {
    pub(super) donor: std::sync::Arc<str>,
    pub(super) len: u64,
    pub(super) depth: usize,
    /// Length of the queue, readable without the lock.
    queued: AtomicUsize,
    state: Mutex<State>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("donor", &self.donor).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Shared {
    /// Makes the shared state for `len` bytes of a donor's memory. Errors name the donor as `donor`.
    pub fn new(donor: &str, len: u64, admission: impl Admission + 'static, config: SharedConfig) -> Arc<Self> {
        Self::with_boxed(donor, len, Box::new(admission), config)
    }

    /// As [`Self::new`], with a policy that is boxed already.
    #[inline]
    pub(crate) fn with_boxed(donor: &str, len: u64, admission: Box<dyn Admission>, config: SharedConfig) -> Arc<Self> {
        Arc::new(Self {
            donor: donor.into(),
            len,
            depth: config.depth,
            queued: AtomicUsize::new(0),
            state: Mutex::new(State::new(config.depth, admission)),
        })
    }

    /// Name of the donor.
    pub fn donor(&self) -> &str {
        &self.donor
    }

    /// Bytes of the donor's memory.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the donor's memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Counters of all engines, including those that are gone.
    pub fn stats(&self) -> EngineStats {
        let state = self.lock();
        state.inboxes().fold(state.stats, |stats, inbox| inbox.counts.add_to(stats))
    }

    /// Bytes in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        self.lock().in_flight_bytes()
    }

    /// Bytes that may be in flight now.
    pub fn window_bytes(&self) -> u64 {
        self.lock().window_bytes()
    }

    /// Unfinished requests.
    pub fn unfinished(&self) -> usize {
        self.lock().unfinished()
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the queue may hold something.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        // Relaxed: a thread that sees something looks again under the lock, and a thread always sees what it submitted
        // itself.
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Makes the length of the queue visible to `has_queued`. Called after each change, under the lock.
    #[inline]
    pub(super) fn publish(&self, state: &State) {
        // Relaxed: see `has_queued`. It changes only under the lock.
        self.queued.store(state.queued(), Ordering::Relaxed);
    }
}
