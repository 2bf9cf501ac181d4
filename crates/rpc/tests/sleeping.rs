//! Endpoints that a thread sleeps on: what wakes the thread, and until when it sleeps.
#![cfg(all(test, not(miri)))]

mod common;

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use common::handmade::{HandClient, OFFER};
use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::readiness::{Alarm, no_descriptor};
use sinew_fabric::{
    Address, Armed, Caps, Clock, Descriptor, PacketPort, Peer, PollPolicy, PortError, PortEvent, PortStats, Readiness,
    SeededGenerator, Waker,
};
use sinew_mem::Arena;
use sinew_rpc::{CallId, CallOptions, Channel, Completion, Config, LaneId, Rpc, SessionEvent, SessionId};
use sinew_wire::{Header, Kind};

/// Counts of what was done to a port.
#[derive(Default)]
struct Counts {
    armed: Cell<u32>,
    disarmed: Cell<u32>,
    /// Wakers that the endpoint itself asked for.
    woken: Cell<u32>,
    /// Number of times that the port may still be armed before it fails.
    left: Cell<Option<u32>>,
    /// Longest sleep that the port allows, in ns.
    nap_ns: Cell<Option<u64>>,
}

/// A port whose waker makes a descriptor readable. Arriving packets do not.
struct Wakeable {
    port: TestPort,
    alarm: Alarm,
    counts: Rc<Counts>,
}

impl Readiness for Wakeable {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.alarm.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.counts.armed.set(self.counts.armed.get() + 1);
        if let Some(left) = self.counts.left.get() {
            let left = left.checked_sub(1).ok_or_else(|| io::Error::other("on purpose"))?;
            self.counts.left.set(Some(left));
        }
        let nap = Armed::Sleep { until_ns: self.counts.nap_ns.get().map(|nap_ns| now_ns + nap_ns) };
        Ok(if self.alarm.set() { nap } else { Armed::Ready })
    }

    fn disarm(&mut self) -> bool {
        self.counts.disarmed.set(self.counts.disarmed.get() + 1);
        self.alarm.clear()
    }
}

impl PacketPort for Wakeable {
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
        self.counts.woken.set(self.counts.woken.get() + 1);
        self.alarm.waker()
    }

    fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

/// A client that can be slept on, with a session at a server.
struct Sleepers {
    world: World,
    client: Endpoint<Wakeable>,
    server: Endpoint,
    session: SessionId,
    counts: Rc<Counts>,
    /// A call without an answer, and a lane, if a test has them.
    kept: Option<CallId>,
    lane: Option<LaneId>,
}

impl Sleepers {
    fn with(config: Config) -> Self {
        let world = World::new();
        let mut server = world.server(Config::default(), LoopbackConfig::default());
        let counts = Rc::new(Counts::default());
        let nexus = server_nexus(std::sync::Arc::clone(&world.pool), config);
        let port = world.port("client", LoopbackConfig::default());
        let port = Wakeable { port, alarm: Alarm::new().unwrap(), counts: Rc::clone(&counts) };
        let mut client = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(2)));
        let session = connect(&world, &mut client, &mut server);
        counts.woken.set(0);
        Self { world, client, server, session, counts, kept: None, lane: None }
    }

    fn new() -> Self {
        Self::with(Config::default())
    }

    fn is_readable(&self) -> bool {
        self.client.descriptor().unwrap().wait(Some(0)).unwrap()
    }

    /// Arms the client, which has nothing to do.
    fn arm(&mut self) {
        assert_ne!(self.client.arm().unwrap(), Armed::Ready);
        assert!(!self.is_readable());
    }

    /// Arms the client once it has nothing to do and has reported its wake-ups.
    fn doze(&mut self) {
        while self.client.arm().unwrap() == Armed::Ready {
            self.client.turn();
        }
        assert!(!self.is_readable());
    }

    fn turns_disarm(&mut self) {
        let disarmed = self.counts.disarmed.get();
        self.client.turn();
        assert_eq!(self.counts.disarmed.get(), disarmed + 1);
        assert!(!self.is_readable());
        self.client.turn();
        assert_eq!(self.counts.disarmed.get(), disarmed + 1, "once is enough");
    }
}

