//! The requester's side of a NIC: sending its host's requests.

use sinew_fabric::verbs::{QpState, Status, Transport};

use super::super::World;
use crate::lanes::PS;
use crate::nic::queue_pair::{Remote, WorkKind};
use crate::nic::units::{Cost, Side, Work, ps};
use crate::nic::wire::{HEADER, Header, Opcode, wire_len};
use crate::nic::{CQE, Nic, NicJob};
use crate::packets::Packet;
use crate::pcie::LINE;

/// Time without any reply after which a request is retransmitted: 4.096 us times 2 to the 14th, as in drivers.
const TIMEOUT_NS: u64 = 67_108_864;
/// Retransmissions after which the request fails.
const RETRIES_MAX: u8 = 7;
/// Time for which a queue pair rests after its peer was not ready to receive.
const RNR_TIMER_NS: u64 = 100_000;
/// Bytes of packets that may be waiting for the link in the NIC. A unit waits while there are more.
const EGRESS_BYTES: f64 = 8192.0;

impl Nic {
    /// Time that the packets which may be waiting for the link take there.
    pub(super) fn egress_ps(&self) -> u64 {
        ps(EGRESS_BYTES * 8.0 / self.profile.link.rate_gbps)
    }

    /// Fetches the requester's state of a queue pair if it is not cached; returns how long the unit waits for it.
    fn remember_requester(&mut self, slot: u32, now_ps: u64) -> u64 {
        if self.requester_states.touch(u64::from(slot)) {
            return 0;
        }
        self.stats.requester_misses += 1;
        self.bus.read(now_ps, &mut self.stats);
        self.bus.answer(now_ps, 256, &mut self.stats);
        self.profile.pcie.read_latency_ns * self.profile.caches.state_reads as u64 * PS
    }
}

impl World {
    /// Rings the doorbell for the requests that were pushed to a queue pair. Returns how long the core has to wait
    /// until the bus has taken what it wrote.
    ///
    /// The core has reached `now_ps` in a turn that began at `turn_ps`. Its writes take their place on the bus when
    /// that time comes, since other actors' turns may be earlier.
    pub fn nic_doorbell(&mut self, nic: u32, slot: u32, now_ps: u64, turn_ps: u64) -> u64 {
        let Nic { qps, elements_handed_in, profile, .. } = &mut self.nics[nic as usize];
        let writes_elements = profile.core.writes_elements;
        let Some(qp) = qps[slot as usize].as_deref_mut() else { return 0 };
        let (first, upto) = (qp.started, qp.sends.oldest() + qp.sends.len() as u64);
        let (epoch, count) = (qp.epoch, (upto - first) as usize);
        qp.started = upto;
        if count == 0 {
            return 0;
        }
        let is_written = count == 1 && writes_elements;
        let mut lines = 0;
        for number in first..upto {
            let wqe = qp.sends.get_mut(number).expect("the request was pushed");
            (wqe.is_fetched, wqe.handed_before) = (!is_written, *elements_handed_in);
            *elements_handed_in += 1;
            lines += wqe.lines;
        }
        qp.fetches += u32::from(!is_written);
        let bus = &mut self.nics[nic as usize].bus;
        let waits_ps = bus.write_posted(turn_ps, now_ps, if is_written { lines } else { 0 });
        self.schedule_job(nic, now_ps + waits_ps, NicJob::Written { slot, epoch, upto, count, lines });
        waits_ps / PS
    }

    /// Passes a core's write over the bus: one element itself, or a doorbell.
    pub(super) fn cross_bus(
        &mut self,
        nic: u32,
        (slot, epoch, upto): (u32, u32, u64),
        count: usize,
        lines: usize,
        now_ps: u64,
    ) {
        let Nic { bus, stats, profile, .. } = &mut self.nics[nic as usize];
        if count == 1 && profile.core.writes_elements {
            let there_ps = bus.write_down(now_ps, lines, stats);
            return self.schedule_job(nic, there_ps, NicJob::Arrived { slot, epoch, upto, was_fetched: false });
        }
        let there_ps = bus.write_down(now_ps, 0, stats);
        self.schedule_job(nic, there_ps, NicJob::Doorbell { slot, epoch, upto, count, lines });
    }

