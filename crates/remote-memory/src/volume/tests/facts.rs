//! Tests of single facts.

use sinew_fabric::verbs::Slice;
use sinew_mem::Arena;

use super::model::{Shared, World, Writer};
use crate::donor::{Answer, Call};
use crate::store::{BLOCK, Finished, Job, Refused, Request, Status, Store, StoreError};
use crate::volume::core::RepairStep;
use crate::volume::{Check, CheckReport, DonorId, NewVolume, OpenError, Opening, Shape, Volume, VolumeConfig};

pub const ID: u64 = 7;
/// Slots of a segment in tests.
pub const SLOTS: u32 = 100;

pub fn arena() -> Arena {
    Arena::private(64 << 20).unwrap()
}

pub fn config() -> VolumeConfig {
    VolumeConfig {
        lease_ns: 0,
        vote_timeout_ns: 3_000_000,
        retry_ns: 100_000,
        repair_pause_ns: 1000,
        heartbeat_ns: 200_000,
        ..VolumeConfig::default()
    }
}

pub fn new_volume(world: &Shared, pages: u64, copies: u32) -> NewVolume {
    let donors = world.borrow().hosts.len();
    let slab_len = Shape { slots: SLOTS }.slab_len();
    let len = pages * BLOCK as u64;
    let place =
        |segment: u64| (0..u64::from(copies)).map(|copy| DonorId(100 + (segment + copy) % donors as u64)).collect();
    let segments = (0..NewVolume::segments_for(len, slab_len)).map(place).collect();
    let voters = (0..donors.min(3) as u64).map(|lane| DonorId(100 + lane)).collect();
    // As good as random: no two runs of a donor have the same.
    let number = world.borrow().hosts[0].donor.incarnation();
    NewVolume { len, copies, slab_len, segments, voters, number }
}

pub fn finish_opening(world: &Shared, opening: Opening<Writer>) -> Result<Volume<Writer>, OpenError> {
    finish_opening_while(world, opening, |_| {})
}

/// Finishes an opening, and calls `happens` before each step of it.
pub fn finish_opening_while(
    world: &Shared,
    mut opening: Opening<Writer>,
    mut happens: impl FnMut(u64),
) -> Result<Volume<Writer>, OpenError> {
    for step in 0..1_000_000 {
        if let Some(volume) = opening.turn()? {
            return Ok(volume);
        }
        happens(step);
        world.borrow_mut().step();
    }
    panic!("the volume did not open");
}

pub fn create(world: &Shared, arena: &Arena, pages: u64, copies: u32, config: VolumeConfig) -> Volume<Writer> {
    let new = new_volume(world, pages, copies);
    finish_opening(world, Opening::create(Writer::new(world, arena), ID, new, config)).unwrap()
}

pub fn open(world: &Shared, arena: &Arena, config: VolumeConfig) -> Result<Volume<Writer>, OpenError> {
    finish_opening(world, Opening::new(Writer::new(world, arena), ID, config))
}

/// Kills the writer.
pub fn crash(world: &Shared, mut volume: Volume<Writer>) {
    let number = volume.donors().number;
    drop(volume);
    world.borrow_mut().drop_writer(number);
}

pub fn submit(volume: &mut Volume<Writer>, tag: u64, job: Job) {
    volume.submit(Request { tag, job }).expect("the volume has room");
}

