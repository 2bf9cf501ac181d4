//! The switch, named data, echo, and forwarders between ports.

#[allow(dead_code, reason = "this test's part of it")]
mod common;

use common::*;
use sinew_fabric::frames::cable::Cable;
use sinew_fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame, MacAddress};
use sinew_fabric::loopback::Network;
use sinew_fabric::{ManualClock, PacketPort};
use sinew_forward::echo::Echo;
use sinew_forward::headers::{self, ether_type, ipv4::Ipv4, ndn};
use sinew_forward::named::{self, NameForwarder};
use sinew_forward::router::RouterConfig;
use sinew_forward::switch::{self, LEARNT_NS, Switch};
use sinew_forward::{Application, Form, Forwarder, Reason};
use sinew_interleave::Batch;

const FORMS: [Form; 3] = [Form::Plain, Form::Interleaved(Batch::new()), Form::Grouped];

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

fn frame(to: MacAddress, from: MacAddress) -> Vec<u8> {
    headers::ethernet(to, from, 0x88B5).to_vec()
}

fn ports_of<A: Application>(application: &mut A, from: u16, now_ns: u64, frames: Vec<Vec<u8>>) -> Vec<u16> {
    process(application, from, now_ns, frames).into_iter().map(|(to, _)| to).collect()
}

#[test]
fn a_switch_sends_to_stations_it_knows_and_floods_what_it_does_not() {
    for form in FORMS {
        let stations =
            switch::parse("02:00:00:00:00:01 dev a\n02:00:00:00:00:02 dev b", ["a", "b", "c"].into_iter()).unwrap();
        let mut switch = Switch::new(&stations, 16, true, form, 1).unwrap();
        let flood = u16::MAX;
        let burst = vec![
            frame(mac(2), mac(9)),
            frame(mac(3), mac(9)),
            frame(MacAddress::BROADCAST, mac(1)),
            frame(mac(9), mac(8)),
        ];
        // An address learnt from one frame is known for the whole burst, and no frame returns to the port that it came
        // from.
        assert_eq!(ports_of(&mut switch, 2, 0, burst), [1, flood, flood]);
        assert_eq!(switch.counters().dropped(Reason::Station), 1);
        assert_eq!(ports_of(&mut switch, 0, 0, vec![frame(mac(9), mac(1))]), [2]);
        // A learnt station can move; one from the file cannot.
        ports_of(&mut switch, 0, 0, vec![frame(mac(1), mac(9)), frame(mac(1), mac(2))]);
        assert_eq!(ports_of(&mut switch, 2, 0, vec![frame(mac(9), mac(7)), frame(mac(2), mac(7))]), [0, 1]);
        tick(&mut switch, LEARNT_NS);
        assert_eq!(ports_of(&mut switch, 1, LEARNT_NS, vec![frame(mac(9), mac(2))]), [flood], "forgotten");
        let own = MacAddress([1, 0x80, 0xC2, 0, 0, 0]);
        assert_eq!(ports_of(&mut switch, 1, 0, vec![frame(own, mac(2)), frame(mac(1), own), vec![0; 13]]), []);
    }
}

#[test]
fn strangers_do_not_push_out_what_a_switch_was_told() {
    let stations = vec![(mac(1), 0)];
    let mut switch = Switch::new(&stations, 64, true, Form::default(), 1).unwrap();
    for number in 0..10_000u16 {
        let [a, b] = number.to_be_bytes();
        ports_of(&mut switch, 1, 0, vec![frame(mac(1), MacAddress([2, 1, 1, 1, a, b]))]);
        assert!(switch.stations() <= 64);
    }
    assert_eq!(ports_of(&mut switch, 1, 0, vec![frame(mac(1), mac(5))]), [0]);
}

