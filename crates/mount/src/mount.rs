//! Mounting a file system at a directory.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, MountOption, Session, SessionACL};
use rustix::mount::{UnmountFlags, unmount};

use crate::error::MountError;
use crate::files::Files;
use crate::front::{Front, KernelNotifier, REQUEST_MAX};
use crate::table::{DeviceNumber, Mounted, mounts_at};
use crate::watch::{Watcher, detach};
use crate::{caller, helper};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name that `mount` and `df` show.
    pub name: String,
    /// Whether writing is forbidden.
    pub read_only: bool,
    /// Whether users other than the one who mounts it may use it.
    pub allow_other: bool,
    /// Threads that answer the kernel; 0 counts as 1.
    pub threads: usize,
    /// Program and arguments of a process that unmounts what this process leaves behind if it is killed. The two
    /// arguments of [`crate::Watch`] are appended. `None`: there is no such process.
    pub watcher: Option<Vec<OsString>>,
}

impl Options {
    /// Options for a file system of this name: writable, only for the user who mounts it, and with one thread for each
    /// processor, but at least two and at most eight.
    pub fn new(name: impl Into<String>) -> Self {
        let threads = thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8));
        Self { name: name.into(), read_only: false, allow_other: false, threads, watcher: None }
    }
}

/// Outcome of unmounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The file system was no longer in use.
    Unused,
    /// The file system was in use, and programs with open files have lost them.
    InUse,
}

/// Time to wait for the session's threads to end after unmounting.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between checks for that.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A mounted file system. Dropping it unmounts the file system.
pub struct Mount<F: Files> {
    files: Arc<F>,
    point: PathBuf,
    /// Its identity in the system's table, once it answers.
    mounted: Option<Mounted>,
    session: Option<BackgroundSession>,
    watcher: Option<Watcher>,
}

impl<F: Files> std::fmt::Debug for Mount<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("point", &self.point).finish_non_exhaustive()
    }
}

/// Checks what can be checked before a file system is mounted at a directory: that the directory exists and is no mount
/// point, that `/dev/fuse` can be opened, and that this process may mount, or has a helper that may. Returns the
/// directory's canonical path.
///
/// # Errors
///
/// [`MountError`].
pub fn check(point: &Path) -> Result<PathBuf, MountError> {
    let of = |error| MountError::of_directory(point, error);
    let metadata = std::fs::metadata(point).map_err(of)?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory(point.to_owned()));
    }
    let point = point.canonicalize().map_err(of)?;
    if !mounts_at(&point).map_err(|error| MountError::of_table(&point, error))?.is_empty() {
        return Err(MountError::Busy(point));
    }
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(MountError::of_device)?;
    if !caller::may_mount() && !helper::is_installed() {
        return Err(MountError::NoHelper);
    }
    Ok(point)
}

impl<F: Files> Mount<F> {
    /// Mounts a file system at a directory. The mount is ready for use when this returns.
    ///
    /// # Errors
    ///
    /// [`MountError`].
    pub fn new(files: F, point: &Path, options: &Options) -> Result<Self, MountError> {
        let point = check(point)?;
        let files = Arc::new(files);
        let mut config = fuser::Config::default();
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = true;
        config.mount_options = vec![
            MountOption::FSName(options.name.clone()),
            MountOption::Subtype("sinew".to_owned()),
            MountOption::DefaultPermissions,
            if options.read_only { MountOption::RO } else { MountOption::RW },
        ];
        let of = |error| MountError::of_mount(&point, error);
        let session = Session::new(Front::new(Arc::clone(&files)), &point, &config).map_err(of)?;
        files.set_notifier(Arc::new(KernelNotifier(session.notifier())));
        let session = session.spawn().map_err(of)?;
        let mut mount = Self { files, point, mounted: None, session: Some(session), watcher: None };
        let mounted = mount.find()?;
        mount.mounted = Some(mounted);
        set_read_ahead(mounted.device);
        if let Some(command) = &options.watcher {
            let started = Watcher::start(command, mounted, &mount.point);
            mount.watcher = Some(started.map_err(|error| MountError::System { path: mount.point.clone(), error })?);
        }
        Ok(mount)
    }

