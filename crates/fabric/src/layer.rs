//! Ports around ports: the part that fault injection, tracing, capture and sealing have in common.
//!
//! A [`Layer`] sees every packet that passes and may drop, change, hold back, add or grow packets; [`Layered`] puts it
//! around any port and is itself a port. Packets to send pass straight through: borrowed data and shares reach the
//! inner port as they are, unless the layer makes a packet of its own of them. Received packets are copied out of the
//! inner port's burst, once and into recycled buffers, since the burst would otherwise keep the inner port borrowed
//! while its other half sends.
//!
//! # Layers that grow packets
//!
//! A layer states how many bytes it adds to each packet ([`Layer::overhead`]), and the port around it offers packets
//! that are shorter by that many ([`Caps`]), so protocols above need not know. The port inside is never given a packet
//! that is too long for it, whatever the layer does: such packets are dropped and counted as [`Dropped::TooLong`].
//!
//! Bytes that a layer transforms cannot stay in the buffer that they were shared from. [`Pool::copy`] gives the layer a
//! buffer of its own, which [`Pool::recycle`] takes back once the packet is pushed. Once there are as many buffers as
//! are in use at a time, nothing is allocated.
//!
//! # Layers that seal
//!
//! Three promises allow authentication and encryption to be layers:
//!
//! - **Each push is a packet of its own.** The protocol above retransmits by pushing again, and the packet comes
//!   through the layer again. So a layer numbers packets in the order in which they come, and no two packets ever bear
//!   the same number.
//! - **A packet that a layer does not hand on has not arrived.** The layer counts the reason: [`Dropped::BadSeal`],
//!   [`Dropped::Replayed`], [`Dropped::Malformed`].
//! - **A layer hears when a peer is forgotten** ([`Layer::forgotten`]), and can forget it too, with the packets that it
//!   holds back for the peer. The protocol reports peers that it connected to with
//!   [`PacketPort::forget`], and those that connected to it, whose link stays, with
//!   [`PacketPort::peer_left`].
//!
//! `sinew_conformance::sealing` is an example of such a layer, and the one that tests use.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use sinew_mem::{Arena, Frozen};

use crate::address::{Address, Peer};
use crate::port::{
    Caps, Dropped, PACKET_LEN_MIN, PacketPort, PacketRx, PacketTx, PortError, PortEvent, PortStats, RxBurst, RxPacket,
    TxData, TxPacket,
};
use crate::readiness::{Armed, Descriptor, Readiness};
use crate::waker::Waker;

/// Buffers that a layered port keeps for reuse.
const SPARE_BUFFERS_MAX: usize = 4096;
/// The least [`Caps::copy_len_max`], in bytes: a header of the protocol above.
const COPY_LEN_MIN: usize = 24;

/// A packet with its own buffer.
#[derive(Debug)]
pub struct OwnedPacket {
    /// The receiver of a packet to send, or the sender of a received one.
    pub peer: Peer,
    /// All bytes of the packet.
    pub bytes: Vec<u8>,
    /// Length of the head that the packet's sender passed, if known; otherwise the whole length.
    pub head_len: usize,
    /// Whether the packet is known to have met a long queue (ECN).
    pub is_marked: bool,
}

impl OwnedPacket {
    /// The packet, ready to transmit.
    pub fn to_transmit(&self) -> TxPacket<'_> {
        let (head, data) = self.bytes.split_at(self.head_len.min(self.bytes.len()));
        TxPacket { to: self.peer, head, data: if data.is_empty() { TxData::None } else { TxData::Bytes(data) } }
    }
}

/// Recycled buffers, each with room for a packet of the port.
#[derive(Debug, Default)]
pub struct Pool {
    spare: Vec<Vec<u8>>,
    /// Capacity of each buffer, so that buffers need not be reallocated as packets grow: memory that is not touched
    /// costs nothing.
    packet_len_max: usize,
}

