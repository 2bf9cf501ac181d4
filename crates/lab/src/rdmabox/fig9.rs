//! Figure 9: polling policies, with a growing number of peers.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_fabric::verbs::{
    Access, Device, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair, RemoteMemory, Request, SharedQueues,
    Source, ThreadDomain, Transport,
};
use sinew_fabric::{Clock, PollPolicy, SeededGenerator, Waker};
use sinew_harness::units::counted;
use sinew_mem::Frozen;
use sinew_mem::atomic::plain::{Arc, AtomicU64, Ordering};
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, Competitor, CoreShare, SimClock, SimQp};

use super::profile;
use super::watcher::{Parts, SharedCore, Watcher};
use crate::experiment::{Experiment, Row};
use crate::nics::cluster::NicCluster;

/// Experiment for Figure 9.
pub struct Fig9;

/// Cores that the application leaves free: "CPU overhead until 4 busy polling threads does not affect the performance"
/// (V-B).
const FREE: usize = 4;
/// Cores of a host (VI-A): two processors of eight.
const CORES: usize = 16;
/// Cores as the paper counts them (VI-A): two threads of each, taken for cores of their own.
const VIRTUAL_CORES: usize = 32;
/// Mean time that a thread computes between two requests: an estimate.
const COMPUTE_NS: u64 = 20_000;
/// Time to handle a completion to its end, with a request's pages released and its thread woken: an estimate made in
/// view of Figure 9. With half of it, one watcher would be enough for all.
const HANDLE_NS: u64 = 4000;
/// Longer times to handle a completion, tried with as many peers as there are cores: the work for a block of 128 KB is
/// that for 32 pages.
const LONGER_NS: [u64; 2] = [8000, 16_000];
const LEN: usize = 4096;
const WARM_UP_NS: u64 = 30_000_000;
const MEASURED_NS: u64 = 100_000_000;
/// Numbers of peers that are tried.
const PEERS: [usize; 5] = [1, 2, 4, 8, 16];

/// A polling scheme: the policy, and the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PollingScheme {
    id: &'static str,
    name: &'static str,
    config: PollPolicy,
    /// Number of completion queues, each with a watcher of its own; none if there is one for each peer.
    shared: Option<usize>,
}

const fn scheme(id: &'static str, name: &'static str, config: PollPolicy, shared: Option<usize>) -> PollingScheme {
    PollingScheme { id, name, config, shared }
}

/// The paper's polling schemes.
const SCHEMES: [PollingScheme; 7] = [
    scheme("event", "Event", PollPolicy::EVENT, None),
    scheme("busy", "Busy", PollPolicy::SPIN, None),
    scheme("event_batch", "EventBatch", PollPolicy::Event { batch: 16 }, None),
    scheme("scq1", "SCQ(1)", PollPolicy::SPIN, Some(1)),
    scheme("scq2", "SCQ(2)", PollPolicy::SPIN, Some(2)),
    scheme("scq4", "SCQ(4)", PollPolicy::SPIN, Some(4)),
    scheme("adaptive", "AdaptivePoll", PollPolicy::RDMABOX, None),
];

/// A channel to a peer, to which all threads post.
struct Channel {
    qp: RefCell<SimQp>,
    remote: RemoteMemory,
}

/// A thread of the application: it computes, writes to a peer, and sleeps until the write completes.
struct Thread {
    number: u64,
    channels: Rc<Vec<Channel>>,
    source: Frozen,
    clock: SimClock,
    random: SeededGenerator,
    core: Rc<SharedCore>,
    posted: u64,
    done: Arc<AtomicU64>,
    is_fresh: bool,
}

