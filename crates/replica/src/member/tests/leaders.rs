//! Leaders that are deposed and lead again, whose hand-over does not come about, or whose followers are far behind.

use super::world::*;
use crate::client_wire::{Answer, ClientRequest, Freshness};
use crate::kv::{Query, QueryResult};
use crate::member::{Accepted, appends};
use crate::wire::{self, MemberId};

in_memory_and_on_disk! {
    a_watch_that_finds_nothing_goes_on_after_what_was_searched,
    a_watch_does_not_stay_at_a_member_that_hears_of_no_more_changes,
    a_learner_that_is_cut_off_names_the_leader_that_it_had_and_says_that_it_is_silent,
    a_snapshot_wakes_the_watches_that_it_concerns,
    a_leader_that_was_deposed_just_before_a_check_does_not_make_it_when_it_leads_again,
    a_transfer_that_does_not_come_about_ends_after_an_election_timeout_and_writes_go_on,
    a_hand_over_that_is_asked_for_again_and_again_ends_after_an_election_timeout,
    a_leader_that_is_deposed_sends_none_of_the_appends_that_it_had_queued,
    appends_that_are_queued_for_a_member_are_dropped_once_it_cannot_be_reached,
    appends_that_are_queued_for_a_member_are_dropped_once_it_is_removed,
}

fn transfer(world: &World, to: usize) -> ClientRequest<'static> {
    ClientRequest::Transfer { name: Some(world.nodes[to].name.clone()) }
}

fn a_watch_that_finds_nothing_goes_on_after_what_was_searched(on_disk: bool) {
    let mut world = World::new(1, on_disk, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "before");
    let watch = |from| {
        let mut query = Vec::new();
        wire::encode(&Query::Watch { prefix: b"w", from, limit: 1 }, &mut query);
        query
    };
    let Some(Accepted::Deferred(held)) = world.ask(0, &ClientRequest::Watch { query: &watch(1) }) else {
        panic!("there was no change to find")
    };
    for value in 0..3 {
        world.put(&mut session, "k", &value.to_string());
    }
    world.run_ms(5000);
    let answer = world.answer(0, held).expect("its time is over");
    assert_eq!(wire::decode(&answer), Ok(Answer::NothingYet { query: &watch(5) }));
}

fn watch(from: u64) -> Vec<u8> {
    let mut query = Vec::new();
    wire::encode(&Query::Watch { prefix: b"k", from, limit: 1 }, &mut query);
    query
}

#[test]
fn watches_have_a_limit_of_their_own_and_stop_no_other_request() {
    let mut world = World::new(1, false, 1);
    (world.config.watches_max, world.config.held_max) = (3, 2);
    world.replace(0);
    let mut session = world.open(7);
    let query = watch(1);
    let ask = ClientRequest::Watch { query: &query };
    let held: Vec<_> = (0..3).map(|_| world.ask(0, &ask)).collect();
    assert!(held.iter().all(|held| matches!(held, Some(Accepted::Deferred(_)))));
    let Some(Accepted::Answer(answer)) = world.ask(0, &ask) else { panic!("there are three") };
    assert_eq!(wire::decode(&answer), Ok(Answer::Busy));
    world.put(&mut session, "k", "v");
    for held in held {
        let Some(Accepted::Deferred(held)) = held else { panic!() };
        assert!(world.answer(0, held).is_some());
    }
}

/// A leader that did nothing else for long would be taken for dead.
#[test]
fn what_is_found_for_many_at_once_is_found_over_several_turns() {
    let mut world = World::new(1, false, 1);
    world.config.found_len_max = 3500;
    world.replace(0);
    let mut session = world.open(7);
    world.put(&mut session, "k", "before");
    let query = watch(2);
    let value = "v".repeat(1000);
    let mut held: Vec<_> = (0..10).map(|_| world.ask(0, &ClientRequest::Watch { query: &query })).collect();
    let answered = |world: &mut World, held: &mut Vec<Option<Accepted>>| {
        let before = held.len();
        held.retain(|held| {
            let Some(Accepted::Deferred(held)) = held else { panic!("{held:?}") };
            world.answer(0, *held).is_none()
        });
        before - held.len()
    };
    let command = put("k", &value);
    world.ask(0, &session.run(&command));
    world.step();
    for left in [7, 4, 1, 0] {
        assert_eq!((answered(&mut world, &mut held), held.len()), (if left > 0 { 3 } else { 1 }, left));
        world.step();
    }
    // So it is with reads, whether they wait or not.
    let mut get = Vec::new();
    wire::encode(&Query::Get { key: b"k" }, &mut get);
    let read = |freshness| ClientRequest::Read { freshness, query: &get };
    let mut held: Vec<_> = (0..7).map(|_| world.ask(0, &read(Freshness::Linear))).collect();
    for left in [4, 1, 0] {
        world.step();
        assert_eq!((answered(&mut world, &mut held), held.len()), (if left > 0 { 3 } else { 1 }, left));
    }
    for is_busy in [false, false, false, true] {
        let Some(Accepted::Answer(answer)) = world.ask(0, &read(Freshness::Stale)) else { panic!("it needs no turn") };
        assert_eq!(wire::decode(&answer) == Ok(Answer::Busy), is_busy);
    }
    world.step();
    assert!(matches!(world.ask(0, &read(Freshness::Stale)), Some(Accepted::Answer(answer)) if answer.len() > 1000));
}

