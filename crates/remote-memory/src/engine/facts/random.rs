//! Random requests, checked against a plain array.

use std::collections::HashMap;

use sinew_fabric::{Generator, SeededGenerator};

use super::{EngineGroup, TestSetup, pattern};
use crate::engine::{AdaptiveWindow, Admission, EngineConfig, Mode, StaticWindow, Unlimited};

/// Requests in a run.
const REQUESTS: u64 = 300;
/// Bytes of memory that the requests touch.
const SPAN: u64 = 3 << 20;

/// This holds in all modes and windows, with several engines.
pub fn what_is_read_is_what_an_array_would_have(setup: &mut impl TestSetup) {
    for seed in 0..24 {
        run_seed(setup, seed);
    }
}

fn admission(random: &mut SeededGenerator) -> Box<dyn Admission> {
    match random.below(4) {
        0 => Box::new(Unlimited),
        1 => Box::new(AdaptiveWindow::new(8192, 1, 1 << 20)),
        2 => Box::new(StaticWindow { bytes: 1 + random.below(4096) }),
        _ => Box::new(StaticWindow { bytes: 1 + random.below(2 << 20) }),
    }
}

/// Makes one run, which the seed alone determines.
///
/// # Panics
///
/// If a read returns other bytes than the array has; the message names the seed.
pub fn run_seed(setup: &mut impl TestSetup, seed: u64) {
    let mut random = SeededGenerator::new(seed);
    let config = EngineConfig {
        mode: Mode::ALL[seed as usize % 4],
        chain_max: 1 + random.below(20) as usize,
        merged_len_max: 1 + random.below(100_000) as usize,
        copied_piece_max: random.below(6000) as usize,
        fragment_len: if random.below(3) == 0 { 3000 + random.below(100_000) as usize } else { usize::MAX },
    };
    let engines = 1 + random.below(4) as usize;
    let admission = admission(&mut random);
    let mut crew = EngineGroup::with(setup, engines, config, admission);
    let mut array = vec![0; SPAN as usize];
    crew.setup.read_donor(0, &mut array);
    let mut expected = HashMap::new();
    // Most requests lie close together, so that they overlap and are adjacent.
    let near = random.below(SPAN - 70_000);
    for number in 0..REQUESTS {
        let engine = random.below(engines as u64) as usize;
        let len = match random.below(40) {
            0 => 1 + random.below(1 << 20),
            1..10 => 1 + random.below(9000),
            10..16 => 1 + random.below(40),
            _ => 512 << random.below(5),
        };
        let at = if random.below(4) == 0 { random.below(SPAN - len + 1) } else { near + 512 * random.below(128) };
        let at = at.min(SPAN - len);
        let range = at as usize..(at + len) as usize;
        if random.below(2) == 0 {
            let bytes = pattern(seed << 32 | number, len as usize);
            crew.write(engine, at, &bytes);
            array[range].copy_from_slice(&bytes);
        } else {
            expected.insert(crew.read(engine, at, len as usize), array[range].to_vec());
        }
        while random.next_u64() & 1 == 0 {
            let engine = random.below(engines as u64) as usize;
            crew.turn(engine);
            if random.below(3) == 0 {
                crew.setup.advance();
            }
        }
        // Checks finished reads now and then, so that not all of them are kept.
        if number % 64 == 63 {
            crew.finish();
            check(&mut crew, &mut expected, seed);
        }
    }
    crew.finish();
    check(&mut crew, &mut expected, seed);
    assert!(expected.is_empty(), "seed {seed}");
    crew.donor_has(0, &array);
    let stats = crew.shared.stats();
    assert_eq!((stats.reads + stats.writes, stats.failed), (REQUESTS, 0), "seed {seed}");
    assert_eq!((crew.shared.unfinished(), crew.shared.in_flight_bytes()), (0, 0), "seed {seed}");
}

fn check<G: TestSetup>(crew: &mut EngineGroup<'_, G>, expected: &mut HashMap<u64, Vec<u8>>, seed: u64) {
    for (tag, one) in std::mem::take(&mut crew.finished) {
        assert_eq!(one.result, Ok(()), "seed {seed}: request {tag}");
        assert_eq!(one.target.is_some(), expected.contains_key(&tag), "seed {seed}: request {tag}");
        if let (Some(target), Some(bytes)) = (one.target, expected.remove(&tag)) {
            assert!(*target == *bytes, "seed {seed}: read {tag}");
        }
    }
}
