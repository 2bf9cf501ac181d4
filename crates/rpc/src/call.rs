//! A request as its handler sees it, and the ways to answer it: at once, later, or from another thread.

use std::sync::Arc;

use sinew_fabric::MAX_BURST;
use sinew_mem::{AllocError, Arena, MessageBuffer};

use crate::answer::{Answer, AnswerQueue, ErrorCode, RequestData, RunningCall, ServerCallId};
use crate::core::Core;
use crate::error::{CallBackError, Rejected};
use crate::names::{CallId, ClientId, RequestType, SessionId};
use crate::options::CallOptions;
use crate::peers::Share;
use crate::server::Abandoned;

/// A request in the hands of a dispatch handler, on the endpoint's own thread.
///
/// Answer it with [`Call::reply`] or one of its variants, or [`Call::defer`] the answer. A call that is dropped answers
/// its client with [`crate::Cause::HandlerDropped`]; one whose handler panics, with [`crate::Cause::HandlerPanicked`].
pub struct Call<'a> {
    core: &'a mut Core,
    call: RunningCall,
    request: &'a [u8],
    answered: bool,
}

impl<'a> Call<'a> {
    #[inline(always)]
    pub(crate) fn new(core: &'a mut Core, call: RunningCall, request: &'a [u8]) -> Self {
        Self { core, call, request, answered: false }
    }

    /// The request. It stays readable while the call is being answered.
    #[inline]
    pub fn request(&self) -> &'a [u8] {
        self.request
    }

    /// The type of the request.
    pub fn request_type(&self) -> RequestType {
        self.call.location.request_type
    }

    /// The client that made the call, that is, the session over which it came.
    #[inline]
    pub fn client(&self) -> ClientId {
        ClientId(self.call.id.key.0)
    }

    /// The session over which a client that accepts calls can be called; see [`crate::Rpc::session_to`].
    ///
    /// # Errors
    ///
    /// [`CallBackError`].
    pub fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError> {
        self.core.servers.session_to(client)
    }

    /// The time until which the caller waits, on the endpoint's clock ([`Self::now_ns`]); `None` if the caller gave
    /// none.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.core.servers.deadline_ns(self.call.id)
    }

    /// The time of this turn of the endpoint's loop, on the endpoint's clock. It is read once for all requests of a
    /// received burst, so it may be slightly in the past.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.core.shared.now_ns
    }

    /// Answers with these bytes.
    ///
    /// A response over the session's largest message fails the call with [`crate::Cause::ResponseTooLarge`].
    #[inline(always)]
    pub fn reply(mut self, response: &[u8]) {
        self.answered = true;
        self.core.servers.reply(&mut self.core.shared, self.call, response);
    }

    /// Answers with `len` bytes, which `write` fills in where they will be sent from. Before that their contents are
    /// unspecified.
    #[inline]
    pub fn reply_with(mut self, len: usize, write: impl FnOnce(&mut [u8])) {
        self.core.servers.answer_with(&mut self.core.shared, self.call, len, write);
        // Set afterwards: if `write` panics, the call is still unanswered.
        self.answered = true;
    }

    /// Answers with up to `max` bytes, for a response whose length is known only once it is written: `write` fills in a
    /// buffer of `max` bytes, whose contents are unspecified before, and returns the length. A length over `max` counts
    /// as `max`. While `write` runs, `max` bytes of memory are needed; a `max` over the session's largest message fails
    /// the call with [`crate::Cause::ResponseTooLarge`].
    pub fn reply_up_to(mut self, max: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        self.core.servers.answer_up_to(&mut self.core.shared, self.call.id, max, write);
        // Set afterwards: if `write` panics, the call is still unanswered.
        self.answered = true;
    }

    /// Answers with a buffer from [`Call::alloc`], without a copy.
    #[inline]
    pub fn reply_buffer(mut self, response: MessageBuffer) {
        self.answered = true;
        self.core.servers.answer_buffer(&mut self.core.shared, self.call.id, response);
    }

    /// Answers as if no handler were registered for the request's type: the client gets [`crate::Cause::NoHandler`],
    /// and learns that its request did not run. This is for a handler of many types ([`crate::Rpc::turn_with`]) that
    /// does not know this one.
    pub fn refuse_type(mut self) {
        self.answered = true;
        self.core.servers.answer_error(&mut self.core.shared, self.call.id, ErrorCode::NoHandler);
    }

    /// Allocates a message buffer of `len` bytes from the endpoint's arena.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.core.shared.alloc(len)
    }

    /// Calls another server from within this call (nsdi19 3.1, nested calls); the call completes through
    /// [`crate::Rpc::poll_completion`].
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the buffers.
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: impl Into<CallOptions>,
    ) -> Result<CallId, Rejected> {
        self.core.enqueue(session, request_type, request, response, options.into())
    }

    /// Keeps the call, with a copy of its request, so that it can be answered later or from another thread. Until then
    /// the copy counts towards its client's share of the memory ([`crate::Config::peer_share_percent`]).
    ///
    /// # Errors
    ///
    /// [`AllocError`] when there is no memory for the copy, or the client's share is used up: the error then names that
    /// share as the capacity. The client is told that the server is busy.
    pub fn defer(mut self) -> Result<DeferredCall, AllocError> {
        self.answered = true;
        let deadline_ns = self.deadline_ns();
        keep(self.core, self.call, deadline_ns, RequestData::Lent(self.request)).inspect_err(|_| {
            self.core.servers.answer_error(&mut self.core.shared, self.call.id, ErrorCode::NoMemory);
        })
    }
}

