//! The responder's side of a NIC: serving others' requests.

use sinew_fabric::verbs::{Completion, Destination, Opcode as Completed, QpNumber, QpState, Status, Transport, Verb};

use super::super::World;
use crate::lanes::PS;
use crate::nic::buffers::{scatter, shorten};
use crate::nic::queue_pair::{Filling, Remote, Reply};
use crate::nic::units::{Answer, Cost, Side, Work, ps};
use crate::nic::wire::{HEADER, Header, Opcode, wire_len};
use crate::nic::{CQE, Nic, NicJob, Ready, locked, qp_at};
use crate::packets::Packet;

/// Atomics whose results are kept for retransmitted requests: as many as any NIC can have in flight.
const ATOMICS_KEPT: usize = 1024;

fn verb_of(opcode: Opcode) -> Verb {
    match opcode {
        Opcode::Write => Verb::Write,
        Opcode::Read => Verb::Read,
        Opcode::CompareSwap => Verb::CompareSwap,
        Opcode::FetchAdd => Verb::FetchAdd,
        _ => Verb::Send,
    }
}

impl Nic {
    /// Translates an address; returns the ns that a cache miss costs.
    fn translate(&mut self, address: u64, now_ps: u64) -> f64 {
        if self.translations.touch(address / self.profile.caches.page_bytes) {
            return 0.0;
        }
        self.stats.translation_misses += 1;
        self.bus.read(now_ps, &mut self.stats);
        self.bus.answer(now_ps, 8, &mut self.stats);
        self.profile.units.dma_read_ns
    }

    /// Fetches the responder's state of a queue pair if it is not cached; returns the ns that this costs.
    fn remember_responder(&mut self, slot: u32, now_ps: u64) -> f64 {
        if self.responder_states.touch(u64::from(slot)) {
            return 0.0;
        }
        self.stats.responder_misses += 1;
        self.bus.read(now_ps, &mut self.stats);
        self.bus.answer(now_ps, 256, &mut self.stats);
        self.profile.units.dma_read_ns
    }
}

impl World {
    pub(super) fn cost_of_request(
        &mut self,
        nic: u32,
        slot: u32,
        header: &Header,
        packet: &Packet,
        start_ps: u64,
    ) -> Cost {
        let n = &mut self.nics[nic as usize];
        let units = n.profile.units;
        let payload = packet.bytes().len() - HEADER;
        let completes = header.is_last && (header.opcode == Opcode::Send || header.immediate.is_some());
        let ns = match header.opcode {
            Opcode::Read => units.dma_read_ns,
            Opcode::CompareSwap | Opcode::FetchAdd => units.atomic_ns,
            _ => units.dma_write_ns * f64::from(u8::from(payload > 0) + u8::from(completes)),
        };
        let is_atomic = matches!(header.opcode, Opcode::CompareSwap | Opcode::FetchAdd);
        if is_atomic {
            let locks = n.locks.len() as u64;
            let lock = &mut n.locks[(header.address % locks) as usize];
            if *lock > start_ps {
                return Cost::Waits(*lock);
            }
            *lock = start_ps + units.atomic_hold_ns * PS;
        }
        if header.opcode == Opcode::Read {
            let egress_ps = n.egress_ps();
            let free_ps = self.link_free_ps(nic, packet.from);
            if free_ps > start_ps + egress_ps {
                return Cost::Waits(free_ps - egress_ps);
            }
        }
        let n = &mut self.nics[nic as usize];
        let mut misses_ns = n.remember_responder(slot, start_ps);
        if !matches!(header.opcode, Opcode::Send) {
            misses_ns += n.translate(header.address, start_ps);
        }
        n.stats.requests_received += 1;
        Cost::Takes(ps(units.packet_ns + ns + misses_ns))
    }

    pub(super) fn cost_of_answer(&mut self, nic: u32, answer: &Answer, start_ps: u64) -> Cost {
        let n = &mut self.nics[nic as usize];
        let (units, egress_ps) = (n.profile.units, n.egress_ps());
        let Some(to) = n.qp_of(answer.slot, answer.epoch).and_then(|qp| qp.remote) else { return Cost::Nothing };
        let free_ps = self.link_free_ps(nic, to.node);
        if free_ps > start_ps + egress_ps {
            Cost::Waits(free_ps - egress_ps)
        } else {
            Cost::Takes(ps(units.dma_read_ns))
        }
    }

