//! Remote procedure calls over datagrams of modelled NICs: [`sinew_rpc`] on [`UdPort`]s.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use sinew_fabric::layer::{Layer, Layered, OwnedPacket, Pool};
use sinew_fabric::verbs::port::{UdPort, UdPortConfig};
use sinew_fabric::{Clock, PacketPort, PacketTx, SeededGenerator, TxPacket};
use sinew_harness::load::echo::{Answer, Echo, Shape};
use sinew_harness::service::ECHO;
use sinew_rpc::{Call, Config, Nexus, Rpc, SessionEvent, SessionId};
use sinew_sim::nic::{NicUse, Profile};
use sinew_sim::{Actor, ActorState, Costs, SimClock, SimDomain, SimVerbs};

use super::{Driven, DriverResults, Hosts};
use crate::programs::turn;

/// Time after which a driver that was idle looks again.
const IDLE_TURN_NS: u64 = 10_000;
/// Latest end of a run.
const END_NS: u64 = 1_000_000_000;
/// Bytes of a call (nsdi19 6.1 and 6.2).
const SIZE: usize = 32;

/// A layer that charges the protocol's costs beside verbs to its core.
pub(super) struct Protocol {
    clock: SimClock,
    costs: Costs,
    /// CPU time that the program spends on each packet that it receives.
    packet_ns: Rc<Cell<u64>>,
}

impl Layer for Protocol {
    fn push(&mut self, packet: TxPacket<'_>, _: u64, tx: &mut dyn PacketTx, _: &mut Pool) {
        self.clock.spend_ns(self.costs.transmit_ns);
        tx.push(packet);
    }

    fn receive(&mut self, packet: OwnedPacket, _: u64, ready: &mut VecDeque<OwnedPacket>, _: &mut Pool) {
        let lines = packet.bytes.len() as u64 / 64;
        self.clock.spend_ns(self.costs.receive_ns + self.costs.copy_line_ns * lines + self.packet_ns.get());
        ready.push_back(packet);
    }

    fn advance(&mut self, _: u64, _: &mut dyn PacketTx, _: &mut VecDeque<OwnedPacket>, _: &mut Pool) -> bool {
        self.clock.spend_ns(self.costs.turn_ns);
        false
    }
}

/// An endpoint on a modelled NIC.
pub(super) type Endpoint = Rpc<Layered<UdPort<SimDomain>, Protocol>, SimClock>;

/// Opens an endpoint of `hosts` on a queue pair of its own.
///
/// # Panics
///
/// When the NIC refuses it: experiments stay within its limits.
pub(super) fn open(hosts: &mut Hosts, device: &SimVerbs, nexus: &Nexus) -> Endpoint {
    open_charged(hosts, device, nexus, Rc::default())
}

/// Same as [`open`], but each packet received costs the core `packet_ns` beside the protocol.
pub(super) fn open_charged(hosts: &mut Hosts, device: &SimVerbs, nexus: &Nexus, packet_ns: Rc<Cell<u64>>) -> Endpoint {
    let config = UdPortConfig { arena_bytes: 64 << 20, ..UdPortConfig::default() };
    let port = UdPort::open(device, &config).expect("the NIC takes it");
    let (clock, costs) = (hosts.clock(), Costs::default().beside(&hosts.profile().core));
    let port = Layered::wrap(port, Protocol { clock: clock.clone(), costs, packet_ns }).expect("it adds nothing");
    Rpc::new(nexus, port, clock, Box::new(SeededGenerator::new(hosts.network.random())))
}

/// A run: hosts with one endpoint each, which call each other and answer.
#[derive(Clone, Copy, Debug)]
pub struct RpcRun {
    /// Number of hosts.
    pub hosts: usize,
    /// Endpoints that call, from the first on. Each call goes to another endpoint at random.
    pub callers: usize,
    /// Calls in flight of each caller.
    pub window: usize,
    /// Calls that begin together.
    pub batch: usize,
    /// Time that is counted.
    pub measured_ns: u64,
    /// Seed of the run.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RpcResult {
    /// Calls per second of each caller, in millions.
    pub mops: f64,
    /// Median time of the calls.
    pub median_ns: u64,
    /// Use of the first host's NIC.
    pub usage: NicUse,
    /// Hash of everything that the network did.
    pub trace_hash: u64,
}

impl RpcRun {
    /// One call at a time between two hosts (nsdi19 Table 2).
    pub fn lone() -> Self {
        Self { hosts: 2, callers: 1, window: 1, batch: 1, measured_ns: 200_000, seed: 1 }
    }

