//! News for the thread that sleeps on an endpoint: events keep it awake once, and once more when some of them are
//! taken.
#![cfg(all(test, not(miri)))]

mod common;

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Clock, PollPolicy};
use sinew_rpc::{CallOptions, Config, Endpoint as _, SessionEvent, SharedEndpoint};

/// Sleeps whenever there is nothing to do.
fn sleepy() -> Config {
    Config { poller: PollPolicy::SLEEP, client_events: true, ..Config::default() }
}

const MOMENT: Option<u64> = Some(1);

/// A program that waits for one event, and takes one event per turn, does not sleep while that event waits.
#[test]
fn events_that_are_taken_one_by_one_are_all_told() {
    let world = World::new();
    let mut server = world.server(sleepy(), LoopbackConfig::default());
    let mut client = world.client(sleepy(), LoopbackConfig::default());
    let sessions: Vec<_> = (0..5).map(|_| client.begin_connect(&server.address()).unwrap()).collect();
    settle(&mut client, &mut server);
    let began_ns = world.clock.now_ns();
    client.run_until(|rpc| matches!(rpc.poll_event(), Some(SessionEvent::Connected(id)) if id == sessions[4])).unwrap();
    assert_eq!(world.clock.now_ns(), began_ns, "it slept with events to take");

    for _ in 0..5 {
        server.turn();
        assert!(!server.wait(MOMENT).unwrap(), "it slept with events of clients to take");
        assert!(server.poll_client_event().is_some());
    }
    server.turn();
    // The last event was taken, and none is left.
    assert!(server.wait(MOMENT).unwrap());
}

#[test]
fn an_event_of_a_lane_that_nobody_takes_keeps_nobody_awake_for_longer_than_once() {
    let world = World::new();
    let mut server = world.server(sleepy(), LoopbackConfig::default());
    let mut owner = SharedEndpoint::new(world.client(sleepy(), LoopbackConfig::default()));
    let mut share = owner.share();
    let slept = |owner: &mut SharedEndpoint<_>| {
        owner.turn();
        owner.with(|rpc: &mut Endpoint| rpc.wait(MOMENT).unwrap())
    };
    for _ in 0..2 {
        share.begin_connect(&server.address()).unwrap();
        for _ in 0..20 {
            share.turn();
            server.turn();
        }
        assert_eq!([slept(&mut owner), slept(&mut owner), slept(&mut owner)], [false, true, true]);
    }
    // Once one event is taken, the other keeps the thread awake once more, and no longer.
    assert!(share.poll_event().is_some());
    assert_eq!([slept(&mut owner), slept(&mut owner)], [false, true]);
    assert!(share.poll_event().is_some());
    assert!(slept(&mut owner));
}

/// The lane's user must come and take it.
#[test]
fn a_completion_of_a_lane_keeps_the_thread_awake_until_it_is_taken() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(sleepy(), LoopbackConfig::default());
    let lane = client.open_lane();
    send(&mut client, session, ECHO, b"x", CallOptions::tag(0).lane(lane));
    settle(&mut client, &mut server);
    for _ in 0..3 {
        client.turn();
        assert!(!client.wait(MOMENT).unwrap());
    }
    assert!(client.poll_lane(lane).is_some());
    client.turn();
    assert!(client.wait(MOMENT).unwrap());
}

/// A sleeping thread hears of arrivals, so silence also counts during a sleep, however long.
#[test]
fn a_call_that_waits_gives_a_silent_peer_up_as_a_loop_does() {
    const SECOND: u64 = 1_000_000_000;
    let (peer_timeout_ns, call_timeout_ns) = (5 * SECOND, 60 * SECOND);
    for (retransmit_timeout_ns, probe_interval_ns) in [(5 * SECOND, 50_000_000), (SECOND / 10, 3_000_000)] {
        let world = World::new();
        let config = Config { retransmit_timeout_ns, probe_interval_ns, peer_timeout_ns, call_timeout_ns, ..sleepy() };
        let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
        send(&mut client, session, ECHO, b"confirms the session", 1);
        settle(&mut client, &mut server);
        completions(&mut client);
        world.network.set_link("client", "server", false);
        let began_ns = world.clock.now_ns();
        let error = client.call(session, ECHO, b"x").unwrap_err().to_string();
        let took_ns = world.clock.now_ns() - began_ns;
        assert!(took_ns < peer_timeout_ns * 6 / 5, "{retransmit_timeout_ns}: {took_ns} ns, {error}");
    }
}
