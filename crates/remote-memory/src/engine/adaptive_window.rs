//! An admission window that finds its own size.

use super::admission::Admission;

/// Least length of an epoch, in completions and in multiples of the window's bytes.
const EPOCH_REQUESTS: u64 = 64;
const EPOCH_WINDOWS: u64 = 4;
/// Epochs that a window rests before another is tried.
const REST_EPOCHS: u32 = 8;

/// Window that an epoch tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// The window that was found.
    Rest { epochs: u32 },
    /// A larger window.
    Larger,
    /// A smaller window.
    Smaller,
}

/// An admission window found from completion times.
///
/// By Little's law, the bytes in flight are the rate times the time that a request is in flight. So when a window that
/// is always full grows by a quarter, either the rate grows with it, or requests take a quarter longer, or something in
/// between. Time is divided into *epochs* of a few windows' worth of bytes. Now and then a larger window is tried. It
/// is kept if the rate gained at least half of what the window gained, and grown again at once, so that it doubles
/// within a few epochs. Otherwise a smaller window is tried. It is kept if the rate lost less than a tenth of what the
/// window lost, because then the larger window only lengthened completion times. So the window settles near the knee of
/// the curve, where the paper set its static window by hand (rdmabox V-A), and follows the knee when it moves. Epochs
/// in which the window held nothing back teach nothing, and change nothing.
#[derive(Debug)]
pub struct AdaptiveWindow {
    window_bytes: u64,
    min_bytes: u64,
    max_bytes: u64,
    trial: Trial,
    /// The window before the trial, and its rate in bytes per second.
    before_trial: Option<(u64, f64)>,
    bytes: u64,
    requests: u64,
    since_ns: Option<u64>,
    was_full: bool,
    /// Bytes still to complete before the new window is measured, so that requests admitted under the old one do not
    /// count.
    draining: u64,
    next_is_smaller: bool,
}

impl AdaptiveWindow {
    /// Makes a window of `bytes`, which always stays between `min_bytes` and `max_bytes`.
    pub fn new(bytes: u64, min_bytes: u64, max_bytes: u64) -> Self {
        Self {
            window_bytes: bytes.clamp(min_bytes, max_bytes),
            min_bytes,
            max_bytes,
            trial: Trial::Rest { epochs: 1 },
            before_trial: None,
            bytes: 0,
            requests: 0,
            since_ns: None,
            was_full: false,
            draining: 0,
            next_is_smaller: false,
        }
    }

    fn set(&mut self, bytes: u64) {
        // Requests in flight now tell nothing about the new window.
        self.draining = self.window_bytes.max(bytes);
        self.window_bytes = bytes.clamp(self.min_bytes, self.max_bytes);
    }

    fn start(&mut self, now_ns: u64) {
        (self.bytes, self.requests, self.was_full) = (0, 0, false);
        self.since_ns = Some(now_ns);
    }

    /// Evaluates an epoch in which the window was full. `rate` is in bytes per second.
    fn learn(&mut self, rate: f64) {
        let window = self.window_bytes;
        match (self.trial, self.before_trial) {
            (Trial::Rest { epochs }, _) if epochs > 1 => {
                self.trial = Trial::Rest { epochs: epochs - 1 };
                self.before_trial = Some((window, rate));
            }
            (Trial::Rest { .. }, _) | (_, None) => {
                self.before_trial = Some((window, rate));
                if self.next_is_smaller { self.try_smaller() } else { self.try_larger() }
            }
            (Trial::Larger, Some((before, rate_before))) => {
                let gain = window as f64 / before as f64 - 1.0;
                if window > before && rate >= rate_before * (1.0 + 0.5 * gain) {
                    self.before_trial = Some((window, rate));
                    self.try_larger();
                } else {
                    self.next_is_smaller = true;
                    self.return_to(before);
                }
            }
            (Trial::Smaller, Some((before, rate_before))) => {
                let loss = 1.0 - window as f64 / before as f64;
                if window < before && rate >= rate_before * (1.0 - 0.1 * loss) {
                    self.before_trial = Some((window, rate));
                    self.try_smaller();
                } else {
                    self.next_is_smaller = false;
                    self.return_to(before);
                }
            }
        }
    }

