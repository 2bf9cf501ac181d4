//! The RPC layer, unmodified, on a simulated cluster.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::{Address, Clock, SeededGenerator};
use sinew_lab::programs::{Endpoint, Server, turn};
use sinew_mem::MessageBuffer;
use sinew_rpc::{Call, Config, Nexus, RequestType, Rpc, SessionEvent, SessionId};
use sinew_sim::{
    Actor, ActorState, Buffer, Cluster, Costs, HostId, LinkFaults, LinkId, Network, PortConfig, SimClock, SimPort,
    Topology,
};

const ECHO: RequestType = RequestType::new(1);

/// Time of an event in ns, and what it does to a network.
type Event = (u64, fn(&Network));

/// Counts over all actors of a run.
#[derive(Debug, Default)]
struct Counts {
    completed: u64,
    failed: u64,
    retransmissions: u64,
    wrong: u64,
    latencies_ns: Vec<u64>,
}

/// Keeps a window of calls in flight, until it has made its share.
struct Client {
    rpc: Endpoint,
    clock: SimClock,
    sessions: Vec<SessionId>,
    open: usize,
    idle: Vec<(MessageBuffer, MessageBuffer)>,
    began_ns: Vec<u64>,
    next: u64,
    calls: u64,
    len: usize,
    /// Retransmissions so far.
    retransmissions: u64,
    counts: Rc<RefCell<Counts>>,
}

impl Client {
    fn new(
        rpc: Endpoint,
        clock: SimClock,
        servers: &[String],
        window: usize,
        len: usize,
        calls: u64,
        counts: &Rc<RefCell<Counts>>,
    ) -> Self {
        let mut client = Self {
            rpc,
            clock,
            sessions: Vec::new(),
            open: 0,
            idle: Vec::new(),
            began_ns: Vec::new(),
            next: 0,
            calls,
            len,
            retransmissions: 0,
            counts: Rc::clone(counts),
        };
        for server in servers {
            let address: Address = format!("sim://{server}").parse().unwrap();
            client.sessions.push(client.rpc.begin_connect(&address).unwrap());
        }
        for _ in 0..window {
            client.idle.push((client.rpc.alloc(len).unwrap(), client.rpc.alloc(len).unwrap()));
        }
        client
    }
}

fn content(number: u64, at: usize) -> u8 {
    (number as usize * 31 + at) as u8
}

impl Actor for Client {
    fn turn(&mut self) -> ActorState {
        while let Some(event) = self.rpc.poll_event() {
            match event {
                SessionEvent::Connected(_) => self.open += 1,
                other => panic!("{other:?}"),
            }
        }
        while let Some(completion) = self.rpc.poll_completion() {
            let mut counts = self.counts.borrow_mut();
            let number = completion.tag;
            match completion.result {
                Ok(()) => {
                    counts.completed += 1;
                    let response = &completion.response;
                    let same = (0..self.len).all(|at| response[at] == content(number, at));
                    counts.wrong += u64::from(!same || response.len() != self.len);
                    counts.latencies_ns.push(self.clock.now_ns() - self.began_ns[number as usize]);
                }
                Err(_) => counts.failed += 1,
            }
            drop(counts);
            self.idle.push((completion.request, completion.response));
        }
        let retransmissions = self.rpc.stats().retransmissions;
        self.counts.borrow_mut().retransmissions += retransmissions - self.retransmissions;
        self.retransmissions = retransmissions;
        if self.open == self.sessions.len() {
            while self.next < self.calls {
                let Some((mut request, response)) = self.idle.pop() else { break };
                for (at, byte) in request.iter_mut().enumerate() {
                    *byte = content(self.next, at);
                }
                let session = self.sessions[self.next as usize % self.sessions.len()];
                self.rpc.enqueue_request(session, ECHO, request, response, self.next).ok().unwrap();
                self.began_ns.push(self.clock.now_ns());
                self.next += 1;
            }
        }
        turn(&mut self.rpc)
    }
}

struct Plan {
    topology: Topology,
    seed: u64,
    servers: usize,
    clients: usize,
    window: usize,
    len: usize,
    calls: u64,
    faults: LinkFaults,
    costs: Costs,
    /// Times in ns at which the first server stops and goes on.
    pause_ns: Option<(u64, u64)>,
    /// Events of the network.
    happens: Vec<Event>,
    /// Parts per million by which the servers' clocks run fast, and the clients' slow.
    drift_ppm: i32,
}

impl Plan {
    fn small() -> Self {
        Self {
            topology: Topology::star(6, 25.0, 200, 1500),
            seed: 1,
            servers: 2,
            clients: 4,
            window: 16,
            len: 32,
            calls: 500,
            faults: LinkFaults::default(),
            costs: Costs::default(),
            pause_ns: None,
            happens: Vec::new(),
            drift_ppm: 0,
        }
    }

