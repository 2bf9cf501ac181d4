//! One member of a cluster, without I/O, clock or thread: it is handed messages, requests and the time, and hands messages and answers back.
//!
//! Whoever drives it gives it what has come ([`Member::take_peer`], [`Member::take_answer`], [`Member::take_client`]) and then lets it have a turn
//! ([`Member::turn`]), in which all that has gathered goes to the log with one write, and to each other member in one message.

mod applying;
mod clients;
mod config;
mod engine;
mod founding;
mod kept;
mod membership;
mod peers;
mod pieces;
mod reads;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use raft::eraftpb::{Entry, Message, Snapshot};
use raft::{RawNode, StateRole};
use sinew_fabric::Generator;
use sinew_journal::Journal;
use sinew_journal::disk::Disk;

use crate::client_wire::Dropped;
use crate::log::Log;
use crate::machine::StateMachine;
use crate::sessions::Sessions;
use crate::wire::{ClusterId, Founding, MemberId, MemberInfo, Say, WireEntry, WireMessage};
use clients::Clients;
pub use clients::Taken;
pub use config::{MemberConfig, MemberError};
use founding::FoundingState;
use kept::{Promise, Record, Replicated};
use membership::Wishes;
use pieces::{Incoming, Outgoing};
use reads::Reads;

/// Entries of a new cluster's log begin behind this one, so that whoever is added later needs a snapshot, which has the first members in it.
const FIRST: (u64, u64) = (1, 1);

/// Where a member's messages go.
pub trait Transport {
    /// Takes a message to a member. It may be lost.
    fn send(&mut self, to: Receiver<'_>, say: &Say<'_>);

