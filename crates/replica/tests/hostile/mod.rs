//! Guarantees of a member that hold whatever its peers and clients send. Property tests and a fuzz target share them.
//!
//! Bytes are read as a list of steps, so that every byte string is a history, and small changes of the bytes are small
//! changes of the history.

use sinew_fabric::SeededGenerator;
use sinew_replica::client_wire::{Answer, ClientRequest, Freshness, Status};
use sinew_replica::disk::SimDisk;
use sinew_replica::kv::{Command, Expect, KvStore, Query, QueryResult};
use sinew_replica::machine::StateMachine;
use sinew_replica::member::{Accepted, Member, MemberConfig, PeerAnswer, Receiver, Transport};
use sinew_replica::sessions::Sessions;
use sinew_replica::wire::{
    self, ClusterId, Founding, Hello, KnownVoters, MemberId, MemberInfo, PeerMessage, Phase, Piece, PieceId, Roles,
    SnapshotMeta, WireEntry, WireMessage,
};

const MS: u64 = 1_000_000;
/// Members of the cluster, by their names, which are their addresses, too.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// An item of an honest client.
const BYSTANDER: &[u8] = b"bystander";
const VALUE: &[u8] = b"value";

type Kv = Member<KvStore, SimDisk>;

/// Any bytes are no message, or one that survives being written and read again.
pub fn messages(bytes: &[u8]) {
    let bytes = [&[wire::VERSION], bytes].concat();
    if let Ok(say) = wire::decode::<PeerMessage<'_>>(&bytes) {
        let once = said(&say);
        let twice = wire::decode::<PeerMessage<'_>>(&once).map(|say| said(&say));
        assert_eq!(twice.as_ref(), Ok(&once), "{say:?}");
    }
    let mut again = Vec::new();
    if let Ok(request) = wire::decode::<ClientRequest<'_>>(&bytes) {
        wire::encode(&request, &mut again);
        assert_eq!(wire::decode::<ClientRequest<'_>>(&again), Ok(request));
    }
    again.clear();
    if let Ok(answer) = wire::decode::<Answer<'_>>(&bytes) {
        wire::encode(&answer, &mut again);
        assert_eq!(wire::decode::<Answer<'_>>(&again), Ok(answer));
    }
}

/// Part that a member plays in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Leader,
    Follower,
    /// It is in no cluster yet.
    Newcomer,
}

/// Tells a member what `bytes` encode. It must not stop, must answer all the time, and must keep what an honest client
/// has put, as long as no message names its key and the member accepts no snapshot.
pub fn member(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let part = [Part::Leader, Part::Follower, Part::Newcomer][usize::from(first % 3)];
    let mut fed = Fed::new(part, first / 3 % 2 == 1);
    let before = fed.status();
    let mut steps = Steps(rest);
    while let Some(step) = steps.byte() {
        fed.take(step, &mut steps);
    }
    fed.turn();
    let after = fed.status();
    if part == Part::Newcomer {
        return;
    }
    assert_eq!(after.cluster, before.cluster);
    let is_named = rest.windows(BYSTANDER.len()).any(|window| window == BYSTANDER);
    if !is_named && after.snapshot == before.snapshot {
        fed.check_bystander();
    }
}

/// Receiver of a message, its address, and the message's bytes.
type Sent = (Option<MemberId>, Option<String>, Vec<u8>);

/// What a member has sent.
#[derive(Default)]
struct Outbox(Vec<Sent>);

impl Transport for Outbox {
    fn send(&mut self, to: Receiver<'_>, say: &PeerMessage<'_>) {
        let (to, address) = match to {
            Receiver::Member(to, address) => (Some(to), address.map(str::to_owned)),
            Receiver::Address(address) => (None, Some(address.to_owned())),
        };
        self.0.push((to, address, said(say)));
    }

    fn flush(&mut self) {}
}

fn said(say: &PeerMessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::to_bytes(say, &mut bytes);
    bytes
}

