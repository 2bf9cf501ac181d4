//! Every operation, on every transport that has it.

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Exposed, GATHER_MAX, Opcode, Operation, PostError, QpState, QueuePair, RemoteMemory,
    Request, Scatter, Source, Status, ThreadDomain, Verb,
};

use super::ends::*;
use super::*;

/// The device's limits leave something to use.
pub fn attributes_make_sense<F: Fixture>(fixture: &F) {
    let device = fixture.device();
    let attributes = device.attributes();
    assert!(!attributes.name.is_empty());
    assert!(attributes.mtu >= 256 && attributes.message_len_max >= attributes.mtu, "{attributes:?}");
    assert!((1..=GATHER_MAX).contains(&attributes.gather_max), "{attributes:?}");
    assert!(attributes.queue_depth_max >= DEPTH && attributes.reads_max >= 1, "{attributes:?}");
    assert_eq!(fixture.device().attributes().mtu, attributes.mtu);
}

/// Messages arrive as they were sent: inline or not, with or without an immediate, in buffers that they fill and in
/// larger ones.
pub fn messages_of_every_length_arrive_intact<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::large(fixture, transport);
        for (number, len) in pair.message_lengths().into_iter().enumerate() {
            let bytes = pattern(number, len);
            let share = pair.near.frozen(&bytes);
            for (spare, immediate) in [(0, None), (9, Some(number as u32 | 0x8765_0000))] {
                let received = pair.transfer(len + spare, |pair| pair.send(share.clone().into(), immediate));
                assert_message(&received, &bytes, immediate);
                if len <= pair.near.config.inline_max {
                    let received = pair.transfer(len + spare, |pair| pair.send(Source::Inline(&bytes), immediate));
                    assert_message(&received, &bytes, immediate);
                }
            }
        }
    }
}

/// A message without bytes needs no buffer, and its immediate arrives unchanged; an immediate of zero differs from
/// none.
pub fn header_only_messages_carry_their_immediate<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(64);
        for immediate in [Some(0), None, Some(1), Some(0x0102_0304), Some(u32::MAX)] {
            pair.far.qp.post_receive(1, Scatter::new()).expect("a receive without buffers is taken");
            let received = pair.deliver(1, |pair| pair.send(Source::Empty, immediate));
            assert_message_of_nothing(&received, Opcode::Receive, immediate);
            if let (Some(_), true) = (immediate, transport.is_connected()) {
                let remote = memory.remote();
                let write = |_: &Pair<'_, F>| Operation::Write { source: Source::Empty, remote, immediate };
                let received = pair.transfer(0, write);
                assert_message_of_nothing(&received, Opcode::ReceiveWrite, immediate);
            }
        }
        assert_eq!(read(&memory, 0, 64), [0; 64]);
    }
}

fn assert_message_of_nothing(received: &Completion, opcode: Opcode, immediate: Option<u32>) {
    assert_eq!((received.opcode, received.len, received.immediate), (opcode, 0, immediate));
    assert!(joined(&received.buffers).is_empty());
}

/// Written bytes appear at their destination, and nothing beside them changes.
pub fn writes_of_every_length_land_where_they_were_aimed<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        let mut pair = Pair::large(fixture, transport);
        let memory = pair.far.expose(LONGEST + 256);
        for (number, len) in pair.message_lengths().into_iter().enumerate() {
            let offset = 64 + number * 5 % 64;
            let bytes = pattern(number + 1, len);
            memory.write(0, &vec![FILL; memory.len()]).expect("our own memory");
            let share = pair.near.frozen(&bytes);
            let inline = len <= pair.near.config.inline_max && number % 2 == 1;
            let remote = memory.remote().at(offset as u64).expect("inside the memory");
            loop {
                let source = if inline { Source::Inline(&bytes) } else { share.clone().into() };
                pair.near.post(Request::new(5, Operation::Write { source, remote, immediate: None }));
                assert_eq!(pair.expect_success(5).opcode, Opcode::Write);
                let is_there = |pair: &mut Pair<'_, F>| {
                    // Without acknowledgements the bytes may still be in flight.
                    let is_there = read(&memory, offset, len) == bytes;
                    (is_there || transport == Transport::Rc || pair.is_lossy()).then_some(is_there)
                };
                if pair.eventually("what was written appears", is_there) {
                    break;
                }
                assert!(transport != Transport::Rc, "a WRITE of {len} bytes is over, and they are not there");
                pair.wait_briefly();
            }
            assert!(read(&memory, 0, offset).iter().all(|&byte| byte == FILL), "nothing before {len} bytes changes");
            let behind = offset + len;
            let rest = read(&memory, behind, memory.len() - behind);
            assert!(rest.iter().all(|&byte| byte == FILL), "nothing behind {len} bytes changes");
        }
    }
}

