//! Figure 2: polling policies, with clusters of requests.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::verbs::{
    Access, Device, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair, RemoteMemory, Request, SharedQueues,
    Source, ThreadDomain, Transport,
};
use sinew_fabric::{Clock, PollPolicy, PollerStats};
use sinew_harness::units::counted;
use sinew_mem::Frozen;
use sinew_mem::atomic::plain::{Arc, AtomicU64, Ordering};
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, CoreShare, SimClock, SimQp};

use super::watcher::{Parts, Watcher};
use super::{profile, row};
use crate::experiment::{Comparison, Experiment, Row};
use crate::nics::cluster::NicCluster;

/// Experiment for Figure 2.
pub struct Fig2;

/// Bytes of a request.
const LEN: usize = 4096;
/// Time to handle a completion: an estimate.
const HANDLE_NS: u64 = 200;
/// Time from the end of a cluster to the beginning of the next: an estimate.
const GAP_NS: u64 = 1000;
const WARM_UP_NS: u64 = 200_000;
const MEASURED_NS: u64 = 5_000_000;
/// Cluster sizes that are tried, to find the smallest with which busy polling has the highest rate.
const CLUSTERS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
/// Share of the highest rate that counts as the highest: the last few percent take ever larger clusters.
pub const HIGHEST: f64 = 0.95;

/// Policies, each with the name in rows and the paper's name.
pub const POLICIES: [(&str, &str, PollPolicy); 5] = [
    ("busy", "Busy", PollPolicy::SPIN),
    ("event", "Event", PollPolicy::EVENT),
    ("event_batch", "EventBatch", PollPolicy::Event { batch: 16 }),
    ("hybrid", "Hybrid", PollPolicy::SLEEP),
    ("adaptive", "Adaptive", PollPolicy::RDMABOX),
];

/// A thread that posts clusters.
struct Issuer {
    qp: SimQp,
    remote: RemoteMemory,
    source: Frozen,
    cluster: u64,
    posted: u64,
    /// Requests that are complete.
    done: Arc<AtomicU64>,
    clock: SimClock,
    /// When the next cluster begins, if the last one is complete.
    next_ns: Option<u64>,
}

impl Actor for Issuer {
    fn turn(&mut self) -> ActorState {
        if self.done.load(Ordering::Relaxed) < self.posted {
            return ActorState::Idle;
        }
        let now_ns = self.clock.now_ns();
        let next_ns = *self.next_ns.get_or_insert(now_ns + GAP_NS);
        if now_ns < next_ns {
            return ActorState::IdleUntil(next_ns);
        }
        self.next_ns = None;
        for _ in 0..self.cluster {
            let operation =
                Operation::Write { source: Source::from(self.source.clone()), remote: self.remote, immediate: None };
            self.qp.post(Request::new(self.posted, operation)).expect("there is room");
            self.posted += 1;
        }
        ActorState::Idle
    }
}

/// Result of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyResult {
    /// Requests per second, in thousands.
    pub kiops: f64,
    /// Interrupts per request.
    pub interrupts: f64,
    /// Share of a core that was used, from 0 to 1.
    pub cpu: f64,
}

/// Runs clusters of `cluster` requests.
fn run(profile: &Profile, config: PollPolicy, cluster: usize) -> PolicyResult {
    let mut nics = NicCluster::new(profile, 2, 1);
    let clock = nics.clock();
    let [issuing, watching, lending] = [0, 0, 1].map(|host| nics.open(host));
    let domain = issuing.protection_domain().expect("a domain");
    let (watches, lends) = (watching.protection_domain().expect("a domain"), lending.protection_domain().expect("one"));
    let (thread, watcher, lender) =
        (domain.thread().expect("queues"), watches.thread().expect("queues"), lends.thread().expect("queues"));
    let cqs = SharedQueues::new(1, |_| watcher.completion_queue(2 * cluster + 4)).expect("a queue");
    let far_cq = lender.completion_queue(4).expect("a queue");
    let near_config = QpConfig { send_depth: 2 * cluster, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
    let far_config = QpConfig { send_depth: 1, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
    let cq = cqs.queue_for(0);
    let mut qp = thread.queue_pair(&near_config, cq, cq).expect("a queue pair");
    let mut far = lender.queue_pair(&far_config, &far_cq, &far_cq).expect("a queue pair");
    qp.connect(Some(&far.address())).expect("a connection");
    far.connect(Some(&qp.address())).expect("a connection");
    let memory = lends.expose(LEN, Access::ALL).expect("memory");
    let source = domain.arena(1 << 20).expect("an arena").alloc(LEN, LEN).expect("room").freeze();
    let done = Arc::new(AtomicU64::new(0));
    let issuer = Issuer {
        qp,
        remote: memory.remote(),
        source,
        cluster: cluster as u64,
        posted: 0,
        done: Arc::clone(&done),
        clock: clock.clone(),
        next_ns: Some(0),
    };
    let issuer = nics.add(&issuing, issuer);
    let waker = nics.cluster.waker(issuer);
    let counted = Rc::new(Cell::new(0u64));
    let (handled, now) = (Rc::clone(&counted), clock.clone());
    let parts = Parts {
        config,
        cqs,
        clock,
        core: profile.core,
        handle_ns: HANDLE_NS,
        shared: None,
        on_completion: Box::new(move |_| {
            handled.set(handled.get() + u64::from(now.now_ns() >= WARM_UP_NS));
            let done = Arc::clone(&done);
            waker.wake_with(Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            }));
        }),
    };
    let (watcher, stats) = Watcher::new(parts);
    let watcher = nics.add(&watching, watcher);
    nics.cluster.share_core(watcher, CoreShare { interrupt_ns: profile.core.interrupt_ns, competitor: None });
    let keep: Vec<Box<dyn Any>> = vec![Box::new((far, memory))];
    nics.cluster.run_until(WARM_UP_NS);
    let before = *stats.borrow();
    nics.cluster.run_until(WARM_UP_NS + MEASURED_NS);
    let after = *stats.borrow();
    drop(keep);
    let requests = counted.get() as f64;
    let interrupts = (after.blocks - before.blocks) as f64;
    PolicyResult {
        kiops: requests * 1e6 / MEASURED_NS as f64,
        interrupts: interrupts / requests.max(1.0),
        cpu: cpu(config, &after, &before, interrupts * profile.core.interrupt_ns as f64),
    }
}

