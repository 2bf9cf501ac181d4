//! Errors, and how they are reported.

mod common;

use common::{Pair, Side, assert_ok, assert_silent, config};
use sinew_fabric::verbs::{
    Access, Exposed, Operation, PostError, ProtectionDomain, QpConfig, QpNumber, QpState, QueuePair, RemoteMemory,
    Request, Source, Status, Transport, VerbsError,
};
use sinew_mem::Arena;

fn write(bytes: &[u8], remote: RemoteMemory) -> Operation<'_> {
    Operation::Write { source: Source::Inline(bytes), remote, immediate: None }
}

fn read(pair: &Pair, remote: RemoteMemory) -> Operation<'static> {
    Operation::Read { target: [pair.empty(8)].into_iter().collect(), remote }
}

#[test]
fn memory_that_is_not_to_be_reached_is_not() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let all = pair.domain.expose(4096, Access::ALL).unwrap();
    let readable = pair.domain.expose(4096, Access::READ).unwrap();
    let writable = pair.domain.expose(4096, Access::WRITE).unwrap();
    let gone = pair.domain.expose(4096, Access::ALL).unwrap();
    let stale = gone.remote();
    assert_eq!(gone.deregister().unwrap().len(), 4096);
    let bad: Vec<(&str, Operation<'_>)> = vec![
        ("another key", write(b"x", RemoteMemory { rkey: all.remote().rkey ^ 0x5555, ..all.remote() })),
        ("past the end", write(b"12345678", all.remote().at(4089).unwrap())),
        ("before the start", read(&pair, RemoteMemory { address: all.remote().address - 8, ..all.remote() })),
        ("no write", write(b"x", readable.remote())),
        ("no read", read(&pair, writable.remote())),
        ("no atomics", Operation::FetchAdd { target: pair.empty(8), remote: writable.remote(), add: 1 }),
        ("gone", read(&pair, stale)),
    ];
    for (what, operation) in bad {
        pair.a.qp.push(Request::new(1, operation)).unwrap();
        pair.a.qp.push(Request::new(2, write(b"after", all.remote())).unsignaled()).unwrap();
        pair.a.qp.doorbell();
        let failed = pair.a.sent();
        assert_eq!((failed.id, failed.status), (1, Status::RemoteAccess), "{what}");
        // A failure completes even if it is unsignaled.
        let after = pair.a.sent();
        assert_eq!((after.id, after.status), (2, Status::Flushed), "{what}");
        // From then on, receives are flushed at once.
        let buffer = pair.empty(8);
        pair.a.qp.post_buffer(3, buffer).unwrap();
        assert_eq!(pair.a.received().status, Status::Flushed, "{what}");
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Error, QpState::Error), "{what}");
        for side in [&mut pair.a, &mut pair.b] {
            side.qp.modify(QpState::Reset, None).unwrap();
        }
        pair.connect();
        pair.a.qp.post(Request::new(3, write(b"again", all.remote()))).unwrap();
        assert_ok(&pair.a.sent());
    }
    let mut start = [0; 5];
    all.read(0, &mut start).unwrap();
    assert_eq!(&start, b"again");
}

#[test]
fn a_message_that_does_not_fit_breaks_both_sides() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    for id in 0..2 {
        let buffer = pair.empty(4);
        pair.b.qp.post_buffer(id, buffer).unwrap();
    }
    pair.a.qp.post(Request::new(1, pair.send(Source::Inline(b"too long")))).unwrap();
    // The first is the specification's status, the second soft-RoCE's.
    let refused = pair.a.sent().status;
    assert!(matches!(refused, Status::RemoteInvalidRequest | Status::RemoteOperation), "{refused:?}");
    let (first, second) = (pair.b.received(), pair.b.received());
    assert_eq!((first.id, first.buffers.len(), second.id, second.buffers.len()), (0, 1, 1, 1));
    assert_ne!(first.status, Status::Success);
    assert_eq!(second.status, Status::Flushed);
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Error, QpState::Error));
}

#[test]
fn a_receiver_that_is_never_ready_is_given_up() {
    let Some(mut pair) = Pair::with(&QpConfig { rnr_retries: 1, ..config(Transport::Rc) }) else { return };
    pair.a.qp.post(Request::new(1, pair.send(Source::Inline(b"x")))).unwrap();
    assert_eq!(pair.a.sent().status, Status::RnrRetryExceeded);
    assert_eq!(pair.a.qp.state(), QpState::Error);
}

