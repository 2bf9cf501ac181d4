//! What becomes of something that was handed to an endpoint, for whoever waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use sinew_fabric::Waker as PortWaker;

use super::Inbox;
use crate::error::HandleError;
use crate::handlers::contained;

enum State<T> {
    /// Nothing yet; whom to tell.
    Waiting(Option<Waker>),
    Ended(T),
    Taken,
    /// Nobody waits.
    Abandoned,
}

/// One result on its way between two threads.
struct Parcel<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

impl<T> Parcel<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result, once it is there.
fn take<T, E: From<HandleError>>(state: &mut State<Result<T, E>>) -> Option<Result<T, E>> {
    match state {
        State::Waiting(_) => None,
        _ => match std::mem::replace(state, State::Taken) {
            State::Ended(result) => Some(result),
            _ => Some(Err(HandleError::Taken.into())),
        },
    }
}

/// The side that will know the result. Dropped without one, it says that the endpoint is gone.
pub(crate) struct Promise<T, E: From<HandleError> = HandleError> {
    parcel: Arc<Parcel<Result<T, E>>>,
    /// In virtual time: the endpoint's.
    waker: Option<PortWaker>,
}

impl<T, E: From<HandleError>> Promise<T, E> {
    /// A promise of an endpoint that belongs to `thread`; `waker` is its own, where it is in virtual time.
    pub fn new(thread: ThreadId, waker: Option<PortWaker>) -> (Self, Pending<T, E>) {
        let parcel = Arc::new(Parcel { state: Mutex::new(State::Waiting(None)), ended: Condvar::new() });
        let pending = Pending { parcel: Arc::clone(&parcel), thread, is_virtual: waker.is_some(), call: None };
        (Self { parcel, waker }, pending)
    }

    /// Whether nobody waits any more.
    pub fn is_abandoned(&self) -> bool {
        matches!(*self.parcel.lock(), State::Abandoned)
    }

    fn set(&self, result: Result<T, E>) {
        let mut state = self.parcel.lock();
        if !matches!(*state, State::Waiting(_)) {
            drop(state);
            // A result of somebody else's type may panic when it is dropped.
            return contained(|| drop(result));
        }
        let before = std::mem::replace(&mut *state, State::Ended(result));
        drop(state);
        self.parcel.ended.notify_all();
        if let State::Waiting(Some(waker)) = before {
            // An executor's code.
            contained(|| waker.wake());
        }
    }
}

impl<T: Send + 'static, E: From<HandleError> + Send + 'static> Promise<T, E> {
    /// The result is there; in virtual time, when everybody has come to the time of the core that made it.
    pub fn end(mut self, result: Result<T, E>) {
        match self.waker.take() {
            Some(waker) => waker.take_effect(Box::new(move || self.set(result))),
            None => self.set(result),
        }
    }
}

impl<T, E: From<HandleError>> Drop for Promise<T, E> {
    fn drop(&mut self) {
        // After `end` this changes nothing.
        if matches!(*self.parcel.lock(), State::Waiting(_)) {
            self.set(Err(HandleError::EndpointGone.into()));
        }
    }
}

/// What becomes of something that was handed to an endpoint by a [`RpcHandle`](super::RpcHandle). Wait for it on a thread ([`Self::wait`],
/// [`Self::wait_timeout`]), look for it now and then ([`Self::try_take`]), or await it: it is a [`Future`], under any executor.
///
/// There is one result, for whoever takes it first; who asks again hears [`HandleError::Taken`]. Dropping it cancels a call that is not over, and lets
/// a closure run for nobody.
///
/// In virtual time the result is there when it is made: when the endpoint's core has come so far, whatever code runs before. Nothing can be waited for
/// there ([`HandleError::VirtualTime`]): look for it, or await it, in turns.
pub struct Pending<T, E: From<HandleError> = HandleError> {
    parcel: Arc<Parcel<Result<T, E>>>,
    /// The endpoint's.
    thread: ThreadId,
    /// Whether the endpoint is in virtual time.
    is_virtual: bool,
    /// Of a call: its number, and where to cancel it.
    call: Option<(Arc<Inbox>, u64)>,
}

impl<T, E: From<HandleError>> Pending<T, E> {
    /// It is a call's: dropping it cancels that.
    pub(super) fn cancels(&mut self, inbox: &Arc<Inbox>, number: u64) {
        self.call = Some((Arc::clone(inbox), number));
    }

    /// Blocks the thread until the result is there.
    ///
    /// # Errors
    ///
    /// What it ended with; [`HandleError::OwnThread`] on the thread of the endpoint, which would wait for itself, as
    /// [`HandleError::VirtualTime`] where that is a simulation's; [`HandleError::Taken`].
    pub fn wait(self) -> Result<T, E> {
        let mut state = self.parcel.lock();
        loop {
            if let Some(result) = take(&mut state) {
                return result;
            }
            if std::thread::current().id() == self.thread {
                let error = if self.is_virtual { HandleError::VirtualTime } else { HandleError::OwnThread };
                return Err(error.into());
            }
            state = self.parcel.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks the thread until the result is there, for so long at most: then `None`. The endpoint's own thread sleeps in vain.
    ///
    /// # Errors
    ///
    /// What it ended with; [`HandleError::Taken`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<T, E>> {
        let is_waiting = |state: &mut State<_>| matches!(state, State::Waiting(_));
        let waited = self.parcel.ended.wait_timeout_while(self.parcel.lock(), timeout, is_waiting);
        let (mut state, _timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        take(&mut state)
    }

    /// The result, if it is there.
    ///
    /// # Errors
    ///
    /// What it ended with; [`HandleError::Taken`].
    pub fn try_take(&mut self) -> Option<Result<T, E>> {
        take(&mut self.parcel.lock())
    }
}

impl<T, E: From<HandleError>> Future for Pending<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let mut state = self.parcel.lock();
        let State::Waiting(known) = &mut *state else {
            return take(&mut state).map_or(Poll::Pending, Poll::Ready);
        };
        let is_known = known.as_ref().is_some_and(|known| known.will_wake(context.waker()));
        let other = if is_known { None } else { known.replace(context.waker().clone()) };
        drop(state);
        // An executor's code: not with the lock.
        drop(other);
        Poll::Pending
    }
}

impl<T, E: From<HandleError>> Drop for Pending<T, E> {
    fn drop(&mut self) {
        let mut state = self.parcel.lock();
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
        let is_there = !matches!(*self.parcel.lock(), State::Waiting(_));
        f.debug_struct("Pending").field("is_there", &is_there).finish_non_exhaustive()
    }
}
