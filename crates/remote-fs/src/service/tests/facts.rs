//! Facts about the service, each shown in a simulated world.

use sinew_remote_memory::donor::{Call, Refusal};
use sinew_remote_memory::volume::CallFailed;

use super::world::*;
use crate::disk::Fault;
use crate::protocol::*;
use crate::service::Failure;

pub const MB: u64 = 1 << 20;

pub fn world(donors: usize, copies: usize) -> World {
    World::new(donors, 8 * MB, config(copies), 7)
}

pub fn page(byte: u8) -> Vec<u8> {
    vec![byte; PAGE]
}

#[test]
fn what_one_client_commits_another_reads() {
    let mut world = world(3, 2);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (ino, handle) = one.create(&mut world, "f").unwrap();
    let attr = one.write(&mut world, handle, 3, &page(5)).unwrap();
    assert_eq!((attr.size, attr.pages), (4 * PAGE as u64, 1));
    let theirs = other.open(&mut world, ino).unwrap();
    assert_eq!(other.read(&mut world, theirs, 3), Some(page(5)));
    assert_eq!(other.read(&mut world, theirs, 0), Some(page(0)));
}

#[test]
fn an_answer_leaves_after_its_change_lasts_and_so_does_what_depends_on_it() {
    let mut world = world(2, 2);
    let client = Client::new(&mut world, 1);
    world.run(100);
    let make = Request::MakeDirectory { parent: Ino::ROOT, name: b"d".to_vec(), mode: 0o755 };
    let look = Request::Lookup { parent: Ino::ROOT, name: b"d".to_vec() };
    let now = world.now();
    let send = |world: &mut World, sequence, request: &Request| {
        let message = client.envelope(sequence, 1, request.clone()).to_bytes();
        world.service().take(1, &message, now)
    };
    assert!(matches!(send(&mut world, 1, &make), crate::service::Accepted::Deferred(_)));
    assert!(
        matches!(send(&mut world, 0, &look), crate::service::Accepted::Deferred(_)),
        "the name may be gone tomorrow"
    );
    let before = world.disk.writes();
    world.step();
    assert!(world.disk.writes() > before);
    assert!(matches!(send(&mut world, 0, &look), crate::service::Accepted::Answer(_)));
}

#[test]
fn a_request_that_is_repeated_is_performed_once_also_after_a_restart() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let make = Request::MakeDirectory { parent: Ino::ROOT, name: b"d".to_vec(), mode: 0o755 };
    client.sequence = 1;
    let first = client.try_ask(&mut world, &make).unwrap();
    assert!(first.is_ok());
    assert_eq!(client.try_ask(&mut world, &make).unwrap(), first);
    world.crash();
    world.start();
    assert_eq!(client.try_ask(&mut world, &make).unwrap(), Err(Error::Rejoin));
    assert_eq!(client.join(&mut world), Some(true));
    assert_eq!(client.try_ask(&mut world, &make).unwrap(), first);
    // A refused request is refused again, whatever has changed meanwhile.
    client.sequence = 2;
    assert_eq!(client.try_ask(&mut world, &make).unwrap(), Err(Error::Exists));
    let mut other = Client::new(&mut world, 2);
    other.attr(&mut world, Request::RemoveDirectory { parent: Ino::ROOT, name: b"d".to_vec() }).unwrap();
    assert_eq!(client.try_ask(&mut world, &make).unwrap(), Err(Error::Exists));
    client.sequence = 3;
    assert!(client.try_ask(&mut world, &make).unwrap().is_ok());
}

#[test]
fn nobody_speaks_for_another_client() {
    let mut world = world(2, 2);
    let (one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    other.number = one.number;
    assert_eq!(other.try_ask(&mut world, &Request::Statfs).unwrap(), Err(Error::Rejoin));
    assert_eq!(other.join(&mut world), Some(false), "with a wrong secret it is nobody");
    assert_ne!(other.number, one.number);
}

#[test]
fn what_is_open_lives_without_a_name_until_it_is_closed_by_all_and_over_a_restart() {
    let mut world = world(2, 2);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (ino, handle) = one.create(&mut world, "f").unwrap();
    one.write(&mut world, handle, 0, &page(5)).unwrap();
    let theirs = other.open(&mut world, ino).unwrap();
    one.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: b"f".to_vec() }).unwrap();
    one.close(&mut world, handle);
    world.crash();
    world.start();
    assert_eq!((one.join(&mut world), other.join(&mut world)), (Some(true), Some(true)));
    assert_eq!(other.read(&mut world, theirs, 0), Some(page(5)));
    let free = |world: &mut World, client: &mut Client| match client.ask(world, Request::Statfs) {
        Ok(Answer::Space(space)) => space.free_pages,
        other => panic!("{other:?}"),
    };
    world.run(3000);
    let before = free(&mut world, &mut one);
    other.close(&mut world, theirs);
    assert_eq!(free(&mut world, &mut one), before + 1);
    assert_eq!(world.service().state().tree.len(), 1);
}

