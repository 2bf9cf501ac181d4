//! One client takes all that it can get. Another beside it keeps at least half of the rate that it has alone.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::Clock;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Cause, Config, Execution, PacketDrop, SessionId, Tuning};
use sinew_wire::Kind::{Accept, CallError, Response};
use sinew_wire::management::Offer;
use sinew_wire::{Header, Kind, SessionKey};

const MS: u64 = 1_000_000;
/// Credits of a session by default.
const CREDITS: usize = 32;
/// Slots of a session by default.
const SLOTS: u64 = 8;
/// Packets that the server receives in one turn, less those of a good client.
const FLOOD: u64 = 200;

/// Packets that an attacker repeats. Each flood needs calls of a certain kind.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Asks for parts of finished long responses, for different ones each time.
    Responses,
    /// Asks for the same part of a finished long response again and again.
    SameResponse,
    /// Repeats requests that were answered with a short response.
    Short,
    /// Repeats requests that were answered with a long response, and gets its first packet.
    Long,
    /// Repeats requests whose handlers are at work.
    Running,
    /// Repeats requests that failed.
    Failed,
    /// Repeats the first packets of long requests.
    Begun,
}

use Flood::{Begun, Failed, Long, Responses, Running, SameResponse, Short};

const FLOODS: [Flood; 7] = [Responses, SameResponse, Short, Long, Running, Failed, Begun];

/// Length of the attacker's long responses, in bytes: they have enough packets for many disjoint parts.
const LONG_LEN: u32 = 100 * 32 * 100;

impl Flood {
    /// An attacker that has made its calls, one in each slot.
    fn prepared(self, world: &World, server: &mut Endpoint) -> HandClient {
        let mut attacker = HandClient::connected(world, server, 66, SMALL);
        attacker.request_type = match self {
            Responses | SameResponse | Long => LONG,
            Short | Begun => ECHO,
            Running => DEFER,
            Failed => DROP,
        };
        for slot in 0..SLOTS {
            self.ask_first(&attacker, SLOTS + slot);
            // One per turn: a first answer is no flood.
            attacker.turn(server);
        }
        attacker
    }

    fn ask_first(self, attacker: &HandClient, number: u64) {
        match self {
            Responses | SameResponse | Long => attacker.request(number, 0, &LONG_LEN.to_le_bytes()),
            Begun => attacker.request(number, 0, &[7; 1_000]),
            Short | Running | Failed => attacker.request(number, 0, b"short"),
        }
    }

    /// Sends `count` packets, each of which asks for answers.
    fn send(self, attacker: &HandClient, count: u64) {
        for nth in 0..count {
            let number = SLOTS + nth % SLOTS;
            match self {
                Responses => {
                    let first = 1 + nth / SLOTS % 90 * CREDITS as u64;
                    attacker.request_for_response(number, first as u16, CREDITS as u32);
                }
                SameResponse => attacker.request_for_response(SLOTS, 1, CREDITS as u32),
                _ => self.ask_first(attacker, number),
            }
        }
    }
}

/// Each packet of an attacker asks for an answer, or for as many answers as there are credits, of calls that were over
/// long ago; thousands of such packets wait before one turn. In one turn the server answers with no more packets than
/// the session has credits.
#[test]
fn one_turn_answers_a_session_with_no_more_packets_than_it_has_credits() {
    for config in [Config::default(), singly()] {
        for flood in FLOODS {
            let world = World::new();
            let mut server = world.server(config.clone(), LoopbackConfig::default());
            let attacker = flood.prepared(&world, &mut server);
            let dropped = server.stats().dropped_total();
            flood.send(&attacker, 4_000);
            for turn in 0..20 {
                let answers = attacker.turn(&mut server).len();
                assert!(answers <= CREDITS, "{flood:?}: {answers} packets in turn {turn}");
            }
            let refused = server.stats().dropped_total() - dropped;
            assert!(refused > 0 || matches!(flood, SameResponse), "{flood:?}: nothing was refused");
            answer_kept();
        }
    }
}

