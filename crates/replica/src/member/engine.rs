//! The Raft engine: its configuration, and a filter for hostile messages.
//!
//! # Which Raft
//!
//! As in nsdi19 7.1, the Raft implementation is an existing one: tikv's (`raft` 0.7), as published. What surrounds it
//! is ours. Measured with callgrind for a commit of 80 bytes among three members in memory, where followers are told of
//! each commit, the work of all three together:
//!
//! - **`raft` 0.7** (tikv): 25,300 instructions, or 14,700 each in batches of 64; 21 allocations, of which 9 at the
//!   leader. It has pre-vote, check-quorum, read index, learners, joint changes, transfer and etcd's tests, and has
//!   been in use in TiKV for years.
//! - **`omnipaxos` 0.2**: 8,200 instructions, 22 allocations. Its elections survive partial partitions. A change of
//!   members is a new log, and we would have to write reads and transfers.
//! - **`raftbare` 0.2**: not measured. It has no dependencies and does no I/O. But a vote looks at the *length* of the
//!   candidate's log and not at its last term (Raft 5.4.1), so committed entries can be lost: it is not usable.
//! - **`openraft` 0.9**: not measured. It has tasks and channels for each step, and transfers only in pre-releases of
//!   0.10.
//!
//! Correctness and completeness came first: what `omnipaxos` saves in instructions we would pay for by writing the
//! missing protocol ourselves.
//!
//! A whole PUT of 16 B and 64 B, one at a time over shared memory, costs 35,100 instructions and 9 allocations at the
//! leader (`cargo xtask cost --row "replicated PUT"`). The engine by itself, set as here and with its own storage in
//! memory, takes 9,700 and 8. Of the leader's 9 allocations one is for the value; the others are for the vector with
//! which the entry is proposed, and the engine's own. Requests that wait for the log lie in a queue in the order of
//! their entries, answers in one buffer, and lists that usually have one element are inline (`few`), so the rest of the
//! way allocates nothing.
//!
//! # What comes with the engine
//!
//! - *protobuf 2.28*, whose parser recurses without bound on hostile input (RUSTSEC-2024-0437). It never runs on bytes
//!   from elsewhere: messages, entries and members' descriptions of changes have our encoding ([`crate::wire`]), and
//!   the engine's own types are filled in field by field. The engine parses what its own member proposes, and nothing
//!   else.
//! - *A build script that runs `protoc`*: the system's if there is one, otherwise one that the crate brings along as a
//!   program for Linux with glibc on x86-64 and aarch64. On those it builds with Rust and gcc alone; other systems must
//!   have `protoc`.
//! - *`fxhash`*, which is unmaintained (RUSTSEC-2025-0057), and has had no release since 2023.
//! - *`rand`'s thread generator* for election time-outs. The engine's time-out is set so long that it never expires,
//!   and `member` asks the engine to campaign after a time-out from the generator that it was handed. So virtual time
//!   has the same elections from the same seed.
//! - *Panics* on messages that contradict what is committed. [`is_acceptable`] and `WireMessage::to_message` drop and
//!   count such messages; a property test sends arbitrary ones.

use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, Message, MessageType};
use raft::{Config, RawNode};
use serde::{Deserialize, Serialize};

use super::{MemberConfig, MemberError};
use crate::log::Log;
use crate::wire::{MemberId, MemberInfo};

/// Replaces the engine's own election time-out, which it draws from the system's randomness. It is so long that it
/// never expires; ours always expires first.
const NO_TIMEOUT: usize = 1 << 40;

/// Bytes of entries that are applied at a time, at most, apart from the first one.
const APPLIED_LEN_MAX: u64 = 16 << 10;

/// Makes an engine that continues with a log.
pub fn start(config: &MemberConfig, id: MemberId, log: Log, applied: u64) -> Result<RawNode<Log>, MemberError> {
    let config = Config {
        id: id.0,
        election_tick: config.election_ticks,
        heartbeat_tick: config.heartbeat_ticks,
        min_election_tick: NO_TIMEOUT,
        max_election_tick: NO_TIMEOUT + 1,
        applied,
        max_size_per_msg: config.append_len_max,
        max_inflight_msgs: config.appends_max,
        check_quorum: true,
        pre_vote: true,
        batch_append: true,
        // Followers learn what is committed from the next append or heartbeat. Telling each of them at once, in a
        // separate message that it acknowledges, would double the messages of a lone command.
        skip_bcast_commit: true,
        max_uncommitted_size: 64 << 20,
        max_committed_size_per_ready: APPLIED_LEN_MAX,
        ..Config::default()
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, log, &logger).map_err(|error| MemberError::Engine(error.to_string()))
}

/// A change of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Members that become voters.
    pub voters: Vec<MemberInfo>,
    /// Members that become learners.
    pub learners: Vec<MemberInfo>,
    /// Members to be removed.
    pub removed: Vec<MemberId>,
}

impl Change {
    /// Whether its members and their number are valid.
    pub fn is_valid(&self) -> bool {
        let all = self.voters.iter().chain(&self.learners);
        all.clone().all(MemberInfo::is_valid) && all.count() + self.removed.len() <= crate::wire::MEMBERS_MAX
    }

    /// The change in the engine's form.
    pub fn to_engine(&self) -> ConfChangeV2 {
        let mut change = ConfChangeV2::default();
        change.set_transition(ConfChangeTransition::Auto);
        let voters = self.voters.iter().map(|member| (member.id, ConfChangeType::AddNode));
        let learners = self.learners.iter().map(|member| (member.id, ConfChangeType::AddLearnerNode));
        let gone = self.removed.iter().map(|id| (*id, ConfChangeType::RemoveNode));
        for (id, kind) in voters.chain(learners).chain(gone) {
            let mut single = ConfChangeSingle { node_id: id.0, ..ConfChangeSingle::default() };
            single.set_change_type(kind);
            change.mut_changes().push(single);
        }
        change
    }
}

/// The leader's question to a member whether it has all entries up to `last`: an append without entries, which it
/// refuses if it lacks one. `None` if the leader itself has no such entry any more.
pub fn question(node: &RawNode<Log>, to: MemberId, last: u64) -> Option<Message> {
    let raft = &node.raft;
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgAppend);
    (message.to, message.from, message.term) = (to.0, raft.id, raft.term);
    // The engine says 0 of an entry that is not in the log.
    let term = raft.raft_log.term(last).ok().filter(|term| *term > 0)?;
    (message.index, message.log_term) = (last, term);
    message.commit = raft.raft_log.committed.min(last);
    Some(message)
}

/// Whether the engine can be given a message. A message that contradicts committed entries would stop it; members that
/// follow the protocol send none.
pub fn is_acceptable(node: &RawNode<Log>, message: &Message) -> bool {
    let log = &node.raft.raft_log;
    match message.get_msg_type() {
        MessageType::MsgHeartbeat => message.commit <= log.last_index(),
        MessageType::MsgAppend => message.entries.iter().all(|entry| {
            entry.index > log.committed
                || entry.index < log.first_index()
                || log.term(entry.index).is_ok_and(|term| term == entry.term)
        }),
        MessageType::MsgAppendResponse => message.reject || message.index <= log.last_index(),
        // A new leader must have its whole log on disk; the others' votes come again.
        MessageType::MsgTimeoutNow | MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            log.last_index() == log.persisted
        }
        _ => true,
    }
}
