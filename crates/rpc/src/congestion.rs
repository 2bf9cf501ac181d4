//! Congestion control: round-trip times and marks, the limits that follow from them, and pacing of packets.
//!
//! All of it is at clients (nsdi19 5.2.1), since a server sends one packet for each packet of a client. A session
//! without limits is uncongested: its packets leave at once, and its short round trips change nothing (nsdi19 5.2.2),
//! unless [`Tuning`](crate::Tuning) switches these bypasses off.
//!
//! # Design
//!
//! A packet's round trip, less the time for which the server kept the request, is the input of its session's algorithm.
//! Its output is how fast the session may send (Timely, DCQCN), or how much it may have in flight (Swift; for less than
//! one packet, how fast it may send). Marks of switches come with a received burst (`RxBurst::marked`), and a server
//! passes them on in a notice, at most once in 50 us for each session. An uncongested session bypasses the algorithm
//! and the pacing wheel; the experiment `nsdi19-table3` measures the cost that remains.
//!
//! Packets of a slowed session stay with the session, in order, and the wheel only holds the time at which the session
//! may next send. The first version put packets on the wheel, as Carousel does. Packets of one session then overtook
//! each other when its rate rose or a turn was late, which go-back-N takes for losses, and packets of finished calls
//! stayed on the wheel and used up their session's rate.
//!
//! The round trip of a call is measured by one packet at a time, not by each. So rates adapt more slowly than in
//! nsdi19, and Timely's parameters are calibrated for that.

mod dcqcn;
mod swift;
mod timely;
mod wheel;

use std::collections::VecDeque;

pub use dcqcn::DcqcnConfig;
pub use swift::SwiftConfig;
pub use timely::TimelyConfig;

use crate::error::ConfigError;
use crate::table::SlotId;
use crate::transmit::TxItem;
use dcqcn::Dcqcn;
use swift::Swift;
use timely::Timely;
use wheel::Wheel;

/// Interval at which servers tell a client of marks on one session's packets, at most (DCQCN, SIGCOMM 2015).
pub(crate) const NOTICE_INTERVAL_NS: u64 = 50_000;

/// Algorithm that sets a session's limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// Rates from round trips (nsdi19 5.2.1).
    Timely(TimelyConfig),
    /// Windows from round trips: short queues for incasts of any width.
    Swift(SwiftConfig),
    /// Rates from marks (ECN), where ports report them: simulated ones do.
    Dcqcn(DcqcnConfig),
}

/// Configuration of congestion control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Congestion {
    /// The rate of the link, in bytes per second: that of an uncongested session.
    pub line_bytes_per_s: f64,
    /// The algorithm that sets limits.
    pub algorithm: Algorithm,
    /// Number of latest round trips that are kept for [`Rpc::poll_rtt_ns`](crate::Rpc::poll_rtt_ns).
    pub rtts_kept: usize,
}

impl Congestion {
    /// Makes a configuration for an algorithm, on a link of `rate_gbps` Gbit/s.
    pub fn new(rate_gbps: f64, algorithm: Algorithm) -> Self {
        Self { line_bytes_per_s: rate_gbps * 1e9 / 8.0, algorithm, rtts_kept: 0 }
    }

    /// Timely on a link of `rate_gbps` Gbit/s.
    pub fn timely(rate_gbps: f64) -> Self {
        Self::new(rate_gbps, Algorithm::Timely(TimelyConfig::default()))
    }

    /// Swift on a link of `rate_gbps` Gbit/s.
    pub fn swift(rate_gbps: f64) -> Self {
        Self::new(rate_gbps, Algorithm::Swift(SwiftConfig::default()))
    }

    /// DCQCN on a link of `rate_gbps` Gbit/s.
    pub fn dcqcn(rate_gbps: f64) -> Self {
        Self::new(rate_gbps, Algorithm::Dcqcn(DcqcnConfig::default()))
    }

