//! Services over AF_XDP, between the ends of a virtual pair.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{ECHO, Process, config, echo, run, sinew, text};
use sinew::prelude::*;
use sinew::xdp::testbed::{Pair, PairOptions, Side};
use sinew_conformance::skipped;

/// Makes a virtual pair; if that fails, reports the test as skipped.
fn pair() -> Option<Pair> {
    match Pair::new(PairOptions::default()) {
        Ok(pair) => Some(pair),
        Err(error) => {
            skipped(format_args!("no virtual pair can be made: {error}"));
            None
        }
    }
}

/// Makes calls of many sizes from A to a server at B.
fn calls_pass(pair: &Pair, server_at: &str, client_at: &str, called_at: impl Fn(&str) -> String) {
    let server = pair.at(Side::B).within(|| echo(config()).server().at(server_at).start()).unwrap().unwrap();
    let address = called_at(&server.addresses()[0].to_string());
    let nexus = Nexus::builder().config(config()).build().unwrap();
    let mut rpc = pair.at(Side::A).within(|| Rpc::open_with(&nexus, client_at)).unwrap().unwrap();
    let session = rpc.connect(&address).unwrap();
    for len in [0, 1, 100, 1_400, 1_500, 70_000, 3 << 20] {
        let message: Vec<u8> = (0..len).map(|at: u32| ((at * 31) >> 3) as u8).collect();
        assert!(*rpc.call(session, ECHO, &message).unwrap() == message[..], "{len} bytes over {client_at}");
    }
    drop(rpc);
    assert_eq!(server.stop().unwrap().remove(0).stats.requests_handled, 7);
}

#[test]
fn services_over_xdp_and_udp_are_called_over_either() {
    let Some(pair) = pair() else { return };
    let xdp = "xdp://veth-b/10.83.0.2:7000";
    let udp = "udp://10.83.0.2:7000";
    calls_pass(&pair, xdp, "xdp://veth-a", |_| "xdp://veth-a/10.83.0.2:7000".to_owned());
    calls_pass(&pair, xdp, "udp://", |_| udp.to_owned());
    calls_pass(&pair, udp, "xdp://veth-a", |_| "xdp://veth-a/10.83.0.2:7000".to_owned());
    let v6 = "xdp://veth-b/[fd83::2]:7000";
    if pair.at(Side::B).within(|| std::net::UdpSocket::bind("[fd83::2]:0").is_ok()).unwrap() {
        calls_pass(&pair, v6, "xdp://veth-a/[fd83::1]", |_| "xdp://veth-a/[fd83::2]:7000".to_owned());
    } else {
        skipped("no IPv6");
    }
}

#[test]
fn several_threads_of_a_server_share_an_interface() {
    let Some(pair) = pair() else { return };
    let server = echo(config()).server().at("xdp://veth-b/10.83.0.2:7000").at("xdp://veth-b/10.83.0.2:7001");
    let server = pair.at(Side::B).within(|| server.start()).unwrap().unwrap();
    let mut rpc = pair.at(Side::A).within(|| Rpc::open("xdp://veth-a")).unwrap().unwrap();
    for port in [7000, 7001] {
        let session = rpc.connect(&format!("xdp://veth-a/10.83.0.2:{port}")).unwrap();
        assert_eq!(*rpc.call(session, ECHO, b"hello").unwrap(), *b"hello");
    }
    drop(rpc);
    assert!(server.stop().unwrap().iter().all(|report| report.stats.requests_handled == 1));
}

#[test]
fn a_served_address_is_measured_from_another_process() {
    let Some(pair) = pair() else { return };
    let mut serving = sinew(&["rpc", "serve", "xdp://veth-b/10.83.0.2:7000", "--threads", "2"]);
    let mut server = pair.at(Side::B).within(|| Process::start(&mut serving)).unwrap();
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("7001")));
    let address = ["--address", "xdp://veth-a/10.83.0.2:7000"];
    let mut bench = sinew(&[&["rpc", "bench", "latency", "--seconds", "0.1", "--json"], &address[..]].concat());
    bench.stdin(Stdio::null());
    let output = pair.at(Side::A).within(|| run(&mut bench)).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figure: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(figure["details"]["calls_checked"].as_u64().unwrap() > 0, "{figure}");
}

#[test]
fn benchmarks_make_their_own_pairs() {
    if pair().is_none() {
        return;
    }
    let run_json = |words: &str| -> serde_json::Value {
        let words: Vec<&str> = words.split(' ').chain(["--seconds", "0.1", "--json"]).collect();
        let output = run(&mut sinew(&words));
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let figure = run_json("rpc bench rate --fabric xdp");
    assert!(figure["details"]["calls_checked"].as_u64().unwrap() > 0, "{figure}");
    // In so short a time, a loaded machine may yield no valid value.
    let figures = run_json("xdp bench rate latency rpc joined");
    assert_eq!(figures["results"].as_array().map(Vec::len), Some(4), "{figures}");
}
