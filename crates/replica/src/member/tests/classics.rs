//! The classic hard cases of consensus, with schedules made by hand.

use super::world::*;
use crate::client_wire::{Answer, ClientRequest, Freshness};
use crate::member::Accepted;
use crate::wire;

in_memory_and_on_disk! {
    a_cluster_is_founded_and_keeps_what_it_is_told,
    nobody_founds_a_cluster_until_all_are_there,
    five_and_seven_members_are_founded_too,
    a_dead_leader_is_replaced_and_nothing_acknowledged_is_lost,
    repeats_of_a_command_that_waits_enter_the_log_once_and_the_last_is_answered,
    a_leader_that_was_cut_off_gives_no_stale_reads,
    a_lease_holds_though_its_leader_has_a_longer_election_timeout_than_the_others,
    a_leader_with_a_fresh_confirmation_answers_reads_by_lease_at_once,
    a_member_that_was_cut_off_and_returns_unseats_nobody,
    a_leader_that_lives_and_is_often_late_is_not_replaced,
    a_leader_whose_followers_are_often_late_goes_on_leading,
    candidates_that_began_together_do_not_duel_for_long,
    a_leader_without_a_majority_steps_down_and_its_clients_hear_of_it,
    a_command_that_is_repeated_at_another_leader_runs_once,
    a_planned_stop_hands_leadership_over_in_a_few_milliseconds,
    a_watch_is_answered_when_something_changes_at_any_member,
}

fn a_cluster_is_founded_and_keeps_what_it_is_told(on_disk: bool) {
    for seed in 0..20 {
        let mut world = World::new(3, on_disk, seed * 100);
        let mut session = world.open(7);
        assert_eq!(world.put(&mut session, "k", "v"), 1);
        assert_eq!(world.get("k").as_deref(), Some("v"));
        assert_eq!(world.get("none"), None);
        world.run_until("all have it", |world| (0..3).all(|at| world.member(at).machine().len() == 1));
    }
}

fn nobody_founds_a_cluster_until_all_are_there(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    world.crash(1);
    world.run_ms(1000);
    assert_eq!(world.leader(), None);
    world.start(1);
    world.elect();
}

fn five_and_seven_members_are_founded_too(on_disk: bool) {
    for members in [1, 5, 7] {
        let mut world = World::new(members, on_disk, 3);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
    }
}

fn a_dead_leader_is_replaced_and_nothing_acknowledged_is_lost(on_disk: bool) {
    for seed in 0..20 {
        let mut world = World::new(3, on_disk, seed * 100);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let dead = world.elect();
        world.crash(dead);
        let since_ns = world.now_ns;
        assert_eq!(world.get("k").as_deref(), Some("v"));
        world.put(&mut session, "k", "w");
        let took_ms = (world.now_ns - since_ns) / 1_000_000;
        assert!(took_ms < 80, "{took_ms} ms");
    }
}

fn repeats_of_a_command_that_waits_enter_the_log_once_and_the_last_is_answered(on_disk: bool) {
    for seed in 0..10 {
        let mut world = World::new(3, on_disk, seed * 100);
        let session = world.open(7);
        let leader = world.elect();
        let before = world.status(leader).last;
        let command = put("k", "v");
        let held = [0; 3].map(|_| match world.ask(leader, &session.run(&command)) {
            Some(Accepted::Deferred(held)) => held,
            other => panic!("{other:?}"),
        });
        assert_eq!(world.status(leader).last, before + 1, "seed {seed}");
        let mut last = None;
        world.run_until("the last is answered", |world| {
            last = world.answer(leader, held[2]);
            last.is_some()
        });
        assert!(matches!(wire::decode(&last.unwrap()), Ok(Answer::CommandAnswer(_))), "seed {seed}");
        for given_up in &held[..2] {
            assert!(matches!(wire::decode(&world.answer(leader, *given_up).unwrap()), Ok(Answer::Busy)), "seed {seed}");
        }
    }
}

