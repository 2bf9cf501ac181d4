//! Opening and ending of sessions.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::Clock;
use sinew_fabric::loopback::{LoopbackConfig, Network};
use sinew_rpc::{Cause, Config, ConnectError, Execution, PacketDrop, SessionEvent};
use sinew_wire::Kind::{Accept, Challenge, Confirm, Connect, Disconnect, Disconnected, Ping, Refuse, Reset};
use sinew_wire::management::{Cookie, Offer, Refusal, session_end};
use sinew_wire::{HEADER_LEN, SessionKey};

const MS: u64 = 1_000_000;

fn port(receive_packets: usize) -> LoopbackConfig {
    LoopbackConfig { receive_packets, ..LoopbackConfig::default() }
}

// Opening.

#[test]
fn a_session_opens_in_two_round_trips_and_ends_in_one() {
    let world = World::new();
    world.network.start_tap();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    assert_eq!(kinds(&world.network), [Connect, Challenge, Connect, Accept]);
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    assert_eq!((client.committed_packets(), server.committed_packets()), (32, 32));
    assert!(client.disconnect(session));
    settle(&mut client, &mut server);
    assert_eq!(kinds(&world.network), [Disconnect, Disconnected]);
    assert!(matches!(event(&mut client), SessionEvent::Disconnected(id) if id == session));
    assert_nothing_is_left(&client);
    assert_nothing_is_left(&server);
}

#[test]
fn every_lost_packet_of_opening_and_ending_is_made_up_for() {
    for lost in 0..6 {
        let world = World::new();
        let mut server = world.server(Config::default(), LoopbackConfig::default());
        let mut client = world.client(Config::default(), LoopbackConfig::default());
        let mut turns = 0;
        let mut turn_both = |client: &mut Endpoint, server: &mut Endpoint| {
            for endpoint in [client, server] {
                if turns == lost {
                    world.losing(|| endpoint.turn())
                } else {
                    endpoint.turn()
                };
                turns += 1;
            }
            world.clock.advance(MS);
        };
        let session = client.begin_connect(&server.address()).unwrap();
        for _ in 0..50 {
            turn_both(&mut client, &mut server);
        }
        assert!(matches!(event(&mut client), SessionEvent::Connected(id) if id == session));
        assert_eq!((client.sessions(), server.sessions()), (1, 1), "turn {lost}");
        client.disconnect(session);
        if lost >= 4 {
            // Loses the disconnect, or its confirmation.
            let endpoints = [&mut client, &mut server];
            for (index, endpoint) in endpoints.into_iter().enumerate() {
                if index == lost - 4 {
                    world.losing(|| endpoint.turn())
                } else {
                    endpoint.turn()
                };
            }
        }
        pass_time(&world, &mut client, &mut server, 50 * MS);
        assert!(matches!(event(&mut client), SessionEvent::Disconnected(id) if id == session), "turn {lost}");
        assert_nothing_is_left(&client);
        assert_nothing_is_left(&server);
    }
}

#[test]
fn strangers_that_do_not_echo_a_cookie_cost_a_server_nothing() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    for number in 0..1000 {
        let unknown_client = HandClient::new(&world, number);
        unknown_client.challenged(&mut server, OFFER);
    }
    assert_nothing_is_left(&server);
    world.clock.advance(MS);
    assert!(!server.turn());
}

