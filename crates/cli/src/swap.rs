//! `sinew swap`: a block device or a file as swap, and no longer.

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
WHAT is where a block device is served (unix:PATH or HOST:PORT, see sinew serve block), which takes the kernel's nbd, or a file of a mounted
file system, which takes a loop device. Both want root, and the programs mkswap and swapon, and nbd-client or losetup.

What serves the device or the file's memory on this host is asked to store pages when no memory is left here. So start it with --for-paging, which
locks its memory, and has the kernel neither end it nor write pages out on its behalf.

JSON: device, bytes and priority; of `off` device and bytes; of `show` a list of devices, with used_bytes.

Examples:
  sinew serve block --memory 4G --at unix:/run/memory.sock --for-paging
  sinew swap on unix:/run/memory.sock --priority 10
  sinew swap on /mnt/memory/swap --size 4G         a new file, by a loop device
  sinew swap off unix:/run/memory.sock";

/// Swap on remote memory.
#[derive(clap::Subcommand)]
#[command(after_help = AFTER_HELP)]
pub enum Command {
    /// Make a block device or a file swap
    On(On),
    /// Bring back what is on it, and let it go
    Off(Off),
    /// Show what this machine swaps to
    Show(Show),
}

/// `sinew swap on`.
#[derive(clap::Args)]
pub struct On {
    /// unix:PATH or HOST:PORT of a block device, or a file
    what: String,
    /// The block device's name where it is served
    #[arg(long, default_value = "memory")]
    name: String,
    /// Make the file, so long
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size)]
    size: Option<usize>,
    /// Swap with a higher priority is filled first [default: after all others]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=32767))]
    priority: Option<u16>,
    /// Whatever is on it is not needed any more
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `sinew swap off`.
#[derive(clap::Args)]
pub struct Off {
    /// What `sinew swap on` was told, or the device that it named
    what: String,
    /// Remove the file, too
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

/// The least there is swap of: the header's page, and some.
const SIZE_MIN: usize = 1 << 20;

/// Does it.
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
            ensure!(size >= SIZE_MIN, "--size {}: swap has {least} at least", units::size(size));
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
        // A signal ends the program that takes a step, too: then that is why it failed.
        let attached = self.set_up(&source, interrupt).or_else(|error| {
            ensure!(!interrupt.is_set(), Interrupted);
            Err(error)
        })?;
        let (device, bytes) = (attached.device.display().to_string(), attached.bytes);
        // From here on it is the machine's.
        attached.keep();
        let priority = swaps()?.into_iter().find(|swap| swap.device == device).map(|swap| swap.priority);
        let priority =
            priority.with_context(|| format!("{device} is no swap of this machine though swapon said so"))?;
        if self.json {
            output::print(json!({ "device": device, "bytes": bytes, "priority": priority }))?;
        } else {
            let size = units::size(bytes as usize);
            output::print(format_args!(
                "{size} of swap on {device}, priority {priority}. Take it down with: sinew swap off {device}"
            ))?;
        }
        Ok(Outcome::Done)
    }

    /// What was done is undone when a step fails, or a signal comes before the last.
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
            return Err(Usage("--remove is for a file".into()).into());
        }
        tools::require(&["swapoff"])?;
        let device = source.device()?;
        device::check_ours(&device)?;
        let name = device.display().to_string();
        let swap = swaps()?.into_iter().find(|swap| swap.device == name);
        let bytes = swap.as_ref().map_or(0, |swap| swap.bytes);
        if let Some(swap) = swap {
            if swap.used_bytes > 0 && !self.json {
                output::note(format_args!("bringing {} back to memory ...", units::size(swap.used_bytes as usize)));
            }
            tools::done(&["swapoff", &name]).with_context(|| {
                format!("{name} stays swap: there must be memory, or other swap, for what is on it")
            })?;
        }
        device::detach(&device)?;
        if let (Source::File(file), true) = (&source, self.remove) {
            std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        }
        if self.json {
            output::print(json!({ "device": name, "bytes": bytes }))?;
        } else {
            output::print(format_args!("{name} is no swap any more, and let go."))?;
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
                let [bytes, used] = [swap.bytes, swap.used_bytes].map(|bytes| units::size(bytes as usize));
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

/// The lines of `/proc/swaps` behind its heading: name, type, and sizes in KB.
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
