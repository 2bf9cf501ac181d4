//! Figure 2: bytes that cross PCI Express by MMIO and by DMA, and the limits that follow for work queue elements.

use sinew_sim::pcie::{Generation, PcieLink};

use super::{calibrated_row, profile};
use crate::experiment::{Experiment, Row};

/// Experiment for Figure 2.
pub struct Fig2b;

/// Bytes that a core sends to the NIC, on both sides of the boundaries of lines and of completions.
const SIZES: [usize; 11] = [4, 32, 64, 65, 96, 128, 129, 160, 192, 224, 256];

/// PCI Express generations, each with its rows' prefix, and the paper's bandwidth of a lane and lengths of headers.
const PAPER: [(&str, Generation, f64, f64, f64); 2] =
    [("pcie.gen2", Generation::Gen2, 500.0, 24.0, 20.0), ("pcie.gen3", Generation::Gen3, 984.6, 26.0, 22.0)];

/// The work queue elements of Appendix A: their number, and the length of each in bytes.
const WQES: (usize, usize) = (10, 65);

impl Experiment for Fig2b {
    fn id(&self) -> &'static str {
        "atc16-fig2b"
    }

    fn title(&self) -> &'static str {
        "What crosses PCI Express, by MMIO and by DMA"
    }

    fn source(&self) -> &'static str {
        "atc16 2.1, Figure 2; 5.2.1; Appendix A"
    }

    fn setup(&self) -> &'static str {
        "Nothing is run: bytes and limits follow from the sizes of PCI Express's packets, as `sinew model pcie` \
         computes them. Figure 2b's link is that of a Connect-IB: PCIe 3.0, with completions that carry 128 bytes."
    }

    fn remark(&self) -> &'static str {
        "Rows of Figure 2a are inputs of the model, and the limits and Appendix A's sums follow from them: agreement \
         shows that the arithmetic is the paper's, and nothing else. Figure 2b is a drawing; the text has no figures \
         for its curves."
    }

    fn run(&self, _: &mut dyn FnMut(f64)) -> Vec<Row> {
        let link = profile("cib").pcie.link;
        let mut rows = Vec::new();
        for (id, generation, lane, request, completion) in PAPER {
            let case = format!("PCIe {}.0", generation.number());
            let (asks, answers) = (generation.request_header() as f64, generation.completion_header() as f64);
            for (suffix, metric, paper, model, unit) in [
                ("lane", "bandwidth of a lane", lane, generation.lane_mbps(), "MB/s"),
                ("req_hdr", "header of a request", request, asks, "B"),
                ("cpl_hdr", "header of a completion", completion, answers, "B"),
            ] {
                rows.push(
                    calibrated_row(format!("{id}.{suffix}"), "Figure 2a", metric, paper, model, unit).case(&*case),
                );
            }
        }
        for size in SIZES {
            let (mmio, dma) = (link.mmio(size).to_device, link.dma_read(size).to_device);
            for (how, case, crossing) in [("mmio", "by MMIO", mmio), ("dma", "by a DMA read", dma)] {
                let id = format!("pcie.fig2b.{how}{size}");
                rows.push(Row::model(id, format!("{size} B"), crossing.bytes as f64, "B").case(case));
            }
        }
        rows.sort_by_key(|row| row.case == "by a DMA read");
        rows.extend(limits(link));
        rows
    }
}

/// Rows with the limits that follow for work queue elements.
fn limits(link: PcieLink) -> Vec<Row> {
    let (count, len) = WQES;
    let bytes = |traffic: sinew_sim::pcie::Traffic| traffic.to_device.bytes as f64;
    let (mmio, doorbell) = (bytes(link.wqes_by_mmio(count, len)), bytes(link.wqes_by_doorbell(count, len, count)));
    let rows = [
        ("pcie.wqe_by_mmio.n10_d65", "Appendix A", "10 elements of 65 B, by MMIO", 1800.0, mmio, "B"),
        ("pcie.doorbell.n10_d65", "Appendix A", "10 elements of 65 B, by Doorbell", 1534.0, doorbell, "B"),
        ("pcie.cib.wc_rate", "5.2.1", "lines of 64 B by MMIO, at most", 175.0, link.mmio_mlines(), "M/s"),
        ("pcie.cib.dma_read_bw", "5.2.1", "data by DMA reads, at most", 13443.0, link.dma_read_mbps(), "MB/s"),
        (
            "pcie.cib.wqe_dma_rate",
            "5.2.1",
            "elements of 128 B by DMA reads, at most",
            105.0,
            link.wqe_fetch_mops(128),
            "M/s",
        ),
    ];
    let row = |(id, place, metric, paper, model, unit)| {
        calibrated_row(id, place, metric, paper, model, unit).case("Connect-IB")
    };
    rows.map(row).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Comparison, Error};

    #[test]
    fn sums_are_the_papers_and_a_dma_read_always_takes_less_than_mmio() {
        let rows = Fig2b.run(&mut |_| {});
        for row in rows.iter().filter(|row| row.paper.is_some()) {
            assert!(matches!(row.error(), Some(Error::Relative(part)) if part.abs() < 0.002), "{row:?}");
            assert_eq!(row.against, Comparison::Calibrated, "what follows from the set-up is no prediction");
        }
        let of = |how: &str, size: usize| {
            rows.iter().find(|row| row.id == format!("pcie.fig2b.{how}{size}")).and_then(|row| row.model).unwrap()
        };
        // "A DMA read always uses less host-to-device PCIe bandwidth than an equal-sized MMIO" (2.1).
        assert!(SIZES.iter().all(|size| of("dma", *size) < of("mmio", *size)));
        assert_eq!((of("mmio", 64), of("mmio", 65), of("dma", 129)), (90.0, 180.0, 173.0));
    }
}
