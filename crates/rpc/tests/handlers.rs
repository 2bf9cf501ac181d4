//! Handlers: what they may do, and what their clients learn of it.

mod common;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Job, PacketPort, WorkerPool};
use sinew_rpc::{BurstCalls, Call, Cause, Config, DeferredCall, Execution, Nexus, NexusBuilder, RequestType};

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
    let handlers: [fn(Call<'_>); 3] = [
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
    for handler in handlers {
        let world = World::new();
        let (mut client, mut server, session) = pair_with(&world, small, |nexus| nexus.handle(TYPE, handler));
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

/// Claims to have filled a byte more than there is.
const TOO_MUCH: u8 = 99;
const IN_PLACE: u8 = 1;
const AFRESH: u8 = 2;

#[test]
fn a_burst_handler_answers_before_it_knows_the_length_where_there_is_room() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, LoopbackConfig::default(), |nexus| {
        nexus.handle_burst(TYPE, |calls| {
            for index in 0..calls.len() {
                let wanted = calls.request(index)[0];
                let len = if wanted == TOO_MUCH { 10_000 } else { usize::from(wanted) * 40 };
                let is_answered = calls.reply_if_room(index, |room| match wanted {
                    TOO_MUCH => Some(room.len() + 1),
                    _ => room.get_mut(..len).map(|answer| {
                        answer.fill(IN_PLACE);
                        len
                    }),
                });
                assert!(!is_answered || calls.reply_if_room(index, |_| panic!("it is answered")));
                calls.reply(index, &vec![AFRESH; len]);
            }
        })
    });
    let mut filled_in_place = 0;
    for wanted in [1, 2, 90, 1, TOO_MUCH, 1, 2] {
        send(&mut client, session, TYPE, &[wanted], 0);
        let over = run(&world, &mut client, &mut server, 1).remove(0);
        let (len, first) = (over.response.len(), over.response[0]);
        assert!(over.response.iter().all(|byte| *byte == first));
        assert_eq!(len, if wanted == TOO_MUCH { 10_000 } else { usize::from(wanted) * 40 });
        assert!(first == AFRESH || wanted < 90, "no buffer is so long that {wanted} fits");
        filled_in_place += usize::from(first == IN_PLACE);
    }
    assert!(filled_in_place > 0);
}

/// Answers of one packet, too long for the port to be sure to copy, stay in the slot's buffer, which takes the next
/// answer, unless the port keeps a share of it.
#[test]
fn answers_of_medium_length_are_written_in_place_where_the_port_copied_the_last_one() {
    for holds_shares in [false, true] {
        let world = World::new();
        let port =
            LoopbackConfig { copy_len_max: 100, packet_len_max: 4000, holds_shares, ..LoopbackConfig::default() };
        let (mut client, mut server, session) = pair_with(&world, port, |nexus| {
            nexus.handle_burst(TYPE, |calls| {
                for index in 0..calls.len() {
                    let len = usize::from(calls.request(index)[0]) * 10;
                    let is_answered = calls.reply_if_room(index, |room| {
                        room.get_mut(..len)?.fill(IN_PLACE);
                        Some(len)
                    });
                    if !is_answered {
                        calls.reply(index, &vec![AFRESH; len]);
                    }
                }
            })
        });
        let mut in_place = [0, 0];
        // Both sides of the longest short answer, and of the longest of medium length.
        for wanted in [7, 7, 8, 96, 97, 50, 96, 8].into_iter().cycle().take(10 * 8) {
            send(&mut client, session, TYPE, &[wanted], 0);
            let over = run(&world, &mut client, &mut server, 1).remove(0);
            let first = over.response[0];
            assert!(over.response.iter().all(|byte| *byte == first) && over.response.len() == usize::from(wanted) * 10);
            in_place[usize::from(wanted > 7)] += usize::from(first == IN_PLACE);
            assert!(wanted <= 96 || first == AFRESH);
        }
        assert!(in_place[0] > 0, "a short answer after another is");
        assert_eq!(in_place[1] > 0, !holds_shares, "{in_place:?}");
    }
}

#[test]
fn requests_of_several_types_keep_the_order_of_each_in_a_burst() {
    const TYPES: [RequestType; 3] = [TYPE, BURST, RequestType::new(51)];
    let answer_with_places = |calls: &mut BurstCalls<'_, '_>| {
        for index in 0..calls.len() {
            let request = calls.request(index)[0];
            calls.reply(index, &[index as u8, request]);
        }
    };
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, LoopbackConfig::default(), |nexus| {
        TYPES.into_iter().fold(nexus, |nexus, of_type| nexus.handle_burst(of_type, answer_with_places))
    });
    let sent = [(0, 0), (1, 0), (2, 0), (1, 1), (0, 1), (2, 1), (0, 2)];
    for (tag, (of_type, _)) in (0u8..).zip(sent) {
        send(&mut client, session, TYPES[of_type], &[tag], u64::from(tag));
    }
    for over in run(&world, &mut client, &mut server, sent.len()) {
        assert_eq!(over.response[..], [sent[over.tag as usize].1, over.tag as u8]);
    }
}

