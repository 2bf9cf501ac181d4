//! Checks of numbers, whatever hands them out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sinew::sequencer::Client;

use super::common::PATIENCE;

/// Checks the numbers of all clients against each other.
#[derive(Default)]
pub struct Judge {
    /// One more than the greatest number of any finished call.
    floor: AtomicU64,
}

impl Judge {
    /// Makes `calls` calls, each checked against all that had finished when it began. Returns the numbers.
    pub fn drive(&self, client: &mut (impl Client + ?Sized), calls: usize) -> Vec<u64> {
        let (mut begun, mut taken) = (0, Vec::with_capacity(calls));
        let mut floors = vec![0; calls];
        let clock = Instant::now();
        while taken.len() < calls {
            while begun < calls && client.in_flight() < client.window() {
                floors[begun] = self.floor.load(Ordering::SeqCst);
                client.request(begun as u64, 1).unwrap();
                begun += 1;
            }
            let is_busy = client.turn(clock.elapsed().as_nanos() as u64).unwrap();
            while let Some(answer) = client.answer() {
                let number = answer.result.unwrap().first;
                assert!(number >= floors[answer.tag as usize], "{number} is below what was over before");
                self.floor.fetch_max(number + 1, Ordering::SeqCst);
                taken.push(number);
            }
            if !is_busy {
                assert!(clock.elapsed() < PATIENCE, "{} of {calls} answers", taken.len());
                std::thread::yield_now();
            }
        }
        taken
    }
}

/// Returns the count of numbers, none of which may occur twice.
pub fn count_unique(taken: Vec<Vec<u64>>) -> u64 {
    let mut all = taken.concat();
    all.sort_unstable();
    let doubles = all.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(doubles, 0);
    all.len() as u64
}
