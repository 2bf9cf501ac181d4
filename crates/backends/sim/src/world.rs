//! What the ports of a simulated network share: packets on their way, links, switches' queues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sinew_fabric::{Dropped, Generator, Peer, PortStats, SeededGenerator};
use sinew_mem::atomic::plain::Arc;

use crate::events::{Event, Events};
use crate::faults::LinkFaults;
use crate::flights::{Flight, Flights, Row};
use crate::hash::Hash;
use crate::lanes::{Lane, PS, Waiting, ceil_ns};
use crate::network::{LinkStats, NetworkStats, PortConfig};
use crate::packets::{Coming, Packet, Packets};
use crate::routes::{Direction, Routes};
use crate::topology::{Buffer, Ecn, HostId, NodeId, Pause, SwitchId, Topology, TopologyError};
use crate::wakes::{Source, Wakes};

/// Marks the peers of simulated ports, so that others' peers are not taken for them.
const PEER_MARK: u64 = 0x7369_6d70_6f72_7473;
/// No lane.
const NONE: Direction = Direction::MAX;

#[derive(Debug)]
struct SwitchState {
    latency_ps: u64,
    used_bytes: u64,
    buffer: Buffer,
    ecn: Option<Ecn>,
    pause: Option<Pause>,
    /// The lanes that leave it.
    leaving: Vec<Direction>,
}

impl SwitchState {
    /// Whether so many bytes more may wait for a lane of its that `queued` bytes wait for.
    #[inline]
    fn fits(&self, queued: u64, len: u64) -> bool {
        match self.buffer {
            Buffer::PerPort { bytes } => queued + len <= bytes,
            Buffer::Shared { bytes, alpha } => {
                let free = bytes.saturating_sub(self.used_bytes);
                // Of a signed number a float is made in one instruction, and no switch has more bytes than it can say.
                len <= free && queued as i64 as f64 <= alpha * free as i64 as f64
            }
        }
    }
}

/// Packets of a port that are to be submitted together.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    row: Row,
    packets: u64,
    /// Of them, without their frames.
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
    /// The actor's last turn in which it said so, and how often it did.
    pub waits: (u64, u32),
    pub receive_packets: usize,
    /// Packets that have arrived.
    pub waiting: VecDeque<Box<Packet>>,
    /// Packets that have arrived at their times, whenever somebody looks: an actor looks when it has its turn, so that no event is needed.
    coming: Coming,
    /// Of what arrived here, and when.
    hash: Hash,
    pub stats: PortStats,
    /// Wakes who works on this port.
    pub source: Arc<Source>,
    pub name: String,
}

impl Node {
    /// Whether a packet arrives here by itself, without an event: when an actor looks, and behind all that do.
    #[inline]
    fn foresees(&self, arrives_ns: u64) -> bool {
        self.actor.is_some() && self.coming.back().is_none_or(|(last_ns, _)| *last_ns <= arrives_ns)
    }

    /// What has arrived by now will be looked at: all of it at once, since it was sent a while ago.
    #[inline]
    fn prefetch(&self, now_ns: u64) {
        let arrived = self.coming.iter().take_while(|(at_ns, _)| *at_ns <= now_ns);
        arrived.for_each(|(_, packet)| sinew_mem::prefetch_read::<Packet>(packet));
    }

    /// A packet arrived, or was lost here (a time that no simulation comes to).
    #[inline]
    fn note(&mut self, packet: &Packet, arrived_ns: u64) {
        self.hash.add(arrived_ns);
        self.hash.add(u64::from(packet.from) << 32 | u64::from(packet.len()));
    }

    /// Hands an arrived packet to the port.
    #[inline]
    #[expect(clippy::vec_box)]
    fn lend(&mut self, packet: Box<Packet>, lent: &mut Vec<Box<Packet>>) {
        self.stats.rx_packets += 1;
        self.stats.rx_bytes += u64::from(packet.len());
        lent.push(packet);
    }

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
    flights: Flights,
    lanes: Vec<Lane>,
    switches: Vec<SwitchState>,
    /// Whether any switch asks its neighbours to pause.
    pauses: bool,
    pub nodes: Vec<Node>,
    by_name: BTreeMap<String, usize>,
    stats: NetworkStats,
    /// Of what was lost on the way.
    hash: Hash,
    /// From which host to which nothing comes.
    cut: BTreeSet<(usize, usize)>,
    /// Actors that packets came to, or will come to, and when, until that is asked for.
    pub touched: Vec<(u32, u64)>,
    wakes: Arc<Wakes>,
}

