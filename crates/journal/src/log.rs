//! The log: a file of records, and those that are still to be written to it.

use super::codec::{self, Key};
use crate::disk::{Disk, DiskError};

/// Room reserved for records at a time, in bytes: at least this, or only what is needed where the disk has less.
pub(super) const RESERVE_LEN_MIN: u64 = 4 << 20;

pub(super) fn log_name(number: u64) -> String {
    format!("log-{number:08}")
}

/// A log that is written to.
#[derive(Debug)]
pub(super) struct Log {
    /// Number of the log and its snapshot; 0 if there is none yet.
    pub number: u64,
    /// Number of the last record.
    sequence: u64,
    synced: u64,
    last_sum: u64,
    /// Records that are not written yet.
    buffer: Vec<u8>,
    /// Bytes that are written.
    written_len: u64,
    /// Length that the file can reach within the room that is reserved.
    reserved_len: u64,
}

impl Log {
    /// A log of `len` bytes, whose last record, or otherwise its snapshot, has this sequence number and checksum.
    pub fn new(number: u64, sequence: u64, last_sum: u64, len: u64) -> Self {
        Self { number, sequence, synced: sequence, last_sum, buffer: Vec::new(), written_len: len, reserved_len: len }
    }

    /// Number of the last record.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes, including records that are not written yet.
    pub fn len(&self) -> u64 {
        self.written_len + self.buffer.len() as u64
    }

    /// Whether there are records that are not written yet.
    pub fn is_dirty(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Reserves room for `more` bytes beside those that are there.
    pub fn reserve(&mut self, disk: &mut impl Disk, more: u64) -> Result<(), DiskError> {
        let need = self.len() + more;
        if need <= self.reserved_len {
            return Ok(());
        }
        let more = need - self.written_len;
        let name = log_name(self.number);
        for more in [more.max(RESERVE_LEN_MIN), more] {
            match disk.reserve(&name, more) {
                Ok(()) => {
                    self.reserved_len = self.written_len + more;
                    return Ok(());
                }
                Err(DiskError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        Err(DiskError::Full)
    }

    /// Adds a record.
    pub fn append(&mut self, key: Key, record: &[u8]) {
        self.sequence += 1;
        self.last_sum = codec::write_record(&mut self.buffer, key, (self.sequence, self.synced), self.last_sum, record);
    }

    /// Makes all records durable.
    pub fn sync(&mut self, disk: &mut impl Disk) -> Result<(), DiskError> {
        let name = log_name(self.number);
        disk.append(&name, &self.buffer)?;
        disk.sync(&name)?;
        self.written_len += self.buffer.len() as u64;
        self.buffer.clear();
        self.synced = self.sequence;
        Ok(())
    }
}
