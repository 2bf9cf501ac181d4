//! The fabrics that can be measured, and addresses on them.

use anyhow::{Context, ensure};
use clap::ValueEnum;
use sinew::FabricEndpoint;
use sinew::fabric::{Address, Generator, PortError};
use sinew::host::SystemEntropy;
use sinew::ibverbs::IbOptions;
use sinew::prelude::*;
use sinew::shm::Hub;
use sinew::udp::UdpOptions;
use sinew::xdp::{XdpAddress, XdpOptions};

use crate::endpoint_args::LimitArgs;
use crate::own_pair;

/// Fabric that carries calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fabric {
    /// Shared memory between processes
    Shm,
    /// Kernel UDP
    Udp,
    /// Shared memory between two threads of one process: no copies on receipt
    Hub,
    /// RDMA devices, soft-RoCE included, through libibverbs
    Ibverbs,
    /// AF_XDP; without an address, over a pair of virtual interfaces that the program makes for itself
    Xdp,
}

impl Fabric {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Udp => "udp",
            Self::Hub => "hub",
            Self::Ibverbs => "ibverbs",
            Self::Xdp => "xdp",
        }
    }

    /// An address for a server of our own, used by nobody else.
    pub fn fresh_address(self, options: &str) -> anyhow::Result<String> {
        Ok(match self {
            Self::Udp | Self::Ibverbs => format!("{}://127.0.0.1:0{options}", self.name()),
            Self::Xdp => format!("{}{options}", own_pair::server_address()?),
            Self::Shm | Self::Hub => {
                format!("shm://bench-{}-{:08x}{options}", std::process::id(), SystemEntropy::new()?.next_u64() as u32)
            }
        })
    }

    /// The address of an endpoint that only calls a server at `to`, or, with `None`, a server at a fresh address.
    pub fn client_address(self, options: &str, to: Option<&str>) -> String {
        match self {
            Self::Xdp => format!("xdp://{}{options}", own_pair::client_interface(to)),
            Self::Udp | Self::Ibverbs => format!("{}://{options}", self.name()),
            Self::Shm | Self::Hub => format!("shm://{options}"),
        }
    }

    /// The fabric of an address, or `None` if it has no known scheme.
    pub fn of(address: &Address) -> Option<Self> {
        match address.scheme() {
            "shm" => Some(Self::Shm),
            "udp" => Some(Self::Udp),
            "ibverbs" => Some(Self::Ibverbs),
            "xdp" => Some(Self::Xdp),
            _ => None,
        }
    }
}

/// Opens an endpoint on the calling thread that calls a server at `to`; for [`Fabric::Hub`], in `hub`.
pub fn open(fabric: Fabric, limits: &LimitArgs, options: &str, to: &str, hub: &Hub) -> anyhow::Result<FabricEndpoint> {
    let nexus = Nexus::builder().config(limits.config()).build()?;
    let own = fabric.client_address(options, Some(to));
    if fabric == Fabric::Hub {
        let port = hub.port(own.trim_start_matches("shm://"))?;
        return Ok(FabricEndpoint::Shm(sinew::endpoint(&nexus, port)?));
    }
    Ok(own_pair::in_client(to, || Rpc::open_with(&nexus, &own))??.into_endpoint())
}

/// Options of a fabric in the form in which they follow an address.
pub fn options_of(options: Option<&str>) -> String {
    match options.map(|options| options.trim_start_matches('?')) {
        None | Some("") => String::new(),
        Some(options) => format!("?{options}"),
    }
}

/// An RDMA device as an option of an address: mlx5_0?gid=3 as device=mlx5_0&gid=3.
pub fn device_option(device: &str) -> String {
    format!("device={}", device.replace('?', "&"))
}

/// The fabric of a benchmark's clients: that of the address, which is checked for each thread, or the one asked for.
pub fn of_clients(fabric: Option<Fabric>, address: Option<&str>, threads: usize) -> anyhow::Result<Fabric> {
    let Some(address) = address else { return Ok(fabric.unwrap_or(Fabric::Shm)) };
    let mut of_address = check(address, Purpose::Call)?;
    for index in 1..threads {
        of_address = check(&nth_address(address, index)?, Purpose::Call)?;
    }
    ensure!(
        fabric.is_none_or(|fabric| fabric == of_address),
        "--fabric and --address {address} disagree; leave --fabric out"
    );
    Ok(of_address)
}

/// Use of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server listens there.
    Serve,
    /// A client calls the server that listens there.
    Call,
    /// Calls go out from there.
    CallFrom,
}

