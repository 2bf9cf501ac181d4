//! Messages between members, as values and as bytes.
//!
//! A call between members carries everything gathered for its receiver in a turn; the answer carries everything that
//! the receiver has for the caller. The bytes are postcard's, preceded by a version. The engine's own encoding is never
//! parsed: its messages are built from these values, field by field, after checks.

use bytes::{Bytes, BytesMut};
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot};
use serde::{Deserialize, Serialize};
use sinew_rpc::RequestType;

use crate::few::{self, InlineList};

/// Request type of calls between members.
pub const PEER: RequestType = RequestType::new(64);
/// Request type of clients' calls.
pub const CLIENT: RequestType = RequestType::new(65);
/// Request type of the exchange in which both sides [prove](sinew_rpc::gate) that they have the cluster's key.
pub const GREET: RequestType = RequestType::new(66);
/// Version of both protocols (between members, and with clients) and of a member's data on its disk.
pub const VERSION: u8 = 4;
/// Bound below which terms and indices stay, so that adding to them cannot overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
/// Members of a configuration, at most, including learners and those that are leaving.
pub const MEMBERS_MAX: usize = 16;
/// Longest name of a member, in bytes.
pub const NAME_LEN_MAX: usize = 64;
/// Longest address of a member, in bytes.
pub const ADDRESS_LEN_MAX: usize = 256;

/// One life of a member. A member that starts without its data begins a new life, so that it is not held to the
/// promises of an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberId(pub u64);

/// A cluster, by a number drawn at random when it was founded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u64);

impl ClusterId {
    /// No cluster: that of a member which has not joined any.
    pub const NONE: Self = Self(0);
}

/// A member as others know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its life.
    pub id: MemberId,
    /// Its name for people.
    pub name: String,
    /// Address at which others reach it.
    pub address: String,
}

impl MemberInfo {
    /// Whether its id is not 0, and its strings have valid lengths.
    pub fn is_valid(&self) -> bool {
        self.id.0 != 0
            && (1..=NAME_LEN_MAX).contains(&self.name.len())
            && (1..=ADDRESS_LEN_MAX).contains(&self.address.len())
    }
}

/// The founding of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founding {
    /// The cluster.
    pub cluster: ClusterId,
    /// The first members.
    pub members: Vec<MemberInfo>,
}

impl Founding {
    /// Whether it has a cluster and a valid number of valid members, with different ids.
    pub fn is_valid(&self) -> bool {
        self.cluster != ClusterId::NONE && are_valid(&self.members)
    }
}

/// The voters of a cluster, as one of its members knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownVoters {
    /// Index of the last entry that this member has applied.
    pub applied: u64,
    /// The voters; in the midst of a change, those after it.
    pub incoming: Vec<MemberInfo>,
    /// In the midst of a change, the voters before it, of which a majority must agree, too; otherwise none.
    pub outgoing: Vec<MemberInfo>,
    /// The learners. One of them may run in the place of a voter.
    pub learners: Vec<MemberInfo>,
}

impl KnownVoters {
    /// Whether each list has a valid number of valid members, with different ids, of a cluster that has entries.
    pub fn is_valid(&self) -> bool {
        (1..NUMBER_MAX).contains(&self.applied)
            && are_valid(&self.incoming)
            && [&self.outgoing, &self.learners].iter().all(|members| members.is_empty() || are_valid(members))
    }
}

/// Whether members are valid, in number and each, and have different ids.
fn are_valid(members: &[MemberInfo]) -> bool {
    let ids: std::collections::BTreeSet<_> = members.iter().map(|member| member.id).collect();
    (1..=MEMBERS_MAX).contains(&members.len()) && ids.len() == members.len() && members.iter().all(MemberInfo::is_valid)
}

/// A member's phase of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It knows no cluster.
    New,
    /// It is, or was, in this cluster.
    MemberOf(ClusterId),
}

