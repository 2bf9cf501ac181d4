//! Directions of links: what is on them, and what waits for them.

use std::collections::VecDeque;

use crate::faults::LinkFaults;
use crate::flights::{Flight, Row};
use crate::routes::Direction;
use crate::stats::LinkStats;
use crate::topology::{HostId, LinkSpec, NodeId};

/// Picoseconds of a nanosecond.
pub(crate) const PS: u64 = 1000;

/// The first nanosecond that is not before so many picoseconds.
#[inline]
#[expect(
    clippy::manual_div_ceil,
    reason = "no simulation lasts until the sum overflows; what allows for that takes twice the instructions"
)]
pub(crate) fn ceil_ns(ps: u64) -> u64 {
    (ps + (PS - 1)) / PS
}

/// A packet that waits for a lane that may be paused.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub flight: u32,
    /// When it may leave at the earliest.
    pub ready_ps: u64,
    /// The lane that it came by.
    pub came_by: Direction,
}

/// A direction of a link.
///
/// Where nothing pauses, a packet's place behind others says when it leaves: it is given its time at once, and `leaving` remembers when it
/// no longer waits. Where switches ask their neighbours to pause, packets wait in `queue` until the lane is free.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Lane {
    // What every packet touches comes first, in as few lines of the cache as can be.
    pub busy_until_ps: u64,
    ps_per_kib: u64,
    /// By how much a packet's head is before its tail, where the head is what counts: at a switch.
    head_ps_per_kib: u64,
    pub delay_ps: u64,
    /// How much later than at the end of the link a packet is in the memory of the host that is there.
    pub latency_ns: u64,
    pub to: NodeId,
    /// On the link, or given their times, and not at its end: an event is foreseen for the first.
    pub flying: Row,
    pub stats: LinkStats,
    pub from: NodeId,
    pub queued_bytes: u64,
    /// Of those that wait, when they leave and how long they are.
    pub leaving: VecDeque<(u64, u32)>,
    /// Whether all comes through, and nobody watches.
    pub is_plain: bool,
    pub is_up: bool,
    pub is_paused: bool,
    /// Whether a `LinkFree` is foreseen.
    pub is_awaited: bool,
    /// Whether its sender was asked to pause.
    pub asked_to_pause: bool,
    /// Whether what leaves is captured.
    pub is_watched: bool,
    /// What goes wrong here, if anything does.
    pub faults: Option<LinkFaults>,
    pub queue: VecDeque<Waiting>,
    /// Of what came by this lane, bytes that wait in the switch at its end.
    pub held_bytes: u64,
}

impl Lane {
    /// Both directions of a link.
    pub fn pair(link: &LinkSpec, receive_latency_ns: impl Fn(HostId) -> u64) -> [Self; 2] {
        let [a, b] = link.ends;
        // Of 1,024 bytes: picoseconds of one would be off by up to a quarter where links are fast.
        let ps_per_kib = (1024.0 * 8_000.0 / link.rate_gbps).round() as u64;
        let at_end = |to| match to {
            NodeId::Switch(_) => (ps_per_kib, 0),
            NodeId::Host(host) => (0, receive_latency_ns(host)),
        };
        [(a, b), (b, a)].map(|(from, to)| Self {
            from,
            to,
            ps_per_kib,
            head_ps_per_kib: at_end(to).0,
            latency_ns: at_end(to).1,
            delay_ps: link.delay_ns * PS,
            busy_until_ps: 0,
            is_plain: true,
            is_up: true,
            is_watched: false,
            faults: None,
            flying: Row::default(),
            leaving: VecDeque::new(),
            queued_bytes: 0,
            stats: LinkStats::default(),
            queue: VecDeque::new(),
            is_awaited: false,
            is_paused: false,
            held_bytes: 0,
            asked_to_pause: false,
        })
    }

    /// What is said of it from now on.
    pub fn set(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.is_plain = self.is_up && self.faults.is_none() && !self.is_watched;
    }

    /// How long so many bytes take.
    #[inline]
    pub fn takes_ps(&self, len: u32) -> u64 {
        (u64::from(len) * self.ps_per_kib) >> 10
    }

    /// How long it was busy in all.
    pub fn busy_ps(&self) -> u64 {
        ((u128::from(self.stats.bytes) * u128::from(self.ps_per_kib)) >> 10) as u64
    }

    /// Gives a packet its time, behind all that have one; returns when its first byte leaves, and when its head is at the switch at the end,
    /// or all of it in the memory of the host.
    #[inline]
    pub fn start(&mut self, flight: &mut Flight, ready_ps: u64) -> (u64, u64) {
        let started_ps = self.busy_until_ps.max(ready_ps);
        self.busy_until_ps = started_ps + self.takes_ps(flight.len);
        self.stats.packets += 1;
        self.stats.bytes += u64::from(flight.len);
        flight.tail_ps = self.busy_until_ps + self.delay_ps;
        let head_ps = (u64::from(flight.len) * self.head_ps_per_kib) >> 10;
        (started_ps, ceil_ns(flight.tail_ps - head_ps) + self.latency_ns)
    }

    /// Lets those go that wait no longer at `now_ns`; returns how many bytes they have.
    #[inline]
    pub fn settle(&mut self, now_ns: u64) -> u64 {
        let before = self.queued_bytes;
        while let Some(&(leaves_ps, len)) = self.leaving.front()
            && leaves_ps <= now_ns * PS
        {
            self.leaving.pop_front();
            self.queued_bytes -= u64::from(len);
        }
        before - self.queued_bytes
    }

    /// One more waits.
    #[inline]
    pub fn hold(&mut self, len: u32) {
        self.queued_bytes += u64::from(len);
        self.stats.queued_bytes_max = self.stats.queued_bytes_max.max(self.queued_bytes);
    }

    /// What it did, until `now_ns`.
    pub fn stats(&self, now_ns: u64) -> LinkStats {
        let gone = self.leaving.iter().take_while(|(leaves_ps, _)| *leaves_ps <= now_ns * PS);
        let gone: u64 = gone.map(|(_, len)| u64::from(*len)).sum();
        LinkStats { queued_bytes: self.queued_bytes - gone, ..self.stats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{HostId, RATE_GBPS_MAX, RATE_GBPS_MIN};

    #[test]
    fn bytes_take_as_long_as_the_rate_says_at_any_rate() {
        let ends = [0, 1].map(|host| NodeId::Host(HostId(host)));
        for rate_gbps in [RATE_GBPS_MIN, 0.3, 25.0, 56.0, 300.0, 1_600.0, 2_700.0, 3_333.3, RATE_GBPS_MAX] {
            let [lane, _] = Lane::pair(&LinkSpec { ends, rate_gbps, delay_ns: 0, mtu: 1500 }, |_| 0);
            // A packet as long as the longest with its frame, and a usual one.
            for len in [(1 << 20) + 10_000, 1_566] {
                let error = lane.takes_ps(len) as f64 * rate_gbps / (f64::from(len) * 8_000.0) - 1.0;
                assert!(error.abs() < 0.001, "{len} bytes at {rate_gbps} Gbps: {error}");
            }
        }
        let exactly =
            |rate_gbps| Lane::pair(&LinkSpec { ends, rate_gbps, delay_ns: 0, mtu: 1500 }, |_| 0)[0].takes_ps(1_500);
        assert_eq!([10.0, 25.0, 40.0, 100.0].map(exactly), [800, 320, 200, 80].map(|ps| 1_500 * ps));
    }
}
