//! Members, a network and clients in virtual time that tests advance: a message takes one step, unless it is cut off.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sinew_fabric::SeededGenerator;
use sinew_journal::disk::SimDisk;

use super::super::*;
use crate::client_wire::{Answer, ClientRequest, Freshness, Status};
use crate::kv::{Command, CommandResult, KvStore, Query, QueryResult};
use crate::wire::{self, PieceId};

pub const STEP_NS: u64 = 500_000;

type Kv = Member<KvStore, SimDisk>;

struct Sent {
    to: Option<MemberId>,
    address: Option<String>,
    bytes: Vec<u8>,
    piece: Option<PieceId>,
}

/// A call: the caller, the receiver, whether it was a piece, and the answer if there is one already.
type CallOutcome = (usize, Option<MemberId>, Option<PieceId>, Option<Vec<u8>>);

#[derive(Default)]
struct Outbox(Vec<Sent>);

impl Transport for Outbox {
    fn send(&mut self, to: Receiver<'_>, say: &PeerMessage<'_>) {
        let mut bytes = Vec::new();
        wire::to_bytes(say, &mut bytes);
        let (to, address) = match to {
            Receiver::Member(to, address) => (Some(to), address.map(str::to_owned)),
            Receiver::Address(address) => (None, Some(address.to_owned())),
        };
        self.0.push(Sent { to, address, bytes, piece: say.piece_id() });
    }

    fn flush(&mut self) {}
}

pub struct Node {
    pub name: String,
    pub member: Option<Kv>,
    pub disk: Option<SimDisk>,
    pub error: Option<MemberError>,
    /// How much faster its clock runs than the world's.
    pub drift_ppm: i64,
    inbox: VecDeque<(usize, Sent)>,
    answers: BTreeMap<u64, Vec<u8>>,
}

pub struct World {
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    pub config: MemberConfig,
    peers: Vec<(String, String)>,
    /// Pairs of sender and receiver between which nothing gets through.
    pub cut: BTreeSet<(usize, usize)>,
    /// Members that do not run, and for which messages wait.
    pub stopped: BTreeSet<usize>,
    seed: u64,
}

fn address(name: &str) -> String {
    format!("sim://{name}")
}

/// Checks that a member would go on from its journal as it is.
pub fn check_journal(member: &Kv, disk: &SimDisk) {
    let history = sinew_journal::Journal::read(disk.clone()).expect("the journal is whole");
    let (config, me) = (member.config.clone(), member.me.clone());
    let random = Box::new(SeededGenerator::new(0));
    let mut found: Kv =
        Member::open(config, &me.name, vec![(me.name.clone(), me.address)], KvStore::new(), None, random, 0).unwrap();
    found.recover(&history.snapshot.expect("there is a base"), &history.records).unwrap();
    let state = |member: &Kv| {
        let log = member.node.store();
        let after = log.latest_snapshot().get_metadata().index;
        let entries: Vec<_> = log.after(after).map(|entry| (entry.index, entry.term, entry.data.clone())).collect();
        (after, log.hard_state().term, log.hard_state().vote, entries)
    };
    assert_eq!(state(member), state(&found));
}

impl World {
    pub fn new(members: usize, on_disk: bool, seed: u64) -> Self {
        let names: Vec<String> = (0..members).map(|index| char::from(b'a' + index as u8).to_string()).collect();
        let peers: Vec<_> = names.iter().map(|name| (name.clone(), address(name))).collect();
        let mut world = Self {
            now_ns: 1_000_000_000,
            nodes: Vec::new(),
            config: MemberConfig::default(),
            peers,
            cut: BTreeSet::new(),
            stopped: BTreeSet::new(),
            seed,
        };
        for name in names {
            world.add_node(&name, on_disk);
        }
        world
    }

    pub fn add_node(&mut self, name: &str, on_disk: bool) -> usize {
        let disk = on_disk.then(SimDisk::new);
        let name = name.to_owned();
        let (inbox, answers) = Default::default();
        self.nodes.push(Node { name, member: None, disk, error: None, drift_ppm: 0, inbox, answers });
        let at = self.nodes.len() - 1;
        self.start(at);
        at
    }

    /// Time of a member's own clock.
    fn local_ns(&self, at: usize) -> u64 {
        let ahead = self.now_ns as i64 / 1_000_000 * self.nodes[at].drift_ppm;
        self.now_ns.saturating_add_signed(ahead)
    }

    /// Starts a member with the same command as before.
    pub fn start(&mut self, at: usize) {
        self.seed += 1;
        let now_ns = self.local_ns(at);
        let place = &mut self.nodes[at];
        let mut peers = self.peers.clone();
        if !peers.iter().any(|(name, _)| *name == place.name) {
            peers.push((place.name.clone(), address(&place.name)));
        }
        let random = Box::new(SeededGenerator::new(self.seed));
        let disk = place.disk.clone();
        match Member::open(self.config.clone(), &place.name, peers, KvStore::new(), disk, random, now_ns) {
            Ok(member) => place.member = Some(member),
            Err(error) => place.error = Some(error),
        }
    }