#[test]
fn what_is_open_by_nobody_who_comes_back_is_gone_after_a_restart() {
    let mut world = world(2, 2);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    one.create(&mut world, "f").unwrap();
    one.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: b"f".to_vec() }).unwrap();
    world.crash();
    world.start();
    assert_eq!(other.join(&mut world), Some(true));
    let lock = Lock { ino: Ino::ROOT, owner: LockOwner::Posix(1), pid: 1, first: 0, last: 1, kind: LockKind::Read };
    assert_eq!(other.ask(&mut world, Request::Lock { lock, waits: false }), Err(Error::Grace), "others may have locks");
    assert_eq!(world.service().state().tree.len(), 2);
    world.run(9_000);
    other.ask(&mut world, Request::Heartbeat).unwrap();
    world.run(2_000);
    assert_eq!(world.service().state().tree.len(), 1);
    assert_eq!(world.service().state().clients.len(), 1);
    assert_eq!(other.ask(&mut world, Request::Lock { lock, waits: false }), Ok(Answer::Done));
}

#[test]
fn what_was_made_after_a_restart_is_gone_when_it_is_closed_whoever_has_not_come_back() {
    let mut world = world(2, 2);
    let (mut one, _other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (old, handle) = one.create(&mut world, "old").unwrap();
    one.close(&mut world, handle);
    world.crash();
    world.start();
    assert_eq!(one.join(&mut world), Some(true));
    let (new, handle) = one.create(&mut world, "new").unwrap();
    one.close(&mut world, handle);
    for name in ["old", "new"] {
        one.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: name.into() }).unwrap();
    }
    let tree = &world.service().state().tree;
    assert!(tree.inode(new).is_err(), "nobody else can have it open");
    assert!(tree.inode(old).is_ok(), "the other client may have it open");
}

#[test]
fn locks_end_with_their_client_and_are_told_again_after_a_restart() {
    let mut world = world(2, 2);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let lock = Lock { ino: Ino::ROOT, owner: LockOwner::Posix(1), pid: 9, first: 0, last: 9, kind: LockKind::Write };
    one.ask(&mut world, Request::Lock { lock, waits: false }).unwrap();
    one.locks.push(lock);
    assert_eq!(other.ask(&mut world, Request::Lock { lock, waits: false }), Err(Error::WouldBlock));
    world.crash();
    world.start();
    assert_eq!((other.join(&mut world), one.join(&mut world)), (Some(true), Some(true)));
    assert_eq!(one.locks, [lock]);
    assert_eq!(other.ask(&mut world, Request::TestLock(lock)), Ok(Answer::LockConflict(Some(lock))));
    world.run(8_000);
    other.ask(&mut world, Request::Heartbeat).unwrap();
    world.run(3_000);
    assert_eq!(other.ask(&mut world, Request::Lock { lock, waits: false }), Ok(Answer::Done), "who is silent is dead");
    assert_eq!(one.ask(&mut world, Request::Heartbeat), Err(Error::Rejoin));
    let now = world.now();
    world.service().peer_left(2, now);
    world.run(2_100);
    assert_eq!(one.ask(&mut world, Request::Lock { lock, waits: false }), Ok(Answer::Done), "who left is dead sooner");
}

#[test]
fn a_client_of_another_version_is_told_that_of_the_service() {
    let mut world = world(2, 2);
    for version in [0, 1, VERSION - 1, VERSION + 1, u8::MAX] {
        assert_eq!(world.send(1, &Message::Greet(version)), Some(Reply::Version(VERSION)));
    }
    assert_eq!(world.service().stats().not_admitted, 5);
    assert_eq!(world.send(1, &Message::Greet(VERSION)), Some(Reply::Welcome));
}

#[test]
fn of_clients_that_wait_for_each_others_locks_one_is_told() {
    let mut world = world(2, 2);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let lock = |byte, waits| {
        let (owner, kind) = (LockOwner::Posix(1), LockKind::Write);
        Request::Lock { lock: Lock { ino: Ino::ROOT, owner, pid: 9, first: byte, last: byte, kind }, waits }
    };
    one.ask(&mut world, lock(0, true)).unwrap();
    other.ask(&mut world, lock(1, true)).unwrap();
    assert_eq!(one.ask(&mut world, lock(1, true)), Err(Error::WouldBlock));
    assert_eq!(other.ask(&mut world, lock(0, true)), Err(Error::Deadlock));
    // The one that waits is gone.
    world.run(8_000);
    other.ask(&mut world, Request::Heartbeat).unwrap();
    world.run(3_000);
    assert_eq!(other.ask(&mut world, lock(0, true)), Ok(Answer::Done));
}

