//! Idle sessions on a network that loses packets: they stay, and their first call works.

mod common;

use std::sync::Arc;

use common::*;
use sinew_fabric::fault::{FaultConfig, FaultHandle, Faults, Faulty};
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Config, Nexus, SessionEvent, SessionId};

const MS: u64 = 1_000_000;

/// A client and a server that each lose a part of the packets they send, with a session that was opened nevertheless.
struct Lossy {
    world: World,
    client: Endpoint<Faulty<TestPort>>,
    server: Endpoint<Faulty<TestPort>>,
    faults: [FaultHandle; 2],
    session: SessionId,
}

impl Lossy {
    fn open(seed: u64, loss: f64, config: &Config) -> Self {
        let world = World::new();
        let faults = FaultConfig { tx: Faults::loss(loss), rx: Faults::NONE };
        let nexus = server_nexus(Arc::clone(&world.pool), config.clone());
        let mut server = world.faulty("server", &nexus, 2 * seed, LoopbackConfig::default(), faults);
        let nexus = Nexus::builder().config(config.clone()).build().unwrap();
        let mut client = world.faulty("client", &nexus, 2 * seed + 1, LoopbackConfig::default(), faults);
        let handles = [client.port().handle(), server.port().handle()];
        let session = client.begin_connect(&server.address()).unwrap();
        for _ in 0..150 {
            settle(&mut client, &mut server);
            match client.poll_event() {
                Some(SessionEvent::Connected(_)) => return Self { world, client, server, faults: handles, session },
                Some(other) => panic!("seed {seed}: {other:?}"),
                None => world.clock.advance(20 * MS),
            }
        }
        panic!("seed {seed}: no session");
    }

    fn idle(&mut self, ns: u64, step_ns: u64) {
        for _ in 0..ns / step_ns {
            self.world.clock.advance(step_ns);
            settle(&mut self.client, &mut self.server);
        }
    }

    /// Asserts that the session is there on both sides, that it had no event, and that a call on it works.
    fn assert_usable(&mut self, seed: u64) {
        let events = events(&mut self.client);
        assert!(events.is_empty(), "seed {seed}: {events:?}");
        assert_eq!((self.client.sessions(), self.server.sessions()), (1, 1), "seed {seed}");
        send(&mut self.client, self.session, ECHO, b"first", 1);
        // The time-outs of a call without progress grow to a third of a second.
        for _ in 0..60_000 {
            settle(&mut self.client, &mut self.server);
            if let Some(over) = self.client.poll_completion() {
                assert!(over.result.is_ok() && over.response[..] == b"first"[..], "seed {seed}: {:?}", over.result);
                return;
            }
            self.world.clock.advance(MS);
        }
        panic!("seed {seed}: no answer");
    }
}

/// Neither side takes the other for dead although every other packet is lost: a peer that has long been silent is
/// pinged more often.
#[test]
fn half_of_all_packets_may_be_lost_while_a_session_is_idle() {
    for seed in 0..100 {
        let mut pair = Lossy::open(seed, 0.5, &Config::default());
        pair.idle(60_000 * MS, 20 * MS);
        pair.assert_usable(seed);
    }
}

#[test]
fn a_session_is_used_first_after_it_was_idle_at_any_time_of_its_opening() {
    for seed in 0..1_000 {
        let mut pair = Lossy::open(seed, 0.5, &Config::default());
        pair.idle(seed * 7 % 3_000 * MS, 20 * MS);
        pair.assert_usable(seed);
    }
}

/// One exchange in eleven succeeds, so that dozens of reminders bring no confirmation. The peer time-out is long, since
/// it is not what is tested.
#[test]
fn an_idle_session_that_cannot_be_confirmed_for_long_is_not_taken_back() {
    let config = Config { peer_timeout_ns: 3_600_000 * MS, ..Config::default() };
    for seed in 0..500 {
        let mut pair = Lossy::open(seed, 0.5, &config);
        for faults in &pair.faults {
            faults.set(FaultConfig { tx: Faults::loss(0.7), rx: Faults::NONE });
        }
        pair.idle(150_000 * MS, 250 * MS);
        pair.faults.iter().for_each(FaultHandle::heal);
        pair.assert_usable(seed);
    }
}

/// However rarely anything else is due, a peer that is silent for half of the time-out is pinged fifty times in the
/// other half.
#[test]
fn a_silent_peer_is_asked_fifty_times_before_it_is_given_up() {
    for (probe_ms, retry_ms) in [(500, 20), (2_000, 20), (2_000, 2_000)] {
        let world = World::new();
        let config = Config { probe_interval_ns: probe_ms * MS, connect_retry_ns: retry_ms * MS, ..Config::default() };
        let (mut client, mut server, session) = world.pair(config, sinew_fabric::loopback::LoopbackConfig::default());
        send(&mut client, session, ECHO, b"confirms", 1);
        settle(&mut client, &mut server);
        world.network.set_link("client", "server", false);
        world.network.start_tap();
        let mut asked = 0;
        for _ in 0..6_000 {
            world.clock.advance(MS);
            client.turn();
            asked += kinds(&world.network).len();
        }
        assert_eq!(client.sessions(), 0);
        assert!(asked > 40, "{probe_ms} {retry_ms}: asked {asked} times");
    }
}