impl Pool {
    /// A packet with a copy of `head` and `data`, which can be changed, grown or kept.
    pub fn copy(&mut self, peer: Peer, head: &[u8], data: &[u8]) -> OwnedPacket {
        let mut bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.packet_len_max));
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(data);
        OwnedPacket { peer, bytes, head_len: head.len(), is_marked: false }
    }

    /// A copy of a packet.
    pub fn duplicate(&mut self, packet: &OwnedPacket) -> OwnedPacket {
        OwnedPacket {
            head_len: packet.head_len,
            is_marked: packet.is_marked,
            ..self.copy(packet.peer, &packet.bytes, &[])
        }
    }

    /// Takes back a packet's buffer.
    pub fn recycle(&mut self, mut packet: OwnedPacket) {
        packet.bytes.clear();
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(packet.bytes);
        }
    }
}

/// A filter that packets pass through on their way to and from a port. Each method's default changes nothing.
pub trait Layer {
    /// The most bytes that the layer adds to a packet. Must be constant: it is read once.
    fn overhead(&self) -> usize {
        0
    }

    /// Announces a peer that the next call concerns; `describe` gives the port's name for it.
    ///
    /// A packet from any stranger causes this call, and the protocol above forgets only peers that it knew. So a layer
    /// must itself bound what it keeps of peers.
    fn meet(&mut self, peer: Peer, describe: &mut dyn FnMut() -> String) {
        let _ = (peer, describe);
    }

    /// Reports that the protocol above no longer keeps anything of a peer ([`PacketPort::forget`],
    /// [`PacketPort::peer_left`]), or that the port inside knows that the peer is gone
    /// ([`PeerLoss::is_certain`](crate::PeerLoss::is_certain)). The layer can drop what it keeps of the peer. It may be
    /// told of the same peer more than once, or of one that it never met, and may meet the peer again later: a last
    /// retransmission of some packet may still come.
    ///
    /// Values that must never repeat, such as the numbers that a layer seals with, must not start again after this
    /// call: earlier packets are still in flight.
    fn forgotten(&mut self, peer: Peer) {
        let _ = peer;
    }

    /// Handles a packet to transmit: hands it to `tx`, or does not. `now_ns` is the time at which the port last
    /// received.
    ///
    /// A retransmission is pushed like any packet: a layer cannot tell that it has seen the packet before.
    fn push(&mut self, packet: TxPacket<'_>, now_ns: u64, tx: &mut dyn PacketTx, pool: &mut Pool) {
        let _ = (now_ns, pool);
        tx.push(packet);
    }

    /// Handles a received packet: hands it to `ready`, or does not. A refused packet goes back to `pool` and is counted
    /// in [`Self::stats`].
    fn receive(&mut self, packet: OwnedPacket, now_ns: u64, ready: &mut VecDeque<OwnedPacket>, pool: &mut Pool) {
        let _ = (now_ns, pool);
        ready.push_back(packet);
    }

    /// Reports that the port is about to receive at `now_ns`, which is the time to release held packets. Returns true
    /// when something was handed to `tx`.
    fn advance(
        &mut self,
        now_ns: u64,
        tx: &mut dyn PacketTx,
        ready: &mut VecDeque<OwnedPacket>,
        pool: &mut Pool,
    ) -> bool {
        let _ = (now_ns, tx, ready, pool);
        false
    }

    /// Time at which a held packet should be released, so that nobody sleeps through it.
    fn next_due_ns(&self) -> Option<u64> {
        None
    }

    /// Counters that the layer adds to the port's.
    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

struct Inner<P, L> {
    port: P,
    layer: L,
    /// Time at which the port last received, the only time that a layer knows.
    now_ns: u64,
    ready: VecDeque<OwnedPacket>,
    pool: Pool,
    /// The most bytes that the layer adds to a packet.
    overhead: usize,
    /// Packets received as the wrapper's user saw them, packets lost while being copied, and packets too long to send.
    stats: PortStats,
}

/// The port inside as the layer sees it, protected from packets that are too long for it.
struct InnerTx<'a, P> {
    port: &'a mut P,
    stats: &'a mut PortStats,
}

