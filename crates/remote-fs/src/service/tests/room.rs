//! Facts about room: who gets it, and who is promised some.

use super::copies;
use super::facts::{MB, page, world};
use super::world::*;
use crate::check::{self, Finding};
use crate::protocol::*;
use crate::service::store::kept_for_overwrites;
use crate::service::waiting::WAITING_MAX;

/// Pages of a world of two donors with two megabytes each, and two copies.
const PAGES: u64 = 2 * MB / PAGE as u64;

fn small() -> World {
    World::new(2, 2 * MB, config(2), 7)
}

fn allocate(world: &mut World, client: &mut Client, handle: u64, at: u64, count: u64) -> Result<Attr, Error> {
    let size_min = (at + count) * PAGE as u64;
    client.attr(world, Request::Allocate { handle, at, count, hole: None, size_min, mtime: None })
}

fn space(world: &mut World, client: &mut Client) -> Space {
    match client.ask(world, Request::Statfs) {
        Ok(Answer::Space(space)) => space,
        other => panic!("{other:?}"),
    }
}

/// Writes new pages to a file until there is no room for more. Returns their number.
fn fill(world: &mut World, client: &mut Client, handle: u64) -> u64 {
    for at in 0.. {
        match client.write(world, handle, at, &page(at as u8)) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                return at;
            }
        }
    }
    unreachable!()
}

fn overwrite(world: &mut World, client: &mut Client, handle: u64, at: u64, byte: u8) -> Result<Attr, Error> {
    client.write_as(world, handle, at, &page(byte), true)
}

#[test]
fn room_that_was_promised_is_there_whatever_others_write() {
    let mut world = small();
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (ino, swap) = one.create(&mut world, "swap").unwrap();
    world.run(1000);
    let before = space(&mut world, &mut one);
    let attr = allocate(&mut world, &mut one, swap, 0, 300).unwrap();
    assert_eq!((attr.size, attr.pages), (300 * PAGE as u64, 300), "it counts as the file's");
    assert_eq!(space(&mut world, &mut one), Space { free_pages: before.free_pages - 300, ..before });
    let (_, theirs) = other.create(&mut world, "f").unwrap();
    let written = fill(&mut world, &mut other, theirs);
    assert_eq!(written, PAGES - 300 - kept_for_overwrites(PAGES));
    assert_eq!(space(&mut world, &mut one).free_pages, 0);
    // Nothing of it depends on the service's run.
    world.crash();
    world.start();
    assert_eq!((one.join(&mut world), other.join(&mut world)), (Some(true), Some(true)));
    world.run(1000);
    for at in 0..300 {
        assert_eq!(one.read(&mut world, swap, at), Some(page(0)));
        overwrite(&mut world, &mut one, swap, at, 1 + at as u8 / 2).unwrap();
        // Again and again, which needs no more room.
        overwrite(&mut world, &mut one, swap, at, 2 + at as u8 / 2).unwrap();
    }
    for at in 0..300 {
        assert_eq!(one.read(&mut world, swap, at), Some(page(2 + at as u8 / 2)));
    }
    assert_eq!(world.service().state().tree.attr(ino).unwrap().pages, 300);
    assert_eq!(check::names(&check::read(world.disk.clone()).unwrap().unwrap(), 2), []);
}

#[test]
fn more_than_there_is_room_for_is_promised_to_nobody() {
    let mut world = small();
    let mut client = Client::new(&mut world, 1);
    let (ino, handle) = client.create(&mut world, "f").unwrap();
    let most = PAGES - kept_for_overwrites(PAGES);
    for count in [most + 1, 1 << 40] {
        assert_eq!(allocate(&mut world, &mut client, handle, 0, count), Err(Error::NoSpace));
    }
    let attr = world.service().state().tree.attr(ino).unwrap();
    assert_eq!((attr.size, attr.pages), (0, 0));
    let at = FILE_LEN_MAX / PAGE as u64;
    let sparse = Request::Allocate { handle, at, count: 1, hole: None, size_min: 0, mtime: None };
    assert_eq!(client.attr(&mut world, sparse), Err(Error::FileTooBig));
    allocate(&mut world, &mut client, handle, 0, most).unwrap();
    assert_eq!(allocate(&mut world, &mut client, handle, 0, most).unwrap().pages, most, "it has that already");
    assert_eq!(allocate(&mut world, &mut client, handle, most, 1), Err(Error::NoSpace));
    assert_eq!(client.reserve(&mut world, 1), Err(Error::NoSpace));
}

