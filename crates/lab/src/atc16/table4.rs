//! Table 4: what modes of verbs reach on Connect-IB.

use sinew_harness::load::verbs::{Carrier, Op};

use super::{profile, row};
use crate::experiment::{Experiment, Row};
use crate::nics::{atomics, rates};

/// See the module.
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
        "A host with a modelled Connect-IB, and eight others. Requests come from, or go to, as many threads and queue pairs as suit the NIC best. Batches \
         have 16 requests. The rate is what the one host's NIC does."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let cib = profile("cib");
        let out = |plan| rates::outbound(&cib, &plan).sent_mops;
        let into = |plan| rates::inbound(&cib, &plan).received_mops;
        type Rate<'a> = Box<dyn Fn() -> f64 + 'a>;
        let rows: [(&str, &str, f64, Rate<'_>); 11] = [
            (
                "cib.ud_send.nonbatch",
                "outbound UD SEND",
                80.0,
                Box::new(|| out(rates::plan(Op::Send, Carrier::Ud, 32, 1))),
            ),
            (
                "cib.ud_send.batch",
                "outbound UD SEND, in batches",
                101.6,
                Box::new(|| out(rates::plan(Op::Send, Carrier::Ud, 32, 16))),
            ),
            (
                "cib.ud_send.batch_ho",
                "outbound UD SEND, header-only, in batches",
                157.0,
                Box::new(|| out(rates::header_only(16))),
            ),
            (
                "cib.ud_recv.batch",
                "inbound UD RECV",
                82.0,
                Box::new(|| into(rates::plan(Op::Send, Carrier::Ud, 32, 16))),
            ),
            ("cib.ud_recv.batch_ho", "inbound UD RECV, header-only", 122.0, Box::new(|| into(rates::header_only(16)))),
            (
                "cib.read.in.le64",
                "inbound READ of 32 B",
                121.6,
                Box::new(|| into(rates::plan(Op::Read, Carrier::Rc, 32, 1))),
            ),
            (
                "cib.read.in.128",
                "inbound READ of 128 B",
                76.2,
                Box::new(|| into(rates::plan(Op::Read, Carrier::Rc, 128, 1))),
            ),
            (
                "cib.atomics.z1",
                "fetch-and-add on one counter",
                2.24,
                Box::new(|| atomics::rate_mops(&cib, 1, 64, 100_000)),
            ),
            (
                "cib.atomics.z4096",
                "fetch-and-add on 4,096 counters",
                52.0,
                Box::new(|| atomics::rate_mops(&cib, 4096, 64, 100_000)),
            ),
            (
                "cib.read.out",
                "outbound READ of 32 B",
                88.0,
                Box::new(|| out(rates::plan(Op::Read, Carrier::Rc, 32, 1))),
            ),
            (
                "cib.write.out.gt28",
                "outbound UC WRITE of 32 B",
                80.0,
                Box::new(|| out(rates::plan(Op::Write, Carrier::Uc, 32, 1))),
            ),
        ];
        let count = rows.len() as f64;
        let found = rows.into_iter().enumerate().map(|(done, (id, case, paper, rate))| {
            progress(done as f64 / count);
            let place = if id.contains(".out") { "5.3.2" } else { "Table 4" };
            row(&cib, (id, place), case, "rate", (Some(paper), rate()), "M/s")
        });
        found.collect()
    }
}
