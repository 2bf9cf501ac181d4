//! The protocol step by step, with packets made by hand on the other side.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Cause, Config, Execution, PacketDrop, Tuning};
use sinew_wire::Header;
use sinew_wire::Kind::{CallError, CreditReturn, InProgress, Request, RequestForResponse, Response};
use sinew_wire::management::Offer;

const MS: u64 = 1_000_000;

fn singly() -> Config {
    Config { tuning: Tuning { cumulative_credits: false, ..Tuning::default() }, ..Config::default() }
}

fn long(len: u32) -> Vec<u8> {
    len.to_le_bytes().to_vec()
}

/// Sends the client an answer that it must drop, for this reason and without any other effect.
fn expect_drop(server: &HandServer, client: &mut Endpoint, header: Header, data: &[u8], reason: PacketDrop) {
    let before = client.stats().dropped(reason);
    server.send(header, data);
    assert_eq!(outline(&server.turn(client)), [], "{header:?}");
    assert_eq!(client.stats().dropped(reason), before + 1, "{header:?}");
    assert!(completions(client).is_empty(), "{header:?}");
}

// The server's side.

#[test]
fn a_single_packet_request_is_answered_with_its_response_alone() {
    let (_world, mut server, client) = hand_client(Config::default());
    client.request(8, 0, b"hello");
    let answers = client.turn(&mut server);
    assert_eq!(outline(&answers), [(Response, 0)]);
    let (header, data) = &answers[0];
    assert_eq!((header.session, header.request_number, header.message_len), (client.key, 8, 5));
    assert_eq!(data, b"hello");
}

#[test]
fn request_packets_return_their_credits_in_one_packet_and_the_last_with_the_response() {
    let (_world, mut server, client) = hand_client(Config::default());
    let message = pattern(450, 1);
    client.request(8, 0, &message);
    assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 0)]);
    for number in 1..4 {
        client.request(8, number, &message);
    }
    assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 3)]);
    client.request(8, 4, &message);
    let answers = client.turn(&mut server);
    assert_eq!(outline(&answers), [(Response, 0)]);
    assert_eq!(answers[0].1, message[..100]);
    assert_eq!(server.stats().requests_handled, 1);
}

#[test]
fn without_cumulative_credits_each_request_packet_returns_its_own() {
    let (_world, mut server, client) = hand_client(singly());
    let message = pattern(450, 1);
    for number in 0..5 {
        client.request(8, number, &message);
    }
    let expected = [(CreditReturn, 0), (CreditReturn, 1), (CreditReturn, 2), (CreditReturn, 3), (Response, 0)];
    assert_eq!(outline(&client.turn(&mut server)), expected);
}

#[test]
fn response_packets_but_the_first_wait_for_their_requests() {
    let (_world, mut server, mut client) = hand_client(Config::default());
    client.request_type = LONG;
    client.request(8, 0, &long(480));
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
    assert_eq!(outline(&client.turn(&mut server)), []);
    client.request_for_response(8, 1, 2);
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 1), (Response, 2)]);
    client.request_for_response(8, 3, 2);
    let answers = client.turn(&mut server);
    assert_eq!(outline(&answers), [(Response, 3), (Response, 4)]);
    assert_eq!(answers[1].1, pattern(480, 480u32 as u8)[400..]);
    // Lost responses can be asked for again.
    client.request_for_response(8, 2, 1);
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 2)]);
}

#[test]
fn requests_for_response_packets_that_do_not_exist_are_dropped() {
    let (_world, mut server, mut client) = hand_client(Config { credits: 4, ..Config::default() });
    client.request_type = LONG;
    client.request(8, 0, &long(1000));
    client.turn(&mut server);
    for (first, count) in [(0, 1), (10, 1), (9, 2), (1, 0), (1, 5), (u16::MAX, u32::MAX), (1, u32::MAX)] {
        client.request_for_response(8, first, count);
    }
    assert_eq!(outline(&client.turn(&mut server)), []);
    assert_eq!(server.stats().dropped(PacketDrop::WrongPhase), 7);
    client.request_for_response(16, 1, 1);
    assert_eq!(outline(&client.turn(&mut server)), []);
    assert_eq!(server.stats().dropped(PacketDrop::Stale), 1);
    client.request_for_response(8, 9, 1);
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 9)]);
}

