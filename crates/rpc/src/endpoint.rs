//! The trait of all endpoints, whatever their port and clock.

pub(crate) mod handle;

use std::io;

use sinew_fabric::{Address, Armed, Descriptor, PortStats, Readiness, Waker};
use sinew_mem::{AllocError, MessageBuffer};

use crate::call::{BurstCalls, Call, DeferredCall};
use crate::config::Config;
use crate::error::{CallBackError, ConnectError, Error, Rejected};
use crate::events::{ClientEvent, SessionEvent};
use crate::lanes::LaneId;
use crate::live::StatsReader;
use crate::names::{CallId, ClientId, Completion, RequestType, SessionId, SessionSlots};
use crate::nexus::{EndpointInfo, NexusError};
use crate::options::{CallOptions, ConnectOptions};
use crate::reply::Reply;
use crate::stats::Stats;
pub use handle::{Pending, RpcHandle};

/// The interface of an endpoint that clients need: [`crate::Rpc`] over any port and clock, the facade's `sinew::Rpc`,
/// or a borrowed or boxed one. A library written against it accepts all of them.
///
/// The methods do what the methods of [`crate::Rpc`] of the same names do, and are documented there. So that `dyn
/// Endpoint` has them too, they take a `Box` or `&mut dyn` where those take any closure, and [`CallOptions`] and slices
/// where those take anything that converts into them. A library that is generic over the endpoint (`E: Endpoint`) costs
/// what the endpoint itself does. `dyn Endpoint` costs an indirect call for each method, which moves its arguments
/// through memory and cannot be inlined: 36 instructions of a small call's 570 at the client in batches of 8, 46 of 907
/// one by one (callgrind, shared memory), and none for each packet of a long call.
///
/// ```
/// use sinew_rpc::{Endpoint, RequestType, SessionId};
///
/// fn ask(endpoint: &mut dyn Endpoint, session: SessionId) -> Result<Vec<u8>, sinew_rpc::Error> {
///     Ok(endpoint.call(session, RequestType::new(1), b"how are you?")?.to_vec())
/// }
/// ```
pub trait Endpoint {
    /// See [`crate::Rpc::address`].
    fn address(&self) -> Address;

    /// See [`crate::Rpc::config`].
    fn config(&self) -> &Config;

    /// See [`crate::Rpc::stats`].
    fn stats(&self) -> Stats;

    /// See [`crate::Rpc::port_stats`].
    fn port_stats(&self) -> PortStats;

    /// See [`crate::Rpc::waker`].
    fn waker(&self) -> Waker;

    /// See [`crate::Rpc::sessions`].
    fn sessions(&self) -> usize;

    /// See [`crate::Rpc::info`].
    fn info(&self) -> &EndpointInfo;

    /// See [`crate::Rpc::now_ns`].
    fn now_ns(&self) -> u64;

    /// See [`crate::Rpc::stats_reader`].
    fn stats_reader(&mut self) -> StatsReader;

    /// Returns a handle through which other threads reach this endpoint. See [`EndpointInfo::remote_handle`].
    fn remote_handle(&self) -> RpcHandle {
        self.info().remote_handle()
    }

    /// See [`crate::Rpc::alloc`].
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError>;

    /// See [`crate::Rpc::back_buffers`].
    fn back_buffers(&self, len: usize);

    /// See [`crate::Rpc::begin_connect`].
    ///
    /// # Errors
    ///
    /// [`ConnectError`] when the address cannot be resolved or a limit of this endpoint is reached.
    fn begin_connect(&mut self, address: &Address) -> Result<SessionId, ConnectError>;

    /// See [`crate::Rpc::begin_connect_with`].
    ///
    /// # Errors
    ///
    /// As for [`Self::begin_connect`].
    fn begin_connect_with(&mut self, address: &Address, options: ConnectOptions) -> Result<SessionId, ConnectError>;

    /// See [`crate::Rpc::connect`].
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: no such server, no answer, a refusal, or a limit of this endpoint.
    fn connect(&mut self, address: &str) -> Result<SessionId, ConnectError>;

