//! Swift (SIGCOMM 2020): a window of packets on their way, steered so that round trips meet a target.
//!
//! A window bounds the queue at once, where a rate does so after a while: an incast of many clients starts with one window each.
//! The target grows as windows shrink, since many flows at one queue cannot all keep it short. A window below one packet is a
//! packet every few round trips, which the pacing wheel spaces.
//!
//! What is left out: a second window for delays at the server, whose handlers' time is not in the round trips here, and the reaction
//! to losses by kind, since a time-out cuts the window whatever it was for.

/// Swift's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiftConfig {
    /// The round trip that is aimed at with windows of `window_scaled_least` packets or more.
    pub target_ns: u64,
    /// What is added to it with windows of `window_scaled_most` packets or less.
    pub scaling_ns: u64,
    /// Packets.
    pub window_scaled_most: f64,
    /// Packets.
    pub window_scaled_least: f64,
    /// Packets that a window grows by in a round trip.
    pub step: f64,
    /// How much of the excess over the target is cut: 0 to 1.
    pub cut: f64,
    /// No cut is a larger part of the window than this: 0 to 1.
    pub cut_most: f64,
    /// Windows never fall below this, in packets.
    pub window_min: f64,
}

impl Default for SwiftConfig {
    fn default() -> Self {
        Self {
            target_ns: 20_000,
            scaling_ns: 30_000,
            window_scaled_most: 0.25,
            window_scaled_least: 16.0,
            step: 0.5,
            cut: 0.8,
            cut_most: 0.5,
            window_min: 1.0 / 64.0,
        }
    }
}

impl SwiftConfig {
    /// The round trip that a session with this window aims at.
    fn aim_ns(&self, window: f64) -> f64 {
        let part = |window: f64| 1.0 / window.max(self.window_min).sqrt();
        let (most, least) = (part(self.window_scaled_most), part(self.window_scaled_least));
        let scaled = (part(window) - least) / (most - least).max(f64::MIN_POSITIVE);
        self.target_ns as f64 + self.scaling_ns as f64 * scaled.clamp(0.0, 1.0)
    }
}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Swift {
    /// Packets.
    window: f64,
    rtt_ns: f64,
    grown_ns: u64,
    cut_ns: u64,
}

impl Swift {
    /// With all credits.
    pub fn new() -> Self {
        Self { window: f64::INFINITY, rtt_ns: 0.0, grown_ns: 0, cut_ns: 0 }
    }

    /// Packets that may be on their way, at least a part of one.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Packets per second, when the window is below one.
    pub fn packets_per_s(&self) -> Option<f64> {
        (self.window < 1.0).then(|| self.window * 1e9 / self.rtt_ns.max(1.0))
    }

    /// Takes in a round trip of a session with so many credits.
    pub fn update(&mut self, rtt_ns: u64, credits: u16, now_ns: u64, config: &SwiftConfig) {
        let rtt = rtt_ns as f64;
        self.window = self.window.min(credits.into());
        self.rtt_ns = rtt;
        let aim_ns = config.aim_ns(self.window);
        if rtt <= aim_ns {
            // Several calls measure their own round trips: together they make it grow by one step in each.
            let part = (now_ns.saturating_sub(self.grown_ns) as f64 / rtt.max(1.0)).min(1.0);
            self.window = (self.window + config.step * part).min(credits.into());
        } else if now_ns.saturating_sub(self.cut_ns) >= rtt_ns {
            self.shrink(config.cut * (rtt - aim_ns) / rtt, now_ns, config);
        }
        self.grown_ns = now_ns;
    }

    /// A time-out: packets were lost.
    pub fn lost(&mut self, credits: u16, now_ns: u64, config: &SwiftConfig) {
        self.window = self.window.min(credits.into());
        // One burst that was lost is noticed by each of its calls.
        if self.cut_ns == 0 || now_ns.saturating_sub(self.cut_ns) as f64 >= self.rtt_ns {
            self.shrink(1.0, now_ns, config);
        }
    }

    fn shrink(&mut self, part: f64, now_ns: u64, config: &SwiftConfig) {
        self.window = (self.window * (1.0 - part.min(config.cut_most))).max(config.window_min);
        self.cut_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDITS: u16 = 32;

    /// The window after round trips of so many microseconds, one after another.
    fn after(rtts_us: &[u64]) -> f64 {
        let mut swift = Swift::new();
        let mut now_ns = 0;
        for rtt_us in rtts_us {
            now_ns += rtt_us * 1000;
            swift.update(rtt_us * 1000, CREDITS, now_ns, &SwiftConfig::default());
        }
        swift.window()
    }

    #[test]
    fn short_round_trips_keep_all_credits() {
        assert_eq!(after(&[5, 10, 19]), 32.0);
    }

    #[test]
    fn long_round_trips_cut_the_window_by_half_at_most() {
        assert_eq!(after(&[1000]), 16.0);
        assert_eq!(after(&[1000, 1000]), 8.0);
        assert!(after(&[25]) > 16.0);
        assert_eq!(after(&[1_000_000; 100]), SwiftConfig::default().window_min);
    }

    #[test]
    fn a_window_is_cut_once_in_a_round_trip() {
        let mut swift = Swift::new();
        (0..10).for_each(|at| swift.update(1_000_000, CREDITS, 1_000_000 + at, &SwiftConfig::default()));
        assert_eq!(swift.window(), 16.0);
    }

    #[test]
    fn a_window_grows_by_a_step_in_a_round_trip_however_many_are_measured() {
        let config = SwiftConfig::default();
        let mut swift = Swift { window: 4.0, ..Swift::new() };
        let mut now_ns = 0;
        for _ in 0..100 {
            now_ns += 100;
            swift.update(10_000, CREDITS, now_ns, &config);
        }
        assert!((swift.window() - 4.0 - config.step).abs() < 1e-9, "{}", swift.window());
    }

    #[test]
    fn a_window_below_one_packet_is_a_rate() {
        let swift = Swift { window: 0.25, rtt_ns: 50_000.0, ..Swift::new() };
        assert_eq!(swift.packets_per_s(), Some(5_000.0));
        assert_eq!(Swift { window: 1.0, ..swift }.packets_per_s(), None);
    }

    #[test]
    fn flows_at_one_queue_share_it_and_keep_it_at_the_target() {
        // The round trip is what waits, at a packet in 336 ns.
        let config = SwiftConfig::default();
        let mut flows = vec![Swift::new(); 50];
        let mut now_ns = 0;
        for _ in 0..2000 {
            let waiting: f64 = flows.iter().map(|flow| flow.window().min(CREDITS.into())).sum();
            let rtt_ns = (5_000.0 + waiting * 336.0) as u64;
            now_ns += rtt_ns;
            flows.iter_mut().for_each(|flow| flow.update(rtt_ns, CREDITS, now_ns, &config));
        }
        let waiting: f64 = flows.iter().map(Swift::window).sum();
        let rtt_ns = 5_000.0 + waiting * 336.0;
        assert!((15_000.0..45_000.0).contains(&rtt_ns), "{rtt_ns}");
    }
}
