//! Validity of a figure.
//!
//! A figure is invalid if it was disturbed: other programs used the processors, the two halves of the measurement
//! disagree, or what it is compared with moved meanwhile. A slower machine does not make a figure invalid. The distance
//! of the cores, which on virtual machines changes while programs run, is measured before each round, and only rounds
//! at the same distance are compared.

use crate::measured::{Measured, Round};
use crate::others::TOO_MUCH;
use crate::reference::Reading;
use crate::surroundings::Surroundings;
use crate::units::{self, median};

/// Greatest difference allowed between the halves of a measurement, relative to the smaller one.
pub const TOLERANCE: f64 = 0.05;
/// Greatest difference between two distances of the cores that count as the same, relative to the smaller one.
const SAME_DISTANCE: f64 = 0.1;
/// Rounds at the same distance that each half needs.
const ROUNDS_MIN: usize = 2;

/// Reason that is given where it is unknown whether a measurement was disturbed.
pub const TOO_SHORT: &str =
    "it was too short to tell how much of the processors others used: measure for longer, or use --pin";

/// Complaint about others that used this share of the processors, if it is too much.
pub fn others(share: f64) -> Option<String> {
    let used = share * 100.0;
    (share >= TOO_MUCH)
        .then(|| format!("others used {used:.0} % of the processors meanwhile: stop them, or --pin to free ones"))
}

/// Complaints that apply to all sides.
pub fn disturbed(surroundings: &Surroundings, yardstick: Option<(Reading, Reading)>) -> Vec<String> {
    let others = surroundings.others_share.and_then(others);
    let slower = yardstick.and_then(|(before, after)| Reading::complaint(&before, &after));
    others.into_iter().chain(slower).collect()
}

/// The rounds in which the cores were at their usual distance from beginning to end.
fn steady(rounds: &[Round]) -> Vec<&Round> {
    let is_same = |one: f64, other: f64| one.max(other) <= one.min(other) * (1.0 + SAME_DISTANCE);
    let is_at =
        |round: &Round, usual_ns: f64| round.cores_ns.is_none_or(|both| both.iter().all(|ns| is_same(*ns, usual_ns)));
    let at = |usual_ns: f64| rounds.iter().filter(move |round| is_at(round, usual_ns));
    match rounds.iter().filter_map(|round| round.cores_ns).max_by_key(|[ns, _]| at(*ns).count()) {
        Some([usual_ns, _]) => at(usual_ns).collect(),
        None => rounds.iter().collect(),
    }
}

/// The slices of a side in the first and in the second half of the steady rounds.
fn halves(measured: &Measured, side: usize) -> [Vec<f64>; 2] {
    let rounds = steady(&measured.rounds);
    let (first, second) = rounds.split_at(rounds.len() / 2);
    [first, second].map(|half| half.iter().filter_map(|round| round.values[side]).collect())
}

/// Fault of a side's slices: `None` if their halves agree.
pub fn unsteady(measured: &Measured, side: usize) -> Option<Unsteady> {
    if measured.rounds.iter().all(|round| round.values[side].is_none()) {
        return Some(Unsteady::Nothing);
    }
    let [first, second] = halves(measured, side);
    if first.len().min(second.len()) < ROUNDS_MIN {
        let distances = || measured.surroundings.cores_ns.iter().copied();
        let (least, most) = (distances().fold(f64::INFINITY, f64::min), distances().fold(0.0, f64::max));
        return Some(Unsteady::Distance { least_ns: least, most_ns: most });
    }
    let (first, second) = (median(&first), median(&second));
    let part = first.max(second) / first.min(second) - 1.0;
    // NaN is not greater than anything.
    (part > TOLERANCE || part.is_nan()).then_some(Unsteady::Halves(part))
}

/// Figure of a side: the median of the slices that were measured at the usual distance of the cores.
pub fn figure(measured: &Measured, side: usize) -> Option<f64> {
    let [first, second] = halves(measured, side);
    let slices = [first, second].concat();
    (!slices.is_empty()).then(|| median(&slices)).or_else(|| {
        let all = measured.slices(side);
        (!all.is_empty()).then(|| median(&all))
    })
}