pub fn write_job(volume: &Volume<Writer>, at: u64, bytes: &[u8]) -> Job {
    let mut buffer = volume.arena().alloc(bytes.len(), bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Job::Write { at, source: Slice::from(buffer.freeze()) }
}

pub fn read_job(volume: &Volume<Writer>, at: u64, len: usize) -> Job {
    let mut target = volume.arena().alloc(len, len).unwrap();
    target[..].fill(0xEE);
    Job::Read { at, target }
}

/// Turns the volume until one request is finished.
pub fn finish_one(world: &Shared, volume: &mut Volume<Writer>) -> Finished {
    let mut finished = Vec::new();
    for _ in 0..1_000_000 {
        volume.turn();
        if volume.poll(&mut finished, 1) == 1 {
            return finished.remove(0);
        }
        world.borrow_mut().step();
    }
    panic!("no request finished");
}

pub fn write(world: &Shared, volume: &mut Volume<Writer>, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let job = write_job(volume, at, bytes);
    submit(volume, 1, job);
    finish_one(world, volume).result
}

pub fn read(world: &Shared, volume: &mut Volume<Writer>, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
    let job = read_job(volume, at, len);
    submit(volume, 2, job);
    let finished = finish_one(world, volume);
    finished.result.map(|()| finished.target.unwrap().to_vec())
}

/// Turns the volume until nothing goes on but calls that test donors.
pub fn run_until_idle(world: &Shared, volume: &mut Volume<Writer>) {
    let mut quiet = 0;
    for _ in 0..100_000 {
        volume.turn();
        world.borrow_mut().step();
        let is_idle = volume.is_idle() && volume.lane_ops.len() == 0 && volume.voting.round.is_none();
        quiet = if is_idle { quiet + 1 } else { 0 };
        if quiet == 1000 {
            return;
        }
    }
    panic!("the volume does not come to rest");
}

pub fn page(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

pub const PAGE: u64 = BLOCK as u64;

#[test]
fn what_is_written_is_read_across_blocks_and_after_opening_again() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, 64, 2, config());
    assert_eq!(volume.status(), Status::Whole);
    assert_eq!(read(&world, &mut volume, 100, 5000).unwrap(), vec![0; 5000]);
    write(
        &world,
        &mut volume,
        4000,
        b"across blocks and so on, for as long as it takes to be in the next one, which is not yet; now it is. ",
    )
    .unwrap();
    write(&world, &mut volume, 8 * PAGE, &[5; 3 * BLOCK]).unwrap();
    let before = read(&world, &mut volume, 0, 64 * BLOCK).unwrap();
    assert_eq!(before[4000..4004], *b"acro");
    crash(&world, volume);
    let mut volume = open(&world, &arena, config()).unwrap();
    assert_eq!(volume.epoch(), 2);
    assert!(read(&world, &mut volume, 0, 64 * BLOCK).unwrap() == before);
}

#[test]
fn an_acknowledged_write_survives_the_death_of_a_donor() {
    for lane in 0..3 {
        let (world, arena) = (World::new(3, 4 << 20, lane as u64), arena());
        let mut volume = create(&world, &arena, 128, 2, config());
        for number in 0..128 {
            write(&world, &mut volume, number * PAGE, &page(number as u8 + 1)).unwrap();
        }
        world.borrow_mut().hosts[lane].is_alive = false;
        for number in 0..128 {
            assert!(read(&world, &mut volume, number * PAGE, BLOCK).unwrap() == page(number as u8 + 1), "{number}");
        }
        write(&world, &mut volume, 0, &page(200)).unwrap();
        crash(&world, volume);
        let mut volume = open(&world, &arena, config()).unwrap();
        assert!(read(&world, &mut volume, 0, BLOCK).unwrap() == page(200));
        for number in 1..128 {
            assert!(read(&world, &mut volume, number * PAGE, BLOCK).unwrap() == page(number as u8 + 1), "{number}");
        }
    }
}

