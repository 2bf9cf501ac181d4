//! What has happened, in order, on a [disk]: a snapshot, and records of what came after it.
//!
//! Records are gathered and then written and made to last together ([`Journal::sync`]). A snapshot is written beside the old one, with an empty log, and takes its place by one renaming; then
//! the old ones are removed.
//!
//! ```text
//! snapshot-N                                  log-N: records
//!  0  magic "SnFs"   4  format (1)             0  magic "SnFr"   4  bytes of it
//!  8  sequence number of the last record       8  sequence number
//!     that is in it                           16  sequence number of the last record that was known to last when this was written
//! 16  key of the checksums                    24  checksum of the record before
//! 24  bytes of it                             32  checksum of this header and the record
//! 32  checksum of this header and them        40  the record
//! 40  the snapshot
//! ```
//!
//! Little-endian. The first record's "checksum of the record before" is the snapshot's. After a crash records at the log's end may be there in part, or one without one before it: the log ends before the first that is not
//! right, and is cut there. If one behind it was written when that one was known to last, the log is corrupt in its middle, and is not used. The key is drawn by lot, so that nobody can put what
//! looks like a record into a record.

#![forbid(unsafe_code)]

mod codec;
pub mod disk;

use crate::disk::{Disk, DiskError};
use codec::{Key, Scan, Snapshot};

/// Room for records is asked for in pieces of so many bytes.
const ROOM: u64 = 4 << 20;
/// A log is this long at least before a new snapshot is worth it.
const LOG_MIN: u64 = 64 << 20;

/// Why a journal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The disk says so.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file that should be there is not.
    #[error(
        "{missing} is not there, and {found} is: bring back a copy of the whole directory; without one, what was kept is lost"
    )]
    Missing {
        /// Which.
        missing: String,
        /// What shows that it was there.
        found: String,
    },
    /// What was written and made to last is not what is there.
    #[error(
        "{file} is damaged at byte {at}: bring back a copy of the whole directory; or, to go on with what lies before and lose what came later, cut the file off \
         there: truncate --size {at} {file}"
    )]
    Corrupt {
        /// Where.
        file: String,
        /// First byte that is wrong.
        at: u64,
    },
    /// A snapshot is damaged.
    #[error("{file} is damaged: bring back a copy of the whole directory; without one, what was kept is lost")]
    BadSnapshot {
        /// Which.
        file: String,
    },
}

/// What a journal held as it was opened.
#[derive(Debug)]
pub struct Opened<D> {
    /// It, at its end. When there is no snapshot, [`Journal::replace`] begins it.
    pub journal: Journal<D>,
    /// The snapshot.
    pub snapshot: Option<Vec<u8>>,
    /// What came after it.
    pub records: Vec<Vec<u8>>,
    /// Bytes that were cut off at the log's end: written in part as the last owner ended.
    pub cut: u64,
}

/// What is on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The snapshot, if there is one.
    pub snapshot: Option<Vec<u8>>,
    /// What came after it.
    pub records: Vec<Vec<u8>>,
}

/// A snapshot and a log; see [the crate](self).
#[derive(Debug)]
pub struct Journal<D> {
    disk: D,
    key: Key,
    /// Of the snapshot and its log; 0: there is none yet.
    number: u64,
    /// Of the last record.
    sequence: u64,
    synced: u64,
    last_sum: u64,
    /// Records that wait to be written.
    buffer: Vec<u8>,
    log_len: u64,
    /// Bytes that the log may have in all.
    room: u64,
    snapshot_len: u64,
    /// What made it useless.
    failed: Option<DiskError>,
}

fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:08}")
}

fn log_name(number: u64) -> String {
    format!("log-{number:08}")
}

const NEW: &str = "snapshot.new";

/// The numbers of files whose names begin so.
fn numbers<'a>(names: &'a [String], prefix: &'static str) -> impl Iterator<Item = u64> + 'a {
    names.iter().filter_map(move |name| name.strip_prefix(prefix)?.parse().ok())
}

/// What a disk has.
struct Found {
    number: u64,
    snapshot: Snapshot,
    scan: Scan,
    log_len: u64,
}

