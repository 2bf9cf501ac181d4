//! Random mixes of calls over a network that loses, duplicates, reorders and delays packets, in virtual time.
//!
//! Set `PROPTEST_CASES` for a longer hunt; a failure prints the case that shows it.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use common::handmade::parse;
use common::{
    Endpoint, ManualPool, TestPort, World, assert_nothing_is_left, completions, events, fill_pattern, pattern,
};
use proptest::prelude::*;
use sinew_fabric::SeededGenerator;
use sinew_fabric::fault::{FaultConfig, FaultHandle, Faults, Faulty};
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{
    Algorithm, Call, CallId, CallOptions, Cause, Config, Congestion, DeferredCall, Execution, LaneId, Nexus, Recovery,
    RequestType, Rpc, SessionEvent, SessionId, SwiftConfig, TimelyConfig, Timeout, Tuning,
};
use sinew_wire::Kind;

type FaultyEndpoint = Endpoint<Faulty<TestPort>>;

/// Kinds of calls, each with a handler of its own.
const DISPATCH: u16 = 1;
const IN_BURST: u16 = 2;
const WORKER: u16 = 3;
const DEFERRED: u16 = 4;
const NESTED: u16 = 5;
const IN_PLACE: u16 = 6;
const KINDS: u16 = 6;

/// Length of what leads each request: an identifier and the length of the response. A pattern follows.
const PREFIX_LEN: usize = 12;

thread_local! {
    /// Number of times that each call was run, by identifier.
    static RUNS: RefCell<HashMap<u64, u32>> = RefCell::default();
    /// Calls that are answered when the test chooses.
    static KEPT: RefCell<Vec<DeferredCall>> = RefCell::default();
    /// Calls that wait for a nested call, by its tag.
    static NESTING: RefCell<HashMap<u64, DeferredCall>> = RefCell::default();
    static INNER_SESSION: Cell<Option<SessionId>> = const { Cell::new(None) };
    static NEXT_INNER: Cell<u64> = const { Cell::new(0) };
    /// Whether packets are damaged, so that requests may contain anything.
    static DAMAGED: Cell<bool> = const { Cell::new(false) };
}

fn request_of(id: u64, request_len: usize, response_len: u32) -> Vec<u8> {
    let mut request = vec![0; PREFIX_LEN + request_len];
    request[..8].copy_from_slice(&id.to_le_bytes());
    request[8..PREFIX_LEN].copy_from_slice(&response_len.to_le_bytes());
    fill_pattern(&mut request[PREFIX_LEN..], !id as u8);
    request
}

/// Runs a request: counts it, checks it, and returns the response. `where_run` keeps inner calls apart from outer ones.
fn respond(request: &[u8], where_run: u64) -> Vec<u8> {
    let damaged = DAMAGED.get();
    if request.len() < PREFIX_LEN {
        assert!(damaged || request.is_empty());
        return Vec::new();
    }
    let id = u64::from_le_bytes(request[..8].try_into().unwrap());
    let response_len = u32::from_le_bytes(request[8..PREFIX_LEN].try_into().unwrap());
    if damaged {
        return pattern(response_len.min(100_000) as usize, id as u8);
    }
    assert!(request[PREFIX_LEN..] == pattern(request.len() - PREFIX_LEN, !id as u8)[..], "call {id} arrived changed");
    let runs = RUNS.with_borrow_mut(|runs| {
        let runs = runs.entry(id | where_run << 60).or_default();
        *runs += 1;
        *runs
    });
    assert_eq!(runs, 1, "call {id} was run again");
    pattern(response_len as usize, id as u8)
}

fn nest(mut call: Call<'_>) {
    let Some(session) = INNER_SESSION.get() else { return };
    respond(call.request(), 0);
    let (Ok(mut request), Ok(response)) = (call.alloc(call.request().len()), call.alloc(0)) else { return };
    request.fill(call.request()).unwrap();
    let tag = NEXT_INNER.replace(NEXT_INNER.get() + 1);
    if call.enqueue_request(session, RequestType::new(DISPATCH), request, response, tag).is_ok()
        && let Ok(deferred) = call.defer()
    {
        NESTING.with_borrow_mut(|nesting| nesting.insert(tag, deferred));
    }
}

