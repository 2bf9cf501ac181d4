//! The founding of a cluster, once all of its intended members say that they are new.
//!
//! They must have been started with the same names and addresses: otherwise they could found several clusters.
//! The member whose name comes first founds it; the others learn of it with their next hello. A member that starts
//! empty while the others already have a cluster cannot found one: it waits to be added, and until then votes for
//! nobody, whatever an earlier life of it promised. One with a disk writes its id there before it says hello, so it is
//! still one of the founders if it restarts before it learns of the cluster. On a full disk it waits for room.

use std::collections::BTreeMap;
use std::hash::Hasher;

use bytes::Bytes;
use sinew_journal::disk::Disk;
use siphasher::sip::SipHasher13;

use super::durable::Replicated;
use super::{FOUNDING_ENTRY, Member, MemberError, Promise, Receiver, Transport, engine};
use crate::log::Log;
use crate::machine::StateMachine;
use crate::sessions::Sessions;
use crate::wire::{self, ClusterId, Founding, Hello, MemberId, MemberInfo, PeerMessage, Phase, Roles, SnapshotMeta};

/// Interval at which a member without a cluster says hello, in ns.
const HELLO_NS: u64 = 20_000_000;
/// Age beyond which an answer no longer counts, in ns.
const FRESH_NS: u64 = 200_000_000;

/// Knowledge of the others before there is a cluster.
#[derive(Debug)]
pub struct FoundingState {
    hash: u64,
    next_hello_ns: u64,
    /// Members that said they are new, by name, with the time of the last hello.
    new_peers: BTreeMap<String, (MemberInfo, u64)>,
    /// Name of the last peer that said that it has a cluster which this life did not found; `None` again once that peer
    /// says that it is new.
    refused_by: Option<String>,
    /// The last new peer that was started with other peers.
    differs: Option<String>,
}

impl FoundingState {
    pub fn new(peers: &[(String, String)]) -> Self {
        let mut sorted: Vec<_> = peers.iter().collect();
        sorted.sort();
        // The same in every build.
        let mut hasher = SipHasher13::new();
        for text in sorted.into_iter().flat_map(|(name, address)| [name, address]) {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        }
        Self { hash: hasher.finish(), next_hello_ns: 0, new_peers: BTreeMap::new(), refused_by: None, differs: None }
    }

