//! The machine's monotonic clock, and a fence for readings of it.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use sinew_fabric::Clock;

/// The machine's monotonic clock, in nanoseconds since the first `HostClock` of this process was made.
///
/// It reads the time stamp counter where that can serve as a clock (invariant and synchronised across processors), at
/// some 10 ns a reading, and the system's monotonic clock elsewhere, at some 25 ns or more. All clocks of a process
/// share an origin, so their readings can be compared. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostClock {
    clock: quanta::Clock,
    origin: u64,
}

impl HostClock {
    /// The process's clock. The first call calibrates the counter, which takes up to some tens of milliseconds.
    pub fn new() -> Self {
        static SHARED: OnceLock<HostClock> = OnceLock::new();
        SHARED
            .get_or_init(|| {
                let clock = quanta::Clock::new();
                let origin = clock.raw();
                Self { clock, origin }
            })
            .clone()
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for HostClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        // A reading before the origin (another processor's counter a hair behind) counts as the origin.
        self.clock.delta_as_nanos(self.origin, self.clock.raw().max(self.origin))
    }
}

/// Keeps every later load, store and clock reading from starting before all earlier ones are complete.
///
/// A memory fence alone does not order clock readings: the processor reads the time stamp counter ahead of loads that
/// still wait for their cache line, so that something that takes 200 ns seems to take 10.
#[inline]
pub fn serialize() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `lfence` belongs to SSE2, which every x86-64 processor has; it touches neither memory nor registers.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `isb` touches neither memory nor registers.
    unsafe {
        core::arch::asm!("isb", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn time_never_runs_backwards() {
        let clock = HostClock::new();
        let mut last_ns = clock.now_ns();
        for _ in 0..100_000 {
            let now_ns = clock.now_ns();
            assert!(now_ns >= last_ns);
            last_ns = now_ns;
        }
    }

    #[test]
    fn a_nanosecond_is_a_nanosecond() {
        let clock = HostClock::new();
        let (began, began_ns) = (Instant::now(), clock.now_ns());
        std::thread::sleep(Duration::from_millis(50));
        let (inner_ns, outer) = (clock.now_ns() - began_ns, began.elapsed());
        // The inner interval lies within the outer one, except for the readings themselves; 2 % is far above the
        // calibration error.
        assert!(inner_ns >= 49_000_000, "{inner_ns}");
        assert!((inner_ns as f64) < outer.as_nanos() as f64 * 1.02, "{inner_ns} ns in {outer:?}");
    }

    #[test]
    fn clocks_of_one_process_share_their_origin() {
        let first = HostClock::new();
        let before_ns = first.now_ns();
        let elsewhere_ns = std::thread::spawn(|| HostClock::new().now_ns()).join().unwrap();
        let after_ns = first.now_ns();
        // Another processor's counter may read slightly lower; a difference of a millisecond would mean another origin.
        assert!(elsewhere_ns + 1_000_000 >= before_ns && elsewhere_ns <= after_ns + 1_000_000);
    }
}
