//! Calls of every size and kind over a network in memory.

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{
    Address, Caps, Descriptor, PacketPort, Peer, PollPolicy, PortError, PortEvent, PortStats, Readiness,
    SeededGenerator, Waker,
};
use sinew_mem::Arena;
use sinew_rpc::{Cause, Config, Error, Execution, Nexus, Rpc, SessionCredits};

#[test]
fn a_small_call_is_answered_with_two_packets() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    world.network.start_tap();
    send(&mut client, session, ECHO, b"hello", 7);
    let completion = run(&world, &mut client, &mut server, 1).remove(0);
    assert_eq!((completion.tag, completion.session, &completion.response[..]), (7, session, &b"hello"[..]));
    assert_eq!(completion.result, Ok(()));
    assert_eq!(&completion.request[..], b"hello");
    assert_eq!(world.network.take_tapped().len(), 2);
}

#[test]
fn messages_of_every_size_around_a_packet_come_back_whole() {
    for holds_shares in [false, true] {
        let world = World::new();
        let port = LoopbackConfig { packet_len_max: 224, copy_len_max: 100, holds_shares, ..LoopbackConfig::default() };
        let (mut client, mut server, session) = world.pair(Config::default(), port);
        for len in [0, 1, 75, 76, 77, 199, 200, 201, 399, 400, 401, 5000, 100_000] {
            let data = pattern(len, 3);
            send(&mut client, session, ECHO, &data, 0);
            let completion = run(&world, &mut client, &mut server, 1).remove(0);
            assert_eq!(completion.result, Ok(()), "{len}");
            assert_eq!(&completion.response[..], &data[..], "{len}");
        }
        assert_eq!(client.stats().retransmissions, 0);
        assert_eq!((client.stats().dropped_total(), server.stats().dropped_total()), (0, 0));
    }
}

#[test]
fn eight_megabytes_go_both_ways() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let data = pattern(8 << 20, 9);
    send(&mut client, session, ECHO, &data, 0);
    let completion = run(&world, &mut client, &mut server, 1).remove(0);
    assert!(completion.response[..] == data[..]);
}

#[test]
fn calls_past_the_slots_wait_and_complete() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    for tag in 0..100u64 {
        send(&mut client, session, if tag % 2 == 0 { ECHO } else { BURST }, &tag.to_le_bytes(), tag);
    }
    let completed = run(&world, &mut client, &mut server, 100);
    for completion in completed {
        let mut expected = completion.tag.to_le_bytes();
        if completion.tag % 2 == 1 {
            expected.reverse();
        }
        assert_eq!(&completion.response[..], &expected);
    }
    assert_eq!(server.stats().requests_handled, 100);
}

#[test]
fn a_session_without_a_call_has_all_its_credits() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let all = SessionCredits { left: 32, owed: 0, all: 32, withheld: 0 };
    assert_eq!(client.session_credits(session), Some(all));
    send(&mut client, session, ECHO, &pattern(40_000, 1), 1);
    client.turn();
    assert!(client.session_credits(session).unwrap().left < 32);
    run(&world, &mut client, &mut server, 1);
    assert_eq!(client.session_credits(session), Some(all));
    client.disconnect(session);
    while client.sessions() > 0 {
        client.turn();
        server.turn();
    }
    assert_eq!(client.session_credits(session), None);
}

#[test]
fn a_worker_answers_out_of_order() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, WORKER, b"slow", 1);
    send(&mut client, session, ECHO, b"fast", 2);
    let completed = run(&world, &mut client, &mut server, 2);
    assert_eq!(completed.iter().map(|c| c.tag).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(&completed[1].response[..], b"SLOW");
}

#[test]
fn calls_without_an_answer_fail_with_the_reason() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    world.pool.full.store(true, std::sync::atomic::Ordering::Relaxed);
    let cases = [
        (DROP, Cause::HandlerDropped, Execution::MayHaveRun),
        (PANIC, Cause::HandlerPanicked, Execution::MayHaveRun),
        (sinew_rpc::RequestType::new(99), Cause::NoHandler, Execution::NotRun),
        (WORKER, Cause::ServerBusy, Execution::NotRun),
    ];
    for (request_type, cause, execution) in cases {
        send(&mut client, session, request_type, b"x", 0);
        let error = run(&world, &mut client, &mut server, 1).remove(0).result.unwrap_err();
        assert_eq!((error.cause, error.execution, error.request_type), (cause, execution, request_type));
        assert!(error.to_string().contains("loopback://server"), "{error}");
        assert_eq!(error.to_string().contains("request type 99"), cause == Cause::NoHandler, "{error}");
    }
    send(&mut client, session, ECHO, b"still alive", 0);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