#[test]
fn a_promise_waits_for_memory_that_donors_still_have() {
    // Slabs come one by one, and each request of a slab takes steps.
    let mut world = World::new(2, 8 * MB, config(2), 7);
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    let count = 7 * MB / PAGE as u64;
    assert!(world.service().state().segments.len() < 7);
    assert_eq!(allocate(&mut world, &mut client, handle, 0, count).unwrap().pages, count);
    assert!(world.service().state().segments.len() >= 7);
}

#[test]
fn room_that_was_promised_comes_back_with_the_file_and_with_each_hole() {
    let mut world = small();
    let mut client = Client::new(&mut world, 1);
    let (ino, handle) = client.create(&mut world, "f").unwrap();
    world.run(1000);
    let free = |world: &mut World, client: &mut Client| space(world, client).free_pages;
    let all = free(&mut world, &mut client);
    allocate(&mut world, &mut client, handle, 0, 100).unwrap();
    client.write(&mut world, handle, 5, &page(5)).unwrap();
    assert_eq!(free(&mut world, &mut client), all - 100, "the page was promised");
    let holes = vec![(0, 10)];
    let punch = Request::Commit { handle, size_min: 0, mtime: None, holes, extents: vec![] };
    client.attr(&mut world, punch).unwrap();
    assert_eq!(free(&mut world, &mut client), all - 90);
    let cut = |bytes| Request::SetAttr { ino, set: SetAttr { size: Some(bytes), ..SetAttr::default() }, handle: None };
    client.attr(&mut world, cut(50 * PAGE as u64 - 1)).unwrap();
    assert_eq!(free(&mut world, &mut client), all - 40);
    // Beyond the end of the file, too.
    let beyond = Request::Allocate { handle, at: 60, count: 7, hole: None, size_min: 0, mtime: None };
    let attr = client.attr(&mut world, beyond).unwrap();
    assert_eq!((attr.size, attr.pages), (50 * PAGE as u64 - 1, 47));
    client.attr(&mut world, cut(50 * PAGE as u64 - 1)).unwrap();
    assert_eq!(free(&mut world, &mut client), all - 40, "as long as it is, and no more");
    client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name: b"f".to_vec() }).unwrap();
    client.close(&mut world, handle);
    assert_eq!(free(&mut world, &mut client), all);
    assert_eq!(world.service().state().tree.allocated_pages(), 0);
}

#[test]
fn on_a_full_file_system_what_is_there_can_be_replaced_and_nothing_added() {
    let mut world = small();
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (_, handle) = one.create(&mut world, "f").unwrap();
    let written = fill(&mut world, &mut one, handle);
    assert_eq!(written, PAGES - kept_for_overwrites(PAGES));
    let (ino, theirs) = other.create(&mut world, "g").unwrap();
    let ask = Request::ReserveOverwrite { handle: theirs, at: 0, count: 1, pages: 1, waits: true };
    assert_eq!(other.ask(&mut world, ask), Err(Error::NoSpace), "it has nothing to replace");
    for turn in 0..3 {
        for at in 0..written {
            overwrite(&mut world, &mut one, handle, at, turn + at as u8 / 2).unwrap();
        }
    }
    assert_eq!(one.read(&mut world, handle, 9), Some(page(6)));
    // Pages for that purpose make nothing new.
    let granted =
        match one.ask(&mut world, Request::ReserveOverwrite { handle, at: 0, count: 1, pages: 1, waits: true }) {
            Ok(Answer::Reserved(granted)) => granted,
            other => panic!("{other:?}"),
        };
    let (run, place) = (granted.runs[0], &granted.places[0]);
    let extent = Extent { at: written, pages: run, generation: place.generation, sums: Sums(vec![5]), replaces: None };
    let size_min = (written + 1) * PAGE as u64;
    let add = Request::Commit { handle, size_min, mtime: None, holes: vec![], extents: vec![extent] };
    assert_eq!(one.attr(&mut world, add), Err(Error::NothingReplaced));
    assert_eq!(one.ask(&mut world, Request::GiveBack { pages: vec![run] }), Ok(Answer::Done));
    // Room comes with what is removed.
    let set = SetAttr { size: Some((written - 1) * PAGE as u64), ..SetAttr::default() };
    one.attr(&mut world, Request::SetAttr { ino: Ino(ino.0 - 1), set, handle: None }).unwrap();
    other.write(&mut world, theirs, 0, &page(1)).unwrap();
    assert_eq!(other.write(&mut world, theirs, 1, &page(1)), Err(Error::NoSpace));
}

