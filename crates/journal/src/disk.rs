//! Disks, on which a program keeps what must not be lost.
//!
//! - [`Disk`]: a few named files, which are appended to and synced.
//! - [`HostDisk`]: a directory of the host.
//! - [`SimDisk`]: a disk in memory. At a crash, a seed decides which of the writes that were not synced survive.
//!
//! Module `facts`, in this crate's tests, checks every form.

#[cfg(test)]
mod facts;
mod host;
mod sim;

pub use host::{HostDisk, OpenFailed};
pub use sim::{Fault, SimDisk};

/// Reason why a disk operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// There is no room.
    #[error("the disk is full")]
    Full,
    /// There is no such file.
    #[error("there is no file {0}")]
    NotFound(String),
    /// Any other failure. It is then unknown which of the writes since the last [`Disk::sync`] are durable.
    #[error("the disk has failed: {0}")]
    Failed(String),
}

/// Files of one owner. What is written to a file survives a crash once [`Disk::sync`] has returned for that file, and
/// the file's name does once [`Disk::sync_names`] has. Before that, any part of the data may be there, and any name may
/// be the old or the new one.
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

    /// Creates an empty file, or empties the one that is there.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn create(&mut self, name: &str) -> Result<(), DiskError>;

    /// Reserves room for a file to grow by `more` bytes, so that [`Self::append`] and [`Self::sync`] of as many bytes
    /// do not find the disk full. It is best effort where the file system cannot reserve. The file's contents and
    /// length stay as they are.
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

    /// Cuts a file off after its first `len` bytes.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn truncate(&mut self, name: &str, len: u64) -> Result<(), DiskError>;

    /// Makes what was written to a file survive a crash.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn sync(&mut self, name: &str) -> Result<(), DiskError>;

    /// Renames a file. It replaces the file that had the new name, if there was one.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn remove(&mut self, name: &str) -> Result<(), DiskError>;

    /// Makes all names survive a crash as they are now.
    ///
    /// # Errors
    ///
    /// [`DiskError`].
    fn sync_names(&mut self) -> Result<(), DiskError>;
}
