//! Tests of a ring's two ends, with trusted and with hostile peers.

use std::collections::VecDeque;

use super::packet::*;
use super::*;
use crate::atomic::Ordering;
use crate::shared::SharedBytes;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

/// Both ends over one memory, which is read as if another process wrote it.
fn untrusted(lines: usize) -> (Producer, Consumer, Words) {
    let region = Arc::new(Region::private(bytes_for(lines)).unwrap());
    let words = Words::of_region(&region, 0, bytes_for(lines)).unwrap();
    // SAFETY: fresh memory, one producer and one consumer.
    unsafe {
        let producer = Producer::new(words.clone(), lines).unwrap();
        (producer, Consumer::new(words.clone(), lines, false).unwrap(), words)
    }
}

#[test]
fn a_small_packet_is_one_line_and_none_is_more_than_four() {
    for (len, lines) in [(0, 1), (1, 1), (56, 1), (57, 2), (120, 2), (121, 3), (184, 3), (185, 4), (248, 4)] {
        let (mut producer, mut consumer) = pair(16).unwrap();
        producer.push(&bytes(len, 1), &[]).unwrap();
        assert!(consumer.is_empty(), "not before it is submitted");
        producer.submit();
        assert_eq!(producer.position(), lines, "{len}");
        assert_eq!(consumer.pop(<[u8]>::to_vec), Some(bytes(len, 1)));
        assert_eq!(consumer.position(), lines);
    }
    let (mut producer, _consumer) = pair(16).unwrap();
    assert_eq!(producer.push(&[0; 249], &[]), Err(Refused::TooLong));
    assert_eq!(producer.push_far(&[0; 41], Far { offset: 0, len: 1 }), Err(Refused::TooLong));
}

#[test]
fn a_ring_holds_the_packets_it_promises() {
    let sizes: &[usize] = if cfg!(miri) { &[8, 16] } else { &[8, 16, 64, 1024] };
    for &lines in sizes {
        for start in (0..lines.min(20)).step_by(if cfg!(miri) { 5 } else { 1 }) {
            let (mut producer, mut consumer) = pair(lines).unwrap();
            for _ in 0..start {
                producer.push(&[], &[]).unwrap();
                producer.submit();
                consumer.pop(|_| ()).unwrap();
            }
            for packet in 0..packets_for(lines) {
                assert_eq!(
                    producer.push(&[0; INLINE_MAX], &[]),
                    Ok(()),
                    "packet {packet} of {lines} lines from {start}"
                );
            }
        }
        assert!(packets_for(lines_for(lines)) >= lines);
    }
}

#[test]
fn a_full_ring_takes_again_what_was_given_back() {
    let (mut producer, mut consumer) = pair(8).unwrap();
    for round in 0..if cfg!(miri) { 3 } else { 50 } {
        let mut sent = 0;
        while producer.push(&[round], &[]).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 7, "one line is spare");
        assert_eq!(consumer.receive(64, |bytes| assert_eq!(bytes, [round])), 7);
    }
}

#[test]
fn old_bytes_never_look_like_a_packet() {
    // The payload is, word for word, what a later packet's word would be.
    let (mut producer, mut consumer, _) = untrusted(8);
    for _ in 0..if cfg!(miri) { 4 } else { 100 } {
        let mut payload = Vec::new();
        while payload.len() < INLINE_MAX {
            let position = producer.position() + 8 + (payload.len() as u64 + 8) / 64;
            payload.extend(word_of(position, 5, KIND_INLINE).to_le_bytes());
        }
        producer.push(&payload, &[]).unwrap();
        producer.submit();
        assert_eq!(consumer.pop(<[u8]>::to_vec), Some(payload));
        assert!(consumer.is_empty() && consumer.take().is_none());
    }
}

#[test]
fn packets_of_one_line_clear_what_longer_ones_left_behind_them() {
    for (lines, start) in (0..if cfg!(miri) { 1 } else { 8 }).flat_map(|start| [(8, start), (128, start)]) {
        let (mut producer, mut consumer, _) = untrusted(lines);
        let full = [7u64.to_ne_bytes(); 7];
        let one = |producer: &mut Producer, consumer: &mut Consumer| {
            producer.push(full.as_flattened(), &[]).unwrap();
            producer.submit();
            assert_eq!(consumer.pop(<[u8]>::len), Some(FULL_LINE));
            assert!(consumer.is_empty() && consumer.take().is_none());
        };
        for _ in 0..start {
            one(&mut producer, &mut consumer);
        }
        for _ in 0..3 {
            // The payload is, word for word, what packets of the next lap would begin with.
            let mut payload = Vec::new();
            while payload.len() < INLINE_MAX {
                let position = producer.position() + lines as u64 + (payload.len() as u64 + 8) / 64;
                payload.extend(word_of(position, 5, KIND_INLINE).to_le_bytes());
            }
            producer.push(&payload, &[]).unwrap();
            producer.submit();
            assert!(consumer.pop(|_| ()).is_some());
            for _ in 0..lines {
                one(&mut producer, &mut consumer);
            }
        }
    }
}