#[test]
fn pages_of_a_dead_client_are_others_when_no_donor_lets_it_in_any_more() {
    // Copies are not given up meanwhile, which would also release the pages.
    let patient = crate::service::Config { donor_timeout_ns: u64::MAX, ..config(2) };
    let mut world = World::new(2, 2 * MB, patient, 7);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let mut runs = Vec::new();
    let mut places = Vec::new();
    loop {
        match one.reserve(&mut world, 512) {
            Ok(fresh) => {
                runs.extend(fresh.runs);
                places = fresh.places;
            }
            Err(error) => break assert_eq!(error, Error::NoSpace),
        }
    }
    // Its writes to each copy are in flight as it dies, and one donor does not answer.
    for copy in &places[0].copies {
        one.leave_late_write(&world, copy, 0, page(66));
    }
    world.net.borrow_mut().hosts[0].is_alive = false;
    for _ in 0..4 {
        world.run(3_000);
        other.ask(&mut world, Request::Heartbeat).unwrap();
    }
    assert_eq!(world.service().state().clients.len(), 1);
    assert_eq!(other.reserve(&mut world, 1), Err(Error::NoSpace));
    world.net.borrow_mut().hosts[0].is_alive = true;
    world.run_until("its pages are free", |world| other.reserve(world, 1).is_ok());
    let (ino, handle) = other.create(&mut world, "f").unwrap();
    assert_eq!(ino, Ino(2));
    for at in 0..100 {
        other.write(&mut world, handle, at, &page(at as u8)).unwrap();
    }
    while !world.net.borrow().late_writes.is_empty() {
        world.net.borrow_mut().perform_late_write();
    }
    for at in 0..100 {
        assert_eq!(other.read(&mut world, handle, at), Some(page(at as u8)));
    }
}

#[test]
fn a_commit_of_what_is_not_reserved_or_was_written_to_other_copies_is_refused() {
    let mut world = world(3, 2);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (_, handle) = one.create(&mut world, "f").unwrap();
    let fresh = one.reserve(&mut world, 2).unwrap();
    let theirs = other.reserve(&mut world, 2).unwrap().runs[0];
    let (run, place) = (fresh.runs[0], &fresh.places[0]);
    let generation = place.generation;
    let mut commit = |world: &mut World, pages: Pages, generation, handle| {
        let sums = Sums(vec![1; pages.count as usize]);
        let extents = vec![Extent { at: 0, pages, generation, sums, replaces: None }];
        let size_min = 2 * PAGE as u64;
        one.ask(world, Request::Commit { handle, size_min, mtime: None, holes: vec![], extents })
    };
    assert_eq!(commit(&mut world, theirs, generation, handle), Err(Error::NotReserved));
    let outside = Pages { segment: 99, ..run };
    assert_eq!(commit(&mut world, outside, generation, handle), Err(Error::NotReserved));
    let more = Pages { count: run.count + 1, first: run.first.saturating_sub(1), ..run };
    assert_eq!(commit(&mut world, more, generation, handle), Err(Error::NotReserved));
    assert_eq!(commit(&mut world, run, generation + 1, handle), Err(Error::CopiesChanged));
    assert_eq!(commit(&mut world, run, generation, handle + 1), Err(Error::BadHandle));
    let SegmentCopy { donor, incarnation, .. } = place.copies[0];
    let failed = Request::ReportFailed { segment: run.segment, donor, incarnation };
    assert!(matches!(other.ask(&mut world, failed), Ok(Answer::Placements(_))));
    assert_eq!(commit(&mut world, run, generation, handle), Err(Error::CopiesChanged));
    assert!(commit(&mut world, run, generation + 1, handle).is_ok());
    assert_eq!(commit(&mut world, run, generation + 1, handle), Err(Error::NotReserved));
}

#[test]
fn without_copies_what_lay_at_a_donor_is_gone_with_it_and_nothing_else() {
    let mut world = world(1, 1);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    world.net.borrow_mut().restart(0);
    world.run_until("it is said so", |world| world.service().degraded().1 > 0);
    assert_eq!(client.read(&mut world, handle, 0), None);
    client.write(&mut world, handle, 0, &page(2)).unwrap();
    assert_eq!(client.read(&mut world, handle, 0), Some(page(2)));
    world.run_until("what is lost is forgotten", |world| world.service().degraded() == (0, 0));
}

