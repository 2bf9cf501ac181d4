//! PCI Express as arithmetic: what crosses the link between a host and a device, and how much of it in a second.

/// Generations of PCI Express, by their rate a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// 2.5 GT/s, 8 bits in 10: 250 MB/s a lane.
    Gen1,
    /// 5 GT/s, 8 bits in 10: 500 MB/s a lane.
    Gen2,
    /// 8 GT/s, 128 bits in 130: 984.6 MB/s a lane.
    Gen3,
    /// 16 GT/s.
    Gen4,
    /// 32 GT/s.
    Gen5,
}

/// The link of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Its generation.
    pub generation: Generation,
    /// Its lanes.
    pub lanes: u32,
    /// Bytes of a read's answer that one completion carries at most (the read completion combining size, atc16 2.1).
    pub completion_max: usize,
}

impl Generation {
    /// Megabytes that a lane carries in a second, physical encoding excluded (atc16 Figure 2a).
    pub fn lane_mbps(self) -> f64 {
        match self {
            Self::Gen1 => 250.0,
            Self::Gen2 => 500.0,
            Self::Gen3 => 984.6,
            Self::Gen4 => 1969.2,
            Self::Gen5 => 3938.5,
        }
    }

    /// Bytes around a request: a read's, or a write's beside its data (atc16 Figure 2a).
    pub fn request_header(self) -> usize {
        if self < Self::Gen3 { 24 } else { 26 }
    }

    /// Bytes around a part of a read's answer (atc16 Figure 2a).
    pub fn completion_header(self) -> usize {
        if self < Self::Gen3 { 20 } else { 22 }
    }
}

impl PcieLink {
    /// Megabytes that it carries in a second, in either direction.
    pub fn bandwidth_mbps(self) -> f64 {
        self.generation.lane_mbps() * f64::from(self.lanes)
    }
}
