//! How others wake a thread that sleeps.

use std::sync::Arc;

/// What a waker does. It may be called from any thread.
pub trait WakeTarget: Send + Sync {
    /// Ends the current sleep on the port, or the next one before it begins.
    fn wake(&self);

    /// Whether wakes happen in virtual time, where the waker's core may be ahead of the one that is woken.
    fn is_in_virtual_time(&self) -> bool {
        false
    }

    /// Does what the one that is woken is to find, and wakes it: now, or in virtual time when the woken core has come to the waker's time.
    fn wake_with(&self, effect: Box<dyn FnOnce() + Send>) {
        effect();
        self.wake();
    }

    /// Does what anybody may find, and wakes nobody: now, or in virtual time when everybody has come to the time of the core at work.
    fn take_effect(&self, effect: Box<dyn FnOnce() + Send>) {
        effect();
    }
}

/// Wakes a thread that sleeps on a port, in [`PacketPort::wait`](crate::PacketPort::wait) or by its
/// [descriptor](crate::Readiness::descriptor). Cheap to clone; outlives
/// its port harmlessly.
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

    /// Whether what is left for the one that is woken should go [with the wake](Self::wake_with).
    pub fn is_in_virtual_time(&self) -> bool {
        self.0.is_in_virtual_time()
    }

    /// Does what the one that is woken is to find, and wakes it. Where cores take turns in one thread, and the waker's is ahead in virtual time,
    /// both happen at the waker's time, rather than before.
    pub fn wake_with(&self, effect: Box<dyn FnOnce() + Send>) {
        self.0.wake_with(effect);
    }

    /// Does what others may find than the one that is woken, and wakes nobody. Where cores take turns in one thread, it happens at the time that the
    /// core at work has come to, rather than before.
    pub fn take_effect(&self, effect: Box<dyn FnOnce() + Send>) {
        self.0.take_effect(effect);
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}
