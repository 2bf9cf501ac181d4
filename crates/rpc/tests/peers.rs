//! Peers that fall silent, die, freeze, forget or restart.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::Clock;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Cause, Config, EnqueueError, Execution, SessionEvent};
use sinew_wire::Kind::{Ping, Pong};
use sinew_wire::management::Liveness;
use sinew_wire::{HEADER_LEN, Header, SessionKey};

const MS: u64 = 1_000_000;

fn port(receive_packets: usize) -> LoopbackConfig {
    LoopbackConfig { receive_packets, ..LoopbackConfig::default() }
}

fn life(sender_token: u64, receiver_token: u64) -> Liveness {
    Liveness { sender_token, receiver_token }
}

#[test]
fn a_silent_peer_is_asked_twice_a_second_then_more_often_and_given_up_after_five() {
    let world = World::new();
    let (mut client, server, session) = world.pair(Config { slots: 1, ..Config::default() }, LoopbackConfig::default());
    for tag in 0..2 {
        send(&mut client, session, DEFER, b"x", tag);
    }
    client.turn();
    world.network.start_tap();
    let started = world.clock.now_ns();
    let mut happened = false;
    while client.sessions() > 0 {
        world.clock.advance(MS);
        happened = client.turn();
    }
    assert!(happened, "a thread that slept now would miss it");
    let waited = world.clock.now_ns() - started;
    assert!((4_990 * MS..5_200 * MS).contains(&waited), "{waited}");
    let pings = kinds(&world.network).into_iter().filter(|&kind| kind == Ping).count();
    assert!((45..=60).contains(&pings), "{pings} pings in 5 s");
    assert_eq!(lost(&mut client, session), Cause::PeerSilent);
    let mut over = completions(&mut client);
    over.sort_by_key(|over| over.tag);
    let errors: Vec<_> = over.into_iter().map(|over| over.result.unwrap_err()).collect();
    assert!(errors.iter().all(|error| error.cause == Cause::PeerSilent));
    assert_eq!((errors[0].execution, errors[1].execution), (Execution::MayHaveRun, Execution::NeverSent));
    assert!(errors[0].to_string().contains("loopback://server"), "{}", errors[0]);
    assert_nothing_is_left(&client);
    assert_eq!(client.stats().peers_lost, 1);
    drop(server);
}

#[test]
fn many_sessions_with_one_peer_share_their_probes() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    for _ in 0..50 {
        connect(&world, &mut client, &mut server);
    }
    // Lets the sessions be confirmed first.
    pass_time(&world, &mut client, &mut server, 1_200 * MS);
    world.network.start_tap();
    pass_time(&world, &mut client, &mut server, 5_000 * MS);
    let kinds = kinds(&world.network);
    assert!(kinds.iter().all(|&kind| kind == Ping || kind == Pong));
    assert!((8..=45).contains(&kinds.len()), "{} packets in 5 s", kinds.len());
    assert_eq!((client.sessions(), server.sessions()), (50, 50));
}

#[test]
fn a_server_frees_what_a_silent_client_held() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, DEFER, &pattern(5000, 1), 1);
    settle(&mut client, &mut server);
    for _ in 0..5_300 {
        world.clock.advance(MS);
        server.turn();
    }
    assert_nothing_is_left(&server);
    assert_eq!(server.stats().peers_lost, 1);
    answer_kept();
    server.turn();
    assert_eq!(server.stats().answers_discarded, 1);
}

#[test]
fn whoever_thaws_after_being_given_up_hears_that_it_was_forgotten() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, DEFER, b"x", 1);
    settle(&mut client, &mut server);
    // The client is frozen: only the server turns.
    for _ in 0..6_000 {
        world.clock.advance(MS);
        server.turn();
    }
    assert_nothing_is_left(&server);
    pass_time(&world, &mut client, &mut server, 1_100 * MS);
    assert_eq!(lost(&mut client, session), Cause::PeerForgot);
    let error = completions(&mut client).remove(0).result.unwrap_err();
    assert_eq!((error.cause, error.execution), (Cause::PeerForgot, Execution::MayHaveRun));
    let session = connect(&world, &mut client, &mut server);
    send(&mut client, session, ECHO, b"x", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    drop(take_kept());
}

