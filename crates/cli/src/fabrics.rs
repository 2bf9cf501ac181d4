//! The fabrics that can be measured, and addresses on them.

use clap::ValueEnum;
use sinew::fabric::{Address, Generator};
use sinew::host::SystemEntropy;

/// What carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fabric {
    /// Shared memory between processes
    Shm,
    /// Kernel UDP
    Udp,
    /// Shared memory between two threads of one process: no copies on receipt
    Hub,
}

impl Fabric {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Udp => "udp",
            Self::Hub => "hub",
        }
    }

    /// An address for a server that nobody else has.
    pub fn fresh_address(self, options: &str) -> anyhow::Result<String> {
        Ok(match self {
            Self::Udp => format!("udp://127.0.0.1:0{options}"),
            Self::Shm | Self::Hub => {
                format!("shm://bench-{}-{:08x}{options}", std::process::id(), SystemEntropy::new()?.next_u64() as u32)
            }
        })
    }

    /// The address of an endpoint that only calls.
    pub fn client_address(self, options: &str) -> String {
        match self {
            Self::Udp => format!("udp://{options}"),
            Self::Shm | Self::Hub => format!("shm://{options}"),
        }
    }

    /// The fabric of an address.
    pub fn of(address: &Address) -> Option<Self> {
        match address.scheme() {
            "shm" => Some(Self::Shm),
            "udp" => Some(Self::Udp),
            _ => None,
        }
    }
}

/// The address of the `index`th server thread: `shm://name`, `shm://name.1`, ...; `udp://host:7000`, `udp://host:7001`, ...
pub fn nth_address(address: &str, index: usize) -> anyhow::Result<String> {
    let parsed: Address = address.parse()?;
    if index == 0 {
        return Ok(address.to_owned());
    }
    let options = address.split_once('?').map_or(String::new(), |(_, options)| format!("?{options}"));
    if parsed.scheme() != "udp" {
        return Ok(format!("{}://{}.{index}{options}", parsed.scheme(), parsed.rest()));
    }
    match parsed.rest().rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some((_, 0)) => Ok(address.to_owned()),
        Some((host, port)) => match port.checked_add(u16::try_from(index)?) {
            Some(port) => Ok(format!("udp://{host}:{port}{options}")),
            None => anyhow::bail!("{address}: there is no port for thread {index}; choose a lower one"),
        },
        None => anyhow::bail!("{address}: say the port, for example udp://0.0.0.0:7000"),
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
        ] {
            assert_eq!(nth_address(address, 0).unwrap(), address);
            assert_eq!(nth_address(address, 2).unwrap(), third);
        }
        assert!(nth_address("udp://h:65535", 1).is_err());
        assert!(nth_address("udp://h", 1).is_err());
    }
}