/// The old leader does not know yet that it no longer leads.
fn a_leader_that_was_cut_off_gives_no_stale_reads(on_disk: bool) {
    for freshness in [Freshness::Linear, Freshness::Lease] {
        for seed in 0..20 {
            let mut world = World::new(3, on_disk, seed * 100);
            let mut session = world.open(7);
            world.put(&mut session, "k", "old");
            let old = world.elect();
            // This read obtains a lease, if leases are used.
            let query = get("k");
            let read = ClientRequest::Read { freshness, query: &query };
            assert_eq!(found(&world.call(old, &read, 100).unwrap()).as_deref(), Some("old"));
            world.isolate(&[old]);
            world.run_until("another leader", |world| world.leader().is_some_and(|leader| leader != old));
            let command = put("k", "new");
            let new = world.leader().unwrap();
            world.call(new, &session.run(&command), 100).unwrap();
            // Whatever it answers, it must not be the old value.
            if let Some(Accepted::Answer(answer)) = world.ask(old, &read) {
                assert!(matches!(wire::decode(&answer), Ok(Answer::NotLeader { .. })), "{answer:?}");
            }
        }
    }
}

/// Another member may lead before the lease would end by the leader's own clock.
fn a_lease_holds_though_its_leader_has_a_longer_election_timeout_than_the_others(on_disk: bool) {
    for (times_longer, may_confirm) in [(2, true), (3, false)] {
        for seed in 0..20 {
            let mut world = World::new(3, on_disk, seed * 100);
            let tick_ns = world.config.tick_ns;
            for at in 0..3 {
                world.config.tick_ns = if at == 0 { tick_ns * times_longer } else { tick_ns };
                world.crash(at);
                world.start(at);
            }
            let mut session = world.open(7);
            world.put(&mut session, "k", "old");
            world.ask_leader(&ClientRequest::Transfer { name: Some("a".into()) });
            world.run_until("it leads", |world| world.leader() == Some(0));
            world.put(&mut session, "k", "old");
            let query = get("k");
            let read = ClientRequest::Read { freshness: Freshness::Lease, query: &query };
            let answer = world.call(0, &read, 20);
            assert_eq!(answer.is_some(), may_confirm, "seed {seed}");
            // A read that asks for no lease is answered, and the leader stays, whatever its time-out.
            let linear = ClientRequest::Read { freshness: Freshness::Linear, query: &query };
            world.call(0, &linear, 400).unwrap_or_else(|| panic!("no linear read, seed {seed}"));
            assert_eq!(world.leader(), Some(0), "seed {seed}");
            world.isolate(&[0]);
            world.run_until("another leader", |world| world.leader().is_some_and(|leader| leader != 0));
            let command = put("k", "new");
            let new = (1..3).find(|at| world.member(*at).is_leader()).unwrap();
            world.call(new, &session.run(&command), 100).unwrap();
            if let Some(Accepted::Answer(answer)) = world.ask(0, &read) {
                assert!(matches!(wire::decode(&answer), Ok(Answer::NotLeader { .. })), "seed {seed}: {answer:?}");
            }
        }
    }
}

fn a_leader_with_a_fresh_confirmation_answers_reads_by_lease_at_once(on_disk: bool) {
    let mut world = World::new(3, on_disk, 5);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    let query = get("k");
    let read = ClientRequest::Read { freshness: Freshness::Lease, query: &query };
    world.call(leader, &read, 100).unwrap();
    assert!(matches!(world.ask(leader, &read), Some(Accepted::Answer(_))));
    // After a transfer, the lease is void.
    world.call(leader, &ClientRequest::Transfer { name: None }, 100).unwrap();
    assert!(!world.member(leader).is_leader());
}

