//! Waits on ports end when they should.

use super::*;
use crate::rounds::assert_woken_by_thread;

/// A wait without an arrival lasts for its time-out in total, in any number of pieces, and not for ever.
pub fn a_wait_keeps_its_timeout<F: Fixture>(fixture: &mut F) {
    let mut port = fixture.open();
    for timeout_ns in [0, 1, 3_000_000] {
        let start_ns = fixture.now_ns();
        let mut turns = 0;
        loop {
            let passed_ns = fixture.now_ns() - start_ns;
            if passed_ns >= timeout_ns {
                break;
            }
            port.wait(Some(timeout_ns - passed_ns)).expect("waiting works");
            turns += 1;
            assert!(turns < 1_000_000, "wait returns at once, for ever");
        }
        port.wait(Some(timeout_ns)).expect("waiting works");
        assert!(fixture.now_ns() - start_ns < timeout_ns + fixture.expectations().patience_ns, "wait sleeps too long");
    }
}

/// A packet that came before the wait ends it, and so does one in flight.
pub fn a_wait_ends_when_a_packet_is_there<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, _) = introduce(fixture, &mut a, &mut b);
    if fixture.expectations().lossy {
        return;
    }
    let patience_ns = fixture.expectations().patience_ns;
    for number in 0..20 {
        // The port is idle, and has noticed that.
        assert!(receive(fixture, &mut b).is_empty());
        let start_ns = fixture.now_ns();
        let bytes = pattern(number, 64);
        send(&mut a, to, &bytes, MODES[number % 3]);
        let got = loop {
            b.wait(Some(patience_ns)).expect("waiting works");
            let got = receive(fixture, &mut b);
            if !got.is_empty() || fixture.now_ns() - start_ns >= patience_ns {
                break got;
            }
        };
        assert!(fixture.now_ns() - start_ns < patience_ns, "a packet was there and the wait went on");
        assert_eq!(got.len(), 1);
        assert!(got[0].1 == bytes);
    }
}

/// A wake-up that comes before the wait ends the wait.
pub fn a_wake_before_the_wait_is_not_lost<F: Fixture>(fixture: &mut F) {
    let mut port = fixture.open();
    let waker = port.waker();
    let patience_ns = fixture.expectations().patience_ns;
    for _ in 0..10 {
        let start_ns = fixture.now_ns();
        waker.clone().wake();
        // Receiving is not waiting: it leaves the wake-up alone.
        receive(fixture, &mut port);
        port.wait(Some(patience_ns)).expect("waiting works");
        assert!(fixture.now_ns() - start_ns < patience_ns, "the wake-up was lost");
    }
}

/// Many wake-ups by another thread, some before and some during a wait, each end a wait.
pub fn wakes_from_another_thread_are_not_lost<F: Fixture>(fixture: &mut F) {
    if !fixture.expectations().real_time {
        return;
    }
    let mut port = fixture.open();
    let waker = port.waker();
    let patience_ns = fixture.expectations().patience_ns;
    assert_woken_by_thread(
        waker,
        patience_ns,
        || fixture.now_ns(),
        |_| {
            port.wait(Some(patience_ns)).expect("waiting works");
        },
    );
}

/// Waking a port that is gone has no effect.
pub fn a_waker_outlives_its_port<F: Fixture>(fixture: &mut F) {
    let port = fixture.open();
    let waker = port.waker();
    drop(port);
    waker.wake();
}
