//! Servers: a thread and an endpoint for each address, run until a signal or a stop, with a program of their own if
//! wanted.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use sinew_fabric::address::shown;
use sinew_fabric::{Address, PacketPort, PortStats, WakeTarget, Waker};
use sinew_host::{Interrupt, pin_current_thread};
use sinew_mem::atomic::{AtomicBool, Ordering};
use sinew_rpc::{EndpointInfo, EndpointStats, Stats, StatsReader};

use crate::endpoint::Rpc;
use crate::error::{Error, Result};
use crate::nexus::Nexus;

type AnyError = Box<dyn std::error::Error + Send + Sync>;
type MakeProgram = Arc<dyn Fn(&EndpointInfo, &mut Rpc) -> Result<Box<dyn AnyProgram>, AnyError> + Send + Sync>;
type Open = Box<dyn FnOnce(&Nexus) -> Result<Rpc> + Send>;

/// A program that runs on an endpoint's thread, in place of a [server](Server::program)'s loop. A closure that takes
/// the endpoint and returns the next step ([`Flow`]) is a program.
pub trait Program {
    /// Error that ends it early.
    type Error: Into<Box<dyn std::error::Error + Send + Sync>>;

    /// Turns the endpoint ([`Rpc::turn`] or [`Rpc::turn_with`]), does the program's other work without blocking, and
    /// returns the next step.
    ///
    /// # Errors
    ///
    /// An error ends the server.
    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, Self::Error>;

    /// Called after each turn; `busy` says whether the turn found work. Sleeps if there has been nothing to do for a
    /// while, until there is work or `timeout_ns` has passed. A program that also serves other things, such as sockets
    /// or further endpoints, overrides this to sleep on all of them:
    ///
    /// ```
    /// # use sinew::fabric::{Readiness, readiness::ForeignFd};
    /// # use sinew::{Flow, Program, Rpc};
    /// struct Both {
    ///     other: Rpc,
    ///     socket: ForeignFd,
    /// }
    ///
    /// impl Program for Both {
    ///     type Error = sinew::Error;
    ///
    ///     fn turn(&mut self, rpc: &mut Rpc) -> sinew::Result<Flow> {
    ///         Ok((rpc.turn() | self.other.turn()).into()) // and look at the socket
    ///     }
    ///
    ///     fn rest(&mut self, rpc: &mut Rpc, busy: bool, timeout_ns: Option<u64>) -> sinew::Result<()> {
    ///         rpc.rest_beside(busy, &mut [&mut self.other, &mut self.socket], timeout_ns)
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// An error, when one of them cannot sleep, ends the server.
    fn rest(&mut self, rpc: &mut Rpc, busy: bool, timeout_ns: Option<u64>) -> Result<()> {
        rpc.rest(busy, timeout_ns)
    }
}

impl<F, E> Program for F
where
    F: FnMut(&mut Rpc) -> Result<Flow, E>,
    E: Into<AnyError>,
{
    type Error = E;

    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, E> {
        self(rpc)
    }
}

/// A program, with any type of errors.
trait AnyProgram {
    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, AnyError>;
    fn rest(&mut self, rpc: &mut Rpc, busy: bool, timeout_ns: Option<u64>) -> Result<()>;
}

impl<P: Program> AnyProgram for P {
    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, AnyError> {
        Program::turn(self, rpc).map_err(Into::into)
    }

    fn rest(&mut self, rpc: &mut Rpc, busy: bool, timeout_ns: Option<u64>) -> Result<()> {
        Program::rest(self, rpc, busy, timeout_ns)
    }
}

/// Next step of a server after a turn of its [program](Server::program).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Something happened: turn again at once.
    Busy,
    /// Nothing happened: sleep, as [`Config::poller`](sinew_rpc::Config::poller) allows, until something does.
    Idle,
    /// As `Idle`, but for at most this many nanoseconds: a timer of the program is due then.
    IdleFor(u64),
    /// The program is over, and the server ends with all of its endpoints.
    End,
}