#[test]
fn no_cookie_but_a_fresh_one_of_ones_own_opens_a_session() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let (client, other) = (HandClient::new(&world, 1), HandClient::new(&world, 2));
    let cookie = client.challenged(&mut server, OFFER);
    let wrong = [
        Cookie { code: cookie.code ^ 1, ..cookie },
        Cookie { made_ns: cookie.made_ns + 1, ..cookie },
        Cookie { made_ns: u64::MAX, ..cookie },
        Cookie { made_ns: 0, ..cookie },
    ];
    for (index, wrong) in wrong.into_iter().enumerate() {
        client.send_management(&client.connect_packet(OFFER, wrong));
        assert_eq!(outline(&client.turn(&mut server)), [(Challenge, 0)]);
        assert_eq!(server.stats().dropped(PacketDrop::BadCookie), index as u64 + 1);
    }
    // Another client's cookie.
    other.send_management(&other.connect_packet(OFFER, cookie));
    assert_eq!(outline(&other.turn(&mut server)), [(Challenge, 0)]);
    // The right cookie under another key.
    let mut renamed = HandClient::new(&world, 1);
    renamed.key = SessionKey::new(4, 77);
    renamed.send_management(&renamed.connect_packet(OFFER, cookie));
    assert_eq!(outline(&renamed.turn(&mut server)), [(Challenge, 0)]);
    // The right cookie, too late.
    world.clock.advance(10_001 * MS);
    client.send_management(&client.connect_packet(OFFER, cookie));
    assert_eq!(outline(&client.turn(&mut server)), [(Challenge, 0)]);
    assert_nothing_is_left(&server);
    // The right cookie in time.
    let cookie = client.challenged(&mut server, OFFER);
    world.clock.advance(9_999 * MS);
    client.send_management(&client.connect_packet(OFFER, cookie));
    assert_eq!(outline(&client.turn(&mut server)), [(Accept, 0)]);
    assert_eq!(server.sessions(), 1);
}

#[test]
fn a_repeated_connect_is_granted_the_same_session() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = HandClient::new(&world, 1);
    let cookie = client.challenged(&mut server, OFFER);
    let connect = client.connect_packet(OFFER, cookie);
    client.send_management(&connect);
    client.send_management(&connect);
    let first = client.turn(&mut server);
    client.send_management(&connect);
    let second = client.turn(&mut server);
    assert_eq!((first.len(), second.len(), server.sessions()), (2, 1, 1));
    assert_eq!((&first[0], &first[0]), (&first[1], &second[0]));
}

#[test]
fn connects_that_make_no_sense_are_dropped() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = HandClient::new(&world, 1);
    let bad = [
        Offer { credits: 0, ..OFFER },
        Offer { slots: 0, ..OFFER },
        Offer { data_per_packet: 0, ..OFFER },
        Offer { data_per_packet: 63, ..OFFER },
    ];
    for offer in bad {
        client.send_management(&client.connect_packet(offer, Cookie::default()));
        assert_eq!(outline(&client.turn(&mut server)), []);
    }
    client.token = 0;
    client.send_management(&client.connect_packet(OFFER, Cookie::default()));
    assert_eq!(outline(&client.turn(&mut server)), []);
    let long = [client.connect_packet(OFFER, Cookie::default()).as_bytes(), &[0]].concat();
    for bytes in [&long[..], &long[..long.len() - 2], &long[..HEADER_LEN]] {
        world.network.inject("server", client.peer, bytes);
    }
    assert_eq!(outline(&client.turn(&mut server)), []);
    assert_eq!(server.stats().dropped(PacketDrop::Malformed), 8);
}

#[test]
fn a_server_grants_no_more_than_it_has_and_the_client_takes_no_more_than_it_offered() {
    let world = World::new();
    let mut server =
        world.server(Config { credits: 5, message_len_max: 999, ..Config::default() }, LoopbackConfig::default());
    let greedy = Offer { credits: u16::MAX, slots: u16::MAX, data_per_packet: u32::MAX, message_len_max: u32::MAX };
    let client = HandClient::connected(&world, &mut server, 1, greedy);
    assert_eq!(client.granted, Offer { credits: 5, slots: 8, data_per_packet: 1448, message_len_max: 999 });
    drop(server);

    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let mut server = HandServer::asked(&world, &mut client);
    let too_much = [
        Offer { credits: 33, ..OFFER },
        Offer { slots: 3, ..OFFER },
        Offer { data_per_packet: 1449, ..OFFER },
        Offer { data_per_packet: 63, ..OFFER },
        Offer { message_len_max: (16 << 20) + 1, ..OFFER },
    ];
    for granted in too_much {
        server.accept(granted);
        server.turn(&mut client);
        assert!(events(&mut client).is_empty(), "{granted:?}");
    }
    assert_eq!(client.stats().dropped(PacketDrop::Malformed), 5);
    server.client_token += 1;
    server.accept(OFFER);
    server.client_token -= 1;
    server.turn(&mut client);
    assert!(events(&mut client).is_empty(), "an accept of another incarnation");
    server.accept(Offer { credits: 3, ..OFFER });
    server.turn(&mut client);
    assert!(matches!(event(&mut client), SessionEvent::Connected(_)));
    assert_eq!(client.committed_packets(), 3);
}

