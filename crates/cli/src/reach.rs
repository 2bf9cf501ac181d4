//! Options for reading and writing donors' memory, and for the key of a pool, which donors and their users share.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use sinew::remote_memory::donor::{KEY_LEN_MIN, Key};
use sinew_harness::units::counted;

use crate::verbs::{DeviceArgs, VerbsFabric};

/// Means of reading and writing donors' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessMeans {
    /// Shared memory between processes of one user
    Shm,
    /// RDMA NICs and soft-RoCE, through libibverbs
    Ibverbs,
    /// Calls over the fabric of the address, which the donor answers
    Rpc,
}

/// Options that say how to read and write memory.
#[derive(clap::Args, Clone, Debug)]
pub struct AccessArgs {
    /// Means of reading and writing donors' memory [default: that of the address; rpc for udp:// and xdp://]
    #[arg(long, value_enum)]
    fabric: Option<AccessMeans>,
    /// RDMA device, for --fabric ibverbs: rxe0, mlx5_0:2 (its second port) or mlx5_0?gid=3 [default: the first usable
    /// one]
    #[arg(long, visible_alias = "ib-dev")]
    device: Option<String>,
}

impl AccessArgs {
    /// Means of reading and writing the memory of a donor at this address.
    pub fn means_for(&self, address: &str) -> AccessMeans {
        self.fabric.unwrap_or_else(|| match address.split_once("://") {
            Some(("shm", _)) => AccessMeans::Shm,
            Some(("ibverbs", _)) => AccessMeans::Ibverbs,
            _ => AccessMeans::Rpc,
        })
    }

    /// The RDMA device that was asked for, if any.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The device that reads and writes; `None` for calls.
    pub fn device_args(&self, address: &str) -> Option<DeviceArgs> {
        let fabric = match self.means_for(address) {
            AccessMeans::Shm => VerbsFabric::Shm,
            AccessMeans::Ibverbs => VerbsFabric::Ibverbs,
            AccessMeans::Rpc => return None,
        };
        Some(DeviceArgs { fabric, device: self.device.clone() })
    }

    /// Checks these options, as far as that is possible without examining the machine.
    pub fn check(&self, address: &str) -> anyhow::Result<()> {
        match self.device_args(address) {
            Some(device) => device.check(),
            None => {
                ensure!(self.device.is_none(), "--device applies to --fabric ibverbs");
                Ok(())
            }
        }
    }
}

/// The key of a pool, or of a cluster.
#[derive(clap::Args, Clone, Debug)]
pub struct KeyArgs {
    /// File with the shared key: at least 16 bytes, the same on all hosts [default: no key]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// The key, if one was given.
    pub fn key(&self) -> anyhow::Result<Option<Key>> {
        self.key_file.as_deref().map(read_key).transpose()
    }
}

fn read_key(path: &Path) -> anyhow::Result<Key> {
    let bytes = std::fs::read(path).with_context(|| format!("reading the key file {}", path.display()))?;
    match Key::new(&bytes) {
        Some(key) => Ok(key),
        None => bail!(
            "the key file {} has {}: a key has at least {KEY_LEN_MIN}; make one with: head -c 32 /dev/urandom",
            path.display(),
            counted(bytes.len(), "byte")
        ),
    }
}

/// Whether only programs of this host can reach an address.
pub fn is_of_this_host(address: &str) -> bool {
    let Some((scheme, host)) = scheme_and_host(address) else { return false };
    scheme == "shm" || host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|host| host.is_loopback())
}

/// Whether an address names every interface of its host, and so none that others could reach.
pub fn is_unspecified(address: &str) -> bool {
    let host = scheme_and_host(address).and_then(|(_, host)| host.parse::<std::net::IpAddr>().ok());
    host.is_some_and(|host| host.is_unspecified())
}

fn scheme_and_host(address: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = address.split_once("://")?;
    let rest = rest.split(['?', '/']).next().unwrap_or_default();
    Some((scheme, rest.rsplit_once(':').map_or(rest, |(host, _)| host).trim_matches(['[', ']'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_others_reach_are_known_as_such() {
        let near =
            ["shm://a", "udp://127.0.0.1:7000", "udp://[::1]:7000", "udp://localhost:0", "ibverbs://127.0.0.5:1?gid=1"];
        let far = ["udp://0.0.0.0:7000", "udp://10.0.0.1:7000", "ibverbs://[::]:1", "udp://host:7", "nothing"];
        for (addresses, expected) in [(near, true), (far, false)] {
            addresses.iter().for_each(|address| assert_eq!(is_of_this_host(address), expected, "{address}"));
        }
    }

    #[test]
    fn an_address_says_how_memory_is_reached_unless_somebody_else_does() {
        let means = |fabric, address| AccessArgs { fabric, device: None }.means_for(address);
        assert_eq!(
            ["shm://a", "udp://a:1", "ibverbs://a:1"].map(|at| means(None, at)),
            [AccessMeans::Shm, AccessMeans::Rpc, AccessMeans::Ibverbs]
        );
        assert_eq!(means(Some(AccessMeans::Ibverbs), "udp://a:1"), AccessMeans::Ibverbs);
        assert_eq!(means(Some(AccessMeans::Rpc), "shm://a"), AccessMeans::Rpc);
    }
}
