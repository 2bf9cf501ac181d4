//! UCX's own benchmark over shared memory (Debian: ucx-utils).

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::contest::{Runner, Side, Unit};
use super::{Server, Setting};
use crate::process;

const PROGRAM: &str = "ucx_perftest";

/// Time that its server may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Fails, with a remedy, unless UCX's benchmark is installed.
pub fn present() -> Result<(), String> {
    let found =
        Command::new(PROGRAM).arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.map(|_| ()).map_err(|_| format!("there is no {PROGRAM}: apt-get install ucx-utils"))
}

/// Returns one of UCX's tests as a side.
pub fn side(name: &str, test: &'static str, size: usize, unit: Unit, counts: f64) -> Side {
    Side {
        system: "ucx",
        name: name.into(),
        counts,
        measure: Runner::new(move |setting: &Setting| measure(test, size, unit, setting)),
    }
}

/// Runs a test. UCX counts iterations, not seconds, so a short run tells how many fill the time.
fn measure(test: &str, size: usize, unit: Unit, setting: &Setting) -> anyhow::Result<f64> {
    let few = if size > 1 << 16 { 200 } else { 200_000 };
    let rate = column(&run(test, size, few, setting)?, "overall_mr")?;
    let iterations = (rate * setting.seconds) as u64;
    let output = run(test, size, iterations.max(few), setting)?;
    Ok(match unit {
        Unit::MillionPerSecond => column(&output, "overall_mr")? / 1e6,
        // UCX prints half of a round trip, in microseconds.
        Unit::Nanoseconds => column(&output, "50.0_percentile_lat")? * 2.0 * 1e3,
        // UCX's MB are 2^20 bytes.
        Unit::GigabitPerSecond => column(&output, "overall_bw")? * f64::from(1 << 20) * 8.0 / 1e9,
        other => bail!("UCX has no figure in {}", other.name()),
    })
}

fn run(test: &str, size: usize, iterations: u64, setting: &Setting) -> anyhow::Result<String> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let [server_core, client_core] = setting.cores;
    let command = |core: usize| {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), PROGRAM, "-p", &port]).env("UCX_TLS", &setting.ucx_tls);
        command.stdin(Stdio::null());
        command
    };
    let server = Server(command(server_core).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let started = Instant::now();
    loop {
        let mut client = command(client_core);
        client.args(["127.0.0.1", "-t", test, "-s", &size.to_string(), "-n", &iterations.to_string()]);
        client.args(["-w", &(iterations / 10).clamp(1, 10_000).to_string(), "-f", "-v"]);
        let output = client.output().context("cannot start taskset (util-linux)")?;
        if output.status.success() {
            drop(server);
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        if started.elapsed() > START_TIMEOUT {
            bail!("{}: {}", process::show(&client), String::from_utf8_lossy(&output.stderr).trim());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a column of the last row of a CSV text.
fn column(csv: &str, name: &str) -> anyhow::Result<f64> {
    let mut lines = csv.lines().filter(|line| line.contains(',') && !line.starts_with(['|', '+', '#']));
    let header = lines.next().with_context(|| format!("{PROGRAM} wrote no table: {csv}"))?;
    let row = lines.next_back().with_context(|| format!("{PROGRAM} wrote no figures: {csv}"))?;
    let place = header.split(',').position(|title| title.trim() == name);
    let cell = place.and_then(|place| row.split(',').nth(place));
    let cell = cell.with_context(|| format!("{PROGRAM} wrote no column {name}: {csv}"))?;
    cell.trim().parse().with_context(|| format!("{PROGRAM}: {name} is not a number: {cell}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let csv = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            500000,0.252,0.269,0.269,113.42,113.42,3716671,3716672\n";
        assert_eq!(column(csv, "50.0_percentile_lat").unwrap(), 0.252);
        assert_eq!(column(csv, "overall_mr").unwrap(), 3_716_672.0);
        assert!(column(csv, "p99").is_err());
        assert!(column("connect failed\n", "overall_mr").is_err());
    }
}
