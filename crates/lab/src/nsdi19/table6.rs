//! Table 6: PUTs to a store with three replicas.

use std::time::Duration;

use hdrhistogram::Histogram;
use sinew_sim::nic::Profile;

use super::here;
use crate::experiment::{Comparison, Experiment, Row};
use crate::services::replica::{ReplicaResult, ReplicaRun};

/// Experiment for Table 6.
pub struct Table6;

/// Cost of a PUT beside its calls, in instructions: at the leader, and at another member.
type Cost = [f64; 2];
const NOTHING: Cost = [0.0; 2];
/// Cost of Raft's engine (`cargo xtask cost --row "Raft engine"`).
const ENGINE: Cost = [9_689.0, 4_100.0];
/// Cost of a whole member (some 35,100 and 18,500 in `cargo xtask cost --row "replicated PUT"`), without an estimate of
/// the RPC layer's part: two calls and an answer, and one answer. A lone small call takes 886 at its client and 699 at
/// its server (`--row "batches of 1, shared rings"`).
const MEMBER: Cost = [32_600.0, 17_800.0];
/// Messages that a member takes for a PUT: the leader the request and two acknowledgements, another member the entry,
/// with which it learns that the one before is committed.
const MESSAGES: Cost = [3.0, 1.0];
/// Instructions per ns of the paper's processor: 2.6 GHz (Xeon E5-2697 v3), times 1.5 per cycle, which is an estimate.
const INSTRUCTIONS_PER_NS: f64 = 2.6 * 1.5;
/// Time for which PUTs are measured on this machine, of either system, and how often.
const MEASURED: Duration = Duration::from_secs(1);
const REPEATS: usize = 3;
/// Part of the time that the simulation takes.
const MODEL: f64 = 0.2;
/// Lines of memory that a PUT to MICA waits for: the bucket and the item.
const PUT_MISSES: u64 = 2;

impl Table6 {
    /// The paper's workload, with a cost for each message at a member.
    fn workload(cost: Cost) -> ReplicaRun {
        ReplicaRun {
            members: 3,
            keys: 1_000_000,
            value_len: 64,
            warm_up: 100,
            puts: 2_000,
            message_ns: [0, 1].map(|role| (cost[role] / MESSAGES[role] / INSTRUCTIONS_PER_NS) as u64),
            put_misses: PUT_MISSES,
            seed: 1,
        }
    }
}

fn us(times: &Histogram<u64>, part: f64) -> f64 {
    times.value_at_quantile(part) as f64 / 1e3
}

/// Rows of this machine: medians of measurements that alternate between this project's store and etcd. They have no
/// values if the system refuses sockets, or if there is no etcd.
fn rows_here(keys: u64, repeats: usize, duration: Duration) -> Vec<Row> {
    let ours = || {
        let found = here::puts(keys, duration)?;
        Ok(vec![us(&found.client_ns, 0.5), us(&found.client_ns, 0.99), us(&found.leader_ns, 0.5)])
    };
    let of_etcd = || {
        let found = here::puts_to_etcd(keys, duration)?;
        Ok([0.5, 0.99].map(|part| found.quantile_ns(part) / 1e3).into())
    };
    let found = here::measure_alternately(repeats, &mut [Box::new(ours), Box::new(of_etcd)]);
    let [client, client_tail, leader] = [
        ("client.p50", "a PUT at the client, median"),
        ("client.p99", "a PUT at the client, 99th percentile"),
        ("leader.p50", "a commit at the leader, median"),
    ];
    let systems = [
        ("", "on this machine, over UDP", &[client, client_tail, leader][..]),
        (".etcd", "on this machine, etcd, over TCP", &[client, client_tail]),
    ];
    let rows = systems.iter().zip(found).flat_map(|((system, case, figures), found)| {
        figures.iter().enumerate().map(move |(at, (id, metric))| {
            let found = found.as_ref().map(|found| found[at]).map_err(Clone::clone);
            here::row(format!("erpc.smr.{id}{system}.here"), metric, (*case).to_owned(), found, "us")
        })
    });
    rows.collect()
}

fn run(workload: ReplicaRun) -> ReplicaResult {
    workload.run(&Profile::built_in("cx5").expect("its file is built in"))
}

/// Rows of the simulated cluster.
fn rows_of_the_model(progress: &mut dyn FnMut(f64)) -> Vec<Row> {
    let cases = [
        ("", "Raft costs nothing", NOTHING),
        (".engine", "with the engine's cost", ENGINE),
        (".member", "with all of a member's cost", MEMBER),
    ];
    let mut rows = Vec::new();
    for (done, (name, case, cost)) in cases.into_iter().enumerate() {
        progress(done as f64 / cases.len() as f64 * MODEL);
        let found = run(Table6::workload(cost));
        let mut row = |id: &str, metric: &str, paper: Option<(&'static str, f64)>, us: f64| {
            let row = Row::model(format!("erpc.smr.{id}{name}"), metric, us, "us").case(case);
            rows.push(match paper.filter(|_| name.is_empty()) {
                Some((place, paper)) => row.paper(place, paper, Comparison::Same),
                None => row,
            });
        };
        row("client.p50", "a PUT at the client, median", Some(("Table 6", 5.5)), us(&found.client_ns, 0.5));
        row("client.p99", "a PUT at the client, 99th percentile", Some(("Table 6", 6.3)), us(&found.client_ns, 0.99));
        // That is three per cent more than ZabFPGA's 3.0 us.
        row("leader.p50", "a commit at the leader, median", Some(("7.1.2", 3.1)), us(&found.leader_ns, 0.5));
    }
    progress(MODEL);
    rows
}

