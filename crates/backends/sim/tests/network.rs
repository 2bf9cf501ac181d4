//! The simulated network's handling of packets, with times, queues and losses worked out by hand.

use sinew_fabric::{Clock, PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket};
use sinew_sim::{
    Actor, ActorId, ActorState, Buffer, Cluster, CoreTime, Ecn, HostId, HostSpec, LinkFaults, LinkId, LinkSpec,
    Network, NodeId, Pause, PortConfig, SimClock, SimPort, SwitchSpec, Topology,
};

/// Hosts at one switch; a byte takes 0.8 ns at 10 Gbps, and packets of 934 bytes with their frames 800 ns.
fn topology(hosts: usize, buffer: Buffer) -> Topology {
    let mut topology = Topology::star(hosts, 10.0, 100, 1500);
    topology.switches[0].buffer = buffer;
    for host in &mut topology.hosts {
        (host.transmit_latency_ns, host.receive_latency_ns) = (50, 70);
    }
    topology
}

const LEN: usize = 934;

fn open(network: &Network, host: usize) -> SimPort {
    let config = PortConfig { arena_bytes: 1 << 20, ..PortConfig::default() };
    network.open(HostId(host), &format!("port{host}"), config).unwrap()
}

fn send(from: &mut SimPort, to: &SimPort, packets: usize, len: usize) {
    let (_, tx) = from.split();
    for _ in 0..packets {
        tx.push(TxPacket { to: to.peer(), head: &vec![7; len], data: TxData::None });
    }
    tx.submit();
}

/// Takes the packets that have arrived.
fn receive(port: &mut SimPort) -> Vec<Vec<u8>> {
    receive_marks(port).into_iter().map(|(bytes, _)| bytes).collect()
}

/// Takes the packets that have arrived, and whether each met a long queue.
fn receive_marks(port: &mut SimPort) -> Vec<(Vec<u8>, bool)> {
    let mut all = Vec::new();
    loop {
        let mut burst = RxBurst::new(0);
        port.split().0.receive(&mut burst);
        if burst.packets.is_empty() {
            return all;
        }
        let is_marked = |at: usize| burst.marked & 1 << at != 0;
        all.extend(burst.packets.iter().enumerate().map(|(at, packet)| (packet.head.to_vec(), is_marked(at))));
    }
}

/// Runs until `count` more packets have been delivered; returns the time.
fn time_of(network: &Network, port: &SimPort, count: u64) -> u64 {
    let began = network.stats().delivered;
    for now_ns in network.clock().now_ns().. {
        network.run_until(now_ns);
        if network.stats().delivered >= began + count {
            assert_eq!(port.network().clock().now_ns(), now_ns);
            return now_ns;
        }
        assert!(now_ns < 100_000_000, "nothing comes");
    }
    unreachable!()
}

#[test]
fn a_packet_takes_as_long_as_its_way_and_its_bytes_once() {
    let network = Network::new(topology(2, Buffer::PerPort { bytes: 1 << 20 }), 1).unwrap();
    let (mut a, b) = (open(&network, 0), open(&network, 1));
    send(&mut a, &b, 1, LEN);
    // Interface, link, switch, link, interface. The bytes count once, since the switch does not wait for the last.
    assert_eq!(time_of(&network, &b, 1), 50 + 100 + 300 + 100 + 800 + 70);
    // Packets behind it follow at the link's rate.
    let began = network.clock().now_ns();
    send(&mut a, &b, 5, LEN);
    assert_eq!(time_of(&network, &b, 5) - began, 50 + 100 + 300 + 100 + 5 * 800 + 70);
}

#[test]
fn a_switch_does_not_send_faster_than_it_receives() {
    let mut slow_to_fast = topology(2, Buffer::PerPort { bytes: 1 << 20 });
    slow_to_fast.links[1].rate_gbps = 100.0;
    let network = Network::new(slow_to_fast, 1).unwrap();
    let (mut a, b) = (open(&network, 0), open(&network, 1));
    send(&mut a, &b, 1, LEN);
    assert_eq!(time_of(&network, &b, 1), 50 + 100 + 300 + 100 + 800 + 70);
    let mut b = b;
    send(&mut b, &a, 1, LEN);
    let began = network.clock().now_ns();
    assert_eq!(time_of(&network, &a, 1) - began, 50 + 100 + 300 + 100 + 800 + 70, "the slow link is the last");
}

