//! Counters of a worker.

use crate::slot::SlotDrop;

/// Counters of a worker since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Requests executed.
    pub executed: u64,
    /// Answers sent again, because their requests were retransmitted.
    pub repeated: u64,
    /// Doorbells that started answers.
    pub doorbells: u64,
    /// Steps of the pipeline without a new request.
    pub noops: u64,
    /// Answers that could not be sent, because the client cannot be reached, or there is no memory. The client may
    /// retransmit.
    pub unsent: u64,
    /// Answers that the device failed to send.
    pub failed_sends: u64,
    dropped: [u64; SlotDrop::ALL.len()],
}

impl WorkerStats {
    /// Contents of slots dropped for this reason, without being executed.
    pub fn dropped(&self, reason: SlotDrop) -> u64 {
        self.dropped[reason as usize]
    }

    #[cold]
    pub(crate) fn drop(&mut self, reason: SlotDrop) {
        self.dropped[reason as usize] += 1;
    }
}