#[test]
fn a_request_for_response_before_the_response_is_there_is_dropped() {
    let (_world, mut server, mut client) = hand_client(Config::default());
    client.request_type = DEFER;
    client.request(8, 0, b"later");
    client.request_for_response(8, 1, 1);
    assert_eq!(outline(&client.turn(&mut server)), []);
    assert_eq!(server.stats().dropped(PacketDrop::WrongPhase), 1);
    answer_kept();
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
}

#[test]
fn a_duplicate_of_a_packet_that_arrived_returns_its_credit_again() {
    for (config, expected) in [(Config::default(), vec![1]), (singly(), vec![1, 1])] {
        let (_world, mut server, client) = hand_client(config);
        let message = pattern(400, 1);
        client.request(8, 0, &message);
        client.request(8, 1, &message);
        client.turn(&mut server);
        client.request(8, 0, &message);
        client.request(8, 1, &message);
        let answers = client.turn(&mut server);
        assert_eq!(outline(&answers), expected.iter().map(|&n| (CreditReturn, n)).collect::<Vec<_>>());
        assert_eq!(server.stats().dropped(PacketDrop::Stale), 2);
    }
}

#[test]
fn a_duplicate_of_a_running_request_is_answered_in_progress() {
    let (_world, mut server, mut client) = hand_client(Config::default());
    client.request_type = DEFER;
    let message = pattern(250, 1);
    for number in 0..3 {
        client.request(8, number, &message);
    }
    assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 1)]);
    client.request(8, 2, &message);
    assert_eq!(outline(&client.turn(&mut server)), [(InProgress, 0)]);
    // A client that lost a credit return learns that all of its packets have arrived.
    client.request(8, 0, &message);
    assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 1)]);
    assert_eq!((server.stats().requests_handled, server.stats().in_progress_answers), (1, 1));
    assert_eq!(answer_kept(), 1);
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
}

#[test]
fn a_duplicate_of_an_answered_request_gets_the_response_again_and_does_not_run_again() {
    for request_type in [ECHO, LONG, DROP, BURST] {
        let (_world, mut server, mut client) = hand_client(Config::default());
        client.request_type = request_type;
        client.request(8, 0, &long(300));
        let first = client.turn(&mut server);
        for _ in 0..2 {
            // Retransmissions that come in one turn get one answer.
            client.request(8, 0, &long(300));
            client.request(8, 0, &long(300));
            let again = client.turn(&mut server);
            assert_eq!(outline(&again), [outline(&first)[0]]);
            assert_eq!(again[0].1, first[0].1);
        }
        assert_eq!(server.stats().requests_handled, 1);
    }
}

#[test]
fn an_error_is_a_packet_that_names_it() {
    let (_world, mut server, mut client) = hand_client(Config::default());
    client.request_type = sinew_rpc::RequestType::new(99);
    client.request(8, 0, b"?");
    let answers = client.turn(&mut server);
    assert_eq!(outline(&answers), [(CallError, 0)]);
    assert_eq!(answers[0].0.message_len, 1);
}

#[test]
fn reordered_request_packets_count_as_lost() {
    let (_world, mut server, client) = hand_client(Config::default());
    let message = pattern(400, 1);
    client.request(8, 1, &message);
    assert_eq!(outline(&client.turn(&mut server)), []);
    client.request(8, 0, &message);
    client.request(8, 2, &message);
    assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 0)]);
    assert_eq!(server.stats().dropped(PacketDrop::OutOfOrder), 2);
    for number in 1..4 {
        client.request(8, number, &message);
    }
    assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 2), (Response, 0)]);
}

#[test]
fn packets_of_old_requests_change_nothing() {
    let (_world, mut server, client) = hand_client(Config::default());
    client.request(16, 0, b"new");
    client.turn(&mut server);
    client.request(8, 0, b"old");
    client.request(0, 0, b"never");
    client.request_for_response(8, 1, 1);
    assert_eq!(outline(&client.turn(&mut server)), []);
    assert_eq!(server.stats().dropped(PacketDrop::Stale), 3);
    assert_eq!(server.stats().requests_handled, 1);
}

