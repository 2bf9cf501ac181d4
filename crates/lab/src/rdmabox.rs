//! Experiments of RDMABox (rdmabox): requests for a donor's memory are merged, chained and admitted, and completions
//! are polled adaptively.

pub mod fig1;
pub mod fig2;
pub mod fig5;
pub mod fig6;
pub mod fig8;
pub mod fig9;
pub mod paging;
pub mod table1;
pub mod threads;
mod watcher;

use sinew_sim::nic::Profile;

use crate::experiment::{Comparison, Row};

/// Profile of CloudLab's hosts (rdmabox VI-A), which have ConnectX-3, as Apt's do.
fn profile() -> Profile {
    Profile::built_in("cx3").expect("its file is built in")
}

/// A row with a value of the paper.
fn row(
    id: &str,
    place: &'static str,
    metric: &str,
    against: Comparison,
    (paper, model): (f64, f64),
    unit: &'static str,
) -> Row {
    Row::model(id, metric, model, unit).paper(place, paper, against)
}

/// Gain of one value over another, in percent.
fn gain(one: f64, other: f64) -> f64 {
    (one / other - 1.0) * 100.0
}
