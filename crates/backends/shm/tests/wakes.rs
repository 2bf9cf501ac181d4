//! Tests that no wake-up is lost, whatever the timing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sinew_conformance::unique;
use sinew_fabric::{Armed, PacketPort, PacketRx, PacketTx, Readiness, RxBurst, SeededGenerator, TxData, TxPacket};
use sinew_shm::{Hub, ShmPort};

const PATIENCE: Duration = Duration::from_secs(30);

fn pairs(test: &str) -> [(ShmPort, ShmPort); 2] {
    let hub = Hub::new();
    let name = format!("shm://{}?arena=1048576", unique(test));
    let apart = (
        ShmPort::open(&name.parse().unwrap()).unwrap(),
        ShmPort::open(&"shm://?arena=1048576".parse().unwrap()).unwrap(),
    );
    [(hub.port("server?arena=1048576").unwrap(), hub.port("?arena=1048576").unwrap()), apart]
}

/// Says that a thread has ended, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn receive(port: &mut ShmPort) -> usize {
    let mut burst = RxBurst::new(0);
    port.split().0.receive(&mut burst);
    burst.packets.len()
}

#[test]
fn a_packet_wakes_a_sleeping_receiver_whenever_it_is_sent() {
    for (mut server, mut client) in pairs("packet") {
        let address = server.address();
        let packets = 3000u64;
        let (got, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (got, is_over) = (&got, &is_over);
            scope.spawn(move || {
                let _over = Over(is_over);
                let peer = client.resolve(&address).unwrap();
                let mut random = SeededGenerator::new(3);
                for number in 0..packets {
                    let tx = client.split().1;
                    tx.push(TxPacket { to: peer, head: b"wake", data: TxData::None });
                    tx.submit();
                    // The next packet waits until this one has arrived, so each must wake the receiver itself.
                    let since = Instant::now();
                    while got.load(Ordering::Acquire) <= number {
                        assert!(since.elapsed() < PATIENCE, "packet {number} woke nobody");
                        std::thread::yield_now();
                    }
                    for _ in 0..random.below(400) {
                        std::hint::spin_loop();
                    }
                    if random.chance(0.1) {
                        receive(&mut client);
                    }
                    if random.chance(0.02) {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
                client
            });
            let mut random = SeededGenerator::new(4);
            let descriptor = server.descriptor().unwrap();
            let longest_ns = 2 * PATIENCE.as_nanos() as u64;
            while got.load(Ordering::Relaxed) < packets {
                assert!(!is_over.load(Ordering::Relaxed), "the sender has given up");
                let burst = receive(&mut server) as u64;
                got.fetch_add(burst, Ordering::Release);
                if burst == 0 && random.chance(0.5) {
                    server.wait(Some(longest_ns)).unwrap();
                } else if burst == 0 && random.chance(0.5) {
                    // An event loop may be woken for something else first, and may forget to disarm.
                    let armed = server.arm(0).unwrap();
                    if random.chance(0.2) {
                        continue;
                    }
                    if armed != Armed::Ready {
                        descriptor.wait(armed.min_deadline(Some(longest_ns)).timeout_ns(0)).unwrap();
                    }
                    if random.chance(0.8) {
                        server.disarm();
                    }
                }
            }
        });
        assert_eq!(server.stats().rx_packets, packets);
    }
}

#[test]
fn a_waker_ends_the_current_or_the_next_wait() {
    for (mut server, _client) in pairs("waker") {
        let waker = server.waker();
        waker.wake();
        server.wait(None).unwrap();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            waker.wake();
            waker
        });
        server.wait(None).unwrap();
        let waker = thread.join().unwrap();
        drop(server);
        waker.wake();
    }
}

#[test]
fn a_wait_without_news_ends_with_its_time() {
    for (mut server, _client) in pairs("timeout") {
        let since = Instant::now();
        server.wait(Some(3_000_000)).unwrap();
        assert!(since.elapsed() >= Duration::from_millis(3));
        server.wait(Some(0)).unwrap();
    }
}

#[test]
fn many_senders_wake_one_receiver() {
    let hub = Hub::new();
    let mut server = hub.port("server?arena=1048576").unwrap();
    let (senders, packets) = (6u64, 300u64);
    std::thread::scope(|scope| {
        for seed in 0..senders {
            let mut client = hub.port("?arena=1048576").unwrap();
            let address = server.address();
            scope.spawn(move || {
                let mut random = SeededGenerator::new(seed);
                let peer = client.resolve(&address).unwrap();
                for _ in 0..packets {
                    let tx = client.split().1;
                    tx.push(TxPacket { to: peer, head: b"wake", data: TxData::None });
                    tx.submit();
                    receive(&mut client);
                    if random.chance(0.2) {
                        std::thread::sleep(Duration::from_micros(random.below(100)));
                    }
                }
            });
        }
        let since = Instant::now();
        let mut got = 0;
        while got < senders * packets {
            let burst = receive(&mut server) as u64;
            got += burst;
            if burst == 0 {
                server.wait(Some(PATIENCE.as_nanos() as u64)).unwrap();
                assert!(since.elapsed() < PATIENCE);
            }
        }
    });
}
