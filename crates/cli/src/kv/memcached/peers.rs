//! memcached and Redis, measured beside a cache of ours that speaks another protocol.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use sinew::host::Interrupt;

use super::client::{Client, Load, Wire};
use super::servers::{self, Server};
use super::{Plan, Target};
use crate::units;
use crate::workload::Workload;

/// Connections, and requests in flight on each: enough that a server of one thread always has some to answer.
const OF_MEMCACHED: [usize; 2] = [8, 128];
const OF_REDIS: [usize; 2] = [16, 64];

/// See the module. They end when this is dropped.
pub struct Peers(Vec<Peer>);

struct Peer {
    name: String,
    client: Client,
    server: Option<Server>,
    rates: Vec<f64>,
}

/// What came of one of them: its name, and millions of keys in a second, slice by slice.
pub struct Measured {
    pub name: String,
    pub rates: Vec<f64>,
}

impl Peers {
    /// Starts both, with one thread each, on the processor `server_cpu`, and stores all keys.
    pub fn start(
        workload: &Workload,
        value_size: usize,
        server_cpu: Option<usize>,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let one =
            |wire, [connections, depth]: [usize; 2], start: fn(&Plan, bool) -> anyhow::Result<servers::Started>| {
                let load = Load { connections, depth, keys_per_get: 1, wire, value_size, rate: None };
                let plan = Plan {
                    workload: *workload,
                    load,
                    target: Target::Ours { unix: false },
                    duration: Duration::ZERO,
                    client_cpu: None,
                    server_cpu,
                };
                let (name, address, server) = start(&plan, false)?;
                let mut client = Client::connect(&address, load, workload, interrupt)?;
                client.fill(workload.keys as u64).with_context(|| format!("filling {name} at {address}"))?;
                Ok::<_, anyhow::Error>(Peer { name, client, server, rates: Vec::new() })
            };
        Ok(Self(vec![one(Wire::Meta, OF_MEMCACHED, servers::memcached)?, one(Wire::Redis, OF_REDIS, servers::redis)?]))
    }

    /// Their processes.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter_map(|peer| Some(peer.server.as_ref()?.id()))
    }

    /// Measures a slice of each.
    pub fn run(&mut self, duration: Duration) -> anyhow::Result<()> {
        for peer in &mut self.0 {
            let slice = peer.client.run(duration).with_context(|| peer.name.clone())?;
            peer.rates.push(slice.mops());
        }
        Ok(())
    }

    /// What came of it.
    pub fn end(self) -> Vec<Measured> {
        self.0.into_iter().map(|Peer { name, rates, .. }| Measured { name, rates }).collect()
    }
}

impl Measured {
    /// How many times as fast `ours` was, slice by slice; the median.
    pub fn times(&self, ours: &[f64]) -> f64 {
        let ratios: Vec<f64> = ours.iter().zip(&self.rates).map(|(ours, theirs)| ours / theirs).collect();
        units::median(&ratios)
    }

    pub fn json(&self, ours: &[f64]) -> Value {
        json!({
            "server": self.name,
            "rate_mops": units::rounded(units::median(&self.rates)),
            "slices": self.rates.iter().copied().map(units::rounded).collect::<Vec<_>>(),
            "ours_over_theirs": units::rounded(self.times(ours)),
        })
    }

    pub fn text(&self, ours: &[f64]) -> String {
        format!(
            "{}: {} M/s; ours is {} times as fast",
            self.name,
            units::figure(units::median(&self.rates)),
            units::figure(self.times(ours))
        )
    }
}