#[test]
fn a_copy_that_missed_a_write_is_refused_until_it_is_repaired() {
    let (world, arena) = (World::new(3, 4 << 20, 5), arena());
    let config = VolumeConfig { repairs: false, ..config() };
    let mut volume = create(&world, &arena, 32, 2, config);
    write(&world, &mut volume, 0, &page(1)).unwrap();
    let number = volume.donors().number;
    let donors: Vec<DonorId> = volume.segments[0].copies.iter().map(|copy| copy.member.donor).collect();
    let (stale, good) = ((donors[0].0 - 100) as usize, (donors[1].0 - 100) as usize);
    world.borrow_mut().hosts[stale].cut.insert(number);
    write(&world, &mut volume, 0, &page(2)).unwrap();
    assert!(matches!(volume.status(), Status::Degraded(_)));
    crash(&world, volume);
    // The stale copy answers, and the good one does not: the old contents must not be read.
    world.borrow_mut().hosts[good].is_alive = false;
    let mut volume = open(&world, &arena, config).unwrap();
    assert!(matches!(read(&world, &mut volume, 0, BLOCK), Err(StoreError::Lost { at: 0, .. })));
    assert!(matches!(volume.status(), Status::Damaged(_)));
    crash(&world, volume);
    world.borrow_mut().hosts[good].is_alive = true;
    let mut volume = open(&world, &arena, super::facts::config()).unwrap();
    assert!(read(&world, &mut volume, 0, BLOCK).unwrap() == page(2));
    run_until_idle(&world, &mut volume);
    assert_eq!(volume.status(), Status::Whole, "it was repaired");
    assert!(volume.stats().copies_made > 0);
    world.borrow_mut().hosts[good].is_alive = false;
    assert!(read(&world, &mut volume, 0, BLOCK).unwrap() == page(2));
}

/// A copy that has a write may be given up before the last one, which lacks it, fails in turn.
#[test]
fn a_writer_that_loses_all_donors_for_a_while_keeps_what_it_acknowledged() {
    const PAGES: u64 = 8;
    let mut acknowledged = 0;
    for seed in 0..200 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        let mut volume = create(&world, &arena, 32, 2, config());
        (0..PAGES).for_each(|number| write(&world, &mut volume, number * PAGE, &page(1)).unwrap());
        run_until_idle(&world, &mut volume);
        let draw = |bound: u64| world.borrow_mut().random.below(bound);
        let (before, during) = (draw(40), draw(200));
        for number in 0..PAGES {
            let job = write_job(&volume, number * PAGE, &page(2));
            submit(&mut volume, number, job);
        }
        let writer = volume.donors().number;
        let mut finished = Vec::new();
        let mut run = |volume: &mut Volume<Writer>, steps: u64| {
            for _ in 0..steps {
                volume.turn();
                volume.poll(&mut finished, usize::MAX);
                world.borrow_mut().step();
            }
        };
        run(&mut volume, before);
        world.borrow_mut().hosts.iter_mut().for_each(|host| _ = host.cut.insert(writer));
        run(&mut volume, during);
        world.borrow_mut().hosts.iter_mut().for_each(|host| _ = host.cut.remove(&writer));
        run(&mut volume, 10_000);
        assert_eq!(finished.len() as u64, PAGES, "seed {seed}");
        let check = |volume: &mut Volume<Writer>, when: &str| {
            for Finished { tag, result, .. } in &finished {
                let found = read(&world, volume, tag * PAGE, BLOCK);
                let is_new = found.as_ref().is_ok_and(|found| *found == page(2));
                let is_old = found.as_ref().is_ok_and(|found| *found == page(1));
                assert!(is_new || is_old && result.is_err(), "seed {seed}, {when}, page {tag}: {result:?}");
            }
        };
        if volume.ended().is_none() {
            check(&mut volume, "afterwards");
        }
        crash(&world, volume);
        check(&mut open(&world, &arena, config()).unwrap(), "opened again");
        acknowledged += finished.iter().filter(|finished| finished.result.is_ok()).count();
    }
    assert!((100..200 * PAGES as usize - 100).contains(&acknowledged), "{acknowledged} writes acknowledged");
}