#[test]
fn a_turn_disarms_and_costs_the_port_nothing_where_nobody_sleeps() {
    let mut it = Sleepers::new();
    (0..100).for_each(|_| _ = it.client.turn());
    assert_eq!((it.counts.armed.get(), it.counts.disarmed.get()), (0, 0));
    it.arm();
    it.turns_disarm();
    it.arm();
    assert!(!it.client.disarm() && !it.client.disarm());
    assert_eq!((it.counts.armed.get(), it.counts.disarmed.get()), (2, 2));
}

#[test]
fn whatever_gives_an_endpoint_something_to_do_wakes_who_sleeps_on_it() {
    type Act = fn(&mut Sleepers);
    let acts: [(&str, Act); 6] = [
        ("a call", |it| _ = send(&mut it.client, it.session, ECHO, b"wake", 1)),
        ("a call that is cancelled", |it| assert!(it.client.cancel(it.kept.unwrap()))),
        ("a lane that is closed", |it| assert!(it.client.close_lane(it.lane.unwrap()))),
        ("a session that is begun", |it| _ = it.client.begin_connect(&it.server.address()).unwrap()),
        ("a waker", |it| it.client.waker().wake()),
        ("a session that is ended", |it| assert!(it.client.disconnect(it.session))),
    ];
    for (what, act) in acts {
        let mut it = Sleepers::new();
        // A call that is in flight, and stays so.
        let kept = send(&mut it.client, it.session, DEFER, b"kept", 7);
        (it.kept, it.lane) = (Some(kept), Some(it.client.open_lane()));
        settle(&mut it.client, &mut it.server);
        while it.client.arm().unwrap() == Armed::Ready {
            it.client.turn();
        }
        assert!(!it.is_readable());
        act(&mut it);
        assert!(it.is_readable(), "{what} wakes nobody");
        it.turns_disarm();
        take_kept();
    }
}

/// An answer from the endpoint's own thread wakes just as one from another thread does.
#[test]
fn an_answer_to_a_kept_call_wakes_who_sleeps_on_its_endpoint() {
    let mut it = Sleepers::new();
    let back = connect(&it.world, &mut it.server, &mut it.client);
    send(&mut it.server, back, DEFER, b"kept", 1);
    settle(&mut it.client, &mut it.server);
    let kept = take_kept().remove(0);
    it.arm();
    it.client.reply(kept, b"at last");
    assert!(it.is_readable());
    it.turns_disarm();
    it.server.turn();
    assert_eq!(completions(&mut it.server).len(), 1);
}

/// The endpoint may have been awake when the handle was made. A call that is cancelled wakes it too.
#[test]
fn what_another_thread_hands_over_wakes_who_sleeps_on_the_endpoint() {
    let mut it = Sleepers::new();
    let handle = it.client.remote_handle();
    it.client.turn();
    it.doze();
    assert!(!it.is_readable(), "a handle alone is nothing to do");
    std::thread::scope(|threads| _ = threads.spawn(|| drop(handle.run(|_| ()).unwrap())));
    assert!(it.is_readable());
    it.turns_disarm();
    it.doze();
    let session = it.session;
    let call = std::thread::scope(|threads| {
        threads.spawn(|| handle.call(session, DEFER, b"kept", 0).unwrap()).join().unwrap()
    });
    assert!(it.is_readable());
    settle(&mut it.client, &mut it.server);
    it.doze();
    drop(call);
    assert!(it.is_readable(), "the server is to hear that nobody waits");
    settle(&mut it.client, &mut it.server);
    assert!(take_kept().iter().all(|call| call.is_abandoned()));
    it.doze();
}

