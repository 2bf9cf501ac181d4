//! Endpoints on the fabrics of this build: [`Rpc`], whose fabric its address chooses, and [`endpoint`] over any port.

use sinew_fabric::{Address, AddressError, PACKET_LEN_MIN, PacketPort, PortError, PortStats, Waker};
use sinew_host::{HostClock, SystemEntropy};
use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{
    CallBackError, CallId, CallOptions, ClientEvent, ClientId, Completion, Config, ConnectError, ConnectOptions,
    Endpoint, EndpointInfo, LaneId, Rejected, Reply, RequestType, RpcHandle, SessionEvent, SessionId, SessionSlots,
    Stats, StatsReader,
};
#[cfg(feature = "shm")]
use sinew_shm::ShmPort;
#[cfg(feature = "udp")]
use sinew_udp::UdpPort;
#[cfg(feature = "xdp")]
use sinew_xdp::XdpPort;

use crate::error::{Error, Result};
#[cfg(feature = "ibverbs")]
use crate::ibverbs_port::{IbPort, ibverbs_port};
use crate::nexus::Nexus;

/// The schemes of the fabrics in this build.
pub const FABRICS: &[&str] = &[
    #[cfg(feature = "shm")]
    "shm",
    #[cfg(feature = "udp")]
    "udp",
    #[cfg(feature = "ibverbs")]
    "ibverbs",
    #[cfg(feature = "xdp")]
    "xdp",
];

/// An endpoint of `nexus` on `port`, with the machine's clock and randomness.
///
/// ```
/// use sinew::prelude::*;
/// use sinew::shm::Hub;
///
/// let hub = Hub::new();
/// let mut rpc = sinew::endpoint(&Nexus::client(), hub.port("")?)?;
/// assert!(!rpc.turn());
/// # Ok::<(), sinew::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::System`] when the system has no randomness; [`PortError::PacketsTooSmall`] when no session could open over
/// the port.
pub fn endpoint<P: PacketPort>(nexus: &Nexus, port: P) -> Result<sinew_rpc::Rpc<P, HostClock>> {
    numbered(nexus, 0, port)
}

/// As [`endpoint`], for one of several endpoints.
fn numbered<P: PacketPort>(nexus: &Nexus, index: usize, port: P) -> Result<sinew_rpc::Rpc<P, HostClock>> {
    let caps = port.caps();
    if caps.packet_len_max < PACKET_LEN_MIN {
        let packet_len_max = caps.packet_len_max + caps.overhead;
        let address = port.address().to_string();
        return Err(PortError::PacketsTooSmall { address, packet_len_max, overhead: caps.overhead }.into());
    }
    let entropy = SystemEntropy::new()
        .map_err(|source| Error::System { doing: "reading the system's randomness".to_owned(), source })?;
    Ok(sinew_rpc::Rpc::numbered(nexus, index, port, HostClock::new(), Box::new(entropy)))
}

fn unknown_fabric(address: &str, scheme: &str) -> Error {
    Error::UnknownFabric { address: address.to_owned(), scheme: scheme.to_owned(), known: FABRICS.join(", ") }
}

/// An endpoint on one of the enabled fabrics, or on a port of the program's own: for what only that fabric has, or for
/// code that is generic over the port.
// There is one endpoint for each thread: its size does not matter, but one more pointer to follow would.
#[allow(clippy::large_enum_variant)]
pub enum FabricEndpoint {
    /// Shared memory.
    #[cfg(feature = "shm")]
    Shm(sinew_rpc::Rpc<ShmPort, HostClock>),
    /// Kernel UDP.
    #[cfg(feature = "udp")]
    Udp(sinew_rpc::Rpc<UdpPort, HostClock>),
    /// RDMA devices.
    #[cfg(feature = "ibverbs")]
    Ibverbs(sinew_rpc::Rpc<IbPort, HostClock>),
    /// AF_XDP.
    #[cfg(feature = "xdp")]
    Xdp(sinew_rpc::Rpc<XdpPort, HostClock>),
    /// Any other port, or clock; see [`Rpc::over`].
    Other(Box<dyn Endpoint>),
}