fn nexus(pool: &Arc<ManualPool>, config: Config, where_run: u64) -> Nexus {
    Nexus::builder()
        .config(config)
        .workers(Arc::clone(pool) as _)
        .handle(RequestType::new(DISPATCH), move |call| {
            let response = respond(call.request(), where_run);
            call.reply(&response);
        })
        .handle_burst(RequestType::new(IN_BURST), |calls| {
            for index in 0..calls.len() {
                let response = respond(calls.request(index), 0);
                calls.reply(index, &response);
            }
        })
        .handle_worker(RequestType::new(WORKER), |call| {
            let response = respond(call.request(), 0);
            call.reply(&response);
        })
        .handle(RequestType::new(DEFERRED), |call| {
            if let Ok(deferred) = call.defer() {
                KEPT.with_borrow_mut(|kept| kept.push(deferred));
            }
        })
        .handle(RequestType::new(NESTED), nest)
        .handle(RequestType::new(IN_PLACE), |call| {
            let response = respond(call.request(), 0);
            match call.alloc(response.len()) {
                Ok(mut buffer) => {
                    buffer.fill(&response).unwrap();
                    call.reply_buffer(buffer);
                }
                Err(_) => drop(call),
            }
        })
        .build()
        .unwrap()
}

fn answer_kept(upto: usize) {
    let kept = KEPT.with_borrow_mut(|kept| kept.drain(..upto.min(kept.len())).collect::<Vec<_>>());
    for call in kept {
        let response = respond(call.request(), 0);
        call.reply(&response);
    }
}

/// Parameters of a call, to compare with how it ended.
struct Asked {
    id: u64,
    response_len: usize,
    call: CallId,
    empty: bool,
    cancelled: bool,
    has_deadline: bool,
    aside: bool,
    kind: u16,
}

#[derive(Clone, Debug)]
enum Step {
    /// A call, with a time-out unless that is 0, and on the other lane if `aside`.
    Call {
        session: usize,
        kind: u16,
        request_len: usize,
        response_len: u32,
        timeout_us: u64,
        aside: bool,
    },
    Empty {
        session: usize,
    },
    Cancel {
        recent: u64,
    },
    /// Closes the lane beside the main one, and opens another.
    Reopen,
    Reconnect {
        session: usize,
    },
    Answer {
        kept: usize,
    },
    Work,
    Turn {
        turns: usize,
    },
}

impl Step {
    fn plain(kind: u16, request_len: usize, response_len: u32) -> Self {
        Self::Call { session: 0, kind, request_len, response_len, timeout_us: 0, aside: false }
    }
}

#[derive(Clone, Debug)]
struct Side {
    config: Config,
    port: LoopbackConfig,
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    sides: [Side; 3],
    faults: Faults,
    latency_ns: u64,
    steps: Vec<Step>,
}

struct Run {
    world: World,
    /// The client, its server, and that server's server.
    endpoints: [FaultyEndpoint; 3],
    faults: Vec<FaultHandle>,
    sessions: [SessionId; 2],
    lane: LaneId,
    disconnected: Vec<SessionId>,
    asked: HashMap<u64, Asked>,
    next_tag: u64,
    completed: u64,
    /// Calls whose client was told that they did not run.
    not_run: Vec<u64>,
    /// Whether the sessions of inner calls have been disconnected.
    is_ending: bool,
}

const NAMES: [&str; 3] = ["client", "server", "inner"];

