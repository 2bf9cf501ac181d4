//! Tests of memory that comes back: of volumes that are removed, and of volumes that were not made after all.

use sinew_mem::Arena;

use super::facts::{ID, SLOTS, arena, config, crash, create, finish_opening, new_volume, open, read, write};
use super::model::{Shared, World, Writer};
use crate::donor::{Answer, Call, VOLUMES_PER_ANSWER};
use crate::pool::{DonorSpace, Inventory, ListedVolume, Survey};
use crate::store::{BLOCK, Store};
use crate::volume::{DonorId, NewVolume, OpenError, Opening, Removal, Removed, Shape, Volume, VolumeConfig};

const PAGE: u64 = BLOCK as u64;
/// Volume of another user.
const OTHER: u64 = 70;

fn slab_len() -> u64 {
    Shape { slots: SLOTS }.slab_len()
}

fn lent(world: &Shared) -> Vec<u64> {
    world.borrow().hosts.iter().map(|host| host.donor.lent_bytes()).collect()
}

fn call(world: &Shared, lane: usize, call: Call) -> Answer {
    world.borrow_mut().hosts[lane].donor.handle(&call).unwrap()
}

fn try_create(world: &Shared, arena: &Arena, new: NewVolume) -> Result<Volume<Writer>, OpenError> {
    finish_opening(world, Opening::create(Writer::new(world, arena), ID, new, config()))
}

fn remove_with(world: &Shared, arena: &Arena, config: VolumeConfig) -> Result<Removed, OpenError> {
    finish(world, Removal::of_unrecorded(Writer::new(world, arena), ID, config))
}

fn finish(world: &Shared, mut removal: Removal<Writer>) -> Result<Removed, OpenError> {
    for _ in 0..1_000_000 {
        if let Some(removed) = removal.turn()? {
            return Ok(removed);
        }
        world.borrow_mut().step();
    }
    panic!("the volume was not removed");
}

fn remove(world: &Shared, arena: &Arena) -> Result<Removed, OpenError> {
    remove_with(world, arena, config())
}

#[test]
fn what_was_taken_for_a_volume_that_is_not_made_is_given_back_and_it_can_be_made_later() {
    for seed in 0..20 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        let new = new_volume(&world, 4 * u64::from(SLOTS) / 2, 2);
        // The donor has room for less than it is asked for, as it might say after a survey.
        call(&world, 2, Call::Fence { volume: OTHER, epoch: 1 });
        let Answer::Taken { lent: other, .. } =
            call(&world, 2, Call::Take { volume: OTHER, epoch: 1, len: (4 << 20) - slab_len() })
        else {
            panic!("it has room")
        };
        let before = lent(&world);
        let refused = try_create(&world, &arena, new.clone()).err();
        assert!(matches!(refused, Some(OpenError::Full(_))), "seed {seed}: {refused:?}");
        assert_eq!(lent(&world), before, "seed {seed}");
        assert_eq!(open(&world, &arena, config()).err(), Some(OpenError::NotFound(ID)));
        call(&world, 2, Call::Free { volume: OTHER, epoch: 1, slab: other.slab });
        let made = try_create(&world, &arena, new);
        assert!(made.is_ok(), "seed {seed}: {:?}", made.err());
    }
}

#[test]
fn what_one_took_that_died_while_making_a_volume_is_given_back_by_the_next() {
    for seed in 0..60 {
        // There is room for the volume once. What was given back is zeroed more slowly than it is asked for.
        let (world, arena) = (World::new(3, 3 * slab_len(), seed), arena());
        world.borrow_mut().zeroed_per_step = 4096;
        let new = new_volume(&world, 4 * u64::from(SLOTS) / 2, 2);
        let slabs = new.segments.len() as u64 * 2 * slab_len();
        let writer = Writer::new(&world, &arena);
        let number = writer.number;
        let mut first = Opening::create(writer, ID, new.clone(), config());
        let until = 1 + seed % 9;
        while lent(&world).iter().sum::<u64>() < until.min(new.segments.len() as u64 * 2) * slab_len() {
            assert!(first.turn().unwrap().is_none());
            world.borrow_mut().step();
        }
        drop(first);
        world.borrow_mut().drop_writer(number);
        for host in &mut world.borrow_mut().hosts {
            // Something was written there.
            for lent in host.donor.slabs_of(ID) {
                host.memory[lent.base as usize..(lent.base + lent.len) as usize].fill(0xEE);
            }
        }
        let made = try_create(&world, &arena, new);
        assert!(made.is_ok(), "seed {seed}: {:?}", made.err());
        assert_eq!(lent(&world).iter().sum::<u64>(), slabs, "seed {seed}");
        for host in &world.borrow().hosts {
            for lent in host.donor.slabs_of(ID) {
                let bytes = &host.memory[lent.base as usize..(lent.base + lent.len) as usize];
                assert!(!bytes.contains(&0xEE), "seed {seed}: a slab holds what another wrote");
            }
        }
    }
}

