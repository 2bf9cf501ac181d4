//! Peers that go away.

use sinew_fabric::verbs::{
    Exposed, Opcode, Operation, QpAddress, QpNumber, QpState, QueuePair, Request, Scatter, Source, Status,
};

use super::ends::*;
use super::*;

/// Checks that requests waiting for a dead peer end with an error, that receives are flushed, and that the queue pair
/// is in error. Returns how the first request ended, if there was one.
pub(super) fn connection_ends<F: Fixture>(
    fixture: &F,
    near: &mut End<F::Device>,
    requests: u64,
    receives: u64,
) -> Option<Status> {
    let Expectations { notices_death, patience_ns, .. } = fixture.expectations();
    let transport = near.transport();
    let now_ns = || fixture.now_ns();
    let watch = Watch { now_ns: &now_ns, patience_ns };
    if !notices_death.holds_or_report(&format!("{transport:?}: the end of a peer that nothing is sent to")) {
        if transport != Transport::Rc {
            return None;
        }
        if requests == 0 {
            near.post(Request::new(0, Operation::Send { source: Source::Empty, immediate: None, to: None }));
        }
    }
    let requests =
        if transport == Transport::Rc && notices_death != Promise::Kept { requests.max(1) } else { requests };
    let mut first = None;
    for id in 0..requests {
        let failed =
            eventually(watch, &mut [near], "a request to a peer that is gone", |ends| ends[0].sent.pop_front());
        assert_eq!((failed.id, failed.status.is_success()), (id, false), "{failed:?}");
        assert!(id == 0 || failed.status == Status::Flushed, "behind a failure: {failed:?}");
        first = first.or(Some(failed.status));
    }
    for id in 0..receives {
        let flushed = |ends: &mut [&mut End<F::Device>]| ends[0].received.pop_front();
        let flushed = eventually(watch, &mut [near], "the receives of whose peer is gone", flushed);
        assert_eq!((flushed.id, flushed.status, flushed.opcode), (id, Status::Flushed, Opcode::Receive));
        assert_eq!(flushed.buffers.len(), 1);
    }
    assert_eq!(near.qp.state(), QpState::Error, "{transport:?}");
    // It can be used again.
    near.qp.modify(QpState::Reset, None).expect("from every state to reset");
    let mut far = End::new(fixture.device(), &near.config);
    connect(near, &mut far);
    first
}

/// Work with a queue pair that was dropped, along with its completion queues, thread and domain, comes to an end.
pub fn a_peer_that_goes_ends_its_peers_work<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        for requests in [0, 3] {
            if transport != Transport::Rc && requests > 0 {
                continue;
            }
            let mut pair = Pair::new(fixture, transport);
            pair.assert_works(1);
            for id in 0..3 {
                pair.near.receive(id, 64);
            }
            for id in 0..requests {
                // The peer has no receive for them.
                let operation = pair.send(Source::Inline(b"waiting"), None);
                pair.near.post(Request::new(id, operation));
            }
            pair.wait_briefly();
            let Pair { mut near, far, .. } = pair;
            drop(far);
            connection_ends(fixture, &mut near, requests, 3);
        }
    }
}

/// RC: accesses to the memory of a peer that is gone fail, and bring nothing.
pub fn a_peer_that_goes_takes_its_memory_with_it<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for keeps_memory in [false, true] {
        let pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(64);
        let remote = memory.remote();
        let Pair { mut near, far, .. } = pair;
        let kept = keeps_memory.then_some(memory);
        drop(far);
        let target: Scatter = near.buffers(&[64]);
        // The queue pair may know already.
        let posted = near.qp.post(Request::new(1, Operation::Read { target, remote }));
        let (source, id) = (Source::Inline(b"too late"), 2);
        let written = near.qp.post(Request::new(id, Operation::Write { source, remote, immediate: None }));
        let posted = [posted.is_ok(), written.is_ok()].into_iter().filter(|&taken| taken).count();
        assert_eq!(posted, 2, "a connection that broke takes requests, and flushes them");
        let now_ns = || fixture.now_ns();
        let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
        for id in 1..3 {
            let failed = |ends: &mut [&mut End<F::Device>]| ends[0].sent.pop_front();
            let failed = eventually(watch, &mut [&mut near], "a request to a peer that is gone", failed);
            assert!(failed.id == id && !failed.status.is_success(), "{failed:?}");
            assert_eq!(failed.buffers.len(), usize::from(id == 1));
        }
        assert_eq!(near.qp.state(), QpState::Error);
        assert!(kept.is_none_or(|memory| read(&memory, 0, 64) == [0; 64]), "nothing was written");
    }
}

/// Connecting to a made-up number that nobody has is refused, or the requests there end, over RC with an error. Nobody
/// else hears of them.
pub fn a_peer_that_was_never_there_is_refused_or_given_up<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        for number in [0, 0x005A_5A5A, 0x00FF_FFFE, u32::MAX] {
            let mut bystander = Pair::new(fixture, transport);
            let device = fixture.device();
            let config = config(&device, transport);
            let mut near = End::new(device, &config);
            let nobody = QpAddress { number: QpNumber(number), ..bystander.far.qp.address() };
            if near.qp.connect(Some(&nobody)).is_err() {
                continue;
            }
            bystander.far.receive(1, 64);
            let (source, target) = (Source::Inline(b"anybody?"), near.buffers(&[8]));
            near.post(Request::new(1, Operation::Send { source, immediate: None, to: None }));
            if transport == Transport::Rc {
                let remote = bystander.far.expose(8).remote();
                near.post(Request::new(2, Operation::Read { target, remote }));
            }
            let now_ns = || fixture.now_ns();
            let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
            let over = |ends: &mut [&mut End<F::Device>]| ends[0].sent.pop_front();
            let sent = eventually(watch, &mut [&mut near], "a request to nobody is over", over);
            assert_eq!(sent.id, 1);
            if transport == Transport::Rc {
                assert_failed(fixture, &sent, Status::RetryExceeded);
                let flushed = eventually(watch, &mut [&mut near], "what is behind it is flushed", over);
                assert_eq!((flushed.id, flushed.status, flushed.buffers.len()), (2, Status::Flushed, 1));
                assert_eq!(near.qp.state(), QpState::Error);
            }
            bystander.wait_briefly();
            assert!(bystander.far.received.is_empty(), "{transport:?}: {number:#x} is nobody's");
            bystander.deliver(1, |pair| pair.send(Source::Inline(b"to whom it was"), None));
        }
    }
}

/// UD: a datagram to a queue pair that is gone completes, and has no other effect.
pub fn datagrams_to_nobody_do_no_harm<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    pair.assert_works(1);
    let device = fixture.device();
    let config = config(&device, transport);
    let other = End::new(device, &config);
    let gone = std::mem::replace(&mut pair.far, other);
    drop(gone);
    for id in 0..DEPTH as u64 {
        let operation = pair.send(Source::Inline(b"anybody?"), None);
        pair.near.post(Request::new(id, operation));
        pair.expect_success(id);
    }
    assert_eq!(pair.near.qp.state(), QpState::ReadyToSend);
    pair.far.qp.connect(None).expect("UD needs no peer");
    pair.to = destination(&pair.near, &pair.far);
    pair.assert_works(2);
}
