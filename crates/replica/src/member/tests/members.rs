//! Tests of members that come and go.

use std::collections::BTreeMap;

use super::world::*;
use crate::client_wire::{Answer, ClientRequest, Role, Standing};
use crate::wire::{self, ClusterId, Hello, MemberId, MemberInfo, PeerMessage, Phase};

in_memory_and_on_disk! {
    nobody_is_added_under_the_name_of_the_member_that_leads,
    a_member_that_comes_back_empty_waits_to_be_added,
    a_leader_that_dies_just_after_it_has_added_a_member_leaves_a_majority,
    a_name_that_two_lives_share_is_removed_with_both,
    a_member_that_is_replaced_is_listed_as_leaving_while_it_still_votes,
    a_removal_that_is_repeated_at_the_next_leader_is_done_or_says_what_is_unknown,
    a_removal_that_is_repeated_before_the_leader_has_applied_its_log_waits,
    no_change_begins_while_another_is_between_its_steps,
    no_change_is_proposed_by_a_leader_that_has_committed_nothing_in_its_term,
    a_member_without_which_there_would_be_no_majority_is_not_removed,
    a_member_that_answers_at_the_address_of_another_is_named,
    an_empty_member_makes_no_majority,
    a_learner_learns_and_votes_once_it_is_promoted,
    a_learner_that_comes_back_empty_and_is_added_takes_the_place_of_its_earlier_life,
    a_learner_that_has_died_is_not_promoted,
    a_removed_member_disturbs_nobody,
    a_leader_that_is_removed_hands_over_first,
    a_member_that_leads_as_its_removal_is_committed_steps_down,
    leadership_goes_to_whom_it_is_given,
    a_large_state_goes_to_a_new_member_without_a_change_of_leader,
}

fn add(name: &str) -> ClientRequest<'static> {
    ClientRequest::Add { name: name.into(), address: format!("sim://{name}"), learner: false }
}

#[track_caller]
fn done(answer: &[u8]) {
    assert_eq!(wire::decode(answer), Ok(Answer::Done));
}

fn nobody_is_added_under_the_name_of_the_member_that_leads(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    let leader = world.elect();
    let name = world.nodes[leader].name.clone();
    let answer = world.call(leader, &add(&name), 10).unwrap();
    assert!(matches!(wire::decode(&answer), Ok(Answer::Refused(why)) if why.contains("transfer")));
    assert_eq!(world.status(leader).members.len(), 3);
}

/// Each member in turn comes back with the same command. It waits until it is added again, and votes for nobody before.
fn a_member_that_comes_back_empty_waits_to_be_added(on_disk: bool) {
    for seed in 0..5 {
        let mut world = World::new(3, on_disk, seed * 100);
        let mut session = world.open(7);
        for at in 0..3 {
            world.put(&mut session, "k", &at.to_string());
            world.crash(at);
            world.run_ms(10);
            world.replace(at);
            world.run_ms(500);
            let status = world.status(at);
            assert_eq!((status.role, status.applied), (Role::Outside, 0), "seed {seed}");
            // Until it is added, the loss of one more member would leave no majority.
            let name = world.nodes[at].name.clone();
            done(&world.ask_leader(&add(&name)));
            world.run_until("it is up to date", |world| world.member(at).machine().len() == 1);
            world.run_ms(50);
            let status = world.status(at);
            assert!(matches!(status.role, Role::Follower | Role::Leader), "{status:?}");
            assert_eq!(status.members.len(), 3, "{status:?}");
        }
        assert_eq!(world.get("k").as_deref(), Some("2"));
    }
}

fn a_leader_that_dies_just_after_it_has_added_a_member_leaves_a_majority(on_disk: bool) {
    for seed in 0..20 {
        let mut world = World::new(3, on_disk, seed);
        let leader = world.elect();
        let at = (leader + 1) % 3;
        let name = world.nodes[at].name.clone();
        world.crash(at);
        world.run_ms(10);
        world.replace(at);
        done(&world.ask_leader(&add(&name)));
        world.crash(leader);
        world.run_until("another leads", |world| world.leader().is_some_and(|of| of != leader));
    }
}

