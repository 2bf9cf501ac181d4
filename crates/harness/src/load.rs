//! What client threads do: load drivers, as state machines.
//!
//! A driver keeps so many requests in flight and checks every answer. It is turned by its owner, who hands it the time: a thread by
//! [`Drive::drive`], a simulated cluster as an actor. So the same driver measures this machine and runs in virtual time.

pub mod cache;
pub mod echo;
pub mod index;
pub mod memcached;
pub mod memory;
pub mod one_sided;
pub mod replica;
pub mod sequencer;
pub mod store;
pub mod verbs;

use std::time::Duration;

use anyhow::ensure;
use hdrhistogram::Histogram;
use sinew::fabric::Clock;
use sinew::host::{HostClock, Interrupt};

use crate::histogram;
use crate::machine::Idle;
use crate::run::Interrupted;

/// The clock is looked at every so many turns.
const TURNS_PER_LOOK: u32 = 16;

/// What a driver's turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It did something.
    Busy,
    /// It waits for answers.
    Idle,
    /// Its slice is over, and nothing is in flight any more.
    Over,
}

impl State {
    /// Busy or not.
    pub fn of(is_busy: bool) -> Self {
        if is_busy { Self::Busy } else { Self::Idle }
    }
}

/// What came of a slice.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Requests that were answered in the time; those that came after it are checked, and not counted.
    pub done: u64,
    /// The time.
    pub elapsed_ns: u64,
    /// How long requests took, or a sample of them.
    pub latency: Histogram<u64>,
    /// Of the requests, those that asked for a key, where there are keys.
    pub gets: u64,
    /// Of those, the ones whose key was there.
    pub hits: u64,
    /// Requests that an unreliable transport lost.
    pub lost: u64,
}

impl Slice {
    /// One in which nothing has happened.
    pub fn new() -> Self {
        Self { done: 0, elapsed_ns: 0, latency: histogram(), gets: 0, hits: 0, lost: 0 }
    }

    /// Millions a second.
    pub fn mops(&self) -> f64 {
        self.done as f64 * 1e3 / self.elapsed_ns.max(1) as f64
    }

    /// Adds what another came to, but for the time.
    pub fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.gets += other.gets;
        self.hits += other.hits;
        self.lost += other.lost;
        self.latency.add(&other.latency).expect("all histograms are alike");
    }

    /// How many of a hundred gets found their key.
    pub fn hit_percent(&self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.hits as f64 * 100.0 / self.gets as f64 }
    }
}

impl Default for Slice {
    fn default() -> Self {
        Self::new()
    }
}

/// A driver.
pub trait Load {
    /// Begins a slice that ends at `end_ns`.
    ///
    /// # Errors
    ///
    /// There are no buffers for so many requests.
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()>;

    /// Starts what there is room for, and takes what came. The time may be that of some turns ago.
    ///
    /// # Errors
    ///
    /// An answer that is wrong, a server that is gone.
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State>;

    /// Waits for something to come, where it can sleep and its owner has nothing else to do; whether it has slept.
    ///
    /// # Errors
    ///
    /// What it waits for is gone.
    fn rest(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }

    /// What came of the slice that is over.
    fn end(&mut self) -> Slice;

    /// Is called now and then between slices: answers a server that asks whether anybody is there.
    fn tend(&mut self) {}
}

/// A driver as a thread has it, whatever its type: what is called once for a slice. [`Load`]'s own methods are called through no table
/// of functions, so that the compiler sees all of a driver's loop.
pub trait Drive {
    /// Works on this thread for a slice.
    ///
    /// # Errors
    ///
    /// What [`Load::turn`] returned, or an interrupt.
    fn drive(&mut self, clock: &HostClock, duration: Duration, interrupt: Interrupt) -> anyhow::Result<Slice>;

    /// [`Load::tend`].
    fn tend_peers(&mut self);
}

impl<L: Load> Drive for L {
    fn drive(&mut self, clock: &HostClock, duration: Duration, interrupt: Interrupt) -> anyhow::Result<Slice> {
        let idle = Idle::new();
        let mut now_ns = clock.now_ns();
        self.begin(now_ns, now_ns + duration.as_nanos() as u64)?;
        let mut turns = 0u32;
        loop {
            match self.turn(now_ns)? {
                State::Busy => {}
                // Whoever has slept does not know what time it is.
                State::Idle if self.rest()? => turns |= TURNS_PER_LOOK - 1,
                State::Idle => idle.pass(),
                State::Over => return Ok(self.end()),
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_PER_LOOK) {
                now_ns = clock.now_ns();
                ensure!(!interrupt.is_set(), Interrupted);
            }
        }
    }

    fn tend_peers(&mut self) {
        self.tend();
    }
}

/// The time of a slice, as drivers keep it: until it is over they start requests, and then they take what is still in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    began_ns: u64,
    end_ns: u64,
    elapsed_ns: Option<u64>,
}

impl Span {
    pub(crate) fn begin(now_ns: u64, end_ns: u64) -> Self {
        Self { began_ns: now_ns, end_ns, elapsed_ns: None }
    }

    /// As long, from this time on.
    pub(crate) fn begun_anew(self, now_ns: u64) -> Self {
        Self::begin(now_ns, now_ns + (self.end_ns - self.began_ns))
    }

    /// Whether more may be started. At least one request comes back, however little of the time others leave us.
    #[inline(always)]
    pub(crate) fn goes_on(&mut self, now_ns: u64, done: u64) -> bool {
        if self.elapsed_ns.is_some() {
            return false;
        }
        if now_ns < self.end_ns || done == 0 {
            return true;
        }
        self.elapsed_ns = Some(now_ns - self.began_ns);
        false
    }

    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.elapsed_ns.unwrap_or(0)
    }
}
