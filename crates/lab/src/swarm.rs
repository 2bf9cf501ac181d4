//! The hunt for protocol bugs: clusters, workloads, limits and faults drawn from a seed, and facts that hold whatever was drawn.
//!
//! Every host is a server and calls others. While faults last, links lose, duplicate and reorder packets or are down, hosts
//! do not reach others, one way or both, hosts stand still, crash, and come back without memory. Then all is well again, and:
//!
//! - no call was run twice, and none that its client was told not to have run was run at all;
//! - each call completes once, on its lane, with what the handler answered or an error;
//! - of a lane that was closed, nothing completes any more;
//! - a call that its handler keeps is abandoned only when its client does not wait or is gone, and then for certain: when its session has ended,
//!   its deadline has passed, or its client has said that it does not wait, and no packet was lost since;
//! - every call completes, sessions can be opened, and calls succeed again;
//! - rates that congestion control cut come back, wherever round trips without queues are short enough for it;
//! - sessions have all their credits when no call is left;
//! - once all sessions are closed nothing of them is left: no session, no committed receive capacity, no packet on its way, no buffer.
//!
//! [`run`] is one of them, the same every time for a seed.

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

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use sinew_fabric::{Generator, SeededGenerator};
use sinew_sim::{ActorId, Cluster, HostId, LinkFaults, LinkId, Network, SimWorkers, WorkersConfig};

use ledger::Shared;
use member::{Member, Orders};
use recovery::Recovery;
use scenario::{Fault, Scenario};

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hosts.
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
    /// Calls that handlers kept, or gave to workers.
    pub kept: u64,
    /// Those of them that the program saw nobody wait for any more.
    pub abandoned: u64,
    /// Calls under way of which nobody was to hear any more: their lanes were closed, or whoever had handed them over let them go.
    pub silenced: u64,
    /// Depends on every packet: equal for equal seeds.
    pub trace_hash: u64,
}

/// A fact that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed that shows it.
    pub seed: u64,
    /// When, in virtual nanoseconds.
    pub time_ns: u64,
    /// What.
    pub what: String,
    /// What was drawn.
    pub scenario: String,
}

impl Failure {
    /// The command that shows it again.
    pub fn again(&self) -> String {
        format!("sinew sim replay {}", self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, time_ns, what, scenario } = self;
        write!(f, "seed {seed}, at {} us: {what}\n{scenario}again: {}", time_ns / 1000, self.again())
    }
}

impl std::error::Error for Failure {}

/// How long calls may take once nothing goes wrong any more: peers that count as dead must be found so, and sessions opened again.
const PATIENCE_NS: u64 = 5_000_000_000;
/// How long it takes until all know of each other again.
const SETTLING_NS: u64 = 1_500_000_000;
/// Until nothing is on its way any more.
const EMPTYING_NS: u64 = 1_000_000_000;
/// How often it says how much is done.
const STEP_NS: u64 = 1_000_000;

/// One cluster, from its seed.
///
/// # Errors
///
/// The [`Failure`], when a fact does not hold.
pub fn run(seed: u64) -> Result<Report, Failure> {
    run_showing(seed, &mut |_| ())
}

/// As [`run`]. `progress` hears about how much is done, from 0 to 1.
///
/// # Errors
///
/// As [`run`].
pub fn run_showing(seed: u64, progress: &mut dyn FnMut(f64)) -> Result<Report, Failure> {
    let scenario = Scenario::draw(seed);
    let mut swarm = Swarm::new(&scenario, progress);
    let result = swarm.live();
    let time_ns = swarm.cluster.network().now_ns();
    result.map_err(|what| Failure { seed, time_ns, what, scenario: scenario.to_string() })
}

/// A host's program.
struct Place {
    actor: ActorId,
    orders: Rc<RefCell<Orders>>,
    workers: Option<SimWorkers>,
}

