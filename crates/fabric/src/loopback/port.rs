//! The port on a loopback network.

use std::fmt;

use sinew_mem::atomic::AtomicU64;
use sinew_mem::atomic::plain::Arc;
use sinew_mem::{Arena, Frozen, Guard, HEADER_ROOM, SharedBytes};

use super::state::{Data, NetworkState, Packet, SharedRef};
use super::{LoopbackConfig, Network, SCHEME, address_of};
use crate::address::{Address, Peer};
use crate::port::{
    Caps, Dropped, MAX_BURST, PacketPort, PacketRx, PacketTx, PortError, PortEvent, PortStats, RxBurst, RxPacket,
    TxData, TxPacket,
};
use crate::readiness::{Descriptor, Readiness};
use crate::time::Clock;
use crate::waker::Waker;

/// A port on a [`Network`], from [`Network::port`]. Its peers learn when it is dropped.
#[derive(Debug)]
pub struct LoopbackPort {
    rx: LoopbackRx,
    tx: LoopbackTx,
    network: Network,
    index: usize,
    address: Address,
    config: LoopbackConfig,
}

/// A packet that is lent to the receiver.
struct Lent {
    from: Peer,
    bytes: Vec<u8>,
    /// Length of the head, if the rest is lent as a tail.
    tail_start: Option<usize>,
    /// The share behind the tail, and the word through which its sender revokes it.
    shared: Option<(SharedRef, Arc<AtomicU64>)>,
}

/// The receiving half of a [`LoopbackPort`].
pub struct LoopbackRx {
    network: Network,
    index: usize,
    config: LoopbackConfig,
    lent: Vec<Lent>,
}

/// The transmitting half of a [`LoopbackPort`]. Packets leave it only when submitted.
pub struct LoopbackTx {
    network: Network,
    index: usize,
    config: LoopbackConfig,
    arena: Arena,
    pending: Vec<(Peer, Packet)>,
}

impl LoopbackPort {
    pub(super) fn open(network: &Network, name: &str, config: LoopbackConfig) -> Result<Self, PortError> {
        if config.burst_max == 0 || config.burst_max > MAX_BURST {
            return Err(PortError::Limit {
                what: format!("bursts of {} packets", config.burst_max),
                limit: MAX_BURST as u64,
                remedy: format!("set burst_max to 1..={MAX_BURST}"),
            });
        }
        if network.state.borrow().find(name).is_some() {
            return Err(PortError::Taken { address: address_of(name).to_string(), holder: String::new() });
        }
        let arena = Arena::private(config.arena_bytes).map_err(|source| PortError::System {
            doing: format!("reserving {} bytes for the arena of {}", config.arena_bytes, address_of(name)),
            source,
        })?;
        let index = network.state.borrow_mut().open(name, config);
        let address = address_of(&network.state.borrow().node(index).name);
        Ok(Self {
            rx: LoopbackRx { network: network.clone(), index, config, lent: Vec::with_capacity(config.burst_max) },
            tx: LoopbackTx { network: network.clone(), index, config, arena, pending: Vec::new() },
            network: network.clone(),
            index,
            address,
            config,
        })
    }

    /// The peer as which others know this port.
    pub fn peer(&self) -> Peer {
        NetworkState::peer_of(self.index)
    }

    /// The network that the port is on.
    pub fn network(&self) -> &Network {
        &self.network
    }
}

impl Drop for LoopbackPort {
    fn drop(&mut self) {
        self.rx.give_back();
        self.network.state.borrow_mut().drop_port(self.index);
    }
}

impl LoopbackRx {
    fn give_back(&mut self) {
        let mut state = self.network.state.borrow_mut();
        for lent in self.lent.drain(..) {
            if let Some((shared, _)) = lent.shared {
                state.release_share(shared);
            }
            state.recycle(lent.bytes);
        }
    }

    /// Copies a packet's shared part into the buffer that is lent, and ends the share unless a tail keeps it.
    fn unpack(&self, state: &mut NetworkState, packet: Packet) -> Lent {
        let Packet { from, mut bytes, head_len, shared, .. } = packet;
        let mut lent = Lent { from, bytes: Vec::new(), tail_start: None, shared: None };
        if let Some(shared) = shared {
            if let Some((data, generation)) = state.shared_bytes(shared) {
                bytes.extend_from_slice(data);
                // Headers are read in place, so they are never part of a tail.
                let tail_start = head_len.max(HEADER_ROOM);
                if self.config.lends_tails && tail_start < bytes.len() {
                    lent.tail_start = Some(tail_start);
                    lent.shared = Some((shared, Arc::clone(generation)));
                }
            }
            if lent.shared.is_none() {
                state.release_share(shared);
            }
        }
        lent.bytes = bytes;
        lent
    }
}

