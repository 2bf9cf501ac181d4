//! A send queue: signals some of its requests, and keeps the sources of those that are too long to be inline.

use sinew_fabric::verbs::{InlineOperation, InlineRequest, Operation, PostError, QueuePair, Request, Source};
use sinew_mem::{AllocError, Arena, Frozen, MessageBuffer};

/// Accounts for the requests of a queue pair that are not known to have completed. One in `signal_interval` is
/// signaled. Since the queue is deeper than that, a full queue always contains a signaled request.
#[derive(Clone, Copy, Debug)]
struct Flow {
    depth: u64,
    signal_interval: u64,
    pushed: u64,
    completed: u64,
}

impl Flow {
    fn new(depth: usize) -> Self {
        // A power of two, so that no request takes a division.
        let signal_interval = 1 << (depth / 4).clamp(1, 64).ilog2();
        Self { depth: depth as u64, signal_interval, pushed: 0, completed: 0 }
    }

    #[inline(always)]
    fn room(&self) -> usize {
        (self.depth - (self.pushed - self.completed)) as usize
    }

    /// Counts a request; returns whether it must be signaled.
    #[inline(always)]
    fn push(&mut self) -> bool {
        self.pushed += 1;
        self.pushed & (self.signal_interval - 1) == 0
    }

    /// Takes back the last request, which was refused.
    fn take_back(&mut self) {
        self.pushed -= 1;
    }

    fn completed(&mut self) {
        self.completed = (self.completed + self.signal_interval).min(self.pushed);
    }
}

/// Reason why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Post(#[from] PostError),
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Bytes to send, which may be too long to be inline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub bytes: &'a [u8],
    pub operation: InlineOperation,
    pub immediate: Option<u32>,
}

/// A queue pair for sending.
pub(crate) struct SendQueue<Q> {
    pub qp: Q,
    flow: Flow,
    /// Whether requests wait for the doorbell.
    pushed: bool,
    inline_max: usize,
    /// By position of the request in the queue: its source, if that is not inline.
    staged: Vec<Option<Frozen>>,
    arena: Arena,
    staged_len_max: usize,
    /// Id with which its requests complete.
    id: u64,
}

impl<Q: QueuePair> SendQueue<Q> {
    pub fn new(qp: Q, depth: usize, inline_max: usize, arena: &Arena, len_max: usize, id: u64) -> Self {
        let staged = (0..depth).map(|_| None).collect();
        let staged_len_max = len_max.max(8);
        Self { qp, flow: Flow::new(depth), pushed: false, inline_max, staged, arena: arena.clone(), staged_len_max, id }
    }

    /// Bytes of an arena that `depth` staged sources of `len` bytes take.
    pub fn arena_bytes(depth: usize, len: usize) -> usize {
        depth * 2 * (len.max(64).next_power_of_two() + 512)
    }

    /// Requests that can be pushed before the next completion.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.flow.room()
    }

    /// Notes that a signaled request has completed.
    pub fn completed(&mut self) {
        self.flow.completed();
    }

    /// Starts afresh after a reset of the queue pair, with nothing in flight.
    pub fn restart(&mut self) {
        self.flow = Flow { pushed: 0, completed: 0, ..self.flow };
        self.pushed = false;
    }

    /// Posts a list with one doorbell, up to a request that is too long to be inline, which is pushed.
    ///
    /// # Errors
    ///
    /// Reason why the last request taken was refused; those before it were started.
    #[inline(always)]
    pub fn post_list<'a>(&mut self, list: impl IntoIterator<Item = Outgoing<'a>>) -> Result<(), SendError> {
        let Self { id, inline_max, .. } = *self;
        let (mut flow, mut long) = (self.flow, None);
        let requests = list.into_iter().map_while(|outgoing| {
            let Outgoing { bytes, operation, immediate } = outgoing;
            if bytes.len() > inline_max {
                long = Some(outgoing);
                return None;
            }
            Some(InlineRequest { id, bytes, operation, immediate, signaled: flow.push() })
        });
        let posted = self.qp.post_inline_list(requests);
        self.pushed = false;
        self.flow = flow;
        if let Err(error) = posted {
            self.flow.take_back();
            return Err(error.into());
        }
        long.map_or(Ok(()), |outgoing| self.push(outgoing))
    }

    /// Pushes a request.
    #[inline(always)]
    pub fn push(&mut self, Outgoing { bytes, operation, immediate }: Outgoing<'_>) -> Result<(), SendError> {
        let mut flow = self.flow;
        let request = InlineRequest { id: self.id, bytes, operation, immediate, signaled: flow.push() };
        if bytes.len() <= self.inline_max {
            self.qp.push_inline(request)?;
        } else {
            self.push_staged(request)?;
        }
        (self.flow, self.pushed) = (flow, true);
        Ok(())
    }

    /// Pushes a request whose bytes are too long to be inline.
    #[inline(never)]
    fn push_staged(&mut self, request: InlineRequest<'_>) -> Result<(), SendError> {
        let InlineRequest { id, bytes, operation, immediate, signaled } = request;
        let source = self.copy_to_staging(bytes)?;
        let operation = match operation {
            InlineOperation::Send(to) => Operation::Send { source, immediate, to },
            InlineOperation::Write(remote) => Operation::Write { source, remote, immediate },
        };
        let pushed = self.qp.push(Request { signaled, ..Request::new(id, operation) });
        pushed.map_err(|refused| refused.error.into())
    }

    /// Copies bytes that are too long to be inline into a buffer for the device.
    fn copy_to_staging(&mut self, bytes: &[u8]) -> Result<Source<'static>, AllocError> {
        let turn = (self.flow.pushed % self.staged.len() as u64) as usize;
        // The request that used this buffer has completed, so nobody else holds a share, unless the queue pair was
        // reset.
        let mut buffer = match self.staged[turn].take().map(Frozen::thaw) {
            Some(Ok(buffer)) => buffer,
            _ => self.new_buffer()?,
        };
        buffer.fill(bytes)?;
        let share = buffer.freeze();
        self.staged[turn] = Some(share.clone());
        Ok(share.into())
    }

    #[cold]
    fn new_buffer(&self) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(self.staged_len_max, self.staged_len_max)
    }

    /// Starts what was pushed.
    #[inline(always)]
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.qp.doorbell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_always_has_a_signaled_request() {
        for depth in [1, 2, 3, 8, 128, 1000] {
            let mut flow = Flow::new(depth);
            let (mut signaled, mut pushed) = (0, 0);
            while pushed < 10 * depth {
                while flow.room() > 0 {
                    signaled += u64::from(flow.push());
                    pushed += 1;
                }
                assert!(signaled > 0, "{depth}");
                flow.completed();
                signaled -= 1;
            }
        }
    }
}
