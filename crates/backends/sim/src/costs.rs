//! What a core pays for.

/// Nanoseconds that a core spends on what its endpoint does. One table for all experiments.
///
/// The defaults are guesses for a core like that of a 2.4 GHz Xeon E5-2640 v4, the CX4 cluster's (nsdi19 Table 1), and not calibrated yet: a
/// hundred threads that each keep 60 small calls going make 6.6 million a second each, where nsdi19 6.2 has 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A turn of the loop, whether or not it finds anything.
    pub turn_ns: u64,
    /// A packet that was received, and what the protocol does about it.
    pub receive_ns: u64,
    /// A packet that is sent.
    pub transmit_ns: u64,
    /// A doorbell: once for all packets that are submitted together.
    pub doorbell_ns: u64,
    /// Copying 64 bytes of a packet's data, at the sender and at the receiver. (A packet that fits in one line costs nothing.)
    pub copy_line_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { turn_ns: 20, receive_ns: 30, transmit_ns: 30, doorbell_ns: 60, copy_line_ns: 1 }
    }
}

impl Costs {
    /// Nothing costs anything: for tests of the protocol alone.
    pub const FREE: Self = Self { turn_ns: 0, receive_ns: 0, transmit_ns: 0, doorbell_ns: 0, copy_line_ns: 0 };

    /// What the bytes of a packet cost.
    pub(crate) fn copy_ns(&self, len: usize) -> u64 {
        self.copy_line_ns * (len as u64 / 64)
    }
}