#[test]
fn receive_capacity_is_granted_to_the_last_packet_and_not_beyond() {
    // 32 packets for management and 32 for each of three sessions, with some missing.
    for (receive_packets, of_third) in [(128, Some(32)), (127, Some(31)), (97, Some(1)), (96, None)] {
        let world = World::new();
        let mut server = world.server(Config::default(), port(receive_packets));
        for number in 0..2 {
            HandClient::connected(&world, &mut server, number, OFFER);
        }
        let third = HandClient::new(&world, 3);
        let cookie = third.challenged(&mut server, OFFER);
        third.send_management(&third.connect_packet(OFFER, cookie));
        let answers = third.turn(&mut server);
        match of_third {
            Some(credits) => {
                assert_eq!(outline(&answers), [(Accept, 0)]);
                assert_eq!(server.committed_packets(), 64 + credits);
            }
            None => {
                assert_eq!(outline(&answers), [(Refuse, 0)]);
                let refusal = Refusal::read(answers[0].0.message_len, &answers[0].1).unwrap();
                assert_eq!(refusal, Refusal::ReceiveCapacity { packets: 96, committed: 64 });
                assert_eq!(server.sessions(), 2);
            }
        }
    }
}

#[test]
fn a_refused_client_hears_why() {
    let refused = |config: Config, port: LoopbackConfig| {
        let world = World::new();
        let mut server = world.server(config, port);
        let mut client = world.client(Config::default(), LoopbackConfig::default());
        let first = connect(&world, &mut client, &mut server);
        let second = client.begin_connect(&server.address()).unwrap();
        send(&mut client, second, ECHO, b"queued", 1);
        settle(&mut client, &mut server);
        let SessionEvent::ConnectFailed { session, error } = event(&mut client) else { panic!() };
        assert_eq!((session, client.sessions(), server.sessions()), (second, 1, 1));
        let over = completions(&mut client).remove(0).result.unwrap_err();
        assert_eq!((over.cause, over.execution), (Cause::SessionRefused, Execution::NeverSent));
        send(&mut client, first, ECHO, b"the other session works", 2);
        assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
        error
    };
    // One peer may have all of the server.
    let all = Config { peer_share_percent: 100, ..Config::default() };
    let error = refused(all.clone(), port(64));
    assert!(matches!(error, ConnectError::PeerReceiveCapacity { packets: 64, committed: 32, .. }), "{error}");
    let error = refused(Config { sessions_max: 1, ..all }, LoopbackConfig::default());
    assert!(matches!(error, ConnectError::PeerSessions { limit: 1, .. }), "{error}");
    assert!(error.to_string().contains("sessions_max"), "{error}");
}

#[test]
fn a_client_that_is_refused_because_the_server_closes_hears_that() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let server = HandServer::asked(&world, &mut client);
    server.send_management(&Refusal::Closing.encode(server.client_key));
    server.turn(&mut client);
    let SessionEvent::ConnectFailed { error, .. } = event(&mut client) else { panic!() };
    assert!(matches!(error, ConnectError::Failed { cause: Cause::PeerClosed, .. }), "{error}");
    assert_nothing_is_left(&client);
}

#[test]
fn a_client_keeps_to_its_own_limits() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config { sessions_max: 2, ..Config::default() }, port(32 + 32 + 1));
    connect(&world, &mut client, &mut server);
    connect(&world, &mut client, &mut server);
    assert_eq!(client.committed_packets(), 33, "the second session got the one packet that was left");
    let error = client.begin_connect(&server.address()).unwrap_err();
    assert!(matches!(error, ConnectError::Sessions { limit: 2 }), "{error}");
    drop(client);
    let mut client = world.client(Config::default(), port(32));
    let error = client.begin_connect(&server.address()).unwrap_err();
    assert!(matches!(error, ConnectError::ReceiveCapacity { packets: 32, committed: 0 }), "{error}");
    drop(client);
    let mut client = world.client(Config { overcommit: true, ..Config::default() }, port(32));
    for _ in 0..3 {
        events(&mut server);
        connect(&world, &mut client, &mut server);
    }
}

