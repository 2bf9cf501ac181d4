//! Ports of `ibverbs://` addresses: the device's backend together with the host's names.

use sinew_fabric::verbs::port::UdPort;
use sinew_fabric::{Address, PortError};
use sinew_host::TcpNames;
use sinew_ibverbs::{IbDevice, IbDomain, IbOptions, SCHEME};

/// A port whose packets are datagrams of an RDMA device.
pub type IbPort = UdPort<IbDomain>;

/// Opens a port at `ibverbs://HOST:PORT`, where others ask over TCP for its queue pair, or, at `ibverbs://`, one that
/// only calls. The options are those of [`IbOptions`]; the port's address says which device, port and GID were chosen.
///
/// ```no_run
/// use sinew::prelude::*;
///
/// let port = sinew::ibverbs_port(&"ibverbs://0.0.0.0:7000?device=rxe0".parse()?)?;
/// let mut rpc = sinew::endpoint(&Nexus::client(), port)?;
/// println!("{}", rpc.address()); // ibverbs://0.0.0.0:7000?device=rxe0:1&gid=1
/// # Ok::<(), sinew::Error>(())
/// ```
///
/// # Errors
///
/// [`PortError::Unavailable`] when there is no usable device, with the reasons and the remedy; [`PortError::Address`],
/// [`PortError::Taken`].
pub fn ibverbs_port(address: &Address) -> Result<IbPort, PortError> {
    let options = IbOptions::of(address)?;
    address.host_and_port()?;
    let device = IbDevice::open(&options.device).map_err(|error| PortError::Unavailable {
        fabric: "ibverbs",
        reason: error.to_string(),
        remedy: "`sinew verbs devices` lists the devices and their state".to_owned(),
    })?;
    let names = Box::new(TcpNames::new(SCHEME, IbOptions::KNOWN));
    UdPort::open_named(&device, &options.port, &IbOptions::with_chosen_port(address.clone(), &device), names)
}
