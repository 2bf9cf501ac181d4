//! Devices to swap to.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::peers::mounts::{Mounted, done, has_fuse, require, wait_for};
use crate::process;

/// Higher than that of all other swap.
const PRIORITY: &str = "32000";
const ZRAM: &str = "/sys/class/zram-control";

/// Kinds of swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A file on a mount of ours, in memory that a service gives, through a loop device.
    Ours,
    /// Compressed memory of this host.
    Zram,
    /// A file on this host's disk.
    Disk,
    /// nbdkit's memory as a file of nbdfuse, through a loop device.
    Nbdkit,
}

/// Swap in use, taken down when dropped.
pub struct Swap {
    path: PathBuf,
    is_on: bool,
    /// Commands that take the device down, in this order.
    undo: Vec<Vec<String>>,
    _mounted: Option<Mounted>,
}

impl Device {
    /// Name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "sinew",
            Self::Zram => "zram",
            Self::Disk => "a file of the disk",
            Self::Nbdkit => "nbdkit memory, by nbdfuse and loop",
        }
    }

    /// Fails, with a remedy, unless it can be set up here.
    pub fn present(self) -> Result<(), String> {
        match self {
            Self::Ours => has_fuse(),
            Self::Zram if Path::new(ZRAM).exists() => Ok(()),
            Self::Zram => Err("this kernel has no zram, or has not loaded it: modprobe zram".into()),
            Self::Disk => Ok(()),
            Self::Nbdkit => has_fuse().and_then(|()| require(&["nbdkit", "nbdfuse"])),
        }
    }

    /// Sets up swap of this many bytes.
    pub fn set_up(self, bytes: u64) -> anyhow::Result<Swap> {
        let mut swap = match self {
            Self::Ours => ours(bytes)?,
            Self::Zram => zram(bytes)?,
            Self::Disk => file_of_disk(bytes)?,
            Self::Nbdkit => {
                let mounted = Mounted::nbdkit("swap-nbdkit", bytes)?;
                let file = mounted.point.join(Mounted::NBD_FILE);
                Swap::on_loop(mounted, &file)?
            }
        };
        let path = swap.path();
        done(&["mkswap", "--force", &path])?;
        done(&["swapon", "--priority", PRIORITY, &path])?;
        swap.is_on = true;
        Ok(swap)
    }
}

impl Swap {
    fn new(path: PathBuf, undo: &[&str], mounted: Option<Mounted>) -> Self {
        Self { path, is_on: false, undo: vec![undo.iter().map(|&word| word.to_owned()).collect()], _mounted: mounted }
    }

    fn on_loop(mounted: Mounted, file: &Path) -> anyhow::Result<Self> {
        let device = done(&["losetup", "--find", "--show", "--direct-io=on", &file.display().to_string()])?;
        Ok(Self::new(device.clone().into(), &["losetup", "--detach", &device], Some(mounted)))
    }

    /// Path of the device or file.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn take_down(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_on) {
            done(&["swapoff", &self.path()])?;
        }
        for words in std::mem::take(&mut self.undo) {
            done(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("peers: {error:#}");
        }
    }
}

fn ours(bytes: u64) -> anyhow::Result<Swap> {
    // The service writes new data beside the data that it replaces, so it needs room for both.
    let mounted = Mounted::ours("swap", 2 * bytes, &["--for-paging"])?;
    let path = mounted.point.join("swap");
    let file = std::fs::File::create(&path).and_then(|file| file.set_len(bytes));
    file.with_context(|| format!("making {}", path.display()))?;
    Swap::on_loop(mounted, &path)
}

fn zram(bytes: u64) -> anyhow::Result<Swap> {
    let added = std::fs::read_to_string(format!("{ZRAM}/hot_add")).context("making a zram device")?;
    let number = added.trim();
    let device = PathBuf::from(format!("/dev/zram{number}"));
    let swap = Swap::new(device, &["sh", "-c", &format!("echo {number} > {ZRAM}/hot_remove")], None);
    let size = format!("/sys/block/zram{number}/disksize");
    std::fs::write(&size, bytes.to_string()).with_context(|| format!("writing {size}"))?;
    wait_for("the zram device", || swap.path.exists())?;
    Ok(swap)
}

fn file_of_disk(bytes: u64) -> anyhow::Result<Swap> {
    let path = process::target_dir().join(format!("sinew-peers-{}-swap", std::process::id()));
    let file = path.display().to_string();
    let swap = Swap::new(path, &["rm", "-f", &file], None);
    done(&["dd", "if=/dev/zero", &format!("of={file}"), "bs=1M", &format!("count={}", bytes >> 20), "status=none"])?;
    done(&["chmod", "600", &file])?;
    Ok(swap)
}
