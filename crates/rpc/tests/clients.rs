//! Clients as their server sees them: their names, their coming and leaving, and calls back to them.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use common::handmade::{HandClient, HandServer, OFFER, bytes_of, outline, turn_and_tap};
use common::*;
use sinew_fabric::PacketPort;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{
    CallBackError, CallOptions, Cause, ClientEvent, ClientId, Config, ConnectError, ConnectOptions, Execution,
    PacketDrop, RequestType, SessionEvent, SessionId,
};
use sinew_wire::management::{Offer, ReverseOffer, session_end};
use sinew_wire::{Kind, SessionKey};

const MS: u64 = 1_000_000;
/// Type of a request that is answered with nothing; the server notes who sent it.
const HELLO: RequestType = RequestType::new(20);

fn small_packets() -> LoopbackConfig {
    LoopbackConfig { packet_len_max: 124, ..LoopbackConfig::default() }
}

fn config() -> Config {
    Config { client_events: true, ..Config::default() }
}

fn client_events<P: PacketPort>(server: &mut Endpoint<P>) -> Vec<ClientEvent> {
    std::iter::from_fn(|| server.poll_client_event()).collect()
}

/// A client that also answers as a server does, and a server. The session takes calls back, of `credits` packets in
/// flight.
struct Both {
    world: World,
    client: Endpoint,
    server: Endpoint,
    session: SessionId,
    of_client: ClientId,
    /// The session over which the server calls the client.
    back: SessionId,
}

impl Both {
    fn new(config: Config, port: LoopbackConfig, credits: u16) -> Self {
        let world = World::new();
        let nexus = server_nexus(Arc::clone(&world.pool), config.clone());
        let mut client = world.endpoint_with("client", &nexus, 2, port);
        let mut server = world.server(config, port);
        let session = connect_with(&mut client, &mut server, credits);
        let [ClientEvent::Came(of_client)] = client_events(&mut server)[..] else { panic!("one client") };
        let back = server.session_to(of_client).unwrap();
        Self { world, client, server, session, of_client, back }
    }

    fn settle(&mut self) {
        settle(&mut self.client, &mut self.server);
    }

    fn pass(&mut self, ns: u64) {
        pass_time(&self.world, &mut self.client, &mut self.server, ns);
    }

    fn assert_nothing_is_left(&self) {
        assert_nothing_is_left(&self.client);
        assert_nothing_is_left(&self.server);
    }
}

fn connect_with(client: &mut Endpoint, server: &mut Endpoint, credits: u16) -> SessionId {
    let options = ConnectOptions::new().call_back(credits);
    let session = client.begin_connect_with(&server.address(), options).unwrap();
    settle(client, server);
    assert!(matches!(event(client), SessionEvent::Connected(id) if id == session));
    session
}

#[test]
fn a_handler_calls_its_caller_back_before_it_answers() {
    let Both { mut client, mut server, session, of_client, back, .. } = Both::new(config(), small_packets(), 8);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = Rc::clone(&kept);
    let greet = move |mut call: sinew_rpc::Call<'_>| {
        assert_eq!((call.client(), call.session_to(call.client())), (of_client, Ok(back)));
        let mut question = call.alloc(12).unwrap();
        question.fill(b"who are you?").unwrap();
        let (to, response) = (call.session_to(call.client()).unwrap(), call.alloc(64).unwrap());
        call.enqueue_request(to, ECHO, question, response, 5).unwrap();
        keep.borrow_mut().push(call.defer().unwrap());
    };
    server.handle(HELLO, greet).unwrap();
    send(&mut client, session, HELLO, b"hello", 1);
    settle(&mut client, &mut server);
    let answer = completions(&mut server).remove(0);
    assert_eq!((answer.tag, answer.session, &*answer.response), (5, back, &b"who are you?"[..]));
    assert!(answer.result.is_ok() && completions(&mut client).is_empty());
    let call = kept.borrow_mut().remove(0);
    assert_eq!(call.client(), of_client);
    server.reply(call, &answer.response);
    settle(&mut client, &mut server);
    assert_eq!(&*completions(&mut client)[0].response, b"who are you?");
}