/// Evaluates the same expression for every fabric, and also for other ports unless a second one is given for them.
macro_rules! for_each_fabric {
    ($endpoint:expr, $rpc:ident => $do:expr) => {
        for_each_fabric!($endpoint, $rpc => $do, $rpc => $do)
    };
    ($endpoint:expr, $rpc:ident => $do:expr, $other:ident => $do_other:expr) => {
        match $endpoint {
            #[cfg(feature = "shm")]
            FabricEndpoint::Shm($rpc) => $do,
            #[cfg(feature = "udp")]
            FabricEndpoint::Udp($rpc) => $do,
            #[cfg(feature = "ibverbs")]
            FabricEndpoint::Ibverbs($rpc) => $do,
            #[cfg(feature = "xdp")]
            FabricEndpoint::Xdp($rpc) => $do,
            FabricEndpoint::Other($other) => $do_other,
        }
    };
}

// These come after the macro, which they use.
mod endpoint_impl;
mod serving;
mod sleeping;

/// An endpoint on a fabric that its address chooses: sessions, and the loop that serves and calls. It belongs to the
/// thread that made it.
///
/// It has the methods of [`sinew_rpc::Rpc`], where they are documented in full; each one chooses between the enabled
/// fabrics once. It implements [`Endpoint`], which libraries take. Its methods by purpose:
///
/// - **open an endpoint**: [`Self::open`] for a client, [`Self::open_with`] with handlers, limits, or both;
///   [`Self::over`] a port that belongs to no fabric of this build.
/// - **open sessions**: [`Self::connect`] waits, [`Self::begin_connect`] does not; [`Self::poll_event`] tells what
///   became of them; [`Self::disconnect`] ends them.
/// - **call, on the fast path**: [`Self::alloc`] buffers once; [`Self::enqueue_request`] moves them in,
///   [`Self::poll_completion`] hands them back.
/// - **call, the simple way**: [`Self::call`].
/// - **know one's clients**: [`Self::poll_client_event`] tells who comes and goes, [`Self::session_to`] how to call
///   them.
/// - **limit calls in time, and separate users**: [`CallOptions`] have a deadline and a lane; [`Self::cancel`] ends a
///   call by its id; [`Self::open_lane`] gives a library completions and events of its own.
/// - **keep many calls in flight**: a [`Channel`](crate::Channel) spreads them over as many sessions as they need.
/// - **turn the loop**: [`Self::turn`] once, [`Self::run_until`] and [`Self::try_run_until`] for long; [`Self::wait`]
///   sleeps.
/// - **sleep on several things**: [`Self::arm`] says whether and until when, [`Self::descriptor`] on what;
///   [`Self::rest_beside`] does both.
/// - **serve with state of one's own**: [`Self::handle`] and [`Self::handle_burst`] for handlers that belong to this
///   endpoint; [`Self::turn_with`] hands requests to a closure, [`Self::poll_request`] returns them one by one. A
///   server turns its endpoints itself, or has [a program](crate::Program) do it.
/// - **be reached from other threads**: [`Self::remote_handle`] takes their closures and calls.
/// - **be observed**: [`Self::stats`] here, [`Self::stats_reader`] from other threads.
///
/// ```
/// use sinew::prelude::*;
///
/// const ADD: RequestType = RequestType::new(7);
/// let nexus = Nexus::builder()
///     .handle(ADD, |call: Call| {
///         let sum: u8 = call.request().iter().sum();
///         call.reply(&[sum])
///     })
///     .build()?;
/// let server = nexus.server().at("udp://127.0.0.1:0").start()?;
///
/// let mut rpc = Rpc::open("udp://")?;
/// let session = rpc.connect(&server.addresses()[0].to_string())?;
/// for tag in 0..4 {
///     let mut request = rpc.alloc(2)?;
///     request.fill(&[40, tag as u8])?;
///     let response = rpc.alloc(1)?;
///     rpc.enqueue_request(session, ADD, request, response, tag)?;
/// }
/// let mut done = 0;
/// rpc.run_until(|rpc| {
///     while let Some(completion) = rpc.poll_completion() {
///         assert_eq!(completion.response[0], 40 + completion.tag as u8);
///         done += 1;
///     }
///     done == 4
/// })?;
/// server.stop()?;
/// # Ok::<(), sinew::Error>(())
/// ```
pub struct Rpc {
    endpoint: FabricEndpoint,
}

impl Rpc {
    /// Opens an endpoint that only calls. The address gives the fabric, and where others would find the endpoint. For a
    /// client `shm://`, `udp://` or `ibverbs://` is enough, or `xdp://INTERFACE`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownFabric`], [`Error::Port`].
    pub fn open(address: &str) -> Result<Self> {
        Self::open_with(&Nexus::client(), address)
    }

