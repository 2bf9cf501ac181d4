//! Ports around ports: what fault injection, tracing and capture have in common.
//!
//! A [`Layer`] sees every packet that passes and may drop, change, hold back or add some; [`Layered`] puts it around any
//! port and is a port itself. To send is to pass through: borrowed data and shares reach the inner port as they are. What
//! is received is copied out of the inner port's burst, once and into recycled buffers, since the burst would otherwise
//! keep the inner port borrowed while its other half sends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use sinew_mem::{Arena, Frozen};

use crate::address::{Address, Peer};
use crate::port::{
    Caps, Dropped, PacketPort, PacketRx, PacketTx, PortError, PortEvent, PortStats, RxBurst, RxPacket, TxData,
    TxPacket, Waker,
};

/// Buffers that a layered port keeps for reuse.
const SPARE_BUFFERS_MAX: usize = 4096;

/// A packet that is nobody else's.
#[derive(Debug)]
pub struct OwnedPacket {
    /// Whom it goes to, or whom it came from.
    pub peer: Peer,
    /// All its bytes.
    pub bytes: Vec<u8>,
    /// How many of them are the head that its sender passed, where that is known, else all.
    pub head_len: usize,
    /// Whether it is known to have met a long queue (ECN).
    pub is_marked: bool,
}

impl OwnedPacket {
    /// The packet, to transmit.
    pub fn to_transmit(&self) -> TxPacket<'_> {
        let (head, data) = self.bytes.split_at(self.head_len.min(self.bytes.len()));
        TxPacket { to: self.peer, head, data: if data.is_empty() { TxData::None } else { TxData::Bytes(data) } }
    }
}

/// Recycled buffers.
#[derive(Debug, Default)]
pub struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// A packet of the bytes of `head` and `data`.
    pub fn copy(&mut self, peer: Peer, head: &[u8], data: &[u8]) -> OwnedPacket {
        let mut bytes = self.0.pop().unwrap_or_default();
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(data);
        OwnedPacket { peer, bytes, head_len: head.len(), is_marked: false }
    }

    /// A packet of the same bytes.
    pub fn duplicate(&mut self, packet: &OwnedPacket) -> OwnedPacket {
        OwnedPacket {
            head_len: packet.head_len,
            is_marked: packet.is_marked,
            ..self.copy(packet.peer, &packet.bytes, &[])
        }
    }

    /// Takes a packet's buffer back.
    pub fn recycle(&mut self, mut packet: OwnedPacket) {
        packet.bytes.clear();
        if self.0.len() < SPARE_BUFFERS_MAX {
            self.0.push(packet.bytes);
        }
    }
}

/// Something that packets pass through on their way from and to a port. Each method's default changes nothing.
pub trait Layer {
    /// A peer appears in the next call; `describe` says how its port shows it.
    fn meet(&mut self, peer: Peer, describe: &mut dyn FnMut() -> String) {
        let _ = (peer, describe);
    }

    /// A packet to transmit, to hand on to `tx` or not. `now_ns` is when the port last received.
    fn push(&mut self, packet: TxPacket<'_>, now_ns: u64, tx: &mut dyn PacketTx, pool: &mut Pool) {
        let _ = (now_ns, pool);
        tx.push(packet);
    }

    /// A packet that was received, to hand on to `ready` or not.
    fn receive(&mut self, packet: OwnedPacket, now_ns: u64, ready: &mut VecDeque<OwnedPacket>, pool: &mut Pool) {
        let _ = (now_ns, pool);
        ready.push_back(packet);
    }

    /// The port is about to receive at `now_ns`: the time to let go of what was held back. True when something was handed
    /// to `tx`.
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

    /// When something that is held back should go, so that nobody sleeps through it.
    fn next_due_ns(&self) -> Option<u64> {
        None
    }

    /// What the layer adds to the port's counters.
    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

struct Inner<P, L> {
    port: P,
    layer: L,
    /// When the port last received: the only time that a layer knows.
    now_ns: u64,
    ready: VecDeque<OwnedPacket>,
    pool: Pool,
    /// What was received, as the user of the wrapper saw it, and what was lost while it was copied.
    rx_stats: PortStats,
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
    pub fn around(port: P, layer: L) -> Self {
        let arena = port.arena().clone();
        let inner = Rc::new(RefCell::new(Inner {
            port,
            layer,
            now_ns: 0,
            ready: VecDeque::new(),
            pool: Pool::default(),
            rx_stats: PortStats::default(),
        }));
        Self {
            rx: LayeredRx { inner: Rc::clone(&inner), lent: Vec::new() },
            tx: LayeredTx { inner: Rc::clone(&inner) },
            inner,
            arena,
        }
    }

