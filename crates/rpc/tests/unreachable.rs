//! A port reports that nobody listens at a peer's address. Anybody can forge the message behind it, so the report is
//! checked, not believed.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Clock, Peer, PeerLoss};
use sinew_rpc::{Cause, Config, ConnectError, Execution, SessionEvent, SessionId};
use sinew_wire::Kind::{Ping, Pong};
use sinew_wire::management::Liveness;

const MS: u64 = 1_000_000;

/// Time after a report within which a peer that says nothing is given up.
const GIVEN_UP_NS: u64 = 300 * MS;

fn pair(world: &World) -> (Endpoint, Endpoint, SessionId) {
    world.pair(Config::default(), LoopbackConfig::default())
}

fn peer_of(world: &World, name: &str) -> Peer {
    world.network.peer(name).unwrap()
}

fn report(world: &World, to: &str, about: Peer) {
    assert!(world.network.report_loss(to, about, PeerLoss::Unreachable));
}

/// Turns only `endpoint`, in steps of a millisecond, until it has no session; returns the time that took, in ns.
fn time_to_give_up(world: &World, endpoint: &mut Endpoint) -> u64 {
    let began_ns = world.clock.now_ns();
    while endpoint.sessions() > 0 {
        endpoint.turn();
        world.clock.advance(MS);
        assert!(world.clock.now_ns() - began_ns < 10_000 * MS, "it is never given up");
    }
    world.clock.now_ns() - began_ns
}

/// A forged message about a live server, and one about a client: each is pinged in the same turn, and no session ends.
#[test]
fn a_peer_that_is_said_to_be_unreachable_and_answers_keeps_its_sessions() {
    for (observer, other) in [("client", "server"), ("server", "client")] {
        let world = World::new();
        let (mut client, mut server, session) = pair(&world);
        send(&mut client, session, DEFER, b"in flight", 1);
        settle(&mut client, &mut server);
        world.network.start_tap();
        report(&world, observer, peer_of(&world, other));
        let endpoint = if observer == "client" { &mut client } else { &mut server };
        assert!(endpoint.turn());
        let about = peer_of(&world, other);
        let pings = world.network.take_tapped().iter().filter(|packet| packet.to == about && is_ping(packet)).count();
        assert_eq!(pings, 1, "{observer}");
        pass_time(&world, &mut client, &mut server, 1_000 * MS);
        assert_eq!((client.sessions(), server.sessions()), (1, 1), "{observer}");
        assert!(events(&mut client).is_empty() && completions(&mut client).is_empty());
        assert_eq!((client.stats().peers_lost, server.stats().peers_lost), (0, 0));
        answer_kept();
        assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    }
}

fn is_ping(packet: &sinew_fabric::loopback::TappedPacket) -> bool {
    parse(&packet.bytes).0.kind == Ping
}

/// Forged messages arrive without end, thousands in one turn and some in each further turn, on a network with round
/// trips of 20 ms. Calls go on, and far fewer pings than messages are sent.
#[test]
fn a_stream_of_forged_reports_ends_no_session_and_becomes_no_stream_of_pings() {
    let world = World::new();
    let (mut client, mut server, session) = pair(&world);
    let (of_client, of_server) = (peer_of(&world, "client"), peer_of(&world, "server"));
    world.network.set_latency_ns(10 * MS);
    world.network.start_tap();
    (0..1_000).for_each(|_| report(&world, "client", of_server));
    client.turn();
    assert!(world.network.take_tapped().iter().filter(|packet| is_ping(packet)).count() <= 1);
    let mut answered = 0;
    for _ in 0..5_000 {
        for (to, about) in [("client", of_server), ("server", of_client)] {
            (0..3).for_each(|_| report(&world, to, about));
        }
        if client.session_credits(session).is_none_or(|credits| credits.left == credits.all) {
            send(&mut client, session, ECHO, b"on we go", 1);
        }
        pass_time(&world, &mut client, &mut server, MS);
        for over in completions(&mut client) {
            assert_eq!(over.result, Ok(()));
            answered += 1;
        }
    }
    // One call every 20 ms and a little.
    assert!(answered > 200, "{answered} calls");
    let pings = world.network.take_tapped().iter().filter(|packet| is_ping(packet)).count();
    assert!(pings <= 1_000, "{pings} pings for 30,000 reports");
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    assert!(events(&mut client).is_empty());
}

/// A peer that is really gone is pinged again within a short time, and given up long before the peer time-out.
#[test]
fn a_peer_that_is_said_to_be_unreachable_and_says_nothing_is_given_up_soon() {
    let world = World::new();
    let (mut client, server, session) = pair(&world);
    for tag in 0..2 {
        send(&mut client, session, DEFER, b"x", tag);
    }
    client.turn();
    world.network.set_link("client", "server", false);
    world.network.start_tap();
    report(&world, "client", peer_of(&world, "server"));
    let waited = time_to_give_up(&world, &mut client);
    assert!((30 * MS..=GIVEN_UP_NS).contains(&waited), "{waited}");
    let pings = kinds(&world.network).into_iter().filter(|&kind| kind == Ping).count();
    assert!((2..=30).contains(&pings), "{pings} pings");
    assert_eq!(lost(&mut client, session), Cause::PeerUnreachable);
    for over in completions(&mut client) {
        let error = over.result.unwrap_err();
        assert_eq!((error.cause, error.execution), (Cause::PeerUnreachable, Execution::MayHaveRun));
    }
    assert_nothing_is_left(&client);
    drop(server);
}

