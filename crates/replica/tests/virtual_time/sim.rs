//! Members on a simulated cluster, over the RPC layer: each on a host of its own, with a clock and a disk of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use sinew_fabric::{Clock, SeededGenerator};
use sinew_journal::disk::{Disk, DiskError, Fault, SimDisk};
use sinew_replica::client::Client;
use sinew_replica::client_wire::Status;
use sinew_replica::host::Host;
use sinew_replica::kv::KvStore;
use sinew_replica::machine::StateMachine;
use sinew_replica::member::{Member, MemberConfig};
use sinew_replica::wire::MemberId;
use sinew_rpc::gate::Key;
use sinew_rpc::{Config, Nexus, Rpc};
use sinew_sim::{
    Actor, ActorId, ActorState, Cluster, HostId, Network, PortConfig, PortId, SimClock, SimPort, Topology,
};

pub const MS: u64 = 1_000_000;

pub type SimRpc = Rpc<SimPort, SimClock>;
pub type MemberHost = Host<SimRpc, KvStore, TimedDisk>;

fn rpc_config() -> Config {
    Config { peer_timeout_ns: 300 * MS, probe_interval_ns: 50 * MS, connect_timeout_ns: 100 * MS, ..Config::default() }
}

/// State of an actor after its turn. `next_ns` is the time of `clock`, which may drift.
pub fn next_turn(busy: bool, next_ns: u64, clock: &SimClock, rpc: &mut SimRpc) -> ActorState {
    if busy {
        return ActorState::Work;
    }
    match rpc.wait(None) {
        Ok(false) => ActorState::Work,
        _ => ActorState::IdleUntil(clock.to_simulation_ns(next_ns)),
    }
}

/// A disk whose syncs take time of its owner's core.
pub struct TimedDisk {
    disk: SimDisk,
    clock: SimClock,
    sync_ns: Rc<Cell<u64>>,
}

