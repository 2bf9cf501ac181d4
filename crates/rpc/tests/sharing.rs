//! Users that share an endpoint: each hears only of its own calls and sessions.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{
    CallOptions, Cause, Config, ConnectError, Endpoint as _, EnqueueError, LaneId, RequestType, SessionEvent,
    SessionId, SharedEndpoint,
};

type Share = SharedEndpoint<Endpoint>;

struct Shared {
    world: World,
    server: Endpoint,
    owner: Share,
    shares: [Share; 2],
}

impl Shared {
    fn new() -> Self {
        let world = World::new();
        let server = world.server(Config::default(), LoopbackConfig::default());
        let owner = SharedEndpoint::new(world.client(Config::default(), LoopbackConfig::default()));
        let shares = [owner.share(), owner.share()];
        Self { world, server, owner, shares }
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let busy = self.owner.turn();
            if !(self.server.turn() | busy) {
                return;
            }
        }
        panic!("two endpoints talk for ever");
    }

    /// Opens a session of each share, and of the owner.
    fn connect(&mut self) -> [SessionId; 3] {
        let to = self.server.address();
        let [a, b] = &mut self.shares;
        let sessions = [a, b, &mut self.owner].map(|share| share.begin_connect(&to).unwrap());
        self.settle();
        for (share, session) in self.shares.iter_mut().chain([&mut self.owner]).zip(sessions) {
            assert_eq!(heard(share), [(session, "open")]);
        }
        sessions
    }
}

fn ask(share: &mut Share, session: SessionId, request_type: RequestType, data: &[u8], tag: u64) {
    let mut request = share.alloc(data.len()).unwrap();
    request.fill(data).unwrap();
    let response = share.alloc(64).unwrap();
    share.enqueue_request(session, request_type, request, response, tag.into()).unwrap();
}

/// A share's completions: the tags of its calls, and their responses.
fn told(share: &mut Share) -> Vec<(u64, Vec<u8>)> {
    std::iter::from_fn(|| share.poll_completion())
        .map(|over| {
            over.result.unwrap();
            (over.tag, over.response.to_vec())
        })
        .collect()
}

/// A share's session events.
fn heard(share: &mut Share) -> Vec<(SessionId, &'static str)> {
    std::iter::from_fn(|| share.poll_event())
        .map(|event| match event {
            SessionEvent::Connected(session) => (session, "open"),
            other => (other.session(), "over"),
        })
        .collect()
}

#[test]
fn each_share_is_told_of_its_own_calls_and_sessions_alone() {
    let mut it = Shared::new();
    let sessions = it.connect();
    for tag in 0..30u64 {
        let [a, b] = &mut it.shares;
        let user = [a, b, &mut it.owner].into_iter().nth(tag as usize % 3).unwrap();
        // The same tags, but different requests.
        ask(user, sessions[tag as usize % 3], ECHO, &tag.to_le_bytes(), tag / 3);
    }
    it.settle();
    for (nth, share) in it.shares.iter_mut().chain([&mut it.owner]).enumerate() {
        let expected = (0..10u64).map(|tag| (tag, (3 * tag + nth as u64).to_le_bytes().to_vec()));
        assert_eq!(told(share), expected.collect::<Vec<_>>());
    }
    // Anybody's calls may use any session, and complete at their caller.
    let [a, b] = &mut it.shares;
    ask(a, sessions[1], ECHO, b"borrowed", 7);
    b.disconnect(sessions[0]);
    it.settle();
    let [a, b] = &mut it.shares;
    assert_eq!(told(a), [(7, b"borrowed".to_vec())]);
    assert_eq!((heard(a), heard(b)), (vec![(sessions[0], "over")], vec![]));
}

#[test]
fn a_share_that_is_dropped_takes_its_calls_and_sessions_with_it() {
    let mut it = Shared::new();
    let sessions = it.connect();
    let [mut a, b] = it.shares;
    ask(&mut a, sessions[0], DEFER, b"a", 1);
    it.owner.turn();
    it.server.turn();
    let kept = take_kept();
    drop(a);
    let mut it = Shared { shares: [it.owner.share(), b], ..it };
    it.settle();
    assert!(kept[0].is_abandoned());
    assert_eq!((it.owner.sessions(), it.server.sessions()), (2, 2));
    drop(kept);
    // The new share hears nothing of the share that had its place.
    assert!(it.shares[0].poll_event().is_none() && it.shares[0].poll_completion().is_none());
    ask(&mut it.shares[1], sessions[1], ECHO, b"b", 2);
    it.settle();
    assert_eq!(told(&mut it.shares[1]), [(2, b"b".to_vec())]);
}

#[test]
fn the_owners_share_can_go_before_the_others() {
    let mut it = Shared::new();
    let sessions = it.connect();
    let [mut a, b] = it.shares;
    drop((it.owner, b));
    ask(&mut a, sessions[0], ECHO, b"on", 1);
    while a.turn() | it.server.turn() {}
    assert_eq!((told(&mut a), a.sessions()), (vec![(1, b"on".to_vec())], 2));
}

