//! The program of a workload's clients.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hdrhistogram::Histogram;
use sinew_fabric::{Address, Clock, Generator, SeededGenerator};
use sinew_harness::units::counted;
use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{Call, RequestType, SessionEvent, SessionId};
use sinew_sim::{Actor, ActorState, SimClock};

use super::Group;
use super::file::REQUEST_LEN_MIN;
use crate::programs::{Endpoint, turn};

/// Requests that state the length of their answer.
pub const CALL: RequestType = RequestType::new(1);
/// Sessions that a client opens at a time, so that the servers' headroom for management packets suffices.
const OPENING_MAX: usize = 12;

/// Answers a call with as many bytes as it asks for.
pub fn answer(call: Call<'_>) {
    let len = call.request().first_chunk().map_or(0, |len: &[u8; REQUEST_LEN_MIN]| u32::from_le_bytes(*len));
    call.reply_with(len as usize, |_| ());
}

/// A histogram of times in ns, up to two minutes, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000_000, 3).expect("the bounds are in order")
}

/// Results of all clients of a group.
pub struct Tally {
    pub calls: u64,
    pub failed: u64,
    pub latency: Histogram<u64>,
    pub rtt: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { calls: 0, failed: 0, latency: histogram(), rtt: histogram() }
    }
}

/// A server that the client calls.
struct ServerSession {
    /// Name of its host.
    server: String,
    address: Address,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Closed,
    Opening(SessionId),
    Open(SessionId),
    /// The session has ended, for this reason.
    Ended(String),
}

/// A call in flight.
#[derive(Clone, Copy)]
struct CallInFlight {
    server_index: usize,
    /// When the call arrived.
    began_ns: u64,
}

/// Program of a client.
pub struct LoadClient {
    rpc: Endpoint,
    clock: SimClock,
    generator: SeededGenerator,
    group: Rc<Group>,
    /// Time at which all clients begin, once it is known; they are woken then.
    origin_ns: Rc<Cell<Option<u64>>>,
    server_sessions: Vec<ServerSession>,
    /// Indices of the sessions that are open.
    open: Vec<usize>,
    opening: usize,
    calls_made: usize,
    /// Tags of calls that are not in flight, with their buffers.
    idle: Vec<(usize, MessageBuffer, MessageBuffer)>,
    flights: Vec<Option<CallInFlight>>,
    /// When the next call arrives, if calls come at a rate.
    due_ns: Option<u64>,
    tally: Rc<RefCell<Tally>>,
}

impl LoadClient {
    /// A client of servers at these addresses, each with its host's name. It begins when `origin_ns` is set.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the port's arena is too small for the window.
    pub fn new(
        rpc: Endpoint,
        clock: SimClock,
        seed: u64,
        group: &Rc<Group>,
        servers: Vec<(String, Address)>,
        origin_ns: &Rc<Cell<Option<u64>>>,
        tally: &Rc<RefCell<Tally>>,
    ) -> Result<Self, AllocError> {
        let (request_len, response_len) = (group.request.bounds().1, group.response.bounds().1);
        let buffers = |tag| Ok((tag, rpc.alloc(request_len)?, rpc.alloc(response_len)?));
        Ok(Self {
            clock,
            generator: SeededGenerator::new(seed),
            group: Rc::clone(group),
            origin_ns: Rc::clone(origin_ns),
            server_sessions: servers
                .into_iter()
                .map(|(server, address)| ServerSession { server, address, state: State::Closed })
                .collect(),
            open: Vec::new(),
            opening: 0,
            calls_made: 0,
            idle: (0..group.window).map(buffers).collect::<Result<_, _>>()?,
            flights: vec![None; group.window],
            due_ns: None,
            tally: Rc::clone(tally),
            rpc,
        })
    }

    /// The client's endpoint.
    pub fn rpc(&self) -> &Endpoint {
        &self.rpc
    }

    /// Sessions that are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// All sessions, open or not.
    pub fn sessions(&self) -> usize {
        self.server_sessions.len()
    }

    /// Whether a session could not be opened, or has ended.
    pub fn has_lost(&self) -> bool {
        self.server_sessions.iter().any(|session| matches!(session.state, State::Ended(_)))
    }

    /// Rates that congestion control allows its sessions, in bytes per second.
    pub fn rates(&self) -> impl Iterator<Item = f64> {
        self.open.iter().filter_map(|index| match self.server_sessions[*index].state {
            State::Open(session) => self.rpc.session_rate(session),
            _ => None,
        })
    }

    /// Describes what it waits for, beside the time.
    pub fn waits_for(&self) -> Option<String> {
        let going = self.flights.iter().flatten();
        if let Some(oldest) = going.clone().min_by_key(|call| call.began_ns) {
            let (calls, server) = (counted(going.count(), "call"), &self.server_sessions[oldest.server_index].server);
            let ms = self.clock.now_ns().saturating_sub(oldest.began_ns) as f64 / 1e6;
            return Some(format!("the answers to {calls}, the oldest to {server} and {ms:.3} ms old"));
        }
        let lost = self.server_sessions.iter().find_map(|session| match &session.state {
            State::Ended(why) => Some(format!("a session with {}: {why}", session.server)),
            _ => None,
        });
        let opening =
            self.server_sessions.iter().find(|session| matches!(session.state, State::Opening(_) | State::Closed));
        if self.open.is_empty() { lost } else { None }
            .or_else(|| opening.map(|session| format!("a session with {}", session.server)))
    }

