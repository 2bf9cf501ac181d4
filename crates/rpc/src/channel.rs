//! Many calls in flight to one server: as many sessions as these need, kept together.

use sinew_fabric::Address;
use sinew_mem::MessageBuffer;

use crate::endpoint::Endpoint;
use crate::error::{ChannelError, ConnectError, EnqueueError, Rejected};
use crate::events::SessionEvent;
use crate::names::{CallId, RequestType, SessionId, SessionSlots};
use crate::options::{CallOptions, ConnectOptions};

/// How often sessions are opened anew that are lost while the others open: a server that is started again loses all that were there before, and
/// a server that goes on losing them is not to be waited for.
const ROUNDS_MAX: u32 = 3;

/// A way to one server that takes a given number of calls at once, over as many sessions as that needs.
///
/// A session has [`Config::slots`](crate::Config::slots) slots at most, and fewer where the server grants fewer; further calls wait in its queue. A channel
/// opens sessions until they have slots enough, and hands each call to one that has room, in turn. One call opens those anew that are gone. It
/// is a list of names: the sessions are the endpoint's, calls over them complete where their options say, and whoever polls events hears of them.
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
    /// In the order of their places, which calls take in turn.
    sessions: Vec<SessionId>,
    next: usize,
}

/// What a channel's sessions are like now; see [`Channel::status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStatus {
    /// Sessions that are open.
    pub open: usize,
    /// Sessions that are being opened.
    pub opening: usize,
    /// Sessions that are gone, and were not opened anew.
    pub gone: usize,
    /// Calls that those which are open take at once.
    pub slots: usize,
}

impl Channel {
    /// Opens a channel for so many calls in flight, turning the endpoint until all of its sessions are open. Where the server grants fewer slots than this
    /// endpoint asks for, there are more sessions.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]: no calls, more sessions than [`Config::sessions_max`](crate::Config::sessions_max), or why a session could not be opened. Those that
    /// were opened are closed then, and their [`SessionEvent::Disconnected`] is all that is heard of them.
    pub fn open<E: Endpoint + ?Sized>(endpoint: &mut E, address: &str, calls: usize) -> Result<Self, ChannelError> {
        Self::open_with(endpoint, address, calls, ConnectOptions::new())
    }