/// Fault of a side's slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unsteady {
    /// Nothing was received.
    Nothing,
    /// The second half differs from the first by this part.
    Halves(f64),
    /// The cores were too seldom at their usual distance.
    Distance {
        /// Shortest round trip of a cache line between the cores, in ns.
        least_ns: f64,
        /// Longest round trip, in ns.
        most_ns: f64,
    },
}

impl Unsteady {
    /// Reason why the figure of the side `name` is invalid.
    pub fn complaint(self, name: &str) -> String {
        match self {
            Self::Nothing => format!("nothing was received while {name} was measured"),
            Self::Halves(part) => format!("{name} moved by {:.0} % from the first half to the second", part * 100.0),
            Self::Distance { least_ns, most_ns } => {
                format!("the cores' distance kept changing, from {} to {}", units::time(least_ns), units::time(most_ns))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rounds: &[(f64, f64)]) -> Measured {
        let round =
            |&(cores_ns, value): &(f64, f64)| Round { cores_ns: Some([cores_ns; 2]), values: vec![Some(value)] };
        let cores_ns = rounds.iter().map(|(cores_ns, _)| *cores_ns).collect();
        let surroundings = Surroundings { cores_ns, ..Surroundings::default() };
        Measured { rounds: rounds.iter().map(round).collect(), surroundings, disturbed: Vec::new() }
    }

    #[test]
    fn halves_may_differ_by_five_percent_and_no_more() {
        let halves = |second: f64| unsteady(&measured(&[[(100.0, 20.0); 5], [(100.0, second); 5]].concat()), 0);
        assert_eq!((halves(20.0), halves(20.99), halves(19.06)), (None, None, None));
        for second in [21.1, 19.0, 40.0] {
            assert!(matches!(halves(second), Some(Unsteady::Halves(part)) if part > TOLERANCE), "{second}");
        }
    }

    #[test]
    fn a_spike_in_either_half_moves_nothing() {
        let mut rounds = [(100.0, 20.0); 10];
        (rounds[1].1, rounds[8].1) = (200.0, 1.0);
        assert_eq!(unsteady(&measured(&rounds), 0), None);
        assert_eq!(figure(&measured(&rounds), 0), Some(20.0));
    }

    #[test]
    fn rounds_at_another_distance_of_the_cores_are_not_compared() {
        let mut rounds = [(400.0, 20.0); 10];
        rounds[6..8].fill((100.0, 5.0));
        assert_eq!((unsteady(&measured(&rounds), 0), figure(&measured(&rounds), 0)), (None, Some(20.0)));
        let mut changing = measured(&rounds);
        (changing.rounds[5].cores_ns, changing.rounds[5].values) = (Some([400.0, 100.0]), vec![Some(9.0)]);
        assert_eq!(figure(&changing, 0), Some(20.0), "a round in which they changed is of neither distance");
        rounds[4..].fill((100.0, 5.0));
        assert_eq!((unsteady(&measured(&rounds), 0), figure(&measured(&rounds), 0)), (None, Some(5.0)));
        for (at, round) in rounds.iter_mut().enumerate() {
            round.0 = 100.0 * f64::from(1 << (at / 3));
        }
        assert!(matches!(unsteady(&measured(&rounds), 0), Some(Unsteady::Distance { .. })));
    }

    #[test]
    fn a_slower_machine_is_not_disturbed_and_one_that_others_use_is() {
        let with = |others_share| Surroundings { cores_ns: vec![5_000.0; 3], others_share, attempts: 1 };
        assert!(disturbed(&with(None), None).is_empty() && disturbed(&with(Some(0.049)), None).is_empty());
        assert!(disturbed(&with(Some(0.05)), None)[0].starts_with("others used 5 %"));
    }

    #[test]
    fn what_never_came_through_is_told() {
        let mut measured = measured(&[(100.0, 1.0); 4]);
        measured.rounds.iter_mut().for_each(|round| round.values[0] = None);
        assert_eq!((unsteady(&measured, 0), figure(&measured, 0)), (Some(Unsteady::Nothing), None));
    }
}
