//! What calls and sessions are called, and what a call ends as.

use sinew_mem::MessageBuffer;
use sinew_wire::SessionKey;

use crate::error::CallError;
pub use crate::request_type::RequestType;

/// A session as its client names it. Never reused: a session that is gone is known to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u64);

impl SessionId {
    pub(crate) fn key(self) -> SessionKey {
        SessionKey(self.0)
    }
}

/// A client as its server sees it: one session that the client has with this endpoint. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub(crate) u64);

impl ClientId {
    #[inline(always)]
    pub(crate) fn key(self) -> SessionKey {
        SessionKey(self.0)
    }
}

/// A session's slots: calls that it takes at once; further ones wait in its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSlots {
    /// Not used now: so many calls would not wait.
    pub free: u16,
    /// As granted; 0 while the session is being opened.
    pub all: u16,
}

/// A call, as its caller names it: from the moment when it is taken until its completion. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    pub(crate) session: SessionId,
    /// The request's number on its session; of a call that had to wait, that of its place in the queue.
    pub(crate) number: u64,
}

impl CallId {
    /// The session that it goes over.
    pub const fn session(self) -> SessionId {
        self.session
    }
}

/// A call that is over: its buffers come back.
#[derive(Debug)]
pub struct Completion {
    /// The session it went over.
    pub session: SessionId,
    pub(crate) number: u64,
    /// The tag it was given.
    pub tag: u64,
    /// Whether there is a response.
    pub result: Result<(), CallError>,
    /// The request's buffer.
    pub request: MessageBuffer,
    /// The response, when there is one. A larger buffer than was passed in, where the response needed it.
    pub response: MessageBuffer,
}

impl Completion {
    /// The name that the call was given when it was taken.
    #[inline]
    pub fn id(&self) -> CallId {
        CallId { session: self.session, number: self.number }
    }
}
