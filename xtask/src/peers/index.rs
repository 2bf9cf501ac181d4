//! GETs of an ordered index beside redis, which keeps no order, over sockets, with as many keys and requests in flight.

use std::process::{Command, Stdio};
use std::time::Duration;

use sinew_peers::redis::{self, Client, Gets};
use sinew_peers::{Missing, Place};

use super::contest::{Contest, Runner, Side, Unit};
use super::{Setting, figure};
use crate::process;

const KEYS: u64 = 1_000_000;
/// Requests in flight, and requests sent together.
const WINDOW: usize = 64;
const BATCH: usize = 16;

/// Fails, with a remedy, unless redis is installed.
pub fn present() -> Result<(), String> {
    redis::check().map_err(|missing: Missing| missing.to_string())
}

/// The contest between our index and redis.
pub fn contests() -> Vec<Contest> {
    vec![Contest {
        title: format!("GETs of an ordered index, udp beside redis over tcp, {WINDOW} in flight"),
        unit: Unit::MillionPerSecond,
        ours: Side { system: "sinew", name: "sinew".into(), counts: 1.0, measure: Runner::new(ours) },
        peers: vec![Side { system: "redis", name: "redis".into(), counts: 1.0, measure: Runner::new(of_redis) }],
    }]
}

fn ours(setting: &Setting) -> anyhow::Result<f64> {
    let mut command = Command::new(process::target_dir().join("release/sinew"));
    command.args(["index", "bench", "gets", "--fabric", "udp", "--keys", &KEYS.to_string()]);
    command.args(["--window", &WINDOW.to_string(), "--batch", &BATCH.to_string()]);
    command.args(["--seconds", &setting.seconds.to_string(), "--json"]).stdin(Stdio::null());
    figure(&process::output(&mut command)?, "figure")
}

fn of_redis(setting: &Setting) -> anyhow::Result<f64> {
    let [server, client] = setting.cores;
    let (server, _) = redis::start(Place { cpu: Some(server), unix: false }, None)?;
    // The client is pinned on a thread of its own, which leaves the other cores to later measurements.
    std::thread::scope(|scope| {
        let run = || {
            super::pin(client)?;
            let mut client = Client::connect(&server, Gets { keys: KEYS, window: WINDOW, batch: BATCH })?;
            client.rate_mops(Duration::from_secs_f64(setting.seconds))
        };
        scope.spawn(run).join().unwrap_or_else(|_| anyhow::bail!("the client panicked"))
    })
}
