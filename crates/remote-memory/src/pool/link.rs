//! A session with one donor, for calls.

use std::collections::VecDeque;
use std::io;

use sinew_fabric::{Address, Armed, Descriptor, Readiness};
use sinew_rpc::{CallOptions, Endpoint, SessionEvent, SessionId};

use crate::donor::{CONTROL, Key, Request, Response, Side};

/// Tag of the link's own requests.
const GREETING: u64 = u64::MAX;

enum State {
    Closed,
    Connecting,
    Greeting,
    Ready,
}

struct Waiting {
    tag: u64,
    request: Request,
    until_ns: u64,
}

/// Result of a call: its tag, and the donor's response or the reason why there is none.
pub(super) type Heard = (u64, Result<Response, String>);

pub(super) struct Link<E: Endpoint> {
    rpc: E,
    address: Address,
    key: Option<Key>,
    timeout_ns: u64,
    state: State,
    session: Option<SessionId>,
    waiting: VecDeque<Waiting>,
    /// Calls without an answer yet.
    open: usize,
    heard: VecDeque<Heard>,
}

impl<E: Endpoint> Link<E> {
    pub fn new(rpc: E, address: Address, key: Option<Key>, timeout_ns: u64) -> Self {
        Self {
            rpc,
            address,
            key,
            timeout_ns,
            state: State::Closed,
            session: None,
            waiting: VecDeque::new(),
            open: 0,
            heard: VecDeque::new(),
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
        self.open += 1;
        let until_ns = self.rpc.now_ns() + self.timeout_ns;
        self.waiting.push_back(Waiting { tag, request, until_ns });
    }

    /// Whether the link waits for something.
    pub fn is_waiting(&self) -> bool {
        self.open > 0 || matches!(self.state, State::Connecting | State::Greeting)
    }

    /// Takes the result of a call.
    pub fn next_heard(&mut self) -> Option<Heard> {
        let heard = self.heard.pop_front()?;
        self.open -= 1;
        Some(heard)
    }

    pub fn turn(&mut self) -> bool {
        let mut busy = self.rpc.turn();
        while let Some(event) = self.rpc.poll_event() {
            busy = true;
            self.hear_event(event);
        }
        while let Some(completion) = self.rpc.poll_completion() {
            busy = true;
            let response = match &completion.result {
                Ok(()) => Response::read(&completion.response).ok_or_else(|| "its answer makes no sense".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            if completion.tag == GREETING {
                self.greeted(response);
            } else {
                self.answered(completion.tag, response);
            }
        }
        busy | self.go_on()
    }

    /// Time at which the link next gives up a call, on the endpoint's clock; `Ready` if there is something to do now.
    pub fn next_step(&self) -> Armed {
        let is_still = self.heard.is_empty() && matches!(self.state, State::Connecting | State::Greeting);
        if is_still || self.heard.is_empty() && self.waiting.is_empty() {
            Armed::Sleep { until_ns: self.waiting.front().map(|waiting| waiting.until_ns) }
        } else {
            Armed::Ready
        }
    }

    fn hear_event(&mut self, event: SessionEvent) {
        if Some(event.session()) != self.session {
            return;
        }
        match event {
            SessionEvent::Connected(_) => {
                self.state = State::Greeting;
                self.send(GREETING, &Request::Greet);
            }
            SessionEvent::ConnectFailed { error, .. } => self.close(&error.to_string()),
            SessionEvent::Lost { cause, .. } => self.close(&cause.to_string()),
            SessionEvent::Disconnected(_) => self.close("its session has ended"),
        }
    }

    fn greeted(&mut self, response: Result<Response, String>) {
        match (response, &self.key) {
            (Ok(Response::Welcome), _) => self.state = State::Ready,
            (Ok(Response::Nonce(nonce)), Some(key)) => {
                let proof = Request::Prove(key.proof(Side::Caller, None, &nonce));
                self.send(GREETING, &proof);
            }
            (Ok(Response::Nonce(_)), None) => self.hang_up("it wants a key, and none was given"),
            (Ok(Response::Stranger), _) => self.hang_up("it has another key"),
            (Ok(_), _) => self.hang_up("its answer makes no sense"),
            (Err(why), _) => self.hang_up(&why),
        }
    }

    fn answered(&mut self, tag: u64, response: Result<Response, String>) {
        let response = match response {
            Ok(Response::Stranger) => {
                self.hang_up("it does not know us any more");
                Err("it does not know us any more".to_owned())
            }
            other => other,
        };
        self.heard.push_back((tag, response));
    }

    fn hang_up(&mut self, why: &str) {
        if let Some(session) = self.session {
            self.rpc.disconnect(session);
        }
        self.close(why);
    }

    fn close(&mut self, why: &str) {
        (self.state, self.session) = (State::Closed, None);
        for Waiting { tag, .. } in self.waiting.drain(..) {
            self.heard.push_back((tag, Err(why.to_owned())));
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
        if tag == GREETING { self.close(&error) } else { self.heard.push_back((tag, Err(error))) }
    }

    /// Gives up calls that are overdue, and sends the waiting ones, or connects first.
    fn go_on(&mut self) -> bool {
        let now_ns = self.rpc.now_ns();
        while self.waiting.front().is_some_and(|waiting| waiting.until_ns <= now_ns) {
            if let Some(Waiting { tag, .. }) = self.waiting.pop_front() {
                self.heard.push_back((tag, Err("it has not answered in time".to_owned())));
            }
        }
        if self.waiting.is_empty() {
            return false;
        }
        match self.state {
            State::Closed => match self.rpc.begin_connect(&self.address.clone()) {
                Ok(session) => (self.state, self.session) = (State::Connecting, Some(session)),
                Err(error) => self.close(&error.to_string()),
            },
            State::Connecting | State::Greeting => return false,
            State::Ready => {
                while let Some(Waiting { tag, request, .. }) = self.waiting.pop_front() {
                    self.send(tag, &request);
                }
            }
        }
        true
    }
}

/// Covers the endpoint and the link's own deadlines, which are on the caller's clock.
impl<E: Endpoint> Readiness for Link<E> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.rpc.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let Armed::Sleep { until_ns } = self.next_step() else { return Ok(Armed::Ready) };
        let armed = self.rpc.arm()?;
        Ok(armed.by(until_ns).on_clock(self.rpc.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.rpc.disarm()
    }
}
