//! Lanes: a queue of completions and events for each user of an endpoint.
//!
//! Several client libraries, or futures, can share an endpoint and its thread. Each opens a *lane* and names it in its
//! calls, and hears only of these. The main lane belongs to the endpoint's owner: it gets calls that name no lane, and
//! is never closed.
//!
//! The main lane is as quick as an endpoint without lanes. A client library or a future opens a lane of its own, with a
//! bounded backlog, and is notified once when something has come. Closing a lane cancels its calls and ends its
//! sessions. Idle lanes are never looked at: with a thousand of them, a turn and a call cost what they cost without any
//! (`cargo xtask cost`).

use std::collections::VecDeque;

use crate::error::EnqueueError;
use crate::events::SessionEvent;
use crate::fifo::Fifo;
use crate::names::Completion;

/// A lane of an endpoint. Names are never reused: that of a closed lane finds nothing. A name is valid only at its own
/// endpoint; at another one it may name an unrelated lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    index: u32,
    generation: u32,
}

impl LaneId {
    /// The lane of the endpoint's owner.
    pub const MAIN: Self = Self { index: 0, generation: 0 };
    /// The lane of [`crate::Rpc::call`], which waits for the call that it makes.
    pub(crate) const BLOCKING: Self = Self { index: 1, generation: 0 };
    /// The lane of calls that other threads handed over; the endpoint itself takes their completions.
    pub(crate) const REMOTE: Self = Self { index: 2, generation: 0 };

    /// The lane of sessions whose events are dropped.
    pub(crate) const NOBODY: Self = Self { index: u32::MAX, generation: 0 };

    /// The index by which a call's slot knows the lane.
    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}

impl Default for LaneId {
    fn default() -> Self {
        Self::MAIN
    }
}

#[derive(Default)]
struct Lane {
    generation: u32,
    is_open: bool,
    /// Calls under way, plus completions not yet taken. A closed lane keeps its place until there are none.
    outstanding: usize,
    completions: VecDeque<Completion>,
    events: VecDeque<SessionEvent>,
    /// Whether the lane waits to be reported.
    is_ready: bool,
}

impl Lane {
    /// Whether there is something to take, and somebody to take it.
    fn has_items(&self) -> bool {
        self.is_open && !(self.completions.is_empty() && self.events.is_empty())
    }
}

/// The lanes of an endpoint.
pub(crate) struct Lanes {
    /// Completions of the main lane, kept apart since nearly all calls are its.
    pub main: Fifo<Completion>,
    /// Lanes by index; the main one has only its events here.
    lanes: Vec<Lane>,
    free: Vec<u32>,
    /// Lanes that got something since they were last reported.
    ready: VecDeque<u32>,
    /// Whether a lane beside the main one got an event since `take_event_news` last returned.
    is_event_news: bool,
    backlog_max: usize,
}

impl Lanes {
    pub fn new(backlog_max: usize) -> Self {
        let open = || Lane { is_open: true, ..Lane::default() };
        Self {
            main: Fifo::with_capacity(1024),
            lanes: vec![open(), open(), open()],
            free: Vec::new(),
            ready: VecDeque::new(),
            is_event_news: false,
            backlog_max,
        }
    }

