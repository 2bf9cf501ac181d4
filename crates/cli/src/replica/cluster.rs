//! Options that locate a cluster, and the client that asks it.

use anyhow::{Context, bail, ensure};
use sinew::host::SystemEntropy;
use sinew::prelude::*;
use sinew::replica::client::{Client, ClientError, RequestOutcome};
use sinew::replica::client_wire::ClientRequest;
use sinew::replica::kv::{Command, CommandResult};
use sinew::replica::wire;

use crate::fabrics::{self, Purpose};
use crate::reach::KeyArgs;
use crate::{Usage, interrupted};

/// Addresses of members, and the longest wait for their answers.
#[derive(clap::Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Addresses of one or more members, separated by commas: shm://NAME or udp://HOST:PORT; the other members are
    /// learned from them
    #[arg(long = "at", value_name = "URL", value_delimiter = ',', default_values_t = DEFAULTS.map(str::to_owned))]
    pub members: Vec<String>,
    /// Milliseconds to wait for an answer, 1 to 86400000 [default: 5000, or 40000 for a change of the members]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub timeout_ms: Option<u64>,
    #[command(flatten)]
    pub key: KeyArgs,
}

/// Addresses of the members in the examples.
pub const DEFAULTS: [&str; 3] = ["udp://127.0.0.1:7401", "udp://127.0.0.1:7402", "udp://127.0.0.1:7403"];

/// Time to wait for an answer, unless another is asked for, in ms.
const TIMEOUT_MS: u64 = 5000;

/// Complaint about an answer that this release does not understand.
pub const UNREADABLE: &str = "an answer that cannot be read: use the same release everywhere";

/// Time for which the end of a session is waited for, in ns.
const CLOSE_NS: u64 = 200_000_000;

impl ClusterArgs {
    /// Opens a client of the cluster.
    pub fn open(&self) -> anyhow::Result<Cluster> {
        let nexus = Nexus::builder().config(config()).build()?;
        self.open_with(&nexus)
    }

    fn open_with(&self, nexus: &Nexus) -> anyhow::Result<Cluster> {
        let first = self.members.first().context("--at: name a member")?;
        let fabric = fabrics::check(first, Purpose::Call).map_err(Usage::of)?;
        for address in &self.members {
            let other = fabrics::check(address, Purpose::Call).map_err(Usage::of)?;
            if other != fabric {
                return Err(Usage(format!("--at {first},{address}: all members must be on one fabric")).into());
            }
        }
        let key = self.key.key()?;
        interrupted::exit_on_signal()?;
        let rpc = Rpc::open_with(nexus, &fabric.client_address("", Some(first)))?;
        let random = Box::new(SystemEntropy::new()?);
        let mut client = Client::new(rpc, self.members.clone(), random);
        if let Some(key) = key {
            client = client.keyed(key);
        }
        Ok(Cluster { client, timeout_ns: self.timeout_ms.unwrap_or(TIMEOUT_MS) * 1_000_000 })
    }
}

/// Limits of the endpoints of members and clients.
pub fn config() -> Config {
    const MS: u64 = 1_000_000;
    Config {
        poller: sinew::fabric::PollPolicy::SLEEP,
        slots: 64,
        peer_timeout_ns: 1000 * MS,
        probe_interval_ns: 100 * MS,
        connect_timeout_ns: 300 * MS,
        connect_retry_ns: 5 * MS,
        ..Config::default()
    }
}

/// A cluster as a client sees it.
pub struct Cluster {
    pub client: Client<Rpc>,
    pub timeout_ns: u64,
}

impl Cluster {
    /// Turns the client until a request is over, and returns its tag and result.
    pub fn next(&mut self) -> anyhow::Result<(u64, Result<RequestOutcome, ClientError>)> {
        loop {
            let busy = self.client.turn();
            if let Some(done) = self.client.poll() {
                return Ok(done);
            }
            self.rest(busy)?;
        }
    }

    /// Sleeps until there is work.
    pub fn rest(&mut self, busy: bool) -> anyhow::Result<()> {
        let next_ns = self.client.next_turn_ns();
        let rpc = self.client.rpc();
        let wait_ns = next_ns.map(|next_ns| next_ns.saturating_sub(rpc.now_ns()));
        Ok(rpc.rest(busy, wait_ns)?)
    }

    fn next_outcome(&mut self) -> anyhow::Result<RequestOutcome> {
        Ok(self.next()?.1?)
    }

    /// Runs a command in a session of its own, and returns its encoded result.
    pub fn command(&mut self, command: &Command<'_>) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        wire::encode(command, &mut bytes);
        self.client.run(0, &bytes, self.timeout_ns)?;
        match self.next_outcome()? {
            RequestOutcome::CommandAnswer(done) => {
                ensure!(wire::decode(&done) != Ok(CommandResult::Malformed), "the members run another release");
                self.close();
                Ok(done)
            }
            other => bail!("an answer to another request: {other:?}"),
        }
    }

    /// Ends the session, so that the members need not keep it until it expires. Commands have their answers, so a
    /// failure to do so is no error.
    pub fn close(&mut self) {
        if self.client.close(0, CLOSE_NS.min(self.timeout_ns)) == Ok(true) {
            let _ = self.next();
        }
    }

    /// Runs a query, and returns its encoded result.
    pub fn query(
        &mut self,
        freshness: sinew::replica::client_wire::Freshness,
        query: &sinew::replica::kv::Query<'_>,
    ) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        wire::encode(query, &mut bytes);
        self.client.read(0, freshness, &bytes, self.timeout_ns)?;
        match self.next_outcome()? {
            RequestOutcome::QueryAnswer(found) => Ok(found),
            other => bail!("an answer to another request: {other:?}"),
        }
    }

    /// Sends a request that is neither a command nor a query, to the member at `address` if given.
    pub fn ask(&mut self, request: &ClientRequest<'_>, address: Option<&str>) -> anyhow::Result<RequestOutcome> {
        self.client.ask(0, request, address, self.timeout_ns)?;
        self.next_outcome()
    }
}
