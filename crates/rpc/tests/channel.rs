//! Channels: many calls in flight to one server, over as many sessions as that needs; one call reconnects them all.
#![cfg(test)]

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{
    Address, Armed, Caps, Descriptor, ManualClock, PacketPort, Peer, PortError, PortEvent, PortStats, Readiness,
    SeededGenerator, Waker,
};
use sinew_mem::Arena;
use sinew_rpc::{
    CallOptions, Cause, Channel, ChannelError, ChannelStatus, Completion, Config, ConnectError, ConnectOptions,
    EnqueueError, Execution, LaneId, Nexus, Rejected, RequestType, Rpc, RpcHandle, SessionEvent,
};

type Servers = Rc<RefCell<Option<Endpoint>>>;

/// The client's port. Each turn of the client turns the server too, so that the client can wait for it.
struct Beside {
    port: TestPort,
    server: Servers,
    clock: ManualClock,
}

impl Readiness for Beside {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }

    fn arm(&mut self, _now_ns: u64) -> io::Result<Armed> {
        Ok(Armed::Ready)
    }

    fn disarm(&mut self) -> bool {
        false
    }
}

impl PacketPort for Beside {
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
        if let Some(server) = &mut *self.server.borrow_mut() {
            server.turn();
        }
        self.clock.advance(50_000);
        self.port.poll_event()
    }

    fn waker(&self) -> Waker {
        self.port.waker()
    }

    fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

const SERVER: &str = "loopback://server";
const CALLS: usize = 64;

struct Pair {
    world: World,
    server: Servers,
    client: Endpoint<Beside>,
}

impl Pair {
    fn with(of_client: Config, of_server: Config) -> Self {
        let world = World::new();
        let server = Rc::new(RefCell::new(Some(world.server(of_server, LoopbackConfig::default()))));
        let nexus = Nexus::builder().config(of_client).build().unwrap();
        let (port, clock) = (world.port("client", LoopbackConfig::default()), world.clock.clone());
        let port = Beside { port, server: Rc::clone(&server), clock };
        let client = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(2)));
        Self { world, server, client }
    }

    fn new() -> Self {
        Self::with(Config::default(), Config::default())
    }

    fn turn(&mut self, times: usize) {
        (0..times).for_each(|_| _ = self.client.turn());
    }

    fn open(&mut self, calls: usize) -> Channel {
        Channel::open(&mut self.client, SERVER, calls).unwrap()
    }

    fn send(&mut self, channel: &mut Channel, request_type: RequestType, options: impl Into<CallOptions>) {
        self.try_send(channel, request_type, options).unwrap();
    }

    fn try_send(
        &mut self,
        channel: &mut Channel,
        request_type: RequestType,
        options: impl Into<CallOptions>,
    ) -> Result<sinew_rpc::CallId, Rejected> {
        let (request, response) = (self.client.alloc(4).unwrap(), self.client.alloc(4).unwrap());
        channel.enqueue_request(&mut self.client, request_type, request, response, options)
    }

    /// Starts the server, for the first time or again.
    fn start(&mut self, config: Config) {
        self.stop();
        *self.server.borrow_mut() = Some(self.world.endpoint_with(
            "server",
            &server_nexus(self.world.pool.clone(), config),
            77,
            LoopbackConfig::default(),
        ));
    }

    fn stop(&mut self) {
        let server = self.server.borrow_mut().take();
        drop(server);
    }

    fn sessions_at_server(&self) -> usize {
        self.server.borrow().as_ref().unwrap().sessions()
    }
}

/// Number of calls that went over each session.
fn by_session(completed: &[Completion]) -> Vec<usize> {
    let mut counts = BTreeMap::new();
    completed.iter().for_each(|completion| *counts.entry(completion.session).or_insert(0) += 1);
    counts.into_values().collect()
}

#[test]
fn as_many_calls_as_were_asked_for_are_in_flight_at_once() {
    // Below, at and above multiples of a session's slots.
    for calls in [1, 8, 9, 63, CALLS, 65] {
        let mut pair = Pair::new();
        let mut channel = pair.open(calls);
        let sessions = calls.div_ceil(8);
        assert_eq!(
            (channel.sessions().len(), pair.client.sessions(), pair.sessions_at_server()),
            (sessions, sessions, sessions)
        );
        for tag in 0..calls {
            pair.send(&mut channel, DEFER, tag as u64);
        }
        pair.turn(3);
        let kept = take_kept();
        assert_eq!(kept.len(), calls, "all are at the server at once");
        kept.into_iter().for_each(|call| call.reply(b"done"));
        pair.turn(3);
        let completed = completions(&mut pair.client);
        assert!(
            completed.len() == calls
                && completed.iter().all(|over| over.result.is_ok() && &over.response[..] == b"done")
        );
        assert!(by_session(&completed).iter().all(|&count| count <= 8));
        assert!(events(&mut pair.client).is_empty(), "a channel that is waited for takes its sessions' events");
    }
}

