//! The traits that backends implement.

use sinew_mem::{Arena, BufferPlace, MessageBuffer};

use super::completion::{Completion, Message};
use super::error::{PostError, VerbsError};
use super::inline::InlineRequest;
use super::memory::{Exposed, RemoteMemory};
use super::request::{Destination, Operation, RefusedReceive, RefusedRequest, Request, Scatter};
use super::types::{Access, Attributes, Opcode, QpAddress, QpConfig, QpNumber, QpState, Transport};
use crate::readiness::{self, Readiness};
use crate::waker::Waker;

/// An open device. Clones are handles on the same device.
pub trait Device: Clone + Send + Sync {
    /// Type of its protection domains.
    type Domain: ProtectionDomain;

    /// Capabilities of the device.
    fn attributes(&self) -> &Attributes;

    /// Makes a protection domain: memory and queue pairs that may work together.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn protection_domain(&self) -> Result<Self::Domain, VerbsError>;
}

/// Memory and queue pairs that may work together. Clones are handles on the same domain; whatever was made from it
/// keeps it alive.
pub trait ProtectionDomain: Clone + Send + Sync {
    /// Type of its exposed memory.
    type Exposed: Exposed + Send + Sync;
    /// Type of a thread's queues.
    type Thread: ThreadDomain;
    /// Type of a registration of other memory.
    type Registration: std::fmt::Debug + Send + Sync;

    /// Makes an arena of `bytes` bytes of registered memory for messages. Its buffers can be used with every queue pair
    /// of the domain.
    ///
    /// # Errors
    ///
    /// The system's error: there is no memory, or too little that may be locked.
    fn arena(&self, bytes: usize) -> Result<Arena, VerbsError>;

    /// Exposes `len` bytes of fresh memory, all zero, to peers.
    ///
    /// # Errors
    ///
    /// As for [`Self::arena`].
    fn expose(&self, len: usize, access: Access) -> Result<Self::Exposed, VerbsError>;

    /// Registers memory that is not from the domain's arenas, for as long as the returned value lives. Queue pairs take
    /// buffers and ranges of this place as they take those of arenas. Peers get no access. It costs a system
    /// call and some time for each page (rdmabox IV-A, Figure 5). A request may fail if its memory's registration ends
    /// before it is over; [`Registered`](super::Registered) prevents that.
    ///
    /// # Errors
    ///
    /// As for [`Self::arena`].
    fn register(&self, place: BufferPlace) -> Result<Self::Registration, VerbsError>;

    /// Makes the queues of the calling thread.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn thread(&self) -> Result<Self::Thread, VerbsError>;
}

/// The queues of one thread.
pub trait ThreadDomain {
    /// Type of its completion queues.
    type Cq: CompletionQueue;
    /// Type of its queue pairs.
    type Qp: QueuePair;

    /// Makes a completion queue for `depth` completions.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`], or the device's error.
    fn completion_queue(&self, depth: usize) -> Result<Self::Cq, VerbsError>;

    /// Makes a queue pair in state [`QpState::Reset`], whose requests complete in `send` and whose receives in
    /// `receive` (which can be the same queue, and shared with other queue pairs). Queue pairs that together hold more
    /// than a completion queue's depth could overrun it, so that is refused here.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`], or the device's error.
    fn queue_pair(&self, config: &QpConfig, send: &Self::Cq, receive: &Self::Cq) -> Result<Self::Qp, VerbsError>;

    /// The destination of a UD queue pair with this address.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Address`] when the address is not one of this fabric's UD queue pairs, or nobody is there.
    fn destination(&self, to: &QpAddress) -> Result<Destination, VerbsError>;
}

/// A queue in which operations complete.
///
/// A thread sleeps on one queue with [`Self::wait`], or on several things at once through [`Readiness`]. Of one thread
/// domain's queues, those that are slept on must be armed after everything else: polling or arming one queue, or
/// posting at one of the domain's queue pairs, ends what arming another promised if the call [took something
/// in](crate::Armed::Ready) for that other queue.
pub trait CompletionQueue: Readiness {
    /// Takes up to `max` completions, oldest first, and appends them to `completions`. Returns the number taken. Never
    /// blocks, and allocates only if `completions`, or a list of the queue's own, must grow. It may put another list in
    /// the place of an empty one, whose capacity then differs.
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize;

