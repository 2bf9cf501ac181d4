//! Nodes of a large cluster that die, are cut off, and come back (nsdi19 4.3, appendix B), in virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sinew_fabric::{Address, Clock, SeededGenerator};
use sinew_rpc::{Call, Cause, Config, Nexus, RequestType, Rpc, SessionEvent, SessionId};
use sinew_sim::{Actor, ActorId, ActorState, Cluster, HostId, Network, PortConfig, SimClock, SimPort, Topology};

const ECHO: RequestType = RequestType::new(1);
const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// Nodes, spread over the five racks of the CX4 cluster.
const NODES: usize = 60;
/// Time in ns between two calls of a node to the same other node.
const PERIOD_NS: u64 = 400 * US;
const PEER_TIMEOUT_NS: u64 = 4 * MS;

/// Observations of another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PeerRecord {
    connected: u64,
    answered: u64,
    failed: Vec<Cause>,
    lost: Vec<Cause>,
}

type Book = Rc<RefCell<BTreeMap<usize, PeerRecord>>>;

/// Serves all others, and calls each of them periodically.
struct Node {
    index: usize,
    rpc: Rpc<SimPort, SimClock>,
    clock: SimClock,
    sessions: BTreeMap<SessionId, usize>,
    absent: BTreeSet<usize>,
    next_ns: u64,
    book: Book,
}

impl Node {
    fn connect(&mut self, other: usize) {
        let address: Address = format!("sim://node{other}").parse().unwrap();
        match self.rpc.begin_connect(&address) {
            Ok(session) => {
                self.sessions.insert(session, other);
            }
            // Nobody has the name at present.
            Err(_) => {
                self.absent.insert(other);
            }
        }
    }

    fn note(&mut self, event: SessionEvent) {
        let (session, lost) = match event {
            SessionEvent::Connected(session) => {
                self.book.borrow_mut().entry(self.sessions[&session]).or_default().connected += 1;
                return;
            }
            SessionEvent::Lost { session, cause, .. } => (session, Some(cause)),
            SessionEvent::ConnectFailed { session, .. } => (session, None),
            SessionEvent::Disconnected(_) => return,
        };
        let other = self.sessions.remove(&session).unwrap();
        self.book.borrow_mut().entry(other).or_default().lost.extend(lost);
        self.connect(other);
    }

    fn call_all(&mut self) {
        std::mem::take(&mut self.absent).into_iter().for_each(|other| self.connect(other));
        for (session, other) in &self.sessions {
            let (mut request, response) = (self.rpc.alloc(8).unwrap(), self.rpc.alloc(8).unwrap());
            request.copy_from_slice(&(*other as u64).to_le_bytes());
            // The call is queued if the session is still opening.
            let _ = self.rpc.enqueue_request(*session, ECHO, request, response, *other as u64);
        }
    }
}

impl Actor for Node {
    fn turn(&mut self) -> ActorState {
        if self.sessions.is_empty() {
            // This is the first turn, and all others have their ports by now.
            let own = self.index;
            (0..NODES).filter(|other| *other != own).for_each(|other| self.connect(other));
        }
        while let Some(event) = self.rpc.poll_event() {
            self.note(event);
        }
        while let Some(completion) = self.rpc.poll_completion() {
            let mut book = self.book.borrow_mut();
            let seen = book.entry(completion.tag as usize).or_default();
            match completion.result {
                Ok(()) => {
                    assert_eq!(completion.response[..], completion.request[..], "an answer that is not this call's");
                    seen.answered += 1;
                }
                Err(error) => seen.failed.push(error.cause),
            }
        }
        let now_ns = self.clock.now_ns();
        if now_ns >= self.next_ns {
            self.next_ns += PERIOD_NS;
            self.call_all();
        }
        if self.rpc.turn() {
            return ActorState::Work;
        }
        let left_ns = self.next_ns.saturating_sub(now_ns).max(1);
        if self.rpc.wait(Some(left_ns)).unwrap() { ActorState::Idle } else { ActorState::Work }
    }
}

