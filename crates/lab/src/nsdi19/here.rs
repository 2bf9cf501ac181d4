//! The paper's replicated store and ordered index on this machine, in threads and in real time, and other systems
//! beside them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use sinew_fabric::{Clock, PacketPort, PollPolicy, WorkerPool};
use sinew_harness::load::index::{Index, key_of, value_of};
use sinew_harness::load::replica::Replica;
use sinew_harness::load::{Load, Slice, State, index, replica};
use sinew_harness::units::median;
use sinew_host::{HostClock, SystemEntropy, ThreadPool, available_cpus, pin_current_thread};
use sinew_kv::ordered::{POINTS, Pipeline, PipelineConfig, RANGES, Service};
use sinew_mem::atomic::{AtomicBool, Ordering};
use sinew_peers::{Folder, Place, etcd, redis};
use sinew_replica::client::Client;
use sinew_replica::disk::SimDisk;
use sinew_replica::host::Host;
use sinew_replica::kv::KvStore;
use sinew_replica::member::{Member, MemberConfig};
use sinew_rpc::{Config, Nexus, Rpc};
use sinew_shm::{Hub, ShmPort};
use sinew_udp::UdpPort;

use crate::experiment::Row;
use crate::services::replica::{Timed, histogram};

/// Time before a measurement, and for the members to elect a leader.
const WARM_UP: Duration = Duration::from_millis(200);
/// Members of a replicated store, and bytes of a value that is put.
const MEMBERS: usize = 3;
const VALUE_LEN: usize = 64;
/// Time after which a PUT without an answer has failed, in ns.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Longest sleep of a server that is to notice the end of a run, in ns.
const LOOK_NS: u64 = 1_000_000;
/// Longest value that the index takes, and memory for an entry, in bytes.
const VALUE_LEN_MAX: usize = 1024;
const ENTRY_BYTES: u64 = 320;

/// When dropped, tells the other threads that the run is over, even after a failure.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        // Relaxed: nothing else is passed on by it.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A row with a value measured on this machine, or the reason why there is none.
pub fn row(id: String, metric: &str, case: String, found: Result<f64, String>, unit: &'static str) -> Row {
    let row = Row::open(id, metric, unit).case(case);
    match found {
        Ok(measured) => Row { measured: Some(measured), ..row },
        Err(reason) => Row { missing_because: Some(reason), ..row },
    }
}

/// Takes one measurement of a system: its figures, or the reason why there are none.
pub type Side<'a> = Box<dyn FnMut() -> anyhow::Result<Vec<f64>> + 'a>;

