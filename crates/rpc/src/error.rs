//! What can go wrong, for whom, and what was or was not done.

use std::fmt;
use std::sync::Arc;

use sinew_fabric::PortError;
use sinew_mem::{AllocError, MessageBuffer};

use crate::request_type::RequestType;

/// A configuration that cannot work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Config::{field} is {value}: {expected}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// What it holds.
    pub value: u64,
    /// What it may hold.
    pub expected: &'static str,
}

/// Whether a failed call's handler ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// It cannot have: the request never left whole. Sending it again elsewhere is safe.
    NeverSent,
    /// It may have: the request left, the response did not come.
    MayHaveRun,
    /// It did not: the server said so.
    NotRun,
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverSent => "the request was never sent",
            Self::MayHaveRun => "the request may have run",
            Self::NotRun => "the request did not run",
        })
    }
}

/// Why a call, or a whole session, failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing was heard from the peer for `Config::peer_timeout_ns`.
    PeerSilent,
    /// The peer's process ended.
    PeerDied,
    /// The peer closed its endpoint or this session.
    PeerClosed,
    /// The fabric says that nobody listens there.
    PeerUnreachable,
    /// Its port is there and has no room for us.
    PeerRefused,
    /// The server did not open the session: [`ConnectError`], in the session's event, says why.
    SessionRefused,
    /// The peer no longer knows this session: it restarted, or gave us up while we were silent.
    PeerForgot,
    /// This side disconnected the session.
    Disconnected,
    /// The caller cancelled.
    Cancelled,
    /// The call's deadline passed.
    DeadlinePassed,
    /// The server registered no handler for this request type.
    NoHandler,
    /// The handler let the call go without an answer.
    HandlerDropped,
    /// The handler panicked.
    HandlerPanicked,
    /// The server had no worker or no memory for the request, or its share for us is used up.
    ServerBusy,
    /// The server has seen a later request in the call's place: it knows nothing of this one any more.
    Overtaken,
    /// The request is larger than the session, once open, allows, or than all that the server has for us: its
    /// [`Config::peer_share_percent`](crate::Config::peer_share_percent) of its memory.
    RequestTooLarge,
    /// The response is larger than the session allows.
    ResponseTooLarge,
    /// No memory at this side, for the response or to lay the request out.
    NoMemory,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl Cause {
    fn text(self) -> &'static str {
        match self {
            Self::PeerSilent => "it has been silent for longer than the peer time-out",
            Self::PeerDied => "its process died",
            Self::PeerClosed => "it closed the session",
            Self::PeerUnreachable => "nobody listens there",
            Self::PeerRefused => "its port refused us: it has no room for more links, memory or descriptors",
            Self::SessionRefused => "it refused the session (the session's ConnectFailed event says why)",
            Self::PeerForgot => "it no longer knows this session (it restarted, or gave us up)",
            Self::Disconnected => "this side disconnected the session",
            Self::Cancelled => "the caller cancelled",
            Self::DeadlinePassed => "the deadline passed",
            Self::NoHandler => "it has no handler for this request type",
            Self::HandlerDropped => "its handler dropped the call without an answer",
            Self::HandlerPanicked => "its handler panicked",
            Self::ServerBusy => "it has no worker or memory left for the request, or no more of its share for us",
            Self::Overtaken => "it has seen a later request in this one's place",
            Self::RequestTooLarge => {
                "the request is larger than the session's largest message, or than one peer's share of its memory"
            }
            Self::ResponseTooLarge => "the response is larger than the session's largest message",
            Self::NoMemory => "no memory is left at this side",
        }
    }
}

/// What can be done about a session that did not open.
fn remedy(cause: Cause) -> &'static str {
    match cause {
        Cause::PeerUnreachable | Cause::PeerDied => "; start the server first, or check the address",
        _ => "",
    }
}

