//! The engine's log, in memory.

mod blocks;

use std::cell::Cell;

use raft::eraftpb::{Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use blocks::Blocks;

/// Bytes counted for an entry besides its data, when the size of appends is limited.
const ENTRY_OVERHEAD: u64 = 32;
/// Entries that a step of [`Log::drop_compacted`] drops at most: they take less than half a millisecond.
const DROPPED_MAX: usize = 1024;

/// The engine's memory: the entries after the last snapshot, and its promises.
#[derive(Debug, Default)]
pub struct Log {
    hard_state: HardState,
    /// The latest snapshot. The entries begin at, or before, the one that follows it.
    snapshot: Snapshot,
    /// Index and term of the entry before the first one kept.
    compacted_to: (u64, u64),
    entries: Blocks<Entry>,
    /// Index of the last entry that the snapshot has replaced and that is not kept for others.
    compacts_to: u64,
    /// Bytes of entries that the next steps of [`Self::drop_compacted`] may drop.
    droppable_len: u64,
    /// Bytes of the entries after the snapshot.
    len: u64,
    /// Whether a member needs a newer snapshot than the latest.
    wants_snapshot: Cell<bool>,
}

fn len_of(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len()) as u64 + ENTRY_OVERHEAD
}

impl Log {
    /// Makes a log that begins after a snapshot.
    pub fn new(snapshot: Snapshot, hard_state: HardState) -> Self {
        let meta = snapshot.get_metadata();
        Self { hard_state, compacted_to: (meta.index, meta.term), snapshot, ..Self::default() }
    }

    /// The latest snapshot.
    pub fn latest_snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The engine's promises: its term, its vote and its commit index.
    pub fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    /// Records a promise.
    pub fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    /// Advances the commit index.
    pub fn set_commit(&mut self, commit: u64) {
        self.hard_state.commit = self.hard_state.commit.max(commit);
    }

    /// Approximate bytes of the entries after the latest snapshot.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Whether a newer snapshot was asked for. Clears the request.
    pub fn take_wants_snapshot(&self) -> bool {
        self.wants_snapshot.take()
    }

    fn last(&self) -> u64 {
        self.compacted_to.0 + self.entries.len() as u64
    }

