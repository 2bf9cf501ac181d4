//! The names of a file system, and its inodes.
//!
//! A [`Tree`] is a state machine: [`Tree::change`] performs a request, or returns the reason for its refusal and
//! changes nothing. The same requests in the same order, with the same times, give the same tree, so it is enough to
//! store a log of them. The tree does no I/O and does not know clients: each request comes with the inode that its
//! handle has open, and an inode without a name stays until [`Tree::drop_orphan`].
//!
//! Permissions are checked here by the mode bits, for the caller's user and groups (POSIX.1-2017, path resolution and
//! file access permissions; where that leaves a choice, as Linux does).

mod change;
mod check;
mod commit;
mod directory;
mod inode;
mod names;
mod permission;
mod rename;
mod set_attr;
mod state;
mod xattr;

pub use check::Inconsistency;
pub use directory::Directory;
pub use inode::{Body, Inode};
pub use state::{Context, Tree};