/// The latest snapshot and its log.
fn find(disk: &mut impl Disk, names: &[String]) -> Result<Option<Found>, JournalError> {
    let Some(number) = numbers(names, "snapshot-").max() else {
        for number in numbers(names, "log-") {
            // As a journal begins, its log is there before its snapshot, and is empty.
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
    Ok(Some(Found { number, snapshot, scan, log_len: bytes.len() as u64 }))
}

impl<D: Disk> Journal<D> {
    /// Opens what is on the disk. `random` is a number by lot.
    ///
    /// # Errors
    ///
    /// [`JournalError`]; the disk is as it was, then.
    pub fn open(mut disk: D, random: u64) -> Result<Opened<D>, JournalError> {
        let names = disk.names()?;
        let Some(found) = find(&mut disk, &names)? else {
            return Self::open_empty(disk, random);
        };
        let Found { number, snapshot, scan, log_len } = found;
        let (log, cut) = (log_name(number), log_len - scan.len);
        if cut > 0 {
            disk.cut(&log, scan.len)?;
        }
        // Some of it may have been there without having been made to last.
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
            room: scan.len,
            snapshot_len: snapshot.payload.len() as u64,
            failed: None,
        };
        let mut opened = Opened { journal, snapshot: Some(snapshot.payload), records: scan.records, cut };
        opened.journal.tidy()?;
        Ok(opened)
    }

    /// What is on the disk. Nothing is changed.
    ///
    /// # Errors
    ///
    /// [`JournalError`].
    pub fn read(mut disk: D) -> Result<History, JournalError> {
        let names = disk.names()?;
        let found = find(&mut disk, &names)?;
        let history = |found: Found| History { snapshot: Some(found.snapshot.payload), records: found.scan.records };
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
            room: 0,
            snapshot_len: 0,
            failed: None,
        };
        Ok(Opened { journal, snapshot: None, records: Vec::new(), cut: 0 })
    }

    /// Removes what is not needed any more.
    fn tidy(&mut self) -> Result<(), DiskError> {
        let keep = [snapshot_name(self.number), log_name(self.number)];
        for name in self.disk.names()? {
            let is_ours = name == NEW || name.starts_with("snapshot-") || name.starts_with("log-");
            if is_ours && !keep.contains(&name) {
                self.disk.remove(&name)?;
            }
        }
        self.disk.sync_names()
    }

    fn check(&self) -> Result<(), DiskError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Whether it can be written to.
    pub fn error(&self) -> Option<&DiskError> {
        self.failed.as_ref()
    }

    /// Bytes of the log, with what waits.
    pub fn log_len(&self) -> u64 {
        self.log_len + self.buffer.len() as u64
    }

    /// Whether records wait to be made to last.
    pub fn is_dirty(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Whether there is so much in the log that a new snapshot is worth its time.
    pub fn wants_snapshot(&self) -> bool {
        self.failed.is_none() && self.log_len >= LOG_MIN.max(self.snapshot_len)
    }

    /// Sees to it that records of so many bytes in all find room: for changes that are made before they are recorded. On a full disk it says so, and nothing has changed.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn reserve(&mut self, records: usize, bytes: usize) -> Result<(), DiskError> {
        self.check()?;
        let need = self.log_len() + (records * codec::HEADER + bytes) as u64;
        if need <= self.room {
            return Ok(());
        }
        let more = need - self.log_len;
        let log = log_name(self.number);
        for more in [more.max(ROOM), more] {
            match self.disk.reserve(&log, more) {
                Ok(()) => {
                    self.room = self.log_len + more;
                    return Ok(());
                }
                Err(DiskError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        Err(DiskError::Full)
    }

    /// Adds a record, which lasts after the next [`Self::sync`].
    pub fn append(&mut self, record: &[u8]) {
        self.sequence += 1;
        self.last_sum =
            codec::write_record(&mut self.buffer, self.key, (self.sequence, self.synced), self.last_sum, record);
    }

    /// Makes all records last.
    ///
    /// # Errors
    ///
    /// [`DiskError`]. Nobody knows then which records last, and the journal takes no more.
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

    /// Puts a snapshot of all that has happened in the place of the old one and its log. When it fails, the old ones stay, unless [`Self::error`] says otherwise.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    pub fn replace(&mut self, snapshot: &[u8]) -> Result<(), DiskError> {
        self.sync()?;
        let number = self.number + 1;
        let header = codec::snapshot_header(self.key, self.sequence, snapshot);
        let written = (|| {
            self.disk.create(NEW)?;
            self.disk.append(NEW, &header.bytes)?;
            self.disk.append(NEW, snapshot)?;
            self.disk.sync(NEW)?;
            self.disk.create(&log_name(number))?;
            self.disk.sync(&log_name(number))?;
            self.disk.sync_names()
        })();
        if let Err(error) = written {
            // It is in nobody's way, beside the room that it takes.
            let _ = self.disk.remove(NEW);
            return Err(error);
        }
        let renamed = self.disk.rename(NEW, &snapshot_name(number)).and_then(|()| self.disk.sync_names());
        if let Err(error) = renamed {
            // Nobody knows which snapshot the next owner finds, so nothing may go to either log.
            self.failed = Some(error.clone());
            return Err(error);
        }
        (self.number, self.last_sum) = (number, header.sum);
        (self.log_len, self.room, self.snapshot_len) = (0, 0, snapshot.len() as u64);
        self.tidy()
    }
}

#[cfg(test)]
mod tests;