#[test]
fn who_was_woken_for_a_closure_is_not_woken_for_further_ones_and_sleeps_through_none() {
    let mut it = Sleepers::new();
    let handle = it.client.remote_handle();
    for _ in 0..3 {
        drop(handle.run(|_| ()).unwrap());
    }
    assert_eq!(it.client.arm().unwrap(), Armed::Ready, "they came while nobody slept");
    it.client.turn();
    // The wake-up that came with them is reported, as any is.
    it.doze();
    it.client.turn();
    // What a closure's own turn leaves in the inbox is there for the next turn.
    let inner = handle.clone();
    let outer = handle.run(move |endpoint| {
        drop(inner.run(|_| ()).unwrap());
        endpoint.turn();
    });
    drop(outer.unwrap());
    it.client.turn();
    assert_eq!(it.client.arm().unwrap(), Armed::Ready);
}

/// The session ends outside a turn, so nothing tells the thread that waits.
#[test]
fn an_endpoint_does_not_sleep_on_the_ends_of_calls_that_other_threads_wait_for() {
    let mut it = Sleepers::new();
    let handle = it.client.remote_handle();
    let opening = it.client.begin_connect(&it.server.address()).unwrap();
    let mut call = handle.call(opening, ECHO, b"waits for its session", 0).unwrap();
    it.client.turn();
    it.doze();
    it.client.disconnect(opening);
    assert!(it.client.poll_event().is_some());
    it.client.disarm();
    for _ in 0..2 {
        assert!(call.try_take().is_none());
        assert_eq!(it.client.arm().unwrap(), Armed::Ready);
    }
    it.client.turn();
    assert!(call.try_take().unwrap().is_err());
    it.doze();
}

/// Waking would cost a system call for each call.
#[test]
fn who_was_woken_for_a_call_is_not_woken_for_further_ones() {
    let mut it = Sleepers::new();
    for round in 0..2 {
        it.arm();
        for tag in 0..3 {
            send(&mut it.client, it.session, ECHO, b"wake", tag);
        }
        assert_eq!(it.counts.woken.get(), round + 1);
        assert!(it.is_readable());
        assert_eq!(run(&it.world, &mut it.client, &mut it.server, 3).len(), 3);
        assert_eq!(it.client.arm().unwrap(), Armed::Ready, "a turn ended the wake-up");
    }
}

#[test]
fn paced_endpoints_wake_who_sleeps_on_them_too() {
    let congestion = Some(sinew_rpc::Congestion::timely(25.0));
    let mut it = Sleepers::with(Config { congestion, ..Config::default() });
    for round in 0..3 {
        while it.client.arm().unwrap() == Armed::Ready {
            it.client.turn();
        }
        send(&mut it.client, it.session, ECHO, b"paced", round);
        assert!(it.is_readable());
        assert_eq!(run(&it.world, &mut it.client, &mut it.server, 1).len(), 1);
    }
}

#[test]
fn what_is_there_already_is_not_slept_on() {
    let mut it = Sleepers::new();
    send(&mut it.client, it.session, ECHO, b"to be sent", 1);
    assert_eq!(it.client.arm().unwrap(), Armed::Ready);
    settle(&mut it.client, &mut it.server);
    for _ in 0..2 {
        assert_eq!(it.client.arm().unwrap(), Armed::Ready, "a completion waits to be taken");
    }
    assert!(it.client.poll_completion().is_some());
    it.arm();
    assert_eq!(it.counts.armed.get(), 1, "what is there was seen without a system call");
}

/// An event loop may hear only of changes.
#[test]
fn an_endpoint_whose_descriptor_is_readable_already_is_ready() {
    let mut it = Sleepers::new();
    let waiting = Alarm::new().unwrap();
    it.client.port().alarm.watch(waiting.descriptor()).unwrap();
    it.arm();
    it.client.turn();
    assert!(waiting.set());
    waiting.waker().wake();
    for _ in 0..2 {
        assert_eq!(it.client.arm().unwrap(), Armed::Ready);
        it.client.turn();
    }
    assert_eq!(it.counts.armed.get(), it.counts.disarmed.get());
    waiting.clear();
    it.arm();
}

