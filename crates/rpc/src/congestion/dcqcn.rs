//! DCQCN (SIGCOMM 2015): a session's rate follows the marks (ECN) that switches put on packets where queues are long.
//!
//! A mark cuts the rate, at most once per interval; the more frequent marks are, the deeper the cut. Without marks the
//! rate recovers: at first each step makes up half of what is missing, then it grows by fixed steps, then by larger
//! ones. Both time and bytes sent count as progress of the recovery.

/// Parameters of DCQCN, by default those of its paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DcqcnConfig {
    /// Marks less than this apart count as one, in ns.
    pub notice_interval_ns: u64,
    /// Time without a mark after which marks count as rarer, in ns.
    pub decay_interval_ns: u64,
    /// Time without a mark that is one step of the recovery, in ns.
    pub raise_interval_ns: u64,
    /// Bytes sent without a mark that are one step of the recovery.
    pub raise_bytes: u64,
    /// Gain of the moving average (EWMA) of marks: the weight of the newest mark, 0 to 1.
    pub ewma_gain: f64,
    /// Steps that each make up half of what is missing, before the rate grows beyond its old value.
    pub fast_steps: u32,
    /// Growth of the rate per step after that, in bytes per second.
    pub step_bytes_per_s: f64,
    /// Growth per step once both time and bytes have passed that point, in bytes per second.
    pub large_step_bytes_per_s: f64,
    /// Lowest rate, in bytes per second.
    pub rate_min_bytes_per_s: f64,
}

impl Default for DcqcnConfig {
    fn default() -> Self {
        Self {
            notice_interval_ns: 50_000,
            decay_interval_ns: 55_000,
            raise_interval_ns: 55_000,
            raise_bytes: 10_000_000,
            ewma_gain: 1.0 / 256.0,
            fast_steps: 5,
            step_bytes_per_s: 5e6,
            large_step_bytes_per_s: 50e6,
            rate_min_bytes_per_s: 1.5e6,
        }
    }
}

/// Number of steps without a mark after which a session has the rate of the link, so that an idle session catches up at
/// no cost.
const STEPS_MAX: u64 = 4096;

/// DCQCN state of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dcqcn {
    /// Present rate, in bytes per second.
    rate: f64,
    /// Rate that the recovery aims at, in bytes per second: that before the cut, raised by further steps.
    target: f64,
    /// Frequency of marks: 0 to 1.
    mark_frequency: f64,
    marked_ns: u64,
    decayed_ns: u64,
    raised_ns: u64,
    time_steps: u32,
    sent: u64,
    byte_steps: u32,
}

impl Dcqcn {
    /// Starts at the rate of the link.
    pub fn new(line_bytes_per_s: f64) -> Self {
        Self {
            rate: line_bytes_per_s,
            target: line_bytes_per_s,
            mark_frequency: 1.0,
            marked_ns: 0,
            decayed_ns: 0,
            raised_ns: 0,
            time_steps: 0,
            sent: 0,
            byte_steps: 0,
        }
    }

    /// Present rate, in bytes per second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Handles a mark on a packet that came, or a server's notice of one.
    pub fn mark(&mut self, line_bytes_per_s: f64, now_ns: u64, config: &DcqcnConfig) {
        self.advance(line_bytes_per_s, now_ns, config);
        if self.marked_ns > 0 && now_ns.saturating_sub(self.marked_ns) < config.notice_interval_ns {
            return;
        }
        self.target = self.rate;
        self.rate =
            (self.rate * (1.0 - self.mark_frequency / 2.0)).max(config.rate_min_bytes_per_s.min(line_bytes_per_s));
        self.mark_frequency += config.ewma_gain * (1.0 - self.mark_frequency);
        (self.marked_ns, self.decayed_ns, self.raised_ns) = (now_ns, now_ns, now_ns);
        (self.time_steps, self.byte_steps, self.sent) = (0, 0, 0);
    }

    /// Counts bytes that were sent.
    pub fn note_sent(&mut self, len: usize) {
        self.sent = self.sent.saturating_add(len as u64);
    }

