//! The machine's own limit: plain UDP on the loopback device, without a port.
//!
//! These functions make the same system calls as the port, from two spinning threads, and move bytes that nobody reads.
//! Their result is the best that a fabric on this machine could reach, so a benchmark measures them beside its own
//! figure:
//!
//! - [`ping_pong`] for latency: one packet each way, with one send call and one receive call per turn.
//! - [`echo`] for request rates: a window of packets circulates between a client and a server.
//! - [`one_way`] for bandwidth and for the cost of one call.
//!
//! Each takes the processors to pin its two threads to. The figures mean something only with two processors; with one,
//! the threads yield instead of spinning, so that the measurement still ends.
//!
//! ```
//! use std::time::Duration;
//! use sinew_udp::raw::{Mode, RunConfig, one_way};
//!
//! let run = RunConfig { duration: Duration::from_millis(5), cpus: None };
//! let rate = one_way(run, Mode::Segments, 1472, 40)?;
//! println!("{:.1} GB/s", rate.bytes_per_s() / 1e9);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity, sched_yield};
use sinew_fabric::Peer;
use sinew_mem::atomic::plain::{AtomicU32, Ordering};

use crate::path::LOCAL_DATAGRAM;
use crate::sys::{Name, ReceiveRing, SendMemory, Socket};
use crate::{SEGMENTS_MAX, peer};

/// Receive buffer requested for each socket, in bytes.
const BUFFER: usize = 8 << 20;
/// Most datagrams that a call with [`Mode::List`] sends or receives.
const LIST_MAX: usize = 64;
/// A window that has lost packets to a full buffer starts anew when nothing has arrived for this long.
const STALL_TIMEOUT: Duration = Duration::from_millis(5);

/// The largest packet, in bytes.
pub const PACKET_LEN_MAX: usize = LOCAL_DATAGRAM;

/// The system calls that send and receive packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One `sendto` and one `recvmsg` for each packet.
    Single,
    /// `sendmmsg` and `recvmmsg`.
    List,
    /// `UDP_SEGMENT` and `UDP_GRO`: the kernel cuts one large send and joins what it can.
    Segments,
    /// All packets of a call as one datagram, like the port's batches.
    Joined,
}

/// Duration and processors of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct RunConfig {
    /// Time for which it sends.
    pub duration: Duration,
    /// The processors of the two threads: client or sender, then server or receiver. `None` leaves the choice to the
    /// system.
    pub cpus: Option<[usize; 2]>,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Packets that arrived: at the receiver, or back at the client of an echo.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Duration of the measurement, in nanoseconds.
    pub elapsed_ns: u64,
}

