//! A replicated key-value store over datagrams of modelled NICs (nsdi19 7.1): [`sinew_replica`] on
//! [`UdPort`](sinew_fabric::verbs::port::UdPort)s.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hdrhistogram::Histogram;
use sinew_fabric::{Clock, Generator, PacketPort, SeededGenerator};
use sinew_host::HostClock;
use sinew_replica::client::{Client, RequestOutcome};
use sinew_replica::disk::SimDisk;
use sinew_replica::host::Host;
use sinew_replica::kv::{Command, KvStore};
use sinew_replica::machine::{BadSnapshot, Malformed, StateMachine};
use sinew_replica::member::{Member, MemberConfig};
use sinew_replica::wire;
use sinew_rpc::{Config, Nexus};
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, SimClock};

use super::Hosts;
use super::rpc::{Endpoint, open, open_charged};
use crate::programs::wait;

/// Latest end of a run.
const END_NS: u64 = 10_000_000_000;
/// Time after which a PUT without an answer has failed.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Precision of the histograms in decimal digits: a thousandth.
const DIGITS: u8 = 3;

/// A run: members of a cluster, each on a host of its own, and one client that puts random keys.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaRun {
    /// Number of members.
    pub members: usize,
    /// Keys to draw from.
    pub keys: u64,
    /// Bytes of a value. Keys have 16 bytes.
    pub value_len: usize,
    /// PUTs before those that count.
    pub warm_up: u64,
    /// PUTs that count.
    pub puts: u64,
    /// CPU time of each message that is received, not counting the call, at the leader and at another member.
    pub message_ns: [u64; 2],
    /// Lines of memory that applying a PUT waits for.
    pub put_misses: u64,
    /// Seed of the run.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct ReplicaResult {
    /// Times of PUTs as their client saw them, in ns.
    pub client_ns: Histogram<u64>,
    /// Times of PUTs at the leader, in ns: from when it takes the request until a majority has the entry.
    pub leader_ns: Histogram<u64>,
    /// Hash of everything that the network did.
    pub trace_hash: u64,
}

impl ReplicaRun {
    /// Runs it.
    ///
    /// # Panics
    ///
    /// When a PUT fails.
    pub fn run(&self, profile: &Profile) -> ReplicaResult {
        let mut hosts = Hosts::new(profile, self.members, self.seed);
        let (clock, network) = (hosts.clock(), hosts.network.clone());
        let random = || Box::new(SeededGenerator::new(network.random()));
        let nexus = Nexus::builder().config(Config::default()).build().expect("the limits make sense");
        let devices: Vec<_> =
            (0..=self.members).map(|host| if host == 0 { hosts.server() } else { hosts.client(host - 1) }).collect();
        let mut endpoints = Vec::new();
        for (host, device) in devices.iter().enumerate() {
            let message_ns = Rc::<Cell<u64>>::default();
            let rpc = if host < self.members {
                open_charged(&mut hosts, device, &nexus, Rc::clone(&message_ns))
            } else {
                open(&mut hosts, device, &nexus)
            };
            endpoints.push((device.place(), rpc, message_ns));
        }
        let addresses: Vec<_> = endpoints.iter().map(|(_, rpc, _)| rpc.port().address().to_string()).collect();
        let peers: Vec<_> = (0..self.members).map(|member| (member.to_string(), addresses[member].clone())).collect();
        let (place, rpc, _) = endpoints.pop().expect("the client's is the last");
        let leader_ns = Rc::new(RefCell::new(histogram()));
        for (member, (place, rpc, message_ns)) in endpoints.into_iter().enumerate() {
            let machine = Timed {
                store: KvStore::new(),
                clock: clock.clone(),
                put_ns: self.put_misses * hosts.profile().core.memory_ns,
                taken_ns: Cell::new(None),
                committed_ns: Rc::clone(&leader_ns),
            };
            let (config, name) = (MemberConfig::default(), member.to_string());
            let member = Member::open(config, &name, peers.clone(), machine, None, random(), clock.now_ns());
            let host = Host::new(rpc, member.expect("peers are in order")).expect("it is its endpoint's first");
            hosts.cluster.add(
                &format!("member{name}"),
                [place],
                Box::new(Server { host, costs_ns: self.message_ns, message_ns }),
            );
        }
        let client_ns = Rc::new(RefCell::new(histogram()));
        let is_over = Rc::new(Cell::new(false));
        let putter = Putter {
            run: *self,
            client: Client::new(rpc, addresses[..self.members].to_vec(), random()),
            keys: SeededGenerator::new(self.seed),
            number: 0,
            begun_ns: 0,
            command: Vec::new(),
            client_ns: Rc::clone(&client_ns),
            leader_ns: Rc::clone(&leader_ns),
            is_over: Rc::clone(&is_over),
        };
        hosts.cluster.add("client", [place], Box::new(putter));
        let ended = hosts.cluster.run_while(END_NS, |_| is_over.get());
        assert_eq!(ended, Ok(true), "not all PUTs are answered");
        let (client_ns, leader_ns) = (client_ns.borrow().clone(), leader_ns.borrow().clone());
        assert_eq!(leader_ns.len(), self.puts, "each PUT is decided once, and the leader stays");
        ReplicaResult { client_ns, leader_ns, trace_hash: network.trace_hash() }
    }
}