    fn run(self) -> (Cluster, Counts) {
        let network = Network::new(self.topology, self.seed).unwrap();
        let mut cluster = Cluster::new(&network);
        let counts = Rc::<RefCell<Counts>>::default();
        let nexus = Nexus::builder()
            .config(Config::default())
            .handle(ECHO, |call: Call| {
                let request = call.request();
                call.reply(request)
            })
            .build()
            .unwrap();
        let names: Vec<String> = (0..self.servers).map(|server| format!("server{server}")).collect();
        let open = |host: usize, name: &str, drift_ppm: i32| {
            let config = PortConfig { arena_bytes: 64 << 20, costs: self.costs, ..PortConfig::default() };
            let port = network.open(HostId(host), name, config).unwrap();
            let place = port.place();
            let generator = Box::new(SeededGenerator::new(network.random()));
            (place, Rpc::new(&nexus, port, network.clock().drifting(drift_ppm), generator))
        };
        let mut servers = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let (place, rpc) = open(index, name, self.drift_ppm);
            servers.push(cluster.add(name, [place], Box::new(Server(rpc))));
        }
        for index in 0..self.clients {
            let name = format!("client{index}");
            let (place, rpc) = open(self.servers + index, &name, -self.drift_ppm);
            let client = Client::new(rpc, network.clock(), &names, self.window, self.len, self.calls, &counts);
            cluster.add(&name, [place], Box::new(client));
        }
        network.set_all_faults(self.faults);
        if let Some((begin_ns, end_ns)) = self.pause_ns {
            cluster.run_until(begin_ns);
            cluster.pause(servers[0], end_ns);
        }
        for (time_ns, happen) in self.happens {
            cluster.run_until(time_ns);
            happen(&network);
        }
        let all = self.calls * self.clients as u64;
        let over = |_: &Cluster| counts.borrow().completed + counts.borrow().failed == all;
        assert_eq!(cluster.run_while(60_000_000_000, over), Ok(true), "{:?} {network:?}", counts.borrow().completed);
        let counts = std::mem::take(&mut *counts.borrow_mut());
        (cluster, counts)
    }
}

#[test]
fn calls_are_answered_in_microseconds_of_virtual_time() {
    let (cluster, counts) = Plan { window: 1, ..Plan::small() }.run();
    assert_eq!((counts.completed, counts.failed, counts.wrong), (2_000, 0, 0));
    assert_eq!(cluster.network().stats().lost, 0);
    let mut latencies = counts.latencies_ns;
    latencies.sort_unstable();
    // Each way has two interfaces, two links and a switch; the cores' work comes on top.
    let way_ns = 300 + 200 + 300 + 200 + 300;
    let median = latencies[latencies.len() / 2];
    assert!((2 * way_ns..2 * way_ns + 1_000).contains(&median), "{median}");
}

#[test]
fn equal_seeds_make_equal_runs_of_the_whole_stack() {
    let run = |seed| {
        let faults =
            LinkFaults { loss: 0.01, duplication: 0.01, reordering: 0.02, reordering_ns: 9_000, corruption: 0.0 };
        let (cluster, counts) = Plan { seed, faults, len: 5_000, calls: 100, ..Plan::small() }.run();
        assert_eq!((counts.completed, counts.failed, counts.wrong), (400, 0, 0));
        let network = cluster.network();
        (network.trace_hash(), network.stats(), network.clock().now_ns(), counts.latencies_ns)
    };
    let first = run(5);
    assert!(first.1.lost > 20 && first.1.duplicated > 20, "{:?}", first.1);
    assert_eq!(first, run(5));
    assert_ne!(first.0, run(6).0);
}

#[test]
fn long_calls_survive_switches_that_lose_packets() {
    let mut topology = Topology::star(6, 25.0, 200, 1500);
    topology.switches[0].buffer = Buffer::Shared { bytes: 60_000, alpha: 8.0 };
    let (cluster, counts) = Plan { topology, len: 200_000, calls: 20, window: 4, ..Plan::small() }.run();
    assert_eq!((counts.completed, counts.failed, counts.wrong), (80, 0, 0));
    assert!(cluster.network().stats().overflowed > 0, "{:?}", cluster.network());
}

const MS: u64 = 1_000_000;