#[test]
fn an_incast_is_as_fast_as_the_link_that_it_shares() {
    let network = Network::new(topology(5, Buffer::PerPort { bytes: 1 << 20 }), 1).unwrap();
    let victim = open(&network, 0);
    let mut senders: Vec<SimPort> = (1..5).map(|host| open(&network, host)).collect();
    senders.iter_mut().for_each(|sender| send(sender, &victim, 10, LEN));
    assert_eq!(time_of(&network, &victim, 40), 50 + 100 + 300 + 100 + 40 * 800 + 70);
    let [_, to_victim] = network.link_stats(LinkId(0));
    assert_eq!((to_victim.packets, to_victim.queued_bytes), (40, 0));
    // Of 40 packets that came in the time of ten, about 30 waited.
    assert!((29..=31).contains(&(to_victim.queued_bytes_max / 1000)), "{to_victim:?}");
    let taken = [(); 2].map(|()| network.take_queued_max(LinkId(0))[1]);
    assert_eq!(taken, [to_victim.queued_bytes_max, 0], "what was taken is not told again");
}

#[test]
fn a_port_loses_what_its_own_buffer_does_not_hold() {
    let network = Network::new(topology(3, Buffer::PerPort { bytes: 5_000 }), 1).unwrap();
    let mut victim = open(&network, 0);
    let mut senders = [open(&network, 1), open(&network, 2)];
    senders.iter_mut().for_each(|sender| send(sender, &victim, 20, LEN));
    network.run_until(1_000_000);
    let stats = network.stats();
    assert_eq!(stats.delivered + stats.overflowed, 40);
    // In the time in which two senders send 20 packets each, 20 leave, and the buffer saves what it holds.
    assert!((20 + 4..=20 + 6).contains(&stats.delivered), "{stats:?}");
    assert_eq!(receive(&mut victim).len() as u64, stats.delivered);
    assert_eq!(network.in_flight(), 0);
}

#[test]
fn a_shared_buffer_is_divided_by_need() {
    // One port alone may have alpha / (1 + alpha) of the buffer, and each of two ports less.
    let most = |victims: usize, alpha: f64| {
        let network = Network::new(topology(10, Buffer::Shared { bytes: 100_000, alpha }), 1).unwrap();
        let victims: Vec<SimPort> = (0..victims).map(|host| open(&network, host)).collect();
        let mut senders: Vec<SimPort> = (2..10).map(|host| open(&network, host)).collect();
        for (index, sender) in senders.iter_mut().enumerate() {
            send(sender, &victims[index % victims.len()], 100, LEN);
        }
        network.run_until(10_000_000);
        assert_eq!(network.stats().delivered + network.stats().overflowed, 800);
        (0..victims.len()).map(|host| network.link_stats(LinkId(host))[1].queued_bytes_max).collect::<Vec<_>>()
    };
    let alone = most(1, 1.0)[0];
    assert!((49_000..=51_500).contains(&alone), "{alone}");
    assert!((88_000..=90_000).contains(&most(1, 8.0)[0]));
    for of_two in most(2, 1.0) {
        assert!((32_000..=36_000).contains(&of_two), "{of_two}");
    }
}

#[test]
fn packets_of_long_queues_are_marked() {
    let mut marking = topology(5, Buffer::PerPort { bytes: 1 << 20 });
    marking.switches[0].ecn = Some(Ecn { min_bytes: 5_000, max_bytes: 20_000, probability: 0.5 });
    let network = Network::new(marking, 1).unwrap();
    let mut victim = open(&network, 0);
    let mut lone = open(&network, 1);
    send(&mut lone, &victim, 50, LEN);
    network.run_until(1_000_000);
    assert_eq!(network.stats().marked, 0, "one sender makes no queue");
    let mut others: Vec<SimPort> = (2..5).map(|host| open(&network, host)).collect();
    others.iter_mut().for_each(|sender| send(sender, &victim, 50, LEN));
    network.run_until(2_000_000);
    let marked = network.stats().marked;
    assert!((100..140).contains(&marked), "of 150, all but the first and some of the next: {marked}");
    let marks_received = receive_marks(&mut victim).iter().filter(|(_, is_marked)| *is_marked).count();
    assert_eq!(marks_received as u64, marked, "receivers know");
}

