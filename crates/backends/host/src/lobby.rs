//! A lobby: it holds connections to a rendezvous that have not sent a whole first frame yet.
//!
//! Anybody can connect and then send nothing, or a byte now and then. Such a connection delays nobody: it holds a place
//! in the lobby for a short time, and when the lobby is full it is evicted for a later one.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::descriptors::lengthen_backlog;
use crate::rendezvous::{HEADER_LEN, Rendezvous, RendezvousError, RendezvousListener, body_len, deadline};

/// Limits of a [`Lobby`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LobbyLimits {
    /// Connections that wait at a time; at least 1.
    pub places: usize,
    /// Time for which each may wait.
    pub patience: Duration,
    /// Limit on the first frame, which says what the peer wants, in bytes.
    pub hello_len_max: usize,
}

impl Default for LobbyLimits {
    fn default() -> Self {
        Self { places: 128, patience: Duration::from_secs(2), hello_len_max: 64 << 10 }
    }
}

/// Connections accepted between two checks of those that wait.
const ACCEPTS_PER_CHECK: usize = 32;
/// Backlog of the listening socket: most connections that wait to be accepted, unless the system allows fewer.
const BACKLOG: u16 = 1024;
/// Reasons kept for [`Lobby::turned_away`].
const REASONS_MAX: usize = 16;

/// A listener, and its connections without a whole first frame. Once a connection's first frame is whole, both are
/// handed on.
#[derive(Debug)]
pub struct Lobby {
    listener: RendezvousListener,
    limits: LobbyLimits,
    /// In order of arrival.
    waiting: VecDeque<Waiting>,
    ready: VecDeque<(Rendezvous, Vec<u8>)>,
    reasons: VecDeque<RendezvousError>,
}

/// A connection that waits.
#[derive(Debug)]
struct Waiting {
    stream: TcpStream,
    peer: SocketAddr,
    deadline_at: Instant,
    /// Bytes received so far: the header, and what follows it.
    received: Vec<u8>,
}

impl Waiting {
    /// Reads what has arrived; returns the frame once it is whole.
    fn read_frame(&mut self, len_max: usize) -> Result<Option<Vec<u8>>, RendezvousError> {
        loop {
            let wanted = match self.received.first_chunk::<HEADER_LEN>() {
                None => HEADER_LEN,
                Some(header) => {
                    let len = body_len(header, self.peer)?;
                    if len > len_max {
                        return Err(RendezvousError::TooLong { peer: self.peer, len, limit: len_max });
                    }
                    HEADER_LEN + len
                }
            };
            let missing = wanted - self.received.len();
            if missing == 0 {
                return Ok(Some(self.received.split_off(HEADER_LEN)));
            }
            // Memory is allocated as bytes arrive.
            let mut piece = [0; 4096];
            let room = missing.min(piece.len());
            match (&self.stream).read(&mut piece[..room]) {
                Ok(0) => return Err(RendezvousError::Closed { peer: self.peer }),
                Ok(read) => self.received.extend(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(RendezvousError::Closed { peer: self.peer }),
            }
        }
    }
}

impl Lobby {
    /// Creates the lobby of the connections to `listener`.
    pub fn new(listener: RendezvousListener, limits: LobbyLimits) -> Self {
        let (waiting, ready, reasons) = Default::default();
        // A shorter backlog only makes some of a crowd connect a second later.
        let _ = lengthen_backlog(listener.socket(), BACKLOG);
        Self { listener, limits, waiting, ready, reasons }
    }

