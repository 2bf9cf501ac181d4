//! Rounds in which another thread ends a sleep.

use std::sync::mpsc;
use std::time::Duration;

use sinew_fabric::Waker;

/// Makes another thread call `waker` many times, some before and some during a sleep. `sleep` sleeps once; it is passed
/// the time at which the round began.
///
/// # Panics
///
/// When a sleep lasts for `patience_ns` or longer: the wake-up was lost, and the time-out ended the sleep.
pub(crate) fn assert_woken_by_thread(
    waker: Waker,
    patience_ns: u64,
    now_ns: impl Fn() -> u64,
    mut sleep: impl FnMut(u64),
) {
    let (ask, asked) = mpsc::channel::<u64>();
    let (answer, answered) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        for pause_us in asked {
            std::thread::sleep(Duration::from_micros(pause_us));
            if answer.send(()).is_err() {
                return;
            }
            waker.wake();
        }
    });
    for round in 0..100u64 {
        let start_ns = now_ns();
        ask.send(round % 4 * 100).expect("the thread lives");
        while answered.try_recv().is_err() {
            sleep(start_ns);
            assert!(now_ns() - start_ns < patience_ns, "wake-up {round} was lost");
        }
    }
    drop(ask);
    thread.join().expect("the waking thread ends well");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use sinew_fabric::WakeTarget;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(20);

    struct Deaf;

    impl WakeTarget for Deaf {
        fn wake(&self) {}
    }

    #[test]
    #[should_panic(expected = "was lost")]
    fn a_wake_up_that_ends_no_sleep_is_found() {
        let since = Instant::now();
        let now_ns = || since.elapsed().as_nanos() as u64;
        assert_woken_by_thread(Waker::new(Arc::new(Deaf)), PATIENCE.as_nanos() as u64, now_ns, |_| {
            std::thread::sleep(PATIENCE);
        });
    }
}