    /// Applies the time that has passed and the bytes that were sent.
    pub fn advance(&mut self, line_bytes_per_s: f64, now_ns: u64, config: &DcqcnConfig) {
        let decays = now_ns.saturating_sub(self.decayed_ns) / config.decay_interval_ns.max(1);
        if self.marked_ns > 0 {
            self.mark_frequency *= (1.0 - config.ewma_gain).powi(decays.min(1 << 20) as i32);
        }
        self.decayed_ns += decays * config.decay_interval_ns;
        let interval_ns = config.raise_interval_ns.max(1);
        if now_ns.saturating_sub(self.raised_ns) / interval_ns >= STEPS_MAX {
            (self.rate, self.target) = (line_bytes_per_s, line_bytes_per_s);
        }
        while self.rate < line_bytes_per_s && now_ns.saturating_sub(self.raised_ns) >= interval_ns {
            self.raised_ns += interval_ns;
            self.time_steps = self.time_steps.saturating_add(1);
            self.raise(line_bytes_per_s, config);
        }
        while self.rate < line_bytes_per_s && self.sent >= config.raise_bytes.max(1) {
            self.sent -= config.raise_bytes.max(1);
            self.byte_steps = self.byte_steps.saturating_add(1);
            self.raise(line_bytes_per_s, config);
        }
        if self.rate >= line_bytes_per_s {
            self.sent = 0;
        }
    }

    fn raise(&mut self, line_bytes_per_s: f64, config: &DcqcnConfig) {
        if self.time_steps.max(self.byte_steps) > config.fast_steps {
            self.target += if self.time_steps.min(self.byte_steps) > config.fast_steps {
                config.large_step_bytes_per_s
            } else {
                config.step_bytes_per_s
            };
        }
        self.target = self.target.min(line_bytes_per_s);
        self.rate = (self.rate + self.target) / 2.0;
        // Halving what is left would never end.
        if self.rate > 0.999 * line_bytes_per_s {
            self.rate = line_bytes_per_s;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 3.125e9;
    const CONFIG: fn() -> DcqcnConfig = DcqcnConfig::default;

    #[test]
    fn the_first_mark_halves_the_rate_and_marks_close_by_count_as_one() {
        let mut flow = Dcqcn::new(LINE);
        flow.mark(LINE, 1_000_000, &CONFIG());
        let halved = flow.rate();
        assert!((0.5..0.6).contains(&(halved / LINE)), "{halved}");
        flow.mark(LINE, 1_049_999, &CONFIG());
        assert_eq!(flow.rate(), halved);
        flow.mark(LINE, 1_050_000, &CONFIG());
        assert!(flow.rate() < halved);
    }

    #[test]
    fn marks_without_end_bring_it_to_the_least_rate() {
        let mut flow = Dcqcn::new(LINE);
        (1..1000).for_each(|nth| flow.mark(LINE, nth * 50_000, &CONFIG()));
        assert_eq!(flow.rate(), CONFIG().rate_min_bytes_per_s);
    }

    #[test]
    fn without_marks_it_comes_half_of_the_way_back_at_a_time_and_then_all_of_it() {
        let mut flow = Dcqcn::new(LINE);
        flow.mark(LINE, 1, &CONFIG());
        let lost = LINE - flow.rate();
        flow.advance(LINE, 55_001, &CONFIG());
        assert!((LINE - flow.rate() - lost / 2.0).abs() < 1.0);
        flow.advance(LINE, 1_000_000_000, &CONFIG());
        assert_eq!(flow.rate(), LINE);
    }

    #[test]
    fn bytes_count_the_way_back_too() {
        let mut flow = Dcqcn::new(LINE);
        flow.mark(LINE, 1, &CONFIG());
        let before = flow.rate();
        flow.note_sent(10_000_000);
        flow.advance(LINE, 2, &CONFIG());
        assert!(flow.rate() > before);
    }

    #[test]
    fn a_hundred_years_pass_in_no_time() {
        let mut flow = Dcqcn::new(LINE);
        flow.mark(LINE, 1, &CONFIG());
        flow.advance(LINE, 100 * 365 * 86_400 * 1_000_000_000, &CONFIG());
        assert_eq!(flow.rate(), LINE);
    }
}
