//! A port that mistreats packets, driven by a seed.
//!
//! [`Faulty`] wraps any port and drops, duplicates, reorders, delays and corrupts the packets that pass, with
//! probabilities of their own for each direction ([`FaultConfig`]). The same seed and the same calls give the same
//! faults. A [`FaultHandle`] changes the probabilities while the port is in use: a test can let a service settle,
//! disturb it, and heal the network.
//!
//! Real fabrics do all of this, so a protocol must survive it: switches drop packets when buffers are full, paths
//! through a data centre differ in length, routing changes duplicate, and memory errors pass 16-bit checksums.
//!
//! Delays are measured on the clock of the bursts ([`RxBurst::time_ns`](crate::RxBurst::time_ns)): a packet that is
//! held back is released when the port next receives at or after its time. If its peer is forgotten meanwhile, the
//! packet is lost.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::Peer;
use crate::layer::{Layer, Layered, OwnedPacket, Pool};
use crate::port::{Dropped, PacketPort, PacketTx, PortStats, TxPacket};
use crate::time::{Generator, SeededGenerator};

/// Faults of one direction. Probabilities are in `0.0..=1.0` and independent of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Probability that a packet is lost.
    pub drop: f64,
    /// Probability that a packet is duplicated. The copy meets its own delay, reordering and corruption.
    pub duplicate: f64,
    /// Probability that up to [`Self::reorder_packets_max`] later packets overtake a packet.
    pub reorder: f64,
    /// Packets that may overtake a reordered one; at least 1.
    pub reorder_packets_max: u64,
    /// Time in nanoseconds after which a reordered packet is released, even if too few have overtaken it.
    pub reorder_ns_max: u64,
    /// Probability that a packet is delayed, which also lets others overtake it.
    pub delay: f64,
    /// The longest delay, in nanoseconds; delays are spread evenly from 1 up to it.
    pub delay_ns_max: u64,
    /// Probability that one byte of a packet changes.
    pub corrupt: f64,
}

impl Faults {
    /// No faults: packets pass untouched.
    pub const NONE: Self = Self {
        drop: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        reorder_packets_max: 3,
        reorder_ns_max: 20_000,
        delay: 0.0,
        delay_ns_max: 20_000,
        corrupt: 0.0,
    };

    /// Loss alone.
    pub const fn loss(probability: f64) -> Self {
        Self { drop: probability, ..Self::NONE }
    }

    fn is_none(&self) -> bool {
        self.drop <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0 && self.delay <= 0.0 && self.corrupt <= 0.0
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}

/// Faults of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Faults of packets that the port sends.
    pub tx: Faults,
    /// Faults of packets that the port receives.
    pub rx: Faults,
}

impl FaultConfig {
    /// No faults: packets pass untouched.
    pub const NONE: Self = Self { tx: Faults::NONE, rx: Faults::NONE };

    /// The same faults in both directions.
    pub const fn both(faults: Faults) -> Self {
        Self { tx: faults, rx: faults }
    }
}

/// Packets of both directions that met each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets lost, including those held back when their peer was forgotten.
    pub dropped: u64,
    /// Copies added.
    pub duplicated: u64,
    /// Packets held back for others to overtake.
    pub reordered: u64,
    /// Packets held back for a time.
    pub delayed: u64,
    /// Packets changed.
    pub corrupted: u64,
}

#[derive(Debug, Default)]
struct Control {
    config: FaultConfig,
    counts: FaultCounts,
}

/// Handle that changes and reads a [`Faulty`] port's faults, from any thread. Clones are the same handle.
#[derive(Clone, Debug)]
pub struct FaultHandle(Arc<Mutex<Control>>);

impl FaultHandle {
    /// Sets the faults from now on. Packets that are held back are still released at their time.
    pub fn set(&self, config: FaultConfig) {
        self.lock().config = config;
    }

    /// Lets packets pass untouched from now on.
    pub fn heal(&self) {
        self.set(FaultConfig::NONE);
    }

    /// The faults that are set.
    pub fn config(&self) -> FaultConfig {
        self.lock().config
    }