    /// What was taken leaves: the member is about to write to its disk.
    fn flush(&mut self);
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver<'a> {
    /// A member, and where it is, if known. Without that, the message can only be an answer to what came from it.
    Member(MemberId, Option<&'a str>),
    /// Whoever is at an address.
    Address(&'a str),
}

/// How a message of another member's is answered.
#[derive(Debug, PartialEq, Eq)]
pub enum PeerAnswer<'a> {
    /// So.
    Now(Say<'a>),
    /// With the next message to this member, if there is one in the turn that follows; else with nothing.
    AfterTurn(MemberId),
}

/// A member; see [the module](self).
pub struct Member<S, D> {
    config: MemberConfig,
    me: MemberInfo,
    /// Names and addresses that it was started with.
    peers: Vec<(String, String)>,
    random: Box<dyn Generator>,
    founding_state: FoundingState,
    /// Of its cluster, once it knows one.
    cluster: Option<ClusterId>,
    founding: Option<Founding>,
    node: RawNode<Log>,
    machine: S,
    sessions: Sessions,
    members: BTreeMap<MemberId, MemberInfo>,
    applied: u64,
    journal: Option<Journal<D>>,
    /// Its journal has a beginning, if there is one.
    has_base: bool,
    is_full: bool,
    /// Entries, and bytes of theirs, that the engine was given since it was last asked what to write.
    let_in: (usize, usize),
    clients: Clients,
    reads: Reads,
    wishes: Wishes,
    incoming: Option<Incoming>,
    outgoing: BTreeMap<MemberId, Outgoing>,
    /// Messages of this turn.
    outbox: BTreeMap<MemberId, Vec<Message>>,
    heard_ns: BTreeMap<MemberId, u64>,
    /// Others have said that it is no member.
    is_unwanted: bool,
    next_tick_ns: u64,
    /// Ticks of silence after which it asks for votes.
    patience: usize,
    /// Before this it votes for nobody: an earlier life may have confirmed a leader's lease.
    quiet_until_ns: u64,
    /// The term that it led as its last turn ended.
    led: Option<u64>,
    dropped: Dropped,
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// A member, which goes on with what its disk has. `peers` are the names and addresses of all that are to found a cluster together, itself
    /// among them; they mean nothing to one that has a cluster.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing was changed.
    pub fn open(
        config: MemberConfig,
        name: &str,
        peers: Vec<(String, String)>,
        machine: S,
        disk: Option<D>,
        mut random: Box<dyn Generator>,
        now_ns: u64,
    ) -> Result<Self, MemberError> {
        let address = check_peers(name, &peers)?;
        let id = MemberId(random.next_u64().max(1));
        let me = MemberInfo { id, name: name.to_owned(), address };
        let opened = disk.map(|disk| Journal::open(disk, random.next_u64())).transpose()?;
        let (journal, base, records) = match opened {
            Some(opened) => (Some(opened.journal), opened.snapshot, opened.records),
            None => (None, None, Vec::new()),
        };
        let mut member = Self {
            node: engine::start(&config, id, Log::default(), 0)?,
            founding_state: FoundingState::new(&peers),
            patience: config.election_ticks,
            config,
            me,
            peers,
            random,
            cluster: None,
            founding: None,
            machine,
            sessions: Sessions::default(),
            members: BTreeMap::new(),
            applied: 0,
            has_base: journal.is_none(),
            journal,
            is_full: false,
            let_in: (0, 0),
            clients: Clients::default(),
            reads: Reads::default(),
            wishes: Wishes::default(),
            incoming: None,
            outgoing: BTreeMap::new(),
            outbox: BTreeMap::new(),
            heard_ns: BTreeMap::new(),
            is_unwanted: false,
            next_tick_ns: now_ns,
            quiet_until_ns: 0,
            led: None,
            dropped: Dropped::default(),
        };
        member.draw_patience();
        if let Some(base) = base {
            member.recover(&base, &records)?;
            member.quiet_until_ns = now_ns + 2 * member.config.election_ticks as u64 * member.config.tick_ns;
        }
        Ok(member)
    }

    /// Goes on with what the disk has.
    fn recover(&mut self, base: &[u8], records: &[Vec<u8>]) -> Result<(), MemberError> {
        let base = kept::read_base(base)?;
        if base.me.name != self.me.name {
            return Err(MemberError::OtherMember { found: base.me.name, asked: self.me.name.clone() });
        }
        let damaged = || MemberError::OtherRelease("its snapshot makes no sense".into());
        let snapshot = if base.place.index == 0 {
            // It had been added, and had got nothing yet.
            Snapshot::default()
        } else {
            let snapshot = base.place.to_snapshot(Bytes::copy_from_slice(base.data)).ok_or_else(damaged)?;
            self.restore(&snapshot)?;
            snapshot
        };
        let mut promise = base.promise;
        let mut log = Log::new(snapshot, Default::default());
        append(&mut log, &base.tail)?;
        for record in records {
            match kept::read(record)? {
                Record::Entries(entries) => append(&mut log, &entries)?,
                Record::Promise(later) => promise = later,
            }
        }
        let last = raft::Storage::last_index(&log).unwrap_or(0);
        promise.commit = promise.commit.min(last).max(self.applied);
        log.set_hard_state(promise.to_state());
        (self.me.id, self.has_base) = (base.me.id, true);
        self.cluster = Some(base.cluster);
        self.node = engine::start(&self.config, self.me.id, log, self.applied)?;
        Ok(())
    }

    /// Takes the replicated state from a snapshot.
    fn restore(&mut self, snapshot: &Snapshot) -> Result<(), MemberError> {
        let replicated: Replicated<'_> = kept::read(&snapshot.data)?;
        self.machine.restore(replicated.machine)?;
        self.sessions = replicated.sessions;
        self.members = replicated.members.into_iter().map(|member| (member.id, member)).collect();
        self.founding = Some(replicated.founding);
        self.applied = snapshot.get_metadata().index;
        Ok(())
    }

    /// Who it is.
    pub fn me(&self) -> &MemberInfo {
        &self.me
    }

    /// The state, as far as it is applied here.
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Addresses of the other members, as far as they are known.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.members.values().filter(|member| member.id != self.me.id).map(|member| member.address.as_str())
    }

    /// Its term.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// The last entry that its state has.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// What it dropped, by reason.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// When it wants its next turn, if nothing comes before.
    pub fn next_turn_ns(&self) -> u64 {
        self.next_tick_ns
    }

    fn election_ns(&self) -> u64 {
        self.config.election_ticks as u64 * self.config.tick_ns
    }

    /// Draws the silence of a leader after which this member asks for votes: more than the others' least by a tick, which is
    /// as far as their ticks may be behind ours.
    fn draw_patience(&mut self) {
        let ticks = self.config.election_ticks;
        self.patience = ticks + 1 + (self.random.next_u64() % ticks as u64) as usize;
    }

    /// Draws the pause before it asks for votes again. Nobody leads by then, so there is nobody left to wait for.
    fn draw_pause(&mut self) {
        let least = self.config.election_ticks.div_ceil(2);
        self.patience = least + (self.random.next_u64() % (least as u64 + 1)) as usize;
    }

    fn leader(&self) -> Option<&MemberInfo> {
        self.members.get(&MemberId(self.node.raft.leader_id))
    }

    /// Does what is due: ticks, and what follows from all that was taken since the last turn. Says whether anything happened.
    ///
    /// # Errors
    ///
    /// [`MemberError`], after which it can do no more. What it acknowledged lies on its disk, or with a majority.
    pub fn turn(&mut self, now_ns: u64, transport: &mut impl Transport) -> Result<bool, MemberError> {
        let ticked = self.tick(now_ns, transport)?;
        self.reads.begin(&mut self.node, now_ns);
        let busy = self.pump(now_ns, transport)?;
        self.send(transport);
        self.send_pieces(now_ns, transport);
        self.note_leadership();
        self.clients.look_at_watches(&self.machine, now_ns);
        Ok(busy || ticked)
    }

    fn tick(&mut self, now_ns: u64, transport: &mut impl Transport) -> Result<bool, MemberError> {
        if now_ns < self.next_tick_ns {
            return Ok(false);
        }
        // One that stood still has not waited for the others: it hears what they said meanwhile first.
        self.next_tick_ns = (self.next_tick_ns + self.config.tick_ns).max(now_ns + self.config.tick_ns / 2);
        if self.cluster.is_none() {
            self.look_for_peers(now_ns, transport)?;
            return Ok(true);
        }
        self.node.tick();
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader && raft.election_elapsed >= self.patience && now_ns >= self.quiet_until_ns {
            if raft.promotable() {
                raft.election_elapsed = 0;
                // What it says when it cannot is that it leads, or has a change to apply first.
                let _ = self.node.campaign();
                self.draw_pause();
            } else {
                self.draw_patience();
            }
        }
        self.look_at_wishes(now_ns, transport);
        Ok(true)
    }

    /// Lets the engine do what it can, and carries it out.
    fn pump(&mut self, now_ns: u64, transport: &mut impl Transport) -> Result<bool, MemberError> {
        let mut busy = false;
        while self.node.has_ready() {
            busy = true;
            if !self.has_base {
                self.replace_journal()?;
            }
            let mut ready = self.node.ready();
            self.gather(ready.take_messages());
            if !ready.snapshot().is_empty() {
                self.install(ready.snapshot().clone())?;
            }
            // How far the log is decided is found out anew; a promise is not.
            self.keep(ready.entries(), ready.hs().filter(|_| ready.must_sync()).map(Promise::of));
            if let Some(state) = ready.hs() {
                self.node.mut_store().set_hard_state(state.clone());
            }
            if ready.must_sync() && self.journal.is_some() {
                // The others write while we do.
                self.send(transport);
                transport.flush();
                if let Some(journal) = &mut self.journal {
                    journal.sync()?;
                }
            }
            self.gather(ready.take_persisted_messages());
            self.reads.confirmed(ready.take_read_states(), now_ns);
            let committed = ready.take_committed_entries();
            self.apply(&committed)?;
            let mut light = self.node.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().set_commit(commit);
            }
            self.gather(light.take_messages());
            let committed = light.take_committed_entries();
            self.apply(&committed)?;
            self.node.advance_apply();
        }
        self.let_in = (0, 0);
        self.answer_reads();
        self.compact_if_long()?;
        Ok(busy)
    }