/// An empty histogram of the times of PUTs, in ns.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, PATIENCE_NS, DIGITS).expect("the bounds make sense")
}

/// A clock of a core that can be charged for work.
pub(crate) trait ChargedClock: Clock {
    /// Charges the core for work that the code does not do.
    fn spend_ns(&self, ns: u64);
}

impl ChargedClock for SimClock {
    fn spend_ns(&self, ns: u64) {
        SimClock::spend_ns(self, ns);
    }
}

/// A real core has nothing to be charged for.
impl ChargedClock for HostClock {
    fn spend_ns(&self, _: u64) {}
}

/// A store that charges its core for memory, and notes how long the leader's PUTs take. The time of a PUT begins when
/// its command is checked, which the member that is asked does first: that is the leader, once the client knows who
/// leads.
#[derive(Debug)]
pub(crate) struct Timed<C> {
    pub store: KvStore,
    pub clock: C,
    /// Time charged for each PUT that is applied, in ns.
    pub put_ns: u64,
    pub taken_ns: Cell<Option<u64>>,
    /// Times of PUTs.
    pub committed_ns: Rc<RefCell<Histogram<u64>>>,
}

impl<C: ChargedClock + std::fmt::Debug> StateMachine for Timed<C> {
    fn check_command(&self, command: &[u8]) -> Result<(), Malformed> {
        self.taken_ns.set(Some(self.clock.now_ns()));
        self.store.check_command(command)
    }

    fn check_query(&self, query: &[u8]) -> Result<(), Malformed> {
        self.store.check_query(query)
    }

    fn apply(&mut self, command: &[u8], answer: &mut Vec<u8>) {
        if let Some(taken_ns) = self.taken_ns.take() {
            self.committed_ns.borrow_mut().saturating_record(self.clock.now_ns() - taken_ns);
        }
        self.clock.spend_ns(self.put_ns);
        self.store.apply(command, answer);
    }

    fn read(&self, query: &[u8], answer: &mut Vec<u8>) -> bool {
        self.store.read(query, answer)
    }

    fn snapshot(&self) -> Vec<u8> {
        self.store.snapshot()
    }

    fn begin_snapshot(&mut self, bytes: &mut Vec<u8>) -> bool {
        self.store.begin_snapshot(bytes)
    }

    fn continue_snapshot(&mut self, bytes: &mut Vec<u8>, len: usize) -> bool {
        self.store.continue_snapshot(bytes, len)
    }

    fn check_snapshot(&self, snapshot: &[u8]) -> Result<(), BadSnapshot> {
        self.store.check_snapshot(snapshot)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), BadSnapshot> {
        self.store.restore(snapshot)
    }
}

struct Server {
    host: Host<Endpoint, Timed<SimClock>, SimDisk>,
    /// CPU time of a message at the leader, and at another member.
    costs_ns: [u64; 2],
    /// CPU time of a message in the member's current role.
    message_ns: Rc<Cell<u64>>,
}

impl Actor for Server {
    fn turn(&mut self) -> ActorState {
        let [leader_ns, other_ns] = self.costs_ns;
        self.message_ns.set(if self.host.member().is_leader() { leader_ns } else { other_ns });
        let busy = self.host.turn().expect("a member in memory goes on");
        let next_ns = self.host.member().next_turn_ns();
        wait(busy, self.host.rpc(), Some(next_ns))
    }
}

/// A client that puts one key after the other.
struct Putter {
    run: ReplicaRun,
    client: Client<Endpoint>,
    keys: SeededGenerator,
    /// Number of the PUT in flight; the first is 1.
    number: u64,
    begun_ns: u64,
    command: Vec<u8>,
    client_ns: Rc<RefCell<Histogram<u64>>>,
    leader_ns: Rc<RefCell<Histogram<u64>>>,
    is_over: Rc<Cell<bool>>,
}

impl Putter {
    fn begin(&mut self) {
        let key = format!("{:016x}", self.keys.next_u64() % self.run.keys);
        let value = vec![b'v'; self.run.value_len];
        self.command.clear();
        wire::encode(&Command::Put { key: key.as_bytes(), value: &value }, &mut self.command);
        self.number += 1;
        self.begun_ns = self.client.rpc().now_ns();
        self.client.run(self.number, &self.command, PATIENCE_NS).expect("one PUT is in flight at a time");
    }
}

impl Actor for Putter {
    fn turn(&mut self) -> ActorState {
        if self.number == 0 {
            self.begin();
        }
        let mut busy = self.client.turn();
        while let Some((number, answer)) = self.client.poll() {
            busy = true;
            assert!(matches!(answer, Ok(RequestOutcome::CommandAnswer(_))), "PUT {number}: {answer:?}");
            if number <= self.run.warm_up {
                self.leader_ns.borrow_mut().clear();
            } else {
                let elapsed_ns = self.client.rpc().now_ns() - self.begun_ns;
                self.client_ns.borrow_mut().saturating_record(elapsed_ns);
            }
            if number == self.run.warm_up + self.run.puts {
                self.is_over.set(true);
                return ActorState::Done;
            }
            self.begin();
        }
        let next_ns = self.client.next_turn_ns();
        wait(busy, self.client.rpc(), next_ns)
    }
}