    /// Faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Control> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that mistreats packets; see the [module](self).
pub type Faulty<P> = Layered<P, FaultLayer>;

impl<P: PacketPort> Layered<P, FaultLayer> {
    /// Wraps `port`; `seed` decides which packets meet which fault.
    pub fn new(port: P, config: FaultConfig, seed: u64) -> Self {
        let mut seeds = SeededGenerator::new(seed);
        let layer = FaultLayer {
            handle: FaultHandle(Arc::new(Mutex::new(Control { config, counts: FaultCounts::default() }))),
            tx: FaultDirection::new(seeds.next_u64()),
            rx: FaultDirection::new(seeds.next_u64()),
        };
        Self::wrap_unchecked(port, layer)
    }

    /// The handle that changes this port's faults.
    pub fn handle(&self) -> FaultHandle {
        self.with_layer(|layer| layer.handle.clone())
    }
}

/// The layer of a [`Faulty`] port.
#[derive(Debug)]
pub struct FaultLayer {
    handle: FaultHandle,
    tx: FaultDirection,
    rx: FaultDirection,
}

/// A packet that is held back until a time. The earliest compares as the greatest, as a max-heap needs it.
#[derive(Debug)]
struct Delayed {
    due_ns: u64,
    /// Orders packets of the same time: first in, first out.
    number: u64,
    packet: OwnedPacket,
}

impl Ord for Delayed {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due_ns, other.number).cmp(&(self.due_ns, self.number))
    }
}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Delayed {}

/// A packet that is held back until enough others have passed, or until a time.
#[derive(Debug)]
struct Reordered {
    due_passed: u64,
    due_ns: u64,
    packet: OwnedPacket,
}

/// One direction.
#[derive(Debug)]
struct FaultDirection {
    generator: SeededGenerator,
    delayed: BinaryHeap<Delayed>,
    /// In the order in which they came; there are few, since traffic itself releases them.
    reordered: Vec<Reordered>,
    /// Packets that were ever delayed.
    delayed_total: u64,
    /// Packets that have gone on so far.
    released: u64,
}