/// A loop may turn before it handles what a waker announces, and must not lose the wake-up by that.
#[test]
fn a_wake_up_that_a_turn_ended_is_told_by_the_next_arming() {
    let mut it = Sleepers::new();
    it.arm();
    it.client.waker().wake();
    it.client.turn();
    assert_eq!(it.client.arm().unwrap(), Armed::Ready);
    it.arm();
    it.client.waker().wake();
    assert!(it.client.disarm(), "disarming reports it");
    it.arm();
    it.client.waker().wake();
    it.client.turn();
    assert!(!it.client.wait(Some(u64::MAX)).unwrap(), "the wake-up is not slept through");
}

/// A loop may wait for something of its own meanwhile, and must not lose a wake-up by that either.
#[test]
fn a_wake_up_that_ended_a_sleep_within_a_call_or_a_connect_is_told_by_the_next_arming() {
    for connects in [false, true] {
        let mut it = Sleepers::with(Config { poller: PollPolicy::SLEEP, ..Config::default() });
        it.client.turn();
        it.client.waker().wake();
        // The waker ends the first attempt to sleep; the second fails.
        it.counts.left.set(Some(1));
        if connects {
            it.client.connect("loopback://server").unwrap_err();
        } else {
            it.client.call(it.session, ECHO, b"nobody turns the server").unwrap_err();
        }
        it.counts.left.set(None);
        while it.client.turn() {}
        assert_eq!((it.client.poll_completion().is_none(), events(&mut it.client).len()), (true, 0));
        assert_eq!(it.client.arm().unwrap(), Armed::Ready, "connects: {connects}");
        it.arm();
    }
}

/// The loop may belong to a library, whose caller knows nothing of its sleeps.
#[test]
fn a_wake_up_that_ended_a_sleep_within_a_librarys_loop_is_told_by_the_next_arming() {
    type Waits = fn(&mut Endpoint<Wakeable>);
    let libraries: [(&str, Waits); 2] = [
        ("a channel", |client| _ = Channel::open(client, "loopback://server", 1).unwrap_err()),
        ("a loop", |client| _ = sinew_rpc::Endpoint::run_until(client, |_| false).unwrap_err()),
    ];
    for (what, waits) in libraries {
        let mut it = Sleepers::with(Config { poller: PollPolicy::SLEEP, ..Config::default() });
        it.client.turn();
        it.client.waker().wake();
        // The waker ends the first attempt to sleep; the second fails.
        it.counts.left.set(Some(1));
        waits(&mut it.client);
        it.counts.left.set(None);
        settle(&mut it.client, &mut it.server);
        events(&mut it.client);
        assert_eq!(it.client.arm().unwrap(), Armed::Ready, "{what}");
        it.arm();
    }
}

#[test]
fn an_event_that_nobody_takes_keeps_nobody_awake_for_longer_than_once() {
    let mut it = Sleepers::new();
    for round in 0..3 {
        it.client.begin_connect(&it.server.address()).unwrap();
        settle(&mut it.client, &mut it.server);
        assert_eq!(it.client.arm().unwrap(), Armed::Ready, "round {round}: there is an event");
        it.arm();
        it.client.turn();
    }
    assert!(it.client.poll_event().is_some());
    assert_eq!(it.client.arm().unwrap(), Armed::Ready, "somebody takes them, and two are left");
    it.arm();
    it.client.turn();
    it.client.begin_connect(&it.server.address()).unwrap();
    settle(&mut it.client, &mut it.server);
    assert_eq!(it.client.arm().unwrap(), Armed::Ready, "another came");
}

