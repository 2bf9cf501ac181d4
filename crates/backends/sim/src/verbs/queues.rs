//! Threads' queues, and completion queues.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Destination, QpAddress, QpConfig, ThreadDomain, Transport, VerbsError,
};
use sinew_fabric::{Descriptor, Readiness, Waker};

use super::handle::{Domain, node_of};
use super::pair::SimQp;
use crate::network::Network;
use crate::nic::queue_pair::Qp;
use crate::nic::{Cq, Ready};
use crate::world::World;

/// A thread's access to a modelled NIC.
#[derive(Clone, Debug)]
pub struct SimThread {
    domain: Domain,
    network: Network,
}

impl SimThread {
    pub(super) fn new(domain: Domain, network: Network) -> Self {
        Self { domain, network }
    }
}

impl ThreadDomain for SimThread {
    type Cq = SimCq;
    type Qp = SimQp;

    fn completion_queue(&self, depth: usize) -> Result<SimCq, VerbsError> {
        let (nic, node) = (self.domain.handle.nic, self.domain.handle.node());
        let mut world = self.network.0.world.borrow_mut();
        let cqs = &mut world.nics[nic as usize].cqs;
        let queue = Cq { ready: VecDeque::new(), depth, reserved: 0, node, users: 1 };
        let number = match cqs.iter().position(Option::is_none) {
            Some(free) => {
                cqs[free] = Some(queue);
                free
            }
            None => {
                cqs.push(Some(queue));
                cqs.len() - 1
            }
        };
        let profile = &world.nics[nic as usize].profile;
        let (look_ns, completion_ns) = (profile.core.look_ns, profile.core.completion_ns);
        Ok(SimCq { network: self.network.clone(), nic, node, number: number as u32, look_ns, completion_ns })
    }

    fn queue_pair(&self, config: &QpConfig, send: &SimCq, receive: &SimCq) -> Result<SimQp, VerbsError> {
        let device = &self.domain.handle;
        let attributes = &device.attributes;
        for (what, asked, limit) in [
            ("requests", config.send_depth, attributes.queue_depth_max),
            ("receives", config.receive_depth, attributes.queue_depth_max),
            ("bytes inline", config.inline_max, attributes.inline_max),
            ("pieces", config.gather_max, attributes.gather_max),
        ] {
            if asked > limit {
                return Err(VerbsError::Limit { what, asked, limit });
            }
        }
        if send.nic != device.nic || receive.nic != device.nic {
            return Err(VerbsError::Device("the completion queue belongs to another NIC".to_owned()));
        }
        let mut world = self.network.0.world.borrow_mut();
        let nic = &mut world.nics[device.nic as usize];
        let wanted = [(send.number, config.send_depth), (receive.number, config.receive_depth)];
        for (number, _) in wanted {
            let asked: usize = wanted.iter().filter(|(other, _)| *other == number).map(|(_, depth)| depth).sum();
            let queue = nic.cq(number);
            if queue.reserved + asked > queue.depth {
                let (asked, limit) = (queue.reserved + asked, queue.depth);
                return Err(VerbsError::Limit { what: "completions", asked, limit });
            }
        }
        let Some((slot, number)) = nic.new_number() else {
            return Err(VerbsError::Limit { what: "queue pairs", asked: 1 << 16, limit: 1 << 16 });
        };
        for (cq, depth) in wanted {
            let queue = nic.cq(cq);
            queue.reserved += depth;
            queue.users += 1;
        }
        let (mtu, queues) = (nic.profile.link.mtu, [send.number, receive.number]);
        let qp = Qp::new(*config, number, self.domain.number(), device.node(), mtu, queues);
        nic.insert_qp(slot, qp);
        let core = nic.profile.core;
        let layout = nic.profile.wqe;
        Ok(SimQp::new(self.domain.clone(), self.network.clone(), *config, number, slot, core, layout))
    }

    fn destination(&self, to: &QpAddress) -> Result<Destination, VerbsError> {
        let node = node_of(to, Transport::Ud)?;
        let world = self.network.0.world.borrow();
        if world.nodes.get(node as usize).is_none_or(|node| node.nic.is_none()) {
            return Err(VerbsError::Address("there is no such NIC on this network".to_owned()));
        }
        Ok(Destination { handle: u64::from(node), number: to.number, qkey: to.qkey })
    }
}

/// A completion queue of a modelled NIC.
#[derive(Debug)]
pub struct SimCq {
    network: Network,
    pub(super) nic: u32,
    node: usize,
    pub(super) number: u32,
    look_ns: u64,
    completion_ns: u64,
}

impl Drop for SimCq {
    fn drop(&mut self) {
        self.network.0.world.borrow_mut().nics[self.nic as usize].leave_cq(self.number);
    }
}

/// No descriptor: the network's time passes only while somebody waits, or in turns of a cluster's actors.
impl Readiness for SimCq {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }
}

impl SimCq {
    fn is_empty(&self, world: &mut World) -> bool {
        world.nics[self.nic as usize].cq(self.number).ready.is_empty()
    }
}

impl CompletionQueue for SimCq {
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let mut world = self.network.0.world.borrow_mut();
        let World { nics, nodes, .. } = &mut *world;
        let nic = &mut nics[self.nic as usize];
        let (mut count, mut spent_ns) = (0, 0);
        while count < max
            && let Some(Ready { completion, is_written, sends, receives }) = nic.cq(self.number).ready.pop_front()
        {
            if let Some(qp) = nic.slot_of(completion.qp.0).and_then(|slot| nic.qp(slot)) {
                qp.held -= sends;
                qp.receives_held -= receives;
            }
            completions.push(completion);
            count += 1;
            // A core that polls memory for an unsignaled READ's result sees it in one look.
            spent_ns += if is_written { self.completion_ns } else { self.look_ns };
        }
        let queue = (self.nic, self.number);
        if !nic.cq(self.number).ready.is_empty() && !nodes[self.node].unpolled_cqs.contains(&queue) {
            nodes[self.node].unpolled_cqs.push(queue);
        }
        drop(world);
        let spent_ns = if count == 0 { self.look_ns } else { spent_ns };
        self.network.0.clock.spend_ns(spent_ns);
        count
    }

    fn passes_time(&self) -> bool {
        false
    }

    /// Waits for a completion. Where a [`Cluster`](crate::Cluster)'s actor works on the handle, this only notes when
    /// the actor wants its next turn at the latest, and returns at once. Otherwise it runs the network until there is a
    /// completion, until a wake, or until the time-out.
    ///
    /// # Errors
    ///
    /// As for [`PacketPort::wait`](sinew_fabric::PacketPort::wait) of simulated ports; and when the network has nothing
    /// left to do.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        let is_over = |world: &mut World| world.nodes[self.node].source.take() || !self.is_empty(world);
        if self.network.wait_at(self.node, timeout_ns, is_over)? {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::Unsupported, "the network has nothing left to do: no completion will come"))
    }

    /// Returns a waker in virtual time: see [`Cluster::waker`](crate::Cluster::waker).
    fn waker(&self) -> Waker {
        Waker::new(self.network.0.world.borrow().nodes[self.node].source.clone())
    }
}
