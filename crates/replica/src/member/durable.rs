//! Layout of a member's data on its disk, and of a snapshot.

use std::collections::BTreeSet;

use raft::eraftpb::{Entry, HardState, Snapshot};
use serde::{Deserialize, Serialize};

use super::MemberError;
use crate::sessions::Sessions;
use crate::wire::{self, ClusterId, DecodeError, Founding, MemberInfo, SnapshotMeta, WireEntry};

const KIND: u32 = u32::from_le_bytes(*b"rep1");

/// The replicated data.
#[derive(Serialize, Deserialize)]
pub struct Replicated<'a> {
    pub founding: Founding,
    pub members: Vec<MemberInfo>,
    pub sessions: Sessions,
    #[serde(borrow, with = "serde_bytes")]
    pub machine: &'a [u8],
}

impl Replicated<'_> {
    /// Whether a member can go on with it after the entry `last_index`, except for the machine's part.
    pub fn is_valid(&self, last_index: u64) -> bool {
        let ids: BTreeSet<_> = self.members.iter().map(|member| member.id).collect();
        self.founding.is_valid()
            && self.members.len() <= wire::MEMBERS_MAX
            && ids.len() == self.members.len()
            && self.members.iter().all(MemberInfo::is_valid)
            && self.sessions.is_valid(self.founding.cluster, last_index)
    }
}

/// A promise of the engine: its term, its vote and its commit index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

impl Promise {
    pub fn of(state: &HardState) -> Self {
        Self { term: state.term, vote: state.vote, commit: state.commit }
    }

    pub fn to_state(self) -> HardState {
        let mut state = HardState::default();
        (state.term, state.vote, state.commit) = (self.term, self.vote, self.commit);
        state
    }
}

/// The base at the beginning of a journal.
#[derive(Serialize, Deserialize)]
pub struct Base<'a> {
    kind: u32,
    pub me: MemberInfo,
    pub cluster: ClusterId,
    pub promise: Promise,
    pub place: SnapshotMeta,
    /// [`Replicated`], as bytes.
    #[serde(borrow, with = "serde_bytes")]
    pub data: &'a [u8],
    /// Entries after the snapshot.
    #[serde(borrow)]
    pub tail: Vec<WireEntry<'a>>,
}

/// A record of a journal, after its base.
#[derive(Serialize, Deserialize)]
pub enum Record<'a> {
    Entries(#[serde(borrow)] Vec<WireEntry<'a>>),
    Promise(Promise),
}

/// Serialises a [`Base`].
pub fn base<'a>(
    me: &MemberInfo,
    cluster: ClusterId,
    state: &HardState,
    snapshot: &Snapshot,
    tail: impl Iterator<Item = &'a Entry>,
) -> Vec<u8> {
    let base = Base {
        kind: KIND,
        me: me.clone(),
        cluster,
        promise: Promise::of(state),
        place: SnapshotMeta::from_snapshot(snapshot),
        data: &snapshot.data,
        tail: tail.map(WireEntry::from_entry).collect(),
    };
    let mut bytes = Vec::new();
    wire::encode(&base, &mut bytes);
    bytes
}

/// The part of a [`Base`] without a tail that precedes its data, which has `data_len` bytes. [`TAIL_OF_NONE`] follows
/// the data.
pub fn base_head(
    me: &MemberInfo,
    cluster: ClusterId,
    promise: Promise,
    place: &SnapshotMeta,
    data_len: usize,
) -> Vec<u8> {
    let (me, place) = (me.clone(), place.clone());
    let base = Base { kind: KIND, me, cluster, promise, place, data: &[], tail: Vec::new() };
    let mut bytes = Vec::new();
    wire::encode(&base, &mut bytes);
    // The lengths of the data and the tail, which are one byte each as long as they are 0.
    bytes.truncate(bytes.len() - 1 - TAIL_OF_NONE.len());
    wire::append(&data_len, &mut bytes);
    bytes
}

/// A [`Base`]'s tail of no entries, as bytes.
pub const TAIL_OF_NONE: [u8; 1] = [0];

/// Parses a [`Base`].
pub fn read_base(bytes: &[u8]) -> Result<Base<'_>, MemberError> {
    let base: Base<'_> = read(bytes)?;
    if base.kind != KIND {
        return Err(MemberError::OtherRelease("another program's".into()));
    }
    Ok(base)
}

/// Parses a value.
pub fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, MemberError> {
    wire::decode(bytes).map_err(|nonsense| {
        MemberError::OtherRelease(match nonsense {
            DecodeError::Version(version) => format!("version {version}, but this release knows {}", wire::VERSION),
            DecodeError::Malformed => "another program's".into(),
        })
    })
}
