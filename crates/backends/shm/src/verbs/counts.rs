//! Counts of discarded messages and packets, by reason.

/// Reason for which a message or a packet was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discarded {
    /// Receiving: no receive was posted. On RC this happens only when the peer breaks the rules.
    NoReceive,
    /// Receiving: there is no such queue pair, or it does not receive, or it is connected to another.
    NoSuchQueuePair,
    /// Receiving, UD: the datagram does not carry the queue pair's key.
    WrongKey,
    /// Receiving: the packet is malformed.
    Malformed,
    /// Receiving: another part of the message was lost (UC), or its sender revoked the bytes before they were copied.
    Incomplete,
    /// Sending, UC and UD: the receiver's ring was full.
    Full,
    /// Sending, UC and UD: nobody listens there, or no longer.
    NobodyThere,
}

impl Discarded {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::NoReceive,
        Self::NoSuchQueuePair,
        Self::WrongKey,
        Self::Malformed,
        Self::Incomplete,
        Self::Full,
        Self::NobodyThere,
    ];
}

/// Numbers of discarded messages and packets, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts([u64; Discarded::ALL.len()]);

impl Counts {
    #[inline]
    pub fn count(&mut self, reason: Discarded) {
        self.0[reason as usize] += 1;
    }

    pub fn of(&self, reason: Discarded) -> u64 {
        self.0[reason as usize]
    }
}