fn a_name_that_two_lives_share_is_removed_with_both(on_disk: bool) {
    for seed in 0..8 {
        let mut world = World::new(3, on_disk, seed);
        let leader = world.elect();
        let at = (leader + 1) % 3;
        let name = world.nodes[at].name.clone();
        world.crash(at);
        world.run_ms(10);
        world.replace(at);
        done(&world.ask_leader(&ClientRequest::Add {
            name: name.clone(),
            address: format!("sim://{name}"),
            learner: true,
        }));
        assert_eq!(world.status(leader).members.len(), 4, "the life that died still votes");
        done(&world.ask_leader(&ClientRequest::Remove { name: name.clone() }));
        let left = world.status(leader).members;
        assert!(left.len() == 2 && left.iter().all(|member| member.info.name != name), "seed {seed}: {left:?}");
    }
}

/// A change that replaces a member has two steps, and its earlier life votes until the second.
fn a_member_that_is_replaced_is_listed_as_leaving_while_it_still_votes(on_disk: bool) {
    for seed in 0..4 {
        let mut world = World::new(3, on_disk, seed);
        let leader = world.elect();
        let at = (leader + 1) % 3;
        let earlier = world.nodes[at].id.unwrap();
        let name = world.nodes[at].name.clone();
        world.replace(at);
        world.ask(leader, &add(&name));
        let is_between = |world: &mut World| {
            let state = world.member(leader).node.raft.prs().conf().to_conf_state();
            !state.voters_outgoing.is_empty()
        };
        world.run_until("it is between the steps", is_between);
        let later = world.nodes[at].id.unwrap();
        let standings = |world: &mut World| {
            let members = world.status(leader).members.into_iter();
            members.map(|member| (member.info.id, member.standing)).collect::<BTreeMap<_, _>>()
        };
        let mut expected: BTreeMap<_, _> = world
            .nodes
            .iter()
            .map(|node| (node.id.unwrap(), Standing::Voter))
            .chain([(earlier, Standing::Leaving), (later, Standing::Joining)])
            .collect();
        assert_eq!(standings(&mut world), expected, "seed {seed}: {later:?} in the place of {earlier:?}");
        world.run_until("it is over", |world| !is_between(world));
        expected.remove(&earlier);
        expected.insert(later, Standing::Voter);
        assert_eq!(standings(&mut world), expected, "seed {seed}");
    }
}

/// Four members, of which one died. An earlier life of a name that has two is reached again, and three of the four must
/// agree until the removal of both is complete.
#[test]
fn a_member_that_is_removed_with_a_later_life_of_its_name_votes_until_the_removal_is_complete() {
    for seed in 0..4 {
        let mut world = World::new(4, false, seed);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let leader = world.elect();
        let (double, dead) = ((leader + 1) % 4, (leader + 2) % 4);
        let (name, earlier) = world.add_later_life(double);
        world.nodes[double].member = Some(earlier);
        world.run_until("the earlier life has it", |world| {
            let [of_leader, of_double] = [leader, double].map(|at| world.status(at));
            of_double.applied == of_leader.last && of_double.role == Role::Follower
        });
        world.crash(dead);
        done(&world.ask_leader(&ClientRequest::Remove { name: name.clone() }));
        assert_eq!(world.status(leader).members.len(), 3, "seed {seed}");
        world.put(&mut session, "k", "w");
        world.run_until("it knows", |world| world.status(double).role == Role::Outside);
    }
}

/// As before, but the leader has taken a snapshot between the two steps of the removal, and has no earlier entries.
#[test]
fn a_leaving_voter_that_is_far_behind_is_sent_a_snapshot_of_a_change_in_progress() {
    for seed in 0..4 {
        let mut world = World::new(4, false, seed);
        (world.config.log_len_max, world.config.entries_kept) = (1, 0);
        for at in 0..4 {
            let config = world.config.clone();
            world.member(at).config = config;
        }
        let mut session = world.open(7);
        let leader = world.elect();
        let (double, dead) = ((leader + 1) % 4, (leader + 2) % 4);
        let (name, earlier) = world.add_later_life(double);
        (0..50).for_each(|value| _ = world.put(&mut session, "k", &value.to_string()));
        world.ask(leader, &ClientRequest::Remove { name });
        world.run_until("it is between the steps", |world| {
            let state = world.member(leader).node.raft.prs().conf().to_conf_state();
            !state.voters_outgoing.is_empty()
        });
        let removed = world.status(leader).applied;
        world.crash(dead);
        world.run_until("there is a snapshot", |world| world.status(leader).snapshot == removed);
        world.run_ms(20);
        world.nodes[double].member = Some(earlier);
        world.run_until("it is removed", |world| world.status(leader).members.len() == 3);
        world.put(&mut session, "k", "w");
    }
}