#[test]
fn calls_back_are_of_any_length_in_any_number_beside_calls() {
    let mut both = Both::new(Config { slots: 4, ..config() }, small_packets(), 6);
    for round in 0..5_usize {
        let data: Vec<_> = (0..20).map(|number| pattern(number * 97 + round, number as u8)).collect();
        for (tag, data) in data.iter().enumerate() {
            send(&mut both.client, both.session, ECHO, data, tag as u64);
            send(&mut both.server, both.back, ECHO, data, tag as u64);
        }
        both.settle();
        for endpoint in [&mut both.client, &mut both.server] {
            let mut over = completions(endpoint);
            over.sort_by_key(|over| over.tag);
            assert_eq!(over.len(), 20);
            assert!(over.iter().zip(&data).all(|(over, data)| over.result.is_ok() && *over.response == data[..]));
        }
    }
}

#[test]
fn calls_back_have_deadlines_and_are_cancelled() {
    let mut both = Both::new(config(), small_packets(), 8);
    let late = send(&mut both.server, both.back, DEFER, b"late", CallOptions::tag(1).timeout_ns(3 * MS));
    let unwanted = send(&mut both.server, both.back, DEFER, b"unwanted", 2);
    both.settle();
    let kept = take_kept();
    assert_eq!(kept.iter().map(|call| call.deadline_ns().is_some()).collect::<Vec<_>>(), [true, false]);
    assert!(both.server.cancel(unwanted));
    both.pass(5 * MS);
    assert!(kept.iter().all(|call| call.is_abandoned()));
    let causes: Vec<_> =
        completions(&mut both.server).iter().map(|over| (over.id(), over.result.clone().unwrap_err().cause)).collect();
    assert_eq!(causes, [(unwanted, Cause::Cancelled), (late, Cause::DeadlinePassed)]);
}

#[test]
fn clients_that_take_no_calls_cannot_be_called() {
    let world = World::new();
    let (mut client, mut server, session) = world.pair(config(), small_packets());
    let [ClientEvent::Came(shy)] = client_events(&mut server)[..] else { panic!("one client") };
    assert_eq!(server.session_to(shy), Err(CallBackError::NotTaken));
    server
        .handle(HELLO, |call| {
            assert_eq!(call.session_to(call.client()), Err(CallBackError::NotTaken));
            call.reply(b"");
        })
        .unwrap();
    send(&mut client, session, HELLO, b"", 0);
    settle(&mut client, &mut server);
    assert!(completions(&mut client)[0].result.is_ok());
    client.disconnect(session);
    settle(&mut client, &mut server);
    assert_eq!(server.session_to(shy), Err(CallBackError::NoSuchClient));
}

#[test]
fn a_session_of_a_client_is_called_alike_by_all_its_calls_and_no_other_session() {
    let mut both = Both::new(config(), small_packets(), 8);
    let other = connect_with(&mut both.client, &mut both.server, 0);
    for session in [both.session, other, both.session, other] {
        send(&mut both.client, session, DEFER, b"", 0);
    }
    both.settle();
    let clients: Vec<_> = take_kept().iter().map(|call| call.client()).collect();
    assert!(clients[0] == clients[2] && clients[1] == clients[3] && clients[0] != clients[1], "{clients:?}");
    assert_eq!(clients[0], both.of_client);
}

#[test]
fn a_call_back_knows_the_session_that_it_belongs_to() {
    let mut both = Both::new(config(), small_packets(), 8);
    let session = both.session;
    both.client
        .handle(HELLO, move |call| {
            assert_eq!(call.session_to(call.client()), Ok(session));
            call.reply(b"here");
        })
        .unwrap();
    send(&mut both.server, both.back, HELLO, b"", 0);
    both.settle();
    assert_eq!(&*completions(&mut both.server)[0].response, b"here");
}