#[test]
fn bytes_arrive_in_one_piece_or_two_of_whatever_length_and_alignment() {
    let source: Vec<u8> = (1..=96).collect();
    for (head, data, shift) in
        (0..=56).flat_map(|head| (0..=56 - head).flat_map(move |data| [0, 3].map(|shift| (head, data, shift))))
    {
        if cfg!(miri) && (head + data) % 13 != 4 {
            continue;
        }
        for trusted in [true, false] {
            let (mut producer, mut consumer) = if trusted {
                pair(8).unwrap()
            } else {
                let (producer, consumer, _) = untrusted(8);
                (producer, consumer)
            };
            let bytes = &source[shift..];
            producer.push(&bytes[..head], &bytes[head..head + data]).unwrap();
            producer.submit();
            assert_eq!(consumer.pop(<[u8]>::to_vec).unwrap(), bytes[..head + data]);
        }
    }
}

#[test]
fn a_packet_is_copied_out_of_the_ring_a_part_at_a_time() {
    for len in (0..=INLINE_MAX).filter(|len| !cfg!(miri) || len % 8 == 0 || len % 37 == 0) {
        let (mut producer, consumer, _) = untrusted(16);
        let packet = bytes(len, 1);
        producer.push(&packet, &[]).unwrap();
        producer.submit();
        let whole = consumer.next_whole().unwrap();
        assert_eq!((whole.len(), whole.split_words::<2>().is_some()), (len, len >= 16));
        let (words, rest) = whole.split_words::<2>().unwrap_or(([0; 2], whole));
        let start = if len >= 16 { 16 } else { 0 };
        assert_eq!(words.map(u64::to_le_bytes).as_flattened()[..start], packet[..start]);
        let mut target = vec![0xEE; rest.len() + 1];
        if !rest.is_empty() {
            assert!(!rest.copy_to(&mut target[..rest.len() - 1]));
            assert!(target.iter().all(|&byte| byte == 0xEE), "nothing is copied where not all fits");
        }
        assert!(rest.copy_to(&mut target));
        assert_eq!((&target[..rest.len()], target[rest.len()]), (&packet[start..], 0xEE));
    }
    let (mut producer, mut consumer, _) = untrusted(8);
    producer.push_far(&[1; 40], Far { offset: 0, len: 100 }).unwrap();
    producer.submit();
    assert!(consumer.next_whole().is_none() && consumer.take().is_some(), "its rest is elsewhere");
}

#[test]
fn whole_packets_are_taken_in_turn_up_to_the_first_that_is_refused_or_of_another_kind() {
    let (mut producer, mut consumer) = pair(16).unwrap();
    for round in 0..20u8 {
        // The packets are of one line, of several, and one that is not whole; some bursts skip the ring's end.
        let packets = [vec![round; 8], vec![round; 56], vec![round; 57], vec![round; 200]];
        for packet in &packets {
            producer.push(packet, &[]).unwrap();
        }
        producer.push_far(&[round; 40], Far { offset: 0, len: 100 }).unwrap();
        producer.submit();
        let (mut seen, mut refused) = (Vec::new(), false);
        while seen.len() < packets.len() {
            let took_all = consumer.take_whole(|packet| {
                let mut copy = vec![0; packet.len()];
                assert!(packet.copy_to(&mut copy));
                // Each is refused once.
                refused = !refused;
                if !refused {
                    seen.push(copy);
                }
                !refused
            });
            assert!(!took_all, "there is always one more, which is not whole");
            // A record that skips the ring's end is no packet.
            if seen.len() < packets.len()
                && consumer.next_whole().is_none()
                && let Some(taken) = consumer.take()
                && taken.is_whole()
            {
                // SAFETY: it was just taken from a ring whose producer keeps the rules.
                seen.push(unsafe { consumer.bytes_in_place(&taken) }.to_vec());
            }
        }
        assert_eq!(seen, packets);
        assert!(consumer.take().is_some_and(|taken| taken.is_far()));
        assert!(consumer.take_whole(|_| panic!("there is no other")));
        // SAFETY: no slice is alive.
        unsafe { consumer.give_back() };
    }
}

