//! A replicated PUT, at each of its parties, and the Raft engine's part of it.

use anyhow::ensure;
use raft::eraftpb::Message;
use raft::storage::MemStorage;
use raft::{RawNode, Storage};
use sinew_cost::{Count, Operation, key_bytes, operation};
use sinew_fabric::{Clock, ManualClock, SeededGenerator};
use sinew_replica::client::{Client, RequestOutcome};
use sinew_replica::disk::SimDisk;
use sinew_replica::host::Host;
use sinew_replica::kv::{Command, KvStore};
use sinew_replica::member::{Member, MemberConfig};
use sinew_replica::wire;
use sinew_rpc::{Nexus, Rpc};
use sinew_shm::{Hub, ShmPort};

const OPERATIONS: &[Operation] = &[
    operation("replicated PUT of 64 B", &["client", "leader", "follower"], put),
    operation("replicated PUT of 64 B, the Raft engine's part", &["leader", "follower"], engine),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const MEMBERS: usize = 3;
const ROUNDS: usize = 1024;
/// Keys that are put over and over.
const KEYS: u64 = 256;
const VALUE: [u8; 64] = [b'v'; 64];
/// Time in ns that passes with each PUT, on the clock that is moved by hand.
const PUT_NS: u64 = 10_000;
/// Most turns until a PUT is answered: a member's messages of one turn leave its port in the next.
const TURNS_MAX: usize = 6;

type Endpoint = Rpc<ShmPort, ManualClock>;

/// Three members and a client, all on this thread.
struct Parties {
    clock: ManualClock,
    hosts: Vec<Host<Endpoint, KvStore, SimDisk>>,
    client: Client<Endpoint>,
}

impl Parties {
    /// Founds a cluster, whose leader is the first of `hosts`.
    fn new() -> anyhow::Result<Self> {
        let (hub, clock) = (Hub::new(), ManualClock::new());
        clock.advance(1_000_000);
        let nexus = Nexus::builder().build()?;
        let name = |member: usize| format!("cost{}-{member}", std::process::id());
        let endpoint = |port, seed| Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(seed)));
        let peers: Vec<_> =
            (0..MEMBERS).map(|member| (member.to_string(), format!("shm://{}", name(member)))).collect();
        let mut hosts = Vec::new();
        for member in 0..MEMBERS {
            let rpc = endpoint(hub.port(&format!("{}?arena=67108864", name(member)))?, member as u64);
            let random = Box::new(SeededGenerator::new(16 + member as u64));
            let (config, now_ns) = (MemberConfig::default(), clock.now_ns());
            let member =
                Member::open(config, &member.to_string(), peers.clone(), KvStore::new(), None, random, now_ns)?;
            hosts.push(Host::new(rpc, member)?);
        }
        let rpc = endpoint(hub.port("?arena=67108864")?, MEMBERS as u64);
        let addresses = peers.into_iter().map(|(_, address)| address).collect();
        let client = Client::new(rpc, addresses, Box::new(SeededGenerator::new(32)));
        let mut parties = Self { clock, hosts, client };
        let leads = |host: &Host<Endpoint, KvStore, SimDisk>| host.member().is_leader();
        for _ in 0..10_000 {
            parties.turn()?;
            parties.clock.advance(100_000);
            if let Some(leader) = parties.hosts.iter().position(leads) {
                parties.hosts.swap(0, leader);
                return Ok(parties);
            }
        }
        anyhow::bail!("no member leads")
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.client.turn();
        for host in &mut self.hosts {
            host.turn()?;
        }
        Ok(())
    }
}