    /// The directory's canonical path.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The mounted file system.
    pub fn files(&self) -> &Arc<F> {
        &self.files
    }

    /// Waits until the mount answers, and finds its identity in the system's table.
    fn find(&self) -> Result<Mounted, MountError> {
        let of = |error| MountError::of_mount(&self.point, error);
        std::fs::metadata(&self.point).map_err(of)?;
        let mounts = mounts_at(&self.point).map_err(|error| MountError::of_table(&self.point, error))?;
        let missing = || MountError::of_table(&self.point, io::Error::other("what was just mounted is not there"));
        mounts.last().copied().ok_or_else(missing)
    }

    /// Whether it was unmounted by someone else.
    pub fn is_unmounted(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts the file system. If programs still have files open, their writes are completed first, and then the
    /// files are lost to them.
    ///
    /// # Errors
    ///
    /// The system's error. The mount ends nevertheless when this process does.
    pub fn unmount(mut self) -> io::Result<Unmounted> {
        self.do_unmount()
    }

    fn do_unmount(&mut self) -> io::Result<Unmounted> {
        let Some(session) = self.session.take() else { return Ok(Unmounted::Unused) };
        let mut outcome = Ok(Unmounted::Unused);
        if !session.guard.is_finished() && self.is_in_table() {
            outcome = match unmount_if_unused(&self.point) {
                Ok(()) => Ok(Unmounted::Unused),
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    if let Ok(root) = File::open(&self.point) {
                        // Writes back changed pages of mappings. Errors of such writes are reported to the programs
                        // that wrote.
                        let _ = rustix::fs::syncfs(&root);
                    }
                    detach(&self.point).map(|()| Unmounted::InUse)
                }
                Err(error) => Err(error),
            };
        }
        let until = Instant::now() + END_TIMEOUT;
        while !session.guard.is_finished() && Instant::now() < until && !matches!(outcome, Ok(Unmounted::InUse)) {
            thread::sleep(POLL_INTERVAL);
        }
        self.files.unmounted();
        match self.watcher.take() {
            Some(watcher) if outcome.is_ok() => watcher.dismiss(),
            // The watcher tries once more.
            watcher => drop(watcher),
        }
        if session.guard.is_finished() {
            let joined = join(session);
            return outcome.and_then(|how| joined.map(|()| how));
        }
        // The threads keep serving open files for as long as this process runs.
        std::mem::forget(session);
        outcome
    }

    /// Whether it is mounted still, as far as the system's table tells. If someone has unmounted it, its directory may
    /// be another's mount point by now.
    fn is_in_table(&self) -> bool {
        let Some(mounted) = self.mounted else { return true };
        mounts_at(&self.point).map_or(true, |mounts| mounts.contains(&mounted))
    }
}

impl<F: Files> Drop for Mount<F> {
    fn drop(&mut self) {
        // A drop cannot report errors.
        let _ = self.do_unmount();
    }
}

/// Waits for the thread of a session that has ended. The session itself is forgotten: fuser 0.18 takes a device that
/// was unmounted for a mounted one, so dropping the session would unmount whatever is mounted at its directory by now.
fn join(mut session: BackgroundSession) -> io::Result<()> {
    let guard =
        thread::Builder::new().spawn(|| Ok(())).map(|placeholder| std::mem::replace(&mut session.guard, placeholder));
    std::mem::forget(session);
    guard?.join().map_err(|_| io::Error::other("the thread that served the file system panicked"))?
}

fn unmount_if_unused(point: &Path) -> io::Result<()> {
    match unmount(point, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // It is not mounted there any more.
        Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(rustix::io::Errno::PERM) => match helper::unmount(&["-u", "--"], point) {
            Err(error) if error.to_string().contains("busy") => Err(ErrorKind::ResourceBusy.into()),
            result => result,
        },
        Err(error) => Err(error.into()),
    }
}

/// Makes the kernel read ahead by a whole request, which only root may do. A mount starts with 128 KB.
fn set_read_ahead(device: DeviceNumber) {
    let _ = std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (REQUEST_MAX >> 10).to_string());
}
