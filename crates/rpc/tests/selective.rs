//! Selective retransmission and adaptive time-outs, step by step, with packets made by hand on the other side.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Generator, SeededGenerator};
use sinew_rpc::{Config, PacketDrop, Recovery, Tuning};
use sinew_wire::Kind::{CreditReturn, InProgress, Request, RequestForResponse, Response};
use sinew_wire::management::Offer;
use sinew_wire::{CREDIT_ALONE, Header, Kind};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// Packet number of a credit return that returns none.
const NONE: u16 = u16::MAX;

fn selective(packet_threshold: u8) -> Config {
    Config { recovery: Recovery::Selective { packet_threshold }, ..Config::default() }
}

fn singly(config: Config) -> Config {
    Config { tuning: Tuning { cumulative_credits: false, ..config.tuning }, ..config }
}

/// Returns credits up to packet `last`, and reports packets ahead, behind a missing one.
fn credit_return(server: &HandServer, number: u64, last: u16, ahead: &[u16]) {
    let bits = ahead.iter().fold(0, |bits, packet| bits | 1 << (packet - last.wrapping_add(1)));
    server.send(Header { message_len: bits, ..server.header(CreditReturn, number, last, 0) }, &[]);
}

/// Packet numbers of a credit return: the last one of the run from the start, and those ahead.
fn credit_return_packets(header: &Header) -> (u16, Vec<u16>) {
    assert_eq!((header.kind, header.type_or_residence), (CreditReturn, 0));
    let first = header.packet_number.wrapping_add(1);
    (header.packet_number, (0..32).filter(|bit| header.message_len >> bit & 1 != 0).map(|bit| first + bit).collect())
}

/// Sends a call of `packets` packets, and returns its number.
fn call(client: &mut Endpoint, server: &HandServer, packets: usize) -> u64 {
    send(client, server.session, ECHO, &pattern(packets * 100, 1), 7);
    server.turn(client)[0].0.request_number
}

/// Asserts that a call completes with its response, and that all credits are back.
fn assert_ends(client: &mut Endpoint, server: &HandServer, number: u64) {
    server.response(number, 0, b"done");
    server.turn(client);
    let over = completions(client).remove(0);
    assert_eq!((over.result, &over.response[..]), (Ok(()), &b"done"[..]));
    send(client, server.session, ECHO, &pattern(10_000, 1), 8);
    assert_eq!(server.turn(client).len(), 32, "all credits are back");
}

// The client's side.

#[test]
fn a_lost_packet_is_sent_again_alone() {
    for threshold in [1u16, 3] {
        let (_world, mut client, server) = hand_server(selective(threshold as u8), SMALL);
        let number = call(&mut client, &server, 10);
        // Packet 2 is missing, and others arrive one by one.
        for overtaken_by in 0..6 {
            credit_return(&server, number, 1, &(3..3 + overtaken_by).collect::<Vec<_>>());
            let expected: &[_] = if overtaken_by == threshold { &[(Request, 2)] } else { &[] };
            assert_eq!(outline(&server.turn(&mut client)), expected, "overtaken by {overtaken_by} of {threshold}");
        }
        assert_eq!(client.stats().retransmissions, 1);
        credit_return(&server, number, 8, &[]);
        assert_eq!(outline(&server.turn(&mut client)), []);
        assert_ends(&mut client, &server, number);
    }
}

#[test]
fn several_lost_packets_are_sent_again_in_their_order() {
    let (_world, mut client, server) = hand_server(selective(1), SMALL);
    let number = call(&mut client, &server, 20);
    credit_return(&server, number, NONE, &[2, 5, 6, 8]);
    assert_eq!(outline(&server.turn(&mut client)), [0, 1, 3, 4, 7].map(|packet| (Request, packet)));
    // The first packets have arrived; the packets ahead were reported before.
    credit_return(&server, number, 2, &[]);
    assert_eq!(outline(&server.turn(&mut client)), []);
    credit_return(&server, number, 7, &[]);
    assert_eq!(outline(&server.turn(&mut client)), []);
    credit_return(&server, number, 18, &[]);
    assert_eq!(outline(&server.turn(&mut client)), []);
    assert_ends(&mut client, &server, number);
}

