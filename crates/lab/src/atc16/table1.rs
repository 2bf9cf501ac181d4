//! Table 1: verbs that transports allow, and lengths of work queue elements.

use sinew_fabric::verbs::{Transport, Verb};

use super::{calibrated_row, profile};
use crate::experiment::{Experiment, Row};

/// Experiment for Table 1.
pub struct Table1;

/// Verbs that have a column in the table.
const VERBS: [Verb; 3] = [Verb::Send, Verb::Write, Verb::Read];

/// Transports: the suffix of the rows' names, the name, and from the paper the number of verbs and the bytes of an
/// element's header.
const PAPER: [(&str, &str, Transport, f64, f64); 3] = [
    ("rc", "RC", Transport::Rc, 3.0, 36.0),
    ("uc", "UC", Transport::Uc, 2.0, 36.0),
    ("ud", "UD", Transport::Ud, 1.0, 68.0),
];

impl Experiment for Table1 {
    fn id(&self) -> &'static str {
        "atc16-table1"
    }

    fn title(&self) -> &'static str {
        "What transports allow, and bytes of work queue elements"
    }

    fn source(&self) -> &'static str {
        "atc16 2.2, Table 1"
    }

    fn setup(&self) -> &'static str {
        "Nothing is run: the verbs are those of SEND, WRITE and READ that the library allows over a transport, and the \
         bytes are inputs of the modelled Connect-IB."
    }

    fn remark(&self) -> &'static str {
        "All rows are inputs of the model: they show that its inputs are the paper's, and nothing else."
    }

    fn run(&self, _: &mut dyn FnMut(f64)) -> Vec<Row> {
        let wqe = profile("cib").wqe;
        let mut rows = Vec::new();
        for (suffix, name, transport, verbs, bytes) in PAPER {
            let allowed = VERBS.iter().filter(|verb| transport.allows(**verb)).count();
            let header = if transport.is_connected() { wqe.header_connected } else { wqe.header_datagram };
            let (verbs_id, bytes_id) = (format!("wqe.verbs.{suffix}"), format!("wqe.hdr.{suffix}"));
            rows.push(
                calibrated_row(verbs_id, "Table 1", "verbs of SEND, WRITE and READ", verbs, allowed as f64, "verbs")
                    .case(name),
            );
            rows.push(
                calibrated_row(bytes_id, "Table 1", "header of a request's element", bytes, header as f64, "B")
                    .case(name),
            );
        }
        rows.push(
            calibrated_row("wqe.hdr.recv", "Table 1", "element of a RECV", 16.0, wqe.receive as f64, "B").case("all"),
        );
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Error;

    #[test]
    fn the_library_and_the_model_have_what_the_table_has() {
        assert!(Table1.run(&mut |_| {}).iter().all(|row| row.error() == Some(Error::Relative(0.0))));
    }
}
