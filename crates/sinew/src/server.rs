use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use sinew_fabric::{Address, PortStats, WakeTarget, Waker};
use sinew_host::{Interrupt, pin_current_thread};
use sinew_mem::atomic::{AtomicBool, Ordering};
use sinew_rpc::Stats;

use crate::endpoint::Rpc;
use crate::error::{Error, Result};
use crate::nexus::Nexus;

type OnTurn = Arc<dyn Fn(&mut Rpc) + Send + Sync>;

struct Place {
    address: String,
    cpu: Option<usize>,
}

/// A server to configure, then to [`run`](Self::run) or [`start`](Self::start): one thread and one endpoint for each address.
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
    places: Vec<Place>,
    on_turn: Option<OnTurn>,
}

impl Server {
    pub(crate) fn new(nexus: Nexus) -> Self {
        Self { nexus, places: Vec::new(), on_turn: None }
    }

    /// Serves at this address too.
    #[must_use]
    pub fn at(mut self, address: impl Into<String>) -> Self {
        self.places.push(Place { address: address.into(), cpu: None });
        self
    }

    /// Serves at this address too, on a thread that stays on one processor.
    #[must_use]
    pub fn at_on_cpu(mut self, address: impl Into<String>, cpu: usize) -> Self {
        self.places.push(Place { address: address.into(), cpu: Some(cpu) });
        self
    }

    /// Runs `on_turn` between the turns of each endpoint's loop, on its thread: the place to take the completions of nested
    /// calls and to open sessions of the server's own. Without it, completions and events are dropped.
    #[must_use]
    pub fn on_turn(mut self, on_turn: impl Fn(&mut Rpc) + Send + Sync + 'static) -> Self {
        self.on_turn = Some(Arc::new(on_turn));
        self
    }

    /// Opens the endpoints and serves, on threads of its own. Returns once all of them are reachable.
    ///
    /// # Errors
    ///
    /// [`Error::Nowhere`]; what [`Rpc::open_with`] says for an address, after which nothing runs; [`Error::System`]: no
    /// thread, or no such processor.
    pub fn start(self) -> Result<ServerHandle> {
        if self.places.is_empty() {
            return Err(Error::Nowhere);
        }
        let shared = Arc::new(Shared::default());
        let mut handle = ServerHandle { addresses: Vec::new(), threads: Vec::new(), shared: Arc::clone(&shared) };
        for place in self.places {
            let (ready, opened) = mpsc::channel();
            let (nexus, on_turn, shared) = (self.nexus.clone(), self.on_turn.clone(), Arc::clone(&shared));
            let address = place.address.clone();
            let thread = std::thread::Builder::new()
                .name("sinew-server".to_owned())
                .spawn(move || {
                    let _others = StopOthers(&shared);
                    serve(&nexus, &place, on_turn.as_ref(), &shared, &ready)
                })
                .map_err(|source| Error::System { doing: format!("starting a thread to serve {address}"), source })?;
            handle.threads.push((address, thread));
            match opened.recv() {
                Ok(reached_at) => handle.addresses.push(reached_at),
                // The thread ended before it was ready, and says why.
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
    /// As [`Self::start`], and what ended a thread before its time.
    pub fn run(self) -> Result<()> {
        let interrupt = Interrupt::install()
            .map_err(|source| Error::System { doing: "catching Ctrl-C and SIGTERM".to_owned(), source })?;
        let handle = self.start()?;
        handle.run_until_interrupted(interrupt)?;
        Ok(())
    }
}

/// What the threads of a server share.
#[derive(Default)]
struct Shared {
    /// Partner of the store in `stop` is the load in `serve`; nothing else is published with it.
    stopping: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Shared {
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake);
    }
}

impl WakeTarget for Shared {
    fn wake(&self) {
        self.stop();
    }
}

/// A server of which one endpoint is gone is not what was asked for: however a thread ends, the others end too.
struct StopOthers<'a>(&'a Shared);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What an endpoint of a server had counted when it closed.
#[derive(Clone, Debug)]
pub struct EndpointReport {
    /// Where it was reached.
    pub address: Address,
    /// Its counters.
    pub stats: Stats,
    /// Its port's counters.
    pub port_stats: PortStats,
    /// Sessions that were open.
    pub sessions: usize,
}

/// A server that runs. Dropping it stops it.
pub struct ServerHandle {
    addresses: Vec<Address>,
    threads: Vec<(String, JoinHandle<Result<EndpointReport>>)>,
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// Where its endpoints are reached, in the order in which they were asked for; ports chosen by the system are filled in.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Closes its sessions, ends its threads, and returns what each endpoint counted.
    ///
    /// # Errors
    ///
    /// What ended a thread before its time.
    pub fn stop(mut self) -> Result<Vec<EndpointReport>> {
        self.shared.stop();
        self.join_all()
    }

    /// Serves on until Ctrl-C or SIGTERM, or until a thread ends by an error.
    ///
    /// # Errors
    ///
    /// What ended a thread before its time.
    pub fn run_until_interrupted(mut self, interrupt: Interrupt) -> Result<Vec<EndpointReport>> {
        let _guard = interrupt.wake_on_interrupt(Waker::new(Arc::clone(&self.shared) as _));
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

fn serve(
    nexus: &Nexus,
    place: &Place,
    on_turn: Option<&OnTurn>,
    shared: &Shared,
    ready: &mpsc::Sender<Address>,
) -> Result<EndpointReport> {
    if let Some(cpu) = place.cpu {
        pin_current_thread(cpu)
            .map_err(|source| Error::System { doing: format!("pinning the thread of {}", place.address), source })?;
    }
    let mut rpc = Rpc::open_with(nexus, &place.address)?;
    shared.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(rpc.waker());
    // Whoever started us may have given up already; the stop flag tells.
    let _ = ready.send(rpc.address());
    rpc.run_until(|rpc| {
        match on_turn {
            Some(on_turn) => on_turn(rpc),
            None => while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {},
        }
        shared.stopping.load(Ordering::Acquire)
    })?;
    Ok(EndpointReport {
        address: rpc.address(),
        stats: rpc.stats(),
        port_stats: rpc.port_stats(),
        sessions: rpc.sessions(),
    })
}
