//! How a service is to be, and what became of it.

use crate::disk::DiskError;
use crate::journal::JournalError;
use crate::protocol::Time;

/// How a service works.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Copies of each page, at as many donors.
    pub copies: usize,
    /// Bytes of a slab, at most: of the page memory that is asked of a donor at once.
    pub slab_len: u64,
    /// A client that was silent for so long is dead.
    pub lease_ns: u64,
    /// A client whose `rpc` session is gone is dead after so long, unless it says something.
    pub left_ns: u64,
    /// A donor that did not answer for so long loses the copies that others have, too.
    pub patience_ns: u64,
    /// Time between two looks at a donor.
    pub look_ns: u64,
    /// A reservation waits for memory so long, at most.
    pub reserve_ns: u64,
    /// Clients at a time.
    pub clients_max: usize,
    /// Pages that a client has reserved, at most.
    pub reserved_max: u64,
    /// Copies that a client may have taken out because it did not reach them. By default as many as four terabytes have segments of 64 MB.
    pub failed_max: u32,
    /// Inodes that there may be: files, directories and whatever else has a name. When there are so many, no further one is made. As many further names (hard links) may there be.
    pub inodes_max: u64,
    /// Bytes of all extended attributes of all inodes together, names and values. Those of one inode are [`XATTRS_LEN_MAX`](crate::protocol::XATTRS_LEN_MAX) at most.
    pub xattrs_len_max: u64,
    /// Callers that have greeted and not proved that they have the key.
    pub strangers_max: usize,
}

const S: u64 = 1_000_000_000;

impl Default for Config {
    fn default() -> Self {
        Self {
            copies: 2,
            slab_len: 64 << 20,
            lease_ns: 10 * S,
            left_ns: 2 * S,
            patience_ns: 10 * S,
            look_ns: S,
            reserve_ns: 5 * S,
            clients_max: 4096,
            reserved_max: 1 << 17,
            failed_max: 1 << 16,
            inodes_max: 1 << 20,
            xattrs_len_max: 256 << 20,
            strangers_max: 256,
        }
    }
}

/// The time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Since whenever; it never goes back.
    pub ns: u64,
    /// The time of the day, for what is stamped with it.
    pub time: Time,
}

/// Why a service does not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The journal says so.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What was kept makes no sense to this version.
    #[error("what was kept is of another version of this program, or makes no sense: {0}")]
    Unknown(String),
}

/// Why a service ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Nobody knows what lasts. What was answered does.
    #[error("{0}; what was answered lasts, and a new start finds it")]
    Disk(#[from] DiskError),
    /// A later service of the same file system has the donors.
    #[error(
        "another service of this file system has taken donor {donor} over, under epoch {held}: only one may run, on the latest copy of its data"
    )]
    TakenOver {
        /// Which donor says so.
        donor: String,
        /// The other's epoch.
        held: u32,
    },
}

/// What a service counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that were answered.
    pub answered: u64,
    /// Of them, those that were refused.
    pub refused: u64,
    /// Messages that made no sense.
    pub nonsense: u64,
    /// Messages of callers without the key.
    pub strangers: u64,
    /// Changes that were made.
    pub changes: u64,
    /// Times that the disk was made to keep them.
    pub syncs: u64,
    /// Clients that were taken for dead.
    pub dead: u64,
    /// Copies that were taken out.
    pub lost_copies: u64,
    /// Copies that were made anew.
    pub repaired: u64,
}