/// A member's introduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The member.
    pub me: MemberInfo,
    /// Its phase.
    pub phase: Phase,
    /// Hash of the names and addresses with which it was started.
    pub peers_hash: u64,
    /// The founding, sent to a new member that was part of it.
    pub founding: Option<Founding>,
    /// The voters that the sender knows, told to a member that is none of its cluster's.
    pub known: Option<KnownVoters>,
}

/// A log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireEntry<'a> {
    /// Kind: 0 is a command, 2 a change of the configuration.
    pub kind: u8,
    /// Its term.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// Its contents.
    #[serde(borrow, with = "serde_bytes")]
    pub data: &'a [u8],
    /// For a change of the configuration, our own encoding of it.
    #[serde(borrow, with = "serde_bytes")]
    pub context: &'a [u8],
}

/// Members by their roles, as in a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// Voters.
    pub voters: Vec<u64>,
    /// Learners, which do not vote.
    pub learners: Vec<u64>,
    /// Members that also vote until the change is complete (the outgoing voters of a joint configuration).
    pub voters_outgoing: Vec<u64>,
    /// Members that become learners when the change is complete.
    pub learners_next: Vec<u64>,
    /// Whether the change ends by itself.
    pub auto_leave: bool,
}

impl Roles {
    /// Converts from the engine's form.
    pub fn from_state(state: &ConfState) -> Self {
        Self {
            voters: state.voters.clone(),
            learners: state.learners.clone(),
            voters_outgoing: state.voters_outgoing.clone(),
            learners_next: state.learners_next.clone(),
            auto_leave: state.auto_leave,
        }
    }

    /// Converts to the engine's form; `None` if it contradicts itself.
    pub fn to_state(&self) -> Option<ConfState> {
        let mut seen = std::collections::BTreeSet::new();
        let is_distinct = [&self.voters, &self.learners].into_iter().flatten().all(|id| *id != 0 && seen.insert(*id));
        let outgoing: std::collections::BTreeSet<_> = self.voters_outgoing.iter().collect();
        let is_sane = is_distinct
            && !self.voters.is_empty()
            && seen.len() <= MEMBERS_MAX
            && outgoing.len() == self.voters_outgoing.len()
            && outgoing.len() <= MEMBERS_MAX
            && !outgoing.contains(&0)
            && !self.learners.iter().any(|id| outgoing.contains(id))
            && self.learners_next.iter().all(|id| outgoing.contains(id) && !seen.contains(id))
            && self.learners_next.iter().collect::<std::collections::BTreeSet<_>>().len() == self.learners_next.len()
            && (!self.auto_leave || !outgoing.is_empty());
        is_sane.then(|| {
            let mut state = ConfState::default();
            state.set_voters(self.voters.clone());
            state.set_learners(self.learners.clone());
            state.set_voters_outgoing(self.voters_outgoing.clone());
            state.set_learners_next(self.learners_next.clone());
            state.set_auto_leave(self.auto_leave);
            state
        })
    }
}

/// Place of a snapshot in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMeta {
    /// Index of the last entry that is in it.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// Configuration at that entry.
    pub roles: Roles,
}

impl SnapshotMeta {
    /// Converts from the engine's form.
    pub fn from_snapshot(snapshot: &Snapshot) -> Self {
        let meta = snapshot.get_metadata();
        Self { index: meta.index, term: meta.term, roles: Roles::from_state(meta.get_conf_state()) }
    }

    /// Converts to the engine's form; `None` if it is invalid.
    pub fn to_snapshot(&self, data: Bytes) -> Option<Snapshot> {
        if self.index == 0 || self.index >= NUMBER_MAX || self.term == 0 || self.term >= NUMBER_MAX {
            return None;
        }
        let mut snapshot = Snapshot { data, ..Snapshot::default() };
        snapshot.mut_metadata().index = self.index;
        snapshot.mut_metadata().term = self.term;
        snapshot.mut_metadata().set_conf_state(self.roles.to_state()?);
        Some(snapshot)
    }
}

