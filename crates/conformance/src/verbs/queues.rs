//! Depths of queues, signaled completions, and doorbells.

use sinew_fabric::verbs::{
    CompletionQueue, Exposed, InlineRequest, Opcode, Operation, PostError, QpConfig, QpState, QueuePair, RemoteMemory,
    Request, Source, Status, ThreadDomain, Transport, Verb, VerbsError,
};

use sinew_mem::Arena;

use super::ends::*;
use super::*;

/// Of requests that succeed, the signaled ones give a completion, and no others.
pub fn only_signaled_requests_are_told<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        for id in 0..9 {
            pair.far.receive(id, 64);
        }
        for id in 0..8 {
            let operation = pair.send(Source::Inline(b"message"), None);
            let mut request = Request::new(id, operation);
            request.signaled = id == 2 || id == 5;
            pair.near.post(request);
        }
        pair.expect_success(2);
        pair.expect_success(5);
        if !pair.is_lossy() {
            for id in 0..8 {
                assert_eq!(pair.next_received("every message arrives, signaled or not").id, id);
            }
        } else {
            while pair.try_next_received().is_some() {}
        }
        pair.assert_quiet("nobody asked for more");
        let operation = pair.send(Source::Empty, None);
        pair.near.post(Request::new(9, operation));
        pair.expect_success(9);
    }
}

/// Memory that nobody exposed.
const NOWHERE: RemoteMemory = RemoteMemory { address: 4096, rkey: 0xDEAD_BEE0, len: 8 };

/// Failures give a completion, signaled or not.
pub fn failures_are_told_though_unsignaled<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let write = |id| {
        let (source, remote) = (Source::Inline(b"nowhere"), NOWHERE);
        Request::new(id, Operation::Write { source, remote, immediate: None }).unsignaled()
    };
    for id in 1..4 {
        pair.near.push(write(id));
    }
    pair.near.qp.doorbell();
    let failed = pair.next_sent("a failure gives a completion");
    assert_eq!((failed.id, failed.opcode), (1, Opcode::Write));
    assert_failed(fixture, &failed, Status::RemoteAccess);
    for id in 2..4 {
        let flushed = pair.next_sent("a flushed request gives a completion");
        assert_eq!((flushed.id, flushed.status), (id, Status::Flushed));
    }
}

/// When a request fails, those behind it are flushed, and none of them takes effect.
pub fn a_failure_flushes_what_is_behind_it<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(64);
    pair.far.receive(1, 64);
    for id in 0..3 {
        pair.near.receive(id, 8);
    }
    let remote = memory.remote();
    let target = pair.near.buffers(&[8, 8]);
    let before = Operation::Write { source: Source::Inline(b"before"), remote, immediate: None };
    let failing = Operation::Write { source: Source::Inline(b"failing"), remote: NOWHERE, immediate: None };
    let behind = Operation::Write { source: Source::Inline(b"behind!"), remote, immediate: None };
    let send = pair.send(Source::Inline(b"behind"), None);
    for (id, operation) in [before, failing, behind, Operation::Read { target, remote }, send].into_iter().enumerate() {
        pair.near.push(Request::new(id as u64, operation));
    }
    pair.near.qp.doorbell();
    pair.expect_success(0);
    let failed = pair.next_sent("a request that fails");
    assert_eq!(failed.id, 1);
    assert_failed(fixture, &failed, Status::RemoteAccess);
    for (id, opcode, targets) in [(2, Opcode::Write, 0), (3, Opcode::Read, 2), (4, Opcode::Send, 0)] {
        let flushed = pair.next_sent("requests behind it");
        assert_eq!((flushed.id, flushed.opcode, flushed.status), (id, opcode, Status::Flushed));
        assert_eq!(flushed.buffers.len(), targets, "targets come back");
    }
    for id in 0..3 {
        let flushed = pair.eventually("receives are flushed", |pair| pair.near.received.pop_front());
        assert_eq!((flushed.id, flushed.status), (id, Status::Flushed));
    }
    assert_eq!(pair.near.qp.state(), QpState::Error);
    assert_eq!(read(&memory, 0, 8), b"before\0\0");
    pair.wait_briefly();
    assert!(pair.far.received.iter().all(|received| !received.status.is_success()), "nothing was sent");
}

