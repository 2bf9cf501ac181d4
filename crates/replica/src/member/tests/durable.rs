//! Tests that the contents of a disk outlive every failure.

use sinew_fabric::SeededGenerator;
use sinew_journal::disk::{Disk, Fault, SimDisk};

use super::super::*;
use super::world::*;
use crate::client_wire::{Answer, ClientRequest};
use crate::kv::KvStore;
use crate::wire;

#[test]
fn all_members_may_crash_at_once_and_nothing_acknowledged_is_lost() {
    for seed in 0..10 {
        let mut world = World::new(3, true, seed * 100);
        world.config.log_len_max = 4000;
        world.config.snapshot_step_len = 50;
        world.config.snapshot_write_len = 100;
        for at in 0..3 {
            world.crash(at);
            world.start(at);
        }
        let mut session = world.open(7);
        for round in 0..10 {
            for index in 0..10 {
                world.put(&mut session, &format!("k{index}"), &round.to_string());
            }
            for at in 0..3 {
                world.crash(at);
            }
            for at in 0..3 {
                world.start(at);
                assert_eq!(world.nodes[at].error, None);
            }
            for index in 0..10 {
                assert_eq!(world.get(&format!("k{index}")), Some(round.to_string()), "seed {seed}");
            }
        }
        let leader = world.elect();
        assert!(world.status(leader).snapshot > 10);
    }
}

#[test]
fn a_founder_that_restarts_before_it_learns_of_the_cluster_is_still_one_of_its_members() {
    for restarted in [&[1][..], &[2], &[1, 2], &[0, 1, 2]] {
        let mut world = World::new(3, true, 7);
        world.run_until("the first has founded a cluster", |world| world.member(0).cluster.is_some());
        for at in restarted {
            assert!(*at == 0 || world.member(*at).cluster.is_none());
            world.crash(*at);
        }
        for at in restarted {
            world.start(*at);
        }
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let leader = world.elect();
        let cluster = world.member(leader).cluster;
        world.run_until("all have it", |world| (0..3).all(|at| world.member(at).cluster == cluster));
        // Each can be needed for a majority.
        for at in 0..3 {
            world.crash(at);
            world.put(&mut session, "k", "w");
            world.start(at);
        }
        (0..3).for_each(|at| assert_eq!(world.nodes[at].error, None));
    }
}

/// Starts members anew, with empty disks that have no room.
fn start_on_full_disks(world: &mut World, members: &[usize]) {
    for at in members {
        world.crash(*at);
        world.nodes[*at].disk = Some(SimDisk::new());
        world.set_full(*at, true);
        world.start(*at);
    }
}

#[test]
fn a_member_whose_disk_has_no_room_for_its_id_does_not_say_that_it_is_new() {
    for full in [&[1][..], &[0, 1, 2]] {
        let mut world = World::new(3, true, 7);
        start_on_full_disks(&mut world, full);
        world.run_ms(500);
        assert!((0..3).all(|at| world.member(at).cluster.is_none() && world.nodes[at].error.is_none()));
        assert!(full.iter().all(|at| world.status(*at).is_full));
        full.iter().for_each(|at| world.set_full(*at, false));
        world.run_until("they found a cluster", |world| (0..3).all(|at| world.member(at).cluster.is_some()));
        assert!(full.iter().all(|at| !world.status(*at).is_full));
    }
}

#[test]
fn a_member_may_die_at_any_write_of_its_first_start() {
    let mut deaths = 0;
    for at in 1..30 {
        let mut world = World::new(3, true, at);
        world.crash(1);
        let disk = SimDisk::new();
        disk.fail_at(at, Fault::Crash);
        world.nodes[1].disk = Some(disk.clone());
        world.start(1);
        world.run_ms(200);
        if world.nodes[1].member.is_none() {
            deaths += 1;
            world.crash(1);
            world.nodes[1].error = None;
            world.start(1);
        }
        disk.heal();
        assert_eq!(world.nodes[1].error, None, "write {at}");
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        world.run_until("all are members", |world| (0..3).all(|at| world.member(at).cluster.is_some()));
    }
    assert!(deaths > 5, "{deaths}");
}

