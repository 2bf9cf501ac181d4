//! Compares ports with the machine's limit: packets circulate between two ports, and between two plain sockets.
//!
//! `cargo run --release -p sinew-udp --example udp_port -- [MILLISECONDS per figure [bandwidth]]`
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sinew_fabric::{PacketPort, PacketRx, PacketTx, Peer, RxBurst, TxData, TxPacket};
use sinew_udp::UdpPort;
use sinew_udp::raw::{self, Mode, RunConfig};

type Error = Box<dyn std::error::Error + Send + Sync>;

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // On a machine with one processor there is nothing to pin to.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn pair(options: &str) -> Result<(UdpPort, UdpPort, Peer), Error> {
    let mut client = UdpPort::open(&format!("udp://127.0.0.1:0?{options}").parse()?)?;
    let server = UdpPort::open(&format!("udp://127.0.0.1:0?{options}").parse()?)?;
    let peer = client.resolve(&server.address())?;
    Ok((client, server, peer))
}

/// Sends back every packet, like a server of small requests.
fn serve(mut port: UdpPort, stop: &AtomicBool) {
    pin(1);
    while !stop.load(Ordering::Relaxed) {
        let (rx, tx) = port.split();
        let mut burst = RxBurst::new(0);
        rx.receive(&mut burst);
        for packet in &burst.packets {
            tx.push(TxPacket { to: packet.from, head: packet.head, data: TxData::None });
        }
        tx.submit();
    }
}

/// Keeps `window` packets of `len` bytes in flight. Returns how many came back per second, and the median time of a
/// turn in ns.
fn echo(options: &str, len: usize, window: usize, duration: Duration) -> Result<(f64, u64), Error> {
    let (mut client, server, peer) = pair(options)?;
    let stop = AtomicBool::new(false);
    Ok(std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || serve(server, stop));
        let result = scope.spawn(move || {
            pin(0);
            let bytes = vec![0xE2; len];
            let (mut free, mut back, began) = (window, 0u64, Instant::now());
            let mut trips_ns = Vec::with_capacity(1 << 20);
            let mut sent = began;
            loop {
                let (rx, tx) = client.split();
                for _ in 0..free {
                    tx.push(TxPacket { to: peer, head: &bytes, data: TxData::None });
                }
                tx.submit();
                let mut burst = RxBurst::new(0);
                rx.receive(&mut burst);
                free = burst.packets.len();
                back += free as u64;
                let now = Instant::now();
                if free > 0 {
                    if trips_ns.len() < trips_ns.capacity() {
                        trips_ns.push(now.duration_since(sent).as_nanos() as u64);
                    }
                    sent = now;
                }
                // A stall means that a packet was lost; nothing here recovers it.
                let elapsed = now.duration_since(began);
                if elapsed > duration || now.duration_since(sent) > Duration::from_millis(50) {
                    stop.store(true, Ordering::Relaxed);
                    trips_ns.sort_unstable();
                    let median_ns = trips_ns.get(trips_ns.len() / 2).copied().unwrap_or(0);
                    return (back as f64 / elapsed.as_secs_f64(), median_ns);
                }
            }
        });
        result.join().unwrap_or_default()
    }))
}

