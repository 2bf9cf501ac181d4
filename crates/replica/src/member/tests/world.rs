//! Members, a network and clients in virtual time that tests advance. A message takes one step, unless it is cut off or
//! the network delays messages.

use std::collections::{BTreeMap, BTreeSet};

use sinew_fabric::SeededGenerator;
use sinew_journal::disk::{Fault, SimDisk};

use super::super::*;
use crate::client_wire::{Answer, ClientRequest, Freshness, Status};
use crate::kv::{Command, CommandResult, KvStore, Query, QueryResult};
use crate::wire::{self, PieceId};

pub const STEP_NS: u64 = 500_000;

pub type Kv = Member<KvStore, SimDisk>;

struct Sent {
    to: Option<MemberId>,
    address: Option<String>,
    bytes: Vec<u8>,
    piece: Option<PieceId>,
    /// Whether it left before the member wrote to its disk.
    is_flushed: bool,
}

#[derive(Default)]
pub struct Outbox(Vec<Sent>);

impl Transport for Outbox {
    fn send(&mut self, to: Receiver<'_>, say: &PeerMessage<'_>) {
        let (to, address) = match to {
            Receiver::Member(to, address) => (Some(to), address.map(str::to_owned)),
            Receiver::Address(address) => (None, Some(address.to_owned())),
        };
        self.0.push(Sent { to, address, bytes: to_bytes(say), piece: say.piece_id(), is_flushed: false });
    }

    fn flush(&mut self) {
        self.0.iter_mut().for_each(|sent| sent.is_flushed = true);
    }
}

/// The node that made a call, and its life at that time.
#[derive(Clone, Copy)]
struct Caller {
    at: usize,
    life: u64,
}

/// What arrives at a node.
enum Parcel {
    Call { caller: Caller, sent: Sent },
    Answer { from: Option<MemberId>, piece: Option<PieceId>, bytes: Vec<u8> },
    Request { ticket: u64, bytes: Vec<u8> },
}

/// What a member's turn produced, besides what it sent by itself.
#[derive(Default)]
struct Produced {
    outbox: Outbox,
    calls: Vec<(Caller, Sent, PeerAnswer<'static>)>,
    replies: Vec<(u64, Vec<u8>)>,
}

pub struct Node {
    pub name: String,
    pub member: Option<Kv>,
    pub disk: Option<SimDisk>,
    pub error: Option<MemberError>,
    /// How much faster its clock runs than the world's.
    pub drift_ppm: i64,
    /// Time until which it does not run, and what arrives waits.
    pub away_until_ns: u64,
    /// Time that a turn takes in which it writes to its disk, beyond the step.
    pub write_ns: u64,
    /// Whether its disk has no room, also after a restart.
    pub is_full: bool,
    /// Id of the member that runs here, or that would continue if it were started.
    pub id: Option<MemberId>,
    /// Time that messages to it take, beyond the step.
    pub latency_ns: u64,
    /// Bytes of the calls that were sent to it.
    pub called_len: usize,
    /// Number of times that the member here has ended.
    life: u64,
    /// What is on its way to it, with the time at which it arrives.
    inbox: Vec<(u64, Parcel)>,
    answers: BTreeMap<u64, Vec<u8>>,
    /// Tickets of clients' requests that wait for answers, by the member's numbers.
    tickets: BTreeMap<u64, u64>,
}

impl Node {
    /// Hands the member what has arrived, and gives it a turn.
    fn run(&mut self, arrived: Vec<Parcel>, now_ns: u64, produced: &mut Produced) -> Result<(), MemberError> {
        let Some(member) = &mut self.member else { return Ok(()) };
        for parcel in arrived {
            match parcel {
                Parcel::Call { caller, sent } => {
                    let answer = member.handle_peer(&sent.bytes, now_ns)?;
                    produced.calls.push((caller, sent, answer));
                }
                Parcel::Answer { from, piece, bytes } => member.handle_answer(from, piece, &bytes, now_ns)?,
                Parcel::Request { ticket, bytes } => match member.handle_client(&bytes, now_ns) {
                    Accepted::Answer(answer) => produced.replies.push((ticket, answer)),
                    Accepted::Deferred(held) => _ = self.tickets.insert(held, ticket),
                },
            }
        }
        let was_replacing = member.is_replacing_journal();
        member.turn(now_ns, &mut produced.outbox)?;
        if was_replacing && !member.is_replacing_journal() {
            check_journal(member, self.disk.as_ref().expect("a journal has a disk"));
        }
        member.take_answers(|held, answer| match self.tickets.remove(&held) {
            Some(ticket) => produced.replies.push((ticket, answer.to_vec())),
            None => _ = self.answers.insert(held, answer.to_vec()),
        });
        Ok(())
    }

