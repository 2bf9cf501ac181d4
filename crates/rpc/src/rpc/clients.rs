//! Clients of an endpoint: who comes and goes, and calls back to them.

use sinew_fabric::{Clock, PacketPort};

use super::Rpc;
use crate::error::CallBackError;
use crate::events::ClientEvent;
use crate::names::{ClientId, SessionId};

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// The session over which a client is called back: calls go over it as over any other session ([`Self::enqueue_request`],
    /// [`Self::call`]), with the deadlines, lanes and cancellations of any call. It was opened with the client's own
    /// ([`ConnectOptions::call_back`](crate::ConnectOptions::call_back)) and ends with it: no [`SessionEvent`](crate::SessionEvent) tells of it,
    /// but [`Self::poll_client_event`] does. To disconnect it is to [dismiss](Self::dismiss) the client. At the client's side, where the server
    /// of such a call is the [client](crate::Call::client) of it, it is the session that the client has opened.
    ///
    /// # Errors
    ///
    /// [`CallBackError`]: no such client any more, or it takes no calls.
    pub fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError> {
        self.core.servers.session_to(client)
    }

    /// The next client that came or went, if [`Config::client_events`](crate::Config::client_events) asks for that. A client that went before it
    /// was told of here is never told of. So there are at most two events for each session, however late they are taken.
    pub fn poll_client_event(&mut self) -> Option<ClientEvent> {
        self.core.servers.poll_client_event()
    }

    /// Ends a client's session. Its calls complete with [`Cause::PeerClosed`](crate::Cause::PeerClosed) there, calls back to it with
    /// [`Cause::Disconnected`](crate::Cause::Disconnected) here. Returns whether there was such a client.
    pub fn dismiss(&mut self, client: ClientId) -> bool {
        self.wake_sleeper();
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        self.sessions.dismiss(&mut self.core, client)
    }
}
