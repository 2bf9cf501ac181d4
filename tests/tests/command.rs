//! The `sinew` command: its figures, exit statuses and messages.

mod common;

use common::{
    Folder, Process, Server, children, eventually, is_alive, positive, results, run, sinew, status_when_interrupted,
    text, unique,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

const SHORT: [&str; 3] = ["--seconds", "0.05", "--json"];

/// Runs a benchmark whose figures at `places` must be above zero. On a starved machine a short slice may see nothing;
/// then the benchmark runs again, for longer.
fn bench(what: &str, fabric: &str, more: &[&str], places: &[&str]) -> Value {
    for seconds in ["0.05", "0.3", "2", "10"] {
        let args = ["rpc", "bench", what, "--fabric", fabric, "--seconds", seconds, "--json"];
        let result = results(sinew(&args).args(more)).remove(0);
        let number = |place: &&str| result.pointer(place).and_then(Value::as_f64);
        if seconds == "10" || places.iter().all(|place| number(place) > Some(0.0)) {
            return result;
        }
    }
    unreachable!("the last try returns")
}

#[test]
fn the_quick_tour_visits_every_fabric() {
    let output = run(&mut sinew(&["--quick"]));
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}\n{errors}");
    let shown =
        shown.split(|char: char| char.is_whitespace() || char == '┆' || char == '│').filter(|word| !word.is_empty());
    let shown = shown.collect::<Vec<_>>().join(" ");
    for part in [
        "shared memory",
        // The cells of narrow columns are wrapped anywhere.
        "processes",
        "threads",
        "UDP, IPv4",
        "UDP, IPv6",
        "Gbps",
        "limit",
        "RDMA device",
        "rate of write",
        "cache, UDP",
        "cache, memcached's",
        "sequencer",
        "without congestion control",
        "with Swift",
        "Next:",
    ] {
        assert!(shown.contains(part), "no `{part}` in\n{shown}");
    }
}

