//! Ownership of a packet's bytes: who may touch them, and when.

use super::*;

/// The head of a packet, filled with a mark that identifies it.
fn head(mark: u8) -> [u8; HEAD_LEN] {
    [mark; HEAD_LEN]
}

/// Length of data that is worth sharing and fits in a packet, in bytes.
fn shared_len<P: PacketPort>(port: &P, to: Peer) -> usize {
    (port.packet_len_max(to) - HEAD_LEN).min(port.caps().copy_len_max.saturating_add(500)).min(1 << 20)
}

/// A pushed slice is the caller's again, even before it is submitted.
pub fn borrowed_data_may_be_reused_right_after_push<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let len = (HEAD_LEN + 1000).min(a.packet_len_max(to));
    let count = 4.min(b.caps().receive_packets_per_peer);
    let sent: Vec<_> = (0..count).map(|number| pattern(number, len)).collect();
    let mut scratch = vec![0; len];
    for (number, bytes) in sent.iter().enumerate() {
        scratch.copy_from_slice(bytes);
        push(&mut a, to, &scratch, if number % 2 == 0 { Mode::Head } else { Mode::Borrowed });
        scratch.fill(0xDD);
    }
    a.split().1.submit();
    let got = collect(fixture, &mut b, count);
    assert_arrived(fixture, &got, from, &sent);
}

/// A burst keeps its bytes while its holder sends answers.
pub fn a_lent_burst_stays_readable_while_packets_are_sent<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to_b, to_a) = introduce(fixture, &mut a, &mut b);
    let count = 8.min(b.caps().receive_packets_per_peer).min(b.caps().burst_max);
    let len = (HEAD_LEN + 300).min(a.packet_len_max(to_b));
    let sent: Vec<_> = (0..count).map(|number| pattern(number, len)).collect();
    for (index, bytes) in sent.iter().enumerate() {
        push(&mut a, to_b, bytes, MODES[index % 3]);
    }
    a.split().1.submit();

    let deadline_ns = fixture.now_ns() + patience_for_missing_ns(fixture);
    let mut lent = 0;
    let mut answers = Vec::new();
    while lent < count && fixture.now_ns() < deadline_ns {
        b.wait(Some(1_000_000)).expect("waiting works");
        let (rx, tx) = b.split();
        let mut burst = RxBurst::new(fixture.now_ns());
        rx.receive(&mut burst);
        let first_look: Vec<_> = burst.packets.iter().map(bytes_of).collect();
        for packet in &burst.packets {
            // The answer borrows from the burst if it can.
            let answer = packet.head;
            tx.push(TxPacket { to: packet.from, head: &head(9), data: TxData::Bytes(answer) });
            answers.push([&head(9), answer].concat());
            tx.submit();
        }
        let second_look: Vec<_> = burst.packets.iter().map(bytes_of).collect();
        assert_eq!(first_look, second_look, "a lent burst changed while packets were sent");
        lent += burst.packets.len();
    }
    if !fixture.expectations().lossy {
        assert_eq!(lent, count);
    }
    // An answer is longer by its head, so it may be over the limit if its packet is as long as the limit.
    let fitting: Vec<_> = answers.into_iter().filter(|answer| answer.len() <= b.packet_len_max(to_a)).collect();
    let got = collect(fixture, &mut a, fitting.len());
    assert_arrived(fixture, &got, to_b, &fitting);
}

/// Once a packet has been delivered and given back, a flush returns its buffer to the owner.
pub fn shares_end_with_flush_after_delivery<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let data = pattern(1, shared_len(&a, to));
    let buffer = share(&a, &data);
    push_share(&mut a, to, &head(1), &buffer);
    a.split().1.submit();
    let got = collect(fixture, &mut b, 1);
    assert_arrived(fixture, &got, from, &[[&head(1), &data[..]].concat()]);
    receive(fixture, &mut b);
    a.split().1.flush();
    assert!(buffer.thaw().is_ok(), "a share outlived the flush");
}

/// A flush never waits for the peer: buffers are free at once even if nobody received.
pub fn shares_end_with_flush_before_delivery<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let count = 4.min(b.caps().receive_packets_per_peer);
    let buffers: Vec<_> = (0..count).map(|number| share(&a, &pattern(number, shared_len(&a, to)))).collect();
    for (number, buffer) in buffers.iter().enumerate() {
        push_share(&mut a, to, &head(number as u8), buffer);
        // The last packet is only pushed: a flush ends its share all the same.
        if number + 1 < count {
            a.split().1.submit();
        }
    }
    a.split().1.flush();
    for buffer in buffers {
        assert!(buffer.thaw().is_ok(), "a share outlived the flush");
    }
    a.split().1.submit();
    drain(fixture, &mut b);
    send_until_received(fixture, &mut a, to, &mut b);
}

