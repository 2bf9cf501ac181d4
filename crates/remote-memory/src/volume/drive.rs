//! A volume's turns: handles events, begins work, and reports results.

use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};
use sinew_mem::Arena;

use super::core::{Owner, PendingCall, Volume};
use super::donors::{Donors, Event};
use super::requests::{Kind, NewRequest};
use crate::store::{BLOCK, Extent, Finished, Job, Refused, Request, Status, Store, StoreError, check, extent_of_pages};

/// Tags from here on belong to the opening of the volume, which has ended.
pub(super) const OPENING_TAG: u64 = 1 << 63;

impl<D: Donors> Volume<D> {
    /// Ends one of the parts that a request waits for.
    pub(super) fn complete_part(&mut self, key: u32, error: Option<StoreError>) {
        let live = self.requests.get_mut(key);
        if live.error.is_none() {
            live.error = error;
        }
        live.parts -= 1;
        if live.parts > 0 {
            return;
        }
        let is_good = live.error.is_none();
        if is_good && live.is_from_map && self.now_ns >= self.confirmed_until_ns {
            return self.await_confirmation(key);
        }
        if is_good && live.kind != Kind::Read && !live.writes {
            live.is_from_map = false;
            return self.change(key);
        }
        let (tag, kind, error, target) = self.requests.complete(key);
        if kind != Kind::Refresh {
            self.finished.push_back(Finished { tag, result: error.map_or(Ok(()), Err), target });
        }
    }

    pub(super) fn start_ready(&mut self) -> bool {
        let mut has_started = false;
        while let Some(key) = self.requests.ready.pop_front() {
            if let Some(error) = self.ended.clone() {
                self.fail_request(key, error);
            } else if self.requests.get(key).kind == Kind::Read {
                self.start_read(key);
            } else if !self.start_change(key) {
                if self.lane_ops.len() > 0 {
                    self.requests.ready.push_front(key);
                    return has_started;
                }
                self.fail_request(key, no_memory());
            }
            has_started = true;
        }
        has_started
    }

    fn fail_request(&mut self, key: u32, error: StoreError) {
        let live = self.requests.get_mut(key);
        live.parts = 1;
        live.error = Some(error);
        self.complete_part(key, None);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::OpFinished { tag, error, target } => {
                if tag >= OPENING_TAG {
                    return;
                }
                let Some(flight) = self.lane_ops.remove(tag as u32) else { return };
                let failed = error.is_some();
                self.lanes[usize::from(flight.lane)].in_flight -= 1;
                if let Some(why) = error {
                    self.drop_lane(flight.lane, why);
                }
                match flight.owner {
                    Owner::Run(run) => self.complete_op(run, flight.lane, failed),
                    Owner::Piece(piece) => self.complete_piece(piece, flight.lane, failed, target),
                    Owner::Repair { of_headers } => self.complete_repair_op(of_headers, failed, target),
                }
            }
            Event::CallAnswered { tag, result } => {
                if tag >= OPENING_TAG {
                    return;
                }
                match self.calls.remove(tag as u32) {
                    Some(PendingCall::Record { round, lane }) => self.count_vote(round, lane, result),
                    Some(PendingCall::Take { segment, lane }) => self.on_slab_taken(segment, lane, result),
                    Some(PendingCall::Fence { lane }) => self.on_revival_answer(lane, result),
                    Some(PendingCall::Heartbeat { lane }) => self.on_heartbeat_answer(lane, result),
                    Some(PendingCall::Leave) => self.leaving -= 1,
                    Some(PendingCall::Inspect { lane }) => self.on_inspect_answer(lane, result),
                    Some(PendingCall::Free) | None => {}
                }
            }
        }
    }

    /// Goes on with requests that waited for slots or memory.
    fn resume(&mut self) {
        for _ in 0..self.starved.len() {
            let Some(key) = self.starved.pop_front() else { break };
            let before = self.starved.len();
            match self.ended.clone() {
                Some(error) => self.complete_part(key, Some(error)),
                None => self.advance(key),
            }
            if self.starved.len() > before {
                // There is still nothing. The first in the queue stays first.
                self.starved.rotate_right(1);
                break;
            }
        }
        for _ in 0..self.deferred.len() {
            let Some(key) = self.deferred.pop_front() else { break };
            self.read_copy(key);
        }
        let is_held = self.segments.iter().any(|segment| segment.slots.held_chunk.is_some());
        let is_settled = self.voting.durable == self.voting.generation && !is_held || self.ended.is_some();
        if self.lane_ops.len() == 0 && self.held_clears.is_empty() && self.gated.is_empty() && is_settled {
            if let Some(key) = self.starved.pop_front() {
                let at = self.requests.get(key).next * BLOCK as u64;
                let why =
                    format!("all slots of its segments are taken, and none is being freed {}", self.describe_down());
                self.complete_part(key, Some(StoreError::Full { at, why }));
            }
            if let Some(key) = self.deferred.pop_front() {
                self.fail_piece(key, no_memory());
            }
        }
    }

    /// Ends the volume: nothing unfinished will be done.
    pub(super) fn end(&mut self, error: StoreError) {
        if let Some(ended) = &mut self.ended {
            // The reason for the silence is known now.
            if matches!((&*ended, &error), (StoreError::NoAnswer(_), StoreError::Fenced(_))) {
                *ended = error;
            }
            return;
        }
        self.ended = Some(error);
        let gated = std::mem::take(&mut self.gated);
        gated.into_iter().for_each(|run| self.finish_run(run));
        let held = std::mem::take(&mut self.held_clears);
        held.into_iter().for_each(|owed| self.defer_clear(owed));
        self.requests.ready.extend(self.waiting.drain(..));
    }

    /// Ends the runs whose record is durable now.
    pub(super) fn finish_gated(&mut self) {
        let gated = std::mem::take(&mut self.gated);
        gated.into_iter().for_each(|run| self.finish_run(run));
    }

    /// Whether nothing is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.len() == 0 && self.runs.len() == 0 && self.held_clears.is_empty()
    }
}

