//! Table 2 and Figure 4 on modelled NICs: calls as datagrams of verbs.

use sinew_sim::nic::Profile;

use crate::experiment::{Comparison, Experiment, Row};
use crate::services::rpc::RpcRun;

/// Experiment for Table 2 and Figure 4.
pub struct ModelledNics;

/// Clusters, each with the median latency of a call in us (Table 2).
const LATENCIES: [(&str, f64); 3] = [("cx3", 2.1), ("cx4", 3.7), ("cx5", 2.3)];
/// Millions of calls per second of a thread, in batches of three (6.2, Figure 4).
const RATE: f64 = 4.96;

impl Experiment for ModelledNics {
    fn id(&self) -> &'static str {
        "nsdi19-nics"
    }

    fn title(&self) -> &'static str {
        "Small calls on modelled NICs"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.1, Table 2, and 6.2, Figure 4"
    }

    fn setup(&self) -> &'static str {
        "Calls of 32 B over UD queue pairs of modelled NICs, one for each endpoint: a lone call between two hosts, and \
         the calls of eleven hosts with a thread each, as in nsdi19-fig4. Cores are charged for verbs by the NICs' \
         profiles, and otherwise by what is left of the simulator's costs. No parameter of these NICs was chosen by \
         latencies or rates of calls; READs' latencies were used."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (done, (nic, paper)) in LATENCIES.into_iter().enumerate() {
            progress(done as f64 / 4.0);
            let row = Row::model(format!("erpc.nics.lat.{nic}"), "a lone call, median latency", lone_us(nic), "us");
            rows.push(row.paper("Table 2", paper, Comparison::Same).case(nic.to_uppercase()));
        }
        progress(0.75);
        let row = Row::model("erpc.nics.rate.cx4", "calls of each thread", rate_mops(), "M/s");
        rows.push(row.paper("Figure 4", RATE, Comparison::Same).case("CX4"));
        rows
    }
}

fn profile(nic: &str) -> Profile {
    Profile::built_in(nic).expect("its file is built in")
}

fn lone_us(nic: &str) -> f64 {
    RpcRun::lone().run(&profile(nic)).median_ns as f64 / 1e3
}

fn rate_mops() -> f64 {
    RpcRun::small_calls().run(&profile("cx4")).mops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_take_as_long_as_the_papers_and_a_core_makes_as_many() {
        for (nic, paper) in LATENCIES {
            let us = lone_us(nic);
            assert!((us / paper - 1.0).abs() < 0.12, "{nic}: {us} us");
        }
        let mops = rate_mops();
        assert!((mops / RATE - 1.0).abs() < 0.1, "{mops}");
    }
}
