//! The packets of a simulation: source, destination and bytes.

use std::collections::VecDeque;

/// Bytes that a packet holds itself; a longer one has a separate buffer.
const SHORT: usize = 64;
/// Most bytes of buffer that an ended packet keeps for the next: many packets can be in flight, and few of them are
/// long.
const BUFFER_LEN_KEPT: usize = 16 << 10;

/// A packet. Many are in flight, and are read only when they are sent and when they arrive. Each takes two cache lines,
/// which are handed on untouched in between.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Packet {
    pub from: u32,
    pub to: u32,
    len: u32,
    /// Whether a switch marked it in a long queue.
    pub is_marked: bool,
    /// Whether bits of it were flipped: a NIC notices by the checksum.
    pub is_damaged: bool,
    short: [u8; SHORT],
    /// Its bytes, if it is not short. A short packet keeps the buffer of a longer one before it.
    long: Vec<u8>,
}
const _: () = assert!(size_of::<Packet>() == 128);

impl Packet {
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let len = self.len as usize;
        if len <= SHORT { &self.short[..len] } else { &self.long }
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Flips a bit, if the packet is long enough, and marks the packet as damaged.
    pub fn flip(&mut self, bit: u64) {
        self.is_damaged = true;
        let len = self.len as usize;
        let bytes = if len <= SHORT { &mut self.short[..len] } else { &mut self.long[..] };
        if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// Makes and ends packets. The packet that ended last is reused first, since the caches still hold it.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    /// Boxed, since packets move from here to ports and back.
    #[expect(clippy::vec_box)]
    free: Vec<Box<Packet>>,
    in_flight: usize,
}

impl Packets {
    /// Packs `head` and `data` into a packet.
    #[inline]
    pub fn pack(&mut self, from: u32, to: u32, head: &[u8], data: &[u8]) -> Box<Packet> {
        let mut packet = self.free.pop().unwrap_or_else(|| {
            Box::new(Packet {
                from,
                to,
                len: 0,
                is_marked: false,
                is_damaged: false,
                short: [0; SHORT],
                long: Vec::new(),
            })
        });
        let len = head.len() + data.len();
        (packet.from, packet.to, packet.len) = (from, to, len as u32);
        (packet.is_marked, packet.is_damaged) = (false, false);
        if len <= SHORT {
            packet.short[..head.len()].copy_from_slice(head);
            if !data.is_empty() {
                packet.short[head.len()..len].copy_from_slice(data);
            }
        } else {
            packet.long.clear();
            packet.long.extend_from_slice(head);
            packet.long.extend_from_slice(data);
        }
        self.in_flight += 1;
        packet
    }

    /// Copies a packet.
    pub fn twin(&mut self, packet: &Packet) -> Box<Packet> {
        let mut twin = self.pack(packet.from, packet.to, packet.bytes(), &[]);
        (twin.is_marked, twin.is_damaged) = (packet.is_marked, packet.is_damaged);
        twin
    }

    /// Notes that a packet belongs to a port from now on, until it is [given back](Self::give_back).
    #[inline]
    pub fn lend(&mut self) {
        self.in_flight -= 1;
    }

    /// Ends a packet that was lent.
    #[inline]
    pub fn give_back(&mut self, packet: Box<Packet>) {
        self.keep(packet);
    }

    /// Ends a packet in flight.
    pub fn end(&mut self, packet: Box<Packet>) {
        self.in_flight -= 1;
        self.keep(packet);
    }

    #[inline]
    fn keep(&mut self, mut packet: Box<Packet>) {
        if packet.long.capacity() > BUFFER_LEN_KEPT {
            packet.long = Vec::new();
        }
        self.free.push(packet);
    }

    /// Packets in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

/// Packets that will have arrived at a host, and when, in order.
pub(crate) type Arriving = VecDeque<(u64, Box<Packet>)>;