/// The error that a call dropped without an answer reports to its client.
fn code_of_drop() -> ErrorCode {
    if std::thread::panicking() { ErrorCode::Panicked } else { ErrorCode::Dropped }
}

/// Answers a call whose handler did not.
#[cold]
#[inline(never)]
fn answer_for(core: &mut Core, call: ServerCallId) {
    core.servers.answer_error(&mut core.shared, call, code_of_drop());
}

impl Drop for Call<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.answered {
            answer_for(self.core, self.call.id);
        }
    }
}

/// Keeps a request, to be answered later. A request that is still where it was received is copied.
#[inline(never)]
pub(crate) fn keep(
    core: &mut Core,
    call: RunningCall,
    deadline_ns: Option<u64>,
    request: RequestData<'_>,
) -> Result<DeferredCall, AllocError> {
    let Core { shared, servers, .. } = core;
    let data_per_packet = shared.data_per_packet_laid_out();
    let (asked, share) = (request.len(), shared.memory_share());
    let block_len = match &request {
        RequestData::Lent(bytes) => Arena::block_len(bytes.len(), data_per_packet),
        RequestData::Owned(buffer) => buffer.block_len(),
    };
    let full = AllocError::ArenaFull { asked, capacity: share };
    let (share, abandoned) = servers.keep_request(shared, call.id, deadline_ns, block_len).ok_or(full)?;
    let request = match request {
        RequestData::Owned(buffer) => buffer,
        RequestData::Lent(bytes) => {
            let full = AllocError::ArenaFull { asked, capacity: shared.arena.capacity() };
            let mut copy = servers.alloc(shared, asked, data_per_packet).ok_or(full)?;
            copy.fill(bytes)?;
            copy
        }
    };
    Ok(DeferredCall {
        call: call.id,
        request_type: call.location.request_type,
        request: Some(request),
        share: Some(share),
        abandoned,
        deadline_ns,
        returns: Arc::clone(&servers.answer_queue),
        arena: shared.arena.clone(),
        data_per_packet,
        answered: false,
    })
}

/// One request of a [`BurstCalls`].
pub(crate) struct BurstEntry<'a> {
    pub call: RunningCall,
    pub request: RequestData<'a>,
}

/// All requests of one type in a received burst, handled together so that their memory accesses can overlap.
///
/// Requests that the handler leaves unanswered get [`crate::Cause::HandlerDropped`].
pub struct BurstCalls<'a, 'b> {
    core: &'a mut Core,
    entries: &'a [BurstEntry<'b>],
    /// The requests without an answer, one bit each.
    unanswered: u64,
}
const _: () = assert!(MAX_BURST <= u64::BITS as usize);