#[test]
fn a_copy_that_is_lost_too_is_sent_again_once_later_packets_are_answered() {
    let (_world, mut client, server) = hand_server(selective(1), SMALL);
    let number = call(&mut client, &server, 40);
    credit_return(&server, number, 1, &[3]);
    // The returned credits let new packets leave after the retransmission.
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 2), (Request, 32), (Request, 33)]);
    credit_return(&server, number, 1, &(3..32).collect::<Vec<_>>());
    assert_eq!(outline(&server.turn(&mut client)), [], "all of these left before the copy");
    credit_return(&server, number, 1, &[32]);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 2)]);
    credit_return(&server, number, 1, &[33]);
    assert_eq!(outline(&server.turn(&mut client)), [], "so did these");
    credit_return(&server, number, 33, &[]);
    assert_eq!(server.turn(&mut client).len(), 6);
    credit_return(&server, number, 38, &[]);
    server.turn(&mut client);
    assert_ends(&mut client, &server, number);
}

#[test]
fn after_the_time_out_only_what_is_missing_is_sent_again() {
    let (world, mut client, server) = hand_server(selective(3), SMALL);
    let number = call(&mut client, &server, 10);
    credit_return(&server, number, 1, &[3, 4, 7, 8]);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 2), (Request, 5)]);
    world.clock.advance(7 * MS);
    assert_eq!(outline(&server.turn(&mut client)), [2, 5, 6, 9].map(|packet| (Request, packet)));
    // The first transmissions were late, not lost.
    credit_return(&server, number, 8, &[]);
    assert_eq!(outline(&server.turn(&mut client)), []);
    assert_ends(&mut client, &server, number);
}

#[test]
fn a_missing_response_packet_is_asked_for_alone() {
    for (is_cumulative, config) in [(true, selective(3)), (false, singly(selective(3)))] {
        let (_world, mut client, server) = hand_server(config, SMALL);
        send(&mut client, server.session, ECHO, b"x", 7);
        let number = server.turn(&mut client)[0].0.request_number;
        let message = pattern(1000, 5);
        server.response(number, 0, &message);
        server.turn(&mut client);
        for packet in [1, 2, 7] {
            server.response(number, packet, &message);
        }
        // Packet 7 has overtaken 3 and 4 by at least three places, and later 9 overtakes 5 and 6.
        let mut asked = |expected: &[(u16, u32)]| {
            let asked = server.turn(&mut client);
            let runs: Vec<_> = asked.iter().map(|(header, _)| (header.packet_number, header.message_len)).collect();
            assert!(asked.iter().all(|(header, _)| header.kind == RequestForResponse));
            assert_eq!(runs, expected);
        };
        asked(if is_cumulative { &[(3, 2)] } else { &[(3, 1), (4, 1)] });
        server.response(number, 9, &message);
        asked(if is_cumulative { &[(5, 2)] } else { &[(5, 1), (6, 1)] });
        server.response(number, 8, &message);
        asked(&[]);
        for packet in [6, 5, 4, 3] {
            assert!(completions(&mut client).is_empty());
            server.response(number, packet, &message);
            server.turn(&mut client);
        }
        assert!(completions(&mut client)[0].response[..] == message[..]);
        send(&mut client, server.session, ECHO, &pattern(10_000, 1), 8);
        assert_eq!(server.turn(&mut client).len(), 32, "all credits are back");
    }
}

