//! Passage of packets over links, with the links' faults.

use super::World;
use crate::capture::Capturing;
use crate::events::Event;
use crate::faults::LinkFaults;
use crate::flights::Flight;
use crate::lanes::{PS, Waiting, ceil_ns};
use crate::routes::Direction;
use crate::stats::LinkStats;
use crate::topology::{HostId, NodeId};

/// No lane.
pub(super) const NONE: Direction = Direction::MAX;

impl World {
    /// Sends packets that have reached their host's interface.
    pub(super) fn launch(&mut self, host: HostId, first: u32, now_ns: u64) {
        let mut next = Some(first);
        while let Some(index) = next {
            next = self.flights.next(index);
            let flight = &self.flights[index];
            match self.routes.next_link(NodeId::Host(host), HostId(flight.target as usize), flight.flow) {
                Some(lane) => {
                    self.settle_lane(lane, now_ns);
                    self.queue(lane, Waiting { flight: index, ready_ps: now_ns * PS, arrived_by: NONE }, now_ns);
                }
                // To a port of the same host: the interface turns the packet around.
                None => {
                    let latency_ns = self.topology.hosts[host.0].receive_latency_ns;
                    self.schedule_out_of_order(index, NONE, now_ns + latency_ns);
                }
            }
        }
    }

    /// Queues a packet on a lane that has been settled.
    // Inlined, as are the next two: a packet passes all of them three or four times, which would take a tenth more
    // instructions with calls.
    #[inline(always)]
    pub(super) fn queue(&mut self, lane_index: Direction, packet: Waiting, now_ns: u64) {
        if self.pauses {
            return self.enqueue(lane_index, packet, now_ns);
        }
        let lane = &mut self.lanes[lane_index as usize];
        if lane.busy_until_ps > packet.ready_ps {
            let len = self.flights[packet.flight].len;
            lane.hold(len);
            lane.departures.push_back((lane.busy_until_ps, len));
            if let NodeId::Switch(switch) = lane.from {
                self.switches[switch.0].used_bytes += u64::from(len);
            }
        }
        self.start(lane_index, packet.flight, packet.ready_ps);
    }

    #[inline]
    pub(super) fn settle_lane(&mut self, lane_index: Direction, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        let departed_bytes = lane.settle(now_ns);
        if let NodeId::Switch(switch) = lane.from {
            self.switches[switch.0].used_bytes -= departed_bytes;
        }
    }

    /// Sends a packet on a lane, as soon as the lane is free.
    #[inline(always)]
    pub(super) fn start(&mut self, lane_index: Direction, index: u32, ready_ps: u64) {
        let (mut lane, flight) = (&mut self.lanes[lane_index as usize], &mut self.flights[index]);
        let (started_ps, arrives_ns) = lane.start(flight, ready_ps);
        let to = flight.to;
        if !lane.is_plain {
            if !self.send_through_faults(lane_index, index, started_ps / PS, arrives_ns) {
                return;
            }
            lane = &mut self.lanes[lane_index as usize];
        }
        if let NodeId::Host(_) = lane.to
            && self.nodes[to as usize].needs_no_event(arrives_ns)
        {
            return self.arrive_without_event(index, to, arrives_ns);
        }
        if self.flights.append(&mut lane.in_flight, index, arrives_ns) {
            self.events.add(arrives_ns, Event::Landed { lane: lane_index, flight: index });
        }
    }

    /// Sends a packet on a lane that has faults, is down or is captured; returns whether it arrives in order. If not,
    /// it is lost, or arrives by an event of its own.
    #[cold]
    fn send_through_faults(&mut self, lane_index: Direction, index: u32, started_ns: u64, arrives_ns: u64) -> bool {
        let lane = &self.lanes[lane_index as usize];
        let (is_up, faults) = (lane.is_up, lane.faults);
        if lane.is_watched && is_up {
            self.capture(lane_index, index, started_ns);
        }
        let delay_ns = match faults {
            _ if !is_up => None,
            Some(faults) => self.draw_faults(lane_index, index, faults),
            None => Some(0),
        };
        match delay_ns {
            None => {
                self.lanes[lane_index as usize].stats.failed += 1;
                self.lose(index, started_ns);
            }
            Some(0) => return true,
            Some(late_ns) => self.schedule_out_of_order(index, lane_index, arrives_ns + late_ns),
        }
        false
    }

    /// Captures a packet that leaves on a watched lane, unless it was captured as it left its sender.
    fn capture(&mut self, lane_index: Direction, index: u32, started_ns: u64) {
        let (flight, from) = (&mut self.flights[index], self.lanes[lane_index as usize].from);
        let target = HostId(flight.target as usize);
        let packet = flight.packet();
        let sender = self.nodes[packet.from as usize].host;
        if let Some(capturing) = &mut self.capturing
            && (from == NodeId::Host(sender) || !capturing.includes(sender))
        {
            capturing.add(packet, [sender, target], started_ns);
        }
    }

