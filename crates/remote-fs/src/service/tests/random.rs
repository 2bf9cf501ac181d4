//! Clients with random operations, while services, clients and donors die.

use std::collections::BTreeMap;

use super::world::*;
use crate::map::Map;
use crate::protocol::*;
use crate::tree::Body;

const MB: u64 = 1 << 20;
const PAGES: u64 = 6;

/// Allowed contents of each page of a file: the byte that fills the page, or `None` for zeros.
#[derive(Clone, Debug, Default)]
struct Shadow {
    pages: BTreeMap<u64, Vec<Option<u8>>>,
}

impl Shadow {
    /// The allowed contents of a page.
    fn pages_of(&self, at: u64) -> Vec<Option<u8>> {
        self.pages.get(&at).cloned().unwrap_or_else(|| vec![None])
    }

    fn put(&mut self, at: u64, byte: Option<u8>) {
        self.pages.insert(at, vec![byte]);
    }
}

fn bytes_of(page: Option<u8>) -> Vec<u8> {
    vec![page.unwrap_or(0); PAGE]
}

/// Checks that no page belongs to two files, that no donor has two copies, and that the names form a tree.
fn check(world: &mut World) {
    let kept = world.service().state();
    assert_eq!(kept.tree.check(), []);
    let mut used: BTreeMap<(u32, u32), Ino> = BTreeMap::new();
    for (ino, inode) in kept.tree.inodes() {
        let Body::File(map) = inode.body() else { continue };
        for run in map.all() {
            for page in run.pages.first..run.pages.first + run.pages.count {
                assert!(page < kept.segments[&run.pages.segment].pages);
                let other = used.insert((run.pages.segment, page), ino);
                assert_eq!(other, None, "a page of two files");
            }
        }
    }
    let maps = kept.tree.inodes().filter_map(|(ino, _)| kept.tree.map(ino).ok());
    assert_eq!(kept.tree.allocated_pages(), maps.map(Map::allocated_pages).sum::<u64>());
    for segment in kept.segments.values() {
        let mut donors: Vec<u64> = segment.members.iter().map(|member| member.donor).collect();
        donors.sort_unstable();
        donors.dedup();
        assert_eq!(donors.len(), segment.members.len(), "two copies at one donor");
    }
}