#[test]
fn answers_that_a_selective_client_cannot_have_asked_for_are_dropped_by_reason() {
    let (_world, mut client, server) = hand_server(selective(3), Offer { credits: 4, ..SMALL });
    let expect = |client: &mut Endpoint, header: Header, data: &[u8], reason| {
        let before = client.stats().dropped(reason);
        server.send(header, data);
        assert_eq!(outline(&server.turn(client)), [], "{header:?}");
        assert_eq!(client.stats().dropped(reason), before + 1, "{header:?}");
        assert!(completions(client).is_empty());
    };
    let number = call(&mut client, &server, 8);
    let of = |last, bits| server.header(CreditReturn, number, last, bits);
    // Four of eight packets have left.
    expect(&mut client, of(NONE, 0), &[], PacketDrop::WrongPhase);
    expect(&mut client, of(NONE, 1 << 4), &[], PacketDrop::WrongPhase);
    expect(&mut client, of(NONE, usize::MAX), &[], PacketDrop::WrongPhase);
    expect(&mut client, of(4, 0), &[], PacketDrop::WrongPhase);
    expect(&mut client, of(2, 0b10), &[], PacketDrop::WrongPhase);
    expect(&mut client, of(7, 0), &[], PacketDrop::WrongPhase);
    expect(&mut client, of(65_534, 1), &[], PacketDrop::WrongPhase);
    credit_return(&server, number, 0, &[3]);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 4)]);
    expect(&mut client, of(0, 0b100), &[], PacketDrop::Stale);
    expect(&mut client, of(NONE, 0b1), &[], PacketDrop::Stale);
    // The packet reported as missing has arrived, and so have the two after it.
    credit_return(&server, number, 0, &[1, 2]);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 5), (Request, 6), (Request, 7)]);
    credit_return(&server, number, 6, &[]);
    server.turn(&mut client);
    let message = pattern(750, 3);
    server.response(number, 0, &message);
    assert_eq!(outline(&server.turn(&mut client)), [(RequestForResponse, 1)]);
    let part = |packet: usize| &message[packet * 100..(packet * 100 + 100).min(750)];
    let of = |packet, len| server.header(Response, number, packet, len);
    expect(&mut client, of(5, 750), part(5), PacketDrop::WrongPhase);
    expect(&mut client, of(8, 750), &[], PacketDrop::WrongPhase);
    expect(&mut client, of(3, 751), part(3), PacketDrop::WrongLength);
    expect(&mut client, of(3, 750), &part(3)[1..], PacketDrop::WrongLength);
    server.response(number, 3, &message);
    assert_eq!(outline(&server.turn(&mut client)), []);
    expect(&mut client, of(3, 750), &[0; 100], PacketDrop::Stale);
    expect(&mut client, server.header(CreditReturn, number, 0, 0b110), &[], PacketDrop::Stale);
    for packet in [1, 2, 4, 5, 6, 7] {
        server.response(number, packet, &message);
        server.turn(&mut client);
    }
    assert!(completions(&mut client)[0].response[..] == message[..]);
    send(&mut client, server.session, ECHO, &pattern(1000, 1), 1);
    assert_eq!(server.turn(&mut client).len(), 4, "all credits are back");
}

#[test]
fn a_client_that_goes_back_takes_no_notice_of_packets_ahead() {
    let (world, mut client, server) = hand_server(Config::default(), SMALL);
    let number = call(&mut client, &server, 10);
    credit_return(&server, number, 1, &[3, 4, 5, 6, 7, 8]);
    assert_eq!(outline(&server.turn(&mut client)), []);
    world.clock.advance(7 * MS);
    let again: Vec<_> = (2..10).map(|packet| (Request, packet)).collect();
    assert_eq!(outline(&server.turn(&mut client)), again);
    credit_return(&server, number, 8, &[]);
    server.turn(&mut client);
    assert_ends(&mut client, &server, number);
}

#[test]
fn a_credit_return_that_stands_alone_counts_in_its_turn_only() {
    let alone = |server: &HandServer, number, packet| {
        let header = server.header(CreditReturn, number, packet, 0);
        server.send(Header { type_or_residence: CREDIT_ALONE, ..header }, &[]);
    };
    let (world, mut client, server) = hand_server(Config::default(), SMALL);
    let number = call(&mut client, &server, 40);
    alone(&server, number, 0);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 32)]);
    // The credit return of packet 1 is lost: as in nsdi19, the client goes back to that packet.
    alone(&server, number, 2);
    assert_eq!(outline(&server.turn(&mut client)), []);
    assert_eq!(client.stats().dropped(PacketDrop::OutOfOrder), 1);
    world.clock.advance(7 * MS);
    let again = server.turn(&mut client);
    assert_eq!((outline(&again)[0], again.len()), ((Request, 1), 32));
    // The server reports how far it is, which stands for all.
    credit_return(&server, number, 32, &[]);
    assert_eq!(outline(&server.turn(&mut client)), (33..40).map(|packet| (Request, packet)).collect::<Vec<_>>());
    assert_ends(&mut client, &server, number);
    // For a selective client it means the same as any other credit return.
    let (_world, mut client, server) = hand_server(selective(3), SMALL);
    let number = call(&mut client, &server, 40);
    alone(&server, number, 2);
    assert_eq!(server.turn(&mut client).len(), 3);
}

/// Lets `us` pass in small steps, and returns the time, in us, before each step in which the client sent something.
fn sent_after(world: &World, client: &mut Endpoint, server: &HandServer, us: u64) -> Vec<u64> {
    const STEP_US: u64 = 10;
    let mut gaps = vec![0];
    for _ in 0..us / STEP_US {
        world.clock.advance(STEP_US * US);
        *gaps.last_mut().unwrap() += STEP_US;
        if !server.turn(client).is_empty() {
            gaps.push(0);
        }
    }
    gaps.pop();
    gaps
}

