//! The packets of a simulation: from where, to where, and what they hold.

use std::collections::VecDeque;

use sinew_fabric::Peer;

/// Bytes that a packet holds itself; a longer one has a buffer besides.
const SHORT: usize = 64;
/// No buffer.
const NONE: u32 = u32::MAX;

/// A packet. Those in flight are many, and are looked at when they are sent and when they arrive: two lines of the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Packet {
    pub from: u32,
    pub to: u32,
    pub len: u32,
    buffer: u32,
    /// Whether a switch found it in a long queue.
    pub is_marked: bool,
    short: [u8; SHORT],
}
const _: () = assert!(size_of::<Packet>() == 128);

/// A packet that a port lends.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub from: Peer,
    pub is_marked: bool,
    len: u32,
    buffer: u32,
    short: [u8; SHORT],
    long: Vec<u8>,
}

impl Arrived {
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if self.buffer == NONE { &self.short[..self.len as usize] } else { &self.long }
    }
}

/// Packets by number, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    all: Vec<Packet>,
    free: Vec<u32>,
    buffers: Vec<Vec<u8>>,
    free_buffers: Vec<u32>,
}

impl Packets {
    #[inline]
    pub fn get(&self, index: u32) -> &Packet {
        &self.all[index as usize]
    }

    /// A packet of some bytes.
    #[inline]
    pub fn pack(&mut self, from: u32, to: u32, head: &[u8], data: &[u8]) -> u32 {
        let len = head.len() + data.len();
        let mut packet = Packet { from, to, len: len as u32, buffer: NONE, is_marked: false, short: [0; SHORT] };
        if len <= SHORT {
            packet.short[..head.len()].copy_from_slice(head);
            packet.short[head.len()..len].copy_from_slice(data);
        } else {
            packet.buffer = self.free_buffers.pop().unwrap_or_else(|| {
                self.buffers.push(Vec::new());
                self.buffers.len() as u32 - 1
            });
            let buffer = &mut self.buffers[packet.buffer as usize];
            buffer.extend_from_slice(head);
            buffer.extend_from_slice(data);
        }
        match self.free.pop() {
            Some(index) => {
                self.all[index as usize] = packet;
                index
            }
            None => {
                self.all.push(packet);
                self.all.len() as u32 - 1
            }
        }
    }

    /// Another packet that is the same.
    pub fn twin(&mut self, index: u32) -> u32 {
        let Packet { from, to, len, buffer, is_marked, short } = self.all[index as usize];
        let twin = if buffer == NONE {
            self.pack(from, to, &short[..len as usize], &[])
        } else {
            let bytes = self.buffers[buffer as usize].clone();
            self.pack(from, to, &bytes, &[])
        };
        self.all[twin as usize].is_marked = is_marked;
        twin
    }

    pub fn mark(&mut self, index: u32) {
        self.all[index as usize].is_marked = true;
    }

    /// Flips a bit, if it has that many.
    pub fn flip(&mut self, index: u32, bit: u64) {
        let packet = &mut self.all[index as usize];
        let bytes = match packet.buffer {
            NONE => &mut packet.short[..packet.len as usize],
            buffer => &mut self.buffers[buffer as usize][..],
        };
        if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Ends a packet, and lends what it held.
    #[inline]
    pub fn take(&mut self, index: u32, from: Peer) -> Arrived {
        let packet = &self.all[index as usize];
        let long = match packet.buffer {
            NONE => Vec::new(),
            buffer => std::mem::take(&mut self.buffers[buffer as usize]),
        };
        self.free.push(index);
        Arrived { from, is_marked: packet.is_marked, len: packet.len, buffer: packet.buffer, short: packet.short, long }
    }

    /// Takes back what was lent.
    #[inline]
    pub fn take_back(&mut self, arrived: Arrived) {
        if arrived.buffer != NONE {
            self.buffers[arrived.buffer as usize] = arrived.long;
            self.free_buffer(arrived.buffer);
        }
    }

    /// Ends a packet.
    pub fn end(&mut self, index: u32) {
        let buffer = self.all[index as usize].buffer;
        if buffer != NONE {
            self.free_buffer(buffer);
        }
        self.free.push(index);
    }

    fn free_buffer(&mut self, buffer: u32) {
        self.buffers[buffer as usize].clear();
        self.free_buffers.push(buffer);
    }

    /// Starts to bring those near that will be looked at.
    #[inline]
    pub fn prefetch(&self, indices: impl Iterator<Item = u32>) {
        indices.for_each(|index| sinew_mem::prefetch_read(&self.all[index as usize]));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

/// A packet on its way, with all that switches want to know of it: they do not look at the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// When its last byte is at the end of the link that it is on.
    pub tail_ps: u64,
    pub packet: u32,
    /// The port.
    pub to: u32,
    /// Its host.
    pub target: u32,
    /// The same for all packets from one port to another.
    pub flow: u32,
    /// Bytes on a link, with its frame.
    pub len: u32,
}

/// Packets of a host that will have arrived, in their order.
pub(crate) type Coming = VecDeque<(u64, u32)>;