#[test]
fn the_tour_is_a_list_of_results_and_says_nothing_else_where_nobody_watches() {
    let output = run(&mut sinew(&["--quick", "--json"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tour: Value = serde_json::from_slice(&output.stdout).unwrap();
    sinew_harness::figure::check(&tour).unwrap_or_else(|error| panic!("{error}: {tour}"));
    let benches: Vec<_> =
        tour["results"].as_array().unwrap().iter().filter_map(|result| result["bench"].as_str()).collect();
    for bench in
        ["rpc latency", "rpc rate", "rpc bandwidth", "verbs rate", "verbs lat", "kv rpc", "kv memcached", "seq"]
    {
        assert!(benches.contains(&bench), "no {bench} in {benches:?}");
    }
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn no_line_of_the_tour_is_longer_than_a_terminal_is_wide() {
    let output = run(&mut sinew(&["--quick"]));
    let shown = text(&output.stdout);
    assert_eq!(shown.lines().filter(|line| line.chars().count() > 80).collect::<Vec<_>>(), Vec::<&str>::new());
    assert_eq!(text(&output.stderr), "", "nobody watches its progress");
}

#[test]
fn latency_is_reported_with_percentiles_and_its_limit() {
    for fabric in ["shm", "udp", "hub"] {
        let result = bench("latency", fabric, &[], &["/figure", "/limit", "/ratio"]);
        let percentiles = ["p50_ns", "p99_ns", "p999_ns"].map(|key| positive(&result, &format!("/percentiles/{key}")));
        assert!(percentiles.is_sorted(), "{result}");
        let ratio = positive(&result, "/figure") / positive(&result, "/limit");
        assert!((ratio - positive(&result, "/ratio")).abs() < 0.01 * ratio + 0.01, "{result}");
        let setup = &result["setup"];
        assert_eq!((&setup["fabric"], &setup["size"], &result["unit"]), (&fabric.into(), &32.into(), &"ns".into()));
    }
}

#[test]
fn rates_are_reported_beside_their_limit_and_with_the_servers_counters() {
    for fabric in ["shm", "udp", "hub"] {
        let result = bench("rate", fabric, &["--window", "16", "--batch", "4"], &["/figure", "/limit"]);
        positive(&result, "/figure");
        positive(&result, "/limit");
        let details = &result["details"];
        assert!(details["server"]["requests_handled"].as_u64() >= details["calls_checked"].as_u64(), "{result}");
        assert!(details["server"]["dropped"].is_object() && details["client"]["retransmissions"].is_u64());
    }
}

#[test]
fn bandwidth_is_reported_beside_its_limit() {
    for fabric in ["shm", "udp", "hub"] {
        let result = bench("bandwidth", fabric, &["--size", "256K"], &["/figure", "/limit"]);
        positive(&result, "/figure");
        positive(&result, "/limit");
        assert_eq!((&result["setup"]["size"], &result["unit"]), (&(256 << 10).into(), &"Gbps".into()));
    }
}

#[test]
fn scale_compares_many_sessions_with_few() {
    let result = bench("scale", "shm", &["--sessions", "200"], &["/ratio"]);
    positive(&result, "/ratio");
    assert_eq!((&result["setup"]["sessions"], &result["setup"]["credits"]), (&200.into(), &8.into()));
    assert_eq!((&result["details"]["server"]["sessions"], &result["limit_kind"]), (&200.into(), &"baseline".into()));
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
fn limits_are_a_list_of_results() {
    const NAMES: [&str; 5] = ["ring_round_trip", "ring_stream", "copy_own", "clock_read", "udp_bandwidth"];
    for seconds in ["0.05", "0.5", "5"] {
        let limits = results(&mut sinew(&["limits", "--seconds", seconds, "--json"]));
        let is_seen = |name: &&str| {
            let limit = limits.iter().find(|limit| limit["details"]["name"] == **name);
            limit.and_then(|limit| limit["figure"].as_f64()) > Some(0.0)
        };
        // A starved machine may see nothing in a short time.
        let seen = NAMES.iter().all(is_seen);
        assert!(seen || seconds != "5", "{limits:?}");
        if seen {
            return;
        }
    }
}

#[test]
fn limits_takes_the_processors_as_the_benchmarks_do() {
    let cpu = sinew::host::available_cpus()[0];
    let output = run(&mut sinew(&["limits", "--seconds", "0.01", "--json", "--pin", &format!("{cpu},{cpu}")]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(&mut sinew(&["limits", "--seconds", "0.01", "--pin", &cpu.to_string()]));
    assert!(!output.status.success() && text(&output.stderr).contains("--pin 0,1"), "{}", text(&output.stderr));
}

/// Writes references for a machine: one that is always quiet, or one that is never quiet enough.
fn reference(folder: &Folder, is_met: bool) -> String {
    let limit = |name: &str, met: f64, missed: f64| json!({ "figure": if is_met { met } else { missed }, "details": { "name": name } });
    let limits =
        [limit("ring_round_trip", 1e18, 1e-9), limit("udp_round_trip", 1e18, 1e-9), limit("copy_own", 1e-9, 1e18)];
    let references = json!({ "results": limits });
    let path = folder.0.join(if is_met { "met.json" } else { "missed.json" });
    std::fs::write(&path, references.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the exit status of a benchmark with thresholds, its message about them, and whether its result was valid.
fn judged(what: &str, reference: &str, thresholds: &[&str]) -> (i32, String, bool) {
    let args = ["rpc", "bench", what, "--fabric", "hub", "--reference", reference];
    let output = run(sinew(&args).args(SHORT).args(thresholds));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (output.status.code().unwrap(), text(&output.stderr), result["valid"] == true)
}

#[test]
fn thresholds_decide_the_exit_status_of_every_benchmark() {
    let folder = Folder::new();
    let quiet = reference(&folder, true);
    for what in ["latency", "rate", "bandwidth"] {
        for (thresholds, expected, part) in [
            (&["--fail-if-below", "0", "--fail-if-above", "1e18"][..], 0, ""),
            (&["--fail-if-below", "1e18"], 3, "the figure is"),
            (&["--fail-if-above", "0"], 3, "above 0"),
            (&["--fail-if-ratio-below", "0", "--fail-if-ratio-above", "1e9"], 0, ""),
            (&["--fail-if-ratio-below", "1e9"], 3, "the ratio is"),
            (&["--fail-if-ratio-above", "0"], 3, "above 0"),
        ] {
            let (code, message, is_valid) = judged(what, &quiet, thresholds);
            // Other tests run beside this one, and may make the result invalid.
            let (expected, part) = if is_valid { (expected, part) } else { (4, "INVALID, since") };
            assert!(code == expected && message.contains(part), "{what} {thresholds:?}: {code} {message}");
        }
    }
}

#[test]
fn an_invalid_result_neither_meets_nor_misses_a_threshold() {
    let folder = Folder::new();
    let busy = reference(&folder, false);
    for what in ["latency", "rate", "bandwidth"] {
        assert_eq!(judged(what, &busy, &[]), (0, String::new(), false), "{what}: nothing was asked");
        for thresholds in [["--fail-if-below", "0"], ["--fail-if-below", "1e9"], ["--fail-if-ratio-above", "1e9"]] {
            let (code, message, _) = judged(what, &busy, &thresholds);
            assert!(code == 4 && message.contains("INVALID"), "{what} {thresholds:?}: {code} {message}");
        }
    }
}

#[test]
fn a_limit_is_measured_with_the_size_that_was_asked_for() {
    for (fabric, size) in [("shm", "4K"), ("hub", "1M"), ("udp", "60000")] {
        let result = bench("latency", fabric, &["--size", size], &["/limit", "/ratio"]);
        positive(&result, "/limit");
        positive(&result, "/ratio");
        assert_eq!(result["details"]["limit_size"], result["setup"]["size"], "{fabric} {size}");
    }
    let result = bench("rate", "shm", &["--size", "4K", "--window", "8"], &["/limit"]);
    assert_eq!(result["details"]["limit_size"], 4096);
}

#[test]
fn a_size_for_which_there_is_no_limit_has_no_ratio() {
    let result = bench("latency", "udp", &["--size", "70000"], &["/limit"]);
    assert_eq!((&result["details"]["limit_size"], &result["ratio"]), (&64_976.into(), &Value::Null));
    let args = ["rpc", "bench", "latency", "--fabric", "udp", "--size", "70000", "--seconds", "0.05"];
    let output = run(&mut sinew(&args));
    let shown = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains("of 64976 B"), "{shown}");
    let output = run(sinew(&args).args(["--fail-if-ratio-above", "9"]));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_simulated_cluster_is_the_same_again_from_its_seed() {
    let replay = || {
        let output = run(&mut sinew(&["sim", "replay", "7", "--json"]));
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let report = replay();
    assert_eq!(report, replay());
    assert_eq!(report["ok"], true);
    assert!(report["answered"].as_u64() > Some(0) && report["trace"].is_string(), "{report}");
    let output = run(&mut sinew(&["sim", "swarm", "--seconds", "0.1", "--first", "3", "--threads", "1", "--json"]));
    let hunt: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && hunt["clusters"].as_u64() >= Some(1) && hunt["first_seed"] == 3, "{hunt}");
}

const WORKLOAD: &str = r#"warm_up_ms = 0.1
duration_ms = 0.5
[congestion]
algorithm = "timely"
[[clients]]
name = "bulk"
hosts = { from = "node1", count = 3 }
servers = "node0"
request_bytes = 100_000
response_bytes = 32
window = 2
"#;

#[test]
fn a_workload_has_the_same_report_again_and_plots() {
    let folder = Folder::new();
    let [workload, page] = ["workload.toml", "page.html"].map(|name| folder.0.join(name).display().to_string());
    std::fs::write(&workload, WORKLOAD).unwrap();
    let run_it = |more: &[&str]| {
        let output = run(sinew(&["sim", "run", "cx4", "--workload", &workload]).args(more));
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    let report = run_it(&["--json", "--seed", "7", "--out", &page]);
    assert_eq!(report, run_it(&["--json", "--seed", "7"]));
    assert_ne!(report, run_it(&["--json", "--seed", "8"]));
    let report: Value = serde_json::from_str(&report).unwrap();
    let bulk = &report["groups"][0];
    assert_eq!((&bulk["name"], &bulk["sessions"], &report["seed"]), (&"bulk".into(), &3.into(), &7.into()));
    // Frames take up part of a link of 25 Gbps.
    assert!((10.0..25.0).contains(&positive(bulk, "/goodput_gbps")), "{bulk}");
    assert!(positive(bulk, "/latency/p50_ns") <= positive(bulk, "/latency/p99_ns"));
    assert_eq!(report["queues"][0]["port"], "tor0 to node0");
    let page = std::fs::read_to_string(page).unwrap();
    let queues = report["series"]["queues_bytes"].as_array().unwrap().len();
    assert_eq!(page.matches("<svg").count(), 2 + queues, "goodput, queues, rates");
    assert!(!page.contains("href=") && !page.contains("src="), "it needs nothing beside it");
    let shown = run_it(&[]);
    assert!(["goodput", "bulk", "tor0 to node0", "0 were lost"].iter().all(|part| shown.contains(part)), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[test]
fn a_run_writes_what_happened_when_and_the_packets() {
    let folder = Folder::new();
    let [workload, csv, pcap] = ["workload.toml", "out.csv", "out.pcap"].map(|name| folder.0.join(name));
    let sizes = "request_bytes = { file = \"sizes.txt\" }\nresponse_bytes = 32";
    let faulty = WORKLOAD.replace("request_bytes = 100_000\nresponse_bytes = 32", sizes)
        + "[[faults]]\nlink = [\"node3\", \"tor3\"]\nfrom_ms = 0.3\nuntil_ms = 0.4\n";
    std::fs::write(&workload, faulty).unwrap();
    let run_it = |more: &[&str]| run(sinew(&["sim", "run", "cx4", "--workload"]).arg(&workload).args(more));
    let output = run_it(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("workload.toml: line 9: request_bytes: sizes.txt: No such file"),
        "{output:?}"
    );
    std::fs::write(folder.0.join("sizes.txt"), "1000 50\n50000 100\n").unwrap();
    let [csv_name, pcap_name] = [&csv, &pcap].map(|path| path.display().to_string());
    let output = run_it(&["--csv", &csv_name, "--pcap", &pcap_name, "--pcap-host", "node0", "--pcap-bytes", "64"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("0.3 to 0.4 ms: link of node3 and tor3: down"), "{output:?}");
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("\"time_ms\",\"goodput_gbps bulk\",\"queue_bytes "), "{csv}");
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().count() > 200 && csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    let pcap = std::fs::read(pcap).unwrap();
    assert_eq!(pcap[..4], 0xA1B2_3C4Du32.to_le_bytes());
    let output = run_it(&["--csv", &pcap_name, "--pcap", &pcap_name]);
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("written twice"), "{output:?}");
    let output = run_it(&["--pcap", &pcap_name, "--pcap-host", "node100"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no host named `node100`"), "{output:?}");
}

#[test]
fn a_topology_that_is_built_in_is_printed_and_can_be_used() {
    let folder = Folder::new();
    let [topology, workload] = ["mine.toml", "workload.toml"].map(|name| folder.0.join(name).display().to_string());
    let names = text(&run(&mut sinew(&["sim", "topology"])).stdout);
    assert_eq!(names, "cx4\ncx5\n");
    let printed = text(&run(&mut sinew(&["sim", "topology", "cx4"])).stdout);
    assert!(printed.starts_with("# The CX4 cluster"), "with its comments: {printed}");
    std::fs::write(&topology, printed).unwrap();
    std::fs::write(&workload, WORKLOAD).unwrap();
    let of =
        |topology: &str| text(&run(&mut sinew(&["sim", "run", topology, "--workload", &workload, "--json"])).stdout);
    assert!(!of("cx4").is_empty() && of("cx4") == of(&topology));
    let output = run(&mut sinew(&["sim", "topology", "cx6"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("there are cx4 and cx5"), "{output:?}");
}

#[test]
fn dcqcn_where_nothing_is_marked_is_wrong_usage_and_what_to_change_is_told() {
    let folder = Folder::new();
    let workload = folder.0.join("workload.toml").display().to_string();
    std::fs::write(&workload, WORKLOAD.replace("timely", "dcqcn").replace("count = 3", "count = 1")).unwrap();
    let output = run(&mut sinew(&["sim", "run", "cx5", "--workload", &workload]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("line 4: algorithm cannot be dcqcn here: it goes by marks"), "{output:?}");
}

#[test]
fn a_file_that_makes_no_sense_is_wrong_usage_and_its_line_is_told() {
    let folder = Folder::new();
    let [workload, topology] = ["workload.toml", "topology.toml"].map(|name| folder.0.join(name).display().to_string());
    let run_it = |topology: &str, workload: &str| {
        let output = run(&mut sinew(&["sim", "run", topology, "--workload", workload]));
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()));
        text(&output.stderr)
    };
    std::fs::write(&workload, WORKLOAD.replace("node0", "node100")).unwrap();
    let error = run_it("cx4", &workload);
    assert!(error.contains("workload.toml: line 8: servers: the topology has no host named `node100`"), "{error}");
    std::fs::write(&topology, "frame_bytes = -1").unwrap();
    let error = run_it(&topology, &workload);
    assert!(error.contains("topology.toml: line 1: "), "{error}");
    std::fs::write(&topology, "[[switch]]\nnam = \"tor\"\n[[host]]\n").unwrap();
    let error = run_it(&topology, &workload);
    for part in ["line 1: missing field `name`", "line 2: unknown field `nam`", "line 3: missing fields `name`, "] {
        assert!(error.contains(part), "all at once: {error}");
    }
    let error = run_it("no-such.toml", &workload);
    assert!(error.contains("reading no-such.toml: No such file"), "{error}");
}

#[test]
fn a_workload_that_is_interrupted_ends_at_once() {
    let folder = Folder::new();
    let workload = folder.0.join("workload.toml").display().to_string();
    std::fs::write(&workload, WORKLOAD.replace("duration_ms = 0.5", "duration_ms = 60000")).unwrap();
    let page = folder.0.join("page.html").display().to_string();
    std::fs::write(&page, "before").unwrap();
    assert_eq!(status_when_interrupted(&["sim", "run", "cx4", "--workload", &workload, "--out", &page]), Some(130));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "before");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "the workload and the page");
}

#[test]
fn simulations_that_are_interrupted_end_at_once_also_while_they_are_set_up() {
    let folder = Folder::new();
    let [topology, workload, page] =
        ["large.toml", "workload.toml", "page"].map(|name| folder.0.join(name).display().to_string());
    // The routes of this many hosts take half a minute.
    std::fs::write(&topology, LARGE).unwrap();
    std::fs::write(&workload, WORKLOAD).unwrap();
    for args in [
        &["sim", "run", &topology, "--workload", &workload][..],
        &["sim", "swarm", "--seconds", "1000"],
        &["lab", "run", "nsdi19-fig5"],
        &["lab", "report", "nsdi19-fig5", "--out", &page],
    ] {
        assert_eq!(status_when_interrupted(args), Some(130), "{args:?}");
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "the two files");
}

const LARGE: &str = r#"frame_bytes = 66
[[switch]]
name = "switch"
latency_ns = 300
buffer = { per_port_bytes = 1000000 }
[[host]]
name = "node"
count = 9000
switches = "switch"
rate_gbps = 10
delay_ns = 100
mtu = 1500
transmit_latency_ns = 300
receive_latency_ns = 300
"#;

#[test]
fn a_report_has_the_experiments_that_were_asked_for() {
    let folder = Folder::new();
    let page = folder.0.join("page.html");
    std::fs::write(&page, "before").unwrap();
    let report = |names: &[&str]| {
        let output = run(sinew(&["lab", "report", "--out"]).arg(&page).args(names));
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = report(&["nsdi19-fig6", "nsdi19-fig7"]);
    assert!(code == Some(2) && error.contains("there is no experiment `nsdi19-fig7`"), "{error}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "before", "nothing was run");
    let (code, error) = report(&["nsdi19-table3"]);
    assert_eq!(code, Some(0), "{error}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("nsdi19 6.2, Table 3") && page.matches("<h2 ").count() == 1);
}

#[test]
fn a_file_that_is_no_text_file_of_sense_is_refused_at_once() {
    let folder = Folder::new();
    let [large, latin] = ["large.toml", "latin.toml"].map(|name| folder.0.join(name));
    std::fs::File::create(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    std::fs::write(&latin, b"frame_bytes = 1\nname = \"M\xfcller\"\n").unwrap();
    let fifo = folder.0.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let of = |path: &std::path::Path| path.display().to_string();
    for (file, problem) in [
        (of(&fifo), "not a regular file"),
        (of(&folder.0), "not a regular file"),
        ("/dev/zero".to_owned(), "not a regular file"),
        (of(&large), "larger than 16 MB"),
        (of(&latin), "line 2: this is not UTF-8 text"),
    ] {
        for args in [["sim", "run", &file, "--workload", "x"], ["sim", "run", "cx4", "--workload", &file]] {
            let output = run(&mut sinew(&args));
            let error = text(&output.stderr);
            assert!(output.status.code() == Some(2) && error.contains(problem) && error.contains(&file), "{error}");
        }
    }
}

#[test]
fn wrong_usage_is_told_once_before_anything_is_started() {
    let folder = Folder::new();
    let empty = folder.0.join("empty.json");
    std::fs::write(&empty, "{}").unwrap();
    let empty = format!("rpc bench rate --reference {}", empty.display());
    for args in [
        "no-such-command",
        "--quick limits",
        "rpc bench",
        "rpc bench rate --size many",
        "rpc bench rate --size -1",
        "rpc bench rate --size 16777217",
        "rpc bench bandwidth --size 0",
        "rpc bench rate --seconds 0",
        "rpc bench rate --seconds nan",
        "rpc bench rate --seconds -1",
        "rpc bench rate --seconds 1e300",
        "rpc bench rate --slots 7",
        "rpc bench rate --slots 128",
        "rpc bench rate --credits 0",
        "rpc bench rate --credits -1",
        "rpc bench rate --peer-timeout-ms 1",
        "rpc bench rate --peer-timeout-ms 99999999999999999",
        "rpc bench rate --window 0",
        "rpc bench rate --window 4000000000",
        "rpc bench rate --batch 61",
        "rpc bench rate --window 8 --batch 9",
        "rpc bench latency --window 8",
        "rpc bench latency --batch 1",
        "rpc bench rate --sessions 100000",
        "rpc bench scale --sessions 20",
        "rpc bench scale --credits 100",
        "rpc bench rate --threads 0",
        "rpc bench rate --pin 0",
        "rpc bench rate --pin 0,100000",
        "rpc bench rate --fabric pigeon",
        "rpc bench rate --fabric udp --address shm://test",
        "rpc bench rate --address test",
        "rpc bench rate --address pigeon://test",
        "rpc bench rate --address shm://",
        "rpc bench rate --address shm://a/b",
        "rpc bench rate --address shm://test?ring=0",
        "rpc bench rate --address udp://localhost",
        "rpc bench rate --address udp://localhost:0",
        "rpc bench rate --address udp://localhost:65535 --threads 2",
        "rpc bench rate --options rings=9",
        "rpc bench rate --options ring=0",
        "rpc bench rate --options coalesce=off",
        "rpc bench rate --fabric udp --options mtu=1",
        "rpc bench rate --fail-if-below nan",
        "rpc bench rate --fail-if-above -1",
        "rpc bench rate --fail-if-ratio-below x",
        "rpc bench rate --reference /nowhere/limits.json",
        empty.as_str(),
        "rpc serve",
        "rpc serve test",
        "rpc serve pigeon://test",
        "rpc serve shm://",
        "rpc serve shm://?ring=9",
        "rpc serve shm://a/b",
        "rpc serve udp://localhost:port",
        "rpc serve udp://127.0.0.1:65535 --threads 2",
        "rpc serve shm://test --threads 2 --pin 0",
        "rpc serve shm://test --pin 100000",
        "rpc serve shm://test --slots 3",
        "replica bench --seconds 0",
        "replica bench --value-len 2M",
        "limits --seconds 0",
        "limits --seconds -1",
        "limits --pin 0",
        "limits --pin 0,100000",
    ] {
        let args: Vec<&str> = args.split_whitespace().collect();
        let output = run(sinew(&args).env("XDG_RUNTIME_DIR", &folder.0));
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
        let complaints =
            message.lines().filter(|line| line.starts_with("sinew:") || line.starts_with("error:")).count();
        assert!(complaints == 1 || args == ["rpc", "bench"], "{args:?}: {message}");
        assert!(!folder.0.join("sinew").exists(), "{args:?} made a name");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_where_it_was_looked_for() {
    let address = format!("shm://{}", unique("nobody"));
    let output = run(sinew(&["rpc", "bench", "latency", "--address", &address]).args(SHORT));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    for part in [address.as_str(), "looked in", &format!("`sinew rpc serve {address}`")] {
        assert!(message.contains(part), "no `{part}` in {message}");
    }
}

#[test]
fn a_host_that_nobody_knows_is_named_to_servers_and_clients() {
    for args in [&["rpc", "serve"][..], &["rpc", "bench", "latency", "--address"]] {
        let output = run(sinew(args).arg("udp://no-such-host.invalid:7000"));
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("no host `no-such-host.invalid`") && !message.contains("start"), "{message}");
    }
}

#[test]
fn more_client_threads_than_the_server_has_are_told_of_its_threads() {
    for fabric in ["shm", "udp"] {
        let server = Server::start(fabric);
        let output = run(sinew(&["rpc", "bench", "rate", "--address", &server.address, "--threads", "2"]).args(SHORT));
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        let remedy = format!("`sinew rpc serve {} --threads 2`", server.address);
        assert!(message.contains("--threads 2 needs") && message.contains(&remedy), "{message}");
        assert_eq!(message.matches("sinew rpc serve").count(), 1, "{message}");
    }
}

#[test]
fn a_child_that_cannot_serve_leaves_the_telling_to_its_parent() {
    let server = Server::start("shm");
    let output = run(&mut sinew(&["rpc", "serve", &server.address, "--child"]));
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("failed ") && stdout.contains("taken") && stdout.lines().count() == 1, "{stdout}");
}

/// Runs a command whose standard output nobody reads, and then one whose standard error nobody reads.
fn unread(args: &[&str]) -> [(Option<i32>, String); 2] {
    let mut out_closed = sinew(args);
    let mut child = out_closed.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let mut child = sinew(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let silent = child.wait_with_output().unwrap();
    [(output.status.code(), text(&output.stderr)), (silent.status.code(), text(&silent.stdout))]
}

#[test]
fn a_reader_that_leaves_changes_no_exit_status_and_causes_no_panic() {
    for (args, code) in [
        ("--help", 0),
        ("--quick", 0),
        ("limits --seconds 0.01", 0),
        ("limits --seconds 0.01 --json", 0),
        ("rpc bench rate --fabric hub --seconds 0.05", 0),
        ("rpc bench rate --fabric hub --seconds 0.05 --json", 0),
        ("rpc bench rate --seconds 0", 2),
        ("rpc serve shm://", 2),
    ] {
        let args: Vec<&str> = args.split_whitespace().collect();
        for (status, rest) in unread(&args) {
            assert_eq!(status, Some(code), "{args:?}: {rest}");
            assert!(!rest.contains("panicked"), "{args:?}: {rest}");
        }
    }
    let folder = Folder::new();
    let (quiet, args) = (reference(&folder, true), "rpc bench rate --fabric hub --seconds 0.05 --fail-if-above 0");
    let mut args: Vec<&str> = args.split_whitespace().collect();
    args.extend(["--reference", quiet.as_str()]);
    // The status is 4 where something else disturbed the measurement.
    assert!(unread(&args).iter().all(|(status, _)| matches!(status, Some(3 | 4))));
}

#[test]
fn a_server_goes_on_when_nobody_reads_what_it_says() {
    let address = format!("shm://{}", unique("unread"));
    let folder = Folder::new();
    let mut server = Process::start(sinew(&["rpc", "serve", &address, "--block"]).env("XDG_RUNTIME_DIR", &folder.0));
    drop(server.0.stdout.take());
    let mut bench = sinew(&["rpc", "bench", "latency", "--address", &address]);
    bench.args(SHORT).env("XDG_RUNTIME_DIR", &folder.0);
    eventually("the server answers", || run(&mut bench).status.code() == Some(0));
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let child = sinew(&["limits", "--seconds", "0.01"]).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.starts_with("sinew: writing to standard output"), "{message}");
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

/// Starts a server from a shell, after `setup`, which serves under a name in `folder`.
fn server_of_a_shell(folder: &Folder, setup: &str) -> Process {
    let command = sinew(&[]);
    let script = format!("{setup} exec \"$0\" rpc serve shm://shell --block");
    let mut shell = Command::new("sh");
    let server = shell.arg("-c").arg(script).arg(command.get_program()).env("XDG_RUNTIME_DIR", &folder.0);
    let server = Process::start(server);
    eventually("the server serves", || folder.names().iter().any(|name| name.ends_with(".sock")));
    server
}

#[test]
fn a_server_ends_in_order_with_its_terminal_unless_that_is_ignored() {
    let folder = Folder::new();
    let mut ignoring = server_of_a_shell(&folder, "trap '' HUP;");
    ignoring.signal(Signal::HUP);
    let args = ["rpc", "bench", "latency", "--address", "shm://shell"];
    let output = run(sinew(&args).args(SHORT).env("XDG_RUNTIME_DIR", &folder.0));
    assert!(output.status.success(), "it serves on: {}", text(&output.stderr));
    ignoring.signal(Signal::TERM);
    assert_eq!(ignoring.wait().code(), Some(0));
    // A signal that is ignored here is also ignored in a child.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 == 0 {
        let mut server = server_of_a_shell(&folder, "");
        server.signal(Signal::HUP);
        assert_eq!(server.wait().code(), Some(0));
    }
    assert_eq!(folder.names(), Vec::<String>::new());
}

/// Starts a benchmark that would run for long; returns it and its server process, once that serves.
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
        let status = if signal == Signal::INT { 130 } else { 143 };
        assert_eq!(bench.wait().code(), Some(status), "interrupted is not done");
        assert!(!is_alive(server));
        assert_eq!(folder.names(), Vec::<String>::new());
    }
}

#[test]
fn a_tour_that_is_interrupted_leaves_nothing_behind() {
    let folder = Folder::new();
    let mut tour = Process::start(sinew(&[]).env("XDG_RUNTIME_DIR", &folder.0));
    let mut servers = Vec::new();
    eventually("the tour's first server serves", || {
        servers = children(tour.0.id());
        !servers.is_empty() && folder.names().iter().any(|name| name.ends_with(".sock"))
    });
    tour.signal(Signal::INT);
    assert_eq!(tour.wait().code(), Some(130), "interrupted is not done");
    assert!(servers.into_iter().all(|server| !is_alive(server)));
    assert_eq!(folder.names(), Vec::<String>::new());
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