/// The donor fails after it has given the slab and before its answer is known, and is fenced anew, upon which it gets
/// slabs back that no copy has.
#[test]
fn a_slab_whose_answer_is_overtaken_by_a_new_fence_is_not_used_after_it_was_given_back() {
    let mut overtaken = 0;
    for seed in 0..300 {
        let (world, arena) = (World::new(5, 4 << 20, seed), arena());
        // The voters are neither the donor that dies nor the one that gives the slab.
        let voters = [101, 103, 104].map(DonorId).to_vec();
        let new = NewVolume { voters, ..new_volume(&world, 4 * u64::from(SLOTS) / 2, 2) };
        let opening = Opening::create(Writer::new(&world, &arena), ID, new, config());
        let mut volume = finish_opening(&world, opening).unwrap();
        let pages = volume.len() / PAGE;
        (0..pages).step_by(16).for_each(|number| write(&world, &mut volume, number * PAGE, &page(1)).unwrap());
        run_until_idle(&world, &mut volume);
        let lent = |lane: usize| world.borrow().hosts[lane].donor.lent_bytes();
        let before: Vec<u64> = (0..5).map(lent).collect();
        world.borrow_mut().hosts[0].is_alive = false;
        let writer = volume.donors().number;
        let mut finished = Vec::new();
        for step in 0..2_000u64 {
            if step % 20 == 0 {
                let job = write_job(&volume, step / 20 * 7 % pages * PAGE, &page(2));
                submit(&mut volume, step, job);
            }
            volume.turn();
            volume.poll(&mut finished, usize::MAX);
            world.borrow_mut().step();
            let given = (1..5).find(|lane| lent(*lane) > before[*lane]);
            if let Some(lane) = given.filter(|_| matches!(volume.repairing.step, RepairStep::Taking { .. })) {
                overtaken += 1;
                world.borrow_mut().hosts[lane].cut.insert(writer);
                world.borrow_mut().holds_answers = true;
                break;
            }
        }
        // Operations at the donor fail, and it is reached again.
        for step in 0..400 {
            volume.turn();
            world.borrow_mut().step();
            if step == 100 {
                world.borrow_mut().hosts.iter_mut().for_each(|host| _ = host.cut.remove(&writer));
            }
        }
        world.borrow_mut().holds_answers = false;
        run_until_idle(&world, &mut volume);
        // The model refuses writes into slabs that are not the volume's.
        (0..pages).step_by(3).for_each(|number| write(&world, &mut volume, number * PAGE, &page(3)).unwrap());
    }
    assert!(overtaken > 20, "{overtaken}");
}

#[test]
fn a_volume_with_all_its_copies_says_when_no_other_voter_may_fail() {
    let (world, arena) = (World::new(4, 4 << 20, 5), arena());
    let mut volume = create(&world, &arena, 32, 2, config());
    write(&world, &mut volume, 0, &page(1)).unwrap();
    assert_eq!(volume.status(), Status::Whole);
    let lose = |volume: &mut Volume<Writer>, host: usize| {
        world.borrow_mut().hosts[host].is_alive = false;
        // Each segment has a copy at the host or is written at it, so that its loss is noticed.
        (0..32).for_each(|number| write(&world, volume, number * PAGE, &page(2)).unwrap());
        run_until_idle(&world, volume);
    };
    // The fourth donor votes instead of the first one.
    lose(&mut volume, 0);
    assert_eq!(volume.status(), Status::Whole);
    lose(&mut volume, 1);
    assert!(matches!(volume.status(), Status::FewVoters(why) if why.starts_with("2 of 3 voters remain")));
    // A donor that comes back becomes a voter again.
    world.borrow_mut().hosts[1].is_alive = true;
    run_until_idle(&world, &mut volume);
    for _ in 0..100_000 {
        volume.turn();
        world.borrow_mut().step();
    }
    assert_eq!(volume.status(), Status::Whole);
}

#[test]
fn of_two_donors_one_may_not_fail_and_the_volume_says_so() {
    let (world, arena) = (World::new(2, 4 << 20, 5), arena());
    let new = NewVolume { voters: vec![DonorId(100)], ..new_volume(&world, 32, 2) };
    let opening = Opening::create(Writer::new(&world, &arena), ID, new, config());
    let volume = finish_opening(&world, opening).unwrap();
    assert!(matches!(volume.status(), Status::FewVoters(why) if why.starts_with("1 of 1 voters remain")));
}

