//! Every verb on every transport, between two queue pairs on one device.

mod common;

use common::{Pair, assert_ok, assert_silent, config, pattern};
use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Opcode, Operation, PostError, ProtectionDomain, QpConfig,
    QueuePair, Request, Scatter, Slice, Source, ThreadDomain, Transport, Verb,
};

fn write(pair: &Pair, bytes: &[u8], remote: sinew_fabric::verbs::RemoteMemory) -> Operation<'static> {
    Operation::Write { source: pair.buffer(bytes).freeze().into(), remote, immediate: None }
}

#[test]
fn every_verb_does_on_every_transport_what_it_says_or_is_refused() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        let memory = pair.domain.expose(4096, Access::ALL).unwrap();
        memory.write(1000, b"there").unwrap();
        memory.store(64, 40).unwrap();
        let remote = memory.remote();
        for verb in Verb::ALL {
            let receives = matches!(verb, Verb::Send | Verb::WriteWithImmediate);
            if receives {
                let buffer = pair.empty(32);
                pair.b.qp.post_buffer(7, buffer).unwrap();
            }
            let operation = match verb {
                Verb::Send => pair.send(pair.buffer(b"hello").freeze()),
                Verb::Write => write(&pair, b"written", remote),
                Verb::WriteWithImmediate => {
                    let source = Source::Inline(b"and told");
                    Operation::Write { source, remote: remote.at(100).unwrap(), immediate: Some(0xA1B2_C3D4) }
                }
                Verb::Read => {
                    Operation::Read { target: [pair.empty(5)].into_iter().collect(), remote: remote.at(1000).unwrap() }
                }
                Verb::CompareSwap => {
                    let remote = remote.at(64).unwrap();
                    Operation::CompareSwap { target: pair.empty(8), remote, expected: 40, desired: 41 }
                }
                Verb::FetchAdd => Operation::FetchAdd { target: pair.empty(8), remote: remote.at(64).unwrap(), add: 2 },
            };
            let posted = pair.a.qp.post(Request::new(verb as u64, operation));
            if !transport.allows(verb) {
                assert_eq!(posted.unwrap_err().error, PostError::NotOnTransport(verb, transport));
                continue;
            }
            posted.unwrap();
            let done = pair.a.sent();
            assert_ok(&done);
            assert_eq!((done.id, done.qp), (verb as u64, pair.a.qp.number()), "{transport:?} {verb:?}");
            if receives {
                let arrived = pair.b.received();
                assert_ok(&arrived);
                assert_eq!((arrived.id, arrived.qp), (7, pair.b.qp.number()));
                check_arrived(verb, &arrived);
            }
            check_done(verb, &done, &memory);
        }
    }
}

fn check_arrived(verb: Verb, arrived: &Completion) {
    if verb == Verb::Send {
        assert_eq!((arrived.opcode, arrived.len, arrived.immediate), (Opcode::Receive, 5, None));
        assert_eq!(&arrived.buffers[0][..], b"hello");
    } else {
        assert_eq!((arrived.opcode, arrived.len, arrived.immediate), (Opcode::ReceiveWrite, 8, Some(0xA1B2_C3D4)));
        assert_eq!(arrived.buffers[0].len(), 0, "the buffer got nothing");
    }
}

fn check_done(verb: Verb, done: &Completion, memory: &impl Exposed) {
    let mut bytes = [0; 8];
    let old = || u64::from_ne_bytes(done.buffers[0][..8].try_into().unwrap());
    match verb {
        Verb::Send => assert_eq!((done.opcode, done.buffers.len()), (Opcode::Send, 0)),
        Verb::Write => {
            // Over UC, completion means sent, not arrived; on one device it arrives at once.
            std::thread::sleep(std::time::Duration::from_millis(50));
            memory.read(0, &mut bytes[..7]).unwrap();
            assert_eq!((done.opcode, &bytes[..7]), (Opcode::Write, &b"written"[..]));
        }
        Verb::WriteWithImmediate => {
            memory.read(100, &mut bytes).unwrap();
            assert_eq!((done.opcode, &bytes), (Opcode::Write, b"and told"));
        }
        Verb::Read => assert_eq!((done.opcode, &done.buffers[0][..]), (Opcode::Read, &b"there"[..])),
        Verb::CompareSwap => assert_eq!((done.opcode, old(), memory.load(64)), (Opcode::CompareSwap, 40, Ok(41))),
        Verb::FetchAdd => assert_eq!((done.opcode, old(), memory.load(64)), (Opcode::FetchAdd, 41, Ok(43))),
    }
}