#[test]
fn long_calls_of_one_session_share_its_credits() {
    let world = World::new();
    let config = Config { credits: 4, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
    for tag in 0..5 {
        send(&mut client, session, ECHO, &pattern(200_000, tag as u8), tag);
    }
    let mut completed = [0; 5];
    for _ in 0..40 {
        let batch = run(&world, &mut client, &mut server, 1);
        for completion in batch {
            completed[completion.tag as usize] += 1;
            send(&mut client, session, ECHO, &pattern(200_000, 1), completion.tag);
        }
    }
    // Each call gets its turn. (A bug once let two of them alternate, and starved the others.)
    assert!(completed.iter().all(|&calls| calls >= 6), "{completed:?}");
    send(&mut client, session, ECHO, b"short", 9);
    let short = (0..8).any(|_| run(&world, &mut client, &mut server, 1).iter().any(|over| over.tag == 9));
    assert!(short, "a short call waits for its turn only");
}

/// A port that cannot sleep while `fails` is set.
struct Sleepless {
    port: TestPort,
    fails: Rc<Cell<bool>>,
}

impl Readiness for Sleepless {
    fn descriptor(&self) -> Option<Descriptor> {
        self.port.descriptor()
    }
}

impl PacketPort for Sleepless {
    type Rx = <TestPort as PacketPort>::Rx;
    type Tx = <TestPort as PacketPort>::Tx;

    fn caps(&self) -> Caps {
        self.port.caps()
    }

    fn address(&self) -> Address {
        self.port.address()
    }

    fn arena(&self) -> &Arena {
        self.port.arena()
    }

    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        self.port.resolve(address)
    }

    fn describe(&self, peer: Peer) -> String {
        self.port.describe(peer)
    }

    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx) {
        self.port.split()
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.port.poll_event()
    }

    fn waker(&self) -> Waker {
        self.port.waker()
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        if self.fails.get() { Err(std::io::Error::other("no sleep")) } else { self.port.wait(timeout_ns) }
    }

    fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

/// Everything that a failed blocking call held is free at once: its credits, its slot and its memory, although the port
/// had shares of it.
#[test]
fn a_blocking_call_whose_wait_fails_leaves_nothing_in_flight() {
    for holds_shares in [false, true] {
        let world = World::new();
        let mut server = world.server(Config::default(), LoopbackConfig::default());
        let config = Config { poller: PollPolicy::SLEEP, slots: 1, ..Config::default() };
        let nexus = Nexus::builder().config(config).build().unwrap();
        let port = LoopbackConfig { holds_shares, arena_bytes: 4 << 20, ..LoopbackConfig::default() };
        let fails = Rc::new(Cell::new(true));
        let port = Sleepless { port: world.port("client", port), fails: Rc::clone(&fails) };
        let mut client = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(2)));
        let session = connect(&world, &mut client, &mut server);
        for round in 0..20 {
            let error = client.call(session, ECHO, pattern(900_000, round)).unwrap_err();
            assert!(matches!(error, Error::Io(_)), "round {round}: {error}");
            let credits = client.session_credits(session).unwrap();
            assert_eq!(credits.left + credits.owed, credits.all);
            assert!(client.poll_completion().is_none());
            // Takes the packets that left: a queue pair has no room for those of twenty requests.
            server.turn();
        }
        fails.set(false);
        settle(&mut client, &mut server);
        send(&mut client, session, ECHO, b"the slot is free", 1);
        assert_eq!(run(&world, &mut client, &mut server, 1)[0].result, Ok(()));
    }
}

/// A failed blocking connect leaves no session and no event, since the caller does not know the session.
#[test]
fn a_blocking_connect_whose_wait_fails_leaves_no_session() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let config = Config { poller: PollPolicy::SLEEP, ..Config::default() };
    let nexus = Nexus::builder().config(config).build().unwrap();
    let fails = Rc::new(Cell::new(true));
    let port = Sleepless { port: world.port("client", LoopbackConfig::default()), fails: Rc::clone(&fails) };
    let mut client = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(2)));
    for _ in 0..5 {
        assert!(client.connect("loopback://server").is_err());
        assert_nothing_is_left(&client);
        settle(&mut client, &mut server);
        let events = events(&mut client);
        assert!(events.is_empty(), "{events:?}");
    }
    let session = connect(&world, &mut client, &mut server);
    send(&mut client, session, ECHO, b"and another", 1);
    assert_eq!(run(&world, &mut client, &mut server, 1)[0].result, Ok(()));
}
