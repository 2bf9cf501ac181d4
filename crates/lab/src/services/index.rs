//! An ordered index over datagrams of modelled NICs (nsdi19 7.2): [`sinew_kv::ordered`] on
//! [`UdPort`](sinew_fabric::verbs::port::UdPort)s.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use sinew_fabric::{Clock, PacketPort};
use sinew_harness::load::index::{Index, Shape, key_of, value_of};
use sinew_kv::ordered::{POINTS, Pipeline, PipelineConfig, RANGES, Service};
use sinew_rpc::{BurstCalls, Call, Channel, Config, ConnectOptions, DeferredCall, Nexus, NexusBuilder};
use sinew_sim::nic::{NicUse, Profile};
use sinew_sim::{Actor, ActorState, SimClock, WorkersConfig};

use super::rpc::{Endpoint, open};
use super::{Driven, DriverResults, Hosts};
use crate::programs::turn;

/// Time after which a driver that was idle looks again.
const IDLE_TURN_NS: u64 = 10_000;
/// Latest end of a run.
const END_NS: u64 = 1_000_000_000;
/// Most jobs that wait for a worker.
const QUEUE: usize = 4096;

/// A run of the index.
#[derive(Clone, Copy, Debug)]
pub struct IndexRun {
    /// Threads of the server that answer GETs.
    pub dispatch: usize,
    /// Threads of the server that scan; if there are none, scans run in dispatch.
    pub workers: usize,
    /// Hosts of clients.
    pub hosts: usize,
    /// Client threads of each host.
    pub threads: usize,
    /// Requests in flight of each thread.
    pub window: usize,
    /// Share of requests that are sums over scans, from 0 to 1.
    pub scan_share: f64,
    /// CPU time of a GET, not counting the call.
    pub get_ns: u64,
    /// CPU time of a scan, not counting the call.
    pub scan_ns: u64,
    /// CPU time that a worker takes to take a job from its queue.
    pub job_ns: u64,
    /// Keys of the index. Their number does not change the cost of a GET.
    pub keys: u64,
    /// Keys of a scan.
    pub scan_len: u32,
    /// Time that is counted.
    pub measured_ns: u64,
    /// Seed of the run.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct IndexResult {
    /// GETs per second, in millions, over all clients.
    pub gets_mops: f64,
    /// Median time of the GETs.
    pub median_ns: u64,
    /// 99th percentile of the times.
    pub p99_ns: u64,
    /// Use of the server's NIC.
    pub usage: NicUse,
    /// Hash of everything that the network did.
    pub trace_hash: u64,
}

impl IndexRun {
    /// Runs it.
    ///
    /// # Panics
    ///
    /// When an answer is wrong.
    pub fn run(&self, profile: &Profile) -> IndexResult {
        let mut hosts = Hosts::new(profile, self.hosts, self.seed);
        let clock = hosts.clock();
        let service = Service::new(1 << 30, 1 << 10);
        for number in 0..self.keys {
            service.index().put(&key_of(number), &value_of(number)).expect("there is room");
        }
        let config = Config { overcommit: true, ..Config::default() };
        let nexus = self.serving(&mut hosts, &service, config.clone()).build().expect("the limits make sense");
        let mut addresses = Vec::new();
        for thread in 0..self.dispatch {
            let device = hosts.server();
            let rpc = open(&mut hosts, &device, &nexus);
            addresses.push(rpc.port().address());
            hosts.cluster.add(&format!("dispatch{thread}"), [device.place()], Box::new(Dispatch(rpc)));
        }
        let nexus = Nexus::builder().config(config).build().expect("as above");
        let found = Rc::<RefCell<DriverResults>>::default();
        let ready = Rc::new(Cell::new(0));
        let clients = self.hosts * self.threads;
        for number in 0..clients {
            let device = hosts.client(number);
            let mut rpc = open(&mut hosts, &device, &nexus);
            let address = &addresses[number % self.dispatch];
            let channel = Channel::begin_open(&mut rpc, address, self.window, ConnectOptions::new());
            let client = Client {
                run: *self,
                clients,
                number: number as u64,
                opening: Some((rpc, channel.expect("it is an address"))),
                is_open: false,
                ready: Rc::clone(&ready),
                driven: None,
                clock: clock.clone(),
                found: Rc::clone(&found),
            };
            hosts.cluster.add(&format!("client{number}"), [device.place()], Box::new(client));
        }
        let opened = hosts.cluster.run_while(END_NS, |_| ready.get() == clients);
        assert_eq!(opened, Ok(true), "sessions are not open");
        // All begin at once, in their next turns.
        let begun_ns = hosts.network.now_ns();
        hosts.cluster.run_until(begun_ns + 2 * IDLE_TURN_NS);
        DriverResults::wait(&found, &mut hosts.cluster, END_NS);
        let found = found.borrow();
        let sum = found.sum();
        IndexResult {
            gets_mops: found.slices().iter().map(|slice| slice.gets as f64 * 1e3 / slice.elapsed_ns as f64).sum(),
            median_ns: sum.latency.value_at_quantile(0.5),
            p99_ns: sum.latency.value_at_quantile(0.99),
            usage: hosts.usage(),
            trace_hash: hosts.network.trace_hash(),
        }
    }