#[test]
fn what_lies_in_a_slab_that_its_donor_moved_for_the_next_service_is_there() {
    let mut world = world(1, 1);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    for at in 0..8 {
        client.write(&mut world, handle, at, &page(at as u8)).unwrap();
    }
    world.crash();
    {
        let net = &mut *world.net.borrow_mut();
        let volume = net.volume;
        let fenced = net.handle(0, &Call::Fence { volume, epoch: 0 });
        let Err(CallFailed::Refused(Refusal::OlderEpoch { held })) = fenced else { panic!("{fenced:?}") };
        // The fence of the next service, whose clients know no places yet.
        net.handle(0, &Call::Fence { volume, epoch: held + 1 }).unwrap();
    }
    world.move_slabs(0);
    world.start();
    assert_eq!(client.join(&mut world), Some(true));
    // Until then clients find wrong bytes, and ask again.
    world.run_until("the donor has let the service in", |world| world.service().donors_ready() == (1, 1));
    for at in 0..8 {
        assert!(client.read(&mut world, handle, at) == Some(page(at as u8)), "page {at}");
    }
    client.write(&mut world, handle, 3, &page(9)).unwrap();
    assert!(client.read(&mut world, handle, 3) == Some(page(9)));
    assert_eq!(world.service().degraded(), (0, 0));
}

#[test]
fn what_lies_in_a_slab_that_moved_within_an_epoch_is_there_under_a_later_generation() {
    let patient = crate::service::Config { donor_timeout_ns: u64::MAX, ..config(1) };
    let mut world = World::new(1, 8 * MB, patient, 7);
    let mut client = Client::new(&mut world, 1);
    let (ino, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    let before = world.service().state().segments.clone();
    let number = client.number;
    let (volume, epoch) = (world.service().state().volume, world.service().state().epoch);
    let expel = Call::Expel { volume, epoch, client: number };
    world.net.borrow_mut().handle(0, &expel).unwrap();
    world.move_slabs(0);
    world.net.borrow_mut().hosts[0].is_alive = false;
    world.run_until("it is missed", |world| world.service().donors_ready() == (0, 1));
    world.net.borrow_mut().hosts[0].is_alive = true;
    let mut other = Client::new(&mut world, 2);
    world.run_until("the donor is there again", |world| world.service().donors_ready() == (1, 1));
    let handle = other.open(&mut world, ino).unwrap();
    assert_eq!(other.read(&mut world, handle, 0), Some(page(1)));
    for (number, segment) in &world.service().state().segments {
        assert_eq!(segment.generation, before[number].generation + 1);
        assert!(segment.members[0].base != before[number].members[0].base);
    }
}

#[test]
fn a_donor_that_a_dead_client_may_still_write_to_serves_all_others() {
    let mut world = world(1, 1);
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let reserved = one.reserve(&mut world, 1).unwrap().runs[0];
    world.net.borrow_mut().hosts[0].has_straggler = true;
    for _ in 0..15 {
        world.run(1_000);
        other.ask(&mut world, Request::Heartbeat).unwrap();
        assert_eq!(world.service().donors_ready(), (1, 1));
    }
    assert_eq!(world.service().state().clients.len(), 1, "it is dead");
    let refusals = |world: &mut World| world.service().refusals().map(|(_, why)| why.clone()).collect::<Vec<_>>();
    assert_eq!(
        refusals(&mut world),
        [Refusal::WriterStopped],
        "it can be told why what that had is not given to others"
    );
    let (_, handle) = other.create(&mut world, "f").unwrap();
    other.write(&mut world, handle, 0, &page(1)).unwrap();
    assert_eq!(other.read(&mut world, handle, 0), Some(page(1)));
    let is_its = |run: &Pages| {
        run.segment == reserved.segment && run.first <= reserved.first && reserved.first < run.first + run.count
    };
    let mut has_it = |world: &mut World| other.reserve(world, 256).is_ok_and(|fresh| fresh.runs.iter().any(is_its));
    assert!(!has_it(&mut world));
    world.net.borrow_mut().hosts[0].has_straggler = false;
    world.run(3_000);
    assert_eq!((world.service().donors_ready(), refusals(&mut world)), ((1, 1), vec![]));
}

#[test]
fn a_donor_restarted_before_it_is_told_to_expel_a_client_is_fenced_again_and_not_said_to_refuse() {
    // Runs for 400 steps after a dead client has expired, and returns the step at which it did. One donor is restarted
    // at a step near that: in most runs a look at the donor shows it, in some a refused call.
    let run = |restart_at: Option<u64>| {
        let mut world = world(2, 2);
        let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
        one.reserve(&mut world, 1).unwrap();
        let (mut expired_at, mut next_heartbeat_ns) = (None, 0);
        for step in 0.. {
            if restart_at == Some(step) {
                world.net.borrow_mut().restart(0);
            }
            if world.net.borrow().now_ns > next_heartbeat_ns {
                other.ask(&mut world, Request::Heartbeat).unwrap();
                next_heartbeat_ns = world.net.borrow().now_ns + 1_000_000_000;
            }
            world.step();
            assert_eq!(world.service().refusals().next(), None, "restarted at step {restart_at:?}, step {step}");
            if world.service().state().clients.len() == 1 {
                expired_at.get_or_insert(step);
            }
            if expired_at.is_some_and(|expired_at| step == expired_at + 400) {
                break;
            }
        }
        assert_eq!(world.service().donors_ready(), (2, 2), "restarted at step {restart_at:?}");
        expired_at.unwrap()
    };
    let expired_at = run(None);
    for step in expired_at - 10..expired_at + 10 {
        run(Some(step));
    }
}

#[test]
fn on_a_full_disk_nothing_changes_and_all_can_be_read() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    world.disk.fail_at(1, Fault::Full);
    let mut made = 0;
    let error = loop {
        let value = vec![0; 60_000];
        let name = format!("user.{}", made % 4).into_bytes();
        match client.ask(&mut world, Request::SetXattr { ino: Ino::ROOT, name, value, how: SetXattr::Any }) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error, made > 10), (Error::NoSpace, true), "{made}");
    assert_eq!(client.read(&mut world, handle, 0), Some(page(1)));
    world.disk.heal();
    client.write(&mut world, handle, 1, &page(2)).unwrap();
    world.crash();
    world.start();
    assert_eq!(client.join(&mut world), Some(true));
    assert_eq!(client.read(&mut world, handle, 1), Some(page(2)));
}

