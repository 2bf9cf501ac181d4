//! Published figures of modelled NICs, and whether the model was calibrated on them.

use sinew_sim::nic::Profile;

use crate::experiment::{Comparison, Row};

/// Rows that mean the same figure: a profile that was calibrated on one was calibrated on the other, too.
const SAME: [(&str, &str); 5] = [
    ("seq.atomics", "cib.atomics.z1"),
    ("cib.recv0", "cib.ud_recv.batch_ho"),
    ("cib.recv1", "cib.ud_recv.batch"),
    ("cib.send0", "cib.ud_send.batch_ho"),
    ("cib.send1", "cib.ud_send.batch"),
];

/// Tells whether a profile was calibrated on a row, or estimated in view of it: then the row shows nothing.
fn against(profile: &Profile, id: &str) -> Comparison {
    let mut known = profile.calibrations();
    known.extend(profile.in_view());
    let is_same = |(a, b): &(&str, &str)| *a == id && known.contains(b) || *b == id && known.contains(a);
    if known.contains(&id) || SAME.iter().any(is_same) { Comparison::Calibrated } else { Comparison::Same }
}

impl Row {
    /// Sets the paper's value and its place, if there is a value. It counts as a prediction unless the NIC's profile
    /// was calibrated on it.
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
        assert_eq!(of("cib.recv0").against, Comparison::Calibrated);
        assert_eq!(
            of("cib.ud_recv.batch_ho").against,
            Comparison::Calibrated,
            "the same figure, elsewhere in the paper"
        );
        assert_eq!(of("seq.core.multiq").against, Comparison::Calibrated, "a parameter was estimated in view of it");
        assert_eq!(of("cib.read.window").against, Comparison::Same);
        assert_eq!(Row::model("a", "rate", 1.0, "M/s").published(&cib, "Table 5", None).paper, None);
    }
}