    pub(super) fn fetch_elements(
        &mut self,
        nic: u32,
        (slot, epoch, upto): (u32, u32, u64),
        count: usize,
        lines: usize,
        now_ps: u64,
    ) {
        let Nic { bus, stats, profile, .. } = &mut self.nics[nic as usize];
        let reads = count.div_ceil(profile.units.fetch_max.max(1));
        let at_ps = (0..reads).map(|_| bus.read(now_ps, stats)).next_back().expect("there is at least one read");
        self.schedule_job(nic, at_ps, NicJob::Fetch { slot, epoch, upto, lines });
    }

    pub(super) fn elements_arrive(
        &mut self,
        nic: u32,
        slot: u32,
        epoch: u32,
        upto: u64,
        was_fetched: bool,
        now_ps: u64,
    ) {
        let Some(qp) = self.nics[nic as usize].qp_of(slot, epoch) else { return };
        qp.fetches -= u32::from(was_fetched);
        if was_fetched {
            qp.arrived = qp.arrived.max(upto);
        } else {
            qp.mmio_arrived = upto;
        }
        // An element that a core wrote itself may arrive before ones that it rang for earlier.
        if qp.fetches == 0 {
            qp.arrived = qp.arrived.max(qp.mmio_arrived);
        }
        self.start_requester(nic, slot, now_ps);
    }

    /// Queues work for a queue pair at its unit, if the unit has none for it and the queue pair can send.
    pub(super) fn start_requester(&mut self, nic: u32, slot: u32, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let reads_max = n.profile.units.reads_max;
        let Some(qp) = n.qp(slot) else { return };
        if qp.is_queued || !qp.can_send(reads_max) {
            return;
        }
        qp.is_queued = true;
        let epoch = qp.epoch;
        // The rest of a message precedes other messages: NICs do not share a link fairly (apnet19 4.3).
        let goes_on = qp.offset > 0;
        let unit = n.unit_of(Side::Requester, slot);
        let queue = &mut n.requesters[unit as usize].queue;
        let work = Work::Send { slot, epoch };
        if goes_on {
            queue.push_front(work)
        } else {
            queue.push_back(work)
        }
        self.begin_work(nic, Side::Requester, unit, now_ps);
    }

    /// The cost of the next packet of a queue pair's requests.
    pub(super) fn cost_of_sending(&mut self, nic: u32, slot: u32, epoch: u32, start_ps: u64) -> Cost {
        let n = &mut self.nics[nic as usize];
        let (units, egress_ps) = (n.profile.units, n.egress_ps());
        let (scale, elements_handed_in, wqes) = (n.requester_scale, n.elements_handed_in, n.profile.caches.wqes as u64);
        let Some(qp) = n.qp_of(slot, epoch) else { return Cost::Nothing };
        if !qp.can_send(units.reads_max) {
            qp.is_queued = false;
            return Cost::Nothing;
        }
        let (offset, mtu, remote, is_reliable) = (qp.offset, qp.mtu, qp.remote, qp.config.transport == Transport::Rc);
        let wqe = qp.sends.get_mut(qp.next).expect("the next request can be sent");
        let Some(to) = wqe.destination.map(|(to, _)| to).or(remote) else { return Cost::Nothing };
        let is_last = wqe.kind.has_result() || wqe.len - offset <= mtu;
        let mut ns = if offset == 0 { units.request_ns } else { units.packet_ns * scale };
        if offset == 0 && wqe.is_fetched {
            ns += units.fetched_line_ns * wqe.lines as f64;
        }
        if wqe.is_gathered() {
            ns += units.dma_read_ns * scale;
        }
        if is_last && wqe.is_signaled && !is_reliable {
            ns += units.dma_write_ns * scale;
        }
        // Newer elements have evicted it.
        let is_missed = offset == 0 && elements_handed_in - wqe.handed_before > wqes;
        if is_missed {
            ns += units.fetched_line_ns * wqe.lines as f64;
        }
        let free_ps = self.link_free_ps(nic, to.node);
        if free_ps > start_ps + egress_ps {
            return Cost::Waits(free_ps - egress_ps);
        }
        let n = &mut self.nics[nic as usize];
        if is_missed {
            n.stats.wqe_misses += 1;
        }
        n.qp(slot).expect("the queue pair is still there").wqe_missed = is_missed;
        Cost::Takes(ps(ns) + n.remember_requester(slot, start_ps))
    }

