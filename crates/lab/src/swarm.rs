//! The hunt for protocol bugs: clusters, workloads, limits and faults are drawn from a seed, and facts hold whatever
//! was drawn.
//!
//! Every host is a server and also calls others. While faults last, links lose, duplicate and reorder packets or are
//! down, hosts cannot reach others, one way or both, and hosts stand still, or crash and come back without memory. Then
//! all faults end, and:
//!
//! - no call was run twice, and none was run whose client was told that it did not run;
//! - each call completes once, on its lane, with the handler's answer or with an error;
//! - nothing completes any more on a lane that was closed;
//! - a call that its handler keeps is abandoned only if its client no longer waits or is gone. It is certain to be
//!   abandoned once its session has ended, its deadline has passed, or its client has said that it no longer waits,
//!   provided that no packet was lost since;
//! - every call completes, sessions can be opened, and calls succeed again;
//! - rates that congestion control cut recover, wherever round trips without queues are short enough for it;
//! - sessions have all their credits when no call is left;
//! - once all sessions are closed nothing of them is left: no session, no committed receive capacity, no packet in
//!   flight, no buffer.
//!
//! One seed in eight draws a replicated store instead, whose clients' answers have to be linearizable.
//!
//! [`run`] runs one cluster, which is the same every time for a seed.

mod handlers;
#[cfg(test)]
mod kept;
mod lanes;
mod ledger;
mod member;
mod memory;
mod messages;
mod recovery;
mod scenario;
mod shelf;
mod store;

use std::cell::RefCell;
use std::fmt;
use std::panic::{UnwindSafe, catch_unwind};
use std::rc::Rc;

use sinew_fabric::{Generator, SeededGenerator};
use sinew_harness::units::counted;
use sinew_sim::{ActorId, Cluster, HostId, LinkFaults, LinkId, Network, SimWorkers, WorkersConfig};

use ledger::Shared;
use member::{Member, Orders};
use recovery::Recovery;
use scenario::{Fault, Scenario};
use store::{StoreRun, StoreScenario};

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of hosts.
    pub hosts: usize,
    /// Calls that completed with an answer.
    pub answered: u64,
    /// Calls that completed with an error.
    pub failed: u64,
    /// Packets that arrived.
    pub delivered: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Hosts that crashed.
    pub crashes: u64,
    /// Calls that handlers kept for the program or gave to workers.
    pub kept: u64,
    /// Kept calls for which the program saw that their clients no longer wait.
    pub abandoned: u64,
    /// Calls in flight whose completion must not be reported: their lanes were closed, or the caller that had handed
    /// them over dropped them.
    pub silenced: u64,
    /// Hash over every packet: equal for equal seeds.
    pub trace_hash: u64,
}

/// A fact that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Seed that shows it.
    pub seed: u64,
    /// Virtual time of the failure, in ns.
    pub time_ns: u64,
    /// Description of what went wrong.
    pub what: String,
    /// Description of what was drawn.
    pub scenario: String,
}

impl Failure {
    /// The command that reproduces it.
    pub fn replay_command(&self) -> String {
        format!("sinew sim replay {}", self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, time_ns, what, scenario } = self;
        write!(f, "seed {seed}, at {} us: {what}\n{scenario}again: {}", time_ns / 1000, self.replay_command())
    }
}

impl std::error::Error for Failure {}

/// Longest time that calls may take once all faults have ended: peers that count as dead have to be found so, and
/// sessions opened again.
const COMPLETION_TIME_MAX_NS: u64 = 5_000_000_000;
/// Time that hosts need to know of each other again.
const SETTLING_NS: u64 = 1_500_000_000;
/// Time until nothing is in flight any more.
const DRAIN_NS: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Time between two reports of progress.
const STEP_NS: u64 = MS;
/// A replicated store is drawn for one seed in this many.
const STORES: u64 = 8;

/// Runs one cluster, drawn from its seed.
///
/// # Errors
///
/// A [`Failure`], when a fact does not hold.
pub fn run(seed: u64) -> Result<Report, Failure> {
    failing(seed, || run_showing(seed, &mut |_| ()))
}

/// Runs a seed's cluster. A run that panics has failed: its seed is one that was looked for.
fn failing(seed: u64, run: impl FnOnce() -> Result<Report, Failure> + UnwindSafe) -> Result<Report, Failure> {
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
        let what = format!("it panicked, at an unknown time: {}", text.unwrap_or("without a text"));
        Err(Failure { seed, time_ns: 0, what, scenario: String::new() })
    })
}

/// Same as [`run`]; `progress` is called with about the part that is done, from 0 to 1.
///
/// # Errors
///
/// Same as [`run`].
pub fn run_showing(seed: u64, progress: &mut dyn FnMut(f64)) -> Result<Report, Failure> {
    let (result, time_ns, scenario) = if seed % STORES == STORES - 1 {
        let scenario = StoreScenario::draw(seed);
        let mut store = StoreRun::new(&scenario, progress);
        (store.run(), store.cluster.network().now_ns(), scenario.to_string())
    } else {
        let scenario = Scenario::draw(seed);
        let mut swarm = Swarm::new(&scenario, progress);
        (swarm.run(), swarm.cluster.network().now_ns(), scenario.to_string())
    };
    result.map_err(|what| Failure { seed, time_ns, what, scenario })
}

