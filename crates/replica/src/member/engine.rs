//! The Raft engine: its configuration, and a filter for hostile messages.

use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, Message, MessageType};
use raft::{Config, RawNode};
use serde::{Deserialize, Serialize};

use super::{MemberConfig, MemberError};
use crate::log::Log;
use crate::wire::{MemberId, MemberInfo};

/// Replaces the engine's own election time-out, which it draws from the system's randomness. It is so long that it
/// never expires; ours always expires first.
const NO_TIMEOUT: usize = 1 << 40;

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
        max_uncommitted_size: 64 << 20,
        max_committed_size_per_ready: 1 << 20,
        ..Config::default()
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, log, &logger).map_err(|error| MemberError::Engine(error.to_string()))
}

/// A change of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Members that become voters.
    pub voters: Vec<MemberInfo>,
    /// Members that become learners.
    pub learners: Vec<MemberInfo>,
    /// Members to be removed.
    pub gone: Vec<MemberId>,
}

impl Change {
    /// Whether its members and their number are valid.
    pub fn is_sane(&self) -> bool {
        let all = self.voters.iter().chain(&self.learners);
        all.clone().all(MemberInfo::is_sane) && all.count() + self.gone.len() <= crate::wire::MEMBERS_MAX
    }

    /// The change in the engine's form.
    pub fn to_engine(&self) -> ConfChangeV2 {
        let mut change = ConfChangeV2::default();
        change.set_transition(ConfChangeTransition::Auto);
        let voters = self.voters.iter().map(|member| (member.id, ConfChangeType::AddNode));
        let learners = self.learners.iter().map(|member| (member.id, ConfChangeType::AddLearnerNode));
        let gone = self.gone.iter().map(|id| (*id, ConfChangeType::RemoveNode));
        for (id, kind) in voters.chain(learners).chain(gone) {
            let mut single = ConfChangeSingle { node_id: id.0, ..ConfChangeSingle::default() };
            single.set_change_type(kind);
            change.mut_changes().push(single);
        }
        change
    }
}

/// Whether the engine can be given a message. A message that contradicts committed entries would stop it; members that
/// follow the protocol send none.
pub fn is_bearable(node: &RawNode<Log>, message: &Message) -> bool {
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
