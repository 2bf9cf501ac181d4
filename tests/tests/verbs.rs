//! `sinew verbs`: its figures and exit statuses, and what it leaves behind.

mod common;
#[path = "common/crowd.rs"]
mod crowd;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use common::{Folder, Process, children, eventually, is_alive, sinew, text};
use crowd::Crowd;
use rustix::process::Signal;
use serde_json::Value;

const SHORT: [&str; 3] = ["--seconds", "0.05", "--json"];

/// Runs a command while no other of these tests runs one: measurements spin on two processors.
fn run(command: &mut Command) -> Output {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    common::run(command)
}

/// Runs a measurement whose number at `place` must be above zero; runs it for longer if a starved machine saw nothing.
fn measure(args: &str, place: &str) -> Value {
    for seconds in ["0.05", "1", "10"] {
        let args: Vec<&str> = ["verbs"].into_iter().chain(args.split_whitespace()).collect();
        let output = run(sinew(&args).args(["--seconds", seconds, "--json"]));
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        sinew_harness::figure::check(&result).unwrap_or_else(|error| panic!("{error}: {result}"));
        if result.pointer(place).and_then(Value::as_f64) > Some(0.0) {
            assert!(result["details"]["checked"].as_u64() > Some(0), "{result}");
            return result;
        }
    }
    panic!("{args}: nothing at {place} in 10 s");
}

fn number(object: &Value, place: &str) -> f64 {
    object.pointer(place).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {place} in {object}"))
}

#[test]
fn every_operation_is_measured_on_every_transport_that_carries_it() {
    for (op, transports) in [
        ("send", &["rc", "uc", "ud"][..]),
        ("write", &["rc", "uc"]),
        ("write-imm", &["rc", "uc"]),
        ("read", &["rc"]),
        ("fetch-add", &["rc"]),
        ("compare-swap", &["rc"]),
    ] {
        for transport in ["rc", "uc", "ud"] {
            let args = format!("rate --op {op} --transport {transport} --window 16 --doorbell 4");
            if transports.contains(&transport) {
                let result = measure(&args, "/figure");
                let setup = &result["setup"];
                assert_eq!((&setup["op"], &setup["transport"]), (&op.into(), &transport.into()));
                let ratio = number(&result, "/figure") / number(&result, "/limit");
                assert!((ratio - number(&result, "/ratio")).abs() < 0.01 * ratio + 0.001, "{result}");
            } else {
                let args: Vec<&str> = ["verbs"].into_iter().chain(args.split_whitespace()).collect();
                let output = run(&mut sinew(&args));
                assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
                assert!(text(&output.stderr).contains("Table 1 of atc16"), "{}", text(&output.stderr));
            }
        }
    }
}

#[test]
fn of_writes_no_more_count_as_checked_than_are_looked_at() {
    for (args, counted) in [
        ("--op write --transport rc", "arrived"),
        ("--op write --transport uc", "left"),
        ("--op write-imm --transport uc", "arrived"),
    ] {
        let result = measure(&format!("rate {args} --window 16"), "/details/total_mops");
        // WRITEs are checked before the first slice and after each of ten slices of each attempt: the last WRITE in
        // each of the 16 places.
        let slices = 10.0 * number(&result, "/surroundings/attempts") + 1.0;
        assert!(number(&result, "/details/checked") <= slices * 16.0, "{result}");
        assert!(number(&result, "/figure") * number(&result, "/setup/seconds") * 1e6 > 1000.0, "{result}");
        assert_eq!(result["details"]["counted"], counted, "{result}");
    }
}

#[test]
fn bandwidth_is_given_as_perftest_does() {
    for op in ["send", "write", "read"] {
        let result = measure(&format!("bw --op {op} --size 16K --window 8"), "/figure");
        let bytes_per_s = number(&result, "/details/rate_mops") * 1e6 * 16384.0;
        assert!((number(&result, "/details/mb_per_s") * 1_048_576.0 / bytes_per_s - 1.0).abs() < 0.01, "{result}");
        assert!((number(&result, "/figure") * 1e9 / 8.0 / bytes_per_s - 1.0).abs() < 0.01, "{result}");
    }
}

#[test]
fn latencies_have_percentiles_in_order() {
    for op in ["send", "write", "write-imm", "read", "fetch-add", "compare-swap"] {
        let result = measure(&format!("lat --op {op}"), "/figure");
        let figures = ["min_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"];
        assert!(figures.map(|key| number(&result, &format!("/percentiles/{key}"))).is_sorted(), "{result}");
        assert_eq!((&result["setup"]["op"], &result["unit"]), (&op.into(), &"ns".into()));
    }
}

