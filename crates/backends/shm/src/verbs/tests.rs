//! Tests with packets and directories that no well-behaved peer would write.

use std::sync::atomic::Ordering;

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Operation, PostError, ProtectionDomain, QpAddress, QpConfig,
    QpNumber, QpState, QueuePair, RemoteMemory, Request, Scatter, Source, Status, ThreadDomain, Transport,
};
use sinew_fabric::{Generator, PacketPort, PacketTx, Peer, SeededGenerator, TxData, TxPacket};
use sinew_mem::ring::Words;
use sinew_mem::{Arena, SharedMemory};

use super::address::{Home, port_name};
use super::directory::{DIRECTORY_BYTES, ListenState, PART_OFFSETS};
use super::memory::whole;
use super::packet::{Datagram, Header, Kind, LONG_LEN};
use super::*;
use crate::ShmPort;
use crate::link::map_peer;
use crate::rx::Remote;

/// Bytes of a buffer so large that an arena holds only a few.
const LARGE: usize = 256 << 10;

struct End {
    device: ShmDevice,
    domain: ShmDomain,
    arena: Arena,
    qp: ShmQueuePair,
    queue: ShmCompletionQueue,
    thread: ShmThread,
}

impl End {
    fn new(transport: Transport) -> Self {
        Self::on(ShmDevice::open(&"shm://".parse().unwrap()).unwrap(), transport)
    }

    fn on(device: ShmDevice, transport: Transport) -> Self {
        let domain = device.protection_domain().unwrap();
        let arena = domain.arena(8 << 20).unwrap();
        let thread = domain.thread().unwrap();
        let queue = thread.completion_queue(256).unwrap();
        let config = QpConfig { send_depth: 64, receive_depth: 64, ..QpConfig::new(transport) };
        let qp = thread.queue_pair(&config, &queue, &queue).unwrap();
        Self { device, domain, arena, qp, queue, thread }
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        for _ in 0..300 {
            self.queue.poll(&mut completions, 256);
        }
        completions
    }

    fn post_receive(&mut self, id: u64, len: usize) {
        let buffer = self.arena.alloc(len, len.max(1)).unwrap();
        self.qp.post_buffer(id, buffer).unwrap();
    }

    /// Connects to an end that need not connect back.
    fn connect_to(&mut self, other: &End) {
        self.qp.connect(Some(&other.qp.address())).unwrap();
    }
}

/// A process that writes arbitrary packets to the port of a queue pair.
struct UnknownSender {
    port: ShmPort,
    peer: Peer,
}

impl UnknownSender {
    fn to(address: &QpAddress) -> Self {
        let home = Home::from_bytes(&address.port).unwrap();
        let mut port = ShmPort::open(&"shm://".parse().unwrap()).unwrap();
        let peer = port.resolve(&format!("shm://{}", port_name(&home.device, home.port)).parse().unwrap()).unwrap();
        Self { port, peer }
    }

    fn send(&mut self, bytes: &[u8]) {
        let tx = self.port.split().1;
        tx.push(TxPacket { to: self.peer, head: &[], data: TxData::Bytes(bytes) });
        tx.submit();
    }

    fn send_header(&mut self, header: Header, rest: &[u8]) {
        let (bytes, len) = header.to_bytes();
        self.send(&[&bytes[..len], rest].concat());
    }

    /// Sends a datagram in the short form.
    fn send_datagram(&mut self, datagram: Datagram, message: &[u8]) {
        let words = datagram.to_words().unwrap().map(u64::to_le_bytes);
        self.send(&[words.as_flattened(), message].concat());
    }
}

/// A header that the peer of `to` would send.
fn header(kind: Kind, to: &End, from: &End) -> Header {
    let key = Home::from_bytes(&to.qp.address().port).unwrap().key;
    let (to, from) = (to.qp.number(), from.qp.number());
    Header { kind, to, from, key, number: 0, immediate: None, offset: 0, total: 0 }
}

fn discarded(end: &End) -> u64 {
    Discarded::ALL.iter().map(|&reason| end.thread.discarded(reason)).sum()
}