/// Buffers of unsignaled requests come back with completions of their own, before that of the next signaled request.
pub fn targets_come_back_though_unsignaled<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(64);
    memory.write(0, &pattern(5, 64)).expect("our own memory");
    let remote = memory.remote();
    let target = pair.near.buffers(&[64]);
    pair.near.push(Request::new(1, Operation::Read { target, remote }).unsignaled());
    if pair.near.allows(Verb::FetchAdd) {
        let target = pair.near.buffer(8);
        pair.near.push(Request::new(2, Operation::FetchAdd { target, remote, add: 0 }).unsignaled());
    }
    let write = Operation::Write { source: Source::Empty, remote, immediate: None };
    pair.near.push(Request::new(3, write).unsignaled());
    let write = Operation::Write { source: Source::Empty, remote, immediate: None };
    pair.near.push(Request::new(4, write));
    pair.near.qp.doorbell();
    assert_eq!(joined(&pair.expect_success(1).buffers), pattern(5, 64));
    if pair.near.allows(Verb::FetchAdd) {
        assert_eq!(pair.expect_success(2).buffers.len(), 1);
    }
    pair.expect_success(4);
    pair.assert_quiet("the unsignaled WRITE gives no completion");
}

fn empty_send<F: Fixture>(pair: &Pair<'_, F>, id: u64) -> Request<'static> {
    Request::new(id, pair.send(Source::Empty, None))
}

/// A queue takes as many requests as it was made for, refuses the next, and has room again for as many as were polled.
pub fn a_queue_takes_exactly_its_depth<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        'depths: for depth in [1, 5] {
            let mut pair = Pair::with(fixture, transport, |config| QpConfig { send_depth: depth, ..config });
            for round in 0..3 {
                for id in 0..depth as u64 {
                    pair.far.receive(id, 8);
                    let request = empty_send(&pair, id);
                    pair.near.push(request);
                }
                let one_more = empty_send(&pair, 99);
                let refused = pair.near.qp.push(one_more).expect_err("the queue is full");
                assert_eq!(refused.error, PostError::QueueFull(depth), "{transport:?}, round {round}");
                pair.near.qp.doorbell();
                for id in 0..depth as u64 {
                    pair.expect_success(id);
                }
                if pair.is_lossy() {
                    continue 'depths;
                }
                for id in 0..depth as u64 {
                    assert_eq!(pair.next_received("what was refused did no harm").id, id);
                }
            }
            pair.assert_quiet("the refused request does nothing");
        }
    }
}

/// A request keeps its place until a completion has been polled that shows that it is over: its own, or a later one's.
/// Requests that no completion covers keep theirs.
pub fn places_are_held_until_a_completion_was_polled<F: Fixture>(fixture: &F) {
    const PLACES: usize = 4;
    for transport in transports(fixture) {
        let mut pair = Pair::with(fixture, transport, |config| QpConfig { send_depth: PLACES, ..config });
        let full = |pair: &mut Pair<'_, F>| {
            let request = empty_send(pair, 99);
            pair.near.qp.push(request).is_err_and(|refused| refused.error == PostError::QueueFull(PLACES))
        };
        for round in 0..3 {
            for id in 0..PLACES as u64 {
                pair.far.receive(id, 8);
                let mut request = empty_send(&pair, id);
                request.signaled = id + 1 == PLACES as u64;
                pair.near.push(request);
            }
            pair.near.qp.doorbell();
            if !pair.is_lossy() {
                // Only far is polled: near has not heard that its requests are over.
                let now_ns = || fixture.now_ns();
                let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
                let arrived = |ends: &mut [&mut End<F::Device>]| (ends[0].received.len() == PLACES).then_some(());
                eventually(watch, &mut [&mut pair.far], "messages arrive while their sender does not poll", arrived);
                pair.far.received.clear();
            }
            assert!(full(&mut pair), "{transport:?}: nothing was polled");
            pair.expect_success(PLACES as u64 - 1);
            assert!(pair.near.sent.is_empty(), "round {round}");
        }
        // All four places are free, since one completion covered them all. Now no completion covers any.
        for id in 0..PLACES as u64 {
            pair.far.receive(id, 8);
            let request = empty_send(&pair, id).unsignaled();
            pair.near.post(request);
        }
        pair.wait_briefly();
        assert!(full(&mut pair), "{transport:?}: none of the requests is known to be over");
    }
}

/// A receive queue takes as many receives as it was made for, and the next one's buffers come back.
pub fn receives_fill_exactly_their_queue<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        for round in 0..2u64 {
            for id in 0..DEPTH as u64 {
                pair.far.receive(id, 8);
            }
            let buffers = pair.far.buffers(&[8]);
            let refused = pair.far.qp.post_receive(99, buffers).expect_err("the queue is full");
            assert_eq!((refused.error, refused.buffers.len()), (PostError::QueueFull(DEPTH), 1), "round {round}");
            for id in 0..DEPTH as u64 {
                pair.deliver(id, |pair| pair.send(Source::Empty, None));
            }
        }
    }
}

