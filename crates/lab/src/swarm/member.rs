//! A host's program: it serves any host that calls it, and calls others.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::{Address, Clock, Generator, PacketPort, SeededGenerator};
use sinew_harness::units::counted;
use sinew_rpc::{
    CallId, CallOptions, Cause, ClientEvent, ClientId, Completion, ConnectOptions, Error, Execution, LaneId, Pending,
    Reply, RequestType, Rpc, SessionEvent, SessionId,
};
use sinew_sim::{Actor, ActorState, SimClock, SimPort, SimWorkers};

use super::lanes::Lanes;
use super::ledger::{Moment, Patience, Shared};
use super::messages::{BURST, DEFERRED, DEFERRED_BURST, HEAD_LEN, POLLED, WORK, WORKER, is_content, write_request};
use super::recovery::{Recovery, Trial};
use super::scenario::{self, Scenario, one_of};
use super::shelf::{Shelf, TurnStart};
use super::{handlers, memory};
use crate::programs::{Endpoint, turn};

/// Time between two checks of a member's sessions, at which it also makes calls.
const CHECK_INTERVAL_NS: u64 = 1_000_000;
/// Time for which a member waits before it opens a session again.
const RETRY_NS: u64 = 5_000_000;
/// Probability that a member closes a lane at such a check, while calls may begin.
const LANE_CLOSE_CHANCE: f64 = 0.01;
/// Share of sessions that are opened for a lane other than the main one.
const LANE_SESSION_SHARE: f64 = 0.3;

/// Orders of the swarm to a member, and what the member reports.
#[derive(Debug, Default)]
pub struct Orders {
    pub stops_calls: bool,
    pub last_calls: u32,
    /// Required recovery of rates, once the member has to show it.
    pub recovery: Option<Recovery>,
    pub has_recovered: bool,
    pub closes: bool,
    pub ends: bool,
    pub has_ended: bool,
    sessions: usize,
    committed_packets: u64,
    kept: usize,
    has_reported: bool,
}

impl Orders {
    /// Whether the member has closed its sessions, others have closed theirs to it, and nothing of them is left.
    pub fn is_drained(&self) -> bool {
        self.has_reported && self.sessions == 0 && self.committed_packets == 0 && self.kept == 0
    }

    /// Describes what is left, for people.
    pub fn describe_left(&self) -> String {
        format!(
            "has {}, {} and {} of others",
            counted(self.sessions, "session"),
            counted(self.committed_packets, "committed packet"),
            counted(self.kept, "call")
        )
    }
}

/// A call that was handed over to the endpoint, as by another thread.
struct HandedCall {
    call: u64,
    pending: Pending<Reply, Error>,
    /// Whether it will be cancelled.
    will_cancel: bool,
}

/// A call to be made.
struct NewCall {
    server: usize,
    session: SessionId,
    request_len: usize,
    answer_len: usize,
    may_be_impatient: bool,
    /// Whether it may be kept by its handler, run on another lane, or be handed over.
    may_vary: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    /// No session; one may be opened from this time on.
    Closed(u64),
    Opening(SessionId),
    Open(SessionId),
}

/// Program of a host.
pub struct Member {
    rpc: Endpoint,
    /// The host's clock, which drifts.
    clock: SimClock,
    /// The cluster's clock.
    time: SimClock,
    host: usize,
    window: usize,
    len_max: usize,
    /// Session to each host.
    peer_sessions: Vec<SessionState>,
    /// Lane of each of these sessions.
    session_lanes: Vec<LaneId>,
    generator: SeededGenerator,
    /// Generator for lanes, kept calls, and calls that are handed over.
    second_generator: SeededGenerator,
    /// Calls in flight.
    in_flight: usize,
    impatient_share: f64,
    call_back_share: f64,
    kept_share: f64,
    handed_share: f64,
    /// Clients that are connected.
    clients: Vec<ClientId>,
    /// Calls that will be cancelled, whether they have completed or not.
    to_cancel: Vec<(CallId, u64)>,
    lanes: Lanes,
    handed: Vec<HandedCall>,
    shelf: Shelf,
    last_turn: TurnStart,
    /// When it next checks its sessions, and makes calls.
    next_check_ns: u64,
    is_closing: bool,
    /// Trial of the session whose rate has to recover now.
    trial: Option<Trial>,
    /// Host whose session is tried next; the sessions to hosts before it have recovered.
    next_trial: usize,
    ledger: Shared,
    orders: Rc<RefCell<Orders>>,
}