impl<'a, 'b> BurstCalls<'a, 'b> {
    /// Takes at least one request, and at most [`MAX_BURST`].
    pub(crate) fn new(core: &'a mut Core, entries: &'a [BurstEntry<'b>]) -> Self {
        Self { core, entries, unanswered: u64::MAX >> (u64::BITS as usize - entries.len()) }
    }

    #[inline(always)]
    fn is_answered(&self, index: usize) -> bool {
        self.unanswered & 1 << index == 0
    }

    #[inline(always)]
    fn note_answered(&mut self, index: usize) {
        self.unanswered &= !(1 << index);
    }

    /// Number of requests; at least one.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The time of this turn of the endpoint's loop: see [`Call::now_ns`].
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.core.shared.now_ns
    }

    /// Request `index`. It stays readable while calls are being answered.
    ///
    /// # Panics
    ///
    /// When there is no such request.
    #[inline]
    pub fn request(&self, index: usize) -> &'a [u8] {
        &self.entries[index].request
    }

    /// Answers request `index` with these bytes. The first answer counts.
    ///
    /// # Panics
    ///
    /// When there is no such request.
    #[inline(always)]
    pub fn reply(&mut self, index: usize, response: &[u8]) {
        self.reply_with(index, response.len(), |target| sinew_mem::copy_small(target, response));
    }

    /// Answers request `index` with `len` bytes, which `write` fills in where they will be sent from. Before that their
    /// contents are unspecified.
    ///
    /// # Panics
    ///
    /// When there is no such request.
    #[inline(always)]
    pub fn reply_with(&mut self, index: usize, len: usize, write: impl FnOnce(&mut [u8])) {
        let entry = &self.entries[index];
        if !self.is_answered(index) {
            self.core.servers.answer_with(&mut self.core.shared, entry.call, len, write);
            // Noted afterwards: if `write` panics, the request is still unanswered.
            self.note_answered(index);
        }
    }

    /// Answers request `index` with as many bytes as `write` fills in and returns, in the buffer of an earlier answer,
    /// where there is one. It gets the whole of that buffer, whose contents are unspecified, and returns `None` if the
    /// answer does not fit. So an answer can be written before its length is known. Returns whether the request is
    /// answered; if not, it must be answered in another way.
    ///
    /// # Panics
    ///
    /// When there is no such request.
    #[inline(always)]
    pub fn reply_if_room(&mut self, index: usize, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let entry = &self.entries[index];
        if self.is_answered(index) {
            return true;
        }
        let is_answered = self.core.servers.answer_in_place(&mut self.core.shared, entry.call, write);
        if is_answered {
            self.note_answered(index);
        }
        is_answered
    }

    /// Answers request `index` with up to `max` bytes; see [`Call::reply_up_to`].
    ///
    /// # Panics
    ///
    /// When there is no such request.
    pub fn reply_up_to(&mut self, index: usize, max: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        let entry = &self.entries[index];
        if !self.is_answered(index) {
            self.core.servers.answer_up_to(&mut self.core.shared, entry.call.id, max, write);
            self.note_answered(index);
        }
    }

    /// Answers request `index` with a buffer from [`Self::alloc`], without a copy.
    ///
    /// # Panics
    ///
    /// When there is no such request.
    pub fn reply_buffer(&mut self, index: usize, response: MessageBuffer) {
        let entry = &self.entries[index];
        if !self.is_answered(index) {
            self.note_answered(index);
            self.core.servers.answer_buffer(&mut self.core.shared, entry.call.id, response);
        }
    }

    /// Allocates a message buffer of `len` bytes from the endpoint's arena.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.core.shared.alloc(len)
    }

    /// Calls another server from within these calls; see [`Call::enqueue_request`].
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the buffers.
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: impl Into<CallOptions>,
    ) -> Result<CallId, Rejected> {
        self.core.enqueue(session, request_type, request, response, options.into())
    }

    /// The client that made request `index`.
    ///
    /// # Panics
    ///
    /// When there is no such request.
    #[inline]
    pub fn client(&self, index: usize) -> ClientId {
        ClientId(self.entries[index].call.id.key.0)
    }

    /// The session over which a client that accepts calls can be called; see [`crate::Rpc::session_to`].
    ///
    /// # Errors
    ///
    /// [`CallBackError`].
    pub fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError> {
        self.core.servers.session_to(client)
    }

    /// The time until which the caller of request `index` waits, on the endpoint's clock; `None` if the caller gave
    /// none.
    ///
    /// # Panics
    ///
    /// When there is no such request.
    pub fn deadline_ns(&self, index: usize) -> Option<u64> {
        self.core.servers.deadline_in_burst_ns(self.entries[index].call.id)
    }

    /// Keeps request `index`, to be answered later.
    ///
    /// # Errors
    ///
    /// As for [`Call::defer`], and also when the client no longer waits, because in the same burst it ended the
    /// session, cancelled the call or gave its slot to another call.
    ///
    /// # Panics
    ///
    /// When there is no such request, or it was answered already.
    pub fn defer(&mut self, index: usize) -> Result<DeferredCall, AllocError> {
        let entry = &self.entries[index];
        assert!(!self.is_answered(index), "request {index} was answered already");
        self.note_answered(index);
        let deadline_ns = self.core.servers.deadline_in_burst_ns(entry.call.id);
        keep(self.core, entry.call, deadline_ns, RequestData::Lent(&entry.request)).inspect_err(|_| {
            self.core.servers.answer_error(&mut self.core.shared, entry.call.id, ErrorCode::NoMemory);
        })
    }
}

