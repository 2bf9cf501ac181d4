//! State that the ports of one loopback network share.

use std::collections::{HashSet, VecDeque};

use sinew_mem::Frozen;
use sinew_mem::atomic::plain::{Arc, AtomicU32};
use sinew_mem::atomic::{AtomicU64, Ordering};

use super::{LoopbackConfig, TappedPacket};
use crate::address::Peer;
use crate::port::{Dropped, PeerLoss, PortEvent, PortStats};
use crate::waker::WakeTarget;

/// Mark of loopback ports' peers, so that other peers are not taken for them.
const PEER_MARK: u64 = 0x6c6f_6f70_6261_636b;
/// Number of spare buffers above which buffers are freed rather than kept for reuse.
const SPARE_BUFFERS_MAX: usize = 1 << 16;

/// A share that a sender holds, with the word through which it revokes packets.
#[derive(Default)]
struct ShareSlot {
    /// Rises whenever the share ends, so that packets can tell their own share from later ones. Receivers that were
    /// lent a tail read it through a guard.
    generation: Arc<AtomicU64>,
    share: Option<Frozen>,
}

/// The part of a packet that lies in a share of its sender.
#[derive(Clone, Copy)]
pub(super) struct SharedRef {
    sender: usize,
    slot: usize,
    pub(super) generation: u64,
    start: usize,
    len: usize,
}

/// A packet in flight, or waiting at its receiver.
pub(super) struct Packet {
    pub(super) from: Peer,
    pub(super) arrival_ns: u64,
    /// The head, followed by the data unless that is shared.
    pub(super) bytes: Vec<u8>,
    pub(super) head_len: usize,
    pub(super) shared: Option<SharedRef>,
}