#[test]
fn echoes_go_in_every_form_one_by_one_and_many_at_a_time() {
    for (form, transports) in [("ww", ["rc", "uc"]), ("ws", ["rc", "uc"]), ("ss", ["uc", "ud"]), ("imm", ["rc", "uc"])]
    {
        for transport in transports {
            let result = measure(&format!("echo --form {form} --transport {transport} --size 33"), "/figure");
            assert_eq!((&result["setup"]["op"], &result["setup"]["window"]), (&form.into(), &1.into()));
            let result = measure(&format!("echo --form {form} --transport {transport} --window 7 --qps 2"), "/figure");
            assert!(number(&result, "/percentiles/min_ns") <= number(&result, "/percentiles/max_ns"), "{result}");
        }
    }
}

#[test]
fn requests_may_be_inline_long_signaled_each_or_of_a_header_alone() {
    for args in [
        "rate --op write --inline --signal 1 --doorbell 1",
        "rate --op write --size 1 --signal 16 --window 16 --doorbell 16",
        "rate --op send --header-only --transport ud",
        "rate --op send --header-only",
        "rate --op send --size 5 --transport uc --inline",
        "rate --op write-imm --inline --wait events",
        "rate --op write-imm --transport UC --size 4K --tx-depth 32 --cq-mod 8 --post-list 4 --qp 2",
        "rate --op read --qps 3 --wait events",
        "lat --op send --wait events",
        "lat --op send --header-only",
        "lat --op send --transport ud --header-only --no-pin",
        "lat --op write-imm --transport uc --size 5000 --events",
        "rate --op send --transport ud --wait adaptive",
        "rate --op send --transport uc --wait events",
        "echo --form ss --no-inline --window 4 --size 3000",
        "echo --form ss --transport rc --size 4M",
        "echo --form ww --no-inline",
    ] {
        let is_time = ["lat", "echo --form ww", "echo --form ss --transport"].iter().any(|&one| args.starts_with(one));
        let result = measure(args, "/figure");
        assert_eq!(result["unit"], if is_time { "ns" } else { "Mops" });
        assert_eq!(result["setup"]["header_only"], args.contains("header-only"));
        assert_eq!(result["details"]["lost"], 0, "{result}");
    }
}

#[test]
fn threads_work_in_pairs_many_to_one_one_to_many_and_all_with_all() {
    for (shape, clients) in [("", 2.0), ("--inbound", 2.0), ("--outbound", 1.0), ("--all-to-all", 2.0)] {
        for op in ["send --transport ud", "write"] {
            let result = measure(&format!("rate --op {op} --threads 2 {shape}"), "/figure");
            let total = number(&result, "/figure") * clients;
            assert!((number(&result, "/details/total_mops") / total - 1.0).abs() < 0.01, "{result}");
        }
        measure(&format!("echo --form ws --threads 2 --window 4 {shape}"), "/figure");
    }
}

#[test]
fn an_object_may_take_several_reads_one_after_the_other() {
    for reads in ["2", "3", "4"] {
        for args in ["rate --window 16 --qps 2", "bw --size 4K --signal 16 --window 16", "lat --size 5"] {
            let result = measure(&format!("{args} --op read --read-intr {reads}"), "/figure");
            assert_eq!(
                (&result["setup"]["reads"].to_string()[..], &result["setup"]["wait"]),
                (reads, &"events".into()),
                "{result}"
            );
        }
    }
    let result = measure("rate --op read --read-intr 2 --wait poll", "/figure");
    assert_eq!(result["setup"]["wait"], "poll");
}

#[test]
fn a_sweep_measures_each_size() {
    let list: Value = serde_json::from_str(&sweep("bw", &["--json"])).unwrap();
    sinew_harness::figure::check(&list).unwrap_or_else(|error| panic!("{error}: {list}"));
    let sizes = list["results"].as_array().unwrap().iter().map(|one| one["setup"]["size"].as_u64().unwrap());
    assert_eq!(sizes.collect::<Vec<_>>(), [8, 16, 32]);
}