impl BurstCalls<'_, '_> {
    /// Answers the requests that the handler did not.
    #[cold]
    #[inline(never)]
    fn answer_rest(&mut self) {
        for (index, entry) in self.entries.iter().enumerate() {
            if !self.is_answered(index) {
                self.core.servers.answer_error(&mut self.core.shared, entry.call.id, code_of_drop());
            }
        }
    }
}

impl Drop for BurstCalls<'_, '_> {
    fn drop(&mut self) {
        if self.unanswered != 0 {
            self.answer_rest();
        }
    }
}

/// A request that outlives its handler, and can be answered later and from any thread. Worker handlers get their
/// requests in this form, and so does [`crate::Rpc::poll_request`]. On the endpoint's own thread [`crate::Rpc::reply`]
/// is the quicker way to answer it. If the answer needs further calls, other threads make them through a handle
/// ([`EndpointInfo::remote_handle`](crate::EndpointInfo::remote_handle)).
///
/// Dropping it answers its client with an error, as for [`Call`].
pub struct DeferredCall {
    call: ServerCallId,
    request_type: RequestType,
    request: Option<MessageBuffer>,
    /// Dropped after the buffer that it counts, since it is declared after it.
    share: Option<Share>,
    abandoned: Abandoned,
    deadline_ns: Option<u64>,
    returns: Arc<AnswerQueue>,
    arena: Arena,
    /// Data per packet in the layout of the endpoint's buffers, in bytes.
    data_per_packet: usize,
    answered: bool,
}

impl DeferredCall {
    /// The request.
    pub fn request(&self) -> &[u8] {
        self.request.as_deref().unwrap_or_default()
    }

    /// The type of the request.
    pub fn request_type(&self) -> RequestType {
        self.request_type
    }

    /// The client that made the call. It may have gone by now.
    pub fn client(&self) -> ClientId {
        ClientId(self.call.key.0)
    }

