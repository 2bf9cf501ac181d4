//! One peer takes all the memory, receive capacity and sessions that it can get. Enough is left for others.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::Clock;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Cause, Config, ConnectError, Execution, Nexus, SessionEvent, SessionId};
use sinew_wire::Kind::{CallError, CreditReturn, Response};
use sinew_wire::management::Offer;

const MS: u64 = 1_000_000;
const MB: usize = 1 << 20;
/// Length of a long message: 256 KB, for which the arena gives 384 KB.
const LONG_LEN: usize = 1 << 18;
/// Slots of a session by default.
const SLOTS: u64 = 8;

fn port(receive_packets: usize) -> LoopbackConfig {
    LoopbackConfig { receive_packets, ..LoopbackConfig::default() }
}

fn memory(arena_bytes: usize) -> LoopbackConfig {
    LoopbackConfig { arena_bytes, ..LoopbackConfig::default() }
}

/// A good client with a session, beside any clients that are there already.
fn good_client(world: &World, server: &mut Endpoint) -> (Endpoint, SessionId) {
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(world, &mut client, server);
    (client, session)
}

/// Makes one echo call of `len` bytes, which must be answered within `ms` milliseconds.
fn assert_served_in(
    world: &World,
    client: &mut Endpoint,
    server: &mut Endpoint,
    session: SessionId,
    len: usize,
    ms: u64,
) {
    send(client, session, ECHO, &pattern(len, 3), 9);
    for _ in 0..ms {
        pass_time(world, client, server, MS);
        if let Some(over) = client.poll_completion() {
            assert_eq!(over.result, Ok(()), "{len} bytes");
            assert!(over.response[..] == pattern(len, 3)[..]);
            return;
        }
    }
    panic!("a call of {len} bytes was not answered in {ms} ms");
}

/// Connects to the server once more, and returns the outcome.
fn try_connect(client: &mut Endpoint, server: &mut Endpoint) -> Result<SessionId, ConnectError> {
    let session = client.begin_connect(&server.address())?;
    settle(client, server);
    match event(client) {
        SessionEvent::Connected(id) if id == session => Ok(id),
        SessionEvent::ConnectFailed { session: id, error } if id == session => Err(error),
        other => panic!("{other:?}"),
    }
}

/// Asserts that the client was refused because of one peer's share, with this limit.
fn assert_over_share(error: &ConnectError, limit: u64) {
    let text = error.to_string();
    assert!(text.contains("share") && text.contains("peer_share_percent"), "{text}");
    assert!(text.contains("loopback://server") && text.contains(&limit.to_string()), "{text}");
}

/// One peer opens session after session, each with as many credits as it can get. It gets no more than half of the
/// receive capacity; others get sessions with all their credits.
#[test]
fn one_peers_sessions_commit_no_more_than_its_share_of_the_receive_capacity() {
    const CAPACITY: u64 = 256;
    let world = World::new();
    let mut server = world.server(Config::default(), port(32 + CAPACITY as usize));
    let greedy = HandClient::open_many(&world, &mut server, 66, OFFER, 100);
    let committed = server.committed_packets();
    assert!((CAPACITY / 2..=(32 + CAPACITY) / 2).contains(&committed), "{committed} of {CAPACITY} packets");
    assert!(greedy.len() >= 4);
    let (mut client, first) = good_client(&world, &mut server);
    let second = connect(&world, &mut client, &mut server);
    for session in [first, second] {
        assert_eq!(client.session_credits(session).unwrap().all, 32);
    }
    assert_served_in(&world, &mut client, &mut server, first, 50_000, 100);
}

/// The client learns that it already has its share, and how large that is.
#[test]
fn a_peer_that_has_its_share_of_the_sessions_hears_so_and_others_get_theirs() {
    let world = World::new();
    let mut server = world.server(Config { sessions_max: 16, ..Config::default() }, LoopbackConfig::default());
    let nexus = Nexus::builder().config(Config::default()).build().unwrap();
    let mut greedy = world.endpoint("greedy", &nexus, 3);
    for _ in 0..8 {
        try_connect(&mut greedy, &mut server).unwrap();
    }
    let error = try_connect(&mut greedy, &mut server).expect_err("a ninth session of one peer, of 16 in all");
    assert_over_share(&error, 8);
    assert_eq!(server.sessions(), 8);
    let (mut client, session) = good_client(&world, &mut server);
    assert_served_in(&world, &mut client, &mut server, session, 100, 100);
    // A session that ends makes room for another.
    let mine = server.sessions();
    drop(greedy);
    settle(&mut client, &mut server);
    assert_eq!((mine, server.sessions()), (9, 1));
}