/// A queue pair beyond the device's limits is refused, with the limit.
pub fn a_queue_pair_larger_than_the_device_is_refused<F: Fixture>(fixture: &F) {
    let device = fixture.device();
    let limit = device.attributes().queue_depth_max;
    for transport in transports(fixture) {
        let end = End::new(device.clone(), &config(&device, transport));
        let config = end.config;
        for over in [QpConfig { send_depth: limit + 1, ..config }, QpConfig { receive_depth: limit + 1, ..config }] {
            let refused = end.thread.queue_pair(&over, &end.sends, &end.receives).err().expect("over the limit");
            let named = matches!(refused, VerbsError::Limit { limit: named, .. } if named == limit);
            assert!(named, "the device's limit is {limit}: {refused}");
        }
        assert!(end.thread.queue_pair(&config, &end.sends, &end.receives).is_ok(), "a refusal takes no room");
    }
}

/// Pushed requests wait for the doorbell.
pub fn nothing_starts_before_the_doorbell<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(64);
        pair.far.receive(1, 64);
        let mut ids = Vec::new();
        if transport.is_connected() {
            let (source, remote) = (Source::Inline(b"written"), memory.remote());
            pair.near.push(Request::new(1, Operation::Write { source, remote, immediate: None }));
            ids.push(1);
        }
        if pair.near.allows(Verb::FetchAdd) {
            let (target, remote) = (pair.near.buffer(8), memory.remote().at(56).expect("inside the memory"));
            pair.near.push(Request::new(2, Operation::FetchAdd { target, remote, add: 1 }));
            ids.push(2);
        }
        let operation = pair.send(Source::Inline(b"sent"), None);
        pair.near.push(Request::new(3, operation));
        ids.push(3);
        pair.assert_quiet("nothing was started");
        assert_eq!(read(&memory, 0, 64), [0; 64]);
        pair.near.qp.doorbell();
        for id in ids {
            pair.expect_success(id);
        }
        if !pair.is_lossy() {
            assert_message(&pair.next_received("everything started"), b"sent", None);
            assert!(!transport.is_connected() || read(&memory, 0, 7) == b"written");
        }
        // Another doorbell starts nothing a second time.
        pair.wait_briefly();
        pair.far.received.clear();
        pair.near.qp.doorbell();
        pair.assert_quiet("nothing was pushed");
    }
}

/// The requests of a posted list start in order, up to the first that is refused; the list is not read any further.
pub fn a_list_is_posted_up_to_what_is_refused<F: Fixture>(fixture: &F) {
    for transport in transports(fixture).into_iter().filter(|transport| transport.is_connected()) {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(32);
        pair.far.receive(1, 64);
        let limit = pair.near.config.inline_max;
        let (words, long): (Vec<[u8; 8]>, _) = ((1..9).map(|byte| [byte; 8]).collect(), vec![9; limit + 1]);
        let mut asked = 0;
        let list = (0..8usize).map(|id| {
            asked += 1;
            let source = Source::Inline(if id == 6 { &long } else { &words[id] });
            let operation = if id == 4 {
                Operation::Send { source, immediate: None, to: None }
            } else {
                let remote = memory.remote().at(id as u64 % 5 * 8).expect("inside the memory");
                Operation::Write { source, remote, immediate: None }
            };
            Request { signaled: id == 5, ..Request::new(id as u64, operation) }
        });
        let refused = pair.near.qp.post_list(list).expect_err("more inline than allowed");
        assert_eq!((refused.error, asked), (PostError::InlineTooLong { len: limit + 1, limit }, 7));
        pair.expect_success(5);
        if !pair.is_lossy() {
            assert_message(&pair.next_received("the message before the refused request"), &words[4], None);
            // Over UC the WRITE behind the message may still be in flight.
            let expected = [words[5], words[1], words[2], words[3]].concat();
            pair.eventually("the WRITE behind the message", |_| (read(&memory, 0, 32) == expected).then_some(()));
        }
    }
}