#[test]
fn memory_that_cannot_be_recorded_on_a_full_disk_is_not_waited_for() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    client.create(&mut world, "f").unwrap();
    world.disk.fail_at(1, Fault::Full);
    for len in [60_000, 1_000, 1] {
        let request = |made| {
            let (name, value) = (format!("user.{}", made % 4).into_bytes(), vec![0; len]);
            Request::SetXattr { ino: Ino::ROOT, name, value, how: SetXattr::Any }
        };
        let refused = (0..10_000).find_map(|made| client.ask(&mut world, request(made)).err());
        assert_eq!(refused, Some(Error::NoSpace));
    }
    let mut reserve = |world: &mut World| client.ask(world, Request::Reserve { pages: 256 });
    let is_granted =
        |answer: &Result<Answer, Error>| matches!(answer, Ok(Answer::Reserved(fresh)) if !fresh.runs.is_empty());
    let refused = (0..100).find_map(|_| Some(reserve(&mut world)).filter(|answer| !is_granted(answer)));
    assert_eq!(refused, Some(Err(Error::NoSpace)), "donors have more, and it is of no use");
    world.disk.heal();
    world.run_until("there is more", |world| is_granted(&reserve(world)));
}

#[test]
fn a_copy_that_a_client_does_not_reach_stays_while_nobody_is_known_to_have_another() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(7)).unwrap();
    let Ok(Answer::Layout(layout)) = client.ask(&mut world, Request::Layout { handle, at: 0, count: 1 }) else {
        panic!("there is a layout")
    };
    let place = &layout.places[0];
    let copy = *place.copies.iter().find(|copy| copy.donor.0 == 101).unwrap();
    let failed = Request::ReportFailed { segment: place.segment, donor: copy.donor, incarnation: copy.incarnation };
    // The other donor is gone, and the service knows it. It will restart without its copy.
    world.net.borrow_mut().hosts[0].is_alive = false;
    world.run_until("a donor is missed", |world| world.service().donors_ready().0 == 1);
    assert_eq!(client.ask(&mut world, failed.clone()), Err(Error::Lost));
    world.net.borrow_mut().restart(0);
    world.run_until("it is there again", |world| {
        world.service().donors_ready().0 == 2 && world.service().degraded() == (0, 0)
    });
    assert_eq!(client.read(&mut world, handle, 0), Some(page(7)));
    // While another copy can be reached, this one is removed.
    assert!(matches!(client.ask(&mut world, failed), Ok(Answer::Placements(_))));
}

