//! Figure 5: small objects beside transfers of 4 MB.

use super::Sweep;
use super::cluster::{self, Plan};
use super::ways::{NamedMethod, SIZES, THROUGHPUT};
use crate::experiment::{Experiment, Row};

/// Experiment for Figure 5.
pub struct Fig5;

/// Client hosts with a transfer in flight.
const BULK: usize = 4;

fn sweep(kinds: &[NamedMethod], sizes: &[usize], bulk: usize, progress: &mut dyn FnMut(f64)) -> Sweep {
    let profile = cluster::profile();
    Sweep::of(kinds, sizes, progress, |kind, len| {
        let plan = Plan::throughput(kind, len, 2);
        // A transfer takes 3.4 ms.
        let measured_ns = if bulk > 0 { 60_000_000 } else { plan.measured_ns };
        cluster::run(&profile, &Plan { bulk, measured_ns, ..plan })
    })
}

impl Experiment for Fig5 {
    fn id(&self) -> &'static str {
        "apnet19-fig5"
    }

    fn title(&self) -> &'static str {
        "Small objects beside transfers of 4 MB"
    }

    fn source(&self) -> &'static str {
        "apnet19 4.3, Figure 5"
    }

    fn setup(&self) -> &'static str {
        "As Figure 2, with 16 gets in flight of each client, and beside them four streams of 4 MB transfers, one after \
         the other, from the servers' host: by READ if objects are read, and by WRITE of the servers' host if it \
         answers. The paper does not say how many transfers there were, or how they were made."
    }

    fn remark(&self) -> &'static str {
        "A unit of the modelled NIC completes a message before it begins another, which is the worst that a NIC can do."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let alone = sweep(&THROUGHPUT, &SIZES, 0, &mut |part| progress(part / 2.0));
        let beside = sweep(&THROUGHPUT, &SIZES, BULK, &mut |part| progress(0.5 + part / 2.0));
        let mut rows = alone.rows("fig5.alone", "objects, alone", "M/s", |found| found.mops);
        rows.extend(beside.rows("fig5", "objects beside transfers", "M/s", |found| found.mops));
        rows.extend(beside.rows("fig5.bulk", "transfers", "Gbps", |found| found.bulk_gbps));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_transfers_starve_small_messages_of_all_ways() {
        let sizes = [64, 1024];
        let alone = sweep(&THROUGHPUT, &sizes, 0, &mut |_| {});
        let beside = sweep(&THROUGHPUT, &sizes, BULK, &mut |_| {});
        for kind in THROUGHPUT {
            for len in sizes {
                // "Although CPU contention does not significantly impact the performance of some verbs, RNIC contention
                // significantly hurts the throughput of small messages for all verbs" (4.3). "RDMA applications
                // performing longer transfers (4 MB) starve latency sensitive applications" (1).
                let (with, without) = (beside.get(kind, len), alone.get(kind, len));
                assert!(with.mops < 0.25 * without.mops, "{}, {len} B: {} of {}", kind.name, with.mops, without.mops);
                // "competing applications do not fairly share the RNIC" (4.3).
                let gbps = with.mops * len as f64 * 8.0 / 1e3;
                assert!(with.bulk_gbps > 4.0 * gbps, "{}, {len} B: {} beside {gbps}", kind.name, with.bulk_gbps);
            }
        }
    }
}
