//! Measures a pair of ports beside a bare ring, in the same run, on two pinned processors.
//!
//! `cargo run --release -p sinew-shm --example ports [processes]`
//!
//! On a machine with other work, one of the two threads is usually not running: everything is measured in many short
//! slices, and the figure is that of the best tenth.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sinew_fabric::{PacketPort, PacketRx, PacketTx, Peer, RxBurst, TxData, TxPacket};
use sinew_mem::ring;
use sinew_shm::{Hub, PACKET_LEN_MAX, ShmPort};

const PACKET: [u8; 56] = [7; 56];
const ROUNDS: usize = 500;
const SLICE_PACKETS: u64 = 20_000;
const BARE_BURST: u64 = 16;
const MEASURE: Duration = Duration::from_millis(700);

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Nanoseconds per step, of the best tenth of the slices.
fn best(steps: usize, mut slice: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut samples = Vec::new();
    while began.elapsed() < MEASURE || samples.len() < 20 {
        let start = Instant::now();
        slice();
        samples.push(start.elapsed().as_nanos() as f64 / steps as f64);
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 10]
}

static STOP: AtomicBool = AtomicBool::new(false);
static ECHO: AtomicBool = AtomicBool::new(true);
static GOT: AtomicU64 = AtomicU64::new(0);

fn reset() {
    STOP.store(false, Ordering::Relaxed);
    ECHO.store(true, Ordering::Relaxed);
    GOT.store(0, Ordering::Relaxed);
}

/// Round trip in ns and rate in packets per us of the bare ring.
fn bare_ring() -> (f64, f64) {
    reset();
    let (mut there, mut there_rx) = ring::pair(8192).unwrap();
    let (mut back, mut back_rx) = ring::pair(8192).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let mut got = 0;
            while !STOP.load(Ordering::Relaxed) {
                let count = there_rx.receive(32, |_| {});
                if count > 0 {
                    got += count as u64;
                    match ECHO.load(Ordering::Relaxed) {
                        true => {
                            back.push(&PACKET, &[]).unwrap();
                            back.submit();
                        }
                        false => GOT.store(got, Ordering::Relaxed),
                    }
                }
            }
        });
        pin(0);
        let round_trip = best(ROUNDS, || {
            for _ in 0..ROUNDS {
                there.push(&PACKET, &[]).unwrap();
                there.submit();
                while back_rx.receive(1, |_| {}) == 0 {}
            }
        });
        ECHO.store(false, Ordering::Relaxed);
        there.push(&PACKET, &[]).unwrap();
        there.submit();
        while GOT.load(Ordering::Relaxed) == 0 {}
        let per_packet = best(SLICE_PACKETS as usize, || {
            let goal = GOT.load(Ordering::Relaxed) + SLICE_PACKETS;
            for number in 1..=SLICE_PACKETS {
                while there.push(&PACKET, &[]).is_err() {}
                if number.is_multiple_of(BARE_BURST) {
                    there.submit();
                }
            }
            there.submit();
            while GOT.load(Ordering::Relaxed) < goal {}
        });
        STOP.store(true, Ordering::Relaxed);
        (round_trip, 1e3 / per_packet)
    })
}

fn pair(processes: bool) -> (ShmPort, ShmPort) {
    if processes {
        let name = format!("shm://measure-{}", std::process::id());
        (ShmPort::open(&name.parse().unwrap()).unwrap(), ShmPort::open(&"shm://".parse().unwrap()).unwrap())
    } else {
        let hub = Hub::new();
        (hub.port("measure").unwrap(), hub.port("").unwrap())
    }
}

/// Echoes heads, or counts; copies all long data into messages of 8 MB.
fn serve(mut server: ShmPort) {
    pin(1);
    let origin = Instant::now();
    let (mut now_ns, mut turns) = (0, 0u32);
    let mut target = vec![0; 8 << 20];
    let (mut at, mut got) = (0, 0);
    while !STOP.load(Ordering::Relaxed) {
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(64) {
            now_ns = origin.elapsed().as_nanos() as u64;
        }
        let (rx, tx) = server.split();
        let mut burst = RxBurst::new(now_ns);
        rx.receive(&mut burst);
        if burst.packets.is_empty() {
            continue;
        }
        let echo = ECHO.load(Ordering::Relaxed);
        for packet in &burst.packets {
            if let Some(tail) = packet.tail {
                if at + tail.len() > target.len() {
                    at = 0;
                }
                tail.copy_to(&mut target[at..at + tail.len()]).unwrap();
                at += tail.len();
            }
            if echo {
                tx.push(TxPacket { to: packet.from, head: packet.head, data: TxData::None });
            }
        }
        got += burst.packets.len() as u64;
        if echo {
            tx.submit();
        } else {
            GOT.store(got, Ordering::Relaxed);
        }
    }
}