struct Swarm<'a> {
    scenario: &'a Scenario,
    cluster: Cluster,
    ledger: Shared,
    members: Vec<Place>,
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
    fn open(&mut self, host: usize) -> Place {
        let name = scenario::name(host);
        let port = self.cluster.network().open(HostId(host), &name, self.scenario.port).expect("the name is free");
        let (place, orders) = (port.place(), Rc::<RefCell<Orders>>::default());
        let config = WorkersConfig { workers: self.scenario.workers, capacity: 1 << 20, job_ns: 500 };
        let workers = (self.scenario.kept > 0.0).then(|| self.cluster.workers(&name, config));
        let (seed, ledger) = (self.generator.next_u64(), self.ledger.clone());
        let member = Member::new(self.scenario, host, port, workers.as_ref(), seed, ledger, Rc::clone(&orders));
        Place { actor: self.cluster.add(&name, [place], Box::new(member)), orders, workers }
    }

    /// When all faults are healed.
    fn healed_ns(&self) -> u64 {
        self.scenario.faults.last().map_or(0, |(time_ns, _)| *time_ns) + self.scenario.calm_ns
    }

    /// Lets time pass.
    fn pass_until(&mut self, end_ns: u64) {
        // What calls need beside this is short, as a rule.
        let all_ns = (self.healed_ns() + SETTLING_NS + EMPTYING_NS) as f64;
        loop {
            let now_ns = end_ns.min(self.cluster.network().now_ns() + STEP_NS);
            self.cluster.run_until(now_ns);
            (self.progress)((now_ns as f64 / all_ns).min(1.0));
            if now_ns >= end_ns {
                return;
            }
        }
    }

    fn live(&mut self) -> Result<Report, String> {
        for (time_ns, fault) in &self.scenario.faults {
            self.pass_until(*time_ns);
            self.check()?;
            self.happen(fault);
        }
        self.pass_until(self.healed_ns());
        self.heal();
        for Place { orders, .. } in &self.members {
            orders.borrow_mut().begins_no_more = true;
        }
        self.wait_for("calls that do not complete", |swarm| swarm.ledger.lock().outstanding() == 0)?;
        // Until whoever is gone counts as dead, and sessions with those who came back are open.
        self.pass_until(self.cluster.network().now_ns() + SETTLING_NS);
        // All is well: what is asked now is answered.
        self.ledger.lock().must_succeed = true;
        for Place { orders, .. } in &self.members {
            orders.borrow_mut().last_calls = self.scenario.last_calls;
        }
        self.wait_for("calls after the faults that do not complete", |swarm| {
            swarm.members.iter().all(|Place { orders, .. }| orders.borrow().last_calls == 0)
                && swarm.ledger.lock().outstanding() == 0
        })?;
        if let Some(recovery) = Recovery::of(self.scenario) {
            // What still waits in queues may yet cut a rate.
            self.pass_until(self.cluster.network().now_ns() + EMPTYING_NS / 10);
            for Place { orders, .. } in &self.members {
                orders.borrow_mut().recovery = Some(recovery);
            }
            self.wait_for("rates that do not recover", |swarm| {
                swarm.members.iter().all(|Place { orders, .. }| orders.borrow().has_recovered)
            })?;
        }
        for Place { orders, .. } in &self.members {
            orders.borrow_mut().closes = true;
        }
        self.wait_for("sessions that are still there", |swarm| {
            swarm.members.iter().all(|Place { orders, .. }| orders.borrow().is_empty())
        })?;
        for Place { orders, .. } in &self.members {
            orders.borrow_mut().ends = true;
        }
        self.wait_for("hosts that do not end", |swarm| {
            swarm.members.iter().all(|Place { orders, .. }| orders.borrow().has_ended)
        })?;
        self.pass_until(self.cluster.network().now_ns() + EMPTYING_NS);
        self.check()?;
        let network = self.cluster.network();
        if network.in_flight() > 0 {
            return Err(format!("{} packets are on their way to nobody", network.in_flight()));
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

    /// What went wrong so far.
    fn check(&self) -> Result<(), String> {
        self.ledger.lock().wrong.take().map_or(Ok(()), Err)
    }

    fn wait_for(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end_ns = self.cluster.network().now_ns() + PATIENCE_NS;
        loop {
            self.check()?;
            if done(self) {
                return Ok(());
            }
            let now_ns = self.cluster.network().now_ns();
            if now_ns >= end_ns {
                return Err(format!("{what}: {}", self.ledger.lock().left(&self.members_left())));
            }
            self.pass_until(now_ns + STEP_NS);
        }
    }

    fn members_left(&self) -> String {
        let left = |(host, place): (usize, &Place)| {
            let orders = place.orders.borrow();
            (!orders.is_empty()).then(|| format!("{} {}", scenario::name(host), orders.left()))
        };
        self.members.iter().enumerate().filter_map(left).collect::<Vec<_>>().join("; ")
    }

    fn happen(&mut self, fault: &Fault) {
        let network = self.cluster.network().clone();
        match *fault {
            Fault::Link { link, direction, faults } => network.set_faults(LinkId(link), direction, faults),
            Fault::Down { link, direction, is_down } => network.set_link_up(LinkId(link), direction, !is_down),
            Fault::Cut { from, to, both_ways, is_cut } => {
                network.set_cut(HostId(from), HostId(to), is_cut);
                if both_ways {
                    network.set_cut(HostId(to), HostId(from), is_cut);
                }
            }
            Fault::Pause { host, ns } => {
                let end_ns = network.now_ns() + ns;
                self.cluster.pause(self.members[host].actor, end_ns);
                self.members[host].workers.iter().for_each(|workers| workers.pause(end_ns));
            }
            Fault::Crash { host } => {
                self.crashes += 1;
                self.members[host].workers.iter().for_each(SimWorkers::crash);
                self.cluster.crash(self.members[host].actor);
                self.ledger.lock().crashed(host);
                self.members[host] = self.open(host);
            }
        }
    }

    /// No fault lasts.
    fn heal(&mut self) {
        let network = self.cluster.network();
        network.set_all_faults(LinkFaults::default());
        for link in 0..self.scenario.topology.links.len() {
            (0..2).for_each(|direction| network.set_link_up(LinkId(link), direction, true));
        }
        for from in 0..self.scenario.hosts() {
            (0..self.scenario.hosts()).for_each(|to| network.set_cut(HostId(from), HostId(to), false));
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
    fn a_seed_is_the_same_run_again() {
        for seed in [3, 11] {
            assert_eq!(run(seed), run(seed));
        }
    }
}
