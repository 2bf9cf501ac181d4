//! One endpoint for several client libraries on its thread.
//!
//! Each library is written as if the endpoint were its own. Several share one through `SharedEndpoint`: an `Endpoint`
//! that stands for another one, with a lane of its own. If each library opened a lane for itself, even one that shares
//! with nobody would pay for it: a call on a lane costs 190 instructions more, a fifth of a GET of the cache, since
//! only the main lane's code is inlined into its callers.

use std::cell::{Cell, RefCell, RefMut};
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

/// A share of an endpoint: an [`Endpoint`] that sees only its own calls and sessions.
///
/// [`Self::new`] takes the endpoint and returns the owner's share, on the [main lane](LaneId::MAIN). [`Self::share`]
/// returns further ones, each with a [lane](LaneId) of its own. That lane closes when the share is dropped: its calls
/// are then cancelled, and its sessions end. (The main lane is never closed: if the owner's share is dropped before
/// others, its calls and sessions go on, and their completions and events are dropped.) Calls and sessions that name no
/// lane use the share's, which is also the lane that [`Endpoint::poll_completion`] and [`Endpoint::poll_event`] look
/// at. All else is the endpoint's: a turn of any share turns it for all, and it sleeps only when there is nothing to do
/// for any of them. While one share has a completion that it did not take, none can sleep, so a loop asks all of them
/// before it sleeps.
///
/// Libraries that accept any [`Endpoint`] need not know whether they share it, and pay nothing if they do not. If they
/// do, a small call costs some 190 instructions more, of 560 in batches of 8 (`cargo xtask cost`, rows of lanes): the
/// code of the main lane is inlined into the library, that of other lanes is not. That is why libraries do not open a
/// lane for themselves by default.
///
/// The endpoint ends with its last share. A share that is owned by a handler of the endpoint keeps it alive for ever:
/// give the handler a [`Weak`](std::rc::Weak) reference to a share, or some means to drop it.
///
/// # Panics
///
/// Each method borrows the endpoint while it runs. So a method panics if it is called in a handler of the endpoint,
/// which runs during a turn. (Dropping a share there is allowed: its lane closes when a method of another share is next
/// called.)
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

/// State that all shares have in common.
struct Common<E> {
    endpoint: RefCell<E>,
    /// Copies, because methods return references to them, which the borrowed endpoint cannot lend.
    config: Config,
    info: EndpointInfo,
    /// Lanes of shares that were dropped while the endpoint was borrowed.
    to_close: RefCell<Vec<LaneId>>,
    /// Whether the owner's share has been dropped, so that nobody takes what arrives on the main lane.
    is_main_dropped: Cell<bool>,
}

impl<E: Endpoint> SharedEndpoint<E> {
    /// Makes the owner's share of an endpoint, which has the main lane.
    pub fn new(endpoint: E) -> Self {
        let (config, info) = (endpoint.config().clone(), endpoint.info().clone());
        let (to_close, is_main_dropped) = (RefCell::default(), Cell::new(false));
        let all = Common { endpoint: RefCell::new(endpoint), config, info, to_close, is_main_dropped };
        Self { all: Rc::new(all), lane: LaneId::MAIN }
    }

    /// Returns another share of the endpoint, with a lane of its own.
    #[must_use]
    pub fn share(&self) -> Self {
        let lane = self.endpoint().open_lane();
        Self { all: Rc::clone(&self.all), lane }
    }

    /// The share's lane, as [`Endpoint::poll_ready_lane`] reports it.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// Runs `act` with the endpoint itself, for methods that [`Endpoint`] lacks. The main lane is that of its owner.
    ///
    /// # Panics
    ///
    /// As all methods do; in particular, if `act` uses a share.
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

    /// The endpoint, for what turns it: what arrives on the main lane would keep the thread awake if nobody took it.
    #[inline]
    fn endpoint_to_turn(&self) -> RefMut<'_, E> {
        let mut endpoint = self.endpoint();
        if self.all.is_main_dropped.get() {
            while endpoint.poll_completion().is_some() || endpoint.poll_event().is_some() {}
        }
        endpoint
    }

    /// The lane that the endpoint is to use: ours, where the caller named none.
    #[inline]
    fn lane_of(&self, lane: LaneId) -> LaneId {
        if lane == LaneId::MAIN { self.lane } else { lane }
    }
}

impl<E: Endpoint> Common<E> {
    #[cold]
    fn close_dropped(&self, endpoint: &mut E) {
        loop {
            let Some(lane) = self.to_close.borrow_mut().pop() else { return };
            endpoint.close_lane(lane);
        }
    }
}

impl<E: Endpoint> Drop for SharedEndpoint<E> {
    fn drop(&mut self) {
        if self.lane == LaneId::MAIN {
            return self.all.is_main_dropped.set(true);
        }
        match self.all.endpoint.try_borrow_mut() {
            Ok(mut endpoint) => _ = endpoint.close_lane(self.lane),
            Err(_) => self.all.to_close.borrow_mut().push(self.lane),
        }
    }
}

impl<E: Endpoint> Endpoint for SharedEndpoint<E> {
    forward_common!(|self| self.endpoint(), |self| self.endpoint_to_turn());

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

/// A share as one of several things that a thread sleeps on; one share of each endpoint is enough. Deadlines are on the
/// caller's clock.
impl<E: Endpoint> Readiness for SharedEndpoint<E> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.endpoint().descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let mut endpoint = self.endpoint_to_turn();
        let armed = endpoint.arm()?;
        Ok(armed.on_clock(endpoint.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.endpoint().disarm()
    }
}
