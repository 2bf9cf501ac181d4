//! A member's times and limits, and why it cannot be opened.

use sinew_journal::JournalError;
use sinew_journal::disk::DiskError;

/// Times and limits. The defaults are for hosts in one room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// The unit of time of elections.
    pub tick_ns: u64,
    /// A leader is heard of so often, in ticks.
    pub heartbeat_ticks: usize,
    /// Silence of the leader after which others vote for somebody else, in ticks. A member asks for votes after more than
    /// this and up to twice this, drawn at random, and again after half of this to all of it.
    pub election_ticks: usize,
    /// Bytes of entries in one message, beside the first entry.
    pub append_len_max: u64,
    /// Messages with entries that may be on their way to one member.
    pub appends_max: usize,
    /// Bytes of a snapshot in one message.
    pub piece_len: usize,
    /// Bytes of log after which a snapshot takes its place.
    pub log_len_max: u64,
    /// Entries before a snapshot that are kept for members that are a little behind.
    pub entries_kept: u64,
    /// How much faster one member's clock may run than another's, in parts per million, for reads by lease to be linearizable.
    pub drift_max_ppm: u64,
    /// Requests of clients that may wait.
    pub held_max: usize,
}

impl Default for MemberConfig {
    fn default() -> Self {
        Self {
            tick_ns: 2_000_000,
            heartbeat_ticks: 2,
            election_ticks: 12,
            append_len_max: 64 << 10,
            appends_max: 64,
            piece_len: 32 << 10,
            log_len_max: 64 << 20,
            entries_kept: 4096,
            drift_max_ppm: 10_000,
            held_max: 1 << 14,
        }
    }
}

/// Why a member cannot be opened, or goes on no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// What it is told makes no sense.
    #[error("{0}")]
    Arguments(String),
    /// The log is damaged, or the disk does not do what it should.
    #[error("{}", told(.0))]
    Journal(JournalError),
    /// The disk does not do what it should; what was acknowledged lies there, and at a majority of the members.
    #[error("{0}: the member has stopped; see to the disk, and start it again")]
    Disk(#[from] DiskError),
    /// The directory is somebody else's.
    #[error("the data are those of member {found}, and this is {asked}: name its own directory")]
    OtherMember {
        /// Whose.
        found: String,
        /// Who asks.
        asked: String,
    },
    /// The directory is none of a member's, or of another release.
    #[error("the data are of another kind or release ({0}): use the release that wrote them, or another directory")]
    OtherRelease(String),
    /// A snapshot of the leader's cannot be used.
    #[error(transparent)]
    Snapshot(#[from] crate::machine::BadSnapshot),
    /// The engine does not do what it should.
    #[error(
        "the log contradicts itself: {0}; empty the directory, start the member, and add it again (no copy of the directory: it has forgotten votes)"
    )]
    Engine(String),
}

impl From<JournalError> for MemberError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// What is wrong with a member's log, and what to do. What the journal itself advises, to cut a file off or to bring back a copy, is for those who have
/// promised nobody anything: a member would forget votes and entries that others count on.
fn told(error: &JournalError) -> String {
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
