//! Tests of workload runs.

use sinew_sim::LinkFaults;

use super::*;

const SHORT: &str = r#"warm_up_ms = 0.2
duration_ms = 0.5
[congestion]
algorithm = "timely"
[[clients]]
name = "all"
hosts = { from = "node0", count = 4 }
servers = ["node0", "node3"]
request_bytes = [{ bytes = 32, weight = 3 }, { bytes = 5000, weight = 1 }]
response_bytes = { from = 0, to = 3000 }
window = 8
[[clients]]
name = "open loop"
hosts = "node1"
endpoints = 2
servers = "node2"
server_endpoints = 2
request_bytes = 32
response_bytes = 32
window = 4
calls_per_s = 100_000
start_ms = 0.3
"#;

fn run_text(topology: &Topology, text: &str, seed: u64) -> Result<Report, RunError> {
    run(topology, &Workload::parse(text, topology).unwrap(), seed, &mut |_| true)
}

#[test]
fn equal_seeds_have_equal_reports_and_others_others() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let report = run_text(&topology, SHORT, 7).unwrap();
    assert_eq!(report, run_text(&topology, SHORT, 7).unwrap());
    assert_ne!(report.trace_hash, run_text(&topology, SHORT, 8).unwrap().trace_hash);
}

#[test]
fn rates_recover_when_a_crowd_is_gone() {
    // Thirty others send to the same host for 10 ms; then one is alone with the link. Timely's steps, which keep an
    // incast's queue short, take long to win back the whole link.
    let mut topology = Topology::star(32, 25.0, 500, 1500);
    topology.switches[0].ecn = Some(sinew_sim::Ecn { min_bytes: 5_000, max_bytes: 200_000, probability: 0.1 });
    for (algorithm, alone_ms) in [("timely", 300), ("swift", 1), ("dcqcn", 60)] {
        let warm_up_ms = 10 + alone_ms;
        let text = format!(
            r#"warm_up_ms = {warm_up_ms}
duration_ms = 5
congestion = {{ algorithm = "{algorithm}" }}
[[clients]]
name = "crowd"
hosts = {{ from = "node2", count = 30 }}
servers = "node0"
request_bytes = 500_000
response_bytes = 32
window = 1
stop_ms = 10
[[clients]]
name = "lone"
hosts = "node1"
servers = "node0"
request_bytes = 500_000
response_bytes = 32
window = 2
"#
        );
        let report = run_text(&topology, &text, 1).unwrap();
        let [crowd, lone] = &report.groups[..] else { panic!("two groups") };
        assert!(lone.goodput_gbps > 0.8 * 25.0 && crowd.goodput_gbps < 1.0, "{algorithm}: {report:?}");
    }
}

#[test]
fn calls_are_made_as_the_file_says() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let report = run_text(&topology, SHORT, 1).unwrap();
    let [all, clock] = &report.groups[..] else { panic!("two groups") };
    // A host that is a server calls the other server alone.
    assert_eq!((all.endpoints, all.sessions, all.sessions_lost, all.failed), (4, 6, 0, 0));
    assert_eq!((clock.endpoints, clock.sessions, clock.failed), (2, 2, 0));
    // Two endpoints make 100,000 calls per second each, for 0.4 ms.
    assert!((50..=115).contains(&clock.calls), "{clock:?}");
    let latency = clock.latency.unwrap();
    assert!(latency.p50_ns > 1_000 && latency.p50_ns <= latency.p99_ns && latency.p999_ns <= latency.max_ns);
    // A call has (3 x 32 + 5000) / 4 + 1500 bytes on average.
    let by_calls = all.calls as f64 * 2774.0 * 8.0 / report.duration_ns as f64;
    assert!((all.goodput_gbps / by_calls - 1.0).abs() < 0.15, "{} and {by_calls}", all.goodput_gbps);
    let rates = all.rates_gbps.unwrap();
    assert!(rates[0] > 0.0 && rates[0] <= rates[1] && rates[1] <= rates[2] && rates[2] < 10.001, "{rates:?}");
}