/// Of reads that are answered as they come, reads that wait, and watches, none make the others wait for ever.
#[test]
fn reads_and_watches_are_answered_however_many_others_there_are() {
    let mut world = World::new(1, false, 1);
    world.config.found_len_max = 1000;
    world.replace(0);
    let mut session = world.open(7);
    world.put(&mut session, "k", &"v".repeat(1000));
    let mut get = Vec::new();
    wire::encode(&Query::Get { key: b"k" }, &mut get);
    let query = watch(2);
    let mut watches: Vec<_> = (0..5).map(|_| world.ask(0, &ClientRequest::Watch { query: &query })).collect();
    let quiet = watch(9);
    let Some(Accepted::Deferred(last)) = world.ask(0, &ClientRequest::Watch { query: &quiet }) else { panic!() };
    let mut reads: Vec<_> =
        (0..100).map(|_| world.ask(0, &ClientRequest::Read { freshness: Freshness::Linear, query: &get })).collect();
    world.ask(0, &session.run(&put("k", "new")));
    let is_held = |world: &mut World, held: &Option<Accepted>| {
        let Some(Accepted::Deferred(held)) = held else { panic!("{held:?}") };
        world.answer(0, *held).is_none()
    };
    for _ in 0..30 {
        for _ in 0..3 {
            world.ask(0, &ClientRequest::Read { freshness: Freshness::Stale, query: &get });
        }
        world.step();
        watches.retain(|held| is_held(&mut world, held));
        reads.retain(|held| is_held(&mut world, held));
    }
    assert!(watches.is_empty() && reads.len() < 90, "{} and {}", watches.len(), reads.len());
    world.run_ms(5000);
    assert!(world.answer(0, last).is_some(), "its time is over");
}

fn a_watch_does_not_stay_at_a_member_that_hears_of_no_more_changes(on_disk: bool) {
    for (removed, learner) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut world = World::new(3, on_disk, 1);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let old = if learner { world.add_node("x", on_disk) } else { world.elect() };
        if learner {
            world.run_ms(10);
            world.ask_leader(&ClientRequest::Add { name: "x".into(), address: "sim://x".into(), learner });
            world.run_until("it has the value", |world| world.member(old).machine().len() == 1);
            world.run_ms(20);
        }
        let mut query = Vec::new();
        wire::encode(&Query::Watch { prefix: b"k", from: 2, limit: 1 }, &mut query);
        let watch = ClientRequest::Watch { query: &query };
        let Some(Accepted::Deferred(held)) = world.ask(old, &watch) else { panic!("there was no change to find") };
        if removed {
            let name = world.nodes[old].name.clone();
            world.ask_leader(&ClientRequest::Remove { name });
        } else {
            world.isolate(&[old]);
        }
        world.run_ms(5000);
        let answer = world.answer(old, held).expect("its time is over");
        assert!(matches!(wire::decode(&answer), Ok(Answer::NothingYet { .. })), "{answer:?}");
        let Some(Accepted::Answer(answer)) = world.ask(old, &watch) else { panic!("it would wait for ever") };
        assert!(matches!(wire::decode(&answer), Ok(Answer::NotLeader { .. })), "{answer:?}");
        // A member that hears of changes takes the watch, and what stands already is told by any.
        let other = (0..3).find(|at| *at != old && *at != world.elect()).unwrap();
        assert!(matches!(world.ask(other, &watch), Some(Accepted::Deferred(_))));
        let mut query = Vec::new();
        wire::encode(&Query::Watch { prefix: b"k", from: 1, limit: 1 }, &mut query);
        let Some(Accepted::Answer(answer)) = world.ask(old, &ClientRequest::Watch { query: &query }) else { panic!() };
        assert!(matches!(wire::decode(&answer), Ok(Answer::QueryAnswer(_))), "{answer:?}");
    }
}

