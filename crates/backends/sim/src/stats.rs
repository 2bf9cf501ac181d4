//! Counters of a network and of its links.

/// Counters of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets sent on it, those that it then lost included.
    pub packets: u64,
    /// Bytes sent on it, frames included.
    pub bytes: u64,
    /// Bytes now queued for it.
    pub queued_bytes: u64,
    /// Most bytes queued for it at once, ever or since [`Network::take_queued_max`](crate::Network::take_queued_max).
    pub queued_bytes_max: u64,
    /// Packets lost because its queue was full.
    pub overflowed: u64,
    /// Packets lost to its faults, or because it was down.
    pub failed: u64,
}

/// Counters of a whole network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Packets that reached a port's receive queue.
    pub delivered: u64,
    /// Packets that did not reach a receive queue, for any reason.
    pub lost: u64,
    /// Lost packets that found a switch's buffer full.
    pub overflowed: u64,
    /// Bits flipped by faults; a packet may be hit more than once.
    pub corrupted: u64,
    /// Packets duplicated by a fault.
    pub duplicated: u64,
    /// Marks set on packets that met a long queue.
    pub marked: u64,
    /// Requests to a sender to pause.
    pub pauses: u64,
}
