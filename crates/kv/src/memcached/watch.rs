//! Watches the sockets of doors whose threads sleep elsewhere.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use sinew_fabric::Waker;
use sinew_mem::atomic::{AtomicBool, Ordering};

use super::Door;

const EVENTS: usize = 64;

/// Wakes threads that have a [`Door`] beside an endpoint, and sleep in the endpoint's port, when clients of the door say
/// something. It does so on a thread of its own, which sleeps whenever none of them does.
///
/// Each thread says how it is woken with [`Door::wake_with`] and calls [`Door::turn_beside`] once a turn.
pub struct Watcher {
    poll: Poll,
    shared: Arc<Shared>,
}

/// Ends a [`Watcher`].
#[derive(Clone)]
pub struct StopWatcher {
    shared: Arc<Shared>,
}

struct Shared {
    slots: Box<[Slot]>,
    /// The watcher's.
    thread: OnceLock<Thread>,
    /// Wakes the watcher.
    waker: mio::Waker,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Slot {
    /// Its thread may sleep, and found nothing to do after it had set this.
    armed: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Slot {
    fn fire(&self) {
        // Partner: the swap of `Armed::set`, which is followed by a look at the sockets.
        if self.armed.swap(false, Ordering::SeqCst)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }
}

/// A door's end of a watcher.
#[derive(Clone)]
pub(super) struct Armed {
    shared: Arc<Shared>,
    slot: usize,
}

impl Armed {
    fn slot(&self) -> &Slot {
        &self.shared.slots[self.slot]
    }

    pub fn is_set(&self) -> bool {
        self.slot().armed.load(Ordering::Relaxed)
    }

    /// From now on the watcher wakes the thread. What came before it does not look for.
    pub fn set(&self) {
        if !self.slot().armed.swap(true, Ordering::SeqCst)
            && let Some(thread) = self.shared.thread.get()
        {
            thread.unpark();
        }
    }

    /// Has the thread not sleep.
    pub fn wake(&self) {
        self.slot().fire();
    }
}

impl Watcher {
    /// One for all doors of a server.
    ///
    /// # Errors
    ///
    /// What the system says when it has no descriptors.
    pub fn new(doors: &mut [Door]) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), Token(doors.len()))?;
        let slots = doors.iter().map(|_| Slot::default()).collect();
        let shared = Arc::new(Shared { slots, thread: OnceLock::new(), waker, stopping: AtomicBool::new(false) });
        for (slot, door) in doors.iter_mut().enumerate() {
            let sockets = door.poll_mut().as_raw_fd();
            poll.registry().register(&mut SourceFd(&sockets), Token(slot), Interest::READABLE)?;
            door.armed = Some(Armed { shared: Arc::clone(&shared), slot });
        }
        Ok(Self { poll, shared })
    }

    /// What ends it.
    pub fn stop_handle(&self) -> StopWatcher {
        StopWatcher { shared: Arc::clone(&self.shared) }
    }

    /// Watches until it is stopped. Give it a thread.
    ///
    /// # Errors
    ///
    /// What the system says when it cannot tell about sockets.
    pub fn run(mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let _ = shared.thread.set(std::thread::current());
        let mut events = Events::with_capacity(EVENTS);
        loop {
            while !shared.slots.iter().any(|slot| slot.armed.load(Ordering::SeqCst)) {
                if shared.stopping.load(Ordering::Acquire) {
                    return Ok(());
                }
                // Else what is said to threads that do not sleep would be told here, too.
                std::thread::park();
            }
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if shared.stopping.load(Ordering::Acquire) {
                return Ok(());
            }
            for event in &events {
                if let Some(slot) = shared.slots.get(event.token().0) {
                    slot.fire();
                }
            }
        }
    }
}

impl StopWatcher {
    /// Has [`Watcher::run`] return.
    pub fn stop(&self) {
        // Partner: the loads in `run`; nothing else is published with it.
        self.shared.stopping.store(true, Ordering::Release);
        let _ = self.shared.waker.wake();
        if let Some(thread) = self.shared.thread.get() {
            thread.unpark();
        }
    }
}

impl Door {
    /// What ends the sleep of the thread that [turns this door](Door::turn_beside) beside something else.
    pub fn wake_with(&self, waker: Waker) {
        if let Some(armed) = &self.armed {
            let _ = armed.slot().waker.set(waker);
        }
    }
}