    /// Polls for messages of a queue pair that completes its receives here: shows each to `take`, and posts its receive
    /// again, with the whole capacity of its buffer. This costs less than to take the completions and to post their
    /// buffers; and a device may use one receive for several messages in turn. Up to `max` completions are taken. Those
    /// of anything else, of failed receives, and of receives of several buffers are appended to `others`. Returns the
    /// number of messages.
    ///
    /// `take` must not use queues of the thread: it may find them borrowed, and then panics. After a panic of `take`,
    /// messages may be shown again.
    ///
    /// # Errors
    ///
    /// The first receive that could not be posted again; its message was shown.
    fn poll_messages<Q: QueuePair>(
        &mut self,
        qp: &mut Q,
        others: &mut Vec<Completion>,
        max: usize,
        take: impl FnMut(Message<'_>),
    ) -> Result<usize, RefusedReceive>
    where
        Self: Sized,
    {
        let before = others.len();
        self.poll(others, max);
        show_messages(qp, others, before, take)
    }

    /// Whether completions can come while the caller does nothing but poll. They cannot in virtual time, which stands
    /// still during a simulated actor's turn: a caller that would poll until something is over must leave that to a
    /// later turn.
    fn passes_time(&self) -> bool {
        true
    }

    /// Sleeps until there may be a completion, the waker is called, or `timeout_ns` has passed. It does not sleep
    /// through a completion that came before the call or comes during it. It arms the queue, sleeps on its descriptor,
    /// and disarms it.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        readiness::wait(self, timeout_ns)
    }

    /// A waker that ends a sleep on the queue, or the next one before it begins, from any thread.
    fn waker(&self) -> Waker;
}

