//! Tests of the scheduler against a NIC that completes in any order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::time::{Generator, SeededGenerator};

const LIMITS: ShareLimits =
    ShareLimits { chunk_len: 1000, overhead_len: 24, quantum_len: 2048, outstanding_max_len: 10_240 };

fn class(weight: u32) -> ClassConfig {
    ClassConfig { weight, outstanding_max_len: 10_240, reserve_len: 0 }
}

/// A NIC that completes outstanding chunks in an order of its own.
struct World {
    scheduler: Scheduler,
    outstanding: Vec<Chunk>,
    chance: SeededGenerator,
    /// For each class, the bytes posted.
    sent: Vec<u64>,
    limits: ShareLimits,
    classes: Vec<ClassConfig>,
}

impl World {
    fn new(limits: ShareLimits, classes: &[ClassConfig], seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(limits, classes).unwrap(),
            outstanding: Vec::new(),
            chance: SeededGenerator::new(seed),
            sent: vec![0; classes.len()],
            limits,
            classes: classes.to_vec(),
        }
    }

    /// Posts everything that may go, and checks the bounds.
    fn post(&mut self) -> Vec<Chunk> {
        let mut posted = Vec::new();
        while let Some(chunk) = self.scheduler.next_chunk() {
            self.sent[chunk.class.0] += chunk.len;
            self.outstanding.push(chunk);
            posted.push(chunk);
        }
        let mut reserves = 0;
        for (index, class) in self.classes.iter().enumerate() {
            assert!(self.scheduler.outstanding_len(ClassId(index)) <= class.outstanding_max_len);
            reserves += class.reserve_len;
        }
        assert!(self.scheduler.all_outstanding_len() <= self.limits.outstanding_max_len + reserves);
        posted
    }

    /// Completes an outstanding chunk.
    fn complete(&mut self) -> Option<Chunk> {
        let count = self.outstanding.len() as u64;
        let which = self.chance.below(count) as usize;
        let chunk = (count > 0).then(|| self.outstanding.swap_remove(which))?;
        self.scheduler.completed(chunk.class, chunk.len);
        Some(chunk)
    }

    /// Asserts that the scheduler is work-conserving: anything that waits does so because of a bound.
    fn assert_nothing_waits_in_vain(&self) {
        let all = self.scheduler.all_outstanding_len();
        let chunk = self.scheduler.cost(self.limits.chunk_len);
        for (index, class) in self.classes.iter().enumerate() {
            let is_free = self.scheduler.outstanding_len(ClassId(index)) + chunk <= class.outstanding_max_len
                && all + chunk <= self.limits.outstanding_max_len;
            assert!(!is_free || self.scheduler.waiting(ClassId(index)) == 0, "class {index} waits in vain");
        }
    }
}

#[test]
fn a_request_is_cut_into_chunks_that_make_it_up() {
    let mut world = World::new(LIMITS, &[class(1)], 1);
    world.scheduler.submit(ClassId(0), 7, 2500);
    world.scheduler.submit(ClassId(0), 8, 0);
    let chunk = |id, offset, len, is_last| Chunk { class: ClassId(0), id, offset, len, is_last };
    let all =
        vec![chunk(7, 0, 1000, false), chunk(7, 1000, 1000, false), chunk(7, 2000, 500, true), chunk(8, 0, 0, true)];
    assert_eq!(world.post(), all);
    assert_eq!(world.scheduler.all_outstanding_len(), 2500 + 4 * 24);
    while world.complete().is_some() {}
    assert_eq!(world.scheduler.all_outstanding_len(), 0);
}

