//! Measures what a pair of ports does beside what a bare ring does, in the same run, on two pinned processors.
//!
//! `cargo run --release -p sinew-shm --example ports [processes]`

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sinew_fabric::{PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket};
use sinew_mem::ring;
use sinew_shm::{Hub, PACKET_LEN_MAX, ShmPort};

const PACKET: [u8; 56] = [7; 56];

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// Round trip and rate of the bare ring.
fn bare_ring() -> (u64, f64) {
    const ROUNDS: usize = 200_000;
    let (mut there, mut there_rx) = ring::pair(8192).unwrap();
    let (mut back, mut back_rx) = ring::pair(8192).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            for _ in 0..ROUNDS {
                while there_rx.receive(1, |_| {}) == 0 {
                    std::hint::spin_loop();
                }
                back.push(&PACKET[..32], &[]).unwrap();
            }
        });
        pin(0);
        let samples = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            there.push(&PACKET[..32], &[]).unwrap();
            while back_rx.receive(1, |_| {}) == 0 {
                std::hint::spin_loop();
            }
            start.elapsed().as_nanos() as u64
        });
        let round_trip = median(samples.collect());
        let (mut tx, mut rx) = ring::pair(8192).unwrap();
        let packets = 40_000_000u64;
        let receiver = scope.spawn(move || {
            pin(1);
            let mut got = 0;
            let mut sum = 0u64;
            while got < packets {
                got += rx.receive(32, |bytes| sum += u64::from(bytes[0])) as u64;
            }
            sum
        });
        let start = Instant::now();
        for _ in 0..packets {
            while tx.push(&PACKET[..32], &[]).is_err() {
                std::hint::spin_loop();
            }
        }
        assert_eq!(receiver.join().unwrap(), packets * 7);
        (round_trip, packets as f64 / start.elapsed().as_secs_f64() / 1e6)
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

/// Round trip of one packet, rate in bursts of `burst`, bandwidth of the longest packets.
fn ports(processes: bool, burst_len: usize) -> (u64, f64, f64) {
    static STOP: AtomicBool = AtomicBool::new(false);
    static ECHO: AtomicBool = AtomicBool::new(true);
    static GOT: AtomicU64 = AtomicU64::new(0);
    STOP.store(false, Ordering::Relaxed);
    ECHO.store(true, Ordering::Relaxed);
    GOT.store(0, Ordering::Relaxed);
    let (mut server, mut client) = pair(processes);
    let address = server.address();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let origin = Instant::now();
            let mut now_ns = 0;
            let mut target = vec![0; 8 << 20];
            let mut at = 0;
            let mut turns = 0u32;
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
                if echo {
                    tx.submit();
                }
                GOT.store(GOT.load(Ordering::Relaxed) + burst.packets.len() as u64, Ordering::Relaxed);
            }
        });
        pin(0);
        let origin = Instant::now();
        let peer = client.resolve(&address).unwrap();
        let mut samples = Vec::new();
        let (rx, tx) = client.split();
        for _ in 0..200_000 {
            let start = Instant::now();
            tx.push(TxPacket { to: peer, head: &PACKET, data: TxData::None });
            tx.submit();
            let mut now_ns = start.duration_since(origin).as_nanos() as u64;
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
            samples.push(start.elapsed().as_nanos() as u64);
        }
        ECHO.store(false, Ordering::Relaxed);
        let before = GOT.load(Ordering::Relaxed);
        let packets = 20_000_000u64;
        let start = Instant::now();
        let mut sent = 0;
        while sent < packets {
            // Room for a burst is what credits see to in real use.
            if sent - (GOT.load(Ordering::Relaxed) - before) > 4096 {
                std::hint::spin_loop();
                continue;
            }
            for _ in 0..burst_len {
                tx.push(TxPacket { to: peer, head: &PACKET, data: TxData::None });
            }
            tx.submit();
            sent += burst_len as u64;
        }
        while GOT.load(Ordering::Relaxed) - before < sent {}
        let rate = sent as f64 / start.elapsed().as_secs_f64() / 1e6;

        let data_len = PACKET_LEN_MAX - 24;
        let mut buffer = client.arena().alloc(8 << 20, data_len).unwrap();
        buffer[..].fill(3);
        let mut frozen = buffer.freeze();
        let tx = client.split().1;
        let before = GOT.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut sent = 0u64;
        let mut bytes = 0u64;
        while start.elapsed() < Duration::from_millis(600) {
            for index in 0..frozen.packets() {
                let range = frozen.packet_range(index);
                let data = TxData::Frozen { buffer: &frozen, start: range.start, len: range.len() };
                tx.push(TxPacket { to: peer, head: &PACKET[..24], data });
                tx.submit();
                bytes += range.len() as u64;
                sent += 1;
                while sent - (GOT.load(Ordering::Relaxed) - before) > 16 {
                    std::hint::spin_loop();
                }
            }
            // The next message is a new one.
            while sent > GOT.load(Ordering::Relaxed) - before {}
            let mut buffer = loop {
                tx.submit();
                match frozen.thaw() {
                    Ok(buffer) => break buffer,
                    Err(share) => frozen = share,
                }
            };
            buffer[..].fill(sent as u8);
            frozen = buffer.freeze();
        }
        while GOT.load(Ordering::Relaxed) - before < sent {}
        let gbps = bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9;
        STOP.store(true, Ordering::Relaxed);
        assert_eq!(client.stats().dropped_total(), 0);
        (median(samples), rate, gbps)
    })
}

fn main() {
    let processes = std::env::args().nth(1).as_deref() == Some("processes");
    println!("{}", if processes { "links as between processes" } else { "links between threads" });
    for _ in 0..3 {
        let (round_trip, rate) = bare_ring();
        print!("ring: round trip {round_trip} ns, {rate:.0} M packets/s   ");
        for burst in [8, 32] {
            let (round_trip, rate, gbps) = ports(processes, burst);
            print!("ports: round trip {round_trip} ns, {rate:.0} M packets/s (bursts of {burst}), {gbps:.0} Gbps   ");
        }
        println!();
    }
}
