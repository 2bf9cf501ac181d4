//! A client of a cluster: it finds the leader, repeats requests without an answer, and has each command run once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sinew_fabric::{Address, Generator};
use sinew_rpc::gate::{CallerHandshake, HandshakeStep, Key};
use sinew_rpc::{CallOptions, Completion, Endpoint, SessionEvent, SessionId};

use crate::call;
use crate::client_wire::{Answer, ClientRequest, Freshness, Status};
use crate::sessions::IN_FLIGHT_MAX;
use crate::wire::{self, CLIENT, GREET, MemberInfo};

/// Time after which a request's first attempt without an answer is given up for another, in ns.
const TRY_NS: u64 = 20_000_000;
/// Failed attempts after which the time-out of further ones no longer doubles. It doubles because frequent attempts
/// would add to the load of slow members.
const DOUBLINGS_MAX: u32 = 4;
/// Time for which a member that did not answer an attempt counts as gone, even if others say that it leads, in ns.
const SUSPECT_NS: u64 = 60_000_000;
/// As [`TRY_NS`], for requests that take longer: watches, and changes of the members.
const LONG_TRY_NS: u64 = 35_000_000_000;
/// Longest wait for the addresses of the members, in ns.
const MEMBERS_NS: u64 = 1_000_000_000;
/// Time before the next attempt, in ns.
const RETRY_NS: u64 = 1_000_000;
/// Time after which a lost connection is opened again, in ns.
const REOPEN_NS: u64 = 5_000_000;
const ANSWER_LEN: usize = 256;

/// Reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No leader answered in time.
    #[error(
        "no answer in time from {}{}: {}{}",
        if .reached.is_empty() { "any member" } else { "a leader; reached: " }, .reached.join(", "),
        if *.may_have_run { "it may have run, or may yet" } else { "nothing was changed" },
        if .silent.is_empty() { String::new() } else { format!("; not heard from: {}", .silent.join(", ")) }
    )]
    NoAnswer {
        /// Addresses of members that answered that they do not lead.
        reached: Vec<String>,
        /// Names of members that these have not heard from for a while.
        silent: Vec<String>,
        /// Whether a command may have run.
        may_have_run: bool,
    },
    /// The members do not have the session (any more): there were too many and it was the least recently used, or the
    /// cluster was founded again.
    #[error(
        "the client's session has expired: it is unknown whether the command ran; read the state before running it again"
    )]
    Expired,
    /// The answer was dropped, as there are too many long ones.
    #[error("the command ran, but its answer is no longer kept: read the state to see what it did")]
    Forgotten,
    /// The leader's disk is full.
    #[error("the leader's disk is full: writes are refused, but reads go on; make room there")]
    DiskFull,
    /// Every member that was reached refuses the client.
    #[error("{address}: {why}; give the cluster's key with --key-file")]
    NotAdmitted {
        /// Address of the last of them.
        address: String,
        /// Reason for its refusal.
        why: &'static str,
    },
    /// The request was refused.
    #[error("{0}")]
    Refused(String),
    /// The answer cannot be parsed.
    #[error("an answer of {0} bytes cannot be parsed: check the addresses, and use the same release everywhere")]
    BadAnswer(usize),
    /// The limit on requests in flight is reached.
    #[error("{IN_FLIGHT_MAX} requests are in flight: take their answers first")]
    WindowFull,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The command ran, with this answer of the state machine.
    CommandAnswer(Vec<u8>),
    /// The query found this.
    QueryAnswer(Vec<u8>),
    /// Status of a member.
    Status(Box<Status>),
    /// The change was made.
    Done,
}

/// A request, as the client holds it.
enum Request {
    Open,
    /// Asks a member for the addresses of the others.
    Members,
    Run {
        number: u64,
        command: Vec<u8>,
    },
    Close {
        session: u64,
    },
    Read {
        freshness: Freshness,
        query: Vec<u8>,
    },
    Watch {
        query: Vec<u8>,
    },
    Other {
        bytes: Vec<u8>,
    },
}

