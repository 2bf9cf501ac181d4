//! What clients ask members, and what these answer.

use serde::{Deserialize, Serialize};

use crate::wire::MemberInfo;

/// How fresh a read has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// It sees all that was answered before it began: the leader asks a majority whether it still leads.
    Linear,
    /// As [`Self::Linear`], as long as clocks keep to the bound that members were started with: a leader that was confirmed a moment ago answers by itself.
    Lease,
    /// Any member answers, with what it has.
    Stale,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask<'a> {
    /// A session.
    Open {
        /// By lot: asked for again, it is the same session.
        nonce: u64,
    },
    /// To end a session.
    Close {
        /// Which.
        session: u64,
    },
    /// To run a command once.
    Run {
        /// The session.
        session: u64,
        /// The command's number in it.
        number: u64,
        /// Answers to all commands below have arrived.
        done_below: u64,
        /// The state machine's.
        #[serde(borrow, with = "serde_bytes")]
        command: &'a [u8],
    },
    /// To read.
    Read {
        /// How fresh.
        freshness: Freshness,
        /// The state machine's.
        #[serde(borrow, with = "serde_bytes")]
        query: &'a [u8],
    },
    /// To hear what a query finds, of any member, once it finds something.
    Watch {
        /// The state machine's.
        #[serde(borrow, with = "serde_bytes")]
        query: &'a [u8],
    },
    /// How things stand.
    Status,
    /// To take a member in: as a learner, and, once it is up to date, as one that votes, in the place of one with its name.
    Add {
        /// Its name.
        name: String,
        /// Where it is.
        address: String,
        /// Whether it stays a learner.
        learner: bool,
    },
    /// To let a learner vote.
    Promote {
        /// Its name.
        name: String,
    },
    /// To let a member go.
    Remove {
        /// Its name.
        name: String,
    },
    /// To have another member lead.
    Transfer {
        /// Which; none for the one that is the least behind.
        name: Option<String>,
    },
}

/// What a member plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// It waits for the others to be new, too.
    Founding,
    /// It has no state, and nobody has added it.
    Outside,
    /// It follows, or looks for a leader.
    Follower,
    /// It asks to be elected.
    Candidate,
    /// It leads.
    Leader,
    /// It follows, and does not vote.
    Learner,
}

/// One member, as another sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Who.
    pub info: MemberInfo,
    /// Whether it votes.
    pub votes: bool,
    /// The last entry that it is known to have; only a leader knows.
    pub matched: Option<u64>,
    /// Nanoseconds since anything was heard of it.
    pub silent_ns: Option<u64>,
}

/// How things stand at a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Who says so.
    pub me: MemberInfo,
    /// The cluster, once known.
    pub cluster: Option<u64>,
    /// What it plays.
    pub role: Role,
    /// Who leads.
    pub leader: Option<MemberInfo>,
    /// The term.
    pub term: u64,
    /// The last entry that is decided, as far as it knows.
    pub committed: u64,
    /// The last entry that its state has.
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
    /// All members, with itself.
    pub members: Vec<MemberStatus>,
    /// What it dropped: messages that made no sense, were for somebody else, of another cluster, or did not fit on the disk.
    pub dropped: Dropped,
}

/// Messages that a member dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// They made no sense.
    pub nonsense: u64,
    /// They were of another version.
    pub version: u64,
    /// They were for another cluster.
    pub cluster: u64,
    /// They were for another member, or another life of this one.
    pub member: u64,
    /// They contradict what is decided.
    pub contradiction: u64,
    /// The disk is full.
    pub disk_full: u64,
    /// They had nowhere to go.
    pub no_way: u64,
    /// Their senders had not proved that they have the cluster's key.
    pub stranger: u64,
}

/// What a member answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<'a> {
    /// The session.
    Opened {
        /// Its name.
        session: u64,
    },
    /// What the state machine answered.
    Ran(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// What the state machine found.
    Found(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// A watch found nothing for a while: ask again.
    NothingYet,
    /// How things stand.
    Status(Box<Status>),
    /// It was done.
    Done,
    /// Not here, or not any more: ask the leader, or, where none is known, somebody else in a moment. A command may have run, and is safe to repeat in its session.
    Elsewhere {
        /// Who leads, if known.
        leader: Option<MemberInfo>,
        /// All members that it knows of.
        members: Vec<MemberInfo>,
        /// Names of those that it has not heard of for a while.
        silent: Vec<String>,
    },
    /// The session is gone; whether the command ran, nobody knows any more.
    Expired,
    /// The client said that it has the answer to this one.
    Forgotten,
    /// There are too many commands in flight, here or in the session: once more in a moment.
    Busy,
    /// The disk is full: nothing is taken, reads go on.
    DiskFull,
    /// It was not understood, or not wanted. Nothing was done.
    Refused(String),
    /// The client has not proved that it has the cluster's key. Nothing was done.
    Stranger,
}