    pub fn open(&mut self) -> LaneId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.lanes.push(Lane::default());
            self.lanes.len() as u32 - 1
        });
        let lane = &mut self.lanes[index as usize];
        lane.is_open = true;
        LaneId { index, generation: lane.generation }
    }

    /// Closes a lane: what it has not taken is dropped, and so is whatever still comes. Returns whether the lane
    /// existed and can be closed.
    pub fn close(&mut self, id: LaneId) -> bool {
        if id.index <= LaneId::REMOTE.index || self.find(id).is_none() {
            return false;
        }
        let lane = &mut self.lanes[id.index as usize];
        lane.is_open = false;
        lane.generation = lane.generation.wrapping_add(1);
        lane.outstanding -= lane.completions.len();
        lane.completions.clear();
        lane.events.clear();
        self.free_if_unused(id.index);
        true
    }

    /// Frees the place of a closed lane once no call under way names it.
    fn free_if_unused(&mut self, index: u32) {
        let lane = &self.lanes[index as usize];
        if !lane.is_open && lane.outstanding == 0 {
            self.free.push(index);
        }
    }

    fn find(&self, id: LaneId) -> Option<&Lane> {
        self.lanes.get(id.index as usize).filter(|lane| lane.generation == id.generation && lane.is_open)
    }

    fn find_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.find(id)?;
        self.lanes.get_mut(id.index as usize)
    }

    /// Checks whether a lane can take one more call, or session.
    pub fn check(&self, id: LaneId) -> Result<(), EnqueueError> {
        let lane = self.find(id).ok_or(EnqueueError::NoSuchLane)?;
        let limit = self.backlog_max;
        if id.index > LaneId::BLOCKING.index && lane.outstanding + lane.events.len() >= limit {
            return Err(EnqueueError::LaneFull { limit });
        }
        Ok(())
    }

    /// Counts a new call of a lane other than the main one. [`Self::check`] has passed.
    pub fn begin(&mut self, id: LaneId) {
        self.lanes[id.index as usize].outstanding += 1;
    }

    /// Queues the completion of a call of the lane.
    #[inline(always)]
    pub fn push(&mut self, index: u32, completion: Completion) {
        if index == LaneId::MAIN.index {
            self.main.push(completion);
        } else {
            self.push_to_lane(index, completion);
        }
    }

    #[inline(never)]
    fn push_to_lane(&mut self, index: u32, completion: Completion) {
        let lane = &mut self.lanes[index as usize];
        if lane.is_open {
            lane.completions.push_back(completion);
            self.note_ready(index);
        } else {
            lane.outstanding -= 1;
            drop(completion);
            self.free_if_unused(index);
        }
    }

    /// Queues an event of a session for its lane. If the lane was closed, the event is dropped.
    pub fn push_event(&mut self, id: LaneId, event: SessionEvent) {
        if let Some(lane) = self.find_mut(id) {
            lane.events.push_back(event);
            self.is_event_news |= id != LaneId::MAIN;
            self.note_ready(id.index);
        }
    }

    fn note_ready(&mut self, index: u32) {
        if index > LaneId::REMOTE.index && !std::mem::replace(&mut self.lanes[index as usize].is_ready, true) {
            self.ready.push_back(index);
        }
    }

    /// Returns the next completion of a lane.
    pub fn poll(&mut self, id: LaneId) -> Option<Completion> {
        if id == LaneId::MAIN {
            return self.main.pop();
        }
        let lane = self.find_mut(id)?;
        let completion = lane.completions.pop_front()?;
        lane.outstanding -= 1;
        Some(completion)
    }

    /// Gives back a completion that was polled from a lane, which gets it as its last one.
    pub fn put_back(&mut self, id: LaneId, completion: Completion) {
        self.begin(id);
        self.push(id.index, completion);
    }

    /// Returns the next event of a lane.
    pub fn poll_event(&mut self, id: LaneId) -> Option<SessionEvent> {
        let event = self.find_mut(id)?.events.pop_front()?;
        // The lane's user takes events, so those that still wait are worth a wake-up again.
        self.is_event_news |= id != LaneId::MAIN;
        Some(event)
    }

    /// Takes an event of a lane ahead of others.
    pub fn take_event(&mut self, id: LaneId, mut picks: impl FnMut(&SessionEvent) -> bool) -> Option<SessionEvent> {
        let events = &mut self.find_mut(id)?.events;
        let index = events.iter().position(&mut picks)?;
        let event = events.remove(index);
        self.is_event_news |= id != LaneId::MAIN;
        event
    }

    /// Returns the next lane that got something since it was last reported.
    pub fn poll_ready(&mut self) -> Option<LaneId> {
        while let Some(index) = self.ready.pop_front() {
            let lane = &mut self.lanes[index as usize];
            lane.is_ready = false;
            if lane.has_items() {
                return Some(LaneId { index, generation: lane.generation });
            }
        }
        None
    }

    /// Whether a completion waits that its owner has not been told of. Lanes that were reported do not count: their
    /// users may leave completions waiting.
    pub fn has_news(&self) -> bool {
        // Some of these may have been emptied, or closed, before they were reported.
        let has_completion = |index: u32| !self.lanes[index as usize].completions.is_empty();
        !self.main.is_empty()
            || has_completion(LaneId::REMOTE.index)
            || self.ready.iter().any(|&index| has_completion(index))
    }

    /// Whether lanes other than the main one have events that somebody should look at. True once for each event that
    /// comes or is taken.
    pub fn take_event_news(&mut self) -> bool {
        let has_event = |index: &u32| !self.lanes[*index as usize].events.is_empty();
        std::mem::take(&mut self.is_event_news) && self.ready.iter().any(has_event)
    }

    /// Number of events of the main lane that wait to be taken.
    pub fn events_of_main(&self) -> usize {
        self.lanes[0].events.len()
    }

    /// Number of completions and events that wait to be taken; lanes that wait to be reported count once each.
    pub fn reports_waiting(&self) -> usize {
        let aside: usize = self.lanes[1..=2].iter().map(|lane| lane.completions.len()).sum();
        self.main.len() + self.lanes[0].events.len() + self.ready.len() + aside
    }
}
