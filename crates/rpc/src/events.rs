//! What becomes of sessions.

use std::sync::Arc;

use crate::error::{Cause, ConnectError};
use crate::names::{ClientId, SessionId};

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

/// A client of this endpoint came or went ([`crate::Config::client_events`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// It has a session with this endpoint.
    Came(ClientId),
    /// Its session is gone. Calls that handlers keep for it are abandoned, calls back to it have completed with an error.
    Left {
        /// Which.
        client: ClientId,
        /// Why: [`Cause::PeerClosed`] when it disconnected, [`Cause::Disconnected`] when it was dismissed here.
        cause: Cause,
    },
}

impl ClientEvent {
    /// Which client it is about.
    pub fn client(&self) -> ClientId {
        match self {
            Self::Came(client) | Self::Left { client, .. } => *client,
        }
    }
}
