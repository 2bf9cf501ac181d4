//! Directions of links: the packets on them, and the packets queued for them.

use std::collections::VecDeque;

use crate::faults::LinkFaults;
use crate::flights::{Flight, Row};
use crate::routes::Direction;
use crate::stats::LinkStats;
use crate::topology::{HostId, LinkSpec, NodeId};

/// Picoseconds per nanosecond.
pub(crate) const PS: u64 = 1000;

/// Rounds picoseconds up to a whole nanosecond.
#[inline]
#[expect(
    clippy::manual_div_ceil,
    reason = "no simulation lasts until the sum overflows; `div_ceil`, safe from that, takes twice the instructions"
)]
pub(crate) fn ceil_ns(ps: u64) -> u64 {
    (ps + (PS - 1)) / PS
}

/// A packet queued for a lane that may be paused.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub flight: u32,
    /// The earliest time at which it may leave.
    pub ready_ps: u64,
    /// The lane that it came by.
    pub arrived_by: Direction,
}

/// A direction of a link.
///
/// Where no switch can ask for a pause, a packet's place in the queue decides when it leaves: it is given its time at
/// once, and `departures` remembers when it stops waiting. Where switches can, packets wait in `queue` until the lane
/// is free.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Lane {
    // The fields that every packet touches come first, in as few cache lines as possible.
    pub busy_until_ps: u64,
    ps_per_kib: u64,
    /// Time from head to tail per KiB if the lane ends at a switch, which acts on the head (cut-through); otherwise 0.
    head_ps_per_kib: u64,
    pub delay_ps: u64,
    /// Time from the end of the link to the memory of the host there.
    pub latency_ns: u64,
    pub to: NodeId,
    /// Packets that have their times and have not reached the lane's end; an event is scheduled for the first.
    pub in_flight: Row,
    pub stats: LinkStats,
    pub from: NodeId,
    pub queued_bytes: u64,
    /// When each queued packet leaves, and its bytes.
    pub departures: VecDeque<(u64, u32)>,
    /// Whether it is up, without faults and not captured.
    pub is_plain: bool,
    pub is_up: bool,
    pub is_paused: bool,
    /// Whether a `LinkFree` is scheduled.
    pub free_event_scheduled: bool,
    /// Whether its sender was asked to pause.
    pub asked_to_pause: bool,
    /// Whether packets that leave on it are captured.
    pub is_watched: bool,
    /// Its faults, if it has any.
    pub faults: Option<LinkFaults>,
    pub queue: VecDeque<Waiting>,
    /// Bytes that came by this lane and wait in the switch at its end.
    pub held_bytes: u64,
}

impl Lane {
    /// Both directions of a link.
    pub fn pair(link: &LinkSpec, receive_latency_ns: impl Fn(HostId) -> u64) -> [Self; 2] {
        let [a, b] = link.ends;
        // For 1,024 bytes: whole picoseconds per byte would be off by up to a quarter on fast links.
        let ps_per_kib = (1024.0 * 8_000.0 / link.rate_gbps).round() as u64;
        let end_costs = |to| match to {
            NodeId::Switch(_) => (ps_per_kib, 0),
            NodeId::Host(host) => (0, receive_latency_ns(host)),
        };
        [(a, b), (b, a)].map(|(from, to)| Self {
            from,
            to,
            ps_per_kib,
            head_ps_per_kib: end_costs(to).0,
            latency_ns: end_costs(to).1,
            delay_ps: link.delay_ns * PS,
            busy_until_ps: 0,
            is_plain: true,
            is_up: true,
            is_watched: false,
            faults: None,
            in_flight: Row::default(),
            departures: VecDeque::new(),
            queued_bytes: 0,
            stats: LinkStats::default(),
            queue: VecDeque::new(),
            free_event_scheduled: false,
            is_paused: false,
            held_bytes: 0,
            asked_to_pause: false,
        })
    }

    /// Changes its state, and keeps `is_plain` up to date.
    pub fn set(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.is_plain = self.is_up && self.faults.is_none() && !self.is_watched;
    }

    /// Time that `len` bytes take.
    #[inline]
    pub fn takes_ps(&self, len: u32) -> u64 {
        (u64::from(len) * self.ps_per_kib) >> 10
    }

    /// Time for which it was busy in all.
    pub fn busy_ps(&self) -> u64 {
        ((u128::from(self.stats.bytes) * u128::from(self.ps_per_kib)) >> 10) as u64
    }

    /// Gives a packet its time, behind all that have one. Returns when its first byte leaves (in ps), and when its head
    /// is at the switch at the end, or all of it in the memory of the host there (in ns).
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

    /// Removes from the queue the packets that have left by `now_ns`; returns their bytes.
    #[inline]
    pub fn settle(&mut self, now_ns: u64) -> u64 {
        let before = self.queued_bytes;
        while let Some(&(leaves_ps, len)) = self.departures.front()
            && leaves_ps <= now_ns * PS
        {
            self.departures.pop_front();
            self.queued_bytes -= u64::from(len);
        }
        before - self.queued_bytes
    }

    /// Adds a packet to the queued bytes.
    #[inline]
    pub fn hold(&mut self, len: u32) {
        self.queued_bytes += u64::from(len);
        self.stats.queued_bytes_max = self.stats.queued_bytes_max.max(self.queued_bytes);
    }

    /// Counters up to `now_ns`.
    pub fn stats(&self, now_ns: u64) -> LinkStats {
        let departed = self.departures.iter().take_while(|(leaves_ps, _)| *leaves_ps <= now_ns * PS);
        let departed_bytes: u64 = departed.map(|(_, len)| u64::from(*len)).sum();
        LinkStats { queued_bytes: self.queued_bytes - departed_bytes, ..self.stats }
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
            // The longest packet with its frame, and a usual one.
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