#[test]
fn packets_of_strangers_are_counted_and_change_nothing() {
    for transport in Transport::ALL {
        let (mut end, other) = (End::new(transport), End::new(transport));
        end.connect_to(&other);
        end.post_receive(1, 64);
        let mut sender = UnknownSender::to(&end.qp.address());
        let good = header(Kind::Whole, &end, &other);
        let mut seed = 1u64;
        let mut sent = 0;
        for len in [0, 1, 23, 24, 25, 31, 32, 56, 248, 5000] {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            })
            .take(len)
            .collect();
            sender.send(&bytes);
            sent += 1;
        }
        for header in [
            Header { key: good.key ^ 1, ..good },
            Header { from: sinew_fabric::verbs::QpNumber(good.from.0 ^ 1), ..good },
            Header { to: sinew_fabric::verbs::QpNumber(good.to.0 ^ 1 << 16), ..good },
            Header { to: sinew_fabric::verbs::QpNumber(u32::MAX), ..good },
            Header { kind: Kind::Gone, key: good.key ^ 1, ..good },
        ] {
            sender.send_header(header, b"bytes");
            sent += 1;
        }
        assert!(end.poll().is_empty(), "{transport:?}");
        assert_eq!(end.qp.state(), QpState::ReadyToSend);
        assert_eq!(discarded(&end), sent, "{transport:?}");
    }
}

#[test]
fn datagrams_in_the_short_form_are_checked_as_the_others_are() {
    let mut end = End::new(Transport::Ud);
    end.qp.connect(None).unwrap();
    let address = end.qp.address();
    let mut stranger = UnknownSender::to(&address);
    let good = Datagram { to: address.number, from: QpNumber(5), key: address.qkey, immediate: Some(9) };
    let mut send = |datagram, message: &[u8]| stranger.send_datagram(datagram, message);
    send(good, b"nobody waits for it");
    assert!(end.poll().is_empty());
    assert_eq!(end.thread.discarded(Discarded::NoReceive), 1);
    end.post_receive(1, 40);
    end.post_receive(2, 40);
    end.post_receive(3, 100);
    send(Datagram { key: good.key + 1, ..good }, b"key");
    send(Datagram { to: QpNumber(good.to.0 ^ 0x1_0000), ..good }, b"an earlier queue pair");
    for len in [40, 41, 100] {
        send(good, &[7; 100][..len]);
    }
    let mut completions = Vec::with_capacity(64);
    for _ in 0..300 {
        end.queue.poll(&mut completions, 64);
        if completions.len() == 3 {
            break;
        }
    }
    let [first, second, third] = &completions[..] else { panic!("{completions:?}") };
    for (completion, len) in [(first, 40), (third, 100)] {
        assert_eq!((completion.status, completion.len, completion.immediate), (Status::Success, len, Some(9)));
        assert_eq!(completion.from.map(|from| (from.number, from.qkey)), Some((QpNumber(5), good.key)));
        assert_eq!(completion.buffers[0][..], [7; 100][..len]);
    }
    assert_eq!((second.id, second.status), (2, Status::LocalLength));
    assert_eq!(end.thread.discarded(Discarded::WrongKey), 1);
    assert_eq!(end.thread.discarded(Discarded::NoSuchQueuePair), 1);
}

#[test]
fn datagrams_that_are_shown_are_checked_as_the_others_are_and_leave_the_receives_as_they_were() {
    let mut end = End::new(Transport::Ud);
    end.qp.connect(None).unwrap();
    let address = end.qp.address();
    let mut stranger = UnknownSender::to(&address);
    let good = Datagram { to: address.number, from: QpNumber(5), key: address.qkey, immediate: Some(9) };
    let mut send = |datagram, message: &[u8]| stranger.send_datagram(datagram, message);
    let (mut shown, mut others) = (Vec::new(), Vec::new());
    let mut poll = |end: &mut End, others: &mut Vec<Completion>| {
        for _ in 0..300 {
            let polled = end.queue.poll_messages(&mut end.qp, others, 64, |message| {
                assert_eq!(message.immediate, Some(9));
                assert_eq!(message.from.map(|from| (from.number, from.qkey)), Some((QpNumber(5), good.key)));
                shown.push(message.bytes.to_vec());
            });
            polled.unwrap();
        }
        std::mem::take(&mut shown)
    };
    send(good, b"nobody waits for it");
    assert!(poll(&mut end, &mut others).is_empty() && others.is_empty());
    assert_eq!(end.thread.discarded(Discarded::NoReceive), 1);
    end.post_receive(1, 40);
    send(Datagram { key: good.key + 1, ..good }, b"key");
    send(Datagram { to: QpNumber(good.to.0 ^ 0x1_0000), ..good }, b"an earlier queue pair");
    let lens = [0, 40, 7, 33, 40, 8];
    for len in lens {
        send(good, &[7; 100][..len]);
    }
    let got = poll(&mut end, &mut others);
    assert!(got.iter().map(Vec::len).eq(lens) && got.concat().iter().all(|&byte| byte == 7), "{got:?}");
    assert!(others.is_empty());
    // One that is too long ends the receive, as it does without an audience.
    for len in [40, 41, 40] {
        send(good, &[7; 100][..len]);
    }
    assert_eq!(poll(&mut end, &mut others).len(), 1);
    assert!(matches!(&others[..], [failed] if (failed.id, failed.status) == (1, Status::LocalLength)), "{others:?}");
    let reasons = [Discarded::NoReceive, Discarded::WrongKey, Discarded::NoSuchQueuePair];
    assert_eq!(reasons.map(|reason| end.thread.discarded(reason)), [2, 1, 1]);
}