#[test]
fn copies_that_wait_in_queues_do_not_beget_more_copies() {
    // A window of packets takes 9.6, 96 and 384 ms on these links, and the time-out is 5 ms at first. While the server
    // stands still, copies are made. If the time-out stayed that short, each batch of copies would cause another, and
    // the call would never end.
    for (rate_gbps, len) in [(0.04, 3 << 20), (0.004, 3 << 18), (0.001, 3 << 16)] {
        for pause_ns in [None, Some((100 * MS, 130 * MS))] {
            let topology = Topology::star(2, rate_gbps, 200, 1500);
            let (cluster, counts) =
                Plan { topology, servers: 1, clients: 1, window: 1, len, calls: 1, pause_ns, ..Plan::small() }.run();
            assert_eq!((counts.completed, counts.failed, counts.wrong), (1, 0, 0));
            let took_ms = (cluster.network().clock().now_ns() / MS) as f64;
            // The least time is that of both ways.
            let least_ms = 2.0 * len as f64 * 8.0 / (rate_gbps * 1e6);
            assert!((1.0..1.5).contains(&(took_ms / least_ms)), "{took_ms} ms of {least_ms} at {rate_gbps} Gbps");
        }
    }
}

#[test]
fn round_trips_that_take_longer_than_the_time_out_are_learnt() {
    for delay_ms in [1, 4, 10, 30, 100] {
        let topology = Topology::star(2, 10.0, delay_ms * MS / 2, 1500);
        let (calls, window) = (60, 4);
        let (cluster, counts) = Plan { topology, servers: 1, clients: 1, window, calls, ..Plan::small() }.run();
        assert_eq!((counts.completed, counts.failed, counts.wrong), (calls, 0, 0));
        let network = cluster.network();
        // Each link is half of the way; a session takes two round trips to open.
        let turns = network.clock().now_ns() as f64 / (2 * delay_ms * MS) as f64;
        assert!((15.0..19.0).contains(&turns), "{turns} round trips at {delay_ms} ms");
        // Only the first calls of the session were retransmitted, at most five times in 200 ms. The requests for the
        // session were repeated more often, in the previous version as well.
        let sent = network.stats().delivered;
        assert!(sent < 2 * calls + 120, "{sent} packets at {delay_ms} ms");
    }
}

#[test]
fn losses_before_anything_was_measured_do_not_beget_copies_either() {
    // Packets of the call leave 12 ms apart. When each answer to a copy reset the time-out to 5 ms, a window of copies
    // left for every packet, and these calls took 1,900 to 2,900 packets.
    for seed in [1, 2, 3, 4, 6] {
        let topology = Topology::star(2, 0.001, 200, 1500);
        let faults = LinkFaults::losing(0.01);
        let len = 3 << 16;
        let plan = Plan { topology, seed, faults, servers: 1, clients: 1, window: 1, len, calls: 1, ..Plan::small() };
        let (cluster, counts) = plan.run();
        assert_eq!((counts.completed, counts.failed, counts.wrong), (1, 0, 0));
        // Without losses it takes 573 packets. Each loss costs a window of 32 at most.
        let stats = cluster.network().stats();
        assert!(stats.lost >= 10 && stats.delivered < 1_200, "{stats:?}, seed {seed}");
    }
}

#[test]
fn a_silence_before_anything_was_measured_makes_no_long_time_outs() {
    const CUT: [Event; 2] = [
        (7_000, |network| network.set_cut(HostId(1), HostId(0), true)),
        (400 * MS, |network| network.set_cut(HostId(1), HostId(0), false)),
    ];
    for seed in 1..9 {
        let topology = Topology::star(2, 10.0, 100, 1500);
        let (faults, happens) = (LinkFaults::losing(0.05), CUT.to_vec());
        let plan = Plan {
            topology,
            seed,
            faults,
            happens,
            servers: 1,
            clients: 1,
            window: 1,
            len: 1 << 20,
            calls: 1,
            ..Plan::small()
        };
        let (cluster, counts) = plan.run();
        assert_eq!((counts.completed, counts.failed, counts.wrong), (1, 0, 0));
        let took_ms = cluster.network().now_ns() / MS;
        // It took 10 to 24 s when the silence itself was taken for a round trip.
        assert!(took_ms < 4_000, "{took_ms} ms, seed {seed}");
    }
}

#[test]
fn many_that_call_one_over_a_slow_link_are_all_answered() {
    let topology = Topology::star(41, 0.1, 200, 1500);
    let plan = Plan { topology, servers: 1, clients: 40, window: 1, len: 20_000, calls: 10, ..Plan::small() };
    let (cluster, counts) = plan.run();
    assert_eq!((counts.completed, counts.failed, counts.wrong), (400, 0, 0));
    let took_ms = cluster.network().clock().now_ns() / MS;
    // 8 MB go each way at 100 Mbps, both ways at the same time.
    assert!((640..1_000).contains(&took_ms), "{took_ms} ms");
}

