//! The merge queue under every interleaving that loom finds:
//! `RUSTFLAGS="--cfg loom" cargo test -p sinew-remote-memory --release --test queue_loom`. Engines, queue, inboxes and
//! window are the real ones; the path to the donor is an array behind a lock.
#![cfg(loom)]

use std::sync::Mutex;

use loom::sync::Arc;
use loom::thread;
use sinew_fabric::verbs::Scatter;
use sinew_fabric::{Armed, Descriptor, Readiness, WakeTarget, Waker};
use sinew_mem::{AllocError, Arena, MessageBuffer};
use sinew_remote_memory::engine::{
    Admission, Done, Engine, EngineConfig, FailureCause, Finished, Limits, Op, Path, PathJob, Request, Shared,
    SharedConfig, StaticWindow, Unlimited,
};

const LEN: usize = 4;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(test);
}

/// The donor's memory, and the ranges of it in flight. Its lock is never held while another thread runs.
#[derive(Default)]
struct Donor {
    memory: [u8; LEN],
    in_flight: Vec<(std::ops::Range<usize>, bool)>,
}

struct Awake;

impl WakeTarget for Awake {
    fn wake(&self) {}
}

/// A path whose operations are in flight until they are polled for, and are carried out then.
struct LockedPath {
    donor: std::sync::Arc<Mutex<Donor>>,
    arena: Arena,
    pushed: Vec<(u32, PathJob)>,
}

fn range_of(job: &PathJob) -> (std::ops::Range<usize>, bool) {
    let (at, len, is_write) = match job {
        PathJob::Read { at, targets } => (*at, targets.iter().map(|target| target.len()).sum::<usize>(), false),
        PathJob::Write { at, sources } => (*at, sources.iter().map(|source| source.len).sum(), true),
    };
    (at as usize..at as usize + len, is_write)
}

impl Readiness for LockedPath {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }

    fn arm(&mut self, _: u64) -> std::io::Result<Armed> {
        Ok(Armed::Ready)
    }

    fn disarm(&mut self) -> bool {
        false
    }
}

impl Path for LockedPath {
    fn limits(&self) -> Limits {
        Limits { op_len_max: LEN, pieces_max: 2, depth: 4 }
    }

    fn takes_target(&self, target: &MessageBuffer) -> bool {
        target.is_from(&self.arena)
    }

    fn takes_source(&self, source: &sinew_fabric::verbs::Slice) -> bool {
        source.buffer.is_from(&self.arena)
    }

    fn stage(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(len, len)
    }

    fn room(&self) -> usize {
        4 - self.pushed.len()
    }

    fn push(&mut self, id: u32, job: PathJob) {
        let (range, is_write) = range_of(&job);
        let mut donor = self.donor.lock().unwrap();
        let overlaps = |(other, writes): &&(std::ops::Range<usize>, bool)| {
            other.start < range.end && range.start < other.end && (is_write || *writes)
        };
        assert!(donor.in_flight.iter().find(overlaps).is_none(), "{range:?} is in flight twice: {:?}", donor.in_flight);
        donor.in_flight.push((range, is_write));
        self.pushed.push((id, job));
    }

    fn ring(&mut self) {}

    fn poll(&mut self, over: &mut impl FnMut(Done)) -> bool {
        let any = !self.pushed.is_empty();
        for (id, job) in self.pushed.drain(..) {
            let (range, is_write) = range_of(&job);
            let mut donor = self.donor.lock().unwrap();
            let at = donor.in_flight.iter().position(|one| *one == (range.clone(), is_write)).unwrap();
            donor.in_flight.swap_remove(at);
            let mut bytes = &mut donor.memory[range];
            let mut targets = Scatter::new();
            match job {
                PathJob::Read { targets: mut empty, .. } => {
                    for target in &mut empty {
                        let (from, rest) = bytes.split_at_mut(target.len());
                        target.copy_from_slice(from);
                        bytes = rest;
                    }
                    targets = empty;
                }
                PathJob::Write { sources, .. } => {
                    for source in &sources {
                        let (to, rest) = bytes.split_at_mut(source.len);
                        to.copy_from_slice(source.bytes());
                        bytes = rest;
                    }
                }
            }
            drop(donor);
            over(Done { id, error: None, targets });
        }
        any
    }

    fn error(&self) -> Option<&FailureCause> {
        None
    }

    fn close(&mut self) {}

    fn waker(&self) -> Waker {
        Waker::new(std::sync::Arc::new(Awake))
    }
}