impl World {
    pub fn new(topology: Topology, seed: u64, wakes: Arc<Wakes>) -> Result<Self, TopologyError> {
        topology.check()?;
        let routes = Routes::new(&topology)?;
        let latency_ns = |host: HostId| topology.hosts[host.0].receive_latency_ns;
        let lanes: Vec<Lane> = topology.links.iter().flat_map(|link| Lane::pair(link, latency_ns)).collect();
        let leaving = |switch| {
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
            leaving: leaving(index),
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
            by_name: BTreeMap::new(),
            stats: NetworkStats::default(),
            hash: Hash::default(),
            cut: BTreeSet::new(),
            touched: Vec::new(),
            wakes,
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
            waits: (0, 0),
            receive_packets: config.receive_packets,
            waiting: VecDeque::new(),
            coming: Coming::new(),
            hash: Hash::default(),
            stats: PortStats::default(),
            source: self.wakes.source(),
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
        node.source.leave();
        let (waiting, coming) = (std::mem::take(&mut node.waiting), std::mem::take(&mut node.coming));
        waiting.into_iter().for_each(|packet| self.packets.end(packet));
        for (arrives_ns, packet) in coming {
            let flight = self.flights.begin(Flight::new(packet, 0, 0, 0));
            self.stray(flight, NONE, arrives_ns);
        }
    }

    /// Moves packets that have arrived at a port to `lent`, until there are `room` of them. They are the port's until [`Self::give_back`].
    #[inline]
    #[expect(clippy::vec_box)]
    pub fn take_arrived(&mut self, index: usize, now_ns: u64, room: usize, lent: &mut Vec<Box<Packet>>) {
        let node = &mut self.nodes[index];
        if node.waiting.is_empty() && node.coming.len() <= node.receive_packets && node.is_open && self.cut.is_empty() {
            // As a rule: all arrive, and need not wait in between.
            node.prefetch(now_ns);
            while lent.len() < room
                && let Some((arrived_ns, packet)) = node.coming.pop_front_if(|(at_ns, _)| *at_ns <= now_ns)
            {
                node.note(&packet, arrived_ns);
                self.stats.delivered += 1;
                self.packets.lend();
                node.lend(packet, lent);
            }
        }
        self.settle(index, now_ns);
        let node = &mut self.nodes[index];
        while lent.len() < room
            && let Some(packet) = node.waiting.pop_front()
        {
            self.packets.lend();
            node.lend(packet, lent);
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

    /// Sends packets off, from a core that has come to `now_ns`.
    pub fn submit(&mut self, from: usize, opening: u64, sending: Sending, now_ns: u64) {
        let Some(first) = sending.row.first() else { return };
        let node = &mut self.nodes[from];
        if !node.is_open || node.openings != opening {
            // Of a host that crashed, and may be back.
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

    /// Does what happens at `now_ns`.
    #[inline]
    pub fn happen(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Landed { lane, flight } => self.landed(lane, flight, now_ns),
            Event::Sent { host, first } => self.sent(HostId(host as usize), first, now_ns),
            Event::Stray { flight, on } => self.stray_lands(flight, on, now_ns),
            Event::LinkFree { lane } => self.link_free(lane, now_ns),
            Event::Paused { lane, paused } => self.paused(lane, paused, now_ns),
            Event::Turn { .. } => unreachable!("turns are the cluster's"),
        }
    }

    /// Packets of a port have come to its host's interface.
    fn sent(&mut self, host: HostId, first: u32, now_ns: u64) {
        let mut next = Some(first);
        while let Some(index) = next {
            next = self.flights.next(index);
            let flight = &self.flights[index];
            match self.routes.way(NodeId::Host(host), HostId(flight.target as usize), flight.flow) {
                Some(lane) => {
                    self.settle_lane(lane, now_ns);
                    self.queue(lane, Waiting { flight: index, ready_ps: now_ns * PS, came_by: NONE }, now_ns);
                }
                // To a port of the same host: the interface turns it around.
                None => {
                    let latency_ns = self.topology.hosts[host.0].receive_latency_ns;
                    self.stray(index, NONE, now_ns + latency_ns);
                }
            }
        }
    }

    /// Gives a packet its turn on a lane, of which what has left is noted.
    // This and the next two are one way, which a packet goes three or four times; apart they take a tenth more instructions.
    #[inline(always)]
    fn queue(&mut self, lane_index: Direction, packet: Waiting, now_ns: u64) {
        if self.pauses {
            return self.queue_for(lane_index, packet, now_ns);
        }
        let lane = &mut self.lanes[lane_index as usize];
        if lane.busy_until_ps > packet.ready_ps {
            let len = self.flights[packet.flight].len;
            lane.hold(len);
            lane.leaving.push_back((lane.busy_until_ps, len));
            if let NodeId::Switch(switch) = lane.from {
                self.switches[switch.0].used_bytes += u64::from(len);
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
    #[inline(always)]
    fn start(&mut self, lane_index: Direction, index: u32, ready_ps: u64) {
        let (mut lane, flight) = (&mut self.lanes[lane_index as usize], &mut self.flights[index]);
        let (started_ps, arrives_ns) = lane.start(flight, ready_ps);
        let to = flight.to;
        if !lane.is_up || lane.faults.is_some() {
            if !self.comes_through(lane_index, index, started_ps / PS, arrives_ns) {
                return;
            }
            lane = &mut self.lanes[lane_index as usize];
        }
        if let NodeId::Host(_) = lane.to
            && self.nodes[to as usize].foresees(arrives_ns)
        {
            return self.foresee(index, to, arrives_ns);
        }
        if self.flights.append(&mut lane.flying, index, arrives_ns) {
            self.events.add(arrives_ns, Event::Landed { lane: lane_index, flight: index });
        }
    }

    /// Whether a packet on a lane that has faults, or is down, arrives in its order.
    #[cold]
    fn comes_through(&mut self, lane_index: Direction, index: u32, started_ns: u64, arrives_ns: u64) -> bool {
        let late_ns = if self.lanes[lane_index as usize].is_up { self.go_wrong(lane_index, index) } else { None };
        match late_ns {
            None => self.lose(index, started_ns),
            Some(0) => return true,
            Some(late_ns) => self.stray(index, lane_index, arrives_ns + late_ns),
        }
        false
    }

    /// A packet will have arrived when an actor looks.
    #[inline]
    fn foresee(&mut self, index: u32, to: u32, arrives_ns: u64) {
        let node = &mut self.nodes[to as usize];
        node.coming.push_back((arrives_ns, self.flights.end(index)));
        self.touched.extend(node.actor.map(|actor| (actor, arrives_ns)));
    }

    /// The first packet of a lane is at its end.
    #[inline]
    fn landed(&mut self, lane_index: Direction, index: u32, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        if let Some((next, next_ns)) = self.flights.take_first(&mut lane.flying, index) {
            self.events.add(next_ns, Event::Landed { lane: lane_index, flight: next });
        }
        match lane.to {
            NodeId::Host(_) => self.deliver(index, now_ns),
            NodeId::Switch(switch) => self.forward(switch, lane_index, index, now_ns),
        }
    }

    /// Foresees the arrival of a packet by itself: not in the order of the lane that it is on.
    fn stray(&mut self, flight: u32, on: Direction, arrives_ns: u64) {
        self.events.add(arrives_ns, Event::Stray { flight, on });
    }

    #[cold]
    fn stray_lands(&mut self, flight: u32, on: Direction, now_ns: u64) {
        match self.lanes.get(on as usize).map(|lane| lane.to) {
            Some(NodeId::Switch(switch)) => self.forward(switch, on, flight, now_ns),
            _ => self.deliver(flight, now_ns),
        }
    }

    /// Draws what goes wrong with a packet; returns how late it is, or nothing when it is lost.
    fn go_wrong(&mut self, lane_index: Direction, index: u32) -> Option<u64> {
        let (lane, flight) = (&self.lanes[lane_index as usize], &mut self.flights[index]);
        let (faults, delay_ns) = (lane.faults?, lane.delay_ps / PS);
        if self.generator.chance(faults.loss) {
            return None;
        }
        let packet = flight.packet();
        if self.generator.chance(faults.corruption) {
            let bits = u64::from(packet.len()) * 8;
            packet.flip(self.generator.below(bits));
            self.stats.corrupted += 1;
        }
        if self.generator.chance(faults.duplication) {
            let packet = self.packets.twin(packet);
            let arrives_ns = ceil_ns(flight.tail_ps) + lane.latency_ns + delay_ns;
            let mut twin = Flight::new(packet, flight.target, flight.flow, flight.len);
            twin.tail_ps = flight.tail_ps;
            let twin = self.flights.begin(twin);
            self.stray(twin, lane_index, arrives_ns);
            self.stats.duplicated += 1;
        }
        Some(if self.generator.chance(faults.reordering) { faults.reordering_ns } else { 0 })
    }

    /// A packet's head is at a switch.
    #[inline(always)]
    fn forward(&mut self, switch: SwitchId, came_by: Direction, index: u32, now_ns: u64) {
        let flight = &mut self.flights[index];
        let (target, len) = (HostId(flight.target as usize), flight.len);
        let Some(lane_index) = self.routes.way(NodeId::Switch(switch), target, flight.flow) else {
            return self.lose(index, now_ns);
        };
        let lane = &self.lanes[lane_index as usize];
        // It cannot leave faster than it comes.
        let as_it_comes_ps = flight.tail_ps.saturating_sub(lane.takes_ps(len));
        let ready_ps = (now_ns * PS).max(as_it_comes_ps) + self.switches[switch.0].latency_ps;
        let waits = lane.busy_until_ps > ready_ps || self.pauses && (!lane.queue.is_empty() || lane.is_paused);
        if waits {
            if !self.has_room(switch, lane_index, u64::from(len), now_ns) {
                return self.overflow(lane_index, index, now_ns);
            }
            if self.marks(switch, lane_index) {
                self.flights[index].packet().is_marked = true;
                self.stats.marked += 1;
            }
        }
        self.queue(lane_index, Waiting { flight: index, ready_ps, came_by }, now_ns);
    }

    #[cold]
    fn overflow(&mut self, lane_index: Direction, flight: u32, now_ns: u64) {
        self.stats.overflowed += 1;
        self.lanes[lane_index as usize].stats.overflowed += 1;
        self.lose(flight, now_ns);
    }

    #[inline]
    fn has_room(&mut self, switch: SwitchId, lane_index: Direction, len: u64, now_ns: u64) -> bool {
        let (lane, state) = (&mut self.lanes[lane_index as usize], &mut self.switches[switch.0]);
        state.used_bytes -= lane.settle(now_ns);
        state.fits(lane.queued_bytes, len) || self.has_room_after_all(switch, lane_index, len, now_ns)
    }

    /// What left by other lanes may not have been noted yet.
    #[cold]
    fn has_room_after_all(&mut self, switch: SwitchId, lane_index: Direction, len: u64, now_ns: u64) -> bool {
        for at in 0..self.switches[switch.0].leaving.len() {
            self.settle_lane(self.switches[switch.0].leaving[at], now_ns);
        }
        self.switches[switch.0].fits(self.lanes[lane_index as usize].queued_bytes, len)
    }

    #[inline]
    fn marks(&mut self, switch: SwitchId, lane_index: Direction) -> bool {
        let Some(ecn) = self.switches[switch.0].ecn else { return false };
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
        let (len, came_by) = (self.flights[packet.flight].len, packet.came_by);
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
            self.events.add(ceil_ns(lane.busy_until_ps), Event::LinkFree { lane: lane_index });
        }
    }

    #[inline(never)]
    fn link_free(&mut self, lane_index: Direction, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        lane.is_awaited = false;
        if lane.is_paused {
            return;
        }
        let Some(Waiting { flight, ready_ps, came_by }) = lane.queue.pop_front() else { return };
        let len = u64::from(self.flights[flight].len);
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
        let Some(pause) = self.switches[switch.0].pause else { return };
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
        let Some(pause) = self.switches[switch.0].pause else { return };
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
    fn deliver(&mut self, flight: u32, now_ns: u64) {
        let packet = self.flights.end(flight);
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
        if self.nodes[index].next_ns().is_none_or(|next_ns| next_ns > now_ns) {
            return;
        }
        self.nodes[index].prefetch(now_ns);
        while let Some((arrived_ns, packet)) = self.nodes[index].coming.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            self.arrive(index, packet, arrived_ns);
        }
    }

    fn arrive(&mut self, to: usize, packet: Box<Packet>, now_ns: u64) {
        let from = packet.from as usize;
        let is_cut = !self.cut.is_empty() && self.cut.contains(&(self.nodes[from].host.0, self.nodes[to].host.0));
        let node = &mut self.nodes[to];
        let is_full = node.waiting.len() >= node.receive_packets;
        let is_lost = is_cut || !node.is_open || is_full;
        node.note(&packet, if is_lost { !now_ns } else { now_ns });
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

    #[cold]
    fn lose(&mut self, flight: u32, now_ns: u64) {
        let packet = self.flights.end(flight);
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
