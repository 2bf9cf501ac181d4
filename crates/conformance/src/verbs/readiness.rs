//! Completion queues have a descriptor to sleep on, and a thread that sleeps on it misses nothing.

use std::io::ErrorKind;

use sinew_fabric::readiness::{Armed, Descriptor, Readiness, wait_on};
use sinew_fabric::verbs::{Completion, CompletionQueue, Request, Source};

use super::ends::*;
use super::waiting::{completed_by_another_thread, end};
use super::*;

/// Time to wait for something that must not happen, in nanoseconds.
const QUIET_NS: u64 = 1_000_000;

/// The queue's descriptor; `None` for a queue without one, after checking that arming it fails with the right error.
fn descriptor_of(queue: &mut impl CompletionQueue) -> Option<Descriptor> {
    let descriptor = queue.descriptor();
    if descriptor.is_none() {
        let error = queue.arm(0).expect_err("a queue without a descriptor cannot be armed");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(!queue.disarm(), "nothing wakes what was never armed");
        eprintln!("left out: readiness: the queue has no descriptor");
    }
    descriptor
}

/// Arms far's receive queue once nothing keeps it awake any longer, and returns the time until which the thread may
/// sleep.
fn arm_quietly<F: Fixture>(pair: &mut Pair<'_, F>, descriptor: &Descriptor) -> Option<u64> {
    for _ in 0..1_000 {
        let now_ns = pair.fixture.now_ns();
        if let Armed::Sleep { until_ns } = pair.far.receives.arm(now_ns).expect("arming works")
            && !descriptor.wait(Some(QUIET_NS)).expect("polling works")
        {
            return until_ns;
        }
        pair.far.receives.disarm();
        pair.far.poll();
    }
    panic!("{:?}: a queue without completions says for ever that there are some", pair.transport());
}

/// Sends a message, repeatedly if it can be lost, until `arrives` returns the receive that it completed; the fact must
/// hold each time.
fn retry_until_arrives<F: Fixture>(
    pair: &mut Pair<'_, F>,
    mut arrives: impl FnMut(&mut Pair<'_, F>) -> Option<Completion>,
) -> Completion {
    let tries = if pair.is_lossy() { 20 } else { 1 };
    let received = (0..tries).find_map(|_| arrives(pair));
    received.unwrap_or_else(|| panic!("{:?}: of {tries} messages none arrived", pair.transport()))
}

/// Time to wait for a message, in nanoseconds: shorter if messages can be lost.
fn patience_ns<F: Fixture>(pair: &Pair<'_, F>) -> u64 {
    let patience_ns = pair.fixture.expectations().patience_ns;
    if pair.is_lossy() { patience_ns / 100 } else { patience_ns }
}

/// Far's next receive after news of one; if messages can be lost, it may not come.
fn next_receive<F: Fixture>(pair: &mut Pair<'_, F>) -> Option<Completion> {
    if pair.is_lossy() { pair.try_next_received() } else { Some(pair.next_received("it is there")) }
}

/// A message that arrives at an armed queue makes its descriptor readable, until it is disarmed.
pub fn an_armed_queue_is_readable_once_a_completion_comes<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let Some(descriptor) = descriptor_of(&mut pair.far.receives) else { return };
        let patience_ns = patience_ns(&pair);
        for round in 0..10 {
            pair.far.receive(round, 64);
            let received = retry_until_arrives(&mut pair, |pair| {
                let until_ns = arm_quietly(pair, &descriptor);
                if let Some(late) = pair.far.received.pop_front() {
                    pair.far.receives.disarm();
                    return Some(late);
                }
                let operation = pair.send(Source::Inline(b"wake up"), None);
                pair.near.post(Request::new(round, operation));
                let start_ns = fixture.now_ns();
                let mut is_readable = descriptor.wait(Some(QUIET_NS)).expect("polling works");
                while !is_readable {
                    pair.near.poll();
                    let now_ns = fixture.now_ns();
                    // Either the queue did not promise a longer sleep, or the message is lost.
                    if until_ns.is_some_and(|until_ns| now_ns >= until_ns) || now_ns - start_ns >= patience_ns {
                        break;
                    }
                    is_readable = descriptor.wait(Some(QUIET_NS)).expect("polling works");
                }
                if is_readable {
                    assert!(descriptor.wait(Some(0)).expect("polling works"), "it stays readable until it is disarmed");
                }
                pair.far.receives.disarm();
                let received = if is_readable || until_ns.is_some() {
                    next_receive(pair)
                } else {
                    pair.far.poll();
                    pair.far.received.pop_front()
                };
                let is_told = is_readable || until_ns.is_some() || received.is_none();
                assert!(is_told, "{transport:?}: the message of round {round} woke nobody");
                pair.expect_success(round);
                received
            });
            assert_message(&received, b"wake up", None);
        }
        arm_quietly(&mut pair, &descriptor);
    }
}

