//! Dropping things in any order and at any time leaves nothing behind that could write to memory that somebody else
//! has.

use sinew_fabric::verbs::{
    CompletionQueue, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair, Request, Source, ThreadDomain,
};

use super::ends::*;
use super::*;

/// Posts work of every kind that cannot be over: receives, messages to a peer without a receive, a READ behind them,
/// and a request that is pushed and not started. Nobody polls for what may be over.
fn post_unfinished<F: Fixture>(pair: &mut Pair<'_, F>) {
    for id in 0..4 {
        pair.near.receive(id, 256);
        let operation = pair.send(pair.near.frozen(&pattern(1, 256)).into(), None);
        pair.near.post(Request::new(id, operation));
    }
    if pair.transport() == Transport::Rc {
        let remote = pair.far.expose(512).remote();
        let target = pair.near.buffers(&[256]);
        pair.near.post(Request::new(4, Operation::Read { target, remote }));
    }
    let operation = pair.send(pair.near.frozen(&pattern(2, 64)).into(), None);
    pair.near.push(Request::new(5, operation));
}

/// All orders of `count` things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    match count {
        0 => vec![Vec::new()],
        _ => {
            let with_last = |order: Vec<usize>| {
                (0..count).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, count - 1);
                    order
                })
            };
            orders(count - 1).into_iter().flat_map(with_last).collect()
        }
    }
}

/// Queue pair, completion queues, thread, and domain with device are dropped in every order, with work in flight; the
/// peer lives on.
pub fn everything_can_be_dropped_in_every_order<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        for order in orders(4) {
            let mut pair = Pair::new(fixture, transport);
            post_unfinished(&mut pair);
            let Pair { near, mut far, .. } = pair;
            let End { qp, sends, receives, thread, arena, domain, device, config, .. } = near;
            let memory = domain.expose(64, all_access(&device)).expect("memory to expose");
            let (mut qp, mut queues, mut thread, mut domain) =
                (Some(qp), Some((sends, receives)), Some(thread), Some((domain, device, memory)));
            for what in order {
                match what {
                    0 => drop(qp.take()),
                    1 => drop(queues.take()),
                    2 => drop(thread.take()),
                    _ => drop(domain.take()),
                }
                far.poll();
            }
            drop(arena);
            // The peer can start again, with another.
            far.qp.modify(sinew_fabric::verbs::QpState::Reset, None).expect("from every state to reset");
            far.poll();
            far.received.clear();
            far.sent.clear();
            let mut pair = Pair::of(fixture, End::new(fixture.device(), &config), far);
            pair.assert_works(1);
        }
    }
}

/// A completion's buffers, a share and an arena stay usable after everything that they were used with is gone.
pub fn buffers_outlive_what_they_were_posted_to<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let bytes = pattern(1, 100);
        let share = pair.near.frozen(&bytes);
        let received = pair.transfer(128, |pair| pair.send(share.clone().into(), None));
        let arena = pair.near.arena.clone();
        drop(pair);
        assert_message(&received, &bytes, None);
        let mut buffer = share.thaw().expect("nobody else has it");
        assert_eq!(buffer[..], bytes[..]);
        buffer[..].fill(0);
        assert_eq!(arena.alloc(8, 8).expect("room").len(), 8);
    }
}

/// A queue pair that is gone no longer uses the buffers that were posted to it: late messages change nothing in memory
/// that somebody else has by then.
pub fn a_dropped_queue_pair_writes_no_more_buffers<F: Fixture>(fixture: &F) {
    const LEN: usize = 4000;
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let remote = pair.near.expose(LEN).remote();
        for id in 0..8 {
            pair.far.receive(id, LEN);
        }
        let len = LEN.min(pair.near.device.attributes().mtu);
        let bytes = pattern(3, len);
        for id in 0..4 {
            let operation = pair.send(pair.near.frozen(&bytes).into(), None);
            pair.near.push(Request::new(id, operation));
        }
        pair.near.qp.doorbell();
        if pair.transport() == Transport::Rc {
            let target = pair.far.buffers(&[LEN]);
            pair.far.post(Request::new(1, Operation::Read { target, remote }));
        }
        let Pair { mut near, far, to, .. } = pair;
        let End { qp, sends, receives, thread, domain, arena, device, .. } = far;
        drop(qp);
        // All free memory, which includes the posted buffers.
        let mut buffers = Vec::new();
        while let Ok(mut buffer) = arena.alloc(LEN, LEN) {
            buffer[..].fill(FILL);
            buffers.push(buffer);
        }
        assert!(buffers.len() > 16, "the arena has room again");
        for _ in 0..2 {
            near.poll();
            let _ =
                near.qp.post(Request::new(9, Operation::Send { source: Source::Inline(b"late"), immediate: None, to }));
            std::hint::black_box(&mut buffers);
            let now_ns = || fixture.now_ns();
            poll_within(Watch { now_ns: &now_ns, patience_ns: 5_000_000 }, &mut [&mut near], |_| None::<()>);
        }
        let untouched = buffers.iter().all(|buffer| buffer.iter().all(|&byte| byte == FILL));
        assert!(untouched, "{transport:?}: a buffer was written that was not posted");
        drop((sends, receives, thread, domain, device));
    }
}

