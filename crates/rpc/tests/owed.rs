//! Calls whose callers no longer wait: their packets in flight still count, and their servers free what they held.

mod common;

use common::handmade::{HandClient, HandServer, OFFER};
use common::*;
use sinew_fabric::PacketPort;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{CallOptions, Cause, Completion, Config, DeferredCall, Execution, SessionCredits, SessionId};
use sinew_wire::management::Features;
use sinew_wire::{Header, Kind, Options};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A server with room for so few packets that two clients could fill it, and two clients.
fn crowd(world: &World) -> (Endpoint, (Endpoint, SessionId), (Endpoint, SessionId)) {
    let config = Config { slots: 32, credits: 32, peer_share_percent: 100, ..Config::default() };
    let port = LoopbackConfig { receive_packets: 100, ..LoopbackConfig::default() };
    let mut server = world.server(config.clone(), port);
    let [good, bad] = [("good", 8), ("bad", 9)].map(|(name, seed)| {
        let nexus = server_nexus(std::sync::Arc::clone(&world.pool), config.clone());
        let mut client = world.endpoint(name, &nexus, seed);
        let session = connect(world, &mut client, &mut server);
        (client, session)
    });
    (server, good, bad)
}

fn failure(completion: &Completion) -> (Cause, Execution) {
    let error = completion.result.as_ref().unwrap_err();
    (error.cause, error.execution)
}

/// The credits of a session: unused ones and owed ones.
fn credits(client: &Endpoint, session: SessionId) -> (u16, u16) {
    let SessionCredits { left, owed, .. } = client.session_credits(session).unwrap();
    (left, owed)
}

/// While the server does not turn, more packets than its queue can hold would otherwise come.
#[test]
fn a_client_that_cancels_calls_costs_others_no_packets() {
    let world = World::new();
    let (mut server, (mut good, good_session), (mut bad, bad_session)) = crowd(&world);
    for _ in 0..20 {
        let calls: Vec<_> = (0..32).map(|tag| send(&mut bad, bad_session, ECHO, b"x", tag)).collect();
        bad.turn();
        for call in calls {
            assert!(bad.cancel(call));
        }
        bad.turn();
        world.clock.advance(20 * US);
    }
    assert_eq!(credits(&bad, bad_session), (0, 32));
    (0..8).for_each(|tag| _ = send(&mut good, good_session, ECHO, b"good", tag));
    good.turn();
    settle(&mut good, &mut server);
    assert_eq!((completions(&mut good).len(), good.stats().retransmissions), (8, 0));
    settle(&mut bad, &mut server);
    assert_eq!(credits(&bad, bad_session), (32, 0), "what is answered comes back");
}

#[test]
fn a_client_whose_deadlines_are_too_short_costs_others_no_packets() {
    let world = World::new();
    let (mut server, (mut good, good_session), (mut bad, bad_session)) = crowd(&world);
    let mut answered = 0;
    for round in 0..200 {
        for tag in 0..32 {
            send(&mut bad, bad_session, ECHO, b"x", CallOptions::tag(tag).timeout_ns(15 * US));
        }
        bad.turn();
        world.clock.advance(20 * US);
        if round % 20 == 19 {
            (0..8).for_each(|tag| _ = send(&mut good, good_session, ECHO, b"good", tag));
            good.turn();
            server.turn();
        }
        good.turn();
        answered += completions(&mut good).len();
        completions(&mut bad);
    }
    settle(&mut good, &mut server);
    answered += completions(&mut good).len();
    assert_eq!((answered, good.stats().retransmissions), (80, 0));
    settle(&mut bad, &mut server);
    assert_eq!(credits(&bad, bad_session), (32, 0));
}

/// The packets may be lost, and so may the server's answers to them.
#[test]
fn credits_that_a_cancelled_call_took_along_come_back_by_a_time_out() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let call = send(&mut client, session, ECHO, &pattern(20_000, 1), 0);
    world.losing(|| client.turn());
    let lacking = 32 - credits(&client, session).0;
    assert!(lacking > 1);
    world.losing(|| {
        client.cancel(call);
        client.turn();
    });
    assert_eq!(credits(&client, session), (32 - lacking, lacking));
    pass_time(&world, &mut client, &mut server, 20 * MS);
    assert_eq!(credits(&client, session), (32, 0));
}