    /// Refuses a configuration that cannot work.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let need = |holds: bool, field, value: f64, expected| {
            if holds { Ok(()) } else { Err(ConfigError { field, value: value as u64, expected }) }
        };
        let positive = |field, value: f64| {
            need(value > 0.0 && value.is_finite(), field, value, "must be a finite number, and more than 0")
        };
        let part = |field, value: f64| need((0.0..=1.0).contains(&value), field, value, "must be from 0 to 1");
        let time = |field, ns: u64| need(ns > 0, field, ns as f64, "must be more than 0");
        positive("congestion.line_bytes_per_s", self.line_bytes_per_s)?;
        match &self.algorithm {
            Algorithm::Timely(timely) => {
                positive("timely.step_bytes_per_s", timely.step_bytes_per_s)?;
                positive("timely.rate_min_bytes_per_s", timely.rate_min_bytes_per_s)?;
                part("timely.cut", timely.cut)?;
                part("timely.ewma_gain", timely.ewma_gain)?;
                time("timely.low_ns", timely.low_ns)?;
                time("timely.min_rtt_ns", timely.min_rtt_ns)
            }
            Algorithm::Swift(swift) => {
                positive("swift.step", swift.step)?;
                positive("swift.window_min", swift.window_min)?;
                positive("swift.scaling_window_min", swift.scaling_window_min)?;
                positive("swift.scaling_window_max", swift.scaling_window_max)?;
                part("swift.cut", swift.cut)?;
                part("swift.cut_most", swift.cut_most)?;
                time("swift.target_ns", swift.target_ns)
            }
            Algorithm::Dcqcn(dcqcn) => {
                positive("dcqcn.step_bytes_per_s", dcqcn.step_bytes_per_s)?;
                positive("dcqcn.large_step_bytes_per_s", dcqcn.large_step_bytes_per_s)?;
                positive("dcqcn.rate_min_bytes_per_s", dcqcn.rate_min_bytes_per_s)?;
                part("dcqcn.ewma_gain", dcqcn.ewma_gain)?;
                time("dcqcn.raise_bytes", dcqcn.raise_bytes)?;
                time("dcqcn.decay_interval_ns", dcqcn.decay_interval_ns)?;
                time("dcqcn.raise_interval_ns", dcqcn.raise_interval_ns)
            }
        }
    }

    /// Round trips below this leave an uncongested session unchanged.
    fn bypassed_ns(&self) -> u64 {
        match &self.algorithm {
            Algorithm::Timely(timely) => timely.low_ns,
            Algorithm::Swift(swift) => swift.target_ns,
            Algorithm::Dcqcn(_) => u64::MAX,
        }
    }
}

/// Limits of a session; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Whether its packets must be spaced in time.
    pub is_paced: bool,
    /// Credits that the session has but may not use.
    pub withheld: u16,
}

impl Limits {
    #[inline(always)]
    fn is_none(self) -> bool {
        !self.is_paced && self.withheld == 0
    }
}

/// A session's state at the time of a round trip, a mark or a loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// The session's index.
    pub index: usize,
    /// All of the session's credits.
    pub credits: u16,
    /// Largest size of its packets, in bytes.
    pub packet_len: usize,
    /// Its present limits.
    pub limits: Limits,
    pub now_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Flow {
    Timely(Timely),
    Swift(Swift),
    Dcqcn(Dcqcn),
}

/// A packet that waits for its time, and its size in bytes.
#[derive(Clone, Copy, Debug)]
struct PacedPacket {
    item: TxItem,
    len: usize,
}

/// Pacing state of a session.
#[derive(Clone, Debug)]
struct PacedSession {
    flow: Flow,
    /// Rate in bytes per second: that of the link if the session has no limits.
    rate: f64,
    /// When its next packet may leave.
    next_ns: u64,
    /// Its waiting packets, in order.
    queue: VecDeque<PacedPacket>,
    /// Whether the wheel holds it, and so will return it.
    is_on_wheel: bool,
}

impl PacedSession {
    /// Notes that a packet of `len` bytes leaves.
    fn note_sent(&mut self, len: usize) {
        if let Flow::Dcqcn(flow) = &mut self.flow {
            flow.note_sent(len);
        }
        self.next_ns = self.next_ns.saturating_add((len as f64 * 1e9 / self.rate) as u64);
    }
}