impl Member {
    pub fn new(
        scenario: &Scenario,
        host: usize,
        port: SimPort,
        workers: Option<&SimWorkers>,
        seed: u64,
        ledger: Shared,
        orders: Rc<RefCell<Orders>>,
    ) -> Self {
        let mut generator = SeededGenerator::new(seed);
        let time = port.network().clock();
        // This drift is far worse than that of real hosts' clocks.
        let clock = time.drifting(generator.below(2_001) as i32 - 1_000);
        // What this generator draws was added later; a separate one keeps the other draws as they were.
        let mut second_generator = SeededGenerator::new(!seed);
        let nexus = handlers::nexus(scenario, host, &ledger, workers, &time);
        let mut rpc = Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(generator.next_u64())));
        let peer_sessions = vec![SessionState::Closed(0); scenario.hosts()];
        let (window, len_max) = (scenario.window, scenario.len_max);
        let for_shelf = SeededGenerator::new(second_generator.next_u64());
        let shelf = Shelf::new(&mut rpc, host, scenario.config.slots, for_shelf, clock.clone(), ledger.clone());
        let lanes = Lanes::new(&mut rpc, scenario.lanes);
        Self {
            rpc,
            clock,
            time,
            host,
            window,
            len_max,
            peer_sessions,
            session_lanes: vec![LaneId::MAIN; scenario.hosts()],
            generator,
            second_generator,
            in_flight: 0,
            impatient_share: scenario.impatient_share,
            call_back_share: scenario.call_back_share,
            kept_share: scenario.kept_share,
            handed_share: scenario.handed_share,
            clients: Vec::new(),
            to_cancel: Vec::new(),
            lanes,
            handed: Vec::new(),
            shelf,
            last_turn: TurnStart::default(),
            next_check_ns: 0,
            is_closing: false,
            trial: None,
            next_trial: 0,
            ledger,
            orders,
        }
    }

    fn complain(&self, what: impl FnOnce() -> String) {
        self.ledger.lock().complain(what);
    }

    fn now(&self) -> Moment {
        Moment { time_ns: self.time.now_ns(), lost: self.rpc.port().network().stats().lost }
    }

    fn process_events(&mut self) {
        while let Some(event) = self.rpc.poll_event() {
            self.process_event(LaneId::MAIN, &event);
        }
        while let Some(event) = self.rpc.poll_client_event() {
            match event {
                ClientEvent::Came(client) => self.clients.push(client),
                ClientEvent::Left { client, .. } => self.clients.retain(|known| *known != client),
            }
        }
    }

    fn process_event(&mut self, lane: LaneId, event: &SessionEvent) {
        let (session, opened) = (event.session(), matches!(event, SessionEvent::Connected(_)));
        let of_it = |state: &SessionState| matches!(state, SessionState::Opening(id) | SessionState::Open(id) if *id == session);
        if let Some(host) = self.peer_sessions.iter().position(of_it) {
            let expected_lane = self.session_lanes[host];
            if expected_lane != lane {
                self.complain(|| format!("{lane:?} gets {event:?}, which belongs to {expected_lane:?}"));
            }
            let retry = SessionState::Closed(self.clock.now_ns() + RETRY_NS);
            self.peer_sessions[host] = if opened { SessionState::Open(session) } else { retry };
        }
    }

    fn process_completions(&mut self) {
        while let Some(completion) = self.rpc.poll_completion() {
            self.process_completion(LaneId::MAIN, &completion);
        }
        while let Some(lane) = self.rpc.poll_ready_lane() {
            if !self.lanes.is_open(lane) {
                self.complain(|| format!("{lane:?} is ready although it is not open"));
            }
            while let Some(completion) = self.rpc.poll_lane(lane) {
                self.process_completion(lane, &completion);
            }
            while let Some(event) = self.rpc.poll_lane_event(lane) {
                self.process_event(lane, &event);
            }
        }
    }

    /// Takes the results of calls that were handed over.
    fn take_handed_results(&mut self) {
        let mut at = 0;
        while at < self.handed.len() {
            match self.handed[at].pending.try_take() {
                Some(result) => {
                    let call = self.handed.swap_remove(at).call;
                    self.in_flight -= 1;
                    self.complete_handed(call, result);
                }
                None => at += 1,
            }
        }
    }

    fn process_completion(&mut self, lane: LaneId, completion: &Completion) {
        let call = completion.tag;
        self.in_flight -= 1;
        self.lanes.end(lane, call);
        let result = completion.result.as_ref().map(|()| is_content(call, &completion.response, 0));
        self.ledger.lock().complete(call, lane, result.map_err(|error| (error.cause, error.execution)));
    }

    fn complete_handed(&self, call: u64, result: Result<Reply, Error>) {
        let mut ledger = self.ledger.lock();
        let result = match result {
            Ok(reply) => Ok(is_content(call, &reply, 0)),
            Err(Error::Call(error)) => Err((error.cause, error.execution)),
            // The session ended before the call had begun.
            Err(Error::Enqueue(_)) => Err((Cause::Disconnected, Execution::NeverSent)),
            Err(error) => return ledger.complain(|| format!("call {call} ends with {error}")),
        };
        ledger.complete(call, LaneId::MAIN, result);
    }

    fn open_sessions(&mut self) {
        let now_ns = self.clock.now_ns();
        for host in (0..self.peer_sessions.len()).filter(|host| *host != self.host) {
            let SessionState::Closed(from_ns) = self.peer_sessions[host] else { continue };
            let address: Address = format!("sim://{}", scenario::name(host)).parse().expect("an address");
            if now_ns >= from_ns {
                // A host that has just crashed has no name for a moment.
                let credits = if self.call_back_share > 0.0 { self.rpc.config().credits } else { 0 };
                let lane = if self.second_generator.chance(LANE_SESSION_SHARE) {
                    self.lanes.draw(&mut self.second_generator)
                } else {
                    LaneId::MAIN
                };
                self.session_lanes[host] = lane;
                let options = ConnectOptions::new().call_back(credits).lane(lane);
                self.peer_sessions[host] = match self.rpc.begin_connect_with(&address, options) {
                    Ok(session) => SessionState::Opening(session),
                    Err(_) => SessionState::Closed(now_ns + RETRY_NS),
                };
            }
        }
    }

    /// Makes a call to another host, if there is a session to one. Returns whether there was.
    fn call(&mut self, may_be_impatient: bool) -> bool {
        let first = self.generator.below(self.peer_sessions.len() as u64) as usize;
        let hosts = self.peer_sessions.len();
        let own_session =
            (first..first + hosts).map(|host| host % hosts).find_map(|host| match self.peer_sessions[host] {
                SessionState::Open(session) => Some((host, session)),
                _ => None,
            });
        let back = if self.generator.chance(self.call_back_share) { self.session_back() } else { None };
        let Some((server, session)) = back.or(own_session) else { return false };
        let len = |generator: &mut SeededGenerator, max: usize| {
            let most = if generator.chance(0.7) { max.min(60) } else { max };
            generator.below(most as u64 + 1) as usize
        };
        let request_len = HEAD_LEN + len(&mut self.generator, self.len_max);
        let answer_len = len(&mut self.generator, self.len_max);
        self.call_to(&NewCall { server, session, request_len, answer_len, may_be_impatient, may_vary: true })
    }

    /// Draws a client at random, and returns its host and the session over which it can be called back.
    fn session_back(&mut self) -> Option<(usize, SessionId)> {
        let drawn = self.generator.below(self.clients.len().max(1) as u64) as usize;
        let client = *self.clients.get(drawn)?;
        // The client may not have called yet, or may have gone in this turn.
        Some((self.ledger.lock().host_of(self.host, client)?, self.rpc.session_to(client).ok()?))
    }

    fn call_to(&mut self, new: &NewCall) -> bool {
        let is_impatient = new.may_be_impatient && self.generator.chance(self.impatient_share);
        let will_cancel = is_impatient && self.generator.chance(0.3);
        // Time-outs range from less than a round trip to longer than most faults.
        let timeout_ns = (is_impatient && !will_cancel).then(|| 1u64 << (10 + self.generator.below(17)));
        let patience = match timeout_ns {
            // Two clocks, each wrong by a thousandth at most, bring the deadline forward by no more than this.
            Some(timeout_ns) => Patience::Until(self.time.now_ns() + timeout_ns - timeout_ns / 400 - 1),
            None if will_cancel => Patience::UntilCancelled,
            None => Patience::Endless,
        };
        let mut kind = if self.generator.chance(0.5) { WORK } else { BURST };
        let (mut lane, mut is_handed) = (LaneId::MAIN, false);
        if new.may_vary {
            if self.second_generator.chance(self.kept_share) {
                kind = one_of(&mut self.second_generator, &[DEFERRED, DEFERRED_BURST, POLLED, WORKER]);
            }
            is_handed = self.second_generator.chance(self.handed_share);
            lane = if is_handed { LaneId::MAIN } else { self.lanes.draw(&mut self.second_generator) };
        }
        let call = self.ledger.lock().begin(self.host, new.server, lane, patience);
        let options = CallOptions::tag(call).lane(lane);
        let options = timeout_ns.map_or(options, |timeout_ns| options.timeout_ns(timeout_ns));
        self.in_flight += 1;
        let begun = if is_handed {
            self.hand_over(call, new, kind, options, will_cancel)
        } else {
            self.enqueue(call, new, kind, options, (lane, will_cancel))
        };
        if let Err(error) = begun {
            self.complain(|| format!("call {call} is rejected: {error}"));
        }
        true
    }

    fn enqueue(
        &mut self,
        call: u64,
        new: &NewCall,
        kind: RequestType,
        options: CallOptions,
        (lane, is_doomed): (LaneId, bool),
    ) -> Result<(), Error> {
        let (mut request, response) = (self.rpc.alloc(new.request_len)?, self.rpc.alloc(new.answer_len.min(100))?);
        write_request(&mut request, call, new.answer_len as u32);
        let name = self.rpc.enqueue_request(new.session, kind, request, response, options);
        let name = name.map_err(|rejected| rejected.error)?;
        self.lanes.begin(lane, call);
        if is_doomed {
            self.to_cancel.push((name, call));
        }
        Ok(())
    }

    /// Makes a call as another thread would.
    fn hand_over(
        &mut self,
        call: u64,
        new: &NewCall,
        kind: RequestType,
        options: CallOptions,
        will_cancel: bool,
    ) -> Result<(), Error> {
        let mut request = vec![0; new.request_len];
        write_request(&mut request, call, new.answer_len as u32);
        let pending = self.rpc.remote_handle().call(new.session, kind, request, options)?;
        self.handed.push(HandedCall { call, pending, will_cancel });
        Ok(())
    }

    /// Cancels about half of the calls that are to be cancelled.
    fn cancel_some(&mut self) {
        let now = self.now();
        for (name, call) in std::mem::take(&mut self.to_cancel) {
            if self.generator.chance(0.5) {
                self.ledger.lock().cancel(call, now);
                self.rpc.cancel(name);
            } else {
                self.to_cancel.push((name, call));
            }
        }
        for handed in std::mem::take(&mut self.handed) {
            if handed.will_cancel && self.second_generator.chance(0.5) {
                // Dropping it cancels the call.
                self.ledger.lock().silence(handed.call, now);
                self.in_flight -= 1;
            } else {
                self.handed.push(handed);
            }
        }
    }

    /// Closes a lane, with the calls in flight on it.
    fn close_lane(&mut self) -> Result<(), String> {
        let now = self.now();
        let Some((lane, calls)) = self.lanes.replace(&mut self.rpc, &mut self.second_generator)? else { return Ok(()) };
        self.in_flight -= calls.len();
        for call in calls {
            self.ledger.lock().silence(call, now);
        }
        // Its sessions have ended, without an event.
        let retry = SessionState::Closed(self.clock.now_ns() + RETRY_NS);
        for host in (0..self.peer_sessions.len()).filter(|host| self.session_lanes[*host] == lane) {
            if !matches!(self.peer_sessions[host], SessionState::Closed(_)) {
                self.peer_sessions[host] = retry;
            }
        }
        let open = self
            .peer_sessions
            .iter()
            .find_map(|state| if let SessionState::Open(session) = state { Some(*session) } else { None });
        open.map_or(Ok(()), |session| self.lanes.call_closed(&mut self.rpc, session))
    }

    fn maintain_lanes(&mut self, may_close: bool) {
        let closes = may_close && self.second_generator.chance(LANE_CLOSE_CHANCE);
        let closed = if closes { self.close_lane() } else { Ok(()) };
        if let Err(what) = closed.and_then(|()| self.lanes.look(&mut self.rpc)) {
            self.complain(|| what);
        }
    }

    fn make_calls(&mut self) {
        let orders = Rc::clone(&self.orders);
        let mut orders = orders.borrow_mut();
        while self.in_flight < self.window {
            if orders.stops_calls && orders.last_calls == 0 {
                return;
            }
            if !self.call(!orders.stops_calls) {
                return;
            }
            orders.last_calls = orders.last_calls.saturating_sub(u32::from(orders.stops_calls));
        }
    }

    /// Calls on one session after another, one call at a time, and checks that congestion control lets the rates
    /// recover.
    fn recover(&mut self, recovery: &Recovery) {
        while self.in_flight == 0 && self.next_trial < self.peer_sessions.len() {
            let SessionState::Open(session) = self.peer_sessions[self.next_trial] else {
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
            } else {
                let (server, request_len, answer_len) = (self.next_trial, HEAD_LEN, 0);
                let (may_be_impatient, is_usual) = (false, false);
                self.call_to(&NewCall {
                    server,
                    session,
                    request_len,
                    answer_len,
                    may_be_impatient,
                    may_vary: is_usual,
                });
            }
        }
        self.orders.borrow_mut().has_recovered |= self.next_trial == self.peer_sessions.len();
    }

    /// Checks, once no session is left, that all buffers are back in the arena.
    fn check_memory(&self) {
        let missing = memory::missing(self.rpc.port().arena());
        if missing > 0 {
            self.complain(|| format!("{} of host {}'s arena never came back", counted(missing, "byte"), self.host));
        }
    }

    /// Checks, once no call is left, that sessions have their credits back, and closes them. Returns whether they are
    /// closed: calls that were given up keep some credits for a while.
    fn close_sessions(&mut self) -> bool {
        let of_clients: Vec<_> = self.clients.iter().filter_map(|client| self.rpc.session_to(*client).ok()).collect();
        let ours = self.peer_sessions.iter().filter_map(|state| match state {
            SessionState::Opening(session) | SessionState::Open(session) => Some(*session),
            SessionState::Closed(_) => None,
        });
        let ours: Vec<_> = ours.collect();
        let all = ours.iter().chain(&of_clients).filter_map(|session| self.rpc.session_credits(*session));
        let all: Vec<_> = all.collect();
        if let Some(credits) = all.iter().find(|credits| credits.left + credits.owed != credits.all) {
            self.complain(|| format!("a session without a call has {credits:?}"));
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

impl Actor for Member {
    fn turn(&mut self) -> ActorState {
        let now_ns = self.clock.now_ns();
        self.process_events();
        let (closes, recovery) = (self.orders.borrow().closes, self.orders.borrow().recovery);
        if let Some(recovery) = recovery {
            self.recover(&recovery);
        }
        if closes && !self.is_closing {
            self.is_closing = self.close_sessions();
        }
        self.shelf.take(&mut self.rpc, self.time.now_ns());
        if now_ns >= self.next_check_ns {
            self.next_check_ns = now_ns + CHECK_INTERVAL_NS;
            let now = self.now();
            self.shelf.check(&self.rpc, now, self.last_turn);
            self.cancel_some();
            let may_close = !self.orders.borrow().stops_calls;
            self.maintain_lanes(may_close);
            if !closes {
                self.open_sessions();
                self.make_calls();
            }
        }
        self.shelf.serve(&mut self.rpc);
        self.last_turn = TurnStart { host_ns: now_ns, time_ns: self.time.now_ns() };
        let doing = turn(&mut self.rpc);
        // Completions are recorded in the turn that brings them: a call sent in it may tell a server that an earlier
        // call is over, and the ledger must know that first.
        self.process_completions();
        if doing == ActorState::Work {
            self.take_handed_results();
        }
        if self.orders.borrow().ends {
            self.check_memory();
        }
        let mut orders = self.orders.borrow_mut();
        orders.has_reported = true;
        (orders.sessions, orders.committed_packets) = (self.rpc.sessions(), self.rpc.committed_packets());
        orders.kept = self.shelf.len();
        if orders.ends {
            orders.has_ended = true;
            return ActorState::Done;
        }
        match doing {
            ActorState::Idle => {
                let due_ns = self.shelf.due_ns().map_or(self.next_check_ns, |due_ns| due_ns.min(self.next_check_ns));
                ActorState::IdleUntil(self.time.now_ns() + due_ns.saturating_sub(now_ns))
            }
            doing => doing,
        }
    }
}
