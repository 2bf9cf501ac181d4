//! Faults of a link.

/// Probabilities for each packet in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkFaults {
    /// The packet is lost.
    pub loss: f64,
    /// A bit of the packet is flipped, and the fabric's own checksum does not notice (if it does, that is a loss).
    pub corruption: f64,
    /// The packet arrives twice.
    pub duplication: f64,
    /// The packet is delayed by [`Self::reordering_ns`], so that others overtake it.
    pub reordering: f64,
    /// Delay of a reordered packet.
    pub reordering_ns: u64,
}

impl LinkFaults {
    /// No faults except loss with this probability.
    pub fn losing(loss: f64) -> Self {
        Self { loss, ..Self::default() }
    }

    pub(crate) fn any(&self) -> bool {
        self.loss > 0.0 || self.corruption > 0.0 || self.duplication > 0.0 || self.reordering > 0.0
    }
}
