//! Endpoints that open sessions with each other in any order, call each other in both directions, dismiss and
//! disconnect, vanish and come back, over a network that loses, duplicates and reorders packets. Whatever happened,
//! once the network is calm both sides of each session know of each other, every call has ended once, and nothing is
//! left of what ended.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::*;
use sinew_fabric::SeededGenerator;
use sinew_fabric::fault::{FaultConfig, FaultHandle, Faults, Faulty};
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{
    CallId, CallOptions, ClientEvent, ClientId, Config, ConnectOptions, LaneId, Rpc, SessionEvent, SessionId,
};

const MS: u64 = 1_000_000;
const NAMES: [&str; 3] = ["a", "b", "c"];

type Port = Faulty<TestPort>;

/// State of a session, as reported to its opener.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Opening,
    Open,
    Over,
}

/// An endpoint, and what it has reported.
struct Party {
    /// `None` only while it restarts.
    endpoint: Option<Endpoint<Port>>,
    faults: FaultHandle,
    sessions: BTreeMap<SessionId, State>,
    clients: BTreeSet<ClientId>,
    gone: BTreeSet<ClientId>,
    /// Calls of the main lane that are under way.
    calls: BTreeSet<CallId>,
    lane: LaneId,
}

impl Party {
    /// Sessions that it opened and whose end it has not heard of.
    fn live_sessions(&self) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, state)| **state != State::Over).map(|(session, _)| *session).collect()
    }

    /// Sessions over which it can call its clients.
    fn sessions_to_clients(&self) -> Vec<SessionId> {
        let endpoint = self.endpoint.as_ref().expect("it restarts at once");
        self.clients.iter().filter_map(|&client| endpoint.session_to(client).ok()).collect()
    }

    /// Takes all completions and events, and checks them.
    fn take_events(&mut self, seed: u64) {
        let endpoint = self.endpoint.as_mut().expect("it restarts at once");
        while let Some(over) = endpoint.poll_completion() {
            assert!(self.calls.remove(&over.id()), "seed {seed}: {over:?}");
        }
        while let Some(over) = endpoint.poll_lane(self.lane) {
            drop(over);
        }
        let mut session_events = events(endpoint);
        session_events.extend(std::iter::from_fn(|| endpoint.poll_lane_event(self.lane)));
        for event in session_events {
            let state = self.sessions.get_mut(&event.session()).unwrap();
            *state = match (*state, &event) {
                (State::Opening, SessionEvent::Connected(_)) => State::Open,
                (State::Opening, SessionEvent::ConnectFailed { .. } | SessionEvent::Disconnected(_)) => State::Over,
                (State::Open, SessionEvent::Lost { .. } | SessionEvent::Disconnected(_)) => State::Over,
                other => panic!("seed {seed}: {other:?}"),
            };
        }
        while let Some(event) = endpoint.poll_client_event() {
            let is_first = match event {
                ClientEvent::Came(client) => !self.gone.contains(&client) && self.clients.insert(client),
                ClientEvent::Left { client, .. } => self.clients.remove(&client) && self.gone.insert(client),
            };
            assert!(is_first, "seed {seed}: {event:?}");
        }
    }
}