#[test]
fn whatever_fails_while_a_volume_is_made_it_is_there_whole_afterwards_or_can_be_made() {
    let (mut undone, mut made) = (0, 0);
    for seed in 0..200 {
        let (world, arena) = (World::new(4, 4 << 20, seed), arena());
        let new = new_volume(&world, 2 * u64::from(SLOTS) / 2, 2);
        let slabs = new.segments.len() as u64 * 2 * slab_len();
        let mut first = Opening::create(Writer::new(&world, &arena), ID, new.clone(), config());
        let cut_after = world.borrow_mut().random.below(80);
        let mut result = Ok(None);
        for step in 0..20_000 {
            result = first.turn();
            if !matches!(result, Ok(None)) {
                break;
            }
            if step == cut_after {
                // Two of three voters, and perhaps the donor of a copy.
                (0..2 + seed as usize % 2).for_each(|lane| world.borrow_mut().hosts[lane].is_alive = false);
            }
            world.borrow_mut().step();
        }
        assert!(!matches!(result, Ok(None)), "seed {seed}: it does not end");
        let was_made = result.is_ok();
        drop((first, result));
        world.borrow_mut().hosts.iter_mut().for_each(|host| host.is_alive = true);
        // A call that was cut off may have been done.
        let again = match open(&world, &arena, config()) {
            Err(OpenError::NotFound(_)) => try_create(&world, &arena, new),
            opened => opened,
        };
        assert!(again.is_ok(), "seed {seed}: {:?}", again.err());
        *if was_made { &mut made } else { &mut undone } += 1;
        let mut volume = again.unwrap();
        write(&world, &mut volume, 0, &[1; BLOCK]).unwrap();
        (0..20_000).for_each(|_| {
            volume.turn();
            world.borrow_mut().step();
        });
        assert_eq!(lent(&world).iter().sum::<u64>(), slabs, "seed {seed}");
    }
    assert!(undone > 20 && made > 20, "{undone} {made}");
}

#[test]
fn a_removed_volume_is_gone_with_all_its_memory_and_its_name_is_free() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, 150, 2, config());
    (0..150).for_each(|page| write(&world, &mut volume, page * PAGE, &[7; BLOCK]).unwrap());
    crash(&world, volume);
    let before: u64 = lent(&world).iter().sum();
    let removed = remove(&world, &arena).unwrap();
    assert_eq!(removed, Removed { bytes: before, left: String::new() });
    assert_eq!(lent(&world), [0; 3]);
    assert_eq!(open(&world, &arena, config()).err(), Some(OpenError::NotFound(ID)));
    assert_eq!(remove(&world, &arena), Ok(Removed::default()), "it can be repeated");
    let mut again = create(&world, &arena, 150, 2, config());
    assert!(read(&world, &mut again, 0, 150 * BLOCK).unwrap().iter().all(|byte| *byte == 0));
    write(&world, &mut again, 0, &[8; BLOCK]).unwrap();
    crash(&world, again);
    let mut again = open(&world, &arena, config()).unwrap();
    assert_eq!(read(&world, &mut again, 0, BLOCK).unwrap(), [8; BLOCK]);
}

#[test]
fn a_voter_that_was_away_does_not_bring_a_removed_volume_back() {
    for seed in 0..40 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        crash(&world, create(&world, &arena, 150, 2, config()));
        let away = seed as usize % 3;
        let held = lent(&world)[away];
        world.borrow_mut().hosts[away].is_alive = false;
        let removed = remove(&world, &arena).unwrap();
        assert!(removed.left.contains(&format!("donor {:016x}", 100 + away)), "{removed:?}");
        world.borrow_mut().hosts[away].is_alive = true;
        assert_eq!(open(&world, &arena, config()).err(), Some(OpenError::NotFound(ID)), "seed {seed}");
        assert_eq!(lent(&world).iter().sum::<u64>(), held);
        if seed % 2 == 0 {
            assert_eq!(remove(&world, &arena).unwrap().bytes, held, "seed {seed}");
            assert_eq!(lent(&world), [0; 3]);
        } else {
            // Whoever makes a volume of the name gives it back as well.
            let volume = create(&world, &arena, 16, 2, config());
            assert_eq!(lent(&world).iter().sum::<u64>(), 2 * slab_len(), "seed {seed}");
            drop(volume);
        }
    }
}

