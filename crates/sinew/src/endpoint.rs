use sinew_fabric::{Address, Clock, PacketPort, Poller, PortStats, Step, Waker};
use sinew_host::{HostClock, SystemEntropy};
use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{Completion, Config, Rejected, Reply, RequestType, SessionEvent, SessionId, Stats};
#[cfg(feature = "shm")]
use sinew_shm::ShmPort;
#[cfg(feature = "udp")]
use sinew_udp::UdpPort;

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
/// [`Error::System`] when the system has no randomness.
pub fn endpoint<P: PacketPort>(nexus: &Nexus, port: P) -> Result<sinew_rpc::Rpc<P, HostClock>> {
    let entropy = SystemEntropy::new()
        .map_err(|source| Error::System { doing: "reading the system's randomness".to_owned(), source })?;
    Ok(sinew_rpc::Rpc::new(nexus, port, HostClock::new(), Box::new(entropy)))
}

/// An endpoint on one of the enabled fabrics, for what only that fabric has, or for code that is generic over the port.
// One endpoint a thread: the size does not matter, one more pointer to follow would.
#[allow(clippy::large_enum_variant)]
pub enum Endpoint {
    /// Shared memory.
    #[cfg(feature = "shm")]
    Shm(sinew_rpc::Rpc<ShmPort, HostClock>),
    /// Kernel UDP.
    #[cfg(feature = "udp")]
    Udp(sinew_rpc::Rpc<UdpPort, HostClock>),
    /// RDMA devices.
    #[cfg(feature = "ibverbs")]
    Ibverbs(sinew_rpc::Rpc<IbPort, HostClock>),
}

/// Does the same for every fabric.
macro_rules! each {
    ($endpoint:expr, $rpc:ident => $do:expr) => {
        match $endpoint {
            #[cfg(feature = "shm")]
            Endpoint::Shm($rpc) => $do,
            #[cfg(feature = "udp")]
            Endpoint::Udp($rpc) => $do,
            #[cfg(feature = "ibverbs")]
            Endpoint::Ibverbs($rpc) => $do,
        }
    };
}

/// An endpoint on a fabric that its address chooses: sessions, and the loop that serves and calls. It belongs to the thread that
/// made it.
///
/// It has the methods of [`sinew_rpc::Rpc`], where they are documented in full; each decides once between the enabled fabrics. By
/// what they are for:
///
/// - **open**: [`Self::open`] for a client, [`Self::open_with`] with handlers, limits, or both.
/// - **open sessions**: [`Self::connect`] waits, [`Self::begin_connect`] does not; [`Self::poll_event`] tells what became of
///   them; [`Self::disconnect`] ends them.
/// - **call, the quick way**: [`Self::alloc`] buffers once; [`Self::enqueue_request`] moves them in,
///   [`Self::poll_completion`] hands them back.
/// - **call, the simple way**: [`Self::call`].
/// - **turn the loop**: [`Self::turn`] once, [`Self::run_until`] for long; [`Self::wait`] sleeps.
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
    endpoint: Endpoint,
    poller: Poller,
    clock: HostClock,
}

