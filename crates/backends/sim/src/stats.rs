//! What a network counts.

/// What one direction of a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets that left on it.
    pub packets: u64,
    /// Bytes of them, frames included.
    pub bytes: u64,
    /// Bytes that wait for it.
    pub queued_bytes: u64,
    /// The most that waited, ever or since [`Network::take_queued_max`](crate::Network::take_queued_max).
    pub queued_bytes_max: u64,
    /// Packets lost since too much waited for it.
    pub overflowed: u64,
    /// Packets lost by its faults, or since it was down.
    pub failed: u64,
}

/// What happened on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Packets that reached a port's receive queue.
    pub delivered: u64,
    /// Packets that did not, for whatever reason.
    pub lost: u64,
    /// Those of them that found a switch's buffer full.
    pub overflowed: u64,
    /// Packets of which a fault flipped a bit, once for each time.
    pub corrupted: u64,
    /// Packets that a fault sent twice.
    pub duplicated: u64,
    /// Times that a packet was marked for a long queue.
    pub marked: u64,
    /// Times that a sender was asked to pause.
    pub pauses: u64,
}
