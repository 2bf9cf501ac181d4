//! Reasons why a file system is not mounted, and remedies.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::helper;

/// Reason why a file system is not mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The directory does not exist.
    #[error("there is no directory {}: make it with: mkdir -p {}", .0.display(), .0.display())]
    NoDirectory(PathBuf),
    /// The path is not a directory.
    #[error("{} is not a directory: a file system is mounted at a directory", .0.display())]
    NotADirectory(PathBuf),
    /// Something is mounted there already.
    #[error(
        "{} is a mount point already: choose another directory or, if an earlier `sinew mount` left it, end that with: umount {}",
        .0.display(), .0.display()
    )]
    Busy(PathBuf),
    /// A file system is mounted there whose process is gone.
    #[error(
        "{} is a mount point whose process is gone: clear it with: umount -l {} (fusermount3 -u -z for users other than root)",
        .0.display(), .0.display()
    )]
    Stale(PathBuf),
    /// The kernel has no FUSE, or its device is not visible here.
    #[error(
        "there is no /dev/fuse: load the kernel's module with: modprobe fuse; a container needs it as a device (--device /dev/fuse --cap-add SYS_ADMIN)"
    )]
    NoDevice,
    /// The process may not open `/dev/fuse`.
    #[error("/dev/fuse may not be opened: {0}; let users in with: chmod 666 /dev/fuse, or run this as root")]
    DeviceDenied(io::Error),
    /// Users other than root mount through a program that is not installed.
    #[error(
        "this process may not mount by itself, and there is no fusermount3, which does it for users other than root: install it \
         with: apt-get install fuse3 (dnf install fuse3), or run this as root (in a container with --cap-add SYS_ADMIN)"
    )]
    NoHelper,
    /// The program that mounts for users other than root may not mount either.
    #[error(
        "{}: {message}: fusermount3 mounts for users other than root only if it belongs to root and is setuid, and that has no effect in a process that may \
         gain no privileges (no_new_privs) or in a container without CAP_SYS_ADMIN: allow that, or run this as root", path.display()
    )]
    HelperDenied {
        /// The directory to mount at.
        path: PathBuf,
        /// The program's message.
        message: String,
    },
    /// Users are not allowed to let others in.
    #[error(
        "--allow-other lets users other than you use the files, which root has to allow: put the line user_allow_other into /etc/fuse.conf"
    )]
    OthersForbidden,
    /// The process may not examine the directory.
    #[error("{}: {error}", path.display())]
    Denied {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another error of the system.
    #[error("mounting at {}: {error}", path.display())]
    System {
        /// The directory to mount at.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl MountError {
    /// The error of examining the directory.
    pub(crate) fn of_directory(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match (error.kind(), Errno::from_io_error(&error)) {
            (ErrorKind::NotFound, _) => Self::NoDirectory(path),
            (_, Some(Errno::NOTCONN)) => Self::Stale(path),
            (_, Some(Errno::NOTDIR)) => Self::NotADirectory(path),
            _ => Self::Denied { path, error },
        }
    }

    /// The error of reading the table of mounts.
    pub(crate) fn of_table(path: &Path, error: io::Error) -> Self {
        let error = io::Error::new(error.kind(), format!("/proc/self/mountinfo, the table of mounts: {error}"));
        Self::System { path: path.to_owned(), error }
    }

    /// The error of opening the device.
    pub(crate) fn of_device(error: io::Error) -> Self {
        match (error.kind(), Errno::from_io_error(&error)) {
            (ErrorKind::NotFound, _) | (_, Some(Errno::NXIO | Errno::NODEV)) => Self::NoDevice,
            _ => Self::DeviceDenied(error),
        }
    }

    /// The error of mounting.
    pub(crate) fn of_mount(path: &Path, error: io::Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            _ if text.contains("user_allow_other") => Self::OthersForbidden,
            // Only the helper can be missing: the directory and the device have been checked.
            ErrorKind::NotFound => Self::NoHelper,
            // What the search for the helper returns if it is not installed and a directory of PATH may not be read.
            ErrorKind::PermissionDenied if !helper::is_installed() => Self::NoHelper,
            // The helper's own message, which comes without an error number.
            _ if text.contains("fusermount") && text.contains("not permitted") => {
                Self::HelperDenied { path: path.to_owned(), message: text.trim().to_owned() }
            }
            _ => Self::System { path: path.to_owned(), error },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_a_message_that_says_what_to_do() {
        let path = Path::new("/mnt/x");
        let of = |errno: Errno| MountError::of_directory(path, errno.into()).to_string();
        assert!(of(Errno::NOENT).contains("mkdir -p /mnt/x"));
        assert!(of(Errno::NOTCONN).contains("umount -l /mnt/x"));
        assert!(of(Errno::ACCESS).contains("/mnt/x") && of(Errno::NOTDIR).contains("not a directory"));
        assert!(MountError::of_device(Errno::NOENT.into()).to_string().contains("modprobe fuse"));
        assert!(MountError::of_device(Errno::PERM.into()).to_string().contains("chmod 666 /dev/fuse"));
        assert!(MountError::of_mount(path, Errno::NOENT.into()).to_string().contains("install fuse3"));
        let denied = MountError::of_mount(path, Errno::ACCESS.into()).to_string();
        assert!(denied.contains(if helper::is_installed() { "/mnt/x" } else { "install fuse3" }), "{denied}");
        let forbidden =
            io::Error::other("option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf");
        assert!(MountError::of_mount(path, forbidden).to_string().contains("/etc/fuse.conf"));
        let powerless = io::Error::other("fusermount: mount failed: Operation not permitted\n");
        let powerless = MountError::of_mount(path, powerless).to_string();
        assert!(powerless.contains("setuid") && powerless.contains("run this as root"), "{powerless}");
        assert!(MountError::of_mount(path, Errno::INVAL.into()).to_string().contains("/mnt/x"));
    }
}
