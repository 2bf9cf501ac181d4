//! Table 2 and Figure 4 again, on modelled NICs: calls as datagrams of verbs.

use sinew_sim::nic::Profile;

use crate::experiment::{Against, Experiment, Row};
use crate::services::rpc::RpcRun;

/// See the module.
pub struct ModelledNics;

/// Clusters, with the median latency of a call in microseconds (Table 2).
const LATENCIES: [(&str, f64); 3] = [("cx3", 2.1), ("cx4", 3.7), ("cx5", 2.3)];
/// Millions of calls a second of a thread, in batches of three (6.2, Figure 4).
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
        "Calls of 32 B over UD queue pairs of modelled NICs, one for each endpoint: a lone one between two hosts, and those of eleven hosts with a thread \
         each, as in nsdi19-fig4. Cores are charged by the NICs' profiles for verbs, and for the rest by what is left of the simulator's costs. Neither \
         latencies of calls nor rates chose a parameter of these NICs; READs' latencies did."
    }

    fn remark(&self) -> &'static str {
        "The rate is what one processing unit of the NIC takes in: a queue pair is bound to one, and the profile of CX4 has the units of a Connect-IB, which need 195 ns \
         for a datagram with data, and half as many. A queue pair of the paper's took in 9.9 M packets a second. With units twice as fast, the core is what \
         limits; how fast a unit of a ConnectX-4 is, nobody has published."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (done, (nic, paper)) in LATENCIES.into_iter().enumerate() {
            progress(done as f64 / 5.0);
            let row = Row::model(format!("erpc.nics.lat.{nic}"), "a lone call, median latency", lone_us(nic), "us");
            rows.push(row.paper("Table 2", paper, Against::Same).case(nic.to_uppercase()));
        }
        for (done, (suffix, metric, scale)) in
            [("", "calls of each thread", 1.0), (".fast", "calls of each thread, with units twice as fast", 0.5)]
                .into_iter()
                .enumerate()
        {
            progress((3 + done) as f64 / 5.0);
            let against = if scale < 1.0 { Against::Other("the paper's NIC") } else { Against::Same };
            let row = Row::model(format!("erpc.nics.rate.cx4{suffix}"), metric, rate_mops(scale), "M/s");
            rows.push(row.paper("Figure 4", RATE, against).case("CX4"));
        }
        rows
    }
}

fn profile(nic: &str) -> Profile {
    Profile::built_in(nic).expect("its file is built in")
}

fn lone_us(nic: &str) -> f64 {
    RpcRun::lone().run(&profile(nic)).median_ns as f64 / 1e3
}

/// Of a NIC whose units take so many times as long.
fn rate_mops(scale: f64) -> f64 {
    let mut profile = profile("cx4");
    let units = &mut profile.units;
    for ns in [
        &mut units.request_ns,
        &mut units.fetched_line_ns,
        &mut units.packet_ns,
        &mut units.dma_write_ns,
        &mut units.dma_read_ns,
    ] {
        *ns *= scale;
    }
    RpcRun::small_calls().run(&profile).mops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_take_as_long_as_the_papers_and_a_core_makes_as_many_where_its_nic_lets_it() {
        for (nic, paper) in LATENCIES {
            let us = lone_us(nic);
            assert!((us / paper - 1.0).abs() < 0.1, "{nic}: {us} us");
        }
        let fast = rate_mops(0.5);
        assert!((fast / RATE - 1.0).abs() < 0.1, "{fast}");
    }
}
