//! Channels: several sessions with one server, for many calls in flight.
//!
//! A channel is a list of session names. For each call it asks the endpoint whether a session still exists, and how
//! many of its slots are free. It keeps no copy of this, which could go stale, so others may open, end or lose sessions
//! meanwhile. Calls go to the sessions in turn, skipping those without a free slot. While a channel opens, it takes the
//! events of its own sessions out of order (`take_session_event`), and leaves all others alone.

use sinew_fabric::Address;
use sinew_mem::MessageBuffer;

use crate::endpoint::Endpoint;
use crate::error::{ChannelError, ConnectError, EnqueueError, Rejected};
use crate::events::SessionEvent;
use crate::names::{CallId, RequestType, SessionId, SessionSlots};
use crate::options::{CallOptions, ConnectOptions};

/// The most rounds of opening sessions: another round begins when a session is lost while others open. A server that
/// restarts loses all sessions it had before; a server that keeps losing sessions is not worth waiting for.
const ROUNDS_MAX: u32 = 3;

/// A connection to one server that can have a given number of calls in flight, over as many sessions as that needs.
///
/// A session has at most [`Config::slots`](crate::Config::slots) slots, and fewer where the server grants fewer;
/// further calls wait in its queue. A channel opens sessions until they have enough slots, and gives each call to a
/// session that has room, in turn. One method, [`Self::reconnect`], replaces sessions that have ended. The channel
/// holds only the names of the sessions: they belong to the endpoint, calls complete on the lane that their options
/// name, and the sessions' events go to their lane as usual.
///
/// ```no_run
/// use sinew_rpc::{Channel, Endpoint, RequestType};
///
/// const SHOUT: RequestType = RequestType::new(1);
///
/// fn shout(endpoint: &mut dyn Endpoint) -> Result<(), Box<dyn std::error::Error>> {
///     let mut channel = Channel::open(endpoint, "udp://10.0.0.1:7000", 64)?;
///     for tag in 0..64 {
///         let (mut request, response) = (endpoint.alloc(5)?, endpoint.alloc(5)?);
///         request.fill(b"hello")?;
///         channel.enqueue_request(endpoint, SHOUT, request, response, tag)?;
///     }
///     // ... turn the endpoint, and take 64 completions. The server was started again meanwhile:
///     channel.reconnect(endpoint)?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "its sessions stay open until it is closed"]
pub struct Channel {
    address: Address,
    options: ConnectOptions,
    calls: usize,
    /// Calls take these in turn.
    sessions: Vec<SessionId>,
    next: usize,
}

/// State of a channel's sessions; see [`Channel::status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStatus {
    /// Sessions that are open.
    pub open: usize,
    /// Sessions that are being opened.
    pub opening: usize,
    /// Sessions that have ended and were not replaced.
    pub gone: usize,
    /// Slots of the open sessions: the calls that these can carry at once.
    pub slots: usize,
}

impl Channel {
    /// Opens a channel for `calls` calls in flight, turning the endpoint until all sessions are open. Where the server
    /// grants fewer slots than this endpoint asks for, the channel opens more sessions.
    ///
    /// # Errors
    ///
    /// [`ChannelError`] when `calls` is 0, when it takes more sessions than
    /// [`Config::sessions_max`](crate::Config::sessions_max), or when a session could not be opened. In the last case
    /// the sessions that did open are closed again, and [`SessionEvent::Disconnected`] is their only event.
    pub fn open<E: Endpoint + ?Sized>(endpoint: &mut E, address: &str, calls: usize) -> Result<Self, ChannelError> {
        Self::open_with(endpoint, address, calls, ConnectOptions::new())
    }

