//! What engines have of each other.

use std::sync::PoisonError;

use sinew_fabric::Waker;
use sinew_mem::atomic::{Arc, AtomicBool, Mutex, Ordering};

use super::request::Finished;
use super::stats::Counts;

/// An engine, as others have it: where they put what they finish for it.
pub(super) struct Inbox {
    has: AtomicBool,
    finished: Mutex<Vec<Finished>>,
    waker: Waker,
    /// What the engine has done.
    pub counts: Counts,
}

impl Inbox {
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            has: AtomicBool::new(false),
            finished: Mutex::new(Vec::new()),
            waker,
            counts: Counts::default(),
        })
    }

    /// Puts one in, and wakes its owner; in virtual time, when its core has come to that of whoever finished it.
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
        // Release: whoever sees it finds the request. Partner: the look in `has_any`.
        self.has.store(true, Ordering::Release);
    }

    /// Whether there is something in it.
    #[inline]
    pub fn has_any(&self) -> bool {
        // Acquire. Partner: the store in `add`.
        self.has.load(Ordering::Acquire)
    }

    /// Takes out what is in it.
    #[inline(never)]
    pub fn take(&self, finished: &mut Vec<Finished>) {
        let mut inside = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: it changes under the lock, but for the looks.
        self.has.store(false, Ordering::Relaxed);
        finished.append(&mut inside);
    }

    /// Wakes its owner, since there is something in the queue that others cannot do.
    pub fn wake(&self) {
        self.waker.wake();
    }
}
