//! Tests of the checks.

use super::*;
use crate::protocol::{Attr, PAGE};
use crate::service::tests::world::{Client, World, config};

/// A service that has ended, with two files of three pages each.
fn world() -> (World, Vec<Attr>) {
    let mut world = World::new(3, 8 << 20, config(2), 7);
    let mut client = Client::new(&mut world, 1);
    let mut files = Vec::new();
    for name in ["a", "b"] {
        let (_, handle) = client.create(&mut world, name).unwrap();
        let write = |at: u64| client.write(&mut world, handle, at, &[at as u8 + 1; PAGE]).unwrap();
        files.push((0..3).map(write).last().unwrap());
    }
    world.service().close().unwrap();
    world.service = None;
    (world, files)
}

fn kept(world: &World) -> DurableState {
    read(world.disk.clone()).unwrap().unwrap()
}

fn pages(world: &World) -> Vec<Finding> {
    let (donors, addresses) = world.donors();
    let mut check = PageCheck::new(&kept(world), donors, addresses);
    for _ in 0..1000 {
        world.net.borrow_mut().step();
        if let Some(findings) = check.turn() {
            let Progress { done, all } = check.progress();
            assert_eq!((done, all), (12, 12));
            return findings;
        }
    }
    panic!("it never ends");
}

/// Changes a byte of a file's first page in as many copies as `copies`.
fn damage(world: &World, ino: Ino, copies: usize) {
    let kept = kept(world);
    let run = &kept.tree.map(ino).unwrap().all()[0];
    for member in &kept.segments[&run.pages.segment].members[..copies] {
        let at = member.base as usize + run.pages.first as usize * PAGE + 5;
        world.net.borrow_mut().hosts[(member.donor - 100) as usize].memory[at] ^= 1;
    }
}

#[test]
fn nothing_is_wrong_with_what_was_served_well_and_looking_changes_nothing() {
    let (mut world, files) = world();
    let before = world.disk.writes();
    assert_eq!((names(&kept(&world), 2), pages(&world)), (vec![], vec![]));
    assert_eq!(world.disk.writes(), before);
    world.start();
    let mut client = Client::new(&mut world, 9);
    let handle = client.open(&mut world, files[0].ino).unwrap();
    world.run(100);
    assert_eq!(client.read(&mut world, handle, 1), Some(vec![2; PAGE]), "the next service has the donors again");
}

#[test]
fn pages_of_a_slab_that_its_donor_moved_are_read_where_they_are_now() {
    let (world, _) = world();
    let kept = kept(&world);
    let (volume, epoch) = (kept.volume, kept.epoch + 1);
    for lane in 0..3 {
        let fence = sinew_remote_memory::donor::Call::Fence { volume, epoch };
        world.net.borrow_mut().handle(lane, &fence).unwrap();
        world.move_slabs(lane);
    }
    assert_eq!(pages(&world), vec![]);
}

#[test]
fn a_page_that_is_damaged_is_found_and_said_to_be_lost_if_all_copies_are() {
    let (world, files) = world();
    damage(&world, files[0].ino, 1);
    damage(&world, files[1].ino, 2);
    let findings = pages(&world);
    let of = |ino| {
        findings.iter().filter(|found| matches!(found, Finding::Page { ino: of, at: 0, .. } if *of == ino)).count()
    };
    assert_eq!((of(files[0].ino), of(files[1].ino)), (1, 2));
    assert_eq!(findings.len(), 4);
    assert!(findings.contains(&Finding::Lost { ino: files[1].ino, at: 0 }));
}

#[test]
fn a_donor_that_has_restarted_or_is_gone_is_named() {
    let (world, files) = world();
    let run = kept(&world).tree.map(files[0].ino).unwrap().all()[0].clone();
    let lanes: Vec<usize> =
        kept(&world).segments[&run.pages.segment].members.iter().map(|member| (member.donor - 100) as usize).collect();
    world.net.borrow_mut().restart(lanes[0]);
    let findings = pages(&world);
    let name = format!("donor {}", lanes[0] + 100);
    let is_it = |found: &Finding| matches!(found, Finding::Donor { donor, why } if *donor == name && why.starts_with("it has restarted"));
    assert!(findings.len() == 1 && is_it(&findings[0]), "{findings:?}");
    lanes.iter().for_each(|lane| world.net.borrow_mut().hosts[*lane].is_alive = false);
    let findings = pages(&world);
    assert!(findings.contains(&Finding::Lost { ino: files[0].ino, at: 0 }));
    let donors = findings.iter().filter(|found| matches!(found, Finding::Donor { .. })).count();
    assert!(donors == 2, "{findings:?}");
}

#[test]
fn pages_of_two_files_and_pages_that_are_not_there_are_found() {
    let (world, files) = world();
    let good = kept(&world);
    let run = good.tree.map(files[0].ino).unwrap().all()[0].clone();
    let commit = |pages: Pages| {
        let extent = crate::protocol::Extent {
            at: 1,
            pages,
            generation: 1,
            sums: crate::protocol::Sums(vec![5]),
            replaces: None,
        };
        let request = crate::protocol::Request::Commit {
            handle: 1,
            size_min: 0,
            mtime: None,
            holes: vec![],
            extents: vec![extent],
        };
        let caller = crate::protocol::Caller::default();
        let context = crate::tree::Context { caller: &caller, now: Default::default(), opened: Some(files[1].ino) };
        let mut kept = good.clone();
        kept.tree.change(context, &request, &mut Vec::new()).unwrap();
        names(&kept, 2)
    };
    let one = Pages { count: 1, ..run.pages };
    let (ino, other) = (files[1].ino, files[0].ino);
    assert_eq!(commit(one), [Finding::Shared { ino, other, segment: one.segment, page: one.first }]);
    let none = Pages { first: 256, ..one };
    assert_eq!(commit(none), [Finding::NoPages { ino, pages: none }]);
    assert!(names(&good, 3).iter().all(|found| matches!(found, Finding::Copies { whole: 2, copies: 3, .. })));
}