#[test]
fn a_network_that_pauses_loses_nothing() {
    let mut pausing = topology(5, Buffer::Shared { bytes: 40_000, alpha: 8.0 });
    pausing.switches[0].pause = Some(Pause { off_bytes: 5_000, on_bytes: 2_000 });
    let network = Network::new(pausing, 1).unwrap();
    let mut victim = open(&network, 0);
    let mut senders: Vec<SimPort> = (1..5).map(|host| open(&network, host)).collect();
    senders.iter_mut().for_each(|sender| send(sender, &victim, 100, LEN));
    network.run_until(10_000_000);
    let stats = network.stats();
    assert_eq!((stats.delivered, stats.lost), (400, 0));
    assert!(stats.pauses > 10, "{stats:?}");
    assert_eq!(receive(&mut victim).len(), 400);
    let [_, to_victim] = network.link_stats(LinkId(0));
    assert!(to_victim.queued_bytes_max < 40_000, "{to_victim:?}");
    // The link to the victim was never idle: 400 packets took what they must.
    assert_eq!(to_victim.bytes, 400 * 1000);
}

#[test]
fn faults_are_as_frequent_as_they_should_be_and_of_one_direction() {
    let network = Network::new(topology(2, Buffer::PerPort { bytes: 1 << 30 }), 3).unwrap();
    let (mut a, mut b) = (open(&network, 0), open(&network, 1));
    network.set_faults(LinkId(0), 0, LinkFaults { loss: 0.1, duplication: 0.05, ..LinkFaults::default() });
    let mut arrived = 0;
    for round in 1..=100 {
        send(&mut a, &b, 100, 100);
        send(&mut b, &a, 10, 100);
        network.run_until(round * 1_000_000);
        arrived += receive(&mut b).len();
        assert_eq!(receive(&mut a).len(), 10, "the way back is a good one");
    }
    let stats = network.stats();
    assert!((900..1100).contains(&stats.lost), "{stats:?}");
    assert!((400..520).contains(&stats.duplicated), "{stats:?}");
    assert_eq!(arrived as u64, 10_000 - stats.lost + stats.duplicated);
    assert_eq!(network.in_flight(), 0);
}

#[test]
fn damage_is_one_bit_and_late_packets_are_overtaken() {
    let network = Network::new(topology(2, Buffer::PerPort { bytes: 1 << 30 }), 3).unwrap();
    let (mut a, mut b) = (open(&network, 0), open(&network, 1));
    network.set_all_faults(LinkFaults { corruption: 1.0, ..LinkFaults::default() });
    send(&mut a, &b, 1, 100);
    network.run_until(1_000_000);
    let flipped = |bytes: &[u8]| bytes.iter().map(|byte| (byte ^ 7).count_ones()).sum::<u32>();
    let of_two_links = flipped(&receive(&mut b)[0]);
    assert_eq!(network.stats().corrupted, 2);
    assert!(of_two_links == 2 || of_two_links == 0, "{of_two_links}");
    network.set_all_faults(LinkFaults { reordering: 0.2, reordering_ns: 5_000, ..LinkFaults::default() });
    for number in 0..100u8 {
        a.split().1.push(TxPacket { to: b.peer(), head: &[number; 64], data: TxData::None });
    }
    a.split().1.submit();
    network.run_until(2_000_000);
    let order: Vec<u8> = receive(&mut b).iter().map(|bytes| bytes[0]).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    assert_ne!(sorted, order);
}

#[test]
fn links_that_are_down_and_hosts_cut_off_carry_nothing() {
    let network = Network::new(topology(3, Buffer::PerPort { bytes: 1 << 20 }), 1).unwrap();
    let mut ports: Vec<SimPort> = (0..3).map(|host| open(&network, host)).collect();
    let mut reaches = |from: usize, to: usize| {
        let [a, b] = ports.get_disjoint_mut([from, to]).unwrap();
        send(a, b, 1, 64);
        network.run_until(network.clock().now_ns() + 100_000);
        receive(b).len() == 1
    };
    assert!(reaches(0, 1) && reaches(1, 0));
    network.set_link_up(LinkId(0), 0, false);
    assert!(!reaches(0, 1) && !reaches(0, 2) && reaches(1, 0), "one way only");
    network.set_link_up(LinkId(0), 0, true);
    network.set_cut(HostId(0), HostId(1), true);
    assert!(!reaches(0, 1) && reaches(1, 0) && reaches(0, 2) && reaches(2, 1), "one way only");
    network.set_cut(HostId(1), HostId(0), true);
    assert!(!reaches(0, 1) && !reaches(1, 0) && reaches(0, 2) && reaches(2, 1));
    network.set_cut(HostId(0), HostId(1), false);
    assert!(reaches(0, 1) && !reaches(1, 0));
    network.set_cut(HostId(1), HostId(0), false);
    assert!(reaches(0, 1) && reaches(1, 0));
}