/// Opens a member, which is one of the cluster's or a newcomer.
fn open(name: &str, on_disk: bool, seed: u64, now_ns: u64) -> Kv {
    let mut peers = Vec::from(NAMES.map(|name| (name.to_owned(), name.to_owned())));
    if !NAMES.contains(&name) {
        peers.push((name.to_owned(), name.to_owned()));
    }
    let random = Box::new(SeededGenerator::new(seed));
    let disk = on_disk.then(SimDisk::new);
    Member::open(MemberConfig::default(), name, peers, KvStore::new(), disk, random, now_ns).unwrap()
}

/// A cluster of honest members.
struct World {
    members: Vec<Kv>,
    now_ns: u64,
}

impl World {
    fn new(on_disk: bool) -> Self {
        let members = NAMES.iter().zip(1..).map(|(name, seed)| open(name, on_disk, seed, 0)).collect();
        Self { members, now_ns: 0 }
    }

    /// Lets a millisecond pass. Messages arrive at once.
    fn step(&mut self) {
        self.now_ns += MS;
        for at in 0..self.members.len() {
            let mut outbox = Outbox::default();
            self.members[at].turn(self.now_ns, &mut outbox).unwrap();
            for (id, address, bytes) in outbox.0 {
                let Some(to) = NAMES.iter().position(|name| address.as_deref() == Some(*name)) else { continue };
                if let PeerAnswer::Now(say) = self.members[to].handle_peer(&bytes, self.now_ns).unwrap() {
                    self.members[at].handle_answer(id, None, &said(&say), self.now_ns).unwrap();
                }
            }
        }
    }

    fn leader(&self) -> Option<usize> {
        self.members.iter().position(Member::is_leader)
    }

    /// Asks the leader, once there is one, and waits for its answer.
    fn ask(&mut self, request: &ClientRequest<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        wire::encode(request, &mut bytes);
        let mut asked = None;
        for _ in 0..1000 {
            self.step();
            let Some(leader) = self.leader() else { continue };
            let member = &mut self.members[leader];
            let Some(id) = asked else {
                match member.handle_client(&bytes, self.now_ns) {
                    Accepted::Deferred(id) => asked = Some(id),
                    Accepted::Answer(answer) => return answer,
                }
                continue;
            };
            let mut found = None;
            member.take_answers(|of, answer| {
                if of == id {
                    found = Some(answer.to_vec());
                }
            });
            if let Some(answer) = found {
                return answer;
            }
        }
        panic!("nobody answers {request:?}");
    }
}

/// A transport to nobody.
struct Nowhere;

impl Transport for Nowhere {
    fn send(&mut self, _: Receiver<'_>, _: &PeerMessage<'_>) {}
    fn flush(&mut self) {}
}

/// A member that hears only what a history says, and is heard by nobody.
struct Fed {
    member: Kv,
    now_ns: u64,
    /// Senders of messages: its peers, a stranger, and itself.
    ids: Vec<MemberId>,
    founding: Founding,
    /// Session of the honest client.
    session: u64,
    /// Contents of a snapshot that it could accept.
    snapshot: Vec<u8>,
    /// Index of the last entry that it had applied after its last turn.
    applied: u64,
}

impl Fed {
    fn new(part: Part, on_disk: bool) -> Self {
        let mut world = World::new(on_disk);
        let answer = world.ask(&ClientRequest::Open { nonce: 7 });
        let Ok(Answer::Opened { session }) = wire::decode(&answer) else { panic!("{answer:?}") };
        let mut command = Vec::new();
        wire::encode(&Command::Put { key: BYSTANDER, value: VALUE }, &mut command);
        let answer = world.ask(&ClientRequest::Run { session, number: 0, done_below: 0, command: &command });
        assert!(matches!(wire::decode(&answer), Ok(Answer::CommandAnswer(_))), "{answer:?}");
        // The others hear of it with the next heartbeat.
        (0..20).for_each(|_| world.step());
        let leader = world.leader().expect("somebody leads");
        let cluster = ClusterId(world.members[leader].status(world.now_ns).cluster.expect("it has a cluster"));
        let members: Vec<MemberInfo> = world.members.iter().map(|member| member.me().clone()).collect();
        let mut snapshot = Vec::new();
        let machine = world.members[leader].machine().snapshot();
        let founding = Founding { cluster, members };
        // As a member serialises it.
        wire::encode(&(&founding, &founding.members, Sessions::default(), &machine[..]), &mut snapshot);
        let now_ns = world.now_ns;
        let member = match part {
            Part::Leader => world.members.swap_remove(leader),
            Part::Follower => world.members.swap_remove((leader + 1) % NAMES.len()),
            Part::Newcomer => open("d", on_disk, 9, now_ns),
        };
        let me = member.me().id;
        let peers = founding.members.iter().map(|member| member.id).filter(|id| *id != me);
        let ids = peers.chain([MemberId(7), me]).collect();
        let applied = member.applied();
        let mut fed = Self { member, now_ns, ids, founding, session, snapshot, applied };
        if part != Part::Newcomer {
            fed.check_bystander();
        }
        fed
    }

