//! A cell that tells wakers whether a thread sleeps.
//!
//! The thread declares that it goes to sleep, then checks once more for what it is waiting for; a waker first makes its
//! news visible, then looks whether the thread sleeps. Only the first waker that finds it asleep has to do anything
//! costly, such as a system call. One that finds it awake leaves a mark, and the next attempt to sleep ends at once.

use crate::atomic::{AtomicU32, Ordering};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
const WOKEN: u32 = 2;

/// State of one sleeper, which its thread and any number of wakers share.
#[derive(Debug)]
pub struct WakeCell {
    /// AWAKE, SLEEPING or WOKEN. Every change is an exchange that both releases and acquires, so what a waker did
    /// before it woke the thread happens before what the thread does after seeing the wake-up. The exchanges are each
    /// other's partners.
    state: AtomicU32,
}

impl Default for WakeCell {
    fn default() -> Self {
        Self::new()
    }
}

impl WakeCell {
    /// The cell of a thread that is awake.
    pub fn new() -> Self {
        Self { state: AtomicU32::new(AWAKE) }
    }

    /// Declares that the thread goes to sleep. Returns false if a waker has come since it last slept: the thread stays
    /// awake, and the wake-up is consumed.
    pub fn sleep(&self) -> bool {
        if self.state.compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        // The state is WOKEN, which wakers leave as it is.
        self.state.swap(AWAKE, Ordering::AcqRel);
        false
    }

    /// Declares that the thread is awake again. Returns true if it was woken: one waker has then found it asleep, and
    /// does what wakes it, if it has not done so yet.
    pub fn end_sleep(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }

    /// Wakes the thread. Returns true if the caller has to do what ends its sleep, which it does for exactly one of
    /// several wakers.
    pub fn wake(&self) -> bool {
        self.state.swap(WOKEN, Ordering::AcqRel) == SLEEPING
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_waker_of_a_sleeper_has_to_wake_it() {
        let cell = WakeCell::new();
        assert!(cell.sleep());
        assert!(cell.wake());
        assert!(!cell.wake());
        assert!(cell.end_sleep(), "one wake-up was seen");
        assert!(cell.sleep() && !cell.end_sleep(), "and is over");
    }

    #[test]
    fn a_wake_up_of_one_that_is_awake_ends_the_next_sleep_before_it_begins() {
        let cell = WakeCell::new();
        assert!(!cell.wake(), "nobody sleeps");
        assert!(!cell.sleep());
        assert!(cell.sleep());
    }
}