impl From<bool> for Flow {
    /// Converts the result of [`Rpc::turn`].
    fn from(busy: bool) -> Self {
        if busy { Self::Busy } else { Self::Idle }
    }
}

struct EndpointSpec {
    /// Name until the address is known.
    name: String,
    cpu: Option<usize>,
    /// Called on the place's own thread.
    open: Open,
}

/// A server to configure, and then to [`run`](Self::run) or [`start`](Self::start): one thread and one endpoint for
/// each address.
///
/// ```
/// use sinew::prelude::*;
///
/// const PING: RequestType = RequestType::new(1);
/// let nexus = Nexus::builder().handle(PING, |call: Call| call.reply(b"pong")).build()?;
/// let server = nexus.server().at("udp://127.0.0.1:0").start()?;
///
/// let mut rpc = Rpc::open("udp://")?;
/// let session = rpc.connect(&server.addresses()[0].to_string())?;
/// assert_eq!(rpc.call(session, PING, b"")?.to_string(), "pong");
///
/// let reports = server.stop()?;
/// assert_eq!(reports[0].stats.requests_handled, 1);
/// # Ok::<(), sinew::Error>(())
/// ```
pub struct Server {
    nexus: Nexus,
    endpoint_specs: Vec<EndpointSpec>,
    program: MakeProgram,
}

impl Nexus {
    /// Serves at one address, on a thread of its own, until Ctrl-C or SIGTERM.
    ///
    /// # Errors
    ///
    /// As [`Server::run`].
    pub fn serve(&self, address: &str) -> Result<()> {
        self.server().at(address).run()
    }

    /// Serves at several addresses, each on a thread of its own, until Ctrl-C or SIGTERM.
    ///
    /// # Errors
    ///
    /// As [`Server::run`].
    pub fn serve_on<A: AsRef<str>>(&self, addresses: impl IntoIterator<Item = A>) -> Result<()> {
        addresses.into_iter().fold(self.server(), |server, address| server.at(address.as_ref())).run()
    }

    /// A server to configure, with several addresses, pinned threads, and a handle that stops it.
    pub fn server(&self) -> Server {
        Server::new(self.clone())
    }
}

impl Server {
    pub(crate) fn new(nexus: Nexus) -> Self {
        Self { nexus, endpoint_specs: Vec::new(), program: Arc::new(|_endpoint, _rpc| Ok(Box::new(turn))) }
    }

    /// Adds an address to serve at.
    #[must_use]
    pub fn at(self, address: impl Into<String>) -> Self {
        self.at_address(address.into(), None)
    }

    /// Adds an address to serve at, on a thread that is pinned to a processor.
    #[must_use]
    pub fn at_on_cpu(self, address: impl Into<String>, cpu: usize) -> Self {
        self.at_address(address.into(), Some(cpu))
    }

    fn at_address(mut self, address: String, cpu: Option<usize>) -> Self {
        let (index, name) = (self.endpoint_specs.len(), shown(&address).to_string());
        let open: Open = Box::new(move |nexus| Rpc::open_numbered(nexus, index, &address));
        self.endpoint_specs.push(EndpointSpec { name, cpu, open });
        self
    }

