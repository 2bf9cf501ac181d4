//! A member on an endpoint: its messages are calls, and its time is the endpoint's.
//!
//! Messages for another member go with the answer to one of that member's calls, if one is waiting, and otherwise as a
//! call. So an append and its acknowledgement are one call, as in nsdi19 7.1.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use sinew_fabric::{Address, Generator, SeededGenerator};
use sinew_journal::disk::Disk;
use sinew_rpc::gate::{CallerHandshake, Gate, HandshakeStep, Key};
use sinew_rpc::{CallOptions, ClientEvent, ClientId, DeferredCall, Endpoint, NexusError, SessionEvent, SessionId};
use siphasher::sip::SipHasher13;

use crate::call;
use crate::client_wire::Answer;
use crate::machine::StateMachine;
use crate::member::{Accepted, Member, MemberError, PeerAnswer, Receiver, Transport};
use crate::wire::{self, CLIENT, GREET, MemberId, PEER, PeerMessage, PieceId};

/// Time after which a message without an answer counts as lost, in ns, and time for each of its bytes besides.
const ANSWER_NS: u64 = 500_000_000;
const ANSWER_NS_PER_BYTE: u64 = 1_000;
/// Time after which a lost connection is opened again, in ns.
const REOPEN_NS: u64 = 10_000_000;
/// Messages in flight to one member, at most.
const IN_FLIGHT_MAX: usize = 128;
/// Longest answer, in bytes, that needs no further buffer.
const ANSWER_LEN: usize = 1024;
/// Interval between checks for requests whose clients have gone, and for members without a connection, in ns.
const CONNECT_INTERVAL_NS: u64 = 20_000_000;
/// Time for which a member that refused us, or that we refused, is not asked again, in ns.
const REFUSED_NS: u64 = 500_000_000;
/// Time after which a refusal that was not repeated is no longer reported, in ns: that member is gone.
const REFUSAL_KEPT_NS: u64 = 4 * REFUSED_NS;
/// Callers at a time that have greeted but not yet proved that they have the key.
const UNADMITTED_MAX: usize = 1024;

/// A map by numbers that this program chose. The order of iteration is the same in every run.
type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<SipHasher13>>;

enum ConnectionState {
    Closed {
        until_ns: u64,
    },
    Opening(SessionId),
    /// Both sides are proving that they have the key.
    Proving(SessionId, CallerHandshake),
    Open(SessionId),
}

/// The connection to an address.
struct Connection {
    address: String,
    state: ConnectionState,
    in_flight: usize,
}

impl Connection {
    fn session(&self) -> Option<SessionId> {
        match &self.state {
            ConnectionState::Closed { .. } => None,
            ConnectionState::Opening(session)
            | ConnectionState::Proving(session, _)
            | ConnectionState::Open(session) => Some(*session),
        }
    }
}

/// A message in flight.
struct Sent {
    to: Option<MemberId>,
    /// Index of its connection.
    connection: usize,
    piece: Option<PieceId>,
}

/// A refusal because of the key: the member at this address refused us, or we refused it.
struct Refusal {
    address: String,
    why: &'static str,
    since_ns: u64,
}

#[derive(Default)]
struct Connections {
    /// One for each address that a message was ever sent to. Addresses come from the cluster's configurations and from
    /// requests to add members, of which one at a time is carried out, so there are few.
    list: Vec<Connection>,
    sent: ByNumber<Sent>,
    /// Messages of a [`CallerHandshake`] in flight, with the index of their connection.
    handshakes: ByNumber<usize>,
    next_tag: u64,
    /// Calls of members that are answered at the end of the turn.
    waiting: VecDeque<(MemberId, DeferredCall)>,
    scratch: Vec<u8>,
    /// Messages that could not be sent: the receiver of each, and the piece of a snapshot that it carried.
    failed: Vec<(Option<MemberId>, Option<PieceId>)>,
    unsent: u64,
    /// Last refusal because of the key.
    refusal: Option<Refusal>,
    /// [`PeerMessage::NotAdmitted`] as bytes.
    not_admitted: Vec<u8>,
}

impl Connections {
    /// Forgets the last refusal if it was this connection's, which is admitted now.
    fn clear_refusal(&mut self, connection: usize) {
        self.refusal.take_if(|refusal| refusal.address == self.list[connection].address);
    }
}

