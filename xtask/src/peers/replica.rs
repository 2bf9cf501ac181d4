//! Replicated stores: three members of ours and three of etcd's under the same PUTs, with their data in memory or on
//! the build folder's disk.
//!
//! Nothing is pinned and nothing spins: three members and a client share the cores. What a PUT costs the processors is
//! therefore a figure of its own.

use std::fs::File;
use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sinew_peers::etcd::{self, Cluster, Puts};
use sinew_peers::{Folder, Missing};

use super::contest::{Contest, Runner, Side, Unit};
use super::mounts::start;
use super::stats::Spread;
use super::{Server, Setting, figure};
use crate::process;

const NAMES: [&str; 3] = ["a", "b", "c"];
const VALUE_LEN: usize = 64;
/// Keys to draw from, as in `sinew replica bench`.
const KEYS: u64 = 1_000_000;
/// Time before etcd's measurement. Our client finds out who leads before its own.
const WARM_UP: Duration = Duration::from_millis(300);

/// Place of the members' data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Disk,
}

/// Bytes that a record of a PUT takes in a member's log, about.
const RECORD_LEN: usize = 256;

/// Bytes reserved for the records of a measurement.
const RESERVED_LEN: u64 = 64 << 20;

/// What a system did under a load.
struct Measured {
    p50_ns: f64,
    rate_kops: f64,
    /// CPU time of each PUT, at the members and the client.
    cpu_ns: f64,
}

/// Fails, with a remedy, unless etcd is installed.
pub fn present() -> Result<(), String> {
    etcd::check().map_err(|missing: Missing| missing.to_string())
}

/// Contests between our store and etcd, and between our store and the disk under it.
pub fn contests() -> Vec<Contest> {
    let mut contests = Vec::new();
    for (place, where_it_is) in [(Place::Memory, "in memory"), (Place::Disk, "on disk")] {
        for (in_flight, load) in [(1, "one at a time"), (64, "64 in flight")] {
            let title = format!("replicated PUTs, three members {where_it_is}, {load}");
            let contest = |what: &str, unit: Unit, pick: fn(Measured) -> f64| Contest {
                title: format!("{title}{what}"),
                unit,
                ours: side("sinew", "sinew", move |setting| ours(place, in_flight, setting).map(pick)),
                peers: vec![side("etcd", "etcd", move |setting| of_etcd(place, in_flight, setting).map(pick))],
            };
            contests.push(if in_flight == 1 {
                contest(", p50", Unit::Nanoseconds, |measured| measured.p50_ns)
            } else {
                contest("", Unit::ThousandPerSecond, |measured| measured.rate_kops)
            });
            if place == Place::Memory {
                contests.push(contest(", CPU time of each", Unit::Nanoseconds, |measured| measured.cpu_ns));
            } else if in_flight == 1 {
                let limits = [(1, "an fdatasync"), (NAMES.len(), "the second of three fdatasyncs at once")];
                let limits = limits.map(|(members, syncs)| {
                    side("fdatasync", &format!("{syncs}, and a PUT in memory"), move |setting| {
                        Ok(fdatasync_ns(members, setting)? + ours(Place::Memory, 1, setting)?.p50_ns)
                    })
                });
                contests.last_mut().expect("one was pushed").peers.extend(limits);
            }
        }
    }
    contests
}

fn side(system: &'static str, name: &str, measure: impl Fn(&Setting) -> anyhow::Result<f64> + 'static) -> Side {
    Side { system, name: name.into(), counts: 1.0, measure: Runner::new(measure) }
}

impl Place {
    fn folder(self) -> anyhow::Result<Folder> {
        match self {
            Self::Memory => Folder::in_memory(),
            // Not /tmp, which may be a tmpfs.
            Self::Disk => Folder::create(&process::target_dir().join("peers")),
        }
    }
}