/// Opens a volume once its writer, which is stopped, has been silent for a lease.
pub fn open_after_lease(world: &Shared, arena: &Arena, config: VolumeConfig) -> Volume<Writer> {
    loop {
        match open(world, arena, config) {
            Ok(volume) => return volume,
            // A heartbeat of the old writer was still on its way.
            Err(OpenError::InUse) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_writer_that_is_stopped_past_its_lease_and_goes_on_changes_nothing_and_answers_nothing() {
    let config = VolumeConfig { lease_ns: 5 * config().heartbeat_ns, ..config() };
    for seed in 0..40 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        let mut old = create(&world, &arena, 32, 2, config);
        write(&world, &mut old, 0, &page(1)).unwrap();
        for tag in 0..8 {
            let job = write_job(&old, tag * PAGE, &page(9));
            submit(&mut old, tag, job);
        }
        for _ in 0..seed {
            old.turn();
            world.borrow_mut().step();
        }
        // The old writer is stopped, with writes in flight.
        let mut new = open_after_lease(&world, &arena, config);
        for number in 0..16 {
            write(&world, &mut new, number * PAGE, &page(number as u8 + 20)).unwrap();
        }
        run_until_idle(&world, &mut new);
        let before: Vec<Vec<u8>> = world.borrow().hosts.iter().map(|host| host.memory.clone()).collect();
        let mut finished = Vec::new();
        assert!(!old.extent(8 * PAGE, PAGE).is_hole, "seed {seed}: the new writer has written it");
        let jobs = [
            write_job(&old, 0, &page(66)),
            read_job(&old, 8 * PAGE, BLOCK),
            read_job(&old, 9 * PAGE + 5, 3 * BLOCK),
            write_job(&old, 13 * PAGE + 7, b"a part"),
            Job::Discard { at: 14 * PAGE, len: PAGE },
        ];
        let last = 99..99 + jobs.len() as u64;
        last.clone().zip(jobs).for_each(|(tag, job)| submit(&mut old, tag, job));
        for _ in 0..2000 {
            old.turn();
            world.borrow_mut().step();
        }
        old.poll(&mut finished, usize::MAX);
        for tag in last {
            let one = finished.iter().find(|one| one.tag == tag).unwrap_or_else(|| panic!("seed {seed}: no end"));
            assert!(matches!(one.result, Err(StoreError::Fenced(_))), "seed {seed}, {tag}: {:?}", one.result);
        }
        let after: Vec<Vec<u8>> = world.borrow().hosts.iter().map(|host| host.memory.clone()).collect();
        assert!(before == after, "seed {seed}: a writer that was fenced has changed something");
        for number in 0..16 {
            assert!(read(&world, &mut new, number * PAGE, BLOCK).unwrap() == page(number as u8 + 20), "seed {seed}");
        }
    }
}

#[test]
fn a_torn_page_reads_as_the_old_one() {
    for seed in 0..200 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        let mut volume = create(&world, &arena, 16, 2, VolumeConfig { checksums: seed % 3 != 0, ..config() });
        write(&world, &mut volume, 0, &page(1)).unwrap();
        let job = write_job(&volume, 0, &page(2));
        submit(&mut volume, 3, job);
        volume.turn();
        for _ in 0..seed % 6 {
            world.borrow_mut().step();
        }
        crash(&world, volume);
        let mut volume = open(&world, &arena, config()).unwrap();
        let now = read(&world, &mut volume, 0, BLOCK).unwrap();
        assert!(now == page(1) || now == page(2), "seed {seed}");
        same_everywhere(&world, &mut volume, seed);
        assert!(read(&world, &mut volume, PAGE, BLOCK).unwrap() == page(0), "seed {seed}");
    }
}

/// Asserts that all copies of each page are the same.
pub fn same_everywhere(world: &Shared, volume: &mut Volume<Writer>, seed: u64) {
    let world = world.borrow();
    for page in 0..volume.pages {
        let Some(place) = volume.map.place(page) else { continue };
        let mut seen: Option<&[u8]> = None;
        for (lane, base) in volume.segments[place.segment as usize].reached() {
            let at = (base + volume.shape.page_at(place.slot)) as usize;
            let bytes = &world.hosts[usize::from(lane)].memory[at..at + BLOCK];
            assert!(seen.is_none_or(|seen| seen == bytes), "seed {seed}: page {page} differs between copies");
            seen = Some(bytes);
        }
    }
}

#[test]
fn discarded_pages_stay_discarded_after_recovery() {
    for seed in 0..60 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        let mut volume = create(&world, &arena, 32, 2, config());
        for round in 0..4 {
            for number in 0..16 {
                let job = write_job(&volume, number * PAGE, &page(round + 1));
                submit(&mut volume, number, job);
            }
        }
        submit(&mut volume, 50, Job::Discard { at: PAGE, len: 10 * PAGE });
        // Waits for all 64 writes and the discard; an unfinished request may leave either state.
        (0..65).for_each(|_| drop(finish_one(&world, &mut volume)));
        if seed % 2 == 0 {
            world.borrow_mut().hosts[seed as usize % 3].is_alive = false;
        }
        crash(&world, volume);
        let mut volume = open(&world, &arena, config()).unwrap();
        let all = read(&world, &mut volume, 0, 16 * BLOCK).unwrap();
        assert!(all[BLOCK..11 * BLOCK].iter().all(|byte| *byte == 0), "seed {seed}");
        assert!(all[..BLOCK].iter().chain(&all[11 * BLOCK..]).all(|byte| *byte == 4), "seed {seed}");
    }
}