#[test]
fn an_event_that_was_taken_as_the_main_lanes_hides_no_later_one() {
    let mut it = Sleepers::new();
    for round in 0..2 {
        it.client.begin_connect(&it.server.address()).unwrap();
        settle(&mut it.client, &mut it.server);
        assert_eq!(it.client.arm().unwrap(), Armed::Ready, "round {round}: there is an event");
        assert!(it.client.poll_lane_event(LaneId::MAIN).is_some());
    }
}

/// Its user took everything without asking which lanes got something, or has closed the lane.
#[test]
fn a_lane_that_has_nothing_left_keeps_nobody_awake() {
    let mut it = Sleepers::new();
    let lanes = [it.client.open_lane(), it.client.open_lane()];
    for lane in lanes {
        send(&mut it.client, it.session, ECHO, b"x", CallOptions::tag(0).lane(lane));
    }
    settle(&mut it.client, &mut it.server);
    assert!(it.client.poll_lane(lanes[0]).is_some());
    assert_eq!(it.client.arm().unwrap(), Armed::Ready, "the other has something");
    assert!(it.client.close_lane(lanes[1]));
    it.arm();
    it.client.turn();
    // What comes later is reported as usual.
    send(&mut it.client, it.session, ECHO, b"x", CallOptions::tag(0).lane(lanes[0]));
    settle(&mut it.client, &mut it.server);
    assert_eq!(it.client.arm().unwrap(), Armed::Ready);
    assert_eq!((it.client.poll_ready_lane(), it.client.poll_ready_lane()), (Some(lanes[0]), None));
}

/// Another thread ends the rest. If the time-out were mistaken for a time on the clock, which passed long ago, the rest
/// would end before that.
#[test]
fn resting_beside_something_lasts_for_as_long_as_it_may() {
    struct Beside(Alarm);
    impl Readiness for Beside {
        fn descriptor(&self) -> Option<Descriptor> {
            Readiness::descriptor(&self.0)
        }

        fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
            let waker = self.0.waker();
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                waker.wake();
            });
            self.0.arm(now_ns)
        }

        fn disarm(&mut self) -> bool {
            assert!(self.0.disarm(), "it has slept until it was woken");
            true
        }
    }
    let mut it = Sleepers::with(Config { poller: PollPolicy::SLEEP, ..Config::default() });
    // Makes sure that no timer of its own is due.
    it.client.disconnect(it.session);
    settle(&mut it.client, &mut it.server);
    events(&mut it.client);
    const TIMEOUT_NS: u64 = 1_000_000_000_000;
    it.world.clock.advance(2 * TIMEOUT_NS);
    while it.client.turn() {}
    while it.client.arm().unwrap() == Armed::Ready {
        it.client.turn();
    }
    it.client.turn();
    let mut beside = Beside(Alarm::new().unwrap());
    it.client.rest_beside(false, &mut [&mut beside], Some(TIMEOUT_NS)).unwrap();
}

#[test]
fn an_armed_endpoint_wants_its_next_turn_when_a_timer_is_due_or_its_port_naps() {
    let mut it = Sleepers::new();
    let until = |it: &mut Sleepers| match it.client.arm().unwrap() {
        Armed::Sleep { until_ns: Some(until_ns) } => until_ns,
        other => panic!("{other:?}"),
    };
    let idle_ns = until(&mut it);
    assert!(idle_ns > it.client.now_ns());
    it.counts.nap_ns.set(Some(10));
    let now_ns = it.client.now_ns();
    assert_eq!(until(&mut it), now_ns + 10);
    it.counts.nap_ns.set(None);
    assert_eq!(until(&mut it), idle_ns);
    // Beside other things, the deadline is on the caller's clock.
    let left_ns = idle_ns - it.client.now_ns();
    let armed = Readiness::arm(&mut it.client, 77).unwrap();
    assert_eq!(armed, Armed::Sleep { until_ns: Some(77 + left_ns) });
    it.world.clock.advance(left_ns);
    assert_eq!(it.client.arm().unwrap(), Armed::Ready, "it is due");
    it.client.turn();
    assert!(until(&mut it) > it.client.now_ns());
    // An endpoint without sessions waits for nothing.
    it.client.disconnect(it.session);
    settle(&mut it.client, &mut it.server);
    while it.client.poll_event().is_some() {}
    while it.client.arm().unwrap() == Armed::Ready {
        it.client.turn();
    }
    assert_eq!(it.client.arm().unwrap(), Armed::Sleep { until_ns: None });
}