/// Sends 8 MB messages out of the port's arena, packet by packet, with a window, and returns bytes per second received.
fn bandwidth(options: &str, duration: Duration) -> Result<f64, Error> {
    const HEADER: [u8; 24] = [0xE2; 24];
    let (mut client, mut server, peer) = pair(options)?;
    let stop = AtomicBool::new(false);
    let data_len = client.packet_len_max(peer) - HEADER.len();
    let mut message = client.arena().alloc(8 << 20, data_len)?;
    // The first touch of a page costs far more than what is measured here.
    message.fill(&vec![7; 8 << 20])?;
    let frozen = message.freeze();
    let mut copy = vec![7u8; 8 << 20];
    Ok(std::thread::scope(|scope| {
        let (stop, copy) = (&stop, &mut copy);
        // The server copies the data to a message of its own and returns a credit for every packet.
        let result = scope.spawn(move || {
            pin(1);
            let (mut bytes, mut at) = (0u64, 0);
            while !stop.load(Ordering::Relaxed) {
                let (rx, tx) = server.split();
                let mut burst = RxBurst::new(0);
                rx.receive(&mut burst);
                for packet in &burst.packets {
                    let data = &packet.head[HEADER.len()..];
                    at = if at + data.len() > copy.len() { 0 } else { at };
                    copy[at..at + data.len()].copy_from_slice(data);
                    at += data.len();
                    bytes += packet.len() as u64;
                    tx.push(TxPacket { to: packet.from, head: &HEADER, data: TxData::None });
                }
                tx.submit();
            }
            bytes
        });
        let sender = scope.spawn(move || {
            pin(0);
            let (began, packets) = (Instant::now(), frozen.packets());
            let (mut next, mut free, mut heard) = (0, client.caps().receive_packets.min(256), began);
            loop {
                let (rx, tx) = client.split();
                // Send at most a burst each turn, as an event loop does.
                for _ in 0..free.min(64) {
                    let range = frozen.packet_range(next);
                    let data = TxData::Frozen { buffer: &frozen, start: range.start, len: range.len() };
                    tx.push(TxPacket { to: peer, head: &HEADER, data });
                    next = (next + 1) % packets;
                    free -= 1;
                }
                tx.submit();
                let mut burst = RxBurst::new(0);
                rx.receive(&mut burst);
                free += burst.packets.len();
                let now = Instant::now();
                if !burst.packets.is_empty() {
                    heard = now;
                }
                if now.duration_since(began) > duration || now.duration_since(heard) > Duration::from_millis(50) {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            began.elapsed().as_secs_f64()
        });
        let elapsed = sender.join().unwrap_or(f64::INFINITY);
        result.join().map_or(0.0, |bytes| bytes as f64 / elapsed)
    }))
}

fn main() -> Result<(), Error> {
    let millis = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100);
    let run = RunConfig { duration: Duration::from_millis(millis), cpus: Some([0, 1]) };
    let all = std::env::args().nth(2).is_none();
    for round in 0..2 {
        if all {
            small_packets(round, run)?;
        }
        large_packets(round, run)?;
    }
    Ok(())
}

fn small_packets(round: u32, run: RunConfig) -> Result<(), Error> {
    let mut trips_ns = raw::ping_pong(run, 56)?;
    trips_ns.sort_unstable();
    let limit_ns = trips_ns[trips_ns.len() / 2];
    for mode in ["off", "on"] {
        let (_, median_ns) = echo(&format!("coalesce={mode}"), 56, 1, run.duration)?;
        println!(
            "{round}: latency {mode}: {median_ns} ns, limit {limit_ns}, {:.2}",
            median_ns as f64 / limit_ns as f64
        );
    }
    for (mode, window, raw_mode) in [
        ("off", 60, Mode::Single),
        ("off", 60, Mode::List),
        ("gso", 60, Mode::Segments),
        ("on", 60, Mode::Joined),
        ("off", 512, Mode::List),
        ("gso", 512, Mode::Segments),
        ("on", 512, Mode::Joined),
    ] {
        let limit = raw::echo(run, raw_mode, 56, window, 1)?.packets_per_s();
        let (rate, _) = echo(&format!("coalesce={mode}"), 56, window, run.duration)?;
        println!(
            "{round}: echo {mode} window {window}: {:.2} M/s, limit {raw_mode:?} {:.2}, {:.2}",
            rate / 1e6,
            limit / 1e6,
            rate / limit
        );
    }
    Ok(())
}

fn large_packets(round: u32, run: RunConfig) -> Result<(), Error> {
    let limit = raw::one_way(run, Mode::Segments, 1472, 44)?.bytes_per_s();
    for options in ["coalesce=gso", "coalesce=on", "packet=1472", "packet=3648", "packet=16000", "packet=32000"] {
        let rate = bandwidth(options, run.duration)?;
        println!("{round}: bandwidth {options}: {:.2} GB/s, limit {:.2}, {:.2}", rate / 1e9, limit / 1e9, rate / limit);
    }
    Ok(())
}
