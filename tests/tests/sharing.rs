//! Client libraries that share one endpoint and one thread: those of two caches and of a sequencer, with calls of all
//! in flight at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use sinew::kv::cache::protocol::{PutOptions, Response};
use sinew::kv::cache::{ClientConfig, Connecting, Pipeline, REQUESTS, Service};
use sinew::rpc::{Config, Endpoint, Nexus, Rpc, SessionEvent, SharedEndpoint};
use sinew::sequencer::rpc::{NEXT, RpcClient, handler};
use sinew::sequencer::{Client, Epoch, Sequence};
use sinew::store::cache::CacheConfig;
use sinew_fabric::loopback::{LoopbackPort, Network};
use sinew_fabric::{ManualClock, SeededGenerator};

type Loopback = Rpc<LoopbackPort, ManualClock>;
type Share = SharedEndpoint<Loopback>;

const STEP_NS: u64 = 20_000;
const PATIENCE_STEPS: usize = 100_000;
const WINDOW: usize = 8;

/// Two caches and a sequencer, and an endpoint that is shared by clients of all three.
struct World {
    clock: ManualClock,
    servers: [Loopback; 2],
    shared: Share,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        let network = Network::new(clock.clone());
        let sequence = Arc::new(Sequence::new(1, Epoch(1), 100));
        let open = |name: &str, nexus: &Nexus, seed| {
            Rpc::new(nexus, network.port(name).unwrap(), clock.clone(), Box::new(SeededGenerator::new(seed)))
        };
        let servers = ["first", "second"].map(|name| {
            let config = CacheConfig { items: 1024, memory_bytes: 4 << 20, ..CacheConfig::default() };
            let service = Service::new(1, &config).unwrap();
            let config = Config { message_len_max: service.message_len_max() as u32, ..Config::default() };
            let nexus = Nexus::builder()
                .config(config)
                .handle_burst_with(REQUESTS, move |endpoint| service.handler(endpoint))
                .handle_burst(NEXT, handler(Arc::clone(&sequence)))
                .build();
            open(name, &nexus.unwrap(), 1)
        });
        let config = Config { message_len_max: 4 << 20, ..Config::default() };
        let client = open("client", &Nexus::builder().config(config).build().unwrap(), 2);
        Self { clock, servers, shared: SharedEndpoint::new(client) }
    }

    /// Turns the endpoint once, for all its clients, and the servers.
    fn turn(&mut self) {
        self.shared.turn();
        self.servers.iter_mut().for_each(|server| _ = server.turn());
        self.clock.advance(STEP_NS);
    }

    fn cache_client(&mut self, server: usize) -> Pipeline<Share> {
        let addresses = [self.servers[server].address().to_string()];
        let config = ClientConfig { window: WINDOW, ..ClientConfig::default() };
        let mut connecting = Connecting::begin(self.shared.share(), addresses, config).unwrap();
        for _ in 0..PATIENCE_STEPS {
            if connecting.poll().unwrap() {
                return connecting.finish().unwrap();
            }
            self.turn();
        }
        panic!("no connection");
    }

    fn sequencer_client(&mut self) -> RpcClient<Share> {
        let mut share = self.shared.share();
        let session = share.begin_connect(&self.servers[0].address()).unwrap();
        for _ in 0..PATIENCE_STEPS {
            self.turn();
            if let Some(event) = share.poll_event() {
                assert!(matches!(event, SessionEvent::Connected(id) if id == session), "{event:?}");
                return RpcClient::new(share, session, WINDOW, None).unwrap();
            }
        }
        panic!("no session");
    }
}

/// Takes a client's answers, by tag, and whether each is right. Then puts the client's value under further keys, and
/// gets it again.
fn step_cache(client: &mut Pipeline<Share>, value: &[u8], asked: &mut u64, calls: u64) -> BTreeMap<u64, bool> {
    let mut answers = BTreeMap::new();
    while let Some(answer) = client.poll() {
        let is_right = match answer.response.unwrap() {
            Response::Stored { .. } => answer.tag % 2 == 0,
            Response::Value(found) => answer.tag % 2 == 1 && found == value,
            _ => false,
        };
        assert_eq!(answers.insert(answer.tag, is_right), None);
    }
    while *asked < calls && client.in_flight() < client.window() {
        // A get waits for its put, which it could overtake.
        let key = format!("key {}", *asked / 2);
        match *asked % 2 {
            0 => client.put(key.as_bytes(), value, PutOptions::default(), *asked).unwrap(),
            _ if client.in_flight() > 0 => break,
            _ => client.get(key.as_bytes(), *asked).unwrap(),
        };
        *asked += 1;
    }
    answers
}

#[test]
fn two_caches_and_a_sequencer_are_called_over_one_endpoint_and_each_client_has_its_own_answers() {
    const CALLS: u64 = 400;
    let mut world = World::new();
    let mut caches = [0, 1, 1].map(|server| (world.cache_client(server), 0, BTreeMap::new()));
    let mut sequencer = world.sequencer_client();
    // The last two clients use the same cache, with the same value.
    let values = [&b"of the first"[..], b"of the second", b"of the second"];
    let (mut numbers, mut asked, mut together) = (Vec::new(), 0, 0);
    for _ in 0..PATIENCE_STEPS {
        for ((client, asked, answers), value) in caches.iter_mut().zip(values) {
            answers.extend(step_cache(client, value, asked, CALLS));
        }
        while let Some(answer) = sequencer.answer() {
            numbers.push((answer.tag, answer.result.unwrap()));
        }
        while asked < CALLS && sequencer.in_flight() < WINDOW {
            // The counts differ, so that another request's answer would not fit.
            sequencer.request(asked, asked as u32 % 7 + 1).unwrap();
            asked += 1;
        }
        let under_way = caches.iter().filter(|(client, ..)| client.in_flight() > 0).count();
        together += u64::from(under_way == 3 && sequencer.in_flight() > 0);
        world.turn();
        if numbers.len() as u64 == CALLS && caches.iter().all(|(.., answers)| answers.len() as u64 == CALLS) {
            break;
        }
    }
    assert!(together > 20, "calls of all were under way at once {together} times");
    for (_, _, answers) in &caches {
        assert!(answers.len() as u64 == CALLS && answers.values().all(|is_right| *is_right));
    }
    numbers.sort_by_key(|(tag, _)| *tag);
    let counts = numbers.iter().map(|(tag, numbers)| (*tag, numbers.count));
    assert_eq!(counts.collect::<Vec<_>>(), (0..CALLS).map(|tag| (tag, tag as u32 % 7 + 1)).collect::<Vec<_>>());
}

#[test]
fn a_client_that_is_dropped_ends_its_sessions_and_the_others_go_on() {
    let mut world = World::new();
    let (mut going, mut staying) = (world.cache_client(0), world.cache_client(0));
    let mut sequencer = world.sequencer_client();
    going.put(b"key", b"gone", PutOptions::default(), 1).unwrap();
    staying.put(b"other", b"value", PutOptions::default(), 2).unwrap();
    sequencer.request(3, 1).unwrap();
    assert_eq!(world.shared.sessions(), 3);
    drop(going);
    let (mut stored, mut number) = (None, None);
    for _ in 0..100 {
        world.turn();
        stored = staying.poll().map(|answer| (answer.tag, answer.response.is_ok())).or(stored);
        number = sequencer.answer().map(|answer| (answer.tag, answer.result.is_ok())).or(number);
    }
    assert_eq!((stored, number), (Some((2, true)), Some((3, true))));
    assert_eq!((world.shared.sessions(), world.servers[0].sessions()), (2, 2));
}
