//! One member of a cluster, without I/O, clock or thread: it is given messages, requests and the time, and returns
//! messages and answers.
//!
//! The caller passes it what has arrived ([`Member::handle_peer`], [`Member::handle_answer`],
//! [`Member::handle_client`]), and then gives it a turn ([`Member::turn`]). In a turn, everything gathered goes to the
//! log with one write, and to each other member in one message, up to a bounded length.
//!
//! # Design
//!
//! - **Writes overlap.** The journal gets one write and one sync in a turn. The leader's appends leave before its own
//!   sync, so the disks write at the same time.
//! - **Lives.** The engine's identifier for a member is drawn at random when the member starts empty, and lies in its
//!   journal from then on. So to all others a member that lost its memory is a new one: it is in no configuration, has
//!   promised nothing, and is not asked to vote. `add` puts it in the place of its name's earlier life, in one joint
//!   change.
//! - **Founding.** A cluster is founded when all of `--peers` say within 200 ms that they are new, and were
//!   started with the same names and addresses. The one whose name
//!   comes first draws the cluster's name and lists all lives; the others take the list with their next hello.
//! - **Tests** (`member/tests`): members, a network, clocks that drift and disks that crash, all stepped by the tests.
//!   There are the classic hard cases, a crash at each of the first 149 writes, hostile messages, and random runs whose
//!   histories `stateright`'s linearizability tester checks; a test shows first that it rejects wrong histories. The
//!   same code runs over the RPC layer on the simulated cluster, amid the same faults, with real clients and operators
//!   (`tests/virtual_time.rs`), and with processes that are killed (`tests/tests/replica.rs` and `killing/` of the
//!   workspace).

mod appends;
mod applying;
mod clients;
mod compaction;
mod config;
mod durable;
mod engine;
mod founding;
mod journaling;
mod losses;
mod membership;
mod patience;
mod peers;
mod pieces;
mod reads;
mod window;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use raft::{ProgressState, RawNode, StateRole};
use sinew_fabric::Generator;
use sinew_journal::Journal;
use sinew_journal::disk::Disk;

use crate::client_wire::Dropped;
use crate::log::Log;
use crate::machine::StateMachine;
use crate::sessions::Sessions;
use crate::wire::{ClusterId, Founding, MemberId, MemberInfo, PeerMessage, WireEntry, WireMessage};
pub use clients::Accepted;
use clients::WaitingRequests;
use compaction::PendingSnapshot;
pub use config::{MemberConfig, MemberError};
use durable::{Promise, Record, Replicated};
use founding::FoundingState;
use journaling::NewBase;
pub use losses::LostMajority;
use membership::MembershipChanges;
use patience::Patience;
use pieces::{Incoming, Outgoing};
use reads::Reads;
use window::Window;

/// Entries after which a turn applies no more. It may end with some hundred more, since they come in lists.
const APPLIED_MAX: u64 = 512;

/// Index and term before the first entry of a new cluster's log. They are not 0, so that a member added later needs a
/// snapshot, which names the first members.
const FOUNDING_ENTRY: (u64, u64) = (1, 1);

/// Sender of a member's messages.
pub trait Transport {
    /// Sends a message to a member. It may be lost.
    fn send(&mut self, to: Receiver<'_>, say: &PeerMessage<'_>);

    /// Sends out everything accepted so far, because the member is about to write to its disk.
    fn flush(&mut self);
}

/// Receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver<'a> {
    /// A member, and its address if known. Without an address, the message can only be sent as an answer to one of its
    /// calls.
    Member(MemberId, Option<&'a str>),
    /// The member at an address, whichever it is.
    Address(&'a str),
}

/// Answer to a message of another member.
#[derive(Debug, PartialEq, Eq)]
pub enum PeerAnswer<'a> {
    /// This message.
    Now(PeerMessage<'a>),
    /// The next message to this member, if the turn that follows produces one; otherwise [`PeerMessage::Nothing`].
    AtEndOfTurn(MemberId),
}

/// A member; see [the module](self).
pub struct Member<S, D> {
    config: MemberConfig,
    me: MemberInfo,
    /// Names and addresses with which it was started.
    peers: Vec<(String, String)>,
    random: Box<dyn Generator>,
    founding_state: FoundingState,
    /// Its cluster, once it knows one.
    cluster: Option<ClusterId>,
    founding: Option<Founding>,
    node: RawNode<Log>,
    machine: S,
    sessions: Sessions,
    /// Members of the configuration, including those that vote only until the change in progress is complete.
    members: BTreeMap<MemberId, MemberInfo>,
    applied: u64,
    journal: Option<Journal<D>>,
    /// Whether its journal has at least its id; always true if there is no journal.
    has_kept_id: bool,
    /// Whether its journal begins with a base of the cluster; always true if there is no journal.
    has_base: bool,
    is_full: bool,
    /// File of its log at whose end an incomplete write was cut off when it was opened, and the write's length in
    /// bytes.
    truncated: Option<(String, u64)>,
    /// Entries given to the engine since the last write, and their bytes.
    unwritten: (usize, usize),
    requests: WaitingRequests,
    reads: Reads,
    changes: MembershipChanges,
    pending_snapshot: Option<PendingSnapshot>,
    new_base: Option<NewBase>,
    incoming: Option<Incoming>,
    /// A snapshot that has arrived, as a message to the engine.
    arrived: Option<Box<Message>>,
    outgoing: BTreeMap<MemberId, Outgoing>,
    /// Messages of this turn.
    outbox: BTreeMap<MemberId, Vec<Message>>,
    /// Entries in flight to each member, while this one leads.
    windows: BTreeMap<MemberId, Window>,
    last_heard_ns: BTreeMap<MemberId, u64>,
    /// Whether others have said that it is no member.
    is_unwanted: bool,
    /// Whether a change of the members was applied that a restart may not know of yet.
    has_changed_members: bool,
    next_tick_ns: u64,
    last_turn_ns: u64,
    /// Time since which no two turns were more than an election time-out apart.
    present_since_ns: u64,
    patience: Patience,
    /// Ticks of silence after which it asks for votes.
    election_ticks_drawn: usize,
    /// The term that it leads, and ticks in this term since it last checked that it hears from a majority.
    unchecked_ticks: (u64, usize),
    /// Ticks since it began to hand its leadership over.
    hand_over_ticks: usize,
    /// Whether it has asked for votes since it last had a leader.
    has_campaigned: bool,
    /// Until this time it votes for nobody, because it has confirmed a leader's lease, or an earlier life may have.
    quiet_until_ns: u64,
    /// Term that it led at the end of its last turn.
    led_term: Option<u64>,
    dropped: Dropped,
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Opens a member, which continues with the contents of its disk. `peers` are the names and addresses of all
    /// members that are to found a cluster together, including itself; they do not matter once it has a cluster.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing was changed, except that an empty disk may have the member's id.
    pub fn open(
        config: MemberConfig,
        name: &str,
        peers: Vec<(String, String)>,
        machine: S,
        disk: Option<D>,
        mut random: Box<dyn Generator>,
        now_ns: u64,
    ) -> Result<Self, MemberError> {
        let address = check_peers(name, &peers)?.to_owned();
        let id = MemberId(random.next_u64().max(1));
        let me = MemberInfo { id, name: name.to_owned(), address };
        let opened = disk.map(|disk| Journal::open(disk, random.next_u64())).transpose()?;
        let (journal, base, records, truncated) = match opened {
            Some(opened) => {
                let truncated = (opened.truncated_len > 0).then_some((opened.log_file, opened.truncated_len));
                (Some(opened.journal), opened.snapshot, opened.records, truncated)
            }
            None => (None, None, Vec::new(), None),
        };
        let mut member = Self {
            node: engine::start(&config, id, Log::default(), 0)?,
            founding_state: FoundingState::new(&peers),
            patience: Patience::new(config.election_ticks),
            election_ticks_drawn: config.election_ticks,
            unchecked_ticks: (0, 0),
            hand_over_ticks: 0,
            has_campaigned: false,
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
            has_kept_id: journal.is_none(),
            has_base: journal.is_none(),
            journal,
            is_full: false,
            truncated,
            unwritten: (0, 0),
            requests: WaitingRequests::default(),
            reads: Reads::default(),
            changes: MembershipChanges::default(),
            pending_snapshot: None,
            new_base: None,
            incoming: None,
            arrived: None,
            outgoing: BTreeMap::new(),
            outbox: BTreeMap::new(),
            windows: BTreeMap::new(),
            last_heard_ns: BTreeMap::new(),
            is_unwanted: false,
            has_changed_members: false,
            next_tick_ns: now_ns,
            last_turn_ns: now_ns,
            present_since_ns: now_ns,
            quiet_until_ns: 0,
            led_term: None,
            dropped: Dropped::default(),
        };
        member.draw_election_ticks();
        match base {
            Some(base) => {
                member.recover(&base, &records)?;
                member.quiet_until_ns = now_ns + 2 * member.config.election_ticks as u64 * member.config.tick_ns;
            }
            None => member.keep_id()?,
        }
        Ok(member)
    }

    /// Restores its state from the contents of the disk.
    fn recover(&mut self, base: &[u8], records: &[Vec<u8>]) -> Result<(), MemberError> {
        let base = durable::read_base(base)?;
        if base.me.name != self.me.name {
            return Err(MemberError::OtherMember { found: base.me.name, asked: self.me.name.clone() });
        }
        let damaged = || MemberError::OtherRelease("its snapshot is malformed".into());
        let snapshot = if base.place.index == 0 {
            // It had been added, but had received nothing yet.
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
            match durable::read(record)? {
                Record::Entries(entries) => append(&mut log, &entries)?,
                Record::Promise(later) => promise = later,
            }
        }
        let last = raft::Storage::last_index(&log).unwrap_or(0);
        // Votes are counted by the last change of the members that is known to be committed. One that was two changes
        // behind could be elected beside another. A change is proposed once the one before is committed, so all but the
        // last of them are, though the commit index on the disk may be older.
        let changes = log.after(self.applied).filter(|entry| entry.get_entry_type() != EntryType::EntryNormal);
        let committed = changes.fold([0; 2], |[_, last], entry| [last, entry.index])[0];
        promise.commit = promise.commit.max(committed).min(last).max(self.applied);
        log.set_hard_state(promise.to_state());
        (self.me.id, self.has_kept_id) = (base.me.id, true);
        self.cluster = Some(base.cluster).filter(|cluster| *cluster != ClusterId::NONE);
        self.has_base = self.cluster.is_some();
        self.node = engine::start(&self.config, self.me.id, log, self.applied)?;
        Ok(())
    }

    /// Restores the replicated state from a snapshot.
    fn restore(&mut self, snapshot: &Snapshot) -> Result<(), MemberError> {
        let replicated: Replicated<'_> = durable::read(&snapshot.data)?;
        self.machine.restore(replicated.machine)?;
        self.sessions = replicated.sessions;
        self.members = replicated.members.into_iter().map(|member| (member.id, member)).collect();
        self.founding = Some(replicated.founding);
        self.applied = snapshot.get_metadata().index;
        self.pending_snapshot = None;
        self.requests.has_changed = true;
        Ok(())
    }

    /// Id, name and address of this member.
    pub fn me(&self) -> &MemberInfo {
        &self.me
    }

    /// The state machine, with the commands applied here so far.
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Addresses of the other members, as far as they are known.
    pub fn other_addresses(&self) -> impl Iterator<Item = &str> {
        self.members.values().filter(|member| member.id != self.me.id).map(|member| member.address.as_str())
    }

    /// Its term.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Index of the last entry applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// File of its log at whose end an incomplete write was cut off when it was opened, and the write's length in
    /// bytes. Nothing of it was acknowledged.
    pub fn truncated(&self) -> Option<(&str, u64)> {
        self.truncated.as_ref().map(|(file, len)| (file.as_str(), *len))
    }

    /// Messages dropped, by reason.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// When it needs its next turn, if nothing arrives earlier.
    pub fn next_turn_ns(&self) -> u64 {
        self.next_tick_ns
    }

    fn election_ns(&self) -> u64 {
        self.config.election_ticks as u64 * self.config.tick_ns
    }

    /// Draws the silence of a leader after which this member asks for votes. It is at least a tick more than the
    /// silence after which the others vote, since their ticks may lag ours by that much.
    fn draw_election_ticks(&mut self) {
        let ticks = self.patience.ticks();
        self.election_ticks_drawn = ticks + 1 + (self.random.next_u64() % ticks as u64) as usize;
    }

    /// Draws the pause before this member asks for votes again. It is shorter, since no leader can still be heard.
    fn draw_campaign_pause(&mut self) {
        let least = self.patience.ticks().div_ceil(2);
        self.election_ticks_drawn = least + (self.random.next_u64() % (least as u64 + 1)) as usize;
    }

    /// Draws again if the patience has changed, except in the pause between two campaigns.
    fn redraw_election_ticks(&mut self, has_changed: bool) {
        if has_changed && !self.has_campaigned {
            self.draw_election_ticks();
        }
    }

    /// Whether a member, while alive, sends messages regularly to this one: a follower's leader does, and so do the
    /// voters that follow a leader.
    fn is_expected(&self, member: MemberId) -> bool {
        is_expected(&self.node, member)
    }

    fn tick_patience(&mut self) {
        let has_changed = self.patience.tick(|member| is_expected(&self.node, member));
        self.redraw_election_ticks(has_changed);
        if self.is_leader() {
            self.tick_leader();
        }
    }

    /// By itself, the engine's leader steps down when it has not heard from a majority for an election time-out, and
    /// gives up a hand-over then, too. Here it steps down once its patience has passed; a hand-over still ends after an
    /// election time-out.
    fn tick_leader(&mut self) {
        let raft = &mut self.node.raft;
        if self.unchecked_ticks.0 != raft.term {
            self.unchecked_ticks = (raft.term, 0);
        }
        self.unchecked_ticks.1 += 1;
        let is_due = self.unchecked_ticks.1 >= self.patience.ticks();
        raft.election_elapsed = if is_due { self.config.election_ticks } else { 0 };
        if is_due {
            self.unchecked_ticks.1 = 0;
        }
        self.hand_over_ticks = if raft.lead_transferee.is_some() { self.hand_over_ticks + 1 } else { 0 };
        if self.hand_over_ticks > self.config.election_ticks {
            raft.abort_leader_transfer();
        }
    }

    fn leader(&self) -> Option<&MemberInfo> {
        self.members.get(&MemberId(self.node.raft.leader_id))
    }

    /// Does what is due: ticks, and everything that follows from the input since the last turn. Returns whether
    /// anything happened.
    ///
    /// # Errors
    ///
    /// [`MemberError`], after which it can do no more. What it acknowledged lies on its disk, or with a majority.
    pub fn turn(&mut self, now_ns: u64, transport: &mut impl Transport) -> Result<bool, MemberError> {
        if self.was_away(now_ns) {
            self.present_since_ns = now_ns;
        }
        self.last_turn_ns = now_ns;
        let ticked = self.tick(now_ns, transport)?;
        self.reads.begin(&mut self.node, &self.config, now_ns);
        let busy = self.process_ready(transport)?;
        let has_more = self.send(transport);
        self.send_pieces(now_ns, transport);
        self.update_leadership();
        let has_watches = self.requests.answer_watches(&self.machine, &self.config, now_ns);
        // From here to the next turn, searches count towards the limit of requests that are answered as they come.
        self.requests.begin_search();
        Ok(busy || ticked || has_more || has_watches)
    }

    fn tick(&mut self, now_ns: u64, transport: &mut impl Transport) -> Result<bool, MemberError> {
        if now_ns < self.next_tick_ns {
            return Ok(false);
        }
        // A member that was stopped, or whose last turn took long, has not heard the others; it must first process what
        // they sent meanwhile. So only one tick passes, however late it is, and all silence is counted in ticks.
        self.next_tick_ns = (self.next_tick_ns + self.config.tick_ns).max(now_ns + self.config.tick_ns / 2);
        if self.cluster.is_none() {
            self.find_peers(now_ns, transport)?;
            return Ok(true);
        }
        self.tick_patience();
        self.node.mut_store().allow_dropping(self.config.snapshot_step_len as u64);
        self.node.tick();
        // With a leader found, the short pause between campaigns is over: a member that kept it would ask for votes
        // while the others still refuse them.
        if self.has_campaigned && self.node.raft.leader_id != raft::INVALID_ID {
            self.has_campaigned = false;
            self.draw_election_ticks();
        }
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader
            && raft.election_elapsed >= self.election_ticks_drawn
            && now_ns >= self.quiet_until_ns
        {
            if raft.promotable() && self.can_promise() {
                self.node.raft.election_elapsed = 0;
                // It fails only if this member already leads, or has a change still to apply.
                let _ = self.node.campaign();
                self.has_campaigned = true;
                self.draw_campaign_pause();
            } else {
                self.draw_election_ticks();
            }
        }
        self.continue_membership_change(now_ns, transport);
        Ok(true)
    }

    /// Lets the engine do what it can, and carries out the results.
    fn process_ready(&mut self, transport: &mut impl Transport) -> Result<bool, MemberError> {
        let (mut busy, before) = (false, self.applied);
        let stored = self.take_arrived()?;
        // A member that is behind must not be silent until it has applied everything.
        while self.node.has_ready() && self.applied - before < APPLIED_MAX {
            if !self.has_base {
                self.replace_journal()?;
            }
            // The engine adds entries of its own, such as that which ends a change of the members. A new journal may
            // have no room for them on a full disk. The member then sends nothing until there is room.
            if !self.node.raft.raft_log.unstable_entries().is_empty() && !self.can_promise() {
                self.node.raft.msgs.clear();
                break;
            }
            busy = true;
            let mut ready = self.node.ready();
            self.collect_messages(ready.take_messages());
            if !ready.snapshot().is_empty() {
                self.install(ready.snapshot().clone())?;
            }
            // The commit index can be found out again; a promise cannot.
            let promise = ready.hs().filter(|_| ready.must_sync()).map(Promise::of);
            self.journal_entries(ready.entries(), promise.filter(|promise| stored != Some(*promise)));
            self.unwritten = (0, 0);
            if let Some(state) = ready.hs() {
                self.node.mut_store().set_hard_state(state.clone());
            }
            if ready.must_sync() && self.journal.is_some() {
                // The others can write while this member does.
                self.send(transport);
                transport.flush();
                if let Some(journal) = &mut self.journal {
                    journal.sync()?;
                }
            }
            self.collect_messages(ready.take_persisted_messages());
            self.reads.on_confirmed(ready.take_read_states());
            let committed = ready.take_committed_entries();
            // What is applied may remove this member. Before that, the engine must note what its leader has written.
            let mut light = self.node.advance_append(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().set_commit(commit);
            }
            self.collect_messages(light.take_messages());
            self.apply(&committed)?;
            let committed = light.take_committed_entries();
            self.apply(&committed)?;
            self.node.advance_apply();
        }
        self.keep_change()?;
        busy |= self.answer_reads();
        busy |= self.compact_in_steps()?;
        Ok(busy)
    }

    fn collect_messages(&mut self, messages: Vec<Message>) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.begin_pieces(message);
                continue;
            }
            let log = &self.node.raft.raft_log;
            let Some(message) = appends::mend(message, |index| log.term(index).ok()) else { continue };
            let outbox = self.outbox.entry(MemberId(message.to)).or_default();
            appends::split(message, self.config.append_len_max, |part| outbox.push(part));
        }
    }

    /// Makes a restart know that a change of the members was committed, if one was applied. Without that, it would
    /// count the votes of the members before the change, of which most may be gone.
    fn keep_change(&mut self) -> Result<(), MemberError> {
        // On a full disk this is tried again in the next turn.
        if self.has_changed_members && self.can_promise() {
            let promise = Promise::of(self.node.store().hard_state());
            self.journal_entries(&[], Some(promise));
            if let Some(journal) = &mut self.journal {
                journal.sync()?;
            }
            self.has_changed_members = false;
        }
        Ok(())
    }

    /// Sends what was gathered, to each member in one message of bounded length. Returns whether there is more.
    fn send(&mut self, transport: &mut impl Transport) -> bool {
        let Some(cluster) = self.cluster else {
            self.outbox.clear();
            return false;
        };
        let (mut has_more, leads) = (false, self.is_leader());
        for (to, messages) in &mut self.outbox {
            if messages.is_empty() {
                continue;
            }
            let mut held = Vec::new();
            let is_heartbeat = messages.iter().any(|message| message.get_msg_type() == MessageType::MsgHeartbeat);
            let mut window = leads.then(|| self.windows.entry(*to).or_default());
            if let Some(window) = &mut window {
                window.expire(self.last_turn_ns);
                if !window.is_empty() {
                    let progress = self.node.raft.prs().get(to.0);
                    if progress.is_some_and(|progress| progress.state == ProgressState::Probe) {
                        // The engine sends these entries again and again until the first answer.
                        messages.retain(|message| !window::has_entries(message));
                    } else if window.len() >= self.config.appends_len_max {
                        // Even without entries, one would come before those that it follows, and be refused.
                        held.extend(
                            messages.extract_if(.., |message| message.get_msg_type() == MessageType::MsgAppend),
                        );
                    }
                    if is_heartbeat && let Some(last) = window.next_question(self.last_turn_ns) {
                        messages.extend(engine::question(&self.node, *to, last));
                    }
                }
            }
            if messages.is_empty() {
                *messages = held;
                continue;
            }
            let count = appends::count_within(messages, self.config.append_len_max);
            if let Some(window) = window {
                messages[..count].iter().for_each(|message| window.note_sent(message, self.last_turn_ns));
            }
            let wire_messages = messages[..count].iter().filter_map(WireMessage::from_message).collect();
            let message = PeerMessage::Messages { cluster, from: self.me.id, to: *to, messages: wire_messages };
            let address = self.members.get(to).map(|member| member.address.as_str());
            transport.send(Receiver::Member(*to, address), &message);
            drop(message);
            messages.drain(..count);
            has_more |= !messages.is_empty();
            messages.append(&mut held);
        }
        let members = &self.members;
        self.outbox.retain(|to, _| members.contains_key(to));
        if leads {
            self.windows.retain(|to, _| members.contains_key(to));
        }
        has_more
    }

    /// Replaces the state and the log by a snapshot of the leader's, with which the journal begins already.
    fn install(&mut self, snapshot: Snapshot) -> Result<(), MemberError> {
        self.restore(&snapshot)?;
        self.node.mut_store().install(snapshot);
        Ok(())
    }

    /// Turns away requests that wait for a term that has ended. A term may begin and end within one turn.
    fn update_leadership(&mut self) {
        let leads = self.is_leader().then_some(self.node.raft.term);
        if self.led_term != leads {
            self.windows.clear();
        }
        if leads.is_none() || self.led_term.is_some_and(|led| leads != Some(led)) {
            self.reads.drop_lease();
            if self.led_term.is_some() {
                // Followers would take them for signs of life of their leader.
                self.outbox
                    .values_mut()
                    .for_each(|messages| messages.retain(|message| !appends::is_of_leader(message)));
            }
            if self.requests.awaits_log() || !self.reads.is_idle() || !self.changes.is_idle() {
                let elsewhere = self.redirect();
                self.requests.redirect_all(&elsewhere);
                self.reads.redirect_all(&mut self.requests, &elsewhere);
                self.changes.redirect_all(&mut self.requests, &elsewhere);
            }
        }
        self.led_term = leads;
    }

    /// Whether the last turn began longer than an election time-out ago: it took long, or the member was stopped.
    fn was_away(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_turn_ns) > self.election_ns()
    }

    /// Names of members that have been silent for two election time-outs. If this member was away in that time, it
    /// knows of none: what they said meanwhile may still wait for it.
    fn silent(&self, now_ns: u64) -> BTreeSet<&str> {
        let since = now_ns.saturating_sub(2 * self.election_ns());
        if self.was_away(now_ns) || self.present_since_ns > since {
            return BTreeSet::new();
        }
        let is_silent =
            |id: &MemberId| *id != self.me.id && self.last_heard_ns.get(id).is_none_or(|heard| *heard < since);
        let (silent, heard): (Vec<_>, Vec<_>) = self.members.values().partition(|member| is_silent(&member.id));
        // A name may have two lives, while a member is replaced.
        let heard: BTreeSet<_> = heard.into_iter().map(|member| member.name.as_str()).collect();
        silent.into_iter().map(|member| member.name.as_str()).filter(|name| !heard.contains(name)).collect()
    }
}

