//! Finds messages that will never be acknowledged.
//!
//! A peer that is stopped, or does not poll, may take any length of time to acknowledge a message. But any process that
//! maps a link's memory can overwrite a packet that was not taken, or an acknowledgement. So the sender checks from
//! time to time. If the word of a packet differs from the one that was written, the link ends. A peer that has taken a
//! message acknowledges it in the same turn, or in a later one if the ring back was full. So the acknowledgement of a
//! message is lost if it has not come after some turns of the peer. To count these, the sender probes the peer, one
//! probe at a time, with an acknowledgement that tells it nothing new.

use super::QueuePair;
use crate::verbs::packet::Kind;
use crate::verbs::wire::Wire;

/// Time between two checks, in ns.
pub(crate) const WATCH_EVERY_NS: u64 = 100_000_000;
/// Probes that a peer must have taken since it took a message before the message counts as lost. (This is not a time,
/// since either side may have been stopped.)
const PROBES_MAX: u32 = 30;

/// Observations of the oldest message that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckProbe {
    number: u32,
    /// The message, or the last probe, has been taken when the peer has taken everything before this position of the
    /// ring.
    taken_at: u64,
    probes: u32,
}

impl QueuePair {
    /// Whether the queue pair waits for the peer to take or to acknowledge packets.
    pub fn waits_for_peer(&self) -> bool {
        !self.in_flight.is_empty() || self.stall.is_some_and(|stall| stall.is_for_room())
    }

    /// Whether its oldest message was taken but will never be acknowledged. Also sends the next probe when one is due.
    pub fn probe_for_lost_ack(&mut self, wire: &mut Wire<'_>) -> bool {
        let waits = self.waits_for_peer();
        let Some(connection) = self.connection.as_ref().filter(|_| waits) else {
            self.ack_probe = None;
            return false;
        };
        let Some(progress) = wire.tx.progress_to(connection.link) else {
            self.ack_probe = None;
            return false;
        };
        let Some(number) = self.in_flight.front().map(|oldest| oldest.number) else { return false };
        let fresh = AckProbe { number, taken_at: progress.sent, probes: 0 };
        let mut probe = self.ack_probe.filter(|sight| sight.number == number).unwrap_or(fresh);
        if progress.taken >= probe.taken_at
            && wire.send_header(connection.link, self.header(Kind::Ack, connection, self.expected))
        {
            probe.probes += 1;
            probe.taken_at = wire.tx.progress_to(connection.link).map_or(probe.taken_at, |progress| progress.sent);
        }
        self.ack_probe = Some(probe);
        probe.probes > PROBES_MAX
    }
}