impl Run {
    fn new(case: &Case) -> Self {
        RUNS.take();
        KEPT.take();
        NESTING.take();
        NEXT_INNER.set(0);
        DAMAGED.set(case.faults.corrupt > 0.0);
        let world = World::new();
        world.network.set_latency_ns(case.latency_ns);
        let faults = FaultConfig { tx: case.faults, rx: Faults::NONE };
        let mut handles = Vec::new();
        let mut endpoints = [0, 1, 2].map(|index| {
            let Side { config, port } = &case.sides[index];
            let nexus = nexus(&world.pool, config.clone(), u64::from(index == 2));
            let port = world.port(NAMES[index], *port);
            let seed = case.seed.wrapping_mul(3).wrapping_add(index as u64);
            let port = Faulty::new(port, faults, seed);
            handles.push(port.handle());
            Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(!seed)))
        });
        let (server, inner) = (endpoints[1].address(), endpoints[2].address());
        INNER_SESSION.set(Some(endpoints[1].begin_connect(&inner).unwrap()));
        let sessions = [(); 2].map(|()| endpoints[0].begin_connect(&server).unwrap());
        let lane = endpoints[0].open_lane();
        Self {
            world,
            endpoints,
            faults: handles,
            sessions,
            lane,
            disconnected: Vec::new(),
            asked: HashMap::new(),
            next_tag: 0,
            completed: 0,
            not_run: Vec::new(),
            is_ending: false,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Call { session, kind, request_len, response_len, timeout_us, aside } => {
                let request = request_of(self.next_tag, request_len, response_len);
                let timeout_ns = Some(timeout_us * 1000).filter(|&timeout_ns| timeout_ns > 0);
                self.call_with(self.sessions[session], kind, &request, response_len as usize, timeout_ns, aside);
            }
            Step::Empty { session } => self.call(self.sessions[session], DISPATCH, &[], 0),
            Step::Reopen => {
                assert!(self.endpoints[0].close_lane(self.lane) && !self.endpoints[0].close_lane(self.lane));
                self.asked.retain(|_, asked| !asked.aside);
                self.lane = self.endpoints[0].open_lane();
            }
            Step::Cancel { recent } => {
                let tag = self.next_tag.wrapping_sub(1 + recent);
                if let Some(asked) = self.asked.get_mut(&tag) {
                    asked.cancelled = true;
                    // The call may be over already, and wait to be polled or for shares of its request.
                    self.endpoints[0].cancel(asked.call);
                    assert!(!self.endpoints[0].cancel(asked.call), "no call is cancelled twice");
                }
            }
            Step::Reconnect { session } => {
                let address = self.endpoints[1].address();
                self.endpoints[0].disconnect(self.sessions[session]);
                self.disconnected.push(self.sessions[session]);
                self.sessions[session] = self.endpoints[0].begin_connect(&address).unwrap();
            }
            Step::Answer { kept } => answer_kept(kept),
            Step::Work => _ = self.world.pool.run_all(),
            Step::Turn { turns } => (0..turns).for_each(|_| self.turn()),
        }
    }

    fn call(&mut self, session: SessionId, kind: u16, data: &[u8], response_len: usize) {
        self.call_with(session, kind, data, response_len, None, false);
    }

    fn call_with(
        &mut self,
        session: SessionId,
        kind: u16,
        data: &[u8],
        response_len: usize,
        timeout_ns: Option<u64>,
        aside: bool,
    ) {
        let lane = if aside { self.lane } else { LaneId::MAIN };
        let client = &mut self.endpoints[0];
        let (mut request, response) = (client.alloc(data.len()).unwrap(), client.alloc(200).unwrap());
        request.fill(data).unwrap();
        let tag = self.next_tag;
        self.next_tag += 1;
        let empty = data.is_empty();
        let options = CallOptions::tag(tag).lane(lane);
        let options = timeout_ns.map_or(options, |timeout_ns| options.timeout_ns(timeout_ns));
        match client.enqueue_request(session, RequestType::new(kind), request, response, options) {
            Ok(call) => {
                let has_deadline = timeout_ns.is_some();
                let asked = Asked { id: tag, response_len, call, empty, cancelled: false, has_deadline, aside, kind };
                assert!(self.asked.insert(tag, asked).is_none());
            }
            // Damage can end a session.
            Err(rejected) => assert!(DAMAGED.get(), "{rejected}"),
        }
    }

    /// Turns all endpoints once, takes finished calls, and lets time pass: little while there is work.
    fn turn(&mut self) {
        let busy = self.endpoints.iter_mut().fold(false, |busy, endpoint| endpoint.turn() | busy);
        for inner in completions(&mut self.endpoints[1]) {
            let deferred = NESTING.with_borrow_mut(|nesting| nesting.remove(&inner.tag));
            // A handler that found no memory to defer its call has dropped it.
            let Some(deferred) = deferred else { continue };
            match inner.result {
                Ok(()) => deferred.reply(&inner.response),
                // The handler ran late, for a client that had given its call up.
                Err(error) if self.is_ending => assert_eq!(error.cause, Cause::Disconnected),
                Err(error) => assert!(DAMAGED.get(), "{error}"),
            }
        }
        let is_told = self.endpoints[0].poll_ready_lane() == Some(self.lane);
        let mut over = completions(&mut self.endpoints[0]);
        let mains = over.len();
        over.extend(std::iter::from_fn(|| self.endpoints[0].poll_lane(self.lane)));
        assert_eq!(is_told, over.len() > mains, "a lane is told of what it has, once");
        for (at, over) in over.into_iter().enumerate() {
            let asked = self.asked.remove(&over.tag);
            let asked = asked.unwrap_or_else(|| panic!("call {} completed twice: {:?}", over.tag, over.result));
            assert_eq!((asked.call, asked.aside), (over.id(), at >= mains));
            self.completed += 1;
            if !DAMAGED.get() {
                self.check(&asked, over);
            }
        }
        for endpoint in &mut self.endpoints {
            for event in events(endpoint) {
                let expected = matches!(event, SessionEvent::Connected(_) | SessionEvent::Disconnected(_));
                assert!(expected || DAMAGED.get(), "{event:?}");
            }
        }
        self.world.clock.advance(if busy { 2_000 } else { 200_000 });
    }

    fn check(&mut self, asked: &Asked, over: sinew_rpc::Completion) {
        let id = asked.id;
        let runs = RUNS.with_borrow(|runs| runs.get(&id).copied().unwrap_or(0));
        match over.result {
            Ok(()) => {
                assert!(over.response[..] == pattern(asked.response_len, id as u8)[..], "call {id} came back changed");
                assert!(asked.empty || runs == 1);
                let inner = RUNS.with_borrow(|runs| runs.get(&(id | 1 << 60)).copied());
                assert!(asked.kind != NESTED || inner == Some(1));
            }
            Err(error) => {
                match error.cause {
                    Cause::Cancelled => assert!(asked.cancelled),
                    Cause::DeadlinePassed => assert!(asked.has_deadline),
                    Cause::Disconnected => assert!(self.disconnected.contains(&asked.call.session())),
                    _ => panic!("call {id}: {error}"),
                }
                if error.execution != Execution::MayHaveRun {
                    self.not_run.push(id);
                }
            }
        }
    }

    /// Turns until `done`, while workers run and deferred calls are answered.
    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        // Thousands of packets, one at a time, half of which are lost, take a million turns.
        for _ in 0..5_000_000 {
            if done(self) {
                return;
            }
            self.turn();
            self.world.pool.run_all();
            answer_kept(usize::MAX);
        }
        let stats: Vec<_> = self.endpoints.iter().map(Rpc::stats).collect();
        panic!("{what} never: {} calls left; {stats:?}", self.asked.len());
    }

    fn heal(&mut self) {
        for handle in &self.faults {
            handle.heal();
        }
    }

    /// Asserts that no credit is missing: a message of more packets than there are credits uses exactly all credits.
    fn assert_all_credits_are_there(&mut self, case: &Case) {
        let credits = case.sides[..2].iter().map(|side| side.config.credits).min().unwrap();
        let packet = case.sides[..2].iter().map(|side| side.port.packet_len_max).min().unwrap();
        for session in self.sessions {
            // Sessions may still be opening.
            self.call(session, DISPATCH, &[], 0);
            self.turn_until("a call without faults completes", |run| run.asked.is_empty());
            let data = request_of(self.next_tag, packet * (usize::from(credits) + 1), 1);
            self.call(session, DISPATCH, &data, 1);
            self.world.network.start_tap();
            self.world.network.take_tapped();
            self.endpoints[0].turn();
            let sent = self.world.network.take_tapped();
            let requests = sent.iter().filter(|sent| parse(&sent.bytes).0.kind == Kind::Request).count();
            // Paced packets leave one by one.
            let is_paced = case.sides[0].config.congestion.is_some();
            assert!(is_paced || requests == usize::from(credits), "credits were lost or made: {requests} of {credits}");
            self.turn_until("a call without faults completes", |run| run.asked.is_empty());
        }
    }

    fn finish(mut self, case: &Case) {
        let damaged = case.faults.corrupt > 0.0;
        if !damaged {
            self.turn_until("all calls complete", |run| run.asked.is_empty());
            // Also the inner calls of cancelled calls.
            self.turn_until("all inner calls complete", |_| NESTING.with_borrow(HashMap::is_empty));
        }
        self.heal();
        if !damaged {
            // Packets that are still held back arrive now.
            (0..150).for_each(|_| self.turn());
            self.assert_all_credits_are_there(case);
        }
        for session in self.sessions {
            self.endpoints[0].disconnect(session);
            self.disconnected.push(session);
        }
        self.is_ending = !damaged;
        if let Some(inner) = INNER_SESSION.take() {
            self.endpoints[1].disconnect(inner);
        }
        // A connect that is still held back can bring a session to life for a moment.
        self.turn();
        self.turn_until("all sessions end", |run| run.endpoints.iter().all(|endpoint| endpoint.sessions() == 0));
        self.endpoints.iter().for_each(assert_nothing_is_left);
        assert!(self.asked.is_empty(), "calls without a session");
        RUNS.with_borrow(|runs| {
            assert!(runs.values().all(|&runs| runs == 1));
            for id in &self.not_run {
                assert!(!runs.contains_key(id), "call {id} ran, and its client was told that it had not");
            }
        });
    }
}