#[test]
fn a_swap_that_finds_another_value_changes_nothing() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let memory = pair.domain.expose(8, Access::ALL).unwrap();
    memory.store(0, 5).unwrap();
    let swap = Operation::CompareSwap { target: pair.empty(8), remote: memory.remote(), expected: 4, desired: 9 };
    pair.a.qp.post(Request::new(0, swap)).unwrap();
    let done = pair.a.sent();
    assert_ok(&done);
    assert_eq!((&done.buffers[0][..], memory.load(0)), (&5u64.to_ne_bytes()[..], Ok(5)));
}

#[test]
fn messages_of_every_length_come_whole() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        let mtu = pair.device.attributes().mtu;
        let lens = [0, 1, 7, 64, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 1 << 20];
        for len in lens.into_iter().filter(|&len| transport != Transport::Ud || len <= mtu) {
            let bytes = pattern(len);
            let target = pair.empty(len);
            pair.b.qp.post_buffer(len as u64, target).unwrap();
            let source = pair.buffer(&bytes).freeze();
            pair.a.qp.post(Request::new(0, pair.send(source))).unwrap();
            let arrived = pair.b.received();
            assert_ok(&arrived);
            assert_eq!((arrived.len, arrived.buffers[0].len()), (len, len), "{transport:?}");
            assert!(arrived.buffers[0][..] == bytes, "{transport:?}: {len} bytes");
            assert_ok(&pair.a.sent());
        }
    }
}

#[test]
fn reads_and_writes_of_every_length_come_whole() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let mtu = pair.device.attributes().mtu;
    let memory = pair.domain.expose(1 << 20, Access::ALL).unwrap();
    for len in [0, 1, 9, mtu, mtu + 1, 1 << 20] {
        let bytes = pattern(len);
        let remote = memory.remote();
        pair.a.qp.push(Request::new(0, write(&pair, &bytes, remote)).unsignaled()).unwrap();
        let target = [pair.empty(len)].into_iter().collect();
        pair.a.qp.post(Request::new(1, Operation::Read { target, remote })).unwrap();
        let done = pair.a.sent();
        assert_ok(&done);
        assert!(done.id == 1 && done.buffers[0][..] == bytes, "{len} bytes");
    }
}

#[test]
fn a_header_alone_carries_four_bytes() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        pair.b.qp.post_receive(1, Scatter::new()).unwrap();
        let send = Operation::Send { source: Source::Empty, immediate: Some(0x0102_0304), to: pair.to_b() };
        pair.a.qp.post(Request::new(0, send)).unwrap();
        let arrived = pair.b.received();
        assert_ok(&arrived);
        assert_eq!((arrived.len, arrived.immediate), (0, Some(0x0102_0304)), "{transport:?}");
    }
}

#[test]
fn pieces_are_gathered_and_scattered() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        let target: Scatter = [2, 0, 4, 100].into_iter().map(|len| pair.empty(len)).collect();
        pair.b.qp.post_receive(1, target).unwrap();
        let piece = |start, len| Slice { buffer: pair.buffer(b"0123456789").freeze(), start, len };
        let source = Source::Gather([piece(0, 3), piece(5, 0), piece(7, 3), piece(3, 4)].into_iter().collect());
        pair.a.qp.post(Request::new(0, Operation::Send { source, immediate: None, to: pair.to_b() })).unwrap();
        let arrived = pair.b.received();
        assert_ok(&arrived);
        let parts: Vec<_> = arrived.buffers.iter().map(|buffer| &buffer[..]).collect();
        assert_eq!(parts, [&b"01"[..], b"", b"2789", b"3456"], "{transport:?}");
        assert_ok(&pair.a.sent());
    }
}

