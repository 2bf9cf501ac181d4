//! The devices that can be measured.

use anyhow::ensure;
use clap::ValueEnum;
use serde_json::{Value, json};
use sinew::fabric::verbs::{Attributes, Device};
use sinew::ibverbs::{IbDevice, Selector};
use sinew::shm::verbs::ShmDevice;

use crate::{Outcome, output, units};

/// What carries the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Carried {
    /// Shared memory between processes of one user
    Shm,
    /// RDMA NICs and soft-RoCE, through libibverbs
    Ibverbs,
}

impl Carried {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Ibverbs => "ibverbs",
        }
    }
}

/// Which device.
#[derive(clap::Args, Clone, Debug)]
pub struct DeviceArgs {
    /// What carries the verbs
    #[arg(long, value_enum, default_value = "shm")]
    pub fabric: Carried,
    /// The RDMA device, as rxe0, mlx5_0:2 (its second port) or mlx5_0?gid=3 [default: the first that can be used]
    #[arg(long, visible_alias = "ib-dev")]
    pub device: Option<String>,
}

/// Something to do with a device of whatever kind.
pub trait Job {
    type Result;

    fn run<D: Device>(self, device: D, carried: Carried) -> anyhow::Result<Self::Result>;
}

impl DeviceArgs {
    /// Whether they make sense, whatever the machine.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.device.is_none() || self.fabric == Carried::Ibverbs, "--device is for --fabric ibverbs");
        self.selector().map(|_| ())
    }

    fn selector(&self) -> anyhow::Result<Selector> {
        Ok(self.device.as_deref().unwrap_or_default().parse()?)
    }

    /// Opens the device and does the job.
    pub fn run<J: Job>(&self, job: J) -> anyhow::Result<J::Result> {
        match self.fabric {
            Carried::Shm => job.run(ShmDevice::open(&"shm://".parse()?)?, self.fabric),
            Carried::Ibverbs => job.run(IbDevice::open(&self.selector()?)?, self.fabric),
        }
    }

    /// The arguments that give a child the same device.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec!["--fabric".to_owned(), self.fabric.name().to_owned()];
        if let Some(device) = &self.device {
            args.extend(["--device".to_owned(), device.clone()]);
        }
        args
    }
}

/// List the devices, and what they can do.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

struct Describe;

impl Job for Describe {
    type Result = Attributes;

    fn run<D: Device>(self, device: D, _: Carried) -> anyhow::Result<Attributes> {
        Ok(device.attributes().clone())
    }
}

/// Lists the devices; one that cannot be used says why.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut found = Vec::new();
    for fabric in Carried::value_variants() {
        found.push((fabric.name(), DeviceArgs { fabric: *fabric, device: None }.run(Describe)));
    }
    if args.json {
        let devices: Vec<Value> = found
            .iter()
            .map(|(fabric, attributes)| match attributes {
                Err(error) => json!({ "fabric": fabric, "error": output::describe(error) }),
                Ok(attributes) => json!({
                    "fabric": fabric,
                    "name": attributes.name,
                    "mtu": attributes.mtu,
                    "message_len_max": attributes.message_len_max,
                    "inline_max": attributes.inline_max,
                    "gather_max": attributes.gather_max,
                    "queue_depth_max": attributes.queue_depth_max,
                    "reads_max": attributes.reads_max,
                    "atomics": attributes.atomics,
                    "line_rate_bps": attributes.line_rate_bps,
                }),
            })
            .collect();
        output::print(json!({ "devices": devices }))?;
        return Ok(Outcome::Done);
    }
    for (fabric, attributes) in &found {
        output::print(match attributes {
            Err(error) => format!("{fabric}: cannot be used: {}", output::describe(error)),
            Ok(attributes) => format!(
                "{fabric}: {}\n  UD messages up to {}, others up to {}, inline up to {}; {} requests a queue; atomics: {}",
                attributes.name,
                units::size(attributes.mtu),
                units::size(attributes.message_len_max),
                units::size(attributes.inline_max),
                attributes.queue_depth_max,
                if attributes.atomics { "yes" } else { "no" }
            ),
        })?;
    }
    Ok(Outcome::Done)
}
