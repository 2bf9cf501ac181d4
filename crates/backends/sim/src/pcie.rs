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
