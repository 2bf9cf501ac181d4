//! Calls by name: cancelling them, limiting their time, and reporting them to the lane that made them.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::handmade::{HandClient, OFFER, hand_client, hand_server, turn_and_tap};
use common::*;
use sinew_fabric::PollPolicy;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{
    CallOptions, Cause, Config, ConnectError, ConnectOptions, EnqueueError, Execution, LaneId, PacketDrop, Recovery,
    RequestType, SessionEvent,
};
use sinew_wire::management::Offer;
use sinew_wire::{HEADER_LEN, Header, Kind, OPTIONS_LEN, Options};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn small_packets() -> LoopbackConfig {
    LoopbackConfig { packet_len_max: 124, ..LoopbackConfig::default() }
}

fn failure(completion: &sinew_rpc::Completion) -> (Cause, Execution) {
    let error = completion.result.as_ref().unwrap_err();
    (error.cause, error.execution)
}

fn within(tag: u64, timeout_ns: u64) -> CallOptions {
    CallOptions::tag(tag).timeout_ns(timeout_ns)
}

#[test]
fn a_call_is_cancelled_by_its_name_whatever_its_tag_and_wherever_it_is() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { slots: 2, ..Config::default() }, small_packets());
    let calls: Vec<_> = (0..5).map(|_| send(&mut client, session, DEFER, b"alike", 7)).collect();
    settle(&mut client, &mut server);
    // The second call runs, the fourth waits for a slot.
    for (call, execution) in [(calls[1], Execution::MayHaveRun), (calls[3], Execution::NeverSent)] {
        assert_eq!((client.cancel(call), client.cancel(call)), (true, false));
        let over = completions(&mut client);
        assert_eq!(over.len(), 1);
        assert_eq!((over[0].id(), failure(&over[0])), (call, (Cause::Cancelled, execution)));
    }
    settle(&mut client, &mut server);
    while client.stats().calls_completed < 3 {
        assert!(answer_kept() > 0);
        settle(&mut client, &mut server);
    }
    let over: Vec<_> = completions(&mut client).into_iter().map(|over| over.id()).collect();
    let mut left = vec![calls[0], calls[2], calls[4]];
    left.sort_unstable();
    let mut over = over;
    over.sort_unstable();
    assert_eq!(over, left);
    assert!(calls.into_iter().all(|call| !client.cancel(call)), "they are over");
}

#[test]
fn a_name_is_never_another_calls() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { slots: 1, ..Config::default() }, small_packets());
    let mut names = Vec::new();
    for round in 0..20 {
        let calls = [0, 1, 2].map(|tag| send(&mut client, session, DEFER, b"x", tag));
        settle(&mut client, &mut server);
        assert!(names.iter().all(|&name| !client.cancel(name)), "round {round}: a call went by an old name");
        names.extend(calls);
        for _ in 0..3 {
            answer_kept();
            settle(&mut client, &mut server);
        }
        assert_eq!(completions(&mut client).len(), 3);
    }
    client.disconnect(session);
    settle(&mut client, &mut server);
    events(&mut client);
    let again = connect(&world, &mut client, &mut server);
    send(&mut client, again, DEFER, b"x", 0);
    assert!(names.iter().all(|&name| !client.cancel(name)), "a call of a later session went by an old name");
    take_kept();
}

#[test]
fn a_call_that_cannot_be_sent_leaves_its_name_to_no_other() {
    let offer = Offer { data_per_packet: 64, ..OFFER };
    let (_world, mut client, server) = hand_server(Config { slots: 1, ..Config::default() }, offer);
    let session = server.session;
    // More packets than a message may have.
    let unsent = send(&mut client, session, ECHO, &vec![1; (64 << 16) + 1], 0);
    let over = completions(&mut client).remove(0);
    assert_eq!((over.id(), failure(&over)), (unsent, (Cause::RequestTooLarge, Execution::NeverSent)));
    let next = send(&mut client, session, ECHO, b"next", 1);
    assert_ne!(next, unsent);
    assert!(!client.cancel(unsent) && client.cancel(next));
}