impl Disk for TimedDisk {
    fn names(&mut self) -> Result<Vec<String>, DiskError> {
        self.disk.names()
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, DiskError> {
        self.disk.read(name)
    }

    fn create(&mut self, name: &str) -> Result<(), DiskError> {
        self.disk.create(name)
    }

    fn reserve(&mut self, name: &str, more: u64) -> Result<(), DiskError> {
        self.disk.reserve(name, more)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        self.disk.append(name, bytes)
    }

    fn truncate(&mut self, name: &str, len: u64) -> Result<(), DiskError> {
        self.disk.truncate(name, len)
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.clock.spend_ns(self.sync_ns.get());
        self.disk.sync(name)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn sync_names(&mut self) -> Result<(), DiskError> {
        self.clock.spend_ns(self.sync_ns.get());
        self.disk.sync_names()
    }
}

/// What members were seen to do.
#[derive(Debug, Default)]
pub struct Seen {
    /// The leader of each term.
    leaders: BTreeMap<u64, MemberId>,
    cluster: Option<u64>,
    /// Members whose process has died at a write to its disk, and whose hosts are about to be taken down.
    dying: Vec<usize>,
    /// Members whose process has died at a write.
    pub died_at_writes: u64,
    /// Snapshots that members installed that were behind, and that members installed that had nothing.
    pub installed: [u64; 2],
    /// Those of them that came in more than one piece.
    pub in_pieces: u64,
}

struct Server {
    host: Rc<RefCell<MemberHost>>,
    clock: SimClock,
    disk: Option<SimDisk>,
    piece_len: usize,
    seen: Rc<RefCell<Seen>>,
    at: usize,
    is_dying: bool,
}

impl Server {
    /// Checks and counts what the last turn did.
    fn observe(&self, host: &MemberHost, applied_before: u64) {
        let member = host.member();
        let mut seen = self.seen.borrow_mut();
        if member.is_leader() {
            let first = *seen.leaders.entry(member.term()).or_insert(member.me().id);
            assert_eq!(first, member.me().id, "two members lead in term {}", member.term());
        }
        if member.applied() == applied_before {
            return;
        }
        let status = member.status(self.clock.now_ns());
        let cluster = *seen.cluster.get_or_insert(status.cluster.unwrap_or_default());
        assert_eq!(status.cluster, Some(cluster), "there are two clusters");
        // Its own snapshots hold what it had applied before. The first entry is the founding's.
        if status.snapshot > applied_before.max(1) {
            seen.installed[usize::from(applied_before == 0)] += 1;
            seen.in_pieces += u64::from(member.machine().snapshot().len() > self.piece_len);
        }
    }
}

impl Actor for Server {
    fn turn(&mut self) -> ActorState {
        if self.is_dying {
            return ActorState::Idle;
        }
        let mut host = self.host.borrow_mut();
        let applied = host.member().applied();
        let outcome = host.turn();
        // A process that has died at a write does nothing more, even if that write's outcome would not have mattered.
        if self.disk.as_ref().is_some_and(SimDisk::has_crashed) {
            let mut seen = self.seen.borrow_mut();
            seen.dying.push(self.at);
            seen.died_at_writes += 1;
            self.is_dying = true;
            return ActorState::Idle;
        }
        let busy = outcome.unwrap_or_else(|error| panic!("member {}: {error}", self.at));
        self.observe(&host, applied);
        let next_ns = host.member().next_turn_ns();
        next_turn(busy, next_ns, &self.clock, host.rpc())
    }
}

/// A host for a member.
pub struct Node {
    /// Name of its member. A host may take over the name of one that is gone.
    pub name: String,
    /// Name of its port.
    pub port: String,
    /// Whether a member is to run here. A spare host is not used yet, and one that is gone never again.
    pub is_used: bool,
    /// Id of the member that runs here, or that would continue if it were started.
    pub id: Option<MemberId>,
    pub disk: Option<SimDisk>,
    /// Whether its disk has no room, also after a restart.
    pub is_full: bool,
    /// Time that a sync of its disk takes.
    pub sync_ns: Rc<Cell<u64>>,
    running: Option<(ActorId, Rc<RefCell<MemberHost>>)>,
}

impl Node {
    fn new(port: String, on_disk: bool, is_used: bool) -> Self {
        Self {
            name: port.clone(),
            port,
            is_used,
            id: None,
            disk: on_disk.then(SimDisk::new),
            is_full: false,
            sync_ns: Rc::default(),
            running: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    pub fn address(&self) -> String {
        format!("sim://{}", self.port)
    }
}

/// What a simulated cluster is like.
#[derive(Default)]
pub struct Setup {
    pub members: usize,
    /// Further hosts, on which no member runs at first.
    pub spares: usize,
    pub on_disk: bool,
    pub seed: u64,
    pub key: Option<Key>,
    pub config: MemberConfig,
    /// How much faster the hosts' clocks run than the simulation's, in parts per million. Clocks of hosts beyond the
    /// end do not drift.
    pub drifts_ppm: Vec<i32>,
}

/// Hosts of clients, behind those of members.
pub const CLIENT_HOSTS: usize = 6;

pub struct Sim {
    pub cluster: Cluster,
    pub nodes: Vec<Node>,
    pub seen: Rc<RefCell<Seen>>,
    pub key: Option<Key>,
    /// Names and addresses of the members that found the cluster.
    peers: Vec<(String, String)>,
    config: MemberConfig,
    drifts_ppm: Vec<i32>,
    nexus: Nexus,
    incarnations: u64,
}

fn name(at: usize) -> String {
    char::from(b'a' + at as u8).to_string()
}

impl Sim {
    pub fn new(members: usize, on_disk: bool, seed: u64) -> Self {
        Self::with(Setup { members, on_disk, seed, ..Setup::default() })
    }

    pub fn with(setup: Setup) -> Self {
        let hosts = setup.members + setup.spares;
        let network = Network::new(Topology::star(hosts + CLIENT_HOSTS, 25.0, 200, 1500), setup.seed).unwrap();
        let nodes: Vec<Node> = (0..hosts).map(|at| Node::new(name(at), setup.on_disk, at < setup.members)).collect();
        let mut sim = Self {
            cluster: Cluster::new(&network),
            peers: nodes[..setup.members].iter().map(|node| (node.name.clone(), node.address())).collect(),
            nodes,
            seen: Rc::default(),
            key: setup.key,
            config: setup.config,
            drifts_ppm: setup.drifts_ppm,
            nexus: Nexus::builder().config(rpc_config()).build().unwrap(),
            incarnations: 0,
        };
        (0..setup.members).for_each(|at| sim.start(at));
        sim
    }

    /// The first host of clients.
    pub fn client_host(&self) -> usize {
        self.nodes.len()
    }

    /// The clock of a host.
    pub fn clock(&self, host: usize) -> SimClock {
        self.cluster.clock().drifting(self.drifts_ppm.get(host).copied().unwrap_or(0))
    }

    fn random(&self) -> Box<SeededGenerator> {
        Box::new(SeededGenerator::new(self.cluster.network().random()))
    }

    fn endpoint(&mut self, host: usize, name: &str) -> SimRpc {
        let network = self.cluster.network();
        let port = network.open(HostId(host), name, PortConfig { arena_bytes: 64 << 20, ..PortConfig::default() });
        Rpc::new(&self.nexus, port.unwrap(), self.clock(host), self.random())
    }

    /// Starts a member, with the same command as before.
    pub fn start(&mut self, at: usize) {
        self.incarnations += 1;
        let (name, address) = (self.nodes[at].name.clone(), self.nodes[at].address());
        let mut peers = self.peers.clone();
        match peers.iter_mut().find(|(peer, _)| *peer == name) {
            Some(own) => own.1 = address,
            None => peers.push((name.clone(), address)),
        }
        let port = self.nodes[at].port.clone();
        let rpc = self.endpoint(at, &port);
        let (place, clock, node) = (rpc.port().place(), self.clock(at), &self.nodes[at]);
        let disk = node.disk.clone().map(|disk| {
            let (clock, sync_ns) = (clock.clone(), Rc::clone(&node.sync_ns));
            TimedDisk { disk, clock, sync_ns }
        });
        let (random, now_ns) = (self.random(), clock.now_ns());
        let member = Member::open(self.config.clone(), &name, peers, KvStore::new(), disk, random, now_ns).unwrap();
        let id = member.me().id;
        let mut host = Host::new(rpc, member).unwrap();
        if let Some(key) = &self.key {
            host = host.keyed(key.clone(), self.random());
        }
        let host = Rc::new(RefCell::new(host));
        let server = Server {
            host: Rc::clone(&host),
            clock,
            disk: self.nodes[at].disk.clone(),
            piece_len: self.config.piece_len,
            seen: Rc::clone(&self.seen),
            at,
            is_dying: false,
        };
        let actor = self.cluster.add(&format!("{name}-{}", self.incarnations), [place], Box::new(server));
        let node = &mut self.nodes[at];
        (node.id, node.running) = (Some(id), Some((actor, host)));
    }

    /// Takes a member's host down. A member without a disk, which is empty when it starts again, has then no id.
    pub fn crash(&mut self, at: usize) {
        let incarnation = self.incarnations;
        let node = &mut self.nodes[at];
        if let Some((actor, _)) = node.running.take() {
            self.cluster.crash(actor);
        }
        match &node.disk {
            Some(disk) => disk.crash(incarnation),
            None => node.id = None,
        }
        let is_full = node.is_full;
        self.set_full(at, is_full);
    }

    /// Takes a member's host down, and all that it had is lost.
    pub fn lose(&mut self, at: usize) {
        self.crash(at);
        let node = &mut self.nodes[at];
        (node.id, node.is_full) = (None, false);
        node.disk = node.disk.is_some().then(SimDisk::new);
    }

    /// Takes all room from a member's disk, or gives it back.
    pub fn set_full(&mut self, at: usize, is_full: bool) {
        let node = &mut self.nodes[at];
        let Some(disk) = &node.disk else { return };
        if is_full {
            disk.fail_at(1, Fault::Full);
        } else if node.is_full {
            disk.heal();
        }
        node.is_full = is_full;
    }

    /// Stalls a member.
    pub fn pause(&mut self, at: usize, ms: u64) {
        let end_ns = self.cluster.network().now_ns() + ms * MS;
        if let Some((actor, _)) = &self.nodes[at].running {
            self.cluster.pause(*actor, end_ns);
        }
    }

    /// A member that runs.
    pub fn member<T>(&self, at: usize, look: impl FnOnce(&Member<KvStore, TimedDisk>) -> T) -> Option<T> {
        let (_, host) = self.nodes[at].running.as_ref()?;
        Some(look(host.borrow().member()))
    }

    /// The status of a member that runs, without asking it.
    pub fn look_at(&self, at: usize) -> Option<Status> {
        let now_ns = self.clock(at).now_ns();
        self.member(at, |member| member.status(now_ns))
    }

    /// The leader of the latest term.
    pub fn leader(&self) -> Option<usize> {
        let term = |at| self.member(at, |member| member.is_leader().then(|| member.term())).flatten();
        let leaders = (0..self.nodes.len()).filter_map(|at| Some((term(at)?, at)));
        leaders.max().map(|(_, at)| at)
    }

    pub fn describe(&self) -> String {
        let states = (0..self.nodes.len()).map(|at| format!("{}: {:?}", self.nodes[at].port, self.look_at(at)));
        states.collect::<Vec<_>>().join("\n")
    }

    pub fn pass_ms(&mut self, ms: u64) {
        let end_ns = self.cluster.network().now_ns() + ms * MS;
        loop {
            let seen = Rc::clone(&self.seen);
            let has_died = self.cluster.run_while(end_ns, |_| !seen.borrow().dying.is_empty());
            let dying = std::mem::take(&mut self.seen.borrow_mut().dying);
            dying.into_iter().for_each(|at| self.crash(at));
            if has_died != Ok(true) {
                return self.cluster.run_until(end_ns);
            }
        }
    }

    /// Lets time pass until something holds, which is checked every millisecond. Returns whether it did.
    pub fn pass_until(&mut self, ms_max: u64, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        for _ in 0..ms_max {
            if holds(self) {
                return true;
            }
            self.pass_ms(1);
        }
        holds(self)
    }

    /// A client of all members, on a host, and the place of its port.
    pub fn client(&mut self, host: usize, name: &str, key: Option<Key>) -> (Client<SimRpc>, PortId) {
        let rpc = self.endpoint(host, name);
        let place = rpc.port().place();
        let addresses = self.nodes.iter().filter(|node| node.is_used).map(Node::address).collect();
        // Clients with the same random numbers would share a session.
        let client = Client::new(rpc, addresses, self.random());
        (if let Some(key) = key { client.keyed(key) } else { client }, place)
    }
}