/// The session's other calls wait only for these credits.
#[test]
fn calls_go_on_with_the_credits_of_cancelled_ones() {
    let world = World::new();
    let config = Config { credits: 4, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
    let calls: Vec<_> = (0..4).map(|tag| send(&mut client, session, DEFER, b"kept", tag)).collect();
    settle(&mut client, &mut server);
    send(&mut client, session, ECHO, b"waits", 9);
    settle(&mut client, &mut server);
    assert!(completions(&mut client).is_empty());
    client.cancel(calls[2]);
    settle(&mut client, &mut server);
    let over = completions(&mut client);
    assert_eq!(over.iter().map(|over| over.tag).collect::<Vec<_>>(), [2, 9]);
    take_kept();
}

/// A cancellation costs no credit, so only one is in flight at a time.
#[test]
fn a_server_hears_of_all_calls_that_are_cancelled_one_by_one() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let calls: Vec<_> = (0..8).map(|tag| send(&mut client, session, DEFER, b"kept", tag)).collect();
    settle(&mut client, &mut server);
    let kept = take_kept();
    world.network.start_tap();
    for call in calls {
        client.cancel(call);
    }
    let mut sent = Vec::new();
    for _ in 0..20 {
        client.turn();
        let cancels = kinds(&world.network).into_iter().filter(|kind| *kind == Kind::Cancel).count();
        assert!(cancels <= 1);
        sent.push(cancels);
        server.turn();
    }
    assert_eq!(sent.iter().sum::<usize>(), 8, "{sent:?}");
    assert!(kept.iter().all(DeferredCall::is_abandoned));
    assert_eq!(credits(&client, session), (32, 0));
}

/// The deadline may pass before the request is enqueued, before it has a slot, or before the loop turns.
#[test]
fn a_request_whose_deadline_passes_before_it_leaves_never_does() {
    let world = World::new();
    let config = Config { slots: 1, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
    for len in [8, 20_000] {
        world.network.start_tap();
        send(&mut client, session, ECHO, &pattern(len, 1), CallOptions::tag(0).deadline_ns(0));
        send(&mut client, session, ECHO, &pattern(len, 1), CallOptions::tag(1).timeout_ns(10 * US));
        send(&mut client, session, ECHO, &pattern(len, 1), CallOptions::tag(2).timeout_ns(10 * US));
        world.clock.advance(20 * US);
        client.turn();
        assert!(!kinds(&world.network).contains(&Kind::RequestWithOptions));
        let over = completions(&mut client);
        let mut tags: Vec<_> = over.iter().map(|over| over.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, [0, 1, 2]);
        assert!(over.iter().all(|over| failure(over) == (Cause::DeadlinePassed, Execution::NeverSent)), "{over:?}");
        assert_eq!(credits(&client, session), (32, 0));
        settle(&mut client, &mut server);
    }
    send(&mut client, session, ECHO, b"as ever", CallOptions::tag(3).timeout_ns(MS));
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].result, Ok(()));
}