#[test]
fn a_receiver_that_gets_ready_late_is_waited_for() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    pair.a.qp.post(Request::new(1, pair.send(Source::Inline(b"x")))).unwrap();
    assert_silent(&mut pair.a.sends);
    let buffer = pair.empty(8);
    pair.b.qp.post_buffer(0, buffer).unwrap();
    assert_ok(&pair.a.sent());
    assert_ok(&pair.b.received());
}

#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let address = pair.b.qp.address();
    let thread = pair.domain.clone();
    // No queue pair has its number any more.
    let Side { qp, .. } = std::mem::replace(&mut pair.b, Side::new(&thread, &config(Transport::Rc)));
    drop(qp);
    pair.a.qp.modify(QpState::Reset, None).unwrap();
    pair.a.qp.connect(Some(&address)).unwrap();
    pair.a.qp.post(Request::new(1, pair.send(Source::Inline(b"anybody?")))).unwrap();
    assert_eq!(pair.a.sent().status, Status::RetryExceeded);
}

#[test]
fn what_is_posted_is_flushed_when_a_queue_pair_breaks() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        for id in 0..3 {
            let buffer = pair.empty(8);
            pair.b.qp.post_buffer(id, buffer).unwrap();
        }
        pair.b.qp.modify(QpState::Error, None).unwrap();
        // So is anything posted from then on.
        let buffer = pair.empty(8);
        pair.b.qp.post_buffer(3, buffer).unwrap();
        for id in 0..4 {
            let flushed = pair.b.received();
            assert_eq!((flushed.id, flushed.status, flushed.buffers.len()), (id, Status::Flushed, 1), "{transport:?}");
        }
        let buffer = pair.empty(8);
        pair.b.qp.post_buffer(4, buffer).unwrap();
        assert_eq!((pair.b.received().id, pair.b.qp.state()), (4, QpState::Error));
        pair.a.qp.modify(QpState::Error, None).unwrap();
        for id in 0..3 {
            pair.a.qp.push(Request::new(id, pair.send(Source::Inline(b"x"))).unsignaled()).unwrap();
        }
        pair.a.qp.doorbell();
        for id in 0..3 {
            let flushed = pair.a.sent();
            assert_eq!((flushed.id, flushed.status), (id, Status::Flushed), "{transport:?}");
        }
    }
}

#[test]
fn a_reset_gives_everything_back_and_begins_anew() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        for id in 0..3 {
            let buffer = pair.empty(8);
            pair.b.qp.post_buffer(id, buffer).unwrap();
        }
        pair.a.qp.post(Request::new(0, pair.send(Source::Inline(b"first")))).unwrap();
        assert_ok(&pair.a.sent());
        // It has arrived, and nobody has polled yet.
        std::thread::sleep(std::time::Duration::from_millis(50));
        // Pushed, but not started.
        pair.b.qp.push(Request::new(9, Operation::Send { source: Source::Empty, immediate: None, to: None })).ok();
        for side in [&mut pair.a, &mut pair.b] {
            side.qp.modify(QpState::Reset, None).unwrap();
        }
        let arrived = pair.b.received();
        assert_eq!((arrived.id, arrived.status, &arrived.buffers[0][..]), (0, Status::Success, &b"first"[..]));
        for id in 1..3 {
            let flushed = pair.b.received();
            assert_eq!((flushed.id, flushed.status), (id, Status::Flushed), "{transport:?}");
        }
        if transport != Transport::Ud {
            assert_eq!((pair.b.sent().id, pair.b.qp.state()), (9, QpState::Reset));
        }
        let buffer = pair.empty(8);
        let refused = pair.b.qp.post_buffer(3, buffer).unwrap_err();
        assert_eq!((refused.error, refused.buffers.len()), (PostError::State(QpState::Reset), 1));
        pair.connect();
        let buffer = pair.empty(8);
        pair.b.qp.post_buffer(4, buffer).unwrap();
        pair.a.qp.post(Request::new(1, pair.send(Source::Inline(b"second")))).unwrap();
        let arrived = pair.b.received();
        assert_ok(&arrived);
        assert_eq!((arrived.id, &arrived.buffers[0][..]), (4, &b"second"[..]), "{transport:?}");
        assert_ok(&pair.a.sent());
        assert_silent(&mut pair.b.receives);
    }
}