#[test]
fn lists_of_receives_go_on_at_the_start_of_the_queues_memory() {
    let mut end = End::new(Transport::Ud);
    end.qp.connect(None).unwrap();
    let address = end.qp.address();
    let mut stranger = UnknownSender::to(&address);
    let datagram = Datagram { to: address.number, from: QpNumber(5), key: address.qkey, immediate: None };
    let words = datagram.to_words().unwrap().map(u64::to_le_bytes);
    let mut posted = 0..20;
    let buffers: Vec<_> = posted.clone().map(|id| (id, end.arena.alloc(16, 16).unwrap())).collect();
    end.qp.post_buffers(buffers).unwrap();
    // The queue's memory has 32 places.
    for round in 0..40 {
        let count = 1 + round % 13;
        for number in posted.start..posted.start + count {
            stranger.send(&[words.as_flattened(), &number.to_le_bytes()].concat());
        }
        let mut completions = Vec::new();
        for _ in 0..300 {
            end.queue.poll(&mut completions, 64);
        }
        assert_eq!(completions.len() as u64, count);
        for (completion, id) in completions.iter().zip(posted.start..) {
            assert_eq!((completion.id, &completion.buffers[0][..]), (id, &id.to_le_bytes()[..]));
        }
        let again = completions.iter_mut().map(|completion| {
            let mut buffer = completion.buffers.pop().unwrap();
            buffer.resize(16).unwrap();
            buffer
        });
        end.qp.post_buffers((posted.end..).zip(again)).unwrap();
        posted = posted.start + count..posted.end + count;
    }
    end.qp.modify(QpState::Error, None).unwrap();
    assert!(end.poll().iter().map(|completion| completion.id).eq(posted), "the rest is flushed in order");
}

#[test]
fn receives_are_posted_as_a_list_up_to_the_first_that_is_refused() {
    let mut end = End::new(Transport::Ud);
    end.qp.connect(None).unwrap();
    let other = end.domain.arena(1 << 20).unwrap();
    let foreign = Arena::private(1 << 20).unwrap();
    let arenas = |ids: std::ops::Range<u64>| {
        // Two arenas of the domain in turn, and a foreign one once.
        ids.map(|id| {
            (
                id,
                if id == 20 {
                    &foreign
                } else if id % 3 == 0 {
                    &other
                } else {
                    &end.arena
                },
            )
        })
        .map(|(id, arena)| (id, arena.alloc(8, 8).unwrap()))
        .collect::<Vec<_>>()
    };
    let [first, second] = [arenas(0..30), arenas(21..100)];
    let refused = end.qp.post_buffers(first).unwrap_err();
    assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
    let refused = end.qp.post_buffers(second).unwrap_err();
    assert_eq!((refused.error, refused.buffers.len()), (PostError::QueueFull(64), 1));
    end.qp.modify(QpState::Error, None).unwrap();
    let flushed: Vec<u64> = end.poll().iter().map(|completion| completion.id).collect();
    assert!(flushed.iter().copied().eq((0..20).chain(21..65)), "{flushed:?}");
    assert!(end.qp.post_buffers([]).is_ok());
}

