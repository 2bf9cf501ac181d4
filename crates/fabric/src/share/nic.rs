//! Requests of several classes over several queue pairs, posted in the scheduler's order.

use super::scheduler::{Chunk, ClassConfig, ClassId, ConfigError, Scheduler, ShareLimits};
use crate::verbs::{
    Completion, CompletionQueue, Destination, Opcode, Operation, QpNumber, QueuePair, RemoteMemory, Request, Scatter,
    Slice, Source, Status, Transport,
};
use sinew_mem::{AllocError, Arena, MessageBuffer};

/// The most completions taken at a time.
const BURST: usize = 32;

/// Configuration of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareConfig {
    /// Length of chunks, and bounds over all classes.
    pub limits: ShareLimits,
    /// The classes; a [`ClassId`] is an index in this list.
    pub classes: Vec<ClassConfig>,
    /// Requests that can be in flight or waiting, over all classes.
    pub requests_max: usize,
}

/// A queue pair of a [`Share`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedQpId(usize);

/// A request to a share.
#[derive(Debug)]
pub enum Transfer {
    /// A WRITE, cut into chunks. Others can see it in parts, in ascending order.
    Write {
        /// The bytes to write.
        source: Slice,
        /// Their destination.
        remote: RemoteMemory,
    },
    /// A WRITE, cut into chunks, the last of which completes one of the peer's receives: a message of any length. On
    /// RC, all of it is there when the receive completes; other transports are refused, since they lose chunks
    /// silently.
    Message {
        /// The bytes of the message.
        source: Slice,
        /// Their destination.
        remote: RemoteMemory,
        /// Four further bytes, for the peer's completion.
        immediate: u32,
    },
    /// A READ, cut into chunks. A target cannot be part of a buffer ([`Scatter`] has whole ones), so each chunk has a
    /// buffer of its own; they come back in order. Give them to [`Share::recycle`] after use.
    Read {
        /// The memory to read.
        remote: RemoteMemory,
        /// Length in bytes.
        len: usize,
    },
    /// A SEND of at most a chunk's bytes. It is not cut.
    Send {
        /// The bytes to send.
        source: Slice,
        /// Four further bytes, for the peer's completion.
        immediate: Option<u32>,
        /// UD: the receiver.
        to: Option<Destination>,
    },
}

impl Transfer {
    /// Bytes that the request moves.
    pub fn len(&self) -> usize {
        match self {
            Self::Write { source, .. } | Self::Message { source, .. } | Self::Send { source, .. } => source.len,
            Self::Read { len, .. } => *len,
        }
    }

    /// Whether it moves no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// There is no such class.
    #[error("there is no class {0}")]
    Class(usize),
    /// There is no such queue pair.
    #[error("there is no queue pair {0}")]
    QueuePair(usize),
    /// As many requests as possible are in flight or waiting.
    #[error("{0} requests are in flight or waiting already: take completions first")]
    Full(usize),
    /// The source's range does not lie in its buffer.
    #[error("the source does not lie in its buffer")]
    BadSlice,
    /// The request has more bytes than the peer's memory or, for a SEND, than a chunk.
    #[error("{len} bytes are over the limit of {limit}")]
    TooLong {
        /// Length of the request, in bytes.
        len: usize,
        /// The most bytes possible.
        limit: u64,
    },
    /// A message over a transport that loses chunks.
    #[error(
        "a message that is cut into chunks needs a reliable connection: over {0:?} its end can arrive without its middle"
    )]
    Unreliable(Transport),
    /// There is no memory for the chunks of a READ.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// A request that has ended.
#[derive(Debug)]
pub struct FinishedRequest {
    /// The caller's identifier of the request.
    pub id: u64,
    /// Class of the request.
    pub class: ClassId,
    /// Queue pair of the request.
    pub qp: SharedQpId,
    /// Status of the first chunk that failed, or success.
    pub status: Status,
    /// Chunks of a READ that succeeded, in order. Each except the last is full.
    pub buffers: Vec<MessageBuffer>,
}

/// Meaning of a completion for the share.
#[derive(Debug)]
pub enum Handled {
    /// The completion of a chunk whose request is not over.
    Chunk,
    /// The last completion of a request.
    Done(FinishedRequest),
    /// A completion that is not the share's: a receive, or one of another queue pair.
    Other(Completion),
}

