//! Table 5: an incast, with congestion control and without.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_rpc::{Call, Config, Congestion, Nexus};
use sinew_sim::{Cluster, Costs, HostId, Network, PortConfig, Topology};

use crate::experiment::{Experiment, Row};
use crate::programs::{Found, SHORT, SINK, Sender, Server, percentile, start};

/// See the module.
pub struct Table5;

const LEN: usize = 8 << 20;
const RATE_GBPS: f64 = 25.0;
const MS: u64 = 1_000_000;
/// Before anything is counted: the first burst of all clients must be over.
const WARM_UP_NS: u64 = 40 * MS;
const MEASURED_NS: u64 = 40 * MS;

/// Clients; whether with congestion control; total Gbps, median and 99th percentile of the round trips in microseconds.
const PAPER: [(usize, bool, [f64; 3]); 6] = [
    (20, true, [21.8, 39.0, 67.0]),
    (20, false, [23.1, 202.0, 204.0]),
    (50, true, [18.4, 34.0, 174.0]),
    (50, false, [23.0, 524.0, 524.0]),
    (100, true, [22.8, 349.0, 969.0]),
    (100, false, [23.0, 1056.0, 1060.0]),
];

impl Experiment for Table5 {
    fn id(&self) -> &'static str {
        "nsdi19-table5"
    }

    fn title(&self) -> &'static str {
        "An incast, with congestion control and without"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.5, Table 5"
    }

    fn setup(&self) -> &'static str {
        "Clients of the simulated CX4 cluster send requests of 8 MB to one server, one at a time each, with 32 credits. The round trips are those \
         that clients measure: one of each run of packets, not each packet's. The hundredth client shares a host."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (done, (clients, is_controlled, paper)) in PAPER.into_iter().enumerate() {
            progress(done as f64 / PAPER.len() as f64);
            let model = incast(clients, is_controlled);
            let metrics = [("bw", "total bandwidth", "Gbps"), ("p50", "median RTT", "us"), ("p99", "99% RTT", "us")];
            for ((metric, paper), model) in metrics.into_iter().zip(paper).zip(model) {
                let (name, what, unit) = metric;
                let (suffix, with) = if is_controlled { ("", "with") } else { (".nocc", "without") };
                rows.push(Row {
                    id: format!("erpc.incast{clients}{suffix}.{name}"),
                    place: "Table 5",
                    metric: format!("{clients}-way incast {with} congestion control, {what}"),
                    paper: Some(paper),
                    model,
                    measured: None,
                    unit,
                });
            }
        }
        rows
    }
}

/// Total Gbps of data, median and 99th percentile of round trips in microseconds.
fn incast(clients: usize, is_controlled: bool) -> [Option<f64>; 3] {
    let topology = Topology::cx4();
    let others = topology.hosts.len() - 1;
    let network = Network::new(topology, 1).expect("the topology is the paper's");
    let mut cluster = Cluster::new(&network);
    let mut congestion = Congestion { rtts_kept: 64, ..Congestion::timely(RATE_GBPS) };
    if !is_controlled {
        // Round trips are measured all the same, and none is too long.
        congestion.timely.low_ns = u64::MAX;
    }
    let config = Config { overcommit: true, congestion: Some(congestion), ..Config::default() };
    let nexus = Nexus::builder()
        .config(config)
        .handle(SINK, |call: Call| call.reply(&[0; SHORT]))
        .build()
        .expect("the limits make sense");
    let port = PortConfig { costs: Costs::default(), ..PortConfig::default() };
    start(&mut cluster, &nexus, HostId(0), "victim", port, |rpc, _| Server(rpc));
    let found = Rc::<RefCell<Found>>::default();
    for client in 0..clients {
        let host = HostId(1 + client % others);
        start(&mut cluster, &nexus, host, &format!("client{client}"), port, |rpc, clock| {
            Sender::new(rpc, clock, "victim", LEN, 1, &found)
        });
    }
    cluster.run_until(WARM_UP_NS);
    found.borrow_mut().clear();
    // What reaches the victim: all but the headers is data.
    let received = || network.port_stats("victim").map_or((0, 0), |stats| (stats.rx_packets, stats.rx_bytes));
    let before = received();
    cluster.run_until(WARM_UP_NS + MEASURED_NS);
    let after = received();
    let data = (after.1 - before.1) - 24 * (after.0 - before.0);
    let mut rtts_ns = std::mem::take(&mut found.borrow_mut().rtts_ns);
    rtts_ns.sort_unstable();
    let us = |part| percentile(&rtts_ns, part).map(|ns| ns as f64 / 1e3);
    [Some(data as f64 * 8.0 / MEASURED_NS as f64), us(0.5), us(0.99)]
}
