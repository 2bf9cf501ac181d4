//! Figure 10: effect of atomics on a key-value store.

use super::profile;
use crate::experiment::{Experiment, Row};
use crate::services::store::{StoreKind, StoreResult, StoreRun};

/// Experiment for Figure 10.
pub struct Fig10;

const PUT_PERCENT: [f64; 6] = [0.0, 10.0, 25.0, 50.0, 75.0, 100.0];
/// NICs, each with the percentage of the rate of GETs alone that 10 % of PUTs cost in the paper, and the percentage
/// that PUTs alone leave.
const NICS: [(&str, [f64; 2]); 2] = [("cx3", [72.0, 4.0]), ("cib", [31.0, 12.0])];

impl Experiment for Fig10 {
    fn id(&self) -> &'static str {
        "atc16-fig10"
    }

    fn title(&self) -> &'static str {
        "DrTM-KV with more and more PUTs"
    }

    fn source(&self) -> &'static str {
        "atc16 4.3.2, Figure 10"
    }

    fn setup(&self) -> &'static str {
        "28 or 56 clients with 16 requests each on seven hosts, and the real store: a GET is one READ, and a PUT is a \
         compare-and-swap, a WRITE and another compare-and-swap; clients already know where keys are. The paper \
         emulates a PUT by the two atomics. A record has two places for its value; values have 8 B, so that the READ \
         of a record is no longer than the paper's. The store holds 16,384 items rather than 16 million, so a few PUTs \
         find a lock held."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (at, (nic, [loss, left])) in NICS.into_iter().enumerate() {
            let mut rates = Vec::new();
            for (done, puts) in PUT_PERCENT.into_iter().enumerate() {
                progress((at * PUT_PERCENT.len() + done) as f64 / (NICS.len() * PUT_PERCENT.len()) as f64);
                let found = run(nic, puts);
                rates.push(found.mops);
                let id = format!("drtm.{nic}.{puts}");
                rows.push(Row::model(id, format!("{puts} % PUTs"), found.mops, "M/s").case(nic.to_uppercase()));
            }
            let share = |at: usize| rates[at] / rates[0] * 100.0;
            let ends = [
                ("put10", "lost with 10 % PUTs", 100.0 - share(1), loss),
                ("put100", "left with PUTs alone", share(PUT_PERCENT.len() - 1), left),
            ];
            for (what, metric, model, paper) in ends {
                let id = format!("drtm.{what}.{nic}");
                let row = Row::model(id, metric, model, "%").published(&profile(nic), "4.3.2", paper);
                rows.push(row.case(nic.to_uppercase()));
            }
        }
        rows
    }
}

fn run(nic: &str, put_percent: f64) -> StoreResult {
    // Until each client has used all its keys once, and then long enough for requests that take several times the
    // latency.
    let (warm_up_ns, measured_ns) = match put_percent {
        puts if puts < 5.0 => (1_000_000, 300_000),
        puts if puts < 20.0 => (2_000_000, 1_000_000),
        _ => (8_000_000, 3_000_000),
    };
    // As many clients as it takes to saturate the NIC.
    let clients = if nic == "cib" { 56 } else { 28 };
    let run =
        StoreRun { hosts: 7, clients, value_len: 8, window: 16, keys: 16_384, ..StoreRun::sigcomm14(StoreKind::Drtm) };
    StoreRun { get_percent: 100.0 - put_percent, warm_up_ns, measured_ns, ..run }.run(&profile(nic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_nics_leave_little_of_puts_and_more_where_there_are_more_locks() {
        let [gets, puts] = [0.0, 100.0].map(|puts| run("cx3", puts).mops);
        assert!(gets > 20.0 && puts < 2.0, "{gets} {puts}");
    }
}
