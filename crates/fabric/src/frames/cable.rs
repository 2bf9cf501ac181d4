//! A frame port over a packet port: each frame is a packet to the other end of a cable.
//!
//! ```
//! use sinew_fabric::frames::cable::Cable;
//! use sinew_fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame, MacAddress};
//! use sinew_fabric::{ManualClock, PacketPort, loopback::Network};
//!
//! let network = Network::new(ManualClock::new());
//! let (a, b) = (network.port("a")?, network.port("b")?);
//! let (to_a, to_b) = (a.address(), b.address());
//! let mut a = Cable::to(a, &to_b, MacAddress([2, 0, 0, 0, 0, 1]))?;
//! let mut b = Cable::to(b, &to_a, MacAddress([2, 0, 0, 0, 0, 2]))?;
//! let (_, tx) = a.split();
//! tx.push(&[0xFF; 14], b"hello");
//! tx.submit();
//! let mut burst = FrameBurst::new(0);
//! b.split().0.receive(&mut burst);
//! assert_eq!(&burst.frames[0].bytes()[14..], b"hello");
//! # Ok::<(), sinew_fabric::PortError>(())
//! ```

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use super::{
    ETHERNET_HEADER_LEN, FrameBurst, FrameCaps, FrameFamily, FramePort, FrameRx, FrameTx, LentFrame, MacAddress,
};
use crate::address::{Address, Peer};
use crate::port::{Dropped, PacketPort, PacketRx, PacketTx, PortError, PortStats, RxBurst, TxData, TxPacket};
use crate::readiness::{Armed, Descriptor, Readiness};
use crate::waker::Waker;

/// The family of cables' frames.
#[derive(Clone, Copy, Debug)]
pub struct Copied;

impl FrameFamily for Copied {
    type Frame<'a> = CopiedFrame<'a>;
}

/// A frame in its receiver's own memory.
#[derive(Debug)]
pub struct CopiedFrame<'a>(&'a mut [u8]);

impl LentFrame for CopiedFrame<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0
    }
}

/// One end of a cable between two packet ports. Frames are copied out of the packets that the port lends, since those
/// cannot be written. A frame from anybody except the other end is dropped, and counted as [`Dropped::Malformed`].
#[derive(Debug)]
pub struct Cable<P: PacketPort> {
    rx: CableRx<P>,
    tx: CableTx<P>,
    mac: MacAddress,
    caps: FrameCaps,
}

/// The receiving half of a [`Cable`]. A packet port lends its halves for one call only, so both halves of a cable hold
/// the port.
#[derive(Debug)]
pub struct CableRx<P> {
    port: Rc<RefCell<P>>,
    peer: Rc<Cell<Option<Peer>>>,
    memory: Vec<u8>,
    frame_len_max: usize,
    stats: PortStats,
}

/// The transmitting half of a [`Cable`].
#[derive(Debug)]
pub struct CableTx<P> {
    port: Rc<RefCell<P>>,
    peer: Rc<Cell<Option<Peer>>>,
    frame_len_max: usize,
    stats: PortStats,
}

impl<P: PacketPort> Cable<P> {
    /// The end of a cable to the port at `address`.
    ///
    /// # Errors
    ///
    /// As [`PacketPort::resolve`].
    pub fn to(mut port: P, address: &Address, mac: MacAddress) -> Result<Self, PortError> {
        let peer = port.resolve(address)?;
        Ok(Self::with(port, Some(peer), mac))
    }

    /// The end of a cable to the first port that sends a frame. Until then it sends nowhere, which counts as
    /// [`Dropped::NoSuchPeer`].
    pub fn to_first_sender(port: P, mac: MacAddress) -> Self {
        Self::with(port, None, mac)
    }

    fn with(port: P, peer: Option<Peer>, mac: MacAddress) -> Self {
        let packets = port.caps();
        let frame_len_max = peer.map_or(packets.packet_len_max, |peer| port.packet_len_max(peer));
        let caps = FrameCaps {
            frame_len_max,
            burst_max: packets.burst_max,
            receive_frames: packets.receive_packets.min(packets.receive_packets_per_peer),
            forwards_in_place: false,
        };
        let (port, peer) = (Rc::new(port.into()), Rc::new(peer.into()));
        let tx = CableTx { port: Rc::clone(&port), peer: Rc::clone(&peer), frame_len_max, stats: PortStats::default() };
        let memory = Vec::with_capacity(packets.burst_max * packets.packet_len_max);
        let rx = CableRx { port, peer, memory, frame_len_max: packets.packet_len_max, stats: PortStats::default() };
        Self { rx, tx, mac, caps }
    }