    fn return_to(&mut self, window: u64) {
        self.trial = Trial::Rest { epochs: if self.next_is_smaller { 1 } else { REST_EPOCHS } };
        self.set(window);
    }

    fn try_larger(&mut self) {
        self.trial = Trial::Larger;
        self.set(self.window_bytes + (self.window_bytes / 4).max(1));
    }

    fn try_smaller(&mut self) {
        self.trial = Trial::Smaller;
        self.set(self.window_bytes - self.window_bytes / 5);
    }
}

impl Default for AdaptiveWindow {
    /// Starts at 256 KB, and stays between 16 KB and 1 GB.
    fn default() -> Self {
        Self::new(256 << 10, 16 << 10, 1 << 30)
    }
}

impl Admission for AdaptiveWindow {
    #[inline]
    fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    #[inline]
    fn completed(&mut self, bytes: u64, _latency_ns: u64, now_ns: u64) {
        if self.draining > 0 {
            self.draining = self.draining.saturating_sub(bytes);
            if self.draining == 0 {
                self.start(now_ns);
            }
            return;
        }
        self.bytes += bytes;
        self.requests += 1;
        if self.requests < EPOCH_REQUESTS || self.bytes < EPOCH_WINDOWS.saturating_mul(self.window_bytes) {
            return;
        }
        let since_ns = self.since_ns.unwrap_or(now_ns);
        if self.was_full && now_ns > since_ns {
            let rate = self.bytes as f64 * 1e9 / (now_ns - since_ns) as f64;
            self.learn(rate);
        }
        self.start(now_ns);
    }

    fn held_back(&mut self) {
        self.was_full = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a device that takes `base_ns` for a request of 4 KB and serves `at_once` at a time; with more than
    /// `worse_from` in flight it is slower.
    fn run(window: &mut AdaptiveWindow, requests: u64, at_once: f64, base_ns: f64, worse_from: f64) {
        const LEN: u64 = 4096;
        let mut now_ns = 0.0;
        for _ in 0..requests {
            let in_flight = (window.window_bytes() / LEN).max(1) as f64;
            let slower = 1.0 + (in_flight - worse_from).max(0.0) / worse_from;
            now_ns += base_ns / in_flight.min(at_once) * slower;
            window.held_back();
            window.completed(LEN, (base_ns * in_flight.max(at_once) / at_once) as u64, now_ns as u64);
        }
    }

    #[test]
    fn a_window_comes_to_rest_about_the_knee() {
        for start in [16 << 10, 256 << 10, 64 << 20] {
            let mut window = AdaptiveWindow::new(start, 4096, 1 << 30);
            run(&mut window, 2_000_000, 200.0, 10_000.0, 1e9);
            let knee = 200.0 * 4096.0;
            let ratio = window.window_bytes() as f64 / knee;
            assert!((0.6..2.0).contains(&ratio), "from {start}: {ratio} of the knee");
        }
    }

    #[test]
    fn a_device_that_grows_slower_with_more_in_flight_is_kept_below_that() {
        let mut window = AdaptiveWindow::new(16 << 20, 4096, 1 << 30);
        run(&mut window, 2_000_000, 200.0, 10_000.0, 400.0);
        assert!(window.window_bytes() < 400 * 4096, "{}", window.window_bytes());
    }

    #[test]
    fn a_window_that_holds_nobody_back_learns_nothing() {
        let mut window = AdaptiveWindow::default();
        let before = window.window_bytes();
        (0..100_000).for_each(|number| window.completed(4096, 1_000, number * 10));
        assert_eq!(window.window_bytes(), before);
    }
}
