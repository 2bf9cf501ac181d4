//! The states of a queue pair, and what each allows.

use sinew_fabric::verbs::{
    Exposed, Opcode, Operation, PostError, QpAddress, QpState, QueuePair, Request, Source, Status, Transport,
    VerbsError,
};

use super::ends::*;
use super::*;

const STATES: [QpState; 5] =
    [QpState::Reset, QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend, QpState::Error];

fn fresh<F: Fixture>(fixture: &F, transport: Transport) -> End<F::Device> {
    let device = fixture.device();
    let config = config(&device, transport);
    End::new(device, &config)
}

/// Takes a fresh queue pair to a state.
fn bring_to_state<D: Device>(end: &mut End<D>, state: QpState, peer: &QpAddress) {
    let peer = end.transport().is_connected().then_some(peer);
    let order = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    let steps = match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::ReadyToReceive => 2,
        QpState::ReadyToSend | QpState::Error => 3,
    };
    for next in &order[..steps] {
        end.qp.modify(*next, peer.filter(|_| *next == QpState::ReadyToReceive)).expect("the next state");
    }
    if state == QpState::Error {
        end.qp.modify(QpState::Error, None).expect("from every state to error");
    }
    assert_eq!(end.qp.state(), state);
}

/// Requests are taken once the queue pair is ready to send, and receives from `Init` on; in error both are taken, and
/// flushed.
pub fn a_queue_pair_takes_only_what_its_state_allows<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        for state in STATES {
            let far = fresh(fixture, transport);
            let mut near = fresh(fixture, transport);
            assert_eq!((near.qp.state(), near.qp.transport()), (QpState::Reset, transport));
            bring_to_state(&mut near, state, &far.qp.address());
            let to = destination(&near, &far);
            let send = Request::new(1, Operation::Send { source: Source::Inline(b"message"), immediate: None, to });
            let pushed = near.qp.push(send).map_err(|refused| refused.error);
            near.qp.doorbell();
            let takes = matches!(state, QpState::ReadyToSend | QpState::Error);
            assert_eq!(pushed, if takes { Ok(()) } else { Err(PostError::State(state)) }, "{transport:?}");
            let posted = near.qp.post_buffer(2, near.buffer(16));
            match posted {
                Ok(()) => assert!(state != QpState::Reset, "{transport:?}: a receive in {state:?}"),
                Err(refused) => {
                    assert_eq!((refused.error, state), (PostError::State(state), QpState::Reset), "{transport:?}");
                    assert_eq!(refused.buffers.len(), 1);
                }
            }
        }
    }
}

/// A queue pair goes from state to state as specified, from every state to error and to reset, and nowhere else.
pub fn transitions_out_of_order_are_refused<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let far = fresh(fixture, transport);
        let address = far.qp.address();
        let peer = transport.is_connected().then_some(&address);
        for from in STATES {
            for to in STATES {
                let mut near = fresh(fixture, transport);
                bring_to_state(&mut near, from, &address);
                let peer = peer.filter(|_| to == QpState::ReadyToReceive);
                match near.qp.modify(to, peer) {
                    Ok(()) => assert!(from.can_become(to), "{transport:?}: from {from:?} to {to:?}"),
                    Err(VerbsError::Transition { from: reported_from, to: reported_to }) => {
                        assert!(!from.can_become(to), "{transport:?}: not from {from:?} to {to:?}");
                        assert_eq!((reported_from, reported_to), (from, to));
                    }
                    Err(error) => panic!("{transport:?}: from {from:?} to {to:?}: {error}"),
                }
                let now = if from.can_become(to) { to } else { from };
                assert_eq!(near.qp.state(), now, "{transport:?}: after the way from {from:?} to {to:?}");
            }
        }
    }
}