#[test]
fn a_bad_copy_is_passed_over_and_written_anew() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, 32, 2, config());
    write(&world, &mut volume, 0, &[7; 4 * BLOCK]).unwrap();
    let place = volume.map.place(2).unwrap();
    let (lane, base) = volume.segments[place.segment as usize].reached().next().unwrap();
    let at = (base + volume.shape.page_at(place.slot)) as usize + 99;
    world.borrow_mut().hosts[usize::from(lane)].memory[at] ^= 1;
    for _ in 0..4 {
        assert!(read(&world, &mut volume, 0, 4 * BLOCK).unwrap() == [7; 4 * BLOCK]);
        assert!(read(&world, &mut volume, 2 * PAGE + 5, 10).unwrap() == [7; 10]);
    }
    run_until_idle(&world, &mut volume);
    assert!(volume.stats().bad_pages > 0);
    assert_eq!(volume.stats().refreshed, 1);
    same_everywhere(&world, &mut volume, 0);
}

#[test]
fn pages_whose_copies_are_all_bad_are_lost_and_others_are_not() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, 32, 2, config());
    write(&world, &mut volume, 0, &[7; 4 * BLOCK]).unwrap();
    let place = volume.map.place(2).unwrap();
    let copies: Vec<_> = volume.segments[place.segment as usize].reached().collect();
    for (lane, base) in copies {
        let at = (base + volume.shape.page_at(place.slot)) as usize;
        world.borrow_mut().hosts[usize::from(lane)].memory[at] ^= 1;
    }
    let lost = read(&world, &mut volume, 0, 4 * BLOCK);
    assert!(matches!(lost, Err(StoreError::Lost { at: 8192, .. })), "{lost:?}");
    assert!(read(&world, &mut volume, 0, 2 * BLOCK).unwrap() == [7; 2 * BLOCK]);
    assert!(write(&world, &mut volume, 2 * PAGE, b"a part").is_err());
    write(&world, &mut volume, 2 * PAGE, &page(8)).unwrap();
    assert!(read(&world, &mut volume, 2 * PAGE, BLOCK).unwrap() == page(8));
}

#[test]
fn two_that_open_at_once_do_not_both_write() {
    for seed in 0..40 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        crash(&world, create(&world, &arena, 16, 2, config()));
        let mut openings = [0, 1].map(|_| Opening::new(Writer::new(&world, &arena), ID, config()));
        let mut open: Vec<(usize, Volume<Writer>)> = Vec::new();
        let mut refused = 0;
        let mut over = [false; 2];
        for _ in 0..3000 {
            for (index, opening) in openings.iter_mut().enumerate().filter(|(index, _)| !over[*index]) {
                match opening.turn() {
                    Ok(None) => continue,
                    Ok(Some(volume)) => open.push((index, volume)),
                    Err(_) => refused += 1,
                }
                over[index] = true;
                break;
            }
            world.borrow_mut().step();
        }
        assert_eq!(open.len() + refused, 2, "seed {seed}");
        let mut good = 0;
        for (index, volume) in &mut open {
            good += usize::from(write(&world, volume, 0, &page(*index as u8 + 1)).is_ok());
        }
        assert!(good <= 1, "seed {seed}");
    }
}