/// Returns what a sweep of three sizes prints.
fn sweep(what: &str, more: &[&str]) -> String {
    let output = run(sinew(&["verbs", what, "--op", "write", "--sizes", "8..32", "--seconds", "0.05"]).args(more));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_sweep_is_one_table_of_80_columns() {
    for (what, heads) in [
        ("bw", &["#bytes", "MB/s", "Gbps", "Mmsg/s", "messages", "limit", "ratio"][..]),
        ("rate", &["#bytes", "Mmsg/s", "messages", "limit", "ratio"]),
        ("lat", &["#bytes", "min", "typical", "p99", "p99.9", "max", "limit", "ratio"]),
    ] {
        let shown = sweep(what, &[]);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        let head: Vec<&str> = shown.lines().find(|line| line.contains("#bytes")).unwrap().split_whitespace().collect();
        assert!(head.starts_with(heads), "{shown}");
        let sizes = shown.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
        assert_eq!(sizes.collect::<Vec<u64>>(), [8, 16, 32], "{shown}");
    }
}

#[test]
fn a_sweep_is_told_as_csv_with_a_head_and_plain_numbers() {
    for (what, head) in [
        ("bw", "bytes,mb_per_s,gbps,mops,messages,limit_gbps,ratio,valid"),
        ("rate", "bytes,mops,messages,limit_mops,ratio,valid"),
        ("lat", "bytes,min_ns,p50_ns,p99_ns,p999_ns,max_ns,limit_ns,ratio,valid"),
    ] {
        let csv = sweep(what, &["--csv"]);
        let (first, rows) = csv.split_once('\n').unwrap();
        assert_eq!(first, head);
        let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["8", "16", "32"], "{csv}");
        for row in &rows {
            let (valid, numbers) = row.split_last().unwrap();
            // A figure that could not be measured in the time is an empty cell.
            let is_number = |cell: &&str| cell.is_empty() || cell.parse::<f64>().is_ok();
            assert!(row.len() == head.split(',').count() && numbers.iter().all(is_number), "{csv}");
            assert!(["true", "false"].contains(valid), "{csv}");
        }
    }
}

