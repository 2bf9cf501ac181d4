//! Priority flow control: paused lanes, and the switches that pause them.

use super::World;
use crate::events::Event;
use crate::lanes::{PS, Waiting, ceil_ns};
use crate::routes::Direction;
use crate::topology::{NodeId, SwitchId};

impl World {
    /// Queues a packet as [`Self::queue`] does, on a lane that may be paused.
    pub(super) fn enqueue(&mut self, lane_index: Direction, packet: Waiting, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        if lane.queue.is_empty() && !lane.is_paused && lane.busy_until_ps <= packet.ready_ps {
            return self.start(lane_index, packet.flight, packet.ready_ps);
        }
        let (len, arrived_by) = (self.flights[packet.flight].len, packet.arrived_by);
        lane.hold(len);
        lane.queue.push_back(packet);
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes += u64::from(len);
            self.count_held(switch, arrived_by, u64::from(len), now_ns);
        }
        self.await_lane(lane_index);
    }

    pub(super) fn await_lane(&mut self, lane_index: Direction) {
        let lane = &mut self.lanes[lane_index as usize];
        if !lane.free_event_scheduled && !lane.is_paused && !lane.queue.is_empty() {
            lane.free_event_scheduled = true;
            self.events.add(ceil_ns(lane.busy_until_ps), Event::LinkFree { lane: lane_index });
        }
    }

    #[inline(never)]
    pub(super) fn link_free(&mut self, lane_index: Direction, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        lane.free_event_scheduled = false;
        if lane.is_paused {
            return;
        }
        let Some(Waiting { flight, ready_ps, arrived_by }) = lane.queue.pop_front() else { return };
        let len = u64::from(self.flights[flight].len);
        lane.queued_bytes -= len;
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes -= len;
            self.count_released(switch, arrived_by, len, now_ns);
        }
        self.start(lane_index, flight, ready_ps);
        self.await_lane(lane_index);
    }

    /// Notes that a switch holds `len` more bytes that came by a lane, and asks the lane's sender to pause if there are
    /// too many.
    pub(super) fn count_held(&mut self, switch: SwitchId, arrived_by: Direction, len: u64, now_ns: u64) {
        let Some(pause) = self.switches[switch.0].pause else { return };
        let lane = &mut self.lanes[arrived_by as usize];
        lane.held_bytes += len;
        if lane.held_bytes >= pause.off_bytes && !lane.asked_to_pause {
            lane.asked_to_pause = true;
            self.stats.pauses += 1;
            let arrives_ns = now_ns + lane.delay_ps / PS;
            self.events.add(arrives_ns, Event::Paused { lane: arrived_by, paused: true });
        }
    }

    pub(super) fn count_released(&mut self, switch: SwitchId, arrived_by: Direction, len: u64, now_ns: u64) {
        let Some(pause) = self.switches[switch.0].pause else { return };
        let lane = &mut self.lanes[arrived_by as usize];
        lane.held_bytes -= len;
        if lane.held_bytes <= pause.on_bytes && lane.asked_to_pause {
            lane.asked_to_pause = false;
            let arrives_ns = now_ns + lane.delay_ps / PS;
            self.events.add(arrives_ns, Event::Paused { lane: arrived_by, paused: false });
        }
    }

    pub(super) fn set_paused(&mut self, lane_index: Direction, paused: bool, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        lane.is_paused = paused;
        if !paused {
            // A packet that waited while the link was idle leaves no earlier than now.
            lane.busy_until_ps = lane.busy_until_ps.max(now_ns * PS);
            self.await_lane(lane_index);
        }
    }
}
