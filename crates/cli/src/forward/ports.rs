//! Interfaces as the command line describes them, and their ports.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use sinew::fabric::frames::any::AnyPort;
use sinew::fabric::frames::cable::Cable;
use sinew::fabric::frames::{ETHERNET_HEADER_LEN, FramePort, MacAddress};
use sinew::fabric::{Address, Generator, PacketPort};
use sinew::forward::interface::{Interface, Network};
use sinew::forward::switch::parse_mac;
use sinew::host::SystemEntropy;
use sinew::shm::ShmPort;
use sinew::udp::UdpPort;
use sinew::xdp::{FrameOptions, Memory, XdpAddress, XdpFrames, XdpOptions, finishing_command};

use crate::output;

/// Largest packet, in bytes, unless `mtu=` says otherwise or the port carries less.
const MTU: usize = 1500;
/// Options of `xdp://` that apply to ports of frames.
const XDP_OPTIONS: [&str; 3] = ["mode", "zerocopy", "ring"];

/// Complaint about an interface whose packets arrive unfinished.
pub const LEFT_UNDONE: &str = "the kernel at the other end leaves checksums and segmentation to hardware, so receivers \
                               drop its packets; make it do both itself";

/// Argument of `--interface`: `NAME=PORT[,to=PORT][,ip=ADDRESS/LENGTH][,mac=ADDRESS][,mtu=BYTES]`.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    port: Address,
    to: Option<Address>,
    networks: Vec<Network>,
    mac: Option<MacAddress>,
    mtu: Option<usize>,
}

impl FromStr for Spec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let (name, port) = first.split_once('=').context("write NAME=PORT, as lan=shm://lan")?;
        let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        ensure!(!name.is_empty() && name.chars().all(is_plain), "`{name}` is no name: use letters, digits, -, _ and .");
        let address = |text: &str| -> anyhow::Result<Address> { Ok(text.parse()?) };
        let port = address(port)?;
        let mut spec = Self { name: name.to_owned(), port, to: None, networks: Vec::new(), mac: None, mtu: None };
        for part in parts {
            match part.split_once('=') {
                Some(("to", to)) => spec.to = Some(address(to)?),
                Some(("ip", network)) => spec.networks.push(Network::parse(network)?),
                Some(("mac", mac)) => {
                    let mac = parse_mac(mac).filter(|mac| mac.is_unicast() && *mac != MacAddress::default());
                    spec.mac = Some(mac.with_context(|| format!("`{part}`: this is no interface's Ethernet address"))?);
                }
                Some(("mtu", mtu)) => {
                    spec.mtu = Some(mtu.parse().with_context(|| format!("`{part}`: write a number of bytes"))?);
                }
                _ => bail!("`{part}`: an interface has to=PORT, ip=ADDRESS/LENGTH, mac=ADDRESS and mtu=BYTES"),
            }
        }
        Kind::of(&spec.port)?;
        if let Some(to) = &spec.to {
            ensure!(to.scheme() == spec.port.scheme(), "`{to}` is not on the fabric of `{}`", spec.port);
        }
        if Kind::of(&spec.port)? == Kind::Xdp {
            spec.port.check_options(&XDP_OPTIONS)?;
            XdpOptions::of(&spec.port)?;
            let place = XdpAddress::of(&spec.port)?;
            let is_whole = place.address.is_none() && place.port.is_none();
            ensure!(is_whole, "`{}`: a whole interface carries frames: write xdp://{}", spec.port, place.interface);
            ensure!(spec.to.is_none(), "`{}` has its other end already: leave to= out", spec.port);
            ensure!(spec.mac.is_none(), "`{}` has an Ethernet address: leave mac= out", spec.port);
        }
        Ok(spec)
    }
}

/// Fabric that carries an interface's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shm,
    Udp,
    Xdp,
}

impl Kind {
    fn of(address: &Address) -> anyhow::Result<Self> {
        Ok(match address.scheme() {
            "shm" => Self::Shm,
            "udp" => Self::Udp,
            "xdp" => Self::Xdp,
            other => bail!("`{other}://` carries no frames: use xdp://, shm:// or udp://"),
        })
    }
}

/// Work to do with ports of any type.
pub trait Job {
    /// Result of the work.
    type Result;

    /// Does the work. Each port comes with the address at which it is reached.
    fn run<P: FramePort>(self, ports: Vec<(P, String)>) -> anyhow::Result<Self::Result>;
}

/// Opens the ports of interfaces, and runs `job` with them. Ports of one kind keep their type; mixed ones share
/// [`AnyPort`].
pub fn with_ports<J: Job>(specs: &[Spec], job: J) -> anyhow::Result<J::Result> {
    let kinds = specs.iter().map(|spec| Kind::of(&spec.port)).collect::<anyhow::Result<Vec<_>>>()?;
    let all = |kind| kinds.iter().all(|other| *other == kind);
    if all(Kind::Shm) {
        return job.run(specs.iter().map(shm).collect::<anyhow::Result<Vec<_>>>()?);
    }
    if all(Kind::Udp) {
        return job.run(specs.iter().map(udp).collect::<anyhow::Result<Vec<_>>>()?);
    }
    let memory = frame_memory(specs, &kinds)?;
    let xdp = |spec: &Spec| xdp(spec, memory.as_ref().context("no interface has AF_XDP")?);
    if all(Kind::Xdp) {
        return job.run(specs.iter().map(xdp).collect::<anyhow::Result<Vec<_>>>()?);
    }
    let any = |(spec, kind): (&Spec, &Kind)| {
        anyhow::Ok(match kind {
            Kind::Xdp => xdp(spec).map(|(port, address)| (AnyPort::new(port), address))?,
            Kind::Shm => shm(spec).map(|(port, address)| (AnyPort::new(port), address))?,
            Kind::Udp => udp(spec).map(|(port, address)| (AnyPort::new(port), address))?,
        })
    };
    job.run(specs.iter().zip(&kinds).map(any).collect::<anyhow::Result<Vec<_>>>()?)
}

