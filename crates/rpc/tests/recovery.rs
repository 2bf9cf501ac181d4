//! Losses, limits and endings of calls, between two real endpoints.

mod common;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use common::*;
use sinew_fabric::layer::{Layer, Layered, OwnedPacket, Pool};
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Dropped, PacketPort, PacketTx, PollPolicy, SeededGenerator};
use sinew_rpc::{
    CallError, Cause, Config, EnqueueError, Error, Execution, Nexus, Recovery, Rpc, SessionId, Timeout, Tuning,
};

const MS: u64 = 1_000_000;

/// Packets of 200 bytes of data.
fn small_packets() -> LoopbackConfig {
    LoopbackConfig { packet_len_max: 224, copy_len_max: 100, ..LoopbackConfig::default() }
}

fn singly() -> Tuning {
    Tuning { cumulative_credits: false, ..Tuning::default() }
}

/// Cause and execution of a failed call.
fn failure(result: Result<(), CallError>) -> (Cause, Execution) {
    let error = result.unwrap_err();
    (error.cause, error.execution)
}

/// Asserts that all credits are back: a message of more packets than credits leaves with a full window.
fn assert_all_credits_are_there(world: &World, client: &mut Endpoint, server: &mut Endpoint, session: SessionId) {
    let credits = usize::from(client.config().credits.min(server.config().credits));
    settle(client, server);
    send(client, session, ECHO, &pattern(200 * (credits + 1), 1), 0);
    world.network.start_tap();
    world.network.take_tapped();
    client.turn();
    assert_eq!(world.network.take_tapped().len(), credits);
    run(world, client, server, 1);
}

#[test]
fn a_lost_packet_of_any_kind_is_recovered_by_the_time_out() {
    let timeouts = [Timeout::Fixed, Timeout::Adaptive];
    let recoveries = [Recovery::GoBackN, Recovery::SELECTIVE].into_iter().flat_map(|it| timeouts.map(|of| (it, of)));
    let modes = recoveries.flat_map(|(recovery, timeout)| {
        [Tuning::default(), singly()].map(|tuning| Config {
            tuning,
            recovery,
            timeout,
            credits: 4,
            ..Config::default()
        })
    });
    for config in modes {
        // Loses the packets of one turn, from the first request packets to the last response packets.
        for lost in 0..24 {
            let world = World::new();
            let (mut client, mut server, session) = world.pair(config.clone(), small_packets());
            let message = pattern(1500, lost as u8);
            send(&mut client, session, ECHO, &message, 9);
            let mut turns = 0;
            let mut recovered_after = 0;
            let over = loop {
                for endpoint in [&mut client, &mut server] {
                    if turns == lost {
                        world.losing(|| endpoint.turn());
                    } else {
                        endpoint.turn();
                    }
                    turns += 1;
                }
                if let Some(over) = client.poll_completion() {
                    break over;
                }
                if turns > lost {
                    world.clock.advance(100_000);
                    recovered_after += 1;
                }
                assert!(turns < 1000, "packets of turn {lost}");
            };
            assert!(over.result.is_ok() && over.response[..] == message[..], "packets of turn {lost}");
            assert!(recovered_after < 100, "recovered within two time-outs");
            assert_eq!(server.stats().requests_handled, 1, "at most once");
            assert_all_credits_are_there(&world, &mut client, &mut server, session);
        }
    }
}

#[test]
fn nothing_is_sent_again_while_nothing_is_lost() {
    let world = World::new();
    world.network.set_latency_ns(MS);
    let (mut client, mut server, session) = world.pair(Config { credits: 4, ..Config::default() }, small_packets());
    for tag in 0..20 {
        send(&mut client, session, ECHO, &pattern(1000, tag as u8), tag);
    }
    run(&world, &mut client, &mut server, 20);
    assert_eq!(client.stats().retransmissions, 0);
    assert_eq!((client.stats().dropped_total(), server.stats().dropped_total()), (0, 0));
}

#[test]
fn a_long_handler_causes_no_storm() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, DEFER, b"x", 1);
    world.network.start_tap();
    pass_time(&world, &mut client, &mut server, 3_000 * MS);
    let packets = world.network.take_tapped().len();
    assert!(packets < 60, "{packets} packets in three seconds");
    assert_eq!(server.stats().requests_handled, 1);
    answer_kept();
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