    /// Ends the member without a crash of its disk.
    fn end(&mut self) {
        self.member = None;
        self.life += 1;
        self.inbox.clear();
        self.answers.clear();
        self.tickets.clear();
    }

    fn writes(&self) -> u64 {
        self.disk.as_ref().map_or(0, SimDisk::writes)
    }
}

pub struct World {
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    pub config: MemberConfig,
    pub peers: Vec<(String, String)>,
    /// Pairs of sender and receiver between which nothing gets through.
    pub cut: BTreeSet<(usize, usize)>,
    /// Members that do not run, and for which messages wait.
    pub stopped: BTreeSet<usize>,
    /// Draws how late each message arrives, if any are to be late.
    pub delays: Option<SeededGenerator>,
    /// Answers to clients that were sent by [`Self::submit`], with the times at which they arrive.
    replies: BTreeMap<u64, (u64, Vec<u8>)>,
    tickets: u64,
    seed: u64,
}

fn to_bytes(say: &PeerMessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::to_bytes(say, &mut bytes);
    bytes
}

pub fn address(name: &str) -> String {
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
    let place = |member: &Kv| member.node.store().latest_snapshot().get_metadata().index;
    // Without room for a new journal, the old one goes on.
    assert!(place(&found) == place(member) || member.is_full && place(&found) < place(member));
    let state = |of: &Kv| {
        let log = of.node.store();
        let entries = log.after(place(member)).map(|entry| (entry.index, entry.term, entry.data.clone()));
        (log.hard_state().term, log.hard_state().vote, entries.collect::<Vec<_>>())
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
            delays: None,
            replies: BTreeMap::new(),
            tickets: 0,
            seed,
        };
        for name in names {
            world.add_node(&name, on_disk);
        }
        world
    }

