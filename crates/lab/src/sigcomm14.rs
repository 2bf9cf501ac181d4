//! Experiments of "Using RDMA Efficiently for Key-Value Services" (sigcomm14), which presents HERD.

pub mod fig10;
pub mod fig11;
pub mod fig12;
pub mod fig13;
pub mod fig14;
pub mod fig2;
pub mod fig3;
pub mod fig5;
pub mod fig6;
pub mod fig7;
pub mod fig9;

use sinew_sim::nic::Profile;

use crate::experiment::{Comparison, Row};
use crate::services::cache::{CacheResult, CacheRun};
use crate::services::store::{StoreKind, StoreResult, StoreRun};

/// Profile of Apt's hosts (Table 2).
fn apt() -> Profile {
    Profile::built_in("cx3").expect("its file is built in")
}

/// The emulated designs: prefix of the rows' names, name, and store.
const EMULATED: [(&str, &str, StoreKind); 3] = [
    ("pilaf", "Pilaf-em-OPT", StoreKind::Pilaf),
    ("farm", "FaRM-em", StoreKind::Farm),
    ("farmvar", "FaRM-em-VAR", StoreKind::FarmVar),
];

/// Runs HERD.
fn herd(run: CacheRun) -> CacheResult {
    run.run(&apt())
}

fn emulated(run: StoreRun) -> StoreResult {
    run.run(&apt())
}

/// Part of all setups.
const SETUP: &str = "Hosts with a modelled ConnectX-3 each, as Apt's; keys of 16 B. HERD is the real cache, with 4,096 \
    keys for each worker rather than millions, with each access to its table charged as a miss of all caches, and \
    prefetched as the code does. The others are emulated as in the paper (5.1): READs of as many bytes, without a \
    table; but their PUTs are HERD's calls to one worker.";

/// Marks a row that follows from an input of the profile, the NIC's advertised message rate.
fn input(row: Row) -> Row {
    Row { against: Comparison::Calibrated, ..row }
}