#[test]
fn both_sides_limits_are_met_in_the_middle() {
    let sides = [
        (Config { slots: 8, credits: 32, ..Config::default() }, small_packets()),
        (
            Config { slots: 4, credits: 1, ..Config::default() },
            LoopbackConfig { packet_len_max: 124, ..small_packets() },
        ),
        (
            Config { slots: 64, credits: 3, ..Config::default() },
            LoopbackConfig { packet_len_max: 1500, ..small_packets() },
        ),
        (
            Config { slots: 1, credits: 64, ..Config::default() },
            LoopbackConfig { packet_len_max: 8000, copy_len_max: 8000, ..small_packets() },
        ),
        (
            Config { slots: 16, credits: 2, tuning: singly(), ..Config::default() },
            LoopbackConfig { holds_shares: true, ..small_packets() },
        ),
    ];
    for of_client in &sides {
        for of_server in &sides {
            let world = World::new();
            let (mut client, mut server, session) = world.pair_of(of_client.clone(), of_server.clone());
            for round in 0..3 {
                let lens = [0, 1, 99, 100, 101, 200, 350, 1476, 1477, 9000, 20_000];
                for (tag, len) in lens.into_iter().enumerate() {
                    send(&mut client, session, [ECHO, DEFER][tag % 2], &pattern(len, round), tag as u64);
                }
                let mut over = Vec::new();
                for _ in 0..100_000 {
                    client.turn();
                    server.turn();
                    answer_kept();
                    over.extend(completions(&mut client));
                    if over.len() == lens.len() {
                        break;
                    }
                    world.clock.advance(10_000);
                }
                assert_eq!(over.len(), lens.len());
                for over in over {
                    assert!(over.result.is_ok());
                    assert!(over.response[..] == pattern(lens[over.tag as usize], round)[..]);
                }
            }
            assert_eq!(client.stats().retransmissions, 0);
            assert_eq!((client.stats().dropped_total(), server.stats().dropped_total()), (0, 0));
            let agreed = u64::from(of_client.0.credits.min(of_server.0.credits));
            assert_eq!((client.committed_packets(), server.committed_packets()), (agreed, agreed));
        }
    }
}

#[test]
fn the_longest_messages_pass_and_longer_ones_fail_at_the_side_that_knows() {
    let world = World::new();
    let limited = |message_len_max| (Config { message_len_max, ..Config::default() }, small_packets());
    let (mut client, mut server, session) = world.pair_of(limited(5000), limited(3000));
    send(&mut client, session, ECHO, &pattern(3000, 1), 0);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    let (request, response) = (client.alloc(3001).unwrap(), client.alloc(0).unwrap());
    let rejected = client.enqueue_request(session, ECHO, request, response, 0).unwrap_err();
    assert_eq!(rejected.error, EnqueueError::TooLarge { len: 3001, limit: 3000 });
    assert_eq!((rejected.request.len(), rejected.response.len()), (3001, 0));
    assert!(rejected.to_string().contains("message_len_max"), "{rejected}");
    send(&mut client, session, LONG, &3000u32.to_le_bytes(), 0);
    assert!(run(&world, &mut client, &mut server, 1)[0].response[..] == pattern(3000, 3000u32 as u8)[..]);
    send(&mut client, session, LONG, &3001u32.to_le_bytes(), 0);
    let over = run(&world, &mut client, &mut server, 1).remove(0);
    assert_eq!(failure(over.result), (Cause::ResponseTooLarge, Execution::MayHaveRun));
    // A request queued before the session was open meets the limit once it is.
    let other = client.begin_connect(&server.address()).unwrap();
    send(&mut client, other, ECHO, &pattern(3001, 1), 5);
    send(&mut client, other, ECHO, &pattern(3000, 1), 6);
    let over = run(&world, &mut client, &mut server, 2);
    assert_eq!((over[0].tag, failure(over[0].result.clone())), (5, (Cause::RequestTooLarge, Execution::NeverSent)));
    assert!(over[1].result.is_ok());
}

