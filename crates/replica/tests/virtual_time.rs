//! Members and clients on a simulated cluster, over the RPC layer, in virtual time.

#[path = "virtual_time/random.rs"]
mod random;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sinew_fabric::{Clock, SeededGenerator};
use sinew_journal::disk::SimDisk;
use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::{ClientRequest, Dropped, Freshness, Status};
use sinew_replica::host::Host;
use sinew_replica::kv::{Command, CommandResult, KvStore, Query, QueryResult};
use sinew_replica::member::{Member, MemberConfig};
use sinew_replica::wire;
use sinew_rpc::gate::Key;
use sinew_rpc::{Config, Endpoint, Nexus, Rpc};
use sinew_sim::{
    Actor, ActorId, ActorState, Cluster, HostId, LinkFaults, LinkId, Network, PortConfig, PortId, SimClock, SimPort,
    Topology,
};

type SimRpc = Rpc<SimPort, SimClock>;
const MS: u64 = 1_000_000;

fn config() -> Config {
    Config { peer_timeout_ns: 300 * MS, probe_interval_ns: 50 * MS, connect_timeout_ns: 100 * MS, ..Config::default() }
}

struct Server {
    host: Host<SimRpc, KvStore, SimDisk>,
    leads: Rc<RefCell<BTreeMap<usize, (u64, bool)>>>,
    at: usize,
}

impl Actor for Server {
    fn turn(&mut self) -> ActorState {
        let busy = self.host.turn().unwrap();
        self.leads.borrow_mut().insert(self.at, (self.host.member().term(), self.host.member().is_leader()));
        next_turn(busy, self.host.member().next_turn_ns(), self.host.rpc())
    }
}

fn next_turn(busy: bool, next_ns: u64, rpc: &mut SimRpc) -> ActorState {
    if busy {
        return ActorState::Work;
    }
    match rpc.wait(None) {
        Ok(false) => ActorState::Work,
        _ => ActorState::IdleUntil(next_ns),
    }
}

/// A client that puts the same key again and again, and reads it now and then.
struct Writer {
    client: Client<SimRpc>,
    log: Rc<RefCell<Vec<Event>>>,
    next: u64,
    end: u64,
    /// Pause between two requests, in ns.
    pause_ns: u64,
    begin_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Put { value: u64, revision: u64, at_ns: u64 },
    Got { value: Option<u64>, at_ns: u64 },
    Failed(ClientError),
}

impl Event {
    /// When a request was answered.
    fn at_ns(&self) -> Option<u64> {
        match self {
            Self::Put { at_ns, .. } | Self::Got { at_ns, .. } => Some(*at_ns),
            Self::Failed(_) => None,
        }
    }
}

const TIMEOUT_NS: u64 = 5_000 * MS;

impl Writer {
    fn begin(&mut self) {
        let mut bytes = Vec::new();
        if self.next.is_multiple_of(4) {
            wire::encode(&Query::Get { key: b"k" }, &mut bytes);
            self.client.read(self.next, Freshness::Linear, &bytes, TIMEOUT_NS).unwrap();
        } else {
            let value = self.next.to_le_bytes();
            wire::encode(&Command::Put { key: b"k", value: &value }, &mut bytes);
            self.client.run(self.next, &bytes, TIMEOUT_NS).unwrap();
        }
        self.next += 1;
    }
}

impl Actor for Writer {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.client.turn();
        let at_ns = self.client.rpc().now_ns();
        while let Some((tag, result)) = self.client.poll() {
            busy = true;
            let event = match result {
                Ok(RequestOutcome::CommandAnswer(done)) => match wire::decode(&done) {
                    Ok(CommandResult::Changed { revision }) => Event::Put { value: tag, revision, at_ns },
                    other => panic!("{other:?}"),
                },
                Ok(RequestOutcome::QueryAnswer(found)) => match wire::decode(&found) {
                    Ok(QueryResult::Item { item, .. }) => {
                        let value = item.map(|item| u64::from_le_bytes(*item.value.first_chunk().unwrap()));
                        Event::Got { value, at_ns }
                    }
                    other => panic!("{other:?}"),
                },
                Ok(other) => panic!("{other:?}"),
                Err(error) => Event::Failed(error),
            };
            self.log.borrow_mut().push(event);
        }
        if self.client.in_flight() == 0 && self.next < self.end && at_ns >= self.begin_ns {
            self.begin();
            self.begin_ns = at_ns + self.pause_ns;
            busy = true;
        }
        next_turn(busy, self.client.next_turn_ns().unwrap_or(self.begin_ns.max(at_ns + 1000)), self.client.rpc())
    }
}

