//! Switches: choosing a packet's next link, making room for it, and marking it.

use super::World;
use crate::lanes::{PS, Waiting};
use crate::routes::Direction;
use crate::topology::{Buffer, Ecn, HostId, NodeId, Pause, SwitchId};

#[derive(Debug)]
pub(super) struct SwitchState {
    pub(super) latency_ps: u64,
    pub(super) used_bytes: u64,
    pub(super) buffer: Buffer,
    pub(super) ecn: Option<Ecn>,
    pub(super) pause: Option<Pause>,
    /// Its outgoing lanes.
    pub(super) leaving: Vec<Direction>,
}

impl SwitchState {
    /// Whether `len` more bytes may be queued for an outgoing lane that has `queued` bytes queued.
    #[inline]
    pub(super) fn fits(&self, queued: u64, len: u64) -> bool {
        match self.buffer {
            Buffer::PerPort { bytes } => queued + len <= bytes,
            Buffer::Shared { bytes, alpha } => {
                let free = bytes.saturating_sub(self.used_bytes);
                // A signed number becomes a float in one instruction, and no switch has more bytes than one can hold.
                len <= free && queued as i64 as f64 <= alpha * free as i64 as f64
            }
        }
    }
}

impl World {
    /// Forwards a packet whose head has reached a switch.
    #[inline(always)]
    pub(super) fn forward(&mut self, switch: SwitchId, arrived_by: Direction, index: u32, now_ns: u64) {
        let flight = &mut self.flights[index];
        let (target, len) = (HostId(flight.target as usize), flight.len);
        let Some(lane_index) = self.routes.next_link(NodeId::Switch(switch), target, flight.flow) else {
            return self.lose(index, now_ns);
        };
        let lane = &self.lanes[lane_index as usize];
        // It cannot leave faster than it comes in.
        let cut_through_ps = flight.tail_ps.saturating_sub(lane.takes_ps(len));
        let ready_ps = (now_ns * PS).max(cut_through_ps) + self.switches[switch.0].latency_ps;
        let is_queued = lane.busy_until_ps > ready_ps || self.pauses && (!lane.queue.is_empty() || lane.is_paused);
        if is_queued {
            if !self.has_room(switch, lane_index, u64::from(len), now_ns) {
                return self.overflow(lane_index, index, now_ns);
            }
            if self.draws_mark(switch, lane_index) {
                self.flights[index].packet().is_marked = true;
                self.stats.marked += 1;
            }
        }
        self.queue(lane_index, Waiting { flight: index, ready_ps, arrived_by }, now_ns);
    }

    #[cold]
    pub(super) fn overflow(&mut self, lane_index: Direction, flight: u32, now_ns: u64) {
        self.stats.overflowed += 1;
        self.lanes[lane_index as usize].stats.overflowed += 1;
        self.lose(flight, now_ns);
    }

    #[inline]
    pub(super) fn has_room(&mut self, switch: SwitchId, lane_index: Direction, len: u64, now_ns: u64) -> bool {
        let (lane, state) = (&mut self.lanes[lane_index as usize], &mut self.switches[switch.0]);
        state.used_bytes -= lane.settle(now_ns);
        state.fits(lane.queued_bytes, len) || self.has_room_settled(switch, lane_index, len, now_ns)
    }

    /// Checks again, once packets that have left by other lanes are accounted for.
    #[cold]
    pub(super) fn has_room_settled(&mut self, switch: SwitchId, lane_index: Direction, len: u64, now_ns: u64) -> bool {
        for at in 0..self.switches[switch.0].leaving.len() {
            self.settle_lane(self.switches[switch.0].leaving[at], now_ns);
        }
        self.switches[switch.0].fits(self.lanes[lane_index as usize].queued_bytes, len)
    }

    #[inline]
    pub(super) fn draws_mark(&mut self, switch: SwitchId, lane_index: Direction) -> bool {
        let Some(ecn) = self.switches[switch.0].ecn else { return false };
        let queued = self.lanes[lane_index as usize].queued_bytes;
        if queued < ecn.min_bytes {
            return false;
        }
        if queued >= ecn.max_bytes {
            return true;
        }
        let part = (queued - ecn.min_bytes) as f64 / (ecn.max_bytes - ecn.min_bytes) as f64;
        self.generator.chance(ecn.probability * part)
    }
}
