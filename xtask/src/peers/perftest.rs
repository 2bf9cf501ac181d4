//! `cargo xtask perftest`: perftest (`ib_send_bw` and so on) and `sinew verbs` on the same RDMA device, in turn.
//!
//! Few machines have one, so the measurement runs in the guest, all of it in one boot. Both sides are two processes, a
//! client on the first processor and a server on the second, with the same settings: one queue pair, and 128 requests
//! in flight, of which one in 100 is signaled, with a doorbell for each. Latencies are measured with one request at a
//! time, inline as perftest sends short messages.

use std::net::TcpListener;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::contest::{Contest, Runner, Side, Unit};
use super::{REPEATS_MIN, Server, Setting, busy_cores, figure, measure, print};
use crate::{guest, process};

const OPS: [&str; 3] = ["send", "write", "read"];
/// Time that a server of perftest may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests of the short run that tells how many fill the time, and fewest requests of a measurement.
const CALIBRATION_REQUESTS: u64 = 100;
/// Requests in flight, and requests for each signaled one: perftest's own defaults.
const WINDOW: &str = "128";
const SIGNAL: &str = "100";
/// Longest message, in bytes, that perftest sends inline by default when it measures latency.
const INLINE_LATENCY_MAX: usize = 220;
/// Most seconds that a measurement takes beside its own, on a busy emulated machine.
const OVERHEAD_MAX_S: u64 = 20;

/// Arguments of `cargo xtask perftest`.
#[derive(clap::Args)]
pub struct Args {
    /// Length of each single measurement, in seconds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..))]
    seconds: u32,
    /// Measurements of each side; at least 3.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Bytes of a message.
    #[arg(long, default_value_t = 32)]
    size: usize,
    /// Only these operations (may be given more than once).
    #[arg(long, value_parser = OPS)]
    op: Vec<String>,
    /// Measure a device of this machine, such as mlx5_0, instead of the guest's.
    #[arg(long)]
    device: Option<String>,
    /// Index of the device's address (GID).
    #[arg(long, default_value_t = 1)]
    gid_index: u8,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Measures all contests and prints the results.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(args.repeats >= REPEATS_MIN, "--repeats {}: a median needs at least {REPEATS_MIN}", args.repeats);
    let Some(device) = &args.device else { return in_guest(args) };
    for op in OPS {
        let program = format!("ib_{op}_bw");
        // It prints its version and ends with a status that means nothing; only its start is checked.
        let mut version = Command::new(&program);
        version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        version.status().with_context(|| format!("there is no {program}: apt-get install perftest"))?;
    }
    let load = busy_cores();
    // The client runs on the first processor, as with `sinew verbs`.
    let setting =
        Setting { seconds: f64::from(args.seconds), cores: [1, 0], ucx_tls: String::new(), progress: !args.json };
    let mut results = Vec::new();
    for contest in contests(args, device) {
        setting.say(&contest.title);
        results.push(measure(&contest, args.repeats, &setting).with_context(|| contest.title.clone())?);
    }
    print(&results, &[], load, args.json);
    Ok(ExitCode::SUCCESS)
}

/// Operations that were asked for; all by default.
fn ops(args: &Args) -> impl Iterator<Item = &'static str> {
    OPS.into_iter().filter(|op| args.op.is_empty() || args.op.iter().any(|wanted| wanted == op))
}

/// Builds here, and measures in the guest.
fn in_guest(args: &Args) -> anyhow::Result<ExitCode> {
    process::run(process::cargo().args(["build", "--release", "--quiet", "--package", "sinew-cli"]))?;
    let program = std::env::current_exe().context("finding this program, to run it in the guest")?;
    let mut command = vec![program.into_os_string(), "perftest".into(), "--device".into(), "rxe0".into()];
    let mut option = |name: &str, value: String| command.extend([name.into(), value.into()]);
    option("--seconds", args.seconds.to_string());
    option("--repeats", args.repeats.to_string());
    option("--size", args.size.to_string());
    option("--gid-index", args.gid_index.to_string());
    ops(args).for_each(|op| option("--op", op.to_owned()));
    if args.json {
        command.push("--json".into());
    }
    let measurements = (ops(args).count() * 2 * 2 * args.repeats) as u64;
    guest::run(&guest::Args::new(command, measurements * (2 * u64::from(args.seconds) + OVERHEAD_MAX_S)))
}

/// Contests of the operations. A ratio above 1 means that this system is the better one.
fn contests(args: &Args, device: &str) -> Vec<Contest> {
    let contest = |op: &'static str, unit: Unit| Contest {
        title: format!(
            "{op}, rc, {} B, {}",
            args.size,
            if unit == Unit::Nanoseconds { "latency, median" } else { "rate" }
        ),
        unit,
        ours: ours(args, op, unit, device),
        peers: vec![theirs(args, op, unit, device)],
    };
    ops(args).flat_map(|op| [contest(op, Unit::MillionPerSecond), contest(op, Unit::Nanoseconds)]).collect()
}