/// The congestion control of an endpoint.
///
/// The wheel holds sessions, not packets. So the packets of a session leave in order, at the rate that the session has
/// when they leave, and when a call ends its packets can be removed.
#[derive(Debug)]
pub(crate) struct Pacing {
    config: Option<Congestion>,
    sessions: Vec<PacedSession>,
    wheel: Wheel<u32>,
    /// Sessions whose time has come; empty between turns.
    due: Vec<u32>,
    rtts: VecDeque<u64>,
    /// Whether a session was ever slowed.
    has_limited: bool,
}

impl Pacing {
    pub fn new(config: Option<Congestion>, now_ns: u64) -> Self {
        Self {
            config,
            sessions: Vec::new(),
            wheel: Wheel::new(now_ns),
            due: Vec::new(),
            rtts: VecDeque::new(),
            has_limited: false,
        }
    }

    /// Whether congestion control is on.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.config.is_some()
    }

    /// Begins a session, at the rate of the link.
    pub fn begin(&mut self, index: usize) {
        let Some(config) = &self.config else { return };
        let line = config.line_bytes_per_s;
        let flow = match &config.algorithm {
            Algorithm::Timely(timely) => Flow::Timely(Timely::new(line, timely)),
            Algorithm::Swift(_) => Flow::Swift(Swift::new()),
            Algorithm::Dcqcn(_) => Flow::Dcqcn(Dcqcn::new(line)),
        };
        let fresh = PacedSession { flow, rate: line, next_ns: 0, queue: VecDeque::new(), is_on_wheel: false };
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, fresh.clone());
        }
        // The wheel may still hold the session that was here before.
        self.sessions[index] = PacedSession { is_on_wheel: self.sessions[index].is_on_wheel, ..fresh };
    }

    /// Handles a measured round trip of a session; returns the session's new limits.
    pub fn on_round_trip(&mut self, rtt_ns: u64, sample: Sample, bypasses: bool) -> Limits {
        let Some(config) = &self.config else { return Limits::default() };
        if config.rtts_kept > 0 {
            if self.rtts.len() >= config.rtts_kept {
                self.rtts.pop_front();
            }
            self.rtts.push_back(rtt_ns);
        }
        if bypasses && sample.limits.is_none() && rtt_ns < config.bypassed_ns() {
            return Limits::default();
        }
        self.update(sample, |flow, config| match (flow, &config.algorithm) {
            (Flow::Timely(flow), Algorithm::Timely(timely)) => flow.update(rtt_ns, config.line_bytes_per_s, timely),
            (Flow::Swift(flow), Algorithm::Swift(swift)) => {
                flow.update(rtt_ns, sample.credits, sample.now_ns, swift);
            }
            (Flow::Dcqcn(flow), Algorithm::Dcqcn(dcqcn)) => {
                flow.advance(config.line_bytes_per_s, sample.now_ns, dcqcn);
            }
            _ => {}
        })
    }

    /// Handles a mark: a packet of the session met a long queue.
    pub fn on_mark(&mut self, sample: Sample) -> Limits {
        self.update(sample, |flow, config| {
            if let (Flow::Dcqcn(flow), Algorithm::Dcqcn(dcqcn)) = (flow, &config.algorithm) {
                flow.mark(config.line_bytes_per_s, sample.now_ns, dcqcn);
            }
        })
    }

    /// Handles a loss of a session's packets.
    pub fn on_loss(&mut self, sample: Sample) -> Limits {
        self.update(sample, |flow, config| {
            if let (Flow::Swift(flow), Algorithm::Swift(swift)) = (flow, &config.algorithm) {
                flow.lost(sample.credits, sample.now_ns, swift);
            }
        })
    }

    fn update(&mut self, sample: Sample, change: impl FnOnce(&mut Flow, &Congestion)) -> Limits {
        let (Some(config), Some(session)) = (&self.config, self.sessions.get_mut(sample.index)) else {
            return Limits::default();
        };
        change(&mut session.flow, config);
        let line = config.line_bytes_per_s;
        let mut withheld = 0;
        session.rate = match &session.flow {
            Flow::Timely(flow) => flow.rate(),
            Flow::Dcqcn(flow) => flow.rate(),
            Flow::Swift(flow) => {
                // A session may always have one packet in flight.
                withheld = sample.credits - (flow.window().max(1.0) as u16).min(sample.credits);
                flow.packets_per_s().map_or(line, |rate| (rate * sample.packet_len as f64).min(line))
            }
        };
        // While packets wait for their time, others must not overtake them: go-back-N takes that for a loss.
        let limits = Limits { is_paced: session.rate < line || !session.queue.is_empty(), withheld };
        self.has_limited |= !limits.is_none();
        limits
    }

    /// Whether any session was ever slowed: until then, calls touch no state here.
    #[inline(always)]
    pub fn has_limited(&self) -> bool {
        self.has_limited
    }

    /// Prefetches a session's state.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        if let Some(session) = self.sessions.get(index) {
            sinew_mem::prefetch_read(session);
        }
    }

    /// Queues packets of a session, each of `packet_len` bytes: those whose time has come go to the next burst, the
    /// others wait.
    pub fn queue(&mut self, index: usize, run: TxItem, packet_len: usize, now_ns: u64, transmit: &mut Vec<TxItem>) {
        let Some(session) = self.sessions.get_mut(index) else { return transmit.push(run) };
        for number in run.numbers() {
            let item = TxItem { first: number, count: 1, ..run };
            if session.queue.is_empty() && session.next_ns <= now_ns {
                session.next_ns = now_ns;
                session.note_sent(packet_len);
                transmit.push(item);
            } else {
                session.queue.push_back(PacedPacket { item, len: packet_len });
            }
        }
        if !session.queue.is_empty() && !session.is_on_wheel {
            session.is_on_wheel = true;
            self.wheel.insert(session.next_ns, index as u32, now_ns);
        }
    }

    /// Releases packets whose time has come.
    #[inline]
    pub fn release(&mut self, now_ns: u64, transmit: &mut Vec<TxItem>) {
        if !self.wheel.is_empty() {
            self.release_due(now_ns, transmit);
        }
    }

    fn release_due(&mut self, now_ns: u64, transmit: &mut Vec<TxItem>) {
        let due = &mut self.due;
        self.wheel.take_due(now_ns, |index| due.push(index));
        for index in self.due.drain(..) {
            let session = &mut self.sessions[index as usize];
            while session.next_ns <= now_ns
                && let Some(PacedPacket { item, len }) = session.queue.pop_front()
            {
                session.note_sent(len);
                transmit.push(item);
            }
            session.is_on_wheel = !session.queue.is_empty();
            if session.is_on_wheel {
                self.wheel.insert(session.next_ns, index, now_ns);
            }
        }
    }

    /// Whether packets of a call wait for their time; then they are not late.
    pub fn holds(&self, index: usize, slot: SlotId) -> bool {
        let session = self.sessions.get(index);
        session.is_some_and(|session| session.queue.iter().any(|waiting| waiting.item.slot == slot))
    }

    /// Removes the waiting packets of a call that is over, so that they take none of its session's rate. Returns their
    /// number, which is at most the session's credits.
    #[inline]
    pub fn remove_call(&mut self, index: usize, slot: SlotId) -> u32 {
        let Some(session) = self.sessions.get_mut(index).filter(|session| !session.queue.is_empty()) else { return 0 };
        let before = session.queue.len();
        session.queue.retain(|waiting| waiting.item.slot != slot);
        (before - session.queue.len()) as u32
    }

    /// Whether any packet waits for its time.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.wheel.is_empty()
    }

    /// When a packet may next leave.
    pub fn next_ns(&self) -> Option<u64> {
        self.wheel.next_ns()
    }

    /// The rate of a session, in bytes per second.
    pub fn rate(&self, index: usize) -> Option<f64> {
        self.sessions.get(index).map(|session| session.rate)
    }

    pub fn poll_rtt_ns(&mut self) -> Option<u64> {
        self.rtts.pop_front()
    }
}
