//! Experiments of "Design Guidelines for High Performance RDMA Systems" (atc16).

pub mod fig10;
pub mod fig11;
pub mod fig12;
pub mod fig13;
pub mod fig14;
pub mod fig2b;
pub mod fig8;
pub mod fig9;
pub mod table1;
pub mod table3;
pub mod table4;
pub mod table5;

use sinew_herd::WorkerConfig;
use sinew_sim::nic::Profile;

use crate::experiment::{Comparison, Row};

/// Requests in flight of each client. The paper does not say how many; each point is run with all of these.
const WINDOWS: &[usize] = &[2, 4, 8, 16];
/// Sentence about windows in the descriptions of set-ups.
const BEST_OF_WINDOWS: &str =
    "The paper does not say how many requests each client had in flight: each point is the best of 2, 4, 8 and 16.";

/// HERD's baseline on a NIC with two ports: each request is answered on its own, over a queue pair for each port (4.2).
fn baseline() -> WorkerConfig {
    WorkerConfig { response_queue_pairs: 2, ..WorkerConfig::herd() }
}

/// The baseline with batches: one doorbell for the answers to all requests found in one round over the clients (4.1).
fn batched(clients: usize) -> WorkerConfig {
    WorkerConfig { batch: clients, per_client: 1, doorbell_per_batch: true, ..baseline() }
}

/// Batches with three queue pairs for each port, too (4.2).
fn multi_queue(clients: usize) -> WorkerConfig {
    WorkerConfig { response_queue_pairs: 6, ..batched(clients) }
}

/// One of the built-in profiles of this paper's NICs.
fn profile(name: &str) -> Profile {
    Profile::built_in(name).expect("it is built in")
}

/// A row whose value the model was told, or which follows from what it was told.
fn calibrated_row(
    id: impl Into<String>,
    place: &'static str,
    metric: &str,
    paper: f64,
    model: f64,
    unit: &'static str,
) -> Row {
    Row::model(id, metric, model, unit).paper(place, paper, Comparison::Calibrated)
}
