//! A rendezvous over TCP: two programs exchange what they need before a faster path between them exists, such as the
//! addresses of queue pairs and the keys of memory.
//!
//! Messages travel in frames: 4 bytes of magic, 2 of version, 2 of zero, 4 of body length (little-endian), and the
//! body. Every frame, as a whole, has a time-out for sending and receiving, so a peer that sends one byte a second
//! delays nobody for long.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

const MAGIC: [u8; 4] = *b"SNWR";
const VERSION: u16 = 1;
pub(crate) const HEADER_LEN: usize = 12;
/// Pauses between two attempts to connect: the first, and the longest.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
/// Bytes of memory taken at a time for a frame, as its bytes arrive.
const CHUNK_LEN: usize = 64 << 10;

/// Reason why two programs could not meet, or why their connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The text names no host and port.
    #[error("`{address}` is not an address: {source}; write HOST:PORT, as in 127.0.0.1:7100")]
    Address {
        /// The address as given.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}; choose another port, or 0 for any that is free")]
    Listen {
        /// The address as given.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// Nobody answered in time.
    #[error(
        "nobody answered at {address} within {} ms ({source}); start the other program first, and check for a firewall \
         between the two",
        tried_for.as_millis()
    )]
    NobodyThere {
        /// The address as given.
        address: String,
        /// Time spent on trying.
        tried_for: Duration,
        /// Error of the last attempt.
        source: io::Error,
    },
    /// The peer was too slow.
    #[error("{peer} did not {doing} within {} ms; it may be stopped or overloaded: try again, or allow more time", limit.as_millis())]
    TimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// What the peer should have done, after "did not".
        doing: &'static str,
        /// The time that the peer had.
        limit: Duration,
    },
    /// The peer closed the connection.
    #[error("{peer} closed the connection; see its output for the reason")]
    Closed {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// Something else listens there.
    #[error("{peer} is not a Sinew rendezvous: its first bytes are {start:02x?}; check the address and port")]
    BadMagic {
        /// The peer's address.
        peer: SocketAddr,
        /// First bytes received, in place of the magic.
        start: [u8; 4],
    },
    /// The peer runs another release.
    #[error(
        "{peer} speaks version {theirs} of the rendezvous, this program {VERSION}: use the same release on both sides"
    )]
    Version {
        /// The peer's address.
        peer: SocketAddr,
        /// The peer's version.
        theirs: u16,
    },
    /// A frame is over the length limit.
    #[error("a frame of {len} bytes, to or from {peer}, is over the limit of {limit}")]
    TooLong {
        /// The peer's address.
        peer: SocketAddr,
        /// Bytes of the frame.
        len: usize,
        /// Bytes that a frame may have.
        limit: usize,
    },
    /// The peer's first frame was not whole yet when its place was needed for others.
    #[error("{peer} was disconnected to make way for others, as it had not yet said what it wants")]
    MadeWay {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// An error of the system.
    #[error("{doing}: {source}")]
    System {
        /// What was being done, and with which peer.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Limits of a [`Rendezvous`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousLimits {
    /// Limit on the body of a frame, in bytes.
    pub frame_len_max: usize,
    /// Time for one frame to be sent, or, once awaited, received.
    pub frame_timeout: Duration,
}

impl Default for RendezvousLimits {
    fn default() -> Self {
        Self { frame_len_max: 16 << 20, frame_timeout: Duration::from_secs(10) }
    }
}

/// A listening socket at which other programs arrive.
#[derive(Debug)]
pub struct RendezvousListener {
    listener: TcpListener,
    address: SocketAddr,
    limits: RendezvousLimits,
}

/// A connection with another program.
pub struct Rendezvous {
    stream: TcpStream,
    peer: SocketAddr,
    limits: RendezvousLimits,
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous").field("peer", &self.peer).finish_non_exhaustive()
    }
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>, RendezvousError> {
    let error = |source| RendezvousError::Address { address: address.to_owned(), source };
    let found: Vec<_> = address.to_socket_addrs().map_err(error)?.collect();
    if found.is_empty() {
        return Err(error(io::Error::new(ErrorKind::NotFound, "the name has no address")));
    }
    Ok(found)
}

fn nobody_there(address: &str, began: Instant, source: io::Error) -> RendezvousError {
    RendezvousError::NobodyThere { address: address.to_owned(), tried_for: began.elapsed(), source }
}

fn system_error(doing: String) -> impl FnOnce(io::Error) -> RendezvousError {
    move |source| RendezvousError::System { doing, source }
}

/// The frame as sent: header and body.
pub(crate) fn bytes_of(frame: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + frame.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend((frame.len() as u32).to_le_bytes());
    bytes.extend(frame);
    bytes
}

/// Body length, in bytes, of the frame that `peer` begins with this header. Refuses a header with other magic, another
/// version or reserved bytes that are not zero.
pub(crate) fn body_len(header: &[u8; HEADER_LEN], peer: SocketAddr) -> Result<usize, RendezvousError> {
    let [m0, m1, m2, m3, v0, v1, z0, z1, len @ ..] = *header;
    let start = [m0, m1, m2, m3];
    if start != MAGIC {
        return Err(RendezvousError::BadMagic { peer, start });
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != VERSION || [z0, z1] != [0; 2] {
        return Err(RendezvousError::Version { peer, theirs: version });
    }
    Ok(u32::from_le_bytes(len) as usize)
}

/// The instant at which a time-out ends. A time-out too long for the clock counts as a year.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + YEAR)
}

/// Waits up to `timeout` until `fd` can be read or is at its end. Returns whether it can.
fn is_readable(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let deadline = deadline(timeout);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl RendezvousListener {
    /// Listens at `HOST:PORT`; port 0 means any free port.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Address`], [`RendezvousError::Listen`].
    pub fn bind(address: &str, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        let error = |source| RendezvousError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(&*resolve(address)?).map_err(error)?;
        // A client may connect and leave before it is accepted: `accept` must not block then.
        listener.set_nonblocking(true).map_err(error)?;
        let local = listener.local_addr().map_err(error)?;
        Ok(Self { listener, address: local, limits })
    }

    /// Address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The listening socket, which is non-blocking.
    pub(crate) fn socket(&self) -> &TcpListener {
        &self.listener
    }

    /// The next peer that connects; `None` when none did within `timeout`.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::System`], such as too few descriptors; the listener stays usable.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Rendezvous>, RendezvousError> {
        let error = || system_error(format!("waiting for others at {}", self.address));
        if !is_readable(&self.listener, timeout).map_err(error())? {
            return Ok(None);
        }
        match self.listener.accept() {
            Ok((stream, peer)) => self.wrap_accepted(stream, peer).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
            Err(other) => Err(error()(other)),
        }
    }
}

impl RendezvousListener {
    /// Makes a rendezvous of an accepted connection.
    pub(crate) fn wrap_accepted(&self, stream: TcpStream, peer: SocketAddr) -> Result<Rendezvous, RendezvousError> {
        stream.set_nonblocking(false).map_err(system_error(format!("talking to {peer}")))?;
        Rendezvous::new(stream, peer, self.limits)
    }
}

impl Rendezvous {
    fn new(stream: TcpStream, peer: SocketAddr, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        // Frames are short, and the peer waits for each.
        stream.set_nodelay(true).map_err(system_error(format!("talking to {peer}")))?;
        Ok(Self { stream, peer, limits })
    }

    /// Connects to `HOST:PORT`, and tries again until it succeeds or `timeout` is over.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Address`], [`RendezvousError::NobodyThere`].
    pub fn connect(address: &str, timeout: Duration, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        let places = resolve(address)?;
        let (began, [mut pause, pause_max]) = (Instant::now(), RETRY_PAUSES);
        loop {
            match Self::try_addresses(&places, timeout.saturating_sub(began.elapsed()), limits) {
                Err(source) if began.elapsed() + pause >= timeout => {
                    return Err(nobody_there(address, began, source));
                }
                Err(_) => {}
                Ok(met) => return met,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(pause_max);
        }
    }

    /// Connects to `HOST:PORT`, where somebody must be listening already: a refusal is final. (The system resolves a
    /// name first, in time of its own.)
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`].
    pub fn connect_once(address: &str, timeout: Duration, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        let (places, began) = (resolve(address)?, Instant::now());
        Self::try_addresses(&places, timeout, limits).unwrap_or_else(|source| Err(nobody_there(address, began, source)))
    }

    /// Tries each of `places` once, in turn; the error is that of the last. Each has an equal share of the time that is
    /// left, so that a host that drops packets silently leaves time for the next.
    fn try_addresses(
        places: &[SocketAddr],
        timeout: Duration,
        limits: RendezvousLimits,
    ) -> io::Result<Result<Self, RendezvousError>> {
        let began = Instant::now();
        let mut last = io::Error::from(ErrorKind::TimedOut);
        for (place, places_left) in places.iter().zip((1..=places.len() as u32).rev()) {
            let share = timeout.saturating_sub(began.elapsed()) / places_left;
            // `connect_timeout` refuses a time-out of zero.
            match TcpStream::connect_timeout(place, share.max(Duration::from_millis(1))) {
                Ok(stream) => return Ok(Self::new(stream, *place, limits)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Address of the other side.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Waits up to `timeout` until the next frame, or the end of the connection, begins to arrive. Returns whether it
    /// did; [`Self::receive`] then says which.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::System`].
    pub fn wait(&self, timeout: Duration) -> Result<bool, RendezvousError> {
        is_readable(&self.stream, timeout).map_err(system_error(format!("waiting for {}", self.peer)))
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::TooLong`], when nothing was sent; else [`RendezvousError::TimedOut`],
    /// [`RendezvousError::Closed`] or [`RendezvousError::System`], after which the connection is unusable.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), RendezvousError> {
        self.check_len(frame.len())?;
        let bytes = bytes_of(frame);
        let deadline = deadline(self.limits.frame_timeout);
        let mut left = &bytes[..];
        while !left.is_empty() {
            let doing = "take a frame";
            let timeout = self.time_left(deadline, doing)?;
            let written = self.stream.set_write_timeout(Some(timeout)).and_then(|()| (&self.stream).write(left));
            left = &left[self.bytes_or_error(written, doing)?..];
        }
        Ok(())
    }

    /// Receives a frame.
    ///
    /// # Errors
    ///
    /// Every [`RendezvousError`] that names a peer, and [`RendezvousError::System`]; afterwards the connection is
    /// unusable.
    pub fn receive(&mut self) -> Result<Vec<u8>, RendezvousError> {
        let deadline = deadline(self.limits.frame_timeout);
        let mut header = [0; HEADER_LEN];
        self.read_exact(&mut header, deadline)?;
        let len = body_len(&header, self.peer)?;
        self.check_len(len)?;
        let mut frame = Vec::new();
        while frame.len() < len {
            let have = frame.len();
            frame.resize(len.min(have + CHUNK_LEN), 0);
            self.read_exact(&mut frame[have..], deadline)?;
        }
        Ok(frame)
    }

    fn check_len(&self, len: usize) -> Result<(), RendezvousError> {
        let limit = self.limits.frame_len_max.min(u32::MAX as usize);
        if len > limit { Err(RendezvousError::TooLong { peer: self.peer, len, limit }) } else { Ok(()) }
    }

    fn read_exact(&self, mut target: &mut [u8], deadline: Instant) -> Result<(), RendezvousError> {
        while !target.is_empty() {
            let doing = "send a frame";
            let timeout = self.time_left(deadline, doing)?;
            let read = self.stream.set_read_timeout(Some(timeout)).and_then(|()| (&self.stream).read(target));
            let read = self.bytes_or_error(read, doing)?;
            target = &mut target[read..];
        }
        Ok(())
    }

    fn time_left(&self, deadline: Instant, doing: &'static str) -> Result<Duration, RendezvousError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.timed_out(doing)) } else { Ok(left) }
    }

    fn timed_out(&self, doing: &'static str) -> RendezvousError {
        RendezvousError::TimedOut { peer: self.peer, doing, limit: self.limits.frame_timeout }
    }

    /// Bytes that a read or a write moved; 0 when a signal interrupted it.
    fn bytes_or_error(&self, result: io::Result<usize>, doing: &'static str) -> Result<usize, RendezvousError> {
        match result {
            Ok(0) => Err(RendezvousError::Closed { peer: self.peer }),
            Ok(bytes) => Ok(bytes),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => Ok(0),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(self.timed_out(doing)),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                    Err(RendezvousError::Closed { peer: self.peer })
                }
                _ => Err(system_error(format!("talking to {}", self.peer))(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);
    const LIMITS: RendezvousLimits =
        RendezvousLimits { frame_len_max: 200_000, frame_timeout: Duration::from_millis(300) };

    fn listener() -> RendezvousListener {
        RendezvousListener::bind("127.0.0.1:0", LIMITS).unwrap()
    }

    fn accepted(listener: &RendezvousListener) -> Rendezvous {
        listener.accept(SOON).unwrap().expect("somebody comes")
    }

    /// Two programs that have met, with a long frame time-out, for tests in which time does not matter.
    fn pair() -> (Rendezvous, Rendezvous) {
        let limits = RendezvousLimits { frame_timeout: SOON, ..LIMITS };
        let listener = RendezvousListener::bind("127.0.0.1:0", limits).unwrap();
        let here = Rendezvous::connect(&listener.address().to_string(), SOON, limits).unwrap();
        (here, accepted(&listener))
    }

    /// Result at a receiver whose peer sends these bytes and closes.
    fn verdict(bytes: &[u8]) -> Result<Vec<u8>, RendezvousError> {
        let listener = listener();
        let mut stream = TcpStream::connect(listener.address()).unwrap();
        let mut there = accepted(&listener);
        stream.write_all(bytes).unwrap();
        drop(stream);
        there.receive()
    }

    fn header(version: u16, len: u32) -> Vec<u8> {
        [&MAGIC[..], &version.to_le_bytes(), &[0; 2], &len.to_le_bytes()].concat()
    }

    #[test]
    fn frames_of_every_length_arrive_whole_and_in_order() {
        let (mut here, mut there) = pair();
        let frames = [0, 1, 1000, CHUNK_LEN, CHUNK_LEN + 1, 200_000].map(|len| vec![len as u8; len]);
        let sent = frames.clone();
        let thread = std::thread::spawn(move || {
            sent.iter().for_each(|frame| here.send(frame).unwrap());
            here.receive()
        });
        for frame in &frames {
            assert!(there.wait(SOON).unwrap());
            assert!(there.receive().unwrap() == *frame);
        }
        drop(there);
        assert!(matches!(thread.join().unwrap(), Err(RendezvousError::Closed { .. })));
    }

    #[test]
    fn a_frame_over_the_limit_is_neither_sent_nor_received() {
        let (mut here, mut there) = pair();
        assert!(matches!(here.send(&[0; 200_001]), Err(RendezvousError::TooLong { len: 200_001, limit: 200_000, .. })));
        here.send(b"still good").unwrap();
        assert_eq!(there.receive().unwrap(), b"still good");
        let error = verdict(&header(VERSION, u32::MAX)).unwrap_err();
        assert!(matches!(error, RendezvousError::TooLong { limit: 200_000, .. }), "{error}");
    }

    #[test]
    fn what_is_no_frame_is_refused_by_reason() {
        let error = verdict(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
        assert!(matches!(error, RendezvousError::BadMagic { start, .. } if &start == b"GET "), "{error}");
        let error = verdict(&header(VERSION + 1, 0)).unwrap_err();
        assert!(matches!(error, RendezvousError::Version { theirs: 2, .. }), "{error}");
        let mut reserved = header(VERSION, 0);
        reserved[6] = 1;
        assert!(verdict(&reserved).is_err());
        let whole = [header(VERSION, 3), b"abc".to_vec()].concat();
        assert_eq!(verdict(&whole).unwrap(), b"abc");
        for len in 0..whole.len() {
            let error = verdict(&whole[..len]).unwrap_err();
            assert!(matches!(error, RendezvousError::Closed { .. }), "{len}: {error}");
        }
    }

    #[test]
    fn a_peer_that_says_a_byte_at_a_time_is_not_waited_for() {
        let listener = listener();
        let mut stream = TcpStream::connect(listener.address()).unwrap();
        let mut there = accepted(&listener);
        let slow = std::thread::spawn(move || {
            for byte in header(VERSION, 100).into_iter().chain([0; 100]) {
                if stream.write_all(&[byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(30));
            }
        });
        let error = there.receive().unwrap_err();
        assert!(matches!(error, RendezvousError::TimedOut { .. }), "{error}");
        drop(there);
        slow.join().unwrap();
    }

    #[test]
    fn a_peer_that_reads_nothing_is_not_waited_for() {
        let limits = RendezvousLimits { frame_len_max: 64 << 20, ..LIMITS };
        let listener = listener();
        let mut here = Rendezvous::connect(&listener.address().to_string(), SOON, limits).unwrap();
        let _there = accepted(&listener);
        let error = here.send(&vec![0; 64 << 20]).unwrap_err();
        assert!(matches!(error, RendezvousError::TimedOut { doing: "take a frame", .. }), "{error}");
    }

    #[test]
    fn who_comes_first_waits_for_the_other() {
        let place = listener().address().to_string();
        let late = place.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let listener = RendezvousListener::bind(&late, LIMITS).unwrap();
            accepted(&listener);
        });
        Rendezvous::connect(&place, SOON, LIMITS).unwrap();
        thread.join().unwrap();
    }

    /// A listener that drops further connections silently, because its backlog is full, until the returned value is
    /// dropped.
    fn swallowing() -> (SocketAddr, impl Sized) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let place = listener.local_addr().unwrap();
        let moment = Duration::from_millis(50);
        let waiting: Vec<_> = std::iter::from_fn(|| TcpStream::connect_timeout(&place, moment).ok()).take(8).collect();
        assert!(waiting.len() < 8, "it still accepts connections");
        (place, (listener, waiting))
    }

    #[test]
    fn a_place_that_swallows_packets_leaves_time_for_the_next() {
        let (swallows, _full) = swallowing();
        let good = listener();
        let (timeout, began) = (Duration::from_secs(2), Instant::now());
        let met = Rendezvous::try_addresses(&[swallows, good.address()], timeout, LIMITS).unwrap().unwrap();
        assert_eq!(met.peer(), good.address());
        assert!(began.elapsed() < timeout, "no time was left for the second address");
    }

    #[test]
    fn nobody_there_is_said_with_the_address() {
        let place = listener().address().to_string();
        let error = Rendezvous::connect(&place, Duration::from_millis(60), LIMITS).unwrap_err();
        assert!(matches!(error, RendezvousError::NobodyThere { .. }), "{error}");
        assert!(error.to_string().contains(&place), "{error}");
        assert!(listener().accept(Duration::ZERO).unwrap().is_none());
        assert!(deadline(Duration::MAX) > deadline(Duration::from_secs(3600)));
    }

    #[test]
    fn an_address_that_is_none_or_taken_is_named() {
        for address in ["", "localhost", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"] {
            let error = RendezvousListener::bind(address, LIMITS).unwrap_err();
            assert!(matches!(error, RendezvousError::Address { .. }), "{error}");
            assert!(Rendezvous::connect(address, SOON, LIMITS).is_err());
        }
        let taken = listener();
        let error = RendezvousListener::bind(&taken.address().to_string(), LIMITS).unwrap_err();
        assert!(matches!(error, RendezvousError::Listen { .. }), "{error}");
    }
}