    /// Whether the others have a cluster without this life.
    pub fn is_too_late(&self) -> bool {
        self.refused_by.is_some()
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Its hello. For a founding member it includes the founding.
    pub(super) fn hello(&self, to: Option<MemberId>) -> Hello {
        let founding = self.founding.as_ref().filter(|founding| {
            to.is_some_and(|to| founding.members.iter().any(|member| member.id == to) && self.members.contains_key(&to))
        });
        Hello {
            me: self.me.clone(),
            phase: self.cluster.map_or(Phase::New, Phase::MemberOf),
            peers_hash: self.founding_state.hash,
            founding: founding.cloned(),
        }
    }

    /// Says hello to the others, and founds a cluster when it is time.
    pub(super) fn find_peers(&mut self, now_ns: u64, transport: &mut impl Transport) -> Result<(), MemberError> {
        if now_ns >= self.founding_state.next_hello_ns {
            self.founding_state.next_hello_ns = now_ns + HELLO_NS;
            self.keep_id()?;
            if !self.has_kept_id {
                return Ok(());
            }
            let hello = PeerMessage::Hello(self.hello(None));
            for (_, address) in self.peers.iter().filter(|(name, _)| *name != self.me.name) {
                transport.send(Receiver::Address(address), &hello);
            }
        }
        let is_first = self.peers.iter().all(|(name, _)| *name >= self.me.name);
        let fresh = now_ns.saturating_sub(FRESH_NS);
        let others = self.founding_state.new_peers.values().filter(|(_, heard_ns)| *heard_ns >= fresh);
        if is_first && !self.founding_state.is_too_late() && others.clone().count() + 1 == self.peers.len() {
            let members = others.map(|(member, _)| member.clone()).chain([self.me.clone()]).collect();
            let founding = Founding { cluster: ClusterId(self.random.next_u64().max(1)), members };
            self.found_cluster(founding)?;
        }
        Ok(())
    }

    /// The name of a peer that cannot found a cluster with this member, as it was started with other names or
    /// addresses.
    pub fn peer_that_differs(&self) -> Option<&str> {
        self.founding_state.differs.as_deref().filter(|_| self.cluster.is_none())
    }

    /// Names of the peers that have no state, as this member has none, while the others have a cluster. Returns `None`
    /// unless they and this member are too many of those with which it was started for the others to be a majority. No
    /// member can then be added, unless the cluster has got other members since it was founded.
    pub fn lost_majority(&self, now_ns: u64) -> Option<Vec<&str>> {
        let fresh = now_ns.saturating_sub(FRESH_NS);
        let others = self.founding_state.new_peers.iter().filter(|(_, (_, heard_ns))| *heard_ns >= fresh);
        let names: Vec<&str> = others.map(|(name, _)| name.as_str()).collect();
        let is_late = self.cluster.is_none() && self.founding_state.is_too_late();
        let left = self.peers.len().saturating_sub(names.len() + 1);
        (is_late && left <= self.peers.len() / 2).then_some(names)
    }

    /// Handles the hello of another member, which may be an answer.
    pub(super) fn handle_hello(&mut self, hello: Hello, is_answer: bool, now_ns: u64) -> Result<(), MemberError> {
        if !hello.me.is_valid() || !hello.founding.as_ref().is_none_or(Founding::is_valid) {
            self.dropped.malformed += 1;
            return Ok(());
        }
        // An unasked hello may be an old one of an earlier life.
        if is_answer {
            self.handle_hello_for_change(&hello, now_ns);
        }
        if self.cluster.is_some() {
            return Ok(());
        }
        let is_peer = hello.me.name != self.me.name && self.peers.iter().any(|(name, _)| *name == hello.me.name);
        match (hello.phase, hello.founding) {
            (Phase::New, _) if is_peer => {
                let name = hello.me.name.clone();
                self.founding_state.refused_by.take_if(|refused_by| *refused_by == name);
                self.founding_state.differs.take_if(|differs| *differs == name);
                if hello.peers_hash == self.founding_state.hash {
                    self.founding_state.new_peers.insert(name, (hello.me, now_ns));
                } else {
                    self.founding_state.differs = Some(name);
                }
            }
            (Phase::MemberOf(cluster), Some(founding)) => {
                let is_ours = founding.cluster == cluster
                    && founding.members.iter().any(|member| member.id == self.me.id && member.name == self.me.name);
                if is_ours {
                    return self.found_cluster(founding);
                }
            }
            // Members of other clusters say nothing about this one.
            (Phase::MemberOf(_), None) if is_peer => self.founding_state.refused_by = Some(hello.me.name),
            _ => {}
        }
        Ok(())
    }

    /// Begins as one of the first members.
    fn found_cluster(&mut self, founding: Founding) -> Result<(), MemberError> {
        let roles = Roles { voters: founding.members.iter().map(|member| member.id.0).collect(), ..Roles::default() };
        let replicated = Replicated {
            members: founding.members.clone(),
            sessions: Sessions::default(),
            machine: &self.machine.snapshot(),
            founding: founding.clone(),
        };
        let mut data = Vec::new();
        wire::encode(&replicated, &mut data);
        let (index, term) = FOUNDING_ENTRY;
        let place = SnapshotMeta { index, term, roles };
        let Some(snapshot) = place.to_snapshot(Bytes::from(data)) else { return Ok(()) };
        self.restore(&snapshot)?;
        let log = Log::new(snapshot, Promise { term, vote: 0, commit: index }.to_state());
        self.node = engine::start(&self.config, self.me.id, log, index)?;
        self.cluster = Some(founding.cluster);
        self.replace_journal()
    }
}
