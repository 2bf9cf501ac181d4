//! Messages that nobody will ever acknowledge.
//!
//! A peer that is stopped, or does not poll, takes as long as it likes. But whoever maps a link's memory can write over a packet
//! that was not taken, or over an acknowledgement. Its sender looks now and then: a packet whose word is not the one that it
//! wrote ends the link, and a message that was taken is acknowledged in the same turn, or never.

use sinew_fabric::PacketPort;
use sinew_fabric::verbs::Status;

use super::engine::Engine;
use super::queue_pair::QueuePair;
use crate::tx::ShmTx;

/// Time between two looks.
pub(crate) const WATCH_EVERY_NS: u64 = 100_000_000;
/// Looks at a message that was taken, after which it is not acknowledged any more. (Not a time: we may have been stopped.)
const LOOKS_MAX: u32 = 30;

/// What was seen of the oldest message that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    number: u32,
    /// It is taken when the peer has taken everything before this position of the ring.
    behind: u64,
    looks_since_taken: u32,
}

impl QueuePair {
    /// Whether something of it waits for the peer to take packets, or to acknowledge them.
    pub fn waits_for_peer(&self) -> bool {
        !self.flying.is_empty() || self.stall.is_some_and(|stall| stall.is_for_room())
    }

    /// Whether its oldest message was taken and will not be acknowledged any more.
    fn is_forgotten(&mut self, tx: &mut ShmTx) -> bool {
        let link = self.connection.as_ref().map(|connection| connection.link);
        let Some(way) = link.filter(|_| self.waits_for_peer()).and_then(|link| tx.way_to(link)) else {
            self.sight = None;
            return false;
        };
        let Some(number) = self.flying.front().map(|oldest| oldest.number) else { return false };
        let fresh = Sight { number, behind: way.sent, looks_since_taken: 0 };
        let mut sight = self.sight.filter(|sight| sight.number == number).unwrap_or(fresh);
        sight.looks_since_taken += u32::from(way.taken >= sight.behind);
        self.sight = Some(sight);
        sight.looks_since_taken > LOOKS_MAX
    }
}

impl Engine {
    /// Looks after the messages that are not acknowledged.
    #[cold]
    #[inline(never)]
    pub(super) fn watch(&mut self) {
        self.watched_ns = self.time_ns;
        let Self { port, queue_pairs, queues, notes, .. } = self;
        for qp in queue_pairs.iter_mut().flatten() {
            if qp.is_forgotten(port.split().1) {
                qp.fail_and_leave(Status::RetryExceeded, queues, notes);
            }
        }
    }
}
