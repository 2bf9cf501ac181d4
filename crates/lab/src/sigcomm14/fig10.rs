//! Figure 10: rates by length of values.

use sinew_herd::WorkerConfig;

use super::{EMULATED, SETUP, emulated, herd};
use crate::experiment::{Experiment, Row};
use crate::services::cache::CacheRun;
use crate::services::store::StoreRun;

/// Experiment for Figure 10.
pub struct Fig10;

const VALUES: [usize; 9] = [4, 16, 32, 44, 64, 128, 256, 512, 1000];
/// Length of a value from which on HERD's answers are not inline (5.3), in bytes.
const NOT_INLINE: usize = 144;
/// Bytes before the value in an answer.
const HEAD: usize = 8;

impl Experiment for Fig10 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig10"
    }

    fn title(&self) -> &'static str {
        "HERD beside stores that clients READ, by the length of values"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 5.3, Figure 10"
    }

    fn setup(&self) -> &'static str {
        SETUP
    }

    fn remark(&self) -> &'static str {
        "The text has no figures for the curves. It says that HERD delivers over 26 Mops up to items of 60 B, that \
         FaRM-em's rate falls with the length of its READs, and that all are alike for large values."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (done, value_len) in VALUES.into_iter().enumerate() {
            progress(done as f64 / VALUES.len() as f64);
            let case = format!("values of {value_len} B");
            let mops = of_herd(value_len);
            rows.push(Row::model(format!("herd14.herd.v{value_len}"), "HERD", mops, "M/s").case(&*case));
            for (name, title, kind) in EMULATED {
                let mops = emulated(StoreRun { value_len, ..StoreRun::sigcomm14(kind) }).mops;
                rows.push(Row::model(format!("herd14.{name}.v{value_len}"), title, mops, "M/s").case(&*case));
            }
        }
        rows
    }
}

fn of_herd(value_len: usize) -> f64 {
    let worker = WorkerConfig { inline_max: NOT_INLINE - 1 + HEAD, ..WorkerConfig::herd() };
    herd(CacheRun { worker, value_len, ..CacheRun::sigcomm14() }).mops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::store::StoreKind;

    #[test]
    fn herd_keeps_its_rate_up_to_items_of_60_bytes_and_farm_loses_its_own() {
        assert!([4, 44].map(of_herd).iter().all(|mops| *mops > 25.0));
        let farm = |value_len| emulated(StoreRun { value_len, ..StoreRun::sigcomm14(StoreKind::Farm) }).mops;
        assert!(farm(256) < farm(32) / 3.0);
    }
}
