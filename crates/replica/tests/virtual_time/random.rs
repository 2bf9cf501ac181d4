//! Random faults of the network and of members under real clients, over the RPC layer: hosts that do not hear each
//! other, in one direction or both, a leader that is left alone with a client, lossy and late links, and members that
//! die. Each history is checked for linearizability.

use std::time::Duration;

use sinew_conformance::history::{self, History, Op, Ret};
use sinew_fabric::Generator;
use sinew_replica::kv::Expect;

use super::*;

const KEYS: u64 = 2;
const CLIENTS: usize = 2;
/// Operations of a run, few enough for the checker to finish.
const OPS: u64 = 80;
/// Time after which a client gives up, and the outcome may be unknown.
const PATIENCE_NS: u64 = 400 * MS;
/// Faults of a run, and the longest time between two.
const FAULTS: u64 = 30;
const PAUSE_MAX_MS: u64 = 100;
/// Time in virtual time in which all operations end once all is well.
const HEALED_MS: u64 = 5_000;
/// Time that the checker may take.
const CHECK_MAX: Duration = Duration::from_secs(60);
/// Seeds of the runs; `SINEW_REPLICA_SEEDS=FROM..TO` selects others.
const SEEDS: std::ops::Range<u64> = 0..20;

/// State that the clients of a run share.
struct Shared {
    histories: Vec<History>,
    /// Next number for a client, and for each name under which a client continues.
    numbers: u64,
    begun: u64,
    answered: u64,
    ended: u64,
    /// Values of changes that did not run, as their clients were told.
    refused: Vec<u64>,
    /// Values that were read.
    read: Vec<u64>,
}

/// A client that makes one request at a time.
struct Chooser {
    client: Client<SimRpc>,
    random: SeededGenerator,
    shared: Rc<RefCell<Shared>>,
    /// Its number in the histories.
    number: u64,
    pending: Option<(u64, Op)>,
    begin_ns: u64,
}

fn draw(random: &mut SeededGenerator, below: u64) -> u64 {
    random.next_u64() % below
}

fn key_bytes(key: u64) -> [u8; 2] {
    [b'k', key as u8]
}

impl Chooser {
    fn begin(&mut self, now_ns: u64) {
        let mut shared = self.shared.borrow_mut();
        if shared.begun == OPS {
            self.begin_ns = u64::MAX;
            return;
        }
        shared.begun += 1;
        let (key, value) = (draw(&mut self.random, KEYS), shared.begun);
        let op = match draw(&mut self.random, 7) {
            0 | 1 => Op::Put(value),
            2 => Op::Delete,
            3 => {
                let expect = Some(draw(&mut self.random, value)).filter(|expect| *expect > 0);
                Op::Swap { expect, value: Some(value) }
            }
            _ => Op::Get,
        };
        shared.histories[key as usize].record_call(self.number, op.clone());
        let (key_bytes, mut bytes) = (key_bytes(key), Vec::new());
        let key_bytes = &key_bytes[..];
        match &op {
            Op::Get => wire::encode(&Query::Get { key: key_bytes }, &mut bytes),
            Op::Put(value) => wire::encode(&Command::Put { key: key_bytes, value: &value.to_le_bytes() }, &mut bytes),
            Op::Delete => wire::encode(&Command::Delete { key: key_bytes }, &mut bytes),
            Op::Swap { expect, .. } => {
                let expect = expect.map(u64::to_le_bytes);
                let expect = expect.as_ref().map_or(Expect::Nothing, |expect| Expect::Value(expect));
                let value = value.to_le_bytes();
                wire::encode(&Command::Swap { key: key_bytes, expect, value: Some(&value) }, &mut bytes);
            }
        }
        let freshness = if draw(&mut self.random, 2) == 0 { Freshness::Lease } else { Freshness::Linear };
        match op {
            Op::Get => self.client.read(0, freshness, &bytes, PATIENCE_NS).unwrap(),
            _ => self.client.run(0, &bytes, PATIENCE_NS).unwrap(),
        }
        self.begin_ns = now_ns + draw(&mut self.random, 100 * MS);
        self.pending = Some((key, op));
    }

