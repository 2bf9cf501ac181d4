//! A store with faults, and a clock.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sinew_fabric::readiness::{Alarm, no_descriptor};
use sinew_fabric::{Armed, Clock, Descriptor, Generator, Readiness, SeededGenerator};
use sinew_mem::Arena;
use sinew_remote_memory::store::check;
use sinew_remote_memory::{Finished, Job, Refused, Request, Status, Store, StoreError};

pub const PAGE: usize = sinew_far_memory::PAGE;

/// A clock that counts from its creation.
pub struct Watch(Instant);

impl Watch {
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Watch {
    fn now_ns(&self) -> u64 {
        if cfg!(miri) { 0 } else { self.0.elapsed().as_nanos() as u64 }
    }
}

/// Faults of a store, and a record of its requests.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Turns until a request is finished, at most.
    pub delay: u64,
    /// Whether requests finish in another order than they arrived.
    pub reorders: bool,
    /// One in this many reads fails, at random; 0: none.
    pub bad_reads: u64,
    /// One in this many writes fails, at random; 0: none.
    pub bad_writes: u64,
    /// Pages whose copies are all lost.
    pub lost: BTreeSet<u64>,
    /// Requests that it holds at once.
    pub requests_max: usize,
    /// Pages that were read, in order.
    pub reads: Vec<u64>,
    /// Pages that were written, in order.
    pub writes: Vec<u64>,
    /// Number of reads submitted before each turn, where there were any.
    pub batches: Vec<usize>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            delay: 0,
            reorders: false,
            bad_reads: 0,
            bad_writes: 0,
            lost: BTreeSet::new(),
            requests_max: 64,
            reads: Vec::new(),
            writes: Vec::new(),
            batches: Vec::new(),
        }
    }
}

/// A test's access to a store.
#[derive(Clone, Debug, Default)]
pub struct FaultsHandle {
    faults: Arc<Mutex<Faults>>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl FaultsHandle {
    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store in memory that is late, fails and loses pages as told. Requests take effect in the order of their
/// submission.
pub struct FaultyStore {
    hold: FaultsHandle,
    len: u64,
    arena: Arena,
    /// `None` under miri, whose `epoll` lacks what an alarm needs.
    alarm: Option<Alarm>,
    random: SeededGenerator,
    /// Finished requests, each with the turn after which it is reported, and the source of a write.
    delayed: Vec<(u64, Finished, Option<sinew_fabric::verbs::Slice>)>,
    turns: u64,
    fresh_reads: usize,
}

impl FaultyStore {
    pub fn new(pages: usize, arena_bytes: usize, seed: u64, faults: Faults) -> (Self, FaultsHandle) {
        let hold =
            FaultsHandle { faults: Arc::new(Mutex::new(faults)), bytes: Arc::new(Mutex::new(vec![0; pages * PAGE])) };
        let store = Self {
            hold: hold.clone(),
            len: (pages * PAGE) as u64,
            arena: Arena::private(arena_bytes).unwrap(),
            alarm: (!cfg!(miri)).then(|| Alarm::new().unwrap()),
            random: SeededGenerator::new(seed),
            delayed: Vec::with_capacity(256),
            turns: 0,
            fresh_reads: 0,
        };
        (store, hold)
    }

    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.random.next_u64().is_multiple_of(n)
    }
}

impl Readiness for FaultyStore {
    fn descriptor(&self) -> Option<Descriptor> {
        self.alarm.as_ref().map(Alarm::descriptor)
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        match &mut self.alarm {
            Some(alarm) if self.delayed.is_empty() => alarm.arm(now_ns),
            Some(_) => Ok(Armed::Ready),
            None => Err(no_descriptor()),
        }
    }

    fn disarm(&mut self) -> bool {
        self.alarm.as_mut().is_some_and(Alarm::disarm)
    }
}

impl Store for FaultyStore {
    fn len(&self) -> u64 {
        self.len
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        if let Err(error) = check(&request.job, self.len) {
            return Err(Refused::Never { error, request });
        }
        let hold = self.hold.clone();
        let mut faults = hold.faults();
        if self.delayed.len() >= faults.requests_max {
            return Err(Refused::Busy(request));
        }
        let mut bytes = hold.bytes();
        let Request { tag, job } = request;
        let page = |at: u64| at / PAGE as u64;
        let broken = || StoreError::Unavailable("told to fail".into());
        let (mut target, mut source_of, mut result) = (None, None, Ok(()));
        match job {
            Job::Read { at, target: mut buffer } => {
                let pages = page(at)..=page(at + buffer.len() as u64 - 1);
                faults.reads.extend(pages.clone());
                self.fresh_reads += 1;
                if let Some(lost) = faults.lost.range(pages).next() {
                    result = Err(StoreError::Lost { at: lost * PAGE as u64, why: "told to lose it".into() });
                    buffer[..].fill(0xEE);
                } else if self.one_in(faults.bad_reads) {
                    result = Err(broken());
                    buffer[..].fill(0xEE);
                } else {
                    let len = buffer.len();
                    buffer.copy_from_slice(&bytes[at as usize..at as usize + len]);
                }
                target = Some(buffer);
            }
            Job::Write { at, source } => {
                faults.writes.extend(page(at)..=page(at + source.len as u64 - 1));
                let fails = self.one_in(faults.bad_writes);
                if fails {
                    result = Err(broken());
                }
                if !fails || self.one_in(2) {
                    bytes[at as usize..at as usize + source.len].copy_from_slice(source.bytes());
                }
                source_of = Some(source);
            }
            Job::Discard { at, len } => bytes[at as usize..(at + len) as usize].fill(0),
            Job::Flush => {}
        }
        let delay = if faults.delay == 0 { 0 } else { self.random.next_u64() % (faults.delay + 1) };
        self.delayed.push((self.turns + delay, Finished { tag, result, target }, source_of));
        Ok(())
    }

    fn turn(&mut self) -> bool {
        self.turns += 1;
        if self.fresh_reads > 0 {
            self.hold.faults().batches.push(std::mem::take(&mut self.fresh_reads));
        }
        // Requests only need more turns.
        !self.delayed.is_empty()
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        let reorders = self.hold.faults().reorders;
        let mut count = 0;
        while count < max {
            let due = |(turn, ..): &(u64, Finished, _)| *turn < self.turns;
            let mut all = (0..self.delayed.len()).filter(|at| due(&self.delayed[*at]));
            let Some(at) = (if reorders { all.next_back() } else { all.next() }) else { break };
            let (_, over, source) = self.delayed.remove(at);
            drop(source);
            finished.push(over);
            count += 1;
        }
        count
    }

    fn status(&self) -> Status {
        Status::Whole
    }
}
