//! Load of the processor, as a thread that polls and sleeps can see it: by the times of its turns.

/// Gap between two turns of a spinning thread above which the thread counts as not having run, in nanoseconds.
const LOST_NS: u64 = 20_000;
/// Time over which the share of lost time is taken, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000;
/// Share of a window, in thousandths, above which time lost to others makes the processor count as shared.
const SHARED_PERMILLE: u64 = 300;
/// Share of a window, in thousandths, below which the processor counts as ours again.
const UNSHARED_PERMILLE: u64 = 100;
/// Wake-ups after which the lateness is known.
const WAKES_MIN: u32 = 4;
/// Lateness in nanoseconds below which differences do not count.
const LATE_MIN_NS: u64 = 2_000;

/// Uses of a thread's time, in nanoseconds since the reader was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Time spent spinning that found nothing.
    pub wasted_ns: u64,
    /// Time spent spinning that found something.
    pub ready_ns: u64,
    /// Time in which the thread should have been spinning but did not run, because others had the processor.
    pub lost_ns: u64,
    /// Time asleep, or doing something else while nothing was in flight.
    pub slept_ns: u64,
    /// Delay from an event until the thread runs: the average of recent wake-ups for which the event's time is known.
    pub wake_delay_ns: u64,
    /// Whether others use much of the processor.
    pub is_shared: bool,
}

/// Measures the [`Load`].
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    load: Load,
    last_ns: Option<u64>,
    /// Time spun without finding work, divided by the gets in flight, summed.
    wasted_per_get_ns: u64,
    window: (u64, u64),
    wakes: u32,
    late_reference_ns: u64,
}

impl Meter {
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Time spun without finding work per get in flight, summed since the meter was made: the difference of two values
    /// is one get's share.
    pub fn wasted_per_get_ns(&self) -> u64 {
        self.wasted_per_get_ns
    }

    /// Records a turn that found something or not, after the thread `spun` or slept with `in_flight` gets. If it should
    /// have been spinning, returns since when, and whether it lost the processor meanwhile; otherwise returns `None`.
    pub fn record_turn(&mut self, now_ns: u64, found: bool, spun: bool, in_flight: usize) -> Option<(u64, bool)> {
        let last_ns = self.last_ns.replace(now_ns)?;
        let gap_ns = now_ns.saturating_sub(last_ns);
        if !spun || in_flight == 0 {
            self.load.slept_ns += gap_ns;
            return None;
        }
        let is_lost = gap_ns > LOST_NS;
        if is_lost {
            self.load.lost_ns += gap_ns;
        } else if found {
            self.load.ready_ns += gap_ns;
        } else {
            self.load.wasted_ns += gap_ns;
            self.wasted_per_get_ns += gap_ns / in_flight as u64;
        }
        let (lost, all) = &mut self.window;
        *lost += if is_lost { gap_ns } else { 0 };
        *all += gap_ns;
        if *all >= WINDOW_NS {
            let permille = *lost * 1000 / *all;
            self.window = (0, 0);
            let limit = if self.load.is_shared { UNSHARED_PERMILLE } else { SHARED_PERMILLE };
            self.load.is_shared = permille > limit;
        }
        Some((last_ns, is_lost))
    }

    /// Records a wake-up for an event at `ready_ns`. Returns whether wake-ups have become much later, or much less
    /// late.
    pub fn record_wake(&mut self, ready_ns: u64, now_ns: u64) -> bool {
        let late_ns = now_ns.saturating_sub(ready_ns);
        let average = &mut self.load.wake_delay_ns;
        *average = if self.wakes == 0 { late_ns } else { *average - *average / 8 + late_ns / 8 };
        self.wakes = self.wakes.saturating_add(1);
        if self.wakes < WAKES_MIN {
            return false;
        }
        let (average, reference) = (self.load.wake_delay_ns.max(LATE_MIN_NS), self.late_reference_ns);
        let has_moved = average > reference.saturating_mul(2) || average < reference / 2;
        if has_moved {
            self.late_reference_ns = average;
        }
        has_moved && reference > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_told_apart_by_what_it_went_into() {
        let mut meter = Meter::default();
        for (now_ns, found, spun, in_flight) in [
            (100, false, true, 2),
            (200, false, true, 2),
            (300, true, true, 2),
            (50_300, false, true, 1),
            (60_300, true, false, 1),
        ] {
            meter.record_turn(now_ns, found, spun, in_flight);
        }
        let load = Load { wasted_ns: 100, ready_ns: 100, lost_ns: 50_000, slept_ns: 10_000, ..Load::default() };
        assert_eq!((*meter.load(), meter.wasted_per_get_ns()), (load, 50));
        meter.record_turn(70_300, false, true, 0);
        assert_eq!(meter.load().slept_ns, 20_000, "nothing was under way");
    }

    #[test]
    fn a_processor_that_others_take_is_noticed_once() {
        let mut meter = Meter::default();
        let mut now_ns = 0;
        let mut run = |meter: &mut Meter, gap_ns: u64, for_ns: u64| {
            let end_ns = now_ns + for_ns;
            let mut changes = 0;
            while now_ns < end_ns {
                now_ns += gap_ns;
                let before = meter.load().is_shared;
                let turned = meter.record_turn(now_ns, false, true, 1);
                assert!(turned.is_none_or(|turned| turned == (now_ns - gap_ns, gap_ns > LOST_NS)));
                changes += u32::from(meter.load().is_shared != before);
            }
            changes
        };
        assert_eq!(run(&mut meter, 1000, 5_000_000), 0);
        assert_eq!(run(&mut meter, 100_000, 5_000_000), 1);
        assert!(meter.load().is_shared);
        assert_eq!(run(&mut meter, 1000, 5_000_000), 1);
        assert!(!meter.load().is_shared);
    }

    #[test]
    fn later_wake_ups_are_a_change_and_noise_is_none() {
        let mut meter = Meter::default();
        let changes = |meter: &mut Meter, late_ns: u64| {
            (0..40).filter(|nth| meter.record_wake(1000, 1000 + late_ns + nth % 3 * 500)).count()
        };
        assert_eq!(changes(&mut meter, 5_000), 0);
        assert!(changes(&mut meter, 80_000) > 0);
        assert!((75_000..90_000).contains(&meter.load().wake_delay_ns));
        assert_eq!(changes(&mut meter, 80_000), 0);
        assert!(changes(&mut meter, 500) > 0);
    }
}
