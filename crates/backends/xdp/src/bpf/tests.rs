//! Decisions of the programs on frames, made by hand and at random.

use std::collections::HashMap;
use std::net::IpAddr;

use super::interpreter::{Machine, Verdict};
use super::*;
use proptest::prelude::*;

const PLACES: i32 = 7;
const SOCKETS: i32 = 9;

fn run(program: &[Instruction], places: &HashMap<[u8; KEY_LEN], u32>, frame: &[u8], queue: u32) -> Verdict {
    let bytes: Vec<u8> = program.iter().flat_map(|instruction| instruction.to_bytes()).collect();
    Machine { places, places_fd: PLACES, sockets_fd: SOCKETS, frame, queue }.run(&bytes)
}

fn decide(places: &[(&str, Option<u16>, u32)], frame: &[u8]) -> Verdict {
    let places = places.iter().map(|(ip, port, slot)| (key(ip.parse().unwrap(), *port), *slot)).collect();
    run(&take_places(PLACES, SOCKETS), &places, frame, 3)
}

fn ethernet(kind: u16, rest: &[u8]) -> Vec<u8> {
    [&[2; 12], &kind.to_be_bytes()[..], rest].concat()
}

fn udp(to_port: u16) -> Vec<u8> {
    [&[9, 9][..], &to_port.to_be_bytes(), &[0, 8, 0, 0]].concat()
}

fn v4(to: &str, protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let IpAddr::V4(to) = to.parse().unwrap() else { panic!() };
    let mut header = [0; 20];
    header[0] = 0x45;
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header[9] = protocol;
    header[16..].copy_from_slice(&to.octets());
    ethernet(0x0800, &[&header, rest].concat())
}

fn v6(to: &str, next: u8, rest: &[u8]) -> Vec<u8> {
    let IpAddr::V6(to) = to.parse().unwrap() else { panic!() };
    let mut header = [0; 40];
    header[0] = 0x60;
    header[6] = next;
    header[24..].copy_from_slice(&to.octets());
    ethernet(0x86DD, &[&header, rest].concat())
}

fn arp(to: &str) -> Vec<u8> {
    let IpAddr::V4(to) = to.parse().unwrap() else { panic!() };
    ethernet(0x0806, &[&[0; 24], &to.octets()[..]].concat())
}

fn solicitation(about: &str) -> Vec<u8> {
    let IpAddr::V6(about) = about.parse().unwrap() else { panic!() };
    v6("ff02::1:ff00:1", 58, &[&[135, 0, 0, 0, 0, 0, 0, 0], &about.octets()[..]].concat())
}

fn slot(slot: u32) -> Verdict {
    Verdict::Redirect(slot * QUEUES_MAX + 3)
}

#[test]
fn a_frame_for_a_place_goes_to_the_port_that_has_it_at_its_queue() {
    let places = [("10.0.0.1", Some(7000), 5), ("10.0.0.1", Some(7001), 6), ("fd00::1", Some(7000), 7)];
    assert_eq!(decide(&places, &v4("10.0.0.1", 17, 0, &udp(7000))), slot(5));
    assert_eq!(decide(&places, &v4("10.0.0.1", 17, 0x4000, &udp(7001))), slot(6), "not to be cut");
    assert_eq!(decide(&places, &v6("fd00::1", 17, &udp(7000))), slot(7));
    for (what, frame) in [
        ("another port", v4("10.0.0.1", 17, 0, &udp(7002))),
        ("another address", v4("10.0.0.2", 17, 0, &udp(7000))),
        ("another protocol", v4("10.0.0.1", 6, 0, &udp(7000))),
        ("another address of IPv6", v6("fd00::2", 17, &udp(7000))),
        ("an address of IPv4 in IPv6", v6("::ffff:10.0.0.1", 6, &udp(7000))),
        ("ARP, which the kernel answers", arp("10.0.0.1")),
        ("neighbour discovery", solicitation("fd00::1")),
        ("the later part of a packet", v4("10.0.0.1", 17, 3, &udp(7000))),
        ("another kind", ethernet(0x88B5, &[0; 60])),
    ] {
        assert_eq!(decide(&places, &frame), Verdict::Pass, "{what}");
    }
    assert_eq!(decide(&places, &v4("10.0.0.1", 17, 0x2000, &udp(7000))), slot(5), "the first part, to be counted");
}

