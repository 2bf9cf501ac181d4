//! memcached and Redis as peers of a cache of ours that speaks another protocol.

use serde_json::{Value, json};
use sinew::host::Interrupt;
use sinew_harness::Measured;
use sinew_harness::units;
use sinew_harness::workload::Workload;

use super::Side;
use super::servers::{self, ServerPlan, Started};
use sinew_harness::load::memcached::{Shape, Wire};

/// Connections, and requests in flight on each: enough that a server with one thread is never without work.
const OF_MEMCACHED: [usize; 2] = [8, 128];
const OF_REDIS: [usize; 2] = [16, 64];

/// A peer server with the load that it gets. The server ends when this is dropped.
pub type Peer = (Shape, Side);

/// Result of a peer, for people and programs.
pub struct PeerResult {
    pub text: String,
    pub json: Value,
}

/// Starts both, with one thread each, on the processor `server_cpu`, and stores all keys.
pub fn start(
    workload: &Workload,
    value_size: usize,
    client_cpu: Option<usize>,
    server_cpu: Option<usize>,
    interrupt: Interrupt,
) -> anyhow::Result<Vec<Peer>> {
    let one = |wire, [connections, depth]: [usize; 2], start: fn(&ServerPlan) -> anyhow::Result<Started>| {
        let memory_mb = servers::memory_mb(workload.keys, value_size);
        let plan = ServerPlan { keys: workload.keys, memory_mb, cpu: server_cpu, unix: false };
        let shape = Shape { connections, depth, keys_per_get: 1, wire, value_size, rate: None };
        anyhow::Ok((shape, Side::start(start(&plan)?, shape, workload, client_cpu, interrupt)?))
    };
    Ok(vec![one(Wire::Meta, OF_MEMCACHED, servers::memcached)?, one(Wire::Redis, OF_REDIS, servers::redis)?])
}

/// Results of the peers, which were the sides from `first` on. The ratio of our rate to theirs is the median of the
/// ratios slice by slice.
pub fn results(peers: Vec<Peer>, measured: &Measured, first: usize) -> Vec<PeerResult> {
    let result = |(index, (shape, side)): (usize, Peer)| {
        let (rates, times) = (measured.slices(first + index), measured.median_ratio(0, first + index));
        let Started { name, command, .. } = &side.started;
        let Shape { connections, depth, .. } = shape;
        let (rate, hits) = (units::median(&rates), side.sum.hit_percent());
        let times_text = times.map_or_else(|| "not comparable".to_owned(), units::figure);
        let missed = if hits < 99.95 { ", since it evicted the other keys to stay within its memory" } else { "" };
        PeerResult {
            text: format!(
                "{name}: {} M/s, ours is {times_text} times as fast; {hits:.1} % of its gets hit{missed}; started as `{command}`, \
                     {} with {depth} in flight each",
                units::figure(rate),
                units::counted(connections, "connection")
            ),
            json: json!({
                "server": name,
                "command": command,
                "connections": connections,
                "depth": depth,
                "rate_mops": units::rounded(rate),
                "hit_percent": units::rounded(hits),
                "slices": units::rounded_all(&rates),
                "ours_over_theirs": times.map(units::rounded),
            }),
        }
    };
    peers.into_iter().enumerate().map(result).collect()
}
