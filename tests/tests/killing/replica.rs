//! A replicated store: its members are killed, stopped and continued while clients write, read and swap. The clients'
//! histories are checked for linearizability, and revisions are counted: no acknowledged one is lost, and none ran
//! twice. Killing a process leaves the system's cache intact, so losses of a disk without a sync are left to the
//! simulated disk.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use sinew::prelude::*;
use sinew::replica::client::{Client, ClientError, RequestOutcome};
use sinew::replica::client_wire::Freshness;
use sinew::replica::kv::{Command, CommandResult, Expect, Query, QueryResult};
use sinew::replica::wire;
use sinew_conformance::history::{self, History, Op, Ret};
use sinew_fabric::SeededGenerator;

use super::plan::Plan;
use super::shadow::lock;
use crate::common;
use crate::members::{Members, client, name, wait};

const MEMBERS: usize = 3;
const CLIENTS: u64 = 3;
const KEYS: usize = 4;
/// Most requests of a round, so that the checker terminates.
const OPS_MAX: u64 = 200;
/// Longest pause of a client between two requests, in milliseconds.
const PAUSE_MAX_MS: u64 = 40;
/// Time in ns that clients wait for an answer; after it, the outcome is unknown.
const PATIENCE_NS: u64 = 3_000_000_000;
/// Time that the checker may take.
const CHECK_MAX: Duration = Duration::from_secs(60);

/// State that the clients of a round share.
struct Shared {
    addresses: Vec<String>,
    round: u64,
    histories: Mutex<Vec<History>>,
    /// Value of each key as last seen.
    seen: Mutex<[Option<u64>; KEYS]>,
    /// Set when no more faults are caused, and each client is to make a last request.
    is_over: AtomicBool,
    begun: AtomicU64,
    answered: AtomicU64,
    /// Next number for a client, and for each name under which a client continues.
    numbers: AtomicU64,
    /// Range from the number of changes that did run to the number that may have run.
    changes: Mutex<Range<u64>>,
}

impl Shared {
    fn key(&self, key: usize) -> String {
        format!("{}-{key}", self.round)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }
}

/// Makes one request. Returns `None` if the outcome is unknown.
fn ask(client: &mut Client<Rpc>, key: &str, op: &Op, freshness: Freshness) -> Option<Ret> {
    let (mut bytes, key) = (Vec::new(), key.as_bytes());
    match *op {
        Op::Get => wire::encode(&Query::Get { key }, &mut bytes),
        Op::Put(value) => wire::encode(&Command::Put { key, value: &value.to_le_bytes() }, &mut bytes),
        Op::Delete => wire::encode(&Command::Delete { key }, &mut bytes),
        Op::Swap { expect, value } => {
            let [expect, value] = [expect, value].map(|value| value.map(u64::to_le_bytes));
            let expect = expect.as_ref().map_or(Expect::Nothing, |expect| Expect::Value(expect));
            let value = value.as_ref().map(|value| &value[..]);
            wire::encode(&Command::Swap { key, expect, value }, &mut bytes);
        }
    }
    match op {
        Op::Get => client.read(0, freshness, &bytes, PATIENCE_NS).unwrap(),
        _ => client.run(0, &bytes, PATIENCE_NS).unwrap(),
    }
    match (wait(client), op) {
        (Ok(RequestOutcome::CommandAnswer(done)), _) => match (wire::decode(&done).unwrap(), op) {
            (CommandResult::Changed { .. }, Op::Put(_)) => Some(Ret::Put),
            (CommandResult::Changed { .. }, Op::Delete) => Some(Ret::Deleted(true)),
            (CommandResult::KeyMissing, Op::Delete) => Some(Ret::Deleted(false)),
            (CommandResult::Changed { .. }, Op::Swap { .. }) => Some(Ret::Swapped(true)),
            (CommandResult::Differs { .. }, Op::Swap { .. }) => Some(Ret::Swapped(false)),
            other => panic!("{other:?}"),
        },
        (Ok(RequestOutcome::QueryAnswer(found)), Op::Get) => match wire::decode(&found).unwrap() {
            QueryResult::Item { item, .. } => {
                let value = item.map(|item| u64::from_le_bytes(*item.value.first_chunk().unwrap()));
                Some(Ret::Got(value))
            }
            other => panic!("{other:?}"),
        },
        (Err(ClientError::NoAnswer { .. } | ClientError::Expired | ClientError::Forgotten), _) => None,
        (other, _) => panic!("{op:?}: {other:?}"),
    }
}

/// Makes a client's share of a round's requests.
fn use_store(shared: &Shared, seed: u64) {
    let mut random = SeededGenerator::new(seed);
    let mut client = client(shared.addresses.clone());
    let mut number = shared.number();
    loop {
        let is_last = shared.is_over.load(Ordering::SeqCst);
        let value = shared.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if value > OPS_MAX {
            return;
        }
        std::thread::sleep(Duration::from_millis(random.below(PAUSE_MAX_MS)));
        let key = random.below(KEYS as u64) as usize;
        let op = match random.below(6) {
            0 | 1 => Op::Put(value),
            2 => {
                // Half of these succeed, if nobody else writes in between. One in four takes the value away.
                let expect = lock(&shared.seen)[key].filter(|_| random.below(2) > 0);
                Op::Swap { expect, value: Some(value).filter(|_| expect.is_none() || random.below(4) > 0) }
            }
            3 => Op::Delete,
            _ => Op::Get,
        };
        let freshness = if random.below(2) == 0 { Freshness::Lease } else { Freshness::Linear };
        let may_change = op != Op::Get;
        if may_change {
            lock(&shared.changes).end += 1;
        }
        lock(&shared.histories)[key].record_call(number, op.clone());
        match ask(&mut client, &shared.key(key), &op, freshness) {
            Some(ret) => {
                let has_changed = matches!(ret, Ret::Put | Ret::Swapped(true) | Ret::Deleted(true));
                if has_changed {
                    lock(&shared.changes).start += 1;
                } else if may_change {
                    lock(&shared.changes).end -= 1;
                }
                match (&op, &ret) {
                    (Op::Get, Ret::Got(got)) => lock(&shared.seen)[key] = *got,
                    (Op::Put(value), _) => lock(&shared.seen)[key] = Some(*value),
                    (Op::Swap { value, .. }, _) if has_changed => lock(&shared.seen)[key] = *value,
                    (Op::Delete, _) => lock(&shared.seen)[key] = None,
                    _ => {}
                }
                shared.answered.fetch_add(1, Ordering::SeqCst);
                lock(&shared.histories)[key].record_return(number, ret);
            }
            // The outcome is unknown, so the request stays open in the history.
            None => number = shared.number(),
        }
        if is_last {
            return;
        }
    }
}

