//! A UD queue pair as a packet port, on the model.

use sinew_fabric::verbs::port::{UdPort, UdPortConfig, address_of, read_address};
use sinew_fabric::verbs::{
    Device, Operation, ProtectionDomain, QpAddress, QpConfig, QueuePair, Request, Source, ThreadDomain, Transport,
};
use sinew_fabric::{Dropped, PacketPort, PacketRx, PacketTx, Peer, RxBurst, TxData, TxPacket};

use super::model::{Flaw, Model, Options};

const CONFIG: UdPortConfig = UdPortConfig { receive_packets: 4, send_packets: 8, arena_bytes: 1 << 20, qkey: 7 };

fn send<D: ProtectionDomain>(from: &mut UdPort<D>, to: Peer, head: &[u8]) {
    let tx = from.split().1;
    tx.push(TxPacket { to, head, data: TxData::None });
    tx.submit();
}

/// Number of packets that come within some polls.
fn receive<D: ProtectionDomain>(port: &mut UdPort<D>) -> usize {
    let mut came = 0;
    for _ in 0..50 {
        let mut burst = RxBurst::new(0);
        port.split().0.receive(&mut burst);
        came += burst.packets.len();
    }
    came
}

#[test]
fn buffers_of_senders_whom_no_answer_reaches_are_posted_again() {
    let model = Model::new(Options { flaw: Some(Flaw::ForgetsSenders), ..Options::PLAIN });
    let [mut a, mut b] = [(); 2].map(|()| UdPort::open(&model, &CONFIG).unwrap());
    let to = a.resolve(&b.address()).unwrap();
    for sent in 1..=3 * CONFIG.receive_packets as u64 {
        send(&mut a, to, b"from nobody");
        assert_eq!((receive(&mut b), b.stats().dropped(Dropped::Malformed)), (0, sent));
    }
}

#[test]
fn buffers_of_datagrams_received_badly_are_posted_again() {
    let model = Model::new(Options { flaw: Some(Flaw::SendsLongDatagrams), ..Options::PLAIN });
    let [mut a, mut b] = [(); 2].map(|()| UdPort::open(&model, &CONFIG).unwrap());
    let to = a.resolve(&b.address()).unwrap();
    let len = b.caps().packet_len_max + 1;
    let datagrams = 3 * CONFIG.receive_packets;

    // No port sends such datagrams.
    let domain = model.protection_domain().unwrap();
    let (arena, thread) = (domain.arena(1 << 20).unwrap(), domain.thread().unwrap());
    let queue = thread.completion_queue(2 * datagrams).unwrap();
    let config =
        QpConfig { send_depth: datagrams, receive_depth: 1, qkey: CONFIG.qkey, ..QpConfig::new(Transport::Ud) };
    let mut qp = thread.queue_pair(&config, &queue, &queue).unwrap();
    qp.connect(None).unwrap();
    let destination = thread.destination(&read_address(&b.address()).unwrap()).unwrap();
    for sent in 1..=datagrams as u64 {
        let source = Source::from(arena.alloc(len, len).unwrap().freeze());
        let operation = Operation::Send { source, immediate: None, to: Some(destination) };
        qp.post(Request::new(0, operation)).unwrap();
        assert_eq!((receive(&mut b), b.stats().dropped(Dropped::Malformed)), (0, sent));
    }
    send(&mut a, to, b"as long as it may be");
    assert_eq!((receive(&mut b), b.stats().dropped(Dropped::Overflow)), (1, 0));
}

#[test]
fn a_queue_pair_that_broke_gives_its_receives_back_once_and_takes_no_place_for_good() {
    let model = Model::new(Options::PLAIN);
    let [mut a, mut b] = [(); 2].map(|()| UdPort::open(&model, &CONFIG).unwrap());
    let to = a.resolve(&b.address()).unwrap();
    send(&mut a, to, b"while all is well");
    assert_eq!(receive(&mut b), 1);
    model.break_queue_pairs();
    for _ in 0..2 {
        assert_eq!((receive(&mut b), b.stats().dropped(Dropped::Overflow)), (0, CONFIG.receive_packets as u64));
    }
    for _ in 0..3 * CONFIG.send_packets {
        send(&mut a, to, b"to nobody");
    }
    a.split().1.flush();
    assert_eq!(a.stats().dropped(Dropped::Full), 0);
}

#[test]
fn a_peer_that_takes_less_is_sent_less_and_no_other() {
    let model = Model::new(Options::PLAIN);
    let [mut a, mut small, mut large] = [(); 3].map(|()| UdPort::open(&model, &CONFIG).unwrap());
    let least = QpAddress { mtu: 512, ..read_address(&small.address()).unwrap() };
    let [to_small, to_large] = [address_of(&least), large.address()].map(|to| a.resolve(&to).unwrap());
    let most = a.caps().packet_len_max;
    assert_eq!((a.packet_len_max(to_small), a.packet_len_max(to_large)), (512, most));
    for (len, dropped) in [(512, 0), (513, 1), (most, 2)] {
        send(&mut a, to_small, &vec![1; len]);
        assert_eq!((receive(&mut small), a.stats().dropped(Dropped::TooLong)), (usize::from(len == 512), dropped));
    }
    send(&mut a, to_large, &vec![1; most]);
    assert_eq!(receive(&mut large), 1);
    a.forget(to_small);
    assert_eq!(a.packet_len_max(to_small), most);
    let nothing = QpAddress { mtu: 255, ..least };
    assert!(a.resolve(&address_of(&nothing)).is_err());
}
