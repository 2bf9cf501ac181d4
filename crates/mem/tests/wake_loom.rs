//! Wake-ups under every interleaving that loom finds:
//! `RUSTFLAGS="--cfg loom" cargo test -p sinew-mem --release --test wake_loom`. They model what ports and endpoints
//! run: the cell of an alarm, the board of a shared-memory port, and the flag of answers that other threads
//! give back.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use sinew_mem::WakeCell;
use sinew_mem::ring::{BOARD_BYTES, Board, Consumer, Doorbell, Producer, Words, bytes_for};

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// A counter that stands in for an eventfd: readable when it is not 0.
#[derive(Default)]
struct Event(AtomicU32);

impl Event {
    fn write(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn is_readable(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    fn read(&self) -> u32 {
        self.0.swap(0, Ordering::AcqRel)
    }
}

#[derive(Default)]
struct Sleeper {
    cell: WakeCell,
    event: Event,
}

impl Sleeper {
    fn wake(&self) {
        if self.cell.wake() {
            self.event.write();
        }
    }
}

#[test]
fn a_wake_up_ends_the_sleep_that_begins_or_the_next() {
    model(|| {
        let shared = Arc::new((Sleeper::default(), AtomicBool::new(false)));
        let waker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.1.store(true, Ordering::Relaxed);
                shared.0.wake();
            }
        });
        let (sleeper, flag) = &*shared;
        // The sleeper arms, disarms in a turn that comes before or after the wake-up, and arms again.
        let woken = !sleeper.cell.sleep() || sleeper.cell.end_sleep();
        if woken {
            assert!(flag.load(Ordering::Relaxed), "what was done before the wake-up is seen after it");
        }
        let armed = sleeper.cell.sleep();
        waker.join().unwrap();
        assert!(woken || !armed || sleeper.event.is_readable(), "the wake-up was lost");
    });
}

#[test]
fn each_wake_up_that_a_sleeper_saw_was_written_once_and_none_that_it_did_not() {
    model(|| {
        let sleeper = Arc::new(Sleeper::default());
        let wakers = [(); 2].map(|()| {
            let sleeper = Arc::clone(&sleeper);
            thread::spawn(move || sleeper.wake())
        });
        // Number of writes that an alarm expects to read, even if the waker has not made them yet.
        let mut owed = 0;
        for _ in 0..2 {
            if sleeper.cell.sleep() {
                owed += u32::from(sleeper.cell.end_sleep());
            }
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        assert_eq!(sleeper.event.read(), owed, "else the descriptor stays readable, or is never again");
    });
}

/// A worker gives answers back while an endpoint takes a turn and arms again.
#[test]
fn an_armed_endpoint_sees_answers_of_other_threads_or_is_readable() {
    model(|| {
        let shared = Arc::new((Sleeper::default(), AtomicBool::new(false), AtomicU32::new(0)));
        let worker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (sleeper, filled, answers) = &*shared;
                for _ in 0..2 {
                    answers.fetch_add(1, Ordering::AcqRel);
                    if !filled.swap(true, Ordering::AcqRel) {
                        sleeper.wake();
                    }
                }
            }
        });
        let (sleeper, filled, answers) = &*shared;
        // A turn takes what is there.
        let mut taken = 0;
        if filled.load(Ordering::Relaxed) {
            filled.swap(false, Ordering::AcqRel);
            taken += answers.swap(0, Ordering::AcqRel);
        }
        // Arming looks first, since anyone who comes later wakes it.
        let sleeps = !filled.load(Ordering::Relaxed) && sleeper.cell.sleep();
        worker.join().unwrap();
        if sleeps && !sleeper.event.is_readable() {
            assert_eq!(taken + answers.swap(0, Ordering::AcqRel), taken, "an answer would wait for ever");
        }
    });
}

fn board() -> (Board, Doorbell) {
    let words = Words::new(BOARD_BYTES / 8);
    // SAFETY: fresh words for boards and doorbells only.
    unsafe { (Board::new(words.clone()).unwrap(), Doorbell::new(words, 70).unwrap()) }
}

fn pair(lines: usize) -> (Producer, Consumer) {
    let words = Words::new(bytes_for(lines) / 8);
    // SAFETY: fresh words, one producer and one consumer.
    unsafe { (Producer::new(words.clone(), lines).unwrap(), Consumer::new(words, lines, false).unwrap()) }
}

/// A port is armed, disarmed by a turn, and armed again while a sender comes: the packet is seen, or the descriptor is
/// readable and stays so.
#[test]
fn a_port_that_is_armed_again_sees_the_packet_or_is_readable() {
    model(|| {
        let (mut producer, mut consumer) = pair(4);
        let (mut board, doorbell) = board();
        board.set(70);
        let event = Arc::new(Event::default());
        let sender = thread::spawn({
            let event = Arc::clone(&event);
            move || {
                producer.push(&[0; 8], &[]).unwrap();
                producer.submit();
                Doorbell::fence();
                if let Some(sleeper) = doorbell.ring() {
                    event.write();
                    doorbell.woken(sleeper);
                }
            }
        });
        board.sleep();
        if !board.is_rung() && consumer.is_empty() {
            // Armed. The receiver wakes up for another reason and takes a turn.
            board.end_sleep();
            event.read();
        } else {
            board.end_sleep();
        }
        let taken = consumer.take().is_some();
        board.sleep();
        let sleeps = !board.is_rung() && consumer.is_empty();
        sender.join().unwrap();
        // A packet that was taken is gone; one that was not must prevent the sleep or end it.
        assert!(taken || !sleeps || event.is_readable(), "the packet would wait for ever");
    });
}
