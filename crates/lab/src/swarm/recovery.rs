//! The pace at which sessions' rates must recover once nothing holds them back.

use sinew_harness::units::counted;
use sinew_rpc::Algorithm;

use super::scenario::Scenario;

/// The least gain of a session's rate by [`CALLS`] calls, made one at a time.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    line_bytes_per_s: f64,
    gain: Gain,
}

#[derive(Clone, Copy, Debug)]
enum Gain {
    /// This many bytes per second for each call.
    Call(f64),
    /// `step_bytes_per_s` for each `interval_ns`, not counting the first `after` intervals.
    Time { step_bytes_per_s: f64, interval_ns: u64, after: u64 },
}

const CALLS: u32 = 300;
/// Share of the theoretical gain that is required.
const PART: f64 = 0.5;
/// Share of the line rate that counts as the line rate.
const NEAR: f64 = 0.95;

impl Recovery {
    /// The recovery that a scenario's congestion control promises; none without congestion control, or if it considers
    /// even the round trips of lone calls too long.
    pub fn of(scenario: &Scenario) -> Option<Self> {
        let congestion = scenario.config.congestion.as_ref()?;
        let (good_ns, gain) = match &congestion.algorithm {
            Algorithm::Timely(timely) => (timely.low_ns, Gain::Call(timely.step_bytes_per_s)),
            // Swift limits a window of packets, which recovers in full within these calls.
            Algorithm::Swift(swift) => (swift.target_ns, Gain::Call(f64::INFINITY)),
            Algorithm::Dcqcn(dcqcn) => {
                let (step_bytes_per_s, interval_ns) = (dcqcn.step_bytes_per_s, dcqcn.raise_interval_ns);
                (u64::MAX, Gain::Time { step_bytes_per_s, interval_ns, after: u64::from(dcqcn.fast_steps) + 1 })
            }
        };
        // Calls of other hosts may be ahead in each queue.
        let is_good = scenario.lone_call_ns().saturating_mul(2) < good_ns;
        is_good.then_some(Self { line_bytes_per_s: congestion.line_bytes_per_s, gain })
    }
}

/// Recovery of one session.
#[derive(Debug)]
pub struct Trial {
    rate: f64,
    began_ns: u64,
    calls: u32,
}

impl Trial {
    pub fn new(rate: f64, now_ns: u64) -> Self {
        Self { rate, began_ns: now_ns, calls: 0 }
    }

    /// Returns whether the trial is over; if not, another call has to be made. It fails if the rate has not recovered
    /// in time.
    pub fn judge(&mut self, rate: f64, withheld: u16, now_ns: u64, recovery: &Recovery) -> Result<bool, String> {
        let line = NEAR * recovery.line_bytes_per_s;
        if rate >= line && withheld == 0 {
            return Ok(true);
        }
        if self.calls < CALLS {
            self.calls += 1;
            return Ok(false);
        }
        let gain = match recovery.gain {
            Gain::Call(step_bytes_per_s) => step_bytes_per_s * f64::from(CALLS),
            Gain::Time { step_bytes_per_s, interval_ns, after } => {
                let steps = ((now_ns - self.began_ns) / interval_ns.max(1)).saturating_sub(after);
                step_bytes_per_s * steps as f64
            }
        };
        let least = (self.rate + PART * gain).min(line);
        if rate >= least && withheld == 0 {
            return Ok(true);
        }
        let (from, us) = (self.rate, (now_ns - self.began_ns) / 1000);
        Err(format!(
            "a session's rate went from {from:.0} to {rate:.0} B/s, not to {least:.0} as it should, in {CALLS} lone calls ({us} us); \
             {} withheld",
            counted(withheld, "credit")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_stays_low_is_no_recovery() {
        let recovery = Recovery { line_bytes_per_s: 1e9, gain: Gain::Call(1e5) };
        let run = |step: f64, withheld| {
            let mut trial = Trial::new(1e6, 0);
            let mut rate = 1e6;
            (0..=CALLS).find_map(|_| {
                let judged = trial.judge(rate, withheld, 0, &recovery);
                rate += step;
                (judged != Ok(false)).then_some(judged)
            })
        };
        assert_eq!(run(1e5, 0), Some(Ok(true)));
        assert_eq!(run(1e8, 0), Some(Ok(true)));
        assert!(run(1e4, 0).unwrap().is_err());
        assert!(run(1e8, 1).unwrap().is_err());
        let by_time = Gain::Time { step_bytes_per_s: 1e6, interval_ns: 1_000, after: 5 };
        let recovery = Recovery { line_bytes_per_s: 1e9, gain: by_time };
        for (rate, is_enough) in [(95e6, true), (40e6, false)] {
            let mut trial = Trial::new(1e6, 0);
            trial.calls = CALLS;
            assert_eq!(trial.judge(rate, 0, 105_000, &recovery).is_ok(), is_enough || rate >= 51e6);
        }
    }
}