/// Number of times that a sleeping endpoint was woken.
#[derive(Clone, Copy, Debug, Default)]
struct WakeUps {
    by_time: u64,
    by_news: u64,
}

/// A client and a server that sleep whenever they can.
struct BothAsleep {
    world: World,
    ends: [Endpoint<Wakeable>; 2],
    /// Their names on the network.
    names: [&'static str; 2],
    session: SessionId,
    /// The client's finished calls.
    over: Vec<Completion>,
    /// Wake-ups of the client, and of the server.
    wake_ups: [WakeUps; 2],
}

impl BothAsleep {
    fn with(config: &Config) -> Self {
        let world = World::new();
        let names = ["client", "server"];
        let [mut client, mut server] = names.map(|name| {
            let nexus = server_nexus(std::sync::Arc::clone(&world.pool), config.clone());
            let port = world.port(name, LoopbackConfig::default());
            let port = Wakeable { port, alarm: Alarm::new().unwrap(), counts: Rc::default() };
            Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(name.len() as u64)))
        });
        let session = connect(&world, &mut client, &mut server);
        settle(&mut client, &mut server);
        world.network.start_tap();
        Self { world, ends: [client, server], names, session, over: Vec::new(), wake_ups: Default::default() }
    }

    /// Turns each endpoint that was sent something, until none is. Returns the kinds of the packets sent.
    fn deliver(&mut self) -> Vec<Kind> {
        let mut all = Vec::new();
        loop {
            let sent = self.world.network.take_tapped();
            if sent.is_empty() {
                return all;
            }
            for (at, name) in self.names.iter().enumerate() {
                if sent.iter().any(|packet| Some(packet.to) == self.world.network.peer(name)) {
                    self.ends[at].turn();
                    self.wake_ups[at].by_news += 1;
                }
            }
            all.extend(sent.iter().filter_map(|packet| Header::read(&packet.bytes).ok()).map(|header| header.kind));
        }
    }

    /// Lets time pass, during which the endpoints wake when they want to or are sent something. Returns the kinds of
    /// the packets sent.
    fn sleep(&mut self, ns: u64) -> Vec<Kind> {
        let end_ns = self.world.clock.now_ns() + ns;
        let mut sent = self.deliver();
        loop {
            self.over.extend(completions(&mut self.ends[0]));
            let until_ns = self.ends.each_mut().map(|end| {
                while end.arm().unwrap() == Armed::Ready {
                    end.turn();
                }
                match end.arm().unwrap() {
                    Armed::Sleep { until_ns } => until_ns.unwrap_or(u64::MAX),
                    Armed::Ready => panic!("it had nothing to do a moment ago"),
                }
            });
            let next_ns = until_ns[0].min(until_ns[1]);
            if next_ns > end_ns {
                self.world.clock.advance_to(end_ns);
                return sent;
            }
            self.world.clock.advance_to(next_ns);
            for (at, until_ns) in until_ns.into_iter().enumerate() {
                if until_ns <= next_ns {
                    self.ends[at].turn();
                    self.wake_ups[at].by_time += 1;
                }
            }
            sent.extend(self.deliver());
        }
    }

    /// The client's next event.
    fn event(&mut self) -> Option<SessionEvent> {
        self.ends[0].poll_event()
    }
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// The wake-ups are for its own pings, and for its peer's.
#[test]
fn an_endpoint_with_idle_sessions_is_woken_a_few_times_a_second() {
    const SECONDS: u64 = 10;
    let config = Config::default();
    let mut it = BothAsleep::with(&config);
    // Lets the work that the opening left come to an end.
    it.sleep(2 * SECOND);
    it.wake_ups = Default::default();
    let sent = it.sleep(SECONDS * SECOND);
    let questions = SECONDS * SECOND / config.probe_interval_ns;
    for WakeUps { by_time, by_news } in it.wake_ups {
        assert!(by_time <= questions + 2 && by_news <= 2 * questions + 2, "{:?}", it.wake_ups);
    }
    let pings = sent.iter().filter(|kind| **kind == Kind::Ping).count() as u64;
    assert!((questions * 9 / 10..=2 * questions + 2).contains(&pings), "{pings} questions");
    assert!(sent.iter().all(|kind| [Kind::Ping, Kind::Pong].contains(kind)), "{sent:?}");
    assert_eq!((it.ends[0].sessions(), it.ends[1].sessions()), (1, 1));
}

