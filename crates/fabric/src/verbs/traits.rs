//! The traits that backends implement.

use sinew_mem::{Arena, BufferPlace, MessageBuffer};

use super::completion::Completion;
use super::error::VerbsError;
use super::memory::Exposed;
use super::request::{Destination, RefusedReceive, RefusedRequest, Request, Scatter};
use super::types::{Access, Attributes, QpAddress, QpConfig, QpNumber, QpState, Transport};
use crate::readiness::{self, Readiness};
use crate::waker::Waker;

/// A device, opened. Clones are the same device.
pub trait Device: Clone + Send + Sync {
    /// What [`Self::protection_domain`] gives.
    type Domain: ProtectionDomain;

    /// What it can do.
    fn attributes(&self) -> &Attributes;

    /// A new protection domain: memory and queue pairs that may work together.
    ///
    /// # Errors
    ///
    /// What the device says.
    fn protection_domain(&self) -> Result<Self::Domain, VerbsError>;
}

/// Memory and queue pairs that may work together. Clones are the same domain; children keep it alive.
pub trait ProtectionDomain: Clone + Send + Sync {
    /// What [`Self::expose`] gives.
    type Exposed: Exposed + Send + Sync;
    /// What [`Self::thread`] gives.
    type Thread: ThreadDomain;
    /// What [`Self::register`] gives.
    type Registration: std::fmt::Debug + Send + Sync;

    /// Registered memory of `bytes` bytes for messages. Its buffers are good for every queue pair of the domain.
    ///
    /// # Errors
    ///
    /// What the system says: no memory, or too little that may be locked.
    fn arena(&self, bytes: usize) -> Result<Arena, VerbsError>;

    /// `len` bytes of fresh memory, all zero, that others may reach.
    ///
    /// # Errors
    ///
    /// As for [`Self::arena`].
    fn expose(&self, len: usize, access: Access) -> Result<Self::Exposed, VerbsError>;

    /// Registers the memory of a buffer that is none of the domain's arenas', for as long as what is returned is there: queue pairs take buffers that begin at this place,
    /// and are no longer, as they take those of arenas. It gives others no access. It costs a call of the system and something for each page (rdmabox IV-A, Figure 5). A request whose memory
    /// is registered no longer before it is over may fail; [`Registered`](super::Registered) does not let that happen.
    ///
    /// # Errors
    ///
    /// As for [`Self::arena`].
    fn register(&self, place: BufferPlace) -> Result<Self::Registration, VerbsError>;

    /// The queues of the calling thread.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn thread(&self) -> Result<Self::Thread, VerbsError>;
}

/// The queues of one thread.
pub trait ThreadDomain {
    /// What [`Self::completion_queue`] gives.
    type Cq: CompletionQueue;
    /// What [`Self::queue_pair`] gives.
    type Qp: QueuePair;

    /// A completion queue for `depth` completions.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`], or what the device says.
    fn completion_queue(&self, depth: usize) -> Result<Self::Cq, VerbsError>;

    /// A queue pair in state [`QpState::Reset`], whose requests complete in `send` and whose receives in `receive` (which can be
    /// the same, and shared with other queue pairs). A completion queue can be overrun by queue pairs that together hold
    /// more than its depth, which is refused here.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`], or what the device says.
    fn queue_pair(&self, config: &QpConfig, send: &Self::Cq, receive: &Self::Cq) -> Result<Self::Qp, VerbsError>;

    /// The way to a UD queue pair.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Address`] when the address is not one of this fabric's UD queue pairs, or nobody is there.
    fn destination(&self, to: &QpAddress) -> Result<Destination, VerbsError>;
}

/// Where operations complete.
///
/// A thread sleeps on it alone by [`Self::wait`], or on several things at once by what it has of [`Readiness`]. Queues of one thread domain
/// that are slept on are all armed last: to poll or arm one of them, or to post at one of the domain's queue pairs, ends what arming another
/// promised if that [took something in](crate::Armed::Ready) for it.
pub trait CompletionQueue: Readiness {
    /// Takes up to `max` completions, oldest first, and adds them to `completions`. Returns how many. Never blocks, and
    /// allocates only if `completions` must grow.
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize;

