//! Sources and targets of bytes: inline, gathered from shares, scattered over buffers.

use sinew_fabric::verbs::{
    Device, Exposed, Operation, PostError, ProtectionDomain, QpConfig, QueuePair, Request, Scatter, Slice, Source,
    ThreadDomain, Transport, Verb, VerbsError,
};
use sinew_mem::{Arena, Frozen};

use super::ends::*;
use super::*;

/// Inline bytes are the caller's again as soon as they are pushed.
pub fn inline_bytes_are_copied_when_they_are_pushed<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let bytes = pattern(4, pair.near.config.inline_max);
        let memory = pair.far.expose(64);
        let mut reused = bytes.clone();
        pair.far.receive(1, 64);
        let operation = pair.send(Source::Inline(&reused), None);
        pair.near.push(Request::new(1, operation));
        reused.fill(0xFF);
        if transport.is_connected() {
            reused.copy_from_slice(&bytes);
            let (source, remote) = (Source::Inline(&reused), memory.remote());
            pair.near.push(Request::new(2, Operation::Write { source, remote, immediate: None }));
            reused.fill(0xFF);
        }
        pair.near.qp.doorbell();
        reused.fill(0);
        pair.expect_success(1);
        if transport.is_connected() {
            pair.expect_success(2);
        }
        if pair.is_lossy() {
            continue;
        }
        assert_message(&pair.next_received("an inline message"), &bytes, None);
        if transport.is_connected() {
            let is_there = |_: &mut Pair<'_, F>| (read(&memory, 0, bytes.len()) == bytes).then_some(());
            pair.eventually("the inline bytes of a WRITE appear", is_there);
        }
    }
}

/// A queue pair takes as many inline bytes as it was made for, and not one more.
pub fn both_sides_of_the_inline_limit<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let inline_max = fixture.device().attributes().inline_max;
        for limit in [0, inline_max.min(28), inline_max] {
            let mut pair = Pair::with(fixture, transport, |config| QpConfig { inline_max: limit, ..config });
            let bytes = pattern(limit, limit + 1);
            let remote = pair.far.expose(8).remote();
            let mut operations = vec![pair.send(Source::Inline(&bytes), None)];
            if transport.is_connected() {
                operations.push(Operation::Write { source: Source::Inline(&bytes), remote, immediate: None });
            }
            for operation in operations {
                let refused = pair.near.qp.push(Request::new(1, operation)).expect_err("one byte more than the limit");
                assert_eq!(refused.error, PostError::InlineTooLong { len: limit + 1, limit });
            }
            let received = pair.transfer(limit, |pair| pair.send(Source::Inline(&bytes[..limit]), None));
            assert_message(&received, &bytes[..limit], None);
        }
        let device = fixture.device();
        let config = QpConfig { inline_max: inline_max + 1, ..config(&device, transport) };
        let end = End::new(device.clone(), &QpConfig { inline_max: 0, ..config });
        let refused = end.thread.queue_pair(&config, &end.sends, &end.receives).err().expect("over the device's limit");
        assert!(matches!(refused, VerbsError::Limit { limit, .. } if limit == inline_max), "{refused}");
    }
}

/// The queue pair holds a share until the request is over, and releases it with the completion that says so.
pub fn a_source_is_shared_until_its_request_is_over<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let bytes = pattern(1, 200);
        pair.far.receive(1, 200);
        pair.far.receive(2, 200);
        let (signaled, unsignaled) = (pair.near.frozen(&bytes), pair.near.frozen(&bytes));
        let operation = pair.send(unsignaled.clone().into(), None);
        pair.near.push(Request::new(1, operation).unsignaled());
        let operation = pair.send(signaled.clone().into(), None);
        pair.near.push(Request::new(2, operation));
        let (signaled, unsignaled) =
            (signaled.thaw().expect_err("it was not sent"), unsignaled.thaw().expect_err("it was not sent"));
        pair.near.qp.doorbell();
        pair.expect_success(2);
        for share in [signaled, unsignaled] {
            let mut buffer = share.thaw().expect("the request is over, and nobody else has a share");
            buffer[..].fill(0);
        }
    }
}

