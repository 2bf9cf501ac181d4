//! Totals counted up to some time, and the places where packets were lost.

use sinew_fabric::Dropped;
use sinew_mem::HEADER_ROOM;
use sinew_sim::{Cluster, CoreTime, LinkId, LinkSpec, LinkStats, NetworkStats, Topology};

use super::group::Running;
use crate::programs::Endpoint;
use crate::workload::report::Drops;

/// Totals of the network, its links and the groups.
pub struct Totals {
    pub network: NetworkStats,
    /// Totals of each direction of each link.
    pub links: Vec<LinkStats>,
    pub groups: Vec<GroupTotals>,
}

#[derive(Clone, Debug, Default)]
pub struct GroupTotals {
    pub name: String,
    pub data_bytes: f64,
    pub retransmissions: u64,
    /// Packets that found a receive queue full, at clients and at servers.
    pub overflowed: [u64; 2],
    /// Time of all clients' cores, and of all servers' cores.
    pub cores: [CoreTime; 2],
}

impl GroupTotals {
    fn add(&mut self, rpc: &Endpoint, side: usize) {
        let (port, stats) = (rpc.port_stats(), rpc.stats());
        let data = port.rx_bytes.saturating_sub(HEADER_ROOM as u64 * port.rx_packets) as f64;
        let wasted_share = stats.dropped_total() as f64 / port.rx_packets.max(1) as f64;
        self.data_bytes += data * (1.0 - wasted_share).max(0.0);
        self.retransmissions += stats.retransmissions;
        self.overflowed[side] += port.dropped(Dropped::Overflow);
    }
}

impl Totals {
    /// Totals of all groups and links up to now.
    pub fn of(cluster: &Cluster, groups: &[Running], links: usize) -> Self {
        Self {
            network: cluster.network().stats(),
            links: (0..links).flat_map(|link| cluster.network().link_stats(LinkId(link))).collect(),
            groups: groups.iter().map(|running| GroupTotals::of(cluster, running)).collect(),
        }
    }
}

impl GroupTotals {
    /// Totals of a group up to now.
    pub fn of(cluster: &Cluster, running: &Running) -> Self {
        let mut totals = Self { name: running.group.name.clone(), ..Self::default() };
        running.clients.iter().for_each(|(_, client)| totals.add(client.borrow().rpc(), 0));
        running.servers.iter().for_each(|server| totals.add(&server.borrow(), 1));
        totals.cores = running.cores.each_ref().map(|cores| {
            cores.iter().map(|core| cluster.core_time(*core)).fold(CoreTime::default(), |all, core| CoreTime {
                worked_ns: all.worked_ns + core.worked_ns,
                polled_ns: all.polled_ns + core.polled_ns,
                slept_ns: all.slept_ns + core.slept_ns,
            })
        });
        totals
    }
}

pub fn drops(topology: &Topology, before: &Totals, after: &Totals) -> Vec<Drops> {
    let at_links = after.links.iter().zip(&before.links).enumerate();
    let (full, faulty): (Vec<_>, Vec<_>) = at_links
        .map(|(lane, (after, before))| {
            let name = lane_name(topology, lane);
            let faulty = (format!("{name}, by faults of the link"), after.failed - before.failed);
            ((name, after.overflowed - before.overflowed), faulty)
        })
        .unzip();
    let at_ports = after.groups.iter().zip(&before.groups).flat_map(|(after, before)| {
        let lost = [0, 1].map(|side| after.overflowed[side] - before.overflowed[side]);
        ["clients", "servers"].map(|side| format!("receive queues of {}'s {side}", after.name)).into_iter().zip(lost)
    });
    let drops = full.into_iter().chain(at_ports).chain(faulty).filter(|(_, packets)| *packets > 0);
    let mut drops: Vec<Drops> = drops.map(|(place, packets)| Drops { place, packets }).collect();
    drops.sort_by_key(|drops| std::cmp::Reverse(drops.packets));
    drops
}

/// Name of a link's direction.
pub fn lane_name(topology: &Topology, lane: usize) -> String {
    let [a, b] = topology.links[lane / 2].ends.map(|end| topology.name_of(end));
    let (from, to) = if lane.is_multiple_of(2) { (a, b) } else { (b, a) };
    // Each of several links between two nodes has a number.
    let is_same = |link: &&LinkSpec| link.ends == topology.links[lane / 2].ends;
    let number = topology.links[..lane / 2].iter().filter(is_same).count();
    let of = topology.links.iter().filter(is_same).count();
    if of > 1 { format!("{from} to {to}, link {number}") } else { format!("{from} to {to}") }
}

/// Share of the cores' time that was work; the rest was polling that found nothing. Time asleep does not count.
pub fn at_work(before: &CoreTime, after: &CoreTime) -> f64 {
    let worked_ns = (after.worked_ns - before.worked_ns) as f64;
    let polled_ns = after.polled_ns.saturating_sub(before.polled_ns) as f64;
    worked_ns / (worked_ns + polled_ns).max(1.0)
}