/// If there is only one peer, it may have everything.
#[test]
fn with_a_share_of_a_hundred_percent_one_peer_may_have_everything() {
    let world = World::new();
    let config = Config { sessions_max: 16, peer_share_percent: 100, ..Config::default() };
    let mut server = world.server(config, LoopbackConfig::default());
    assert_eq!(HandClient::open_many(&world, &mut server, 66, OFFER, 100).len(), 16);
}

/// The share limits what others take from us, not the sessions that we open ourselves.
#[test]
fn ones_own_sessions_with_one_server_are_not_bounded_by_the_share() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let mut client = world.client(Config { sessions_max: 4, ..Config::default() }, port(32 + 4 * 32));
    for _ in 0..4 {
        let session = try_connect(&mut client, &mut server).unwrap();
        assert_eq!(client.session_credits(session).unwrap().all, 32);
    }
}

/// Two servers call each other. Sessions that one opened do not count towards the other's share: the other gets all
/// that it would have got without them.
#[test]
fn sessions_that_we_opened_with_a_peer_leave_it_its_share() {
    for (sessions_max, packets) in [(8, 1_000), (1_000, 8 * 32)] {
        let world = World::new();
        let mut first = world.server(Config { sessions_max, ..Config::default() }, port(32 + packets));
        let mut second = world.client(Config { peer_share_percent: 100, ..Config::default() }, port(1_000));
        for _ in 0..4 {
            try_connect(&mut first, &mut second).unwrap();
        }
        for _ in 0..4 {
            let session = try_connect(&mut second, &mut first).unwrap();
            assert_eq!(second.session_credits(session).unwrap().all, 32);
            second.disconnect(session);
            settle(&mut first, &mut second);
            assert!(matches!(event(&mut second), SessionEvent::Disconnected(id) if id == session));
            try_connect(&mut second, &mut first).unwrap();
        }
        try_connect(&mut second, &mut first).expect_err("a fifth session of a peer that may have four");
    }
}

/// Even if half of everything is less than one session, the first one is granted.
#[test]
fn the_share_of_a_peer_is_at_least_one_session() {
    let world = World::new();
    let mut server = world.server(Config { sessions_max: 1, ..Config::default() }, LoopbackConfig::default());
    HandClient::connected(&world, &mut server, 1, OFFER);
    let mut second = HandClient::new(&world, 2);
    assert!(second.open(&mut server, OFFER).is_err());
}

#[test]
fn a_share_is_between_one_and_a_hundred_percent() {
    for (peer_share_percent, is_right) in [(0, false), (1, true), (100, true), (101, false), (255, false)] {
        let built = Nexus::builder().config(Config { peer_share_percent, ..Config::default() }).build();
        assert_eq!(built.is_ok(), is_right, "{peer_share_percent}");
        assert!(built.err().is_none_or(|error| error.to_string().contains("peer_share_percent")));
    }
}

/// Makes a short call in each slot of each session, and ignores the answers.
fn touch_all_slots(server: &mut Endpoint, sessions: &[HandClient]) {
    for session in sessions {
        for slot in 0..SLOTS {
            session.request(SLOTS + slot, 0, b"a short call");
        }
        session.turn(server);
    }
}

/// Sessions of one credit each, so that receive capacity does not limit their number.
const THIN: Offer = Offer { credits: 1, ..OFFER };

/// One peer makes a short call in each slot of hundreds of sessions: the server keeps an answer for each, and they
/// would fill its arena. They get no more than the peer's share, and others' calls are answered at once.
#[test]
fn short_answers_of_one_peer_leave_memory_for_the_calls_of_others() {
    assert_served_beside_short_answers(THIN, 300);
}

