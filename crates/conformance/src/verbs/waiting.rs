//! Waits on completion queues end when they should.

use std::sync::mpsc;
use std::time::Duration;

use sinew_fabric::verbs::{CompletionQueue, Operation, QueuePair, Request, Source, Status, ThreadDomain};

use super::ends::*;
use super::*;
use crate::rounds::assert_woken_by_thread;

pub(super) fn end<F: Fixture>(fixture: &F) -> Option<End<F::Device>> {
    let transport = *transports(fixture).first()?;
    let device = fixture.device();
    let config = config(&device, transport);
    Some(End::new(device, &config))
}

/// A wait without a completion lasts for its time-out in total, in any number of pieces, and not for ever.
pub fn a_wait_keeps_its_timeout<F: Fixture>(fixture: &F) {
    let Some(mut end) = end(fixture) else { return };
    let patience_ns = fixture.expectations().patience_ns;
    for timeout_ns in [0, 1, 3_000_000] {
        let start_ns = fixture.now_ns();
        let mut turns = 0;
        loop {
            let passed_ns = fixture.now_ns() - start_ns;
            if passed_ns >= timeout_ns {
                break;
            }
            end.receives.wait(Some(timeout_ns - passed_ns)).expect("waiting works");
            turns += 1;
            assert!(turns < 1_000_000, "wait returns at once, for ever");
        }
        end.receives.wait(Some(timeout_ns)).expect("waiting works");
        assert!(fixture.now_ns() - start_ns < timeout_ns + patience_ns, "wait sleeps too long");
    }
}

/// A completion of a request or a receive that came before the wait ends it, and so does one that is still to come.
pub fn a_wait_ends_when_a_completion_is_there<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        if pair.is_lossy() {
            continue;
        }
        let patience_ns = fixture.expectations().patience_ns;
        for round in 0..20u64 {
            pair.far.receive(round, 64);
            let start_ns = fixture.now_ns();
            let operation = pair.send(Source::Inline(b"wake up"), None);
            pair.near.post(Request::new(round, operation));
            if round % 2 == 0 {
                // Completions that were polled are no reason to stay awake.
                pair.eventually("both ends complete", |pair| {
                    (!pair.near.sent.is_empty() && !pair.far.received.is_empty()).then_some(())
                });
            }
            while pair.far.received.is_empty() {
                pair.far.receives.wait(Some(patience_ns)).expect("waiting works");
                pair.far.poll();
                assert!(fixture.now_ns() - start_ns < patience_ns, "{transport:?}: a receive was slept through");
            }
            while pair.near.sent.is_empty() {
                pair.near.sends.wait(Some(patience_ns)).expect("waiting works");
                pair.near.poll();
                assert!(fixture.now_ns() - start_ns < patience_ns, "{transport:?}: a request was slept through");
            }
            assert_message(&pair.next_received("it is there"), b"wake up", None);
            pair.expect_success(round);
        }
        // Nothing is left, so a wait lasts.
        let start_ns = fixture.now_ns();
        let mut turns = 0;
        while fixture.now_ns() - start_ns < 2_000_000 {
            pair.far.receives.wait(Some(2_000_000)).expect("waiting works");
            turns += 1;
            assert!(turns < 1_000_000, "wait returns at once, for ever");
        }
    }
}

/// A wake-up that comes before the wait ends the wait.
pub fn a_wake_before_the_wait_is_not_lost<F: Fixture>(fixture: &F) {
    let Some(mut end) = end(fixture) else { return };
    let wakers = [end.sends.waker(), end.receives.waker()];
    let patience_ns = fixture.expectations().patience_ns;
    for round in 0..20 {
        let start_ns = fixture.now_ns();
        wakers[round % 2].clone().wake();
        // Polling is not waiting: it leaves the wake-up alone.
        end.poll();
        let queue = if round % 2 == 0 { &mut end.sends } else { &mut end.receives };
        queue.wait(Some(patience_ns)).expect("waiting works");
        assert!(fixture.now_ns() - start_ns < patience_ns, "the wake-up was lost");
    }
}

/// Many wake-ups by another thread, some before and some during a wait, each end a wait.
pub fn wakes_from_another_thread_are_not_lost<F: Fixture>(fixture: &F) {
    let Expectations { real_time, patience_ns, .. } = fixture.expectations();
    if !real_time.holds_or_report("wake-ups by other threads") {
        return;
    }
    let Some(mut end) = end(fixture) else { return };
    let waker = end.receives.waker();
    assert_woken_by_thread(
        waker,
        patience_ns,
        || fixture.now_ns(),
        |_| {
            end.receives.wait(Some(patience_ns)).expect("waiting works");
        },
    );
}

