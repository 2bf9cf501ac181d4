//! What a volume can be told, and what it tells.

/// How a volume works.
#[derive(Clone, Copy, Debug)]
pub struct VolumeConfig {
    /// Whether pages have checksums. Without them a write takes two rounds (pages before headers, so that no header stands before a page that was cut off), and a
    /// page that a donor's memory changed is not noticed.
    pub checksums: bool,
    /// Requests that are not over, at most.
    pub depth: usize,
    /// How long it asks for votes before it gives up.
    pub patience_ns: u64,
    /// Pause between two attempts at that.
    pub retry_ns: u64,
    /// Time between two looks whether donors are still there, or, where they failed, again. To donors each is a sign that the writer lives.
    pub revive_ns: u64,
    /// A volume is opened once its last writer has left it, or has given no sign of life for so long: some times [`Self::revive_ns`]. 0: it is taken from whoever has it, alive or not.
    /// A volume gives signs of life as it is turned ([`Store::turn`](crate::store::Store::turn)), and by itself it does nothing: whoever has one open, and nothing to ask of it, has to turn it
    /// nevertheless, some times in each lease.
    pub lease_ns: u64,
    /// Whether segments that lack copies get new ones where a donor has room.
    pub repairs: bool,
    /// Least time between two steps of such a repair, each of up to 4 MB.
    pub repair_pause_ns: u64,
}

impl Default for VolumeConfig {
    fn default() -> Self {
        Self {
            checksums: true,
            depth: 1024,
            patience_ns: 10_000_000_000,
            retry_ns: 50_000_000,
            revive_ns: 1_000_000_000,
            lease_ns: 3_000_000_000,
            repairs: true,
            repair_pause_ns: 2_000_000,
        }
    }
}

/// What a volume did and saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeStats {
    /// Pages that were written, each to all copies.
    pub pages_written: u64,
    /// Pages that were read from a donor.
    pub pages_read: u64,
    /// Operations on donors' memory.
    pub operations: u64,
    /// Pages that were found to have the wrong checksum, in one copy.
    pub bad_pages: u64,
    /// Pages that were written anew, since a copy of them was bad or missing.
    pub refreshed: u64,
    /// Slots that were cleared.
    pub cleared: u64,
    /// Donors that failed.
    pub donors_lost: u64,
    /// Records that a majority of the voters took.
    pub records: u64,
    /// Copies of segments that were made anew.
    pub copies_made: u64,
    /// Pages that found no free slot at once.
    pub starved: u64,
}