/// Asserts that a good client is served although one peer made a short call in each slot of `sessions` sessions.
fn assert_served_beside_short_answers(offer: Offer, sessions: usize) {
    let world = World::new();
    let mut server = world.server(Config { credits: 1, ..Config::default() }, memory(MB));
    let greedy = HandClient::open_many(&world, &mut server, 66, offer, sessions as u64);
    assert_eq!(greedy.len(), sessions);
    touch_all_slots(&mut server, &greedy);
    let (mut client, session) = good_client(&world, &mut server);
    for len in [100, 1_000, 20_000] {
        assert_served_in(&world, &mut client, &mut server, session, len, 100);
    }
}

/// Clients at many addresses, none of which has more than its share, made short calls in all slots of many sessions,
/// which filled the server's arena, and have been idle since. Another client's calls are answered: memory of idle slots
/// is freed. A client that asks again for one of the freed answers gets an error, and its request does not run again.
#[test]
fn short_answers_of_idle_sessions_give_their_memory_to_the_calls_of_others() {
    let world = World::new();
    let mut server = world.server(Config { credits: 1, ..Config::default() }, memory(MB));
    let idle: Vec<_> =
        (0..6).flat_map(|number| HandClient::open_many(&world, &mut server, 60 + number, THIN, 50)).collect();
    assert!(idle.len() == 300);
    touch_all_slots(&mut server, &idle);
    for _ in 0..30 {
        idle.iter().step_by(50).for_each(HandClient::ping);
        server.turn();
        world.clock.advance(100 * MS);
    }
    assert_eq!(server.sessions(), 300);
    let (mut client, session) = good_client(&world, &mut server);
    for _ in 0..10 {
        assert_served_in(&world, &mut client, &mut server, session, 100, 100);
    }
    let handled = server.stats().requests_handled;
    let mut gone = 0;
    for session in &idle {
        session.request(SLOTS, 0, b"a short call");
        for (header, _) in session.turn(&mut server) {
            assert!(matches!(header.kind, Response | CallError), "{header:?}");
            gone += usize::from(header.kind == CallError);
        }
    }
    assert!(gone > 0 && gone < idle.len(), "{gone} of {}: as much as is needed, and no more", idle.len());
    assert_eq!(server.stats().requests_handled, handled);
}

/// Begins a long request in each slot; returns how many were refused.
fn begin_long_requests(client: &HandClient, server: &mut Endpoint, message: &[u8]) -> usize {
    for slot in 0..SLOTS {
        client.request(SLOTS + slot, 0, message);
    }
    client.turn(server).iter().filter(|(header, _)| header.kind == CallError).count()
}

/// One peer begins long requests in all slots of some sessions at the same moment, which would fill the arena. It gets
/// its share, and the rest are refused; another client's long call is answered at once.
#[test]
fn long_requests_of_one_peer_leave_memory_for_the_calls_of_others() {
    let world = World::new();
    let mut server = world.server(Config { message_len_max: LONG_LEN as u32, ..Config::default() }, memory(4 * MB));
    let (mut client, session) = good_client(&world, &mut server);
    let message = pattern(LONG_LEN, 1);
    let greedy = HandClient::open_many(&world, &mut server, 66, OFFER, 4);
    let refused: usize = greedy.iter().map(|one| begin_long_requests(one, &mut server, &message)).sum();
    assert_served_in(&world, &mut client, &mut server, session, LONG_LEN, 100);
    assert!((16..32).contains(&refused), "{refused} requests of 32 were refused");
}

/// A server without memory for a request says so at once, and the client learns that the request did not run. The
/// client is not left to retransmit it again and again.
#[test]
fn a_request_that_finds_no_memory_fails_at_once_and_did_not_run() {
    let world = World::new();
    let of_server = (Config { message_len_max: LONG_LEN as u32, ..Config::default() }, memory(2 * MB));
    let (mut client, mut server, session) = world.pair_of((Config::default(), LoopbackConfig::default()), of_server);
    // Workers keep the requests until they run.
    for tag in 0..SLOTS {
        send(&mut client, session, WORKER, &pattern(LONG_LEN, 1), tag);
    }
    pass_time(&world, &mut client, &mut server, 300 * MS);
    let failed = completions(&mut client);
    assert!((3..8).contains(&failed.len()), "{} of 8 calls failed", failed.len());
    for over in &failed {
        let error = over.result.clone().unwrap_err();
        assert_eq!((error.cause, error.execution), (Cause::ServerBusy, Execution::NotRun), "{error}");
    }
    let running = SLOTS as usize - failed.len();
    assert_eq!((server.stats().requests_handled as usize, world.pool.len()), (running, running));
    // The next call finds the memory that the others gave back.
    run(&world, &mut client, &mut server, running);
    assert_served_in(&world, &mut client, &mut server, session, 20_000, 100);
}