/// A message of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireMessage<'a> {
    kind: u8,
    term: u64,
    log_term: u64,
    index: u64,
    commit: u64,
    commit_term: u64,
    reject: bool,
    reject_hint: u64,
    priority: i64,
    #[serde(borrow, with = "serde_bytes")]
    context: &'a [u8],
    #[serde(borrow, with = "few")]
    entries: InlineList<WireEntry<'a>>,
}

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece<'a> {
    /// Term of the leader.
    pub term: u64,
    /// The snapshot.
    pub place: SnapshotMeta,
    /// Bytes of the whole snapshot.
    pub len: u64,
    /// Offset of this piece.
    pub at: u64,
    /// Bytes of this piece.
    #[serde(borrow, with = "serde_bytes")]
    pub bytes: &'a [u8],
}

/// A message to another member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage<'a> {
    /// An introduction.
    Hello(Hello),
    /// Messages of the engine.
    Messages {
        /// The cluster.
        cluster: ClusterId,
        /// The sender.
        from: MemberId,
        /// The life of the receiver.
        to: MemberId,
        /// The messages, in order.
        #[serde(borrow, with = "few")]
        messages: InlineList<WireMessage<'a>>,
    },
    /// A piece of a snapshot.
    Piece {
        /// The cluster.
        cluster: ClusterId,
        /// The sender.
        from: MemberId,
        /// The life of the receiver.
        to: MemberId,
        /// The piece.
        #[serde(borrow)]
        piece: Piece<'a>,
    },
    /// Nothing to say, or the acknowledgement of a piece.
    Nothing,
    /// The message was for another life, cluster or member.
    WrongReceiver {
        /// The member that is here.
        here: MemberInfo,
    },
    /// The sender is no member, or not any more.
    NoMember,
    /// The sender has not proved that it has the cluster's key.
    NotAdmitted,
}

/// Which piece of which snapshot a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceId {
    /// Index of the last entry in the snapshot.
    pub index: u64,
    /// Offset of the piece, in bytes.
    pub at: u64,
}

impl PeerMessage<'_> {
    /// The piece that this message is, if it is one.
    pub fn piece_id(&self) -> Option<PieceId> {
        match self {
            Self::Piece { piece, .. } => Some(PieceId { index: piece.place.index, at: piece.at }),
            _ => None,
        }
    }
}

/// Serialises a message, and appends it to `buffer`.
pub fn to_bytes(say: &PeerMessage<'_>, buffer: &mut Vec<u8>) {
    encode(say, buffer);
}

/// Appends the version and a value.
pub fn encode(value: &impl Serialize, buffer: &mut Vec<u8>) {
    buffer.push(VERSION);
    append(value, buffer);
}

/// Appends a value without a version, as a part of another that is serialised piece by piece.
pub(crate) fn append(value: &impl Serialize, buffer: &mut Vec<u8>) {
    let taken = std::mem::take(buffer);
    // This cannot fail: a vector takes any number of bytes.
    *buffer = postcard::to_extend(value, taken).unwrap_or_default();
}

/// Error for bytes that are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// They are of this other version.
    Version(u8),
    /// They cannot be parsed.
    Malformed,
}

/// Parses a value, which must take up all the bytes.
///
/// # Errors
///
/// [`DecodeError`], with the version if that is the reason.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => match postcard::take_from_bytes(rest) {
            Ok((value, [])) => Ok(value),
            _ => Err(DecodeError::Malformed),
        },
        Some((&version, _)) => Err(DecodeError::Version(version)),
        None => Err(DecodeError::Malformed),
    }
}

/// The kinds of engine messages that are sent, by number. Proposals, and requests to lead or to read, are made only by
/// the member's own program.
fn kind_of(number: u8) -> Option<MessageType> {
    Some(match number {
        0 => MessageType::MsgAppend,
        1 => MessageType::MsgAppendResponse,
        2 => MessageType::MsgRequestVote,
        3 => MessageType::MsgRequestVoteResponse,
        4 => MessageType::MsgHeartbeat,
        5 => MessageType::MsgHeartbeatResponse,
        6 => MessageType::MsgTimeoutNow,
        7 => MessageType::MsgRequestPreVote,
        8 => MessageType::MsgRequestPreVoteResponse,
        _ => return None,
    })
}

