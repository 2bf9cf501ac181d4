//! Packets arrive intact, in order, counted, and within the limits.

use sinew_fabric::port::{Dropped, MAX_BURST, PACKET_LEN_MIN, PortStats};

use super::*;

/// Number of packets that a fact sends before it receives, so that the receiver's room suffices.
fn chunk_len<P: PacketPort>(port: &P) -> usize {
    let caps = port.caps();
    caps.receive_packets.min(caps.receive_packets_per_peer).clamp(1, 32)
}

/// The port's capabilities are consistent.
pub fn capabilities_make_sense<F: Fixture>(fixture: &mut F) {
    let port = fixture.open();
    let caps = port.caps();
    assert!((1..=MAX_BURST).contains(&caps.burst_max), "{caps:?}");
    assert!(caps.packet_len_max >= PACKET_LEN_MIN, "a packet holds what opens a session: {caps:?}");
    assert!(caps.copy_len_max >= HEAD_LEN, "a header is worth copying: {caps:?}");
    assert!(caps.receive_packets >= 1, "{caps:?}");
    assert!((1..=caps.receive_packets).contains(&caps.receive_packets_per_peer), "{caps:?}");
    let address = port.address();
    assert_eq!(address.to_string().parse(), Ok(address), "an address reads back as itself");
}

/// Packets of every length from 24 bytes to the limit arrive intact, however they are passed; data of no bytes too.
pub fn packets_of_every_length_arrive_intact<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let max = a.packet_len_max(to);
    let mut lens: Vec<usize> = (HEAD_LEN..=max.min(160)).collect();
    for power in (7..).map(|exponent| 1usize << exponent).take_while(|&power| power <= max) {
        lens.extend([power - 1, power, power + 1, power + HEAD_LEN].iter().filter(|&&len| len <= max));
    }
    lens.extend([max - 1, max]);
    let chunk_len = chunk_len(&b);
    for mode in MODES {
        for chunk in lens.chunks(chunk_len) {
            let sent: Vec<_> = chunk.iter().map(|&len| pattern(len, len)).collect();
            sent.iter().for_each(|bytes| push(&mut a, to, bytes, mode));
            a.split().1.submit();
            let got = collect(fixture, &mut b, sent.len());
            assert_arrived(fixture, &got, from, &sent);
        }
    }
}

/// A thousand packets, submitted in bursts of changing size, keep their order.
pub fn packets_of_one_sender_arrive_in_order<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let chunk_max = chunk_len(&b);
    let spread = (a.packet_len_max(to) - HEAD_LEN).min(100);
    let len_of = |number: usize| HEAD_LEN + number % (spread + 1);
    let mut number = 0;
    while number < 1000 {
        let chunk = 1 + number % chunk_max;
        let sent: Vec<_> = (number..number + chunk).map(|number| pattern(number, len_of(number))).collect();
        for (index, bytes) in sent.iter().enumerate() {
            push(&mut a, to, bytes, MODES[index % 3]);
        }
        a.split().1.submit();
        let got = collect(fixture, &mut b, sent.len());
        assert_arrived(fixture, &got, from, &sent);
        number += chunk;
    }
}

/// A packet that is one byte too long is dropped and counted, and the next packet arrives.
pub fn packets_over_the_limit_are_counted_and_not_sent<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let before = a.stats();
    let too_long = pattern(1, a.packet_len_max(to) + 1);
    for mode in MODES {
        send(&mut a, to, &too_long, mode);
    }
    let marker = pattern(2, 40);
    send(&mut a, to, &marker, Mode::Head);
    let got = collect(fixture, &mut b, 1);
    assert_arrived(fixture, &got, from, &[marker]);
    assert!(drain(fixture, &mut b).is_empty(), "a packet over the limit was delivered");
    let after = a.stats();
    assert_eq!(after.dropped(Dropped::TooLong) - before.dropped(Dropped::TooLong), 3);
    assert_eq!(after.tx_packets - before.tx_packets, 1);
}