    fn chance(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn open_sessions(&mut self) {
        while self.calls_made < self.server_sessions.len() && self.opening < OPENING_MAX {
            let server = &mut self.server_sessions[self.calls_made];
            self.calls_made += 1;
            server.state = match self.rpc.begin_connect(&server.address) {
                Ok(session) => {
                    self.opening += 1;
                    State::Opening(session)
                }
                Err(error) => State::Ended(error.to_string()),
            };
        }
    }

    fn see_events(&mut self) {
        while let Some(event) = self.rpc.poll_event() {
            let (session, state) = match event {
                SessionEvent::Connected(session) => (session, State::Open(session)),
                SessionEvent::ConnectFailed { session, error } => (session, State::Ended(error.to_string())),
                SessionEvent::Lost { session, cause, .. } => (session, State::Ended(cause.to_string())),
                SessionEvent::Disconnected(session) => (session, State::Ended("it was closed".to_owned())),
            };
            let is_it = |server_session: &ServerSession| {
                server_session.state == State::Opening(session) || server_session.state == State::Open(session)
            };
            let Some(index) = self.server_sessions.iter().position(is_it) else { continue };
            self.opening -= usize::from(matches!(self.server_sessions[index].state, State::Opening(_)));
            self.open.retain(|open| *open != index);
            if let State::Open(_) = state {
                self.open.push(index);
            }
            self.server_sessions[index].state = state;
        }
    }

    fn see_completions(&mut self) {
        let mut tally = self.tally.borrow_mut();
        while let Some(completion) = self.rpc.poll_completion() {
            let tag = completion.tag as usize;
            let Some(call) = self.flights[tag].take() else { continue };
            match completion.result {
                Ok(()) => {
                    tally.calls += 1;
                    tally.latency.saturating_record(self.clock.now_ns().saturating_sub(call.began_ns));
                }
                Err(_) => tally.failed += 1,
            }
            self.idle.push((tag, completion.request, completion.response));
        }
        while let Some(rtt_ns) = self.rpc.poll_rtt_ns() {
            tally.rtt.saturating_record(rtt_ns);
        }
    }

    /// Begins the calls that are due. Returns when more will be due without a completion.
    fn begin_calls(&mut self) -> Option<u64> {
        let now_ns = self.clock.now_ns();
        let origin_ns = self.origin_ns.get()?;
        let (start_ns, stop_ns) = (origin_ns + self.group.start_ns, origin_ns + self.group.stop_ns);
        if now_ns < start_ns {
            return Some(start_ns);
        }
        let Some(rate) = self.group.calls_per_s else {
            while now_ns < stop_ns && self.begin_call(now_ns) {}
            return None;
        };
        loop {
            let due_ns = match self.due_ns {
                Some(due_ns) => due_ns,
                None => start_ns + self.gap_ns(rate),
            };
            self.due_ns = Some(due_ns);
            if due_ns >= stop_ns {
                return None;
            }
            if due_ns > now_ns {
                return Some(due_ns);
            }
            if !self.begin_call(due_ns) {
                return None;
            }
            self.due_ns = Some(due_ns + self.gap_ns(rate));
        }
    }

    fn gap_ns(&mut self, rate: f64) -> u64 {
        (-(1.0 - self.chance()).ln() / rate * 1e9) as u64
    }

    /// Begins a call. Returns whether there was a server to call, and room in the window.
    fn begin_call(&mut self, began_ns: u64) -> bool {
        if self.open.is_empty() {
            return false;
        }
        let Some((tag, mut request, response)) = self.idle.pop() else { return false };
        let server_index = self.open[self.generator.below(self.open.len() as u64) as usize];
        let State::Open(session) = self.server_sessions[server_index].state else { return false };
        let (request_chance, response_chance) = (self.chance(), self.chance());
        let len = self.group.request.draw(request_chance);
        let response_len = self.group.response.draw(response_chance) as u32;
        request.resize(len).expect("its buffer has room for the longest");
        request[..REQUEST_LEN_MIN].copy_from_slice(&response_len.to_le_bytes());
        match self.rpc.enqueue_request(session, CALL, request, response, tag as u64) {
            Ok(_) => self.flights[tag] = Some(CallInFlight { server_index, began_ns }),
            Err(rejected) => {
                // The session has just ended; an event will say so.
                self.tally.borrow_mut().failed += 1;
                self.open.retain(|open| *open != server_index);
                self.idle.push((tag, rejected.request, rejected.response));
            }
        }
        true
    }
}

impl Actor for LoadClient {
    fn turn(&mut self) -> ActorState {
        self.see_events();
        self.open_sessions();
        self.see_completions();
        let next_ns = self.begin_calls();
        match (turn(&mut self.rpc), next_ns) {
            (ActorState::Idle, Some(next_ns)) => ActorState::IdleUntil(next_ns),
            (doing, _) => doing,
        }
    }
}