/// A list starts behind requests that were pushed before, in order and whole, whatever kinds of requests it has.
pub fn a_list_starts_in_order_behind_what_was_pushed<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        for kinds in 0..16 {
            let mut pair = Pair::new(fixture, transport);
            let all: Vec<Vec<u8>> = (0..5).map(|number| pattern(number, 8 + number)).collect();
            (0..5).for_each(|id| pair.far.receive(id, 64));
            let mut requests: Vec<_> = (0..5)
                .map(|id| {
                    let request = Request::new(id as u64, pair.send(Source::Inline(&all[id]), None));
                    // Those are requests that devices do not treat as plain inline ones.
                    Request { solicited: id > 0 && kinds >> (id - 1) & 1 == 1, ..request }
                })
                .collect();
            let list = requests.split_off(1);
            pair.near.push(requests.remove(0));
            pair.near.qp.post_list(list).expect("there is room");
            for (id, bytes) in all.iter().enumerate() {
                pair.expect_success(id as u64);
                if !pair.is_lossy() {
                    assert_message(&pair.next_received("every message"), bytes, None);
                }
            }
        }
    }
}

/// One doorbell starts a whole list of requests.
pub fn one_doorbell_starts_a_list<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        for len in [1, 2, DEPTH - 1, DEPTH] {
            let all: Vec<Vec<u8>> = (0..len).map(|number| pattern(number, 8 + number)).collect();
            for (id, bytes) in all.iter().enumerate() {
                pair.far.receive(id as u64, 64);
                let operation = pair.send(Source::Inline(bytes), None);
                let mut request = Request::new(id as u64, operation);
                request.signaled = id + 1 == len;
                // This says whom to wake, and otherwise changes nothing.
                request.solicited = id % 2 == 0;
                pair.near.push(request);
            }
            pair.near.qp.doorbell();
            pair.expect_success(len as u64 - 1);
            if pair.is_lossy() {
                break;
            }
            for (id, bytes) in all.iter().enumerate() {
                let received = pair.next_received("every message of the list");
                assert_eq!(received.id, id as u64);
                assert_message(&received, bytes, None);
            }
        }
        assert_eq!(pair.near.sends.poll(&mut Vec::new(), 1), 0);
        assert!(transport != Transport::Rc || pair.near.sent.is_empty());
    }
}

/// The buffers of READs that are posted as a list come back filled, in order, up to the first READ that is refused; the
/// list is not read any further. A READ that fails flushes those behind it, whose buffers come back unchanged.
pub fn a_list_of_reads_brings_back_every_buffer<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let foreign = Arena::private(1 << 16).expect("an arena");
    for refused_at in [0, 3, 6] {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(128);
        memory.write(0, &pattern(5, 128)).expect("our own memory");
        // Their lengths and places differ, and so do the ways in which devices copy them.
        let range = |id: u64| (id as usize * 9, 8 + 4 * id as usize);
        let mut targets: Vec<_> = (0..8)
            .map(|id| match range(id) {
                (_, len) if id == refused_at => foreign.alloc(len, len).expect("room"),
                (_, len) => pair.near.buffer(len),
            })
            .collect();
        let mut reads = targets.drain(..).zip(0..).map(|(target, id)| {
            let remote = memory.remote().at(range(id).0 as u64).expect("inside the memory");
            (id, target, remote)
        });
        let mut done = Vec::new();
        let refused = pair.near.qp.post_reads(reads.by_ref(), |id, buffer| done.push((id, buffer)));
        let refused = refused.expect_err("a foreign target");
        assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
        assert_eq!(reads.next().map(|(id, ..)| id), Some(refused_at + 1), "the list is not read any further");
        for id in done.len() as u64..refused_at {
            let mut completion = pair.expect_success(id);
            assert_eq!((completion.opcode, completion.len), (Opcode::Read, range(id).1));
            done.extend(completion.buffers.pop().map(|buffer| (id, buffer)));
        }
        assert!(done.iter().map(|(id, _)| *id).eq(0..refused_at), "in their order");
        for (id, buffer) in &done {
            let (start, len) = range(*id);
            assert_eq!(buffer[..], pattern(5, 128)[start..][..len], "READ {id}");
        }
        pair.assert_quiet("no other READ was posted");

        let places = [memory.remote(), NOWHERE, memory.remote(), memory.remote()];
        let buffers: Vec<_> = places.iter().map(|_| pair.near.buffer(8)).collect();
        let reads = buffers.into_iter().zip(places).zip(0..).map(|((target, remote), id)| (id, target, remote));
        done.clear();
        pair.near.qp.post_reads(reads, |id, buffer| done.push((id, buffer))).expect("there is room");
        if done.is_empty() {
            done.extend(pair.expect_success(0).buffers.pop().map(|buffer| (0, buffer)));
        }
        assert!(matches!(&done[..], [(0, buffer)] if buffer[..] == pattern(5, 128)[..8]), "{done:?}");
        let failed = pair.next_sent("a READ that fails");
        assert_eq!((failed.id, failed.buffers.len()), (1, 1));
        assert_failed(fixture, &failed, Status::RemoteAccess);
        for id in 2..4 {
            let flushed = pair.next_sent("READs behind it");
            assert_eq!((flushed.id, flushed.status, joined(&flushed.buffers)), (id, Status::Flushed, vec![FILL; 8]));
        }
    }
}