#[test]
fn a_response_that_is_larger_than_its_buffer_comes_in_a_larger_one() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    for len in [64u32, 65, 200, 201, if cfg!(miri) { 3_000 } else { 100_000 }] {
        send(&mut client, session, LONG, &len.to_le_bytes(), 0);
        let over = run(&world, &mut client, &mut server, 1).remove(0);
        assert!(over.response[..] == pattern(len as usize, len as u8)[..], "{len}");
    }
}

#[test]
fn a_response_that_finds_no_memory_fails_its_call() {
    let world = World::new();
    let tight = LoopbackConfig { arena_bytes: 1 << 16, ..small_packets() };
    let of_server = (Config::default(), small_packets());
    let (mut client, mut server, session) = world.pair_of((Config::default(), tight), of_server);
    send(&mut client, session, LONG, &100_000u32.to_le_bytes(), 0);
    let over = run(&world, &mut client, &mut server, 1).remove(0);
    assert_eq!(failure(over.result), (Cause::NoMemory, Execution::MayHaveRun));
    send(&mut client, session, LONG, &1000u32.to_le_bytes(), 0);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    assert_all_credits_are_there(&world, &mut client, &mut server, session);
}

#[test]
fn a_request_that_finds_no_memory_at_the_server_is_refused_and_did_not_run() {
    let world = World::new();
    let tight = LoopbackConfig { arena_bytes: 1 << 16, ..small_packets() };
    let of_client = (Config::default(), small_packets());
    let (mut client, mut server, session) = world.pair_of(of_client, (Config::default(), tight));
    let held: Vec<_> = std::iter::from_fn(|| server.alloc(5000).ok()).collect();
    send(&mut client, session, ECHO, &pattern(5000, 2), 0);
    let over = run(&world, &mut client, &mut server, 1).remove(0);
    assert_eq!(failure(over.result), (Cause::ServerBusy, Execution::NotRun));
    assert_eq!((server.stats().requests_handled, server.stats().dropped(sinew_rpc::PacketDrop::NoMemory)), (0, 1));
    drop(held);
    send(&mut client, session, ECHO, &pattern(5000, 2), 0);
    let over = run(&world, &mut client, &mut server, 1).remove(0);
    assert!(over.response[..] == pattern(5000, 2)[..]);
    assert_all_credits_are_there(&world, &mut client, &mut server, session);
}

#[test]
fn wrong_use_is_refused_with_the_buffers() {
    let world = World::new();
    let config = Config { queued_calls_max: 2, slots: 1, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
    let mut enqueue = |request, response, session| client_enqueue(&mut client, session, request, response);
    fn client_enqueue(
        client: &mut Endpoint,
        session: SessionId,
        request: Option<sinew_mem::MessageBuffer>,
        response: Option<sinew_mem::MessageBuffer>,
    ) -> Result<(), EnqueueError> {
        let request = request.unwrap_or_else(|| client.alloc(7).unwrap());
        let response = response.unwrap_or_else(|| client.alloc(9).unwrap());
        let taken = client.enqueue_request(session, DEFER, request, response, 0).map_err(|rejected| {
            assert_eq!((rejected.request.len(), rejected.response.len()), (7, 9));
            rejected.error
        });
        taken.map(drop)
    }
    assert_eq!(enqueue(Some(server.alloc(7).unwrap()), None, session), Err(EnqueueError::ForeignBuffer));
    assert_eq!(enqueue(None, Some(server.alloc(9).unwrap()), session), Err(EnqueueError::ForeignBuffer));
    for _ in 0..3 {
        assert_eq!(enqueue(None, None, session), Ok(()));
    }
    assert_eq!(enqueue(None, None, session), Err(EnqueueError::QueueFull { limit: 2 }));
    settle(&mut client, &mut server);
    client.disconnect(session);
    assert_eq!(client_enqueue(&mut client, session, None, None), Err(EnqueueError::NoSuchSession));
    settle(&mut client, &mut server);
    let next = connect_after_events(&world, &mut client, &mut server);
    assert_ne!(next, session, "a session is never taken for an earlier one");
    assert_eq!(client_enqueue(&mut client, session, None, None), Err(EnqueueError::NoSuchSession));
    assert!(!client.disconnect(session));
    assert_eq!(client_enqueue(&mut client, next, None, None), Ok(()));
    drop(take_kept());
}

fn connect_after_events(world: &World, client: &mut Endpoint, server: &mut Endpoint) -> SessionId {
    events(client);
    connect(world, client, server)
}

#[test]
fn cancelled_calls_complete_with_what_may_have_happened() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { slots: 2, ..Config::default() }, small_packets());
    let calls = [1, 2, 1, 3, 1].map(|tag| (tag, send(&mut client, session, DEFER, &pattern(300, 0), tag)));
    settle(&mut client, &mut server);
    for (_, call) in calls.iter().rev().filter(|(tag, _)| *tag == 1) {
        assert_eq!((client.cancel(*call), client.cancel(*call)), (true, false));
    }
    settle(&mut client, &mut server);
    let mut over: Vec<_> = completions(&mut client).into_iter().map(|c| (c.tag, failure(c.result))).collect();
    over.sort_by_key(|&(_, (_, execution))| execution == Execution::MayHaveRun);
    let never = (1, (Cause::Cancelled, Execution::NeverSent));
    assert_eq!(over, [never, never, (1, (Cause::Cancelled, Execution::MayHaveRun))]);
    // The freed slot went to the call with tag 3, which the cancelled call does not disturb.
    answer_kept();
    settle(&mut client, &mut server);
    answer_kept();
    let mut tags: Vec<_> = run(&world, &mut client, &mut server, 2).iter().map(|over| over.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [2, 3]);
    assert_eq!(server.stats().answers_discarded, 1);
    assert_all_credits_are_there(&world, &mut client, &mut server, session);
}

