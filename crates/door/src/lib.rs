//! Sockets that clients of other protocols than Sinew's come in at: listeners at `HOST:PORT` or `unix:PATH`, and their connections, none of which blocks.
#![forbid(unsafe_code)]

use std::fs::Permissions;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

/// The mode that a Unix socket has at first: nobody else may connect, as with memcached.
pub const OWNER_ONLY: u32 = 0o700;
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
    /// replaced; any other file is left alone. A Unix socket is for this user alone, until [`Self::set_mode`].
    ///
    /// # Errors
    ///
    /// What the system says: no such host, a port or a path that is in use, no right.
    pub fn bind(address: &str) -> io::Result<Self> {
        if let Some(path) = address.strip_prefix(UNIX) {
            if path.is_empty() {
                return Err(io::Error::new(ErrorKind::InvalidInput, "no path: unix:PATH is needed"));
            }
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
            let listener = Self { kind: Kind::Unix(listener, path.into()), address: address.to_owned() };
            listener.set_mode(OWNER_ONLY)?;
            return Ok(listener);
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

    /// Has a Unix socket be for those whom `mode`, such as 0o770, lets write to the file. It changes nothing of another.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        match &self.kind {
            Kind::Tcp(_) => Ok(()),
            Kind::Unix(_, path) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether other hosts may reach it.
    pub fn is_open_to_others(&self) -> bool {
        match &self.kind {
            Kind::Tcp(listener) => {
                !listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
            }
            Kind::Unix(..) => false,
        }
    }

    /// Has it be told when somebody comes, as often as it has to be told anew.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.kind {
            Kind::Tcp(listener) => listener.register(registry, token, Interest::READABLE),
            Kind::Unix(listener, _) => listener.register(registry, token, Interest::READABLE),
        }
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] when there is none; what the system says.
    pub fn accept(&self) -> io::Result<Stream> {
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
pub enum Stream {
    /// Of another host, or of this one.
    Tcp(TcpStream),
    /// Of this host.
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    /// Has it be told when something comes.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE)
    }

    /// Has it be told when it can be written to, or no longer.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn watch_writable(&mut self, registry: &Registry, token: Token, watch: bool) -> io::Result<()> {
        let interest = if watch { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        self.source().reregister(registry, token, interest)
    }

    /// Takes what came, as far as there is room.
    ///
    /// # Errors
    ///
    /// What the system says; [`ErrorKind::WouldBlock`] when nothing came.
    pub fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(target),
            Self::Unix(stream) => stream.read(target),
        }
    }

    /// As [`Self::read`], into several pieces, one after the other.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read_pieces(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_vectored(pieces),
            Self::Unix(stream) => stream.read_vectored(pieces),
        }
    }

    /// Sends what the system takes.
    ///
    /// # Errors
    ///
    /// What the system says; [`ErrorKind::WouldBlock`] when it takes nothing.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    /// As [`Self::write`], of several pieces.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_pieces(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(pieces),
            Self::Unix(stream) => stream.write_vectored(pieces),
        }
    }
}