impl Request {
    fn is_long(&self) -> bool {
        matches!(self, Self::Watch { .. } | Self::Other { .. })
    }

    /// Whether the client asks on its own behalf.
    fn is_own(&self) -> bool {
        matches!(self, Self::Open | Self::Members)
    }

    /// Whether any member may answer.
    fn is_for_any_member(&self) -> bool {
        matches!(self, Self::Watch { .. } | Self::Read { freshness: Freshness::Stale, .. })
    }
}

struct Pending {
    tag: u64,
    request: Request,
    end_ns: u64,
    /// When it is to be sent; `None` while it is in flight.
    send_at_ns: Option<u64>,
    /// The only address that may answer, if given.
    address: Option<String>,
    may_have_run: bool,
    /// Session in which a command was last sent.
    session: Option<u64>,
    /// Attempts that ended without an answer.
    failures: u32,
}

/// The connection to an address.
struct Connection {
    session: Option<SessionId>,
    /// Whether calls can be sent: if there is a key, both sides have proved that they have it.
    is_open: bool,
    handshake: Option<CallerHandshake>,
    /// When the session was begun.
    since_ns: u64,
    /// No other session is begun before this time.
    reopen_at_ns: u64,
}

impl Connection {
    const fn closed(until_ns: u64) -> Self {
        Self { session: None, is_open: false, handshake: None, since_ns: 0, reopen_at_ns: until_ns }
    }
}

/// A client; see [the module](self).
pub struct Client<E> {
    rpc: E,
    random: Box<dyn Generator>,
    addresses: Vec<String>,
    /// Index in `addresses` of the member that gets the next attempt.
    current: usize,
    connections: BTreeMap<String, Connection>,
    /// Times until which members count as gone, by index in `addresses`.
    suspects: BTreeMap<usize, u64>,
    nonce: u64,
    session: Option<u64>,
    is_opening: bool,
    /// Whether a member was asked for the addresses of the others.
    has_asked_for_members: bool,
    next_number: u64,
    pending: BTreeMap<u64, Pending>,
    /// Those of them that the client asks on its own behalf.
    own_requests: usize,
    next_id: u64,
    /// Calls in flight: the request, and the index of the member.
    calls: BTreeMap<u64, (u64, usize)>,
    next_call: u64,
    key: Option<Key>,
    /// Messages of a [`CallerHandshake`] in flight, with the address that they went to.
    handshakes: BTreeMap<u64, String>,
    /// Indices in `addresses` of members that refuse the client.
    refused: BTreeSet<usize>,
    done: VecDeque<(u64, Result<RequestOutcome, ClientError>)>,
    reached: Vec<String>,
    silent: Vec<String>,
    scratch: Vec<u8>,
}

