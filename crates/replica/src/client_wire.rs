//! Requests of clients, and the members' answers.

use serde::{Deserialize, Serialize};

use crate::wire::MemberInfo;

/// Freshness of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// The read sees everything answered before it began: the leader asks a majority whether it still leads.
    Linear,
    /// As [`Self::Linear`], as long as clocks keep to the bound with which members were started: a leader that was
    /// confirmed a moment ago answers by itself.
    Lease,
    /// Any member answers with the state that it has. Even a follower in touch with its leader may lack the commands of
    /// the last heartbeat interval, 4 ms by default. After a leader's death, members may lack its last commands until
    /// the next one leads.
    Stale,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientRequest<'a> {
    /// Opens a session.
    Open {
        /// Drawn at random. Repeating it returns the same session.
        nonce: u64,
    },
    /// Ends a session.
    Close {
        /// The session.
        session: u64,
    },
    /// Runs a command once.
    Run {
        /// The session.
        session: u64,
        /// Number of the command in the session.
        number: u64,
        /// The client has the answers to all commands below this number.
        done_below: u64,
        /// The command, for the state machine.
        #[serde(borrow, with = "serde_bytes")]
        command: &'a [u8],
    },
    /// Reads.
    Read {
        /// Freshness of the read.
        freshness: Freshness,
        /// The query, for the state machine.
        #[serde(borrow, with = "serde_bytes")]
        query: &'a [u8],
    },
    /// Waits, at any member, until a query finds something.
    Watch {
        /// The query, for the state machine.
        #[serde(borrow, with = "serde_bytes")]
        query: &'a [u8],
    },
    /// Asks for a member's status.
    Status,
    /// Adds a member: as a learner, and, once it is up to date, as a voter in the place of a member with its name.
    Add {
        /// Name of the member.
        name: String,
        /// Address of the member.
        address: String,
        /// Whether it stays a learner.
        learner: bool,
    },
    /// Makes a learner a voter.
    Promote {
        /// Name of the member.
        name: String,
    },
    /// Removes a member.
    Remove {
        /// Name of the member.
        name: String,
    },
    /// Transfers leadership.
    Transfer {
        /// Name of the new leader; `None` for the voter that is least behind.
        name: Option<String>,
    },
}

/// Role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// It waits until the others are there, too, to found a cluster.
    Founding,
    /// It has no state and has not been added, or is no longer a member.
    Outside,
    /// It is a voter that follows, or looks for a leader.
    Follower,
    /// It asks to be elected.
    Candidate,
    /// It leads.
    Leader,
    /// It follows, without a vote.
    Learner,
}

/// A member's part in the decisions of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It follows, without a vote.
    Learner,
    /// It votes.
    Voter,
    /// It votes, and did not before the change in progress.
    Joining,
    /// It was removed, and votes until the change that removes it is complete.
    Leaving,
}

impl Standing {
    /// Whether it votes, perhaps for the last time.
    pub fn votes(self) -> bool {
        self != Self::Learner
    }

    /// Whether it is a voter of the configuration after the change in progress.
    pub fn is_incoming(self) -> bool {
        matches!(self, Self::Voter | Self::Joining)
    }

    /// Whether it is a voter of the configuration before the change in progress.
    pub fn is_outgoing(self) -> bool {
        matches!(self, Self::Voter | Self::Leaving)
    }
}

/// One member, as another sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The member.
    pub info: MemberInfo,
    /// Its part in decisions.
    pub standing: Standing,
    /// Last entry that it is known to have; only a leader knows this.
    pub matched: Option<u64>,
    /// Time since it was last heard from, in ns.
    pub silent_ns: Option<u64>,
}

/// Status of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The member itself.
    pub me: MemberInfo,
    /// The cluster, once it is known.
    pub cluster: Option<u64>,
    /// Role of the member.
    pub role: Role,
    /// The leader, if one is known.
    pub leader: Option<MemberInfo>,
    /// Term of the member.
    pub term: u64,
    /// Last entry that is committed, as far as the member knows.
    pub committed: u64,
    /// Last entry that is applied to its state.
    pub applied: u64,
    /// The last entry of its log.
    pub last: u64,
    /// The last entry of its snapshot.
    pub snapshot: u64,
    /// Clients' sessions.
    pub sessions: u64,
    /// Whether it keeps a log on a disk.
    pub is_durable: bool,
    /// Whether that disk is full.
    pub is_full: bool,
    /// Bytes of an incomplete write that were cut off at its log's end when it started.
    pub truncated_len: u64,
    /// All members, including itself, and those that are leaving.
    pub members: Vec<MemberStatus>,
    /// Messages dropped, by reason.
    pub dropped: Dropped,
}

/// Messages that a member dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// They could not be parsed.
    pub malformed: u64,
    /// They were of another version.
    pub version: u64,
    /// They were for another cluster.
    pub cluster: u64,
    /// They were for another member, or another life of this one.
    pub member: u64,
    /// They contradicted committed entries.
    pub contradiction: u64,
    /// The disk had no room for them.
    pub disk_full: u64,
    /// They could not be sent.
    pub unsent: u64,
    /// Their senders had not proved that they have the cluster's key.
    pub not_admitted: u64,
}

/// An answer of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<'a> {
    /// The session is open.
    Opened {
        /// Name of the session.
        session: u64,
    },
    /// The command ran, with this answer of the state machine.
    CommandAnswer(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// The query found this.
    QueryAnswer(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// A watch found nothing for a while; go on with another query, which does not search again what was searched.
    NothingYet {
        /// The query, for the state machine.
        #[serde(borrow, with = "serde_bytes")]
        query: &'a [u8],
    },
    /// Status of the member.
    Status(Box<Status>),
    /// It was done.
    Done,
    /// This member cannot do it, or not any more: ask the leader, or, if none is known, another member in a moment. A
    /// command may have run, and is safe to repeat in its session.
    NotLeader {
        /// The leader, if known.
        leader: Option<MemberInfo>,
        /// All members that it knows.
        members: Vec<MemberInfo>,
        /// Names of members that it has not heard from for a while.
        silent: Vec<String>,
    },
    /// The session has expired, and it is no longer known whether the command ran.
    Expired,
    /// The command has run, but its answer is no longer kept: the client has said that it has it, or there were too
    /// many long ones.
    Forgotten,
    /// Too many requests are in flight, here or in the session, or too many stale reads came at once; repeat it in a
    /// moment.
    Busy,
    /// The disk is full. No command is accepted, but reads go on.
    DiskFull,
    /// It was not understood, or not allowed. Nothing was done.
    Refused(String),
    /// The client has not proved that it has the cluster's key. Nothing was done.
    NotAdmitted,
}
