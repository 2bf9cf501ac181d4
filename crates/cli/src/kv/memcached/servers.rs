//! Servers that are started to be measured.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use sinew_harness::load::memcached::KEY_LEN;

use crate::child::ServerProcess;

/// Longest time for a server to start.
const START_MAX: Duration = Duration::from_secs(5);
/// Address of local ports, without the number.
const LOCAL: &str = "127.0.0.1:";
/// Most bytes that either server needs for an item beside its key and value.
const ITEM_OVERHEAD: usize = 128;

/// Settings of a server to start.
pub struct ServerPlan {
    /// Keys that a server of ours expects.
    pub keys: usize,
    /// Memory for items.
    pub memory_mb: usize,
    pub cpu: Option<usize>,
    /// Listen at a Unix socket rather than a TCP port.
    pub unix: bool,
}

/// A server. If it was started here, it ends when this is dropped.
pub struct Started {
    pub name: String,
    /// Address at which it listens.
    pub address: String,
    /// Command that started it.
    pub command: String,
    server: Option<Server>,
}

enum Server {
    Ours(ServerProcess),
    Other(Other),
}

impl Started {
    /// A server that was already running.
    pub fn elsewhere(address: &str) -> Self {
        Self { name: "server".to_owned(), address: address.to_owned(), command: String::new(), server: None }
    }

    /// Its process, if it was started here.
    pub fn process(&self) -> Option<u32> {
        Some(match self.server.as_ref()? {
            Server::Ours(server) => server.id(),
            Server::Other(server) => server.child.id(),
        })
    }
}

/// A server of another project.
struct Other {
    child: Child,
    /// Its Unix socket, if it has one.
    socket: Option<PathBuf>,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Address for a server to listen at: a socket of its own, or a port that was free a moment ago.
fn place(plan: &ServerPlan, name: &str) -> anyhow::Result<(String, Option<PathBuf>)> {
    if plan.unix {
        let socket = std::env::temp_dir().join(format!("sinew-bench-{name}-{}", std::process::id()));
        return Ok((format!("unix:{}", socket.display()), Some(socket)));
    }
    Ok((TcpListener::bind(format!("{LOCAL}0"))?.local_addr()?.to_string(), None))
}

/// Megabytes that suffice for all items.
pub fn memory_mb(keys: usize, value_size: usize) -> usize {
    ((keys * (KEY_LEN + value_size + ITEM_OVERHEAD) * 2) >> 20).max(64)
}

/// Starts a cache of ours, with one thread.
pub fn ours(plan: &ServerPlan) -> anyhow::Result<Started> {
    let address = if plan.unix { place(plan, "ours")?.0 } else { format!("{LOCAL}0") };
    let mut args: Vec<String> = ["serve", "cache", "--memcached", &address, "--memory"].map(str::to_owned).into();
    args.push(format!("{}M", plan.memory_mb));
    args.extend(["--items".to_owned(), plan.keys.to_string()]);
    if let Some(cpu) = plan.cpu {
        args.extend(["--pin".to_owned(), cpu.to_string()]);
    }
    let server = ServerProcess::spawn(&args)?;
    let address = server.address()?.to_owned();
    Ok(Started {
        name: "sinew".to_owned(),
        address,
        command: format!("sinew {}", args.join(" ")),
        server: Some(Server::Ours(server)),
    })
}

/// Starts memcached, with one thread.
pub fn memcached(plan: &ServerPlan) -> anyhow::Result<Started> {
    let mut command = pinned(plan, "memcached");
    command.args(["-u", "root", "-U", "0", "-t", "1", "-m", &plan.memory_mb.to_string()]);
    let (address, socket) = place(plan, "memcached")?;
    match &socket {
        Some(socket) => command.arg("-s").arg(socket),
        None => command.args(["-l", "127.0.0.1", "-p", address.trim_start_matches(LOCAL)]),
    };
    start(version("memcached", "-V")?, command, address, socket)
}

/// Starts Redis, without persistence.
pub fn redis(plan: &ServerPlan) -> anyhow::Result<Started> {
    let text = version("redis-server", "--version")?;
    let number = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or_default();
    let mut command = pinned(plan, "redis-server");
    command.args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "allkeys-lru"]);
    command.args(["--maxmemory", &format!("{}mb", plan.memory_mb), "--bind", "127.0.0.1"]);
    let (address, socket) = place(plan, "redis")?;
    match &socket {
        Some(socket) => command.args(["--port", "0", "--unixsocket"]).arg(socket),
        None => command.args(["--port", address.trim_start_matches(LOCAL)]),
    };
    start(format!("redis {number}"), command, address, socket)
}

/// Version that a program reports.
fn version(program: &str, option: &str) -> anyhow::Result<String> {
    let Ok(version) = Command::new(program).arg(option).output() else {
        bail!("no {program} to compare with: install it (apt-get install memcached redis-server)")
    };
    Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
}

/// Command that runs a program on the servers' processor.
fn pinned(plan: &ServerPlan, program: &str) -> Command {
    let Some(cpu) = plan.cpu else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), program]);
    command
}

fn start(name: String, mut command: Command, address: String, socket: Option<PathBuf>) -> anyhow::Result<Started> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut server = Other { child: child.with_context(|| format!("starting {name}"))?, socket };
    let deadline = Instant::now() + START_MAX;
    let listens = || match address.strip_prefix("unix:") {
        Some(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
        None => std::net::TcpStream::connect(&address).is_ok(),
    };
    while !listens() {
        if let Some(status) = server.child.try_wait()? {
            bail!("{name} ended at its start, with {status}; it was started as `{shown}`");
        }
        if Instant::now() > deadline {
            bail!("{name} did not start to listen at {address}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Started { name, address, command: shown, server: Some(Server::Other(server)) })
}
