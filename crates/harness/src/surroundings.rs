//! State of the machine during a measurement.

use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::{limits, machine, units};

/// Time for which the copy rate is measured, once in a process.
const COPYING: Duration = Duration::from_millis(10);

/// Properties of the machine that do not change while a process runs.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Processors that this process may use.
    pub cpus: usize,
    /// Duration of one reading of the clock, in nanoseconds.
    pub clock_read_ns: f64,
    /// Rate at which a core copies 8 MB of its own, in Gbps.
    pub copy_gbps: f64,
}

impl Machine {
    /// This machine, measured on first use.
    pub fn this() -> Self {
        static THIS: OnceLock<Machine> = OnceLock::new();
        *THIS.get_or_init(|| Self {
            cpus: machine::cpus().len(),
            clock_read_ns: limits::clock_read_ns(),
            copy_gbps: limits::copy_own_bytes_per_s(COPYING) * 8e-9,
        })
    }
}

/// State of the machine.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Round trip of a cache line to the other core in nanoseconds: before each round of slices, and after the last.
    pub cores_ns: Vec<f64>,
    /// Share of the measured processors that others used, from 0 to 1; `None` if it is not known.
    pub others_share: Option<f64>,
    /// Number of attempts: more than one after a disturbance.
    pub attempts: u32,
}

impl Surroundings {
    /// Median distance of the cores, in ns; `None` if threads have no processors of their own.
    pub fn distance_ns(&self) -> Option<f64> {
        (!self.cores_ns.is_empty()).then(|| units::median(&self.cores_ns))
    }

    /// The distance in words, as in `cores far (398 ns)`; `None` if there are several processors and threads are not
    /// pinned to them.
    pub fn cores_text(&self) -> Option<String> {
        let distance_ns = self.distance_ns();
        (distance_ns.is_some() || !machine::has_two_cpus()).then(|| cores_text(distance_ns))
    }

    /// The state in the schema.
    pub fn to_json(&self) -> Value {
        let Machine { cpus, clock_read_ns, copy_gbps } = Machine::this();
        json!({
            "cores": self.distance_ns().map(|ns| machine::distance(Some(ns))),
            "core_round_trip_ns": self.distance_ns().map(units::rounded),
            "core_round_trips_ns": units::rounded_all(&self.cores_ns),
            "others_share": self.others_share.map(units::rounded),
            "attempts": self.attempts,
            "cpus": cpus,
            "clock_read_ns": units::rounded(clock_read_ns),
            "copy_gbps": units::rounded(copy_gbps),
        })
    }
}

/// Distance of two cores, in words.
pub fn cores_text(round_trip_ns: Option<f64>) -> String {
    match round_trip_ns {
        Some(ns) => format!("cores {} ({})", machine::distance(Some(ns)), units::time(ns)),
        None => "one processor: client and server take turns".to_owned(),
    }
}
