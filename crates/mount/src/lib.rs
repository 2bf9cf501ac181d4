//! Files as Linux sees them: a FUSE front for any multi-threaded file system.
//!
//! - [`Files`]: the interface for file systems: the kernel's requests, in terms of inode numbers, attributes, offsets
//!   and the system's errors.
//! - [`Mount`]: mounts a file system at a directory, and unmounts it again.
//! - [`Watch`]: the job of a second process, which clears the mount if the serving process is killed.
//! - [`Remote`]: the remote file system behind a mount.
//! - [`InMemory`]: files in the memory of this process, as a baseline for other file systems.
//!
//! # How the kernel is configured
//!
//! - Requests carry up to 1 MB. Reads and writes of `O_DIRECT` files bypass the page cache, several at a time; such
//!   files can still be mapped where the kernel allows it (6.6).
//! - The kernel caches names and attributes for as long as [`Files::lifetimes`] says, and data until the file is opened
//!   anew and [`Files::open`] reports a change (close-to-open consistency, as in NFS).
//! - The kernel's write-back cache stays off: with it the kernel would trust its own idea of a file's size, whatever
//!   other clients write.
//!
//! # What `fuser` 0.18 does not pass on
//!
//! It does not say whether a lock is of `flock` or of `fcntl`. A lock of a part of a file is of `fcntl`; for one of
//! the whole file, the system call in which its thread waits is looked up in `/proc`. Where that cannot be seen (the
//! mount's process is not root and the kernel forbids it, or the caller is in another PID namespace), such a lock
//! counts as one of both, and a program that takes both on one file excludes itself. Locks hold for all hosts in any
//! case. Nor does `fuser` report interrupted requests, so threads that wait for a lock are checked for signals in
//! `/proc`.
//!
//! Of processes that wait for each other's `fcntl` locks one gets `EDEADLK`, wherever they run, if the file system
//! finds that ([`Files::set_lock`]). A lock of the whole file whose call cannot be seen may be of `flock`, which knows
//! no such error, so deadlocks by it are not found. Nor can a lock of an open file description (`F_OFD_SETLKW`) be told
//! from one of a process: it gets the error, too.
//!
//! # Design
//!
//! - **The version of what the kernel has cached is separate from that of the layout.** A layout may be fetched anew
//!   while old pages are still cached.
//! - **Only `O_DIRECT` files bypass the page cache**; all others can be mapped everywhere.
//! - **Locks that wait** are retried by one thread, so that they hold up no thread that serves the kernel. The file
//!   system is told of each attempt that its caller waits, and of the last one, before a caller that was interrupted
//!   is answered, that it does not.
//! - **Privileges that a file gives to its program** (set-id bits, capabilities) are cleared when others write to the
//!   file. The kernel leaves that to the file system (FUSE_HANDLE_KILLPRIV_V2): for each `write` it says whether to
//!   clear the set-id bits, but not for `fallocate`, nor for pages of mappings. A `fallocate` clears them unless its
//!   caller is root; a write of mapped pages clears them if any user other than root has the file open for writing. The
//!   metadata service removes capabilities with each change of the contents, length or owner.
//! - **The second process** has a pipe from the first. When the pipe is closed it unmounts, if the mount is still
//!   there. It recognises the mount by the system's number for it, not only by its device.
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

/// The flag of `open` for reads and writes that bypass the kernel's cache.
pub const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

pub use error::MountError;
pub use files::{Files, Result};
pub use memory::InMemory;
pub use mount::{Mount, Options, Unmounted, check};
pub use remote::Remote;
pub use watch::Watch;
