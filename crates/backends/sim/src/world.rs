//! What the ports of a simulated network share: packets on their way, links, switches' queues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sinew_fabric::{Dropped, Generator, Peer, PortStats, SeededGenerator};
use sinew_mem::atomic::plain::Arc;

use crate::events::{Event, Events};
use crate::faults::LinkFaults;
use crate::hash::Hash;
use crate::lanes::{Lane, PS, Waiting};
use crate::network::{LinkStats, NetworkStats, PortConfig};
use crate::packets::{Coming, Flight, Packet, Packets};
use crate::port::WakeFlag;
use crate::routes::{Direction, Routes};
use crate::topology::{Buffer, HostId, NodeId, SwitchId, Topology, TopologyError};

/// Marks the peers of simulated ports, so that others' peers are not taken for them.
const PEER_MARK: u64 = 0x7369_6d70_6f72_7473;
/// No lane.
const NONE: Direction = Direction::MAX;

#[derive(Debug)]
struct SwitchState {
    latency_ps: u64,
    used_bytes: u64,
    /// The lanes that leave it.
    leaving: Vec<Direction>,
}

/// A packet that does not arrive in its lane's order, and the lane.
#[derive(Debug)]
struct Stray {
    flight: Flight,
    on: Direction,
}

/// A port as the network sees it. They are never removed, so an index names one for good.
#[derive(Debug)]
pub(crate) struct Node {
    pub host: HostId,
    pub is_open: bool,
    /// How often it was opened.
    pub openings: u64,
    /// The actor that works on this port.
    pub actor: Option<u32>,
    /// When it wants its next turn at the latest.
    pub wake_ns: Option<u64>,
    pub receive_packets: usize,
    /// Packets that have arrived.
    pub waiting: VecDeque<Box<Packet>>,
    /// Packets that have arrived at their times, whenever somebody looks: an actor looks when it has its turn, so that no event is needed.
    coming: Coming,
    /// Of what arrived here, and when.
    hash: Hash,
    pub stats: PortStats,
    pub woken: Arc<WakeFlag>,
    pub name: String,
}

impl Node {
    /// When the next packet is here that has not arrived.
    pub fn next_ns(&self) -> Option<u64> {
        self.coming.front().map(|(arrives_ns, _)| *arrives_ns)
    }
}

/// See the module.
pub(crate) struct World {
    pub topology: Topology,
    routes: Routes,
    pub events: Events,
    generator: SeededGenerator,
    packets: Packets,
    lanes: Vec<Lane>,
    switches: Vec<SwitchState>,
    /// Whether any switch asks its neighbours to pause.
    pauses: bool,
    pub nodes: Vec<Node>,
    by_name: BTreeMap<String, usize>,
    strays: Vec<Option<Stray>>,
    free_strays: Vec<u32>,
    /// Packets that were submitted together, and have not come to their host's interface. Whoever submits some gets the memory of others that
    /// have: it was used last, and is near.
    sendings: Vec<Vec<Flight>>,
    free_sendings: Vec<u32>,
    stats: NetworkStats,
    /// Of what was lost on the way.
    hash: Hash,
    /// From which host to which nothing comes.
    cut: BTreeSet<(usize, usize)>,
    /// Actors that packets came to, or will come to, and when, until that is asked for.
    pub touched: Vec<(u32, u64)>,
}