    /// Address at which the other end of the cable finds this one.
    pub fn address(&self) -> Address {
        self.tx.port.borrow().address()
    }
}

impl<P: PacketPort> FrameRx for CableRx<P> {
    type Family = Copied;

    fn receive<'a>(&'a mut self, burst: &mut FrameBurst<'a, Copied>) {
        let Self { port, peer, memory, frame_len_max, stats } = self;
        memory.clear();
        let mut ends = arrayvec::ArrayVec::<usize, { crate::MAX_BURST }>::new();
        let mut port = port.borrow_mut();
        let mut packets = RxBurst::new(burst.time_ns);
        port.split().0.receive(&mut packets);
        burst.time_ns = packets.time_ns;
        for packet in &packets.packets {
            let other = peer.get().unwrap_or(packet.from);
            if other != packet.from || !(ETHERNET_HEADER_LEN..=*frame_len_max).contains(&packet.len()) {
                stats.count_dropped(Dropped::Malformed, 1);
                continue;
            }
            peer.set(Some(other));
            let start = memory.len();
            memory.extend_from_slice(packet.head);
            if let Some(tail) = packet.tail {
                memory.resize(start + packet.len(), 0);
                if tail.copy_to(&mut memory[start + packet.head.len()..]).is_err() {
                    memory.truncate(start);
                    stats.count_dropped(Dropped::Revoked, 1);
                    continue;
                }
            }
            stats.rx_packets += 1;
            stats.rx_bytes += (memory.len() - start) as u64;
            ends.push(memory.len());
        }
        drop(packets);
        lend(memory, ends, burst);
    }
}

/// Lends frames that lie one after the other, given the end of each.
pub(super) fn lend<'a>(
    memory: &'a mut [u8],
    ends: impl IntoIterator<Item = usize>,
    burst: &mut FrameBurst<'a, Copied>,
) {
    let (mut rest, mut start) = (memory, 0);
    for end in ends {
        let (frame, behind) = rest.split_at_mut(end - start);
        burst.frames.push(CopiedFrame(frame));
        (rest, start) = (behind, end);
    }
}

impl<P: PacketPort> FrameTx for CableTx<P> {
    type Family = Copied;

    fn push(&mut self, head: &[u8], rest: &[u8]) {
        let len = head.len() + rest.len();
        let reason = match self.peer.get() {
            _ if len < ETHERNET_HEADER_LEN => Dropped::Malformed,
            _ if len > self.frame_len_max => Dropped::TooLong,
            None => Dropped::NoSuchPeer,
            Some(to) => {
                let data = if rest.is_empty() { TxData::None } else { TxData::Bytes(rest) };
                self.port.borrow_mut().split().1.push(TxPacket { to, head, data });
                return;
            }
        };
        self.stats.count_dropped(reason, 1);
    }

    fn forward(&mut self, frame: CopiedFrame<'_>) {
        self.push(frame.bytes(), &[]);
    }

    fn submit(&mut self) {
        self.port.borrow_mut().split().1.submit();
    }
}

impl<P: PacketPort> Readiness for Cable<P> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.tx.port.borrow().descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.tx.port.borrow_mut().arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.tx.port.borrow_mut().disarm()
    }
}

impl<P: PacketPort> FramePort for Cable<P> {
    type Family = Copied;
    type Rx = CableRx<P>;
    type Tx = CableTx<P>;

    fn caps(&self) -> FrameCaps {
        self.caps
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn split(&mut self) -> (&mut CableRx<P>, &mut CableTx<P>) {
        (&mut self.rx, &mut self.tx)
    }

    fn waker(&self) -> Waker {
        self.tx.port.borrow().waker()
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.tx.port.borrow_mut().wait(timeout_ns)
    }

    /// Frames received and sent; packets that the port itself dropped are counted too.
    fn stats(&self) -> PortStats {
        let port = self.tx.port.borrow().stats();
        let mut stats = self.rx.stats.merged(&self.tx.stats);
        (stats.tx_packets, stats.tx_bytes) = (port.tx_packets, port.tx_bytes);
        for reason in Dropped::ALL {
            stats.count_dropped(reason, port.dropped(reason));
        }
        stats
    }
}