#[test]
fn a_volume_is_not_removed_from_a_writer_that_lives_unless_it_is_forced() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, 32, 2, config());
    let patient = VolumeConfig { lease_ns: 2_000_000, ..config() };
    let mut removal = Removal::of_unrecorded(Writer::new(&world, &arena), ID, patient);
    let refused = loop {
        match removal.turn() {
            Ok(None) => {}
            other => break other,
        }
        volume.turn();
        world.borrow_mut().step();
    };
    assert_eq!(refused, Err(OpenError::InUse));
    write(&world, &mut volume, 0, &[1; BLOCK]).unwrap();
    assert!(remove(&world, &arena).unwrap().left.is_empty() && lent(&world) == [0; 3]);
    assert!(write(&world, &mut volume, 0, &[2; BLOCK]).is_err());
    // Nobody is waited for who is dead.
    crash(&world, create(&world, &arena, 32, 2, config()));
    assert!(remove_with(&world, &arena, patient).is_ok());
}

#[test]
fn a_removal_that_is_broken_off_anywhere_can_be_repeated() {
    for seed in 0..150 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        let mut volume = create(&world, &arena, 100, 2, config());
        write(&world, &mut volume, 0, &[5; BLOCK]).unwrap();
        crash(&world, volume);
        let writer = Writer::new(&world, &arena);
        let number = writer.number;
        let mut removal = Removal::new(writer, ID, config());
        let steps = world.borrow_mut().random.below(60);
        let is_over = (0..steps).any(|_| {
            world.borrow_mut().step();
            removal.turn().unwrap().is_some()
        });
        drop(removal);
        world.borrow_mut().drop_writer(number);
        // A volume that is still there has its contents.
        if !is_over && seed % 2 == 0 {
            match open(&world, &arena, config()) {
                Ok(mut volume) => {
                    assert_eq!(read(&world, &mut volume, 0, BLOCK).unwrap(), [5; BLOCK], "seed {seed}");
                    crash(&world, volume);
                }
                Err(error) => assert_eq!(error, OpenError::NotFound(ID), "seed {seed}"),
            }
        }
        assert!(remove(&world, &arena).unwrap().left.is_empty(), "seed {seed}");
        assert_eq!(lent(&world), [0; 3], "seed {seed}");
        assert_eq!(open(&world, &arena, config()).err(), Some(OpenError::NotFound(ID)), "seed {seed}");
    }
}

#[test]
fn a_volume_whose_voters_have_forgotten_it_is_removed_where_it_still_lies() {
    for seed in 0..20 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        crash(&world, create(&world, &arena, 150, 2, config()));
        // One voter that does not answer may have the later record.
        (0..2).for_each(|lane| world.borrow_mut().hosts[lane].is_alive = false);
        assert!(matches!(remove(&world, &arena), Err(OpenError::NoMajority(_))));
        assert!(lent(&world)[2] > 0);
        (0..2).for_each(|lane| {
            world.borrow_mut().restart(lane);
        });
        let held = lent(&world)[2];
        assert_eq!(remove(&world, &arena), Ok(Removed { bytes: held, left: String::new() }));
        assert_eq!(lent(&world), [0; 3]);
        create(&world, &arena, 16, 2, config());
    }
}

#[test]
fn slabs_without_a_record_are_discarded_when_all_donors_answer_and_nobody_uses_them() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    assert_eq!(remove(&world, &arena), Err(OpenError::NotFound(ID)));
    for (lane, epoch) in [(0, 3), (1, 5)] {
        call(&world, lane, Call::Fence { volume: ID, epoch });
        call(&world, lane, Call::Take { volume: ID, epoch, len: 4096 });
    }
    // Only who says so discards what has no record.
    let recorded_only = Removal::new(Writer::new(&world, &arena), ID, config());
    assert_eq!(finish(&world, recorded_only), Err(OpenError::NotFound(ID)));
    world.borrow_mut().hosts[2].is_alive = false;
    let refused = remove(&world, &arena);
    assert!(
        matches!(&refused, Err(OpenError::Unanswered(why)) if why.contains(&format!("{:016x}", 102))),
        "{refused:?}"
    );
    world.borrow_mut().hosts[2].is_alive = true;
    let patient = VolumeConfig { lease_ns: 2_000_000, ..config() };
    let mut removal = Removal::of_unrecorded(Writer::new(&world, &arena), ID, patient);
    let refused = loop {
        match removal.turn() {
            Ok(None) => {}
            other => break other,
        }
        call(&world, 1, Call::Heartbeat { volume: ID, epoch: 5 });
        world.borrow_mut().step();
    };
    assert_eq!((refused, lent(&world)), (Err(OpenError::InUse), vec![4096, 4096, 0]));
    assert_eq!(remove_with(&world, &arena, patient), Ok(Removed { bytes: 8192, left: String::new() }));
    assert_eq!(lent(&world), [0; 3]);
    // A volume of this name has later epochs than those who used the memory.
    create(&world, &arena, 16, 2, config());
}