/// Clients at two addresses begin long requests in all their slots, and then send a packet of each every 400 ms, so
/// that none ever stops arriving. That is too slow: another client's long call gets their memory, and they learn that
/// their requests did not run.
#[test]
fn requests_that_drip_in_lose_their_memory_to_others() {
    let world = World::new();
    let mut server = world.server(Config { message_len_max: LONG_LEN as u32, ..Config::default() }, memory(4 * MB));
    let (mut client, session) = good_client(&world, &mut server);
    let message = pattern(LONG_LEN, 1);
    let slow = [66, 67].map(|number| HandClient::connected(&world, &mut server, number, SMALL));
    for one in &slow {
        begin_long_requests(one, &mut server, &message);
    }
    let mut rejected = 0;
    let mut drip = |server: &mut Endpoint, number| {
        for one in &slow {
            for slot in 0..SLOTS {
                one.request(SLOTS + slot, number, &message);
            }
            rejected += one.turn(server).iter().filter(|(header, _)| header.kind == CallError).count();
        }
    };
    for number in 1..4 {
        pass_time(&world, &mut client, &mut server, 400 * MS);
        drip(&mut server, number);
    }
    send(&mut client, session, ECHO, &message, 1);
    for number in 4..9 {
        pass_time(&world, &mut client, &mut server, 400 * MS);
        drip(&mut server, number);
    }
    let over = completions(&mut client);
    assert!(over.len() == 1 && over[0].result.is_ok(), "{over:?}");
    assert!(rejected > 0 && server.stats().requests_given_up > 0);
}

/// No attack: a request that comes at twice the lowest rate keeps its memory while others find none.
#[test]
fn a_request_that_comes_fast_enough_keeps_its_memory() {
    let world = World::new();
    let mut server = world.server(Config { message_len_max: LONG_LEN as u32, ..Config::default() }, memory(MB));
    let (mut client, session) = good_client(&world, &mut server);
    let message = pattern(LONG_LEN, 1);
    let steady = HandClient::connected(&world, &mut server, 66, OFFER);
    let packets = LONG_LEN.div_ceil(1448) as u16;
    let began_ns = world.clock.now_ns();
    let mut last = Vec::new();
    for number in 0..packets {
        steady.request(SLOTS, number, &message);
        if number % 20 == 10 {
            // Takes the memory that is left, and asks for more.
            send(&mut client, session, DEFER, &message, u64::from(number));
        }
        last = steady.turn(&mut server);
        client.turn();
        assert!(last.iter().all(|(header, _)| header.kind != CallError), "packet {number}");
        world.clock.advance(1448 * 500);
    }
    assert!(world.clock.now_ns() - began_ns > 130 * MS);
    assert!(matches!(last.last().unwrap().0.kind, Response | CallError), "the request was taken whole");
    assert!(server.stats().requests_handled > 0);
    drop(take_kept());
}

/// A peer takes its share in pieces of one size, gives them back, and takes it again in somewhat larger ones, until all
/// of the arena has been cut into small pieces once. Then the peer leaves. A long call is answered: adjacent small
/// pieces become large again.
#[test]
fn memory_that_was_cut_into_small_pieces_serves_long_calls_again() {
    let world = World::new();
    let mut server = world.server(Config { credits: 1, ..Config::default() }, memory(4 * MB));
    let (mut client, session) = good_client(&world, &mut server);
    for data_per_packet in [100, 150, 220, 300, 430] {
        // An answer of the greatest length that a slot keeps makes the slot's buffer as long as that.
        let greedy = HandClient::open_many(&world, &mut server, 66, Offer { data_per_packet, ..THIN }, 1_500);
        touch_all_slots(&mut server, &greedy);
        for one in greedy {
            one.send_management(&sinew_wire::management::session_end(
                sinew_wire::Kind::Disconnect,
                one.server_key,
                one.key,
            ));
            one.turn(&mut server);
        }
        assert_eq!(server.sessions(), 1);
    }
    // One packet per turn, and two turns for each.
    assert_served_in(&world, &mut client, &mut server, session, LONG_LEN, 2_000);
}