    /// As [`Self::open`], with options, which all of its sessions are opened with.
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
                channel.give_up(endpoint);
                Err(error)
            }
        }
    }

    /// Begins to open a channel, without waiting. Calls can be enqueued at once; they leave when their sessions are open. [`Self::poll`] goes on with
    /// it.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`], but for what servers say.
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
                    channel.give_up(endpoint);
                    return Err(error.into());
                }
            }
        }
        Ok(channel)
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The calls in flight that it was opened for.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Its sessions, those that are gone included.
    pub fn sessions(&self) -> &[SessionId] {
        &self.sessions
    }

    /// What its sessions are like now.
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

    /// Hands a call to the next of its sessions that has room, or, where none has, to the next one that is there, in whose queue it waits; see
    /// [`crate::Rpc::enqueue_request`]. Sessions that are gone are passed over.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with both buffers; [`EnqueueError::NoSuchSession`](crate::EnqueueError::NoSuchSession) when all sessions are gone: [`Self::reconnect`].
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
        let place = self.place_with_room(endpoint);
        self.next = if place + 1 == self.sessions.len() { 0 } else { place + 1 };
        endpoint.enqueue_request(self.sessions[place], request_type, request, response, options.into())
    }

    /// The place of the session that the next call goes to.
    fn place_with_room<E: Endpoint + ?Sized>(&self, endpoint: &E) -> usize {
        let mut full = None;
        for place in (self.next..self.sessions.len()).chain(0..self.next) {
            match endpoint.session_slots(self.sessions[place]) {
                Some(slots) if slots.free > 0 => return place,
                Some(_) if full.is_none() => full = Some(place),
                _ => {}
            }
        }
        full.unwrap_or(self.next)
    }

    /// Opens those sessions anew that are gone, to the same address, turning the endpoint until they are open: the one call to make after a server was
    /// started again. Calls that were in flight have completed, with an error that says whether they may have run; none is sent again. Returns how
    /// many sessions were opened: none when all are there.
    ///
    /// An endpoint need not have heard yet that a server died and was started again. So where no session is known to be gone, one more is opened and
    /// closed: by that the endpoint learns which server is there now; where there is no room for one more, it learns nothing. Sessions that turn out
    /// to be gone while others open are opened too.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]: why a session could not be opened. The channel goes on with those that are there.
    pub fn reconnect<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<usize, ChannelError> {
        let before = self.sessions.clone();
        let result = self.reopen(endpoint);
        endpoint.end_waiting();
        result?;
        Ok(self.sessions.iter().filter(|session| !before.contains(session)).count())
    }

    fn reopen<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<(), ChannelError> {
        // The port may have heard of the server's end already.
        endpoint.turn();
        if self.begin_reconnect(endpoint)? == 0 {
            self.ask_who_is_there(endpoint)?;
            self.begin_reconnect(endpoint)?;
        }
        self.turn_until_open(endpoint)
    }

    /// Opens a session and closes it. A server that was started again since the others were opened shows by its answer that it knows none of them.
    fn ask_who_is_there<E: Endpoint + ?Sized>(&self, endpoint: &mut E) -> Result<(), ChannelError> {
        let options = ConnectOptions::new().lane(self.options.lane);
        let asked = endpoint.begin_connect_with(&self.address, options).and_then(|session| {
            let is_opening = |endpoint: &mut E| endpoint.session_slots(session) == Some(SessionSlots::default());
            let result = match self.event_of(endpoint, session, is_opening) {
                Ok(Some(SessionEvent::ConnectFailed { error, .. })) => Err(error),
                Ok(Some(SessionEvent::Lost { peer, cause, .. })) => Err(ConnectError::Failed { peer, cause }),
                Ok(_) => Ok(()),
                Err(error) => {
                    // The port cannot sleep; nobody knows the session.
                    endpoint.disconnect(session);
                    while endpoint.take_session_event(self.options.lane, session).is_some() {}
                    return Err(error);
                }
            };
            // To say it again says whether it is still there.
            self.event_of(endpoint, session, |endpoint| endpoint.disconnect(session))?;
            result
        });
        match asked {
            // There is no room for one more, which says nothing of the others.
            Err(
                ConnectError::Sessions { .. }
                | ConnectError::ReceiveCapacity { .. }
                | ConnectError::PeerSessions { .. }
                | ConnectError::PeerReceiveCapacity { .. }
                | ConnectError::PeerShare { .. }
                | ConnectError::Lane(EnqueueError::LaneFull { .. }),
            ) => Ok(()),
            asked => Ok(asked?),
        }
    }

    /// Turns the endpoint until something is heard of a session, or it is not there any more: of one whose lane was closed nothing is heard.
    fn event_of<E: Endpoint + ?Sized>(
        &self,
        endpoint: &mut E,
        session: SessionId,
        mut is_there: impl FnMut(&mut E) -> bool,
    ) -> Result<Option<SessionEvent>, ConnectError> {
        loop {
            let is_there = is_there(endpoint);
            let event = endpoint.take_session_event(self.options.lane, session);
            if event.is_some() || !is_there {
                return Ok(event);
            }
            endpoint.turn_or_wait()?;
        }
    }

    /// As [`Self::reconnect`], without waiting, for the sessions that are known to be gone: calls can be enqueued at once, and
    /// [`Self::poll`] goes on with it. Returns how many sessions are being opened anew. What was to be heard of the sessions that are gone is taken off their lane.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]: the address leads nowhere, or a limit of this endpoint is reached.
    pub fn begin_reconnect<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<usize, ChannelError> {
        let mut begun = 0;
        for place in 0..self.sessions.len() {
            let session = self.sessions[place];
            if endpoint.session_slots(session).is_none() {
                self.sessions[place] = self.begin_one(endpoint)?;
                begun += 1;
                while endpoint.take_session_event(self.options.lane, session).is_some() {}
            }
        }
        Ok(begun)
    }

    fn begin_one<E: Endpoint + ?Sized>(&self, endpoint: &mut E) -> Result<SessionId, ConnectError> {
        endpoint.begin_connect_with(&self.address, self.options)
    }

    /// Goes on with opening, between turns of the endpoint: takes what there is to hear of its sessions, and opens further ones where the server
    /// granted fewer slots than it was asked for. Returns whether all are open, with slots for as many calls as it was opened for.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]: why a session could not be opened, or was lost. The channel goes on with those that are there, and
    /// [`Self::begin_reconnect`] tries again.
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
            // Whoever polls events has heard why.
            return Err(ChannelError::Gone { address: self.address.to_string(), gone: status.gone });
        }
        if status.opening > 0 {
            return Ok(false);
        }
        // A server grants all of its sessions alike.
        let missing = self.calls.saturating_sub(status.slots).div_ceil((status.slots / status.open.max(1)).max(1));
        for _ in 0..missing {
            let session = self.begin_one(endpoint)?;
            self.sessions.push(session);
        }
        Ok(missing == 0)
    }

    /// Turns the endpoint until all is open.
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
                // That they were lost was not known before, or just happened.
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

    /// Ends all of its sessions; their calls complete with [`Cause::Disconnected`](crate::Cause::Disconnected).
    pub fn close<E: Endpoint + ?Sized>(self, endpoint: &mut E) {
        for session in self.sessions {
            endpoint.disconnect(session);
        }
    }

    /// Ends all of its sessions, of which nobody knew.
    fn give_up<E: Endpoint + ?Sized>(self, endpoint: &mut E) {
        for session in self.sessions {
            endpoint.disconnect(session);
            while endpoint.take_session_event(self.options.lane, session).is_some() {}
        }
    }
}
