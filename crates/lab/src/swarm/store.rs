//! Replicated stores in the swarm: three members with disks and three clients, amid faults drawn as for other clusters.
//!
//! Whatever befalls them:
//!
//! - no term has two leaders;
//! - the answers to all clients are linearizable, each change was made by one request, and none by a request whose
//!   client was told that it did not run;
//! - once all faults have ended, requests are answered, and all members come to have the same state.
//!
//! Faults of disks beyond a crash, drifting clocks, changes of the members and snapshots are drawn by the tests of
//! `sinew-replica` (`cargo xtask swarm --replica`).

mod client;
mod order;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sinew_fabric::{Clock, Generator, SeededGenerator};
use sinew_replica::client::Client;
use sinew_replica::disk::SimDisk;
use sinew_replica::host::Host;
use sinew_replica::kv::{KvStore, Query, QueryResult};
use sinew_replica::machine::StateMachine;
use sinew_replica::member::{Member, MemberConfig};
use sinew_replica::wire::{self, MemberId};
use sinew_rpc::{Config, Nexus};
use sinew_sim::{Actor, ActorId, ActorState, Cluster, HostId, Network, PortConfig, SimClock, Topology};

use super::scenario::{self, Fault};
use super::{MS, Report, STEP_NS, apply_network_fault, heal};
use crate::programs::{self, Endpoint, wait};
use client::{Asker, Log, WELL_NS};
use order::Change;

const MEMBERS: usize = 3;
const CLIENTS: usize = 3;
/// Time after the last fault in which clients go on.
const CALM_NS: u64 = 20 * MS;
/// Requests, by all clients together, once all is well.
const LAST_REQUESTS: u64 = 20;

type Kv = Host<Endpoint, KvStore, SimDisk>;

/// The leader of each term.
type Leaders = Rc<RefCell<BTreeMap<u64, MemberId>>>;

struct Server {
    host: Rc<RefCell<Kv>>,
    leaders: Leaders,
    log: Rc<RefCell<Log>>,
}

impl Server {
    fn fail(&self, wrong: String) -> ActorState {
        self.log.borrow_mut().wrong.get_or_insert(wrong);
        ActorState::Done
    }
}

impl Actor for Server {
    fn turn(&mut self) -> ActorState {
        let mut host = self.host.borrow_mut();
        let busy = match host.turn() {
            Ok(busy) => busy,
            Err(error) => return self.fail(format!("{}: {error}", host.member().me().name)),
        };
        let (term, me) = (host.member().term(), host.member().me().id);
        if host.member().is_leader() && *self.leaders.borrow_mut().entry(term).or_insert(me) != me {
            return self.fail(format!("two members lead in term {term}"));
        }
        let next_ns = host.member().next_turn_ns();
        wait(busy, host.rpc(), Some(next_ns))
    }
}

/// Everything that is drawn from a seed, other than what clients ask.
#[derive(Clone, Debug)]
pub struct StoreScenario {
    seed: u64,
    topology: Topology,
    config: Config,
    faults: Vec<(u64, Fault)>,
}

impl std::fmt::Display for StoreScenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "a replicated store: hosts 0 to {} have members, the others clients", MEMBERS - 1)?;
        self.faults.iter().try_for_each(|(time_ns, fault)| writeln!(f, "at {} us: {fault:?}", time_ns / 1000))
    }
}

impl StoreScenario {
    pub fn draw(seed: u64) -> Self {
        let mut generator = SeededGenerator::new(seed);
        let topology = Topology::star(MEMBERS + CLIENTS, 25.0, 200, 1500);
        let config = Config {
            peer_timeout_ns: 300 * MS,
            probe_interval_ns: 50 * MS,
            connect_timeout_ns: 100 * MS,
            ..Config::default()
        };
        let faults = scenario::draw_faults(&mut generator, &topology, &config);
        Self { seed, topology, config, faults }
    }
}

