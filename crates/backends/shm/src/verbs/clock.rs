//! The clock by which a thread's engine bounds its waits.

/// Nanoseconds of the system's monotonic clock.
pub(crate) fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