/// The peer answers only the third ping: two were lost.
#[test]
fn a_lost_ping_or_two_do_not_make_a_peer_unreachable() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let server = HandServer::connected(&world, &mut client, OFFER);
    report(&world, "client", server.peer);
    let mut pings = 0;
    for step in 0..100 {
        pings += server.turn(&mut client).iter().filter(|packet| packet.0.kind == Ping).count();
        world.clock.advance(MS);
        if pings >= 3 {
            break;
        }
        assert!(client.sessions() == 1 && step < 99, "{pings} pings");
    }
    server.send_management(&Liveness { sender_token: server.token, receiver_token: server.client_token }.encode(Pong));
    for _ in 0..400 {
        server.turn(&mut client);
        world.clock.advance(MS);
    }
    assert_eq!(client.sessions(), 1);
}

/// An attacker that forges the report can forge signs of life too, but knows neither session nor token: these do not
/// save a peer that is gone.
#[test]
fn signs_of_life_without_the_right_token_are_none() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let server = HandServer::connected(&world, &mut client, OFFER);
    report(&world, "client", server.peer);
    for _ in 0..GIVEN_UP_NS / MS {
        server.send_management(
            &Liveness { sender_token: server.token, receiver_token: server.client_token ^ 1 }.encode(Pong),
        );
        server.send_management(&Liveness { sender_token: 5, receiver_token: 6 }.encode(Ping));
        client.turn();
        world.clock.advance(MS);
    }
    assert_eq!(lost(&mut client, server.session), Cause::PeerUnreachable);
}

/// A session that is being opened is no easier to end than an open one: the server, which does not know its client yet,
/// is alive and answers late.
#[test]
fn a_session_that_is_being_opened_survives_a_forged_report() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    world.network.set_latency_ns(15 * MS);
    let session = client.begin_connect(&server.address()).unwrap();
    for _ in 0..20 {
        report(&world, "client", peer_of(&world, "server"));
        pass_time(&world, &mut client, &mut server, 10 * MS);
    }
    assert!(matches!(event(&mut client), SessionEvent::Connected(id) if id == session));
    send(&mut client, session, ECHO, b"x", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

/// Nobody is there: the client learns that soon, not after the connect time-out.
#[test]
fn a_session_that_is_being_opened_where_nobody_answers_fails_soon() {
    let world = World::new();
    let server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = client.begin_connect(&server.address()).unwrap();
    send(&mut client, session, ECHO, b"queued", 1);
    client.turn();
    report(&world, "client", peer_of(&world, "server"));
    let waited = time_to_give_up(&world, &mut client);
    assert!((30 * MS..=GIVEN_UP_NS).contains(&waited), "{waited}");
    let SessionEvent::ConnectFailed { session: failed, error } = event(&mut client) else { panic!() };
    assert!(
        failed == session && matches!(error, ConnectError::Failed { cause: Cause::PeerUnreachable, .. }),
        "{error}"
    );
    let error = completions(&mut client).remove(0).result.unwrap_err();
    assert_eq!((error.cause, error.execution), (Cause::PeerUnreachable, Execution::NeverSent));
    drop(server);
}

/// A port reports these only when it knows them for certain.
#[test]
fn a_peer_that_died_closed_or_refused_is_given_up_at_once() {
    for (loss, cause) in [
        (PeerLoss::ProcessDied, Cause::PeerDied),
        (PeerLoss::Closed, Cause::PeerClosed),
        (PeerLoss::Refused, Cause::PeerRefused),
    ] {
        let world = World::new();
        let (mut client, _server, session) = pair(&world);
        assert!(world.network.report_loss("client", peer_of(&world, "server"), loss));
        client.turn();
        assert_eq!(lost(&mut client, session), cause);
        assert_nothing_is_left(&client);
    }
}

/// We were stopped after the ping left, and so may the peer have been: time in which nobody listened is not silence.
#[test]
fn ones_own_pause_does_not_make_a_peer_unreachable() {
    let world = World::new();
    let (mut client, mut server, session) = pair(&world);
    report(&world, "client", peer_of(&world, "server"));
    client.turn();
    world.clock.advance(10_000 * MS);
    client.turn();
    pass_time(&world, &mut client, &mut server, 10 * MS);
    assert_eq!((client.sessions(), events(&mut client).len()), (1, 0));
    send(&mut client, session, ECHO, b"x", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

/// A report about a stranger concerns no session.
#[test]
fn a_report_about_somebody_unknown_changes_nothing() {
    let world = World::new();
    let (mut client, mut server, session) = pair(&world);
    world.network.start_tap();
    report(&world, "client", sinew_fabric::loopback::Network::stranger(5));
    client.turn();
    assert_eq!(kinds(&world.network), []);
    send(&mut client, session, ECHO, b"x", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

/// Our loop turns rarely, and the first ping is lost: the peer is pinged again before it is given up.
#[test]
fn one_lost_ping_and_a_short_pause_do_not_make_a_peer_unreachable() {
    let world = World::new();
    let (mut client, mut server, _) = pair(&world);
    report(&world, "client", peer_of(&world, "server"));
    world.losing(|| {
        client.turn();
        server.turn();
    });
    world.clock.advance(150 * MS);
    pass_time(&world, &mut client, &mut server, 1_000 * MS);
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
}

/// However far away a peer is, it has time to answer.
#[test]
fn a_distant_peer_that_is_said_to_be_unreachable_keeps_its_sessions() {
    for latency_ms in [20, 45, 55, 150, 400] {
        let world = World::new();
        let (mut client, mut server, _) = pair(&world);
        world.network.set_latency_ns(latency_ms * MS);
        // Long enough for it to have been pinged, as it is idle.
        pass_time(&world, &mut client, &mut server, 2_000 * MS);
        report(&world, "client", peer_of(&world, "server"));
        pass_time(&world, &mut client, &mut server, 2_000 * MS);
        assert_eq!(client.sessions(), 1, "{latency_ms} ms");
    }
}
