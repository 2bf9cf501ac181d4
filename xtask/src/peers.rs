//! Measures other systems beside this one, on this machine, in one run.
//!
//! A machine's speed drifts within seconds, so a figure means something only beside another taken at the same moment.
//! The sides therefore alternate, each repetition gives one ratio, and medians with their spread are printed. A system
//! that is not installed is named, with the way to install it.

mod block;
mod contest;
mod files;
mod index;
mod mounts;
pub mod paging;
pub mod perftest;
mod replica;
mod rust;
mod stats;
mod tables;
mod ucx;

use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::process;
use contest::{Contest, Peer, Runner, Side, Unit};
use mounts::has_fuse;
use stats::Spread;

/// Fewest repetitions whose median means something.
const REPEATS_MIN: usize = 3;

/// Highest load average before the measurements, in runnable programs, that does not distort them.
const BUSY_CORES_MAX: f64 = 0.5;

/// Arguments of `cargo xtask peers`.
#[derive(clap::Args)]
pub struct Args {
    /// Length of each single measurement, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Measurements of each side; at least 3.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Only these peers: ucx, tonic, tarpc, nbdkit, dpdk, etcd, fdatasync, redis, tmpfs, bindfs, nbdfuse, zram, disk
    /// (may be given more than once).
    #[arg(long)]
    peer: Vec<String>,
    /// Only contests whose name contains this text, such as "paging" (may be given more than once).
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// The two cores: the server's and the client's.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    cores: Vec<usize>,
    /// Keep idle processors out of sleep states during the measurements; needs write access to `/dev/cpu_dma_latency`.
    #[arg(long)]
    idle_states_off: bool,
    /// Transports for UCX, in the form of its UCX_TLS.
    #[arg(long, default_value = "posix,self")]
    ucx_tls: String,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Settings handed to every side.
pub struct Setting {
    seconds: f64,
    cores: [usize; 2],
    ucx_tls: String,
    progress: bool,
}

impl Setting {
    fn say(&self, what: &str) {
        if self.progress {
            eprintln!("peers: {what}");
        }
    }
}

/// Measures all contests and prints the results.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.repeats >= REPEATS_MIN, "--repeats {}: a median needs at least {REPEATS_MIN}", args.repeats);
    let &[server, client] = &args.cores[..] else { anyhow::bail!("--cores takes two numbers, as in --cores 0,1") };
    let setting =
        Setting { seconds: args.seconds, cores: [server, client], ucx_tls: args.ucx_tls.clone(), progress: !args.json };
    let load = busy_cores();
    let _held = args.idle_states_off.then(sinew_host::hold_idle_states_off).transpose()?;
    setting.say("building this system");
    process::run(process::cargo().args(["build", "--release", "--quiet"]))?;

    let mut missing = Vec::new();
    let mut present = Vec::new();
    let mut contests = contests();
    match has_fuse() {
        Ok(()) => contests.extend(files::contests()),
        Err(remedy) => missing.push(("files", remedy)),
    }
    if let Err(remedy) = paging::present() {
        missing.push(("paging", remedy));
    } else {
        let redis = paging::redis_present();
        contests.extend(paging::contests(redis.is_ok()));
        missing.extend(redis.err().map(|remedy| ("paging of redis", remedy)));
    }
    contests.retain(|contest| args.only.is_empty() || args.only.iter().any(|text| contest.title.contains(text)));
    let peers: [Peer; 8] = [
        ("ucx", ucx::present),
        ("tonic", rust::build),
        ("tarpc", rust::build),
        ("nbdkit", block::present),
        tables::PEER,
        ("redis", index::present),
        ("etcd", replica::present),
        ("fdatasync", || Ok(())),
    ];
    for (name, check) in peers.into_iter().chain(files::PEERS).chain(paging::PEERS) {
        if !contests.iter().any(|contest| contest.peers.iter().any(|peer| peer.system == name)) {
            continue;
        }
        if !args.peer.is_empty() && !args.peer.iter().any(|wanted| wanted == name) {
            continue;
        }
        setting.say(&format!("looking for {name}"));
        match check() {
            Ok(()) => present.push(name),
            Err(remedy) => missing.push((name, remedy)),
        }
    }
    if load > BUSY_CORES_MAX {
        eprintln!(
            "peers: the machine is busy ({load:.1} programs want to run): spinning threads then wait for each other, and \
             the figures mean little"
        );
    }
    let mut results = Vec::new();
    for mut contest in contests {
        contest.peers.retain(|peer| present.contains(&peer.system));
        if !contest.peers.is_empty() {
            setting.say(&contest.title);
            results.push(measure(&contest, args.repeats, &setting).with_context(|| contest.title.clone())?);
        }
    }
    print(&results, &missing, load, args.json);
    Ok(())
}