/// Lengths of messages, with packet sizes to match.
#[derive(Clone, Copy)]
enum Messages {
    /// Up to 200 KB, in packets of a network.
    Usual,
    /// Up to 8 MB, in large packets and so few that a case stays short.
    Long,
}

fn side(messages: Messages) -> impl Strategy<Value = Side> {
    let slots = prop::sample::select(vec![1u16, 2, 4, 8, 16, 64]);
    let (packets, arena_bytes) = match messages {
        Messages::Usual => (vec![124usize, 250, 600, 1472, 4096], 256 << 20),
        Messages::Long => (vec![16 << 10, 32 << 10, 60_000], 1 << 30),
    };
    let packets = prop::sample::select(packets);
    let copied = prop::sample::select(vec![24usize, 100, 512, 8192]);
    let credits = prop_oneof![1u16..4, 4u16..65];
    let recovery = prop_oneof![
        Just(Recovery::GoBackN),
        (1u8..5).prop_map(|packet_threshold| Recovery::Selective { packet_threshold })
    ];
    let timeout_us = prop_oneof![50u64..1_000, 1_000u64..10_000];
    let recovery = (recovery, timeout_us, prop_oneof![Just(Timeout::Fixed), Just(Timeout::Adaptive)]);
    (slots, credits, packets, copied, any::<[bool; 12]>(), recovery, 1usize..65).prop_map(
        move |(slots, credits, packet_len_max, copy_len_max, switches, (recovery, timeout_us, timeout), burst_max)| {
            let tuning = Tuning {
                preallocated_responses: switches[0],
                zero_copy_requests: switches[1],
                batched_clock: switches[2],
                cumulative_credits: switches[3],
                prefetch_sessions: switches[4],
                congestion_bypass: switches[8],
                pacing_bypass: switches[9],
            };
            let config = Config {
                slots,
                credits,
                tuning,
                recovery,
                retransmit_timeout_ns: timeout_us * 1_000,
                timeout,
                congestion: switches[10].then(|| congestion(switches[11])),
                preallocated_response_len: if switches[5] { 1472 } else { 16 },
                ..Config::default()
            };
            let port = LoopbackConfig {
                packet_len_max,
                copy_len_max,
                burst_max,
                holds_shares: switches[6],
                lends_tails: switches[7],
                arena_bytes,
                ..LoopbackConfig::default()
            };
            Side { config, port }
        },
    )
}

