//! Latencies of requests on unloaded NICs and an unloaded network.

use sinew_fabric::verbs::{Transport, Verb};

use super::profile::Profile;
use super::wqe::Source;

impl Profile {
    /// Time of one READ of `len` bytes when nothing else happens. The requester's core posts it by MMIO, its packet
    /// crosses to the responder, and that NIC reads the memory; the answer crosses back and is written, and the core
    /// finds the completion.
    pub fn read_latency_ns(&self, len: usize) -> f64 {
        let Self { pcie, wqe, units, link, core, .. } = self;
        let lines = wqe.request_lines(Verb::Read, Transport::Rc, Source::Memory, len);
        let post = core.post_ns + core.mmio_line_ns * lines as u64;
        let crossing = units.pipeline_ns + link.switch_ns + 2 * link.cable_ns;
        let bus = pcie.write_latency_ns + pcie.read_latency_ns + pcie.write_latency_ns;
        let responder = units.packet_ns + units.dma_read_ns;
        let requester = units.request_ns + (units.packet_ns + units.dma_write_ns) * units.requester_factor();
        let data = len as f64 * 8.0 / link.rate_gbps;
        (post + 2 * crossing + bus + core.look_ns + core.completion_ns) as f64 + responder + requester + data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_reads_are_those_that_are_published() {
        for (name, paper) in [("cx3", 1700.0), ("cx4", 2900.0), ("cx5", 2000.0)] {
            let model = Profile::built_in(name).unwrap().read_latency_ns(32);
            assert!((model / paper - 1.0).abs() < 0.002, "{name}: {model} ns beside {paper}");
        }
    }
}
