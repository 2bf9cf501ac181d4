//! Figure 11: latency of frames through a forwarder, at low and at high load.

use std::time::Duration;

use sinew_forward::{Application, Form};
use sinew_harness::forwarding::{self, AtLoad, Latencies, Pipeline};
use sinew_harness::machine::{Pair, default_pair};

use super::{WIDTH, beside, measured};
use crate::experiment::{Experiment, Row};

/// Experiment for Figure 11.
pub struct Fig11;

/// Numbers of IPv4 and IPv6 routes, and of frames drawn in advance.
#[derive(Clone, Copy)]
struct Sizes {
    ipv4: usize,
    ipv6: usize,
    frames: usize,
}

const SIZES: Sizes = Sizes { ipv4: 527_961, ipv6: 200_000, frames: 1 << 18 };
/// Loads, as shares of the peak rate.
const PARTS: [f64; 3] = [0.1, 0.5, 0.9];
const NAMES: [(&str, &str); 3] = [("echo", "echo"), ("ipv4", "IPv4"), ("ipv6", "IPv6")];
/// The paper's latencies of echo in us, at low load and at the peak.
const ECHO_LOW: f64 = 19.5;
const ECHO_PEAK: f64 = 29.0;

fn latencies<A: Application + Send>(
    pipeline: anyhow::Result<Pipeline<A>>,
    cpus: Pair,
    duration: Duration,
) -> Option<Latencies> {
    let form = Form::interleaved(WIDTH).unwrap_or_default();
    pipeline.ok()?.latencies(cpus, form, &PARTS, duration).ok()
}

fn run_of(sizes: Sizes, duration: Duration, progress: &mut dyn FnMut(f64)) -> [Option<Latencies>; 3] {
    let cpus = default_pair();
    let echo = latencies(forwarding::echo(sizes.frames), cpus, duration);
    progress(0.3);
    let ipv4 = latencies(forwarding::ipv4(sizes.ipv4, sizes.frames), cpus, duration);
    progress(0.6);
    let ipv6 = latencies(forwarding::ipv6(sizes.ipv6, sizes.frames), cpus, duration);
    progress(1.0);
    [echo, ipv4, ipv6]
}

fn median_us(at: &AtLoad) -> f64 {
    at.trips.value_at_quantile(0.5) as f64 * 1e-3
}

fn tail_us(at: &AtLoad) -> f64 {
    at.trips.value_at_quantile(0.99) as f64 * 1e-3
}

fn rows_of((name, case): (&str, &'static str), found: Option<&Latencies>) -> Vec<Row> {
    let peak = found.map(|found| found.peak.mops);
    let mut rows = vec![measured(format!("gopt.latency.{name}.peak"), "most that passes", peak, "M/s").case(case)];
    for (nth, part) in PARTS.into_iter().enumerate() {
        let at = found.and_then(|found| found.at.get(nth));
        let percent = part * 100.0;
        let of = |what: &str, value| {
            let id = format!("gopt.latency.{name}.{what}.{percent:.0}");
            measured(id, format!("round trip, {what}, at {percent:.0} %"), value, "us").case(case)
        };
        let median = of("median", at.map(median_us));
        rows.push(match (name, nth) {
            ("echo", 0) => beside(median, "4.5, Figure 11", ECHO_LOW, "packets through NICs and switches"),
            ("echo", 2) => beside(median, "4.5, Figure 11", ECHO_PEAK, "packets through NICs and switches"),
            _ => median,
        });
        rows.push(of("99th percentile", at.map(tail_us)));
    }
    rows
}

impl Experiment for Fig11 {
    fn id(&self) -> &'static str {
        "nsdi15-fig11"
    }

    fn title(&self) -> &'static str {
        "Latency of forwarding at little and at much load"
    }

    fn source(&self) -> &'static str {
        "nsdi15 4.5, Figure 11"
    }

    fn setup(&self) -> &'static str {
        "Measured on this machine, on two cores, without a network card: one core sends frames over a cable in shared \
         memory and receives them from four cables, and the other forwards them, interleaved: echo, IPv4 with 527,961 \
         routes, and IPv6 with 200,000. First as many as pass with 256 in flight, for 300 ms; then 10, 50 and 90 % of \
         that, where a frame's time counts from when it was due."
    }

    fn remark(&self) -> &'static str {
        "The paper's clients are other hosts, whose NICs and stacks are part of its 19.5 us and 29 us: these figures \
         are the forwarder's own share and the cable's."
    }

    fn measures_on(&self) -> Vec<usize> {
        default_pair().into_iter().flatten().collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let found = run_of(SIZES, Duration::from_millis(300), progress);
        NAMES.into_iter().zip(&found).flat_map(|(name, found)| rows_of(name, found.as_ref())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_application_has_its_latencies() {
        let sizes = Sizes { ipv4: 1000, ipv6: 100, frames: 1000 };
        // On a busy machine, little comes back in the shortest time.
        let has_all = [10, 100, 1000].map(Duration::from_millis).into_iter().any(|duration| {
            let found = run_of(sizes, duration, &mut |_| {});
            assert!(found.iter().all(Option::is_some), "{found:?}");
            let rows: Vec<_> =
                NAMES.into_iter().zip(&found).flat_map(|(name, found)| rows_of(name, found.as_ref())).collect();
            rows.len() == 21 && rows.iter().all(|row| row.measured.is_some_and(|value| value > 0.0))
        });
        assert!(has_all);
    }
}