/// Parameters with which sessions are paced, although round trips take milliseconds, and still make progress.
fn congestion(by_window: bool) -> Congestion {
    let timely = TimelyConfig { rate_min_bytes_per_s: 125e6, ..TimelyConfig::default() };
    let swift = SwiftConfig { window_min: 1.0, ..SwiftConfig::default() };
    Congestion::new(10.0, if by_window { Algorithm::Swift(swift) } else { Algorithm::Timely(timely) })
}

const LONGEST: usize = 8 << 20;

fn len(messages: Messages) -> BoxedStrategy<usize> {
    match messages {
        Messages::Usual => {
            prop_oneof![6 => 0usize..100, 4 => 100usize..3_000, 2 => 3_000usize..30_000, 1 => 30_000usize..200_000]
                .boxed()
        }
        Messages::Long => {
            prop_oneof![4 => 0usize..100, 2 => 100usize..200_000, 2 => 200_000usize..LONGEST, 1 => Just(LONGEST)]
                .boxed()
        }
    }
}

/// A time-out in us; 0, for most calls, means none. The others range from less than a round trip to more than any call
/// takes.
fn timeout_us() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0u64), 1 => 1u64..100, 1 => 100u64..20_000, 1 => Just(100_000_000)]
}

fn step(messages: Messages) -> impl Strategy<Value = Step> {
    let calls = match messages {
        Messages::Usual => 20,
        Messages::Long => 8,
    };
    prop_oneof![
        calls => (0..2usize, 1..=KINDS, len(messages), len(messages), timeout_us(), any::<bool>()).prop_map(
            |(session, kind, request_len, response_len, timeout_us, aside)| {
                Step::Call { session, kind, request_len, response_len: response_len as u32, timeout_us, aside }
            }
        ),
        1 => Just(Step::Reopen),
        1 => (0..2usize).prop_map(|session| Step::Empty { session }),
        2 => (0..6u64).prop_map(|recent| Step::Cancel { recent }),
        1 => (0..2usize).prop_map(|session| Step::Reconnect { session }),
        3 => (1..5usize).prop_map(|kept| Step::Answer { kept }),
        2 => Just(Step::Work),
        12 => (1..40usize).prop_map(|turns| Step::Turn { turns }),
    ]
}