impl Actor for Thread {
    fn turn(&mut self) -> ActorState {
        if self.done.load(Ordering::Relaxed) < self.posted {
            return ActorState::Asleep;
        }
        if std::mem::replace(&mut self.is_fresh, false) {
            let now_ns = self.clock.now_ns();
            let compute_ns = self.random.below(2 * COMPUTE_NS) + self.core.taken_ns.take();
            self.core.computes_until_ns.set(now_ns + compute_ns);
            self.clock.spend_ns(compute_ns);
            return ActorState::Work;
        }
        let taken_ns = self.core.taken_ns.take();
        if taken_ns > 0 {
            // Interrupts came while it computed.
            self.core.computes_until_ns.set(self.clock.now_ns() + taken_ns);
            self.clock.spend_ns(taken_ns);
            return ActorState::Work;
        }
        self.is_fresh = true;
        let peer = self.random.below(self.channels.len() as u64) as usize;
        let Channel { qp, remote } = &self.channels[peer];
        let operation =
            Operation::Write { source: Source::from(self.source.clone()), remote: *remote, immediate: None };
        qp.borrow_mut().post(Request::new(self.number, operation)).expect("there is room");
        self.posted += 1;
        ActorState::Asleep
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug)]
struct PollingResult {
    /// Requests per second, in thousands.
    kops: f64,
    /// Cores that polling took, with interrupts and the handling of completions.
    cores: f64,
}

