//! Design Guidelines for High Performance RDMA Systems.

pub mod fig11;
pub mod fig12;
pub mod fig13;
pub mod fig14;
pub mod table4;
pub mod table5;

use sinew_sim::nic::Profile;

use crate::experiment::{Against, Row};

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