/// As above, with requests for disjoint parts of responses: refused ones are counted.
#[test]
fn answers_over_a_sessions_credits_are_refused_and_counted() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let attacker = Responses.prepared(&world, &mut server);
    Responses.send(&attacker, 100);
    assert_eq!(attacker.turn(&mut server).len(), CREDITS);
    assert!(server.stats().dropped(PacketDrop::OverCredit) >= 90, "{:?}", server.stats());
    assert_eq!(PacketDrop::OverCredit.name(), "over_credit");
    // The next turn has credits of its own.
    attacker.request_for_response(SLOTS, 5, 3);
    assert_eq!(outline(&attacker.turn(&mut server)), [(Response, 5), (Response, 6), (Response, 7)]);
}

/// Requests for the same packets in one turn, or for overlapping ranges, count as one: each packet is sent once.
#[test]
fn overlapping_requests_for_one_response_are_answered_once() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let attacker = Responses.prepared(&world, &mut server);
    for (first, count) in [(1, 4), (1, 4), (3, 4), (2, 1), (1, 6)] {
        attacker.request_for_response(SLOTS, first, count);
    }
    let mut numbers: Vec<u16> = attacker.turn(&mut server).iter().map(|(header, _)| header.packet_number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
}

/// Response bytes that a good client fetches in 20 ms, if each packet that the server sends takes a microsecond, and
/// each turn five. `attack` runs before each turn.
fn bytes_fetched(
    world: &World,
    client: &mut Endpoint,
    server: &mut Endpoint,
    session: SessionId,
    mut attack: impl FnMut(),
) -> usize {
    const LEN: u32 = 100_000;
    let (end_ns, mut fetched) = (world.clock.now_ns() + 20 * MS, 0);
    for tag in 0..4 {
        send(client, session, LONG, &LEN.to_le_bytes(), tag);
    }
    world.network.start_tap();
    while world.clock.now_ns() < end_ns {
        client.turn();
        while let Some(over) = client.poll_completion() {
            assert!(over.result.is_ok() && over.response.len() == LEN as usize);
            fetched += over.response.len();
            send(client, session, LONG, &LEN.to_le_bytes(), over.tag);
        }
        attack();
        world.network.take_tapped();
        server.turn();
        let sent = world.network.take_tapped().len() as u64;
        world.clock.advance(5_000 + sent * 1_000);
    }
    fetched
}

/// An attacker fills each of the server's turns with packets that ask for answers of calls that were over long ago.
/// Sending takes the server time. A good client, which fetches long responses with all its credits, keeps half of its
/// rate.
#[test]
fn a_session_that_asks_for_everything_again_leaves_another_half_of_its_rate() {
    let rate = |flood: Option<Flood>| {
        let world = World::new();
        let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
        let attacker = flood.map(|flood| (flood, flood.prepared(&world, &mut server)));
        let fetched = bytes_fetched(&world, &mut client, &mut server, session, || {
            if let Some((flood, attacker)) = &attacker {
                flood.send(attacker, FLOOD);
            }
        });
        answer_kept();
        fetched
    };
    let alone = rate(None);
    assert!(alone > 1_000_000);
    for flood in FLOODS {
        let beside = rate(Some(flood));
        assert!(beside * 2 >= alone, "{flood:?}: {beside} bytes instead of {alone}");
    }
}

fn singly() -> Config {
    Config { tuning: Tuning { cumulative_credits: false, ..Tuning::default() }, ..Config::default() }
}

/// No attack: the server stood still for so long that it receives a client's packets together with their
/// retransmissions. The client is answered all the same, even if it asks for each packet separately.
#[test]
fn a_client_whose_packets_and_their_copies_come_together_is_answered() {
    for config in [Config::default(), singly()] {
        let world = World::new();
        let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
        for tag in 0..SLOTS {
            send(&mut client, session, LONG, &200_000u32.to_le_bytes(), tag);
        }
        for _ in 0..6 {
            for _ in 0..3 {
                client.turn();
                server.turn();
            }
            for _ in 0..100 {
                world.clock.advance(MS);
                client.turn();
            }
        }
        for over in run(&world, &mut client, &mut server, SLOTS as usize) {
            assert_eq!((over.result, over.response.len()), (Ok(()), 200_000));
        }
        let credits = client.session_credits(session).unwrap();
        assert_eq!(credits.left, credits.all);
    }
}

