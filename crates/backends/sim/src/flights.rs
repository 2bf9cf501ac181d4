//! Packets in flight, as links and switches see them.
//!
//! A flight keeps one place in memory from the sender's port to the receiver's, and is named by its number; the flights
//! on a lane form a linked list. (Moving flights from queue to queue made small simulations 6 % slower.)

use std::ops::{Index, IndexMut};

use crate::packets::Packet;

/// No flight.
const NONE: u32 = u32::MAX;

/// A packet in flight, with all that switches need to know of it: they never read the packet itself.
#[derive(Debug)]
pub(crate) struct Flight {
    /// When its last byte reaches the end of its link.
    pub tail_ps: u64,
    /// When the next flight of its row arrives.
    next_ns: u64,
    /// The packet, until the flight is over.
    packet: Option<Box<Packet>>,
    /// The port that it goes to.
    pub to: u32,
    /// The host of that port.
    pub target: u32,
    /// The same for all packets from one port to another.
    pub flow: u32,
    /// Bytes on a link, frame included.
    pub len: u32,
    /// The next flight of its row.
    next: u32,
}

impl Flight {
    pub fn new(packet: Box<Packet>, target: u32, flow: u32, len: u32) -> Self {
        Self { tail_ps: 0, next_ns: 0, to: packet.to, packet: Some(packet), target, flow, len, next: NONE }
    }

    /// The packet itself.
    pub fn packet(&mut self) -> &mut Packet {
        self.packet.as_mut().expect("a flight has its packet until it is over")
    }
}

/// A queue of flights.
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
    /// The first free place; each free place knows the next.
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
    /// Begins a flight, in the place that was freed last.
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

    /// Ends a flight; returns its packet.
    #[inline]
    pub fn end(&mut self, index: u32) -> Box<Packet> {
        let place = &mut self.places[index as usize];
        place.next = self.free;
        self.free = index;
        place.packet.take().expect("a flight has its packet until it is over")
    }

    /// The next flight of a row.
    #[inline]
    pub fn next(&self, index: u32) -> Option<u32> {
        let next = self[index].next;
        (next != NONE).then_some(next)
    }

    /// Appends to a row a flight that reaches the row's end at `arrives_ns`; returns whether the row was empty.
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

    /// Takes the first flight from a row. Returns the next one and its arrival time without reading that flight, which
    /// is in no near cache.
    #[inline]
    pub fn take_first(&mut self, row: &mut Row, first: u32) -> Option<(u32, u64)> {
        debug_assert_eq!(row.first, first);
        let Flight { next, next_ns, .. } = self[first];
        row.first = next;
        (next != NONE).then_some((next, next_ns))
    }
}
