//! Clients of an endpoint: their coming and leaving, and calls back to them.

use sinew_fabric::{Clock, PacketPort};

use super::Rpc;
use crate::error::CallBackError;
use crate::events::ClientEvent;
use crate::names::{ClientId, SessionId};

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// Returns the session over which a client can be called back. Calls go over it as over any other session
    /// ([`Self::enqueue_request`], [`Self::call`]), with deadlines, lanes and cancellation. It was opened with the
    /// client's own session ([`ConnectOptions::call_back`](crate::ConnectOptions::call_back)) and ends with it: it has
    /// no [`SessionEvent`](crate::SessionEvent), but [`Self::poll_client_event`] reports its end. Disconnecting it
    /// [dismisses](Self::dismiss) the client. On the client's side, the [client](crate::Call::client) of such a call is
    /// the server, and this method returns the session that the client itself has opened.
    ///
    /// # Errors
    ///
    /// [`CallBackError`]: the client has left, or accepts no calls.
    pub fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError> {
        self.core.servers.session_to(client)
    }

    /// Returns the next client that came or left, if [`Config::client_events`](crate::Config::client_events) is set. A
    /// client that leaves before its coming was reported is not reported at all. So there are at most two events for
    /// each session, however late they are taken.
    pub fn poll_client_event(&mut self) -> Option<ClientEvent> {
        self.core.servers.poll_client_event()
    }

    /// Ends a client's session. Its calls complete with [`Cause::PeerClosed`](crate::Cause::PeerClosed) there; calls
    /// back to it complete with [`Cause::Disconnected`](crate::Cause::Disconnected) here. Returns whether the client
    /// had a session.
    pub fn dismiss(&mut self, client: ClientId) -> bool {
        self.wake_sleeper();
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        self.sessions.dismiss(&mut self.core, client)
    }
}
