//! What rounds of slices came to.

use crate::surroundings::Surroundings;
use crate::units;

/// One round of slices.
#[derive(Clone, Debug)]
pub struct Round {
    /// How far apart the cores were before it, and after it.
    pub cores_ns: Option<[f64; 2]>,
    /// What each side came to.
    pub values: Vec<Option<f64>>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// In their order.
    pub rounds: Vec<Round>,
    /// What the machine was like.
    pub surroundings: Surroundings,
    /// Why all of it is invalid; of single sides [`validity`](crate::validity) says more.
    pub disturbed: Vec<String>,
}

impl Measured {
    /// The last rounds of this one, as many as the next has, and the next.
    pub(crate) fn followed_by(mut self, next: Self) -> Self {
        self.rounds.drain(..self.rounds.len().saturating_sub(next.rounds.len()));
        self.rounds.extend(next.rounds);
        self.surroundings.cores_ns.extend(next.surroundings.cores_ns);
        self.surroundings.attempts = next.surroundings.attempts;
        let shares = [self.surroundings.others_share, next.surroundings.others_share];
        self.surroundings.others_share = shares.into_iter().flatten().reduce(f64::max);
        self
    }

    /// The slices of a side that had a value.
    pub fn slices(&self, side: usize) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| round.values[side]).collect()
    }

    /// The middle of how many times as much `ours` was as `theirs`, within each round.
    pub fn times(&self, ours: usize, theirs: usize) -> Option<f64> {
        let ratio = |round: &Round| Some(round.values[ours]? / round.values[theirs]?);
        let ratios: Vec<f64> = self.rounds.iter().filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| units::median(&ratios))
    }
}
