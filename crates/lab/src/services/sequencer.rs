//! Sequencers (atc16 4.2).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sinew_fabric::Clock;
use sinew_fabric::verbs::{Device, ProtectionDomain, QueuePair, ThreadDomain};
use sinew_harness::load::sequencer::{SeenNumbers, Sequencer, SequencerLoad};
use sinew_herd::{ClientConfig, Server, ServerConfig, Worker, WorkerConfig};
use sinew_sequencer::atomics::{AtomicsClient, SequencerWord, server_queue_pair};
use sinew_sequencer::herd::{HerdClient, NumberService, layout};
use sinew_sequencer::spec::{SpecClient, SpecConfig, SpecServer};
use sinew_sequencer::{COUNT_MAX_DEFAULT, Client, Epoch, Sequence};
use sinew_sim::nic::{NicUse, Profile};
use sinew_sim::{Actor, ActorState, PortId, SimClock, SimThread};

use super::charges::{Accesses, Charged, SharedWord};
use super::{Driven, DriverResults, Hosts, Serving, Working};

/// Time after which a driver that was idle looks again.
const IDLE_TURN_NS: u64 = 100_000;
/// Time between two looks of a server that found nothing.
const POLL_NS: u64 = 100;
/// Latest end of a run.
const END_NS: u64 = 1_000_000_000;
/// Bytes of a client's arena.
const ARENA: usize = 1 << 20;

/// Design of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Design {
    /// HERD's calls, by workers with this configuration.
    Herd(WorkerConfig),
    /// HERD's calls, as echoes: no shared word is charged, but each call makes these accesses to memory (sigcomm14
    /// 4.1.1).
    Echo(WorkerConfig, Accesses),
    /// Spec-S0.
    Spec {
        /// Queue pairs of each core: one for each port of the NIC.
        queue_pairs: usize,
        /// Whether there is one doorbell for all answers of a burst; else there is one for each.
        is_batched: bool,
    },
    /// Fetch-and-add by the clients.
    Atomics,
}

/// A run of a sequencer.
#[derive(Clone, Copy, Debug)]
pub struct SequencerRun {
    /// Design of the server.
    pub design: Design,
    /// Cores of the server.
    pub workers: usize,
    /// Hosts of clients.
    pub hosts: usize,
    /// Clients, spread over them.
    pub clients: usize,
    /// Calls in flight of each client.
    pub window: usize,
    /// Time that is counted.
    pub measured_ns: u64,
    /// Seed of the run.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct SequencerResult {
    /// Calls per second, in millions.
    pub mops: f64,
    /// Mean time of a call, in ns.
    pub mean_ns: f64,
    /// Mean number of answers in a turn that answered any; 0 if the server answers nothing.
    pub batch: f64,
    /// Numbers that were handed out.
    pub numbers: u64,
    /// The greatest number plus one.
    pub end: u64,
    /// Use of the server's NIC.
    pub usage: NicUse,
    /// Hash of everything that the network did.
    pub trace_hash: u64,
}

/// A run that is being set up.
struct Setting<'a> {
    run: &'a SequencerRun,
    hosts: Hosts,
    found: Rc<RefCell<DriverResults>>,
    seen: Rc<RefCell<SeenNumbers>>,
    serving: Rc<Serving>,
}

impl SequencerRun {
    /// atc16's run: 70 clients on five hosts (4.2).
    pub fn atc16(design: Design, workers: usize) -> Self {
        Self { design, workers, hosts: 5, clients: 70, window: 16, measured_ns: 200_000, seed: 1 }
    }

    /// Runs it with each of some windows, the shortest first. Returns the run with the shortest window that comes close
    /// to the highest rate: a longer one would only make batches longer.
    pub fn best(&self, profile: &Profile, windows: &[usize]) -> SequencerResult {
        const NEARLY: f64 = 0.95;
        let runs: Vec<_> = windows.iter().map(|window| Self { window: *window, ..*self }.run(profile)).collect();
        let peak = runs.iter().map(|found| found.mops).fold(0.0, f64::max);
        runs.into_iter().find(|found| found.mops >= NEARLY * peak).expect("one has the highest rate")
    }

