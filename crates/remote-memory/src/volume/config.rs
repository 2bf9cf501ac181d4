//! Configuration and counters of a volume.

/// Configuration of a volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumeConfig {
    /// Whether pages have checksums. Without them a write takes two rounds (pages before headers, so that no header
    /// stands for a page that was cut off), and corruption in a donor's memory goes unnoticed.
    pub checksums: bool,
    /// Unfinished requests, at most.
    pub depth: usize,
    /// Time for which votes are sought before the volume gives up, in ns.
    pub vote_timeout_ns: u64,
    /// Pause between two attempts to get the votes, in ns.
    pub retry_ns: u64,
    /// Interval between calls to a donor, in ns: a heartbeat, which also shows whether the donor is still there, or, if
    /// the donor has failed, an attempt to revive it.
    pub heartbeat_ns: u64,
    /// Lease, in ns; it should be several times [`Self::heartbeat_ns`]. A volume can be opened once its last writer has
    /// left it, or has sent no heartbeat for that long. Only [`Store::turn`](crate::store::Store::turn) sends
    /// heartbeats: a writer must turn its volume several times in each lease, even if it has no requests.
    ///
    /// A writer answers for pages that it never wrote (that they are zeros, or holes) only while a majority of the
    /// voters has answered a heartbeat within the lease; otherwise such requests wait. So all programs that open a
    /// volume must have the same lease. With a lease of 0, the volume is taken even from a live writer, which may give
    /// such answers for up to its lease afterwards, if it is stopped and goes on.
    pub lease_ns: u64,
    /// Whether segments that lack copies get new ones, where a donor has room.
    pub repairs: bool,
    /// Least time between two steps of such a repair, in ns. A step copies up to 4 MB.
    pub repair_pause_ns: u64,
}

impl Default for VolumeConfig {
    fn default() -> Self {
        Self {
            checksums: true,
            depth: 1024,
            vote_timeout_ns: 10_000_000_000,
            retry_ns: 50_000_000,
            heartbeat_ns: 1_000_000_000,
            lease_ns: 3_000_000_000,
            repairs: true,
            repair_pause_ns: 2_000_000,
        }
    }
}

/// Counters of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeStats {
    /// Pages written, each to all copies.
    pub pages_written: u64,
    /// Pages read from a donor.
    pub pages_read: u64,
    /// Operations on donors' memory.
    pub operations: u64,
    /// Pages found with the wrong checksum, in one copy.
    pub bad_pages: u64,
    /// Pages rewritten because a copy was bad or missing.
    pub refreshed: u64,
    /// Slots cleared.
    pub cleared: u64,
    /// Donors that failed.
    pub donors_lost: u64,
    /// Records that a majority of the voters accepted.
    pub records: u64,
    /// Copies of segments rebuilt.
    pub copies_made: u64,
    /// Times that a write found no free slot at once.
    pub starved: u64,
}