/// A WRITE with immediate writes, and completes one of the peer's receives without using any byte of it.
pub fn a_write_with_immediate_completes_a_receive<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        let mut pair = Pair::large(fixture, transport);
        let memory = pair.far.expose(LONGEST + 8);
        for (number, len) in pair.message_lengths().into_iter().enumerate() {
            let bytes = pattern(number, len);
            let share = pair.near.frozen(&bytes);
            let remote = memory.remote().at(8).expect("inside the memory");
            let immediate = Some(0x0A0B_0C00 + number as u32);
            // Without a buffer, or with one smaller than what is written.
            let received = pair.transfer(number % 2 * 16, |_| {
                let source = share.clone().into();
                Operation::Write { source, remote, immediate }
            });
            assert_eq!((received.opcode, received.len), (Opcode::ReceiveWrite, len));
            assert_eq!(received.immediate, immediate);
            assert!(joined(&received.buffers).is_empty(), "nothing arrived in the buffer");
            assert!(read(&memory, 8, len) == bytes, "{transport:?}: {len} bytes are there when the receive completes");
        }
    }
}

/// A READ brings the contents of the peer's memory at its address.
pub fn reads_of_every_length_bring_what_is_there<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::large(fixture, transport);
    let memory = pair.far.expose(LONGEST + 64);
    for (number, len) in pair.message_lengths().into_iter().enumerate() {
        let offset = number * 3 % 64;
        let bytes = pattern(number + 100, len);
        memory.write(offset, &bytes).expect("inside the memory");
        let remote = memory.remote().at(offset as u64).expect("inside the memory");
        let target = pair.near.buffers(&[len]);
        pair.near.post(Request::new(6, Operation::Read { target, remote }));
        let completion = pair.expect_success(6);
        assert_eq!((completion.opcode, completion.len), (Opcode::Read, len));
        assert!(joined(&completion.buffers) == bytes, "{len} bytes were read as others");
    }
}

/// Compare-and-swap and fetch-and-add change their word, and return its old value.
pub fn an_atomic_returns_what_was_there<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    if !pair.near.allows(Verb::FetchAdd) {
        return;
    }
    let memory = pair.far.expose(24);
    let remote = memory.remote().at(8).expect("inside the memory");
    let mut expected: u64 = 0x0102_0304_0506_0708;
    memory.store(8, expected).expect("inside the memory");
    for add in [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0, 1 << 63] {
        let target = pair.near.buffer(8);
        pair.near.post(Request::new(1, Operation::FetchAdd { target, remote, add }));
        let completion = pair.expect_success(1);
        assert_eq!((completion.opcode, completion.len, word(&completion)), (Opcode::FetchAdd, 8, expected));
        expected = expected.wrapping_add(add);
        assert_eq!(memory.load(8), Ok(expected));
    }
    for (guess, desired) in [(expected, 5), (expected, 6), (5, u64::MAX), (u64::MAX - 1, 7), (u64::MAX, 0)] {
        let was = memory.load(8).expect("inside the memory");
        let target = pair.near.buffer(16);
        let swap = Operation::CompareSwap { target, remote, expected: guess, desired };
        pair.near.post(Request::new(2, swap));
        let completion = pair.expect_success(2);
        assert_eq!((completion.opcode, completion.len, word(&completion)), (Opcode::CompareSwap, 8, was));
        let rest = &completion.buffers[0][8..];
        assert!(rest.iter().all(|&byte| byte == FILL), "of a target only the first 8 bytes are written");
        assert_eq!(memory.load(8), Ok(if guess == was { desired } else { was }));
    }
    assert_eq!((memory.load(0), memory.load(16)), (Ok(0), Ok(0)), "the words beside it");
}