#[test]
fn calls_past_the_slots_wait_in_all_queues_alike() {
    let mut pair = Pair::new();
    let mut channel = pair.open(16);
    (0..48).for_each(|tag| pair.send(&mut channel, DEFER, tag));
    pair.turn(3);
    assert_eq!(answer_kept(), 16);
    for _ in 0..2 {
        pair.turn(3);
        assert_eq!(answer_kept(), 16);
    }
    pair.turn(3);
    assert_eq!(by_session(&completions(&mut pair.client)), [24, 24]);
}

#[test]
fn calls_go_where_there_is_room() {
    let mut pair = Pair::new();
    let mut channel = pair.open(16);
    // Fill the first session with other calls.
    let full = channel.sessions()[0];
    (0..8).for_each(|tag| _ = send(&mut pair.client, full, DEFER, b"theirs", tag));
    (0..8).for_each(|tag| pair.send(&mut channel, ECHO, tag));
    pair.turn(3);
    let completed = completions(&mut pair.client);
    assert!(completed.len() == 8 && completed.iter().all(|over| over.session == channel.sessions()[1]));
    // Calls take turns where all sessions have room.
    take_kept();
    pair.turn(3);
    assert_eq!(completions(&mut pair.client).len(), 8, "dropped without an answer");
    (0..6).for_each(|tag| pair.send(&mut channel, ECHO, tag));
    pair.turn(3);
    assert_eq!(by_session(&completions(&mut pair.client)), [3, 3]);
}

#[test]
fn a_server_that_grants_fewer_slots_gets_more_sessions() {
    for slots in [1, 2, 8, 64] {
        let mut pair = Pair::with(Config::default(), Config { slots, ..Config::default() });
        let mut channel = pair.open(20);
        let sessions = 20usize.div_ceil(usize::from(slots.min(8)));
        let status = channel.status(&pair.client);
        let all = sessions * usize::from(slots.min(8));
        assert_eq!(status, ChannelStatus { open: sessions, opening: 0, gone: 0, slots: all });
        (0..20).for_each(|tag| pair.send(&mut channel, DEFER, tag));
        pair.turn(3);
        assert_eq!(answer_kept(), 20, "{slots} slots a session");
        pair.turn(3);
        assert_eq!(completions(&mut pair.client).len(), 20);
    }
}