#[test]
fn a_deferred_call_sees_that_its_client_no_longer_waits() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    let calls = [0, 1].map(|tag| send(&mut client, session, DEFER, b"work", tag));
    settle(&mut client, &mut server);
    let kept = take_kept();
    assert!(kept.iter().all(|call| !call.is_abandoned()));
    client.cancel(calls[0]);
    settle(&mut client, &mut server);
    assert_eq!(kept.iter().map(|call| call.is_abandoned()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(server.stats().calls_cancelled, 1);
    // Both answers are allowed; that to the cancelled call is discarded.
    kept.into_iter().for_each(sinew_rpc::DeferredCall::reply_in_place);
    settle(&mut client, &mut server);
    let over = completions(&mut client);
    assert_eq!(over.iter().map(|over| over.result.is_ok()).collect::<Vec<_>>(), [false, true]);
    assert_eq!(server.stats().answers_discarded, 1);
}

#[test]
fn deferred_calls_of_a_session_that_ends_or_goes_on_to_others_are_abandoned() {
    let world = World::new();
    let config = Config { slots: 1, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, small_packets());
    let call = send(&mut client, session, DEFER, b"first", 0);
    settle(&mut client, &mut server);
    // The cancellation is lost, and the slot goes to another call.
    world.losing(|| {
        client.cancel(call);
        client.turn();
    });
    send(&mut client, session, DEFER, b"second", 1);
    settle(&mut client, &mut server);
    let kept = take_kept();
    assert_eq!(kept.iter().map(|call| call.is_abandoned()).collect::<Vec<_>>(), [true, false]);
    client.disconnect(session);
    settle(&mut client, &mut server);
    assert!(kept.iter().all(|call| call.is_abandoned()));
}

/// A client that does not wait for answers may give a slot to another request, or cancel the request that has it, in
/// the same burst as the first request.
#[test]
fn a_call_whose_slot_is_anothers_when_its_handler_runs_is_not_kept() {
    let world = World::new();
    let port = LoopbackConfig { arena_bytes: 1 << 20, ..LoopbackConfig::default() };
    let mut server = world.server(Config::default(), port);
    const KEEP: RequestType = RequestType::new(60);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let in_handler = Rc::clone(&kept);
    server
        .handle_burst(KEEP, move |calls| {
            in_handler.borrow_mut().extend((0..calls.len()).filter_map(|at| calls.defer(at).ok()));
        })
        .unwrap();
    let mut client = HandClient::connected(&world, &mut server, 1, OFFER);
    let mut number = 0;
    let mut ask = |client: &mut HandClient, request_type: RequestType, message: &[u8]| {
        number += 8;
        client.request_type = request_type;
        client.request(number, 0, message);
        number
    };
    let long = pattern(100_000, 1);
    for _ in 0..50 {
        // By the time the handler runs, the slot receives a long request.
        ask(&mut client, KEEP, b"first");
        ask(&mut client, ECHO, &long);
        client.turn(&mut server);
        // The slot's next call has been answered.
        ask(&mut client, KEEP, b"first");
        ask(&mut client, ECHO, b"second");
        client.turn(&mut server);
        // The call has been cancelled.
        let cancelled = ask(&mut client, KEEP, b"first");
        client.send(Header { kind: Kind::Cancel, ..client.header(cancelled, 0, 0) }, &[]);
        client.turn(&mut server);
    }
    assert_eq!((kept.borrow().len(), server.stats().answers_discarded), (0, 150));
    // A call that still has its slot is kept, and so is its memory.
    ask(&mut client, KEEP, b"kept");
    client.turn(&mut server);
    assert!(!kept.borrow()[0].is_abandoned());
    let large = ask(&mut client, ECHO, &pattern(100_000, 1));
    assert!(client.turn(&mut server).iter().all(|(header, _)| header.kind == Kind::CreditReturn));
    assert!(kept.borrow()[0].is_abandoned());
    for packet in 1..70 {
        client.request(large, packet, &pattern(100_000, 1));
    }
    client.turn(&mut server);
    assert_eq!(server.stats().requests_handled, 150 + 50 + 2);
}

#[test]
fn a_worker_does_not_begin_what_nobody_waits_for() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    let calls = [0, 1].map(|tag| send(&mut client, session, WORKER, b"work", tag));
    settle(&mut client, &mut server);
    client.cancel(calls[0]);
    settle(&mut client, &mut server);
    world.pool.run_all();
    settle(&mut client, &mut server);
    let over = completions(&mut client);
    assert_eq!(over.iter().map(|over| over.result.is_ok()).collect::<Vec<_>>(), [false, true]);
    assert_eq!(server.stats().answers_discarded, 1);
}