fn print(results: &[Outcome], missing: &[(&str, String)], load: f64, as_json: bool) {
    if as_json {
        let missing: Vec<Value> =
            missing.iter().map(|(name, remedy)| json!({ "peer": name, "remedy": remedy })).collect();
        let contests: Vec<Value> = results.iter().map(Outcome::to_json).collect();
        println!("{}", json!({ "contests": contests, "missing": missing, "load_at_start": load }));
        return;
    }
    print!("{}", table(results));
    for (name, remedy) in missing {
        println!("{name} was not measured: {remedy}");
    }
}

/// A peer's server, which ends with its client. If it does not, it is killed when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pins this thread to a core.
fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning to processor {core}"))
}

/// Load average of the last minute, in runnable programs; 0 where the system does not tell.
fn busy_cores() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().and_then(|minute| minute.parse().ok()).unwrap_or(0.0)
}

/// Everything that is measured. A ratio above 1 means that this system is the better one.
fn contests() -> Vec<Contest> {
    let mut contests = Vec::new();
    for batch in ["3", "8"] {
        contests.push(Contest {
            title: format!("shm, 32 B, rate, 60 in flight, batches of {batch}"),
            unit: Unit::MillionPerSecond,
            ours: ours("rate", "shm", &["--size", "32", "--batch", batch, "--window", "60"]),
            // A call is two messages, one each way.
            peers: vec![ucx::side("UCX active messages, two to a call", "ucp_am_bw", 32, Unit::MillionPerSecond, 2.0)],
        });
    }
    contests.push(Contest {
        title: "shm, 32 B, round trip, p50".into(),
        unit: Unit::Nanoseconds,
        ours: ours("latency", "shm", &["--size", "32"]),
        peers: vec![
            ucx::side("UCX active messages", "ucp_am_lat", 32, Unit::Nanoseconds, 1.0),
            ucx::side("UCX tags", "tag_lat", 32, Unit::Nanoseconds, 1.0),
        ],
    });
    contests.push(Contest {
        title: "shm, 8 MB, bandwidth".into(),
        unit: Unit::GigabitPerSecond,
        ours: ours("bandwidth", "shm", &["--size", "8M"]),
        peers: vec![ucx::side("UCX active messages, one way", "ucp_am_bw", 8 << 20, Unit::GigabitPerSecond, 1.0)],
    });
    contests.push(Contest {
        title: "udp beside tcp, 32 B, round trip, p50".into(),
        unit: Unit::Nanoseconds,
        ours: ours("latency", "udp", &["--size", "32"]),
        peers: rust::sides("latency", &["--size", "32"], Unit::Nanoseconds),
    });
    for window in ["64", "256"] {
        contests.push(Contest {
            title: format!("udp beside tcp, 32 B, rate, {window} in flight"),
            unit: Unit::MillionPerSecond,
            ours: ours("rate", "udp", &["--size", "32", "--batch", "8", "--window", window]),
            peers: rust::sides("rate", &["--size", "32", "--window", window], Unit::MillionPerSecond),
        });
    }
    contests.push(Contest {
        title: "udp beside tcp, 8 MB, bandwidth".into(),
        unit: Unit::GigabitPerSecond,
        ours: ours("bandwidth", "udp", &["--size", "8M"]),
        peers: rust::sides("bandwidth", &["--size", "8388608", "--window", "2"], Unit::GigabitPerSecond),
    });
    contests.extend(block::contests());
    contests.extend(index::contests());
    contests.extend(replica::contests());
    contests.extend(tables::contests());
    contests
}

/// This system's own side, measured by the `sinew` command.
fn ours(what: &'static str, fabric: &str, args: &[&str]) -> Side {
    let mut words: Vec<String> = ["rpc", "bench", what, "--fabric", fabric].map(str::to_owned).into();
    words.extend(args.iter().map(|&word| word.to_owned()));
    let measure = move |setting: &Setting| {
        let mut command = Command::new(process::target_dir().join("release/sinew"));
        command.args(&words).args(["--seconds", &setting.seconds.to_string(), "--json"]);
        command.stdin(std::process::Stdio::null());
        figure(&process::output(&mut command)?, "figure")
    };
    Side { system: "sinew", name: "sinew".into(), counts: 1.0, measure: Runner::new(measure) }
}

