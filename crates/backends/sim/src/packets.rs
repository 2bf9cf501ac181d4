//! The packets of a simulation: from where, to where, and what they hold.

use std::collections::VecDeque;

/// Bytes that a packet holds itself; a longer one has a buffer besides.
const SHORT: usize = 64;
/// Bytes that a packet which ended keeps for the next at most: those in flight can be many, and the longest few.
const KEPT: usize = 16 << 10;

/// A packet. Those in flight are many, and are looked at when they are sent and when they arrive: two lines of the cache, which whoever
/// has the packet hands on without touching them.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Packet {
    pub from: u32,
    pub to: u32,
    len: u32,
    /// Whether a switch found it in a long queue.
    pub is_marked: bool,
    /// Whether bits of it were flipped: a NIC finds that by the check sum.
    pub is_damaged: bool,
    short: [u8; SHORT],
    /// What it holds, where it is not short. A short one keeps the memory of a longer one before it.
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

    /// Flips a bit, if it has that many.
    pub fn flip(&mut self, bit: u64) {
        self.is_damaged = true;
        let len = self.len as usize;
        let bytes = if len <= SHORT { &mut self.short[..len] } else { &mut self.long[..] };
        if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// Where packets are made and end. The last that ended is used first, since the caches still know it.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    /// Boxes, since packets go from here to ports and back.
    #[expect(clippy::vec_box)]
    free: Vec<Box<Packet>>,
    in_flight: usize,
}

impl Packets {
    /// A packet of some bytes.
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

    /// Another packet that is the same.
    pub fn twin(&mut self, packet: &Packet) -> Box<Packet> {
        let mut twin = self.pack(packet.from, packet.to, packet.bytes(), &[]);
        (twin.is_marked, twin.is_damaged) = (packet.is_marked, packet.is_damaged);
        twin
    }

    /// A packet is a port's now, until that [gives it back](Self::give_back).
    #[inline]
    pub fn lend(&mut self) {
        self.in_flight -= 1;
    }

    /// Ends a packet that was lent.
    #[inline]
    pub fn give_back(&mut self, packet: Box<Packet>) {
        self.keep(packet);
    }

    /// Ends a packet on its way.
    pub fn end(&mut self, packet: Box<Packet>) {
        self.in_flight -= 1;
        self.keep(packet);
    }

    #[inline]
    fn keep(&mut self, mut packet: Box<Packet>) {
        if packet.long.capacity() > KEPT {
            packet.long = Vec::new();
        }
        self.free.push(packet);
    }

    /// How many are on their way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

/// Packets of a host that will have arrived, in their order.
pub(crate) type Coming = VecDeque<(u64, Box<Packet>)>;