#[test]
fn a_small_request_passes_at_once_between_bulk_transfers() {
    let small = ClassConfig { weight: 1, outstanding_max_len: 2048, reserve_len: 1024 };
    let mut world = World::new(LIMITS, &[class(1), small], 1);
    world.scheduler.submit(ClassId(0), 1, 4 << 20);
    assert_eq!(world.post().len(), 10, "all that may be outstanding");
    for id in 0..8 {
        world.scheduler.submit(ClassId(1), 100 + id, 64);
        let posted = world.post();
        assert_eq!(posted.iter().map(|chunk| chunk.id).collect::<Vec<_>>(), [100 + id]);
    }
    // Beyond its reserve it waits as others do.
    (0..8).for_each(|id| world.scheduler.submit(ClassId(1), 200 + id, 64));
    assert_eq!(world.post().len(), 3);
    assert_eq!(world.scheduler.outstanding_len(ClassId(1)), 11 * 88);
}

#[test]
fn a_class_that_passes_by_its_reserve_gets_no_more_than_its_share() {
    let small = ClassConfig { weight: 1, outstanding_max_len: 10_240, reserve_len: 4096 };
    let mut world = World::new(LIMITS, &[class(1), small], 5);
    world.scheduler.submit(ClassId(0), 0, 1 << 30);
    for id in 1..200_000 {
        while world.scheduler.waiting(ClassId(1)) < 20 {
            world.scheduler.submit(ClassId(1), id, 64);
        }
        world.post();
        world.complete();
    }
    // A small request of 64 bytes costs 88, a chunk of 1000 bytes 1024.
    let (bulk, small) = (world.sent[0] * 1024 / 1000, world.sent[1] * 88 / 64);
    assert!(small * 100 <= bulk * 105, "{small} of small requests, {bulk} of bulk");
    assert!(bulk * 100 <= small * 105, "{small} of small requests, {bulk} of bulk");
}

#[test]
fn a_class_whose_queue_pair_is_full_holds_nobody_up() {
    let mut world = World::new(LIMITS, &[class(1), class(1)], 1);
    world.scheduler.submit(ClassId(0), 0, 1000);
    world.scheduler.submit(ClassId(1), 1, 1000);
    assert_eq!(world.scheduler.next_chunk_of(|id| id != 0).map(|chunk| chunk.id), Some(1));
    assert_eq!(world.scheduler.next_chunk_of(|id| id != 0), None);
    assert_eq!(world.scheduler.next_chunk().map(|chunk| chunk.id), Some(0));
}

#[test]
fn what_is_cancelled_is_not_sent() {
    let mut world = World::new(LIMITS, &[class(1)], 1);
    world.scheduler.submit(ClassId(0), 1, 5000);
    world.scheduler.submit(ClassId(0), 2, 10);
    world.scheduler.next_chunk().unwrap();
    assert!(world.scheduler.cancel(ClassId(0), 1) && !world.scheduler.cancel(ClassId(0), 1));
    assert_eq!(world.post().iter().map(|chunk| chunk.id).collect::<Vec<_>>(), [2]);
    assert!(!world.scheduler.cancel(ClassId(9), 1));
}

#[test]
fn both_sides_of_every_limit() {
    let new = |limits, classes: &[ClassConfig]| Scheduler::new(limits, classes).map(|_| ());
    assert_eq!(new(LIMITS, &[class(1); CLASSES_MAX]), Ok(()));
    assert_eq!(new(LIMITS, &[]), Err(ConfigError::Classes(0)));
    assert_eq!(new(LIMITS, &[class(1); CLASSES_MAX + 1]), Err(ConfigError::Classes(CLASSES_MAX + 1)));
    assert_eq!(new(LIMITS, &[class(WEIGHT_MAX)]), Ok(()));
    for weight in [0, WEIGHT_MAX + 1] {
        assert_eq!(new(LIMITS, &[class(weight)]), Err(ConfigError::Weight(weight)));
    }
    assert_eq!(new(ShareLimits { chunk_len: 0, ..LIMITS }, &[class(1)]), Err(ConfigError::Chunk));
    let just = ShareLimits { quantum_len: 1024, outstanding_max_len: 1024, ..LIMITS };
    let bounded = |outstanding_max_len| ClassConfig { outstanding_max_len, ..class(1) };
    assert_eq!(new(just, &[bounded(1024)]), Ok(()));
    let is_bound = |result: Result<(), ConfigError>| matches!(result, Err(ConfigError::Bound { len: 1023, .. }));
    assert!(is_bound(new(ShareLimits { quantum_len: 1023, ..just }, &[bounded(1024)])));
    assert!(is_bound(new(ShareLimits { outstanding_max_len: 1023, ..just }, &[bounded(1024)])));
    assert!(is_bound(new(just, &[bounded(1023)])));
}