#[test]
fn calls_back_end_with_the_session_whoever_ends_it() {
    // Whether the client or the server ends it, and the cause at the server.
    for (client_ends, cause) in [(true, Cause::PeerClosed), (false, Cause::Disconnected)] {
        let mut both = Both::new(config(), small_packets(), 8);
        let call = send(&mut both.server, both.back, DEFER, b"work", 0);
        both.settle();
        let kept = take_kept();
        if client_ends {
            both.client.disconnect(both.session);
        } else {
            assert!(both.server.dismiss(both.of_client) && !both.server.dismiss(both.of_client));
        }
        both.settle();
        assert!(kept[0].is_abandoned());
        let over = completions(&mut both.server).remove(0);
        let error = over.result.as_ref().unwrap_err();
        assert_eq!((over.id(), error.cause, error.execution), (call, cause, Execution::MayHaveRun));
        assert!(error.to_string().starts_with("call to a client failed"), "{error}");
        assert_eq!(client_events(&mut both.server), [ClientEvent::Left { client: both.of_client, cause }]);
        match event(&mut both.client) {
            SessionEvent::Disconnected(id) => assert!(client_ends && id == both.session),
            SessionEvent::Lost { session, cause, .. } => {
                assert_eq!((client_ends, session, cause), (false, both.session, Cause::PeerClosed));
            }
            other => panic!("{other:?}"),
        }
        assert!(events(&mut both.server).is_empty(), "a session over which a client is called has no events");
        drop(kept);
        both.settle();
        both.assert_nothing_is_left();
    }
}

#[test]
fn disconnecting_the_session_to_a_client_dismisses_it() {
    let mut both = Both::new(config(), small_packets(), 8);
    assert!(both.server.disconnect(both.back) && !both.server.disconnect(both.back));
    both.settle();
    assert_eq!(lost(&mut both.client, both.session), Cause::PeerClosed);
    both.assert_nothing_is_left();
}

#[test]
fn a_client_that_was_dismissed_hears_so_whatever_is_lost() {
    for (loses_news, loses_answer) in [(true, false), (false, true), (true, true)] {
        let mut both = Both::new(config(), small_packets(), 8);
        // Keeps the peer from being forgotten.
        let other = connect_with(&mut both.client, &mut both.server, 0);
        let _ = client_events(&mut both.server);
        let lose = |both: &mut Both, loses: bool, turn: fn(&mut Both)| {
            both.world.network.set_link("client", "server", !loses);
            turn(both);
            both.world.network.set_link("client", "server", true);
        };
        assert!(both.server.dismiss(both.of_client));
        lose(&mut both, loses_news, |both| _ = both.server.turn());
        lose(&mut both, loses_answer, |both| _ = both.client.turn());
        both.pass(1_000 * MS);
        assert_eq!(lost(&mut both.client, both.session), Cause::PeerClosed);
        assert_eq!((both.client.sessions(), both.server.sessions()), (1, 1));
        // The reset is repeated until it is confirmed, and no longer.
        both.world.network.start_tap();
        both.world.network.take_tapped();
        both.pass(1_000 * MS);
        assert!(!kinds(&both.world.network).contains(&Kind::Reset), "{loses_news} {loses_answer}");
        send(&mut both.client, other, ECHO, b"other", 0);
        both.settle();
        assert!(completions(&mut both.client)[0].result.is_ok());
    }
}

