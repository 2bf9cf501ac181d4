//! What the machine was like while something was measured.

use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::{limits, machine, units};

/// How long the copy rate is measured, once for a process.
const COPYING: Duration = Duration::from_millis(10);

/// What does not change while a process runs.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Processors that this process may use.
    pub cpus: usize,
    /// One reading of the clock.
    pub clock_read_ns: f64,
    /// At which a core copies 8 MB of its own.
    pub copy_gbps: f64,
}

impl Machine {
    /// This one, measured when it is asked for first.
    pub fn this() -> Self {
        static THIS: OnceLock<Machine> = OnceLock::new();
        *THIS.get_or_init(|| Self {
            cpus: machine::cpus().len(),
            clock_read_ns: limits::clock_read_ns(),
            copy_gbps: limits::copy_own_bytes_per_s(COPYING) * 8e-9,
        })
    }
}

/// What the machine was like meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// A cache line to the other core and back, in nanoseconds: before each round of slices, and after the last.
    pub cores_ns: Vec<f64>,
    /// The share of the measured processors that others used, from 0 to 1, where that can be told.
    pub others_share: Option<f64>,
    /// How often it was measured: again when something had disturbed it.
    pub attempts: u32,
}

impl Surroundings {
    /// The middle of the cores' distances; `None` where threads have no processors of their own.
    pub fn distance_ns(&self) -> Option<f64> {
        (!self.cores_ns.is_empty()).then(|| units::median(&self.cores_ns))
    }

    /// The distance in words: `cores far (398 ns)`; nothing where threads have no processors of their own though there are several.
    pub fn cores_text(&self) -> Option<String> {
        let distance_ns = self.distance_ns();
        (distance_ns.is_some() || !machine::has_two_cpus()).then(|| cores_text(distance_ns))
    }

    /// As in the schema.
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

/// How far apart two cores are, in words.
pub fn cores_text(round_trip_ns: Option<f64>) -> String {
    match round_trip_ns {
        Some(ns) => format!("cores {} ({})", machine::distance(Some(ns)), units::time(ns)),
        None => "one processor: client and server take turns".to_owned(),
    }
}