    /// Whether completions can come while the caller does nothing but poll. Not in virtual time, which stands still in a simulated actor's turn: whoever would
    /// poll until something is over leaves it for a later turn.
    fn passes_time(&self) -> bool {
        true
    }

    /// Sleeps until there may be a completion, the waker was called, or `timeout_ns` passed. A completion that came before the
    /// call, or comes during it, is not slept through. Arms the queue, sleeps on its descriptor, and disarms it.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        readiness::wait(self, timeout_ns)
    }

    /// Ends a sleep on the queue, or the next one before it begins, from any thread.
    fn waker(&self) -> Waker;
}

/// A pair of queues: requests, and receives.
///
/// Dropping it ends what is posted without a completion, and takes those along that were not polled yet. Buffers and shares are
/// given back to their arenas once the device is done with them.
pub trait QueuePair {
    /// Its number at its device.
    fn number(&self) -> QpNumber;

    /// Its transport.
    fn transport(&self) -> Transport;

    /// Where it is. It goes to error by itself when an operation fails on a connected transport, and when its peer is gone, as soon
    /// as that is noticed: at once on some fabrics, on others by the next request, and over UC perhaps never.
    fn state(&self) -> QpState;

    /// What to tell a peer. After a reset it can be another.
    fn address(&self) -> QpAddress;

    /// Takes it to another state. [`QpState::ReadyToReceive`] needs the peer's address on connected transports.
    ///
    /// On the way to error and to reset all that is posted ends: it completes as [`super::Status::Flushed`], requests and
    /// receives each in their order, unless it was over already. After a reset nothing of the earlier connection arrives, over UC if the
    /// device can tell (messages do not say of whom they are).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Transition`], [`VerbsError::Address`], or what the device says.
    fn modify(&mut self, state: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError>;

    /// From reset to ready to send: to `remote`, or, for UD, to anyone.
    ///
    /// # Errors
    ///
    /// As for [`Self::modify`].
    fn connect(&mut self, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        self.modify(QpState::Init, None)?;
        self.modify(QpState::ReadyToReceive, remote)?;
        self.modify(QpState::ReadyToSend, None)
    }

    /// Posts buffers for one message, which is scattered over them.
    ///
    /// # Errors
    ///
    /// [`RefusedReceive`], with the buffers.
    fn post_receive(&mut self, id: u64, buffers: Scatter) -> Result<(), RefusedReceive>;

    /// Posts one buffer for one message.
    ///
    /// # Errors
    ///
    /// As for [`Self::post_receive`].
    fn post_buffer(&mut self, id: u64, buffer: MessageBuffer) -> Result<(), RefusedReceive> {
        let mut buffers = Scatter::new();
        buffers.push(buffer);
        self.post_receive(id, buffers)
    }

    /// Takes a request, to start with the next [`Self::doorbell`].
    ///
    /// # Errors
    ///
    /// [`RefusedRequest`], with what it had moved in. Requests that were pushed before it are not affected. A queue pair in error
    /// takes requests, and flushes them with the doorbell.
    fn push(&mut self, request: Request<'_>) -> Result<(), RefusedRequest>;

    /// Starts what was pushed.
    fn doorbell(&mut self);

    /// Pushes requests in turn and starts them with one doorbell, together with those that were pushed before. The first may start
    /// while the next are still asked for.
    ///
    /// `requests` uses no queues of the thread: it may find them borrowed, and panics then. While it dawdles, whoever ends the
    /// exposure of memory that it writes to may have to wait for it.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`], of the first that is refused: those before it are started, those after it were not asked for.
    fn post_list<'a>(&mut self, requests: impl IntoIterator<Item = Request<'a>>) -> Result<(), RefusedRequest> {
        let pushed = requests.into_iter().try_for_each(|request| self.push(request));
        self.doorbell();
        pushed
    }

    /// Pushes one request and starts it.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`].
    fn post(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        self.push(request)?;
        self.doorbell();
        Ok(())
    }
}
