//! The tour's part about a replicated store: three members in processes of their own.

use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use sinew::host::{HostClock, Interrupt, SystemEntropy};
use sinew::prelude::*;
use sinew::replica::client::Client;
use sinew_harness::load::replica::{Replica, ReplicaRequest, Shape};
use sinew_harness::load::{Drive, Slice};
use sinew_harness::run::Progress;
use sinew_harness::{Comparison, Figure, MeasureSides, Run, Unit};

use super::cluster;
use crate::child::ServerProcess;
use crate::fabrics::Fabric;

const NAMES: [&str; 3] = ["a", "b", "c"];
const SHAPE: Shape = Shape { window: 1, keys: 1_000, value_len: 64, timeout_ns: 5_000_000_000 };

/// Measures PUTs, one at a time, beside reads that one member answers alone.
pub fn puts(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let addresses = NAMES.iter().map(|_| Fabric::Shm.fresh_address("")).collect::<anyhow::Result<Vec<_>>>()?;
    let peers: Vec<_> = NAMES.iter().zip(&addresses).map(|(name, address)| format!("{name}={address}")).collect();
    let mut members = Vec::new();
    for name in NAMES {
        let args = ["serve", "replica", "--name", name, "--peers", &peers.join(",")];
        members.push(ServerProcess::spawn(&args.map(str::to_owned))?);
    }
    let nexus = Nexus::builder().config(cluster::config()).build()?;
    let rpc = Rpc::open_with(&nexus, &Fabric::Shm.client_address("", None))?;
    let client = Client::new(rpc, addresses, Box::new(SystemEntropy::new()?));
    let clock = HostClock::new();
    let load = Replica::new(client, clock.clone(), SHAPE, 1);
    let mut sides = Sides { load, clock, interrupt, sum: Slice::new() };
    let run = Run {
        duration,
        pair: None,
        pins: Vec::new(),
        servers: members.iter().map(ServerProcess::id).collect(),
        judged: 2,
        yardstick: None,
        interrupt,
    };
    let measured = run.measure_alternately(2, &mut sides, progress)?;
    let figure = measured.figure("replica put", "a PUT of 64 B", Unit::Ns, 0);
    let mut figure = figure.compared_with(&measured, 1, Comparison::Baseline, "a read that one member answers alone");
    figure.setup =
        json!({ "members": NAMES.len(), "value_len": SHAPE.value_len, "in_flight": SHAPE.window, "fabric": "shm" });
    figure.details = json!({ "puts": sides.sum.done });
    figure.latency = Some(sides.sum.latency);
    Ok(figure)
}

struct Sides {
    load: Replica<Rpc, HostClock>,
    clock: HostClock,
    interrupt: Interrupt,
    /// Results of the PUTs.
    sum: Slice,
}

impl MeasureSides for Sides {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        self.load.set_kind(if side == 0 { ReplicaRequest::Puts } else { ReplicaRequest::Reads });
        let slice = self.load.drive(&self.clock, duration, self.interrupt)?;
        if side == 0 {
            self.sum.add(&slice);
        }
        Ok(Some(slice.latency.value_at_quantile(0.5) as f64))
    }

    fn reset_sums(&mut self) {
        self.sum = Slice::new();
    }
}
