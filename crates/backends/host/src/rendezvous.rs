//! A rendezvous over TCP: how two programs tell each other what they need before a faster way between them exists, such as the
//! addresses of queue pairs and the keys of memory.
//!
//! What is told travels in frames: 4 bytes of magic, 2 of version, 2 of zero, 4 of length (little-endian), and as many bytes. Every
//! read and write has a time-out for the whole frame, so a peer that says one byte a second delays nobody for long.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

const MAGIC: [u8; 4] = *b"SNWR";
const VERSION: u16 = 1;
pub(crate) const HEADER_LEN: usize = 12;
/// Pauses between two tries to connect: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
/// Memory for a frame is taken as its bytes come, so many at a time.
const PIECE: usize = 64 << 10;

/// Why two programs did not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The text names no host and port.
    #[error("`{address}` is no address: {source}; write HOST:PORT, as in 127.0.0.1:7100")]
    Address {
        /// As it was given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be listened at.
    #[error("cannot listen at {address}: {source}; choose another port, or 0 for any that is free")]
    Listen {
        /// As it was given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody answered in the time.
    #[error(
        "nobody answers at {address}, tried for {} ms ({source}); start the other program first, and look for a firewall \
         between the two",
        tried_for.as_millis()
    )]
    NobodyThere {
        /// As it was given.
        address: String,
        /// How long it was tried.
        tried_for: Duration,
        /// How the last try ended.
        source: io::Error,
    },
    /// The peer was too slow.
    #[error("{peer} did not {doing} within {} ms; it may be stopped or overloaded: try again, or allow more time", limit.as_millis())]
    TimedOut {
        /// Who.
        peer: SocketAddr,
        /// What it should have done.
        doing: &'static str,
        /// The time that it had.
        limit: Duration,
    },
    /// The peer is gone.
    #[error("{peer} closed the connection; see what it said when it ended")]
    Closed {
        /// Who.
        peer: SocketAddr,
    },
    /// Something else listens there.
    #[error("{peer} is no rendezvous of Sinew: its first bytes are {start:02x?}; look at the address and port")]
    NotOurs {
        /// Who.
        peer: SocketAddr,
        /// What came where a frame starts.
        start: [u8; 4],
    },
    /// The peer is of another release.
    #[error(
        "{peer} speaks version {theirs} of the rendezvous, this program {VERSION}: use the same release on both sides"
    )]
    Version {
        /// Who.
        peer: SocketAddr,
        /// Its version.
        theirs: u16,
    },
    /// A frame is longer than agreed.
    #[error("a frame of {len} bytes, to or from {peer}, is over the limit of {limit}")]
    TooLong {
        /// Who.
        peer: SocketAddr,
        /// Bytes of the frame.
        len: usize,
        /// Bytes that it may have.
        limit: usize,
    },
    /// The peer had not said yet what it wants when others came.
    #[error("{peer} had not said what it wants, and made way for others")]
    MadeWay {
        /// Who.
        peer: SocketAddr,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was being done, and with whom.
        doing: String,
        /// What it said.
        source: io::Error,
    },
}

/// Limits of a [`Rendezvous`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousLimits {
    /// Bytes of a frame.
    pub frame_len_max: usize,
    /// Time for one frame to be sent, or, once awaited, received.
    pub frame_timeout: Duration,
}

impl Default for RendezvousLimits {
    fn default() -> Self {
        Self { frame_len_max: 16 << 20, frame_timeout: Duration::from_secs(10) }
    }
}

/// Where others come to.
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

fn system(doing: String) -> impl FnOnce(io::Error) -> RendezvousError {
    move |source| RendezvousError::System { doing, source }
}

/// A frame as it travels.
pub(crate) fn bytes_of(frame: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + frame.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend((frame.len() as u32).to_le_bytes());
    bytes.extend(frame);
    bytes
}

