//! Unfinished requests, and the order of those that overlap.

use std::collections::VecDeque;
use std::ops::Range;

use sinew_fabric::verbs::Slice;
use sinew_mem::{Frozen, MessageBuffer};

use super::sequence::Sequence;
use crate::engine::order::Stripes;
use crate::store::{BLOCK, StoreError};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Discard,
    /// Rewrites a page with its own contents, because some of its copies are bad. It comes from the volume itself.
    Refresh,
}

/// A page that a request changes in part.
pub(super) struct Edge {
    pub page: u64,
    /// Its contents, first old and then new.
    pub staged: Option<MessageBuffer>,
    pub frozen: Option<Frozen>,
}

pub(super) struct Pending {
    pub tag: u64,
    pub kind: Kind,
    pub at: u64,
    pub len: u64,
    pub source: Option<Slice>,
    pub target: Option<MessageBuffer>,
    pub edges: [Option<Edge>; 2],
    /// Parts that must be over before it goes on.
    pub parts: u32,
    /// Whether it has read what it needs, and is writing.
    pub writes: bool,
    /// Whether a part of its answer rests on the map alone, and so on the writer's
    /// [confirmation](super::confirmation).
    pub is_from_map: bool,
    /// Next page to be written.
    pub next: u64,
    pub error: Option<StoreError>,
    seq: u64,
    blockers: u32,
    dependents: Vec<u32>,
    in_use: bool,
}

impl Pending {
    /// Pages that it touches.
    pub fn pages(&self) -> Range<u64> {
        self.at / BLOCK as u64..(self.at + self.len).div_ceil(BLOCK as u64)
    }

    fn is_change(&self) -> bool {
        self.kind != Kind::Read
    }

    fn range(&self) -> Range<u64> {
        let pages = self.pages();
        pages.start * BLOCK as u64..pages.end * BLOCK as u64
    }
}

/// Arguments of a request.
pub(super) struct NewRequest {
    pub tag: u64,
    pub kind: Kind,
    pub at: u64,
    pub len: u64,
    pub source: Option<Slice>,
    pub target: Option<MessageBuffer>,
}

pub(super) struct Requests {
    pending: Vec<Pending>,
    free: Vec<u32>,
    stripes: Stripes,
    /// Requests that need not wait for others.
    pub ready: VecDeque<u32>,
    sequence: Sequence,
    flushes: VecDeque<(u64, u64)>,
}

impl Requests {
    pub fn new(depth: usize) -> Self {
        Self {
            pending: Vec::new(),
            free: Vec::new(),
            stripes: Stripes::new(depth),
            ready: VecDeque::with_capacity(depth),
            sequence: Sequence::new(0),
            flushes: VecDeque::new(),
        }
    }

    /// Unfinished requests, without flushes.
    pub fn len(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    pub fn flushes(&self) -> usize {
        self.flushes.len()
    }

    /// Adds a flush, which finishes when every request before it has.
    pub fn flush(&mut self, tag: u64) {
        self.flushes.push_back((self.sequence.next(), tag));
    }

    /// Takes a flush that has finished.
    pub fn next_flushed(&mut self) -> Option<u64> {
        let (until, tag) = *self.flushes.front()?;
        if self.sequence.all_below() < until {
            return None;
        }
        self.flushes.pop_front();
        Some(tag)
    }

    /// Accepts a request, which must not be empty.
    pub fn submit(&mut self, request: NewRequest) {
        let NewRequest { tag, kind, at, len, source, target } = request;
        let seq = self.sequence.begin(1);
        let key = self.free.pop().unwrap_or(self.pending.len() as u32);
        let dependents = self.pending.get_mut(key as usize).map(|live| std::mem::take(&mut live.dependents));
        let live = Pending {
            tag,
            kind,
            at,
            len,
            source,
            target,
            edges: [None, None],
            parts: 0,
            writes: false,
            is_from_map: false,
            next: 0,
            error: None,
            seq,
            blockers: 0,
            dependents: dependents.unwrap_or_default(),
            in_use: true,
        };
        let (range, is_change) = (live.range(), live.is_change());
        match self.pending.get_mut(key as usize) {
            Some(place) => *place = live,
            None => self.pending.push(live),
        }
        let (requests, mut blockers) = (&mut self.pending, 0);
        self.stripes.insert(key, &range, |other| {
            let other = &mut requests[other as usize];
            let theirs = other.range();
            if theirs.start < range.end && range.start < theirs.end && (is_change || other.is_change()) {
                other.dependents.push(key);
                blockers += 1;
            }
        });
        self.pending[key as usize].blockers = blockers;
        if blockers == 0 {
            self.ready.push_back(key);
        }
    }

    /// Whether an unfinished request changes any of these pages.
    pub fn are_changing(&self, pages: Range<u64>) -> bool {
        let overlaps = |live: &Pending| live.pages().start < pages.end && pages.start < live.pages().end;
        self.pending.iter().any(|live| live.in_use && live.is_change() && overlaps(live))
    }

    pub fn get(&self, key: u32) -> &Pending {
        &self.pending[key as usize]
    }

    pub fn get_mut(&mut self, key: u32) -> &mut Pending {
        &mut self.pending[key as usize]
    }

    /// Ends a request, and readies those that waited for it alone. Returns its result.
    pub fn complete(&mut self, key: u32) -> (u64, Kind, Option<StoreError>, Option<MessageBuffer>) {
        let live = &mut self.pending[key as usize];
        debug_assert!(live.in_use && live.blockers == 0, "a request ends only once, and only when nothing blocks it");
        live.in_use = false;
        let range = live.range();
        let outcome = (live.tag, live.kind, live.error.take(), live.target.take());
        live.source = None;
        live.edges = [None, None];
        self.sequence.end(live.seq..live.seq + 1);
        let mut dependents = std::mem::take(&mut live.dependents);
        self.stripes.remove(key, &range);
        for dependent in dependents.drain(..) {
            let waiting = &mut self.pending[dependent as usize];
            waiting.blockers -= 1;
            if waiting.blockers == 0 {
                self.ready.push_back(dependent);
            }
        }
        self.pending[key as usize].dependents = dependents;
        self.free.push(key);
        outcome
    }
}
