//! Options of `sinew mount`.

use std::path::PathBuf;

use anyhow::ensure;
use sinew::remote_memory::donor::LANES_MAX;
use sinew_harness::units::{self, parse_size};

use super::check_address;
use crate::reach::{AccessArgs, KeyArgs};

const AFTER_HELP: &str = "\
The files lie in the memory of the service's donors, which this host reads and writes itself, over --fabric; ADDRESS
is where `sinew serve files` runs. Several hosts can mount it at the same time: whoever opens a file sees what was
written before others closed it. Written data is safe once `fsync` or `close` returns. Files opened with O_DIRECT
bypass this host's cache.

`fallocate` reserves room, without which a later write there would fail on a full file system; holes that are punched
give it back. Changed data is written beside the data that it replaces, for which a sixty-fourth of the memory, and at
most 16 MiB, is kept: so files can be overwritten on a full file system, too, if more slowly. Locks hold for all hosts,
by `flock` as by `fcntl`. Of processes that wait for each other's locks by `fcntl`, on any hosts, one gets EDEADLK.
Those that wait by locks of open file descriptions may get it too, and a process at two mounts counts as two.
Where this process may not look at its callers (users other than root, as kernel.yama.ptrace_scope has it), locks of
whole files by the two exclude each other, and deadlocks by locks of whole files are not found.

Users other than root need fusermount3 (package fuse3), and permission to open /dev/fuse. Only the user who mounts can
use the files, unless --allow-other lets in everybody, as the files' modes allow.

Ctrl-C, SIGTERM and `umount DIRECTORY` unmount it; it is also unmounted when this process is killed. The exit status
is 0 once it has been unmounted.

--json prints first `mounted`, with address and directory, and at the end `unmounted`, with directory and was_in_use.

Examples:
  sinew mount shm://files /mnt/files
  sinew mount ibverbs://host1:7300 /mnt/files --fabric ibverbs \\
      --key-file pool.key --background
  umount /mnt/files";

/// Mount a file system that lies in other hosts' memory, until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address of its service, `sinew serve files`: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or
    /// xdp://INTERFACE/IP:PORT
    pub address: String,
    /// Existing directory to mount it at
    pub directory: PathBuf,
    /// Return once it is mounted, and go on in the background
    #[arg(long)]
    pub background: bool,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Mount it read-only: programs can change nothing
    #[arg(long)]
    pub read_only: bool,
    /// Let users other than the one who mounts use the files, as the files' modes allow
    #[arg(long)]
    pub allow_other: bool,
    /// Make the mount fit for a file that this host swaps to: memory for data is taken at the start, and for a thread's
    /// messages at its first request; this process's memory is locked, and the kernel never kills it when memory runs
    /// out
    #[arg(long)]
    pub for_paging: bool,
    #[command(flatten)]
    pub access: AccessArgs,
    /// Threads that answer the kernel, 1 to 12 [default: one for each processor, from 2 to 8; 2 with --for-paging]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=i64::from(LANES_MAX) - 4))]
    pub threads: Option<u8>,
    /// Seconds to wait for a service that does not answer before programs get errors, 1 to 86400
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,
    /// Bytes that can be written but not yet committed, 4M to 16G [default: 64M, or 8M with --for-paging]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub unwritten: Option<usize>,
    /// Milliseconds for which names and attributes are cached before the service is asked again, 0 to 3600000
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub lifetime_ms: u64,
    /// File for messages that concern no single program, such as the loss of a donor [default: standard error; with
    /// --background the system's log]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Print JSON, one object on each line
    #[arg(long)]
    pub json: bool,
    /// Marks the process in the background
    #[arg(long, hide = true, conflicts_with = "background")]
    pub is_in_background: bool,
}

/// Default limit on uncommitted bytes.
const UNWRITTEN_DEFAULT: usize = 64 << 20;
/// The default with `--for-paging`, where memory for these bytes is taken at the start.
const UNWRITTEN_PAGES: usize = 8 << 20;
/// Least and most bytes that may be uncommitted.
const UNWRITTEN: (usize, usize) = (4 << 20, 16 << 30);

impl Args {
    pub fn check(&self) -> anyhow::Result<()> {
        check_address(&self.address)?;
        self.access.check(&self.address)?;
        let (least, most) = UNWRITTEN;
        ensure!(
            self.unwritten.is_none_or(|unwritten| (least..=most).contains(&unwritten)),
            "--unwritten {}: must be from {} to {}",
            units::size(self.unwritten.unwrap_or_default()),
            units::size(least),
            units::size(most)
        );
        Ok(())
    }

    /// Settings for joining the file system.
    pub fn joining(&self) -> Joining {
        let Self { address, key, timeout, unwritten, lifetime_ms, for_paging, access, .. } = self;
        let (address, key) = (address.clone(), key.clone());
        Joining {
            address,
            key,
            device: access.device().map(str::to_owned),
            timeout: *timeout,
            unwritten: unwritten.unwrap_or(if *for_paging { UNWRITTEN_PAGES } else { UNWRITTEN_DEFAULT }),
            lifetime_ms: *lifetime_ms,
            for_paging: *for_paging,
        }
    }
}

/// Settings for joining a file system.
pub struct Joining {
    pub address: String,
    pub key: KeyArgs,
    /// The RDMA device that was asked for, if any.
    pub device: Option<String>,
    pub timeout: u32,
    pub unwritten: usize,
    pub lifetime_ms: u64,
    pub for_paging: bool,
}

impl Joining {
    /// The defaults of a mount.
    pub fn new(address: String, key: KeyArgs, device: Option<String>) -> Self {
        let (timeout, unwritten, lifetime_ms) = (30, UNWRITTEN_DEFAULT, 1000);
        Self { address, key, device, timeout, unwritten, lifetime_ms, for_paging: false }
    }
}
