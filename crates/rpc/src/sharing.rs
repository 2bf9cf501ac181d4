//! One endpoint, several users on its thread: client libraries that were written for an endpoint of their own.

use std::cell::{RefCell, RefMut};
use std::io;
use std::rc::Rc;

use sinew_fabric::{Address, Armed, Descriptor, PortStats, Readiness, Waker};
use sinew_mem::{AllocError, MessageBuffer};

use crate::call::{BurstCalls, Call, DeferredCall};
use crate::config::Config;
use crate::endpoint::{Endpoint, forward_common};
use crate::error::{CallBackError, ConnectError, Error, Rejected};
use crate::events::{ClientEvent, SessionEvent};
use crate::lanes::LaneId;
use crate::live::StatsReader;
use crate::names::{CallId, ClientId, Completion, RequestType, SessionId, SessionSlots};
use crate::nexus::{EndpointInfo, NexusError};
use crate::options::{CallOptions, ConnectOptions};
use crate::reply::Reply;
use crate::stats::Stats;

/// A share of an endpoint: an [`Endpoint`] that hears of nothing but its own calls and sessions.
///
/// [`Self::new`] takes the endpoint, and is the share of its owner, on the [main lane](LaneId::MAIN). [`Self::share`] gives further ones, each
/// with a [lane](LaneId) of its own, which closes when it is dropped: its calls are cancelled then, and its sessions end. (The main lane is
/// never closed: the owner's calls and sessions go on when its share is dropped before others, and what they would tell is dropped.) Calls and sessions that name no lane go to the share's, and
/// that is what [`Endpoint::poll_completion`] and [`Endpoint::poll_event`] look at. Everything else is the endpoint's: a turn of any share
/// turns it for all, and it sleeps when there is nothing to do for any of them. While one has a completion that it did not take, none sleeps,
/// so a loop asks all of them before it does.
///
/// Libraries that take any [`Endpoint`] need not know whether they share it, and pay nothing where they do not. Where they do, a small
/// call costs some 190 instructions more, of 560 in batches of 8 (`cargo xtask cost`, rows of lanes): the way of the main lane is inlined
/// into the library, that of the others is not. That is why not every library opens a lane for itself.
///
/// The endpoint ends with its last share. A share that a handler of the endpoint owns keeps it for ever: give the handler a
/// [`Weak`](std::rc::Weak) reference to one, or something to drop it by.
///
/// # Panics
///
/// The endpoint is borrowed during each method. So a method panics in a handler of the endpoint, which runs in a turn. (To drop a share there
/// is fine: its lane closes with the next method of another.)
///
/// ```
/// use sinew_rpc::{Endpoint, SharedEndpoint};
///
/// /// Two clients of one endpoint; either may be of any library.
/// fn clients<E: Endpoint>(endpoint: E) -> [SharedEndpoint<E>; 2] {
///     let first = SharedEndpoint::new(endpoint);
///     [first.share(), first]
/// }
/// ```
pub struct SharedEndpoint<E: Endpoint> {
    all: Rc<Common<E>>,
    lane: LaneId,
}

/// What all shares have in common.
struct Common<E> {
    endpoint: RefCell<E>,
    /// What references to are handed out, which a borrowed endpoint cannot lend.
    config: Config,
    info: EndpointInfo,
    /// Lanes of shares that were dropped while the endpoint was borrowed. The main lane stays here from the end of the owner's share on.
    to_close: RefCell<Vec<LaneId>>,
}

impl<E: Endpoint> SharedEndpoint<E> {
    /// The owner's share of an endpoint, which has its main lane.
    pub fn new(endpoint: E) -> Self {
        let (config, info) = (endpoint.config().clone(), endpoint.info().clone());
        let all = Common { endpoint: RefCell::new(endpoint), config, info, to_close: RefCell::default() };
        Self { all: Rc::new(all), lane: LaneId::MAIN }
    }

    /// Another share of the endpoint, with a lane of its own.
    #[must_use]
    pub fn share(&self) -> Self {
        let lane = self.endpoint().open_lane();
        Self { all: Rc::clone(&self.all), lane }
    }