#[test]
fn what_a_full_disk_had_no_room_to_forget_is_forgotten_when_there_is_room() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let (ino, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: b"f".to_vec() }).unwrap();
    let set = |value: usize| Request::SetXattr {
        ino: Ino::ROOT,
        name: b"user.a".to_vec(),
        value: vec![0; value],
        how: SetXattr::Any,
    };
    world.disk.fail_at(1, Fault::Full);
    while client.ask(&mut world, set(60_000)).is_ok() {}
    // The last bytes of room are used up, too, by records as short as the one to come.
    while world.service().store_for_tests().perform(&crate::durable_state::Op::Copies { copies: 2 }).is_ok() {}
    client.close(&mut world, handle);
    world.run(1000);
    assert!(world.service().state().tree.inode(ino).is_ok(), "there was no room to say that it is gone");
    world.disk.heal();
    world.run(1000);
    assert!(world.service().state().tree.inode(ino).is_err());
    world.crash();
    world.start();
    assert!(world.service().state().tree.inode(ino).is_err());
}

fn space_of(world: &mut World, client: &mut Client) -> (u64, u64) {
    match client.ask(world, Request::Statfs) {
        Ok(Answer::Space(space)) => (space.inodes, space.inodes_max),
        other => panic!("{other:?}"),
    }
}

#[test]
fn so_many_inodes_are_made_and_no_more() {
    let limited = crate::service::Config { inodes_max: 4, ..config(2) };
    let mut world = World::new(2, 8 * MB, limited, 7);
    let mut client = Client::new(&mut world, 1);
    let name = |text: &str| (Ino::ROOT, text.as_bytes().to_vec());
    let directory = |(parent, name)| Request::MakeDirectory { parent, name, mode: 0o755 };
    let link = |(parent, name)| Request::MakeSymlink { parent, name, target: b"x".to_vec() };
    let node = |(parent, name)| Request::MakeNode { parent, name, mode: 0o644, kind: NodeKind::Fifo, rdev: 0 };
    client.create(&mut world, "f").unwrap();
    client.attr(&mut world, directory(name("d"))).unwrap();
    assert_eq!(space_of(&mut world, &mut client), (3, 4));
    let (ino, handle) = client.create(&mut world, "g").unwrap();
    assert_eq!(client.create(&mut world, "h"), Err(Error::NoSpace));
    for request in [directory(name("h")), link(name("h")), node(name("h"))] {
        assert_eq!(client.ask(&mut world, request), Err(Error::NoSpace));
    }
    assert_eq!(client.create(&mut world, "f"), Err(Error::Exists), "it takes nothing more");
    let (parent, new) = name("g2");
    client.attr(&mut world, Request::Link { ino, parent, name: new }).unwrap();
    let mut link = |world: &mut World, text: &str| {
        let (parent, name) = name(text);
        client.ask(world, Request::Link { ino, parent, name }).map(drop)
    };
    for further in ["g3", "g4", "g5"] {
        assert_eq!(link(&mut world, further), Ok(()));
    }
    assert_eq!(link(&mut world, "g6"), Err(Error::NoSpace), "names take memory, too");
    assert_eq!(link(&mut world, "g5"), Err(Error::Exists));
    for name in ["g5", "g4", "g3"] {
        client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: name.into() }).unwrap();
    }
    let (parent, new) = name("g3");
    client.attr(&mut world, Request::Link { ino, parent, name: new }).unwrap();
    for name in ["g", "g2", "g3"] {
        client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: name.into() }).unwrap();
    }
    assert_eq!(client.create(&mut world, "h"), Err(Error::NoSpace), "it is open");
    client.close(&mut world, handle);
    assert!(client.create(&mut world, "h").is_ok());
    assert_eq!(space_of(&mut world, &mut client), (4, 4));
}

#[test]
fn so_many_bytes_of_extended_attributes_are_kept_and_no_more_also_after_a_restart() {
    let limited = crate::service::Config { xattrs_len_max: 100, ..config(2) };
    let mut world = World::new(2, 8 * MB, limited, 7);
    let mut client = Client::new(&mut world, 1);
    let (ino, handle) = client.create(&mut world, "f").unwrap();
    let set =
        |ino, name: &str, len| Request::SetXattr { ino, name: name.into(), value: vec![1; len], how: SetXattr::Any };
    client.ask(&mut world, set(ino, "user.a", 54)).unwrap();
    client.ask(&mut world, set(Ino::ROOT, "user.b", 34)).unwrap();
    assert_eq!(client.ask(&mut world, set(Ino::ROOT, "user.c", 0)), Err(Error::NoSpace));
    assert_eq!(client.ask(&mut world, set(Ino::ROOT, "user.b", 35)), Err(Error::NoSpace));
    client.ask(&mut world, set(Ino::ROOT, "user.b", 33)).unwrap();
    world.crash();
    world.start();
    assert_eq!(client.join(&mut world), Some(true));
    assert_eq!(client.ask(&mut world, set(Ino::ROOT, "user.b", 35)), Err(Error::NoSpace));
    client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: b"f".to_vec() }).unwrap();
    client.close(&mut world, handle);
    client.ask(&mut world, set(Ino::ROOT, "user.b", 94)).unwrap();
    client.ask(&mut world, Request::RemoveXattr { ino: Ino::ROOT, name: b"user.b".to_vec() }).unwrap();
    assert_eq!(world.service().state().tree.xattrs_len(), 0);
}

