//! Writing of the journal: its records, and its replacement by one that begins with a new snapshot.
//!
//! The new journal's base is written in parts while entries go on to the old journal. The entries after the snapshot
//! are then repeated in the new one.

use bytes::Bytes;
use raft::Storage;
use raft::eraftpb::{Entry, Snapshot};
use sinew_journal::disk::{Disk, DiskError};

use super::durable::{self, Promise, Record};
use super::{Member, MemberError};
use crate::log::Log;
use crate::machine::StateMachine;
use crate::wire::{self, ADDRESS_LEN_MAX, ClusterId, MEMBERS_MAX, NAME_LEN_MAX, WireEntry};

/// Bytes of entries in one record, at most, apart from the last entry.
const RECORD_LEN_MAX: usize = 1 << 20;
/// Bytes of a journal's base beside its snapshot's data, at most.
const BASE_OVERHEAD_LEN: usize = 4 << 10;

const _: () = assert!(NAME_LEN_MAX + ADDRESS_LEN_MAX + 4 * 10 * MEMBERS_MAX + 512 <= BASE_OVERHEAD_LEN);

/// The base of a new journal that is being written.
pub struct NewBase {
    base: Bytes,
    is_written: bool,
    /// Index of the last entry that the new journal has.
    repeated_to: u64,
    /// Bytes of entries that a step repeats, at most, apart from its last entry.
    step_len: usize,
    /// Entries that were still to be repeated after the last step.
    behind: u64,
}

impl NewBase {
    /// Index of the last entry that the new journal has.
    #[cfg(test)]
    pub fn repeated_to(&self) -> u64 {
        self.repeated_to
    }

    /// Takes the next records for the new journal. Returns them, and whether the new journal lacks none after these.
    fn take_records(&mut self, log: &Log) -> (Vec<Vec<u8>>, bool) {
        let mut room = self.step_len;
        let mut records = Vec::new();
        let mut entries = log.after(self.repeated_to).peekable();
        while room > 0 && entries.peek().is_some() {
            let mut record_room = room.min(RECORD_LEN_MAX);
            let mut taken = Vec::new();
            while record_room > 0
                && let Some(entry) = entries.next()
            {
                let len = entry.data.len() + entry.context.len() + 1;
                (record_room, room) = (record_room.saturating_sub(len), room.saturating_sub(len));
                self.repeated_to = entry.index;
                taken.push(WireEntry::from_entry(entry));
            }
            records.push(encode(&Record::Entries(taken)));
        }
        let behind = log.last_index().unwrap_or(0).saturating_sub(self.repeated_to);
        if behind == 0 {
            records.push(encode(&Record::Promise(Promise::of(log.hard_state()))));
        } else if behind >= self.behind {
            // Entries arrive faster than they are repeated.
            self.step_len = self.step_len.saturating_mul(2);
        }
        self.behind = behind;
        (records, behind == 0)
    }
}

