//! What the tour shows of the cache.

use std::time::Duration;

use sinew_harness::Figure;
use sinew_harness::load::{cache, memcached::Shape, memcached::Wire};
use sinew_harness::run::Progress;
use sinew_harness::workload::{Distribution, Order, Sizes, Workload};

use super::memcached::{self, MemcachedPlan};
use super::rpc::{self, CachePlan};
use crate::endpoint_args::LimitArgs;
use crate::fabrics::Fabric;
use crate::measure::Setting;

/// Keys of the cache.
const KEYS: usize = 100_000;
/// Bytes of a value.
const VALUE_SIZE: usize = 32;

/// GETs and PUTs over RPC, with every value checked, beside echoes of the same messages.
pub fn over_rpc(fabric: Fabric, duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let window = if fabric == Fabric::Udp { 512 } else { 128 };
    let plan = CachePlan {
        fabric,
        workload: workload(KEYS),
        mix: None,
        shape: cache::Shape { window, batch: 16, keys_per_get: 1, rate: None },
        setting: Setting::of_tour(duration),
        address: None,
        options: String::new(),
        limits: LimitArgs::default(),
        has_peers: false,
    };
    rpc::measure(&plan, progress)
}

/// A client of memcached's protocol, which asks ours, over TCP.
pub fn memcached(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let plan = MemcachedPlan {
        workload: workload(KEYS / 10),
        shape: Shape {
            connections: 1,
            depth: 64,
            keys_per_get: 1,
            wire: Wire::Text,
            value_size: VALUE_SIZE,
            rate: None,
        },
        connect: None,
        has_peer: false,
        unix: false,
        setting: Setting::of_tour(duration),
    };
    memcached::measure(&plan, progress)
}

fn workload(keys: usize) -> Workload {
    Workload {
        keys,
        distribution: Distribution::Uniform,
        get_percent: 95.0,
        order: Order::Alike,
        sizes: Sizes::Fixed(VALUE_SIZE),
        seed: 1,
    }
}