fn shm(spec: &Spec) -> anyhow::Result<(Cable<ShmPort>, String)> {
    cable(spec, ShmPort::open(&spec.port)?)
}

fn udp(spec: &Spec) -> anyhow::Result<(Cable<UdpPort>, String)> {
    cable(spec, UdpPort::open(&spec.port)?)
}

/// Memory that all AF_XDP interfaces share, so that frames go from one to another without a copy.
fn frame_memory(specs: &[Spec], kinds: &[Kind]) -> anyhow::Result<Option<Arc<Memory>>> {
    let mut interfaces = Vec::new();
    for (spec, _) in specs.iter().zip(kinds).filter(|(_, kind)| **kind == Kind::Xdp) {
        interfaces.push((XdpAddress::of(&spec.port)?.interface, XdpOptions::of(&spec.port)?.interface));
    }
    let interfaces = interfaces.iter().map(|(name, options)| (&**name, *options));
    Ok(if interfaces.len() == 0 { None } else { Some(XdpFrames::memory_for(interfaces)?) })
}

/// Opens a network interface for all its frames. The kernel then sees none of them.
fn xdp(spec: &Spec, memory: &Arc<Memory>) -> anyhow::Result<(XdpFrames, String)> {
    let interface = XdpAddress::of(&spec.port)?.interface;
    let options = FrameOptions { interface: XdpOptions::of(&spec.port)?.interface, ..FrameOptions::default() };
    let port = XdpFrames::open(&interface, memory, &options)?;
    // Where the settings cannot be read, the router notices by the packets.
    if let Ok(Some(command)) = finishing_command(&interface) {
        output::complain(format_args!("interface {}: {LEFT_UNDONE}: {command}", spec.name));
    }
    Ok((port, spec.port.to_string()))
}

fn cable<P: PacketPort>(spec: &Spec, port: P) -> anyhow::Result<(Cable<P>, String)> {
    let mac = match spec.mac {
        Some(mac) => mac,
        None => random_mac()?,
    };
    let cable = match &spec.to {
        Some(to) => Cable::to(port, to, mac)?,
        None => Cable::to_first_sender(port, mac),
    };
    let address = cable.address().to_string();
    Ok((cable, address))
}

/// A random address, marked as locally administered.
fn random_mac() -> anyhow::Result<MacAddress> {
    let [_, _, a, b, c, d, e, f] = SystemEntropy::new()?.next_u64().to_be_bytes();
    Ok(MacAddress([a & 0xFC | 2, b, c, d, e, f]))
}

impl Spec {
    /// Describes the interface at its port.
    pub fn interface(&self, port: &impl FramePort) -> anyhow::Result<Interface> {
        let room = port.caps().frame_len_max.saturating_sub(ETHERNET_HEADER_LEN);
        let mtu = self.mtu.unwrap_or(MTU.min(room));
        ensure!(mtu <= room, "interface {}: mtu={mtu} is more than its port carries, {room} bytes", self.name);
        Ok(Interface { name: self.name.clone(), mac: port.mac(), mtu, networks: self.networks.clone() })
    }

    /// The command that makes the kernel at the other end finish its packets. The other end's name is known if the
    /// interface and its peer are in one network namespace; otherwise the user has to insert it.
    pub fn advice(&self) -> String {
        let interface = XdpAddress::of(&self.port).ok().map(|place| place.interface);
        let known = interface.as_deref().and_then(|name| finishing_command(name).ok().flatten());
        known.unwrap_or_else(|| {
            let port = interface.unwrap_or_else(|| self.port.to_string());
            format!("ethtool -K PEER tx off gso off tso off, where PEER is the interface at the other end of {port}")
        })
    }

    /// Whether it has IP addresses.
    pub fn has_addresses(&self) -> bool {
        !self.networks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_and_what_is_wrong_is_named() {
        let spec: Spec =
            "lan=shm://lan?ring=9,to=shm://host,ip=10.0.0.1/24,ip=fd00::1/64,mac=02:00:00:00:00:01,mtu=1400"
                .parse()
                .unwrap();
        assert_eq!((&*spec.name, spec.networks.len(), spec.mtu), ("lan", 2, Some(1400)));
        assert_eq!(
            (spec.port.to_string(), spec.to.unwrap().to_string()),
            ("shm://lan?ring=9".into(), "shm://host".into())
        );
        for (text, problem) in [
            ("shm://lan", "write NAME=PORT"),
            ("lan", "write NAME=PORT"),
            ("=shm://lan", "`` is no name"),
            ("lan=pigeon://x", "carries no frames"),
            ("lan=shm://x,to=udp://h:1", "not on the fabric"),
            ("lan=xdp://eth0/10.0.0.1:7000", "write xdp://eth0"),
            ("lan=xdp://eth0?coalesce=off", "coalesce"),
            ("lan=xdp://eth0,to=xdp://eth1", "leave to= out"),
            ("lan=xdp://eth0,mac=02:00:00:00:00:01", "leave mac= out"),
            ("lan=shm://x,ip=10.0.0.1/33", "longer than the address"),
            ("lan=shm://x,mac=01:00:00:00:00:01", "no interface's Ethernet address"),
            ("lan=shm://x,mtu=x", "write a number of bytes"),
            ("lan=shm://x,speed=9", "an interface has to="),
        ] {
            let error = format!("{:#}", text.parse::<Spec>().unwrap_err());
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