#[test]
fn request_packets_of_impossible_lengths_are_dropped_by_reason() {
    let (_world, mut server, client) = hand_client(Config { message_len_max: 1000, ..Config::default() });
    let header = |packet, len| client.header(8, packet, len);
    let cases: [(_, &[u8], _); 6] = [
        (header(0, 50), &[0; 49], PacketDrop::WrongLength),
        (header(0, 50), &[0; 51], PacketDrop::WrongLength),
        (header(0, 200), &[0; 200], PacketDrop::WrongLength),
        (header(0, 0), &[0; 1], PacketDrop::WrongLength),
        (header(0, 1001), &[0; 100], PacketDrop::TooLong),
        (header(0, u32::MAX as usize), &[0; 100], PacketDrop::TooLong),
    ];
    for (header, data, reason) in cases {
        let before = server.stats().dropped(reason);
        client.send(header, data);
        assert_eq!(outline(&client.turn(&mut server)), []);
        assert_eq!(server.stats().dropped(reason), before + 1, "{header:?}");
    }
    client.request(8, 0, &[1; 250]);
    client.send(header(1, 251), &[1; 100]);
    client.send(header(1, 250), &[1; 99]);
    client.send(header(3, 250), &[1; 1]);
    assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 0)]);
    client.request(8, 1, &[1; 250]);
    client.request(8, 2, &[1; 250]);
    assert_eq!(client.turn(&mut server)[1].1, [1; 100]);
}

#[test]
fn the_longest_message_is_taken_and_one_byte_more_is_not() {
    let (_world, mut server, client) = hand_client(Config { message_len_max: 1000, ..Config::default() });
    assert_eq!(client.granted.message_len_max, 1000);
    for number in 0..10 {
        client.request(8, number, &pattern(1000, 1));
    }
    assert_eq!(outline(&client.turn(&mut server)).last(), Some(&(Response, 0)));
    client.request(16, 0, &pattern(1001, 1));
    assert_eq!(outline(&client.turn(&mut server)), []);
}

#[test]
fn a_newer_request_takes_the_slot_of_one_that_its_client_gave_up() {
    let (_world, mut server, mut client) = hand_client(Config::default());
    client.request(8, 0, &pattern(300, 1));
    client.request(16, 0, b"new");
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
    client.request_type = DEFER;
    client.request(24, 0, b"kept");
    client.turn(&mut server);
    client.request_type = ECHO;
    client.request(32, 0, b"newer");
    assert_eq!(client.turn(&mut server)[0].1, b"newer");
    answer_kept();
    assert_eq!(outline(&client.turn(&mut server)), []);
    assert_eq!(server.stats().answers_discarded, 1);
}

#[test]
fn both_requests_of_a_slot_in_one_burst_run_and_only_the_newer_is_answered() {
    let (_world, mut server, mut client) = hand_client(Config::default());
    client.request_type = BURST;
    client.request(8, 0, b"abc");
    client.request(16, 0, b"def");
    let answers = client.turn(&mut server);
    assert_eq!(outline(&answers), [(Response, 0)]);
    assert_eq!((answers[0].0.request_number, &answers[0].1[..]), (16, &b"fed"[..]));
}

#[test]
fn a_request_of_all_packet_numbers_is_taken_and_answered_whole() {
    // 65,536 packets: the last has the largest number that there is.
    let offer = Offer { data_per_packet: 64, ..OFFER };
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig { burst_max: 64, ..Default::default() });
    let mut client = HandClient::connected(&world, &mut server, 1, offer);
    let packets = 1usize << 16;
    client.request_type = LONG;
    client.request(8, 0, &long(packets as u32 * 64));
    client.turn(&mut server);
    client.request_for_response(8, u16::MAX - 1, 2);
    assert_eq!(outline(&client.turn(&mut server)), [(Response, u16::MAX - 1), (Response, u16::MAX)]);
    client.request(16, 0, &long(packets as u32 * 64 + 1));
    assert_eq!(outline(&client.turn(&mut server)), [(CallError, 0)]);
}

