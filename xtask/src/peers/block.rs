//! Block devices: `sinew serve block` and nbdkit's memory with the same client, and a server that answers from one
//! constant buffer, which shows what the sockets themselves allow.
//!
//! All run over a Unix socket, the server on the first of the two cores and the client on the second.

mod client;
mod constant;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::contest::{Contest, Runner, Side, Unit};
use super::{Server, Setting, pin};
use crate::process;
use client::Load;

/// Bytes of each device.
const DEVICE: u64 = 256 << 20;
/// Time that a server may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Fails, with a remedy, unless nbdkit is installed.
pub fn present() -> Result<(), String> {
    let mut version = Command::new("nbdkit");
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let remedy = "there is no nbdkit: apt-get install nbdkit";
    version.status().ok().filter(std::process::ExitStatus::success).map(drop).ok_or_else(|| remedy.to_owned())
}

/// Contests between block devices.
pub fn contests() -> Vec<Contest> {
    let contest = |what: &str, unit: Unit, load: Load| Contest {
        title: format!("NBD over a Unix socket, {what}"),
        unit,
        ours: side("sinew", "sinew", load, unit, |path, _| {
            let mut command = Command::new(process::target_dir().join("release/sinew"));
            command.args(["serve", "block", "--memory", &DEVICE.to_string(), "--at"]);
            command.arg(format!("unix:{}", path.display()));
            command
        }),
        peers: vec![
            side("nbdkit", "nbdkit memory", load, unit, |path, _| {
                let mut command = Command::new("nbdkit");
                command.args(["-f", "-U"]).arg(path).args(["memory", &DEVICE.to_string()]);
                command
            }),
            constant_side(load, unit),
        ],
    };
    let load = |len: u32, depth: usize| Load { len, depth };
    vec![
        contest("4 KB reads, one at a time, p50", Unit::Nanoseconds, load(4096, 1)),
        contest("4 KB reads, 32 in flight", Unit::MillionPerSecond, load(4096, 32)),
        contest("1 MB reads, 8 in flight", Unit::GigabitPerSecond, load(1 << 20, 8)),
    ]
}

fn side(
    system: &'static str,
    name: &str,
    load: Load,
    unit: Unit,
    command: impl Fn(&Path, &Setting) -> Command + 'static,
) -> Side {
    let measure = move |setting: &Setting| {
        let path = socket();
        let pinned = command(&path, setting);
        let mut taskset = Command::new("taskset");
        taskset.args(["-c", &setting.cores[0].to_string()]).arg(pinned.get_program()).args(pinned.get_args());
        let server = taskset.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = Server(server.context("starting a server: it and taskset must be installed")?);
        let figure = measure_at(&path, load, unit, setting, true);
        drop(server);
        let _ = std::fs::remove_file(&path);
        figure
    };
    Side { system, name: name.into(), counts: 1.0, measure: Runner::new(measure) }
}

fn constant_side(load: Load, unit: Unit) -> Side {
    let measure = move |setting: &Setting| {
        let path = socket();
        let server = constant::Constant::start(&path, load.len as usize, setting.cores[0])?;
        let figure = measure_at(&path, load, unit, setting, false);
        drop(server);
        let _ = std::fs::remove_file(&path);
        figure
    };
    Side { system: "nbdkit", name: "one constant buffer".into(), counts: 1.0, measure: Runner::new(measure) }
}

fn socket() -> PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::env::temp_dir().join(format!("sinew-peers-{}-{number}", std::process::id()))
}

/// Returns the client's figure; the client runs on a core of its own. `is_stored` says that the device keeps what is
/// written: it is filled first, and reads are checked.
fn measure_at(path: &Path, load: Load, unit: Unit, setting: &Setting, is_stored: bool) -> anyhow::Result<f64> {
    let began = Instant::now();
    let socket = loop {
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(socket) => break socket,
            Err(_) if began.elapsed() < START_TIMEOUT => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error).with_context(|| format!("connecting to {}", path.display())),
        }
    };
    let (seconds, core) = (Duration::from_secs_f64(setting.seconds), setting.cores[1]);
    let measured = std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            pin(core)?;
            client::run(socket, load, DEVICE, seconds, is_stored)
        });
        client.join().unwrap_or_else(|_| bail!("the client panicked"))
    })?;
    Ok(match unit {
        Unit::Nanoseconds => measured.p50_ns,
        Unit::MillionPerSecond => measured.rate / 1e6,
        Unit::GigabitPerSecond => measured.rate * f64::from(load.len) * 8.0 / 1e9,
        other => bail!("a block device has no figure in {}", other.name()),
    })
}
