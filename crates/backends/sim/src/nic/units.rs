//! Processing units of a NIC: each does one thing at a time.

use std::collections::VecDeque;

use crate::lanes::PS;
use crate::packets::Packet;

/// The two kinds of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Requester,
    Responder,
}

/// Cost of a unit's next work.
pub(crate) enum Cost {
    /// It takes this many picoseconds.
    Takes(u64),
    /// There is nothing to do.
    Nothing,
    /// It cannot begin before this time, in picoseconds.
    Waits(u64),
}

/// Work for a unit.
#[derive(Debug)]
pub(crate) enum Work {
    /// Sending the next packet of a queue pair's requests.
    Send { slot: u32, epoch: u32 },
    /// Handling a packet from another NIC: of a request at a responder, of a reply at a requester.
    Packet { slot: u32, packet: Box<Packet> },
    /// Sending a further packet of the answer to a READ. It is boxed, since it is rare and would make all work three
    /// times as large.
    Answer(Box<Answer>),
}

/// A part of the answer to a READ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub slot: u32,
    pub epoch: u32,
    /// The READ's first packet number.
    pub psn: u32,
    pub rkey: u32,
    pub address: u64,
    pub len: usize,
    /// Offset of this part.
    pub offset: usize,
}

/// A processing unit.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub queue: VecDeque<Work>,
    /// Its present work.
    pub at_work: Option<Work>,
    /// Whether it waits for a lock or for the link, with its next work at the front of the queue.
    pub is_blocked: bool,
    /// When it is done with its work.
    pub free_ps: u64,
    /// Time for which it was busy in all.
    pub busy_ps: u64,
}

/// Converts nanoseconds to picoseconds.
#[inline]
pub(crate) fn ps(ns: f64) -> u64 {
    (ns * PS as f64) as u64
}
