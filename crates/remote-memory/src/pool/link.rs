//! A session with one donor, for calls: it is opened when a call needs it, and opened again when it was lost.

use std::collections::VecDeque;
use std::io;

use sinew_fabric::{Address, Armed, Descriptor, Readiness};
use sinew_rpc::{CallOptions, Endpoint, SessionEvent, SessionId};

use crate::donor::{CONTROL, Key, Request, Response, Side};

/// Tag of the link's own requests, by which it proves that it has the key.
const GREETING: u64 = u64::MAX;

enum LinkState {
    Closed,
    Connecting,
    Greeting,
    Ready,
}

struct WaitingCall {
    tag: u64,
    request: Request,
    until_ns: u64,
}

/// Result of a call: its tag, and the donor's response or the reason why there is none.
pub(super) type CallResult = (u64, Result<Response, String>);

pub(super) struct Link<E: Endpoint> {
    rpc: E,
    address: Address,
    key: Option<Key>,
    timeout_ns: u64,
    state: LinkState,
    session: Option<SessionId>,
    waiting: VecDeque<WaitingCall>,
    /// Calls whose results were not taken yet.
    in_flight: usize,
    results: VecDeque<CallResult>,
}

impl<E: Endpoint> Link<E> {
    pub fn new(rpc: E, address: Address, key: Option<Key>, timeout_ns: u64) -> Self {
        Self {
            rpc,
            address,
            key,
            timeout_ns,
            state: LinkState::Closed,
            session: None,
            waiting: VecDeque::new(),
            in_flight: 0,
            results: VecDeque::new(),
        }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether there is a session, as far as is known.
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }

    pub fn now_ns(&self) -> u64 {
        self.rpc.now_ns()
    }

    pub fn call(&mut self, tag: u64, request: Request) {
        self.in_flight += 1;
        let until_ns = self.rpc.now_ns() + self.timeout_ns;
        self.waiting.push_back(WaitingCall { tag, request, until_ns });
    }

    /// Whether the link waits for its donor, or has results to be taken.
    pub fn is_waiting(&self) -> bool {
        self.in_flight > 0 || matches!(self.state, LinkState::Connecting | LinkState::Greeting)
    }

    /// Takes the result of a call.
    pub fn next_result(&mut self) -> Option<CallResult> {
        let result = self.results.pop_front()?;
        self.in_flight -= 1;
        Some(result)
    }

    pub fn turn(&mut self) -> bool {
        let mut busy = self.rpc.turn();
        while let Some(event) = self.rpc.poll_event() {
            busy = true;
            self.handle_event(event);
        }
        while let Some(completion) = self.rpc.poll_completion() {
            busy = true;
            let response = match &completion.result {
                Ok(()) => Response::read(&completion.response).ok_or_else(|| "its answer is malformed".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            if completion.tag == GREETING {
                self.on_greeting_answer(response);
            } else {
                self.on_answer(completion.tag, response);
            }
        }
        busy | self.send_waiting()
    }

    /// Time at which the link next gives up a call, on the endpoint's clock; `Ready` if there is something to do now.
    pub fn next_step(&self) -> Armed {
        let is_still = self.results.is_empty() && matches!(self.state, LinkState::Connecting | LinkState::Greeting);
        if is_still || self.results.is_empty() && self.waiting.is_empty() {
            Armed::Sleep { until_ns: self.waiting.front().map(|waiting| waiting.until_ns) }
        } else {
            Armed::Ready
        }
    }

    fn handle_event(&mut self, event: SessionEvent) {
        if Some(event.session()) != self.session {
            return;
        }
        match event {
            SessionEvent::Connected(_) => {
                self.state = LinkState::Greeting;
                self.send(GREETING, &Request::Greet);
            }
            SessionEvent::ConnectFailed { error, .. } => self.close(&error.to_string()),
            SessionEvent::Lost { cause, .. } => self.close(&cause.to_string()),
            SessionEvent::Disconnected(_) => self.close("its session has ended"),
        }
    }

    fn on_greeting_answer(&mut self, response: Result<Response, String>) {
        match (response, &self.key) {
            (Ok(Response::Welcome), _) => self.state = LinkState::Ready,
            (Ok(Response::Nonce(nonce)), Some(key)) => {
                let proof = Request::Prove(key.proof(Side::Caller, None, &nonce));
                self.send(GREETING, &proof);
            }
            (Ok(Response::Nonce(_)), None) => self.disconnect("it wants a key, and none was given"),
            (Ok(Response::NotAdmitted), _) => self.disconnect("it has another key"),
            (Ok(_), _) => self.disconnect("its answer is unexpected"),
            (Err(why), _) => self.disconnect(&why),
        }
    }

    fn on_answer(&mut self, tag: u64, response: Result<Response, String>) {
        let response = match response {
            Ok(Response::NotAdmitted) => {
                self.disconnect("it does not know us any more");
                Err("it does not know us any more".to_owned())
            }
            other => other,
        };
        self.results.push_back((tag, response));
    }

    fn disconnect(&mut self, why: &str) {
        if let Some(session) = self.session {
            self.rpc.disconnect(session);
        }
        self.close(why);
    }

    fn close(&mut self, why: &str) {
        (self.state, self.session) = (LinkState::Closed, None);
        for WaitingCall { tag, .. } in self.waiting.drain(..) {
            self.results.push_back((tag, Err(why.to_owned())));
        }
    }

    fn send(&mut self, tag: u64, request: &Request) {
        let Some(session) = self.session else { return };
        let bytes = request.to_bytes();
        let buffers = self.rpc.alloc(bytes.len()).and_then(|request| Ok((request, self.rpc.alloc(256)?)));
        let error = match buffers {
            Err(error) => error.to_string(),
            Ok((mut buffer, response)) => {
                buffer.copy_from_slice(&bytes);
                let options = CallOptions::tag(tag).timeout_ns(self.timeout_ns);
                match self.rpc.enqueue_request(session, CONTROL, buffer, response, options) {
                    Ok(_) => return,
                    Err(rejected) => rejected.error.to_string(),
                }
            }
        };
        if tag == GREETING { self.close(&error) } else { self.results.push_back((tag, Err(error))) }
    }

    /// Gives up calls that are overdue, and sends the waiting ones, or connects first.
    fn send_waiting(&mut self) -> bool {
        let now_ns = self.rpc.now_ns();
        while self.waiting.front().is_some_and(|waiting| waiting.until_ns <= now_ns) {
            if let Some(WaitingCall { tag, .. }) = self.waiting.pop_front() {
                self.results.push_back((tag, Err("it has not answered in time".to_owned())));
            }
        }
        if self.waiting.is_empty() {
            return false;
        }
        match self.state {
            LinkState::Closed => match self.rpc.begin_connect(&self.address.clone()) {
                Ok(session) => (self.state, self.session) = (LinkState::Connecting, Some(session)),
                Err(error) => self.close(&error.to_string()),
            },
            LinkState::Connecting | LinkState::Greeting => return false,
            LinkState::Ready => {
                while let Some(WaitingCall { tag, request, .. }) = self.waiting.pop_front() {
                    self.send(tag, &request);
                }
            }
        }
        true
    }
}

/// Covers the endpoint and the link's own deadlines.
impl<E: Endpoint> Readiness for Link<E> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.rpc.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let Armed::Sleep { until_ns } = self.next_step() else { return Ok(Armed::Ready) };
        let armed = self.rpc.arm()?;
        Ok(armed.min_deadline(until_ns).on_clock(self.rpc.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.rpc.disarm()
    }
}
