//! Where clients come in, and their connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// A listening socket: `HOST:PORT`, or `unix:PATH`.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    address: String,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens at `address`, with the port that the system chooses where it is 0. The socket of a server that is gone is
    /// replaced; any other file is left alone.
    ///
    /// # Errors
    ///
    /// What the system says: no such host, a port or a path that is in use, no right.
    pub fn bind(address: &str) -> io::Result<Self> {
        if let Some(path) = address.strip_prefix(UNIX) {
            let listener = UnixListener::bind(path).or_else(|error| {
                // The system refuses connections to files of any kind.
                let is_socket = || std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
                let nobody =
                    || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
                if error.kind() != ErrorKind::AddrInUse || !is_socket() || !nobody() {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            })?;
            return Ok(Self { kind: Kind::Unix(listener, path.into()), address: address.to_owned() });
        }
        let mut result = Err(io::Error::new(ErrorKind::InvalidInput, "no address: HOST:PORT or unix:PATH is needed"));
        for place in address.to_socket_addrs()? {
            match TcpListener::bind(place) {
                Ok(listener) => {
                    let address = listener.local_addr()?.to_string();
                    return Ok(Self { kind: Kind::Tcp(listener), address });
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.kind {
            Kind::Tcp(listener) => listener.register(registry, token, Interest::READABLE),
            Kind::Unix(listener, _) => listener.register(registry, token, Interest::READABLE),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Small answers are not to wait for others. It works without, too.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Kind::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }
}

/// The socket, for what the system can do with it beside.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(listener) => listener.as_fd(),
            Kind::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix(_, path) = &self.kind {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A connection's socket.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE)
    }

    /// Has it be told when it can be written to, or no longer.
    pub fn watch_writable(&mut self, registry: &Registry, token: Token, watch: bool) -> io::Result<()> {
        let interest = if watch { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        self.source().reregister(registry, token, interest)
    }

    pub fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(target),
            Self::Unix(stream) => stream.read(target),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}