#[test]
fn ones_own_pause_is_held_against_nobody() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    for _ in 0..5 {
        world.clock.advance(10_000 * MS);
        client.turn();
        server.turn();
        pass_time(&world, &mut client, &mut server, 3 * MS);
    }
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    send(&mut client, session, ECHO, b"x", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

#[test]
fn a_dead_process_is_known_at_once_on_both_sides() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, ECHO, b"x", 1);
    client.turn();
    world.network.kill("server");
    client.turn();
    assert_eq!(lost(&mut client, session), Cause::PeerDied);
    let error = completions(&mut client).remove(0).result.unwrap_err();
    assert_eq!((error.cause, error.execution), (Cause::PeerDied, Execution::MayHaveRun));
    assert_nothing_is_left(&client);
    world.network.revive("server");
    // The server still knows the session, and learns that the client does not.
    pass_time(&world, &mut client, &mut server, 1_200 * MS);
    assert_nothing_is_left(&server);
    connect(&world, &mut client, &mut server);
    world.network.kill("client");
    server.turn();
    assert_nothing_is_left(&server);
}

#[test]
fn a_port_that_closes_without_a_word_is_known_too() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let server = HandServer::connected(&world, &mut client, OFFER);
    let session = server.session;
    drop(server);
    client.turn();
    assert_eq!(lost(&mut client, session), Cause::PeerClosed);
}

#[test]
fn a_server_that_started_anew_under_its_address_has_forgotten_its_sessions() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let mut server = HandServer::connected(&world, &mut client, OFFER);
    // A peer with another token answers a ping.
    world.clock.advance(600 * MS);
    client.turn();
    world.clock.advance(600 * MS);
    let mut pinged = false;
    for _ in 0..1_000 {
        world.clock.advance(MS);
        for (header, body) in server.turn(&mut client) {
            pinged |= header.kind == Ping;
            assert_eq!(Liveness::read(&body), Some(life(server.client_token, server.token)));
        }
        if pinged {
            break;
        }
    }
    // These do not answer the ping.
    for wrong in [life(9, server.client_token ^ 1), life(server.token, 0)] {
        server.send_management(&wrong.encode(Pong));
        server.turn(&mut client);
        assert_eq!(client.sessions(), 1);
    }
    server.token += 1;
    let pong = pong(life(server.token, server.client_token), server.token - 1);
    world.network.inject("client", server.peer, &pong);
    server.turn(&mut client);
    assert_eq!(lost(&mut client, server.session), Cause::PeerForgot);
    assert_nothing_is_left(&client);
}

/// A pong that answers a ping whose sender took `believed` for our token.
fn pong(life: Liveness, believed: u64) -> Vec<u8> {
    let header = Header::management(Pong, SessionKey(believed), 0);
    bytes_of(header, &life.encode(Pong).as_bytes()[HEADER_LEN..])
}

#[test]
fn a_pong_that_an_accept_overtook_does_not_end_the_session() {
    let world = World::new();
    let mut client = world.client(Config { retransmit_timeout_ns: 1 << 40, ..Config::default() }, port(4096));
    let mut server = HandServer::asked(&world, &mut client);
    // The client is not accepted for a while, and pings the server.
    let mut pings = Vec::new();
    for _ in 0..1_000 {
        world.clock.advance(MS);
        pings.extend(server.turn(&mut client).into_iter().filter(|packet| packet.0.kind == Ping));
    }
    assert_eq!(Liveness::read(&pings[0].1), Some(life(server.client_token, 0)));
    server.accept(OFFER);
    server.turn(&mut client);
    assert!(matches!(event(&mut client), SessionEvent::Connected(_)));
    // The answer dates from when the server did not know the client yet.
    world.network.inject("client", server.peer, &pong(life(0, server.client_token), 0));
    server.turn(&mut client);
    assert_eq!(client.sessions(), 1);
}

