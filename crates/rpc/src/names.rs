//! What calls and sessions are called, and what a call ends as.

use sinew_mem::MessageBuffer;
use sinew_wire::SessionKey;

use crate::error::CallError;

/// A session as its client names it. Never reused: a session that is gone is known to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u64);

impl SessionId {
    pub(crate) fn key(self) -> SessionKey {
        SessionKey(self.0)
    }
}

/// What a request asks for: the number under which the server registered a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestType(u16);

impl RequestType {
    /// The type with this number.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// A call that is over: its buffers come back.
#[derive(Debug)]
pub struct Completion {
    /// The session it went over.
    pub session: SessionId,
    /// The tag it was given.
    pub tag: u64,
    /// Whether there is a response.
    pub result: Result<(), CallError>,
    /// The request's buffer.
    pub request: MessageBuffer,
    /// The response, when there is one. A larger buffer than was passed in, where the response needed it.
    pub response: MessageBuffer,
    /// Whose it was, of those that use the endpoint.
    pub(crate) lane: u8,
}