    /// Ends a flight whose packet will have arrived when an actor looks.
    #[inline]
    pub(super) fn arrive_without_event(&mut self, index: u32, to: u32, arrives_ns: u64) {
        let node = &mut self.nodes[to as usize];
        node.add_arriving(arrives_ns, self.flights.end(index));
        self.touched.extend(node.actor.map(|actor| (actor, arrives_ns)));
    }

    /// Handles the arrival of a lane's first packet at the lane's end.
    #[inline]
    pub(super) fn land(&mut self, lane_index: Direction, index: u32, now_ns: u64) {
        let lane = &mut self.lanes[lane_index as usize];
        if let Some((next, next_ns)) = self.flights.take_first(&mut lane.in_flight, index) {
            self.events.add(next_ns, Event::Landed { lane: lane_index, flight: next });
        }
        match lane.to {
            NodeId::Host(_) => self.deliver(index, now_ns),
            NodeId::Switch(switch) => self.forward(switch, lane_index, index, now_ns),
        }
    }

    /// Schedules the arrival of a packet outside its lane's order.
    pub(super) fn schedule_out_of_order(&mut self, flight: u32, on: Direction, arrives_ns: u64) {
        self.events.add(arrives_ns, Event::Stray { flight, on });
    }

    #[cold]
    pub(super) fn land_out_of_order(&mut self, flight: u32, on: Direction, now_ns: u64) {
        match self.lanes.get(on as usize).map(|lane| lane.to) {
            Some(NodeId::Switch(switch)) => self.forward(switch, on, flight, now_ns),
            _ => self.deliver(flight, now_ns),
        }
    }

    /// Draws the faults that a packet meets; returns its delay in ns, or none when it is lost.
    pub(super) fn draw_faults(&mut self, lane_index: Direction, index: u32, faults: LinkFaults) -> Option<u64> {
        let (lane, flight) = (&self.lanes[lane_index as usize], &mut self.flights[index]);
        let delay_ns = lane.delay_ps / PS;
        if self.generator.chance(faults.loss) {
            return None;
        }
        let packet = flight.packet();
        if self.generator.chance(faults.corruption) {
            let bits = u64::from(packet.len()) * 8;
            packet.flip(self.generator.below(bits));
            self.stats.corrupted += 1;
        }
        if self.generator.chance(faults.duplication) {
            let packet = self.packets.twin(packet);
            let arrives_ns = ceil_ns(flight.tail_ps) + lane.latency_ns + delay_ns;
            let mut twin = Flight::new(packet, flight.target, flight.flow, flight.len);
            twin.tail_ps = flight.tail_ps;
            let twin = self.flights.begin(twin);
            self.schedule_out_of_order(twin, lane_index, arrives_ns);
            self.stats.duplicated += 1;
        }
        Some(if self.generator.chance(faults.reordering) { faults.reordering_ns } else { 0 })
    }

    #[cold]
    pub(super) fn lose(&mut self, flight: u32, now_ns: u64) {
        let packet = self.flights.end(flight);
        self.stats.lost += 1;
        self.hash.add(!now_ns);
        self.hash.add(u64::from(packet.from) << 32 | u64::from(packet.to));
        self.packets.end(packet);
    }

    pub fn set_faults(&mut self, lane: Direction, faults: LinkFaults) {
        self.lanes[lane as usize].set(|lane| lane.faults = faults.any().then_some(faults));
    }

    /// Sets whether a lane is up. A lane that is down loses packets that start on it; packets that have left, or have
    /// their times, arrive.
    pub fn set_up(&mut self, lane: Direction, up: bool) {
        self.lanes[lane as usize].set(|lane| lane.is_up = up);
    }

    /// Begins or ends the capture of packets on hosts' links; returns the earlier capture.
    pub fn set_capturing(&mut self, capturing: Option<Capturing>) -> Option<Capturing> {
        for lane in &mut self.lanes {
            let is_watched = |node| match (node, &capturing) {
                (NodeId::Host(host), Some(capturing)) => capturing.includes(host),
                _ => false,
            };
            let is_watched = is_watched(lane.from) || is_watched(lane.to);
            lane.set(|lane| lane.is_watched = is_watched);
        }
        std::mem::replace(&mut self.capturing, capturing)
    }

    pub fn set_cut(&mut self, from: HostId, to: HostId, cut: bool, now_ns: u64) {
        // Packets that were there by now have arrived regardless.
        self.stats(now_ns);
        if cut {
            self.cut.insert((from.0, to.0));
        } else {
            self.cut.remove(&(from.0, to.0));
        }
    }

    pub fn lane_stats(&self, lane: Direction, now_ns: u64) -> LinkStats {
        self.lanes[lane as usize].stats(now_ns)
    }

    pub fn take_queued_max(&mut self, lane_index: Direction, now_ns: u64) -> u64 {
        self.settle_lane(lane_index, now_ns);
        let lane = &mut self.lanes[lane_index as usize];
        std::mem::replace(&mut lane.stats.queued_bytes_max, lane.queued_bytes)
    }
}
