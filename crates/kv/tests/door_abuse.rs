//! Clients that stall, next to others that behave. The test has a process of its own, since it measures memory.
//!
//! `DOOR_ABUSE=full` runs as many stalled clients as a server with the default limits must withstand.

#[path = "memcached/server.rs"]
mod server;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use server::Server;
use sinew_kv::memcached::DoorConfig;

const VALUE_LEN: usize = 1_000_000;
/// Memory of the server's tables once they are full.
const TABLE_BYTES: usize = 24 << 20;

/// Serialises the tests: they measure.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_full_size() -> bool {
    std::env::var("DOOR_ABUSE").is_ok_and(|size| size == "full")
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Good {
    Small,
    Reader,
    Writer,
}

/// What a well-behaved client sends again and again, and the answer it expects.
fn exchange(good: Good, number: usize) -> (Vec<u8>, Vec<u8>) {
    let value = vec![b'v'; VALUE_LEN];
    let head = format!("set w{number} 0 0 {VALUE_LEN}\r\n");
    match good {
        Good::Small => (
            format!("set s{number} 0 0 5\r\nhello\r\nget s{number}\r\n").into_bytes(),
            format!("STORED\r\nVALUE s{number} 0 5\r\nhello\r\nEND\r\n").into_bytes(),
        ),
        Good::Reader => (
            format!("get big{}\r\n", number % 4).into_bytes(),
            [format!("VALUE big{} 0 {VALUE_LEN}\r\n", number % 4).as_bytes(), &value, b"\r\nEND\r\n"].concat(),
        ),
        Good::Writer => ([head.as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n".to_vec()),
    }
}

/// Repeats the exchange until told to stop, and counts the repetitions.
fn go_on(mut stream: TcpStream, good: Good, number: usize, count: &AtomicU64, stop: &AtomicBool) {
    let (request, expected) = exchange(good, number);
    let mut heard = vec![0; expected.len()];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&request).unwrap_or_else(|error| panic!("{good:?} {number}: {error}"));
        stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("{good:?} {number}: {error}"));
        assert!(heard == expected, "{good:?} {number}: another answer");
        count.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends as many bytes as the connection accepts at once.
fn say_some(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(len) => written += len,
            // The server may already have closed the connection, as it should.
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return,
        }
    }
}

/// Runs well-behaved clients next to `abusers` clients that each send `abuse` and then stall, in two rounds.
fn good_clients_stay(abusers: usize, connection_memory: usize, abuse: &[u8]) {
    let _alone = alone();
    for threads in [1, 2] {
        let before = resident();
        let config = DoorConfig { connection_memory, ..DoorConfig::default() };
        let server = Server::start("127.0.0.1:0", threads, config);
        let (set, stored) = exchange(Good::Writer, 0);
        let mut setup = server.connect();
        for key in 0..4 {
            let set = [format!("set big{key}").as_bytes(), &set["set w0".len()..]].concat();
            setup.write_all(&set).unwrap();
            setup.read_exact(&mut vec![0; stored.len()]).unwrap();
        }
        let goods = [Good::Small, Good::Small, Good::Reader, Good::Writer];
        let counts: Vec<AtomicU64> = goods.iter().map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        let rates = |time: Duration| -> Vec<u64> {
            let before: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            std::thread::sleep(time);
            counts.iter().zip(before).map(|(count, before)| count.load(Ordering::Relaxed) - before).collect()
        };
        let most = std::thread::scope(|scope| {
            // Ends the clients even if an assertion fails.
            let ends = Ends(&stop);
            for (number, good) in goods.into_iter().enumerate() {
                let (stream, count, stop) = (server.connect(), &counts[number], &stop);
                scope.spawn(move || go_on(stream, good, number, count, stop));
            }
            let alone = rates(Duration::from_secs(1));
            let mut most = 0;
            for _ in 0..2 {
                let mut stalled: Vec<_> = (0..abusers).map(|_| server.connect()).collect();
                stalled.iter_mut().for_each(|stream| say_some(stream, abuse));
                let beside = rates(Duration::from_secs(2));
                most = most.max(resident().saturating_sub(before));
                eprintln!(
                    "{threads} threads: {alone:?} in 1 s before, {beside:?} in 2 s beside {abusers}, {} MB",
                    most >> 20
                );
                for (alone, beside) in alone.iter().zip(&beside) {
                    assert!(*beside > 0, "{threads} threads: {alone} in 1 s before, {beside} in 2 s beside them");
                    // The ratio also depends on the machine.
                    assert!(!is_full_size() || beside >= alone, "{threads} threads: {alone} before, {beside} beside");
                }
                // Clients that connect now are served, too.
                for good in [Good::Small, Good::Reader, Good::Writer] {
                    let (request, expected) = exchange(good, 9);
                    let (mut stream, mut heard) = (server.connect(), vec![0; expected.len()]);
                    stream.write_all(&request).unwrap();
                    stream.read_exact(&mut heard).unwrap();
                    assert!(heard == expected);
                }
            }
            drop(ends);
            most
        });
        // The clients' own buffers, and the allocator's overhead.
        let bound = TABLE_BYTES * threads + connection_memory + connection_memory / 10 + (24 << 20);
        assert!(most < bound, "{threads} threads: {} MB of {} MB", most >> 20, bound >> 20);
        let deadline = Instant::now() + Duration::from_secs(10);
        let doors = loop {
            let connection_bytes = { stats(&server) };
            if connection_bytes < connection_memory / 8 {
                break server.stop();
            }
            assert!(Instant::now() < deadline, "{connection_bytes} bytes are not given back");
            std::thread::sleep(Duration::from_millis(100));
        };
        assert!(doors[0].counters().iter().any(|counters| counters.memory_waits.get() > 0), "it came to that");
    }
}

