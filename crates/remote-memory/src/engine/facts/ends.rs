//! Facts about engines that are dropped and donors that die.

use super::{EngineGroup, TestSetup, pattern};
use crate::engine::{EngineConfig, StaticWindow};

/// Requests that a dropped engine had not posted are done by others.
pub fn an_engine_that_is_dropped_loses_nobodys_requests(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::with(setup, 3, EngineConfig::default(), StaticWindow { bytes: 4096 });
    for number in 0..30 {
        crew.write(number % 3, 8192 * number as u64, &pattern(number as u64, 4096));
    }
    let removed = crew.engines.remove(2);
    drop(removed);
    crew.finish();
    for number in 0..30 {
        // Its own requests are done too, but reported to nobody.
        crew.donor_has(8192 * number, &pattern(number, 4096));
        let finished = crew.finished.get(&(number + 1));
        assert_eq!(finished.map(|one| one.result.is_ok()), (number % 3 != 2).then_some(true), "request {number}");
    }
}

/// Such a request succeeds or fails, but always ends. The others go on.
pub fn what_a_dropped_engine_had_in_flight_is_over_for_everybody(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::new(setup, 2, EngineConfig::default());
    let lost: Vec<u64> = (0..10).map(|number| crew.read(0, 8192 * number, 4096)).collect();
    crew.turn(1);
    let waits = crew.write(0, 8192, &pattern(7, 4096));
    drop(crew.engines.remove(1));
    crew.finish();
    for tag in lost {
        let one = &crew.finished[&tag];
        if let Err(error) = &one.result {
            assert_eq!(error.donor(), "the donor");
            assert_eq!(error.cause(), &crate::engine::FailureCause::Dropped);
        }
    }
    assert_eq!(crew.finished[&waits].result, Ok(()));
    crew.donor_has(8192, &pattern(7, 4096));
}

/// This holds for requests in flight, held back by the window, waiting for another, or submitted later.
pub fn a_dead_donor_ends_every_request_with_its_name(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::with(setup, 2, EngineConfig::default(), StaticWindow { bytes: 32_768 });
    let alive = crew.read(0, 0, 4096);
    crew.finish();
    assert_eq!(crew.bytes(alive).len(), 4096);
    crew.setup.kill_donor();
    for number in 0..20 {
        crew.write(number % 2, 2048 * number as u64, &pattern(number as u64, 4096));
    }
    crew.finish();
    assert_eq!(crew.finished.len(), 21);
    let failed = crew.finished.iter().filter(|(tag, _)| **tag != alive);
    for (tag, one) in failed {
        let error = one.result.as_ref().expect_err("the donor is dead");
        assert!(error.to_string().starts_with("donor the donor: "), "{tag}: {error}");
    }
    for engine in [1, 0] {
        let late = crew.read(engine, 0, 8);
        crew.finish();
        assert!(crew.finished[&late].result.is_err());
        assert_eq!(crew.finished[&late].target.as_ref().map(|target| target.len()), Some(8), "buffers come back");
        assert!(crew.engines[engine].error().is_some());
    }
    assert_eq!((crew.shared.unfinished(), crew.shared.in_flight_bytes()), (0, 0));
}