#[test]
fn a_reliable_peer_that_breaks_the_rules_loses_its_connection_and_nothing_else_happens() {
    let good = |end: &End, other: &End| header(Kind::Whole, end, other);
    type Bad = fn(Header) -> (Header, usize);
    let bad: [(&str, Bad); 7] = [
        ("a message before its turn", |header| (Header { number: 1, ..header }, 8)),
        ("a message that was there", |header| (Header { number: u32::MAX, ..header }, 8)),
        ("a part without a beginning", |header| (Header { kind: Kind::Part, offset: 8, total: 16, ..header }, 8)),
        ("a part longer than its message", |header| (Header { kind: Kind::Part, total: 7, ..header }, 8)),
        ("a part past the end", |header| (Header { kind: Kind::Part, offset: u32::MAX, total: u32::MAX, ..header }, 8)),
        ("an empty part", |header| (Header { kind: Kind::Part, total: 16, ..header }, 0)),
        ("a message beyond all limits", |header| (Header { kind: Kind::Part, total: u32::MAX, ..header }, 8)),
    ];
    for (what, bad) in bad {
        let (mut end, other) = (End::new(Transport::Rc), End::new(Transport::Rc));
        end.connect_to(&other);
        end.post_receive(1, 64);
        let mut sender = UnknownSender::to(&end.qp.address());
        let (header, len) = bad(good(&end, &other));
        sender.send_header(header, &[7; LONG_LEN][..len]);
        let flushed = end.poll();
        assert_eq!((flushed.len(), flushed[0].status), (1, Status::Flushed), "{what}");
        assert_eq!(end.qp.state(), QpState::Error, "{what}");
        assert_eq!(discarded(&end), 1, "{what}");
    }
}

#[test]
fn a_message_nobody_has_a_receive_for_breaks_a_reliable_connection() {
    let (mut end, other) = (End::new(Transport::Rc), End::new(Transport::Rc));
    end.connect_to(&other);
    let mut sender = UnknownSender::to(&end.qp.address());
    sender.send_header(header(Kind::Whole, &end, &other), b"x");
    assert!(end.poll().is_empty());
    assert_eq!((end.qp.state(), end.thread.discarded(Discarded::NoReceive)), (QpState::Error, 1));
}

#[test]
fn acknowledgements_of_what_was_not_sent_are_ignored() {
    let (mut end, mut other) = (End::new(Transport::Rc), End::new(Transport::Rc));
    end.connect_to(&other);
    other.connect_to(&end);
    other.post_receive(1, 64);
    let operation = Operation::Send { source: Source::Inline(b"x"), immediate: None, to: None };
    end.qp.post(Request::new(1, operation)).unwrap();
    let mut sender = UnknownSender::to(&end.qp.address());
    let ack = header(Kind::Ack, &end, &other);
    for (number, kind) in [(2, Kind::Ack), (1 << 31, Kind::Ack), (1, Kind::Misfit), (5, Kind::Misfit)] {
        sender.send_header(Header { kind, number, ..ack }, b"");
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.thread.discarded(Discarded::Malformed), 4);
    sender.send_header(Header { number: 1, ..ack }, b"");
    assert_eq!(end.poll()[0].status, Status::Success);
}

#[test]
fn acknowledgements_mean_nothing_to_unreliable_queue_pairs() {
    let (mut end, other) = (End::new(Transport::Uc), End::new(Transport::Uc));
    end.connect_to(&other);
    let mut sender = UnknownSender::to(&end.qp.address());
    for kind in [Kind::Ack, Kind::Misfit, Kind::Datagram] {
        sender.send_header(header(kind, &end, &other), b"");
    }
    assert!(end.poll().is_empty());
    assert_eq!((end.qp.state(), discarded(&end)), (QpState::ReadyToSend, 3));
}

#[test]
fn what_a_directory_says_is_not_believed() {
    for word in [0, u64::MAX, 1 << 56, 2 << 56, 0xFF << 56] {
        let (mut end, mut other) = (End::new(Transport::Rc), End::new(Transport::Rc));
        end.connect_to(&other);
        other.connect_to(&end);
        let exposed = other.domain.expose(64, Access::ALL).unwrap();
        // Any process that maps the directory can write it; here its own owner does.
        let directory = &other.device.memory().directory;
        match word {
            0 => directory.set_listen_state(other.qp.number(), ListenState::NoLonger),
            _ => directory.set_word(other.qp.number(), word),
        }
        directory.set_receives(other.qp.number(), u32::MAX);
        let write = Operation::Write { source: Source::Inline(b"x"), remote: exposed.remote(), immediate: None };
        end.qp.post(Request::new(1, write)).unwrap();
        let ends = end.poll();
        assert!(ends.iter().all(|completion| completion.status == Status::RetryExceeded), "{word:x}");
        assert_eq!(exposed.load(0), Ok(0), "{word:x}");
    }
}