#[test]
fn the_time_out_follows_the_round_trips_and_doubles() {
    for recovery in [Recovery::GoBackN, Recovery::SELECTIVE] {
        let config = Config { retransmit_timeout_ns: 100 * US, recovery, ..Config::default() };
        let (world, mut client, server) = hand_server(config, SMALL);
        // Nothing was measured yet: the time-out is the configured one.
        send(&mut client, server.session, ECHO, b"x", 0);
        let number = server.turn(&mut client)[0].0.request_number;
        let gaps = sent_after(&world, &mut client, &server, 180);
        assert!(matches!(gaps[..], [100..=120]), "{gaps:?}");
        // The answer is to the first transmission: the time-out was too short, and now grows.
        server.response(number, 0, b"y");
        server.turn(&mut client);
        for round in 0..50 {
            send(&mut client, server.session, ECHO, b"x", 0);
            let number = server.turn(&mut client)[0].0.request_number;
            assert_eq!(sent_after(&world, &mut client, &server, 180), [0_u64; 0], "{round}");
            server.response(number, 0, b"y");
            server.turn(&mut client);
        }
        assert_eq!(client.stats().calls_completed, 51);
        send(&mut client, server.session, ECHO, &pattern(300, 1), 0);
        let number = server.turn(&mut client)[0].0.request_number;
        let gaps = sent_after(&world, &mut client, &server, 30_000);
        for (times, &gap) in gaps.iter().enumerate() {
            let expected = (270 << times).min(6_400);
            assert!((expected..=expected + 40).contains(&gap), "{gaps:?}");
        }
        assert_eq!(gaps.len(), 8, "{gaps:?}");
        // An answer to a first transmission leaves the back-off in place, since it shows that the time-out was too
        // short. An answer to a retransmission shows that retransmissions get through.
        server.credit_return(number, 0);
        server.turn(&mut client);
        let gaps = sent_after(&world, &mut client, &server, 12_000);
        assert!(matches!(gaps[..], [6_400..=6_500]), "{gaps:?}");
        let answer = server.header(CreditReturn, number, 1, 0);
        server.send(Header { is_copy: true, ..answer }, &[]);
        server.turn(&mut client);
        let gaps = sent_after(&world, &mut client, &server, 500);
        assert!(matches!(gaps[..], [270..=310]), "{gaps:?}");
        server.response(number, 0, b"y");
        server.turn(&mut client);
        assert_eq!(client.stats().calls_completed, 52);
        assert!(completions(&mut client).iter().all(|over| over.result.is_ok()));
    }
}

#[test]
fn before_anything_is_measured_the_first_answer_to_a_copy_bounds_the_round_trip() {
    for recovery in [Recovery::GoBackN, Recovery::SELECTIVE] {
        let config = Config { retransmit_timeout_ns: 100 * US, recovery, ..Config::default() };
        let (world, mut client, server) = hand_server(config, SMALL);
        send(&mut client, server.session, ECHO, &pattern(300, 1), 0);
        let number = server.turn(&mut client)[0].0.request_number;
        // Retransmissions leave after 100, 300 and 700 us.
        assert_eq!(sent_after(&world, &mut client, &server, 1_000).len(), 3);
        let answer = server.header(CreditReturn, number, 0, 0);
        server.send(Header { is_copy: true, ..answer }, &[]);
        server.turn(&mut client);
        // The bound gives a time-out of three times as long, but at most eight times the configured one; 100 us no
        // longer suffice.
        let gaps = sent_after(&world, &mut client, &server, 900);
        assert!(matches!(gaps[..], [800..=850]), "{gaps:?}");
        // Once a round trip is measured, it alone counts.
        let answer = server.header(Response, number, 0, 1);
        server.send(Header { is_copy: true, ..answer }, b"y");
        server.turn(&mut client);
        send(&mut client, server.session, ECHO, b"x", 0);
        let number = server.turn(&mut client)[0].0.request_number;
        assert_eq!(sent_after(&world, &mut client, &server, 200), [0_u64; 0]);
        server.response(number, 0, b"y");
        server.turn(&mut client);
        send(&mut client, server.session, ECHO, b"x", 0);
        server.turn(&mut client);
        let gaps = sent_after(&world, &mut client, &server, 900);
        assert!(matches!(gaps[..], [600..=650]), "{gaps:?}");
    }
}

