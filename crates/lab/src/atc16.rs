//! Design Guidelines for High Performance RDMA Systems.

pub mod fig10;
pub mod fig11;
pub mod fig12;
pub mod fig13;
pub mod fig14;
pub mod fig8;
pub mod fig9;
pub mod table3;
pub mod table4;
pub mod table5;

use sinew_herd::WorkerConfig;
use sinew_sim::nic::Profile;

use crate::experiment::{Against, Row};

/// Requests on their way of each client. The paper does not say how many; each point is run with all of these.
const WINDOWS: &[usize] = &[2, 4, 8, 16];
/// What setups say of that.
const BEST_OF_WINDOWS: &str =
    "The paper does not say how many requests each client had on their way: each point is the best of 2, 4, 8 and 16.";

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

/// A profile of this paper's.
fn profile(name: &str) -> Profile {
    Profile::built_in(name).expect("it is built in")
}

/// Rows that say the same as others: what one was calibrated on, the other is too.
const SAME: [(&str, &str); 4] = [
    ("cib.recv0", "cib.ud_recv.batch_ho"),
    ("cib.recv1", "cib.ud_recv.batch"),
    ("cib.send0", "cib.ud_send.batch_ho"),
    ("cib.send1", "cib.ud_send.batch"),
];

/// Whether a row was used to calibrate a profile, and so shows nothing.
pub(crate) fn against(profile: &Profile, id: &str) -> Against {
    let calibrations = profile.calibrations();
    let is_same = |(a, b): &(&str, &str)| *a == id && calibrations.contains(b) || *b == id && calibrations.contains(a);
    if calibrations.contains(&id) || SAME.iter().any(is_same) { Against::Calibrated } else { Against::Same }
}

/// A row of the model.
pub(crate) fn row(
    profile: &Profile,
    (id, place): (&str, &'static str),
    case: &str,
    metric: &str,
    (paper, model): (Option<f64>, f64),
    unit: &'static str,
) -> Row {
    Row {
        id: id.to_owned(),
        place: paper.map(|_| place),
        case: case.to_owned(),
        metric: metric.to_owned(),
        paper,
        against: against(profile, id),
        model: Some(model),
        measured: None,
        unit,
    }
}
