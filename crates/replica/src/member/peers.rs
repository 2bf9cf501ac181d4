//! Messages of other members.

use raft::eraftpb::MessageType;
use sinew_journal::disk::{Disk, DiskError};

use super::{Member, MemberError, PeerAnswer, engine};
use crate::machine::StateMachine;
use crate::wire::{self, ClusterId, MemberId, Nonsense, Say, WireMessage};

/// Room on the disk that the engine's own entries may need, in bytes.
const SPARE: usize = 64 << 10;

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Handles a message that came as a call, and returns the answer. No message can stop the member.
    ///
    /// # Errors
    ///
    /// [`MemberError`] as for [`Self::turn`].
    pub fn take_peer(&mut self, bytes: &[u8], now_ns: u64) -> Result<PeerAnswer<'static>, MemberError> {
        Ok(match self.read(bytes) {
            Some(Say::Hello(hello)) => {
                let to = hello.me.id;
                self.take_hello(hello, false, now_ns)?;
                PeerAnswer::Now(Say::Hello(self.hello(Some(to))))
            }
            Some(Say::Messages { cluster, from, to, messages }) => match self.check_names(cluster, to) {
                Some(wrong) => PeerAnswer::Now(wrong),
                None => {
                    self.take_messages(from, &messages, now_ns);
                    if self.is_leader() && !self.members.contains_key(&from) {
                        PeerAnswer::Now(Say::NoMember)
                    } else {
                        PeerAnswer::AfterTurn(from)
                    }
                }
            },
            Some(Say::Piece { cluster, from, to, piece }) => match self.check_names(cluster, to) {
                Some(wrong) => PeerAnswer::Now(wrong),
                None => {
                    self.note_heard(from, now_ns);
                    let taken = self.take_piece(from, &piece);
                    PeerAnswer::Now(if taken { Say::Nothing } else { Say::NoMember })
                }
            },
            Some(Say::Nothing | Say::Wrong { .. } | Say::NoMember | Say::Stranger) | None => {
                PeerAnswer::Now(Say::Nothing)
            }
        })
    }

    /// Handles the answer to a call that went to a member, or, if `of` is `None`, to an address.
    ///
    /// # Errors
    ///
    /// [`MemberError`] as for [`Self::turn`].
    pub fn take_answer(
        &mut self,
        of: Option<MemberId>,
        was_piece: bool,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<(), MemberError> {
        match (self.read(bytes), of) {
            (Some(Say::Hello(hello)), _) => self.take_hello(hello, true, now_ns)?,
            (Some(Say::Messages { cluster, from, to, messages }), Some(of)) if from == of => {
                if self.check_names(cluster, to).is_none() {
                    self.take_messages(from, &messages, now_ns);
                }
            }
            (Some(Say::Nothing), Some(of)) => {
                self.heard_ns.insert(of, now_ns);
                if was_piece {
                    self.piece_arrived(of);
                }
            }
            (Some(Say::NoMember), Some(of)) if was_piece => self.piece_lost(of),
            (Some(Say::NoMember), Some(_)) => self.is_unwanted = true,
            (Some(Say::Wrong { .. }), _) => self.dropped.member += 1,
            _ => self.dropped.nonsense += 1,
        }
        Ok(())
    }

    /// Counts a request that was refused because its sender has not proved that it has the cluster's key.
    pub fn refused_stranger(&mut self) {
        self.dropped.stranger += 1;
    }

    /// Handles a call to a member that was not answered.
    pub fn call_failed(&mut self, of: Option<MemberId>, was_piece: bool) {
        let Some(of) = of else { return };
        if was_piece {
            self.piece_lost(of);
        } else if self.is_leader() {
            self.node.report_unreachable(of.0);
        }
    }

    fn read<'a>(&mut self, bytes: &'a [u8]) -> Option<Say<'a>> {
        match wire::decode(bytes) {
            Ok(say) => Some(say),
            Err(Nonsense::Version(_)) => {
                self.dropped.version += 1;
                None
            }
            Err(Nonsense::Other) => {
                self.dropped.nonsense += 1;
                None
            }
        }
    }

    /// Checks that a message is for this life of this member, in its cluster; returns the answer if not. A member
    /// without a cluster joins that of the first sender that knows its life.
    fn check_names(&mut self, cluster: ClusterId, to: MemberId) -> Option<Say<'static>> {
        if to != self.me.id {
            self.dropped.member += 1;
            return Some(Say::Wrong { here: self.me.clone() });
        }
        if *self.cluster.get_or_insert(cluster) != cluster {
            self.dropped.cluster += 1;
            return Some(Say::Wrong { here: self.me.clone() });
        }
        None
    }

    /// Strangers are not recorded, because there may be any number of them.
    fn note_heard(&mut self, from: MemberId, now_ns: u64) {
        if self.members.contains_key(&from) {
            self.heard_ns.insert(from, now_ns);
        }
    }

    fn take_messages(&mut self, from: MemberId, messages: &[WireMessage<'_>], now_ns: u64) {
        self.note_heard(from, now_ns);
        for wire in messages {
            let Some(message) = wire.to_message(from, self.me.id) else {
                self.dropped.nonsense += 1;
                continue;
            };
            let kind = message.get_msg_type();
            let asks_for_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
            if asks_for_vote && now_ns < self.quiet_until_ns {
                continue;
            }
            if !engine::is_bearable(&self.node, &message) {
                self.dropped.contradiction += 1;
                continue;
            }
            if !message.entries.is_empty() {
                let len = message.entries.iter().map(|entry| entry.data.len() + entry.context.len()).sum();
                if !self.has_room(message.entries.len(), len) {
                    self.dropped.disk_full += 1;
                    continue;
                }
            }
            if matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat) {
                self.is_unwanted = false;
            }
            // The engine itself answers what it refuses.
            let _ = self.node.step(message);
        }
    }

    /// Whether this many entries, of `len` bytes in all, find room on the disk, besides those already accepted in this
    /// turn.
    pub(super) fn has_room(&mut self, entries: usize, len: usize) -> bool {
        let Some(journal) = &mut self.journal else { return true };
        let (more, more_len) = (self.let_in.0 + entries, self.let_in.1 + len);
        let reserved = journal.reserve(more + 2, more_len + 64 * more + SPARE);
        self.is_full = reserved == Err(DiskError::Full);
        if !self.is_full {
            self.let_in = (more, more_len);
        }
        // A disk that has failed reports that when it is written to.
        !self.is_full
    }
}
