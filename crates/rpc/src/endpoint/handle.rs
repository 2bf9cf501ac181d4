//! Handles: the way from other threads to an endpoint.
//!
//! An endpoint belongs to its thread, and so do its sessions and the completions of its buffers. A handle is `Send`: it
//! leaves closures and calls in the endpoint's [`Inbox`], wakes its thread, and returns a [`Pending`] for the result.
//! The endpoint's side is in `rpc::remote`.
//!
//! The inbox lies beside the late answers of workers (`AnswerQueue`), under the same flag and the same wake-up. So an
//! endpoint without a handle has nothing more to check, and a sleeping endpoint is woken as it is for an answer,
//! whatever it sleeps on. Closures run in the turn that finds them, with the endpoint as a `dyn Endpoint`; a turn
//! within a closure begins none, so closures do not nest. Calls complete in a lane that the endpoint empties itself at
//! the end of each turn. An endpoint that is dropped ends calls in progress as the end of their sessions does, and
//! those that have not begun with `EndpointGone`, which says that they did not run.

mod pending;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use sinew_fabric::Address;
use sinew_mem::MessageBuffer;
use sinew_mem::atomic::{AtomicBool, Ordering};

use super::Endpoint;
use crate::answer::AnswerQueue;
use crate::error::{Error, HandleError};
use crate::handlers::run_contained;
use crate::names::{RequestType, SessionId};
use crate::nexus::EndpointInfo;
use crate::options::CallOptions;
use crate::reply::Reply;
pub use pending::Pending;
pub(crate) use pending::Promise;

/// Length of the response buffer of a call, in bytes; a longer response gets a larger buffer.
const RESPONSE_LEN: usize = 1024;

/// A handle through which other threads reach an endpoint, from [`EndpointInfo::remote_handle`]. It is `Clone`, `Send`
/// and `Sync`, where the endpoint is none of these.
///
/// Closures and calls begin in the endpoint's next turn, on its thread, which is woken if it sleeps. Those of one
/// thread begin in the order in which it handed them over. Until then they wait in a queue of
/// [`Config::handle_queue_max`](crate::Config::handle_queue_max) places. The result comes as a [`Pending`]: a thread
/// can block on it, and a task can await it, since it is a `Future`. Each takes a lock and an allocation, so handles
/// are for communication between threads; a thread that makes calls of its own is an order of magnitude quicker over
/// its own endpoint.
///
/// A handle does not keep its endpoint alive. Closures and calls that have not begun when the endpoint is dropped end
/// with [`HandleError::EndpointGone`].
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
    /// Returns a handle through which other threads run closures on the endpoint and make calls. All handles of an
    /// endpoint share one queue. From their first use on, a turn costs a few more instructions.
    ///
    /// Closures and calls begin, and report their results, in turns of the loop: the owner has nothing to poll, and the
    /// calls have a lane of their own. An endpoint that sleeps is woken, even if it is [armed](crate::Rpc::arm).
    ///
    /// Where handlers run in worker threads, the function that makes them can give them a handle, so that they can call
    /// others before they answer. (In virtual time they cannot wait, see [`HandleError::VirtualTime`].)
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
    ///         // Two workers may connect at the same time: either session will do.
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
    /// The endpoint's address.
    pub fn address(&self) -> &Address {
        &self.info.address
    }

    /// Runs a closure on the endpoint's thread in its next turn, with the endpoint. The closure runs even if the
    /// [`Pending`] is dropped.
    ///
    /// Until the closure returns, the endpoint does nothing else, and no other closure or call of another thread
    /// begins, so it should be short. It may make blocking calls, though. It shares the main lane with the endpoint's
    /// owner, so it should take only its own completions and events there. Requests that the owner takes by
    /// [`crate::Rpc::turn_with`] are refused in turns that the closure makes. A panic ends only the closure; the
    /// endpoint goes on.
    ///
    /// # Errors
    ///
    /// [`HandleError::EndpointGone`] or [`HandleError::QueueFull`]: the closure is dropped. The [`Pending`] ends with
    /// [`HandleError::Panicked`] if the closure panicked, and with [`HandleError::EndpointGone`] if it never ran.
    pub fn run<R, F>(&self, closure: F) -> Result<Pending<R>, HandleError>
    where
        F: FnOnce(&mut dyn Endpoint) -> R + Send + 'static,
        R: Send + 'static,
    {
        let (promise, pending) = self.inbox.promise();
        self.inbox.push_task(|_number| {
            Task::Run(Box::new(move |endpoint| {
                let result = catch_unwind(AssertUnwindSafe(|| closure(endpoint)));
                promise.complete(result.map_err(|payload| HandleError::Panicked { message: panic_message(payload) }));
            }))
        })?;
        Ok(pending)
    }

    /// Makes a call over a session of the endpoint's. The tag and the lane in `options` are ignored. A time-out counts
    /// from when the call begins on the endpoint's thread; without one the call waits for as long as its session lasts.
    /// Dropping the [`Pending`] cancels the call, as [`crate::Rpc::cancel`] does.
    ///
    /// Calls under way count towards [`Config::lane_backlog_max`](crate::Config::lane_backlog_max). The reply occupies
    /// memory of the endpoint until it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Alloc`], or [`Error::Handle`] when the endpoint is gone or its queue is full. The [`Pending`] ends with
    /// [`Error::Call`] or [`Error::Enqueue`], as a call of the endpoint's own does, and with
    /// [`HandleError::EndpointGone`] if the call never began.
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
        let number = self.inbox.push_task(|number| {
            Task::Call(HandedCall { number, session, request_type, request, response, options, promise })
        })?;
        pending.set_call(&self.inbox, number);
        Ok(pending)
    }
}

