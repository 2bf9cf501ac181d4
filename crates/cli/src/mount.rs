//! `sinew mount`: files of a service as a directory.

mod background;
mod options;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use serde_json::json;
use sinew::fabric::Address;
use sinew::fabric::verbs::Device;
use sinew::host::Interrupt;
use sinew::prelude::*;
use sinew::remote_memory::pool::{Approach, Verbs};
use sinew_mount::files::Lifetimes;
use sinew_mount::remote::{MakeLane, time_of};
use sinew_mount::{Files, Mount, Remote, Unmounted, Watch};
use sinew_remote_fs::client::{Client, ClientConfig, Lane};

use crate::fabrics::{Fabric, Purpose};
use crate::verbs::{Carried, Job};
use crate::{Outcome, Usage, fabrics, output};
pub use options::{Args, Joining};

/// How often is looked whether the mount is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Memory for buffers beside what is not committed.
const BUFFERS: usize = 128 << 20;
/// The hidden command that looks after a mount.
pub const WATCH: &str = "mount-watch";

/// Unmounts what a killed process left.
#[derive(clap::Args)]
pub struct WatchArgs {
    device: String,
    point: PathBuf,
}

/// Waits for the end of the process that mounted.
pub fn watch(args: WatchArgs) -> anyhow::Result<Outcome> {
    Watch::of(&args.device, args.point).context("a device's number is needed")?.run();
    Ok(Outcome::Done)
}

/// Mounts, and stays until a signal or until somebody unmounts.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    if args.background {
        return background::start();
    }
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    if args.is_in_background {
        sinew_mount::daemon::leave_session().context("leaving the terminal")?;
    }
    args.device.run(Mounting { args, interrupt })
}

struct Mounting<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

/// Where a mount says what no program is told.
fn log(file: Option<File>) -> Arc<dyn Fn(&str) + Send + Sync> {
    let file = file.map(Mutex::new);
    Arc::new(move |text: &str| match &file {
        None => output::complain(text),
        Some(file) => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            if let Ok(mut file) = file.lock() {
                // There is nowhere left to complain.
                let _ = writeln!(file, "{}.{:03} {text}", since.as_secs(), since.subsec_millis());
            }
        }
    })
}

impl Job for Mounting<'_> {
    type Result = Outcome;

    fn run<D: Device + 'static>(self, device: D, _: Carried) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        let file = args.log.as_ref().map(|path| {
            let file = File::options().create(true).append(true).open(path);
            file.with_context(|| format!("opening the log {}", path.display()))
        });
        let remote = join(&args.joining(), device, log(file.transpose()?))?;
        let mut options = sinew_mount::Options::new(args.address.clone());
        (options.read_only, options.allow_other) = (args.read_only, args.allow_other);
        options.threads = args.threads.map_or(options.threads, usize::from);
        options.watcher = Some(watcher()?);
        let mount = Mount::new(remote, &args.directory, &options)?;
        tell_mounted(args, &mount)?;
        if args.is_in_background {
            background::tell_ready()?;
        }
        while !interrupt.is_set() && !mount.is_over() {
            std::thread::sleep(LOOK);
        }
        tell_unmounted(args, mount)
    }
}

/// What unmounts what a killed process leaves: this program.
pub fn watcher() -> anyhow::Result<Vec<OsString>> {
    let program = std::env::current_exe().context("finding this program, to start it again")?;
    Ok(vec![program.into(), OsString::from(WATCH)])
}

fn wall() -> sinew_remote_fs::protocol::Time {
    time_of(SystemTime::now())
}

/// Joins the file system with lanes over a device.
pub fn join<D: Device + 'static>(
    told: &Joining,
    device: D,
    log: Arc<dyn Fn(&str) + Send + Sync>,
) -> anyhow::Result<Remote<Rpc, Verbs<D>>> {
    let address: Address = told.address.parse()?;
    let mut config = ClientConfig::new(told.key()?, wall, log);
    config.service_timeout_ns = u64::from(told.timeout) * 1_000_000_000;
    config.dirty_bytes_max = told.unwritten;
    let path = config.pool.path;
    let approach = Verbs::new(&device, 3 * told.unwritten + BUFFERS, path).context("taking memory for buffers")?;
    let approach = Arc::new(approach);
    let client = Client::new(address.clone(), approach.arena(), config);
    let fabric = Fabric::of(&address).with_context(|| format!("{address}: no such fabric"))?;
    let own = fabric.client_address("");
    let make: MakeLane<Rpc, Verbs<D>> = Box::new(move |client, number| {
        let nexus = Nexus::builder().build().map_err(|error| error.to_string())?;
        let rpc = Rpc::open_with(&nexus, &own).map_err(|error| error.to_string())?;
        Ok(Lane::new(client, number, rpc, &approach))
    });
    let lifetime = Duration::from_millis(told.lifetime_ms);
    let lifetimes = Lifetimes { name: lifetime, attributes: lifetime };
    Remote::join(&client, make, lifetimes, Duration::from_secs(told.timeout.into())).map_err(|why| anyhow!(why))
}

fn tell_mounted<F: Files>(args: &Args, mount: &Mount<F>) -> anyhow::Result<()> {
    let point = mount.point().display();
    if args.json {
        output::print(json!({ "mounted": { "address": args.address, "directory": mount.point() } }))?;
    } else {
        let stop = if args.is_in_background { "" } else { "Ctrl-C, or with: " };
        output::print(format_args!("{} is mounted at {point}. Unmount it with {stop}umount {point}", args.address))?;
    }
    Ok(())
}

fn tell_unmounted<F: Files>(args: &Args, mount: Mount<F>) -> anyhow::Result<Outcome> {
    let point = mount.point().to_owned();
    let how = mount.unmount().with_context(|| format!("unmounting {}", point.display()))?;
    if how == Unmounted::InUse {
        output::complain(format_args!("{}: files were open there, and are gone for whoever has them", point.display()));
    }
    if args.json {
        let is_in_use = how == Unmounted::InUse;
        output::print(json!({ "unmounted": { "directory": point, "was_in_use": is_in_use } }))?;
    }
    Ok(Outcome::Done)
}

/// Whether an address can be called.
pub fn check_address(address: &str) -> anyhow::Result<()> {
    fabrics::check(address, Purpose::Call).map(|_| ())
}
