//! Facts about the copies of segments, each shown in a simulated world.

use sinew_remote_memory::donor::{Answer as Said, Call};

use super::facts::{MB, page, world};
use super::world::*;
use crate::protocol::*;
use crate::service::Config;

#[test]
fn a_donor_that_dies_loses_nothing_and_its_copies_are_rebuilt() {
    let mut world = world(3, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    for at in 0..300 {
        client.write(&mut world, handle, at, &page(at as u8)).unwrap();
    }
    for lane in 0..3 {
        world.net.borrow_mut().restart(lane);
        // Donors are checked once a second.
        world.run(2_000);
        world.run_until("all has two copies again", |world| {
            let _ = client.ask(world, Request::Heartbeat);
            world.service().degraded() == (0, 0) && world.service().donors_ready() == (3, 3)
        });
        for at in 0..300 {
            assert_eq!(client.read(&mut world, handle, at), Some(page(at as u8)), "page {at}");
        }
        // Writes continue meanwhile.
        client.write(&mut world, handle, lane as u64, &page(lane as u8)).unwrap();
    }
    assert!(world.service().stats().repaired >= 2);
}

#[test]
fn a_copy_that_a_client_does_not_reach_is_none_and_the_last_one_stays() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    world.net.borrow_mut().hosts[0].is_alive = false;
    client.write(&mut world, handle, 1, &page(2)).unwrap();
    assert_eq!(client.read(&mut world, handle, 1), Some(page(2)));
    world.net.borrow_mut().hosts[1].is_alive = false;
    assert_eq!(client.write(&mut world, handle, 2, &page(3)).err(), Some(Error::Lost));
    world.net.borrow_mut().hosts[1].is_alive = true;
    world.run_until("it is written", |world| {
        let _ = client.ask(world, Request::Heartbeat);
        client.write(world, handle, 2, &page(3)).is_ok()
    });
    assert_eq!(client.read(&mut world, handle, 0), Some(page(1)));
}

/// Runs until every segment has all its copies, after what happened to a donor has been noticed.
pub fn until_whole(world: &mut World, client: &mut Client) {
    for _ in 0..if world.net.borrow().hosts.iter().all(|host| host.is_alive) { 3 } else { 15 } {
        world.run(1_000);
        let _ = client.ask(world, Request::Heartbeat);
    }
    world.run_until("all has its copies", |world| {
        let _ = client.ask(world, Request::Heartbeat);
        world.service().degraded() == (0, 0)
    });
}

/// Runs until a file's first segment has this many whole copies at donors that are alive.
fn until_whole_with(world: &mut World, client: &mut Client, handle: u64, copies: usize) {
    for _ in 0..15 {
        world.run(1_000);
        let _ = client.ask(world, Request::Heartbeat);
    }
    world.run_until("it has its copies", |world| {
        let place = client.place(world, handle, 0);
        let is_alive = |copy: &SegmentCopy| world.net.borrow().hosts[(copy.donor.0 - 100) as usize].is_alive;
        place.copies.iter().filter(|copy| copy.is_whole && is_alive(copy)).count() == copies
    });
}

