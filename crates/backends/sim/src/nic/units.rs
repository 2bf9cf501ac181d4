//! Processing units: each does one thing after the other.

use std::collections::VecDeque;

use crate::lanes::PS;
use crate::packets::Packet;

/// Which units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Requester,
    Responder,
}

/// What comes of a look at a unit's next work.
pub(crate) enum Cost {
    /// It takes so long.
    Takes(u64),
    /// There is nothing to do.
    Nothing,
    /// It cannot begin before this time.
    Waits(u64),
}

/// What a unit is given to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// The next packet of a queue pair's requests.
    Send { slot: u32, epoch: u32 },
    /// A packet of others: of a request for a responder, or what came back for a requester.
    Packet { slot: u32, packet: Box<Packet> },
    /// A further packet of the answer to a READ. It is boxed, since it is rare and would make all work three times as long.
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
    /// Where this part begins.
    pub offset: usize,
}

/// A unit.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub queue: VecDeque<Work>,
    /// What it does now.
    pub at_work: Option<Work>,
    /// Whether it waits for a lock or for the link, with what it will do next in front.
    pub is_blocked: bool,
    /// When it is done.
    pub free_ps: u64,
    /// In all.
    pub busy_ps: u64,
}

/// Picoseconds of so many nanoseconds.
#[inline]
pub(crate) fn ps(ns: f64) -> u64 {
    (ns * PS as f64) as u64
}
