//! Congestion control of sessions: what is measured, what slows a session down, and what does not.

mod common;

use std::collections::VecDeque;

use common::handmade::{HandServer, OFFER, parse};
use common::*;
use sinew_fabric::SeededGenerator;
use sinew_fabric::layer::{Layer, Layered, OwnedPacket, Pool};
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Algorithm, Config, Congestion, DcqcnConfig, Nexus, Rpc, SwiftConfig, TimelyConfig};
use sinew_wire::management::Offer;
use sinew_wire::{Header, Kind, residence};

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// Packets of 1,000 bytes of data and a header.
fn frames() -> LoopbackConfig {
    LoopbackConfig { packet_len_max: 1024, ..LoopbackConfig::default() }
}

fn config(algorithm: Algorithm) -> Config {
    let congestion = Congestion { rtts_kept: 100, ..Congestion::new(8.192, algorithm) };
    Config { congestion: Some(congestion), ..Config::default() }
}

/// An algorithm whose rate falls to 1,024 B per ms with the first long round trip.
fn slow_timely() -> Algorithm {
    let timely =
        TimelyConfig { cut: 1.0, high_ns: US, low_ns: US, rate_min_bytes_per_s: 1.024e6, ..TimelyConfig::default() };
    Algorithm::Timely(TimelyConfig { is_patched: false, ..timely })
}

fn hand(world: &World, config: Config) -> (Endpoint, HandServer) {
    let mut client = world.client(config, frames());
    let server = HandServer::connected(world, &mut client, Offer { data_per_packet: 1000, ..OFFER });
    (client, server)
}

/// Makes one call whose answer takes `ns`, and says that the server kept the request for `kept_ns`.
fn round_trip(world: &World, client: &mut Endpoint, server: &HandServer, ns: u64, kept_ns: u64) {
    send(client, server.session, ECHO, &[1; 32], 0);
    let sent = server.turn(client);
    let (header, _) = sent[0];
    world.clock.advance(ns);
    let mut answer = server.header(Kind::Response, header.request_number, 0, 32);
    answer.type_or_residence = residence::encode(kept_ns);
    server.send(answer, &[1; 32]);
    client.turn();
    assert_eq!(completions(client).len(), 1);
}

/// Lets time pass during which nobody turns the endpoint.
fn idle(world: &World, client: &mut Endpoint, ns: u64) {
    while client.turn() {}
    world.clock.advance(ns);
}

#[test]
fn the_time_that_the_server_kept_a_request_is_not_in_its_round_trip() {
    let world = World::new();
    let (mut client, server) = hand(&world, config(slow_timely()));
    round_trip(&world, &mut client, &server, 3 * MS, 0);
    round_trip(&world, &mut client, &server, 3 * MS, 2 * MS);
    // A residence longer than the round trip: no clock runs backwards.
    round_trip(&world, &mut client, &server, MS, 20 * MS);
    let rtts: Vec<u64> = std::iter::from_fn(|| client.poll_rtt_ns()).collect();
    let packed = residence::decode(residence::encode(2 * MS));
    let exactly = packed + packed / 2048;
    assert_eq!(rtts, [3 * MS, 3 * MS - exactly, 0]);
}

#[test]
fn a_packet_that_was_sent_twice_is_measured_by_an_answer_to_its_first_copy_alone() {
    for is_copy in [false, true] {
        let world = World::new();
        let (mut client, server) = hand(&world, config(slow_timely()));
        send(&mut client, server.session, ECHO, &[1; 32], 0);
        let first = server.turn(&mut client)[0].0;
        let timeout_ns = client.config().retransmit_timeout_ns;
        world.clock.advance(timeout_ns);
        let again = server.turn(&mut client)[0].0;
        assert_eq!((first.is_copy, again), (false, Header { is_copy: true, ..first }));
        let answer = server.header(Kind::Response, first.request_number, 0, 32);
        server.send(Header { is_copy, ..answer }, &[1; 32]);
        client.turn();
        let expected_ns = (!is_copy).then_some(timeout_ns);
        assert_eq!((completions(&mut client).len(), client.poll_rtt_ns()), (1, expected_ns));
    }
}

