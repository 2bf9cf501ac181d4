//! The facts about frame ports.

use sinew_fabric::port::{Dropped, MAX_BURST};
use sinew_fabric::readiness::{Armed, Readiness};

use super::*;
use crate::rounds::assert_woken_by_thread;

/// Opens a pair of ports, or ends the fact if the fixture has none.
macro_rules! pair {
    ($fixture:expr) => {
        match $fixture.pair() {
            Some(pair) => pair,
            None => return,
        }
    };
}

/// The port's capabilities are consistent, and its address is a host's own.
pub fn a_frame_port_says_what_it_can_do<F: Fixture>(fixture: &mut F) {
    let (a, b) = pair!(fixture);
    for port in [&a, &b] {
        let caps = port.caps();
        assert!((1..=MAX_BURST).contains(&caps.burst_max), "{caps:?}");
        assert!(caps.frame_len_max >= 60, "{caps:?}");
        assert!(caps.receive_frames >= 1, "{caps:?}");
        assert!(port.mac().is_unicast(), "{}", port.mac());
    }
    assert_ne!(a.mac(), b.mac());
}

/// Frames of every length, from a header with eight bytes to the limit, arrive intact.
pub fn frames_of_every_length_arrive_intact<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let max = a.caps().frame_len_max.min(b.caps().frame_len_max);
    let mut lens: Vec<usize> = (22..max.min(200)).collect();
    lens.extend((200..max).step_by(97).chain([max - 1, max]));
    for chunk in lens.chunks(chunk_len(&b)) {
        let sent: Vec<_> = chunk.iter().map(|&len| frame(&a, &b, len, len)).collect();
        sent.iter().for_each(|frame| push(&mut a, frame));
        submit(&mut a);
        assert_same(&collect(fixture, &mut b, sent.len()), &sent);
    }
}

/// A thousand frames, submitted in bursts of changing size, keep their order.
pub fn frames_arrive_in_order<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let mut number = 0;
    while number < 1000 {
        let count = 1 + number % chunk_len(&b);
        let sent: Vec<_> = (number..number + count).map(|number| frame(&a, &b, number, 40 + number % 30)).collect();
        sent.iter().for_each(|frame| push(&mut a, frame));
        submit(&mut a);
        assert_same(&collect(fixture, &mut b, count), &sent);
        number += count;
    }
}

/// A frame that is one byte too long, or shorter than its header, is dropped and counted, and the next frame arrives.
pub fn frames_beyond_the_limits_are_counted_and_not_sent<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let max = a.caps().frame_len_max;
    let too_long = frame(&a, &b, 1, max + 1);
    push(&mut a, &too_long);
    push(&mut a, &too_long[..13]);
    push(&mut a, &[]);
    let good = frame(&a, &b, 2, 60);
    push(&mut a, &good);
    submit(&mut a);
    assert_same(&collect(fixture, &mut b, 1), &[good]);
    assert!(drain(fixture, &mut b).is_empty(), "a frame beyond the limits was delivered");
    let stats = a.stats();
    assert_eq!((stats.dropped(Dropped::TooLong), stats.dropped(Dropped::Malformed), stats.tx_packets), (1, 2, 1));
}

/// A burst lends no more frames than the port's limit, and the rest comes with the next bursts.
pub fn a_burst_lends_at_most_burst_max_frames<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let count = (2 * b.caps().burst_max + 3).min(b.caps().receive_frames);
    let sent: Vec<_> = (0..count).map(|number| frame(&a, &b, number, 60)).collect();
    sent.iter().for_each(|frame| push(&mut a, frame));
    submit(&mut a);
    // `receive` checks the length of every burst.
    assert_same(&collect(fixture, &mut b, count), &sent);
}

/// Submitting and receiving nothing has no effect.
pub fn to_submit_and_receive_nothing_changes_nothing<F: Fixture>(fixture: &mut F) {
    let (mut a, _b) = pair!(fixture);
    for _ in 0..10 {
        submit(&mut a);
        assert!(receive(fixture, &mut a).is_empty());
    }
    assert_eq!((a.stats().tx_packets, a.stats().rx_packets, a.stats().dropped_total()), (0, 0, 0));
}

/// One side's counters of sent frames equal the other side's of received frames.
pub fn frame_counters_add_up<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let sent: Vec<_> = (0..chunk_len(&b)).map(|number| frame(&a, &b, number, 60 + number)).collect();
    sent.iter().for_each(|frame| push(&mut a, frame));
    submit(&mut a);
    assert_same(&collect(fixture, &mut b, sent.len()), &sent);
    let (count, bytes) = (sent.len() as u64, sent.iter().map(|frame| frame.len() as u64).sum::<u64>());
    assert_eq!((a.stats().tx_packets, a.stats().tx_bytes), (count, bytes));
    assert_eq!((b.stats().rx_packets, b.stats().rx_bytes), (count, bytes));
    assert_eq!((a.stats().dropped_total(), b.stats().dropped_total()), (0, 0));
}