#[test]
fn a_cancellation_that_overtakes_its_request_is_ignored() {
    let (_world, mut server, client) = hand_client(Config::default());
    let cancel = Header { kind: Kind::Cancel, ..client.header(8, 0, 0) };
    client.send(cancel, &[]);
    client.turn(&mut server);
    assert_eq!(server.stats().dropped(PacketDrop::Stale), 1);
    client.request(8, 0, b"late");
    let answers = client.turn(&mut server);
    assert_eq!((answers[0].0.kind, &answers[0].1[..]), (Kind::Response, &b"late"[..]));
    // A cancellation of a call that was answered changes nothing.
    client.send(cancel, &[]);
    client.turn(&mut server);
    client.send(Header { is_copy: true, ..client.header(8, 0, 4) }, b"late");
    assert_eq!(client.turn(&mut server)[0].0.kind, Kind::Response);
    assert_eq!((server.stats().requests_handled, server.stats().calls_cancelled), (1, 0));
}

#[test]
fn a_cancelled_request_that_is_on_its_way_in_gives_its_memory_back() {
    let (_world, mut server, client) = hand_client(Config::default());
    client.request(8, 0, &pattern(250, 1));
    client.turn(&mut server);
    client.send(Header { kind: Kind::Cancel, ..client.header(8, 0, 0) }, &[]);
    client.turn(&mut server);
    assert_eq!(server.stats().calls_cancelled, 1);
    // Further packets of the request are answered with an error, as the call is over.
    client.request(8, 1, &pattern(250, 1));
    assert_eq!(client.turn(&mut server)[0].0.kind, Kind::CallError);
    client.request(16, 0, b"next");
    assert_eq!(client.turn(&mut server)[0].0.kind, Kind::Response);
}

#[test]
fn a_deadline_ends_a_call_at_both_sides() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    let call = send(&mut client, session, DEFER, b"work", within(1, 300 * US));
    settle(&mut client, &mut server);
    let kept = take_kept();
    assert_eq!(kept[0].deadline_ns(), Some(server.now_ns() + 300 * US));
    world.clock.advance(299 * US);
    settle(&mut client, &mut server);
    assert!(completions(&mut client).is_empty() && !kept[0].is_abandoned());
    world.clock.advance(2 * US);
    server.turn();
    assert!(kept[0].is_abandoned());
    client.turn();
    let over = completions(&mut client).remove(0);
    assert_eq!((over.id(), failure(&over)), (call, (Cause::DeadlinePassed, Execution::MayHaveRun)));
    drop(kept);
    settle(&mut client, &mut server);
    assert_eq!(server.stats().answers_discarded, 1);
    // The slot can be used again.
    send(&mut client, session, ECHO, b"next", 2);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

#[test]
fn a_call_that_waits_for_a_slot_ends_in_time_and_was_never_sent() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { slots: 1, ..Config::default() }, small_packets());
    send(&mut client, session, DEFER, b"first", 0);
    send(&mut client, session, ECHO, b"second", within(1, 50 * US));
    send(&mut client, session, ECHO, b"third", 2);
    settle(&mut client, &mut server);
    world.clock.advance(51 * US);
    client.turn();
    let over = completions(&mut client).remove(0);
    assert_eq!((over.tag, failure(&over)), (1, (Cause::DeadlinePassed, Execution::NeverSent)));
    answer_kept();
    let tags: Vec<_> = run(&world, &mut client, &mut server, 2).iter().map(|over| over.tag).collect();
    assert_eq!(tags, [0, 2]);
}

