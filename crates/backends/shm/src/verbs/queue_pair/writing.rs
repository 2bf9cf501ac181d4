//! Lists of inline WRITEs. They are performed while the list is read, since storing each first would cost too much at
//! millions per second.

use std::rc::Rc;

use sinew_fabric::verbs::{Opcode, RemoteMemory};

use super::sending::WRITES_PER_ENTRY;
use super::{Connection, QueuePair};
use crate::verbs::initiator::{RegionGuard, Seat};
use crate::verbs::queues::Queues;

/// A run of WRITEs of a list, up to the first that cannot be performed immediately.
pub(crate) struct WriteRun<'a> {
    qp: &'a mut QueuePair,
    queues: &'a mut Queues,
    /// `None` when no WRITE can be performed immediately.
    seat: Option<&'a Seat>,
    guard: Option<RegionGuard<'a>>,
    rkey: u32,
    /// WRITEs that may be performed before the region is entered anew.
    writes_left: u64,
    /// Requests for which the queue has room.
    room: u64,
    inline_max: usize,
    /// Unsignaled WRITEs that were performed and are not counted yet.
    unsignaled: u64,
}

impl<'a> WriteRun<'a> {
    #[inline(always)]
    pub fn new(qp: &'a mut QueuePair, queues: &'a mut Queues, seat: Option<&'a Seat>) -> Self {
        let room = qp.config.send_depth as u64 - (qp.requests_pushed - qp.requests_polled);
        let inline_max = qp.config.inline_max;
        Self { qp, queues, seat, guard: None, rkey: 0, writes_left: 0, room, inline_max, unsignaled: 0 }
    }

    /// Performs a WRITE. Returns false, without having changed anything, when it cannot be performed immediately.
    #[inline(always)]
    pub fn write(&mut self, (id, signaled): (u64, bool), bytes: &[u8], remote: RemoteMemory) -> bool {
        if (self.writes_left == 0 || remote.rkey != self.rkey) && !self.enter_region(remote.rkey) {
            return false;
        }
        let Some(guard) = &self.guard else { return false };
        // A zero-length WRITE skips the region check, so it takes the slow path.
        let fits = (1..=self.inline_max).contains(&bytes.len()) && self.room > 0;
        // The caller's iterator may take a long time, so the peer is checked each time.
        let is_listening = self.qp.connection.as_ref().is_some_and(Connection::is_listening);
        if !fits || !is_listening || !guard.write(remote.address, bytes) {
            return false;
        }
        self.writes_left -= 1;
        self.room -= 1;
        if signaled {
            self.complete_signaled(id, bytes.len());
        } else {
            self.unsignaled += 1;
        }
        true
    }

    /// Enters the region.
    #[inline(never)]
    fn enter_region(&mut self, rkey: u32) -> bool {
        // Only one region is entered at a time.
        self.guard = None;
        self.writes_left = 0;
        let connection = self.qp.connection.as_ref().filter(|connection| connection.is_alive());
        if let (Some(connection), Some(seat)) = (connection, self.seat) {
            self.guard = seat.guard_region(connection.remote_pair(), rkey);
        }
        (self.rkey, self.writes_left) = (rkey, if self.guard.is_some() { WRITES_PER_ENTRY } else { 0 });
        self.guard.is_some()
    }

    #[inline(never)]
    fn complete_signaled(&mut self, id: u64, len: usize) {
        self.count_unsignaled();
        self.qp.requests_pushed += 1;
        self.qp.push_success(id, Opcode::Write, len, self.queues);
    }

    #[inline(always)]
    fn count_unsignaled(&mut self) {
        let unsignaled = std::mem::take(&mut self.unsignaled);
        self.qp.requests_pushed += unsignaled;
        self.qp.requests_completed += unsignaled;
    }
}

impl Drop for WriteRun<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.count_unsignaled();
    }
}

impl QueuePair {
    /// Our seat at the peer's device, if inline WRITEs need not wait for earlier requests.
    #[inline(always)]
    pub fn seat(&self) -> Option<Rc<Seat>> {
        let is_their_turn = self.takes_inline_now(0) && self.in_flight.is_empty();
        self.connection.as_ref().filter(|_| is_their_turn).map(|connection| Rc::clone(&connection.seat))
    }
}
