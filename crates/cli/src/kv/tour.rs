//! The cache's part of the tour.

use std::time::Duration;

use sinew_harness::Figure;
use sinew_harness::load::memcached::Wire;
use sinew_harness::run::Progress;

use super::{memcached, rpc};
use crate::fabrics::Fabric;
use crate::measure::parse_args;

/// Measures GETs and PUTs over RPC, with every value checked, beside calls of the same lengths.
pub fn over_rpc(fabric: Fabric, duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let args: rpc::Args = parse_args(&["--fabric", fabric.name(), "--keys", "100K"], duration)?;
    rpc::measure(&args.plan()?, progress)
}

/// Measures our cache with a client of memcached's protocol, over TCP.
pub fn memcached(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let args: memcached::ClientArgs = parse_args(&["--keys", "10K"], duration)?;
    memcached::measure(&args.plan(Wire::Text, 1, false)?, progress)
}