#[test]
fn slabs_of_a_service_that_starts_again_while_they_are_discarded_stay() {
    for lease_ns in [2_000_000, 0] {
        let (world, arena) = (World::new(3, 4 << 20, 1), arena());
        call(&world, 1, Call::Fence { volume: ID, epoch: 5 });
        call(&world, 1, Call::Take { volume: ID, epoch: 5, len: 4096 });
        let fence = || match call(&world, 1, Call::Volumes { from: ID }) {
            Answer::Volumes(volumes) => volumes[0].fence,
            other => panic!("{other:?}"),
        };
        let config = VolumeConfig { lease_ns, ..config() };
        let mut removal = Removal::of_unrecorded(Writer::new(&world, &arena), ID, config);
        let mut has_begun = false;
        let outcome = loop {
            match removal.turn() {
                Ok(None) => {}
                other => break other,
            }
            if !has_begun && fence() == 6 {
                // The service takes the epoch after its last, as the removal has done.
                has_begun = true;
                call(&world, 1, Call::Fence { volume: ID, epoch: 6 });
            }
            world.borrow_mut().step();
        };
        match outcome {
            Err(error) => assert_eq!((error, lease_ns > 0), (OpenError::InUse, true)),
            Ok(removed) => assert!(lease_ns == 0 && removed.is_some_and(|removed| !removed.left.is_empty())),
        }
        assert_eq!(lent(&world), [0, 4096, 0]);
    }
}

#[test]
fn an_inventory_lists_what_has_memory_or_a_writer_that_lives_and_says_who_is_silent() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    // More than one answer of a donor lists, all without memory.
    for volume in 1000..1000 + 2 * VOLUMES_PER_ANSWER as u64 {
        call(&world, 1, Call::Fence { volume, epoch: 1 });
    }
    crash(&world, create(&world, &arena, 32, 2, config()));
    for lane in 0..2 {
        call(&world, lane, Call::Fence { volume: OTHER, epoch: 4 });
    }
    call(&world, 1, Call::Take { volume: OTHER, epoch: 4, len: 8192 });
    world.borrow_mut().hosts[2].is_alive = false;
    let mut inventory = Inventory::new(Writer::new(&world, &arena), 3_000_000);
    while !inventory.turn() {
        call(&world, 0, Call::Heartbeat { volume: OTHER, epoch: 4 });
        world.borrow_mut().step();
    }
    let volumes = inventory.volumes();
    assert_eq!(volumes.keys().copied().collect::<Vec<_>>(), [ID, OTHER]);
    let lent = vec![(DonorId(100), slab_len()), (DonorId(101), slab_len())];
    assert_eq!(volumes[&ID], ListedVolume { lent, has_record: true, is_in_use: false });
    let lent = vec![(DonorId(101), 8192)];
    assert_eq!(volumes[&OTHER], ListedVolume { lent, has_record: false, is_in_use: true });
    assert_eq!(inventory.failures().map(|failure| failure.is_some()).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn what_a_volume_that_was_never_recorded_has_and_what_is_being_zeroed_counts_as_free_for_it() {
    let (world, arena) = (World::new(2, 4 << 20, 1), arena());
    world.borrow_mut().zeroed_per_step = 0;
    for volume in [ID, OTHER] {
        call(&world, 0, Call::Fence { volume, epoch: 1 });
        call(&world, 0, Call::Take { volume, epoch: 1, len: 1 << 20 });
    }
    let Answer::Taken { lent, .. } = call(&world, 0, Call::Take { volume: OTHER, epoch: 1, len: 1 << 20 }) else {
        panic!("it has room")
    };
    call(&world, 0, Call::Free { volume: OTHER, epoch: 1, slab: lent.slab });
    for (of, free) in [(None, 2), (Some(ID), 3), (Some(OTHER), 3), (Some(1), 2)] {
        let donors = Writer::new(&world, &arena);
        let mut survey =
            of.map_or_else(|| Survey::new(Writer::new(&world, &arena)), |of| Survey::for_volume(donors, of));
        while !survey.turn() {
            world.borrow_mut().step();
        }
        let space = |lane: u64, free| Ok(DonorSpace { donor: DonorId(100 + lane), free });
        assert_eq!(survey.results().cloned().collect::<Vec<_>>(), [space(0, free << 20), space(1, 4 << 20)], "{of:?}");
    }
}
