//! Replacement of the log by a snapshot of the applied state. A part of it is made in each turn: whole, it may take
//! longer than the silence after which the others elect another leader.

use bytes::Bytes;
use sinew_journal::disk::Disk;

use super::durable::Replicated;
use super::{Member, MemberError};
use crate::machine::StateMachine;
use crate::wire::{self, Roles, SnapshotMeta};

/// Longest form of a length on the wire, in bytes.
const LEN_LEN_MAX: usize = 10;
/// Entries dropped in one turn, at most, after a snapshot has replaced them.
const DROPPED_MAX: usize = 1024;

/// A snapshot that is being made.
pub struct PendingSnapshot {
    place: SnapshotMeta,
    /// [`Replicated`] up to the length of the machine's bytes.
    head: Vec<u8>,
    /// Room for the head and that length, and then the machine's bytes. So these are not copied.
    bytes: Vec<u8>,
    is_whole: bool,
}

impl PendingSnapshot {
    /// Bytes before the machine's.
    fn room(&self) -> usize {
        self.head.len() + LEN_LEN_MAX
    }

    fn into_data(mut self) -> Bytes {
        let room = self.room();
        wire::append(&(self.bytes.len() - room), &mut self.head);
        let start = room - self.head.len();
        self.bytes[start..room].copy_from_slice(&self.head);
        Bytes::from(self.bytes).slice(start..)
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Goes on with the snapshot that is being made; begins one if the log is long, or if a member needs one. Returns
    /// whether there was anything to do.
    ///
    /// # Errors
    ///
    /// [`MemberError`] as for [`Self::turn`].
    pub(super) fn compact_in_steps(&mut self) -> Result<bool, MemberError> {
        let is_dropping = self.node.mut_store().drop_compacted(DROPPED_MAX);
        let Some(pending) = &mut self.pending_snapshot else {
            let log = self.node.store();
            let is_wanted = log.take_wants_snapshot();
            let has_new = self.applied > log.latest_snapshot().get_metadata().index;
            if has_new && (is_wanted || log.len_bytes() >= self.config.log_len_max) {
                self.begin_snapshot();
            }
            return Ok(is_dropping || self.pending_snapshot.is_some());
        };
        if !pending.is_whole {
            pending.is_whole = self.machine.continue_snapshot(&mut pending.bytes, self.config.snapshot_step_len);
            return Ok(true);
        }
        let Some(pending) = self.pending_snapshot.take() else { return Ok(is_dropping) };
        let place = pending.place.clone();
        if let Some(snapshot) = place.to_snapshot(pending.into_data()) {
            let (kept, kept_len_max) = (self.config.entries_kept, self.config.log_len_max / 4);
            self.node.mut_store().compact(snapshot, kept, kept_len_max);
            self.replace_journal()?;
        }
        Ok(true)
    }

    fn begin_snapshot(&mut self) {
        let Some(founding) = self.founding.clone() else { return };
        let Ok(term) = self.node.raft.raft_log.term(self.applied) else { return };
        let members = self.members.values().cloned().collect();
        let replicated = Replicated { founding, members, sessions: self.sessions.clone(), machine: &[] };
        let mut head = Vec::new();
        wire::encode(&replicated, &mut head);
        // The length of the machine's bytes, which is not known yet.
        head.pop();
        let roles = Roles::from_state(&self.node.raft.prs().conf().to_conf_state());
        let place = SnapshotMeta { index: self.applied, term, roles };
        let mut pending = PendingSnapshot { place, head, bytes: Vec::new(), is_whole: false };
        pending.bytes.resize(pending.room(), 0);
        pending.is_whole = self.machine.begin_snapshot(&mut pending.bytes);
        self.pending_snapshot = Some(pending);
    }
}
