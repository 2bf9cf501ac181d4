//! Figure 1: single operations with a growing number of threads.

use sinew_remote_memory::engine::{Mode, Unlimited};

use super::threads::{Plan, ThreadsResult, run};
use super::{profile, row};
use crate::experiment::{Comparison, Experiment, Row};

/// Experiment for Figure 1.
pub struct Fig1;

/// Numbers of threads that write.
pub const THREADS: [usize; 7] = [1, 2, 4, 6, 8, 10, 12];
/// Requests in flight of each thread.
pub const DEPTH: usize = 64;
/// Bytes of each write, and their name: short messages, which saturate the NIC, and pages, which saturate PCI Express.
pub const SIZES: [(usize, &str); 2] = [(64, "64 B"), (4096, "4 KB")];

/// A plan with threads that write, each over `queue_pairs` queue pairs of its own.
pub fn plan(threads: usize, queue_pairs: usize, len: usize) -> Plan {
    // Everything in flight takes as long as its bytes take on the link; it passes several times while it is measured.
    let measured_ns = 1_000_000 + (threads * DEPTH * len) as u64;
    Plan {
        threads,
        queue_pairs,
        depth: DEPTH,
        len,
        writes: true,
        mode: Mode::Single,
        adjacent: 0,
        seed: 1,
        warm_up_ns: measured_ns / 2,
        measured_ns,
    }
}

fn single(threads: usize, len: usize) -> ThreadsResult {
    run(&profile(), &plan(threads, 1, len), Unlimited)
}

/// The number of threads with the highest rate, and that rate.
pub fn peak<'a>(found: impl IntoIterator<Item = (usize, &'a ThreadsResult)>) -> (usize, f64) {
    let all = found.into_iter().map(|(threads, found)| (threads, found.kiops));
    all.max_by(|one, other| one.1.total_cmp(&other.1)).expect("some were run")
}

impl Experiment for Fig1 {
    fn id(&self) -> &'static str {
        "rdmabox-fig1"
    }

    fn title(&self) -> &'static str {
        "Single operations of more and more threads"
    }

    fn source(&self) -> &'static str {
        "rdmabox III-A, Figure 1"
    }

    fn setup(&self) -> &'static str {
        "Two hosts with a modelled ConnectX-3 each. Threads of one host WRITE to random places of the other's memory, \
         each by an engine and with one queue pair of its own, 64 requests at a time. Nothing merges, and nothing \
         limits them. The paper does not say how long its operations were, or how many each thread had in flight; its \
         threads shared the queue pair, which those of an engine never do."
    }

    fn remark(&self) -> &'static str {
        "The model has less of a fall than the paper. For short messages the rate is highest with four threads (13.4 \
         M/s), as in the paper, and 97.5 % of that with twelve; for pages, too, it is highest with four (1.65 M/s), \
         and 95 % of that with twelve. Meanwhile more and more is in flight and takes longer: the NIC is the \
         bottleneck, for the reason that the paper gives. More elements wait in it than its cache has room for (256, \
         an estimate of the profile), and each evicted element takes a requester 29 ns more, of 279: with 93 % evicted \
         the NIC makes 13.1 M/s, and with none 14.3 (Figure 8). But when four threads reach the peak, 29 % are evicted \
         already. With pages PCI Express is full, of which an evicted element takes the bytes of one more DMA read. A \
         deeper fall would take evicted elements that keep a requester waiting for a whole round trip of PCI Express, \
         370 ns: nothing published says so. Six threads are worse than their neighbours for another reason: two of \
         four requesters have two queue pairs each, and the thread that turns first takes what others submitted, even \
         to a requester that has more to do. What makes the rate fall to a quarter is the state of queue pairs, which \
         Figure 8 shows."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (nth, (len, name)) in SIZES.into_iter().enumerate() {
            let mut all = Vec::new();
            for threads in THREADS {
                progress((nth * THREADS.len() + all.len()) as f64 / (SIZES.len() * THREADS.len()) as f64);
                all.push((threads, single(threads, len)));
            }
            let (at, highest) = peak(all.iter().map(|(threads, found)| (*threads, found)));
            let id = |what: &str| format!("box.fig1.{what}.{len}");
            if len == 64 {
                let metric = "threads at the peak";
                let peak = row("box.fig1.peak", "III-A", metric, Comparison::Same, (4.0, at as f64), "threads");
                rows.push(peak.case(name));
            }
            let last = all.last().expect("some were run").1.kiops;
            rows.push(Row::model(id("kept"), "12 threads, of the peak", last / highest * 100.0, "%").case(name));
            for (threads, found) in &all {
                let of = |what: &str, metric: &str, value: f64, unit| {
                    Row::model(format!("{}.{threads}", id(what)), format!("{metric}, with {threads}"), value, unit)
                        .case(name)
                };
                rows.extend([
                    of("rate", "operations", found.kiops / 1e3, "M/s"),
                    of("in_flight", "in flight", found.in_flight_bytes / len as f64, "operations"),
                    of("time", "completion time", found.latency.mean() / 1e3, "us"),
                    of("missed", "elements fetched again", found.wqe_misses * 100.0, "%"),
                ]);
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_beyond_the_peak_only_takes_longer() {
        let found = [1, 2, 4, 12].map(|threads| single(threads, 64));
        let [one, two, four, twelve] = &found;
        // "At first, IOPS increases when the number of threads increase" (III-A). Then it stands still; it does not
        // drop, as the paper's does.
        assert!(one.kiops < two.kiops && two.kiops < four.kiops, "{} {} {}", one.kiops, two.kiops, four.kiops);
        assert!((0.9..1.01).contains(&(twelve.kiops / four.kiops)), "{} {}", twelve.kiops, four.kiops);
        // "When IOPS reaches peak point with 4 I/O threads, both RDMA I/O completion time and the number of in-flight
        // ops are still increasing. This shows NIC becomes bottleneck" (III-A).
        for (less, more) in found.iter().zip(&found[1..]) {
            assert!(less.in_flight_bytes < more.in_flight_bytes, "{} {}", less.in_flight_bytes, more.in_flight_bytes);
        }
        assert!(twelve.latency.mean() > 2.5 * four.latency.mean());
        // "it creates negative factors such as WQE cache miss to cause NIC bottleneck" (III-A).
        assert!(two.wqe_misses == 0.0 && twelve.wqe_misses > 0.9, "{} {}", two.wqe_misses, twelve.wqe_misses);
        assert!(twelve.usage.requesters > 0.97 && twelve.usage.pcie_down < 0.6);
    }

    #[test]
    fn pages_fill_pci_express_and_hardly_fall() {
        let [one, twelve] = [1, 12].map(|threads| single(threads, 4096));
        assert!(twelve.wqe_misses > 0.8 && twelve.usage.pcie_down > 0.97);
        assert!((0.95..1.01).contains(&(twelve.kiops / one.kiops)), "{} {}", one.kiops, twelve.kiops);
    }
}
