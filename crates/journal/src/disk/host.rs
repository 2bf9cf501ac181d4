//! A disk that is a directory of the host.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use super::{Disk, DiskError};

/// Name of the file whose lock says that the directory is in use.
const LOCK: &str = "lock";

/// Reason why a directory cannot be used as a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFailed {
    /// Another process holds the directory's lock.
    #[error("{0} is in use by another process: stop that, or name another directory")]
    InUse(PathBuf),
    /// The directory has files, and was never used as a disk.
    #[error("{0} has other files in it, such as {1:?}: name an empty directory, or one that does not exist")]
    Foreign(PathBuf, OsString),
    /// A system call failed.
    #[error("opening the directory {0}: {1}")]
    System(PathBuf, #[source] io::Error),
}

/// A directory that this process owns as long as the value lives.
#[derive(Debug)]
pub struct HostDisk {
    path: PathBuf,
    directory: File,
    /// Open files by name, each with its length in bytes.
    files: HashMap<String, (File, u64)>,
    /// Locked file. The system releases the lock when the process ends, even if it is killed.
    _lock: File,
}

fn failed(error: io::Error) -> DiskError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::Full,
        _ => DiskError::Failed(error.to_string()),
    }
}

/// Returns a file that is not a journal's, unless a lock shows that the directory was used as a disk. A journal that
/// was copied without its lock has no such file.
fn foreign_file(directory: &Path) -> io::Result<Option<OsString>> {
    if directory.join(LOCK).try_exists()? {
        return Ok(None);
    }
    // The top directory of an ext4 file system has `lost+found`.
    let is_ours = |name: &OsString| {
        name.to_str().is_some_and(|name| name == LOCK || name == "lost+found" || crate::is_journal_file(name))
    };
    let mut names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name()));
    names.find(|name: &io::Result<OsString>| !name.as_ref().is_ok_and(is_ours)).transpose()
}

impl HostDisk {
    /// Opens the directory at a path, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// [`OpenFailed`].
    pub fn open(path: &Path) -> Result<Self, OpenFailed> {
        let system = |error| OpenFailed::System(path.to_owned(), error);
        let new: Vec<&Path> =
            path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists()).collect();
        fs::create_dir_all(path).map_err(system)?;
        if let Some(name) = foreign_file(path).map_err(system)? {
            return Err(OpenFailed::Foreign(path.to_owned(), name));
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK)).map_err(system)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenFailed::InUse(path.to_owned())),
            Err(error) => return Err(system(error.into())),
        }
        let directory = File::open(path).map_err(system)?;
        // The names of the directory, and of those above it that are new, must be durable, too. Even an old directory
        // may have been made by a process that died before it synced the names.
        for folder in new.into_iter().chain([path]).filter_map(Path::parent) {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(system)?;
        }
        Ok(Self { path: path.to_owned(), directory, files: HashMap::new(), _lock: lock })
    }

    fn file(&mut self, name: &str) -> Result<&mut (File, u64), DiskError> {
        if !self.files.contains_key(name) {
            let file = OpenOptions::new().read(true).append(true).open(self.path.join(name));
            let file = file.map_err(|error| match error.kind() {
                ErrorKind::NotFound => DiskError::NotFound(name.to_owned()),
                _ => failed(error),
            })?;
            let len = file.metadata().map_err(failed)?.len();
            self.files.insert(name.to_owned(), (file, len));
        }
        self.files.get_mut(name).ok_or_else(|| DiskError::NotFound(name.to_owned()))
    }
}

impl Disk for HostDisk {
    fn names(&mut self) -> Result<Vec<String>, DiskError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.into_string().ok().filter(|name| name != LOCK));
        }
        names.sort();
        Ok(names)
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, DiskError> {
        let path = self.path.join(name);
        self.file(name)?;
        let mut bytes = Vec::new();
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(failed)?;
        Ok(bytes)
    }

    fn create(&mut self, name: &str) -> Result<(), DiskError> {
        self.files.remove(name);
        File::create(self.path.join(name)).map_err(failed)?;
        self.file(name).map(|_| ())
    }

    fn reserve(&mut self, name: &str, more: u64) -> Result<(), DiskError> {
        let (file, len) = self.file(name)?;
        match fallocate(file, FallocateFlags::KEEP_SIZE, *len, more) {
            Ok(()) => Ok(()),
            // Some file systems cannot reserve room.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(failed(error.into())),
        }
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let (file, len) = self.file(name)?;
        file.write_all(bytes).map_err(failed)?;
        *len += bytes.len() as u64;
        Ok(())
    }

    fn truncate(&mut self, name: &str, len: u64) -> Result<(), DiskError> {
        let (file, known) = self.file(name)?;
        file.set_len(len).map_err(failed)?;
        *known = len;
        Ok(())
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.file(name)?.0.sync_data().map_err(failed)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.file(from)?;
        fs::rename(self.path.join(from), self.path.join(to)).map_err(failed)?;
        self.files.remove(to);
        if let Some(file) = self.files.remove(from) {
            self.files.insert(to.to_owned(), file);
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.file(name)?;
        self.files.remove(name);
        fs::remove_file(self.path.join(name)).map_err(failed)
    }

    fn sync_names(&mut self) -> Result<(), DiskError> {
        self.directory.sync_all().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let disk = HostDisk::open(&path).unwrap();
        let error = HostDisk::open(&path).unwrap_err();
        assert!(matches!(error, OpenFailed::InUse(_)), "{error}");
        drop(disk);
        assert!(HostDisk::open(&path).is_ok());
        assert!(matches!(HostDisk::open(Path::new("/dev/null/x")), Err(OpenFailed::System(..))));
    }

    #[test]
    fn a_directory_with_files_of_others_is_refused_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("lost+found")).unwrap();
        drop(HostDisk::open(directory.path()).unwrap());
        fs::write(directory.path().join("log-00000001"), "ours").unwrap();
        fs::remove_file(directory.path().join(LOCK)).unwrap();
        drop(HostDisk::open(directory.path()).expect("a copy without its lock"));
        fs::write(directory.path().join("letter"), "theirs").unwrap();
        fs::remove_file(directory.path().join(LOCK)).unwrap();
        let error = HostDisk::open(directory.path()).unwrap_err();
        assert!(error.to_string().contains("letter"), "{error}");
        assert!(!directory.path().join(LOCK).exists());
    }

    #[test]
    fn all_facts_of_disks_hold() {
        let directory = tempfile::tempdir().unwrap();
        let mut next = 0;
        crate::disk::facts::all(|| {
            next += 1;
            HostDisk::open(&directory.path().join(next.to_string())).unwrap()
        });
    }
}