/// A peer asks for the smallest packets that there can be, so that a slot's answer is far smaller than its block of the
/// arena. The peer is charged for the block.
#[test]
fn the_smallest_answers_of_one_peer_leave_memory_for_the_calls_of_others() {
    assert_served_beside_short_answers(Offer { data_per_packet: 64, ..THIN }, 1_200);
}

/// Headers between the packets of a message, and rounding, make it half as large again as its data.
#[test]
fn a_long_request_in_the_smallest_packets_is_charged_for_its_headers() {
    let world = World::new();
    let mut server = world.server(Config { peer_share_percent: 60, ..Config::default() }, memory(4 * MB));
    let greedy = HandClient::connected(&world, &mut server, 66, Offer { data_per_packet: 64, ..OFFER });
    greedy.request(SLOTS, 0, &pattern(2_400_000, 1));
    assert_eq!(outline(&greedy.turn(&mut server)), [(CallError, 0)]);
    let (mut client, session) = good_client(&world, &mut server);
    assert_served_in(&world, &mut client, &mut server, session, 100_000, 100);
}

/// One client gets long answers in several sessions, fetches them all, and then uses another session. Idle sessions
/// count towards its share, but do not keep it from calling for ever.
#[test]
fn answers_that_a_peer_fetched_long_ago_do_not_use_up_its_share() {
    let world = World::new();
    let mut server = world.server(Config::default(), memory(8 * MB));
    let (mut client, first) = good_client(&world, &mut server);
    let others: Vec<_> = (0..8).map(|_| connect(&world, &mut client, &mut server)).collect();
    for session in others.into_iter().chain([first]) {
        assert_served_in(&world, &mut client, &mut server, session, 700_000, 2_000);
        pass_time(&world, &mut client, &mut server, 1_500 * MS);
    }
}

/// A client gives up one long call after another before their requests are complete, each in the same slot. The memory
/// of the last one makes room for the next.
#[test]
fn a_request_that_its_client_gave_up_makes_room_for_the_next_in_its_slot() {
    let world = World::new();
    let mut server = world.server(Config::default(), memory(8 * MB));
    let client = HandClient::connected(&world, &mut server, 1, OFFER);
    let message = pattern(5 * MB / 2, 1);
    for round in 1..4 {
        client.request(SLOTS * round, 0, &message);
        assert_eq!(outline(&client.turn(&mut server)), [(CreditReturn, 0)], "round {round}");
    }
}

/// A client gives up long calls whose requests the server has completely, and makes short ones in their slots. Once the
/// handlers have dropped the long requests, the peer has its share again.
#[test]
fn requests_that_were_overtaken_by_short_ones_count_no_longer() {
    let world = World::new();
    let mut server = world.server(Config::default(), memory(8 * MB));
    let mut client = HandClient::connected(&world, &mut server, 1, OFFER);
    let message = pattern(MB / 2, 1);
    for slot in 0..5 {
        client.request(SLOTS + slot, 0, b"short");
        client.turn(&mut server);
        client.request_type = WORKER;
        for number in 0..message.len().div_ceil(1448) as u16 {
            client.request(2 * SLOTS + slot, number, &message);
            client.turn(&mut server);
        }
        client.request_type = ECHO;
        client.request(3 * SLOTS + slot, 0, b"short");
        assert_eq!(outline(&client.turn(&mut server)), [(Response, 0)]);
    }
    assert_eq!(world.pool.run_all(), 5);
    server.turn();
    let mut other = client.sibling(&world, 1);
    other.open(&mut server, OFFER).unwrap();
    other.request(SLOTS, 0, &message);
    assert_eq!(outline(&other.turn(&mut server)), [(CreditReturn, 0)]);
}

/// Workers answer long requests with a few bytes, which they write into the request's own buffer. The slot does not
/// keep that large buffer for the small answer: one long call after another is answered.
#[test]
fn short_answers_to_long_requests_do_not_keep_the_memory_of_the_requests() {
    let world = World::new();
    let pool = std::sync::Arc::clone(&world.pool);
    let nexus = Nexus::builder().workers(pool).handle_worker(WORKER, |call| call.reply(b"stored")).build().unwrap();
    let mut server = world.endpoint_with("server", &nexus, 1, memory(16 * MB));
    let (mut client, session) = good_client(&world, &mut server);
    for tag in 0..4 {
        send(&mut client, session, WORKER, &pattern(5 * MB, 1), tag);
        let over = run(&world, &mut client, &mut server, 1).remove(0);
        assert_eq!((over.result, &over.response[..]), (Ok(()), &b"stored"[..]), "call {tag}");
    }
}