/// Applies a fault of links or of what hosts hear.
fn apply_network_fault(network: &Network, fault: &Fault) {
    match *fault {
        Fault::Link { link, direction, faults } => network.set_faults(LinkId(link), direction, faults),
        Fault::Down { link, direction, is_down } => network.set_link_up(LinkId(link), direction, !is_down),
        Fault::Cut { from, to, both_ways, is_cut } => {
            network.set_cut(HostId(from), HostId(to), is_cut);
            if both_ways {
                network.set_cut(HostId(to), HostId(from), is_cut);
            }
        }
        Fault::Pause { .. } | Fault::Crash { .. } => {}
    }
}

/// Ends all faults of the network.
fn heal(network: &Network) {
    let topology = network.topology();
    network.set_all_faults(LinkFaults::default());
    for link in 0..topology.links.len() {
        (0..2).for_each(|direction| network.set_link_up(LinkId(link), direction, true));
    }
    for from in 0..topology.hosts.len() {
        (0..topology.hosts.len()).for_each(|to| network.set_cut(HostId(from), HostId(to), false));
    }
}

/// A host and its program.
struct MemberHandle {
    actor: ActorId,
    orders: Rc<RefCell<Orders>>,
    workers: Option<SimWorkers>,
}

struct Swarm<'a> {
    scenario: &'a Scenario,
    cluster: Cluster,
    ledger: Shared,
    members: Vec<MemberHandle>,
    generator: SeededGenerator,
    crashes: u64,
    progress: &'a mut dyn FnMut(f64),
}

impl<'a> Swarm<'a> {
    fn new(scenario: &'a Scenario, progress: &'a mut dyn FnMut(f64)) -> Self {
        let network = Network::new(scenario.topology.clone(), scenario.seed).expect("scenarios are drawn with sense");
        let mut swarm = Self {
            scenario,
            cluster: Cluster::new(&network),
            ledger: Shared::default(),
            members: Vec::new(),
            generator: SeededGenerator::new(!scenario.seed),
            crashes: 0,
            progress,
        };
        for host in 0..scenario.hosts() {
            let member = swarm.open(host);
            swarm.members.push(member);
        }
        swarm
    }

    /// Starts a host's program.
    fn open(&mut self, host: usize) -> MemberHandle {
        let name = scenario::name(host);
        let port = self.cluster.network().open(HostId(host), &name, self.scenario.port).expect("the name is free");
        let (place, orders) = (port.place(), Rc::<RefCell<Orders>>::default());
        let config = WorkersConfig { workers: self.scenario.workers, capacity: 1 << 20, job_ns: 500 };
        let workers = (self.scenario.kept_share > 0.0).then(|| self.cluster.workers(&name, config));
        let (seed, ledger) = (self.generator.next_u64(), self.ledger.clone());
        let member = Member::new(self.scenario, host, port, workers.as_ref(), seed, ledger, Rc::clone(&orders));
        MemberHandle { actor: self.cluster.add(&name, [place], Box::new(member)), orders, workers }
    }

    /// Time at which all faults are healed.
    fn healed_ns(&self) -> u64 {
        self.scenario.faults.last().map_or(0, |(time_ns, _)| *time_ns) + self.scenario.calm_ns
    }

    /// Lets time pass, and reports progress.
    fn pass_until(&mut self, end_ns: u64) {
        // Calls usually need little time beyond this.
        let expected_end_ns = (self.healed_ns() + SETTLING_NS + DRAIN_NS) as f64;
        loop {
            let now_ns = end_ns.min(self.cluster.network().now_ns() + STEP_NS);
            self.cluster.run_until(now_ns);
            (self.progress)((now_ns as f64 / expected_end_ns).min(1.0));
            if now_ns >= end_ns {
                return;
            }
        }
    }

