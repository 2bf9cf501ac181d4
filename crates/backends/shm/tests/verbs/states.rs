//! Tests of the states of a queue pair, and of the loss of its peer.

use sinew_fabric::verbs::{
    Access, CompletionQueue, Exposed, Opcode, Operation, PostError, ProtectionDomain, QpAddress, QpState, QueuePair,
    RemoteMemory, Request, Source, Status, ThreadDomain, Transport, VerbsError,
};

use crate::pair::{End, Pair, check, config, devices, eventually};

fn send(bytes: &[u8]) -> Operation<'_> {
    Operation::Send { source: Source::Inline(bytes), immediate: None, to: None }
}

#[test]
fn a_queue_pair_takes_one_step_after_the_other() {
    for (_, (device, _)) in devices() {
        for transport in Transport::ALL {
            let mut end = End::new(&device, &config(transport));
            let other = End::new(&device, &config(transport));
            let remote = other.qp.address();
            assert_eq!(end.qp.state(), QpState::Reset);
            let error = end.qp.modify(QpState::ReadyToSend, None).unwrap_err();
            assert!(matches!(error, VerbsError::Transition { from: QpState::Reset, .. }), "{error}");
            let refused = end.qp.post_buffer(1, end.buffer(8)).unwrap_err();
            assert_eq!((refused.error, refused.buffers.len()), (PostError::State(QpState::Reset), 1));
            end.qp.modify(QpState::Init, None).unwrap();
            end.qp.post_buffer(1, end.buffer(8)).unwrap();
            if transport.is_connected() {
                assert!(matches!(end.qp.modify(QpState::ReadyToReceive, None), Err(VerbsError::Address(_))));
            }
            end.qp.modify(QpState::ReadyToReceive, Some(&remote)).unwrap();
            assert!(end.qp.push(Request::new(1, send(b"x"))).is_err());
            end.qp.modify(QpState::ReadyToSend, None).unwrap();
            end.qp.modify(QpState::Error, None).unwrap();
            assert_eq!(end.poll_receives()[0].status, Status::Flushed);
            end.qp.modify(QpState::Reset, None).unwrap();
            assert_eq!(end.qp.state(), QpState::Reset);
        }
    }
}

#[test]
fn addresses_of_others_are_refused_with_the_reason() {
    for (_, (device, _)) in devices() {
        let mut end = End::new(&device, &config(Transport::Rc));
        let rc = End::new(&device, &config(Transport::Rc)).qp.address();
        let uc = End::new(&device, &config(Transport::Uc));
        end.qp.modify(QpState::Init, None).unwrap();
        let elsewhere = |port: &[u8]| QpAddress { port: port.iter().copied().collect(), ..rc.clone() };
        for (bad, word) in
            [(uc.qp.address(), "Uc"), (elsewhere(b"elsewhere"), "not the address"), (elsewhere(b""), "not the address")]
        {
            let error = end.qp.modify(QpState::ReadyToReceive, Some(&bad)).unwrap_err();
            assert!(matches!(error, VerbsError::Address(_)) && error.to_string().contains(word), "{error}");
        }
        // The thread of `rc` is gone.
        let error = end.qp.modify(QpState::ReadyToReceive, Some(&rc)).unwrap_err();
        assert!(matches!(error, VerbsError::Address(_)), "{error}");
        assert!(matches!(end.thread.destination(&rc), Err(VerbsError::Address(_))));
        assert_eq!(end.qp.state(), QpState::Init);
    }
}

#[test]
fn in_the_error_state_everything_is_flushed_with_its_buffers() {
    for (_, devices) in devices() {
        for transport in [Transport::Rc, Transport::Uc] {
            let mut pair = Pair::new(&devices, &config(transport));
            let exposed = pair.b.expose(64);
            pair.a.post_receive(1, 8);
            pair.a.post_receive(2, 8);
            pair.a.qp.modify(QpState::Error, None).unwrap();
            pair.a.post_receive(3, 8);
            let flushed = pair.a.poll_receives();
            assert!(flushed.iter().zip(1..).all(|(completion, id)| completion.id == id
                && completion.status == Status::Flushed
                && completion.buffers.len() == 1));
            assert_eq!(flushed.len(), 3);
            let write = Operation::Write { source: Source::Inline(b"x"), remote: exposed.remote(), immediate: None };
            pair.a.qp.push(Request::new(4, write).unsignaled()).unwrap();
            pair.a.qp.doorbell();
            check(&pair.next_send(), 4, Opcode::Write, Status::Flushed);
            assert_eq!(exposed.load(0), Ok(0));
        }
    }
}

#[test]
fn a_peer_that_goes_flushes_receives_and_ends_requests() {
    for (name, devices) in devices() {
        for transport in [Transport::Rc, Transport::Uc] {
            for whole_thread in [false, true] {
                let Pair { mut a, b } = Pair::new(&devices, &config(transport));
                a.post_receive(7, 64);
                a.post(1, send(b"nobody receives it"));
                a.post(2, send(b"nor this"));
                let b = if whole_thread {
                    drop(b);
                    None
                } else {
                    let End { qp, thread, domain, .. } = b;
                    drop(qp);
                    Some((thread, domain))
                };
                eventually(&format!("{name}: the error"), || {
                    assert_eq!(a.receives.poll(&mut Vec::new(), 0), 0);
                    (a.qp.state() == QpState::Error).then_some(())
                });
                check(&a.poll_receives()[0], 7, Opcode::Receive, Status::Flushed);
                let ends: Vec<Status> = a.poll_sends().iter().map(|completion| completion.status).collect();
                match transport {
                    Transport::Rc => assert_eq!(ends, [Status::RetryExceeded, Status::Flushed], "{name}"),
                    _ => assert_eq!(ends, [Status::Success; 2], "{name}"),
                }
                drop(b);
            }
        }
    }
}

