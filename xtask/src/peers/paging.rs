//! Paging (rdmabox VI-A, Figures 10 and 11): programs that have half, or a quarter, of the memory that they use, and
//! swap the rest to memory that `sinew serve files` gives, to zram, to a file on disk, and to nbdkit's memory.
//!
//! Where the paper has MongoDB, VoltDB and Redis under YCSB, this has redis-server under the same two mixes (ETC: 95 %
//! reads; SYS: 75 %); where it has machine learning, this has a sort. Working sets are some hundred MB and not 20 GB,
//! and both hosts are this one.

mod device;
mod group;
mod redis;
pub mod sort;

use super::Setting;
use super::contest::{Contest, Peer, Runner, Side, Unit};
use super::mounts::require;
use crate::process;
use device::Device;

/// Shares of its memory that a program may keep, in percent.
const SHARES: [u64; 2] = [50, 25];

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Sort,
    /// Redis, with this percentage of reads.
    Redis(u32),
}

impl Work {
    fn measure(self, device: Device, share: u64, setting: &Setting) -> anyhow::Result<f64> {
        let swap = device.set_up(self.swap_len())?;
        setting.say(&format!("  swapping to {}; if this is interrupted: swapoff {}", device.name(), swap.path()));
        let figure = match self {
            Self::Sort => sort::measure(share),
            Self::Redis(reads) => redis::measure(share, reads, setting.seconds),
        };
        drop(swap);
        figure
    }

    fn swap_len(self) -> u64 {
        match self {
            Self::Sort => 2 * sort::LEN,
            Self::Redis(_) => 2 * redis::LEN,
        }
    }

    fn what(self, share: u64) -> String {
        let local = format!("{share} % of its memory local");
        match self {
            Self::Sort => format!("paging, a sort of {} MB, {local}", sort::LEN >> 20),
            Self::Redis(reads) => format!("paging, redis with {reads} % reads, {local}"),
        }
    }

    fn unit(self) -> Unit {
        match self {
            Self::Sort => Unit::Seconds,
            Self::Redis(_) => Unit::ThousandPerSecond,
        }
    }
}

/// Fails, with a remedy, unless programs can be made to swap here.
pub fn present() -> Result<(), String> {
    if !process::is_root() {
        return Err("only root can set up swap".into());
    }
    require(&["mkswap", "swapon", "losetup"])?;
    group::present()?;
    Device::Ours.present()
}

/// Fails, with a remedy, unless redis is installed.
pub fn redis_present() -> Result<(), String> {
    require(&["redis-server"])
}

/// Peers, with checks that they are here.
pub const PEERS: [Peer; 2] = [("zram", || Device::Zram.present()), ("disk", || Device::Disk.present())];

/// Contests between devices to swap to.
pub fn contests(has_redis: bool) -> Vec<Contest> {
    let works: &[Work] = if has_redis { &[Work::Sort, Work::Redis(95), Work::Redis(75)] } else { &[Work::Sort] };
    let contest = |work: Work, share: u64| {
        let side = |system: &'static str, device: Device| Side {
            system,
            name: device.name().into(),
            counts: 1.0,
            measure: Runner::new(move |setting: &Setting| work.measure(device, share, setting)),
        };
        Contest {
            title: work.what(share),
            unit: work.unit(),
            ours: side("sinew", Device::Ours),
            peers: vec![side("zram", Device::Zram), side("disk", Device::Disk), side("nbdfuse", Device::Nbdkit)],
        }
    };
    works.iter().flat_map(|work| SHARES.map(|share| contest(*work, share))).collect()
}
