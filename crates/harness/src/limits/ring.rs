//! The ring under the shared-memory fabric, alone, between two threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sinew::mem::ring::{self, Consumer, Producer};

use crate::histogram;
use crate::machine::{Idle, Pair, two_threads};

/// Lines of each ring, as in a port by default; windows that would not fit get more.
const LINES: usize = 8192;
/// Packets taken at a time, as in a port's burst.
const BURST: usize = 32;
/// Bursts between readings of the clock.
const BURSTS_PER_LOOK: u64 = 64;

/// A packet of at most [`ring::INLINE_MAX`] bytes.
fn packet(packet_len: usize) -> Vec<u8> {
    vec![0xA5; packet_len]
}

/// Sends back every packet until the flag is set.
fn echo(mut from: Consumer, mut to: Producer, packet_len: usize, stop: &AtomicBool) {
    let (idle, answer) = (Idle::new(), packet(packet_len));
    while !stop.load(Ordering::Relaxed) {
        let taken = from.receive(BURST, |_| {
            // The ring cannot be full: it holds everything that is in flight.
            let _ = to.push(&answer, &[]);
        });
        to.submit();
        if taken == 0 {
            idle.pass();
        }
    }
}

/// Round trips of one packet of `packet_len` bytes, in ns.
pub fn ring_round_trips(cpus: Pair, packet_len: usize, duration: Duration) -> anyhow::Result<Histogram<u64>> {
    let ((mut there, from_there), (to_here, mut here)) = (ring::pair(LINES)?, ring::pair(LINES)?);
    let first = move || {
        let (idle, request) = (Idle::new(), packet(packet_len));
        let mut trips = histogram();
        let began = Instant::now();
        let mut now = began;
        while now - began < duration {
            let _ = there.push(&request, &[]);
            there.submit();
            while here.receive(BURST, |_| ()) == 0 {
                idle.pass();
            }
            let done = Instant::now();
            trips.saturating_record((done - now).as_nanos() as u64);
            now = done;
        }
        trips
    };
    Ok(two_threads(cpus, first, |stop| echo(from_there, to_here, packet_len, stop))?.0)
}

/// Packets that go to another thread and come back, `window` in flight, sent `batch` at a time, in millions a second.
pub fn ring_echo_mops(
    cpus: Pair,
    packet_len: usize,
    window: usize,
    batch: usize,
    duration: Duration,
) -> anyhow::Result<f64> {
    let lines = ring::lines_for(window).max(LINES);
    let ((mut there, from_there), (to_here, mut here)) = (ring::pair(lines)?, ring::pair(lines)?);
    let first = move || {
        let (idle, request) = (Idle::new(), packet(packet_len));
        let (mut in_flight, mut returned, mut bursts) = (0usize, 0u64, 0u64);
        let began = Instant::now();
        loop {
            if in_flight + batch <= window {
                for _ in 0..batch {
                    let _ = there.push(&request, &[]);
                }
                there.submit();
                in_flight += batch;
            }
            let taken = here.receive(BURST, |_| ());
            in_flight -= taken;
            returned += taken as u64;
            if taken == 0 {
                idle.pass();
            }
            bursts += 1;
            if bursts.is_multiple_of(BURSTS_PER_LOOK) && began.elapsed() >= duration {
                return returned as f64 / began.elapsed().as_nanos() as f64 * 1e3;
            }
        }
    };
    Ok(two_threads(cpus, first, |stop| echo(from_there, to_here, packet_len, stop))?.0)
}

/// Packets one way, at the full rate, in millions a second.
pub fn ring_stream_mops(cpus: Pair, packet_len: usize, duration: Duration) -> anyhow::Result<f64> {
    let (mut there, mut from_there) = ring::pair(LINES)?;
    let first = move || {
        let (idle, request) = (Idle::new(), packet(packet_len));
        let began = Instant::now();
        while began.elapsed() < duration {
            for _ in 0..BURST {
                while there.push(&request, &[]).is_err() {
                    idle.pass();
                }
            }
            there.submit();
        }
        began.elapsed()
    };
    let second = move |stop: &AtomicBool| {
        let (idle, mut packets) = (Idle::new(), 0u64);
        // Packets still in the ring at the end count too: the sender may be waiting for room.
        while !stop.load(Ordering::Relaxed) || !from_there.is_empty() {
            let taken = from_there.receive(BURST, |_| ());
            packets += taken as u64;
            if taken == 0 {
                idle.pass();
            }
        }
        packets
    };
    let (elapsed, packets) = two_threads(cpus, first, second)?;
    Ok(packets as f64 / elapsed.as_nanos() as f64 * 1e3)
}
