//! Servers that are started to be measured.

use sinew_harness::load::memcached::KEY_LEN;
use sinew_peers::{Place, Server, memcached, redis};

use crate::child::ServerProcess;

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
    process: Option<Process>,
}

enum Process {
    Ours(ServerProcess),
    Other(Server),
}

impl Started {
    /// A server that was already running.
    pub fn elsewhere(address: &str) -> Self {
        Self { name: "server".to_owned(), address: address.to_owned(), command: String::new(), process: None }
    }

    /// Its process, if it was started here.
    pub fn process(&self) -> Option<u32> {
        Some(match self.process.as_ref()? {
            Process::Ours(server) => server.id(),
            Process::Other(server) => server.id(),
        })
    }
}

impl ServerPlan {
    fn place(&self) -> Place {
        Place { cpu: self.cpu, unix: self.unix }
    }
}

/// Megabytes that suffice for all items.
pub fn memory_mb(keys: usize, value_size: usize) -> usize {
    ((keys * (KEY_LEN + value_size + ITEM_OVERHEAD) * 2) >> 20).max(64)
}

/// Starts a cache of ours, with one thread.
pub fn ours(plan: &ServerPlan) -> anyhow::Result<Started> {
    let address = if plan.unix { plan.place().address("ours")? } else { "127.0.0.1:0".to_owned() };
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
        process: Some(Process::Ours(server)),
    })
}

/// Starts memcached, with one thread.
pub fn memcached(plan: &ServerPlan) -> anyhow::Result<Started> {
    Ok(other(memcached::start(plan.place(), plan.memory_mb)?))
}

/// Starts Redis, without persistence.
pub fn redis(plan: &ServerPlan) -> anyhow::Result<Started> {
    Ok(other(redis::start(plan.place(), Some(plan.memory_mb))?))
}

fn other((server, name): (Server, String)) -> Started {
    let (address, command) = (server.address().to_owned(), server.command().to_owned());
    Started { name, address, command, process: Some(Process::Other(server)) }
}
