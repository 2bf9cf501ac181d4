//! The lanes that a member has beside the main one, and the calls on each.

use std::collections::BTreeSet;

use sinew_fabric::SeededGenerator;
use sinew_rpc::{CallOptions, LaneId, RequestType, SessionId};

use crate::programs::Endpoint;

/// Closed lanes that are remembered, to check that nothing completes on them.
const CLOSED_MAX: usize = 8;

struct Lane {
    id: LaneId,
    /// Its calls in flight.
    calls: BTreeSet<u64>,
}

/// Open and recently closed lanes of a member.
pub struct Lanes {
    open: Vec<Lane>,
    closed: Vec<LaneId>,
}

impl Lanes {
    /// Opens `lanes` lanes.
    pub fn new(rpc: &mut Endpoint, lanes: usize) -> Self {
        let open = |_| Lane { id: rpc.open_lane(), calls: BTreeSet::new() };
        Self { open: (0..lanes).map(open).collect(), closed: Vec::new() }
    }

    /// Draws the main lane or one of the others.
    pub fn draw(&self, generator: &mut SeededGenerator) -> LaneId {
        let at = generator.below(2 * self.open.len() as u64 + 1) as usize;
        self.open.get(at).map_or(LaneId::MAIN, |lane| lane.id)
    }

    pub fn is_open(&self, id: LaneId) -> bool {
        self.open.iter().any(|lane| lane.id == id)
    }

    /// Notes that a call begins. Calls on the main lane are not tracked.
    pub fn begin(&mut self, id: LaneId, call: u64) {
        if let Some(lane) = self.open.iter_mut().find(|lane| lane.id == id) {
            lane.calls.insert(call);
        }
    }

    /// Notes that a call has completed.
    pub fn end(&mut self, id: LaneId, call: u64) {
        if let Some(lane) = self.open.iter_mut().find(|lane| lane.id == id) {
            lane.calls.remove(&call);
        }
    }

    /// Closes one of the lanes and opens another in its place. Returns the closed lane with the calls that it had, or
    /// none if there are no lanes.
    ///
    /// # Errors
    ///
    /// A description of what is wrong with the lanes.
    pub fn replace(
        &mut self,
        rpc: &mut Endpoint,
        generator: &mut SeededGenerator,
    ) -> Result<Option<(LaneId, BTreeSet<u64>)>, String> {
        let at = generator.below(self.open.len().max(1) as u64) as usize;
        let Some(lane) = self.open.get_mut(at) else { return Ok(None) };
        let id = lane.id;
        if !rpc.close_lane(id) || rpc.close_lane(id) {
            return Err(format!("{id:?} cannot be closed, or can be closed twice"));
        }
        lane.id = rpc.open_lane();
        let calls = std::mem::take(&mut lane.calls);
        let is_known = self.open.iter().filter(|other| other.id == self.open[at].id).count() > 1;
        if is_known || self.open[at].id == id || self.closed.contains(&self.open[at].id) {
            return Err(format!("{:?} is opened again", self.open[at].id));
        }
        if self.closed.len() >= CLOSED_MAX {
            self.closed.remove(0);
        }
        self.closed.push(id);
        Ok(Some((id, calls)))
    }

    /// Checks that nothing arrives for lanes that were closed.
    ///
    /// # Errors
    ///
    /// A description of what arrived.
    pub fn look(&self, rpc: &mut Endpoint) -> Result<(), String> {
        for id in &self.closed {
            if let Some(over) = rpc.poll_lane(*id) {
                return Err(format!("call {} completes on {id:?}, which is closed", over.tag));
            }
            if let Some(event) = rpc.poll_lane_event(*id) {
                return Err(format!("{id:?}, which is closed, is told of {event:?}"));
            }
        }
        Ok(())
    }

    /// Checks that no call is accepted for the lane that was closed last.
    ///
    /// # Errors
    ///
    /// A description of the failure, when a call is accepted.
    pub fn call_closed(&self, rpc: &mut Endpoint, session: SessionId) -> Result<(), String> {
        let Some(id) = self.closed.last() else { return Ok(()) };
        let (Ok(request), Ok(response)) = (rpc.alloc(0), rpc.alloc(0)) else { return Ok(()) };
        let options = CallOptions::tag(0).lane(*id);
        match rpc.enqueue_request(session, RequestType::new(0), request, response, options) {
            Ok(_) => Err(format!("{id:?} accepts a call, although it is closed")),
            Err(_) => Ok(()),
        }
    }
}
