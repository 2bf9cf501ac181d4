//! Events of sessions, seen from either side.

use std::sync::Arc;

use crate::error::{Cause, ConnectError};
use crate::names::{ClientId, SessionId};

/// An event of a session that this endpoint opened.
#[derive(Debug)]
pub enum SessionEvent {
    /// The session is open; queued calls are under way.
    Connected(SessionId),
    /// The session could not be opened.
    ConnectFailed {
        /// The session.
        session: SessionId,
        /// Reason for the failure.
        error: ConnectError,
    },
    /// The session was lost; its calls have completed with an error.
    Lost {
        /// The session.
        session: SessionId,
        /// The server of the session.
        peer: Arc<str>,
        /// Reason for the loss.
        cause: Cause,
    },
    /// The session was ended from this side.
    Disconnected(SessionId),
}

impl SessionEvent {
    /// The session that the event is about.
    pub fn session(&self) -> SessionId {
        match self {
            Self::Connected(session) | Self::Disconnected(session) => *session,
            Self::ConnectFailed { session, .. } | Self::Lost { session, .. } => *session,
        }
    }
}

/// A client of this endpoint came or left ([`crate::Config::client_events`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The client opened a session with this endpoint.
    Came(ClientId),
    /// The client's session has ended. Calls of it that handlers still hold are abandoned, and calls back to it have
    /// completed with an error.
    Left {
        /// The client.
        client: ClientId,
        /// Reason: [`Cause::PeerClosed`] if the client disconnected, [`Cause::Disconnected`] if it was dismissed here.
        cause: Cause,
    },
}

impl ClientEvent {
    /// The client that the event is about.
    pub fn client(&self) -> ClientId {
        match self {
            Self::Came(client) | Self::Left { client, .. } => *client,
        }
    }
}