fn round_trips(client: &mut ShmPort, peer: Peer, origin: Instant) {
    let (rx, tx) = client.split();
    let mut now_ns = origin.elapsed().as_nanos() as u64;
    for _ in 0..ROUNDS {
        tx.push(TxPacket { to: peer, head: &PACKET, data: TxData::None });
        tx.submit();
        for turn in 1u32.. {
            if turn.is_multiple_of(64) {
                now_ns = origin.elapsed().as_nanos() as u64;
            }
            let mut burst = RxBurst::new(now_ns);
            rx.receive(&mut burst);
            if !burst.packets.is_empty() {
                break;
            }
        }
    }
}

/// Round trip in ns, packets per us in bursts of `burst_len`, Gbps of messages of 8 MB.
fn ports(processes: bool, burst_len: u64) -> (f64, f64, f64) {
    reset();
    let (server, mut client) = pair(processes);
    let address = server.address();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(server));
        pin(0);
        let origin = Instant::now();
        let peer = client.resolve(&address).unwrap();
        round_trips(&mut client, peer, origin);
        let round_trip = best(ROUNDS, || round_trips(&mut client, peer, origin));

        ECHO.store(false, Ordering::Relaxed);
        let tx = client.split().1;
        tx.push(TxPacket { to: peer, head: &PACKET, data: TxData::None });
        tx.submit();
        while GOT.load(Ordering::Relaxed) == 0 {}
        let per_packet = best(SLICE_PACKETS as usize, || {
            let goal = GOT.load(Ordering::Relaxed) + SLICE_PACKETS;
            let mut left = SLICE_PACKETS;
            while left > 0 {
                // In real use, credits ensure that there is room for a burst.
                while goal - left > GOT.load(Ordering::Relaxed) + 2048 {}
                for _ in 0..burst_len.min(left) {
                    tx.push(TxPacket { to: peer, head: &PACKET, data: TxData::None });
                }
                tx.submit();
                left -= burst_len.min(left);
            }
            while GOT.load(Ordering::Relaxed) < goal {}
        });

        let mut buffer = client.arena().alloc(8 << 20, PACKET_LEN_MAX - 24).unwrap();
        buffer[..].fill(3);
        let mut frozen = buffer.freeze();
        let mut samples = Vec::new();
        let tx = client.split().1;
        for round in 0..40 {
            let start = Instant::now();
            let mut sent = GOT.load(Ordering::Relaxed);
            for index in 0..frozen.packets() {
                let range = frozen.packet_range(index);
                let data = TxData::Frozen { buffer: &frozen, start: range.start, len: range.len() };
                while sent > GOT.load(Ordering::Relaxed) + 16 {}
                tx.push(TxPacket { to: peer, head: &PACKET[..24], data });
                tx.submit();
                sent += 1;
            }
            while sent > GOT.load(Ordering::Relaxed) {}
            samples.push(start.elapsed().as_nanos() as u64);
            // The message is rewritten each time, so that the receiver copies bytes that the other core has just
            // written.
            let mut buffer = loop {
                tx.submit();
                match frozen.thaw() {
                    Ok(buffer) => break buffer,
                    Err(share) => frozen = share,
                }
            };
            buffer[..].fill(round);
            frozen = buffer.freeze();
        }
        samples.sort_unstable();
        let gbps = (8u64 << 23) as f64 / samples[samples.len() / 10] as f64;
        STOP.store(true, Ordering::Relaxed);
        assert_eq!(client.stats().dropped_total(), 0);
        (round_trip, 1e3 / per_packet, gbps)
    })
}

/// Gbps at which one core copies 8 MB that the other has just written, as the packets of a port are copied.
fn bare_copy() -> f64 {
    let mut source = vec![0u8; 8 << 20];
    let mut target = vec![0u8; 8 << 20];
    let mut samples = Vec::new();
    for round in 0..40 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(0);
                source.fill(round);
            });
        });
        pin(1);
        let start = Instant::now();
        target.copy_from_slice(&source);
        samples.push(start.elapsed().as_nanos() as u64);
        std::hint::black_box(&mut target);
    }
    samples.sort_unstable();
    (8u64 << 23) as f64 / samples[4] as f64
}

fn main() {
    let processes = std::env::args().nth(1).as_deref() == Some("processes");
    println!("{}", if processes { "links as between processes" } else { "links between threads" });
    for _ in 0..2 {
        let (round_trip, rate) = bare_ring();
        println!("ring: round trip {round_trip:.0} ns, {rate:.0} M packets/s; copy {:.0} Gbps", bare_copy());
        for burst in [3, 8, 32] {
            let (round_trip, rate, gbps) = ports(processes, burst);
            println!("ports: round trip {round_trip:.0} ns, {rate:.0} M packets/s (bursts of {burst}), {gbps:.0} Gbps");
        }
    }
}