// The client's side.

#[test]
fn a_client_sends_as_many_request_packets_as_it_has_credits() {
    let (_world, mut client, server) = hand_server(Config::default(), Offer { credits: 4, ..SMALL });
    send(&mut client, server.session, ECHO, &pattern(1000, 1), 7);
    let sent = server.turn(&mut client);
    assert_eq!(outline(&sent), [(Request, 0), (Request, 1), (Request, 2), (Request, 3)]);
    assert!(sent.iter().all(|(header, _)| header.message_len == 1000 && header.session == server.key));
    let number = sent[0].0.request_number;
    assert_eq!(outline(&server.turn(&mut client)), []);
    server.credit_return(number, 1);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 4), (Request, 5)]);
    server.credit_return(number, 5);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 6), (Request, 7), (Request, 8), (Request, 9)]);
    // The response returns all credits.
    server.response(number, 0, b"done");
    server.turn(&mut client);
    let over = completions(&mut client).remove(0);
    assert_eq!((over.tag, over.result, &over.response[..]), (7, Ok(()), &b"done"[..]));
    send(&mut client, server.session, ECHO, &pattern(1000, 1), 8);
    assert_eq!(server.turn(&mut client).len(), 4, "all credits are back");
}

#[test]
fn a_client_asks_for_as_many_response_packets_as_it_has_credits() {
    for cumulative in [true, false] {
        let config = if cumulative { Config::default() } else { singly() };
        let (_world, mut client, server) = hand_server(config, Offer { credits: 3, ..SMALL });
        send(&mut client, server.session, ECHO, b"x", 0);
        let number = server.turn(&mut client)[0].0.request_number;
        let message = pattern(750, 5);
        server.response(number, 0, &message);
        let mut asked = server.turn(&mut client);
        for first in [1, 4] {
            if cumulative {
                assert_eq!(outline(&asked), [(RequestForResponse, first)]);
                assert_eq!(asked[0].0.message_len, 3);
            } else {
                let expected = [first, first + 1, first + 2].map(|n| (RequestForResponse, n));
                assert_eq!(outline(&asked), expected);
                assert!(asked.iter().all(|(header, _)| header.message_len == 1));
            }
            for number_in in first..first + 3 {
                server.response(number, number_in, &message);
            }
            asked = server.turn(&mut client);
            if cumulative && first == 1 {
                // Each response pays for the next request-for-response.
                assert_eq!(asked.len(), 3);
                asked = vec![(Header { message_len: 3, ..asked[0].0 }, Vec::new())];
            }
        }
        assert_eq!(outline(&asked), [(RequestForResponse, 7)]);
        server.response(number, 7, &message);
        server.turn(&mut client);
        assert!(completions(&mut client)[0].response[..] == message[..]);
        send(&mut client, server.session, ECHO, &pattern(1000, 1), 1);
        assert_eq!(server.turn(&mut client).len(), 3, "all credits are back");
    }
}

