//! Messages from other members.

use raft::eraftpb::{Entry, Message, MessageType};
use sinew_journal::disk::{Disk, DiskError};

use super::appends;
use super::{Member, MemberError, PeerAnswer, engine, window};
use crate::machine::StateMachine;
use crate::wire::{self, ClusterId, DecodeError, MemberId, PeerMessage, PieceId, WireMessage};

/// Room on the disk that the engine's own entries may need, in bytes.
const JOURNAL_SPARE_LEN: usize = 64 << 10;
/// Room that one promise and an empty entry take, in bytes, with some to spare.
const PROMISES_LEN: usize = 512;

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Handles a message that came as a call, and returns the answer. No message can stop the member.
    ///
    /// # Errors
    ///
    /// [`MemberError`] as for [`Self::turn`].
    pub fn handle_peer(&mut self, bytes: &[u8], now_ns: u64) -> Result<PeerAnswer<'static>, MemberError> {
        Ok(match self.read(bytes) {
            Some(PeerMessage::Hello(hello)) => {
                let to = hello.me.id;
                self.handle_hello(hello, false, now_ns)?;
                let say = PeerMessage::Hello(self.hello(Some(to)));
                PeerAnswer::Now(if self.has_kept_id { say } else { PeerMessage::Nothing })
            }
            Some(PeerMessage::Messages { cluster, from, to, messages }) => match self.check_names(cluster, to) {
                Some(wrong) => PeerAnswer::Now(wrong),
                None => {
                    self.handle_messages(from, &messages, now_ns);
                    if self.is_leader() && !self.members.contains_key(&from) {
                        PeerAnswer::Now(PeerMessage::NoMember)
                    } else {
                        PeerAnswer::AtEndOfTurn(from)
                    }
                }
            },
            Some(PeerMessage::Piece { cluster, from, to, piece }) => match self.check_names(cluster, to) {
                Some(wrong) => PeerAnswer::Now(wrong),
                None => {
                    self.note_message_from(from, now_ns);
                    let taken = self.handle_piece(from, &piece)?;
                    PeerAnswer::Now(if taken { PeerMessage::Nothing } else { PeerMessage::NoMember })
                }
            },
            Some(
                PeerMessage::Nothing
                | PeerMessage::WrongReceiver { .. }
                | PeerMessage::NoMember
                | PeerMessage::NotAdmitted,
            )
            | None => PeerAnswer::Now(PeerMessage::Nothing),
        })
    }

    /// Handles the answer to a call that went to a member, or, if `from` is `None`, to an address. `piece` is the piece
    /// of a snapshot that the call carried.
    ///
    /// # Errors
    ///
    /// [`MemberError`] as for [`Self::turn`].
    pub fn handle_answer(
        &mut self,
        from: Option<MemberId>,
        piece: Option<PieceId>,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<(), MemberError> {
        match (self.read(bytes), from) {
            (Some(PeerMessage::Hello(hello)), _) => self.handle_hello(hello, true, now_ns)?,
            (Some(PeerMessage::Messages { cluster, from, to, messages }), Some(of)) if from == of => {
                if self.check_names(cluster, to).is_none() {
                    self.handle_messages(from, &messages, now_ns);
                }
            }
            (Some(PeerMessage::Nothing), Some(of)) => {
                self.note_message_from(of, now_ns);
                if let Some(piece) = piece {
                    self.on_piece_acknowledged(of, piece);
                }
            }
            (Some(PeerMessage::NoMember), Some(of)) => match piece {
                Some(piece) => self.on_piece_refused(of, piece),
                None => self.is_unwanted = true,
            },
            (Some(PeerMessage::WrongReceiver { .. }), _) => self.dropped.member += 1,
            _ => self.dropped.malformed += 1,
        }
        Ok(())
    }

    /// Counts a request that was refused because its sender has not proved that it has the cluster's key.
    pub fn count_not_admitted(&mut self) {
        self.dropped.not_admitted += 1;
    }

    /// Counts messages that could not be sent.
    pub fn count_unsent(&mut self, count: u64) {
        self.dropped.unsent += count;
    }

    /// Handles the failure of a call to a member, which did not answer it.
    pub fn call_failed(&mut self, to: Option<MemberId>, piece: Option<PieceId>) {
        let Some(of) = to else { return };
        if piece.is_some() {
            self.on_piece_lost(of);
        } else if self.is_leader() {
            self.node.report_unreachable(of.0);
            if let Some(window) = self.windows.get_mut(&of) {
                window.clear();
            }
            // The engine finds out anew what the member has.
            if let Some(messages) = self.outbox.get_mut(&of) {
                messages.retain(|message| !appends::is_of_leader(message));
            }
        }
    }

    fn read<'a>(&mut self, bytes: &'a [u8]) -> Option<PeerMessage<'a>> {
        match wire::decode(bytes) {
            Ok(say) => Some(say),
            Err(DecodeError::Version(_)) => {
                self.dropped.version += 1;
                None
            }
            Err(DecodeError::Malformed) => {
                self.dropped.malformed += 1;
                None
            }
        }
    }

    /// Checks that a message is for this life of this member, in its cluster; returns the answer if not. A member
    /// without a cluster joins that of the first sender that knows its life.
    fn check_names(&mut self, cluster: ClusterId, to: MemberId) -> Option<PeerMessage<'static>> {
        if to != self.me.id {
            self.dropped.member += 1;
            return Some(PeerMessage::WrongReceiver { here: self.me.clone() });
        }
        if cluster == ClusterId::NONE || *self.cluster.get_or_insert(cluster) != cluster {
            self.dropped.cluster += 1;
            return Some(PeerMessage::WrongReceiver { here: self.me.clone() });
        }
        None
    }

    /// Notes that a member was heard. Strangers are not recorded, because there may be any number of them.
    fn note_message_from(&mut self, from: MemberId, now_ns: u64) {
        if self.members.contains_key(&from) {
            self.last_heard_ns.insert(from, now_ns);
            let has_changed = self.patience.note_heard(from, self.is_expected(from));
            self.redraw_election_ticks(has_changed);
        }
    }

    fn handle_messages(&mut self, from: MemberId, messages: &[WireMessage<'_>], now_ns: u64) {
        self.note_message_from(from, now_ns);
        for wire in messages {
            let Some(mut message) = wire.to_message(from, self.me.id) else {
                self.dropped.malformed += 1;
                continue;
            };
            let kind = message.get_msg_type();
            let asks_for_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
            if asks_for_vote && now_ns < self.quiet_until_ns {
                continue;
            }
            let is_current = message.term >= self.node.raft.term;
            if kind == MessageType::MsgHeartbeat && is_current && !self.promise_lease(&message.context, now_ns) {
                // The leader is heard, but its reads are not confirmed.
                message.context.clear();
            }
            if !engine::is_acceptable(&self.node, &message) {
                self.dropped.contradiction += 1;
                continue;
            }
            // A higher term, or a vote, has to be promised on the disk.
            let asks_for_promise = message.term > self.node.raft.term
                || matches!(
                    kind,
                    MessageType::MsgRequestVote
                        | MessageType::MsgRequestVoteResponse
                        | MessageType::MsgRequestPreVoteResponse
                        | MessageType::MsgTimeoutNow
                );
            if asks_for_promise && !self.can_promise() {
                self.dropped.disk_full += 1;
                continue;
            }
            if kind == MessageType::MsgAppendResponse && message.term == self.node.raft.term {
                self.note_append_answer(from, &message, now_ns);
            }
            if !message.entries.is_empty() {
                let count = self.count_with_room(&message.entries);
                if count == 0 {
                    self.dropped.disk_full += 1;
                    continue;
                }
                // The first entries of an append are an append.
                message.entries.truncate(count);
            }
            if matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat) {
                self.is_unwanted = false;
            }
            // The engine itself answers what it refuses.
            let _ = self.node.step(message);
        }
    }

    /// Notes which of the entries in flight to a member have arrived. After a refusal the engine sends others.
    fn note_append_answer(&mut self, from: MemberId, answer: &Message, now_ns: u64) {
        let Some(window) = self.windows.get_mut(&from) else { return };
        if !answer.reject {
            return window.note_acknowledged(answer.index);
        }
        if window.note_refused(answer.index, now_ns)
            && let Some(messages) = self.outbox.get_mut(&from)
        {
            messages.retain(|message| !window::has_entries(message));
        }
    }

    /// Number of an append's entries, from the first on, that fit on the disk. If they do not all fit, the leading
    /// ones without data may use the spare room: they are the engine's own, and until the first of a new leader is
    /// committed, it can answer no reads.
    pub(super) fn count_with_room(&mut self, entries: &[Entry]) -> usize {
        let len = |entry: &Entry| entry.data.len() + entry.context.len();
        if self.has_room(entries.len(), entries.iter().map(len).sum()) {
            return entries.len();
        }
        let own = entries.iter().take_while(|entry| len(entry) == 0).count();
        self.unwritten.0 += own;
        if own > 0 && !self.can_promise() {
            self.unwritten.0 -= own;
            return 0;
        }
        own
    }

    /// Whether the engine's own entries and promises find room on the disk. Where none is left, as after a restart on a
    /// full disk, a member neither votes nor follows a leader of a later term, but goes on with what it has.
    pub(super) fn can_promise(&mut self) -> bool {
        // What is written next: a promise, an empty entry, and what was accepted. The spare is there for these.
        let (entries, len) = (self.unwritten.0 + 4, self.unwritten.1 + 64 * self.unwritten.0 + PROMISES_LEN);
        let is_reserved = self.reserve(entries, len);
        self.is_full |= !is_reserved;
        is_reserved
    }

    /// Whether this many entries, of `len` bytes in all, find room on the disk, besides those already accepted in this
    /// turn.
    pub(super) fn has_room(&mut self, entries: usize, len: usize) -> bool {
        let (more, more_len) = (self.unwritten.0 + entries, self.unwritten.1 + len);
        self.is_full = !self.reserve(more + 2, more_len + 64 * more + JOURNAL_SPARE_LEN);
        if !self.is_full {
            self.unwritten = (more, more_len);
        }
        !self.is_full
    }

    /// Reserves room in the journal, if there is one. Returns false if the disk is full. A disk that has failed reports
    /// that when it is written to.
    fn reserve(&mut self, records: usize, len: usize) -> bool {
        // Nothing can be written to a journal without a base.
        if !self.has_base {
            let written = self.replace_journal();
            if written.is_ok() && !self.has_base {
                return false;
            }
        }
        self.journal.as_mut().is_none_or(|journal| journal.reserve(records, len) != Err(DiskError::Full))
    }
}