/// Frozen bytes can be read, and posted again, while requests are in flight.
pub fn a_source_can_be_read_and_posted_again_meanwhile<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let bytes = pattern(9, 240);
        let share = pair.near.frozen(&bytes);
        for id in 0..DEPTH as u64 {
            pair.far.receive(id, 240);
        }
        for id in 0..DEPTH {
            // Each sends a different part of the same share.
            let slice = Slice { buffer: share.clone(), start: id, len: 200 + id };
            let operation = pair.send(Source::Gather([slice].into_iter().collect()), None);
            pair.near.post(Request::new(id as u64, operation));
            assert_eq!(share[..], bytes[..]);
        }
        for id in 0..DEPTH {
            pair.expect_success(id as u64);
        }
        for id in 0..DEPTH {
            if pair.is_lossy() {
                break;
            }
            assert_message(&pair.next_received("each message"), &bytes[id..200 + 2 * id], None);
        }
        assert!(share.thaw().is_ok());
    }
}

/// A message that waits for a receive holds its share, or no longer needs it.
pub fn a_source_that_thaws_is_not_read_any_more<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for len in [8, 300, 100_000] {
        let mut pair = Pair::new(fixture, transport);
        let bytes = pattern(len, len);
        let share = pair.near.frozen(&bytes);
        let operation = pair.send(share.clone().into(), None);
        pair.near.post(Request::new(1, operation));
        pair.wait_briefly();
        let held = match share.thaw() {
            Ok(mut buffer) => {
                buffer[..].fill(0xFF);
                None
            }
            Err(share) => Some(share),
        };
        pair.far.receive(1, len);
        assert_message(&pair.next_received("a receive was posted"), &bytes, None);
        pair.expect_success(1);
        assert!(held.is_none_or(|share| share.thaw().is_ok()), "the request is over");
    }
}

fn pieces(pieces: impl IntoIterator<Item = (Frozen, usize, usize)>) -> Source<'static> {
    Source::Gather(pieces.into_iter().map(|(buffer, start, len)| Slice { buffer, start, len }).collect())
}

/// Pieces make one message, one after the other; some may be empty.
pub fn a_source_is_gathered_from_its_pieces_in_order<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(1024);
        let limit = pair.near.config.gather_max;
        let few = [[3, 64, 1, 100], [8, 0, 8, 0], [0, 0, 0, 1], [100, 31, 64, 5], [0; 4]];
        let few = few.map(|lens| lens[..limit.min(4)].to_vec());
        for lens in few.into_iter().chain([(0..limit).map(|at| at % 5 * 3).collect()]) {
            let whole = pattern(lens[0], 128 * limit.max(4));
            let share = pair.near.frozen(&whole);
            let ranges: Vec<(usize, usize)> = lens.iter().enumerate().map(|(at, &len)| (at * 101 + 1, len)).collect();
            let bytes: Vec<u8> = ranges.iter().flat_map(|&(start, len)| whole[start..start + len].to_vec()).collect();
            let source = || pieces(ranges.iter().map(|&(start, len)| (share.clone(), start, len)));
            let received = pair.transfer(512, |pair| pair.send(source(), None));
            assert_message(&received, &bytes, None);
            if transport.is_connected() {
                let remote = memory.remote();
                let write = |_: &Pair<'_, F>| Operation::Write { source: source(), remote, immediate: Some(1) };
                assert_eq!(pair.transfer(0, write).len, bytes.len());
                assert_eq!(read(&memory, 0, bytes.len()), bytes);
            }
        }
        // No pieces at all make an empty message.
        let received = pair.transfer(8, |pair| pair.send(pieces([]), Some(1)));
        assert_message(&received, &[], Some(1));
    }
}

/// A message fills one buffer after the other, and their lengths show how far.
pub fn a_message_is_scattered_over_the_buffers_in_order<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let limit = Pair::new(fixture, transport).near.config.gather_max;
        let few = [16, 0, 40, 200][..limit.min(4)].to_vec();
        let many: Vec<usize> = (0..limit).map(|at| at % 4 * 5).collect();
        for lens in [&few[..], &many] {
            scatter(Pair::new(fixture, transport), lens);
        }
    }
}

fn scatter<F: Fixture>(mut pair: Pair<'_, F>, lens: &[usize]) {
    let room: usize = lens.iter().sum();
    let memory = pair.far.expose(room);
    memory.write(0, &pattern(77, room)).expect("our own memory");
    for len in [0, 1, 15, 16, 17, 56, 57, 255, room] {
        let bytes = pattern(len, len.min(room));
        let share = pair.near.frozen(&bytes);
        let buffers = pair.far.buffers(lens);
        pair.far.qp.post_receive(5, buffers).expect("a receive is taken");
        let received = pair.deliver(5, |pair| pair.send(share.clone().into(), None));
        assert_message(&received, &bytes, None);
        let mut rest = bytes.len();
        for (buffer, &len) in received.buffers.iter().zip(lens) {
            assert_eq!((buffer.len(), buffer.capacity()), (rest.min(len), len));
            rest -= buffer.len();
        }
        assert_eq!(received.buffers.len(), lens.len());
    }
    if pair.near.allows(Verb::Read) {
        let target = pair.near.buffers(lens);
        pair.near.post(Request::new(6, Operation::Read { target, remote: memory.remote() }));
        let completion = pair.expect_success(6);
        assert_eq!((completion.len, joined(&completion.buffers)), (room, pattern(77, room)));
        assert!(completion.buffers.iter().map(|buffer| buffer.len()).eq(lens.iter().copied()));
    }
}

