//! Sockets for clients that speak protocols other than Sinew's: listeners at `HOST:PORT` or `unix:PATH`, and their
//! connections. None of them blocks.
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

/// Initial mode of a Unix socket: nobody else may connect, as with memcached.
pub const OWNER_ONLY: u32 = 0o700;
/// Prefix of the path of a Unix socket.
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
    /// Listens at `address`; for port 0 the system chooses a port. The socket file of a dead server is replaced, and
    /// any other file is left alone. A Unix socket is for this user alone, until [`Self::set_mode`].
    ///
    /// # Errors
    ///
    /// The system's error: no such host, a port or path in use, or no permission.
    pub fn bind(address: &str) -> io::Result<Self> {
        if let Some(path) = address.strip_prefix(UNIX) {
            if path.is_empty() {
                return Err(io::Error::new(ErrorKind::InvalidInput, "there is no path: write unix:PATH"));
            }
            let listener = UnixListener::bind(path).or_else(|error| {
                // The system refuses connections to files that are not sockets as well, hence `is_socket`.
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
        let mut result =
            Err(io::Error::new(ErrorKind::InvalidInput, "there is no address: write HOST:PORT or unix:PATH"));
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

    /// Sets the mode of a Unix socket, such as 0o770: users whom it lets write to the file may connect. Does nothing to
    /// a TCP socket.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        match &self.kind {
            Kind::Tcp(_) => Ok(()),
            Kind::Unix(_, path) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        }
    }

    /// Address that the socket listens at.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether other hosts may be able to connect.
    pub fn is_open_to_others(&self) -> bool {
        match &self.kind {
            Kind::Tcp(listener) => {
                !listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
            }
            Kind::Unix(..) => false,
        }
    }

    /// Registers the socket with `registry`, which then reports waiting connections under `token`. It reports each
    /// arrival once: accept until there is none left.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.kind {
            Kind::Tcp(listener) => listener.register(registry, token, Interest::READABLE),
            Kind::Unix(listener, _) => listener.register(registry, token, Interest::READABLE),
        }
    }

    /// Accepts the next connection, if there is one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] when there is none; else the system's error.
    pub fn accept(&self) -> io::Result<Stream> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Small answers must not wait for others. The connection works without this too.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Kind::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }
}

/// The socket's descriptor, for system calls that this crate does not offer.
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
    /// TCP, from another host or this one.
    Tcp(TcpStream),
    /// A Unix socket, from this host.
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    /// Registers the connection with `registry`, which then reports arriving bytes under `token`.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE)
    }

    /// Starts (`watch`) or stops reporting that the connection can be written to.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn watch_writable(&mut self, registry: &Registry, token: Token, watch: bool) -> io::Result<()> {
        let interest = if watch { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        self.source().reregister(registry, token, interest)
    }

    /// Reads what has arrived, as far as there is room; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] when nothing has arrived; else the system's error.
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
    /// As for [`Self::read`].
    pub fn read_pieces(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_vectored(pieces),
            Self::Unix(stream) => stream.read_vectored(pieces),
        }
    }

    /// Writes as much as the system takes; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] when it takes nothing; else the system's error.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    /// As [`Self::write`], from several pieces.
    ///
    /// # Errors
    ///
    /// As for [`Self::write`].
    pub fn write_pieces(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(pieces),
            Self::Unix(stream) => stream.write_vectored(pieces),
        }
    }
}
