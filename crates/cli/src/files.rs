//! `sinew files bench`: measures a mount beside one of plain memory.

mod load;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use serde_json::json;
use sinew::fabric::verbs::Device;
use sinew::host::Interrupt;
use sinew_harness::others::Watch;
use sinew_harness::run::Interrupted;
use sinew_harness::threshold::parse_ratio;
use sinew_harness::units::{self, parse_size};
use sinew_harness::validity;
use sinew_mount::files::Caller;
use sinew_mount::{Files, InMemory, Mount};

use crate::child::ServerProcess;
use crate::fabrics::Fabric;
use crate::measure::with_progress;
use crate::mount;
use crate::reach::KeyArgs;
use crate::table;
use crate::verbs::{DeviceArgs, Job, VerbsFabric};
use crate::{Outcome, Usage, interrupted, output};
use load::{KINDS, Kind, Load};

const AFTER_HELP: &str = "\
Measures two mounts by turns: the file system at ADDRESS, and files in this process's own memory behind the same FUSE
front, which is the fastest that a mount can be here. All reads and writes bypass the kernel's cache (O_DIRECT), one
request after the other. Without ADDRESS the command starts a service with one copy of everything, which lends its own
memory.

--json prints `figures`, a list with name, unit, remote, memory (medians of the repetitions), ratio (the median of the
ratios within repetitions), ratio_min and ratio_max; and `invalid_because`, a list of what disturbed the measurement.

Examples:
  sinew files bench
  sinew files bench shm://files --size 2G --repetitions 7 --json";

/// Measure a mount beside one of plain memory.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address of the file system's service, `sinew serve files` [default: the benchmark starts one]
    address: Option<String>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Size of the file that is written and read, in bytes, at least 16M
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    size: usize,
    /// Reads of 4 KB in each repetition, from 100
    #[arg(long, value_name = "COUNT", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..))]
    reads: u32,
    /// Times that each mount is measured, 1 to 255
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    repetitions: u8,
    /// Exit with status 3 if the ratio of a rate is below this or that of a time above its inverse, and with 4 if other
    /// programs disturbed the measurement
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true, value_parser = parse_ratio)]
    fail_if_ratio_below: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The commands about files.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure a mount beside one of plain memory
    Bench(Args),
}

/// Time in which the service must answer, in seconds.
const JOIN_TIMEOUT_S: u32 = 5;
/// Smallest file, in bytes.
const SIZE_MIN: usize = 16 << 20;
/// Memory that a service lends, as a multiple of the file's size: rewritten pages lie beside those that they replace.
const MEMORY_FACTOR: usize = 3;

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Bench(args) => {
            args.check().map_err(Usage::of)?;
            interrupted::run_interruptible(|interrupt| args.device.run(Benching { args, interrupt }))
        }
    }
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        self.device.check()?;
        ensure!(self.size >= SIZE_MIN, "--size {}: at least {}", units::size(self.size), units::size(SIZE_MIN));
        self.address.as_deref().map_or(Ok(()), mount::check_address)
    }

    /// Judges the figures by the threshold, if there is one.
    fn judge(&self, found: &[MeasuredRates], disturbed: &[String]) -> Outcome {
        let Some(least) = self.fail_if_ratio_below else { return Outcome::Done };
        if let Some(why) = disturbed.first() {
            output::complain(format_args!("the ratios were not judged: the result is INVALID, since {why}"));
            return Outcome::NotJudged;
        }
        let mut outcome = Outcome::Done;
        for rates in found.iter().filter(|rates| rates.quality() < least) {
            let [_, ratio, _] = rates.ratio();
            let (side, bound) = if rates.kind.is_time { ("above", least.recip()) } else { ("below", least) };
            output::complain(format_args!("{}: the ratio is {ratio:.3}, {side} {bound:.3}", rates.kind.text));
            outcome = Outcome::ThresholdMissed;
        }
        outcome
    }

    /// Starts a service of our own, if no address was given.
    fn serve(&self) -> anyhow::Result<Option<ServerProcess>> {
        if self.address.is_some() {
            return Ok(None);
        }
        let fabric = match self.device.fabric {
            VerbsFabric::Shm => Fabric::Shm,
            VerbsFabric::Ibverbs => Fabric::Ibverbs,
        };
        let memory = format!("{}", self.size * MEMORY_FACTOR + (256 << 20));
        let mut args: Vec<String> = ["serve", "files", &fabric.fresh_address("")?].map(str::to_owned).into();
        args.extend(["--memory".to_owned(), memory, "--copies".to_owned(), "1".to_owned()]);
        args.extend(self.device.to_args());
        Ok(Some(ServerProcess::spawn(&args)?))
    }
}

struct Benching<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