#[test]
fn calls_that_never_got_credits_were_never_sent_when_their_session_ends() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { credits: 1, ..Config::default() }, small_packets());
    for tag in 0..4 {
        send(&mut client, session, DEFER, b"x", tag);
    }
    settle(&mut client, &mut server);
    client.disconnect(session);
    let mut over = completions(&mut client);
    over.sort_by_key(|over| over.tag);
    let executions: Vec<_> = over.into_iter().map(|over| failure(over.result).1).collect();
    use Execution::{MayHaveRun, NeverSent};
    assert_eq!(executions, [MayHaveRun, NeverSent, NeverSent, NeverSent]);
    drop(take_kept());
}

#[test]
fn a_partly_sent_request_was_never_sent() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { credits: 2, ..Config::default() }, small_packets());
    let call = send(&mut client, session, ECHO, &pattern(1000, 1), 4);
    client.turn();
    client.cancel(call);
    settle(&mut client, &mut server);
    let over = completions(&mut client).remove(0);
    assert_eq!(failure(over.result), (Cause::Cancelled, Execution::NeverSent));
    assert_eq!(server.stats().requests_handled, 0);
    assert_all_credits_are_there(&world, &mut client, &mut server, session);
}

#[test]
fn a_cancelled_call_can_be_waited_for() {
    // The port holds a share of its request, so that only the next turn gets it back.
    let world = World::new();
    let holding = LoopbackConfig { holds_shares: true, ..small_packets() };
    let (mut client, _server, session) = world.pair(Config::default(), holding);
    let call = send(&mut client, session, ECHO, &pattern(1000, 1), 4);
    client.turn();
    client.cancel(call);
    let before = now_ns(&world);
    client.wait(None).unwrap();
    assert_eq!(now_ns(&world), before, "there is work to do, so waiting does not sleep");
    client.turn();
    assert_eq!(completions(&mut client).len(), 1);
}

fn now_ns(world: &World) -> u64 {
    sinew_fabric::Clock::now_ns(&world.clock)
}

#[test]
fn requests_come_back_to_be_used_at_once_although_the_port_held_shares() {
    for lends_tails in [false, true] {
        let port = LoopbackConfig { holds_shares: true, lends_tails, ..small_packets() };
        let world = World::new();
        let (mut client, mut server, session) = world.pair(Config::default(), port);
        let mut request = client.alloc(1000).unwrap();
        let mut response = client.alloc(1000).unwrap();
        let rounds = if cfg!(miri) { 4 } else { 20 };
        for round in 0..rounds {
            request.fill(&pattern(1000, round)).unwrap();
            client.enqueue_request(session, ECHO, request, response, 0).unwrap();
            let over = run(&world, &mut client, &mut server, 1).remove(0);
            assert!(over.result.is_ok() && over.response[..] == pattern(1000, round)[..]);
            (request, response) = (over.request, over.response);
            // Writing to the buffer proves that nobody shares it; packets that were lent before must not show the new
            // bytes.
            request.fill(&[0xFF; 1000]).unwrap();
            if round % 3 == 0 {
                // Cancel it while the port holds its packets.
                request.fill(&pattern(1000, 200)).unwrap();
                let call = client.enqueue_request(session, ECHO, request, response, 1).unwrap();
                client.turn();
                client.cancel(call);
                client.turn();
                let over = completions(&mut client).remove(0);
                (request, response) = (over.request, over.response);
            }
        }
        assert!(server.port_stats().dropped(sinew_fabric::Dropped::Revoked) > 0, "packets were taken back");
        assert_eq!(client.stats().calls_completed, u64::from(rounds));
    }
}

