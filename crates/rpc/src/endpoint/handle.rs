//! An endpoint as other threads reach it.
//!
//! An endpoint belongs to its thread, and so do its sessions and its buffers' completions. A handle is `Send`: it leaves closures and calls in the
//! endpoint's [`Inbox`], wakes its thread, and what comes of them is a [`Pending`]. The endpoint's side is in `rpc::remote`.

mod pending;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use sinew_fabric::Address;
use sinew_mem::MessageBuffer;
use sinew_mem::atomic::{AtomicBool, Ordering};

use super::Endpoint;
use crate::answer::Returns;
use crate::error::{Error, HandleError};
use crate::handlers::contained;
use crate::names::{RequestType, SessionId};
use crate::nexus::EndpointInfo;
use crate::options::CallOptions;
use crate::reply::Reply;
pub use pending::Pending;
pub(crate) use pending::Promise;

/// The response buffer of a call, in bytes; a longer response gets a buffer of its own.
const RESPONSE_LEN: usize = 1024;

/// An endpoint as other threads reach it, from [`EndpointInfo::remote_handle`]: `Clone`, `Send` and `Sync`, where the endpoint is neither.
///
/// What is handed over begins in the endpoint's next turn, on its thread, which is woken if it sleeps; in the order in which one thread handed it
/// over. Until then it waits in a queue of [`Config::handle_queue_max`](crate::Config::handle_queue_max) places. What comes of it is a [`Pending`]: a thread
/// waits for it, or a task does, since it is a `Future`. Each takes a lock and an allocation, so this is for what threads have to say
/// to each other, and not for a thread's own calls: those are an order of magnitude quicker over an endpoint of its own.
///
/// A handle does not keep its endpoint alive. What was not begun when the endpoint goes ends with [`HandleError::EndpointGone`].
///
/// ```no_run
/// use sinew_rpc::{Endpoint, RequestType, RpcHandle};
///
/// const SHOUT: RequestType = RequestType::new(1);
///
/// fn on_another_thread(handle: &RpcHandle, address: String) -> Result<(), Box<dyn std::error::Error>> {
///     let session = handle.run(move |endpoint| endpoint.connect(&address))?.wait()??;
///     let reply = handle.call(session, SHOUT, b"hello", 0)?.wait()?;
///     assert_eq!(&*reply, b"HELLO");
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct RpcHandle {
    inbox: Arc<Inbox>,
    info: EndpointInfo,
}

impl EndpointInfo {
    /// A handle by which other threads reach the endpoint: they have it run closures and make calls. All handles of an endpoint share one queue.
    /// From the first use on, a turn costs some instructions more.
    ///
    /// What they hand over begins in turns of the loop, and its end is told there: the owner has nothing to poll, and their calls have a
    /// lane of their own. An endpoint that sleeps is woken, also one that is [armed](crate::Rpc::arm).
    ///
    /// A maker of handlers leaves one with handlers that run in worker threads, so that they can ask others before they answer (in virtual time
    /// they cannot wait, see [`HandleError::VirtualTime`]):
    ///
    /// ```
    /// # use std::sync::OnceLock;
    /// # use sinew_rpc::{DeferredCall, Error, NexusBuilder, RequestType, RpcHandle, SessionId};
    /// const SPELL: RequestType = RequestType::new(1);
    /// const CHECK: RequestType = RequestType::new(2);
    ///
    /// # fn with(nexus: NexusBuilder) -> NexusBuilder {
    /// nexus.handle_worker_with(CHECK, |endpoint| {
    ///     let (handle, speller) = (endpoint.remote_handle(), OnceLock::new());
    ///     move |call: DeferredCall| match ask(&handle, &speller, call.request()) {
    ///         Ok(reply) => call.reply(&reply),
    ///         Err(error) => call.reply(error.to_string().as_bytes()),
    ///     }
    /// })
    /// # }
    ///
    /// fn ask(handle: &RpcHandle, speller: &OnceLock<SessionId>, word: &[u8]) -> Result<Vec<u8>, Error> {
    ///     let session = match speller.get() {
    ///         Some(&session) => session,
    ///         // Two workers may connect at once: both sessions will do.
    ///         None => {
    ///             let session = handle.run(|rpc| rpc.connect("shm://speller"))?.wait()??;
    ///             *speller.get_or_init(|| session)
    ///         }
    ///     };
    ///     Ok(handle.call(session, SPELL, word, 0)?.wait()?.to_vec())
    /// }
    /// ```
    pub fn remote_handle(&self) -> RpcHandle {
        let inbox = Arc::clone(&self.inbox).downcast().expect("the untyped inbox is an endpoint's inbox");
        RpcHandle { inbox, info: self.clone() }
    }
}