/// It never asks for votes, so it names that leader for ever. What a client makes of this: `tests/client.rs`.
fn a_learner_that_is_cut_off_names_the_leader_that_it_had_and_says_that_it_is_silent(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    let session = world.open(7);
    let learner = world.add_node("x", on_disk);
    world.run_ms(10);
    world.ask_leader(&ClientRequest::Add { name: "x".into(), address: "sim://x".into(), learner: true });
    world.run_ms(100);
    let old = world.elect();
    world.isolate(&[learner]);
    world.run_ms(100);
    world.crash(old);
    world.run_until("another leads", |world| world.leader().is_some());
    world.run_ms(1000);
    let command = put("k", "v");
    let Some(Accepted::Answer(answer)) = world.ask(learner, &session.run(&command)) else { panic!("it does not lead") };
    let Ok(Answer::NotLeader { leader: Some(named), members, silent }) = wire::decode(&answer) else {
        panic!("{answer:?}")
    };
    assert_eq!((&named.name, members.len()), (&world.nodes[old].name, 4));
    assert!(silent.contains(&named.name), "{silent:?}");
}

fn a_snapshot_wakes_the_watches_that_it_concerns(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    (world.config.log_len_max, world.config.entries_kept) = (1, 0);
    for at in 0..3 {
        let config = world.config.clone();
        world.member(at).config = config;
    }
    let mut session = world.open(7);
    world.put(&mut session, "k", "0");
    let apart = (world.elect() + 1) % 3;
    world.run_until("it has the first value", |world| world.member(apart).machine().len() == 1);
    let mut query = Vec::new();
    wire::encode(&Query::Watch { prefix: b"k", from: 2, limit: 1 }, &mut query);
    let Some(Accepted::Deferred(held)) = world.ask(apart, &ClientRequest::Watch { query: &query }) else {
        panic!("there was no change to find")
    };
    world.isolate(&[apart]);
    for value in 1..50 {
        world.put(&mut session, "k", &value.to_string());
    }
    world.run_ms(100);
    world.cut.clear();
    world.run_until("it has all", |world| world.member(apart).machine().revision() == 50);
    world.run_ms(1);
    let answer = world.answer(apart, held).expect("the watch is answered long before its time is over");
    let Ok(Answer::QueryAnswer(found)) = wire::decode(&answer) else { panic!("{answer:?}") };
    assert_eq!(wire::decode(found), Ok(QueryResult::Compacted { oldest: 51 }));
}

fn a_leader_that_was_deposed_just_before_a_check_does_not_make_it_when_it_leads_again(on_disk: bool) {
    for seed in 0..10 {
        let mut world = World::new(3, on_disk, seed * 100);
        let leader = world.elect();
        let (other, third) = ((leader + 1) % 3, (leader + 2) % 3);
        world.run_ms(50);
        let last_tick = world.config.election_ticks - 1;
        world.run_until("its next tick brings a check", |world| world.member(leader).unchecked_ticks.1 == last_tick);
        let to_other = transfer(&world, other);
        world.ask(leader, &to_other);
        world.run_until("the other leads", |world| world.leader() == Some(other));
        assert_eq!(world.member(leader).unchecked_ticks.1, last_tick, "seed {seed}: it was deposed before its tick");
        let back = transfer(&world, leader);
        world.ask(other, &back);
        world.run_until("it leads again", |world| world.leader() == Some(leader));
        // Until its followers have answered, a check would find no majority.
        let term = world.member(leader).term();
        world.stopped.extend([other, third]);
        world.run_ms(10);
        assert!(world.member(leader).is_leader(), "seed {seed}");
        world.stopped.clear();
        world.run_ms(100);
        assert_eq!((world.leader(), world.member(leader).term()), (Some(leader), term), "seed {seed}");
    }
}

fn a_transfer_that_does_not_come_about_ends_after_an_election_timeout_and_writes_go_on(on_disk: bool) {
    for seed in 0..10 {
        let mut world = World::new(3, on_disk, seed * 100);
        let mut session = world.open(7);
        let leader = world.elect();
        let (dead, third) = ((leader + 1) % 3, (leader + 2) % 3);
        world.run_ms(50);
        // The leader has learned to wait for longer before it takes its followers for dead.
        world.delay(&[dead, third]);
        assert!(world.member(leader).patience.ticks() > 2 * world.config.election_ticks);
        world.crash(dead);
        let to_dead = transfer(&world, dead);
        let answer = world.call(leader, &to_dead, 24 + 6).expect("the transfer has ended");
        assert!(matches!(wire::decode(&answer), Ok(Answer::Refused(why)) if why.contains("in time")), "seed {seed}");
        let since_ns = world.now_ns;
        world.put(&mut session, "k", "v");
        assert!(world.member(leader).is_leader() && world.now_ns - since_ns < 10_000_000, "seed {seed}");
    }
}

