//! What handlers may do, and what their clients hear of it.

mod common;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Job, WorkerPool};
use sinew_rpc::{Call, Cause, Config, Execution, Nexus, NexusBuilder, RequestType};

const TYPE: RequestType = RequestType::new(50);

/// A client and a server with these handlers.
fn pair_with(
    world: &World,
    port: LoopbackConfig,
    add: impl FnOnce(NexusBuilder) -> NexusBuilder,
) -> (Endpoint, Endpoint, sinew_rpc::SessionId) {
    let nexus = add(Nexus::builder().workers(Arc::clone(&world.pool) as _)).build().unwrap();
    let mut server = world.endpoint_with("server", &nexus, 1, port);
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(world, &mut client, &mut server);
    (client, server, session)
}

fn error_of(
    world: &World,
    client: &mut Endpoint,
    server: &mut Endpoint,
    session: sinew_rpc::SessionId,
) -> (Cause, Execution) {
    send(client, session, TYPE, b"x", 0);
    let error = run(world, client, server, 1).remove(0).result.unwrap_err();
    (error.cause, error.execution)
}

#[test]
fn a_panic_while_the_response_is_written_fails_the_call() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, LoopbackConfig::default(), |nexus| {
        nexus.handle(TYPE, |call| call.reply_with(8, |_| panic!("on purpose, while writing")))
    });
    for _ in 0..2 {
        let failed = error_of(&world, &mut client, &mut server, session);
        assert_eq!(failed, (Cause::HandlerPanicked, Execution::MayHaveRun));
    }
}

#[test]
fn a_panic_while_a_burst_is_answered_fails_the_calls_without_an_answer() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, LoopbackConfig::default(), |nexus| {
        nexus.handle_burst(TYPE, |calls| {
            calls.reply(0, b"first");
            calls.reply_with(1, 8, |_| panic!("on purpose, while writing"));
        })
    });
    for tag in 0..3 {
        send(&mut client, session, TYPE, b"x", tag);
    }
    let mut over = run(&world, &mut client, &mut server, 3);
    over.sort_by_key(|over| over.tag);
    assert!(over[0].result.is_ok());
    for failed in &over[1..] {
        assert_eq!(failed.result.as_ref().unwrap_err().cause, Cause::HandlerPanicked);
    }
}

#[test]
fn a_handler_that_ran_and_finds_no_memory_for_its_answer_may_have_run() {
    let small = LoopbackConfig { arena_bytes: 1 << 16, ..LoopbackConfig::default() };
    let ways: [fn(Call<'_>); 3] = [
        |call| call.reply_with(1 << 20, |_| unreachable!("there is no room")),
        |call| call.defer().unwrap().reply(&vec![0; 1 << 20]),
        |call| {
            let mut held = Vec::new();
            while let Ok(buffer) = call.alloc(1) {
                held.push(buffer);
            }
            assert!(call.defer().is_err());
        },
    ];
    for way in ways {
        let world = World::new();
        let (mut client, mut server, session) = pair_with(&world, small, |nexus| nexus.handle(TYPE, way));
        let failed = error_of(&world, &mut client, &mut server, session);
        assert_eq!(failed, (Cause::ServerBusy, Execution::MayHaveRun));
    }
}

#[test]
fn a_worker_without_memory_for_the_request_did_not_run() {
    let world = World::new();
    let small = LoopbackConfig { arena_bytes: 4096, ..LoopbackConfig::default() };
    let (mut client, mut server, session) =
        pair_with(&world, small, |nexus| nexus.handle_worker(TYPE, |call| call.reply(b"never")));
    let mut held = Vec::new();
    while let Ok(buffer) = server.alloc(1) {
        held.push(buffer);
    }
    let failed = error_of(&world, &mut client, &mut server, session);
    assert_eq!(failed, (Cause::ServerBusy, Execution::NotRun));
    drop(held);
    send(&mut client, session, TYPE, b"x", 0);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

#[test]
fn a_burst_handler_gets_the_requests_of_its_type_in_a_received_burst_at_once() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, LoopbackConfig::default(), |nexus| {
        nexus
            .handle_burst(TYPE, |calls| {
                let len = calls.len() as u8;
                for index in 0..calls.len() {
                    calls.reply(index, &[len]);
                    calls.reply(index, b"the second answer does not count");
                }
            })
            .handle_burst(BURST, |calls| {
                let deferred = calls.defer(0).unwrap();
                deferred.reply(b"later");
            })
    });
    for tag in 0..6 {
        send(&mut client, session, if tag < 5 { TYPE } else { BURST }, b"x", tag);
    }
    for over in run(&world, &mut client, &mut server, 6) {
        let expected = if over.tag < 5 { &[5][..] } else { b"later" };
        assert_eq!(&over.response[..], expected);
    }
}