/// One buffer can be reclaimed by itself.
pub fn shares_of_one_buffer_end_with_reclaim<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let len = shared_len(&a, to);
    let (first, second) = (share(&a, &pattern(1, len)), share(&a, &pattern(2, len)));
    push_share(&mut a, to, &head(1), &first);
    push_share(&mut a, to, &head(2), &second);
    a.split().1.submit();
    a.split().1.reclaim(&first);
    let mut first = first.thaw().expect("a share outlived its reclaim");
    first.fill(&vec![0xCC; SHARED_START + len]).expect("the buffer has its length");
    for (_, bytes) in drain(fixture, &mut b) {
        let original = pattern(usize::from(bytes[0]), len);
        assert!(bytes[HEAD_LEN..] == original, "a packet arrived with bytes written after its buffer was reclaimed");
    }
    a.split().1.flush();
    assert!(second.thaw().is_ok(), "a share outlived the flush");
}

/// Bytes written to a buffer after a flush never arrive as the packet that was sent from it before.
pub fn a_reused_buffer_never_arrives_as_the_old_packet<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let len = shared_len(&a, to);
    let mut buffer = share(&a, &pattern(0, len));
    // Revoked packets may still take room.
    let rounds = (b.caps().receive_packets_per_peer - 1).min(20) as u8;
    for round in 1..=rounds {
        push_share(&mut a, to, &head(round - 1), &buffer);
        a.split().1.submit();
        a.split().1.flush();
        let mut writable = buffer.thaw().expect("a share outlived the flush");
        writable[SHARED_START..].copy_from_slice(&pattern(usize::from(round), len));
        buffer = writable.freeze();
    }
    push_share(&mut a, to, &head(rounds), &buffer);
    a.split().1.submit();
    let got = drain(fixture, &mut b);
    for (_, bytes) in &got {
        let original = pattern(usize::from(bytes[0]), len);
        assert!(bytes[HEAD_LEN..] == original, "packet {} arrived with a later one's bytes", bytes[0]);
    }
    if !fixture.expectations().lossy {
        assert!(got.iter().any(|(_, bytes)| bytes[0] == rounds), "what was sent after the last flush must arrive");
    }
}

/// A burst that is lent while its sender flushes shows the old bytes or none.
pub fn a_reused_buffer_never_shows_in_a_lent_burst<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let data = pattern(1, shared_len(&a, to));
    let buffer = share(&a, &data);
    push_share(&mut a, to, &head(1), &buffer);
    a.split().1.submit();
    b.wait(Some(fixture.expectations().patience_ns)).expect("waiting works");
    let mut burst = RxBurst::new(fixture.now_ns());
    b.split().0.receive(&mut burst);
    a.split().1.flush();
    let mut writable = buffer.thaw().expect("a share outlived the flush");
    writable.fill(&vec![0xCC; SHARED_START + data.len()]).expect("the buffer has its length");
    for packet in &burst.packets {
        if let Some(bytes) = bytes_of(packet) {
            assert!(bytes[HEAD_LEN..] == data, "a lent packet shows bytes written after the flush");
        }
    }
}

/// A port copies data that lies in a foreign arena.
pub fn shares_of_a_foreign_arena_arrive_too<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, from) = introduce(fixture, &mut a, &mut b);
    let data = pattern(1, shared_len(&a, to));
    let foreign = sinew_mem::Arena::private(4096 + 2 * data.len()).expect("there is address space");
    let mut buffer = foreign.alloc(SHARED_START + data.len(), 1024).expect("the arena has room");
    buffer[SHARED_START..].copy_from_slice(&data);
    let buffer = buffer.freeze();
    push_share(&mut a, to, &head(1), &buffer);
    a.split().1.submit();
    let got = collect(fixture, &mut b, 1);
    assert_arrived(fixture, &got, from, &[[&head(1), &data[..]].concat()]);
    receive(fixture, &mut b);
    a.split().1.flush();
    assert!(buffer.thaw().is_ok(), "a share outlived the flush");
}
