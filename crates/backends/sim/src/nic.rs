//! A modelled NIC: its bus, its processing units, its caches, and the queue pairs that it works on.
//!
//! The model (atc16 2 and 3, sigcomm14 3):
//!
//! - **The bus**: cores write work queue elements by MMIO, a line at a time, or ring a doorbell, upon which the NIC
//!   fetches them. Payloads, completions and exposed memory are read and written by DMA. Each transaction occupies its
//!   direction of the PCI Express link for its bytes and headers.
//! - **Processing units**: requesters work on what their own host posts and on the responses to it; responders work on
//!   requests from others. A queue pair is bound to one of each. A unit does one thing at a time.
//! - **Caches**: states of queue pairs, work queue elements, addresses of pages. A miss is a DMA read.
//! - **Atomics**: an atomic holds one of a few locks, chosen by the low bits of its address, for a round trip of the
//!   bus; a unit that needs a lock which is held waits for it.
//! - **Transports**: RC has acknowledgements, limits on READs in flight, receivers that are not ready, and go-back-N;
//!   UC and UD drop what does not fit.
//!
//! # Design
//!
//! - **Two kinds of units**: requesters and responders. Published rates of inbound and outbound verbs, and echoes that
//!   do nearly both at once (sigcomm14 3.2.2), leave no other split. A queue pair is bound to one of each, in turn, by
//!   its first work.
//! - **Little is calibrated.** A unit's times follow from a few published rates, each named in the NIC's file
//!   (`nics/*.toml`), and every other row of the papers is predicted.
//! - **Order is kept.** Each stage is an event of its own, since a resource that is reserved ahead of time would hold
//!   up earlier work. A write to the NIC late in a core's long turn crosses the bus at its own time, and waits for what
//!   is on the bus by then.
//! - **Handles are numbers.** The traits require devices and domains that can be sent, and a simulation has one thread.
//!   A handle holds its network's number, which other threads do not know: used there, the handle reports an error.
//! - **A device is opened once for each actor.** Its completions, and WRITEs into memory that it exposes, wake that
//!   actor.
//! - **An acknowledged WRITE is in memory** by the time that its sender hears of it: the acknowledgement leaves when
//!   the write is on the bus.
//! - **Cores sleep and are shared.** An actor that says that it sleeps is woken by an interrupt, and a program that
//!   computes may have every other slice of its core.

pub(crate) mod buffers;
pub(crate) mod bus;
mod cache;
mod expected;
mod fields;
mod latency;
mod memory;
mod profile;
mod profile_file;
pub(crate) mod queue_pair;
mod stats;
pub(crate) mod units;
pub(crate) mod wire;
mod wqe;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use sinew_fabric::verbs::{Completion, QpNumber};

use crate::lanes::PS;
use crate::packets::Packet;
use crate::topology::HostId;
use bus::Bus;
use cache::Cache;
pub use expected::{CQE, Crossings, Expected, Post, Rates, Requests, RequestsError, Step, transport_name, verb_name};
pub(crate) use memory::{Regions, locked};
pub use profile::{Caches, Core, Framing, Link, Parameter, Pcie, Profile, Registration, Units, WqeLayout};
use queue_pair::Qp;
pub use stats::{NicStats, NicUse};
use units::{Answer, Side, Unit};
pub(crate) use wqe::POINTER;
pub use wqe::{IMMEDIATE, Source, WQE_MAX};

