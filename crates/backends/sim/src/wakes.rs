//! Wakes: from their sources to the actors and pools that listen.
//!
//! A waker may be called from anywhere: from other actors' turns, workers' jobs, code between steps, other threads. It
//! leaves a [`PendingWake`] with the time that its core has reached, and the cluster reads these before its next step.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_fabric::{WakeTarget, Waker};
use sinew_mem::atomic::plain::{Arc, AtomicU32, Ordering};

use crate::time::{NO_CORE, SimClock};

/// An action that takes effect with a wake, at the wake's time.
type Effect = Box<dyn FnOnce() + Send>;

/// The listener that a source wakes. Of listeners woken at the same time, the lesser comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listener {
    /// Nobody: the effect is left for anyone to find.
    Nobody,
    Pool(u32),
    Actor(u32),
}

/// A wake that the cluster has not read yet.
pub(crate) struct PendingWake {
    pub time_ns: u64,
    /// The source's number.
    pub source: u32,
    pub listener: Listener,
    /// Performed at `time_ns`, before the wake.
    pub effect: Option<Effect>,
}

#[derive(Default)]
struct WakesState {
    /// The listener of each source.
    listeners: Vec<Option<Listener>>,
    pending: Vec<PendingWake>,
}

/// The wakes of a network.
pub(crate) struct Wakes {
    /// Nonzero if the cluster must read the pending wakes; otherwise it need not take the lock. Relaxed: it is written
    /// under the lock, which orders everything else.
    has_news: AtomicU32,
    state: Mutex<WakesState>,
    clock: SimClock,
}

impl Wakes {
    pub fn new(clock: SimClock) -> Arc<Self> {
        Arc::new(Self { has_news: AtomicU32::new(0), state: Mutex::default(), clock })
    }

    fn lock(&self) -> MutexGuard<'_, WakesState> {
        // No code that may panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A source that wakes nobody yet.
    pub fn source(self: &Arc<Self>) -> Arc<Source> {
        let mut state = self.lock();
        let number = state.listeners.len() as u32;
        state.listeners.push(None);
        Arc::new(Source { wakes: Arc::clone(self), number, woken: AtomicU32::new(0) })
    }

    /// The present listener of a source.
    pub fn listener(&self, source: u32) -> Option<Listener> {
        self.lock().listeners[source as usize]
    }

    #[inline]
    pub fn has_pending(&self) -> bool {
        self.has_news.load(Ordering::Relaxed) != 0
    }

    /// Moves all pending wakes to `wakes`, in their order.
    pub fn take(&self, wakes: &mut Vec<PendingWake>) {
        let mut state = self.lock();
        wakes.append(&mut state.pending);
        self.has_news.store(0, Ordering::Relaxed);
    }

    /// Makes the cluster read the pending wakes before its next step, whether or not there are any.
    pub fn force_read(&self) {
        let _state = self.lock();
        self.has_news.store(1, Ordering::Relaxed);
    }

    /// Ends all listening, and drops all pending wakes.
    pub fn end(&self) {
        let mut state = self.lock();
        state.listeners.fill(None);
        let wakes = std::mem::take(&mut state.pending);
        drop(state);
        // Their effects may own sources, which need the lock when they are dropped.
        drop(wakes);
    }

    fn add_pending(&self, state: &mut WakesState, source: u32, listener: Listener, effect: Option<Effect>) {
        state.pending.push(PendingWake { time_ns: self.clock.core_ns(), source, listener, effect });
        self.has_news.store(1, Ordering::Relaxed);
    }
}

/// A source of wakes: a port, a pool's queue, an actor itself, a [`WakeSource`].
pub(crate) struct Source {
    wakes: Arc<Wakes>,
    number: u32,
    /// 1 if it was woken while nobody listened.
    woken: AtomicU32,
}

impl Source {
    /// Whether it belongs to these wakes.
    pub fn is_of(&self, wakes: &Arc<Wakes>) -> bool {
        Arc::ptr_eq(&self.wakes, wakes)
    }

    /// Makes the source wake this listener from now on, and at once if it was woken while nobody listened.
    pub fn listen(&self, listener: Listener) {
        let mut state = self.wakes.lock();
        state.listeners[self.number as usize] = Some(listener);
        if self.take() {
            self.wakes.add_pending(&mut state, self.number, listener, None);
        }
    }

    /// Makes the source wake nobody from now on.
    pub fn leave(&self) {
        self.wakes.lock().listeners[self.number as usize] = None;
    }

    /// Whether the source was woken, with nobody listening, since the last call.
    pub fn take(&self) -> bool {
        // Acquire: sees what the waker did before the wake. Partner: `wake`.
        self.woken.load(Ordering::Relaxed) != 0 && self.woken.swap(0, Ordering::Acquire) != 0
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("number", &self.number).finish_non_exhaustive()
    }
}

impl WakeTarget for Source {
    fn wake(&self) {
        let mut state = self.wakes.lock();
        match state.listeners[self.number as usize] {
            Some(listener) => self.wakes.add_pending(&mut state, self.number, listener, None),
            // Release: `take` sees what the waker did before. Partner: `take`.
            None => self.woken.store(1, Ordering::Release),
        }
    }

    fn is_in_virtual_time(&self) -> bool {
        true
    }

    fn wake_with(&self, effect: Effect) {
        let mut state = self.wakes.lock();
        let at_work = self.wakes.clock.at_work();
        match state.listeners[self.number as usize] {
            // The core at work may be ahead of the listener in time, so the listener must not see the effect yet.
            Some(listener) if at_work != NO_CORE && listener != Listener::Actor(at_work) => {
                self.wakes.add_pending(&mut state, self.number, listener, Some(effect));
            }
            _ => {
                drop(state);
                effect();
                self.wake();
            }
        }
    }

    fn take_effect(&self, effect: Effect) {
        let mut state = self.wakes.lock();
        if self.wakes.clock.at_work() == NO_CORE {
            drop(state);
            effect();
        } else {
            self.wakes.add_pending(&mut state, self.number, Listener::Nobody, Some(effect));
        }
    }
}

/// A source that wakes an actor without a port: for events other than packets, and for actors that have no port.
///
/// It comes from [`Network::wake_source`](crate::Network::wake_source), so its wakers can be handed out before there is
/// an actor, which then [listens](crate::Cluster::listen) to it. A wake that nobody listens to is kept for the next
/// listener. Clones are the same source.
#[derive(Clone)]
pub struct WakeSource(Arc<Source>);

impl WakeSource {
    pub(crate) fn new(source: Arc<Source>) -> Self {
        Self(source)
    }

    pub(crate) fn source(&self) -> &Source {
        &self.0
    }

    /// A waker for the actor that listens.
    pub fn waker(&self) -> Waker {
        Waker::new(self.0.clone())
    }
}

impl fmt::Debug for WakeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WakeSource").field(&self.0).finish()
    }
}
