//! NICs of the network's hosts: how they are attached, and how packets reach and leave them.

mod completing;
mod requester;
mod responder;
mod working;

use std::rc::Rc;

use super::World;
use super::links::NONE;
use crate::flights::Flight;
use crate::hash::Hash;
use crate::lanes::{PS, Waiting, ceil_ns};
use crate::nic::{Nic, NicUse, Profile};
use crate::packets::Packet;
use crate::topology::{HostId, NodeId};

/// Time in which a NIC turns around a packet to itself.
const TURN_AROUND_NS: u64 = 100;

impl World {
    /// The NIC of a host.
    pub fn nic_of(&self, host: HostId) -> Option<u32> {
        self.nics.iter().position(|nic| nic.host == host).map(|index| index as u32)
    }

    /// Puts a NIC into a host. The NIC models the interface's latencies from now on, so the host's become 0.
    pub fn attach_nic(&mut self, host: HostId, profile: Rc<Profile>) {
        let name = format!("nic of {}", self.topology.hosts[host.0].name);
        let node = self.open(&name, host, usize::MAX);
        self.nodes[node].nic = Some(self.nics.len() as u32);
        self.nics.push(Nic::new(host, node, profile));
        let spec = &mut self.topology.hosts[host.0];
        (spec.transmit_latency_ns, spec.receive_latency_ns) = (0, 0);
        for lane in self.lanes.iter_mut().filter(|lane| lane.to == NodeId::Host(host)) {
            lane.latency_ns = 0;
        }
    }

    /// Packs bytes into a packet from a NIC.
    #[inline]
    pub fn frame(&mut self, nic: u32, to: u32, head: &[u8], data: &[u8]) -> Box<Packet> {
        let from = self.nics[nic as usize].node as u32;
        self.packets.pack(from, to, head, data)
    }

    /// Hands a packet that has arrived to the NIC.
    #[inline]
    pub(super) fn receive_at_nic(&mut self, nic: u32, packet: Box<Packet>, now_ns: u64) {
        self.packets.lend();
        let (from, to) = (packet.from as usize, packet.to as usize);
        let is_cut = !self.cut.is_empty() && self.cut.contains(&(self.nodes[from].host.0, self.nodes[to].host.0));
        if is_cut || packet.is_damaged {
            self.nics[nic as usize].stats.dropped += 1;
            return self.packets.give_back(packet);
        }
        self.nodes[to].add_to_hash(&packet, now_ns);
        self.stats.delivered += 1;
        self.packet_arrives(nic, packet, now_ns);
    }

    /// Returns when the link to a node has room for another packet of a NIC.
    #[inline]
    pub fn link_free_ps(&self, nic: u32, to: u32) -> u64 {
        let (host, target) = (self.nics[nic as usize].host, self.nodes[to as usize].host);
        let Some(lane) = self.routes.next_link(NodeId::Host(host), target, 0) else { return 0 };
        let lane = &self.lanes[lane as usize];
        let waits_ps = if self.pauses { lane.takes_ps(lane.queued_bytes as u32) } else { 0 };
        lane.busy_until_ps + waits_ps
    }

    /// Sends a NIC's packet, which takes `len` bytes of a link.
    #[inline]
    pub fn transmit(&mut self, nic: u32, packet: Box<Packet>, len: usize, ready_ps: u64, now_ns: u64) {
        let host = self.nics[nic as usize].host;
        let target = self.nodes[packet.to as usize].host;
        let flow = Hash::of(&[u64::from(packet.from) << 32 | u64::from(packet.to)]) as u32;
        let flight = self.flights.begin(Flight::new(packet, target.0 as u32, flow, len as u32));
        match self.routes.next_link(NodeId::Host(host), target, flow) {
            Some(lane) => {
                self.settle_lane(lane, now_ns);
                self.queue(lane, Waiting { flight, ready_ps, arrived_by: NONE }, now_ns);
            }
            None => self.schedule_out_of_order(flight, NONE, ceil_ns(ready_ps) + TURN_AROUND_NS),
        }
    }

    /// Ends a packet that was never sent.
    pub fn end_frame(&mut self, packet: Box<Packet>) {
        self.packets.end(packet);
    }

    /// Whether an actor left completions in a queue when it polled.
    #[inline]
    pub fn has_unpolled(&mut self, node: usize) -> bool {
        let unpolled = &mut self.nodes[node].unpolled_cqs;
        if unpolled.is_empty() {
            return false;
        }
        let nics = &self.nics;
        unpolled
            .retain(|(nic, cq)| nics[*nic as usize].cqs[*cq as usize].as_ref().is_some_and(|cq| !cq.ready.is_empty()));
        !unpolled.is_empty()
    }

    /// Gives the actor that works on a node a turn.
    #[inline]
    pub fn wake_node(&mut self, node: usize, now_ns: u64) {
        self.touched.extend(self.nodes[node].actor.map(|actor| (actor, now_ns)));
    }

    /// Share of the time until `now_ns` for which each part of a NIC and its links were busy.
    pub fn nic_use(&self, nic: u32, now_ns: u64) -> NicUse {
        let nic = &self.nics[nic as usize];
        let of_lanes = |is_it: &dyn Fn(&crate::lanes::Lane) -> bool| {
            let (mut sum, mut count) = (0.0, 0);
            for lane in self.lanes.iter().filter(|lane| is_it(lane)) {
                sum += lane.busy_ps() as f64;
                count += 1;
            }
            sum / f64::from(count.max(1)) / (now_ns * PS).max(1) as f64
        };
        NicUse {
            transmit: of_lanes(&|lane| lane.from == NodeId::Host(nic.host)),
            receive: of_lanes(&|lane| lane.to == NodeId::Host(nic.host)),
            ..nic.usage(now_ns)
        }
    }
}