impl Rpc {
    /// Opens an endpoint that only calls. The address says the fabric, and where others would find it: `shm://`, `udp://` and
    /// `ibverbs://` are enough for a client.
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
        let parsed: Address = address.parse()?;
        match parsed.scheme() {
            #[cfg(feature = "shm")]
            "shm" => Ok(endpoint(nexus, ShmPort::open(&parsed)?)?.into()),
            #[cfg(feature = "udp")]
            "udp" => Ok(endpoint(nexus, UdpPort::open(&parsed)?)?.into()),
            #[cfg(feature = "ibverbs")]
            "ibverbs" => Ok(endpoint(nexus, ibverbs_port(&parsed)?)?.into()),
            scheme => Err(Error::UnknownFabric {
                address: address.to_owned(),
                scheme: scheme.to_owned(),
                known: FABRICS.join(", "),
            }),
        }
    }

    fn around(endpoint: Endpoint) -> Self {
        let poller = Poller::new(each!(&endpoint, rpc => rpc.config().poller));
        Self { endpoint, poller, clock: HostClock::new() }
    }

    /// The endpoint on its fabric.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The endpoint on its fabric, to use.
    pub fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Gives up the choice at run time.
    pub fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }

    /// Where others reach this endpoint.
    pub fn address(&self) -> Address {
        each!(&self.endpoint, rpc => rpc.address())
    }

    /// The limits it runs with.
    pub fn config(&self) -> &Config {
        each!(&self.endpoint, rpc => rpc.config())
    }

    /// What the endpoint counted.
    pub fn stats(&self) -> Stats {
        each!(&self.endpoint, rpc => rpc.stats())
    }

    /// What its port counted.
    pub fn port_stats(&self) -> PortStats {
        each!(&self.endpoint, rpc => rpc.port_stats())
    }

    /// Wakes the endpoint's thread out of [`Self::wait`], from any thread.
    pub fn waker(&self) -> Waker {
        each!(&self.endpoint, rpc => rpc.waker())
    }

    /// Sessions of this endpoint, in both roles.
    pub fn sessions(&self) -> usize {
        each!(&self.endpoint, rpc => rpc.sessions())
    }

    /// Makes a message buffer of `len` bytes, whose contents are unspecified. Takes a lock: allocate up front and reuse.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        each!(&self.endpoint, rpc => rpc.alloc(len))
    }

    /// Begins to open a session, without waiting; see [`sinew_rpc::Rpc::begin_connect`].
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] when the name leads nowhere or a limit of this endpoint is reached.
    pub fn begin_connect(&mut self, address: &str) -> Result<SessionId> {
        let address: Address = address.parse()?;
        Ok(each!(&mut self.endpoint, rpc => rpc.begin_connect(&address))?)
    }

    /// Opens a session, turning the loop until it is open.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`]: no such server, no answer, refused, or a limit of this endpoint.
    pub fn connect(&mut self, address: &str) -> Result<SessionId> {
        Ok(each!(&mut self.endpoint, rpc => rpc.connect(address))?)
    }

    /// Ends a session; its calls complete with [`sinew_rpc::Cause::Disconnected`]. Returns whether there was such a session.
    pub fn disconnect(&mut self, session: SessionId) -> bool {
        each!(&mut self.endpoint, rpc => rpc.disconnect(session))
    }

    /// The next thing that happened to a session.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        each!(&mut self.endpoint, rpc => rpc.poll_event())
    }

    /// Hands a call to a session; see [`sinew_rpc::Rpc::enqueue_request`]. Both buffers come back with the completion.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with both buffers: no such session, too large, foreign buffers, a full queue.
    // The error is as large as what it gives back, and boxing it would allocate.
    #[allow(clippy::result_large_err)]
    #[inline]
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        tag: u64,
    ) -> Result<(), Rejected> {
        each!(&mut self.endpoint, rpc => rpc.enqueue_request(session, request_type, request, response, tag))
    }

    /// Cancels the calls of a session with this tag. Returns how many there were.
    pub fn cancel(&mut self, session: SessionId, tag: u64) -> usize {
        each!(&mut self.endpoint, rpc => rpc.cancel(session, tag))
    }

    /// Starts to bring a session's state near, for a call that is about to be enqueued; see
    /// [`sinew_rpc::Rpc::prefetch_session`].
    #[inline]
    pub fn prefetch_session(&self, session: SessionId) {
        each!(&self.endpoint, rpc => rpc.prefetch_session(session));
    }

    /// The next call that is over.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        each!(&mut self.endpoint, rpc => rpc.poll_completion())
    }

    /// Turns the loop once, without blocking. Returns whether anything happened.
    #[inline]
    pub fn turn(&mut self) -> bool {
        each!(&mut self.endpoint, rpc => rpc.turn())
    }

    /// Sleeps until something may have arrived, a timer of the endpoint is due, or `timeout_ns` passed.
    ///
    /// # Errors
    ///
    /// [`Error::System`], what the port says.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> Result<()> {
        each!(&mut self.endpoint, rpc => rpc.wait(timeout_ns))?;
        Ok(())
    }

    /// Turns the loop until `done` says so, sleeping when there is nothing to do as [`Config::poller`] allows.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the port cannot sleep.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> Result<()> {
        let mut was_busy = false;
        while !done(self) {
            if self.turn() {
                was_busy = true;
                continue;
            }
            // The poller hears of work once it pauses: while there is some, its clock need not be read.
            let found_work = std::mem::take(&mut was_busy);
            if self.poller.step(self.clock.now_ns(), found_work) == Step::Block {
                self.wait(None)?;
            }
        }
        Ok(())
    }

    /// Calls and waits for the response, at most [`Config::call_timeout_ns`].
    ///
    /// # Errors
    ///
    /// [`Error::Call`] says which peer, why, and whether the request may have run.
    pub fn call(&mut self, session: SessionId, request_type: RequestType, request: impl AsRef<[u8]>) -> Result<Reply> {
        Ok(each!(&mut self.endpoint, rpc => rpc.call(session, request_type, request))?)
    }
}

#[cfg(feature = "shm")]
impl From<sinew_rpc::Rpc<ShmPort, HostClock>> for Rpc {
    fn from(rpc: sinew_rpc::Rpc<ShmPort, HostClock>) -> Self {
        Self::around(Endpoint::Shm(rpc))
    }
}

#[cfg(feature = "udp")]
impl From<sinew_rpc::Rpc<UdpPort, HostClock>> for Rpc {
    fn from(rpc: sinew_rpc::Rpc<UdpPort, HostClock>) -> Self {
        Self::around(Endpoint::Udp(rpc))
    }
}

#[cfg(feature = "ibverbs")]
impl From<sinew_rpc::Rpc<IbPort, HostClock>> for Rpc {
    fn from(rpc: sinew_rpc::Rpc<IbPort, HostClock>) -> Self {
        Self::around(Endpoint::Ibverbs(rpc))
    }
}