/// Figure 8 of the Raft paper: an entry of an earlier term is not committed by counting, even if a majority has it.
#[test]
fn an_entry_of_an_earlier_term_is_not_decided_by_counting() {
    for seed in 0..30 {
        let mut world = World::new(5, true, seed * 100);
        let mut session = world.open(7);
        world.put(&mut session, "k", "0");
        let first = world.elect();
        // It sends an entry to only one other member, and dies.
        let friend = (first + 1) % 5;
        let rest: Vec<_> = (0..5).filter(|at| ![first, friend].contains(at)).collect();
        world.isolate(&rest);
        let command = put("k", "1");
        world.ask(first, &session.run(&command));
        world.step();
        world.step();
        world.crash(first);
        // The rest go on without these two, and their leader dies as well.
        world.run_until("a leader of the rest", |world| world.leader().is_some_and(|leader| rest.contains(&leader)));
        let second = world.leader().unwrap();
        let mut other = Session { name: session.name, next: session.next + 1 };
        let command = put("k", "2");
        world.ask(second, &other.run(&command));
        world.crash(second);
        // The first comes back, with its entry, and then the second.
        world.cut.clear();
        world.start(first);
        world.run_ms(seed * 7 % 100);
        if let Some(leader) = world.leader() {
            world.crash(leader);
            world.run_ms(20);
            world.start(leader);
        }
        world.start(second);
        let seen = world.get("k").unwrap();
        // Once a read has seen a value, all later reads see it, whichever members die.
        for _ in 0..3 {
            let leader = world.elect();
            world.crash(leader);
            world.run_ms(100);
            world.start(leader);
            let again = world.get("k").unwrap();
            assert_eq!(again, seen, "seed {seed}");
        }
        other.next += 1;
        world.put(&mut other, "k", "3");
        let applied: Vec<_> = (0..5).map(|at| world.member(at).applied()).collect();
        world.run_until("all have it", |world| {
            let last = applied.iter().max().copied().unwrap();
            (0..5).all(|at| world.nodes[at].member.is_none() || world.member(at).applied() >= last)
        });
    }
}

fn a_member_that_was_cut_off_and_returns_unseats_nobody(on_disk: bool) {
    let mut world = World::new(3, on_disk, 9);
    let mut session = world.open(7);
    let leader = world.elect();
    let term = world.member(leader).term();
    let away = (leader + 1) % 3;
    world.isolate(&[away]);
    world.run_ms(2000);
    world.put(&mut session, "k", "v");
    world.cut.clear();
    world.run_ms(500);
    assert_eq!((world.leader(), world.member(leader).term()), (Some(leader), term));
    assert_eq!(world.member(away).machine().len(), 1);
}

fn a_leader_that_lives_and_is_often_late_is_not_replaced(on_disk: bool) {
    for seed in 0..20 {
        let mut world = World::new(3, on_disk, seed * 100);
        let leader = world.elect();
        world.run_ms(50);
        let term = world.member(leader).term();
        world.delay(&[leader]);
        assert_eq!((world.leader(), world.member(leader).term()), (Some(leader), term), "seed {seed}");
        // It is replaced once it is dead, though later.
        world.crash(leader);
        world.run_until("another leader", |world| world.leader().is_some_and(|at| at != leader));
    }
}

fn a_leader_whose_followers_are_often_late_goes_on_leading(on_disk: bool) {
    for seed in 0..20 {
        let mut world = World::new(3, on_disk, seed * 100);
        let leader = world.elect();
        world.run_ms(50);
        let term = world.member(leader).term();
        world.delay(&[(leader + 1) % 3, (leader + 2) % 3]);
        assert_eq!((world.leader(), world.member(leader).term()), (Some(leader), term), "seed {seed}");
        world.isolate(&[leader]);
        world.run_until("it steps down", |world| !world.member(leader).is_leader());
    }
}

fn candidates_that_began_together_do_not_duel_for_long(on_disk: bool) {
    for seed in 0..50 {
        let mut world = World::new(5, on_disk, seed * 100);
        let leader = world.elect();
        world.run_ms(50);
        world.crash(leader);
        // All remaining members lose patience at the same moment.
        for at in (0..5).filter(|at| *at != leader) {
            world.member(at).election_ticks_drawn = 12;
        }
        let since_ns = world.now_ns;
        world.run_until("a leader", |world| world.leader().is_some());
        let took_ms = (world.now_ns - since_ns) / 1_000_000;
        assert!(took_ms < 250, "seed {seed}: {took_ms} ms");
    }
}

