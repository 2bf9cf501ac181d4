//! A journal on a [disk]: a snapshot of a state, and records, in order, of the changes since then.
//!
//! Records are buffered, and then written and synced together ([`Journal::sync`]). A new snapshot is written beside the
//! old one, with a new log, and replaces it by one rename; then the old files are removed. It may be written in parts
//! ([`Journal::begin_replacement`]) while further records go to the old log; those are then repeated in the new one.
//!
//! ```text
//! snapshot-N                                  log-N: records
//!  0  magic "SnFs"   4  format (1)             0  magic "SnFr"   4  length of the record
//!  8  sequence number of the last record       8  sequence number
//!     in the snapshot                         16  sequence number of the last record that was
//! 16  key of the checksums                        known to be durable when this one was written
//! 24  length of the snapshot                  24  checksum of the record before
//! 32  checksum of this header and             32  checksum of this header and the record
//!     the snapshot                            40  the record
//! 40  the snapshot
//! ```
//!
//! Numbers are little-endian, and lengths are in bytes. The first record's "checksum of the record before" is the
//! snapshot's.
//!
//! A crash may leave a part of a record at the log's end, or a record without the one before it. So the log ends before
//! the first record that is wrong, and is truncated there. But if a later record shows that the wrong one was known to
//! be durable, the log was damaged after it was written, and is refused. The key is random, so that nobody can hide
//! bytes that pass for a record inside a record.

#![forbid(unsafe_code)]

mod codec;
pub mod disk;
mod log;

use crate::disk::{Disk, DiskError};
use codec::{FORMAT, Key, Scan, Snapshot};
use log::{Log, log_name};

/// Length of a log, in bytes, below which [`Journal::wants_snapshot`] is false.
const LOG_MIN: u64 = 64 << 20;

/// Reason why a journal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file that should be there is not.
    #[error(
        "{missing} is missing, though {found} is there: restore the whole directory from a backup; without one, its data is lost"
    )]
    Missing {
        /// Name of the missing file.
        missing: String,
        /// Name of a file that shows that it existed.
        found: String,
    },
    /// A log differs from what was written to it and made durable.
    #[error(
        "{file} is damaged at byte {at}: restore the whole directory from a backup; or, to keep what comes before and lose what comes after, cut the file off \
         there: truncate --size {at} {file}"
    )]
    Corrupt {
        /// Name of the log's file.
        file: String,
        /// Offset of the first record that is wrong, in bytes.
        at: u64,
    },
    /// A snapshot is damaged.
    #[error("{file} is damaged: restore the whole directory from a backup; without one, its data is lost")]
    BadSnapshot {
        /// Name of the snapshot's file.
        file: String,
    },
    /// A snapshot has a format of another release.
    #[error("{file} has format {found}, but this release knows format {FORMAT}: use the release that wrote it")]
    OtherFormat {
        /// Name of the snapshot's file.
        file: String,
        /// Its format.
        found: u32,
    },
}

/// Contents of a journal when it was opened.
#[derive(Debug)]
pub struct Opened<D> {
    /// The journal, ready for further records. If there is no snapshot, [`Journal::replace`] must be called first.
    pub journal: Journal<D>,
    /// The snapshot, if there is one.
    pub snapshot: Option<Vec<u8>>,
    /// Records that came after the snapshot.
    pub records: Vec<Vec<u8>>,
    /// Bytes that were cut off at the log's end, where the last owner left an incomplete write.
    pub truncated_len: u64,
    /// Name of the log's file; empty if there was none.
    pub log_file: String,
}

/// Contents of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The snapshot, if there is one.
    pub snapshot: Option<Vec<u8>>,
    /// Records that came after the snapshot.
    pub records: Vec<Vec<u8>>,
}

/// A snapshot and a log; see [the crate](self).
#[derive(Debug)]
pub struct Journal<D> {
    disk: D,
    key: Key,
    log: Log,
    snapshot_len: u64,
    /// The snapshot that is being written.
    replacement: Option<Replacement>,
    /// Failure after which the journal accepts nothing.
    failed: Option<DiskError>,
}