/// A follower dies at each of its writes in turn, and must continue from whatever it then has.
#[test]
fn a_member_may_die_at_any_write() {
    for at in 1..150 {
        let mut world = World::new(3, true, at * 100);
        world.config.log_len_max = 1500;
        world.config.snapshot_step_len = 50;
        world.config.snapshot_write_len = 100;
        for place in 0..3 {
            world.crash(place);
            world.start(place);
        }
        let mut session = world.open(7);
        let leader = world.elect();
        let victim = (leader + at as usize) % 3;
        world.nodes[victim].disk.as_ref().unwrap().fail_at(at, Fault::Crash);
        let mut written = 0;
        while world.nodes[victim].member.is_some() {
            assert!(written < 1000, "member {victim} has not come to its write {at}");
            world.put(&mut session, &format!("k{written}"), "v");
            written += 1;
        }
        world.nodes[victim].error = None;
        world.crash(victim);
        world.start(victim);
        assert_eq!(world.nodes[victim].error, None, "write {at}");
        // It is needed for the majority now.
        let other = (victim + 1) % 3;
        world.crash(other);
        for index in 0..written {
            assert_eq!(world.get(&format!("k{index}")).as_deref(), Some("v"), "write {at}");
        }
    }
}

/// Otherwise its memory would grow until the snapshot is whole, which takes the longer the larger the state.
#[test]
fn a_log_grows_by_half_of_a_snapshot_at_most_while_that_is_made() {
    let mut world = World::new(1, false, 1);
    (world.config.snapshot_step_len, world.config.log_len_max, world.config.entries_kept) = (16, 1, 0);
    world.replace(0);
    let mut session = world.open(7);
    let value = "v".repeat(1000);
    for key in 0..100 {
        world.put(&mut session, &key.to_string(), &value);
    }
    world.run_until("the snapshot has all", |world| {
        let member = world.member(0);
        member.pending_snapshot.is_none()
            && member.node.store().latest_snapshot().get_metadata().index == member.applied
    });
    let before = world.member(0).node.store().latest_snapshot().get_metadata().index;
    let mut longest = 0;
    while world.member(0).node.store().latest_snapshot().get_metadata().index < before + 10 {
        world.put(&mut session, "0", &value);
        longest = longest.max(world.member(0).node.store().len_bytes());
    }
    // While the next one is made, the log still has what came during the last.
    assert!(longest < 110_000, "{longest} bytes, with a state of 100,000");
}

#[test]
fn an_idle_member_drops_what_a_snapshot_replaced_a_little_in_each_tick() {
    let mut world = World::new(1, false, 1);
    (world.config.snapshot_step_len, world.config.entries_kept) = (500, 0);
    world.replace(0);
    let mut session = world.open(7);
    for key in 0..100 {
        world.put(&mut session, &key.to_string(), "value");
    }
    let member = world.member(0);
    member.begin_snapshot(true);
    while member.pending_snapshot.is_some() {
        member.compact_in_steps().unwrap();
    }
    assert!(!member.compact_in_steps().unwrap(), "it asks for no further turn");
    let mut firsts = std::collections::BTreeSet::new();
    world.run_until("all are dropped", |world| {
        let store = world.member(0).node.store();
        let (first, last) = (raft::Storage::first_index(store).unwrap(), raft::Storage::last_index(store).unwrap());
        firsts.insert(first);
        first == last + 1
    });
    assert!(firsts.len() > 10, "{firsts:?}");
}

#[test]
fn a_member_is_busy_with_a_snapshot_only_while_another_waits_for_it() {
    let mut world = World::new(3, true, 5);
    world.config.snapshot_step_len = 20;
    for at in 0..3 {
        world.crash(at);
        world.start(at);
    }
    let mut session = world.open(7);
    for key in 0..20 {
        world.put(&mut session, &key.to_string(), "value");
    }
    let member = world.member(0);
    for (is_awaited, asks_later) in [(false, false), (true, false), (false, true)] {
        member.begin_snapshot(is_awaited);
        let mut idle_steps = 0;
        while !member.compact_in_steps().unwrap() {
            idle_steps += 1;
            if asks_later && idle_steps == 2 {
                assert!(raft::Storage::snapshot(member.node.store(), u64::MAX, 0).is_err());
            }
        }
        let expected = if asks_later {
            2..=2
        } else if is_awaited {
            0..=0
        } else {
            5..=1000
        };
        assert!(expected.contains(&idle_steps), "{is_awaited} {asks_later}: {idle_steps}");
        while member.pending_snapshot.is_some() || member.is_replacing_journal() {
            member.compact_in_steps().unwrap();
        }
        while member.compact_in_steps().unwrap() {}
    }
}