/// A client that waits for a member's status.
struct StatusReader {
    client: Client<SimRpc>,
    status: Rc<RefCell<Option<Status>>>,
}

impl Actor for StatusReader {
    fn turn(&mut self) -> ActorState {
        let busy = self.client.turn();
        while let Some((_, result)) = self.client.poll() {
            match result {
                Ok(RequestOutcome::Status(status)) => *self.status.borrow_mut() = Some(*status),
                other => panic!("{other:?}"),
            }
        }
        next_turn(busy, self.client.next_turn_ns().unwrap_or(u64::MAX), self.client.rpc())
    }
}

struct Sim {
    cluster: Cluster,
    actors: Vec<ActorId>,
    disks: Vec<Option<SimDisk>>,
    leads: Rc<RefCell<BTreeMap<usize, (u64, bool)>>>,
    nexus: Nexus,
    incarnations: u64,
    key: Option<Key>,
}

fn name(at: usize) -> String {
    char::from(b'a' + at as u8).to_string()
}

impl Sim {
    fn new(members: usize, on_disk: bool, seed: u64) -> Self {
        Self::with_key(members, on_disk, seed, None)
    }

    fn with_key(members: usize, on_disk: bool, seed: u64, key: Option<Key>) -> Self {
        let network = Network::new(Topology::star(members + 2, 25.0, 200, 1500), seed).unwrap();
        let nexus = Nexus::builder().config(config()).build().unwrap();
        let disks = (0..members).map(|_| on_disk.then(SimDisk::new)).collect();
        let mut sim = Self {
            cluster: Cluster::new(&network),
            actors: vec![],
            disks,
            leads: Rc::default(),
            nexus,
            incarnations: 0,
            key,
        };
        for at in 0..members {
            let actor = sim.start(at);
            sim.actors.push(actor);
        }
        sim
    }

    fn endpoint(&mut self, host: usize, name: &str) -> SimRpc {
        let network = self.cluster.network();
        let port = network.open(HostId(host), name, PortConfig { arena_bytes: 64 << 20, ..PortConfig::default() });
        let random = Box::new(SeededGenerator::new(network.random()));
        Rpc::new(&self.nexus, port.unwrap(), network.clock(), random)
    }

    fn start(&mut self, at: usize) -> ActorId {
        self.incarnations += 1;
        let members = self.disks.len();
        let peers = (0..members).map(|at| (name(at), format!("sim://{}", name(at)))).collect();
        let rpc = self.endpoint(at, &name(at));
        let place = rpc.port().place();
        let random = Box::new(SeededGenerator::new(self.cluster.network().random()));
        let (disk, now_ns) = (self.disks[at].clone(), self.cluster.clock().now_ns());
        let member = Member::open(MemberConfig::default(), &name(at), peers, KvStore::new(), disk, random, now_ns);
        let mut host = Host::new(rpc, member.unwrap()).unwrap();
        if let Some(key) = &self.key {
            host = host.keyed(key.clone(), Box::new(SeededGenerator::new(self.cluster.network().random())));
        }
        let server = Server { host, leads: Rc::clone(&self.leads), at };
        self.cluster.add(&format!("{}-{}", name(at), self.incarnations), [place], Box::new(server))
    }

    fn crash(&mut self, at: usize) {
        self.cluster.crash(self.actors[at]);
        self.leads.borrow_mut().remove(&at);
        if let Some(disk) = &self.disks[at] {
            disk.crash(self.incarnations);
        }
    }

    fn leader(&self) -> Option<usize> {
        let leads = self.leads.borrow();
        leads.iter().filter(|(_, (_, leads))| *leads).max_by_key(|(_, (term, _))| *term).map(|(at, _)| *at)
    }

    fn pass_ms(&mut self, ms: u64) {
        let end_ns = self.cluster.network().now_ns() + ms * MS;
        self.cluster.run_until(end_ns);
    }

    fn writer(&mut self, end: u64, pause_ns: u64) -> Rc<RefCell<Vec<Event>>> {
        self.writer_with(end, pause_ns, self.key.clone())
    }

    fn writer_with(&mut self, end: u64, pause_ns: u64, key: Option<Key>) -> Rc<RefCell<Vec<Event>>> {
        let log = Rc::new(RefCell::new(Vec::new()));
        let (client, place) = self.client(self.disks.len(), "client", key);
        let writer = Writer { client, log: Rc::clone(&log), next: 1, end, pause_ns, begin_ns: 0 };
        self.cluster.add("client", [place], Box::new(writer));
        log
    }