proptest! {
    /// Classes that always have something to send share bytes by their weights, within 5 %, whatever the NIC's order.
    #[test]
    fn weights_are_honoured_and_nobody_starves(
        seed: u64,
        weights in prop::collection::vec(1u32..9, 2..6),
        lens in prop::collection::vec(1000u64..100_000, 6),
    ) {
        let classes: Vec<_> = weights.iter().map(|&weight| class(weight)).collect();
        let mut world = World::new(LIMITS, &classes, seed);
        let mut id = 0;
        for _ in 0..20_000 {
            for (index, len) in lens.iter().enumerate().take(classes.len()) {
                while world.scheduler.waiting(ClassId(index)) < 2 {
                    world.scheduler.submit(ClassId(index), id, len.next_multiple_of(1000));
                    id += 1;
                }
            }
            world.post();
            world.complete();
        }
        let all: u64 = world.sent.iter().sum();
        let weight: u64 = weights.iter().copied().map(u64::from).sum();
        for (sent, own) in world.sent.iter().zip(&weights) {
            let fair = all * u64::from(*own) / weight;
            prop_assert!(sent.abs_diff(fair) * 20 <= fair, "{sent} of a fair {fair}: {:?} by {weights:?}", world.sent);
        }
    }

    /// Whatever comes, bounds are kept, nothing waits without a reason, and every request is sent whole, once.
    #[test]
    fn bounds_are_kept_and_no_capacity_is_wasted(
        seed: u64,
        classes in prop::collection::vec((1u32..5, 1024u64..20_000, 0u64..3000), 1..5),
    ) {
        let config = |&(weight, outstanding_max_len, reserve_len): &(u32, u64, u64)| {
            ClassConfig { weight, outstanding_max_len, reserve_len }
        };
        let classes: Vec<_> = classes.iter().map(config).collect();
        let mut world = World::new(LIMITS, &classes, seed);
        let mut chance = SeededGenerator::new(!seed);
        let (mut asked, mut sent) = (HashMap::new(), HashMap::<u64, (u64, bool)>::new());
        for id in 0..300 {
            let class = ClassId(chance.below(classes.len() as u64) as usize);
            let len = chance.next_u64() >> (64 - chance.below(15)).min(63);
            asked.insert(id, len);
            world.scheduler.submit(class, id, len);
            for _ in 0..chance.below(6) {
                for chunk in world.post() {
                    let (offset, is_over) = sent.entry(chunk.id).or_default();
                    prop_assert_eq!((chunk.offset, false), (*offset, *is_over));
                    *offset += chunk.len;
                    *is_over = chunk.is_last;
                }
                world.assert_nothing_waits_in_vain();
                world.complete();
            }
        }
        loop {
            for chunk in world.post() {
                let (offset, is_over) = sent.entry(chunk.id).or_default();
                prop_assert_eq!((chunk.offset, false), (*offset, *is_over));
                *offset += chunk.len;
                *is_over = chunk.is_last;
            }
            if world.complete().is_none() {
                break;
            }
        }
        prop_assert_eq!(sent, asked.into_iter().map(|(id, len)| (id, (len, true))).collect::<HashMap<_, _>>());
        prop_assert_eq!(world.scheduler.all_outstanding_len(), 0);
    }
}