#[test]
fn entries_that_are_replaced_while_a_new_journal_is_written_are_replaced_there_too() {
    let mut world = World::new(3, true, 5);
    world.config.snapshot_write_len = 40;
    for at in 0..3 {
        world.crash(at);
        world.start(at);
    }
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let follower = (world.elect() + 1) % 3;
    let disk = world.nodes[follower].disk.clone().unwrap();
    let member = world.member(follower);
    member.begin_snapshot(true);
    while !member.is_replacing_journal() {
        member.compact_in_steps().unwrap();
    }
    let (last, term) = (raft::Storage::last_index(member.node.store()).unwrap(), member.node.raft.term);
    let entry = |index, term| Entry { index, term, data: vec![1; 50].into(), ..Entry::default() };
    member.journal_entries(&[entry(last + 1, term), entry(last + 2, term), entry(last + 3, term)], None);
    member.journal.as_mut().unwrap().sync().unwrap();
    // Each step has room for one entry. Those of the first two are then replaced by one of a later term.
    while member.new_base.as_ref().unwrap().repeated_to() < last + 2 {
        member.compact_in_steps().unwrap();
    }
    member.journal_entries(&[entry(last + 1, term + 1)], None);
    member.journal.as_mut().unwrap().sync().unwrap();
    for _ in 0..100 {
        member.compact_in_steps().unwrap();
    }
    assert!(!member.is_replacing_journal());
    check_journal(member, &disk);
}