/// An event scheduled at a NIC.
#[derive(Debug)]
pub(crate) enum NicJob {
    /// The element that a core wrote, or its doorbell for several, begins to cross the bus.
    Written { slot: u32, epoch: u32, upto: u64, count: usize, lines: usize },
    /// A doorbell has arrived: `count` elements of a queue pair, `lines` cache lines each, are to be fetched.
    Doorbell { slot: u32, epoch: u32, upto: u64, count: usize, lines: usize },
    /// The request for elements has reached the memory.
    Fetch { slot: u32, epoch: u32, upto: u64, lines: usize },
    /// All elements before `upto` have arrived.
    Arrived { slot: u32, epoch: u32, upto: u64, was_fetched: bool },
    /// A unit has finished what it was doing.
    Done { side: Side, unit: u32 },
    /// A unit that was blocked tries again.
    Retry { side: Side, unit: u32 },
    /// The request for a payload has reached the memory.
    Payload { slot: u32, epoch: u32, number: u64, offset: usize, len: usize },
    /// A packet of a request can leave: its payload has arrived.
    Sent { slot: u32, epoch: u32, number: u64, packet: Box<Packet>, len: usize, is_last: bool },
    /// A packet of a response can leave.
    Answered { slot: u32, epoch: u32, packet: Box<Packet>, len: usize, is_last: bool },
    /// The payload of a packet is in memory, from byte `at` of message `message` on.
    PayloadWritten { slot: u32, epoch: u32, packet: Box<Packet>, message: u64, at: usize },
    /// The acknowledgement of a message that is still on the bus can leave.
    ReplyReady { slot: u32, epoch: u32 },
    /// Everything before a message that is longer than its receive is in memory.
    TooLong { slot: u32, epoch: u32 },
    /// Part of a READ has reached the memory.
    Read(Answer),
    /// The atomic that a packet asks for has reached the memory.
    Atomic { slot: u32, epoch: u32, packet: Box<Packet> },
    /// Part of a READ's result, or an atomic's result, is in memory.
    Result { slot: u32, epoch: u32, number: u64, offset: usize, is_last: bool, packet: Box<Packet> },
    /// A request is over, and its completion is in memory if it has one.
    Completed { slot: u32, epoch: u32, number: u64 },
    /// The retransmission timer may have expired.
    TimerExpired { slot: u32, epoch: u32 },
    /// A queue pair may try again to send to a receiver that was not ready.
    RnrExpired { slot: u32, epoch: u32 },
}
// Each job is copied in and out of the list of jobs, so it is kept small: what a packet says is read from it again when
// needed.
const _: () = assert!(size_of::<NicJob>() <= 48);

/// A completion that can be polled.
#[derive(Debug)]
pub(crate) struct Ready {
    pub completion: Completion,
    /// Whether the NIC wrote an element of the queue for it. The end of an unsignaled READ shows only in its target.
    pub is_written: bool,
    /// Places of requests that are free once it was polled.
    pub sends: usize,
    /// Places of receives that are free once it was polled.
    pub receives: usize,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub ready: VecDeque<Ready>,
    pub depth: usize,
    pub reserved: usize,
    /// The node whose actor is woken.
    pub node: usize,
    /// Handles and queue pairs that use it.
    pub users: usize,
}

/// A NIC.
#[derive(Debug)]
pub(crate) struct Nic {
    pub host: HostId,
    /// Its node on the network.
    pub node: usize,
    pub profile: Rc<Profile>,
    pub stats: NicStats,
    pub bus: Bus,
    pub requesters: Vec<Unit>,
    pub responders: Vec<Unit>,
    /// Ratio of a requester unit's time for packets and DMA to a responder unit's, since their numbers differ.
    pub requester_scale: f64,
    pub qps: Vec<Option<Box<Qp>>>,
    /// Number of queue pairs that each place has had.
    generations: Vec<u8>,
    /// The epoch in which each place's next queue pair begins: jobs scheduled for one queue pair are not done for the
    /// next.
    epochs: Vec<u32>,
    pub cqs: Vec<Option<Cq>>,
    pub regions: Arc<Mutex<Regions>>,
    pub requester_states: Cache,
    pub responder_states: Cache,
    pub translations: Cache,
    pub locks: Vec<u64>,
    /// The unit to which the next queue pair is bound, of requesters and of responders.
    bound: [u32; 2],
    /// Elements handed to it so far.
    pub elements_handed_in: u64,
    jobs: Vec<Option<NicJob>>,
    free_jobs: Vec<u32>,
}

/// The queue pair of a place, for callers that borrow other parts of its NIC at the same time.
#[inline]
pub(crate) fn qp_at(qps: &mut [Option<Box<Qp>>], slot: u32) -> Option<&mut Qp> {
    qps.get_mut(slot as usize)?.as_deref_mut()
}

/// Bits of a queue pair's number that give its place; the bits above tell apart the queue pairs that have had it.
const SLOT_BITS: u32 = 16;

impl Nic {
    pub fn new(host: HostId, node: usize, profile: Rc<Profile>) -> Self {
        let units = |count: usize| (0..count).map(|_| Unit::default()).collect();
        let caches = profile.caches;
        Self {
            host,
            node,
            bus: Bus::new(&profile),
            stats: NicStats::default(),
            requesters: units(profile.units.requesters),
            responders: units(profile.units.responders),
            requester_scale: profile.units.requester_factor(),
            qps: Vec::new(),
            generations: Vec::new(),
            epochs: Vec::new(),
            cqs: Vec::new(),
            regions: Arc::default(),
            requester_states: Cache::new(caches.requester_states),
            responder_states: Cache::new(caches.responder_states),
            translations: Cache::new(caches.translations),
            locks: vec![0; profile.units.atomic_locks as usize],
            bound: [0; 2],
            elements_handed_in: 0,
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            profile,
        }
    }