/// Length of a long message for which the arena gives 64 KB: in an arena of 1 MB, a peer's share is eight of them.
const DEFERRED_LEN: usize = 60_000;

/// Sends a whole request, and returns the answers to its last packet.
fn request_whole(client: &HandClient, server: &mut Endpoint, number: u64, message: &[u8]) -> Vec<Packet> {
    let mut answers = Vec::new();
    for packet in 0..message.len().div_ceil(1448).max(1) as u16 {
        client.request(number, packet, message);
        answers = client.turn(server);
    }
    answers
}

/// The code of the error that ends the answers, if one does.
fn error_code(answers: &[Packet]) -> Option<u32> {
    answers.last().filter(|(header, _)| header.kind == CallError).map(|(header, _)| header.message_len)
}

/// Code of `Busy` on the wire: the request did not run.
const BUSY: u32 = 4;

/// One peer makes a long call, which the handler keeps or a worker has, and at once uses the slot for the next one,
/// again and again. Requests that handlers hold count for the peer until they drop them, whatever is in its slots:
/// others' long calls are answered.
#[test]
fn requests_that_handlers_keep_count_for_their_peer_though_it_used_their_slots_again() {
    for request_type in [DEFER, WORKER] {
        let world = World::new();
        let mut server = world.server(Config::default(), memory(MB));
        let (mut client, session) = good_client(&world, &mut server);
        let mut greedy = HandClient::connected(&world, &mut server, 66, OFFER);
        greedy.request_type = request_type;
        let message = pattern(DEFERRED_LEN, 1);
        let mut busy = 0;
        for round in 1..30 {
            let code = error_code(&request_whole(&greedy, &mut server, SLOTS * round, &message));
            assert!(code.is_none_or(|code| code == BUSY), "{code:?}");
            busy += u32::from(code.is_some());
        }
        assert!((20..29).contains(&busy), "{busy} of 29 requests were refused");
        assert_served_in(&world, &mut client, &mut server, session, DEFERRED_LEN, 100);
        // Once the handlers have dropped them, the peer has its share again.
        assert_eq!(take_kept().len() + world.pool.run_all(), 29 - busy as usize);
        server.turn();
        greedy.request_type = ECHO;
        for slot in 0..3 {
            let answers = request_whole(&greedy, &mut server, SLOTS * 40 + slot, &message);
            assert_eq!(answers.last().unwrap().0.kind, Response);
        }
    }
}

/// One peer makes a long call, which the handler keeps or a worker has, ends the session, and comes back with another,
/// again and again. It is still the same peer.
#[test]
fn requests_that_handlers_keep_count_for_their_peer_though_it_went_and_came_back() {
    for request_type in [DEFER, WORKER] {
        let world = World::new();
        let mut server = world.server(Config::default(), memory(MB));
        let (mut client, session) = good_client(&world, &mut server);
        let first = HandClient::new(&world, 66);
        let message = pattern(DEFERRED_LEN, 1);
        let visit = |server: &mut Endpoint, index, request_type| {
            let mut visitor = HandClient { request_type, ..first.sibling(&world, index) };
            visitor.open(server, OFFER).unwrap();
            let answers = request_whole(&visitor, server, SLOTS, &message);
            let end =
                sinew_wire::management::session_end(sinew_wire::Kind::Disconnect, visitor.server_key, visitor.key);
            visitor.send_management(&end);
            visitor.turn(server);
            assert_eq!(server.sessions(), 1);
            answers
        };
        let busy = (0..30).filter(|&index| error_code(&visit(&mut server, index, request_type)) == Some(BUSY)).count();
        assert!((20..30).contains(&busy), "{busy} of 30 requests were refused");
        assert_served_in(&world, &mut client, &mut server, session, DEFERRED_LEN, 100);
        assert_eq!(take_kept().len() + world.pool.run_all(), 30 - busy);
        server.turn();
        assert_eq!(visit(&mut server, 99, ECHO).last().unwrap().0.kind, Response);
    }
}