fn number_of(kind: MessageType) -> Option<u8> {
    (0..=8).find(|number| kind_of(*number) == Some(kind))
}

impl<'a> WireEntry<'a> {
    /// Converts from the engine's form.
    pub fn from_entry(entry: &'a Entry) -> Self {
        Self {
            kind: if entry.get_entry_type() == EntryType::EntryNormal { 0 } else { 2 },
            term: entry.term,
            index: entry.index,
            data: &entry.data,
            context: &entry.context,
        }
    }

    /// Converts to the engine's form; `None` if it is invalid.
    pub fn to_entry(self) -> Option<Entry> {
        self.to_entry_with(Bytes::copy_from_slice(self.data))
    }

    /// As [`Self::to_entry`], with a copy of its data that was made before.
    fn to_entry_with(self, data: Bytes) -> Option<Entry> {
        let entry_type = match self.kind {
            0 => EntryType::EntryNormal,
            2 => EntryType::EntryConfChangeV2,
            _ => return None,
        };
        if self.index == 0 || self.index >= NUMBER_MAX || self.term == 0 || self.term >= NUMBER_MAX {
            return None;
        }
        Some(Entry {
            entry_type,
            term: self.term,
            index: self.index,
            data,
            context: Bytes::copy_from_slice(self.context),
            ..Entry::default()
        })
    }
}

impl<'a> WireMessage<'a> {
    /// Converts from the engine's form; `None` for kinds that are not sent this way.
    pub fn from_message(message: &'a Message) -> Option<Self> {
        Some(Self {
            kind: number_of(message.get_msg_type())?,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            commit: message.commit,
            commit_term: message.commit_term,
            reject: message.reject,
            reject_hint: message.reject_hint,
            priority: message.priority,
            context: &message.context,
            entries: message.entries.iter().map(WireEntry::from_entry).collect(),
        })
    }

