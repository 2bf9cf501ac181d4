//! Sequencers on verbs: their servers, and how clients connect to them.
//!
//! A client connects to `HOST:PORT` and sends its design, its fabric and its addresses. The server answers with its
//! epoch, the next number and what the client needs to reach it. A client of a connected design is admitted until this
//! connection closes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::{Value, json};
use sinew::fabric::verbs::{
    CompletionQueue, Device, ProtectionDomain, QpAddress, QueuePair, RemoteMemory, ThreadDomain,
};
use sinew::fabric::{Clock, Poller, Step, Waker};
use sinew::herd::{
    Client as Herd, ClientConfig, ClientId, Hello, ServerConfig, Welcome, Worker, WorkerConfig, WorkerSeed,
};
use sinew::host::{HostClock, Interrupt, Lobby, LobbyLimits, Rendezvous, RendezvousLimits, RendezvousListener};
use sinew::sequencer::atomics::{AtomicsClient, SequencerWord, server_queue_pair};
use sinew::sequencer::herd::{HerdClient, NumberService, layout};
use sinew::sequencer::spec::{SpecClient, SpecConfig, SpecServer};
use sinew::sequencer::{Client, Sequence};

use sinew_harness::load::sequencer::{Sequencer, SequencerLoad};
use sinew_harness::load::verbs::{Cq, Qp, Thread, bytes_of, digits};
use sinew_harness::machine::{self, Idle};

use super::Design;
use crate::output;
use crate::serve::{ThreadArgs, begin};
use crate::verbs::{Job, VerbsFabric};

/// Most clients of a server at a time, for designs that connect.
const CLIENTS_MAX: usize = 256;
/// Receives posted by a thread of a Spec-S0 server, for all clients.
const RECEIVES: usize = 8192;
/// Calls in flight of a HERD client.
pub const HERD_WINDOW: usize = 64;
/// Longest time until an interrupt, or a client's leaving, is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a server has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a client spends to reach its server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Sleep of an idle worker between polls of its memory.
const IDLE_SLEEP: Duration = Duration::from_micros(50);
/// Limits of the frames that client and server exchange.
const LIMITS: RendezvousLimits = RendezvousLimits { frame_len_max: 4096, frame_timeout: ANSWER_TIMEOUT };
/// Limits of a server's answers, which it sends one at a time: a client that does not take its answer delays new
/// clients, and nobody else, for at most this long.
const ANSWER_LIMITS: RendezvousLimits = RendezvousLimits { frame_timeout: Duration::from_millis(500), ..LIMITS };
/// Most threads of a HERD server that a client makes room for.
const HERD_THREADS_MAX: usize = 64;

/// A server of a design on verbs. The job serves until a signal; it returns false if a child failed, which it has
/// reported.
pub struct Serving<'a> {
    pub design: Design,
    pub address: &'a str,
    pub threads: &'a ThreadArgs,
    pub sequence: &'a Arc<Sequence>,
}

/// Ends the workers, by [`StopWhenDropped`].
#[derive(Default)]
struct Stop {
    is_set: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

struct StopWhenDropped<'a>(&'a Stop);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.is_set.store(true, Ordering::Relaxed);
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake);
    }
}

impl Job for Serving<'_> {
    type Result = bool;

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<bool> {
        let serve = |interrupt| self.serve(&device, fabric, interrupt);
        Ok(begin(self.threads.is_child(), serve)?.is_some())
    }
}

