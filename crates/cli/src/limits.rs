//! `sinew limits`: measures what the machine alone allows.

use std::time::Duration;

use serde_json::json;
use sinew::udp::raw::Mode;
use sinew_harness::limits::{
    HEADER_LEN, LARGE, clock_read_ns, copy_fresh_bytes_per_s, copy_own_bytes_per_s, ring_echo_mops, ring_round_trips,
    ring_stream_mops, udp_bandwidth_gbps, udp_echo_mops, udp_round_trip_ns,
};
use sinew_harness::machine::{self, Pair};
use sinew_harness::others::Watch;
use sinew_harness::surroundings::{Surroundings, cores_text};
use sinew_harness::units::{self, parse_seconds};
use sinew_harness::{Figure, Unit, figure, validity};

use crate::{Outcome, Usage, output, table};

/// Rounds of each measurement, of which the best counts.
const ROUNDS: u32 = 5;
/// Spread above which the machine counts as noisy: greatest share by which the median round may be worse than the
/// best.
const SPREAD: f64 = 0.2;

const HELP: &str = "\
Each limit is measured in five rounds, of which the best counts: that is what the machine allows. If the rounds differ
by more than a fifth, or other programs used the processors, the result says so; measure again at a quieter moment
to get a file for --reference.

Examples:
  sinew limits
  sinew limits --json > quiet.json
  sinew rpc bench latency --reference quiet.json";

/// Measure what the machine alone allows, with nothing of the RPC layer in the way.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Print one JSON object (see docs/results.md)
    #[arg(long)]
    json: bool,
    /// Processors to pin the two threads to, as in 0,1 [default: the first two]
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Seconds for which each limit is measured, over its five rounds, 0.01 to 86400
    #[arg(long, default_value = "0.5", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Duration,
}

/// Measures a limit once, for the given time; `None` where there is only one processor.
type Measure = fn(Pair, Duration) -> anyhow::Result<Option<f64>>;

/// Name of each limit, its description, its unit, and the function that measures it.
const LIMITS: [(&str, &str, Unit, Measure); 12] = [
    ("core_round_trip", "a cache line to another core and back", Unit::Ns, machine::core_round_trip_ns),
    ("ring_round_trip", "a 32 B message through a ring and back, median", Unit::Ns, |pair, time| {
        Ok(Some(ring_round_trips(pair, SMALL, time)?.value_at_quantile(0.5) as f64))
    }),
    ("ring_stream", "32 B messages through a ring", Unit::Mops, |pair, time| {
        ring_stream_mops(pair, SMALL, time).map(Some)
    }),
    ("ring_echo", "32 B messages through a ring and back, 60 in flight", Unit::Mops, |pair, time| {
        ring_echo_mops(pair, SMALL, 60, 3, time).map(Some)
    }),
    ("copy_own", "copying 8 MB", Unit::Gbps, |_, time| Ok(Some(copy_own_bytes_per_s(time) * 8e-9))),
    ("copy_fresh", "copying 8 MB that the other core has just written", Unit::Gbps, |pair, time| {
        Ok(Some(copy_fresh_bytes_per_s(pair, LARGE, time)? * 8e-9))
    }),
    ("clock_read", "reading the clock", Unit::Ns, |_, _| Ok(Some(clock_read_ns()))),
    ("udp_round_trip", "a 32 B UDP packet to another thread and back, spinning, median", Unit::Ns, |pair, time| {
        udp_round_trip_ns(pair, SMALL, time).map(Some)
    }),
    ("udp_single", "32 B UDP packets there and back, a call each, 60 in flight", Unit::Mops, |pair, time| {
        udp_echo_mops(pair, Mode::Single, SMALL, 60, 3, time).map(Some)
    }),
    ("udp_list", "the same with sendmmsg and recvmmsg", Unit::Mops, |pair, time| {
        udp_echo_mops(pair, Mode::List, SMALL, 60, 3, time).map(Some)
    }),
    ("udp_joined", "the same, many in one datagram", Unit::Mops, |pair, time| {
        udp_echo_mops(pair, Mode::Joined, SMALL, 60, 3, time).map(Some)
    }),
    ("udp_bandwidth", "UDP one way, 4 KB packets cut and joined by the kernel", Unit::Gbps, |pair, time| {
        udp_bandwidth_gbps(pair, 4096, time).map(Some)
    }),
];

/// Length of a small packet, in bytes.
const SMALL: usize = 32 + HEADER_LEN;

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
    let pair = args.pair().map_err(Usage::of)?;
    let pins = pair.map_or_else(|| vec![None], |pair| pair.map(Some).to_vec());
    let watch = Watch::new(&pins, None);
    let figures = LIMITS.map(|limit| measure(limit, pair, args.seconds / ROUNDS));
    let mut figures: Vec<Figure> = figures.into_iter().collect::<anyhow::Result<_>>()?;
    // Some limits take only a moment, so the others' use of the processors is measured over all of them.
    let share = watch.share();
    let disturbed = share.and_then(validity::others);
    let noisy: Vec<String> = figures
        .iter()
        .filter(|figure| !figure.is_valid())
        .map(|figure| format!("{}: {}", figure.title, figure.invalid_because.join("; ")))
        .collect();
    if args.json {
        for figure in &mut figures {
            figure.surroundings.get_or_insert_default().others_share = share;
            figure.invalid_because.extend(disturbed.clone());
        }
        output::print(figure::list(figures.iter().map(Figure::to_json)))?;
        return Ok(Outcome::Done);
    }
    let rows = figures.iter().map(|figure| vec![figure.title.clone(), figure.text()]);
    let table = table::of(&["what", "figure"], rows, table::FIGURES);
    output::print(format_args!(
        "{table}\n{}; {} at the time (below {} ns is near).",
        units::counted(machine::cpus().len(), "processor"),
        cores_text(figures[0].value),
        machine::NEAR_BELOW_NS
    ))?;
    for complaint in disturbed.into_iter().map(|all| format!("INVALID, all limits: {all}")).chain(noisy) {
        output::print(units::wrapped(&complaint, output::width(), 2))?;
    }
    Ok(Outcome::Done)
}

fn measure(
    (name, what, unit, measure): (&str, &str, Unit, Measure),
    pair: Pair,
    duration: Duration,
) -> anyhow::Result<Figure> {
    let mut slices = Vec::new();
    for _ in 0..ROUNDS {
        slices.extend(measure(pair, duration)?.filter(|figure| *figure > 0.0));
    }
    slices.sort_by(f64::total_cmp);
    if unit != Unit::Ns {
        slices.reverse();
    }
    let (best, usual) = (slices.first().copied(), units::median(&slices));
    let mut invalid_because = Vec::new();
    match best {
        None if machine::has_two_cpus() => invalid_because.push("nothing was received in the time".to_owned()),
        None => invalid_because.push("this needs two processors".to_owned()),
        Some(best) if best.max(usual) > best.min(usual) * (1.0 + SPREAD) => invalid_because.push(format!(
            "the best of {} rounds was {}, the median {}: the machine is noisy; measure again when it is quiet",
            slices.len(),
            unit.text(best),
            unit.text(usual)
        )),
        Some(_) => {}
    }
    Ok(Figure {
        bench: "limits".to_owned(),
        title: what.to_owned(),
        value: best,
        unit,
        slices,
        compared: None,
        latency: None,
        invalid_because,
        surroundings: Some(Surroundings { attempts: 1, ..Surroundings::default() }),
        setup: json!({ "cpus": pair, "seconds": (duration * ROUNDS).as_secs_f64() }),
        details: json!({ "name": name, "what": what }),
        lines: Vec::new(),
    })
}