#[test]
fn what_is_pushed_starts_with_the_doorbell_and_in_order() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        for id in 0..20 {
            let buffer = pair.empty(64);
            pair.b.qp.post_buffer(id, buffer).unwrap();
        }
        for id in 0..20u64 {
            // Inline bytes are copied when they are pushed.
            let word = id.to_le_bytes();
            pair.a.qp.push(Request::new(id, pair.send(Source::Inline(&word)))).unwrap();
        }
        assert_silent(&mut pair.b.receives);
        pair.a.qp.doorbell();
        for id in 0..20u64 {
            let arrived = pair.b.received();
            assert_ok(&arrived);
            assert_eq!((arrived.id, &arrived.buffers[0][..]), (id, &id.to_le_bytes()[..]), "{transport:?}");
            assert_eq!(pair.a.sent().id, id);
        }
    }
}

#[test]
fn unsignaled_requests_are_over_when_a_later_one_tells() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let memory = pair.domain.expose(4096, Access::ALL).unwrap();
    let depth = config(Transport::Rc).send_depth as u64;
    // Three times around, to see that the places of unsignaled requests become free again.
    for round in 0..3 {
        for id in 0..depth - 1 {
            let operation = write(&pair, &id.to_le_bytes(), memory.remote());
            pair.a.qp.push(Request::new(id, operation).unsignaled()).unwrap();
        }
        pair.a.qp.push(Request::new(1000 + round, write(&pair, b"last", memory.remote()))).unwrap();
        let full = pair.a.qp.push(Request::new(0, write(&pair, b"x", memory.remote()))).unwrap_err();
        assert_eq!(full.error, PostError::QueueFull(depth as usize));
        pair.a.qp.doorbell();
        let done = pair.a.sent();
        assert_ok(&done);
        assert_eq!(done.id, 1000 + round);
        assert_silent(&mut pair.a.sends);
    }
}

#[test]
fn an_unsignaled_read_gives_its_buffer_back_before_the_one_that_tells() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let memory = pair.domain.expose(64, Access::ALL).unwrap();
    memory.write(0, b"abcd").unwrap();
    for (id, at) in [(1, 0), (2, 2)] {
        let target = [pair.empty(2)].into_iter().collect();
        let read = Operation::Read { target, remote: memory.remote().at(at).unwrap() };
        pair.a.qp.push(Request::new(id, read).unsignaled()).unwrap();
    }
    pair.a.qp.post(Request::new(3, write(&pair, b"z", memory.remote()))).unwrap();
    // Polled one at a time: the others wait.
    let completions: Vec<_> = (0..3).map(|_| pair.a.sent()).collect();
    completions.iter().for_each(assert_ok);
    assert_eq!(completions.iter().map(|done| done.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((&completions[0].buffers[0][..], &completions[1].buffers[0][..]), (&b"ab"[..], &b"cd"[..]));
}

#[test]
fn a_fenced_write_waits_for_the_reads_before_it() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let memory = pair.domain.expose(1 << 18, Access::ALL).unwrap();
    for round in 0..20u64 {
        memory.store(0, round).unwrap();
        let target = [pair.empty(1 << 18)].into_iter().collect();
        pair.a.qp.push(Request::new(1, Operation::Read { target, remote: memory.remote() })).unwrap();
        let mut after = Request::new(2, write(&pair, &u64::MAX.to_ne_bytes(), memory.remote()));
        after.fence = true;
        pair.a.qp.post(after).unwrap();
        let read = pair.a.sent();
        assert_ok(&read);
        assert_eq!(read.buffers[0][..8], round.to_ne_bytes());
        assert_ok(&pair.a.sent());
    }
}