    /// Adds a port of any kind to serve over, as [`Rpc::over`] does. `make` is called on the thread that serves, since
    /// a port never leaves its thread.
    ///
    /// ```
    /// use sinew::fabric::trace::{TextSink, Traced};
    /// use sinew::prelude::*;
    ///
    /// const PING: RequestType = RequestType::new(1);
    /// let nexus = Nexus::builder().handle(PING, |call: Call| call.reply(b"pong")).build()?;
    /// let traced = || {
    ///     let port = sinew::udp::UdpPort::open(&"udp://127.0.0.1:0".parse()?)?;
    ///     Ok(Traced::new(port, TextSink::new(std::io::stderr())))
    /// };
    /// let server = nexus.server().over(traced).start()?;
    ///
    /// let mut rpc = Rpc::open("udp://")?;
    /// let session = rpc.connect(&server.addresses()[0].to_string())?;
    /// assert_eq!(rpc.call(session, PING, b"")?.to_string(), "pong");
    /// # Ok::<(), sinew::Error>(())
    /// ```
    #[must_use]
    pub fn over<P: PacketPort + 'static>(self, make: impl FnOnce() -> Result<P> + Send + 'static) -> Self {
        self.over_port(make, None)
    }

    /// Adds a port of any kind to serve over, on a thread that is pinned to a processor.
    #[must_use]
    pub fn over_on_cpu<P: PacketPort + 'static>(
        self,
        make: impl FnOnce() -> Result<P> + Send + 'static,
        cpu: usize,
    ) -> Self {
        self.over_port(make, Some(cpu))
    }

    fn over_port<P: PacketPort + 'static>(
        mut self,
        make: impl FnOnce() -> Result<P> + Send + 'static,
        cpu: Option<usize>,
    ) -> Self {
        let (index, name) = (self.endpoint_specs.len(), "a port of the program's own".to_owned());
        let open: Open = Box::new(move |nexus| Rpc::over_numbered(nexus, index, make()?));
        self.endpoint_specs.push(EndpointSpec { name, cpu, open });
        self
    }

    /// Serves with a program. `make` makes it for each endpoint, on its thread, before anybody can call; it is given
    /// the endpoint, and information about it. The program is called for each turn of the endpoint's loop, and has to
    /// turn the endpoint ([`Rpc::turn`] or [`Rpc::turn_with`]) and return the next step. A server without a program
    /// turns its endpoints, and drops their completions and events.
    ///
    /// Here handlers and loop share the endpoint's state, and the loop opens sessions and makes calls of its own:
    ///
    /// ```
    /// use std::{cell::Cell, rc::Rc};
    /// use sinew::prelude::*;
    ///
    /// const HIT: RequestType = RequestType::new(1);
    /// let server = Nexus::builder().build()?.server().at("udp://127.0.0.1:0").program(|endpoint, rpc| {
    ///     let hits = Rc::new(Cell::new(0u64));
    ///     let (in_handler, index) = (Rc::clone(&hits), endpoint.index);
    ///     rpc.handle(HIT, move |call: Call| {
    ///         in_handler.set(in_handler.get() + 1);
    ///         call.reply(&in_handler.get().to_le_bytes());
    ///     })?;
    ///     Ok(move |rpc: &mut Rpc| -> sinew::Result<Flow> {
    ///         let busy = rpc.turn();
    ///         if hits.get() == 1_000_000 {
    ///             println!("endpoint {index} was hit a million times");
    ///             return Ok(Flow::End);
    ///         }
    ///         Ok(busy.into())
    ///     })
    /// }).start()?;
    /// # server.stop()?;
    /// # Ok::<(), sinew::Error>(())
    /// ```
    ///
    /// Other threads reach the endpoint by a handle that `make` creates ([`Rpc::remote_handle`]) and leaves where they
    /// find it.
    ///
    /// A program that also serves other things sleeps on all of them: see [`Program::rest`].
    ///
    /// A program or a `make` that fails ends the server with [`Error::Program`]: its endpoint closes its sessions, of
    /// which the clients are told, and so do the others. A server that is stopped ends between two turns, so a program
    /// must not wait for long inside one.
    #[must_use]
    pub fn program<P: Program + 'static>(
        mut self,
        make: impl Fn(&EndpointInfo, &mut Rpc) -> Result<P, P::Error> + Send + Sync + 'static,
    ) -> Self {
        self.program = Arc::new(move |endpoint, rpc| Ok(Box::new(make(endpoint, rpc).map_err(Into::into)?)));
        self
    }

    /// Opens the endpoints and serves, on threads of its own. Returns once all of them are reachable.
    ///
    /// # Errors
    ///
    /// [`Error::Nowhere`]; the errors of [`Rpc::open_with`] for an address, or of the maker of a port, and
    /// [`Error::Program`] if no program could be made, after which nothing runs; [`Error::System`] when there is no
    /// thread, or no such processor.
    pub fn start(self) -> Result<ServerHandle> {
        self.start_with(true)
    }

    /// Starts, with or without counters that can be read meanwhile.
    fn start_with(self, has_readers: bool) -> Result<ServerHandle> {
        if self.endpoint_specs.is_empty() {
            return Err(Error::Nowhere);
        }
        let shared = Arc::new(Shared::default());
        let mut handle = ServerHandle {
            addresses: Vec::new(),
            readers: Vec::new(),
            threads: Vec::new(),
            shared: Arc::clone(&shared),
        };
        for place in self.endpoint_specs {
            let (ready, opened) = mpsc::channel();
            let (nexus, program, shared) = (self.nexus.clone(), Arc::clone(&self.program), Arc::clone(&shared));
            let name = place.name.clone();
            let thread = std::thread::Builder::new()
                .name("sinew-server".to_owned())
                .spawn(move || {
                    let _others = StopOthers(&shared);
                    serve(&nexus, place, &program, &shared, has_readers, &ready)
                })
                .map_err(|source| Error::System { doing: format!("starting a thread to serve {name}"), source })?;
            let reached_at = opened.recv();
            let name = reached_at.as_ref().map_or(name, |(address, _)| address.to_string());
            handle.threads.push((name, thread));
            match reached_at {
                Ok((reached_at, reader)) => {
                    handle.addresses.push(reached_at);
                    handle.readers.extend(reader);
                }
                // The thread ended before it was ready; joining it returns the reason.
                Err(mpsc::RecvError) => {
                    handle.shared.stop();
                    return Err(handle.join_all().err().unwrap_or(Error::Nowhere));
                }
            }
        }
        Ok(handle)
    }

    /// Serves until Ctrl-C or SIGTERM, then closes its sessions and returns. A second signal ends the process at once.
    ///
    /// # Errors
    ///
    /// As [`Self::start`], and the error that ended a thread early.
    pub fn run(self) -> Result<()> {
        let interrupt = Interrupt::install()
            .map_err(|source| Error::System { doing: "catching Ctrl-C and SIGTERM".to_owned(), source })?;
        // Nobody has the handle, so nobody asks for counters.
        let handle = self.start_with(false)?;
        handle.run_until_interrupted(interrupt)?;
        Ok(())
    }
}