struct World {
    donor: std::sync::Arc<Mutex<Donor>>,
    shared: Arc<Shared>,
}

impl World {
    fn new(admission: impl Admission + 'static) -> Self {
        let shared = Shared::new("donor", LEN as u64, admission, SharedConfig { depth: 8 });
        Self { donor: std::sync::Arc::default(), shared }
    }

    fn user(&self) -> User {
        let arena = Arena::private(64 << 10).unwrap();
        let path = LockedPath { donor: self.donor.clone(), arena: arena.clone(), pushed: Vec::new() };
        User { engine: Engine::new(&self.shared, path, EngineConfig::default()), arena, finished: Vec::new() }
    }

    fn has(&self) -> [u8; LEN] {
        let donor = self.donor.lock().unwrap();
        assert!(donor.in_flight.is_empty() && self.shared.unfinished() == 0 && self.shared.in_flight_bytes() == 0);
        donor.memory
    }
}

/// A thread's engine.
struct User {
    engine: Engine<LockedPath>,
    arena: Arena,
    finished: Vec<Finished>,
}

impl User {
    fn write(&mut self, tag: u64, at: u64, byte: u8) {
        let mut buffer = self.arena.alloc(1, 1).unwrap();
        buffer[0] = byte;
        self.engine.submit(Request { tag, op: Op::Write { at, source: buffer.freeze().into() } }).unwrap();
    }

    fn read(&mut self, tag: u64, at: u64, len: usize) {
        let target = self.arena.alloc(len, len).unwrap();
        self.engine.submit(Request { tag, op: Op::Read { at, target } }).unwrap();
    }

    /// Turns until `count` of its own requests are finished, and it holds none of others.
    fn finish(&mut self, count: usize) {
        while self.finished.len() < count || !self.engine.is_idle() {
            let busy = self.engine.turn(1);
            self.engine.poll(&mut self.finished, usize::MAX);
            if !busy {
                thread::yield_now();
            }
        }
        self.finished.sort_by_key(|one| one.tag);
        let tags: Vec<u64> = self.finished.iter().map(|one| one.tag).collect();
        assert_eq!(tags, (0..count as u64).collect::<Vec<_>>(), "each request is finished once");
        assert!(self.finished.iter().all(|one| one.result.is_ok()));
    }

    fn bytes(&self, tag: usize) -> &[u8] {
        self.finished[tag].target.as_deref().unwrap()
    }
}

#[test]
fn a_read_sees_the_write_before_it_whichever_thread_carries_them_out() {
    model(|| {
        let world = World::new(Unlimited);
        let (mut first, mut second) = (world.user(), world.user());
        let other = thread::spawn(move || {
            second.write(0, 1, 2);
            second.finish(1);
        });
        first.write(0, 1, 1);
        first.read(1, 1, 1);
        first.finish(2);
        other.join().unwrap();
        let last = world.has()[1];
        // The other's write came before both of ours, between them, or after them.
        assert!(first.bytes(1) == [1] || (first.bytes(1), last) == (&[2][..], 2), "{:?}, {last}", first.bytes(1));
    });
}

#[test]
fn what_a_full_window_holds_back_is_over_once_and_in_order() {
    model(|| {
        let world = World::new(StaticWindow { bytes: 1 });
        let (mut first, mut second) = (world.user(), world.user());
        let other = thread::spawn(move || {
            second.write(0, 2, 3);
            second.finish(1);
        });
        first.write(0, 0, 1);
        first.write(1, 1, 2);
        first.finish(2);
        other.join().unwrap();
        assert_eq!(world.has(), [1, 2, 3, 0]);
    });
}

#[test]
fn an_engine_that_is_dropped_loses_nobodys_requests() {
    model(|| {
        let world = World::new(Unlimited);
        let (mut first, mut second) = (world.user(), world.user());
        let other = thread::spawn(move || {
            second.write(0, 0, 7);
            // It may have taken the other's request, or posted it, or left its own in the queue.
            second.engine.turn(1);
        });
        first.write(0, 1, 1);
        while first.finished.is_empty() || !first.engine.is_idle() {
            first.engine.turn(1);
            first.engine.poll(&mut first.finished, usize::MAX);
            thread::yield_now();
        }
        other.join().unwrap();
        first.engine.turn(1);
        while !first.engine.is_idle() || world.shared.unfinished() > 0 {
            first.engine.turn(1);
            first.engine.poll(&mut first.finished, usize::MAX);
        }
        let [one] = &first.finished[..] else { panic!("{:?}", first.finished) };
        assert_eq!(one.tag, 0);
    });
}