/// A member on an endpoint; see [the module](self).
pub struct Host<E, S, D> {
    rpc: E,
    member: Member<S, D>,
    connections: Connections,
    deferred_calls: ByNumber<DeferredCall>,
    next_check_ns: u64,
    gate: Gate<ClientId>,
    key: Option<Key>,
}

/// The endpoint and the connections, as the member's transport.
struct Sender<'a, E> {
    rpc: &'a mut E,
    connections: &'a mut Connections,
    now_ns: u64,
    is_busy: bool,
}

impl<E: Endpoint> Sender<'_, E> {
    /// Returns the index of the connection to an address, and its session if that is open. Opens it if it is closed.
    fn session(&mut self, address: &str) -> Option<(usize, SessionId)> {
        let list = &mut self.connections.list;
        let index = list.iter().position(|connection| connection.address == address).unwrap_or_else(|| {
            list.push(Connection {
                address: address.to_owned(),
                state: ConnectionState::Closed { until_ns: 0 },
                in_flight: 0,
            });
            list.len() - 1
        });
        let connection = &mut list[index];
        match &connection.state {
            _ if connection.in_flight >= IN_FLIGHT_MAX => None,
            ConnectionState::Open(session) => Some((index, *session)),
            ConnectionState::Closed { until_ns } if self.now_ns >= *until_ns => {
                let opened = address.parse::<Address>().ok().and_then(|address| self.rpc.begin_connect(&address).ok());
                connection.state = match opened {
                    Some(session) => ConnectionState::Opening(session),
                    None => ConnectionState::Closed { until_ns: self.now_ns + REOPEN_NS },
                };
                self.is_busy = true;
                None
            }
            ConnectionState::Opening(_) | ConnectionState::Proving(..) | ConnectionState::Closed { .. } => None,
        }
    }

    fn call(&mut self, address: &str, to: Option<MemberId>, piece: Option<PieceId>) -> bool {
        let Some((connection, session)) = self.session(address) else { return false };
        let tag = self.connections.next_tag;
        let timeout_ns = ANSWER_NS + ANSWER_NS_PER_BYTE * self.connections.scratch.len() as u64;
        let options = CallOptions::tag(tag).timeout_ns(timeout_ns);
        if !call::enqueue(self.rpc, session, PEER, &self.connections.scratch, ANSWER_LEN, options) {
            return false;
        }
        self.connections.next_tag += 1;
        self.connections.sent.insert(tag, Sent { to, connection, piece });
        self.connections.list[connection].in_flight += 1;
        true
    }
}

impl<E: Endpoint> Transport for Sender<'_, E> {
    fn send(&mut self, to: Receiver<'_>, say: &PeerMessage<'_>) {
        let mut scratch = std::mem::take(&mut self.connections.scratch);
        scratch.clear();
        wire::to_bytes(say, &mut scratch);
        self.connections.scratch = scratch;
        self.is_busy = true;
        let piece = say.piece_id();
        let (id, address) = match to {
            Receiver::Member(id, address) => (Some(id), address),
            Receiver::Address(address) => (None, Some(address)),
        };
        let waiting = self.connections.waiting.iter().position(|(from, _)| Some(*from) == id && piece.is_none());
        if let Some((_, call)) = waiting.and_then(|at| self.connections.waiting.remove(at)) {
            return self.rpc.reply(call, &self.connections.scratch);
        }
        if !address.is_some_and(|address| self.call(address, id, piece)) {
            self.connections.unsent += 1;
            self.connections.failed.push((id, piece));
        }
    }

    fn flush(&mut self) {
        self.rpc.turn();
    }
}

impl<E: Endpoint, S: StateMachine, D: Disk> Host<E, S, D> {
    /// Puts a member on an endpoint, at whose address it serves.
    ///
    /// # Errors
    ///
    /// [`NexusError`] if the endpoint already handles calls of these types.
    pub fn new(mut rpc: E, member: Member<S, D>) -> Result<Self, NexusError> {
        rpc.handle_polled(PEER)?;
        rpc.handle_polled(CLIENT)?;
        rpc.handle_polled(GREET)?;
        let (deferred_calls, mut connections): (_, Connections) = Default::default();
        wire::to_bytes(&PeerMessage::NotAdmitted, &mut connections.not_admitted);
        // Without a key it draws no random numbers.
        let gate = Gate::new(None, UNADMITTED_MAX, Box::new(SeededGenerator::new(0)));
        Ok(Self { rpc, member, connections, deferred_calls, next_check_ns: 0, gate, key: None })
    }

