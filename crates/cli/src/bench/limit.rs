//! The limit beside each figure.

use std::time::Duration;

use sinew::udp::raw::Mode;

use super::result::Kind;
use super::run::Plan;
use crate::fabrics::Fabric;
use crate::limits::{self, HEADER_LEN};
use crate::machine::Pair;

/// Bytes of the raw packets beside a bandwidth over UDP.
const UDP_BANDWIDTH_PACKET: usize = 4096;

/// Measures what the machine allows for what a plan measures.
pub struct LimitMeter {
    kind: Kind,
    fabric: Fabric,
    cpus: Pair,
    packet_len: usize,
    window: usize,
    batch: usize,
    coalesces: bool,
}

impl LimitMeter {
    /// The limit for a plan.
    pub fn new(plan: &Plan) -> Self {
        let cpus = match (plan.client_cpus[0], plan.server_cpus[0]) {
            (Some(client), Some(server)) => Some([client, server]),
            _ => None,
        };
        let address = plan.address.as_deref().unwrap_or(&plan.options);
        Self {
            kind: plan.kind,
            fabric: plan.fabric,
            cpus,
            packet_len: plan.size + HEADER_LEN,
            window: plan.window,
            batch: plan.batch,
            coalesces: !address.contains("coalesce=off"),
        }
    }

    /// The processors that it uses.
    pub fn cpus(&self) -> Pair {
        self.cpus
    }

    /// Measures once.
    pub fn measure(&self, duration: Duration) -> anyhow::Result<f64> {
        let Self { cpus, packet_len, window, batch, .. } = *self;
        match (self.kind, self.fabric) {
            (Kind::Latency, Fabric::Udp) => limits::udp_round_trip_ns(cpus, packet_len.min(60_000), duration),
            (Kind::Latency, _) => {
                Ok(limits::ring_round_trips(cpus, packet_len, duration)?.value_at_quantile(0.5) as f64)
            }
            (Kind::Rate, Fabric::Udp) => {
                let mode = if self.coalesces { Mode::Joined } else { Mode::List };
                limits::udp_echo_mops(cpus, mode, packet_len.min(60_000), window, batch, duration)
            }
            (Kind::Rate | Kind::Scale, _) => limits::ring_echo_mops(cpus, packet_len, window, batch, duration),
            (Kind::Bandwidth, Fabric::Udp) => limits::udp_bandwidth_gbps(cpus, UDP_BANDWIDTH_PACKET, duration),
            (Kind::Bandwidth, _) => Ok(limits::copy_fresh_bytes_per_s(cpus, duration)? * 8e-9),
        }
    }
}
