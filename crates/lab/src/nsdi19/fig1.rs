//! Figure 1: READs on a growing number of connections.

use sinew_sim::nic::Profile;

use crate::experiment::{Experiment, Row};
use crate::nics::connections;

/// Experiment for Figure 1.
pub struct Fig1;

const CONNECTIONS: [usize; 6] = [100, 1000, 2000, 3000, 4000, 5000];

impl Experiment for Fig1 {
    fn id(&self) -> &'static str {
        "nsdi19-fig1"
    }

    fn title(&self) -> &'static str {
        "READs on more and more connections"
    }

    fn source(&self) -> &'static str {
        "nsdi19 4.1.2, Figure 1"
    }

    fn setup(&self) -> &'static str {
        "The threads of a host with a modelled ConnectX-5 issue READs of 16 bytes on connections to four hosts that they choose at random."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let nic = Profile::built_in("cx5").expect("it is built in");
        let mut rows = Vec::new();
        let mut peak = 0.0f64;
        for (step, count) in CONNECTIONS.into_iter().enumerate() {
            progress(step as f64 / CONNECTIONS.len() as f64);
            let mops = connections::read_mops(&nic, count);
            peak = peak.max(mops);
            let id = format!("erpc.fig1.{count}");
            rows.push(Row::model(id, format!("{count} connections"), mops, "M/s").case("READ of 16 B"));
            if count == 5000 {
                let metric = "5,000 connections, share of the peak";
                let share = mops / peak * 100.0;
                rows.push(
                    Row::model("erpc.fig1", metric, share, "%").case("READ of 16 B").published(&nic, "Figure 1", 50.0),
                );
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_falls_once_the_nic_does_not_remember_all_connections() {
        let nic = Profile::built_in("cx5").unwrap();
        let [few, many] = [100, 5000].map(|count| connections::read_mops(&nic, count));
        // "RDMA throughput decreases, losing ≈50% throughput with 5000 connections" (4.1.2).
        assert!((0.3..0.75).contains(&(many / few)), "{many} of {few} M/s");
    }
}