struct SharedQp<Q> {
    qp: Q,
    number: QpNumber,
    depth: usize,
    posted: usize,
    needs_doorbell: bool,
}

struct PendingRequest {
    id: u64,
    class: ClassId,
    qp_index: usize,
    transfer: Transfer,
    status: Status,
    /// Chunks at the NIC.
    posted: usize,
    /// Whether no part of it is still to be posted.
    is_posted: bool,
    /// For READs, the buffer of each chunk while the NIC does not have it.
    buffers: Vec<Option<MessageBuffer>>,
}

/// Posts requests of several classes to the queue pairs of a thread. See the [module's documentation](super).
///
/// [`Self::submit`] takes a request and posts as much of it as may go at once. [`Self::turn`] takes completions, which
/// make room for more.
pub struct Share<Q: QueuePair> {
    scheduler: Scheduler,
    queue_pairs: Vec<SharedQp<Q>>,
    requests: Vec<Option<PendingRequest>>,
    free: Vec<usize>,
    chunk_len: usize,
    arena: Arena,
    spare: Vec<MessageBuffer>,
    completions: Vec<Completion>,
    /// Requests that ended without a completion from the NIC.
    refused: Vec<FinishedRequest>,
}

impl<Q: QueuePair> std::fmt::Debug for Share<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Share").field("scheduler", &self.scheduler).finish_non_exhaustive()
    }
}

