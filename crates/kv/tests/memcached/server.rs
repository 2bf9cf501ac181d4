//! A memcached server in this process.
#![allow(dead_code)] // each test file uses its part

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sinew_fabric::Waker;
use sinew_fabric::readiness::{Alarm, wait_on};
use sinew_kv::Partitions;
use sinew_kv::memcached::{Door, DoorConfig, Listener};
use sinew_store::cache::{Cache, CacheConfig};

/// The time at which servers start, in nanoseconds.
pub const NOW_NS: u64 = 99 * 1_000_000_000;

/// Doors, each on a thread of its own.
pub struct Server {
    pub address: String,
    stopping: Arc<AtomicBool>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<Door>>,
}

/// What the threads do besides serving their doors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Beside {
    Nothing,
    /// They also sleep on an alarm, until something wakes them.
    AnAlarm,
}

impl Server {
    pub fn start(address: &str, threads: usize, config: DoorConfig) -> Self {
        Self::start_beside(Beside::Nothing, address, threads, config)
    }

    pub fn start_beside(beside: Beside, address: &str, threads: usize, config: DoorConfig) -> Self {
        let listener = Listener::bind(address).unwrap();
        let address = listener.address().to_owned();
        let doors = Door::open(listener, &Partitions::new(threads), 0, config).unwrap();
        let stopping = Arc::new(AtomicBool::new(false));
        let wakers = doors.iter().map(Door::waker).collect();
        let start = |mut door: Door| {
            let stopping = Arc::clone(&stopping);
            std::thread::spawn(move || {
                let config = CacheConfig { items: 10_000, memory_bytes: 24 << 20, ..CacheConfig::default() };
                let mut cache = Cache::new(&config).unwrap();
                let mut alarm = Alarm::new().unwrap();
                let began = Instant::now();
                let now_ns = || NOW_NS + began.elapsed().as_nanos() as u64;
                while !stopping.load(Ordering::Relaxed) {
                    match beside {
                        Beside::Nothing => {
                            door.wait(Duration::from_millis(20));
                            door.turn(&mut cache, now_ns());
                        }
                        Beside::AnAlarm => {
                            wait_on(&mut [&mut alarm, &mut door], 0, None).unwrap();
                            while door.turn_shared(&mut cache, now_ns()) {}
                        }
                    }
                }
                door
            })
        };
        let threads = doors.into_iter().map(start).collect();
        Self { address, stopping, wakers, threads }
    }

    pub fn tcp(threads: usize) -> Self {
        Self::start("127.0.0.1:0", threads, DoorConfig::default())
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub fn tell_to_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::wake);
    }

    pub fn stop(mut self) -> Vec<Door> {
        self.tell_to_stop();
        std::mem::take(&mut self.threads).into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tell_to_stop();
    }
}