#[test]
fn the_layout_of_a_file_that_lies_in_many_segments_is_told_in_answers_that_are_not_too_long() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let (ino, _) = client.create(&mut world, "f").unwrap();
    let handle = client.open(&mut world, ino).unwrap();
    // The state that a long-lived service may have written.
    let store = world.service().store_for_tests();
    let copies = 8;
    let count = 6000;
    let member = |donor| crate::durable_state::Member {
        donor: u64::MAX - donor,
        incarnation: u64::MAX,
        slab: 0,
        base: u64::MAX >> 1,
        is_whole: true,
    };
    let mut extents = Vec::new();
    for at in 0..count {
        let segment = u32::MAX / 2 + at as u32;
        let members = (0..copies).map(member).collect();
        store.perform(&crate::durable_state::Op::Segment { segment, pages: 1, members }).unwrap();
        let pages = Pages { segment, first: 0, count: 1 };
        extents.push(Extent { at, pages, generation: 1, sums: Sums(vec![1]), replaces: None });
    }
    let request = Request::Commit { handle, size_min: count * PAGE as u64, mtime: None, holes: vec![], extents };
    let (caller, now) = (Caller::default(), Time::default());
    let sequence = 1000;
    let op = crate::durable_state::Op::Change {
        client: client.number,
        sequence,
        settled: 1,
        caller,
        now,
        opened: Some(ino),
        request,
    };
    store.perform(&op).unwrap();
    let mut at = 0;
    while at < count {
        let Ok(Answer::Layout(layout)) = client.ask(&mut world, Request::Layout { handle, at, count: count - at })
        else {
            panic!("there is a layout")
        };
        assert!(layout.until > at && layout.places.len() == layout.runs.len());
        assert!(Reply::Answer(Answer::Layout(layout.clone())).to_bytes().len() <= ANSWER_LEN_MAX);
        at = layout.until;
    }
}

#[test]
fn a_service_whose_donors_another_one_has_taken_over_ends() {
    let mut world = world(2, 2);
    world.run(200);
    // Another service, which has started from a later copy of the data.
    let volume = world.service().state().volume;
    for lane in 0..2 {
        let call = sinew_remote_memory::donor::Call::Fence { volume, epoch: 9 };
        world.net.borrow_mut().handle(lane, &call).unwrap();
    }
    // The old service notices although no client changes anything.
    world.run_until("it notices", |world| world.failure.is_some());
    assert!(matches!(world.failure, Some(Failure::TakenOver { held: 9, .. })), "{:?}", world.failure);
}