#[test]
fn overcommitted_sessions_lose_packets_and_no_calls() {
    let world = World::new();
    let config = Config { overcommit: true, ..Config::default() };
    let of_server = (config.clone(), port(8));
    let (mut client, mut server, session) = world.pair_of((config, LoopbackConfig::default()), of_server);
    for tag in 0..8 {
        send(&mut client, session, ECHO, &pattern(20_000, tag as u8), tag);
    }
    for over in run(&world, &mut client, &mut server, 8) {
        assert!(over.response[..] == pattern(20_000, over.tag as u8)[..]);
    }
    assert!(server.port_stats().dropped(sinew_fabric::Dropped::Overflow) > 0);
}

#[test]
fn an_unanswered_connect_is_repeated_and_given_up() {
    let world = World::new();
    let server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = client.begin_connect(&server.address()).unwrap();
    send(&mut client, session, ECHO, b"x", 3);
    world.network.start_tap();
    let started = world.clock.now_ns();
    while client.sessions() > 0 {
        world.clock.advance(MS);
        client.turn();
    }
    let waited = world.clock.now_ns() - started;
    assert!((3_000 * MS..3_020 * MS).contains(&waited), "{waited}");
    let connects = kinds(&world.network).into_iter().filter(|&kind| kind == Connect).count();
    assert!((75..=151).contains(&connects), "{connects} connects in 3 s, one every 20 ms or so");
    let SessionEvent::ConnectFailed { error, .. } = event(&mut client) else { panic!() };
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    let over = completions(&mut client).remove(0).result.unwrap_err();
    assert_eq!((over.cause, over.execution), (Cause::PeerSilent, Execution::NeverSent));
    assert_nothing_is_left(&client);
}

#[test]
fn a_delayed_duplicate_of_a_connect_leaves_no_ghost() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    world.network.start_tap();
    let session = connect(&world, &mut client, &mut server);
    let tapped = world.network.take_tapped();
    let delayed = tapped.iter().rfind(|packet| parse(&packet.bytes).0.kind == Connect).unwrap();
    client.disconnect(session);
    settle(&mut client, &mut server);
    events(&mut client);
    // The session has ended on both sides when the duplicate arrives.
    world.network.inject("server", delayed.from, &delayed.bytes);
    server.turn();
    assert_eq!(server.sessions(), 1);
    settle(&mut client, &mut server);
    assert_nothing_is_left(&server);
    // The client has a new session, in a new incarnation, when the duplicate arrives.
    let session = connect(&world, &mut client, &mut server);
    world.network.inject("server", delayed.from, &delayed.bytes);
    settle(&mut client, &mut server);
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    send(&mut client, session, ECHO, b"undisturbed", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

#[test]
fn a_session_that_its_client_never_confirms_is_reminded_of_and_removed_in_silence() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = HandClient::connected(&world, &mut server, 1, OFFER);
    world.network.start_tap();
    let mut sent = Vec::new();
    for _ in 0..6_000 {
        world.clock.advance(MS);
        sent.extend(client.turn(&mut server).iter().map(|packet| packet.0.kind));
    }
    let reminders = sent.iter().filter(|&&kind| kind == Accept).count();
    assert!((4..=5).contains(&reminders), "one a second until it is given up after five");
    assert!(sent.iter().filter(|&&kind| kind == Ping).count() <= 60);
    assert_nothing_is_left(&server);
}

#[test]
fn a_confirmed_session_is_not_reminded_of() {
    let world = World::new();
    let (mut client, mut server, _session) = world.pair(Config::default(), LoopbackConfig::default());
    world.network.start_tap();
    pass_time(&world, &mut client, &mut server, 4_000 * MS);
    let kinds = kinds(&world.network);
    assert_eq!(kinds.iter().filter(|&&kind| kind == Accept).count(), 1);
    assert_eq!(kinds.iter().filter(|&&kind| kind == Confirm).count(), 1);
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
}

// Ending.

#[test]
fn disconnecting_completes_all_calls_and_frees_both_sides() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { slots: 2, ..Config::default() }, port(4096));
    for tag in 0..5 {
        send(&mut client, session, DEFER, b"x", tag);
    }
    settle(&mut client, &mut server);
    client.disconnect(session);
    let over = completions(&mut client);
    assert_eq!(over.len(), 5);
    let never = over.iter().filter(|over| over.result.as_ref().unwrap_err().execution == Execution::NeverSent).count();
    assert_eq!(never, 3);
    assert!(over.iter().all(|over| over.result.as_ref().unwrap_err().cause == Cause::Disconnected));
    settle(&mut client, &mut server);
    answer_kept();
    settle(&mut client, &mut server);
    assert_nothing_is_left(&client);
    assert_nothing_is_left(&server);
}