impl std::fmt::Debug for RpcHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcHandle").field("address", &self.info.address).finish_non_exhaustive()
    }
}

/// The message of a panic.
fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
    run_contained(|| drop(payload));
    message.unwrap_or_else(|| "no message".to_owned())
}

/// A closure of another thread, to run on the endpoint's thread. It catches the panics of the user's closure.
pub(crate) type Closure = Box<dyn FnOnce(&mut dyn Endpoint) + Send>;

/// A closure or call of another thread. Dropping it reports that the endpoint is gone.
pub(crate) enum Task {
    Run(Closure),
    Call(HandedCall),
}

/// A call that another thread makes.
pub(crate) struct HandedCall {
    /// Unique among the endpoint's closures and calls.
    pub number: u64,
    pub session: SessionId,
    pub request_type: RequestType,
    pub request: MessageBuffer,
    pub response: MessageBuffer,
    pub options: CallOptions,
    pub promise: Promise<Reply, Error>,
}

#[derive(Default)]
struct InboxState {
    tasks: Vec<Task>,
    /// Places taken: by these tasks and, in virtual time, by those still on their way to this queue.
    queued: usize,
    /// Calls that nobody waits for any more; at most as many as were made.
    cancelled: Vec<u64>,
    next_number: u64,
    is_closed: bool,
}

/// Closures and calls of other threads that wait for the endpoint's next turn.
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    /// Tells the endpoint that there is something, and wakes its thread.
    answer_queue: Arc<AnswerQueue>,
    /// The endpoint's thread.
    thread: ThreadId,
    queued_max: usize,
    /// Whether a task was ever put here. Set before the flag in `answer_queue`, which orders it.
    is_used: AtomicBool,
}

impl Inbox {
    /// An inbox of an endpoint that belongs to the calling thread.
    pub fn new(answer_queue: Arc<AnswerQueue>, queued_max: usize) -> Self {
        let (thread, is_used) = (std::thread::current().id(), AtomicBool::new(false));
        Self { state: Mutex::default(), answer_queue, thread, queued_max, is_used }
    }

    fn promise<T, E: From<HandleError>>(&self) -> (Promise<T, E>, Pending<T, E>) {
        Promise::new(self.thread, self.answer_queue.virtual_waker())
    }

    /// Whether a task was ever put here.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    fn lock_state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a task into the inbox; `make` is told its number.
    fn push_task(self: &Arc<Self>, make: impl FnOnce(u64) -> Task) -> Result<u64, HandleError> {
        let number = {
            let mut state = self.lock_state();
            if state.is_closed {
                return Err(HandleError::EndpointGone);
            }
            if state.queued >= self.queued_max {
                return Err(HandleError::QueueFull { limit: self.queued_max });
            }
            state.queued += 1;
            state.next_number += 1;
            state.next_number
        };
        self.is_used.store(true, Ordering::Relaxed);
        let (inbox, task) = (Arc::clone(self), make(number));
        self.answer_queue.put_in_other_queue(move || {
            let mut state = inbox.lock_state();
            if state.is_closed {
                // Dropped without holding the lock: a closure's captures may do anything when dropped.
                drop(state);
                drop(task);
            } else {
                state.tasks.push(task);
            }
        });
        Ok(number)
    }

    /// Notes that nobody waits for a call any more.
    fn cancel(self: &Arc<Self>, number: u64) {
        let inbox = Arc::clone(self);
        self.answer_queue.put_in_other_queue(move || {
            let mut state = inbox.lock_state();
            if !state.is_closed {
                state.cancelled.push(number);
            }
        });
    }

    /// Takes all tasks, and the calls that were cancelled since the last time.
    pub fn take(&self) -> (Vec<Task>, Vec<u64>) {
        let mut state = self.lock_state();
        state.queued -= state.tasks.len();
        (std::mem::take(&mut state.tasks), std::mem::take(&mut state.cancelled))
    }

    /// Closes the inbox, as the endpoint is being dropped: waiting tasks will never begin, and no more are accepted.
    pub fn close(&self) {
        let tasks = {
            let mut state = self.lock_state();
            state.is_closed = true;
            std::mem::take(&mut state.tasks)
        };
        for task in tasks {
            // A closure's captures may panic when they are dropped.
            run_contained(|| drop(task));
        }
    }
}