#[test]
fn a_client_has_no_more_than_its_share() {
    let mut config = config(2);
    (config.clients_max, config.reserved_max, config.failed_max) = (2, 100, 3);
    let mut world = World::new(3, 8 * MB, config, 7);
    let (mut one, _) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    assert_eq!(world.send(3, &Message::Join(Join::default())), Some(Reply::Refused(Error::TooMany)));
    let mut pages = 0;
    let error = loop {
        match one.reserve(&mut world, 60) {
            Ok(fresh) => pages += fresh.runs.iter().map(|run| run.count).sum::<u32>(),
            Err(error) => break error,
        }
    };
    assert_eq!((pages, error), (100, Error::TooMany));
    // A donor without a copy there does not count.
    let none = Request::ReportFailed { segment: 1, donor: sinew_remote_memory::volume::DonorId(1), incarnation: 1 };
    (0..9).for_each(|_| assert!(one.ask(&mut world, none.clone()).is_ok()));
    let mut taken_out = 0;
    let error = loop {
        let segments = world.service().state().segments.clone();
        let whole = segments.iter().find_map(|(number, segment)| {
            let whole: Vec<_> = segment.members.iter().filter(|member| member.is_whole).collect();
            (whole.len() > 1).then(|| (*number, *whole[0]))
        });
        let Some((segment, member)) = whole else {
            world.run(100);
            continue;
        };
        let donor = sinew_remote_memory::volume::DonorId(member.donor);
        match one.ask(&mut world, Request::ReportFailed { segment, donor, incarnation: member.incarnation }) {
            Ok(_) => taken_out += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((taken_out, error), (3, Error::TooMany));
}

#[test]
fn a_commit_that_was_given_up_is_not_performed_when_it_comes_late() {
    let mut world = world(2, 2);
    let mut one = Client::new(&mut world, 1);
    let (_, handle) = one.create(&mut world, "file").unwrap();
    let Reservation { runs, places, .. } = one.reserve(&mut world, 1).unwrap();
    let pages = Pages { count: 1, ..runs[0] };
    let extent = Extent { at: 0, pages, generation: places[0].generation, sums: Sums(vec![1]), replaces: None };
    let commit = Request::Commit { handle, size_min: 1, mtime: None, holes: Vec::new(), extents: vec![extent] };
    // The client gives up on request 1,000, gives the page back, and reserves it again.
    let ask = |world: &mut World, sequence, settled, request| world.send(1, &one.envelope(sequence, settled, request));
    let given_back = ask(&mut world, 0, 1001, Request::GiveBack { pages: vec![pages] });
    assert_eq!(given_back, Some(Reply::Answer(Answer::Done)));
    let Some(Reply::Answer(Answer::Reserved(again))) = ask(&mut world, 0, 1001, Request::Reserve { pages: 1 }) else {
        panic!("there is a page")
    };
    assert_eq!(again.runs, [pages], "the same page, so that nothing but the number tells that the commit is late");
    assert_eq!(ask(&mut world, 1000, 1000, commit.clone()), Some(Reply::Refused(Error::AlreadyAnswered)));
    // If a commit was performed before it was given up, the page belongs to the file.
    assert!(matches!(ask(&mut world, 1001, 1001, commit), Some(Reply::Answer(Answer::Attr(_)))));
    let given_back = ask(&mut world, 0, 1002, Request::GiveBack { pages: vec![pages] });
    assert_eq!(given_back, Some(Reply::Refused(Error::NotReserved)));
}

#[test]
fn pages_that_were_reserved_before_a_restart_are_not_taken_for_those_reserved_after_it() {
    let mut world = world(2, 2);
    let mut one = Client::new(&mut world, 1);
    let (_, handle) = one.create(&mut world, "file").unwrap();
    let before = one.reserve(&mut world, 1).unwrap();
    world.crash();
    world.start();
    assert_eq!(one.join(&mut world), Some(true));
    let after = one.reserve(&mut world, 1).unwrap();
    assert_eq!((&after.runs, after.epoch), (&before.runs, before.epoch + 1), "the same pages");
    let (pages, generation) = (Pages { count: 1, ..after.runs[0] }, after.places[0].generation);
    let extent = Extent { at: 0, pages, generation, sums: Sums(vec![1]), replaces: None };
    let commit = Request::Commit { handle, size_min: 1, mtime: None, holes: Vec::new(), extents: vec![extent] };
    // A thread that had written to the pages before asks late.
    let ask = |world: &mut World, epoch, sequence, request| {
        let Message::Request(envelope) = one.envelope(sequence, 1, request) else { panic!("an envelope") };
        world.send(1, &Message::Request(Envelope { epoch, ..envelope })).unwrap()
    };
    let refused = Reply::Refused(Error::NotReserved);
    assert_eq!(ask(&mut world, before.epoch, 1000, commit.clone()), refused);
    assert_eq!(ask(&mut world, before.epoch, 0, Request::GiveBack { pages: vec![pages] }), refused);
    let holes = Request::Commit { handle, size_min: 0, mtime: None, holes: vec![(0, 1)], extents: Vec::new() };
    assert!(matches!(ask(&mut world, 0, 1002, holes), Reply::Answer(Answer::Attr(_))), "it names no pages");
    assert!(matches!(ask(&mut world, after.epoch, 1001, commit.clone()), Reply::Answer(Answer::Attr(_))));
    // A commit that was performed is answered as before, whatever it says now.
    assert!(matches!(ask(&mut world, before.epoch, 1001, commit), Reply::Answer(Answer::Attr(_))));
}

#[test]
fn bytes_that_are_no_message_are_counted_and_change_nothing() {
    let mut world = world(2, 2);
    let now = world.now();
    let before = world.service().state().clone();
    for bytes in [&b""[..], &[0], &[9], &[3, 1, 2], &[0xFF; 100]] {
        let crate::service::Accepted::Answer(answer) = world.service().take(1, bytes, now) else { panic!("at once") };
        assert_eq!(Reply::read(&answer), Ok(Reply::Malformed));
    }
    assert_eq!((world.service().stats().malformed, world.service().state() == &before), (5, true));
}