/// Measures systems alternately, and returns the medians of each one's figures. Each repetition begins with another
/// system, so that none always follows the same one. One that has failed is left out from then on.
pub fn measure_alternately(repeats: usize, sides: &mut [Side<'_>]) -> Vec<Result<Vec<f64>, String>> {
    let mut runs: Vec<Result<Vec<Vec<f64>>, String>> = sides.iter().map(|_| Ok(Vec::new())).collect();
    for repeat in 0..repeats {
        for turn in 0..sides.len() {
            let side = (repeat + turn) % sides.len();
            if let Ok(done) = &mut runs[side] {
                match sides[side]() {
                    Ok(figures) => done.push(figures),
                    Err(error) => runs[side] = Err(format!("{error:#}")),
                }
            }
        }
    }
    let medians = |runs: Vec<Vec<f64>>| {
        let figures = runs.first().map_or(0, Vec::len);
        (0..figures).map(|figure| median(&Vec::from_iter(runs.iter().map(|run| run[figure])))).collect()
    };
    runs.into_iter().map(|runs| runs.map(medians)).collect()
}

/// Runs a load for a time, on this thread.
fn run_load(load: &mut impl Load, duration: Duration) -> anyhow::Result<Slice> {
    let clock = HostClock::new();
    let now_ns = clock.now_ns();
    load.begin(now_ns, now_ns + duration.as_nanos() as u64)?;
    loop {
        match load.turn(clock.now_ns())? {
            State::Busy => {}
            State::Idle => {
                if !load.rest()? {
                    std::hint::spin_loop();
                }
            }
            State::Over => return Ok(load.end()),
        }
    }
}

/// Times of PUTs in ns: at the client, and at the leader.
pub struct Puts {
    /// From the client's request to its answer.
    pub client_ns: Histogram<u64>,
    /// From when the leader takes the request until a majority has the entry.
    pub leader_ns: Histogram<u64>,
}

/// Puts one random key of 16 B after the other, with values of 64 B, to three members in memory. All four are threads
/// that sleep while they wait, and talk over UDP on loopback.
///
/// # Errors
///
/// The system refuses a socket, or a PUT fails.
pub fn puts(keys: u64, duration: Duration) -> anyhow::Result<Puts> {
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let stop_on_drop = StopOnDrop(is_over);
        let mut places: Vec<Receiver<String>> = Vec::new();
        let mut tell: Vec<Sender<Vec<String>>> = Vec::new();
        let mut threads = Vec::new();
        for number in 0..MEMBERS {
            let (place, its_place) = mpsc::channel();
            let (tell_peers, peers) = mpsc::channel();
            threads.push(scope.spawn(move || run_member(number, &place, &peers, is_over)));
            places.push(its_place);
            tell.push(tell_peers);
        }
        let addresses: Result<Vec<String>, _> = places.iter().map(Receiver::recv).collect();
        let slice = addresses.context("a member has no port").and_then(|addresses| {
            // A member that is gone reports why below.
            tell.iter().for_each(|tell| _ = tell.send(addresses.clone()));
            let rpc = sleeping_endpoint()?;
            let client = Client::new(rpc, addresses, Box::new(SystemEntropy::new()?));
            let shape = replica::Shape { window: 1, keys, value_len: VALUE_LEN, timeout_ns: PATIENCE_NS };
            let mut load = Replica::new(client, HostClock::new(), shape, 1);
            run_load(&mut load, WARM_UP)?;
            run_load(&mut load, duration)
        });
        drop((stop_on_drop, tell));
        let mut leader_ns = histogram();
        for thread in threads {
            let times = thread.join().map_err(|_| anyhow::anyhow!("a member panicked"))??;
            leader_ns.add(&times)?;
        }
        Ok(Puts { client_ns: slice?.latency, leader_ns })
    })
}

/// Puts the same keys and values to as many members of etcd, with their data in memory. They are processes, over TCP on
/// loopback; the client is this thread, which sleeps while it waits.
///
/// # Errors
///
/// There is no etcd, or it fails.
pub fn puts_to_etcd(keys: u64, duration: Duration) -> anyhow::Result<etcd::Measured> {
    let mut cluster = etcd::Cluster::start(MEMBERS, Folder::in_memory()?)?;
    cluster.client()?.put(etcd::Puts { window: 1, keys, value_len: VALUE_LEN, warm_up: WARM_UP, duration })
}

type UdpRpc = Rpc<UdpPort, HostClock>;

fn udp_endpoint(nexus: &Nexus) -> anyhow::Result<UdpRpc> {
    let port = UdpPort::open(&"udp://127.0.0.1:0".parse()?)?;
    Ok(Rpc::new(nexus, port, HostClock::new(), Box::new(SystemEntropy::new()?)))
}

/// An endpoint that sleeps while it waits.
fn sleeping_endpoint() -> anyhow::Result<UdpRpc> {
    let config = Config { poller: PollPolicy::SLEEP, ..Config::default() };
    udp_endpoint(&Nexus::builder().config(config).build()?)
}