#[test]
fn queue_pairs_share_completion_queues_as_far_as_they_hold() {
    let Some(device) = common::device() else { return };
    let domain = device.protection_domain().unwrap();
    let arena = domain.arena(1 << 20).unwrap();
    let thread = domain.thread().unwrap();
    let mut cq = thread.completion_queue(64).unwrap();
    let config = QpConfig { send_depth: 8, receive_depth: 8, ..QpConfig::new(Transport::Rc) };
    let mut qps: Vec<_> = (0..4).map(|_| thread.queue_pair(&config, &cq, &cq).unwrap()).collect();
    let refused = thread.queue_pair(&config, &cq, &cq).unwrap_err().to_string();
    assert!(refused.contains("72") && refused.contains("64"), "{refused}");
    for pair in qps.chunks_mut(2) {
        let [a, b] = pair else { unreachable!("an even number") };
        let (to_a, to_b) = (a.address(), b.address());
        a.connect(Some(&to_b)).unwrap();
        b.connect(Some(&to_a)).unwrap();
        b.post_buffer(u64::from(b.number().0), arena.alloc(16, 16).unwrap()).unwrap();
        let send = Operation::Send { source: Source::Inline(b"x"), immediate: Some(b.number().0), to: None };
        a.post(Request::new(u64::from(a.number().0), send)).unwrap();
    }
    let mut done: Vec<_> = (0..4).map(|_| common::next(&mut cq)).collect();
    done.iter().for_each(assert_ok);
    assert!(done.iter().all(|done| done.id == u64::from(done.qp.0) && done.immediate.is_none_or(|of| of == done.qp.0)));
    done.sort_by_key(|done| done.qp);
    qps.sort_by_key(|qp| qp.number());
    assert!(done.iter().zip(&qps).all(|(done, qp)| done.qp == qp.number()));
    // The room of a queue pair that is dropped is free again.
    qps.pop();
    thread.queue_pair(&config, &cq, &cq).unwrap();
}

#[test]
fn at_most_so_many_are_polled_as_asked_for() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let memory = pair.domain.expose(64, Access::ALL).unwrap();
    for id in 0..10 {
        let target = [pair.empty(8)].into_iter().collect();
        pair.a.qp.push(Request::new(id, Operation::Read { target, remote: memory.remote() }).unsignaled()).unwrap();
    }
    pair.a.qp.post(Request::new(10, write(&pair, b"z", memory.remote()))).unwrap();
    let mut ids = vec![pair.a.sent().id];
    for max in [0, 3, 4, 100] {
        let mut completions = Vec::new();
        assert!(pair.a.sends.poll(&mut completions, max) <= max && completions.len() <= max);
        ids.extend(completions.iter().map(|done| done.id));
    }
    assert_eq!(ids, (0..=10).collect::<Vec<_>>());
}

#[test]
fn the_devices_limits_are_refused_with_their_names() {
    let Some(device) = common::device() else { return };
    let attributes = device.attributes().clone();
    let domain = device.protection_domain().unwrap();
    let thread = domain.thread().unwrap();
    let cq = thread.completion_queue(1024).unwrap();
    let base = QpConfig { send_depth: 8, receive_depth: 8, ..QpConfig::new(Transport::Rc) };
    for (config, word) in [
        (QpConfig { send_depth: attributes.queue_depth_max + 1, ..base }, "requests"),
        (QpConfig { receive_depth: attributes.queue_depth_max + 1, ..base }, "receives"),
        (QpConfig { inline_max: attributes.inline_max + 1, ..base }, "inline"),
        (QpConfig { gather_max: attributes.gather_max + 1, ..base }, "pieces"),
        (QpConfig { rnr_retries: 8, ..base }, "not ready"),
    ] {
        let refused = thread.queue_pair(&config, &cq, &cq).unwrap_err().to_string();
        assert!(refused.contains(word), "{refused}");
    }
    let most = QpConfig { inline_max: attributes.inline_max, gather_max: attributes.gather_max, ..base };
    for transport in Transport::ALL {
        thread.queue_pair(&QpConfig { transport, ..most }, &cq, &cq).unwrap();
    }
    assert!(thread.completion_queue(usize::MAX / 2).is_err());
    let other = domain.thread().unwrap();
    assert!(other.queue_pair(&base, &cq, &cq).is_err(), "queues stay with their thread");
}
