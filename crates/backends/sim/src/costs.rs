//! What a core pays for.

use crate::nic::Core;

/// Nanoseconds that a core spends on what its endpoint does. One table for all experiments.
///
/// The defaults are those of a core of the CX4 cluster, a 2.4 GHz Xeon E5-2640 v4 (nsdi19 Table 1). [`Self::receive_ns`] and
/// [`Self::transmit_ns`] are calibrated: taken to be alike, they are what makes a thread do 4.96 million calls a second in batches of three,
/// as in nsdi19 6.2 (Figure 4), with congestion control and all its bypasses. The others are estimates that do not depend on that figure. With
/// them fixed, the latencies of the topologies' hosts are calibrated to Table 2, and [`Self::copy_line_ns`] to nsdi19 6.4. None was chosen by any
/// other result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A turn of the loop, whether or not it finds anything: a reading of the time stamp counter (8 ns, nsdi19 5.2.2), and looks at empty
    /// queues that the cache holds (an estimate).
    pub turn_ns: u64,
    /// A packet that was received, and what the protocol does about it. (Calibrated.)
    pub receive_ns: u64,
    /// A packet that is sent. (Calibrated.)
    pub transmit_ns: u64,
    /// A doorbell: once for all packets that are submitted together. An estimate after atc16 4.2, where a core that answered 7.0 million
    /// requests a second, ringing for each, answered 16.6 million once it rang for batches.
    pub doorbell_ns: u64,
    /// Copying 64 bytes of a packet out of the receive ring. (A packet that fits in one line costs nothing; what is sent the interface reads by
    /// itself, nsdi19 4.2.2.) Calibrated, with all others fixed: with it a client that sends 8 MB requests to one thread has the 75 Gbps of nsdi19
    /// 6.4, and without it what the link allows, which is what 6.4 says of the server's copies.
    pub copy_line_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { turn_ns: 20, receive_ns: 44, transmit_ns: 44, doorbell_ns: 85, copy_line_ns: 5 }
    }
}

impl Costs {
    /// Nothing costs anything: for tests of the protocol alone.
    pub const FREE: Self = Self { turn_ns: 0, receive_ns: 0, transmit_ns: 0, doorbell_ns: 0, copy_line_ns: 0 };

    /// What is left of these where a modelled NIC charges for verbs: posting and taking what is sent and received, ringing, and copying are its.
    #[must_use]
    pub fn beside(&self, core: &Core) -> Self {
        Self {
            turn_ns: self.turn_ns.saturating_sub(core.look_ns),
            receive_ns: self.receive_ns.saturating_sub(core.completion_ns + core.receive_ns),
            transmit_ns: self.transmit_ns.saturating_sub(core.post_ns),
            doorbell_ns: 0,
            copy_line_ns: self.copy_line_ns,
        }
    }

    /// What the bytes of a packet cost.
    pub(crate) fn copy_ns(&self, len: usize) -> u64 {
        self.copy_line_ns * (len as u64 / 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::Profile;

    #[test]
    fn what_a_nic_charges_is_not_charged_again() {
        let core = Profile::built_in("cx4").unwrap().core;
        let (all, beside) = (Costs::default(), Costs::default().beside(&core));
        assert_eq!(beside.turn_ns + core.look_ns, all.turn_ns);
        assert_eq!(beside.receive_ns + core.completion_ns + core.receive_ns, all.receive_ns);
        assert_eq!((beside.transmit_ns + core.post_ns, beside.doorbell_ns), (all.transmit_ns, 0));
        assert_eq!(Costs::FREE.beside(&core), Costs::FREE);
    }
}