    /// Keeps a job; returns its number.
    // Without inlining, jobs are written in parts and then copied in words, which stalls the processor.
    #[inline(always)]
    pub fn add_job(&mut self, job: NicJob) -> u32 {
        match self.free_jobs.pop() {
            Some(index) => {
                // A free place holds nothing that needs dropping.
                std::mem::forget(self.jobs[index as usize].replace(job));
                index
            }
            None => {
                self.jobs.push(Some(job));
                self.jobs.len() as u32 - 1
            }
        }
    }

    #[inline(always)]
    pub fn take_job(&mut self, number: u32) -> NicJob {
        self.free_jobs.push(number);
        self.jobs[number as usize].take().expect("each job is noted and taken once")
    }

    /// Reserves a place for a queue pair. Returns the place and the number that the queue pair will have, or none when
    /// all places are taken.
    pub fn new_number(&mut self) -> Option<(u32, QpNumber)> {
        let slot = match self.qps.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.qps.len() < 1 << SLOT_BITS => {
                self.qps.push(None);
                self.generations.push(0);
                self.epochs.push(0);
                self.qps.len() - 1
            }
            None => return None,
        };
        // Never 0: small numbers that others make up must not be valid.
        self.generations[slot] = self.generations[slot].checked_add(1).unwrap_or(1);
        Some((slot as u32, QpNumber(u32::from(self.generations[slot]) << SLOT_BITS | slot as u32)))
    }

    pub fn insert_qp(&mut self, slot: u32, qp: Qp) {
        let epoch = self.epochs[slot as usize];
        self.qps[slot as usize] = Some(Box::new(Qp { epoch, ..qp }));
    }

    pub fn remove_qp(&mut self, slot: u32) -> Option<Box<Qp>> {
        let qp = self.qps[slot as usize].take()?;
        self.epochs[slot as usize] = qp.epoch.wrapping_add(1);
        Some(qp)
    }

    /// The place of the queue pair of this number.
    #[inline]
    pub fn slot_of(&self, number: u32) -> Option<u32> {
        let slot = number & ((1 << SLOT_BITS) - 1);
        let qp = self.qps.get(slot as usize)?.as_ref()?;
        (qp.number.0 == number).then_some(slot)
    }

    #[inline]
    pub fn qp(&mut self, slot: u32) -> Option<&mut Qp> {
        qp_at(&mut self.qps, slot)
    }

    /// The queue pair of this place, unless it was reset since `epoch`.
    #[inline]
    pub fn qp_of(&mut self, slot: u32, epoch: u32) -> Option<&mut Qp> {
        self.qp(slot).filter(|qp| qp.epoch == epoch)
    }

    #[inline]
    pub fn units(&mut self, side: Side) -> &mut Vec<Unit> {
        match side {
            Side::Requester => &mut self.requesters,
            Side::Responder => &mut self.responders,
        }
    }

    /// The unit that a queue pair is bound to. Its first work binds it, to each unit of that side in turn.
    #[inline]
    pub fn unit_of(&mut self, side: Side, slot: u32) -> u32 {
        let side = side as usize;
        let Some(qp) = self.qps.get_mut(slot as usize).and_then(Option::as_deref_mut) else { return 0 };
        if let Some(unit) = qp.units[side] {
            return unit;
        }
        let count = [self.requesters.len(), self.responders.len()][side] as u32;
        let unit = self.bound[side] % count;
        self.bound[side] = unit + 1;
        qp.units[side] = Some(unit);
        unit
    }

    /// A completion queue that is in use.
    pub fn cq(&mut self, number: u32) -> &mut Cq {
        self.cqs[number as usize].as_mut().expect("a completion queue exists while it is used")
    }

    /// Drops one use of a completion queue; the last one ends it.
    pub fn leave_cq(&mut self, number: u32) {
        let queue = self.cq(number);
        queue.users -= 1;
        if queue.users == 0 {
            self.cqs[number as usize] = None;
        }
    }

    /// Share of the time until `now_ns` for which each of its parts was busy, its links excepted.
    pub fn usage(&self, now_ns: u64) -> NicUse {
        let now_ps = (now_ns * PS).max(1) as f64;
        let of_units =
            |units: &[Unit]| units.iter().map(|unit| unit.busy_ps as f64).sum::<f64>() / units.len() as f64 / now_ps;
        NicUse {
            requesters: of_units(&self.requesters),
            responders: of_units(&self.responders),
            pcie_down: self.bus.down.busy_ps as f64 / now_ps,
            pcie_up: self.bus.up.busy_ps as f64 / now_ps,
            transmit: 0.0,
            receive: 0.0,
        }
    }
}
