//! Figure 5: rates of echoes.

use sinew_harness::load::verbs::{EchoForm, TransportKind, VerbsPlan};
use sinew_sim::nic::Profile;

use super::apt;
use crate::experiment::{Experiment, Row};
use crate::nics::rates;

/// Experiment for Figure 5.
pub struct Fig5;

/// Threads that answer: the number that suits the NIC best.
const THREADS: usize = 8;

impl Experiment for Fig5 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig5"
    }

    fn title(&self) -> &'static str {
        "Echoes by WRITE and by SEND"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 3.2.2, Figure 5"
    }

    fn setup(&self) -> &'static str {
        "12 threads of 12 hosts have 16 messages each in flight to eight threads of one host with a modelled \
         ConnectX-3, which send them back: by inline and mostly unsignaled WRITEs over UC, by WRITE there and SEND \
         over UD back, or by SENDs over UD. The paper also has SENDs over UC, and says that their rate is similar."
    }

    fn plans(&self) -> Vec<(Row, VerbsPlan)> {
        let nic = apt();
        CASES.map(|case| (row(&nic, &case), rates::echo_plan(case.2, case.3, case.4))).to_vec()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let nic = apt();
        let found = CASES.iter().enumerate().map(|(done, case)| {
            progress(done as f64 / CASES.len() as f64);
            let mops = rates::echoes(&nic, case.2, case.3, case.4, THREADS).answered_mops;
            Row { model: Some(mops), ..row(&nic, case) }
        });
        found.collect()
    }
}

/// A case: row name, title, form, transport, bytes, and the paper's rate in M/s.
type Case = (&'static str, &'static str, EchoForm, TransportKind, usize, f64);

const CASES: [Case; 4] = [
    ("herd14.echo.ww", "WRITE there and back, 32 B", EchoForm::Ww, TransportKind::Uc, 32, 26.0),
    ("herd14.echo.ws", "WRITE there, SEND back, 32 B", EchoForm::Ws, TransportKind::Uc, 32, 26.0),
    ("herd14.echo.ss", "SEND there and back, 32 B", EchoForm::Ss, TransportKind::Ud, 32, 21.0),
    ("herd14.echo.ww16", "WRITE there and back, 16 B", EchoForm::Ww, TransportKind::Uc, 16, 30.0),
];

fn row(nic: &Profile, (id, case, .., paper): &Case) -> Row {
    Row::open(*id, "rate", "M/s").case(*case).published(nic, "Figure 5", *paper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::found_of;

    #[test]
    fn echoes_by_write_are_the_fastest_and_those_by_send_are_not_far_behind() {
        let rows = Fig5.run(&mut |_| {});
        for row in &rows {
            let ratio = row.ratio().expect("all have a figure of the paper's");
            assert!((ratio - 1.0).abs() < 0.15, "{}: {ratio}", row.id);
        }
        let of = |name: &str| found_of(&rows, &format!("herd14.echo.{name}"));
        // "it gives the performance of WRITE-based ECHOs" (3.2.2).
        assert!((of("ws") / of("ww") - 1.0).abs() < 0.1);
        // "our method of WRITE based requests and SEND-based responses provides better throughput than purely
        // SEND-based ECHOs" (3.2.2).
        assert!(of("ss") < 0.95 * of("ws"));
        assert!(of("ww16") > of("ww"));
    }
}
