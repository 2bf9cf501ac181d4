//! Whether a limit can be trusted: a well-known quantity, measured beside it, against what it is on a quiet machine.
//!
//! A limit that something else on the machine holds down makes the figure beside it look good. So each benchmark also
//! measures a *yardstick*, before and after: something whose value on a quiet machine is known. Where it falls short of 70 % of
//! that, the result is marked invalid. The references built in were measured on a virtual machine with two processors of a
//! current server. Other machines give their own, once measured when they were quiet: `sinew limits --json`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{HEADER_LEN, copy_own_bytes_per_s, ring_round_trips, udp_bandwidth_gbps, udp_round_trip_ns};
use crate::bench::Kind;
use crate::fabrics::Fabric;
use crate::machine::{self, Pair};

/// How much of the reference is enough.
const ENOUGH: f64 = 0.7;
/// The farthest that cores of one machine are when nothing else runs on them: a cache line's round trip.
const FARTHEST_NS: f64 = 450.0;
/// Bytes of a small message.
const SMALL: usize = 32;

/// What is measured, and what it is on a quiet machine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quantity {
    /// Depends on the distance of the cores.
    RingRoundTripNs,
    UdpRoundTripNs,
    CopyGbps,
    UdpGbps,
}

impl Quantity {
    const ALL: [Self; 4] = [Self::RingRoundTripNs, Self::UdpRoundTripNs, Self::CopyGbps, Self::UdpGbps];

    /// As in the JSON of `sinew limits`.
    fn name(self) -> &'static str {
        match self {
            Self::RingRoundTripNs => "ring_round_trip_ns",
            Self::UdpRoundTripNs => "udp_round_trip_ns",
            Self::CopyGbps => "copy_own_gbps",
            Self::UdpGbps => "udp_bandwidth_gbps",
        }
    }

    fn less_is_better(self) -> bool {
        matches!(self, Self::RingRoundTripNs | Self::UdpRoundTripNs)
    }
}

/// What a quiet machine reaches.
#[derive(Clone, Debug, Default)]
pub struct References {
    /// Of this machine, from `sinew limits --json`.
    measured: Option<Value>,
}

impl References {
    /// Those in a file that `sinew limits --json` wrote.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("--reference {}", path.display()))?;
        let measured: Value = serde_json::from_str(&text)
            .with_context(|| format!("--reference {}: not what `sinew limits --json` prints", path.display()))?;
        let known = Quantity::ALL.iter().any(|quantity| measured[quantity.name()].is_number());
        ensure!(known, "--reference {}: not what `sinew limits --json` prints", path.display());
        Ok(Self { measured: Some(measured) })
    }

    fn measured(&self, key: &str) -> Option<f64> {
        self.measured.as_ref().and_then(|measured| measured[key].as_f64())
    }

    /// The share of the processors that others used when they were measured.
    pub fn others_share(&self) -> f64 {
        self.measured("others_share").unwrap_or(0.0)
    }

    /// The farthest that cores of this machine are when nothing else runs on them.
    fn farthest_ns(&self) -> f64 {
        self.measured("core_round_trip_ns").map_or(FARTHEST_NS, |ns| ns.max(FARTHEST_NS))
    }

    /// The reference for a quantity while a cache line's round trip takes `cores_ns`.
    ///
    /// A ring's round trip follows that of a cache line, which on virtual machines changes while programs run.
    fn of(&self, quantity: Quantity, cores_ns: Option<f64>) -> f64 {
        // A cache line's round trip at the time, and what was measured at that time.
        let (cores_then_ns, built_in) = match quantity {
            Quantity::RingRoundTripNs if cores_ns.is_some_and(|ns| ns > 249.0) => (450.0, 431.0),
            Quantity::RingRoundTripNs => (52.0, 90.0),
            Quantity::UdpRoundTripNs => (52.0, 5_700.0),
            Quantity::CopyGbps => (52.0, 384.0),
            Quantity::UdpGbps => (52.0, 91.0),
        };
        let (cores_then_ns, then) = match self.measured(quantity.name()) {
            Some(figure) => (self.measured("core_round_trip_ns").unwrap_or(cores_then_ns), figure),
            None => (cores_then_ns, built_in),
        };
        match (quantity, cores_ns) {
            (Quantity::RingRoundTripNs, Some(cores_ns)) if cores_then_ns > 0.0 => {
                then * (cores_ns.min(self.farthest_ns()) / cores_then_ns)
            }
            _ => then,
        }
    }
}

