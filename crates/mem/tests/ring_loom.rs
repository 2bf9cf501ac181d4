//! The rings and boards under every interleaving that loom finds:
//! `RUSTFLAGS="--cfg loom" cargo test -p sinew-mem --release --test ring_loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use sinew_mem::ring::{self, BOARD_BYTES, Board, Consumer, Doorbell, Far, Producer, Words, bytes_for};

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

fn pair(lines: usize) -> (Producer, Consumer) {
    let words = Words::new(bytes_for(lines) / 8);
    // SAFETY: fresh words, one producer and one consumer.
    unsafe { (Producer::new(words.clone(), lines).unwrap(), Consumer::new(words, lines, false).unwrap()) }
}

fn take(consumer: &mut Consumer) -> Option<u64> {
    let taken = consumer.take()?;
    let mut word = 0u64;
    assert_eq!(taken.len(), 8);
    // SAFETY: the copy is eight bytes, and no slices are alive.
    unsafe {
        consumer.copy_out(&taken, std::ptr::from_mut(&mut word).cast());
        consumer.give_back();
    }
    Some(word)
}

#[test]
fn packets_arrive_once_in_order_and_whole_over_reused_lines() {
    model(|| {
        // Two lines, one of them always spare: every packet reuses what the one before left.
        let (mut producer, mut consumer) = pair(2);
        let sender = thread::spawn(move || {
            for number in 1..=3u64 {
                while producer.push(&number.to_le_bytes(), &[]) == Err(ring::Refused::Full) {
                    thread::yield_now();
                }
                producer.submit();
            }
        });
        let mut expected = 1;
        while expected <= 3 {
            match take(&mut consumer) {
                Some(number) => {
                    assert_eq!(number, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        assert_eq!(take(&mut consumer), None);
        assert!(!consumer.is_broken());
        sender.join().unwrap();
    });
}

#[test]
fn a_copy_that_counts_holds_what_was_sent_and_not_what_was_written_after_a_revocation() {
    model(|| {
        let (mut producer, mut consumer) = pair(4);
        let arena = Arc::new(AtomicU64::new(1));
        let at_sender = Arc::clone(&arena);
        let sender = thread::spawn(move || {
            let position = producer.push_far(&[], Far { offset: 0, len: 8 }).unwrap();
            producer.submit();
            producer.given_back();
            // SAFETY: the position of a far packet.
            unsafe { producer.revoke(position) };
            Producer::revoked();
            at_sender.store(2, Ordering::Relaxed);
        });
        if let Some(taken) = consumer.take()
            && !taken.is_revoked()
        {
            // SAFETY: nothing is given back.
            assert_eq!(unsafe { consumer.far(&taken) }, Some(Far { offset: 0, len: 8 }));
            // SAFETY: the packet is not given back.
            let guard = unsafe { consumer.guard(&taken) }.unwrap();
            let copied = arena.load(Ordering::Relaxed);
            if guard.still_lent() {
                assert_eq!(copied, 1);
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn memory_of_packets_given_back_is_written_only_after_it_was_read() {
    model(|| {
        let (mut producer, mut consumer) = pair(4);
        let arena = Arc::new(AtomicU64::new(1));
        let at_sender = Arc::clone(&arena);
        let sender = thread::spawn(move || {
            let position = producer.push_far(&[], Far { offset: 0, len: 8 }).unwrap();
            producer.submit();
            if producer.given_back() > position {
                at_sender.store(2, Ordering::Relaxed);
            }
        });
        if consumer.take().is_some() {
            assert_eq!(arena.load(Ordering::Relaxed), 1);
            // SAFETY: no slices are alive.
            unsafe { consumer.give_back() };
        }
        sender.join().unwrap();
    });
}

fn board() -> (Board, Doorbell) {
    let words = Words::new(BOARD_BYTES / 8);
    // SAFETY: fresh words for boards and doorbells only.
    unsafe { (Board::new(words.clone()).unwrap(), Doorbell::new(words, 70).unwrap()) }
}

/// Publishes a packet and rings; `woken` stands in for the eventfd.
fn send(producer: &mut Producer, doorbell: &Doorbell, woken: &AtomicBool) {
    producer.push(&[0; 8], &[]).unwrap();
    producer.submit();
    Doorbell::fence();
    if let Some(sleeper) = doorbell.ring() {
        woken.store(true, Ordering::Relaxed);
        doorbell.woken(sleeper);
    }
}

#[test]
fn a_receiver_that_goes_to_sleep_sees_the_packet_or_is_woken() {
    for hot in [true, false] {
        model(move || {
            let (mut producer, consumer) = pair(4);
            let (mut board, doorbell) = board();
            if hot {
                board.set(70);
            }
            let woken = Arc::new(AtomicBool::new(false));
            let sender = thread::spawn({
                let woken = Arc::clone(&woken);
                move || send(&mut producer, &doorbell, &woken)
            });
            board.sleep();
            // A ring whose bit is clear is not looked into: its doorbell has to suffice.
            let sleeps = !board.is_rung() && (!hot || consumer.is_empty());
            sender.join().unwrap();
            assert!(!sleeps || woken.load(Ordering::Relaxed), "the wake-up was lost");
        });
    }
}

#[test]
fn a_ring_that_is_no_longer_polled_is_announced_again() {
    model(|| {
        let (mut producer, consumer) = pair(4);
        let (board, doorbell) = board();
        board.set(70);
        let woken = Arc::new(AtomicBool::new(false));
        let sender = thread::spawn(move || send(&mut producer, &doorbell, &woken));
        board.clear(70);
        let polled = !consumer.is_empty();
        sender.join().unwrap();
        let mut rung = false;
        board.collect(|link| rung |= link == 70);
        assert!(polled || rung, "the packet would wait for ever");
    });
}

#[test]
fn a_late_word_of_a_wake_up_does_not_end_a_later_sleep() {
    model(|| {
        let (mut board, doorbell) = board();
        board.sleep();
        let sleeper = doorbell.ring().expect("the receiver sleeps");
        let other = doorbell.clone();
        let sender = thread::spawn(move || other.woken(sleeper));
        board.end_sleep();
        board.sleep();
        sender.join().unwrap();
        assert!(doorbell.ring().is_some(), "the second sleep is seen");
    });
}