#[test]
fn interests_go_by_the_longest_prefix_of_their_name() {
    let interest = |components: &[&[u8]], hop_limit| {
        [&headers::ethernet(LAN, HOST, ether_type::NDN)[..], &ndn::interest(components, hop_limit)].concat()
    };
    for form in FORMS {
        let prefixes = named::parse("/org dev b\n/org/example dev c", ["a", "b", "c"].into_iter()).unwrap();
        let mut named = NameForwarder::new(&prefixes, form, 1).unwrap();
        let frames = vec![
            interest(&[b"org", b"other"], 9),
            interest(&[b"com"], 9),
            interest(&[b"org", b"example", b"x"], 1),
            interest(&[b"org", b""], 9),
            interest(&[b"org"], 0),
            udp4("10.1.0.7", "192.0.2.1", 64, 30),
            interest(&[b"org"], 255),
        ];
        let out = process(&mut named, 0, 0, frames);
        let expected = [
            (1, interest(&[b"org", b"other"], 8)),
            (2, interest(&[b"org", b"example", b"x"], 0)),
            (1, interest(&[b"org"], 254)),
        ];
        assert_eq!(out, expected);
        for reason in [Reason::NoRoute, Reason::Name, Reason::TimeToLive, Reason::Type] {
            assert_eq!(named.counters().dropped(reason), 1, "{reason:?}");
        }
    }
}

#[test]
fn echo_sends_where_the_frame_says() {
    let mut echo = Echo::new(3);
    let numbered = |number: u32| [&frame(mac(1), mac(2))[..], &number.to_be_bytes()].concat();
    let out = process(&mut echo, 0, 0, vec![numbered(7), numbered(u32::MAX), vec![0; 17]]);
    assert_eq!(out.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [1, 0]);
    assert_eq!((headers::destination(&out[0].1), headers::source(&out[0].1)), (mac(2), mac(1)));
}

type Port = Cable<sinew_fabric::loopback::LoopbackPort>;

/// Ports of a forwarder, and the ports at the other ends of their cables.
fn cables(count: usize) -> (Vec<Port>, Vec<Port>) {
    let network = Network::new(ManualClock::new());
    (0..count)
        .map(|at| {
            let (near, far) = (network.port(&format!("near{at}")).unwrap(), network.port(&format!("far{at}")).unwrap());
            let (to_near, to_far) = (near.address(), far.address());
            (Cable::to(near, &to_far, mac(at as u8 + 1)).unwrap(), Cable::to(far, &to_near, HOST).unwrap())
        })
        .unzip()
}

fn send(port: &mut Port, frame: &[u8]) {
    port.split().1.push(frame, &[]);
    port.split().1.submit();
}

fn received(port: &mut Port) -> Vec<Vec<u8>> {
    let mut burst = FrameBurst::new(0);
    port.split().0.receive(&mut burst);
    burst.frames.iter().map(|frame| frame.bytes().to_vec()).collect()
}

#[test]
fn a_router_between_ports_asks_and_forwards() {
    let (near, mut far) = cables(2);
    let mut forwarder = Forwarder::new(near, router(RouterConfig::default())).unwrap();
    send(&mut far[0], &udp4("10.1.0.7", "192.0.2.1", 64, 30));
    assert_eq!(forwarder.turn(0), 1);
    let asked = received(&mut far[1]);
    assert_eq!((asked.len(), headers::type_of(&asked[0])), (1, ether_type::ARP));
    send(&mut far[1], &arp(false, ("10.2.0.9", GATEWAY), "10.2.0.1", WAN));
    send(&mut far[0], &udp4("10.1.0.7", "192.0.2.2", 64, 30));
    assert_eq!(forwarder.turn(1), 2);
    forwarder.turn(2);
    let ends: Vec<_> =
        received(&mut far[1]).iter().map(|frame| Ipv4::read(&frame[14..]).unwrap().destination).collect();
    assert_eq!(ends, [v4("192.0.2.1"), v4("192.0.2.2")]);
    assert_eq!(forwarder.sources().len(), 2);
}

#[test]
fn a_switch_between_ports_floods_all_others() {
    let (near, mut far) = cables(3);
    let mut forwarder = Forwarder::new(near, Switch::new(&Vec::new(), 16, true, Form::default(), 1).unwrap()).unwrap();
    send(&mut far[0], &frame(MacAddress::BROADCAST, mac(77)));
    forwarder.turn(0);
    let counts: Vec<usize> = far.iter_mut().map(|port| received(port).len()).collect();
    assert_eq!(counts, [0, 1, 1]);
    send(&mut far[2], &frame(mac(77), mac(78)));
    forwarder.turn(1);
    let counts: Vec<usize> = far.iter_mut().map(|port| received(port).len()).collect();
    assert_eq!(counts, [1, 0, 0]);
}

#[test]
fn more_ports_than_interfaces_can_be_are_refused() {
    let (near, _far) = cables(33);
    assert!(Forwarder::new(near, Echo::new(33)).is_err());
}
