//! Tests of donors that fail and come back.

use super::facts::{PAGE, arena, config, create, finish_one, page, read, read_job, run_until_idle, submit, write};
use super::model::{Shared, World, Writer};
use crate::store::{BLOCK, Status, Store, StoreError};
use crate::volume::core::lane_bit;
use crate::volume::{Volume, VolumeConfig};

fn lanes_of(volume: &Volume<Writer>, segment: usize) -> Vec<u8> {
    volume.segments[segment].reached().map(|(lane, _)| lane).collect()
}

fn turn_until(world: &Shared, volume: &mut Volume<Writer>, is_so: impl Fn(&Volume<Writer>) -> bool) {
    for _ in 0..200_000 {
        volume.turn();
        world.borrow_mut().step();
        if is_so(volume) {
            return;
        }
    }
    panic!("it does not come to that: {:?}", volume.status());
}

/// A page of which only one copy is good is read from that copy alone, but not from a later copy at the same donor.
#[test]
fn a_page_that_only_a_donor_that_was_lost_had_is_lost_and_nothing_else_is_read_for_it() {
    for (seed, checksums) in [(1, true), (2, false)] {
        let (world, arena) = (World::new(2, 4 << 20, seed), arena());
        let mut volume = create(&world, &arena, 32, 2, VolumeConfig { checksums, ..config() });
        (0..2).for_each(|number| write(&world, &mut volume, number * PAGE, &page(1)).unwrap());
        run_until_idle(&world, &mut volume);
        let place = volume.map.place(0).unwrap();
        let lanes = lanes_of(&volume, place.segment as usize);
        let [bad, good] = lanes[..] else { panic!("{lanes:?}") };
        let base = volume.segments[place.segment as usize].copies[0].base;
        let at = (base + volume.shape.page_at(place.slot)) as usize;
        world.borrow_mut().hosts[usize::from(bad)].memory[at..at + BLOCK].fill(9);
        volume.trusted.insert(0, lane_bit(good));
        assert!(read(&world, &mut volume, 0, BLOCK).unwrap() == page(1));
        // The donor with the good copy is cut off for a moment, and gets a copy of the other one.
        let writer = volume.donors().number;
        world.borrow_mut().hosts[usize::from(good)].cut.insert(writer);
        turn_until(&world, &mut volume, |volume| matches!(volume.status(), Status::Degraded(_)));
        world.borrow_mut().hosts[usize::from(good)].cut.clear();
        turn_until(&world, &mut volume, |volume| volume.segments[0].copies.len() == 2 && volume.is_idle());
        let found = read(&world, &mut volume, 0, BLOCK).map(|found| found[0]);
        assert!(matches!(found, Err(StoreError::Lost { at: 0, .. })), "checksums {checksums}: {found:?}");
        assert!(read(&world, &mut volume, PAGE, BLOCK).unwrap() == page(1));
        write(&world, &mut volume, 0, &page(3)).unwrap();
        assert!(read(&world, &mut volume, 0, BLOCK).unwrap() == page(3));
    }
}

/// The last copy of a segment is used again when its donor comes back.
#[test]
fn a_page_that_only_one_copy_has_is_there_again_when_that_copy_was_the_last() {
    let (world, arena) = (World::new(3, 4 << 20, 3), arena());
    let mut volume = create(&world, &arena, 32, 1, config());
    write(&world, &mut volume, 0, &page(1)).unwrap();
    run_until_idle(&world, &mut volume);
    let lane = lanes_of(&volume, 0)[0];
    volume.trusted.insert(0, lane_bit(lane));
    let writer = volume.donors().number;
    world.borrow_mut().hosts[usize::from(lane)].cut.insert(writer);
    turn_until(&world, &mut volume, |volume| volume.segments[0].is_dead());
    world.borrow_mut().hosts[usize::from(lane)].cut.clear();
    turn_until(&world, &mut volume, |volume| !volume.segments[0].is_dead());
    assert!(read(&world, &mut volume, 0, BLOCK).unwrap() == page(1));
}

/// Several donors are cut off at once, so that the record is not durable when they come back.
#[test]
fn every_slab_that_no_copy_has_any_more_is_given_back_after_donors_have_come_back() {
    for seed in 0..60 {
        let (world, arena) = (World::new(4, 4 << 20, seed), arena());
        let config = VolumeConfig { repairs: seed % 3 > 0, vote_timeout_ns: u64::MAX, ..config() };
        let mut volume = create(&world, &arena, 150, 2, config);
        (0..150).step_by(5).for_each(|number| write(&world, &mut volume, number * PAGE, &page(1)).unwrap());
        run_until_idle(&world, &mut volume);
        let writer = volume.donors().number;
        let draw = |bound: u64| world.borrow_mut().random.below(bound);
        for _ in 0..3 {
            for host in 0..4 {
                if draw(2) == 0 {
                    world.borrow_mut().hosts[host].cut.insert(writer);
                }
            }
            let (tag, at) = (draw(1 << 30), draw(150) * PAGE);
            let job = read_job(&volume, at, BLOCK);
            submit(&mut volume, tag, job);
            for _ in 0..draw(400) {
                volume.turn();
                world.borrow_mut().step();
            }
            world.borrow_mut().hosts.iter_mut().for_each(|host| host.cut.clear());
            drop(finish_one(&world, &mut volume));
        }
        for _ in 0..20_000 {
            volume.turn();
            world.borrow_mut().step();
        }
        let named: usize = volume.segments.iter().map(|segment| segment.copies.len()).sum();
        let lent: u64 = world.borrow().hosts.iter().map(|host| host.donor.lent_bytes()).sum();
        assert_eq!(lent, named as u64 * volume.shape.slab_len(), "seed {seed}: {:?}", volume.status());
    }
}