#[test]
fn a_server_that_is_dropped_tells_its_clients_and_a_client_its_server() {
    let world = World::new();
    let (mut client, server, session) = world.pair(Config::default(), LoopbackConfig::default());
    send(&mut client, session, ECHO, b"x", 1);
    client.turn();
    drop(server);
    client.turn();
    assert_eq!(lost(&mut client, session), Cause::PeerClosed);
    assert_eq!(completions(&mut client)[0].result.as_ref().unwrap_err().cause, Cause::PeerClosed);
    assert_nothing_is_left(&client);
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    connect(&world, &mut client, &mut server);
    drop(client);
    server.turn();
    assert_nothing_is_left(&server);
}

#[test]
fn a_reset_or_disconnect_with_the_wrong_keys_or_from_elsewhere_changes_nothing() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let server = HandServer::connected(&world, &mut client, OFFER);
    let other = SessionKey(server.key.0 ^ 1);
    server.send_management(&session_end(Reset, server.client_key, other));
    server.send_management(&session_end(Reset, SessionKey(server.client_key.0 ^ 1 << 30), server.key));
    server.send_management(&session_end(Disconnected, server.client_key, server.key));
    world.network.inject("client", Network::stranger(5), session_end(Reset, server.client_key, server.key).as_bytes());
    server.turn(&mut client);
    assert_eq!(client.sessions(), 1);
    server.send_management(&session_end(Reset, server.client_key, server.key));
    server.turn(&mut client);
    assert_eq!(lost(&mut client, server.session), Cause::PeerClosed);

    let mut server = {
        drop(server);
        world.server(Config::default(), LoopbackConfig::default())
    };
    let client = HandClient::connected(&world, &mut server, 1, OFFER);
    let other = SessionKey(client.key.0 ^ 1);
    client.send_management(&session_end(Disconnect, client.server_key, other));
    assert_eq!(outline(&client.turn(&mut server)), []);
    client.send_management(&session_end(Disconnect, SessionKey(client.server_key.0 ^ 1 << 30), client.key));
    client.turn(&mut server);
    assert_eq!(server.sessions(), 1);
    client.send_management(&session_end(Disconnect, client.server_key, client.key));
    assert_eq!(outline(&client.turn(&mut server)), [(Disconnected, 0)]);
    assert_nothing_is_left(&server);
    client.send_management(&session_end(Disconnect, client.server_key, client.key));
    assert_eq!(outline(&client.turn(&mut server)), [(Disconnected, 0)], "its answer was lost");
}

#[test]
fn a_disconnect_that_nobody_answers_ends_all_the_same() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    client.disconnect(session);
    world.network.set_link("client", "server", false);
    pass_time(&world, &mut client, &mut server, 3_100 * MS);
    assert!(matches!(event(&mut client), SessionEvent::Disconnected(_)));
    assert_nothing_is_left(&client);
    pass_time(&world, &mut client, &mut server, 3_000 * MS);
    assert_nothing_is_left(&server);
}

#[test]
fn disconnecting_before_the_session_is_open_leaves_nothing() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    for turns in 0..5 {
        let session = client.begin_connect(&server.address()).unwrap();
        for turn in 0..turns {
            if turn % 2 == 0 {
                client.turn()
            } else {
                server.turn()
            };
        }
        client.disconnect(session);
        assert!(client.disconnect(session) == (client.sessions() > 0));
        pass_time(&world, &mut client, &mut server, 2_000 * MS);
        assert!(events(&mut client).iter().any(|event| matches!(event, SessionEvent::Disconnected(_))));
        assert_nothing_is_left(&client);
        assert_nothing_is_left(&server);
    }
}

