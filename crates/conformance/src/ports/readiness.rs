//! Ports have a descriptor to sleep on, and a thread that sleeps on it misses nothing.

use std::io::ErrorKind;

use sinew_fabric::readiness::{Armed, Descriptor, Readiness};

use super::*;
use crate::rounds::assert_woken_by_thread;

/// Time to wait for something that must not happen, in nanoseconds.
const QUIET_NS: u64 = 1_000_000;

/// The port's descriptor; `None` for a port without one, after checking that arming it fails with the right error.
fn descriptor_of(port: &mut impl PacketPort) -> Option<Descriptor> {
    let descriptor = port.descriptor();
    if descriptor.is_none() {
        let error = port.arm(0).expect_err("a port without a descriptor cannot be armed");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(!port.disarm(), "nothing wakes what was never armed");
    }
    descriptor
}

/// Arms a port once nothing keeps it awake any longer, and returns the time until which the thread may sleep.
fn arm_quietly<F: Fixture>(fixture: &F, port: &mut F::Port, descriptor: &Descriptor) -> Option<u64> {
    for _ in 0..1_000 {
        if let Armed::Sleep { until_ns } = port.arm(fixture.now_ns()).expect("arming works")
            && !descriptor.wait(Some(QUIET_NS)).expect("polling works")
        {
            return until_ns;
        }
        port.disarm();
        // A packet that counted as lost may only be late.
        let got = receive(fixture, port);
        assert!(got.is_empty() || fixture.expectations().lossy, "nobody has sent anything");
        while port.poll_event().is_some() {}
    }
    panic!("a port to which nothing comes says for ever that something has");
}

/// Calls `arrives` with one packet number after another until the packet arrives; the fact must hold each time. There
/// is more than one try only where packets may be lost.
fn retry_until_arrives<F: Fixture>(fixture: &F, round: usize, mut arrives: impl FnMut(usize) -> bool) {
    const TRIES: usize = 20;
    let tries = if fixture.expectations().lossy { TRIES } else { 1 };
    let arrived = (0..tries).any(|nth| arrives(round * TRIES + nth));
    assert!(arrived, "of {tries} packets of round {round} none arrived");
}

/// Whether this packet was received; where none can be lost, it must be the only one.
fn was_received<F: Fixture>(fixture: &F, got: &[Received], bytes: &[u8]) -> bool {
    let is_there = got.iter().any(|(_, received)| received == bytes);
    is_there && (got.len() == 1 || fixture.expectations().lossy)
}

/// Sleeps on the descriptor as an event loop does, until a burst brings packets or patience runs out.
fn sleep_for_packets<F: Fixture>(fixture: &F, port: &mut F::Port, descriptor: &Descriptor) -> Vec<Received> {
    let deadline_ns = fixture.now_ns().saturating_add(patience_for_missing_ns(fixture));
    loop {
        let now_ns = fixture.now_ns();
        let armed = port.arm(now_ns).expect("arming works");
        if armed != Armed::Ready {
            let bounded = armed.min_deadline(Some(deadline_ns));
            let is_readable = descriptor.wait(bounded.timeout_ns(now_ns)).expect("polling works");
            port.disarm();
            if !is_readable && bounded != armed {
                assert!(receive(fixture, port).is_empty(), "a packet was slept through");
                return Vec::new();
            }
        }
        let got = receive(fixture, port);
        if !got.is_empty() || fixture.now_ns() >= deadline_ns {
            return got;
        }
    }
}

/// A packet makes an armed port's descriptor readable, until it is disarmed. Packets received before do not.
pub fn an_armed_port_is_readable_once_a_packet_comes<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let Some(descriptor) = descriptor_of(&mut b) else { return };
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let patience_ns = patience_for_missing_ns(fixture);
    for round in 0..10 {
        retry_until_arrives(fixture, round, |number| {
            let until_ns = arm_quietly(fixture, &mut b, &descriptor);
            let bytes = pattern(number, 64);
            send(&mut a, to, &bytes, MODES[number % 3]);
            let now_ns = fixture.now_ns();
            let timeout_ns =
                Armed::Sleep { until_ns }.min_deadline(Some(now_ns.saturating_add(patience_ns))).timeout_ns(now_ns);
            let is_readable = descriptor.wait(timeout_ns).expect("polling works");
            // A port that limits the sleep does not promise to end it.
            let is_told = is_readable || until_ns.is_some();
            assert!(
                descriptor.wait(Some(0)).expect("polling works") || !is_readable,
                "it stays so until it is disarmed"
            );
            b.disarm();
            let got = if is_told { collect(fixture, &mut b, 1) } else { receive(fixture, &mut b) };
            let arrived = was_received(fixture, &got, &bytes);
            assert!(is_told || !arrived, "packet {number} woke nobody");
            arrived
        });
    }
    arm_quietly(fixture, &mut b, &descriptor);
    b.disarm();
    assert!(!b.disarm(), "a port that is not armed was not woken");
}

