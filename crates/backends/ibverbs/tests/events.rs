//! Sleeping until something completes.

mod common;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{Pair, Side, assert_ok, config, device};
use sinew_fabric::verbs::{
    CompletionQueue, Device, Operation, ProtectionDomain, QpAddress, QpState, QueuePair, Request, Source, Transport,
};

const LONG_NS: u64 = 20_000_000_000;

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    for timeout_ns in [0, 50_000_000] {
        let began = Instant::now();
        pair.b.receives.wait(Some(timeout_ns)).unwrap();
        assert!(began.elapsed() >= Duration::from_nanos(timeout_ns));
    }
}

#[test]
fn what_came_before_is_not_slept_through() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    // Each round leaves the queue armed, or notified, in a different way.
    for round in 0..20 {
        let buffer = pair.empty(8);
        pair.b.qp.post_buffer(round, buffer).unwrap();
        if round % 3 == 0 {
            pair.b.receives.wait(Some(1_000_000)).unwrap();
        }
        pair.a.qp.post(Request::new(round, pair.send(Source::Inline(b"x")))).unwrap();
        assert_ok(&pair.a.sent());
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let began = Instant::now();
        assert_eq!(pair.b.received().id, round);
        assert!(began.elapsed() < Duration::from_secs(10), "round {round}");
    }
}

#[test]
fn what_polling_took_wakes_nobody_later() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let buffer = pair.empty(8);
    pair.b.qp.post_buffer(0, buffer).unwrap();
    pair.b.receives.wait(Some(1_000_000)).unwrap();
    pair.a.qp.post(Request::new(0, pair.send(Source::Inline(b"x")))).unwrap();
    assert_ok(&pair.a.sent());
    let mut completions = Vec::new();
    while pair.b.receives.poll(&mut completions, 8) == 0 {
        std::thread::yield_now();
    }
    // Its notification has arrived by now, and means nothing any more.
    std::thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    pair.b.receives.wait(Some(100_000_000)).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(100));
}

#[test]
fn a_waker_ends_a_wait_from_another_thread_or_the_next_one() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let waker = pair.b.receives.waker();
    waker.wake();
    let began = Instant::now();
    pair.b.receives.wait(Some(LONG_NS)).unwrap();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        waker.wake();
    });
    pair.b.receives.wait(Some(LONG_NS)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    thread.join().unwrap();
}

#[test]
fn two_threads_that_sleep_lose_no_message() {
    let Some(device) = device() else { return };
    let domain = device.protection_domain().unwrap();
    let rounds = 300;
    let (to_left, from_right) = mpsc::channel::<QpAddress>();
    let (to_right, from_left) = mpsc::channel::<QpAddress>();
    // One side of a game of ping-pong, which sleeps until each message.
    let play = |serves: bool, tell: mpsc::Sender<QpAddress>, hear: mpsc::Receiver<QpAddress>| {
        let arena = domain.arena(1 << 20).unwrap();
        let mut side = Side::new(&domain, &config(Transport::Rc));
        let post = |side: &mut Side| side.qp.post_buffer(0, arena.alloc(8, 8).unwrap()).unwrap();
        tell.send(side.qp.address()).unwrap();
        side.qp.modify(QpState::Init, None).unwrap();
        post(&mut side);
        let remote = hear.recv().unwrap();
        side.qp.modify(QpState::ReadyToReceive, Some(&remote)).unwrap();
        side.qp.modify(QpState::ReadyToSend, None).unwrap();
        let hit = |side: &mut Side, round: u64| {
            let bytes = round.to_le_bytes();
            let send = Operation::Send { source: Source::Inline(&bytes), immediate: None, to: None };
            side.qp.post(Request::new(round, send)).unwrap();
        };
        for round in 0..rounds {
            if serves {
                hit(&mut side, round);
            }
            let ball = side.received();
            assert_ok(&ball);
            assert_eq!(ball.buffers[0][..], round.to_le_bytes());
            post(&mut side);
            if !serves {
                hit(&mut side, round);
            }
            assert_ok(&side.sent());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(true, to_right, from_right));
        scope.spawn(|| play(false, to_left, from_left));
    });
}