impl FaultDirection {
    fn new(seed: u64) -> Self {
        Self {
            generator: SeededGenerator::new(seed),
            delayed: BinaryHeap::new(),
            reordered: Vec::new(),
            delayed_total: 0,
            released: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.delayed.is_empty() && self.reordered.is_empty()
    }

    /// Loses the held packets of a peer; returns their number.
    fn forget(&mut self, peer: Peer) -> u64 {
        let before = self.delayed.len() + self.reordered.len();
        self.delayed.retain(|delayed| delayed.packet.peer != peer);
        self.reordered.retain(|overtaken| overtaken.packet.peer != peer);
        (before - self.delayed.len() - self.reordered.len()) as u64
    }

    /// Time at which the next packet is released even if no other follows; `u64::MAX` when none is held back.
    fn next_due_ns(&self) -> u64 {
        let delayed_ns = self.delayed.peek().map(|delayed| delayed.due_ns);
        self.reordered.iter().map(|overtaken| overtaken.due_ns).chain(delayed_ns).min().unwrap_or(u64::MAX)
    }

    /// Sends one packet through the faults; `pass` gets those that are not held back.
    fn inject(
        &mut self,
        faults: &Faults,
        counts: &mut FaultCounts,
        packet: OwnedPacket,
        now_ns: u64,
        pool: &mut Pool,
        pass: &mut dyn FnMut(OwnedPacket, &mut Pool),
    ) {
        if self.generator.chance(faults.drop) {
            counts.dropped += 1;
            pool.recycle(packet);
            return;
        }
        if self.generator.chance(faults.duplicate) {
            counts.duplicated += 1;
            let copy = pool.duplicate(&packet);
            self.apply_faults(faults, counts, copy, now_ns, pool, pass);
        }
        self.apply_faults(faults, counts, packet, now_ns, pool, pass);
        self.release(now_ns, pool, pass);
    }

    fn apply_faults(
        &mut self,
        faults: &Faults,
        counts: &mut FaultCounts,
        mut packet: OwnedPacket,
        now_ns: u64,
        pool: &mut Pool,
        pass: &mut dyn FnMut(OwnedPacket, &mut Pool),
    ) {
        if self.generator.chance(faults.corrupt) && !packet.bytes.is_empty() {
            counts.corrupted += 1;
            let offset = self.generator.below(packet.bytes.len() as u64) as usize;
            packet.bytes[offset] ^= 1 + self.generator.below(255) as u8;
        }
        if self.generator.chance(faults.delay) {
            counts.delayed += 1;
            let due_ns = now_ns.saturating_add(1 + self.generator.below(faults.delay_ns_max));
            self.delayed.push(Delayed { due_ns, number: self.delayed_total, packet });
            self.delayed_total += 1;
        } else if self.generator.chance(faults.reorder) {
            counts.reordered += 1;
            let overtaken_by = 1 + self.generator.below(faults.reorder_packets_max);
            let due_ns = now_ns.saturating_add(faults.reorder_ns_max);
            self.reordered.push(Reordered { due_passed: self.released.saturating_add(overtaken_by), due_ns, packet });
        } else {
            self.released += 1;
            pass(packet, pool);
        }
    }

    /// Releases the packets that are due, the earliest first. Each counts towards the packets that it overtakes.
    fn release(&mut self, now_ns: u64, pool: &mut Pool, pass: &mut dyn FnMut(OwnedPacket, &mut Pool)) {
        loop {
            let due = |overtaken: &Reordered| overtaken.due_ns <= now_ns || overtaken.due_passed <= self.released;
            let packet = if let Some(at) = self.reordered.iter().position(due) {
                self.reordered.remove(at).packet
            } else if self.delayed.peek().is_some_and(|delayed| delayed.due_ns <= now_ns)
                && let Some(delayed) = self.delayed.pop()
            {
                delayed.packet
            } else {
                return;
            };
            self.released += 1;
            pass(packet, pool);
        }
    }
}

impl Layer for FaultLayer {
    /// A port may later give the peer's name to another peer, which must not get packets meant for this one.
    fn forgotten(&mut self, peer: Peer) {
        if !self.tx.is_empty() || !self.rx.is_empty() {
            self.handle.lock().counts.dropped += self.tx.forget(peer) + self.rx.forget(peer);
        }
    }

    fn push(&mut self, packet: TxPacket<'_>, now_ns: u64, tx: &mut dyn PacketTx, pool: &mut Pool) {
        let mut control = self.handle.lock();
        let faults = control.config.tx;
        if faults.is_none() && self.tx.is_empty() {
            tx.push(packet);
            return;
        }
        let owned = pool.copy(packet.to, packet.head, packet.data.as_slice());
        self.tx.inject(&faults, &mut control.counts, owned, now_ns, pool, &mut |packet, pool| {
            tx.push(packet.to_transmit());
            pool.recycle(packet);
        });
    }

    fn receive(&mut self, packet: OwnedPacket, now_ns: u64, ready: &mut VecDeque<OwnedPacket>, pool: &mut Pool) {
        let mut control = self.handle.lock();
        let faults = control.config.rx;
        if faults.is_none() && self.rx.is_empty() {
            ready.push_back(packet);
            return;
        }
        self.rx.inject(&faults, &mut control.counts, packet, now_ns, pool, &mut |packet, _| ready.push_back(packet));
    }

    fn advance(
        &mut self,
        now_ns: u64,
        tx: &mut dyn PacketTx,
        ready: &mut VecDeque<OwnedPacket>,
        pool: &mut Pool,
    ) -> bool {
        let before = self.tx.released;
        self.tx.release(now_ns, pool, &mut |packet, pool| {
            tx.push(packet.to_transmit());
            pool.recycle(packet);
        });
        self.rx.release(now_ns, pool, &mut |packet, _| ready.push_back(packet));
        self.tx.released != before
    }

    fn next_due_ns(&self) -> Option<u64> {
        Some(self.tx.next_due_ns().min(self.rx.next_due_ns())).filter(|&due_ns| due_ns != u64::MAX)
    }

    fn stats(&self) -> PortStats {
        let mut stats = PortStats::default();
        stats.count_dropped(Dropped::Injected, self.handle.counts().dropped);
        stats
    }
}
