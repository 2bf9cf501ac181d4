//! Errors: what failed, which peer it concerns, and what was or was not done.

use std::fmt;
use std::sync::Arc;

use sinew_fabric::PortError;
use sinew_mem::{AllocError, MessageBuffer};

use crate::request_type::RequestType;

/// A configuration that cannot work, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Config::{field} is {value}: {expected}")]
pub struct ConfigError {
    /// Name of the field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// The values that it may have.
    pub expected: &'static str,
}

/// Whether a failed call's handler ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The handler cannot have run: the request never left whole. Sending it again elsewhere is safe.
    NeverSent,
    /// The handler may have run: the request left, and no response came.
    MayHaveRun,
    /// The handler did not run: the server said so.
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

/// Reason why a call, or a whole session, failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing was heard from the peer for [`Config::peer_timeout_ns`](crate::Config::peer_timeout_ns).
    PeerSilent,
    /// The peer's process ended.
    PeerDied,
    /// The peer closed its endpoint or this session.
    PeerClosed,
    /// The fabric reports that nobody listens at the address.
    PeerUnreachable,
    /// The peer's port is there, but has no room for us.
    PeerRefused,
    /// The server did not open the session; the session's event holds a [`ConnectError`] with the reason.
    SessionRefused,
    /// The peer no longer knows this session: it restarted, or gave us up while it did not hear from us.
    PeerForgot,
    /// This side disconnected the session.
    Disconnected,
    /// The caller cancelled.
    Cancelled,
    /// The call's deadline passed.
    DeadlinePassed,
    /// The server registered no handler for this request type.
    NoHandler,
    /// The handler dropped the call without an answer.
    HandlerDropped,
    /// The handler panicked.
    HandlerPanicked,
    /// The server had no worker or no memory for the request, or our share of the server is used up.
    ServerBusy,
    /// The server has seen a later request in the call's slot, and no longer knows this one.
    Overtaken,
    /// The request is larger than the session allows (which is known only once it is open), or larger than our whole
    /// share of the server's memory: [`Config::peer_share_percent`](crate::Config::peer_share_percent).
    RequestTooLarge,
    /// The response is larger than the session allows.
    ResponseTooLarge,
    /// This side had no memory for the response, or for laying the request out in packets.
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
            Self::ServerBusy => "it has no worker or memory left for the request, or our share of it is used up",
            Self::Overtaken => "it has seen a later request in this one's slot",
            Self::RequestTooLarge => {
                "the request is larger than the session's largest message, or than one peer's share of its memory"
            }
            Self::ResponseTooLarge => "the response is larger than the session's largest message",
            Self::NoMemory => "no memory is left at this side",
        }
    }
}

/// Advice for a session that did not open, to be appended to the error.
fn remedy(cause: Cause) -> &'static str {
    match cause {
        Cause::PeerUnreachable | Cause::PeerDied => "; start the server first, or check the address",
        _ => "",
    }
}

/// A call that got no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The peer that was called.
    pub peer: Arc<str>,
    /// Reason for the failure.
    pub cause: Cause,
    /// Whether its handler ran.
    pub execution: Execution,
    /// Type of the request.
    pub request_type: RequestType,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, cause, execution, request_type } = self;
        // A client that we call back connected on its own: there is no address to name it by.
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

