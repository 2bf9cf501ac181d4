//! What all engines of one donor have in common.

use std::sync::PoisonError;

use sinew_mem::atomic::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering};

use super::admission::Admission;
use super::state::State;
use super::stats::EngineStats;

/// Limits of a [`Shared`].
#[derive(Clone, Copy, Debug)]
pub struct SharedConfig {
    /// Requests that are not over, of all engines together, at most.
    pub depth: usize,
}

impl Default for SharedConfig {
    fn default() -> Self {
        Self { depth: 4096 }
    }
}

/// One donor's merge queue, the order of requests that overlap, and the window of bytes in flight. Each thread's [`Engine`](super::Engine) has a handle on it.
pub struct Shared {
    pub(super) donor: std::sync::Arc<str>,
    pub(super) len: u64,
    pub(super) depth: usize,
    /// What is in the queue, for looks without the lock.
    queued: AtomicUsize,
    state: Mutex<State>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("donor", &self.donor).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Shared {
    /// For a donor of this name, which errors have, and `len` bytes of its memory.
    pub fn new(donor: &str, len: u64, admission: impl Admission + 'static, config: SharedConfig) -> Arc<Self> {
        Arc::new(Self {
            donor: donor.into(),
            len,
            depth: config.depth,
            queued: AtomicUsize::new(0),
            state: Mutex::new(State::new(config.depth, Box::new(admission))),
        })
    }

    /// The donor's name.
    pub fn donor(&self) -> &str {
        &self.donor
    }

    /// Bytes of the donor's memory.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the engines did, those that are gone among them.
    pub fn stats(&self) -> EngineStats {
        let state = self.lock();
        state.inboxes().fold(state.stats, |stats, inbox| inbox.counts.add_to(stats))
    }

    /// Bytes in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        self.lock().in_flight_bytes()
    }

    /// Bytes that may be in flight.
    pub fn window_bytes(&self) -> u64 {
        self.lock().window_bytes()
    }

    /// Requests that are not over.
    pub fn live(&self) -> usize {
        self.lock().live()
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there may be something in the queue.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        // Relaxed: whoever is told so looks again with the lock, and whoever is not is not the one who submitted it.
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Has looks see what is in the queue, at the end of each change.
    #[inline]
    pub(super) fn publish(&self, state: &State) {
        // Relaxed: see `has_queued`. It changes under the lock alone.
        self.queued.store(state.queued(), Ordering::Relaxed);
    }
}