/// A message that arrives before a queue is armed, however shortly, makes arming say so.
pub fn a_completion_just_before_arming_is_not_slept_through<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let Some(descriptor) = descriptor_of(&mut pair.far.receives) else { return };
        let patience_ns = patience_ns(&pair);
        for round in 0..10 {
            pair.far.receive(round, 64);
            let received = retry_until_arrives(&mut pair, |pair| {
                let operation = pair.send(Source::Inline(b"early"), None);
                pair.near.post(Request::new(round, operation));
                pair.near.poll();
                let deadline_ns = fixture.now_ns() + patience_ns;
                while pair.far.received.is_empty() && fixture.now_ns() < deadline_ns {
                    let now_ns = fixture.now_ns();
                    if round % 3 == 1 {
                        // Arming twice must be as good as once.
                        let _ = pair.far.receives.arm(now_ns).expect("arming works");
                    }
                    let armed = pair.far.receives.arm(now_ns).expect("arming works");
                    let mut is_over = false;
                    if armed != Armed::Ready {
                        let bounded = armed.min_deadline(Some(deadline_ns));
                        let is_readable = descriptor.wait(bounded.timeout_ns(now_ns)).expect("polling works");
                        pair.far.receives.disarm();
                        is_over = !is_readable && bounded != armed && fixture.now_ns() >= deadline_ns;
                    }
                    pair.far.poll();
                    let is_missed = is_over && !pair.far.received.is_empty();
                    assert!(!is_missed, "{transport:?}: round {round} was slept through");
                }
                let received = pair.far.received.pop_front();
                pair.expect_success(round);
                received
            });
            assert_message(&received, b"early", None);
        }
    }
}

/// A waker makes an armed queue's descriptor readable until it is disarmed; an earlier wake-up makes the next arming
/// say so.
pub fn a_waker_makes_an_armed_queue_readable<F: Fixture>(fixture: &F) {
    let Some(mut end) = end(fixture) else { return };
    let patience_ns = fixture.expectations().patience_ns;
    for receives in [false, true] {
        let queue = if receives { &mut end.receives } else { &mut end.sends };
        let Some(descriptor) = descriptor_of(queue) else { return };
        let waker = queue.waker();
        let armed = |queue: &mut dyn Readiness| queue.arm(0).expect("arming works") != Armed::Ready;
        for _ in 0..5 {
            while !armed(queue) {}
            waker.wake();
            for _ in 0..2 {
                assert!(descriptor.wait(Some(patience_ns)).expect("polling works"), "the wake-up was lost");
            }
            assert!(queue.disarm(), "a waker was called");
            assert!(!descriptor.wait(Some(0)).expect("polling works"), "a wake-up that is over is told again");
            waker.wake();
            let is_armed = armed(queue);
            assert!(!is_armed || descriptor.wait(Some(0)).expect("polling works"), "an early wake-up was lost");
            queue.disarm();
            while !armed(queue) {}
            waker.wake();
            let is_armed = armed(queue);
            assert!(!is_armed || descriptor.wait(Some(0)).expect("polling works"), "arming again forgot a wake-up");
            queue.disarm();
        }
    }
}

/// A thread that sleeps on both queues of a queue pair at once misses nothing that another thread causes.
pub fn a_thread_sleeps_on_both_queues_at_once<F: Fixture>(fixture: &F) {
    let Some(mut end) = end(fixture) else { return };
    if descriptor_of(&mut end.receives).is_none() {
        return;
    }
    let patience_ns = fixture.expectations().patience_ns;
    let mut is_turned = false;
    completed_by_another_thread(fixture, |far, _, start_ns| {
        let mut sources: [&mut dyn Readiness; 2] = [&mut far.sends, &mut far.receives];
        if is_turned {
            sources.reverse();
        }
        is_turned = !is_turned;
        wait_on(&mut sources, fixture.now_ns(), Some(start_ns + patience_ns)).expect("sleeping works");
    });
}

/// The descriptor of a queue that is gone can still be waited for, though its readiness means nothing.
pub fn a_descriptor_outlives_its_completion_queue<F: Fixture>(fixture: &F) {
    let Some(mut end) = end(fixture) else { return };
    let Some(descriptor) = descriptor_of(&mut end.receives) else { return };
    let waker = end.receives.waker();
    let _ = end.receives.arm(fixture.now_ns()).expect("arming works");
    drop(end);
    waker.wake();
    descriptor.wait(Some(QUIET_NS)).expect("polling works");
}