/// Checks an address as far as that is possible without contacting anybody, and returns its fabric.
pub fn check(address: &str, purpose: Purpose) -> anyhow::Result<Fabric> {
    let parsed: Address = address.parse()?;
    let fabric =
        Fabric::of(&parsed).with_context(|| format!("`{address}`: use shm://, udp://, ibverbs:// or xdp://"))?;
    if fabric == Fabric::Xdp {
        XdpOptions::of(&parsed)?;
        let place = XdpAddress::of(&parsed)?;
        ensure!(
            purpose != Purpose::Call || (place.address.is_some() && place.port.is_some_and(|port| port != 0)),
            "`{address}`: write xdp://INTERFACE/IP:PORT, with this host's interface towards the server, and the address and port \
             that the server listens on"
        );
        return Ok(fabric);
    }
    if fabric != Fabric::Shm {
        match fabric {
            Fabric::Ibverbs => drop(IbOptions::of(&parsed)?),
            _ => drop(UdpOptions::of(&parsed)?),
        }
        parsed.host_and_port()?;
        ensure!(
            purpose != Purpose::Serve || fabric == Fabric::Udp || !parsed.rest().is_empty(),
            "`{address}`: a server needs an address that clients can find: ibverbs://HOST:PORT"
        );
        if purpose == Purpose::Call {
            parsed.host_to_call()?;
        }
        return Ok(fabric);
    }
    let named = purpose != Purpose::CallFrom;
    ensure!(
        !named || !parsed.rest().is_empty(),
        "`{address}`: a server needs a name that clients can find: shm://NAME"
    );
    // A hub takes the names and options of `shm://`, and touches nothing outside this process.
    match Hub::new().port(address.trim_start_matches("shm://")) {
        // What the system refuses at this moment is no fault of the address.
        Ok(_) | Err(PortError::System { .. }) => Ok(fabric),
        Err(error) => Err(error.into()),
    }
}

/// The address of the `index`th server thread: `shm://name`, `shm://name.1`, ...; `udp://host:7000`, `udp://host:7001`,
/// ... `ibverbs://` and `xdp://` likewise.
pub fn nth_address(address: &str, index: usize) -> anyhow::Result<String> {
    let parsed: Address = address.parse()?;
    let (place, options) = address.split_at(address.find('?').unwrap_or(address.len()));
    if index == 0 {
        return Ok(address.to_owned());
    }
    if parsed.scheme() == "shm" {
        return Ok(format!("{place}.{index}{options}"));
    }
    match parsed.host_and_port()?.1 {
        // The system chooses a port for each thread.
        None | Some(0) => Ok(address.to_owned()),
        Some(port) => {
            let nth = u16::try_from(index).ok().and_then(|index| port.checked_add(index));
            let nth =
                nth.with_context(|| format!("{address}: there is no port for thread {index}; choose a lower one"))?;
            Ok(format!("{}:{nth}{options}", place.rsplit_once(':').map_or(place, |(host, _)| host)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_addresses_of_their_own() {
        for (address, third) in [
            ("shm://a", "shm://a.2"),
            ("shm://a?ring=9", "shm://a.2?ring=9"),
            ("udp://[::1]:7000?mtu=9000", "udp://[::1]:7002?mtu=9000"),
            ("udp://127.0.0.1:0", "udp://127.0.0.1:0"),
            ("ibverbs://h:7000?device=rxe0&gid=1", "ibverbs://h:7002?device=rxe0&gid=1"),
            ("xdp://eth0/[fd00::1]:7000?ring=64", "xdp://eth0/[fd00::1]:7002?ring=64"),
            ("xdp://eth0", "xdp://eth0"),
        ] {
            assert_eq!(nth_address(address, 0).unwrap(), address);
            assert_eq!(nth_address(address, 2).unwrap(), third);
        }
        assert_eq!(nth_address("udp://", 1).unwrap(), "udp://");
        assert!(nth_address("udp://h:65535", 1).is_err());
    }

    #[test]
    fn addresses_are_checked_for_what_they_are_for() {
        for (address, serve, call, call_from) in [
            ("shm://a?ring=9", true, true, true),
            ("shm://", false, false, true),
            ("shm://?ring=9", false, false, true),
            ("shm://?ring=0", false, false, false),
            ("shm://a/b", false, false, false),
            ("udp://localhost:7000", true, true, true),
            ("udp://", true, false, true),
            ("udp://localhost", true, false, true),
            ("udp://localhost:port", false, false, false),
            ("udp://localhost:7000?ring=9", false, false, false),
            ("ibverbs://localhost:7000?device=rxe0", true, true, true),
            ("ibverbs://", false, false, true),
            ("ibverbs://localhost", true, false, true),
            ("ibverbs://localhost:7000?gid=x", false, false, false),
            ("xdp://eth0/10.0.0.1:7000?mode=native", true, true, true),
            ("xdp://eth0/10.0.0.1", true, false, true),
            ("xdp://eth0", true, false, true),
            ("xdp://10.0.0.1:7000", false, false, false),
            ("xdp://eth0/host:7000", false, false, false),
            ("xdp://eth0/10.0.0.1:7000?ring=9", false, false, false),
            ("pigeon://a", false, false, false),
            ("a", false, false, false),
        ] {
            for (purpose, good) in [(Purpose::Serve, serve), (Purpose::Call, call), (Purpose::CallFrom, call_from)] {
                assert_eq!(check(address, purpose).is_ok(), good, "{address} {purpose:?}");
            }
        }
    }
}
