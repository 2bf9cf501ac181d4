//! Random faults: clients work while members die, stand still and are cut off, disks are torn, slow and full, messages
//! are late, members come and go, and clocks drift up to the bound. An independent checker of linearizability checks
//! the history of each key, and, in short runs with ranges, that of all keys together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sinew_conformance::history::{self, StoreOp};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_journal::disk::{Fault, SimDisk};

use super::operations::{LONG_LEN, NUMBER_LEN, Operations, is_query};
use super::world::*;
use crate::client_wire::{Answer, ClientRequest, Freshness};
use crate::machine::StateMachine;
use crate::wire::{self, MemberId};

const CLIENTS: usize = 3;
/// Operations of one run, few enough for the checker to finish, and those of a run with ranges.
const OPS: u64 = 60;
const RANGE_OPS: u64 = 24;
/// Steps after which a request is repeated, perhaps elsewhere, and after which it is given up.
const RETRY_STEPS: u64 = 60;
const GIVE_UP_STEPS: u64 = 600;
/// Steps for which a change of the members that was asked for may still be on its way.
const CHANGE_STEPS: u64 = 1000;
/// Operations of one run that are given up. Each may run at any later time, which the checker has to try.
const GIVE_UPS_MAX: u64 = 4;
/// Time that the checker may take for a run.
const CHECK_MAX: Duration = Duration::from_secs(60);
/// Names of members that may come later.
const NEWCOMERS: [&str; 2] = ["x", "y"];

struct PendingOp {
    op: StoreOp,
    /// The command or query.
    bytes: Vec<u8>,
    number: u64,
    freshness: Freshness,
    at: usize,
    ticket: Option<u64>,
    again: u64,
    tries: u32,
    give_up: u64,
}

struct Client {
    thread: u64,
    session: u64,
    next: u64,
    /// Member that answered last, which the client takes for the leader.
    expected_leader: usize,
    pending: Option<PendingOp>,
}

struct RandomRun {
    world: World,
    random: SeededGenerator,
    on_disk: bool,
    operations: Operations,
    /// Operations that the run is to have.
    ops: u64,
    clients: Vec<Client>,
    threads: u64,
    step: u64,
    /// Until this step no member loses its disk, as one may be about to be removed.
    removes_until: u64,
    /// Members that have lost what they had, with the steps until which one may still be given a vote.
    lost: Vec<(u64, MemberId)>,
}

/// Result of a run.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Operations that the run was to have.
    ops: u64,
    /// Operations that were answered.
    done: u64,
    /// State of the members at the end.
    members: String,
}

