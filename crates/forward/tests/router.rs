//! A router between two links, fed with frames made by hand, in virtual time.

#[allow(dead_code, reason = "this test's part of it")]
mod common;

use common::*;
use sinew_fabric::frames::MacAddress;
use sinew_forward::headers::arp::Arp;
use sinew_forward::headers::discovery::Discovery;
use sinew_forward::headers::icmp;
use sinew_forward::headers::ipv4::{self, Ipv4};
use sinew_forward::headers::ipv6::{self, Ipv6};
use sinew_forward::headers::{self, ether_type};
use sinew_forward::router::{ErrorRate, Router, RouterConfig};
use sinew_forward::{Application, FRESH_NS, Form, RETRANSMIT_NS, Reason, WAITING_PER_NEIGHBOUR_MAX};
use sinew_interleave::Batch;
use sinew_wire::checksum::Sum;

fn default_router() -> Router {
    router_with_neighbours(RouterConfig::default())
}

/// The ICMP message in a frame, after a check of its checksums.
fn icmp_of(frame: &[u8]) -> (Ipv4, &[u8]) {
    assert_eq!(headers::type_of(frame), ether_type::IPV4);
    let read = Ipv4::read(&frame[14..]).unwrap();
    let message = &frame[14 + read.header_len..14 + read.total_len];
    assert_eq!((read.protocol, Sum::default().with(message).is_right()), (1, true));
    (read, message)
}

fn icmp6_of(frame: &[u8]) -> (Ipv6, &[u8]) {
    assert_eq!(headers::type_of(frame), ether_type::IPV6);
    let read = Ipv6::read(&frame[14..]).unwrap();
    let message = &frame[54..14 + read.total_len];
    assert!(icmp::sum_v6(message, read.source, read.destination).is_right());
    (read, message)
}

#[test]
fn packets_go_on_with_one_hop_less_and_new_addresses() {
    let mut router = default_router();
    let sent = udp4("10.1.0.7", "192.0.2.1", 64, 30);
    let out = process(&mut router, 0, 1, vec![sent.clone(), udp6("2001:db8:1::7", "2001:db8:9::1", 64, 30)]);
    let [(1, first), (1, second)] = &out[..] else { panic!("{out:?}") };
    for frame in [first, second] {
        assert_eq!((headers::destination(frame), headers::source(frame)), (GATEWAY, WAN));
    }
    let read = Ipv4::read(&first[14..]).unwrap();
    assert_eq!((read.ttl, read.destination), (63, v4("192.0.2.1")));
    assert_eq!(first[34..], sent[34..], "what it carries is untouched");
    assert_eq!(Ipv6::read(&second[14..]).unwrap().hop_limit, 63);
    assert_eq!(router.counters().forwarded, 2);
}

#[test]
fn destinations_on_a_link_are_asked_for_and_frames_wait_meanwhile() {
    let mut router = router(RouterConfig::default());
    let packet = |len| udp4("10.1.0.7", "10.2.0.77", 64, len);
    let out = process(&mut router, 0, 0, (0..10).map(packet).collect());
    let [(1, question)] = &out[..] else { panic!("{out:?}") };
    let asked = Arp::read(&question[14..]).unwrap();
    assert_eq!((asked.is_request, asked.target, asked.sender), (true, v4("10.2.0.77"), v4("10.2.0.1")));
    assert_eq!(headers::destination(question), MacAddress::BROADCAST);
    assert_eq!(router.counters().dropped(Reason::QueueFull), (10 - WAITING_PER_NEIGHBOUR_MAX) as u64);
    assert_eq!(router.neighbours(), (0, WAITING_PER_NEIGHBOUR_MAX));
    // A frame ahead of the answer, in the same burst, leaves after those that waited.
    let answer = arp(false, ("10.2.0.77", GATEWAY), "10.2.0.1", WAN);
    let mut late = packet(99);
    headers::set_addresses(&mut late, WAN, GATEWAY);
    let out = process(&mut router, 1, 5, vec![late, answer]);
    let lens: Vec<usize> = out.iter().map(|(_, frame)| frame.len() - 42).collect();
    assert_eq!(lens, [0, 1, 2, 3, 4, 5, 6, 7, 99]);
    assert!(out.iter().all(|(to, frame)| *to == 1 && headers::destination(frame) == GATEWAY));
    assert!(out.iter().all(|(_, frame)| Ipv4::read(&frame[14..]).unwrap().ttl == 63));
    assert_eq!(router.counters().forwarded, 9);
}

