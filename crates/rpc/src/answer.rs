//! Data that passes between the server's half of the protocol and the handlers: requests, and the routes by which
//! answers come back.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinew_fabric::Waker;
use sinew_mem::MessageBuffer;
use sinew_mem::atomic::{AtomicBool, Ordering};
use sinew_wire::SessionKey;

use crate::error::{Cause, Execution};
use crate::names::RequestType;
use crate::peers::Share;
use crate::table::SlotId;

/// Name of a call at its server, while it is unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerCallId {
    pub key: SessionKey,
    pub number: u64,
}

/// Location and type of a call.
#[derive(Clone, Copy)]
pub(crate) struct SlotLocation {
    /// By the time of a late answer this slot may be another call's.
    pub slot: SlotId,
    pub request_type: RequestType,
    /// Longest answer that goes into the slot's own buffer, if there is one and the answer is given at once, in bytes.
    pub own_len_max: u16,
}

/// A call whose handler is running.
#[derive(Clone, Copy)]
pub(crate) struct RunningCall {
    pub id: ServerCallId,
    pub location: SlotLocation,
}

/// A request's bytes: where they were received, or in a buffer of their own.
pub(crate) enum RequestData<'a> {
    Lent(&'a [u8]),
    Owned(MessageBuffer),
}

impl Deref for RequestData<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Owned(buffer) => buffer,
        }
    }
}

/// A complete request, for its handler.
pub(crate) struct ReadyRequest<'a> {
    pub call: RunningCall,
    pub request: RequestData<'a>,
}

/// Reason why a call gets no response, as it is encoded on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ErrorCode {
    NoHandler = 1,
    Dropped = 2,
    Panicked = 3,
    Busy = 4,
    ResponseTooLarge = 5,
    /// As `Busy`, but there was no memory for the answer: the handler ran.
    NoMemory = 6,
    /// A later request was seen in the call's slot.
    Overtaken = 7,
    /// The request is larger than a peer's share.
    RequestTooLarge = 8,
    /// The deadline that came with the request has passed.
    DeadlinePassed = 9,
    /// As `DeadlinePassed`, but before the handler had the request.
    ExpiredOnArrival = 10,
    /// The caller cancelled the call.
    Cancelled = 11,
}

impl ErrorCode {
    pub fn from_wire(code: u32) -> Option<Self> {
        [
            Self::NoHandler,
            Self::Dropped,
            Self::Panicked,
            Self::Busy,
            Self::ResponseTooLarge,
            Self::NoMemory,
            Self::Overtaken,
            Self::RequestTooLarge,
            Self::DeadlinePassed,
            Self::ExpiredOnArrival,
            Self::Cancelled,
        ]
        .into_iter()
        .find(|&known| known as u32 == code)
    }

    pub fn meaning(self) -> (Cause, Execution) {
        match self {
            Self::NoHandler => (Cause::NoHandler, Execution::NotRun),
            Self::Dropped => (Cause::HandlerDropped, Execution::MayHaveRun),
            Self::Panicked => (Cause::HandlerPanicked, Execution::MayHaveRun),
            Self::Busy => (Cause::ServerBusy, Execution::NotRun),
            Self::ResponseTooLarge => (Cause::ResponseTooLarge, Execution::MayHaveRun),
            Self::NoMemory => (Cause::ServerBusy, Execution::MayHaveRun),
            Self::Overtaken => (Cause::Overtaken, Execution::MayHaveRun),
            Self::RequestTooLarge => (Cause::RequestTooLarge, Execution::NotRun),
            Self::DeadlinePassed => (Cause::DeadlinePassed, Execution::MayHaveRun),
            Self::ExpiredOnArrival => (Cause::DeadlinePassed, Execution::NotRun),
            Self::Cancelled => (Cause::Cancelled, Execution::MayHaveRun),
        }
    }
}

/// The answer of a handler that kept the request, and the share of memory that counts for the peer until the endpoint
/// has the answer.
pub(crate) struct Answer {
    pub call: ServerCallId,
    pub answer: Result<MessageBuffer, ErrorCode>,
    pub share: Option<Share>,
}

/// Answers that the endpoint has not taken yet.
#[derive(Default)]
struct AnswerQueueState {
    answers: Vec<Answer>,
    /// Whether the endpoint is gone.
    is_closed: bool,
}

/// The route by which other threads return answers to an endpoint.
pub(crate) struct AnswerQueue {
    /// Whether answers, or a queue beside them, may hold something, so that the endpoint is mostly spared the locks.
    /// Set after a push; partner of the swap in `take`.
    filled: AtomicBool,
    state: Mutex<AnswerQueueState>,
    waker: Waker,
    /// Whether an answer must arrive with the wake-up, not before.
    in_virtual_time: bool,
}

impl AnswerQueue {
    pub fn new(waker: Waker) -> Self {
        let in_virtual_time = waker.is_in_virtual_time();
        Self { filled: AtomicBool::new(false), state: Mutex::default(), waker, in_virtual_time }
    }

    fn lock_state(&self) -> MutexGuard<'_, AnswerQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint's waker if it is in virtual time, where changes that others are to see take effect through it.
    pub fn virtual_waker(&self) -> Option<Waker> {
        self.in_virtual_time.then(|| self.waker.clone())
    }

    pub fn push(self: &Arc<Self>, answer: Answer) {
        if self.in_virtual_time {
            let queue = Arc::clone(self);
            self.waker.wake_with(Box::new(move || _ = queue.enqueue(answer)));
        } else if self.enqueue(answer) {
            self.waker.wake();
        }
    }

    /// Returns whether the endpoint must be woken, because nothing was there before.
    fn enqueue(&self, answer: Answer) -> bool {
        {
            let mut state = self.lock_state();
            if state.is_closed {
                return false;
            }
            state.answers.push(answer);
        }
        self.mark_filled()
    }

    /// Notes that there is something in a queue beside the answers. Returns whether nothing was there before.
    pub fn mark_filled(&self) -> bool {
        !self.filled.swap(true, Ordering::AcqRel)
    }

    /// Runs `put`, which puts something into a queue beside the answers, and wakes the endpoint, which finds it in its
    /// next turn.
    pub fn put_in_other_queue(self: &Arc<Self>, put: impl FnOnce() + Send + 'static) {
        if self.in_virtual_time {
            let queue = Arc::clone(self);
            self.waker.wake_with(Box::new(move || {
                put();
                queue.mark_filled();
            }));
        } else {
            put();
            if self.mark_filled() {
                self.waker.wake();
            }
        }
    }

    #[inline]
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> Vec<Answer> {
        // First the flag, then the answers: an answer that comes in between is either taken now, or sets the flag
        // again.
        self.filled.swap(false, Ordering::AcqRel);
        std::mem::take(&mut self.lock_state().answers)
    }

    /// Gives the emptied vector back, so that the next answers need not allocate.
    pub fn recycle(&self, emptied: Vec<Answer>) {
        let answers = &mut self.lock_state().answers;
        if answers.capacity() == 0 {
            *answers = emptied;
        }
    }

    /// Closes this route, because the endpoint is being dropped: frees the answers that it has not taken, and any that
    /// still come.
    pub fn close(&self) {
        let left = {
            let mut state = self.lock_state();
            state.is_closed = true;
            std::mem::take(&mut state.answers)
        };
        drop(left);
    }
}
