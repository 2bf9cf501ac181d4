//! The merge queue and the order of requests, behind the lock of a [`Shared`](super::Shared).

use std::ops::Range;

use sinew_fabric::verbs::Slice;
use sinew_mem::MessageBuffer;
use sinew_mem::atomic::Arc;

use super::admission::Admission;
use super::inbox::Inbox;
use super::order::Stripes;
use super::request::{Finished, Op, Request};
use super::stats::EngineStats;

const NONE: u32 = u32::MAX;

/// The buffer of a request.
#[derive(Debug)]
pub(super) enum Buffer {
    /// Somewhere else.
    None,
    Target(MessageBuffer),
    Source(Slice),
}

/// A request in the hands of an engine.
#[derive(Debug)]
pub(super) struct Carried {
    pub key: u32,
    pub owner: u32,
    pub tag: u64,
    pub start: u64,
    pub len: usize,
    pub buffer: Buffer,
}

impl Carried {
    pub fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    pub fn is_write(&self) -> bool {
        matches!(self.buffer, Buffer::Source(_))
    }

    pub fn into_target(self) -> Option<MessageBuffer> {
        match self.buffer {
            Buffer::Target(target) => Some(target),
            _ => None,
        }
    }
}

/// A request that is not over, or a place for one.
struct Entry {
    range: Range<u64>,
    is_write: bool,
    owner: u32,
    tag: u64,
    /// What it has as long as no engine has taken it.
    buffer: Buffer,
    /// Times that it is among the dependents of others.
    blockers: u32,
    /// Behind it in the queue, or among the free places.
    next: u32,
    /// Those that wait for it.
    dependents: Vec<u32>,
}

pub(super) struct State {
    entries: Vec<Entry>,
    free: u32,
    live: usize,
    stripes: Stripes,
    first: u32,
    last: u32,
    queued: usize,
    in_flight_bytes: u64,
    window_bytes: u64,
    admission: Box<dyn Admission>,
    engines: Vec<Option<Arc<Inbox>>>,
    /// Engines that have a way to the donor.
    pub able: usize,
    pub stats: EngineStats,
}

impl State {
    pub fn new(depth: usize, admission: Box<dyn Admission>) -> Self {
        Self {
            entries: Vec::with_capacity(depth),
            free: NONE,
            live: 0,
            stripes: Stripes::new(depth),
            first: NONE,
            last: NONE,
            queued: 0,
            in_flight_bytes: 0,
            window_bytes: admission.window_bytes(),
            admission,
            engines: Vec::new(),
            able: 0,
            stats: EngineStats::default(),
        }
    }

    /// Requests that are not over.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Requests that could be taken, but for the window.
    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Whether an engine would take something.
    pub fn has_something(&self) -> bool {
        self.entries.get(self.first as usize).is_some_and(|entry| self.admits(entry.range.end - entry.range.start))
    }

    #[inline]
    fn admits(&self, len: u64) -> bool {
        self.in_flight_bytes.saturating_add(len) <= self.window_bytes || self.in_flight_bytes == 0
    }

    pub fn join(&mut self, inbox: Arc<Inbox>) -> u32 {
        self.able += 1;
        // Places are not used again: what is in flight for an engine that is gone is for nobody.
        self.engines.push(Some(inbox));
        self.engines.len() as u32 - 1
    }

    /// The engine is gone: what it asked for is done, and told to nobody.
    pub fn leave(&mut self, engine: u32) {
        if let Some(inbox) = self.engines[engine as usize].take() {
            self.stats = inbox.counts.add_to(self.stats);
        }
    }

    pub fn inbox(&self, engine: u32) -> Option<&Arc<Inbox>> {
        self.engines.get(engine as usize)?.as_ref()
    }

