//! Ports as the network sees them, and the packets that arrive there.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use sinew_fabric::{Dropped, Peer, PortStats};
use sinew_mem::atomic::plain::Arc;

use super::World;
use super::links::NONE;
use crate::flights::Flight;
use crate::hash::Hash;
use crate::packets::{Arriving, Packet};
use crate::topology::{HostId, NodeId};
use crate::wakes::Source;

/// Marks the peers of simulated ports, so that other backends' peers are not taken for them.
const PEER_MARK: u64 = 0x7369_6d70_6f72_7473;

/// Most times that an actor may ask for its next turn in one turn.
const WAIT_CALLS_MAX: u32 = 1_000;
const NOT_IN_A_TURN: &str = "an actor waits in its turn for something that cannot happen before the turn is over: \
    begin it, and look for its result in later turns";
pub(crate) const NOT_BESIDE_ACTORS: &str = "a port without an actor cannot wait beside a cluster's actors, which would \
    lose their turns: let time pass with Cluster::run_until, or make the program at the port an actor";

/// A port as the network sees it. Ports are never removed, so an index always names the same one.
// What every packet touches comes first, in as few cache lines as possible.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Node {
    /// The actor that works on this port.
    pub actor: Option<u32>,
    /// The NIC behind this node, if it is a NIC's.
    pub nic: Option<u32>,
    /// Packets that arrive at the given times, without events: an actor looks when it has its turn.
    pub(super) arriving: Arriving,
    /// When the last of these arrives.
    last_arrival_ns: u64,
    pub is_open: bool,
    /// Packets that have arrived and wait to be received.
    pub waiting: VecDeque<Box<Packet>>,
    pub receive_packets: usize,
    /// Number of times that it was opened.
    pub generation: u64,
    /// When the actor wants its next turn at the latest.
    pub wake_ns: Option<u64>,
    /// Hash over the packets that arrived here, and over when.
    pub(super) hash: Hash,
    pub stats: PortStats,
    /// Time of the actor's last turn in which it asked for the next, and how often it did in that turn.
    pub wait_calls: (u64, u32),
    /// Completion queues, by NIC and number, that were polled and not emptied.
    pub unpolled_cqs: Vec<(u32, u32)>,
    pub host: HostId,
    /// Wakes the actor that works on this port.
    pub source: Arc<Source>,
    pub name: String,
}

impl Node {
    /// Whether a packet needs no event to arrive here: an actor looks for it, and it arrives no earlier than those
    /// already coming.
    #[inline]
    pub(super) fn needs_no_event(&self, arrives_ns: u64) -> bool {
        self.actor.is_some() && (self.arriving.is_empty() || self.last_arrival_ns <= arrives_ns)
    }

    /// Adds a packet that needs no event.
    #[inline]
    pub(super) fn add_arriving(&mut self, arrives_ns: u64, packet: Box<Packet>) {
        self.arriving.push_back((arrives_ns, packet));
        self.last_arrival_ns = arrives_ns;
    }

    /// Prefetches all packets that have arrived by now: they are read next, and were sent too long ago to be in a near
    /// cache.
    #[inline]
    pub fn prefetch(&self, now_ns: u64) {
        self.arrived(now_ns).for_each(sinew_mem::prefetch_read);
    }

    /// Packets whose arrival by `now_ns` has not been processed.
    #[inline]
    pub fn arrived(&self, now_ns: u64) -> impl Iterator<Item = &Packet> {
        self.arriving.iter().take_while(move |(at_ns, _)| *at_ns <= now_ns).map(|(_, packet)| &**packet)
    }

    /// Adds a packet to the hash, by its time of arrival. (For one that was lost here, that is a time that no
    /// simulation reaches.)
    #[inline]
    pub(super) fn add_to_hash(&mut self, packet: &Packet, arrived_ns: u64) {
        self.hash.add(arrived_ns);
        self.hash.add(u64::from(packet.from) << 32 | u64::from(packet.len()));
    }

    /// Hands an arrived packet to the port.
    #[inline]
    #[expect(clippy::vec_box)]
    pub(super) fn lend(&mut self, packet: Box<Packet>, lent: &mut Vec<Box<Packet>>) {
        self.stats.rx_packets += 1;
        self.stats.rx_bytes += u64::from(packet.len());
        lent.push(packet);
    }

    /// Notes that the actor here wants its next turn by `deadline_ns`; refuses after [`WAIT_CALLS_MAX`] times in one
    /// turn.
    pub fn request_turn(&mut self, deadline_ns: Option<u64>, turn_ns: u64) -> io::Result<()> {
        self.wake_ns = deadline_ns;
        // An actor has at most one turn at any time.
        self.wait_calls = if self.wait_calls.0 == turn_ns { (turn_ns, self.wait_calls.1 + 1) } else { (turn_ns, 1) };
        if self.wait_calls.1 > WAIT_CALLS_MAX {
            return Err(io::Error::new(ErrorKind::Unsupported, NOT_IN_A_TURN));
        }
        Ok(())
    }

    /// Returns when the next packet that is still coming arrives.
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.arriving.front().map(|(arrives_ns, _)| *arrives_ns)
    }
}

