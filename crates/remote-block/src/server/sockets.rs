//! The sockets together, and which of them have something.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

use mio::{Events, Poll, Token};
use sinew_door::{Listener, Stream};
use sinew_fabric::{Armed, Descriptor, Readiness};

/// Events that are taken from the system at once.
const EVENTS: usize = 256;
const LISTENER: Token = Token(0);
/// Tokens of connections begin here.
const CONNECTIONS: usize = 1;

/// What a socket has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Somebody comes.
    Listener,
    /// Something came, or can be sent, or the client ended.
    Connection { index: usize, readable: bool, hung_up: bool, gone: bool },
}

pub(super) struct Sockets {
    poll: Poll,
    events: Events,
    /// Events that were looked at.
    taken: usize,
    listener: Listener,
    descriptor: Descriptor,
    /// Somebody may wait to be let in.
    accepting: bool,
}

impl Sockets {
    pub fn new(mut listener: Listener) -> io::Result<Self> {
        let poll = Poll::new()?;
        listener.register(poll.registry(), LISTENER)?;
        Ok(Self {
            descriptor: poll.registry().as_fd().try_clone_to_owned()?.into(),
            poll,
            events: Events::with_capacity(EVENTS),
            taken: 0,
            listener,
            accepting: true,
        })
    }

    pub fn address(&self) -> &str {
        self.listener.address()
    }

    /// Asks the system.
    pub fn look(&mut self) {
        self.taken = 0;
        // It fails when a signal comes, and then there are no events.
        if self.poll.poll(&mut self.events, Some(Duration::ZERO)).is_err() {
            self.events.clear();
        }
    }

    /// The next thing that the last look found.
    pub fn next(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.accepting) {
            return Some(Event::Listener);
        }
        let event = self.events.iter().nth(self.taken)?;
        self.taken += 1;
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

    /// Lets the next one in, if there is one.
    pub fn accept(&mut self) -> Option<Stream> {
        loop {
            match self.listener.accept() {
                Ok(stream) => return Some(stream),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => return None,
            }
        }
    }

    /// There may be somebody whom the system had no descriptor for.
    pub fn accept_later(&mut self) {
        self.accepting = true;
    }

    pub fn register(&self, stream: &mut Stream, index: usize) -> io::Result<()> {
        stream.register(self.poll.registry(), Token(index + CONNECTIONS))
    }

    pub fn watch_writable(&self, stream: &mut Stream, index: usize, watch: bool) -> io::Result<()> {
        stream.watch_writable(self.poll.registry(), Token(index + CONNECTIONS), watch)
    }
}

/// The sockets tell by themselves.
impl Readiness for Sockets {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.descriptor.clone())
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        Ok(if self.accepting { Armed::Ready } else { Armed::Sleep { until_ns: None } })
    }
}
