//! Snapshots in transfer, in pieces: one at a time to each member, so that heartbeats can be sent in between.

use bytes::{Bytes, BytesMut};
use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType, Snapshot};
use sinew_journal::disk::Disk;

use super::durable::Replicated;
use super::{Member, Receiver, Transport};
use crate::machine::StateMachine;
use crate::wire::{self, MemberId, PeerMessage, Piece, PieceId, SnapshotMeta};

/// Time after which a piece without an answer is sent again, in ns.
const RETRY_NS: u64 = 100_000_000;
/// Attempts for one piece, after which the transfer is given up.
const TRIES_MAX: u32 = 50;
/// Largest snapshot accepted, in bytes.
const LEN_MAX: u64 = 64 << 30;

/// A snapshot being sent.
pub struct Outgoing {
    snapshot: Snapshot,
    term: u64,
    at: usize,
    is_in_flight: bool,
    sent_ns: u64,
    tries: u32,
}

/// A snapshot being received.
pub struct Incoming {
    from: MemberId,
    term: u64,
    place: SnapshotMeta,
    len: u64,
    bytes: BytesMut,
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    pub(super) fn begin_pieces(&mut self, mut message: Message) {
        let snapshot = message.take_snapshot();
        let outgoing = Outgoing { snapshot, term: message.term, at: 0, is_in_flight: false, sent_ns: 0, tries: 0 };
        self.outgoing.insert(MemberId(message.to), outgoing);
    }

    /// Sends the next piece to each member that has received the one before.
    pub(super) fn send_pieces(&mut self, now_ns: u64, transport: &mut impl Transport) {
        let Some(cluster) = self.cluster else { return };
        let mut failed = Vec::new();
        for (to, outgoing) in &mut self.outgoing {
            if outgoing.is_in_flight && now_ns < outgoing.sent_ns + RETRY_NS {
                continue;
            }
            outgoing.tries += 1;
            if outgoing.tries > TRIES_MAX || outgoing.term != self.node.raft.term {
                failed.push(*to);
                continue;
            }
            let data = &outgoing.snapshot.data;
            let end = (outgoing.at + self.config.piece_len).min(data.len());
            let piece = Piece {
                term: outgoing.term,
                place: SnapshotMeta::from_snapshot(&outgoing.snapshot),
                len: data.len() as u64,
                at: outgoing.at as u64,
                bytes: &data[outgoing.at..end],
            };
            let say = PeerMessage::Piece { cluster, from: self.me.id, to: *to, piece };
            let address = self.members.get(to).map(|member| member.address.as_str());
            transport.send(Receiver::Member(*to, address), &say);
            (outgoing.is_in_flight, outgoing.sent_ns) = (true, now_ns);
        }
        for to in failed {
            self.outgoing.remove(&to);
            self.node.report_snapshot(to.0, SnapshotStatus::Failure);
        }
    }

    /// Offset of the piece that is to be sent next to a member, or is in flight to it.
    #[cfg(test)]
    pub(super) fn outgoing_at(&self, to: MemberId) -> Option<usize> {
        self.outgoing.get(&to).map(|outgoing| outgoing.at)
    }

    /// Handles the acknowledgement of a piece.
    pub(super) fn on_piece_acknowledged(&mut self, at: MemberId, piece: PieceId) {
        let Some(outgoing) = self.outgoing.get_mut(&at) else { return };
        let place = outgoing.snapshot.get_metadata().index;
        // A piece that was sent twice is acknowledged twice.
        if !outgoing.is_in_flight || (piece.index, piece.at) != (place, outgoing.at as u64) {
            return;
        }
        (outgoing.is_in_flight, outgoing.tries) = (false, 0);
        outgoing.at += self.config.piece_len;
        if outgoing.at >= outgoing.snapshot.data.len() {
            self.outgoing.remove(&at);
            self.node.report_snapshot(at.0, SnapshotStatus::Finish);
        }
    }

    /// Handles the loss of a piece, whatever the cause.
    pub(super) fn on_piece_lost(&mut self, to: MemberId) {
        if let Some(outgoing) = self.outgoing.get_mut(&to) {
            // It is sent again after the usual time.
            outgoing.is_in_flight = true;
        }
    }

    /// Handles a piece. The last one passes the snapshot to the engine. Returns whether the piece was accepted.
    pub(super) fn handle_piece(&mut self, from: MemberId, piece: &Piece<'_>) -> bool {
        let is_first = piece.at == 0;
        let end = piece.at.saturating_add(piece.bytes.len() as u64);
        let is_valid = piece.term >= self.node.raft.term && piece.term < wire::NUMBER_MAX;
        if !is_valid || piece.len > LEN_MAX || end > piece.len {
            self.dropped.contradiction += 1;
            return false;
        }
        if is_first {
            let place = piece.place.clone();
            self.incoming = Some(Incoming { from, term: piece.term, place, len: piece.len, bytes: BytesMut::new() });
        }
        let Some(incoming) = &mut self.incoming else { return false };
        let is_same = incoming.from == from
            && incoming.term == piece.term
            && incoming.place == piece.place
            && incoming.len == piece.len;
        if !is_same || piece.at > incoming.bytes.len() as u64 {
            return false;
        }
        // A piece that was sent again may already be there, in part or as a whole.
        let known = incoming.bytes.len() - piece.at as usize;
        incoming.bytes.extend_from_slice(piece.bytes.get(known..).unwrap_or_default());
        if (incoming.bytes.len() as u64) < incoming.len {
            return true;
        }
        let Some(Incoming { term, place, bytes, .. }) = self.incoming.take() else { return false };
        let data: Bytes = bytes.freeze();
        // The engine's answer to a snapshot cannot be taken back, so it must be one that this member can restore.
        let is_sane = wire::decode::<Replicated<'_>>(&data)
            .is_ok_and(|replicated| replicated.is_valid() && self.machine.check_snapshot(replicated.machine).is_ok());
        match place.to_snapshot(data).filter(|_| is_sane && place.term <= term) {
            Some(snapshot) => {
                let mut message = Message::default();
                message.set_msg_type(MessageType::MsgSnapshot);
                (message.from, message.to, message.term) = (from.0, self.me.id.0, term);
                message.set_snapshot(snapshot);
                // A refusal of the engine is part of its answer to the leader.
                let _ = self.node.step(message);
                true
            }
            None => {
                self.dropped.malformed += 1;
                false
            }
        }
    }
}