/// A burst lends no more packets than the port's limit, and the rest comes with the next bursts.
pub fn a_burst_lends_at_most_burst_max_packets<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let caps = b.caps();
    let count = (2 * caps.burst_max + 3).min(caps.receive_packets.min(caps.receive_packets_per_peer));
    let sent: Vec<_> = (0..count).map(|number| pattern(number, 40)).collect();
    sent.iter().for_each(|bytes| push(&mut a, to, bytes, Mode::Head));
    a.split().1.submit();
    // `receive` checks the length of every burst.
    let got = collect(fixture, &mut b, count);
    assert_arrived(fixture, &got, from, &sent);
}

/// Submitting, flushing and receiving nothing has no effect.
pub fn an_empty_burst_changes_nothing<F: Fixture>(fixture: &mut F) {
    let mut a = fixture.open();
    for _ in 0..10 {
        a.split().1.submit();
        a.split().1.flush();
        assert!(receive(fixture, &mut a).is_empty());
        assert_eq!(a.poll_event(), None);
    }
    assert_eq!(a.stats(), PortStats::default());
}

/// One side's counters of sent packets equal the other side's of received packets.
pub fn counters_add_up<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let (a_before, b_before) = (a.stats(), b.stats());
    let sent: Vec<_> = (0..chunk_len(&b)).map(|number| pattern(number, 24 + number)).collect();
    for (index, bytes) in sent.iter().enumerate() {
        push(&mut a, to, bytes, MODES[index % 3]);
    }
    a.split().1.submit();
    let got = collect(fixture, &mut b, sent.len());
    assert_arrived(fixture, &got, from, &sent);
    let (a_after, b_after) = (a.stats(), b.stats());
    let bytes = |packets: &mut dyn Iterator<Item = usize>| packets.sum::<usize>() as u64;
    assert_eq!(b_after.rx_packets - b_before.rx_packets, got.len() as u64);
    assert_eq!(b_after.rx_bytes - b_before.rx_bytes, bytes(&mut got.iter().map(|(_, bytes)| bytes.len())));
    if !fixture.expectations().lossy {
        assert_eq!(a_after.tx_packets - a_before.tx_packets, sent.len() as u64);
        let (handed_over, overhead) = (bytes(&mut sent.iter().map(Vec::len)), a.caps().overhead as u64);
        let with_what_layers_added = handed_over..=handed_over + overhead * sent.len() as u64;
        assert!(with_what_layers_added.contains(&(a_after.tx_bytes - a_before.tx_bytes)));
        assert_eq!((a_after.dropped_total(), b_after.dropped_total()), (0, 0));
    }
}

/// Several times as many packets as there is room for get through, if they are received in between.
pub fn room_comes_back_once_a_burst_is_given_back<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let chunk_len = chunk_len(&b);
    let count = (b.caps().receive_packets_per_peer * 3).min(20_000);
    for start in (0..count).step_by(chunk_len) {
        let sent: Vec<_> = (start..start + chunk_len).map(|number| pattern(number, 32)).collect();
        sent.iter().for_each(|bytes| push(&mut a, to, bytes, Mode::Borrowed));
        a.split().1.submit();
        let got = collect(fixture, &mut b, sent.len());
        assert_arrived(fixture, &got, from, &sent);
    }
}

/// Of more packets than there is room for, some are lost, the others are in order, and the port keeps working.
pub fn a_flood_loses_packets_and_nothing_else<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let count = (b.caps().receive_packets + 100).min(20_000);
    let sent: Vec<_> = (0..count).map(|number| pattern(number, 40)).collect();
    for (number, bytes) in sent.iter().enumerate() {
        push(&mut a, to, bytes, if number % 2 == 0 { Mode::Head } else { Mode::Shared });
        if number % 16 == 15 {
            a.split().1.submit();
        }
    }
    a.split().1.submit();
    let got = drain(fixture, &mut b);
    assert!(!got.is_empty());
    assert_subsequence(&got, &sent);
    send_until_received(fixture, &mut a, to, &mut b);
}