    /// As [`Self::open`], with options for all of its sessions.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub fn open_with<E: Endpoint + ?Sized>(
        endpoint: &mut E,
        address: &str,
        calls: usize,
        options: ConnectOptions,
    ) -> Result<Self, ChannelError> {
        let address = address.parse().map_err(sinew_fabric::PortError::from).map_err(ConnectError::from)?;
        let mut channel = Self::begin_open(endpoint, &address, calls, options)?;
        match channel.finish(endpoint) {
            Ok(()) => Ok(channel),
            Err(error) => {
                channel.discard(endpoint);
                Err(error)
            }
        }
    }

    /// Begins to open a channel, without waiting. Calls can be enqueued at once, and leave when their sessions are
    /// open. [`Self::poll`] continues the opening.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`], except for refusals by the server, which [`Self::poll`] reports.
    pub fn begin_open<E: Endpoint + ?Sized>(
        endpoint: &mut E,
        address: &Address,
        calls: usize,
        options: ConnectOptions,
    ) -> Result<Self, ChannelError> {
        if calls == 0 {
            return Err(ChannelError::NoCalls);
        }
        let (slots, sessions_max) = (usize::from(endpoint.config().slots), endpoint.config().sessions_max);
        let sessions = calls.div_ceil(slots);
        if sessions > sessions_max {
            return Err(ChannelError::Sessions { calls, sessions, limit: sessions_max });
        }
        let mut channel =
            Self { address: address.clone(), options, calls, sessions: Vec::with_capacity(sessions), next: 0 };
        for _ in 0..sessions {
            match endpoint.begin_connect_with(&channel.address, options) {
                Ok(session) => channel.sessions.push(session),
                Err(error) => {
                    channel.discard(endpoint);
                    return Err(error.into());
                }
            }
        }
        Ok(channel)
    }

    /// Address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Calls in flight that the channel was opened for.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// The channel's sessions, including those that have ended.
    pub fn sessions(&self) -> &[SessionId] {
        &self.sessions
    }

    /// Returns the present state of its sessions.
    pub fn status<E: Endpoint + ?Sized>(&self, endpoint: &E) -> ChannelStatus {
        let mut status = ChannelStatus::default();
        for session in &self.sessions {
            match endpoint.session_slots(*session) {
                None => status.gone += 1,
                Some(slots) if slots.all == 0 => status.opening += 1,
                Some(slots) => {
                    status.open += 1;
                    status.slots += usize::from(slots.all);
                }
            }
        }
        status
    }

    /// Gives a call to the next session that has room. If none has, it goes to the next session that has not ended, and
    /// waits in its queue; see [`crate::Rpc::enqueue_request`].
    ///
    /// # Errors
    ///
    /// [`Rejected`], with both buffers. The error is
    /// [`EnqueueError::NoSuchSession`](crate::EnqueueError::NoSuchSession) when all sessions have ended; then call
    /// [`Self::reconnect`].
    // The error is as large as what it gives back, and boxing it would allocate.
    #[allow(clippy::result_large_err)]
    pub fn enqueue_request<E: Endpoint + ?Sized>(
        &mut self,
        endpoint: &mut E,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: impl Into<CallOptions>,
    ) -> Result<CallId, Rejected> {
        let index = self.session_with_room(endpoint);
        self.next = if index + 1 == self.sessions.len() { 0 } else { index + 1 };
        endpoint.enqueue_request(self.sessions[index], request_type, request, response, options.into())
    }

    /// Returns the place of the session that gets the next call.
    fn session_with_room<E: Endpoint + ?Sized>(&self, endpoint: &E) -> usize {
        let mut full = None;
        for index in (self.next..self.sessions.len()).chain(0..self.next) {
            match endpoint.session_slots(self.sessions[index]) {
                Some(slots) if slots.free > 0 => return index,
                Some(_) if full.is_none() => full = Some(index),
                _ => {}
            }
        }
        full.unwrap_or(self.next)
    }

    /// Replaces the sessions that have ended with new ones to the same address, turning the endpoint until they are
    /// open. This is the one method to call after a server has restarted. Calls that were in flight have completed with
    /// an error that says whether they may have run; none is retransmitted. Returns the number of sessions that were
    /// opened, 0 if none had ended.
    ///
    /// The endpoint may not have noticed yet that a server died and restarted. So if no session is known to have ended,
    /// one more is opened and closed, and from its answer the endpoint learns which server is there now. Where there is
    /// no room for one more, it learns nothing. Sessions that turn out to have ended while others open are replaced
    /// too.
    ///
    /// # Errors
    ///
    /// [`ChannelError`] when a session could not be opened. The channel keeps the sessions that it has.
    pub fn reconnect<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<usize, ChannelError> {
        let before = self.sessions.clone();
        let result = self.reopen(endpoint);
        endpoint.end_waiting();
        result?;
        Ok(self.sessions.iter().filter(|session| !before.contains(session)).count())
    }

    fn reopen<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<(), ChannelError> {
        // The port may have noticed already that the server ended.
        endpoint.turn();
        if self.begin_reconnect(endpoint)? == 0 {
            self.probe_server(endpoint)?;
            self.begin_reconnect(endpoint)?;
        }
        self.turn_until_open(endpoint)
    }

    /// Opens a session and closes it again. If the server was restarted since the others were opened, its answer shows
    /// that it knows none of them.
    fn probe_server<E: Endpoint + ?Sized>(&self, endpoint: &mut E) -> Result<(), ChannelError> {
        let options = ConnectOptions::new().lane(self.options.lane);
        let probed = endpoint.begin_connect_with(&self.address, options).and_then(|session| {
            let is_opening = |endpoint: &mut E| endpoint.session_slots(session) == Some(SessionSlots::default());
            let result = match self.wait_for_event(endpoint, session, is_opening) {
                Ok(Some(SessionEvent::ConnectFailed { error, .. })) => Err(error),
                Ok(Some(SessionEvent::Lost { peer, cause, .. })) => Err(ConnectError::Failed { peer, cause }),
                Ok(_) => Ok(()),
                Err(error) => {
                    // The port cannot sleep. The caller does not know this session, so it is ended, and its events are
                    // dropped.
                    endpoint.disconnect(session);
                    while endpoint.take_session_event(self.options.lane, session).is_some() {}
                    return Err(error);
                }
            };
            // A second `disconnect` returns whether the session is still there.
            self.wait_for_event(endpoint, session, |endpoint| endpoint.disconnect(session))?;
            result
        });
        match probed {
            // There is no room for one more session, which says nothing about the others.
            Err(
                ConnectError::Sessions { .. }
                | ConnectError::ReceiveCapacity { .. }
                | ConnectError::PeerSessions { .. }
                | ConnectError::PeerReceiveCapacity { .. }
                | ConnectError::PeerShare { .. }
                | ConnectError::Lane(EnqueueError::LaneFull { .. }),
            ) => Ok(()),
            probed => Ok(probed?),
        }
    }

    /// Turns the endpoint until the session has an event, or no longer exists: if its lane was closed, it will have no
    /// event.
    fn wait_for_event<E: Endpoint + ?Sized>(
        &self,
        endpoint: &mut E,
        session: SessionId,
        mut exists: impl FnMut(&mut E) -> bool,
    ) -> Result<Option<SessionEvent>, ConnectError> {
        loop {
            let exists = exists(endpoint);
            let event = endpoint.take_session_event(self.options.lane, session);
            if event.is_some() || !exists {
                return Ok(event);
            }
            endpoint.turn_or_wait()?;
        }
    }

    /// As [`Self::reconnect`], without waiting, and only for sessions that are known to have ended. Calls can be
    /// enqueued at once, and [`Self::poll`] continues the opening. Returns how many sessions are being opened. The
    /// events of the sessions that ended are removed from their lane.
    ///
    /// # Errors
    ///
    /// [`ChannelError`] when the address cannot be resolved, or a limit of this endpoint is reached.
    pub fn begin_reconnect<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<usize, ChannelError> {
        let mut begun = 0;
        for index in 0..self.sessions.len() {
            let session = self.sessions[index];
            if endpoint.session_slots(session).is_none() {
                self.sessions[index] = self.begin_session(endpoint)?;
                begun += 1;
                while endpoint.take_session_event(self.options.lane, session).is_some() {}
            }
        }
        Ok(begun)
    }

    fn begin_session<E: Endpoint + ?Sized>(&self, endpoint: &mut E) -> Result<SessionId, ConnectError> {
        endpoint.begin_connect_with(&self.address, self.options)
    }

    /// Continues the opening, between turns of the endpoint: takes the events of its sessions, and opens further
    /// sessions where the server granted fewer slots than asked for. Returns whether all sessions are open and have
    /// slots for as many calls as the channel was opened for.
    ///
    /// # Errors
    ///
    /// [`ChannelError`] when a session could not be opened, or was lost. The channel keeps the sessions that it has,
    /// and [`Self::begin_reconnect`] tries again.
    pub fn poll<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<bool, ChannelError> {
        for &session in &self.sessions {
            while let Some(event) = endpoint.take_session_event(self.options.lane, session) {
                match event {
                    SessionEvent::ConnectFailed { error, .. } => return Err(error.into()),
                    SessionEvent::Lost { peer, cause, .. } => return Err(ChannelError::Lost { peer, cause }),
                    SessionEvent::Connected(_) | SessionEvent::Disconnected(_) => {}
                }
            }
        }
        let status = self.status(endpoint);
        if status.gone > 0 {
            // Another user polled the events, and has the reason.
            return Err(ChannelError::Gone { address: self.address.to_string(), gone: status.gone });
        }
        if status.opening > 0 {
            return Ok(false);
        }
        // A server grants the same number of slots to each session of a channel.
        let missing = self.calls.saturating_sub(status.slots).div_ceil((status.slots / status.open.max(1)).max(1));
        for _ in 0..missing {
            let session = self.begin_session(endpoint)?;
            self.sessions.push(session);
        }
        Ok(missing == 0)
    }

    /// Turns the endpoint until all sessions are open.
    fn finish<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<(), ChannelError> {
        let result = self.turn_until_open(endpoint);
        endpoint.end_waiting();
        result
    }

    fn turn_until_open<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<(), ChannelError> {
        let mut rounds = 1;
        loop {
            match self.poll(endpoint) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The loss was not known before, or has only just happened.
                Err(ChannelError::Lost { .. }) if rounds < ROUNDS_MAX => {
                    rounds += 1;
                    self.begin_reconnect(endpoint)?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            endpoint.turn_or_wait().map_err(ConnectError::from)?;
        }
    }

    /// Ends all sessions of the channel. Their calls complete with [`Cause::Disconnected`](crate::Cause::Disconnected).
    pub fn close<E: Endpoint + ?Sized>(self, endpoint: &mut E) {
        for session in self.sessions {
            endpoint.disconnect(session);
        }
    }

    /// Ends all sessions of a channel that the caller never got, and drops their events.
    fn discard<E: Endpoint + ?Sized>(self, endpoint: &mut E) {
        for session in self.sessions {
            endpoint.disconnect(session);
            while endpoint.take_session_event(self.options.lane, session).is_some() {}
        }
    }
}
