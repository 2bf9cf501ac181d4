//! Serving with state: handlers that belong to their endpoint, requests taken by the program that turns it, and
//! counters that other threads read.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Clock, PacketPort, SeededGenerator};
use sinew_rpc::{
    BurstCalls, Call, Cause, Config, EnqueueError, Execution, Nexus, NexusBuilder, NexusError, RequestType, Rpc,
};

const TYPE: RequestType = RequestType::new(50);
const OTHER: RequestType = RequestType::new(51);

/// A client and a server with these handlers.
fn pair_with(
    world: &World,
    config: Config,
    add: impl FnOnce(NexusBuilder) -> NexusBuilder,
) -> (Endpoint, Endpoint, sinew_rpc::SessionId) {
    let nexus = add(Nexus::builder().workers(Arc::clone(&world.pool) as _).config(config)).build().unwrap();
    let mut server = world.endpoint("server", &nexus, 1);
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(world, &mut client, &mut server);
    (client, server, session)
}

/// Result of the one call that is in flight.
fn outcome(world: &World, client: &mut Endpoint, server: &mut Endpoint) -> Result<Vec<u8>, (Cause, Execution)> {
    let over = run(world, client, server, 1).remove(0);
    over.result.map(|()| over.response.to_vec()).map_err(|error| (error.cause, error.execution))
}

#[test]
fn makers_of_handlers_are_told_which_endpoint_they_are_for() {
    let world = World::new();
    let endpoints_seen = Arc::new(Mutex::new(Vec::new()));
    let recorder = |what: &'static str| {
        let endpoints_seen = Arc::clone(&endpoints_seen);
        move |endpoint: &sinew_rpc::EndpointInfo| {
            assert_eq!(endpoint.alloc(100).unwrap().len(), 100);
            endpoints_seen.lock().unwrap().push((what, endpoint.index, endpoint.address.to_string()));
        }
    };
    let (one, burst, worker) = (recorder("one"), recorder("burst"), recorder("worker"));
    let nexus = Nexus::builder()
        .workers(Arc::clone(&world.pool) as _)
        .handle_with(TYPE, move |endpoint| {
            one(endpoint);
            |call: Call<'_>| call.reply(b"")
        })
        .handle_burst_with(OTHER, move |endpoint| {
            burst(endpoint);
            |_: &mut BurstCalls<'_, '_>| {}
        })
        .handle_worker_with(WORKER, move |endpoint| {
            worker(endpoint);
            drop
        })
        .build()
        .unwrap();
    let endpoint = |index, name| {
        let port = world.port(name, LoopbackConfig::default());
        let address = port.address().to_string();
        let rpc = Rpc::numbered(&nexus, index, port, world.clock.clone(), Box::new(SeededGenerator::new(1)));
        assert_eq!((rpc.info().index, rpc.info().address.to_string()), (index, address.clone()));
        let mut endpoints_seen = std::mem::take(&mut *endpoints_seen.lock().unwrap());
        endpoints_seen.sort_unstable();
        let of = |what| (what, index, address.clone());
        assert_eq!(endpoints_seen, [of("burst"), of("one"), of("worker")]);
    };
    endpoint(0, "first");
    endpoint(7, "eighth");
    world.endpoint("alone", &nexus, 1);
    assert!(endpoints_seen.lock().unwrap().iter().all(|(_, index, _)| *index == 0));
}

#[test]
fn handlers_of_an_endpoint_share_what_need_not_be_send() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (one, all) = (Rc::clone(&seen), Rc::clone(&seen));
    server
        .handle(TYPE, move |call| {
            one.borrow_mut().push(call.request().to_vec());
            call.reply(b"one");
        })
        .unwrap();
    server
        .handle_burst(OTHER, move |calls| {
            all.borrow_mut().push(calls.request(0).to_vec());
            calls.reply(0, b"all");
        })
        .unwrap();
    send(&mut client, session, TYPE, b"a", 0);
    assert_eq!(outcome(&world, &mut client, &mut server), Ok(b"one".to_vec()));
    send(&mut client, session, OTHER, b"b", 0);
    assert_eq!(outcome(&world, &mut client, &mut server), Ok(b"all".to_vec()));
    assert_eq!(*seen.borrow(), [b"a", b"b"]);
    drop(server);
    assert_eq!(Rc::strong_count(&seen), 1);
}

