//! Queue pairs of a modelled NIC, as verbs.

use std::cell::Cell;

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{
    Gather, Operation, PostError, QpAddress, QpConfig, QpNumber, QpState, QueuePair, RefusedReceive, RefusedRequest,
    Request, Scatter, Source, Status, Transport, VerbsError, check_receive,
};

use super::handle::{Domain, PORT_MARK, node_of};
use crate::lanes::PS;
use crate::network::Network;
use crate::nic::queue_pair::{Qp, Receive, Remote, WorkKind, Wqe};
use crate::nic::{self, Core, WqeLayout};
use crate::pcie;
use crate::world::World;

/// A queue pair of a modelled NIC.
#[derive(Debug)]
pub struct SimQp {
    domain: Domain,
    network: Network,
    config: QpConfig,
    number: QpNumber,
    slot: u32,
    core: Core,
    layout: WqeLayout,
    /// Lines of the elements that were pushed since the last doorbell.
    lines: Cell<u64>,
    /// Elements that were pushed since the last doorbell.
    pushed: Cell<u64>,
}

impl SimQp {
    pub(super) fn new(
        domain: Domain,
        network: Network,
        config: QpConfig,
        number: QpNumber,
        slot: u32,
        core: Core,
        layout: WqeLayout,
    ) -> Self {
        Self { domain, network, config, number, slot, core, layout, lines: Cell::new(0), pushed: Cell::new(0) }
    }

    fn nic(&self) -> u32 {
        self.domain.handle.nic
    }

    fn with<T>(&self, look: impl FnOnce(&mut Qp) -> T) -> T {
        let mut world = self.network.0.world.borrow_mut();
        look(world.nics[self.nic() as usize].qp(self.slot).expect("a queue pair exists as long as its handle"))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), PostError> {
        let (state, held) = self.with(|qp| (qp.state, qp.held));
        let device = &self.domain.handle;
        request.check(&self.config, state, &device.attributes)?;
        let domain = &self.domain;
        let is_ours = match &request.operation {
            Operation::Send { source: Source::Gather(pieces), .. }
            | Operation::Write { source: Source::Gather(pieces), .. } => {
                pieces.iter().all(|piece| domain.knows(piece.buffer.extent(), |arena| piece.buffer.is_from(arena)))
            }
            Operation::Send { .. } | Operation::Write { .. } => true,
            Operation::Read { target, .. } => {
                target.iter().all(|buffer| domain.knows(buffer.extent(), |arena| buffer.is_from(arena)))
            }
            Operation::WriteRange { source: range, .. } | Operation::ReadRange { target: range, .. } => {
                domain.knows(range.extent(), |arena| range.is_from(arena))
            }
            Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => {
                domain.knows(target.extent(), |arena| target.is_from(arena))
            }
        };
        if !is_ours {
            return Err(PostError::ForeignBuffer);
        }
        if let Operation::Send { to: Some(to), .. } = &request.operation {
            let world = self.network.0.world.borrow();
            let node = usize::try_from(to.handle).ok().and_then(|node| world.nodes.get(node));
            if node.is_none_or(|node| node.nic.is_none()) {
                return Err(PostError::UnknownDestination);
            }
        }
        if held >= self.config.send_depth { Err(PostError::QueueFull(self.config.send_depth)) } else { Ok(()) }
    }

    /// Lines of a request's element.
    fn lines(&self, operation: &Operation<'_>) -> usize {
        let (from, pieces) = match operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } => match source {
                Source::Empty => (nic::Source::Header, 1),
                Source::Inline(_) => (nic::Source::Inline, 1),
                Source::Gather(pieces) => (nic::Source::Memory, pieces.len()),
            },
            Operation::Read { target, .. } => (nic::Source::Memory, target.len()),
            Operation::WriteRange { .. }
            | Operation::ReadRange { .. }
            | Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. } => (nic::Source::Memory, 1),
        };
        let len = self.layout.request_len(operation.verb(), self.config.transport, from, operation.len());
        pcie::lines(len + nic::POINTER * pieces.saturating_sub(1))
    }

    fn spend_ns(&self, ns: u64) {
        self.network.0.clock.spend_ns(ns);
    }
}

