//! Routes: the links that lead from each node to each host.

use std::collections::{HashMap, VecDeque};

use crate::topology::{HostId, NodeId, Topology, TopologyError};

/// One direction of a link: link 3 has direction 6, from its first end to its second, and direction 7 back.
pub(crate) type Direction = u32;

/// For each node and each host, the directions on a shortest path there.
#[derive(Debug)]
pub(crate) struct Routes {
    hosts: usize,
    /// For each node, hosts before switches: its choice towards host 0, host 1, and so on.
    choices: Vec<Choice>,
    /// The directions to choose from. Equal choices of a node for several hosts are stored once, to fit in a core's
    /// cache.
    links: Vec<Direction>,
}

/// Some of [`Routes::links`].
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// Index of the first direction; for a single one, the usual case, that direction itself.
    start: u32,
    count: u32,
}

impl Routes {
    pub fn new(topology: &Topology) -> Result<Self, TopologyError> {
        let (hosts, nodes) = (topology.hosts.len(), topology.hosts.len() + topology.switches.len());
        let leaving = outgoing(topology);
        let mut to_host: Vec<Vec<u32>> = Vec::with_capacity(hosts);
        for host in 0..hosts {
            to_host.push(distances(&leaving, host, hosts));
        }
        let mut routes = Self { hosts, choices: Vec::with_capacity(nodes * hosts), links: Vec::new() };
        for (node, leaving) in leaving.iter().enumerate() {
            let mut known: HashMap<Vec<Direction>, u32> = HashMap::new();
            for (host, distance) in to_host.iter().enumerate() {
                if node == host {
                    routes.choices.push(Choice { start: 0, count: 0 });
                    continue;
                }
                let shorter = leaving.iter().filter(|(_, next)| distance[*next].saturating_add(1) == distance[node]);
                let directions: Vec<Direction> = shorter.map(|(direction, _)| *direction).collect();
                let count = directions.len() as u32;
                let start = match directions[..] {
                    [direction] => direction,
                    _ => *known.entry(directions).or_insert_with_key(|directions| {
                        routes.links.extend(directions);
                        routes.links.len() as u32 - count
                    }),
                };
                routes.choices.push(Choice { start, count });
                if node < hosts && distance[node] == u32::MAX {
                    return Err(unreachable(topology, node, host));
                }
            }
        }
        Ok(routes)
    }

    /// The first direction of one of the shortest paths from `node` towards `host`, always the same for a flow. None
    /// from a host to itself.
    #[inline]
    pub fn next_link(&self, node: NodeId, host: HostId, flow: u32) -> Option<Direction> {
        let index = node_index(self.hosts, node) * self.hosts + host.0;
        let Choice { start, count } = self.choices[index];
        match count {
            0 => None,
            1 => Some(start),
            _ => self.links.get((start + flow % count) as usize).copied(),
        }
    }
}

/// Checks that every host reaches every other one. [`Routes::new`] checks this too, in far more time.
pub(crate) fn check_reachable(topology: &Topology) -> Result<(), TopologyError> {
    let (hosts, leaving) = (topology.hosts.len(), outgoing(topology));
    // Usually some switch reaches all hosts.
    if (hosts..leaving.len())
        .any(|switch| distances(&leaving, switch, hosts)[..hosts].iter().all(|far| *far < u32::MAX))
    {
        return Ok(());
    }
    for from in 0..hosts {
        if let Some(to) = distances(&leaving, from, hosts)[..hosts].iter().position(|far| *far == u32::MAX) {
            return Err(unreachable(topology, from, to));
        }
    }
    Ok(())
}

/// The directions that leave each node, and the nodes that they lead to.
fn outgoing(topology: &Topology) -> Vec<Vec<(Direction, usize)>> {
    let hosts = topology.hosts.len();
    let mut leaving: Vec<Vec<(Direction, usize)>> = vec![Vec::new(); hosts + topology.switches.len()];
    for (index, link) in topology.links.iter().enumerate() {
        let [a, b] = link.ends.map(|end| node_index(hosts, end));
        leaving[a].push((2 * index as u32, b));
        leaving[b].push((2 * index as u32 + 1, a));
    }
    leaving
}

fn unreachable(topology: &Topology, from: usize, to: usize) -> TopologyError {
    let name = |host| topology.name_of(NodeId::Host(HostId(host)));
    TopologyError::NoWay { from: name(from), to: name(to) }
}