fn a_removal_that_is_repeated_at_the_next_leader_is_done_or_says_what_is_unknown(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    world.add_node("x", on_disk);
    done(&world.ask_leader(&add("x")));
    let leader = world.elect();
    let founder = world.nodes[(leader + 1) % 3].name.clone();
    for name in ["x", &founder] {
        done(&world.ask_leader(&ClientRequest::Remove { name: name.into() }));
    }
    let other = (leader + 2) % 3;
    let to = ClientRequest::Transfer { name: Some(world.nodes[other].name.clone()) };
    done(&world.ask_leader(&to));
    done(&world.ask_leader(&ClientRequest::Remove { name: founder }));
    for name in ["x", "unheard"] {
        let answer = world.ask_leader(&ClientRequest::Remove { name: name.into() });
        let Ok(Answer::Refused(why)) = wire::decode(&answer) else { panic!("{answer:?}") };
        assert!(why.contains("has been removed, or it never was"), "{why}");
    }
}

fn a_removal_that_is_repeated_before_the_leader_has_applied_its_log_waits(on_disk: bool) {
    for seed in 0..10 {
        let mut world = World::new(5, on_disk, seed * 100);
        let leader = world.elect();
        let gone = (leader + 1) % 5;
        let name = world.nodes[gone].name.clone();
        let remove = ClientRequest::Remove { name: name.clone() };
        done(&world.ask_leader(&remove));
        // It is added again, and the next leader has that in its log.
        world.replace(gone);
        world.run_ms(20);
        world.ask(leader, &add(&name));
        let before = world.status(leader).last;
        world.run_until("it is asked for", |world| world.status(leader).last > before);
        crash_before_commit(&mut world, leader, (0..5).filter(|at| *at != gone).collect());
        world.run_until("another leads", |world| world.leader().is_some());
        let leader = world.elect();
        assert!(world.status(leader).members.iter().all(|member| member.info.name != name));
        assert_eq!(world.call(leader, &remove, 10).map(|answer| wire::decode(&answer) == Ok(Answer::Busy)), Some(true));
        done(&world.ask_leader(&remove));
        world.run_ms(50);
        assert!(world.status(leader).members.iter().all(|member| member.info.name != name), "seed {seed}");
    }
}

/// Its leader dies between the two steps of a change. Until the next leader has completed it, another change would be
/// lost, and a life that is leaving would count as a member.
fn no_change_begins_while_another_is_between_its_steps(on_disk: bool) {
    for seed in 0..4 {
        let mut world = World::new(5, on_disk, seed * 100);
        let leader = world.elect();
        let at = (leader + 1) % 5;
        let name = world.nodes[at].name.clone();
        world.replace(at);
        world.ask(leader, &add(&name));
        let is_between = |world: &mut World, at: usize| {
            let state = world.member(at).node.raft.prs().conf().to_conf_state();
            !state.voters_outgoing.is_empty()
        };
        // The entry of the second step reaches nobody.
        let others: Vec<_> = (0..5).filter(|other| ![leader, at].contains(other)).collect();
        world.run_until("it becomes a voter", |world| world.status(leader).members.len() == 6);
        let asked = world.status(leader).last;
        world.run_until("the first step is asked for", |world| world.status(leader).last > asked);
        world.run_until("all have it", |world| others.iter().all(|at| world.status(*at).last > asked));
        world.cut.extend(others.iter().map(|other| (leader, *other)));
        world.run_until("the leader is between the steps", |world| is_between(world, leader));
        world.cut.clear();
        world.run_until("the others are", |world| others.iter().all(|at| is_between(world, *at)));
        world.crash(leader);
        world.run_until("another leads", |world| world.leader().is_some());
        let next = world.elect();
        assert!(is_between(&mut world, next), "seed {seed}");
        let transfer = ClientRequest::Transfer { name: Some(name.clone()) };
        let remove = ClientRequest::Remove { name: name.clone() };
        for ask in [&add(&name), &ClientRequest::Promote { name: name.clone() }, &transfer, &remove] {
            let answer = world.call(next, ask, 0).map(|answer| wire::decode(&answer) == Ok(Answer::Busy));
            assert_eq!(answer, Some(true), "seed {seed}: {ask:?}");
        }
        done(&world.ask_leader(&remove));
        let last = world.elect();
        let left = world.status(last).members;
        assert!(left.len() == 4 && left.iter().all(|member| member.info.name != name), "seed {seed}: {left:?}");
    }
}