    /// Converts to the engine's form; `None` if no engine can have sent it.
    pub fn to_message(&self, from: MemberId, to: MemberId) -> Option<Message> {
        let kind = kind_of(self.kind)?;
        let numbers = [self.term, self.log_term, self.index, self.commit, self.commit_term, self.reject_hint];
        if numbers.iter().any(|number| *number >= NUMBER_MAX) || self.term == 0 {
            return None;
        }
        if kind != MessageType::MsgAppend && !self.entries.is_empty() {
            return None;
        }
        // The engine takes 0 for the term of any entry past the end of its log.
        if kind == MessageType::MsgAppend && self.index > 0 && self.log_term == 0 {
            return None;
        }
        let (mut index, mut term) = (self.index, self.log_term);
        let mut entries = Vec::with_capacity(self.entries.len());
        // One allocation for the data of all: an allocation for each entry is slow to free where there are many.
        let mut data = BytesMut::with_capacity(self.entries.iter().map(|entry| entry.data.len()).sum());
        self.entries.iter().for_each(|entry| data.extend_from_slice(entry.data));
        let mut data = data.freeze();
        for entry in &self.entries {
            if entry.index != index + 1 || entry.term < term || entry.term > self.term {
                return None;
            }
            (index, term) = (entry.index, entry.term);
            entries.push(entry.to_entry_with(data.split_to(entry.data.len()))?);
        }
        let mut message = Message {
            msg_type: kind,
            from: from.0,
            to: to.0,
            term: self.term,
            log_term: self.log_term,
            index: self.index,
            commit: self.commit,
            commit_term: self.commit_term,
            reject: self.reject,
            reject_hint: self.reject_hint,
            priority: self.priority,
            context: Bytes::copy_from_slice(self.context),
            ..Message::default()
        };
        message.set_entries(entries.into());
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(entries: Vec<WireEntry<'_>>) -> WireMessage<'_> {
        WireMessage {
            kind: 0,
            term: 5,
            log_term: 3,
            index: 10,
            commit: 9,
            commit_term: 0,
            reject: false,
            reject_hint: 0,
            priority: 0,
            context: &[],
            entries: entries.into(),
        }
    }

    fn entry(index: u64, term: u64) -> WireEntry<'static> {
        WireEntry { kind: 0, term, index, data: b"x", context: b"" }
    }

    #[test]
    fn a_message_survives_its_bytes() {
        fn say<'a>() -> (WireMessage<'a>, PeerMessage<'a>) {
            let long = WireEntry { data: b"long", context: b"context", ..entry(12, 4) };
            let empty = WireEntry { data: b"", ..entry(13, 4) };
            let wire = append(vec![entry(11, 3), long, empty, entry(14, 5)]);
            let (cluster, from, to) = (ClusterId(9), MemberId(1), MemberId(2));
            (wire.clone(), PeerMessage::Messages { cluster, from, to, messages: [wire].into() })
        }
        let message = say().0.to_message(MemberId(1), MemberId(2)).unwrap();
        assert_eq!(WireMessage::from_message(&message), Some(say().0));
        let mut bytes = Vec::new();
        to_bytes(&say().1, &mut bytes);
        assert_eq!(decode::<PeerMessage<'_>>(&bytes), Ok(say().1));
        bytes[0] = 9;
        assert_eq!(decode::<PeerMessage<'_>>(&bytes), Err(DecodeError::Version(9)));
    }

    #[test]
    fn a_list_shorter_than_it_says_is_no_message() {
        let mut bytes = vec![VERSION, 1, 9, 1, 2];
        // It claims many messages, and has none of them.
        bytes.extend([0xFF, 0xFF, 0xFF, 0xFF, 0x0F]);
        assert_eq!(decode::<PeerMessage<'_>>(&bytes), Err(DecodeError::Malformed));
    }

    #[test]
    fn entries_out_of_order_or_from_the_future_are_no_message() {
        let (from, to) = (MemberId(1), MemberId(2));
        for entries in [
            vec![entry(12, 3)],
            vec![entry(11, 2)],
            vec![entry(11, 6)],
            vec![entry(11, 3), entry(13, 3)],
            vec![entry(11, 5), entry(12, 4)],
            vec![WireEntry { kind: 1, ..entry(11, 3) }],
        ] {
            assert_eq!(append(entries.clone()).to_message(from, to), None, "{entries:?}");
        }
        for wire in [
            WireMessage { kind: 9, ..append(vec![]) },
            WireMessage { kind: 4, ..append(vec![entry(11, 3)]) },
            WireMessage { index: u64::MAX, ..append(vec![]) },
            WireMessage { term: 0, ..append(vec![]) },
            WireMessage { log_term: 0, ..append(vec![]) },
        ] {
            assert_eq!(wire.to_message(from, to), None, "{wire:?}");
        }
    }

    #[test]
    fn roles_that_contradict_each_other_are_none() {
        let sane = Roles { voters: vec![1, 2], learners: vec![3], ..Roles::default() };
        assert!(sane.to_state().is_some());
        assert_eq!(Roles::from_state(&sane.to_state().unwrap()), sane);
        for roles in [
            Roles { voters: vec![], ..sane.clone() },
            Roles { voters: vec![0, 1], ..sane.clone() },
            Roles { voters: vec![1, 1], ..sane.clone() },
            Roles { learners: vec![1], ..sane.clone() },
            Roles { voters: (1..40).collect(), learners: vec![], ..sane.clone() },
            Roles { learners_next: vec![4], ..sane.clone() },
            Roles { voters_outgoing: vec![3], ..sane.clone() },
            Roles { auto_leave: true, ..sane.clone() },
        ] {
            assert!(roles.to_state().is_none(), "{roles:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(mut bytes in proptest::collection::vec(0_u8.., 0..200)) {
            if let Some(first) = bytes.first_mut() { *first = VERSION; }
            if let Ok(PeerMessage::Messages { from, to, messages, .. }) = decode::<PeerMessage<'_>>(&bytes) {
                for message in messages {
                    let _ = message.to_message(from, to);
                }
            }
        }
    }
}