#[test]
fn a_type_has_one_handler_wherever_it_is_registered() {
    let world = World::new();
    let (_client, mut server, _session) = pair_with(&world, Config::default(), |nexus| nexus.handle(TYPE, |_call| {}));
    assert_eq!(server.handle(TYPE, |_call| {}), Err(NexusError::DuplicateType(50)));
    assert_eq!(server.handle_burst(TYPE, |_| {}), Err(NexusError::DuplicateType(50)));
    assert_eq!(server.handle_polled(TYPE), Err(NexusError::DuplicateType(50)));
    assert_eq!(server.handle_polled(OTHER), Ok(()));
    assert_eq!(server.handle(OTHER, |_call| {}), Err(NexusError::DuplicateType(51)));
    let twice = Nexus::builder().handle_polled(TYPE).handle(TYPE, |_call| {}).build();
    assert_eq!(twice.err(), Some(NexusError::DuplicateType(50)));
}

#[test]
fn handlers_know_the_time_of_their_turn() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus);
    let clock = world.clock.clone();
    server
        .handle(TYPE, move |call| {
            let time = call.now_ns().to_le_bytes();
            // Time that passes now does not belong to this turn.
            clock.advance(5);
            call.reply(&time);
        })
        .unwrap();
    server
        .handle_burst(OTHER, |calls| {
            let time = calls.now_ns().to_le_bytes();
            calls.reply(0, &time);
        })
        .unwrap();
    for request_type in [TYPE, OTHER] {
        send(&mut client, session, request_type, b"", 0);
        client.turn();
        world.clock.advance(1_000);
        let now_ns = world.clock.now_ns();
        server.turn();
        assert_eq!(outcome(&world, &mut client, &mut server), Ok(now_ns.to_le_bytes().to_vec()));
    }
}

#[test]
fn a_turn_hands_requests_without_a_handler_to_a_closure_that_borrows() {
    let world = World::new();
    let (mut client, mut server, session) =
        pair_with(&world, Config::default(), |nexus| nexus.handle(ECHO, |call| call.reply(b"the handler's")));
    for (tag, request_type) in [TYPE, ECHO, OTHER, RequestType::new(u16::MAX)].into_iter().enumerate() {
        send(&mut client, session, request_type, &pattern(10, tag as u8), tag as u64);
    }
    send(&mut client, session, TYPE, &pattern(5_000, 4), 4);
    let mut taken = Vec::new();
    let mut over = Vec::new();
    while over.len() < 5 {
        client.turn();
        server.turn_with(|call| {
            taken.push((call.request_type(), call.request().to_vec()));
            match call.request_type() {
                TYPE => call.reply(b"the closure's"),
                OTHER => call.refuse_type(),
                _ => drop(call),
            }
        });
        over.extend(completions(&mut client));
        world.clock.advance(20_000);
    }
    over.sort_by_key(|over| over.tag);
    let results = over.iter().map(|over| match &over.result {
        Ok(()) => Ok(&over.response[..]),
        Err(error) => Err((error.cause, error.execution)),
    });
    let expected = [
        Ok(&b"the closure's"[..]),
        Ok(b"the handler's"),
        Err((Cause::NoHandler, Execution::NotRun)),
        Err((Cause::HandlerDropped, Execution::MayHaveRun)),
        Ok(b"the closure's"),
    ];
    assert_eq!(results.collect::<Vec<_>>(), expected);
    let of = |request_type, len, seed| (request_type, pattern(len, seed));
    let last = RequestType::new(u16::MAX);
    assert_eq!(taken, [of(TYPE, 10, 0), of(OTHER, 10, 2), of(last, 10, 3), of(TYPE, 5_000, 4)]);
    // A turn without the closure has nothing to handle these requests.
    send(&mut client, session, TYPE, b"", 0);
    assert_eq!(outcome(&world, &mut client, &mut server), Err((Cause::NoHandler, Execution::NotRun)));
}

#[test]
fn a_closure_that_panics_fails_its_call_and_no_other() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus);
    for tag in 0..3 {
        send(&mut client, session, TYPE, b"", tag);
    }
    client.turn();
    let mut number = 0;
    server.turn_with(|call| {
        number += 1;
        assert!(number != 2, "on purpose");
        call.reply(b"well");
    });
    let mut over = run(&world, &mut client, &mut server, 3);
    over.sort_by_key(|over| over.tag);
    let causes: Vec<_> = over.iter().map(|over| over.result.as_ref().err().map(|error| error.cause)).collect();
    assert_eq!(causes, [None, Some(Cause::HandlerPanicked), None]);
}