    /// Handles a packet of a request, once the unit has looked at it.
    pub(super) fn handle_request(&mut self, nic: u32, slot: u32, header: &Header, packet: Box<Packet>, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let from = Remote { node: packet.from, number: header.from, epoch: 0 };
        let Some(qp) = n.qp(slot) else { return self.give_back(packet) };
        let (transport, mtu) = (qp.config.transport, qp.mtu);
        // Another queue pair may have had this place when the packet came.
        let is_current = qp.number.0 == header.to && (transport == Transport::Ud || qp.epoch == header.epoch);
        let is_good = qp.accepts(from)
            && is_current
            && !qp.drops_all
            && transport.allows(verb_of(header.opcode))
            && (transport != Transport::Ud || header.key == qp.config.qkey && header.is_first && header.is_last);
        if !is_good {
            n.stats.dropped += 1;
            return self.give_back(packet);
        }
        if transport == Transport::Rc {
            let distance = header.psn.wrapping_sub(qp.expected) as i32;
            if distance > 0 {
                let expected = qp.expected;
                let is_told = std::mem::replace(&mut qp.has_refused, true);
                n.stats.dropped += 1;
                if !is_told {
                    self.reply(nic, slot, Opcode::NakSequence, expected, now_ps);
                }
                return self.give_back(packet);
            }
            if distance < 0 {
                return self.handle_retransmission(nic, slot, header, packet, now_ps);
            }
        }
        if transport == Transport::Uc {
            // The rest of a message that misses a packet is dropped.
            let goes_on = std::mem::take(&mut qp.continues_message) && header.psn == qp.expected;
            if header.is_first || !goes_on {
                qp.end_message();
            }
            if !header.is_first && !goes_on {
                n.stats.dropped += 1;
                return self.give_back(packet);
            }
        }
        match header.opcode {
            Opcode::Send => self.handle_send(nic, slot, header, packet, now_ps),
            Opcode::Write => self.handle_write(nic, slot, header, packet, now_ps),
            Opcode::Read => {
                let len = header.operand as usize;
                let psns = len.div_ceil(mtu).max(1) as u32;
                if self.check_access(nic, slot, header, len, psns, now_ps) {
                    self.begin_answer(nic, slot, header, now_ps);
                }
                self.give_back(packet);
            }
            _ => {
                if !header.address.is_multiple_of(8) {
                    self.reply(nic, slot, Opcode::NakRequest, header.psn, now_ps);
                } else if self.check_access(nic, slot, header, 8, 1, now_ps) {
                    let n = &mut self.nics[nic as usize];
                    let at_ps = n.bus.read(now_ps, &mut n.stats);
                    let qp = n.qp(slot).expect("the queue pair is still there");
                    qp.replies.push_back(Reply::Awaited);
                    let (epoch, at_ps) = (qp.epoch, qp.order_read(at_ps, true));
                    return self.schedule_job(nic, at_ps, NicJob::Atomic { slot, epoch, packet });
                }
                self.give_back(packet);
            }
        }
    }

    /// Returns whether an access is allowed, and refuses it otherwise. If it is allowed, the packet after it is
    /// expected next.
    fn check_access(&mut self, nic: u32, slot: u32, header: &Header, len: usize, psns: u32, now_ps: u64) -> bool {
        let Nic { regions, qps, .. } = &mut self.nics[nic as usize];
        let Some(qp) = qp_at(qps, slot) else { return false };
        let verb = verb_of(header.opcode);
        let access = || locked(regions).find(qp.domain, verb, header.key, header.address, len).is_some();
        let is_allowed = len == 0 || access();
        if is_allowed {
            qp.expected = header.psn.wrapping_add(psns);
            qp.has_refused = false;
        } else if qp.config.transport == Transport::Rc {
            self.reply(nic, slot, Opcode::NakAccess, header.psn, now_ps);
        }
        is_allowed
    }

    /// Handles a retransmitted request, whose answer was lost or late.
    fn handle_retransmission(&mut self, nic: u32, slot: u32, header: &Header, packet: Box<Packet>, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let qp = n.qp(slot).expect("the queue pair is still there");
        let expected = qp.expected;
        match header.opcode {
            Opcode::Read => self.begin_answer(nic, slot, header, now_ps),
            Opcode::CompareSwap | Opcode::FetchAdd => {
                if let Some((_, word)) = qp.atomics.iter().find(|(psn, _)| *psn == header.psn) {
                    let word = *word;
                    qp.replies.push_back(Reply::Awaited);
                    // Behind the acknowledgements of what came before.
                    let (epoch, at_ps) = (qp.epoch, qp.order_read(now_ps, true));
                    self.answer_atomic(nic, (slot, epoch), Opcode::AtomicAnswer, (header.psn, word), at_ps);
                }
            }
            _ if header.is_last => self.reply(nic, slot, Opcode::Ack, expected.wrapping_sub(1), now_ps),
            _ => {}
        }
        self.give_back(packet);
    }

