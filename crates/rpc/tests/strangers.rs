//! Damaged, truncated, replayed and forged packets: each is dropped for its reason, and good sessions are unaffected.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::loopback::{LoopbackConfig, Network, TappedPacket};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_rpc::{Config, PacketDrop, SessionId};
use sinew_wire::management::{Cookie, Liveness, Offer, Refusal, session_end};
use sinew_wire::{HEADER_LEN, Header, Kind, SessionKey};

const MS: u64 = 1_000_000;
const SMALL: Offer = Offer { data_per_packet: 100, ..OFFER };

/// Asserts that a client with a session is served.
fn assert_served(world: &World, client: &mut Endpoint, server: &mut Endpoint, session: SessionId) {
    for len in [5, 5_000] {
        send(client, session, ECHO, &pattern(len, 3), 1);
        let over = run(world, client, server, 1).remove(0);
        assert!(over.result.is_ok() && over.response[..] == pattern(len, 3)[..]);
    }
}

/// A management packet of each kind, and data packets: all are well formed, but mean nothing to their receiver.
fn packets_about(key: SessionKey, other: SessionKey) -> Vec<Vec<u8>> {
    let connect = HandClient::new(&World::new(), 1);
    let mut packets: Vec<Vec<u8>> = [
        connect.connect_packet(OFFER, Cookie::default()),
        sinew_wire::management::Challenge { cookie: Cookie { code: 1, made_ns: 2 } }.encode(key),
        sinew_wire::management::Accept {
            server_key: other,
            server_token: 1,
            client_token: 2,
            granted: OFFER,
            reverse_offer: None,
            features: sinew_wire::management::Features::SUPPORTED,
        }
        .encode(key),
        Refusal::Closing.encode(key),
        Refusal::Sessions { limit: 3 }.encode(key),
        session_end(Kind::Confirm, key, other),
        session_end(Kind::Disconnect, key, other),
        session_end(Kind::Disconnected, key, other),
        session_end(Kind::Reset, key, other),
        Liveness { sender_token: 1, receiver_token: 2 }.encode(Kind::Ping),
        Liveness { sender_token: 1, receiver_token: 2 }.encode(Kind::Pong),
    ]
    .iter()
    .map(|packet| packet.as_bytes().to_vec())
    .collect();
    let kinds = [
        Kind::Request,
        Kind::Response,
        Kind::CreditReturn,
        Kind::RequestForResponse,
        Kind::InProgress,
        Kind::CallError,
    ];
    for kind in kinds {
        let header = Header {
            kind,
            type_or_residence: 1,
            message_len: 4,
            session: key,
            request_number: 8,
            packet_number: 0,
            is_copy: false,
        };
        packets.push(bytes_of(header, b"data"));
    }
    packets
}

#[test]
fn packets_about_unknown_sessions_are_dropped_and_counted() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let unknown = SessionKey::new(0, 0x12345);
    let beyond = SessionKey::new(SessionKey::INDEX_LIMIT - 1, 0x12345);
    let (mut dropped, mut sent) = (0, 0);
    for key in [unknown, beyond, SessionKey(0), SessionKey(1), SessionKey(u64::MAX)] {
        for packet in packets_about(key, SessionKey(77)) {
            let kind = parse(&packet).0.kind;
            if kind == Kind::Connect || kind == Kind::Ping {
                continue;
            }
            world.network.inject("server", Network::stranger(1), &packet);
            world.network.inject("client", Network::stranger(1), &packet);
            sent += 2;
        }
        settle(&mut client, &mut server);
    }
    for endpoint in [&client, &server] {
        dropped += endpoint.stats().dropped(PacketDrop::UnknownSession);
    }
    assert_eq!(dropped, sent);
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    assert_served(&world, &mut client, &mut server, session);
}

#[test]
fn every_prefix_of_every_packet_is_dropped() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let hand = HandClient::connected(&world, &mut server, 1, SMALL);
    let (mut sent, before) = (0, server.stats().dropped_total());
    for packet in packets_about(hand.server_key, hand.key) {
        let kind = parse(&packet).0.kind;
        // These have no body: anything after the header is ignored.
        let has_body = !matches!(
            kind,
            Kind::Response | Kind::CreditReturn | Kind::RequestForResponse | Kind::InProgress | Kind::CallError
        );
        for len in 0..if has_body { packet.len() } else { HEADER_LEN } {
            world.network.inject("server", hand.peer, &packet[..len]);
            server.turn();
            sent += 1;
        }
    }
    assert_eq!(server.stats().dropped_total() - before, sent);
    assert_eq!(server.stats().dropped(PacketDrop::Truncated), 17 * HEADER_LEN as u64);
    assert_eq!(server.sessions(), 2);
    assert_eq!(server.stats().requests_handled, 0);
    assert_served(&world, &mut client, &mut server, session);
}