#[test]
fn a_session_that_its_client_ends_is_gone_at_the_server_too_once_they_reach_each_other() {
    let mut both = Both::new(config(), small_packets(), 8);
    // Keeps the peer from being forgotten.
    connect_with(&mut both.client, &mut both.server, 0);
    let _ = client_events(&mut both.server);
    let call = send(&mut both.server, both.back, DEFER, b"work", 0);
    both.settle();
    drop(take_kept());
    both.world.network.set_link("client", "server", false);
    both.client.disconnect(both.session);
    // Longer than the client waits for an answer to a disconnect, and shorter than the peer time-out.
    both.pass(4_000 * MS);
    assert!(matches!(event(&mut both.client), SessionEvent::Disconnected(id) if id == both.session));
    both.world.network.set_link("client", "server", true);
    both.pass(1_000 * MS);
    assert_eq!((both.client.sessions(), both.server.sessions()), (1, 1));
    let over = completions(&mut both.server).remove(0);
    assert_eq!((over.id(), over.result.unwrap_err().cause), (call, Cause::PeerClosed));
}

#[test]
fn a_client_that_vanishes_while_it_is_called_is_given_up() {
    let mut both = Both::new(config(), small_packets(), 8);
    send(&mut both.server, both.back, DEFER, b"work", 0);
    both.settle();
    drop(take_kept());
    both.world.network.set_link("client", "server", false);
    send(&mut both.server, both.back, ECHO, b"anybody?", 1);
    both.pass(6_000 * MS);
    let causes: Vec<_> =
        completions(&mut both.server).iter().map(|over| over.result.clone().unwrap_err().cause).collect();
    assert_eq!(causes, [Cause::PeerSilent; 2]);
    let left = ClientEvent::Left { client: both.of_client, cause: Cause::PeerSilent };
    assert_eq!(client_events(&mut both.server), [left]);
    both.assert_nothing_is_left();
}

#[test]
fn either_side_may_be_dropped_while_both_call() {
    for drop_client in [true, false] {
        let Both { mut client, mut server, session, back, .. } = Both::new(config(), small_packets(), 8);
        send(&mut server, back, DEFER, b"there", 0);
        send(&mut client, session, DEFER, b"here", 0);
        settle(&mut client, &mut server);
        let kept = take_kept();
        let (gone, mut rest) = if drop_client { (client, server) } else { (server, client) };
        drop(gone);
        rest.turn();
        assert_eq!(completions(&mut rest)[0].result.as_ref().unwrap_err().cause, Cause::PeerClosed);
        drop(kept);
        rest.turn();
        assert_nothing_is_left(&rest);
    }
}

#[test]
fn who_restarts_is_another_client() {
    let Both { world, client, mut server, of_client, .. } = Both::new(config(), small_packets(), 8);
    drop(client);
    let nexus = server_nexus(Arc::clone(&world.pool), config());
    let mut client = world.endpoint_with("client", &nexus, 77, small_packets());
    connect_with(&mut client, &mut server, 8);
    let events = client_events(&mut server);
    let [ClientEvent::Left { client: old, cause: Cause::PeerClosed }, ClientEvent::Came(new)] = events[..] else {
        panic!("{events:?}")
    };
    assert!(old == of_client && new != old && server.session_to(old) == Err(CallBackError::NoSuchClient));
    let back = server.session_to(new).unwrap();
    send(&mut server, back, ECHO, b"again", 0);
    settle(&mut client, &mut server);
    assert_eq!(&*completions(&mut server)[0].response, b"again");
}

#[test]
fn a_peer_that_forgot_its_sessions_is_called_on_none_of_them() {
    let world = World::new();
    let mut server = world.server(config(), LoopbackConfig::default());
    let mut client = HandClient::new(&world, 1);
    client.call_back = Some(ReverseOffer { key: SessionKey::new(1, 99), credits: 8, slots: 8 });
    client.open(&mut server, OFFER).unwrap();
    let [ClientEvent::Came(old)] = client_events(&mut server)[..] else { panic!("one client") };
    let back = server.session_to(old).unwrap();
    send(&mut server, back, ECHO, b"?", 0);
    server.turn();
    // It restarts, and asks again.
    world.clock.advance(MS);
    client.token += 1;
    client.key = SessionKey::new(4, 4);
    client.open(&mut server, OFFER).unwrap();
    assert_eq!(completions(&mut server)[0].result.as_ref().unwrap_err().cause, Cause::PeerForgot);
    let events = client_events(&mut server);
    let [ClientEvent::Left { client: left, cause: Cause::PeerForgot }, ClientEvent::Came(new)] = events[..] else {
        panic!("{events:?}")
    };
    assert!(left == old && new != old && server.sessions() == 2);
}