/// State that the threads of a server share.
#[derive(Default)]
struct Shared {
    /// The store in `stop` is the partner of the loads in `serve`; nothing else is published with it.
    stopping: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Shared {
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake);
    }
}

/// Stops a server once an interrupt has come. Wakers are also called for signals to which programs give other meanings.
struct StopOnInterrupt {
    shared: Arc<Shared>,
    interrupt: Interrupt,
}

impl WakeTarget for StopOnInterrupt {
    fn wake(&self) {
        if self.interrupt.is_set() {
            self.shared.stop();
        }
    }
}

/// Stops the other threads when dropped: a server that has lost an endpoint is not the one asked for, so however a
/// thread ends, the others end too.
struct StopOthers<'a>(&'a Shared);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Counters of a server's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointReport {
    /// Address at which it was reached.
    pub address: Address,
    /// Its counters.
    pub stats: Stats,
    /// Its port's counters.
    pub port_stats: PortStats,
    /// Sessions that were open.
    pub sessions: usize,
}

/// A running server. Dropping it stops it.
pub struct ServerHandle {
    addresses: Vec<Address>,
    /// Readers of the endpoints' counters, in the order of the addresses.
    readers: Vec<StatsReader>,
    threads: Vec<(String, JoinHandle<Result<EndpointReport>>)>,
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// Addresses of its endpoints, in the order in which they were added; ports chosen by the system are filled in.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Counters of each endpoint so far, in the order of [`Self::addresses`], while it serves. Nobody waits for this:
    /// each endpoint publishes its counters by plain stores, once in a turn that found work, before its answers leave,
    /// and before it sleeps. So a client that has an answer finds its request counted, and the counters of one endpoint
    /// are all of one moment.
    pub fn stats(&self) -> Vec<EndpointReport> {
        let endpoints = self.addresses.iter().zip(&self.readers);
        endpoints.map(|(address, reader)| EndpointReport::of(address.clone(), reader.read())).collect()
    }