#[test]
fn a_member_that_has_campaigned_waits_as_long_as_the_others_for_the_next_leader() {
    for seed in 0..30 {
        let mut world = World::new(3, true, seed * 100);
        for _ in 0..3 {
            let leader = world.elect();
            world.run_ms(20);
            for at in 0..3 {
                let (drawn, least) = (world.member(at).election_ticks_drawn, world.config.election_ticks);
                assert!(drawn > least, "seed {seed}: member {at} would ask for votes after {drawn} ticks");
            }
            world.crash(leader);
            world.run_until("another leader", |world| world.leader().is_some_and(|at| at != leader));
            world.start(leader);
        }
    }
}

fn a_leader_without_a_majority_steps_down_and_its_clients_hear_of_it(on_disk: bool) {
    let mut world = World::new(3, on_disk, 11);
    let session = world.open(7);
    let leader = world.elect();
    world.isolate(&[leader]);
    let command = put("k", "v");
    let answer = world.call(leader, &session.run(&command), 1000).unwrap();
    assert!(matches!(wire::decode(&answer), Ok(Answer::NotLeader { leader: None, .. })));
    world.run_ms(200);
    let answer = world.call(leader, &session.run(&command), 10).unwrap();
    let Ok(Answer::NotLeader { silent, members, .. }) = wire::decode(&answer) else { panic!() };
    assert_eq!((silent.len(), members.len()), (2, 3));
}

fn a_command_that_is_repeated_at_another_leader_runs_once(on_disk: bool) {
    for seed in 0..30 {
        let mut world = World::new(3, on_disk, seed * 100);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let old = world.elect();
        let command = put("k", "w");
        world.ask(old, &session.run(&command));
        for _ in 0..seed % 5 {
            world.step();
        }
        world.crash(old);
        let revision = world.put(&mut session, "k", "w");
        assert_eq!(revision, 2, "seed {seed}");
        assert_eq!(world.put(&mut session, "k", "x"), 3);
    }
}

fn a_planned_stop_hands_leadership_over_in_a_few_milliseconds(on_disk: bool) {
    let mut world = World::new(3, on_disk, 13);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let old = world.elect();
    let (since_ns, term) = (world.now_ns, world.member(old).term());
    assert!(world.member(old).begin_stop());
    world.run_until("another leader", |world| world.leader().is_some_and(|leader| leader != old));
    let took_ns = world.now_ns - since_ns;
    assert!(took_ns <= 5_000_000, "{took_ns} ns");
    let new = world.elect();
    let name = world.nodes[new].name.clone();
    assert_eq!(world.member(new).term(), term + 1, "there was one election");
    world.run_until("the old leader follows", |world| {
        world.status(old).leader.is_some_and(|leader| leader.name == name)
    });
    // A member that does not lead has nothing to hand over, and one that is alone has nobody to hand it to.
    assert!(!world.member(old).begin_stop());
    world.put(&mut session, "k", "w");
    assert_eq!(world.leader(), Some(new));
    let mut alone = World::new(1, on_disk, 13);
    let only = alone.elect();
    assert!(!alone.member(only).begin_stop() && alone.member(only).is_leader());
}

fn a_watch_is_answered_when_something_changes_at_any_member(on_disk: bool) {
    let mut world = World::new(3, on_disk, 15);
    let mut session = world.open(7);
    world.put(&mut session, "a/1", "v");
    world.run_ms(20);
    let mut query = Vec::new();
    wire::encode(&crate::kv::Query::Watch { prefix: b"a/", from: 2, limit: 10 }, &mut query);
    let held: Vec<_> = (0..3)
        .map(|at| match world.ask(at, &ClientRequest::Watch { query: &query }) {
            Some(Accepted::Deferred(held)) => held,
            other => panic!("{other:?}"),
        })
        .collect();
    world.put(&mut session, "b", "w");
    world.run_ms(20);
    assert_eq!(world.answer(0, held[0]), None);
    world.put(&mut session, "a/2", "x");
    world.run_ms(20);
    for (at, held) in held.into_iter().enumerate() {
        let answer = world.answer(at, held).unwrap();
        let Ok(Answer::QueryAnswer(found)) = wire::decode(&answer) else { panic!() };
        let Ok(crate::kv::QueryResult::Changes { changes, next }) = wire::decode(found) else { panic!() };
        assert_eq!((changes.len(), changes[0].key, next), (1, &b"a/2"[..], 4));
    }
}
