//! Requests of one kind between modelled NICs, made and answered by the drivers that measure real NICs.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::verbs::Device;
use sinew_harness::load::Slice;
use sinew_harness::load::verbs::{LinkAddress, Requester, Responder, VerbsPlan, WorkKind};
use sinew_sim::nic::{NicStats, NicUse, Profile};
use sinew_sim::{Actor, ActorState, SimClock, SimVerbs};

use super::cluster::{Driver, NicCluster};

/// Numbers of threads that send requests and of threads that answer them, and of the hosts of each.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// Threads that send requests.
    pub requesters: usize,
    /// Hosts of the threads that send requests.
    pub requester_hosts: usize,
    /// Threads that answer requests, or whose memory is accessed.
    pub responders: usize,
    /// Hosts of the threads that answer.
    pub responder_hosts: usize,
    /// Whether each asks all of them; else each asks one, in turn.
    pub all_to_all: bool,
}

impl Threads {
    /// Threads on one host, each of which asks a thread of another host.
    pub fn outbound(threads: usize, hosts: usize) -> Self {
        Self { requesters: threads, requester_hosts: 1, responders: threads, responder_hosts: hosts, all_to_all: false }
    }

    /// Threads on many hosts, which ask threads on one.
    pub fn inbound(threads: usize, hosts: usize, responders: usize) -> Self {
        Self { requesters: threads, requester_hosts: hosts, responders, responder_hosts: 1, all_to_all: false }
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct VerbsResult {
    /// Requests per second that all requesting NICs sent, in millions.
    pub sent_mops: f64,
    /// Request packets per second that all responding NICs took, in millions.
    pub received_mops: f64,
    /// Messages per second that all responding NICs sent back, in millions.
    pub answered_mops: f64,
    /// Latencies, if they were timed.
    pub latency: Slice,
    /// NIC of the first requesting host, over the whole run.
    pub requester_nic: (NicStats, NicUse),
    /// NIC of the first responding host, over the whole run.
    pub responder_nic: (NicStats, NicUse),
    /// Counters of the first requesting host's NIC during the measurement.
    pub requester_delta: NicStats,
    /// Counters of the first responding host's NIC during the measurement.
    pub responder_delta: NicStats,
    /// Time that was measured.
    pub measured_ns: u64,
}

/// An actor that answers requests and lends memory.
struct ResponderActor {
    responder: Responder<SimVerbs>,
    clock: SimClock,
    poll_ns: u64,
    polls_memory: bool,
}

impl Actor for ResponderActor {
    fn turn(&mut self) -> ActorState {
        if self.polls_memory {
            self.clock.spend_ns(self.poll_ns);
        }
        let found = self.responder.turn().expect("requests succeed on modelled NICs");
        if found > 0 { ActorState::Work } else { ActorState::Idle }
    }
}

/// Time before the measurement.
pub const WARM_UP_NS: u64 = 60_000;

/// Runs a plan between NICs of one kind, measured for `measured_ns`.
pub fn run(profile: &Profile, plan: &VerbsPlan, threads: Threads, measured_ns: u64) -> VerbsResult {
    let mut nics = NicCluster::new(profile, threads.requester_hosts + threads.responder_hosts, 1);
    let clock = nics.clock();
    // Threads that an asking thread asks. Each is asked on as many links as there are queue pairs.
    let responders_of = |asker: usize| -> Vec<usize> {
        if threads.all_to_all { (0..threads.responders).collect() } else { vec![asker % threads.responders] }
    };
    let targets: Vec<Vec<usize>> = (0..threads.requesters)
        .map(|asker| responders_of(asker).into_iter().flat_map(|asked| vec![asked; plan.qps]).collect())
        .collect();
    let done = Rc::new(RefCell::new(Slice::new()));
    let mut requesters = Vec::new();
    for (asker, asked) in targets.iter().enumerate() {
        let device = nics.open(asker % threads.requester_hosts);
        let domain = device.protection_domain().expect("a domain");
        let times = plan.window == 1;
        let (requester, links) =
            Requester::new(&device, &domain, plan, asked.len(), times, clock.clone()).expect("the NIC can do it");
        requesters.push((device, requester, links));
    }
    let mut addresses: Vec<Vec<LinkAddress>> = vec![Vec::new(); threads.requesters];
    for thread in 0..threads.responders {
        let device = nics.open(threads.requester_hosts + thread % threads.responder_hosts);
        let domain = device.protection_domain().expect("a domain");
        // Links in the order of the asking threads.
        let incoming: Vec<(usize, usize)> = targets
            .iter()
            .enumerate()
            .flat_map(|(asker, asked)| {
                let to_thread = asked.iter().enumerate().filter(move |(_, asked)| **asked == thread);
                to_thread.map(move |(link, _)| (asker, link))
            })
            .collect();
        let (mut responder, ours) = Responder::new(&device, &domain, plan, incoming.len()).expect("the NIC can do it");
        let theirs: Vec<LinkAddress> =
            incoming.iter().map(|(asker, link)| requesters[*asker].2[*link].clone()).collect();
        responder.connect(&theirs).expect("a connection");
        for ((asker, _), address) in incoming.iter().zip(ours) {
            addresses[*asker].push(address);
        }
        let polls_memory = matches!(plan.work, WorkKind::Echo(_)) && !plan.takes_receives();
        let look_ns = profile.core.look_ns;
        nics.add(&device, ResponderActor { responder, clock: clock.clone(), poll_ns: look_ns, polls_memory });
    }
    for ((device, mut requester, _), addresses) in requesters.into_iter().zip(addresses) {
        requester.connect(&addresses).expect("a connection");
        let done = Rc::clone(&done);
        // Latencies are reported at the end of a slice.
        let slice_ns = if plan.window == 1 { measured_ns / 2 } else { u64::MAX / 4 };
        let driver = Driver::new(requester, clock.clone(), slice_ns, move |slice| done.borrow_mut().add(&slice));
        nics.add(&device, driver);
    }
    nics.cluster.run_until(WARM_UP_NS);
    let hosts = |from: usize, count: usize, nics: &NicCluster| -> Vec<NicStats> {
        (from..from + count).map(|host| nics.nic(host).0).collect()
    };
    let before =
        (hosts(0, threads.requester_hosts, &nics), hosts(threads.requester_hosts, threads.responder_hosts, &nics));
    nics.cluster.run_until(WARM_UP_NS + measured_ns);
    let after =
        (hosts(0, threads.requester_hosts, &nics), hosts(threads.requester_hosts, threads.responder_hosts, &nics));
    let mops = |count: u64| count as f64 * 1e3 / measured_ns as f64;
    let sum = |of: fn(&NicStats) -> u64, side: &[NicStats]| side.iter().map(of).sum::<u64>();
    let sent = |side: &[NicStats]| sum(|stats| stats.requests, side);
    let received = |side: &[NicStats]| sum(|stats| stats.requests_received, side);
    let latency = done.borrow().clone();
    VerbsResult {
        sent_mops: mops(sent(&after.0) - sent(&before.0)),
        received_mops: mops(received(&after.1) - received(&before.1)),
        answered_mops: mops(sent(&after.1) - sent(&before.1)),
        latency,
        requester_nic: nics.nic(0),
        responder_nic: nics.nic(threads.requester_hosts),
        requester_delta: after.0[0].since(&before.0[0]),
        responder_delta: after.1[0].since(&before.1[0]),
        measured_ns,
    }
}
