//! A moving average that forgets with time.

/// Weight of a whole sample.
const ONE: u64 = 256;
/// The most that all earlier samples together weigh, in samples.
const MEMORY: u64 = 8;

/// An average in which each sample weighs half as much after each half-life, and all earlier samples together weigh no
/// more than eight. So it follows a change within some ten samples where they are dense, and with the next sample where
/// they are rare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    mean: u64,
    /// Weight of all samples at the time of the last one.
    weight: u64,
    last_ns: u64,
    samples: u32,
}

impl Estimate {
    /// Adds a sample.
    pub fn add(&mut self, value: u64, now_ns: u64, half_life_ns: u64) {
        let before = self.weight_at(now_ns, half_life_ns).min(MEMORY * ONE);
        let sum = u128::from(self.mean) * u128::from(before) + u128::from(value) * u128::from(ONE);
        self.weight = before + ONE;
        self.mean = (sum / u128::from(self.weight)) as u64;
        self.last_ns = now_ns;
        self.samples = self.samples.saturating_add(1);
    }

    fn weight_at(&self, now_ns: u64, half_life_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        let (halves, rest_ns) = (elapsed_ns / half_life_ns.max(1), elapsed_ns % half_life_ns.max(1));
        let weight = self.weight.checked_shr(halves.min(64) as u32).unwrap_or(0);
        // Linear between half-lives.
        weight - (u128::from(weight) * u128::from(rest_ns) / (2 * u128::from(half_life_ns.max(1)))) as u64
    }

    /// The average; `None` without a sample.
    pub fn mean(&self) -> Option<u64> {
        (self.samples > 0).then_some(self.mean)
    }

    /// Samples since it was made or last forgotten.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Time of the last sample, in nanoseconds.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Skips time in which nothing could be measured, so that it does not age the samples.
    pub fn skip(&mut self, ns: u64) {
        self.last_ns = self.last_ns.saturating_add(ns);
    }

    /// Forgets what was measured.
    pub fn forget(&mut self) {
        self.weight = 0;
        self.samples = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_NS: u64 = 1000;

    #[test]
    fn dense_samples_are_averaged_and_a_change_is_followed() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.mean(), None);
        for now_ns in 0..100 {
            estimate.add(if now_ns % 2 == 0 { 90 } else { 110 }, now_ns, HALF_NS);
        }
        assert!((95..=105).contains(&estimate.mean().unwrap()), "{estimate:?}");
        for now_ns in 100..120 {
            estimate.add(1000, now_ns, HALF_NS);
        }
        assert!(estimate.mean().unwrap() > 850, "{estimate:?}");
    }

    #[test]
    fn a_rare_sample_replaces_what_is_old() {
        let mut estimate = Estimate::default();
        (0..50).for_each(|now_ns| estimate.add(1000, now_ns, HALF_NS));
        let mut halved = estimate;
        halved.add(0, 50 + 3 * HALF_NS, HALF_NS);
        assert!(
            (400..=560).contains(&halved.mean().unwrap()),
            "8 samples weigh one after three half-lives: {halved:?}"
        );
        estimate.add(7, u64::MAX, HALF_NS);
        assert_eq!(estimate.mean(), Some(7));
    }

    #[test]
    fn time_in_which_nothing_could_be_measured_ages_nothing() {
        let mut estimate = Estimate::default();
        (0..50).for_each(|now_ns| estimate.add(900, now_ns, HALF_NS));
        estimate.skip(100 * HALF_NS);
        estimate.add(0, 49 + 100 * HALF_NS, HALF_NS);
        assert_eq!(estimate.mean(), Some(800), "one of nine");
    }

    #[test]
    fn what_is_forgotten_is_no_average_any_more() {
        let mut estimate = Estimate::default();
        estimate.add(1000, 5, HALF_NS);
        estimate.forget();
        assert_eq!((estimate.mean(), estimate.samples()), (None, 0));
        estimate.add(3, 6, HALF_NS);
        assert_eq!(estimate.mean(), Some(3));
    }
}
