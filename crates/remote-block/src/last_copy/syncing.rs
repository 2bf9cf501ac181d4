//! A sync of the file, which another thread does: it may take seconds, in which the volume has to give signs of life.

use std::sync::{Arc, OnceLock};

use sinew_fabric::{Waker, WorkerPool};
use sinew_remote_memory::Finished;

use super::medium::Medium;

/// How a sync ended. What the system says is told as text, since it is told to several.
type Outcome = Result<(), String>;

/// A sync that is under way.
#[derive(Debug)]
pub struct Syncing {
    outcome: Arc<OnceLock<Outcome>>,
    /// Flushes that are over with it.
    pub flushes: Vec<Finished>,
    /// Whether the file had everything when it began.
    pub was_complete: bool,
}

/// What tells how it ended, also where the thread did not come to it.
struct Report {
    outcome: Arc<OnceLock<Outcome>>,
    waker: Waker,
}

impl Drop for Report {
    fn drop(&mut self) {
        // It has been told how it ended, unless nobody did it.
        let _ = self.outcome.set(Err("the thread that was to sync it has ended".to_owned()));
        self.waker.wake();
    }
}

impl Syncing {
    /// Begins one, for all that was written before.
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
            // The pool has no room: late is better than never.
            job();
        }
        Self { outcome, flushes, was_complete }
    }

    /// How it ended, if it did.
    pub fn result(&self) -> Option<Outcome> {
        self.outcome.get().cloned()
    }
}