    /// Appends entries at their indices. Replaces any that were there, and drops those after them.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let keep = first.index.saturating_sub(self.compacted_to.0 + 1) as usize;
        while self.entries.len() > keep
            && let Some(gone) = self.entries.pop_back()
        {
            self.len = self.len.saturating_sub(len_of(&gone));
        }
        for entry in entries {
            self.len += len_of(entry);
            // So the compacted entries are gone before as much is appended, if steps are not at their limit.
            self.droppable_len = self.droppable_len.saturating_add(2 * len_of(entry));
            self.entries.push_back(entry.clone());
        }
    }

    /// Installs a snapshot made by another member: the log then begins after it.
    pub fn install(&mut self, snapshot: Snapshot) {
        let meta = snapshot.get_metadata();
        self.compacted_to = (meta.index, meta.term);
        self.hard_state.commit = self.hard_state.commit.max(meta.index);
        self.hard_state.term = self.hard_state.term.max(meta.term);
        self.entries.clear();
        self.len = 0;
        self.snapshot = snapshot;
    }

    /// Replaces the log up to a snapshot's index by that snapshot. Keeps up to `keep` entries before it, of up to
    /// `keep_len` bytes, for members that are a little behind. The others are dropped by [`Self::drop_compacted`].
    pub fn compact(&mut self, snapshot: Snapshot, keep: u64, keep_len: u64) {
        let index = snapshot.get_metadata().index;
        self.snapshot = snapshot;
        self.len = self.after(index).map(len_of).sum();
        let before = self.entries.range(0, self.position_after(index));
        let mut room = keep_len;
        let fits = |entry: &&Entry| {
            let left = room.checked_sub(len_of(entry));
            room = left.unwrap_or(0);
            left.is_some()
        };
        let kept = before.rev().take(keep as usize).take_while(fits).count() as u64;
        self.compacts_to = index.saturating_sub(kept);
    }

    /// Allows as many bytes of entries more to be dropped, although none are appended.
    pub fn allow_dropping(&mut self, len: u64) {
        self.droppable_len = self.droppable_len.saturating_add(len);
    }

    /// Drops some of the entries that a snapshot has replaced: twice as many bytes as were appended, and as many as are
    /// [allowed](Self::allow_dropping) besides. Dropping 260,000 in steps without a pause took 80 ms of processor
    /// time, after which glibc needed 15 ms at once to merge what was freed; meanwhile heartbeats were late.
    pub fn drop_compacted(&mut self) {
        for _ in 0..DROPPED_MAX {
            if self.compacted_to.0 >= self.compacts_to {
                // Nothing is left, and this must not add up until the next snapshot.
                self.droppable_len = 0;
            }
            if self.droppable_len == 0 {
                break;
            }
            let Some(gone) = self.entries.pop_front() else { break };
            self.compacted_to = (gone.index, gone.term);
            self.droppable_len = self.droppable_len.saturating_sub(len_of(&gone));
        }
    }

    /// Place of the first entry after an index.
    fn position_after(&self, index: u64) -> usize {
        (index.saturating_sub(self.compacted_to.0) as usize).min(self.entries.len())
    }

    /// Entries after an index.
    pub fn after(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.entries.range(self.position_after(index), self.entries.len())
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.snapshot.get_metadata().get_conf_state().clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.compacted_to.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let (from, to) = ((low - self.compacted_to.0 - 1) as usize, (high - self.compacted_to.0 - 1) as usize);
        let mut room = max_size.into().unwrap_or(u64::MAX);
        let mut taken = Vec::new();
        for entry in self.entries.range(from, to) {
            // At least one entry, or there would be no progress.
            if !taken.is_empty() && len_of(entry) > room {
                break;
            }
            room = room.saturating_sub(len_of(entry));
            taken.push(entry.clone());
        }
        Ok(taken)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.compacted_to.0 {
            return Ok(self.compacted_to.1);
        }
        let meta = self.snapshot.get_metadata();
        if index == meta.index {
            return Ok(meta.term);
        }
        if index < self.compacted_to.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.entries.get((index - self.compacted_to.0 - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.compacted_to.0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> Result<Snapshot> {
        let meta = self.snapshot.get_metadata();
        let (index, roles) = (meta.index, meta.get_conf_state());
        // Its receiver must be among the snapshot's members, and the entries that follow the snapshot must still be
        // there. A voter that is leaving is a member: its vote may be needed to complete the change.
        let mut members = [&roles.voters, &roles.voters_outgoing, &roles.learners, &roles.learners_next].into_iter();
        let is_member = members.any(|ids| ids.contains(&to));
        if index == 0 || index < request_index || index < self.compacted_to.0 || !is_member {
            self.wants_snapshot.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.snapshot.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        let mut entry = Entry::default();
        (entry.index, entry.term) = (index, term);
        entry.data = bytes::Bytes::from_static(&[0; 68]);
        entry
    }

    fn snapshot(index: u64, term: u64) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = index;
        snapshot.mut_metadata().term = term;
        snapshot.mut_metadata().mut_conf_state().voters.push(7);
        snapshot
    }

    fn log() -> Log {
        let mut log = Log::new(snapshot(1, 1), HardState::default());
        log.append(&[entry(2, 1), entry(3, 1), entry(4, 2)]);
        log
    }

    fn indices(entries: Result<Vec<Entry>>) -> Vec<u64> {
        entries.unwrap().iter().map(|entry| entry.index).collect()
    }

    #[test]
    fn later_entries_take_the_place_of_earlier_ones() {
        let mut log = log();
        log.append(&[entry(3, 3)]);
        assert_eq!((log.last_index().unwrap(), log.term(3).unwrap()), (3, 3));
        assert_eq!(log.len_bytes(), 200);
        assert!(log.term(4).is_err());
    }

    #[test]
    fn appends_are_bounded_by_bytes_and_have_one_entry_at_least() {
        let log = log();
        let all = |max: u64| indices(log.entries(2, 5, max, GetEntriesContext::empty(false)));
        assert_eq!((all(0), all(200), all(u64::MAX)), (vec![2], vec![2, 3], vec![2, 3, 4]));
        assert!(log.entries(1, 3, None, GetEntriesContext::empty(false)).is_err());
        assert!(log.entries(2, 6, None, GetEntriesContext::empty(false)).is_err());
    }

    #[test]
    fn entries_before_a_snapshot_go_but_for_those_to_be_kept() {
        let mut log = log();
        log.compact(snapshot(3, 1), 1, 1000);
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (2, 4), "they are dropped later");
        log.drop_compacted();
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (3, 4));
        assert_eq!((log.term(2).unwrap(), log.term(3).unwrap(), log.len_bytes()), (1, 1, 100));
        assert_eq!(log.snapshot(3, 7).unwrap().get_metadata().index, 3);
        assert!(log.snapshot(3, 8).is_err() && log.take_wants_snapshot());
        assert!(log.snapshot(4, 7).is_err() && log.take_wants_snapshot() && !log.take_wants_snapshot());
    }

    #[test]
    fn a_voter_that_is_leaving_is_given_a_snapshot() {
        let mut between = snapshot(3, 1);
        between.mut_metadata().mut_conf_state().voters_outgoing.push(8);
        let mut log = log();
        log.compact(between, 0, 0);
        assert!(log.snapshot(3, 8).is_ok() && !log.take_wants_snapshot());
        assert!(log.snapshot(3, 9).is_err() && log.take_wants_snapshot());
    }

    #[test]
    fn as_many_bytes_are_kept_as_fit() {
        for (keep, keep_len, first) in [(0, 1000, 10), (3, 1000, 7), (9, 250, 8), (9, 99, 10), (99, 10_000, 2)] {
            let mut log = Log::new(snapshot(1, 1), HardState::default());
            log.append(&(2..=12).map(|index| entry(index, 1)).collect::<Vec<_>>());
            log.compact(snapshot(9, 1), keep, keep_len);
            log.drop_compacted();
            assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (first, 12), "{keep} {keep_len}");
            assert_eq!((log.len_bytes(), log.after(9).count()), (300, 3));
        }
    }

    #[test]
    fn compacted_entries_go_twice_as_fast_as_others_come_by_bytes_and_in_bounded_steps() {
        let mut log = Log::new(snapshot(1, 1), HardState::default());
        let append = |log: &mut Log, count: u64, len: usize| {
            let last = log.last_index().unwrap();
            let entries = (last + 1..=last + count).map(|index| Entry { data: vec![0; len].into(), ..entry(index, 1) });
            log.append(&entries.collect::<Vec<_>>());
        };
        append(&mut log, 4000, 68);
        log.drop_compacted();
        log.compact(snapshot(4001, 1), 0, 0);
        let mut firsts = vec![];
        // Each short entry counts 100 bytes.
        for (count, len, allowed) in [(0, 0, 0), (10, 68, 0), (1, 968, 300), (1, 199_968, 0), (0, 0, 0), (0, 0, 0)] {
            append(&mut log, count, len);
            log.allow_dropping(allowed);
            log.drop_compacted();
            let first = log.first_index().unwrap();
            assert_eq!(log.term(first - 1).unwrap(), 1);
            firsts.push(first - 2);
        }
        assert_eq!(firsts, [0, 20, 43, 1067, 2091, 3115]);
        log.drop_compacted();
        assert_eq!(log.first_index().unwrap(), 4002, "those after the snapshot stay");
        // What was appended meanwhile does not add up.
        log.drop_compacted();
        log.compact(snapshot(4003, 1), 0, 0);
        log.drop_compacted();
        assert_eq!(log.first_index().unwrap(), 4002);
    }
}
