//! HERD servers and clients of the command: their threads, their processors, and how clients come and go.
//!
//! A client connects over TCP, sends its greeting as one frame and receives its welcome, or an error, as one frame. It
//! stays a client while the connection is open: one that is killed is dismissed as soon as the system closes it.
//! Meanwhile it may send an empty frame, which is answered with the workers' counters as JSON.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::herd::{
    Client, ClientConfig, ClientId, Hello, Layout, Server, ServerConfig, Service, SlotDrop, Welcome, Worker,
    WorkerConfig, WorkerSeed, WorkerStats,
};
use sinew::host::{HostClock, Interrupt, Lobby, LobbyLimits, Rendezvous, RendezvousLimits, RendezvousListener};

use sinew_harness::machine::{self, Idle};

use crate::output;

const LIMITS: RendezvousLimits = RendezvousLimits { frame_len_max: 64 << 10, frame_timeout: Duration::from_secs(10) };
/// Longest time until an interrupt, or the end of a connection, is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a client spends to reach its server, and then again to be admitted.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits of a server's answers, which it sends one at a time: a client that does not take its answer delays new
/// clients, but no admitted one, for at most this long.
const ANSWER_LIMITS: RendezvousLimits = RendezvousLimits { frame_timeout: Duration::from_millis(500), ..LIMITS };
/// Turns without work after which a worker naps between polls.
const IDLE_TURNS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(100);
/// Turns between checks for an interrupt, at which the counters are published, too.
const TURNS_PER_CHECK: u32 = 4096;
/// First byte of a frame that admits a client.
const WELCOME: u8 = 0;
const REFUSED: u8 = 1;

/// A server to host.
pub struct HostConfig<'a> {
    /// TCP address at which clients ask to be admitted.
    pub address: &'a str,
    pub layout: Layout,
    pub worker: WorkerConfig,
    /// Processors of the workers.
    pub cpus: &'a [Option<usize>],
    pub interrupt: Interrupt,
}

/// Serves until the interrupt. `make` makes the service of a worker, on its thread. Once all workers run, `ready` is
/// called with the address for clients.
pub fn host<D: Device, S: Service>(
    device: &D,
    config: &HostConfig<'_>,
    make: impl Fn(usize) -> anyhow::Result<S> + Sync,
    ready: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let HostConfig { address, layout, interrupt, .. } = *config;
    // A connection that sends no greeting keeps no place from others.
    let mut lobby = Lobby::new(RendezvousListener::bind(address, ANSWER_LIMITS)?, LobbyLimits::default());
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
    let (mut server, seeds) = Server::new(device, &ServerConfig { layout, seed })?;
    let counters: Vec<Mutex<WorkerStats>> = seeds.iter().map(|_| Mutex::default()).collect();
    let (ready_sender, ready_receiver) = mpsc::channel();
    std::thread::scope(|threads| {
        let (counters, make) = (&counters, &make);
        for seed in seeds {
            let is_ready = ready_sender.clone();
            threads.spawn(move || {
                let counters = &counters[seed.index()];
                if let Err(error) = work(seed, config, make, counters, &is_ready) {
                    let _ = is_ready.send(Err(error));
                    interrupt.set();
                }
            });
        }
        // However `run` ends, the threads end too.
        let run = || -> anyhow::Result<()> {
            for _ in counters {
                ready_receiver.recv().context("a worker ended at once")??;
            }
            ready(lobby.address())?;
            let mut clients = Vec::new();
            while !interrupt.is_set() {
                server.tend();
                clients.retain_mut(|(rendezvous, id)| {
                    let is_connected = answer(rendezvous, counters).is_ok();
                    if !is_connected {
                        server.dismiss(*id);
                    }
                    is_connected
                });
                match lobby.next(POLL_INTERVAL) {
                    Ok(Some((rendezvous, greeting))) => clients.extend(admit(&mut server, rendezvous, &greeting)),
                    Ok(None) => {}
                    Err(error) => {
                        output::complain(error);
                        std::thread::sleep(POLL_INTERVAL);
                    }
                }
                lobby.turned_away().for_each(drop);
            }
            // A worker that failed has sent its error.
            ready_receiver.try_recv().unwrap_or(Ok(()))
        };
        let result = run();
        interrupt.set();
        result
    })
}