/// A call that got no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Whom it was for.
    pub peer: Arc<str>,
    /// Why it failed.
    pub cause: Cause,
    /// Whether its handler ran.
    pub execution: Execution,
    /// What it asked for.
    pub request_type: RequestType,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, cause, execution, request_type } = self;
        // Clients that are called back have come by themselves.
        let peer = if peer.is_empty() { "a client" } else { peer };
        match cause {
            Cause::NoHandler => {
                let number = request_type.number();
                write!(f, "call to {peer} failed: it has no handler for request type {number}; {execution}")
            }
            _ => write!(f, "call to {peer} failed: {}; {execution}", cause.text()),
        }
    }
}

impl std::error::Error for CallError {}

/// Why a session could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address leads nowhere.
    #[error(transparent)]
    Port(#[from] PortError),
    /// No answer in `Config::connect_timeout_ns`.
    #[error("no answer from {peer} within {timeout_ms} ms: is the server running its event loop?")]
    TimedOut {
        /// Whom we asked.
        peer: Arc<str>,
        /// How long.
        timeout_ms: u64,
    },
    /// The session failed before it was open.
    #[error("connecting to {peer} failed: {}{}", cause.text(), remedy(*cause))]
    Failed {
        /// Whom we asked.
        peer: Arc<str>,
        /// Why.
        cause: Cause,
    },
    /// The server's receive capacity is committed.
    #[error(
        "{peer} refused the session: its receive capacity of {packets} packets is committed ({committed} already); \
         lower Config::credits, raise the port's ring or socket buffer, or set Config::overcommit there"
    )]
    PeerReceiveCapacity {
        /// Whom we asked.
        peer: Arc<str>,
        /// Packets that it can hold.
        packets: u64,
        /// Packets committed to other sessions.
        committed: u64,
    },
    /// The server has as many sessions as it may.
    #[error("{peer} refused the session: it has its limit of {limit} sessions; raise Config::sessions_max there")]
    PeerSessions {
        /// Whom we asked.
        peer: Arc<str>,
        /// Its limit.
        limit: u64,
    },
    /// We have what one peer may have of the server.
    #[error(
        "{peer} refused the session: its share for one peer is {limit} {of}, and we have that; \
         close sessions, lower Config::credits, or raise Config::peer_share_percent there"
    )]
    PeerShare {
        /// Whom we asked.
        peer: Arc<str>,
        /// The share.
        limit: u64,
        /// Of what.
        of: &'static str,
    },
    /// This port's receive capacity is committed.
    #[error(
        "a further session would exceed this port's receive capacity of {packets} packets ({committed} committed); \
         lower Config::credits, raise the port's ring or socket buffer, or set Config::overcommit"
    )]
    ReceiveCapacity {
        /// Packets that the port can hold.
        packets: u64,
        /// Packets committed to sessions.
        committed: u64,
    },
    /// The server speaks another version of the protocol.
    #[error("{peer} speaks version {theirs} of the protocol, and we speak {ours}: update the older side")]
    PeerVersion {
        /// Whom we asked.
        peer: Arc<str>,
        /// Its version.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// The lane that shall hear of the session is no lane, or has too much to take already.
    #[error(transparent)]
    Lane(EnqueueError),
    /// This endpoint has as many sessions as it may.
    #[error("this endpoint has its limit of {limit} sessions; raise Config::sessions_max")]
    Sessions {
        /// The limit.
        limit: usize,
    },
    /// The port failed while we waited.
    #[error("the port failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The session is closed, or was never this endpoint's.
    #[error("no such session: it was closed or failed, or belongs to another endpoint")]
    NoSuchSession,
    /// The request is larger than the session allows.
    #[error(
        "a request of {len} bytes is over the session's limit of {limit} bytes; raise Config::message_len_max on both sides"
    )]
    TooLarge {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A buffer comes from another endpoint's arena.
    #[error("the message buffer comes from another endpoint; allocate it with this endpoint's `alloc`")]
    ForeignBuffer,
    /// The lane is closed, or was never this endpoint's.
    #[error("no such lane: it was closed, or belongs to another endpoint")]
    NoSuchLane,
    /// The lane's user takes too little of what it has.
    #[error(
        "{limit} calls and events of this lane are under way or wait to be taken already (Config::lane_backlog_max): take what it has, or make fewer calls at once"
    )]
    LaneFull {
        /// The limit.
        limit: usize,
    },
    /// Too many calls wait already.
    #[error("{limit} calls wait for a slot of this session already (Config::queued_calls_max)")]
    QueueFull {
        /// The limit.
        limit: usize,
    },
    /// No memory to lay the request out anew.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why a client cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallBackError {
    /// Its session is gone, or was never this endpoint's.
    #[error("no such client: its session ended, or it is another endpoint's")]
    NoSuchClient,
    /// It did not ask for calls when it connected.
    #[error("the client takes no calls: it has to connect with ConnectOptions::call_back")]
    NotTaken,
}

