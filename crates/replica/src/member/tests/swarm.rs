//! Random faults: clients work while members crash, are cut off, come and go, and clocks drift up to the bound. An
//! independent checker of linearizability checks the history of each key.

use sinew_conformance::history::{History, Op, Ret};
use sinew_fabric::{Generator, SeededGenerator};

use super::world::*;
use crate::client_wire::{Answer, ClientRequest, Freshness};
use crate::kv::{Command, CommandResult, Expect, Query, QueryResult};
use crate::member::Accepted;
use crate::wire;

const KEYS: usize = 2;
const CLIENTS: usize = 3;
/// Operations of one run, few enough for the checker to finish.
const OPS: u64 = 60;
/// Steps after which a request is repeated, perhaps elsewhere, and after which it is given up.
const RETRY_STEPS: u64 = 60;
const GIVE_UP_STEPS: u64 = 600;

struct PendingOp {
    key: usize,
    op: Op,
    number: u64,
    freshness: Freshness,
    at: usize,
    held: Option<u64>,
    again: u64,
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
    histories: Vec<History>,
    clients: Vec<Client>,
    threads: u64,
    begun: u64,
    done: u64,
    on_disk: bool,
    step: u64,
}

impl RandomRun {
    fn new(seed: u64) -> Self {
        let mut random = SeededGenerator::new(seed);
        let members = if random.next_u64().is_multiple_of(3) { 5 } else { 3 };
        let on_disk = !random.next_u64().is_multiple_of(3);
        let mut world = World::new(members, on_disk, random.next_u64() >> 1);
        if random.next_u64().is_multiple_of(2) {
            world.config.log_len_max = 2000;
            world.config.entries_kept = random.next_u64() % 20;
            world.config.piece_len = 200;
            world.config.snapshot_step_len = 1 + random.next_u64() as usize % 100;
            world.config.snapshot_write_len = 1 + random.next_u64() as usize % 500;
        }
        for at in 0..members {
            // Set before any time has passed, so that the drift is within the bound from the start.
            world.nodes[at].drift_ppm = (random.next_u64() % 10_000) as i64;
            world.crash(at);
            world.start(at);
        }
        let mut clients = Vec::new();
        for thread in 0..CLIENTS as u64 {
            let session = world.open(seed * 10 + thread).name;
            clients.push(Client { thread, session, next: 0, expected_leader: 0, pending: None });
        }
        let histories = vec![History::default(); KEYS];
        let threads = CLIENTS as u64;
        Self { world, random, histories, clients, threads, begun: 0, done: 0, on_disk, step: 0 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    fn run(mut self) -> u64 {
        let faults_end = 1500 + self.draw(2500);
        while self.step < faults_end + 4000 {
            self.step += 1;
            self.world.step();
            if self.step < faults_end {
                self.inject_fault();
            } else if self.step == faults_end {
                self.heal();
            }
            for client in 0..CLIENTS {
                self.turn(client);
            }
            let is_over = self.begun >= OPS && self.clients.iter().all(|client| client.pending.is_none());
            if is_over && self.step > faults_end {
                break;
            }
        }
        for (at, place) in self.world.nodes.iter().enumerate() {
            assert_eq!(place.error, None, "member {at} at step {}", self.step);
        }
        for (key, history) in self.histories.iter().enumerate() {
            assert!(history.is_linearizable(), "key {key}: {history:?}");
        }
        self.done
    }

    fn inject_fault(&mut self) {
        if self.draw(40) != 0 {
            return;
        }
        let members = self.world.nodes.len() as u64;
        let (mut one, other) = (self.draw(members) as usize, self.draw(members) as usize);
        // Faults of the leader matter most.
        if self.draw(2) == 0 {
            one = self.world.leader().unwrap_or(one);
        }
        let is_up = |hunt: &Self| hunt.world.nodes.iter().filter(|place| place.member.is_some()).count();
        match self.draw(10) {
            0 | 1 if self.on_disk => {
                self.world.crash(one);
                // Sometimes all members are down.
                if self.draw(3) == 0 {
                    self.world.crash(other);
                }
            }
            2 | 3 => {
                for at in 0..members as usize {
                    if self.world.nodes[at].member.is_none() {
                        self.world.start(at);
                    }
                }
            }
            4 => self.world.isolate(&[one]),
            5 => self.world.isolate(&[one, other]),
            // Cuts one direction only.
            6 => _ = self.world.cut.insert((one, other)),
            7 => self.world.cut.clear(),
            8 if is_up(self) > 0 => {
                if let Some(leader) = self.world.leader() {
                    let name = self.world.nodes[one].name.clone();
                    self.world.ask(leader, &ClientRequest::Transfer { name: Some(name) });
                }
            }
            9 => {
                if let Some(leader) = self.world.leader() {
                    let name = self.world.nodes[one].name.clone();
                    let address = format!("sim://{name}");
                    // In a cluster without disks, a member that lost its memory is another one from then on.
                    if !self.on_disk && self.world.cut.is_empty() && one != leader {
                        self.world.crash(one);
                        self.world.start(one);
                    }
                    self.world.ask(leader, &ClientRequest::Add { name, address, learner: false });
                }
            }
            _ => {}
        }
    }

    fn heal(&mut self) {
        self.world.cut.clear();
        for at in 0..self.world.nodes.len() {
            if self.world.nodes[at].member.is_none() && self.world.nodes[at].error.is_none() {
                self.world.start(at);
            }
        }
    }

    fn turn(&mut self, client: usize) {
        let Some(under_way) = &self.clients[client].pending else {
            if self.begun < OPS && self.draw(30) == 0 {
                self.begin(client);
            }
            return;
        };
        let (at, held) = (under_way.at, under_way.held);
        if let Some(answer) = held.and_then(|held| self.world.answer(at, held)) {
            return self.handle_answer(client, &answer);
        }
        if self.step >= under_way.give_up {
            // It is unknown whether it happened. The next operation counts as another client's.
            self.threads += 1;
            self.clients[client].thread = self.threads;
            self.clients[client].next += 1;
            self.clients[client].pending = None;
        } else if self.step >= under_way.again {
            self.send(client);
        }
    }

    fn begin(&mut self, client: usize) {
        self.begun += 1;
        let key = self.draw(KEYS as u64) as usize;
        let value = self.begun;
        let op = match self.draw(5) {
            0 | 1 => Op::Put(value),
            2 => Op::Swap { expect: Some(self.draw(value)).filter(|expect| *expect > 0), value },
            _ => Op::Get,
        };
        let freshness = if self.draw(2) == 0 { Freshness::Lease } else { Freshness::Linear };
        let Client { thread, next, pending: under_way, .. } = &mut self.clients[client];
        self.histories[key].record_call(*thread, op.clone());
        let number = *next;
        *under_way = Some(PendingOp {
            key,
            op,
            number,
            freshness,
            at: 0,
            held: None,
            again: 0,
            give_up: self.step + GIVE_UP_STEPS,
        });
        self.send(client);
    }

    fn send(&mut self, client: usize) {
        let members = self.world.nodes.len() as u64;
        let is_again = self.clients[client].pending.as_ref().is_some_and(|under_way| under_way.again > 0);
        let at = if is_again { self.draw(members) as usize } else { self.clients[client].expected_leader };
        let step = self.step;
        let Client { session, pending: Some(under_way), .. } = &mut self.clients[client] else { return };
        (under_way.at, under_way.held, under_way.again) = (at, None, step + RETRY_STEPS);
        let key = [b'k', under_way.key as u8];
        let mut bytes = Vec::new();
        let (session, number) = (*session, under_way.number);
        match under_way.op {
            Op::Get => wire::encode(&Query::Get { key: &key }, &mut bytes),
            Op::Put(value) => wire::encode(&Command::Put { key: &key, value: &value.to_le_bytes() }, &mut bytes),
            Op::Swap { expect, value } => {
                let expect = expect.map(u64::to_le_bytes);
                let expect = expect.as_ref().map_or(Expect::Nothing, |expect| Expect::Value(expect));
                let value = value.to_le_bytes();
                wire::encode(&Command::Swap { key: &key, expect, value: Some(&value) }, &mut bytes);
            }
        }
        let freshness = under_way.freshness;
        let ask = match under_way.op {
            Op::Get => ClientRequest::Read { freshness, query: &bytes },
            _ => ClientRequest::Run { session, number, done_below: number, command: &bytes },
        };
        match self.world.ask(at, &ask) {
            Some(Accepted::Answer(answer)) => self.handle_answer(client, &answer),
            Some(Accepted::Deferred(held)) => {
                if let Some(under_way) = &mut self.clients[client].pending {
                    under_way.held = Some(held);
                }
            }
            None => {}
        }
    }

    fn handle_answer(&mut self, client: usize, answer: &[u8]) {
        let step = self.step;
        let Client { thread, next, expected_leader: believed, pending: under_way, .. } = &mut self.clients[client];
        let Some(PendingOp { key, op, again, held, at, .. }) = under_way else { return };
        let at = *at;
        let ret = match wire::decode(answer).unwrap() {
            Answer::CommandAnswer(done) => match (wire::decode(done).unwrap(), op) {
                (CommandResult::Changed { .. }, Op::Put(_)) => Ret::Put,
                (done, Op::Swap { .. }) => Ret::Swapped(matches!(done, CommandResult::Changed { .. })),
                other => panic!("{other:?}"),
            },
            Answer::QueryAnswer(found) => match wire::decode(found).unwrap() {
                QueryResult::Item { item, .. } => {
                    Ret::Got(item.map(|item| u64::from_le_bytes(*item.value.first_chunk().unwrap())))
                }
                other => panic!("{other:?}"),
            },
            Answer::NotLeader { .. } | Answer::Busy => {
                (*again, *held) = (step + 2, None);
                return;
            }
            other => panic!("{other:?}"),
        };
        self.histories[*key].record_return(*thread, ret);
        *next += 1;
        *believed = at;
        *under_way = None;
        self.done += 1;
    }
}

/// Seeds of the runs; `SINEW_REPLICA_SEEDS=FROM..TO` selects others.
const SEEDS: std::ops::Range<u64> = 0..150;

#[test]
fn histories_are_linearizable_whatever_goes_wrong() {
    let drawn = std::env::var("SINEW_REPLICA_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let (mut done, mut runs) = (0, 0);
    for seed in drawn.unwrap_or(SEEDS) {
        let outcome = std::panic::catch_unwind(|| RandomRun::new(seed).run());
        match outcome {
            Ok(ops) => (done, runs) = (done + ops, runs + 1),
            Err(_) => panic!("seed {seed}"),
        }
    }
    println!("{runs} runs, {done} operations done");
    // Most operations must be answered, because a run in which nothing happens finds nothing.
    assert!(done > runs * OPS / 2, "{done} operations in {runs} runs");
}
