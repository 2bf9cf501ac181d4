//! Property tests: no input stops a member.

use proptest::prelude::*;
use sinew_fabric::SeededGenerator;
use sinew_journal::disk::SimDisk;

use super::super::*;
use super::world::*;
use crate::client_wire::{Answer, ClientRequest};
use crate::kv::KvStore;
use crate::wire::{self, ADDRESS_LEN_MAX, MEMBERS_MAX, NAME_LEN_MAX, Piece, PieceId, Roles, SnapshotMeta};

#[test]
fn messages_for_another_cluster_or_life_are_dropped_and_counted() {
    let mut world = World::new(3, false, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let (me, cluster) = (world.member(0).me().id, world.status(0).cluster.unwrap());
    let from = world.member(1).me().id;
    let now_ns = world.now_ns;
    let mut tell = |cluster, to| {
        let mut bytes = Vec::new();
        wire::to_bytes(
            &PeerMessage::Messages { cluster: ClusterId(cluster), from, to, messages: Default::default() },
            &mut bytes,
        );
        let answer = world.member(0).handle_peer(&bytes, now_ns).unwrap();
        (answer, world.member(0).dropped())
    };
    assert!(matches!(tell(cluster, me).0, PeerAnswer::AtEndOfTurn(_) | PeerAnswer::Now(PeerMessage::NoMember)));
    let (answer, dropped) = tell(cluster + 1, me);
    assert!(matches!(answer, PeerAnswer::Now(PeerMessage::WrongReceiver { .. })) && dropped.cluster == 1);
    let (answer, dropped) = tell(cluster, MemberId(me.0 ^ 1));
    assert!(matches!(answer, PeerAnswer::Now(PeerMessage::WrongReceiver { .. })) && dropped.member == 1);
}

/// A member that took this number for its cluster would drop all messages of the cluster that it is founded in.
#[test]
fn messages_for_no_cluster_are_dropped_by_new_members_too() {
    let mut world = World::new(3, false, 1);
    let (me, from) = (world.member(0).me().id, world.member(1).me().id);
    let mut bytes = Vec::new();
    let message = PeerMessage::Messages { cluster: ClusterId::NONE, from, to: me, messages: Default::default() };
    wire::to_bytes(&message, &mut bytes);
    for (dropped, is_founded) in [(1, false), (2, true)] {
        assert_eq!(world.status(0).cluster.is_some(), is_founded);
        let now_ns = world.now_ns;
        let answer = world.member(0).handle_peer(&bytes, now_ns).unwrap();
        assert!(matches!(answer, PeerAnswer::Now(PeerMessage::WrongReceiver { .. })));
        assert_eq!(world.member(0).dropped().cluster, dropped);
        let mut session = world.open(dropped);
        world.put(&mut session, "k", "v");
    }
}

type Change = fn(&mut Replicated<'_>, &mut SnapshotMeta);

/// Members of different names and ids.
fn some_members(count: usize) -> Vec<MemberInfo> {
    let member = |id| MemberInfo { id: MemberId(id), name: format!("m{id}"), address: format!("sim://m{id}") };
    (1..=count as u64).map(member).collect()
}

/// Sessions that are none, and count one byte of answers.
fn miscounted() -> Sessions {
    wire::decode(&[wire::VERSION, 0, 0, 0, 1]).unwrap()
}

/// Each makes a snapshot wrong in one way.
const WRONG_SNAPSHOTS: &[(&str, Change)] = &[
    ("founded as no cluster", |all, _| all.founding.cluster = ClusterId::NONE),
    ("founded by nobody", |all, _| all.founding.members.clear()),
    ("founded by too many", |all, _| all.founding.members = some_members(MEMBERS_MAX + 1)),
    ("founded by one twice", |all, _| all.founding.members.push(all.founding.members[0].clone())),
    ("founded by one without an id", |all, _| all.founding.members[0].id = MemberId(0)),
    ("too many members", |all, _| all.members = some_members(MEMBERS_MAX + 1)),
    ("a member twice", |all, _| all.members.push(all.members[0].clone())),
    ("a member without an id", |all, _| all.members[0].id = MemberId(0)),
    ("a member without a name", |all, _| all.members[0].name.clear()),
    ("too long a name", |all, _| all.members[0].name = "m".repeat(NAME_LEN_MAX + 1)),
    ("a member without an address", |all, _| all.members[0].address.clear()),
    ("too long an address", |all, _| all.members[0].address = "m".repeat(ADDRESS_LEN_MAX + 1)),
    ("sessions that are miscounted", |all, _| all.sessions = miscounted()),
    ("a session of another cluster", |all, _| _ = all.sessions.open(ClusterId(!all.founding.cluster.0), 900, 99)),
    ("a session that a later entry opened", |all, place| {
        all.sessions.open(all.founding.cluster, place.index + 1, 99);
    }),
    ("another kind of state", |all, _| all.machine = b"junk"),
    ("before the first entry", |_, place| place.index = 0),
    ("beyond the last possible entry", |_, place| place.index = wire::NUMBER_MAX),
    ("of no term", |_, place| place.term = 0),
    ("of a later term than its leader", |_, place| place.term += 1),
    ("without voters", |_, place| place.roles.voters.clear()),
    ("a voter twice", |_, place| place.roles.voters.push(place.roles.voters[0])),
    ("a voter that is a learner, too", |_, place| place.roles.learners.push(place.roles.voters[0])),
];

/// Each leaves what a snapshot holds valid.
const RIGHT_CONTENTS: &[(&str, Change)] = &[
    ("as it is", |_, _| ()),
    ("founded by as many as possible", |all, _| all.founding.members = some_members(MEMBERS_MAX)),
    ("as many members as possible", |all, _| all.members = some_members(MEMBERS_MAX)),
    ("two lives of one name", |all, _| all.members[1].name = all.members[0].name.clone()),
    ("the longest name", |all, _| all.members[0].name = "m".repeat(NAME_LEN_MAX)),
    ("the longest address", |all, _| all.members[0].address = "m".repeat(ADDRESS_LEN_MAX)),
    ("a session that the last entry opened", |all, place| {
        all.sessions.open(all.founding.cluster, place.index, 99);
    }),
];

/// The engine would have taken a wrong one, and the member could not have gone on.
#[test]
fn a_snapshot_that_is_wrong_in_one_way_is_refused_and_counted_and_the_right_one_is_taken() {
    let mut world = World::new(3, false, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    let to = (leader + 1) % 3;
    world.run_until("it has the value", |world| world.member(to).machine().len() == 1);
    let (me, from) = (world.member(to).me().id, world.member(leader).me().id);
    let (cluster, term) = (world.member(to).cluster.unwrap(), world.member(to).term());
    let founding = world.member(to).founding.clone().unwrap();
    let roles = Roles { voters: founding.members.iter().map(|member| member.id.0).collect(), ..Roles::default() };
    let (sessions, machine) = (world.member(leader).sessions.clone(), world.member(leader).machine().snapshot());
    let applied = world.member(to).applied();
    let changed = |change: Change| {
        let (founding, members) = (founding.clone(), founding.members.clone());
        let mut all = Replicated { founding, members, sessions: sessions.clone(), machine: &machine };
        let mut place = SnapshotMeta { index: 1000, term, roles: roles.clone() };
        change(&mut all, &mut place);
        (all, place)
    };
    let mut tell = |change: Change| {
        let (all, place) = changed(change);
        let mut data = Vec::new();
        wire::encode(&all, &mut data);
        let piece = Piece { term, place, len: data.len() as u64, at: 0, bytes: &data };
        let mut bytes = Vec::new();
        wire::to_bytes(&PeerMessage::Piece { cluster, from, to: me, piece }, &mut bytes);
        let now_ns = world.now_ns;
        let answer = world.member(to).handle_peer(&bytes, now_ns).unwrap();
        world.member(to).turn(now_ns, &mut NoTransport).unwrap();
        (answer, world.member(to).dropped().malformed, world.member(to).applied())
    };
    for (what, change) in RIGHT_CONTENTS {
        let (all, place) = changed(*change);
        assert!(all.is_valid(place.index), "{what}");
    }
    for ((what, change), refused) in WRONG_SNAPSHOTS.iter().zip(1..) {
        assert_eq!(tell(*change), (PeerAnswer::Now(PeerMessage::NoMember), refused, applied), "{what}");
    }
    let taken = tell(|_, _| ());
    assert_eq!(taken, (PeerAnswer::Now(PeerMessage::Nothing), WRONG_SNAPSHOTS.len() as u64, 1000));
}

/// A command that no message could carry to another member would be sent for ever, and all later ones would wait.
#[test]
fn a_command_that_is_too_long_for_a_message_is_refused() {
    let mut world = World::new(1, false, 1);
    let mut session = world.open(7);
    let command = put("k", "value");
    for (len_max, is_taken) in [(command.len() - 1, false), (command.len(), true)] {
        world.member(0).config.command_len_max = len_max;
        let answer = world.ask_leader(&session.run(&command));
        let is_refused = matches!(wire::decode(&answer), Ok(Answer::Refused(why)) if why.contains("bytes"));
        assert_eq!(is_refused, !is_taken);
    }
    session.next += 1;
    world.put(&mut session, "k", "v");
}

fn arbitrary_number() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..12, Just(1 << 61), Just(u64::MAX)]
}

prop_compose! {
    /// Bytes with the fields of [`WireMessage`], in order.
    fn message()(
        kind in 0_u8..10,
        numbers in proptest::collection::vec(arbitrary_number(), 5),
        reject in any::<bool>(),
        hint in arbitrary_number(),
        context in proptest::collection::vec(any::<u8>(), 0..10),
        start in 0_u64..12,
        terms in proptest::collection::vec(1_u64..6, 0..4),
        kinds in 0_u8..3,
    ) -> Vec<u8> {
        let entries: Vec<_> = terms
            .iter()
            .zip(start..)
            .map(|(term, index)| WireEntry { kind: kinds, term: *term, index, data: &context, context: &context })
            .collect();
        let fields = (kind, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], reject, hint);
        let tuple = (fields, 0_i64, serde_bytes::Bytes::new(&context), entries);
        postcard::to_allocvec(&tuple).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_message_of_a_member_stops_another(messages in proptest::collection::vec(message(), 1..12), seed in 0_u64..5) {
        let mut world = World::new(3, true, seed * 100);
        let mut session = world.open(7);
        for index in 0..4 {
            world.put(&mut session, &index.to_string(), "v");
        }
        let to = (seed % 3) as usize;
        let from = world.member((to + 1) % 3).me().id;
        for message in messages {
            let (me, cluster) = (world.member(to).me().id, world.status(to).cluster.unwrap());
            let Ok(message) = postcard::from_bytes::<WireMessage<'_>>(&message) else { continue };
            let say = PeerMessage::Messages { cluster: ClusterId(cluster), from, to: me, messages: [message].into() };
            let mut bytes = Vec::new();
            wire::to_bytes(&say, &mut bytes);
            let now_ns = world.now_ns;
            prop_assert!(world.member(to).handle_peer(&bytes, now_ns).is_ok());
            world.member(to).turn(now_ns, &mut NoTransport).unwrap();
        }
    }

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() { *first = wire::VERSION; }
        let peers = vec![("a".to_owned(), "x".to_owned())];
        let random = Box::new(SeededGenerator::new(1));
        let mut member: Member<KvStore, SimDisk> =
            Member::open(MemberConfig::default(), "a", peers, KvStore::new(), None, random, 0).unwrap();
        member.turn(0, &mut NoTransport).unwrap();
        let _ = member.handle_client(&bytes, 0);
        let _ = member.handle_peer(&bytes, 0);
        let piece = (bytes.len() % 2 == 0).then_some(PieceId { index: 1, at: 0 });
        let _ = member.handle_answer(Some(MemberId(3)), piece, &bytes, 0);
        member.turn(10_000_000, &mut NoTransport).unwrap();
    }
}

