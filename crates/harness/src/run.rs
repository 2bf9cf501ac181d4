//! Measures sides alternately.
//!
//! Machines change while programs run: their clock rates, the distance of their cores, the processor time that other
//! programs leave. So our side and those that it is compared with are measured alternately, in slices, and the machine
//! is examined in between. If the two halves of a measurement disagree, it continues for as long again, and the next
//! time the older half is dropped. If other programs disturbed it, it begins anew. Both happen a few times at most; the
//! last result is then reported, with the reasons if it is invalid.

use std::time::Duration;

use anyhow::ensure;
use sinew::host::Interrupt;

use crate::machine::{self, Pair};
use crate::measured::{Measured, Round};
use crate::others::Watch;
use crate::reference::{References, Yardstick};
use crate::surroundings::Surroundings;
use crate::validity;

/// Rounds of slices, each with one slice of every side.
pub const ROUNDS: u32 = 10;
/// Longest warm-up of each side, before the first round. It does not count.
const WARM_UP: Duration = Duration::from_millis(100);
/// Longest slice of any side but ours.
const SIDE_SLICE_MAX: Duration = Duration::from_millis(150);
/// Time for which the distance of the cores is measured before each round.
const DISTANCE_TIME: Duration = Duration::from_millis(2);
/// Most attempts at a measurement that does not settle, or was disturbed.
const ATTEMPTS_MAX: u32 = 5;
/// Share of the processors that others use from which the measurement is not repeated: such load is there to stay.
const OTHERS_SHARE_MAX: f64 = 0.2;

/// Sides that can be measured alternately. The first is ours.
pub trait MeasureSides {
    /// Measures a side for `duration`; `None` if nothing was received.
    ///
    /// # Errors
    ///
    /// Whatever ends the measurement: a wrong answer, or a server that is gone.
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>>;

    /// Discards the sums over past slices, which were the warm-up or a disturbed attempt.
    fn reset_sums(&mut self) {}
}

/// Settings of a measurement.
pub struct Run<'a> {
    /// Sum of our slices; each other side takes at most half as long.
    pub duration: Duration,
    /// Processors of client and server, whose distance is observed; `None` if the system places the threads.
    pub pair: Pair,
    /// Processors of all threads that measure.
    pub pins: Vec<Option<usize>>,
    /// Server processes, whose work does not count as that of others.
    pub servers: Vec<u32>,
    /// Number of sides on which the result depends: usually one or two.
    pub judged: usize,
    /// Reference for the machine, if the user gave one.
    pub yardstick: Option<(Yardstick, &'a References)>,
    /// Ends the measurement.
    pub interrupt: Interrupt,
}

/// Callback that is given the current activity, and the fraction of it that is done, from 0 to 1.
pub type Progress<'a> = dyn FnMut(&str, f64) + 'a;

impl Run<'_> {
    /// Measures `sides` sides alternately.
    ///
    /// # Errors
    ///
    /// An interrupt, or an error of a slice.
    pub fn measure_alternately(
        &self,
        sides: usize,
        turns: &mut dyn MeasureSides,
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<Measured> {
        let ours = self.duration / ROUNDS;
        let lens: Vec<Duration> =
            (0..sides).map(|side| if side == 0 { ours } else { (ours / 2).min(SIDE_SLICE_MAX) }).collect();
        progress("warming up", 0.0);
        for (side, len) in lens.iter().enumerate() {
            turns.slice(side, WARM_UP.min(*len))?;
        }
        let overall = Watch::new(&self.pins, self.servers.iter().copied());
        let (mut attempt, mut settling) = (1, None::<Measured>);
        loop {
            if settling.is_none() {
                turns.reset_sums();
            }
            let next = self.attempt(&lens, attempt, turns, progress)?;
            let mut measured = match settling.take() {
                Some(before) if next.disturbed.is_empty() => before.followed_by(next),
                _ => next,
            };
            let is_hopeless = measured.surroundings.others_share.is_some_and(|share| share >= OTHERS_SHARE_MAX);
            if attempt == ATTEMPTS_MAX || is_hopeless || self.is_undisturbed(&measured) {
                if measured.surroundings.others_share.is_none() {
                    // All attempts together are longer, so the share may be known for them.
                    let share = overall.share();
                    measured.surroundings.others_share = share;
                    let others = match share {
                        Some(share) => validity::others(share),
                        None => overall.has_counters().then(|| validity::TOO_SHORT.to_owned()),
                    };
                    measured.disturbed.extend(others);
                }
                return Ok(measured);
            }
            attempt += 1;
            settling = measured.disturbed.is_empty().then_some(measured);
        }
    }

    fn is_undisturbed(&self, measured: &Measured) -> bool {
        let is_steady = |side: usize| validity::unsteady(measured, side).is_none();
        measured.disturbed.is_empty() && (0..self.judged).all(is_steady)
    }

    fn attempt(
        &self,
        lens: &[Duration],
        attempt: u32,
        turns: &mut dyn MeasureSides,
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<Measured> {
        let what = if attempt == 1 { "measuring" } else { "disturbed: measuring on" };
        let before = self.read_yardstick()?;
        let watch = Watch::new(&self.pins, self.servers.iter().copied());
        let (mut rounds, mut surroundings) =
            (Vec::new(), Surroundings { attempts: attempt, ..Surroundings::default() });
        let distance = || match self.pair {
            Some(_) => machine::core_round_trip_ns(self.pair, DISTANCE_TIME.min(lens[0])),
            None => Ok(None),
        };
        let mut cores_ns = distance()?;
        surroundings.cores_ns.extend(cores_ns);
        for round in 0..ROUNDS {
            progress(what, f64::from(round) / f64::from(ROUNDS));
            let mut values = Vec::with_capacity(lens.len());
            // The sides swap places, so that none always comes after the other.
            for at in 0..lens.len() {
                let side = if round % 2 == 0 { at } else { lens.len() - 1 - at };
                values.push((side, turns.slice(side, lens[side])?.filter(|value| *value > 0.0)));
                ensure!(!self.interrupt.is_set(), Interrupted);
            }
            values.sort_unstable_by_key(|(side, _)| *side);
            let before_ns = std::mem::replace(&mut cores_ns, distance()?);
            surroundings.cores_ns.extend(cores_ns);
            let both_ns = before_ns.zip(cores_ns).map(|(before, after)| [before, after]);
            rounds.push(Round { cores_ns: both_ns, values: values.into_iter().map(|(_, value)| value).collect() });
        }
        surroundings.others_share = watch.share();
        let after = self.read_yardstick()?;
        let disturbed = validity::disturbed(&surroundings, before.zip(after));
        Ok(Measured { rounds, surroundings, disturbed })
    }

    fn read_yardstick(&self) -> anyhow::Result<Option<crate::reference::Reading>> {
        let Some((yardstick, references)) = self.yardstick else { return Ok(None) };
        yardstick.read(self.pair, references)
    }
}

/// Error of a command that a signal has ended.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}
