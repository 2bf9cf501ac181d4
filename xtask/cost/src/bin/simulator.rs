//! A packet through the simulator (pushed, carried over three hops, received), and verbs between modelled NICs.

use anyhow::ensure;
use sinew_cost::{Count, Operation, operation};
use sinew_fabric::verbs::{
    Access, CompletionQueue, Device, Exposed, Operation as Verb, ProtectionDomain, QpConfig, QueuePair, Request,
    Source, ThreadDomain, Transport,
};
use sinew_fabric::{PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket};
use sinew_mem::MessageBuffer;
use sinew_sim::nic::Profile;
use sinew_sim::{HostId, Network, PortConfig, Topology};

const OPERATIONS: &[Operation] = &[
    operation("delivered packet of the simulator", &["simulator"], packets),
    operation("WRITE of 32 B between modelled NICs", &["simulator"], writes),
    operation("READ of 32 B between modelled NICs", &["simulator"], reads),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const HOSTS: usize = 11;
/// Packets that each host sends in a round, each to another host.
const BURST: usize = 3;
const ROUNDS: usize = 128;
/// Length of a round in ns: long enough for all its packets to arrive.
const ROUND_NS: u64 = 50_000;

fn packets(count: &mut Count) -> anyhow::Result<()> {
    let network = Network::new(Topology::cx4(), 1)?;
    let config = PortConfig { arena_bytes: 1 << 20, ..PortConfig::default() };
    let ports = (0..HOSTS).map(|host| network.open(HostId(host), &format!("port{host}"), config));
    let mut ports = ports.collect::<Result<Vec<_>, _>>()?;
    let peers: Vec<_> = ports.iter().map(|port| port.peer()).collect();
    let head = [7; 56];
    let mut round = 0;
    count.rounds(ROUNDS, ROUNDS, |count| {
        let arrived = count.step("simulator", HOSTS * BURST, || {
            for (host, port) in ports.iter_mut().enumerate() {
                let (_, tx) = port.split();
                for nth in 1..=BURST {
                    // Destinations change in each round, so that no packet takes the path of the one before.
                    let to = peers[(host + 1 + (round + nth) % (HOSTS - 1)) % HOSTS];
                    tx.push(TxPacket { to, head: &head, data: TxData::None });
                }
                tx.submit();
            }
            network.run_until(network.now_ns() + ROUND_NS);
            let mut arrived = 0;
            for port in &mut ports {
                let mut burst = RxBurst::new(0);
                port.split().0.receive(&mut burst);
                arrived += burst.packets.len();
            }
            arrived
        });
        ensure!(arrived == HOSTS * BURST, "{arrived} packets");
        round += 1;
        Ok(())
    })
}

/// Verbs posted in a round, one by one.
const VERBS: usize = 16;

fn writes(count: &mut Count) -> anyhow::Result<()> {
    verbs(count, Transport::Uc)
}

fn reads(count: &mut Count) -> anyhow::Result<()> {
    verbs(count, Transport::Rc)
}

/// Posts inline WRITEs over UC, or READs over RC, from one host to another; only each round's last is signaled.
fn verbs(count: &mut Count, transport: Transport) -> anyhow::Result<()> {
    let network = Network::new(Topology::star(2, 54.54, 25, 4296), 1)?;
    let profile = Profile::built_in("cx3").expect("it is built in");
    let config = QpConfig { send_depth: VERBS, receive_depth: 1, ..QpConfig::new(transport) };
    let mut ends = Vec::new();
    for host in 0..2 {
        network.attach_nic(HostId(host), &profile)?;
        let device = network.verbs(HostId(host), &format!("actor {host}"))?;
        let domain = device.protection_domain()?;
        let thread = domain.thread()?;
        let cq = thread.completion_queue(2 * VERBS)?;
        let qp = thread.queue_pair(&config, &cq, &cq)?;
        ends.push((domain, cq, qp));
    }
    let (domain, _cq, mut far) = ends.pop().expect("two ends");
    let (ours, mut cq, mut near) = ends.pop().expect("two ends");
    near.connect(Some(&far.address()))?;
    far.connect(Some(&near.address()))?;
    let memory = domain.expose(4096, Access::ALL)?;
    let arena = ours.arena(1 << 16)?;
    let mut targets = (0..VERBS).map(|_| arena.alloc(32, 32)).collect::<Result<Vec<MessageBuffer>, _>>()?;
    let mut completions = Vec::new();
    count.rounds(ROUNDS, ROUNDS, |count| {
        let last_polled = count.step("simulator", VERBS, || {
            for nth in 1..=VERBS {
                let remote = memory.remote();
                let target = if transport == Transport::Rc { targets.pop() } else { None };
                let operation = match target {
                    Some(target) => Verb::Read { target: [target].into_iter().collect(), remote },
                    None => Verb::Write { source: Source::Inline(&[7; 32]), remote, immediate: None },
                };
                let mut request = Request::new(0, operation);
                request.signaled = nth == VERBS;
                near.post(request).expect("there is room");
            }
            network.run_until(network.now_ns() + ROUND_NS);
            let polled = cq.poll(&mut completions, 2 * VERBS);
            targets.extend(completions.drain(..).flat_map(|completion| completion.buffers));
            polled
        });
        let expected = if transport == Transport::Rc { VERBS } else { 1 };
        ensure!(last_polled == expected, "{last_polled} completions");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
