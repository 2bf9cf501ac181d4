//! `sinew swap`: turns a block device or a file into swap, and back.

mod device;
mod tools;

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::json;
use sinew::host::Interrupt;
use sinew_harness::run::Interrupted;
use sinew_harness::units::{self, parse_size};

use crate::{Outcome, Usage, output};
use device::{Attached, Source};

const AFTER_HELP: &str = "\
WHAT is the address of a block device (unix:PATH or HOST:PORT, see sinew serve block), which needs the kernel's nbd,
or a file of a mounted file system, which needs a loop device. Both need root, and the programs mkswap and swapon, and
nbd-client or losetup.

If this host itself serves the device, mounts the file system or lends its memory, the kernel asks those programs to
store pages just when no memory is left. So start them with --for-paging (serve block, mount, serve files, serve
memory): they take the memory that they need at the start and lock it, and the kernel neither kills them nor writes
pages out on their behalf. Keep them out of the memory-limited control groups of the programs that are swapped out.

A file that is created (--size) has room for all of its pages from the start, whatever else its file system holds: a
page without room could not be swapped out. (Where a file system cannot reserve room, it must have that much free.) An
existing file should have been made with `fallocate`.

--json prints device, bytes and priority; for `off` device and bytes; for `show` a list of devices, with used_bytes.

Examples:
  sinew serve block --memory 4G --at unix:/run/memory.sock --for-paging
  sinew swap on unix:/run/memory.sock --priority 10
  sinew swap on /mnt/memory/swap --size 4G   # a new file, by a loop device
  sinew swap off unix:/run/memory.sock";

/// Swap on remote memory.
#[derive(clap::Subcommand)]
#[command(after_help = AFTER_HELP)]
pub enum Command {
    /// Turn a block device or a file into swap
    On(On),
    /// Bring the swapped pages back to memory, and release the device or file
    Off(Off),
    /// Show what this machine swaps to
    Show(Show),
}

/// `sinew swap on`.
#[derive(clap::Args)]
pub struct On {
    /// Address of a block device, unix:PATH or HOST:PORT, or the path of a file
    what: String,
    /// Name of the block device at its server; for block devices only
    #[arg(long, default_value = "memory")]
    name: String,
    /// Create the file, with this size in bytes, at least 1M
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size)]
    size: Option<usize>,
    /// Priority of this swap, 0 to 32767; the highest is filled first [default: below all others]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=32767))]
    priority: Option<u16>,
    /// Overwrite data that is on the device or in the file already, instead of refusing
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `sinew swap off`.
#[derive(clap::Args)]
pub struct Off {
    /// What `sinew swap on` was given, or the device that it printed
    what: String,
    /// Remove the file as well
    #[arg(long)]
    remove: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `sinew swap show`.
#[derive(clap::Args)]
pub struct Show {
    /// Print one JSON list
    #[arg(long)]
    json: bool,
}

/// Smallest swap, in bytes: the header's page, and some more.
const SIZE_MIN: usize = 1 << 20;

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::On(args) => args.run(),
        Command::Off(args) => args.run(),
        Command::Show(args) => args.run(),
    }
}

impl On {
    fn check(&self) -> anyhow::Result<Source> {
        let source = Source::of(&self.what)?;
        if let Some(size) = self.size {
            ensure!(matches!(source, Source::File(_)), "--size is for a file: a block device has its own");
            let least = units::size(SIZE_MIN);
            ensure!(size >= SIZE_MIN, "--size {}: swap needs at least {least}", units::size(size));
        }
        Ok(source)
    }

    fn run(&self) -> anyhow::Result<Outcome> {
        let source = self.check().map_err(Usage::of)?;
        let programs: &[&str] = match source {
            Source::File(_) => &["losetup", "mkswap", "swapon"],
            _ => &["nbd-client", "mkswap", "swapon"],
        };
        tools::require(programs)?;
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        // A signal also ends the program that carries out a step, so an error after one is due to it.
        let attached = self.set_up(&source, interrupt).or_else(|error| {
            ensure!(!interrupt.is_set(), Interrupted);
            Err(error)
        })?;
        let (device, bytes) = (attached.device.display().to_string(), attached.bytes);
        // From here on the device stays, as swap of the machine.
        attached.keep();
        let priority = swaps()?.into_iter().find(|swap| swap.device == device).map(|swap| swap.priority);
        let priority = priority
            .with_context(|| format!("{device} is not among this machine's swap, although swapon succeeded"))?;
        if self.json {
            output::print(json!({ "device": device, "bytes": bytes, "priority": priority }))?;
        } else {
            let size = units::amount(bytes);
            output::print(format_args!(
                "{size} of swap on {device}, priority {priority}. Take it down with: sinew swap off {device}"
            ))?;
        }
        Ok(Outcome::Done)
    }