    /// Opens an endpoint with the handlers and limits of `nexus`.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(nexus: &Nexus, address: &str) -> Result<Self> {
        Self::open_numbered(nexus, 0, address)
    }

    /// As [`Self::open_with`], for one of several endpoints: the makers of handlers are given its number
    /// ([`EndpointInfo::index`]).
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_numbered(nexus: &Nexus, index: usize, address: &str) -> Result<Self> {
        let parsed: Address = address.parse()?;
        match parsed.scheme() {
            #[cfg(feature = "shm")]
            "shm" => Ok(numbered(nexus, index, ShmPort::open(&parsed)?)?.into()),
            #[cfg(feature = "udp")]
            "udp" => Ok(numbered(nexus, index, UdpPort::open(&parsed)?)?.into()),
            #[cfg(feature = "ibverbs")]
            "ibverbs" => Ok(numbered(nexus, index, ibverbs_port(&parsed)?)?.into()),
            #[cfg(feature = "xdp")]
            "xdp" => Ok(numbered(nexus, index, XdpPort::open(&parsed)?)?.into()),
            scheme => Err(unknown_fabric(address, scheme)),
        }
    }

    /// Opens an endpoint over any port: a fabric that this crate does not know, or one of its own in
    /// [layers](sinew_fabric::layer), which trace, capture, disturb or seal packets.
    ///
    /// Each method is then an indirect call, which cannot be inlined, while the fabrics of this build are told apart by
    /// a comparison. That costs some forty instructions for each small call, see [`Endpoint`]; packets take the usual
    /// path. Where this is too much, [`endpoint`] makes an endpoint whose type names its port.
    ///
    /// ```
    /// use sinew::fabric::trace::{TextSink, Traced};
    /// use sinew::prelude::*;
    ///
    /// # fn main() -> sinew::Result<()> {
    /// let port = sinew::udp::UdpPort::open(&"udp://".parse()?)?;
    /// let mut rpc = Rpc::over(&Nexus::client(), Traced::new(port, TextSink::new(std::io::stderr())))?;
    /// assert_eq!(rpc.address().scheme(), "udp");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`endpoint`].
    pub fn over(nexus: &Nexus, port: impl PacketPort + 'static) -> Result<Self> {
        Self::over_numbered(nexus, 0, port)
    }

    /// As [`Self::over`], for one of several endpoints.
    ///
    /// # Errors
    ///
    /// As [`endpoint`].
    pub fn over_numbered(nexus: &Nexus, index: usize, port: impl PacketPort + 'static) -> Result<Self> {
        Ok(Self { endpoint: FabricEndpoint::Other(Box::new(numbered(nexus, index, port)?)) })
    }

    /// The endpoint on its fabric.
    pub fn endpoint(&self) -> &FabricEndpoint {
        &self.endpoint
    }

    /// The endpoint on its fabric, mutably.
    pub fn endpoint_mut(&mut self) -> &mut FabricEndpoint {
        &mut self.endpoint
    }

    /// Returns the endpoint on its fabric, without the choice at run time.
    pub fn into_endpoint(self) -> FabricEndpoint {
        self.endpoint
    }

    /// Address at which others reach this endpoint.
    pub fn address(&self) -> Address {
        for_each_fabric!(&self.endpoint, rpc => rpc.address())
    }

    /// Limits with which it runs.
    pub fn config(&self) -> &Config {
        for_each_fabric!(&self.endpoint, rpc => rpc.config())
    }

    /// Counters of the endpoint.
    pub fn stats(&self) -> Stats {
        for_each_fabric!(&self.endpoint, rpc => rpc.stats())
    }

    /// Counters of its port.
    pub fn port_stats(&self) -> PortStats {
        for_each_fabric!(&self.endpoint, rpc => rpc.port_stats())
    }

    /// Information that makers of handlers get about this endpoint.
    pub fn info(&self) -> &EndpointInfo {
        for_each_fabric!(&self.endpoint, rpc => rpc.info())
    }

    /// Has the endpoint publish its counters from now on, so that other threads can read them while it runs; see
    /// [`StatsReader`].
    pub fn stats_reader(&mut self) -> StatsReader {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.stats_reader())
    }

    /// A handle by which other threads reach this endpoint: they have it run closures and make calls, and learn their
    /// results; see [`EndpointInfo::remote_handle`].
    ///
    /// ```
    /// use sinew::prelude::*;
    ///
    /// const ADD: RequestType = RequestType::new(7);
    /// let nexus = Nexus::builder()
    ///     .handle(ADD, |call: Call| {
    ///         let sum = call.request().iter().sum();
    ///         call.reply(&[sum])
    ///     })
    ///     .build()?;
    /// let server = nexus.server().at("udp://127.0.0.1:0").start()?;
    ///
    /// let mut rpc = Rpc::open("udp://")?;
    /// let session = rpc.connect(&server.addresses()[0].to_string())?;
    /// let (handle, waker) = (rpc.remote_handle(), rpc.waker());
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let adding = std::thread::spawn(move || -> sinew::Result<()> {
    ///     let reply = handle.call(session, ADD, [40, 2], 0)?.wait()?;
    ///     tell.send(reply[0]).expect("somebody listens");
    ///     // A channel wakes no endpoint that sleeps.
    ///     waker.wake();
    ///     Ok(())
    /// });
    /// let mut sum = None;
    /// rpc.run_until(|_| {
    ///     sum = told.try_recv().ok();
    ///     sum.is_some() || adding.is_finished()
    /// })?;
    /// adding.join().unwrap()?;
    /// assert_eq!(sum, Some(42));
    /// # server.stop()?;
    /// # Ok::<(), sinew::Error>(())
    /// ```
    pub fn remote_handle(&self) -> RpcHandle {
        self.info().remote_handle()
    }

    /// Wakes the endpoint's thread from [`Self::wait`], or from a sleep on its descriptor; may be used on any thread.
    pub fn waker(&self) -> Waker {
        for_each_fabric!(&self.endpoint, rpc => rpc.waker())
    }

    /// Sessions of this endpoint, in both roles.
    pub fn sessions(&self) -> usize {
        for_each_fabric!(&self.endpoint, rpc => rpc.sessions())
    }

    /// Allocates a message buffer of `len` bytes, whose contents are unspecified. Takes a lock: allocate in advance and
    /// reuse.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        for_each_fabric!(&self.endpoint, rpc => rpc.alloc(len))
    }

    /// Makes the system back `len` bytes of message buffers, and all buffers made so far (these only from Linux 5.14
    /// on). An endpoint that must not wait for memory later calls this when it starts.
    pub fn back_buffers(&self, len: usize) {
        for_each_fabric!(&self.endpoint, rpc => rpc.back_buffers(len));
    }

    /// Begins to open a session, without waiting; see [`sinew_rpc::Rpc::begin_connect`].
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] when the address leads nowhere or is of another fabric than this endpoint, or when a limit of
    /// this endpoint is reached; [`Error::UnknownFabric`].
    pub fn begin_connect(&mut self, address: &str) -> Result<SessionId> {
        let address: Address = address.parse()?;
        self.connect_or_explain(|rpc| Endpoint::begin_connect(rpc, &address))
    }

    /// As [`Self::begin_connect`], with options; see [`sinew_rpc::Rpc::begin_connect_with`].
    ///
    /// # Errors
    ///
    /// As for [`Self::begin_connect`].
    pub fn begin_connect_with(&mut self, address: &str, options: ConnectOptions) -> Result<SessionId> {
        let address: Address = address.parse()?;
        self.connect_or_explain(|rpc| Endpoint::begin_connect_with(rpc, &address, options))
    }

    /// Opens a session, turning the loop until it is open.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`]: no such server, one on another fabric than this endpoint, no answer, refused, or a limit of
    /// this endpoint; [`Error::UnknownFabric`].
    pub fn connect(&mut self, address: &str) -> Result<SessionId> {
        self.connect_with(address, ConnectOptions::new())
    }

    /// As [`Self::connect`], with options: which lane gets the session's events, and whether the server may call back.
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`].
    pub fn connect_with(&mut self, address: &str, options: ConnectOptions) -> Result<SessionId> {
        self.connect_or_explain(|rpc| Endpoint::connect_with(rpc, address, options))
    }

    /// Connects. For a scheme that no fabric of this build has, the error lists those that there are; a port of the
    /// program's own says itself what it can reach.
    fn connect_or_explain(
        &mut self,
        connect: impl FnOnce(&mut Self) -> Result<SessionId, ConnectError>,
    ) -> Result<SessionId> {
        connect(self).map_err(|error| match error {
            ConnectError::Port(PortError::Address(AddressError::WrongFabric { address, scheme, .. }))
                if !FABRICS.contains(&&*scheme) && !matches!(self.endpoint, FabricEndpoint::Other(_)) =>
            {
                unknown_fabric(&address, &scheme)
            }
            error => error.into(),
        })
    }

    /// Ends a session, whose calls complete with [`sinew_rpc::Cause::Disconnected`]. Returns whether there was such a
    /// session.
    pub fn disconnect(&mut self, session: SessionId) -> bool {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.disconnect(session))
    }

    /// The next event of a session.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.poll_event())
    }

    /// The session for calls to a client; see [`sinew_rpc::Rpc::session_to`].
    ///
    /// # Errors
    ///
    /// [`CallBackError`] if the client is gone, or accepts no calls.
    pub fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError> {
        for_each_fabric!(&self.endpoint, rpc => rpc.session_to(client))
    }

    /// The next event of a client that came or left; see [`sinew_rpc::Rpc::poll_client_event`].
    pub fn poll_client_event(&mut self) -> Option<ClientEvent> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.poll_client_event())
    }

    /// Ends a client's session; see [`sinew_rpc::Rpc::dismiss`]. Returns whether there was such a client.
    pub fn dismiss(&mut self, client: ClientId) -> bool {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.dismiss(client))
    }

    /// The slots of a session that this endpoint opened; see [`sinew_rpc::Rpc::session_slots`].
    #[inline]
    pub fn session_slots(&self, session: SessionId) -> Option<SessionSlots> {
        for_each_fabric!(&self.endpoint, rpc => rpc.session_slots(session))
    }

    /// The next event of one session, out of its turn; see [`sinew_rpc::Rpc::take_session_event`].
    pub fn take_session_event(&mut self, lane: LaneId, session: SessionId) -> Option<SessionEvent> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.take_session_event(lane, session))
    }

    /// Hands a call to a session; see [`sinew_rpc::Rpc::enqueue_request`]. Both buffers come back with the completion.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with both buffers: there is no such session, a message is too large, a buffer is foreign, or the
    /// queue is full.
    // The error is as large as the buffers that it returns, and boxing it would allocate.
    #[allow(clippy::result_large_err)]
    #[inline]
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: impl Into<CallOptions>,
    ) -> Result<CallId, Rejected> {
        let options = options.into();
        for_each_fabric!(&mut self.endpoint, rpc => rpc.enqueue_request(session, request_type, request, response, options))
    }

    /// Cancels a call; see [`sinew_rpc::Rpc::cancel`]. Returns whether it was in flight.
    pub fn cancel(&mut self, call: CallId) -> bool {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.cancel(call))
    }

    /// The time on the endpoint's clock; see [`sinew_rpc::Rpc::now_ns`].
    pub fn now_ns(&self) -> u64 {
        for_each_fabric!(&self.endpoint, rpc => rpc.now_ns())
    }

    /// Opens a lane, with completions and events of its own; see [`sinew_rpc::Rpc::open_lane`].
    pub fn open_lane(&mut self) -> LaneId {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.open_lane())
    }

    /// Closes a lane, whose calls are cancelled and whose sessions end. Returns whether there was such a lane.
    pub fn close_lane(&mut self, lane: LaneId) -> bool {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.close_lane(lane))
    }

    /// The next lane that has got something since it was last returned here; see [`sinew_rpc::Rpc::poll_ready_lane`].
    pub fn poll_ready_lane(&mut self) -> Option<LaneId> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.poll_ready_lane())
    }

    /// The next completed call of a lane.
    pub fn poll_lane(&mut self, lane: LaneId) -> Option<Completion> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.poll_lane(lane))
    }

    /// The next event of a session of a lane.
    pub fn poll_lane_event(&mut self, lane: LaneId) -> Option<SessionEvent> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.poll_lane_event(lane))
    }

    /// Starts to fetch a session's state into the cache, for a call that is about to be enqueued; see
    /// [`sinew_rpc::Rpc::prefetch_session`].
    #[inline]
    pub fn prefetch_session(&self, session: SessionId) {
        for_each_fabric!(&self.endpoint, rpc => rpc.prefetch_session(session));
    }

    /// The next completed call.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.poll_completion())
    }

    /// Turns the loop once, without blocking. Returns whether anything happened.
    #[inline]
    pub fn turn(&mut self) -> bool {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.turn())
    }

    /// Turns the loop once, and sleeps if there has been nothing to do for longer than [`Config::poller`] spins.
    /// Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the port cannot sleep.
    #[inline]
    pub fn turn_or_wait(&mut self) -> Result<bool> {
        Ok(for_each_fabric!(&mut self.endpoint, rpc => rpc.turn_or_wait())?)
    }

    /// Turns the loop until `done` returns true, sleeping when there is nothing to do, as [`Config::poller`] allows.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the port cannot sleep.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> Result<()> {
        self.try_run_until(|rpc| Ok(done(rpc)))
    }

    /// As [`Self::run_until`], until `done` returns true or an error, which ends the loop at once. The endpoint is
    /// unaffected: the loop can be entered again.
    ///
    /// ```
    /// # use sinew::prelude::*;
    /// # fn first_answer(rpc: &mut Rpc) -> sinew::Result<()> {
    /// rpc.try_run_until(|rpc| -> sinew::Result<bool> {
    ///     let Some(completion) = rpc.poll_completion() else { return Ok(false) };
    ///     completion.result?;
    ///     Ok(true)
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `done`; [`Error::System`] when the port cannot sleep.
    pub fn try_run_until<E: From<Error>>(
        &mut self,
        mut done: impl FnMut(&mut Self) -> Result<bool, E>,
    ) -> Result<(), E> {
        while !done(self)? {
            self.turn_or_wait()?;
        }
        Ok(())
    }

    /// Calls and waits for the response, at most [`Config::call_timeout_ns`].
    ///
    /// # Errors
    ///
    /// [`Error::Call`] says which peer, why, and whether the request may have run.
    pub fn call(&mut self, session: SessionId, request_type: RequestType, request: impl AsRef<[u8]>) -> Result<Reply> {
        Ok(for_each_fabric!(&mut self.endpoint, rpc => rpc.call(session, request_type, request.as_ref()))?)
    }

    /// As [`Self::call`], for at most `timeout_ns` nanoseconds.
    ///
    /// # Errors
    ///
    /// As for [`Self::call`].
    pub fn call_within(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: impl AsRef<[u8]>,
        timeout_ns: u64,
    ) -> Result<Reply> {
        Ok(
            for_each_fabric!(&mut self.endpoint, rpc => rpc.call_within(session, request_type, request.as_ref(), timeout_ns))?,
        )
    }
}