/// An operation of the given verb on some memory.
fn any<F: Fixture>(pair: &Pair<'_, F>, verb: Verb, remote: RemoteMemory) -> Operation<'static> {
    let source = Source::Inline(b"nothing");
    match verb {
        Verb::Send => pair.send(source, None),
        Verb::Write => Operation::Write { source, remote, immediate: None },
        Verb::WriteWithImmediate => Operation::Write { source, remote, immediate: Some(1) },
        Verb::Read => Operation::Read { target: pair.near.buffers(&[8]), remote },
        Verb::CompareSwap => {
            Operation::CompareSwap { target: pair.near.buffer(8), remote, expected: 0, desired: u64::MAX }
        }
        Verb::FetchAdd => Operation::FetchAdd { target: pair.near.buffer(8), remote, add: 1 },
    }
}

/// An operation that is not in Table 1 of atc16 is refused when it is pushed, gives its targets back, and does nothing.
pub fn what_a_transport_lacks_is_refused_and_disturbs_nothing<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(64);
        pair.far.receive(3, 64);
        for verb in Verb::ALL {
            if pair.near.allows(verb) {
                continue;
            }
            let operation = any(&pair, verb, memory.remote());
            let refused = pair.near.qp.push(Request::new(9, operation)).expect_err("the transport has no such thing");
            assert_eq!(refused.error, PostError::NotOnTransport(verb, transport));
            let targets = usize::from(matches!(verb, Verb::Read | Verb::CompareSwap | Verb::FetchAdd));
            assert_eq!(refused.buffers.len(), targets, "{verb:?} gives its targets back");
            pair.near.qp.doorbell();
        }
        pair.assert_quiet("what was refused does nothing");
        assert_eq!((pair.near.qp.state(), read(&memory, 0, 64)), (QpState::ReadyToSend, vec![0; 64]));
        pair.near.post(Request::new(4, any(&pair, Verb::Send, memory.remote())));
        pair.expect_success(4);
        if !pair.is_lossy() {
            assert_eq!(pair.next_received("what is allowed goes on").id, 3);
        }
    }
}

/// Two queue pairs of one thread, on the same completion queues, are no exception.
pub fn queue_pairs_of_one_thread_reach_each_other<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        if transport != Transport::Rc && fixture.expectations().lossless != Promise::Kept {
            continue;
        }
        let device = fixture.device();
        let mut end = End::new(device.clone(), &config(&device, transport));
        let mut other = end.thread.queue_pair(&end.config, &end.sends, &end.receives).expect("a queue pair");
        let addresses = (end.qp.address(), other.address());
        assert_ne!(end.qp.number(), other.number(), "numbers are unique at a device");
        let peer = |address| transport.is_connected().then_some(address);
        end.qp.connect(peer(&addresses.1)).expect("a connection");
        other.connect(peer(&addresses.0)).expect("a connection");
        let to = (!transport.is_connected()).then(|| end.thread.destination(&addresses.1).expect("a way"));
        let bytes = pattern(3, 200);
        let memory = end.expose(200);
        let (source, remote) = (Source::from(end.frozen(&bytes)), memory.remote());
        let mut requests = vec![Operation::Send { source: source.clone(), immediate: Some(7), to }];
        if transport.is_connected() {
            requests.push(Operation::Write { source, remote, immediate: Some(8) });
        }
        let now_ns = || fixture.now_ns();
        let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
        for (id, operation) in requests.into_iter().enumerate() {
            other.post_buffer(1, end.buffer(256)).expect("a receive is taken");
            end.post(Request::new(id as u64, operation));
            let over = |ends: &mut [&mut End<F::Device>]| {
                (!ends[0].sent.is_empty() && !ends[0].received.is_empty()).then_some(())
            };
            eventually(watch, &mut [&mut end], "a message between queue pairs of one thread", over);
            let (sent, received) = (end.sent.pop_front(), end.received.pop_front());
            let (sent, received) = (sent.expect("not empty"), received.expect("not empty"));
            assert_eq!((sent.qp, sent.id, sent.status), (end.qp.number(), id as u64, Status::Success));
            assert_eq!((received.qp, received.status), (other.number(), Status::Success));
            assert_eq!((received.len, received.immediate), (200, Some(7 + id as u32)));
            if id == 0 {
                assert_message(&received, &bytes, Some(7));
            } else {
                assert_eq!(read(&memory, 0, 200), bytes);
            }
        }
        assert_eq!(end.sends.poll(&mut Vec::new(), 1), 0);
    }
}