impl Experiment for Table6 {
    fn id(&self) -> &'static str {
        "nsdi19-table6"
    }

    fn title(&self) -> &'static str {
        "PUTs that three members keep"
    }

    fn source(&self) -> &'static str {
        "nsdi19 7.1, Table 6"
    }

    fn setup(&self) -> &'static str {
        "Three members of sinew's replicated store, in memory, and one client that puts one key after the other, on \
         four hosts with the modelled CX5. Keys of 16 B are drawn from a million; values have 64 B. A member's core is \
         charged for the call, and for two lines of the table's memory when the PUT is applied. At first, Raft costs \
         nothing. Then the cost of a PUT at a member is spread evenly over the messages that it takes: 9,689 \
         instructions of the engine at the leader and 4,100 at another member, or some 32,600 and 17,800 for \
         everything above the RPC layer, at 2.6 GHz and 1.5 instructions per cycle, which is an estimate. The leader \
         takes three messages and another member one; the leader's second acknowledgement may come after the answer. \
         The leader's time runs from when it takes the request until a majority has the entry. At last the same PUTs \
         are measured on this machine, three times for a second: three members and the client are threads that sleep \
         while they wait, and talk over UDP on loopback. By turns with them, etcd gets the same PUTs, if it is \
         installed: three processes with their data on a file system in memory, and one client over gRPC, whose \
         thread sleeps while it waits. The figures are the medians of the three."
    }

    fn remark(&self) -> &'static str {
        "The paper's Raft is another one, written in C, and the paper does not state its cost; its figures are \
         compared with the rows without a cost. The percentiles of the model contain no jitter of hosts. On this \
         machine four threads share the processors, and each message takes system calls and wakes a thread. etcd \
         answers over gRPC and always writes a log, here to a file system in memory; this project's members have none. \
         `cargo xtask peers --only replicated` measures member processes beside etcd's, also with many PUTs in flight \
         and on a disk."
    }

    fn measures_on(&self) -> Vec<usize> {
        sinew_host::available_cpus()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = rows_of_the_model(progress);
        rows.extend(rows_here(1_000_000, REPEATS, MEASURED));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::found_of;

    #[test]
    fn a_put_takes_as_long_as_the_papers_and_what_raft_costs_comes_on_top() {
        let rows = rows_of_the_model(&mut |_| ());
        let of = |id: &str| found_of(&rows, &format!("erpc.smr.{id}"));
        assert!((of("client.p50") / 5.5 - 1.0).abs() < 0.2, "{rows:#?}");
        assert!((of("client.p99") / 6.3 - 1.0).abs() < 0.2, "{rows:#?}");
        assert!((of("leader.p50") / 3.1 - 1.0).abs() < 0.2, "{rows:#?}");
        assert!(of("leader.p50") < of("client.p50"));
        for part in ["client.p50", "leader.p50"] {
            assert!(of(part) < of(&format!("{part}.engine")), "{rows:#?}");
            assert!(of(&format!("{part}.engine")) < of(&format!("{part}.member")), "{rows:#?}");
        }
    }

    #[test]
    fn rows_of_this_machine_stand_apart_from_the_models_and_say_what_is_missing() {
        let rows = rows_here(100, 2, Duration::from_millis(50));
        let missing = sinew_peers::etcd::check().err().map(|missing| missing.to_string());
        if let Some(missing) = &missing {
            sinew_conformance::skipped(missing);
        }
        for row in &rows {
            assert!(row.id.ends_with(".here") && row.case.starts_with("on this machine"), "{row:?}");
            assert!(row.model.is_none() && row.paper.is_none(), "{row:?}");
            let lacks = missing.clone().filter(|_| row.id.contains("etcd"));
            assert_eq!((&row.missing_because, row.measured.is_some_and(|us| us > 0.0)), (&lacks, lacks.is_none()));
        }
        assert_eq!(rows.len(), 5);
    }

    #[test]
    fn runs_are_the_same_from_one_seed() {
        let short = ReplicaRun { warm_up: 10, puts: 100, ..Table6::workload(NOTHING) };
        assert_eq!(run(short).trace_hash, run(short).trace_hash);
        assert_ne!(run(short).trace_hash, run(ReplicaRun { seed: 2, ..short }).trace_hash);
    }
}