    /// Looks at, or changes, the layer.
    pub fn with_layer<R>(&self, look: impl FnOnce(&mut L) -> R) -> R {
        look(&mut self.inner.borrow_mut().layer)
    }

    /// Looks at the port inside.
    pub fn with_port<R>(&self, look: impl FnOnce(&P) -> R) -> R {
        look(&self.inner.borrow().port)
    }
}

impl<P: PacketPort, L: Layer> Inner<P, L> {
    /// Fetches a burst from the port inside and sends it through the layer. Returns when it arrived.
    fn fetch(&mut self, time_ns: u64) -> u64 {
        let Self { port, layer, ready, pool, rx_stats, .. } = self;
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
                    rx_stats.count_dropped(Dropped::Revoked, 1);
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
        let (_, tx) = inner.port.split();
        if inner.layer.advance(inner.now_ns, tx, &mut inner.ready, &mut inner.pool) {
            tx.submit();
        }
        let room = inner.port.caps().burst_max.min(burst.packets.remaining_capacity());
        // A full hand waits: fetching more would move the queue out of the port that bounds it.
        if inner.ready.len() < room {
            burst.time_ns = inner.fetch(burst.time_ns);
            inner.now_ns = burst.time_ns;
        }
        while self.lent.len() < room {
            let Some(packet) = inner.ready.pop_front() else { break };
            inner.rx_stats.rx_packets += 1;
            inner.rx_stats.rx_bytes += packet.bytes.len() as u64;
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
        let inner = &mut *self.inner.borrow_mut();
        inner.layer.meet(packet.to, &mut || inner.port.describe(packet.to));
        inner.layer.push(packet, inner.now_ns, inner.port.split().1, &mut inner.pool);
    }

    fn submit_soon(&mut self, now_ns: u64) {
        self.inner.borrow_mut().port.split().1.submit_soon(now_ns);
    }

    fn submit(&mut self) {
        self.inner.borrow_mut().port.split().1.submit();
    }

    fn flush(&mut self) {
        // What a layer holds back are copies, so all shares are the port's.
        self.inner.borrow_mut().port.split().1.flush();
    }

    fn reclaim(&mut self, buffer: &Frozen) {
        self.inner.borrow_mut().port.split().1.reclaim(buffer);
    }
}

impl<P: PacketPort, L: Layer> PacketPort for Layered<P, L> {
    type Rx = LayeredRx<P, L>;
    type Tx = LayeredTx<P, L>;

    fn caps(&self) -> Caps {
        Caps { lends_in_place: false, ..self.inner.borrow().port.caps() }
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
        self.inner.borrow().port.packet_len_max(peer)
    }

    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx) {
        (&mut self.rx, &mut self.tx)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.inner.borrow_mut().port.poll_event()
    }

    fn forget(&mut self, peer: Peer) {
        self.inner.borrow_mut().port.forget(peer);
    }

    fn waker(&self) -> Waker {
        self.inner.borrow().port.waker()
    }

    /// Waits on the port inside, though no longer than until something that the layer holds back is due, as seen from the
    /// last time of receiving.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        let mut inner = self.inner.borrow_mut();
        if !inner.ready.is_empty() {
            return Ok(());
        }
        let until_due_ns = inner.layer.next_due_ns().map(|due_ns| due_ns.saturating_sub(inner.now_ns));
        let timeout_ns = timeout_ns.into_iter().chain(until_due_ns).min();
        inner.port.wait(timeout_ns)
    }

    /// What the port inside and the layer counted; received packets are those that came out of the layer.
    fn stats(&self) -> PortStats {
        let inner = self.inner.borrow();
        let mut stats = inner.port.stats();
        stats.rx_packets = 0;
        stats.rx_bytes = 0;
        stats.merged(&inner.rx_stats).merged(&inner.layer.stats())
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