/// A connection needs the address of a peer; an address of another transport, or of no device, is not one.
pub fn a_connection_needs_the_address_of_its_peer<F: Fixture>(fixture: &F) {
    let all = transports(fixture);
    for transport in connected(fixture) {
        let far = fresh(fixture, transport);
        let good = far.qp.address();
        assert_eq!((good.transport, good.number), (transport, far.qp.number()));
        let mut malformed = good.clone();
        malformed.port.iter_mut().for_each(|byte| *byte = !*byte);
        let mut nothing = good.clone();
        nothing.port.clear();
        let others = all.iter().filter(|&&other| other != transport);
        let others = others.map(|&other| fresh(fixture, other).qp.address());
        let wrong: Vec<Option<QpAddress>> =
            others.chain([malformed, nothing]).map(Some).chain(std::iter::once(None)).collect();
        let mut near = fresh(fixture, transport);
        bring_to_state(&mut near, QpState::Init, &good);
        for address in wrong {
            let refused = near.qp.modify(QpState::ReadyToReceive, address.as_ref()).expect_err("that is no peer");
            assert!(matches!(refused, VerbsError::Address(_)), "{transport:?}: {refused}");
            assert_eq!(near.qp.state(), QpState::Init);
        }
        // The address as it is sent to a peer, and read there.
        let decoded = QpAddress::from_bytes(&good.to_bytes()).expect("an address of ours");
        near.qp.modify(QpState::ReadyToReceive, Some(&decoded)).expect("that is the peer");
    }
}

/// Receives can be posted before there is a connection, and messages come before we can send.
pub fn a_queue_pair_that_is_ready_to_receive_receives<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let (mut near, mut far) = (fresh(fixture, transport), fresh(fixture, transport));
        let (of_near, of_far) = (near.qp.address(), far.qp.address());
        bring_to_state(&mut far, QpState::Init, &of_near);
        far.receive(1, 64);
        far.qp.modify(QpState::ReadyToReceive, transport.is_connected().then_some(&of_near)).expect("the next state");
        bring_to_state(&mut near, QpState::ReadyToSend, &of_far);
        let to = destination(&near, &far);
        let mut pair = Pair { fixture, near, far, to };
        let received = pair.deliver(1, |pair| pair.send(Source::Inline(b"early"), None));
        assert_message(&received, b"early", None);
        pair.far.qp.modify(QpState::ReadyToSend, None).expect("the next state");
        pair.assert_works(1);
    }
}

/// Posts some of everything, none of which can be over: messages to a peer that has no receive or, where those would be
/// dropped, requests that are pushed and not started.
fn post_unfinished<F: Fixture>(pair: &mut Pair<'_, F>) {
    for id in 0..4 {
        let len = 8 << id;
        pair.near.receive(id, len);
        let operation = pair.send(pair.near.frozen(&pattern(1, len)).into(), None);
        pair.near.push(Request::new(id, operation));
        if pair.transport() == Transport::Rc {
            pair.near.qp.doorbell();
        }
    }
    if pair.transport() == Transport::Rc {
        let remote = pair.far.expose(64).remote();
        let target = pair.near.buffers(&[8, 16]);
        pair.near.push(Request::new(4, Operation::Read { target, remote }).unsignaled());
    }
    pair.assert_quiet("nothing can be over");
}

fn assert_flushed<F: Fixture>(pair: &mut Pair<'_, F>) {
    let requests = if pair.transport() == Transport::Rc { 5 } else { 4 };
    for id in 0..requests {
        let flushed = pair.next_sent("requests are flushed");
        assert_eq!((flushed.id, flushed.status), (id, Status::Flushed));
        assert_eq!(flushed.qp, pair.near.qp.number());
        let (opcode, targets) = if id == 4 { (Opcode::Read, 2) } else { (Opcode::Send, 0) };
        assert_eq!((flushed.opcode, flushed.buffers.len()), (opcode, targets));
    }
    for id in 0..4 {
        let flushed = pair.eventually("receives are flushed", |pair| pair.near.received.pop_front());
        assert_eq!((flushed.id, flushed.status, flushed.opcode), (id, Status::Flushed, Opcode::Receive));
        assert_eq!((flushed.buffers.len(), flushed.buffers[0].capacity()), (1, 8 << id));
    }
    pair.assert_quiet("everything was flushed once");
}

