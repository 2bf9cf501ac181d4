//! An example of a layer that grows packets, in the way that sealing would. It protects nothing.
//!
//! Each packet is masked by a keystream that depends on its number, and gets a trailer of [`SEAL_LEN`] bytes: the
//! number, and a keyed checksum of the number and the masked bytes. Packets with a wrong checksum, and replayed
//! packets, are dropped and counted. So bytes that are damaged or duplicated below the layer never get above it,
//! which is what the tests rely on.
//!
//! To be secure it would need a cipher, keys for each pair and each direction, and a key exchange.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;

use sinew_fabric::address::{Address, Peer};
use sinew_fabric::layer::{Layer, Layered, OwnedPacket, Pool};
use sinew_fabric::port::{Dropped, PacketPort, PacketTx, PortError, PortStats, TxPacket};
use sinew_fabric::time::{Generator, SeededGenerator};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{self, Hasher128};

use crate::ports::{Expectations, Fixture};

/// Bytes that the layer adds to each packet: a number of eight, and a checksum of sixteen.
pub const SEAL_LEN: usize = NUMBER_LEN + SUM_LEN;
const NUMBER_LEN: usize = 8;
const SUM_LEN: usize = 16;
/// The most peers whose numbers are kept, all of which know the key. Some would never be forgotten, such as those that
/// the protocol above refused. So when the table is full, the peer that was silent longest is evicted.
const PEERS_MAX: usize = 1024;

/// A port whose packets are sealed; see the [module](self).
pub type Sealed<P> = Layered<P, SealLayer>;

/// Seals the packets of `port`. Both sides have the same key. Packets are numbered from `first` on, which must be past
/// every number that an earlier port at the same address has used: a clock's nanoseconds will do.
///
/// # Errors
///
/// As for [`Layered::wrap`].
pub fn seal<P: PacketPort>(port: P, key: [u64; 2], first: u64) -> Result<Sealed<P>, PortError> {
    Layered::wrap(
        port,
        SealLayer { key, next: first, replay_windows: HashMap::new(), opened: 0, stats: PortStats::default() },
    )
}

/// The layer of a [`Sealed`] port.
#[derive(Debug)]
pub struct SealLayer {
    key: [u64; 2],
    /// Number of the next packet to any peer. Separate numbers for each peer would start again once the peer is
    /// forgotten.
    next: u64,
    replay_windows: HashMap<Peer, ReplayWindow>,
    /// Packets let through.
    opened: u64,
    stats: PortStats,
}

/// Record of which packets from a peer have arrived.
#[derive(Debug)]
struct ReplayWindow {
    /// The highest number so far.
    highest: u64,
    /// One bit for each number, from the highest downwards, starting at the lowest bit: set if the number has arrived.
    seen_bits: u128,
    /// Value of `SealLayer::opened` when the last packet of this peer was let through.
    last: u64,
}

impl ReplayWindow {
    /// Notes that `number` has arrived; returns false if it had arrived before, or is too far behind to tell.
    fn accept_number(&mut self, number: u64) -> bool {
        if number > self.highest {
            let ahead = u32::try_from(number - self.highest).unwrap_or(u32::MAX);
            self.seen_bits = self.seen_bits.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let behind = u32::try_from(self.highest - number).unwrap_or(u32::MAX);
        let bit = 1u128.checked_shl(behind).unwrap_or(0);
        let is_new = bit != 0 && self.seen_bits & bit == 0;
        self.seen_bits |= bit;
        is_new
    }
}

impl SealLayer {
    /// Number of peers with a record.
    pub fn peers(&self) -> usize {
        self.replay_windows.len()
    }

    /// Masks bytes with the keystream of a number, or unmasks them.
    fn mask(&self, number: u64, bytes: &mut [u8]) {
        let mut seed = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        seed.write_u64(number);
        let mut stream = SeededGenerator::new(seed.finish());
        for piece in bytes.chunks_mut(8) {
            for (byte, mask) in piece.iter_mut().zip(stream.next_u64().to_le_bytes()) {
                *byte ^= mask;
            }
        }
    }