#[test]
fn a_channel_opens_while_its_owner_does_something_else() {
    let mut pair = Pair::with(Config::default(), Config { slots: 4, ..Config::default() });
    let address = SERVER.parse().unwrap();
    let mut channel = Channel::begin_open(&mut pair.client, &address, 16, ConnectOptions::new()).unwrap();
    assert_eq!(channel.status(&pair.client), ChannelStatus { opening: 2, ..ChannelStatus::default() });
    // These leave once there are sessions.
    (0..16).for_each(|tag| pair.send(&mut channel, DEFER, tag));
    let mut polls = 0;
    while !channel.poll(&mut pair.client).unwrap() {
        pair.turn(1);
        polls += 1;
        assert!(polls < 100);
    }
    assert_eq!(channel.status(&pair.client), ChannelStatus { open: 4, opening: 0, gone: 0, slots: 16 });
    assert!(channel.poll(&mut pair.client).unwrap(), "and stays open");
    pair.turn(3);
    // Half of them wait in the queues of the first two.
    assert_eq!(answer_kept(), 8);
    pair.turn(3);
    assert_eq!(answer_kept(), 8);
    pair.turn(3);
    assert_eq!(completions(&mut pair.client).len(), 16);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_opened() {
    let mut pair = Pair::with(Config { sessions_max: 3, ..Config::default() }, Config::default());
    assert!(matches!(Channel::open(&mut pair.client, SERVER, 0), Err(ChannelError::NoCalls)));
    let refused = Channel::open(&mut pair.client, SERVER, 25);
    assert!(matches!(refused, Err(ChannelError::Sessions { calls: 25, sessions: 4, limit: 3 })), "{refused:?}");
    assert_eq!(pair.client.sessions(), 0);
    let channel = pair.open(24);
    assert_eq!(channel.sessions().len(), 3);
    assert!(matches!(Channel::open(&mut pair.client, "not an address", 1), Err(ChannelError::Connect(_))));
}

#[test]
fn a_channel_some_of_whose_sessions_cannot_be_opened_leaves_none() {
    // Because of a limit of this endpoint, at once.
    let mut pair = Pair::with(Config { sessions_max: 3, ..Config::default() }, Config::default());
    let one = pair.open(8);
    let refused = Channel::open(&mut pair.client, SERVER, 24);
    assert!(matches!(refused, Err(ChannelError::Connect(ConnectError::Sessions { limit: 3 }))), "{refused:?}");
    pair.turn(5);
    assert_eq!((pair.client.sessions(), pair.sessions_at_server(), events(&mut pair.client).len()), (1, 1, 0));
    one.close(&mut pair.client);
    pair.turn(5);
    assert_eq!((pair.client.sessions(), pair.sessions_at_server(), events(&mut pair.client).len()), (0, 0, 1));
    // Because of a limit of the server, when some sessions are open.
    let mut pair =
        Pair::with(Config::default(), Config { sessions_max: 3, peer_share_percent: 100, ..Config::default() });
    let refused = Channel::open(&mut pair.client, SERVER, 25);
    assert!(matches!(refused, Err(ChannelError::Connect(ConnectError::PeerSessions { limit: 3, .. }))), "{refused:?}");
    pair.turn(5);
    assert_eq!((pair.client.sessions(), pair.sessions_at_server()), (0, 0));
    events(&mut pair.client);
    pair.open(24).close(&mut pair.client);
    // Because of a limit of this endpoint, when the server grants fewer slots than asked for.
    let of_client = Config { sessions_max: 3, ..Config::default() };
    let mut pair = Pair::with(of_client, Config { slots: 4, ..Config::default() });
    let refused = Channel::open(&mut pair.client, SERVER, 16);
    assert!(matches!(refused, Err(ChannelError::Connect(ConnectError::Sessions { limit: 3 }))), "{refused:?}");
    pair.turn(5);
    assert_eq!((pair.client.sessions(), pair.sessions_at_server()), (0, 0));
    assert_eq!(pair.open(12).sessions().len(), 3);
}

#[test]
fn a_server_that_was_started_again_is_reached_by_one_call() {
    for slots in [8, 4] {
        let mut pair = Pair::new();
        let mut channel = pair.open(CALLS);
        (0..CALLS as u64).for_each(|tag| pair.send(&mut channel, DEFER, tag));
        pair.turn(3);
        pair.stop();
        drop(take_kept());
        pair.turn(3);
        // Each call that was in flight reports the loss.
        let completed = completions(&mut pair.client);
        assert_eq!(completed.len(), CALLS);
        for over in completed {
            let error = over.result.unwrap_err();
            assert_eq!((error.cause, error.execution), (Cause::PeerClosed, Execution::MayHaveRun));
        }
        assert_eq!(channel.status(&pair.client), ChannelStatus { gone: 8, ..ChannelStatus::default() });
        let Err(rejected) = pair.try_send(&mut channel, ECHO, 0) else { panic!("there is no session") };
        assert_eq!(rejected.error, EnqueueError::NoSuchSession);
        let first = pair.client.poll_event();
        assert!(matches!(first, Some(SessionEvent::Lost { session, .. }) if session == channel.sessions()[0]));
        // No server is there yet; the next attempt will succeed.
        assert!(matches!(channel.reconnect(&mut pair.client), Err(ChannelError::Connect(_))));
        pair.start(Config { slots, ..Config::default() });
        let opened = channel.reconnect(&mut pair.client).unwrap();
        assert_eq!(opened, CALLS / usize::from(slots));
        assert!(events(&mut pair.client).is_empty(), "the other events were dropped");
        (0..CALLS as u64).for_each(|tag| pair.send(&mut channel, DEFER, tag));
        pair.turn(3);
        assert_eq!(answer_kept(), CALLS);
        pair.turn(3);
        assert!(completions(&mut pair.client).iter().filter(|over| over.result.is_ok()).count() == CALLS);
        assert_eq!(channel.reconnect(&mut pair.client).unwrap(), 0, "all are there");
        channel.close(&mut pair.client);
        pair.turn(5);
        assert_eq!((pair.client.sessions(), pair.sessions_at_server()), (0, 0));
    }
}

/// The server was killed: the client was not told, and its successor is the first to answer.
#[test]
fn a_server_that_died_without_a_word_is_reached_by_one_call_too() {
    let mut pair = Pair::new();
    let mut channel = pair.open(24);
    (0..4).for_each(|tag| pair.send(&mut channel, DEFER, tag));
    pair.turn(3);
    drop(take_kept());
    pair.world.losing(|| pair.server.borrow_mut().take());
    pair.start(Config::default());
    assert_eq!(channel.status(&pair.client).open, 3, "nothing was heard of its end");
    assert_eq!(channel.reconnect(&mut pair.client).unwrap(), 3);
    let completed = completions(&mut pair.client);
    assert!(
        completed.iter().all(|over| over.result.is_err()) && completed.len() == 4,
        "none is lost silently, none sent again"
    );
    assert!(events(&mut pair.client).is_empty());
    (0..24).for_each(|tag| pair.send(&mut channel, ECHO, tag));
    pair.turn(5);
    assert_eq!(completions(&mut pair.client).iter().filter(|over| over.result.is_ok()).count(), 24);
    pair.turn(5);
    assert_eq!((pair.client.sessions(), pair.sessions_at_server()), (3, 3), "the one that asked is closed");
}

/// Otherwise the loss would go unnoticed.
#[test]
fn a_server_that_died_without_a_word_and_is_not_there_again_is_an_error() {
    let mut pair = Pair::new();
    let mut channel = pair.open(24);
    pair.world.losing(|| pair.server.borrow_mut().take());
    let error = channel.reconnect(&mut pair.client).unwrap_err();
    assert!(matches!(error, ChannelError::Connect(_)), "{error}");
    pair.start(Config::default());
    assert_eq!(channel.reconnect(&mut pair.client).unwrap(), 3);
}

/// Closures of other threads take the events, in turns that the reconnect makes.
#[test]
fn a_reconnect_whose_events_somebody_else_takes_ends() {
    fn take_all(handle: RpcHandle, keeps_running: Arc<AtomicBool>) {
        let next_handle = handle.clone();
        let taken = handle.run(move |endpoint: &mut dyn sinew_rpc::Endpoint| {
            while endpoint.poll_event().is_some() {}
            if keeps_running.load(Ordering::Relaxed) {
                take_all(next_handle, keeps_running);
            }
        });
        assert!(taken.is_ok());
    }
    let mut pair = Pair::new();
    let mut channel = pair.open(24);
    let goes_on = Arc::new(AtomicBool::new(true));
    take_all(pair.client.remote_handle(), Arc::clone(&goes_on));
    assert_eq!(channel.reconnect(&mut pair.client).unwrap(), 0);
    goes_on.store(false, Ordering::Relaxed);
    pair.turn(5);
    assert_eq!((pair.client.sessions(), pair.sessions_at_server()), (3, 3));
}

/// A server without room for one more session says nothing about the existing ones.
#[test]
fn a_full_server_loses_no_sessions_by_being_asked() {
    let mut pair =
        Pair::with(Config::default(), Config { sessions_max: 3, peer_share_percent: 100, ..Config::default() });
    let mut channel = pair.open(24);
    assert_eq!(channel.reconnect(&mut pair.client).unwrap(), 0);
    assert_eq!(channel.status(&pair.client).open, 3);
    assert!(events(&mut pair.client).is_empty());
}

/// One session is known to have ended. By opening it again, the client learns that the server knows none of the others.
#[test]
fn sessions_that_turn_out_to_be_gone_while_others_open_are_opened_too() {
    let mut pair = Pair::new();
    let mut channel = pair.open(24);
    let sessions = channel.sessions().to_vec();
    pair.client.disconnect(sessions[1]);
    pair.turn(5);
    // The server vanishes without telling the client.
    pair.world.losing(|| pair.server.borrow_mut().take());
    pair.start(Config::default());
    assert_eq!(channel.status(&pair.client), ChannelStatus { open: 2, opening: 0, gone: 1, slots: 16 });
    (0..4).for_each(|tag| pair.send(&mut channel, DEFER, tag));
    assert_eq!(channel.reconnect(&mut pair.client).unwrap(), 3);
    let completed = completions(&mut pair.client);
    assert!(
        completed.iter().all(|over| over.result.is_err()) && completed.len() == 4,
        "none is lost silently, none sent again"
    );
    assert_eq!(channel.status(&pair.client), ChannelStatus { open: 3, opening: 0, gone: 0, slots: 24 });
    (0..24).for_each(|tag| pair.send(&mut channel, DEFER, tag));
    pair.turn(3);
    assert_eq!(answer_kept(), 24);
}

#[test]
fn calls_go_over_the_sessions_that_are_left() {
    let mut pair = Pair::new();
    let mut channel = pair.open(24);
    pair.client.disconnect(channel.sessions()[1]);
    (0..20).for_each(|tag| pair.send(&mut channel, ECHO, tag));
    pair.turn(5);
    let completed = completions(&mut pair.client);
    assert!(completed.iter().all(|over| over.result.is_ok()));
    assert_eq!(by_session(&completed), [10, 10]);
    let gone = channel.poll(&mut pair.client);
    assert!(matches!(gone, Err(ChannelError::Gone { gone: 1, .. })), "{gone:?}");
    // The same without waiting.
    assert_eq!(channel.begin_reconnect(&mut pair.client).unwrap(), 1);
    assert!(!channel.poll(&mut pair.client).unwrap());
    pair.turn(5);
    assert!(channel.poll(&mut pair.client).unwrap());
}

#[test]
fn a_channel_of_a_lane_is_heard_of_there_and_ends_with_it() {
    let mut pair = Pair::new();
    let lane = pair.client.open_lane();
    let options = ConnectOptions::new().lane(lane);
    let mut channel = Channel::open_with(&mut pair.client, SERVER, 16, options).unwrap();
    pair.send(&mut channel, ECHO, CallOptions::tag(1).lane(lane));
    pair.send(&mut channel, ECHO, 2);
    pair.turn(3);
    assert_eq!(completions(&mut pair.client).len(), 1);
    assert_eq!(pair.client.poll_lane(lane).map(|over| over.tag), Some(1));
    pair.client.disconnect(channel.sessions()[0]);
    pair.turn(3);
    assert!(matches!(pair.client.poll_lane_event(lane), Some(SessionEvent::Disconnected(_))));
    assert_eq!(channel.reconnect(&mut pair.client).unwrap(), 1);
    assert!(pair.client.poll_lane_event(lane).is_none() && pair.client.poll_lane_event(LaneId::MAIN).is_none());
    assert!(pair.client.close_lane(lane));
    pair.turn(5);
    assert_eq!((pair.client.sessions(), pair.sessions_at_server()), (0, 0));
    assert!(matches!(channel.reconnect(&mut pair.client), Err(ChannelError::Connect(ConnectError::Lane(_)))));
}

#[test]
fn a_session_says_how_many_slots_it_has_and_how_many_are_free() {
    let mut pair = Pair::with(Config::default(), Config { slots: 4, ..Config::default() });
    let session = pair.client.begin_connect(&SERVER.parse().unwrap()).unwrap();
    let slots = |pair: &Pair| pair.client.session_slots(session).map(|slots| (slots.free, slots.all));
    assert_eq!(slots(&pair), Some((0, 0)), "it is being opened");
    pair.turn(5);
    assert_eq!(slots(&pair), Some((4, 4)));
    for used in 1..=5u16 {
        send(&mut pair.client, session, DEFER, b"kept", 0);
        assert_eq!(slots(&pair), Some((4 - used.min(4), 4)), "{used} calls");
    }
    pair.turn(3);
    assert_eq!(answer_kept(), 4);
    pair.turn(3);
    assert_eq!(slots(&pair), Some((3, 4)), "the fifth has one of them");
    pair.client.disconnect(session);
    assert_eq!(slots(&pair), None);
    pair.turn(3);
    assert_eq!(slots(&pair), None);
}

#[test]
fn an_event_is_taken_out_of_its_turn_and_others_are_left() {
    let mut pair = Pair::new();
    let address = SERVER.parse().unwrap();
    let [first, second] = [(), ()].map(|()| pair.client.begin_connect(&address).unwrap());
    pair.turn(5);
    let lane = pair.client.open_lane();
    assert!(pair.client.take_session_event(lane, second).is_none());
    assert!(
        matches!(pair.client.take_session_event(LaneId::MAIN, second), Some(SessionEvent::Connected(id)) if id == second)
    );
    assert!(pair.client.take_session_event(LaneId::MAIN, second).is_none());
    assert!(matches!(&events(&mut pair.client)[..], [SessionEvent::Connected(id)] if *id == first));
}
