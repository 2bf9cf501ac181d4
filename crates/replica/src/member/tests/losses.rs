//! Tests of what members say when voters have lost their state.

use super::super::LostMajority;
use super::world::*;
use crate::client_wire::{Answer, ClientRequest, Role};
use crate::wire::{self, ClusterId, Hello, KnownVoters, MemberId, MemberInfo, PeerMessage, Phase};

/// Names of the others that have lost their state, and the member that knows the voters, if a member says that too many
/// have.
fn lost(world: &mut World, at: usize) -> Option<(Vec<String>, String)> {
    let now_ns = world.now_ns;
    let LostMajority { others, by } = world.member(at).lost_majority(now_ns)?;
    Some((others.into_iter().map(str::to_owned).collect(), by.name.clone()))
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn info(id: u64, name: &str, address: &str) -> MemberInfo {
    MemberInfo { id: MemberId(id), name: name.into(), address: address.into() }
}

fn member_of(cluster: u64) -> Phase {
    Phase::MemberOf(ClusterId(cluster))
}

/// The first of three members, which hears nothing but hellos that a test makes.
fn one_of_three() -> World {
    let mut world = World::new(1, false, 1);
    world.peers = ["a", "b", "c"].map(|name| (name.to_owned(), address(name))).into();
    world.start(0);
    world
}

/// Lets the first member hear a hello, which may tell how much its sender has applied, and which voters it knows.
fn hear(world: &mut World, me: MemberInfo, phase: Phase, known: Option<(u64, Vec<MemberInfo>)>) {
    let known = known.map(|(applied, incoming)| KnownVoters { applied, incoming, outgoing: vec![], learners: vec![] });
    let mut bytes = Vec::new();
    wire::to_bytes(&PeerMessage::Hello(Hello { me, phase, peers_hash: 7, founding: None, known }), &mut bytes);
    let now_ns = world.now_ns;
    world.member(0).handle_peer(&bytes, now_ns).unwrap();
}

/// Replaces one of three members, up to the moment at which its leader is between the two steps of that change.
/// Returns the leader, the other member that stays and the one that is replaced.
fn replaced_halfway(on_disk: bool) -> (World, [usize; 3]) {
    let mut world = World::new(3, on_disk, 1);
    let leader = world.elect();
    let (stays, replaced) = ((leader + 1) % 3, (leader + 2) % 3);
    let name = world.nodes[replaced].name.clone();
    world.replace(replaced);
    let add = ClientRequest::Add { address: address(&name), name, learner: false };
    world.ask(leader, &add);
    world.run_until("it is between the steps", |world| {
        let state = world.member(leader).node.raft.prs().conf().to_conf_state();
        !state.voters_outgoing.is_empty()
    });
    (world, [leader, stays, replaced])
}

/// Both lives of the replaced member are lost, but it is only one of three before the change, and one of three after.
#[test]
fn a_member_that_is_lost_again_while_it_is_replaced_is_one_loss() {
    let (mut world, [leader, stays, replaced]) = replaced_halfway(true);
    world.crash(stays);
    world.replace(replaced);
    world.run_ms(1000);
    assert_eq!((world.leader(), world.status(replaced).role), (None, Role::Outside));
    assert_eq!([leader, replaced].map(|at| lost(&mut world, at)), [const { None }; 2]);
    world.start(stays);
    world.run_until("the change is complete", |world| {
        [leader, stays].iter().all(|at| world.status(*at).members.len() == 3)
    });
}

/// Of three members before the change, one is left; of three after it, two.
#[test]
fn a_change_in_progress_needs_the_majority_of_the_voters_before_it() {
    let (mut world, [leader, stays, replaced]) = replaced_halfway(false);
    world.replace(stays);
    world.run_ms(1000);
    assert_eq!(world.leader(), None);
    let names = [leader, stays, replaced].map(|at| world.nodes[at].name.clone());
    let [leads, stayed, gone] = &names;
    let mut both = vec![stayed.clone(), gone.clone()];
    both.sort_unstable();
    assert_eq!(lost(&mut world, leader), Some((both, leads.clone())));
    let (others, by) = lost(&mut world, stays).unwrap();
    assert!(others == [gone.clone()] && [leads, gone].contains(&&by), "{others:?} {by}");
    assert_eq!(lost(&mut world, replaced), Some((vec![stayed.clone()], gone.clone())));
}

/// A learner has been added for a voter that lost its state, which still counts as a voter.
#[test]
fn a_voter_in_whose_place_a_learner_runs_has_lost_its_state() {
    for on_disk in [false, true] {
        let mut world = World::new(3, on_disk, 1);
        let leader = world.elect();
        let (stays, replaced) = ((leader + 1) % 3, (leader + 2) % 3);
        let names = [leader, stays, replaced].map(|at| world.nodes[at].name.clone());
        let [leads, stayed, gone] = &names;
        world.replace(replaced);
        let add = ClientRequest::Add { address: address(gone), name: gone.clone(), learner: true };
        assert_eq!(wire::decode(&world.ask_leader(&add)), Ok(Answer::Done));
        world.run_until("it is up to date", |world| world.status(replaced).role == Role::Learner);
        assert_eq!([leader, stays, replaced].map(|at| lost(&mut world, at)), [const { None }; 3]);
        world.replace(stays);
        world.run_ms(1000);
        assert_eq!(world.leader(), None);
        let mut both = vec![stayed.clone(), gone.clone()];
        both.sort_unstable();
        assert_eq!(lost(&mut world, leader), Some((both, leads.clone())));
        assert_eq!(lost(&mut world, replaced), Some((vec![stayed.clone()], gone.clone())));
        let (others, by) = lost(&mut world, stays).unwrap();
        assert!(others == [gone.clone()] && [leads, gone].contains(&&by), "{others:?} {by}");
    }
}

/// A hello to an address, as opposed to one to a member, tells no voters.
#[test]
fn voters_that_a_peer_has_told_count_although_its_next_hello_tells_none() {
    let voters = || vec![info(7, "a", "sim://a"), info(8, "b", "sim://b"), info(9, "c", "sim://c")];
    for (later, is_kept) in [((9, 1), true), ((10, 1), false), ((9, 2), false)] {
        let mut world = one_of_three();
        let mut hear_c = |(id, cluster), known| hear(&mut world, info(id, "c", "sim://c"), member_of(cluster), known);
        hear_c((9, 1), Some((5, voters())));
        hear_c(later, None);
        hear(&mut world, info(10, "b", "sim://b"), Phase::New, None);
        let expected = is_kept.then(|| (names(&["b"]), "c".to_owned()));
        assert_eq!(lost(&mut world, 0), expected, "{later:?}");
    }
}

#[test]
fn peers_of_two_clusters_do_not_take_turns_and_one_that_is_silent_does_not_count() {
    for claimed in [3, 5, 1 << 61] {
        let mut world = one_of_three();
        let (ours, theirs) = ([7, 8, 9], [17, 18, 9]);
        let voters = |ids: [u64; 3]| {
            let infos = ids.into_iter().zip(["a", "b", "c"]);
            infos.map(|(id, name)| info(id, name, &address(name))).collect::<Vec<_>>()
        };
        let mut told = Vec::new();
        for _ in 0..4 {
            hear(&mut world, info(8, "b", "sim://b"), member_of(2), Some((claimed, voters(ours))));
            told.push(world.member(0).founding_state.best_known(1_000_000_000).unwrap().0.name.clone());
            hear(&mut world, info(9, "c", "sim://c"), member_of(1), Some((4, voters(theirs))));
            told.push(world.member(0).founding_state.best_known(1_000_000_000).unwrap().0.name.clone());
        }
        assert!(told.iter().all(|name| name == "b"), "{claimed}: {told:?}");
        world.now_ns += 300_000_000;
        let now_ns = world.now_ns;
        assert_eq!(world.member(0).founding_state.best_known(now_ns), None);
        hear(&mut world, info(9, "c", "sim://c"), member_of(1), Some((4, voters(theirs))));
        assert_eq!(world.member(0).founding_state.best_known(now_ns).unwrap().0.name, "c");
        assert_eq!(world.status(0).role, Role::Outside);
    }
}

/// As many lives as a configuration has members were heard, and are silent.
#[test]
fn lives_that_are_silent_take_no_room_of_others() {
    let mut world = one_of_three();
    let at = |id: u64| info(id, &format!("m{id}"), &format!("sim://m{id}"));
    let tell = |world: &mut World, ids: std::ops::Range<u64>| {
        hear(world, info(9, "c", "sim://c"), member_of(1), Some((5, ids.map(at).collect())));
    };
    tell(&mut world, 20..36);
    (20..36).for_each(|id| hear(&mut world, MemberInfo { id: MemberId(id + 100), ..at(id) }, Phase::New, None));
    assert_eq!(world.member(0).founding_state.newcomers.len(), 16);
    world.now_ns += 300_000_000;
    tell(&mut world, 40..41);
    hear(&mut world, MemberInfo { id: MemberId(140), ..at(40) }, Phase::New, None);
    assert_eq!(lost(&mut world, 0), Some((names(&["m40"]), "c".to_owned())));
}

/// Two of three founders are no majority of the five that there are now, but three of five are.
#[test]
fn members_that_were_added_count_in_the_majority() {
    let mut world = World::new(3, false, 1);
    for name in ["x", "y"] {
        world.add_node(name, false);
        let add = ClientRequest::Add { name: name.into(), address: address(name), learner: false };
        assert_eq!(wire::decode(&world.ask_leader(&add)), Ok(Answer::Done));
    }
    // The last survivors, of which one leads.
    let transfer = ClientRequest::Transfer { name: Some("y".into()) };
    assert_eq!(wire::decode(&world.ask_leader(&transfer)), Ok(Answer::Done));
    world.run_until("y leads", |world| world.leader() == Some(4));
    world.run_ms(50);
    (0..2).for_each(|founder| world.replace(founder));
    world.run_ms(300);
    assert_eq!((world.status(0).role, world.leader()), (Role::Outside, Some(4)));
    assert_eq!([0, 1, 2, 4].map(|at| lost(&mut world, at)), [const { None }; 4]);
    world.replace(3);
    world.run_ms(1000);
    assert_eq!(world.leader(), None);
    for (at, others) in [(0, ["b", "x"]), (1, ["a", "x"]), (3, ["a", "b"])] {
        let (found, by) = lost(&mut world, at).unwrap();
        assert_eq!(found, names(&others), "{at}");
        assert!(by == "c" || by == "y", "{by}");
    }
    assert_eq!(lost(&mut world, 2), Some((names(&["a", "b", "x"]), "c".into())));
}

#[test]
fn members_that_were_removed_do_not_count_in_the_majority() {
    let mut world = World::new(5, false, 1);
    let transfer = ClientRequest::Transfer { name: Some("b".into()) };
    world.ask_leader(&transfer);
    world.run_until("b leads", |world| world.leader() == Some(1));
    for name in ["d", "e"] {
        let answer = world.ask_leader(&ClientRequest::Remove { name: name.into() });
        assert_eq!(wire::decode(&answer), Ok(Answer::Done));
    }
    world.run_ms(50);
    [0, 3, 4].into_iter().for_each(|at| world.replace(at));
    world.run_ms(1000);
    assert_eq!((world.status(0).role, world.leader()), (Role::Outside, Some(1)));
    assert_eq!([0, 1, 2, 3, 4].map(|at| lost(&mut world, at)), [const { None }; 5]);
}

/// A life without state is a voter's that was lost only at that voter's present address.
#[test]
fn a_member_that_has_moved_counts_at_its_present_address() {
    for (told, is_lost) in [("sim://moved", true), ("sim://b", false)] {
        let mut world = one_of_three();
        let voters = vec![info(7, "a", "sim://a"), info(8, "b", "sim://moved"), info(9, "c", "sim://c")];
        hear(&mut world, info(9, "c", "sim://c"), member_of(1), Some((5, voters)));
        hear(&mut world, info(10, "b", told), Phase::New, None);
        let expected = is_lost.then(|| (names(&["b"]), "c".to_owned()));
        assert_eq!(lost(&mut world, 0), expected, "{told}");
        // What was heard long ago does not count.
        let later_ns = world.now_ns + 300_000_000;
        assert_eq!(world.member(0).lost_majority(later_ns), None);
    }
}