fn is_expected(node: &RawNode<Log>, member: MemberId) -> bool {
    let raft = &node.raft;
    match raft.state {
        StateRole::Leader => raft.prs().conf().voters().contains(member.0),
        _ => raft.leader_id == member.0,
    }
}

/// Appends entries from a disk to the log.
fn append(log: &mut Log, entries: &[WireEntry<'_>]) -> Result<(), MemberError> {
    let mut taken = Vec::with_capacity(entries.len());
    for entry in entries {
        let last = taken.last().map_or_else(|| raft::Storage::last_index(log).unwrap_or(0), |last: &Entry| last.index);
        let first = raft::Storage::first_index(log).unwrap_or(0);
        let follows =
            if taken.is_empty() { (first..=last + 1).contains(&entry.index) } else { entry.index == last + 1 };
        let entry = entry.to_entry().filter(|_| follows);
        let invalid = || MemberError::Engine(format!("the entry after index {last} is invalid or out of order"));
        taken.push(entry.ok_or_else(invalid)?);
    }
    log.append(&taken);
    Ok(())
}

/// Most members that may found a cluster. Each may have a successor beside it while it is replaced.
const PEERS_MAX: usize = crate::wire::MEMBERS_MAX / 2;

/// Checks the name of a member and the names and addresses of all, as [`Member::open`] does. Returns its own address.
///
/// # Errors
///
/// [`MemberError::Arguments`].
pub fn check_peers<'a>(name: &str, peers: &'a [(String, String)]) -> Result<&'a str, MemberError> {
    let names: BTreeSet<_> = peers.iter().map(|(name, _)| name).collect();
    let wrong = |what: String| Err(MemberError::Arguments(what));
    if names.len() != peers.len() {
        return wrong("two peers have one name: give each a name of its own".into());
    }
    if peers.len() > PEERS_MAX {
        return wrong(format!(
            "{} peers, and at most {PEERS_MAX} are possible: name three, five or seven",
            peers.len()
        ));
    }
    for (at, (name, address)) in peers.iter().enumerate() {
        if let Some((other, _)) = peers[..at].iter().find(|(_, other)| other == address) {
            return wrong(format!("{other} and {name} have one address, {address}: give each an address of its own"));
        }
        let info = MemberInfo { id: MemberId(1), name: name.clone(), address: address.clone() };
        if !info.is_valid() {
            return wrong(format!("peer {name:?} at {address:?}: a name has 1 to 64 bytes, an address 1 to 256"));
        }
    }
    match peers.iter().find(|(peer, _)| peer == name) {
        Some((_, address)) => Ok(address),
        None => wrong(format!("{name} is not among the peers: give its own address, too ({name}=ADDRESS)")),
    }
}

#[cfg(test)]
mod tests;
