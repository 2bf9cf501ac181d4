//! Experiments of "On the Impact of Cluster Configuration on RoCE Application Design" (apnet19).

mod bulk;
mod client;
pub mod cluster;
pub mod fig1;
pub mod fig2;
pub mod fig3;
pub mod fig4;
pub mod fig5;
pub mod reader;
mod server;
pub mod share;
pub mod ways;

use sinew_sim::nic::Profile;

use crate::experiment::{Comparison, Row};
use cluster::{Plan, RunResult, run};
use ways::{NamedMethod, SIZES};

/// Results for each kind and size.
struct Sweep(Vec<(NamedMethod, usize, RunResult)>);

impl Sweep {
    fn of(
        kinds: &[NamedMethod],
        sizes: &[usize],
        progress: &mut dyn FnMut(f64),
        mut find: impl FnMut(NamedMethod, usize) -> RunResult,
    ) -> Self {
        let mut found = Vec::new();
        for kind in kinds {
            for len in sizes {
                progress(found.len() as f64 / (kinds.len() * sizes.len()) as f64);
                found.push((*kind, *len, find(*kind, *len)));
            }
        }
        Self(found)
    }

    fn get(&self, kind: NamedMethod, len: usize) -> &RunResult {
        let is_it = |(a, b, _): &&(NamedMethod, usize, RunResult)| *a == kind && *b == len;
        &self.0.iter().find(is_it).expect("it was run").2
    }

    /// Latency of one kind over that of another.
    fn ratio(&self, one: NamedMethod, other: NamedMethod, len: usize) -> f64 {
        self.get(one, len).mean_ns / self.get(other, len).mean_ns
    }

    /// A row for each kind and size that was run.
    fn rows(&self, figure: &str, metric: &str, unit: &'static str, of: fn(&RunResult) -> f64) -> Vec<Row> {
        let row = |(kind, len, found): &(NamedMethod, usize, RunResult)| Row {
            id: format!("roce.{figure}.{}.{len}", kind.id),
            place: None,
            case: kind.name.to_owned(),
            metric: format!("{metric}, {len} B"),
            paper: None,
            against: Comparison::Same,
            model: Some(of(found)),
            measured: None,
            unit,
            missing_because: None,
        };
        self.0.iter().map(row).collect()
    }
}

/// A row with a figure from the paper.
fn row(
    id: &str,
    place: &'static str,
    metric: &str,
    against: Comparison,
    (paper, model): (f64, f64),
    unit: &'static str,
) -> Row {
    Row {
        id: id.to_owned(),
        place: Some(place),
        case: String::new(),
        metric: metric.to_owned(),
        paper: Some(paper),
        against,
        model: Some(model),
        measured: None,
        unit,
        missing_because: None,
    }
}

/// Sizes that fit inline in a work queue element.
fn inline_sizes() -> impl Iterator<Item = usize> {
    SIZES.into_iter().filter(|len| *len <= 256)
}

/// Mean latency beside a program that competes for each core, over eight times at which its slices begin.
fn latency_beside_program(profile: &Profile, kind: NamedMethod, len: usize) -> RunResult {
    const BEGINNINGS: u64 = 8;
    let each: Vec<RunResult> = (1..=BEGINNINGS)
        .map(|seed| run(profile, &Plan { seed, ..Plan::latency(kind, len) }.competing(4, profile)))
        .collect();
    let done: f64 = each.iter().map(|found| found.mops).sum();
    // There is one get at a time, so slices that coincide more let more gets complete: each mean is weighted by their
    // number.
    RunResult { mean_ns: each.iter().map(|found| found.mean_ns * found.mops).sum::<f64>() / done, ..each[0] }
}
