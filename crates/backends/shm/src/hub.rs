//! Ports of the threads of one process, which find each other without the file system.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fd::OwnedFd;
use sinew_fabric::PortError;
use sinew_mem::{Arena, Region};

use crate::link::{Lines, Side, wake_event};
use crate::names;

/// A directory in which the threads of one process find each other's ports. Clones are the same hub.
///
/// ```
/// use sinew_fabric::PacketPort;
/// use sinew_shm::Hub;
///
/// let hub = Hub::new();
/// let server = hub.port("server")?;
/// let mut client = hub.port("")?;
/// let peer = client.resolve(&server.address())?;
/// assert_eq!(client.describe(peer), "shm://server");
/// # Ok::<(), sinew_fabric::PortError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Hub {
    names: Arc<Mutex<HashMap<String, Arc<Mailbox>>>>,
}

impl Hub {
    /// Creates a hub without ports.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Mailbox>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, address: &str, name: &str, mailbox: &Arc<Mailbox>) -> Result<(), PortError> {
        if name.is_empty() {
            return Ok(());
        }
        names::check(address, name)?;
        let mut ports = self.lock();
        if ports.contains_key(name) {
            let holder = " by another port of this hub".to_owned();
            return Err(PortError::Taken { address: address.to_owned(), holder });
        }
        ports.insert(name.to_owned(), Arc::clone(mailbox));
        Ok(())
    }

    pub(crate) fn remove(&self, mailbox: &Arc<Mailbox>) {
        self.lock().retain(|_, other| !Arc::ptr_eq(other, mailbox));
    }

    pub(crate) fn find(&self, address: &str, name: &str) -> Result<Arc<Mailbox>, PortError> {
        names::check(address, name)?;
        self.lock()
            .get(name)
            .cloned()
            .ok_or_else(|| PortError::NotFound { address: address.to_owned(), looked_in: "this hub".to_owned() })
    }
}

/// A message between two ports of a hub, for making and closing links. A link is identified by its memory. A port that
/// talks to itself has both sides of the link, so a message states, or its kind implies, the side that it is for.
#[derive(Debug)]
pub(crate) enum ControlMessage {
    Hello {
        from: Arc<Mailbox>,
        link: Arc<Region>,
        lines: Lines,
        /// Bit of the sender's board that the receiver is to set.
        bit: usize,
    },
    /// To the initiator: the link is made.
    Welcome {
        link: Arc<Region>,
        bit: usize,
    },
    /// To the initiator: the other port has no room for the link.
    Refusal {
        link: Arc<Region>,
    },
    Closed {
        link: Arc<Region>,
        to: Side,
    },
}

/// The part of a port that the other ports of its hub use: its queue of control messages, and what they map.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub name: String,
    pub event: Arc<OwnedFd>,
    pub arena: Arena,
    pub board: Arc<Region>,
    pub ring_lines: usize,
    pending: AtomicBool,
    /// `None` once the port is closed.
    messages: Mutex<Option<Vec<ControlMessage>>>,
}

impl Mailbox {
    pub fn new(name: &str, event: Arc<OwnedFd>, arena: Arena, board: Arc<Region>, ring_lines: usize) -> Self {
        Self {
            name: name.to_owned(),
            event,
            arena,
            board,
            ring_lines,
            pending: AtomicBool::new(false),
            messages: Mutex::new(Some(Vec::new())),
        }
    }

    /// Delivers a message and wakes its reader. Returns false when the port is closed.
    pub fn post(&self, message: ControlMessage) -> bool {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(messages) = messages.as_mut() else { return false };
        messages.push(message);
        self.pending.store(true, Ordering::Release);
        wake_event(&self.event);
        true
    }

    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> Vec<ControlMessage> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::Relaxed);
        messages.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes the last messages; later ones are refused.
    pub fn close(&self) -> Vec<ControlMessage> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}