/// Completions of its calls are then nobody's: they are dropped, and keep nobody awake.
#[test]
fn what_an_owner_that_is_gone_would_be_told_is_dropped() {
    let mut it = Shared::new();
    let sessions = it.connect();
    ask(&mut it.owner, sessions[2], ECHO, b"nobody waits", 1);
    it.owner.disconnect(sessions[2]);
    it.owner.begin_connect(&it.server.address()).unwrap();
    let [mut a, b] = it.shares;
    drop((it.owner, b));
    ask(&mut a, sessions[0], ECHO, b"on", 2);
    while a.turn() | it.server.turn() {}
    assert_eq!(told(&mut a), [(2, b"on".to_vec())]);
    let (over, event) = a.with(|endpoint| (endpoint.poll_completion(), endpoint.poll_event()));
    assert!(over.is_none() && event.is_none());
}

/// The endpoint is borrowed at that time, so the lane closes afterwards.
#[test]
fn a_share_can_be_dropped_in_a_handler_of_its_endpoint() {
    const DROPS: RequestType = RequestType::new(70);
    let mut it = Shared::new();
    it.connect();
    let back = it.server.begin_connect(&it.owner.address()).unwrap();
    let [a, b] = it.shares;
    let lane = a.lane();
    let kept = RefCell::new(Some(a));
    let drops = move |call: sinew_rpc::Call<'_>| {
        drop(kept.take());
        call.reply(b"dropped");
    };
    it.owner.handle(DROPS, Box::new(drops)).unwrap();
    send(&mut it.server, back, DROPS, b"", 1);
    let mut it = Shared { shares: [it.owner.share(), b], ..it };
    it.settle();
    assert_eq!(completions(&mut it.server)[0].response[..], b"dropped"[..]);
    assert!(!it.owner.close_lane(lane), "it is closed");
    it.settle();
    assert_eq!(it.owner.sessions(), 3, "b's, the owner's, and the server's own");
}

#[test]
fn a_connect_that_waits_keeps_what_else_its_share_is_told() {
    let mut it = Shared::new();
    let to = it.server.address();
    let first = it.shares[0].begin_connect(&to).unwrap();
    let others = it.shares[1].begin_connect(&to).unwrap();
    it.settle();
    // The server is gone by then.
    assert!(it.world.network.kill("server"));
    let error = it.shares[0].connect("loopback://server").unwrap_err();
    assert!(!matches!(error, ConnectError::Lane(_)), "{error}");
    assert_eq!(heard(&mut it.shares[0])[0], (first, "open"));
    assert_eq!(heard(&mut it.shares[1])[0], (others, "open"));
}

#[test]
fn a_lane_that_is_named_is_that_lane_and_no_lane_is_the_shares_own() {
    let mut it = Shared::new();
    let [session, ..] = it.connect();
    let a = &mut it.shares[0];
    let aside = a.open_lane();
    for (tag, lane) in [(1, aside), (2, LaneId::MAIN), (3, a.lane())] {
        let (request, response) = (a.alloc(0).unwrap(), a.alloc(8).unwrap());
        a.enqueue_request(session, ECHO, request, response, CallOptions::tag(tag).lane(lane)).unwrap();
    }
    it.settle();
    let a = &mut it.shares[0];
    let tags = |share: &mut Share, lane| -> Vec<u64> {
        std::iter::from_fn(|| share.poll_lane(lane)).map(|over| over.tag).collect()
    };
    assert_eq!((tags(a, aside), tags(a, LaneId::MAIN)), (vec![1], vec![2, 3]));
    assert!(!a.close_lane(LaneId::MAIN), "no share closes another's lane, nor its own");
    assert!(a.close_lane(aside));
    let (request, response) = (a.alloc(0).unwrap(), a.alloc(8).unwrap());
    let rejected = a.enqueue_request(session, ECHO, request, response, CallOptions::tag(4).lane(aside)).unwrap_err();
    assert_eq!(rejected.error, EnqueueError::NoSuchLane);
    assert!(it.owner.with(|endpoint| endpoint.poll_completion()).is_none());
}

#[test]
fn a_method_in_a_handler_panics_and_fails_that_call_alone() {
    const USES: RequestType = RequestType::new(71);
    let mut it = Shared::new();
    let back = it.server.begin_connect(&it.owner.address()).unwrap();
    let used = Rc::new(it.owner.share());
    // A share in the handler would keep the endpoint alive, and the endpoint the handler.
    let in_handler = Rc::downgrade(&used);
    let uses = move |call: sinew_rpc::Call<'_>| {
        let sessions = in_handler.upgrade().expect("it is held outside").sessions();
        call.reply(&sessions.to_le_bytes())
    };
    it.owner.handle(USES, Box::new(uses)).unwrap();
    send(&mut it.server, back, USES, b"", 1);
    it.settle();
    let over = completions(&mut it.server).remove(0);
    assert_eq!(over.result.unwrap_err().cause, Cause::HandlerPanicked);
    assert_eq!(used.sessions(), 1);
}