    fn run(&mut self) -> Result<Report, String> {
        for (time_ns, fault) in &self.scenario.faults {
            self.pass_until(*time_ns);
            self.check()?;
            self.apply_fault(fault);
        }
        self.pass_until(self.healed_ns());
        heal(self.cluster.network());
        for MemberHandle { orders, .. } in &self.members {
            orders.borrow_mut().stops_calls = true;
        }
        self.wait_for("calls that do not complete", |swarm| swarm.ledger.lock().outstanding() == 0)?;
        // By the end of this time, hosts that are gone count as dead, and sessions with those that came back are open.
        self.pass_until(self.cluster.network().now_ns() + SETTLING_NS);
        // All faults have ended, so calls that are made now must be answered.
        self.ledger.lock().must_succeed = true;
        for MemberHandle { orders, .. } in &self.members {
            orders.borrow_mut().last_calls = self.scenario.last_calls;
        }
        self.wait_for("calls after the faults that do not complete", |swarm| {
            swarm.members.iter().all(|MemberHandle { orders, .. }| orders.borrow().last_calls == 0)
                && swarm.ledger.lock().outstanding() == 0
        })?;
        if let Some(recovery) = Recovery::of(self.scenario) {
            // Packets that still wait in queues may yet cut a rate.
            self.pass_until(self.cluster.network().now_ns() + DRAIN_NS / 10);
            for MemberHandle { orders, .. } in &self.members {
                orders.borrow_mut().recovery = Some(recovery);
            }
            self.wait_for("rates that do not recover", |swarm| {
                swarm.members.iter().all(|MemberHandle { orders, .. }| orders.borrow().has_recovered)
            })?;
        }
        for MemberHandle { orders, .. } in &self.members {
            orders.borrow_mut().closes = true;
        }
        self.wait_for("sessions that are still there", |swarm| {
            swarm.members.iter().all(|MemberHandle { orders, .. }| orders.borrow().is_drained())
        })?;
        for MemberHandle { orders, .. } in &self.members {
            orders.borrow_mut().ends = true;
        }
        self.wait_for("hosts that do not end", |swarm| {
            swarm.members.iter().all(|MemberHandle { orders, .. }| orders.borrow().has_ended)
        })?;
        self.pass_until(self.cluster.network().now_ns() + DRAIN_NS);
        self.check()?;
        let network = self.cluster.network();
        if network.in_flight() > 0 {
            return Err(format!("{} still in flight to nobody", counted(network.in_flight(), "packet")));
        }
        let (ledger, stats) = (self.ledger.lock(), network.stats());
        Ok(Report {
            hosts: self.scenario.hosts(),
            answered: ledger.answered,
            failed: ledger.failed,
            delivered: stats.delivered,
            lost: stats.lost,
            crashes: self.crashes,
            kept: ledger.kept,
            abandoned: ledger.abandoned,
            silenced: ledger.silenced,
            trace_hash: network.trace_hash(),
        })
    }

    /// Fails if anything has gone wrong so far.
    fn check(&self) -> Result<(), String> {
        self.ledger.lock().wrong.take().map_or(Ok(()), Err)
    }

    fn wait_for(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end_ns = self.cluster.network().now_ns() + COMPLETION_TIME_MAX_NS;
        loop {
            self.check()?;
            if done(self) {
                return Ok(());
            }
            let now_ns = self.cluster.network().now_ns();
            if now_ns >= end_ns {
                return Err(format!("{what}: {}", self.ledger.lock().describe_left(&self.describe_members())));
            }
            self.pass_until(now_ns + STEP_NS);
        }
    }

    fn describe_members(&self) -> String {
        let left = |(host, place): (usize, &MemberHandle)| {
            let orders = place.orders.borrow();
            (!orders.is_drained()).then(|| format!("{} {}", scenario::name(host), orders.describe_left()))
        };
        self.members.iter().enumerate().filter_map(left).collect::<Vec<_>>().join("; ")
    }

    fn apply_fault(&mut self, fault: &Fault) {
        match *fault {
            Fault::Pause { host, ns } => {
                let end_ns = self.cluster.network().now_ns() + ns;
                self.cluster.pause(self.members[host].actor, end_ns);
                self.members[host].workers.iter().for_each(|workers| workers.pause(end_ns));
            }
            Fault::Crash { host } => {
                self.crashes += 1;
                self.members[host].workers.iter().for_each(SimWorkers::crash);
                self.cluster.crash(self.members[host].actor);
                self.ledger.lock().forget_client(host);
                self.members[host] = self.open(host);
            }
            _ => apply_network_fault(self.cluster.network(), fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_drawn_the_facts_hold() {
        let mut all = Report::default();
        for seed in 0..40 {
            let report = run(seed).unwrap_or_else(|failure| panic!("{failure}"));
            all.answered += report.answered;
            all.failed += report.failed;
            all.lost += report.lost;
            all.crashes += report.crashes;
            all.kept += report.kept;
            all.abandoned += report.abandoned;
            all.silenced += report.silenced;
        }
        assert!(all.kept > 1_000 && all.abandoned > 20 && all.silenced > 20, "{all:?}");
        assert!(all.answered > 1_000 && all.failed > 20 && all.lost > 100 && all.crashes > 3, "{all:?}");
    }

    #[test]
    fn a_run_that_panics_is_a_failure_with_its_seed() {
        let failure = failing(7, || panic!("disk {} is gone", 3)).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("seed 7") && text.contains("disk 3 is gone") && text.ends_with("sim replay 7"), "{text}");
    }

    #[test]
    fn a_seed_is_the_same_run_again() {
        for seed in [3, 11] {
            assert_eq!(run(seed), run(seed));
        }
    }
}