/// Packets sent after the sleep are not late at once, and no peer counts as silent during it.
#[test]
fn what_is_done_after_a_long_sleep_begins_then() {
    let config = Config { probe_interval_ns: 4 * SECOND, ..Config::default() };
    let mut it = BothAsleep::with(&config);
    for (round, len) in [8, 100_000].into_iter().cycle().take(6).enumerate() {
        let sent = it.sleep(3 * SECOND);
        assert!(sent.len() < 10, "round {round}: {sent:?}");
        send(&mut it.ends[0], it.session, LONG, &(len as u32).to_le_bytes().repeat(len / 4), round as u64);
        it.ends[0].turn();
        it.sleep(50 * MS);
        let over = it.over.pop().expect("it is over");
        assert!(over.result.is_ok() && over.response.len() == len, "{:?}", over.result);
    }
    assert_eq!(it.ends[0].stats().retransmissions, 0);
    it.sleep(3 * SECOND);
    assert!(it.ends[0].disconnect(it.session));
    it.ends[0].turn();
    let sent = it.sleep(SECOND);
    assert_eq!(sent.iter().filter(|kind| **kind == Kind::Disconnect).count(), 1);
    assert!(matches!(it.event(), Some(SessionEvent::Disconnected(id)) if id == it.session));
}

#[test]
fn an_endpoint_that_sleeps_asks_a_silent_peer_fifty_times_and_gives_it_up_in_time() {
    let config = Config::default();
    let mut it = BothAsleep::with(&config);
    it.sleep(SECOND);
    let [client, _] = &mut it.ends;
    it.world.network.set_link("client", "server", false);
    let (since_ns, mut asked, mut wake_ups) = (client.now_ns(), 0, 0);
    let lost_ns = loop {
        while client.arm().unwrap() == Armed::Ready {
            client.turn();
        }
        let Armed::Sleep { until_ns: Some(until_ns) } = client.arm().unwrap() else { panic!("it has a session") };
        it.world.clock.advance_to(until_ns);
        client.turn();
        wake_ups += 1;
        asked += kinds(&it.world.network).into_iter().filter(|kind| *kind == Kind::Ping).count();
        if let Some(event) = client.poll_event() {
            assert!(matches!(event, SessionEvent::Lost { cause: sinew_rpc::Cause::PeerSilent, .. }), "{event:?}");
            break client.now_ns() - since_ns;
        }
        assert!(client.now_ns() < since_ns + 60 * SECOND, "it is never given up");
    };
    // The last sign of life came at most one interval and one check before.
    let silent_ns = config.peer_timeout_ns - config.probe_interval_ns - 20 * MS..=config.peer_timeout_ns + 20 * MS;
    assert!(silent_ns.contains(&lost_ns), "after {lost_ns} ns");
    assert!((45..70).contains(&asked), "asked {asked} times");
    assert!(wake_ups < 2 * asked, "{wake_ups} wake-ups to ask {asked} times");
}

