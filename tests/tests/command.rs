//! The `sinew` command: its figures, its exit statuses, its messages.

mod common;

use common::{Folder, Process, Server, children, eventually, is_alive, run, sinew, text, unique};
use rustix::process::Signal;
use serde_json::Value;

const SHORT: [&str; 3] = ["--seconds", "0.05", "--json"];

/// Runs a benchmark whose figures under `keys` are above zero. On a machine that is starved a short slice may see nothing: then
/// it runs again, for longer.
fn bench(what: &str, fabric: &str, more: &[&str], keys: &[&str]) -> Value {
    for seconds in ["0.05", "0.3", "2", "10"] {
        let args = ["rpc", "bench", what, "--fabric", fabric, "--seconds", seconds, "--json"];
        let output = run(sinew(&args).args(more));
        assert!(output.status.success(), "{what} {fabric}: {}", text(&output.stderr));
        let result: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)));
        assert!(keys.iter().all(|key| result[key].is_number()), "{keys:?} in {result}");
        if seconds == "10" || keys.iter().all(|key| result[key].as_f64() > Some(0.0)) {
            return result;
        }
    }
    unreachable!("the last try returns")
}

fn positive(object: &Value, key: &str) -> f64 {
    let value = object[key].as_f64().unwrap_or_else(|| panic!("no number `{key}` in {object}"));
    assert!(value > 0.0, "{key} in {object}");
    value
}

#[test]
fn the_quick_tour_visits_every_fabric() {
    let output = run(&mut sinew(&["--quick"]));
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}\n{errors}");
    for part in ["shared memory", "two processes", "two threads", "UDP, IPv4", "UDP, IPv6", "Gbps", "limit", "Next:"] {
        assert!(shown.contains(part), "no `{part}` in\n{shown}");
    }
}

#[test]
fn latency_is_reported_with_percentiles_and_its_limit() {
    for fabric in ["shm", "udp", "hub"] {
        let result = bench("latency", fabric, &[], &["p50_ns", "limit_p50_ns", "ratio"]);
        let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(|key| positive(&result, key));
        assert!(p50 <= p99 && p99 <= p999, "{result}");
        let ratio = p50 / positive(&result, "limit_p50_ns");
        assert!((ratio - positive(&result, "ratio")).abs() < 0.01 * ratio + 0.01, "{result}");
        assert_eq!((&result["fabric"], &result["size"]), (&fabric.into(), &32.into()));
        assert!(result["limit_valid"].is_boolean());
    }
}

#[test]
fn rates_are_reported_beside_their_limit_and_with_the_servers_counters() {
    for fabric in ["shm", "udp", "hub"] {
        let result = bench("rate", fabric, &["--window", "16", "--batch", "4"], &["rate_mops", "limit_mops"]);
        positive(&result, "rate_mops");
        positive(&result, "limit_mops");
        assert!(result["server"]["requests_handled"].as_u64() >= result["calls_checked"].as_u64(), "{result}");
        assert!(result["server"]["dropped"].is_object() && result["client"]["retransmissions"].is_u64());
    }
}

#[test]
fn bandwidth_is_reported_beside_its_limit() {
    for fabric in ["shm", "udp", "hub"] {
        let result = bench("bandwidth", fabric, &["--size", "256K"], &["gbps", "limit_gbps"]);
        positive(&result, "gbps");
        positive(&result, "limit_gbps");
        assert_eq!(result["size"], 256 << 10);
    }
}

#[test]
fn scale_compares_many_sessions_with_few() {
    let result = bench("scale", "shm", &["--sessions", "200"], &["ratio"]);
    positive(&result, "ratio");
    assert_eq!((&result["sessions"], &result["credits"]), (&200.into(), &1.into()));
    assert_eq!(result["server"]["sessions"], 200);
}

