//! Swift (SIGCOMM 2020): a window of packets in flight, steered so that round trips meet a target.
//!
//! A window bounds the queue at once, where a rate does so only after a while: an incast of many clients starts with
//! one window each. The target grows as windows shrink, since many flows at one queue cannot all keep it short. A
//! window below one packet means one packet every few round trips, which the pacing wheel spaces.
//!
//! Two parts of Swift are left out: a second window for delays at the server, since handlers' time is not part of the
//! round trips here; and different reactions to different losses, since a time-out cuts the window whatever caused it.

/// Parameters of Swift.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiftConfig {
    /// Target round trip with windows of `scaling_window_max` packets or more, in ns.
    pub target_ns: u64,
    /// Time added to the target with windows of `scaling_window_min` packets or less, in ns.
    pub scaling_ns: u64,
    /// Window at or below which the target is raised the most, in packets.
    pub scaling_window_min: f64,
    /// Window at or above which the target is not raised, in packets.
    pub scaling_window_max: f64,
    /// Growth of a window in a round trip, in packets.
    pub step: f64,
    /// Part of the excess over the target by which the window is cut: 0 to 1.
    pub cut: f64,
    /// Largest part of the window that one cut takes: 0 to 1.
    pub cut_most: f64,
    /// Smallest window, in packets.
    pub window_min: f64,
}

impl Default for SwiftConfig {
    fn default() -> Self {
        Self {
            target_ns: 20_000,
            scaling_ns: 30_000,
            scaling_window_min: 0.25,
            scaling_window_max: 16.0,
            step: 0.5,
            cut: 0.8,
            cut_most: 0.5,
            window_min: 1.0 / 64.0,
        }
    }
}

impl SwiftConfig {
    /// Target round trip of a session with this window, in ns.
    fn scaled_target_ns(&self, window: f64) -> f64 {
        let part = |window: f64| 1.0 / window.max(self.window_min).sqrt();
        let (most, least) = (part(self.scaling_window_min), part(self.scaling_window_max));
        let scaled = (part(window) - least) / (most - least).max(f64::MIN_POSITIVE);
        self.target_ns as f64 + self.scaling_ns as f64 * scaled.clamp(0.0, 1.0)
    }
}

/// Swift state of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Swift {
    /// Window, in packets.
    window: f64,
    rtt_ns: f64,
    grown_ns: u64,
    cut_ns: u64,
}

impl Swift {
    /// Starts with all credits.
    pub fn new() -> Self {
        Self { window: f64::INFINITY, rtt_ns: 0.0, grown_ns: 0, cut_ns: 0 }
    }

    /// Packets that may be in flight; can be less than 1.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Rate in packets per second, if the window is below one packet.
    pub fn packets_per_s(&self) -> Option<f64> {
        (self.window < 1.0).then(|| self.window * 1e9 / self.rtt_ns.max(1.0))
    }

    /// Handles a round trip of a session that has `credits` credits.
    pub fn update(&mut self, rtt_ns: u64, credits: u16, now_ns: u64, config: &SwiftConfig) {
        let rtt = rtt_ns as f64;
        self.window = self.window.min(credits.into());
        self.rtt_ns = rtt;
        let scaled_target_ns = config.scaled_target_ns(self.window);
        if rtt <= scaled_target_ns {
            // Several calls measure round trips of their own: together they grow the window by one step per round trip.
            let part = (now_ns.saturating_sub(self.grown_ns) as f64 / rtt.max(1.0)).min(1.0);
            self.window = (self.window + config.step * part).min(credits.into());
        } else if now_ns.saturating_sub(self.cut_ns) >= rtt_ns {
            self.shrink(config.cut * (rtt - scaled_target_ns) / rtt, now_ns, config);
        }
        self.grown_ns = now_ns;
    }

    /// Handles a time-out: packets were lost.
    pub fn lost(&mut self, credits: u16, now_ns: u64, config: &SwiftConfig) {
        self.window = self.window.min(credits.into());
        // Each call of one lost burst notices the loss.
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

    /// The window after these round trips, one after another.
    fn window_after(rtts_us: &[u64]) -> f64 {
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
        assert_eq!(window_after(&[5, 10, 19]), 32.0);
    }

    #[test]
    fn long_round_trips_cut_the_window_by_half_at_most() {
        assert_eq!(window_after(&[1000]), 16.0);
        assert_eq!(window_after(&[1000, 1000]), 8.0);
        assert!(window_after(&[25]) > 16.0);
        assert_eq!(window_after(&[1_000_000; 100]), SwiftConfig::default().window_min);
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
        // The round trip follows from the packets that wait, at 336 ns each.
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
