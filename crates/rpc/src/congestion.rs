//! How fast sessions may send: round-trip times and marks, the limits that follow from them, and packets that wait for their time.
//!
//! All of it is at clients (nsdi19 5.2.1): a server's packets answer a client's, one each. A session that nothing limits is
//! uncongested: its packets leave at once, and its short round trips change nothing (nsdi19 5.2.2), unless
//! [`Tuning`](crate::Tuning) switches these bypasses off.

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

/// Servers tell a client of marks on one session's packets once in this time (DCQCN, SIGCOMM 2015).
pub(crate) const NOTICE_INTERVAL_NS: u64 = 50_000;

/// How a session's limits follow from what it meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// Rates from round trips (nsdi19 5.2.1).
    Timely(TimelyConfig),
    /// Windows from round trips: short queues for incasts of any width.
    Swift(SwiftConfig),
    /// Rates from marks (ECN), where ports tell of them: simulated ones do.
    Dcqcn(DcqcnConfig),
}

/// What congestion control goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Congestion {
    /// The rate of the link, in bytes per second: that of an uncongested session.
    pub line_bytes_per_s: f64,
    /// How limits follow from what sessions meet.
    pub algorithm: Algorithm,
    /// So many of the latest round trips are kept for [`Rpc::poll_rtt_ns`](crate::Rpc::poll_rtt_ns).
    pub rtts_kept: usize,
}

impl Congestion {
    /// An algorithm on a link of this rate.
    pub fn new(rate_gbps: f64, algorithm: Algorithm) -> Self {
        Self { line_bytes_per_s: rate_gbps * 1e9 / 8.0, algorithm, rtts_kept: 0 }
    }

    /// Timely on a link of this rate.
    pub fn timely(rate_gbps: f64) -> Self {
        Self::new(rate_gbps, Algorithm::Timely(TimelyConfig::default()))
    }

    /// Swift on a link of this rate.
    pub fn swift(rate_gbps: f64) -> Self {
        Self::new(rate_gbps, Algorithm::Swift(SwiftConfig::default()))
    }

    /// DCQCN on a link of this rate.
    pub fn dcqcn(rate_gbps: f64) -> Self {
        Self::new(rate_gbps, Algorithm::Dcqcn(DcqcnConfig::default()))
    }

    /// What cannot work.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let need = |holds: bool, field, value: f64, expected| {
            if holds { Ok(()) } else { Err(ConfigError { field, value: value as u64, expected }) }
        };
        let positive = |field, value: f64| {
            need(value > 0.0 && value.is_finite(), field, value, "a finite number, and more than nothing")
        };
        let part = |field, value: f64| need((0.0..=1.0).contains(&value), field, value, "from 0 to 1");
        let time = |field, ns: u64| need(ns > 0, field, ns as f64, "longer than nothing");
        positive("congestion.line_bytes_per_s", self.line_bytes_per_s)?;
        match &self.algorithm {
            Algorithm::Timely(timely) => {
                positive("timely.step_bytes_per_s", timely.step_bytes_per_s)?;
                positive("timely.rate_min_bytes_per_s", timely.rate_min_bytes_per_s)?;
                part("timely.cut", timely.cut)?;
                part("timely.newest", timely.newest)?;
                time("timely.low_ns", timely.low_ns)?;
                time("timely.min_rtt_ns", timely.min_rtt_ns)
            }
            Algorithm::Swift(swift) => {
                positive("swift.step", swift.step)?;
                positive("swift.window_min", swift.window_min)?;
                positive("swift.window_scaled_most", swift.window_scaled_most)?;
                positive("swift.window_scaled_least", swift.window_scaled_least)?;
                part("swift.cut", swift.cut)?;
                part("swift.cut_most", swift.cut_most)?;
                time("swift.target_ns", swift.target_ns)
            }
            Algorithm::Dcqcn(dcqcn) => {
                positive("dcqcn.step_bytes_per_s", dcqcn.step_bytes_per_s)?;
                positive("dcqcn.large_step_bytes_per_s", dcqcn.large_step_bytes_per_s)?;
                positive("dcqcn.rate_min_bytes_per_s", dcqcn.rate_min_bytes_per_s)?;
                part("dcqcn.newest", dcqcn.newest)?;
                time("dcqcn.raise_bytes", dcqcn.raise_bytes)?;
                time("dcqcn.decay_interval_ns", dcqcn.decay_interval_ns)?;
                time("dcqcn.raise_interval_ns", dcqcn.raise_interval_ns)
            }
        }
    }

    /// Round trips below this do not change an uncongested session.
    fn bypassed_ns(&self) -> u64 {
        match &self.algorithm {
            Algorithm::Timely(timely) => timely.low_ns,
            Algorithm::Swift(swift) => swift.target_ns,
            Algorithm::Dcqcn(_) => u64::MAX,
        }
    }
}

/// What holds a session back; nothing, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Whether its packets must be spaced.
    pub is_paced: bool,
    /// Credits that it has and may not use.
    pub withheld: u16,
}

impl Limits {
    #[inline(always)]
    fn is_none(self) -> bool {
        !self.is_paced && self.withheld == 0
    }
}

/// A round trip of a session, or another sign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// The session's index.
    pub index: usize,
    /// Its credits, all of them.
    pub credits: u16,
    /// Bytes of its packets, at most.
    pub packet_len: usize,
    /// What it is held back by now.
    pub limits: Limits,
    pub now_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Flow {
    Timely(Timely),
    Swift(Swift),
    Dcqcn(Dcqcn),
}

