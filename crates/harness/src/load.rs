//! The work of client threads: load drivers, as state machines.
//!
//! A driver keeps a window of requests in flight and checks every answer. Its owner runs it turn by turn, and hands it
//! the time: a thread through [`Drive::drive`], a simulated cluster as an actor. So the same driver measures this
//! machine and runs in virtual time.

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

/// Turns between readings of the clock.
const TURNS_PER_LOOK: u32 = 16;

/// Result of a driver's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has done something.
    Busy,
    /// It is waiting for answers.
    Idle,
    /// Its slice is over, and nothing is in flight any more.
    Over,
}

impl State {
    /// Returns `Busy` or `Idle`.
    pub fn of(is_busy: bool) -> Self {
        if is_busy { Self::Busy } else { Self::Idle }
    }
}

/// Result of a slice.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Requests that were answered in the time; later answers are checked, but not counted.
    pub done: u64,
    /// Duration of the slice.
    pub elapsed_ns: u64,
    /// Latency of requests in ns, or a sample of them.
    pub latency: Histogram<u64>,
    /// Calls that these requests took, for stores that combine requests.
    pub calls: u64,
    /// Requests that asked for a key, for stores.
    pub gets: u64,
    /// Gets whose key was found.
    pub hits: u64,
    /// Requests that an unreliable transport lost.
    pub lost: u64,
}

impl Slice {
    /// An empty slice.
    pub fn new() -> Self {
        Self { done: 0, elapsed_ns: 0, latency: histogram(), calls: 0, gets: 0, hits: 0, lost: 0 }
    }

    /// Millions of requests a second.
    pub fn mops(&self) -> f64 {
        self.done as f64 * 1e3 / self.elapsed_ns.max(1) as f64
    }

    /// Adds the results of another slice, except for its time.
    pub fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.calls += other.calls;
        self.gets += other.gets;
        self.hits += other.hits;
        self.lost += other.lost;
        self.latency.add(&other.latency).expect("all histograms are alike");
    }

    /// Percentage of gets that found their key.
    pub fn hit_percent(&self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.hits as f64 * 100.0 / self.gets as f64 }
    }
}

impl Default for Slice {
    fn default() -> Self {
        Self::new()
    }
}

/// A load driver.
pub trait Load {
    /// Begins a slice that ends at `end_ns`.
    ///
    /// # Errors
    ///
    /// There are too few buffers for the requests.
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()>;

    /// Starts the requests that there is room for, and takes the answers that have arrived. `now_ns` may be the time of
    /// some turns ago.
    ///
    /// # Errors
    ///
    /// An answer is wrong, or a server is gone.
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State>;

    /// Waits for an answer, if the driver can sleep and its owner has nothing else to do. Returns whether it has slept.
    ///
    /// # Errors
    ///
    /// The peer that it waits for is gone.
    fn rest(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }

    /// Returns the result of the slice that is over.
    fn end(&mut self) -> Slice;

    /// Called now and then between slices: answers a server that asks whether its client is alive.
    fn tend(&mut self) {}
}

/// A driver as a thread sees it, whatever its type, with a method that is called once for each slice. [`Load`]'s own
/// methods are not called through a vtable, so that the compiler sees the whole loop of a driver.
pub trait Drive {
    /// Works on this thread for a slice.
    ///
    /// # Errors
    ///
    /// Those of [`Load::turn`], or an interrupt.
    fn drive(&mut self, clock: &HostClock, duration: Duration, interrupt: Interrupt) -> anyhow::Result<Slice>;

    /// Calls [`Load::tend`].
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
                // After a sleep the time is unknown, so read the clock.
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

/// Time of a slice. Until it is over drivers start requests; then they wait for those still in flight.
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

    /// A span of the same length that begins now.
    pub(crate) fn begun_anew(self, now_ns: u64) -> Self {
        Self::begin(now_ns, now_ns + (self.end_ns - self.began_ns))
    }

    /// Whether more requests may be started. At least one must be answered, however little time others leave us.
    #[inline(always)]
    pub(crate) fn may_start(&mut self, now_ns: u64, done: u64) -> bool {
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