/// A device's directory, which any process that works in its memory can write, and the words that a well-meaning
/// process leaves there.
struct DirectoryCorruptor {
    directory: SharedMemory,
    good: Vec<(usize, u64)>,
}

impl DirectoryCorruptor {
    fn of(end: &End) -> Self {
        let fd = &end.device.memory().directory_fd;
        let directory = whole(map_peer(fd, DIRECTORY_BYTES, sinew_mem::Access::ReadWrite).unwrap()).unwrap();
        Self { directory, good: Vec::new() }
    }

    /// Remembers the words that are there now.
    fn remember(&mut self) {
        let places = PART_OFFSETS.into_iter().flat_map(|start| (start..start + 1024).step_by(8));
        self.good = places.map(|offset| (offset, self.directory.load(offset).unwrap())).collect();
    }

    fn restore(&self) {
        for &(offset, word) in &self.good {
            self.directory.store(offset, word).unwrap();
        }
    }

    /// Changes a random word, mostly one that matters.
    fn scribble(&self, random: &mut SeededGenerator) {
        let offset = match random.below(8) {
            0 => random.below(DIRECTORY_BYTES as u64 / 8) as usize * 8,
            1 => PART_OFFSETS[random.below(4) as usize] + random.below(1024 / 8) as usize * 8,
            _ => PART_OFFSETS[random.below(4) as usize] + random.below(8) as usize * 8,
        };
        let was = self.directory.load(offset).unwrap();
        let word = match random.below(5) {
            0 => random.next_u64(),
            1 => was ^ 1 << random.below(64),
            2 => was.wrapping_add(random.below(5)).wrapping_sub(2),
            3 => 0,
            _ => self.good[random.below(self.good.len() as u64) as usize].1,
        };
        self.directory.store(offset, word).unwrap();
    }
}

/// A random operation, valid or not.
fn random_operation<'a>(
    end: &End,
    remote: RemoteMemory,
    bytes: &'a [u8],
    random: &mut SeededGenerator,
) -> Operation<'a> {
    let address = match random.below(6) {
        0 => random.next_u64(),
        1 => u64::MAX - random.below(64),
        2 => remote.address.wrapping_sub(random.below(64)),
        3 => remote.address + remote.len - random.below(64),
        _ => remote.address,
    };
    let rkey = if random.chance(0.2) { remote.rkey ^ 1 << random.below(32) } else { remote.rkey };
    let remote = RemoteMemory { address, rkey, ..remote };
    let target = |len: usize| end.arena.alloc(len, len).unwrap();
    match random.below(6) {
        0 => Operation::Send { source: Source::Inline(bytes), immediate: None, to: None },
        1 => Operation::Write { source: Source::Inline(bytes), remote, immediate: Some(1) },
        2 => Operation::Read { target: Scatter::from_iter([target(1 + random.below(200) as usize)]), remote },
        3 => Operation::FetchAdd { target: target(8), remote, add: random.next_u64() },
        4 => Operation::CompareSwap { target: target(8), remote, expected: 0, desired: random.next_u64() },
        _ => Operation::Write { source: Source::Inline(bytes), remote, immediate: None },
    }
}

