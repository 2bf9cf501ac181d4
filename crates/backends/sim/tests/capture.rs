//! The contents of a simulated network's capture, byte by byte.

use sinew_fabric::{PacketPort, PacketTx, TxData, TxPacket};
use sinew_sim::{Buffer, CaptureConfig, Ecn, HostId, LinkFaults, LinkId, Network, PortConfig, SimPort, Topology};

/// Hosts at a switch, with ports of the same numbers.
fn network(hosts: usize) -> (Network, Vec<SimPort>) {
    let mut topology = Topology::star(hosts, 10.0, 100, 1500);
    for host in &mut topology.hosts {
        (host.transmit_latency_ns, host.receive_latency_ns) = (50, 70);
    }
    topology.switches[0].buffer = Buffer::PerPort { bytes: 1 << 20 };
    topology.switches[0].ecn = Some(Ecn { min_bytes: 0, max_bytes: 0, probability: 1.0 });
    let network = Network::new(topology, 1).unwrap();
    let config = PortConfig { arena_bytes: 1 << 20, ..PortConfig::default() };
    let open = |host: usize| network.open(HostId(host), &format!("port{host}"), config).unwrap();
    let ports = (0..hosts).map(open).collect();
    (network, ports)
}

fn send(ports: &mut [SimPort], from: usize, to: usize, packets: usize, len: usize) {
    let to = ports[to].peer();
    let tx = ports[from].split().1;
    (0..packets).for_each(|_| tx.push(TxPacket { to, head: &vec![7; len], data: TxData::None }));
    tx.submit();
}

/// A packet in a file: its time, hosts and ports, the bytes that were kept, and its length.
#[derive(Debug, PartialEq)]
struct Seen {
    time_ns: u64,
    from: ([u8; 4], u16),
    to: ([u8; 4], u16),
    is_marked: bool,
    kept: usize,
    len: usize,
}

fn read(file: &[u8]) -> Vec<Seen> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xA1B2_3C4D, "times are in nanoseconds");
    let (mut at, mut seen) = (24, Vec::new());
    while at < file.len() {
        let (kept, len) = (word(at + 8) as usize, word(at + 12) as usize);
        let packet = &file[at + 16..at + 16 + kept];
        let half = |at: usize| u16::from_be_bytes(packet[at..at + 2].try_into().unwrap());
        let address = |at: usize| packet[at..at + 4].try_into().unwrap();
        assert_eq!((packet[0], packet[9], half(2) as usize, half(24) as usize), (0x45, 17, len, len - 20));
        seen.push(Seen {
            time_ns: u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)),
            from: (address(12), half(20)),
            to: (address(16), half(22)),
            is_marked: packet[1] == 3,
            kept,
            len,
        });
        at += 16 + kept;
    }
    seen
}

#[test]
fn each_packet_is_there_once_when_it_leaves_its_sender_or_comes_from_another() {
    let (network, mut ports) = network(3);
    network.capture(&[0, 1].map(HostId), CaptureConfig { kept_len_max: 60, ..CaptureConfig::default() });
    send(&mut ports, 0, 1, 1, 100);
    network.run_until(10_000);
    // A packet from a host that is not captured is noted when it leaves the switch; a packet to one, when it leaves its
    // sender.
    send(&mut ports, 2, 0, 1, 20);
    network.run_until(20_000);
    send(&mut ports, 1, 2, 1, 20);
    network.run_until(30_000);
    // Between hosts that are not captured, within one.
    send(&mut ports, 2, 2, 1, 20);
    network.run_until(40_000);
    let capture = network.take_capture().unwrap();
    assert!(network.take_capture().is_none());
    let host = |number: u8| ([10, 0, 0, number + 1], 1024 + u16::from(number));
    let [first, second, third] = &read(&capture.file)[..] else { panic!("three packets: {:?}", read(&capture.file)) };
    let expected = Seen { time_ns: 50, from: host(0), to: host(1), is_marked: false, kept: 60, len: 128 };
    assert_eq!(first, &expected);
    assert_eq!((second.from, second.to, second.kept, second.len), (host(2), host(0), 48, 48));
    // After the host's latency, the link's delay, its head's time there and the switch's latency.
    assert!(second.time_ns >= 10_000 + 50 + 100 + 300, "{second:?}");
    assert_eq!((third.from, third.to, third.time_ns), (host(1), host(2), 20_050));
    assert_eq!((capture.packets, capture.left_out), (3, 0));
}

#[test]
fn marks_are_seen_and_what_a_link_that_is_down_loses_is_not() {
    let (network, mut ports) = network(3);
    network.capture(&[HostId(2)], CaptureConfig::default());
    // Two senders at once: all but the first packet wait in the switch, and are marked.
    send(&mut ports, 0, 2, 2, 900);
    send(&mut ports, 1, 2, 2, 900);
    network.run_until(100_000);
    let of = |host| LinkId(host);
    network.set_link_up(of(2), 1, false);
    send(&mut ports, 0, 2, 1, 900);
    network.run_until(200_000);
    // A link that is up and loses packets has sent them.
    network.set_link_up(of(2), 1, true);
    network.set_faults(of(2), 1, LinkFaults::losing(1.0));
    send(&mut ports, 0, 2, 1, 900);
    network.run_until(300_000);
    let marks: Vec<bool> = read(&network.take_capture().unwrap().file).iter().map(|seen| seen.is_marked).collect();
    assert_eq!((marks.len(), marks.iter().filter(|marked| **marked).count()), (5, 3), "{marks:?}");
    assert_eq!(network.link_stats(of(2))[1].failed, 2);
    // Packets pass again when nothing is captured.
    network.set_faults(of(2), 1, LinkFaults::default());
    send(&mut ports, 0, 2, 1, 900);
    network.run_until(400_000);
    assert_eq!(network.stats().delivered, 5);
}

#[test]
fn a_capture_that_is_full_counts_what_it_leaves_out() {
    let (network, mut ports) = network(2);
    // Room for the head of the file, and two records.
    network.capture(&[HostId(0)], CaptureConfig { kept_len_max: 128, file_len_max: 24 + 2 * (16 + 128) });
    send(&mut ports, 0, 1, 5, 200);
    network.run_until(100_000);
    let capture = network.take_capture().unwrap();
    assert_eq!((capture.packets, capture.left_out, read(&capture.file).len()), (2, 3, 2));
    assert_eq!(capture.file.len(), 24 + 2 * (16 + 128));
}