/// Runs a member until all is over. Returns the times of its PUTs if it leads then, else none.
fn run_member(
    number: usize,
    place: &Sender<String>,
    peers: &Receiver<Vec<String>>,
    is_over: &AtomicBool,
) -> anyhow::Result<Histogram<u64>> {
    let rpc = sleeping_endpoint()?;
    place.send(rpc.address().to_string())?;
    // Without peers the run has failed already.
    let Ok(peers) = peers.recv() else { return Ok(histogram()) };
    let peers: Vec<_> = peers.into_iter().enumerate().map(|(peer, address)| (peer.to_string(), address)).collect();
    let (clock, committed_ns) = (HostClock::new(), Rc::new(RefCell::new(histogram())));
    let machine = Timed {
        store: KvStore::new(),
        clock: clock.clone(),
        put_ns: 0,
        taken_ns: Cell::new(None),
        committed_ns: Rc::clone(&committed_ns),
    };
    let random = Box::new(SystemEntropy::new()?);
    let (config, now_ns) = (MemberConfig::default(), clock.now_ns());
    let member = Member::open(config, &number.to_string(), peers, machine, None::<SimDisk>, random, now_ns)?;
    let mut host = Host::new(rpc, member)?;
    while !is_over.load(Ordering::Relaxed) {
        let busy = host.turn()?;
        let rest_ns = host.sleep_ns().min(LOOK_NS);
        host.rpc().rest(busy, Some(rest_ns))?;
    }
    // Another member has times of requests that it only passed on.
    Ok(if host.member().is_leader() { committed_ns.borrow().clone() } else { histogram() })
}

/// The index of the measurements, with keys and values of 8 B.
pub fn filled_index(keys: Range<u64>) -> anyhow::Result<Service> {
    let service = Service::new((keys.end - keys.start) * ENTRY_BYTES, VALUE_LEN_MAX);
    for number in keys {
        service.index().put(&key_of(number), &value_of(number))?;
    }
    Ok(service)
}

/// GETs, and sums over scans, of one client at one server. Each is a thread on a processor of its own, if there are
/// two; a third thread may scan. They talk through rings in private memory.
///
/// # Errors
///
/// The system refuses memory or a thread, or an answer is wrong.
pub fn index(service: &Service, shape: index::Shape, has_worker: bool, duration: Duration) -> anyhow::Result<Slice> {
    let hub = &Hub::new();
    let open = |nexus: &Nexus, name| shm_endpoint(hub, name, nexus);
    index_over(service, shape, has_worker, duration, &open)
}

/// GETs of one client at one server, as [`index`] does, over UDP on loopback.
///
/// # Errors
///
/// The system refuses a socket, or an answer is wrong.
pub fn gets_over_udp(service: &Service, shape: index::Shape, duration: Duration) -> anyhow::Result<Slice> {
    index_over(service, shape, false, duration, &|nexus, _| udp_endpoint(nexus))
}

/// GETs of as many keys in Redis, which keeps no order. The server is a process on the server's processor, reached over
/// TCP on loopback, and the client a thread on the other one. Returns millions of GETs per second.
///
/// # Errors
///
/// There is no Redis, or it fails.
pub fn gets_of_redis(shape: index::Shape, duration: Duration) -> anyhow::Result<f64> {
    let (server, _) = redis::start(Place { cpu: processors().map(|[cpu, _]| cpu), unix: false }, None)?;
    let client = || -> anyhow::Result<f64> {
        pin_to(1);
        let gets = redis::Gets { keys: shape.keys, window: shape.window, batch: shape.batch };
        let mut client = redis::Client::connect(&server, gets)?;
        client.rate_mops(WARM_UP)?;
        client.rate_mops(duration)
    };
    thread::scope(|scope| scope.spawn(client).join()).map_err(|_| anyhow::anyhow!("the client panicked"))?
}