/// One peer makes short calls that handlers keep, or that workers have, one after another in its slots. The handlers'
/// copies of these requests count for it too. A request that could not be given to a worker did not run.
#[test]
fn short_requests_that_handlers_keep_leave_memory_for_the_calls_of_others() {
    for request_type in [DEFER, WORKER] {
        let world = World::new();
        let mut server = world.server(Config::default(), memory(MB));
        let (mut client, session) = good_client(&world, &mut server);
        let mut greedy = HandClient::connected(&world, &mut server, 66, OFFER);
        greedy.request_type = request_type;
        let mut refused = 0;
        for number in SLOTS..SLOTS + 1_000 {
            let code = error_code(&request_whole(&greedy, &mut server, number, &[1; 1_000]));
            assert!(request_type == DEFER || code.is_none_or(|code| code == BUSY), "{code:?}");
            refused += usize::from(code.is_some());
        }
        assert!((500..800).contains(&refused), "{refused} of 1,000 requests were refused");
        assert_served_in(&world, &mut client, &mut server, session, DEFERRED_LEN, 100);
        assert_eq!(take_kept().len() + world.pool.run_all(), 1_000 - refused);
        server.turn();
        greedy.request_type = ECHO;
        assert_eq!(outline(&request_whole(&greedy, &mut server, SLOTS * 200, b"short")), [(Response, 0)]);
    }
}

/// One peer asks workers for long answers, by requests of a few bytes, in all slots of some sessions. It gets its
/// share.
#[test]
fn long_answers_of_workers_to_one_peer_leave_memory_for_the_calls_of_others() {
    let world = World::new();
    let pool = std::sync::Arc::clone(&world.pool);
    let answer = |call: sinew_rpc::DeferredCall| call.reply(&pattern(DEFERRED_LEN, 1));
    let builder = Nexus::builder().workers(pool).handle_worker(WORKER, answer);
    let echo = |call: sinew_rpc::Call<'_>| {
        let request = call.request();
        call.reply(request);
    };
    let nexus = builder.handle(ECHO, echo).build().unwrap();
    let mut server = world.endpoint_with("server", &nexus, 1, memory(MB));
    let (mut client, session) = good_client(&world, &mut server);
    let mut greedy = HandClient::open_many(&world, &mut server, 66, OFFER, 2);
    for one in &mut greedy {
        one.request_type = WORKER;
        for slot in 0..SLOTS {
            one.request(SLOTS + slot, 0, b"a long answer, please");
        }
        assert_eq!(one.turn(&mut server), []);
    }
    assert_eq!(world.pool.run_all(), 16);
    let answers = greedy[0].turn(&mut server);
    let refused = answers.iter().filter(|(header, _)| header.kind == CallError).count();
    assert_eq!(answers.len(), 16);
    assert!((8..12).contains(&refused), "{refused} of 16 answers were refused");
    assert_served_in(&world, &mut client, &mut server, session, DEFERRED_LEN, 100);
}

/// A request that is larger than a peer's whole share could wait for ever: its client learns that it is too large.
#[test]
fn a_request_over_the_share_of_a_peer_is_told_to_be_too_large() {
    let world = World::new();
    let of_server = (Config::default(), memory(4 * MB));
    let (mut client, mut server, session) = world.pair_of((Config::default(), memory(16 * MB)), of_server);
    // Blocks are of 1.5 and of 2 MB, and the share is 2 MB. A packet has 1448 bytes, and each but the first has a
    // header elsewhere.
    let largest = (1..2 * MB).rev().step_by(8).find(|&len| sinew_mem::Arena::block_len(len, 1448) <= 2 * MB).unwrap();
    for (len, is_right) in [(largest, true), (largest + 64, false)] {
        send(&mut client, session, LONG, &[&64u32.to_le_bytes()[..], &vec![0; len - 4]].concat(), 1);
        let over = run(&world, &mut client, &mut server, 1).remove(0);
        match over.result {
            Ok(()) => assert!(is_right, "{len} bytes"),
            Err(error) => {
                assert!(!is_right, "{len} bytes: {error}");
                assert_eq!((error.cause, error.execution), (Cause::RequestTooLarge, Execution::NotRun), "{error}");
                assert!(error.to_string().contains("share"), "{error}");
            }
        }
    }
}