    /// Sets the swap up. If a step fails, or a signal comes before the last one, everything is undone.
    fn set_up(&self, source: &Source, interrupt: Interrupt) -> anyhow::Result<Attached> {
        let attached = source.attach(&self.name, self.size)?;
        let device = attached.device.as_path();
        if !self.overwrite && !attached.is_new {
            device::check_unused(device)?;
        }
        ensure!(!interrupt.is_set(), Interrupted);
        tools::done(&["mkswap", "--force", &device.to_string_lossy()])?;
        ensure!(!interrupt.is_set(), Interrupted);
        let mut swapon = vec!["swapon".to_owned()];
        if let Some(priority) = self.priority {
            swapon.extend(["--priority".to_owned(), priority.to_string()]);
        }
        swapon.push(device.to_string_lossy().into_owned());
        tools::done(&swapon)?;
        Ok(attached)
    }
}

impl Off {
    fn run(&self) -> anyhow::Result<Outcome> {
        let source = Source::of(&self.what).map_err(Usage::of)?;
        if self.remove && !matches!(source, Source::File(_)) {
            return Err(Usage("--remove applies to a file".into()).into());
        }
        tools::require(&["swapoff"])?;
        let device = source.device()?;
        device::check_ours(&device)?;
        let name = device.display().to_string();
        let swap = swaps()?.into_iter().find(|swap| swap.device == name);
        let bytes = swap.as_ref().map_or(0, |swap| swap.bytes);
        if let Some(swap) = swap {
            if swap.used_bytes > 0 && !self.json {
                output::note(format_args!("bringing {} back to memory ...", units::amount(swap.used_bytes)));
            }
            tools::done(&["swapoff", &name]).with_context(|| {
                format!("{name} stays swap: free memory, or add other swap, to take the pages on it")
            })?;
        }
        device::detach(&device)?;
        if let (Source::File(file), true) = (&source, self.remove) {
            device::check_detached(file)?;
            std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        }
        if self.json {
            output::print(json!({ "device": name, "bytes": bytes }))?;
        } else {
            output::print(format_args!("{name} is no longer swap, and is released."))?;
        }
        Ok(Outcome::Done)
    }
}

impl Show {
    fn run(&self) -> anyhow::Result<Outcome> {
        let swaps = swaps()?;
        if self.json {
            output::print(json!(swaps))?;
        } else if swaps.is_empty() {
            output::print("This machine has no swap.")?;
        } else {
            let row = |swap: &Swap| {
                let [bytes, used] = [swap.bytes, swap.used_bytes].map(units::amount);
                vec![swap.device.clone(), bytes, used, swap.priority.to_string()]
            };
            let heads = ["device", "size", "used", "priority"];
            output::print(crate::table::of(&heads, swaps.iter().map(row), comfy_table::CellAlignment::Right))?;
        }
        Ok(Outcome::Done)
    }
}

/// A device or file that the machine swaps to.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
struct Swap {
    device: String,
    bytes: u64,
    used_bytes: u64,
    priority: i32,
}

fn swaps() -> anyhow::Result<Vec<Swap>> {
    let path = Path::new("/proc/swaps");
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(parse_swaps(&text))
}

/// Parses the lines of `/proc/swaps` after its heading: name, type, and sizes in KB.
fn parse_swaps(text: &str) -> Vec<Swap> {
    let swap = |line: &str| {
        let mut words = line.split_whitespace();
        let device = words.next()?.to_owned();
        let mut numbers = words.skip(1);
        let bytes = numbers.next()?.parse::<u64>().ok()?.checked_mul(1024)?;
        let used_bytes = numbers.next()?.parse::<u64>().ok()?.checked_mul(1024)?;
        Some(Swap { device, bytes, used_bytes, priority: numbers.next()?.parse().ok()? })
    };
    text.lines().skip(1).filter_map(swap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_read() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/nbd0                               partition\t4194300\t\t12\t\t-2\n\
                    nonsense\n\
                    /mnt/swap                               file\t\t1020\t\t0\t\t10\n";
        let swap = |device: &str, kb: u64, used_kb: u64, priority| Swap {
            device: device.into(),
            bytes: kb << 10,
            used_bytes: used_kb << 10,
            priority,
        };
        assert_eq!(parse_swaps(text), [swap("/dev/nbd0", 4_194_300, 12, -2), swap("/mnt/swap", 1020, 0, 10)]);
        assert_eq!(parse_swaps(""), []);
    }
}