impl<P: PacketPort> PacketTx for InnerTx<'_, P> {
    fn push(&mut self, packet: TxPacket<'_>) {
        if packet.len() > self.port.packet_len_max(packet.to) {
            self.stats.count_dropped(Dropped::TooLong, 1);
        } else {
            self.port.split().1.push(packet);
        }
    }

    fn submit(&mut self) {
        self.port.split().1.submit();
    }

    fn submit_soon(&mut self, now_ns: u64) {
        self.port.split().1.submit_soon(now_ns);
    }

    fn flush(&mut self) {
        self.port.split().1.flush();
    }

    fn reclaim(&mut self, buffer: &Frozen) {
        self.port.split().1.reclaim(buffer);
    }
}

/// A port with a layer around it.
pub struct Layered<P, L> {
    inner: Rc<RefCell<Inner<P, L>>>,
    rx: LayeredRx<P, L>,
    tx: LayeredTx<P, L>,
    arena: Arena,
}

/// The receiving half of a [`Layered`] port.
pub struct LayeredRx<P, L> {
    inner: Rc<RefCell<Inner<P, L>>>,
    lent: Vec<OwnedPacket>,
}

/// The transmitting half of a [`Layered`] port.
pub struct LayeredTx<P, L> {
    inner: Rc<RefCell<Inner<P, L>>>,
}

impl<P: PacketPort, L: Layer> Layered<P, L> {
    /// Puts `layer` around `port`.
    ///
    /// # Errors
    ///
    /// [`PortError::PacketsTooSmall`] when the layer leaves less than [`PACKET_LEN_MIN`] of the port's packets.
    pub fn wrap(port: P, layer: L) -> Result<Self, PortError> {
        let (caps, overhead) = (port.caps(), layer.overhead());
        if overhead > 0 && caps.packet_len_max < PACKET_LEN_MIN.saturating_add(overhead) {
            return Err(PortError::PacketsTooSmall {
                address: port.address().to_string(),
                packet_len_max: caps.packet_len_max + caps.overhead,
                overhead: overhead.saturating_add(caps.overhead),
            });
        }
        Ok(Self::wrap_unchecked(port, layer))
    }

    /// Puts a layer around `port` that adds nothing, or leaves enough of its packets.
    pub(crate) fn wrap_unchecked(port: P, layer: L) -> Self {
        let (overhead, packet_len_max) = (layer.overhead(), port.caps().packet_len_max);
        let arena = port.arena().clone();
        let inner = Rc::new(RefCell::new(Inner {
            port,
            layer,
            now_ns: 0,
            ready: VecDeque::new(),
            pool: Pool { spare: Vec::new(), packet_len_max },
            overhead,
            stats: PortStats::default(),
        }));
        Self {
            rx: LayeredRx { inner: Rc::clone(&inner), lent: Vec::new() },
            tx: LayeredTx { inner: Rc::clone(&inner) },
            inner,
            arena,
        }
    }

    /// Gives access to the layer.
    pub fn with_layer<R>(&self, look: impl FnOnce(&mut L) -> R) -> R {
        look(&mut self.inner.borrow_mut().layer)
    }

    /// Gives access to the port inside.
    pub fn with_port<R>(&self, look: impl FnOnce(&P) -> R) -> R {
        look(&self.inner.borrow().port)
    }
}

