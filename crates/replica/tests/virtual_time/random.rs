//! Random faults under real clients and operators, over the RPC layer: hosts that do not hear each other, in any
//! direction and shape, lossy and late links, members that die, even between two disk writes, come back with or without
//! what they had, or stand still, disks that are slow or full, clocks that drift up to the bound, and members that are
//! added, promoted, removed and replaced meanwhile, with snapshots of logs that are cut. Each history is checked for
//! linearizability.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use sinew_conformance::history;
use sinew_fabric::{Generator, SeededGenerator};
use sinew_replica::client_wire::ClientRequest;
use sinew_replica::machine::StateMachine;
use sinew_replica::member::MemberConfig;

use crate::chooser::{Chooser, Shared};
use crate::clients::Event;
use crate::operations::{LONG_LEN, NUMBER_LEN, Operations};
use crate::operator::Office;
use crate::rules::Members;
use crate::sim::{Setup, Sim};

pub const CLIENTS: usize = 3;
/// Operations of a run, few enough for the checker to finish, and those of a run with ranges.
const OPS: u64 = 80;
const RANGE_OPS: u64 = 30;
/// Faults of a run, and the longest time between two.
const FAULTS: usize = 70;
const PAUSE_MAX_MS: usize = 100;
/// Time in virtual time in which all operations end once all is well.
const HEALED_MS: u64 = 5_000;
/// As [`HEALED_MS`], for changes of the members. A leader gives up a member that was lost, and does not catch up, after
/// half a minute.
const CHANGED_MS: u64 = 70_000;
/// Changes with which an operator makes members of all that run.
const REPAIRS_MAX: usize = 24;
/// Time that the checker may take.
const CHECK_MAX: Duration = Duration::from_secs(60);
/// Seeds of the runs; `SINEW_REPLICA_SEEDS=FROM..TO` selects others.
const SEEDS: std::ops::Range<u64> = 0..40;

/// Everything that runs count, besides operations.
const COUNTED: [&str; 15] = [
    "answered",
    "crashes",
    "crashes at writes",
    "voters lost",
    "moves to other hosts",
    "pauses",
    "additions as voters",
    "additions as learners",
    "promotions",
    "removals",
    "transfers",
    "changes refused",
    "snapshots of members behind",
    "snapshots of new members",
    "snapshots in pieces",
];

/// What happened in runs, and how often.
type Tally = BTreeMap<&'static str, u64>;

pub struct RandomRun {
    pub sim: Sim,
    pub random: SeededGenerator,
    shared: Rc<RefCell<Shared>>,
    /// Operators: one for changes of the members, and one for transfers of leadership.
    pub changes: Office,
    pub transfers: Office,
    /// Hosts that are gone for good.
    pub gone: BTreeSet<usize>,
    tally: Tally,
}

impl RandomRun {
    fn new(seed: u64) -> Self {
        let mut random = SeededGenerator::new(seed);
        let mut draw = |below: u64| random.next_u64() % below;
        let members = [3, 3, 3, 5, 5, 7][draw(6) as usize];
        let (on_disk, has_ranges, spares) = (draw(3) > 0, draw(3) == 0, draw(3) as usize);
        let (mut config, mut value_len) = (MemberConfig::default(), NUMBER_LEN);
        if draw(3) > 0 {
            config.log_len_max = 2000;
            config.entries_kept = draw(20);
            config.piece_len = 10 + draw(100) as usize;
            config.snapshot_step_len = 1 + draw(100) as usize;
            config.snapshot_write_len = 20 + draw(500) as usize;
        } else if on_disk && draw(4) == 0 {
            value_len = LONG_LEN;
        }
        // Those of members differ by no more than the bound.
        let bound_ppm = config.drift_max_ppm;
        let mut drifts_ppm: Vec<i32> = (0..members + spares).map(|_| draw(bound_ppm + 1) as i32).collect();
        drifts_ppm.extend((0..CLIENTS).map(|_| draw(100_000) as i32 - 50_000));
        let key = None;
        let mut sim = Sim::with(Setup { members, spares, on_disk, seed, key, config, drifts_ppm });
        for node in &sim.nodes {
            node.sync_ns.set(match draw(5) {
                0..=2 => draw(50_000),
                3 => draw(2_000_000),
                _ => draw(15_000_000),
            });
        }
        let ops = if has_ranges { RANGE_OPS } else { OPS };
        let shared = Shared::new(ops, CLIENTS, Operations::new(has_ranges, value_len));
        for number in 0..CLIENTS {
            let (host, name) = (sim.client_host() + number, format!("client{number}"));
            let (client, place) = sim.client(host, &name, None);
            let chooser = Chooser {
                client,
                clock: sim.clock(host),
                random: SeededGenerator::new(draw(u64::MAX)),
                shared: Rc::clone(&shared),
                number: number as u64,
                pending: None,
                begin_ns: 0,
            };
            sim.cluster.add(&name, [place], Box::new(chooser));
        }
        // They sit beside clients, and are cut off with them.
        let host = sim.client_host();
        let changes = Office::new(&mut sim, host, "changes");
        let transfers = Office::new(&mut sim, host + 1, "transfers");
        Self { sim, random, shared, changes, transfers, gone: BTreeSet::new(), tally: Tally::new() }
    }