fn ours(args: &Args, op: &'static str, unit: Unit, device: &str) -> Side {
    let what = if unit == Unit::Nanoseconds { "lat" } else { "rate" };
    let device = format!("{device}?gid={}", args.gid_index);
    let mut words =
        ["verbs", what, "--fabric", "ibverbs", "--op", op, "--json", "--device"].map(str::to_owned).to_vec();
    words.extend([device, "--size".to_owned(), args.size.to_string()]);
    if unit != Unit::Nanoseconds {
        words.extend(["--window", WINDOW, "--signal", SIGNAL, "--doorbell", "1"].map(str::to_owned));
    } else if op != "read" && args.size <= INLINE_LATENCY_MAX {
        words.push("--inline".to_owned());
    }
    let run = move |setting: &Setting| {
        let mut command = Command::new(process::target_dir().join("release/sinew"));
        command.args(&words).args(["--seconds", &setting.seconds.to_string()]).stdin(Stdio::null());
        figure(&process::output(&mut command)?, "figure")
    };
    Side { system: "sinew", name: "sinew".into(), counts: 1.0, measure: Runner::new(run) }
}

fn theirs(args: &Args, op: &'static str, unit: Unit, device: &str) -> Side {
    let program = format!("ib_{op}_{}", if unit == Unit::Nanoseconds { "lat" } else { "bw" });
    let name = program.clone();
    let mut words = ["-F", "-d", device, "-x"].map(str::to_owned).to_vec();
    words.extend([args.gid_index.to_string(), "-s".to_owned(), args.size.to_string()]);
    let run = move |setting: &Setting| {
        let timed =
            |more: &[&str]| perftest(&program, &[&words, &more.iter().map(|&word| word.into()).collect()], setting);
        if unit != Unit::Nanoseconds {
            let seconds = format!("{}", setting.seconds);
            // perftest leaves out the first and the last second.
            return column(&timed(&["-t", WINDOW, "-Q", SIGNAL, "-D", &seconds, "-f", "1"])?, "MsgRate[Mpps]");
        }
        // With a duration, perftest prints no median. So a short run tells how many requests fill the time.
        let few_us = column(&timed(&["-n", &CALIBRATION_REQUESTS.to_string()])?, "t_avg[usec]")?;
        let round_trips = if op == "read" { 1.0 } else { 2.0 };
        let count = (setting.seconds * 1e6 / (few_us * round_trips)) as u64;
        Ok(column(&timed(&["-n", &count.max(CALIBRATION_REQUESTS).to_string()])?, "t_typical[usec]")? * 1e3)
    };
    Side { system: "perftest", name, counts: 1.0, measure: Runner::new(run) }
}

/// Runs one of perftest's programs as server and as client, and returns the client's output.
fn perftest(program: &str, words: &[&Vec<String>; 2], setting: &Setting) -> anyhow::Result<String> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let [server_core, client_core] = setting.cores;
    let command = |core: usize| {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), program, "-p", &port]).args(words.iter().copied().flatten());
        command.stdin(Stdio::null());
        command
    };
    let server = Server(command(server_core).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let started = Instant::now();
    loop {
        let mut client = command(client_core);
        let output = client.arg("127.0.0.1").output().context("cannot start taskset (util-linux)")?;
        if output.status.success() {
            drop(server);
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        if started.elapsed() > START_TIMEOUT {
            bail!("{}: {}", process::show(&client), String::from_utf8_lossy(&output.stderr).trim());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the figure under a title in a table that perftest wrote.
fn column(table: &str, title: &str) -> anyhow::Result<f64> {
    let mut lines = table.lines().map(str::trim).skip_while(|line| !line.starts_with("#bytes"));
    let header = lines.next().with_context(|| format!("no table in: {table}"))?;
    // Titles of bandwidths and of percentiles hold a space.
    let titles: Vec<String> = header
        .replace("BW ", "BW_")
        .replace("% percentile", "%_percentile")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let row = lines.find(|line| line.starts_with(|char: char| char.is_ascii_digit()));
    let row: Vec<&str> = row.with_context(|| format!("no figures in: {table}"))?.split_whitespace().collect();
    let place = titles.iter().position(|known| known == title).with_context(|| format!("no `{title}` in: {header}"))?;
    let cell = row.get(place).with_context(|| format!("no `{title}` in: {table}"))?;
    cell.parse().with_context(|| format!("`{title}` is `{cell}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_titles() {
        let bandwidth = "---\n Send BW Test\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
             32         12100            0.00               0.12   \t\t   0.004033\n---\n";
        assert_eq!(column(bandwidth, "MsgRate[Mpps]").unwrap(), 0.004033);
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
             99% percentile[usec]   99.9% percentile[usec] \n 32      100          41.10          9510.26      60.33  \t 200.13 \
             \t400.00\t\t1000.00\t\t9510.26\n";
        assert_eq!(column(latency, "t_typical[usec]").unwrap(), 60.33);
        assert_eq!(column(latency, "99.9%_percentile[usec]").unwrap(), 9510.26);
        assert!(column(latency, "MsgRate[Mpps]").is_err());
        assert!(column("Couldn't connect\n", "t_avg[usec]").is_err());
        assert!(column(" #bytes MsgRate[Mpps]\n", "MsgRate[Mpps]").is_err());
    }
}
