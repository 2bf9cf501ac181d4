//! Result of a closure or call that was handed to an endpoint, for the thread or task that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use sinew_fabric::Waker as PortWaker;

use super::Inbox;
use crate::error::HandleError;
use crate::handlers::run_contained;

enum State<T> {
    /// There is no result yet; the waker of the task that polled last, if any.
    Waiting(Option<Waker>),
    Done(T),
    Taken,
    /// Nobody waits for the result.
    Abandoned,
}

/// One result on its way between two threads.
struct SharedResult<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

impl<T> SharedResult<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the result, once it is there.
fn take_result<T, E: From<HandleError>>(state: &mut State<Result<T, E>>) -> Option<Result<T, E>> {
    match state {
        State::Waiting(_) => None,
        _ => match std::mem::replace(state, State::Taken) {
            State::Done(result) => Some(result),
            _ => Some(Err(HandleError::Taken.into())),
        },
    }
}

/// The producing side of a result. If dropped without one, it reports that the endpoint is gone.
pub(crate) struct Promise<T, E: From<HandleError> = HandleError> {
    shared: Arc<SharedResult<Result<T, E>>>,
    /// The endpoint's waker, if the endpoint is in virtual time.
    waker: Option<PortWaker>,
}

impl<T, E: From<HandleError>> Promise<T, E> {
    /// Makes a promise of an endpoint that belongs to `thread`. `waker` is the endpoint's waker if it is in virtual
    /// time.
    pub fn new(thread: ThreadId, waker: Option<PortWaker>) -> (Self, Pending<T, E>) {
        let shared = Arc::new(SharedResult { state: Mutex::new(State::Waiting(None)), done: Condvar::new() });
        let pending = Pending { shared: Arc::clone(&shared), thread, is_virtual: waker.is_some(), call: None };
        (Self { shared, waker }, pending)
    }

    /// Whether nobody waits for the result any more.
    pub fn is_abandoned(&self) -> bool {
        matches!(*self.shared.lock(), State::Abandoned)
    }

    fn set(&self, result: Result<T, E>) {
        let mut state = self.shared.lock();
        if !matches!(*state, State::Waiting(_)) {
            drop(state);
            // The result's type is the user's: dropping it may panic.
            return run_contained(|| drop(result));
        }
        let before = std::mem::replace(&mut *state, State::Done(result));
        drop(state);
        self.shared.done.notify_all();
        if let State::Waiting(Some(waker)) = before {
            // Waking runs an executor's code.
            run_contained(|| waker.wake());
        }
    }
}

impl<T: Send + 'static, E: From<HandleError> + Send + 'static> Promise<T, E> {
    /// Delivers the result. In virtual time it takes effect when all have reached the time of the core that made it.
    pub fn complete(mut self, result: Result<T, E>) {
        match self.waker.take() {
            Some(waker) => waker.take_effect(Box::new(move || self.set(result))),
            None => self.set(result),
        }
    }
}

impl<T, E: From<HandleError>> Drop for Promise<T, E> {
    fn drop(&mut self) {
        // After `complete` this changes nothing.
        if matches!(*self.shared.lock(), State::Waiting(_)) {
            self.set(Err(HandleError::EndpointGone.into()));
        }
    }
}

/// Result of a closure or call that a [`RpcHandle`](super::RpcHandle) handed to an endpoint. Wait for it on a thread
/// ([`Self::wait`], [`Self::wait_timeout`]), check for it occasionally ([`Self::try_take`]), or await it: it is a
/// [`Future`], for any executor.
///
/// The result can be taken once; after that, asking gives [`HandleError::Taken`]. Dropping a `Pending` cancels a call
/// that is not over, and lets a closure run without a recipient.
///
/// In virtual time the result is there from the time at which it is made, that is, once the endpoint's core has reached
/// that time, whatever the order in which code runs. Nothing can wait there ([`HandleError::VirtualTime`]): check for
/// the result, or await it, in turns.
pub struct Pending<T, E: From<HandleError> = HandleError> {
    shared: Arc<SharedResult<Result<T, E>>>,
    /// The endpoint's thread.
    thread: ThreadId,
    /// Whether the endpoint is in virtual time.
    is_virtual: bool,
    /// For a call: the inbox through which to cancel it, and its number.
    call: Option<(Arc<Inbox>, u64)>,
}

impl<T, E: From<HandleError>> Pending<T, E> {
    /// Marks the result as a call's: dropping it cancels the call.
    pub(super) fn set_call(&mut self, inbox: &Arc<Inbox>, number: u64) {
        self.call = Some((Arc::clone(inbox), number));
    }

    /// Blocks the thread until the result is there.
    ///
    /// # Errors
    ///
    /// The error of the closure or call. Also [`HandleError::OwnThread`] on the endpoint's thread, which would wait for
    /// itself, or [`HandleError::VirtualTime`] if that endpoint is simulated; and [`HandleError::Taken`].
    pub fn wait(self) -> Result<T, E> {
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = take_result(&mut state) {
                return result;
            }
            if std::thread::current().id() == self.thread {
                let error = if self.is_virtual { HandleError::VirtualTime } else { HandleError::OwnThread };
                return Err(error.into());
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks the thread until the result is there, or returns `None` after `timeout`. On the endpoint's own thread it
    /// always sleeps for the whole time-out, unless the result is already there.
    ///
    /// # Errors
    ///
    /// The error of the closure or call; [`HandleError::Taken`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<T, E>> {
        let is_waiting = |state: &mut State<_>| matches!(state, State::Waiting(_));
        let waited = self.shared.done.wait_timeout_while(self.shared.lock(), timeout, is_waiting);
        let (mut state, _timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        take_result(&mut state)
    }

    /// Takes the result if it is there.
    ///
    /// # Errors
    ///
    /// The error of the closure or call; [`HandleError::Taken`].
    pub fn try_take(&mut self) -> Option<Result<T, E>> {
        take_result(&mut self.shared.lock())
    }
}

impl<T, E: From<HandleError>> Future for Pending<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let mut state = self.shared.lock();
        let State::Waiting(known) = &mut *state else {
            return take_result(&mut state).map_or(Poll::Pending, Poll::Ready);
        };
        let is_known = known.as_ref().is_some_and(|known| known.will_wake(context.waker()));
        let other = if is_known { None } else { known.replace(context.waker().clone()) };
        drop(state);
        // Dropping a waker runs an executor's code, so not while holding the lock.
        drop(other);
        Poll::Pending
    }
}

impl<T, E: From<HandleError>> Drop for Pending<T, E> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let was_waiting = matches!(*state, State::Waiting(_));
        let before = std::mem::replace(&mut *state, State::Abandoned);
        drop(state);
        drop(before);
        if was_waiting && let Some((inbox, number)) = &self.call {
            inbox.cancel(*number);
        }
    }
}

impl<T, E: From<HandleError>> std::fmt::Debug for Pending<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_there = !matches!(*self.shared.lock(), State::Waiting(_));
        f.debug_struct("Pending").field("is_there", &is_there).finish_non_exhaustive()
    }
}