/// An endpoint of any kind, such as one in virtual time, for code that is written for this type. Its methods cost as
/// much as those of [`Rpc::over`].
///
/// ```
/// # use sinew::fabric::{ManualClock, SeededGenerator, loopback::Network};
/// let clock = ManualClock::new();
/// let (nexus, port) = (sinew::Nexus::client(), Network::new(clock.clone()).port("here")?);
/// let endpoint = sinew::rpc::Rpc::new(&nexus, port, clock, Box::new(SeededGenerator::new(1)));
/// let endpoint: Box<dyn sinew::Endpoint> = Box::new(endpoint);
/// let mut rpc = sinew::Rpc::from(endpoint);
/// assert!(!rpc.turn());
/// # Ok::<(), sinew::Error>(())
/// ```
impl From<Box<dyn Endpoint>> for Rpc {
    fn from(endpoint: Box<dyn Endpoint>) -> Self {
        Self { endpoint: FabricEndpoint::Other(endpoint) }
    }
}

#[cfg(feature = "shm")]
impl From<sinew_rpc::Rpc<ShmPort, HostClock>> for Rpc {
    fn from(rpc: sinew_rpc::Rpc<ShmPort, HostClock>) -> Self {
        Self { endpoint: FabricEndpoint::Shm(rpc) }
    }
}

#[cfg(feature = "udp")]
impl From<sinew_rpc::Rpc<UdpPort, HostClock>> for Rpc {
    fn from(rpc: sinew_rpc::Rpc<UdpPort, HostClock>) -> Self {
        Self { endpoint: FabricEndpoint::Udp(rpc) }
    }
}

#[cfg(feature = "xdp")]
impl From<sinew_rpc::Rpc<XdpPort, HostClock>> for Rpc {
    fn from(rpc: sinew_rpc::Rpc<XdpPort, HostClock>) -> Self {
        Self { endpoint: FabricEndpoint::Xdp(rpc) }
    }
}

#[cfg(feature = "ibverbs")]
impl From<sinew_rpc::Rpc<IbPort, HostClock>> for Rpc {
    fn from(rpc: sinew_rpc::Rpc<IbPort, HostClock>) -> Self {
        Self { endpoint: FabricEndpoint::Ibverbs(rpc) }
    }
}
