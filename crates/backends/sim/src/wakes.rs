//! Who is woken, and when.
//!
//! A waker may be called from anywhere: from other actors' turns, workers' jobs, code between steps, other threads. It leaves a note with the
//! time that its core has come to, and the cluster reads the notes before its next step.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_fabric::{WakeTarget, Waker};
use sinew_mem::atomic::plain::{Arc, AtomicU32, Ordering};

use crate::time::{NO_CORE, SimClock};

/// What a waker has done beside waking.
type Effect = Box<dyn FnOnce() + Send>;

/// Whom a source wakes. Of those that are woken at one time, the lesser comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listener {
    /// What happens is for all to find.
    Nobody,
    Pool(u32),
    Actor(u32),
}

/// A wake that the cluster has not seen.
pub(crate) struct Note {
    pub time_ns: u64,
    /// Its number.
    pub source: u32,
    pub listener: Listener,
    /// To be done at that time, before the wake.
    pub effect: Option<Effect>,
}

#[derive(Default)]
struct State {
    /// Of each source.
    listeners: Vec<Option<Listener>>,
    notes: Vec<Note>,
}

/// The wakes of a network.
pub(crate) struct Wakes {
    /// Whether there are notes, or other news: spares the cluster the lock. It is written under the lock, which orders all else.
    noted: AtomicU32,
    state: Mutex<State>,
    clock: SimClock,
}

impl Wakes {
    pub fn new(clock: SimClock) -> Arc<Self> {
        Arc::new(Self { noted: AtomicU32::new(0), state: Mutex::default(), clock })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that may panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A source that wakes nobody yet.
    pub fn source(self: &Arc<Self>) -> Arc<Source> {
        let mut state = self.lock();
        let number = state.listeners.len() as u32;
        state.listeners.push(None);
        Arc::new(Source { wakes: Arc::clone(self), number, woken: AtomicU32::new(0) })
    }

    /// Whom a source wakes now.
    pub fn listener(&self, source: u32) -> Option<Listener> {
        self.lock().listeners[source as usize]
    }

    #[inline]
    pub fn any(&self) -> bool {
        self.noted.load(Ordering::Relaxed) != 0
    }

    /// Moves all notes to `notes`, in their order.
    pub fn take(&self, notes: &mut Vec<Note>) {
        let mut state = self.lock();
        notes.append(&mut state.notes);
        self.noted.store(0, Ordering::Relaxed);
    }

    /// Has the cluster read the notes before its next step, whether or not there are any.
    pub fn look(&self) {
        let _state = self.lock();
        self.noted.store(1, Ordering::Relaxed);
    }

    /// From now on nobody listens.
    pub fn end(&self) {
        let mut state = self.lock();
        state.listeners.fill(None);
        let notes = std::mem::take(&mut state.notes);
        drop(state);
        // Their effects may hold what wakes, which needs the lock to go.
        drop(notes);
    }

    fn note(&self, state: &mut State, source: u32, listener: Listener, effect: Option<Effect>) {
        state.notes.push(Note { time_ns: self.clock.core_ns(), source, listener, effect });
        self.noted.store(1, Ordering::Relaxed);
    }
}

/// Something that wakes: a port, a pool's queue, an actor itself, a [`WakeSource`].
pub(crate) struct Source {
    wakes: Arc<Wakes>,
    number: u32,
    /// Whether it was woken when nobody listened.
    woken: AtomicU32,
}

impl Source {
    /// Whether it is one of these.
    pub fn is_of(&self, wakes: &Arc<Wakes>) -> bool {
        Arc::ptr_eq(&self.wakes, wakes)
    }

    /// From now on it wakes this one, at once if it was woken before.
    pub fn listen(&self, listener: Listener) {
        let mut state = self.wakes.lock();
        state.listeners[self.number as usize] = Some(listener);
        if self.take() {
            self.wakes.note(&mut state, self.number, listener, None);
        }
    }

    /// From now on it wakes nobody.
    pub fn leave(&self) {
        self.wakes.lock().listeners[self.number as usize] = None;
    }

    /// Whether it was woken, with nobody listening, since this was last asked.
    pub fn take(&self) -> bool {
        // Acquire: see `wake`.
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
            Some(listener) => self.wakes.note(&mut state, self.number, listener, None),
            // Release: what the waker did before is seen by whoever takes it. Partner: `take`.
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
            // Another core has gone further than the one that is woken may see yet.
            Some(listener) if at_work != NO_CORE && listener != Listener::Actor(at_work) => {
                self.wakes.note(&mut state, self.number, listener, Some(effect));
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
            self.wakes.note(&mut state, self.number, Listener::Nobody, Some(effect));
        }
    }
}

/// Wakes an actor without a port: for what is not a packet, and for actors that have no port.
///
/// It comes from [`Network::wake_source`](crate::Network::wake_source), so that its wakers can be handed out before there is an actor, which then
/// [listens](crate::Cluster::listen) to it. A wake that nobody listens to is kept for whoever does next. Clones are the same source.
#[derive(Clone)]
pub struct WakeSource(Arc<Source>);

impl WakeSource {
    pub(crate) fn new(source: Arc<Source>) -> Self {
        Self(source)
    }

    pub(crate) fn source(&self) -> &Source {
        &self.0
    }

    /// Wakes the actor that listens.
    pub fn waker(&self) -> Waker {
        Waker::new(self.0.clone())
    }
}

impl fmt::Debug for WakeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WakeSource").field(&self.0).finish()
    }
}