impl Serving<'_> {
    fn serve<D: Device>(&self, device: &D, fabric: VerbsFabric, interrupt: Interrupt) -> anyhow::Result<()> {
        let limits = LobbyLimits { hello_len_max: LIMITS.frame_len_max, ..LobbyLimits::default() };
        let mut lobby = Lobby::new(RendezvousListener::bind(self.address, ANSWER_LIMITS)?, limits);
        let (stop, address) = (Stop::default(), lobby.address());
        std::thread::scope(|threads| {
            let _stop = StopWhenDropped(&stop);
            let (result_sender, results) = mpsc::channel();
            let design = self.start(device, &stop, &result_sender, threads)?;
            drop(result_sender);
            let mut acceptor = Acceptor { design, fabric, serving: self, clients: Vec::new() };
            let (first, epoch) = (self.sequence.next(), self.sequence.epoch());
            let (design, fabric) = (self.design.name(), fabric.name());
            self.threads.tell_ready(
                &[address.to_string()],
                format_args!(
                    "From {first} on, epoch {epoch}. Stop with Ctrl-C. Measure with: sinew seq bench --design {design} --fabric {fabric} --address {address}"
                ),
            )?;
            while !interrupt.is_set() {
                acceptor.dismiss_departed();
                if let Ok(result) = results.try_recv() {
                    return result;
                }
                let accepted = lobby.next(POLL_INTERVAL);
                lobby.turned_away().for_each(output::complain);
                match accepted {
                    Ok(None) => {}
                    Ok(Some((rendezvous, request))) => acceptor.accept(rendezvous, &request),
                    Err(error) => {
                        output::complain(error);
                        std::thread::sleep(POLL_INTERVAL);
                    }
                }
            }
            Ok(())
        })
    }

    /// Makes the server's part of the design, and starts its workers.
    fn start<'scope, D: Device>(
        &'scope self,
        device: &'scope D,
        stop: &'scope Stop,
        result_sender: &mpsc::Sender<anyhow::Result<()>>,
        threads: &'scope std::thread::Scope<'scope, '_>,
    ) -> anyhow::Result<ServerSide<D>> {
        let count = self.threads.threads();
        match self.design {
            Design::Rpc => bail!("the sequencer over RPC is not on verbs"),
            Design::Atomics => {
                let domain = device.protection_domain()?;
                let thread = domain.thread()?;
                let cq = thread.completion_queue(2 * CLIENTS_MAX)?;
                let word = SequencerWord::expose(&domain, self.sequence.next())?;
                Ok(ServerSide::Atomics { word, cq, thread })
            }
            Design::SpecS0 => {
                let domain = device.protection_domain()?;
                let mut workers = Vec::new();
                for index in 0..count {
                    let (sender, receiver) = mpsc::channel();
                    let (domain, result_sender) = (domain.clone(), result_sender.clone());
                    threads.spawn(move || {
                        drop(result_sender.send(self.run_spec_worker(device, &domain, index, stop, &sender)))
                    });
                    workers.push(receiver.recv().ok().context("a server thread did not start")?);
                }
                Ok(ServerSide::Spec { workers, next: 0 })
            }
            Design::Herd | Design::HerdOpt => {
                let layout = layout(count, CLIENTS_MAX, HERD_WINDOW);
                let config = ServerConfig { layout, seed: self.sequence.epoch().0 };
                let (server, seeds) = sinew::herd::Server::new(device, &config)?;
                let config = if self.design == Design::Herd { WorkerConfig::herd() } else { WorkerConfig::herd_opt() };
                for seed in seeds {
                    // The worker itself is made on its thread, from this seed.
                    let result_sender = result_sender.clone();
                    threads.spawn(move || drop(result_sender.send(self.run_herd_worker(seed, &config, stop))));
                }
                Ok(ServerSide::Herd(server))
            }
        }
    }

    fn pin(&self, index: usize) -> anyhow::Result<()> {
        machine::pin(self.threads.pins().get(index).copied())
    }

    /// Body of a thread of a Spec-S0 server.
    fn run_spec_worker<D: Device>(
        &self,
        device: &D,
        domain: &D::Domain,
        index: usize,
        stop: &Stop,
        address_sender: &mpsc::Sender<QpAddress>,
    ) -> anyhow::Result<()> {
        self.pin(index)?;
        let mut server = SpecServer::new(domain.thread()?, device.attributes(), Arc::clone(self.sequence), RECEIVES)?;
        stop.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(server.waker());
        let _ = address_sender.send(server.address());
        let (clock, mut poller) = (HostClock::new(), Poller::new(self.threads.config().poller));
        let mut was_busy = false;
        while !stop.is_set.load(Ordering::Relaxed) {
            if server.turn()? > 0 {
                was_busy = true;
            } else if poller.step(clock.now_ns(), std::mem::take(&mut was_busy)) == Step::Block {
                server.wait(None).context("waiting for requests")?;
            }
        }
        Ok(())
    }

    /// Body of a HERD worker. A WRITE wakes nobody, so an idle worker polls now and then.
    fn run_herd_worker<D: Device>(
        &self,
        seed: WorkerSeed<D>,
        config: &WorkerConfig,
        stop: &Stop,
    ) -> anyhow::Result<()> {
        self.pin(seed.index())?;
        let mut worker = Worker::new(seed, config, NumberService::new(Arc::clone(self.sequence)))?;
        let (clock, idle, mut poller) = (HostClock::new(), Idle::new(), Poller::new(self.threads.config().poller));
        let mut was_busy = false;
        while !stop.is_set.load(Ordering::Relaxed) {
            if worker.turn(0) > 0 {
                was_busy = true;
            } else {
                match poller.step(clock.now_ns(), std::mem::take(&mut was_busy)) {
                    Step::Spin => idle.pass(),
                    Step::Block => std::thread::sleep(IDLE_SLEEP),
                }
            }
        }
        Ok(())
    }
}