#[test]
fn an_answer_that_may_stand_for_copies_too_measures_nothing() {
    let world = World::new();
    let (mut client, server) = hand(&world, config(slow_timely()));
    send(&mut client, server.session, ECHO, &[1; 35_000], 0);
    let number = server.turn(&mut client)[0].0.request_number;
    world.clock.advance(client.config().retransmit_timeout_ns);
    assert!(server.turn(&mut client).iter().all(|(header, _)| header.is_copy));
    let answer = server.header(Kind::CreditReturn, number, 0, 0);
    server.send(Header { is_copy: true, ..answer }, &[]);
    assert!(matches!(server.turn(&mut client)[..], [(Header { packet_number: 32, is_copy: false, .. }, _)]));
    // An answer to that packet, which left once, also answers all packets before it. The last of these is the timed
    // one, and it may have been lost.
    server.credit_return(number, 32);
    assert_eq!((server.turn(&mut client).len(), client.poll_rtt_ns()), (2, None));
    world.clock.advance(MS);
    server.response(number, 0, b"x");
    client.turn();
    assert_eq!((completions(&mut client).len(), client.poll_rtt_ns()), (1, Some(MS)));
}

#[test]
fn without_congestion_control_nothing_is_measured() {
    let world = World::new();
    let (mut client, server) = hand(&world, Config::default());
    round_trip(&world, &mut client, &server, 3 * MS, 0);
    assert_eq!((client.poll_rtt_ns(), client.session_rate(server.session)), (None, None));
}

#[test]
fn packets_of_a_slow_session_leave_one_by_one_at_its_rate() {
    let world = World::new();
    let (mut client, server) = hand(&world, config(slow_timely()));
    (0..40).for_each(|_| round_trip(&world, &mut client, &server, 3 * MS, 0));
    assert_eq!(client.session_rate(server.session), Some(1.024e6));
    idle(&world, &mut client, 10 * MS);
    send(&mut client, server.session, ECHO, &[1; 10_000], 0);
    let mut times_us = Vec::new();
    for step in 0..1000 {
        for (header, _) in server.turn(&mut client) {
            times_us.push(step * 10);
            if header.packet_number < 9 {
                server.credit_return(header.request_number, header.packet_number);
            }
        }
        world.clock.advance(10 * US);
    }
    assert_eq!(times_us, (0..10).map(|packet| packet * 1000).collect::<Vec<_>>());
}

#[test]
fn packets_do_not_overtake_those_that_still_wait_when_their_session_is_let_go() {
    let timely =
        TimelyConfig { low_ns: 100 * US, high_ns: 200 * US, step_bytes_per_s: 1e12, ..TimelyConfig::default() };
    let timely = TimelyConfig { cut: 1.0, rate_min_bytes_per_s: 1.024e6, is_patched: false, ..timely };
    let world = World::new();
    let (mut client, server) = hand(&world, config(Algorithm::Timely(timely)));
    (0..40).for_each(|_| round_trip(&world, &mut client, &server, 3 * MS, 0));
    idle(&world, &mut client, 10 * MS);
    send(&mut client, server.session, ECHO, &[1; 40_000], 0);
    let (first, _) = server.turn(&mut client)[0];
    // A short round trip: the session has the rate of the link again, while 31 packets wait for their time.
    server.credit_return(first.request_number, 0);
    let mut numbers = Vec::new();
    for _ in 0..400 {
        numbers.extend(server.turn(&mut client).iter().map(|(header, _)| header.packet_number));
        if numbers.len() >= 32 {
            break;
        }
        world.clock.advance(100 * US);
    }
    assert_eq!(client.session_rate(server.session), Some(1.024e9));
    assert_eq!(numbers, (1..33).collect::<Vec<_>>());
}

