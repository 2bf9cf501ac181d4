//! The file: the store's bytes, and a trailer.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// Bytes of the trailer: a page, so that the file is a whole number of them.
const TRAILER: usize = 4096;
const MAGIC: [u8; 16] = *b"sinew last copy\n";
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Why a file does not become a last copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LastCopyError {
    /// What the system says.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Another process has it open as its last copy.
    #[error("{} is the last copy of a server that runs: name another file, or stop that one", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It has contents, which are not this store's.
    #[error("{} has contents, and is not this volume's last copy: name another file, or remove it", path.display())]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// The store is new, and the file may be all that is left of one before.
    #[error(
        "{} is the last copy of a volume that was there before, and this one is new and empty: to keep what it holds, move it away and write it to the new volume (its first {len} bytes are the device), or remove it",
        path.display()
    )]
    Precious {
        /// The file.
        path: PathBuf,
        /// Bytes of the device that it was a copy of.
        len: u64,
    },
}

/// Whose the bytes are, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trailer {
    id: u64,
    len: u64,
    /// All of it was copied since it was opened. For people: it is copied anew whatever this says.
    is_complete: bool,
}

impl Trailer {
    fn to_bytes(self) -> [u8; TRAILER] {
        let mut bytes = [0; TRAILER];
        bytes[..16].copy_from_slice(&MAGIC);
        bytes[16..24].copy_from_slice(&self.id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_le_bytes());
        bytes[32] = self.is_complete.into();
        bytes
    }

    fn read(bytes: &[u8; TRAILER]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
        let is_known = bytes[..16] == MAGIC && bytes[32] <= 1 && bytes[33..].iter().all(|byte| *byte == 0);
        is_known.then_some(Self { id: word(16)?, len: word(24)?, is_complete: bytes[32] == 1 })
    }
}

/// The file of a [`LastCopy`](super::LastCopy), which no other process has open as such.
#[derive(Debug)]
pub struct LastCopyFile {
    file: fs::File,
    path: PathBuf,
    trailer: Trailer,
}

impl LastCopyFile {
    /// Opens or makes the file at `path`, for a store that is called `id` and has `len` bytes. `is_new`: the store was made a moment ago, and holds nothing.
    ///
    /// # Errors
    ///
    /// [`LastCopyError`]: the file is another's, or what the system says. It is as it was then.
    pub fn open(path: &Path, id: u64, len: u64, is_new: bool) -> Result<Self, LastCopyError> {
        let path = path.to_owned();
        let options = |create| fs::OpenOptions::new().read(true).write(true).create(create).mode(0o600).open(&path);
        let failed = |source| LastCopyError::System { path: path.clone(), source };
        let file = options(true).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(LastCopyError::InUse { path }),
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        let found = file.metadata().map_err(failed)?.len();
        if found > 0 {
            let mut bytes = [0; TRAILER];
            let start = found.checked_sub(TRAILER as u64);
            let read = start.map(|start| file.read_exact_at(&mut bytes, start)).transpose().map_err(failed)?;
            match read.and_then(|()| Trailer::read(&bytes)) {
                Some(Trailer { len, .. }) if is_new => return Err(LastCopyError::Precious { path, len }),
                Some(trailer) if (trailer.id, trailer.len, Some(len)) == (id, len, start) => {}
                _ => return Err(LastCopyError::Other { path }),
            }
        }
        let file = Self { file, trailer: Trailer { id, len, is_complete: false }, path: path.clone() };
        file.write_trailer(file.trailer).map_err(failed)?;
        Ok(file)
    }

    /// Bytes of the store that it is a copy of.
    pub(super) fn len(&self) -> u64 {
        self.trailer.len
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn write_trailer(&self, trailer: Trailer) -> io::Result<()> {
        self.file.write_all_at(&trailer.to_bytes(), trailer.len)
    }

    /// Notes that all of it was copied.
    pub(super) fn note_complete(&self) -> io::Result<()> {
        self.write_trailer(Trailer { is_complete: true, ..self.trailer })
    }

    pub(super) fn read(&self, at: u64, target: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(target, at)
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// Has a range be zeros, and take no room where the file system can.
    pub(super) fn clear(&self, at: u64, len: u64) -> io::Result<()> {
        if len == 0 || fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len).is_ok() {
            return Ok(());
        }
        let (mut at, end) = (at, at + len);
        while at < end {
            let step = (end - at).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
