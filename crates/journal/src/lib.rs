//! A journal on a [disk]: a snapshot of a state, and records, in order, of the changes since then.
//!
//! Records are buffered, and then written and synced together ([`Journal::sync`]). A new snapshot is written beside the
//! old one, with an empty log, and replaces it by one rename; then the old files are removed.
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

use crate::disk::{Disk, DiskError};
use codec::{Key, Scan, Snapshot};

/// Least room that is reserved for records at a time, in bytes, unless only less is left.
const RESERVE_LEN_MIN: u64 = 4 << 20;
/// Length of a log in bytes below which no new snapshot is made.
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
        "{missing} is missing, though {found} is there: bring back a copy of the whole directory; without one, its data is lost"
    )]
    Missing {
        /// Name of the missing file.
        missing: String,
        /// Name of a file that shows that it existed.
        found: String,
    },
    /// A log differs from what was written to it and made durable.
    #[error(
        "{file} is damaged at byte {at}: bring back a copy of the whole directory; or, to keep what lies before and lose what came later, cut the file off \
         there: truncate --size {at} {file}"
    )]
    Corrupt {
        /// Name of the log's file.
        file: String,
        /// Offset of the first record that is wrong, in bytes.
        at: u64,
    },
    /// A snapshot is damaged.
    #[error("{file} is damaged: bring back a copy of the whole directory; without one, its data is lost")]
    BadSnapshot {
        /// Name of the snapshot's file.
        file: String,
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
    /// Number of the snapshot and its log; 0 if there is none yet.
    number: u64,
    /// Number of the last record.
    sequence: u64,
    synced: u64,
    last_sum: u64,
    /// Records that are not written yet.
    buffer: Vec<u8>,
    log_len: u64,
    /// Length that the log can reach within the room that is reserved.
    reserved_len: u64,
    snapshot_len: u64,
    /// Failure after which the journal accepts nothing.
    failed: Option<DiskError>,
}

fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:08}")
}

fn log_name(number: u64) -> String {
    format!("log-{number:08}")
}

const NEW_SNAPSHOT: &str = "snapshot.new";

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
    let Some(snapshot) = codec::read_snapshot(&disk.read(&file)?) else {
        return Err(JournalError::BadSnapshot { file });
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
            number,
            sequence: scan.sequence,
            synced: scan.sequence,
            last_sum: scan.last_sum,
            buffer: Vec::new(),
            log_len: scan.len,
            reserved_len: scan.len,
            snapshot_len: snapshot.payload.len() as u64,
            failed: None,
        };
        let mut opened = Opened { journal, snapshot: Some(snapshot.payload), records: scan.records, truncated_len };
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
        let journal = Self {
            disk,
            key: Key(random),
            number: 0,
            sequence: 0,
            synced: 0,
            last_sum: 0,
            buffer: Vec::new(),
            log_len: 0,
            reserved_len: 0,
            snapshot_len: 0,
            failed: None,
        };
        Ok(Opened { journal, snapshot: None, records: Vec::new(), truncated_len: 0 })
    }

    /// Removes the files that are no longer needed.
    fn tidy(&mut self) -> Result<(), DiskError> {
        let keep = [snapshot_name(self.number), log_name(self.number)];
        for name in self.disk.names()? {
            let is_journal_file = name == NEW_SNAPSHOT || name.starts_with("snapshot-") || name.starts_with("log-");
            if is_journal_file && !keep.contains(&name) {
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
        self.log_len + self.buffer.len() as u64
    }

    /// Whether records wait for [`Self::sync`].
    pub fn is_dirty(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Whether the log is so long that a new snapshot is due.
    pub fn wants_snapshot(&self) -> bool {
        self.failed.is_none() && self.log_len >= LOG_MIN.max(self.snapshot_len)
    }

    /// Reserves room for `records` records with `bytes` bytes in all, for callers that make a change before they record
    /// it. If the disk is full, this fails and nothing has changed.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn reserve(&mut self, records: usize, bytes: usize) -> Result<(), DiskError> {
        self.check()?;
        let need = self.log_len() + (records * codec::HEADER + bytes) as u64;
        if need <= self.reserved_len {
            return Ok(());
        }
        let more = need - self.log_len;
        let log = log_name(self.number);
        for more in [more.max(RESERVE_LEN_MIN), more] {
            match self.disk.reserve(&log, more) {
                Ok(()) => {
                    self.reserved_len = self.log_len + more;
                    return Ok(());
                }
                Err(DiskError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        Err(DiskError::Full)
    }

    /// Adds a record, which is durable once [`Self::sync`] has returned.
    ///
    /// # Panics
    ///
    /// If the record has 4 GiB or more.
    pub fn append(&mut self, record: &[u8]) {
        self.sequence += 1;
        self.last_sum =
            codec::write_record(&mut self.buffer, self.key, (self.sequence, self.synced), self.last_sum, record);
    }

    /// Makes all records durable.
    ///
    /// # Errors
    ///
    /// [`DiskError`]. It is then unknown which records are durable, and the journal accepts no more.
    pub fn sync(&mut self) -> Result<(), DiskError> {
        self.check()?;
        if self.buffer.is_empty() {
            return Ok(());
        }
        let log = log_name(self.number);
        let written = self.disk.append(&log, &self.buffer).and_then(|()| self.disk.sync(&log));
        if let Err(error) = written {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.log_len += self.buffer.len() as u64;
        self.buffer.clear();
        self.synced = self.sequence;
        Ok(())
    }

    /// Replaces the snapshot and its log by a snapshot of the state after all records. If this fails, and
    /// [`Self::error`] is `None`, the journal goes on: with the new snapshot if only the old files could not be
    /// removed, else with the old snapshot and log.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn replace(&mut self, snapshot: &[u8]) -> Result<(), DiskError> {
        self.sync()?;
        let number = self.number + 1;
        let header = codec::snapshot_header(self.key, self.sequence, snapshot);
        let written = (|| {
            self.disk.create(NEW_SNAPSHOT)?;
            self.disk.append(NEW_SNAPSHOT, &header.bytes)?;
            self.disk.append(NEW_SNAPSHOT, snapshot)?;
            self.disk.sync(NEW_SNAPSHOT)?;
            self.disk.create(&log_name(number))?;
            self.disk.sync(&log_name(number))?;
            self.disk.sync_names()
        })();
        if let Err(error) = written {
            // A leftover file does no harm, apart from the room that it takes.
            let _ = self.disk.remove(NEW_SNAPSHOT);
            return Err(error);
        }
        let renamed = self.disk.rename(NEW_SNAPSHOT, &snapshot_name(number)).and_then(|()| self.disk.sync_names());
        if let Err(error) = renamed {
            // It is unknown which snapshot the next owner finds, so nothing may go to either log.
            self.failed = Some(error.clone());
            return Err(error);
        }
        (self.number, self.last_sum) = (number, header.sum);
        (self.log_len, self.reserved_len, self.snapshot_len) = (0, 0, snapshot.len() as u64);
        self.tidy()
    }
}

#[cfg(test)]
mod tests;
