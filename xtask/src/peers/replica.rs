//! Replicated stores: three members of ours and three of etcd's under the same PUTs, with their data in memory or on
//! the build folder's disk.
//!
//! Nothing is pinned and nothing spins: three members and a client share the cores.

use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::contest::{Comparison, Runner, Side, Unit};
use super::mounts::{require, start};
use super::{Server, Setting, figure, rust};
use crate::process;

const NAMES: [&str; 3] = ["a", "b", "c"];
const VALUE_LEN: &str = "64";

/// Place of the members' data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Disk,
}

/// Fails, with a remedy, unless etcd is installed and its client can be built.
pub fn present() -> Result<(), String> {
    require(&["etcd"]).map_err(|_| "there is no etcd: apt-get install etcd-server".to_owned())?;
    rust::build()
}

/// Contests between our store and etcd.
pub fn contests() -> Vec<Comparison> {
    let contest = |place: Place, in_flight: usize| {
        let unit = if in_flight == 1 { Unit::Nanoseconds } else { Unit::ThousandPerSecond };
        let side =
            |system: &'static str, name: &str, measure: fn(Place, usize, &Setting) -> anyhow::Result<f64>| Side {
                system,
                name: name.into(),
                counts: 1.0,
                measure: Runner::new(move |setting: &Setting| measure(place, in_flight, setting)),
            };
        let where_it_is = if place == Place::Memory { "in memory" } else { "on disk" };
        let load = if in_flight == 1 { "one at a time, p50".to_owned() } else { format!("{in_flight} in flight") };
        Comparison {
            title: format!("replicated PUTs, three members {where_it_is}, {load}"),
            unit,
            ours: side("sinew", "sinew", ours),
            peers: vec![side("etcd", "etcd", etcd)],
        }
    };
    [Place::Memory, Place::Disk].into_iter().flat_map(|place| [1, 64].map(|load| contest(place, load))).collect()
}

/// A folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(place: Place) -> anyhow::Result<Self> {
        let path = match place {
            Place::Memory => PathBuf::from(format!("/dev/shm/sinew-peers-{}", std::process::id())),
            // Not /tmp, which may be a tmpfs.
            Place::Disk => process::target_dir().join(format!("peers/replica-{}", std::process::id())),
        };
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ours(place: Place, in_flight: usize, setting: &Setting) -> anyhow::Result<f64> {
    let folder = (place == Place::Disk).then(|| Folder::new(place)).transpose()?;
    let program = process::target_dir().join("release/sinew");
    let sockets = NAMES.map(|_| UdpSocket::bind("127.0.0.1:0"));
    let mut addresses = Vec::new();
    for socket in sockets {
        addresses.push(format!("udp://{}", socket?.local_addr()?));
    }
    let peers: Vec<String> = NAMES.iter().zip(&addresses).map(|(name, address)| format!("{name}={address}")).collect();
    let mut members = Vec::new();
    for name in NAMES {
        let mut member = Command::new(&program);
        member.args(["serve", "replica", "--name", name, "--peers", &peers.join(",")]);
        if let Some(folder) = &folder {
            member.arg("--data").arg(folder.0.join(name));
        }
        members.push(Server(start(&mut member)?));
    }
    let mut bench = Command::new(program);
    bench.args(["replica", "bench", "--at", &addresses.join(","), "--timeout-ms", "20000", "--json"]);
    let measured = run(&mut bench, in_flight, setting)?;
    let key = if in_flight == 1 { "p50_us" } else { "rate_per_s" };
    let value = figure(&measured, key)?;
    Ok(if in_flight == 1 { value * 1e3 } else { value / 1e3 })
}

fn etcd(place: Place, in_flight: usize, setting: &Setting) -> anyhow::Result<f64> {
    let folder = Folder::new(place)?;
    let ports = free_ports(2 * NAMES.len())?;
    let (clients, peers) = ports.split_at(NAMES.len());
    let url = |address: &String| format!("http://{address}");
    let cluster: Vec<String> = NAMES.iter().zip(peers).map(|(name, peer)| format!("{name}={}", url(peer))).collect();
    let mut members = Vec::new();
    for ((name, client), peer) in NAMES.iter().zip(clients).zip(peers) {
        let mut member = Command::new("etcd");
        member.args(["--name", name, "--initial-cluster", &cluster.join(",")]);
        member.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
        member.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
        member.arg("--data-dir").arg(folder.0.join(name));
        members.push(Server(start(&mut member)?));
    }
    let mut bench = Command::new(rust::program("etcd"));
    bench.args(["--at", &clients.join(",")]);
    let measured = run(&mut bench, in_flight, setting)?;
    let key = if in_flight == 1 { "p50_ns" } else { "rate_per_s" };
    let value = figure(&measured, key)?;
    Ok(if in_flight == 1 { value } else { value / 1e3 })
}

fn run(bench: &mut Command, in_flight: usize, setting: &Setting) -> anyhow::Result<String> {
    bench.args(["--in-flight", &in_flight.to_string(), "--seconds", &setting.seconds.to_string()]);
    process::output(bench.args(["--value-len", VALUE_LEN]).stdin(Stdio::null()))
}

/// Returns local addresses at which nothing listens.
fn free_ports(count: usize) -> anyhow::Result<Vec<String>> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    listeners.into_iter().map(|listener| Ok(listener?.local_addr()?.to_string())).collect()
}