/// The data of a packet on its way into the network.
pub(super) enum Data<'a> {
    Copied(&'a [u8]),
    Held { share: &'a Frozen, start: usize, len: usize },
}

/// Flag that makes one port's `wait` return.
#[derive(Default)]
pub(super) struct WakeFlag(AtomicU32);

impl WakeTarget for WakeFlag {
    fn wake(&self) {
        // Release: what the waker did before is seen by the thread that returns from `wait`. Partner: the acquire in
        // `WakeFlag::take`.
        self.0.store(1, Ordering::Release);
    }
}

impl WakeFlag {
    pub(super) fn take(&self) -> bool {
        // Acquire. Partner: the release in `WakeFlag::wake`.
        self.0.swap(0, Ordering::Acquire) != 0
    }
}

/// One port as the network sees it. Nodes are never removed, so an index always names the same port.
pub(super) struct Node {
    pub(super) name: String,
    alive: bool,
    /// Whether the node was killed and its port still exists, so that it can be revived.
    killed: bool,
    pub(super) config: LoopbackConfig,
    /// Packets in flight, in order of arrival.
    in_flight: VecDeque<Packet>,
    /// Packets that have arrived and not been received.
    waiting: VecDeque<Packet>,
    pub(super) events: VecDeque<PortEvent>,
    pub(super) stats: PortStats,
    pub(super) woken: Arc<WakeFlag>,
    slots: Vec<ShareSlot>,
    free_slots: Vec<usize>,
    /// For each node by index: whether this node is told when that one goes.
    known_peers: Vec<bool>,
}

#[derive(Default)]
pub(super) struct NetworkState {
    nodes: Vec<Node>,
    cut_links: HashSet<(String, String)>,
    spare: Vec<Vec<u8>>,
    /// Capacity of every buffer, the longest packet of any port: none grows once traffic is steady.
    buffer_len: usize,
    pub(super) tap: Option<Vec<TappedPacket>>,
    pub(super) latency_ns: u64,
    pub(super) lost_on_links: u64,
}

impl NetworkState {
    pub(super) fn peer_of(index: usize) -> Peer {
        Peer([index as u64, PEER_MARK, 0])
    }

    /// The index of a peer that is, or was, a port of this network.
    pub(super) fn index_of(&self, peer: Peer) -> Option<usize> {
        let Peer([index, PEER_MARK, 0]) = peer else { return None };
        usize::try_from(index).ok().filter(|&index| index < self.nodes.len())
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.alive && node.name == name)
    }

    pub(super) fn living_names(&self) -> Vec<&str> {
        self.nodes.iter().filter(|node| node.alive).map(|node| node.name.as_str()).collect()
    }

    pub(super) fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    pub(super) fn node_mut(&mut self, index: usize) -> &mut Node {
        &mut self.nodes[index]
    }

    /// Adds a node; an empty name is replaced by one that no other node has.
    pub(super) fn open(&mut self, name: &str, config: LoopbackConfig) -> usize {
        let index = self.nodes.len();
        self.buffer_len = self.buffer_len.max(config.packet_len_max);
        let mut name = name.to_owned();
        let mut number = index;
        while name.is_empty() || (number != index && self.find(&name).is_some()) {
            name = format!("port-{number}");
            number += 1;
        }
        self.nodes.push(Node {
            name,
            alive: true,
            killed: false,
            config,
            in_flight: VecDeque::new(),
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            stats: PortStats::default(),
            woken: Arc::default(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            known_peers: Vec::new(),
        });
        index
    }

    /// Closes a node whose port was dropped, so that it can never be revived.
    pub(super) fn drop_port(&mut self, index: usize) {
        self.close(index, PeerLoss::Closed);
        // Packets that a killed port still pushed hold shares.
        self.release_shares(index, |_| true);
        self.nodes[index].killed = false;
    }

    pub(super) fn close(&mut self, index: usize, loss: PeerLoss) {
        if !self.nodes[index].alive {
            return;
        }
        self.release_shares(index, |_| true);
        let node = &mut self.nodes[index];
        node.alive = false;
        node.killed = true;
        node.events.clear();
        let lost: Vec<Packet> = node.in_flight.drain(..).chain(node.waiting.drain(..)).collect();
        for packet in lost {
            self.discard(packet);
        }
        for node in self.nodes.iter_mut().filter(|node| node.alive) {
            if node.known_peers.get(index).copied().unwrap_or(false) {
                node.known_peers[index] = false;
                node.events.push_back(PortEvent::PeerLost { peer: Self::peer_of(index), loss });
            }
        }
    }

    pub(super) fn revive(&mut self, name: &str) -> bool {
        if self.find(name).is_some() {
            return false;
        }
        let Some(node) = self.nodes.iter_mut().rev().find(|node| node.killed && node.name == name) else {
            return false;
        };
        node.alive = true;
        node.killed = false;
        true
    }

    pub(super) fn set_link(&mut self, a: &str, b: &str, up: bool) {
        let link = if a <= b { (a.to_owned(), b.to_owned()) } else { (b.to_owned(), a.to_owned()) };
        if up {
            self.cut_links.remove(&link);
        } else {
            self.cut_links.insert(link);
        }
    }

    fn link_is_up(&self, a: usize, b: usize) -> bool {
        if self.cut_links.is_empty() {
            return true;
        }
        let (a, b) = (&self.nodes[a].name, &self.nodes[b].name);
        let link = if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        !self.cut_links.contains(&link)
    }

    pub(super) fn set_peer_known(&mut self, node: usize, other: usize, acquainted: bool) {
        let known = &mut self.nodes[node].known_peers;
        if known.len() <= other {
            known.resize(other + 1, false);
        }
        known[other] = acquainted;
    }

    /// The largest packet from one port to a peer.
    pub(super) fn packet_len_max(&self, from: usize, to: Peer) -> usize {
        let own = self.nodes[from].config.packet_len_max;
        self.index_of(to).map_or(own, |to| own.min(self.nodes[to].config.packet_len_max))
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.buffer_len))
    }

    pub(super) fn recycle(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(bytes);
        }
    }

    /// Makes a packet: the head is copied; the data is copied or held.
    pub(super) fn pack(&mut self, from: usize, head: &[u8], data: Data<'_>) -> Packet {
        let mut bytes = self.buffer();
        bytes.extend_from_slice(head);
        let shared = match data {
            Data::Copied(data) => {
                bytes.extend_from_slice(data);
                None
            }
            Data::Held { share, start, len } => {
                let node = &mut self.nodes[from];
                let slot = node.free_slots.pop().unwrap_or_else(|| {
                    node.slots.push(ShareSlot::default());
                    node.slots.len() - 1
                });
                node.slots[slot].share = Some(share.clone());
                let generation = node.slots[slot].generation.load(Ordering::Relaxed);
                Some(SharedRef { sender: from, slot, generation, start, len })
            }
        };
        Packet { from: Self::peer_of(from), arrival_ns: 0, bytes, head_len: head.len(), shared }
    }

    /// Discards a packet, with the share that was held for it.
    fn discard(&mut self, packet: Packet) {
        if let Some(shared) = packet.shared {
            self.release_share(shared);
        }
        self.recycle(packet.bytes);
    }

    /// Ends one packet's share, unless it has ended already.
    pub(super) fn release_share(&mut self, shared: SharedRef) {
        let node = &mut self.nodes[shared.sender];
        let slot = &mut node.slots[shared.slot];
        if slot.generation.load(Ordering::Relaxed) == shared.generation {
            // Release: the buffer is written only after this. Partner: the acquire fence in `Guard::still_lent`.
            slot.generation.fetch_add(1, Ordering::Release);
            slot.share = None;
            node.free_slots.push(shared.slot);
        }
    }

    /// Ends all shares of a port that `which` selects.
    pub(super) fn release_shares(&mut self, index: usize, which: impl Fn(&Frozen) -> bool) {
        let Node { slots, free_slots, .. } = &mut self.nodes[index];
        for (number, slot) in slots.iter_mut().enumerate() {
            if slot.share.as_ref().is_some_and(&which) {
                slot.generation.fetch_add(1, Ordering::Release);
                slot.share = None;
                free_slots.push(number);
            }
        }
    }

    /// The shared bytes of a packet and their generation word, unless its sender has revoked them.
    pub(super) fn shared_bytes(&self, shared: SharedRef) -> Option<(&[u8], &Arc<AtomicU64>)> {
        let slot = &self.nodes[shared.sender].slots[shared.slot];
        let share = slot.share.as_ref().filter(|_| slot.generation.load(Ordering::Relaxed) == shared.generation)?;
        Some((share.get(shared.start..shared.start + shared.len)?, &slot.generation))
    }

    /// Sends a packet off. A packet that cannot leave is counted at the sender; one that finds the receiver full, at
    /// the receiver.
    pub(super) fn submit(&mut self, from: usize, to: Peer, packet: Packet, now_ns: u64) {
        self.record(packet.from, to, &packet, now_ns);
        let target = self.index_of(to).filter(|&to| self.nodes[to].alive && self.nodes[from].alive);
        let Some(to) = target else {
            self.nodes[from].stats.count_dropped(Dropped::NoSuchPeer, 1);
            self.discard(packet);
            return;
        };
        let len = packet.bytes.len() + packet.shared.map_or(0, |shared| shared.len);
        let stats = &mut self.nodes[from].stats;
        stats.tx_packets += 1;
        stats.tx_bytes += len as u64;
        self.set_peer_known(from, to, true);
        if !self.link_is_up(from, to) {
            self.lost_on_links += 1;
            self.discard(packet);
            return;
        }
        self.put_in_flight(to, packet, now_ns);
    }

    pub(super) fn inject(&mut self, to: usize, from: Peer, bytes: &[u8], now_ns: u64) {
        let mut copy = self.buffer();
        copy.extend_from_slice(bytes);
        let packet = Packet { from, arrival_ns: 0, bytes: copy, head_len: bytes.len(), shared: None };
        self.record(from, Self::peer_of(to), &packet, now_ns);
        if bytes.len() > self.nodes[to].config.packet_len_max {
            self.nodes[to].stats.count_dropped(Dropped::Malformed, 1);
            self.discard(packet);
            return;
        }
        self.put_in_flight(to, packet, now_ns);
    }

    fn put_in_flight(&mut self, to: usize, mut packet: Packet, now_ns: u64) {
        let in_flight = &mut self.nodes[to].in_flight;
        let earliest_ns = in_flight.back().map_or(0, |last| last.arrival_ns);
        packet.arrival_ns = now_ns.saturating_add(self.latency_ns).max(earliest_ns);
        in_flight.push_back(packet);
        self.deliver_arrived(to, now_ns);
    }

    fn record(&mut self, from: Peer, to: Peer, packet: &Packet, time_ns: u64) {
        if self.tap.is_none() {
            return;
        }
        let mut bytes = packet.bytes.clone();
        if let Some((data, _)) = packet.shared.and_then(|shared| self.shared_bytes(shared)) {
            bytes.extend_from_slice(data);
        }
        self.tap.get_or_insert_default().push(TappedPacket { time_ns, from, to, bytes });
    }

    /// Moves packets that have arrived by now to the waiting ones, or drops them if there is no room.
    pub(super) fn deliver_arrived(&mut self, index: usize, now_ns: u64) {
        loop {
            let node = &mut self.nodes[index];
            if node.in_flight.front().is_none_or(|packet| packet.arrival_ns > now_ns) {
                return;
            }
            let Some(packet) = node.in_flight.pop_front() else { return };
            if node.waiting.len() < node.config.receive_packets {
                node.waiting.push_back(packet);
            } else {
                node.stats.count_dropped(Dropped::Overflow, 1);
                self.discard(packet);
            }
        }
    }

    /// The next packet for a port, its shared bytes still in place. Revoked packets are skipped and counted.
    pub(super) fn take_arrived(&mut self, index: usize) -> Option<Packet> {
        loop {
            let packet = self.nodes[index].waiting.pop_front()?;
            if packet.shared.is_some_and(|shared| self.shared_bytes(shared).is_none()) {
                self.nodes[index].stats.count_dropped(Dropped::Revoked, 1);
                self.recycle(packet.bytes);
                continue;
            }
            if let Some(sender) = self.index_of(packet.from) {
                self.set_peer_known(index, sender, self.nodes[sender].alive);
            }
            return Some(packet);
        }
    }

    /// Whether a port has a packet or an event waiting.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        let node = &self.nodes[index];
        !node.waiting.is_empty() || !node.events.is_empty()
    }

    /// Time of the next arrival in the future, at any living port.
    pub(super) fn next_future_arrival_ns(&mut self, now_ns: u64) -> Option<u64> {
        for index in 0..self.nodes.len() {
            self.deliver_arrived(index, now_ns);
        }
        self.nodes.iter().filter_map(|node| node.in_flight.front()).map(|packet| packet.arrival_ns).min()
    }

    pub(super) fn next_arrival_ns(&self) -> Option<u64> {
        self.nodes
            .iter()
            .filter_map(|node| node.waiting.front().or(node.in_flight.front()))
            .map(|packet| packet.arrival_ns)
            .min()
    }
}