    pub fn crash(&mut self, at: usize) {
        self.seed += 1;
        let place = &mut self.nodes[at];
        place.member = None;
        place.inbox.clear();
        place.answers.clear();
        if let Some(disk) = &place.disk {
            disk.crash(self.seed);
        }
    }

    pub fn member(&mut self, at: usize) -> &mut Kv {
        self.nodes[at].member.as_mut().expect("the member is running")
    }

    /// Cuts these members off from all others.
    pub fn isolate(&mut self, apart: &[usize]) {
        for one in 0..self.nodes.len() {
            for other in 0..self.nodes.len() {
                if apart.contains(&one) != apart.contains(&other) {
                    self.cut.insert((one, other));
                }
            }
        }
    }

    fn node_of(&self, sent: &Sent) -> Option<usize> {
        self.nodes.iter().position(|place| sent.address.as_deref() == Some(&address(&place.name)))
    }

    /// Advances the time by half a millisecond.
    pub fn step(&mut self) {
        self.now_ns += STEP_NS;
        for at in (0..self.nodes.len()).filter(|at| !self.stopped.contains(at)).collect::<Vec<_>>() {
            self.turn(at);
        }
    }

    fn turn(&mut self, at: usize) {
        let now_ns = self.local_ns(at);
        let place = &mut self.nodes[at];
        let Some(member) = &mut place.member else { return };
        let mut calls: Vec<CallOutcome> = Vec::new();
        let mut failed = None;
        for (from, sent) in place.inbox.drain(..) {
            match member.handle_peer(&sent.bytes, now_ns) {
                Ok(PeerAnswer::Now(say)) => {
                    let mut bytes = Vec::new();
                    wire::to_bytes(&say, &mut bytes);
                    calls.push((from, sent.to, sent.piece, Some(bytes)));
                }
                // The answer is what the turn sends to the caller; it is found below.
                Ok(PeerAnswer::AtEndOfTurn(_)) => calls.push((from, sent.to, sent.piece, None)),
                Err(error) => failed = Some(error),
            }
        }
        let mut outbox = Outbox::default();
        let was_replacing = member.is_replacing_journal();
        match member.turn(now_ns, &mut outbox) {
            Err(error) => failed = Some(error),
            Ok(_) if was_replacing && !member.is_replacing_journal() => {
                check_journal(member, place.disk.as_ref().expect("a journal has a disk"));
            }
            Ok(_) => {}
        }
        member.take_answers(|held, answer| drop(place.answers.insert(held, answer.to_vec())));
        if failed.is_some() {
            place.error = failed;
            place.member = None;
        }
        let id_of = |world: &Self, at: usize| world.nodes[at].member.as_ref().map(|member| member.me().id);
        for (from, to, piece, answer) in calls {
            let answer = answer.unwrap_or_else(|| {
                let found = outbox.0.iter().position(|sent| sent.to.is_some() && sent.to == id_of(self, from));
                found.map_or_else(
                    || {
                        let mut bytes = Vec::new();
                        wire::to_bytes(&PeerMessage::Nothing, &mut bytes);
                        bytes
                    },
                    |found| outbox.0.remove(found).bytes,
                )
            });
            if self.cut.contains(&(at, from)) {
                continue;
            }
            let now_ns = self.local_ns(from);
            if let Some(member) = &mut self.nodes[from].member
                && let Err(error) = member.handle_answer(to, piece, &answer, now_ns)
            {
                self.nodes[from].error = Some(error);
            }
        }
        for sent in outbox.0 {
            match self.node_of(&sent) {
                Some(to) if !self.cut.contains(&(at, to)) && self.nodes[to].member.is_some() => {
                    self.nodes[to].inbox.push_back((at, sent));
                }
                _ => {
                    if let Some(member) = &mut self.nodes[at].member {
                        member.call_failed(sent.to, sent.piece);
                    }
                }
            }
        }
    }

    pub fn run_ms(&mut self, ms: u64) {
        for _ in 0..ms * 1_000_000 / STEP_NS {
            self.step();
        }
    }

    /// Stops members for ever longer times, as another program does that runs in their place.
    pub fn delay(&mut self, late: &[usize]) {
        for late_ms in [16, 24, 30, 40, 50, 60, 60, 60] {
            self.stopped.extend(late);
            self.run_ms(late_ms);
            self.stopped.clear();
            self.run_ms(40);
        }
    }