    /// Closes its sessions, ends its threads, and returns the counters of each endpoint.
    ///
    /// # Errors
    ///
    /// The error that ended a thread early.
    pub fn stop(mut self) -> Result<Vec<EndpointReport>> {
        self.shared.stop();
        self.join_all()
    }

    /// Serves until Ctrl-C or SIGTERM, or until a thread ends with an error.
    ///
    /// # Errors
    ///
    /// The error that ended a thread early.
    pub fn run_until_interrupted(mut self, interrupt: Interrupt) -> Result<Vec<EndpointReport>> {
        let stop = StopOnInterrupt { shared: Arc::clone(&self.shared), interrupt };
        let _guard = interrupt.wake_on_interrupt(Waker::new(Arc::new(stop)));
        self.join_all()
    }

    fn join_all(&mut self) -> Result<Vec<EndpointReport>> {
        let threads = std::mem::take(&mut self.threads);
        let results: Vec<_> = threads.into_iter().map(|(address, thread)| join(thread, &address)).collect();
        results.into_iter().collect()
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.shared.stop();
        let _ = self.join_all();
    }
}

fn join(thread: JoinHandle<Result<EndpointReport>>, address: &str) -> Result<EndpointReport> {
    thread.join().unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let message = message.unwrap_or_else(|| "no message".to_owned());
        Err(Error::Panicked { address: address.to_owned(), message })
    })
}

impl EndpointReport {
    fn of(address: Address, counted: EndpointStats) -> Self {
        let EndpointStats { stats, port_stats, sessions, .. } = counted;
        Self { address, stats, port_stats, sessions }
    }
}

fn serve(
    nexus: &Nexus,
    place: EndpointSpec,
    make: &MakeProgram,
    shared: &Shared,
    has_readers: bool,
    ready: &mpsc::Sender<(Address, Option<StatsReader>)>,
) -> Result<EndpointReport> {
    if let Some(cpu) = place.cpu {
        pin_current_thread(cpu)
            .map_err(|source| Error::System { doing: format!("pinning the thread of {}", place.name), source })?;
    }
    let mut rpc = (place.open)(nexus)?;
    let address = rpc.address();
    let failed = |source| Error::Program { address: address.to_string(), source };
    shared.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(rpc.waker());
    let info = rpc.info().clone();
    let mut program = make(&info, &mut rpc).map_err(failed)?;
    // The starter may have given up already; the stop flag tells.
    let _ = ready.send((address.clone(), has_readers.then(|| rpc.stats_reader())));
    while !shared.stopping.load(Ordering::Acquire) {
        let (busy, timeout_ns) = match program.turn(&mut rpc).map_err(failed)? {
            Flow::Busy => (true, None),
            Flow::Idle => (false, None),
            Flow::IdleFor(timeout_ns) => (false, Some(timeout_ns)),
            Flow::End => break,
        };
        // The stop may have ended a sleep within the program's turn; the next sleep would not end.
        if shared.stopping.load(Ordering::Acquire) {
            break;
        }
        program.rest(&mut rpc, busy, timeout_ns)?;
    }
    let (stats, port_stats, sessions) = (rpc.stats(), rpc.port_stats(), rpc.sessions());
    Ok(EndpointReport { address, stats, port_stats, sessions })
}

/// Turn of a server without a program.
fn turn(rpc: &mut Rpc) -> Result<Flow> {
    let busy = rpc.turn();
    while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {}
    Ok(busy.into())
}
