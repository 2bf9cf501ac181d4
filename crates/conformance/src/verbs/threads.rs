//! Ends in threads of their own.

use sinew_fabric::verbs::{Exposed, Operation, ProtectionDomain, QueuePair, Request, Source, Status, ThreadDomain};

use super::ends::*;
use super::*;

/// Two threads, each with an end, exchange messages, several at a time; each message arrives, and in order.
pub fn threads_exchange_messages<F: Fixture>(fixture: &F) {
    const MESSAGES: usize = 600;
    const WINDOW: usize = 8;
    if !fixture.expectations().real_time.holds_or_report("threads") {
        return;
    }
    for transport in transports(fixture) {
        let is_lossy = transport != Transport::Rc && fixture.expectations().lossless != Promise::Kept;
        if is_lossy {
            eprintln!("left out: {transport:?} between threads: messages may be lost");
            continue;
        }
        let message = |number: usize| pattern(number, 8 + number * 31 % 240);
        let server = Server::new(fixture.device());
        let (sender, receiver) = std::sync::mpsc::channel();
        let receiver = std::sync::Mutex::new(receiver);
        let ask = |_: usize, near: &mut End<F::Device>, watch: Watch<'_>| {
            let address = receiver.lock().expect("one thread").recv().expect("the other side tells");
            let to = (!transport.is_connected()).then(|| near.thread.destination(&address).expect("a way"));
            (0..WINDOW as u64).for_each(|id| near.receive(id, 256));
            let (mut asked, mut answered, mut over) = (0, 0, 0);
            while answered < MESSAGES {
                // A window of answers, and the places of the queue, bound what is in flight.
                while asked < MESSAGES && asked < answered + WINDOW && asked < over + DEPTH {
                    let source = near.frozen(&message(asked)).into();
                    near.post(Request::new(asked as u64, Operation::Send { source, immediate: None, to }));
                    asked += 1;
                }
                let has_completions = |ends: &mut [&mut End<F::Device>]| {
                    (!ends[0].received.is_empty() || !ends[0].sent.is_empty()).then_some(())
                };
                eventually(watch, &mut [near], "an answer comes, or a request is over", has_completions);
                while let Some(answer) = near.received.pop_front() {
                    assert_message(&answer, &message(answered + MESSAGES), Some(answered as u32));
                    near.receive(answer.id, 256);
                    answered += 1;
                }
                while let Some(completion) = near.sent.pop_front() {
                    assert_eq!((completion.id, completion.status), (over as u64, Status::Success));
                    over += 1;
                }
            }
        };
        let (mut answered, mut over, mut is_ready) = (0, 0, false);
        server.serve(fixture, transport, 1, ask, |ends| {
            let end = &mut ends[0];
            if !is_ready {
                (0..DEPTH as u64).for_each(|id| end.receive(id, 256));
                sender.send(end.qp.address()).expect("the other side waits");
                is_ready = true;
            }
            while answered - over < DEPTH
                && let Some(asked) = end.received.pop_front()
            {
                if !asked.status.is_success() {
                    assert_eq!(answered, MESSAGES, "{asked:?}: it may leave when it has all answers");
                    continue;
                }
                assert_message(&asked, &message(answered), None);
                let source = Source::from(end.frozen(&message(answered + MESSAGES)));
                let immediate = Some(answered as u32);
                end.post(Request::new(answered as u64, Operation::Send { source, immediate, to: asked.from }));
                end.receive(asked.id, 256);
                answered += 1;
            }
            while let Some(completion) = end.sent.pop_front() {
                assert_eq!((completion.id, completion.status), (over as u64, Status::Success));
                over += 1;
            }
        });
        assert_eq!(answered, MESSAGES);
    }
}

/// An exposure ends while others write to it: from then on the memory belongs to its owner alone, and they are refused.
pub fn memory_does_not_change_after_its_exposure_ended<F: Fixture>(fixture: &F) {
    const LEN: usize = 64 << 10;
    if reliable(fixture).is_none() || !fixture.expectations().real_time.holds_or_report("threads") {
        return;
    }
    let server = Server::new(fixture.device());
    let memory = server.domain.expose(LEN, all_access(&server.device)).expect("memory to expose");
    let remote = memory.remote();
    let is_standard = fixture.expectations().standard_statuses == Promise::Kept;
    let write = |index: usize, near: &mut End<F::Device>, watch: Watch<'_>| {
        let deadline_ns = (watch.now_ns)() + watch.patience_ns;
        for round in 0.. {
            assert!((watch.now_ns)() < deadline_ns, "WRITEs go on after the exposure's end");
            let source = near.frozen(&pattern(round * 2 + index + 1, LEN)).into();
            near.post(Request::new(round as u64, Operation::Write { source, remote, immediate: None }));
            let over = eventually(watch, &mut [near], "a WRITE is over", |ends| ends[0].sent.pop_front());
            if !over.status.is_success() {
                assert!(!is_standard || over.status == Status::RemoteAccess, "{over:?}");
                return round;
            }
        }
        0
    };
    let (mut memory, mut turns) = (Some(memory), 0);
    let mut ended = None;
    let rounds = server.serve(fixture, Transport::Rc, 2, write, |_| {
        turns += 1;
        let seen = memory.as_ref().is_some_and(|memory| read(memory, 0, 8) != [0; 8]);
        if turns > 10
            && seen
            && let Some(exposed) = memory.take()
        {
            let memory = exposed.deregister().expect("nobody is stopped inside");
            let bytes = read(&memory, 0, LEN);
            ended = Some((memory, bytes));
        }
        if let Some((memory, bytes)) = &ended {
            assert!(read(memory, 0, LEN) == *bytes, "memory changed after its exposure had ended");
        }
    });
    assert!(rounds.iter().any(|&rounds| rounds > 0), "something was written before");
    assert!(ended.is_some());
}