    /// Eleven hosts with a thread each and 60 calls in flight of each, in batches of three (nsdi19 6.2).
    pub fn small_calls() -> Self {
        Self { hosts: 11, callers: 11, window: 60, batch: 3, measured_ns: 500_000, seed: 1 }
    }

    /// Runs it.
    ///
    /// # Panics
    ///
    /// When an answer is wrong.
    pub fn run(&self, profile: &Profile) -> RpcResult {
        let mut hosts = Hosts::new(profile, self.hosts - 1, self.seed);
        let clock = hosts.clock();
        let echo = |call: Call| {
            let request = call.request();
            call.reply(request);
        };
        let nexus = Nexus::builder().config(Config { overcommit: true, ..Config::default() }).handle(ECHO, echo);
        let nexus = nexus.build().expect("the limits make sense");
        let mut endpoints = Vec::new();
        for host in 0..self.hosts {
            let device = if host == 0 { hosts.server() } else { hosts.client(host - 1) };
            let rpc = open(&mut hosts, &device, &nexus);
            endpoints.push((device.place(), rpc));
        }
        let addresses: Vec<_> = endpoints.iter().map(|(_, rpc)| rpc.port().address()).collect();
        let found = Rc::<RefCell<DriverResults>>::default();
        let ready = Rc::new(Cell::new(0));
        for (index, (place, mut rpc)) in endpoints.into_iter().enumerate() {
            let peers = if index < self.callers { self.hosts } else { 0 };
            let mut wanted = 0;
            // Each begins with a different peer, so that they do not all draw the same.
            for peer in (0..peers).map(|nth| (index + nth) % self.hosts).filter(|peer| *peer != index) {
                rpc.begin_connect(&addresses[peer]).expect("it is an address");
                wanted += 1;
            }
            let load = Caller {
                run: *self,
                rpc: Some(rpc),
                wanted,
                open: Vec::new(),
                ready: Rc::clone(&ready),
                driven: None,
                clock: clock.clone(),
                found: Rc::clone(&found),
            };
            hosts.cluster.add(&format!("endpoint{index}"), [place], Box::new(load));
        }
        let callers = self.callers;
        let opened = hosts.cluster.run_while(END_NS, |_| ready.get() == callers);
        assert_eq!(opened, Ok(true), "sessions are not open");
        // All begin at once, in their next turns.
        let begun_ns = hosts.network.now_ns();
        hosts.cluster.run_until(begun_ns + 2 * IDLE_TURN_NS);
        DriverResults::wait(&found, &mut hosts.cluster, END_NS);
        let found = found.borrow();
        RpcResult {
            mops: found.mops() / self.callers as f64,
            median_ns: found.sum().latency.value_at_quantile(0.5),
            usage: hosts.usage(),
            trace_hash: hosts.network.trace_hash(),
        }
    }
}

/// An endpoint on a core of its own: it opens its sessions, waits for the others', and calls. It answers calls
/// throughout.
struct Caller {
    run: RpcRun,
    /// The endpoint, until it calls.
    rpc: Option<Endpoint>,
    wanted: usize,
    open: Vec<SessionId>,
    ready: Rc<Cell<usize>>,
    driven: Option<Driven<Echo<Endpoint, SimClock>>>,
    clock: SimClock,
    found: Rc<RefCell<DriverResults>>,
}

impl Actor for Caller {
    fn turn(&mut self) -> ActorState {
        if let Some(driven) = &mut self.driven {
            return driven.turn();
        }
        let Some(rpc) = &mut self.rpc else { return ActorState::Done };
        while let Some(event) = rpc.poll_event() {
            if let SessionEvent::Connected(session) = event {
                self.open.push(session);
                self.ready.set(self.ready.get() + usize::from(self.open.len() == self.wanted));
            }
        }
        let doing = turn(rpc);
        let RpcRun { callers, window, batch, measured_ns, .. } = self.run;
        if self.wanted > 0 && self.ready.get() == callers {
            let shape = Shape { size: SIZE, answer: Answer::Echo, window, batch };
            let (rpc, open) = (self.rpc.take().expect("it was there"), std::mem::take(&mut self.open));
            let load = Echo::new(rpc, self.clock.clone(), open, shape);
            let driven = Driven::new(load, self.clock.clone(), &[measured_ns], IDLE_TURN_NS, &self.found);
            self.driven = Some(driven.staying());
            return ActorState::Work;
        }
        match doing {
            // Others may become ready meanwhile.
            ActorState::Idle if self.wanted > 0 => ActorState::IdleUntil(self.clock.now_ns() + IDLE_TURN_NS),
            doing => doing,
        }
    }
}