#[test]
fn a_bound_of_round_trips_shrinks_and_lengthens_the_time_out_eightfold_at_most() {
    let config = Config { retransmit_timeout_ns: 100 * US, ..Config::default() };
    let (world, mut client, server) = hand_server(config, SMALL);
    let number = call(&mut client, &server, 10);
    let answer_copy = |client: &mut Endpoint, packet| {
        server.send(Header { is_copy: true, ..server.header(CreditReturn, number, packet, 0) }, &[]);
        server.turn(client);
    };
    // Nothing gets through for a long time. The last retransmissions left a while ago.
    sent_after(&world, &mut client, &server, 40_000);
    answer_copy(&mut client, 0);
    let mut gaps = Vec::new();
    for packet in 1..4 {
        // Wait until retransmissions leave, which are answered soon.
        let mut waited_us = 0;
        while server.turn(&mut client).is_empty() {
            world.clock.advance(10 * US);
            waited_us += 10;
        }
        gaps.push(waited_us);
        world.clock.advance(20 * US);
        answer_copy(&mut client, packet);
    }
    assert!(matches!(gaps[..], [800..=850, 100..=150, 100..=150]), "{gaps:?}");
}

#[test]
fn once_there_are_copies_only_the_answer_to_the_measured_packet_measures() {
    let config = Config { retransmit_timeout_ns: 100 * US, ..Config::default() };
    let (world, mut client, server) = hand_server(config, SMALL);
    for _ in 0..50 {
        send(&mut client, server.session, ECHO, b"x", 0);
        let number = server.turn(&mut client)[0].0.request_number;
        server.response(number, 0, b"y");
        server.turn(&mut client);
    }
    let number = call(&mut client, &server, 80);
    world.clock.advance(4 * MS);
    assert_eq!(server.turn(&mut client).len(), 32);
    // Answers all but the last packet, whose round trip would be measured; as many others leave.
    let answer = server.header(CreditReturn, number, 30, 0);
    server.send(Header { is_copy: true, ..answer }, &[]);
    assert_eq!(server.turn(&mut client).len(), 31);
    assert!(!sent_after(&world, &mut client, &server, 200).is_empty());
    // Answers one of these: 4 ms have passed since the timed packet left, but not since this one did.
    server.credit_return(number, 40);
    server.turn(&mut client);
    let gaps = sent_after(&world, &mut client, &server, 3_000);
    assert!(gaps.len() >= 4, "{gaps:?}");
}

#[test]
fn a_time_out_does_not_pass_while_answers_come() {
    for recovery in [Recovery::GoBackN, Recovery::SELECTIVE] {
        let (world, mut client, server) = hand_server(Config { recovery, ..Config::default() }, SMALL);
        let number = call(&mut client, &server, 10);
        server.credit_return(number, 3);
        server.turn(&mut client);
        for _ in 0..10 {
            world.clock.advance(3 * MS);
            server.credit_return(number, 2);
            assert_eq!(outline(&server.turn(&mut client)), []);
        }
        world.clock.advance(7 * MS);
        assert_eq!(server.turn(&mut client).len(), 6);
        assert_ends(&mut client, &server, number);
    }
}

#[test]
fn once_copies_are_late_too_one_packet_at_a_time_is_sent_again() {
    for recovery in [Recovery::GoBackN, Recovery::SELECTIVE] {
        let (world, mut client, server) = hand_server(Config { recovery, ..Config::default() }, SMALL);
        let number = call(&mut client, &server, 10);
        let mut counts = Vec::new();
        for times in 0..4 {
            world.clock.advance((7 * MS) << times);
            counts.push(server.turn(&mut client).len());
        }
        assert_eq!(counts, [10, 1, 1, 1]);
        assert_ends(&mut client, &server, number);
    }
}