#[test]
fn every_flipped_bit_of_a_request_is_noticed_or_makes_another_request() {
    for bit in 0..8 * HEADER_LEN {
        let world = World::new();
        let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
        let hand = HandClient::connected(&world, &mut server, 1, SMALL);
        let mut packet = bytes_of(hand.header(1 << 20, 0, 4), b"data");
        packet[bit / 8] ^= 1 << (bit % 8);
        world.network.inject("server", hand.peer, &packet);
        server.turn();
        let expected = match bit {
            0..8 => Some(PacketDrop::WrongMagic),
            13..15 => Some(PacketDrop::WrongVersion),
            32..55 => Some(PacketDrop::WrongLength),
            // From here on the message would have more packets than there are numbers.
            55..64 => Some(PacketDrop::TooLong),
            64..128 => Some(PacketDrop::UnknownSession),
            128..144 => Some(PacketDrop::OutOfOrder),
            _ => None,
        };
        let stats = server.stats();
        if let Some(reason) = expected {
            assert_eq!((stats.dropped(reason), stats.requests_handled), (1, 0), "bit {bit}: {reason:?}");
        } else {
            // Another kind or type, a retransmission, or another request of this client.
            assert_eq!(stats.requests_handled + stats.dropped_total(), 1, "bit {bit}");
        }
        assert_eq!(server.sessions(), 2);
        assert_served(&world, &mut client, &mut server, session);
    }
}

#[test]
fn every_flipped_bit_of_an_answer_leaves_the_client_alive() {
    for packet_kind in [Kind::Response, Kind::CreditReturn, Kind::InProgress, Kind::CallError] {
        for bit in 0..8 * HEADER_LEN {
            let world = World::new();
            let mut client = world.client(Config::default(), LoopbackConfig::default());
            let hand = HandServer::connected(&world, &mut client, SMALL);
            let len = if packet_kind == Kind::CreditReturn { 350 } else { 5 };
            send(&mut client, hand.session, ECHO, &pattern(len, 1), 1);
            let number = hand.turn(&mut client)[0].0.request_number;
            let message_len = if packet_kind == Kind::CallError { 2 } else { 4 };
            let data: &[u8] = if packet_kind == Kind::Response { b"data" } else { &[] };
            let mut packet = bytes_of(hand.header(packet_kind, number, 0, message_len), data);
            packet[bit / 8] ^= 1 << (bit % 8);
            world.network.inject("client", hand.peer, &packet);
            hand.turn(&mut client);
            let over = completions(&mut client).len();
            let dropped = client.stats().dropped_total();
            let changed = dropped == 0;
            assert!(over <= 1 && (dropped == 1 || changed), "{packet_kind:?}, bit {bit}");
            if over == 0 {
                // The true answer still counts.
                hand.response(number, 0, b"true");
                hand.turn(&mut client);
                assert_eq!(completions(&mut client).len(), 1, "{packet_kind:?}, bit {bit}");
            }
        }
    }
}

/// Makes calls of every form, and returns every packet that was sent for them and for the session.
fn tapped_life(world: &World) -> (Endpoint, Endpoint, SessionId, Vec<TappedPacket>) {
    world.network.start_tap();
    let port = LoopbackConfig { packet_len_max: 224, copy_len_max: 100, ..LoopbackConfig::default() };
    let (mut client, mut server, session) = world.pair(Config::default(), port);
    for round in 0..12 {
        for (tag, request_type) in [ECHO, BURST, WORKER, LONG, DROP, DEFER].into_iter().enumerate() {
            let data = match request_type {
                LONG => (1_000u32 * round).to_le_bytes().to_vec(),
                _ => pattern(100 * round as usize, round as u8),
            };
            send(&mut client, session, request_type, &data, tag as u64);
        }
        client.turn();
        server.turn();
        answer_kept();
        let mut over = 0;
        while over < 6 {
            client.turn();
            server.turn();
            world.pool.run_all();
            answer_kept();
            over += completions(&mut client).len();
            world.clock.advance(1_000);
        }
    }
    let tapped = world.network.take_tapped();
    assert!(tapped.len() > 500);
    (client, server, session, tapped)
}

