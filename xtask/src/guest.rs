//! Runs a command in a virtual machine that has an RDMA device.
//!
//! Neither development machines nor CI have one, and few kernels there have the driver (soft-RoCE, rxe) that makes an
//! RDMA device out of a network device. So QEMU boots Debian's kernel, by emulation unless `--kvm` is given, on the
//! files of this machine. The guest reads all of them, and writes those of the workspace and of the target folder;
//! anything that it writes elsewhere is lost when it ends.

mod image;
mod machine;
mod packages;
mod script;
mod stream;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use crate::process;
use machine::{GuestOutcome, Machine};
use script::Script;

/// Exit status when the command took too long, the same as `timeout` has.
const TIMED_OUT: u8 = 124;

/// Exit status when the guest did not start, or died.
const NO_GUEST: u8 = 125;

/// Defaults for the guest: processors, memory in MB, and bytes in a packet of its network.
const CPUS: u32 = 2;
const MEMORY_MB: u32 = 3072;
const MTU: u32 = 4200;

/// Arguments of `cargo xtask guest`.
#[derive(clap::Args)]
pub struct Args {
    /// Say whether the guest can run here and what is missing, and do nothing else.
    #[arg(long)]
    check: bool,
    /// Time limit of the command in seconds, without the boot. Past it the exit status is 124.
    #[arg(long, default_value_t = 600)]
    timeout_s: u64,
    /// Processors of the guest.
    #[arg(long, default_value_t = CPUS, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// Memory of the guest, in MB.
    #[arg(long, default_value_t = MEMORY_MB, value_parser = clap::value_parser!(u32).range(256..))]
    memory_mb: u32,
    /// Bytes in a packet of the network device under rxe0. RDMA takes the largest power of two that fits with its
    /// headers.
    #[arg(long, default_value_t = MTU, value_parser = clap::value_parser!(u32).range(512..=65535))]
    mtu: u32,
    /// Use the processor's own virtualisation (/dev/kvm) instead of emulation.
    #[arg(long)]
    kvm: bool,
    /// The command and its arguments, run as root in the workspace's root.
    #[arg(last = true, required_unless_present = "check")]
    command: Vec<OsString>,
}

impl Args {
    /// Arguments for a command that may take `timeout_s` seconds, in a guest with the defaults.
    pub fn new(command: Vec<OsString>, timeout_s: u64) -> Self {
        Self { check: false, timeout_s, cpus: CPUS, memory_mb: MEMORY_MB, mtu: MTU, kvm: false, command }
    }
}

/// Runs the command. The exit status is the command's, or else [`TIMED_OUT`] or [`NO_GUEST`].
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let cache = process::target_dir().join("guest");
    if args.check {
        println!("guest: can run: {}", packages::check(&cache)?);
        return Ok(ExitCode::SUCCESS);
    }
    let ended = boot(args, &cache).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        GuestOutcome::Exited(NO_GUEST)
    });
    Ok(ExitCode::from(match ended {
        GuestOutcome::Exited(status) => status,
        GuestOutcome::TimedOut(console) => {
            eprintln!("error: `{}` did not end within {} s; {console}", show(&args.command), args.timeout_s);
            TIMED_OUT
        }
        GuestOutcome::NotBooted(_) => {
            eprintln!("error: the guest did not boot, although it was started several times");
            NO_GUEST
        }
    }))
}

fn boot(args: &Args, cache: &Path) -> anyhow::Result<GuestOutcome> {
    std::fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
    // Mounts in the guest need the real paths of folders.
    let cache = &cache.canonicalize()?;
    let image = cache.join("initrd");
    let system = {
        // Waits while another run unpacks. Closing the file releases the lock.
        let lock = std::fs::File::create(cache.join("lock")).context("cannot make a lock")?;
        lock.lock()?;
        let system = packages::prepare(cache)?;
        image::write(&system, &image)?;
        system
    };
    let folder = process::workspace_root();
    let script = Script {
        mark: mark()?,
        modules: system.modules(),
        mtu: args.mtu,
        shares: shares(&folder.canonicalize()?, cache.parent().context("the cache lies in the target folder")?),
        folder,
        variables: script::variables(),
        command: args.command.clone(),
    };
    let machine = Machine { kernel: system.kernel(), image, cpus: args.cpus, memory_mb: args.memory_mb, kvm: args.kvm };
    machine.run(&script, Duration::from_secs(args.timeout_s), |took| {
        eprintln!("guest: Linux {} with rxe0 is up after {:.0} s", system.release, took.as_secs_f64());
    })
}

/// The folders that both sides write: the workspace, and the target folder where that lies elsewhere.
fn shares(workspace: &Path, target: &Path) -> Vec<PathBuf> {
    let mut shares = vec![workspace.to_path_buf()];
    if !target.starts_with(workspace) {
        shares.push(target.to_path_buf());
    }
    shares
}

/// A word that no command writes by chance.
fn mark() -> anyhow::Result<String> {
    use std::io::Read;
    let mut random = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).context("no /dev/urandom")?;
    Ok(format!("\u{1e}guest:{:032x}:", u128::from_ne_bytes(random)))
}

fn show(command: &[OsString]) -> String {
    command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_folder_is_shared_once() {
        let paths = |target: &str| shares(Path::new("/home/me/sinew"), Path::new(target));
        assert_eq!(paths("/home/me/sinew/target"), [Path::new("/home/me/sinew")]);
        assert_eq!(paths("/home/me/sinew-target"), [Path::new("/home/me/sinew"), Path::new("/home/me/sinew-target")]);
    }
}
