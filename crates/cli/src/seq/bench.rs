//! `sinew seq bench`: measures a design of a sequencer beside its limit.

use anyhow::ensure;
use sinew_harness::{Unit, units};

use super::Design;
use super::run::{self, SequencerPlan};
use super::verbs::HERD_WINDOW;
use crate::fabrics::{self, Fabric};
use crate::measure::{MeasureArgs, with_progress};
use crate::verbs::{DeviceArgs, VerbsFabric, parse_address};
use crate::{Outcome, Usage};

const HELP: &str = "\
Starts a server process; clients keep --window calls in flight, --batch of them at a time. In every slice all numbers
are checked: none may come twice, to any client, and each must be greater than those of the calls that were over
before its call began.

The comparison, measured by turns with it:
  rpc       baseline: echoes by RPC of 16 bytes, with the same window and batch
  spec-s0   baseline: empty datagrams that a thread sends back, same window
  herd-opt  baseline: --design herd, calls one at a time on one queue pair
  herd, atomics  none

Examples:
  sinew seq bench --design rpc --fabric shm --json
  sinew seq bench --design spec-s0 --clients 3
  sinew seq bench --design herd-opt --fail-if-ratio-below 1";

/// Measure a design of a sequencer beside its limit.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Design of the sequencer
    #[arg(long, value_enum, default_value = "rpc")]
    design: Design,
    /// Fabric that carries the calls: all but hub for rpc, shm or ibverbs for the other designs [default: that of
    /// --address, else shm]
    #[arg(long, value_enum)]
    fabric: Option<Fabric>,
    /// RDMA device, for designs other than rpc over ibverbs [default: the first usable one]
    #[arg(long)]
    device: Option<String>,
    /// Address of a running `sinew serve sequencer` [default: the benchmark starts a server process]
    #[arg(long, value_name = "URL|HOST:PORT")]
    address: Option<String>,
    /// Number of clients, each in a thread of its own, 1 to 64
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Calls in flight for each client, 1 to 1024; always 64 for herd and herd-opt
    #[arg(long, default_value_t = 64, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// Calls sent together, at most --window [default: 16, or --window if that is less]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: Option<u16>,
    /// Numbers that each call takes when ranges are measured as well, 2 to 65536; 1 measures no ranges. For rpc and
    /// atomics
    #[arg(long, default_value_t = 64, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    range: u32,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Default number of calls sent together.
const BATCH: u16 = 16;

impl Args {
    /// The measurement that the options ask for.
    pub fn plan(&self) -> anyhow::Result<SequencerPlan> {
        self.measure.check_thresholds(Unit::Mops)?;
        let is_rpc = self.design == Design::Rpc;
        let of_calls = self.address.as_deref().filter(|_| is_rpc);
        let fabric = fabrics::of_clients(self.fabric, of_calls, 1)?;
        if let Some(address) = self.address.as_ref().filter(|_| !is_rpc) {
            parse_address(address).map_err(anyhow::Error::msg)?;
        }
        let name = self.design.name();
        let verbs_fabric = match fabric {
            Fabric::Shm => VerbsFabric::Shm,
            Fabric::Ibverbs => VerbsFabric::Ibverbs,
            // Not used.
            Fabric::Udp | Fabric::Xdp if is_rpc => VerbsFabric::Shm,
            _ => anyhow::bail!("--design {name} does not run on --fabric {}", fabric.name()),
        };
        let device = DeviceArgs { fabric: verbs_fabric, device: self.device.clone() };
        device.check()?;
        ensure!(!is_rpc || self.device.is_none(), "--device applies to designs on verbs");
        let is_herd = matches!(self.design, Design::Herd | Design::HerdOpt);
        ensure!(!is_herd || usize::from(self.window) == HERD_WINDOW, "--window: {name} always has {HERD_WINDOW}");
        let batch = self.batch.unwrap_or(BATCH.min(self.window));
        ensure!(
            batch <= self.window,
            "--batch {batch}: exceeds the {} in flight (--window)",
            units::counted(self.window, "call")
        );
        ensure!(
            !self.measure.thresholds.judge_ratio() || !matches!(self.design, Design::Herd | Design::Atomics),
            "--fail-if-ratio-...: there is no limit for --design {name}"
        );
        Ok(SequencerPlan {
            design: self.design,
            fabric,
            device,
            address: self.address.clone(),
            window: self.window.into(),
            batch: batch.into(),
            range: if self.design.has_ranges() { self.range } else { 1 },
            setting: self.measure.setting((self.clients.into(), 1), self.address.is_some())?,
        })
    }
}

/// Measures, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    args.measure.show(&with_progress(|progress| run::measure(&plan, progress))?)
}
