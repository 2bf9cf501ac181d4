//! The PCI Express link of a NIC while a simulation runs: what is on it, and until when.

use std::collections::VecDeque;

use super::profile::Profile;
use super::stats::NicStats;
use crate::lanes::PS;
use crate::pcie::{DOORBELL, LINE, WRITE_MAX};

/// Bytes that wait for the bus before a core that writes has to wait too: what write-combining buffers hold.
const WRITE_BUFFER: usize = 10 * LINE;

/// Times that something was idle, before it was busy, that are remembered.
const GAPS_MAX: usize = 64;

/// Something that is passed through one at a time.
///
/// A core's turn runs to its end when it begins, so what it writes late in its turn is known before what others pass until then: that takes the time
/// which was left free before. What comes in the order of time has none such, and goes behind all that was there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipe {
    free_ps: u64,
    /// Until then it was idle at these times, in their order.
    gaps: VecDeque<(u64, u64)>,
    /// In all.
    pub busy_ps: u64,
}

impl Pipe {
    /// Passes something that takes so long; returns when it is through.
    #[inline]
    pub fn pass(&mut self, ready_ps: u64, takes_ps: u64) -> u64 {
        self.busy_ps += takes_ps;
        if ready_ps < self.free_ps {
            return self.pass_before(ready_ps, takes_ps);
        }
        if ready_ps > self.free_ps {
            if self.gaps.len() == GAPS_MAX {
                self.gaps.pop_front();
            }
            self.gaps.push_back((self.free_ps, ready_ps));
        }
        self.free_ps = ready_ps + takes_ps;
        self.free_ps
    }

    /// In the first gap that has room for it, or behind all.
    fn pass_before(&mut self, ready_ps: u64, takes_ps: u64) -> u64 {
        let is_room = |(begins_ps, ends_ps): &(u64, u64)| (*begins_ps).max(ready_ps) + takes_ps <= *ends_ps;
        // Most come in the order of time, and the last gaps are before them.
        let first = self.gaps.iter().rposition(|(_, ends_ps)| *ends_ps <= ready_ps).map_or(0, |before| before + 1);
        let Some(at) = (first..self.gaps.len()).find(|at| is_room(&self.gaps[*at])) else {
            self.free_ps += takes_ps;
            return self.free_ps;
        };
        let (begins_ps, ends_ps) = self.gaps[at];
        let starts_ps = begins_ps.max(ready_ps);
        let over_ps = starts_ps + takes_ps;
        self.gaps[at] = (over_ps, ends_ps);
        if starts_ps > begins_ps {
            self.gaps.insert(at, (begins_ps, starts_ps));
        }
        over_ps
    }
}

