//! Figures 3 and 4: rates of inbound and outbound verbs.

use sinew_harness::load::verbs::{Op, TransportKind, VerbsPlan};
use sinew_sim::nic::Profile;

use super::apt;
use crate::experiment::{Experiment, Row};
use crate::nics::rates;

/// Experiment for Figures 3 and 4.
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
        "A host with a modelled ConnectX-3 takes requests of 64 threads of eight others, or makes requests to them \
         with as many threads and queue pairs as suit it best."
    }

    fn plans(&self) -> Vec<(Row, VerbsPlan)> {
        let nic = apt();
        let of_size = |size| KINDS.map(|kind| (row(&nic, kind, size), plan(kind, size)));
        SIZES.into_iter().flat_map(of_size).collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let nic = apt();
        let mut rows = Vec::new();
        for (step, size) in SIZES.into_iter().enumerate() {
            progress(step as f64 / SIZES.len() as f64);
            for kind in KINDS {
                let plan = plan(kind, size);
                let mops = match kind.direction {
                    Direction::In => rates::inbound(&nic, &plan).received_mops,
                    Direction::Out => rates::outbound(&nic, &plan).sent_mops,
                };
                rows.push(Row { model: Some(mops), ..row(&nic, kind, size) });
            }
        }
        rows
    }
}

/// Whether the host's NIC takes requests or sends them.
#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// A line of the figures: part of its rows' names, its title, its requests, and the paper's rate for 32 B if the text
/// has it.
#[derive(Clone, Copy)]
struct VerbCase {
    name: &'static str,
    title: &'static str,
    direction: Direction,
    op: Op,
    carrier: TransportKind,
    paper: Option<f64>,
}

const fn kind(
    name: &'static str,
    title: &'static str,
    direction: Direction,
    (op, carrier): (Op, TransportKind),
    paper: Option<f64>,
) -> VerbCase {
    VerbCase { name, title, direction, op, carrier, paper }
}

const KINDS: [VerbCase; 5] = [
    kind("write.in", "inbound WRITE over UC", Direction::In, (Op::Write, TransportKind::Uc), Some(35.0)),
    kind("read.in", "inbound READ", Direction::In, (Op::Read, TransportKind::Rc), Some(26.0)),
    kind("write.out", "outbound WRITE over UC, inline", Direction::Out, (Op::Write, TransportKind::Uc), None),
    kind("send.out", "outbound SEND over UD, inline", Direction::Out, (Op::Send, TransportKind::Ud), None),
    kind("read.out", "outbound READ", Direction::Out, (Op::Read, TransportKind::Rc), Some(22.0)),
];

fn plan(kind: VerbCase, size: usize) -> VerbsPlan {
    rates::plan(kind.op, kind.carrier, size, 1)
}

fn row(nic: &Profile, VerbCase { name, title, paper, .. }: VerbCase, size: usize) -> Row {
    let paper = paper.filter(|_| size == 32);
    let id = if paper.is_some() { format!("herd14.{name}") } else { format!("herd14.fig3.{name}{size}") };
    let row = Row::open(id, format!("{size} B"), "M/s").case(title).published(nic, "3.2.2", paper);
    if name == "write.in" { super::input(row) } else { row }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::found_of;

    #[test]
    fn verbs_have_the_rates_and_the_order_of_the_paper() {
        let rows = Fig3.run(&mut |_| {});
        let of = |kind: &str, size: usize| {
            let [named, other] = [format!("herd14.{kind}"), format!("herd14.fig3.{kind}{size}")];
            if size == 32 && rows.iter().any(|row| row.id == named) {
                found_of(&rows, &named)
            } else {
                found_of(&rows, &other)
            }
        };
        for row in rows.iter().filter(|row| row.paper.is_some()) {
            let ratio = row.ratio().expect("it was found");
            // Outbound READs are a prediction, which is 13 % short.
            assert!((ratio - 1.0).abs() < 0.15, "{}: {ratio}", row.id);
        }
        // "For up to 128 byte payloads, WRITEs achieve 35 Mops, which is about 34% higher than the maximum READ
        // throughput" (3.2.2).
        for size in [16, 32, 64, 128] {
            assert!((of("write.in", size) / 35.0 - 1.0).abs() < 0.1, "{size} B: {}", of("write.in", size));
        }
        // "For small sizes, inlined WRITEs and SENDs have significantly higher outbound throughput than READs" (3.2.2).
        for size in [16, 32] {
            assert!(of("write.out", size) > 1.1 * of("read.out", size), "{size} B");
        }
        assert!(of("send.out", 16) > 1.05 * of("read.out", 16));
        // "For large sizes, the throughput of all WRITE and SEND variants is less than for READs, but it is never less
        // than 50%" (3.2.2). In the model it is not less than 45 %.
        for size in [256, 512] {
            for kind in ["write.out", "send.out"] {
                let ratio = of(kind, size) / of("read.out", size);
                assert!((0.45..1.02).contains(&ratio), "{kind} of {size} B: {ratio}");
            }
        }
    }
}
