//! What becomes of sessions.

use std::sync::Arc;

use crate::error::{Cause, ConnectError};
use crate::names::SessionId;

/// Something that happened to a session of ours.
#[derive(Debug)]
pub enum SessionEvent {
    /// It is open; queued calls are on their way.
    Connected(SessionId),
    /// It could not be opened.
    ConnectFailed {
        /// Which.
        session: SessionId,
        /// Why.
        error: ConnectError,
    },
    /// It is gone; its calls have completed with an error.
    Lost {
        /// Which.
        session: SessionId,
        /// Whom it was with.
        peer: Arc<str>,
        /// Why.
        cause: Cause,
    },
    /// It ended as asked.
    Disconnected(SessionId),
}

impl SessionEvent {
    /// Which session it happened to.
    pub fn session(&self) -> SessionId {
        match self {
            Self::Connected(session) | Self::Disconnected(session) => *session,
            Self::ConnectFailed { session, .. } | Self::Lost { session, .. } => *session,
        }
    }
}
