//! The devices that can be measured.

use anyhow::ensure;
use clap::ValueEnum;
use serde_json::{Value, json};
use sinew::fabric::verbs::{Attributes, Device};
use sinew::ibverbs::{self, DeviceInfo, IbDevice, Link, Selector};
use sinew::shm::verbs::ShmDevice;

use sinew_harness::units;

use crate::{Outcome, output};

/// Fabric that carries the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerbsFabric {
    /// Shared memory between processes of one user
    Shm,
    /// RDMA NICs and soft-RoCE, through libibverbs
    Ibverbs,
}

impl VerbsFabric {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Ibverbs => "ibverbs",
        }
    }
}

/// Options that choose a device.
#[derive(clap::Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Fabric that carries the verbs
    #[arg(long, value_enum, default_value = "shm")]
    pub fabric: VerbsFabric,
    /// RDMA device, for --fabric ibverbs: rxe0, mlx5_0:2 (its second port) or mlx5_0?gid=3 [default: the first usable
    /// one]
    #[arg(long, visible_alias = "ib-dev")]
    pub device: Option<String>,
}

/// Work to do with a device of any kind.
pub trait Job {
    type Result;

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<Self::Result>;
}

impl DeviceArgs {
    /// Checks these options, as far as that is possible without examining the machine.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.device.is_none() || self.fabric == VerbsFabric::Ibverbs, "--device applies to --fabric ibverbs");
        self.selector().map(|_| ())
    }

    fn selector(&self) -> anyhow::Result<Selector> {
        Ok(self.device.as_deref().unwrap_or_default().parse()?)
    }

    /// Opens the device, and does the job.
    pub fn run<J: Job>(&self, job: J) -> anyhow::Result<J::Result> {
        match self.fabric {
            VerbsFabric::Shm => job.run(ShmDevice::open(&"shm://".parse()?)?, self.fabric),
            VerbsFabric::Ibverbs => job.run(IbDevice::open(&self.selector()?)?, self.fabric),
        }
    }

    /// Arguments that give a child the same device.
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

    fn run<D: Device + 'static>(self, device: D, _: VerbsFabric) -> anyhow::Result<Attributes> {
        Ok(device.attributes().clone())
    }
}

/// A device as it is listed: as text, and as JSON.
type DeviceList = (String, Value);

/// Lists the devices. One that cannot be used is listed with the reason, and so is each of its ports.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let open = |fabric, device| DeviceArgs { fabric, device }.run(Describe);
    let none = |fabric: VerbsFabric, error: &anyhow::Error| {
        let (fabric, error) = (fabric.name(), output::describe(error));
        (format!("{fabric}: cannot be used: {error}"), json!({ "fabric": fabric, "error": error }))
    };
    let shm = |attributes: Attributes| {
        let mut json = json!({ "fabric": "shm", "name": attributes.name });
        let text = format!("shm: {}\n  {}", attributes.name, describe(&mut json, &attributes));
        (text, json)
    };
    let mut found = vec![open(VerbsFabric::Shm, None).map_or_else(|error| none(VerbsFabric::Shm, &error), shm)];
    match ibverbs::devices() {
        Ok(devices) => {
            found.extend(devices.iter().map(|device| of_ibverbs(device, |port| open(VerbsFabric::Ibverbs, Some(port)))))
        }
        Err(error) => found.push(none(VerbsFabric::Ibverbs, &error.into())),
    }
    let (texts, devices): (Vec<String>, Vec<Value>) = found.into_iter().unzip();
    if args.json {
        output::print(json!({ "devices": devices }))?;
    } else {
        output::print(texts.join("\n"))?;
    }
    Ok(Outcome::Done)
}

