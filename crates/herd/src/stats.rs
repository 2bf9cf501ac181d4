//! What a worker counts.

use crate::slot::SlotDrop;

/// What happened at a worker since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Requests that were executed.
    pub executed: u64,
    /// Answers that were given again, to requests that came again.
    pub repeated: u64,
    /// Doorbells that started answers.
    pub doorbells: u64,
    /// Steps that the pipeline made without a new request.
    pub noops: u64,
    /// Answers that could not be sent: the client cannot be reached, or there is no memory. It may ask again.
    pub unsent: u64,
    /// Answers that the device failed to send.
    pub failed_sends: u64,
    dropped: [u64; SlotDrop::ALL.len()],
}

impl WorkerStats {
    /// Contents of slots that were not executed, for a reason.
    pub fn dropped(&self, reason: SlotDrop) -> u64 {
        self.dropped[reason as usize]
    }

    #[cold]
    pub(crate) fn drop(&mut self, reason: SlotDrop) {
        self.dropped[reason as usize] += 1;
    }
}