/// Several times as many frames as there is room for get through, if they are received in between.
pub fn room_for_frames_comes_back<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let chunk = chunk_len(&b);
    for start in (0..(b.caps().receive_frames * 3).min(20_000)).step_by(chunk) {
        let sent: Vec<_> = (start..start + chunk).map(|number| frame(&a, &b, number, 60)).collect();
        sent.iter().for_each(|frame| push(&mut a, frame));
        submit(&mut a);
        assert_same(&collect(fixture, &mut b, chunk), &sent);
    }
}

/// Of more frames than there is room for, some are lost, the others are in order, and the port keeps working.
pub fn a_flood_of_frames_loses_some_and_nothing_else<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let count = (b.caps().receive_frames * 2 + 100).min(20_000);
    for number in 0..count {
        let bytes = frame(&a, &b, number, 64);
        push(&mut a, &bytes);
        if number % 16 == 15 {
            submit(&mut a);
        }
    }
    submit(&mut a);
    let got = drain(fixture, &mut b);
    assert!(!got.is_empty());
    for pair in got.windows(2) {
        assert!(number_of(&pair[0]) < number_of(&pair[1]), "frames arrived out of order, or twice");
    }
    assert!(got.iter().all(|got| *got == frame(&a, &b, number_of(got), 64)), "a frame changed on its way");
    let last = frame(&a, &b, count, 64);
    push(&mut a, &last);
    submit(&mut a);
    assert_same(&collect(fixture, &mut b, 1), &[last]);
}

/// Pushed bytes are the caller's again, even before they are submitted.
pub fn pushed_bytes_are_copied<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let sent: Vec<_> = (0..chunk_len(&b).min(4)).map(|number| frame(&a, &b, number, 100)).collect();
    let mut scratch = vec![0; 100];
    for bytes in &sent {
        scratch.copy_from_slice(bytes);
        push(&mut a, &scratch);
        scratch.fill(0xDD);
    }
    submit(&mut a);
    assert_same(&collect(fixture, &mut b, sent.len()), &sent);
}

/// Turns a frame round with a change, as an echo or a router does: swaps its addresses and complements its last byte.
fn swap_addresses(frame: &mut [u8]) {
    let (to, from) = frame.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
    if let Some(last) = frame.last_mut() {
        *last = !*last;
    }
}

/// Forwards what `port` receives until there were `count` frames; returns their number.
fn echo<F: Fixture>(fixture: &F, port: &mut F::Port, count: usize) -> usize {
    let deadline_ns = fixture.now_ns().saturating_add(fixture.expectations().patience_ns);
    let mut echoed = 0;
    while echoed < count && fixture.now_ns() < deadline_ns {
        let (rx, tx) = port.split();
        let mut burst = FrameBurst::new(fixture.now_ns());
        rx.receive(&mut burst);
        let got = burst.frames.len();
        for mut frame in burst.frames.drain(..) {
            swap_addresses(frame.bytes_mut());
            tx.forward(frame);
        }
        tx.submit();
        drop(burst);
        echoed += got;
        if got == 0 {
            port.wait(Some(1_000_000)).expect("waiting works");
        }
    }
    echoed
}

/// A frame is sent on with what its holder wrote in it.
pub fn a_lent_frame_is_written_and_forwarded_as_it_is_then<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let mut sent: Vec<_> = (0..chunk_len(&b)).map(|number| frame(&a, &b, number, 60 + 5 * number)).collect();
    sent.iter().for_each(|frame| push(&mut a, frame));
    submit(&mut a);
    assert_eq!(echo(fixture, &mut b, sent.len()), sent.len());
    sent.iter_mut().for_each(|frame| swap_addresses(frame));
    assert_same(&collect(fixture, &mut a, sent.len()), &sent);
}

/// While every other frame of a lent burst is forwarded, the rest stays intact.
pub fn frames_that_were_not_forwarded_stay_readable<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let count = chunk_len(&b).min(b.caps().burst_max);
    for round in 0..20 {
        let sent: Vec<_> = (0..count).map(|number| frame(&a, &b, round * count + number, 80)).collect();
        sent.iter().for_each(|frame| push(&mut a, frame));
        submit(&mut a);
        let (mut seen, mut forwarded) = (0, Vec::new());
        let deadline_ns = fixture.now_ns().saturating_add(fixture.expectations().patience_ns);
        while seen < count && fixture.now_ns() < deadline_ns {
            b.wait(Some(1_000_000)).expect("waiting works");
            let (rx, tx) = b.split();
            let mut burst = FrameBurst::new(fixture.now_ns());
            rx.receive(&mut burst);
            let mut kept = Vec::new();
            for frame in burst.frames.drain(..) {
                if seen % 2 == 0 {
                    forwarded.push(frame.bytes().to_vec());
                    tx.forward(frame);
                    tx.submit();
                } else {
                    kept.push((seen, frame));
                }
                seen += 1;
            }
            for (number, frame) in kept {
                assert!(frame.bytes() == sent[number], "frame {number} changed while others were forwarded");
            }
        }
        assert_eq!(seen, count, "frames that arrived, and were sent");
        assert_same(&collect(fixture, &mut a, forwarded.len()), &forwarded);
    }
}