/// A run of a scenario.
pub struct StoreRun<'a> {
    scenario: &'a StoreScenario,
    pub cluster: Cluster,
    nexus: Nexus,
    generator: SeededGenerator,
    disks: Vec<SimDisk>,
    members: Vec<Rc<RefCell<Kv>>>,
    actors: Vec<ActorId>,
    leaders: Leaders,
    log: Rc<RefCell<Log>>,
    crashes: u64,
    progress: &'a mut dyn FnMut(f64),
}

fn address(host: usize) -> String {
    format!("sim://{}", scenario::name(host))
}

impl<'a> StoreRun<'a> {
    pub fn new(scenario: &'a StoreScenario, progress: &'a mut dyn FnMut(f64)) -> Self {
        let network = Network::new(scenario.topology.clone(), scenario.seed).expect("a star is a topology");
        let mut run = Self {
            scenario,
            cluster: Cluster::new(&network),
            nexus: Nexus::builder().config(scenario.config.clone()).build().expect("the limits make sense"),
            generator: SeededGenerator::new(!scenario.seed),
            disks: (0..MEMBERS).map(|_| SimDisk::new()).collect(),
            members: Vec::new(),
            actors: Vec::new(),
            leaders: Leaders::default(),
            log: Rc::default(),
            crashes: 0,
            progress,
        };
        for host in 0..MEMBERS + CLIENTS {
            let actor = run.open(host);
            run.actors.push(actor);
        }
        run
    }

    fn random(&mut self) -> SeededGenerator {
        SeededGenerator::new(self.generator.next_u64())
    }

    /// Starts a host's program.
    fn open(&mut self, host: usize) -> ActorId {
        let (network, name) = (self.cluster.network().clone(), scenario::name(host));
        let port = PortConfig { arena_bytes: 64 << 20, ..PortConfig::default() };
        let rpc = programs::open(&network, &self.nexus, HostId(host), &name, port).expect("the name is free");
        let (place, clock, log) = (rpc.port().place(), network.clock(), Rc::clone(&self.log));
        let actor: Box<dyn Actor> = match host < MEMBERS {
            true => {
                let member = self.open_member(host, rpc, &clock);
                match self.members.get_mut(host) {
                    Some(before) => *before = Rc::clone(&member),
                    None => self.members.push(Rc::clone(&member)),
                }
                Box::new(Server { host: member, leaders: Rc::clone(&self.leaders), log })
            }
            false => {
                let client = Client::new(rpc, (0..MEMBERS).map(address).collect(), Box::new(self.random()));
                let (number, random) = (host as u64, self.random());
                Box::new(Asker { client, number, clock, random, log, pending: None, begin_ns: 0 })
            }
        };
        self.cluster.add(&name, [place], actor)
    }

    fn open_member(&mut self, host: usize, rpc: Endpoint, clock: &SimClock) -> Rc<RefCell<Kv>> {
        let peers = (0..MEMBERS).map(|host| (scenario::name(host), address(host))).collect();
        let (disk, random) = (self.disks[host].clone(), Box::new(self.random()));
        let (config, now_ns) = (MemberConfig::default(), clock.now_ns());
        let opened = Member::open(config, &scenario::name(host), peers, KvStore::new(), Some(disk), random, now_ns);
        let member = opened.expect("what survives a crash of the disk is enough");
        Rc::new(RefCell::new(Host::new(rpc, member).expect("it is its endpoint's first")))
    }

    fn apply_fault(&mut self, fault: &Fault) {
        match *fault {
            Fault::Pause { host, ns } => {
                let end_ns = self.cluster.network().now_ns() + ns;
                self.cluster.pause(self.actors[host], end_ns);
            }
            Fault::Crash { host } => {
                self.crashes += 1;
                self.cluster.crash(self.actors[host]);
                if let Some(disk) = self.disks.get(host) {
                    disk.crash(self.generator.next_u64());
                }
                self.actors[host] = self.open(host);
            }
            _ => apply_network_fault(self.cluster.network(), fault),
        }
    }