#[test]
fn who_replaces_pages_waits_for_others_who_do() {
    let mut world = small();
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (ino, handle) = one.create(&mut world, "f").unwrap();
    fill(&mut world, &mut one, handle);
    let theirs = other.open(&mut world, ino).unwrap();
    let ask = |handle, waits| Request::ReserveOverwrite { handle, at: 0, count: 100, pages: 100, waits };
    let mut runs = Vec::new();
    loop {
        match one.ask(&mut world, ask(handle, false)) {
            Ok(Answer::Reserved(granted)) if granted.runs.is_empty() => break,
            Ok(Answer::Reserved(granted)) => runs.extend(granted.runs),
            other => panic!("{other:?}"),
        }
    }
    let kept: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
    assert_eq!(kept, kept_for_overwrites(PAGES));
    let now = world.now();
    let message = other.envelope(0, 1, ask(theirs, true)).to_bytes();
    let crate::service::Accepted::Deferred(_) = world.service().take(2, &message, now) else {
        panic!("there is nothing to answer yet")
    };
    // The one who has it all dies, and is declared dead before the other is refused.
    world.service().peer_left(1, now);
    assert!(overwrite(&mut world, &mut other, theirs, 0, 9).is_ok());
    assert_eq!(other.read(&mut world, theirs, 0), Some(page(9)));
}

/// A full file system, whose pages kept for overwrites a client has reserved: world, that client, another, its handle
/// of the file, and the pages.
fn full_and_held() -> (World, Client, Client, u64, Vec<Pages>) {
    let mut world = small();
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (ino, handle) = one.create(&mut world, "f").unwrap();
    fill(&mut world, &mut one, handle);
    let theirs = other.open(&mut world, ino).unwrap();
    let mut held = Vec::new();
    loop {
        let ask = Request::ReserveOverwrite { handle, at: 0, count: 100, pages: 100, waits: false };
        match one.ask(&mut world, ask) {
            Ok(Answer::Reserved(granted)) if granted.runs.is_empty() => break,
            Ok(Answer::Reserved(granted)) => held.extend(granted.runs),
            other => panic!("{other:?}"),
        }
    }
    (world, one, other, theirs, held)
}

/// Sends a request whose answer nobody waits for.
fn send_only(world: &mut World, client: &mut Client, sequence: u64, request: Request) -> Option<u64> {
    let (now, message) = (world.now(), client.envelope(sequence, 1, request).to_bytes());
    match world.service().take(client.peer, &message, now) {
        crate::service::Accepted::Deferred(id) => Some(id),
        crate::service::Accepted::Answer(_) => None,
    }
}

#[test]
fn a_reservation_that_nobody_waits_for_takes_no_pages() {
    let (mut world, mut one, mut other, theirs, held) = full_and_held();
    let ask = Request::ReserveOverwrite { handle: theirs, at: 0, count: 100, pages: 100, waits: true };
    for _ in 0..3 {
        let id = send_only(&mut world, &mut other, 0, ask.clone()).expect("there is nothing to answer yet");
        world.service().abandon(id);
    }
    assert_eq!(one.ask(&mut world, Request::GiveBack { pages: held }), Ok(Answer::Done));
    world.run(1500);
    assert_eq!(world.service().store_for_tests().space.reserved_pages(other.number), 0);
    assert!(overwrite(&mut world, &mut other, theirs, 0, 9).is_ok());
}

#[test]
fn who_replaces_pages_waits_for_none_that_never_come() {
    let mut world = small();
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (_, handle) = one.create(&mut world, "f").unwrap();
    let first = other.reserve(&mut world, 1).unwrap().runs;
    fill(&mut world, &mut one, handle);
    // No page is free: those that are kept lie out of reach.
    let space = &mut world.service().store_for_tests().space;
    (0..9).for_each(|segment| space.set_open(segment, false));
    let ask = Request::ReserveOverwrite { handle, at: 0, count: 1, pages: 1, waits: true };
    let Ok(Answer::Reserved(granted)) = one.ask(&mut world, ask.clone()) else { panic!("the other has a page") };
    assert_eq!(granted.runs, []);
    assert_eq!(other.ask(&mut world, Request::GiveBack { pages: first }), Ok(Answer::Done));
    let before_ns = world.now().ns;
    assert_eq!(one.ask(&mut world, ask), Err(Error::NoSpace));
    assert_eq!(world.now().ns, before_ns, "at once");
}