#[test]
fn each_endpoint_has_handlers_of_its_own() {
    let world = World::new();
    let nexus = Nexus::builder()
        .handle_with(TYPE, |_endpoint| {
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

/// A pool that panics instead of returning the job.
struct BrokenPool;

impl WorkerPool for BrokenPool {
    fn submit(&self, _job: Job) -> Result<(), Job> {
        panic!("a pool that panics on purpose")
    }
}

/// Only panics of handlers are contained. Any other panic is a bug that nobody must overlook, least of all tests and
/// fuzzers.
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

#[test]
fn answers_of_unknown_length_are_as_long_as_was_written() {
    const IN_BURST: RequestType = RequestType::new(51);
    const LATER: RequestType = RequestType::new(52);
    let count = |request: &[u8], response: &mut [u8]| -> usize {
        let len = usize::from(request[0]) * 100;
        for (at, byte) in response.iter_mut().take(len).enumerate() {
            *byte = at as u8;
        }
        len
    };
    let world = World::new();
    let port = LoopbackConfig { packet_len_max: 400, ..LoopbackConfig::default() };
    let (mut client, mut server, session) = pair_with(&world, port, |nexus| {
        nexus
            .handle(TYPE, move |call| {
                let request = call.request();
                call.reply_up_to(5_000, |response| count(request, response));
            })
            .handle_burst(IN_BURST, move |calls| {
                for index in 0..calls.len() {
                    let request = calls.request(index);
                    calls.reply_up_to(index, 5_000, |response| count(request, response));
                }
            })
            .handle_worker(LATER, move |call| call.reply_up_to(5_000, count))
    });
    for request_type in [TYPE, IN_BURST, LATER] {
        // The last request claims more than there is room for.
        for hundreds in [0u8, 1, 3, 4, 50, 51] {
            send(&mut client, session, request_type, &[hundreds], 0);
            let over = run(&world, &mut client, &mut server, 1).remove(0);
            let len = (usize::from(hundreds) * 100).min(5_000);
            let expected: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert!(over.result.is_ok() && over.response[..] == expected[..], "{request_type:?} {hundreds}");
        }
    }
    assert_eq!(server.stats().answers_discarded, 0);
}

#[test]
fn an_answer_of_unknown_length_that_panics_fails_its_call_and_the_next_one_goes_well() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, LoopbackConfig::default(), |nexus| {
        nexus.handle(TYPE, |call| {
            let is_first = call.request() == b"x";
            call.reply_up_to(100, |_| if is_first { panic!("on purpose, while writing") } else { 3 });
        })
    });
    let failed = error_of(&world, &mut client, &mut server, session);
    assert_eq!(failed, (Cause::HandlerPanicked, Execution::MayHaveRun));
    send(&mut client, session, TYPE, b"y", 0);
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].response.len(), 3);
}

#[test]
fn more_than_a_session_allows_is_refused_before_it_is_written() {
    let world = World::new();
    let (mut client, mut server, session) = pair_with(&world, LoopbackConfig::default(), |nexus| {
        nexus.handle(TYPE, |call| call.reply_up_to(usize::MAX, |_| panic!("there is nothing to write to")))
    });
    let failed = error_of(&world, &mut client, &mut server, session);
    assert_eq!(failed.0, Cause::ResponseTooLarge);
}

#[test]
fn bursts_and_deferred_calls_answer_with_buffers_and_call_others() {
    const ASK: RequestType = RequestType::new(53);
    let world = World::new();
    let inner = world.endpoint("inner", &server_nexus(Arc::clone(&world.pool), Config::default()), 3);
    let mut inner = inner;
    let session_of = Arc::new(std::sync::OnceLock::new());
    let to_inner = Arc::clone(&session_of);
    let nexus = Nexus::builder()
        .handle_burst(ASK, move |calls| {
            for index in 0..calls.len() {
                let (mut request, response) = (calls.alloc(3).unwrap(), calls.alloc(3).unwrap());
                request.fill(b"abc").unwrap();
                calls.enqueue_request(*to_inner.get().unwrap(), ECHO, request, response, index as u64).unwrap();
                let mut answer = calls.alloc(2).unwrap();
                answer.fill(b"ok").unwrap();
                calls.reply_buffer(index, answer);
            }
        })
        .handle(TYPE, |call| {
            let deferred = call.defer().unwrap();
            let mut answer = deferred.alloc(700).unwrap();
            answer.fill(&[7; 700]).unwrap();
            deferred.reply_buffer(answer);
        })
        .build()
        .unwrap();
    let mut server = world.endpoint("server", &nexus, 1);
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut client, &mut server);
    session_of.set(connect(&world, &mut server, &mut inner)).unwrap();
    send(&mut client, session, ASK, b"?", 0);
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].response[..], *b"ok");
    assert_eq!(run(&world, &mut server, &mut inner, 1)[0].response[..], *b"abc");
    send(&mut client, session, TYPE, b"?", 0);
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].response[..], [7; 700]);
}

/// Nobody takes the answer any more, and a handle that lives on holds no memory of it.
#[test]
fn an_answer_to_a_kept_call_of_an_endpoint_that_is_gone_gives_its_memory_back() {
    let world = World::new();
    let mut server =
        world.server(Config::default(), LoopbackConfig { arena_bytes: 16 << 20, ..LoopbackConfig::default() });
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut client, &mut server);
    let (handle, arena) = (server.remote_handle(), server.port().arena().clone());
    for tag in 0..3 {
        send(&mut client, session, DEFER, &pattern(1 << 20, 1), tag);
    }
    settle(&mut client, &mut server);
    let mut kept = take_kept();
    assert_eq!(kept.len(), 3);
    let blocks_left = || std::iter::from_fn(|| arena.alloc(1 << 20, 1448).ok()).collect::<Vec<_>>().len();
    let held = blocks_left();
    // One answer waits when the endpoint is dropped, the others come later.
    kept.remove(0).reply_in_place();
    drop(server);
    kept.into_iter().for_each(DeferredCall::reply_in_place);
    assert_eq!(blocks_left(), held + 3);
    drop(handle);
}
