//! What the tour shows of the cache.

use std::time::Duration;

use super::load::Load;
use super::{memcached, rpc};
use crate::fabrics::Fabric;
use crate::limits::References;
use crate::machine;
use crate::serve::LimitArgs;
use crate::tour::Row;
use crate::workload::{Distribution, Order, Sizes, Workload};

/// Keys of the cache.
const KEYS: usize = 100_000;
/// Bytes of a value.
const VALUE_SIZE: usize = 32;

/// The cache over RPC on shared memory.
pub fn over_shm(duration: Duration) -> anyhow::Result<Row> {
    over_rpc(Fabric::Shm, 128, duration)
}

/// The cache over RPC on UDP.
pub fn over_udp(duration: Duration) -> anyhow::Result<Row> {
    over_rpc(Fabric::Udp, 512, duration)
}

/// A client of memcached's protocol, which asks ours, over TCP.
pub fn memcached(duration: Duration) -> anyhow::Result<Row> {
    let pair = machine::default_pair();
    let plan = memcached::Plan {
        workload: Workload { keys: KEYS / 10, ..workload() },
        load: memcached::Load {
            connections: 1,
            depth: 64,
            keys_per_get: 1,
            wire: memcached::Wire::Text,
            value_size: VALUE_SIZE,
            rate: None,
        },
        target: memcached::Target::Ours { unix: false },
        duration,
        client_cpu: pair.map(|cpus| cpus[0]),
        server_cpu: pair.map(|cpus| cpus[1]),
    };
    memcached::measure(&plan, &mut |_, _| ()).map(|figures| figures.row())
}

fn workload() -> Workload {
    Workload {
        keys: KEYS,
        distribution: Distribution::Uniform,
        get_percent: 95.0,
        order: Order::Alike,
        sizes: Sizes::Fixed(VALUE_SIZE),
        seed: 1,
    }
}

/// GETs and PUTs, with every value checked, beside echoes of the same messages.
fn over_rpc(fabric: Fabric, window: usize, duration: Duration) -> anyhow::Result<Row> {
    let pair = machine::default_pair();
    let plan = rpc::Plan {
        fabric,
        workload: workload(),
        mix: None,
        load: Load { window, batch: 16, keys_per_get: 1, rate: None },
        threads: 1,
        client_cpus: vec![pair.map(|cpus| cpus[0])],
        server_cpus: vec![pair.map(|cpus| cpus[1])],
        address: None,
        options: String::new(),
        duration,
        limits: LimitArgs::default(),
        references: References::default(),
        has_peers: false,
    };
    rpc::measure(&plan, &mut |_, _| ()).map(|figures| figures.row())
}
