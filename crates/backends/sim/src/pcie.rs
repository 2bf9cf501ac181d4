//! PCI Express as arithmetic: what crosses the link between a host and a device, and how much can cross in a second.
//!
//! Packets of the transaction layer (TLPs) and their bytes are counted, headers included. The link layer's own packets,
//! below 5 % of the bytes (atc16 Appendix A), are left out, and so is the physical encoding, which the lanes' rates
//! already exclude.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul};

/// Bytes of a cache line, the unit in which a write-combining buffer sends.
pub const LINE: usize = 64;
/// Bytes that ring a doorbell (d in atc16 Appendix A).
pub const DOORBELL: usize = 8;
/// Most bytes that one packet of a DMA write carries; an assumption. The specification allows 128 to 4,096, and servers
/// usually have 256.
pub const WRITE_MAX: usize = 256;
/// Most bytes that one packet of a DMA read asks for; an assumption: the most that the specification allows.
pub const READ_MAX: usize = 4096;

/// Generations of PCI Express, by their rate per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// 2.5 GT/s, 8 bits in 10: 250 MB/s per lane.
    Gen1,
    /// 5 GT/s, 8 bits in 10: 500 MB/s per lane.
    Gen2,
    /// 8 GT/s, 128 bits in 130: 984.6 MB/s per lane.
    Gen3,
    /// 16 GT/s.
    Gen4,
    /// 32 GT/s.
    Gen5,
}

impl Generation {
    /// All generations, oldest first.
    pub const ALL: [Self; 5] = [Self::Gen1, Self::Gen2, Self::Gen3, Self::Gen4, Self::Gen5];

    /// Its number: 1 to 5.
    pub fn number(self) -> u32 {
        self as u32 + 1
    }

    /// Megabytes per second of a lane, physical encoding excluded (atc16 Figure 2a).
    pub fn lane_mbps(self) -> f64 {
        match self {
            Self::Gen1 => 250.0,
            Self::Gen2 => 500.0,
            Self::Gen3 => 984.6,
            Self::Gen4 => 1969.2,
            Self::Gen5 => 3938.5,
        }
    }

    /// Bytes of header of a read request, or of a write beside its data (atc16 Figure 2a).
    pub fn request_header(self) -> usize {
        if self < Self::Gen3 { 24 } else { 26 }
    }

    /// Bytes of header of each part of a read's answer (atc16 Figure 2a).
    pub fn completion_header(self) -> usize {
        if self < Self::Gen3 { 20 } else { 22 }
    }
}

/// Traffic on a link in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossing {
    /// Packets of the transaction layer.
    pub packets: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
}

impl Crossing {
    /// `packets` packets with `data` bytes in all, and a header each.
    fn of(packets: usize, data: usize, header: usize) -> Self {
        Self { packets: packets as u64, bytes: (data + packets * header) as u64 }
    }
}

/// Traffic on a link in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the host to the device: MMIO, and answers to DMA reads.
    pub to_device: Crossing,
    /// From the device to the host: DMA writes, and requests for DMA reads.
    pub to_host: Crossing,
}

impl Add for Crossing {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

impl Mul<u64> for Crossing {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self { packets: self.packets * times, bytes: self.bytes * times }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { to_device: self.to_device + other.to_device, to_host: self.to_host + other.to_host }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Traffic {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self { to_device: self.to_device * times, to_host: self.to_host * times }
    }
}

impl Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// Cache lines that `len` bytes take if they begin with a line (x' / 64 in atc16 2.2.3).
pub fn lines(len: usize) -> usize {
    len.div_ceil(LINE)
}

/// Cache lines that `len` bytes from `place` on touch: 4 bytes across the end of a line touch two (atc16 footnote 2).
pub fn lines_at(place: usize, len: usize) -> usize {
    if len == 0 { 0 } else { lines(place % LINE + len) }
}

/// The PCI Express link of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Its generation.
    pub generation: Generation,
    /// Number of lanes.
    pub lanes: u32,
    /// Most bytes of a read's answer that one completion carries (the read completion combining size, atc16 2.1).
    pub completion_max: usize,
}

impl PcieLink {
    /// Megabytes per second in either direction.
    pub fn bandwidth_mbps(self) -> f64 {
        self.generation.lane_mbps() * f64::from(self.lanes)
    }

    /// Traffic of a core that writes `len` bytes by MMIO: write-combining sends whole lines, each a packet with a
    /// header of its own.
    pub fn mmio(self, len: usize) -> Traffic {
        let lines = lines(len);
        let to_device = Crossing::of(lines, lines * LINE, self.generation.request_header());
        Traffic { to_device, to_host: Crossing::default() }
    }

    /// Traffic of a doorbell.
    pub fn doorbell(self) -> Traffic {
        let to_device = Crossing::of(1, DOORBELL, self.generation.request_header());
        Traffic { to_device, to_host: Crossing::default() }
    }

    /// Traffic of a DMA read of `len` bytes, which come in parts of [`PcieLink::completion_max`] with a header each.
    pub fn dma_read(self, len: usize) -> Traffic {
        Traffic {
            to_device: Crossing::of(len.div_ceil(self.completion_max), len, self.generation.completion_header()),
            to_host: Crossing::of(len.div_ceil(READ_MAX), 0, self.generation.request_header()),
        }
    }

    /// Traffic of a DMA write of `len` bytes; nothing answers it.
    pub fn dma_write(self, len: usize) -> Traffic {
        let to_host = Crossing::of(len.div_ceil(WRITE_MAX), len, self.generation.request_header());
        Traffic { to_device: Crossing::default(), to_host }
    }