#[test]
fn a_full_disk_stops_writes_and_lets_reads_go_on() {
    let mut world = World::new(3, true, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    for at in 0..3 {
        world.nodes[at].disk.as_ref().unwrap().fail_at(1, Fault::Full);
    }
    let value = "x".repeat(500_000);
    let command = put("k", &value);
    let mut last = Vec::new();
    for _ in 0..20 {
        let leader = world.elect();
        last = world.call(leader, &session.run(&command), 500).unwrap_or_default();
        if wire::decode(&last) == Ok(Answer::DiskFull) {
            break;
        }
        session.next += 1;
    }
    assert_eq!(wire::decode(&last), Ok(Answer::DiskFull));
    assert!(world.get("k").is_some());
    let leader = world.elect();
    assert!(world.status(leader).is_full);
    for at in 0..3 {
        world.nodes[at].disk.as_ref().unwrap().heal();
    }
    world.put(&mut session, "k", "w");
    assert_eq!(world.get("k").as_deref(), Some("w"));
}

#[test]
fn a_removal_for_which_the_disk_has_no_room_is_refused_at_once() {
    let (mut world, _) = on_full_disks();
    let leader = world.elect();
    let name = world.nodes[(leader + 1) % 3].name.clone();
    let answer = world.call(leader, &ClientRequest::Remove { name }, 100).unwrap();
    assert_eq!(wire::decode(&answer), Ok(Answer::DiskFull));
}

#[test]
fn a_repeat_of_a_command_that_has_run_is_answered_by_a_full_disk() {
    let mut world = World::new(3, true, 1);
    let session = world.open(7);
    let command = put("k", "v");
    let first = world.ask_leader(&session.run(&command));
    let leader = world.elect();
    world.nodes[leader].disk.as_ref().unwrap().fail_at(1, Fault::Full);
    let long = put("k", &"x".repeat(900_000));
    let run = |number| ClientRequest::Run { session: session.name, number, done_below: 0, command: &long };
    let is_full = |answer: Vec<u8>| wire::decode(&answer) == Ok(Answer::DiskFull);
    (1..20).find(|number| world.call(leader, &run(*number), 500).is_some_and(is_full)).expect("the disk is full");
    let repeat = run(0);
    assert_eq!(world.call(leader, &repeat, 500), Some(first));
}

#[test]
fn a_member_that_is_restarted_on_a_full_disk_goes_on_without_a_vote_until_there_is_room() {
    for restarted in [vec![0], vec![0, 1], vec![0, 1, 2]] {
        let mut world = World::new(3, true, 1);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        world.run_ms(50);
        for at in &restarted {
            world.crash(*at);
            world.nodes[*at].disk.as_ref().unwrap().fail_at(1, Fault::Full);
            world.start(*at);
        }
        world.run_ms(1000);
        for at in &restarted {
            assert_eq!(world.nodes[*at].error, None, "{restarted:?}");
            assert!(!world.member(*at).is_leader());
            world.nodes[*at].disk.as_ref().unwrap().heal();
        }
        world.put(&mut session, "k", "w");
        assert_eq!(world.get("k").as_deref(), Some("w"));
    }
}

#[test]
fn members_that_restart_count_votes_by_the_change_that_they_had_applied() {
    for seed in 0..5 {
        let mut world = World::new(3, true, seed * 100);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let leader = world.elect();
        let (replaced, gone) = ((leader + 1) % 3, (leader + 2) % 3);
        world.crash(replaced);
        world.run_ms(10);
        world.replace(replaced);
        let name = world.nodes[replaced].name.clone();
        let address = format!("sim://{name}");
        world.ask_leader(&ClientRequest::Add { name, address, learner: false });
        world.run_ms(200);
        world.crash(gone);
        for at in [leader, replaced] {
            world.crash(at);
            world.start(at);
        }
        assert_eq!(world.get("k").as_deref(), Some("v"), "seed {seed}");
    }
}

/// Three members whose disks have no more room for commands, and a client's session.
fn on_full_disks() -> (World, Session) {
    let mut world = World::new(3, true, 1);
    let mut session = world.open(7);
    for at in 0..3 {
        world.set_full(at, true);
    }
    let mut len = 500_000;
    while len > 0 {
        let (leader, command) = (world.elect(), put("k", &"x".repeat(len)));
        match world.call(leader, &session.run(&command), 500) {
            Some(answer) if wire::decode(&answer) == Ok(Answer::DiskFull) => len /= 2,
            _ => session.next += 1,
        }
    }
    (world, session)
}

#[test]
fn of_an_append_a_full_disk_takes_the_first_entries_that_have_no_data_and_for_which_there_is_room() {
    let (mut world, _) = on_full_disks();
    let follower = (world.elect() + 1) % 3;
    let member = world.member(follower);
    let own = Entry::default();
    let command = Entry { data: vec![1; 1 << 20].into(), ..Entry::default() };
    assert_eq!(member.count_with_room(&vec![own.clone(); 20_000]), 0);
    assert_eq!(member.count_with_room(&[command.clone(), own.clone()]), 0);
    assert_eq!(member.count_with_room(&[own.clone(), own.clone(), command, own]), 2);
    world.run_ms(100);
    assert_eq!(world.nodes[follower].error, None);
}

/// Commands leave a spare. It is for elections, and no member takes more than there is.
#[test]
fn disks_that_are_full_to_the_last_byte_have_room_for_elections_until_the_spare_is_used_up() {
    let (mut world, mut session) = on_full_disks();
    let mut elections = 0;
    let mut leader = world.elect();
    loop {
        world.isolate(&[leader]);
        let is_ready = |world: &mut World, at| world.member(at).node.raft.commit_to_current_term();
        let next = (0..1000).find_map(|_| {
            world.step();
            world.leader().filter(|at| *at != leader).filter(|at| is_ready(&mut world, *at))
        });
        let Some(next) = next else { break };
        assert!(world.get("k").is_some());
        (leader, elections) = (next, elections + 1);
        world.cut.clear();
        world.run_ms(50);
    }
    assert!(elections > 50, "{elections}");
    world.cut.clear();
    world.run_ms(1000);
    for at in 0..3 {
        assert_eq!(world.nodes[at].error, None);
        world.set_full(at, false);
    }
    world.put(&mut session, "k", "w");
}

#[test]
fn a_member_that_is_added_on_a_full_disk_waits_for_room() {
    let mut world = World::new(3, true, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let at = world.add_node("x", true);
    let disk = world.nodes[at].disk.clone().unwrap();
    disk.fail_at(1, Fault::Full);
    let leader = world.elect();
    world.ask(leader, &ClientRequest::Add { name: "x".into(), address: "sim://x".into(), learner: false });
    world.run_ms(500);
    assert_eq!(world.nodes[at].error, None);
    disk.heal();
    world.run_until("it has all", |world| world.member(at).machine().len() == 1);
}

#[test]
fn members_that_are_founded_on_full_disks_wait_for_room() {
    for full in [vec![1], vec![0, 1, 2]] {
        let mut world = World::new(3, true, 1);
        let disks: Vec<_> = full.iter().map(|at| world.nodes[*at].disk.clone().unwrap()).collect();
        disks.iter().for_each(|disk| disk.fail_at(1, Fault::Full));
        world.run_ms(1000);
        assert_eq!(world.leader().is_some(), full.len() == 1);
        disks.iter().for_each(SimDisk::heal);
        world.open(7);
        world.run_ms(100);
        for at in 0..3 {
            assert_eq!(world.nodes[at].error, None, "{full:?}");
            assert!(world.member(at).applied() > 1, "{full:?}");
        }
    }
}

#[test]
fn proposals_of_one_turn_do_not_take_the_same_room() {
    let mut world = World::new(3, true, 1);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let leader = world.elect();
    for at in 0..3 {
        world.nodes[at].disk.as_ref().unwrap().fail_at(1, Fault::Full);
    }
    let command = put("k", &"x".repeat(500_000));
    let mut refused = 0;
    for _ in 0..40 {
        match world.ask(leader, &session.run(&command)) {
            Some(Accepted::Answer(answer)) => refused += usize::from(wire::decode(&answer) == Ok(Answer::DiskFull)),
            _ => session.next += 1,
        }
    }
    assert!((1..40).contains(&refused), "{refused} of 40 were refused");
    world.run_ms(50);
    assert!(world.nodes.iter().all(|place| place.error.is_none()));
}

fn reopen(name: &str, disk: SimDisk) -> Result<(), MemberError> {
    let peers = vec![(name.to_owned(), "sim://x".to_owned())];
    let random = Box::new(SeededGenerator::new(1));
    Member::open(MemberConfig::default(), name, peers, KvStore::new(), Some(disk), random, 0).map(|_| ())
}

fn written() -> SimDisk {
    let mut world = World::new(3, true, 1);
    let mut session = world.open(7);
    for index in 0..20 {
        world.put(&mut session, &format!("k{index}"), "v");
    }
    world.nodes[0].member = None;
    world.nodes[0].disk.clone().unwrap()
}

#[test]
fn a_directory_of_another_member_is_refused() {
    let disk = written();
    assert!(reopen("a", disk.clone()).is_ok());
    let error = reopen("b", disk).unwrap_err();
    assert_eq!(error, MemberError::OtherMember { found: "a".into(), asked: "b".into() });
}

#[test]
fn a_log_that_is_corrupt_in_its_middle_is_refused_and_one_that_is_torn_is_cut() {
    let mut disk = written();
    let name = disk.names().unwrap().into_iter().find(|name| name.starts_with("log-")).unwrap();
    let len = disk.read(&name).unwrap().len();
    disk.truncate(&name, len as u64 - 3).unwrap();
    assert!(reopen("a", disk.clone()).is_ok());
    disk.corrupt(&name, 100);
    let error = reopen("a", disk).unwrap_err();
    assert!(matches!(error, MemberError::Journal(_)), "{error}");
    // Cutting the file off, or an old copy, would take back what the member has promised and acknowledged.
    let message = error.to_string();
    assert!(message.contains("damaged") && message.contains("empty the directory"), "{message}");
    assert!(!message.contains("truncate") && !message.contains("backup"), "{message}");
}

#[test]
fn a_directory_of_another_release_is_refused() {
    let mut world = World::new(1, true, 1);
    world.elect();
    let disk = world.nodes[0].disk.clone().unwrap();
    let mut opened = Journal::open(disk.clone(), 1).unwrap();
    let mut base = opened.snapshot.take().unwrap();
    base[0] = wire::VERSION + 1;
    opened.journal.replace(&base).unwrap();
    let error = reopen("a", disk).unwrap_err();
    let version = format!("version {}", wire::VERSION + 1);
    assert!(matches!(&error, MemberError::OtherRelease(what) if what.contains(&version)), "{error}");
}

#[test]
fn a_journal_of_a_later_format_is_left_to_the_release_that_wrote_it() {
    let mut disk = written();
    let name = disk.names().unwrap().into_iter().find(|name| name.starts_with("snapshot-")).unwrap();
    disk.create(&name).unwrap();
    disk.append(&name, &[b"SnFs", &9_u32.to_le_bytes()[..], &[1; 50]].concat()).unwrap();
    let error = reopen("a", disk).unwrap_err();
    assert!(matches!(&error, MemberError::OtherRelease(what) if what.contains("format 9")), "{error}");
}

/// Two of the three founders are no majority of the five that there are now.
#[test]
fn members_that_were_added_count_after_a_crash_of_all() {
    for pair in [[0, 1], [0, 2], [1, 2]] {
        let mut world = World::new(3, true, 5);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        for name in ["x", "y"] {
            world.add_node(name, true);
            let (name, address) = (name.to_owned(), format!("sim://{name}"));
            let add = ClientRequest::Add { name: name.clone(), address, learner: true };
            for ask in [add, ClientRequest::Promote { name }] {
                assert_eq!(wire::decode(&world.ask_leader(&ask)), Ok(Answer::Done));
                // All hear from heartbeats that it is committed.
                world.run_ms(100);
            }
        }
        for at in 0..5 {
            world.crash(at);
        }
        pair.iter().for_each(|at| world.start(*at));
        for _ in 0..2000 {
            world.step();
            assert_eq!(world.leader(), None, "{pair:?}");
        }
        world.start(3);
        assert_eq!(world.get("k").as_deref(), Some("v"));
        let leader = world.elect();
        assert_eq!(world.status(leader).members.len(), 5, "{pair:?}");
    }
}

#[test]
fn sessions_outlive_a_crash_of_all() {
    let mut world = World::new(3, true, 5);
    let mut session = world.open(7);
    world.put(&mut session, "k", "v");
    let command = put("k", "w");
    let first = world.ask_leader(&session.run(&command));
    for at in 0..3 {
        world.crash(at);
    }
    for at in 0..3 {
        world.start(at);
    }
    assert_eq!(world.ask_leader(&session.run(&command)), first);
    let answer = world.ask_leader(&ClientRequest::Run { session: 999, number: 0, done_below: 0, command: &command });
    assert_eq!(wire::decode(&answer), Ok(Answer::Expired));
}

#[test]
fn a_change_of_the_members_comes_to_its_end_though_its_leaders_new_journal_has_no_room_at_first() {
    for steps in 0..60 {
        let mut world = World::new(3, true, 3);
        let mut session = world.open(7);
        world.put(&mut session, "k", "v");
        let leader = world.elect();
        let lost = (leader + 1) % 3;
        // The old and the new life change places at once, which the engine ends with an entry of its own.
        world.replace(lost);
        let name = world.nodes[lost].name.clone();
        let add = ClientRequest::Add { address: format!("sim://{name}"), name, learner: false };
        world.run_ms(50);
        world.submit(leader, &add);
        (0..steps).for_each(|_| world.step());
        if world.nodes[leader].member.as_ref().is_some_and(|member| member.is_leader()) {
            world.member(leader).replace_journal().unwrap();
        }
        world.set_full(leader, true);
        world.run_ms(300);
        (0..3).for_each(|at| assert_eq!(world.nodes[at].error, None, "after {steps} steps"));
        // It does not try again before its next tick.
        let now_ns = world.now_ns;
        let is_busy = [(); 2].map(|()| world.member(leader).turn(now_ns, &mut Outbox::default()).unwrap());
        assert!(!is_busy[1], "after {steps} steps");
        world.set_full(leader, false);
        let newcomer = world.nodes[lost].id.unwrap();
        world.run_until("it votes", |world| {
            let Some(leader) = world.leader() else { return false };
            world.submit(leader, &add);
            world.status(leader).members.iter().any(|member| member.info.id == newcomer && member.standing.votes())
        });
        world.put(&mut session, "k", "w");
    }
}
