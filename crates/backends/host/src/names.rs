//! Names for ports that are queue pairs: the name is a TCP address, where a thread tells every caller how to reach the
//! queue pair.
//!
//! The answer is one frame of the [rendezvous](crate::Rendezvous), always the same and so short that a fresh connection
//! takes it at once. The thread reads nothing from a caller and never waits for one. A caller costs a connection for
//! a moment, and at most [`ANSWERS_PER_TURN`] callers are answered every [`ACCEPT_PAUSE`]. The port's own event loop is
//! not involved.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use sinew_fabric::verbs::{Names, QpAddress};
use sinew_fabric::{Address, PortError};

use crate::rendezvous::{Rendezvous, RendezvousError, RendezvousLimits, RendezvousListener, bytes_of};

/// Time for which a lookup waits for the connection, and again for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const LIMITS: RendezvousLimits =
    RendezvousLimits { frame_len_max: QpAddress::BYTES_MAX, frame_timeout: ANSWER_TIMEOUT };
/// Callers answered before the thread pauses.
const ANSWERS_PER_TURN: usize = 64;
/// Time for which nobody is accepted after that, or after a lack of descriptors.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The [`Names`] of `scheme://HOST:PORT`. An announced port has a thread of its own that answers there.
///
/// A lookup takes up to two seconds when the other side is silent, plus the time in which the system resolves the
/// host's name.
#[derive(Debug)]
pub struct TcpNames {
    scheme: &'static str,
    options: &'static [&'static str],
    announced: Option<Announcement>,
}

impl TcpNames {
    /// The names of a fabric whose addresses may have these options.
    pub fn new(scheme: &'static str, options: &'static [&'static str]) -> Self {
        Self { scheme, options, announced: None }
    }

    fn check(&self, address: &Address) -> Result<(), PortError> {
        address.check_scheme(self.scheme, "HOST:PORT")?;
        Ok(address.check_options(self.options)?)
    }
}

impl Names for TcpNames {
    fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Port 0, or no port, means any free port; no host means all interfaces of this host.
    fn announce(&mut self, address: &Address, qp: &QpAddress) -> Result<Address, PortError> {
        self.check(address)?;
        let listener = bind(address)?;
        let place = listener.address().to_string();
        let announced = Announcement::start(listener, &qp.to_bytes());
        self.announced =
            Some(announced.map_err(|source| PortError::System { doing: format!("answering at {address}"), source })?);
        Ok(address.clone().with_rest(&place))
    }