    /// Address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Connections that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next connection whose first frame is whole, and that frame; `None` when there was none within `timeout`.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::System`], such as too few descriptors even with nobody waiting here; the lobby stays usable.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<(Rendezvous, Vec<u8>)>, RendezvousError> {
        let end = deadline(timeout);
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            self.sleep(end)?;
            // Waiting connections are read first: one whose frame is whole must not make way for another.
            self.read_all();
            self.accept_pending()?;
            if self.ready.is_empty() && Instant::now() >= end {
                return Ok(None);
            }
        }
    }

    /// Connections dropped since the last call, and why; only the first 16 are kept.
    pub fn turned_away(&mut self) -> impl Iterator<Item = RendezvousError> + '_ {
        self.reasons.drain(..)
    }

    /// Waits until a connection or data arrives, or the oldest connection has waited too long.
    fn sleep(&self, end: Instant) -> Result<(), RendezvousError> {
        let until = self.waiting.front().map_or(end, |oldest| oldest.deadline_at.min(end));
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let listener = PollFd::new(self.listener.socket(), PollFlags::IN);
        let guests = self.waiting.iter().map(|guest| PollFd::new(&guest.stream, PollFlags::IN));
        let mut fds: Vec<_> = std::iter::once(listener).chain(guests).collect();
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    fn failed(&self, source: std::io::Error) -> RendezvousError {
        RendezvousError::System { doing: format!("waiting for others at {}", self.address()), source }
    }

    /// Reads from all waiting connections, and drops those that have waited too long.
    fn read_all(&mut self) {
        let now = Instant::now();
        for guest in std::mem::take(&mut self.waiting) {
            if let Some(guest) = self.read_guest(guest) {
                if now < guest.deadline_at {
                    self.waiting.push_back(guest);
                } else {
                    let (peer, limit) = (guest.peer, self.limits.patience);
                    self.turn_away(RendezvousError::TimedOut { peer, doing: "say what it wants", limit });
                }
            }
        }
    }

    /// Reads from one connection. Returns it if its frame is not whole yet.
    fn read_guest(&mut self, mut guest: Waiting) -> Option<Waiting> {
        match guest.read_frame(self.limits.hello_len_max) {
            Ok(None) => return Some(guest),
            Ok(Some(frame)) => {
                let Waiting { stream, peer, .. } = guest;
                match self.listener.wrap_accepted(stream, peer) {
                    Ok(rendezvous) => self.ready.push_back((rendezvous, frame)),
                    Err(error) => self.turn_away(error),
                }
            }
            Err(error) => self.turn_away(error),
        }
        None
    }

    fn turn_away(&mut self, reason: RendezvousError) {
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push_back(reason);
        }
    }

    /// Accepts connections from the backlog, up to [`ACCEPTS_PER_CHECK`].
    fn accept_pending(&mut self) -> Result<(), RendezvousError> {
        for _ in 0..ACCEPTS_PER_CHECK {
            let (stream, peer) = match self.listener.socket().accept() {
                Ok(came) => came,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    // Probably no descriptor is left: dropping a waiting connection frees one.
                    _ if self.evict_one() => continue,
                    _ => return Err(self.failed(error)),
                },
            };
            if let Err(error) = stream.set_nonblocking(true) {
                self.turn_away(self.failed(error));
                continue;
            }
            let guest = Waiting { stream, peer, deadline_at: deadline(self.limits.patience), received: Vec::new() };
            if let Some(guest) = self.read_guest(guest) {
                if self.waiting.len() >= self.limits.places.max(1) {
                    self.evict_one();
                }
                self.waiting.push_back(guest);
            }
        }
        Ok(())
    }

    /// Drops a waiting connection: the oldest one of the host that has most of them. False when none waits.
    fn evict_one(&mut self) -> bool {
        let ips: Vec<IpAddr> = self.waiting.iter().map(|guest| guest.peer.ip().to_canonical()).collect();
        let of_its_host = |at: &usize| ips.iter().filter(|&&ip| ip == ips[*at]).count();
        // `max_by_key` returns the last of equals; searched from the back, that is the oldest.
        let Some(at) = (0..ips.len()).rev().max_by_key(of_its_host) else { return false };
        if let Some(guest) = self.waiting.remove(at) {
            // Its frame may have become whole just now.
            if let Some(guest) = self.read_guest(guest) {
                self.turn_away(RendezvousError::MadeWay { peer: guest.peer });
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::{RendezvousLimits, bytes_of};
    use std::io::Write;

    const SOON: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(200);

    fn lobby(limits: LobbyLimits) -> Lobby {
        Lobby::new(RendezvousListener::bind("127.0.0.1:0", RendezvousLimits::default()).unwrap(), limits)
    }

    fn visit(lobby: &Lobby) -> TcpStream {
        TcpStream::connect(lobby.address()).unwrap()
    }

    /// First frames that become whole until nothing arrives for 20 ms.
    fn next_frames(lobby: &mut Lobby) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| lobby.next(Duration::from_millis(20)).unwrap()).map(|(_, frame)| frame).collect()
    }

    fn is_closed(mut stream: &TcpStream) -> bool {
        stream.set_read_timeout(Some(SOON)).unwrap();
        matches!(stream.read(&mut [0]), Ok(0) | Err(_))
    }

    #[test]
    fn who_says_what_it_wants_is_handed_on_and_can_be_answered() {
        let mut lobby = lobby(LobbyLimits::default());
        for hello in [&b"hello"[..], b"", &[7; 64 << 10]] {
            let there = lobby.address().to_string();
            let mut here = Rendezvous::connect(&there, SOON, RendezvousLimits::default()).unwrap();
            here.send(hello).unwrap();
            let (mut met, message) = lobby.next(SOON).unwrap().unwrap();
            assert!(message == hello);
            met.send(b"welcome").unwrap();
            assert_eq!(here.receive().unwrap(), b"welcome");
            here.send(b"and more").unwrap();
            assert_eq!(met.receive().unwrap(), b"and more");
        }
        assert_eq!(lobby.waiting(), 0);
    }

    #[test]
    fn who_says_nothing_is_let_go_after_its_time() {
        let mut lobby = lobby(LobbyLimits { patience: SHORT, ..LobbyLimits::default() });
        let silent: Vec<_> = (0..10).map(|_| visit(&lobby)).collect();
        let began = Instant::now();
        assert!(next_frames(&mut lobby).is_empty());
        while lobby.waiting() > 0 {
            assert!(lobby.next(SHORT).unwrap().is_none() && began.elapsed() < SOON);
        }
        assert!(began.elapsed() >= SHORT / 2 && silent.iter().all(is_closed));
        let reasons: Vec<_> = lobby.turned_away().collect();
        assert_eq!(reasons.len(), 10);
        assert!(matches!(reasons[0], RendezvousError::TimedOut { doing: "say what it wants", .. }), "{reasons:?}");
    }

    #[test]
    fn who_says_a_byte_now_and_then_gets_no_more_time() {
        let mut lobby = lobby(LobbyLimits { patience: SHORT, ..LobbyLimits::default() });
        let mut slow = visit(&lobby);
        let began = Instant::now();
        for byte in bytes_of(&[1; 1_000]) {
            if slow.write_all(&[byte]).is_err() {
                break;
            }
            assert!(lobby.next(Duration::from_millis(5)).unwrap().is_none());
        }
        assert!(lobby.waiting() == 0 && began.elapsed() < SOON && is_closed(&slow));
    }

    #[test]
    fn the_oldest_of_those_who_wait_makes_way_for_who_comes() {
        let mut lobby = lobby(LobbyLimits { places: 8, patience: SOON, ..LobbyLimits::default() });
        let mut silent: VecDeque<_> = (0..8).map(|_| visit(&lobby)).collect();
        assert!(next_frames(&mut lobby).is_empty());
        for _ in 0..50 {
            silent.push_back(visit(&lobby));
            assert!(next_frames(&mut lobby).is_empty());
            assert_eq!(lobby.waiting(), 8);
            assert!(is_closed(&silent.pop_front().unwrap()));
            assert!(matches!(lobby.turned_away().next(), Some(RendezvousError::MadeWay { .. })));
        }
        // A connection that has sent a part of its frame continues from there.
        let mut good = visit(&lobby);
        let bytes = bytes_of(b"hello");
        good.write_all(&bytes[..9]).unwrap();
        silent.push_back(visit(&lobby));
        assert!(next_frames(&mut lobby).is_empty());
        good.write_all(&bytes[9..]).unwrap();
        assert_eq!(lobby.next(SOON).unwrap().unwrap().1, b"hello");
    }

    #[test]
    fn of_hosts_that_of_most_makes_way() {
        let mut lobby = Lobby::new(
            RendezvousListener::bind("0.0.0.0:0", RendezvousLimits::default()).unwrap(),
            LobbyLimits { places: 8, patience: SOON, ..LobbyLimits::default() },
        );
        let port = lobby.address().port();
        // The destination address of a connection decides its source address.
        let from = |host: &str| TcpStream::connect((host, port)).unwrap();
        let alone = from("127.0.0.2");
        let bound = alone.local_addr().unwrap().ip();
        let _many: Vec<_> = (0..40).map(|_| from("127.0.0.1")).collect();
        assert!(next_frames(&mut lobby).is_empty());
        assert_eq!(lobby.waiting(), 8);
        if bound.to_string() == "127.0.0.2" {
            assert!(
                lobby.waiting.iter().any(|guest| guest.peer.ip() == bound),
                "it came first, and is the only one of its host"
            );
        }
    }

    #[test]
    fn two_hundred_silent_ones_and_drip_feeders_keep_nobody_waiting() {
        let mut lobby = lobby(LobbyLimits { patience: SOON, ..LobbyLimits::default() });
        let mut crowd = Vec::new();
        for _ in 0..5 {
            // No more at a time than the backlog holds.
            crowd.extend((0..40).map(|_| visit(&lobby)));
            assert!(next_frames(&mut lobby).is_empty());
        }
        let frame = bytes_of(&[1; 1_000]);
        for round in 0..10 {
            for slow in crowd.iter_mut().step_by(2) {
                let _ = slow.write_all(&frame[round..=round]);
            }
            let began = Instant::now();
            let mut good = visit(&lobby);
            good.write_all(&bytes_of(b"good")).unwrap();
            assert_eq!(lobby.next(SOON).unwrap().unwrap().1, b"good");
            assert!(began.elapsed() < SOON / 4, "{:?}", began.elapsed());
            assert!((100..=128).contains(&lobby.waiting()));
        }
    }

    #[test]
    fn what_is_no_hello_is_turned_away_with_its_reason() {
        let mut lobby = lobby(LobbyLimits { hello_len_max: 100, ..LobbyLimits::default() });
        for (first_bytes, is_right) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), true),
            (bytes_of(&[0; 101]), true),
            (b"SNWR\x09\0\0\0\0\0\0\0".to_vec(), true),
            (bytes_of(&[0; 100]), false),
        ] {
            let mut stream = visit(&lobby);
            stream.write_all(&first_bytes).unwrap();
            let turned_away = next_frames(&mut lobby).is_empty();
            assert_eq!((turned_away, lobby.turned_away().count() == 1), (is_right, is_right));
        }
        drop(visit(&lobby));
        assert!(next_frames(&mut lobby).is_empty());
        assert!(matches!(lobby.turned_away().next(), Some(RendezvousError::Closed { .. })));
    }
}