/// The client repeats its request to remove the leader, which hands over each time to the one member that has all.
fn a_hand_over_that_is_asked_for_again_and_again_ends_after_an_election_timeout(on_disk: bool) {
    for seed in 0..10 {
        let mut world = World::new(3, on_disk, seed * 100);
        let mut session = world.open(7);
        let leader = world.elect();
        let (best, behind) = ((leader + 1) % 3, (leader + 2) % 3);
        world.run_ms(50);
        world.delay(&[best, behind]);
        world.isolate(&[behind]);
        world.put(&mut session, "k", "v");
        world.run_ms(5);
        world.crash(best);
        let (mut steps_waited, end_ns) = (0, world.now_ns + 36_000_000);
        while world.now_ns < end_ns && world.member(leader).node.raft.lead_transferee.is_some() | (steps_waited == 0) {
            assert!(world.member(leader).begin_stop());
            assert!(world.member(leader).node.raft.lead_transferee.is_some());
            world.step();
            steps_waited += 1;
        }
        let waited_ns = steps_waited * STEP_NS;
        assert!((24_000_000..=30_000_000).contains(&waited_ns), "seed {seed}: {waited_ns} ns");
        assert!(world.member(leader).is_leader());
    }
}

/// Makes a leader that has many appends queued for a follower. Returns both.
fn with_queued_appends(seed: u64, on_disk: bool) -> (World, usize, usize) {
    let mut world = World::new(3, on_disk, seed * 100);
    world.config.append_len_max = 300;
    for at in 0..3 {
        world.crash(at);
        world.start(at);
    }
    let mut session = world.open(7);
    let leader = world.elect();
    let behind = (leader + 1) % 3;
    world.isolate(&[behind]);
    let value = "x".repeat(200);
    for index in 0..40 {
        world.put(&mut session, &format!("k{index}"), &value);
    }
    world.cut.clear();
    world.run_until("appends are queued", |world| queued(world, leader, behind) > 20);
    (world, leader, behind)
}

/// Messages for a follower that only its leader sends and that wait for their turn.
fn queued(world: &mut World, leader: usize, to: usize) -> usize {
    let to = world.member(to).me().id;
    queued_for(world, leader, to)
}

fn queued_for(world: &mut World, leader: usize, to: MemberId) -> usize {
    let messages = world.member(leader).outbox.get(&to);
    messages.map_or(0, |messages| messages.iter().filter(|message| appends::is_of_leader(message)).count())
}

fn a_leader_that_is_deposed_sends_none_of_the_appends_that_it_had_queued(on_disk: bool) {
    for seed in 0..5 {
        let (mut world, leader, behind) = with_queued_appends(seed, on_disk);
        let to_third = transfer(&world, (leader + 2) % 3);
        world.ask(leader, &to_third);
        let mut left = 0;
        world.run_until("it is deposed", |world| {
            let leads = world.member(leader).is_leader();
            left = if leads { queued(world, leader, behind) } else { left };
            !leads
        });
        assert!(left > 10, "seed {seed}: {left} were queued");
        world.step();
        assert_eq!(queued(&mut world, leader, behind), 0, "seed {seed}");
    }
}

fn appends_that_are_queued_for_a_member_are_dropped_once_it_cannot_be_reached(on_disk: bool) {
    for seed in 0..5 {
        let (mut world, leader, behind) = with_queued_appends(seed, on_disk);
        let to = world.member(behind).me().id;
        world.crash(behind);
        world.step();
        world.step();
        assert_eq!(queued_for(&mut world, leader, to), 0, "seed {seed}");
    }
}

fn appends_that_are_queued_for_a_member_are_dropped_once_it_is_removed(on_disk: bool) {
    for seed in 0..5 {
        let (mut world, leader, behind) = with_queued_appends(seed, on_disk);
        let (to, name) = (world.member(behind).me().id, world.nodes[behind].name.clone());
        world.ask(leader, &ClientRequest::Remove { name });
        let mut left = 0;
        world.run_until("it is removed", |world| {
            let is_member = world.member(leader).members.contains_key(&to);
            left = if is_member { queued_for(world, leader, to) } else { left };
            !is_member
        });
        assert!(left > 10, "seed {seed}: {left} were queued");
        world.step();
        assert!(!world.member(leader).outbox.contains_key(&to), "seed {seed}");
    }
}
