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
use crate::wire::{
    self, ClusterId, Founding, Hello, KnownVoters, MEMBERS_MAX, MemberId, MemberInfo, PeerMessage, Phase, Roles,
    SnapshotMeta,
};

/// Interval at which a member without a cluster says hello, in ns.
const HELLO_NS: u64 = 20_000_000;
/// Age beyond which an answer no longer counts, in ns.
const FRESH_NS: u64 = 200_000_000;

/// Knowledge of the others before there is a cluster.
#[derive(Debug)]
pub struct FoundingState {
    hash: u64,
    next_hello_ns: u64,
    /// Lives that said they are new, by name: those of peers, and of voters.
    pub(super) newcomers: BTreeMap<String, Newcomer>,
    /// The words of peers that refuse to found a cluster, by name.
    refusals: BTreeMap<String, Refusal>,
    /// The last new peer that was started with other peers.
    differs: Option<String>,
}

/// A life that said it is new.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub info: MemberInfo,
    heard_ns: u64,
    /// Whether it was started with the same peers, so that it can found a cluster with this member.
    is_alike: bool,
}

impl Newcomer {
    /// Whether it still counts.
    pub fn is_fresh(&self, now_ns: u64) -> bool {
        is_fresh(self.heard_ns, now_ns)
    }
}

/// Whether what was heard at a time still counts.
fn is_fresh(heard_ns: u64, now_ns: u64) -> bool {
    heard_ns >= now_ns.saturating_sub(FRESH_NS)
}