impl PacketRx for LoopbackRx {
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        self.give_back();
        let now_ns = self.network.clock.now_ns();
        let mut state = self.network.state.borrow_mut();
        state.deliver_arrived(self.index, now_ns);
        let room = self.config.burst_max.min(burst.packets.remaining_capacity());
        while self.lent.len() < room {
            let Some(packet) = state.take_arrived(self.index) else { break };
            let lent = self.unpack(&mut state, packet);
            let stats = &mut state.node_mut(self.index).stats;
            stats.rx_packets += 1;
            stats.rx_bytes += lent.bytes.len() as u64;
            self.lent.push(lent);
        }
        drop(state);
        for lent in &mut self.lent {
            let head_len = lent.tail_start.unwrap_or(lent.bytes.len());
            let (head, tail) = lent.bytes.split_at_mut(head_len);
            let tail = lent.shared.as_ref().map(|(shared, generation)| {
                SharedBytes::from_exclusive(tail, Some(Guard { word: generation, expected: shared.generation }))
            });
            burst.packets.push(RxPacket { from: lent.from, head, tail });
        }
    }
}

impl PacketTx for LoopbackTx {
    fn push(&mut self, packet: TxPacket<'_>) {
        let mut state = self.network.state.borrow_mut();
        if packet.len() > state.packet_len_max(self.index, packet.to) {
            state.node_mut(self.index).stats.count_dropped(Dropped::TooLong, 1);
            return;
        }
        let data = match packet.data {
            TxData::Frozen { buffer, start, len } if self.config.holds_shares && buffer.is_from(&self.arena) => {
                Data::Held { share: buffer, start, len }
            }
            _ => Data::Copied(packet.data.as_slice()),
        };
        let packed = state.pack(self.index, packet.head, data);
        self.pending.push((packet.to, packed));
    }

    fn submit(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let now_ns = self.network.clock.now_ns();
        let mut state = self.network.state.borrow_mut();
        for (to, packet) in self.pending.drain(..) {
            state.submit(self.index, to, packet, now_ns);
        }
    }

    fn flush(&mut self) {
        self.network.state.borrow_mut().release_shares(self.index, |_| true);
    }

    fn reclaim(&mut self, buffer: &Frozen) {
        if buffer.is_from(&self.arena) {
            // Held shares are all from this arena, so the offset identifies the buffer.
            let offset = buffer.arena_offset();
            self.network.state.borrow_mut().release_shares(self.index, |share| share.arena_offset() == offset);
        }
    }
}

/// A loopback port has no descriptor: its network's time passes only while somebody waits.
impl Readiness for LoopbackPort {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }
}

impl PacketPort for LoopbackPort {
    type Rx = LoopbackRx;
    type Tx = LoopbackTx;

    fn caps(&self) -> Caps {
        Caps {
            packet_len_max: self.config.packet_len_max,
            overhead: 0,
            copy_len_max: self.config.copy_len_max,
            burst_max: self.config.burst_max,
            receive_packets: self.config.receive_packets,
            receive_packets_per_peer: self.config.receive_packets,
            lends_in_place: self.config.lends_in_place,
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn arena(&self) -> &Arena {
        &self.tx.arena
    }

    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        address.check_scheme(SCHEME, "NAME")?;
        address.check_options(&[])?;
        let mut state = self.network.state.borrow_mut();
        match state.find(address.rest()) {
            Some(index) => {
                state.set_peer_known(self.index, index, true);
                Ok(NetworkState::peer_of(index))
            }
            None => Err(PortError::NotFound {
                address: address.to_string(),
                looked_in: format!("the loopback network, whose ports are {}", state.living_names().join(", ")),
            }),
        }
    }

    fn describe(&self, peer: Peer) -> String {
        let state = self.network.state.borrow();
        match state.index_of(peer) {
            Some(index) => address_of(&state.node(index).name).to_string(),
            None => format!("an unknown loopback peer {:x?}", peer.0),
        }
    }

    fn packet_len_max(&self, peer: Peer) -> usize {
        self.network.state.borrow().packet_len_max(self.index, peer)
    }

    fn split(&mut self) -> (&mut LoopbackRx, &mut LoopbackTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.network.state.borrow_mut().node_mut(self.index).events.pop_front()
    }

    fn forget(&mut self, peer: Peer) {
        let mut state = self.network.state.borrow_mut();
        if let Some(with) = state.index_of(peer) {
            state.set_peer_known(self.index, with, false);
        }
    }

    fn waker(&self) -> Waker {
        Waker::new(self.network.state.borrow().node(self.index).woken.clone())
    }

    /// Moves the clock to the next arrival at any port of the network, or by the time-out if that is sooner. With
    /// neither it returns at once, since nobody else could ever move the clock.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        let clock = &self.network.clock;
        let now_ns = clock.now_ns();
        let mut state = self.network.state.borrow_mut();
        state.deliver_arrived(self.index, now_ns);
        if state.node(self.index).woken.take() || state.is_ready(self.index) {
            return Ok(());
        }
        let arrival_ns = state.next_future_arrival_ns(now_ns);
        let deadline_ns = timeout_ns.and_then(|timeout_ns| now_ns.checked_add(timeout_ns));
        if let Some(next_ns) = arrival_ns.into_iter().chain(deadline_ns).min() {
            clock.advance_to(next_ns);
        }
        Ok(())
    }

    fn stats(&self) -> PortStats {
        self.network.state.borrow().node(self.index).stats
    }
}

impl fmt::Debug for LoopbackRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackRx").field("index", &self.index).field("lent", &self.lent.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for LoopbackTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackTx")
            .field("index", &self.index)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}