/// A message from another thread ends the wait for it, whether it came before, during, or just at the beginning; so
/// does the completion of a request that the other thread brings about.
pub fn a_completion_wakes_a_sleeping_thread<F: Fixture>(fixture: &F) {
    let patience_ns = fixture.expectations().patience_ns;
    completed_by_another_thread(fixture, |far, awaited, _| {
        let queue = if awaited == Awaited::Message { &mut far.receives } else { &mut far.sends };
        queue.wait(Some(patience_ns)).expect("waiting works");
    });
}

/// Event that an end sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Message,
    EndOfRequest,
}

/// Runs rounds of a message by another thread and an answer to it. `sleep` is one sleep of the end that is asked; it is
/// passed the awaited event and the time at which the round began.
pub(super) fn completed_by_another_thread<F: Fixture>(
    fixture: &F,
    mut sleep: impl FnMut(&mut End<F::Device>, Awaited, u64),
) {
    const ROUNDS: u64 = 120;
    let Expectations { real_time, patience_ns, .. } = fixture.expectations();
    if !real_time.holds_or_report("completions that other threads cause") {
        return;
    }
    for transport in transports(fixture) {
        if transport != Transport::Rc && fixture.expectations().lossless != Promise::Kept {
            continue;
        }
        let device = fixture.device();
        let config = config(&device, transport);
        let mut far = End::new(device, &config);
        let (sender, receiver) = mpsc::channel();
        let (ask, asked) = mpsc::channel::<u64>();
        let (address, device) = (far.qp.address(), fixture.device());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut near = End::new(device, &config);
                sender.send(near.qp.address()).expect("the other side waits");
                near.qp.connect(transport.is_connected().then_some(&address)).expect("a connection");
                let to = (!transport.is_connected()).then(|| near.thread.destination(&address).expect("a way"));
                let since = std::time::Instant::now();
                let now_ns = || since.elapsed().as_nanos() as u64;
                let watch = Watch { now_ns: &now_ns, patience_ns };
                for pause_us in asked {
                    // A receive for the answer, which the other side may already be sending.
                    near.receive(1, 8);
                    std::thread::sleep(Duration::from_micros(pause_us));
                    let send = Operation::Send { source: Source::Inline(b"wake"), immediate: None, to };
                    near.post(Request::new(2, send));
                    let over = |ends: &mut [&mut End<F::Device>]| {
                        ends[0].sent.pop_front().inspect(|sent| assert_eq!(sent.status, Status::Success))
                    };
                    eventually(watch, &mut [&mut near], "a message is sent", over);
                    let answer = |ends: &mut [&mut End<F::Device>]| ends[0].received.pop_front();
                    eventually(watch, &mut [&mut near], "the answer comes", answer);
                }
            });
            let near = receiver.recv().expect("the other thread starts");
            far.qp.connect(transport.is_connected().then_some(&near)).expect("a connection");
            let back = (!transport.is_connected()).then(|| far.thread.destination(&near).expect("a way"));
            for round in 0..ROUNDS {
                far.receive(round, 8);
                ask.send(round % 6 * 60).expect("the thread lives");
                let start_ns = fixture.now_ns();
                let mut slept = |far: &mut End<F::Device>, awaited| {
                    sleep(far, awaited, start_ns);
                    far.poll();
                    let is_late = fixture.now_ns() - start_ns >= patience_ns;
                    assert!(!is_late, "{transport:?}: the {awaited:?} of round {round} was slept through");
                };
                if round % 5 == 1 {
                    std::thread::sleep(Duration::from_micros(100));
                }
                while far.received.is_empty() {
                    slept(&mut far, Awaited::Message);
                }
                assert_message(&far.received.pop_front().expect("not empty"), b"wake", None);
                let answer = Operation::Send { source: Source::Inline(b"awake"), immediate: None, to: back };
                far.post(Request::new(round, answer));
                while far.sent.is_empty() {
                    slept(&mut far, Awaited::EndOfRequest);
                }
                let sent = far.sent.pop_front().expect("not empty");
                assert_eq!((sent.id, sent.status), (round, Status::Success));
            }
            drop(ask);
        });
    }
}

/// Waking a completion queue that is gone has no effect.
pub fn a_waker_outlives_its_completion_queue<F: Fixture>(fixture: &F) {
    let Some(end) = end(fixture) else { return };
    let lonely = end.thread.completion_queue(4).expect("a completion queue");
    let wakers = [end.sends.waker(), lonely.waker()];
    drop((end, lonely));
    wakers.into_iter().for_each(|waker| waker.wake());
}
