//! Stores whose donors come and go, and servers that die, compared with a plain array.

use std::sync::Arc;

use sinew_fabric::{ManualClock, SeededGenerator};
use sinew_remote_memory::store::BLOCK;
use sinew_remote_memory::{Job, Store};

use super::model::*;
use crate::last_copy::RETRY_NS;

const PLACES: u64 = 32;
const PLACE_LEN: usize = 8;

/// Offset of a place. Some blocks have two places each, and each chunk has several such blocks.
fn at_of(place: u64) -> u64 {
    place / 2 * (LEN as u64 / PLACES * 2) + place % 2 * 16
}

/// Possible values of each place: one, or several after failed changes, until the store says which.
type Values = Vec<Vec<u8>>;

struct Run {
    seed: u64,
    random: SeededGenerator,
    disk: Arc<Disk>,
    clock: ManualClock,
    pool: Arc<ManualPool>,
    store: Copied,
    may_be: Values,
    /// Possible values after a loss of power: those at the last flush, and all since.
    since_flush: Values,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = SeededGenerator::new(seed);
        let (disk, clock) = (Disk::of(Vec::new()), ManualClock::new());
        let pool = if random.below(2) == 0 { ManualPool::immediate() } else { Arc::default() };
        let store = on(&disk, Remote::new(), &clock, &pool);
        let may_be = vec![vec![0]; PLACES as usize];
        Self { seed, random, disk, clock, pool, store, since_flush: may_be.clone(), may_be }
    }

    /// Changes a place, or the block around it. With `counts`, the submitter learns how it ended.
    fn change(&mut self, counts: bool) {
        let place = self.random.below(PLACES);
        let is_block = self.random.below(3) == 0;
        let (at, len) = if is_block { (at_of(place & !1), BLOCK) } else { (at_of(place), PLACE_LEN) };
        let (first, last) = if is_block { (place & !1, place | 1) } else { (place, place) };
        let value = if self.random.below(4) == 0 { 0 } else { 1 + self.random.below(255) as u8 };
        let done = if value == 0 {
            run(&mut self.store, 1, Job::Discard { at, len: len as u64 }).result
        } else {
            write(&mut self.store, at, &vec![value; len])
        };
        for place in first as usize..=last as usize {
            if counts && done.is_ok() {
                self.may_be[place].clear();
            }
            self.may_be[place].push(value);
            self.since_flush[place].push(value);
        }
    }

    fn read(&mut self) {
        let place = self.random.below(PLACES);
        let Ok(bytes) = read(&mut self.store, at_of(place), PLACE_LEN) else { return };
        let known = &mut self.may_be[place as usize];
        let (seed, value) = (self.seed, bytes[0]);
        assert!(bytes.iter().all(|byte| *byte == value), "seed {seed}: {bytes:?}");
        assert!(known.contains(&value), "seed {seed}, place {place}: {value}, and not of {known:?}");
        // An answer of the donors is final from now on; the file's answer holds until they say otherwise.
        if self.store.inner().donors == DonorState::Here {
            *known = vec![value];
        }
    }

    fn flush(&mut self) {
        submit(&mut self.store, 3, Job::Flush);
        let mut finished = Vec::new();
        while finished.is_empty() {
            self.store.turn();
            self.pool.work();
            self.store.poll(&mut finished, 1);
        }
        if finished[0].result.is_ok() {
            self.since_flush.clone_from(&self.may_be);
        }
    }

    /// Kills the server in the middle of its work, with or without its machine, and starts another.
    fn die(&mut self) {
        let writes = self.random.below(12);
        self.disk.die_after(writes);
        // Without donors or without a file nothing is written, so the loop is bounded.
        for _ in 0..50 {
            if self.disk.is_dead() {
                break;
            }
            self.change(false);
            if self.random.below(3) == 0 {
                self.store.turn();
                self.pool.work();
            }
        }
        self.disk.die_after(0);
        let has_power = self.random.below(2) == 0;
        let (image, expected) = match has_power {
            true => (self.disk.after_a_crash(), &self.may_be),
            false => (self.disk.after_a_loss_of_power(&mut self.random), &self.since_flush),
        };
        let is_complete = says_complete(&image).expect("the trailer is intact, whatever happens");
        for (place, expected) in (0..PLACES).zip(expected).filter(|_| is_complete) {
            let bytes = &image[at_of(place) as usize..][..PLACE_LEN];
            let (seed, value) = (self.seed, bytes[0]);
            assert!(bytes.iter().all(|byte| *byte == value), "seed {seed}: {bytes:?}");
            assert!(
                expected.contains(&value),
                "seed {seed}, {has_power}, place {place}: {value}, and not of {expected:?}"
            );
        }
        COMPLETE.with(|count| count.set(count.get() + u64::from(is_complete)));
        let (disk, pool) = (Disk::of(image), Arc::clone(&self.pool));
        pool.drop_jobs();
        let next = on(&disk, Remote::new(), &self.clock, &pool);
        let (mut remote, _) = std::mem::replace(&mut self.store, next).into_inner();
        remote.forget_all();
        self.disk = disk;
        // The donors have what they had, or what another writer has made of it since.
        if self.random.below(2) == 0 {
            let place = self.random.below(PLACES);
            let value = 1 + self.random.below(255) as u8;
            remote.change(at_of(place), &[value; PLACE_LEN]);
            self.may_be[place as usize] = vec![value];
        }
        *self.store.inner_mut() = remote;
        // The file promises nothing before everything is copied.
        self.since_flush.clone_from(&self.may_be);
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=7 => self.change(true),
            8..=13 => self.read(),
            14 => self.store.inner_mut().donors = DonorState::Gone,
            15 if self.random.below(4) == 0 => self.store.inner_mut().donors = DonorState::Silent,
            15 | 16 => self.store.inner_mut().donors = DonorState::Here,
            17 => self.clock.advance(RETRY_NS),
            18 => self.flush(),
            19 => {
                self.pool.work();
            }
            20 => run_until_idle(&mut self.store),
            21 if self.random.below(8) == 0 => self.die(),
            21 if self.random.below(20) == 0 => self.disk.fill_up(),
            _ => {
                self.store.turn();
            }
        }
    }
}

thread_local! {
    /// Images whose trailer said that the copy was complete.
    static COMPLETE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[test]
fn whatever_comes_and_goes_and_dies_nobody_finds_what_was_not_written() {
    for seed in 0..200 {
        let mut run = Run::new(seed);
        (0..500).for_each(|_| run.step());
    }
    let complete = COMPLETE.with(std::cell::Cell::get);
    assert!(complete > 100, "{complete} images said that all is there");
}
