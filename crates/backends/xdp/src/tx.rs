//! The sending half of a packet port, which gathers packets into frames.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use arrayvec::ArrayVec;
use sinew_fabric::hold::{HOLD_LEN_MAX, Hold};
use sinew_fabric::{Dropped, PacketTx, Peer, TxPacket, sockets};
use sinew_mem::atomic::plain::Arc;
use sinew_wire::batch::{BATCH_HEADER, BATCH_MAGIC, BATCH_VERSION, FRAME_HEADER, is_batch};
use sinew_wire::udp::headers_len;

use crate::core::{Core, OutgoingDatagram};
use crate::memory::{Chunk, Memory};

/// Frames that are gathered before they are sent without a submit.
const FRAMES_MAX: usize = 64;
/// Room before the first packet of a frame, in case the frame becomes a batch.
const BATCH_ROOM: usize = BATCH_HEADER + FRAME_HEADER;
/// Offset at which a batch begins in its chunk. The headers end there, or, for a packet that is sent without a batch,
/// [`BATCH_ROOM`] later.
pub(crate) const PAYLOAD_START: usize = 64;

/// A frame that is being filled.
#[derive(Debug)]
struct Filling {
    to: Peer,
    address: IpAddr,
    chunk: Chunk,
    /// End of the last packet in the chunk.
    end: usize,
    packets: u64,
    /// Bytes of the packets.
    packet_bytes: usize,
    batch: bool,
    open: bool,
}

impl Filling {
    fn payload_start(&self) -> usize {
        if self.batch { PAYLOAD_START } else { PAYLOAD_START + BATCH_ROOM }
    }

    fn put(&mut self, memory: &Memory, packet: &TxPacket<'_>) {
        let (data, len) = (packet.data.as_slice(), packet.len());
        let bytes = memory.bytes_mut(&mut self.chunk, self.end, len);
        bytes[..packet.head.len()].copy_from_slice(packet.head);
        bytes[packet.head.len()..].copy_from_slice(data);
        self.end += len;
        self.packets += 1;
        self.packet_bytes += len;
    }

    fn become_batch(&mut self, memory: &Memory) {
        let len = self.packet_bytes as u16;
        let room = memory.bytes_mut(&mut self.chunk, PAYLOAD_START, BATCH_ROOM);
        room[..BATCH_HEADER].copy_from_slice(&[BATCH_MAGIC, BATCH_VERSION]);
        room[BATCH_HEADER..].copy_from_slice(&len.to_le_bytes());
        self.batch = true;
    }

    /// Adds a packet; returns false if it must go into another frame.
    #[inline]
    fn add(&mut self, memory: &Memory, packet: &TxPacket<'_>, datagram_max: usize) -> bool {
        let len = packet.len();
        let total = self.end - PAYLOAD_START + FRAME_HEADER + len;
        if total > datagram_max || len == 0 || self.packet_bytes == 0 {
            return false;
        }
        if !self.batch {
            self.become_batch(memory);
        }
        let header = (len as u16).to_le_bytes();
        memory.bytes_mut(&mut self.chunk, self.end, FRAME_HEADER).copy_from_slice(&header);
        self.end += FRAME_HEADER;
        self.put(memory, packet);
        true
    }
}

/// The sending half of a [`crate::XdpPort`].
#[derive(Debug)]
pub struct XdpTx {
    core: Rc<RefCell<Core>>,
    memory: Arc<Memory>,
    coalesce: bool,
    /// Whether the port's address is an IPv6 address.
    v6: bool,
    /// Bytes of the longest datagram.
    datagram_max: usize,
    filling: ArrayVec<Filling, FRAMES_MAX>,
    hold: Hold,
}

impl XdpTx {
    pub(crate) fn new(core: &Rc<RefCell<Core>>, coalesce: bool, datagram_max: usize) -> Self {
        let (memory, v6) = {
            let core = core.borrow();
            (Arc::clone(&core.memory), core.local.address.is_ipv6())
        };
        Self {
            core: Rc::clone(core),
            memory,
            coalesce,
            v6,
            datagram_max,
            filling: ArrayVec::new(),
            hold: Hold::default(),
        }
    }