    /// Its status, for which it can always be asked.
    fn status(&mut self) -> Status {
        let answer = self.ask(&ClientRequest::Status).expect("this request does not wait");
        let Ok(Answer::Status(status)) = wire::decode(&answer) else { panic!("{answer:?}") };
        *status
    }

    fn check_bystander(&mut self) {
        let mut query = Vec::new();
        wire::encode(&Query::Get { key: BYSTANDER }, &mut query);
        let answer = self.ask(&ClientRequest::Read { freshness: Freshness::Stale, query: &query });
        let answer = answer.expect("this request does not wait");
        let Ok(Answer::QueryAnswer(found)) = wire::decode(&answer) else { panic!("{answer:?}") };
        let Ok(QueryResult::Item { item: Some(item), .. }) = wire::decode(found) else { panic!("{found:?}") };
        assert_eq!(item.value, VALUE);
    }

    /// Returns the answer, unless it comes later.
    fn ask(&mut self, request: &ClientRequest<'_>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        wire::encode(request, &mut bytes);
        self.ask_bytes(&bytes)
    }

    fn ask_bytes(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self.member.handle_client(bytes, self.now_ns) {
            Accepted::Answer(answer) => {
                assert!(wire::decode::<Answer<'_>>(&answer).is_ok(), "{answer:?}");
                Some(answer)
            }
            Accepted::Deferred(_) => None,
        }
    }

    fn turn(&mut self) {
        self.member.turn(self.now_ns, &mut Nowhere).unwrap();
        self.member.take_answers(|_, answer| assert!(wire::decode::<Answer<'_>>(answer).is_ok(), "{answer:?}"));
        let before = std::mem::replace(&mut self.applied, self.member.applied());
        assert!(self.applied >= before, "{} after {before}", self.applied);
    }

    fn take(&mut self, step: u8, steps: &mut Steps<'_>) {
        let now_ns = self.now_ns;
        match step % 8 {
            0 => _ = self.member.handle_peer(steps.bytes(), now_ns).unwrap(),
            1 => _ = self.ask_bytes(steps.bytes()),
            2 => {
                let (from, piece) = (steps.one_of(&self.ids), steps.piece_id());
                for bytes in self.messages(steps) {
                    self.member.handle_answer(Some(from), piece, &bytes, now_ns).unwrap();
                }
            }
            3 => self.member.call_failed(Some(steps.one_of(&self.ids)), steps.piece_id()),
            4 | 5 => {
                for bytes in self.messages(steps) {
                    self.member.handle_peer(&bytes, now_ns).unwrap();
                }
            }
            6 => self.take_request(steps),
            _ => {
                for _ in 0..=steps.small() % 16 {
                    self.now_ns += 2 * MS;
                    self.turn();
                }
            }
        }
    }

    /// What a peer says: an introduction, a snapshot, or messages of the engine.
    fn messages(&mut self, steps: &mut Steps<'_>) -> Vec<Vec<u8>> {
        let status = self.status();
        let cluster = ClusterId(self.founding.cluster.0 ^ u64::from(steps.small() % 16 == 1));
        let to = if steps.small() % 16 == 1 { MemberId(1) } else { status.me.id };
        let from = steps.one_of(&self.ids);
        match steps.small() % 4 {
            0 => vec![said(&PeerMessage::Hello(self.hello(steps)))],
            1 => {
                let mut data = self.snapshot.clone();
                if steps.small() % 2 == 1 {
                    let at = steps.small() as usize % data.len();
                    data[at] ^= steps.small() as u8;
                }
                let place = SnapshotMeta {
                    index: steps.word(status.last),
                    term: steps.word(status.term),
                    roles: self.roles(steps, status.me.id),
                };
                let term = steps.word(status.term);
                // In one piece or in two.
                let end = match steps.small() as usize {
                    0..128 => data.len(),
                    end => end % data.len(),
                };
                let piece = |at: usize, bytes: &[u8]| {
                    let piece = Piece { term, place: place.clone(), len: data.len() as u64, at: at as u64, bytes };
                    said(&PeerMessage::Piece { cluster, from, to, piece })
                };
                vec![piece(0, &data[..end]), piece(end, &data[end..])]
            }
            _ => {
                let count = 1 + steps.small() % 3;
                let encoded: Vec<_> = (0..count).map(|_| self.engine_message(&status, steps)).collect();
                let decoded = encoded.iter().map(|bytes| wire::decode::<WireMessage<'_>>(bytes));
                let messages = decoded.map(|message| message.expect("it has a message's fields")).collect();
                vec![said(&PeerMessage::Messages { cluster, from, to, messages })]
            }
        }
    }

    fn hello(&self, steps: &mut Steps<'_>) -> Hello {
        let me = self.info(steps);
        let phase = if steps.small().is_multiple_of(2) { Phase::New } else { Phase::MemberOf(self.founding.cluster) };
        // One that a newcomer takes for its own.
        let mut founding = self.founding.clone();
        founding.members.push(self.member.me().clone());
        let founding = (steps.small() % 2 == 1).then_some(founding);
        let known = (steps.small() % 2 == 1).then(|| {
            let lens = [4, steps.small() % 4, steps.small() % 4];
            let [incoming, outgoing, learners] = lens.map(|len| (0..len).map(|_| self.info(steps)).collect());
            KnownVoters { applied: steps.word(1), incoming, outgoing, learners }
        });
        Hello { me, phase, peers_hash: steps.word(0), founding, known }
    }

    fn info(&self, steps: &mut Steps<'_>) -> MemberInfo {
        let name = steps.name();
        MemberInfo { id: steps.one_of(&self.ids), address: name.clone(), name }
    }

    /// The cluster's members by their roles, with this one in some role.
    fn roles(&self, steps: &mut Steps<'_>, me: MemberId) -> Roles {
        let voters = self.founding.members.iter().map(|member| member.id.0).collect();
        let mut roles = Roles { voters, ..Roles::default() };
        match steps.small() % 4 {
            0 => roles.learners.push(me.0),
            1 => roles.voters.push(me.0),
            2 => {
                roles.voters_outgoing = std::mem::replace(&mut roles.voters, vec![me.0]);
                roles.auto_leave = true;
            }
            _ => {}
        }
        roles
    }

    /// The fields of a [`WireMessage`], in order.
    fn engine_message(&self, status: &Status, steps: &mut Steps<'_>) -> Vec<u8> {
        let kind = (steps.small() % 10) as u8;
        let (term, log_term, index) = (steps.word(status.term), steps.word(status.term), steps.word(status.last));
        let (commit, commit_term) = (steps.word(status.committed), steps.word(status.term));
        let (reject, hint, context) = (steps.small() % 2 == 1, steps.word(status.last), steps.bytes());
        let count = if kind == 0 { steps.small() % 4 } else { 0 };
        let contents: Vec<_> = (0..count).map(|_| self.entry(steps)).collect();
        let entries = contents.iter().zip(1..).map(|((kind, data, context), after)| WireEntry {
            kind: *kind,
            term,
            index: index.wrapping_add(after),
            data,
            context,
        });
        let entries: Vec<_> = entries.collect();
        let numbers = (kind, term, log_term, index, commit, commit_term);
        let mut bytes = Vec::new();
        wire::encode(&(numbers, (reject, hint, 0_i64), context, entries), &mut bytes);
        bytes
    }

    /// Kind, data and context of a log entry.
    fn entry(&self, steps: &mut Steps<'_>) -> (u8, Vec<u8>, Vec<u8>) {
        let mut bytes = Vec::new();
        match steps.small() % 4 {
            0 => (0, steps.bytes().to_vec(), bytes),
            1 => {
                let (mut voters, mut learners, mut removed) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..steps.small() % 4 {
                    match steps.small() % 3 {
                        0 => voters.push(self.info(steps)),
                        1 => learners.push(self.info(steps)),
                        _ => removed.push(steps.one_of(&self.ids)),
                    }
                }
                wire::encode(&(voters, learners, removed), &mut bytes);
                (2, Vec::new(), bytes)
            }
            _ => {
                // A command of a session is the third kind of entry.
                let (session, number, done_below) = (self.session(steps), steps.word(1), steps.word(0));
                wire::encode(&(2_u8, session, number, done_below, &steps.command()[..]), &mut bytes);
                (0, bytes, Vec::new())
            }
        }
    }

    fn session(&self, steps: &mut Steps<'_>) -> u64 {
        if steps.small() % 4 == 1 { steps.word(0) } else { self.session }
    }

    fn take_request(&mut self, steps: &mut Steps<'_>) {
        let (session, command, query) = (self.session(steps), steps.command(), steps.query());
        let freshness = [Freshness::Linear, Freshness::Lease, Freshness::Stale][steps.small() as usize % 3];
        let request = match steps.small() % 10 {
            0 => ClientRequest::Open { nonce: steps.small() },
            1 => ClientRequest::Close { session },
            2 | 3 => {
                let (number, done_below) = (steps.word(1), steps.word(0));
                ClientRequest::Run { session, number, done_below, command: &command }
            }
            4 => ClientRequest::Read { freshness, query: &query },
            5 => ClientRequest::Watch { query: &query },
            6 => {
                let learner = steps.small() % 2 == 1;
                ClientRequest::Add { name: steps.name(), address: steps.name(), learner }
            }
            7 => ClientRequest::Promote { name: steps.name() },
            8 => ClientRequest::Remove { name: steps.name() },
            _ => ClientRequest::Transfer { name: Some(steps.name()).filter(|name| name != "e") },
        };
        self.ask(&request);
    }
}

/// The rest of a history's bytes.
struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn small(&mut self) -> u64 {
        u64::from(self.byte().unwrap_or(0))
    }

    /// A number, mostly one near another or a small one.
    fn word(&mut self, near: u64) -> u64 {
        match self.byte().unwrap_or(0) {
            byte @ ..160 => (near + u64::from(byte % 8)).saturating_sub(3),
            160..224 => self.small(),
            224..240 => self.small() << 55,
            _ => u64::MAX - self.small(),
        }
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    fn one_of(&mut self, ids: &[MemberId]) -> MemberId {
        ids[self.small() as usize % ids.len()]
    }

    fn piece_id(&mut self) -> Option<PieceId> {
        let (has_one, index, at) = (self.small() % 2 == 1, self.word(1), self.word(0));
        has_one.then_some(PieceId { index, at })
    }

    /// Name of a member, or of none.
    fn name(&mut self) -> String {
        ["a", "b", "c", "d", "e"][self.small() as usize % 5].to_owned()
    }

    fn command(&mut self) -> Vec<u8> {
        let (key, value) = (self.bytes(), self.bytes());
        let command = match self.small() % 4 {
            0 => return key.to_vec(),
            1 => Command::Delete { key },
            2 => Command::Swap { key, expect: Expect::Nothing, value: Some(value) },
            _ => Command::Put { key, value },
        };
        let mut bytes = Vec::new();
        wire::encode(&command, &mut bytes);
        bytes
    }

    fn query(&mut self) -> Vec<u8> {
        let (key, limit) = (self.bytes(), self.small() as u32);
        let query = match self.small() % 4 {
            0 => return key.to_vec(),
            1 => Query::Range { from: key, to: None, limit },
            2 => Query::Watch { prefix: key, from: self.word(1), limit },
            _ => Query::Get { key },
        };
        let mut bytes = Vec::new();
        wire::encode(&query, &mut bytes);
        bytes
    }
}