    pub fn add_node(&mut self, name: &str, on_disk: bool) -> usize {
        self.nodes.push(Node {
            name: name.to_owned(),
            member: None,
            disk: on_disk.then(SimDisk::new),
            error: None,
            drift_ppm: 0,
            away_until_ns: 0,
            write_ns: 0,
            is_full: false,
            id: None,
            latency_ns: 0,
            called_len: 0,
            life: 0,
            inbox: Vec::new(),
            answers: BTreeMap::new(),
            tickets: BTreeMap::new(),
        });
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
            Ok(member) => (place.id, place.member) = (Some(member.me().id), Some(member)),
            Err(error) => place.error = Some(error),
        }
    }

    pub fn crash(&mut self, at: usize) {
        self.seed += 1;
        let place = &mut self.nodes[at];
        place.end();
        if let Some(disk) = &place.disk {
            disk.crash(self.seed);
        }
        self.set_full(at, self.nodes[at].is_full);
    }

    /// Lets a member start again with no memory and an empty disk.
    pub fn replace(&mut self, at: usize) {
        self.crash(at);
        let place = &mut self.nodes[at];
        place.disk = place.disk.is_some().then(SimDisk::new);
        place.is_full = false;
        self.start(at);
    }

    /// Adds a later life of a member as a learner. Returns the member's name and its earlier life, which has not ended.
    pub fn add_later_life(&mut self, at: usize) -> (String, Kv) {
        let earlier = self.nodes[at].member.take().expect("the member is running");
        self.start(at);
        // The leader must not have heard from the earlier life lately.
        self.run_ms(1000);
        let name = self.nodes[at].name.clone();
        let add = ClientRequest::Add { name: name.clone(), address: address(&name), learner: true };
        assert_eq!(wire::decode(&self.ask_leader(&add)), Ok(Answer::Done));
        (name, earlier)
    }

    /// Takes all room from a member's disk, or gives it back.
    pub fn set_full(&mut self, at: usize, is_full: bool) {
        let place = &mut self.nodes[at];
        let Some(disk) = &place.disk else { return };
        if is_full {
            disk.fail_at(1, Fault::Full);
        } else if place.is_full {
            disk.heal();
        }
        place.is_full = is_full;
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
        for at in 0..self.nodes.len() {
            if !self.stopped.contains(&at) && self.nodes[at].away_until_ns <= self.now_ns {
                self.turn(at);
            }
        }
    }

    fn turn(&mut self, at: usize) {
        let (now_ns, arrives_ns) = (self.local_ns(at), self.now_ns);
        let place = &mut self.nodes[at];
        if place.member.is_none() {
            return;
        }
        let arrived = place.inbox.extract_if(.., |(due_ns, _)| *due_ns <= arrives_ns).map(|(_, parcel)| parcel);
        let arrived = arrived.collect();
        let writes = place.writes();
        let mut produced = Produced::default();
        let ended = place.run(arrived, now_ns, &mut produced);
        // A process that has died at a write does nothing more, even if that write's outcome would not have mattered.
        let has_crashed = place.disk.as_ref().is_some_and(SimDisk::has_crashed);
        if has_crashed || ended.is_err() {
            // Only what it had sent out leaves it.
            produced.outbox.0.retain(|sent| sent.is_flushed);
            (produced.calls, produced.replies) = Default::default();
            place.end();
            place.error = ended.err().filter(|_| !has_crashed);
            if has_crashed {
                self.crash(at);
            }
        }
        let place = &mut self.nodes[at];
        let took_ns = if place.writes() > writes { place.write_ns } else { 0 };
        place.away_until_ns = place.away_until_ns.max(arrives_ns + took_ns);
        self.deliver(at, produced, took_ns);
    }

    /// Sends on what a turn produced. What was not flushed before its writes leaves after them.
    fn deliver(&mut self, at: usize, produced: Produced, took_ns: u64) {
        let Produced { mut outbox, calls, replies } = produced;
        for (caller, call, answer) in calls {
            // What the turn sends to the caller is the answer.
            let found = match answer {
                PeerAnswer::AtEndOfTurn(id) => {
                    outbox.0.iter().position(|sent| sent.to == Some(id) && sent.piece.is_none())
                }
                PeerAnswer::Now(_) => None,
            };
            let (bytes, is_flushed) = match (answer, found) {
                (_, Some(found)) => {
                    let sent = outbox.0.remove(found);
                    (sent.bytes, sent.is_flushed)
                }
                (PeerAnswer::Now(say), None) => (to_bytes(&say), true),
                (PeerAnswer::AtEndOfTurn(_), None) => (to_bytes(&PeerMessage::Nothing), false),
            };
            if !self.cut.contains(&(at, caller.at)) && self.nodes[caller.at].life == caller.life {
                let answer = Parcel::Answer { from: call.to, piece: call.piece, bytes };
                self.post(caller.at, if is_flushed { 0 } else { took_ns }, answer);
            }
        }
        let caller = Caller { at, life: self.nodes[at].life };
        for sent in outbox.0 {
            match self.node_of(&sent) {
                Some(to) if !self.cut.contains(&(at, to)) && self.nodes[to].member.is_some() => {
                    self.post(to, if sent.is_flushed { 0 } else { took_ns }, Parcel::Call { caller, sent });
                }
                _ => {
                    if let Some(member) = &mut self.nodes[at].member {
                        member.call_failed(sent.to, sent.piece);
                    }
                }
            }
        }
        for (ticket, answer) in replies {
            let due_ns = self.now_ns + took_ns + self.delay_ns();
            self.replies.insert(ticket, (due_ns, answer));
        }
    }

    fn post(&mut self, to: usize, took_ns: u64, parcel: Parcel) {
        let due_ns = self.now_ns + took_ns + self.delay_ns() + self.nodes[to].latency_ns;
        if let Parcel::Call { sent, .. } = &parcel {
            self.nodes[to].called_len += sent.bytes.len();
        }
        self.nodes[to].inbox.push((due_ns, parcel));
    }

    /// Draws how late a message arrives: most are on time, some a little late, and a few very late.
    fn delay_ns(&mut self) -> u64 {
        let Some(random) = &mut self.delays else { return 0 };
        let word = random.next_u64();
        let steps = match word % 64 {
            0 => (word >> 32) % 200,
            1..8 => (word >> 32) % 10,
            _ => 0,
        };
        steps * STEP_NS
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

    /// Sends a client's request over the network, to a member that is running. Returns its ticket.
    pub fn submit(&mut self, at: usize, ask: &ClientRequest<'_>) -> Option<u64> {
        self.nodes[at].member.as_ref()?;
        let mut bytes = Vec::new();
        wire::encode(ask, &mut bytes);
        self.tickets += 1;
        self.post(at, 0, Parcel::Request { ticket: self.tickets, bytes });
        Some(self.tickets)
    }

    /// Takes the answer to a request that was sent over the network.
    pub fn reply(&mut self, ticket: u64) -> Option<Vec<u8>> {
        let has_arrived = self.replies.get(&ticket).is_some_and(|(due_ns, _)| *due_ns <= self.now_ns);
        has_arrived.then(|| self.replies.remove(&ticket)).flatten().map(|(_, answer)| answer)
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
