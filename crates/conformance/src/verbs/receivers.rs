//! Receivers that are not ready, and messages that do not fit.

use sinew_fabric::verbs::{
    Completion, Exposed, Opcode, Operation, QpConfig, QpState, QueuePair, Request, Source, Status, Transport,
};

use super::ends::*;
use super::*;

/// RC: a message without a posted receive waits, with everything behind it, and arrives once there is one.
pub fn a_reliable_message_waits_for_a_receive<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(8);
    for len in [0, 8, 40_000] {
        memory.store(0, 0).expect("our own memory");
        let bytes = pattern(len, len);
        let (first, remote) = (pair.send(pair.near.frozen(&bytes).into(), None), memory.remote());
        pair.near.push(Request::new(1, first));
        let second = Operation::Write { source: Source::Inline(b"waiting!"), remote, immediate: None };
        pair.near.push(Request::new(2, second));
        pair.near.qp.doorbell();
        pair.assert_quiet("no receive is posted");
        assert_eq!((pair.near.qp.state(), memory.load(0)), (QpState::ReadyToSend, Ok(0)));
        pair.far.receive(3, len);
        let received = pair.next_received("a receive is posted");
        assert_eq!(received.id, 3);
        assert_message(&received, &bytes, None);
        pair.expect_success(1);
        pair.expect_success(2);
        assert_eq!(read(&memory, 0, 8), b"waiting!");
    }
}

/// RC: after the configured number of tries a request fails, and its queue pair with it; the receiver is unaffected.
pub fn a_receiver_that_is_never_ready_is_given_up<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for rnr_retries in [0, 1, 3] {
        let mut pair = Pair::with(fixture, transport, |config| QpConfig { rnr_retries, ..config });
        let memory = pair.far.expose(8);
        pair.near.receive(9, 8);
        for (id, operation) in [
            (1, pair.send(Source::Inline(b"nobody"), None)),
            (2, Operation::Write { source: Source::Inline(b"behind"), remote: memory.remote(), immediate: None }),
        ] {
            pair.near.push(Request::new(id, operation).unsignaled());
        }
        pair.near.qp.doorbell();
        let failed = pair.next_sent("a request that is given up");
        assert_eq!((failed.id, failed.opcode), (1, Opcode::Send));
        assert_failed(fixture, &failed, Status::RnrRetryExceeded);
        let flushed = pair.next_sent("what is behind it");
        assert_eq!((flushed.id, flushed.status), (2, Status::Flushed));
        let flushed = pair.eventually("receives are flushed", |pair| pair.near.received.pop_front());
        assert_eq!((flushed.id, flushed.status, flushed.opcode), (9, Status::Flushed, Opcode::Receive));
        assert_eq!(flushed.buffers.len(), 1);
        assert_eq!((pair.near.qp.state(), memory.load(0)), (QpState::Error, Ok(0)));
    }
}

/// UC and UD: a message that finds no receive is gone; its sender does not hear of it, and later messages arrive.
pub fn an_unreliable_message_without_a_receive_is_dropped<F: Fixture>(fixture: &F) {
    for transport in transports(fixture).into_iter().filter(|&transport| transport != Transport::Rc) {
        let mut pair = Pair::new(fixture, transport);
        for round in 0..3 {
            for id in 0..4 {
                let operation = pair.send(pair.near.frozen(&pattern(round, 200)).into(), None);
                pair.near.post(Request::new(id, operation));
                pair.expect_success(id);
            }
            if transport.is_connected() {
                let remote = pair.far.expose(8).remote();
                let write = Operation::Write { source: Source::Empty, remote, immediate: Some(1) };
                pair.near.post(Request::new(4, write));
                pair.expect_success(4);
            }
            pair.assert_quiet("no receive is posted");
            assert_eq!(pair.near.qp.state(), QpState::ReadyToSend);
            assert_eq!(pair.far.qp.state(), QpState::ReadyToSend);
            pair.assert_works(round);
            pair.assert_quiet("what was dropped stays so");
        }
    }
}

fn assert_misfit<F: Fixture>(fixture: &F, completion: &Completion, status: Status) {
    if fixture.expectations().length_errors.holds_or_report("what a message that does not fit is called") {
        assert_failed(fixture, completion, status);
    } else {
        assert!(!completion.status.is_success(), "{completion:?}");
    }
}

/// RC: a message longer than the buffers posted for it fails at both ends, and breaks both queue pairs.
pub fn a_message_longer_than_its_buffers_fails_at_both_ends<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for (room, len) in [(0, 1), (63, 64), (16, 4096), (4096, 100_000)] {
        let mut pair = Pair::new(fixture, transport);
        pair.far.receive(1, room);
        pair.far.receive(2, 4096);
        let (first, second) = (pair.near.frozen(&pattern(1, len)), pair.near.frozen(&pattern(2, 8)));
        for (id, share) in [(1, first), (2, second)] {
            let operation = pair.send(share.into(), None);
            pair.near.push(Request::new(id, operation));
        }
        pair.near.qp.doorbell();
        let received = pair.next_received("a message that does not fit is told");
        assert_eq!((received.id, received.opcode, received.buffers.len()), (1, Opcode::Receive, 1));
        assert_misfit(fixture, &received, Status::LocalLength);
        let sent = pair.next_sent("so is its sender");
        assert_eq!((sent.id, sent.opcode), (1, Opcode::Send));
        assert_misfit(fixture, &sent, Status::RemoteInvalidRequest);
        assert_eq!(pair.next_sent("what is behind it is flushed").status, Status::Flushed);
        let flushed = pair.next_received("receives behind it are flushed");
        assert_eq!((flushed.id, flushed.status, flushed.buffers.len()), (2, Status::Flushed, 1));
        assert_eq!((pair.near.qp.state(), pair.far.qp.state()), (QpState::Error, QpState::Error));
    }
}

/// UC and UD: the sender of such a message does not hear of it. The receiver is told, or keeps the buffers for the next
/// message; no part of it is taken for a message.
pub fn an_unreliable_message_longer_than_its_buffers_is_not_delivered<F: Fixture>(fixture: &F) {
    for transport in transports(fixture).into_iter().filter(|&transport| transport != Transport::Rc) {
        let mut pair = Pair::new(fixture, transport);
        pair.far.receive(1, 40);
        let operation = pair.send(pair.near.frozen(&pattern(1, 64)).into(), None);
        pair.near.post(Request::new(1, operation));
        pair.expect_success(1);
        pair.wait_briefly();
        let completion = pair.far.received.pop_front();
        if let Some(received) = &completion {
            assert_eq!((received.id, received.buffers.len()), (1, 1));
            assert_misfit(fixture, received, Status::LocalLength);
        }
        if pair.far.qp.state() == QpState::Error {
            // Near may have noticed that.
            assert!(completion.is_some(), "{transport:?}: a queue pair in error says why");
            continue;
        }
        assert_eq!(pair.near.qp.state(), QpState::ReadyToSend, "{transport:?}");
        let bytes = pattern(2, 40);
        let share = pair.near.frozen(&bytes);
        if completion.is_some() {
            pair.far.receive(1, 40);
        }
        let received = pair.deliver(1, |pair| pair.send(share.clone().into(), None));
        assert_message(&received, &bytes, None);
    }
}
