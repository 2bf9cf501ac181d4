//! How fast sessions may send: round-trip times, the rates that follow from them, and packets that wait for their time.
//!
//! All of it is at clients (nsdi19 5.2.1): a server's packets answer a client's, one each. A session whose rate is that of the link is
//! uncongested: its packets leave at once, and its short round trips change nothing (nsdi19 5.2.2), unless
//! [`Tuning`](crate::Tuning) switches these bypasses off.

mod timely;
mod wheel;

use std::collections::VecDeque;

pub use timely::TimelyConfig;

use crate::core::TxItem;
use timely::Timely;
use wheel::Wheel;

/// What congestion control goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Congestion {
    /// The rate of the link, in bytes per second: that of an uncongested session.
    pub line_bytes_per_s: f64,
    /// How rates follow from round trips.
    pub timely: TimelyConfig,
    /// So many of the latest round trips are kept for [`Rpc::poll_rtt_ns`](crate::Rpc::poll_rtt_ns).
    pub rtts_kept: usize,
}

impl Congestion {
    /// Timely on a link of this rate.
    pub fn timely(rate_gbps: f64) -> Self {
        Self { line_bytes_per_s: rate_gbps * 1e9 / 8.0, timely: TimelyConfig::default(), rtts_kept: 0 }
    }
}

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
struct Paced {
    timely: Timely,
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
        let fresh = Paced { timely: Timely::new(config.line_bytes_per_s, &config.timely), next_ns: 0, waiting: 0 };
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, fresh);
        }
        // Packets of the session before it, at most: they are nobody's, and still on the wheel.
        self.sessions[index] = Paced { waiting: self.sessions[index].waiting, ..fresh };
    }

    /// Takes in a round trip of a session; returns whether it is congested.
    pub fn measured(&mut self, index: usize, rtt_ns: u64, was_congested: bool, bypasses: bool) -> bool {
        let (Some(config), Some(paced)) = (&self.config, self.sessions.get_mut(index)) else { return false };
        if config.rtts_kept > 0 {
            if self.rtts.len() >= config.rtts_kept {
                self.rtts.pop_front();
            }
            self.rtts.push_back(rtt_ns);
        }
        if bypasses && !was_congested && rtt_ns < config.timely.low_ns {
            return false;
        }
        paced.timely.update(rtt_ns, config.line_bytes_per_s, &config.timely);
        paced.timely.rate() < config.line_bytes_per_s
    }

    /// Queues packets of a session, each of `packet_len` bytes: those whose time has come for the next burst, the others on the wheel.
    pub fn queue(&mut self, run: TxItem, packet_len: usize, now_ns: u64, transmit: &mut Vec<TxItem>) {
        let Some(paced) = self.sessions.get_mut(run.session as usize) else { return transmit.push(run) };
        let gap_ns = (packet_len as f64 * 1e9 / paced.timely.rate()) as u64;
        for number in run.numbers() {
            let item = TxItem { first: number, count: 1, ..run };
            let time_ns = paced.next_ns.max(now_ns);
            paced.next_ns = time_ns + gap_ns;
            if time_ns <= now_ns && paced.waiting == 0 {
                transmit.push(item);
            } else {
                paced.waiting += 1;
                self.wheel.put(time_ns, item);
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
        self.sessions.get(index).map(|paced| paced.timely.rate())
    }

    pub fn poll_rtt_ns(&mut self) -> Option<u64> {
        self.rtts.pop_front()
    }
}
