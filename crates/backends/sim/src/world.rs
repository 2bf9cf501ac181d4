//! What the ports of a simulated network share: packets on their way, links, switches' queues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sinew_fabric::{Dropped, Generator, Peer, PortStats, SeededGenerator};
use sinew_mem::atomic::plain::Arc;

use crate::events::{Event, Events};
use crate::faults::LinkFaults;
use crate::hash::Hash;
use crate::network::{LinkStats, NetworkStats, PortConfig};
use crate::port::WakeFlag;
use crate::routes::{Direction, Routes};
use crate::topology::{Buffer, HostId, NodeId, SwitchId, Topology, TopologyError};

/// Marks the peers of simulated ports, so that others' peers are not taken for them.
const PEER_MARK: u64 = 0x7369_6d70_6f72_7473;
/// No packet.
const NONE: u32 = u32::MAX;
const PS: u64 = 1000;

/// A packet on its way.
#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    from: u32,
    to: u32,
    /// Whether a switch found it in a long queue.
    is_marked: bool,
    target: HostId,
    /// The next of those that were submitted together.
    next: u32,
    /// The direction that it is on, or waits for.
    on: Direction,
    /// The direction that it came to a switch by, while it waits there.
    came_by: Direction,
    flow: u64,
    /// When its last byte is at the end of the link that it is on.
    tail_ps: u64,
    /// When it may leave at the earliest.
    ready_ps: u64,
}

/// A packet that a port lends.
#[derive(Debug)]
pub(crate) struct Arrived {
    number: u32,
    pub from: Peer,
    pub is_marked: bool,
    pub bytes: Vec<u8>,
}

/// A direction of a link, with what waits for it.
#[derive(Debug)]
struct Lane {
    from: NodeId,
    to: NodeId,
    ps_per_byte: u64,
    delay_ps: u64,
    busy_until_ps: u64,
    queue: VecDeque<u32>,
    queued_bytes: u64,
    /// Whether a `LinkFree` is foreseen.
    is_awaited: bool,
    is_paused: bool,
    is_up: bool,
    faults: LinkFaults,
    /// Of what came by this lane, bytes that wait in the switch at its end.
    held_bytes: u64,
    /// Whether its sender was asked to pause.
    asked_to_pause: bool,
    stats: LinkStats,
}

#[derive(Debug)]
struct SwitchState {
    latency_ps: u64,
    used_bytes: u64,
}

/// A port as the network sees it. They are never removed, so an index names one for good.
#[derive(Debug)]
pub(crate) struct Node {
    pub name: String,
    pub host: HostId,
    pub is_open: bool,
    pub config: PortConfig,
    /// Packets that have arrived.
    pub waiting: VecDeque<u32>,
    pub stats: PortStats,
    pub woken: Arc<WakeFlag>,
    /// The actor that works on this port.
    pub actor: Option<u32>,
    /// When it wants its next turn at the latest.
    pub wake_ns: Option<u64>,
}

/// See the module.
pub(crate) struct World {
    pub topology: Topology,
    routes: Routes,
    pub events: Events,
    generator: SeededGenerator,
    packets: Vec<Packet>,
    free: Vec<u32>,
    lanes: Vec<Lane>,
    switches: Vec<SwitchState>,
    pub nodes: Vec<Node>,
    by_name: BTreeMap<String, usize>,
    pub stats: NetworkStats,
    pub hash: Hash,
    /// Hosts that are cut off from each other.
    cut: BTreeSet<(usize, usize)>,
    /// Whose port the packet came to that was last delivered, until that is asked for.
    pub touched: Option<u32>,
}