/// Writes files of a hundred pages until there is no memory left, or `max` pages. The first byte of each is its number.
pub fn fill(world: &mut World, client: &mut Client, max: usize) -> Vec<u64> {
    let mut handles = Vec::new();
    for at in 0..max {
        if at % 100 == 0 {
            let name = format!("{} {}", client.number, client.opens.len());
            handles.push(client.create(world, &name).unwrap().1);
        }
        let handle = handles[at / 100];
        match client.write(world, handle, at as u64 % 100, &page((at / 100) as u8)) {
            Ok(_) => {}
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    handles
}

#[test]
fn copies_that_clients_take_out_again_and_again_use_up_no_memory() {
    let mut world = world(3, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(7)).unwrap();
    let lent = |world: &World| world.net.borrow().hosts.iter().map(|host| host.donor.lent_bytes()).sum::<u64>();
    let mut most = 0;
    for round in 0..60 {
        let place = client.place(&mut world, handle, 0);
        let SegmentCopy { donor, incarnation, .. } = place.copies[round % place.copies.len()];
        client.ask(&mut world, Request::ReportFailed { segment: place.segment, donor, incarnation }).unwrap();
        until_whole(&mut world, &mut client);
        client.write(&mut world, handle, 1 + round as u64, &page(round as u8)).unwrap();
        most = most.max(lent(&world));
    }
    for round in 0..60 {
        assert_eq!(client.read(&mut world, handle, 1 + round), Some(page(round as u8)));
    }
    assert_eq!(client.read(&mut world, handle, 0), Some(page(7)));
    // The segment has two copies, and each of the three donors at most one slab of it.
    assert!(most <= 3 * MB + 2 * 2 * MB, "{most}");
}

#[test]
fn a_donor_whose_free_memory_is_in_pieces_is_passed_over_for_a_missing_copy() {
    let mut world = world(4, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(7)).unwrap();
    let place = client.place(&mut world, handle, 0);
    let used: Vec<usize> = place.copies.iter().map(|copy| (copy.donor.0 - 100) as usize).collect();
    let [pieces, other] = (0..4).filter(|lane| !used.contains(lane)).collect::<Vec<_>>()[..] else { panic!("two") };
    // Another volume holds every second half megabyte of one donor, and all but one megabyte of the other.
    let another = |lane: usize, call: fn(u64, u32) -> Call| world.net.borrow_mut().handle(lane, &call(99, 1)).unwrap();
    for lane in [pieces, other] {
        another(lane, |volume, epoch| Call::Fence { volume, epoch });
    }
    let half = |volume, epoch| Call::Take { volume, epoch, len: MB / 2 };
    let mut slabs = Vec::new();
    while let Ok(Said::Taken { lent, .. }) = world.net.borrow_mut().handle(pieces, &half(99, 1)) {
        slabs.push(lent.slab);
    }
    for slab in slabs.into_iter().step_by(2) {
        world.net.borrow_mut().handle(pieces, &Call::Free { volume: 99, epoch: 1, slab }).unwrap();
    }
    let free = |world: &World, lane: usize| world.net.borrow().hosts[lane].donor.free_bytes();
    while free(&world, other) > MB {
        another(other, half);
    }
    assert!(free(&world, pieces) >= 3 * MB);
    // Two donors remain for the copy that is missing now, and the one with more memory has no megabyte in one piece.
    world.run(1_100);
    world.net.borrow_mut().hosts[used[0]].is_alive = false;
    world.run_until("the donor is given up", |world| {
        let _ = client.ask(world, Request::Heartbeat);
        world.service().degraded().0 > 0
    });
    world.run_until("the copy is made at the other donor", |world| {
        let _ = client.ask(world, Request::Heartbeat);
        world.service().degraded() == (0, 0) && world.service().donors_ready().0 == 3
    });
    assert_eq!(client.read(&mut world, handle, 0), Some(page(7)));
}

#[test]
fn a_donor_whose_free_memory_is_in_pieces_is_asked_for_shorter_slabs() {
    let config = Config { slab_len: 4 * MB, ..config(1) };
    let mut world = World::new(1, 32 * MB, config, 1);
    let mut client = Client::new(&mut world, 1);
    world.run(100);
    // Another volume holds every second megabyte of what is free.
    let handle = |world: &World, call: &Call| world.net.borrow_mut().handle(0, call);
    handle(&world, &Call::Fence { volume: 99, epoch: 1 }).unwrap();
    let mut slabs = Vec::new();
    while let Ok(Said::Taken { lent, .. }) = handle(&world, &Call::Take { volume: 99, epoch: 1, len: MB }) {
        slabs.push(lent.slab);
    }
    for slab in slabs.into_iter().step_by(2) {
        handle(&world, &Call::Free { volume: 99, epoch: 1, slab }).unwrap();
    }
    let free = world.net.borrow().hosts[0].donor.free_bytes();
    assert!(free >= 8 * MB, "{free}");
    // A client whose write finds no room asks again after a while.
    for round in 0..20 {
        fill(&mut world, &mut client, usize::MAX);
        world.run(200 + round);
        client.ask(&mut world, Request::Heartbeat).unwrap();
    }
    let left = world.net.borrow().hosts[0].donor.free_bytes();
    assert!(left <= MB, "{left} of {free} bytes were not asked for");
}

#[test]
fn missing_copies_of_slabs_of_several_lengths_find_room_in_what_is_given_back() {
    for seed in 0..10 {
        // Slabs of several lengths: a copy of a long one needs the memory of several short ones.
        let config = Config { slab_len: 4 * MB, ..config(2) };
        let mut world = World::new(3, 16 * MB, config, seed);
        let mut client = Client::new(&mut world, 1);
        let handles = fill(&mut world, &mut client, usize::MAX);
        let kept = world.random(handles.len() as u64 / 3) as usize + 1;
        for (number, handle) in handles.iter().enumerate().skip(kept) {
            let name = format!("{} {number}", client.number).into_bytes();
            client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name }).unwrap();
            client.close(&mut world, *handle);
        }
        world.net.borrow_mut().hosts[seed as usize % 3].is_alive = false;
        until_whole(&mut world, &mut client);
        for (number, handle) in handles[..kept].iter().enumerate() {
            assert_eq!(client.read(&mut world, *handle, 0), Some(page(number as u8)), "file {number}, seed {seed}");
        }
    }
}