fn no_change_is_proposed_by_a_leader_that_has_committed_nothing_in_its_term(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    let leader = world.elect();
    let remove = ClientRequest::Remove { name: world.nodes[(leader + 1) % 3].name.clone() };
    let answer = world.call(leader, &remove, 0).map(|answer| wire::decode(&answer) == Ok(Answer::Busy));
    assert_eq!(answer, Some(true));
    done(&world.ask_leader(&remove));
}

/// Of three members one is dead, and the healthy one is to be removed by mistake.
fn a_member_without_which_there_would_be_no_majority_is_not_removed(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    let mut session = world.open(7);
    let leader = world.elect();
    let [healthy, dead] = [1, 2].map(|next| world.nodes[(leader + next) % 3].name.clone());
    let remove = |name: &str| ClientRequest::Remove { name: name.into() };
    world.run_ms(50);
    world.crash((leader + 2) % 3);
    // It was heard a moment ago.
    world.run_ms(1);
    let answer = world.call(leader, &remove(&healthy), 1000).unwrap();
    let Ok(Answer::Refused(why)) = wire::decode(&answer) else { panic!("{answer:?}") };
    assert!(why.contains("lose its majority") && why.ends_with(&format!("remove {dead} first")), "{why}");
    // The leader itself does not hand over before it knows.
    let own = world.nodes[leader].name.clone();
    let answer = world.call(leader, &remove(&own), 1000).unwrap();
    assert!(matches!(wire::decode(&answer), Ok(Answer::Refused(_))), "{answer:?}");
    assert!(world.member(leader).is_leader());
    world.put(&mut session, "k", "v");
    for name in [&dead, &healthy] {
        done(&world.ask_leader(&remove(name)));
    }
    world.put(&mut session, "k", "w");
    assert_eq!(world.status(leader).members.len(), 1);
}

fn a_member_that_answers_at_the_address_of_another_is_named(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    let leader = world.elect();
    let other = world.nodes[(leader + 1) % 3].name.clone();
    let add = ClientRequest::Add { name: "x".into(), address: address(&other), learner: false };
    let answer = world.ask_leader(&add);
    let Ok(Answer::Refused(why)) = wire::decode(&answer) else { panic!("{answer:?}") };
    assert!(why.contains(&format!("is {other}, not x")), "{why}");
}

fn an_empty_member_makes_no_majority(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    world.replace(one);
    world.replace(leader);
    world.run_ms(5000);
    assert_eq!(world.leader(), None);
    assert!(!world.member(other).is_leader());
}

#[test]
fn a_fourth_and_fifth_member_are_added_while_the_cluster_serves() {
    let mut world = World::new(3, true, 3);
    let mut session = world.open(7);
    for index in 0..200 {
        world.put(&mut session, &format!("k{index}"), "v");
    }
    for name in ["x", "y"] {
        let at = world.add_node(name, true);
        done(&world.ask_leader(&add(name)));
        world.put(&mut session, name, "v");
        world.run_until("it has all", |world| world.member(at).machine().len() >= 201);
    }
    // A client that did not get the answer asks again.
    done(&world.ask_leader(&add("y")));
    let leader = world.elect();
    assert_eq!(world.status(leader).members.iter().filter(|member| member.standing.votes()).count(), 5);
    // Two of five members may fail.
    world.crash(0);
    world.crash(1);
    assert_eq!(world.get("k0").as_deref(), Some("v"));
    // Later, one of the members that were added may fail, too.
    world.start(0);
    world.run_ms(200);
    world.crash(4);
    world.put(&mut session, "k", "w");
}

fn a_learner_learns_and_votes_once_it_is_promoted(on_disk: bool) {
    let mut world = World::new(3, on_disk, 5);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let at = world.add_node("x", on_disk);
    done(&world.ask_leader(&ClientRequest::Add { name: "x".into(), address: "sim://x".into(), learner: true }));
    world.run_until("it has all", |world| world.member(at).machine().len() == 1);
    assert_eq!(world.status(at).role, Role::Learner);
    done(&world.ask_leader(&ClientRequest::Promote { name: "x".into() }));
    world.run_until("it votes", |world| world.status(at).role == Role::Follower);
}

