//! Dispatch of a NIC's jobs, and of its units' work.

use super::super::World;
use crate::lanes::PS;
use crate::nic::units::{Cost, Side, Work};
use crate::nic::wire::Header;
use crate::nic::{Job, Nic};
use crate::packets::Packet;
use crate::pcie::LINE;

impl World {
    /// Runs a job that is due at a NIC.
    pub fn nic_happens(&mut self, nic: u32, job: u32, now_ns: u64) {
        let now_ps = now_ns * PS;
        match self.nics[nic as usize].take_job(job) {
            Job::Written { slot, epoch, upto, count, lines } => {
                self.cross_bus(nic, (slot, epoch, upto), count, lines, now_ps);
            }
            Job::Doorbell { slot, epoch, upto, count, lines } => {
                self.fetch_elements(nic, (slot, epoch, upto), count, lines, now_ps);
            }
            Job::Fetch { slot, epoch, upto, lines } => {
                let Nic { bus, stats, .. } = &mut self.nics[nic as usize];
                let at_ps = bus.answer(now_ps, lines * LINE, stats);
                self.foresee_job(nic, at_ps, Job::Arrived { slot, epoch, upto, was_fetched: true });
            }
            Job::Arrived { slot, epoch, upto, was_fetched } => {
                self.elements_arrive(nic, slot, epoch, upto, was_fetched, now_ps);
            }
            Job::Done { side, unit } => self.is_done(nic, side, unit, now_ps),
            Job::Again { side, unit } => {
                self.nics[nic as usize].units(side)[unit as usize].is_blocked = false;
                self.begin_work(nic, side, unit, now_ps);
            }
            Job::Payload { slot, epoch, number, offset, len } => {
                self.read_payload(nic, (slot, epoch, number), offset, len, now_ps);
            }
            Job::Sent { slot, epoch, number, packet, len, is_last } => {
                self.payload_is_there(nic, (slot, epoch, number), packet, len, is_last, now_ps);
            }
            Job::Answered { slot, epoch, packet, len, is_last } => {
                self.answer_goes(nic, (slot, epoch), packet, len, is_last, now_ps);
            }
            Job::Visible { slot, epoch, packet, message, at } => {
                self.is_visible(nic, (slot, epoch), (message, at), packet, now_ns);
            }
            Job::Told { slot, epoch } => self.tell(nic, (slot, epoch), now_ps, now_ps),
            Job::TooLong { slot, epoch } => self.was_too_long(nic, slot, epoch, now_ns),
            Job::Read(answer) => self.read_memory(nic, answer, now_ps),
            Job::Atomic { slot, epoch, packet } => self.do_atomic(nic, slot, epoch, packet, now_ps),
            Job::Result { slot, epoch, number, offset, is_last, packet } => {
                self.put_result(nic, (slot, epoch, number), offset, is_last, packet, now_ns);
            }
            Job::Over { slot, epoch, number } => self.request_is_over(nic, slot, epoch, number, now_ns),
            Job::Late { slot, epoch } => self.is_late(nic, slot, epoch, now_ps),
            Job::Rested { slot, epoch } => self.has_rested(nic, slot, epoch, now_ps),
        }
    }

    /// Queues a packet that has reached a NIC at the unit that handles it.
    pub fn nic_hears(&mut self, nic: u32, packet: Box<Packet>, now_ns: u64) {
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
            let place = &mut self.nics[nic as usize].units(side)[unit as usize];
            if place.at_work.is_some() || place.is_blocked {
                return;
            }
            let Some(work) = place.queue.pop_front() else { return };
            let start_ps = place.free_ps.max(now_ps);
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
            let place = &mut self.nics[nic as usize].units(side)[unit as usize];
            match cost {
                Cost::Takes(takes_ps) => {
                    place.at_work = Some(work);
                    place.free_ps = start_ps + takes_ps;
                    place.busy_ps += takes_ps;
                    let done_ps = place.free_ps;
                    return self.foresee_job(nic, done_ps, Job::Done { side, unit });
                }
                Cost::Waits(until_ps) => {
                    place.queue.push_front(work);
                    place.is_blocked = true;
                    return self.foresee_job(nic, until_ps, Job::Again { side, unit });
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
    fn is_done(&mut self, nic: u32, side: Side, unit: u32, now_ps: u64) {
        let place = &mut self.nics[nic as usize].units(side)[unit as usize];
        let (work, free_ps) = (place.at_work.take().expect("the unit was at work"), place.free_ps);
        match work {
            Work::Send { slot, epoch } => self.send_packet(nic, slot, epoch, now_ps),
            Work::Packet { slot, packet } => {
                let header = Header::read(packet.bytes()).expect("the header was read before");
                match side {
                    Side::Requester => self.take_reply(nic, slot, &header, packet, now_ps),
                    Side::Responder => self.take_request(nic, slot, &header, packet, now_ps),
                }
            }
            Work::Answer(answer) => self.fetch_answer(nic, *answer, now_ps),
        }
        // The next work begins when the unit became free, not at the event's nanosecond, which is rounded up.
        self.begin_work(nic, side, unit, free_ps);
    }
}