/// A packet that waits for its time, and its bytes.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    item: TxItem,
    len: usize,
}

/// What is known of a session.
#[derive(Clone, Debug)]
struct Paced {
    flow: Flow,
    /// Bytes per second: that of the link, when nothing holds it back.
    rate: f64,
    /// When its next packet may leave.
    next_ns: u64,
    /// Its packets that wait, in order.
    queue: VecDeque<Waiting>,
    /// Whether the wheel knows when to look at it again.
    is_on_wheel: bool,
}

impl Paced {
    /// Notes that a packet of so many bytes leaves.
    fn left(&mut self, len: usize) {
        if let Flow::Dcqcn(flow) = &mut self.flow {
            flow.sent(len);
        }
        self.next_ns = self.next_ns.saturating_add((len as f64 * 1e9 / self.rate) as u64);
    }
}

/// The congestion control of an endpoint.
///
/// The wheel holds sessions, not packets: those of one session leave in the order in which they came, at the rate that it has when
/// they leave, and calls that end take theirs along.
#[derive(Debug)]
pub(crate) struct Pacing {
    config: Option<Congestion>,
    sessions: Vec<Paced>,
    wheel: Wheel<u32>,
    /// Sessions whose time has come; empty between turns.
    due: Vec<u32>,
    rtts: VecDeque<u64>,
}

impl Pacing {
    pub fn new(config: Option<Congestion>, now_ns: u64) -> Self {
        Self { config, sessions: Vec::new(), wheel: Wheel::new(now_ns), due: Vec::new(), rtts: VecDeque::new() }
    }

    /// Whether round trips are measured at all.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.config.is_some()
    }

    /// A session begins, at the rate of the link.
    pub fn begin(&mut self, index: usize) {
        let Some(config) = &self.config else { return };
        let line = config.line_bytes_per_s;
        let flow = match &config.algorithm {
            Algorithm::Timely(timely) => Flow::Timely(Timely::new(line, timely)),
            Algorithm::Swift(_) => Flow::Swift(Swift::new()),
            Algorithm::Dcqcn(_) => Flow::Dcqcn(Dcqcn::new(line)),
        };
        let fresh = Paced { flow, rate: line, next_ns: 0, queue: VecDeque::new(), is_on_wheel: false };
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, fresh.clone());
        }
        // The wheel may still know the session that was here before.
        self.sessions[index] = Paced { is_on_wheel: self.sessions[index].is_on_wheel, ..fresh };
    }

    /// Takes in a round trip of a session; returns what holds it back from now on.
    pub fn measured(&mut self, rtt_ns: u64, sample: Sample, bypasses: bool) -> Limits {
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

    /// A session's packet met a long queue.
    pub fn marked(&mut self, sample: Sample) -> Limits {
        self.update(sample, |flow, config| {
            if let (Flow::Dcqcn(flow), Algorithm::Dcqcn(dcqcn)) = (flow, &config.algorithm) {
                flow.mark(config.line_bytes_per_s, sample.now_ns, dcqcn);
            }
        })
    }

    /// A session's packets were lost.
    pub fn lost(&mut self, sample: Sample) -> Limits {
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
                // A session may always have one packet on its way.
                withheld = sample.credits - (flow.window().max(1.0) as u16).min(sample.credits);
                flow.packets_per_s().map_or(line, |rate| (rate * sample.packet_len as f64).min(line))
            }
        };
        // While packets wait for their time others must not overtake them: go-back-N takes that for a loss.
        Limits { is_paced: session.rate < line || !session.queue.is_empty(), withheld }
    }

    /// Queues packets of a session, each of `packet_len` bytes: those whose time has come for the next burst, the others behind it.
    pub fn queue(&mut self, index: usize, run: TxItem, packet_len: usize, now_ns: u64, transmit: &mut Vec<TxItem>) {
        let Some(session) = self.sessions.get_mut(index) else { return transmit.push(run) };
        for number in run.numbers() {
            let item = TxItem { first: number, count: 1, ..run };
            if session.queue.is_empty() && session.next_ns <= now_ns {
                session.next_ns = now_ns;
                session.left(packet_len);
                transmit.push(item);
            } else {
                session.queue.push_back(Waiting { item, len: packet_len });
            }
        }
        if !session.queue.is_empty() && !session.is_on_wheel {
            session.is_on_wheel = true;
            self.wheel.put(session.next_ns, index as u32, now_ns);
        }
    }

    /// Lets those go whose time has come.
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
                && let Some(Waiting { item, len }) = session.queue.pop_front()
            {
                session.left(len);
                transmit.push(item);
            }
            session.is_on_wheel = !session.queue.is_empty();
            if session.is_on_wheel {
                self.wheel.put(session.next_ns, index, now_ns);
            }
        }
    }

    /// Whether packets of a call wait for their time: they are not late.
    pub fn holds(&self, index: usize, slot: SlotId) -> bool {
        let session = self.sessions.get(index);
        session.is_some_and(|session| session.queue.iter().any(|waiting| waiting.item.slot == slot))
    }

    /// Takes back the packets of a call that is over: they are not to cost its session time. Says how many; a session has no more here than
    /// credits.
    #[inline]
    pub fn forget(&mut self, index: usize, slot: SlotId) -> u32 {
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

    /// When the next packet may leave.
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
