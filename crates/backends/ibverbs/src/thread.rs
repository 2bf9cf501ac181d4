//! One thread's part of a domain: its completion queues, its queue pairs, and its address handles.

mod cq;
mod qp;
mod registry;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use sinew_fabric::verbs::{Destination, QpAddress, QpConfig, ThreadDomain, Transport, VerbsError};

use crate::address::PortAddress;
use crate::library::system;
use crate::port::common_mtu;
use crate::registration::DomainInner;
use crate::routes::{AddressHandle, Routes, Target};

use registry::Registry;

pub use cq::IbCompletionQueue;
pub use qp::IbQueuePair;

/// One thread's part of an [`IbDomain`](crate::IbDomain).
#[derive(Debug)]
pub struct IbThread(pub(crate) Rc<ThreadInner>);

#[derive(Debug)]
pub(crate) struct ThreadInner {
    pub domain: Arc<DomainInner>,
    pub address: PortAddress,
    pub routes: RefCell<Routes<AddressHandle>>,
    pub qps: RefCell<Registry>,
    pub began: Instant,
}

impl IbThread {
    pub(crate) fn new(domain: Arc<DomainInner>) -> Self {
        let address = PortAddress::of(&domain.device);
        let routes = RefCell::new(Routes::new(domain.device.attributes.mtu));
        Self(Rc::new(ThreadInner { domain, address, routes, qps: RefCell::default(), began: Instant::now() }))
    }
}

impl ThreadInner {
    /// The target of packets to a port.
    pub fn target(&self, to: &PortAddress) -> Target {
        self.address.target(to, self.domain.device.port.grh_required)
    }

    /// The target of an answer to the sender of a datagram.
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
            return Err(VerbsError::Address(format!("it is {:?}; datagrams go only to UD queue pairs", to.transport)));
        }
        let port = read_port(to)?;
        port.check_from(&self.0.address)?;
        let attributes = &self.0.domain.device.attributes;
        if common_mtu(attributes.mtu, to.mtu).is_none() {
            return Err(VerbsError::Address(format!("its MTU is {} bytes, but 256 is the smallest", to.mtu)));
        }
        let target = self.0.target(&port);
        // Always a new handle, even if the old one worked: the host may have another MAC by now.
        let made = AddressHandle::new(&self.0.domain, target)
            .map_err(|error| system("making an address handle", error, Some("check that the host is up (`ping`)")))?;
        let mut routes = self.0.routes.borrow_mut();
        let handle = routes.handle_to(target);
        if let Some(route) = routes.get(handle) {
            route.mtu = attributes.mtu.min(to.mtu as usize);
            route.handle = Some(Rc::new(made));
        }
        Ok(Destination { handle, number: to.number, qkey: to.qkey })
    }
}

/// Reads the port in an address that a peer sent.
pub(crate) fn read_port(address: &QpAddress) -> Result<PortAddress, VerbsError> {
    PortAddress::from_bytes(&address.port)
        .ok_or_else(|| VerbsError::Address("it is not of an InfiniBand or RoCE device".into()))
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
        // An address on our network at which nobody answers.
        let absent = |last: u8| {
            let mut address = ours.clone();
            address.port.pop();
            address.port.push(last);
            address
        };
        let thread = Rc::clone(&pair.a.thread.0);
        let mut answer = |last: u8| {
            let target = thread.target(&read_port(&absent(last)).unwrap());
            let handle = thread.routes.borrow_mut().handle_to(target);
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
        // Peers that were asked for do not wait for the budget of unknown senders.
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
            let mut routes = pair.a.thread.0.routes.borrow_mut();
            (to, Rc::clone(routes.get(to.handle).unwrap().handle.as_ref().unwrap()))
        };
        let (before, after) = (ask(), ask());
        assert_eq!(before.0, after.0);
        assert!(!Rc::ptr_eq(&before.1, &after.1), "its MAC would be the old one");
    }
}