#[test]
fn polled_requests_wait_in_their_order_and_are_answered_when_the_program_likes() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus.handle_polled(TYPE));
    server.handle_polled(OTHER).unwrap();
    assert!(server.poll_request().is_none());
    let lens = [0, 1, 1_000, 5_000, 100_000];
    for (tag, len) in lens.into_iter().enumerate() {
        send(&mut client, session, if len == 1 { OTHER } else { TYPE }, &pattern(len, tag as u8), tag as u64);
    }
    pass_time(&world, &mut client, &mut server, 10_000_000);
    assert!(completions(&mut client).is_empty());
    // There is something to do.
    assert!(!server.wait(Some(1)).unwrap());
    let mut kept: Vec<_> = std::iter::from_fn(|| server.poll_request()).collect();
    assert_eq!(kept.iter().map(|call| call.request().len()).collect::<Vec<_>>(), lens);
    assert!(kept.iter().zip(0..).all(|(call, seed)| call.request() == pattern(call.request().len(), seed)));
    assert_eq!(kept[1].request_type(), OTHER);
    // Answers in any order, and in each of the ways.
    server.reply(kept.pop().unwrap(), b"short");
    server.reply_with(kept.pop().unwrap(), 6_000, |request, response| {
        assert_eq!(request, pattern(5_000, 3));
        response.fill(9);
    });
    std::thread::spawn(|| kept.into_iter().for_each(|call| call.reply_in_place())).join().unwrap();
    let mut over = run(&world, &mut client, &mut server, 5);
    over.sort_by_key(|over| over.tag);
    assert!(over.iter().all(|over| over.result.is_ok()));
    assert_eq!(over[2].response[..], pattern(1_000, 2));
    assert_eq!((&over[3].response[..], &over[4].response[..]), (&[9; 6_000][..], &b"short"[..]));
}

#[test]
fn polled_requests_that_nobody_takes_keep_nobody_awake_for_longer_than_once() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus.handle_polled(TYPE));
    for tag in 0..3 {
        send(&mut client, session, TYPE, b"", tag);
        settle(&mut client, &mut server);
        assert!(!server.wait(Some(1)).unwrap(), "request {tag} came");
        assert!(server.wait(Some(1)).unwrap(), "nothing came since request {tag}");
    }
    // A program that takes one request at a time sleeps when none is left.
    let mut taken = Vec::new();
    for left in [2, 1, 0] {
        taken.push(server.poll_request().unwrap());
        assert_eq!(server.wait(Some(1)).unwrap(), left == 0, "{left} are left");
    }
}

#[test]
fn a_backlog_that_nobody_polls_is_bounded_for_each_client_and_for_all() {
    const BUSY: Result<Vec<u8>, (Cause, Execution)> = Err((Cause::ServerBusy, Execution::NotRun));
    let world = World::new();
    // Up to two requests of one client, and three in all.
    let config = Config { polled_requests_max: 3, peer_share_percent: 67, ..Config::default() };
    let (mut client, mut server, session) = pair_with(&world, config, |nexus| nexus.handle_polled(TYPE));
    let mut second = world.endpoint("second", &Nexus::client(), 3);
    let of_second = connect(&world, &mut second, &mut server);
    for tag in 0..2 {
        send(&mut client, session, TYPE, b"first", tag);
    }
    settle(&mut client, &mut server);
    send(&mut client, session, TYPE, b"first", 2);
    assert_eq!(outcome(&world, &mut client, &mut server), BUSY);
    send(&mut second, of_second, TYPE, b"second", 0);
    settle(&mut second, &mut server);
    send(&mut second, of_second, TYPE, b"second", 1);
    assert_eq!(outcome(&world, &mut second, &mut server), BUSY);
    // A polled request makes room before it is answered.
    let first = server.poll_request().unwrap();
    send(&mut second, of_second, TYPE, b"second", 2);
    settle(&mut second, &mut server);
    send(&mut client, session, TYPE, b"first", 3);
    assert_eq!(outcome(&world, &mut client, &mut server), BUSY);
    let mut waiting: Vec<_> = std::iter::from_fn(|| server.poll_request()).collect();
    assert_eq!(waiting.iter().map(|call| call.request()).collect::<Vec<_>>(), [&b"first"[..], b"second", b"second"]);
    waiting.push(first);
    waiting.into_iter().for_each(|call| server.reply(call, b"done"));
    assert!(run(&world, &mut client, &mut server, 2).iter().all(|over| over.result.is_ok()));
    assert!(run(&world, &mut second, &mut server, 2).iter().all(|over| over.result.is_ok()));
}

#[test]
fn polled_requests_count_for_their_clients_share_of_the_memory() {
    let world = World::new();
    let nexus = Nexus::builder().handle_polled(TYPE).build().unwrap();
    let port = LoopbackConfig { arena_bytes: 1 << 20, ..LoopbackConfig::default() };
    let mut server = world.endpoint_with("server", &nexus, 1, port);
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut client, &mut server);
    // The client's share is half of the arena.
    for tag in 0..8 {
        send(&mut client, session, TYPE, &pattern(100_000, 1), tag);
        pass_time(&world, &mut client, &mut server, 20_000_000);
    }
    let busy = completions(&mut client);
    assert!((2..8).contains(&busy.len()), "{} were refused", busy.len());
    assert!(busy.iter().all(|over| over.result.as_ref().is_err_and(|error| error.cause == Cause::ServerBusy)));
    while let Some(call) = server.poll_request() {
        server.reply(call, b"");
    }
    assert!(run(&world, &mut client, &mut server, 8 - busy.len()).iter().all(|over| over.result.is_ok()));
    // Answered requests no longer count.
    send(&mut client, session, TYPE, &pattern(300_000, 1), 9);
    pass_time(&world, &mut client, &mut server, 50_000_000);
    assert!(server.poll_request().is_some());
}

