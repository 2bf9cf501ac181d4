//! Messages that nobody will ever acknowledge.
//!
//! A peer that is stopped, or does not poll, takes as long as it likes. But whoever maps a link's memory can write over a packet
//! that was not taken, or over an acknowledgement. Its sender looks now and then: a packet whose word is not the one that it
//! wrote ends the link, and a message that was taken is acknowledged in the same turn, or in a later one if the way back was
//! full. So that a peer's turns can be counted, it is sent an acknowledgement that tells it nothing new, one after the other.

use super::QueuePair;
use crate::verbs::packet::Kind;
use crate::verbs::wire::Wire;

/// Time between two looks.
pub(crate) const WATCH_EVERY_NS: u64 = 100_000_000;
/// Probes that a peer has taken since it took a message, after which it will not acknowledge that any more. (Not a time: either
/// side may have been stopped.)
const PROBES_MAX: u32 = 30;

/// What was seen of the oldest message that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    number: u32,
    /// It, or the last probe, is taken when the peer has taken everything before this position of the ring.
    behind: u64,
    probes: u32,
}

impl QueuePair {
    /// Whether something of it waits for the peer to take packets, or to acknowledge them.
    pub fn waits_for_peer(&self) -> bool {
        !self.flying.is_empty() || self.stall.is_some_and(|stall| stall.is_for_room())
    }

    /// Whether its oldest message was taken and will not be acknowledged any more.
    pub fn is_forgotten(&mut self, wire: &mut Wire<'_>) -> bool {
        let waits = self.waits_for_peer();
        let Some(connection) = self.connection.as_ref().filter(|_| waits) else {
            self.sight = None;
            return false;
        };
        let Some(way) = wire.tx.way_to(connection.link) else {
            self.sight = None;
            return false;
        };
        let Some(number) = self.flying.front().map(|oldest| oldest.number) else { return false };
        let fresh = Sight { number, behind: way.sent, probes: 0 };
        let mut sight = self.sight.filter(|sight| sight.number == number).unwrap_or(fresh);
        if way.taken >= sight.behind
            && wire.send_header(connection.link, self.header(Kind::Ack, connection, self.expected))
        {
            sight.probes += 1;
            sight.behind = wire.tx.way_to(connection.link).map_or(sight.behind, |way| way.sent);
        }
        self.sight = Some(sight);
        sight.probes > PROBES_MAX
    }
}