impl<P: PacketPort, L: Layer> Inner<P, L> {
    /// Fetches a burst from the port inside and passes it through the layer. Returns its time of arrival.
    fn fetch(&mut self, time_ns: u64) -> u64 {
        let Self { port, layer, ready, pool, stats, .. } = self;
        let mut fetched: arrayvec::ArrayVec<OwnedPacket, { crate::port::MAX_BURST }> = arrayvec::ArrayVec::new();
        let mut burst = RxBurst::new(time_ns);
        port.split().0.receive(&mut burst);
        let arrived_ns = burst.time_ns;
        for (at, packet) in burst.packets.iter().enumerate() {
            let mut owned = pool.copy(packet.from, packet.head, &[]);
            owned.is_marked = burst.marked & 1 << at != 0;
            if let Some(tail) = packet.tail {
                owned.bytes.resize(packet.len(), 0);
                if tail.copy_to(&mut owned.bytes[packet.head.len()..]).is_err() {
                    stats.count_dropped(Dropped::Revoked, 1);
                    pool.recycle(owned);
                    continue;
                }
            }
            owned.head_len = owned.bytes.len();
            fetched.push(owned);
        }
        drop(burst);
        for packet in fetched {
            layer.meet(packet.peer, &mut || port.describe(packet.peer));
            layer.receive(packet, arrived_ns, ready, pool);
        }
        arrived_ns
    }
}

impl<P: PacketPort, L: Layer> PacketRx for LayeredRx<P, L> {
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        for packet in self.lent.drain(..) {
            inner.pool.recycle(packet);
        }
        inner.now_ns = burst.time_ns;
        let mut tx = InnerTx { port: &mut inner.port, stats: &mut inner.stats };
        if inner.layer.advance(inner.now_ns, &mut tx, &mut inner.ready, &mut inner.pool) {
            tx.submit();
        }
        let room = inner.port.caps().burst_max.min(burst.packets.remaining_capacity());
        // If a full burst is ready, nothing is fetched: fetching more would move the queue out of the port that bounds
        // it.
        if inner.ready.len() < room {
            burst.time_ns = inner.fetch(burst.time_ns);
            inner.now_ns = burst.time_ns;
        }
        while self.lent.len() < room {
            let Some(packet) = inner.ready.pop_front() else { break };
            inner.stats.rx_packets += 1;
            inner.stats.rx_bytes += packet.bytes.len() as u64;
            self.lent.push(packet);
        }
        for packet in &self.lent {
            burst.marked |= u64::from(packet.is_marked) << burst.packets.len();
            burst.packets.push(RxPacket { from: packet.peer, head: &packet.bytes, tail: None });
        }
    }
}

impl<P: PacketPort, L: Layer> PacketTx for LayeredTx<P, L> {
    fn push(&mut self, packet: TxPacket<'_>) {
        let Inner { port, layer, now_ns, pool, overhead, stats, .. } = &mut *self.inner.borrow_mut();
        // Checked against the full overhead, even where the layer would add less, so that the limit is one length.
        if *overhead > 0 && packet.len().saturating_add(*overhead) > port.packet_len_max(packet.to) {
            stats.count_dropped(Dropped::TooLong, 1);
            return;
        }
        layer.meet(packet.to, &mut || port.describe(packet.to));
        layer.push(packet, *now_ns, &mut InnerTx { port, stats }, pool);
    }

    fn submit_soon(&mut self, now_ns: u64) {
        self.inner.borrow_mut().port.split().1.submit_soon(now_ns);
    }

    fn submit(&mut self) {
        self.inner.borrow_mut().port.split().1.submit();
    }

    fn flush(&mut self) {
        // Packets that a layer holds back or makes are copies, so all shares are the port's.
        self.inner.borrow_mut().port.split().1.flush();
    }

    fn reclaim(&mut self, buffer: &Frozen) {
        self.inner.borrow_mut().port.split().1.reclaim(buffer);
    }
}

impl<P: PacketPort, L: Layer> Inner<P, L> {
    /// When the layer next has work of its own.
    fn next_deadline(&self) -> Armed {
        if self.ready.is_empty() { Armed::Sleep { until_ns: self.layer.next_due_ns() } } else { Armed::Ready }
    }
}