impl RandomRun {
    fn new(seed: u64) -> Self {
        let mut random = SeededGenerator::new(seed);
        let mut draw = |below: u64| random.next_u64() % below;
        let members = [3, 3, 3, 5, 5, 7][draw(6) as usize];
        let (on_disk, has_ranges, has_delays) = (draw(3) > 0, draw(3) == 0, draw(2) == 0);
        let mut world = World::new(members, on_disk, draw(1 << 63));
        let mut value_len = NUMBER_LEN;
        if draw(2) == 0 {
            world.config.log_len_max = 2000;
            world.config.entries_kept = draw(20);
            world.config.piece_len = 200;
            world.config.snapshot_step_len = 1 + draw(100) as usize;
            world.config.snapshot_write_len = 1 + draw(500) as usize;
        } else if on_disk && draw(4) == 0 {
            value_len = LONG_LEN;
        }
        for name in &NEWCOMERS[..draw(3) as usize] {
            world.add_node(name, on_disk);
        }
        for at in 0..world.nodes.len() {
            // Set before any time has passed, so that the drift is within the bound from the start.
            world.nodes[at].drift_ppm = draw(10_000) as i64;
            world.crash(at);
            world.start(at);
        }
        let mut clients = Vec::new();
        for thread in 0..CLIENTS as u64 {
            let session = world.open(seed * 10 + thread).name;
            clients.push(Client { thread, session, next: 0, expected_leader: 0, pending: None });
        }
        for place in &mut world.nodes {
            place.write_ns = STEP_NS * [0, 0, 0, draw(4), draw(30)][draw(5) as usize];
        }
        world.delays = has_delays.then(|| SeededGenerator::new(draw(u64::MAX)));
        Self {
            world,
            on_disk,
            operations: Operations::new(has_ranges, value_len),
            ops: if has_ranges { RANGE_OPS } else { OPS },
            clients,
            threads: CLIENTS as u64,
            step: 0,
            removes_until: 0,
            lost: Vec::new(),
            random,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    fn given_up(&self) -> u64 {
        self.threads - CLIENTS as u64
    }

    fn run(mut self) -> Outcome {
        let faults_end = 1500 + self.draw(2500);
        let mut is_over = false;
        while self.step < faults_end + 4000 {
            self.step += 1;
            self.world.step();
            if self.step < faults_end {
                if self.draw(40) == 0 {
                    self.inject_fault();
                }
            } else if self.step == faults_end {
                self.heal();
            }
            for client in 0..CLIENTS {
                self.turn(client);
            }
            is_over = self.operations.begun >= self.ops && self.clients.iter().all(|client| client.pending.is_none());
            if is_over && self.step > faults_end {
                break;
            }
        }
        for place in &self.world.nodes {
            assert_eq!(place.error, None, "{} at step {}", place.name, self.step);
        }
        assert!(is_over, "with all members up, operations do not end: {}", self.world.describe());
        self.check();
        Outcome { ops: self.ops, done: self.operations.answered, members: self.world.describe() }
    }

    fn check(&mut self) {
        let mut states = BTreeMap::new();
        for (at, place) in self.world.nodes.iter().enumerate() {
            if let Some(member) = &place.member {
                let state = member.machine().snapshot();
                let others = states.entry(member.applied()).or_insert_with(|| state.clone());
                assert!(*others == state, "member {at} differs from another that has applied as much");
            }
        }
        history::check(std::mem::take(&mut self.operations.histories), CHECK_MAX);
    }

    fn inject_fault(&mut self) {
        let nodes = self.world.nodes.len() as u64;
        let (mut one, other) = (self.draw(nodes) as usize, self.draw(nodes) as usize);
        // Faults of the leader matter most.
        if self.draw(2) == 0 {
            one = self.world.leader().unwrap_or(one);
        }
        match self.draw(24) {
            0 | 1 if self.on_disk => {
                self.world.crash(one);
                // Sometimes all members are down.
                if self.draw(3) == 0 {
                    self.world.crash(other);
                }
            }
            2 | 3 if self.on_disk => self.crash_at_write(one),
            4..=6 => self.start_all(),
            7 => self.world.isolate(&[one]),
            8 => self.world.isolate(&[one, other]),
            // Cuts one direction only.
            9 => _ = self.world.cut.insert((one, other)),
            10 | 11 => self.world.cut.clear(),
            12 => self.ask_leader(&ClientRequest::Transfer { name: Some(self.world.nodes[one].name.clone()) }),
            13 | 14 => {
                let steps_max = if self.draw(4) == 0 { 600 } else { 80 };
                self.world.nodes[one].away_until_ns = self.world.now_ns + STEP_NS * self.draw(steps_max);
            }
            15 => self.world.set_full(one, true),
            16 | 17 => self.make_room(),
            18 => self.replace(one),
            19..=21 => self.add_outsider(),
            22 => self.promote_learner(),
            23 => self.remove(one),
            _ => {}
        }
    }

    fn heal(&mut self) {
        self.world.cut.clear();
        self.make_room();
        for place in &mut self.world.nodes {
            place.away_until_ns = 0;
            // No death at a later write.
            place.disk.iter().for_each(SimDisk::heal);
        }
        self.start_all();
    }

    fn start_all(&mut self) {
        for at in 0..self.world.nodes.len() {
            if self.world.nodes[at].member.is_none() && self.world.nodes[at].error.is_none() {
                self.world.start(at);
            }
        }
    }

    fn make_room(&mut self) {
        for at in 0..self.world.nodes.len() {
            self.world.set_full(at, false);
        }
    }

    /// Lets a member die at one of its next writes.
    fn crash_at_write(&mut self, at: usize) {
        let write = 1 + self.draw(30);
        let place = &self.world.nodes[at];
        if let (Some(disk), Some(_), false) = (&place.disk, &place.member, place.is_full) {
            disk.fail_at(write, Fault::Crash);
        }
    }

    /// The leader's members, and which of them vote, unless it is not certain of that.
    fn members(&self) -> Option<(BTreeSet<MemberId>, BTreeSet<MemberId>)> {
        let member = self.world.nodes[self.world.leader()?].member.as_ref()?;
        let raft = &member.node.raft;
        let is_certain =
            raft.commit_to_current_term() && member.applied() == raft.raft_log.committed && !raft.has_pending_conf();
        is_certain.then(|| (member.members.keys().copied().collect(), voters_of(member)))
    }

    /// Whether most of these voters would still exist without this node, though they may be down, even if it and those
    /// that were lost lately get votes.
    fn would_survive(&self, voters: &BTreeSet<MemberId>, without: usize) -> bool {
        let ids =
            self.world.nodes.iter().enumerate().filter(|(at, _)| *at != without).filter_map(|(_, place)| place.id);
        let lately = self.lost.iter().filter(|(until, _)| self.step < *until).map(|(_, id)| *id);
        let lost: BTreeSet<_> = lately.chain(self.world.nodes[without].id).filter(|id| !voters.contains(id)).collect();
        2 * ids.filter(|id| voters.contains(id)).count() > voters.len() + lost.len()
    }

    /// Lets a member lose all that it had, unless the cluster would lose its majority for ever: that of its leader, or
    /// that of another voter which has not applied the last change yet. Each counts votes by what it has applied.
    fn replace(&mut self, at: usize) {
        if self.step < self.removes_until {
            return;
        }
        let Some((_, voters)) = self.members() else { return };
        let of_voter = |place: &Node| Some(voters_of(place.member.as_ref()?));
        let is_voter = |place: &&Node| place.id.is_some_and(|id| voters.contains(&id));
        // Nobody knows what a member that is down has applied.
        let views: Option<Vec<_>> = self.world.nodes.iter().filter(is_voter).map(of_voter).collect();
        if views.is_some_and(|views| views.iter().all(|voters| self.would_survive(voters, at))) {
            self.lost.extend(self.world.nodes[at].id.map(|id| (self.step + CHANGE_STEPS, id)));
            self.world.replace(at);
        }
    }

    /// Adds one that runs and is no member: that was replaced, was removed, or has never been one.
    fn add_outsider(&mut self) {
        let stays_learner = self.draw(3) == 0;
        let Some((members, _)) = self.members() else { return };
        let is_outside = |place: &&Node| place.member.is_some() && place.id.is_some_and(|id| !members.contains(&id));
        let outside: Vec<_> = self.world.nodes.iter().filter(is_outside).map(|place| place.name.clone()).collect();
        if !outside.is_empty() {
            let name = outside[self.draw(outside.len() as u64) as usize].clone();
            let address = format!("sim://{name}");
            self.ask_leader(&ClientRequest::Add { name, address, learner: stays_learner });
        }
    }

    fn promote_learner(&mut self) {
        let Some((members, voters)) = self.members() else { return };
        let is_learner = |id: &MemberId| members.contains(id) && !voters.contains(id);
        let learner = self.world.nodes.iter().find(|place| place.id.as_ref().is_some_and(is_learner));
        if let Some(name) = learner.map(|place| place.name.clone()) {
            self.ask_leader(&ClientRequest::Promote { name });
        }
    }

    /// Removes a member, which may lose its disk as well, unless too few would be left.
    fn remove(&mut self, at: usize) {
        let Some((_, mut voters)) = self.members() else { return };
        if self.world.nodes[at].id.is_some_and(|id| voters.remove(&id))
            && (voters.len() < 2 || !self.would_survive(&voters, at))
        {
            return;
        }
        self.removes_until = self.step + CHANGE_STEPS;
        self.ask_leader(&ClientRequest::Remove { name: self.world.nodes[at].name.clone() });
    }

    fn ask_leader(&mut self, ask: &ClientRequest<'_>) {
        if let Some(leader) = self.world.leader() {
            self.world.submit(leader, ask);
        }
    }

    fn turn(&mut self, client: usize) {
        let Some(under_way) = &self.clients[client].pending else {
            if self.operations.begun < self.ops && self.draw(30) == 0 {
                self.begin(client);
            }
            return;
        };
        let (again, give_up) = (under_way.again, under_way.give_up);
        if let Some(answer) = under_way.ticket.and_then(|ticket| self.world.reply(ticket)) {
            self.handle_answer(client, &answer);
        } else if self.step >= give_up && self.given_up() < GIVE_UPS_MAX {
            // It is unknown whether it happened. The next operation counts as another client's.
            self.threads += 1;
            self.clients[client].thread = self.threads;
            self.clients[client].next += 1;
            self.clients[client].pending = None;
        } else if self.step >= again {
            self.send(client);
        }
    }

    fn begin(&mut self, client: usize) {
        let Client { thread, next: number, .. } = self.clients[client];
        let (op, bytes) = self.operations.begin(thread, &mut self.random);
        let freshness = if self.draw(2) == 0 { Freshness::Lease } else { Freshness::Linear };
        let give_up = self.step + GIVE_UP_STEPS;
        let pending = PendingOp { op, bytes, number, freshness, at: 0, ticket: None, again: 0, tries: 0, give_up };
        self.clients[client].pending = Some(pending);
        self.send(client);
    }

    fn send(&mut self, client: usize) {
        let nodes = self.world.nodes.len() as u64;
        let is_again = self.clients[client].pending.as_ref().is_some_and(|under_way| under_way.again > 0);
        let at = if is_again { self.draw(nodes) as usize } else { self.clients[client].expected_leader };
        let Client { session, pending: Some(under_way), .. } = &mut self.clients[client] else { return };
        // Longer each time, as a client does: among slow members, a read may take longer than one try.
        (under_way.at, under_way.again) = (at, self.step + (RETRY_STEPS << under_way.tries));
        under_way.tries = (under_way.tries + 1).min(3);
        let (session, number, freshness) = (*session, under_way.number, under_way.freshness);
        let ask = match is_query(&under_way.op) {
            true => ClientRequest::Read { freshness, query: &under_way.bytes },
            false => ClientRequest::Run { session, number, done_below: number, command: &under_way.bytes },
        };
        under_way.ticket = self.world.submit(at, &ask);
    }

    fn handle_answer(&mut self, client: usize, answer: &[u8]) {
        let Some(under_way) = &mut self.clients[client].pending else { return };
        let again = match wire::decode(answer).unwrap() {
            Answer::CommandAnswer(answer) | Answer::QueryAnswer(answer) => {
                let Client { thread, next, expected_leader, pending, .. } = &mut self.clients[client];
                let Some(PendingOp { op, at, .. }) = pending.take() else { return };
                (*next, *expected_leader) = (*next + 1, at);
                self.operations.end(*thread, &op, answer);
                return;
            }
            Answer::NotLeader { .. } | Answer::Busy => 2,
            Answer::DiskFull => RETRY_STEPS,
            other => panic!("{other:?}"),
        };
        (under_way.again, under_way.ticket) = (self.step + again, None);
    }
}

/// Members that have votes, by what this one has applied: in the midst of a change, those before and after it.
fn voters_of(member: &Kv) -> BTreeSet<MemberId> {
    member.node.raft.prs().conf().voters().ids().iter().map(MemberId).collect()
}

/// Seeds of the runs; `SINEW_REPLICA_SEEDS=FROM..TO` selects others.
const SEEDS: std::ops::Range<u64> = 0..150;

#[test]
fn histories_are_linearizable_whatever_goes_wrong() {
    let drawn = std::env::var("SINEW_REPLICA_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let (mut done, mut ops, mut runs) = (0, 0, 0);
    for seed in drawn.unwrap_or(SEEDS) {
        match std::panic::catch_unwind(|| RandomRun::new(seed).run()) {
            Ok(outcome) => (done, ops, runs) = (done + outcome.done, ops + outcome.ops, runs + 1),
            Err(_) => panic!("seed {seed}"),
        }
    }
    println!("{runs} runs, {done} of {ops} operations done");
    // Most operations must be answered, because a run in which nothing happens finds nothing.
    assert!(done > ops / 2, "{done} of {ops} operations in {runs} runs");
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    for seed in 0..4 {
        let [one, other] = [0; 2].map(|_| RandomRun::new(seed).run());
        assert_eq!(one, other, "seed {seed}");
    }
}
