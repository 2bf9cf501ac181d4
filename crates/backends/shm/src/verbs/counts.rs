//! What was discarded, and why.

/// Why a message or a packet was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discarded {
    /// Receiving, UC and UD: no receive was posted.
    NoReceive,
    /// Receiving: there is no such queue pair, it does not receive, or is connected to another.
    NoSuchQueuePair,
    /// Receiving, UD: the datagram has not the queue pair's key.
    WrongKey,
    /// Receiving: what makes no sense.
    Malformed,
    /// Receiving, UC: a message of which another part was lost.
    Incomplete,
    /// Sending, UC and UD: the receiver's ring was full.
    Full,
    /// Sending, UC and UD: nobody listens there, or not any more.
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

/// How much was discarded, by reason.
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