/// Bytes of the frame that `peer` begins with this header.
pub(crate) fn body_len(header: &[u8; HEADER_LEN], peer: SocketAddr) -> Result<usize, RendezvousError> {
    let [m0, m1, m2, m3, v0, v1, z0, z1, len @ ..] = *header;
    let start = [m0, m1, m2, m3];
    if start != MAGIC {
        return Err(RendezvousError::NotOurs { peer, start });
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != VERSION || [z0, z1] != [0; 2] {
        return Err(RendezvousError::Version { peer, theirs: version });
    }
    Ok(u32::from_le_bytes(len) as usize)
}

/// When a time-out is over; one that no clock can tell is a year.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + YEAR)
}

/// Whether `fd` can be read, or is at its end, within `timeout`.
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
    /// Listens at `HOST:PORT`; port 0 is any that is free.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Address`], [`RendezvousError::Listen`].
    pub fn bind(address: &str, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        let error = |source| RendezvousError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(&*resolve(address)?).map_err(error)?;
        // Somebody who knocks and goes leaves nothing to accept: never wait for it there.
        listener.set_nonblocking(true).map_err(error)?;
        let local = listener.local_addr().map_err(error)?;
        Ok(Self { listener, address: local, limits })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it listens with, which does not block.
    pub(crate) fn socket(&self) -> &TcpListener {
        &self.listener
    }

    /// The next who comes; `None` when nobody did within `timeout`.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::System`], such as too few descriptors; the listener goes on.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Rendezvous>, RendezvousError> {
        let error = || system(format!("waiting for others at {}", self.address));
        if !is_readable(&self.listener, timeout).map_err(error())? {
            return Ok(None);
        }
        match self.listener.accept() {
            Ok((stream, peer)) => self.meet(stream, peer).map(Some),
            Err(gone) if matches!(gone.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
            Err(other) => Err(error()(other)),
        }
    }
}

impl RendezvousListener {
    /// A rendezvous with somebody who came in.
    pub(crate) fn meet(&self, stream: TcpStream, peer: SocketAddr) -> Result<Rendezvous, RendezvousError> {
        stream.set_nonblocking(false).map_err(system(format!("talking to {peer}")))?;
        Rendezvous::new(stream, peer, self.limits)
    }
}

impl Rendezvous {
    fn new(stream: TcpStream, peer: SocketAddr, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        // Frames are short, and each is waited for.
        stream.set_nodelay(true).map_err(system(format!("talking to {peer}")))?;
        Ok(Self { stream, peer, limits })
    }