    fn look_up(&mut self, address: &Address) -> Result<QpAddress, PortError> {
        self.check(address)?;
        let (host, port) = address.host_to_call()?;
        let place = socket_address(host.unwrap_or("localhost"), port);
        let answer = Rendezvous::connect_once(&place, ANSWER_TIMEOUT, LIMITS).and_then(|mut there| there.receive());
        let not_found = |looked_in| Err(PortError::NotFound { address: address.to_string(), looked_in });
        match answer {
            Ok(bytes) => QpAddress::from_bytes(&bytes)
                .map_or_else(|| not_found(format!("the answer of {place}, which is not a queue pair's address")), Ok),
            Err(RendezvousError::Address { source, .. }) => Err(unknown_host(address, host, source)),
            Err(RendezvousError::NobodyThere { source, .. }) => not_found(format!("TCP at {place}: {source}")),
            Err(RendezvousError::System { doing, source }) => Err(PortError::System { doing, source }),
            Err(other) => not_found(format!("the answer of {place}: {other}")),
        }
    }
}

/// Joins a host and a port in the form that the system resolves.
fn socket_address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn unknown_host(address: &Address, host: Option<&str>, source: io::Error) -> PortError {
    PortError::UnknownHost { address: address.to_string(), host: host.unwrap_or_default().to_owned(), source }
}

fn bind(address: &Address) -> Result<RendezvousListener, PortError> {
    let (host, port) = address.host_and_port()?;
    let port = port.unwrap_or(0);
    let bind = |host| RendezvousListener::bind(&socket_address(host, port), LIMITS);
    let bound = match host {
        Some(host) => bind(host),
        // IPv6 first: its wildcard takes IPv4 too.
        None => bind("::").or_else(|_| bind("0.0.0.0")),
    };
    bound.map_err(|error| match error {
        RendezvousError::Listen { source, .. } => match source.kind() {
            ErrorKind::AddrInUse => PortError::Taken { address: address.to_string(), holder: String::new() },
            _ => PortError::System { doing: format!("listening at {address}"), source },
        },
        RendezvousError::Address { source, .. } => unknown_host(address, host, source),
        other => PortError::System { doing: format!("listening at {address}"), source: io::Error::other(other) },
    })
}

/// A thread that gives everybody the same answer, until this is dropped.
#[derive(Debug)]
struct Announcement {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Announcement {
    fn start(listener: RendezvousListener, frame: &[u8]) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (stopped, frame) = (Arc::clone(&stop), bytes_of(frame));
        let answering = move || answer_all(listener.socket(), &stopped, &frame);
        let thread = std::thread::Builder::new().name("sinew-names".to_owned()).spawn(answering)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // The write cannot block or overflow: it is the only one to this eventfd.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer_all(listener: &TcpListener, stop: &OwnedFd, frame: &[u8]) {
    let mut paused = false;
    loop {
        let wanted = if paused { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(listener, wanted)];
        if poll(&mut fds, paused.then_some(&ACCEPT_PAUSE)).is_err() {
            // A signal came, or the kernel is out of memory for the moment.
            std::thread::sleep(Duration::from_millis(1));
        } else if !fds[0].revents().is_empty() {
            return;
        }
        paused = !answer_some(listener, frame);
    }
}

/// Answers waiting callers. Returns false when the thread should pause before the next.
fn answer_some(listener: &TcpListener, frame: &[u8]) -> bool {
    for _ in 0..ANSWERS_PER_TURN {
        match listener.accept() {
            Ok((stream, _)) => send_answer(&stream, frame),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Sends the answer, unless it cannot be sent at once.
fn send_answer(mut stream: &TcpStream, frame: &[u8]) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = stream.write(frame);
        let _ = stream.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use sinew_fabric::verbs::{QpNumber, Transport};

    fn qp(number: u32) -> QpAddress {
        QpAddress {
            number: QpNumber(number),
            transport: Transport::Ud,
            first_packet: 0,
            qkey: 7,
            mtu: 4096,
            port: b"somewhere".iter().copied().collect(),
        }
    }

    fn names() -> TcpNames {
        TcpNames::new("ibverbs", &["device"])
    }

    fn announced(number: u32) -> (TcpNames, Address) {
        let mut names = names();
        let address = names.announce(&"ibverbs://127.0.0.1:0?device=rxe0".parse().unwrap(), &qp(number)).unwrap();
        (names, address)
    }

    fn tcp_address(place: impl std::fmt::Display) -> Address {
        format!("ibverbs://{place}").parse().unwrap()
    }

    #[test]
    fn what_is_announced_is_found_until_it_is_dropped() {
        let (first, second) = (announced(1), announced(2));
        assert_eq!(first.1.option("device"), Some("rxe0"));
        for (at, number) in [(&first.1, 1), (&second.1, 2), (&first.1, 1)] {
            assert_eq!(names().look_up(at).unwrap(), qp(number));
        }
        drop(first.0);
        let error = names().look_up(&first.1).unwrap_err();
        assert!(matches!(&error, PortError::NotFound { looked_in, .. } if looked_in.contains("refused")), "{error}");
        assert!(names().announce(&first.1, &qp(3)).is_ok(), "the place is free again");
    }

    #[test]
    fn strangers_who_stay_flood_and_talk_keep_nobody_from_being_told() {
        let (_server, address) = announced(5);
        let clients: Vec<_> = (0..2 * ANSWERS_PER_TURN)
            .map(|_| {
                let mut client = TcpStream::connect(address.rest()).unwrap();
                // The other side may have closed already.
                let _ = client.write_all(b"GET / HTTP/1.1\r\n\r\n");
                client
            })
            .collect();
        assert_eq!(names().look_up(&address).unwrap(), qp(5));
        drop(clients);
    }

    #[test]
    fn who_says_nothing_or_something_else_is_an_error_within_its_time() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let began = Instant::now();
        let error = names().look_up(&tcp_address(silent.local_addr().unwrap())).unwrap_err();
        assert!(
            matches!(&error, PortError::NotFound { looked_in, .. } if looked_in.contains("did not send")),
            "{error}"
        );
        assert!(began.elapsed() < 20 * ANSWER_TIMEOUT);
        for (answer, why) in [
            (b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(), "not a Sinew rendezvous"),
            (bytes_of(b"hello"), "not a queue pair's address"),
            (bytes_of(&[1; QpAddress::BYTES_MAX + 1]), "over the limit"),
            (Vec::new(), "closed"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let place = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(&answer).unwrap());
            let error = names().look_up(&tcp_address(place)).unwrap_err();
            assert!(matches!(&error, PortError::NotFound { looked_in, .. } if looked_in.contains(why)), "{error}");
            server.join().unwrap();
        }
    }

    #[test]
    fn places_that_cannot_be_are_named() {
        let (_server, taken) = announced(1);
        assert!(matches!(names().announce(&taken, &qp(2)), Err(PortError::Taken { .. })));
        for bad in ["ibverbs://h:x", "udp://127.0.0.1:0", "ibverbs://127.0.0.1:0?ring=9"] {
            let error = names().announce(&bad.parse().unwrap(), &qp(1)).unwrap_err();
            assert!(matches!(error, PortError::Address(_)), "{error}");
        }
        for bad in ["127.0.0.1", "127.0.0.1:0", "", "127.0.0.1:7?speed=1"] {
            assert!(matches!(names().look_up(&tcp_address(bad)), Err(PortError::Address(_))), "{bad}");
        }
        let unknown = names().look_up(&tcp_address("no.such.host.invalid:7")).unwrap_err();
        assert!(matches!(&unknown, PortError::UnknownHost { host, .. } if host == "no.such.host.invalid"), "{unknown}");
    }
}
