//! A deterministic network in memory, on a manual clock.
//!
//! A [`Network`] is a handle that its test clones; [`Network::port`] opens ports on it, at `loopback://name`. Packets
//! to a port arrive in the order in which they were submitted, a fixed time later. There are no threads and no system
//! calls, and in steady state nothing is allocated, so the same calls always give the same packets at the same times.
//!
//! A network also lets a test do to ports what happens to real ones: [kill](Network::kill) and
//! [revive](Network::revive) a port, [cut a link](Network::set_link), [inject](Network::inject) bytes from a stranger,
//! [report](Network::report_loss) the loss of a peer that lives, and [tap](Network::start_tap) everything sent. For
//! random loss, duplication, reordering and delay, see [`crate::fault`].
//!
//! ```
//! use sinew_fabric::{ManualClock, PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket, loopback::Network};
//!
//! let network = Network::new(ManualClock::new());
//! let (mut alice, mut bob) = (network.port("alice")?, network.port("bob")?);
//! let to = alice.resolve(&bob.address())?;
//! let (_, tx) = alice.split();
//! tx.push(TxPacket { to, head: b"good morning", data: TxData::None });
//! tx.submit();
//!
//! let mut burst = RxBurst::new(0);
//! bob.split().0.receive(&mut burst);
//! assert_eq!(burst.packets[0].head, b"good morning");
//! # Ok::<(), sinew_fabric::PortError>(())
//! ```

mod port;
mod state;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::address::{Address, Peer};
use crate::port::{PeerLoss, PortError, PortEvent};
use crate::time::{Clock, ManualClock};

pub use port::{LoopbackPort, LoopbackRx, LoopbackTx};
use state::NetworkState;

/// The scheme of loopback addresses.
pub const SCHEME: &str = "loopback";

/// Capabilities of a loopback port, and its treatment of shared buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackConfig {
    /// The largest packet, in bytes.
    pub packet_len_max: usize,
    /// Value of [`crate::Caps::copy_len_max`], in bytes.
    pub copy_len_max: usize,
    /// The most packets that a burst lends; from 1 to [`crate::MAX_BURST`].
    pub burst_max: usize,
    /// Packets that wait at the port before further ones are dropped. Packets that are in flight or lent do not count.
    pub receive_packets: usize,
    /// Value of [`crate::Caps::lends_in_place`].
    pub lends_in_place: bool,
    /// Whether the port keeps its shares of [`Frozen`](sinew_mem::Frozen) buffers until their packets are delivered or
    /// revoked, as a port over shared memory or with DMA does. Otherwise it copies at once.
    pub holds_shares: bool,
    /// Whether data that a peer sent from a share that it holds is lent as a tail ([`crate::RxPacket::tail`]), as if
    /// from memory that the sender may still write. The sender then holds its share until the burst is given back, and
    /// if it revokes the packet meanwhile, copying the tail fails.
    pub lends_tails: bool,
    /// Address space for the port's arena, in bytes.
    pub arena_bytes: usize,
}

impl Default for LoopbackConfig {
    fn default() -> Self {
        Self {
            packet_len_max: 1472,
            copy_len_max: 512,
            burst_max: 32,
            receive_packets: 4096,
            lends_in_place: true,
            holds_shares: false,
            lends_tails: false,
            arena_bytes: if cfg!(miri) { 4 << 20 } else { 256 << 20 },
        }
    }
}

/// A packet as the tap saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedPacket {
    /// Time of submission, on the network's clock.
    pub time_ns: u64,
    /// The sender, real or claimed.
    pub from: Peer,
    /// The receiver.
    pub to: Peer,
    /// All bytes of the packet.
    pub bytes: Vec<u8>,
}

/// The network: a handle, whose clones are the same network.
#[derive(Clone)]
pub struct Network {
    state: Rc<RefCell<NetworkState>>,
    clock: ManualClock,
}

impl Network {
    /// A network without ports or latency.
    pub fn new(clock: ManualClock) -> Self {
        Self { state: Rc::default(), clock }
    }

    /// The clock that the network runs on.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Opens a port at `loopback://name` with the default configuration. For an empty name one is made up.
    ///
    /// # Errors
    ///
    /// [`PortError::Taken`] when a living port has the name; [`PortError::System`] when there is no address space for
    /// the port's arena.
    pub fn port(&self, name: &str) -> Result<LoopbackPort, PortError> {
        self.port_with(name, LoopbackConfig::default())
    }