#[test]
fn whatever_stands_in_the_directories_nothing_panics_and_datagrams_of_a_third_arrive() {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let seed = std::env::var("SINEW_SEED").map_or(fresh, |seed| seed.parse().unwrap());
    println!("SINEW_SEED={seed}");
    let mut random = SeededGenerator::new(seed);
    let (mut ends, mut third) = ([End::new(Transport::Rc), End::new(Transport::Rc)], End::new(Transport::Ud));
    let exposed = [0, 1].map(|at: usize| ends[at].domain.expose(256, Access::ALL).unwrap());
    let canary = ends[0].arena.alloc(64, 64).unwrap();
    let canary_bytes = canary.to_vec();
    let config = QpConfig { send_depth: 64, receive_depth: 64, ..QpConfig::new(Transport::Ud) };
    // This queue pair is on the thread to which the hostile peer is connected.
    let mut datagrams = ends[0].thread.queue_pair(&config, &ends[0].queue, &ends[0].queue).unwrap();
    datagrams.connect(None).unwrap();
    third.qp.connect(None).unwrap();
    let to = Some(third.thread.destination(&datagrams.address()).unwrap());
    let mut scribblers = [DirectoryCorruptor::of(&ends[0]), DirectoryCorruptor::of(&ends[1])];
    let (mut completions, mut statuses) = (Vec::new(), Vec::new());
    for round in 0..300u64 {
        scribblers.iter().for_each(DirectoryCorruptor::restore);
        let addresses = [1, 0].map(|other: usize| {
            ends[other].qp.modify(QpState::Reset, None).unwrap();
            ends[other].qp.address()
        });
        for (end, address) in ends.iter_mut().zip(&addresses) {
            end.qp.connect(Some(address)).unwrap();
            for id in 0..8 {
                end.post_receive(id, 64);
            }
        }
        scribblers.iter_mut().for_each(DirectoryCorruptor::remember);
        for step in 0..10 {
            let number = (round * 10 + step).to_le_bytes();
            datagrams.post_buffer(7, ends[0].arena.alloc(64, 64).unwrap()).unwrap();
            for _ in 0..random.below(4) {
                scribblers[random.below(2) as usize].scribble(&mut random);
            }
            let source = Source::Inline(&number);
            third.qp.post(Request::new(0, Operation::Send { source, immediate: None, to })).unwrap();
            for (at, end) in ends.iter_mut().enumerate() {
                let operation = random_operation(end, exposed[1 - at].remote(), &number, &mut random);
                let request = Request::new(9, operation);
                // The queue can be full of requests that wait for a word in a directory.
                let _ = if random.chance(0.5) { end.qp.post(request) } else { end.qp.push(request) };
                end.qp.doorbell();
            }
            let mut got = None;
            for _ in 0..100 {
                for end in &mut ends {
                    end.queue.poll(&mut completions, 256);
                }
                for mut completion in completions.drain(..) {
                    if !statuses.contains(&completion.status) {
                        statuses.push(completion.status);
                    }
                    if completion.qp == datagrams.number() && completion.from.is_some() {
                        got = completion.buffers.pop();
                    }
                }
                if got.is_some() {
                    break;
                }
            }
            assert_eq!(got.as_deref(), Some(&number[..]), "round {round}, step {step}");
            third.queue.poll(&mut completions, 256);
            completions.clear();
        }
        if round % 32 == 0 {
            drop(ends[0].domain.expose(64, Access::ALL).unwrap());
        }
    }
    assert_eq!(canary[..], canary_bytes);
    for status in [Status::Success, Status::RemoteAccess, Status::RetryExceeded] {
        assert!(statuses.contains(&status), "{status:?} never came: {statuses:?}");
    }
}

#[test]
fn completions_of_a_dropped_queue_pair_go_and_those_of_others_stay() {
    let mut end = End::new(Transport::Rc);
    let config = QpConfig { send_depth: 4, receive_depth: 8, gather_max: 2, ..QpConfig::new(Transport::Rc) };
    end.qp = end.thread.queue_pair(&config, &end.queue, &end.queue).unwrap();
    let mut other = end.thread.queue_pair(&config, &end.queue, &end.queue);
    let other = other.as_mut().unwrap();
    end.qp.modify(QpState::Init, None).unwrap();
    other.modify(QpState::Init, None).unwrap();
    for id in 0..4 {
        let pieces = [LARGE; 2].map(|len| end.arena.alloc(len, len).unwrap());
        end.qp.post_receive(id, Scatter::from_iter(pieces)).unwrap();
        other.post_buffer(10 + id, end.arena.alloc(8, 8).unwrap()).unwrap();
        // The queue pairs take turns, so that their completions are interleaved.
        for qp in [&mut end.qp, &mut *other] {
            qp.modify(QpState::Error, None).unwrap();
            qp.modify(QpState::Reset, None).unwrap();
            qp.modify(QpState::Init, None).unwrap();
        }
    }
    let room = |end: &End| std::iter::from_fn(|| end.arena.alloc(LARGE, LARGE).ok()).collect::<Vec<_>>().len();
    let (number, before) = (end.qp.number(), room(&end));
    end.qp = end.thread.queue_pair(&config, &end.queue, &end.queue).unwrap();
    assert_eq!(room(&end), before + 8, "what they held is free");
    let completions = end.poll();
    assert!(completions.iter().all(|completion| completion.qp != number), "{completions:?}");
    assert!(completions.iter().map(|completion| completion.id).eq(10..14), "{completions:?}");
}

