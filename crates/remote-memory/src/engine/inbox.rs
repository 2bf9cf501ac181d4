//! Inboxes: where engines leave requests that they finished for each other.

use std::sync::PoisonError;

use sinew_fabric::Waker;
use sinew_mem::atomic::{Arc, AtomicBool, Mutex, Ordering};

use super::request::Finished;
use super::stats::Counts;

/// An engine as others see it: the place for requests that they finish for it.
pub(super) struct Inbox {
    is_filled: AtomicBool,
    finished: Mutex<Vec<Finished>>,
    waker: Waker,
    /// Counters of the engine.
    pub counts: Counts,
}

impl Inbox {
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            is_filled: AtomicBool::new(false),
            finished: Mutex::new(Vec::new()),
            waker,
            counts: Counts::default(),
        })
    }

    /// Puts a finished request in, and wakes its owner; in virtual time, once the owner's core has reached the
    /// finisher's time.
    pub fn put(inbox: &Arc<Self>, finished: Finished) {
        if inbox.waker.is_in_virtual_time() {
            let later = Arc::clone(inbox);
            inbox.waker.wake_with(Box::new(move || later.add(finished)));
        } else {
            inbox.add(finished);
            inbox.waker.wake();
        }
    }

    fn add(&self, finished: Finished) {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).push(finished);
        // Release: a thread that sees it finds the request. Partner: the load in `has_any`.
        self.is_filled.store(true, Ordering::Release);
    }

    /// Whether the inbox holds anything.
    #[inline]
    pub fn has_any(&self) -> bool {
        // Acquire. Partner: the store in `add`.
        self.is_filled.load(Ordering::Acquire)
    }

    /// Takes everything out.
    #[inline(never)]
    pub fn take(&self, finished: &mut Vec<Finished>) {
        let mut inside = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: it changes only under the lock; `has_any` alone reads it without.
        self.is_filled.store(false, Ordering::Relaxed);
        finished.append(&mut inside);
    }

    /// Wakes its owner, because the queue holds something that the caller cannot do.
    pub fn wake(&self) {
        self.waker.wake();
    }
}
