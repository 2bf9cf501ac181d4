//! What one thread has of a domain: its queue pairs, found by their work requests' identifiers, and the ways that it knows.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use sinew_fabric::verbs::{Destination, QpAddress, QpConfig, ThreadDomain, Transport, VerbsError};

use crate::address::PortAddress;
use crate::cq::IbCompletionQueue;
use crate::domain::{DomainInner, IbDomain};
use crate::library::system;
use crate::port::common_mtu;
use crate::qp::{IbQueuePair, QpInner};
use crate::ways::{AddressHandle, Target, Ways};

const NUMBER_BITS: u32 = 24;
const SLOT_BITS: u32 = 16;
/// Operations that a queue can hold at most: half the numbers, so that those in flight are told from those long over.
pub(crate) const DEPTH_MAX: usize = 1 << (NUMBER_BITS - 1);
const QPS_MAX: usize = 1 << SLOT_BITS;

/// What a work request says of itself when it completes (`wr_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    /// Which life of its queue pair's slot it belongs to: completions of queue pairs that are gone, or were reset, may come late.
    pub generation: u32,
    /// Whether it is a receive: failed completions say it nowhere else.
    pub receive: bool,
    /// Its queue pair's place in the thread's list.
    pub slot: usize,
    /// The low bits of its number in the queue pair's table.
    pub number: u32,
}

impl WorkId {
    const GENERATION_MASK: u32 = (1 << (64 - NUMBER_BITS - SLOT_BITS - 1)) - 1;
    const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

    #[inline]
    pub fn pack(generation: u32, slot: usize, receive: bool, number: u64) -> u64 {
        let above = u64::from(generation) << (SLOT_BITS + 1) | (slot as u64) << 1 | u64::from(receive);
        above << NUMBER_BITS | (number & Self::NUMBER_MASK)
    }

    #[inline]
    pub fn unpack(bits: u64) -> Self {
        let above = bits >> NUMBER_BITS;
        Self {
            generation: (above >> (SLOT_BITS + 1)) as u32,
            receive: above & 1 == 1,
            slot: (above >> 1) as usize & (QPS_MAX - 1),
            number: (bits & Self::NUMBER_MASK) as u32,
        }
    }

    /// The whole number, of those from `oldest` on.
    #[inline]
    pub fn number_from(self, oldest: u64) -> u64 {
        oldest + (u64::from(self.number).wrapping_sub(oldest) & Self::NUMBER_MASK)
    }
}

#[derive(Debug)]
struct QpSlot {
    generation: u32,
    qp: Weak<QpInner>,
}

/// The queue pairs of a thread.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    slots: Vec<QpSlot>,
    free: Vec<usize>,
}

impl Registry {
    /// A slot for a queue pair that is being made, and its generation.
    pub fn reserve(&mut self) -> Result<(usize, u32), VerbsError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < QPS_MAX => {
                self.slots.push(QpSlot { generation: 0, qp: Weak::new() });
                self.slots.len() - 1
            }
            None => {
                return Err(VerbsError::Limit { what: "queue pairs of a thread", asked: QPS_MAX + 1, limit: QPS_MAX });
            }
        };
        Ok((slot, self.slots[slot].generation))
    }

    pub fn set(&mut self, slot: usize, qp: &Rc<QpInner>) {
        self.slots[slot].qp = Rc::downgrade(qp);
    }

    /// Disowns what the queue pair posted so far; returns its new generation.
    pub fn renew(&mut self, slot: usize) -> u32 {
        let slot = &mut self.slots[slot];
        slot.generation = (slot.generation + 1) & WorkId::GENERATION_MASK;
        slot.generation
    }

    pub fn free(&mut self, slot: usize) {
        self.renew(slot);
        self.slots[slot].qp = Weak::new();
        self.free.push(slot);
    }

    /// Whose a completion is; `None` when its queue pair is gone or was reset.
    #[inline]
    pub fn find(&self, id: WorkId) -> Option<Rc<QpInner>> {
        self.slots.get(id.slot).filter(|slot| slot.generation == id.generation)?.qp.upgrade()
    }
}

/// One thread's part of an [`IbDomain`].
#[derive(Debug)]
pub struct IbThread(pub(crate) Rc<ThreadInner>);

#[derive(Debug)]
pub(crate) struct ThreadInner {
    pub domain: Arc<DomainInner>,
    pub address: PortAddress,
    pub ways: RefCell<Ways<AddressHandle>>,
    pub qps: RefCell<Registry>,
    pub began: Instant,
}

impl IbThread {
    pub(crate) fn new(domain: &IbDomain) -> Self {
        let domain = Arc::clone(&domain.0);
        let address = PortAddress::of(&domain.device);
        let ways = RefCell::new(Ways::new(domain.device.attributes.mtu));
        Self(Rc::new(ThreadInner { domain, address, ways, qps: RefCell::default(), began: Instant::now() }))
    }
}

impl ThreadInner {
    /// Where to send what is meant for a port.
    pub fn target(&self, to: &PortAddress) -> Target {
        self.address.target(to, self.domain.device.port.grh_required)
    }

    /// Where an answer goes to whoever sent a datagram.
    pub fn target_of_sender(&self, lid: u16, gid: Option<[u8; 16]>) -> Option<Target> {
        self.address.target_of_sender(lid, gid, self.domain.device.port.grh_required)
    }
}

impl ThreadDomain for IbThread {
    type Cq = IbCompletionQueue;
    type Qp = IbQueuePair;

    fn completion_queue(&self, depth: usize) -> Result<IbCompletionQueue, VerbsError> {
        IbCompletionQueue::new(&self.0, depth)
    }

