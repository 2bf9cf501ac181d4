//! Table 4: rates that modes of verbs reach on Connect-IB.

use sinew_harness::load::verbs::{Op, TransportKind, VerbsPlan, WorkKind};
use sinew_sim::nic::Profile;

use super::profile;
use crate::experiment::{Experiment, Row};
use crate::nics::{atomics, rates};

/// Experiment for Table 4.
pub struct Table4;

impl Experiment for Table4 {
    fn id(&self) -> &'static str {
        "atc16-table4"
    }

    fn title(&self) -> &'static str {
        "Rates of verbs on Connect-IB"
    }

    fn source(&self) -> &'static str {
        "atc16 5, Table 4; 5.3.2"
    }

    fn setup(&self) -> &'static str {
        "A host with a modelled Connect-IB, and eight others. Requests come from, or go to, as many threads and queue \
         pairs as suit the NIC best. Batches have 16 requests. The rate is that of the one host's NIC."
    }

    fn plans(&self) -> Vec<(Row, VerbsPlan)> {
        let cib = profile("cib");
        let of = |(id, case, paper, how)| match how {
            How::Out(plan) | How::In(plan) => Some((row(&cib, id, case, paper), plan)),
            How::Counters(1) => {
                Some((row(&cib, id, case, paper), VerbsPlan::new(WorkKind::Load(Op::FetchAdd), TransportKind::Rc, 8)))
            }
            How::Counters(_) => None,
        };
        lines().into_iter().filter_map(of).collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let cib = profile("cib");
        let lines = lines();
        let count = lines.len() as f64;
        let found = lines.into_iter().enumerate().map(|(done, (id, case, paper, how))| {
            progress(done as f64 / count);
            let mops = match how {
                How::Out(plan) => rates::outbound(&cib, &plan).sent_mops,
                How::In(plan) => rates::inbound(&cib, &plan).received_mops,
                How::Counters(counters) => atomics::rate_mops(&cib, counters, 64, 100_000),
            };
            Row { model: Some(mops), ..row(&cib, id, case, paper) }
        });
        found.collect()
    }
}

/// Requests that a rate counts.
enum How {
    /// Requests that the host sends.
    Out(VerbsPlan),
    /// Requests that the host receives.
    In(VerbsPlan),
    /// Fetch-and-add on this many counters.
    Counters(u64),
}

/// The rows: name, title, the paper's rate in M/s, and what it counts.
fn lines() -> [(&'static str, &'static str, f64, How); 11] {
    let of = rates::plan;
    let (send, read, write) = (Op::Send, Op::Read, Op::Write);
    let (rc, uc, ud) = (TransportKind::Rc, TransportKind::Uc, TransportKind::Ud);
    [
        ("cib.ud_send.nonbatch", "outbound UD SEND", 80.0, How::Out(of(send, ud, 32, 1))),
        ("cib.ud_send.batch", "outbound UD SEND, in batches", 101.6, How::Out(of(send, ud, 32, 16))),
        ("cib.ud_send.batch_ho", "outbound UD SEND, header-only, in batches", 157.0, How::Out(rates::header_only(16))),
        ("cib.ud_recv.batch", "inbound UD RECV", 82.0, How::In(of(send, ud, 32, 16))),
        ("cib.ud_recv.batch_ho", "inbound UD RECV, header-only", 122.0, How::In(rates::header_only(16))),
        ("cib.read.in.le64", "inbound READ of 32 B", 121.6, How::In(of(read, rc, 32, 1))),
        ("cib.read.in.128", "inbound READ of 128 B", 76.2, How::In(of(read, rc, 128, 1))),
        ("cib.atomics.z1", "fetch-and-add on one counter", 2.24, How::Counters(1)),
        ("cib.atomics.z4096", "fetch-and-add on 4,096 counters", 52.0, How::Counters(4096)),
        ("cib.read.out", "outbound READ of 32 B", 88.0, How::Out(of(read, rc, 32, 1))),
        ("cib.write.out.gt28", "outbound UC WRITE of 32 B", 80.0, How::Out(of(write, uc, 32, 1))),
    ]
}

fn row(cib: &Profile, id: &str, case: &str, paper: f64) -> Row {
    let place = if id.contains(".out") { "5.3.2" } else { "Table 4" };
    Row::open(id, "rate", "M/s").case(case).published(cib, place, paper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::found_of;

    #[test]
    fn modes_of_verbs_reach_what_the_paper_prints() {
        let rows = Table4.run(&mut |_| {});
        for row in &rows {
            let ratio = row.ratio().expect("all have a figure of the paper's");
            // Outbound READs are a prediction, which is 15 % short.
            let room = if row.id == "cib.read.out" { 0.2 } else { 0.15 };
            assert!((ratio - 1.0).abs() < room, "{}: {ratio}", row.id);
        }
        let of = |id| found_of(&rows, id);
        // "Batching improves peak SEND throughput by 27%" (5.2.1), and header-only by 54 % more (5.2.2).
        assert!(of("cib.ud_send.batch") > 1.1 * of("cib.ud_send.nonbatch"));
        assert!((of("cib.ud_send.batch_ho") / of("cib.ud_send.batch") / 1.54 - 1.0).abs() < 0.1);
        // "avoiding the payload DMA with header-only RECVs increases throughput by 49%" (5.2.2).
        assert!((of("cib.ud_recv.batch_ho") / of("cib.ud_recv.batch") / 1.49 - 1.0).abs() < 0.1);
    }
}