struct NoTransport;

impl Transport for NoTransport {
    fn send(&mut self, _: Receiver<'_>, _: &PeerMessage<'_>) {}
    fn flush(&mut self) {}
}

#[test]
fn pieces_of_a_snapshot_that_makes_no_sense_are_dropped() {
    let mut world = World::new(3, false, 1);
    world.open(7);
    let leader = world.elect();
    let to = (leader + 1) % 3;
    let (me, cluster) = (world.member(to).me().id, ClusterId(world.status(to).cluster.unwrap()));
    let (from, term) = (world.member(leader).me().id, world.member(leader).term());
    let now_ns = world.now_ns;
    let roles = Roles { voters: vec![1, 2, 3], ..Roles::default() };
    for (index, len, at, bytes) in [
        (9, 3, 0, &b"abc"[..]),
        (9, 2, 0, b"abc"),
        (9, 100, 50, b"abc"),
        (u64::MAX, 0, 0, b""),
        (9, u64::MAX, 0, b"abc"),
    ] {
        let place = SnapshotMeta { index, term, roles: roles.clone() };
        let piece = Piece { term, place, len, at, bytes };
        let mut said = Vec::new();
        wire::to_bytes(&PeerMessage::Piece { cluster, from, to: me, piece }, &mut said);
        world.member(to).handle_peer(&said, now_ns).unwrap();
        world.step();
    }
    assert!(world.nodes[to].error.is_none());
    let status = world.call(to, &ClientRequest::Status, 10);
    assert!(status.is_some());
}