#[test]
fn a_thousand_sessions_come_and_go_and_leave_nothing() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    for round in 0..1000 {
        let session = connect(&world, &mut client, &mut server);
        send(&mut client, session, ECHO, &pattern(3000, round as u8), 1);
        assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
        if round % 2 == 0 {
            send(&mut client, session, ECHO, &pattern(3000, round as u8), 2);
        }
        client.disconnect(session);
        settle(&mut client, &mut server);
        completions(&mut client);
        assert!(matches!(event(&mut client), SessionEvent::Disconnected(_)));
        assert_nothing_is_left(&client);
        assert_nothing_is_left(&server);
    }
    assert_eq!((client.stats().dropped_total(), server.stats().dropped_total()), (0, 0));
}

#[test]
fn a_connect_to_a_peer_that_was_just_left_keeps_the_way_to_it() {
    // The port is about to forget the peer, which is needed again before the turn in which that would happen.
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    client.disconnect(session);
    client.turn();
    server.turn();
    client.disconnect(session);
    let mut opening = client.begin_connect(&server.address()).unwrap();
    client.disconnect(opening);
    settle(&mut client, &mut server);
    opening = client.begin_connect(&server.address()).unwrap();
    client.disconnect(opening);
    opening = client.begin_connect(&server.address()).unwrap();
    client.turn();
    world.network.kill("server");
    client.turn();
    let failed = events(&mut client);
    assert!(
        failed.iter().any(|event| matches!(event, SessionEvent::ConnectFailed { session, .. } if *session == opening)),
        "the port still tells of the peer: {failed:?}"
    );
}

#[test]
fn a_client_of_the_version_before_is_refused_in_its_own_version() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = handmade::HandClient::new(&world, 1);
    for (version, code) in [(2, 3), (1, 3), (0, 3)] {
        let connect = client.connect_packet(handmade::OFFER, sinew_wire::management::Cookie::default());
        client.send_management(&connect.with_version(version));
        world.network.start_tap();
        world.network.take_tapped();
        server.turn();
        let sent = world.network.take_tapped();
        let (theirs, header) = sinew_wire::Header::read_other_version(&sent[0].bytes).unwrap();
        assert_eq!((sent.len(), theirs, header.kind, header.message_len), (1, version, Refuse, code));
        assert_eq!(header.session, client.key);
    }
    assert_eq!(server.stats().dropped(PacketDrop::WrongVersion), 3);
    assert_nothing_is_left(&server);
}

#[test]
fn a_server_of_the_version_before_is_known_by_what_it_answers() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let server = handmade::HandServer::asked(&world, &mut client);
    let call = send(&mut client, server.session, ECHO, b"waits", 0);
    world.clock.advance(Config::default().connect_retry_ns + 10_000_000);
    world.network.start_tap();
    world.network.take_tapped();
    client.turn();
    let sent = world.network.take_tapped();
    let asked = sent.iter().filter_map(|packet| sinew_wire::Header::read_other_version(&packet.bytes)).next();
    assert!(matches!(asked, Some((2, header)) if header.kind == Connect), "{asked:?}");
    let cookie = sinew_wire::management::Cookie { code: 7, made_ns: 8 };
    let challenge = sinew_wire::management::Challenge { cookie }.encode(server.client_key);
    // A challenge with a key that we did not give may be anybody's.
    let wrong = sinew_wire::management::Challenge { cookie }.encode(sinew_wire::SessionKey(77));
    server.send_management(&wrong.with_version(2));
    client.turn();
    assert!(events(&mut client).is_empty());
    server.send_management(&challenge.with_version(2));
    client.turn();
    let SessionEvent::ConnectFailed { error, .. } = event(&mut client) else { panic!() };
    assert!(error.to_string().contains("speaks version 2 of the protocol, and we speak 3"), "{error}");
    let over = completions(&mut client).remove(0);
    let error = over.result.as_ref().unwrap_err();
    assert_eq!((over.id(), error.cause, error.execution), (call, Cause::SessionRefused, Execution::NeverSent));
    assert_nothing_is_left(&client);
}

#[test]
fn a_refusal_for_the_version_names_both() {
    let world = World::new();
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let server = handmade::HandServer::asked(&world, &mut client);
    let refusal = sinew_wire::management::Refusal::Version { version: 9 };
    server.send_management(&refusal.encode(server.client_key));
    client.turn();
    let SessionEvent::ConnectFailed { error, .. } = event(&mut client) else { panic!() };
    assert!(error.to_string().contains("speaks version 9"), "{error}");
}
