//! The devices that can be measured.

use anyhow::ensure;
use clap::ValueEnum;
use serde_json::{Value, json};
use sinew::fabric::verbs::{Attributes, Device};
use sinew::ibverbs::{self, DeviceInfo, IbDevice, Link, PortInfo, Selector};
use sinew::shm::verbs::ShmDevice;

use sinew_harness::units;

use crate::{Outcome, output};

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

    fn run<D: Device + 'static>(self, device: D, carried: Carried) -> anyhow::Result<Self::Result>;
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

    fn run<D: Device + 'static>(self, device: D, _: Carried) -> anyhow::Result<Attributes> {
        Ok(device.attributes().clone())
    }
}

/// A device as it is listed: in lines to read, and as JSON.
struct Listed {
    text: String,
    json: Value,
}

/// Lists the devices; one that cannot be used says why, and so does each of its ports.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let describe = |fabric, device| DeviceArgs { fabric, device }.run(Describe);
    let of_port = |device: &str, port: u8| describe(Carried::Ibverbs, Some(format!("{device}:{port}")));
    let mut found = vec![of_shm(describe(Carried::Shm, None))];
    match ibverbs::devices() {
        Ok(devices) => found.extend(devices.iter().map(|device| of_ibverbs(device, of_port))),
        Err(error) => found.push(of_none(Carried::Ibverbs, &error.into())),
    }
    if args.json {
        let devices: Vec<Value> = found.into_iter().map(|listed| listed.json).collect();
        output::print(json!({ "devices": devices }))?;
    } else {
        output::print(found.iter().map(|listed| &listed.text[..]).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Outcome::Done)
}

fn of_none(fabric: Carried, error: &anyhow::Error) -> Listed {
    let (fabric, error) = (fabric.name(), output::describe(error));
    Listed { text: format!("{fabric}: cannot be used: {error}"), json: json!({ "fabric": fabric, "error": error }) }
}

fn of_shm(attributes: anyhow::Result<Attributes>) -> Listed {
    match attributes {
        Err(error) => of_none(Carried::Shm, &error),
        Ok(attributes) => {
            let mut json = json!({ "fabric": Carried::Shm.name(), "name": attributes.name });
            describe(&mut json, &attributes);
            Listed { text: format!("shm: {}\n  {}", attributes.name, text_of(&attributes)), json }
        }
    }
}

/// A device that libibverbs lists; `open` asks one of its ports what it can do.
fn of_ibverbs(device: &DeviceInfo, open: impl Fn(&str, u8) -> anyhow::Result<Attributes>) -> Listed {
    let DeviceInfo { name, ports, trouble } = device;
    let mut text = format!("ibverbs: {name}");
    if let Some(trouble) = trouble {
        text += &format!(": cannot be used: {trouble}");
    }
    let mut json_ports = Vec::new();
    for port in ports {
        let mut json = of_port(port);
        let link = match port.link {
            Link::Other => "unknown link".to_owned(),
            _ => port.to_string(),
        };
        text += &format!("\n  port {}: {}, {link}", port.number, port.state);
        let attributes = match (trouble, &port.trouble) {
            // The device has said why already.
            (Some(_), _) => None,
            (None, Some(trouble)) => Some(Err(trouble.clone())),
            (None, None) => Some(open(name, port.number).map_err(|error| output::describe(&error))),
        };
        match attributes {
            None => {}
            Some(Ok(attributes)) => {
                describe(&mut json, &attributes);
                text += &format!("\n    {}", text_of(&attributes));
            }
            Some(Err(error)) => {
                text += &format!("\n    cannot be used: {error}");
                json["error"] = error.into();
            }
        }
        json_ports.push(json);
    }
    let json = json!({ "fabric": Carried::Ibverbs.name(), "name": name, "ports": json_ports, "error": trouble });
    Listed { text, json }
}

fn of_port(port: &PortInfo) -> Value {
    let link = match port.link {
        Link::InfiniBand => "infiniband",
        Link::Ethernet => "ethernet",
        Link::Other => "unknown",
    };
    json!({
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
    })
}

fn describe(json: &mut Value, attributes: &Attributes) {
    json["mtu"] = attributes.mtu.into();
    json["message_len_max"] = attributes.message_len_max.into();
    json["inline_max"] = attributes.inline_max.into();
    json["gather_max"] = attributes.gather_max.into();
    json["queue_depth_max"] = attributes.queue_depth_max.into();
    json["reads_max"] = attributes.reads_max.into();
    json["atomics"] = attributes.atomics.into();
    json["line_rate_bps"] = attributes.line_rate_bps.into();
}

fn text_of(attributes: &Attributes) -> String {
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
        let attributes = DeviceArgs { fabric: Carried::Shm, device: None }.run(Describe).unwrap();
        let listed = of_ibverbs(&device, |name, port| match (name, port) {
            ("mlx5_0", 2) => Ok(attributes.clone()),
            _ => Err(anyhow::anyhow!("it was taken away")),
        });
        let ports = listed.json["ports"].as_array().unwrap();
        let errors: Vec<_> = ports.iter().map(|port| port["error"].as_str()).collect();
        assert_eq!(errors, [Some("no cable"), None, Some("it was taken away")]);
        let atomics: Vec<_> = ports.iter().map(|port| port["atomics"].as_bool()).collect();
        assert_eq!(atomics, [None, Some(attributes.atomics), None]);
        assert!(
            listed.text.starts_with("ibverbs: mlx5_0\n  port 1: down, no GID\n    cannot be used: no cable\n  port 2")
        );
    }

    #[test]
    fn a_device_that_cannot_be_used_says_why_and_is_not_opened() {
        let trouble = Some("it speaks iWARP".to_owned());
        let device = DeviceInfo { name: "iw0".to_owned(), ports: vec![port(1, None)], trouble };
        let listed = of_ibverbs(&device, |_, _| panic!("it was opened"));
        assert_eq!((&listed.json["name"], &listed.json["error"]), (&"iw0".into(), &"it speaks iWARP".into()));
        assert_eq!(listed.text, "ibverbs: iw0: cannot be used: it speaks iWARP\n  port 1: active, no GID");
    }
}