/// A check of many deadlines is followed by a pause in proportion, even if the calls wait for slots.
#[test]
fn calls_that_wait_with_deadlines_are_not_looked_at_in_every_turn() {
    let world = World::new();
    let config = Config { slots: 1, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
    send(&mut client, session, DEFER, b"has the slot", 0);
    settle(&mut client, &mut server);
    let calls = if cfg!(miri) { 100 } else { 1_000 };
    for tag in 0..calls {
        send(&mut client, session, ECHO, b"x", CallOptions::tag(tag).timeout_ns(MS + tag * US));
    }
    world.clock.advance(MS);
    let mut looks = 0;
    for _ in 0..calls {
        world.clock.advance(US);
        client.turn();
        looks += usize::from(!completions(&mut client).is_empty());
    }
    // A thousand calls are checked at most once in 100 us.
    assert!((2..=calls as usize / 10).contains(&looks), "{looks} looks in {calls} turns");
    take_kept();
}

/// Number of blocks of a megabyte that an endpoint's memory has left.
fn megabytes_left(endpoint: &Endpoint) -> usize {
    let arena = endpoint.port().arena().clone();
    std::iter::from_fn(|| arena.alloc(1 << 20, 1448).ok()).collect::<Vec<_>>().len()
}

#[test]
fn a_request_that_is_not_whole_by_its_deadline_gives_its_memory_back() {
    let world = World::new();
    let mut server =
        world.server(Config::default(), LoopbackConfig { arena_bytes: 4 << 20, ..LoopbackConfig::default() });
    let mut client = HandClient::new(&world, 1);
    client.open(&mut server, OFFER).unwrap();
    let before = megabytes_left(&server);
    let data_len = client.granted.data_per_packet as usize;
    let mut first = Options { remaining_ns: Some(MS) }.to_bytes().to_vec();
    first.resize(data_len, 1);
    let header = client.header(8, 0, (1 << 20) + 8);
    client.send(Header { kind: Kind::RequestWithOptions, ..header }, &first);
    client.turn(&mut server);
    assert!(megabytes_left(&server) < before);
    world.clock.advance(MS - US);
    client.turn(&mut server);
    assert!(megabytes_left(&server) < before);
    world.clock.advance(10 * MS);
    let answers = client.turn(&mut server);
    assert!(
        answers.iter().any(|(header, _)| header.kind == Kind::CallError && header.request_number == 8),
        "{answers:?}"
    );
    assert_eq!((megabytes_left(&server), server.stats().requests_too_late), (before, 1));
    assert_eq!(server.stats().requests_handled, 0);
}

/// The client tells the server, which would otherwise hold the response until its slot is used again.
#[test]
fn a_long_response_that_nobody_fetches_after_the_deadline_gives_its_memory_back() {
    let world = World::new();
    let port = LoopbackConfig { arena_bytes: 8 << 20, ..LoopbackConfig::default() };
    let mut server = world.server(Config::default(), port);
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut client, &mut server);
    let before = megabytes_left(&server);
    send(&mut client, session, ECHO, &pattern(1 << 20, 1), CallOptions::tag(0).timeout_ns(50 * MS));
    // Turns until the response has begun to arrive.
    while server.stats().requests_handled == 0 {
        client.turn();
        server.turn();
    }
    client.turn();
    assert!(megabytes_left(&server) < before);
    world.clock.advance(60 * MS);
    settle(&mut client, &mut server);
    assert_eq!(
        completions(&mut client).iter().map(failure).collect::<Vec<_>>(),
        [(Cause::DeadlinePassed, Execution::MayHaveRun)]
    );
    assert_eq!(megabytes_left(&server), before);
    assert_eq!(credits(&client, session), (32, 0));
}

/// The server is of the same version, but knows neither options nor cancellations: this side does what it can alone.
#[test]
fn a_server_without_features_gets_plain_calls_alone() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let mut server = HandServer::asked(&world, &mut client);
    server.features = Features::NONE;
    server.accept(OFFER);
    server.turn(&mut client);
    let session = server.session;
    send(&mut client, session, ECHO, b"short", CallOptions::tag(1).timeout_ns(MS));
    send(&mut client, session, ECHO, &pattern(5_000, 1), CallOptions::tag(2).timeout_ns(MS));
    let sent = server.turn(&mut client);
    assert!(!sent.is_empty() && sent.iter().all(|(header, _)| header.kind == Kind::Request), "{sent:?}");
    assert_eq!(sent[0].0.message_len, 5);
    let call = send(&mut client, session, ECHO, b"short", 3);
    server.turn(&mut client);
    client.cancel(call);
    world.clock.advance(2 * MS);
    let sent = server.turn(&mut client);
    assert!(sent.iter().all(|(header, _)| header.kind == Kind::Request && header.is_copy), "{sent:?}");
    let mut over: Vec<_> = completions(&mut client).iter().map(|over| (over.tag, failure(over).0)).collect();
    over.sort_by_key(|over| over.0);
    assert_eq!(over, [(1, Cause::DeadlinePassed), (2, Cause::DeadlinePassed), (3, Cause::Cancelled)]);
}

