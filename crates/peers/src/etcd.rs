//! etcd: the members of a cluster on this machine, and a client that puts keys.

mod grpc;
mod message;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::Folder;
use crate::server::{Missing, Place, Server, free_ports};
use grpc::Connection;

/// Longest time until a member leads.
const LEADER_MAX: Duration = Duration::from_secs(20);
/// Pause between two looks for a leader.
const LOOK: Duration = Duration::from_millis(20);

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const PUT: &str = "/etcdserverpb.KV/Put";

/// Fails unless etcd is installed.
///
/// # Errors
///
/// [`Missing`].
pub fn check() -> Result<(), Missing> {
    Missing::check("etcd", "etcd-server")
}

/// Members of a cluster, with their options as etcd's documentation has them.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: the folder goes when nothing writes to it.
    members: Vec<Server>,
    _folder: Folder,
}

impl Cluster {
    /// Starts the members, which keep their data in `folder`.
    ///
    /// # Errors
    ///
    /// [`Missing`], or a member cannot be started.
    pub fn start(members: usize, folder: Folder) -> anyhow::Result<Self> {
        check()?;
        let ports = free_ports(2 * members)?;
        let (clients, peers) = ports.split_at(members);
        let url = |address: &String| format!("http://{address}");
        let named: Vec<String> =
            peers.iter().enumerate().map(|(number, peer)| format!("m{number}={}", url(peer))).collect();
        let mut servers = Vec::new();
        for (number, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let name = format!("m{number}");
            let mut member = Place::default().command("etcd");
            member.args(["--name", &name, "--initial-cluster", &named.join(",")]);
            member.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
            member.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
            member.arg("--data-dir").arg(folder.path().join(&name)).stderr(Stdio::null());
            servers.push(Server::start(member, client)?);
        }
        Ok(Self { members: servers, _folder: folder })
    }

    /// The members' processes.
    pub fn members(&self) -> &[Server] {
        &self.members
    }

    /// Connects to the leader, once there is one.
    ///
    /// # Errors
    ///
    /// A member has ended, or none leads in time.
    pub fn client(&mut self) -> anyhow::Result<Client> {
        let deadline = Instant::now() + LEADER_MAX;
        while Instant::now() < deadline {
            for member in &mut self.members {
                member.check()?;
                // A member that does not serve yet is asked again.
                let Ok(mut connection) = Connection::open(member.address()) else { continue };
                if leads(&mut connection).unwrap_or(false) {
                    return Ok(Client(connection));
                }
            }
            std::thread::sleep(LOOK);
        }
        bail!("none of etcd's members leads after {LEADER_MAX:?}")
    }
}

/// Whether the member at the other end leads.
fn leads(connection: &mut Connection) -> anyhow::Result<bool> {
    connection.call(STATUS, b"")?;
    let (_, answer) = connection.answer()?;
    let member = message::bytes(&answer, 1).and_then(|header| message::number(header, 2));
    let leader = message::number(&answer, 4);
    Ok(leader.is_some() && leader == member)
}

/// PUTs that a client keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Puts {
    /// PUTs in flight.
    pub window: usize,
    /// Keys to draw from, of 16 bytes each.
    pub keys: u64,
    /// Length of a value, in bytes.
    pub value_len: usize,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub duration: Duration,
}

/// Result of a client's PUTs.
#[derive(Debug)]
pub struct Measured {
    /// Time of each PUT that began after the warm-up and was answered in time, in ns, in ascending order.
    times_ns: Vec<u64>,
    duration: Duration,
    /// PUTs made, including those that were not timed.
    pub all: u64,
}

impl Measured {
    /// Time that a fraction `part` of the PUTs do not exceed, in ns.
    pub fn quantile_ns(&self, part: f64) -> f64 {
        self.times_ns[(part * (self.times_ns.len() - 1) as f64) as usize] as f64
    }

    /// PUTs a second.
    pub fn rate_per_s(&self) -> f64 {
        self.times_ns.len() as f64 / self.duration.as_secs_f64()
    }
}

/// A client with one connection to the leader. It sleeps while it waits.
#[derive(Debug)]
pub struct Client(Connection);

#[derive(Clone, Copy)]
struct InFlight {
    began: Instant,
    /// Latest revision that was known when it began.
    after: u64,
}

impl Client {
    /// Puts random keys. Each answer is checked.
    ///
    /// # Errors
    ///
    /// The member is gone, or an answer is wrong.
    pub fn put(&mut self, puts: Puts) -> anyhow::Result<Measured> {
        let warm = Instant::now() + puts.warm_up;
        let until = warm + puts.duration;
        let value = vec![b'v'; puts.value_len];
        let mut in_flight = BTreeMap::new();
        let (mut times_ns, mut all, mut revision) = (Vec::new(), 0, 0);
        let (mut now, mut word) = (Instant::now(), 0x9e37_79b9_7f4a_7c15_u64);
        loop {
            while in_flight.len() < puts.window && now < until {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                let mut request = Vec::new();
                message::put_bytes(&mut request, 1, format!("{:016x}", word % puts.keys).as_bytes());
                message::put_bytes(&mut request, 2, &value);
                let call = self.0.call(PUT, &request)?;
                in_flight.insert(call, InFlight { began: Instant::now(), after: revision });
            }
            if in_flight.is_empty() {
                break;
            }
            let mut answer = Some(self.0.answer()?);
            now = Instant::now();
            while let Some((call, response)) = answer {
                let InFlight { began, after } = in_flight.remove(&call).context("an answer to no request")?;
                let found = message::bytes(&response, 1).and_then(|header| message::number(header, 3));
                let found = found.context("a PUT was answered without a revision")?;
                ensure!(found > after, "a PUT has revision {found}, and an earlier one had {after}");
                revision = revision.max(found);
                all += 1;
                if began >= warm && now < until {
                    times_ns.push((now - began).as_nanos() as u64);
                }
                answer = self.0.answer_that_is_here()?;
            }
        }
        ensure!(!times_ns.is_empty(), "no PUT came back in time");
        times_ns.sort_unstable();
        Ok(Measured { times_ns, duration: puts.duration, all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_rates_are_of_the_times_in_order() {
        let measured = Measured { times_ns: (1..=101).collect(), duration: Duration::from_millis(500), all: 150 };
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|part| measured.quantile_ns(part)), [1.0, 51.0, 100.0, 101.0]);
        assert_eq!(measured.rate_per_s(), 202.0);
    }
}