impl World {
    pub fn new(topology: Topology, seed: u64) -> Result<Self, TopologyError> {
        topology.check()?;
        let routes = Routes::new(&topology)?;
        let lanes = topology.links.iter().flat_map(|link| {
            let [a, b] = link.ends;
            [(a, b), (b, a)].map(|(from, to)| Lane {
                from,
                to,
                ps_per_byte: (8_000.0 / link.rate_gbps).round() as u64,
                delay_ps: link.delay_ns * PS,
                busy_until_ps: 0,
                queue: VecDeque::new(),
                queued_bytes: 0,
                is_awaited: false,
                is_paused: false,
                is_up: true,
                faults: LinkFaults::default(),
                held_bytes: 0,
                asked_to_pause: false,
                stats: LinkStats::default(),
            })
        });
        let lanes = lanes.collect();
        let switches = topology.switches.iter();
        let switches =
            switches.map(|switch| SwitchState { latency_ps: switch.latency_ns * PS, used_bytes: 0 }).collect();
        Ok(Self {
            routes,
            events: Events::default(),
            generator: SeededGenerator::new(seed),
            packets: Vec::new(),
            free: Vec::new(),
            lanes,
            switches,
            nodes: Vec::new(),
            by_name: BTreeMap::new(),
            stats: NetworkStats::default(),
            hash: Hash::default(),
            cut: BTreeSet::new(),
            touched: None,
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

    pub fn stats_of(&self, name: &str) -> Option<PortStats> {
        self.by_name.get(name).map(|index| self.nodes[*index].stats)
    }

    /// Opens a port. One that had the same name and is closed is the same to others: packets to it reach this one.
    pub fn open(&mut self, name: &str, host: HostId, config: PortConfig) -> usize {
        if let Some(index) = self.by_name.get(name).copied() {
            let node = &mut self.nodes[index];
            (node.is_open, node.host, node.config, node.stats) = (true, host, config, PortStats::default());
            return index;
        }
        let index = self.nodes.len();
        self.by_name.insert(name.to_owned(), index);
        self.nodes.push(Node {
            name: name.to_owned(),
            host,
            is_open: true,
            config,
            waiting: VecDeque::new(),
            stats: PortStats::default(),
            woken: Arc::default(),
            actor: None,
            wake_ns: None,
        });
        index
    }

    pub fn close(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.is_open = false;
        node.actor = None;
        let waiting = std::mem::take(&mut node.waiting);
        waiting.into_iter().for_each(|packet| self.give_back(packet));
    }

    /// The next packet that has arrived at a port. Its bytes are the port's until [`Self::take_back`].
    #[inline]
    pub fn take_arrived(&mut self, index: usize) -> Option<Arrived> {
        let node = &mut self.nodes[index];
        let number = node.waiting.pop_front()?;
        let packet = &mut self.packets[number as usize];
        let bytes = std::mem::take(&mut packet.bytes);
        node.stats.rx_packets += 1;
        node.stats.rx_bytes += bytes.len() as u64;
        Some(Arrived { number, from: Self::peer_of(packet.from as usize), is_marked: packet.is_marked, bytes })
    }

    #[inline]
    pub fn take_back(&mut self, arrived: Arrived) {
        self.packets[arrived.number as usize].bytes = arrived.bytes;
        self.give_back(arrived.number);
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

    /// An empty packet.
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.packets.push(Packet {
                bytes: Vec::new(),
                from: 0,
                to: 0,
                is_marked: false,
                target: HostId(0),
                next: NONE,
                on: NONE,
                came_by: NONE,
                flow: 0,
                tail_ps: 0,
                ready_ps: 0,
            });
            self.packets.len() as u32 - 1
        })
    }

    fn give_back(&mut self, packet: u32) {
        self.packets[packet as usize].bytes.clear();
        self.free.push(packet);
    }

    /// A packet of some bytes from one port to another, to be [submitted](Self::submit).
    pub fn pack(&mut self, from: usize, to: usize, head: &[u8], data: &[u8]) -> u32 {
        let target = self.nodes[to].host;
        let index = self.take();
        let packet = &mut self.packets[index as usize];
        packet.bytes.extend_from_slice(head);
        packet.bytes.extend_from_slice(data);
        packet.from = from as u32;
        packet.to = to as u32;
        packet.is_marked = false;
        packet.target = target;
        packet.next = NONE;
        packet.flow = Hash::of(&[from as u64, to as u64]);
        index
    }

    /// Sends packets off, from a core that has come to `now_ns`.
    pub fn submit(&mut self, from: usize, packets: &mut Vec<u32>, now_ns: u64) {
        if !self.nodes[from].is_open {
            // Of a host that crashed.
            return packets.drain(..).for_each(|packet| self.give_back(packet));
        }
        let [first, ..] = packets[..] else { return };
        for (index, packet) in packets.iter().enumerate() {
            let next = packets.get(index + 1).copied().unwrap_or(NONE);
            let packet = &mut self.packets[*packet as usize];
            packet.next = next;
            let stats = &mut self.nodes[from].stats;
            stats.tx_packets += 1;
            stats.tx_bytes += packet.bytes.len() as u64;
        }
        packets.clear();
        let latency_ns = self.topology.hosts[self.nodes[from].host.0].transmit_latency_ns;
        self.events.add(now_ns + latency_ns, Event::Sent { packet: first });
    }

    /// Does what happens at `now_ns`.
    pub fn happen(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Sent { packet } => self.sent(packet, now_ns),
            Event::Arrives { packet } => self.arrives(packet, now_ns),
            Event::LinkFree { link } => self.link_free(link, now_ns),
            Event::Paused { link, paused } => self.paused(link, paused, now_ns),
            Event::Turn { .. } => unreachable!("turns are the cluster's"),
        }
    }