// Not on ports inside layers, which copy tails.
#[cfg(not(carried))]
#[test]
fn a_tail_that_is_revoked_while_it_is_lent_is_dropped_and_counted() {
    const HOOK: sinew_rpc::RequestType = sinew_rpc::RequestType::new(60);
    thread_local! {
        static HOOKED: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
    }
    let port = LoopbackConfig { holds_shares: true, lends_tails: true, ..small_packets() };
    let world = World::new();
    let nexus = Nexus::builder()
        .handle(HOOK, |call| {
            HOOKED.take().unwrap()();
            call.reply(b"hooked");
        })
        .handle(ECHO, |call| {
            let request = call.request();
            call.reply(request);
        })
        .build()
        .unwrap();
    let mut server = world.endpoint_with("server", &nexus, 1, port);
    let mut client = world.client(Config::default(), port);
    let session = connect(&world, &mut client, &mut server);
    for len in [150, 1000] {
        send(&mut client, session, HOOK, b"", 1);
        let call = send(&mut client, session, ECHO, &pattern(len, 3), 2);
        client.turn();
        // While the server handles the first packet, the client takes back the others of the same burst.
        let client_of_hook = std::rc::Rc::new(std::cell::RefCell::new(client));
        let shared = std::rc::Rc::clone(&client_of_hook);
        HOOKED.set(Some(Box::new(move || {
            let mut client = shared.borrow_mut();
            assert!(client.cancel(call));
            client.turn();
        })));
        let before = server.stats().dropped(sinew_rpc::PacketDrop::Revoked);
        server.turn();
        assert!(server.stats().dropped(sinew_rpc::PacketDrop::Revoked) > before);
        client = std::rc::Rc::into_inner(client_of_hook).unwrap().into_inner();
        send(&mut client, session, ECHO, &pattern(len, 4), 3);
        let mut over = run(&world, &mut client, &mut server, 3);
        over.sort_by_key(|over| over.tag);
        assert_eq!(failure(over[1].result.clone()).0, Cause::Cancelled);
        assert!(over[0].response[..] == *b"hooked" && over[2].response[..] == pattern(len, 4)[..]);
    }
}

/// A layer that, while its flag is set, takes back everything that was sent and not yet read.
struct TakesBack(Rc<Cell<bool>>);

impl Layer for TakesBack {
    fn advance(&mut self, _: u64, tx: &mut dyn PacketTx, _: &mut VecDeque<OwnedPacket>, _: &mut Pool) -> bool {
        if self.0.get() {
            tx.flush();
        }
        false
    }
}

/// A port of the network inside such a layer, and the layer's flag.
fn taking_back(world: &World, name: &str, port: LoopbackConfig) -> (Layered<TestPort, TakesBack>, Rc<Cell<bool>>) {
    let takes_back = Rc::new(Cell::new(false));
    (Layered::wrap(world.port(name, port), TakesBack(Rc::clone(&takes_back))).unwrap(), takes_back)
}

fn on_port<P: PacketPort>(world: &World, nexus: &Nexus, port: P) -> Endpoint<P> {
    Rpc::new(nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(3)))
}

/// Asserts that a call succeeded although its packets were once taken back before they were read.
fn assert_recovered<P: PacketPort, Q: PacketPort>(world: &World, client: &mut Endpoint<P>, server: &mut Endpoint<Q>) {
    world.clock.advance(client.config().retransmit_timeout_ns);
    let over = run(world, client, server, 1).remove(0);
    assert!(over.result.is_ok() && over.response[..] == pattern(1000, 1000u32 as u8)[..]);
    assert_eq!((client.stats().retransmissions, server.stats().requests_handled), (1, 1));
}

