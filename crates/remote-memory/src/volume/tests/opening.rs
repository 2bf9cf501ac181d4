//! Tests of what may go wrong while a volume is opened.

use super::facts::{
    ID, PAGE, arena, config, crash, create, finish_opening, finish_opening_while, new_volume, open, page, read,
    run_until_idle, submit, write, write_job,
};
use super::model::{World, Writer};
use crate::donor::Call;
use crate::store::{BLOCK, Store};
use crate::volume::{BadRecord, NewVolume, OpenError, Opening, VolumeConfig};

/// The latest record, which names only the donor that has it as a voter, and more slots than any volume has.
#[test]
fn a_record_that_a_donor_made_up_is_refused_before_anything_is_made_room_for() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let volume = create(&world, &arena, 32, 2, config());
    let mut record = volume.record();
    crash(&world, volume);
    record.epoch = 1000;
    record.slots = u32::MAX;
    record.voters.truncate(1);
    let call = Call::Record { volume: ID, epoch: 1000, generation: 1, record: record.to_bytes().into() };
    world.borrow_mut().hosts[0].donor.handle(&call).unwrap();
    assert_eq!(open(&world, &arena, config()).err(), Some(OpenError::BadRecord(BadRecord)));
    // Nobody makes such a volume.
    let new = NewVolume { slab_len: u64::MAX, ..new_volume(&world, 32, 2) };
    let made = finish_opening(&world, Opening::create(Writer::new(&world, &arena), ID + 1, new, config()));
    assert!(matches!(made, Err(OpenError::Invalid(_))));
}

/// The newest writes have reached only the donor that dies.
#[test]
fn a_donor_that_dies_while_a_volume_is_opened_takes_no_acknowledged_page_along() {
    const PAGES: u64 = 8;
    let (slow, dies) = (0, 1);
    let mut only_there = 0;
    for seed in 0..400 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        let config = VolumeConfig { checksums: seed % 4 > 0, ..config() };
        let mut volume = create(&world, &arena, 32, 2, config);
        (0..PAGES).for_each(|number| write(&world, &mut volume, number * PAGE, &page(1)).unwrap());
        run_until_idle(&world, &mut volume);
        world.borrow_mut().slow = Some(slow);
        for number in 0..PAGES {
            let job = write_job(&volume, number * PAGE, &page(2));
            submit(&mut volume, number, job);
        }
        let draw = |bound: u64| world.borrow_mut().random.below(bound);
        for _ in 0..draw(120) {
            volume.turn();
            world.borrow_mut().step();
        }
        crash(&world, volume);
        world.borrow_mut().slow = None;
        let when = draw(300);
        let opening = Opening::new(Writer::new(&world, &arena), ID, config);
        let opened = finish_opening_while(&world, opening, |step| {
            if step == when {
                world.borrow_mut().hosts[dies].is_alive = false;
            }
        });
        let mut first = None;
        if let Ok(mut volume) = opened {
            world.borrow_mut().hosts[dies].is_alive = false;
            let pages = (0..PAGES).map(|number| read(&world, &mut volume, number * PAGE, BLOCK));
            let pages: Vec<_> = pages.collect();
            assert!(pages.iter().all(Result::is_ok), "seed {seed}: {:?}", pages.iter().find(|page| page.is_err()));
            first = Some(pages.into_iter().map(Result::unwrap).collect::<Vec<_>>());
            crash(&world, volume);
        }
        world.borrow_mut().hosts[dies].is_alive = false;
        let mut volume = open(&world, &arena, config).unwrap();
        for number in 0..PAGES {
            let found = read(&world, &mut volume, number * PAGE, BLOCK).unwrap();
            assert!(found == page(1) || found == page(2), "seed {seed}: page {number} is {}", found[0]);
            let before = first.as_ref().map(|first| &first[number as usize]);
            assert!(before.is_none_or(|before| *before == found), "seed {seed}: page {number} has changed");
            only_there += u64::from(found == page(1));
        }
    }
    assert!(only_there > 100, "{only_there}");
}
