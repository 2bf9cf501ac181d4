//! Timely: a session's rate follows the round-trip times of its packets.
//!
//! A round trip below a low threshold raises the rate by a step, one above a high threshold cuts it in proportion.
//! Between the thresholds the trend decides, in one of two forms: as published (SIGCOMM 2015), or as patched (CoNEXT
//! 2016). The patched form weighs raise and cut by the trend, and so has a single fixed point, at which the flows have
//! equal shares.

/// Parameters of Timely.
///
/// The defaults were calibrated on the simulated CX4 cluster, so that incasts of 20, 50 and 100 clients (nsdi19 Table
/// 5) and a lone flow all do well with one set. nsdi19 gives only the low threshold, 50 us; with that, and with steps
/// and cuts of the usual size, rates here swing between an empty queue and one of 100 to 500 us.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelyConfig {
    /// Round trips below this raise the rate, and are ignored in an uncongested session (nsdi19 5.2.2).
    pub low_ns: u64,
    /// Round trips above this cut the rate, whatever the trend.
    pub high_ns: u64,
    /// A round trip without any queue, by which trends are scaled.
    pub min_rtt_ns: u64,
    /// Growth of the rate per step, in bytes per second.
    pub step_bytes_per_s: f64,
    /// Weight of the excess in a cut: 0 to 1.
    pub cut: f64,
    /// Gain of the trend, a moving average (EWMA): the weight of the newest difference, 0 to 1.
    pub ewma_gain: f64,
    /// Good round trips in a row after which steps are five times as large. (Only in the published form.)
    pub eager_after: u32,
    /// Whether the patched form is used.
    pub is_patched: bool,
    /// Lowest rate, in bytes per second.
    pub rate_min_bytes_per_s: f64,
}

impl Default for TimelyConfig {
    fn default() -> Self {
        Self {
            low_ns: 15_000,
            high_ns: 500_000,
            min_rtt_ns: 5_000,
            step_bytes_per_s: 1e5,
            cut: 0.004,
            ewma_gain: 0.9,
            eager_after: 5,
            is_patched: true,
            rate_min_bytes_per_s: 15e6,
        }
    }
}

/// Timely state of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timely {
    /// Present rate, in bytes per second.
    rate: f64,
    last_rtt_ns: f64,
    /// Time by which a round trip exceeds the one before it, smoothed, in ns.
    trend_ns: f64,
    good_in_a_row: u32,
}

impl Timely {
    /// Starts at the rate of the link.
    pub fn new(line_bytes_per_s: f64, config: &TimelyConfig) -> Self {
        Self { rate: line_bytes_per_s, last_rtt_ns: config.min_rtt_ns as f64, trend_ns: 0.0, good_in_a_row: 0 }
    }

    /// Present rate, in bytes per second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Handles a measured round trip.
    pub fn update(&mut self, rtt_ns: u64, line_bytes_per_s: f64, config: &TimelyConfig) {
        let rtt = rtt_ns as f64;
        self.trend_ns += config.ewma_gain * (rtt - self.last_rtt_ns - self.trend_ns);
        self.last_rtt_ns = rtt;
        let trend = self.trend_ns / config.min_rtt_ns.max(1) as f64;
        let (low, high) = (config.low_ns as f64, config.high_ns as f64);
        let rate = if rtt < low {
            self.good_in_a_row = 0;
            self.rate + config.step_bytes_per_s
        } else if config.is_patched {
            let weight = (2.0 * trend + 0.5).clamp(0.0, 1.0);
            let error = (rtt - low) / low;
            // Queues far above the threshold would make the rate negative.
            let mixed =
                config.step_bytes_per_s * (1.0 - weight) + self.rate * (1.0 - config.cut * weight * error).max(0.5);
            // As published, the high threshold is checked first. Just above it that cuts next to nothing, so a hundred
            // flows which all began at the rate of the link would stay there.
            if rtt > high { mixed.min(self.cut_rate(rtt, config)) } else { mixed }
        } else if rtt > high {
            self.good_in_a_row = 0;
            self.cut_rate(rtt, config)
        } else if trend <= 0.0 {
            self.good_in_a_row = self.good_in_a_row.saturating_add(1);
            let steps = if self.good_in_a_row >= config.eager_after { 5.0 } else { 1.0 };
            self.rate + steps * config.step_bytes_per_s
        } else {
            self.good_in_a_row = 0;
            // A trend of more than 1 could make the rate negative.
            self.rate * (1.0 - config.cut * trend.min(1.0))
        };
        self.rate = rate.clamp(config.rate_min_bytes_per_s.min(line_bytes_per_s), line_bytes_per_s);
    }