impl World {
    pub fn new(topology: Topology, seed: u64) -> Result<Self, TopologyError> {
        topology.check()?;
        let routes = Routes::new(&topology)?;
        let lanes: Vec<Lane> = topology.links.iter().flat_map(Lane::pair).collect();
        let leaving = |switch| {
            let from_here =
                lanes.iter().enumerate().filter(move |(_, lane)| lane.from == NodeId::Switch(SwitchId(switch)));
            from_here.map(|(index, _)| index as Direction).collect()
        };
        let switches = topology.switches.iter().enumerate();
        let switches = switches.map(|(index, switch)| SwitchState {
            latency_ps: switch.latency_ns * PS,
            used_bytes: 0,
            leaving: leaving(index),
        });
        Ok(Self {
            switches: switches.collect(),
            routes,
            events: Events::default(),
            generator: SeededGenerator::new(seed),
            packets: Packets::default(),
            lanes,
            pauses: topology.switches.iter().any(|switch| switch.pause.is_some()),
            nodes: Vec::new(),
            by_name: BTreeMap::new(),
            strays: Vec::new(),
            free_strays: Vec::new(),
            sendings: Vec::new(),
            free_sendings: Vec::new(),
            stats: NetworkStats::default(),
            hash: Hash::default(),
            cut: BTreeSet::new(),
            touched: Vec::new(),
            topology,
        })
    }

    pub fn peer_of(index: usize) -> Peer {
        Peer([index as u64, PEER_MARK, 0])
    }

    /// The index of a peer that is, or was, one of our ports.
    pub fn index_of(&self, peer: Peer) -> Option<usize> {
        let Peer([index, PEER_MARK, 0]) = peer else { return None };
        usize::try_from(index).ok().filter(|index| *index < self.nodes.len())
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied().filter(|index| self.nodes[*index].is_open)
    }

    /// What the port of this name did, until `now_ns`.
    pub fn stats_of(&mut self, name: &str, now_ns: u64) -> Option<PortStats> {
        let index = self.by_name.get(name).copied()?;
        Some(self.port_stats(index, now_ns))
    }

    pub fn port_stats(&mut self, index: usize, now_ns: u64) -> PortStats {
        self.settle(index, now_ns);
        self.nodes[index].stats
    }

    /// What happened until `now_ns`.
    pub fn stats(&mut self, now_ns: u64) -> NetworkStats {
        (0..self.nodes.len()).for_each(|index| self.settle(index, now_ns));
        self.stats
    }

    /// A number for all that arrived or was lost until `now_ns`, and when.
    pub fn trace_hash(&mut self, now_ns: u64) -> u64 {
        self.stats(now_ns);
        let mut all = self.hash;
        self.nodes.iter().for_each(|node| all.add(node.hash.0));
        all.0
    }

    /// Opens a port. One that had the same name and is closed is the same to others: packets to it reach this one.
    pub fn open(&mut self, name: &str, host: HostId, config: PortConfig) -> usize {
        if let Some(index) = self.by_name.get(name).copied() {
            let node = &mut self.nodes[index];
            (node.is_open, node.host, node.stats) = (true, host, PortStats::default());
            node.openings += 1;
            node.receive_packets = config.receive_packets;
            return index;
        }
        let index = self.nodes.len();
        self.by_name.insert(name.to_owned(), index);
        self.nodes.push(Node {
            host,
            is_open: true,
            openings: 1,
            actor: None,
            wake_ns: None,
            receive_packets: config.receive_packets,
            waiting: VecDeque::new(),
            coming: Coming::new(),
            hash: Hash::default(),
            stats: PortStats::default(),
            woken: Arc::default(),
            name: name.to_owned(),
        });
        index
    }

    /// Which of the ports that had a place one after another is there now.
    pub fn opening(&self, index: usize) -> u64 {
        self.nodes[index].openings
    }

    pub fn close(&mut self, index: usize, now_ns: u64) {
        self.settle(index, now_ns);
        let node = &mut self.nodes[index];
        node.is_open = false;
        node.actor = None;
        let (waiting, coming) = (std::mem::take(&mut node.waiting), std::mem::take(&mut node.coming));
        waiting.into_iter().for_each(|packet| self.packets.end(packet));
        for (arrives_ns, packet) in coming {
            let flight = Flight { tail_ps: 0, packet, to: index as u32, target: 0, flow: 0, len: 0 };
            self.stray(Stray { flight, on: NONE }, arrives_ns);
        }
    }