fn element(request: Request<'_>, lines: usize) -> Wqe {
    let Request { id, operation, signaled, fence, solicited } = request;
    let len = operation.len();
    let mut wqe = Wqe {
        id,
        kind: WorkKind::Send,
        is_signaled: signaled,
        is_fenced: fence,
        is_solicited: solicited,
        immediate: None,
        destination: None,
        rkey: 0,
        address: 0,
        operand: 0,
        swap: 0,
        len,
        inline: Vec::new(),
        sources: Gather::new(),
        targets: Scatter::new(),
        range: None,
        lines,
        is_fetched: false,
        handed_before: 0,
        psn: 0,
        received: 0,
        is_awaited: false,
        is_result_complete: false,
        is_completed: false,
    };
    let take = |wqe: &mut Wqe, source: Source<'_>| match source {
        Source::Empty => {}
        Source::Inline(bytes) => wqe.inline.extend_from_slice(bytes),
        Source::Gather(pieces) => wqe.sources = pieces,
    };
    match operation {
        Operation::Send { source, immediate, to } => {
            take(&mut wqe, source);
            wqe.immediate = immediate;
            wqe.destination = to.map(|to| (Remote { node: to.handle as u32, number: to.number.0, epoch: 0 }, to.qkey));
        }
        Operation::Write { source, remote, immediate } => {
            take(&mut wqe, source);
            (wqe.kind, wqe.immediate) = (WorkKind::Write, immediate);
            (wqe.rkey, wqe.address) = (remote.rkey, remote.address);
        }
        Operation::Read { target, remote } => {
            (wqe.kind, wqe.targets) = (WorkKind::Read, target);
            (wqe.rkey, wqe.address) = (remote.rkey, remote.address);
        }
        Operation::WriteRange { source: range, remote } => {
            (wqe.kind, wqe.range) = (WorkKind::Write, Some(range));
            (wqe.rkey, wqe.address) = (remote.rkey, remote.address);
        }
        Operation::ReadRange { target: range, remote } => {
            (wqe.kind, wqe.range) = (WorkKind::Read, Some(range));
            (wqe.rkey, wqe.address) = (remote.rkey, remote.address);
        }
        Operation::CompareSwap { target, remote, expected, desired } => {
            (wqe.kind, wqe.operand, wqe.swap) = (WorkKind::CompareSwap, expected, desired);
            wqe.targets.push(target);
            (wqe.rkey, wqe.address) = (remote.rkey, remote.address);
        }
        Operation::FetchAdd { target, remote, add } => {
            (wqe.kind, wqe.operand) = (WorkKind::FetchAdd, add);
            wqe.targets.push(target);
            (wqe.rkey, wqe.address) = (remote.rkey, remote.address);
        }
    }
    wqe
}

impl Drop for SimQp {
    fn drop(&mut self) {
        let mut world = self.network.0.world.borrow_mut();
        let nic = &mut world.nics[self.nic() as usize];
        let removed = nic.remove_qp(self.slot);
        // The handles of the completion queues may have been dropped before.
        for (cq, depth) in
            removed.iter().flat_map(|qp| [(qp.send_cq, qp.config.send_depth), (qp.receive_cq, qp.config.receive_depth)])
        {
            let number = self.number;
            let queue = nic.cq(cq);
            queue.ready.retain(|ready| ready.completion.qp != number);
            queue.reserved -= depth;
            nic.leave_cq(cq);
        }
        drop(world);
        // Dropped without the world borrowed: buffers go back to their arenas.
        drop(removed);
    }
}

impl QueuePair for SimQp {
    fn number(&self) -> QpNumber {
        self.number
    }

    fn transport(&self) -> Transport {
        self.config.transport
    }

    fn state(&self) -> QpState {
        self.with(|qp| qp.state)
    }

    fn address(&self) -> QpAddress {
        let world = self.network.0.world.borrow();
        let node = world.nics[self.nic() as usize].node as u32;
        drop(world);
        let mut port = ArrayVec::new();
        port.extend(PORT_MARK);
        port.extend(node.to_le_bytes());
        QpAddress {
            number: self.number,
            transport: self.config.transport,
            first_packet: self.with(|qp| qp.epoch),
            qkey: self.config.qkey,
            mtu: self.domain.handle.attributes.mtu as u32,
            port,
        }
    }

