//! A second process, which outlives the one that serves a mount, and unmounts what that leaves behind when it is killed.
//!
//! Without it the directory would stay a mount point that answers nothing ("Transport endpoint is not connected"). `fusermount3` can do that too, but for mounts that let others in alone, and not for root.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};

use crate::helper;
use crate::table::{Mounted, mounted_at};

/// What the second process does.
#[derive(Debug)]
pub struct Watch {
    mounted: Mounted,
    point: PathBuf,
}

impl Watch {
    /// From the two arguments that the process was started with. `None`: they are none.
    pub fn of(mounted: &str, point: impl Into<PathBuf>) -> Option<Self> {
        Some(Self { mounted: mounted.parse().ok()?, point: point.into() })
    }

    /// Waits until standard input ends, which it does with the first process, and unmounts what that left.
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
        self.clear();
    }

    /// Unmounts the file system, if it is still there, with what of it is mounted on top of it: another that was mounted at the same place meanwhile stays.
    fn clear(&self) {
        while let Ok(mounts) = mounted_at(&self.point)
            && mounts.contains(&self.mounted)
            && mounts.last().is_some_and(|top| top.device == self.mounted.device)
        {
            // There is nobody to tell.
            if detach(&self.point).is_err() {
                return;
            }
        }
    }
}

/// Takes a mount out of the tree, whoever still uses it.
pub(crate) fn detach(point: &Path) -> io::Result<()> {
    match unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => helper::unmount(&["-u", "-q", "-z", "--"], point),
        Err(error) => Err(error.into()),
    }
}

/// The second process, from the first one's side. It ends when this is dropped, and unmounts what is still there.
#[derive(Debug)]
pub(crate) struct Watcher(Child);

impl Watcher {
    /// `command` starts a process that makes a [`Watch`] of its last two arguments.
    pub fn start(command: &[OsString], mounted: Mounted, point: &Path) -> io::Result<Self> {
        let [program, args @ ..] = command else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(args).arg(mounted.to_string()).arg(point);
        // Ctrl-C is for the first process. And it holds no folder that others may want to remove.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Watcher {
    /// Ends it without a look: nothing is mounted there by this process any more. What somebody else mounts there now may have the same numbers.
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