    /// Sends a packet that the unit has finished, or fetches its payload first.
    pub(super) fn send_packet(&mut self, nic: u32, slot: u32, epoch: u32, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let reads_max = n.profile.units.reads_max;
        let Some(qp) = n.qp_of(slot, epoch) else { return };
        qp.is_queued = false;
        if !qp.can_send(reads_max) {
            return;
        }
        let (number, offset, is_missed) = (qp.next, qp.offset, qp.wqe_missed);
        let (transport, mtu) = (qp.config.transport, qp.mtu);
        let wqe = qp.sends.get_mut(number).expect("the next request can be sent");
        let chunk = if wqe.kind.has_result() { 0 } else { (wqe.len - offset).min(mtu) };
        let is_last = wqe.kind.has_result() || offset + chunk >= wqe.len;
        let is_gathered = chunk > 0 && wqe.is_gathered();
        let lines = wqe.lines;
        if wqe.kind.has_result() && !std::mem::replace(&mut wqe.is_awaited, true) {
            qp.reads_in_flight += 1;
        }
        if number >= qp.numbered {
            let wqe = qp.sends.get_mut(number).expect("the next request can be sent");
            wqe.psn = qp.psn;
            qp.psn = qp.psn.wrapping_add(wqe.packets(mtu));
            qp.numbered = number + 1;
        } else if offset == 0 {
            n.stats.retransmissions += 1;
        }
        let Some(qp) = n.qp(slot) else { return };
        (qp.next, qp.offset) = if is_last { (number + 1, 0) } else { (number, offset + chunk) };
        let is_timed = std::mem::replace(&mut qp.is_timed, transport == Transport::Rc);
        // Every packet waits behind payloads that are being fetched.
        if is_gathered || is_missed || qp.payload_fetches > 0 {
            qp.payload_fetches += 1;
            let reads = is_gathered || is_missed;
            let write_latency_ps = n.profile.pcie.write_latency_ns * PS;
            let at_ps = if reads { n.bus.read(now_ps, &mut n.stats) } else { now_ps + write_latency_ps };
            let len = if is_missed { chunk + lines * LINE } else { chunk };
            // A packet that waits for the bus is not overtaken by one that does not.
            let Some(qp) = n.qp(slot) else { return };
            qp.read_issued_ps = qp.read_issued_ps.max(at_ps);
            let at_ps = qp.read_issued_ps;
            self.schedule_job(
                nic,
                at_ps,
                NicJob::Payload { slot, epoch, number, offset, len: if reads { len } else { 0 } },
            );
        } else {
            let (packet, len) = self.request_packet(nic, slot, number, offset);
            self.send_request(nic, (slot, epoch, number), packet, len, is_last, now_ps);
        }
        if transport == Transport::Rc && !is_timed {
            self.schedule_job(nic, now_ps + TIMEOUT_NS * PS, NicJob::TimerExpired { slot, epoch });
        }
        self.start_requester(nic, slot, now_ps);
    }