    /// Admits only members and clients that have the cluster's key, and proves to other members that this one has it.
    /// `random` must be unpredictable to strangers.
    #[must_use]
    pub fn keyed(mut self, key: Key, random: Box<dyn Generator>) -> Self {
        self.key = Some(key.clone());
        self.gate = Gate::new(Some(key), UNADMITTED_MAX, random);
        self
    }

    /// Last refusal because of the key, whether another member refused this one or this one refused it: the other's
    /// address, and the reason.
    pub fn refusal(&self) -> Option<(&str, &'static str)> {
        self.connections.refusal.as_ref().map(|refusal| (refusal.address.as_str(), refusal.why))
    }

    /// The member.
    pub fn member(&self) -> &Member<S, D> {
        &self.member
    }

    /// The member, for example to hand over its leadership ([`Member::begin_stop`]).
    pub fn member_mut(&mut self) -> &mut Member<S, D> {
        &mut self.member
    }

    /// The endpoint.
    pub fn rpc(&mut self) -> &mut E {
        &mut self.rpc
    }

    /// Time for which it may sleep if nothing happens, in ns.
    pub fn sleep_ns(&self) -> u64 {
        self.member.next_turn_ns().saturating_sub(self.rpc.now_ns())
    }

    /// Turns the endpoint and the member once. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// [`MemberError`], after which the member can do no more.
    pub fn turn(&mut self) -> Result<bool, MemberError> {
        let mut busy = self.rpc.turn();
        let now_ns = self.rpc.now_ns();
        while let Some(call) = self.rpc.poll_request() {
            busy = true;
            self.handle_request(call, now_ns)?;
        }
        busy |= self.handle_completions(now_ns)?;
        self.handle_events(now_ns);
        let mut sender = Sender { rpc: &mut self.rpc, connections: &mut self.connections, now_ns, is_busy: false };
        if now_ns >= self.next_check_ns {
            self.next_check_ns = now_ns + CONNECT_INTERVAL_NS;
            // Followers have nothing to say to each other until their leader dies. An election must not begin with a
            // handshake, during which requests for votes are lost.
            for address in self.member.other_addresses() {
                sender.session(address);
            }
            self.deferred_calls.retain(|_, call| !call.is_abandoned());
            sender.connections.refusal.take_if(|refusal| now_ns > refusal.since_ns + REFUSAL_KEPT_NS);
        }
        busy |= self.member.turn(now_ns, &mut sender)?;
        busy |= sender.is_busy;
        self.member.count_unsent(std::mem::take(&mut self.connections.unsent));
        for (to, piece) in self.connections.failed.drain(..) {
            self.member.call_failed(to, piece);
        }
        if !self.connections.waiting.is_empty() {
            let mut nothing = Vec::new();
            wire::to_bytes(&PeerMessage::Nothing, &mut nothing);
            for (_, call) in self.connections.waiting.drain(..) {
                self.rpc.reply(call, &nothing);
                busy = true;
            }
        }
        self.member.take_answers(|request_id, answer| {
            if let Some(call) = self.deferred_calls.remove(&request_id) {
                self.rpc.reply(call, answer);
                busy = true;
            }
        });
        Ok(busy)
    }

    fn handle_request(&mut self, call: DeferredCall, now_ns: u64) -> Result<(), MemberError> {
        let client = call.client();
        match call.request_type() {
            GREET => {
                let answer = self.gate.handle_message(client, call.request());
                self.rpc.reply(call, &answer);
            }
            kind if !self.gate.is_proven(client) => {
                let mut answer = Vec::new();
                match kind {
                    PEER => wire::to_bytes(&PeerMessage::NotAdmitted, &mut answer),
                    _ => wire::encode(&Answer::NotAdmitted, &mut answer),
                }
                self.member.count_not_admitted();
                self.rpc.reply(call, &answer);
            }
            PEER => return self.handle_peer(call, now_ns),
            _ => self.handle_client(call, now_ns),
        }
        Ok(())
    }

    fn handle_peer(&mut self, call: DeferredCall, now_ns: u64) -> Result<(), MemberError> {
        match self.member.handle_peer(call.request(), now_ns)? {
            PeerAnswer::AtEndOfTurn(from) => self.connections.waiting.push_back((from, call)),
            PeerAnswer::Now(say) => {
                let mut bytes = Vec::new();
                wire::to_bytes(&say, &mut bytes);
                self.rpc.reply(call, &bytes);
            }
        }
        Ok(())
    }

