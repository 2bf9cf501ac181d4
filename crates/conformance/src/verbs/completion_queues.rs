//! Completion queues that are shared, and completion queues that are full.

use sinew_fabric::verbs::{
    CompletionQueue, Operation, QpConfig, QueuePair, Request, Source, Status, ThreadDomain, VerbsError,
};

use super::ends::*;
use super::*;

/// Completions of several queue pairs come in one queue, and name their queue pair.
pub fn queue_pairs_share_a_completion_queue<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        if transport != Transport::Rc && fixture.expectations().lossless != Promise::Kept {
            continue;
        }
        let device = fixture.device();
        let config = config(&device, transport);
        let mut near = End::new(device.clone(), &config);
        let mut second = near.thread.queue_pair(&config, &near.sends, &near.receives).expect("a queue pair");
        let mut far = [End::new(fixture.device(), &config), End::new(fixture.device(), &config)];
        connect(&mut near, &mut far[0]);
        let (address, of_far) = (second.address(), far[1].qp.address());
        let peer = |address| transport.is_connected().then_some(address);
        second.connect(peer(&of_far)).expect("a connection");
        far[1].qp.connect(peer(&address)).expect("a connection");
        let destinations = [destination(&near, &far[0]), destination(&near, &far[1])];
        let numbers = [near.qp.number(), second.number()];
        assert_ne!(numbers[0], numbers[1]);
        let destination_back = |far: &End<F::Device>, address| {
            (!transport.is_connected()).then(|| far.thread.destination(address).expect("a way"))
        };
        let to_near = [destination_back(&far[0], &near.qp.address()), destination_back(&far[1], &address)];
        for round in 0..8u64 {
            near.receive(round, 64);
            second.post_buffer(100 + round, near.buffer(64)).expect("a receive is taken");
            for (index, far) in far.iter_mut().enumerate() {
                far.receive(round, 64);
                let operation =
                    Operation::Send { source: Source::Inline(b"back"), immediate: None, to: to_near[index] };
                far.post(Request::new(round, operation));
            }
            let send = |to| Operation::Send { source: Source::Inline(b"there"), immediate: None, to };
            near.post(Request::new(round, send(destinations[0])));
            second.post(Request::new(100 + round, send(destinations[1]))).expect("a request is taken");
        }
        let now_ns = || fixture.now_ns();
        let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
        let [first, other] = &mut far;
        eventually(watch, &mut [&mut near, first, other], "everything completes", |ends| {
            let all = ends[0].sent.len() == 16 && ends[0].received.len() == 16;
            (all && ends[1..].iter().all(|far| far.sent.len() == 8 && far.received.len() == 8)).then_some(())
        });
        for completions in [&near.sent, &near.received] {
            for (index, number) in numbers.into_iter().enumerate() {
                let mine = completions.iter().filter(|completion| completion.qp == number);
                let ids = mine.map(|completion| {
                    assert_eq!(completion.status, Status::Success);
                    completion.id
                });
                assert!(ids.eq((0..8).map(|round| round + 100 * index as u64)), "{transport:?}: {completions:?}");
            }
        }
    }
}

/// Requests complete in one queue and receives in the other, or both in the same.
pub fn requests_and_receives_complete_where_they_were_told_to<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        for is_shared in [false, true] {
            let device = fixture.device();
            let config = config(&device, transport);
            let mut near = End::new(device, &config);
            let mut far = End::new(fixture.device(), &config);
            if is_shared {
                far.qp = far.thread.queue_pair(&config, &far.sends, &far.sends).expect("a queue pair");
            } else {
                far.qp = far.thread.queue_pair(&config, &far.receives, &far.sends).expect("a queue pair");
            }
            connect(&mut near, &mut far);
            let to = destination(&near, &far);
            let mut pair = Pair { fixture, near, far, to };
            if pair.is_lossy() {
                continue;
            }
            // In the swapped case, far's receives complete in the queue that its requests use otherwise.
            pair.far.receive(5, 64);
            let operation = pair.send(Source::Inline(b"message"), None);
            pair.near.post(Request::new(6, operation));
            pair.expect_success(6);
            let received = pair.eventually("a receive", |pair| pair.far.sent.pop_front());
            assert_eq!((received.id, received.status), (5, Status::Success));
            assert_message(&received, b"message", None);
            let back = destination(&pair.far, &pair.near);
            let operation = Operation::Send { source: Source::Inline(b"back"), immediate: None, to: back };
            pair.near.receive(7, 64);
            pair.far.post(Request::new(8, operation));
            let sent = pair.eventually("a request", |pair| {
                if is_shared { pair.far.sent.pop_front() } else { pair.far.received.pop_front() }
            });
            assert_eq!((sent.id, sent.status), (8, Status::Success));
            pair.eventually("the message", |pair| pair.near.received.pop_front());
            pair.assert_quiet("nothing completes twice");
        }
    }
}

/// Queue pairs that together could overfill a completion queue are refused, whichever of their queues it is.
pub fn a_completion_queue_is_not_overbooked<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let device = fixture.device();
        let end = End::new(device.clone(), &config(&device, transport));
        let depths = |send_depth, receive_depth| QpConfig { send_depth, receive_depth, ..end.config };
        let cq = end.thread.completion_queue(8).expect("a completion queue");
        let other = end.thread.completion_queue(8).expect("a completion queue");
        let is_refused = |config: &QpConfig, sends, receives| {
            let refused = end.thread.queue_pair(config, sends, receives).err().expect("more than the queue's depth");
            assert!(matches!(refused, VerbsError::Limit { .. }), "{refused}");
        };
        is_refused(&depths(9, 1), &cq, &other);
        is_refused(&depths(1, 9), &other, &cq);
        is_refused(&depths(5, 4), &cq, &cq);
        let first = end.thread.queue_pair(&depths(3, 3), &cq, &cq).expect("6 of 8");
        is_refused(&depths(3, 1), &cq, &other);
        is_refused(&depths(1, 3), &other, &cq);
        let second = end.thread.queue_pair(&depths(1, 1), &cq, &cq).expect("8 of 8");
        assert_ne!(first.number(), second.number());
    }
}

/// A poll takes as many completions as it was allowed, oldest first, and leaves the rest for the next.
pub fn a_poll_takes_no_more_than_it_may<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        if pair.is_lossy() {
            continue;
        }
        for id in 0..7 {
            pair.far.receive(id, 8);
            let operation = pair.send(Source::Empty, None);
            pair.near.post(Request::new(id, operation));
        }
        let now_ns = || fixture.now_ns();
        let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
        let arrived = |ends: &mut [&mut End<F::Device>]| (ends[0].received.len() == 7).then_some(());
        eventually(watch, &mut [&mut pair.far], "the messages arrive", arrived);
        let mut completions = Vec::new();
        assert_eq!(pair.near.sends.poll(&mut completions, 0), 0);
        assert!(completions.is_empty());
        let deadline_ns = fixture.now_ns().saturating_add(watch.patience_ns);
        while completions.len() < 7 && fixture.now_ns() < deadline_ns {
            let before = completions.len();
            let count = pair.near.sends.poll(&mut completions, 2);
            assert!(count <= 2 && completions.len() == before + count, "{transport:?}: it said {count}");
            if count == 0 {
                pair.near.sends.wait(Some(1_000_000)).expect("waiting works");
            }
        }
        assert!(completions.iter().map(|completion| completion.id).eq(0..7), "{transport:?}: {completions:?}");
    }
}
