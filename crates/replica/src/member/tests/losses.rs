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
        let mut world = World::new(1, false, 1);
        world.peers = ["a", "b", "c"].map(|name| (name.to_owned(), address(name))).into();
        world.start(0);
        let voters = vec![info(7, "a", "sim://a"), info(8, "b", "sim://moved"), info(9, "c", "sim://c")];
        let known = Some(KnownVoters { applied: 5, voters });
        let hellos =
            [(info(9, "c", "sim://c"), Phase::MemberOf(ClusterId(1)), known), (info(10, "b", told), Phase::New, None)];
        for (me, phase, known) in hellos {
            let mut bytes = Vec::new();
            wire::to_bytes(&PeerMessage::Hello(Hello { me, phase, peers_hash: 7, founding: None, known }), &mut bytes);
            let now_ns = world.now_ns;
            world.member(0).handle_peer(&bytes, now_ns).unwrap();
        }
        let expected = is_lost.then(|| (names(&["b"]), "c".to_owned()));
        assert_eq!(lost(&mut world, 0), expected, "{told}");
        // What was heard long ago does not count.
        let later_ns = world.now_ns + 300_000_000;
        assert_eq!(world.member(0).lost_majority(later_ns), None);
    }
}