    pub fn inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.engines.iter().flatten()
    }

    /// Puts a request into the queue, or behind those that it overlaps. It has bytes, and they lie in the donor's memory.
    #[inline]
    pub fn submit(&mut self, owner: u32, request: Request) {
        let Request { tag, op } = request;
        let (start, len) = (op.at(), op.len() as u64);
        let (is_write, buffer) = match op {
            Op::Read { target, .. } => (false, Buffer::Target(target)),
            Op::Write { source, .. } => (true, Buffer::Source(source)),
        };
        let range = start..start + len;
        *(if is_write { &mut self.stats.writes } else { &mut self.stats.reads }) += 1;
        self.stats.bytes += len;
        self.live += 1;
        let key = self.free;
        let key = match self.entries.get_mut(key as usize) {
            Some(entry) => {
                self.free = entry.next;
                (entry.range, entry.is_write, entry.owner, entry.tag, entry.buffer) =
                    (range.clone(), is_write, owner, tag, buffer);
                entry.next = NONE;
                key
            }
            None => self.grow(Entry {
                range: range.clone(),
                is_write,
                owner,
                tag,
                buffer,
                blockers: 0,
                next: NONE,
                dependents: Vec::new(),
            }),
        };
        let (entries, mut blockers) = (&mut self.entries, 0);
        self.stripes.insert(key, &range, |other| {
            let other = &mut entries[other as usize];
            if other.range.start < range.end && range.start < other.range.end && (is_write || other.is_write) {
                other.dependents.push(key);
                blockers += 1;
            }
        });
        if blockers == 0 {
            return self.enqueue(key);
        }
        self.entries[key as usize].blockers = blockers;
        self.stats.ordered += 1;
    }

    #[inline(never)]
    fn grow(&mut self, entry: Entry) -> u32 {
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    #[inline]
    fn enqueue(&mut self, key: u32) {
        match self.entries.get_mut(self.last as usize) {
            Some(last) => last.next = key,
            None => self.first = key,
        }
        self.last = key;
        self.queued += 1;
    }

    /// Takes what the window admits, until there are `max` in `into`.
    #[inline]
    pub fn take(&mut self, into: &mut impl Extend<Carried>, max: usize) {
        let mut count = 0;
        while count < max {
            let Some(entry) = self.entries.get(self.first as usize) else { break };
            let len = entry.range.end - entry.range.start;
            if !self.admits(len) {
                self.admission.held_back();
                self.window_bytes = self.admission.window_bytes();
                self.stats.held_back += 1;
                break;
            }
            let key = self.first;
            let entry = &mut self.entries[key as usize];
            self.in_flight_bytes += len;
            self.first = std::mem::replace(&mut entry.next, NONE);
            if self.first == NONE {
                self.last = NONE;
            }
            self.queued -= 1;
            count += 1;
            let buffer = std::mem::replace(&mut entry.buffer, Buffer::None);
            let (start, len) = (entry.range.start, len as usize);
            into.extend([Carried { key, owner: entry.owner, tag: entry.tag, start, len, buffer }]);
        }
        self.stats.largest_batch = self.stats.largest_batch.max(count as u64);
    }

    /// Puts what was taken and not posted back to where it came from.
    pub fn give_back(&mut self, carried: Carried) {
        let Carried { key, len, buffer, .. } = carried;
        self.in_flight_bytes -= len as u64;
        self.entries[key as usize].buffer = buffer;
        self.entries[key as usize].next = self.first;
        if self.first == NONE {
            self.last = key;
        }
        self.first = key;
        self.queued += 1;
    }

    /// A request that was taken is over. Those that waited for it alone are in the queue now.
    #[inline]
    pub fn over(&mut self, key: u32, len: u64, latency_ns: u64, now_ns: u64) {
        self.in_flight_bytes -= len;
        self.admission.completed(len, latency_ns, now_ns);
        self.window_bytes = self.admission.window_bytes();
        let entry = &mut self.entries[key as usize];
        self.stripes.remove(key, &entry.range);
        entry.next = self.free;
        self.free = key;
        self.live -= 1;
        if !entry.dependents.is_empty() {
            self.release(key);
        }
    }

    #[inline(never)]
    fn release(&mut self, key: u32) {
        let mut dependents = std::mem::take(&mut self.entries[key as usize].dependents);
        for dependent in dependents.drain(..) {
            let entry = &mut self.entries[dependent as usize];
            entry.blockers -= 1;
            if entry.blockers == 0 {
                self.enqueue(dependent);
            }
        }
        self.entries[key as usize].dependents = dependents;
    }

    /// Ends all requests that no engine has taken; `finish` makes of each what its owner, if there is one, is told.
    pub fn end_all(&mut self, mut finish: impl FnMut(u64, Option<MessageBuffer>) -> Finished) -> Vec<(u32, Finished)> {
        let mut ended = Vec::new();
        for key in 0..self.entries.len() as u32 {
            let entry = &mut self.entries[key as usize];
            // Whoever waits for another is among those that end.
            entry.dependents.clear();
            let target = match std::mem::replace(&mut entry.buffer, Buffer::None) {
                Buffer::None => continue,
                Buffer::Target(target) => Some(target),
                Buffer::Source(_) => None,
            };
            ended.push((entry.owner, finish(entry.tag, target)));
            entry.blockers = 0;
            self.stripes.remove(key, &entry.range);
            entry.next = self.free;
            self.free = key;
            self.live -= 1;
        }
        (self.first, self.last, self.queued) = (NONE, NONE, 0);
        self.stats.failed += ended.len() as u64;
        ended
    }
}