#[test]
fn a_volume_that_nobody_has_is_not_found_and_one_that_is_there_is_not_made_again() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    assert_eq!(open(&world, &arena, config()).err(), Some(OpenError::NotFound(ID)));
    crash(&world, create(&world, &arena, 16, 2, config()));
    let again = Opening::create(Writer::new(&world, &arena), ID, new_volume(&world, 16, 2), config());
    assert_eq!(finish_opening(&world, again).err(), Some(OpenError::Exists(ID)));
    for lane in 0..2 {
        world.borrow_mut().restart(lane);
    }
    assert!(
        matches!(open(&world, &arena, config()), Err(OpenError::NoMajority(_))),
        "voters have forgotten their votes"
    );
}

#[test]
fn too_few_voters_end_it_with_a_reason_and_nothing_is_acknowledged() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, 16, 2, config());
    for lane in 0..2 {
        world.borrow_mut().hosts[lane].is_alive = false;
    }
    let result = write(&world, &mut volume, 0, &page(1));
    assert!(matches!(result, Err(StoreError::NoAnswer(_))), "{result:?}");
    assert!(matches!(volume.status(), Status::Ended(_)));
    let refused = volume.submit(Request { tag: 1, job: Job::Discard { at: 0, len: 17 * PAGE } });
    assert!(matches!(refused, Err(Refused::Never { .. })));
}

/// A volume that ended because the first two of its three voters were silent: `cut` off from its writer alone, or dead.
fn silent(world: &Shared, arena: &Arena, cut: bool) -> Volume<Writer> {
    let mut volume = create(world, arena, 16, 2, config());
    write(world, &mut volume, 0, &page(1)).unwrap();
    let number = volume.donors().number;
    for host in &mut world.borrow_mut().hosts[..2] {
        if cut {
            host.cut.insert(number);
        } else {
            host.is_alive = false;
        }
    }
    assert!(matches!(write(world, &mut volume, 0, &page(2)), Err(StoreError::NoAnswer(_))));
    volume
}

pub fn turn_for(world: &Shared, volume: &mut Volume<Writer>, time_ns: u64) {
    let until_ns = world.borrow().now_ns + time_ns;
    while world.borrow().now_ns < until_ns {
        volume.turn();
        world.borrow_mut().step();
    }
}

#[test]
fn a_silence_lasts_until_enough_voters_answer_and_then_the_volume_is_to_be_opened_anew() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = silent(&world, &arena, false);
    turn_for(&world, &mut volume, 10 * config().heartbeat_ns);
    assert!(matches!(volume.ended(), Some(StoreError::NoAnswer(_))), "one of three knows nothing of the others");
    world.borrow_mut().hosts[0].is_alive = true;
    turn_for(&world, &mut volume, 10 * config().heartbeat_ns);
    assert!(matches!(volume.ended(), Some(StoreError::Unavailable(_))), "{:?}", volume.ended());
    let error = read(&world, &mut volume, 0, BLOCK).unwrap_err();
    assert!(error.to_string().contains("open it again"), "{error}");
    // Its questions are no heartbeats.
    let lease = VolumeConfig { lease_ns: 5 * config().heartbeat_ns, ..config() };
    let number = volume.donors().number;
    let next = open(&world, &arena, lease);
    assert!(next.is_ok() && number != next.unwrap().donors().number);
}

#[test]
fn whoever_was_cut_off_while_another_took_the_volume_hears_of_it_when_it_is_not_any_more() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = silent(&world, &arena, true);
    let number = volume.donors().number;
    world.borrow_mut().hosts[2].cut.insert(number);
    turn_for(&world, &mut volume, 10 * config().heartbeat_ns);
    let other = open(&world, &arena, config()).unwrap();
    turn_for(&world, &mut volume, 10 * config().heartbeat_ns);
    assert!(matches!(volume.ended(), Some(StoreError::NoAnswer(_))));
    world.borrow_mut().hosts[1].cut.clear();
    turn_for(&world, &mut volume, 10 * config().heartbeat_ns);
    assert!(matches!(volume.ended(), Some(StoreError::Fenced(_))), "{:?}", volume.ended());
    assert_eq!(volume.number(), other.number());
}