#[test]
fn segments_without_contents_are_given_back_for_copies_that_have_room_nowhere_else() {
    for seed in 0..10 {
        let mut world = World::new(3, 8 * MB, config(2), seed);
        let mut client = Client::new(&mut world, 1);
        let handles = fill(&mut world, &mut client, usize::MAX);
        assert!(handles.len() > 20, "{}", handles.len());
        // All but the last few files go.
        let kept = handles.len() - 7;
        for (number, handle) in handles[..kept].iter().enumerate() {
            let name = format!("{} {number}", client.number).into_bytes();
            client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name }).unwrap();
            client.close(&mut world, *handle);
        }
        world.net.borrow_mut().hosts[seed as usize % 3].is_alive = false;
        until_whole(&mut world, &mut client);
        for (number, handle) in handles.iter().enumerate().skip(kept) {
            assert_eq!(client.read(&mut world, *handle, 0), Some(page(number as u8)), "file {number}, seed {seed}");
        }
    }
}

#[test]
fn a_donor_that_wants_its_memory_back_gets_all_of_it_and_nothing_is_lost() {
    let mut world = world(3, 2);
    let (mut client, mut stale) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (_, handle) = client.create(&mut world, "f").unwrap();
    for at in 0..300 {
        client.write(&mut world, handle, at, &page(at as u8)).unwrap();
    }
    // Another client knows the places of its reserved pages, and has a write to them in flight.
    let reserved = stale.reserve(&mut world, 1).unwrap();
    let copy = reserved.places[0].copies[0];
    let lane = (copy.donor.0 - 100) as usize;
    assert!(stale.write_copy(&world, &copy, reserved.runs[0].first, &page(1)));
    stale.leave_late_write(&world, &copy, reserved.runs[0].first, page(0xEE));
    world.net.borrow_mut().hosts[lane].donor.begin_withdrawal();
    let lent = |world: &World| world.net.borrow().hosts[lane].donor.lent_bytes();
    assert!(lent(&world) > 0);
    for _ in 0..8 {
        world.run(1_000);
        let _ = (client.ask(&mut world, Request::Heartbeat), stale.ask(&mut world, Request::Heartbeat));
    }
    assert_eq!(lent(&world), 0);
    let name = format!("donor {}", copy.donor.0);
    let withdrawing: Vec<(String, bool)> =
        world.service().donors_withdrawing().map(|(name, has_all)| (name.to_owned(), has_all)).collect();
    assert_eq!(withdrawing, [(name, true)]);
    assert_eq!((world.service().degraded(), world.service().stats().lost_copies), ((0, 0), 0));
    assert!(world.service().stats().moved_copies > 0);
    // What is still in flight to the donor reaches nobody else's memory, and its client is not admitted again.
    let before = world.net.borrow().hosts[lane].memory.clone();
    world.net.borrow_mut().perform_late_write();
    assert!(!stale.write_copy(&world, &copy, reserved.runs[0].first, &page(2)));
    assert_eq!(world.net.borrow().hosts[lane].memory, before);
    // Everybody goes on elsewhere, once the donor is gone too.
    world.net.borrow_mut().hosts[lane].is_alive = false;
    for at in 0..300 {
        assert_eq!(client.read(&mut world, handle, at), Some(page(at as u8)), "page {at}");
    }
    let (_, other) = stale.create(&mut world, "g").unwrap();
    stale.write(&mut world, other, 0, &page(9)).unwrap();
    assert_eq!(client.write(&mut world, handle, 0, &page(8)).err(), None);
    assert_eq!((stale.read(&mut world, other, 0), client.read(&mut world, handle, 0)), (Some(page(9)), Some(page(8))));
}

