//! `sinew mount`: mounts a service's files at a directory.

mod background;
mod options;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use serde_json::json;
use sinew::fabric::Address;
use sinew::fabric::verbs::Device;
use sinew::host::{Interrupt, serve_paging};
use sinew::mem::Arena;
use sinew::prelude::*;
use sinew::remote_memory::engine::RpcPathConfig;
use sinew::remote_memory::pool::{AccessMethod, Calls, Verbs};
use sinew::{Endpoint, SharedEndpoint};
use sinew_mount::files::CacheLifetimes;
use sinew_mount::remote::{MakeLane, time_of};
use sinew_mount::{Files, Mount, Remote, Unmounted, Watch};
use sinew_remote_fs::client::{Client, ClientConfig, Lane};

use crate::fabrics::{Fabric, Purpose};
use crate::verbs::{Job, VerbsFabric};
use crate::{Outcome, Usage, fabrics, output, paging};
pub use options::{Args, Joining};

/// Time between checks whether the mount is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Threads of a mount to which this host pages, unless an option says otherwise.
const PAGING_THREADS: usize = 2;
/// Memory for buffers in addition to uncommitted data, in bytes.
const BUFFERS: usize = 128 << 20;
/// Memory of a lane for what it sends when it reaches donors by calls, in bytes.
const LANE_BUFFERS: usize = 16 << 20;
/// Options of a lane's endpoint on an RDMA device: 32 MB for messages, and room for as many as are on their way.
const RDMA_MESSAGES: &str = "arena=33554432&receives=1024&sends=256";
/// The hidden command that looks after a mount.
pub const WATCH: &str = "mount-watch";

/// Unmounts what a killed process left.
#[derive(clap::Args)]
pub struct WatchArgs {
    /// As for the mount: if this process were swapped to a file in the mount, it could not unmount what is left of it.
    #[arg(long)]
    for_paging: bool,
    mounted: String,
    point: PathBuf,
}

/// Waits for the end of the process that mounted.
pub fn watch(args: WatchArgs) -> anyhow::Result<Outcome> {
    if args.for_paging {
        // The mount has reported the protections that the system refuses.
        let _ = serve_paging();
    }
    Watch::parse(&args.mounted, args.point).context("a mount's numbers are needed")?.run();
    Ok(Outcome::Done)
}

/// Mounts, and stays until a signal arrives or somebody unmounts.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    if args.background {
        return background::start();
    }
    // Before the service hears of a client that cannot mount anything.
    sinew_mount::check(&args.directory)?;
    if args.for_paging {
        paging::prepare(args.joining().buffers())?;
    }
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    if args.is_in_background {
        sinew_mount::daemon::leave_session().context("leaving the terminal")?;
    }
    let mounting = Mounting { args, interrupt };
    match args.access.device_args(&args.address) {
        Some(device) => device.run(mounting),
        None => {
            let remote = join_by_calls(&args.joining(), args.log()?)?;
            mounting.serve(remote)
        }
    }
}

struct Mounting<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

/// Sink for problems that no program's call reports.
type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Socket of the system's log.
const SYSTEM_LOG: &str = "/dev/log";
/// Severity and facility of messages to the system's log (RFC 3164): an error of a daemon.
const SYSTEM_LOG_PRIORITY: u8 = 27;

/// Sends a message to the system's log. Where there is none, or it is busy, the message is lost: the program that keeps
/// it may be waiting for a page that is swapped out to this mount.
fn log_to_system(text: &str) {
    let message = format!("<{SYSTEM_LOG_PRIORITY}>sinew[{}]: {text}", std::process::id());
    if let Ok(socket) = UnixDatagram::unbound()
        && socket.set_nonblocking(true).is_ok()
    {
        let _ = socket.send_to(message.as_bytes(), SYSTEM_LOG);
    }
}

/// Makes the sink for problems that no program's call reports: a file, standard error, or, for a mount in the
/// background, the system's log.
fn log(file: Option<File>, is_in_background: bool) -> Log {
    let file = file.map(Mutex::new);
    Arc::new(move |text: &str| match &file {
        None if is_in_background => log_to_system(text),
        None => output::complain(text),
        Some(file) => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            if let Ok(mut file) = file.lock() {
                // An error here has nowhere to be reported.
                let _ = writeln!(file, "{}.{:03} {text}", since.as_secs(), since.subsec_millis());
            }
        }
    })
}

impl Job for Mounting<'_> {
    type Result = Outcome;

    fn run<D: Device + 'static>(self, device: D, _: VerbsFabric) -> anyhow::Result<Outcome> {
        let remote = join(&self.args.joining(), device, self.args.log()?)?;
        self.serve(remote)
    }
}

impl Args {
    fn log(&self) -> anyhow::Result<Log> {
        let file = self.log.as_ref().map(|path| {
            let file = File::options().create(true).append(true).open(path);
            file.with_context(|| format!("opening the log {}", path.display()))
        });
        if self.is_in_background && file.is_none() && !Path::new(SYSTEM_LOG).exists() {
            output::complain(format_args!("this system has no log ({SYSTEM_LOG}): say --log FILE to hear of problems"));
        }
        Ok(log(file.transpose()?, self.is_in_background))
    }
}

impl Mounting<'_> {
    fn serve(self, remote: impl Files) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        let mut options = sinew_mount::Options::new(args.address.clone());
        (options.read_only, options.allow_other) = (args.read_only, args.allow_other);
        // Each thread takes memory when it is first needed, so there are few.
        let threads = if args.for_paging { PAGING_THREADS } else { options.threads };
        options.threads = args.threads.map_or(threads, usize::from);
        options.watcher = Some(watcher(args.for_paging)?);
        let mount = Mount::new(remote, &args.directory, &options)?;
        tell_mounted(args, &mount)?;
        if args.is_in_background {
            background::tell_ready()?;
        }
        while !interrupt.is_set() && !mount.is_unmounted() {
            std::thread::sleep(POLL_INTERVAL);
        }
        tell_unmounted(args, mount)
    }
}