    pub fn draw(&mut self, below: usize) -> usize {
        (self.random.next_u64() % below as u64) as usize
    }

    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.tally.entry(what).or_default() += times;
    }

    /// Returns what happened, and the network's hash.
    fn run(mut self) -> (Tally, u64) {
        for _ in 0..FAULTS {
            let pause_ms = self.draw(PAUSE_MAX_MS);
            self.sim.pass_ms(pause_ms as u64);
            self.inject_fault();
        }
        self.count_changes();
        self.heal();
        let shared = Rc::clone(&self.shared);
        let has_ended = |_: &mut Sim| {
            let shared = shared.borrow();
            (shared.operations.begun, shared.ended) == (shared.ops, shared.ops)
        };
        let have_ended = self.sim.pass_until(HEALED_MS, has_ended);
        assert!(have_ended, "with all well, operations do not end: {}", self.sim.describe());
        let later = self.sim.writer(2, 0);
        self.sim.pass_until(HEALED_MS, |_| !later.borrow().is_empty());
        let later = later.borrow();
        let is_answered = matches!(later[..], [Event::Put { .. }]);
        assert!(is_answered, "with all well, a write is not answered: {later:?}; {}", self.sim.describe());
        self.repair();
        self.check_members();
        let mut shared = self.shared.borrow_mut();
        let ran = shared.value_that_was_refused();
        assert_eq!(ran, None, "a change ran whose client was told that it did not");
        history::check(std::mem::take(&mut shared.operations.histories), CHECK_MAX);
        let seen = self.sim.seen.borrow();
        let counts = [
            ("operations", shared.operations.begun),
            ("answered", shared.operations.answered),
            ("crashes at writes", seen.died_at_writes),
            ("snapshots of members behind", seen.installed[0]),
            ("snapshots of new members", seen.installed[1]),
            ("snapshots in pieces", seen.in_pieces),
        ];
        self.tally.extend(counts);
        (self.tally, self.sim.cluster.network().trace_hash())
    }

    /// Counts the changes that were made amid the faults.
    fn count_changes(&mut self) {
        let made: Vec<_> =
            [&self.changes, &self.transfers].iter().flat_map(|office| office.desk.borrow().done.clone()).collect();
        for request in made {
            let what = match request {
                ClientRequest::Add { learner: false, .. } => "additions as voters",
                ClientRequest::Add { learner: true, .. } => "additions as learners",
                ClientRequest::Promote { .. } => "promotions",
                ClientRequest::Remove { .. } => "removals",
                _ => "transfers",
            };
            self.count(what, 1);
        }
        let refused = self.changes.desk.borrow().refused.len() as u64;
        self.count("changes refused", refused);
    }

    /// Makes a voter of each member that runs, as an operator would, and removes those that are on no host any more.
    fn repair(&mut self) {
        for _ in 0..REPAIRS_MAX {
            let is_settled = |sim: &mut Sim| Members::of(sim).is_some();
            let offices = [self.changes.desk.clone(), self.transfers.desk.clone()];
            let is_idle = |_: &mut Sim| offices.iter().all(|desk| desk.borrow().request.is_none());
            let is_over = self.sim.pass_until(CHANGED_MS, is_idle) && self.sim.pass_until(HEALED_MS, is_settled);
            let request = offices[0].borrow().request.clone();
            assert!(is_over, "with all well, a change does not end: {request:?}; {}", self.sim.describe());
            let Some(members) = Members::of(&self.sim) else { continue };
            let name = |at: usize| self.sim.nodes[at].name.clone();
            let request = if let Some(at) = self.outsiders(&members).first() {
                self.add_request(*at, false)
            } else if let Some(at) = self.learner(&members) {
                ClientRequest::Promote { name: name(at) }
            } else if let Some(name) = members.names_of_the_lost(&self.sim).pop() {
                ClientRequest::Remove { name }
            } else {
                return;
            };
            self.changes.order(&self.sim, request);
        }
        let refused = &self.changes.desk.borrow().refused;
        panic!("with all well, not all that run become voters: {refused:?}; {}", self.sim.describe());
    }

    /// Checks that all members come to have the same state.
    fn check_members(&mut self) {
        let agree = |sim: &mut Sim| {
            let leader = sim.leader().and_then(|leader| sim.look_at(leader));
            let up = (0..sim.nodes.len()).filter_map(|at| sim.look_at(at));
            leader.is_some_and(|leader| up.into_iter().all(|status| status.applied == leader.last))
        };
        let do_agree = self.sim.pass_until(HEALED_MS, agree);
        assert!(do_agree, "with all well, members stay behind: {}", self.sim.describe());
        let up = 0..self.sim.nodes.len();
        let states: Vec<_> = up.filter_map(|at| self.sim.member(at, |member| member.machine().snapshot())).collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "members that have applied as much differ");
    }
}

fn seeds() -> std::ops::Range<u64> {
    let drawn = std::env::var("SINEW_REPLICA_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    drawn.unwrap_or(SEEDS)
}

#[test]
fn histories_are_linearizable_whatever_befalls_members_and_network() {
    let (mut tally, mut runs) = (Tally::new(), 0);
    for seed in seeds() {
        match std::panic::catch_unwind(|| RandomRun::new(seed).run()) {
            Ok((of_run, _)) => of_run.into_iter().for_each(|(what, times)| *tally.entry(what).or_default() += times),
            Err(_) => panic!("seed {seed}"),
        }
        runs += 1;
    }
    println!("{runs} runs: {tally:?}");
    // Runs in which nothing happens find nothing.
    if runs >= SEEDS.end - SEEDS.start {
        let never = COUNTED.iter().find(|what| tally.get(**what).is_none_or(|times| *times == 0));
        assert_eq!(never, None, "it never happened");
        assert!(tally["answered"] > tally["operations"] / 2, "{tally:?}");
    }
}

#[test]
fn a_random_run_is_a_function_of_its_seed() {
    for seed in 0..6 {
        let [one, other] = [0; 2].map(|_| RandomRun::new(seed).run());
        assert_eq!(one, other, "seed {seed}");
    }
}