    /// Moves packets that have arrived at a port to `lent`, until there are `room` of them. They are the port's until [`Self::give_back`].
    #[inline]
    #[expect(clippy::vec_box)]
    pub fn take_arrived(&mut self, index: usize, now_ns: u64, room: usize, lent: &mut Vec<Box<Packet>>) {
        self.settle(index, now_ns);
        let node = &mut self.nodes[index];
        let count = room.min(node.waiting.len());
        for packet in node.waiting.drain(..count) {
            node.stats.rx_packets += 1;
            node.stats.rx_bytes += u64::from(packet.len());
            self.packets.lend();
            lent.push(packet);
        }
    }

    #[inline]
    pub fn give_back(&mut self, packet: Box<Packet>) {
        self.packets.give_back(packet);
    }

    /// The largest packet between two hosts' links.
    pub fn packet_len_max(&self, host: HostId) -> usize {
        let of_host = |link: &&crate::topology::LinkSpec| link.ends.contains(&NodeId::Host(host));
        self.topology.links.iter().filter(of_host).map(|link| link.mtu).min().unwrap_or(0)
    }

    /// A random number that depends on the seed, and on what else was drawn.
    pub fn random(&mut self) -> u64 {
        self.generator.next_u64()
    }

    /// A packet of some bytes from one port to another, to be [submitted](Self::submit).
    #[inline]
    pub fn pack(&mut self, from: usize, to: usize, head: &[u8], data: &[u8]) -> Flight {
        let len = head.len() + data.len() + self.topology.frame_bytes;
        Flight {
            tail_ps: 0,
            packet: self.packets.pack(from as u32, to as u32, head, data),
            to: to as u32,
            target: self.nodes[to].host.0 as u32,
            flow: Hash::of(&[(from as u64) << 32 | to as u64]) as u32,
            len: len as u32,
        }
    }

    /// Sends packets off, from a core that has come to `now_ns`.
    pub fn submit(&mut self, from: usize, opening: u64, flights: &mut Vec<Flight>, now_ns: u64) {
        let node = &mut self.nodes[from];
        if !node.is_open || node.openings != opening {
            // Of a host that crashed, and may be back.
            return flights.drain(..).for_each(|flight| self.packets.end(flight.packet));
        }
        if flights.is_empty() {
            return;
        }
        node.stats.tx_packets += flights.len() as u64;
        let frames = self.topology.frame_bytes * flights.len();
        node.stats.tx_bytes += flights.iter().map(|flight| u64::from(flight.len)).sum::<u64>() - frames as u64;
        let latency_ns = self.topology.hosts[node.host.0].transmit_latency_ns;
        let host = node.host.0 as u32;
        let sending = self.free_sendings.pop().unwrap_or_else(|| {
            self.sendings.push(Vec::new());
            self.sendings.len() as u32 - 1
        });
        std::mem::swap(&mut self.sendings[sending as usize], flights);
        self.events.add(now_ns + latency_ns, Event::Sent { host, sending });
    }