/// A queue pair takes as many pieces as it was made for, and not one more; refused ones come back.
pub fn both_sides_of_the_limit_of_pieces<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::with(fixture, transport, |config| QpConfig { gather_max: 1, ..config });
        let remote = pair.far.expose(64).remote();
        let share = pair.near.frozen(&pattern(1, 8));
        let two = || pieces([(share.clone(), 0, 4), (share.clone(), 4, 4)]);
        let too_many = PostError::TooManyPieces { pieces: 2, limit: 1 };
        let refused = pair.near.qp.push(Request::new(1, pair.send(two(), None))).expect_err("one piece more");
        assert_eq!(refused.error, too_many);
        if transport.is_connected() {
            let write = Operation::Write { source: two(), remote, immediate: None };
            assert_eq!(pair.near.qp.push(Request::new(1, write)).expect_err("one piece more").error, too_many);
        }
        if pair.near.allows(Verb::Read) {
            let operation = Operation::Read { target: pair.near.buffers(&[4, 4]), remote };
            let refused = pair.near.qp.push(Request::new(1, operation)).expect_err("one piece more");
            assert_eq!((refused.error, refused.buffers.len()), (too_many, 2));
        }
        let buffers = pair.near.buffers(&[4, 4]);
        let refused = pair.near.qp.post_receive(1, buffers).expect_err("one buffer more");
        assert_eq!((refused.error, refused.buffers.len()), (too_many, 2));
        assert!(share.thaw().is_ok(), "what was refused is not held");
        pair.assert_works(1);
        let device = fixture.device();
        let config = config(&device, transport);
        let limit = device.attributes().gather_max;
        let end = End::new(device.clone(), &config);
        let over = QpConfig { gather_max: limit + 1, ..config };
        let refused = end.thread.queue_pair(&over, &end.sends, &end.receives).err().expect("over the device's limit");
        assert!(matches!(refused, VerbsError::Limit { .. }), "{refused}");
    }
}

/// A piece that does not lie in its buffer is refused, however large its numbers.
pub fn pieces_outside_their_buffer_are_refused<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let share = pair.near.frozen(&pattern(1, 64));
        for (start, len) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 2), (1, usize::MAX)] {
            let operation = pair.send(pieces([(share.clone(), start, len)]), None);
            let refused = pair.near.qp.push(Request::new(1, operation)).expect_err("a piece outside its buffer");
            assert_eq!(refused.error, PostError::BadSlice, "{len} bytes from {start}");
        }
        let received = pair.transfer(64, |pair| pair.send(pieces([(share.clone(), 60, 4)]), None));
        assert_message(&received, &pattern(1, 64)[60..], None);
    }
}

/// Buffers of arenas that the domain did not register are refused, and come back.
pub fn buffers_of_a_foreign_arena_are_refused<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let remote = pair.far.expose(64).remote();
        let private = Arena::private(1 << 16).expect("an arena");
        let other = pair.near.device.protection_domain().expect("a domain").arena(1 << 16).expect("an arena");
        for arena in [private, other] {
            let buffer = || arena.alloc(8, 8).expect("room");
            let one = || -> Scatter { [buffer()].into_iter().collect() };
            let operation = pair.send(buffer().freeze().into(), None);
            let refused = pair.near.qp.push(Request::new(1, operation)).expect_err("a foreign source");
            assert_eq!(refused.error, PostError::ForeignBuffer);
            let refused = pair.near.qp.post_receive(1, one()).expect_err("a foreign receive");
            assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
            if transport == Transport::Rc {
                let refused = pair.near.qp.push(Request::new(1, Operation::Read { target: one(), remote }));
                let refused = refused.expect_err("a foreign target");
                assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
            }
        }
        // Another arena of the domain, which it registered later, is not foreign.
        pair.near.arena = pair.near.domain.arena(1 << 20).expect("an arena");
        pair.assert_works(2);
    }
}