#[test]
fn nobody_hears_of_clients_unless_asked_to_nor_of_those_that_came_and_went_meanwhile() {
    let world = World::new();
    let (_client, mut server, _) = world.pair(Config::default(), small_packets());
    assert_eq!(server.poll_client_event(), None);

    let world = World::new();
    let (mut client, mut server) = (world.client(config(), small_packets()), world.server(config(), small_packets()));
    let first = connect(&world, &mut client, &mut server);
    client.disconnect(first);
    settle(&mut client, &mut server);
    let _ = events(&mut client);
    let second = connect(&world, &mut client, &mut server);
    let [ClientEvent::Came(known)] = client_events(&mut server)[..] else { panic!("one client") };
    client.disconnect(second);
    settle(&mut client, &mut server);
    assert_eq!(client_events(&mut server), [ClientEvent::Left { client: known, cause: Cause::PeerClosed }]);
}

#[test]
fn a_client_that_comes_keeps_no_sleeper_asleep() {
    let world = World::new();
    let (mut client, mut server) = (world.client(config(), small_packets()), world.server(config(), small_packets()));
    connect(&world, &mut client, &mut server);
    // Events that nobody takes prevent one sleep.
    assert!(!server.wait(Some(1)).unwrap() && server.wait(Some(1)).unwrap());
    assert_eq!(client_events(&mut server).len(), 1);
}

/// Clients that came and left unnoticed are forgotten at some time; a client that comes then is reported all the same.
#[test]
fn a_client_that_comes_after_many_went_unnoticed_keeps_no_sleeper_asleep() {
    let world = World::new();
    let (mut client, mut server) = (world.client(config(), small_packets()), world.server(config(), small_packets()));
    for visit in 0..70 {
        let session = connect(&world, &mut client, &mut server);
        assert!(!server.wait(Some(1)).unwrap(), "visit {visit}: a client came");
        assert!(server.wait(Some(1)).unwrap(), "visit {visit}: nobody came since");
        client.disconnect(session);
        settle(&mut client, &mut server);
        let _ = events(&mut client);
    }
}

#[test]
fn receive_capacity_is_split_between_both_directions_and_freed_whole() {
    // Each side offers 32 credits, and 32 packets are reserved for management. The table gives the receive packets, the
    // credits asked for calls back, and those granted for calls back and for calls.
    for (receive_packets, asked, back, forth) in [(64, 8, 8, 24), (40, 30, 4, 4), (34, 5, 1, 1), (33, 5, 0, 0)] {
        let world = World::new();
        let port = LoopbackConfig { receive_packets, ..LoopbackConfig::default() };
        let config = Config { management_packets: 32, ..config() };
        let mut server = world.server(config.clone(), LoopbackConfig::default());
        let mut client = world.client(config, port);
        let options = ConnectOptions::new().call_back(asked);
        match client.begin_connect_with(&server.address(), options) {
            Ok(session) => {
                settle(&mut client, &mut server);
                assert!(matches!(event(&mut client), SessionEvent::Connected(id) if id == session));
                assert_eq!(client.session_credits(session).unwrap().all, forth);
                let [ClientEvent::Came(of_client)] = client_events(&mut server)[..] else { panic!("one client") };
                let session_to = server.session_to(of_client).unwrap();
                assert_eq!(server.session_credits(session_to).unwrap().all, back);
                assert_eq!((client.sessions(), client.committed_packets()), (2, u64::from(back + forth)));
                assert_eq!((server.sessions(), server.committed_packets()), (2, u64::from(back + forth)));
                client.disconnect(session);
                settle(&mut client, &mut server);
            }
            Err(ConnectError::ReceiveCapacity { .. }) => assert_eq!((back, forth), (0, 0)),
            Err(error) => panic!("{error}"),
        }
        assert_nothing_is_left(&client);
        assert_nothing_is_left(&server);
    }
}