/// A device that libibverbs lists; `open` asks one of its ports what it can do.
fn of_ibverbs(device: &DeviceInfo, open: impl Fn(String) -> anyhow::Result<Attributes>) -> DeviceList {
    let DeviceInfo { name, ports, trouble } = device;
    let cannot = |why: &str| format!("cannot be used: {why}");
    let mut text = format!("ibverbs: {name}");
    text.extend(trouble.iter().map(|trouble| format!(": {}", cannot(trouble))));
    let mut json_ports = Vec::new();
    for port in ports {
        let (link, shown) = match port.link {
            Link::InfiniBand => ("infiniband", port.to_string()),
            Link::Ethernet => ("ethernet", port.to_string()),
            Link::Other => ("unknown", "unknown link".to_owned()),
        };
        text += &format!("\n  port {}: {}, {shown}", port.number, port.state);
        let mut json = json!({
            "number": port.number,
            "link": link,
            "state": port.state,
            "mtu": port.mtu,
            "message_len_max": port.message_len_max,
            "line_rate_bps": port.rate_bps,
            "lid": port.lid,
            "gid": port.chosen.as_ref().map(ToString::to_string),
            "gids": port.gids.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "error": null,
        });
        // A device that cannot be used has given its reason already.
        if trouble.is_none() {
            let opened = match &port.trouble {
                Some(trouble) => Err(trouble.clone()),
                None => open(format!("{name}:{}", port.number)).map_err(|error| output::describe(&error)),
            };
            let can = match opened {
                Ok(attributes) => describe(&mut json, &attributes),
                Err(error) => {
                    json["error"] = error.as_str().into();
                    cannot(&error)
                }
            };
            text += &format!("\n    {can}");
        }
        json_ports.push(json);
    }
    (text, json!({ "fabric": "ibverbs", "name": name, "ports": json_ports, "error": trouble }))
}

/// Adds a device's attributes to its JSON, and returns them as a line of text.
fn describe(json: &mut Value, attributes: &Attributes) -> String {
    json["mtu"] = attributes.mtu.into();
    json["message_len_max"] = attributes.message_len_max.into();
    json["inline_max"] = attributes.inline_max.into();
    json["gather_max"] = attributes.gather_max.into();
    json["queue_depth_max"] = attributes.queue_depth_max.into();
    json["reads_max"] = attributes.reads_max.into();
    json["atomics"] = attributes.atomics.into();
    json["line_rate_bps"] = attributes.line_rate_bps.into();
    format!(
        "UD messages up to {}, others up to {}, inline up to {}; {} requests a queue; atomics: {}",
        units::size(attributes.mtu),
        units::size(attributes.message_len_max),
        units::size(attributes.inline_max),
        attributes.queue_depth_max,
        if attributes.atomics { "yes" } else { "no" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinew::ibverbs::PortInfo;

    fn port(number: u8, trouble: Option<&str>) -> PortInfo {
        PortInfo {
            number,
            link: Link::Ethernet,
            state: if trouble.is_some() { "down" } else { "active" }.to_owned(),
            mtu: 1024,
            message_len_max: 1 << 30,
            rate_bps: None,
            lid: 0,
            gids: Vec::new(),
            chosen: None,
            grh_required: false,
            trouble: trouble.map(str::to_owned),
        }
    }

    #[test]
    fn every_port_of_a_device_is_listed_with_what_it_can_do_or_why_it_cannot_be_used() {
        let ports = vec![port(1, Some("no cable")), port(2, None), port(3, None)];
        let device = DeviceInfo { name: "mlx5_0".to_owned(), ports, trouble: None };
        let attributes = DeviceArgs { fabric: VerbsFabric::Shm, device: None }.run(Describe).unwrap();
        let (text, json) = of_ibverbs(&device, |port| match &port[..] {
            "mlx5_0:2" => Ok(attributes.clone()),
            _ => Err(anyhow::anyhow!("it was taken away")),
        });
        let of_ports = |key: &str| json["ports"].as_array().unwrap().iter().map(|port| port[key].clone()).collect();
        assert_eq!(Value::Array(of_ports("error")), json!(["no cable", null, "it was taken away"]));
        assert_eq!(Value::Array(of_ports("atomics")), json!([null, attributes.atomics, null]));
        let beginning = "ibverbs: mlx5_0\n  port 1: down, no GID\n    cannot be used: no cable\n  port 2";
        assert!(text.starts_with(beginning), "{text}");
    }

    #[test]
    fn a_device_that_cannot_be_used_says_why_and_is_not_opened() {
        let trouble = Some("it speaks iWARP".to_owned());
        let device = DeviceInfo { name: "iw0".to_owned(), ports: vec![port(1, None)], trouble };
        let (text, json) = of_ibverbs(&device, |_| panic!("it was opened"));
        assert_eq!((&json["name"], &json["error"]), (&"iw0".into(), &"it speaks iWARP".into()));
        assert_eq!(text, "ibverbs: iw0: cannot be used: it speaks iWARP\n  port 1: active, no GID");
    }
}