#[test]
fn answers_that_make_no_sense_are_dropped_by_reason_and_the_call_goes_on() {
    let (_world, mut client, server) = hand_server(
        Config { message_len_max: 1000, ..Config::default() },
        Offer { credits: 4, message_len_max: 1000, ..SMALL },
    );
    send(&mut client, server.session, ECHO, &pattern(550, 1), 7);
    let number = server.turn(&mut client)[0].0.request_number;
    let header = |kind, packet, len| server.header(kind, number, packet, len);
    // Four of six request packets have left.
    expect_drop(&server, &mut client, header(CreditReturn, 4, 0), &[], PacketDrop::WrongPhase);
    expect_drop(&server, &mut client, header(CreditReturn, 5, 0), &[], PacketDrop::WrongPhase);
    expect_drop(&server, &mut client, header(CreditReturn, u16::MAX, 0), &[], PacketDrop::WrongPhase);
    expect_drop(&server, &mut client, header(Response, 0, 5), b"early", PacketDrop::WrongPhase);
    expect_drop(&server, &mut client, header(InProgress, 0, 0), &[], PacketDrop::WrongPhase);
    expect_drop(&server, &mut client, header(Response, 1, 500), &[0; 100], PacketDrop::WrongPhase);
    expect_drop(&server, &mut client, header(CallError, 0, 77), &[], PacketDrop::Malformed);
    server.credit_return(number, 3);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 4), (Request, 5)]);
    expect_drop(&server, &mut client, header(CreditReturn, 3, 0), &[], PacketDrop::Stale);
    expect_drop(&server, &mut client, header(Response, 0, 5), b"four", PacketDrop::WrongLength);
    expect_drop(&server, &mut client, header(Response, 0, 500), &[0; 101], PacketDrop::WrongLength);
    expect_drop(&server, &mut client, header(Response, 0, 1001), &[0; 100], PacketDrop::TooLong);
    expect_drop(&server, &mut client, server.header(Response, number + 8, 0, 1), &[0], PacketDrop::Stale);
    expect_drop(&server, &mut client, server.header(Response, number + 1, 0, 1), &[0], PacketDrop::Stale);
    let message = pattern(450, 3);
    server.response(number, 0, &message);
    assert_eq!(outline(&server.turn(&mut client)), [(RequestForResponse, 1)]);
    expect_drop(&server, &mut client, header(Response, 0, 450), &message[..100], PacketDrop::Stale);
    expect_drop(&server, &mut client, header(Response, 2, 450), &message[200..300], PacketDrop::OutOfOrder);
    expect_drop(&server, &mut client, header(Response, 5, 450), &[], PacketDrop::WrongPhase);
    expect_drop(&server, &mut client, header(Response, 1, 451), &message[100..200], PacketDrop::WrongLength);
    expect_drop(&server, &mut client, header(Response, 1, 450), &message[100..199], PacketDrop::WrongLength);
    expect_drop(&server, &mut client, header(CallError, 0, 77), &[], PacketDrop::Malformed);
    expect_drop(&server, &mut client, header(InProgress, 0, 0), &[], PacketDrop::WrongPhase);
    for packet in 1..5 {
        server.response(number, packet, &message);
    }
    server.turn(&mut client);
    assert!(completions(&mut client)[0].response[..] == message[..]);
    expect_drop(&server, &mut client, header(Response, 4, 450), &message[400..], PacketDrop::Stale);
}

#[test]
fn unanswered_packets_are_sent_again_after_the_time_out_and_not_before() {
    let config = Config { retransmit_timeout_ns: 10 * MS, ..Config::default() };
    let (world, mut client, server) = hand_server(config, SMALL);
    send(&mut client, server.session, ECHO, &pattern(350, 1), 7);
    let number = server.turn(&mut client)[0].0.request_number;
    world.clock.advance(4 * MS);
    server.credit_return(number, 1);
    assert_eq!(outline(&server.turn(&mut client)), []);
    // Time counts from the last answer that brought progress.
    for _ in 0..9 {
        world.clock.advance(MS);
        assert_eq!(outline(&server.turn(&mut client)), []);
    }
    let mut waited = 9;
    let again = loop {
        world.clock.advance(MS);
        waited += 1;
        let sent = server.turn(&mut client);
        if !sent.is_empty() {
            break sent;
        }
    };
    assert!((10..=12).contains(&waited), "sent again after {waited} ms");
    // Go-back-N: from the first unanswered packet on.
    assert_eq!(outline(&again), [(Request, 2), (Request, 3)]);
    assert_eq!(client.stats().retransmissions, 1);
}

#[test]
fn a_call_in_progress_is_asked_for_ever_more_rarely() {
    let (world, mut client, server) = hand_server(Config::default(), SMALL);
    send(&mut client, server.session, ECHO, b"x", 7);
    let number = server.turn(&mut client)[0].0.request_number;
    let mut gaps = Vec::new();
    let mut gap = 0;
    while gaps.len() < 8 {
        world.clock.advance(MS);
        gap += 1;
        if outline(&server.turn(&mut client)).contains(&(Request, 0)) {
            gaps.push(gap);
            gap = 0;
            server.send(server.header(InProgress, number, 0, 0), &[]);
        }
    }
    for (index, &gap) in gaps.iter().enumerate() {
        let expected = 5 << index.min(6);
        assert!((expected..=expected + 2).contains(&gap), "{gaps:?}");
    }
    // The answer resets the back-off.
    server.turn(&mut client);
    server.response(number, 0, b"y");
    server.turn(&mut client);
    assert!(completions(&mut client)[0].result.is_ok());
}