    /// Asks a member for its status. This takes 10 ms.
    fn status(&mut self, at: usize) -> Status {
        self.incarnations += 1;
        let name_of_client = format!("status-{}", self.incarnations);
        let (mut client, place) = self.client(self.disks.len() + 1, &name_of_client, self.key.clone());
        let address = format!("sim://{}", name(at));
        client.ask(0, &ClientRequest::Status, Some(address.as_str()), TIMEOUT_NS).unwrap();
        let status = Rc::new(RefCell::new(None));
        let reader = StatusReader { client, status: Rc::clone(&status) };
        let reader = self.cluster.add(&name_of_client, [place], Box::new(reader));
        self.pass_ms(10);
        self.cluster.crash(reader);
        status.take().expect("a member answers at once")
    }

    /// A client of all members, and the place of its port.
    fn client(&mut self, host: usize, name_of_client: &str, key: Option<Key>) -> (Client<SimRpc>, PortId) {
        let rpc = self.endpoint(host, name_of_client);
        let place = rpc.port().place();
        let addresses = (0..self.disks.len()).map(|at| format!("sim://{}", name(at))).collect();
        // Clients with the same random numbers would share a session.
        let random = Box::new(SeededGenerator::new(self.cluster.network().random()));
        let client = Client::new(rpc, addresses, random);
        (if let Some(key) = key { client.keyed(key) } else { client }, place)
    }
}

