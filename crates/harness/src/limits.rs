//! The machine's own limits, without Sinew's layers, with which benchmarks are compared.

mod datagrams;
mod memory;
mod ports;
mod ring;
pub mod xdp;

use std::time::Duration;

use sinew::udp::raw::{self, Mode, RunConfig};

pub use datagrams::{Datagrams, datagram_len_max};
pub use memory::{LARGE, clock_read_ns, copy_fresh_bytes_per_s, copy_own_bytes_per_s};
pub use ring::{ring_echo_mops, ring_round_trips, ring_stream_mops};

use sinew::mem::ring::INLINE_MAX;

use crate::histogram;
use crate::machine::Pair;

/// Length of the header of every packet of the RPC layer, in bytes. Raw packets that are compared with one have it,
/// too.
pub const HEADER_LEN: usize = sinew::mem::HEADER_ROOM;

/// Round trips of one message of `size` bytes over shared memory, between two threads that spin: the median, in
/// nanoseconds.
pub fn shm_round_trip_ns(cpus: Pair, size: usize, duration: Duration) -> anyhow::Result<f64> {
    let trips = if size + HEADER_LEN <= INLINE_MAX {
        ring_round_trips(cpus, size + HEADER_LEN, duration)?
    } else {
        ports::round_trips(cpus, size, duration)?
    };
    Ok(trips.value_at_quantile(0.5) as f64)
}

/// Messages of `size` bytes that go to a server over shared memory and come back, in millions a second.
pub fn shm_echo_mops(cpus: Pair, size: usize, window: usize, batch: usize, duration: Duration) -> anyhow::Result<f64> {
    if size + HEADER_LEN <= INLINE_MAX {
        ring_echo_mops(cpus, size + HEADER_LEN, window, batch, duration)
    } else {
        ports::echo_mops(cpus, size, window, batch, duration)
    }
}

/// Round trips of one UDP packet between two threads that spin: the median, in nanoseconds.
pub fn udp_round_trip_ns(cpus: Pair, packet_len: usize, duration: Duration) -> anyhow::Result<f64> {
    let mut trips = histogram();
    for trip_ns in raw::ping_pong(RunConfig { duration, cpus }, packet_len)? {
        trips.saturating_record(trip_ns);
    }
    Ok(trips.value_at_quantile(0.5) as f64)
}

/// UDP packets that go to a server and come back, in millions a second.
pub fn udp_echo_mops(
    cpus: Pair,
    mode: Mode,
    packet_len: usize,
    window: usize,
    batch: usize,
    duration: Duration,
) -> anyhow::Result<f64> {
    Ok(raw::echo(RunConfig { duration, cpus }, mode, packet_len, window, batch)?.packets_per_s() / 1e6)
}

/// UDP payload one way, segmented and joined by the kernel, in gigabits a second.
pub fn udp_bandwidth_gbps(cpus: Pair, packet_len: usize, duration: Duration) -> anyhow::Result<f64> {
    let run = RunConfig { duration, cpus };
    let rate = match raw::one_way(run, Mode::Segments, packet_len, usize::MAX) {
        // On a kernel without segmentation, lists of packets are the best method.
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            raw::one_way(run, Mode::List, packet_len, usize::MAX)?
        }
        other => other?,
    };
    Ok(rate.bytes_per_s() * 8.0 / 1e9)
}
