//! Tests of queue depths, signals and refused requests.

use std::time::{Duration, Instant};

use sinew_fabric::verbs::{
    CompletionQueue, Exposed, Opcode, Operation, PostError, ProtectionDomain, QpConfig, QueuePair, Request, Source,
    Status, ThreadDomain, Transport, VerbsError,
};
use sinew_mem::Arena;
use sinew_shm::verbs::ShmExposed;

use crate::pair::{End, Pair, check, config, devices};

fn write(exposed: &ShmExposed) -> Operation<'static> {
    Operation::Write { source: Source::Inline(b"x"), remote: exposed.remote(), immediate: None }
}

#[test]
fn unsignaled_requests_take_their_places_until_a_signaled_one_is_known_to_be_over() {
    for (_, devices) in devices() {
        let config = QpConfig { send_depth: 4, ..config(Transport::Rc) };
        let mut pair = Pair::new(&devices, &config);
        let exposed = pair.b.expose(64);
        for round in 0..5 {
            for id in 0..3 {
                pair.a.qp.post(Request::new(id, write(&exposed)).unsignaled()).unwrap();
            }
            pair.a.qp.post(Request::new(3 + round, write(&exposed))).unwrap();
            let refused = pair.a.qp.push(Request::new(9, write(&exposed))).unwrap_err();
            assert_eq!(refused.error, PostError::QueueFull(4));
            let completions = pair.a.poll_sends();
            assert_eq!(completions.len(), 1, "unsignaled requests have no completion");
            check(&completions[0], 3 + round, Opcode::Write, Status::Success);
        }
        // Without a signaled request, no place is ever freed.
        for id in 0..4 {
            pair.a.qp.post(Request::new(id, write(&exposed)).unsignaled()).unwrap();
        }
        assert!(pair.a.poll_sends().is_empty());
        assert!(pair.a.qp.post(Request::new(9, write(&exposed))).is_err());
    }
}

#[test]
fn the_targets_of_untold_reads_come_back() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(64);
        let target = pair.a.target(8);
        let read = Operation::Read { target, remote: exposed.remote() };
        pair.a.qp.post(Request::new(1, read).unsignaled()).unwrap();
        assert_eq!(pair.next_send().buffers.len(), 1);
    }
}

#[test]
fn failures_are_told_even_when_success_would_not_be() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let mut exposed = pair.b.expose(64);
        let operation = write(&exposed);
        exposed = pair.b.expose(1);
        pair.a.qp.post(Request::new(5, operation).unsignaled()).unwrap();
        check(&pair.next_send(), 5, Opcode::Write, Status::RemoteAccess);
        drop(exposed);
    }
}

#[test]
fn completions_come_in_the_order_of_their_requests() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(64);
        let mut bad = exposed.remote();
        bad.rkey ^= 1;
        pair.b.post_receive(1, 64);
        pair.b.post_receive(2, 64);
        pair.send(1, Source::Inline(b"x"), None);
        let operation = write(&exposed);
        pair.a.post(2, operation);
        pair.send(3, Source::Inline(b"y"), None);
        pair.a.post(4, Operation::Write { source: Source::Inline(b"z"), remote: bad, immediate: None });
        pair.send(5, Source::Inline(b"never sent"), None);
        assert!(pair.a.poll_sends().is_empty(), "the first is not acknowledged");
        let ends: Vec<(u64, Status)> = (0..5)
            .map(|_| {
                let completion = pair.next_send();
                (completion.id, completion.status)
            })
            .collect();
        let good = Status::Success;
        assert_eq!(ends, [(1, good), (2, good), (3, good), (4, Status::RemoteAccess), (5, Status::Flushed)]);
        assert_eq!([1, 2].map(|_| pair.next_receive().status), [good; 2]);
    }
}

#[test]
fn receives_take_their_places_until_they_are_known_to_be_over() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &QpConfig { receive_depth: 2, ..config(Transport::Uc) });
        pair.b.post_receive(1, 8);
        pair.b.post_receive(2, 8);
        let refused = pair.b.qp.post_buffer(3, pair.b.buffer(8)).unwrap_err();
        assert_eq!((refused.error, refused.buffers.len()), (PostError::QueueFull(2), 1));
        pair.send(1, Source::Empty, None);
        pair.next_receive();
        pair.b.post_receive(3, 8);
    }
}

#[test]
fn a_completion_queue_cannot_be_overrun() {
    for (_, (device, _)) in devices() {
        let end = End::new(&device, &config(Transport::Rc));
        let (small, large) = (end.thread.completion_queue(64).unwrap(), end.thread.completion_queue(200).unwrap());
        let pair = |send, receive| end.thread.queue_pair(&config(Transport::Uc), send, receive);
        assert!(matches!(pair(&small, &small), Err(VerbsError::Limit { asked: 128, limit: 64, .. })));
        let first = pair(&small, &large).unwrap();
        assert!(pair(&small, &large).is_err());
        drop(first);
        let _first = pair(&small, &large).unwrap();
        let _second = pair(&large, &large).unwrap();
        assert!(pair(&large, &large).is_err());
        let deep = QpConfig { send_depth: usize::MAX, ..config(Transport::Uc) };
        assert!(matches!(end.thread.queue_pair(&deep, &large, &large), Err(VerbsError::Limit { .. })));
    }
}

#[test]
fn buffers_of_other_arenas_are_refused_and_come_back() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(64);
        let remote = exposed.remote();
        let foreign = Arena::private(1 << 16).unwrap();
        let buffer = || foreign.alloc(8, 8).unwrap();
        let refused = pair.a.qp.post_buffer(1, buffer()).unwrap_err();
        assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
        let read = Operation::Read { target: [buffer()].into_iter().collect(), remote };
        let refused = pair.a.qp.push(Request::new(1, read)).unwrap_err();
        assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
        let source = Source::from(buffer().freeze());
        let send = Operation::Send { source, immediate: None, to: None };
        assert_eq!(pair.a.qp.post(Request::new(1, send)).unwrap_err().error, PostError::ForeignBuffer);
        // An arena that is made later is as good as the first.
        let later = pair.a.domain.arena(1 << 16).unwrap();
        pair.a.qp.post_buffer(1, later.alloc(8, 8).unwrap()).unwrap();
    }
}

#[test]
fn a_wait_lasts_as_long_as_it_was_told_and_a_waker_ends_it() {
    for (_, (device, _)) in devices() {
        let mut end = End::new(&device, &config(Transport::Rc));
        let since = Instant::now();
        end.receives.wait(Some(5_000_000)).unwrap();
        assert!(since.elapsed() >= Duration::from_millis(5));
        end.receives.waker().wake();
        end.receives.wait(None).unwrap();
        let waker = end.receives.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            waker.wake();
        });
        end.receives.wait(None).unwrap();
        thread.join().unwrap();
        // Another queue's waker does not end the wait.
        let since = Instant::now();
        end.sends.waker().wake();
        end.receives.wait(Some(5_000_000)).unwrap();
        assert!(since.elapsed() >= Duration::from_millis(5));
        end.sends.wait(None).unwrap();
    }
}

#[test]
fn a_completion_that_is_there_already_is_not_slept_through() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(64);
        let operation = write(&exposed);
        pair.a.post(1, operation);
        pair.a.sends.wait(None).unwrap();
        pair.b.post_receive(2, 8);
        pair.send(2, Source::Empty, None);
        pair.b.receives.wait(None).unwrap();
        assert_eq!(pair.b.poll_receives().len(), 1);
    }
}