impl<Q: QueuePair> Share<Q> {
    /// A share without queue pairs. The chunks of READs come from `arena`, which must be of the queue pairs' protection
    /// domain.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(config: &ShareConfig, arena: Arena) -> Result<Self, ConfigError> {
        Ok(Self {
            scheduler: Scheduler::new(config.limits, &config.classes)?,
            queue_pairs: Vec::new(),
            requests: (0..config.requests_max).map(|_| None).collect(),
            free: (0..config.requests_max).rev().collect(),
            chunk_len: usize::try_from(config.limits.chunk_len).unwrap_or(usize::MAX),
            arena,
            spare: Vec::new(),
            completions: Vec::with_capacity(BURST),
            refused: Vec::new(),
        })
    }

    /// Adds a queue pair, which holds `send_depth` requests and is or will be connected. Everything that it sends from
    /// now on goes through the share; its receives remain with the owner, through [`Self::qp`].
    pub fn add(&mut self, qp: Q, send_depth: usize) -> SharedQpId {
        let number = qp.number();
        self.queue_pairs.push(SharedQp { qp, number, depth: send_depth.max(1), posted: 0, needs_doorbell: false });
        SharedQpId(self.queue_pairs.len() - 1)
    }

    /// A queue pair, to connect it and to post receives.
    ///
    /// # Panics
    ///
    /// When the queue pair is another share's.
    pub fn qp(&mut self, qp: SharedQpId) -> &mut Q {
        &mut self.queue_pairs[qp.0].qp
    }

    /// The scheduler, which shows what waits and what is outstanding.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Takes a request, and posts what may go. The request ends once, with `id`, in [`Self::turn`], or in
    /// [`Self::handle_completion`] or [`Self::take_refused`].
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; nothing was taken then.
    pub fn submit(&mut self, class: ClassId, qp: SharedQpId, id: u64, transfer: Transfer) -> Result<(), SubmitError> {
        if class.0 >= self.scheduler.classes() {
            return Err(SubmitError::Class(class.0));
        }
        if qp.0 >= self.queue_pairs.len() {
            return Err(SubmitError::QueuePair(qp.0));
        }
        let transport = self.queue_pairs[qp.0].qp.transport();
        if matches!(transfer, Transfer::Message { .. }) && transport != Transport::Rc {
            return Err(SubmitError::Unreliable(transport));
        }
        let len = transfer.len();
        let limit = match &transfer {
            Transfer::Write { source, remote } | Transfer::Message { source, remote, .. } if source.is_in_bounds() => {
                remote.len
            }
            Transfer::Send { source, .. } if source.is_in_bounds() => self.chunk_len as u64,
            Transfer::Read { remote, .. } => remote.len,
            _ => return Err(SubmitError::BadSlice),
        };
        if len as u64 > limit {
            return Err(SubmitError::TooLong { len, limit });
        }
        let Some(&index) = self.free.last() else { return Err(SubmitError::Full(self.requests.len())) };
        let chunks = if let Transfer::Read { .. } = transfer { len.div_ceil(self.chunk_len).max(1) } else { 0 };
        let buffers = self.buffers(chunks, len)?;
        self.free.pop();
        let status = Status::Success;
        let pending =
            PendingRequest { id, class, qp_index: qp.0, transfer, status, posted: 0, is_posted: false, buffers };
        self.requests[index] = Some(pending);
        self.scheduler.submit(class, index as u64, len as u64);
        self.post_ready();
        Ok(())
    }

    /// Buffers for the chunks of a READ.
    fn buffers(&mut self, chunks: usize, len: usize) -> Result<Vec<Option<MessageBuffer>>, AllocError> {
        let mut buffers = Vec::with_capacity(chunks);
        for chunk in 0..chunks {
            let len = (len - chunk * self.chunk_len).min(self.chunk_len);
            let buffer = match self.spare.pop() {
                Some(buffer) => Ok(buffer),
                None => self.arena.alloc(self.chunk_len, self.chunk_len),
            };
            match buffer.and_then(|mut buffer| buffer.resize(len).map(|()| buffer)) {
                Ok(buffer) => buffers.push(Some(buffer)),
                Err(error) => {
                    self.recycle(buffers.into_iter().flatten());
                    return Err(error);
                }
            }
        }
        Ok(buffers)
    }

    /// Takes back the buffers of finished READs for later ones.
    pub fn recycle(&mut self, buffers: impl IntoIterator<Item = MessageBuffer>) {
        self.spare.extend(buffers.into_iter().filter(|buffer| buffer.capacity() >= self.chunk_len));
    }

    /// Posts what may go.
    fn post_ready(&mut self) {
        loop {
            let Self { scheduler, requests, queue_pairs, .. } = self;
            let has_room = |request: u64| {
                let qp_index = requests[request as usize].as_ref().map_or(0, |pending| pending.qp_index);
                queue_pairs[qp_index].posted < queue_pairs[qp_index].depth
            };
            let Some(chunk) = scheduler.next_chunk_of(has_room) else { break };
            self.post(&chunk);
        }
        for queue_pair in &mut self.queue_pairs {
            if std::mem::take(&mut queue_pair.needs_doorbell) {
                queue_pair.qp.doorbell();
            }
        }
    }

    fn post(&mut self, chunk: &Chunk) {
        let index = chunk.id as usize;
        let chunk_index = (chunk.offset / self.chunk_len as u64) as usize;
        let Some(pending) = self.requests[index].as_mut() else { return };
        let shared = &mut self.queue_pairs[pending.qp_index];
        pending.is_posted = chunk.is_last;
        let pushed = match pending.operation(chunk, chunk_index) {
            Some(operation) => shared
                .qp
                .push(Request::new((index as u64) << 32 | chunk_index as u64, operation))
                .map_err(|mut refused| {
                    if let (Some(place), Some(buffer)) = (pending.buffers.get_mut(chunk_index), refused.buffers.pop()) {
                        *place = Some(buffer);
                    }
                }),
            None => Err(()),
        };
        if pushed.is_ok() {
            pending.posted += 1;
            shared.posted += 1;
            shared.needs_doorbell = true;
            return;
        }
        self.scheduler.completed(chunk.class, chunk.len);
        self.fail(index, Status::LocalQpOperation);
        let done = self.remove_if_ended(index);
        self.refused.extend(done);
    }

    /// Stops posting the rest of a request.
    fn fail(&mut self, index: usize, status: Status) {
        let Some(pending) = self.requests[index].as_mut() else { return };
        if pending.status.is_success() {
            pending.status = status;
        }
        pending.is_posted = true;
        self.scheduler.cancel(pending.class, index as u64);
    }

    /// Removes the request if it has ended, and returns it.
    fn remove_if_ended(&mut self, index: usize) -> Option<FinishedRequest> {
        let pending = self.requests[index].take_if(|pending| pending.is_posted && pending.posted == 0)?;
        self.free.push(index);
        let PendingRequest { id, class, qp_index, status, buffers, .. } = pending;
        let mut buffers: Vec<_> = buffers.into_iter().flatten().collect();
        if !status.is_success() {
            self.recycle(buffers.drain(..));
        }
        Some(FinishedRequest { id, class, qp: SharedQpId(qp_index), status, buffers })
    }

    /// A request that ended because a queue pair refused it, for which no completion will come. An owner that takes
    /// completions with [`Self::handle_completion`] asks for these after each of them and after [`Self::submit`],
    /// before it sleeps. [`Self::turn`] hands them out by itself.
    pub fn take_refused(&mut self) -> Option<FinishedRequest> {
        self.refused.pop()
    }

    /// Takes a completion of any of the thread's queue pairs, and posts what may go now.
    pub fn handle_completion(&mut self, completion: Completion) -> Handled {
        let is_receive = matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWrite);
        let shared = self.queue_pairs.iter_mut().find(|shared| shared.number == completion.qp && !is_receive);
        let index = (completion.id >> 32) as usize;
        let pending = self.requests.get_mut(index).and_then(Option::as_mut);
        let (Some(shared), Some(pending)) = (shared, pending) else { return Handled::Other(completion) };
        shared.posted = shared.posted.saturating_sub(1);
        pending.posted = pending.posted.saturating_sub(1);
        let nth = (completion.id & u64::from(u32::MAX)) as usize;
        let len = pending.transfer.len().saturating_sub(nth * self.chunk_len).min(self.chunk_len);
        let mut buffers = completion.buffers;
        if let (Some(place), Some(buffer)) = (pending.buffers.get_mut(nth), buffers.pop()) {
            *place = Some(buffer);
        }
        self.scheduler.completed(pending.class, len as u64);
        if !completion.status.is_success() {
            self.fail(index, completion.status);
        }
        let done = self.remove_if_ended(index);
        self.post_ready();
        done.map_or(Handled::Chunk, Handled::Done)
    }

    /// Takes completions from `cq`, posts what may go now, and hands requests that ended to `done` and completions that
    /// are not the share's to `other`. Returns the number of completions and of refused requests. Never blocks.
    pub fn turn(
        &mut self,
        cq: &mut impl CompletionQueue,
        mut done: impl FnMut(FinishedRequest),
        mut other: impl FnMut(Completion),
    ) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let count = cq.poll(&mut completions, BURST);
        for completion in completions.drain(..) {
            match self.handle_completion(completion) {
                Handled::Chunk => {}
                Handled::Done(ended) => done(ended),
                Handled::Other(completion) => other(completion),
            }
        }
        self.completions = completions;
        // A request that was refused when it was submitted ends at the latest in the next turn.
        let refused = std::mem::take(&mut self.refused);
        let ended = count + refused.len();
        refused.into_iter().for_each(done);
        ended
    }
}

impl PendingRequest {
    /// The operation for the `nth` chunk; `None` when it is no longer possible.
    fn operation(&mut self, chunk: &Chunk, nth: usize) -> Option<Operation<'static>> {
        let part = |source: &Slice| {
            let slice = Slice {
                buffer: source.buffer.clone(),
                start: source.start + chunk.offset as usize,
                len: chunk.len as usize,
            };
            Source::Gather([slice].into_iter().collect())
        };
        Some(match &self.transfer {
            Transfer::Write { source, remote } => {
                Operation::Write { source: part(source), remote: remote.at(chunk.offset)?, immediate: None }
            }
            Transfer::Message { source, remote, immediate } => Operation::Write {
                source: part(source),
                remote: remote.at(chunk.offset)?,
                immediate: chunk.is_last.then_some(*immediate),
            },
            Transfer::Send { source, immediate, to } => {
                Operation::Send { source: part(source), immediate: *immediate, to: *to }
            }
            Transfer::Read { remote, .. } => {
                let remote = remote.at(chunk.offset)?;
                let mut target = Scatter::new();
                target.push(self.buffers.get_mut(nth)?.take()?);
                Operation::Read { target, remote }
            }
        })
    }
}