    fn gather(&mut self, messages: Vec<Message>) {
        for message in messages {
            if message.get_msg_type() == raft::eraftpb::MessageType::MsgSnapshot {
                self.begin_pieces(message);
                continue;
            }
            self.outbox.entry(MemberId(message.to)).or_default().push(message);
        }
    }

    /// Writes entries and promises to the journal's buffer and the log.
    fn keep(&mut self, entries: &[Entry], promise: Option<Promise>) {
        if let Some(journal) = &mut self.journal {
            let mut bytes = Vec::new();
            if !entries.is_empty() {
                crate::wire::encode(&Record::Entries(entries.iter().map(WireEntry::of).collect()), &mut bytes);
                journal.append(&bytes);
            }
            if let Some(promise) = promise {
                bytes.clear();
                crate::wire::encode(&Record::Promise(promise), &mut bytes);
                journal.append(&bytes);
            }
        }
        self.node.mut_store().append(entries);
    }

    /// Sends what has gathered, to each member in one message.
    fn send(&mut self, transport: &mut impl Transport) {
        let Some(cluster) = self.cluster else { return self.outbox.clear() };
        for (to, messages) in &mut self.outbox {
            if messages.is_empty() {
                continue;
            }
            let said = messages.iter().filter_map(WireMessage::of).collect();
            let say = Say::Messages { cluster, from: self.me.id, to: *to, messages: said };
            let address = self.members.get(to).map(|member| member.address.as_str());
            transport.send(Receiver::Member(*to, address), &say);
            drop(say);
            messages.clear();
        }
        let members = &self.members;
        self.outbox.retain(|to, _| members.contains_key(to));
    }