fn faults(corrupt: f64) -> impl Strategy<Value = Faults> {
    let probability = || prop_oneof![1 => Just(0.0), 2 => 0.0..0.05f64, 2 => 0.05..0.3f64];
    (probability(), probability(), probability(), probability(), 1u64..20, 1u64..20_000_000).prop_map(
        move |(drop, duplicate, reorder, delay, reorder_packets_max, delay_ns_max)| Faults {
            drop,
            duplicate,
            reorder,
            reorder_packets_max,
            reorder_ns_max: 200_000,
            delay,
            delay_ns_max,
            corrupt,
        },
    )
}

fn case(messages: Messages, corrupt: f64) -> impl Strategy<Value = Case> {
    let latency = prop::sample::select(vec![0u64, 1_000, 300_000]);
    let steps = match messages {
        Messages::Usual => 1..80,
        Messages::Long => 1..20,
    };
    let steps = prop::collection::vec(step(messages), steps);
    (any::<u64>(), [(); 3].map(|()| side(messages)), faults(corrupt), latency, steps)
        .prop_map(|(seed, sides, faults, latency_ns, steps)| Case { seed, sides, faults, latency_ns, steps })
}

fn run(case: &Case) {
    let mut run = Run::new(case);
    for step in &case.steps {
        run.step(step);
    }
    run.finish(case);
}