    fn sum(&self, number: u64, masked: &[u8]) -> [u8; SUM_LEN] {
        let mut hasher = sip128::SipHasher24::new_with_keys(self.key[0], self.key[1]);
        hasher.write_u64(number);
        hasher.write(masked);
        hasher.finish128().as_bytes()
    }

    /// Checks a sealed packet; returns its number and the length of the bytes that it seals.
    fn open(&mut self, packet: &OwnedPacket) -> Result<(u64, usize), Dropped> {
        let (rest, sum) = packet.bytes.split_last_chunk::<SUM_LEN>().ok_or(Dropped::Malformed)?;
        let (masked, number) = rest.split_last_chunk::<NUMBER_LEN>().ok_or(Dropped::Malformed)?;
        let number = u64::from_le_bytes(*number);
        if self.sum(number, masked) != *sum {
            return Err(Dropped::BadSeal);
        }
        if let Some(window) = self.replay_windows.get_mut(&packet.peer) {
            if !window.accept_number(number) {
                return Err(Dropped::Replayed);
            }
            window.last = self.opened;
        } else {
            if self.replay_windows.len() >= PEERS_MAX
                && let Some(silent) =
                    self.replay_windows.iter().min_by_key(|(_, window)| window.last).map(|(peer, _)| *peer)
            {
                self.replay_windows.remove(&silent);
            }
            self.replay_windows.insert(packet.peer, ReplayWindow { highest: number, seen_bits: 1, last: self.opened });
        }
        self.opened += 1;
        Ok((number, masked.len()))
    }
}

impl Layer for SealLayer {
    fn overhead(&self) -> usize {
        SEAL_LEN
    }

    fn forgotten(&mut self, peer: Peer) {
        self.replay_windows.remove(&peer);
    }

    fn push(&mut self, packet: TxPacket<'_>, _now_ns: u64, tx: &mut dyn PacketTx, pool: &mut Pool) {
        let mut sealed = pool.copy(packet.to, packet.head, packet.data.as_slice());
        let number = self.next;
        self.next += 1;
        self.mask(number, &mut sealed.bytes);
        let sum = self.sum(number, &sealed.bytes);
        sealed.bytes.extend_from_slice(&number.to_le_bytes());
        sealed.bytes.extend_from_slice(&sum);
        tx.push(sealed.to_transmit());
        pool.recycle(sealed);
    }

    fn receive(&mut self, mut packet: OwnedPacket, _now_ns: u64, ready: &mut VecDeque<OwnedPacket>, pool: &mut Pool) {
        match self.open(&packet) {
            Ok((number, len)) => {
                packet.bytes.truncate(len);
                packet.head_len = len;
                self.mask(number, &mut packet.bytes);
                ready.push_back(packet);
            }
            Err(reason) => {
                self.stats.count_dropped(reason, 1);
                pool.recycle(packet);
            }
        }
    }

    fn stats(&self) -> PortStats {
        self.stats
    }
}

/// A fixture's ports, each with the layer around it.
#[derive(Debug)]
pub struct SealedFixture<F> {
    inner: F,
    opened: u64,
}

impl<F: Fixture> SealedFixture<F> {
    /// Wraps the ports of `inner`.
    pub fn new(inner: F) -> Self {
        Self { inner, opened: 0 }
    }
}

impl<F: Fixture> Fixture for SealedFixture<F> {
    type Port = Sealed<F::Port>;

    fn open(&mut self) -> Self::Port {
        self.opened += 1;
        seal(self.inner.open(), [1, 2], self.opened << 32).expect("packets with room for a seal")
    }

    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }

    fn expectations(&self) -> Expectations {
        self.inner.expectations()
    }

    fn absent_address(&self) -> Option<Address> {
        self.inner.absent_address()
    }
}