impl<P: PacketPort, L: Layer> Readiness for Layered<P, L> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.borrow().port.descriptor()
    }

    /// The sleep lasts no longer than until a packet that the layer holds back is due.
    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        let inner = &mut *self.inner.borrow_mut();
        match inner.next_deadline() {
            Armed::Sleep { until_ns } if until_ns.is_none_or(|due_ns| due_ns > now_ns) => {
                Ok(inner.port.arm(now_ns)?.min_deadline(until_ns))
            }
            _ => Ok(Armed::Ready),
        }
    }

    fn disarm(&mut self) -> bool {
        self.inner.borrow_mut().port.disarm()
    }
}

impl<P: PacketPort, L: Layer> PacketPort for Layered<P, L> {
    type Rx = LayeredRx<P, L>;
    type Tx = LayeredTx<P, L>;

    fn caps(&self) -> Caps {
        let inner = self.inner.borrow();
        let caps = inner.port.caps();
        Caps {
            packet_len_max: caps.packet_len_max - inner.overhead,
            overhead: caps.overhead + inner.overhead,
            // The length is advice to callers; even if the port inside wants nothing copied, a header still goes as one
            // piece.
            copy_len_max: caps.copy_len_max.saturating_sub(inner.overhead).max(COPY_LEN_MIN),
            lends_in_place: false,
            ..caps
        }
    }

    fn address(&self) -> Address {
        self.inner.borrow().port.address()
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        self.inner.borrow_mut().port.resolve(address)
    }

    fn describe(&self, peer: Peer) -> String {
        self.inner.borrow().port.describe(peer)
    }

    fn packet_len_max(&self, peer: Peer) -> usize {
        let inner = self.inner.borrow();
        inner.port.packet_len_max(peer).saturating_sub(inner.overhead)
    }

    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx) {
        (&mut self.rx, &mut self.tx)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        let inner = &mut *self.inner.borrow_mut();
        let event = inner.port.poll_event();
        if let Some(PortEvent::PeerLost { peer, loss }) = event
            && loss.is_certain()
        {
            inner.layer.forgotten(peer);
        }
        event
    }

    fn forget(&mut self, peer: Peer) {
        let inner = &mut *self.inner.borrow_mut();
        inner.layer.forgotten(peer);
        inner.port.forget(peer);
    }

    fn peer_left(&mut self, peer: Peer) {
        let inner = &mut *self.inner.borrow_mut();
        inner.layer.forgotten(peer);
        inner.port.peer_left(peer);
    }

    fn waker(&self) -> Waker {
        self.inner.borrow().port.waker()
    }

    /// Waits on the port inside, by that port's own method if it has no descriptor. The wait lasts no longer than until
    /// a packet that the layer holds back is due, counted from the time of the last receive.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let deadline = inner.next_deadline();
        if deadline == Armed::Ready {
            return Ok(());
        }
        let until_due_ns = deadline.timeout_ns(inner.now_ns);
        inner.port.wait(timeout_ns.into_iter().chain(until_due_ns).min())
    }

    /// Counters of the port inside and of the layer. Received packets are those that came out of the layer, with the
    /// bytes that they had there; sent ones are those that went into the port, with the bytes that the layer added.
    fn stats(&self) -> PortStats {
        let inner = self.inner.borrow();
        let mut stats = inner.port.stats();
        stats.rx_packets = 0;
        stats.rx_bytes = 0;
        stats.merged(&inner.stats).merged(&inner.layer.stats())
    }
}

impl<P: fmt::Debug, L: fmt::Debug> fmt::Debug for Layered<P, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.borrow();
        f.debug_struct("Layered").field("port", &inner.port).field("layer", &inner.layer).finish_non_exhaustive()
    }
}

impl<P, L> fmt::Debug for LayeredRx<P, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredRx").field("lent", &self.lent.len()).finish_non_exhaustive()
    }
}

impl<P, L> fmt::Debug for LayeredTx<P, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredTx").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