/// Runs as many cases as `PROPTEST_CASES` asks for, by default 100, divided by `part` for tests that take longer.
fn cases(part: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(100u32).div_ceil(part);
    ProptestConfig { cases, failure_persistence: None, max_shrink_time: 120_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(1))]

    #[test]
    fn calls_run_at_most_once_complete_exactly_once_and_leave_nothing(case in case(Messages::Usual, 0.0)) {
        run(&case);
    }

    #[test]
    fn damaged_packets_cause_no_panic_and_no_second_completion(case in case(Messages::Usual, 0.05)) {
        run(&case);
    }
}

proptest! {
    #![proptest_config(cases(5))]

    #[test]
    fn calls_of_up_to_eight_megabytes_run_at_most_once_and_complete_exactly_once(case in case(Messages::Long, 0.0)) {
        run(&case);
    }
}

/// All sides with default settings, on this kind of port.
fn plain(port: LoopbackConfig) -> [Side; 3] {
    [(); 3].map(|()| Side { config: Config::default(), port })
}

#[test]
fn eight_megabytes_survive_loss_duplication_and_reordering() {
    let faults = Faults { drop: 0.01, duplicate: 0.01, reorder: 0.01, ..Faults::NONE };
    for holds_shares in [false, true] {
        let port = LoopbackConfig { packet_len_max: 4096, holds_shares, ..LoopbackConfig::default() };
        let case = Case { seed: 5, sides: plain(port), faults, latency_ns: 1_000, steps: Vec::new() };
        let mut run = Run::new(&case);
        for kind in [DISPATCH, NESTED] {
            run.step(&Step::plain(kind, 8 << 20, 8 << 20));
        }
        run.turn_until("both complete", |run| run.asked.is_empty());
        run.finish(&case);
    }
}

#[test]
fn an_inner_call_that_begins_after_its_client_gave_up_ends_with_its_session() {
    let port = LoopbackConfig { packet_len_max: 124, burst_max: 1, ..LoopbackConfig::default() };
    // Packets that are taken for lost too early make the inner call long.
    let tuning = Tuning { cumulative_credits: false, ..Tuning::default() };
    let timeout = Timeout::Fixed;
    let config = Config {
        credits: 1,
        slots: 1,
        recovery: Recovery::GoBackN,
        retransmit_timeout_ns: 50_000,
        timeout,
        tuning,
        ..Config::default()
    };
    let sides = [(); 3].map(|()| Side { config: config.clone(), port });
    let case = Case { seed: 1, sides, faults: Faults::NONE, latency_ns: 300_000, steps: Vec::new() };
    let mut run = Run::new(&case);
    run.step(&Step::Turn { turns: 12 });
    let (kind, timeout_us) = (NESTED, 1);
    run.step(&Step::Call { session: 0, kind, request_len: 0, response_len: 2601, timeout_us, aside: false });
    run.finish(&case);
}

#[test]
fn an_arena_that_hardly_suffices_never_runs_dry() {
    // Buffers of one size, so that each fits where another was: even one leaked buffer per round would soon be missed.
    let faults = Faults { drop: 0.1, duplicate: 0.1, reorder: 0.1, ..Faults::NONE };
    for holds_shares in [false, true] {
        let port =
            LoopbackConfig { packet_len_max: 600, holds_shares, arena_bytes: 1 << 20, ..LoopbackConfig::default() };
        let case = Case { seed: 11, sides: plain(port), faults, latency_ns: 0, steps: Vec::new() };
        let mut run = Run::new(&case);
        for round in 0..400u64 {
            for kind in 1..=KINDS {
                run.step(&Step::plain(kind, 10_000, 10_012));
            }
            match round % 8 {
                3 => (0..6).for_each(|recent| run.step(&Step::Cancel { recent })),
                5 => run.step(&Step::Reconnect { session: 0 }),
                _ => {}
            }
            run.turn_until("a round completes", |run| run.asked.is_empty());
        }
        run.finish(&case);
    }
}