/// Body of a worker's thread.
fn work<D: Device, S: Service>(
    seed: WorkerSeed<D>,
    config: &HostConfig<'_>,
    make: &(impl Fn(usize) -> anyhow::Result<S> + Sync),
    counters: &Mutex<WorkerStats>,
    ready_sender: &mpsc::Sender<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let index = seed.index();
    machine::pin(config.cpus.get(index).copied().flatten())?;
    let mut worker = Worker::new(seed, &config.worker, make(index)?)?;
    let _ = ready_sender.send(Ok(()));
    let (clock, idle) = (HostClock::new(), Idle::new());
    let (mut idle_turns, mut turns) = (0u32, 0u32);
    loop {
        if worker.turn(clock.now_ns()) > 0 {
            idle_turns = 0;
        } else {
            idle_turns = idle_turns.saturating_add(1);
            if idle_turns > IDLE_TURNS {
                std::thread::sleep(NAP);
            } else {
                idle.pass();
            }
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS_PER_CHECK) || idle_turns > IDLE_TURNS {
            *counters.lock().unwrap_or_else(PoisonError::into_inner) = *worker.stats();
            if config.interrupt.is_set() {
                return Ok(());
            }
        }
    }
}

/// Admits a client, or tells it why not.
fn admit<D: Device>(
    server: &mut Server<D>,
    mut rendezvous: Rendezvous,
    greeting: &[u8],
) -> Option<(Rendezvous, ClientId)> {
    let admitted = Hello::from_bytes(greeting).map_err(anyhow::Error::new).and_then(|hello| Ok(server.admit(&hello)?));
    let (frame, id) = match admitted {
        Ok((id, welcome)) => ([vec![WELCOME], welcome.to_bytes()].concat(), Some(id)),
        Err(error) => ([&[REFUSED], error.to_string().as_bytes()].concat(), None),
    };
    let is_sent = rendezvous.send(&frame).is_ok();
    if let (false, Some(id)) = (is_sent, id) {
        server.dismiss(id);
    }
    id.filter(|_| is_sent).map(|id| (rendezvous, id))
}

/// Sends a client the counters if it asks for them. Fails if it has gone, or sends anything else.
fn answer(rendezvous: &mut Rendezvous, counters: &[Mutex<WorkerStats>]) -> anyhow::Result<()> {
    if rendezvous.wait(Duration::ZERO)? {
        ensure!(rendezvous.receive()?.is_empty(), "a client sent more than its greeting");
        let stats = counters.iter().map(|counters| *counters.lock().unwrap_or_else(PoisonError::into_inner));
        rendezvous.send(stats_json(&stats.collect::<Vec<_>>()).to_string().as_bytes())?;
    }
    Ok(())
}

/// The sum of the workers' counters.
fn stats_json(stats: &[WorkerStats]) -> Value {
    let sum = |of: &dyn Fn(&WorkerStats) -> u64| stats.iter().map(of).sum::<u64>();
    let dropped = |reason: SlotDrop| (reason.name().to_owned(), json!(sum(&|stats| stats.dropped(reason))));
    json!({
        "executed": sum(&|stats| stats.executed),
        "repeated": sum(&|stats| stats.repeated),
        "doorbells": sum(&|stats| stats.doorbells),
        "noops": sum(&|stats| stats.noops),
        "unsent": sum(&|stats| stats.unsent),
        "failed_sends": sum(&|stats| stats.failed_sends),
        "dropped": SlotDrop::ALL.into_iter().map(dropped).collect::<Value>(),
    })
}

/// A client's connection to its server. Dropping it dismisses the client.
pub struct Admission(Rendezvous);

impl Admission {
    /// Counters of the server's workers, some milliseconds old.
    pub fn counters(&mut self) -> anyhow::Result<Value> {
        self.0.send(&[])?;
        Ok(serde_json::from_slice(&self.0.receive()?)?)
    }
}

/// Joins the server at `address` as a client, on the calling thread.
pub fn join<D: Device>(
    device: &D,
    domain: &D::Domain,
    config: &ClientConfig,
    address: &str,
) -> anyhow::Result<(Client<D>, Admission)> {
    let (joining, hello) = Client::prepare(device, domain, config)?;
    let mut rendezvous = Rendezvous::connect(address, CONNECT_TIMEOUT, LIMITS)?;
    rendezvous.send(&hello.to_bytes())?;
    ensure!(
        rendezvous.wait(CONNECT_TIMEOUT)?,
        "the server at {address} does not answer: check that it is not suspended"
    );
    let frame = rendezvous.receive()?;
    let Some((&verdict, rest)) = frame.split_first() else { bail!("the server at {address} sent an empty answer") };
    if verdict != WELCOME {
        // The text is foreign, so drop control characters, which could move the terminal's cursor.
        let error = String::from_utf8_lossy(rest);
        bail!(
            "the server at {address}: {}",
            error.chars().filter(|char| !char.is_control()).take(1000).collect::<String>()
        );
    }
    Ok((joining.join(&Welcome::from_bytes(rest)?)?, Admission(rendezvous)))
}
