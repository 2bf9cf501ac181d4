//! Design Guidelines for High Performance RDMA Systems: whole systems on modelled NICs.

pub mod fig10;
pub mod fig8;
pub mod fig9;
pub mod table3;

use sinew_herd::WorkerConfig;
use sinew_sim::nic::Profile;

use crate::experiment::Against;

/// Requests on their way of each client. The paper does not say how many; each point is run with all of these, and the best counts.
const WINDOWS: &[usize] = &[4, 8, 16];
/// What setups say of that.
const BEST_OF_WINDOWS: &str =
    "The paper does not say how many requests each client had on their way: each point is the best of 4, 8 and 16.";

/// HERD's baseline on a NIC with two ports: each request is answered by itself, over a queue pair for each port (4.2).
fn baseline() -> WorkerConfig {
    WorkerConfig { response_queue_pairs: 2, ..WorkerConfig::herd() }
}

/// With batches: what one look at all of so many clients finds, with one doorbell (4.1).
fn batched(clients: usize) -> WorkerConfig {
    WorkerConfig { batch: clients, per_client: 1, doorbell_per_batch: true, ..baseline() }
}

/// With three queue pairs for each port, too (4.2).
fn multi_queue(clients: usize) -> WorkerConfig {
    WorkerConfig { response_queue_pairs: 6, ..batched(clients) }
}

fn profile(name: &str) -> Profile {
    Profile::built_in(name).expect("its file is built in")
}

/// How a row of the paper's stands to the model: the profile may have been calibrated on it.
fn against(profile: &Profile, id: &str) -> Against {
    if profile.calibrations().contains(&id) { Against::Calibrated } else { Against::Same }
}