    fn sent(&mut self, first: u32, now_ns: u64) {
        let mut next = first;
        while next != NONE {
            let index = next;
            let packet = &mut self.packets[index as usize];
            next = packet.next;
            let (host, target, flow) = (self.nodes[packet.from as usize].host, packet.target, packet.flow);
            packet.ready_ps = now_ns * PS;
            packet.came_by = NONE;
            match self.routes.way(NodeId::Host(host), target, flow) {
                Some(lane) => self.queue(lane, index, now_ns),
                // To a port of the same host: the interface turns it around.
                None => {
                    let latency_ns = self.topology.hosts[host.0].receive_latency_ns;
                    self.packets[index as usize].on = NONE;
                    self.events.add(now_ns + latency_ns, Event::Arrives { packet: index });
                }
            }
        }
    }

    /// Puts a packet on a lane, or behind those that wait for it.
    fn queue(&mut self, lane_index: Direction, index: u32, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        let packet = &mut self.packets[index as usize];
        packet.on = lane_index;
        if lane.queue.is_empty() && !lane.is_paused && lane.busy_until_ps <= packet.ready_ps {
            self.start(lane_index, index, now_ns);
            return;
        }
        let len = (packet.bytes.len() + self.topology.frame_bytes) as u64;
        lane.queue.push_back(index);
        lane.queued_bytes += len;
        lane.stats.queued_bytes_max = lane.stats.queued_bytes_max.max(lane.queued_bytes);
        let came_by = packet.came_by;
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes += len;
            self.hold(switch, came_by, len, now_ns);
        }
        self.await_lane(lane_index);
    }

    fn await_lane(&mut self, lane_index: Direction) {
        let lane = &mut self.lanes[lane_index as usize];
        if !lane.is_awaited && !lane.is_paused && !lane.queue.is_empty() {
            lane.is_awaited = true;
            self.events.add(lane.busy_until_ps.div_ceil(PS), Event::LinkFree { link: lane_index });
        }
    }

    fn link_free(&mut self, lane_index: Direction, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        lane.is_awaited = false;
        if lane.is_paused {
            return;
        }
        let Some(index) = lane.queue.pop_front() else { return };
        let packet = &self.packets[index as usize];
        let len = (packet.bytes.len() + self.topology.frame_bytes) as u64;
        let came_by = packet.came_by;
        lane.queued_bytes -= len;
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes -= len;
            self.let_go(switch, came_by, len, now_ns);
        }
        self.start(lane_index, index, now_ns);
        self.await_lane(lane_index);
    }

    /// A packet leaves on a lane that is free.
    fn start(&mut self, lane_index: Direction, index: u32, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        let packet = &mut self.packets[index as usize];
        let len = packet.bytes.len() + self.topology.frame_bytes;
        let took_ps = len as u64 * lane.ps_per_byte;
        let started_ps = lane.busy_until_ps.max(packet.ready_ps);
        lane.busy_until_ps = started_ps + took_ps;
        lane.stats.packets += 1;
        lane.stats.bytes += len as u64;
        packet.tail_ps = lane.busy_until_ps + lane.delay_ps;
        let mut arrives_ns = match lane.to {
            NodeId::Switch(_) => (started_ps + lane.delay_ps).div_ceil(PS),
            NodeId::Host(host) => packet.tail_ps.div_ceil(PS) + self.topology.hosts[host.0].receive_latency_ns,
        };
        if !lane.is_up {
            return self.lose(index, now_ns);
        }
        if lane.faults.any() {
            match self.go_wrong(lane_index, index) {
                None => return self.lose(index, now_ns),
                Some(late_ns) => arrives_ns += late_ns,
            }
        }
        self.events.add(arrives_ns, Event::Arrives { packet: index });
    }

    /// Draws what goes wrong with a packet; returns how late it is, or nothing when it is lost.
    fn go_wrong(&mut self, lane_index: Direction, index: u32) -> Option<u64> {
        let lane = &self.lanes[lane_index as usize];
        let (faults, to, delay_ns) = (lane.faults, lane.to, lane.delay_ps / PS);
        if self.generator.chance(faults.loss) {
            return None;
        }
        if self.generator.chance(faults.corruption) {
            let bits = self.packets[index as usize].bytes.len() as u64 * 8;
            let bit = self.generator.below(bits);
            if let Some(byte) = self.packets[index as usize].bytes.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
        if self.generator.chance(faults.duplication) {
            let twin = self.take();
            let bytes = std::mem::take(&mut self.packets[twin as usize].bytes);
            let packet = &self.packets[index as usize];
            let mut copy = Packet { bytes, ..*packet };
            copy.bytes.extend_from_slice(&packet.bytes);
            let tail_ns = packet.tail_ps.div_ceil(PS);
            self.packets[twin as usize] = copy;
            let latency_ns = match to {
                NodeId::Switch(_) => 0,
                NodeId::Host(host) => self.topology.hosts[host.0].receive_latency_ns,
            };
            self.events.add(tail_ns + latency_ns + delay_ns, Event::Arrives { packet: twin });
            self.stats.duplicated += 1;
        }
        Some(if self.generator.chance(faults.reordering) { faults.reordering_ns } else { 0 })
    }

    fn arrives(&mut self, index: u32, now_ns: u64) {
        let packet = &self.packets[index as usize];
        let node = if packet.on == NONE { NodeId::Host(packet.target) } else { self.lanes[packet.on as usize].to };
        match node {
            NodeId::Host(_) => self.deliver(index, now_ns),
            NodeId::Switch(switch) => self.forward(switch, index, now_ns),
        }
    }

    /// A packet's head is at a switch.
    fn forward(&mut self, switch: SwitchId, index: u32, now_ns: u64) {
        let packet = &self.packets[index as usize];
        let (target, flow, came_by, tail_ps) = (packet.target, packet.flow, packet.on, packet.tail_ps);
        let len = packet.bytes.len() + self.topology.frame_bytes;
        let Some(lane_index) = self.routes.way(NodeId::Switch(switch), target, flow) else {
            return self.lose(index, now_ns);
        };
        let lane = &self.lanes[lane_index as usize];
        let latency_ps = self.switches[switch.0].latency_ps;
        // It cannot leave faster than it comes.
        let ready_ps = (now_ns * PS).max(tail_ps.saturating_sub(len as u64 * lane.ps_per_byte)) + latency_ps;
        let will_wait = !lane.queue.is_empty() || lane.is_paused || lane.busy_until_ps > ready_ps;
        if will_wait && !self.has_room(switch, lane_index, len as u64) {
            self.stats.overflowed += 1;
            self.lanes[lane_index as usize].stats.overflowed += 1;
            return self.lose(index, now_ns);
        }
        let is_marked = will_wait && self.marks(switch, lane_index);
        let packet = &mut self.packets[index as usize];
        packet.ready_ps = ready_ps;
        packet.came_by = came_by;
        if is_marked {
            packet.is_marked = true;
            self.stats.marked += 1;
        }
        self.queue(lane_index, index, now_ns);
    }

    fn has_room(&self, switch: SwitchId, lane_index: Direction, len: u64) -> bool {
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

    /// A switch holds so much more that came by a lane.
    fn hold(&mut self, switch: SwitchId, came_by: Direction, len: u64, now_ns: u64) {
        let Some(pause) = self.topology.switches[switch.0].pause else { return };
        let lane = &mut self.lanes[came_by as usize];
        lane.held_bytes += len;
        if lane.held_bytes >= pause.off_bytes && !lane.asked_to_pause {
            lane.asked_to_pause = true;
            self.stats.pauses += 1;
            let heard_ns = now_ns + lane.delay_ps / PS;
            self.events.add(heard_ns, Event::Paused { link: came_by, paused: true });
        }
    }

    fn let_go(&mut self, switch: SwitchId, came_by: Direction, len: u64, now_ns: u64) {
        let Some(pause) = self.topology.switches[switch.0].pause else { return };
        let lane = &mut self.lanes[came_by as usize];
        lane.held_bytes -= len;
        if lane.held_bytes <= pause.on_bytes && lane.asked_to_pause {
            lane.asked_to_pause = false;
            let heard_ns = now_ns + lane.delay_ps / PS;
            self.events.add(heard_ns, Event::Paused { link: came_by, paused: false });
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

    /// A packet is in a host's memory.
    fn deliver(&mut self, index: u32, now_ns: u64) {
        let packet = &self.packets[index as usize];
        let (from, to, len) = (packet.from as usize, packet.to as usize, packet.bytes.len());
        let [a, b] = [self.nodes[from].host.0, self.nodes[to].host.0];
        let is_cut = !self.cut.is_empty() && self.cut.contains(&(a.min(b), a.max(b)));
        let node = &mut self.nodes[to];
        if is_cut || !node.is_open {
            return self.lose(index, now_ns);
        }
        if node.waiting.len() >= node.config.receive_packets {
            node.stats.count_dropped(Dropped::Overflow, 1);
            return self.lose(index, now_ns);
        }
        self.stats.delivered += 1;
        self.hash.add(now_ns);
        self.hash.add((from as u64) << 32 | to as u64);
        self.hash.add(len as u64);
        let node = &mut self.nodes[to];
        node.waiting.push_back(index);
        self.touched = node.actor;
    }

    fn lose(&mut self, index: u32, now_ns: u64) {
        self.stats.lost += 1;
        let packet = &self.packets[index as usize];
        self.hash.add(!now_ns);
        self.hash.add(u64::from(packet.from) << 32 | u64::from(packet.to));
        self.give_back(index);
    }

    pub fn set_faults(&mut self, lane: Direction, faults: LinkFaults) {
        self.lanes[lane as usize].faults = faults;
    }

    pub fn set_up(&mut self, lane: Direction, up: bool) {
        self.lanes[lane as usize].is_up = up;
    }

    pub fn set_cut(&mut self, a: HostId, b: HostId, cut: bool) {
        let pair = (a.0.min(b.0), a.0.max(b.0));
        if cut {
            self.cut.insert(pair);
        } else {
            self.cut.remove(&pair);
        }
    }

    pub fn lane_stats(&self, lane: Direction) -> LinkStats {
        let lane = &self.lanes[lane as usize];
        LinkStats { queued_bytes: lane.queued_bytes, ..lane.stats }
    }

    pub fn take_queued_max(&mut self, lane: Direction) -> u64 {
        let lane = &mut self.lanes[lane as usize];
        std::mem::replace(&mut lane.stats.queued_bytes_max, lane.queued_bytes)
    }

    /// Packets on their way, for those who wonder why nothing happens.
    pub fn in_flight(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}
