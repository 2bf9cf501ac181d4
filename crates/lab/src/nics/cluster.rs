//! Hosts with NICs at one switch, with actors on their cores.

use sinew_fabric::Clock;
use sinew_fabric::verbs::Device;
use sinew_harness::load::{Load, Slice, State};
use sinew_sim::nic::{NicStats, NicUse, Profile};
use sinew_sim::{
    Actor, ActorId, ActorState, Buffer, Cluster, HostId, HostSpec, LinkSpec, Network, NodeId, SimClock, SimVerbs,
    SwitchSpec, Topology,
};

/// Hosts with one NIC each, all of one kind.
pub struct NicCluster {
    /// The cluster.
    pub cluster: Cluster,
    names: usize,
}

/// Longest packet on a link, in bytes: a payload with headers.
const FRAME_MAX: usize = 4096 + 200;

/// Topology of hosts at one lossless switch, with a profile's links.
pub fn topology(profile: &Profile, hosts: usize) -> Topology {
    let link = profile.link;
    let mut topology = Topology::default();
    let switch = topology.switch(SwitchSpec {
        name: "switch".to_owned(),
        latency_ns: link.switch_ns,
        buffer: Buffer::PerPort { bytes: u64::MAX },
        ecn: None,
        pause: None,
    });
    for index in 0..hosts {
        let name = format!("host{index}");
        let host = topology.host(HostSpec { name, transmit_latency_ns: 0, receive_latency_ns: 0 });
        topology.link(LinkSpec {
            ends: [NodeId::Host(host), NodeId::Switch(switch)],
            rate_gbps: link.rate_gbps,
            delay_ns: link.cable_ns,
            mtu: FRAME_MAX,
        });
    }
    topology
}

impl NicCluster {
    /// A cluster of `hosts` hosts with NICs of a profile.
    pub fn new(profile: &Profile, hosts: usize, seed: u64) -> Self {
        let network = Network::new(topology(profile, hosts), seed).expect("the topology is good");
        for host in 0..hosts {
            network.attach_nic(HostId(host), profile).expect("a host without a NIC");
        }
        Self { cluster: Cluster::new(&network), names: 0 }
    }

    /// Opens a host's NIC for one more actor.
    pub fn open(&mut self, host: usize) -> SimVerbs {
        self.names += 1;
        let name = format!("actor {}", self.names);
        self.cluster.network().verbs(HostId(host), &name).expect("the host has a NIC")
    }

    /// Adds an actor that has opened its NIC.
    pub fn add(&mut self, device: &SimVerbs, actor: impl Actor + 'static) -> ActorId {
        let name = device.attributes().name.clone();
        self.cluster.add(&name, [device.place()], Box::new(actor))
    }

    /// Counters of a host's NIC, and its use.
    pub fn nic(&self, host: usize) -> (NicStats, NicUse) {
        let network = self.cluster.network();
        let host = HostId(host);
        (network.nic_stats(host).expect("it has one"), network.nic_use(host).expect("it has one"))
    }

    /// The cluster's clock.
    pub fn clock(&self) -> SimClock {
        self.cluster.clock()
    }
}

/// An actor that drives a load for one slice after another, all of one length, and hands the results of each to
/// `on_slice`.
pub struct Driver<L> {
    load: L,
    clock: SimClock,
    slice_ns: u64,
    began: bool,
    on_slice: Box<dyn FnMut(Slice)>,
}

impl<L: Load> Driver<L> {
    /// A driver with slices of `slice_ns`.
    pub fn new(load: L, clock: SimClock, slice_ns: u64, on_slice: impl FnMut(Slice) + 'static) -> Self {
        Self { load, clock, slice_ns, began: false, on_slice: Box::new(on_slice) }
    }
}

impl<L: Load> Actor for Driver<L> {
    fn turn(&mut self) -> ActorState {
        let now_ns = self.clock.now_ns();
        if !std::mem::replace(&mut self.began, true) {
            self.load.begin(now_ns, now_ns + self.slice_ns).expect("the driver has what it needs");
        }
        match self.load.turn(now_ns).expect("requests succeed on modelled NICs") {
            State::Busy => ActorState::Work,
            // A completion wakes it; the end of the slice does not.
            State::Idle => ActorState::IdleUntil(now_ns + self.slice_ns),
            State::Over => {
                (self.on_slice)(self.load.end());
                self.began = false;
                ActorState::Work
            }
        }
    }
}

/// An actor that only lends its memory.
pub struct Lender;

impl Actor for Lender {
    fn turn(&mut self) -> ActorState {
        ActorState::Idle
    }
}
