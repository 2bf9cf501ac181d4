//! Appends that the engine joins, in a schedule made by hand.

use raft::eraftpb::MessageType;

use super::super::*;
use super::world::*;
use crate::wire;

/// What a member has sent.
#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl Transport for Sent {
    fn send(&mut self, _: Receiver<'_>, say: &PeerMessage<'_>) {
        let mut bytes = Vec::new();
        wire::to_bytes(say, &mut bytes);
        self.0.push(bytes);
    }

    fn flush(&mut self) {}
}

/// Hands a member what the other has sent.
fn tell(world: &mut World, at: usize, sent: &[Vec<u8>]) {
    let now_ns = world.now_ns;
    for bytes in sent {
        world.member(at).handle_peer(bytes, now_ns).unwrap();
    }
}

/// Gives a member a turn. Returns what it sends.
fn turn(world: &mut World, at: usize) -> Vec<Vec<u8>> {
    let (now_ns, mut sent) = (world.now_ns, Sent::default());
    world.member(at).turn(now_ns, &mut sent).unwrap();
    sent.0
}

/// Gives the leader a command, and a turn. Returns what it sends.
fn propose(world: &mut World, leader: usize, session: &mut Session) -> Vec<Vec<u8>> {
    let command = put("k", "v");
    let taken = world.ask(leader, &session.run(&command));
    assert!(matches!(taken, Some(Accepted::Deferred(_))), "{taken:?}");
    session.next += 1;
    turn(world, leader)
}

/// Of two appends the first is lost. The follower's answers to a heartbeat and to the second append arrive together. At
/// the first answer the engine makes an append without entries, whose place is the end of the log, since it counts on
/// both appends; at the second, which is a refusal, it adds all entries that the follower lacks to that append.
#[test]
fn a_follower_takes_entries_that_the_engine_joined_to_an_append_of_another_place() {
    let mut world = World::new(2, false, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    let follower = 1 - leader;
    let before = world.status(leader).last;
    let lost = propose(&mut world, leader, &mut session);
    let heartbeat = loop {
        world.now_ns += world.config.tick_ns;
        let sent = turn(&mut world, leader);
        if !sent.is_empty() {
            break sent;
        }
    };
    let second = propose(&mut world, leader, &mut session);
    assert_eq!((lost.len(), heartbeat.len(), second.len()), (1, 1, 1));
    tell(&mut world, follower, &heartbeat);
    tell(&mut world, follower, &second);
    let answers = turn(&mut world, follower);
    assert_eq!(world.status(follower).last, before);
    tell(&mut world, leader, &answers);
    let messages = world.member(leader).node.raft.msgs.iter();
    let appends = messages.filter(|message| message.get_msg_type() == MessageType::MsgAppend);
    let places = appends.map(|message| (message.index, message.entries.iter().map(|entry| entry.index).collect()));
    let places: Vec<(u64, Vec<u64>)> = places.collect();
    assert_eq!(places, [(before + 2, vec![before + 1, before + 2])], "else there is nothing to mend");
    let joined = turn(&mut world, leader);
    tell(&mut world, follower, &joined);
    let answers = turn(&mut world, follower);
    assert_eq!(world.status(follower).last, before + 2);
    tell(&mut world, leader, &answers);
    turn(&mut world, leader);
    assert_eq!(world.status(leader).committed, before + 2);
}

/// Bytes of each long value.
const LONG: usize = 300_000;

/// Three members with one cut off, which lacks 20 long values. Returns the index of that one, and how many bytes were
/// sent to it before.
fn with_long_values_to_send() -> (World, usize, usize) {
    let mut world = World::new(3, false, 1);
    let mut session = world.open(7);
    let behind = (world.elect() + 1) % 3;
    world.isolate(&[behind]);
    for number in 0..20 {
        world.put(&mut session, &format!("long{number}"), &"v".repeat(LONG));
    }
    let before = world.nodes[behind].called_len;
    (world, behind, before)
}

#[test]
fn a_member_that_was_cut_off_gets_long_entries_once_however_late_it_answers() {
    let (mut world, behind, before) = with_long_values_to_send();
    world.nodes[behind].latency_ns = 20_000_000;
    world.cut.clear();
    world.run_until("it has all", |world| world.member(behind).machine().revision() == 20);
    world.run_ms(200);
    let sent = world.nodes[behind].called_len - before;
    assert!(sent < 20 * LONG + 4 * LONG, "{sent} bytes for 20 values of {LONG}");
}

#[test]
fn no_more_than_a_window_of_bytes_is_on_its_way_to_a_member_that_is_stopped() {
    let mut world = World::new(3, false, 1);
    let mut session = world.open(7);
    let behind = (world.elect() + 1) % 3;
    world.stopped.insert(behind);
    let before = world.nodes[behind].called_len;
    for number in 0..20 {
        world.put(&mut session, &format!("long{number}"), &"v".repeat(LONG));
    }
    let sent = world.nodes[behind].called_len - before;
    let window = world.config.appends_len_max as usize;
    assert!(sent > LONG && sent < window + 2 * LONG, "{sent} bytes");
    world.stopped.clear();
    world.run_until("it has all", |world| world.member(behind).machine().revision() == 20);
}