/// A snapshot that is being written, and its log.
#[derive(Debug)]
struct Replacement {
    len: usize,
    /// Bytes of the snapshot that are on the disk.
    written: usize,
    /// Whether all of them are.
    is_written: bool,
    log: Log,
    /// Whether the log's file exists.
    has_log: bool,
}

fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:08}")
}

const NEW_SNAPSHOT: &str = "snapshot.new";

fn is_journal_file(name: &str) -> bool {
    name == NEW_SNAPSHOT || name.starts_with("snapshot-") || name.starts_with("log-")
}

/// Numbers of the files whose names begin with a prefix.
fn numbers<'a>(names: &'a [String], prefix: &'static str) -> impl Iterator<Item = u64> + 'a {
    names.iter().filter_map(move |name| name.strip_prefix(prefix)?.parse().ok())
}

/// A snapshot and its log, as found on a disk.
struct FoundJournal {
    number: u64,
    snapshot: Snapshot,
    scan: Scan,
    log_len: u64,
}

/// Reads the latest snapshot and its log.
fn find(disk: &mut impl Disk, names: &[String]) -> Result<Option<FoundJournal>, JournalError> {
    let Some(number) = numbers(names, "snapshot-").max() else {
        for number in numbers(names, "log-") {
            // A new journal creates its log before its snapshot, and empty.
            if !disk.read(&log_name(number))?.is_empty() {
                return Err(JournalError::Missing { missing: snapshot_name(number), found: log_name(number) });
            }
        }
        return Ok(None);
    };
    let (file, log) = (snapshot_name(number), log_name(number));
    let bytes = disk.read(&file)?;
    let Some(snapshot) = codec::read_snapshot(&bytes) else {
        return Err(match codec::other_format(&bytes) {
            Some(found) => JournalError::OtherFormat { file, found },
            None => JournalError::BadSnapshot { file },
        });
    };
    let bytes = match disk.read(&log) {
        Err(DiskError::NotFound(missing)) => return Err(JournalError::Missing { missing, found: file }),
        other => other?,
    };
    let scan = codec::scan(&bytes, snapshot.key, snapshot.sequence, snapshot.sum);
    let scan = scan.map_err(|at| JournalError::Corrupt { file: log, at })?;
    Ok(Some(FoundJournal { number, snapshot, scan, log_len: bytes.len() as u64 }))
}

impl<D: Disk> Journal<D> {
    /// Opens the journal on a disk. `random` is a random number, the key of the checksums if the journal is new.
    ///
    /// # Errors
    ///
    /// [`JournalError`]. Unless it is [`JournalError::Disk`], the disk is unchanged.
    pub fn open(mut disk: D, random: u64) -> Result<Opened<D>, JournalError> {
        let names = disk.names()?;
        let Some(found) = find(&mut disk, &names)? else {
            return Self::open_empty(disk, random);
        };
        let FoundJournal { number, snapshot, scan, log_len } = found;
        let (log, truncated_len) = (log_name(number), log_len - scan.len);
        if truncated_len > 0 {
            disk.truncate(&log, scan.len)?;
        }
        // The last owner may have written a part of the log without syncing it.
        disk.sync(&log)?;
        let journal = Self {
            disk,
            key: snapshot.key,
            log: Log::new(number, scan.sequence, scan.last_sum, scan.len),
            snapshot_len: snapshot.payload.len() as u64,
            replacement: None,
            failed: None,
        };
        let (snapshot, records) = (Some(snapshot.payload), scan.records);
        let mut opened = Opened { journal, snapshot, records, truncated_len, log_file: log };
        opened.journal.tidy()?;
        Ok(opened)
    }

    /// Reads what is on the disk, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`JournalError`].
    pub fn read(mut disk: D) -> Result<History, JournalError> {
        let names = disk.names()?;
        let found = find(&mut disk, &names)?;
        let history =
            |found: FoundJournal| History { snapshot: Some(found.snapshot.payload), records: found.scan.records };
        Ok(found.map(history).unwrap_or_default())
    }

    fn open_empty(disk: D, random: u64) -> Result<Opened<D>, JournalError> {
        let log = Log::new(0, 0, 0, 0);
        let journal = Self { disk, key: Key(random), log, snapshot_len: 0, replacement: None, failed: None };
        Ok(Opened { journal, snapshot: None, records: Vec::new(), truncated_len: 0, log_file: String::new() })
    }