#[test]
fn a_whole_address_has_what_no_place_takes_and_who_asks_for_it() {
    let places = [("10.0.0.9", None, 1), ("10.0.0.9", Some(80), 2), ("fd00::9", None, 3)];
    assert_eq!(decide(&places, &v4("10.0.0.9", 17, 0, &udp(80))), slot(2));
    for frame in
        [v4("10.0.0.9", 17, 0, &udp(81)), v4("10.0.0.9", 6, 0, &[]), v4("10.0.0.9", 17, 3, &[]), arp("10.0.0.9")]
    {
        assert_eq!(decide(&places, &frame), slot(1));
    }
    for frame in
        [v6("fd00::9", 17, &udp(1)), v6("fd00::9", 58, &[136; 24]), v6("fd00::9", 6, &[]), solicitation("fd00::9")]
    {
        assert_eq!(decide(&places, &frame), slot(3));
    }
    for frame in [arp("10.0.0.8"), solicitation("fd00::8"), v4("10.0.0.8", 17, 0, &udp(80))] {
        assert_eq!(decide(&places, &frame), Verdict::Pass);
    }
}

#[test]
fn a_frame_that_is_cut_short_is_the_kernels() {
    let places = [("10.0.0.1", Some(7000), 5), ("fd00::1", Some(7000), 7)];
    for (frame, header) in [(v4("10.0.0.1", 17, 0, &udp(7000)), 42), (v6("fd00::1", 17, &udp(7000)), 62)] {
        assert_eq!(frame.len(), header);
        for len in 0..header {
            assert_eq!(decide(&places, &frame[..len]), Verdict::Pass, "{len} bytes");
        }
        assert_ne!(decide(&places, &frame), Verdict::Pass);
    }
    let mut with_options = v4("10.0.0.1", 17, 0, &udp(7000));
    with_options[14] = 0x46;
    assert_eq!(decide(&places, &with_options), Verdict::Pass);
}

#[test]
fn who_takes_all_gets_all_and_no_queue_beyond_the_last() {
    let program = take_all(SOCKETS);
    for (queue, verdict) in [(0, Verdict::Redirect(0)), (63, Verdict::Redirect(63)), (64, Verdict::Pass)] {
        assert_eq!(run(&program, &HashMap::new(), &[], queue), verdict);
    }
}

proptest! {
    /// The machine checks every access, and the oracle says in plain code which keys match a frame.
    #[test]
    fn any_frame_is_decided_as_the_places_say(
        mut frame in prop::collection::vec(any::<u8>(), 0..100),
        kind in 0usize..5,
        queue in 0u32..70,
        short in any::<bool>(),
    ) {
        let kinds = [0x0800u16, 0x86DD, 0x0806, 0x0800, 0x86DD];
        if frame.len() > 23 {
            frame[12..14].copy_from_slice(&kinds[kind].to_be_bytes());
            if short {
                frame[14] = 0x45;
                frame[20..22].fill(0);
                // The next header of IPv6, and the protocol of IPv4.
                (frame[20], frame[23]) = (if kind == 1 { 17 } else { 58 * u8::from(kind == 4) }, 17);
            }
        }
        let places: HashMap<_, _> = oracle(&frame).into_iter().enumerate().map(|(n, key)| (key, n as u32)).collect();
        let expected = match oracle(&frame).first() {
            Some(_) if queue < 64 => Verdict::Redirect(queue),
            _ => Verdict::Pass,
        };
        let program = take_places(PLACES, SOCKETS);
        prop_assert_eq!(run(&program, &places, &frame, queue), expected);
        prop_assert_eq!(run(&program, &HashMap::new(), &frame, queue), Verdict::Pass);
    }
}

/// The keys by which a frame is looked up, in order.
fn oracle(frame: &[u8]) -> Vec<[u8; KEY_LEN]> {
    let v4 = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let v6 = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
    let port = |at: usize| Some(u16::from_be_bytes([frame[at], frame[at + 1]]));
    match frame.get(12..14) {
        Some([0x08, 0x00]) if frame.len() >= 34 && frame[14] == 0x45 => {
            let is_first_udp = frame[23] == 17 && frame[20] & 0x1F == 0 && frame[21] == 0;
            match is_first_udp {
                true if frame.len() >= 42 => vec![key(v4(30), port(36)), key(v4(30), None)],
                true => vec![],
                false => vec![key(v4(30), None)],
            }
        }
        Some([0x86, 0xDD]) if frame.len() >= 54 => match frame[20] {
            17 if frame.len() >= 62 => vec![key(v6(38), port(56)), key(v6(38), None)],
            17 => vec![],
            58 if frame.len() >= 78 && frame[54] == 135 => vec![key(v6(62), None)],
            _ => vec![key(v6(38), None)],
        },
        Some([0x08, 0x06]) if frame.len() >= 42 => vec![key(v4(38), None)],
        _ => vec![],
    }
}
