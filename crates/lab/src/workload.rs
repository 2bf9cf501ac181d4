//! Workloads: groups of clients that call servers on a simulated cluster, and what comes of it.
//!
//! [`Workload::parse`] reads one as `workloads/incast.toml` shows it, [`run`] runs it, and [`html`] draws it.

mod client;
mod congestion;
mod file;
mod page;
mod report;
mod run;

use sinew_rpc::{Congestion, Recovery, Timeout};
use sinew_sim::HostId;

pub use page::html;
pub use report::{Drops, GroupReport, Percentiles, Queue, Report, Series};
pub use run::{RunError, run};

/// Clients, whom they call, and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// From when all sessions are open until what happens is counted, in nanoseconds.
    pub warm_up_ns: u64,
    /// What is counted, in nanoseconds.
    pub duration_ns: u64,
    /// Packets that a session may have on their way.
    pub credits: u16,
    /// Calls that a session can have going on.
    pub slots: u16,
    /// Which packets are sent again when some were lost.
    pub recovery: Recovery,
    /// Whether time-outs follow the round trips.
    pub timeout: Timeout,
    /// How long they are, at least.
    pub retransmit_timeout_ns: u64,
    /// Congestion control; its rate is replaced by that of each client's link.
    pub congestion: Option<Congestion>,
    /// The clients. Each group has endpoints of its own at its servers.
    pub groups: Vec<Group>,
}

/// Clients that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name, which no other has.
    pub name: String,
    /// Where they are.
    pub hosts: Vec<HostId>,
    /// Endpoints, each with a core, on each of these.
    pub endpoints: usize,
    /// Whom they call, each call to another, by chance. Nobody calls the host that it is on.
    pub servers: Vec<HostId>,
    /// Endpoints at each server; those of a client's host are dealt out to them.
    pub server_endpoints: usize,
    /// Bytes of a request.
    pub request: Sizes,
    /// Bytes of a response.
    pub response: Sizes,
    /// Calls that an endpoint has going on: all the time; or at most, where they come by the clock.
    pub window: usize,
    /// Calls a second of an endpoint, which come by chance whether or not others are answered (a Poisson process). A call that finds the window full waits,
    /// and its latency counts from when it came. None: each call follows another.
    pub calls_per_s: Option<f64>,
    /// From this time on calls are made; 0 is where the warm-up begins.
    pub start_ns: u64,
    /// From this time on none is begun.
    pub stop_ns: u64,
}

/// How long messages are.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// All alike.
    Fixed(usize),
    /// Each length from the first to the second as often as another.
    Uniform(usize, usize),
    /// These lengths, by their weights.
    Mixed(Vec<(usize, f64)>),
}

impl Sizes {
    /// The shortest and the longest.
    pub fn bounds(&self) -> (usize, usize) {
        match self {
            Self::Fixed(len) => (*len, *len),
            Self::Uniform(from, to) => (*from, *to),
            Self::Mixed(lens) => {
                let lens = || lens.iter().map(|(len, _)| *len);
                (lens().min().unwrap_or(0), lens().max().unwrap_or(0))
            }
        }
    }

    /// One of them: `chance` is a random number from 0 to 1.
    fn draw(&self, chance: f64) -> usize {
        match self {
            Self::Fixed(len) => *len,
            Self::Uniform(from, to) => from + (chance * (to - from + 1) as f64) as usize,
            Self::Mixed(lens) => {
                let mut rest = chance * lens.iter().map(|(_, weight)| weight).sum::<f64>();
                let found = lens.iter().find(|(_, weight)| {
                    rest -= weight;
                    rest < 0.0
                });
                found.or(lens.last()).map_or(0, |(len, _)| *len)
            }
        }
    }
}

impl Workload {
    /// From when all sessions are open to the end.
    pub fn end_ns(&self) -> u64 {
        self.warm_up_ns + self.duration_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_drawn_as_often_as_was_asked_for() {
        let count = |sizes: &Sizes, len: usize| {
            (0..1000).filter(|number| sizes.draw(f64::from(*number) / 1000.0) == len).count()
        };
        assert_eq!(count(&Sizes::Fixed(7), 7), 1000);
        let uniform = Sizes::Uniform(10, 13);
        assert_eq!([9, 10, 11, 12, 13, 14].map(|len| count(&uniform, len)), [0, 250, 250, 250, 250, 0]);
        let mixed = Sizes::Mixed(vec![(32, 3.0), (1000, 1.0)]);
        assert_eq!([32, 1000].map(|len| count(&mixed, len)), [750, 250]);
        assert_eq!((uniform.bounds(), mixed.bounds()), ((10, 13), (32, 1000)));
    }
}