    fn queue_pair(
        &self,
        config: &QpConfig,
        send: &IbCompletionQueue,
        receive: &IbCompletionQueue,
    ) -> Result<IbQueuePair, VerbsError> {
        IbQueuePair::new(&self.0, config, send, receive)
    }

    fn destination(&self, to: &QpAddress) -> Result<Destination, VerbsError> {
        if to.transport != Transport::Ud {
            return Err(VerbsError::Address(format!("it is {:?}, and datagrams go to UD queue pairs", to.transport)));
        }
        let port = read_port(to)?;
        port.check_from(&self.0.address)?;
        let attributes = &self.0.domain.device.attributes;
        if common_mtu(attributes.mtu, to.mtu).is_none() {
            return Err(VerbsError::Address(format!("its packets have {} bytes, and 256 is the least", to.mtu)));
        }
        let target = self.0.target(&port);
        // A new one, however well the old one did: the host may have another MAC by now.
        let made = AddressHandle::new(&self.0.domain, target)
            .map_err(|error| system("making an address handle", error, Some("look whether the host is up (`ping`)")))?;
        let mut ways = self.0.ways.borrow_mut();
        let handle = ways.to(target);
        if let Some(way) = ways.get(handle) {
            way.mtu = attributes.mtu.min(to.mtu as usize);
            way.handle = Some(Rc::new(made));
        }
        Ok(Destination { handle, number: to.number, qkey: to.qkey })
    }
}

/// The port in an address that a peer told.
pub(crate) fn read_port(address: &QpAddress) -> Result<PortAddress, VerbsError> {
    PortAddress::from_bytes(&address.port)
        .ok_or_else(|| VerbsError::Address("it is not one of an InfiniBand or RoCE device".into()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::common::{Pair, assert_ok};
    use sinew_fabric::verbs::{Operation, PostError, QpNumber, QueuePair, Request, Source};

    #[test]
    fn a_stranger_that_does_not_exist_holds_nobody_up_for_long() {
        let Some(mut pair) = Pair::new(Transport::Ud) else { return };
        let ours = pair.a.qp.address();
        // On our network, where nobody answers.
        let absent = |last: u8| {
            let mut address = ours.clone();
            address.port.pop();
            address.port.push(last);
            address
        };
        let thread = Rc::clone(&pair.a.thread.0);
        let mut answer = |last: u8| {
            let target = thread.target(&read_port(&absent(last)).unwrap());
            let handle = thread.ways.borrow_mut().to(target);
            let to = Some(Destination { handle, number: QpNumber(7), qkey: 0 });
            let began = Instant::now();
            let posted =
                pair.a.qp.post(Request::new(0, Operation::Send { source: Source::Empty, immediate: None, to }));
            (began.elapsed(), posted.unwrap_err().error)
        };
        let (first, unreachable) = answer(201);
        assert!(first > Duration::from_millis(200), "{unreachable} after {first:?}: is there no ARP?");
        let answers: Vec<_> = (201..=250).map(&mut answer).collect();
        let held_up: Duration = answers.iter().map(|(took, _)| *took).sum();
        assert!(held_up < first / 2, "{held_up:?}, {first:?}");
        assert_eq!(answers[0].1, unreachable);
        assert!(answers[1..].iter().all(|(_, error)| *error == PostError::Device(libc::EAGAIN)), "{answers:?}");
        // Those whom somebody asked for wait for nothing.
        let buffer = pair.empty(8);
        pair.b.qp.post_buffer(0, buffer).unwrap();
        pair.a.qp.post(Request::new(1, pair.send(Source::Inline(b"known")))).unwrap();
        assert_ok(&pair.b.received());
        let began = Instant::now();
        let asked = pair.a.thread.destination(&absent(202)).unwrap_err();
        assert!(matches!(asked, VerbsError::System { .. }) && began.elapsed() > first / 10, "{asked}");
    }

    #[test]
    fn a_destination_is_looked_for_anew_and_stays_the_same() {
        let Some(pair) = Pair::new(Transport::Ud) else { return };
        let ask = || {
            let to = pair.to_b().unwrap();
            let mut ways = pair.a.thread.0.ways.borrow_mut();
            (to, Rc::clone(ways.get(to.handle).unwrap().handle.as_ref().unwrap()))
        };
        let (before, after) = (ask(), ask());
        assert_eq!(before.0, after.0);
        assert!(!Rc::ptr_eq(&before.1, &after.1), "its MAC would be the old one");
    }

    #[test]
    fn an_identifier_says_what_was_put_in() {
        for (generation, slot, receive, number) in [
            (0, 0, false, 0),
            (WorkId::GENERATION_MASK, QPS_MAX - 1, true, WorkId::NUMBER_MASK),
            (77, 5, true, 1 << 23),
        ] {
            let id = WorkId::unpack(WorkId::pack(generation, slot, receive, number));
            assert_eq!(id, WorkId { generation, receive, slot, number: number as u32 });
        }
    }

    #[test]
    fn numbers_are_whole_again_when_they_come_back() {
        for oldest in [0, 1 << 24, (1 << 40) - 3, u64::from(u32::MAX)] {
            for later in [0, 1, DEPTH_MAX as u64] {
                let number = oldest + later;
                assert_eq!(WorkId::unpack(WorkId::pack(1, 2, false, number)).number_from(oldest), number);
            }
        }
    }

    #[test]
    fn a_slot_that_is_used_again_has_another_generation() {
        let mut registry = Registry::default();
        let (slot, first) = registry.reserve().unwrap();
        registry.free(slot);
        assert_eq!(registry.reserve().unwrap(), (slot, first + 1));
        assert_eq!(registry.reserve().unwrap(), (slot + 1, 0));
        registry.slots[slot].generation = WorkId::GENERATION_MASK;
        assert_eq!(registry.renew(slot), 0);
    }
}