    /// See [`crate::Rpc::connect_with`].
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`].
    fn connect_with(&mut self, address: &str, options: ConnectOptions) -> Result<SessionId, ConnectError>;

    /// See [`crate::Rpc::disconnect`].
    fn disconnect(&mut self, session: SessionId) -> bool;

    /// See [`crate::Rpc::poll_event`].
    fn poll_event(&mut self) -> Option<SessionEvent>;

    /// See [`crate::Rpc::session_to`].
    ///
    /// # Errors
    ///
    /// [`CallBackError`].
    fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError>;

    /// See [`crate::Rpc::poll_client_event`].
    fn poll_client_event(&mut self) -> Option<ClientEvent>;

    /// See [`crate::Rpc::dismiss`].
    fn dismiss(&mut self, client: ClientId) -> bool;

    /// See [`crate::Rpc::session_slots`].
    fn session_slots(&self, session: SessionId) -> Option<SessionSlots>;

    /// See [`crate::Rpc::take_session_event`].
    fn take_session_event(&mut self, lane: LaneId, session: SessionId) -> Option<SessionEvent>;

    /// See [`crate::Rpc::enqueue_request`].
    ///
    /// # Errors
    ///
    /// [`Rejected`], with both buffers.
    // The error is as large as what it gives back, and boxing it would allocate.
    #[allow(clippy::result_large_err)]
    fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: CallOptions,
    ) -> Result<CallId, Rejected>;

    /// See [`crate::Rpc::cancel`].
    fn cancel(&mut self, call: CallId) -> bool;

    /// See [`crate::Rpc::open_lane`].
    fn open_lane(&mut self) -> LaneId;

    /// See [`crate::Rpc::close_lane`].
    fn close_lane(&mut self, lane: LaneId) -> bool;

    /// See [`crate::Rpc::poll_ready_lane`].
    fn poll_ready_lane(&mut self) -> Option<LaneId>;

    /// See [`crate::Rpc::poll_lane`].
    fn poll_lane(&mut self, lane: LaneId) -> Option<Completion>;

    /// See [`crate::Rpc::poll_lane_event`].
    fn poll_lane_event(&mut self, lane: LaneId) -> Option<SessionEvent>;

    /// See [`crate::Rpc::prefetch_session`].
    fn prefetch_session(&self, session: SessionId);

    /// See [`crate::Rpc::poll_completion`].
    fn poll_completion(&mut self) -> Option<Completion>;

    /// See [`crate::Rpc::turn`].
    fn turn(&mut self) -> bool;

    /// See [`crate::Rpc::wait`].
    ///
    /// # Errors
    ///
    /// Any error of the port.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<bool>;

    /// See [`crate::Rpc::turn_or_wait`].
    ///
    /// # Errors
    ///
    /// Any error of the port when it cannot sleep.
    fn turn_or_wait(&mut self) -> io::Result<bool>;

    /// See [`crate::Rpc::rest`].
    ///
    /// # Errors
    ///
    /// Any error of the port when it cannot sleep.
    fn rest(&mut self, busy: bool, timeout_ns: Option<u64>) -> io::Result<()>;

    /// See [`crate::Rpc::rest_beside`].
    ///
    /// # Errors
    ///
    /// Any error of the port, or of one of the others, when it cannot sleep.
    fn rest_beside(&mut self, busy: bool, beside: &mut [&mut dyn Readiness], timeout_ns: Option<u64>)
    -> io::Result<()>;

    /// See [`crate::Rpc::end_waiting`].
    fn end_waiting(&mut self);

    /// See [`crate::Rpc::descriptor`].
    fn descriptor(&self) -> Option<Descriptor>;

    /// See [`crate::Rpc::arm`].
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`] if there is no descriptor; any error of the port.
    fn arm(&mut self) -> io::Result<Armed>;

    /// See [`crate::Rpc::disarm`].
    fn disarm(&mut self) -> bool;

    /// See [`crate::Rpc::call`].
    ///
    /// # Errors
    ///
    /// [`Error::Call`] says which peer, why, and whether the request may have run.
    fn call(&mut self, session: SessionId, request_type: RequestType, request: &[u8]) -> Result<Reply, Error>;

    /// See [`crate::Rpc::call_within`].
    ///
    /// # Errors
    ///
    /// As for [`Self::call`].
    fn call_within(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: &[u8],
        timeout_ns: u64,
    ) -> Result<Reply, Error>;

    /// See [`crate::Rpc::handle`].
    ///
    /// # Errors
    ///
    /// [`NexusError::DuplicateType`].
    fn handle(&mut self, request_type: RequestType, handler: Box<dyn FnMut(Call<'_>)>) -> Result<(), NexusError>;

    /// See [`crate::Rpc::handle_burst`].
    ///
    /// # Errors
    ///
    /// [`NexusError::DuplicateType`].
    fn handle_burst(
        &mut self,
        request_type: RequestType,
        handler: Box<dyn FnMut(&mut BurstCalls<'_, '_>)>,
    ) -> Result<(), NexusError>;

    /// See [`crate::Rpc::handle_polled`].
    ///
    /// # Errors
    ///
    /// [`NexusError::DuplicateType`].
    fn handle_polled(&mut self, request_type: RequestType) -> Result<(), NexusError>;

    /// See [`crate::Rpc::turn_with`].
    fn turn_with(&mut self, take: &mut dyn FnMut(Call<'_>)) -> bool;

    /// See [`crate::Rpc::poll_request`].
    fn poll_request(&mut self) -> Option<DeferredCall>;

    /// See [`crate::Rpc::reply`].
    fn reply(&mut self, call: DeferredCall, response: &[u8]);

    /// See [`crate::Rpc::reply_with`].
    fn reply_with(&mut self, call: DeferredCall, len: usize, write: &mut dyn FnMut(&[u8], &mut [u8]));

    /// Turns the loop until `done` returns true, sleeping when there is nothing to do, as [`Config::poller`] allows.
    ///
    /// # Errors
    ///
    /// Any error of the port when it cannot sleep.
    fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> io::Result<()>
    where
        Self: Sized,
    {
        let mut result = Ok(());
        let mut has_rested = false;
        while result.is_ok() && !done(self) {
            result = self.turn_or_wait().map(|busy| has_rested |= !busy);
        }
        if has_rested {
            self.end_waiting();
        }
        result
    }
}

/// Defines the methods that are the same for every user of an endpoint: each calls that of `$to`.
macro_rules! forward_common {
    (|$self:ident| $to:expr, |$self_mut:ident| $to_mut:expr) => {
        #[inline]
        fn address(&$self) -> Address {
            $to.address()
        }

        #[inline]
        fn stats(&$self) -> Stats {
            $to.stats()
        }

        #[inline]
        fn port_stats(&$self) -> PortStats {
            $to.port_stats()
        }

        #[inline]
        fn waker(&$self) -> Waker {
            $to.waker()
        }

        #[inline]
        fn sessions(&$self) -> usize {
            $to.sessions()
        }

        #[inline]
        fn now_ns(&$self) -> u64 {
            $to.now_ns()
        }

        #[inline]
        fn stats_reader(&mut $self_mut) -> StatsReader {
            $to_mut.stats_reader()
        }

        #[inline]
        fn alloc(&$self, len: usize) -> Result<MessageBuffer, AllocError> {
            $to.alloc(len)
        }

        #[inline]
        fn back_buffers(&$self, len: usize) {
            $to.back_buffers(len);
        }

        #[inline]
        fn disconnect(&mut $self_mut, session: SessionId) -> bool {
            $to_mut.disconnect(session)
        }

        #[inline]
        fn session_to(&$self, client: ClientId) -> Result<SessionId, CallBackError> {
            $to.session_to(client)
        }

        #[inline]
        fn poll_client_event(&mut $self_mut) -> Option<ClientEvent> {
            $to_mut.poll_client_event()
        }

        #[inline]
        fn dismiss(&mut $self_mut, client: ClientId) -> bool {
            $to_mut.dismiss(client)
        }

        #[inline]
        fn session_slots(&$self, session: SessionId) -> Option<SessionSlots> {
            $to.session_slots(session)
        }

        #[inline]
        fn cancel(&mut $self_mut, call: CallId) -> bool {
            $to_mut.cancel(call)
        }

        #[inline]
        fn open_lane(&mut $self_mut) -> LaneId {
            $to_mut.open_lane()
        }

        #[inline]
        fn close_lane(&mut $self_mut, lane: LaneId) -> bool {
            $to_mut.close_lane(lane)
        }

        #[inline]
        fn poll_ready_lane(&mut $self_mut) -> Option<LaneId> {
            $to_mut.poll_ready_lane()
        }

        #[inline]
        fn prefetch_session(&$self, session: SessionId) {
            $to.prefetch_session(session);
        }

        #[inline]
        fn turn(&mut $self_mut) -> bool {
            $to_mut.turn()
        }

        #[inline]
        fn wait(&mut $self_mut, timeout_ns: Option<u64>) -> io::Result<bool> {
            $to_mut.wait(timeout_ns)
        }

        #[inline]
        fn turn_or_wait(&mut $self_mut) -> io::Result<bool> {
            $to_mut.turn_or_wait()
        }

        #[inline]
        fn rest(&mut $self_mut, busy: bool, timeout_ns: Option<u64>) -> io::Result<()> {
            $to_mut.rest(busy, timeout_ns)
        }

        #[inline]
        fn rest_beside(
            &mut $self_mut,
            busy: bool,
            beside: &mut [&mut dyn Readiness],
            timeout_ns: Option<u64>,
        ) -> io::Result<()> {
            $to_mut.rest_beside(busy, beside, timeout_ns)
        }

        #[inline]
        fn end_waiting(&mut $self_mut) {
            $to_mut.end_waiting();
        }

        #[inline]
        fn descriptor(&$self) -> Option<Descriptor> {
            $to.descriptor()
        }

        #[inline]
        fn arm(&mut $self_mut) -> io::Result<Armed> {
            $to_mut.arm()
        }

        #[inline]
        fn disarm(&mut $self_mut) -> bool {
            $to_mut.disarm()
        }

        #[inline]
        fn call(&mut $self_mut, session: SessionId, request_type: RequestType, request: &[u8]) -> Result<Reply, Error> {
            $to_mut.call(session, request_type, request)
        }

        #[inline]
        fn call_within(
            &mut $self_mut,
            session: SessionId,
            request_type: RequestType,
            request: &[u8],
            timeout_ns: u64,
        ) -> Result<Reply, Error> {
            $to_mut.call_within(session, request_type, request, timeout_ns)
        }

        fn handle(
            &mut $self_mut,
            request_type: RequestType,
            handler: Box<dyn FnMut(Call<'_>)>,
        ) -> Result<(), NexusError> {
            $to_mut.handle(request_type, handler)
        }

        fn handle_burst(
            &mut $self_mut,
            request_type: RequestType,
            handler: Box<dyn FnMut(&mut BurstCalls<'_, '_>)>,
        ) -> Result<(), NexusError> {
            $to_mut.handle_burst(request_type, handler)
        }

        fn handle_polled(&mut $self_mut, request_type: RequestType) -> Result<(), NexusError> {
            $to_mut.handle_polled(request_type)
        }

        #[inline]
        fn turn_with(&mut $self_mut, take: &mut dyn FnMut(Call<'_>)) -> bool {
            $to_mut.turn_with(take)
        }

        #[inline]
        fn poll_request(&mut $self_mut) -> Option<DeferredCall> {
            $to_mut.poll_request()
        }

        #[inline]
        fn reply(&mut $self_mut, call: DeferredCall, response: &[u8]) {
            $to_mut.reply(call, response);
        }

        #[inline]
        fn reply_with(&mut $self_mut, call: DeferredCall, len: usize, write: &mut dyn FnMut(&[u8], &mut [u8])) {
            $to_mut.reply_with(call, len, write);
        }
    };
}
pub(crate) use forward_common;

/// Defines all methods of an endpoint: each calls that of `$to`.
macro_rules! forward {
    (|$self:ident| $to:expr, |$self_mut:ident| $to_mut:expr) => {
        forward_common!(|$self| $to, |$self_mut| $to_mut);

        #[inline]
        fn config(&$self) -> &Config {
            $to.config()
        }

        #[inline]
        fn info(&$self) -> &EndpointInfo {
            $to.info()
        }

        #[inline]
        fn begin_connect(&mut $self_mut, address: &Address) -> Result<SessionId, ConnectError> {
            $to_mut.begin_connect(address)
        }

        #[inline]
        fn begin_connect_with(
            &mut $self_mut,
            address: &Address,
            options: ConnectOptions,
        ) -> Result<SessionId, ConnectError> {
            $to_mut.begin_connect_with(address, options)
        }

        #[inline]
        fn connect(&mut $self_mut, address: &str) -> Result<SessionId, ConnectError> {
            $to_mut.connect(address)
        }

        #[inline]
        fn connect_with(&mut $self_mut, address: &str, options: ConnectOptions) -> Result<SessionId, ConnectError> {
            $to_mut.connect_with(address, options)
        }

        #[inline]
        fn poll_event(&mut $self_mut) -> Option<SessionEvent> {
            $to_mut.poll_event()
        }

        #[inline]
        fn take_session_event(&mut $self_mut, lane: LaneId, session: SessionId) -> Option<SessionEvent> {
            $to_mut.take_session_event(lane, session)
        }

        #[inline(always)]
        fn enqueue_request(
            &mut $self_mut,
            session: SessionId,
            request_type: RequestType,
            request: MessageBuffer,
            response: MessageBuffer,
            options: CallOptions,
        ) -> Result<CallId, Rejected> {
            $to_mut.enqueue_request(session, request_type, request, response, options)
        }

        #[inline]
        fn poll_lane(&mut $self_mut, lane: LaneId) -> Option<Completion> {
            $to_mut.poll_lane(lane)
        }

        #[inline]
        fn poll_lane_event(&mut $self_mut, lane: LaneId) -> Option<SessionEvent> {
            $to_mut.poll_lane_event(lane)
        }

        #[inline(always)]
        fn poll_completion(&mut $self_mut) -> Option<Completion> {
            $to_mut.poll_completion()
        }
    };
}

pub(crate) use forward;

impl<E: Endpoint + ?Sized> Endpoint for Box<E> {
    forward!(|self| (**self), |self| (**self));
}

impl<E: Endpoint + ?Sized> Endpoint for &mut E {
    forward!(|self| (**self), |self| (**self));
}
