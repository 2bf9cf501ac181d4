//! Where a program keeps what must not be lost.
//!
//! - [`Disk`]: a few files, by name, that are appended to and made to last.
//! - [`HostDisk`]: a directory of the host's.
//! - [`SimDisk`]: in memory, and at a crash it keeps of what was not made to last whatever a seed says.
//!
//! Module `facts`, in this crate's tests, holds for every form.

#[cfg(test)]
mod facts;
mod host;
mod sim;

pub use host::{HostDisk, OpenFailed};
pub use sim::{Fault, SimDisk};

/// Why a disk does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// There is no room.
    #[error("the disk is full")]
    Full,
    /// There is no such file.
    #[error("there is no file {0}")]
    NotFound(String),
    /// Anything else: nobody knows what lasts of what was written since the last [`Disk::sync`].
    #[error("the disk has failed: {0}")]
    Failed(String),
}

/// Files of one owner. What is written lasts through a crash once [`Disk::sync`] has returned for the file, and its name once [`Disk::sync_names`] has. Before that any part
/// of it may be there, and any name may be the old or the new one.
pub trait Disk {
    /// The names of all files.
    ///
    /// # Errors
    ///
    /// [`DiskError::Failed`].
    fn names(&mut self) -> Result<Vec<String>, DiskError>;

    /// All bytes of a file.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn read(&mut self, name: &str) -> Result<Vec<u8>, DiskError>;

    /// Makes a file without bytes, or takes those of one that is there.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn create(&mut self, name: &str) -> Result<(), DiskError>;

    /// Sees to it that a file can grow by so many bytes: then [`Self::append`] and [`Self::sync`] of so many find room. The file's bytes stay as they are.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn reserve(&mut self, name: &str, more: u64) -> Result<(), DiskError>;

    /// Adds bytes to a file's end.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), DiskError>;

    /// Takes away what a file has behind so many bytes.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn cut(&mut self, name: &str, len: u64) -> Result<(), DiskError>;

    /// What was written to a file lasts.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn sync(&mut self, name: &str) -> Result<(), DiskError>;

    /// Gives a file another name, whose file is gone if there was one.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Takes a file away.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn remove(&mut self, name: &str) -> Result<(), DiskError>;

    /// Names last as they are.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn sync_names(&mut self) -> Result<(), DiskError>;
}