#[test]
fn a_ring_looks_empty_before_its_first_packet_and_behind_its_last() {
    let (mut producer, mut consumer) = pair(16).unwrap();
    assert!(consumer.looks_empty() && !consumer.has_nothing_new(), "only one of them is certain of an unused ring");
    for _ in 0..40 {
        producer.push(&[7; 8], &[]).unwrap();
        assert!(consumer.looks_empty(), "it is not published");
        producer.submit();
        assert!(!consumer.looks_empty() && !consumer.has_nothing_new() && consumer.take().is_some());
        assert!(consumer.looks_empty() && consumer.has_nothing_new());
        // SAFETY: no slice is alive.
        unsafe { consumer.give_back() };
    }
}

#[test]
fn two_words_and_a_message_arrive_as_any_packet_does_or_not_at_all() {
    let head = [0x0102_0304_0506_0708, 9];
    let words: Vec<u64> = (1..=7).collect();
    // SAFETY: these are the words' bytes.
    let message = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
    let (mut producer, mut consumer, _) = untrusted(8);
    let mut pushed_count = 0;
    for len in 0..=56 {
        let pushed = producer.push_words(head, &message[..len]);
        assert!(!pushed || (len % 8 == 0 && len <= 40), "{len}");
        pushed_count += usize::from(pushed);
        if pushed {
            producer.submit();
            let expected = [head.map(u64::to_le_bytes).as_flattened(), &message[..len]].concat();
            assert_eq!(consumer.pop(<[u8]>::to_vec), Some(expected));
            producer.given_back();
        } else {
            // Whatever else there is, and what the ring must check first, takes the general path.
            producer.push(&message[..len], &[]).unwrap();
            producer.submit();
            assert_eq!(consumer.pop(<[u8]>::len), Some(len));
        }
        assert!(consumer.take().is_none());
    }
    // Before some of them the ring had to be checked.
    assert!(pushed_count > 0 || cfg!(any(miri, loom)));
}

#[test]
fn a_description_arrives_and_is_revoked_alone() {
    let (mut producer, mut consumer, _) = untrusted(8);
    let mut memory = bytes(1000, 3);
    let positions: Vec<_> =
        (0..3).map(|at| producer.push_far(&[at; 40], Far { offset: 5, len: 900 }).unwrap()).collect();
    producer.submit();
    // SAFETY: the positions of far packets, here and below.
    unsafe { producer.revoke(positions[1]) };
    Producer::revoked();
    let taken: Vec<_> = std::iter::from_fn(|| consumer.take()).collect();
    assert_eq!(taken.iter().map(Taken::is_revoked).collect::<Vec<_>>(), [false, true, false]);
    // SAFETY: nothing is given back yet.
    assert_eq!(unsafe { consumer.far(&taken[2]) }, Some(Far { offset: 5, len: 900 }));
    for (at, counts) in [(0, true), (2, false)] {
        if !counts {
            // SAFETY: as above.
            unsafe { producer.revoke(positions[at]) };
            Producer::revoked();
        }
        // SAFETY: nothing is given back yet.
        let guard = unsafe { consumer.guard(&taken[at]) };
        let mut copy = vec![0; 900];
        assert_eq!(SharedBytes::from_exclusive(&mut memory[5..905], guard).copy_to(&mut copy).is_ok(), counts);
        let mut head = [0; 64];
        // SAFETY: a head is at most one line.
        unsafe { consumer.copy_out(&taken[at], head.as_mut_ptr()) };
        assert_eq!(head[..40], [at as u8; 40]);
    }
    // SAFETY: no slices are alive.
    unsafe { consumer.give_back() };
    assert!(producer.given_back() > positions[2]);
    // This revocation comes too late, and the line may be another packet's: nothing is written.
    producer.push(b"next", &[]).unwrap();
    producer.submit();
    // SAFETY: as above.
    unsafe { producer.revoke(positions[2]) };
    assert_eq!(consumer.pop(<[u8]>::to_vec).unwrap(), b"next");
}

/// A small generator, so that miri can run this too.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn behaves_like_a_queue_at_every_size() {
    let steps = if cfg!(miri) { 60 } else { 20_000 };
    for (lines, seed) in [(8, 1), (8, 2), (16, 3), (32, 4), (64, 5)] {
        for trusted in [true, false] {
            let mut random = Random(seed);
            let (mut producer, mut consumer) = match trusted {
                true => pair(lines).unwrap(),
                false => {
                    let (producer, consumer, _) = untrusted(lines);
                    (producer, consumer)
                }
            };
            let mut model = VecDeque::new();
            // Packets of the model that were submitted.
            let mut visible = 0;
            for step in 0..steps {
                match random.below(4) {
                    0 | 1 => {
                        let len = match random.below(3) {
                            0 => random.below(57),
                            _ => random.below(INLINE_MAX as u64 + 1),
                        } as usize;
                        let packet = bytes(len, step);
                        let split = random.below(len as u64 + 1) as usize;
                        let sent = producer.push(&packet[..split], &packet[split..]);
                        if sent.is_ok() {
                            model.push_back(packet);
                        }
                        assert!(sent.is_ok() || model.len() >= packets_for(lines), "room was promised");
                    }
                    2 => {
                        producer.submit();
                        visible = model.len();
                    }
                    _ => {
                        let burst = random.below(5) as usize;
                        let got = consumer.receive(burst, |bytes| assert_eq!(bytes, model.pop_front().unwrap()));
                        // A push that looked for room has submitted what was before it.
                        assert!(got >= burst.min(visible));
                        visible = visible.saturating_sub(got);
                    }
                }
            }
            assert!(!consumer.is_broken() && !producer.is_broken());
        }
    }
}

