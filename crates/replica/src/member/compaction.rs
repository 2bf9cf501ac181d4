//! Replacement of the log by a snapshot of the applied state. Each turn makes a part of the snapshot, or, once it is
//! whole, writes a part of it to the disk. In one go, either could take longer than the silence after which the others
//! elect another leader.

use bytes::Bytes;
use sinew_journal::disk::Disk;

use super::durable::{self, Promise, Replicated};
use super::{Member, MemberError};
use crate::machine::StateMachine;
use crate::wire::{self, Roles, SnapshotMeta};

/// Longest encoding of a length, in bytes.
const LEN_LEN_MAX: usize = 10;

/// A snapshot that is being made.
pub struct PendingSnapshot {
    place: SnapshotMeta,
    /// [`Replicated`] up to the length of the machine's bytes.
    head: Vec<u8>,
    /// Room for what precedes the machine's bytes in the snapshot and in the journal, and then the machine's bytes. So
    /// these are not copied.
    bytes: Vec<u8>,
    room: usize,
    is_whole: bool,
    /// Whether another member waits for it.
    is_awaited: bool,
    /// Length of the log after the last step, in bytes.
    log_len: u64,
}

impl PendingSnapshot {
    /// The snapshot's data, and the base of a journal that begins with it. `base_head` makes the bytes before the
    /// data in the base, given the data's length.
    fn into_data_and_base(mut self, base_head: impl FnOnce(usize) -> Vec<u8>) -> (Bytes, Bytes) {
        wire::append(&(self.bytes.len() - self.room), &mut self.head);
        let data = self.room - self.head.len()..self.bytes.len();
        self.bytes[data.start..self.room].copy_from_slice(&self.head);
        let base = base_head(data.len());
        let base_start = data.start - base.len();
        self.bytes[base_start..data.start].copy_from_slice(&base);
        self.bytes.extend(durable::TAIL_OF_NONE);
        let bytes = Bytes::from(self.bytes);
        (bytes.slice(data), bytes.slice(base_start..))
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Goes on with the snapshot that is being made; begins one if the log is long, or if a member needs one. Drops
    /// some entries of the log that the last snapshot has replaced. Returns whether to go on at once.
    ///
    /// # Errors
    ///
    /// [`MemberError`] as for [`Self::turn`].
    pub(super) fn compact_in_steps(&mut self) -> Result<bool, MemberError> {
        // This asks for no further turn: the steps are meant to have pauses between them.
        self.node.mut_store().drop_compacted();
        if self.is_replacing_journal() {
            self.continue_replacing_journal()?;
            return Ok(true);
        }
        let Some(pending) = &mut self.pending_snapshot else {
            let log = self.node.store();
            let is_wanted = log.take_wants_snapshot();
            let has_new = self.applied > log.latest_snapshot().get_metadata().index;
            if has_new && (is_wanted || log.len_bytes() >= self.config.log_len_max) {
                self.begin_snapshot(is_wanted);
            }
            return Ok(self.pending_snapshot.is_some());
        };
        if !pending.is_whole {
            // Twice what the log has grown by, so that it does not outgrow the state.
            let log_len = self.node.store().len_bytes();
            let grown = usize::try_from(log_len.saturating_sub(pending.log_len)).unwrap_or(usize::MAX);
            pending.is_awaited |= self.node.store().take_wants_snapshot();
            let least = if pending.is_awaited || grown == 0 { self.config.snapshot_step_len } else { 0 };
            pending.is_whole = self.machine.continue_snapshot(&mut pending.bytes, least.max(grown.saturating_mul(2)));
            pending.log_len = log_len;
            // While no member waits for it, there is a step when there is other work, and in each tick. Members that
            // made their snapshots without a pause would all be busy at once, and might be taken for dead.
            return Ok(pending.is_awaited || pending.is_whole);
        }
        let Some(pending) = self.pending_snapshot.take() else { return Ok(false) };
        let Some(cluster) = self.cluster else { return Ok(false) };
        let (place, promise) = (pending.place.clone(), Promise::of(self.node.store().hard_state()));
        let base_head = |len| durable::base_head(&self.me, cluster, promise, &place, len);
        let (data, base) = pending.into_data_and_base(base_head);
        if let Some(snapshot) = place.to_snapshot(data) {
            let (kept, kept_len_max) = (self.config.entries_kept, self.config.log_len_max / 4);
            self.node.mut_store().compact(snapshot, kept, kept_len_max);
            self.begin_replacing_journal(base, place.index)?;
        }
        Ok(true)
    }

    pub(super) fn begin_snapshot(&mut self, is_awaited: bool) {
        let (Some(founding), Some(cluster)) = (self.founding.clone(), self.cluster) else { return };
        let Ok(term) = self.node.raft.raft_log.term(self.applied) else { return };
        let members = self.members.values().cloned().collect();
        let replicated = Replicated { founding, members, sessions: self.sessions.clone(), machine: &[] };
        let mut head = Vec::new();
        wire::encode(&replicated, &mut head);
        // Drops the length of the machine's bytes, which is not known yet.
        head.pop();
        let roles = Roles::from_state(&self.node.raft.prs().conf().to_conf_state());
        let place = SnapshotMeta { index: self.applied, term, roles };
        // The promise and the lengths are not known yet. Small numbers take fewer bytes than these.
        let promise = Promise { term: u64::MAX, vote: u64::MAX, commit: u64::MAX };
        let base_room = durable::base_head(&self.me, cluster, promise, &place, usize::MAX).len();
        let room = base_room + head.len() + LEN_LEN_MAX;
        let log_len = self.node.store().len_bytes();
        let mut pending =
            PendingSnapshot { place, head, bytes: vec![0; room], room, is_whole: false, is_awaited, log_len };
        pending.is_whole = self.machine.begin_snapshot(&mut pending.bytes);
        self.pending_snapshot = Some(pending);
    }
}