#[test]
fn a_handler_that_takes_long_makes_no_other_call_wait() {
    let (world, mut client, server) = hand_server(Config::default(), SMALL);
    send(&mut client, server.session, ECHO, b"x", 0);
    let long = server.turn(&mut client)[0].0.request_number;
    for backoff in 0..6 {
        let gaps = sent_after(&world, &mut client, &server, 7_000 << backoff);
        assert!(gaps.len() == 1, "asked ever more rarely: {gaps:?}");
        server.send(server.header(InProgress, long, 0, 0), &[]);
        server.turn(&mut client);
    }
    send(&mut client, server.session, ECHO, b"y", 1);
    let number = server.turn(&mut client)[0].0.request_number;
    world.clock.advance(7 * MS);
    let again = server.turn(&mut client);
    assert!(again.iter().any(|(header, _)| header.request_number == number), "{again:?}");
}

// The server's side.

/// Kind and number of each packet, and whether it answers a retransmission.
fn answers(packets: &[(Header, Vec<u8>)]) -> Vec<(Kind, u16, bool)> {
    packets.iter().map(|(header, _)| (header.kind, header.packet_number, header.is_copy)).collect()
}

#[test]
fn answers_say_whether_they_are_to_a_copy() {
    for is_cumulative in [true, false] {
        let config = if is_cumulative { selective(3) } else { singly(selective(3)) };
        let (_world, mut server, client) = hand_client(config);
        let message = pattern(300, 1);
        let packet = |number: u16, is_copy| {
            let header = client.header(8, number, message.len());
            client.send(Header { is_copy, ..header }, &message[100 * usize::from(number)..][..100]);
        };
        packet(0, false);
        assert_eq!(answers(&client.turn(&mut server)), [(CreditReturn, 0, false)]);
        packet(0, true);
        assert_eq!(answers(&client.turn(&mut server)), [(CreditReturn, 0, true)], "one that is there");
        packet(1, true);
        packet(2, false);
        let all = answers(&client.turn(&mut server));
        assert_eq!(all[0], (CreditReturn, 1, true));
        let number = 16;
        client.send(client.header(number, 0, 4), b"echo");
        assert_eq!(answers(&client.turn(&mut server)), [(Response, 0, false)]);
        client.send(Header { is_copy: true, ..client.header(number, 0, 4) }, b"echo");
        assert_eq!(answers(&client.turn(&mut server)), [(Response, 0, true)]);
    }
}

#[test]
fn packets_out_of_order_are_kept_and_told() {
    let (_world, mut server, client) = hand_client(selective(3));
    let message = pattern(640, 1);
    for packet in [0, 2, 3, 5] {
        client.request(8, packet, &message);
    }
    let answers = client.turn(&mut server);
    assert_eq!(answers.len(), 1);
    assert_eq!(credit_return_packets(&answers[0].0), (0, vec![2, 3, 5]));
    client.request(8, 1, &message);
    assert_eq!(credit_return_packets(&client.turn(&mut server)[0].0), (3, vec![5]));
    client.request(8, 6, &message);
    assert_eq!(credit_return_packets(&client.turn(&mut server)[0].0), (3, vec![5, 6]));
    client.request(8, 4, &message);
    let answers = client.turn(&mut server);
    assert_eq!(outline(&answers), [(Response, 0)]);
    assert_eq!(answers[0].1, message[..100]);
    assert_eq!((server.stats().requests_handled, server.stats().dropped_total()), (1, 0));
}

#[test]
fn a_request_can_begin_with_any_packet() {
    let (_world, mut server, client) = hand_client(selective(3));
    let message = pattern(300, 1);
    client.request(8, 2, &message);
    assert_eq!(credit_return_packets(&client.turn(&mut server)[0].0), (NONE, vec![2]));
    client.request(8, 1, &message);
    assert_eq!(credit_return_packets(&client.turn(&mut server)[0].0), (NONE, vec![1, 2]));
    client.request(8, 0, &message);
    assert_eq!(client.turn(&mut server)[0].1, message[..100]);
    // Packets of the request that are still in flight begin nothing.
    client.request(8, 1, &message);
    assert_eq!(credit_return_packets(&client.turn(&mut server)[0].0), (1, vec![]));
    assert_eq!(server.stats().requests_handled, 1);
}

#[test]
fn without_cumulative_credits_each_packet_that_is_kept_is_told() {
    let (_world, mut server, client) = hand_client(singly(selective(3)));
    let message = pattern(640, 1);
    for packet in [0, 1, 3, 4] {
        client.request(8, packet, &message);
    }
    let answers = client.turn(&mut server);
    let all: Vec<_> = answers.iter().map(|(header, _)| credit_return_packets(header)).collect();
    assert_eq!(all, [(0, vec![]), (1, vec![3, 4]), (1, vec![3, 4]), (1, vec![3, 4])]);
}