#[test]
fn a_server_that_runs_already_is_measured_and_outlives_it() {
    for fabric in ["shm", "udp"] {
        let server = Server::start(fabric);
        for _ in 0..2 {
            let output = run(sinew(&["rpc", "bench", "latency", "--address", &server.address]).args(SHORT));
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        server.wait_until_deserted();
    }
}

#[test]
fn limits_are_one_object_of_numbers() {
    const KEYS: [&str; 5] =
        ["ring_round_trip_ns", "ring_stream_mops", "copy_own_gbps", "clock_read_ns", "udp_bandwidth_gbps"];
    for seconds in ["0.01", "0.1", "2"] {
        let output = run(&mut sinew(&["limits", "--seconds", seconds, "--json"]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let limits: Value = serde_json::from_slice(&output.stdout).unwrap();
        let seen = KEYS.iter().all(|key| limits[key].as_f64() > Some(0.0));
        // A starved machine may see nothing in a short time.
        assert!(seen || seconds != "2", "{limits}");
        if seen {
            return;
        }
    }
}

#[test]
fn limits_takes_the_processors_as_the_benchmarks_do() {
    let output = run(&mut sinew(&["limits", "--seconds", "0.01", "--json", "--pin", "0,0"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(&mut sinew(&["limits", "--seconds", "0.01", "--pin", "0"]));
    assert!(!output.status.success() && text(&output.stderr).contains("--pin 0,1"), "{}", text(&output.stderr));
}

#[test]
fn a_server_without_a_name_is_refused() {
    let output = run(&mut sinew(&["rpc", "serve", "shm://"]));
    assert!(!output.status.success() && text(&output.stderr).contains("shm://NAME"), "{}", text(&output.stderr));
}

#[test]
fn thresholds_decide_the_exit_status() {
    let status = |threshold: &[&str]| {
        let output = run(sinew(&["rpc", "bench", "rate", "--fabric", "hub"]).args(SHORT).args(threshold));
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(status(&["--fail-if-below", "0", "--fail-if-above", "1e9"]).0, Some(0));
    let (code, message) = status(&["--fail-if-below", "1e9"]);
    assert_eq!(code, Some(3));
    assert!(message.contains("rate_mops") && message.contains("below"), "{message}");
    assert_eq!(status(&["--fail-if-above", "0"]).0, Some(3));
}

#[test]
fn wrong_usage_and_failures_have_statuses_of_their_own() {
    for args in [&["rpc", "bench", "rate", "--size", "many"][..], &["rpc", "bench"], &["no-such-command"]] {
        assert_eq!(run(&mut sinew(args)).status.code(), Some(2), "{args:?}");
    }
    let address = format!("shm://{}", unique("nobody"));
    let output = run(sinew(&["rpc", "bench", "latency", "--address", &address]).args(SHORT));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    for part in [address.as_str(), "looked in", "sinew rpc serve"] {
        assert!(message.contains(part), "no `{part}` in {message}");
    }
}

#[test]
fn a_name_that_is_taken_is_refused_with_its_holder() {
    let server = Server::start("shm");
    let output = run(&mut sinew(&["rpc", "serve", &server.address]));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains(&server.address) && message.contains("taken"), "{message}");
    assert!(message.contains(&server.process.0.id().to_string()), "{message}");
}

#[test]
fn help_has_examples_and_exit_statuses() {
    let output = run(&mut sinew(&["--help"]));
    let help = text(&output.stdout);
    assert!(output.status.success() && help.contains("Examples:") && help.contains("Exit status:"), "{help}");
    for what in ["latency", "rate", "bandwidth", "scale"] {
        let help = text(&run(&mut sinew(&["rpc", "bench", what, "--help"])).stdout);
        assert!(help.contains("Example: sinew rpc bench"), "{help}");
    }
}

/// A benchmark that would go on for long, and its server process, once that serves.
fn long_bench(folder: &Folder) -> (Process, u32) {
    let mut command = sinew(&["rpc", "bench", "latency", "--fabric", "shm", "--seconds", "600", "--block"]);
    let bench = Process::start(command.env("XDG_RUNTIME_DIR", &folder.0));
    let mut servers = Vec::new();
    eventually("the benchmark's server serves", || {
        servers = children(bench.0.id());
        !servers.is_empty() && folder.names().iter().any(|name| name.ends_with(".sock"))
    });
    (bench, servers[0])
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = Folder::new();
        let (mut bench, server) = long_bench(&folder);
        bench.signal(signal);
        assert_eq!(bench.wait().code(), Some(1), "interrupted is not done");
        assert!(!is_alive(server));
        assert_eq!(folder.names(), Vec::<String>::new());
    }
}

#[test]
fn a_benchmark_that_is_killed_takes_its_server_with_it() {
    let folder = Folder::new();
    let (mut bench, server) = long_bench(&folder);
    bench.signal(Signal::KILL);
    bench.wait();
    eventually("the server ends with its parent", || !is_alive(server));
    assert_eq!(folder.names(), Vec::<String>::new());
}