#[test]
fn packets_that_are_damaged_harm_no_call_but_their_own() {
    // This acts as if no fabric had a checksum. A damaged bit of data arrives as it is; one of a header makes a packet
    // useless, or ends its call.
    let faults = LinkFaults { corruption: 0.01, ..LinkFaults::default() };
    let (cluster, counts) = Plan { faults, len: 3_000, ..Plan::small() }.run();
    let stats = cluster.network().stats();
    assert!(stats.corrupted > 100 && stats.lost == 0, "{stats:?}");
    assert_eq!(counts.completed + counts.failed, 2_000);
    assert!(counts.wrong > 0 && counts.wrong + counts.failed <= stats.corrupted, "{stats:?} {counts:?}");
}

#[test]
fn clocks_that_drift_apart_change_nothing_but_what_they_show() {
    let run = |drift_ppm| Plan { drift_ppm, len: 5_000, ..Plan::small() }.run();
    let (steady, drifting) = (run(0), run(1_000));
    for (cluster, counts) in [&steady, &drifting] {
        assert_eq!((counts.completed, counts.failed, counts.wrong, counts.retransmissions), (2_000, 0, 0, 0));
        assert_eq!(cluster.network().stats().lost, 0);
    }
    let [a, b] = [&steady, &drifting].map(|(cluster, _)| cluster.network().now_ns() as f64);
    assert!((b / a - 1.0).abs() < 0.02, "{a} {b}");
}

#[test]
fn calls_get_through_links_that_lose_in_one_direction() {
    for direction in [0, 1] {
        let happens: [Event; 1] = match direction {
            0 => [(0, |network| lose(network, 0))],
            _ => [(0, |network| lose(network, 1))],
        };
        let (cluster, counts) = Plan { happens: happens.to_vec(), len: 5_000, calls: 100, ..Plan::small() }.run();
        assert_eq!((counts.completed, counts.failed, counts.wrong), (400, 0, 0));
        let lost = cluster.network().stats().lost;
        assert!(lost > 50 && counts.retransmissions > 20, "{lost} {counts:?}");
    }
}

/// Loses packets on the links of hosts: those from the host (0), or those to it (1).
fn lose(network: &Network, direction: usize) {
    for link in 0..network.topology().links.len() {
        network.set_faults(LinkId(link), direction, LinkFaults::losing(0.05));
    }
}

#[test]
fn calls_outlast_a_partition_of_one_direction() {
    const MS: u64 = 1_000_000;
    // The first server, and the first client.
    const SERVER: HostId = HostId(0);
    const CLIENT: HostId = HostId(2);
    let requests: [Event; 2] = [
        (MS / 10, |network| network.set_cut(CLIENT, SERVER, true)),
        (20 * MS, |network| network.set_cut(CLIENT, SERVER, false)),
    ];
    let answers: [Event; 2] = [
        (MS / 10, |network| network.set_cut(SERVER, CLIENT, true)),
        (20 * MS, |network| network.set_cut(SERVER, CLIENT, false)),
    ];
    for happens in [requests, answers] {
        let (cluster, counts) = Plan { happens: happens.to_vec(), calls: 5_000, ..Plan::small() }.run();
        assert_eq!((counts.completed, counts.failed, counts.wrong), (20_000, 0, 0));
        assert!(cluster.network().now_ns() > 20 * MS && cluster.network().stats().lost > 0);
        // One session of the eight was held up.
        let late = counts.latencies_ns.iter().filter(|ns| **ns > 15 * MS).count();
        assert!((1..=16).contains(&late), "{late}");
    }
}

#[test]
fn cores_that_cost_more_serve_less() {
    let rate = |costs: Costs| {
        let (cluster, counts) = Plan { servers: 1, costs, calls: 3_000, ..Plan::small() }.run();
        counts.completed as f64 / cluster.network().clock().now_ns() as f64 * 1e3
    };
    let usual = Costs::default();
    let [cheap, dear] = [usual, Costs { receive_ns: usual.receive_ns + 400, ..usual }].map(rate);
    assert!(dear < 0.6 * cheap, "{dear} {cheap}");
    // The one server core spends at least 488 ns on a call.
    assert!((1.0..2.05).contains(&dear), "{dear}");
}

#[test]
fn a_simulation_that_cannot_go_on_says_who_waits() {
    struct Waits(#[allow(dead_code)] SimPort);
    impl Actor for Waits {
        fn turn(&mut self) -> ActorState {
            ActorState::Idle
        }
    }
    let network = Network::new(Topology::star(1, 10.0, 1, 1500), 1).unwrap();
    let mut cluster = Cluster::new(&network);
    let port = network.open(HostId(0), "lonely", PortConfig { arena_bytes: 1 << 16, ..PortConfig::default() }).unwrap();
    cluster.add("the only one", [port.place()], Box::new(Waits(port)));
    let stuck = cluster.run_while(1_000_000, |_| false).unwrap_err();
    assert_eq!(
        stuck.to_string(),
        "the simulation is stuck at 0 ns: no events are left; the only one waits for a packet at lonely"
    );
}