/// On the way to error, and in it, everything posted completes as flushed, in order, and no peer hears of it.
pub fn an_error_flushes_both_queues<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        post_unfinished(&mut pair);
        pair.near.qp.modify(QpState::Error, None).expect("from every state to error");
        // Requests that were pushed and not started are flushed with the doorbell at the latest.
        pair.near.qp.doorbell();
        assert_flushed(&mut pair);
        assert_eq!(pair.near.qp.state(), QpState::Error);
        // More than fits at once, so places must come back.
        for id in 0..2 * DEPTH as u64 {
            pair.near.receive(id, 8);
            let operation = pair.send(Source::Inline(b"flushed"), None);
            pair.near.post(Request::new(id, operation).unsignaled());
            let flushed = pair.next_sent("what is posted in error");
            assert_eq!((flushed.id, flushed.status), (id, Status::Flushed));
            let flushed = pair.eventually("a receive in error", |pair| pair.near.received.pop_front());
            assert_eq!((flushed.id, flushed.status), (id, Status::Flushed));
        }
        pair.far.receive(1, 64);
        pair.wait_briefly();
        assert!(pair.far.received.iter().all(|received| !received.status.is_success()), "{transport:?}: not sent");
    }
}

fn reset_and_connect<F: Fixture>(pair: &mut Pair<'_, F>) {
    for end in [&mut pair.near, &mut pair.far] {
        end.qp.modify(QpState::Reset, None).expect("from every state to reset");
        assert_eq!(end.qp.state(), QpState::Reset);
    }
    connect(&mut pair.near, &mut pair.far);
    pair.to = destination(&pair.near, &pair.far);
}

/// A reset ends what is posted as an error does; both ends exchange addresses again, and work as if they were new.
pub fn a_reset_flushes_both_queues_and_begins_anew<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        pair.assert_works(1);
        for round in 0..3 {
            post_unfinished(&mut pair);
            if round == 1 {
                pair.near.qp.modify(QpState::Error, None).expect("from every state to error");
            }
            pair.near.qp.modify(QpState::Reset, None).expect("from every state to reset");
            assert_flushed(&mut pair);
            let number = pair.near.qp.number();
            reset_and_connect(&mut pair);
            assert_eq!(pair.near.qp.number(), number, "a queue pair keeps its number");
            pair.far.received.clear();
            pair.assert_works(round);
            assert!(pair.near.sent.is_empty());
        }
    }
}

/// A former peer is no longer heard, even if it does not know that; the new peer is.
pub fn a_queue_pair_hears_nothing_of_an_earlier_connection<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        let Expectations { knows_its_peer, .. } = fixture.expectations();
        if transport == Transport::Uc && !knows_its_peer.holds_or_report("UC: what a former peer sends") {
            continue;
        }
        let Pair { near: mut former, mut far, .. } = Pair::new(fixture, transport);
        let mut near = fresh(fixture, transport);
        far.qp.modify(QpState::Reset, None).expect("from every state to reset");
        connect(&mut near, &mut far);
        let mut pair = Pair { fixture, near, far, to: None };
        pair.assert_works(1);
        for id in 0..4 {
            pair.far.receive(id, 64);
        }
        for id in 0..3 {
            let source = Source::Inline(b"of old");
            // The former peer may know already.
            let _ = former.qp.post(Request::new(id, Operation::Send { source, immediate: None, to: None }));
        }
        pair.wait_briefly();
        former.poll();
        pair.wait_briefly();
        assert!(pair.far.received.is_empty(), "{transport:?}: {:?}", pair.far.received);
        assert_eq!(pair.far.qp.state(), QpState::ReadyToSend);
        let received = pair.deliver(0, |pair| pair.send(Source::Inline(b"of new"), None));
        assert_message(&received, b"of new", None);
        former.poll();
    }
}

/// RC: a peer in error takes nothing, and its peers hear so.
pub fn requests_to_a_peer_in_error_fail<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for one_sided in [false, true] {
        let mut pair = Pair::new(fixture, transport);
        let memory = pair.far.expose(8);
        pair.far.receive(1, 8);
        pair.far.qp.modify(QpState::Error, None).expect("from every state to error");
        let flushed = pair.next_received("its receive is flushed");
        assert_eq!((flushed.id, flushed.status), (1, Status::Flushed));
        let (source, remote) = (Source::Inline(b"in vain"), memory.remote());
        let operation = match one_sided {
            true => Operation::Write { source, remote, immediate: None },
            false => pair.send(source, None),
        };
        pair.near.post(Request::new(2, operation));
        let failed = pair.next_sent("a request to a peer in error");
        assert!(failed.id == 2 && !failed.status.is_success(), "{failed:?}");
        assert_eq!((pair.near.qp.state(), memory.load(0)), (QpState::Error, Ok(0)));
    }
}