    /// Opens a port with a configuration of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::port`], and [`PortError::Limit`] when `burst_max` is 0 or over [`crate::MAX_BURST`].
    pub fn port_with(&self, name: &str, config: LoopbackConfig) -> Result<LoopbackPort, PortError> {
        LoopbackPort::open(self, name, config)
    }

    /// The peer with a name, if a living port has it.
    pub fn peer(&self, name: &str) -> Option<Peer> {
        self.state.borrow().find(name).map(NetworkState::peer_of)
    }

    /// A peer that no port ever has, for packets from strangers.
    pub fn stranger(number: u32) -> Peer {
        Peer([u64::from(number), u64::MAX, u64::MAX])
    }

    /// Sets the time that packets submitted from now on take to arrive, in nanoseconds. No packet overtakes an earlier
    /// one to the same port.
    pub fn set_latency_ns(&self, latency_ns: u64) {
        self.state.borrow_mut().latency_ns = latency_ns;
    }

    /// Cuts or mends the link between two names, in both directions. Packets submitted while it is cut are lost without
    /// notice; those already in flight still arrive.
    pub fn set_link(&self, a: &str, b: &str, up: bool) {
        self.state.borrow_mut().set_link(a, b, up);
    }

    /// Packets lost on cut links so far.
    pub fn lost_on_links(&self) -> u64 {
        self.state.borrow().lost_on_links
    }

    /// Kills the port with that name, as if its process had died: packets waiting at it and shares that it holds are
    /// gone, packets to it count as [`crate::Dropped::NoSuchPeer`], and peers that had exchanged packets with it are
    /// told. Returns false when there is no such port.
    ///
    /// The [`LoopbackPort`] itself stays, and neither sends nor receives.
    pub fn kill(&self, name: &str) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(index) = state.find(name) else { return false };
        state.close(index, PeerLoss::ProcessDied);
        true
    }

    /// Revives the port that was killed last under that name as the same peer, with nothing waiting. Returns false when
    /// there is none, or a living port has taken the name.
    pub fn revive(&self, name: &str) -> bool {
        self.state.borrow_mut().revive(name)
    }

    /// Makes a port report the loss of a peer that may be alive and well, as a forged message can make real ports do.
    /// Returns false when there is no such port.
    pub fn report_loss(&self, to: &str, peer: Peer, loss: PeerLoss) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(to) = state.find(to) else { return false };
        state.node_mut(to).events.push_back(PortEvent::PeerLost { peer, loss });
        true
    }

    /// Sends bytes to a port as if from a peer, which may be made up. They travel like any packet. Returns false when
    /// there is no such port; bytes longer than its largest packet count as [`crate::Dropped::Malformed`] at the port.
    pub fn inject(&self, to: &str, from: Peer, bytes: &[u8]) -> bool {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.borrow_mut();
        let Some(to) = state.find(to) else { return false };
        state.inject(to, from, bytes, now_ns);
        true
    }

    /// Copies every packet submitted from now on, including lost ones, until [`Self::take_tapped`] fetches them.
    pub fn start_tap(&self) {
        self.state.borrow_mut().tap.get_or_insert_default();
    }

    /// Packets sent since the tap was started or last read.
    pub fn take_tapped(&self) -> Vec<TappedPacket> {
        self.state.borrow_mut().tap.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Time at which the earliest packet not yet received arrives or arrived, in nanoseconds; `None` when there is
    /// none.
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.state.borrow().next_arrival_ns()
    }

    /// Moves the clock to the next arrival. Returns false when nothing is in flight.
    pub fn advance_to_next_arrival(&self) -> bool {
        let next_ns = self.next_arrival_ns();
        next_ns.inspect(|&ns| self.clock.advance_to(ns)).is_some()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.borrow();
        f.debug_struct("Network")
            .field("now_ns", &self.clock.now_ns())
            .field("latency_ns", &state.latency_ns)
            .field("ports", &state.living_names())
            .finish_non_exhaustive()
    }
}

fn address_of(name: &str) -> Address {
    Address::new(SCHEME, name)
}
