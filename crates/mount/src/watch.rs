//! A second process, which unmounts the file system if the process that serves it is killed.
//!
//! Without it the directory would remain a mount point at which every access fails ("Transport endpoint is not
//! connected"). `fusermount3` has an option for this (`auto_unmount`), but only for mounts that other users may access,
//! and not for those that root makes without it.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};

use crate::helper;
use crate::table::{Mounted, mounts_at};

/// The job of the second process.
#[derive(Debug)]
pub struct Watch {
    mounted: Mounted,
    point: PathBuf,
}

impl Watch {
    /// Reads the two arguments that the process was started with. `None` if they are not valid.
    pub fn parse(mounted: &str, point: impl Into<PathBuf>) -> Option<Self> {
        Some(Self { mounted: mounted.parse().ok()?, point: point.into() })
    }

    /// Waits until standard input ends, as it does when the serving process ends, and unmounts what that process left.
    pub fn run(&self) {
        let mut ignored = [0; 16];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut ignored) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        self.detach_if_mounted();
    }

    /// Unmounts the file system if it is still mounted, together with further mounts of it on top. Another file system
    /// mounted at the same place meanwhile stays.
    fn detach_if_mounted(&self) {
        while let Ok(mounts) = mounts_at(&self.point)
            && mounts.contains(&self.mounted)
            && mounts.last().is_some_and(|top| top.device == self.mounted.device)
        {
            // There is no one to report an error to.
            if detach(&self.point).is_err() {
                return;
            }
        }
    }
}

/// Detaches a mount from the tree, even if it is in use.
pub(crate) fn detach(point: &Path) -> io::Result<()> {
    match unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => helper::unmount(&["-u", "-q", "-z", "--"], point),
        Err(error) => Err(error.into()),
    }
}

/// The second process, as the serving process sees it. Dropping this ends it, after it has unmounted what is left.
#[derive(Debug)]
pub(crate) struct Watcher(Child);

impl Watcher {
    /// Starts a process by `command`, which makes a [`Watch`] of its last two arguments.
    pub fn start(command: &[OsString], mounted: Mounted, point: &Path) -> io::Result<Self> {
        let [program, args @ ..] = command else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(args).arg(mounted.to_string()).arg(point);
        // Ctrl-C is meant for the serving process. With the root as its directory, the child keeps no other one in use.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Watcher {
    /// Ends the second process without a last check: nothing of ours is mounted there any more, and a mount that
    /// another process makes there now may have the same numbers.
    pub fn dismiss(mut self) {
        let _ = self.0.kill();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