struct World {
    plan: Plan,
    members: Members,
    on_disk: bool,
}

impl World {
    /// Returns the leader, half of the time.
    fn draw(&mut self) -> usize {
        if self.plan.below(2) == 0 { self.members.leader() } else { self.plan.below(MEMBERS as u64) as usize }
    }

    fn signal(&self, at: usize, signal: Signal) {
        if let Some(server) = &self.members.servers[at] {
            server.process.signal(signal);
        }
    }

    /// Makes something go wrong. All members run again when this returns.
    fn inject_fault(&mut self) {
        let at = self.draw();
        let pause = self.plan.ms(0, 300);
        match self.plan.below(6) {
            0 | 1 => {
                self.signal(at, Signal::STOP);
                self.plan.killed(&format!("{} is stopped for {} ms", name(at), pause.as_millis()));
                std::thread::sleep(pause);
                self.signal(at, Signal::CONT);
            }
            2 if self.on_disk => {
                for at in 0..MEMBERS {
                    self.members.kill(at);
                    self.plan.killed(&name(at));
                }
                std::thread::sleep(pause);
                (0..MEMBERS).for_each(|at| self.members.begin(at));
            }
            _ => {
                self.members.kill(at);
                self.plan.killed(&name(at));
                std::thread::sleep(pause);
                self.members.begin(at);
                if !self.on_disk {
                    self.add_again(at);
                }
            }
        }
    }

    /// Adds a restarted member without a disk again: it has forgotten everything, and votes for nobody until it is
    /// added.
    fn add_again(&mut self, at: usize) {
        let member = format!("{}={}", name(at), self.members.addresses[at]);
        common::eventually("a member is added again", || self.members.ask(&["add", &member]).0 == 0);
    }

    /// Has all clients make requests while things go wrong, and checks the outcomes. Returns the least and the greatest
    /// number of changes.
    fn round(&mut self, round: u64) -> Range<u64> {
        self.plan.say(&format!("round {round}"));
        let shared = Arc::new(Shared {
            addresses: self.members.addresses.clone(),
            round,
            histories: Mutex::new(vec![History::default(); KEYS]),
            seen: Mutex::new([None; KEYS]),
            is_over: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            changes: Mutex::new(0..0),
        });
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| self.plan.below(u64::MAX)).collect();
        let spawn_client = |seed: u64| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || use_store(&shared, seed))
        };
        let clients: Vec<_> = seeds.into_iter().map(spawn_client).collect();
        for _ in 0..=self.plan.below(3) {
            if self.plan.has_more() {
                let pause = self.plan.ms(20, 200);
                std::thread::sleep(pause);
                self.inject_fault();
            }
        }
        shared.is_over.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().expect("a client goes on to its end"));
        history::check(lock(&shared.histories).clone(), CHECK_MAX);
        // Otherwise a store that answers few requests would pass for a correct one.
        let (begun, answered) =
            (shared.begun.load(Ordering::SeqCst).min(OPS_MAX), shared.answered.load(Ordering::SeqCst));
        assert!(answered * 2 >= begun, "{answered} of {begun} requests were answered");
        lock(&shared.changes).clone()
    }
}

/// Runs rounds until the plan ends.
pub fn run_plan(mut plan: Plan) {
    let on_disk = plan.below(3) > 0;
    plan.say(if on_disk { "members have disks" } else { "members are in memory" });
    let members = Members::start(MEMBERS, on_disk);
    let mut world = World { plan, members, on_disk };
    // Once a member leads, a majority knows that there is a cluster.
    world.members.leader();
    let mut changes = 0..0;
    let mut rounds = 0;
    while world.plan.has_more() {
        let more = world.round(rounds);
        rounds += 1;
        // The PUT below is one more change.
        (changes.start, changes.end) = (changes.start + more.start + 1, changes.end + more.end + 1);
        let mut client = client(world.members.addresses.clone());
        let mut bytes = Vec::new();
        wire::encode(&Command::Put { key: b"revision", value: b"" }, &mut bytes);
        client.run(0, &bytes, 10 * PATIENCE_NS).unwrap();
        let Ok(RequestOutcome::CommandAnswer(done)) = wait(&mut client) else {
            panic!("no write is answered once all is well")
        };
        let Ok(CommandResult::Changed { revision }) = wire::decode(&done) else { panic!("a PUT changes something") };
        let is_right = (changes.start..=changes.end).contains(&revision);
        assert!(is_right, "{revision} changes, where {changes:?} were acknowledged and begun");
    }
    println!(
        "replica: {rounds} rounds, {} killed or stopped, {changes:?} changes acknowledged and begun",
        world.plan.done()
    );
}