/// One measurement of a yardstick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    quantity: Quantity,
    /// A cache line to the other core and back, at the time; `None` on one processor.
    pub cores_ns: Option<f64>,
    /// What was measured.
    pub value: f64,
    /// What it is on a quiet machine with such cores.
    pub reference: f64,
    /// How far the cores of such a machine are at most.
    farthest_ns: f64,
}

impl Reading {
    /// Measures what says whether limits of this kind can be trusted now.
    pub fn take(
        kind: Kind,
        fabric: Fabric,
        cpus: Pair,
        references: &References,
        duration: Duration,
    ) -> anyhow::Result<Self> {
        let quantity = match (kind, fabric) {
            (Kind::Bandwidth, Fabric::Udp) => Quantity::UdpGbps,
            (_, Fabric::Udp) => Quantity::UdpRoundTripNs,
            (Kind::Bandwidth, _) => Quantity::CopyGbps,
            _ => Quantity::RingRoundTripNs,
        };
        let cores_ns = machine::core_round_trip_ns(cpus, duration)?;
        let value = match quantity {
            Quantity::RingRoundTripNs => {
                ring_round_trips(cpus, SMALL + HEADER_LEN, duration)?.value_at_quantile(0.5) as f64
            }
            Quantity::UdpRoundTripNs => udp_round_trip_ns(cpus, SMALL + HEADER_LEN, duration)?,
            Quantity::CopyGbps => copy_own_bytes_per_s(duration) * 8e-9,
            Quantity::UdpGbps => udp_bandwidth_gbps(cpus, 4096, duration)?,
        };
        let reference = references.of(quantity, cores_ns);
        Ok(Self { quantity, cores_ns, value, reference, farthest_ns: references.farthest_ns() })
    }

    /// The quantity's name, with its unit.
    pub fn name(&self) -> &'static str {
        self.quantity.name()
    }

    /// Whether it is near enough to that.
    pub fn is_enough(&self) -> bool {
        let reached = if self.quantity.less_is_better() {
            self.reference / self.value.max(f64::MIN_POSITIVE)
        } else {
            self.value / self.reference.max(f64::MIN_POSITIVE)
        };
        // Cores that seem farther than any are cores that others use.
        reached >= ENOUGH && self.cores_ns.is_none_or(|ns| self.farthest_ns / ns >= ENOUGH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(quantity: Quantity, cores_ns: f64, value: f64, references: &References) -> Reading {
        let cores_ns = Some(cores_ns);
        let reference = references.of(quantity, cores_ns);
        Reading { quantity, cores_ns, value, reference, farthest_ns: references.farthest_ns() }
    }

    #[test]
    fn seventy_percent_is_enough_and_less_is_not() {
        let enough = |quantity, cores_ns, value| reading(quantity, cores_ns, value, &References::default()).is_enough();
        assert!(enough(Quantity::RingRoundTripNs, 52.0, 128.0));
        assert!(!enough(Quantity::RingRoundTripNs, 52.0, 129.0));
        assert!(enough(Quantity::RingRoundTripNs, 104.0, 256.0), "a ring is as far as its cores");
        assert!(enough(Quantity::RingRoundTripNs, 450.0, 615.0));
        assert!(!enough(Quantity::RingRoundTripNs, 300_000.0, 615.0), "such cores are not free");
        assert!(enough(Quantity::UdpGbps, 52.0, 64.0));
        assert!(!enough(Quantity::UdpGbps, 450.0, 63.0));
    }

    #[test]
    fn a_machines_own_references_come_first() {
        let measured =
            serde_json::json!({ "core_round_trip_ns": 100.0, "ring_round_trip_ns": 150.0, "copy_own_gbps": 100.0 });
        let references = References { measured: Some(measured) };
        assert_eq!(reading(Quantity::RingRoundTripNs, 200.0, 1.0, &references).reference, 300.0);
        assert!(reading(Quantity::CopyGbps, 100.0, 70.0, &references).is_enough());
        assert_eq!(reading(Quantity::UdpRoundTripNs, 100.0, 1.0, &references).reference, 5_700.0);
    }

    #[test]
    fn cores_may_be_as_far_as_they_were_when_the_machine_was_quiet() {
        let measured = serde_json::json!({ "core_round_trip_ns": 900.0, "ring_round_trip_ns": 1_600.0 });
        let references = References { measured: Some(measured) };
        assert!(reading(Quantity::RingRoundTripNs, 1_000.0, 1_700.0, &references).is_enough());
        assert!(!reading(Quantity::RingRoundTripNs, 2_000.0, 1_700.0, &references).is_enough());
    }

    #[test]
    fn a_file_that_holds_no_references_is_named() {
        let error = References::read(Path::new("/nowhere/limits.json")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/limits.json"), "{error}");
    }
}