    fn check(&self) -> Result<(), String> {
        self.log.borrow_mut().wrong.take().map_or(Ok(()), Err)
    }

    fn pass_until(&mut self, end_ns: u64) -> Result<(), String> {
        let expected_end_ns = (self.scenario.faults.last().map_or(0, |(time_ns, _)| *time_ns) + 1000 * MS) as f64;
        while self.cluster.network().now_ns() < end_ns {
            let now_ns = end_ns.min(self.cluster.network().now_ns() + STEP_NS);
            self.cluster.run_until(now_ns);
            (self.progress)((now_ns as f64 / expected_end_ns).min(1.0));
            self.check()?;
        }
        Ok(())
    }

    fn wait_for(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end_ns = self.cluster.network().now_ns() + 2 * WELL_NS;
        while !done(self) {
            let now_ns = self.cluster.network().now_ns();
            if now_ns >= end_ns {
                let members = self.members.iter().map(|host| format!("{:?}", host.borrow().member().status(now_ns)));
                return Err(format!("{what}: {}", members.collect::<Vec<_>>().join("; ")));
            }
            self.pass_until(now_ns + STEP_NS)?;
        }
        Ok(())
    }

    pub fn run(&mut self) -> Result<Report, String> {
        for (time_ns, fault) in &self.scenario.faults {
            self.pass_until(*time_ns)?;
            self.apply_fault(fault);
        }
        self.pass_until(self.cluster.network().now_ns() + CALM_NS)?;
        heal(self.cluster.network());
        self.log.borrow_mut().left = Some(0);
        self.wait_for("requests that do not end", |run| run.log.borrow().in_flight == 0)?;
        {
            let mut log = self.log.borrow_mut();
            (log.is_well, log.left) = (true, Some(LAST_REQUESTS));
        }
        self.wait_for("requests after the faults that do not end", |run| {
            let log = run.log.borrow();
            (log.left, log.in_flight) == (Some(0), 0)
        })?;
        self.wait_for("members that stay behind", Self::is_agreed)?;
        let changes = self.changes()?;
        let log = self.log.borrow();
        order::check(&changes, &log.operations)?;
        let answered = log.operations.iter().filter(|operation| operation.end_ns < u64::MAX).count();
        let (network, stats) = (self.cluster.network(), self.cluster.network().stats());
        Ok(Report {
            hosts: MEMBERS + CLIENTS,
            answered: answered as u64,
            failed: (log.operations.len() - answered) as u64,
            delivered: stats.delivered,
            lost: stats.lost,
            crashes: self.crashes,
            trace_hash: network.trace_hash(),
            ..Report::default()
        })
    }

    /// Whether a member leads, and all have applied what it has.
    fn is_agreed(&self) -> bool {
        let now_ns = self.cluster.network().now_ns();
        let statuses: Vec<_> = self.members.iter().map(|host| host.borrow().member().status(now_ns)).collect();
        let leader = self.members.iter().position(|host| host.borrow().member().is_leader());
        leader.is_some_and(|leader| statuses.iter().all(|status| status.applied == statuses[leader].last))
    }

