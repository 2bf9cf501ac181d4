//! Members of a replicated store, in processes of their own.
#![allow(dead_code)] // Each test program uses some of it.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use rustix::process::Signal;
use serde_json::Value;
use sinew::host::SystemEntropy;
use sinew::prelude::*;
use sinew::replica::client::{Client, ClientError, RequestOutcome};

use crate::common::{self, Folder, Server, eventually, run, sinew, text};

/// Members at free ports of this host.
pub struct Members {
    peers: String,
    pub addresses: Vec<String>,
    pub data: Option<Folder>,
    /// The cluster's key, where it has one.
    pub key: Option<PathBuf>,
    /// Time-out of elections, if it is not the default.
    election_ms: Option<u32>,
    pub servers: Vec<Option<Server>>,
}

pub fn name(at: usize) -> String {
    char::from(b'a' + at as u8).to_string()
}

impl Members {
    pub fn start(count: usize, on_disk: bool) -> Self {
        Self::start_with(count, on_disk, None)
    }

    pub fn start_with(count: usize, on_disk: bool, key: Option<PathBuf>) -> Self {
        // A machine that runs many tests at once is slower than hosts in one room.
        Self::start_all(count, on_disk, key, Some(60))
    }

    /// Starts members whose time-outs are the defaults, to be measured.
    pub fn start_as_users_do(count: usize, on_disk: bool) -> Self {
        Self::start_all(count, on_disk, None, None)
    }

    fn start_all(count: usize, on_disk: bool, key: Option<PathBuf>, election_ms: Option<u32>) -> Self {
        let sockets: Vec<_> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let address = |socket: &UdpSocket| format!("udp://{}", socket.local_addr().unwrap());
        let addresses: Vec<_> = sockets.iter().map(address).collect();
        let peers: Vec<_> =
            addresses.iter().enumerate().map(|(at, address)| format!("{}={address}", name(at))).collect();
        drop(sockets);
        let (peers, data, servers) = (peers.join(","), on_disk.then(Folder::new), Vec::new());
        let mut members = Self { peers, addresses, data, key, election_ms, servers };
        for at in 0..count {
            members.servers.push(None);
            members.begin(at);
        }
        members
    }

    /// Starts a member, with the same command every time.
    pub fn begin(&mut self, at: usize) {
        self.servers[at] = Some(Server::of(&mut self.command(at, "--child")));
    }

    /// The command that starts a member: with `--child`, or with `--json`, so that it reports on itself as it ends.
    pub fn command(&self, at: usize, form: &str) -> Command {
        let name = name(at);
        let mut command = sinew(&["serve", "replica", form, "--name", &name, "--peers", &self.peers]);
        if let Some(election_ms) = self.election_ms {
            command.args(["--election-ms", &election_ms.to_string()]);
        }
        if let Some(data) = &self.data {
            command.arg("--data").arg(data.0.join(&name));
        }
        if let Some(key) = &self.key {
            command.arg("--key-file").arg(key);
        }
        command
    }

    pub fn kill(&mut self, at: usize) {
        self.signal(at, Signal::KILL);
        self.wait_for_end(at);
    }

    pub fn signal(&self, at: usize, signal: Signal) {
        if let Some(server) = &self.servers[at] {
            server.process.signal(signal);
        }
    }

    /// Waits until a member's process has ended. Returns its exit status, unless it had ended before.
    pub fn wait_for_end(&mut self, at: usize) -> Option<ExitStatus> {
        self.servers[at].take().map(|mut server| server.process.wait())
    }

    pub fn at(&self) -> String {
        self.addresses.join(",")
    }

    pub fn ask(&self, args: &[&str]) -> (i32, String, String) {
        let at = self.at();
        let args: Vec<&str> = ["replica"].iter().chain(args).copied().chain(["--at", &at]).collect();
        let output = run(&mut sinew(&args));
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.ask(&["status", "--json"]).1).unwrap_or_default()
    }

    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("a leader", || {
            let status = self.status();
            leader = status["leader"].as_str().map(|name| usize::from(name.as_bytes()[0] - b'a'));
            leader.is_some()
        });
        leader.unwrap()
    }
}

/// Creates a client of members at these addresses.
pub fn client(addresses: Vec<String>) -> Client<Rpc> {
    let config = Config { connect_timeout_ns: 300_000_000, ..common::config() };
    let nexus = Nexus::builder().config(config).build().unwrap();
    let rpc = Rpc::open_with(&nexus, "udp://127.0.0.1:0").unwrap();
    Client::new(rpc, addresses, Box::new(SystemEntropy::new().unwrap()))
}

/// Waits until a request has finished, and returns its outcome.
pub fn wait(client: &mut Client<Rpc>) -> Result<RequestOutcome, ClientError> {
    loop {
        let busy = client.turn();
        if let Some((_, result)) = client.poll() {
            return result;
        }
        let next_ns = client.next_turn_ns();
        let now_ns = client.rpc().now_ns();
        client.rpc().rest(busy, next_ns.map(|next_ns| next_ns.saturating_sub(now_ns))).unwrap();
    }
}