fn run_random(seed: u64) {
    let mut world = World::new(3, 6 * MB, config(2), seed);
    let mut clients: Vec<Client> = (1..4).map(|peer| Client::new(&mut world, peer)).collect();
    let mut shadows: BTreeMap<Ino, Shadow> = BTreeMap::new();
    let mut names: BTreeMap<Ino, String> = BTreeMap::new();
    let mut peers = 10;
    let mut withdrawing = None;
    for step in 0..250_u32 {
        let index = world.random(3) as usize;
        let client = &mut clients[index];
        let pick = names.keys().nth(world.random(names.len().max(1) as u64) as usize).copied();
        match (world.random(22), pick) {
            (0..3, _) | (_, None) => {
                let name = format!("f{step}");
                if let Ok((ino, handle)) = client.create(&mut world, &name) {
                    client.close(&mut world, handle);
                    shadows.insert(ino, Shadow::default());
                    names.insert(ino, name);
                }
            }
            (3..10, Some(ino)) => {
                let (at, byte) = (world.random(PAGES), step as u8 | 1);
                let Ok(handle) = client.open(&mut world, ino) else { panic!("it is there (seed {seed})") };
                let shadow = shadows.get_mut(&ino).unwrap();
                // A page that is there, or was promised, may be asked for as such.
                let is_there = world.service().state().tree.map(ino).is_ok_and(|map| map.lacking(at, at + 1) == 0);
                let overwrites = is_there && world.random(2) == 0;
                match client.write_as(&mut world, handle, at, &[byte; PAGE], overwrites) {
                    Ok(_) => shadow.put(at, Some(byte)),
                    // Repairs may leave too little memory.
                    Err(Error::NoSpace) => {}
                    Err(error) => panic!("{error} (seed {seed}, step {step})"),
                }
                client.close(&mut world, handle);
            }
            (20, Some(ino)) => {
                let (handle, at) = (client.open(&mut world, ino).unwrap(), world.random(PAGES));
                let count = 1 + world.random(PAGES - at);
                let size_min = if world.random(2) == 0 { 0 } else { (at + count) * PAGE as u64 };
                let hole = (world.random(3) == 0).then_some((at + count / 3, count / 2));
                let request = Request::Allocate { handle, at, count, hole, size_min, mtime: None };
                match client.attr(&mut world, request) {
                    Ok(attr) => {
                        assert!(attr.pages >= count);
                        let (first, holes) = hole.unwrap_or_default();
                        shadows.get_mut(&ino).unwrap().pages.retain(|at, _| !(first..first + holes).contains(at));
                    }
                    Err(error) => assert_eq!(error, Error::NoSpace, "seed {seed}, step {step}"),
                }
                client.close(&mut world, handle);
            }
            (10..12, Some(ino)) => {
                let pages = world.random(PAGES);
                let set = SetAttr { size: Some(pages * PAGE as u64), ..SetAttr::default() };
                client.attr(&mut world, Request::SetAttr { ino, set, handle: None }).unwrap();
                shadows.get_mut(&ino).unwrap().pages.retain(|at, _| *at < pages);
            }
            (12, Some(ino)) => {
                let name = names.remove(&ino).unwrap().into_bytes();
                client.attr(&mut world, Request::Unlink { parent: Ino::ROOT, name }).unwrap();
                shadows.remove(&ino);
            }
            (13, Some(ino)) => {
                let (name, new_name) = (names[&ino].clone(), format!("r{step}"));
                names.insert(ino, new_name.clone());
                let (parent, new_parent) = (Ino::ROOT, Ino::ROOT);
                let (name, new_name) = (name.into_bytes(), new_name.into_bytes());
                client.ask(&mut world, Request::Rename { parent, name, new_parent, new_name, flags: 0 }).unwrap();
            }
            (14, Some(_)) => {
                // The client dies with writes to its reserved pages in flight.
                if let Ok(fresh) = client.reserve(&mut world, 3) {
                    for copy in fresh.places.first().map_or(&[][..], |place| &place.copies) {
                        client.leave_late_write(&world, copy, fresh.runs[0].first, vec![0xEE; PAGE]);
                    }
                }
                let (peer, now) = (client.peer, world.now());
                world.service().peer_left(peer, now);
                peers += 1;
                clients[index] = Client::new(&mut world, peers);
            }
            (15, _) => {
                // The disk crashes at one of its next writes.
                let at = 1 + world.random(4);
                world.disk.fail_at(at, crate::disk::Fault::Crash);
            }
            (16, _) => {
                // One donor restarts at a time. Its copies are restored while clients go on.
                wait_until_complete(&mut world, &mut clients);
                let lane = withdrawing.take().unwrap_or(world.random(3) as usize);
                world.net.borrow_mut().restart(lane);
            }
            (19, _) => {
                // One donor at a time wants its memory back; the next restart is its own, since two must remain.
                wait_until_complete(&mut world, &mut clients);
                let lane = *withdrawing.get_or_insert(world.random(3) as usize);
                world.net.borrow_mut().hosts[lane].donor.begin_withdrawal();
            }
            (17, _) => world.net.borrow_mut().perform_late_write(),
            (18, _) => {
                world.run(1500);
                send_heartbeats(&mut world, &mut clients);
            }
            (_, Some(ino)) => {
                let handle = client.open(&mut world, ino).unwrap();
                for at in 0..PAGES {
                    let found = client.read(&mut world, handle, at);
                    let may = shadows[&ino].pages_of(at);
                    let is_it = found.as_ref().is_some_and(|found| may.iter().any(|page| bytes_of(*page) == *found));
                    assert!(is_it, "page {at} of {ino:?}: {:?} of {may:?} (seed {seed})", found.map(|page| page[0]));
                }
                client.close(&mut world, handle);
            }
        }
    }
    world.disk.heal();
    wait_until_complete(&mut world, &mut clients);
    check(&mut world);
    let mut client = Client::new(&mut world, 99);
    for (ino, shadow) in &shadows {
        let handle = client.open(&mut world, *ino).unwrap();
        for at in 0..PAGES {
            let found = client.read(&mut world, handle, at).map(|page| page[0]);
            let may = shadow.pages_of(at);
            assert!(may.iter().any(|page| Some(page.unwrap_or(0)) == found), "{found:?} of {may:?} (seed {seed})");
        }
    }
}

/// Has each client send something.
fn send_heartbeats(world: &mut World, clients: &mut [Client]) {
    for client in clients {
        // A client that was silent for too long has a new identity now.
        let _ = client.ask(world, Request::Heartbeat);
    }
}

/// Waits until every segment has its copies again.
fn wait_until_complete(world: &mut World, clients: &mut [Client]) {
    for _ in 0..100 {
        send_heartbeats(world, clients);
        world.run(1_500);
        if world.disk.has_crashed() {
            // The simulated process has died, and without a change does not notice it.
            world.crash();
        }
        let is_whole = world
            .service
            .as_ref()
            .is_some_and(|service| service.donors_ready() == (3, 3) && service.degraded() == (0, 0));
        if is_whole {
            return send_heartbeats(world, clients);
        }
    }
    panic!("it is never whole again (seed {})", world.seed);
}

#[test]
fn whatever_dies_what_was_answered_is_there() {
    let seeds = std::env::var("SINEW_FS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(24);
    for seed in 0..seeds {
        run_random(seed);
    }
}