    /// Traffic of `count` work queue elements of `len` bytes that a core writes by MMIO (T_bf in atc16 Appendix A).
    pub fn wqes_by_mmio(self, count: usize, len: usize) -> Traffic {
        self.mmio(len) * count as u64
    }

    /// Traffic of `count` work queue elements of `len` bytes that a doorbell announces, and of which the device reads
    /// up to `fetch_max` with one DMA; each begins with a line (T_db in atc16 Appendix A).
    pub fn wqes_by_doorbell(self, count: usize, len: usize, fetch_max: usize) -> Traffic {
        let (at_once, padded) = (fetch_max.clamp(1, count.max(1)), lines(len) * LINE);
        let full = self.dma_read(at_once * padded) * (count / at_once) as u64;
        self.doorbell() + full + self.dma_read(count % at_once * padded)
    }

    /// Millions of lines that cores can write by MMIO per second.
    pub fn mmio_mlines(self) -> f64 {
        self.bandwidth_mbps() / (LINE + self.generation.request_header()) as f64
    }

    /// Megabytes of data that DMA reads can bring per second, headers excluded.
    pub fn dma_read_mbps(self) -> f64 {
        let header = self.generation.completion_header();
        self.bandwidth_mbps() * self.completion_max as f64 / (self.completion_max + header) as f64
    }

    /// Millions of work queue elements of `len` bytes that DMA reads can bring per second.
    pub fn wqe_fetch_mops(self, len: usize) -> f64 {
        self.dma_read_mbps() / (lines(len) * LINE) as f64
    }

    /// Millions of times per second that the link can carry `traffic`.
    pub fn rate_max_mops(self, traffic: Traffic) -> f64 {
        self.bandwidth_mbps() / traffic.to_device.bytes.max(traffic.to_host.bytes) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CIB: PcieLink = PcieLink { generation: Generation::Gen3, lanes: 16, completion_max: 128 };

    #[test]
    fn generations_are_those_of_the_paper() {
        let of = |generation: Generation| {
            (generation.lane_mbps(), generation.request_header(), generation.completion_header())
        };
        assert_eq!(of(Generation::Gen2), (500.0, 24, 20));
        assert_eq!(of(Generation::Gen3), (984.6, 26, 22));
        assert_eq!(of(Generation::Gen1), (250.0, 24, 20));
        assert_eq!(Generation::ALL.map(Generation::number), [1, 2, 3, 4, 5]);
        assert!(Generation::ALL.map(Generation::lane_mbps).is_sorted());
    }

    #[test]
    fn ten_elements_of_65_bytes_are_those_of_appendix_a() {
        assert_eq!(CIB.wqes_by_mmio(10, 65).to_device, Crossing { packets: 20, bytes: 1800 });
        for fetch_max in [1, 5, 10, usize::MAX] {
            assert_eq!(CIB.wqes_by_doorbell(10, 65, fetch_max).to_device, Crossing { packets: 11, bytes: 1534 });
        }
        let requests = [1, 3, 10, 11].map(|fetch_max| CIB.wqes_by_doorbell(10, 65, fetch_max).to_host.packets);
        assert_eq!(requests, [10, 4, 1, 1]);
    }

    #[test]
    fn limits_are_those_of_the_paper() {
        assert_eq!(CIB.mmio_mlines().round(), 175.0);
        assert_eq!(CIB.dma_read_mbps().round(), 13443.0);
        assert_eq!(CIB.wqe_fetch_mops(128).round(), 105.0);
        // A WQE by MMIO of two lines: the paper's 87.5 M/s.
        assert_eq!((CIB.rate_max_mops(CIB.mmio(128)) * 10.0).round(), 875.0);
    }

    #[test]
    fn a_dma_read_takes_less_of_the_link_than_mmio_of_the_same_bytes() {
        for generation in Generation::ALL {
            let link = PcieLink { generation, ..CIB };
            for len in 1..2000 {
                assert!(link.dma_read(len).to_device.bytes < link.mmio(len).to_device.bytes, "{len}");
            }
        }
    }

    #[test]
    fn packets_are_cut_at_what_one_can_carry() {
        let packets = |len| [CIB.mmio(len).to_device, CIB.dma_read(len).to_device, CIB.dma_write(len).to_host];
        let counts = |len| packets(len).map(|crossing| crossing.packets);
        assert_eq!([counts(0), counts(1), counts(64), counts(65)], [[0; 3], [1; 3], [1; 3], [2, 1, 1]]);
        assert_eq!([counts(128), counts(129), counts(256), counts(257)], [[2, 1, 1], [3, 2, 1], [4, 2, 1], [5, 3, 2]]);
        assert_eq!([0, 1, 4096, 4097].map(|len| CIB.dma_read(len).to_host.packets), [0, 1, 1, 2]);
        assert_eq!(packets(100).map(|crossing| crossing.bytes), [180, 122, 126]);
        assert_eq!(CIB.wqes_by_mmio(0, 64) + CIB.dma_read(0), Traffic::default());
    }

    #[test]
    fn bytes_across_the_end_of_a_line_touch_both() {
        let touched = [(0, 4), (60, 4), (61, 4), (126, 4), (0, 0), (63, 0), (1, 64), (64, 64)];
        assert_eq!(touched.map(|(place, len)| lines_at(place, len)), [1, 1, 2, 2, 0, 0, 2, 1]);
    }
}