fn encode(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(record, &mut bytes);
    bytes
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Adds entries and promises to the journal's buffer, and entries to the log.
    pub(super) fn journal_entries(&mut self, entries: &[Entry], promise: Option<Promise>) {
        if let (Some(new), Some(first)) = (&mut self.new_base, entries.first()) {
            // These replace later ones of an earlier term.
            new.repeated_to = new.repeated_to.min(first.index.saturating_sub(1));
        }
        if let Some(journal) = &mut self.journal {
            let mut bytes = Vec::new();
            if !entries.is_empty() {
                wire::encode(&Record::Entries(entries.iter().map(WireEntry::from_entry).collect()), &mut bytes);
                journal.append(&bytes);
            }
            if let Some(promise) = promise {
                bytes.clear();
                wire::encode(&Record::Promise(promise), &mut bytes);
                journal.append(&bytes);
            }
        }
        self.node.mut_store().append(entries);
    }

    /// Writes its id to an empty disk, if there is room.
    pub(super) fn keep_id(&mut self) -> Result<(), MemberError> {
        let Some(journal) = self.journal.as_mut().filter(|_| !self.has_kept_id) else { return Ok(()) };
        let log = self.node.store();
        let base =
            durable::base(&self.me, ClusterId::NONE, log.hard_state(), log.latest_snapshot(), std::iter::empty());
        let written = journal.replace(&base);
        if self.note_full(written)?.is_some() {
            (self.has_kept_id, self.is_full) = (true, false);
        }
        Ok(())
    }

    /// Replaces the journal by one that begins with the log's latest snapshot.
    pub(super) fn replace_journal(&mut self) -> Result<(), MemberError> {
        self.new_base = None;
        let (Some(journal), Some(cluster)) = (&mut self.journal, self.cluster) else { return Ok(()) };
        let log = self.node.store();
        let snapshot = log.latest_snapshot();
        let tail = log.after(snapshot.get_metadata().index);
        let replaced = journal.replace(&durable::base(&self.me, cluster, log.hard_state(), snapshot, tail));
        if self.note_full(replaced)?.is_some() {
            (self.has_kept_id, self.has_base, self.is_full) = (true, true, false);
        }
        Ok(())
    }

    /// Whether the disk has room for a journal that begins with a snapshot of this many bytes, as far as the disk can
    /// tell.
    pub(super) fn has_room_for_snapshot(&mut self, len: u64) -> Result<bool, MemberError> {
        let Some(journal) = &mut self.journal else { return Ok(true) };
        let checked = journal.check_room(len.saturating_add(BASE_OVERHEAD_LEN as u64));
        match self.note_full(checked) {
            // The length is a peer's, and may be one that no file can have: it must not end the member.
            Err(_) if self.journal.as_ref().is_none_or(|journal| journal.error().is_none()) => Ok(true),
            room => Ok(room?.is_some()),
        }
    }

    /// Writes a journal that begins with a snapshot of the leader's and with this promise, beside the present journal.
    /// [`Self::adopt_snapshot`] puts it in that one's place. Returns whether there was room.
    pub(super) fn write_snapshot(&mut self, snapshot: &Snapshot, promise: Promise) -> Result<bool, MemberError> {
        let Some(journal) = &mut self.journal else { return Ok(true) };
        let Some(cluster) = self.cluster else { return Ok(false) };
        self.new_base = None;
        let base = durable::base(&self.me, cluster, &promise.to_state(), snapshot, std::iter::empty());
        // Its log is made here as well, so that what is left to do needs no more room.
        let written = journal
            .begin_replacement(&base)
            .and_then(|()| journal.continue_replacement(&base, base.len()))
            .and_then(|_| journal.repeat_records([[0_u8; 0]; 0]));
        Ok(self.note_full(written)?.is_some())
    }

    /// Puts the journal that [`Self::write_snapshot`] has written in the place of the present one.
    pub(super) fn adopt_snapshot(&mut self) -> Result<(), MemberError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.end_replacement()?;
        (self.has_kept_id, self.has_base, self.is_full) = (true, true, false);
        Ok(())
    }

    /// Begins to replace the journal by one that begins with this base, whose snapshot ends with the entry `index`.
    pub(super) fn begin_replacing_journal(&mut self, base: Bytes, index: u64) -> Result<(), MemberError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let begun = journal.begin_replacement(&base);
        if self.note_full(begun)?.is_some() {
            let step_len = self.config.snapshot_write_len.max(1);
            self.new_base = Some(NewBase { base, is_written: false, repeated_to: index, step_len, behind: u64::MAX });
        }
        Ok(())
    }

    /// Whether the journal is being replaced.
    pub(super) fn is_replacing_journal(&self) -> bool {
        self.new_base.is_some()
    }

    /// Writes a part of the new journal, and puts it in the place of the old one once it is whole.
    pub(super) fn continue_replacing_journal(&mut self) -> Result<(), MemberError> {
        let (Some(journal), Some(new)) = (&mut self.journal, &mut self.new_base) else { return Ok(()) };
        let stepped = if !new.is_written {
            let written = journal.continue_replacement(&new.base, new.step_len);
            new.is_written = written == Ok(true);
            written.map(|_| false)
        } else {
            let (records, is_last) = new.take_records(self.node.store());
            let repeated = journal.repeat_records(records);
            let ended = if is_last { repeated.and_then(|()| journal.end_replacement()) } else { repeated };
            ended.map(|()| is_last)
        };
        match self.note_full(stepped)? {
            Some(false) => {}
            Some(true) => (self.new_base, self.is_full) = (None, false),
            None => self.new_base = None,
        }
        Ok(())
    }

    /// Returns the result of a write to a new journal, or `None` if the disk has no room for it; then the old journal
    /// stays in use.
    fn note_full<T>(&mut self, written: Result<T, DiskError>) -> Result<Option<T>, MemberError> {
        let has_failed = self.journal.as_ref().is_some_and(|journal| journal.error().is_some());
        match written {
            Err(DiskError::Full) if !has_failed => {
                self.is_full = true;
                Ok(None)
            }
            result => Ok(Some(result?)),
        }
    }
}