/// Shows the messages among the completions in `list` from index `start` on, and posts their receives again: the part
/// of [`CompletionQueue::poll_messages`] that every device has.
///
/// # Errors
///
/// As there.
pub fn show_messages<Q: QueuePair>(
    qp: &mut Q,
    list: &mut Vec<Completion>,
    start: usize,
    mut take: impl FnMut(Message<'_>),
) -> Result<usize, RefusedReceive> {
    let (number, mut count, mut index, mut posted) = (qp.number(), 0, 0, Ok(()));
    list.retain_mut(|completion| {
        index += 1;
        let is_message = completion.qp == number
            && completion.opcode == Opcode::Receive
            && completion.status.is_success()
            && completion.buffers.len() == 1;
        if index <= start || !is_message {
            return true;
        }
        let Some(mut buffer) = completion.buffers.pop() else { return true };
        take(Message { bytes: &buffer, immediate: completion.immediate, from: completion.from });
        count += 1;
        // A buffer holds its capacity.
        let resized = buffer.resize(buffer.capacity());
        debug_assert!(resized.is_ok());
        if posted.is_ok() {
            posted = qp.post_buffer(completion.id, buffer);
        }
        false
    });
    posted.map(|()| count)
}

/// A pair of queues: one for requests, one for receives.
///
/// Dropping it ends everything posted without completions, and discards completions that were not polled yet. Buffers
/// and shares go back to their arenas once the device is done with them.
pub trait QueuePair {
    /// Its number at its device.
    fn number(&self) -> QpNumber;

    /// Its transport.
    fn transport(&self) -> Transport;

    /// Its state. It goes to error by itself when an operation fails on a connected transport, and when its peer is
    /// gone, as soon as that is noticed: at once on some fabrics, on others with the next request, and over UC perhaps
    /// never.
    fn state(&self) -> QpState;

    /// The address to give to a peer. It may change with a reset.
    fn address(&self) -> QpAddress;

    /// Takes the queue pair to another state. [`QpState::ReadyToReceive`] needs the peer's address on connected
    /// transports.
    ///
    /// On the way to error and to reset, everything posted ends: it completes as [`super::Status::Flushed`], requests
    /// and receives each in their order, unless it was over already. After a reset nothing of the earlier connection
    /// arrives; over UC, this holds if the device can tell (messages do not say which connection they are from).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Transition`], [`VerbsError::Address`], or the device's error.
    fn modify(&mut self, state: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError>;

    /// Takes the queue pair from reset to ready to send: to `remote` or, for UD, to anyone.
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

    /// Posts buffers, each for one message, with their identifiers.
    ///
    /// `buffers` must not use queues of the thread, as for [`Self::post_list`].
    ///
    /// # Errors
    ///
    /// As for [`Self::post_receive`], of the first that is refused: those before it are posted, and those after it are
    /// not asked for.
    fn post_buffers(&mut self, buffers: impl IntoIterator<Item = (u64, MessageBuffer)>) -> Result<(), RefusedReceive> {
        buffers.into_iter().try_for_each(|(id, buffer)| self.post_buffer(id, buffer))
    }

    /// Queues a request, to start with the next [`Self::doorbell`].
    ///
    /// # Errors
    ///
    /// [`RefusedRequest`], with what had moved in. Requests pushed before it are not affected. A queue pair in error
    /// takes requests, and flushes them with the doorbell.
    fn push(&mut self, request: Request<'_>) -> Result<(), RefusedRequest>;

    /// Starts what was pushed.
    fn doorbell(&mut self);

    /// Pushes requests one by one and starts them with one doorbell, together with those that were pushed before. The
    /// first may start while later ones are still being produced.
    ///
    /// `requests` must not use queues of the thread: it may find them borrowed, and then panics. While it takes its
    /// time, a peer that ends the exposure of memory being written to may have to wait for it.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`], of the first request that is refused: those before it are started, and those after it are
    /// not asked for.
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

    /// Queues an inline request, as [`Self::push`] queues any.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`].
    fn push_inline(&mut self, request: InlineRequest<'_>) -> Result<(), PostError> {
        self.push(request.into()).map_err(|refused| refused.error)
    }

    /// As [`Self::post`], of an inline request.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`].
    fn post_inline(&mut self, request: InlineRequest<'_>) -> Result<(), PostError> {
        self.push_inline(request)?;
        self.doorbell();
        Ok(())
    }

    /// As [`Self::post_list`], of inline requests.
    ///
    /// # Errors
    ///
    /// As for [`Self::post_list`].
    fn post_inline_list<'a>(&mut self, requests: impl IntoIterator<Item = InlineRequest<'a>>) -> Result<(), PostError> {
        let pushed = requests.into_iter().try_for_each(|request| self.push_inline(request));
        self.doorbell();
        pushed
    }

    /// Queues a signaled READ that fills one buffer, as [`Self::push`] does. It may start before the doorbell rings.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`].
    fn push_read(&mut self, id: u64, target: MessageBuffer, remote: RemoteMemory) -> Result<(), RefusedRequest> {
        self.push(Request::new(id, Operation::read(target, remote)))
    }

    /// Posts a signaled READ that fills one buffer.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`].
    fn post_read(&mut self, id: u64, target: MessageBuffer, remote: RemoteMemory) -> Result<(), RefusedRequest> {
        self.push_read(id, target, remote)?;
        self.doorbell();
        Ok(())
    }

    /// Performs inline WRITEs, each to the start of its memory, as far as the device can perform them at once, and
    /// returns their number. They are over then, though completions of earlier requests may not have been polled. They
    /// have no completions, and free no places of earlier unsignaled requests: signal one of these yourself. The other
    /// WRITEs have to be posted: many devices perform none at once. If the peer has just withdrawn its memory or reset
    /// its queue pair, some of the others may have been performed as well.
    ///
    /// `writes` must not use queues of the thread, and an owner that ends its memory's exposure may wait for it, as for
    /// [`Self::post_list`].
    fn write_at_once<'a>(&mut self, writes: impl IntoIterator<Item = (&'a [u8], RemoteMemory)>) -> usize {
        let _ = writes;
        0
    }

    /// As [`Self::post_list`], of READs: their identifiers, the buffers that they fill, and their sources. Those that
    /// the device performs at once it hands to `done`, with the filled buffers, and they have no completions: earlier
    /// requests are over then, though their completions may not have been polled, and stay in their places until a
    /// signaled one of them is polled. The other READs complete in the queue.
    ///
    /// `done` must not use queues of the thread, as `reads` must not, and an owner that ends its memory's exposure may
    /// wait for both.
    ///
    /// # Errors
    ///
    /// As for [`Self::post_list`]. Buffers of READs that were not asked for are still in the list.
    fn post_reads(
        &mut self,
        reads: impl IntoIterator<Item = (u64, MessageBuffer, RemoteMemory)>,
        done: impl FnMut(u64, MessageBuffer),
    ) -> Result<(), RefusedRequest> {
        let _ = done;
        let pushed = reads.into_iter().try_for_each(|(id, target, remote)| self.push_read(id, target, remote));
        self.doorbell();
        pushed
    }
}
