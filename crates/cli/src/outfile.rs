//! The file that `--out` names.
//!
//! A regular file is never half written: its former contents stay until the new ones lie beside it, on disk. Anything
//! else of that name (`/dev/stdout`, a FIFO) is written directly, and so is a file that cannot be replaced: a mount
//! point, or another owner's file in a sticky folder. If such a write fails half-way, all of the contents are in a file
//! beside it, which the error names.

use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};

use crate::Usage;

/// Names of files that are already open: replacing one would take it from its other users.
const OPEN_ALREADY: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];

/// Held while a file is being replaced.
static REPLACING: Mutex<()> = Mutex::new(());

/// Destination of a result that is still to be made.
pub struct OutFile {
    /// Name as given.
    name: PathBuf,
    /// The regular file that is, or will be, behind any links; `None` for anything else.
    target: Option<PathBuf>,
}

/// Waits until no file is being replaced, and keeps it so.
pub fn hold() -> MutexGuard<'static, ()> {
    REPLACING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OutFile {
    /// Checks that the file can be written, and changes nothing. If it cannot be, that is wrong usage.
    ///
    /// # Errors
    ///
    /// Those of the system; the name may be that of a folder.
    pub fn check(name: &Path) -> anyhow::Result<Self> {
        let checked = target(name).with_context(|| format!("writing {}", name.display()));
        checked.map(|target| Self { name: name.to_owned(), target }).map_err(Usage::of)
    }

    /// Name as given.
    pub fn name(&self) -> std::path::Display<'_> {
        self.name.display()
    }

    /// Writes the file. On an error its former contents are still there, except where a file cannot be replaced.
    ///
    /// # Errors
    ///
    /// Those of the system, such as a full disk.
    pub fn write(&self, contents: &[u8]) -> anyhow::Result<()> {
        let done = match &self.target {
            Some(target) => replace(target, contents),
            // Opened only now, since opening a FIFO waits for a reader. Appends, since the same file may be standard
            // output.
            None => File::options().append(true).open(&self.name).and_then(|mut file| file.write_all(contents)),
        };
        match done {
            // As with standard output: output that nobody reads is no error of ours.
            Err(error) if self.target.is_none() && error.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done.with_context(|| format!("writing {}", self.name())),
        }
    }
}

/// The regular file of this name, if it is one or will be.
fn target(name: &Path) -> anyhow::Result<Option<PathBuf>> {
    let kind = match fs::metadata(name) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let target = match kind {
        Some(kind) if kind.is_dir() => bail!("this is a folder"),
        // Opening it would wait for a reader.
        Some(kind) if kind.is_fifo() => return Ok(None),
        Some(kind) if !kind.is_file() || OPEN_ALREADY.iter().any(|open| name.starts_with(open)) => {
            File::options().append(true).open(name)?;
            return Ok(None);
        }
        Some(_) => {
            File::options().append(true).open(name)?;
            fs::canonicalize(name)?
        }
        None if [&b"/"[..], b"/."].iter().any(|end| name.as_os_str().as_encoded_bytes().ends_with(end)) => {
            bail!("there is no such folder")
        }
        None if fs::symlink_metadata(name).is_ok() => bail!("this is a dangling link"),
        None => name.to_owned(),
    };
    let _held = hold();
    let (_, beside) = file_beside(&target).context("its folder does not take new files")?;
    fs::remove_file(beside)?;
    Ok(Some(target))
}

/// Creates a new file in the folder of another.
fn file_beside(target: &Path) -> std::io::Result<(File, PathBuf)> {
    let Some(name) = target.file_name() else { return Err(ErrorKind::InvalidFilename.into()) };
    let random = RandomState::new().hash_one(name);
    let beside = target.with_file_name(format!(".sinew-{random:016x}.new"));
    Ok((File::options().write(true).create_new(true).open(&beside)?, beside))
}

fn replace(target: &Path, contents: &[u8]) -> std::io::Result<()> {
    let _held = hold();
    let permissions: Option<Permissions> = fs::metadata(target).ok().map(|metadata| metadata.permissions());
    let (mut file, beside) = file_beside(target)?;
    // Permissions come first: others may not be allowed to read it.
    let written = permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions)).and_then(|()| {
        file.write_all(contents)?;
        // Some disks report that they are full only here.
        file.sync_all()
    });
    match written.and_then(|()| fs::rename(&beside, target)) {
        Err(error) if is_kept_where_it_is(error.kind()) => {
            let mut file = File::options().write(true).truncate(true).open(target)?;
            file.write_all(contents).and_then(|()| file.sync_all()).map_err(|error| {
                std::io::Error::new(error.kind(), format!("{error}; all of it is in {}", beside.display()))
            })?;
            // The contents are now in the target itself.
            let _ = fs::remove_file(&beside);
            Ok(())
        }
        Err(error) => {
            // The first error is the one to report.
            let _ = fs::remove_file(&beside);
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Whether an error means that a file can be written but not replaced: it is a mount point, or belongs to another
/// owner.
fn is_kept_where_it_is(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ResourceBusy | ErrorKind::CrossesDevices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let random = RandomState::new().hash_one(());
            let folder = std::env::temp_dir().join(format!("sinew-outfile-{random:016x}"));
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_there_stays_until_all_is_written_and_keeps_its_permissions() {
        let folder = Folder::new();
        let [file, link] = ["file", "link"].map(|name| folder.0.join(name));
        fs::write(&file, "before").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        let out = OutFile::check(&link).unwrap();
        assert_eq!(
            (fs::read_to_string(&file).unwrap(), folder.names()),
            ("before".into(), vec!["file".into(), "link".into()])
        );
        out.write(b"after").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && folder.names().len() == 2);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_check_leaves_nothing_and_a_write_that_fails_neither() {
        let folder = Folder::new();
        let file = folder.0.join("new");
        let out = OutFile::check(&file).unwrap();
        assert_eq!(folder.names(), [""; 0]);
        // A folder has appeared where the file was to be.
        fs::create_dir(&file).unwrap();
        assert!(out.write(b"contents").is_err());
        assert_eq!(folder.names(), ["new"]);
    }

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let folder = Folder::new();
        symlink("nowhere", folder.0.join("dangling")).unwrap();
        for (name, problem) in
            [("", "folder"), ("no/file", "No such file"), ("no/", "no such folder"), ("dangling", "link")]
        {
            let error = OutFile::check(&folder.0.join(name)).err().unwrap();
            assert!(error.is::<Usage>() && error.to_string().contains(problem), "{error}");
        }
        assert_eq!(folder.names(), ["dangling"]);
    }

    #[test]
    fn what_is_no_regular_file_is_written_straight_to() {
        OutFile::check(Path::new("/dev/null")).unwrap().write(b"gone").unwrap();
        let error = OutFile::check(Path::new("/dev/full")).unwrap().write(b"no room").unwrap_err();
        assert!(format!("{error:#}").starts_with("writing /dev/full: "), "{error:#}");
        let (mut read, write) = std::io::pipe().unwrap();
        let name = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&write));
        OutFile::check(Path::new(&name)).unwrap().write(b"piped").unwrap();
        drop(write);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut read, &mut text).unwrap();
        assert_eq!(text, "piped");
    }
}
