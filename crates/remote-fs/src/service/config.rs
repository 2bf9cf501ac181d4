//! Configuration, errors and statistics of a service.

use crate::disk::DiskError;
use crate::journal::JournalError;
use crate::protocol::Time;

/// Configuration of a service.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Copies of each page, each at another donor.
    pub copies: usize,
    /// Longest slab, in bytes: the unit in which page memory is requested from donors.
    pub slab_len: u64,
    /// Time of silence after which a client is declared dead.
    pub lease_ns: u64,
    /// Time after which a client whose `rpc` session ended is declared dead, unless it sends something.
    pub left_lease_ns: u64,
    /// Time without an answer after which a donor loses those of its copies of which there are others.
    pub donor_timeout_ns: u64,
    /// Interval between two status requests to a donor.
    pub stat_interval_ns: u64,
    /// Time that a reservation waits for memory, at most; then it is answered without pages. This is less than clients
    /// wait for an answer: pages that are granted after that are nobody's.
    pub reserve_wait_max_ns: u64,
    /// Time that an [`Allocate`](crate::protocol::Request::Allocate) waits for memory, at most, since donors last lent
    /// some.
    pub allocate_wait_max_ns: u64,
    /// Most clients at once.
    pub clients_max: usize,
    /// Pages that a client can have reserved.
    pub reserved_max: u64,
    /// Copies that a client may have removed because it could not reach them. The default is the number of segments of
    /// 64 MB in four terabytes.
    pub failed_max: u32,
    /// Inodes allowed: files, directories and everything else with a name. Beyond that no more are made. The same limit
    /// applies to additional names (hard links).
    pub inodes_max: u64,
    /// Bytes of all extended attributes of all inodes, names and values. One inode may have up to
    /// [`XATTRS_LEN_MAX`](crate::protocol::XATTRS_LEN_MAX).
    pub xattrs_len_max: u64,
    /// Callers that have greeted without proving yet that they have the key.
    pub strangers_max: usize,
}

const S: u64 = 1_000_000_000;

impl Default for Config {
    fn default() -> Self {
        Self {
            copies: 2,
            slab_len: 64 << 20,
            lease_ns: 10 * S,
            left_lease_ns: 2 * S,
            donor_timeout_ns: 10 * S,
            stat_interval_ns: S,
            reserve_wait_max_ns: S,
            allocate_wait_max_ns: 5 * S,
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
    /// Monotonic time, from any origin.
    pub ns: u64,
    /// The time of day, for time stamps.
    pub time: Time,
}

/// Reason why a service cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The journal cannot be opened or read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The stored state cannot be interpreted by this version.
    #[error("the stored state is of another version of this program, or damaged: {0}")]
    Unknown(String),
}

/// Reason why a service ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The disk failed, so it is unknown which unanswered changes are durable. Answered ones are.
    #[error("{0}; answered changes are durable, and a restart finds them")]
    Disk(#[from] DiskError),
    /// A later service of the same file system has the donors.
    #[error(
        "another service of this file system has taken donor {donor} over, under epoch {held}: only one may run, on the latest copy of its data"
    )]
    TakenOver {
        /// Name of the donor that said so.
        donor: String,
        /// Epoch of the other service.
        held: u32,
    },
}

/// Statistics of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests answered.
    pub answered: u64,
    /// Requests refused. They count as answered, too.
    pub refused: u64,
    /// Messages that were not valid.
    pub malformed: u64,
    /// Messages of callers without the key.
    pub not_admitted: u64,
    /// Changes made.
    pub changes: u64,
    /// Syncs of the disk.
    pub syncs: u64,
    /// Clients declared dead.
    pub clients_expired: u64,
    /// Copies removed.
    pub lost_copies: u64,
    /// Copies moved because their donor wanted its memory back: new ones were made elsewhere first.
    pub moved_copies: u64,
    /// Copies restored.
    pub repaired: u64,
    /// Pages that were wrong in a copy when others were restored from it, and were put right there.
    pub mended_pages: u64,
}