fn no_memory() -> StoreError {
    StoreError::Unavailable("the arena has no buffer to copy the bytes to: open the volume with a larger one".into())
}

impl<D: Donors> Readiness for Volume<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.donors.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let has_more = !self.finished.is_empty() || !self.requests.ready.is_empty() || !self.backlog.is_empty();
        // A turn that found work may have left more for the next.
        if has_more || self.was_busy {
            return Ok(Armed::Ready);
        }
        let armed = self.donors.arm(now_ns)?;
        let next_step = Armed::Sleep { until_ns: self.next_step_ns() }.on_clock(self.donors.now_ns(), now_ns);
        Ok(if let Armed::Sleep { until_ns } = next_step { armed.min_deadline(until_ns) } else { armed })
    }

    fn disarm(&mut self) -> bool {
        self.donors.disarm()
    }
}

impl<D: Donors> Store for Volume<D> {
    fn len(&self) -> u64 {
        self.pages * BLOCK as u64
    }

    fn arena(&self) -> &Arena {
        self.donors.arena()
    }

    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        if let Err(error) = check(&request.job, self.len()) {
            return Err(Refused::Never { error, request });
        }
        if self.requests.len() + self.requests.flushes() + self.finished.len() >= self.config.depth {
            return Err(Refused::Busy(request));
        }
        self.was_busy = true;
        let Request { tag, job } = request;
        let new_request = match job {
            Job::Flush => {
                self.requests.flush(tag);
                return Ok(());
            }
            Job::Read { at, target } => {
                let len = target.len() as u64;
                NewRequest { tag, kind: Kind::Read, at, len, source: None, target: Some(target) }
            }
            Job::Write { at, source } => {
                let len = source.len as u64;
                NewRequest { tag, kind: Kind::Write, at, len, source: Some(source), target: None }
            }
            Job::Discard { at, len } => NewRequest { tag, kind: Kind::Discard, at, len, source: None, target: None },
        };
        if new_request.len == 0 {
            self.finished.push_back(Finished { tag, result: Ok(()), target: new_request.target });
        } else {
            self.requests.submit(new_request);
        }
        Ok(())
    }

    fn turn(&mut self) -> bool {
        self.now_ns = self.donors.now_ns();
        let mut busy = self.donors.turn();
        let mut events = std::mem::take(&mut self.events);
        self.donors.poll(&mut events);
        busy |= !events.is_empty();
        events.drain(..).for_each(|event| self.handle(event));
        self.events = events;
        self.send_backlog();
        if !self.starved.is_empty() || !self.deferred.is_empty() {
            self.resume();
        }
        if !self.unconfirmed.is_empty() {
            self.end_unconfirmed();
        }
        busy |= self.start_ready();
        self.turn_revival();
        self.inspect_after_silence();
        self.turn_voting();
        busy |= self.turn_repair();
        while let Some(tag) = self.requests.next_flushed() {
            let result = self.ended.clone().map_or(Ok(()), Err);
            self.finished.push_back(Finished { tag, result, target: None });
            busy = true;
        }
        // Sends what this turn has begun.
        self.was_busy = self.donors.turn() || busy;
        self.was_busy
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        let count = max.min(self.finished.len());
        finished.extend(self.finished.drain(..count));
        count
    }

    /// Pages are holes that were never written, or were discarded. An unfinished change makes them none, and so does
    /// anything for which a read might fail or has to wait.
    fn extent(&self, at: u64, len: u64) -> Extent {
        // Its caller may have been stopped since the last turn.
        let is_confirmed = self.donors.now_ns() < self.confirmed_until_ns;
        let is_held = self.ended.is_some() || self.voting.durable < self.voting.generation || !is_confirmed;
        let found = extent_of_pages(at, len, |page| {
            !is_held && self.map.place(page).is_none() && !(self.has_unknown && self.is_unknown(page))
        });
        let pages = at / BLOCK as u64..(at + found.len).div_ceil(BLOCK as u64);
        Extent { is_hole: found.is_hole && !self.requests.are_changing(pages), ..found }
    }

    fn status(&self) -> Status {
        self.describe()
    }
}