/// Makes one PUT at a time.
fn put(count: &mut Count) -> anyhow::Result<()> {
    let Parties { clock, mut hosts, mut client } = Parties::new()?;
    let (mut number, mut command) = (0, Vec::new());
    count.rounds(ROUNDS, ROUNDS, |count| {
        let key = key_bytes(number % KEYS);
        command.clear();
        wire::encode(&Command::Put { key: &key, value: &VALUE }, &mut command);
        count.step("client", 1, || {
            client.run(number, &command, 1_000_000_000)?;
            client.turn();
            anyhow::Ok(())
        })?;
        for turn in 0.. {
            // The first PUT opens sessions.
            ensure!(
                turn < if number == 0 { 10_000 } else { TURNS_MAX },
                "PUT {number} has no answer after {turn} turns"
            );
            for (at, host) in hosts.iter_mut().enumerate() {
                let side = ["leader", "follower", "other follower"][at];
                count.step(side, usize::from(turn == 0), || host.turn())?;
            }
            let answer = count.step("client", 0, || {
                client.turn();
                client.poll()
            });
            if let Some((tag, answer)) = answer {
                ensure!(tag == number && matches!(answer?, RequestOutcome::CommandAnswer(_)));
                break;
            }
            clock.advance(if number == 0 { 100_000 } else { PUT_NS / 8 });
        }
        number += 1;
        clock.advance(PUT_NS);
        Ok(())
    })
}

/// The engine by itself: its work for an entry, with messages passed on as they are.
struct Engine {
    node: RawNode<MemStorage>,
    outbox: Vec<Message>,
}

impl Engine {
    fn new(id: u64) -> anyhow::Result<Self> {
        let storage = MemStorage::new_with_conf_state(((1..=MEMBERS as u64).collect::<Vec<_>>(), Vec::new()));
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        // As members set it: followers learn what is committed from the next entry.
        let config = raft::Config {
            id,
            batch_append: true,
            pre_vote: true,
            check_quorum: true,
            skip_bcast_commit: true,
            ..Default::default()
        };
        Ok(Self { node: RawNode::new(&config, storage, &logger)?, outbox: Vec::new() })
    }

    /// Does what a member has the engine do in a turn, but uses no result of it. Entries go to the engine's own storage
    /// in memory, which counts as its part.
    fn pump(&mut self) -> anyhow::Result<()> {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            self.outbox.extend(ready.take_messages());
            let store = self.node.mut_store();
            if let Some(state) = ready.hs() {
                store.wl().set_hardstate(state.clone());
            }
            store.wl().append(ready.entries())?;
            self.outbox.extend(ready.take_persisted_messages());
            let mut light = self.node.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().wl().mut_hard_state().commit = commit;
            }
            self.outbox.extend(light.take_messages());
            self.node.advance_apply();
        }
        Ok(())
    }

    fn take(&mut self, messages: Vec<Message>) -> anyhow::Result<()> {
        for message in messages {
            self.node.step(message)?;
        }
        self.pump()
    }
}

/// Takes the messages of `nodes` to the node with this number.
fn to(nodes: &mut [Engine], id: u64) -> Vec<Message> {
    let mut messages = Vec::new();
    for node in nodes {
        messages.extend(node.outbox.extract_if(.., |message| message.to == id));
    }
    messages
}

fn engine(count: &mut Count) -> anyhow::Result<()> {
    let mut nodes = (1..=MEMBERS as u64).map(Engine::new).collect::<anyhow::Result<Vec<_>>>()?;
    nodes[0].node.campaign()?;
    nodes[0].pump()?;
    for _ in 0..8 {
        for at in 0..MEMBERS {
            let messages = to(&mut nodes, at as u64 + 1);
            nodes[at].take(messages)?;
        }
    }
    ensure!(nodes[0].node.raft.state == raft::StateRole::Leader, "the first does not lead");
    let mut last = nodes[0].node.store().last_index()?;
    count.rounds(ROUNDS, ROUNDS, |count| {
        count.step("leader", 1, || {
            // As long as a member's entry for such a PUT: command, session, numbers. The engine takes ownership of a
            // vector.
            nodes[0].node.propose(Vec::new(), vec![0; 100])?;
            nodes[0].pump()
        })?;
        for (at, side) in [(1, "follower"), (2, "other follower"), (0, "leader")] {
            let messages = to(&mut nodes, at as u64 + 1);
            count.step(side, usize::from(at != 0), || nodes[at].take(messages))?;
        }
        last += 1;
        let committed = nodes[0].node.raft.raft_log.committed;
        ensure!(committed == last, "{committed} of {last} entries are decided");
        Ok(())
    })?;
    let knows = |node: &Engine| node.node.raft.raft_log.committed + 1 == last;
    ensure!(nodes[1..].iter().all(knows), "a follower does not know all entries but the last to be committed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