    /// The rate after a round trip above the high threshold.
    fn cut_rate(&self, rtt_ns: f64, config: &TimelyConfig) -> f64 {
        self.rate * (1.0 - config.cut * (1.0 - config.high_ns as f64 / rtt_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 3.125e9;
    /// Larger steps than the default, so that tests can be short.
    const CONFIG: TimelyConfig = TimelyConfig {
        low_ns: 50_000,
        high_ns: 500_000,
        min_rtt_ns: 5_000,
        step_bytes_per_s: 5e6,
        cut: 0.26,
        ewma_gain: 0.46,
        eager_after: 5,
        is_patched: true,
        rate_min_bytes_per_s: 1.5e6,
    };

    fn rate_after(config: &TimelyConfig, rtts_us: &[u64]) -> f64 {
        let mut timely = Timely::new(LINE, config);
        rtts_us.iter().for_each(|rtt_us| timely.update(rtt_us * 1000, LINE, config));
        timely.rate()
    }

    #[test]
    fn short_round_trips_keep_the_rate_of_the_link() {
        assert_eq!(rate_after(&CONFIG, &[5, 20, 49, 10]), LINE);
    }

    #[test]
    fn long_round_trips_cut_it_the_more_the_longer_they_are() {
        for is_patched in [false, true] {
            let config = TimelyConfig { is_patched, ..CONFIG };
            let [a, b] = [600, 5_000].map(|rtt_us| rate_after(&config, &[rtt_us; 10]));
            assert!(b < a && a < LINE && b >= config.rate_min_bytes_per_s, "{a} {b}");
            assert_eq!(rate_after(&config, &[1_000_000; 1000]), config.rate_min_bytes_per_s);
        }
    }

    #[test]
    fn a_rising_queue_slows_down_and_a_falling_one_speeds_up() {
        for is_patched in [false, true] {
            let config = TimelyConfig { is_patched, ..CONFIG };
            let rising: Vec<u64> = (0..20).map(|step| 60 + 10 * step).collect();
            let slow = rate_after(&config, &rising);
            assert!(slow < LINE / 2.0, "{slow}");
            let falling: Vec<u64> = rising.iter().copied().chain((0..20).map(|step| 250 - 10 * step)).collect();
            assert!(rate_after(&config, &falling) > slow);
        }
    }

    #[test]
    fn flows_of_the_patched_form_come_to_share_alike() {
        // Two flows at one queue: the round trip follows from what waits there.
        let config = CONFIG;
        let mut flows = [Timely::new(LINE, &config), Timely { rate: LINE / 10.0, ..Timely::new(LINE, &config) }];
        let (mut queued, step_ns) = (0.0f64, 50_000.0);
        for _ in 0..200_000 {
            let sent: f64 = flows.iter().map(Timely::rate).sum();
            queued = (queued + (sent - LINE) * step_ns / 1e9).max(0.0);
            let rtt_ns = 5_000.0 + queued / LINE * 1e9;
            flows.iter_mut().for_each(|flow| flow.update(rtt_ns as u64, LINE, &config));
        }
        let [a, b] = flows.map(|flow| flow.rate());
        assert!((0.9..1.1).contains(&(a / b)), "{a} {b}");
        assert!((0.9..1.1).contains(&((a + b) / LINE)), "{a} {b}");
    }
}
