//! What papers have of modelled NICs, beside the model.

use sinew_sim::nic::Profile;

use crate::experiment::{Against, Row};

/// Rows that say the same as others: what one was calibrated on, the other is too.
const SAME: [(&str, &str); 5] = [
    ("seq.atomics", "cib.atomics.z1"),
    ("cib.recv0", "cib.ud_recv.batch_ho"),
    ("cib.recv1", "cib.ud_recv.batch"),
    ("cib.send0", "cib.ud_send.batch_ho"),
    ("cib.send1", "cib.ud_send.batch"),
];

/// Rows that parameters were estimated in view of, as their sources say, and so show less than they seem to: `responder_states`, `requesters` and `wqes` of cx3, `post_ns` and
/// `wqes` of cib.
const IN_VIEW: [&str; 5] =
    ["herd14.in_1600", "cib.multiq.4qp.low", "cx3.read.window", "seq.core.multiq", "cib.read.window"];

/// Whether a row was used to calibrate a profile, and so shows nothing.
fn against(profile: &Profile, id: &str) -> Against {
    let calibrations = profile.calibrations();
    let is_same = |(a, b): &(&str, &str)| *a == id && calibrations.contains(b) || *b == id && calibrations.contains(a);
    if calibrations.contains(&id) || IN_VIEW.contains(&id) || SAME.iter().any(is_same) {
        Against::Calibrated
    } else {
        Against::Same
    }
}

impl Row {
    /// What the paper says of a NIC, and where, if it does: it is held against the model unless the NIC's profile was calibrated on it.
    #[must_use]
    pub(crate) fn published(self, profile: &Profile, place: &'static str, paper: impl Into<Option<f64>>) -> Self {
        match paper.into() {
            Some(paper) => {
                let against = against(profile, &self.id);
                self.paper(place, paper, against)
            }
            None => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_profile_was_calibrated_on_is_no_prediction() {
        let cib = Profile::built_in("cib").expect("it is built in");
        let of = |id: &str| Row::model(id, "rate", 1.0, "M/s").published(&cib, "Table 5", 2.0);
        assert_eq!(of("cib.recv0").against, Against::Calibrated);
        assert_eq!(of("cib.ud_recv.batch_ho").against, Against::Calibrated, "the same figure, elsewhere in the paper");
        assert_eq!(of("cib.read.out").against, Against::Same);
        assert_eq!(Row::model("a", "rate", 1.0, "M/s").published(&cib, "Table 5", None).paper, None);
    }
}
