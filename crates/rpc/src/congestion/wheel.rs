//! The pacing wheel (after Carousel): returns each item when it is due.
//!
//! It holds sessions, not packets: as in the transmit queue, a packet is made from its session's state only when it is
//! sent. So no buffer waits here (nsdi19 appendix C is about wheels that hold buffers).

use std::collections::VecDeque;

/// Time of one place, in ns.
const TICK_NS: u64 = 1_000;
/// Number of places. Items whose time is further ahead go around again.
const BUCKETS: usize = 1 << 12;

/// Items by time, in ticks.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    /// Each item with the tick at which it is due.
    buckets: Vec<VecDeque<(u64, T)>>,
    /// All items due before this tick have been taken out.
    tick: u64,
    len: usize,
}

impl<T> Wheel<T> {
    pub fn new(now_ns: u64) -> Self {
        Self { buckets: Vec::new(), tick: now_ns / TICK_NS, len: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts an item that is to be due at `time_ns`, or up to a tick later. An empty wheel need not be kept up to
    /// date: it is set to `now_ns` at once.
    pub fn insert(&mut self, time_ns: u64, item: T, now_ns: u64) {
        if self.buckets.is_empty() {
            // Allocated late, since only sessions with limits need it.
            self.buckets.resize_with(BUCKETS, VecDeque::new);
        }
        if self.len == 0 {
            self.tick = self.tick.max(now_ns / TICK_NS);
        }
        self.push_to_bucket(time_ns.div_ceil(TICK_NS).max(self.tick), item);
        self.len += 1;
    }

    fn push_to_bucket(&mut self, due: u64, item: T) {
        let ahead = (due - self.tick).min(BUCKETS as u64 - 1);
        self.buckets[(self.tick + ahead) as usize % BUCKETS].push_back((due, item));
    }

    /// Takes out the items that are due. If the wheel was not turned for long, this takes as long as it has places, at
    /// most; if it is empty, no time.
    pub fn take_due(&mut self, now_ns: u64, mut taken: impl FnMut(T)) {
        let now = now_ns / TICK_NS;
        if self.len > 0 && now.saturating_sub(self.tick) > BUCKETS as u64 {
            self.skip_to(now);
        }
        while self.len > 0 && self.tick <= now {
            let bucket = self.tick as usize % BUCKETS;
            for _ in 0..self.buckets[bucket].len() {
                let Some((due, item)) = self.buckets[bucket].pop_front() else { break };
                if due <= now {
                    self.len -= 1;
                    taken(item);
                } else {
                    self.push_to_bucket(due, item);
                }
            }
            self.tick += 1;
        }
    }

    /// Moves everything that was due by `now` to where it is taken out at once, in order: after a long pause, the wheel
    /// need not turn through that time.
    #[cold]
    fn skip_to(&mut self, now: u64) {
        let mut items: Vec<(u64, T)> = self.buckets.iter_mut().flat_map(|place| place.drain(..)).collect();
        items.sort_by_key(|(due, _)| *due);
        self.tick = now;
        items.into_iter().for_each(|(due, item)| self.push_to_bucket(due.max(now), item));
    }

    /// When an item may next be due.
    pub fn next_ns(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let ahead =
            (0..BUCKETS as u64).find(|ahead| !self.buckets[(self.tick + ahead) as usize % BUCKETS].is_empty())?;
        Some((self.tick + ahead) * TICK_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(wheel: &mut Wheel<u32>, now_ns: u64) -> Vec<u32> {
        let mut items = Vec::new();
        wheel.take_due(now_ns, |item| items.push(item));
        items
    }

    #[test]
    fn items_leave_at_their_time_and_in_order() {
        let mut wheel = Wheel::new(5_000);
        for (time_ns, item) in [(9_000, 3), (7_000, 1), (7_500, 2), (0, 0), (9_999, 4)] {
            wheel.insert(time_ns, item, 5_000);
        }
        assert_eq!(wheel.next_ns(), Some(5_000));
        assert_eq!(due(&mut wheel, 6_999), [0]);
        assert_eq!(due(&mut wheel, 7_000), [1]);
        assert_eq!((due(&mut wheel, 8_999), wheel.next_ns()), (vec![2], Some(9_000)));
        assert_eq!(due(&mut wheel, 50_000), [3, 4]);
        assert_eq!((wheel.is_empty(), wheel.next_ns()), (true, None));
    }

    #[test]
    fn what_is_further_ahead_than_the_wheel_is_long_goes_around_until_its_time() {
        let mut wheel = Wheel::new(0);
        let far_ns = 10 * BUCKETS as u64 * TICK_NS + 7_000;
        wheel.insert(far_ns, 1, 0);
        wheel.insert(u64::MAX, 2, 0);
        for step in 1..=40 {
            assert_eq!(due(&mut wheel, step * (far_ns - 1) / 40), [0; 0]);
        }
        assert_eq!(due(&mut wheel, far_ns), [1]);
        assert!(!wheel.is_empty() && wheel.next_ns().is_some());
    }

    #[test]
    fn an_empty_wheel_catches_up_at_once() {
        let mut wheel = Wheel::new(0);
        wheel.insert(10, 1, 0);
        assert_eq!(due(&mut wheel, 1_000), [1]);
        // A hundred years: turning place by place through that would not end.
        let later_ns = 100 * 365 * 86_400 * 1_000_000_000;
        wheel.insert(later_ns + 2_000, 2, later_ns);
        assert_eq!(due(&mut wheel, later_ns + 1_999), [0; 0]);
        assert_eq!(due(&mut wheel, later_ns + 2_000), [2]);
    }

    #[test]
    fn a_wheel_that_nobody_looked_at_gives_all_in_order() {
        let mut wheel = Wheel::new(0);
        (0..1000).for_each(|item| wheel.insert(u64::from(item) * 30_000, item, 0));
        wheel.insert(u64::MAX, 5000, 0);
        assert_eq!(due(&mut wheel, 1 << 62), (0..1000).collect::<Vec<_>>());
    }
}