    fn modify(&mut self, next: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        let (nic, slot) = (self.nic(), self.slot);
        let from = self.state();
        if !from.can_become(next) {
            return Err(VerbsError::Transition { from, to: next });
        }
        let now_ns = self.network.0.clock.event_ns();
        let mut world = self.network.0.world.borrow_mut();
        let world: &mut World = &mut world;
        match next {
            QpState::ReadyToReceive if self.config.transport.is_connected() => {
                let Some(remote) = remote else {
                    return Err(VerbsError::Address("a connection needs the address of its peer".to_owned()));
                };
                let node = node_of(remote, self.config.transport)?;
                if world.nodes.get(node as usize).is_none_or(|node| node.nic.is_none()) {
                    return Err(VerbsError::Address("there is no such NIC on this network".to_owned()));
                }
                if remote.mtu == 0 {
                    return Err(VerbsError::Address("its packets hold no data: its mtu is 0".to_owned()));
                }
                let qp = world.nics[nic as usize].qp(slot).expect("a queue pair exists as long as its handle");
                qp.mtu = qp.nic_mtu.min(remote.mtu as usize);
                qp.remote = Some(Remote { node, number: remote.number.0, epoch: remote.first_packet });
                qp.state = next;
            }
            QpState::Error | QpState::Reset => {
                if next == QpState::Reset {
                    // Requests that were pushed but not started end with the rest.
                    let qp = world.nics[nic as usize].qp(slot).expect("a queue pair exists as long as its handle");
                    qp.started = qp.sends.oldest() + qp.sends.len() as u64;
                    (self.lines, self.pushed) = (Cell::new(0), Cell::new(0));
                }
                world.break_qp(nic, slot, Status::Flushed, now_ns);
                if next == QpState::Reset {
                    world.nics[nic as usize].qp(slot).expect("a queue pair exists as long as its handle").reset();
                }
            }
            _ => world.nics[nic as usize].qp(slot).expect("a queue pair exists as long as its handle").state = next,
        }
        Ok(())
    }

    fn post_receive(&mut self, id: u64, buffers: Scatter) -> Result<(), RefusedReceive> {
        let (state, held) = self.with(|qp| (qp.state, qp.receives_held));
        let domain = &self.domain;
        let error = match check_receive(&buffers, &self.config, state) {
            Err(error) => Some(error),
            Ok(()) if !buffers.iter().all(|buffer| domain.knows(buffer.extent(), |arena| buffer.is_from(arena))) => {
                Some(PostError::ForeignBuffer)
            }
            Ok(()) if held >= self.config.receive_depth => Some(PostError::QueueFull(self.config.receive_depth)),
            Ok(()) => None,
        };
        if let Some(error) = error {
            return Err(RefusedReceive { error, buffers });
        }
        self.spend_ns(self.core.receive_ns);
        self.with(|qp| {
            qp.receives_held += 1;
            qp.receives.push_back(Receive { id, buffers });
        });
        if state == QpState::Error {
            let now_ns = self.network.0.clock.event_ns();
            self.network.0.world.borrow_mut().flush_receives(self.nic(), self.slot, now_ns);
        }
        Ok(())
    }

    fn push(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        if let Err(error) = self.check(&request) {
            return Err(RefusedRequest::new(error, request.operation));
        }
        let lines = self.lines(&request.operation);
        self.lines.set(self.lines.get() + lines as u64);
        self.pushed.set(self.pushed.get() + 1);
        self.spend_ns(self.core.post_ns);
        let wqe = element(request, lines);
        self.with(|qp| {
            qp.held += 1;
            qp.sends.push(wqe);
        });
        Ok(())
    }

    /// Writes a single request to the NIC line by line; several are fetched by the NIC (atc16 4: WQE-by-MMIO and
    /// Doorbell).
    fn doorbell(&mut self) {
        let (pushed, lines) = (self.pushed.take(), self.lines.take());
        if pushed == 0 {
            return;
        }
        let is_written = pushed == 1 && self.core.writes_elements;
        self.spend_ns(if is_written { lines * self.core.mmio_line_ns } else { self.core.doorbell_ns });
        let clock = &self.network.0.clock;
        let (now_ns, event_ns) = (clock.core_ns(), clock.event_ns());
        let mut world = self.network.0.world.borrow_mut();
        let (nic, slot) = (self.nic(), self.slot);
        let waits_ns = world.nic_doorbell(nic, slot, now_ns * PS, event_ns * PS);
        if self.with_state(&mut world) == QpState::Error {
            world.flush_sends(nic, slot, Status::Flushed, event_ns);
        }
        drop(world);
        self.spend_ns(waits_ns);
    }
}

impl SimQp {
    fn with_state(&self, world: &mut World) -> QpState {
        world.nics[self.nic() as usize].qp(self.slot).expect("a queue pair exists as long as its handle").state
    }
}
