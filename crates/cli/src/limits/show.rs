//! `sinew limits`.

use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::{Value, json};
use sinew::udp::raw::Mode;

use super::*;
use crate::others::Watch;
use crate::units::{self, parse_seconds};
use crate::{Outcome, Usage, machine, output};

/// Measure what the machine alone allows, with nothing of the RPC layer in the way.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Processors of the two threads; the first two by default
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Seconds that each measurement takes
    #[arg(long, default_value = "0.3", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Duration,
}

/// One row: the key in JSON, what it is, its figure, and the unit.
type Row = (&'static str, String, Option<f64>, &'static str);

impl Args {
    fn pair(&self) -> anyhow::Result<Pair> {
        machine::check_pins(&self.pin)?;
        match self.pin[..] {
            [first, second] => Ok(Some([first, second])),
            [] => Ok(machine::default_pair()),
            _ => anyhow::bail!("--pin takes two processors, as in --pin 0,1"),
        }
    }
}

/// Measures, and prints a table or JSON.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let cpus = args.pair().map_err(Usage::of)?;
    let watch = Watch::new(cpus.map_or_else(|| machine::cpus().to_vec(), Vec::from), None);
    let rows = measure(cpus, args.seconds)?;
    let others = watch.end();
    if args.json {
        let mut object: serde_json::Map<String, Value> =
            rows.iter().map(|(key, _, figure, _)| ((*key).to_owned(), json!(figure.map(units::rounded)))).collect();
        object.insert("cpus".into(), json!(machine::cpus().len()));
        object.insert("pinned".into(), json!(cpus));
        object.insert("others_share".into(), json!(others.share.map(units::rounded)));
        object.insert("cores".into(), json!(machine::distance(rows[0].2)));
        output::print(Value::Object(object))?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["what", "figure"]);
    for (_, what, figure, unit) in &rows {
        let figure = match (*figure, *unit) {
            (None, _) => "needs two processors".to_owned(),
            (Some(0.0), _) => "nothing came through in the time".to_owned(),
            (Some(figure), "ns") => units::time(figure),
            (Some(figure), unit) => format!("{} {unit}", units::figure(figure)),
        };
        table.add_row([what.clone(), figure]);
    }
    output::print(format_args!(
        "{table}\n{} processors; cores {} at the time (a cache line's round trip below {} ns is near).",
        machine::cpus().len(),
        machine::distance(rows[0].2),
        machine::NEAR_BELOW_NS
    ))?;
    if let Some(complaint) = others.complaint() {
        output::print(format_args!("These are not this machine's limits: {complaint}."))?;
    }
    Ok(Outcome::Done)
}

fn measure(cpus: Pair, duration: Duration) -> anyhow::Result<Vec<Row>> {
    let small = 32 + HEADER_LEN;
    let trips = ring_round_trips(cpus, small, duration)?;
    Ok(vec![
        (
            "core_round_trip_ns",
            "a cache line to another core and back".into(),
            machine::core_round_trip_ns(cpus, duration)?,
            "ns",
        ),
        (
            "ring_round_trip_ns",
            "a 32 B message through a ring and back, median".into(),
            Some(trips.value_at_quantile(0.5) as f64),
            "ns",
        ),
        (
            "ring_stream_mops",
            "32 B messages through a ring".into(),
            Some(ring_stream_mops(cpus, small, duration)?),
            "M/s",
        ),
        (
            "ring_echo_mops",
            "32 B messages through a ring and back, 60 in flight".into(),
            Some(ring_echo_mops(cpus, small, 60, 3, duration)?),
            "M/s",
        ),
        ("copy_own_gbps", "copying 8 MB".into(), Some(copy_own_bytes_per_s(duration) * 8e-9), "Gbps"),
        (
            "copy_fresh_gbps",
            "copying 8 MB that the other core has just written".into(),
            Some(copy_fresh_bytes_per_s(cpus, LARGE, duration)? * 8e-9),
            "Gbps",
        ),
        ("clock_read_ns", "reading the clock".into(), Some(clock_read_ns()), "ns"),
        (
            "udp_round_trip_ns",
            "a 32 B UDP packet to another thread and back, spinning, median".into(),
            Some(udp_round_trip_ns(cpus, small, duration)?),
            "ns",
        ),
        (
            "udp_single_mops",
            "32 B UDP packets there and back, a call each, 60 in flight".into(),
            Some(udp_echo_mops(cpus, Mode::Single, small, 60, 3, duration)?),
            "M/s",
        ),
        (
            "udp_list_mops",
            "the same with sendmmsg and recvmmsg".into(),
            Some(udp_echo_mops(cpus, Mode::List, small, 60, 3, duration)?),
            "M/s",
        ),
        (
            "udp_joined_mops",
            "the same, many in one datagram".into(),
            Some(udp_echo_mops(cpus, Mode::Joined, small, 60, 3, duration)?),
            "M/s",
        ),
        (
            "udp_bandwidth_gbps",
            "UDP one way, 4 KB packets cut and joined by the kernel".into(),
            Some(udp_bandwidth_gbps(cpus, 4096, duration)?),
            "Gbps",
        ),
    ])
}