#[test]
fn a_piece_that_was_sent_twice_and_acknowledged_twice_counts_once() {
    let mut world = World::new(3, false, 1);
    world.config.piece_len = 10;
    world.crash(0);
    world.start(0);
    let now_ns = world.now_ns;
    let (member, to) = (world.member(0), MemberId(9));
    let mut message = Message { to: to.0, term: member.term(), ..Message::default() };
    message.mut_snapshot().data = vec![1; 30].into();
    message.mut_snapshot().mut_metadata().index = 5;
    member.cluster = Some(ClusterId(1));
    member.begin_pieces(message);
    member.send_pieces(now_ns, &mut NoTransport);
    let mut nothing = Vec::new();
    wire::to_bytes(&PeerMessage::Nothing, &mut nothing);
    for (index, at, next) in [(5, 0, 10), (5, 0, 10), (4, 10, 10), (5, 10, 20)] {
        member.handle_answer(Some(to), Some(PieceId { index, at }), &nothing, now_ns).unwrap();
        assert_eq!(member.outgoing_at(to), Some(next));
        member.send_pieces(now_ns, &mut NoTransport);
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let open = |name: &str, peers: &[(&str, &str)]| {
        let peers = peers.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect();
        let random = Box::new(SeededGenerator::new(1));
        let opened: Result<Member<KvStore, SimDisk>, _> =
            Member::open(MemberConfig::default(), name, peers, KvStore::new(), None, random, 0);
        opened.map(|_| ()).unwrap_err().to_string()
    };
    assert!(open("a", &[("a", "x"), ("a", "y")]).contains("one name"));
    assert!(open("a", &[("b", "x")]).contains("not among"));
    assert!(open("a", &[("a", "")]).contains("address"));
}
