//! Tests of when the server's thread sleeps.

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use sinew_fabric::{Armed, Clock, Descriptor, PollPolicy, Readiness};
use sinew_mem::Arena;
use sinew_remote_block::Config;
use sinew_remote_memory::{Finished, RamStore, Refused, Request, Status, Store};

/// Time without events after which the server is taken to sleep.
const SILENCE: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_secs(30);
const SPIN_NS: u64 = 100_000;
/// Time by which each reading advances the clock, in ns.
const LOOK_NS: u64 = 1000;

/// A clock that stands still between two readings.
#[derive(Clone, Default)]
struct StepClock(Arc<AtomicU64>);

impl Clock for StepClock {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(LOOK_NS, Ordering::Relaxed)
    }
}

/// A store whose every working turn takes longer than the server spins.
struct SlowStore {
    inner: RamStore,
    time: StepClock,
    idle_turns: u64,
    worked: bool,
    /// Idle turns between the last work and the sleep after it.
    spun: Arc<AtomicU64>,
}

impl Readiness for SlowStore {
    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if std::mem::take(&mut self.worked) {
            self.spun.store(self.idle_turns, Ordering::Release);
        }
        self.inner.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.inner.disarm()
    }
}

impl Store for SlowStore {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        self.inner.submit(request)
    }

    fn turn(&mut self) -> bool {
        let some = self.inner.turn();
        self.idle_turns = if some { 0 } else { self.idle_turns + 1 };
        if some {
            self.worked = true;
            self.time.0.fetch_add(10 * SPIN_NS, Ordering::Relaxed);
        }
        some
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        self.inner.poll(finished, max)
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}

#[test]
fn work_that_takes_longer_than_the_spin_is_not_taken_for_silence() {
    let config = Config { poller: PollPolicy::Adaptive { spin_max_ns: SPIN_NS }, ..Config::default() };
    let (time, spun) = (StepClock::default(), Arc::new(AtomicU64::new(0)));
    let inner = RamStore::new(1 << 20, config.arena_bytes()).unwrap();
    let store = SlowStore { inner, time: time.clone(), idle_turns: 0, worked: false, spun: Arc::clone(&spun) };
    let server = serve_by(time, store, config);
    let mut client = server.client(false);
    for _ in 0..16 {
        assert_eq!(client.read(0, 0, 4096), Ok(vec![0; 4096]));
    }
    while spun.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    // When work is rare, the server spins for an eighth of the time; the store's own time is not idle time.
    let (spun, least) = (spun.load(Ordering::Acquire), SPIN_NS / 8 / LOOK_NS);
    assert!(spun >= least, "it spun {spun} turns");
    server.end();
}

#[test]
fn what_was_done_last_is_looked_at_before_a_long_sleep() {
    let config = Config::default();
    let store = RamStore::new(1 << 20, config.arena_bytes()).unwrap();
    let (looks, seen) = std::sync::mpsc::channel();
    let server = serve_with_callback(Time(Instant::now()), store, config, move |_| {
        let _ = looks.send(());
    });
    let mut client = server.client(false);
    // Looks go on until the server is idle.
    while seen.recv_timeout(SILENCE).is_ok() {}
    assert_eq!(client.write(0, 0, &[7]), Reply::Done);
    assert_eq!(client.write(0, 0, &[8]), Reply::Done);
    // One look comes with the first write, and one after the last.
    seen.recv_timeout(PATIENCE).unwrap();
    seen.recv_timeout(PATIENCE).unwrap();
    server.end();
}