/// Runs a server and a client, whose endpoints `open` opens, each by a name.
fn index_over<P: PacketPort>(
    service: &Service,
    shape: index::Shape,
    has_worker: bool,
    duration: Duration,
    open: &(impl Fn(&Nexus, &'static str) -> anyhow::Result<Rpc<P, HostClock>> + Sync),
) -> anyhow::Result<Slice> {
    let is_over = &AtomicBool::new(false);
    let builder = Nexus::builder().config(Config::default()).handle_burst(POINTS, service.points());
    let nexus = if has_worker {
        let pool: Arc<dyn WorkerPool> = Arc::new(ThreadPool::new("scans", 1, 1024)?);
        builder.handle_worker(RANGES, service.ranges()).workers(pool).build()?
    } else {
        builder.handle(RANGES, service.ranges_in_dispatch()).build()?
    };
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let stop_on_drop = StopOnDrop(is_over);
        let server = scope.spawn(move || -> anyhow::Result<()> {
            pin_to(0);
            let mut rpc = open(&nexus, "index")?;
            ready.send(rpc.address().to_string())?;
            while !is_over.load(Ordering::Relaxed) {
                let busy = rpc.turn();
                rpc.rest(busy, Some(LOOK_NS))?;
            }
            Ok(())
        });
        let client = scope.spawn(move || -> anyhow::Result<Slice> {
            // The server's own error says more.
            let address = is_ready.recv().context("the server has gone")?;
            pin_to(1);
            let rpc = open(&Nexus::builder().build()?, "client")?;
            let config = PipelineConfig { window: shape.window, ..PipelineConfig::default() };
            let mut load = Index::new(Pipeline::connect(rpc, &address, config)?, HostClock::new(), shape, 1);
            run_load(&mut load, WARM_UP)?;
            run_load(&mut load, duration)
        });
        let slice = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
        drop(stop_on_drop);
        server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        slice
    })
}

fn shm_endpoint(hub: &Hub, name: &str, nexus: &Nexus) -> anyhow::Result<Rpc<ShmPort, HostClock>> {
    Ok(Rpc::new(nexus, hub.port(name)?, HostClock::new(), Box::new(SystemEntropy::new()?)))
}

/// Processors of the server and the client, if there are two.
pub fn processors() -> Option<[usize; 2]> {
    available_cpus().first_chunk().copied()
}

fn pin_to(side: usize) {
    // A thread that may not be pinned is measured all the same.
    let _ = processors().map(|cpus| pin_current_thread(cpus[side]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_are_timed_at_the_client_and_at_the_leader() {
        let Puts { client_ns, leader_ns } = puts(100, Duration::from_millis(20)).unwrap();
        assert!(!client_ns.is_empty() && leader_ns.len() >= client_ns.len(), "{client_ns:?} {leader_ns:?}");
    }

    #[test]
    fn gets_are_timed_with_scans_in_a_worker_and_in_dispatch() {
        let service = filled_index(0..1000).unwrap();
        let shape = index::Shape { window: 4, batch: 1, keys: 1000, scan_share: 0.1, scan_len: 16 };
        for has_worker in [true, false] {
            let slice = index(&service, shape, has_worker, Duration::from_millis(20)).unwrap();
            assert!(slice.gets > 0 && slice.done > slice.gets, "{has_worker}");
        }
        let only_gets = index::Shape { batch: 2, scan_share: 0.0, ..shape };
        assert!(gets_over_udp(&service, only_gets, Duration::from_millis(20)).unwrap().gets > 0);
    }

    #[test]
    fn sides_alternate_and_medians_are_told_or_the_first_failure() {
        let order = RefCell::new(Vec::new());
        let side = |name: usize, fails_at: usize| -> Side<'_> {
            let (order, mut run) = (&order, 0);
            Box::new(move || {
                order.borrow_mut().push(name);
                run += 1;
                anyhow::ensure!(run != fails_at, "side {name} failed");
                Ok(vec![(run * run) as f64, name as f64])
            })
        };
        let found = measure_alternately(3, &mut [side(0, 9), side(1, 2)]);
        assert_eq!(found, [Ok(vec![4.0, 0.0]), Err("side 1 failed".to_owned())]);
        assert_eq!(*order.borrow(), [0, 1, 1, 0, 0]);
    }
}