struct World {
    cluster: Cluster,
    nodes: Vec<(ActorId, Book)>,
}

impl World {
    /// Starts all nodes, and runs until all sessions are open.
    fn open() -> Self {
        let network = Network::new(Topology::cx4(), 7).unwrap();
        let mut world = Self { cluster: Cluster::new(&network), nodes: Vec::new() };
        for index in 0..NODES {
            let node = world.start(index);
            world.nodes.push(node);
        }
        world.pass(10 * MS);
        for (index, (_, book)) in world.nodes.iter().enumerate() {
            let book = book.borrow();
            assert_eq!(book.len(), NODES - 1, "node {index}");
            assert!(book.values().all(|seen| seen.connected == 1 && seen.answered > 0 && seen.failed.is_empty()));
        }
        world
    }

    fn start(&mut self, index: usize) -> (ActorId, Book) {
        let config = Config {
            slots: 32,
            peer_timeout_ns: PEER_TIMEOUT_NS,
            probe_interval_ns: MS,
            connect_timeout_ns: 8 * MS,
            connect_retry_ns: MS,
            ..Config::default()
        };
        let echo = |call: Call| {
            let request = call.request();
            call.reply(request)
        };
        let nexus = Nexus::builder().config(config).handle(ECHO, echo).build().unwrap();
        let network = self.cluster.network().clone();
        let (name, clock) = (format!("node{index}"), network.clock());
        let port = PortConfig { arena_bytes: 16 << 20, ..PortConfig::default() };
        let port = network.open(HostId(index), &name, port).unwrap();
        let place = port.place();
        let rpc = Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(network.random())));
        let book = Book::default();
        let next_ns = clock.now_ns() + 5 * MS + index as u64 * US;
        let (sessions, absent) = (BTreeMap::new(), BTreeSet::new());
        let node = Node { index, rpc, clock, sessions, absent, next_ns, book: Rc::clone(&book) };
        (self.cluster.add(&name, [place], Box::new(node)), book)
    }

    fn pass(&mut self, ns: u64) {
        let now_ns = self.cluster.network().now_ns();
        self.cluster.run_until(now_ns + ns);
    }

    fn seen(&self, node: usize, other: usize) -> PeerRecord {
        self.nodes[node].1.borrow()[&other].clone()
    }

    /// Returns the calls answered between each pair, for a comparison later.
    fn answered(&self) -> BTreeMap<(usize, usize), u64> {
        let of = |(node, (_, book)): (usize, &(ActorId, Book))| {
            let seen: Vec<_> = book.borrow().iter().map(|(other, seen)| ((node, *other), seen.answered)).collect();
            seen
        };
        self.nodes.iter().enumerate().flat_map(of).collect()
    }
}

#[test]
fn when_a_node_dies_calls_to_it_end_and_all_others_go_on_until_it_is_back_without_memory() {
    const DEAD: usize = 13;
    let mut world = World::open();
    world.cluster.crash(world.nodes[DEAD].0);
    let before = world.answered();
    // Each node notices by itself, at most a probe later than the time-out.
    world.pass(PEER_TIMEOUT_NS + 3 * MS);
    let after = world.answered();
    for node in (0..NODES).filter(|node| *node != DEAD) {
        let seen = world.seen(node, DEAD);
        assert_eq!(seen.lost.len(), 1, "node {node}: {seen:?}");
        assert!(!seen.failed.is_empty() && seen.failed.iter().all(|cause| *cause == seen.lost[0]), "{seen:?}");
        for other in (0..NODES).filter(|other| *other != DEAD && *other != node) {
            let calls = after[&(node, other)] - before[&(node, other)];
            let due = (PEER_TIMEOUT_NS + 3 * MS) / PERIOD_NS;
            assert!((due - 1..=due + 1).contains(&calls), "{calls} of {due} calls from {node} to {other}");
            let seen = world.seen(node, other);
            assert!(seen.failed.is_empty() && seen.lost.is_empty(), "{node} to {other}: {seen:?}");
        }
    }
    world.nodes[DEAD] = world.start(DEAD);
    world.pass(30 * MS);
    for node in (0..NODES).filter(|node| *node != DEAD) {
        let (there, back) = (world.seen(node, DEAD), world.seen(DEAD, node));
        assert!(there.connected == 2 && there.answered > after[&(node, DEAD)], "{node}: {there:?}");
        assert!(back.connected == 1 && back.answered > 0 && back.failed.is_empty(), "{node}: {back:?}");
    }
}