#[test]
fn a_peer_that_goes_wakes_who_waits_for_a_message() {
    for (name, (device, other)) in devices() {
        let mut a = End::new(&device, &config(Transport::Rc));
        let (sender, receiver) = std::sync::mpsc::channel();
        let (answer, answered) = std::sync::mpsc::channel::<QpAddress>();
        let thread = std::thread::spawn(move || {
            let mut b = End::new(&other, &config(Transport::Rc));
            sender.send(b.qp.address()).unwrap();
            b.qp.connect(Some(&answered.recv().unwrap())).unwrap();
            sender.send(b.qp.address()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        });
        let remote = receiver.recv().unwrap();
        answer.send(a.qp.address()).unwrap();
        a.qp.connect(Some(&remote)).unwrap();
        receiver.recv().unwrap();
        a.post_receive(1, 8);
        let since = std::time::Instant::now();
        let mut completions = Vec::new();
        while a.receives.poll(&mut completions, 1) == 0 {
            a.receives.wait(Some(1_000_000_000)).unwrap();
            assert!(since.elapsed() < crate::pair::PATIENCE, "{name}");
        }
        check(&completions[0], 1, Opcode::Receive, Status::Flushed);
        thread.join().unwrap();
    }
}

#[test]
fn requests_to_one_who_is_gone_end_at_once() {
    for (name, devices) in devices() {
        for operation in 0..3 {
            let Pair { mut a, b } = Pair::new(&devices, &config(Transport::Rc));
            let End { qp, thread, domain, .. } = b;
            let exposed = domain.expose(64, Access::ALL).unwrap();
            let remote = exposed.remote();
            drop(qp);
            let operation = match operation {
                0 => send(b"x"),
                1 => Operation::Write { source: Source::Inline(b"x"), remote, immediate: None },
                _ => Operation::Read { target: a.target(8), remote },
            };
            // Nothing checks for packets in between.
            a.post(1, operation);
            let completions = a.poll_sends();
            assert_eq!(completions[0].status, Status::RetryExceeded, "{name}");
            assert_eq!(a.qp.state(), QpState::Error);
            assert_eq!(exposed.load(0), Ok(0));
            drop(thread);
        }
    }
}

#[test]
fn a_queue_pair_that_was_reset_can_be_connected_again_and_hears_nothing_old() {
    for (_, devices) in devices() {
        for transport in [Transport::Rc, Transport::Uc] {
            let mut pair = Pair::new(&devices, &config(transport));
            for id in 0..3 {
                pair.b.post_receive(id, 64);
                pair.send(id, Source::Inline(b"old"), None);
            }
            // The messages are on their way, and not taken.
            for end in [&mut pair.a, &mut pair.b] {
                end.qp.modify(QpState::Reset, None).unwrap();
            }
            pair.connect();
            for end in [&mut pair.a, &mut pair.b] {
                end.poll_sends();
                end.poll_receives();
            }
            pair.b.post_receive(9, 64);
            pair.send(9, Source::Inline(b"new"), None);
            let got = pair.next_receive();
            assert_eq!((got.id, &got.buffers[0][..]), (9, &b"new"[..]));
            check(&pair.next_send(), 9, Opcode::Send, Status::Success);
        }
    }
}

#[test]
fn requests_wait_for_a_peer_that_is_on_its_way() {
    for (_, (device, other)) in devices() {
        let (mut a, mut b) = (End::new(&device, &config(Transport::Rc)), End::new(&other, &config(Transport::Rc)));
        let exposed = b.expose(64);
        let (to_a, to_b) = (a.qp.address(), b.qp.address());
        a.qp.connect(Some(&to_b)).unwrap();
        let write = Operation::Write { source: Source::Inline(b"12345678"), remote: exposed.remote(), immediate: None };
        a.post(1, write);
        assert!(a.poll_sends().is_empty() && exposed.load(0) == Ok(0));
        b.qp.connect(Some(&to_a)).unwrap();
        let completion = eventually("the write", || a.poll_sends().pop());
        check(&completion, 1, Opcode::Write, Status::Success);
        assert_eq!(exposed.load(0), Ok(u64::from_ne_bytes(*b"12345678")));
    }
}

#[test]
fn a_peer_that_never_meets_us_is_given_up() {
    let (_, (device, other)) = devices().pop().unwrap();
    let (mut a, b) = (End::new(&device, &config(Transport::Rc)), End::new(&other, &config(Transport::Rc)));
    a.qp.connect(Some(&b.qp.address())).unwrap();
    let remote = RemoteMemory { address: 0, rkey: 0, len: 0 };
    a.post(1, Operation::Write { source: Source::Inline(b"x"), remote, immediate: None });
    let completion = eventually("the end", || a.poll_sends().pop());
    check(&completion, 1, Opcode::Write, Status::RetryExceeded);
}
