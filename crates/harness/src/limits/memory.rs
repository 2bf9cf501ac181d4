//! Copies, and readings of the clock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sinew::fabric::Clock;
use sinew::host::HostClock;

use crate::machine::{Idle, Pair, two_threads};
use crate::units;

/// Length of a large message, in bytes.
pub const LARGE: usize = 8 << 20;

/// Duration of one reading of the clock that endpoints use, in nanoseconds.
pub fn clock_read_ns() -> f64 {
    const READINGS: u64 = 100_000;
    let clock = HostClock::new();
    let began_ns = clock.now_ns();
    let mut last_ns = began_ns;
    for _ in 0..READINGS {
        last_ns = std::hint::black_box(clock.now_ns());
    }
    (last_ns - began_ns) as f64 / READINGS as f64
}

/// Bytes a second at which a core copies 8 MB of its own.
pub fn copy_own_bytes_per_s(duration: Duration) -> f64 {
    let (source, mut target) = (vec![1u8; LARGE], vec![2u8; LARGE]);
    let mut rates = Vec::new();
    let began = Instant::now();
    while began.elapsed() < duration {
        let copy = Instant::now();
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        rates.push(LARGE as f64 / copy.elapsed().as_secs_f64());
    }
    units::median(&rates)
}

/// Bytes a second at which a core copies `len` bytes that another core has just written. Only the copy is timed.
pub fn copy_fresh_bytes_per_s(cpus: Pair, len: usize, duration: Duration) -> anyhow::Result<f64> {
    const WRITTEN: usize = 1;
    const COPIED: usize = 0;
    let shared = Mutex::new(vec![0u8; len]);
    let state = AtomicUsize::new(COPIED);
    // The copier is the first thread: it decides when to stop.
    let copier = || {
        let idle = Idle::new();
        let mut target = vec![0u8; len];
        let mut rates = Vec::new();
        let began = Instant::now();
        while began.elapsed() < duration {
            while state.load(Ordering::Acquire) != WRITTEN {
                idle.pass();
            }
            if let Ok(source) = shared.lock() {
                let copy = Instant::now();
                target.copy_from_slice(&source);
                std::hint::black_box(&mut target);
                rates.push(len as f64 / copy.elapsed().as_secs_f64());
            }
            state.store(COPIED, Ordering::Release);
        }
        units::median(&rates)
    };
    let writer = |stop: &AtomicBool| {
        let idle = Idle::new();
        let mut value = 0u8;
        while !stop.load(Ordering::Relaxed) {
            if state.load(Ordering::Acquire) == COPIED {
                value = value.wrapping_add(1);
                if let Ok(mut source) = shared.lock() {
                    source.fill(value);
                }
                state.store(WRITTEN, Ordering::Release);
            } else {
                idle.pass();
            }
        }
    };
    // The copier runs on the server's processor.
    Ok(two_threads(cpus.map(|[client, server]| [server, client]), copier, writer)?.0)
}
