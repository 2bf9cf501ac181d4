//! The durable state with its journal, and the free pages.

use super::config::{Failure, OpenError, Stats};
use super::page_sums::PageSums;
use crate::disk::{Disk, DiskError};
use crate::durable_state::{DurableState, Op};
use crate::journal::Journal;
use crate::protocol::{Answer, Error, PAGE, Pages, Request, Time};
use crate::space::Space;

/// Room for the record that may follow a change (dropping an inode), in bytes.
const FOLLOW_UP_LEN: usize = 64;

/// Most pages that are kept to replace others.
const KEPT_FOR_OVERWRITES_MAX: u64 = (16 << 20) / PAGE as u64;

/// The durable state, and what is derived from it.
pub(super) struct Store<K> {
    pub state: DurableState,
    pub space: Space,
    pub stats: Stats,
    /// Checksums for the repairs in progress.
    pub sums: PageSums,
    journal: Option<Journal<K>>,
    /// Segment that a repair is copying from. Pages freed there become free at the end of the step.
    pub pinned: Option<u32>,
    deferred: Vec<Pages>,
}

impl<K: Disk> Store<K> {
    /// Opens the store with the contents of a disk, under the next epoch, for `copies` copies of each page. `random`
    /// yields random numbers.
    pub fn open(disk: Option<K>, copies: usize, now: Time, mut random: impl FnMut() -> u64) -> Result<Self, OpenError> {
        let fresh = DurableState::new(random(), now);
        let (mut state, mut journal) = match disk {
            None => (fresh, None),
            Some(disk) => {
                let opened = Journal::open(disk, random())?;
                let mut journal = opened.journal;
                let mut state = match &opened.snapshot {
                    Some(bytes) => {
                        DurableState::read(bytes).ok_or_else(|| OpenError::Unknown("the snapshot".into()))?
                    }
                    None => {
                        journal.replace(&fresh.to_bytes()).map_err(|error| OpenError::Journal(error.into()))?;
                        fresh
                    }
                };
                for (index, record) in opened.records.iter().enumerate() {
                    let why = |error| OpenError::Unknown(format!("record {} after the snapshot: {error}", index + 1));
                    state.replay(record).map_err(why)?;
                }
                (state, Some(journal))
            }
        };
        let space = space_of(&state).map_err(|error| OpenError::Unknown(error.to_string()))?;
        let copies = u8::try_from(copies).unwrap_or(u8::MAX);
        let starts = [Op::Start { epoch: state.epoch + 1 }, Op::Copies { copies }];
        if let Some(journal) = &mut journal {
            starts.iter().for_each(|start| journal.append(&start.to_bytes()));
            // The epoch must be durable before donors hear of it, or a restart would use it again.
            journal.sync().map_err(|error| OpenError::Journal(error.into()))?;
        }
        let mut begin = |op| state.apply(op, &mut Vec::new());
        starts.iter().try_for_each(|op| begin(op).map(drop)).map_err(|error| OpenError::Unknown(error.to_string()))?;
        let (stats, sums) = (Stats::default(), PageSums::default());
        Ok(Self { state, space, stats, sums, journal, pinned: None, deferred: Vec::new() })
    }

    /// Whether changes wait for the disk.
    pub fn is_dirty(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_dirty)
    }

    /// Performs an operation and records it, or does neither.
    pub fn perform(&mut self, op: &Op) -> Result<Answer, Error> {
        let bytes = match &mut self.journal {
            None => Vec::new(),
            Some(journal) => {
                let bytes = op.to_bytes();
                journal.reserve(2, bytes.len() + FOLLOW_UP_LEN).map_err(|error| match error {
                    DiskError::Full => Error::NoSpace,
                    _ => Error::ReadOnly,
                })?;
                bytes
            }
        };
        let mut freed = Vec::new();
        let answer = self.state.apply(op, &mut freed)?;
        if let Some(journal) = &mut self.journal {
            journal.append(&bytes);
        }
        self.stats.changes += 1;
        if let Op::Change { request: Request::Commit { extents, .. }, .. } = op {
            self.sums.note(extents);
        }
        freed.into_iter().for_each(|pages| self.release(pages));
        Ok(answer)
    }

    /// Pages that may still be promised: to new contents, or to files by `fallocate`. Of the free pages, some have been
    /// promised, and a few are kept so that pages can be replaced, which are written beside first. Pages with which
    /// clients replace others count as free, since that many will be.
    pub fn room(&self) -> u64 {
        self.room_with(0)
    }

    /// As [`Self::room`], if there were so many pages more.
    pub fn room_with(&self, more: u64) -> u64 {
        let free = self.space.free_pages() + self.space.overwriting_pages() + more;
        free.saturating_sub(self.state.tree.allocated_pages() + kept_for_overwrites(self.space.pages() + more))
    }

    /// Whether so many free pages may go, after which there is still enough for what was promised.
    pub fn may_lose(&self, pages: u64) -> bool {
        let free = self.space.free_pages() + self.space.overwriting_pages();
        free >= self.state.tree.allocated_pages() + pages
    }

    /// Whether pages may become free without a change to the files.
    pub fn may_free_pages(&self) -> bool {
        !self.deferred.is_empty() || self.space.has_unused()
    }

    fn release(&mut self, pages: Pages) {
        if self.pinned == Some(pages.segment) {
            self.deferred.push(pages);
        } else {
            // Cannot fail: pages become used only by belonging to a file.
            let _ = self.space.free(pages);
        }
    }

    /// Ends a step of a repair, and frees the pages that were freed meanwhile.
    pub fn unpin(&mut self) {
        self.pinned = None;
        for pages in std::mem::take(&mut self.deferred) {
            let _ = self.space.free(pages);
        }
    }

    /// Makes all changes durable.
    pub fn sync(&mut self) -> Result<(), Failure> {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_dirty()) else { return Ok(()) };
        journal.sync()?;
        self.stats.syncs += 1;
        if journal.wants_snapshot() {
            match journal.replace(&self.state.to_bytes()) {
                // If there is no room for a snapshot, the log continues.
                Ok(()) | Err(DiskError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Replaces the log with a snapshot, so that the next start is quick.
    pub fn close(&mut self) -> Result<(), Failure> {
        self.sync()?;
        if let Some(journal) = &mut self.journal {
            journal.replace(&self.state.to_bytes())?;
        }
        Ok(())
    }
}

/// Pages, of so many in all, that only replace others: a sixty-fourth, and at most 16 MiB.
pub(super) fn kept_for_overwrites(pages: u64) -> u64 {
    (pages / 64).min(KEPT_FOR_OVERWRITES_MAX)
}

/// Derives the space: all pages of all segments, of which those that no file has are free.
pub(super) fn space_of(kept: &DurableState) -> Result<Space, crate::space::WrongState> {
    let mut space = Space::default();
    for (number, segment) in &kept.segments {
        space.add(*number, segment.pages);
        space.set_open(*number, false);
    }
    for (_, inode) in kept.tree.inodes() {
        if let crate::tree::Body::File(map) = inode.body() {
            map.all().iter().try_for_each(|run| space.take(run.pages))?;
        }
    }
    Ok(space)
}