/// The word of a peer that it has a cluster which this life did not found. It ends once that peer says that it is new.
#[derive(Debug)]
struct Refusal {
    by: MemberInfo,
    cluster: ClusterId,
    /// The voters as the peer last told them, and the time at which it did.
    known: Option<(KnownVoters, u64)>,
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
        Self {
            hash: hasher.finish(),
            next_hello_ns: 0,
            newcomers: BTreeMap::new(),
            refusals: BTreeMap::new(),
            differs: None,
        }
    }

    /// Whether the others have a cluster without this life.
    pub fn is_too_late(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// Whether this life has told the voters lately, so that it has state.
    pub(super) fn is_told_by(&self, id: MemberId, now_ns: u64) -> bool {
        let is_recent = |known: &(KnownVoters, u64)| is_fresh(known.1, now_ns);
        self.refusals.values().any(|refusal| refusal.by.id == id && refusal.known.as_ref().is_some_and(is_recent))
    }

    /// The voters as a peer has told them lately. Of several peers, the one that has applied most in the cluster to
    /// which most of them belong. So peers of two clusters are not taken by turns.
    pub(super) fn best_known(&self, now_ns: u64) -> Option<(&MemberInfo, &KnownVoters)> {
        let all = self.refusals.values().filter_map(|refusal| {
            let (known, heard_ns) = refusal.known.as_ref()?;
            is_fresh(*heard_ns, now_ns).then_some((refusal, known))
        });
        let count_of = |cluster| all.clone().filter(|(refusal, _)| refusal.cluster == cluster).count();
        let best = all.clone().max_by_key(|&(refusal, known)| {
            (count_of(refusal.cluster), refusal.cluster.0, known.applied, refusal.by.name.as_str())
        });
        best.map(|(refusal, known)| (&refusal.by, known))
    }

    /// Notes the word of a peer that it has a cluster. A life that does not tell the voters may have told them before:
    /// it does so only to a receiver whose id it knows.
    fn note_refusal(&mut self, by: MemberInfo, cluster: ClusterId, known: Option<KnownVoters>, now_ns: u64) {
        let earlier = self.refusals.remove(&by.name).filter(|of| of.by.id == by.id && of.cluster == cluster);
        let known = known.map(|known| (known, now_ns)).or_else(|| earlier?.known);
        self.refusals.insert(by.name.clone(), Refusal { by, cluster, known });
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Its hello. For a founding member it includes the founding, and for one that is no member the voters.
    pub(super) fn hello(&self, to: Option<MemberId>) -> Hello {
        let founding = self.founding.as_ref().filter(|founding| {
            to.is_some_and(|to| founding.members.iter().any(|member| member.id == to) && self.members.contains_key(&to))
        });
        Hello {
            me: self.me.clone(),
            phase: self.cluster.map_or(Phase::New, Phase::MemberOf),
            peers_hash: self.founding_state.hash,
            founding: founding.cloned(),
            known: to.filter(|to| !self.members.contains_key(to)).and_then(|_| self.own_voters()),
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
        let alike = self.founding_state.newcomers.values().filter(|newcomer| newcomer.is_alike);
        let others = alike.filter(|newcomer| newcomer.is_fresh(now_ns)).map(|newcomer| &newcomer.info);
        if is_first && !self.founding_state.is_too_late() && others.clone().count() + 1 == self.peers.len() {
            let members = others.chain([&self.me]).cloned().collect();
            let founding = Founding { cluster: ClusterId(self.random.next_u64().max(1)), members };
            self.found_cluster(founding)?;
        }
        Ok(())
    }

    /// The name of a peer that cannot found a cluster with this member, as it was started with other names or
    /// addresses.
    pub fn peer_that_differs(&self) -> Option<&str> {
        let may_found = self.cluster.is_none() && !self.founding_state.is_too_late();
        self.founding_state.differs.as_deref().filter(|_| may_found)
    }

    /// Handles the hello of another member, which may be an answer.
    pub(super) fn handle_hello(&mut self, hello: Hello, is_answer: bool, now_ns: u64) -> Result<(), MemberError> {
        let is_valid = hello.me.is_valid()
            && hello.founding.as_ref().is_none_or(Founding::is_valid)
            && hello.known.as_ref().is_none_or(KnownVoters::is_valid);
        if !is_valid {
            self.dropped.malformed += 1;
            return Ok(());
        }
        // An unasked hello may be an old one of an earlier life.
        if is_answer {
            self.handle_hello_for_change(&hello, now_ns);
        }
        if hello.phase == Phase::New {
            self.note_newcomer(hello, now_ns);
            return Ok(());
        }
        let (Phase::MemberOf(cluster), None) = (hello.phase, self.cluster) else { return Ok(()) };
        match hello.founding {
            Some(founding) => {
                let is_ours = founding.cluster == cluster
                    && founding.members.iter().any(|member| member.id == self.me.id && member.name == self.me.name);
                if is_ours {
                    return self.found_cluster(founding);
                }
            }
            // Members of other clusters say nothing about this one.
            None if self.is_peer(&hello.me.name) => {
                self.founding_state.note_refusal(hello.me, cluster, hello.known, now_ns);
            }
            None => {}
        }
        Ok(())
    }

    /// Whether a name is that of another member with which this one was started.
    fn is_peer(&self, name: &str) -> bool {
        name != self.me.name && self.peers.iter().any(|(peer, _)| peer == name)
    }

    /// Notes a life that says that it is new. Of strangers there may be any number, so they are not recorded.
    fn note_newcomer(&mut self, hello: Hello, now_ns: u64) {
        let Hello { me: info, peers_hash, .. } = hello;
        self.founding_state.newcomers.retain(|_, newcomer| newcomer.is_fresh(now_ns));
        let is_peer = self.is_peer(&info.name);
        let is_voter = || {
            let known = self.known_configuration(now_ns);
            known.is_some_and(|(configuration, _)| configuration.has_voter(&info.name))
        };
        if !is_peer && (self.founding_state.newcomers.len() >= MEMBERS_MAX || !is_voter()) {
            return;
        }
        let state = &mut self.founding_state;
        let is_alike = is_peer && peers_hash == state.hash;
        if is_peer {
            state.refusals.remove(&info.name);
            state.differs.take_if(|differs| *differs == info.name);
        }
        if is_peer && !is_alike {
            state.differs = Some(info.name.clone());
        }
        state.newcomers.insert(info.name.clone(), Newcomer { info, heard_ns: now_ns, is_alike });
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