    /// Removes the files that are no longer needed.
    fn tidy(&mut self) -> Result<(), DiskError> {
        let keep = [snapshot_name(self.log.number), log_name(self.log.number)];
        for name in self.disk.names()? {
            if is_journal_file(&name) && !keep.contains(&name) {
                self.disk.remove(&name)?;
            }
        }
        self.disk.sync_names()
    }

    fn check(&self) -> Result<(), DiskError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Failure after which nothing can be written, if there was one.
    pub fn error(&self) -> Option<&DiskError> {
        self.failed.as_ref()
    }

    /// Length of the log in bytes, including records that are not written yet.
    pub fn log_len(&self) -> u64 {
        self.log.len()
    }

    /// Whether records wait for [`Self::sync`].
    pub fn is_dirty(&self) -> bool {
        self.log.is_dirty()
    }

    /// Whether the log is so long that a new snapshot is due.
    pub fn wants_snapshot(&self) -> bool {
        self.failed.is_none() && self.log.len() >= LOG_MIN.max(self.snapshot_len)
    }

    /// Reserves room for `records` records with `bytes` bytes in all, for callers that make a change before they record
    /// it. If the disk is full, this fails and nothing has changed.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn reserve(&mut self, records: usize, bytes: usize) -> Result<(), DiskError> {
        self.check()?;
        self.log.reserve(&mut self.disk, (records * codec::HEADER + bytes) as u64)
    }

    /// Adds a record, which is durable once [`Self::sync`] has returned.
    ///
    /// # Panics
    ///
    /// If the record has 4 GiB or more.
    pub fn append(&mut self, record: &[u8]) {
        self.log.append(self.key, record);
    }

    /// Makes all records durable.
    ///
    /// # Errors
    ///
    /// [`DiskError`]. It is then unknown which records are durable, and the journal accepts no more.
    pub fn sync(&mut self) -> Result<(), DiskError> {
        self.check()?;
        if !self.log.is_dirty() {
            return Ok(());
        }
        let synced = self.log.sync(&mut self.disk);
        self.failed = synced.clone().err();
        synced
    }

    /// Replaces the snapshot and its log by a snapshot of the state after all records. If this fails, and
    /// [`Self::error`] is `None`, the journal goes on: with the new snapshot if only the old files could not be
    /// removed, else with the old snapshot and log.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn replace(&mut self, snapshot: &[u8]) -> Result<(), DiskError> {
        self.begin_replacement(snapshot)?;
        self.continue_replacement(snapshot, snapshot.len())?;
        self.end_replacement()
    }

    /// Checks that the disk has room for a snapshot of `len` bytes beside what is there, as far as the disk can tell.
    /// The room is not kept. While a snapshot is being written, nothing is checked.
    ///
    /// # Errors
    ///
    /// [`DiskError`]; the journal goes on as it is.
    pub fn check_room(&mut self, len: u64) -> Result<(), DiskError> {
        self.check()?;
        if self.is_replacing() {
            return Ok(());
        }
        let len = len.saturating_add(codec::HEADER as u64);
        let reserved = self.disk.create(NEW_SNAPSHOT).and_then(|()| self.disk.reserve(NEW_SNAPSHOT, len));
        let _ = self.disk.remove(NEW_SNAPSHOT);
        reserved
    }

    /// Begins to replace the snapshot and its log by a snapshot of the state after all records up to now. Ends a
    /// replacement begun before. If this or a later step fails, and [`Self::error`] is `None`, there is no replacement
    /// any more, and the journal goes on with the old snapshot and log.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn begin_replacement(&mut self, snapshot: &[u8]) -> Result<(), DiskError> {
        self.sync()?;
        self.abandon_replacement();
        let header = codec::snapshot_header(self.key, self.log.sequence(), snapshot);
        let begun = self.disk.create(NEW_SNAPSHOT).and_then(|()| self.disk.append(NEW_SNAPSHOT, &header.bytes));
        self.replacement = Some(Replacement {
            len: snapshot.len(),
            written: 0,
            is_written: false,
            log: Log::new(self.log.number + 1, self.log.sequence(), header.sum, 0),
            has_log: false,
        });
        self.or_abandon(begun)
    }

    /// Whether a replacement has begun, and has not ended.
    pub fn is_replacing(&self) -> bool {
        self.replacement.is_some()
    }

    /// Makes up to `max` more bytes of the new snapshot durable. `snapshot` is all of it, as it was when the
    /// replacement began. Returns whether all are durable now.
    ///
    /// # Errors
    ///
    /// [`DiskError`], as for [`Self::begin_replacement`].
    ///
    /// # Panics
    ///
    /// If the snapshot has another length.
    pub fn continue_replacement(&mut self, snapshot: &[u8], max: usize) -> Result<bool, DiskError> {
        self.check()?;
        let Some(replacement) = &mut self.replacement else { return Ok(false) };
        assert_eq!(snapshot.len(), replacement.len, "another snapshot");
        let end = replacement.written.saturating_add(max).min(replacement.len);
        let part = &snapshot[replacement.written..end];
        let written = self.disk.append(NEW_SNAPSHOT, part).and_then(|()| self.disk.sync(NEW_SNAPSHOT));
        replacement.written = end;
        replacement.is_written = end == replacement.len;
        let is_written = replacement.is_written;
        self.or_abandon(written).map(|()| is_written)
    }

    /// Makes records durable in the new log. Together they must have the effect of those that the journal was given
    /// since the replacement began. There must be an older snapshot.
    ///
    /// # Errors
    ///
    /// [`DiskError`], as for [`Self::begin_replacement`].
    ///
    /// # Panics
    ///
    /// If a record has 4 GiB or more.
    pub fn repeat_records(&mut self, records: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<(), DiskError> {
        self.check()?;
        let Some(replacement) = &mut self.replacement else { return Ok(()) };
        for record in records {
            // A new journal is recognised by a log that is empty.
            debug_assert!(self.log.number > 0, "records before the first snapshot");
            replacement.log.append(self.key, record.as_ref());
        }
        let created = if replacement.has_log { Ok(()) } else { self.disk.create(&log_name(replacement.log.number)) };
        replacement.has_log = true;
        let synced = created.and_then(|()| replacement.log.sync(&mut self.disk));
        self.or_abandon(synced)
    }

    /// Puts the new snapshot and its log in the place of the old ones, once both are whole. If this fails, and
    /// [`Self::error`] is `None`, the journal goes on: with the new snapshot if only the old files could not be
    /// removed, else with the old snapshot and log.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn end_replacement(&mut self) -> Result<(), DiskError> {
        self.sync()?;
        if self.replacement.as_ref().is_none_or(|replacement| !replacement.is_written) {
            return Ok(());
        }
        if self.replacement.as_ref().is_some_and(|replacement| !replacement.has_log) {
            self.repeat_records([[0; 0]; 0])?;
        }
        let synced = self.disk.sync_names();
        self.or_abandon(synced)?;
        let Some(Replacement { len, log, .. }) = self.replacement.take() else { return Ok(()) };
        let renamed = self.disk.rename(NEW_SNAPSHOT, &snapshot_name(log.number)).and_then(|()| self.disk.sync_names());
        if let Err(error) = renamed {
            // It is unknown which snapshot the next owner finds, so nothing may go to either log.
            self.failed = Some(error.clone());
            return Err(error);
        }
        (self.log, self.snapshot_len) = (log, len as u64);
        self.tidy()
    }

    /// Gives the replacement up if a step of it has failed.
    fn or_abandon(&mut self, step: Result<(), DiskError>) -> Result<(), DiskError> {
        if step.is_err() {
            self.abandon_replacement();
        }
        step
    }

    /// Gives a replacement up that was begun, if there is one.
    pub fn abandon_replacement(&mut self) {
        let Some(replacement) = self.replacement.take() else { return };
        // A leftover file does no harm, apart from the room that it takes.
        let _ = self.disk.remove(NEW_SNAPSHOT);
        if replacement.has_log {
            let _ = self.disk.remove(&log_name(replacement.log.number));
        }
    }
}

#[cfg(test)]
mod tests;