    fn handle_client(&mut self, call: DeferredCall, now_ns: u64) {
        match self.member.handle_client(call.request(), now_ns) {
            Accepted::Answer(answer) => self.rpc.reply(call, &answer),
            Accepted::Deferred(request_id) => drop(self.deferred_calls.insert(request_id, call)),
        }
    }

    fn handle_completions(&mut self, now_ns: u64) -> Result<bool, MemberError> {
        let mut busy = false;
        while let Some(completion) = self.rpc.poll_completion() {
            busy = true;
            if let Some(connection) = self.connections.handshakes.remove(&completion.tag) {
                let answer = completion.result.is_ok().then_some(&completion.response[..]);
                self.handle_proof_answer(connection, answer, now_ns);
                continue;
            }
            let Some(sent) = self.connections.sent.remove(&completion.tag) else { continue };
            self.connections.list[sent.connection].in_flight -= 1;
            match completion.result {
                Ok(()) if completion.response[..] == self.connections.not_admitted[..] => {
                    self.on_refused(sent.connection, "it wants the cluster's key", now_ns);
                    self.member.call_failed(sent.to, sent.piece);
                }
                Ok(()) => {
                    self.connections.clear_refusal(sent.connection);
                    self.member.handle_answer(sent.to, sent.piece, &completion.response, now_ns)?;
                }
                Err(_) => self.member.call_failed(sent.to, sent.piece),
            }
        }
        Ok(busy)
    }

    fn handle_events(&mut self, now_ns: u64) {
        while let Some(event) = self.rpc.poll_event() {
            let session = event.session();
            let is_its = |connection: &Connection| connection.session() == Some(session);
            let Some(index) = self.connections.list.iter().position(is_its) else { continue };
            self.connections.list[index].state = match (event, &self.key) {
                (SessionEvent::Connected(session), None) => ConnectionState::Open(session),
                (SessionEvent::Connected(session), Some(key)) => {
                    let handshake = CallerHandshake::new(key, self.gate.random());
                    let greeting = handshake.greeting();
                    self.connections.list[index].state = ConnectionState::Proving(session, handshake);
                    self.send_proof(index, session, &greeting, now_ns);
                    continue;
                }
                _ => ConnectionState::Closed { until_ns: now_ns + REOPEN_NS },
            };
        }
        while let Some(event) = self.rpc.poll_client_event() {
            if let ClientEvent::Left { client, .. } = event {
                self.gate.forget(client);
            }
        }
    }

    fn send_proof(&mut self, connection: usize, session: SessionId, message: &[u8], now_ns: u64) {
        let tag = self.connections.next_tag;
        self.connections.next_tag += 1;
        let options = CallOptions::tag(tag).timeout_ns(ANSWER_NS);
        if !call::enqueue(&mut self.rpc, session, GREET, message, ANSWER_LEN, options) {
            return self.close(connection, REOPEN_NS, now_ns);
        }
        self.connections.handshakes.insert(tag, connection);
    }

    /// Handles the answer to a message of a [`CallerHandshake`]; `None` if there was no answer.
    fn handle_proof_answer(&mut self, connection: usize, answer: Option<&[u8]>, now_ns: u64) {
        let ConnectionState::Proving(session, handshake) = &mut self.connections.list[connection].state else { return };
        let session = *session;
        match answer.map(|answer| handshake.handle_answer(answer)) {
            None => self.close(connection, REOPEN_NS, now_ns),
            Some(HandshakeStep::Welcome) => {
                self.connections.list[connection].state = ConnectionState::Open(session);
                self.connections.clear_refusal(connection);
            }
            Some(HandshakeStep::Send(message)) => self.send_proof(connection, session, &message, now_ns),
            Some(HandshakeStep::Refused(why)) => self.on_refused(connection, why, now_ns),
        }
    }

    fn on_refused(&mut self, connection: usize, why: &'static str, now_ns: u64) {
        let address = self.connections.list[connection].address.clone();
        self.connections.refusal = Some(Refusal { address, why, since_ns: now_ns });
        self.close(connection, REFUSED_NS, now_ns);
    }

    fn close(&mut self, connection: usize, rest_ns: u64, now_ns: u64) {
        if let Some(session) = self.connections.list[connection].session() {
            self.rpc.disconnect(session);
        }
        self.connections.list[connection].state = ConnectionState::Closed { until_ns: now_ns + rest_ns };
    }
}