/// Stops the clients when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Bytes in connections' buffers, as `stats` shows them.
fn stats(server: &Server) -> usize {
    let mut stream = server.connect();
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("STAT connection_bytes ")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn uploads_that_stop_cost_good_clients_nothing() {
    let (abusers, memory) = if is_full_size() { (1000, 64 << 20) } else { (100, 16 << 20) };
    let abuse = [b"set x 0 0 1000000\r\n", &vec![b'v'; 900_000][..]].concat();
    good_clients_stay(abusers, memory, &abuse);
}

#[test]
fn clients_that_do_not_read_cost_good_clients_nothing() {
    let (abusers, memory) = if is_full_size() { (400, 64 << 20) } else { (60, 16 << 20) };
    good_clients_stay(abusers, memory, &b"get big0\r\nget big1\r\nget big2\r\nget big3\r\n".repeat(20));
}

#[test]
fn a_crowd_that_waits_for_memory_does_not_have_all_of_it() {
    let _alone = alone();
    let abuse = [b"set x 0 0 1000000\r\n", &vec![b'v'; 200_000][..]].concat();
    for threads in [1, 2] {
        // The least memory possible. Some of the crowd have long buffers, and even the short buffers of all of them
        // together are too much.
        let config = DoorConfig { connection_memory: 4 << 20, ..DoorConfig::default() };
        let server = Server::start("127.0.0.1:0", threads, config);
        let crowd: Vec<_> = (0..420).map(|_| server.connect()).collect();
        for mut stream in &crowd {
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(&abuse).unwrap();
        }
        std::thread::sleep(Duration::from_millis(300));
        for number in 0..2 {
            for good in [Good::Small, Good::Writer, Good::Reader] {
                let (request, expected) = match good {
                    // The value that the writer has just stored.
                    Good::Reader => (
                        format!("get w{number}\r\n").into_bytes(),
                        [
                            &format!("VALUE w{number} 0 {VALUE_LEN}\r\n").into_bytes(),
                            &vec![b'v'; VALUE_LEN][..],
                            b"\r\nEND\r\n",
                        ]
                        .concat(),
                    ),
                    _ => exchange(good, number),
                };
                let (mut stream, mut heard) = (server.connect(), vec![0; expected.len()]);
                stream.write_all(&request).unwrap();
                stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("{threads} threads, {good:?}: {error}"));
                assert!(heard == expected);
            }
        }
        drop(crowd);
        drop(server.stop());
    }
}