    fn count(&self, reason: Dropped, packets: u64) {
        self.core.borrow_mut().tx_stats.count_dropped(reason, packets);
    }

    /// The address of a peer, if this port can send there.
    fn address_of(&self, peer: Peer) -> Option<IpAddr> {
        let address = sockets::unpack(peer).filter(|address| address.port() != 0)?.ip();
        let is_host = !address.is_unspecified() && !address.is_multicast() && !address.is_loopback();
        (address.is_ipv6() == self.v6 && is_host).then_some(address)
    }

    fn transmit(&mut self) {
        let core = &mut *self.core.borrow_mut();
        for filling in self.filling.drain(..) {
            let start = filling.payload_start() - headers_len(filling.address);
            core.send(OutgoingDatagram {
                start,
                len: filling.end - start,
                to: filling.address,
                to_port: sockets::port_of(filling.to),
                packets: filling.packets,
                packet_bytes: filling.packet_bytes as u64,
                chunk: filling.chunk,
            });
        }
        core.sender.submit();
        if core.is_waiting() {
            core.send_waiting();
        }
        core.ask_stale();
        self.hold.sent();
    }
}

impl PacketTx for XdpTx {
    #[inline]
    fn push(&mut self, packet: TxPacket<'_>) {
        if packet.len() > self.datagram_max {
            self.count(Dropped::TooLong, 1);
            return;
        }
        if self.coalesce {
            // Only the newest frame to this peer may grow, so a peer's packets stay in order.
            let found = self.filling.iter_mut().rev().find(|filling| filling.to == packet.to);
            if let Some(filling) = found.filter(|filling| filling.open) {
                if filling.add(&self.memory, &packet, self.datagram_max) {
                    return;
                }
                filling.open = false;
            }
        }
        let Some(address) = self.address_of(packet.to) else {
            self.count(Dropped::NoSuchPeer, 1);
            return;
        };
        if self.filling.is_full() {
            self.transmit();
        }
        // A packet that looks like a batch travels as a batch of one.
        let first = if packet.head.is_empty() { packet.data.as_slice() } else { packet.head };
        let is_escaped = is_batch(first);
        if is_escaped && packet.len() + BATCH_ROOM > self.datagram_max {
            self.count(Dropped::TooLong, 1);
            return;
        }
        let Some(chunk) = self.core.borrow_mut().sender.chunk() else {
            self.count(Dropped::Full, 1);
            return;
        };
        let mut filling = Filling {
            to: packet.to,
            address,
            chunk,
            end: PAYLOAD_START + BATCH_ROOM,
            packets: 0,
            packet_bytes: 0,
            batch: false,
            open: true,
        };
        filling.put(&self.memory, &packet);
        if is_escaped {
            filling.become_batch(&self.memory);
        }
        self.filling.push(filling);
    }

    #[inline]
    fn submit_soon(&mut self, now_ns: u64) {
        let packets = self.filling.iter().map(|filling| filling.packets).sum();
        let waits = self.hold.should_hold(packets, now_ns);
        let len: usize = self.filling.iter().map(|filling| filling.packet_bytes).sum();
        let is_held = waits && self.coalesce && len <= HOLD_LEN_MAX;
        if !self.filling.is_empty() && !is_held {
            self.transmit();
        }
    }

    #[inline]
    fn submit(&mut self) {
        if !self.filling.is_empty() {
            self.transmit();
        }
    }

    /// Submits: packets are copied when they are pushed, so no shares are held.
    fn flush(&mut self) {
        self.submit();
    }
}

impl Drop for XdpTx {
    fn drop(&mut self) {
        self.memory.give_back(self.filling.drain(..).map(|filling| filling.chunk));
    }
}
