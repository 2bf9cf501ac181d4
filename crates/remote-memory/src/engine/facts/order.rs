//! Facts about the order of overlapping requests.

use super::{EngineGroup, TestSetup, pattern};
use crate::engine::{EngineConfig, Mode};

/// This holds for any length and any offset.
pub fn bytes_come_as_they_were_written(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::new(setup, 1, EngineConfig::default());
    let mut at = 3;
    for len in [1, 7, 8, 9, 63, 512, 4095, 4096, 4097, 65_536, 1 << 20] {
        let bytes = pattern(len as u64, len);
        crew.write(0, at, &bytes);
        let read = crew.read(0, at, len);
        crew.finish();
        assert!(crew.bytes(read) == bytes, "{len} bytes at {at}");
        crew.donor_has(at, &bytes);
        at += len as u64 + 5;
    }
    crew.all_good();
}

/// This holds whichever engine a write is submitted to, and whichever engine posts it.
pub fn a_read_sees_every_write_that_was_submitted_before_it(setup: &mut impl TestSetup) {
    for mode in Mode::ALL {
        let mut crew = EngineGroup::new(setup, 3, EngineConfig { mode, ..EngineConfig::default() });
        let mut reads = Vec::new();
        for number in 0..40 {
            let bytes = pattern(number, 4096);
            let at = 10_000 + 100 * number;
            crew.write(number as usize % 2, at, &bytes);
            reads.push((crew.read(2, at, 4096), bytes.clone()));
            reads.push((crew.read(1, at + 4000, 96), bytes[4000..].to_vec()));
        }
        // An engine that submitted no write turns first.
        for _ in 0..3 {
            crew.turn(2);
        }
        crew.finish();
        for (read, bytes) in reads {
            assert!(crew.bytes(read) == bytes, "{mode:?}: read {read}");
        }
        crew.all_good();
        assert!(crew.shared.stats().ordered > 0);
    }
}

/// This holds whichever engine turns first.
pub fn of_overlapping_writes_the_last_stays(setup: &mut impl TestSetup) {
    for mode in Mode::ALL {
        let mut crew = EngineGroup::new(setup, 4, EngineConfig { mode, ..EngineConfig::default() });
        let mut expected = vec![0; 100_000];
        crew.write(0, 0, &expected);
        for number in 0..60u64 {
            let (at, len) = ((number * 7_919 % 60_000) as usize, 1 + (number as usize * 977) % 40_000);
            let bytes = pattern(number, len);
            expected[at..at + len].copy_from_slice(&bytes);
            crew.write(number as usize % 4, at as u64, &bytes);
            crew.turn((number as usize * 7 + 3) % 4);
        }
        crew.finish();
        crew.all_good();
        crew.donor_has(0, &expected);
    }
}

/// A write waits for an earlier one; requests elsewhere do not wait for it.
pub fn what_overlaps_nothing_passes_what_waits(setup: &mut impl TestSetup) {
    let mut crew = EngineGroup::new(setup, 1, EngineConfig { mode: Mode::Doorbell, ..EngineConfig::default() });
    crew.write(0, 0, &[1; 100]);
    crew.write(0, 50, &[2; 100]);
    crew.read(0, 1000, 8);
    // Reads do not wait for reads.
    crew.read(0, 1004, 8);
    assert!(crew.turn(0));
    assert_eq!(crew.engines[0].in_flight(), 3);
    assert_eq!(crew.shared.unfinished(), 4);
    crew.finish();
    crew.all_good();
    crew.donor_has(49, &[1, 2]);
}
