//! Names of sessions and calls, and the completion of a call.
//!
//! A call has a name, a `CallId`: its session, and its number on that session. A call that waits for a slot goes by its
//! place in a pool of such calls instead, until it is over. So cancelling takes constant time wherever the call is, and
//! a name never comes to mean another call. The server is told of a cancellation as a hint: one that overtakes its
//! request is ignored, and a handler that runs is not stopped. A handler that keeps a call can ask whether anybody
//! still waits for it (`DeferredCall::is_abandoned`), and workers do not begin requests for which nobody waits.

use sinew_mem::MessageBuffer;
use sinew_wire::SessionKey;

use crate::error::CallError;
pub use crate::request_type::RequestType;

/// A session's name at its client. Names are never reused: that of a session which has ended finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u64);

impl SessionId {
    pub(crate) fn key(self) -> SessionKey {
        SessionKey(self.0)
    }
}

/// A client's name at its server: one session that the client has with this endpoint. Names are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub(crate) u64);

impl ClientId {
    #[inline(always)]
    pub(crate) fn key(self) -> SessionKey {
        SessionKey(self.0)
    }
}

/// A session's slots: the calls that it can carry at once. Further calls wait in its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSlots {
    /// Slots that are free now: that many further calls would not wait.
    pub free: u16,
    /// Slots that the server granted; 0 while the session is being opened.
    pub all: u16,
}

/// A call's name at its caller, valid from the moment when the call is accepted until its completion. Names are never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    pub(crate) session: SessionId,
    /// The request's number on its session; for a call that had to wait, the number of its place in the queue.
    pub(crate) number: u64,
}

impl CallId {
    /// The session that carries the call.
    pub const fn session(self) -> SessionId {
        self.session
    }
}

/// A finished call, which gives its buffers back.
#[derive(Debug)]
pub struct Completion {
    /// The session that carried the call.
    pub session: SessionId,
    pub(crate) number: u64,
    /// The tag that the caller gave it.
    pub tag: u64,
    /// `Ok` if there is a response, else the reason why there is none.
    pub result: Result<(), CallError>,
    /// The request's buffer.
    pub request: MessageBuffer,
    /// The response, if there is one. This is a larger buffer than the one passed in where the response needed it.
    pub response: MessageBuffer,
}

impl Completion {
    /// The name that the call was given when it was accepted.
    #[inline]
    pub fn id(&self) -> CallId {
        CallId { session: self.session, number: self.number }
    }
}