/// A request that was not taken, with its buffers.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub error: EnqueueError,
    /// The request.
    pub request: MessageBuffer,
    /// The buffer for its response.
    pub response: MessageBuffer,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Rejected {}

impl From<Rejected> for Error {
    /// Drops the buffers.
    fn from(rejected: Rejected) -> Self {
        Self::Enqueue(rejected.error)
    }
}

/// Why a [`crate::Channel`] could not be opened, or opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// It was to have no call in flight.
    #[error("a channel takes at least one call")]
    NoCalls,
    /// It would need more sessions than this endpoint may have.
    #[error(
        "{calls} calls in flight need {sessions} sessions, and this endpoint may have {limit}; raise Config::slots on both sides, or \
         Config::sessions_max"
    )]
    Sessions {
        /// Calls that were to be in flight.
        calls: usize,
        /// Sessions that they need.
        sessions: usize,
        /// The limit.
        limit: usize,
    },
    /// An open session was lost.
    #[error("a session with {peer} was lost: {}; open it again with `Channel::begin_reconnect`", cause.text())]
    Lost {
        /// Whom it was with.
        peer: Arc<str>,
        /// Why.
        cause: Cause,
    },
    /// Sessions are gone, of which somebody else has heard.
    #[error("{gone} sessions with {address} are gone; open them again with `Channel::begin_reconnect`")]
    Gone {
        /// Where the server is.
        address: String,
        /// How many.
        gone: usize,
    },
    /// See [`ConnectError`].
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Why something that another thread handed to an endpoint came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The endpoint went before it began.
    #[error("the endpoint is gone: what was handed to it never began")]
    EndpointGone,
    /// Too much waits for the endpoint already.
    #[error(
        "{limit} closures and calls of other threads wait for the endpoint already (Config::handle_queue_max): is its loop being \
         turned?"
    )]
    QueueFull {
        /// The limit.
        limit: usize,
    },
    /// The closure panicked; the endpoint goes on.
    #[error("the closure panicked on the endpoint's thread: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The endpoint's own thread cannot block until the endpoint has turned.
    #[error("the endpoint's own thread would wait for itself: turn the endpoint, and take the result when it is there")]
    OwnThread,
    /// In virtual time nobody can block: whatever turns endpoints and runs workers' jobs is one thread, which runs each to its end.
    #[error(
        "virtual time stands still for who waits: no endpoint has a turn before this turn, or this worker's job, is over; take the result in a \
         later turn when it is there, and let a handler that asks others keep its call (DeferredCall) instead of being a worker's"
    )]
    VirtualTime,
    /// Somebody has the result already.
    #[error("the result was taken already")]
    Taken,
}

/// Anything that the blocking, beginner's side of the interface can meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// See [`ConnectError`].
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// See [`CallError`].
    #[error(transparent)]
    Call(#[from] CallError),
    /// See [`EnqueueError`].
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// See [`CallBackError`].
    #[error(transparent)]
    CallBack(#[from] CallBackError),
    /// See [`AllocError`].
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// See [`PortError`].
    #[error(transparent)]
    Port(#[from] PortError),
    /// See [`ConfigError`].
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// See [`ChannelError`].
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// See [`HandleError`].
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