#[test]
fn a_rack_that_is_cut_off_loses_its_sessions_to_others_and_none_of_its_own() {
    const RACK: usize = 5;
    // Hosts are assigned to the racks in turn.
    let in_rack = |node: usize| node.is_multiple_of(RACK);
    let mut world = World::open();
    let network = world.cluster.network().clone();
    let cut = |is_cut: bool| {
        for a in (0..NODES).filter(|node| in_rack(*node)) {
            for b in (0..NODES).filter(|node| !in_rack(*node)) {
                network.set_cut(HostId(a), HostId(b), is_cut);
                network.set_cut(HostId(b), HostId(a), is_cut);
            }
        }
    };
    cut(true);
    world.pass(PEER_TIMEOUT_NS + 3 * MS);
    for (node, other) in (0..NODES).flat_map(|a| (0..NODES).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let seen = world.seen(node, other);
        let is_cut = in_rack(node) != in_rack(other);
        assert_eq!(seen.lost, if is_cut { vec![Cause::PeerSilent] } else { vec![] }, "{node} to {other}: {seen:?}");
        assert_eq!(seen.failed.is_empty(), !is_cut, "{node} to {other}: {seen:?}");
    }
    cut(false);
    world.pass(40 * MS);
    let before = world.answered();
    world.pass(2 * MS);
    for (pair, answered) in world.answered() {
        assert!(answered > before[&pair], "{pair:?} do not talk again: {:?}", world.seen(pair.0, pair.1));
    }
}

#[test]
fn who_is_not_heard_any_more_is_given_up_and_hears_of_that_when_it_is_heard_again() {
    const MUTE: usize = 13;
    let mut world = World::open();
    let network = world.cluster.network().clone();
    let deaf = |node: usize| node % 2 == 1 && node != MUTE;
    let cut = |is_cut: bool| {
        (0..NODES).filter(|node| deaf(*node)).for_each(|to| network.set_cut(HostId(MUTE), HostId(to), is_cut));
    };
    cut(true);
    world.pass(PEER_TIMEOUT_NS + 3 * MS);
    for node in (0..NODES).filter(|node| *node != MUTE) {
        let (there, back) = (world.seen(node, MUTE), world.seen(MUTE, node));
        if deaf(node) {
            // A node that hears nothing finds out by itself. The mute node hears its attempts to connect, which are
            // signs of life.
            assert_eq!(there.lost, [Cause::PeerSilent], "{node}: {there:?}");
            assert!(!there.failed.is_empty() && back.lost.is_empty(), "{node}: {there:?} {back:?}");
        } else {
            assert!(there.lost.is_empty() && back.lost.is_empty(), "{node}: {there:?} {back:?}");
            assert!(there.failed.is_empty() && back.failed.is_empty(), "{node}: {there:?} {back:?}");
        }
    }
    cut(false);
    world.pass(40 * MS);
    for node in (0..NODES).filter(|node| deaf(*node)) {
        let back = world.seen(MUTE, node);
        assert!(!back.failed.is_empty() && back.lost == [Cause::PeerForgot], "{node}: {back:?}");
    }
    let before = world.answered();
    world.pass(2 * MS);
    for (pair, answered) in world.answered() {
        assert!(answered > before[&pair], "{pair:?} do not talk again: {:?}", world.seen(pair.0, pair.1));
    }
}
