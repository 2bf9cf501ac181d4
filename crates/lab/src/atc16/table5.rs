//! Table 5: header-only and regular SENDs and RECVs, on three NICs.

use sinew_harness::load::verbs::{Op, TransportKind};

use super::profile;
use crate::experiment::{Experiment, Row};
use crate::nics::rates;

/// Experiment for Table 5.
pub struct Table5;

/// NICs with the paper's rates in M/s: RECV header-only and regular, SEND header-only and regular.
const PAPER: [(&str, &str, [f64; 4]); 3] = [
    ("cib", "Connect-IB", [122.0, 82.0, 157.0, 101.6]),
    ("cx3", "ConnectX-3", [34.0, 21.8, 32.1, 26.0]),
    ("cx", "ConnectX", [15.3, 9.6, 11.9, 11.9]),
];

impl Experiment for Table5 {
    fn id(&self) -> &'static str {
        "atc16-table5"
    }

    fn title(&self) -> &'static str {
        "Header-only and regular SENDs and RECVs"
    }

    fn source(&self) -> &'static str {
        "atc16 5.2.2, Table 5"
    }

    fn setup(&self) -> &'static str {
        "A host with a modelled NIC, and eight others. Datagrams without payload but with an immediate, or of 32 \
         bytes, in batches of 16, go to and from as many threads as suit the NIC best."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (done, (name, title, paper)) in PAPER.into_iter().enumerate() {
            progress(done as f64 / PAPER.len() as f64);
            let nic = profile(name);
            let regular = rates::plan(Op::Send, TransportKind::Ud, 32, 16);
            let found = [
                ("recv0", "RECV, header-only", rates::inbound(&nic, &rates::header_only(16)).received_mops),
                ("recv1", "RECV", rates::inbound(&nic, &regular).received_mops),
                ("send0", "SEND, header-only", rates::outbound(&nic, &rates::header_only(16)).sent_mops),
                ("send1", "SEND", rates::outbound(&nic, &regular).sent_mops),
            ];
            for ((id, metric, model), paper) in found.into_iter().zip(paper) {
                let id = format!("{name}.{id}");
                rows.push(Row::model(id, metric, model, "M/s").case(title).published(&nic, "Table 5", paper));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::found_of;

    #[test]
    fn header_only_datagrams_are_as_much_faster_as_the_paper_prints() {
        let rows = Table5.run(&mut |_| {});
        for row in &rows {
            let ratio = row.ratio().expect("all have a figure of the paper's");
            assert!((ratio - 1.0).abs() < 0.15, "{}: {ratio}", row.id);
        }
        // Header-only RECVs are faster on all three, and SENDs on the two that are not ConnectX.
        for (nic, ..) in PAPER {
            let of = |name: &str| found_of(&rows, &format!("{nic}.{name}"));
            assert!(of("recv0") > 1.3 * of("recv1"), "{nic}");
            assert!(nic == "cx" || of("send0") > 1.1 * of("send1"), "{nic}");
        }
    }
}