    fn end(&mut self, result: Result<RequestOutcome, ClientError>) {
        let (key, op) = self.pending.take().expect("one request is in flight");
        let mut shared = self.shared.borrow_mut();
        shared.ended += 1;
        let ret = match result {
            Ok(RequestOutcome::CommandAnswer(done)) => match (wire::decode(&done).unwrap(), &op) {
                (CommandResult::Changed { .. }, Op::Put(_)) => Ret::Put,
                (CommandResult::Changed { .. }, Op::Delete) => Ret::Deleted(true),
                (CommandResult::KeyMissing, Op::Delete) => Ret::Deleted(false),
                (CommandResult::Changed { .. }, Op::Swap { .. }) => Ret::Swapped(true),
                (CommandResult::Differs { .. }, Op::Swap { .. }) => Ret::Swapped(false),
                other => panic!("{other:?}"),
            },
            Ok(RequestOutcome::QueryAnswer(found)) => match wire::decode(&found).unwrap() {
                QueryResult::Item { item, .. } => {
                    let value = item.map(|item| u64::from_le_bytes(*item.value.first_chunk().unwrap()));
                    shared.read.extend(value);
                    Ret::Got(value)
                }
                other => panic!("{other:?}"),
            },
            Err(ClientError::NoAnswer { may_have_run, .. }) => {
                shared.refused.extend(match op {
                    Op::Put(value) | Op::Swap { value: Some(value), .. } if !may_have_run => Some(value),
                    _ => None,
                });
                // The request stays open in the history.
                shared.numbers += 1;
                self.number = shared.numbers;
                return;
            }
            other => panic!("{op:?}: {other:?}"),
        };
        shared.answered += 1;
        shared.histories[key as usize].record_return(self.number, ret);
    }
}

impl Actor for Chooser {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.client.turn();
        let now_ns = self.client.rpc().now_ns();
        while let Some((_, result)) = self.client.poll() {
            busy = true;
            self.end(result);
        }
        if self.pending.is_none() && now_ns >= self.begin_ns {
            busy = true;
            self.begin(now_ns);
        }
        let next_ns = self.client.next_turn_ns().unwrap_or(self.begin_ns);
        next_turn(busy, next_ns.max(now_ns + 1000), self.client.rpc())
    }
}

struct RandomRun {
    sim: Sim,
    random: SeededGenerator,
    on_disk: bool,
    shared: Rc<RefCell<Shared>>,
    /// Members that are down.
    down: Vec<usize>,
}

impl RandomRun {
    fn new(seed: u64) -> Self {
        let mut random = SeededGenerator::new(seed);
        let on_disk = draw(&mut random, 3) > 0;
        let members = [3, 3, 5][draw(&mut random, 3) as usize];
        let mut sim = Sim::new(members, on_disk, seed);
        let shared = Rc::new(RefCell::new(Shared {
            histories: vec![History::default(); KEYS as usize],
            numbers: CLIENTS as u64,
            begun: 0,
            answered: 0,
            ended: 0,
            refused: Vec::new(),
            read: Vec::new(),
        }));
        for number in 0..CLIENTS {
            let name = format!("client{number}");
            let (client, place) = sim.client(members + number, &name, None);
            let chooser = Chooser {
                client,
                random: SeededGenerator::new(random.next_u64()),
                shared: Rc::clone(&shared),
                number: number as u64,
                pending: None,
                begin_ns: 0,
            };
            sim.cluster.add(&name, [place], Box::new(chooser));
        }
        Self { sim, random, on_disk, shared, down: Vec::new() }
    }

    fn draw(&mut self, below: usize) -> usize {
        draw(&mut self.random, below as u64) as usize
    }

    fn members(&self) -> usize {
        self.sim.disks.len()
    }