/// A client opens sessions, which are accepted, and never uses them, but pings. It is reminded of each at most a
/// hundred times, and then the session is removed; the session that the client uses stays.
#[test]
fn a_session_that_is_never_confirmed_is_reminded_of_a_hundred_times_and_removed() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let used = HandClient::connected(&world, &mut server, 1, OFFER);
    used.request(8, 0, b"used");
    used.turn(&mut server);
    let unused: Vec<_> = (0..20).map(|index| used.sibling(&world, index)).collect();
    for mut session in unused {
        session.open(&mut server, OFFER).unwrap();
    }
    assert_eq!(server.sessions(), 21);
    world.network.start_tap();
    world.network.take_tapped();
    for step in 0..11_000 {
        world.clock.advance(10 * MS);
        if step % 10 == 0 {
            used.ping();
        }
        server.turn();
    }
    let accepts = kinds(&world.network).into_iter().filter(|&kind| kind == Accept).count();
    assert!((20 * 95..=20 * 100).contains(&accepts), "{accepts} reminders");
    assert_eq!(server.sessions(), 1);
    assert_eq!(server.committed_packets(), CREDITS as u64);
    used.request(16, 0, b"still there");
    assert_eq!(used.turn(&mut server)[0].1, b"still there");
}

/// A client opens sessions by the thousand, answers no reminder, and pings once a second. It is sent a bounded number
/// of bytes for that, and is reminded of each session in turn.
#[test]
fn reminders_of_thousands_of_sessions_are_spread_over_time() {
    const SESSIONS: u64 = 2_000;
    let world = World::new();
    let config = Config { overcommit: true, ..Config::default() };
    let mut server = world.server(config, LoopbackConfig::default());
    let opened = HandClient::open_many(&world, &mut server, 1, SMALL, SESSIONS);
    assert_eq!(opened.len() as u64, SESSIONS);
    let seconds = 10;
    world.network.start_tap();
    world.network.take_tapped();
    for step in 0..100 * seconds {
        if step % 100 == 0 {
            opened[0].ping();
        }
        world.clock.advance(10 * MS);
        server.turn();
    }
    let tapped = world.network.take_tapped();
    assert!(tapped.len() < 900 * seconds, "{} packets in {seconds} seconds", tapped.len());
    for session in &opened {
        let reminders = tapped.iter().filter(|packet| parse(&packet.bytes).0.session == session.key).count();
        assert!((3..=4).contains(&reminders), "{reminders} reminders");
    }
    // A client that answers is no longer reminded.
    for session in &opened {
        session.send_management(&sinew_wire::management::session_end(Kind::Confirm, session.server_key, session.key));
        if session.server_key.index() % 100 == 0 {
            server.turn();
        }
    }
    server.turn();
    world.network.take_tapped();
    for _ in 0..200 {
        opened[0].ping();
        world.clock.advance(10 * MS);
        server.turn();
    }
    assert_eq!(kinds(&world.network).into_iter().filter(|&kind| kind == Accept).count(), 0);
}

/// A client whose user is busy does not turn its loop for longer than all reminders take, but for less than the peer
/// time-out: its session is still there when it comes back.
#[test]
fn a_session_whose_client_is_busy_with_something_else_is_not_taken_back() {
    let world = World::new();
    let config = Config { peer_timeout_ns: 60_000 * MS, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, LoopbackConfig::default());
    for _ in 0..30_000 {
        world.clock.advance(MS);
        server.turn();
    }
    settle(&mut client, &mut server);
    send(&mut client, session, ECHO, b"x", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    assert!(events(&mut client).is_empty());
}

/// Retransmits a client's request.
fn send_copy(client: &HandClient, number: u64, message: &[u8]) {
    client.send(Header { is_copy: true, ..client.header(number, 0, message.len()) }, message);
}

/// Somebody who knows the session, or a bug, used a much larger request number on a slot, so that all of the client's
/// next calls there look old. After at most eight retransmissions of one, the server answers with an error; it does not
/// answer other late packets.
#[test]
fn a_request_whose_slot_is_ahead_of_it_is_answered_with_an_error_after_some_copies() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = HandClient::connected(&world, &mut server, 1, SMALL);
    client.request(8 << 20, 0, b"far ahead");
    client.turn(&mut server);
    for _ in 0..20 {
        client.request(16, 0, b"not sent again: a late packet of long ago");
        assert_eq!(outline(&client.turn(&mut server)), []);
    }
    let mut copies = 0;
    let answer = loop {
        send_copy(&client, 16, b"again");
        copies += 1;
        assert!(copies <= 8, "nobody answers");
        world.clock.advance(5 * MS);
        if let Some(answer) = client.turn(&mut server).pop() {
            break answer.0;
        }
    };
    assert_eq!((answer.kind, answer.request_number, answer.session), (CallError, 16, client.key));
    assert_eq!(server.stats().requests_handled, 1);
    // The slot itself continues from its present number.
    client.request((8 << 20) + 8, 0, b"further ahead");
    assert_eq!(client.turn(&mut server)[0].1, b"further ahead");
}

