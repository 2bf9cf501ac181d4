//! Syncs of the file, done by another thread: they may take seconds, during which the volume must send heartbeats.

use std::sync::{Arc, OnceLock};

use sinew_fabric::{Waker, WorkerPool};
use sinew_remote_memory::Finished;

use super::medium::Medium;

/// Result of a sync. The system's error is kept as text, since it is reported several times.
type Outcome = Result<(), String>;

/// A sync in progress.
#[derive(Debug)]
pub struct Syncing {
    outcome: Arc<OnceLock<Outcome>>,
    /// Flushes that end with it.
    pub flushes: Vec<Finished>,
    /// Whether the file had everything when the sync began.
    pub was_complete: bool,
}

/// Reports the result, even if the thread never ran the sync.
struct Report {
    outcome: Arc<OnceLock<Outcome>>,
    waker: Waker,
}

impl Drop for Report {
    fn drop(&mut self) {
        // Fails if the result is already set, as it is unless the sync never ran.
        let _ = self.outcome.set(Err("the thread that was to sync the file has ended".to_owned()));
        self.waker.wake();
    }
}

impl Syncing {
    /// Begins a sync of everything written before.
    pub fn begin(
        medium: &Arc<dyn Medium>,
        pool: &dyn WorkerPool,
        waker: Waker,
        flushes: Vec<Finished>,
        was_complete: bool,
    ) -> Self {
        let outcome = Arc::new(OnceLock::new());
        let report = Report { outcome: Arc::clone(&outcome), waker };
        let medium = Arc::clone(medium);
        let job = move || {
            let _ = report.outcome.set(medium.sync().map_err(|error| error.to_string()));
        };
        if let Err(job) = pool.submit(Box::new(job)) {
            // The pool has no room. Syncing here is slow, but better than not at all.
            job();
        }
        Self { outcome, flushes, was_complete }
    }

    /// Result of the sync, once it has ended.
    pub fn result(&self) -> Option<Outcome> {
        self.outcome.get().cloned()
    }
}