#[test]
fn a_range_is_checked_without_taking_pages_or_waiting_for_some() {
    let (mut world, _, mut other, theirs, _) = full_and_held();
    let last = world.service().state().tree.attr(other.opens[0].ino).unwrap().pages - 1;
    let mut check = |at, count| {
        let ask = Request::ReserveOverwrite { handle: theirs, at, count, pages: 0, waits: false };
        other.ask(&mut world, ask).map(|answer| matches!(answer, Answer::Reserved(granted) if granted.runs.is_empty()))
    };
    assert_eq!((check(0, last as u32 + 1), check(last, 1)), (Ok(true), Ok(true)));
    assert_eq!((check(last, 2), check(last + 1, 1)), (Err(Error::NoSpace), Err(Error::NoSpace)));
}

#[test]
fn a_client_has_no_more_requests_wait_than_it_has_lanes() {
    let (mut world, _, mut other, theirs, _) = full_and_held();
    let ask = Request::ReserveOverwrite { handle: theirs, at: 0, count: 1, pages: 1, waits: true };
    for _ in 0..WAITING_MAX {
        assert!(send_only(&mut world, &mut other, 0, ask.clone()).is_some());
    }
    assert_eq!(other.try_ask(&mut world, &ask), Some(Err(Error::TooMany)));
    let mut third = Client::new(&mut world, 3);
    let handle = third.open(&mut world, other.opens[0].ino).unwrap();
    let ask = Request::ReserveOverwrite { handle, at: 0, count: 1, pages: 1, waits: true };
    assert!(send_only(&mut world, &mut third, 0, ask).is_some());
}

#[test]
fn pages_to_replace_others_are_no_more_than_those() {
    let mut world = small();
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(1)).unwrap();
    let ask = Request::ReserveOverwrite { handle, at: 0, count: 1, pages: 100, waits: false };
    let Ok(Answer::Reserved(granted)) = client.ask(&mut world, ask) else { panic!("it has that page") };
    assert_eq!(granted.runs.iter().map(|run| run.count).sum::<u32>(), 1);
}

#[test]
fn a_file_that_is_only_read_is_promised_nothing_and_does_not_wait() {
    let mut world = World::new(2, 8 * MB, config(2), 7);
    let mut client = Client::new(&mut world, 1);
    let (ino, _) = client.create(&mut world, "f").unwrap();
    let handle = client.handle();
    let access = Access { read: true, write: false, execute: false };
    client.attr(&mut world, Request::Open { handle, ino, access }).unwrap();
    let count = 7 * MB / PAGE as u64;
    let (before_ns, segments) = (world.now().ns, world.service().state().segments.len());
    assert_eq!(allocate(&mut world, &mut client, handle, 0, count), Err(Error::BadHandle));
    assert_eq!((world.now().ns, world.service().state().segments.len()), (before_ns, segments));
}

#[test]
fn a_client_hears_of_its_reservation_before_it_asks_again() {
    let (mut world, _, mut other, theirs, _) = full_and_held();
    let wall = || Time::default();
    let timeout_ns = crate::client::ClientConfig::new(None, wall, std::sync::Arc::new(|_| {})).attempt_timeout_ns;
    let before_ns = world.now().ns;
    let ask = Request::ReserveOverwrite { handle: theirs, at: 0, count: 1, pages: 1, waits: true };
    let Ok(Answer::Reserved(granted)) = other.ask(&mut world, ask) else { panic!("there may be some soon") };
    assert_eq!(granted.runs, []);
    assert!(world.now().ns - before_ns < timeout_ns * 3 / 4);
}

#[test]
fn a_promise_that_waits_is_refused_in_time_however_often_it_is_asked_for() {
    let mut world = small();
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    fill(&mut world, &mut client, handle);
    // A donor that has just gone may come back with more memory.
    world.net.borrow_mut().hosts[1].is_alive = false;
    world.run_until("the donor is missed", |world| world.service().donors_ready().0 == 1);
    let ask = Request::Allocate { handle, at: 600, count: 9, hole: None, size_min: 0, mtime: None };
    client.sequence += 1;
    let sequence = client.sequence;
    let before_ns = world.now().ns;
    let mut sent = 0;
    while send_only(&mut world, &mut client, sequence, ask.clone()).is_some() {
        sent += 1;
        world.run(1900);
        assert!(sent < 9, "it waits for ever");
    }
    assert!(sent > 1, "it waits for a moment");
    assert!(world.now().ns - before_ns < world.config.allocate_wait_max_ns + 2_000_000_000);
    assert_eq!(client.try_ask(&mut world, &ask), Some(Err(Error::NoSpace)));
}