    /// Handles a packet of a SEND.
    fn handle_send(&mut self, nic: u32, slot: u32, header: &Header, packet: Box<Packet>, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let payload = packet.bytes().len() - HEADER;
        let qp = n.qp(slot).expect("the queue pair is still there");
        let is_reliable = qp.config.transport == Transport::Rc;
        if header.is_first {
            let Some(receive) = qp.receives.pop_front() else {
                return self.refuse_not_ready(nic, slot, header, packet, now_ps);
            };
            qp.fill(receive);
            qp.in_message = true;
        } else if !qp.in_message {
            n.stats.dropped += 1;
            return self.give_back(packet);
        }
        let Some(filling) = qp.filling.back_mut() else { return self.give_back(packet) };
        let room: usize = filling.receive.buffers.iter().map(|buffer| buffer.len()).sum();
        if filling.arrived + payload > room {
            self.give_back(packet);
            return self.refuse_too_long(nic, slot, header, now_ps);
        }
        let (message, at) = (filling.message, filling.arrived);
        filling.arrived += payload;
        qp.expected = header.psn.wrapping_add(1);
        qp.has_refused = false;
        (qp.in_message, qp.continues_message) = (!header.is_last, !header.is_last);
        let epoch = qp.epoch;
        let at_ps = self.write_payload(nic, slot, payload, header.is_last, now_ps);
        self.schedule_job(nic, at_ps, NicJob::PayloadWritten { slot, epoch, packet, message, at });
        if is_reliable && header.is_last {
            self.acknowledge_written(nic, slot, header.psn, at_ps, now_ps);
        }
    }

    /// Handles a message that is longer than its receive.
    fn refuse_too_long(&mut self, nic: u32, slot: u32, header: &Header, now_ps: u64) {
        let qp = self.nics[nic as usize].qp(slot).expect("the queue pair is still there");
        if qp.config.transport != Transport::Rc {
            // No one is notified, and the next message has the buffers.
            qp.end_message();
            self.nics[nic as usize].stats.dropped += 1;
            return;
        }
        // All earlier packets were acknowledged, and will soon be in memory.
        qp.drops_all = true;
        let (epoch, at_ps) = (qp.epoch, qp.order_write(now_ps));
        self.reply(nic, slot, Opcode::NakRequest, header.psn, now_ps);
        self.schedule_job(nic, at_ps, NicJob::TooLong { slot, epoch });
    }

    /// Breaks a queue pair over a message that was longer than its receive.
    pub(super) fn break_over_long_message(&mut self, nic: u32, slot: u32, epoch: u32, now_ns: u64) {
        let Some(qp) = self.nics[nic as usize].qp_of(slot, epoch) else { return };
        if qp.state == QpState::Error {
            return;
        }
        if let Some(Filling { receive, .. }) = qp.filling.pop_back() {
            self.end_receive(nic, slot, receive, Status::LocalLength, now_ns);
        }
        self.break_qp(nic, slot, Status::Flushed, now_ns);
    }

    /// Writes a packet's payload, and its completion if it has one, over the bus; returns when all of it is seen.
    fn write_payload(&mut self, nic: u32, slot: u32, payload: usize, completes: bool, now_ps: u64) -> u64 {
        let n = &mut self.nics[nic as usize];
        let mut at_ps = now_ps;
        if payload > 0 {
            at_ps = n.bus.write(now_ps, payload, &mut n.stats);
        }
        if completes {
            at_ps = at_ps.max(n.bus.write(now_ps, CQE, &mut n.stats));
        }
        n.qp(slot).map_or(at_ps, |qp| qp.order_write(at_ps))
    }

    fn refuse_not_ready(&mut self, nic: u32, slot: u32, header: &Header, packet: Box<Packet>, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        n.stats.not_ready += 1;
        let qp = n.qp(slot).expect("the queue pair is still there");
        qp.in_message = false;
        if qp.config.transport == Transport::Rc {
            qp.has_refused = true;
            self.reply(nic, slot, Opcode::NakNotReady, header.psn, now_ps);
        }
        self.give_back(packet);
    }

