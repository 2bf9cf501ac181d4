//! Completion of requests and receives, successful or not.

use sinew_fabric::verbs::{Completion, Opcode, QpState, Status};

use super::super::World;
use crate::events::Event;
use crate::lanes::ceil_ns;
use crate::nic::queue_pair::{Filling, Receive};
use crate::nic::{NicJob, Ready};

impl World {
    /// Schedules a job of a NIC.
    #[inline(always)]
    pub(super) fn schedule_job(&mut self, nic: u32, at_ps: u64, job: NicJob) {
        let number = self.nics[nic as usize].add_job(job);
        self.events.add(ceil_ns(at_ps), Event::Nic { nic, job: number });
    }

    /// Adds a completion to its queue, and wakes the actor.
    pub(super) fn put_completion(&mut self, nic: u32, cq: u32, ready: Ready, now_ns: u64) {
        // A queue whose handle is gone takes no more.
        if let Some(queue) = &mut self.nics[nic as usize].cqs[cq as usize] {
            queue.ready.push_back(ready);
            let node = queue.node;
            self.wake_node(node, now_ns);
        }
    }

    /// Ends a request, and retires those that are over in order.
    pub(super) fn end_request(&mut self, nic: u32, slot: u32, epoch: u32, number: u64, now_ns: u64) {
        let Some(qp) = self.nics[nic as usize].qp_of(slot, epoch) else { return };
        let Some(wqe) = qp.sends.get_mut(number) else { return };
        wqe.is_completed = true;
        self.retire(nic, slot, now_ns);
    }

    /// Completes requests from the oldest on, up to the first that is not over.
    pub(super) fn retire(&mut self, nic: u32, slot: u32, now_ns: u64) {
        loop {
            let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
            let oldest = qp.sends.oldest();
            if let Some((number, status)) = qp.failing
                && number == oldest
            {
                return self.break_qp(nic, slot, status, now_ns);
            }
            let (number, cq) = (qp.number, qp.send_cq);
            let Some(wqe) = qp.sends.get_mut(oldest).filter(|wqe| wqe.is_completed) else { return };
            let is_written = wqe.is_signaled;
            let completion = wqe.complete(number, Status::Success);
            qp.sends.pop();
            qp.unaccounted += 1;
            if let Some(completion) = completion {
                let sends = std::mem::take(&mut qp.unaccounted);
                self.put_completion(nic, cq, Ready { completion, is_written, sends, receives: 0 }, now_ns);
            }
        }
    }

    /// Fails a request: once those before it are over, it and all behind it get their completions.
    pub(super) fn fail(&mut self, nic: u32, slot: u32, number: u64, status: Status, now_ns: u64) {
        let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
        if qp.failing.is_none_or(|(other, _)| number < other) {
            qp.failing = Some((number, status));
            self.retire(nic, slot, now_ns);
        }
    }

    /// Moves a queue pair to the error state: its oldest request ends with `status`, and all its other requests and its
    /// receives are flushed.
    pub fn break_qp(&mut self, nic: u32, slot: u32, status: Status, now_ns: u64) {
        let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
        qp.state = QpState::Error;
        qp.failing = None;
        self.flush_sends(nic, slot, status, now_ns);
        self.flush_receives(nic, slot, now_ns);
    }

    /// Ends all requests that were started: the oldest with `first`, the others flushed.
    pub fn flush_sends(&mut self, nic: u32, slot: u32, first: Status, now_ns: u64) {
        let mut status = first;
        loop {
            let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
            if qp.sends.oldest() >= qp.started {
                return;
            }
            let (number, cq) = (qp.number, qp.send_cq);
            let Some(mut wqe) = qp.sends.pop() else { return };
            let completion = wqe.complete(number, status).expect("a failure always has a completion");
            let sends = std::mem::take(&mut qp.unaccounted) + 1;
            status = Status::Flushed;
            self.put_completion(nic, cq, Ready { completion, is_written: true, sends, receives: 0 }, now_ns);
        }
    }

    /// Flushes all receives.
    pub fn flush_receives(&mut self, nic: u32, slot: u32, now_ns: u64) {
        loop {
            let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
            let filling = qp.filling.pop_front().map(|Filling { receive, .. }| receive);
            let Some(receive) = filling.or_else(|| qp.receives.pop_front()) else { return };
            self.end_receive(nic, slot, receive, Status::Flushed, now_ns);
        }
    }

    /// Ends a receive with an error.
    pub(super) fn end_receive(&mut self, nic: u32, slot: u32, receive: Receive, status: Status, now_ns: u64) {
        let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
        let (qp_number, cq) = (qp.number, qp.receive_cq);
        let completion = Completion {
            id: receive.id,
            qp: qp_number,
            status,
            opcode: Opcode::Receive,
            len: 0,
            immediate: None,
            from: None,
            buffers: receive.buffers,
            range: None,
        };
        self.put_completion(nic, cq, Ready { completion, is_written: true, sends: 0, receives: 1 }, now_ns);
    }
}