#[test]
fn states_follow_one_another_or_are_refused() {
    let Some(pair) = Pair::new(Transport::Rc) else { return };
    let Side { mut qp, .. } = Side::new(&pair.domain, &config(Transport::Rc));
    let remote = pair.a.qp.address();
    let refused = qp.modify(QpState::ReadyToSend, None).unwrap_err();
    assert!(matches!(refused, VerbsError::Transition { from: QpState::Reset, to: QpState::ReadyToSend }));
    qp.modify(QpState::Init, None).unwrap();
    assert!(matches!(qp.modify(QpState::ReadyToReceive, None), Err(VerbsError::Address(_))), "nobody to connect to");
    let mut wrong = remote.clone();
    wrong.transport = Transport::Uc;
    assert!(matches!(qp.modify(QpState::ReadyToReceive, Some(&wrong)), Err(VerbsError::Address(_))));
    let mut wrong = remote.clone();
    wrong.port.pop();
    assert!(matches!(qp.modify(QpState::ReadyToReceive, Some(&wrong)), Err(VerbsError::Address(_))));
    let mut wrong = remote.clone();
    wrong.mtu = 100;
    assert!(matches!(qp.modify(QpState::ReadyToReceive, Some(&wrong)), Err(VerbsError::Address(_))));
    assert_eq!(qp.state(), QpState::Init);
    qp.modify(QpState::ReadyToReceive, Some(&remote)).unwrap();
    qp.modify(QpState::ReadyToSend, None).unwrap();
    qp.modify(QpState::Error, None).unwrap();
    qp.modify(QpState::Reset, None).unwrap();
    // From reset to error, which devices themselves cannot do.
    qp.modify(QpState::Error, None).unwrap();
    assert_eq!(qp.state(), QpState::Error);
    qp.modify(QpState::Reset, None).unwrap();
    qp.connect(Some(&remote)).unwrap();
}

#[test]
fn buffers_of_foreign_arenas_are_refused_and_come_back() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let foreign = Arena::private(1 << 16).unwrap();
    let buffer = || foreign.alloc(8, 8).unwrap();
    let refused = pair.b.qp.post_buffer(0, buffer()).unwrap_err();
    assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
    let memory = pair.domain.expose(8, Access::ALL).unwrap();
    let target = [buffer()].into_iter().collect();
    let read = Operation::Read { target, remote: memory.remote() };
    let refused = pair.a.qp.post(Request::new(0, read)).unwrap_err();
    assert_eq!((refused.error, refused.buffers.len()), (PostError::ForeignBuffer, 1));
    let send = pair.send(buffer().freeze());
    assert_eq!(pair.a.qp.post(Request::new(0, send)).unwrap_err().error, PostError::ForeignBuffer);
    // An arena that is registered later is found.
    let later = pair.domain.arena(1 << 16).unwrap();
    pair.b.qp.post_buffer(0, later.alloc(8, 8).unwrap()).unwrap();
    let mut source = later.alloc(2, 2).unwrap();
    source.copy_from_slice(b"ok");
    pair.a.qp.post(Request::new(0, pair.send(source.freeze()))).unwrap();
    assert_eq!(&pair.b.received().buffers[0][..], b"ok");
}

#[test]
fn what_was_pushed_before_a_refusal_still_goes() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    for id in 0..2 {
        let buffer = pair.empty(8);
        pair.b.qp.post_buffer(id, buffer).unwrap();
    }
    pair.a.qp.push(Request::new(0, pair.send(Source::Inline(b"one")))).unwrap();
    assert!(pair.a.qp.push(Request::new(1, pair.send(Source::Inline(&[0; 65])))).is_err());
    let foreign = Arena::private(1 << 16).unwrap().alloc(8, 8).unwrap();
    assert!(pair.a.qp.push(Request::new(2, pair.send(foreign.freeze()))).is_err());
    pair.a.qp.post(Request::new(3, pair.send(Source::Inline(b"two")))).unwrap();
    assert_eq!([pair.a.sent().id, pair.a.sent().id], [0, 3]);
    assert_eq!([&pair.b.received().buffers[0][..], &pair.b.received().buffers[0][..]], [&b"one"[..], b"two"]);
}

#[test]
fn a_queue_pair_has_a_number_that_peers_use() {
    let Some(pair) = Pair::new(Transport::Rc) else { return };
    let address = pair.a.qp.address();
    assert_eq!((address.number, address.transport), (pair.a.qp.number(), Transport::Rc));
    assert!(address.number != QpNumber(0) && address.mtu >= 256);
}