    /// Handles a packet of a WRITE.
    fn handle_write(&mut self, nic: u32, slot: u32, header: &Header, packet: Box<Packet>, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let payload = packet.bytes().len() - HEADER;
        let takes_receive = header.is_last && header.immediate.is_some();
        let qp = n.qp(slot).expect("the queue pair is still there");
        if takes_receive && qp.receives.is_empty() {
            return self.refuse_not_ready(nic, slot, header, packet, now_ps);
        }
        if !self.check_access(nic, slot, header, payload, 1, now_ps) {
            return self.give_back(packet);
        }
        let n = &mut self.nics[nic as usize];
        let qp = n.qp(slot).expect("the queue pair is still there");
        let message = qp.messages;
        if takes_receive {
            let receive = qp.receives.pop_front().expect("it was checked above");
            qp.fill(receive);
        }
        qp.continues_message = !header.is_last;
        let (epoch, is_reliable) = (qp.epoch, qp.config.transport == Transport::Rc);
        let at_ps = self.write_payload(nic, slot, payload, takes_receive, now_ps);
        if payload > 0 || takes_receive {
            self.schedule_job(nic, at_ps, NicJob::PayloadWritten { slot, epoch, packet, message, at: 0 });
        } else {
            self.give_back(packet);
        }
        if is_reliable && header.is_last {
            self.acknowledge_written(nic, slot, header.psn, at_ps, now_ps);
        }
    }

    /// Puts a packet's payload in memory, and its completion if it has one in the queue.
    pub(super) fn payload_visible(
        &mut self,
        nic: u32,
        (slot, epoch): (u32, u32),
        (message, at): (u64, usize),
        packet: Box<Packet>,
        now_ns: u64,
    ) {
        let n = &mut self.nics[nic as usize];
        let header = Header::read(packet.bytes()).expect("the header was read before");
        let bytes = &packet.bytes()[HEADER..];
        let mut woken = None;
        let Nic { regions, qps, .. } = n;
        // A queue pair that broke or is gone writes no more.
        if let Some(qp) = qp_at(qps, slot).filter(|qp| qp.epoch == epoch && qp.state != QpState::Error) {
            if header.opcode == Opcode::Write
                && !bytes.is_empty()
                && let Some((region, offset)) =
                    locked(regions).find(qp.domain, Verb::Write, header.key, header.address, bytes.len())
            {
                region.memory.write(offset, bytes).expect("`find` checked the range");
                woken = Some(region.node);
            }
            // If the message was abandoned, another may have its receive.
            let is_filling = qp.filling.front().is_some_and(|filling| filling.message == message);
            if header.opcode == Opcode::Send
                && is_filling
                && let Some(filling) = qp.filling.front_mut()
            {
                scatter(&mut filling.receive.buffers, at, bytes);
            }
            let completes = header.is_last && (header.opcode == Opcode::Send || header.immediate.is_some());
            if completes
                && is_filling
                && let Some(filling) = qp.filling.pop_front()
            {
                let written = header.opcode == Opcode::Write;
                let (cq, qp_number) = (qp.receive_cq, qp.number);
                let is_datagram = qp.config.transport == Transport::Ud;
                let from = is_datagram.then(|| Destination {
                    handle: u64::from(packet.from),
                    number: QpNumber(header.from),
                    qkey: header.operand as u32,
                });
                let len = if written { (header.operand as usize).saturating_add(bytes.len()) } else { filling.arrived };
                let mut buffers = filling.receive.buffers;
                shorten(&mut buffers, if written { 0 } else { filling.arrived });
                let completion = Completion {
                    id: filling.receive.id,
                    qp: qp_number,
                    status: Status::Success,
                    opcode: if written { Completed::ReceiveWrite } else { Completed::Receive },
                    len,
                    immediate: header.immediate,
                    from,
                    buffers,
                    range: None,
                };
                self.put_completion(nic, cq, Ready { completion, is_written: true, sends: 0, receives: 1 }, now_ns);
            }
        }
        if let Some(node) = woken {
            self.wake_node(node, now_ns);
        }
        self.give_back(packet);
    }

    /// Begins the answer to a READ.
    fn begin_answer(&mut self, nic: u32, slot: u32, header: &Header, now_ps: u64) {
        let qp = self.nics[nic as usize].qp(slot).expect("the queue pair is still there");
        qp.replies.push_back(Reply::Awaited);
        let (epoch, psn) = (qp.epoch, header.psn);
        let (rkey, address, len) = (header.key, header.address, header.operand as usize);
        self.fetch_answer(nic, Answer { slot, epoch, psn, rkey, address, len, offset: 0 }, now_ps);
    }