#[test]
fn a_deadline_that_has_passed_ends_the_call_and_nothing_runs() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    for options in [within(0, 0), CallOptions::tag(0).deadline_ns(0), CallOptions::tag(0).deadline_ns(client.now_ns())]
    {
        for len in [4, 1000] {
            send(&mut client, session, ECHO, &pattern(len, 1), options);
            settle(&mut client, &mut server);
            let over = completions(&mut client).remove(0);
            assert_eq!(failure(&over).0, Cause::DeadlinePassed);
        }
    }
    assert_eq!(server.stats().requests_handled, 0);
    send(&mut client, session, ECHO, b"next", 2);
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
}

#[test]
fn the_earlier_of_time_out_and_deadline_holds_and_an_endless_one_is_none() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    let now_ns = client.now_ns();
    let both = |timeout_ns: u64, deadline_ns: u64| within(0, timeout_ns).deadline_ns(now_ns + deadline_ns);
    for (options, expected) in [
        (both(10 * MS, 20 * MS), Some(now_ns + 10 * MS)),
        (both(20 * MS, 10 * MS), Some(now_ns + 10 * MS)),
        (within(0, u64::MAX), None),
    ] {
        send(&mut client, session, DEFER, b"x", options);
        settle(&mut client, &mut server);
        assert_eq!(take_kept()[0].deadline_ns(), expected);
    }
}

#[test]
fn the_remaining_time_is_written_anew_when_a_request_is_sent_again() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    let peer = world.network.peer("server").unwrap();
    for len in [4usize, 1000] {
        send(&mut client, session, ECHO, &pattern(len, 1), within(0, 100 * MS));
        let remaining = |client: &mut Endpoint| {
            let sent = world.losing(|| turn_and_tap(&world.network, client, peer));
            let first = sent.into_iter().find(|(header, _)| header.packet_number == 0).expect("the first packet");
            assert_eq!(first.0.kind, Kind::RequestWithOptions);
            (first.0.is_copy, Options::read(*first.1.first_chunk().unwrap()).remaining_ns)
        };
        assert_eq!(remaining(&mut client), (false, Some(100 * MS)));
        world.clock.advance(10 * MS);
        assert_eq!(remaining(&mut client), (true, Some(90 * MS)));
        assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    }
}

#[test]
fn plain_calls_have_no_options() {
    let world = World::new();
    let (mut client, _server, session) = world.pair(Config::default(), LoopbackConfig::default());
    let peer = world.network.peer("server").unwrap();
    send(&mut client, session, ECHO, &[1; 32], 0);
    world.network.start_tap();
    world.network.take_tapped();
    client.turn();
    let sent = world.network.take_tapped();
    let sent = sent.iter().find(|packet| packet.to == peer).unwrap();
    assert_eq!(sent.bytes.len(), HEADER_LEN + 32);
}

#[test]
fn requests_with_options_of_every_length_around_packets_arrive_whole() {
    for recovery in [Recovery::GoBackN, Recovery::Selective { packet_threshold: 3 }] {
        for (holds_shares, lends_tails) in [(false, false), (true, false), (true, true)] {
            let world = World::new();
            let port = LoopbackConfig { holds_shares, lends_tails, copy_len_max: 80, ..small_packets() };
            let config = Config { recovery, ..Config::default() };
            let (mut client, mut server, session) = world.pair(config, port);
            let step = if cfg!(miri) { 37 } else { 1 };
            for len in (0..330).step_by(step) {
                send(&mut client, session, ECHO, &pattern(len, 3), within(0, 100 * MS));
                let over = run(&world, &mut client, &mut server, 1).remove(0);
                assert!(over.result.is_ok() && over.response[..] == pattern(len, 3)[..], "{len} bytes");
            }
        }
    }
}

