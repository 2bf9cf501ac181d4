//! The medium that the copy lies on: a file, or, in tests, a disk that loses what was not synced.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes that are durable once they are synced. A loss of power may take any part of what was written and not synced.
pub trait Medium: std::fmt::Debug + Send + Sync {
    fn read(&self, at: u64, target: &mut [u8]) -> io::Result<()>;

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a range read as zeros, and take no room if possible.
    fn clear(&self, at: u64, len: u64) -> io::Result<()>;

    /// Makes everything written before durable.
    fn sync(&self) -> io::Result<()>;
}

impl Medium for fs::File {
    fn read(&self, at: u64, target: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(target, at)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn clear(&self, at: u64, len: u64) -> io::Result<()> {
        if len == 0 || fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len).is_ok() {
            return Ok(());
        }
        let (mut at, end) = (at, at + len);
        while at < end {
            let step = (end - at).min(ZEROS.len() as u64);
            self.write_all_at(&ZEROS[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