impl RpcHandle {
    /// Where others reach the endpoint.
    pub fn address(&self) -> &Address {
        &self.info.address
    }

    /// Has the endpoint's thread run a closure in its next turn, with the endpoint. Whatever becomes of the [`Pending`], the closure runs.
    ///
    /// Until it returns the endpoint does nothing else, and nothing else that other threads handed over begins, so it should be short. It may
    /// make blocking calls all the same. It shares the main lane with the endpoint's owner, so it should take no completions and events from there that
    /// are not its own, and requests that the owner takes by [`crate::Rpc::turn_with`] are refused in turns of the closure's. A panic ends
    /// with the closure; the endpoint goes on.
    ///
    /// # Errors
    ///
    /// [`HandleError::EndpointGone`], [`HandleError::QueueFull`]: the closure is dropped. The [`Pending`] ends with
    /// [`HandleError::Panicked`] when the closure panicked, and with [`HandleError::EndpointGone`] when it never ran.
    pub fn run<R, F>(&self, closure: F) -> Result<Pending<R>, HandleError>
    where
        F: FnOnce(&mut dyn Endpoint) -> R + Send + 'static,
        R: Send + 'static,
    {
        let (promise, pending) = self.inbox.promise();
        self.inbox.put(|_number| {
            Task::Run(Box::new(move |endpoint| {
                let result = catch_unwind(AssertUnwindSafe(|| closure(endpoint)));
                promise.end(result.map_err(|payload| HandleError::Panicked { message: message_of(payload) }));
            }))
        })?;
        Ok(pending)
    }

    /// Calls over a session of the endpoint's. Of `options` the tag and the lane are of no use here; a time-out counts from when the call begins
    /// on the endpoint's thread, and without one the call waits for as long as its session lasts. Dropping the [`Pending`] cancels the call,
    /// as [`crate::Rpc::cancel`] does.
    ///
    /// Calls that are under way count for [`Config::lane_backlog_max`](crate::Config::lane_backlog_max). The reply lies in memory of the endpoint until it is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Alloc`]; [`Error::Handle`]: the endpoint is gone, or its queue is full. The [`Pending`] ends with [`Error::Call`] or
    /// [`Error::Enqueue`] as a call of the endpoint's own does, and with [`HandleError::EndpointGone`] when it never began.
    pub fn call(
        &self,
        session: SessionId,
        request_type: RequestType,
        request: impl AsRef<[u8]>,
        options: impl Into<CallOptions>,
    ) -> Result<Pending<Reply, Error>, Error> {
        let mut buffer = self.info.alloc(request.as_ref().len())?;
        buffer.fill(request.as_ref())?;
        let (request, response, options) = (buffer, self.info.alloc(RESPONSE_LEN)?, options.into());
        let (promise, mut pending) = self.inbox.promise();
        let number = self.inbox.put(|number| {
            Task::Call(HandedCall { number, session, request_type, request, response, options, promise })
        })?;
        pending.cancels(&self.inbox, number);
        Ok(pending)
    }
}

impl std::fmt::Debug for RpcHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcHandle").field("address", &self.info.address).finish_non_exhaustive()
    }
}