#[test]
fn the_largest_message_may_have_options_and_one_byte_more_may_not() {
    let world = World::new();
    let config = Config { message_len_max: 1000, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, small_packets());
    send(&mut client, session, ECHO, &pattern(1000, 1), within(0, MS));
    assert!(run(&world, &mut client, &mut server, 1)[0].result.is_ok());
    let (request, response) = (client.alloc(1001).unwrap(), client.alloc(1).unwrap());
    let rejected = client.enqueue_request(session, ECHO, request, response, within(0, MS)).unwrap_err();
    assert_eq!(rejected.error, EnqueueError::TooLarge { len: 1001, limit: 1000 });
}

#[test]
fn options_that_are_cut_short_are_refused() {
    let (_world, mut server, client) = hand_client(Config::default());
    for (number, len) in (0..OPTIONS_LEN).enumerate() {
        let header = client.header(8 * (number as u64 + 1), 0, len);
        client.send(Header { kind: Kind::RequestWithOptions, ..header }, &vec![0xFF; len]);
        client.turn(&mut server);
    }
    assert_eq!(server.stats().dropped(PacketDrop::WrongLength), OPTIONS_LEN as u64);
    assert_eq!(server.stats().requests_handled, 0);
    client.request(800, 0, b"next");
    assert_eq!(client.turn(&mut server)[0].0.kind, Kind::Response);
}

/// For ports that lend memory which its sender may still write, and whose sender also chooses how much of a packet is
/// in the tail. (Packets that other fabrics carry have no such tails.)
#[cfg(not(carried))]
#[test]
fn options_that_lie_in_a_packets_tail_are_refused() {
    use common::handmade::SMALL;
    use sinew_fabric::{PacketPort, PacketTx, TxData, TxPacket};

    let world = World::new();
    let port = LoopbackConfig { holds_shares: true, lends_tails: true, ..LoopbackConfig::default() };
    let mut server = world.server(Config::default(), port);
    let mut sender = world.network.port_with("sender", port).unwrap();
    let mut client = HandClient { peer: sender.peer(), ..HandClient::new(&world, 1) };
    client.open(&mut server, SMALL).unwrap();
    let mut message = sender.arena().alloc(100, 100).unwrap();
    message.fill(&[0xFF; 100]).unwrap();
    let message = message.freeze();
    for (number, in_head) in (0..OPTIONS_LEN).enumerate() {
        for (slot, message_len) in [(0, 90), (1, 190)] {
            let header = client.header(8 * (number as u64 + 1) + slot, 0, message_len);
            let mut head = Header { kind: Kind::RequestWithOptions, ..header }.to_bytes().to_vec();
            head.resize(HEADER_LEN + in_head, 0xFF);
            let data = TxData::Frozen { buffer: &message, start: 0, len: message_len.min(100) - in_head };
            let (_, tx) = sender.split();
            tx.push(TxPacket { to: world.network.peer("server").unwrap(), head: &head, data });
            tx.submit();
            server.turn();
        }
    }
    assert_eq!(server.stats().dropped(PacketDrop::Malformed), 2 * OPTIONS_LEN as u64);
    assert_eq!(server.stats().requests_handled, 0);
    client.request(800, 0, b"next");
    assert_eq!(client.turn(&mut server)[0].0.kind, Kind::Response);
}