fn node_index(hosts: usize, node: NodeId) -> usize {
    match node {
        NodeId::Host(host) => host.0,
        NodeId::Switch(switch) => hosts + switch.0,
    }
}

/// Number of links from each node to `host`. Hosts forward nothing.
fn distances(leaving: &[Vec<(Direction, usize)>], host: usize, hosts: usize) -> Vec<u32> {
    let mut distance = vec![u32::MAX; leaving.len()];
    distance[host] = 0;
    let mut next = VecDeque::from([host]);
    while let Some(node) = next.pop_front() {
        if node < hosts && node != host {
            continue;
        }
        // Links go both ways.
        for (_, neighbour) in &leaving[node] {
            if distance[*neighbour] == u32::MAX {
                distance[*neighbour] = distance[node] + 1;
                next.push_back(*neighbour);
            }
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Buffer, LinkSpec, SwitchId, SwitchSpec};

    fn two_tiers() -> Topology {
        let mut topology = Topology::star(4, 10.0, 100, 1500);
        for name in ["spine-a", "spine-b", "tor"] {
            let spec = SwitchSpec {
                name: name.to_owned(),
                latency_ns: 0,
                buffer: Buffer::PerPort { bytes: 1 },
                ecn: None,
                pause: None,
            };
            topology.switch(spec);
        }
        let mut join = |a, b| {
            topology.link(LinkSpec { ends: [a, b], rate_gbps: 10.0, delay_ns: 1, mtu: 1500 });
        };
        let switch = |index| NodeId::Switch(SwitchId(index));
        for spine in [1, 2] {
            join(switch(0), switch(spine));
            join(switch(spine), switch(3));
        }
        topology
    }

    #[test]
    fn flows_share_equal_ways_and_keep_theirs() {
        let mut topology = two_tiers();
        let far = topology.host(crate::topology::HostSpec {
            name: "far".to_owned(),
            transmit_latency_ns: 0,
            receive_latency_ns: 0,
        });
        topology.link(LinkSpec {
            ends: [NodeId::Host(far), NodeId::Switch(SwitchId(3))],
            rate_gbps: 10.0,
            delay_ns: 1,
            mtu: 1500,
        });
        let routes = Routes::new(&topology).unwrap();
        let next_link = |flow| routes.next_link(NodeId::Switch(SwitchId(0)), far, flow);
        assert_eq!([next_link(0), next_link(1), next_link(2)], [Some(8), Some(12), Some(8)]);
        assert_eq!(routes.next_link(NodeId::Switch(SwitchId(0)), HostId(2), 77), Some(5));
        assert_eq!(routes.next_link(NodeId::Host(far), HostId(2), 3), Some(16));
        assert_eq!(routes.next_link(NodeId::Host(far), far, 3), None);
    }

    #[test]
    fn hosts_that_cannot_reach_each_other_are_named() {
        let mut topology = two_tiers();
        topology.host(crate::topology::HostSpec {
            name: "alone".to_owned(),
            transmit_latency_ns: 0,
            receive_latency_ns: 0,
        });
        for error in [Routes::new(&topology).unwrap_err(), check_reachable(&topology).unwrap_err()] {
            assert_eq!(error.to_string(), "there is no way from node0 to alone; join them with links");
        }
        check_reachable(&two_tiers()).unwrap();
    }

    #[test]
    fn hosts_forward_nothing() {
        let mut topology = Topology::star(1, 10.0, 1, 1500);
        let link = |a, b| LinkSpec { ends: [NodeId::Host(a), b], rate_gbps: 1.0, delay_ns: 1, mtu: 1500 };
        let host = |name: &str| crate::topology::HostSpec {
            name: name.to_owned(),
            transmit_latency_ns: 0,
            receive_latency_ns: 0,
        };
        let middle = topology.host(host("middle"));
        let end = topology.host(host("end"));
        topology.link(link(middle, NodeId::Switch(SwitchId(0))));
        topology.link(link(middle, NodeId::Host(end)));
        assert!(matches!(Routes::new(&topology), Err(TopologyError::NoWay { .. })));
        assert_eq!(check_reachable(&topology).unwrap_err(), Routes::new(&topology).unwrap_err());
        // A host that is joined to each other host needs no switch.
        let end = NodeId::Host(end);
        topology.link(link(HostId(0), end));
        Routes::new(&topology).unwrap();
        check_reachable(&topology).unwrap();
    }
}
