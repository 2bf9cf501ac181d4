//! All sockets of a server, and their events.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

use mio::{Events, Poll, Token};
use sinew_door::{Listener, Stream};
use sinew_fabric::{Armed, Descriptor, Readiness};

/// Events taken from the system at once.
const EVENTS_MAX: usize = 256;
const LISTENER: Token = Token(0);
/// Token of the first connection.
const CONNECTIONS: usize = 1;

/// Event of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A client wants to connect.
    Listener,
    /// Data arrived or can be sent, or the client closed its side.
    Connection { index: usize, readable: bool, hung_up: bool, gone: bool },
}

pub(super) struct Sockets {
    poll: Poll,
    events: Events,
    /// Events already handled.
    next_event: usize,
    listener: Listener,
    descriptor: Descriptor,
    /// Whether clients may be waiting to be accepted.
    has_waiting_clients: bool,
}

impl Sockets {
    pub fn new(mut listener: Listener) -> io::Result<Self> {
        let poll = Poll::new()?;
        listener.register(poll.registry(), LISTENER)?;
        Ok(Self {
            descriptor: poll.registry().as_fd().try_clone_to_owned()?.into(),
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            next_event: 0,
            listener,
            has_waiting_clients: true,
        })
    }

    pub fn address(&self) -> &str {
        self.listener.address()
    }

    /// Asks the system for events.
    pub fn poll(&mut self) {
        self.next_event = 0;
        // A signal makes the call fail, and then there are no events.
        if self.poll.poll(&mut self.events, Some(Duration::ZERO)).is_err() {
            self.events.clear();
        }
    }

    /// Takes the next event that the last [`Self::poll`] found.
    pub fn next(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.has_waiting_clients) {
            return Some(Event::Listener);
        }
        let event = self.events.iter().nth(self.next_event)?;
        self.next_event += 1;
        Some(match event.token() {
            LISTENER => Event::Listener,
            Token(token) => Event::Connection {
                index: token - CONNECTIONS,
                readable: event.is_readable() || event.is_read_closed() || event.is_error(),
                hung_up: event.is_read_closed() || event.is_error(),
                gone: event.is_write_closed() || event.is_error(),
            },
        })
    }

    /// Accepts the next client, if there is one.
    pub fn accept(&mut self) -> Option<Stream> {
        loop {
            match self.listener.accept() {
                Ok(stream) => return Some(stream),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => return None,
            }
        }
    }

    /// Has the listener tried again, since clients may be waiting that it could not accept for lack of descriptors.
    pub fn keep_accepting(&mut self) {
        self.has_waiting_clients = true;
    }

    pub fn register(&self, stream: &mut Stream, index: usize) -> io::Result<()> {
        stream.register(self.poll.registry(), Token(index + CONNECTIONS))
    }

    pub fn set_writable_interest(&self, stream: &mut Stream, index: usize, watch: bool) -> io::Result<()> {
        stream.watch_writable(self.poll.registry(), Token(index + CONNECTIONS), watch)
    }
}

/// The sockets need no arming, because their descriptor is always ready when they have events.
impl Readiness for Sockets {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.descriptor.clone())
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        Ok(if self.has_waiting_clients { Armed::Ready } else { Armed::Sleep { until_ns: None } })
    }
}