    /// Parts the hosts within `group` from those outside: in both directions, or in one of them.
    fn part(&mut self, group: &[usize]) {
        let (is_mute, is_deaf) = [(true, true), (true, false), (false, true)][self.draw(3)];
        let network = self.sim.cluster.network();
        for inside in group {
            for outside in (0..self.members() + CLIENTS).filter(|host| !group.contains(host)) {
                if is_mute {
                    network.set_cut(HostId(*inside), HostId(outside), true);
                }
                if is_deaf {
                    network.set_cut(HostId(outside), HostId(*inside), true);
                }
            }
        }
    }

    fn join_all(&mut self) {
        let network = self.sim.cluster.network();
        let hosts = self.members() + CLIENTS;
        for from in 0..hosts {
            (0..hosts).filter(|to| *to != from).for_each(|to| network.set_cut(HostId(from), HostId(to), false));
        }
        network.set_all_faults(LinkFaults::default());
    }

    fn start_all(&mut self) {
        for at in std::mem::take(&mut self.down) {
            self.sim.actors[at] = self.sim.start(at);
        }
    }

    fn inject_fault(&mut self) {
        let members = self.members();
        // Faults of the leader matter most.
        let one = match self.sim.leader() {
            Some(leader) if self.draw(2) == 0 => leader,
            _ => self.draw(members),
        };
        let client = members + self.draw(CLIENTS);
        match self.draw(10) {
            0 | 1 if self.on_disk && !self.down.contains(&one) => {
                self.sim.crash(one);
                self.down.push(one);
            }
            2 => self.part(&[one]),
            3 => self.part(&[one, client]),
            4 => {
                let other = self.draw(members);
                self.part(&[one, other]);
            }
            5 => {
                let faults = LinkFaults {
                    loss: self.draw(30) as f64 / 100.0,
                    duplication: self.draw(30) as f64 / 100.0,
                    reordering: self.draw(50) as f64 / 100.0,
                    reordering_ns: self.draw(20) as u64 * MS,
                    ..LinkFaults::default()
                };
                let link = LinkId(self.draw(members + CLIENTS));
                (0..2).for_each(|direction| self.sim.cluster.network().set_faults(link, direction, faults));
            }
            6 | 7 => self.join_all(),
            _ => self.start_all(),
        }
    }

    /// Returns how many operations were begun and how many of them were answered.
    fn run(mut self) -> (u64, u64) {
        for _ in 0..FAULTS {
            let pause_ms = draw(&mut self.random, PAUSE_MAX_MS);
            self.sim.pass_ms(pause_ms);
            self.inject_fault();
        }
        self.join_all();
        self.start_all();
        self.sim.pass_ms(HEALED_MS);
        let later = self.sim.writer(2, 0);
        self.sim.pass_ms(PATIENCE_NS / MS);
        assert!(matches!(later.borrow()[..], [Event::Put { .. }]), "with all well, a write is not answered");
        let mut shared = self.shared.borrow_mut();
        assert_eq!((shared.begun, shared.ended), (OPS, OPS), "with all well, operations do not end");
        let ran = shared.refused.iter().find(|value| shared.read.contains(value));
        assert_eq!(ran, None, "a change ran whose client was told that it did not");
        history::check(std::mem::take(&mut shared.histories), CHECK_MAX);
        (shared.begun, shared.answered)
    }
}

#[test]
fn histories_are_linearizable_whatever_befalls_the_network() {
    let drawn = std::env::var("SINEW_REPLICA_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let (mut begun, mut answered) = (0, 0);
    for seed in drawn.unwrap_or(SEEDS) {
        match std::panic::catch_unwind(|| RandomRun::new(seed).run()) {
            Ok(run) => (begun, answered) = (begun + run.0, answered + run.1),
            Err(_) => panic!("seed {seed}"),
        }
    }
    println!("{answered} of {begun} operations answered");
    // Runs in which nothing happens find nothing.
    assert!(answered > begun / 2 || begun < 10 * OPS, "{answered} of {begun} operations were answered");
}