/// WRITEs that a device performs at once are there, up to the first that it must refuse, which has no effect. None goes
/// before a request that was pushed.
pub fn writes_at_once_are_there_and_the_others_can_be_posted<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(64);
        memory.write(0, &[FILL; 64]).expect("our own memory");
        let words: Vec<[u8; 8]> = (1..9).map(|byte| [byte; 8]).collect();
        let at = |id: usize| if id == 5 { NOWHERE } else { memory.remote().at(id as u64 * 8).expect("inside") };
        let done = pair.near.qp.write_at_once((0..8).map(|id| (&words[id][..], at(id))));
        assert!(done <= 5, "{done} WRITEs, of which one goes nowhere");
        assert_eq!(read(&memory, 0, done * 8), words[..done].concat());
        assert_eq!(read(&memory, done * 8, 64 - done * 8), vec![FILL; 64 - done * 8], "the others had no effect");
        assert_eq!(pair.near.qp.state(), QpState::ReadyToSend);
        let write =
            |id: usize| Operation::Write { source: Source::Inline(&words[id]), remote: at(id), immediate: None };
        pair.near.push(Request::new(6, write(6)));
        assert_eq!(pair.near.qp.write_at_once([(&words[7][..], at(7))]), 0, "a request waits");
        pair.near.qp.doorbell();
        pair.expect_success(6);
        if transport == Transport::Rc {
            assert_eq!(read(&memory, 48, 16), [words[6], [FILL; 8]].concat());
            pair.near.post(Request::new(5, write(5)));
            let failed = pair.next_sent("a WRITE that goes nowhere");
            assert_failed(fixture, &failed, Status::RemoteAccess);
            assert_eq!(pair.near.qp.write_at_once([(&words[7][..], at(7))]), 0, "the queue pair is in error");
        }
    }
}

/// Each WRITE of a list goes to the region that it names, whether the device performs it at once or it is posted.
pub fn writes_of_a_list_go_each_to_its_own_region<F: Fixture>(fixture: &F) {
    const WRITES: usize = 100;
    // A device may look a region up once for several WRITEs in a row. So the region changes with each WRITE, then with
    // every second one, and then stays the same for long.
    let region_of = |number: usize| match number {
        0..12 => number % 3,
        12..24 => number / 2 % 3,
        24..96 => 1,
        _ => 2,
    };
    for transport in connected(fixture) {
        for way in ["at once", "as a list", "as a list of inline requests"] {
            let mut pair = Pair::new(fixture, transport);
            let regions = [(); 3].map(|()| pair.far.expose(WRITES * 8));
            let words: Vec<[u8; 8]> = (1..=WRITES as u8).map(|byte| [byte; 8]).collect();
            // Each word has a place of its own, which the other regions leave empty.
            let place = |number: usize| regions[region_of(number)].remote().at(number as u64 * 8).expect("inside");
            let writes: Vec<_> = words.iter().enumerate().map(|(number, word)| (&word[..], place(number))).collect();
            let seen = || regions.each_ref().map(|memory| read(memory, 0, WRITES * 8));
            let expected = |done: usize| {
                let mut contents = [(); 3].map(|()| vec![0u8; WRITES * 8]);
                for (number, word) in words[..done].iter().enumerate() {
                    contents[region_of(number)][number * 8..][..8].copy_from_slice(word);
                }
                contents
            };
            let mut done = 0;
            if way == "at once" {
                done = pair.near.qp.write_at_once(writes.iter().copied());
                assert!(seen() == expected(done), "{transport:?}: {done} WRITEs are over, each in its own region");
            }
            for (list, first) in writes[done..].chunks(DEPTH).zip((done as u64..).step_by(DEPTH)) {
                let requests = list.iter().zip(first..).map(|(&(bytes, to), id)| InlineRequest::write(id, bytes, to));
                if way == "as a list" {
                    pair.near.qp.post_list(requests.map(Request::from)).expect("there is room");
                } else {
                    pair.near.qp.post_inline_list(requests).expect("there is room");
                }
                for id in first..first + list.len() as u64 {
                    pair.expect_success(id);
                }
            }
            if !pair.is_lossy() {
                // Over UC the last WRITEs may still be in flight.
                let what = format!("WRITEs {way}, each in its own region");
                pair.eventually(&what, |_| (seen() == expected(WRITES)).then_some(()));
            }
        }
    }
}