#[test]
fn intervals_cover_all_time_and_show_when_a_group_begins() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let Report { series, queues, .. } = run_text(&topology, SHORT, 1).unwrap();
    assert_eq!(series.times_ns.last(), Some(&700_000));
    assert!(series.times_ns.contains(&200_000) && series.times_ns.is_sorted());
    let intervals = series.times_ns.len();
    assert!(series.goodput_gbps.iter().all(|values| values.len() == intervals));
    assert!(series.queues_bytes.iter().all(|values| values.len() == intervals));
    assert!(series.rates_gbps.iter().all(|values| values.len() == intervals));
    let before = series.times_ns.partition_point(|time_ns| *time_ns < 300_000);
    assert!(series.goodput_gbps[1][..before].iter().all(|gbps| *gbps == 0.0));
    assert!(series.goodput_gbps[1][before..].iter().any(|gbps| *gbps > 0.0));
    assert!(queues.iter().is_sorted_by_key(|queue| u64::MAX - queue.max_bytes) && !queues.is_empty());
    assert!(queues.iter().all(|queue| queue.mean_bytes <= queue.max_bytes as f64), "{queues:?}");
}

#[test]
fn full_buffers_are_named_as_the_place_where_packets_are_lost() {
    let mut topology = Topology::star(9, 10.0, 100, 1500);
    topology.switches[0].buffer = sinew_sim::Buffer::PerPort { bytes: 30_000 };
    let text = SHORT.split("[[clients]]").next().unwrap().replace("timely", "none").to_owned()
        + r#"[[clients]]
name = "bulk"
hosts = { from = "node1", count = 8 }
servers = "node0"
request_bytes = 100_000
response_bytes = 4
window = 1
"#;
    let report = run_text(&topology, &text.replace("duration_ms = 0.5", "duration_ms = 20"), 1).unwrap();
    let [drops] = &report.drops[..] else { panic!("{:?}", report.drops) };
    assert_eq!((&*drops.place, drops.packets), ("switch to node0", report.lost));
    let queue = report.queues.iter().find(|queue| queue.port == "switch to node0").unwrap();
    assert!((25_000..=30_000).contains(&queue.max_bytes), "{queue:?}");
    assert!(report.groups[0].retransmissions > 0 && report.groups[0].calls > 0);
    assert!(report.series.rates_gbps.is_empty() && report.groups[0].rates_gbps.is_none());
    assert!(report.groups[0].rtt.is_some());
}

#[test]
fn who_cannot_go_on_says_what_it_waits_for() {
    // An answer takes eight seconds; a connect is given up after three.
    let far = Topology::star(4, 10.0, 1_000_000_000, 1500);
    let error = run_text(&far, SHORT, 1).unwrap_err();
    assert!(matches!(error, RunError::Stuck(_)));
    let text = error.to_string();
    assert!(text.contains("node0 (all) waits for a session with node3: no answer from"), "{text}");
    assert!(text.contains("node1 (open loop) waits for a session with node2"), "{text}");
}

#[test]
fn who_hears_nothing_any_more_says_what_it_waits_for() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let text = SHORT.replace("duration_ms = 0.5", "duration_ms = 30000");
    let workload = Workload::parse(&text, &topology).unwrap();
    let network = Network::new(topology, 1).unwrap();
    let error = run_on(&network, &workload, 1, &mut |part| {
        if part > 1e-5 {
            network.set_all_faults(LinkFaults { loss: 1.0, ..LinkFaults::default() });
        }
        true
    });
    let text = error.unwrap_err().to_string();
    assert!(text.contains("node0 (all) waits for a session with node3"), "{text}");
    assert!(text.contains("node1 (open loop) waits for a session with node2"), "{text}");
}

