//! Figure 11: latency under load.

use super::{EMULATED, SETUP, apt, emulated, herd};
use crate::experiment::{Experiment, Row};
use crate::services::cache::CacheRun;
use crate::services::store::StoreRun;

/// Experiment for Figure 11.
pub struct Fig11;

const CLIENTS: [usize; 6] = [2, 9, 18, 27, 36, 51];
/// "At least 36 client processes" saturate the server (5.1).
const SATURATING: usize = 36;

impl Experiment for Fig11 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig11"
    }

    fn title(&self) -> &'static str {
        "Latency under load, items of 48 B"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 5.4, Figure 11"
    }

    fn setup(&self) -> &'static str {
        SETUP
    }

    fn remark(&self) -> &'static str {
        "The load grows with the number of clients, which have four requests each. The text has one point of the \
         curves, HERD's at 26 Mops, which it says 36 clients reach; with 51 the rate is the same and latency is \
         higher, since the others wait."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut push = |name: &str, title: &str, clients: usize, mops: f64, mean_ns: f64, ends_ns: [u64; 2]| {
            let (case, id) = (format!("{title}, {clients} clients"), format!("herd14.{name}.load{clients}"));
            rows.push(Row::model(format!("{id}.rate"), "rate", mops, "M/s").case(&*case));
            let metric = "mean latency";
            rows.push(if (name, clients) == ("herd", SATURATING) {
                Row::model("herd14.latency", metric, mean_ns / 1e3, "us").published(&apt(), "5.4", 5.0).case(&*case)
            } else {
                Row::model(format!("{id}.mean"), metric, mean_ns / 1e3, "us").case(&*case)
            });
            for (suffix, metric, ns) in [("p5", "5% latency", ends_ns[0]), ("p95", "95% latency", ends_ns[1])] {
                rows.push(Row::model(format!("{id}.{suffix}"), metric, ns as f64 / 1e3, "us").case(&*case));
            }
        };
        for (done, clients) in CLIENTS.into_iter().enumerate() {
            progress(done as f64 / CLIENTS.len() as f64);
            let found = herd(CacheRun { clients, ..CacheRun::sigcomm14() });
            push("herd", "HERD", clients, found.mops, found.mean_ns, found.percentiles_ns);
            for (name, title, kind) in EMULATED {
                let found = emulated(StoreRun { clients, ..StoreRun::sigcomm14(kind) });
                push(name, title, clients, found.mops, found.mean_ns, found.percentiles_ns);
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::store::StoreKind;

    #[test]
    fn herd_takes_five_microseconds_at_its_peak_and_less_than_designs_of_several_trips() {
        let peak = herd(CacheRun { clients: SATURATING, ..CacheRun::sigcomm14() });
        assert!(peak.mops > 25.0 && (4_000.0..6_500.0).contains(&peak.mean_ns), "{peak:?}");
        let herd = herd(CacheRun { clients: 2, ..CacheRun::sigcomm14() }).mean_ns;
        let [pilaf, farm] = [StoreKind::Pilaf, StoreKind::Farm]
            .map(|kind| emulated(StoreRun { clients: 2, ..StoreRun::sigcomm14(kind) }).mean_ns);
        assert!(farm < herd && herd < pilaf, "{farm} {herd} {pilaf}");
    }
}