#[test]
fn packets_that_a_selective_server_cannot_keep_are_dropped_by_reason() {
    let (_world, mut server, client) = hand_client(selective(3));
    let message = pattern(10_000, 1);
    let expect = |server: &mut Endpoint, packet: u16, len: usize, data: &[u8], reason| {
        let before = server.stats().dropped(reason);
        client.send(client.header(8, packet, len), data);
        let answers = client.turn(server);
        assert_eq!(server.stats().dropped(reason), before + 1, "packet {packet} of {len}");
        answers.len()
    };
    assert_eq!(expect(&mut server, 64, 10_000, &[0; 100], PacketDrop::OutOfOrder), 0);
    assert_eq!(expect(&mut server, 100, 10_000, &[], PacketDrop::WrongPhase), 0);
    assert_eq!(expect(&mut server, 1, 100, &[], PacketDrop::WrongPhase), 0);
    assert_eq!(expect(&mut server, 63, 10_000, &[0; 99], PacketDrop::WrongLength), 0);
    assert_eq!(expect(&mut server, 1, u32::MAX as usize, &[0; 100], PacketDrop::TooLong), 0);
    client.request(8, 63, &message);
    // A credit return reports the next 32 packets.
    assert_eq!(credit_return_packets(&client.turn(&mut server)[0].0), (NONE, vec![]));
    client.request(8, 0, &message);
    client.request(8, 31, &message);
    assert_eq!(credit_return_packets(&client.turn(&mut server)[0].0), (0, vec![31]));
    assert_eq!(expect(&mut server, 65, 10_000, &[0; 100], PacketDrop::OutOfOrder), 0);
    assert_eq!(expect(&mut server, 100, 10_000, &[], PacketDrop::WrongPhase), 0);
    assert_eq!(expect(&mut server, 3, 9_999, &[0; 100], PacketDrop::WrongLength), 0);
    assert_eq!(expect(&mut server, 3, 10_000, &[0; 101], PacketDrop::WrongLength), 0);
    // A client that repeats packets gets the same report again, and changes nothing.
    assert_eq!(expect(&mut server, 31, 10_000, &[9; 100], PacketDrop::Stale), 1);
    assert_eq!(expect(&mut server, 0, 10_000, &[9; 100], PacketDrop::Stale), 1);
    let missing = (1..100u16).filter(|packet| ![31, 63].contains(packet));
    missing.for_each(|packet| client.request(8, packet, &message));
    let answers = client.turn(&mut server);
    assert_eq!(outline(&answers).last(), Some(&(Response, 0)));
    let all = (1..100).flat_map(|packet| {
        client.request_for_response(8, packet, 1);
        client.turn(&mut server).remove(0).1
    });
    assert!(all.eq(message[100..].iter().copied()));
    assert_eq!(server.stats().requests_handled, 1);
}

// Both sides together.

#[test]
fn each_side_gets_on_with_whatever_the_other_does_about_losses() {
    let modes = [Config::default(), singly(Config::default()), selective(3), singly(selective(1))];
    let rounds = if cfg!(miri) { 1 } else { 20 };
    let small = LoopbackConfig { packet_len_max: 224, copy_len_max: 100, ..LoopbackConfig::default() };
    for of_client in &modes {
        for of_server in &modes {
            let world = World::new();
            let mut losses = SeededGenerator::new(1);
            let sides = (of_client.clone(), of_server.clone());
            let (mut client, mut server, session) = world.pair_of((sides.0, small), (sides.1, small));
            for round in 0..rounds {
                send(&mut client, session, ECHO, &pattern(12_000, round), 1);
                // Loses the packets of a third of the client's turns, and of a fifth of the server's.
                let mut over = Vec::new();
                for _ in 0..20_000 {
                    match losses.next_u64() % 3 {
                        0 => world.losing(|| client.turn()),
                        _ => client.turn(),
                    };
                    match losses.next_u64() % 5 {
                        0 => world.losing(|| server.turn()),
                        _ => server.turn(),
                    };
                    over.extend(completions(&mut client));
                    if !over.is_empty() {
                        break;
                    }
                    world.clock.advance(50 * US);
                }
                assert!(over[0].response[..] == pattern(12_000, round)[..]);
            }
            assert!(client.stats().retransmissions > 0);
            assert_eq!(server.stats().requests_handled, u64::from(rounds));
        }
    }
}
