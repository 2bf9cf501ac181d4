//! A host's program: it serves whoever asks, and asks others.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::{Address, Clock, Generator, SeededGenerator};
use sinew_mem::MessageBuffer;
use sinew_rpc::{
    Call, CallId, CallOptions, ClientEvent, ClientId, ConnectOptions, Nexus, RequestType, Rpc, SessionEvent, SessionId,
};
use sinew_sim::{Actor, Doing, SimClock, SimPort};

use super::ledger::Shared;
use super::recovery::{Recovery, Trial};
use super::scenario::{self, Scenario};
use crate::programs::{Endpoint, turn};

const WORK: RequestType = RequestType::new(1);
const BURST: RequestType = RequestType::new(2);
/// A request begins with the call's number and the length of the answer.
const HEAD_LEN: usize = 12;
/// A member looks after its sessions, and makes calls, so often.
const LOOK_NS: u64 = 1_000_000;
/// It waits so long before it opens a session anew.
const AGAIN_NS: u64 = 5_000_000;

/// What the swarm wants of a member, and what it knows of it.
#[derive(Debug, Default)]
pub struct Orders {
    pub begins_no_more: bool,
    pub last_calls: u32,
    /// How rates recover, once the member is to show that they do.
    pub recovery: Option<Recovery>,
    pub has_recovered: bool,
    pub closes: bool,
    pub ends: bool,
    pub has_ended: bool,
    sessions: usize,
    committed_packets: u64,
    has_looked: bool,
}

impl Orders {
    /// Whether the member has closed its sessions, others have closed theirs to it, and nothing of them is left.
    pub fn is_empty(&self) -> bool {
        self.has_looked && self.sessions == 0 && self.committed_packets == 0
    }

