//! Packets on their way, as links and switches know them.
//!
//! A flight has a place in memory from the sender's port to the receiver's, and is spoken of by its number: on a lane each knows the one
//! behind it. (Where flights were moved from queue to queue, small simulations took 6 % longer.)

use std::ops::{Index, IndexMut};

use crate::packets::Packet;

/// No flight.
const NONE: u32 = u32::MAX;

/// A packet on its way, with all that switches want to know of it: they do not look at the packet.
#[derive(Debug)]
pub(crate) struct Flight {
    /// When its last byte is at the end of the link that it is on.
    pub tail_ps: u64,
    /// When the one behind it arrives.
    next_ns: u64,
    /// The packet, until the flight is over.
    packet: Option<Box<Packet>>,
    /// The port.
    pub to: u32,
    /// Its host.
    pub target: u32,
    /// The same for all packets from one port to another.
    pub flow: u32,
    /// Bytes on a link, with its frame.
    pub len: u32,
    /// The one behind it.
    next: u32,
}

impl Flight {
    pub fn new(packet: Box<Packet>, target: u32, flow: u32, len: u32) -> Self {
        Self { tail_ps: 0, next_ns: 0, to: packet.to, packet: Some(packet), target, flow, len, next: NONE }
    }

    /// The packet, for those whom its bytes concern.
    pub fn packet(&mut self) -> &mut Packet {
        self.packet.as_mut().expect("a flight has its packet until it is over")
    }
}

/// Flights, one behind the other.
#[derive(Debug)]
pub(crate) struct Row {
    first: u32,
    last: u32,
}

impl Default for Row {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl Row {
    #[inline]
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }
}

/// All flights, by their numbers.
#[derive(Debug)]
pub(crate) struct Flights {
    places: Vec<Flight>,
    /// The first place that is free; each of these knows the next.
    free: u32,
}

impl Default for Flights {
    fn default() -> Self {
        Self { places: Vec::new(), free: NONE }
    }
}

impl Index<u32> for Flights {
    type Output = Flight;

    #[inline]
    fn index(&self, index: u32) -> &Flight {
        &self.places[index as usize]
    }
}

impl IndexMut<u32> for Flights {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Flight {
        &mut self.places[index as usize]
    }
}

impl Flights {
    /// A flight begins, in the place of the last that was over.
    #[inline]
    pub fn begin(&mut self, flight: Flight) -> u32 {
        let index = self.free;
        match self.places.get_mut(index as usize) {
            Some(place) => {
                self.free = place.next;
                *place = flight;
                index
            }
            None => {
                self.places.push(flight);
                self.places.len() as u32 - 1
            }
        }
    }

    /// A flight is over; returns its packet.
    #[inline]
    pub fn end(&mut self, index: u32) -> Box<Packet> {
        let place = &mut self.places[index as usize];
        place.next = self.free;
        self.free = index;
        place.packet.take().expect("a flight has its packet until it is over")
    }

    /// The one behind a flight.
    #[inline]
    pub fn next(&self, index: u32) -> Option<u32> {
        let next = self[index].next;
        (next != NONE).then_some(next)
    }

    /// A flight goes behind the others of a row, and is at the end of their way at `arrives_ns`; returns whether there are no others.
    #[inline]
    pub fn append(&mut self, row: &mut Row, index: u32, arrives_ns: u64) -> bool {
        self[index].next = NONE;
        let is_first = row.first == NONE;
        if is_first {
            row.first = index;
        } else {
            let last = &mut self[row.last];
            (last.next, last.next_ns) = (index, arrives_ns);
        }
        row.last = index;
        is_first
    }

    /// Takes the first flight from a row; returns the one behind it, and when that arrives, without a look at it: it is in no near cache.
    #[inline]
    pub fn take_first(&mut self, row: &mut Row, first: u32) -> Option<(u32, u64)> {
        debug_assert_eq!(row.first, first);
        let Flight { next, next_ns, .. } = self[first];
        row.first = next;
        (next != NONE).then_some((next, next_ns))
    }
}