/// The link, in both directions, and the NIC's intake of what a core writes.
#[derive(Debug)]
pub(crate) struct Bus {
    /// From the host to the NIC: MMIO, and answers to DMA reads.
    pub down: Pipe,
    /// From the NIC to the host: DMA writes, and requests of DMA reads.
    pub up: Pipe,
    intake: Pipe,
    /// How long what cores are about to write will take.
    soon_ps: u64,
    ps_per_kib: u64,
    intake_line_ps: u64,
    request_header: usize,
    completion_header: usize,
    completion_max: usize,
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
            ps_per_kib: (1024.0 * 1e6 / link.bandwidth_mbps()).round() as u64,
            intake_line_ps: (profile.units.mmio_line_ns * PS as f64) as u64,
            request_header: link.generation.request_header(),
            completion_header: link.generation.completion_header(),
            completion_max: link.completion_max,
            read_latency_ps: pcie.read_latency_ns * PS,
            write_latency_ps: pcie.write_latency_ns * PS,
        }
    }

    #[inline]
    fn takes_ps(&self, bytes: usize) -> u64 {
        (bytes as u64 * self.ps_per_kib) >> 10
    }

    /// How long so many lines, or a doorbell, keep the busier of link and intake.
    fn written_ps(&self, lines: usize) -> u64 {
        if lines == 0 {
            return self.takes_ps(DOORBELL + self.request_header);
        }
        lines as u64 * self.takes_ps(LINE + self.request_header).max(self.intake_line_ps)
    }

    /// A core that has come to `now_ps` in a turn that began at `turn_ps` is about to write so many lines, or a doorbell for 0. Returns how long it has to
    /// wait until there is room for them in its write-combining buffers: as long as what is on its way now, and will be by then, takes.
    #[inline]
    pub fn write_soon(&mut self, turn_ps: u64, now_ps: u64, lines: usize) -> u64 {
        let takes_ps = self.written_ps(lines);
        let free_ps = self.down.free_ps.max(self.intake.free_ps).max(turn_ps) + self.soon_ps;
        self.soon_ps += takes_ps;
        let slack_ps = self.written_ps(WRITE_BUFFER / LINE).max(takes_ps);
        free_ps.saturating_sub(now_ps + slack_ps)
    }

    /// A core writes so many lines to the NIC. Returns when they are there.
    #[inline]
    pub fn mmio(&mut self, now_ps: u64, lines: usize, stats: &mut NicStats) -> u64 {
        let bytes = lines * (LINE + self.request_header);
        stats.mmio_lines += lines as u64;
        stats.down_bytes += bytes as u64;
        self.soon_ps = self.soon_ps.saturating_sub(self.written_ps(lines));
        let over_ps = self.down.pass(now_ps, self.takes_ps(bytes));
        self.intake.pass(over_ps, lines as u64 * self.intake_line_ps) + self.write_latency_ps
    }

    /// A core rings a doorbell. As for [`Self::mmio`].
    #[inline]
    pub fn doorbell(&mut self, now_ps: u64, stats: &mut NicStats) -> u64 {
        let bytes = DOORBELL + self.request_header;
        stats.doorbells += 1;
        stats.down_bytes += bytes as u64;
        self.soon_ps = self.soon_ps.saturating_sub(self.written_ps(0));
        self.down.pass(now_ps, self.takes_ps(bytes)) + self.write_latency_ps
    }

    /// The NIC writes `len` bytes; returns when they are in memory.
    #[inline]
    pub fn write(&mut self, now_ps: u64, len: usize, stats: &mut NicStats) -> u64 {
        let transactions = len.div_ceil(WRITE_MAX).max(1);
        let bytes = len + transactions * self.request_header;
        stats.dma_writes += transactions as u64;
        stats.dma_write_lines += len.div_ceil(LINE) as u64;
        stats.up_bytes += bytes as u64;
        self.up.pass(now_ps, self.takes_ps(bytes)) + self.write_latency_ps
    }

    /// The NIC asks for bytes in memory; returns when the request is there.
    #[inline]
    pub fn read(&mut self, now_ps: u64, stats: &mut NicStats) -> u64 {
        stats.dma_reads += 1;
        stats.up_bytes += self.request_header as u64;
        self.up.pass(now_ps, self.takes_ps(self.request_header)) + self.write_latency_ps
    }

    /// Memory answers with `len` bytes; returns when they are at the NIC.
    #[inline]
    pub fn answer(&mut self, now_ps: u64, len: usize, stats: &mut NicStats) -> u64 {
        let bytes = len + len.div_ceil(self.completion_max).max(1) * self.completion_header;
        stats.dma_read_lines += len.div_ceil(LINE) as u64;
        stats.down_bytes += bytes as u64;
        self.down.pass(now_ps, self.takes_ps(bytes)) + self.read_latency_ps.saturating_sub(self.write_latency_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_early_holds_up_nothing_that_comes_before_it() {
        let mut pipe = Pipe::default();
        // A core that is ahead passes something at 1000.
        assert_eq!(pipe.pass(1000, 100), 1100);
        // Others come until then, in the order of time, and wait for each other alone.
        assert_eq!([0, 10, 500, 960].map(|ready_ps| pipe.pass(ready_ps, 50)), [50, 100, 550, 1150]);
        // There is room for this between them still.
        assert_eq!([pipe.pass(520, 300), pipe.pass(560, 300)], [850, 1450]);
        assert_eq!(pipe.busy_ps, 100 + 4 * 50 + 600);
    }

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