    /// Requests a part of an answer from memory, and queues the next.
    pub(super) fn fetch_answer(&mut self, nic: u32, answer: Answer, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let Some(mtu) = n.qp_of(answer.slot, answer.epoch).map(|qp| qp.mtu) else { return };
        let at_ps = n.bus.read(now_ps, &mut n.stats);
        let next = answer.offset + mtu;
        if next < answer.len {
            // The rest of an answer precedes other requests.
            let unit = n.unit_of(Side::Responder, answer.slot);
            n.responders[unit as usize].queue.push_front(Work::Answer(Box::new(Answer { offset: next, ..answer })));
        }
        let Some(qp) = n.qp_of(answer.slot, answer.epoch) else { return };
        let at_ps = qp.order_read(at_ps, answer.offset == 0);
        self.schedule_job(nic, at_ps, NicJob::Read(answer));
    }

    /// Reads memory for a part of a READ.
    pub(super) fn read_memory(&mut self, nic: u32, answer: Answer, now_ps: u64) {
        let Answer { slot, epoch, psn, rkey, address, len, offset } = answer;
        let mut scratch = std::mem::take(&mut self.scratch);
        let n = &mut self.nics[nic as usize];
        let Nic { regions, qps, .. } = n;
        let qp = qp_at(qps, slot).filter(|qp| qp.epoch == epoch);
        let Some((qp, remote)) = qp.and_then(|qp| Some((&*qp, qp.remote?))) else {
            self.scratch = scratch;
            return;
        };
        let chunk = (len - offset).min(qp.mtu);
        scratch.clear();
        scratch.resize(chunk, 0);
        let found = {
            let regions = locked(regions);
            let place = regions.find(qp.domain, Verb::Read, rkey, address.wrapping_add(offset as u64), chunk);
            place.map(|(region, at)| region.memory.read(at, &mut scratch).expect("`find` checked the range"))
        };
        let from = qp.number.0;
        // If the memory was deregistered in the meantime, the rest is refused.
        let opcode = if found.is_some() || len == 0 { Opcode::ReadAnswer } else { Opcode::NakAccess };
        let is_last = offset + chunk >= len;
        let header =
            Header { operand: offset as u64, is_first: offset == 0, is_last, ..reply_to(remote, from, opcode, psn) };
        if opcode == Opcode::NakAccess {
            scratch.clear();
        }
        let at_ps = n.bus.answer(now_ps, chunk, &mut n.stats);
        let len = wire_len(n.profile.link.framing, &header, scratch.len(), false);
        let packet = self.frame(nic, remote.node, &header.to_bytes(), &scratch);
        self.scratch = scratch;
        self.schedule_job(nic, at_ps, NicJob::Answered { slot, epoch, packet, len, is_last });
    }

    pub(super) fn execute_atomic(&mut self, nic: u32, slot: u32, epoch: u32, packet: Box<Packet>, now_ps: u64) {
        let header = Header::read(packet.bytes()).expect("the header was read before");
        self.give_back(packet);
        let n = &mut self.nics[nic as usize];
        let Nic { regions, qps, .. } = n;
        let Some(qp) = qp_at(qps, slot).filter(|qp| qp.epoch == epoch) else { return };
        let verb = verb_of(header.opcode);
        let done = locked(regions).find(qp.domain, verb, header.key, header.address, 8).map(|(region, offset)| {
            let word = match verb {
                Verb::CompareSwap => region.memory.compare_swap(offset, header.operand, header.swap),
                _ => region.memory.fetch_add(offset, header.operand),
            };
            (word.expect("`find` checked the word"), region.node)
        });
        let Some((word, node)) = done else {
            // The memory was deregistered in the meantime: refuse.
            return self.answer_atomic(nic, (slot, epoch), Opcode::NakAccess, (header.psn, 0), now_ps);
        };
        if qp.atomics.len() >= ATOMICS_KEPT {
            qp.atomics.pop_front();
        }
        qp.atomics.push_back((header.psn, word));
        let at_ps = n.bus.answer(now_ps, 8, &mut n.stats);
        // The write back crosses the bus later, but is counted here, since the bus must be used in order of time.
        n.bus.write(now_ps, 8, &mut n.stats);
        self.wake_node(node, now_ps / PS);
        self.answer_atomic(nic, (slot, epoch), Opcode::AtomicAnswer, (header.psn, word), at_ps);
    }