/// Share of a core that polling and its interrupts took.
fn cpu(config: PollPolicy, after: &PollerStats, before: &PollerStats, interrupts_ns: f64) -> f64 {
    if config == PollPolicy::Busy {
        return 1.0;
    }
    ((after.cpu_ns() - before.cpu_ns()) as f64 + interrupts_ns) / MEASURED_NS as f64
}

/// Sizes of small, medium and large clusters: one request; the median; and the smallest with which busy polling has the
/// highest rate (III-B).
fn clusters(profile: &Profile) -> [(&'static str, usize); 3] {
    let rates = CLUSTERS.map(|cluster| run(profile, PollPolicy::SPIN, cluster).kiops);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let large = CLUSTERS.iter().zip(rates).find(|(_, rate)| *rate >= HIGHEST * highest).map_or(1, |(it, _)| *it);
    [("small", 1), ("medium", large.div_ceil(2)), ("large", large)]
}

impl Experiment for Fig2 {
    fn id(&self) -> &'static str {
        "rdmabox-fig2"
    }

    fn title(&self) -> &'static str {
        "Policies of polling, with clusters of requests"
    }

    fn source(&self) -> &'static str {
        "rdmabox III-B, Figure 2; IV-B, Algorithm 3"
    }

    fn setup(&self) -> &'static str {
        "Two hosts with a modelled ConnectX-3 each. A thread posts a cluster of WRITEs of 4 KB, one doorbell each, \
         waits until all have completed, and 1 us later posts the next. Another thread polls the completion queue with \
         the real poller, MAX_RETRY 120 and MAX_POLL_WC 16, and takes 0.2 us to handle each completion. Small clusters \
         are of one request, large ones are the smallest with which busy polling has 95 % of its highest rate, and \
         medium ones are the median, as in the paper. A turn that finds nothing takes 50 ns, and an interrupt 5 us, \
         both estimates."
    }

    fn remark(&self) -> &'static str {
        "The advantage of adaptive polling over naive hybrid polling with lone requests depends on 120 turns taking \
         longer than a round trip and the gap: 6 us here."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let profile = profile();
        let clusters = clusters(&profile);
        progress(0.4);
        let mut rows = Vec::new();
        let metric = "MAX_RETRY";
        let PollPolicy::Retry { retries_max, .. } = PollPolicy::RDMABOX else { return rows };
        rows.push(row(
            "box.max_retry",
            "IV-B",
            metric,
            Comparison::Calibrated,
            (120.0, f64::from(retries_max)),
            "polls",
        ));
        for (size, cluster) in clusters {
            let case = format!("{size}: {}", counted(cluster, "request"));
            for (id, name, config) in POLICIES {
                let found = run(&profile, config, cluster);
                let of = |what: &str, metric: &str, value: f64, unit| {
                    Row::model(format!("box.fig2.{what}.{size}.{id}"), format!("{name}: {metric}"), value, unit)
                        .case(&*case)
                };
                rows.extend([
                    of("rate", "requests", found.kiops, "K/s"),
                    of("interrupts", "interrupts for a request", found.interrupts, ""),
                    of("cpu", "of a core", found.cpu * 100.0, "%"),
                ]);
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_polling_is_as_good_as_busy_polling_and_interrupts_less_than_others() {
        let profile = profile();
        for (size, cluster) in clusters(&profile) {
            let [busy, event, batch, hybrid, adaptive] = POLICIES.map(|(_, _, config)| run(&profile, config, cluster));
            // "It shows best performance over other two similar approaches in all workload pattern" (III-B); and it is
            // as good as busy polling (IV-B).
            assert!(adaptive.kiops >= 0.95 * busy.kiops, "{size}: {} of {}", adaptive.kiops, busy.kiops);
            for (name, rival) in [("event", event), ("event batch", batch), ("hybrid", hybrid)] {
                assert!(
                    adaptive.kiops >= 0.999 * rival.kiops,
                    "{size}: {} of {name}'s {}",
                    adaptive.kiops,
                    rival.kiops
                );
                // "it shows the highest number of interrupts and context switching compared to others" (III-B), said of
                // Event Batch; the plain event mode is left out.
                assert!(
                    batch.interrupts >= 0.95 * hybrid.interrupts,
                    "{size}: {} {}",
                    batch.interrupts,
                    hybrid.interrupts
                );
            }
            // "there are unnecessary massive number of interrupts and context switching occurred in small and medium
            // cases" (III-B), said of Hybrid.
            if size != "large" {
                assert!(adaptive.interrupts < 0.5 * hybrid.interrupts, "{size}: {adaptive:?} {hybrid:?}");
            }
        }
    }
}