#[test]
fn requests_whose_client_has_gone_are_passed_over() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus.handle_polled(TYPE));
    let mut second = world.endpoint("second", &Nexus::client(), 3);
    let of_second = connect(&world, &mut second, &mut server);
    send(&mut client, session, TYPE, b"first", 0);
    settle(&mut client, &mut server);
    send(&mut second, of_second, TYPE, b"second", 0);
    settle(&mut second, &mut server);
    client.disconnect(session);
    settle(&mut client, &mut server);
    let call = server.poll_request().unwrap();
    assert_eq!((call.request(), server.poll_request().is_none()), (&b"second"[..], true));
    server.reply(call, b"");
    assert!(run(&world, &mut second, &mut server, 1)[0].result.is_ok());
    assert_eq!(server.stats().answers_discarded, 0);
}

#[test]
fn an_answer_given_at_another_endpoint_finds_its_way() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus.handle_polled(TYPE));
    let mut other = world.endpoint("other", &Nexus::client(), 3);
    for len in [4, 5_000] {
        send(&mut client, session, TYPE, &pattern(len, 0), 0);
        pass_time(&world, &mut client, &mut server, 5_000_000);
        let call = server.poll_request().unwrap();
        other.reply_with(call, len, |request, response| response.copy_from_slice(request));
        assert_eq!(outcome(&world, &mut client, &mut server), Ok(pattern(len, 0)));
    }
}

#[test]
fn an_answer_that_panics_while_it_is_written_fails_its_call() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, Config::default(), |nexus| nexus.handle_polled(TYPE));
    send(&mut client, session, TYPE, b"", 0);
    settle(&mut client, &mut server);
    let call = server.poll_request().unwrap();
    let write = std::panic::AssertUnwindSafe(|| server.reply_with(call, 8, |_, _| panic!("on purpose")));
    std::panic::catch_unwind(write).unwrap_err();
    let failed = outcome(&world, &mut client, &mut server);
    assert_eq!(failed, Err((Cause::HandlerPanicked, Execution::MayHaveRun)));
}

#[test]
fn a_loop_ends_with_the_error_of_its_condition_and_can_be_entered_again() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let turns = Cell::new(0);
    let fail = |_: &mut Endpoint| -> Result<bool, sinew_rpc::Error> {
        turns.set(turns.get() + 1);
        if turns.get() == 5 { Err(EnqueueError::NoSuchSession.into()) } else { Ok(false) }
    };
    let error = server.try_run_until(fail).unwrap_err();
    assert!(matches!(error, sinew_rpc::Error::Enqueue(EnqueueError::NoSuchSession)) && turns.get() == 5, "{error}");
    send(&mut client, session, ECHO, b"well", 0);
    client.turn();
    server.try_run_until(|server| Ok::<_, std::io::Error>(server.stats().requests_handled == 1)).unwrap();
    assert_eq!(outcome(&world, &mut client, &mut server), Ok(b"well".to_vec()));
}

#[test]
fn a_reader_finds_what_was_counted_by_each_turn_and_before_sleep() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let reader = server.stats_reader();
    let is_live = |server: &Endpoint| {
        let read = reader.read();
        let expected = (server.stats(), server.port_stats(), server.sessions());
        assert_eq!((read.stats, read.port_stats, read.sessions), expected);
    };
    is_live(&server);
    for number in 1..=5 {
        send(&mut client, session, ECHO, b"", number);
        client.turn();
        server.turn();
        assert_eq!(reader.read().stats.requests_handled, number);
        assert_eq!(reader.read().sessions, 1);
        settle(&mut client, &mut server);
        is_live(&server);
    }
    assert_eq!(completions(&mut client).len(), 5);
    // What is counted between turns is published before a sleep.
    let mine = server.begin_connect(&client.address()).unwrap();
    server.turn();
    server.disconnect(mine);
    // The first wait does not sleep, as there is an event to take.
    while !server.wait(Some(1)).unwrap() {}
    is_live(&server);
    let handled = server.stats().requests_handled;
    drop(server);
    // Its sessions ended with it.
    assert_eq!((reader.read().stats.requests_handled, reader.read().sessions), (handled, 0));
}