#[test]
fn calls_whose_packets_were_taken_back_before_they_were_read_are_recovered_by_the_time_out() {
    for lends_tails in [false, true] {
        let port = LoopbackConfig { holds_shares: true, lends_tails, ..small_packets() };
        let revoked = |stats: sinew_fabric::PortStats| stats.dropped(Dropped::Revoked);

        let world = World::new();
        let mut server = world.server(Config::default(), port);
        let (outer, takes_back) = taking_back(&world, "client", port);
        let mut client = on_port(&world, &Nexus::client(), outer);
        let session = connect(&world, &mut client, &mut server);
        send(&mut client, session, ECHO, &pattern(1000, 1000u32 as u8), 0);
        client.turn();
        takes_back.set(true);
        client.turn();
        takes_back.set(false);
        server.turn();
        assert!(revoked(server.port_stats()) > 1, "requests were taken back");
        assert_recovered(&world, &mut client, &mut server);

        let world = World::new();
        let (outer, takes_back) = taking_back(&world, "server", port);
        let mut server = on_port(&world, &server_nexus(Arc::clone(&world.pool), Config::default()), outer);
        let mut client = world.client(Config::default(), port);
        let session = connect(&world, &mut client, &mut server);
        send(&mut client, session, LONG, &1000u32.to_le_bytes(), 0);
        client.turn();
        server.turn();
        takes_back.set(true);
        server.turn();
        takes_back.set(false);
        client.turn();
        assert_eq!(revoked(client.port_stats()), 1, "the response was taken back");
        assert_recovered(&world, &mut client, &mut server);
    }
}

/// A client whose blocking calls sleep at once: in virtual time, spinning would never end.
fn sleeping(world: &World, config: Config) -> Endpoint {
    let config = Config { poller: PollPolicy::SLEEP, ..config };
    let nexus = Nexus::builder().config(config).build().unwrap();
    let port = world.port("client", LoopbackConfig::default());
    Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(2)))
}

#[test]
fn a_blocking_call_ends_at_its_deadline_and_says_whether_it_may_have_run() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = sleeping(&world, Config { call_timeout_ns: 700 * MS, ..Config::default() });
    let session = connect(&world, &mut client, &mut server);
    let before = now_ns(&world);
    let Err(Error::Call(error)) = client.call(session, ECHO, b"nobody turns the server") else { panic!() };
    assert_eq!((error.cause, error.execution), (Cause::DeadlinePassed, Execution::MayHaveRun));
    let waited = now_ns(&world) - before;
    assert!((700 * MS..710 * MS).contains(&waited), "{waited}");
    assert!(client.poll_completion().is_none());
    // The session is not open yet, so the call never leaves.
    let mute = client.begin_connect(&server.address()).unwrap();
    let Err(Error::Call(error)) = client.call(mute, ECHO, b"not even connected") else { panic!() };
    assert_eq!((error.cause, error.execution), (Cause::DeadlinePassed, Execution::NeverSent));
    assert!(client.call(session, ECHO, vec![0; 17 << 20]).is_err());
}

#[test]
fn a_blocking_connect_ends_at_its_deadline() {
    let world = World::new();
    let _server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = sleeping(&world, Config::default());
    let before = now_ns(&world);
    let error = client.connect("loopback://server").unwrap_err();
    assert!(matches!(error, sinew_rpc::ConnectError::TimedOut { timeout_ms: 3000, .. }), "{error}");
    assert!((3000 * MS..3050 * MS).contains(&(now_ns(&world) - before)));
    assert_eq!((client.sessions(), client.committed_packets()), (0, 0));
    assert!(client.connect("loopback://nobody").unwrap_err().to_string().contains("nobody"));
    assert!(client.connect("nonsense").is_err());
}

#[test]
fn a_call_enqueued_long_after_the_last_turn_is_sent_once() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    // Longer than the retransmission time-out, and the endpoint does not turn meanwhile.
    world.clock.advance(50 * MS);
    send(&mut client, session, ECHO, b"once", 0);
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].result, Ok(()));
    assert_eq!((client.stats().retransmissions, server.stats().dropped_total()), (0, 0));
}