    /// For people: what is left.
    pub fn left(&self) -> String {
        format!("has {} sessions and {} committed packets", self.sessions, self.committed_packets)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From this time on it may be opened.
    Closed(u64),
    Opening(SessionId),
    Open(SessionId),
}

/// See the module.
pub struct Member {
    rpc: Endpoint,
    /// The host's, which goes wrong.
    clock: SimClock,
    /// The cluster's.
    time: SimClock,
    host: usize,
    window: usize,
    len_max: usize,
    /// To each other host.
    ways: Vec<Way>,
    generator: SeededGenerator,
    /// Calls that are not over.
    calls: usize,
    impatience: f64,
    calls_back: f64,
    /// Clients that are there.
    clients: Vec<ClientId>,
    /// Calls that will be cancelled, over or not.
    doomed: Vec<CallId>,
    /// When it next looks after its sessions, and makes calls.
    look_ns: u64,
    is_closing: bool,
    /// Of the way whose rate is to recover.
    trial: Option<Trial>,
    /// Those before it have recovered.
    next_trial: usize,
    ledger: Shared,
    orders: Rc<RefCell<Orders>>,
}

/// The byte at a place of the answer to a call, or of its request.
fn content(call: u64, at: usize) -> u8 {
    (call as u8).wrapping_mul(31).wrapping_add(at as u8).wrapping_add((at >> 8) as u8)
}

/// Runs a request, and gives the answer.
fn answer(request: &[u8], client: ClientId, host: usize, ledger: &Shared) -> Vec<u8> {
    let number = |range: std::ops::Range<usize>| {
        request
            .get(range)
            .map_or(0, |bytes| bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let (call, len) = (number(0..8), number(8..HEAD_LEN) as usize);
    let mut ledger = ledger.lock();
    ledger.run(call, host, client);
    let same = request.iter().enumerate().skip(HEAD_LEN).all(|(at, byte)| *byte == content(call, at));
    if !same || request.len() < HEAD_LEN {
        ledger.wrong.get_or_insert_with(|| format!("the request of call {call} arrived changed"));
    }
    (0..len).map(|at| content(call, at)).collect()
}

impl Member {
    pub fn new(
        scenario: &Scenario,
        host: usize,
        port: SimPort,
        seed: u64,
        ledger: Shared,
        orders: Rc<RefCell<Orders>>,
    ) -> Self {
        let mut generator = SeededGenerator::new(seed);
        let time = port.network().clock();
        // Far worse than hosts' clocks are.
        let clock = time.drifting(generator.below(2_001) as i32 - 1_000);
        let nexus = nexus(scenario, host, &ledger);
        let rpc = Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(generator.next_u64())));
        let ways = vec![Way::Closed(0); scenario.hosts()];
        let (window, len_max) = (scenario.window, scenario.len_max);
        Self {
            rpc,
            clock,
            time,
            host,
            window,
            len_max,
            ways,
            generator,
            calls: 0,
            impatience: scenario.impatience,
            calls_back: scenario.calls_back,
            clients: Vec::new(),
            doomed: Vec::new(),
            look_ns: 0,
            is_closing: false,
            trial: None,
            next_trial: 0,
            ledger,
            orders,
        }
    }

    fn see_events(&mut self) {
        let now_ns = self.clock.now_ns();
        while let Some(event) = self.rpc.poll_event() {
            let (session, opened) = (event.session(), matches!(event, SessionEvent::Connected(_)));
            let of_it = |way: &&mut Way| matches!(way, Way::Opening(id) | Way::Open(id) if *id == session);
            if let Some(way) = self.ways.iter_mut().find(of_it) {
                *way = if opened { Way::Open(session) } else { Way::Closed(now_ns + AGAIN_NS) };
            }
        }
        while let Some(event) = self.rpc.poll_client_event() {
            match event {
                ClientEvent::Came(client) => self.clients.push(client),
                ClientEvent::Left { client, .. } => self.clients.retain(|known| *known != client),
            }
        }
    }

    fn see_completions(&mut self) {
        while let Some(over) = self.rpc.poll_completion() {
            self.calls -= 1;
            let call = over.tag;
            let result =
                over.result.map(|()| over.response.iter().enumerate().all(|(at, byte)| *byte == content(call, at)));
            self.ledger.lock().complete(call, result.map_err(|error| (error.cause, error.execution)));
        }
    }

    fn open_ways(&mut self) {
        let now_ns = self.clock.now_ns();
        for host in (0..self.ways.len()).filter(|host| *host != self.host) {
            let Way::Closed(from_ns) = self.ways[host] else { continue };
            let address: Address = format!("sim://{}", scenario::name(host)).parse().expect("an address");
            if now_ns >= from_ns {
                // A host that has just crashed has no name for a moment.
                let credits = if self.calls_back > 0.0 { self.rpc.config().credits } else { 0 };
                let options = ConnectOptions::new().call_back(credits);
                self.ways[host] = match self.rpc.begin_connect_with(&address, options) {
                    Ok(session) => Way::Opening(session),
                    Err(_) => Way::Closed(now_ns + AGAIN_NS),
                };
            }
        }
    }

    /// Makes a call to one of the others, if there is a way.
    fn call(&mut self, may_be_impatient: bool) -> bool {
        let first = self.generator.below(self.ways.len() as u64) as usize;
        let hosts = self.ways.len();
        let way = (first..first + hosts).map(|host| host % hosts).find_map(|host| match self.ways[host] {
            Way::Open(session) => Some((host, session)),
            _ => None,
        });
        let back = if self.generator.chance(self.calls_back) { self.way_back() } else { None };
        let Some((server, session)) = back.or(way) else { return false };
        let len = |generator: &mut SeededGenerator, max: usize| {
            let most = if generator.chance(0.7) { max.min(60) } else { max };
            generator.below(most as u64 + 1) as usize
        };
        let lens = (HEAD_LEN + len(&mut self.generator, self.len_max), len(&mut self.generator, self.len_max));
        self.call_to(server, session, lens, may_be_impatient)
    }

    /// One of the clients, and the session over which it is called.
    fn way_back(&mut self) -> Option<(usize, SessionId)> {
        let drawn = self.generator.below(self.clients.len().max(1) as u64) as usize;
        let client = *self.clients.get(drawn)?;
        // It may have called nobody yet, or have gone in this turn.
        Some((self.ledger.lock().host_of(self.host, client)?, self.rpc.session_to(client).ok()?))
    }

    fn call_to(
        &mut self,
        server: usize,
        session: SessionId,
        (request_len, answer_len): (usize, usize),
        may_be_impatient: bool,
    ) -> bool {
        let buffers = (self.rpc.alloc(request_len), self.rpc.alloc(answer_len.min(100)));
        let (Ok(mut request), Ok(response)) = buffers else {
            self.ledger.lock().wrong.get_or_insert_with(|| "the arena is used up".to_owned());
            return false;
        };
        let is_impatient = may_be_impatient && self.generator.chance(self.impatience);
        let call = self.ledger.lock().begin(self.host, server, is_impatient);
        let mut options = CallOptions::tag(call);
        let is_doomed = is_impatient && self.generator.chance(0.3);
        if is_impatient && !is_doomed {
            // From less than a round trip to longer than most faults.
            options = options.timeout_ns(1 << (10 + self.generator.below(17)));
        }
        write_request(&mut request, call, answer_len as u32);
        let kind = if self.generator.chance(0.5) { WORK } else { BURST };
        self.calls += 1;
        match self.rpc.enqueue_request(session, kind, request, response, options) {
            Ok(name) if is_doomed => self.doomed.push(name),
            Ok(_) => {}
            Err(rejected) => {
                let error = rejected.error;
                self.ledger.lock().wrong.get_or_insert_with(|| format!("call {call} is rejected: {error}"));
            }
        }
        true
    }

    /// Cancels what is to be cancelled, about half of it.
    fn cancel_some(&mut self) {
        for call in std::mem::take(&mut self.doomed) {
            if self.generator.chance(0.5) {
                self.rpc.cancel(call);
            } else {
                self.doomed.push(call);
            }
        }
    }

    fn make_calls(&mut self) {
        let orders = Rc::clone(&self.orders);
        let mut orders = orders.borrow_mut();
        while self.calls < self.window {
            if orders.begins_no_more && orders.last_calls == 0 {
                return;
            }
            if !self.call(!orders.begins_no_more) {
                return;
            }
            orders.last_calls = orders.last_calls.saturating_sub(u32::from(orders.begins_no_more));
        }
    }

    /// Calls on one session after another, one call at a time, and sees that congestion control lets them go.
    fn recover(&mut self, recovery: &Recovery) {
        while self.calls == 0 && self.next_trial < self.ways.len() {
            let Way::Open(session) = self.ways[self.next_trial] else {
                self.trial = None;
                self.next_trial += 1;
                continue;
            };
            let limits = (self.rpc.session_rate(session), self.rpc.session_credits(session));
            let (Some(rate), Some(credits)) = limits else { return };
            let now_ns = self.clock.now_ns();
            let trial = self.trial.get_or_insert_with(|| Trial::new(rate, now_ns));
            let is_over = match trial.judge(rate, credits.withheld, now_ns, recovery) {
                Ok(is_over) => is_over,
                Err(what) => {
                    self.ledger.lock().wrong.get_or_insert(what);
                    return;
                }
            };
            if is_over {
                self.trial = None;
                self.next_trial += 1;
            } else if !self.call_to(self.next_trial, session, (HEAD_LEN, 0), false) {
                return;
            }
        }
        self.orders.borrow_mut().has_recovered |= self.next_trial == self.ways.len();
    }

    /// No call is left: sessions have their credits back, and are closed. Says whether they are: calls that were given up keep some for a while.
    fn close_ways(&mut self) -> bool {
        let of_clients: Vec<_> = self.clients.iter().filter_map(|client| self.rpc.session_to(*client).ok()).collect();
        let ours = self.ways.iter().filter_map(|way| match way {
            Way::Opening(session) | Way::Open(session) => Some(*session),
            Way::Closed(_) => None,
        });
        let ours: Vec<_> = ours.collect();
        let all = ours.iter().chain(&of_clients).filter_map(|session| self.rpc.session_credits(*session));
        let all: Vec<_> = all.collect();
        if let Some(credits) = all.iter().find(|credits| credits.left + credits.owed != credits.all) {
            let what = || format!("a session without a call has {credits:?}");
            self.ledger.lock().wrong.get_or_insert_with(what);
        }
        if all.iter().any(|credits| credits.owed > 0) {
            return false;
        }
        for session in ours {
            self.rpc.disconnect(session);
        }
        true
    }
}

fn write_request(request: &mut MessageBuffer, call: u64, answer_len: u32) {
    for (at, byte) in request.iter_mut().enumerate() {
        *byte = content(call, at);
    }
    request[..8].copy_from_slice(&call.to_le_bytes());
    request[8..HEAD_LEN].copy_from_slice(&answer_len.to_le_bytes());
}

fn nexus(scenario: &Scenario, host: usize, ledger: &Shared) -> Nexus {
    let (one_by_one, in_bursts) = (ledger.clone(), ledger.clone());
    Nexus::builder()
        .config(scenario.config.clone())
        .handle(WORK, move |call: Call| {
            let response = answer(call.request(), call.client(), host, &one_by_one);
            call.reply(&response);
        })
        .handle_burst(BURST, move |calls| {
            for index in 0..calls.len() {
                let response = answer(calls.request(index), calls.client(index), host, &in_bursts);
                calls.reply(index, &response);
            }
        })
        .build()
        .expect("scenarios are drawn with sense")
}

impl Actor for Member {
    fn turn(&mut self) -> Doing {
        let now_ns = self.clock.now_ns();
        self.see_events();
        self.see_completions();
        let (closes, recovery) = (self.orders.borrow().closes, self.orders.borrow().recovery);
        if let Some(recovery) = recovery {
            self.recover(&recovery);
        }
        if closes && !self.is_closing {
            self.is_closing = self.close_ways();
        }
        if now_ns >= self.look_ns {
            self.look_ns = now_ns + LOOK_NS;
            self.cancel_some();
            if !closes {
                self.open_ways();
                self.make_calls();
            }
        }
        let doing = turn(&mut self.rpc);
        let mut orders = self.orders.borrow_mut();
        orders.has_looked = true;
        (orders.sessions, orders.committed_packets) = (self.rpc.sessions(), self.rpc.committed_packets());
        if orders.ends {
            orders.has_ended = true;
            return Doing::Done;
        }
        match doing {
            Doing::Idle => Doing::IdleUntil(self.time.now_ns() + self.look_ns.saturating_sub(now_ns)),
            doing => doing,
        }
    }
}
