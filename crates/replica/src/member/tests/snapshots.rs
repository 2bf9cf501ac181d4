//! Tests of members that receive a snapshot for which their disk has no room, or that keeps them busy for long.

use raft::StateRole;

use super::world::*;
use crate::client_wire::{Answer, ClientRequest, Freshness};
use crate::member::Accepted;
use crate::wire;

/// Three members with disks, of which one is cut off and so far behind that it needs a snapshot. It has the first of 50
/// changes. Returns it as well.
fn with_one_behind(piece_len: usize) -> (World, Session, usize) {
    let mut world = World::new(3, true, 1);
    (world.config.log_len_max, world.config.entries_kept, world.config.piece_len) = (1, 0, piece_len);
    for at in 0..3 {
        world.crash(at);
        world.start(at);
    }
    let mut session = world.open(7);
    world.put(&mut session, "k", "0");
    let behind = (world.elect() + 1) % 3;
    world.run_until("it has the first value", |world| world.member(behind).machine().len() == 1);
    world.isolate(&[behind]);
    for value in 1..50 {
        world.put(&mut session, "k", &value.to_string());
    }
    world.run_ms(100);
    (world, session, behind)
}

fn run_until_it_has_all(world: &mut World, behind: usize) {
    world.run_until("it has all", |world| world.member(behind).machine().revision() == 50);
    assert!(!world.status(behind).is_full);
}

#[test]
fn a_follower_whose_disk_has_no_room_for_a_snapshot_stays_up_and_installs_it_once_there_is_room() {
    for is_restarted in [false, true] {
        let (mut world, mut session, behind) = with_one_behind(1 << 15);
        let leader = world.elect();
        let (term, applied) = (world.member(leader).term(), world.member(behind).applied());
        world.set_full(behind, true);
        world.cut.clear();
        world.run_until("it refuses a snapshot", |world| world.member(behind).dropped().disk_full > 0);
        if is_restarted {
            world.crash(behind);
            world.start(behind);
        }
        // The leader gives a transfer up after five seconds, and begins another.
        world.run_ms(6000);
        assert_eq!(world.nodes[behind].error, None);
        let status = world.status(behind);
        assert_eq!((status.applied, status.is_full), (applied, true));
        let query = get("k");
        let read = ClientRequest::Read { freshness: Freshness::Stale, query: &query };
        let Some(Accepted::Answer(answer)) = world.ask(behind, &read) else { panic!("a stale read does not wait") };
        assert_eq!(found(&answer).as_deref(), Some("0"));
        // It has acknowledged nothing, and disturbs nobody.
        let members = world.status(leader).members;
        let known = members.iter().find(|member| member.info.id == status.me.id).unwrap();
        assert!(known.matched <= Some(applied), "{known:?}");
        assert_eq!((world.leader(), world.member(leader).term()), (Some(leader), term));
        world.set_full(behind, false);
        run_until_it_has_all(&mut world, behind);
        // It goes on from its disk, and is needed for the majority.
        world.crash(behind);
        world.start(behind);
        world.crash(3 - leader - behind);
        world.put(&mut session, "k", "last");
        assert_eq!(world.get("k").as_deref(), Some("last"));
    }
}

#[test]
fn a_snapshot_for_which_there_is_no_room_once_it_has_come_is_sent_again() {
    let (mut world, mut session, behind) = with_one_behind(10);
    let applied = world.member(behind).applied();
    world.cut.clear();
    world.run_until("its first piece has come", |world| world.member(behind).incoming.is_some());
    world.set_full(behind, true);
    world.run_until("its last piece has come", |world| world.member(behind).incoming.is_none());
    world.run_ms(200);
    assert_eq!(world.nodes[behind].error, None);
    let status = world.status(behind);
    assert_eq!((status.applied, status.is_full), (applied, true));
    world.set_full(behind, false);
    run_until_it_has_all(&mut world, behind);
    world.put(&mut session, "k", "last");
}

/// The pieces that it had are gone, which the leader cannot know before it is told.
#[test]
fn a_member_that_restarts_amid_a_snapshot_soon_gets_it_from_its_start() {
    let (mut world, _, behind) = with_one_behind(10);
    world.cut.clear();
    world.run_until("its first piece has come", |world| world.member(behind).incoming.is_some());
    world.crash(behind);
    world.start(behind);
    let began_ns = world.now_ns;
    run_until_it_has_all(&mut world, behind);
    let took_ms = (world.now_ns - began_ns) / 1_000_000;
    assert!(took_ms < 1000, "{took_ms} ms");
}

/// It checks and installs a snapshot in one turn, for which what the others say meanwhile has to wait.
#[test]
fn a_member_that_installs_a_snapshot_for_long_takes_nobody_for_silent_and_asks_for_no_votes() {
    for took_ms in [30, 100, 3000] {
        let (mut world, session, behind) = with_one_behind(1 << 15);
        let leader = world.elect();
        let term = world.member(leader).term();
        world.nodes[behind].write_ns = took_ms * 1_000_000;
        world.cut.clear();
        world.run_until("it has installed it", |world| world.member(behind).machine().revision() == 50);
        world.nodes[behind].write_ns = 0;
        assert_eq!(world.nodes[behind].away_until_ns, world.now_ns + took_ms * 1_000_000);
        let patience_ticks = world.member(behind).patience.ticks();
        world.run_ms(took_ms - 1);
        // A client's request comes before what the others have said.
        let command = put("k", "v");
        let Some(Accepted::Answer(answer)) = world.ask(behind, &session.run(&command)) else {
            panic!("it does not lead")
        };
        let Ok(Answer::NotLeader { leader: Some(named), silent, .. }) = wire::decode(&answer) else {
            panic!("{answer:?}")
        };
        assert_eq!((named.name, silent), (world.nodes[leader].name.clone(), Vec::new()), "{took_ms} ms");
        for _ in 0..1000 {
            world.step();
            assert_eq!(world.member(behind).node.raft.state, StateRole::Follower, "{took_ms} ms");
        }
        assert_eq!((world.leader(), world.member(leader).term()), (Some(leader), term), "{took_ms} ms");
        assert_eq!(world.member(behind).patience.ticks(), patience_ticks, "{took_ms} ms");
    }
}
