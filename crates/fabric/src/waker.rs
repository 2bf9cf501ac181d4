//! Waking a thread that sleeps, from other threads.

use std::sync::Arc;

/// Target of a waker. It may be called from any thread.
pub trait WakeTarget: Send + Sync {
    /// Ends the current sleep on the port, or the next one before it begins.
    fn wake(&self);

    /// Whether wake-ups happen in virtual time, where the waker's core may be ahead of the one woken.
    fn is_in_virtual_time(&self) -> bool {
        false
    }

    /// Runs `effect`, which the woken thread is to observe, then wakes it: at once or, in virtual time, when the woken
    /// core has come to the waker's time.
    fn wake_with(&self, effect: Box<dyn FnOnce() + Send>) {
        effect();
        self.wake();
    }

    /// Runs `effect`, which anybody may observe, and wakes nobody: at once or, in virtual time, when every core has
    /// come to the time of the core at work.
    fn take_effect(&self, effect: Box<dyn FnOnce() + Send>) {
        effect();
    }
}

/// Wakes a thread that sleeps on a port, in [`PacketPort::wait`](crate::PacketPort::wait) or on its
/// [descriptor](crate::Readiness::descriptor). Cheap to clone; may outlive its port harmlessly.
#[derive(Clone)]
pub struct Waker(Arc<dyn WakeTarget>);

impl Waker {
    /// A waker for `target`.
    pub fn new(target: Arc<dyn WakeTarget>) -> Self {
        Self(target)
    }

    /// Ends the current sleep on the port, or the next one before it begins.
    pub fn wake(&self) {
        self.0.wake();
    }

    /// Whether effects that the woken thread is to observe should go [with the wake](Self::wake_with).
    pub fn is_in_virtual_time(&self) -> bool {
        self.0.is_in_virtual_time()
    }

    /// Runs `effect`, which the woken thread is to observe, then wakes it. If cores take turns in one thread and the
    /// waker's is ahead in virtual time, both happen at the waker's time rather than before.
    pub fn wake_with(&self, effect: Box<dyn FnOnce() + Send>) {
        self.0.wake_with(effect);
    }

    /// Runs `effect`, which any core may observe, and wakes nobody. If cores take turns in one thread, it runs when
    /// every core has come to the time of the core at work, rather than at once.
    pub fn take_effect(&self, effect: Box<dyn FnOnce() + Send>) {
        self.0.take_effect(effect);
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}