fn run(profile: &Profile, scheme: PollingScheme, peers: usize, host_cores: usize, handle_ns: u64) -> PollingResult {
    let threads = host_cores - FREE;
    let mut nics = NicCluster::new(profile, 1 + peers, 1);
    let clock = nics.clock();
    let queues = scheme.shared.map_or(peers, |shared| shared.min(peers));
    let app = nics.open(0);
    let domain = app.protection_domain().expect("a domain");
    let thread = domain.thread().expect("queues");
    let watching: Vec<_> = (0..queues).map(|_| nics.open(0)).collect();
    let mut keep: Vec<Box<dyn Any>> = Vec::new();
    let cqs = SharedQueues::new(queues, |nth| {
        let domain = watching[nth].protection_domain()?;
        let thread = domain.thread()?;
        let cq = thread.completion_queue(peers.div_ceil(queues) * (2 * threads + 2))?;
        keep.push(Box::new((domain, thread)));
        Ok(cq)
    });
    let cqs = cqs.expect("the queues");
    let channel = |peer: usize| {
        let device = nics.open(1 + peer);
        let far_domain = device.protection_domain().expect("a domain");
        let far_thread = far_domain.thread().expect("queues");
        let far_cq = far_thread.completion_queue(4).expect("a queue");
        let config = QpConfig { send_depth: 2 * threads, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
        let far_config = QpConfig { send_depth: 1, ..config };
        let cq = cqs.queue_for(peer);
        let mut qp = thread.queue_pair(&config, cq, cq).expect("a queue pair");
        let mut far = far_thread.queue_pair(&far_config, &far_cq, &far_cq).expect("a queue pair");
        qp.connect(Some(&far.address())).expect("a connection");
        far.connect(Some(&qp.address())).expect("a connection");
        let memory = far_domain.expose(LEN, Access::ALL).expect("memory");
        let remote = memory.remote();
        keep.push(Box::new((device, far, memory)));
        Channel { qp: RefCell::new(qp), remote }
    };
    let channels: Rc<Vec<Channel>> = Rc::new((0..peers).map(channel).collect());
    let source = domain.arena(1 << 20).expect("an arena").alloc(LEN, LEN).expect("room").freeze();
    let interrupt_ns = profile.core.interrupt_ns;
    let cores: Vec<Rc<SharedCore>> = (0..host_cores).map(|_| Rc::default()).collect();
    let done: Vec<Arc<AtomicU64>> = (0..threads).map(|_| Arc::default()).collect();
    let wakers: Vec<Waker> = (0..threads)
        .map(|number| {
            let thread = Thread {
                number: number as u64,
                channels: Rc::clone(&channels),
                source: source.clone(),
                clock: clock.clone(),
                random: SeededGenerator::new(number as u64),
                core: Rc::clone(&cores[number]),
                posted: 0,
                done: Arc::clone(&done[number]),
                is_fresh: true,
            };
            let device = nics.open(0);
            let actor = nics.add(&device, thread);
            // A watcher that polls all the time gets half of its core when it wants it.
            let has_watcher = (host_cores..threads + queues).any(|watcher| watcher % host_cores == number);
            let competes = has_watcher && scheme.config == PollPolicy::Busy;
            let competitor = competes.then(|| Competitor::with_slice_ns(profile.core.time_slice_ns));
            nics.cluster.share_core(actor, CoreShare { interrupt_ns, competitor });
            nics.cluster.waker(actor)
        })
        .collect();
    let counted = Rc::new(Cell::new(0u64));
    let mut stats = Vec::new();
    for (number, (device, cqs)) in watching.iter().zip(cqs.into_each()).enumerate() {
        // Free cores are used first.
        let core = (threads + number) % host_cores;
        let (handled, now) = (Rc::clone(&counted), clock.clone());
        let (done, wakers) = (done.clone(), wakers.clone());
        let parts = Parts {
            config: scheme.config,
            cqs,
            clock: clock.clone(),
            core: profile.core,
            handle_ns,
            shared: (core < threads).then(|| Rc::clone(&cores[core])),
            on_completion: Box::new(move |thread| {
                handled.set(handled.get() + u64::from(now.now_ns() >= WARM_UP_NS));
                let done = Arc::clone(&done[thread as usize]);
                wakers[thread as usize].wake_with(Box::new(move || {
                    done.fetch_add(1, Ordering::Relaxed);
                }));
            }),
        };
        let (watcher, of_watcher) = Watcher::new(parts);
        let watcher = nics.add(device, watcher);
        nics.cluster.share_core(watcher, CoreShare { interrupt_ns, competitor: None });
        stats.push(of_watcher);
    }
    nics.cluster.run_until(WARM_UP_NS);
    let spent_ns = || {
        let of = |stats: &Rc<RefCell<sinew_fabric::PollerStats>>| {
            let stats = stats.borrow();
            stats.cpu_ns() + stats.blocks * interrupt_ns
        };
        stats.iter().map(of).sum::<u64>()
    };
    let before = spent_ns();
    nics.cluster.run_until(WARM_UP_NS + MEASURED_NS);
    let spent = (spent_ns() - before) as f64 / MEASURED_NS as f64;
    drop(keep);
    PollingResult {
        kops: counted.get() as f64 * 1e6 / MEASURED_NS as f64,
        cores: if scheme.config == PollPolicy::Busy { queues as f64 } else { spent },
    }
}

impl Experiment for Fig9 {
    fn id(&self) -> &'static str {
        "rdmabox-fig9"
    }

    fn title(&self) -> &'static str {
        "Policies of polling, with more and more peers"
    }

    fn source(&self) -> &'static str {
        "rdmabox V-B, Figure 9"
    }

    fn setup(&self) -> &'static str {
        "A host with a modelled ConnectX-3 and 16 cores, and peers with one queue pair each. Twelve threads of an \
         application compute for 20 us on average, WRITE 4 KB to a random peer, and sleep until the completion was \
         handled, which takes 4 us. Completion queues, either one for each peer or shared ones, are polled by the real \
         poller, on the four free cores first and then on cores of the application. There a watcher that polls all the \
         time gets half of the core when it wants it, and gives way to a thread that has just slept; interrupts and \
         their handling go before the application. The last rows have 32 cores, as the paper counts them, and 28 \
         threads. All times but the NIC's are estimates."
    }

    fn remark(&self) -> &'static str {
        "That four busy threads harm nobody follows from the number of free cores, and that one shared queue is too \
         few (248 K/s with 16 peers, beside 283 for events) from the time of a completion. The other orderings of the \
         text follow, with two exceptions: several shared queues do help here, since nothing but their threads is \
         serialised, and with 16 peers two or four of them (335 and 353 K/s) are better than adaptive polling (276), \
         which takes 3.6 cores, most of them from the application, and they take two or four, all of them free. \
         Neither of the longer times of a completion gives all orderings: with 8 us adaptive polling (245 K/s) is \
         better than two shared queues (224) but not than four (291); with 16 us it is better than four (200 beside \
         190), but busy polling is better than either (230), since a completion then keeps a core longer than the \
         application computes. The paper counts 32 virtual cores. With as many, and 28 threads of the application, \
         adaptive polling (650 K/s) is better than two shared queues (479) and than events (623), but again not than \
         four (736), which no policy that runs on the application's cores can be as long as four cores are free."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let profile = profile();
        let mut rows = Vec::new();
        let usual = PEERS.map(|peers| (format!("{peers}"), counted(peers, "peer"), peers, CORES, HANDLE_NS));
        let most = PEERS[PEERS.len() - 1];
        let longer = LONGER_NS.map(|ns| {
            let us = ns / 1000;
            (format!("{most}.{us}us"), format!("{most} peers, completions that take {us} us"), most, CORES, ns)
        });
        let name = format!("{most} peers, {VIRTUAL_CORES} cores");
        let more = [(format!("{most}.{VIRTUAL_CORES}cores"), name, most, VIRTUAL_CORES, HANDLE_NS)];
        let cases: Vec<_> = usual.into_iter().chain(longer).chain(more).collect();
        for (nth, (id, name, peers, host_cores, handle_ns)) in cases.iter().enumerate() {
            for (at, scheme) in SCHEMES.into_iter().enumerate() {
                progress((nth * SCHEMES.len() + at) as f64 / (cases.len() * SCHEMES.len()) as f64);
                let found = run(&profile, scheme, *peers, *host_cores, *handle_ns);
                let of = |figure: &str, metric: &str, value: f64, unit| {
                    let metric = format!("{}: {metric}", scheme.name);
                    Row::model(format!("box.{figure}.{id}.{}", scheme.id), metric, value, unit).case(name)
                };
                rows.push(of("fig9a", "requests", found.kops, "K/s"));
                rows.push(of("fig9b", "polling takes", found.cores, "cores"));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(id: &str, peers: usize) -> PollingResult {
        run(&profile(), SCHEMES.into_iter().find(|scheme| scheme.id == id).unwrap(), peers, CORES, HANDLE_NS)
    }

    #[test]
    fn with_few_peers_busy_polling_is_best() {
        for peers in [2, 4] {
            let busy = find("busy", peers).kops;
            // "Busy polling shows the best result when it runs with few remote connections" (V-B).
            for scheme in ["event", "event_batch", "scq1", "adaptive"] {
                let other = find(scheme, peers).kops;
                assert!(busy > other, "{peers} peers: {busy}, and {scheme} {other}");
            }
        }
    }

    #[test]
    fn with_many_peers_busy_polling_falls_and_adaptive_polling_does_not() {
        let [few, busy] = [4, 16].map(|peers| find("busy", peers));
        let [event, batch, shared, adaptive] =
            ["event", "event_batch", "scq1", "adaptive"].map(|scheme| find(scheme, 16));
        // "When the number of peer connections increases, throughput severely drops due to CPU overhead" (V-B).
        assert!(busy.kops < 0.75 * few.kops, "{} of {}", busy.kops, few.kops);
        // "Event-triggered mode shows higher throughput than Busy polling with many peer connections" (V-B).
        assert!(event.kops > 1.1 * busy.kops, "{} {}", event.kops, busy.kops);
        // "SCQ(1) shows worse performance than Event mode with many peer connections" (V-B).
        assert!(shared.kops < 0.95 * event.kops, "{} {}", shared.kops, event.kops);
        // "Adaptive polling gives higher throughput than SCQ in many connections", "better performance and lower CPU
        // overhead than N Busy Polling case" (V-B).
        assert!(adaptive.kops > 1.05 * shared.kops && adaptive.kops > 1.1 * busy.kops, "{}", adaptive.kops);
        assert!(adaptive.cores < 0.5 * busy.cores, "{} {}", adaptive.cores, busy.cores);
        // "Although Adaptive polling has slightly higher CPU overhead than Event-based approaches, we observe that this
        // CPU overhead does not affect application performance" (V-B).
        assert!(adaptive.cores > event.cores && adaptive.kops > 0.95 * event.kops.max(batch.kops));
    }
}