/// Turns a client once, and returns the number of cancellations that it sent.
fn cancels(world: &World, client: &mut Endpoint) -> usize {
    world.network.start_tap();
    world.network.take_tapped();
    client.turn();
    kinds(&world.network).into_iter().filter(|kind| *kind == Kind::Cancel).count()
}

/// However long the server is silent, whatever it answers meanwhile, and however long the client's loop stood still.
#[test]
fn cancellations_never_leave_together() {
    for case in ["a silent server", "answers that cross them", "a loop that stood still"] {
        let world = World::new();
        let config = Config { slots: 32, ..Config::default() };
        let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
        let calls: Vec<_> = (0..32).map(|tag| send(&mut client, session, ECHO, b"x", tag)).collect();
        client.turn();
        match case {
            "answers that cross them" => _ = server.turn(),
            "a loop that stood still" => world.clock.advance(6 * MS),
            _ => {}
        }
        for call in calls {
            client.cancel(call);
        }
        for turn in 0..30 {
            let cancels = cancels(&world, &mut client);
            assert!(cancels <= 1, "{case}: {cancels} in turn {turn}");
            world.clock.advance(if case == "a silent server" { MS } else { US });
        }
        for _ in 0..2_000 {
            world.clock.advance(MS / 10);
            client.turn();
            server.turn();
        }
        assert_eq!(credits(&client, session), (32, 0), "{case}");
    }
}

/// A session with long round trips waits long, but no other session waits with it.
#[test]
fn credits_of_one_session_do_not_wait_for_those_of_a_slower_one() {
    let world = World::new();
    let nexus = server_nexus(std::sync::Arc::clone(&world.pool), Config::default());
    let mut servers = [("near", 5), ("far", 6)].map(|(name, seed)| world.endpoint(name, &nexus, seed));
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let [near, far] = servers.each_mut().map(|server| connect(&world, &mut client, server));
    // Measures round trips of 200 ms.
    for _ in 0..2 {
        send(&mut client, far, ECHO, b"x", 0);
        for _ in 0..200 {
            client.turn();
            servers[0].turn();
            world.clock.advance(MS);
        }
        settle(&mut client, &mut servers[1]);
        assert_eq!(completions(&mut client).len(), 1);
    }
    let calls = [far, near].map(|session| send(&mut client, session, ECHO, b"x", 0));
    world.losing(|| {
        client.turn();
        calls.into_iter().for_each(|call| _ = client.cancel(call));
        client.turn();
    });
    for _ in 0..20 {
        world.clock.advance(MS);
        client.turn();
    }
    assert_eq!((credits(&client, near), credits(&client, far)), ((32, 0), (31, 1)));
}

/// A server that missed one cancellation gets the next in time.
#[test]
fn an_endpoint_that_sleeps_wakes_for_what_is_owed() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let calls = [1, 2].map(|tag| send(&mut client, session, DEFER, b"kept", tag));
    settle(&mut client, &mut server);
    let kept = take_kept();
    world.losing(|| {
        calls.into_iter().for_each(|call| _ = client.cancel(call));
        client.turn();
    });
    completions(&mut client);
    let lost_ns = client.now_ns();
    while !kept[1].is_abandoned() {
        let _ = client.wait(Some(100 * MS));
        client.turn();
        server.turn();
        assert!(client.now_ns() < lost_ns + 10 * MS, "it slept on");
    }
}

#[test]
fn a_time_out_that_never_passes_is_one() {
    let world = World::new();
    let config = Config { retransmit_timeout_ns: u64::MAX, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
    let call = send(&mut client, session, DEFER, b"kept", 0);
    settle(&mut client, &mut server);
    take_kept();
    assert!(client.cancel(call));
    settle(&mut client, &mut server);
    assert_eq!(credits(&client, session), (32, 0));
}