#[test]
fn donors_that_have_started_again_and_what_is_new_on_them_say_nothing_of_a_volume_that_is_gone() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = silent(&world, &arena, false);
    (0..3).for_each(|lane| world.borrow_mut().restart(lane));
    turn_for(&world, &mut volume, 10 * config().heartbeat_ns);
    assert!(matches!(volume.ended(), Some(StoreError::NoAnswer(_))));
    let fresh = create(&world, &arena, 16, 2, config());
    turn_for(&world, &mut volume, 10 * config().heartbeat_ns);
    assert!(matches!(volume.ended(), Some(StoreError::NoAnswer(_))));
    assert_ne!(volume.number(), fresh.number(), "another volume of the same name");
}

#[test]
fn a_volumes_number_stays_whoever_opens_it() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let volume = create(&world, &arena, 16, 2, config());
    let number = volume.number();
    crash(&world, volume);
    for _ in 0..2 {
        let volume = open(&world, &arena, config()).unwrap();
        assert_eq!(volume.number(), number);
        crash(&world, volume);
    }
}

fn check(world: &Shared, volume: Volume<Writer>) -> CheckReport {
    let mut check = Check::new(volume);
    for _ in 0..100_000 {
        if let Some(report) = check.turn() {
            return report;
        }
        world.borrow_mut().step();
    }
    panic!("the check did not end");
}

#[test]
fn a_check_gives_signs_of_life_until_it_is_over() {
    // With this seed no heartbeat is overtaken by the farewell.
    let (world, arena) = (World::new(1, 4 << 20, 2), arena());
    let mut volume = create(&world, &arena, 100, 1, config());
    write(&world, &mut volume, 0, &page(1)).unwrap();
    run_until_idle(&world, &mut volume);
    crash(&world, volume);
    let mut check = Check::new(open(&world, &arena, config()).unwrap());
    let beats = || match world.borrow_mut().hosts[0].donor.handle(&Call::Inspect { volume: ID }) {
        Ok(Answer::Inspected { beats, .. }) => beats,
        other => panic!("{other:?}"),
    };
    let (first, mut last) = (beats(), 0);
    for _ in 0..20 {
        assert!(check.turn().is_none(), "no request has reached the donor yet");
        world.borrow_mut().now_ns += config().heartbeat_ns;
    }
    while check.turn().is_none() {
        last = beats().max(last);
        world.borrow_mut().step();
    }
    assert!(last >= first + 20, "{first} {last}");
    assert_eq!(beats(), 0, "it has left");
}

#[test]
fn a_check_finds_what_was_changed_behind_a_volumes_back_and_nothing_else() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, 100, 2, config());
    for round in 0..3 {
        for number in 0..50 {
            write(&world, &mut volume, number * PAGE, &page(number as u8 + round)).unwrap();
        }
    }
    run_until_idle(&world, &mut volume);
    crash(&world, volume);
    let volume = open(&world, &arena, config()).unwrap();
    let places: Vec<_> = (0..3).map(|number| volume.map.place(number).unwrap()).collect();
    let (lane, base) = volume.segments[places[0].segment as usize].reached().last().unwrap();
    let shape = volume.shape;
    let report = check(&world, volume);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.pages, report.good), (50, 100));
    let volume = open(&world, &arena, config()).unwrap();
    {
        let memory = &mut world.borrow_mut().hosts[usize::from(lane)].memory;
        memory[(base + shape.page_at(places[0].slot)) as usize + 7] ^= 1;
        memory[(base + shape.header_at(places[1].slot)) as usize + 20] ^= 1;
        let header = (base + shape.header_at(places[2].slot)) as usize;
        memory[header..header + 64].fill(0);
    }
    let report = check(&world, volume);
    assert_eq!((report.torn, report.garbage, report.missing, report.good), (1, 1, 1, 97), "{report:?}");
}