/// Returns the median time until a majority of `members` files on the members' disk have a record appended and synced
/// (`fdatasync`), all by threads that begin at once. The members share this disk, where syncs wait for each other.
fn fdatasync_ns(members: usize, setting: &Setting) -> anyhow::Result<f64> {
    let folder = Place::Disk.folder()?;
    let file = |number: usize| -> std::io::Result<File> {
        let file = File::create(folder.path().join(format!("record{number}")))?;
        // Members reserve room for their logs as well.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, RESERVED_LEN)?;
        Ok(file)
    };
    let files = (0..members).map(file).collect::<std::io::Result<Vec<_>>>()?;
    let (barrier, is_over) = (Barrier::new(members), AtomicBool::new(false));
    let until = Instant::now() + Duration::from_secs_f64(setting.seconds);
    let append = |mut file: File| -> std::io::Result<Vec<(Instant, Instant)>> {
        let mut times = Vec::new();
        loop {
            barrier.wait();
            let began = Instant::now();
            let appended = file.write_all(&[1; RECORD_LEN]).and_then(|()| file.sync_data());
            let ended = Instant::now();
            times.push((began, ended));
            is_over.fetch_or(appended.is_err() || ended >= until, Ordering::Relaxed);
            // The next round begins only once all threads have looked at `is_over`.
            barrier.wait();
            if is_over.load(Ordering::Relaxed) {
                return appended.map(|()| times);
            }
        }
    };
    let times = std::thread::scope(|scope| {
        let threads = Vec::from_iter(files.into_iter().map(|file| scope.spawn(|| append(file))));
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<std::io::Result<Vec<_>>>()
    })?;
    let rounds = (0..times[0].len()).map(|round| {
        let began = times.iter().map(|of_one| of_one[round].0).min().expect("there is a member");
        let mut ends = Vec::from_iter(times.iter().map(|of_one| of_one[round].1));
        ends.sort_unstable();
        (ends[members / 2] - began).as_nanos() as f64
    });
    Ok(Spread::of(&Vec::from_iter(rounds)).median)
}

fn ours(place: Place, in_flight: usize, setting: &Setting) -> anyhow::Result<Measured> {
    let folder = (place == Place::Disk).then(|| place.folder()).transpose()?;
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
            member.arg("--data").arg(folder.path().join(name));
        }
        members.push(Server(start(&mut member)?));
    }
    let mut bench = Command::new(program);
    bench.args(["replica", "bench", "--at", &addresses.join(","), "--timeout-ms", "20000", "--json"]);
    let (output, cpu_ns) = run(&mut bench, &members, in_flight, setting)?;
    Ok(Measured {
        p50_ns: figure(&output, "p50_us")? * 1e3,
        rate_kops: figure(&output, "rate_per_s")? / 1e3,
        cpu_ns: cpu_ns / figure(&output, "puts")?,
    })
}

fn of_etcd(place: Place, in_flight: usize, setting: &Setting) -> anyhow::Result<Measured> {
    let mut cluster = Cluster::start(NAMES.len(), place.folder()?)?;
    let mut client = cluster.client()?;
    let members: Vec<u32> = cluster.members().iter().map(sinew_peers::Server::id).collect();
    // The client is this process.
    let cpu_ns = || -> anyhow::Result<f64> {
        let all = members.iter().copied().chain([std::process::id()]);
        all.map(|process| process::cpu_ns(process, process::CpuOf::Itself)).sum()
    };
    let duration = Duration::from_secs_f64(setting.seconds);
    let puts = Puts { window: in_flight, keys: KEYS, value_len: VALUE_LEN, warm_up: WARM_UP, duration };
    let before = cpu_ns()?;
    let measured = client.put(puts)?;
    Ok(Measured {
        p50_ns: measured.quantile_ns(0.5),
        rate_kops: measured.rate_per_s() / 1e3,
        cpu_ns: (cpu_ns()? - before) / measured.all as f64,
    })
}

/// Runs our client to its end. Returns what it printed, and the CPU time that it and the members took.
fn run(bench: &mut Command, members: &[Server], in_flight: usize, setting: &Setting) -> anyhow::Result<(String, f64)> {
    let cpu_ns = || -> anyhow::Result<f64> {
        let own = |member: &Server| process::cpu_ns(member.0.id(), process::CpuOf::Itself);
        let members: f64 = members.iter().map(own).sum::<anyhow::Result<f64>>()?;
        Ok(members + process::cpu_ns(std::process::id(), process::CpuOf::EndedChildren)?)
    };
    bench.args(["--in-flight", &in_flight.to_string(), "--seconds", &setting.seconds.to_string()]);
    bench.args(["--value-len", &VALUE_LEN.to_string(), "--keys", &KEYS.to_string()]);
    let before = cpu_ns()?;
    let output = process::output(bench.stdin(Stdio::null()))?;
    Ok((output, cpu_ns()? - before))
}