struct Run {
    seed: u64,
    world: World,
    random: SeededGenerator,
    config: Config,
    port: LoopbackConfig,
    faults: Faults,
    parties: Vec<Party>,
    starts: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = SeededGenerator::new(seed);
        let config = Config {
            client_events: true,
            peer_share_percent: [50, 100, 30][random.below(3) as usize],
            credits: [1, 4, 32][random.below(3) as usize],
            slots: [1, 2, 8][random.below(3) as usize],
            sessions_max: [4, 7, 1000][random.below(3) as usize],
            ..Config::default()
        };
        let port = LoopbackConfig {
            packet_len_max: 200,
            receive_packets: [40, 64, 512][random.below(3) as usize],
            ..LoopbackConfig::default()
        };
        let faults = match random.below(3) {
            0 => Faults::NONE,
            1 => Faults {
                drop: 0.1,
                duplicate: 0.1,
                reorder: 0.2,
                reorder_packets_max: 10,
                reorder_ns_max: 50 * MS,
                ..Faults::NONE
            },
            _ => Faults {
                drop: 0.4,
                duplicate: 0.2,
                reorder: 0.3,
                reorder_packets_max: 30,
                reorder_ns_max: 900 * MS,
                delay: 0.05,
                delay_ns_max: 2000 * MS,
                ..Faults::NONE
            },
        };
        let mut run = Self { seed, world: World::new(), random, config, port, faults, parties: Vec::new(), starts: 0 };
        for at in 0..NAMES.len() {
            let party = run.start(at);
            run.parties.push(party);
        }
        run
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn start(&mut self, at: usize) -> Party {
        self.starts += 1;
        let seed = self.seed * 1000 + self.starts;
        let nexus = server_nexus(Arc::clone(&self.world.pool), self.config.clone());
        let port =
            Faulty::new(self.world.port(NAMES[at], self.port), FaultConfig { tx: self.faults, rx: Faults::NONE }, seed);
        let faults = port.handle();
        let mut endpoint = Rpc::new(&nexus, port, self.world.clock.clone(), Box::new(SeededGenerator::new(!seed)));
        let lane = endpoint.open_lane();
        Party {
            endpoint: Some(endpoint),
            faults,
            sessions: BTreeMap::new(),
            clients: BTreeSet::new(),
            gone: BTreeSet::new(),
            calls: BTreeSet::new(),
            lane,
        }
    }

    fn pick<T: Copy>(&mut self, of: Vec<T>) -> Option<T> {
        let at = self.below(of.len().max(1) as u64) as usize;
        of.get(at).copied()
    }

    fn endpoint(&mut self, at: usize) -> &mut Endpoint<Port> {
        self.parties[at].endpoint.as_mut().expect("it restarts at once")
    }

    /// Takes a random step.
    fn step(&mut self) {
        let at = self.below(3) as usize;
        match self.below(22) {
            0..=2 => self.connect(at),
            3 => {
                let sessions = self.parties[at].live_sessions();
                if let Some(session) = self.pick(sessions) {
                    self.endpoint(at).disconnect(session);
                }
            }
            4 => self.dismiss(at),
            5..=10 => self.call(at),
            11 => _ = answer_kept(),
            12 => drop(take_kept()),
            13 => {
                let up = self.below(2) == 0;
                self.world.network.set_link(NAMES[at], NAMES[(at + 1) % 3], up);
            }
            14 if self.below(4) == 0 => self.restart(at),
            15 => {
                let lane = self.parties[at].lane;
                assert!(self.endpoint(at).close_lane(lane));
                self.parties[at].lane = self.endpoint(at).open_lane();
            }
            16 => {
                for _ in 0..self.below(3) * self.below(30) {
                    self.world.clock.advance(100 * MS);
                    self.turn();
                }
            }
            _ => {
                self.turn();
                self.world.clock.advance(MS);
            }
        }
    }

    fn connect(&mut self, at: usize) {
        let to = (at + 1 + self.below(2) as usize) % 3;
        let address = self.endpoint(to).address();
        let mut options = ConnectOptions::new().call_back([0, 1, 4, 100][self.below(4) as usize]);
        if self.below(4) == 0 {
            options = options.lane(self.parties[at].lane);
        }
        // It may be at its limit of sessions.
        if let Ok(session) = self.endpoint(at).begin_connect_with(&address, options) {
            assert!(self.parties[at].sessions.insert(session, State::Opening).is_none());
        }
    }

    fn dismiss(&mut self, at: usize) {
        let by_session = self.below(2) == 0;
        let clients = self.parties[at].clients.iter().copied().collect();
        let Some(client) = self.pick(clients) else { return };
        let endpoint = self.endpoint(at);
        match endpoint.session_to(client) {
            Ok(session) if by_session => endpoint.disconnect(session),
            _ => endpoint.dismiss(client),
        };
    }

