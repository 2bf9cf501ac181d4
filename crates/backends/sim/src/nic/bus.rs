//! The PCI Express link of a NIC in a simulation: its traffic, and when it is free.

use super::profile::Profile;
use super::stats::NicStats;
use crate::lanes::PS;
use crate::pcie::{self, Crossing, LINE, PcieLink};

/// Bytes that may be waiting for the bus before a core that writes must wait too: the capacity of write-combining
/// buffers.
const WRITE_BUFFER: usize = 10 * LINE;

/// A stage that is passed one at a time, in order of arrival. Each arrival is an event, so arrivals are in order of
/// time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pipe {
    free_ps: u64,
    /// Time for which it was busy in all.
    pub busy_ps: u64,
}

impl Pipe {
    /// Passes something that takes `takes_ps`; returns when it is through.
    #[inline]
    pub fn pass(&mut self, ready_ps: u64, takes_ps: u64) -> u64 {
        self.busy_ps += takes_ps;
        self.free_ps = self.free_ps.max(ready_ps) + takes_ps;
        self.free_ps
    }
}

/// The link, in both directions, and the NIC's intake of a core's writes.
#[derive(Debug)]
pub(crate) struct Bus {
    /// From the host to the NIC: MMIO, and answers to DMA reads.
    pub down: Pipe,
    /// From the NIC to the host: DMA writes, and requests for DMA reads.
    pub up: Pipe,
    intake: Pipe,
    /// Time that the announced writes of cores will take.
    soon_ps: u64,
    link: PcieLink,
    ps_per_kib: u64,
    intake_line_ps: u64,
    read_latency_ps: u64,
    write_latency_ps: u64,
}

impl Bus {
    pub fn new(profile: &Profile) -> Self {
        let pcie = &profile.pcie;
        let link = pcie.link;
        Self {
            down: Pipe::default(),
            up: Pipe::default(),
            intake: Pipe::default(),
            soon_ps: 0,
            link,
            ps_per_kib: (1024.0 * 1e6 / link.bandwidth_mbps()).round() as u64,
            intake_line_ps: (profile.units.mmio_line_ns * PS as f64) as u64,
            read_latency_ps: pcie.read_latency_ns * PS,
            write_latency_ps: pcie.write_latency_ns * PS,
        }
    }

    #[inline]
    fn takes_ps(&self, crossing: Crossing) -> u64 {
        (crossing.bytes * self.ps_per_kib) >> 10
    }

    /// Traffic of a core that writes `lines` lines, or rings a doorbell if 0.
    #[inline]
    fn written(&self, lines: usize) -> Crossing {
        if lines == 0 { self.link.doorbell().to_device } else { self.link.mmio(lines * LINE).to_device }
    }

    /// Time for which that keeps the busier of link and intake busy.
    fn written_ps(&self, lines: usize) -> u64 {
        self.takes_ps(self.written(lines)).max(lines as u64 * self.intake_line_ps)
    }

    /// Announces that a core is about to write `lines` lines, or a doorbell if 0. The core has reached `now_ps` in a
    /// turn that began at `turn_ps`. Returns how long it has to wait for room in its write-combining buffers, given the
    /// writes that are on their way or announced by then.
    #[inline]
    pub fn write_posted(&mut self, turn_ps: u64, now_ps: u64, lines: usize) -> u64 {
        let takes_ps = self.written_ps(lines);
        let free_ps = self.down.free_ps.max(self.intake.free_ps).max(turn_ps) + self.soon_ps;
        self.soon_ps += takes_ps;
        let slack_ps = self.written_ps(WRITE_BUFFER / LINE).max(takes_ps);
        free_ps.saturating_sub(now_ps + slack_ps)
    }

    /// Writes `lines` lines from a core to the NIC, or a doorbell if 0. Returns when they arrive.
    #[inline]
    pub fn write_down(&mut self, now_ps: u64, lines: usize, stats: &mut NicStats) -> u64 {
        let crossing = self.written(lines);
        stats.mmio_lines += lines as u64;
        stats.doorbells += u64::from(lines == 0);
        stats.down_bytes += crossing.bytes;
        self.soon_ps = self.soon_ps.saturating_sub(self.written_ps(lines));
        let over_ps = self.down.pass(now_ps, self.takes_ps(crossing));
        self.intake.pass(over_ps, lines as u64 * self.intake_line_ps) + self.write_latency_ps
    }

    /// Writes `len` bytes from the NIC; returns when they are in memory.
    #[inline]
    pub fn write(&mut self, now_ps: u64, len: usize, stats: &mut NicStats) -> u64 {
        let crossing = self.link.dma_write(len).to_host;
        stats.dma_writes += crossing.packets;
        stats.dma_write_lines += pcie::lines(len) as u64;
        stats.up_bytes += crossing.bytes;
        self.up.pass(now_ps, self.takes_ps(crossing)) + self.write_latency_ps
    }

    /// Sends a NIC's request for as many bytes of memory as one request can ask for; returns when it reaches memory.
    #[inline]
    pub fn read(&mut self, now_ps: u64, stats: &mut NicStats) -> u64 {
        let crossing = self.link.dma_read(1).to_host;
        stats.dma_reads += crossing.packets;
        stats.up_bytes += crossing.bytes;
        self.up.pass(now_ps, self.takes_ps(crossing)) + self.write_latency_ps
    }

    /// Answers a request with `len` bytes; returns when they are at the NIC.
    #[inline]
    pub fn answer(&mut self, now_ps: u64, len: usize, stats: &mut NicStats) -> u64 {
        let crossing = self.link.dma_read(len).to_device;
        stats.dma_read_lines += pcie::lines(len) as u64;
        stats.down_bytes += crossing.bytes;
        self.down.pass(now_ps, self.takes_ps(crossing)) + self.read_latency_ps.saturating_sub(self.write_latency_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_the_order_of_time_passes_in_it() {
        let mut pipe = Pipe::default();
        let mut free_ps = 0;
        for nth in 0..1000u64 {
            let (ready_ps, takes_ps) = (nth * 7, 1 + nth * 13 % 11);
            free_ps = ready_ps.max(free_ps) + takes_ps;
            assert_eq!(pipe.pass(ready_ps, takes_ps), free_ps);
        }
    }
}
