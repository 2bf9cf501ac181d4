//! Facts about batching: gathered requests become fewer operations.

use super::{EngineGroup, TestSetup, pattern};
use crate::engine::{EngineConfig, Mode, StaticWindow};

/// It does not wait for others.
pub fn a_lone_request_is_posted_at_once(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::new(setup, 2, EngineConfig::default());
    crew.read(0, 4096, 4096);
    assert!(crew.turn(0));
    assert_eq!((crew.engines[0].in_flight(), crew.shared.in_flight_bytes()), (1, 4096));
    assert!(!crew.turn(1), "there is nothing for others");
    crew.finish();
    let stats = crew.shared.stats();
    assert_eq!((stats.reads, stats.read_ops, stats.doorbells, stats.merged), (1, 1, 1, 0));
    assert_eq!((stats.chained, stats.largest_batch, stats.ordered, stats.held_back), (0, 1, 0, 0));
}

/// The others find nothing, and return at once (rdmabox Figure 4). They are told of their own requests.
pub fn whoever_turns_first_takes_all(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::new(setup, 5, EngineConfig::default());
    // The engine that submits the lone request must post it, so it is also the first to turn.
    for engine in [3, 0, 1, 2, 4] {
        crew.write(engine, 4096 * engine as u64, &pattern(engine as u64, 4096));
    }
    assert!(crew.turn(3));
    for engine in [0, 1, 2, 4] {
        assert!(!crew.turn(engine) && crew.engines[engine].in_flight() == 0, "engine {engine}");
    }
    let in_flight = crew.engines[3].in_flight();
    crew.finish_with(&[3]);
    crew.all_good();
    let stats = crew.shared.stats();
    assert_eq!((stats.writes, stats.write_ops, stats.doorbells, stats.largest_batch), (5, in_flight as u64, 1, 5));
    assert_eq!((stats.merged, in_flight), (5, 1));
    for engine in 0..5 {
        crew.donor_has(4096 * engine, &pattern(engine, 4096));
    }
}

/// Admission control gives requests the chance to merge (rdmabox IV-A).
pub fn what_gathers_while_the_window_is_full_is_merged(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::with(setup, 2, EngineConfig::default(), StaticWindow { bytes: 16_384 });
    crew.read(0, 0, 16_384);
    crew.turn(0);
    // The order of submission differs from that of the addresses.
    let reads: Vec<_> =
        [3, 1, 2, 0].map(|page| (page, crew.read((page % 2) as usize, 65_536 + 4096 * page, 4096))).into();
    // An engine that looks before the first request is known to be over finds the window full.
    crew.turn(1);
    assert_eq!((crew.shared.in_flight_bytes(), crew.shared.stats().held_back), (16_384, 1));
    crew.finish();
    crew.all_good();
    for (page, read) in reads {
        let mut expected = [0; 4096];
        crew.setup.read_donor(65_536 + 4096 * page, &mut expected);
        assert!(crew.bytes(read) == expected);
    }
    let stats = crew.shared.stats();
    assert_eq!((stats.reads, stats.read_ops, stats.merged), (5, 2, 4));
}

/// The four modes of Figure 6.
pub fn modes_differ_in_operations_and_doorbells(setup: &mut impl TestSetup) {
    for (mode, operations, doorbells, chained) in
        [(Mode::Single, 6, 6, 0), (Mode::Merge, 3, 3, 0), (Mode::Doorbell, 6, 1, 5), (Mode::Hybrid, 3, 1, 2)]
    {
        let mut crew = EngineGroup::new(setup, 1, EngineConfig { mode, ..EngineConfig::default() });
        // The pages form two adjacent ones, three adjacent ones, and a single one.
        let pages = [5, 20, 21, 4, 22, 40];
        for page in pages {
            crew.write(0, 4096 * page, &pattern(page, 4096));
        }
        crew.turn(0);
        let stats = crew.shared.stats();
        assert_eq!((stats.write_ops, stats.doorbells, stats.chained), (operations, doorbells, chained), "{mode:?}");
        crew.finish();
        crew.all_good();
        pages.iter().for_each(|page| crew.donor_has(4096 * page, &pattern(*page, 4096)));
    }
}
