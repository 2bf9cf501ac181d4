//! The names of a file system, and what they name.
//!
//! A [`Tree`] is a state machine: [`Tree::change`] does what a request asks for, or says why not and changes nothing. The same requests in the same order, with the same times, make the same tree,
//! so that a log of them is all that has to be kept. The tree does no I/O and knows nothing of clients: what is open is told to it, and an inode without a name stays until
//! [`Tree::drop_orphan`].
//!
//! Permissions are checked here as the mode bits say, for the caller's user and groups (POSIX.1-2017, path resolution and file access permissions; where that leaves a choice, as Linux does).

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

pub use check::Wrong;
pub use directory::Directory;
pub use inode::{Body, Inode};
pub use state::{Context, Tree};