/// Reason why a session could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be resolved.
    #[error(transparent)]
    Port(#[from] PortError),
    /// No answer came within [`Config::connect_timeout_ns`](crate::Config::connect_timeout_ns).
    #[error("no answer from {peer} within {timeout_ms} ms: is the server running its event loop?")]
    TimedOut {
        /// The server that was asked.
        peer: Arc<str>,
        /// The time-out, in ms.
        timeout_ms: u64,
    },
    /// The session failed before it was open.
    #[error("connecting to {peer} failed: {}{}", cause.text(), remedy(*cause))]
    Failed {
        /// The server that was asked.
        peer: Arc<str>,
        /// Reason for the failure.
        cause: Cause,
    },
    /// The server's receive capacity is committed to other sessions.
    #[error(
        "{peer} refused the session: its receive capacity of {packets} packets is committed ({committed} already); \
         lower Config::credits, raise the port's ring or socket buffer, or set Config::overcommit there"
    )]
    PeerReceiveCapacity {
        /// The server that was asked.
        peer: Arc<str>,
        /// Packets that the server can hold.
        packets: u64,
        /// Packets committed to other sessions.
        committed: u64,
    },
    /// The server has reached its limit of sessions.
    #[error("{peer} refused the session: it is at its limit of {limit} sessions; raise Config::sessions_max there")]
    PeerSessions {
        /// The server that was asked.
        peer: Arc<str>,
        /// Its limit.
        limit: u64,
    },
    /// We already have all that one peer may have of the server.
    #[error(
        "{peer} refused the session: one peer's share is {limit} {of}, and we already have that much; \
         close sessions, lower Config::credits, or raise Config::peer_share_percent there"
    )]
    PeerShare {
        /// The server that was asked.
        peer: Arc<str>,
        /// The share of one peer, in units of `of`.
        limit: u64,
        /// Unit of the share: packets of receive capacity, or sessions.
        of: &'static str,
    },
    /// This port's receive capacity is committed to other sessions.
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
        /// The server that was asked.
        peer: Arc<str>,
        /// Protocol version of the server.
        theirs: u8,
        /// Protocol version of this side.
        ours: u8,
    },
    /// The lane that is to hear of the session does not exist, or has too much waiting already.
    #[error(transparent)]
    Lane(EnqueueError),
    /// This endpoint has reached its limit of sessions.
    #[error("this endpoint is at its limit of {limit} sessions; raise Config::sessions_max")]
    Sessions {
        /// The limit.
        limit: usize,
    },
    /// The port failed while we waited.
    #[error("the port failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Reason why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The session is closed, or was never this endpoint's.
    #[error("no such session: it was closed or failed, or belongs to another endpoint")]
    NoSuchSession,
    /// The request is larger than the session allows.
    #[error(
        "a request of {len} bytes is over the session's limit of {limit} bytes; \
         raise Config::message_len_max on both sides"
    )]
    TooLarge {
        /// Length of the request, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A buffer is from another endpoint's arena.
    #[error("the message buffer comes from another endpoint; allocate it with this endpoint's `alloc`")]
    ForeignBuffer,
    /// The lane is closed, or was never this endpoint's.
    #[error("no such lane: it was closed, or belongs to another endpoint")]
    NoSuchLane,
    /// The lane's user takes its completions and events too slowly.
    #[error(
        "{limit} calls and events of this lane are already under way or waiting to be taken \
         (Config::lane_backlog_max): take them, or make fewer calls at once"
    )]
    LaneFull {
        /// The limit, in calls and events.
        limit: usize,
    },
    /// Too many calls wait for a slot of the session already.
    #[error("{limit} calls already wait for a slot of this session (Config::queued_calls_max)")]
    QueueFull {
        /// The limit, in calls.
        limit: usize,
    },
    /// There is no memory to lay the request out anew.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Reason why a client cannot be called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallBackError {
    /// The client's session has ended, or is another endpoint's.
    #[error("no such client: its session ended, or it is another endpoint's")]
    NoSuchClient,
    /// The client did not ask for calls when it connected.
    #[error("the client takes no calls: it has to connect with ConnectOptions::call_back")]
    NotTaken,
}

/// A request that was not accepted, with its buffers.
#[derive(Debug)]
pub struct Rejected {
    /// Reason for the refusal.
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

/// Reason why a [`crate::Channel`] could not be opened, or opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The channel was asked to hold no calls in flight.
    #[error("a channel needs at least one call in flight")]
    NoCalls,
    /// The channel would need more sessions than this endpoint may have.
    #[error(
        "{calls} calls in flight need {sessions} sessions, and this endpoint may have {limit}; \
         raise Config::slots on both sides, or Config::sessions_max"
    )]
    Sessions {
        /// Calls that were to be in flight.
        calls: usize,
        /// Sessions that these calls need.
        sessions: usize,
        /// The limit, in sessions.
        limit: usize,
    },
    /// An open session was lost.
    #[error("a session with {peer} was lost: {}; open it again with `Channel::begin_reconnect`", cause.text())]
    Lost {
        /// The server of the session.
        peer: Arc<str>,
        /// Reason for the loss.
        cause: Cause,
    },
    /// Sessions have ended, and their events were taken by somebody else.
    #[error("{gone} sessions with {address} are gone; open them again with `Channel::begin_reconnect`")]
    Gone {
        /// Address of the server.
        address: String,
        /// Number of sessions that have ended.
        gone: usize,
    },
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Reason why a closure or call that another thread handed to an endpoint failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The endpoint was dropped before the closure or call began.
    #[error("the endpoint is gone, and the closure or call handed to it never began")]
    EndpointGone,
    /// Too many closures and calls wait for the endpoint already.
    #[error(
        "{limit} closures and calls of other threads already wait for the endpoint (Config::handle_queue_max): \
         is its loop being turned?"
    )]
    QueueFull {
        /// The limit, in closures and calls.
        limit: usize,
    },
    /// The closure panicked; the endpoint carries on.
    #[error("the closure panicked on the endpoint's thread: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The endpoint's own thread cannot block until the endpoint has turned.
    #[error("the endpoint's own thread would wait for itself: turn the endpoint, and take the result when it is there")]
    OwnThread,
    /// In virtual time nobody can block: one thread turns all endpoints and runs all workers' jobs, each to its end.
    #[error(
        "a thread cannot wait in virtual time: no endpoint turns until this turn, or this worker's job, is over; \
         take the result in a later turn, and let a handler that asks others keep its call (DeferredCall) \
         instead of running on a worker"
    )]
    VirtualTime,
    /// The result was taken before.
    #[error("the result was taken already")]
    Taken,
}

/// Any error of the blocking, simple side of the interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A call got no response.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A request was not accepted.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// A client cannot be called back.
    #[error(transparent)]
    CallBack(#[from] CallBackError),
    /// There was no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A channel could not be opened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A closure or call of another thread failed.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