    fn call(&mut self, at: usize) {
        let party = &self.parties[at];
        let sessions = party.live_sessions().into_iter().chain(party.sessions_to_clients()).collect();
        let Some(session) = self.pick(sessions) else { return };
        let kind = [ECHO, DEFER, LONG, DROP, ECHO, BURST][self.below(6) as usize];
        let (len, response_len) = (self.below(1500) as usize + 4, self.below(3000) as u32);
        let is_aside = self.below(3) == 0;
        let mut options = CallOptions::tag(7).lane(if is_aside { self.parties[at].lane } else { LaneId::MAIN });
        if self.below(2) == 0 {
            options = options.timeout_ns((25 + self.below(25)) * MS);
        }
        let is_cancelled = self.below(6) == 0;
        let endpoint = self.endpoint(at);
        let (mut request, response) = (endpoint.alloc(len).unwrap(), endpoint.alloc(10).unwrap());
        request[..4].copy_from_slice(&response_len.to_le_bytes());
        let Ok(call) = endpoint.enqueue_request(session, kind, request, response, options) else { return };
        if is_cancelled {
            endpoint.cancel(call);
        }
        if !is_aside {
            assert!(self.parties[at].calls.insert(call));
        }
    }

    /// Ends an endpoint, with or without telling its peers, and starts another in its place.
    fn restart(&mut self, at: usize) {
        let is_silent = self.below(2) == 0;
        for other in [(at + 1) % 3, (at + 2) % 3] {
            self.world.network.set_link(NAMES[at], NAMES[other], !is_silent);
        }
        drop(self.parties[at].endpoint.take());
        for other in [(at + 1) % 3, (at + 2) % 3] {
            self.world.network.set_link(NAMES[at], NAMES[other], true);
        }
        self.parties[at] = self.start(at);
    }

    fn turn(&mut self) {
        for at in 0..NAMES.len() {
            self.endpoint(at).turn();
            self.parties[at].take_events(self.seed);
        }
    }

    /// Lets everything through for half a minute: after that, all calls are over.
    fn calm(&mut self) {
        for at in 0..NAMES.len() {
            self.parties[at].faults.heal();
            self.world.network.set_link(NAMES[at], NAMES[(at + 1) % 3], true);
        }
        for _ in 0..3000 {
            self.world.clock.advance(10 * MS);
            answer_kept();
            self.turn();
        }
        for party in &self.parties {
            assert!(party.calls.is_empty(), "seed {}: {:?} never end", self.seed, party.calls);
        }
    }

    fn check(mut self) {
        let seed = self.seed;
        self.calm();
        // Every session that is open answers, in both directions.
        for at in 0..NAMES.len() {
            let party = &self.parties[at];
            for session in party.live_sessions().into_iter().chain(party.sessions_to_clients()) {
                // Except those of a closed lane, whose end nobody heard.
                let Some(credits) = self.endpoint(at).session_credits(session) else { continue };
                assert_eq!(credits.left, credits.all, "seed {seed}");
                let call = send(self.endpoint(at), session, ECHO, b"there?", 1);
                self.parties[at].calls.insert(call);
            }
        }
        self.calm();
        // Both sides know of each session, in both directions.
        let sessions: usize = (0..NAMES.len()).map(|at| self.endpoint(at).sessions()).sum();
        let clients: usize =
            self.parties.iter().map(|party| party.clients.len() + party.sessions_to_clients().len()).sum();
        assert_eq!(sessions, 2 * clients, "seed {seed}");
        for at in 0..NAMES.len() {
            for session in self.parties[at].live_sessions() {
                self.endpoint(at).disconnect(session);
            }
        }
        self.calm();
        for at in 0..NAMES.len() {
            assert_nothing_is_left(self.endpoint(at));
            assert!(self.parties[at].clients.is_empty(), "seed {seed}");
        }
    }
}

/// Runs a history drawn from `seed`.
fn history(seed: u64) {
    drop(take_kept());
    let mut run = Run::new(seed);
    for _ in 0..150 + run.below(300) {
        run.step();
    }
    run.check();
}

#[test]
fn both_sides_of_a_session_know_of_each_other_once_it_is_calm() {
    (0..300).for_each(history);
}