/// A server chooses how much of an answer is in the tail, and what its header says of the length.
#[cfg(not(carried))]
#[test]
fn answers_whose_tails_are_not_what_their_headers_say_complete_no_call() {
    use sinew_fabric::{PacketPort, PacketTx, TxData, TxPacket};

    let (world, mut client, mut server) = hand_server(Config::default(), OFFER);
    let mut answer = server.port.arena().alloc(300, 300).unwrap();
    answer.fill(&pattern(300, 5)).unwrap();
    let answer = answer.freeze();
    let to = world.network.peer("client").unwrap();
    for call in 0..3 {
        send(&mut client, server.session, ECHO, b"a call", call);
        let sent = server.turn(&mut client);
        let number = sent.iter().find(|(header, _)| header.kind == Kind::Request).unwrap().0.request_number;
        let mut push = |client: &mut Endpoint, claimed_len: usize, in_head: usize, in_tail: usize, revoked: bool| {
            let mut head = server.header(Kind::Response, number, 0, claimed_len).to_bytes().to_vec();
            head.extend_from_slice(&answer[..in_head]);
            let (_, tx) = server.port.split();
            tx.push(TxPacket {
                to,
                head: &head,
                data: TxData::Frozen { buffer: &answer, start: in_head, len: in_tail },
            });
            tx.submit();
            if revoked {
                tx.flush();
            }
            client.turn();
            completions(client)
        };
        for (claimed_len, in_head, in_tail) in
            [(100, 0, 99), (100, 0, 101), (100, 10, 89), (100, 10, 91), (0, 0, 1), (u32::MAX as usize, 0, 100)]
        {
            let over = push(&mut client, claimed_len, in_head, in_tail, false);
            assert!(over.is_empty(), "{claimed_len} bytes, but {in_head} and {in_tail}");
        }
        assert!(push(&mut client, 100, 0, 100, true).is_empty(), "it was taken back");
        let over = push(&mut client, 100, 33, 67, false);
        assert_eq!((over.len(), &over[0].response[..]), (1, &answer[..100]));
    }
    assert_eq!(client.stats().calls_completed, 3);
}

#[test]
fn each_lane_hears_of_its_own_calls_and_sessions() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    let lanes = [client.open_lane(), client.open_lane()];
    let options = ConnectOptions::new().lane(lanes[1]);
    let of_lane = client.begin_connect_with(&server.address(), options).unwrap();
    settle(&mut client, &mut server);
    assert!(events(&mut client).is_empty());
    assert_eq!(client.poll_ready_lane(), Some(lanes[1]));
    assert!(matches!(client.poll_lane_event(lanes[1]), Some(SessionEvent::Connected(id)) if id == of_lane));
    assert_eq!(client.poll_ready_lane(), None);
    for (tag, lane) in [(0, LaneId::MAIN), (1, lanes[0]), (2, lanes[1]), (3, lanes[0])] {
        send(&mut client, session, ECHO, b"x", CallOptions::tag(tag).lane(lane));
    }
    settle(&mut client, &mut server);
    let mut ready: Vec<_> = std::iter::from_fn(|| client.poll_ready_lane()).collect();
    ready.sort_unstable();
    assert_eq!(ready, lanes, "each once");
    let tags = |client: &mut Endpoint, lane| {
        std::iter::from_fn(|| client.poll_lane(lane)).map(|over| over.tag).collect::<Vec<_>>()
    };
    assert_eq!(completions(&mut client).iter().map(|over| over.tag).collect::<Vec<_>>(), [0]);
    assert_eq!((tags(&mut client, lanes[0]), tags(&mut client, lanes[1])), (vec![1, 3], vec![2]));
}

#[test]
fn closing_a_lane_cancels_its_calls_and_ends_its_sessions_and_nobody_elses() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config { slots: 2, ..Config::default() }, small_packets());
    let lane = client.open_lane();
    let own = client.begin_connect_with(&server.address(), ConnectOptions::new().lane(lane)).unwrap();
    settle(&mut client, &mut server);
    for tag in 0..6 {
        let lane = if tag % 2 == 0 { lane } else { LaneId::MAIN };
        send(&mut client, session, DEFER, &pattern(300, 1), CallOptions::tag(tag).lane(lane));
    }
    send(&mut client, own, DEFER, b"x", CallOptions::tag(9).lane(lane));
    settle(&mut client, &mut server);
    assert!(client.close_lane(lane) && !client.close_lane(lane));
    settle(&mut client, &mut server);
    assert_eq!(server.stats().calls_cancelled, 1, "the one that was on its way; a session took its own along");
    assert!(!client.disconnect(own));
    while client.stats().calls_completed < 3 {
        assert!(answer_kept() > 0);
        settle(&mut client, &mut server);
    }
    assert_eq!(completions(&mut client).iter().map(|over| over.tag).collect::<Vec<_>>(), [1, 3, 5]);
    assert!(events(&mut client).is_empty() && client.poll_ready_lane().is_none());
    // A closed lane stays closed, even when another lane has its place.
    let next = client.open_lane();
    assert_ne!(next, lane);
    let (request, response) = (client.alloc(1).unwrap(), client.alloc(1).unwrap());
    let refused = client.enqueue_request(session, ECHO, request, response, CallOptions::tag(0).lane(lane));
    assert_eq!(refused.unwrap_err().error, EnqueueError::NoSuchLane);
    let refused = client.begin_connect_with(&server.address(), ConnectOptions::new().lane(lane));
    assert!(matches!(refused, Err(ConnectError::Lane(EnqueueError::NoSuchLane))));
    assert!(client.poll_lane(lane).is_none() && client.poll_lane_event(lane).is_none());
    assert!(!client.close_lane(LaneId::MAIN));
}