/// A forgotten queue pair keeps what it needs for good: others of its thread, its domain and its device keep working,
/// and what its peer does to it touches nobody else.
pub fn a_forgotten_queue_pair_leaves_others_alone<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        for forget_all in [false, true] {
            let mut pair = Pair::new(fixture, transport);
            post_unfinished(&mut pair);
            let back = destination(&pair.far, &pair.near);
            let Pair { near, mut far, .. } = pair;
            let End { qp, sends, receives, thread, domain, arena, device, config, .. } = near;
            std::mem::forget(qp);
            if forget_all {
                std::mem::forget((sends, receives, thread));
            } else {
                // On the same queues as the forgotten one.
                let second = thread.queue_pair(&config, &sends, &receives).expect("a queue pair");
                drop((second, thread, sends, receives));
            }
            let mut buffers: Vec<_> = (0..16).map(|_| arena.alloc(256, 256).expect("room")).collect();
            buffers.iter_mut().for_each(|buffer| buffer[..].fill(FILL));
            // Receives for what was sent, and messages back, to receives that are still posted.
            for id in 0..6 {
                far.receive(id, 256);
                let source = Source::Inline(b"to whom it was");
                // The peer may know that nobody is there.
                let _ = far.qp.post(Request::new(id, Operation::Send { source, immediate: None, to: back }));
            }
            let now_ns = || fixture.now_ns();
            poll_within(Watch { now_ns: &now_ns, patience_ns: 5_000_000 }, &mut [&mut far], |_| None::<()>);
            assert!(buffers.iter().all(|buffer| buffer.iter().all(|&byte| byte == FILL)));
            drop(far);
            let near = End::in_domain(device, domain, arena, &config);
            let far = End::new(fixture.device(), &config);
            Pair::of(fixture, near, far).assert_works(1);
        }
    }
}

/// The room that a queue pair took in its completion queues and its device is there for the next one.
pub fn room_of_a_dropped_queue_pair_is_used_again<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let device = fixture.device();
        let config = QpConfig { send_depth: 8, receive_depth: 8, ..config(&device, transport) };
        let end = End::new(device, &config);
        let sends = end.thread.completion_queue(8).expect("a completion queue");
        let receives = end.thread.completion_queue(8).expect("a completion queue");
        for round in 0..200 {
            let mut qp = end.thread.queue_pair(&config, &sends, &receives);
            let qp = qp.as_mut().unwrap_or_else(|error| panic!("{transport:?}, round {round}: {error}"));
            qp.modify(sinew_fabric::verbs::QpState::Init, None).expect("the next state");
            for id in 0..8 {
                qp.post_buffer(id, end.buffer(8)).expect("a receive is taken");
            }
        }
        for mut queue in [sends, receives] {
            assert_eq!(queue.poll(&mut Vec::new(), 1), 0, "{transport:?}: nothing of those that are gone is told");
        }
    }
}

/// Completions that nobody polled disappear with their queue pair.
pub fn completions_of_a_dropped_queue_pair_go<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let back = destination(&pair.far, &pair.near);
        for id in 0..4 {
            pair.near.receive(id, 64);
            pair.far.receive(id, 64);
            let operation = pair.send(Source::Inline(b"there"), None);
            pair.near.post(Request::new(id, operation));
            let operation = Operation::Send { source: Source::Inline(b"back"), immediate: None, to: back };
            pair.far.post(Request::new(id, operation));
        }
        // Far sees all that it can: near's work completes, and is not polled.
        let now_ns = || fixture.now_ns();
        poll_within(Watch { now_ns: &now_ns, patience_ns: 5_000_000 }, &mut [&mut pair.far], |_| None::<()>);
        for _ in 0..4 {
            pair.near.sends.wait(Some(1_000_000)).expect("waiting works");
            pair.near.receives.wait(Some(1_000_000)).expect("waiting works");
        }
        let End { qp, mut sends, mut receives, .. } = pair.near;
        drop(qp);
        let mut completions = Vec::new();
        sends.poll(&mut completions, 64);
        receives.poll(&mut completions, 64);
        assert!(completions.is_empty(), "{transport:?}: {completions:?}");
    }
}