#[test]
fn neighbours_of_ipv6_are_asked_for_in_their_group() {
    let mut router = router(RouterConfig::default());
    let out = process(&mut router, 0, 0, vec![udp6("2001:db8:1::7", "2001:db8:9::1", 64, 3)]);
    let [(1, question)] = &out[..] else { panic!("{out:?}") };
    let (read, message) = icmp6_of(question);
    let asked = Discovery::read(message).unwrap();
    assert!(asked.is_solicitation && asked.mac == Some(WAN.0) && asked.target == v6("fe80::9"));
    assert_eq!((read.hop_limit, read.destination), (255, v6("ff02::1:ff00:9")));
    assert_eq!(headers::destination(question), MacAddress([0x33, 0x33, 0xFF, 0, 0, 9]));
    let answer = neighbour(false, "fe80::9", Some(GATEWAY));
    let out = process(&mut router, 1, 1, vec![icmp6("fe80::9", "fe80::ff:fe00:2", 255, WAN, answer)]);
    let [(1, waited)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((headers::destination(waited), waited.len()), (GATEWAY, 14 + 40 + 8 + 3));
}

#[test]
fn who_does_not_answer_is_reported_to_senders() {
    let mut router = router_with_neighbours(RouterConfig::default());
    process(
        &mut router,
        0,
        0,
        vec![udp4("10.1.0.7", "10.2.0.77", 64, 5), udp6("2001:db8:1::7", "2001:db8:2::77", 64, 5)],
    );
    assert_eq!(tick(&mut router, RETRANSMIT_NS).len(), 2, "asked again");
    assert_eq!(tick(&mut router, 2 * RETRANSMIT_NS).len(), 2);
    let out = tick(&mut router, 3 * RETRANSMIT_NS);
    let [(0, first), (0, second)] = &out[..] else { panic!("{out:?}") };
    let (read, message) = icmp_of(first);
    assert_eq!((&message[..2], read.destination), (&[3, 1][..], v4("10.1.0.7")));
    let (read, message) = icmp6_of(second);
    assert_eq!((&message[..2], read.destination), (&[1, 3][..], v6("2001:db8:1::7")));
    assert_eq!(router.counters().dropped(Reason::Neighbour), 2);
    let out = process(&mut router, 0, 3 * RETRANSMIT_NS + 1, vec![udp4("10.1.0.7", "10.2.0.77", 64, 5)]);
    assert_eq!(icmp_of(&out[0].1).1[..2], [3, 1], "at once, for a while");
    assert_eq!(router.next_ns(), None);
}

#[test]
fn questions_for_its_addresses_are_answered_and_their_senders_learnt() {
    let mut router = router(RouterConfig::default());
    let question = arp(true, ("10.1.0.7", HOST), "10.1.0.1", MacAddress::BROADCAST);
    let out = process(&mut router, 0, 0, vec![question.clone()]);
    let [(0, answer)] = &out[..] else { panic!("{out:?}") };
    let read = Arp::read(&answer[14..]).unwrap();
    assert_eq!(
        (read.is_request, MacAddress(read.sender_mac), read.sender, read.target),
        (false, LAN, v4("10.1.0.1"), v4("10.1.0.7"))
    );
    assert_eq!(headers::destination(answer), HOST);
    assert_eq!(router.neighbours().0, 1);
    // Requests for the other link's address or another host's are ignored, and no sender off the link is learnt.
    for (from, target) in [("10.1.0.8", "10.2.0.1"), ("10.1.0.8", "10.1.0.9"), ("10.5.0.8", "10.1.0.9")] {
        assert_eq!(process(&mut router, 0, 0, vec![arp(true, (from, HOST), target, MacAddress::BROADCAST)]), []);
    }
    let out = process(&mut router, 0, 0, vec![arp(true, ("10.5.0.8", HOST), "10.1.0.1", MacAddress::BROADCAST)]);
    assert_eq!((out.len(), router.neighbours().0), (1, 1));
    // A stranger's unsolicited answer is not kept.
    process(&mut router, 0, 0, vec![arp(false, ("10.1.0.99", HOST), "10.1.0.1", LAN)]);
    assert_eq!(router.neighbours().0, 1);

    let solicitation = neighbour(true, "2001:db8:1::1", Some(HOST));
    let group = MacAddress([0x33, 0x33, 0xFF, 0, 0, 1]);
    let out =
        process(&mut router, 0, 0, vec![icmp6("2001:db8:1::7", "ff02::1:ff00:1", 255, group, solicitation.clone())]);
    let [(0, answer)] = &out[..] else { panic!("{out:?}") };
    let (packet, message) = icmp6_of(answer);
    let advertisement = Discovery::read(message).unwrap();
    assert!(
        !advertisement.is_solicitation
            && advertisement.is_solicited
            && advertisement.is_router
            && advertisement.mac == Some(LAN.0)
    );
    assert_eq!((packet.destination, packet.hop_limit, headers::destination(answer)), (v6("2001:db8:1::7"), 255, HOST));
    assert_eq!(router.neighbours().0, 2);
    // A host that probes whether an address is free is answered by multicast to all nodes.
    let probe = neighbour(true, "2001:db8:1::1", None);
    let out = process(&mut router, 0, 0, vec![icmp6("::", "ff02::1:ff00:1", 255, group, probe)]);
    assert_eq!(icmp6_of(&out[0].1).0.destination, v6("ff02::1"));
    // A solicitation that passed a router is invalid.
    let out = process(&mut router, 0, 0, vec![icmp6("2001:db8:1::7", "ff02::1:ff00:1", 254, group, solicitation)]);
    assert_eq!((out.len(), router.counters().dropped(Reason::Discovery)), (0, 1));
}

#[test]
fn echoes_of_its_addresses_are_answered() {
    let mut router = default_router();
    for to in ["10.1.0.1", "10.2.0.1"] {
        let out =
            process(&mut router, 0, 0, vec![icmp4("10.1.0.7", to, [&[8, 0, 0, 0, 1, 2, 3, 4][..], b"hello"].concat())]);
        let [(0, answer)] = &out[..] else { panic!("{out:?}") };
        let (read, message) = icmp_of(answer);
        assert_eq!((message[0], &message[4..]), (0, &b"\x01\x02\x03\x04hello"[..]));
        assert_eq!((read.source, read.destination), (v4(to), v4("10.1.0.7")));
    }
    for (to, from) in [("2001:db8:2::1", "2001:db8:1::7"), ("fe80::ff:fe00:1", "2001:db8:1::7")] {
        let message = [&[128, 0, 0, 0, 1, 2, 3, 4][..], b"hello"].concat();
        let out = process(&mut router, 0, 0, vec![icmp6(from, to, 64, LAN, message)]);
        let [(0, answer)] = &out[..] else { panic!("{out:?}") };
        let (read, message) = icmp6_of(answer);
        assert_eq!((message[0], &message[8..], read.source), (129, &b"hello"[..], v6(to)));
    }
    assert_eq!(router.counters().handled_locally, 4);
}

#[test]
fn what_cannot_go_on_is_refused_and_its_sender_told_why() {
    let mut router = default_router();
    for (frame, reason, type_and_code) in [
        (udp4("10.1.0.7", "192.0.2.1", 1, 30), Reason::TimeToLive, [11, 0]),
        (udp4("10.1.0.7", "192.0.2.1", 0, 30), Reason::TimeToLive, [11, 0]),
        (udp4("10.1.0.7", "10.9.0.1", 64, 30), Reason::Prohibited, [3, 13]),
        (udp4("10.1.0.7", "10.1.0.1", 64, 30), Reason::Local, [3, 3]),
        (udp4("10.1.0.7", "192.0.2.1", 64, 1400), Reason::TooBig, [3, 4]),
    ] {
        let before = router.counters().dropped(reason);
        let out = process(&mut router, 0, 0, vec![frame.clone()]);
        let [(0, answer)] = &out[..] else { panic!("{reason:?}: {out:?}") };
        let (read, message) = icmp_of(answer);
        assert_eq!(message[..2], type_and_code, "{reason:?}");
        assert_eq!((read.source, read.destination), (v4("10.1.0.1"), v4("10.1.0.7")));
        assert!(frame[14..].starts_with(&message[8..]) && read.total_len <= 576);
        let mtu = if reason == Reason::TooBig { 1280u16 } else { 0 };
        assert_eq!(message[6..8], mtu.to_be_bytes());
        assert_eq!(router.counters().dropped(reason), before + 1);
    }
    for (frame, reason, type_and_code) in [
        (udp6("2001:db8:1::7", "2001:db8:9::1", 1, 30), Reason::TimeToLive, [3, 0]),
        (udp6("2001:db8:1::7", "2001:db8:8::1", 64, 30), Reason::Prohibited, [1, 1]),
        (udp6("2001:db8:1::7", "2001:db8:7::1", 64, 30), Reason::NoRoute, [1, 0]),
        (udp6("2001:db8:1::7", "2001:db8:1::1", 64, 30), Reason::Local, [1, 4]),
        (udp6("2001:db8:1::7", "2001:db8:9::1", 64, 1300), Reason::TooBig, [2, 0]),
    ] {
        let out = process(&mut router, 0, 0, vec![frame.clone()]);
        let [(0, answer)] = &out[..] else { panic!("{reason:?}: {out:?}") };
        let (read, message) = icmp6_of(answer);
        assert_eq!(message[..2], type_and_code, "{reason:?}");
        assert!(frame[14..].starts_with(&message[8..]) && read.total_len <= 1280);
        let mtu = if reason == Reason::TooBig { 1280u32 } else { 0 };
        assert_eq!(message[4..8], mtu.to_be_bytes());
    }
}

#[test]
fn errors_are_not_answered_with_errors_and_not_sent_without_end() {
    let mut router = default_router();
    let quiet = [
        icmp4("10.1.0.7", "10.9.0.1", vec![3, 1, 0, 0, 0, 0, 0, 0]),
        icmp6("2001:db8:1::7", "2001:db8:8::1", 64, LAN, vec![1, 0, 0, 0, 0, 0, 0, 0]),
        {
            let mut later_piece = udp4("10.1.0.7", "10.9.0.1", 64, 30);
            later_piece[20..22].copy_from_slice(&[0, 5]);
            ipv4::seal(&mut later_piece[14..34]);
            later_piece
        },
    ];
    assert_eq!(process(&mut router, 0, 0, quiet.to_vec()), []);
    assert_eq!(router.counters().dropped(Reason::Prohibited), 3);

    let mut router =
        router_with_neighbours(RouterConfig { errors: ErrorRate { per_s: 10, at_once: 4 }, ..RouterConfig::default() });
    let burst = || vec![udp4("10.1.0.7", "10.9.0.1", 64, 30); 20];
    assert_eq!(process(&mut router, 0, 0, burst()).len(), 4);
    assert_eq!(process(&mut router, 0, 200_000_000, burst()).len(), 2);
    assert_eq!((router.counters().errors_suppressed, router.counters().dropped(Reason::Prohibited)), (34, 40));
}

#[test]
fn packets_that_may_be_cut_go_on_in_pieces() {
    let mut router = default_router();
    let mut frame = udp4("10.1.0.7", "192.0.2.1", 64, 1400);
    frame[20..22].fill(0);
    ipv4::seal(&mut frame[14..34]);
    let out = process(&mut router, 0, 0, vec![frame.clone()]);
    let mut payload = vec![0; 1408];
    for (to, piece) in &out {
        let read = Ipv4::read(&piece[14..]).unwrap();
        assert!(*to == 1 && read.total_len <= 1280 && read.ttl == 63);
        let at = usize::from(read.fragment & ipv4::OFFSET) * 8;
        payload[at..at + read.total_len - 20].copy_from_slice(&piece[34..]);
    }
    assert_eq!((out.len(), &payload[..]), (2, &frame[34..]));
}

#[test]
fn what_pads_a_frame_does_not_make_it_too_long() {
    let mut router = default_router();
    let mut frame = udp4("10.1.0.7", "192.0.2.1", 64, 10);
    let len = frame.len();
    frame.resize(1500, 0);
    let out = process(&mut router, 0, 0, vec![frame]);
    assert_eq!(out[0].1.len(), len);
}

#[test]
fn malformed_and_foreign_frames_are_counted_by_reason() {
    let good = udp4("10.1.0.7", "192.0.2.1", 64, 30);
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        let end = 14 + usize::from(frame[14] & 0xF).max(5) * 4;
        ipv4::seal(&mut frame[14..end]);
        frame
    };
    let raw = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame
    };
    let cases = [
        (good[..13].to_vec(), Reason::Truncated),
        (good[..33].to_vec(), Reason::Truncated),
        (good[..60].to_vec(), Reason::Truncated),
        (sealed(&|frame| frame[14] = 0x65), Reason::Version),
        (sealed(&|frame| frame[14] = 0x44), Reason::Length),
        (sealed(&|frame| frame[17] = 19), Reason::Length),
        (raw(&|frame| frame[24] ^= 1), Reason::Checksum),
        (
            sealed(&|frame| {
                frame[14] = 0x46;
                frame[34..38].copy_from_slice(&[131, 4, 4, 0]);
            }),
            Reason::SourceRoute,
        ),
        (
            sealed(&|frame| {
                frame[14] = 0x46;
                frame[34..38].copy_from_slice(&[7, 9, 4, 0]);
            }),
            Reason::Options,
        ),
        (sealed(&|frame| frame[26] = 127), Reason::Source),
        (sealed(&|frame| frame[26] = 255), Reason::Source),
        (sealed(&|frame| frame[26..30].fill(0)), Reason::Source),
        (sealed(&|frame| frame[30] = 127), Reason::Destination),
        (sealed(&|frame| frame[30] = 224), Reason::Destination),
        (sealed(&|frame| frame[30..34].fill(255)), Reason::Destination),
        (raw(&|frame| frame[0] = 0xFF), Reason::Destination),
        (raw(&|frame| frame[5] = 9), Reason::NotForUs),
        (raw(&|frame| frame[6] |= 1), Reason::Source),
        (raw(&|frame| frame[12..14].copy_from_slice(&[0x81, 0])), Reason::Type),
        (raw(&|frame| frame[12..14].copy_from_slice(&[8, 6])), Reason::Arp),
        (udp6("fe80::7", "2001:db8:9::1", 64, 3), Reason::Source),
        (udp6("::1", "2001:db8:9::1", 64, 3), Reason::Source),
        (udp6("2001:db8:1::7", "::1", 64, 3), Reason::Destination),
        (udp6("2001:db8:1::7", "fe80::1", 64, 3), Reason::Destination),
        (udp6("2001:db8:1::7", "ff0e::1", 64, 3), Reason::Destination),
        (udp6("2001:db8:1::7", "2001:db8:9::1", 64, 3)[..60].to_vec(), Reason::Truncated),
    ];
    let mut router = default_router();
    for (frame, reason) in cases {
        let before = router.counters().dropped(reason);
        let out = process(&mut router, 0, 0, vec![frame]);
        assert_eq!((router.counters().dropped(reason), out.len()), (before + 1, 0), "{reason:?}");
    }
}