#[test]
fn an_answer_to_the_first_copy_counts_after_the_second_was_sent() {
    // The credit return is late, not lost: after go-back-N it is ahead of the packets that were sent again.
    let (world, mut client, server) = hand_server(Config::default(), Offer { credits: 4, ..SMALL });
    send(&mut client, server.session, ECHO, &pattern(1000, 1), 7);
    let number = server.turn(&mut client)[0].0.request_number;
    server.credit_return(number, 1);
    assert_eq!(server.turn(&mut client).len(), 2);
    world.clock.advance(7 * MS);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 2), (Request, 3), (Request, 4), (Request, 5)]);
    server.credit_return(number, 5);
    assert_eq!(outline(&server.turn(&mut client)), [(Request, 6), (Request, 7), (Request, 8), (Request, 9)]);
    server.response(number, 0, b"done");
    server.turn(&mut client);
    assert!(completions(&mut client)[0].result.is_ok());
    send(&mut client, server.session, ECHO, &pattern(1000, 1), 7);
    assert_eq!(server.turn(&mut client).len(), 4, "no credit was lost or made");
}

#[test]
fn calls_that_wait_for_credits_get_those_that_come_back() {
    let (_world, mut client, server) = hand_server(Config::default(), Offer { credits: 1, ..SMALL });
    for tag in 0..3 {
        send(&mut client, server.session, ECHO, b"x", tag);
    }
    let mut numbers = Vec::new();
    for tag in 0..3 {
        let sent = server.turn(&mut client);
        assert_eq!(outline(&sent), [(Request, 0)]);
        numbers.push(sent[0].0.request_number);
        server.response(sent[0].0.request_number, 0, b"y");
        if tag == 2 {
            server.turn(&mut client);
        }
    }
    assert_eq!(completions(&mut client).iter().map(|over| over.tag).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn an_error_ends_the_call_with_what_the_server_said() {
    let meanings = [
        (1, Cause::NoHandler, Execution::NotRun),
        (2, Cause::HandlerDropped, Execution::MayHaveRun),
        (3, Cause::HandlerPanicked, Execution::MayHaveRun),
        (4, Cause::ServerBusy, Execution::NotRun),
        (5, Cause::ResponseTooLarge, Execution::MayHaveRun),
        (6, Cause::ServerBusy, Execution::MayHaveRun),
        (7, Cause::Overtaken, Execution::MayHaveRun),
        (8, Cause::RequestTooLarge, Execution::NotRun),
    ];
    let (_world, mut client, server) = hand_server(Config::default(), Offer { credits: 4, ..SMALL });
    for (code, cause, execution) in meanings {
        send(&mut client, server.session, ECHO, &pattern(350, 1), 0);
        let sent = server.turn(&mut client);
        assert_eq!(sent.len(), 4, "all credits are back");
        server.send(server.header(CallError, sent[0].0.request_number, 0, code), &[]);
        server.turn(&mut client);
        let error = completions(&mut client).remove(0).result.unwrap_err();
        assert_eq!((error.cause, error.execution), (cause, execution));
    }
}

#[test]
fn a_packet_from_another_address_does_not_answer_a_call() {
    let (_world, mut client, server) = hand_server(Config::default(), SMALL);
    send(&mut client, server.session, ECHO, b"x", 0);
    let number = server.turn(&mut client)[0].0.request_number;
    let forged = bytes_of(server.header(Response, number, 0, 1), b"y");
    server.network.inject("client", sinew_fabric::loopback::Network::stranger(9), &forged);
    server.turn(&mut client);
    assert!(completions(&mut client).is_empty());
    assert_eq!(client.stats().dropped(PacketDrop::WrongSource), 1);
}
