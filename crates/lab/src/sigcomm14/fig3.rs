//! Figures 3 and 4: inbound and outbound verbs.

use sinew_harness::load::verbs::{Carrier, Op};

use super::apt;
use crate::atc16::row;
use crate::experiment::{Experiment, Row};
use crate::nics::rates;

/// See the module.
pub struct Fig3;

const SIZES: [usize; 6] = [16, 32, 64, 128, 256, 512];

impl Experiment for Fig3 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig3"
    }

    fn title(&self) -> &'static str {
        "Inbound and outbound verbs by size"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 3.2.2, Figures 3 and 4"
    }

    fn setup(&self) -> &'static str {
        "A host with a modelled ConnectX-3 is asked by 64 threads of eight others, or asks them with as many threads and queue pairs as suit it best."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let nic = apt();
        let mut rows = Vec::new();
        for (step, size) in SIZES.into_iter().enumerate() {
            progress(step as f64 / SIZES.len() as f64);
            let of = |op, carrier| rates::plan(op, carrier, size, 1);
            let found = [
                (
                    "write.in",
                    "inbound WRITE over UC",
                    rates::inbound(&nic, &of(Op::Write, Carrier::Uc)).received_mops,
                    35.0,
                ),
                ("read.in", "inbound READ", rates::inbound(&nic, &of(Op::Read, Carrier::Rc)).received_mops, 26.0),
                (
                    "write.out",
                    "outbound WRITE over UC, inline",
                    rates::outbound(&nic, &of(Op::Write, Carrier::Uc)).sent_mops,
                    0.0,
                ),
                (
                    "send.out",
                    "outbound SEND over UD, inline",
                    rates::outbound(&nic, &of(Op::Send, Carrier::Ud)).sent_mops,
                    0.0,
                ),
                ("read.out", "outbound READ", rates::outbound(&nic, &of(Op::Read, Carrier::Rc)).sent_mops, 22.0),
            ];
            for (name, what, mops, paper) in found {
                let paper = (size == 32 && paper > 0.0).then_some(paper);
                let id = if paper.is_some() { format!("herd14.{name}") } else { format!("herd14.fig3.{name}{size}") };
                let found = row(&nic, (&id, "3.2.2"), what, &format!("{size} B"), (paper, mops), "M/s");
                rows.push(if name == "write.in" { super::input(found) } else { found });
            }
        }
        rows
    }
}
