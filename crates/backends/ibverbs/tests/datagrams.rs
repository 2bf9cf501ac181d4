//! Datagrams: strangers, their addresses, and packet ports on them.

mod common;

use std::time::Instant;

use common::{Pair, Side, assert_ok, assert_silent, config};
use sinew_conformance::ports::{self, Expectations, Fixture};
use sinew_fabric::verbs::port::{UdPort, UdPortConfig};
use sinew_fabric::verbs::{
    Destination, Operation, PostError, QpConfig, QueuePair, Request, Source, ThreadDomain, Transport, VerbsError,
};
use sinew_ibverbs::{IbDevice, IbDomain};

#[test]
fn a_stranger_is_answered() {
    let Some(mut pair) = Pair::new(Transport::Ud) else { return };
    for round in 0..3 {
        let (to_a, to_b) = (pair.empty(64), pair.empty(64));
        pair.a.qp.post_buffer(0, to_a).unwrap();
        pair.b.qp.post_buffer(0, to_b).unwrap();
        pair.a.qp.post(Request::new(0, pair.send(Source::Inline(b"who?")))).unwrap();
        let asked = pair.b.received();
        assert_ok(&asked);
        let from = asked.from.unwrap();
        assert_eq!(from.number, pair.a.qp.number());
        // The way back is the same whether it comes from an address or from a datagram.
        assert_eq!(from, pair.b.thread.destination(&pair.a.qp.address()).unwrap(), "round {round}");
        let answer = Operation::Send { source: Source::Inline(b"me"), immediate: Some(round), to: Some(from) };
        pair.b.qp.post(Request::new(0, answer)).unwrap();
        let answered = pair.a.received();
        assert_ok(&answered);
        assert_eq!((&answered.buffers[0][..], answered.immediate), (&b"me"[..], Some(round)));
        assert_eq!(answered.from.unwrap().number, pair.b.qp.number());
        assert_ok(&pair.a.sent());
        assert_ok(&pair.b.sent());
    }
}

#[test]
fn a_datagram_with_another_key_is_not_received() {
    let Some(mut pair) = Pair::new(Transport::Ud) else { return };
    let buffer = pair.empty(64);
    pair.b.qp.post_buffer(0, buffer).unwrap();
    let to = pair.to_b().unwrap();
    let send = |to| Operation::Send { source: Source::Inline(b"x"), immediate: None, to: Some(to) };
    pair.a.qp.post(Request::new(0, send(Destination { qkey: to.qkey ^ 1, ..to }))).unwrap();
    assert_ok(&pair.a.sent());
    assert_silent(&mut pair.b.receives);
    pair.a.qp.post(Request::new(1, send(to))).unwrap();
    assert_ok(&pair.b.received());
}

#[test]
fn a_datagram_that_finds_no_receive_is_lost_and_nothing_else() {
    let Some(mut pair) = Pair::new(Transport::Ud) else { return };
    pair.a.qp.post(Request::new(0, pair.send(Source::Inline(b"lost")))).unwrap();
    assert_ok(&pair.a.sent());
    assert_silent(&mut pair.b.receives);
    let buffer = pair.empty(64);
    pair.b.qp.post_buffer(0, buffer).unwrap();
    pair.a.qp.post(Request::new(0, pair.send(Source::Inline(b"there")))).unwrap();
    assert_eq!(&pair.b.received().buffers[0][..], b"there");
}

#[test]
fn handles_of_other_threads_and_forged_ones_lead_nowhere() {
    let Some(mut pair) = Pair::new(Transport::Ud) else { return };
    let of_b = pair.b.thread.destination(&pair.a.qp.address()).unwrap();
    for handle in [of_b.handle, 0, u64::MAX] {
        let to = Some(Destination { handle, ..of_b });
        let send = Operation::Send { source: Source::Empty, immediate: None, to };
        assert_eq!(pair.a.qp.post(Request::new(0, send)).unwrap_err().error, PostError::UnknownDestination);
    }
}

#[test]
fn addresses_that_are_none_are_refused() {
    let Some(pair) = Pair::new(Transport::Ud) else { return };
    let good = pair.b.qp.address();
    let refused = |change: &dyn Fn(&mut sinew_fabric::verbs::QpAddress)| {
        let mut address = good.clone();
        change(&mut address);
        matches!(pair.a.thread.destination(&address), Err(VerbsError::Address(_)))
    };
    assert!(!refused(&|_| ()));
    assert!(refused(&|address| address.transport = Transport::Rc));
    assert!(refused(&|address| address.port.clear()));
    assert!(refused(&|address| address.mtu = 255));
    assert!(refused(&|address| address.port[0] ^= 1));
    assert!(refused(&|address| address.port[3] = 1), "InfiniBand");
    // The GID is at the end; this one is of another family.
    assert!(refused(&|address| address.port.iter_mut().rev().take(16).for_each(|byte| *byte ^= 0x5A)));
}

#[test]
fn a_datagram_is_no_longer_than_the_smaller_port_takes() {
    let Some(mut pair) = Pair::new(Transport::Ud) else { return };
    let mut address = pair.b.qp.address();
    address.mtu = 512;
    let to = Some(pair.a.thread.destination(&address).unwrap());
    for (len, good) in [(512, true), (513, false)] {
        let source = pair.empty(len).freeze().into();
        let posted = pair.a.qp.post(Request::new(0, Operation::Send { source, immediate: None, to }));
        assert_eq!(posted.is_ok(), good, "{len} bytes");
    }
}

#[test]
fn datagrams_of_many_queue_pairs_come_to_one() {
    let Some(mut pair) = Pair::new(Transport::Ud) else { return };
    let config = QpConfig { send_depth: 4, receive_depth: 4, ..config(Transport::Ud) };
    let mut senders: Vec<_> = (0..8).map(|_| Side::new(&pair.domain, &config)).collect();
    for (id, sender) in senders.iter_mut().enumerate() {
        let buffer = pair.empty(64);
        pair.b.qp.post_buffer(id as u64, buffer).unwrap();
        sender.qp.connect(None).unwrap();
        let to = Some(sender.thread.destination(&pair.b.qp.address()).unwrap());
        let send = Operation::Send { source: Source::Empty, immediate: Some(sender.qp.number().0), to };
        sender.qp.post(Request::new(0, send)).unwrap();
    }
    for _ in 0..senders.len() {
        let arrived = pair.b.received();
        assert_ok(&arrived);
        assert_eq!(arrived.from.unwrap().number.0, arrived.immediate.unwrap());
    }
}

struct Ports {
    device: IbDevice,
    began: Instant,
}

impl Fixture for Ports {
    type Port = UdPort<IbDomain>;

    fn open(&mut self) -> Self::Port {
        let config =
            UdPortConfig { receive_packets: 512, send_packets: 128, arena_bytes: 32 << 20, ..Default::default() };
        UdPort::open(&self.device, &config).unwrap()
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations { lossy: true, reports_closed_peers: false, ..Default::default() }
    }
}

#[test]
fn a_queue_pair_is_a_packet_port() {
    let Some(device) = common::device() else { return };
    ports::run_all(&mut Ports { device, began: Instant::now() });
}