    /// Runs it.
    ///
    /// # Panics
    ///
    /// When a number was handed out twice.
    pub fn run(&self, profile: &Profile) -> SequencerResult {
        let hosts = Hosts::new(profile, self.hosts, self.seed);
        let setting = Setting {
            run: self,
            hosts,
            found: Rc::default(),
            seen: Rc::new(RefCell::new(SeenNumbers::new(0))),
            serving: Rc::default(),
        };
        match self.design {
            Design::Herd(config) => setting.herd(&config, None),
            Design::Echo(config, accesses) => setting.herd(&config, Some(accesses)),
            Design::Spec { queue_pairs, is_batched } => setting.spec(queue_pairs, is_batched),
            Design::Atomics => setting.atomics(),
        }
    }
}

impl Setting<'_> {
    fn sequence(&self) -> Arc<Sequence> {
        Arc::new(Sequence::new(0, Epoch(self.run.seed), COUNT_MAX_DEFAULT))
    }

    fn drive<C: Client + 'static>(&mut self, number: usize, place: PortId, client: C) {
        let (clock, measured_ns) = (self.hosts.clock(), self.run.measured_ns);
        let load = Sequencer::new(client, clock.clone(), self.run.window, 1);
        let seen = Rc::clone(&self.seen);
        let driven = Driven::new(load, clock, &[measured_ns], IDLE_TURN_NS, &self.found).at_end(
            move |load: &mut Sequencer<C, SimClock>| {
                seen.borrow_mut().add(&load.take_seen()).expect("numbers are unique");
            },
        );
        self.hosts.cluster.add(&format!("client{number}"), [place], Box::new(driven));
    }

    fn end(mut self) -> SequencerResult {
        DriverResults::wait(&self.found, &mut self.hosts.cluster, END_NS);
        let (found, seen) = (self.found.borrow(), self.seen.borrow());
        let batches = self.serving.batches.get().max(1);
        SequencerResult {
            mops: found.mops(),
            mean_ns: found.sum().latency.mean(),
            batch: self.serving.answered.get() as f64 / batches as f64,
            numbers: seen.numbers,
            end: seen.end,
            usage: self.hosts.usage(),
            trace_hash: self.hosts.network.trace_hash(),
        }
    }

    fn herd(mut self, config: &WorkerConfig, echoes: Option<Accesses>) -> SequencerResult {
        let run = self.run;
        let layout = layout(run.workers, run.clients, run.window.next_power_of_two());
        let device = self.hosts.server();
        let (mut server, seeds) =
            Server::new(&device, &ServerConfig { layout, seed: run.seed }).expect("there is room");
        let (clock, core, sequence) = (self.hosts.clock(), self.hosts.profile().core, self.sequence());
        let word = SharedWord::new(clock.clone(), &core);
        let mut workers = Vec::new();
        for seed in seeds {
            let index = seed.index();
            let service = NumberService::new(Arc::clone(&sequence));
            let service = Charged::new(service, clock.clone(), core, echoes.unwrap_or_default());
            let service = if echoes.is_some() { service } else { service.with_word(&word, index) };
            workers.push(Worker::new(seed, config, service).expect("the NIC takes it"));
        }
        for number in 0..run.clients {
            let device = self.hosts.client(number);
            let domain = device.protection_domain().expect("there is memory");
            let config = ClientConfig::new(layout);
            let (joining, hello) = sinew_herd::Client::prepare(&device, &domain, &config).expect("as above");
            let (_, welcome) = server.admit(&hello).expect("it has a place");
            let client = HerdClient::new(joining.join(&welcome).expect("both are of one layout"));
            self.drive(number, device.place(), client);
        }
        for (index, worker) in workers.into_iter().enumerate() {
            let working = Working::new(worker, config, clock.clone(), core.look_ns, &self.serving);
            self.hosts.cluster.add(&format!("worker{index}"), [], Box::new(working));
        }
        self.end()
    }

    fn spec(mut self, queue_pairs: usize, is_batched: bool) -> SequencerResult {
        let run = self.run;
        let (clock, core, sequence) = (self.hosts.clock(), self.hosts.profile().core, self.sequence());
        let word = SharedWord::new(clock.clone(), &core);
        let mut addresses = Vec::new();
        for index in 0..run.workers {
            let device = self.hosts.server();
            let domain = device.protection_domain().expect("there is memory");
            let servers: Vec<_> = (0..queue_pairs)
                .map(|_| {
                    let thread = domain.thread().expect("it is this thread's");
                    let receives = run.clients * run.window;
                    let server = SpecServer::new(thread, device.attributes(), Arc::clone(&sequence), receives);
                    let server = server.expect("the NIC takes it");
                    if is_batched { server } else { server.with_doorbell_per_answer() }
                })
                .collect();
            addresses.extend(servers.iter().map(SpecServer::address));
            let serving = Rc::clone(&self.serving);
            let actor = SpecWorking { servers, clock: clock.clone(), word: Rc::clone(&word), index, serving };
            self.hosts.cluster.add(&format!("worker{index}"), [device.place()], Box::new(actor));
        }
        for number in 0..run.clients {
            let device = self.hosts.client(number);
            let domain = device.protection_domain().expect("there is memory");
            let (thread, arena) = (domain.thread().expect("as above"), domain.arena(ARENA).expect("as above"));
            let config = SpecConfig { window: run.window, ..SpecConfig::default() };
            let server = &addresses[number % addresses.len()];
            let client = SpecClient::new(thread, arena, server, 0, config).expect("the server is there");
            self.drive(number, device.place(), client);
        }
        self.end()
    }

    fn atomics(mut self) -> SequencerResult {
        let run = self.run;
        let device = self.hosts.server();
        let domain = device.protection_domain().expect("there is memory");
        let word = SequencerWord::expose(&domain, 0).expect("as above");
        let of_server = domain.thread().expect("it is this thread's");
        let cq = of_server.completion_queue(2 * run.clients).expect("the NIC takes it");
        let mut queue_pairs = Vec::new();
        for number in 0..run.clients {
            let device = self.hosts.client(number);
            let domain = device.protection_domain().expect("there is memory");
            let (thread, arena) = (domain.thread().expect("as above"), domain.arena(ARENA).expect("as above"));
            let mut client = AtomicsClient::new(thread, &arena, run.window).expect("as above");
            let mut queue_pair = server_queue_pair(&of_server, &cq).expect("as above");
            queue_pair.connect(Some(&client.address())).expect("as above");
            client.connect(&queue_pair.address(), word.remote(), 0).expect("as above");
            queue_pairs.push(queue_pair);
            self.drive(number, device.place(), client);
        }
        let found = self.end();
        drop(queue_pairs);
        found
    }
}

/// A core of a Spec-S0 server.
struct SpecWorking {
    servers: Vec<SpecServer<SimThread>>,
    clock: SimClock,
    word: Rc<RefCell<SharedWord>>,
    index: usize,
    serving: Rc<Serving>,
}

impl Actor for SpecWorking {
    fn turn(&mut self) -> ActorState {
        let mut found = 0;
        for server in &mut self.servers {
            let came = server.turn().expect("its queue pair works");
            if came > 0 {
                self.word.borrow_mut().change(self.index);
                self.serving.answered.set(self.serving.answered.get() + came as u64);
                self.serving.batches.set(self.serving.batches.get() + 1);
                found += came;
            }
        }
        if found > 0 { ActorState::Work } else { ActorState::IdleUntil(self.clock.now_ns() + POLL_NS) }
    }
}
