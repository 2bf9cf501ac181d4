//! Locks that callers wait for. One thread retries them all, so that no thread of the session waits. It starts with
//! the first such lock.
//!
//! When a file with a `flock` is closed, the kernel releases the lock by a RELEASE request, which `close` does not wait
//! for. So a lock that may not wait is refused only after [`NO_WAIT_RETRY`]: by then the RELEASE of a file that the
//! program closed earlier has arrived.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyEmpty};
use rustix::io::Errno as Error;

use super::convert::errno;
use crate::caller;
use crate::files::{Files, Lock};

/// Pause before the first retry of a lock. It doubles with each retry.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Longest pause between retries: the holder may be on another host, whose release nothing here reports.
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// Time for which a lock that may not wait is retried.
const NO_WAIT_RETRY: Duration = Duration::from_millis(10);
/// Locks that can be waiting at once.
const WAITERS_MAX: usize = 4096;

struct Waiter {
    ino: u64,
    lock: Lock,
    thread: u32,
    reply: ReplyEmpty,
    pause: Duration,
    due: Instant,
    /// When it is refused, if it may not wait.
    refuse_at: Option<Instant>,
}

#[derive(Default)]
struct WaitState {
    waiters: VecDeque<Waiter>,
    has_thread: bool,
    has_ended: bool,
}

struct LockShared<F> {
    files: Arc<F>,
    state: Mutex<WaitState>,
    changed: Condvar,
}

pub(super) struct WaitingLocks<F>(Arc<LockShared<F>>);

impl<F: Files> WaitingLocks<F> {
    pub fn new(files: Arc<F>) -> Self {
        Self(Arc::new(LockShared { files, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Queues a lock. The reply is sent when the lock is granted, when `thread` has a signal pending, or, if the lock
    /// may not wait, after [`NO_WAIT_RETRY`].
    pub fn add(&self, ino: u64, lock: Lock, thread: u32, waits: bool, reply: ReplyEmpty) {
        let now = Instant::now();
        let refuse_at = (!waits).then(|| now + NO_WAIT_RETRY);
        let mut state = self.0.lock();
        let mut can_wait = state.waiters.len() < WAITERS_MAX && !state.has_ended;
        if can_wait && !state.has_thread {
            let common = Arc::clone(&self.0);
            let started = thread::Builder::new().name("sinew-locks".to_owned()).spawn(move || common.run());
            can_wait = started.is_ok();
            state.has_thread = can_wait;
        }
        if !can_wait {
            drop(state);
            return self.0.give_up(ino, &lock, reply, Errno::ENOLCK);
        }
        state.waiters.push_back(Waiter { ino, lock, thread, reply, pause: PAUSE_MIN, due: now + PAUSE_MIN, refuse_at });
        drop(state);
        self.0.changed.notify_one();
    }

    /// Retries all waiting locks now, since one may have been released on this mount.
    pub fn retry_now(&self) {
        let mut state = self.0.lock();
        if state.waiters.is_empty() {
            return;
        }
        let now = Instant::now();
        state.waiters.iter_mut().for_each(|waiter| waiter.due = now);
        drop(state);
        self.0.changed.notify_one();
    }

    pub fn end(&self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_one();
    }
}

impl<F> Drop for WaitingLocks<F> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        self.0.changed.notify_one();
    }
}

impl<F: Files> LockShared<F> {
    fn lock(&self) -> MutexGuard<'_, WaitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.has_ended {
            let now = Instant::now();
            let Some(at) = state.waiters.iter().position(|waiter| waiter.due <= now) else {
                let next = state.waiters.iter().map(|waiter| waiter.due - now).min();
                state = match next {
                    Some(pause) => self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0,
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
                continue;
            };
            let Some(waiter) = state.waiters.remove(at) else { continue };
            drop(state);
            let still_waiting = self.try_lock(waiter);
            state = self.lock();
            state.waiters.extend(still_waiting);
        }
        for waiter in state.waiters.drain(..) {
            waiter.reply.error(Errno::EINTR);
        }
    }

    /// Answers a caller that waits no longer, after a last attempt, by which the file system knows that.
    fn give_up(&self, ino: u64, lock: &Lock, reply: ReplyEmpty, why: Errno) {
        match self.files.set_lock(ino, lock, false) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(why),
        }
    }

    fn try_lock(&self, mut waiter: Waiter) -> Option<Waiter> {
        if caller::is_interrupted(waiter.thread) {
            self.give_up(waiter.ino, &waiter.lock, waiter.reply, Errno::EINTR);
            return None;
        }
        let tried_at = Instant::now();
        match self.files.set_lock(waiter.ino, &waiter.lock, waiter.refuse_at.is_none()) {
            Ok(()) => waiter.reply.ok(),
            Err(Error::AGAIN) if waiter.refuse_at.is_some_and(|refused| refused <= tried_at) => {
                waiter.reply.error(Errno::EAGAIN);
            }
            Err(Error::AGAIN) => {
                waiter.pause = (2 * waiter.pause).min(PAUSE_MAX);
                waiter.due = tried_at + waiter.pause;
                return Some(waiter);
            }
            Err(error) => waiter.reply.error(errno(error)),
        }
        None
    }
}