#[test]
fn a_lane_that_nobody_polls_takes_no_more_than_its_backlog() {
    let world = World::new();
    let config = Config { lane_backlog_max: 3, ..Config::default() };
    let (mut client, mut server, session) = world.pair(config, small_packets());
    let lane = client.open_lane();
    let options = CallOptions::tag(0).lane(lane);
    for _ in 0..3 {
        send(&mut client, session, ECHO, b"x", options);
    }
    let refused = |client: &mut Endpoint| {
        let (request, response) = (client.alloc(1).unwrap(), client.alloc(1).unwrap());
        client.enqueue_request(session, ECHO, request, response, options).err().map(|rejected| rejected.error)
    };
    assert_eq!(refused(&mut client), Some(EnqueueError::LaneFull { limit: 3 }));
    settle(&mut client, &mut server);
    assert_eq!(refused(&mut client), Some(EnqueueError::LaneFull { limit: 3 }), "they wait to be taken");
    assert!(client.poll_lane(lane).is_some());
    assert_eq!(refused(&mut client), None);
    // Other lanes are not affected.
    send(&mut client, session, ECHO, b"x", 0);
    settle(&mut client, &mut server);
    assert_eq!(completions(&mut client).len(), 1);
}

#[test]
fn a_lane_that_was_told_of_does_not_keep_the_thread_awake() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    let lane = client.open_lane();
    send(&mut client, session, ECHO, b"x", CallOptions::tag(0).lane(lane));
    settle(&mut client, &mut server);
    assert!(!client.wait(Some(MS)).unwrap(), "there is something to tell");
    assert_eq!(client.poll_ready_lane(), Some(lane));
    assert!(client.wait(Some(MS)).unwrap(), "a lane that was reported may be left alone");
    send(&mut client, session, ECHO, b"x", CallOptions::tag(1).lane(lane));
    settle(&mut client, &mut server);
    assert_eq!(client.poll_ready_lane(), Some(lane), "something new came");
}

#[test]
fn a_blocking_call_has_a_time_out_of_its_own() {
    let world = World::new();
    let config = Config { poller: PollPolicy::SLEEP, ..Config::default() };
    let (mut client, _server, session) = world.pair(config, small_packets());
    let before_ns = client.now_ns();
    let error = client.call_within(session, ECHO, b"nobody turns the server", 2 * MS).unwrap_err();
    let sinew_rpc::Error::Call(error) = error else { panic!("{error}") };
    assert_eq!(error.cause, Cause::DeadlinePassed);
    let waited_ns = client.now_ns() - before_ns;
    assert!((2 * MS..3 * MS).contains(&waited_ns), "{waited_ns}");
}

#[test]
fn the_time_of_a_call_begins_when_it_is_taken_however_long_ago_the_last_turn_was() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(Config::default(), small_packets());
    send(&mut client, session, ECHO, b"busy", 0);
    assert!(client.turn(), "a turn that is not idle");
    world.clock.advance(10 * MS);
    send(&mut client, session, DEFER, b"timed", within(1, 5 * MS));
    settle(&mut client, &mut server);
    assert_eq!(take_kept()[0].deadline_ns(), Some(server.now_ns() + 5 * MS));
}
