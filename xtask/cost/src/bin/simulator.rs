//! A packet through the simulator: pushed, carried over three hops, received.

use anyhow::ensure;
use sinew_cost::{Count, Operation, operation};
use sinew_fabric::{PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket};
use sinew_sim::{HostId, Network, PortConfig, Topology};

const OPERATIONS: &[Operation] = &[operation("delivered packet of the simulator", &["simulator"], packets)];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const HOSTS: usize = 11;
/// Packets that each host sends in a round, to as many others.
const BURST: usize = 3;
const ROUNDS: usize = 128;
/// Long enough for all of them to arrive.
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
                    // To others in each round, so that its way is not the one before.
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

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