#[test]
fn wrong_usage_is_told_before_anything_starts() {
    for (args, what) in [
        ("rate --op read --transport uc", "Table 1"),
        ("rate --op read --inline", "--inline"),
        ("rate --op write --header-only", "--header-only"),
        ("rate --op fetch-add --size 32", "8 bytes"),
        ("rate --op write --size 0", "--size 0"),
        ("rate --window 0", "--window"),
        ("rate --window 4 --doorbell 5", "--doorbell"),
        ("rate --window 4 --signal 5", "--signal"),
        ("rate --inbound --outbound", "--outbound"),
        ("rate --threads 1000", "--threads"),
        ("rate --qps 100000", "--qps"),
        ("rate --size 1G", "--size"),
        ("rate --size 32 --sizes 2..4", "--sizes"),
        ("bw --sizes 4..2", "2..64K"),
        ("lat --window 2", "--window"),
        ("lat --op write --header-only", "--header-only"),
        ("lat --op read --header-only", "--header-only"),
        ("lat --op send --header-only --inline", "--inline"),
        ("lat --op read --no-inline", "--no-inline"),
        ("lat --op send --inbound", "--inbound"),
        ("lat --op read --all-to-all", "--all-to-all"),
        ("lat --op read --wait events", "nothing waits"),
        ("lat --op fetch-add --events", "nothing waits"),
        ("echo --size 64M --signal 64", "--signal 64"),
        ("echo --form ss --transport rc --size 1M --signal 16384", "--signal 16384"),
        ("rate --op write --read-intr 2", "--read-intr"),
        ("rate --op read --read-intr 5", "--read-intr 5"),
        ("serve nowhere", "nowhere"),
        ("echo --transport ud", "no WRITE"),
        ("echo --form ww --wait events", "wakes nobody"),
        ("echo --window 8 --fail-if-ratio-above 2", "no limit"),
        ("rate --op send --transport ud --size 1M", "--size 1048576"),
        ("bw --csv", "--sizes"),
        ("bw --sizes 2..4 --csv --json", "--json"),
        ("bw --fail-if-below 1ms", "--fail-if-below"),
        ("rate --device rxe0", "--fabric ibverbs"),
        ("serve --pin 99999", "--pin"),
        ("rate --pin 0", "--pin"),
        ("rate --op pigeon", "pigeon"),
    ] {
        let args: Vec<&str> = ["verbs"].into_iter().chain(args.split_whitespace()).collect();
        let output = run(&mut sinew(&args));
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(what), "{args:?}: no `{what}` in {message}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn devices_are_listed_and_those_that_cannot_be_used_say_why() {
    let output = run(&mut sinew(&["verbs", "devices", "--json"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = result["devices"].as_array().unwrap();
    assert!(devices[0]["fabric"] == "shm" && devices[0]["atomics"] == true, "{result}");
    assert!(devices.iter().all(|device| device["name"].is_string() || device["error"].is_string()), "{result}");
}

/// Starts a server that runs on its own; also returns its address.
fn serve(folder: &Folder) -> (Process, String) {
    let mut process = Process::start(sinew(&["verbs", "serve"]).env("XDG_RUNTIME_DIR", &folder.0));
    let stdout = process.0.stdout.take().unwrap();
    let line = BufReader::new(stdout).lines().next().unwrap().unwrap();
    (process, line.strip_prefix("serving ").unwrap().to_owned())
}

#[test]
fn a_server_serves_one_after_the_other_and_survives_nonsense() {
    let folder = Folder::new();
    let (mut server, address) = serve(&folder);
    for round in 0..2 {
        use std::io::Write;
        let mut other_client = std::net::TcpStream::connect(&address).unwrap();
        other_client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut plan = std::net::TcpStream::connect(&address).unwrap();
        let frame = b"{\"fabric\":\"shm\",\"plan\":{\"mode\":\"load\",\"qps\":1e99}}";
        plan.write_all(b"SNWR\x01\0\0\0").unwrap();
        plan.write_all(&(frame.len() as u32).to_le_bytes()).unwrap();
        plan.write_all(frame).unwrap();
        let args = ["verbs", "rate", "--op", "write", "--address", address.as_str()];
        let output = run(sinew(&args).args(SHORT).env("XDG_RUNTIME_DIR", &folder.0));
        assert!(output.status.success(), "{round}: {}", text(&output.stderr));
    }
    let mut other = sinew(&["verbs", "rate", "--fabric", "shm", "--address", "127.0.0.1:1"]);
    let output = run(other.args(SHORT));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("127.0.0.1:1"), "{}", text(&output.stderr));
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(folder.names(), Vec::<String>::new());
}

/// There are more silent connections than a server measures, or lets wait, at a time; some send part of a word.
#[test]
fn a_crowd_that_says_nothing_keeps_nobody_from_measuring() {
    let folder = Folder::new();
    let (mut server, address) = serve(&folder);
    let crowd = Crowd::at(&address, 200);
    for round in 0..3 {
        let args = ["verbs", "rate", "--op", "write", "--address", address.as_str()];
        let output = run(sinew(&args).args(SHORT).env("XDG_RUNTIME_DIR", &folder.0));
        assert!(output.status.success(), "{round}: {}", text(&output.stderr));
    }
    assert!(crowd.wait_until_shown_out(common::PATIENCE));
    let _later = Crowd::at(&address, 50);
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_measurement_that_is_interrupted_or_killed_leaves_nothing_behind() {
    for (signal, args) in [
        (Signal::INT, &["verbs", "rate", "--seconds", "600"][..]),
        (Signal::TERM, &["verbs", "echo", "--seconds", "600"]),
        (Signal::KILL, &["verbs", "rate", "--op", "send", "--seconds", "600"]),
    ] {
        let folder = Folder::new();
        let mut command = sinew(args);
        let mut bench = Process::start(command.env("XDG_RUNTIME_DIR", &folder.0).stderr(Stdio::null()));
        let mut servers = Vec::new();
        eventually("both sides have names", || {
            servers = children(bench.0.id());
            !servers.is_empty() && folder.names().iter().filter(|name| name.ends_with(".sock")).count() >= 2
        });
        bench.signal(signal);
        let status = bench.wait();
        if signal == Signal::KILL {
            // Its own names are removed by the next process that starts.
            eventually("the server ends with its parent", || !is_alive(servers[0]));
            continue;
        }
        let expected = if signal == Signal::INT { 130 } else { 143 };
        assert_eq!(status.code(), Some(expected), "interrupted is not done");
        assert!(!is_alive(servers[0]));
        assert_eq!(folder.names(), Vec::<String>::new());
    }
}

#[test]
fn thresholds_decide_the_exit_status() {
    let folder = Folder::new();
    let path = folder.0.join("quiet.json");
    // References that a machine always meets; but load from other tests still makes a result invalid.
    let references = r#"{"results":[{"figure":1e18,"details":{"name":"ring_round_trip"}}]}"#;
    std::fs::write(&path, references).unwrap();
    for (threshold, status) in
        [("--fail-if-above", 3), ("--fail-if-below", 0), ("--fail-if-ratio-above", 3), ("--fail-if-ratio-below", 0)]
    {
        let args = ["verbs", "lat", "--op", "read", "--reference", path.to_str().unwrap(), threshold, "0"];
        let output = run(sinew(&args).args(SHORT));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = if result["valid"] == true { status } else { 4 };
        assert_eq!(output.status.code(), Some(expected), "{threshold}: {}", text(&output.stderr));
    }
}

#[test]
fn help_has_examples() {
    for what in ["bw", "rate", "lat", "echo", "serve"] {
        let help = text(&run(&mut sinew(&["verbs", what, "--help"])).stdout);
        assert!(help.contains("Examples:\n  sinew verbs"), "{help}");
    }
}
