//! Snapshots in transfer, in pieces: one at a time to each member, so that heartbeats can be sent in between.

use bytes::{Bytes, BytesMut};
use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType, Snapshot};
use sinew_journal::disk::Disk;

use super::durable::{Promise, Replicated};
use super::{Member, MemberError, Receiver, Transport};
use crate::machine::StateMachine;
use crate::wire::{self, MemberId, PeerMessage, Piece, PieceId, SnapshotMeta};

/// Time after which a piece without an answer is sent again, in ns.
const RETRY_NS: u64 = 100_000_000;
/// Attempts for one piece, after which the transfer is given up.
const TRIES_MAX: u32 = 50;
/// Times that a transfer begins anew because a piece was refused, after which it is given up.
const RESTARTS_MAX: u32 = 5;
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
    restarts: u32,
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
        let (term, at, is_in_flight, sent_ns, tries, restarts) = (message.term, 0, false, 0, 0, 0);
        let outgoing = Outgoing { snapshot, term, at, is_in_flight, sent_ns, tries, restarts };
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
            let is_vain = outgoing.tries > TRIES_MAX || outgoing.restarts > RESTARTS_MAX;
            if is_vain || outgoing.term != self.node.raft.term {
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

    /// Handles the refusal of a piece: the member has no room for the snapshot, or lacks the pieces before, as after a
    /// restart. So all of them are sent again, after the usual time.
    pub(super) fn on_piece_refused(&mut self, of: MemberId, piece: PieceId) {
        if let Some(outgoing) = self.outgoing.get_mut(&of)
            && (piece.index, piece.at) == (outgoing.snapshot.get_metadata().index, outgoing.at as u64)
        {
            outgoing.restarts += u32::from(outgoing.at > 0);
            (outgoing.at, outgoing.is_in_flight) = (0, true);
        }
    }

    /// Handles the loss of a piece, whatever the cause.
    pub(super) fn on_piece_lost(&mut self, to: MemberId) {
        if let Some(outgoing) = self.outgoing.get_mut(&to) {
            // It is sent again after the usual time.
            outgoing.is_in_flight = true;
        }
    }

    /// Handles a piece. After the last one, [`Self::take_arrived`] passes the snapshot to the engine. Returns whether
    /// the piece was accepted. If not, the leader sends it again after a while.
    pub(super) fn handle_piece(&mut self, from: MemberId, piece: &Piece<'_>) -> Result<bool, MemberError> {
        let is_first = piece.at == 0;
        let end = piece.at.saturating_add(piece.bytes.len() as u64);
        let is_valid = piece.term >= self.node.raft.term && piece.term < wire::NUMBER_MAX;
        if !is_valid || piece.len > LEN_MAX || end > piece.len {
            self.dropped.contradiction += 1;
            return Ok(false);
        }
        if is_first {
            let place = piece.place.clone();
            // Without this check, all of it would be sent again and again while the disk is full.
            if self.would_install(place.index, place.term) && !self.has_room_for_snapshot(piece.len)? {
                self.dropped.disk_full += 1;
                // What came of an earlier one is of no use any more.
                self.incoming = None;
                return Ok(false);
            }
            self.incoming = Some(Incoming { from, term: piece.term, place, len: piece.len, bytes: BytesMut::new() });
        }
        let Some(incoming) = &mut self.incoming else {
            // It may be repeated, of a snapshot that was installed.
            return Ok(!self.would_install(piece.place.index, piece.place.term));
        };
        let is_same = incoming.from == from
            && incoming.term == piece.term
            && incoming.place == piece.place
            && incoming.len == piece.len;
        if !is_same || piece.at > incoming.bytes.len() as u64 {
            return Ok(false);
        }
        // A piece that was sent again may already be there, in part or as a whole.
        let known = incoming.bytes.len() - piece.at as usize;
        incoming.bytes.extend_from_slice(piece.bytes.get(known..).unwrap_or_default());
        if (incoming.bytes.len() as u64) < incoming.len {
            return Ok(true);
        }
        let Some(Incoming { term, place, bytes, .. }) = self.incoming.take() else { return Ok(false) };
        let data: Bytes = bytes.freeze();
        // The engine's answer to a snapshot cannot be taken back, so it must be one that this member can restore.
        let is_sane = wire::decode::<Replicated<'_>>(&data).is_ok_and(|replicated| {
            self.cluster.is_none_or(|cluster| cluster == replicated.founding.cluster)
                && replicated.is_valid(place.index)
                && self.machine.check_snapshot(replicated.machine).is_ok()
        });
        match place.to_snapshot(data).filter(|_| is_sane && place.term <= term) {
            Some(snapshot) => {
                let mut message = Message::default();
                message.set_msg_type(MessageType::MsgSnapshot);
                (message.from, message.to, message.term) = (from.0, self.me.id.0, term);
                message.set_snapshot(snapshot);
                self.arrived = Some(Box::new(message));
                Ok(true)
            }
            None => {
                self.dropped.malformed += 1;
                Ok(false)
            }
        }
    }

    /// Whether the engine would install a snapshot that ends with this entry. It does not if it has the entry.
    fn would_install(&self, index: u64, term: u64) -> bool {
        let log = &self.node.raft.raft_log;
        index >= log.committed && !log.match_term(index, term)
    }

    /// Passes a snapshot that has arrived to the engine. One that the engine will install is written to the disk first,
    /// as the engine's answer to the leader cannot be taken back. If the disk has no room for it, the engine does not
    /// hear of it: the member goes on as it is, and the leader finds out that the member still lacks it. Returns the
    /// promise that was written with the snapshot, if one was.
    pub(super) fn take_arrived(&mut self) -> Result<Option<Promise>, MemberError> {
        let Some(message) = self.arrived.take() else { return Ok(None) };
        let mut promise = Promise::of(&self.node.raft.hard_state());
        // Another message of the same turn may have ended the leader's term.
        if message.term < promise.term {
            return Ok(None);
        }
        let is_later = message.term > promise.term;
        if is_later && !self.can_promise() {
            self.dropped.disk_full += 1;
            return Ok(None);
        }
        let snapshot = message.get_snapshot().clone();
        let (index, term) = (snapshot.get_metadata().index, snapshot.get_metadata().term);
        // The engine's promise once it has the snapshot. It needs no record, for which there may be no room.
        promise.commit = index;
        if is_later {
            (promise.term, promise.vote) = (message.term, raft::INVALID_ID);
        }
        if self.would_install(index, term) && !self.write_snapshot(&snapshot, promise)? {
            self.dropped.disk_full += 1;
            return Ok(None);
        }
        // A refusal of the engine is part of its answer to the leader.
        let _ = self.node.step(*message);
        if self.node.snap().is_none_or(|taken| taken.get_metadata().index != index) {
            // It may have been written, as for a member that is not in its configuration.
            if let (Some(journal), None) = (&mut self.journal, &self.new_base) {
                journal.abandon_replacement();
            }
            return Ok(None);
        }
        self.adopt_snapshot()?;
        Ok(Some(promise))
    }
}