/// A packet that came before a port was armed, whether seen or not, is not slept through.
pub fn a_packet_just_before_arming_is_not_slept_through<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let Some(descriptor) = descriptor_of(&mut b) else { return };
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let lossy = fixture.expectations().lossy;
    for round in 0..20 {
        retry_until_arrives(fixture, round, |number| {
            assert!(receive(fixture, &mut b).is_empty() || lossy);
            let bytes = pattern(number, 64);
            if round % 4 == 1 {
                // Arming before and after the packet must be as good as arming after it.
                let _ = b.arm(fixture.now_ns()).expect("arming works");
            }
            send(&mut a, to, &bytes, MODES[number % 3]);
            let got = sleep_for_packets(fixture, &mut b, &descriptor);
            was_received(fixture, &got, &bytes)
        });
    }
}

/// Packets that were pushed and held back leave when the port is armed, since its owner may then sleep.
pub fn arming_submits_what_is_held_back<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    if descriptor_of(&mut a).is_none() {
        return;
    }
    let (to, _) = introduce(fixture, &mut a, &mut b);
    for round in 0..5 {
        retry_until_arrives(fixture, round, |number| {
            // What an earlier try left must not take this packet along.
            a.split().1.submit();
            let bytes = pattern(number, 64);
            push(&mut a, to, &bytes, Mode::Head);
            a.split().1.submit_soon(fixture.now_ns());
            while a.arm(fixture.now_ns()).expect("arming works") == Armed::Ready {
                receive(fixture, &mut a);
            }
            let got = collect(fixture, &mut b, 1);
            a.disarm();
            was_received(fixture, &got, &bytes)
        });
    }
}

/// A waker makes an armed port's descriptor readable until it is disarmed; an earlier wake-up makes the next arming say
/// so.
pub fn a_waker_makes_an_armed_port_readable<F: Fixture>(fixture: &mut F) {
    let mut port = fixture.open();
    let Some(descriptor) = descriptor_of(&mut port) else { return };
    let waker = port.waker();
    let patience_ns = fixture.expectations().patience_ns;
    for round in 0..10 {
        arm_quietly(fixture, &mut port, &descriptor);
        waker.wake();
        for _ in 0..2 {
            assert!(descriptor.wait(Some(patience_ns)).expect("polling works"), "the wake-up was lost");
        }
        assert!(port.disarm(), "a waker was called");
        assert!(!descriptor.wait(Some(0)).expect("polling works"), "a wake-up that is over is told again");
        arm_quietly(fixture, &mut port, &descriptor);
        if round % 2 == 0 {
            port.disarm();
        }
        waker.wake();
        let armed = port.arm(fixture.now_ns()).expect("arming works");
        let is_readable = descriptor.wait(Some(0)).expect("polling works");
        assert!(armed == Armed::Ready || is_readable, "an early wake-up was lost");
        port.disarm();
    }
}

/// Many wake-ups by another thread, some before and some during a sleep, each end a sleep.
pub fn wakes_from_another_thread_end_a_sleep_on_the_descriptor<F: Fixture>(fixture: &mut F) {
    if !fixture.expectations().real_time {
        return;
    }
    let mut port = fixture.open();
    let Some(descriptor) = descriptor_of(&mut port) else { return };
    let waker = port.waker();
    let patience_ns = fixture.expectations().patience_ns;
    assert_woken_by_thread(
        waker,
        patience_ns,
        || fixture.now_ns(),
        |start_ns| {
            let now_ns = fixture.now_ns();
            let armed = port.arm(now_ns).expect("arming works");
            if armed != Armed::Ready {
                let timeout_ns = armed.min_deadline(Some(start_ns + patience_ns)).timeout_ns(now_ns);
                descriptor.wait(timeout_ns).expect("polling works");
            }
            port.disarm();
        },
    );
}

/// The descriptor of a port that is gone can still be waited for, though its readiness means nothing.
pub fn a_descriptor_outlives_its_port<F: Fixture>(fixture: &mut F) {
    let mut port = fixture.open();
    let Some(descriptor) = descriptor_of(&mut port) else { return };
    let waker = port.waker();
    let _ = port.arm(fixture.now_ns()).expect("arming works");
    drop(port);
    waker.wake();
    descriptor.wait(Some(QUIET_NS)).expect("polling works");
}