fn a_learner_that_comes_back_empty_and_is_added_takes_the_place_of_its_earlier_life(on_disk: bool) {
    for seed in 0..8 {
        let mut world = World::new(3, on_disk, seed * 100);
        let at = world.add_node("x", on_disk);
        let add = ClientRequest::Add { name: "x".into(), address: "sim://x".into(), learner: true };
        done(&world.ask_leader(&add));
        world.run_ms(100);
        world.replace(at);
        done(&world.ask_leader(&add));
        let leader = world.elect();
        assert_eq!(world.status(leader).members.len(), 4, "seed {seed}");
        done(&world.ask_leader(&ClientRequest::Promote { name: "x".into() }));
        world.run_until("it votes", |world| world.status(at).role == Role::Follower);
        assert_eq!(world.status(at).members.len(), 4, "seed {seed}");
    }
}

fn a_learner_that_has_died_is_not_promoted(on_disk: bool) {
    let mut world = World::new(3, on_disk, 1);
    let at = world.add_node("x", on_disk);
    done(&world.ask_leader(&ClientRequest::Add { name: "x".into(), address: "sim://x".into(), learner: true }));
    world.run_ms(100);
    world.crash(at);
    world.run_ms(1000);
    let leader = world.elect();
    let promote = ClientRequest::Promote { name: "x".into() };
    assert_eq!(world.call(leader, &promote, 2000), None, "the leader waits for it");
    let status = world.status(leader);
    assert!(status.members.iter().any(|member| member.info.name == "x" && !member.standing.votes()), "{status:?}");
    let answer = world.call(leader, &promote, 10).unwrap();
    assert!(matches!(wire::decode(&answer), Ok(Answer::Refused(why)) if why.contains("in progress")));
}

fn a_removed_member_disturbs_nobody(on_disk: bool) {
    let mut world = World::new(3, on_disk, 7);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    let gone = (leader + 1) % 3;
    let name = world.nodes[gone].name.clone();
    done(&world.ask_leader(&ClientRequest::Remove { name }));
    let term = world.member(leader).term();
    world.run_ms(2000);
    assert_eq!((world.leader(), world.member(leader).term()), (Some(leader), term));
    world.put(&mut session, "k", "w");
}

fn a_leader_that_is_removed_hands_over_first(on_disk: bool) {
    let mut world = World::new(3, on_disk, 9);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    let name = world.nodes[leader].name.clone();
    done(&world.ask_leader(&ClientRequest::Remove { name }));
    assert!(!world.member(leader).is_leader());
    world.put(&mut session, "k", "w");
    world.run_ms(1000);
    assert!(world.leader().is_some_and(|now| now != leader));
    let now = world.elect();
    assert_eq!(world.status(now).members.len(), 2);
}

/// Lets a leader die when what it was just asked for is in the logs of these members, but not committed yet.
#[track_caller]
fn crash_before_commit(world: &mut World, leader: usize, members: Vec<usize>) {
    let asked = world.status(leader).last;
    world.run_until("all have it", |world| members.iter().all(|at| world.status(*at).last >= asked));
    assert!(world.status(leader).committed < asked);
    world.crash(leader);
}

/// It is elected while its removal is in the log, but not committed yet.
fn a_member_that_leads_as_its_removal_is_committed_steps_down(on_disk: bool) {
    for seed in 0..10 {
        let mut world = World::new(5, on_disk, seed * 100);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let leader = world.elect();
        let gone = (leader + 1) % 5;
        world.run_ms(20);
        let name = world.nodes[gone].name.clone();
        world.ask(leader, &ClientRequest::Remove { name });
        let before = world.status(leader).last;
        world.run_until("it is asked for", |world| world.status(leader).last > before);
        crash_before_commit(&mut world, leader, (0..5).collect());
        for at in (0..5).filter(|at| *at != leader) {
            world.member(at).election_ticks_drawn = if at == gone { 14 } else { 24 };
        }
        world.run_until("it leads", |world| world.leader() == Some(gone));
        let since_ns = world.now_ns;
        let command = put("k", "w");
        world.run_until("another leads", |world| {
            // It has entries to write as it learns that it is removed.
            world.ask(gone, &session.run(&command));
            world.leader().is_some_and(|now| now != gone)
        });
        let took_ms = (world.now_ns - since_ns) / 1_000_000;
        assert!(took_ms < 80, "seed {seed}: {took_ms} ms");
        world.put(&mut session, "k", "w");
        let now = world.elect();
        assert!(now != gone && world.status(now).members.len() == 4, "seed {seed}");
    }
}

