//! Configuration and errors of a member.

use sinew_journal::JournalError;
use sinew_journal::disk::DiskError;

/// Times and limits. The defaults are for hosts in one room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// One tick, the unit of time of elections, in ns.
    pub tick_ns: u64,
    /// Interval between a leader's heartbeats, in ticks.
    pub heartbeat_ticks: usize,
    /// Election time-out: silence of the leader after which others elect another, in ticks; at least twice
    /// [`Self::heartbeat_ticks`]. A member asks for votes after a random time of more than this and up to twice this,
    /// and, if nobody is elected, again after half of this to all of it. Three times the longest silence of a live
    /// member, up to ten times this, takes the place of this if that silence was longer than half of this; silences of
    /// up to five times this count, for 1,250 to 2,500 times this.
    /// Use one value at all members: a member confirms no lease of a leader whose value is more than twice its own. Do
    /// not restart a member with a smaller value within two of its former time-outs, while leases that it confirmed may
    /// last.
    pub election_ticks: usize,
    /// Bytes of entries in one message, at most, apart from the first entry.
    pub append_len_max: u64,
    /// Messages with entries in flight to one member, at most.
    pub appends_max: usize,
    /// Bytes of entries in flight to one member, at most, apart from the last message.
    pub appends_len_max: u64,
    /// Bytes of a snapshot in one message, at most.
    pub piece_len: usize,
    /// Bytes of log after which it is replaced by a snapshot.
    pub log_len_max: u64,
    /// Entries before a snapshot that are kept, for members that are a little behind, up to a quarter of
    /// [`Self::log_len_max`].
    pub entries_kept: u64,
    /// Bytes of a snapshot that are made in one turn, approximately: 8 MB/s at an idle member, which has a turn in each
    /// tick. While no member waits for it and the log grows, it is twice what the log has grown by instead; while one
    /// waits, whichever is more, and turns follow each other. In each tick, as many bytes of the entries that a
    /// snapshot has replaced are dropped, besides twice as many as are appended.
    pub snapshot_step_len: usize,
    /// Bytes written to the disk, and synced, in one turn while the journal is replaced: first of the new snapshot,
    /// then of the entries after it, of which more are written where they arrive faster.
    pub snapshot_write_len: usize,
    /// Most by which one member's clock may run faster than another's, in parts per million. Within this bound, reads
    /// by lease are linearizable.
    pub drift_max_ppm: u64,
    /// Requests of clients that may wait at a time, apart from watches.
    pub held_max: usize,
    /// Watches that may wait at a time.
    pub watches_max: usize,
    /// Bytes that searches may find in one turn, at most, apart from the last answer. The limit holds separately for
    /// requests answered as they come, for reads that have waited for a majority, and for watches; each search counts
    /// as 256 bytes more. Further reads and watches wait for the next turn, since a leader that does nothing else for
    /// long is taken for dead; to a stale read the member answers that it is busy.
    pub found_len_max: usize,
    /// Bytes of a command, at most. One message carries it to another member, so it must be shorter than the endpoint's
    /// longest message.
    pub command_len_max: usize,
}

impl Default for MemberConfig {
    fn default() -> Self {
        Self {
            tick_ns: 2_000_000,
            heartbeat_ticks: 2,
            election_ticks: 12,
            append_len_max: 64 << 10,
            appends_max: 64,
            appends_len_max: 1 << 20,
            piece_len: 32 << 10,
            log_len_max: 64 << 20,
            entries_kept: 1 << 16,
            snapshot_step_len: 16 << 10,
            snapshot_write_len: 256 << 10,
            drift_max_ppm: 10_000,
            held_max: 1 << 14,
            watches_max: 1 << 12,
            found_len_max: 1 << 20,
            command_len_max: 4 << 20,
        }
    }
}

/// Reason why a member cannot be opened, or has stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Its arguments are invalid.
    #[error("{0}")]
    Arguments(String),
    /// The log is damaged, or the disk failed.
    #[error("{}", describe_journal_error(.0))]
    Journal(JournalError),
    /// The disk failed. What was acknowledged lies there, and at a majority of the members.
    #[error("{0}: the member has stopped; see to the disk, and start it again")]
    Disk(#[from] DiskError),
    /// The directory belongs to another member.
    #[error("the data belong to member {found}, but this is {asked}: give it a directory of its own")]
    OtherMember {
        /// Name of the directory's owner.
        found: String,
        /// Name of this member.
        asked: String,
    },
    /// The directory is not a member's, or was written by another release.
    #[error("the data are of another kind or release ({0}): use the release that wrote them, or another directory")]
    OtherRelease(String),
    /// The leader's snapshot cannot be used.
    #[error(transparent)]
    Snapshot(#[from] crate::machine::BadSnapshot),
    /// The engine found a contradiction.
    #[error(
        "the log contradicts itself: {0}; empty the directory, start the member, and add it again; do not restore a copy of the directory, which may lack votes that the member has given"
    )]
    Engine(String),
}

impl From<JournalError> for MemberError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::OtherFormat { file, found } => Self::OtherRelease(format!("{file} has format {found}")),
            error => Self::Journal(error),
        }
    }
}

/// Describes the damage to a member's log, and what to do. The journal's own advice, to cut a file off or to restore a
/// backup, does not suit members: a member would forget votes and entries that others rely on.
fn describe_journal_error(error: &JournalError) -> String {
    let what = match error {
        JournalError::Missing { missing, .. } => format!("{missing} is not there"),
        JournalError::Corrupt { file, at } => format!("{file} is damaged at byte {at}"),
        JournalError::BadSnapshot { file } => format!("{file} is damaged"),
        other => return other.to_string(),
    };
    format!(
        "{what}: empty the directory, start the member, and add it again as a new one; with a shortened file or an old copy it would forget what it has \
         acknowledged"
    )
}
