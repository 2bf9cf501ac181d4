//! The order of requests, messages and effects.

use sinew_fabric::verbs::{Exposed, Opcode, Operation, QueuePair, RemoteMemory, Request, Source, Verb};

use super::ends::*;
use super::*;

/// Completions of requests of any kind come in the order in which they were pushed.
pub fn requests_complete_in_the_order_pushed<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(64 << 10);
        let verbs: Vec<Verb> = Verb::ALL.into_iter().filter(|&verb| pair.near.allows(verb)).collect();
        let share = pair.near.frozen(&pattern(1, if transport.is_connected() { 20_000 } else { 200 }));
        for round in 0..6u64 {
            // Long and short ones, in another sequence each round.
            let verb = |id: u64| verbs[(id * (round + 1) + id / 3) as usize % verbs.len()];
            let takes_receive = |&id: &u64| matches!(verb(id), Verb::Send | Verb::WriteWithImmediate);
            let messages: Vec<u64> = (0..DEPTH as u64).filter(takes_receive).collect();
            for &id in &messages {
                pair.far.receive(id, share.len());
            }
            for id in 0..DEPTH as u64 {
                let long = (id + round) % 3 == 0;
                let source = if long { share.clone().into() } else { Source::Inline(b"short") };
                let operation = operation_for(&pair, verb(id), source, memory.remote(), if long { 30_000 } else { 8 });
                pair.near.push(Request::new(round << 32 | id, operation));
            }
            pair.near.qp.doorbell();
            for id in 0..DEPTH as u64 {
                let completion = pair.expect_success(round << 32 | id);
                assert_eq!(completion.opcode, opcode(verb(id)));
            }
            if pair.is_lossy() {
                break;
            }
            for id in messages {
                assert_eq!(pair.next_received("the messages among them arrive").id, id);
            }
        }
    }
}

fn operation_for<'a, F: Fixture>(
    pair: &Pair<'_, F>,
    verb: Verb,
    source: Source<'a>,
    remote: RemoteMemory,
    read_len: usize,
) -> Operation<'a> {
    let near = &pair.near;
    match verb {
        Verb::Send => pair.send(source, None),
        Verb::Write => Operation::Write { source, remote, immediate: None },
        Verb::WriteWithImmediate => Operation::Write { source, remote, immediate: Some(1) },
        Verb::Read => Operation::Read { target: near.buffers(&[read_len]), remote },
        Verb::CompareSwap => Operation::CompareSwap { target: near.buffer(8), remote, expected: 0, desired: 1 },
        Verb::FetchAdd => Operation::FetchAdd { target: near.buffer(8), remote, add: 1 },
    }
}

fn opcode(verb: Verb) -> Opcode {
    match verb {
        Verb::Send => Opcode::Send,
        Verb::Write | Verb::WriteWithImmediate => Opcode::Write,
        Verb::Read => Opcode::Read,
        Verb::CompareSwap => Opcode::CompareSwap,
        Verb::FetchAdd => Opcode::FetchAdd,
    }
}

/// Messages from one queue pair to another take receives in the order in which those were posted, and none overtakes
/// another.
pub fn messages_arrive_in_the_order_sent<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let mut last = None;
        let mtu = pair.near.device.attributes().mtu;
        let longest = if transport.is_connected() { 3 * mtu } else { mtu };
        let message = |number: usize| pattern(number, 8 + number * 337 % (longest - 8));
        for round in 0..12usize {
            for index in 0..DEPTH {
                pair.far.receive((round * DEPTH + index) as u64, longest);
            }
            for index in 0..DEPTH {
                let number = round * DEPTH + index;
                let bytes = message(number);
                let source = if bytes.len() <= pair.near.config.inline_max {
                    Source::Inline(&bytes)
                } else {
                    pair.near.frozen(&bytes).into()
                };
                let operation = pair.send(source, Some(number as u32));
                pair.near.push(Request::new(number as u64, operation));
                if index % 3 == 0 {
                    pair.near.qp.doorbell();
                }
            }
            pair.near.qp.doorbell();
            for index in 0..DEPTH {
                pair.expect_success((round * DEPTH + index) as u64);
            }
            for index in 0..DEPTH {
                let number = round * DEPTH + index;
                if pair.is_lossy() {
                    let Some(received) = pair.try_next_received() else { break };
                    let number = received.immediate.expect("every message has one") as usize;
                    assert!(last.is_none_or(|last| last < number), "message {number} after {last:?}");
                    last = Some(number);
                    assert_message(&received, &message(number), Some(number as u32));
                } else {
                    let received = pair.next_received("messages arrive");
                    assert_eq!((received.id, received.immediate), (number as u64, Some(number as u32)));
                    assert_message(&received, &message(number), Some(number as u32));
                }
            }
            if pair.is_lossy() {
                break;
            }
        }
    }
}

