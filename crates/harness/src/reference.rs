//! Reference figures of this machine when it was quiet, if the user has measured them: `sinew limits --json >
//! quiet.json`.
//!
//! A disturbance that lasts for the whole of a measurement, such as a neighbour in the same cache, affects both halves
//! alike. To notice that, a user gives the machine's own figures from a quiet time; figures are never compared with
//! those of another machine.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::machine::{self, Pair};
use crate::{limits, units};

/// Share of the reference that a yardstick must reach.
const ENOUGH: f64 = 0.7;
/// Time for which a yardstick is measured.
const YARDSTICK: Duration = Duration::from_millis(30);
/// Length of a small message, in bytes.
const SMALL: usize = 32;

/// A figure that is measured before and after, and compared with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yardstick {
    /// A small message through a ring and back; depends on the distance of the cores.
    RingRoundTrip,
    /// A datagram to another thread and back.
    UdpRoundTrip,
    /// Copying 8 MB.
    Copy,
    /// Datagrams one way.
    UdpBandwidth,
}

impl Yardstick {
    const ALL: [Self; 4] = [Self::RingRoundTrip, Self::UdpRoundTrip, Self::Copy, Self::UdpBandwidth];

    /// Name among the results of `sinew limits`.
    fn name(self) -> &'static str {
        match self {
            Self::RingRoundTrip => "ring_round_trip",
            Self::UdpRoundTrip => "udp_round_trip",
            Self::Copy => "copy_own",
            Self::UdpBandwidth => "udp_bandwidth",
        }
    }

    fn is_time(self) -> bool {
        matches!(self, Self::RingRoundTrip | Self::UdpRoundTrip)
    }

    fn text(self, value: f64) -> String {
        if self.is_time() { units::time(value) } else { format!("{} Gbps", units::figure(value)) }
    }

    /// Measures the yardstick; `None` if the reference does not have it.
    pub(crate) fn read(self, pair: Pair, references: &References) -> anyhow::Result<Option<Reading>> {
        let Some(quiet) = references.figure(self.name()) else { return Ok(None) };
        let cores_ns = machine::core_round_trip_ns(pair, YARDSTICK / 10)?;
        let value = match self {
            Self::RingRoundTrip => {
                limits::ring_round_trips(pair, SMALL + limits::HEADER_LEN, YARDSTICK)?.value_at_quantile(0.5) as f64
            }
            Self::UdpRoundTrip => limits::udp_round_trip_ns(pair, SMALL + limits::HEADER_LEN, YARDSTICK)?,
            Self::Copy => limits::copy_own_bytes_per_s(YARDSTICK) * 8e-9,
            Self::UdpBandwidth => limits::udp_bandwidth_gbps(pair, 4096, YARDSTICK)?,
        };
        // A ring's round trip scales with the distance of the cores.
        let distance = match (self, cores_ns, references.figure("core_round_trip")) {
            (Self::RingRoundTrip, Some(now_ns), Some(then_ns)) if then_ns > 0.0 => now_ns / then_ns,
            _ => 1.0,
        };
        Ok(Some(Reading { yardstick: self, value, quiet: quiet * distance }))
    }
}

/// Figures of the quiet machine; empty unless the user gives them.
#[derive(Clone, Debug, Default)]
pub struct References(Option<Value>);

impl References {
    /// Reads a file that `sinew limits --json` wrote.
    ///
    /// # Errors
    ///
    /// Names the file, and what is wrong with it.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("--reference {file}"))?;
        let none = || format!("--reference {file}: not the output of `sinew limits --json`");
        let references = Self(Some(serde_json::from_str(&text).with_context(none)?));
        let is_any = Yardstick::ALL.iter().any(|yardstick| references.figure(yardstick.name()).is_some());
        ensure!(is_any, none());
        Ok(references)
    }

    fn figure(&self, name: &str) -> Option<f64> {
        let results = self.0.as_ref()?["results"].as_array()?;
        let result = results.iter().find(|result| result["details"]["name"].as_str() == Some(name))?;
        result["figure"].as_f64().filter(|figure| *figure > 0.0)
    }
}

/// Value of a yardstick, now and when the machine was quiet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    yardstick: Yardstick,
    value: f64,
    quiet: f64,
}

impl Reading {
    fn is_enough(&self) -> bool {
        let part = if self.yardstick.is_time() { self.quiet / self.value } else { self.value / self.quiet };
        part >= ENOUGH
    }

    /// Complaint, if the machine was much slower before or after than when it was quiet.
    pub(crate) fn complaint(before: &Self, after: &Self) -> Option<String> {
        let text = |value| before.yardstick.text(value);
        (!before.is_enough() || !after.is_enough()).then(|| {
            format!(
                "{} was {} before and {} after, but {} when the reference was made",
                before.yardstick.name(),
                text(before.value),
                text(after.value),
                text(before.quiet)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn seventy_percent_is_enough_and_less_is_not() {
        let reading = |yardstick, value, quiet| Reading { yardstick, value, quiet };
        let is_fine = |reading: Reading| Reading::complaint(&reading, &reading).is_none();
        assert!(is_fine(reading(Yardstick::RingRoundTrip, 142.0, 100.0)));
        assert!(!is_fine(reading(Yardstick::RingRoundTrip, 143.0, 100.0)));
        assert!(is_fine(reading(Yardstick::Copy, 70.0, 100.0)) && !is_fine(reading(Yardstick::Copy, 69.0, 100.0)));
    }

    #[test]
    fn a_figure_is_found_by_its_name() {
        let result = |name: &str, figure: f64| json!({ "figure": figure, "details": { "name": name } });
        let references =
            References(Some(json!({ "results": [result("copy_own", 7.0), result("udp_bandwidth", 0.0)] })));
        assert_eq!((references.figure("copy_own"), references.figure("udp_bandwidth")), (Some(7.0), None));
        assert_eq!(References::default().figure("copy_own"), None);
    }

    #[test]
    fn a_file_that_holds_no_references_is_named() {
        let error = References::read(Path::new("/nowhere/limits.json")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/limits.json"), "{error}");
    }
}