#[test]
fn pings_are_answered_to_anybody_and_believed_of_nobody_else() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let unknown_client = HandClient::new(&world, 9);
    unknown_client.send_management(&life(5, 6).encode(Ping));
    let answers = unknown_client.turn(&mut server);
    assert_eq!(outline(&answers), [(Pong, 0)]);
    assert_eq!(Liveness::read(&answers[0].1), Some(life(0, 5)));
    assert_eq!(answers[0].0.session, SessionKey(6), "what the asker believed comes back");
    // An attacker who guesses tokens does not keep a dead client's sessions alive.
    let client = HandClient::connected(&world, &mut server, 1, OFFER);
    for _ in 0..5_300 {
        world.clock.advance(MS);
        client.send_management(&life(client.token, client.server_token ^ 1).encode(Ping));
        client.send_management(&life(client.server_token, client.token ^ 1).encode(Pong));
        server.turn();
    }
    assert_nothing_is_left(&server);
    // The client itself does.
    let client = HandClient::connected(&world, &mut server, 1, OFFER);
    for _ in 0..5_300 {
        world.clock.advance(MS);
        client.send_management(&life(client.token, client.server_token).encode(Ping));
        server.turn();
    }
    assert_eq!(server.sessions(), 1);
}

#[test]
fn a_client_that_started_anew_replaces_what_it_had_been() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let before = HandClient::connected(&world, &mut server, 1, OFFER);
    world.clock.advance(MS);
    let mut after = HandClient::new(&world, 1);
    (after.key, after.token) = (SessionKey::new(0, 99), before.token + 1);
    let cookie = after.challenged(&mut server, OFFER);
    after.send_management(&after.connect_packet(OFFER, cookie));
    let answers = after.turn(&mut server);
    after.accepted(&answers[0].0, &answers[0].1);
    assert_eq!(server.sessions(), 1);
    assert_ne!(after.server_token, before.server_token, "a fresh incarnation for a fresh client");
    before.request(8, 0, b"from before");
    assert_eq!(outline(&before.turn(&mut server)), []);
    after.request(8, 0, b"from after");
    assert_eq!(after.turn(&mut server)[0].1, b"from after");
}

#[test]
fn what_a_peer_held_here_goes_when_it_turns_out_to_have_forgotten() {
    // Both are servers and clients of each other. One freezes, is given up, thaws, and connects anew before anything
    // else.
    let world = World::new();
    let config = Config::default();
    let nexus = server_nexus(std::sync::Arc::clone(&world.pool), config);
    let mut a = world.endpoint("a", &nexus, 1);
    let mut b = world.endpoint("b", &nexus, 2);
    connect(&world, &mut a, &mut b);
    connect(&world, &mut b, &mut a);
    pass_time(&world, &mut a, &mut b, 1_200 * MS);
    for _ in 0..6_000 {
        world.clock.advance(MS);
        b.turn();
    }
    assert_nothing_is_left(&b);
    events(&mut b);
    let session = a.begin_connect(&b.address()).unwrap();
    pass_time(&world, &mut a, &mut b, 8_000 * MS);
    assert_eq!((a.sessions(), b.sessions()), (1, 1), "{:?}", events(&mut a));
    assert_eq!((a.committed_packets(), b.committed_packets()), (32, 32));
    assert!(a.disconnect(session));
}

#[test]
fn a_disconnected_session_takes_no_calls() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    client.disconnect(session);
    let (request, response) = (client.alloc(1).unwrap(), client.alloc(1).unwrap());
    let rejected = client.enqueue_request(session, ECHO, request, response, 0).unwrap_err();
    assert_eq!(rejected.error, EnqueueError::NoSuchSession);
    settle(&mut client, &mut server);
}

/// A peer forgets us with our last session. A ping in flight at that time is answered by a peer that does not know us,
/// while we have begun a session that it will grant.
#[test]
fn who_reconnects_while_a_ping_is_on_its_way_is_connected() {
    for after_ms in 480..560 {
        let world = World::new();
        world.network.set_latency_ns(2 * MS);
        let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
        pass_time(&world, &mut client, &mut server, after_ms * MS);
        client.disconnect(session);
        let session = client.begin_connect(&server.address()).unwrap();
        pass_time(&world, &mut client, &mut server, 100 * MS);
        let events = events(&mut client);
        assert!(
            events.iter().any(|event| matches!(event, SessionEvent::Connected(id) if *id == session)),
            "{events:?}"
        );
        assert_eq!((client.sessions(), server.sessions()), (1, 1), "after {after_ms} ms: {events:?}");
    }
}