#[test]
fn a_session_that_waits_for_its_time_does_not_time_out() {
    let timely = TimelyConfig { rate_min_bytes_per_s: 1.024e5, ..TimelyConfig::default() };
    let Algorithm::Timely(slow) = slow_timely() else { unreachable!() };
    let slow = TimelyConfig { rate_min_bytes_per_s: timely.rate_min_bytes_per_s, ..slow };
    let world = World::new();
    // One packet in ten milliseconds, twice the time-out.
    let (mut client, server) = hand(&world, config(Algorithm::Timely(slow)));
    (0..40).for_each(|_| round_trip(&world, &mut client, &server, 3 * MS, 0));
    idle(&world, &mut client, 20 * MS);
    send(&mut client, server.session, ECHO, &[1; 3_000], 0);
    let mut numbers = Vec::new();
    for _ in 0..400 {
        for (header, _) in server.turn(&mut client) {
            numbers.push(header.packet_number);
            if header.packet_number < 2 {
                server.credit_return(header.request_number, header.packet_number);
            }
        }
        world.clock.advance(100 * US);
        if numbers.len() == 3 {
            break;
        }
    }
    assert_eq!((numbers, client.stats().retransmissions), (vec![0, 1, 2], 0));
}

/// Brings a session to its lowest rate, 1,024 B per ms.
fn slow_hand(world: &World) -> (Endpoint, HandServer) {
    let (mut client, server) = hand(world, config(slow_timely()));
    (0..40).for_each(|_| round_trip(world, &mut client, &server, 3 * MS, 0));
    assert_eq!(client.session_rate(server.session), Some(1.024e6));
    idle(world, &mut client, 10 * MS);
    (client, server)
}

#[test]
fn a_lost_packet_is_sent_again_though_others_of_its_session_wait_for_their_time() {
    let world = World::new();
    let (mut client, server) = slow_hand(&world);
    // This packet is lost.
    send(&mut client, server.session, ECHO, &[1; 32], 0);
    let lost = server.turn(&mut client)[0].0.request_number;
    // From now on some packets are always in flight, and some wait for their time.
    send(&mut client, server.session, ECHO, &[2; 1_000_000], 1);
    for _ in 0..1000 {
        world.clock.advance(100 * US);
        for (header, _) in server.turn(&mut client) {
            if header.request_number == lost {
                return;
            }
            server.credit_return(header.request_number, header.packet_number);
        }
    }
    panic!("not sent again in 100 ms");
}

#[test]
fn packets_of_calls_that_are_over_cost_their_session_no_time() {
    let world = World::new();
    let (mut client, server) = slow_hand(&world);
    for tag in 0..20 {
        let call = send(&mut client, server.session, ECHO, &[1; 30_000], tag);
        server.turn(&mut client);
        assert!(client.cancel(call));
    }
    completions(&mut client);
    send(&mut client, server.session, ECHO, &[2; 1_000], 99);
    let mut waited_us = 0;
    while server.turn(&mut client).is_empty() {
        world.clock.advance(100 * US);
        waited_us += 100;
    }
    assert!(waited_us <= 1_100, "{waited_us} us, where a packet takes a millisecond");
}

#[test]
fn packets_do_not_overtake_each_other_however_late_the_turns_are() {
    let world = World::new();
    let (mut client, server) = slow_hand(&world);
    let mut pauses = SeededGenerator::new(5);
    send(&mut client, server.session, ECHO, &[1; 200_000], 0);
    let mut next = 0;
    for _ in 0..2_000 {
        world.clock.advance(pauses.below(10) * pauses.below(500) * US);
        for (header, _) in server.turn(&mut client) {
            assert_eq!(header.packet_number, next);
            next += 1;
            if next == 200 {
                return;
            }
            server.credit_return(header.request_number, header.packet_number);
        }
    }
    panic!("{next} of 200 packets left");
}

