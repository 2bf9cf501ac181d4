//! Dispatch of a NIC's jobs, and of its units' work.

use super::super::World;
use crate::lanes::PS;
use crate::nic::units::{Cost, Side, Work};
use crate::nic::wire::Header;
use crate::nic::{Nic, NicJob};
use crate::packets::Packet;
use crate::pcie::LINE;

impl World {
    /// Runs a job that is due at a NIC.
    pub fn run_job(&mut self, nic: u32, job: u32, now_ns: u64) {
        let now_ps = now_ns * PS;
        match self.nics[nic as usize].take_job(job) {
            NicJob::Written { slot, epoch, upto, count, lines } => {
                self.cross_bus(nic, (slot, epoch, upto), count, lines, now_ps);
            }
            NicJob::Doorbell { slot, epoch, upto, count, lines } => {
                self.fetch_elements(nic, (slot, epoch, upto), count, lines, now_ps);
            }
            NicJob::Fetch { slot, epoch, upto, lines } => {
                let Nic { bus, stats, .. } = &mut self.nics[nic as usize];
                let at_ps = bus.answer(now_ps, lines * LINE, stats);
                self.schedule_job(nic, at_ps, NicJob::Arrived { slot, epoch, upto, was_fetched: true });
            }
            NicJob::Arrived { slot, epoch, upto, was_fetched } => {
                self.elements_arrive(nic, slot, epoch, upto, was_fetched, now_ps);
            }
            NicJob::Done { side, unit } => self.finish_work(nic, side, unit, now_ps),
            NicJob::Retry { side, unit } => {
                self.nics[nic as usize].units(side)[unit as usize].is_blocked = false;
                self.begin_work(nic, side, unit, now_ps);
            }
            NicJob::Payload { slot, epoch, number, offset, len } => {
                self.read_payload(nic, (slot, epoch, number), offset, len, now_ps);
            }
            NicJob::Sent { slot, epoch, number, packet, len, is_last } => {
                self.send_with_payload(nic, (slot, epoch, number), packet, len, is_last, now_ps);
            }
            NicJob::Answered { slot, epoch, packet, len, is_last } => {
                self.send_answer(nic, (slot, epoch), packet, len, is_last, now_ps);
            }
            NicJob::PayloadWritten { slot, epoch, packet, message, at } => {
                self.payload_visible(nic, (slot, epoch), (message, at), packet, now_ns);
            }
            NicJob::ReplyReady { slot, epoch } => self.send_replies(nic, (slot, epoch), now_ps, now_ps),
            NicJob::TooLong { slot, epoch } => self.break_over_long_message(nic, slot, epoch, now_ns),
            NicJob::Read(answer) => self.read_memory(nic, answer, now_ps),
            NicJob::Atomic { slot, epoch, packet } => self.execute_atomic(nic, slot, epoch, packet, now_ps),
            NicJob::Result { slot, epoch, number, offset, is_last, packet } => {
                self.write_result(nic, (slot, epoch, number), offset, is_last, packet, now_ns);
            }
            NicJob::Completed { slot, epoch, number } => self.end_request(nic, slot, epoch, number, now_ns),
            NicJob::TimerExpired { slot, epoch } => self.on_timeout(nic, slot, epoch, now_ps),
            NicJob::RnrExpired { slot, epoch } => self.on_rnr_timeout(nic, slot, epoch, now_ps),
        }
    }

    /// Queues a packet that has reached a NIC at the unit that handles it.
    pub fn packet_arrives(&mut self, nic: u32, packet: Box<Packet>, now_ns: u64) {
        let n = &mut self.nics[nic as usize];
        let header = Header::read(packet.bytes());
        let slot = header.and_then(|header| n.slot_of(header.to));
        let (Some(header), Some(slot)) = (header, slot) else {
            n.stats.dropped += 1;
            return self.give_back(packet);
        };
        let side = if header.opcode.is_reply() { Side::Requester } else { Side::Responder };
        let unit = n.unit_of(side, slot);
        n.units(side)[unit as usize].queue.push_back(Work::Packet { slot, packet });
        self.begin_work(nic, side, unit, now_ns * PS);
    }

    /// Begins a unit's next work, if the unit is free.
    pub(super) fn begin_work(&mut self, nic: u32, side: Side, unit: u32, now_ps: u64) {
        loop {
            let unit_state = &mut self.nics[nic as usize].units(side)[unit as usize];
            if unit_state.at_work.is_some() || unit_state.is_blocked {
                return;
            }
            let Some(work) = unit_state.queue.pop_front() else { return };
            let start_ps = unit_state.free_ps.max(now_ps);
            let cost = match &work {
                Work::Send { slot, epoch } => self.cost_of_sending(nic, *slot, *epoch, start_ps),
                Work::Packet { slot, packet } => {
                    let header = Header::read(packet.bytes()).expect("the header was read before");
                    match side {
                        Side::Requester => self.cost_of_reply(nic, *slot, &header, start_ps),
                        Side::Responder => self.cost_of_request(nic, *slot, &header, packet, start_ps),
                    }
                }
                Work::Answer(answer) => self.cost_of_answer(nic, answer, start_ps),
            };
            let unit_state = &mut self.nics[nic as usize].units(side)[unit as usize];
            match cost {
                Cost::Takes(takes_ps) => {
                    unit_state.at_work = Some(work);
                    unit_state.free_ps = start_ps + takes_ps;
                    unit_state.busy_ps += takes_ps;
                    let done_ps = unit_state.free_ps;
                    return self.schedule_job(nic, done_ps, NicJob::Done { side, unit });
                }
                Cost::Waits(until_ps) => {
                    unit_state.queue.push_front(work);
                    unit_state.is_blocked = true;
                    return self.schedule_job(nic, until_ps, NicJob::Retry { side, unit });
                }
                Cost::Nothing => {
                    if let Work::Packet { packet, .. } = work {
                        self.give_back(packet);
                    }
                }
            }
        }
    }

    /// Ends the work that a unit is done with.
    fn finish_work(&mut self, nic: u32, side: Side, unit: u32, now_ps: u64) {
        let unit_state = &mut self.nics[nic as usize].units(side)[unit as usize];
        let (work, free_ps) = (unit_state.at_work.take().expect("the unit was at work"), unit_state.free_ps);
        match work {
            Work::Send { slot, epoch } => self.send_packet(nic, slot, epoch, now_ps),
            Work::Packet { slot, packet } => {
                let header = Header::read(packet.bytes()).expect("the header was read before");
                match side {
                    Side::Requester => self.handle_reply(nic, slot, &header, packet, now_ps),
                    Side::Responder => self.handle_request(nic, slot, &header, packet, now_ps),
                }
            }
            Work::Answer(answer) => self.fetch_answer(nic, *answer, now_ps),
        }
        // The next work begins when the unit became free, not at the event's nanosecond, which is rounded up.
        self.begin_work(nic, side, unit, free_ps);
    }
}