fn replay(world: &World, tapped: &[TappedPacket], client: &mut Endpoint, server: &mut Endpoint) {
    let peer_of_client = world.network.peer("client").unwrap();
    for packet in tapped {
        let to = if packet.to == peer_of_client { "client" } else { "server" };
        world.network.inject(to, packet.from, &packet.bytes);
        settle(client, server);
    }
}

#[test]
fn replays_run_nothing_again_and_complete_nothing_again() {
    let world = World::new();
    let (mut client, mut server, session, tapped) = tapped_life(&world);
    let handled = server.stats().requests_handled;
    let completed = client.stats().calls_completed;
    for _ in 0..2 {
        replay(&world, &tapped, &mut client, &mut server);
    }
    assert_eq!(server.stats().requests_handled, handled);
    assert_eq!((client.stats().calls_completed, completions(&mut client).len()), (completed, 0));
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    assert!(events(&mut client).is_empty());
    assert_eq!(world.pool.len(), 0);
    assert!(take_kept().is_empty());
    assert_served(&world, &mut client, &mut server, session);
}

#[test]
fn replays_after_the_end_of_a_session_bring_nothing_back() {
    let world = World::new();
    let (mut client, mut server, session, mut tapped) = tapped_life(&world);
    client.disconnect(session);
    settle(&mut client, &mut server);
    tapped.extend(world.network.take_tapped());
    let handled = server.stats().requests_handled;
    events(&mut client);
    replay(&world, &tapped, &mut client, &mut server);
    assert_nothing_is_left(&client);
    assert_nothing_is_left(&server);
    assert_eq!(server.stats().requests_handled, handled);
    // None of them disturbs the next session, either.
    let session = connect(&world, &mut client, &mut server);
    replay(&world, &tapped, &mut client, &mut server);
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    assert!(events(&mut client).is_empty() && completions(&mut client).is_empty());
    assert_served(&world, &mut client, &mut server, session);
}

#[test]
fn packets_in_every_order_and_from_every_session_do_not_mix() {
    // Two clients of one server swap all their packets: each gets only its own answers.
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let (one, two) =
        (HandClient::connected(&world, &mut server, 1, SMALL), HandClient::connected(&world, &mut server, 2, SMALL));
    one.request(8, 0, b"one");
    assert_eq!(one.turn(&mut server)[0].1, b"one");
    // The right key, from the other client's address.
    let forged = bytes_of(one.header(16, 0, 3), b"two");
    world.network.inject("server", two.peer, &forged);
    world.network.inject("server", two.peer, session_end(Kind::Disconnect, one.server_key, one.key).as_bytes());
    let answers = one.turn(&mut server);
    assert_eq!(outline(&answers), []);
    assert_eq!(server.stats().dropped(PacketDrop::WrongSource), 2);
    assert_eq!(server.sessions(), 2);
    one.request(16, 0, b"one again");
    assert_eq!(one.turn(&mut server)[0].1, b"one again");
}

#[test]
fn strangers_get_no_more_than_they_sent() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let mut generator = SeededGenerator::new(3);
    let mut templates = packets_about(SessionKey(5 << 24), SessionKey(9));
    templates.push(Vec::new());
    world.network.start_tap();
    for round in 0..3_000 {
        // Up to two bursts at a time, from a thousand strangers.
        let (mut sent, mut sent_bytes) = (0, 0);
        for _ in 0..generator.below(64) {
            let mut packet = templates[generator.below(templates.len() as u64) as usize].clone();
            match generator.below(4) {
                0 => packet = (0..generator.below(200)).map(|_| generator.next_u64() as u8).collect(),
                1 if !packet.is_empty() => {
                    let at = generator.below(packet.len() as u64) as usize;
                    packet[at] ^= 1 << generator.below(8);
                }
                2 => packet.truncate(generator.below(100) as usize),
                _ => {}
            }
            let target = if round % 2 == 0 { "server" } else { "client" };
            world.network.inject(target, Network::stranger(generator.below(1_000) as u32), &packet);
            (sent, sent_bytes) = (sent + 1, sent_bytes + packet.len());
        }
        world.network.take_tapped();
        for _ in 0..3 {
            server.turn();
            client.turn();
        }
        let answers = world.network.take_tapped();
        assert!(answers.len() <= sent);
        assert!(answers.iter().map(|packet| packet.bytes.len()).sum::<usize>() <= sent_bytes);
        if round % 100 == 0 {
            assert_served(&world, &mut client, &mut server, session);
        }
    }
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    assert_eq!(server.committed_packets(), 32);
    pass_time(&world, &mut client, &mut server, 6_000 * MS);
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
    assert_served(&world, &mut client, &mut server, session);
}