/// What a panic said.
fn message_of(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
    contained(|| drop(payload));
    message.unwrap_or_else(|| "no message".to_owned())
}

/// What another thread has the endpoint's thread run; it does not panic.
pub(crate) type Closure = Box<dyn FnOnce(&mut dyn Endpoint) + Send>;

/// What another thread wants of the endpoint. Dropped, it says that the endpoint is gone.
pub(crate) enum Task {
    Run(Closure),
    Call(HandedCall),
}

/// A call that another thread makes.
pub(crate) struct HandedCall {
    /// Unique among those of its endpoint.
    pub number: u64,
    pub session: SessionId,
    pub request_type: RequestType,
    pub request: MessageBuffer,
    pub response: MessageBuffer,
    pub options: CallOptions,
    pub promise: Promise<Reply, Error>,
}

#[derive(Default)]
struct Waiting {
    tasks: Vec<Task>,
    /// Tasks that have a place: these, and in virtual time those that are still on their way here.
    places: usize,
    /// Calls that nobody waits for any more: no more than were made.
    cancelled: Vec<u64>,
    next_number: u64,
    is_closed: bool,
}

/// What other threads want of an endpoint, until its next turn.
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    /// Says that there is something, and wakes the endpoint's thread.
    returns: Arc<Returns>,
    /// The endpoint's.
    thread: ThreadId,
    places_max: usize,
    /// Whether there was ever anything. Set before `returns` says so, whose flag orders it.
    is_used: AtomicBool,
}

impl Inbox {
    /// Of an endpoint that belongs to this thread.
    pub fn new(returns: Arc<Returns>, places_max: usize) -> Self {
        let (thread, is_used) = (std::thread::current().id(), AtomicBool::new(false));
        Self { waiting: Mutex::default(), returns, thread, places_max, is_used }
    }

    fn promise<T, E: From<HandleError>>(&self) -> (Promise<T, E>, Pending<T, E>) {
        Promise::new(self.thread, self.returns.virtual_waker())
    }

    /// Whether there was ever anything.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a task, which is told its number.
    fn put(self: &Arc<Self>, make: impl FnOnce(u64) -> Task) -> Result<u64, HandleError> {
        let number = {
            let mut waiting = self.lock();
            if waiting.is_closed {
                return Err(HandleError::EndpointGone);
            }
            if waiting.places >= self.places_max {
                return Err(HandleError::QueueFull { limit: self.places_max });
            }
            waiting.places += 1;
            waiting.next_number += 1;
            waiting.next_number
        };
        self.is_used.store(true, Ordering::Relaxed);
        let (inbox, task) = (Arc::clone(self), make(number));
        self.returns.put_beside(move || {
            let mut waiting = inbox.lock();
            if waiting.is_closed {
                // Dropped without the lock: a closure's captures may do anything.
                drop(waiting);
                drop(task);
            } else {
                waiting.tasks.push(task);
            }
        });
        Ok(number)
    }

    /// Nobody waits for a call any more.
    fn cancel(self: &Arc<Self>, number: u64) {
        let inbox = Arc::clone(self);
        self.returns.put_beside(move || {
            let mut waiting = inbox.lock();
            if !waiting.is_closed {
                waiting.cancelled.push(number);
            }
        });
    }

    /// All tasks, and the calls that were cancelled since the last time.
    pub fn take(&self) -> (Vec<Task>, Vec<u64>) {
        let mut waiting = self.lock();
        waiting.places -= waiting.tasks.len();
        (std::mem::take(&mut waiting.tasks), std::mem::take(&mut waiting.cancelled))
    }

    /// The endpoint goes: what nobody took will not begin, and nothing more is taken.
    pub fn close(&self) {
        let tasks = {
            let mut waiting = self.lock();
            waiting.is_closed = true;
            std::mem::take(&mut waiting.tasks)
        };
        for task in tasks {
            // A closure's captures may panic when they are dropped.
            contained(|| drop(task));
        }
    }
}