#[test]
fn a_notice_before_the_session_is_open_changes_nothing() {
    let world = World::new();
    let mut client = world.client(config(Algorithm::Dcqcn(DcqcnConfig::default())), frames());
    let mut server = HandServer::asked(&world, &mut client);
    server.send(server.header(Kind::CongestionNotice, 0, 0, 0), &[]);
    client.turn();
    server.accept(Offer { data_per_packet: 1000, credits: 4, ..OFFER });
    server.turn(&mut client);
    assert_eq!(client.session_rate(server.session), Some(1.024e9));
    send(&mut client, server.session, ECHO, &[1; 32], 0);
    assert_eq!(server.turn(&mut client).len(), 1);
}

#[test]
fn parameters_that_cannot_work_are_refused() {
    let field = |congestion: Congestion| {
        let config = Config { congestion: Some(congestion), ..Config::default() };
        Nexus::builder().config(config).build().err().map(|error| error.to_string())
    };
    let refused =
        |congestion, name: &str| assert!(field(congestion).is_some_and(|error| error.contains(name)), "{name}");
    for rate_gbps in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        refused(Congestion::timely(rate_gbps), "line_bytes_per_s");
    }
    let timely = TimelyConfig::default();
    refused(Congestion::new(1.0, Algorithm::Timely(TimelyConfig { cut: 1.5, ..timely })), "cut");
    refused(Congestion::new(1.0, Algorithm::Timely(TimelyConfig { rate_min_bytes_per_s: 0.0, ..timely })), "rate_min");
    let swift = SwiftConfig::default();
    refused(Congestion::new(1.0, Algorithm::Swift(SwiftConfig { window_min: 0.0, ..swift })), "window_min");
    let dcqcn = DcqcnConfig::default();
    refused(Congestion::new(1.0, Algorithm::Dcqcn(DcqcnConfig { raise_interval_ns: 0, ..dcqcn })), "raise_interval_ns");
    for congestion in [Congestion::timely(1.0), Congestion::swift(1.0), Congestion::dcqcn(1.0)] {
        assert_eq!(field(congestion), None);
    }
}

#[test]
fn a_window_bounds_what_is_on_its_way() {
    let world = World::new();
    let (mut client, server) = hand(&world, config(Algorithm::Swift(SwiftConfig::default())));
    let message = [1; 100_000];
    let mut flights = Vec::new();
    for _ in 0..5 {
        send(&mut client, server.session, ECHO, &message, 0);
        let mut sent = server.turn(&mut client);
        flights.push(sent.len());
        // A long round trip for the first packets, and a round trip of zero for the others.
        world.clock.advance(MS);
        while let Some((last, _)) = sent.last() {
            if last.packet_number == 99 {
                server.response(last.request_number, 0, &[1; 32]);
            } else {
                server.credit_return(last.request_number, last.packet_number);
            }
            sent = server.turn(&mut client);
        }
        assert_eq!(completions(&mut client).len(), 1);
    }
    assert_eq!(flights, [32, 16, 8, 4, 2]);
}

#[test]
fn a_window_grows_back_to_all_credits() {
    let world = World::new();
    let (mut client, server) = hand(&world, config(Algorithm::Swift(SwiftConfig::default())));
    (0..3).for_each(|_| round_trip(&world, &mut client, &server, MS, 0));
    (0..100).for_each(|_| round_trip(&world, &mut client, &server, 10 * US, 0));
    send(&mut client, server.session, ECHO, &[1; 100_000], 0);
    assert_eq!(server.turn(&mut client).len(), 32);
}

