//! Servers that are started to be measured.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Plan;
use crate::child::ServerProcess;

/// How long memcached may take to begin.
const START_MAX: Duration = Duration::from_secs(5);
/// Bytes of an item beside key and value, of either server, at most.
const ITEM_OVERHEAD: usize = 128;

/// A server that ends when this is dropped.
pub enum Server {
    Ours(ServerProcess),
    Memcached(Memcached),
}

impl Server {
    /// Its process.
    pub fn id(&self) -> u32 {
        match self {
            Self::Ours(server) => server.id(),
            Self::Memcached(server) => server.child.id(),
        }
    }
}

/// memcached itself.
pub struct Memcached {
    child: Child,
    /// Its Unix socket, if it has one.
    socket: Option<PathBuf>,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

type Started = (String, String, Option<Server>);

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("sinew-bench-{name}-{}", std::process::id()))
}

/// Megabytes that are enough for all items.
fn memory_mb(plan: &Plan) -> usize {
    ((plan.workload.keys * (super::KEY_LEN + plan.load.value_size + ITEM_OVERHEAD) * 2) >> 20).max(64)
}

/// One of ours, of one thread.
pub fn ours(plan: &Plan, unix: bool) -> anyhow::Result<Started> {
    let address = if unix { format!("unix:{}", socket("ours").display()) } else { "127.0.0.1:0".to_owned() };
    let mut args: Vec<String> = ["serve", "cache", "--memcached", &address, "--memory"].map(str::to_owned).into();
    args.push(format!("{}M", memory_mb(plan)));
    args.extend(["--items".to_owned(), plan.workload.keys.to_string()]);
    if let Some(cpu) = plan.server_cpu {
        args.extend(["--pin".to_owned(), cpu.to_string()]);
    }
    let server = ServerProcess::spawn(&args)?;
    let address = server.addresses().first().context("the server told no address")?.clone();
    Ok(("sinew".to_owned(), address, Some(Server::Ours(server))))
}

/// memcached, with one thread.
pub fn memcached(plan: &Plan, unix: bool) -> anyhow::Result<Started> {
    let version = Command::new("memcached").arg("-V").output();
    let Ok(version) = version else { bail!("no memcached to compare with: apt-get install memcached") };
    let name = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let mut command = match plan.server_cpu {
        Some(cpu) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string(), "memcached"]);
            command
        }
        None => Command::new("memcached"),
    };
    command.args(["-u", "root", "-U", "0", "-t", "1", "-m", &memory_mb(plan).to_string()]);
    let (address, socket) = if unix {
        let socket = socket("memcached");
        command.arg("-s").arg(&socket);
        (format!("unix:{}", socket.display()), Some(socket))
    } else {
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        command.args(["-l", "127.0.0.1", "-p", &address.port().to_string()]);
        (address.to_string(), None)
    };
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting memcached")?;
    let server = Memcached { child, socket };
    let deadline = Instant::now() + START_MAX;
    let listens = || match address.strip_prefix("unix:") {
        Some(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
        None => std::net::TcpStream::connect(&address).is_ok(),
    };
    while !listens() {
        if Instant::now() > deadline {
            bail!("memcached does not listen at {address}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((name, address, Some(Server::Memcached(server))))
}
