//! What can go wrong on a link.

/// Chances, of each packet, in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkFaults {
    /// It is lost.
    pub loss: f64,
    /// A bit of it is flipped (where the fabric's own checksum does not notice; else it is a loss).
    pub corruption: f64,
    /// It arrives twice.
    pub duplication: f64,
    /// It is held up for [`Self::reordering_ns`], so that others overtake it.
    pub reordering: f64,
    /// How long.
    pub reordering_ns: u64,
}

impl LinkFaults {
    /// No faults but packets lost with this probability.
    pub fn losing(loss: f64) -> Self {
        Self { loss, ..Self::default() }
    }

    pub(crate) fn any(&self) -> bool {
        self.loss > 0.0 || self.corruption > 0.0 || self.duplication > 0.0 || self.reordering > 0.0
    }
}
