//! Clumsy use: endpoints that open sessions with themselves, shares that come and go, times at the ends of the scale.

mod common;

use std::rc::Rc;

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{
    CallOptions, Cause, Channel, Config, ConnectOptions, Endpoint as _, RequestType, SessionEvent, SharedEndpoint,
};

const MS: u64 = 1_000_000;

fn turn_alone(endpoint: &mut Endpoint) {
    for _ in 0..10_000 {
        if !endpoint.turn() {
            return;
        }
    }
    panic!("an endpoint talks to itself for ever");
}

#[test]
fn an_endpoint_visits_itself_calls_itself_back_and_leaves() {
    const ASK: RequestType = RequestType::new(80);
    let world = World::new();
    let mut it = world.endpoint("self", &server_nexus(Default::default(), Config::default()), 7);
    it.handle(ASK, |mut call| {
        let back = call.session_to(call.client()).unwrap();
        let (request, response) = (call.alloc(4).unwrap(), call.alloc(8).unwrap());
        call.enqueue_request(back, ECHO, request, response, 9).unwrap();
        call.reply(b"asked");
    })
    .unwrap();
    for round in 0..3 {
        let session = it.begin_connect_with(&it.address(), ConnectOptions::new().call_back(4)).unwrap();
        turn_alone(&mut it);
        assert!(matches!(it.poll_event(), Some(SessionEvent::Connected(id)) if id == session), "round {round}");
        assert_eq!(it.sessions(), 4);
        send(&mut it, session, ASK, b"", 1);
        turn_alone(&mut it);
        let mut tags: Vec<_> = completions(&mut it).iter().map(|over| (over.tag, over.result.is_ok())).collect();
        tags.sort_unstable();
        assert_eq!(tags, [(1, true), (9, true)]);
        // Longer than the peer time-out.
        for _ in 0..if cfg!(miri) { 10 } else { 8_000 } {
            world.clock.advance(MS);
            it.turn();
        }
        assert_eq!((it.sessions(), it.stats().peers_lost), (4, 0));
        it.disconnect(session);
        turn_alone(&mut it);
        assert_eq!((it.sessions(), it.committed_packets()), (0, 0));
        while it.poll_event().is_some() {}
    }
}

#[test]
fn shares_that_come_and_go_with_calls_in_flight_leave_nothing_behind() {
    const ROUNDS: u64 = if cfg!(miri) { 5 } else { 500 };
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut owner = SharedEndpoint::new(world.client(Config::default(), LoopbackConfig::default()));
    let own = owner.begin_connect(&server.address()).unwrap();
    let turns = |owner: &mut SharedEndpoint<Endpoint>, server: &mut Endpoint, times| {
        for _ in 0..times {
            owner.turn();
            server.turn();
        }
    };
    turns(&mut owner, &mut server, 10);
    for round in 0..ROUNDS {
        let mut share = owner.share();
        let mut channel = Channel::begin_open(&mut share, &server.address(), 20, ConnectOptions::new()).unwrap();
        turns(&mut owner, &mut server, round % 7);
        let _ = channel.poll(&mut share);
        for tag in 0..40 {
            let kind = [ECHO, DEFER, LONG, WORKER][tag as usize % 4];
            let (mut request, response) = (share.alloc(3000).unwrap(), share.alloc(16).unwrap());
            request.fill(&3000u32.to_le_bytes()).unwrap();
            let options = CallOptions::tag(tag);
            let options = if tag % 3 == 0 { options.timeout_ns(round * 1000) } else { options };
            if tag % 5 == 0 {
                let sent = share.enqueue_request(own, kind, request, response, options);
                assert!(sent.is_ok(), "{:?}", sent.err().map(|rejected| rejected.error));
            } else {
                let _ = channel.enqueue_request(&mut share, kind, request, response, options);
            }
        }
        turns(&mut owner, &mut server, round % 5);
        world.clock.advance(100_000);
        drop(share);
        if round % 4 == 0 {
            take_kept();
            world.pool.run_all();
        }
        let status = channel.status(&owner);
        assert_eq!(status.gone, channel.sessions().len(), "round {round}: {status:?}");
    }
    take_kept();
    world.pool.run_all();
    for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
        world.clock.advance(MS);
        turns(&mut owner, &mut server, 1);
    }
    while owner.poll_event().is_some() {}
    assert!(owner.poll_completion().is_none() && owner.poll_ready_lane().is_none());
    assert_eq!((owner.sessions(), server.sessions()), (1, 1));
    let committed = owner.with(|endpoint| endpoint.session_credits(own)).unwrap();
    assert_eq!(committed.left, committed.all);
    let slots = owner.session_slots(own).unwrap();
    assert_eq!(slots.free, slots.all);
}

#[test]
fn times_at_the_ends_of_the_scale_are_times() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let times = [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    for timeout_ns in times {
        for deadline_ns in times {
            let options = CallOptions::tag(1).timeout_ns(timeout_ns).deadline_ns(deadline_ns);
            send(&mut client, session, ECHO, b"x", options);
            settle(&mut client, &mut server);
            let over = completions(&mut client).remove(0);
            let passed = timeout_ns <= 1 || deadline_ns <= 1;
            match over.result {
                Ok(()) => assert!(!passed || timeout_ns == 1 && deadline_ns > 1, "{timeout_ns} {deadline_ns}"),
                Err(error) => assert!(passed && error.cause == Cause::DeadlinePassed, "{timeout_ns} {deadline_ns}"),
            }
        }
    }
}

/// A handler uses a handle of its own endpoint: what it hands over begins in the next turn.
#[test]
fn a_handler_hands_over_to_its_own_endpoint() {
    const ASK: RequestType = RequestType::new(81);
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let handle = server.remote_handle();
    let ran = Rc::new(std::cell::Cell::new(0));
    let counts = Rc::clone(&ran);
    server
        .handle(ASK, move |call| {
            counts.set(counts.get() + 1);
            let again = handle.clone();
            let first = handle.run(move |endpoint| {
                let inner = again.run(|endpoint| endpoint.sessions()).unwrap();
                (endpoint.sessions(), inner)
            });
            let mut first = first.unwrap();
            assert!(first.try_take().is_none());
            call.reply(b"handed over");
        })
        .unwrap();
    for tag in 0..10 {
        send(&mut client, session, ASK, b"", tag);
        settle(&mut client, &mut server);
        assert!(completions(&mut client).remove(0).result.is_ok());
    }
    assert_eq!(ran.get(), 10);
}
