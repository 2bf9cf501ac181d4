//! Figure 4: throughput and tail latency on cores for which a program competes.

use super::Sweep;
use super::cluster::{self, Plan};
use super::ways::{NamedMethod, SIZES, THROUGHPUT};
use crate::experiment::{Experiment, Row};

/// Experiment for Figure 4.
pub struct Fig4;

/// Gets in flight of each client at each server process, as in Figure 2.
const WINDOW: usize = 2;
/// Time slices of the program that are measured.
const SLICES: u64 = 4;

fn sweep(kinds: &[NamedMethod], sizes: &[usize], progress: &mut dyn FnMut(f64)) -> Sweep {
    let profile = cluster::profile();
    Sweep::of(kinds, sizes, progress, |kind, len| {
        cluster::run(&profile, &Plan::throughput(kind, len, WINDOW).competing(SLICES, &profile))
    })
}

impl Experiment for Fig4 {
    fn id(&self) -> &'static str {
        "apnet19-fig4"
    }

    fn title(&self) -> &'static str {
        "Ways to read, as fast as possible, beside a program on each core"
    }

    fn source(&self) -> &'static str {
        "apnet19 4.2, Figure 4"
    }

    fn setup(&self) -> &'static str {
        "As Figure 2, with 16 gets in flight of each client, while a computing program competes for each core of all \
         hosts, in slices of 12 ms that begin at different times."
    }

    fn remark(&self) -> &'static str {
        "The paper says that a single compound read is significantly faster than two dependent READs here. In the \
         model it is not: servers that poll have half of their cores, and READs need no core of the servers. (With \
         cores that are only twice as slow as those of cx3, which was the estimate before they were calibrated, it \
         is.) Keeping account of what processes ran, as Linux's CFS does, changes little: clients that sleep use less \
         than half of their cores, except at 16 B, where READ-Intr is 3 % slower than READ-Poll and READ-Intr-2 to -4 \
         lose a tenth. Tail latencies at 4 KB are about those of Figure 2, as the paper says: fewer than a tenth of \
         the gets meet a lost slice."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let found = sweep(&THROUGHPUT, &SIZES, progress);
        let mut rows = found.rows("fig4a", "objects", "M/s", |found| found.mops);
        rows.extend(found.rows("fig4b", "90th percentile", "us", |found| found.p90_ns as f64 / 1e3));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::ways::{READ_INTR, READ_POLL, SEND_SEND, WRITE_SEND};
    use super::*;

    #[test]
    fn reads_whose_completions_interrupt_keep_their_rate_beside_a_program_on_each_core() {
        let profile = cluster::profile();
        let kinds = [READ_INTR, READ_POLL, WRITE_SEND, SEND_SEND];
        let sizes = [64, 4096];
        let beside = sweep(&kinds, &sizes, &mut |_| {});
        let alone = Sweep::of(&kinds, &sizes, &mut |_| {}, |kind, len| {
            cluster::run(&profile, &Plan::throughput(kind, len, WINDOW))
        });
        let mops = |kind, len| beside.get(kind, len).mops;
        let kept = |kind, len| mops(kind, len) / alone.get(kind, len).mops;
        for len in sizes {
            // "READ-Intr provides the highest throughput for all message sizes" (4.2).
            for kind in kinds {
                assert!(mops(READ_INTR, len) >= 0.995 * mops(kind, len), "{len} B: {}", kind.name);
            }
            // "If other applications are competing for the CPU, we would expect the throughput of two-sided verbs and
            // polling to drop more than one-sided verbs and interrupts, and this is the case" (4.2).
            for kind in [READ_POLL, WRITE_SEND, SEND_SEND] {
                assert!(kept(READ_INTR, len) >= 0.99 * kept(kind, len), "{len} B: {}", kind.name);
            }
            assert!(kept(READ_INTR, len) > 0.97, "{len} B: {}", kept(READ_INTR, len));
        }
        assert!(kept(WRITE_SEND, 64) < 0.7 && kept(SEND_SEND, 64) < 0.7);
        // "However, at small message sizes, the throughput of using interrupts and polling is similar" (4.2).
        let ratio = mops(READ_POLL, 64) / mops(READ_INTR, 64);
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
        // "the latency of transfers in Figure 4b does not differ significantly from Figure 2b. However, because both of
        // these figure show a significant increase in tail latency when large message sizes are used, we conclude that
        // jumbo frames should not be used" (4.2).
        for kind in kinds {
            let ratio = beside.get(kind, 4096).p90_ns as f64 / alone.get(kind, 4096).p90_ns as f64;
            assert!((0.5..2.0).contains(&ratio), "{}: {ratio}", kind.name);
        }
        for kind in kinds {
            assert!(beside.get(kind, 4096).p90_ns > 5 * beside.get(kind, 64).p90_ns, "{}", kind.name);
        }
    }
}