impl<E: Endpoint> Client<E> {
    /// Makes a client of the cluster that has members at some of these addresses.
    pub fn new(rpc: E, addresses: Vec<String>, mut random: Box<dyn Generator>) -> Self {
        let nonce = random.next_u64();
        Self {
            rpc,
            random,
            addresses,
            current: 0,
            connections: BTreeMap::new(),
            suspects: BTreeMap::new(),
            nonce,
            session: None,
            is_opening: false,
            has_asked_for_members: false,
            next_number: 0,
            pending: BTreeMap::new(),
            own_requests: 0,
            next_id: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            key: None,
            handshakes: BTreeMap::new(),
            refused: BTreeSet::new(),
            done: VecDeque::new(),
            reached: Vec::new(),
            silent: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Proves to members that the client has the cluster's key, and calls only those that prove it too.
    #[must_use]
    pub fn keyed(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// The endpoint.
    pub fn rpc(&mut self) -> &mut E {
        &mut self.rpc
    }

    /// Adds the address of a possible member.
    pub fn learn_address(&mut self, address: &str) {
        if !self.addresses.iter().any(|known| known == address) {
            self.addresses.push(address.to_owned());
        }
    }

    /// Unfinished requests, and finished ones that were not polled.
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.own_requests + self.done.len()
    }

    fn begin(
        &mut self,
        tag: u64,
        request: Request,
        address: Option<String>,
        timeout_ns: u64,
    ) -> Result<(), ClientError> {
        if self.pending.len() - self.own_requests >= IN_FLIGHT_MAX {
            return Err(ClientError::WindowFull);
        }
        self.insert(tag, request, address, timeout_ns);
        Ok(())
    }

    fn insert(&mut self, tag: u64, request: Request, address: Option<String>, timeout_ns: u64) {
        let now_ns = self.rpc.now_ns();
        let (end_ns, send_at_ns) = (now_ns.saturating_add(timeout_ns), Some(now_ns));
        let (may_have_run, session, failures) = Default::default();
        self.own_requests += usize::from(request.is_own());
        let pending = Pending { tag, request, end_ns, send_at_ns, address, may_have_run, session, failures };
        self.pending.insert(self.next_id, pending);
        self.next_id += 1;
    }

    /// Runs a command once. `tag` comes back with the answer.
    ///
    /// # Errors
    ///
    /// [`ClientError::WindowFull`] if too many requests are in flight.
    pub fn run(&mut self, tag: u64, command: &[u8], timeout_ns: u64) -> Result<(), ClientError> {
        let request = Request::Run { number: self.next_number, command: command.to_vec() };
        self.begin(tag, request, None, timeout_ns)?;
        self.next_number += 1;
        Ok(())
    }

    /// Ends the client's session, so that the members no longer keep it. Returns false, and does nothing, if commands
    /// are in flight or there is no session; otherwise `tag` comes back with the answer. Later commands open another
    /// session.
    ///
    /// # Errors
    ///
    /// [`ClientError::WindowFull`] if too many requests are in flight.
    pub fn close(&mut self, tag: u64, timeout_ns: u64) -> Result<bool, ClientError> {
        let Some(session) = self.session.filter(|_| self.commands().is_empty()) else { return Ok(false) };
        self.begin(tag, Request::Close { session }, None, timeout_ns)?;
        (self.session, self.nonce) = (None, self.random.next_u64());
        Ok(true)
    }

    /// Reads. `tag` comes back with the answer.
    ///
    /// # Errors
    ///
    /// [`ClientError::WindowFull`] if too many requests are in flight.
    pub fn read(&mut self, tag: u64, freshness: Freshness, query: &[u8], timeout_ns: u64) -> Result<(), ClientError> {
        self.begin(tag, Request::Read { freshness, query: query.to_vec() }, None, timeout_ns)
    }

    /// Waits until a query finds something, at any member. `tag` comes back with the answer.
    ///
    /// # Errors
    ///
    /// [`ClientError::WindowFull`] if too many requests are in flight.
    pub fn watch(&mut self, tag: u64, query: &[u8], timeout_ns: u64) -> Result<(), ClientError> {
        self.watch_at(tag, query, None, timeout_ns)
    }

    /// As [`Self::watch`], at the member with the address `at` alone, if given.
    ///
    /// # Errors
    ///
    /// As for [`Self::watch`].
    pub fn watch_at(&mut self, tag: u64, query: &[u8], at: Option<&str>, timeout_ns: u64) -> Result<(), ClientError> {
        self.begin(tag, Request::Watch { query: query.to_vec() }, at.map(str::to_owned), timeout_ns)
    }

    /// Sends another request to the leader, such as a change of the members, or to the member at `address`,
    /// if given.
    ///
    /// # Errors
    ///
    /// [`ClientError::WindowFull`] if too many requests are in flight.
    pub fn ask(
        &mut self,
        tag: u64,
        ask: &ClientRequest<'_>,
        address: Option<&str>,
        timeout_ns: u64,
    ) -> Result<(), ClientError> {
        let mut bytes = Vec::new();
        wire::encode(ask, &mut bytes);
        self.begin(tag, Request::Other { bytes }, address.map(str::to_owned), timeout_ns)
    }

    /// Takes the next finished request.
    pub fn poll(&mut self) -> Option<(u64, Result<RequestOutcome, ClientError>)> {
        self.done.pop_front()
    }

    /// When the client needs its next turn, if nothing arrives earlier.
    pub fn next_turn_ns(&self) -> Option<u64> {
        let wait = |pending: &Pending| pending.send_at_ns.map_or(pending.end_ns, |next| next.min(pending.end_ns));
        self.pending.values().map(wait).min()
    }

    /// Turns the endpoint once, and makes progress with all requests. Returns whether anything happened.
    pub fn turn(&mut self) -> bool {
        let mut busy = self.rpc.turn();
        let now_ns = self.rpc.now_ns();
        while let Some(event) = self.rpc.poll_event() {
            busy = true;
            self.handle_event(&event, now_ns);
        }
        while let Some(completion) = self.rpc.poll_completion() {
            busy = true;
            if let Some(address) = self.handshakes.remove(&completion.tag) {
                self.handle_proof_answer(&address, &completion, now_ns);
                continue;
            }
            let Some((id, member_index)) = self.calls.remove(&completion.tag) else { continue };
            match completion.result {
                Ok(()) => self.handle_answer(id, member_index, &completion.response, now_ns),
                Err(error) => {
                    let is_known =
                        matches!(error.execution, sinew_rpc::Execution::NeverSent | sinew_rpc::Execution::NotRun);
                    self.on_attempt_failed(id, member_index, !is_known, now_ns);
                }
            }
        }
        busy |= self.send_due(now_ns);
        busy
    }

    fn handle_event(&mut self, event: &SessionEvent, now_ns: u64) {
        let session = event.session();
        let Some((address, connection)) =
            self.connections.iter_mut().find(|(_, connection)| connection.session == Some(session))
        else {
            return;
        };
        match (event, &self.key) {
            (SessionEvent::Connected(_), None) => connection.is_open = true,
            (SessionEvent::Connected(_), Some(key)) => {
                let handshake = CallerHandshake::new(key, &mut *self.random);
                let (greeting, address) = (handshake.greeting(), address.clone());
                connection.handshake = Some(handshake);
                self.send_proof(address, session, &greeting, now_ns);
            }
            _ => *connection = Connection::closed(now_ns + REOPEN_NS),
        }
    }

    fn send_proof(&mut self, address: String, session: SessionId, message: &[u8], now_ns: u64) {
        let tag = self.next_call;
        let options = CallOptions::tag(tag).timeout_ns(TRY_NS);
        if call::enqueue(&mut self.rpc, session, GREET, message, ANSWER_LEN, options) {
            self.next_call += 1;
            self.handshakes.insert(tag, address);
        } else {
            self.disconnect(&address, now_ns);
        }
    }

    /// Handles the answer to a message of a [`CallerHandshake`].
    fn handle_proof_answer(&mut self, address: &str, completion: &Completion, now_ns: u64) {
        let Some(connection) = self.connections.get_mut(address) else { return };
        let (Some(session), Some(handshake)) = (connection.session, &mut connection.handshake) else { return };
        let step = completion.result.is_ok().then(|| handshake.handle_answer(&completion.response));
        let member_index = self.addresses.iter().position(|known| known == address);
        match step {
            None => self.disconnect(address, now_ns),
            Some(HandshakeStep::Welcome) => {
                (connection.is_open, connection.handshake) = (true, None);
                member_index.map(|member_index| self.refused.remove(&member_index));
                self.pending
                    .values_mut()
                    .filter_map(|pending| pending.send_at_ns.as_mut())
                    .for_each(|next| *next = now_ns);
            }
            Some(HandshakeStep::Send(message)) => self.send_proof(address.to_owned(), session, &message, now_ns),
            Some(HandshakeStep::Refused(why)) => {
                self.disconnect(address, now_ns);
                member_index.into_iter().for_each(|member_index| self.on_refused(member_index, why, now_ns));
            }
        }
    }

    fn disconnect(&mut self, address: &str, now_ns: u64) {
        if let Some(connection) = self.connections.get_mut(address) {
            connection.session.map(|session| self.rpc.disconnect(session));
            *connection = Connection::closed(now_ns + REOPEN_NS);
        }
    }

    /// Handles a member that refuses the client. Another may accept it, unless all have refused.
    fn on_refused(&mut self, member_index: usize, why: &'static str, now_ns: u64) {
        self.refused.insert(member_index);
        self.suspects.insert(member_index, now_ns + SUSPECT_NS);
        self.try_next_member(member_index, now_ns);
        if self.refused.len() < self.addresses.len() {
            return;
        }
        let address = self.addresses.get(member_index).cloned().unwrap_or_default();
        self.refused.clear();
        for id in self.pending.keys().copied().collect::<Vec<_>>() {
            let may_have_run = self.pending.get(&id).is_some_and(|pending| pending.may_have_run);
            let error = ClientError::NotAdmitted { address: address.clone(), why };
            let error = if may_have_run { self.no_answer(true) } else { error };
            self.finish(id, Err(error));
        }
    }

    /// Sends the requests that are due, and fails those that have waited too long.
    fn send_due(&mut self, now_ns: u64) -> bool {
        let due = |pending: &Pending| pending.send_at_ns.is_some_and(|next| next <= now_ns) || pending.end_ns <= now_ns;
        let ids: Vec<u64> = self.pending.iter().filter(|(_, pending)| due(pending)).map(|(id, _)| *id).collect();
        let mut busy = false;
        for id in ids {
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            if pending.end_ns <= now_ns {
                let is_question = matches!(pending.request, Request::Read { .. } | Request::Watch { .. });
                let may_have_run = !is_question && (pending.may_have_run || pending.send_at_ns.is_none());
                self.finish(id, Err(self.no_answer(may_have_run)));
                busy = true;
                continue;
            }
            busy |= self.try_request(id, now_ns);
        }
        busy
    }

    fn try_request(&mut self, id: u64, now_ns: u64) -> bool {
        let done_below = self.done_below();
        let Some(pending) = self.pending.get_mut(&id) else { return false };
        let is_command = matches!(pending.request, Request::Run { .. });
        if is_command && pending.may_have_run && pending.session != self.session {
            // In another session it could run again.
            self.finish(id, Err(ClientError::Expired));
            return true;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        match (&pending.request, self.session) {
            (Request::Open, _) => wire::encode(&ClientRequest::Open { nonce: self.nonce }, &mut bytes),
            (Request::Members, _) => wire::encode(&ClientRequest::Status, &mut bytes),
            (Request::Run { number, command }, Some(session)) => {
                pending.session = Some(session);
                wire::encode(&ClientRequest::Run { session, number: *number, done_below, command }, &mut bytes);
            }
            (Request::Close { session }, _) => wire::encode(&ClientRequest::Close { session: *session }, &mut bytes),
            // It waits for its session.
            (Request::Run { .. }, None) => {
                pending.send_at_ns = Some(now_ns + RETRY_NS);
                self.scratch = bytes;
                if !self.is_opening {
                    self.is_opening = true;
                    self.insert(0, Request::Open, None, u64::MAX >> 1);
                }
                return false;
            }
            (Request::Read { freshness, query }, _) => {
                wire::encode(&ClientRequest::Read { freshness: *freshness, query }, &mut bytes);
            }
            (Request::Watch { query }, _) => wire::encode(&ClientRequest::Watch { query }, &mut bytes),
            (Request::Other { bytes: asked }, _) => bytes.extend_from_slice(asked),
        }
        let member_index = match &pending.address {
            Some(address) => self.addresses.iter().position(|known| known == address),
            None => Some(self.current % self.addresses.len().max(1)),
        };
        let timeout_ns =
            if pending.request.is_long() { LONG_TRY_NS } else { TRY_NS << pending.failures.min(DOUBLINGS_MAX) };
        let timeout_ns = timeout_ns.min(pending.end_ns - now_ns);
        pending.send_at_ns = Some(now_ns + RETRY_NS);
        let (only_there, call) = (pending.address.is_some(), self.next_call);
        let sent = member_index.is_some_and(|member_index| self.call(member_index, &bytes, call, timeout_ns, now_ns));
        self.scratch = bytes;
        match member_index {
            Some(member_index) if sent => {
                self.next_call += 1;
                self.calls.insert(call, (id, member_index));
                if let Some(pending) = self.pending.get_mut(&id) {
                    pending.send_at_ns = None;
                }
            }
            // Another member may be reachable.
            Some(member_index) if !only_there && self.is_disconnected(member_index) => {
                self.try_next_member(member_index, now_ns);
            }
            _ => {}
        }
        sent
    }

    fn is_disconnected(&self, member_index: usize) -> bool {
        let connection = self.addresses.get(member_index).and_then(|address| self.connections.get(address));
        connection.is_none_or(|connection| connection.session.is_none())
    }

    /// Goes on to the next member that does not count as gone.
    fn try_next_member(&mut self, from: usize, now_ns: u64) {
        let count = self.addresses.len().max(1);
        if self.current % count != from {
            return;
        }
        let is_suspect =
            |member_index: &usize| self.suspects.get(member_index).is_some_and(|until_ns| now_ns < *until_ns);
        let next = (1..count).map(|step| (from + step) % count).find(|member_index| !is_suspect(member_index));
        self.current = next.unwrap_or((from + 1) % count);
    }

    /// Number below which all commands have finished.
    fn done_below(&self) -> u64 {
        let numbers = self.pending.values().filter_map(|pending| match pending.request {
            Request::Run { number, .. } => Some(number),
            _ => None,
        });
        numbers.min().unwrap_or(self.next_number)
    }

    fn call(&mut self, member_index: usize, bytes: &[u8], tag: u64, timeout_ns: u64, now_ns: u64) -> bool {
        let Some(address) = self.addresses.get(member_index) else { return false };
        let connection = self.connections.entry(address.clone()).or_insert(Connection::closed(0));
        if connection.session.is_none() && now_ns >= connection.reopen_at_ns {
            connection.session =
                address.parse::<Address>().ok().and_then(|address| self.rpc.begin_connect(&address).ok());
            connection.since_ns = now_ns;
            if connection.session.is_none() {
                connection.reopen_at_ns = now_ns + REOPEN_NS;
            }
        }
        let Some(session) = connection.session else { return false };
        // Without a key, calls are sent as soon as the session is there. With one, they wait here for the proofs, for
        // as long as they would wait for an answer.
        if self.key.is_some() && !connection.is_open {
            if now_ns - connection.since_ns > TRY_NS {
                self.suspects.insert(member_index, now_ns + SUSPECT_NS);
                self.try_next_member(member_index, now_ns);
            }
            return false;
        }
        let options = CallOptions::tag(tag).timeout_ns(timeout_ns);
        call::enqueue(&mut self.rpc, session, CLIENT, bytes, ANSWER_LEN, options)
    }

    /// Handles a failed attempt.
    fn on_attempt_failed(&mut self, id: u64, member_index: usize, may_have_run: bool, now_ns: u64) {
        self.suspects.insert(member_index, now_ns + SUSPECT_NS);
        self.try_next_member(member_index, now_ns);
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.may_have_run |= may_have_run;
            pending.failures += 1;
            pending.send_at_ns = Some(now_ns);
        }
    }

    fn send_again(&mut self, id: u64, next_ns: u64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.send_at_ns = Some(next_ns);
        }
    }

    fn handle_answer(&mut self, id: u64, member_index: usize, bytes: &[u8], now_ns: u64) {
        // A request that has already finished tells nothing about the current session.
        if !self.pending.contains_key(&id) {
            return;
        }
        let Ok(answer) = wire::decode::<Answer<'_>>(bytes) else {
            return self.finish(id, Err(ClientError::BadAnswer(bytes.len())));
        };
        match answer {
            Answer::Opened { session } => {
                self.session = Some(session);
                self.finish(id, Ok(RequestOutcome::Done));
                for pending in self.pending.values_mut().filter(|pending| pending.send_at_ns.is_some()) {
                    pending.send_at_ns = Some(now_ns);
                }
                self.ask_for_members(member_index);
            }
            Answer::CommandAnswer(answer) => {
                self.finish(id, Ok(RequestOutcome::CommandAnswer(answer.to_vec())));
                self.ask_for_members(member_index);
            }
            Answer::QueryAnswer(found) => {
                self.finish(id, Ok(RequestOutcome::QueryAnswer(found.to_vec())));
                self.ask_for_members(member_index);
            }
            Answer::Status(status) if matches!(self.pending[&id].request, Request::Members) => {
                self.learn_addresses(status.members.iter().map(|member| &member.info));
                self.finish(id, Ok(RequestOutcome::Done));
            }
            Answer::Status(status) => self.finish(id, Ok(RequestOutcome::Status(status))),
            Answer::Done => self.finish(id, Ok(RequestOutcome::Done)),
            Answer::NothingYet { query: later } => {
                if let Some(Pending { request: Request::Watch { query }, .. }) = self.pending.get_mut(&id) {
                    *query = later.to_vec();
                }
                self.send_again(id, now_ns);
            }
            Answer::Busy => {
                // The member may have accepted an earlier attempt.
                self.note_that_it_may_have_run(id);
                self.send_again(id, now_ns + RETRY_NS);
            }
            Answer::Expired => self.handle_expiry(id, now_ns),
            Answer::Forgotten => self.finish(id, Err(ClientError::Forgotten)),
            Answer::DiskFull => self.fail(id, ClientError::DiskFull),
            Answer::Refused(why) => self.fail(id, ClientError::Refused(why)),
            Answer::NotAdmitted => {
                // The member may have restarted: the next attempt begins with the proofs.
                if self.key.is_some()
                    && let Some(address) = self.addresses.get(member_index).cloned()
                {
                    self.disconnect(&address, now_ns);
                }
                self.send_again(id, now_ns + RETRY_NS);
                self.on_refused(member_index, "it wants the cluster's key", now_ns);
            }
            Answer::NotLeader { leader, members, silent } => {
                // A leader that accepted it and then lost its leadership answers like this, too, and the command may
                // still be committed.
                self.note_that_it_may_have_run(id);
                let is_for_any_member =
                    self.pending.get(&id).is_some_and(|pending| pending.request.is_for_any_member());
                self.learn_members(member_index, leader.filter(|_| !is_for_any_member), &members, silent, now_ns);
                let wait_ns = if self.current % self.addresses.len().max(1) == member_index { RETRY_NS } else { 0 };
                self.send_again(id, now_ns + wait_ns.max(RETRY_NS / 4));
            }
        }
    }