#[test]
fn two_threads_pass_every_packet_once() {
    let packets = if cfg!(miri) { 40 } else { 200_000u64 };
    let (mut producer, mut consumer) = pair(64).unwrap();
    let sender = std::thread::spawn(move || {
        for number in 0..packets {
            let packet = bytes((number % 240) as usize, number as usize);
            while producer.push(&number.to_le_bytes(), &packet).is_err() {
                std::thread::yield_now();
            }
            if number % 7 < 3 {
                producer.submit();
            }
        }
        producer.submit();
    });
    let mut number = 0;
    while number < packets {
        let got = consumer.receive(32, |packet| {
            assert_eq!(packet[..8], number.to_le_bytes());
            assert_eq!(packet[8..], bytes((number % 240) as usize, number as usize));
            number += 1;
        });
        if got == 0 {
            std::thread::yield_now();
        }
    }
    sender.join().unwrap();
}

#[test]
fn hostile_words_neither_panic_nor_leave_the_ring_nor_loop() {
    let rounds = if cfg!(miri) { 4 } else { 3000 };
    let lines = 16;
    let mut random = Random(11);
    for _ in 0..rounds {
        let (_, mut consumer, words) = untrusted(lines);
        let mut taken_count = 0;
        for _ in 0..200 {
            // Nearly correct words do the most harm.
            let position = consumer.position() + random.below(3);
            let word = match random.below(4) {
                0 => (random.below(1 << 31) << 33) ^ random.below(1 << 31),
                1 => word_of(position, 0xFFF0 + random.below(16) as usize, 0),
                _ => word_of(position, random.below(300) as usize, random.below(6)),
            };
            let line = random.below(lines as u64);
            let index = (position as usize + line as usize / 8) % lines;
            // SAFETY: the index lies in the ring.
            unsafe { words.word(FIRST_LINE_WORD + index * 8) }.store(word, Ordering::Release);
            loop {
                let mut copy = [0; INLINE_MAX + 8];
                let whole_len = consumer.next_whole().map(|packet| {
                    assert!(packet.copy_to(&mut copy));
                    packet.len()
                });
                let Some(taken) = consumer.take() else { break };
                // What is not whole may be a record that skips the ring's end, before a packet that is.
                assert!(whole_len.is_none_or(|len| taken.is_whole() && taken.len() == len));
                assert!(taken.len() <= INLINE_MAX && taken.copy_len() <= copy.len());
                // SAFETY: the target is large enough.
                unsafe {
                    consumer.copy_out(&taken, copy.as_mut_ptr());
                    consumer.give_back();
                }
                taken_count += 1;
                assert!(taken_count < 10_000, "the consumer never stops");
            }
        }
    }
}

#[test]
fn a_consumer_that_gives_back_what_it_never_had_breaks_the_ring() {
    for lie in [1, 8, u64::MAX, 1 << 40] {
        let (mut producer, _consumer, words) = untrusted(8);
        while producer.push(&[], &[]).is_ok() {}
        // SAFETY: the index of the word that holds the consumer's position.
        unsafe { words.word(HEAD_WORD) }.store(lie, Ordering::Release);
        let result = producer.push(&[], &[]);
        match lie {
            1 => assert_eq!(result, Ok(())),
            _ => assert_eq!(result, Err(Refused::Broken), "{lie}"),
        }
    }
}

#[test]
fn rings_of_wrong_sizes_are_refused() {
    for lines in [0, 1, 7, 9, 100, LINES_MAX * 2] {
        assert!(pair(lines).is_err(), "{lines}");
    }
    let region = Arc::new(Region::private(4096).unwrap());
    for (offset, bytes) in [(0, 4160), (64, 4096), (8, 64), (0, 63), (usize::MAX - 63, 128)] {
        assert!(Words::of_region(&region, offset, bytes).is_none());
    }
}