#[test]
fn a_server_without_room_for_both_directions_refuses_the_session() {
    let asks = |world: &World, config: Config, receive_packets, call_back| {
        let port = LoopbackConfig { receive_packets, ..LoopbackConfig::default() };
        let mut server = world.server(config, port);
        let mut client = world.client(Config::default(), LoopbackConfig::default());
        let options = ConnectOptions::new().call_back(call_back);
        client.begin_connect_with(&server.address(), options).unwrap();
        settle(&mut client, &mut server);
        let event = event(&mut client);
        let is_open = matches!(event, SessionEvent::Connected(_));
        if !is_open {
            assert_nothing_is_left(&client);
            assert_nothing_is_left(&server);
        }
        (is_open, event)
    };
    let all = Config { peer_share_percent: 100, ..Config::default() };
    for (receive_packets, call_back, opens) in [(33, 0, true), (33, 1, false), (34, 1, true)] {
        let (is_open, event) = asks(&World::new(), all.clone(), receive_packets, call_back);
        assert_eq!(is_open, opens, "{event:?}");
    }
    for (sessions_max, call_back, opens) in [(1, 0, true), (1, 1, false), (2, 1, true)] {
        let (is_open, event) = asks(&World::new(), Config { sessions_max, ..all.clone() }, 512, call_back);
        assert_eq!(is_open, opens, "{event:?}");
    }
}

#[test]
fn a_session_that_does_not_open_frees_the_place_for_calls_back() {
    let world = World::new();
    let mut client = world.client(config(), small_packets());
    let mut server = world.server(config(), small_packets());
    world.network.set_link("client", "server", false);
    client.begin_connect_with(&server.address(), ConnectOptions::new().call_back(8)).unwrap();
    assert_eq!((client.sessions(), client.committed_packets()), (2, 40));
    pass_time(&world, &mut client, &mut server, 6_000 * MS);
    assert!(matches!(event(&mut client), SessionEvent::ConnectFailed { .. }));
    assert_nothing_is_left(&client);
}

#[test]
fn a_call_back_that_overtakes_the_accept_is_sent_again() {
    let world = World::new();
    let nexus = server_nexus(Arc::clone(&world.pool), config());
    let mut client = world.endpoint_with("client", &nexus, 2, small_packets());
    let mut server = world.server(config(), small_packets());
    client.begin_connect_with(&server.address(), ConnectOptions::new().call_back(8)).unwrap();
    client.turn();
    server.turn();
    client.turn();
    world.losing(|| server.turn());
    let [ClientEvent::Came(of_client)] = client_events(&mut server)[..] else { panic!("one client") };
    let back = server.session_to(of_client).unwrap();
    send(&mut server, back, ECHO, b"early", 0);
    server.turn();
    client.turn();
    assert_eq!(client.stats().dropped(PacketDrop::UnknownSession), 1);
    pass_time(&world, &mut client, &mut server, 100 * MS);
    assert!(matches!(event(&mut client), SessionEvent::Connected(_)));
    assert_eq!(&*completions(&mut server)[0].response, b"early");
}