#[test]
fn each_endpoint_has_handlers_of_its_own() {
    let world = World::new();
    let nexus = Nexus::builder()
        .handle_with(TYPE, || {
            let mut count = 0u8;
            move |call: Call<'_>| {
                count += 1;
                call.reply(&[count]);
            }
        })
        .build()
        .unwrap();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    for server in &mut ["a", "b"].map(|name| world.endpoint(name, &nexus, 9)) {
        let session = connect(&world, &mut client, server);
        for expected in 1..=3 {
            send(&mut client, session, TYPE, b"", 0);
            assert_eq!(run(&world, &mut client, server, 1)[0].response[..], [expected]);
        }
    }
}

#[test]
fn a_deferred_call_is_answered_after_its_handler_from_any_thread() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, DEFER, b"abc", 1);
    send(&mut client, session, DEFER, b"def", 2);
    send(&mut client, session, DEFER, &pattern(5000, 1), 3);
    settle(&mut client, &mut server);
    assert!(completions(&mut client).is_empty());
    let mut kept = take_kept();
    let mut last = kept.pop().unwrap();
    std::thread::spawn(move || kept.into_iter().for_each(|call| call.reply(b"from afar"))).join().unwrap();
    last.request_mut().unwrap()[0] = 77;
    last.reply_in_place();
    let mut over = run(&world, &mut client, &mut server, 3);
    over.sort_by_key(|over| over.tag);
    assert_eq!((&over[0].response[..], &over[1].response[..]), (&b"from afar"[..], &b"from afar"[..]));
    assert_eq!((over[2].response.len(), over[2].response[0]), (5000, 77));
}

#[test]
fn a_deferred_call_that_is_dropped_fails_its_call() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, DEFER, b"abc", 1);
    settle(&mut client, &mut server);
    drop(take_kept());
    let error = run(&world, &mut client, &mut server, 1).remove(0).result.unwrap_err();
    assert_eq!((error.cause, error.execution), (Cause::HandlerDropped, Execution::MayHaveRun));
}

#[test]
fn answers_to_clients_that_are_gone_are_discarded() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, DEFER, b"abc", 1);
    send(&mut client, session, WORKER, b"abc", 2);
    settle(&mut client, &mut server);
    client.disconnect(session);
    settle(&mut client, &mut server);
    assert_eq!((server.sessions(), client.sessions()), (0, 0));
    answer_kept();
    world.pool.run_all();
    settle(&mut client, &mut server);
    assert_eq!(server.stats().answers_discarded, 2);
    drop((client, server));
}

/// A pool that breaks its word.
struct BrokenPool;

impl WorkerPool for BrokenPool {
    fn submit(&self, _job: Job) -> Result<(), Job> {
        panic!("a pool that panics on purpose")
    }
}

/// Only what handlers panic with is borne. Anything else is a mistake that nobody must overlook, tests and fuzzers least of all.
#[test]
fn a_panic_that_is_no_handlers_goes_to_whoever_turns_the_loop() {
    let world = World::new();
    let nexus = Nexus::builder()
        .workers(Arc::new(BrokenPool))
        .handle_worker(TYPE, drop)
        .handle(ECHO, |_call| panic!("on purpose"))
        .build()
        .unwrap();
    let mut server = world.endpoint_with("server", &nexus, 1, LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut client, &mut server);
    send(&mut client, session, ECHO, b"x", 1);
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].result.as_ref().unwrap_err().cause, Cause::HandlerPanicked);
    send(&mut client, session, TYPE, b"x", 2);
    client.turn();
    std::panic::catch_unwind(AssertUnwindSafe(|| server.turn())).expect_err("a panic of the pool");
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].result.as_ref().unwrap_err().cause, Cause::HandlerPanicked);
}