#[test]
fn a_run_ends_when_it_is_told_to() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let workload = Workload::parse(SHORT, &topology).unwrap();
    let mut parts = Vec::new();
    let stopped = run(&topology, &workload, 1, &mut |part| {
        parts.push(part);
        part < 0.5
    });
    assert!(matches!(stopped, Err(RunError::Stopped)));
    assert!(parts.is_sorted() && parts.last().is_some_and(|part| (0.5..0.8).contains(part)), "{parts:?}");
}

#[test]
fn a_link_that_is_down_carries_nothing_until_it_is_back_and_the_report_says_so() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let text = SHORT.replace("duration_ms = 0.5", "timeout_us = 50\nduration_ms = 2").replace("stop_ms", "x")
        + "[[faults]]\nlink = [\"node2\", \"switch\"]\nfrom_ms = 0.8\nuntil_ms = 1.2\n";
    let report = run_text(&topology, &text, 1).unwrap();
    assert_eq!(report, run_text(&topology, &text, 1).unwrap(), "equal seeds have equal reports");
    let gbps_in = |from_ns: u64, to_ns: u64| {
        let series = &report.series;
        let values = series.times_ns.iter().zip(&series.goodput_gbps[1]);
        values.filter(|(time_ns, _)| (from_ns + 11_000..=to_ns).contains(*time_ns)).map(|(_, gbps)| *gbps).sum::<f64>()
    };
    // The second group's only server is on that host.
    assert_eq!(gbps_in(800_000, 1_200_000), 0.0);
    assert!(gbps_in(400_000, 800_000) > 0.0 && gbps_in(1_400_000, 2_200_000) > 0.0, "{report:?}");
    assert_eq!(report.faults[0].name, "link of node2 and switch: down");
    assert_eq!((report.faults[0].start_ns, report.faults[0].stop_ns), (800_000, 1_200_000));
    let lost: u64 = report.drops.iter().map(|drops| drops.packets).sum();
    assert!(report.drops.iter().all(|drops| drops.place.ends_with(", by faults of the link")), "{:?}", report.drops);
    assert!(lost > 0 && lost == report.lost && report.groups[1].sessions_lost == 0, "{report:?}");
}

#[test]
fn requests_are_as_long_as_a_file_says() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let text = SHORT.replace("[{ bytes = 32, weight = 3 }, { bytes = 5000, weight = 1 }]", "{ file = \"a\" }");
    let run_it = |sizes: &str| {
        let workload = Workload::parse_with(&text, &topology, &mut |_| Ok(sizes.to_owned())).unwrap();
        run(&topology, &workload, 3, &mut |_| true).unwrap()
    };
    // Half of the requests have 100 bytes, and the others 5,000 to 15,000.
    let report = run_it("100 50\n5000 50\n15000 100");
    let group = &report.groups[0];
    let by_calls = group.calls as f64 * (50.0 + 5_000.0 + 1_500.0) * 8.0 / report.duration_ns as f64;
    assert!((group.goodput_gbps / by_calls - 1.0).abs() < 0.2, "{} and {by_calls}", group.goodput_gbps);
    assert_eq!(report, run_it("100,50 # the same\n5000,50\n15000,100"));
}

#[test]
fn what_is_captured_changes_nothing_and_is_all_that_a_host_sends_or_is_sent() {
    let topology = Topology::star(4, 10.0, 100, 1500);
    let workload = Workload::parse(SHORT, &topology).unwrap();
    let network = Network::new(topology.clone(), 7).unwrap();
    network.capture(&[0, 1, 2, 3].map(sinew_sim::HostId), sinew_sim::CaptureConfig::default());
    let report = run_on(&network, &workload, 7, &mut |_| true).unwrap();
    assert_eq!(report, run_text(&topology, SHORT, 7).unwrap());
    let (capture, in_flight) = (network.take_capture().unwrap(), network.in_flight() as u64);
    let delivered = network.stats().delivered;
    assert!((delivered..=delivered + in_flight).contains(&capture.packets), "{} of {delivered}", capture.packets);
    assert_eq!(capture.left_out, 0);
}