#[test]
fn copies_stay_at_a_donor_that_wants_its_memory_back_while_no_other_has_room() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    world.net.borrow_mut().hosts[0].donor.begin_withdrawal();
    for _ in 0..5 {
        world.run(1_000);
        let _ = client.ask(&mut world, Request::Heartbeat);
    }
    assert_eq!(world.service().donors_withdrawing().map(|(_, has_all)| has_all).collect::<Vec<_>>(), [false]);
    let place = client.place(&mut world, handle, 0);
    assert_eq!(place.copies.iter().filter(|copy| copy.is_whole).count(), 2);
    // Each copy is as good as before.
    world.net.borrow_mut().hosts[1].is_alive = false;
    assert_eq!(client.read(&mut world, handle, 0), Some(page(1)));
}

#[test]
fn a_donor_that_does_not_cut_off_a_client_gets_its_memory_back_once_it_has() {
    let mut world = world(3, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    let lane = (client.place(&mut world, handle, 0).copies[0].donor.0 - 100) as usize;
    {
        let host = &mut world.net.borrow_mut().hosts[lane];
        host.donor.begin_withdrawal();
        host.has_straggler = true;
    }
    for _ in 0..6 {
        world.run(1_000);
        let _ = client.ask(&mut world, Request::Heartbeat);
    }
    let lent = |world: &World| world.net.borrow().hosts[lane].donor.lent_bytes();
    assert!(lent(&world) > 0, "a client that was stopped in the middle of a write may still complete it");
    assert_eq!(world.service().refusals().count(), 1);
    world.net.borrow_mut().hosts[lane].has_straggler = false;
    world.run_until("it has its memory", |world| {
        let _ = client.ask(world, Request::Heartbeat);
        lent(world) == 0
    });
    assert_eq!(client.read(&mut world, handle, 0), Some(page(1)));
}

#[test]
fn a_donor_that_restarts_while_it_gives_its_memory_back_is_a_donor_again_for_all_clients() {
    // At most moments the restart comes before or after the clients are cut off, at some between two of them.
    for restart_after in 0..120 {
        let mut world = World::new(3, 6 * MB, config(2), restart_after);
        let mut clients: Vec<Client> = (1..9).map(|peer| Client::new(&mut world, peer)).collect();
        let (_, handle) = clients[0].create(&mut world, "f").unwrap();
        clients[0].write(&mut world, handle, 0, &page(1)).unwrap();
        let lane = (clients[0].place(&mut world, handle, 0).copies[0].donor.0 - 100) as usize;
        world.net.borrow_mut().hosts[lane].donor.begin_withdrawal();
        world.run_until("its copies have moved", |world| world.service().stats().moved_copies > 0);
        for _ in 0..restart_after {
            world.step();
        }
        world.net.borrow_mut().restart(lane);
        world.run(3_000);
        assert_eq!(world.service().donors_withdrawing().count(), 0);
        for Client { number, epoch, .. } in clients {
            let volume = world.service().state().volume;
            let admission = Call::Admit { volume, epoch, client: number, lane: 0 };
            let admitted = world.net.borrow_mut().handle(lane, &admission);
            assert!(admitted.is_ok(), "restarted after {restart_after}: {admitted:?}");
        }
    }
}

/// Changes a byte of a file's page in a copy, as if its donor's memory had failed.
fn damage(world: &World, copy: &SegmentCopy, page: u32) {
    let at = (copy.base + u64::from(page) * PAGE as u64) as usize;
    world.net.borrow_mut().hosts[(copy.donor.0 - 100) as usize].memory[at + 17] ^= 4;
}

/// The place of a file's page in its segment.
fn page_in_segment(world: &mut World, client: &mut Client, handle: u64, at: u64) -> u32 {
    match client.ask(world, Request::Layout { handle, at, count: 1 }) {
        Ok(Answer::Layout(layout)) => layout.runs[0].pages.first,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_that_is_right_where_others_are_wrong_is_not_left_before_another_is_right() {
    for seed in 0..10 {
        let mut world = World::new(3, 6 * MB, config(2), seed);
        let mut client = Client::new(&mut world, 1);
        let (_, handle) = client.create(&mut world, "f").unwrap();
        let mut expected: Vec<u8> = (0..200).map(|at| at as u8).collect();
        for at in 0..200 {
            client.write(&mut world, handle, at, &page(expected[at as usize])).unwrap();
        }
        // Each copy has a page that is wrong there, and is read first or second.
        let copies = client.place(&mut world, handle, 9).copies;
        for (copy, at) in copies.iter().zip([9, 90]) {
            let page = page_in_segment(&mut world, &mut client, handle, at);
            damage(&world, copy, page);
        }
        let lane = (copies[seed as usize % 2].donor.0 - 100) as usize;
        world.net.borrow_mut().hosts[lane].donor.begin_withdrawal();
        // Other pages are replaced meanwhile.
        for round in 0..60 {
            let at = [3, 150, 91, 10][round % 4];
            expected[at] = round as u8 ^ 0x55;
            client.write(&mut world, handle, at as u64, &page(expected[at])).unwrap();
        }
        for _ in 0..20 {
            world.run(1_000);
            let _ = client.ask(&mut world, Request::Heartbeat);
        }
        assert_eq!(world.service().donors_withdrawing().map(|(_, has_all)| has_all).collect::<Vec<_>>(), [true]);
        assert!(world.service().stats().mended_pages > 0);
        world.net.borrow_mut().hosts[lane].is_alive = false;
        for at in 0..200 {
            let found = client.read(&mut world, handle, at);
            assert!(found == Some(page(expected[at as usize])), "page {at}, seed {seed}");
        }
        // Both copies have the right bytes of all pages now, so each suffices.
        let copies = client.place(&mut world, handle, 9).copies;
        assert_eq!(copies.iter().filter(|copy| copy.is_whole).count(), 2, "seed {seed}");
        for other in copies {
            let other = (other.donor.0 - 100) as usize;
            world.net.borrow_mut().hosts[other].is_alive = false;
            assert!(client.read(&mut world, handle, 9) == Some(page(expected[9])), "seed {seed}");
            world.net.borrow_mut().hosts[other].is_alive = true;
        }
    }
}

/// A client with a file of 100 pages, of which page 5 is damaged in its first copy. Returns the page's copies, too.
fn with_a_damaged_page(world: &mut World) -> (Client, u64, Vec<SegmentCopy>) {
    let mut client = Client::new(world, 1);
    let (_, handle) = client.create(world, "f").unwrap();
    for at in 0..100 {
        client.write(world, handle, at, &page(at as u8)).unwrap();
    }
    let copies = client.place(world, handle, 5).copies;
    let damaged = page_in_segment(world, &mut client, handle, 5);
    damage(world, &copies[0], damaged);
    (client, handle, copies)
}

#[test]
fn a_copy_made_after_a_loss_has_the_right_bytes_if_any_copy_has_them() {
    let mut world = world(4, 3);
    let (mut client, handle, copies) = with_a_damaged_page(&mut world);
    for lost in [2, 1] {
        world.net.borrow_mut().hosts[(copies[lost].donor.0 - 100) as usize].is_alive = false;
        until_whole_with(&mut world, &mut client, handle, 3 - usize::from(lost == 1));
        for at in 0..100 {
            assert!(client.read(&mut world, handle, at) == Some(page(at as u8)), "page {at}");
        }
    }
}

#[test]
fn a_page_that_is_wrong_everywhere_does_not_keep_others_from_having_their_copies() {
    let mut world = world(3, 2);
    let (mut client, handle, copies) = with_a_damaged_page(&mut world);
    world.net.borrow_mut().restart((copies[1].donor.0 - 100) as usize);
    until_whole(&mut world, &mut client);
    world.net.borrow_mut().restart((copies[0].donor.0 - 100) as usize);
    until_whole(&mut world, &mut client);
    for at in 0..100 {
        let expected = (at != 5).then(|| page(at as u8));
        assert!(client.read(&mut world, handle, at) == expected, "page {at}");
    }
}

#[test]
fn a_slab_of_an_earlier_run_of_a_donor_is_not_freed_by_its_number_in_a_later_one() {
    let mut world = world(4, 2);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(7)).unwrap();
    let copies = client.place(&mut world, handle, 0).copies;
    let used: Vec<usize> = copies.iter().map(|copy| (copy.donor.0 - 100) as usize).collect();
    let [quick, silent] = (0..4).filter(|lane| !used.contains(lane)).collect::<Vec<_>>()[..] else { panic!("two") };
    world.run_until("all donors are there", |world| world.service().donors_ready() == (4, 4));
    world.run(1_100);
    let slabs = |world: &World| -> Vec<u64> {
        let net = world.net.borrow();
        net.hosts[quick].donor.slabs_of(net.volume).map(|lent| lent.slab).collect()
    };
    assert!(slabs(&world).is_empty());
    // Of the donors that are asked for another segment, one answers, and is restarted before the other does.
    world.net.borrow_mut().held = Some(silent);
    let mut written = 1;
    while slabs(&world).is_empty() {
        client.write(&mut world, handle, written, &page(7)).unwrap();
        written += 1;
    }
    let before = slabs(&world);
    world.net.borrow_mut().restart(quick);
    // The later run lends a slab for a missing copy, under the same number.
    world.net.borrow_mut().hosts[used[1]].is_alive = false;
    for _ in 0..15 {
        world.run(1_000);
        let _ = client.ask(&mut world, Request::Heartbeat);
    }
    world.run_until("the copy is made", |world| {
        let copies = client.place(world, handle, 0).copies;
        copies.iter().any(|copy| copy.is_whole && copy.donor.0 == 100 + quick as u64)
    });
    assert!(slabs(&world).contains(&before[0]));
    {
        let mut net = world.net.borrow_mut();
        net.hosts[silent].is_alive = false;
        net.held = None;
    }
    world.run(3_000);
    assert!(slabs(&world).contains(&before[0]));
    world.net.borrow_mut().hosts[used[0]].is_alive = false;
    assert_eq!(client.read(&mut world, handle, 0), Some(page(7)));
}