    /// The lane that is this share's, as [`Endpoint::poll_ready_lane`] reports it.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// The endpoint itself, for what is not in [`Endpoint`]. Its methods are those of the main lane's owner.
    ///
    /// # Panics
    ///
    /// As all methods; and `act` must not use a share.
    pub fn with<R>(&mut self, act: impl FnOnce(&mut E) -> R) -> R {
        act(&mut self.endpoint())
    }

    #[inline]
    fn endpoint(&self) -> RefMut<'_, E> {
        let mut endpoint = self.all.endpoint.borrow_mut();
        if !self.all.to_close.borrow().is_empty() {
            self.all.close_dropped(&mut endpoint);
        }
        endpoint
    }

    /// A lane as the endpoint knows it: where somebody says none, it is ours.
    #[inline]
    fn lane_of(&self, lane: LaneId) -> LaneId {
        if lane == LaneId::MAIN { self.lane } else { lane }
    }
}

impl<E: Endpoint> Common<E> {
    #[cold]
    fn close_dropped(&self, endpoint: &mut E) {
        for lane in self.to_close.take() {
            if lane == LaneId::MAIN {
                // Nobody else takes it, and it would keep the thread awake.
                while endpoint.poll_completion().is_some() || endpoint.poll_event().is_some() {}
                self.to_close.borrow_mut().push(lane);
            } else {
                endpoint.close_lane(lane);
            }
        }
    }
}

impl<E: Endpoint> Drop for SharedEndpoint<E> {
    fn drop(&mut self) {
        match self.all.endpoint.try_borrow_mut() {
            Ok(mut endpoint) if self.lane != LaneId::MAIN => _ = endpoint.close_lane(self.lane),
            _ => self.all.to_close.borrow_mut().push(self.lane),
        }
    }
}

impl<E: Endpoint> Endpoint for SharedEndpoint<E> {
    forward_common!(|self| self.endpoint(), |self| self.endpoint());

    #[inline]
    fn config(&self) -> &Config {
        &self.all.config
    }

    #[inline]
    fn info(&self) -> &EndpointInfo {
        &self.all.info
    }

    #[inline]
    fn begin_connect(&mut self, address: &Address) -> Result<SessionId, ConnectError> {
        self.begin_connect_with(address, ConnectOptions::new())
    }

    fn begin_connect_with(&mut self, address: &Address, options: ConnectOptions) -> Result<SessionId, ConnectError> {
        let lane = self.lane_of(options.lane);
        self.endpoint().begin_connect_with(address, options.lane(lane))
    }

    fn connect(&mut self, address: &str) -> Result<SessionId, ConnectError> {
        self.connect_with(address, ConnectOptions::new())
    }

    fn connect_with(&mut self, address: &str, options: ConnectOptions) -> Result<SessionId, ConnectError> {
        let lane = self.lane_of(options.lane);
        self.endpoint().connect_with(address, options.lane(lane))
    }

    fn poll_event(&mut self) -> Option<SessionEvent> {
        self.endpoint().poll_lane_event(self.lane)
    }

    fn take_session_event(&mut self, lane: LaneId, session: SessionId) -> Option<SessionEvent> {
        let lane = self.lane_of(lane);
        self.endpoint().take_session_event(lane, session)
    }

    #[inline]
    fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: CallOptions,
    ) -> Result<CallId, Rejected> {
        let options = options.lane(self.lane_of(options.lane));
        self.endpoint().enqueue_request(session, request_type, request, response, options)
    }

    fn poll_lane(&mut self, lane: LaneId) -> Option<Completion> {
        let lane = self.lane_of(lane);
        self.endpoint().poll_lane(lane)
    }

    fn poll_lane_event(&mut self, lane: LaneId) -> Option<SessionEvent> {
        let lane = self.lane_of(lane);
        self.endpoint().poll_lane_event(lane)
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Completion> {
        self.endpoint().poll_lane(self.lane)
    }
}

/// A share beside other things that a thread sleeps on; one share of each endpoint is enough. Deadlines are on the caller's clock.
impl<E: Endpoint> Readiness for SharedEndpoint<E> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.endpoint().descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let mut endpoint = self.endpoint();
        let armed = endpoint.arm()?;
        Ok(armed.on_clock(endpoint.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.endpoint().disarm()
    }
}