    /// Does what happens at `now_ns`.
    #[inline]
    pub fn happen(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Landed { lane } => self.landed(lane, now_ns),
            Event::Sent { host, sending } => self.sent(HostId(host as usize), sending, now_ns),
            Event::Stray { stray } => self.stray_lands(stray, now_ns),
            Event::LinkFree { lane } => self.link_free(lane, now_ns),
            Event::Paused { lane, paused } => self.paused(lane, paused, now_ns),
            Event::Turn { .. } => unreachable!("turns are the cluster's"),
        }
    }

    /// Packets of a port have come to its host's interface.
    fn sent(&mut self, host: HostId, sending: u32, now_ns: u64) {
        let mut flights = std::mem::take(&mut self.sendings[sending as usize]);
        for flight in flights.drain(..) {
            match self.routes.way(NodeId::Host(host), HostId(flight.target as usize), flight.flow) {
                Some(lane) => self.queue(lane, Waiting { flight, ready_ps: now_ns * PS, came_by: NONE }, now_ns),
                // To a port of the same host: the interface turns it around.
                None => {
                    let latency_ns = self.topology.hosts[host.0].receive_latency_ns;
                    self.stray(Stray { flight, on: NONE }, now_ns + latency_ns);
                }
            }
        }
        self.sendings[sending as usize] = flights;
        self.free_sendings.push(sending);
    }

    /// Gives a packet its turn on a lane.
    #[inline]
    fn queue(&mut self, lane_index: Direction, packet: Waiting, now_ns: u64) {
        if self.pauses {
            return self.queue_for(lane_index, packet, now_ns);
        }
        let lane = &mut self.lanes[lane_index as usize];
        if lane.busy_until_ps > packet.ready_ps {
            let gone = lane.settle(now_ns);
            lane.hold(packet.flight.len);
            lane.leaving.push_back((lane.busy_until_ps, packet.flight.len));
            if let NodeId::Switch(switch) = lane.from {
                let used = &mut self.switches[switch.0].used_bytes;
                *used = *used + u64::from(packet.flight.len) - gone;
            }
        }
        self.start(lane_index, packet.flight, packet.ready_ps);
    }

    #[inline]
    fn settle_lane(&mut self, lane_index: Direction, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        let gone = lane.settle(now_ns);
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes -= gone;
        }
    }

    /// A packet leaves on a lane, as soon as that is free.
    #[inline]
    fn start(&mut self, lane_index: Direction, mut flight: Flight, ready_ps: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        let started_ps = lane.busy_until_ps.max(ready_ps);
        lane.busy_until_ps = started_ps + lane.takes_ps(flight.len);
        lane.stats.packets += 1;
        lane.stats.bytes += u64::from(flight.len);
        flight.tail_ps = lane.busy_until_ps + lane.delay_ps;
        if lane.is_up && lane.faults.is_none() {
            return self.fly(lane_index, flight);
        }
        let late_ns = if lane.is_up { self.go_wrong(lane_index, &mut flight) } else { None };
        match late_ns {
            None => self.lose(flight.packet, started_ps / PS),
            Some(0) => self.fly(lane_index, flight),
            Some(late_ns) => {
                let arrives_ns = self.arrives_ns(lane_index, &flight) + late_ns;
                self.stray(Stray { flight, on: lane_index }, arrives_ns);
            }
        }
    }

    /// When the head of a packet is at a switch, or all of it in a host's memory.
    #[inline]
    fn arrives_ns(&self, lane_index: Direction, flight: &Flight) -> u64 {
        let lane = &self.lanes[lane_index as usize];
        match lane.to {
            NodeId::Switch(_) => lane.head_ns(flight),
            NodeId::Host(host) => flight.tail_ps.div_ceil(PS) + self.topology.hosts[host.0].receive_latency_ns,
        }
    }

    /// A packet is on a lane, behind all that were before.
    #[inline]
    fn fly(&mut self, lane_index: Direction, flight: Flight) {
        let arrives_ns = self.arrives_ns(lane_index, &flight);
        let lane = &mut self.lanes[lane_index as usize];
        if let NodeId::Host(_) = lane.to {
            let node = &mut self.nodes[flight.to as usize];
            if let Some(actor) = node.actor
                && node.coming.back().is_none_or(|(last_ns, _)| *last_ns <= arrives_ns)
            {
                node.coming.push_back((arrives_ns, flight.packet));
                self.touched.push((actor, arrives_ns));
                return;
            }
        }
        lane.flying.push_back(flight);
        if lane.flying.len() == 1 {
            self.events.add(arrives_ns, Event::Landed { lane: lane_index });
        }
    }

    /// The first packet of a lane is at its end.
    #[inline]
    fn landed(&mut self, lane_index: Direction, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        let Some(flight) = lane.flying.pop_front() else { return };
        let to = lane.to;
        if let Some(next) = self.lanes[lane_index as usize].flying.front() {
            let next_ns = self.arrives_ns(lane_index, next);
            self.events.add(next_ns, Event::Landed { lane: lane_index });
        }
        match to {
            NodeId::Host(_) => self.deliver(flight.packet, now_ns),
            NodeId::Switch(switch) => self.forward(switch, lane_index, flight, now_ns),
        }
    }

    /// Foresees the arrival of a packet by itself.
    fn stray(&mut self, stray: Stray, arrives_ns: u64) {
        let index = match self.free_strays.pop() {
            Some(index) => {
                self.strays[index as usize] = Some(stray);
                index
            }
            None => {
                self.strays.push(Some(stray));
                self.strays.len() as u32 - 1
            }
        };
        self.events.add(arrives_ns, Event::Stray { stray: index });
    }

    fn stray_lands(&mut self, index: u32, now_ns: u64) {
        let Some(Stray { flight, on }) = self.strays[index as usize].take() else { return };
        self.free_strays.push(index);
        match self.lanes.get(on as usize).map(|lane| lane.to) {
            Some(NodeId::Switch(switch)) => self.forward(switch, on, flight, now_ns),
            _ => self.deliver(flight.packet, now_ns),
        }
    }

    /// Draws what goes wrong with a packet; returns how late it is, or nothing when it is lost.
    fn go_wrong(&mut self, lane_index: Direction, flight: &mut Flight) -> Option<u64> {
        let lane = &self.lanes[lane_index as usize];
        let (faults, delay_ns) = (lane.faults?, lane.delay_ps / PS);
        if self.generator.chance(faults.loss) {
            return None;
        }
        if self.generator.chance(faults.corruption) {
            let bits = u64::from(flight.packet.len()) * 8;
            flight.packet.flip(self.generator.below(bits));
            self.stats.corrupted += 1;
        }
        if self.generator.chance(faults.duplication) {
            let packet = self.packets.twin(&flight.packet);
            let latency_ns = match lane.to {
                NodeId::Switch(_) => 0,
                NodeId::Host(host) => self.topology.hosts[host.0].receive_latency_ns,
            };
            let arrives_ns = flight.tail_ps.div_ceil(PS) + latency_ns + delay_ns;
            let Flight { tail_ps, to, target, flow, len, .. } = *flight;
            self.stray(Stray { flight: Flight { tail_ps, packet, to, target, flow, len }, on: lane_index }, arrives_ns);
            self.stats.duplicated += 1;
        }
        Some(if self.generator.chance(faults.reordering) { faults.reordering_ns } else { 0 })
    }

    /// A packet's head is at a switch.
    #[inline]
    fn forward(&mut self, switch: SwitchId, came_by: Direction, mut flight: Flight, now_ns: u64) {
        let target = HostId(flight.target as usize);
        let Some(lane_index) = self.routes.way(NodeId::Switch(switch), target, flight.flow) else {
            return self.lose(flight.packet, now_ns);
        };
        let lane = &self.lanes[lane_index as usize];
        // It cannot leave faster than it comes.
        let as_it_comes_ps = flight.tail_ps.saturating_sub(lane.takes_ps(flight.len));
        let ready_ps = (now_ns * PS).max(as_it_comes_ps) + self.switches[switch.0].latency_ps;
        let waits = !lane.queue.is_empty() || lane.is_paused || lane.busy_until_ps > ready_ps;
        if waits {
            if !self.has_room(switch, lane_index, u64::from(flight.len), now_ns) {
                self.stats.overflowed += 1;
                self.lanes[lane_index as usize].stats.overflowed += 1;
                return self.lose(flight.packet, now_ns);
            }
            if self.marks(switch, lane_index) {
                flight.packet.is_marked = true;
                self.stats.marked += 1;
            }
        }
        self.queue(lane_index, Waiting { flight, ready_ps, came_by }, now_ns);
    }

    fn has_room(&mut self, switch: SwitchId, lane_index: Direction, len: u64, now_ns: u64) -> bool {
        self.settle_lane(lane_index, now_ns);
        if self.fits(switch, lane_index, len) {
            return true;
        }
        // What left by other lanes may not have been noted yet.
        for at in 0..self.switches[switch.0].leaving.len() {
            self.settle_lane(self.switches[switch.0].leaving[at], now_ns);
        }
        self.fits(switch, lane_index, len)
    }

    fn fits(&self, switch: SwitchId, lane_index: Direction, len: u64) -> bool {
        let queued = self.lanes[lane_index as usize].queued_bytes;
        match self.topology.switches[switch.0].buffer {
            Buffer::PerPort { bytes } => queued + len <= bytes,
            Buffer::Shared { bytes, alpha } => {
                let free = bytes.saturating_sub(self.switches[switch.0].used_bytes);
                len <= free && queued as f64 <= alpha * free as f64
            }
        }
    }

    fn marks(&mut self, switch: SwitchId, lane_index: Direction) -> bool {
        let Some(ecn) = self.topology.switches[switch.0].ecn else { return false };
        let queued = self.lanes[lane_index as usize].queued_bytes;
        if queued < ecn.min_bytes {
            return false;
        }
        if queued >= ecn.max_bytes {
            return true;
        }
        let part = (queued - ecn.min_bytes) as f64 / (ecn.max_bytes - ecn.min_bytes) as f64;
        self.generator.chance(ecn.probability * part)
    }

    /// As [`Self::queue`], where the lane may be paused.
    fn queue_for(&mut self, lane_index: Direction, packet: Waiting, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        if lane.queue.is_empty() && !lane.is_paused && lane.busy_until_ps <= packet.ready_ps {
            return self.start(lane_index, packet.flight, packet.ready_ps);
        }
        let (len, came_by) = (packet.flight.len, packet.came_by);
        lane.hold(len);
        lane.queue.push_back(packet);
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes += u64::from(len);
            self.hold(switch, came_by, u64::from(len), now_ns);
        }
        self.await_lane(lane_index);
    }

    fn await_lane(&mut self, lane_index: Direction) {
        let lane = &mut self.lanes[lane_index as usize];
        if !lane.is_awaited && !lane.is_paused && !lane.queue.is_empty() {
            lane.is_awaited = true;
            self.events.add(lane.busy_until_ps.div_ceil(PS), Event::LinkFree { lane: lane_index });
        }
    }

    fn link_free(&mut self, lane_index: Direction, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        lane.is_awaited = false;
        if lane.is_paused {
            return;
        }
        let Some(Waiting { flight, ready_ps, came_by }) = lane.queue.pop_front() else { return };
        let len = u64::from(flight.len);
        lane.queued_bytes -= len;
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes -= len;
            self.let_go(switch, came_by, len, now_ns);
        }
        self.start(lane_index, flight, ready_ps);
        self.await_lane(lane_index);
    }

    /// A switch holds so much more that came by a lane.
    fn hold(&mut self, switch: SwitchId, came_by: Direction, len: u64, now_ns: u64) {
        let Some(pause) = self.topology.switches[switch.0].pause else { return };
        let lane = &mut self.lanes[came_by as usize];
        lane.held_bytes += len;
        if lane.held_bytes >= pause.off_bytes && !lane.asked_to_pause {
            lane.asked_to_pause = true;
            self.stats.pauses += 1;
            let heard_ns = now_ns + lane.delay_ps / PS;
            self.events.add(heard_ns, Event::Paused { lane: came_by, paused: true });
        }
    }

    fn let_go(&mut self, switch: SwitchId, came_by: Direction, len: u64, now_ns: u64) {
        let Some(pause) = self.topology.switches[switch.0].pause else { return };
        let lane = &mut self.lanes[came_by as usize];
        lane.held_bytes -= len;
        if lane.held_bytes <= pause.on_bytes && lane.asked_to_pause {
            lane.asked_to_pause = false;
            let heard_ns = now_ns + lane.delay_ps / PS;
            self.events.add(heard_ns, Event::Paused { lane: came_by, paused: false });
        }
    }

    fn paused(&mut self, lane_index: Direction, paused: bool, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        lane.is_paused = paused;
        if !paused {
            // What waited while the link was free could have left only now.
            lane.busy_until_ps = lane.busy_until_ps.max(now_ns * PS);
            self.await_lane(lane_index);
        }
    }

    /// A packet is in a host's memory now.
    fn deliver(&mut self, packet: Box<Packet>, now_ns: u64) {
        let to = packet.to as usize;
        self.settle(to, now_ns);
        self.arrive(to, packet, now_ns);
        if let Some(actor) = self.nodes[to].actor {
            self.touched.push((actor, now_ns));
        }
    }

    /// Lets arrive what has arrived at a port by now.
    #[inline]
    fn settle(&mut self, index: usize, now_ns: u64) {
        // All of them at once: they were sent a while ago.
        let arrived = self.nodes[index].coming.iter().take_while(|(at_ns, _)| *at_ns <= now_ns);
        arrived.for_each(|(_, packet)| sinew_mem::prefetch_read::<Packet>(packet));
        while let Some((arrived_ns, packet)) = self.nodes[index].coming.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            self.arrive(index, packet, arrived_ns);
        }
    }

    #[inline]
    fn arrive(&mut self, to: usize, packet: Box<Packet>, now_ns: u64) {
        let (from, len) = (packet.from, packet.len());
        let is_cut =
            !self.cut.is_empty() && self.cut.contains(&(self.nodes[from as usize].host.0, self.nodes[to].host.0));
        let node = &mut self.nodes[to];
        let is_full = node.waiting.len() >= node.receive_packets;
        let is_lost = is_cut || !node.is_open || is_full;
        node.hash.add(if is_lost { !now_ns } else { now_ns });
        node.hash.add(u64::from(from) << 32 | u64::from(len));
        if is_lost {
            if is_full && !is_cut && node.is_open {
                node.stats.count_dropped(Dropped::Overflow, 1);
            }
            self.stats.lost += 1;
            return self.packets.end(packet);
        }
        self.stats.delivered += 1;
        node.waiting.push_back(packet);
    }

    fn lose(&mut self, packet: Box<Packet>, now_ns: u64) {
        self.stats.lost += 1;
        self.hash.add(!now_ns);
        self.hash.add(u64::from(packet.from) << 32 | u64::from(packet.to));
        self.packets.end(packet);
    }

    pub fn set_faults(&mut self, lane: Direction, faults: LinkFaults) {
        self.lanes[lane as usize].faults = faults.any().then_some(faults);
    }

    /// A lane that is down from now on loses what starts there; what has left, or has been given its time, arrives.
    pub fn set_up(&mut self, lane: Direction, up: bool) {
        self.lanes[lane as usize].is_up = up;
    }

    pub fn set_cut(&mut self, from: HostId, to: HostId, cut: bool, now_ns: u64) {
        // What was there before arrived before.
        self.stats(now_ns);
        if cut {
            self.cut.insert((from.0, to.0));
        } else {
            self.cut.remove(&(from.0, to.0));
        }
    }

    pub fn lane_stats(&self, lane: Direction, now_ns: u64) -> LinkStats {
        self.lanes[lane as usize].stats(now_ns)
    }

    pub fn take_queued_max(&mut self, lane_index: Direction, now_ns: u64) -> u64 {
        self.settle_lane(lane_index, now_ns);
        let lane = &mut self.lanes[lane_index as usize];
        std::mem::replace(&mut lane.stats.queued_bytes_max, lane.queued_bytes)
    }

    /// Packets on their way, for those who wonder why nothing happens.
    pub fn in_flight(&self) -> usize {
        self.packets.in_flight()
    }

    /// Packets that reached a port's receive queue, as far as somebody looked.
    pub fn delivered(&self) -> u64 {
        self.stats.delivered
    }
}