/// The server's part of a design.
enum ServerSide<D: Device> {
    Spec { workers: Vec<QpAddress>, next: usize },
    Atomics { word: SequencerWord<<D::Domain as ProtectionDomain>::Exposed>, cq: Cq<D>, thread: Thread<D> },
    Herd(sinew::herd::Server<D>),
}

/// A client that is connected.
enum ConnectedClient<D: Device> {
    Atomics { _qp: Qp<D> },
    Herd(ClientId),
}

/// Admits clients.
struct Acceptor<'a, D: Device> {
    design: ServerSide<D>,
    fabric: VerbsFabric,
    serving: &'a Serving<'a>,
    /// Connected clients, until their end of the rendezvous closes.
    clients: Vec<(Rendezvous, ConnectedClient<D>)>,
}

impl<D: Device> Acceptor<'_, D> {
    /// Answers a client that has connected and sent what it wants.
    fn accept(&mut self, rendezvous: Rendezvous, request: &[u8]) {
        let peer = rendezvous.peer();
        if let Err(error) = self.connect(rendezvous, request) {
            output::complain(format_args!("a client at {peer}: {}", output::describe(&error)));
        }
    }

    /// Dismisses clients that have left, and handles the device's events for the others.
    fn dismiss_departed(&mut self) {
        let design = &mut self.design;
        self.clients.retain(|(rendezvous, client)| {
            // A client sends nothing more, so anything to read is the end of the connection.
            let stays = matches!(rendezvous.wait(Duration::ZERO), Ok(false));
            if let (false, ServerSide::Herd(server), ConnectedClient::Herd(id)) = (stays, &mut *design, client) {
                server.dismiss(*id);
            }
            stays
        });
        match design {
            ServerSide::Spec { .. } => {}
            ServerSide::Atomics { cq, .. } => {
                cq.poll(&mut Vec::new(), 16);
            }
            ServerSide::Herd(server) => server.tend(),
        }
    }

    /// Sends a client what it needs, or an error.
    fn connect(&mut self, mut rendezvous: Rendezvous, bytes: &[u8]) -> anyhow::Result<()> {
        let request = serde_json::from_slice(bytes).context("this is not the JSON of a sequencer's client");
        match request.and_then(|request| self.admit(&request)) {
            Ok((answer, guest)) => {
                rendezvous.send(answer.to_string().as_bytes())?;
                self.clients.extend(guest.map(|guest| (rendezvous, guest)));
                Ok(())
            }
            Err(error) => {
                rendezvous.send(json!({ "error": output::describe(&error) }).to_string().as_bytes())?;
                Err(error)
            }
        }
    }

    fn admit(&mut self, request: &Value) -> anyhow::Result<(Value, Option<ConnectedClient<D>>)> {
        let Serving { design, sequence, .. } = self.serving;
        for (key, own) in [("design", &*design.name()), ("fabric", self.fabric.name())] {
            ensure!(
                request[key].as_str() == Some(own),
                "this sequencer's {key} is {own}, and {} was asked for",
                request[key]
            );
        }
        let mut answer = json!({ "epoch": sequence.epoch().to_string(), "next": sequence.next() });
        let guest = match &mut self.design {
            ServerSide::Spec { workers, next } => {
                let address = workers.get(*next % workers.len()).context("there is no server thread")?;
                *next = next.wrapping_add(1);
                answer["qp"] = digits(&address.to_bytes()).into();
                None
            }
            ServerSide::Atomics { word, cq, thread } => {
                ensure!(!word.is_exhausted(), "no numbers are left: the word has gone past the last one");
                let theirs = address_of(&request["qp"])?;
                let mut qp = server_queue_pair(thread, cq)?;
                qp.connect(Some(&theirs)).context("connecting to the client")?;
                answer["next"] = word.next().into();
                answer["qp"] = digits(&qp.address().to_bytes()).into();
                answer["word"] = digits(&word.remote().to_bytes()).into();
                Some(ConnectedClient::Atomics { _qp: qp })
            }
            ServerSide::Herd(server) => {
                let hello = Hello::from_bytes(&bytes_of(&request["hello"]).context("the client sent no greeting")?)?;
                let (id, welcome) = server.admit(&hello)?;
                answer["welcome"] = digits(&welcome.to_bytes()).into();
                Some(ConnectedClient::Herd(id))
            }
        };
        Ok((answer, guest))
    }
}