#[test]
fn equal_seeds_make_equal_runs_and_others_do_not() {
    let run = |seed: u64| {
        let network = Network::new(topology(5, Buffer::Shared { bytes: 20_000, alpha: 1.0 }), seed).unwrap();
        let ports: Vec<SimPort> = (0..5).map(|host| open(&network, host)).collect();
        let mut ports = ports;
        network.set_all_faults(LinkFaults { loss: 0.05, duplication: 0.01, ..LinkFaults::default() });
        for round in 1..=50 {
            for to in 0..5 {
                let from = (network.random() % 5) as usize;
                if from != to {
                    let [a, b] = ports.get_disjoint_mut([from, to]).unwrap();
                    send(a, b, 5, 500);
                }
            }
            network.run_until(round * 3_000);
        }
        network.run_until(10_000_000);
        (network.trace_hash(), network.stats())
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert_ne!(first.0, run(8).0);
}

#[test]
fn nonsense_is_refused_by_name_and_field() {
    let refusal = |change: &dyn Fn(&mut Topology)| {
        let mut invalid = topology(2, Buffer::Shared { bytes: 1000, alpha: 1.0 });
        change(&mut invalid);
        Network::new(invalid, 1).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(&|topology| topology.links[1].rate_gbps = 0.0),
        "the link of node1 and switch: rate_gbps cannot be 0: 0.00001 to 4000"
    );
    assert!(refusal(&|topology| topology.links[1].rate_gbps = f64::NAN).contains("rate_gbps cannot be NaN"));
    assert!(refusal(&|topology| topology.links[0].delay_ns = u64::MAX).contains("delay_ns"));
    assert!(refusal(&|topology| topology.links[0].mtu = 0).contains("mtu cannot be 0"));
    assert!(refusal(&|topology| topology.hosts[0].name = "node1".to_owned()).contains("two nodes named `node1`"));
    assert!(refusal(&|topology| topology.links[0].ends[0] = topology.links[0].ends[1]).contains("they are one node"));
    assert!(
        refusal(&|topology| topology.links[0].ends[0] = NodeId::Host(HostId(9))).contains("one of them does not exist")
    );
    assert!(
        refusal(&|topology| topology.switches[0].buffer = Buffer::Shared { bytes: 1, alpha: -1.0 }).contains("alpha")
    );
    assert!(
        refusal(&|topology| topology.switches[0].pause = Some(Pause { off_bytes: 1, on_bytes: 1 }))
            .contains("on_bytes")
    );
    let alone = |topology: &mut Topology| {
        topology.host(HostSpec { name: "alone".to_owned(), transmit_latency_ns: 0, receive_latency_ns: 0 });
    };
    assert_eq!(refusal(&alone), "there is no way from node0 to alone; join them with links");
}

#[test]
fn flows_take_all_of_the_equal_ways() {
    // Two leaves, four spines, and many pairs of ports between the leaves.
    let mut fabric = topology(8, Buffer::PerPort { bytes: 1 << 30 });
    let switch = |name: &str| SwitchSpec {
        name: name.to_owned(),
        latency_ns: 300,
        buffer: Buffer::PerPort { bytes: 1 << 30 },
        ecn: None,
        pause: None,
    };
    let right = NodeId::Switch(fabric.switch(switch("right")));
    for host in 4..8 {
        fabric.links[host].ends[1] = right;
    }
    let mut links = Vec::new();
    for spine in 0..4 {
        let spine = NodeId::Switch(fabric.switch(switch(&format!("spine{spine}"))));
        let join = |a, b| LinkSpec { ends: [a, b], rate_gbps: 40.0, delay_ns: 100, mtu: 1500 };
        let left = fabric.links[0].ends[1];
        links.push(fabric.link(join(left, spine)));
        fabric.link(join(spine, right));
    }
    let network = Network::new(fabric, 1).unwrap();
    let mut ports = Vec::new();
    for host in 0..8 {
        for number in 0..8 {
            let config = PortConfig { arena_bytes: 1 << 16, ..PortConfig::default() };
            ports.push(network.open(HostId(host), &format!("port{host}.{number}"), config).unwrap());
        }
    }
    for left in 0..32 {
        for right in 32..64 {
            let [a, b] = ports.get_disjoint_mut([left, right]).unwrap();
            send(a, b, 1, 64);
        }
    }
    network.run_until(100_000_000);
    assert_eq!(network.stats().delivered, 32 * 32);
    let shares = links.iter().map(|link| network.link_stats(*link)[0].packets).collect::<Vec<_>>();
    assert_eq!(shares.iter().sum::<u64>(), 1024);
    assert!(shares.iter().all(|share| (200..312).contains(share)), "{shares:?}");
}

/// Holds a port, works in its first turns, and then polls and finds nothing.
struct Worker {
    _port: SimPort,
    clock: SimClock,
    turns: u32,
}

impl Actor for Worker {
    fn turn(&mut self) -> ActorState {
        self.turns = self.turns.saturating_sub(1);
        if self.turns == 0 {
            return ActorState::Idle;
        }
        self.clock.spend_ns(100);
        ActorState::Work
    }
}

/// Does nothing.
struct Nobody;

impl Actor for Nobody {
    fn turn(&mut self) -> ActorState {
        ActorState::Idle
    }
}

fn worker(cluster: &mut Cluster, host: usize, turns: u32) -> ActorId {
    let (port, clock) = (open(cluster.network(), host), cluster.clock());
    let place = port.place();
    cluster.add("worker", [place], Box::new(Worker { _port: port, clock, turns }))
}

#[test]
fn cores_that_poll_in_vain_are_charged_for_it() {
    let network = Network::new(topology(2, Buffer::PerPort { bytes: 1 << 20 }), 1).unwrap();
    let mut cluster = Cluster::new(&network);
    let first = worker(&mut cluster, 0, 4);
    cluster.run_until(250);
    assert_eq!(cluster.core_time(first), CoreTime { worked_ns: 250, polled_ns: 0, slept_ns: 0 });
    cluster.run_until(10_000);
    assert_eq!(cluster.core_time(first), CoreTime { worked_ns: 300, polled_ns: 9_700, slept_ns: 0 });
    // Another begins later, and the first stalls.
    let second = worker(&mut cluster, 1, 11);
    cluster.run_until(12_000);
    cluster.pause(first, 15_000);
    cluster.run_until(20_000);
    assert_eq!(cluster.core_time(second), CoreTime { worked_ns: 1_000, polled_ns: 9_000, slept_ns: 0 });
    assert_eq!(cluster.core_time(first), CoreTime { worked_ns: 300, polled_ns: 16_700, slept_ns: 0 });
    // Time beyond now is not charged yet, nor time that would have lasted beyond the end.
    cluster.pause(first, 1_000_000);
    assert_eq!(cluster.core_time(first), CoreTime { worked_ns: 300, polled_ns: 16_700, slept_ns: 0 });
    cluster.crash(second);
    cluster.run_until(30_000);
    cluster.pause(second, 40_000);
    assert_eq!(cluster.core_time(second), CoreTime { worked_ns: 1_000, polled_ns: 9_000, slept_ns: 0 });
    cluster.crash(first);
    cluster.run_until(2_000_000);
    assert_eq!(cluster.core_time(first), CoreTime { worked_ns: 300, polled_ns: 16_700, slept_ns: 0 });
}

#[test]
fn a_port_that_outlives_its_crash_does_not_close_its_successor() {
    let network = Network::new(topology(2, Buffer::PerPort { bytes: 1 << 20 }), 1).unwrap();
    let mut cluster = Cluster::new(&network);
    let first = worker(&mut cluster, 0, 1);
    let crashed = cluster.crash(first);
    let mut successor = open(&network, 0);
    drop(crashed);
    let mut other = open(&network, 1);
    send(&mut other, &successor, 1, 100);
    network.run_until(100_000);
    assert_eq!(receive(&mut successor).len(), 1);
    // Nor does it send or receive in its successor's name.
    let mut late = other;
    network.run_until(200_000);
    let place = late.place();
    let id = cluster.add("crashes", [place], Box::new(Nobody));
    drop(cluster.crash(id));
    let mut other = open(&network, 1);
    send(&mut late, &successor, 1, 100);
    send(&mut successor, &other, 1, 100);
    network.run_until(300_000);
    assert_eq!((receive(&mut successor).len(), receive(&mut late).len(), receive(&mut other).len()), (0, 0, 1));
    drop(late);
    assert_eq!(network.in_flight(), 0);
}
