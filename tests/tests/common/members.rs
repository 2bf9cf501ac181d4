//! Members of a replicated store, in processes of their own.
#![allow(dead_code)] // Each test program uses some of it.

use std::fs::File;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use sinew::host::SystemEntropy;
use sinew::prelude::*;
use sinew::replica::client::{Client, ClientError, RequestOutcome};

use crate::common::{self, Folder, Process, Server, eventually, run, sinew, text};

/// Members at free ports of this host.
pub struct Members {
    pub addresses: Vec<String>,
    pub data: Option<Folder>,
    /// The cluster's key, where it has one.
    pub key: Option<PathBuf>,
    /// Time-out of elections, if it is not the default.
    election_ms: Option<u32>,
    pub servers: Vec<Option<Server>>,
}

/// Addresses of this host at which nothing listens.
pub fn free_addresses(count: usize) -> Vec<String> {
    let sockets: Vec<_> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    sockets.iter().map(|socket| format!("udp://{}", socket.local_addr().unwrap())).collect()
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
        let (addresses, data, servers) = (free_addresses(count), on_disk.then(Folder::new), Vec::new());
        let mut members = Self { addresses, data, key, election_ms, servers };
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

    /// Starts a member, which is to end with the test, and has its notes written to a file. They are not written with
    /// `--child`.
    pub fn begin_with_notes(&self, at: usize, notes: &Path) -> Process {
        let notes = File::create(notes).unwrap();
        Process(self.command(at, "--json").stdout(Stdio::null()).stderr(notes).spawn().unwrap())
    }

    /// Names and addresses, as `--peers` takes them.
    pub fn peers(&self) -> String {
        let peers = self.addresses.iter().enumerate().map(|(at, address)| format!("{}={address}", name(at)));
        peers.collect::<Vec<_>>().join(",")
    }

    /// The command that starts a member: with `--child`, or with `--json`, so that it reports on itself as it ends.
    pub fn command(&self, at: usize, form: &str) -> Command {
        let name = name(at);
        let mut command = sinew(&["serve", "replica", form, "--name", &name, "--peers", &self.peers()]);
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

    /// What a member reports on itself, if it answers.
    pub fn status_of(&self, at: usize) -> Value {
        let status = self.status();
        let mut all = status["members"].as_array().into_iter().flatten();
        all.find(|member| member["address"] == self.addresses[at].as_str()).cloned().unwrap_or_default()
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