impl World {
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

    /// Counters of the port of this name, up to `now_ns`.
    pub fn stats_of(&mut self, name: &str, now_ns: u64) -> Option<PortStats> {
        let index = self.by_name.get(name).copied()?;
        Some(self.port_stats(index, now_ns))
    }

    pub fn port_stats(&mut self, index: usize, now_ns: u64) -> PortStats {
        self.process_arrivals(index, now_ns);
        self.nodes[index].stats
    }

    /// Opens a port. Peers cannot tell it from a closed port of the same name: packets to that one reach this one.
    pub fn open(&mut self, name: &str, host: HostId, receive_packets: usize) -> usize {
        if let Some(index) = self.by_name.get(name).copied() {
            let node = &mut self.nodes[index];
            (node.is_open, node.host, node.stats) = (true, host, PortStats::default());
            node.generation += 1;
            node.receive_packets = receive_packets;
            return index;
        }
        let index = self.nodes.len();
        self.by_name.insert(name.to_owned(), index);
        self.nodes.push(Node {
            host,
            is_open: true,
            generation: 1,
            nic: None,
            actor: None,
            wake_ns: None,
            wait_calls: (0, 0),
            receive_packets,
            waiting: VecDeque::new(),
            arriving: Arriving::new(),
            last_arrival_ns: 0,
            hash: Hash::default(),
            stats: PortStats::default(),
            unpolled_cqs: Vec::new(),
            source: self.wakes.source(),
            name: name.to_owned(),
        });
        index
    }

    /// Number of times that this place was opened, which tells apart the ports that have had it.
    pub fn generation(&self, index: usize) -> u64 {
        self.nodes[index].generation
    }

    pub fn close(&mut self, index: usize, now_ns: u64) {
        self.process_arrivals(index, now_ns);
        let node = &mut self.nodes[index];
        node.is_open = false;
        node.actor = None;
        node.source.leave();
        let (waiting, coming) = (std::mem::take(&mut node.waiting), std::mem::take(&mut node.arriving));
        waiting.into_iter().for_each(|packet| self.packets.end(packet));
        for (arrives_ns, packet) in coming {
            let flight = self.flights.begin(Flight::new(packet, 0, 0, 0));
            self.schedule_out_of_order(flight, NONE, arrives_ns);
        }
    }

    /// Moves packets that have arrived at a port to `lent`, until there are `room` of them. They are the port's until
    /// [`Self::give_back`].
    #[inline]
    #[expect(clippy::vec_box)]
    pub fn take_arrived(&mut self, index: usize, now_ns: u64, room: usize, lent: &mut Vec<Box<Packet>>) {
        let node = &mut self.nodes[index];
        if node.waiting.is_empty() && node.arriving.len() <= node.receive_packets && node.is_open && self.cut.is_empty()
        {
            // The usual case: none can be lost, and packets go straight to the port.
            node.prefetch(now_ns);
            while lent.len() < room
                && let Some((arrived_ns, packet)) = node.arriving.pop_front_if(|(at_ns, _)| *at_ns <= now_ns)
            {
                node.add_to_hash(&packet, arrived_ns);
                self.stats.delivered += 1;
                self.packets.lend();
                node.lend(packet, lent);
            }
        }
        self.process_arrivals(index, now_ns);
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

    /// Bytes of the largest packet that all links of a host carry.
    pub fn packet_len_max(&self, host: HostId) -> usize {
        let of_host = |link: &&crate::topology::LinkSpec| link.ends.contains(&NodeId::Host(host));
        self.topology.links.iter().filter(of_host).map(|link| link.mtu).min().unwrap_or(0)
    }

    /// Delivers a packet that has reached a host's memory.
    pub(super) fn deliver(&mut self, flight: u32, now_ns: u64) {
        let packet = self.flights.end(flight);
        let to = packet.to as usize;
        if let Some(nic) = self.nodes[to].nic {
            return self.receive_at_nic(nic, packet, now_ns);
        }
        self.process_arrivals(to, now_ns);
        self.arrive(to, packet, now_ns);
        if let Some(actor) = self.nodes[to].actor {
            self.touched.push((actor, now_ns));
        }
    }

    /// Makes all packets arrive that reach a port by now.
    #[inline]
    pub(super) fn process_arrivals(&mut self, index: usize, now_ns: u64) {
        if self.nodes[index].next_arrival_ns().is_none_or(|next_ns| next_ns > now_ns) {
            return;
        }
        self.nodes[index].prefetch(now_ns);
        while let Some((arrived_ns, packet)) = self.nodes[index].arriving.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            self.arrive(index, packet, arrived_ns);
        }
    }

    pub(super) fn arrive(&mut self, to: usize, packet: Box<Packet>, now_ns: u64) {
        let from = packet.from as usize;
        let is_cut = !self.cut.is_empty() && self.cut.contains(&(self.nodes[from].host.0, self.nodes[to].host.0));
        let node = &mut self.nodes[to];
        let is_full = node.waiting.len() >= node.receive_packets;
        let is_lost = is_cut || !node.is_open || is_full;
        node.add_to_hash(&packet, if is_lost { !now_ns } else { now_ns });
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
}