#[test]
fn targets_of_a_dropped_queue_pairs_waiting_requests_are_free() {
    let (mut end, other) = (End::new(Transport::Rc), End::new(Transport::Rc));
    let config = QpConfig { send_depth: 4, receive_depth: 8, gather_max: 2, ..QpConfig::new(Transport::Rc) };
    let remote = other.domain.expose(64, Access::ALL).unwrap().remote();
    for round in 0..20 {
        let mut qp = end.thread.queue_pair(&config, &end.queue, &end.queue).unwrap();
        // The peer never connects to us, so requests wait.
        qp.connect(Some(&other.qp.address())).unwrap();
        for is_rung in [true, false] {
            let room = |len| end.arena.alloc(len, len).unwrap_or_else(|error| panic!("round {round}: {error}"));
            let pieces = [LARGE; 2].map(room);
            let operation = Operation::Read { target: Scatter::from_iter(pieces), remote };
            qp.push(Request::new(1, operation)).unwrap();
            if is_rung {
                qp.doorbell();
            }
        }
    }
    assert!(end.poll().is_empty());
}

#[test]
fn a_wait_looks_at_its_waker_and_its_timeout_while_packets_come() {
    let end = End::new(Transport::Ud);
    let mut sender = UnknownSender::to(&end.qp.address());
    let mut idle = end.thread.completion_queue(1).unwrap();
    for (timeout_ns, is_woken) in [(Some(0), false), (None, true)] {
        let before = discarded(&end);
        // One turn takes fewer packets than this.
        for _ in 0..500 {
            sender.send(b"nonsense");
        }
        if is_woken {
            idle.waker().wake();
        }
        idle.wait(timeout_ns).unwrap();
        let taken = discarded(&end) - before;
        assert!((1..500).contains(&taken), "{timeout_ns:?}: {taken} packets");
        while discarded(&end) < before + 500 {
            idle.poll(&mut Vec::new(), 1);
        }
    }
}

#[test]
fn last_words_to_a_peer_whose_ring_is_full_hold_back_none_to_others() {
    let (mut end, mut stopped, mut other) = (End::new(Transport::Uc), End::new(Transport::Uc), End::new(Transport::Uc));
    let config = QpConfig { send_depth: 8, receive_depth: 8, ..QpConfig::new(Transport::Uc) };
    let mut to_stopped = end.thread.queue_pair(&config, &end.queue, &end.queue).unwrap();
    to_stopped.connect(Some(&stopped.qp.address())).unwrap();
    stopped.qp.connect(Some(&to_stopped.address())).unwrap();
    end.connect_to(&other);
    other.connect_to(&end);
    // These packets are as long as final packets, so that no final packet finds room.
    while end.thread.discarded(Discarded::Full) == 0 {
        let operation = Operation::Send { source: Source::Empty, immediate: None, to: None };
        to_stopped.post(Request::new(1, operation)).unwrap();
        assert_eq!(end.queue.poll(&mut Vec::new(), 1), 1);
    }
    drop(to_stopped);
    end.qp.modify(QpState::Error, None).unwrap();
    assert!(end.poll().is_empty());
    assert!(other.poll().is_empty());
    assert_eq!(other.qp.state(), QpState::Error);
    assert!(stopped.poll().is_empty());
    assert_eq!((end.poll().len(), stopped.poll().len(), stopped.qp.state()), (0, 0, QpState::Error), "they come later");
}

/// Two connected queue pairs on one device of threads, after one message has been exchanged.
fn connected_pair() -> (End, End) {
    let device = ShmDevice::threads().unwrap();
    let (mut end, mut other) = (End::on(device.clone(), Transport::Rc), End::on(device, Transport::Rc));
    end.connect_to(&other);
    other.connect_to(&end);
    (0..3).for_each(|id| other.post_receive(id, 64));
    send_one(&mut end, 0);
    assert_eq!((other.poll().len(), end.poll()[0].status), (1, Status::Success));
    (end, other)
}

fn send_one(end: &mut End, id: u64) {
    let operation = Operation::Send { source: Source::Inline(b"x"), immediate: None, to: None };
    end.qp.post(Request::new(id, operation)).unwrap();
}