/// Returns the figure under `key` in the JSON object that a program wrote.
fn figure(output: &str, key: &str) -> anyhow::Result<f64> {
    let start = output.find('{').with_context(|| format!("no JSON object in: {output}"))?;
    let object: Value = serde_json::from_str(output[start..].trim())?;
    object[key].as_f64().with_context(|| format!("no number `{key}` in: {object}"))
}

/// A contest's figures.
struct Outcome {
    what: String,
    unit: Unit,
    ours: Spread,
    peers: Vec<(String, Spread, Spread)>,
}

/// Runs the sides in turn. Each repetition begins with another side, so that none always follows the same one.
fn measure(contest: &Contest, repeats: usize, setting: &Setting) -> anyhow::Result<Outcome> {
    let sides: Vec<&Side> = std::iter::once(&contest.ours).chain(&contest.peers).collect();
    let mut figures = vec![Vec::new(); sides.len()];
    for repeat in 0..repeats {
        for turn in 0..sides.len() {
            let side = (repeat + turn) % sides.len();
            let figure = sides[side].measure.run(setting).with_context(|| sides[side].name.clone())?;
            setting.say(&format!("  {}: {}", sides[side].name, contest.unit.show(figure)));
            figures[side].push(figure);
        }
    }
    let peers = contest.peers.iter().zip(&figures[1..]).map(|(peer, theirs)| {
        let pairs = figures[0].iter().zip(theirs);
        let ratios: Vec<f64> = pairs.map(|(&ours, &theirs)| contest.unit.ratio(ours * peer.counts, theirs)).collect();
        (peer.name.clone(), Spread::of(theirs), Spread::of(&ratios))
    });
    Ok(Outcome {
        what: contest.title.clone(),
        unit: contest.unit,
        ours: Spread::of(&figures[0]),
        peers: peers.collect(),
    })
}

impl Outcome {
    fn to_json(&self) -> Value {
        let peers = self
            .peers
            .iter()
            .map(|(name, figure, ratio)| json!({ "peer": name, "figure": figure.to_json(), "ratio": ratio.to_json() }));
        json!({
            "what": self.what, "unit": self.unit.name(), "ours": self.ours.to_json(),
            "peers": peers.collect::<Vec<_>>(),
        })
    }
}

fn table(outcomes: &[Outcome]) -> String {
    let mut rows = vec![["what", "system", "median (spread)", "sinew is better by (spread)"].map(str::to_owned)];
    for outcome in outcomes {
        let show = |spread: &Spread| spread.show(|figure| outcome.unit.show(figure));
        rows.push([outcome.what.clone(), "sinew".into(), show(&outcome.ours), String::new()]);
        for (name, figure, ratio) in &outcome.peers {
            rows.push([String::new(), name.clone(), show(figure), ratio.show(|ratio| format!("{ratio:.2}x"))]);
        }
    }
    let widths: Vec<usize> = (0..4).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 4]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(system: &'static str, counts: f64, figure: f64) -> Side {
        Side { system, name: system.into(), counts, measure: Runner::new(move |_: &Setting| Ok(figure)) }
    }

    fn setting() -> Setting {
        Setting { seconds: 0.0, cores: [0, 1], ucx_tls: String::new(), progress: false }
    }

    #[test]
    fn a_ratio_above_one_means_better_for_rates_and_for_times() {
        let mut contest = Contest {
            title: "rate".into(),
            unit: Unit::MillionPerSecond,
            ours: side("sinew", 1.0, 12.0),
            peers: vec![side("ucx", 2.0, 16.0)],
        };
        let outcome = measure(&contest, 3, &setting()).unwrap();
        assert_eq!(outcome.peers[0].2, Spread::of(&[1.5; 3]), "a call counts as two messages");
        contest.unit = Unit::Nanoseconds;
        contest.peers[0].counts = 1.0;
        let outcome = measure(&contest, 3, &setting()).unwrap();
        assert_eq!(outcome.peers[0].2.median, 16.0 / 12.0);
    }

    #[test]
    fn a_table_has_a_row_for_each_side() {
        let contest = Contest {
            title: "round trip".into(),
            unit: Unit::Nanoseconds,
            ours: side("sinew", 1.0, 300.0),
            peers: vec![side("ucx", 1.0, 240.0)],
        };
        let text = table(&[measure(&contest, 3, &setting()).unwrap()]);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("300 ns") && text.contains("0.80x"), "{text}");
    }

    #[test]
    fn figures_are_found_in_an_object_after_other_lines() {
        assert_eq!(figure("note\n{ \"p50_ns\": 250 }\n", "p50_ns").unwrap(), 250.0);
        assert!(figure("{ \"p50_ns\": 250 }", "gbps").is_err());
        assert!(figure("no server", "gbps").is_err());
    }
}