    /// Steps until something holds.
    #[track_caller]
    pub fn run_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end_ns = self.now_ns + 10_000_000_000;
        while !holds(self) {
            assert!(self.now_ns < end_ns, "this never happened: {what}\n{}", self.describe());
            self.step();
        }
    }

    pub fn describe(&self) -> String {
        let states = self.nodes.iter().map(|place| match (&place.member, &place.error) {
            (Some(member), _) => format!("{}: {:?}", place.name, member.status(self.now_ns)),
            (None, error) => format!("{}: {error:?}", place.name),
        });
        states.collect::<Vec<_>>().join("\n")
    }

    /// The leader of the latest term.
    pub fn leader(&self) -> Option<usize> {
        let running = self.nodes.iter().enumerate().filter_map(|(at, place)| Some((at, place.member.as_ref()?)));
        running.filter(|(_, member)| member.is_leader()).max_by_key(|(_, member)| member.term()).map(|(at, _)| at)
    }

    #[track_caller]
    pub fn elect(&mut self) -> usize {
        self.run_until("a leader", |world| world.leader().is_some());
        self.leader().unwrap()
    }

    pub fn ask(&mut self, at: usize, ask: &ClientRequest<'_>) -> Option<Accepted> {
        let now_ns = self.local_ns(at);
        let mut bytes = Vec::new();
        wire::encode(ask, &mut bytes);
        Some(self.nodes[at].member.as_mut()?.handle_client(&bytes, now_ns))
    }

    /// Takes an answer that was held.
    pub fn answer(&mut self, at: usize, held: u64) -> Option<Vec<u8>> {
        self.nodes[at].answers.remove(&held)
    }

    /// Asks one member, and waits for the answer for up to `ms` milliseconds.
    pub fn call(&mut self, at: usize, ask: &ClientRequest<'_>, ms: u64) -> Option<Vec<u8>> {
        match self.ask(at, ask)? {
            Accepted::Answer(answer) => Some(answer),
            Accepted::Deferred(held) => {
                let end_ns = self.now_ns + ms * 1_000_000;
                while self.now_ns < end_ns {
                    self.step();
                    if let Some(answer) = self.answer(at, held) {
                        return Some(answer);
                    }
                }
                None
            }
        }
    }

    /// Asks the leader until there is an answer other than to ask elsewhere.
    #[track_caller]
    pub fn ask_leader(&mut self, ask: &ClientRequest<'_>) -> Vec<u8> {
        let end_ns = self.now_ns + 60_000_000_000;
        while self.now_ns < end_ns {
            let at = self.elect();
            if let Some(bytes) = self.call(at, ask, 200)
                && !matches!(wire::decode(&bytes), Ok(Answer::NotLeader { .. } | Answer::Busy))
            {
                return bytes;
            }
            self.step();
        }
        panic!("no answer to {ask:?}\n{}", self.describe())
    }

    #[track_caller]
    pub fn open(&mut self, nonce: u64) -> Session {
        let answer = self.ask_leader(&ClientRequest::Open { nonce });
        let Ok(Answer::Opened { session }) = wire::decode(&answer) else { panic!("{answer:?}") };
        Session { name: session, next: 0 }
    }

    #[track_caller]
    pub fn put(&mut self, session: &mut Session, key: &str, value: &str) -> u64 {
        let command = put(key, value);
        let answer = self.ask_leader(&session.run(&command));
        session.next += 1;
        let Ok(Answer::CommandAnswer(done)) = wire::decode(&answer) else {
            panic!("{:?}", wire::decode::<Answer<'_>>(&answer))
        };
        let Ok(CommandResult::Changed { revision }) = wire::decode(done) else { panic!("{done:?}") };
        revision
    }

    #[track_caller]
    pub fn get(&mut self, key: &str) -> Option<String> {
        let query = get(key);
        let answer = self.ask_leader(&ClientRequest::Read { freshness: Freshness::Linear, query: &query });
        found(&answer)
    }

    pub fn status(&mut self, at: usize) -> Status {
        let now_ns = self.now_ns;
        self.member(at).status(now_ns)
    }
}

pub struct Session {
    pub name: u64,
    pub next: u64,
}

impl Session {
    pub fn run<'a>(&self, command: &'a [u8]) -> ClientRequest<'a> {
        ClientRequest::Run { session: self.name, number: self.next, done_below: self.next, command }
    }
}

pub fn put(key: &str, value: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&Command::Put { key: key.as_bytes(), value: value.as_bytes() }, &mut bytes);
    bytes
}

pub fn get(key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&Query::Get { key: key.as_bytes() }, &mut bytes);
    bytes
}

#[track_caller]
pub fn found(answer: &[u8]) -> Option<String> {
    let Ok(Answer::QueryAnswer(found)) = wire::decode(answer) else {
        panic!("{:?}", wire::decode::<Answer<'_>>(answer))
    };
    let Ok(QueryResult::Item { item, .. }) = wire::decode(found) else { panic!("{found:?}") };
    item.map(|item| String::from_utf8_lossy(item.value).into_owned())
}