#[test]
fn a_window_below_one_packet_spaces_them() {
    let config = config(Algorithm::Swift(SwiftConfig { window_min: 0.25, ..SwiftConfig::default() }));
    let world = World::new();
    let (mut client, server) = hand(&world, config);
    (0..40).for_each(|_| round_trip(&world, &mut client, &server, MS, 0));
    // A quarter of a packet in a millisecond.
    assert_eq!(client.session_rate(server.session), Some(1024.0 * 250.0));
    idle(&world, &mut client, 100 * MS);
    send(&mut client, server.session, ECHO, &[1; 3_000], 0);
    let first = server.turn(&mut client);
    assert_eq!(first.len(), 1);
    server.credit_return(first[0].0.request_number, 0);
    world.clock.advance(2 * MS);
    assert_eq!(server.turn(&mut client), []);
    world.clock.advance(2 * MS);
    assert_eq!(server.turn(&mut client).len(), 1);
}

#[test]
fn a_notice_slows_its_session_once_in_a_while() {
    let world = World::new();
    let (mut client, server) = hand(&world, config(Algorithm::Dcqcn(DcqcnConfig::default())));
    let rate = |client: &Endpoint| client.session_rate(server.session).unwrap();
    let line = rate(&client);
    let notice = server.header(Kind::CongestionNotice, 0, 0, 0);
    (0..10).for_each(|_| server.send(notice, &[]));
    client.turn();
    assert_eq!(rate(&client), line / 2.0);
    world.clock.advance(50 * US);
    server.send(notice, &[]);
    client.turn();
    assert!(rate(&client) < line / 3.0);
}

#[test]
fn notices_for_no_session_or_from_others_change_nothing() {
    let world = World::new();
    let (mut client, server) = hand(&world, config(Algorithm::Dcqcn(DcqcnConfig::default())));
    let notice = server.header(Kind::CongestionNotice, 0, 0, 0);
    server.send(sinew_wire::Header { session: server.key, ..notice }, &[]);
    let unknown_peer = sinew_fabric::loopback::Network::stranger(9);
    assert!(world.network.inject("client", unknown_peer, &notice.to_bytes()));
    client.turn();
    assert_eq!(client.session_rate(server.session), Some(1.024e9));
    assert_eq!(client.stats().dropped_total(), 2);
}

/// A layer that marks every received packet.
struct Marks;

impl Layer for Marks {
    fn receive(&mut self, mut packet: OwnedPacket, _: u64, ready: &mut VecDeque<OwnedPacket>, _: &mut Pool) {
        packet.is_marked = true;
        ready.push_back(packet);
    }
}

#[test]
fn marks_on_requests_come_back_as_notices_once_in_fifty_microseconds() {
    let world = World::new();
    let port = Layered::wrap(world.port("server", frames()), Marks).unwrap();
    let nexus = server_nexus(std::sync::Arc::clone(&world.pool), Config::default());
    let mut server = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(1)));
    let mut client = world.client(config(Algorithm::Dcqcn(DcqcnConfig::default())), frames());
    let session = connect(&world, &mut client, &mut server);
    world.network.start_tap();
    for tag in 0..10 {
        send(&mut client, session, ECHO, &[1; 5_000], tag);
        settle(&mut client, &mut server);
        world.clock.advance(20 * US);
        settle(&mut client, &mut server);
    }
    let to_client = world.network.take_tapped();
    let notices = to_client.iter().filter(|sent| parse(&sent.bytes).0.kind == Kind::CongestionNotice).count();
    assert_eq!(notices, 4, "in 200 us");
    assert!(client.session_rate(session).unwrap() < 0.75 * 1.024e9);
}

#[test]
fn marks_on_answers_slow_the_session_that_asked() {
    let world = World::new();
    let mut server = world.server(Config::default(), frames());
    let nexus = Nexus::builder().config(config(Algorithm::Dcqcn(DcqcnConfig::default()))).build().unwrap();
    let port = Layered::wrap(world.port("client", frames()), Marks).unwrap();
    let mut client = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(2)));
    let session = connect(&world, &mut client, &mut server);
    send(&mut client, session, ECHO, &[1; 32], 0);
    settle(&mut client, &mut server);
    assert_eq!(client.session_rate(session), Some(1.024e9 / 2.0));
}