/// Limits that let one peer take everything.
fn greedy_allowed() -> Config {
    Config { peer_share_percent: 100, request_rate_min_bytes_per_s: 0, ..Config::default() }
}

#[test]
fn a_client_is_sent_no_more_packets_in_one_turn_than_it_has_credits() {
    let world = World::new();
    let mut server = world.server(Config { credits: 4, ..Config::default() }, LoopbackConfig::default());
    let mut client = HandClient::connected(&world, &mut server, 1, SMALL);
    client.request_type = LONG;
    client.request(8, 0, &100_000u32.to_le_bytes());
    client.turn(&mut server);
    for first in 0..32 {
        client.request_for_response(8, 1 + first, 4);
    }
    assert_eq!(client.turn(&mut server).len(), 4);
    assert_eq!(server.stats().dropped(PacketDrop::OverCredit), 31);
    client.request_for_response(8, 5, 4);
    assert_eq!(client.turn(&mut server).len(), 4);
    for count in [5, 6, 1_000] {
        client.request_for_response(8, 1, count);
    }
    assert_eq!(client.turn(&mut server).len(), 0);
}

#[test]
fn a_client_that_fills_the_servers_memory_takes_it_from_nobody_for_good() {
    let world = World::new();
    let tight = LoopbackConfig { arena_bytes: 1 << 20, ..LoopbackConfig::default() };
    let of_server = (Config { message_len_max: 1 << 18, ..greedy_allowed() }, tight);
    let of_client = (Config::default(), LoopbackConfig::default());
    let (mut client, mut server, session) = world.pair_of(of_client, of_server);
    let mut greedy = HandClient::connected(&world, &mut server, 1, SMALL);
    greedy.request_type = ECHO;
    // Long messages begun in all slots, and never finished.
    let message = pattern(1 << 18, 1);
    for slot in 0..8 {
        greedy.request(8 + slot, 0, &message);
    }
    greedy.turn(&mut server);
    assert!(server.stats().dropped(PacketDrop::NoMemory) > 0);
    // Small requests need memory of the arena only for their first answers.
    send(&mut client, session, ECHO, b"small", 1);
    let over = run(&world, &mut client, &mut server, 1).remove(0);
    assert!(over.result.is_ok() || over.result.unwrap_err().cause == sinew_rpc::Cause::ServerBusy);
    // The greedy client falls silent, and everything is as before.
    for _ in 0..6_000 {
        world.clock.advance(MS);
        server.turn();
        client.turn();
    }
    assert_eq!(server.sessions(), 1);
    send(&mut client, session, ECHO, &pattern(1 << 18, 4), 1);
    let over = run(&world, &mut client, &mut server, 1).remove(0);
    assert!(over.result.is_ok(), "{:?}", over.result);
}

#[test]
fn requests_that_stopped_arriving_are_given_up_when_others_need_the_memory() {
    let world = World::new();
    let tight = LoopbackConfig { arena_bytes: 1 << 20, ..LoopbackConfig::default() };
    let of_server = (Config { message_len_max: 1 << 18, ..greedy_allowed() }, tight);
    let of_client = (Config::default(), LoopbackConfig::default());
    let (mut client, mut server, session) = world.pair_of(of_client, of_server);
    let mut greedy = HandClient::connected(&world, &mut server, 1, SMALL);
    greedy.request_type = ECHO;
    let message = pattern(1 << 18, 1);
    for slot in 0..8 {
        greedy.request(8 + slot, 0, &message);
    }
    greedy.turn(&mut server);
    // Time that a slow but honest client gets.
    pass_time(&world, &mut client, &mut server, 500 * MS);
    send(&mut client, session, ECHO, &pattern(1 << 18, 4), 1);
    let over = run(&world, &mut client, &mut server, 1).remove(0).result.unwrap_err();
    assert_eq!((over.cause, over.execution), (sinew_rpc::Cause::ServerBusy, sinew_rpc::Execution::NotRun));
    assert_eq!(server.stats().requests_given_up, 0);
    pass_time(&world, &mut client, &mut server, 600 * MS);
    send(&mut client, session, ECHO, &pattern(1 << 18, 4), 1);
    let over = run(&world, &mut client, &mut server, 1);
    assert!(over.len() == 1 && over[0].result.is_ok(), "{over:?}");
    assert!(server.stats().requests_given_up > 0);
    // A client that continues such a request learns that it did not run.
    greedy.request(8, 1, &message);
    let answers = greedy.turn(&mut server);
    assert_eq!(answers.iter().map(|answer| answer.0.kind).collect::<Vec<_>>(), [sinew_wire::Kind::CallError]);
}