#[test]
fn late_calls_back_of_a_session_that_never_opened_are_none_of_the_next() {
    let world = World::new();
    let nexus = server_nexus(Arc::clone(&world.pool), config());
    let mut client = world.endpoint_with("client", &nexus, 2, small_packets());
    let mut server = world.server(config(), small_packets());
    let session = client.begin_connect_with(&server.address(), ConnectOptions::new().call_back(8)).unwrap();
    client.turn();
    server.turn();
    client.turn();
    // The accept is lost, a call back is late, and the client is dismissed.
    world.losing(|| server.turn());
    let [ClientEvent::Came(first)] = client_events(&mut server)[..] else { panic!("one client") };
    let back = server.session_to(first).unwrap();
    let old = send(&mut server, back, ECHO, b"old", 0);
    let (of_client, of_server) = (world.network.peer("client").unwrap(), world.network.peer("server").unwrap());
    let late = world.losing(|| turn_and_tap(&world.network, &mut server, of_client));
    assert_eq!(outline(&late), [(Kind::Request, 0)]);
    assert!(server.dismiss(first));
    world.losing(|| server.turn());
    // The client is granted another session for the same connect.
    pass_time(&world, &mut client, &mut server, 100 * MS);
    assert!(matches!(event(&mut client), SessionEvent::Connected(id) if id == session));
    let [ClientEvent::Left { .. }, ClientEvent::Came(second)] = client_events(&mut server)[..] else {
        panic!("another")
    };
    assert!(world.network.inject("client", of_server, &bytes_of(late[0].0, &late[0].1)));
    client.turn();
    let back = server.session_to(second).unwrap();
    let new = send(&mut server, back, ECHO, b"new", 0);
    settle(&mut client, &mut server);
    let over = completions(&mut server);
    assert_eq!(over.iter().map(|over| over.id()).collect::<Vec<_>>(), [old, new]);
    assert_eq!(over[0].result.as_ref().unwrap_err().cause, Cause::Disconnected);
    assert_eq!(&*over[1].response, b"new");
    assert_eq!(client.stats().requests_handled, 1);
}

#[test]
fn an_accept_that_grants_other_calls_back_than_were_asked_for_is_dropped() {
    let good = ReverseOffer { key: SessionKey::new(1, 99), credits: 8, slots: 8 };
    let wrong = [
        (0, Some(good)),
        (8, None),
        (8, Some(ReverseOffer { credits: 9, ..good })),
        (8, Some(ReverseOffer { slots: 3, ..good })),
    ];
    for (asked, granted) in wrong {
        let world = World::new();
        let mut client = world.client(config(), LoopbackConfig::default());
        let mut server = HandServer::asked_with(&world, &mut client, ConnectOptions::new().call_back(asked));
        assert_eq!(server.offered.map(|back| back.credits), (asked > 0).then_some(asked));
        server.accept_with(OFFER, granted);
        server.turn(&mut client);
        assert_eq!(client.stats().dropped(PacketDrop::Malformed), 1, "{asked} {granted:?}");
        assert!(client.poll_event().is_none());
        // The right accept still works.
        server.accept_with(OFFER, (asked > 0).then_some(good));
        server.turn(&mut client);
        assert!(matches!(event(&mut client), SessionEvent::Connected(_)));
    }
}

#[test]
fn a_connect_whose_calls_back_have_an_odd_number_of_slots_is_dropped() {
    let world = World::new();
    let mut server = world.server(config(), LoopbackConfig::default());
    let mut client = HandClient::new(&world, 1);
    client.call_back = Some(ReverseOffer { key: SessionKey::new(1, 99), credits: 8, slots: 6 });
    client.send_management(&client.connect_packet(OFFER, sinew_wire::management::Cookie::default()));
    assert!(client.turn(&mut server).is_empty());
    assert_eq!(server.stats().dropped(PacketDrop::Malformed), 1);
}