/// Writes zeros over the rings between a thread and its peers, as any process that maps them can.
fn wipe_rings(end: &End) {
    let engine = &mut *end.thread.engine.borrow_mut();
    for link in engine.port.split().0.links.iter().flatten() {
        let Remote::Thread { link, .. } = &link.peer else { panic!("another process") };
        let len = (link.len() - 256) / 2;
        for start in [256, 256 + len] {
            let ring = Words::of_region(link, start, len).unwrap();
            for word in 16..len / 8 {
                // SAFETY: the word lies inside the region, and other accesses to it are atomic or made by this thread.
                unsafe { ring.word(word) }.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn a_message_that_was_wiped_out_of_its_ring_ends_its_connection() {
    for waits in [false, true] {
        let (mut end, mut other) = connected_pair();
        send_one(&mut end, 1);
        wipe_rings(&end);
        assert!(other.poll().is_empty());
        let since = std::time::Instant::now();
        let mut completions = Vec::new();
        while end.queue.poll(&mut completions, 1) == 0 {
            if waits {
                end.queue.wait(None).unwrap();
            }
            assert!(since.elapsed().as_secs() < 20, "waits: {waits}");
        }
        assert_eq!((completions[0].id, completions[0].status), (1, Status::RetryExceeded));
        assert_eq!(end.qp.state(), QpState::Error);
    }
}

#[test]
fn a_message_whose_acknowledgement_was_wiped_out_ends_its_connection_once_its_peer_has_turned_again_and_again() {
    let (mut end, mut other) = connected_pair();
    send_one(&mut end, 1);
    send_one(&mut end, 2);
    assert_eq!(other.poll().len(), 2);
    wipe_rings(&end);
    let mut look = |other: &mut End| {
        end.thread.engine.borrow_mut().probe_acks();
        // A packet taken in one turn is given back in the next.
        assert!(other.poll().is_empty() && other.poll().is_empty());
        end.poll().iter().map(|completion| (completion.id, completion.status)).collect::<Vec<_>>()
    };
    (0..20).for_each(|_| assert!(look(&mut other).is_empty(), "it may be on its way"));
    let ends: Vec<_> = (0..20).flat_map(|_| look(&mut other)).collect();
    assert_eq!(ends, [(1, Status::RetryExceeded), (2, Status::Flushed)]);
}

#[test]
fn a_peer_that_stands_still_keeps_its_connection_whether_it_has_taken_the_message_or_not() {
    for is_taken in [true, false] {
        let (mut end, mut other) = connected_pair();
        if is_taken {
            // The peer is to find no room for its acknowledgement.
            let config = QpConfig { send_depth: 8, receive_depth: 8, ..QpConfig::new(Transport::Uc) };
            let mut filler = other.thread.queue_pair(&config, &other.queue, &other.queue).unwrap();
            let mut sink = end.thread.queue_pair(&config, &end.queue, &end.queue).unwrap();
            filler.connect(Some(&sink.address())).unwrap();
            sink.connect(Some(&filler.address())).unwrap();
            while other.thread.discarded(Discarded::Full) == 0 {
                let operation = Operation::Send { source: Source::Empty, immediate: None, to: None };
                filler.post(Request::new(1, operation)).unwrap();
                assert_eq!(other.queue.poll(&mut Vec::new(), 1), 1);
            }
        }
        send_one(&mut end, 1);
        if is_taken {
            assert_eq!(other.poll().len(), 1);
            assert!(other.poll().is_empty());
        }
        let ends: Vec<_> = (0..100)
            .flat_map(|_| {
                end.thread.engine.borrow_mut().probe_acks();
                end.poll()
            })
            .collect();
        assert!(ends.is_empty(), "taken: {is_taken}: {ends:?}");
        assert_eq!(other.poll().len(), usize::from(!is_taken));
        assert_eq!(end.poll().len(), 1, "it was only slow");
    }
}

#[test]
fn long_packets_to_those_who_take_none_leave_room_for_others() {
    let mut end = End::new(Transport::Ud);
    end.qp.connect(None).unwrap();
    let mut others: Vec<End> = (0..4).map(|_| End::new(Transport::Ud)).collect();
    let mut buffer = end.arena.alloc(1000, 1000).unwrap();
    buffer.fill(&[7; 1000]).unwrap();
    let buffer = buffer.freeze();
    for (at, other) in others.iter_mut().enumerate() {
        other.qp.connect(None).unwrap();
        other.post_receive(1, 1000);
        let to = Some(end.thread.destination(&other.qp.address()).unwrap());
        let mut send = || {
            let source = Source::from(buffer.clone());
            end.qp.post(Request::new(1, Operation::Send { source, immediate: None, to })).unwrap();
            assert_eq!(end.queue.poll(&mut Vec::new(), 1), 1);
            end.thread.discarded(Discarded::Full)
        };
        let before = send();
        if at + 1 < 4 {
            // Send until the link has as many buffers as it may have.
            while send() == before {}
        } else {
            assert_eq!(&other.poll()[0].buffers[0][..], [7; 1000]);
        }
    }
}