    /// Makes a packet of a request; returns it with its bytes on the link.
    fn request_packet(&mut self, nic: u32, slot: u32, number: u64, offset: usize) -> (Box<Packet>, usize) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let n = &mut self.nics[nic as usize];
        let framing = n.profile.link.framing;
        let qp = n.qp(slot).expect("the queue pair has a request");
        let (from, remote, qkey, mtu) = (qp.number.0, qp.remote, qp.config.qkey, qp.mtu);
        let is_datagram = !qp.config.transport.is_connected();
        let wqe = qp.sends.get_mut(number).expect("the request is not over");
        let chunk = if wqe.kind.has_result() { 0 } else { (wqe.len - offset).min(mtu) };
        let (to, key) = match wqe.destination {
            Some((to, qkey)) => (to, qkey),
            None => (remote.expect("the queue pair is connected"), wqe.rkey),
        };
        let is_last = wqe.kind.has_result() || offset + chunk >= wqe.len;
        let header = Header {
            opcode: match wqe.kind {
                WorkKind::Send => Opcode::Send,
                WorkKind::Write => Opcode::Write,
                WorkKind::Read => Opcode::Read,
                WorkKind::CompareSwap => Opcode::CompareSwap,
                WorkKind::FetchAdd => Opcode::FetchAdd,
            },
            is_first: offset == 0,
            is_last,
            is_solicited: wqe.is_solicited,
            immediate: wqe.immediate.filter(|_| is_last),
            to: to.number,
            epoch: to.epoch,
            from,
            psn: wqe.psn.wrapping_add((offset / mtu) as u32),
            key,
            address: wqe.address.wrapping_add(offset as u64),
            operand: match wqe.kind {
                WorkKind::Read => wqe.len as u64,
                WorkKind::Send => u64::from(qkey),
                WorkKind::Write => offset as u64,
                _ => wqe.operand,
            },
            swap: wqe.swap,
        };
        if !wqe.kind.has_result() {
            wqe.copy_source(offset, chunk, &mut scratch);
        }
        n.stats.requests += u64::from(header.is_first);
        let len = wire_len(framing, &header, chunk, is_datagram);
        let packet = self.frame(nic, to.node, &header.to_bytes(), &scratch);
        self.scratch = scratch;
        (packet, len)
    }

    /// Sends a packet of a request. Over UC and UD, the last packet ends the request.
    fn send_request(
        &mut self,
        nic: u32,
        (slot, epoch, number): (u32, u32, u64),
        packet: Box<Packet>,
        len: usize,
        is_last: bool,
        now_ps: u64,
    ) {
        let n = &mut self.nics[nic as usize];
        let ready_ps = now_ps + n.profile.units.pipeline_ns * PS;
        self.transmit(nic, packet, len, ready_ps, now_ps / PS);
        let n = &mut self.nics[nic as usize];
        let Some(qp) = n.qp_of(slot, epoch) else { return };
        if is_last && qp.config.transport != Transport::Rc {
            self.complete_request(nic, slot, epoch, number, now_ps);
        }
    }

    /// Completes a request whose work is done; if it is signaled, its completion is written first.
    fn complete_request(&mut self, nic: u32, slot: u32, epoch: u32, number: u64, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let Some(qp) = n.qp_of(slot, epoch) else { return };
        let Some(wqe) = qp.sends.get_mut(number) else { return };
        if wqe.is_signaled {
            let at_ps = n.bus.write(now_ps, CQE, &mut n.stats);
            self.schedule_job(nic, at_ps, NicJob::Completed { slot, epoch, number });
        } else {
            self.end_request(nic, slot, epoch, number, now_ps / PS);
        }
    }

    /// Answers a DMA read of a payload, now that the read has reached memory.
    pub(super) fn read_payload(
        &mut self,
        nic: u32,
        (slot, epoch, number): (u32, u32, u64),
        offset: usize,
        len: usize,
        now_ps: u64,
    ) {
        let n = &mut self.nics[nic as usize];
        let rest_ps = n.profile.pcie.read_latency_ns.saturating_sub(n.profile.pcie.write_latency_ns) * PS;
        let at_ps = if len > 0 { n.bus.answer(now_ps, len, &mut n.stats) } else { now_ps + rest_ps };
        let Some(qp) = n.qp_of(slot, epoch) else { return };
        let mtu = qp.mtu;
        let Some(wqe) = qp.sends.get_mut(number).filter(|wqe| !wqe.is_completed) else {
            // It failed, or ended because an earlier copy of it arrived.
            qp.payload_fetches -= 1;
            return;
        };
        let is_last = wqe.kind.has_result() || wqe.len.saturating_sub(offset) <= mtu;
        // A short payload does not overtake a long one.
        let at_ps = at_ps.max(qp.sendable_ps);
        qp.sendable_ps = at_ps;
        let (packet, len) = self.request_packet(nic, slot, number, offset);
        self.schedule_job(nic, at_ps, NicJob::Sent { slot, epoch, number, packet, len, is_last });
    }

    pub(super) fn send_with_payload(
        &mut self,
        nic: u32,
        (slot, epoch, number): (u32, u32, u64),
        packet: Box<Packet>,
        len: usize,
        is_last: bool,
        now_ps: u64,
    ) {
        if let Some(qp) = self.nics[nic as usize].qp_of(slot, epoch) {
            qp.payload_fetches -= 1;
            if qp.state == QpState::ReadyToSend {
                return self.send_request(nic, (slot, epoch, number), packet, len, is_last, now_ps);
            }
        }
        self.end_frame(packet);
    }

    /// The cost of a reply for the unit.
    pub(super) fn cost_of_reply(&mut self, nic: u32, slot: u32, header: &Header, start_ps: u64) -> Cost {
        let n = &mut self.nics[nic as usize];
        let (units, scale) = (n.profile.units, n.requester_scale);
        let has_result = matches!(header.opcode, Opcode::ReadAnswer | Opcode::AtomicAnswer);
        let ns = (units.packet_ns + if has_result { units.dma_write_ns } else { 0.0 }) * scale;
        Cost::Takes(ps(ns) + n.remember_requester(slot, start_ps))
    }

    /// Handles a reply.
    pub(super) fn handle_reply(&mut self, nic: u32, slot: u32, header: &Header, packet: Box<Packet>, now_ps: u64) {
        let n = &mut self.nics[nic as usize];
        let from = Remote { node: packet.from, number: header.from, epoch: 0 };
        // Only RC has replies, and this one may be for an earlier queue pair in the same place.
        let is_from_peer = n.qp(slot).is_some_and(|qp| {
            qp.config.transport == Transport::Rc
                && qp.state == QpState::ReadyToSend
                && (qp.number.0, qp.epoch) == (header.to, header.epoch)
                && qp.accepts(from)
        });
        if !is_from_peer {
            n.stats.dropped += 1;
            return self.give_back(packet);
        }
        match header.opcode {
            Opcode::ReadAnswer | Opcode::AtomicAnswer => {
                return self.handle_result(nic, slot, header, packet, now_ps);
            }
            Opcode::Ack => self.acknowledge(nic, slot, header.psn, now_ps),
            Opcode::NakSequence => {
                self.acknowledge(nic, slot, header.psn.wrapping_sub(1), now_ps);
                self.go_back(nic, slot, now_ps);
            }
            Opcode::NakNotReady => self.handle_rnr_nak(nic, slot, header.psn, now_ps),
            Opcode::NakAccess | Opcode::NakRequest => {
                self.acknowledge(nic, slot, header.psn.wrapping_sub(1), now_ps);
                let is_access = header.opcode == Opcode::NakAccess;
                let status = if is_access { Status::RemoteAccess } else { Status::RemoteInvalidRequest };
                if let Some(number) = self.number_of(nic, slot, header.psn) {
                    self.fail(nic, slot, number, status, now_ps / PS);
                }
            }
            _ => {}
        }
        self.give_back(packet);
        self.start_requester(nic, slot, now_ps);
    }

    /// The request to which a packet's number belongs.
    fn number_of(&mut self, nic: u32, slot: u32, psn: u32) -> Option<u64> {
        let qp = self.nics[nic as usize].qp(slot)?;
        let (oldest, mtu) = (qp.sends.oldest(), qp.mtu);
        // If each request has one packet, the distance from the oldest tells which it is.
        let numbered = qp.numbered;
        let first = qp.sends.get_mut(oldest)?.psn;
        let guess = oldest + u64::from(psn.wrapping_sub(first));
        let mut contains_psn =
            |number: u64| qp.sends.get_mut(number).is_some_and(|wqe| psn.wrapping_sub(wqe.psn) < wqe.packets(mtu));
        if guess < numbered && contains_psn(guess) {
            return Some(guess);
        }
        (oldest..numbered).find(|number| contains_psn(*number))
    }

    /// Notes that all requests up to a packet have arrived.
    fn acknowledge(&mut self, nic: u32, slot: u32, psn: u32, now_ps: u64) {
        loop {
            let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
            let number = qp.acked.max(qp.sends.oldest());
            if number >= qp.numbered {
                return;
            }
            let (epoch, mtu) = (qp.epoch, qp.mtu);
            let Some(wqe) = qp.sends.get_mut(number) else { return };
            let last = wqe.psn.wrapping_add(wqe.packets(mtu) - 1);
            if (last.wrapping_sub(psn) as i32) > 0 {
                return;
            }
            let has_result = wqe.kind.has_result();
            qp.acked = number + 1;
            (qp.has_progress, qp.tries, qp.rnr_tries) = (true, 0, 0);
            if !has_result {
                self.complete_request(nic, slot, epoch, number, now_ps);
            }
        }
    }

    /// Handles a part of a READ's result, or an atomic's result.
    fn handle_result(&mut self, nic: u32, slot: u32, header: &Header, packet: Box<Packet>, now_ps: u64) {
        self.acknowledge(nic, slot, header.psn.wrapping_sub(1), now_ps);
        let found = self.number_of(nic, slot, header.psn);
        let n = &mut self.nics[nic as usize];
        let len = packet.bytes().len() - HEADER;
        let offset = if header.opcode == Opcode::ReadAnswer { header.operand as usize } else { 0 };
        let Some(qp) = n.qp(slot) else { return self.give_back(packet) };
        let epoch = qp.epoch;
        let wqe = found.and_then(|number| qp.sends.get_mut(number)).filter(|wqe| {
            let fits = if header.opcode == Opcode::ReadAnswer {
                wqe.kind == WorkKind::Read && offset == wqe.received && offset + len <= wqe.len
            } else {
                matches!(wqe.kind, WorkKind::CompareSwap | WorkKind::FetchAdd) && wqe.received == 0
            };
            fits && !wqe.is_completed && !wqe.is_result_complete
        });
        let (Some(number), Some(wqe)) = (found, wqe) else {
            n.stats.dropped += 1;
            return self.give_back(packet);
        };
        let is_atomic = header.opcode == Opcode::AtomicAnswer;
        wqe.received += if is_atomic { 8 } else { len };
        let is_last = wqe.received >= wqe.len;
        wqe.is_result_complete = is_last;
        let is_signaled = wqe.is_signaled;
        if is_last && std::mem::take(&mut wqe.is_awaited) {
            qp.reads_in_flight -= 1;
        }
        (qp.has_progress, qp.tries, qp.rnr_tries) = (true, 0, 0);
        let mut at_ps = n.bus.write(now_ps, if is_atomic { 8 } else { len }, &mut n.stats);
        if is_last && is_signaled {
            at_ps = at_ps.max(n.bus.write(now_ps, CQE, &mut n.stats));
        }
        // A short part does not overtake a long one.
        let Some(qp) = n.qp(slot) else { return self.give_back(packet) };
        qp.result_written_ps = qp.result_written_ps.max(at_ps);
        let at_ps = qp.result_written_ps;
        self.schedule_job(nic, at_ps, NicJob::Result { slot, epoch, number, offset, is_last, packet });
        if is_last {
            self.start_requester(nic, slot, now_ps);
        }
    }

    /// Puts a result in memory.
    pub(super) fn write_result(
        &mut self,
        nic: u32,
        (slot, epoch, number): (u32, u32, u64),
        offset: usize,
        is_last: bool,
        packet: Box<Packet>,
        now_ns: u64,
    ) {
        let header = Header::read(packet.bytes()).expect("the header was read before");
        if let Some(wqe) = self.nics[nic as usize].qp_of(slot, epoch).and_then(|qp| qp.sends.get_mut(number)) {
            if header.opcode == Opcode::AtomicAnswer {
                wqe.targets[0][..8].copy_from_slice(&header.address.to_ne_bytes());
            } else {
                wqe.put_result(offset, &packet.bytes()[HEADER..]);
            }
            if is_last {
                self.end_request(nic, slot, epoch, number, now_ns);
            }
        }
        self.give_back(packet);
    }

    /// Handles a peer's notice that it has no receive for a packet (RNR NAK).
    fn handle_rnr_nak(&mut self, nic: u32, slot: u32, psn: u32, now_ps: u64) {
        self.acknowledge(nic, slot, psn.wrapping_sub(1), now_ps);
        let number = self.number_of(nic, slot, psn);
        let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
        let (retries, epoch) = (qp.config.rnr_retries, qp.epoch);
        qp.has_progress = true;
        if qp.in_rnr_backoff {
            // An earlier packet brought the same notice.
            return;
        }
        if retries < 7 && qp.rnr_tries >= retries {
            if let Some(number) = number {
                self.fail(nic, slot, number, Status::RnrRetryExceeded, now_ps / PS);
            }
            return;
        }
        qp.rnr_tries = (qp.rnr_tries + 1).min(7);
        qp.in_rnr_backoff = true;
        self.schedule_job(nic, now_ps + RNR_TIMER_NS * PS, NicJob::RnrExpired { slot, epoch });
        self.go_back(nic, slot, now_ps);
    }

    pub(super) fn on_rnr_timeout(&mut self, nic: u32, slot: u32, epoch: u32, now_ps: u64) {
        if let Some(qp) = self.nics[nic as usize].qp_of(slot, epoch) {
            qp.in_rnr_backoff = false;
            self.start_requester(nic, slot, now_ps);
        }
    }

    /// Goes back to the oldest request that has not arrived, or that awaits a result.
    fn go_back(&mut self, nic: u32, slot: u32, now_ps: u64) {
        let Some(qp) = self.nics[nic as usize].qp(slot) else { return };
        let oldest = qp.acked.max(qp.sends.oldest()).min(qp.next);
        // READs and atomics that arrived are requested again: their answers may have been lost.
        let mut from = oldest;
        for number in qp.sends.oldest()..oldest {
            if qp
                .sends
                .get_mut(number)
                .is_some_and(|wqe| wqe.kind.has_result() && !wqe.is_completed && !wqe.is_result_complete)
            {
                from = number;
                break;
            }
        }
        (qp.next, qp.offset) = (from, 0);
        for number in from..qp.numbered {
            if let Some(wqe) = qp.sends.get_mut(number).filter(|wqe| !wqe.is_result_complete) {
                wqe.received = 0;
                qp.reads_in_flight -= usize::from(std::mem::take(&mut wqe.is_awaited));
            }
        }
        self.start_requester(nic, slot, now_ps);
    }

    /// Handles the expiry of a queue pair's retransmission timer.
    pub(super) fn on_timeout(&mut self, nic: u32, slot: u32, epoch: u32, now_ps: u64) {
        let Some(qp) = self.nics[nic as usize].qp_of(slot, epoch) else { return };
        if qp.state != QpState::ReadyToSend || qp.sends.oldest() >= qp.next && !qp.in_rnr_backoff {
            qp.is_timed = false;
            return;
        }
        let oldest = qp.sends.oldest();
        if !std::mem::take(&mut qp.has_progress) && !qp.in_rnr_backoff {
            qp.tries += 1;
            if qp.tries > RETRIES_MAX {
                qp.is_timed = false;
                return self.fail(nic, slot, oldest, Status::RetryExceeded, now_ps / PS);
            }
            self.go_back(nic, slot, now_ps);
        }
        self.schedule_job(nic, now_ps + TIMEOUT_NS * PS, NicJob::TimerExpired { slot, epoch });
    }
}