#[test]
fn a_direction_is_ended_by_nothing_but_its_session() {
    // At the client, by packets of the server.
    let world = World::new();
    let nexus = server_nexus(Arc::clone(&world.pool), config());
    let mut client = world.endpoint_with("client", &nexus, 2, LoopbackConfig::default());
    let mut server = HandServer::asked_with(&world, &mut client, ConnectOptions::new().call_back(8));
    let ours = ReverseOffer { key: SessionKey::new(1, 99), credits: 8, slots: 8 };
    let theirs = server.offered.unwrap().key.in_session(server.key);
    server.accept_with(OFFER, Some(ours));
    server.turn(&mut client);
    for kind in [Kind::Disconnect, Kind::Confirm, Kind::Disconnected, Kind::Reset] {
        server.send_management(&session_end(kind, theirs, ours.key));
        // There is no such session, and the sender of a reset waits to learn that.
        let answers = if kind == Kind::Reset { vec![(Kind::Disconnected, 0)] } else { vec![] };
        assert_eq!(outline(&server.turn(&mut client)), answers, "{kind:?}");
    }
    assert_eq!((client.sessions(), client.stats().dropped(PacketDrop::UnknownSession)), (2, 4));

    // At the server, by packets of the client.
    let world = World::new();
    let mut server = world.server(config(), LoopbackConfig::default());
    let mut client = HandClient::new(&world, 1);
    let ours = ReverseOffer { key: SessionKey::new(1, 99), credits: 8, slots: 8 };
    client.call_back = Some(ours);
    client.open(&mut server, OFFER).unwrap();
    let [ClientEvent::Came(of_client)] = client_events(&mut server)[..] else { panic!("one client") };
    let back = server.session_to(of_client).unwrap();
    send(&mut server, back, ECHO, b"?", 0);
    let sent = turn_and_tap(&world.network, &mut server, client.peer);
    let (request, _) = sent.iter().find(|(header, _)| header.kind == Kind::Request).unwrap();
    assert_eq!(request.session, ours.key.in_session(client.server_key));
    let theirs = client.granted_back.unwrap().key;
    for kind in [Kind::Disconnect, Kind::Confirm, Kind::Disconnected, Kind::Reset, Kind::Refuse, Kind::Challenge] {
        client.send_management(&session_end(kind, theirs, ours.key));
        client.turn(&mut server);
    }
    assert_eq!((server.sessions(), completions(&mut server).len()), (2, 0));
}

#[test]
fn offers_of_slots_are_met_in_the_middle_for_calls_back_too() {
    for (of_client, of_server) in [(2, 16), (16, 2)] {
        let world = World::new();
        let nexus = server_nexus(Arc::clone(&world.pool), Config { slots: of_client, ..config() });
        let mut client = world.endpoint_with("client", &nexus, 2, small_packets());
        let mut server = world.server(Config { slots: of_server, ..config() }, small_packets());
        connect_with(&mut client, &mut server, 32);
        let [ClientEvent::Came(of_client)] = client_events(&mut server)[..] else { panic!("one client") };
        let back = server.session_to(of_client).unwrap();
        for tag in 0..20 {
            send(&mut server, back, DEFER, b"x", tag);
        }
        settle(&mut client, &mut server);
        let mut answered = 0;
        loop {
            let kept = take_kept();
            if kept.is_empty() {
                break;
            }
            assert!(kept.len() <= 2);
            answered += kept.len();
            kept.into_iter().for_each(sinew_rpc::DeferredCall::reply_in_place);
            settle(&mut client, &mut server);
        }
        assert_eq!((answered, completions(&mut server).len()), (20, 20));
    }
}

#[test]
fn an_offer_of_many_credits_gives_no_more_than_the_server_has_for_a_session() {
    let world = World::new();
    let mut server = world.server(Config { credits: 4, ..config() }, LoopbackConfig::default());
    let mut client = HandClient::new(&world, 1);
    client.call_back = Some(ReverseOffer { key: SessionKey::new(1, 99), credits: u16::MAX, slots: 1 << 15 });
    client.open(&mut server, Offer { credits: u16::MAX, ..OFFER }).unwrap();
    assert_eq!((client.granted.credits, client.granted_back.unwrap().credits), (4, 4));
    assert_eq!(server.committed_packets(), 8);
}
