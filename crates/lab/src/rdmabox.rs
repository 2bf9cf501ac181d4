//! Experiments of RDMABox (rdmabox): requests for a donor's memory are merged, chained and admitted, and completions
//! are polled adaptively.

pub mod fig1;
pub mod fig2;
pub mod fig5;
pub mod fig6;
pub mod fig8;
pub mod fig9;
pub mod measured;
pub mod paging;
pub mod table1;
pub mod threads;
mod watcher;

use sinew_sim::nic::Profile;

use crate::experiment::{Comparison, Row};

/// Profile of CloudLab's hosts (rdmabox VI-A), which have ConnectX-3, as Apt's do. Requests come from the kernel, whose
/// driver rings a doorbell for each list, however short, and never writes elements to the NIC.
fn profile() -> Profile {
    let mut profile = Profile::built_in("cx3").expect("its file is built in");
    profile.core.writes_elements = false;
    profile
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

#[cfg(test)]
mod tests {
    use sinew_harness::load::verbs::{Op, TransportKind};

    use super::*;
    use crate::nics::rates;
    use crate::nics::verbs::{Threads, run};

    #[test]
    fn the_kernels_driver_rings_for_each_list_and_the_nic_fetches_lone_elements() {
        // Payloads are inline, so the NIC reads nothing but elements.
        let plan = rates::plan(Op::Write, TransportKind::Rc, 32, 1);
        let lone = |profile: &Profile| run(profile, &plan, Threads::outbound(1, 1), 60_000).requester_delta;
        let user = lone(&Profile::built_in("cx3").unwrap());
        assert!(user.requests > 100 && user.mmio_lines >= user.requests, "{user:?}");
        assert_eq!((user.doorbells, user.dma_reads), (0, 0), "{user:?}");
        let kernel = lone(&profile());
        // Some were posted before the measurement, and some are not sent by its end.
        let nearly = |count: u64| count.abs_diff(kernel.requests) <= 32;
        assert!(kernel.requests > 100 && nearly(kernel.doorbells) && nearly(kernel.dma_reads), "{kernel:?}");
        assert_eq!(kernel.mmio_lines, 0, "{kernel:?}");
    }
}
