//! READs of searches: those that are due start together.

use sinew_fabric::verbs::{Completion, CompletionQueue, QueuePair, RefusedRequest, RemoteMemory, Status};
use sinew_mem::MessageBuffer;
use sinew_store::remote::Span;

/// Completions taken in one poll.
const BURST: usize = 32;

/// READs of a client, each of a search that is known by its index.
pub(crate) struct Reads {
    /// The owner's table.
    memory: RemoteMemory,
    /// READs that the next doorbell starts: their searches, buffers and places.
    due: Vec<(u64, MessageBuffer, RemoteMemory)>,
    /// READs, and whatever else fills a buffer, that are over: their searches and buffers.
    pub done: Vec<(usize, MessageBuffer)>,
    /// Those that complete in the queue.
    queued: usize,
    /// Whether the device performed any of the last list at once.
    is_at_once: bool,
    completions: Vec<Completion>,
    /// Outcome of the first that failed.
    failed: Option<Status>,
}

impl Reads {
    /// Makes an empty list of READs of `memory`, with room for `capacity` of them.
    pub fn new(memory: RemoteMemory, capacity: usize) -> Self {
        Self {
            memory,
            due: Vec::with_capacity(capacity),
            done: Vec::with_capacity(capacity),
            queued: 0,
            is_at_once: true,
            completions: Vec::with_capacity(BURST),
            failed: None,
        }
    }

    /// Adds a READ to those that start together. Fails with the buffer if the owner's memory has no such place, or the
    /// buffer is too short.
    #[inline(always)]
    pub fn add(&mut self, search: usize, span: Span, mut buffer: MessageBuffer) -> Result<(), MessageBuffer> {
        match self.memory.at(span.offset) {
            Some(remote) if buffer.resize(span.len).is_ok() => {
                self.due.push((search as u64, buffer, remote));
                Ok(())
            }
            _ => Err(buffer),
        }
    }

    /// Posts the READs with one doorbell, and returns their number. Those that the device performs at once are over.
    ///
    /// # Errors
    ///
    /// The device's refusal; the READs that it did not take are lost.
    #[inline(always)]
    pub fn post(&mut self, qp: &mut impl QueuePair) -> Result<usize, RefusedRequest> {
        let Self { due, done, queued, is_at_once, .. } = self;
        let count = due.len();
        if count > 0 {
            let before = done.len();
            let posted = qp.post_reads(due.drain(..), |search, buffer| done.push((search as usize, buffer)));
            *queued += count - (done.len() - before);
            *is_at_once = done.len() > before;
            posted?;
        }
        Ok(count)
    }

    /// Starts the READs before other operations, which are about to be posted: performs them at once if the device does
    /// that, and otherwise leaves their start to the doorbell of the others. Returns their number.
    ///
    /// # Errors
    ///
    /// As for [`Self::post`].
    pub fn post_before_others(&mut self, qp: &mut impl QueuePair) -> Result<usize, RefusedRequest> {
        if self.is_at_once {
            return self.post(qp);
        }
        let count = self.due.len();
        self.queued += count;
        self.due.drain(..).try_for_each(|(search, buffer, remote)| qp.push_read(search, buffer, remote))?;
        Ok(count)
    }

    /// Notes that another operation, whose identifier is that of its search, will complete in the queue.
    #[inline(always)]
    pub fn expect(&mut self) {
        self.queued += 1;
    }

    /// Takes completions of the client's queue.
    ///
    /// # Errors
    ///
    /// Outcome of an operation that failed, again and again.
    #[inline(always)]
    pub fn poll(&mut self, cq: &mut impl CompletionQueue) -> Result<(), Status> {
        // A poll also looks after the port, whose packets may say that the owner has gone. READs that were performed
        // when they were posted looked at that themselves.
        if self.queued > 0 || self.done.is_empty() {
            let count = cq.poll(&mut self.completions, BURST);
            // Operations without a buffer complete only if they fail.
            self.queued = self.queued.saturating_sub(count);
            for mut completion in self.completions.drain(..) {
                if completion.status.is_success() {
                    self.done.extend(completion.buffers.pop().map(|buffer| (completion.id as usize, buffer)));
                } else {
                    self.failed.get_or_insert(completion.status);
                }
            }
        }
        self.failed.map_or(Ok(()), Err)
    }
}