impl Rate {
    /// Packets per second.
    pub fn packets_per_s(&self) -> f64 {
        self.packets as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

/// A socket with the memory that a thread needs to send and receive.
struct Endpoint {
    socket: Socket,
    ring: ReceiveRing,
    memory: SendMemory,
    bytes: Vec<u8>,
    yields: bool,
}

impl Endpoint {
    fn new(mode: Mode) -> io::Result<Self> {
        let socket = Socket::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        socket.grow_receive_buffer(BUFFER)?;
        if mode == Mode::Segments && !(socket.can_segment() && socket.join_segments()) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel has no UDP_SEGMENT or no UDP_GRO"));
        }
        Ok(Self {
            socket,
            ring: ReceiveRing::new(LIST_MAX),
            memory: SendMemory::new(LIST_MAX, LIST_MAX),
            bytes: vec![0xA5; 1 << 16],
            yields: std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1),
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends `count` packets, in as few calls as the mode allows. Packets that do not fit the kernel's buffers are
    /// lost.
    fn send(&mut self, mode: Mode, to: &Name, packet_len: usize, count: usize) {
        let per_call = per_call_max(mode, packet_len);
        let mut left = count;
        while left > 0 {
            let now = left.min(per_call);
            left -= now;
            match mode {
                Mode::Single | Mode::Joined => {
                    let _ = self.socket.send_to(to, &self.bytes[..packet_len * now]);
                }
                Mode::Segments if now == 1 => {
                    let _ = self.socket.send_to(to, &self.bytes[..packet_len]);
                }
                Mode::Segments => {
                    let mut list = self.memory.list();
                    list.piece(&self.bytes[..packet_len * now]);
                    list.end_message(*to, packet_len);
                    let _ = self.socket.send_list(&mut list, 0);
                }
                Mode::List => {
                    let mut list = self.memory.list();
                    for _ in 0..now {
                        list.piece(&self.bytes[..packet_len]);
                        list.end_message(*to, 0);
                    }
                    let mut sent = 0;
                    while let Ok(more @ 1..) = self.socket.send_list(&mut list, sent) {
                        sent += more;
                        if sent >= now {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Receives what is there in one call. Returns the packets, their bytes, and the sender of the last.
    fn receive(&mut self, mode: Mode, packet_len: usize) -> (usize, u64, Option<Peer>) {
        let width = if mode == Mode::List { LIST_MAX } else { 1 };
        let Ok(got) = self.socket.receive(&mut self.ring, width) else {
            if self.yields {
                sched_yield();
            }
            return (0, 0, None);
        };
        let (mut packets, mut bytes, mut from) = (0, 0, None);
        for slot in 0..got {
            let received = self.ring.received(slot);
            packets += received.len.div_ceil(packet_len.max(1)).max(1);
            bytes += received.len as u64;
            from = received.from;
        }
        (packets, bytes, from)
    }
}

/// Most packets that fit one call.
fn per_call_max(mode: Mode, packet_len: usize) -> usize {
    let fitting = (LOCAL_DATAGRAM / packet_len.max(1)).max(1);
    match mode {
        Mode::Single => 1,
        Mode::List => LIST_MAX,
        Mode::Segments => fitting.min(SEGMENTS_MAX),
        Mode::Joined => fitting,
    }
}

fn pin(cpus: Option<[usize; 2]>, which: usize) -> io::Result<()> {
    let Some(cpu) = cpus.map(|cpus| cpus[which]) else { return Ok(()) };
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no processor {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn check_len(packet_len: usize) -> io::Result<()> {
    if (1..=PACKET_LEN_MAX).contains(&packet_len) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("a packet must have 1 to {PACKET_LEN_MAX} bytes, not {packet_len}"),
    ))
}

fn name(of: &Endpoint) -> io::Result<Name> {
    Name::of(peer::pack(of.address()?), false).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Runs `first` and `second` on threads of their own, pinned if `run` says so; the word tells `second` to stop once
/// `first` is done.
fn two_threads<T: Send>(
    run: RunConfig,
    first: impl FnOnce() -> T + Send,
    second: impl FnOnce(&AtomicU32) -> T + Send,
) -> io::Result<(T, T)> {
    let stop = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let stop = &stop;
        let server = scope.spawn(move || pin(run.cpus, 1).map(|()| second(stop)));
        let client = scope.spawn(move || pin(run.cpus, 0).map(|()| first()));
        let client = client.join();
        // Relaxed: the join publishes the results.
        stop.store(1, Ordering::Relaxed);
        let lost = |_| io::Error::other("a measuring thread panicked");
        Ok((client.map_err(lost)??, server.join().map_err(lost)??))
    })
}

/// Sends one packet of `packet_len` bytes back and forth between two spinning threads, and returns the time of every
/// round trip, in nanoseconds and in order.
///
/// # Errors
///
/// The error of a system call, or `InvalidInput` for a length or a processor that does not exist.
pub fn ping_pong(run: RunConfig, packet_len: usize) -> io::Result<Vec<u64>> {
    check_len(packet_len)?;
    let (mut client, mut server) = (Endpoint::new(Mode::Single)?, Endpoint::new(Mode::Single)?);
    let (to_server, to_client) = (name(&server)?, name(&client)?);
    // Room for a round trip each microsecond, so that recording allocates nothing.
    let mut trips_ns = Vec::with_capacity(run.duration.as_micros().min(100_000_000) as usize + 1);
    let first = move || {
        let began = Instant::now();
        let mut now = began;
        while now.duration_since(began) < run.duration {
            client.send(Mode::Single, &to_server, packet_len, 1);
            let sent = now;
            while client.receive(Mode::Single, packet_len).0 == 0 {
                // Nothing is lost with one packet in flight, but a measurement must end.
                if sent.elapsed() > run.duration + Duration::from_secs(1) {
                    return trips_ns;
                }
            }
            now = Instant::now();
            trips_ns.push(now.duration_since(sent).as_nanos() as u64);
        }
        trips_ns
    };
    let second = move |stop: &AtomicU32| {
        while stop.load(Ordering::Relaxed) == 0 {
            if server.receive(Mode::Single, packet_len).0 > 0 {
                server.send(Mode::Single, &to_client, packet_len, 1);
            }
        }
        Vec::new()
    };
    two_threads(run, first, second).map(|(trips_ns, _)| trips_ns)
}

/// Sends packets of `packet_len` bytes from one thread to another as fast as both can, and counts those that arrive.
/// Each send passes `packets_per_call`, limited to as many as a call takes.
///
/// # Errors
///
/// As [`ping_pong`]; `Unsupported` where the kernel has no segmentation offload.
pub fn one_way(run: RunConfig, mode: Mode, packet_len: usize, packets_per_call: usize) -> io::Result<Rate> {
    check_len(packet_len)?;
    let (mut sender, mut receiver) = (Endpoint::new(mode)?, Endpoint::new(mode)?);
    let to = name(&receiver)?;
    let per_call = packets_per_call.clamp(1, per_call_max(mode, packet_len));
    let first = move || {
        let began = Instant::now();
        while began.elapsed() < run.duration {
            sender.send(mode, &to, packet_len, per_call);
        }
        Rate { elapsed_ns: began.elapsed().as_nanos() as u64, ..Rate::default() }
    };
    let second = move |stop: &AtomicU32| {
        let mut rate = Rate::default();
        loop {
            let stopping = stop.load(Ordering::Relaxed) != 0;
            let (packets, bytes, _) = receiver.receive(mode, packet_len);
            rate.packets += packets as u64;
            rate.bytes += bytes;
            // Packets that had arrived before the stop count too.
            if stopping && packets == 0 {
                return rate;
            }
        }
    };
    two_threads(run, first, second).map(|(sent, received)| Rate { elapsed_ns: sent.elapsed_ns, ..received })
}

/// Keeps `window` packets of `packet_len` bytes circulating between a client and a server that returns each, and counts
/// those that came back: the best that requests and answers of that size could reach.
///
/// Each side sends what it has just received in as few calls as the mode allows; the client waits until its window has
/// room for at least `packets_per_call`.
///
/// # Errors
///
/// As [`one_way`].
pub fn echo(run: RunConfig, mode: Mode, packet_len: usize, window: usize, packets_per_call: usize) -> io::Result<Rate> {
    check_len(packet_len)?;
    let (mut client, mut server) = (Endpoint::new(mode)?, Endpoint::new(mode)?);
    let (to_server, to_client) = (name(&server)?, name(&client)?);
    let window = window.max(1);
    let least = packets_per_call.clamp(1, window);
    let first = move || {
        let mut rate = Rate::default();
        let (mut in_flight, began) = (0, Instant::now());
        let mut last_arrival = began;
        loop {
            if window - in_flight >= least {
                client.send(mode, &to_server, packet_len, window - in_flight);
                in_flight = window;
            }
            let (packets, bytes, _) = client.receive(mode, packet_len);
            rate.packets += packets as u64;
            rate.bytes += bytes;
            in_flight = in_flight.saturating_sub(packets);
            let now = Instant::now();
            if packets > 0 {
                last_arrival = now;
            } else if now.duration_since(last_arrival) > STALL_TIMEOUT {
                (in_flight, last_arrival) = (0, now);
            }
            let elapsed = now.duration_since(began);
            if elapsed >= run.duration {
                return Rate { elapsed_ns: elapsed.as_nanos() as u64, ..rate };
            }
        }
    };
    let second = move |stop: &AtomicU32| {
        while stop.load(Ordering::Relaxed) == 0 {
            let (packets, ..) = server.receive(mode, packet_len);
            if packets > 0 {
                server.send(mode, &to_client, packet_len, packets);
            }
        }
        Rate::default()
    };
    two_threads(run, first, second).map(|(rate, _)| rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: RunConfig = RunConfig { duration: Duration::from_millis(20), cpus: None };

    #[test]
    fn every_mode_moves_packets_of_the_size_that_was_asked_for() {
        for mode in [Mode::Single, Mode::List, Mode::Segments, Mode::Joined] {
            let (sent, echoed) = match (one_way(SHORT, mode, 100, 16), echo(SHORT, mode, 100, 32, 8)) {
                (Ok(sent), Ok(echoed)) => (sent, echoed),
                (Err(error), _) | (_, Err(error)) => {
                    assert!(mode == Mode::Segments && error.kind() == io::ErrorKind::Unsupported, "{error}");
                    continue;
                }
            };
            assert!(sent.packets > 0 && sent.elapsed_ns >= 20_000_000, "{mode:?} {sent:?}");
            // A busy machine may not run the server in so short a time; the packets that did come back were whole.
            assert_eq!((sent.bytes, echoed.bytes), (sent.packets * 100, echoed.packets * 100), "{mode:?}");
        }
    }

    #[test]
    fn a_round_trip_is_recorded_for_each_packet() {
        let trips_ns = ping_pong(SHORT, 32).unwrap();
        assert!(!trips_ns.is_empty() && trips_ns.iter().all(|&trip_ns| trip_ns > 0));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!(ping_pong(SHORT, 0).is_err() && one_way(SHORT, Mode::Joined, PACKET_LEN_MAX + 1, 1).is_err());
        let nowhere = RunConfig { cpus: Some([CpuSet::MAX_CPU; 2]), ..SHORT };
        assert_eq!(ping_pong(nowhere, 32).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