/// A server of 8 MB, and a client that has had `calls` long worker calls answered together.
fn after_long_answers(world: &World, calls: usize) -> (Endpoint, Endpoint, SessionId) {
    let tight = LoopbackConfig { arena_bytes: 8 << 20, ..LoopbackConfig::default() };
    let of_server = (Config { message_len_max: 1 << 20, ..greedy_allowed() }, tight);
    let of_client = (Config::default(), LoopbackConfig::default());
    let (mut client, mut server, session) = world.pair_of(of_client, of_server);
    for _ in 0..calls {
        send(&mut client, session, WORKER, &pattern(1 << 20, 4), 1);
    }
    assert!(run(world, &mut client, &mut server, calls).iter().all(|over| over.result.is_ok()));
    (client, server, session)
}

#[test]
fn answers_that_arrived_make_room_for_the_next_call() {
    let world = World::new();
    let (mut client, mut server, session) = after_long_answers(&world, 3);
    for round in 0..10 {
        send(&mut client, session, WORKER, &pattern(1 << 20, 4), 1);
        assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok(), "{round}");
    }
    assert_eq!(server.stats().responses_given_up, 0);
}

#[test]
fn answers_that_nobody_fetches_any_more_give_their_memory_to_other_calls() {
    let world = World::new();
    let (mut client, mut server, session) = after_long_answers(&world, 5);
    pass_time(&world, &mut client, &mut server, 1_500 * MS);
    let others: Vec<_> = (0..3).map(|_| connect(&world, &mut client, &mut server)).collect();
    for session in others.into_iter().chain([session]) {
        send(&mut client, session, WORKER, &pattern(1 << 20, 4), 1);
        let over = run(&world, &mut client, &mut server, 1).remove(0);
        assert!(over.result.is_ok(), "{:?}", over.result);
    }
    assert!(server.stats().responses_given_up > 0);
}

#[test]
fn a_long_answer_that_was_given_up_ends_its_call_when_the_client_goes_on() {
    let world = World::new();
    let tight = LoopbackConfig { arena_bytes: 2 << 20, ..LoopbackConfig::default() };
    let (mut client, mut server, session) =
        world.pair_of((Config::default(), LoopbackConfig::default()), (greedy_allowed(), tight));
    let mut slow = HandClient::connected(&world, &mut server, 1, SMALL);
    slow.request_type = LONG;
    slow.request(8, 0, &1_000_000u32.to_le_bytes());
    assert_eq!(slow.turn(&mut server).len(), 1);
    pass_time(&world, &mut client, &mut server, 1_500 * MS);
    send(&mut client, session, LONG, &1_200_000u32.to_le_bytes(), 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    assert_eq!(server.stats().responses_given_up, 1);
    slow.request_for_response(8, 1, 1);
    let answers = slow.turn(&mut server);
    assert_eq!(answers.iter().map(|answer| answer.0.kind).collect::<Vec<_>>(), [sinew_wire::Kind::CallError]);
}

#[test]
fn a_long_request_that_keeps_arriving_is_not_given_up() {
    let world = World::new();
    let tight = LoopbackConfig { arena_bytes: 1 << 20, ..LoopbackConfig::default() };
    let of_server = (Config { message_len_max: 1 << 18, ..greedy_allowed() }, tight);
    let (mut client, mut server, session) = world.pair_of((Config::default(), LoopbackConfig::default()), of_server);
    let mut slow = HandClient::connected(&world, &mut server, 1, SMALL);
    slow.request_type = ECHO;
    let message = pattern(1 << 18, 1);
    for slot in 0..8 {
        slow.request(8 + slot, 0, &message);
    }
    slow.turn(&mut server);
    for number in 1..6 {
        send(&mut client, session, ECHO, &pattern(1 << 18, 4), 1);
        for slot in 0..8 {
            slow.request(8 + slot, number, &message);
        }
        slow.turn(&mut server);
        pass_time(&world, &mut client, &mut server, 400 * MS);
        let over = completions(&mut client).remove(0).result.unwrap_err();
        assert_eq!(over.cause, sinew_rpc::Cause::ServerBusy);
        assert_eq!(server.stats().requests_given_up, 0, "{number}");
    }
}