    /// Registers handlers that charge their costs before they run.
    fn serving(&self, hosts: &mut Hosts, service: &Service, config: Config) -> NexusBuilder {
        let (get_ns, scan_ns, clock) = (self.get_ns, self.scan_ns, hosts.clock());
        let points = service.points();
        let builder = Nexus::builder().config(config).handle_burst(POINTS, {
            let clock = clock.clone();
            move |calls: &mut BurstCalls<'_, '_>| {
                clock.spend_ns(get_ns * calls.len() as u64);
                points(calls);
            }
        });
        if self.workers == 0 {
            let ranges = service.ranges_in_dispatch();
            return builder.handle(RANGES, move |call: Call<'_>| {
                clock.spend_ns(scan_ns);
                ranges(call);
            });
        }
        let config = WorkersConfig { workers: self.workers, capacity: QUEUE, job_ns: self.job_ns };
        let pool = hosts.cluster.workers("scans", config);
        let ranges = service.ranges();
        builder.workers(Arc::new(pool)).handle_worker(RANGES, move |call: DeferredCall| {
            clock.spend_ns(scan_ns);
            ranges(call);
        })
    }
}

/// A thread of the server.
struct Dispatch(Endpoint);

impl Actor for Dispatch {
    fn turn(&mut self) -> ActorState {
        turn(&mut self.0)
    }
}

/// A client thread: it opens its sessions, waits for the others', and then makes requests.
struct Client {
    run: IndexRun,
    clients: usize,
    number: u64,
    opening: Option<(Endpoint, Channel)>,
    is_open: bool,
    /// Clients whose sessions are open.
    ready: Rc<Cell<usize>>,
    driven: Option<Driven<Index<Endpoint, SimClock>>>,
    clock: SimClock,
    found: Rc<RefCell<DriverResults>>,
}

impl Actor for Client {
    fn turn(&mut self) -> ActorState {
        if let Some(driven) = &mut self.driven {
            return driven.turn();
        }
        let Some((rpc, channel)) = &mut self.opening else { return ActorState::Done };
        let doing = turn(rpc);
        if !self.is_open && channel.poll(rpc).expect("the server is there") {
            self.is_open = true;
            self.ready.set(self.ready.get() + 1);
        }
        if self.ready.get() < self.clients {
            // Others may become ready meanwhile.
            return if doing == ActorState::Work {
                doing
            } else {
                ActorState::IdleUntil(self.clock.now_ns() + IDLE_TURN_NS)
            };
        }
        let IndexRun { window, keys, scan_share, scan_len, measured_ns, seed, .. } = self.run;
        let shape = Shape { window, batch: 1, keys, scan_share, scan_len };
        let (rpc, channel) = self.opening.take().expect("it was there");
        let config = PipelineConfig { window, ..PipelineConfig::default() };
        let pipeline = Pipeline::with_channel(rpc, channel, config).expect("there is memory");
        let load = Index::new(pipeline, self.clock.clone(), shape, seed << 16 | self.number);
        let slices = [measured_ns / 5, measured_ns];
        self.driven = Some(Driven::new(load, self.clock.clone(), &slices, IDLE_TURN_NS, &self.found));
        ActorState::Work
    }
}
