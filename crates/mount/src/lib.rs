//! Files as Linux sees them: a FUSE front for any file system of several threads.
//!
//! - [`Files`]: the seam. What the kernel asks, in terms of inode numbers, attributes, offsets and the system's errors.
//! - [`Mount`]: mounts one at a directory, and unmounts it again.
//! - [`Watch`]: what a second process does, so that a mount whose process was killed does not stay behind.
//! - [`Remote`]: the remote file system behind a mount.
//! - [`InMemory`]: files in this process' own memory: what other file systems are compared with.
//!
//! # What the kernel is told
//!
//! - Requests have up to 1 MB, reads and writes of `O_DIRECT` files go past the page cache, several at a time, and such files can be mapped all the same where the kernel allows it (6.6).
//! - Names and attributes are believed as long as [`Files::lifetimes`] says; cached data until the file is opened anew and [`Files::open`] says that it has changed (close-to-open, as NFS).
//! - The kernel's own cache of writes stays off: with it the kernel would hold its own idea of a file's size to be right, whatever others write.
//!
//! # What `fuser` 0.18 does not tell
//!
//! Whether a lock is of `flock` or of `fcntl`: both are locks of bytes in one space, as on NFS, so a program that takes both of one file waits for itself. And that a request was interrupted:
//! who waits for a lock is looked at in `/proc` for signals.
#![forbid(unsafe_code)]

mod caller;
pub mod daemon;
mod error;
pub mod files;
mod front;
mod helper;
mod memory;
mod mount;
pub mod remote;
mod table;
mod watch;

/// The flag of `open` for reads and writes past the kernel's cache.
pub const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

pub use error::MountError;
pub use files::{Files, Result};
pub use memory::InMemory;
pub use mount::{Mount, Options, Unmounted};
pub use remote::Remote;
pub use watch::Watch;