/// As above, with a real client: its calls end with an error which says that they may have run, instead of hanging for
/// as long as the session lives.
#[test]
fn calls_on_slots_that_somebody_pushed_ahead_end_with_an_error() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), LoopbackConfig::default());
    world.network.start_tap();
    send(&mut client, session, ECHO, b"one", 1);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    let tapped = world.network.take_tapped();
    let (from, header) = tapped
        .iter()
        .find_map(|packet| Some((packet.from, parse(&packet.bytes).0)).filter(|of| of.1.kind == Kind::Request))
        .unwrap();
    for slot in 0..SLOTS {
        let ahead = Header { request_number: (SLOTS << 20) + slot, message_len: 4, ..header };
        world.network.inject("server", from, &bytes_of(ahead, b"evil"));
    }
    server.turn();
    for (tag, len) in [(2, 5), (3, 50_000)] {
        send(&mut client, session, ECHO, &pattern(len, 1), tag);
    }
    pass_time(&world, &mut client, &mut server, 4_000 * MS);
    let over = completions(&mut client);
    assert_eq!(over.len(), 2, "calls hang");
    for over in over {
        let error = over.result.unwrap_err();
        assert_eq!(error.execution, Execution::MayHaveRun, "{error}");
        assert_ne!(error.cause, Cause::PeerSilent);
    }
}

/// The number of a slot is pushed ahead, and then a flood of packets that look old is sent: they get no more answers
/// than others.
#[test]
fn copies_that_look_old_are_answered_with_no_more_packets_than_a_session_has_credits() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = HandClient::connected(&world, &mut server, 1, Offer { credits: 4, ..SMALL });
    client.request(8 << 20, 0, b"far ahead");
    client.turn(&mut server);
    for round in 0..10 {
        (0..200).for_each(|_| send_copy(&client, 16, b"again"));
        assert!(client.turn(&mut server).len() <= 4, "{round}");
    }
}

/// Somebody sends from a client's address and tries one token after another. The client's calls go on; a guess that is
/// finally right runs nothing, unless its number is right as well.
#[test]
fn a_token_that_is_guessed_among_many_runs_nothing_and_the_client_goes_on() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = HandClient::connected(&world, &mut server, 1, SMALL);
    client.request(SLOTS, 0, b"before");
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
    let guess = |token: u64, number: u64| {
        let session = SessionKey::new(client.server_key.index(), token);
        client.send(Header { session, ..client.header(number, 0, 4) }, b"evil");
    };
    for token in 0..1_500 {
        guess(token, 5 * SLOTS);
        if token % 50 == 0 {
            client.turn(&mut server);
        }
    }
    client.turn(&mut server);
    assert_eq!((server.stats().requests_handled, server.stats().token_misses), (1, 1_500));
    // The right token, but with a number far ahead in a used slot, and with one in an unused slot.
    for number in [500 * SLOTS, 5 * SLOTS + 1] {
        client.request(number, 0, b"evil");
        assert_eq!(outline(&client.turn(&mut server)), []);
    }
    assert_eq!((server.stats().requests_handled, server.stats().dropped(PacketDrop::Guessed)), (1, 2));
    // The client's own next call, and a retransmission of it.
    for _ in 0..2 {
        client.request(2 * SLOTS, 0, b"after");
        assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
    }
    assert_eq!(server.stats().requests_handled, 2);
    // When the guessing is over, all slots can be used again.
    world.clock.advance(3_000 * MS);
    client.request(5 * SLOTS + 1, 0, b"late");
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
}