    /// Connects to `HOST:PORT`, and tries again until somebody listens or `timeout` is over.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Address`], [`RendezvousError::NobodyThere`].
    pub fn connect(address: &str, timeout: Duration, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        let places = resolve(address)?;
        let (began, [mut pause, pause_max]) = (Instant::now(), PAUSES);
        loop {
            match Self::try_places(&places, timeout.saturating_sub(began.elapsed()), limits) {
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

    /// Connects to `HOST:PORT`, where somebody listens already: a refusal is one. (A name is looked up in the system first, which
    /// takes its own time.)
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`].
    pub fn connect_once(address: &str, timeout: Duration, limits: RendezvousLimits) -> Result<Self, RendezvousError> {
        let (places, began) = (resolve(address)?, Instant::now());
        Self::try_places(&places, timeout, limits).unwrap_or_else(|source| Err(nobody_there(address, began, source)))
    }

    /// One try at each of `places`, in turn; the error is the last one's. Each has an equal share of the time that is left, so
    /// that a place which swallows packets keeps nobody from the next.
    fn try_places(
        places: &[SocketAddr],
        timeout: Duration,
        limits: RendezvousLimits,
    ) -> io::Result<Result<Self, RendezvousError>> {
        let began = Instant::now();
        let mut last = io::Error::from(ErrorKind::TimedOut);
        for (place, places_left) in places.iter().zip((1..=places.len() as u32).rev()) {
            let share = timeout.saturating_sub(began.elapsed()) / places_left;
            // Zero is no time-out; a millisecond is as good as none.
            match TcpStream::connect_timeout(place, share.max(Duration::from_millis(1))) {
                Ok(stream) => return Ok(Self::new(stream, *place, limits)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The other side.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the next frame, or the end of the connection, begins to come within `timeout`. Then [`Self::receive`] says what.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::System`].
    pub fn wait(&self, timeout: Duration) -> Result<bool, RendezvousError> {
        is_readable(&self.stream, timeout).map_err(system(format!("waiting for {}", self.peer)))
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::TooLong`], and then nothing was sent; else [`RendezvousError::TimedOut`],
    /// [`RendezvousError::Closed`], [`RendezvousError::System`], after which the connection is of no use.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), RendezvousError> {
        self.check_len(frame.len())?;
        let bytes = bytes_of(frame);
        let deadline = deadline(self.limits.frame_timeout);
        let mut left = &bytes[..];
        while !left.is_empty() {
            let doing = "take a frame";
            let timeout = self.time_left(deadline, doing)?;
            let written = self.stream.set_write_timeout(Some(timeout)).and_then(|()| (&self.stream).write(left));
            left = &left[self.moved(written, doing)?..];
        }
        Ok(())
    }

    /// Receives a frame.
    ///
    /// # Errors
    ///
    /// All of [`RendezvousError`] that name a peer; afterwards the connection is of no use.
    pub fn receive(&mut self) -> Result<Vec<u8>, RendezvousError> {
        let deadline = deadline(self.limits.frame_timeout);
        let mut header = [0; HEADER_LEN];
        self.read_exact(&mut header, deadline)?;
        let len = body_len(&header, self.peer)?;
        self.check_len(len)?;
        let mut frame = Vec::new();
        while frame.len() < len {
            let have = frame.len();
            frame.resize(len.min(have + PIECE), 0);
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
            let read = self.moved(read, doing)?;
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

    /// Bytes that a read or a write moved; none when a signal came in between.
    fn moved(&self, result: io::Result<usize>, doing: &'static str) -> Result<usize, RendezvousError> {
        match result {
            Ok(0) => Err(RendezvousError::Closed { peer: self.peer }),
            Ok(bytes) => Ok(bytes),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => Ok(0),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(self.timed_out(doing)),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                    Err(RendezvousError::Closed { peer: self.peer })
                }
                _ => Err(system(format!("talking to {}", self.peer))(error)),
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

    /// Two that have met; patient where the test says nothing of time.
    fn pair() -> (Rendezvous, Rendezvous) {
        let limits = RendezvousLimits { frame_timeout: SOON, ..LIMITS };
        let listener = RendezvousListener::bind("127.0.0.1:0", limits).unwrap();
        let here = Rendezvous::connect(&listener.address().to_string(), SOON, limits).unwrap();
        (here, accepted(&listener))
    }

    /// What a receiver says to bytes that somebody sends who then goes.
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
        let frames = [0, 1, 1000, PIECE, PIECE + 1, 200_000].map(|len| vec![len as u8; len]);
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
        assert!(matches!(error, RendezvousError::NotOurs { start, .. } if &start == b"GET "), "{error}");
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

    /// A place that swallows whoever comes, as long as what is returned lives: all who may wait there do.
    fn swallowing() -> (SocketAddr, impl Sized) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let place = listener.local_addr().unwrap();
        let moment = Duration::from_millis(50);
        let waiting: Vec<_> = std::iter::from_fn(|| TcpStream::connect_timeout(&place, moment).ok()).take(8).collect();
        assert!(waiting.len() < 8, "it still lets people in");
        (place, (listener, waiting))
    }

    #[test]
    fn a_place_that_swallows_packets_leaves_time_for_the_next() {
        let (swallows, _full) = swallowing();
        let good = listener();
        let (timeout, began) = (Duration::from_secs(2), Instant::now());
        let met = Rendezvous::try_places(&[swallows, good.address()], timeout, LIMITS).unwrap().unwrap();
        assert_eq!(met.peer(), good.address());
        assert!(began.elapsed() < timeout, "the second had what was left when all was over");
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
