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

use crate::core::TxItem;
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

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
struct Paced {
    flow: Flow,
    /// Bytes per second: that of the link, when nothing holds it back.
    rate: f64,
    /// When its next packet may leave.
    next_ns: u64,
    /// Its packets on the wheel.
    waiting: u32,
}

/// The congestion control of an endpoint.
#[derive(Debug)]
pub(crate) struct Pacing {
    config: Option<Congestion>,
    sessions: Vec<Paced>,
    wheel: Wheel<TxItem>,
    rtts: VecDeque<u64>,
}

impl Pacing {
    pub fn new(config: Option<Congestion>, now_ns: u64) -> Self {
        Self { config, sessions: Vec::new(), wheel: Wheel::new(now_ns), rtts: VecDeque::new() }
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
        let fresh = Paced { flow, rate: line, next_ns: 0, waiting: 0 };
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, fresh);
        }
        // Packets of the session before it, at most: they are nobody's, and still on the wheel.
        self.sessions[index] = Paced { waiting: self.sessions[index].waiting, ..fresh };
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
        Limits { is_paced: session.rate < line || session.waiting > 0, withheld }
    }

    /// Queues packets of a session, each of `packet_len` bytes: those whose time has come for the next burst, the others on the wheel.
    pub fn queue(&mut self, run: TxItem, packet_len: usize, now_ns: u64, transmit: &mut Vec<TxItem>) {
        let Some(session) = self.sessions.get_mut(run.session as usize) else { return transmit.push(run) };
        if let Flow::Dcqcn(flow) = &mut session.flow {
            flow.sent(packet_len * usize::from(run.count));
        }
        let gap_ns = (packet_len as f64 * 1e9 / session.rate) as u64;
        for number in run.numbers() {
            let item = TxItem { first: number, count: 1, ..run };
            let time_ns = session.next_ns.max(now_ns);
            session.next_ns = time_ns + gap_ns;
            if time_ns <= now_ns && session.waiting == 0 {
                transmit.push(item);
            } else {
                session.waiting += 1;
                self.wheel.put(time_ns, item, now_ns);
            }
        }
    }

    /// Lets those go whose time has come.
    #[inline]
    pub fn release(&mut self, now_ns: u64, transmit: &mut Vec<TxItem>) {
        if self.wheel.is_empty() {
            return;
        }
        let sessions = &mut self.sessions;
        self.wheel.take_due(now_ns, |item| {
            let paced = &mut sessions[item.session as usize];
            paced.waiting = paced.waiting.saturating_sub(1);
            transmit.push(item);
        });
    }

    /// Whether packets of a session wait for their time: they are not late.
    #[inline]
    pub fn holds(&self, index: usize) -> bool {
        self.sessions.get(index).is_some_and(|paced| paced.waiting > 0)
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