#[test]
fn neighbours_known_for_long_are_asked_by_their_own_address() {
    let mut router = default_router();
    let out = process(&mut router, 0, FRESH_NS + 1, vec![udp4("10.1.0.7", "192.0.2.1", 64, 30)]);
    let [(1, question), (1, sent)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((headers::type_of(question), headers::destination(question)), (ether_type::ARP, GATEWAY));
    assert_eq!(headers::destination(sent), GATEWAY);
}

#[test]
fn nobody_is_told_about_packets_to_a_networks_edges() {
    let mut router = default_router();
    let edges = ["10.2.0.0", "10.2.0.255"].map(|edge| udp4("10.1.0.7", edge, 64, 30));
    assert_eq!(process(&mut router, 0, 0, edges.to_vec()), []);
    assert_eq!(router.counters().dropped(Reason::Prohibited), 2);
}

#[test]
fn tables_are_exchanged_between_bursts_and_neighbours_stay_known() {
    let mut router = default_router();
    let packet = || vec![udp4("10.1.0.7", "10.9.0.1", 64, 30)];
    process(&mut router, 0, 0, packet());
    assert_eq!(router.counters().dropped(Reason::Prohibited), 1);
    router.install(fib("10.9.0.0/16 via 10.2.0.9 dev wan"));
    let out = process(&mut router, 0, 0, packet());
    assert_eq!((out[0].0, headers::destination(&out[0].1)), (1, GATEWAY));
    let out = process(&mut router, 0, 0, vec![udp4("10.1.0.7", "192.0.2.1", 64, 30)]);
    assert_eq!(icmp_of(&out[0].1).1[..2], [3, 0], "the default route is gone");
}

#[test]
fn the_three_forms_decide_alike() {
    let forms =
        [Form::Plain, Form::Interleaved(Batch::new()), Form::Interleaved(Batch::of_width(3).unwrap()), Form::Grouped];
    let burst = || {
        let mut frames: Vec<_> = (0..20u8).map(|at| udp4("10.1.0.7", &format!("10.{at}.0.1"), 64, 30)).collect();
        frames.extend((0..20u8).map(|at| udp6("2001:db8:1::7", &format!("2001:db8:{at}::1"), 64, 30)));
        frames.insert(7, vec![0; 14]);
        frames
    };
    let of =
        |form| process(&mut router_with_neighbours(RouterConfig { form, ..RouterConfig::default() }), 0, 0, burst());
    let expected = of(Form::Plain);
    assert!(expected.len() > 20);
    for form in forms {
        assert_eq!(of(form), expected, "{form:?}");
    }
}

#[test]
fn an_ipv6_packet_with_extension_headers_goes_on_and_is_answered() {
    let mut router = default_router();
    let header = ipv6::header(v6("2001:db8:1::7"), v6("2001:db8:9::1"), 0, 64, 8 + 8);
    let extension = [17, 0, 1, 4, 0, 0, 0, 0];
    let mut frame = [&headers::ethernet(LAN, HOST, ether_type::IPV6)[..], &header, &extension, &[0; 8]].concat();
    let out = process(&mut router, 0, 0, vec![frame.clone()]);
    assert_eq!(out[0].0, 1);
    frame[21] = 1;
    let out = process(&mut router, 0, 0, vec![frame]);
    assert_eq!(icmp6_of(&out[0].1).1[..2], [3, 0]);
}
