//! Costs that a core is charged for packets.

use crate::nic::Core;

/// Nanoseconds that a core spends on its endpoint's packets. All experiments share this table.
///
/// The defaults are those of a core of the CX4 cluster, a 2.4 GHz Xeon E5-2640 v4 (nsdi19 Table 1).
/// [`Self::receive_ns`] and [`Self::transmit_ns`] are calibrated: assumed to be equal, they are what makes a thread do
/// 4.96 million calls per second in batches of three, as in nsdi19 6.2 (Figure 4), with congestion control and all its
/// bypasses. The others are estimates that do not depend on that figure. With them fixed, the latencies of the
/// topologies' hosts are calibrated to Table 2, and [`Self::copy_line_ns`] to nsdi19 6.4. None was chosen by any other
/// result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Cost of a turn of the loop, whether or not it finds anything: a reading of the time stamp counter (8 ns, nsdi19
    /// 5.2.2), and looks at empty queues that the cache holds (an estimate).
    pub turn_ns: u64,
    /// Cost of a received packet, including the protocol's work on it. (Calibrated.)
    pub receive_ns: u64,
    /// Cost of a sent packet. (Calibrated.)
    pub transmit_ns: u64,
    /// Cost of a doorbell, once for all packets that are submitted together. An estimate after atc16 4.2, where a core
    /// that answered 7.0 million requests per second with a doorbell for each answered 16.6 million with a doorbell for
    /// each batch.
    pub doorbell_ns: u64,
    /// Cost of copying 64 bytes of a packet out of the receive ring. (A packet shorter than a line costs nothing; the
    /// interface reads sent packets itself, nsdi19 4.2.2.) Calibrated, with all others fixed, so that a client that
    /// sends 8 MB requests to one thread reaches the 75 Gbps of nsdi19 6.4. Without this cost it reaches what the link
    /// allows, as 6.4 says of a server that does not copy.
    pub copy_line_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { turn_ns: 20, receive_ns: 44, transmit_ns: 44, doorbell_ns: 85, copy_line_ns: 5 }
    }
}

impl Costs {
    /// No costs, for tests of the protocol alone.
    pub const FREE: Self = Self { turn_ns: 0, receive_ns: 0, transmit_ns: 0, doorbell_ns: 0, copy_line_ns: 0 };

    /// The costs that remain beside a modelled NIC that charges for verbs: posting, taking completions, doorbells and
    /// copies are charged there.
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

    /// Cost of copying `len` bytes of a packet.
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
