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
/// Place of the lone request: one that was submitted while no other was unfinished.
const LONE: u32 = 0;

/// The buffer of a request.
#[derive(Debug)]
pub(super) enum Buffer {
    /// The buffer is elsewhere.
    None,
    Target(MessageBuffer),
    Source(Slice),
}

/// A request that an engine has taken.
#[derive(Debug)]
pub(super) struct TakenRequest {
    pub key: u32,
    pub start: u64,
    pub len: usize,
    pub buffer: Buffer,
}

impl TakenRequest {
    pub fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    #[inline]
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

/// An unfinished request, or a free place.
struct Entry {
    range: Range<u64>,
    is_write: bool,
    owner: u32,
    tag: u64,
    /// The buffer, until an engine takes the request.
    buffer: Buffer,
    /// Unfinished requests that it must wait for.
    blockers: u32,
    /// The next in the queue, or the next free place.
    next: u32,
    /// Requests that wait for this one.
    dependents: Vec<u32>,
}

pub(super) struct State {
    entries: Vec<Entry>,
    free: u32,
    unfinished: usize,
    stripes: Stripes,
    /// Whether the lone request is not listed in the stripes. It is left out as long as there is no other to compare it
    /// with.
    is_hidden: bool,
    first: u32,
    last: u32,
    queued: usize,
    in_flight_bytes: u64,
    window_bytes: u64,
    admission: Box<dyn Admission>,
    learns: bool,
    engines: Vec<Option<Arc<Inbox>>>,
    /// Engines whose path to the donor works.
    pub working_engines: usize,
    pub stats: EngineStats,
}

impl State {
    pub fn new(depth: usize, admission: Box<dyn Admission>) -> Self {
        Self {
            entries: {
                let mut entries = Vec::with_capacity(depth + 1);
                entries.push(Entry {
                    range: 0..1,
                    is_write: false,
                    owner: NONE,
                    tag: 0,
                    buffer: Buffer::None,
                    blockers: 0,
                    next: NONE,
                    dependents: Vec::new(),
                });
                entries
            },
            free: NONE,
            unfinished: 0,
            stripes: Stripes::new(depth + 1),
            is_hidden: false,
            first: NONE,
            last: NONE,
            queued: 0,
            in_flight_bytes: 0,
            window_bytes: admission.window_bytes(),
            learns: admission.learns(),
            admission,
            engines: Vec::new(),
            working_engines: 0,
            stats: EngineStats::default(),
        }
    }

    /// Unfinished requests.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Requests in the queue, which only the window can hold back.
    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Whether there are requests, but no engine whose path works.
    pub fn has_no_engine(&self) -> bool {
        self.working_engines == 0 && self.unfinished > 0
    }

    /// Whether an engine could take a request now.
    pub fn has_something(&self) -> bool {
        self.entries.get(self.first as usize).is_some_and(|entry| self.admits(entry.range.end - entry.range.start))
    }

    #[inline]
    fn admits(&self, len: u64) -> bool {
        self.in_flight_bytes.saturating_add(len) <= self.window_bytes || self.in_flight_bytes == 0
    }

    pub fn join(&mut self, inbox: Arc<Inbox>) -> u32 {
        self.working_engines += 1;
        // Places are never reused, so a result for an engine that has left goes to no other.
        self.engines.push(Some(inbox));
        self.engines.len() as u32 - 1
    }

    /// Removes an engine. Its requests are still done, but reported to nobody.
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

    /// Takes a request that was submitted while no other was unfinished, and that its engine posts at once. It must not
    /// be empty, and must lie in the donor's memory.
    #[inline]
    pub fn take_lone(&mut self, owner: u32, Request { tag, op }: Request) -> TakenRequest {
        let (start, len) = (op.at(), op.len());
        let (is_write, buffer) = match op {
            Op::Read { target, .. } => (false, Buffer::Target(target)),
            Op::Write { source, .. } => (true, Buffer::Source(source)),
        };
        *(if is_write { &mut self.stats.writes } else { &mut self.stats.reads }) += 1;
        self.stats.bytes += len as u64;
        self.count_taken(1);
        self.unfinished = 1;
        self.is_hidden = true;
        self.in_flight_bytes = len as u64;
        let entry = &mut self.entries[LONE as usize];
        entry.range = start..start + len as u64;
        (entry.is_write, entry.owner, entry.tag) = (is_write, owner, tag);
        TakenRequest { key: LONE, start, len, buffer }
    }

    /// Ends the lone request, which was posted and succeeded, and returns its tag. `None` if others were submitted
    /// meanwhile, so that it must be ended like them.
    #[inline]
    pub fn end_lone(&mut self, posted_ns: u64, now_ns: u64) -> Option<u64> {
        if !self.is_hidden {
            return None;
        }
        if self.learns {
            self.learn(self.in_flight_bytes, posted_ns, now_ns);
        }
        (self.is_hidden, self.unfinished, self.in_flight_bytes) = (false, 0, 0);
        Some(self.entries[LONE as usize].tag)
    }

    #[inline(never)]
    fn learn(&mut self, len: u64, posted_ns: u64, now_ns: u64) {
        self.admission.completed(len, now_ns.saturating_sub(posted_ns), now_ns);
        self.window_bytes = self.admission.window_bytes();
    }

    /// Lists the lone request in the stripes, because there are others to compare it with now.
    #[inline(never)]
    fn list_lone(&mut self) {
        self.is_hidden = false;
        self.stripes.insert(LONE, &self.entries[LONE as usize].range, |_| {});
    }