    /// A snapshot of the leader's takes the place of the state and the log.
    fn install(&mut self, snapshot: Snapshot) -> Result<(), MemberError> {
        self.restore(&snapshot)?;
        self.node.mut_store().install(snapshot);
        self.replace_journal()?;
        // What is told the leader next is that the snapshot is kept. A member that has no room for it must not say so, and its old journal has a gap.
        let is_kept = self.journal.is_none() || self.has_base && !self.is_full;
        if is_kept { Ok(()) } else { Err(MemberError::Disk(sinew_journal::disk::DiskError::Full)) }
    }

    /// The journal begins anew, with the log's latest snapshot.
    fn replace_journal(&mut self) -> Result<(), MemberError> {
        let (Some(journal), Some(cluster)) = (&mut self.journal, self.cluster) else { return Ok(()) };
        let log = self.node.store();
        let snapshot = log.latest_snapshot();
        let tail = log.behind(snapshot.get_metadata().index);
        match journal.replace(&kept::base(&self.me, cluster, log.hard_state(), snapshot, tail)) {
            Err(sinew_journal::disk::DiskError::Full) if journal.error().is_none() => {
                self.is_full = true;
                Ok(())
            }
            result => {
                result?;
                (self.has_base, self.is_full) = (true, false);
                Ok(())
            }
        }
    }

    /// Turns away what waits for a term that is over. A term may begin and end within one turn.
    fn note_leadership(&mut self) {
        let leads = self.is_leader().then_some(self.node.raft.term);
        if leads.is_none() || self.led.is_some_and(|led| leads != Some(led)) {
            self.reads.forget_lease();
            if self.clients.awaits_log() || !self.reads.is_idle() || !self.wishes.is_idle() {
                let elsewhere = self.elsewhere();
                self.clients.turn_away(&elsewhere);
                self.reads.turn_away(&mut self.clients, &elsewhere);
                self.wishes.turn_away(&mut self.clients, &elsewhere);
            }
        }
        self.led = leads;
    }

    /// Names of members that it has not heard of for a while.
    fn silent(&self, now_ns: u64) -> BTreeSet<&str> {
        let since = now_ns.saturating_sub(2 * self.election_ns());
        let is_silent = |id: &MemberId| *id != self.me.id && self.heard_ns.get(id).is_none_or(|heard| *heard < since);
        self.members.values().filter(|member| is_silent(&member.id)).map(|member| member.name.as_str()).collect()
    }
}

/// Entries that a disk had go to the log.
fn append(log: &mut Log, entries: &[WireEntry<'_>]) -> Result<(), MemberError> {
    let mut taken = Vec::with_capacity(entries.len());
    for entry in entries {
        let last = taken.last().map_or_else(|| raft::Storage::last_index(log).unwrap_or(0), |last: &Entry| last.index);
        let first = raft::Storage::first_index(log).unwrap_or(0);
        let follows =
            if taken.is_empty() { (first..=last + 1).contains(&entry.index) } else { entry.index == last + 1 };
        let entry = entry.to_entry().filter(|_| follows);
        taken.push(entry.ok_or_else(|| MemberError::Engine(format!("an entry behind {last} has a wrong place")))?);
    }
    log.append(&taken);
    Ok(())
}

/// Whether a member can be started with these, and its own address.
fn check_peers(name: &str, peers: &[(String, String)]) -> Result<String, MemberError> {
    let names: BTreeSet<_> = peers.iter().map(|(name, _)| name).collect();
    let wrong = |what: String| Err(MemberError::Arguments(what));
    if names.len() != peers.len() {
        return wrong("two peers have one name: give each its own".into());
    }
    if peers.len() > crate::wire::MEMBERS_MAX / 2 {
        return wrong(format!("{} peers: {} are the most; three, five or seven make sense", peers.len(), 7));
    }
    for (name, address) in peers {
        let info = MemberInfo { id: MemberId(1), name: name.clone(), address: address.clone() };
        if !info.is_sane() {
            return wrong(format!("peer {name:?} at {address:?}: a name has 1 to 64 bytes, an address 1 to 256"));
        }
    }
    match peers.iter().find(|(peer, _)| peer == name) {
        Some((_, address)) => Ok(address.clone()),
        None => wrong(format!("{name} is not among the peers: say where it is, too ({name}=ADDRESS)")),
    }
}

#[cfg(test)]
mod tests;