/// Calls that were cancelled before they arrived, or whose deadlines passed, have used numbers: the client goes on all
/// the same.
#[test]
fn a_client_some_of_whose_calls_never_came_goes_on_while_somebody_guesses() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut client, &mut server);
    let echo = |client: &mut Endpoint, server: &mut Endpoint, tag| {
        send(client, session, ECHO, b"goes on", tag);
        settle(client, server);
        assert!(completions(client).remove(0).result.is_ok(), "call {tag}");
    };
    for tag in 0..u64::from(Config::default().slots) {
        // One in each slot, so that none is new.
        send(&mut client, session, ECHO, b"before", tag);
    }
    settle(&mut client, &mut server);
    completions(&mut client);
    let guesser = HandClient { peer: world.network.peer("client").unwrap(), ..HandClient::new(&world, 1) };
    for token in 0..1_500 {
        // At the index of the client's session, which is the server's first.
        guesser.send(Header { session: SessionKey::new(0, token), ..guesser.header(SLOTS, 0, 4) }, b"evil");
        if token % 50 == 0 {
            server.turn();
        }
    }
    settle(&mut client, &mut server);
    assert_eq!(server.stats().token_misses, 1_500);
    for tag in 0..30 {
        for _ in 0..tag % 10 {
            let call = send(&mut client, session, ECHO, b"never leaves", 100);
            assert!(client.cancel(call));
            assert_eq!(completions(&mut client).remove(0).tag, 100);
        }
        echo(&mut client, &mut server, tag);
    }
    assert_eq!(server.stats().dropped(PacketDrop::Guessed), 0);
}

/// Any packet that would run a request if the token were right, or end a running one.
#[test]
fn guesses_count_whatever_kind_of_packet_makes_them() {
    for kind in [Kind::Request, Kind::RequestWithOptions, Kind::RequestForResponse, Kind::Cancel] {
        let world = World::new();
        let mut server = world.server(Config::default(), LoopbackConfig::default());
        let client = HandClient::connected(&world, &mut server, 1, SMALL);
        for token in 0..1_500 {
            let session = SessionKey::new(client.server_key.index(), token);
            client.send(Header { session, kind, ..client.header(5 * SLOTS, 0, 0) }, b"");
            if token % 50 == 0 {
                client.turn(&mut server);
            }
        }
        client.turn(&mut server);
        assert_eq!(server.stats().token_misses, 1_500, "{kind:?}");
        client.request(5 * SLOTS, 0, b"evil");
        assert_eq!(outline(&client.turn(&mut server)), [], "{kind:?}");
        assert_eq!(server.stats().dropped(PacketDrop::Guessed), 1);
    }
}

/// A few packets of an earlier session are no guesses, and neither are packets from elsewhere.
#[test]
fn a_few_wrong_tokens_or_many_from_elsewhere_guard_nothing() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = HandClient::connected(&world, &mut server, 1, SMALL);
    let other = HandClient::new(&world, 2);
    for token in 0..3_000 {
        let from = if token < 900 { &client } else { &other };
        let session = SessionKey::new(client.server_key.index(), token);
        from.send(Header { session, ..client.header(SLOTS, 0, 4) }, b"evil");
        if token % 50 == 0 {
            client.turn(&mut server);
        }
    }
    client.turn(&mut server);
    for number in [9 * SLOTS, 9 * SLOTS + 1] {
        client.request(number, 0, b"jump");
        assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
    }
    assert_eq!(server.stats().dropped(PacketDrop::Guessed), 0);
}

/// There were many wrong tokens once. A few after that do not keep the client from slots that it has not used yet.
#[test]
fn a_few_wrong_tokens_after_many_do_not_go_on_guarding() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let client = HandClient::connected(&world, &mut server, 1, SMALL);
    let guess = |token: u64| {
        let session = SessionKey::new(client.server_key.index(), token);
        client.send(Header { session, ..client.header(SLOTS, 0, 4) }, b"evil");
    };
    for token in 0..1_500 {
        guess(token);
        if token % 50 == 0 {
            client.turn(&mut server);
        }
    }
    client.turn(&mut server);
    client.request(SLOTS, 0, b"first");
    assert_eq!(outline(&client.turn(&mut server)), []);
    for token in 0..4 {
        world.clock.advance(1_000 * MS);
        guess(token);
        client.turn(&mut server);
    }
    client.request(SLOTS, 0, b"first");
    assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
}