fn leadership_goes_to_whom_it_is_given(on_disk: bool) {
    let mut world = World::new(3, on_disk, 11);
    world.open(7);
    let leader = world.elect();
    for at in (0..3).cycle().skip(leader + 1).take(5) {
        let name = world.nodes[at].name.clone();
        done(&world.ask_leader(&ClientRequest::Transfer { name: Some(name) }));
        world.run_until("it leads", |world| world.leader() == Some(at));
    }
    let answer = world.ask_leader(&ClientRequest::Transfer { name: Some("nobody".into()) });
    assert!(matches!(wire::decode(&answer), Ok(Answer::Refused(_))));
}

/// Otherwise two members of one name, at different addresses, could each found a cluster with half of the others.
#[test]
fn members_that_were_given_different_addresses_found_no_cluster() {
    let mut world = World::new(2, false, 13);
    world.peers[1].1 = "sim://elsewhere".into();
    world.add_node("c", false);
    for at in 0..3 {
        world.peers = ["a", "b", "c"].map(|name| (name.to_owned(), address(name))).into();
        if at == 2 {
            world.peers[1].1 = "sim://elsewhere".into();
        }
        world.start(at);
    }
    world.run_ms(1000);
    assert!((0..3).all(|at| world.status(at).role == Role::Founding));
    assert_eq!(world.member(0).peer_that_differs(), Some("c"));
    world.peers[1].1 = address("b");
    world.start(2);
    world.elect();
    assert!((0..3).all(|at| world.member(at).peer_that_differs().is_none()));
}

#[test]
fn a_member_of_another_cluster_keeps_nobody_from_founding_one() {
    let mut world = World::new(2, false, 13);
    world.peers = ["a", "b", "c"].map(|name| (name.to_owned(), address(name))).into();
    (0..2).for_each(|at| world.start(at));
    world.run_ms(100);
    let hello = |name: &str| {
        let me = MemberInfo { id: MemberId(9), name: name.into(), address: address(name) };
        let phase = Phase::MemberOf(ClusterId(8));
        let mut bytes = Vec::new();
        wire::to_bytes(
            &PeerMessage::Hello(Hello { me, phase, peers_hash: 7, founding: None, known: None }),
            &mut bytes,
        );
        bytes
    };
    for (name, role) in [("x", Role::Founding), ("c", Role::Outside)] {
        let now_ns = world.now_ns;
        world.member(0).handle_peer(&hello(name), now_ns).unwrap();
        assert_eq!(world.status(0).role, role);
    }
    // Once c is a new member, there is nothing to be added to.
    world.add_node("c", false);
    world.elect();
}

#[test]
fn two_members_of_one_name_are_not_taken_for_each_other() {
    let mut world = World::new(3, false, 13);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    // The second one answers at the address of the first.
    let double = (leader + 1) % 3;
    let first = world.nodes[double].member.take();
    world.start(double);
    world.run_ms(300);
    assert_eq!(world.status(double).role, Role::Outside);
    assert!(world.member(leader).dropped().member > 0);
    world.put(&mut session, "k", "w");
    assert_eq!(world.member(double).machine().len(), 0);
    // The second goes, and the first is back.
    world.nodes[double].member = first;
    world.run_until("the first has it", |world| world.member(double).machine().revision() == 2);
}

fn a_large_state_goes_to_a_new_member_without_a_change_of_leader(on_disk: bool) {
    let mut world = World::new(3, on_disk, 15);
    let mut session = world.open(7);
    let value = "x".repeat(500_000);
    for index in 0..8 {
        world.put(&mut session, &format!("k{index}"), &value);
    }
    let leader = world.elect();
    let term = world.member(leader).term();
    let at = world.add_node("x", on_disk);
    done(&world.ask_leader(&add("x")));
    world.run_until("it has all", |world| world.member(at).machine().len() == 8);
    assert_eq!(world.member(leader).term(), term);
}