/// Results of one kind of load, over all repetitions.
struct MeasuredRates {
    kind: &'static Kind,
    remote: Vec<f64>,
    memory: Vec<f64>,
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl MeasuredRates {
    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.remote.iter().zip(&self.memory).map(|(remote, memory)| remote / memory)
    }

    /// The least, the median, and the greatest ratio.
    fn ratio(&self) -> [f64; 3] {
        let least = self.ratios().fold(f64::INFINITY, f64::min);
        [least, median(self.ratios()), self.ratios().fold(0.0, f64::max)]
    }

    /// The median ratio, or its inverse for a time: 1 is as good as memory, and more is better.
    fn quality(&self) -> f64 {
        let [_, middle, _] = self.ratio();
        if self.kind.is_time { middle.recip() } else { middle }
    }

    fn to_json(&self) -> serde_json::Value {
        let [least, middle, most] = self.ratio();
        let (remote, memory) = (median(self.remote.iter().copied()), median(self.memory.iter().copied()));
        json!({
            "name": self.kind.name, "unit": self.kind.unit, "remote": remote, "memory": memory,
            "ratio": middle, "ratio_min": least, "ratio_max": most,
        })
    }

    fn to_row(&self) -> Vec<String> {
        let [least, middle, most] = self.ratio();
        let figure = |values: &[f64]| format!("{:.2} {}", median(values.iter().copied()), self.kind.unit);
        vec![
            self.kind.text.to_owned(),
            figure(&self.remote),
            figure(&self.memory),
            format!("{middle:.2} ({least:.2}-{most:.2})"),
        ]
    }
}

impl Job for Benching<'_> {
    type Result = Outcome;

    fn run<D: Device + 'static>(self, device: D, _: VerbsFabric) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        let server = args.serve()?;
        let address = match &server {
            Some(server) => server.address()?.to_owned(),
            None => args.address.clone().unwrap_or_default(),
        };
        let joining = mount::Joining::new(address, args.key.clone(), args.device.device.clone());
        let joining = mount::Joining { timeout: JOIN_TIMEOUT_S, ..joining };
        let remote = mount::join(&joining, device, Arc::new(|text: &str| output::complain(text)))?;
        let folder = Folder::new()?;
        let remote = mount_at(remote, &folder.0.join("remote"))?;
        let memory = mount_at(InMemory::new(1 << 40, &Caller::default()), &folder.0.join("memory"))?;
        let mut found: Vec<MeasuredRates> =
            KINDS.iter().map(|kind| MeasuredRates { kind, remote: Vec::new(), memory: Vec::new() }).collect();
        let watch = Watch::new(&[None], server.as_ref().map(ServerProcess::id));
        let measured = with_progress(|progress| {
            for repetition in 0..args.repetitions {
                for (index, (point, is_remote)) in [(remote.point(), true), (memory.point(), false)].iter().enumerate()
                {
                    let done = f64::from(repetition) + index as f64 / 2.0;
                    progress(if *is_remote { "remote" } else { "memory" }, done / f64::from(args.repetitions));
                    let mut load = Load::new(point, args.size, args.reads)?;
                    for found in &mut found {
                        ensure!(!interrupt.is_set(), Interrupted);
                        let figure = load.run(found.kind).with_context(|| format!("at {}", point.display()))?;
                        if *is_remote { &mut found.remote } else { &mut found.memory }.push(figure);
                    }
                }
            }
            Ok::<_, anyhow::Error>(())
        });
        let disturbed: Vec<String> = watch.share().and_then(validity::others).into_iter().collect();
        remote.unmount().context("unmounting")?;
        memory.unmount().context("unmounting")?;
        measured?;
        if args.json {
            let figures: Vec<_> = found.iter().map(MeasuredRates::to_json).collect();
            output::print(json!({ "figures": figures, "invalid_because": disturbed }))?;
        } else {
            let heads = ["past the kernel's cache", "remote", "memory", "ratio"];
            let table = table::of(&heads, found.iter().map(MeasuredRates::to_row), table::FIGURES);
            let invalid = disturbed.iter().map(|why| format!("\nINVALID: {why}"));
            output::print(invalid.fold(table, |text, line| text + &line))?;
        }
        Ok(args.judge(&found, &disturbed))
    }
}

fn mount_at<F: Files>(files: F, point: &Path) -> anyhow::Result<Mount<F>> {
    std::fs::create_dir(point).with_context(|| format!("making {}", point.display()))?;
    let mut options = sinew_mount::Options::new("bench");
    options.watcher = Some(mount::watcher(false)?);
    Mount::new(files, point, &options).map_err(|error| anyhow!(error))
}

/// A folder for mount points, removed when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("sinew-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for point in ["remote", "memory"] {
            // They are empty once nothing is mounted there.
            let _ = std::fs::remove_dir(self.0.join(point));
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}
