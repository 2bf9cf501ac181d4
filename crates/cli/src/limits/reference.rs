//! Whether a limit can be trusted: a well-known quantity, measured beside it, against what it is on a quiet machine.
//!
//! A limit that something else on the machine holds down makes the figure beside it look good. So each benchmark also
//! measures a *yardstick*, before and after: something whose value on a quiet machine is known. Where it falls short of 70 % of
//! that, the result is marked invalid. The references were measured on a virtual machine with two processors of a current
//! server; slower machines will find their results marked, and can tell by the yardstick's own figures why.

use std::time::Duration;

use super::{HEADER_LEN, copy_own_bytes_per_s, ring_round_trips, udp_bandwidth_gbps, udp_round_trip_ns};
use crate::bench::Kind;
use crate::fabrics::Fabric;
use crate::machine::{self, Pair};

/// How much of the reference is enough.
const ENOUGH: f64 = 0.7;
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
    /// The reference and whether less is better. Where `far` cores differ from near ones, theirs.
    fn reference(self, far: bool) -> (f64, bool) {
        match self {
            Self::RingRoundTripNs => (if far { 431.0 } else { 90.0 }, true),
            Self::UdpRoundTripNs => (5_700.0, true),
            Self::CopyGbps => (384.0, false),
            Self::UdpGbps => (91.0, false),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::RingRoundTripNs => "ring_round_trip_ns",
            Self::UdpRoundTripNs => "udp_round_trip_ns",
            Self::CopyGbps => "copy_own_gbps",
            Self::UdpGbps => "udp_bandwidth_gbps",
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
}

impl Reading {
    /// Measures what says whether limits of this kind can be trusted now.
    pub fn take(kind: Kind, fabric: Fabric, cpus: Pair, duration: Duration) -> anyhow::Result<Self> {
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
        Ok(Self { quantity, cores_ns, value })
    }

    /// The quantity's name, with its unit.
    pub fn name(&self) -> &'static str {
        self.quantity.name()
    }

    /// What it is on a quiet machine.
    pub fn reference(&self) -> f64 {
        self.quantity.reference(self.is_far()).0
    }

    fn is_far(&self) -> bool {
        machine::distance(self.cores_ns) == "far"
    }

    /// Whether it is near enough to that.
    pub fn is_enough(&self) -> bool {
        let (reference, less_is_better) = self.quantity.reference(self.is_far());
        let reached =
            if less_is_better { reference / self.value.max(f64::MIN_POSITIVE) } else { self.value / reference };
        reached >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seventy_percent_is_enough_and_less_is_not() {
        let reading = |quantity, cores_ns, value| Reading { quantity, cores_ns: Some(cores_ns), value }.is_enough();
        assert!(reading(Quantity::RingRoundTripNs, 52.0, 128.0));
        assert!(!reading(Quantity::RingRoundTripNs, 52.0, 129.0));
        assert!(reading(Quantity::RingRoundTripNs, 450.0, 600.0), "far cores have a reference of their own");
        assert!(reading(Quantity::UdpGbps, 52.0, 64.0));
        assert!(!reading(Quantity::UdpGbps, 52.0, 63.0));
    }
}
