//! What the copy lies on: a file, or, in tests, a disk that loses what was not synced.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes that last when they were synced. What was written and not synced, a loss of power may take, in any part.
pub trait Medium: std::fmt::Debug + Send + Sync {
    fn read(&self, at: u64, target: &mut [u8]) -> io::Result<()>;

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Has a range be zeros, and take no room where that can be had.
    fn clear(&self, at: u64, len: u64) -> io::Result<()>;

    /// Has all last that was written before.
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