/// Command that unmounts what a killed process leaves: this program with [`WATCH`].
pub fn watcher(is_for_paging: bool) -> anyhow::Result<Vec<OsString>> {
    let program = std::env::current_exe().context("finding this program, to start it again")?;
    let option = is_for_paging.then(|| OsString::from("--for-paging"));
    Ok([program.into(), OsString::from(WATCH)].into_iter().chain(option).collect())
}

fn wall() -> sinew_remote_fs::protocol::Time {
    time_of(SystemTime::now())
}

/// Joins the file system with lanes over a device.
pub fn join<D: Device + 'static>(options: &Joining, device: D, log: Log) -> anyhow::Result<Remote<Rpc, Verbs<D>>> {
    let config = options.config(log)?;
    let path = config.pool.path;
    let access_method = Verbs::new(&device, options.buffers(), path).context("taking memory for buffers")?;
    let access_method = Arc::new(access_method);
    let messages = options.back(access_method.arena(), paging::MESSAGES);
    let client = Client::new(options.address.parse()?, access_method.arena(), config);
    let own = options.own_address()?;
    let make: MakeLane<Rpc, Verbs<D>> =
        Box::new(move |client, number| Ok(Lane::new(client, number, endpoint(&own, messages)?, &access_method)));
    options.join(&client, make)
}

/// Joins the file system with lanes that reach donors by calls.
fn join_by_calls(options: &Joining, log: Log) -> anyhow::Result<Remote<SharedEndpoint<Rpc>, Calls<Rpc>>> {
    let arena = Arena::private(options.buffers()).context("taking memory for buffers")?;
    // A lane's endpoint has the data, too.
    let messages = options.back(&arena, paging::DATA / 4);
    let client = Client::new(options.address.parse()?, &arena, options.config(log)?);
    let own = options.own_address()?;
    let make: MakeLane<SharedEndpoint<Rpc>, Calls<Rpc>> = Box::new(move |client, number| {
        let rpc = SharedEndpoint::new(endpoint(&own, messages)?);
        let access_method =
            Calls::new(&rpc, LANE_BUFFERS, RpcPathConfig::default()).map_err(|error| error.to_string())?;
        #[allow(clippy::arc_with_non_send_sync, reason = "with other means, lanes share it")]
        let access_method = Arc::new(access_method);
        Ok(Lane::new(client, number, rpc, &access_method))
    });
    options.join(&client, make)
}

/// An endpoint of a lane, with memory for messages of this many bytes.
fn endpoint(own: &str, messages: usize) -> Result<Rpc, String> {
    let nexus = Nexus::builder().build().map_err(|error| error.to_string())?;
    let rpc = Rpc::open_with(&nexus, own).map_err(|error| error.to_string())?;
    rpc.back_buffers(messages);
    Ok(rpc)
}

impl Joining {
    /// Takes memory for data now if this host pages to the mount. Returns how many bytes to take for the messages of a
    /// lane: `messages`, or none.
    fn back(&self, arena: &Arena, messages: usize) -> usize {
        if !self.for_paging {
            return 0;
        }
        arena.back(arena.capacity());
        messages
    }

    fn buffers(&self) -> usize {
        3 * self.unwritten + if self.for_paging { paging::DATA } else { BUFFERS }
    }

    fn config(&self, log: Log) -> anyhow::Result<ClientConfig> {
        let mut config = ClientConfig::new(self.key.key()?, wall, log);
        config.service_timeout_ns = u64::from(self.timeout) * 1_000_000_000;
        config.dirty_bytes_max = self.unwritten;
        Ok(config)
    }

    /// Address for an endpoint of our own that reaches the service.
    fn own_address(&self) -> anyhow::Result<String> {
        let address: Address = self.address.parse()?;
        let fabric = Fabric::of(&address).with_context(|| format!("{address}: no such fabric"))?;
        if fabric != Fabric::Ibverbs {
            return Ok(fabric.client_address("", Some(&self.address)));
        }
        // Over RDMA all of it is locked in memory, for each thread of the mount.
        let mut options = format!("?{RDMA_MESSAGES}");
        if let Some(device) = &self.device {
            options += &format!("&{}", fabrics::device_option(device));
        }
        Ok(fabric.client_address(&options, Some(&self.address)))
    }

    fn join<E: Endpoint + 'static, A: AccessMethod + 'static>(
        &self,
        client: &Arc<Client>,
        make: MakeLane<E, A>,
    ) -> anyhow::Result<Remote<E, A>> {
        let lifetime = Duration::from_millis(self.lifetime_ms);
        let lifetimes = CacheLifetimes { name: lifetime, attributes: lifetime };
        Remote::join(client, make, lifetimes, Duration::from_secs(self.timeout.into())).map_err(|why| anyhow!(why))
    }
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
        output::complain(format_args!(
            "{}: files were still open there, and programs that hold them have lost them",
            point.display()
        ));
    }
    if args.json {
        let is_in_use = how == Unmounted::InUse;
        output::print(json!({ "unmounted": { "directory": point, "was_in_use": is_in_use } }))?;
    }
    Ok(Outcome::Done)
}

/// Checks that an address can be called.
pub fn check_address(address: &str) -> anyhow::Result<()> {
    fabrics::check(address, Purpose::Call).map(|_| ())
}