    /// The time until which the caller waits, on the endpoint's clock; `None` if the caller gave none.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Whether nobody waits for the answer any more: the client cancelled the call, its deadline has passed, its
    /// session ended, or its slot has a later call. This is a hint, which the endpoint's loop updates while it turns;
    /// an answer is still allowed, and is discarded.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.is_set()
    }

    /// Answers with these bytes. The request's buffer is reused if it is large enough.
    pub fn reply(mut self, response: &[u8]) {
        let reusable = self.request.take().filter(|buffer| buffer.capacity() >= response.len());
        let buffer = match reusable {
            Some(buffer) => Ok(buffer),
            None => self.arena.alloc(response.len(), response.len().max(1)),
        };
        let answer = buffer.and_then(|mut buffer| buffer.fill(response).map(|()| buffer));
        self.finish(answer.map_err(|_| ErrorCode::NoMemory));
    }

    /// Answers with up to `max` bytes: `write` gets the request and a buffer of `max` bytes, whose contents are
    /// unspecified before, and returns the length of the answer. A length over `max` counts as `max`.
    pub fn reply_up_to(mut self, max: usize, write: impl FnOnce(&[u8], &mut [u8]) -> usize) {
        let answer = self.alloc(max).and_then(|mut buffer| {
            let len = write(self.request(), &mut buffer).min(max);
            buffer.resize(len).map(|()| buffer)
        });
        self.finish(answer.map_err(|_| ErrorCode::NoMemory));
    }

    /// Answers with a buffer from [`Self::alloc`]. It is not copied if it is laid out for the session's packets.
    pub fn reply_buffer(mut self, response: MessageBuffer) {
        self.finish(Ok(response));
    }

    /// Allocates a message buffer of `len` bytes from the endpoint's arena; any thread may do so.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(len, self.data_per_packet)
    }

    /// Answers with the request's own buffer, as changed through [`Self::request_mut`].
    pub fn reply_in_place(mut self) {
        match self.request.take() {
            Some(buffer) => self.finish(Ok(buffer)),
            None => self.finish(Err(ErrorCode::Dropped)),
        }
    }

    /// The request's buffer, so that it can be changed in place.
    pub fn request_mut(&mut self) -> Option<&mut MessageBuffer> {
        self.request.as_mut()
    }

    fn finish(&mut self, answer: Result<MessageBuffer, ErrorCode>) {
        self.answered = true;
        self.returns.push(Answer { call: self.call, answer, share: self.share.take() });
    }

    pub(crate) fn name(&self) -> ServerCallId {
        self.call
    }

    pub(crate) fn begin_waiting(&mut self) {
        self.share.iter().for_each(Share::begin_waiting);
    }

    pub(crate) fn end_waiting(&mut self) {
        self.share.iter().for_each(Share::end_waiting);
    }

    /// Drops the call without an answer, because nobody waits for one.
    pub(crate) fn forget(mut self) {
        self.answered = true;
    }

    /// Answers a call on an endpoint's thread: at once if it is this endpoint's call, else through the queue of its own
    /// endpoint.
    pub(crate) fn reply_at(mut self, core: &mut Core, len: usize, write: impl FnOnce(&[u8], &mut [u8])) {
        let Core { shared, servers, .. } = core;
        if !Arc::ptr_eq(&self.returns, &servers.answer_queue) {
            let answer = self.arena.alloc(len, len.max(1)).map(|mut buffer| {
                write(self.request(), &mut buffer);
                buffer
            });
            return self.finish(answer.map_err(|_| ErrorCode::NoMemory));
        }
        // From here on the memory is charged to its slot.
        self.share = None;
        let request = self.request.as_deref().unwrap_or_default();
        servers.answer_kept_call(shared, self.call, len, |response| write(request, response));
        // Set afterwards: if `write` panics, the call is still unanswered.
        self.answered = true;
    }

    /// Reports to the client that there was no worker for the call.
    pub(crate) fn refuse(mut self) {
        self.finish(Err(ErrorCode::Busy));
    }
}

impl Drop for DeferredCall {
    fn drop(&mut self) {
        if !self.answered {
            self.returns.push(Answer { call: self.call, answer: Err(code_of_drop()), share: None });
        }
    }
}

impl std::fmt::Debug for DeferredCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredCall").field("request_type", &self.request_type).finish_non_exhaustive()
    }
}