    fn no_answer(&self, may_have_run: bool) -> ClientError {
        ClientError::NoAnswer { reached: self.reached.clone(), silent: self.silent.clone(), may_have_run }
    }

    /// Handles a member that does not carry a request out. This says nothing about a command's earlier attempts, of
    /// which one may have run. Without a session, no command that waits for one can run.
    fn fail(&mut self, id: u64, error: ClientError) {
        let Some(Pending { request, may_have_run, .. }) = self.pending.get(&id) else { return };
        match request {
            Request::Open => {
                self.finish(id, Ok(RequestOutcome::Done));
                for command in self.commands() {
                    if self.pending.get(&command).is_some_and(|pending| pending.send_at_ns.is_some()) {
                        self.fail(command, error.clone());
                    }
                }
            }
            Request::Run { .. } if *may_have_run => self.finish(id, Err(self.no_answer(true))),
            _ => self.finish(id, Err(error)),
        }
    }

    /// Commands that have not finished.
    fn commands(&self) -> Vec<u64> {
        let commands = self.pending.iter().filter(|(_, pending)| matches!(pending.request, Request::Run { .. }));
        commands.map(|(id, _)| *id).collect()
    }

    fn note_that_it_may_have_run(&mut self, id: u64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.may_have_run |= matches!(pending.request, Request::Run { .. });
        }
    }

    /// Asks the first member that answers for the addresses of the others: a client that knew only the leader could not
    /// outlive it.
    fn ask_for_members(&mut self, member_index: usize) {
        if !std::mem::replace(&mut self.has_asked_for_members, true) {
            let address = self.addresses.get(member_index).cloned();
            self.insert(0, Request::Members, address, MEMBERS_NS);
        }
    }

    fn learn_addresses<'a>(&mut self, members: impl Iterator<Item = &'a MemberInfo>) {
        for member in members.take(wire::MEMBERS_MAX) {
            if !self.addresses.contains(&member.address) && self.addresses.len() < 4 * wire::MEMBERS_MAX {
                self.addresses.push(member.address.clone());
            }
        }
    }

    /// Learns from the answer of a member that does not lead.
    fn learn_members(
        &mut self,
        member_index: usize,
        leader: Option<MemberInfo>,
        members: &[MemberInfo],
        silent: Vec<String>,
        now_ns: u64,
    ) {
        let own_address = self.addresses.get(member_index).cloned().unwrap_or_default();
        if !self.reached.contains(&own_address) {
            self.reached.push(own_address);
        }
        self.silent = silent;
        self.learn_addresses(members.iter());
        // A member may name a leader that it has not heard from for a while. It may not have heard from members that
        // are well, either: followers have nothing to say to each other.
        let leader = leader.filter(|leader| !self.silent.contains(&leader.name));
        match leader.and_then(|leader| self.addresses.iter().position(|address| *address == leader.address)) {
            // That leader is gone, but the member that named it does not know yet.
            Some(leader) if self.suspects.get(&leader).is_some_and(|until_ns| now_ns < *until_ns) => {
                self.try_next_member(member_index, now_ns);
            }
            Some(leader) => self.current = leader,
            None => self.try_next_member(member_index, now_ns),
        }
    }

    /// Handles the expiry of the session in which a command was sent. The command has not run if this was its first
    /// attempt, and is then sent in another session.
    fn handle_expiry(&mut self, id: u64, now_ns: u64) {
        let Some(Pending { session, may_have_run, .. }) = self.pending.get(&id) else { return };
        let (session, may_have_run) = (*session, *may_have_run);
        if session.is_some() && session == self.session {
            (self.session, self.nonce) = (None, self.random.next_u64());
        }
        if may_have_run {
            self.finish(id, Err(ClientError::Expired));
        } else {
            self.send_again(id, now_ns);
        }
    }

    fn finish(&mut self, id: u64, result: Result<RequestOutcome, ClientError>) {
        let Some(pending) = self.pending.remove(&id) else { return };
        if pending.request.is_own() {
            self.own_requests -= 1;
            self.is_opening &= !matches!(pending.request, Request::Open);
            // Another time, if it was not answered.
            self.has_asked_for_members &= result.is_ok() || !matches!(pending.request, Request::Members);
            return;
        }
        if result.is_ok() {
            self.reached.clear();
        }
        self.done.push_back((pending.tag, result));
    }
}
