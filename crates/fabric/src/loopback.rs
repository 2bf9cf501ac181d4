//! A deterministic network in memory, on a manual clock.
//!
//! A [`Network`] is a handle that its test clones; [`Network::port`] opens ports on it, at `loopback://name`. Packets to a
//! port arrive in the order in which they were submitted, a fixed time later. There are no threads and no system calls, and
//! in steady state nothing is allocated, so the same calls give the same packets at the same times every time.
//!
//! Beside the ports, a network lets a test do to them what happens to real ones: [kill](Network::kill) and
//! [revive](Network::revive) a port, [cut a link](Network::set_link), [inject](Network::inject) bytes from a stranger,
//! [report](Network::report_loss) the loss of a peer that lives, [tap](Network::start_tap) all that is sent. Loss, duplication, reordering and delay at random are the business of
//! [`crate::fault`].
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
use state::State;

/// The scheme of loopback addresses.
pub const SCHEME: &str = "loopback";

/// What a loopback port can do, and how it treats shared buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackConfig {
    /// The largest packet, in bytes.
    pub packet_len_max: usize,
    /// What [`crate::Caps::copy_len_max`] says, in bytes.
    pub copy_len_max: usize,
    /// Packets that a burst lends; at least 1 and at most [`crate::MAX_BURST`].
    pub burst_max: usize,
    /// Packets that wait at the port before further ones are dropped. Those that are still on their way, and those that are
    /// lent, do not count.
    pub receive_packets: usize,
    /// What [`crate::Caps::lends_in_place`] says.
    pub lends_in_place: bool,
    /// Whether the port keeps its shares of [`Frozen`](sinew_mem::Frozen) buffers until their packets are delivered or
    /// revoked, as a port over shared memory or with DMA does. Otherwise it copies at once.
    pub holds_shares: bool,
    /// Whether what a peer sent from a share that it holds is lent as a tail ([`crate::RxPacket::tail`]), as on memory that
    /// the sender may still write. The sender then holds its share until the burst is given back, and when it revokes the
    /// packet meanwhile the tail's copy fails.
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
    /// When it was submitted, on the network's clock.
    pub time_ns: u64,
    /// Who sent it, or who is said to have.
    pub from: Peer,
    /// Whom to.
    pub to: Peer,
    /// All its bytes.
    pub bytes: Vec<u8>,
}

/// The network: a handle, whose clones are the same network.
#[derive(Clone)]
pub struct Network {
    state: Rc<RefCell<State>>,
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

    /// Opens a port at `loopback://name` with the default configuration. An empty name gets one made up.
    ///
    /// # Errors
    ///
    /// [`PortError::Taken`] when a living port has the name; [`PortError::System`] when there is no address space for its
    /// arena.
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

    /// The peer that a living port's name stands for.
    pub fn peer(&self, name: &str) -> Option<Peer> {
        self.state.borrow().find(name).map(State::peer_of)
    }

    /// A peer that no port ever has, for packets from strangers.
    pub fn stranger(number: u32) -> Peer {
        Peer([u64::from(number), u64::MAX, u64::MAX])
    }

    /// Sets how long packets that are submitted from now on take to arrive. No packet overtakes an earlier one to the same
    /// port.
    pub fn set_latency_ns(&self, latency_ns: u64) {
        self.state.borrow_mut().latency_ns = latency_ns;
    }

    /// Cuts or mends the link between two names, both ways. Packets that are submitted while it is cut are lost without a
    /// sign; those on their way still arrive.
    pub fn set_link(&self, a: &str, b: &str, up: bool) {
        self.state.borrow_mut().set_link(a, b, up);
    }

    /// Packets lost on cut links so far.
    pub fn lost_on_links(&self) -> u64 {
        self.state.borrow().lost_on_links
    }

    /// Kills the port of that name, as if its process had died: what waits at it and the shares it holds are gone, packets
    /// to it count as [`crate::Dropped::NoSuchPeer`], and whoever had to do with it is told. False when there is none.
    ///
    /// The [`LoopbackPort`] itself stays, and neither sends nor receives.
    pub fn kill(&self, name: &str) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(index) = state.find(name) else { return false };
        state.close(index, PeerLoss::ProcessDied);
        true
    }

    /// Lets the port that was killed last under that name live on as the same peer, with nothing waiting. False when there
    /// is none, or a living port has the name meanwhile.
    pub fn revive(&self, name: &str) -> bool {
        self.state.borrow_mut().revive(name)
    }

    /// Lets a port report the loss of a peer who may be alive and well, as a message that anybody can forge makes real ports do.
    /// False when the port is not there.
    pub fn report_loss(&self, to: &str, peer: Peer, loss: PeerLoss) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(to) = state.find(to) else { return false };
        state.node_mut(to).events.push_back(PortEvent::PeerLost { peer, loss });
        true
    }

    /// Sends bytes to a port as if from a peer, who may be made up. They travel like any packet. False when the port is not
    /// there; bytes longer than its largest packet count as [`crate::Dropped::Malformed`] at the port.
    pub fn inject(&self, to: &str, from: Peer, bytes: &[u8]) -> bool {
        let now_ns = self.clock.now_ns();
        let mut state = self.state.borrow_mut();
        let Some(to) = state.find(to) else { return false };
        state.inject(to, from, bytes, now_ns);
        true
    }

    /// Copies every packet that is submitted from now on, lost ones too, until [`Self::take_tapped`] fetches them.
    pub fn start_tap(&self) {
        self.state.borrow_mut().tap.get_or_insert_default();
    }

    /// What was sent since the tap was started or last read.
    pub fn take_tapped(&self) -> Vec<TappedPacket> {
        self.state.borrow_mut().tap.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// When the next packet that no port has received yet arrives, or arrived. `None` when nothing is on its way.
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.state.borrow().next_arrival_ns()
    }

    /// Moves the clock to the next arrival. False when nothing is on its way.
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