    /// Frees the place of a finished request.
    #[inline]
    fn free_entry(&mut self, key: u32) {
        self.unfinished -= 1;
        let entry = &mut self.entries[key as usize];
        if key == LONE {
            // The place is kept for the next lone request.
            if !std::mem::take(&mut self.is_hidden) {
                self.stripes.remove(key, &entry.range);
            }
            return;
        }
        self.stripes.remove(key, &entry.range);
        entry.next = self.free;
        self.free = key;
    }

    /// Puts a request into the queue, or behind those that it overlaps. It must not be empty, and must lie in the
    /// donor's memory.
    #[inline]
    pub fn submit(&mut self, owner: u32, request: Request) {
        let Request { tag, op } = request;
        let (start, len) = (op.at(), op.len() as u64);
        let (is_write, buffer) = match op {
            Op::Read { target, .. } => (false, Buffer::Target(target)),
            Op::Write { source, .. } => (true, Buffer::Source(source)),
        };
        if self.is_hidden {
            self.list_lone();
        }
        let range = start..start + len;
        *(if is_write { &mut self.stats.writes } else { &mut self.stats.reads }) += 1;
        self.stats.bytes += len;
        self.unfinished += 1;
        let key = self.free;
        let key = match self.entries.get_mut(key as usize) {
            Some(entry) => {
                self.free = entry.next;
                (entry.range, entry.is_write, entry.owner, entry.tag, entry.buffer) =
                    (range.clone(), is_write, owner, tag, buffer);
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
        if self.first == NONE {
            self.first = key;
        } else {
            self.entries[self.last as usize].next = key;
        }
        // Only the last one's `next` matters here, and `last` means something only while there is a `first`.
        self.entries[key as usize].next = NONE;
        self.last = key;
        self.queued += 1;
    }

    /// Whether the queue holds a request.
    #[inline]
    pub fn has_queued(&self) -> bool {
        self.first != NONE
    }

    /// Takes the first request in the queue, if there is one and the window admits it.
    #[inline]
    pub fn take_first(&mut self) -> Option<TakenRequest> {
        let key = self.first;
        let (in_flight, window) = (self.in_flight_bytes, self.window_bytes);
        let entry = self.entries.get_mut(key as usize)?;
        let (start, len) = (entry.range.start, entry.range.end - entry.range.start);
        if in_flight.saturating_add(len) > window && in_flight > 0 {
            self.hold_back();
            return None;
        }
        self.in_flight_bytes = in_flight + len;
        self.first = entry.next;
        self.queued -= 1;
        let buffer = std::mem::replace(&mut entry.buffer, Buffer::None);
        Some(TakenRequest { key, start, len: len as usize, buffer })
    }

    #[inline(never)]
    fn hold_back(&mut self) {
        self.stats.held_back += 1;
        if self.learns {
            self.admission.held_back();
            self.window_bytes = self.admission.window_bytes();
        }
    }

    /// Records how many requests were taken together.
    #[inline]
    pub fn count_taken(&mut self, count: u64) {
        if count > self.stats.largest_batch {
            self.stats.largest_batch = count;
        }
    }

    /// Puts a request that was taken, but not posted, back at the head of the queue.
    pub fn give_back(&mut self, carried: TakenRequest) {
        let TakenRequest { key, len, buffer, .. } = carried;
        self.in_flight_bytes -= len as u64;
        self.entries[key as usize].buffer = buffer;
        self.entries[key as usize].next = self.first;
        if self.first == NONE {
            self.last = key;
        }
        self.first = key;
        self.queued += 1;
    }

    /// Ends a request that was taken, and queues those that waited for no other. `times` holds when it was posted and
    /// the time now, in ns, if it succeeded. Returns its owner and its tag.
    #[inline]
    pub fn complete(&mut self, key: u32, times: Option<(u64, u64)>) -> (u32, u64) {
        let entry = &self.entries[key as usize];
        let len = entry.range.end - entry.range.start;
        self.in_flight_bytes -= len;
        let owner_and_tag = (entry.owner, entry.tag);
        let has_dependents = !entry.dependents.is_empty();
        if self.learns
            && let Some((posted_ns, now_ns)) = times
        {
            self.learn(len, posted_ns, now_ns);
        }
        self.free_entry(key);
        if has_dependents {
            self.release(key);
        }
        owner_and_tag
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

    /// Ends all requests that no engine has taken. `finish` makes the result for each; the caller passes it to the
    /// owner, if there is one.
    pub fn end_all(&mut self, mut finish: impl FnMut(u64, Option<MessageBuffer>) -> Finished) -> Vec<(u32, Finished)> {
        let mut ended = Vec::new();
        for key in 0..self.entries.len() as u32 {
            let entry = &mut self.entries[key as usize];
            // A request that waits for another ends too.
            entry.dependents.clear();
            let target = match std::mem::replace(&mut entry.buffer, Buffer::None) {
                Buffer::None => continue,
                Buffer::Target(target) => Some(target),
                Buffer::Source(_) => None,
            };
            ended.push((entry.owner, finish(entry.tag, target)));
            entry.blockers = 0;
            self.free_entry(key);
        }
        (self.first, self.last, self.queued) = (NONE, NONE, 0);
        self.stats.failed += ended.len() as u64;
        ended
    }
}