fn address_of(value: &Value) -> anyhow::Result<QpAddress> {
    let address = bytes_of(value).and_then(|bytes| QpAddress::from_bytes(&bytes));
    address.with_context(|| format!("{value} is not the address of a queue pair"))
}

/// Sends a client's request over the rendezvous, and returns the answer.
fn ask(rendezvous: &mut Rendezvous, value: &Value) -> anyhow::Result<Value> {
    let peer = rendezvous.peer();
    rendezvous.send(value.to_string().as_bytes())?;
    ensure!(
        rendezvous.wait(ANSWER_TIMEOUT)?,
        "the sequencer at {peer} does not answer; check that it is not suspended"
    );
    let answer: Value = serde_json::from_slice(&rendezvous.receive()?)
        .with_context(|| format!("{peer} is not a sequencer on verbs"))?;
    if let Some(error) = answer["error"].as_str() {
        // The text is foreign, so drop control characters, which could move the terminal's cursor.
        let error: String = error.chars().filter(|char| !char.is_control()).take(1000).collect();
        bail!("the sequencer at {peer}: {error}");
    }
    Ok(answer)
}

/// Connects to a server of this design over this fabric. Returns a driver of its client, and the rendezvous, which has
/// to live as long.
pub fn connect<D: Device + 'static>(
    device: &D,
    (design, fabric): (Design, VerbsFabric),
    address: &str,
    window: usize,
    batch: usize,
) -> anyhow::Result<(Box<dyn SequencerLoad>, Rendezvous)> {
    let dial = || Rendezvous::connect(address, CONNECT_TIMEOUT, LIMITS);
    let mut request = json!({ "design": design.name(), "fabric": fabric.name() });
    let domain = device.protection_domain()?;
    match design {
        Design::Rpc => bail!("the sequencer over RPC is not on verbs"),
        Design::SpecS0 => {
            let mut rendezvous = dial()?;
            let answer = ask(&mut rendezvous, &request)?;
            let next = answer["next"].as_u64().context("the server did not say which number is next")?;
            let config = SpecConfig { window, ..SpecConfig::default() };
            let arena = domain.arena(4 << 20)?;
            let client = SpecClient::new(domain.thread()?, arena, &address_of(&answer["qp"])?, next, config)?;
            Ok((boxed(client, window, batch), rendezvous))
        }
        Design::Atomics => {
            let mut client = AtomicsClient::new(domain.thread()?, &domain.arena(4 << 20)?, window)?;
            request["qp"] = digits(&client.address().to_bytes()).into();
            let mut rendezvous = dial()?;
            let answer = ask(&mut rendezvous, &request)?;
            let word = bytes_of(&answer["word"]).and_then(|bytes| bytes.try_into().ok());
            let word = RemoteMemory::from_bytes(&word.context("the server did not say where its word is")?);
            let next = answer["next"].as_u64().context("the server did not say which number is next")?;
            client.connect(&address_of(&answer["qp"])?, word, next)?;
            Ok((boxed(client, window, batch), rendezvous))
        }
        Design::Herd | Design::HerdOpt => {
            let mut threads = 1;
            let (client, rendezvous) = loop {
                let config = ClientConfig::new(layout(threads, CLIENTS_MAX, HERD_WINDOW));
                let (joining, hello) = Herd::prepare(device, &domain, &config)?;
                request["hello"] = digits(&hello.to_bytes()).into();
                let mut rendezvous = dial()?;
                let answer = ask(&mut rendezvous, &request)?;
                let welcome = bytes_of(&answer["welcome"]).ok_or_else(|| anyhow!("the server sent no welcome"))?;
                match joining.join(&Welcome::from_bytes(&welcome)?) {
                    // The server has more threads: try again with room for their answers.
                    Err(sinew::herd::ClientError::Layout { theirs, .. })
                        if (threads + 1..=HERD_THREADS_MAX).contains(&theirs.workers) =>
                    {
                        threads = theirs.workers;
                    }
                    joined => break (joined?, rendezvous),
                }
            };
            Ok((boxed(HerdClient::new(client), window, batch), rendezvous))
        }
    }
}

fn boxed(client: impl Client + 'static, window: usize, batch: usize) -> Box<dyn SequencerLoad> {
    Box::new(Sequencer::new(client, HostClock::new(), window, batch))
}