/// Forwarding many times as many frames as a port has room for uses up none of its memory.
pub fn forwarding_for_long_uses_up_nothing<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let count = chunk_len(&a).min(chunk_len(&b));
    let mut sent: Vec<_> = (0..count).map(|number| frame(&a, &b, number, 60)).collect();
    sent.iter().for_each(|frame| push(&mut a, frame));
    submit(&mut a);
    for round in 0..20_000 / count {
        let port = if round % 2 == 0 { &mut b } else { &mut a };
        assert_eq!(echo(fixture, port, count), count, "frames are missing in round {round}");
        sent.iter_mut().for_each(|frame| swap_addresses(frame));
    }
    let last = if (20_000 / count).is_multiple_of(2) { &mut b } else { &mut a };
    assert_same(&collect(fixture, last, count), &sent);
}

/// A wait without an arrival lasts for its time-out in total, in any number of pieces, and not for ever.
pub fn a_wait_for_frames_keeps_its_timeout<F: Fixture>(fixture: &mut F) {
    let (mut port, _other) = pair!(fixture);
    for timeout_ns in [0, 1, 3_000_000] {
        let start_ns = fixture.now_ns();
        for _ in 0..1_000_000 {
            let passed_ns = fixture.now_ns() - start_ns;
            if passed_ns >= timeout_ns {
                break;
            }
            port.wait(Some(timeout_ns - passed_ns)).expect("waiting works");
        }
        let passed_ns = fixture.now_ns() - start_ns;
        assert!(passed_ns >= timeout_ns, "wait returns at once, for ever");
        assert!(passed_ns < timeout_ns + fixture.expectations().patience_ns, "wait sleeps too long");
    }
}

/// A frame that came before the wait ends it, and so does one in flight.
pub fn a_wait_ends_when_a_frame_is_there<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let patience_ns = fixture.expectations().patience_ns;
    for number in 0..20 {
        assert!(receive(fixture, &mut b).is_empty());
        let bytes = frame(&a, &b, number, 64);
        push(&mut a, &bytes);
        submit(&mut a);
        let start_ns = fixture.now_ns();
        let got = loop {
            b.wait(Some(patience_ns)).expect("waiting works");
            let got = receive(fixture, &mut b);
            if !got.is_empty() || fixture.now_ns() - start_ns >= patience_ns {
                break got;
            }
        };
        assert!(fixture.now_ns() - start_ns < patience_ns, "a frame was there and the wait went on");
        assert_same(&got, &[bytes]);
    }
}

/// A frame makes an armed port's descriptor readable, where it has one.
pub fn a_frame_makes_an_armed_port_readable<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair!(fixture);
    let Some(descriptor) = b.descriptor() else {
        assert!(b.arm(0).is_err() && !b.disarm(), "a port without a descriptor cannot be armed");
        return;
    };
    let patience_ns = fixture.expectations().patience_ns;
    for number in 0..10 {
        let mut until_ns = None;
        let is_quiet = (0..1000).any(|_| match b.arm(fixture.now_ns()).expect("arming works") {
            Armed::Sleep { until_ns: deadline_ns } => {
                until_ns = deadline_ns;
                true
            }
            Armed::Ready => {
                assert!(receive(fixture, &mut b).is_empty(), "nobody has sent anything");
                false
            }
        });
        assert!(is_quiet, "a port to which nothing comes says for ever that something has");
        let bytes = frame(&a, &b, number, 64);
        push(&mut a, &bytes);
        submit(&mut a);
        let is_readable = descriptor.wait(Some(patience_ns)).expect("polling works");
        assert!(is_readable || until_ns.is_some(), "frame {number} woke nobody");
        b.disarm();
        assert_same(&collect(fixture, &mut b, 1), &[bytes]);
    }
}

/// Many wake-ups by another thread, some before and some during a wait, each end a wait.
pub fn a_waker_ends_a_wait_for_frames<F: Fixture>(fixture: &mut F) {
    let (mut port, _other) = pair!(fixture);
    if !fixture.expectations().real_time {
        return;
    }
    let (waker, patience_ns) = (port.waker(), fixture.expectations().patience_ns);
    let wait = |_| port.wait(Some(patience_ns)).expect("waiting works");
    assert_woken_by_thread(waker, patience_ns, || fixture.now_ns(), wait);
}