/// Checks the log of a single client: each read sees the last put, and each put has a revision one higher than the one
/// before.
fn check(log: &[Event]) {
    let (mut last, mut revisions) = (None, 0);
    for event in log {
        match event {
            Event::Put { value, revision, .. } => {
                revisions += 1;
                assert_eq!(*revision, revisions, "a put ran twice, or was lost: {event:?}");
                last = Some(*value);
            }
            Event::Got { value, .. } => assert_eq!(*value, last),
            Event::Failed(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_cluster_serves_and_a_put_takes_microseconds() {
    let mut sim = Sim::new(3, false, 1);
    let log = sim.writer(400, 0);
    sim.pass_ms(1000);
    let log = log.borrow();
    assert_eq!(log.len(), 399);
    check(&log);
    let times: Vec<u64> = log[200..]
        .windows(2)
        .filter_map(|pair| match pair {
            [Event::Put { at_ns: previous_ns, .. }, Event::Put { at_ns, .. }] => Some(at_ns - previous_ns),
            _ => None,
        })
        .collect();
    let median = {
        let mut times = times.clone();
        times.sort_unstable();
        times[times.len() / 2]
    };
    assert!(median < 20_000, "{median} ns for a put");
}

#[test]
fn the_leader_is_killed_again_and_again_and_nothing_is_lost_or_runs_twice() {
    let mut gaps_ms = Vec::new();
    for seed in 0..10 {
        let mut sim = Sim::new(3, true, seed);
        let log = sim.writer(100_000, MS / 2);
        sim.pass_ms(200);
        for _ in 0..8 {
            let Some(leader) = sim.leader() else { panic!("nobody leads") };
            let killed_ns = sim.cluster.network().now_ns();
            sim.crash(leader);
            let before = log.borrow().len();
            sim.pass_ms(150);
            let answered_ns =
                log.borrow()[before..].iter().filter_map(Event::at_ns).find(|at_ns| at_ns - killed_ns > MS);
            let Some(answered_ns) = answered_ns else { panic!("seed {seed}: writes have stopped") };
            gaps_ms.push((answered_ns - killed_ns) / MS);
            sim.actors[leader] = sim.start(leader);
            sim.pass_ms(150);
        }
        check(&log.borrow());
    }
    gaps_ms.sort_unstable();
    println!("writes went on after {gaps_ms:?} ms");
    // One election takes 26 to 48 ms from the leader's last message, also among members that were restarted.
    assert!(gaps_ms[gaps_ms.len() * 9 / 10] <= 50, "{gaps_ms:?}");
}

#[test]
fn a_cluster_with_a_key_serves_and_replaces_its_leader_and_refuses_strangers() {
    let key = |byte| Key::new(&[byte; 16]);
    for seed in 0..4 {
        let mut sim = Sim::with_key(3, true, seed, key(1));
        let log = sim.writer(100_000, MS / 2);
        sim.pass_ms(200);
        let Some(leader) = sim.leader() else { panic!("nobody leads") };
        sim.crash(leader);
        let before = log.borrow().len();
        sim.pass_ms(150);
        assert!(before > 100 && log.borrow().len() > before, "seed {seed}: {before}");
        check(&log.borrow());
    }
    // A client with a key does not take the word of a cluster without one, either.
    for (cluster, client) in [(key(1), None), (key(1), key(2)), (None, key(1))] {
        let mut sim = Sim::with_key(3, false, 1, cluster);
        let log = sim.writer_with(2, 0, client);
        sim.pass_ms(300);
        assert!(matches!(log.borrow()[..], [Event::Failed(ClientError::NotAdmitted { .. })]), "{:?}", log.borrow());
    }
}

#[test]
fn a_message_to_a_member_that_is_not_there_is_counted_as_unsent_and_as_nothing_else() {
    let mut sim = Sim::new(2, false, 1);
    sim.crash(1);
    sim.pass_ms(1000);
    // A member without a cluster says hello to the other every 20 ms, or a tick of 2 ms later.
    let dropped = sim.status(0).dropped;
    assert_eq!(dropped, Dropped { unsent: dropped.unsent, ..Dropped::default() });
    assert!((45..=52).contains(&dropped.unsent), "{dropped:?}");
    // Once the other is there, they found a cluster, and all messages are sent.
    sim.actors[1] = sim.start(1);
    let log = sim.writer(10, 0);
    sim.pass_ms(500);
    assert_eq!(log.borrow().len(), 9);
    check(&log.borrow());
    let unsent = sim.status(0).dropped.unsent;
    sim.pass_ms(100);
    assert_eq!(sim.status(0).dropped.unsent, unsent);
}

#[test]
fn messages_to_a_dead_member_are_counted_as_unsent_until_it_is_back_and_writes_go_on() {
    let mut sim = Sim::new(3, true, 1);
    let log = sim.writer(100_000, MS / 2);
    sim.pass_ms(200);
    let leader = sim.leader().expect("somebody leads");
    let before = sim.status(leader).dropped;
    sim.pass_ms(100);
    assert_eq!(sim.status(leader).dropped, before, "all members are there");
    let dead = (leader + 1) % 3;
    sim.crash(dead);
    let written = log.borrow().len();
    sim.pass_ms(1000);
    let dropped = sim.status(leader).dropped;
    // The session ends after 300 ms of silence. Then there is a heartbeat every 4 ms that cannot be sent.
    assert!(dropped.unsent > before.unsent + 100, "{before:?}, and then {dropped:?}");
    assert_eq!(Dropped { unsent: before.unsent, ..dropped }, before);
    assert!(log.borrow().len() > written + 500, "{} answers in a second", log.borrow().len() - written);
    assert_eq!(sim.leader(), Some(leader));
    sim.actors[dead] = sim.start(dead);
    sim.pass_ms(500);
    let back = sim.status(leader);
    sim.pass_ms(100);
    assert_eq!(sim.status(leader).dropped, back.dropped);
    assert!(sim.status(dead).applied >= back.applied, "it has what was written without it");
    check(&log.borrow());
}

#[test]
fn a_client_whose_answers_take_longer_than_an_attempt_gets_them_in_the_end() {
    let mut sim = Sim::new(3, false, 1);
    let log = sim.writer(1_000_000, MS);
    sim.pass_ms(1_000);
    let before = log.borrow().len();
    assert!(before > 10);
    // From now on an answer takes 80 ms, four times as long as the first attempt waits.
    let slow = LinkFaults { reordering: 1.0, reordering_ns: 40 * MS, ..LinkFaults::default() };
    let link = LinkId(sim.disks.len());
    (0..2).for_each(|direction| sim.cluster.network().set_faults(link, direction, slow));
    sim.pass_ms(4_000);
    let log = log.borrow();
    check(&log);
    assert!(log.len() > before + 8, "{} answers in four seconds", log.len() - before);
}

#[test]
fn a_simulated_cluster_does_the_same_from_the_same_seed() {
    let run = |seed| {
        let mut sim = Sim::new(3, true, seed);
        let log = sim.writer(100_000, MS / 2);
        sim.pass_ms(200);
        if let Some(leader) = sim.leader() {
            sim.crash(leader);
        }
        sim.pass_ms(150);
        let events = log.borrow().clone();
        (events, sim.cluster.network().trace_hash())
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).1, run(4).1);
}