    /// The changes that all members have.
    fn changes(&self) -> Result<Vec<Change>, String> {
        let states: Vec<_> = self.members.iter().map(|host| host.borrow().member().machine().snapshot()).collect();
        if states.iter().any(|state| *state != states[0]) {
            return Err("members that have applied as much differ".to_owned());
        }
        let (mut query, mut bytes) = (Vec::new(), Vec::new());
        wire::encode(&Query::Watch { prefix: b"", from: 1, limit: u32::MAX }, &mut query);
        self.members[0].borrow().member().machine().read(&query, &mut bytes);
        let Ok(QueryResult::Changes { changes, .. }) = wire::decode(&bytes) else {
            return Err(format!("a store after requests that were answered has no changes: {bytes:?}"));
        };
        let change = |change: &sinew_replica::kv::Change<'_>| {
            Some(Change {
                key: client::number(change.key)?,
                value: change.value.map(|value| client::number(value).ok_or(())).transpose().ok()?,
            })
        };
        let numbers = changes.iter().map(change).collect::<Option<_>>();
        numbers.ok_or_else(|| format!("a change that nobody made is among {changes:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sinew_conformance::history::{self, History, Op, Ret, Store, StoreOp, StoreRet};

    use super::order::{Answer, Operation, Outcome, Request};
    use super::*;

    /// Runs a scenario. Returns what it counted, and what clients saw.
    fn run(seed: u64) -> (Report, Vec<Operation>) {
        let scenario = StoreScenario::draw(seed);
        let progress = &mut |_| ();
        let mut run = StoreRun::new(&scenario, progress);
        let report = run.run().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{scenario}"));
        let operations = run.log.borrow().operations.clone();
        (report, operations)
    }

    #[test]
    fn whatever_is_drawn_answers_are_linearizable() {
        let (mut sum, mut unknown) = (Report::default(), 0);
        for seed in 0..30 {
            let (report, operations) = run(seed);
            sum.answered += report.answered;
            sum.crashes += report.crashes;
            sum.lost += report.lost;
            unknown += operations.iter().filter(|operation| operation.outcome == Outcome::Unknown).count();
        }
        // Runs in which nothing happens find nothing.
        assert!(sum.answered > 1_000 && sum.crashes > 10 && sum.lost > 100 && unknown > 3, "{sum:?}, {unknown}");
    }

    #[test]
    fn a_store_is_a_function_of_its_seed() {
        assert_eq!(run(3), run(3));
    }

    fn op(request: Request) -> StoreOp {
        match request {
            Request::Put { key, value } => StoreOp::One(key, Op::Put(value)),
            Request::Swap { key, expect, value } => StoreOp::One(key, Op::Swap { expect, value }),
            Request::Delete { key } => StoreOp::One(key, Op::Delete),
            Request::Get { key } => StoreOp::One(key, Op::Get),
            Request::All => StoreOp::All,
        }
    }

    fn ret(request: Request, answer: &Answer) -> StoreRet {
        match (answer, request) {
            (Answer::Changed { .. }, Request::Put { .. }) => StoreRet::One(Ret::Put),
            (Answer::Changed { .. }, Request::Delete { .. }) => StoreRet::One(Ret::Deleted(true)),
            (Answer::Missing, _) => StoreRet::One(Ret::Deleted(false)),
            (Answer::Changed { .. }, _) => StoreRet::One(Ret::Swapped(true)),
            (Answer::Differs { .. }, _) => StoreRet::One(Ret::Swapped(false)),
            (Answer::Got { value, .. }, _) => StoreRet::One(Ret::Got(*value)),
            (Answer::GotAll { values, .. }, _) => StoreRet::All(values.clone()),
        }
    }

    /// Operations as a history without the store's numbers of changes.
    fn history_of(operations: &[Operation]) -> History<Store> {
        let mut events = Vec::new();
        for (number, operation) in operations.iter().enumerate() {
            let Operation { client, begin_ns, end_ns, .. } = *operation;
            // Of events at one time, requests come first: they overlap, but for those that follow one of their client.
            let follows = operations.iter().any(|other| (other.client, other.end_ns) == (client, begin_ns));
            if operation.outcome != Outcome::NotRun {
                events.push(((begin_ns, if follows { 2 } else { 0 }, number), Ok(op(operation.request))));
            }
            if let Outcome::Answered(answer) = &operation.outcome {
                events.push(((end_ns, 1, number), Err(ret(operation.request, answer))));
            }
        }
        events.sort_by_key(|(place, _)| *place);
        let mut history = History::default();
        for ((.., number), event) in events {
            match event {
                Ok(op) => history.record_call(number as u64, op),
                Err(ret) => history.record_return(number as u64, ret),
            }
        }
        history
    }

    #[test]
    fn an_independent_checker_agrees() {
        let histories = (0..8).map(|seed| history_of(&run(seed).1)).collect();
        history::check(histories, Duration::from_secs(60));
    }
}
