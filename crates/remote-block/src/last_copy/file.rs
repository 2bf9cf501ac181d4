//! The file of a last copy: the store's bytes, and a trailer. Decides which files are used, and which are refused.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::medium::Medium;
use super::trailer::{TRAILER, Trailer, VolumeIdentity};

/// Reason why a file is refused as a last copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LastCopyError {
    /// The system failed.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is a device, a directory or the like.
    #[error("{} is {what}, but a last copy must be a regular file: name one, or a path that does not exist yet", path.display())]
    NotAFile {
        /// The path that was named.
        path: PathBuf,
        /// Kind of the thing there.
        what: &'static str,
    },
    /// Another server has it open as its last copy.
    #[error("{} is the last copy of a running server: name another file, or stop that one", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It has contents, and no valid trailer.
    #[error(
        "{} is not empty, and is either no last copy or a damaged one: name another file, or move it away",
        path.display()
    )]
    UnknownContents {
        /// The file.
        path: PathBuf,
    },
    /// It is the copy of a volume with another name.
    #[error("{} is the last copy of another volume ({}): name another file, or move it away", path.display(), describe_copy(*len, *is_complete))]
    OtherVolume {
        /// The file.
        path: PathBuf,
        /// Bytes of that volume.
        len: u64,
        /// Whether all of them are there.
        is_complete: bool,
    },
    /// It is the copy of an older or newer volume of the same name, and may be all that is left of it.
    #[error(
        "{} is the last copy of another volume of the same name ({}), which may be gone, so it is not overwritten: to keep its data, move the file away and write it to this volume; or name another file",
        path.display(),
        describe_copy(*len, *is_complete)
    )]
    OlderVolume {
        /// The file.
        path: PathBuf,
        /// Bytes of that volume.
        len: u64,
        /// Whether all of them are there.
        is_complete: bool,
    },
}

/// Describes what the copy of another volume contains.
fn describe_copy(len: u64, is_complete: bool) -> String {
    let how =
        if is_complete { "as they were at its last flush, or later" } else { "some of them perhaps old or missing" };
    format!("its first {len} bytes are that volume's, {how}")
}

/// Kind of a thing that is no regular file; `None` for a regular file.
fn kind(metadata: &fs::Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_fifo() => Some("a FIFO"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_block_device() => Some("a block device"),
        () if kind.is_char_device() => Some("a character device"),
        () => Some("not a regular file"),
    }
}

fn check_kind(path: &Path, metadata: &fs::Metadata) -> Result<(), LastCopyError> {
    kind(metadata).map_or(Ok(()), |what| Err(LastCopyError::NotAFile { path: path.to_owned(), what }))
}

/// The file of a [`LastCopy`](super::LastCopy), locked so that no other server uses it as one.
#[derive(Debug)]
pub struct LastCopyFile {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    trailer: Trailer,
}

impl LastCopyFile {
    /// Checks that there is a regular file at `path`, or nothing yet, without opening it.
    ///
    /// # Errors
    ///
    /// [`LastCopyError::NotAFile`].
    pub fn check_path(path: &Path) -> Result<(), LastCopyError> {
        fs::metadata(path).map_or(Ok(()), |metadata| check_kind(path, &metadata))
    }

    /// Opens or makes the file at `path`, for a volume of `len` bytes, and marks it as incomplete.
    ///
    /// # Errors
    ///
    /// [`LastCopyError`] if the file belongs to another volume, is no last copy, or the system fails. The file is then
    /// unchanged.
    pub fn open(path: &Path, volume: VolumeIdentity, len: u64) -> Result<Self, LastCopyError> {
        let path = path.to_owned();
        let failed = |source| LastCopyError::System { path: path.clone(), source };
        // Opening a device may already have effects, so the path is checked first.
        Self::check_path(&path)?;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // If something else takes the file's place meanwhile, opening it must not block, nor give this process a
        // terminal.
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
        let file = options.open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        check_kind(&path, &metadata)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(LastCopyError::InUse { path }),
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        // Its former server may have made it longer meanwhile.
        let file_len = file.metadata().map_err(failed)?.len();
        if file_len > 0 {
            let trailer = read_trailer(&file, file_len).map_err(failed)?;
            let Some(Trailer { volume: stored_volume, len: stored_len, is_complete }) = trailer else {
                return Err(LastCopyError::UnknownContents { path });
            };
            if (stored_volume, stored_len) != (volume, len) {
                let (is_same_name, len) = (stored_volume.id == volume.id, stored_len);
                return Err(match is_same_name {
                    true => LastCopyError::OlderVolume { path, len, is_complete },
                    false => LastCopyError::OtherVolume { path, len, is_complete },
                });
            }
        }
        let file = Self::with_medium(Arc::new(file), path.clone(), volume, len).map_err(failed)?;
        if file_len == 0 {
            sync_directory(&path).map_err(failed)?;
        }
        Ok(file)
    }

    /// Uses a medium that is empty, or has a copy of the same volume.
    pub(super) fn with_medium(
        medium: Arc<dyn Medium>,
        path: PathBuf,
        volume: VolumeIdentity,
        len: u64,
    ) -> io::Result<Self> {
        let file = Self { medium, trailer: Trailer { volume, len, is_complete: false }, path };
        file.write_trailer()?;
        // The mark must be durable before the first byte changes: otherwise a loss of power could leave a mixture of
        // old and new bytes in a file that claims to be complete.
        file.medium.sync()?;
        Ok(file)
    }

    /// Bytes of the store.
    pub(super) fn len(&self) -> u64 {
        self.trailer.len
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn medium(&self) -> &Arc<dyn Medium> {
        &self.medium
    }

    /// Whether the trailer says that the copy is complete.
    pub(super) fn is_marked(&self) -> bool {
        self.trailer.is_complete
    }

    /// Marks the file as complete or incomplete. The mark is durable after the next sync.
    pub(super) fn mark(&mut self, is_complete: bool) -> io::Result<()> {
        self.trailer.is_complete = is_complete;
        self.write_trailer()
    }

    fn write_trailer(&self) -> io::Result<()> {
        self.medium.write(self.trailer.len, &self.trailer.to_bytes())
    }
}

/// Reads the trailer at the end of a file of `file_len` bytes; `None` if there is none that fits.
fn read_trailer(file: &fs::File, file_len: u64) -> io::Result<Option<Trailer>> {
    let Some(start) = file_len.checked_sub(TRAILER as u64) else { return Ok(None) };
    let mut bytes = [0; TRAILER];
    file.read(start, &mut bytes)?;
    Ok(Trailer::read(&bytes).filter(|trailer| trailer.len == start))
}

/// Makes the name of a new file durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match fs::File::open(folder).and_then(|folder| folder.sync_all()) {
        // A file system that cannot sync folders needs no sync, and this user may not be allowed to read the folder.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied) => Ok(()),
        done => done,
    }
}
