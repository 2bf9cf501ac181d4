//! Results of rounds of slices.

use crate::surroundings::Surroundings;
use crate::units;

/// One round of slices.
#[derive(Clone, Debug)]
pub struct Round {
    /// Distance of the cores in ns, before the round and after it.
    pub cores_ns: Option<[f64; 2]>,
    /// Figure of each side.
    pub values: Vec<Option<f64>>,
}

/// Result of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Rounds, in their order.
    pub rounds: Vec<Round>,
    /// State of the machine.
    pub surroundings: Surroundings,
    /// Reasons why all of it is invalid; for single sides see [`validity`](crate::validity).
    pub disturbed: Vec<String>,
}

impl Measured {
    /// Keeps the last rounds of this one, as many as the next has, and appends the next.
    pub(crate) fn followed_by(mut self, next: Self) -> Self {
        self.rounds.drain(..self.rounds.len().saturating_sub(next.rounds.len()));
        self.rounds.extend(next.rounds);
        self.surroundings.cores_ns.extend(next.surroundings.cores_ns);
        self.surroundings.attempts = next.surroundings.attempts;
        let shares = [self.surroundings.others_share, next.surroundings.others_share];
        self.surroundings.others_share = shares.into_iter().flatten().reduce(f64::max);
        self
    }

    /// Slices of a side that have a value.
    pub fn slices(&self, side: usize) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| round.values[side]).collect()
    }

    /// Median ratio of `ours` to `theirs`, within each round.
    pub fn median_ratio(&self, ours: usize, theirs: usize) -> Option<f64> {
        let ratio = |round: &Round| Some(round.values[ours]? / round.values[theirs]?);
        let ratios: Vec<f64> = self.rounds.iter().filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| units::median(&ratios))
    }
}