    fn answer_atomic(
        &mut self,
        nic: u32,
        (slot, epoch): (u32, u32),
        opcode: Opcode,
        (psn, word): (u32, u64),
        at_ps: u64,
    ) {
        let n = &mut self.nics[nic as usize];
        let Some(qp) = n.qp_of(slot, epoch) else { return };
        let Some(remote) = qp.remote else { return };
        let header = Header { address: word, ..reply_to(remote, qp.number.0, opcode, psn) };
        let len = wire_len(n.profile.link.framing, &header, 0, false);
        let packet = self.frame(nic, remote.node, &header.to_bytes(), &[]);
        self.schedule_job(nic, at_ps, NicJob::Answered { slot, epoch, packet, len, is_last: true });
    }

    /// Sends a packet of an answer, and the replies that waited for it.
    pub(super) fn send_answer(
        &mut self,
        nic: u32,
        (slot, epoch): (u32, u32),
        packet: Box<Packet>,
        len: usize,
        is_last: bool,
        now_ps: u64,
    ) {
        let n = &mut self.nics[nic as usize];
        if n.qp_of(slot, epoch).is_none_or(|qp| qp.state == QpState::Error) {
            return self.end_frame(packet);
        }
        // Replies before it can go: what they acknowledge was on the bus before memory was read.
        self.send_replies(nic, (slot, epoch), u64::MAX, now_ps);
        let ready_ps = now_ps + self.nics[nic as usize].profile.units.pipeline_ns * PS;
        self.transmit(nic, packet, len, ready_ps, now_ps / PS);
        if is_last && let Some(qp) = self.nics[nic as usize].qp_of(slot, epoch) {
            qp.replies.pop_front();
            self.send_replies(nic, (slot, epoch), now_ps, now_ps);
        }
    }

    /// Replies to a packet, in order behind earlier replies.
    fn reply(&mut self, nic: u32, slot: u32, opcode: Opcode, psn: u32, now_ps: u64) {
        self.reply_at(nic, slot, opcode, psn, now_ps, now_ps);
    }

    /// Acknowledges a packet whose bytes are in memory at `at_ps`, once they are on the bus: they are in memory by the
    /// time that the peer learns of it.
    fn acknowledge_written(&mut self, nic: u32, slot: u32, psn: u32, at_ps: u64, now_ps: u64) {
        let write_latency_ps = self.nics[nic as usize].profile.pcie.write_latency_ns * PS;
        self.reply_at(nic, slot, Opcode::Ack, psn, at_ps.saturating_sub(write_latency_ps), now_ps);
    }

    fn reply_at(&mut self, nic: u32, slot: u32, opcode: Opcode, psn: u32, earliest_ps: u64, now_ps: u64) {
        let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
        let Some(remote) = qp.remote else { return };
        let header = reply_to(remote, qp.number.0, opcode, psn);
        let epoch = qp.epoch;
        qp.replies.push_back(Reply::Ready { header, earliest_ps });
        if earliest_ps > now_ps {
            self.schedule_job(nic, earliest_ps, NicJob::ReplyReady { slot, epoch });
        } else {
            self.send_replies(nic, (slot, epoch), now_ps, now_ps);
        }
    }

    /// Sends the replies at the front of the queue that may go by `due_ps`, up to the first awaited answer.
    pub(super) fn send_replies(&mut self, nic: u32, (slot, epoch): (u32, u32), due_ps: u64, now_ps: u64) {
        loop {
            let n = &mut self.nics[nic as usize];
            let units = n.profile.units;
            let framing = n.profile.link.framing;
            let Some(qp) = n.qp_of(slot, epoch).filter(|qp| qp.state != QpState::Error) else { return };
            let (Some(Reply::Ready { header, earliest_ps }), Some(remote)) = (qp.replies.front().copied(), qp.remote)
            else {
                return;
            };
            if earliest_ps > due_ps {
                return;
            }
            qp.replies.pop_front();
            let len = wire_len(framing, &header, 0, false);
            let packet = self.frame(nic, remote.node, &header.to_bytes(), &[]);
            self.transmit(nic, packet, len, now_ps + units.pipeline_ns * PS, now_ps / PS);
        }
    }
}

fn reply_to(remote: Remote, from: u32, opcode: Opcode, psn: u32) -> Header {
    Header {
        opcode,
        is_first: true,
        is_last: true,
        is_solicited: false,
        immediate: None,
        to: remote.number,
        epoch: remote.epoch,
        from,
        psn,
        key: 0,
        address: 0,
        operand: 0,
        swap: 0,
    }
}
