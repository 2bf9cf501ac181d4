//! Figure 12: inbound READs and WRITEs by size.

use sinew_harness::load::verbs::{Op, TransportKind};

use super::profile;
use crate::experiment::{Experiment, Row};
use crate::nics::rates;

/// Experiment for Figure 12.
pub struct Fig12;

const SIZES: [usize; 5] = [32, 64, 128, 256, 512];
/// Share of the link's time from which on the link is the limit.
const SATURATED: f64 = 0.8;
/// NICs, each with its title and the payload in bytes from which on the link limits READs.
const PAPER: [(&str, &str, f64); 3] =
    [("cib", "Connect-IB", 64.0), ("cx3", "ConnectX-3", 256.0), ("cx", "ConnectX", 128.0)];

impl Experiment for Fig12 {
    fn id(&self) -> &'static str {
        "atc16-fig12"
    }

    fn title(&self) -> &'static str {
        "Inbound READs and UC WRITEs by size"
    }

    fn source(&self) -> &'static str {
        "atc16 5.3.1, Figure 12"
    }

    fn setup(&self) -> &'static str {
        "64 threads of eight hosts make requests to one host with a modelled NIC. The link counts as the limit of \
         READs from the first size at which it is busy for four fifths of the time."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (at, (name, title, transition)) in PAPER.into_iter().enumerate() {
            let nic = profile(name);
            let mut found = None;
            for (step, size) in SIZES.into_iter().enumerate() {
                progress((at * SIZES.len() + step) as f64 / (PAPER.len() * SIZES.len()) as f64);
                let read = rates::inbound(&nic, &rates::plan(Op::Read, TransportKind::Rc, size, 1));
                let write = rates::inbound(&nic, &rates::plan(Op::Write, TransportKind::Uc, size, 1));
                for (verb, mops) in [("read", read.received_mops), ("write", write.received_mops)] {
                    let id = format!("{name}.fig12.{verb}{size}");
                    let metric = format!("inbound {} of {size} B", verb.to_uppercase());
                    rows.push(Row::model(id, metric, mops, "M/s").case(title));
                }
                if read.responder_nic.1.transmit > SATURATED {
                    found = found.or(Some(size));
                }
            }
            let model = found.unwrap_or(*SIZES.last().expect("there are sizes")) as f64;
            let id = format!("{name}.read.transition");
            let metric = "payload from which on the link limits READs";
            rows.push(Row::model(id, metric, model, "B").case(title).published(&nic, "5.3.1", transition));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::found_of;

    #[test]
    fn the_link_limits_reads_from_the_sizes_on_that_the_paper_names() {
        let rows = Fig12.run(&mut |_| {});
        for (nic, _, transition) in PAPER {
            let of = |name: &str| found_of(&rows, &format!("{nic}.{name}"));
            // "For READs, the transition point is approximately 128 bytes, 256 bytes, and 64 bytes for CX, CX3, and
            // CIB" (5.3.1).
            assert_eq!(of("read.transition"), transition, "{nic}");
            // Below it the NIC is the limit, whatever the size.
            assert!(
                (of("fig12.read32") / of(&format!("fig12.read{}", transition as usize / 2)) - 1.0).abs() < 0.1,
                "{nic}"
            );
            // Above it the link is.
            let sizes = SIZES.map(|size| of(&format!("fig12.read{size}")));
            // This is not asserted for ConnectX: while it is measured, its units still take what already waits for PCI
            // Express, at the same rate for all sizes.
            assert!(nic == "cx" || sizes[SIZES.len() - 1] < 0.75 * sizes[0], "{nic}: {sizes:?}");
            assert!(of("fig12.write32") >= 0.99 * of("fig12.read32"), "{nic}");
        }
    }
}
