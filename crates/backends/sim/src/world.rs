//! The state that the ports of a simulated network share: packets in flight, links, switches' queues.

mod links;
mod nics;
mod pauses;
mod ports;
mod switches;

use std::collections::{BTreeMap, BTreeSet};

use sinew_fabric::{Generator, SeededGenerator};
use sinew_mem::atomic::plain::Arc;

use crate::capture::Capturing;
use crate::events::{Event, Events};
use crate::flights::{Flight, Flights, Row};
use crate::hash::Hash;
use crate::lanes::{Lane, PS};
use crate::nic::Nic;
use crate::packets::Packets;
use crate::routes::{Direction, Routes};
use crate::stats::NetworkStats;
use crate::topology::{HostId, NodeId, SwitchId, Topology, TopologyError};
use crate::wakes::Wakes;
pub(crate) use ports::{NOT_BESIDE_ACTORS, Node};
use switches::SwitchState;

/// Packets that are pushed and not yet submitted.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    row: Row,
    packets: u64,
    /// Bytes of the packets, without their frames.
    bytes: u64,
}

impl Sending {
    pub fn len(&self) -> u64 {
        self.packets
    }

    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }
}

/// A simulated network's whole state.
pub(crate) struct World {
    pub topology: Topology,
    routes: Routes,
    pub events: Events,
    generator: SeededGenerator,
    packets: Packets,
    flights: Flights,
    lanes: Vec<Lane>,
    switches: Vec<SwitchState>,
    /// Whether any switch can ask its neighbours to pause.
    pauses: bool,
    pub nodes: Vec<Node>,
    pub nics: Vec<Nic>,
    /// Buffer in which NICs assemble packets.
    pub scratch: Vec<u8>,
    by_name: BTreeMap<String, usize>,
    stats: NetworkStats,
    /// Hash over packets lost on the way.
    hash: Hash,
    /// Pairs of hosts, from and to, between which packets are lost.
    cut: BTreeSet<(usize, usize)>,
    /// Actors to which packets have come or will come, and when, until the cluster reads them.
    pub touched: Vec<(u32, u64)>,
    wakes: Arc<Wakes>,
    /// The capture under way, if there is one.
    capturing: Option<Capturing>,
}

impl World {
    pub fn new(topology: Topology, seed: u64, wakes: Arc<Wakes>) -> Result<Self, TopologyError> {
        topology.check()?;
        let routes = Routes::new(&topology)?;
        let latency_ns = |host: HostId| topology.hosts[host.0].receive_latency_ns;
        let lanes: Vec<Lane> = topology.links.iter().flat_map(|link| Lane::pair(link, latency_ns)).collect();
        let outgoing = |switch| {
            let from_here =
                lanes.iter().enumerate().filter(move |(_, lane)| lane.from == NodeId::Switch(SwitchId(switch)));
            from_here.map(|(index, _)| index as Direction).collect()
        };
        let switches = topology.switches.iter().enumerate();
        let switches = switches.map(|(index, switch)| SwitchState {
            latency_ps: switch.latency_ns * PS,
            used_bytes: 0,
            buffer: switch.buffer,
            ecn: switch.ecn,
            pause: switch.pause,
            leaving: outgoing(index),
        });
        Ok(Self {
            switches: switches.collect(),
            routes,
            events: Events::default(),
            generator: SeededGenerator::new(seed),
            packets: Packets::default(),
            flights: Flights::default(),
            lanes,
            pauses: topology.switches.iter().any(|switch| switch.pause.is_some()),
            nodes: Vec::new(),
            nics: Vec::new(),
            scratch: Vec::new(),
            by_name: BTreeMap::new(),
            stats: NetworkStats::default(),
            hash: Hash::default(),
            cut: BTreeSet::new(),
            touched: Vec::new(),
            wakes,
            capturing: None,
            topology,
        })
    }

    /// Counters of everything up to `now_ns`.
    pub fn stats(&mut self, now_ns: u64) -> NetworkStats {
        (0..self.nodes.len()).for_each(|index| self.process_arrivals(index, now_ns));
        self.stats
    }

    /// Hash over every packet that arrived or was lost until `now_ns`, and over when.
    pub fn trace_hash(&mut self, now_ns: u64) -> u64 {
        self.stats(now_ns);
        let mut all = self.hash;
        self.nodes.iter().for_each(|node| all.add(node.hash.0));
        all.0
    }

    /// A random number that depends on the seed and on the numbers drawn before.
    pub fn random(&mut self) -> u64 {
        self.generator.next_u64()
    }

    /// Packs bytes into a packet from one port to another, to be [submitted](Self::submit).
    #[inline]
    pub fn pack(&mut self, from: usize, to: usize, head: &[u8], data: &[u8], sending: &mut Sending) {
        let len = head.len() + data.len();
        let packet = self.packets.pack(from as u32, to as u32, head, data);
        let target = self.nodes[to].host.0 as u32;
        let flow = Hash::of(&[(from as u64) << 32 | to as u64]) as u32;
        let flight = Flight::new(packet, target, flow, (len + self.topology.frame_bytes) as u32);
        let flight = self.flights.begin(flight);
        self.flights.append(&mut sending.row, flight, 0);
        sending.packets += 1;
        sending.bytes += len as u64;
    }

    /// Sends packets from a core that has reached `now_ns`.
    pub fn submit(&mut self, from: usize, generation: u64, sending: Sending, now_ns: u64) {
        let Some(first) = sending.row.first() else { return };
        let node = &mut self.nodes[from];
        if !node.is_open || node.generation != generation {
            // The port's host has crashed, and may be back.
            let mut flight = Some(first);
            while let Some(index) = flight {
                flight = self.flights.next(index);
                self.packets.end(self.flights.end(index));
            }
            return;
        }
        node.stats.tx_packets += sending.packets;
        node.stats.tx_bytes += sending.bytes;
        let latency_ns = self.topology.hosts[node.host.0].transmit_latency_ns;
        self.events.add(now_ns + latency_ns, Event::Sent { host: node.host.0 as u32, first });
    }

    /// Runs an event at `now_ns`.
    #[inline(always)]
    pub fn handle(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Landed { lane, flight } => self.land(lane, flight, now_ns),
            Event::Sent { host, first } => self.launch(HostId(host as usize), first, now_ns),
            Event::Stray { flight, on } => self.land_out_of_order(flight, on, now_ns),
            Event::LinkFree { lane } => self.link_free(lane, now_ns),
            Event::Paused { lane, paused } => self.set_paused(lane, paused, now_ns),
            Event::Nic { nic, job } => self.run_job(nic, job, now_ns),
            Event::Turn { .. } => unreachable!("turns are the cluster's"),
        }
    }

    pub fn prefetch_flight(&self, flight: u32) {
        sinew_mem::prefetch_read(&self.flights[flight]);
    }

    /// The port that a flight goes to.
    #[inline]
    pub fn target(&self, flight: u32) -> &Node {
        &self.nodes[self.flights[flight].to as usize]
    }

    /// Packets in flight, queued ones included.
    pub fn in_flight(&self) -> usize {
        self.packets.in_flight()
    }

    /// Packets known to have reached a port's receive queue; ports not yet looked at may hold more.
    pub fn delivered(&self) -> u64 {
        self.stats.delivered
    }
}