#[test]
fn memory_that_was_promised_to_a_file_is_not_given_back_for_a_copy() {
    let mut world = World::new(3, 8 * MB, config(2), 7);
    let mut client = Client::new(&mut world, 1);
    let handles = copies::fill(&mut world, &mut client, usize::MAX);
    // All but the last few files go.
    let kept = handles.len() - 7;
    for (number, handle) in handles[..kept].iter().enumerate() {
        let name = format!("{} {number}", client.number).into_bytes();
        client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name }).unwrap();
        client.close(&mut world, *handle);
    }
    let room = world.service().store.room();
    allocate(&mut world, &mut client, handles[kept], 100, room).unwrap();
    let segments = world.service().state().segments.len();
    world.net.borrow_mut().hosts[2].is_alive = false;
    for _ in 0..30 {
        world.run(1000);
        client.ask(&mut world, Request::Heartbeat).unwrap();
    }
    assert_eq!(world.service().state().segments.len(), segments);
    assert!(world.service().degraded().0 > 0, "a copy is missing, for which there is no room");
    let holes = vec![(100, room)];
    let punch = Request::Commit { handle: handles[kept], size_min: 0, mtime: None, holes, extents: vec![] };
    client.attr(&mut world, punch).unwrap();
    copies::until_whole(&mut world, &mut client);
    assert!(world.service().state().segments.len() < segments);
}

#[test]
fn what_was_promised_and_is_not_there_is_found() {
    let mut world = small();
    let mut client = Client::new(&mut world, 1);
    let (_, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 0, &page(7)).unwrap();
    allocate(&mut world, &mut client, handle, 1, 300).unwrap();
    let mut kept = check::read(world.disk.clone()).unwrap().unwrap();
    assert_eq!(check::names(&kept, 2), []);
    let last = *kept.segments.last_key_value().unwrap().0;
    kept.segments.remove(&last);
    let lost = |finding: &Finding| matches!(finding, Finding::Promised { promised: 300, free: 255 });
    assert!(check::names(&kept, 2).iter().any(lost), "{:?}", check::names(&kept, 2));
}

#[test]
fn a_range_that_is_zeroed_keeps_its_room_on_a_full_file_system() {
    let mut world = small();
    let (mut one, mut other) = (Client::new(&mut world, 1), Client::new(&mut world, 2));
    let (ino, handle) = one.create(&mut world, "f").unwrap();
    for at in 0..40 {
        one.write(&mut world, handle, at, &page(1 + at as u8)).unwrap();
    }
    allocate(&mut world, &mut one, handle, 40, 60).unwrap();
    let (_, theirs) = other.create(&mut world, "g").unwrap();
    fill(&mut world, &mut other, theirs);
    let zero = |at, count| {
        let hole = Some((at + 1, count - 1));
        Request::Allocate { handle, at, count, hole, size_min: 0, mtime: None }
    };
    // There is no room for more, and then nothing changes.
    assert_eq!(one.attr(&mut world, zero(20, 81)), Err(Error::NoSpace));
    assert_eq!(one.read(&mut world, handle, 25), Some(page(26)));
    assert_eq!(one.attr(&mut world, zero(20, 80)).unwrap().pages, 100);
    assert_eq!((one.read(&mut world, handle, 20), one.read(&mut world, handle, 21)), (Some(page(21)), Some(page(0))));
    assert_eq!(world.service().state().tree.allocated_pages(), 79);
    // Nobody else gets any of it, and it can be written.
    assert_eq!(other.reserve(&mut world, 1), Err(Error::NoSpace));
    for at in 0..100 {
        overwrite(&mut world, &mut one, handle, at, 7).unwrap();
    }
    assert_eq!(world.service().state().tree.map(ino).unwrap().pages(), 100);
}

#[test]
fn promises_are_kept_in_snapshots_too() {
    let mut world = world(2, 2);
    let mut client = Client::new(&mut world, 1);
    let (ino, handle) = client.create(&mut world, "f").unwrap();
    client.write(&mut world, handle, 3, &page(7)).unwrap();
    allocate(&mut world, &mut client, handle, 0, 10).unwrap();
    world.service().close().unwrap();
    world.crash();
    world.start();
    let tree = &world.service().state().tree;
    assert_eq!((tree.attr(ino).unwrap().pages, tree.allocated_pages(), tree.map(ino).unwrap().pages()), (10, 9, 1));
}