/// With a SEND behind a WRITE: once the message is there, so is what was written.
pub fn what_was_written_is_there_when_a_later_message_arrives<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        let mut pair = Pair::new(fixture, transport);
        if pair.is_lossy() {
            continue;
        }
        let memory = pair.far.expose(64 << 10);
        for round in 0..60usize {
            let len = [8, 64, 1000, 5000, 40_000][round % 5];
            let bytes = pattern(round, len);
            let (source, remote) = (pair.near.frozen(&bytes).into(), memory.remote());
            pair.far.receive(round as u64, 8);
            pair.near.push(Request::new(1, Operation::Write { source, remote, immediate: None }).unsignaled());
            let operation = pair.send(Source::Inline(b"written"), None);
            pair.near.push(Request::new(2, operation));
            pair.near.qp.doorbell();
            assert_eq!(pair.next_received("a message behind a WRITE").id, round as u64);
            assert!(
                read(&memory, 0, len) == bytes,
                "{transport:?}: the message arrived before the {len} bytes written"
            );
            pair.expect_success(2);
        }
    }
}

/// A READ behind a WRITE of the same queue pair brings what was written.
pub fn a_read_brings_what_was_written_before_it<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(32 << 10);
    for round in 0..30usize {
        let len = [8, 100, 9000, 32_768][round % 4];
        let bytes = pattern(round, len);
        let (source, remote) = (pair.near.frozen(&bytes).into(), memory.remote());
        pair.near.push(Request::new(1, Operation::Write { source, remote, immediate: None }).unsignaled());
        let target = pair.near.buffers(&[len]);
        pair.near.push(Request::new(2, Operation::Read { target, remote }));
        pair.near.qp.doorbell();
        assert!(joined(&pair.expect_success(2).buffers) == bytes, "a READ came before a WRITE of {len} bytes");
    }
}

/// A WRITE with a fence leaves the memory alone until the READs before it are over.
pub fn a_fenced_write_waits_for_the_read_before_it<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let len = 64 << 10;
    let memory = pair.far.expose(len);
    let mut before = vec![0; len];
    for round in 0..20 {
        let after = pattern(round, len);
        let (source, remote) = (pair.near.frozen(&after).into(), memory.remote());
        let target = pair.near.buffers(&[len]);
        pair.near.push(Request::new(1, Operation::Read { target, remote }));
        let write = Request::new(2, Operation::Write { source, remote, immediate: None });
        pair.near.push(Request { fence: true, ..write });
        pair.near.qp.doorbell();
        assert!(joined(&pair.expect_success(1).buffers) == before, "the fenced WRITE came before the READ");
        pair.expect_success(2);
        before = after;
    }
}

/// Atomics of one queue pair take effect one after another.
pub fn atomics_of_one_queue_pair_take_effect_in_order<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    if !pair.near.allows(Verb::FetchAdd) {
        return;
    }
    let memory = pair.far.expose(8);
    let mut next = 0;
    for _ in 0..4 {
        for id in 0..DEPTH as u64 {
            let target = pair.near.buffer(8);
            pair.near.push(Request::new(id, Operation::FetchAdd { target, remote: memory.remote(), add: 1 }));
        }
        pair.near.qp.doorbell();
        for id in 0..DEPTH as u64 {
            assert_eq!(word(&pair.expect_success(id)), next);
            next += 1;
        }
    }
    assert_eq!(memory.load(0), Ok(next));
}
