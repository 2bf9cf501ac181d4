//! Whether a thread sleeps, as those see it that may have to wake it.
//!
//! The thread says that it goes to sleep, and looks once more for what it sleeps for; a waker first makes that visible, and then
//! looks whether the thread sleeps. Only the first waker that finds it asleep has to do anything dear, such as a system call;
//! one that finds it awake leaves word, and the next attempt to sleep ends at once.

use crate::atomic::{AtomicU32, Ordering};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
const WOKEN: u32 = 2;

/// The state of one sleeper, which its thread and any number of wakers share.
#[derive(Debug)]
pub struct WakeCell {
    /// AWAKE, SLEEPING or WOKEN. Every change is an exchange that both releases and acquires, so that what a waker did before it
    /// woke happens before what the thread does after it has seen that; they are each other's partners.
    state: AtomicU32,
}

impl Default for WakeCell {
    fn default() -> Self {
        Self::new()
    }
}

impl WakeCell {
    /// Of a thread that is awake.
    pub fn new() -> Self {
        Self { state: AtomicU32::new(AWAKE) }
    }

    /// The thread goes to sleep. False, and it stays awake, when it was woken since it was last awake: that wake-up is over now.
    pub fn sleep(&self) -> bool {
        if self.state.compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        // WOKEN, which wakers leave as it is.
        self.state.swap(AWAKE, Ordering::AcqRel);
        false
    }

    /// The thread is awake again. True when it was woken: one waker then has found it asleep, and does what wakes it, if it has not
    /// done so yet.
    pub fn awake(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }

    /// Wakes the thread. True when the caller has to do what ends its sleep; exactly one of several wakers is told so.
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
        assert!(cell.awake(), "one wake-up was seen");
        assert!(cell.sleep() && !cell.awake(), "and is over");
    }

    #[test]
    fn a_wake_up_of_one_that_is_awake_ends_the_next_sleep_before_it_begins() {
        let cell = WakeCell::new();
        assert!(!cell.wake(), "nobody sleeps");
        assert!(!cell.sleep());
        assert!(cell.sleep());
    }
}