/// Like an endpoint that was stopped, it did not listen meanwhile.
#[test]
fn a_sleeper_that_wakes_long_after_its_time_gives_nobody_up() {
    let mut it = BothAsleep::with(&Config::default());
    for _ in 0..3 {
        it.sleep(SECOND);
        for end in &mut it.ends {
            while end.arm().unwrap() == Armed::Ready {
                end.turn();
            }
        }
        it.world.clock.advance(30 * SECOND);
        // The client turns before the server does.
        it.ends[0].turn();
        it.sleep(SECOND);
        assert_eq!((it.ends[0].sessions(), it.ends[1].sessions()), (1, 1));
    }
    assert!(it.event().is_none());
}

/// Connects are repeated in time: the first leaves at once, the others at every retry interval.
#[test]
fn an_endpoint_that_sleeps_repeats_a_connect_that_is_not_answered() {
    let config = Config::default();
    let mut it = BothAsleep::with(&config);
    it.sleep(SECOND);
    it.world.network.set_link("client", "server", false);
    let to = it.ends[1].address();
    it.ends[0].begin_connect(&to).unwrap();
    it.ends[0].turn();
    let repeats = 15;
    let sent = it.sleep(config.connect_retry_ns * repeats + MS);
    // From the second on, each is also sent in the previous version of the protocol.
    let connects = sent.iter().filter(|kind| **kind == Kind::Connect).count() as u64;
    assert_eq!(connects, repeats + 1);
    it.world.network.set_link("client", "server", true);
    it.sleep(2 * config.connect_retry_ns);
    assert!(matches!(it.event(), Some(SessionEvent::Connected(_))));
    assert_eq!((it.ends[0].sessions(), it.ends[1].sessions()), (2, 2));
}

/// The accept is repeated once a second until the session is used, and costs a wake-up each time.
#[test]
fn an_endpoint_that_sleeps_reminds_who_has_not_used_a_session() {
    let config = Config { peer_timeout_ns: 60 * SECOND, probe_interval_ns: 30 * SECOND, ..Config::default() };
    let mut it = BothAsleep::with(&config);
    it.sleep(SECOND);
    let server = &mut it.ends[1];
    let hand = HandClient::connected(&it.world, server, 1, OFFER);
    it.world.network.take_tapped();
    let end_ns = server.now_ns() + 10 * SECOND + MS;
    let (mut accepts, mut wake_ups) = (0, 0);
    while server.now_ns() < end_ns {
        while server.arm().unwrap() == Armed::Ready {
            server.turn();
        }
        let Armed::Sleep { until_ns: Some(until_ns) } = server.arm().unwrap() else { panic!("it has sessions") };
        it.world.clock.advance_to(until_ns.min(end_ns));
        server.turn();
        wake_ups += 1;
        let sent = it.world.network.take_tapped();
        accepts += sent.iter().filter(|packet| packet.to == hand.peer).count();
    }
    assert_eq!(accepts, 10);
    assert!(wake_ups <= 13, "{wake_ups} wake-ups");
}

#[test]
fn a_descriptor_of_an_endpoint_that_is_gone_does_no_harm() {
    let mut it = Sleepers::new();
    let (descriptor, waker) = (it.client.descriptor().unwrap(), it.client.waker());
    it.arm();
    drop(it.client);
    waker.wake();
    descriptor.wait(Some(0)).unwrap();
}

#[test]
fn an_endpoint_on_a_port_without_a_descriptor_says_so() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    if client.descriptor().is_some() {
        // Other fabrics may carry the packets, on ports that have a descriptor.
        return;
    }
    assert_eq!(client.arm().unwrap_err().kind(), no_descriptor().kind());
    assert!(!client.disarm());
    // It sleeps in its port's own way.
    assert!(client.wait(Some(5)).unwrap());
}
