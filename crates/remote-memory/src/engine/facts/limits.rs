//! Facts about each limit, on both sides of it.

use sinew_mem::Arena;

use super::{EngineGroup, TestSetup, pattern};
use crate::engine::{Engine, Request};
use crate::engine::{EngineConfig, Mode, Op, Path, Refused, Shared, SharedConfig, StaticWindow, Unlimited};

/// Further pieces are copied if they are small enough, and otherwise take more operations.
pub fn as_many_pieces_as_a_path_takes_are_gathered_and_more_are_copied(setup: &mut impl TestSetup) {
    let pieces_max = setup.path().limits().pieces_max as u64;
    for (pieces, copied_piece_max, operations, copied) in [
        (pieces_max, 4096, 1, 0),
        (pieces_max + 1, 4096, 1, pieces_max + 1),
        (pieces_max + 1, 4095, 2, 0),
        (2 * pieces_max + 1, 0, 3, 0),
    ] {
        for is_write in [true, false] {
            let mut crew = EngineGroup::new(setup, 1, EngineConfig { copied_piece_max, ..EngineConfig::default() });
            let at = 1 << 20;
            if !is_write {
                crew.write(0, at, &pattern(pieces, 4096 * pieces as usize));
                crew.finish();
            }
            let before = crew.shared.stats();
            let mut reads = Vec::new();
            let all = pattern(pieces, 4096 * pieces as usize);
            for (number, bytes) in (0..).zip(all.chunks(4096)) {
                let at = at + 4096 * number;
                if is_write {
                    crew.write(0, at, bytes);
                } else {
                    reads.push((crew.read(0, at, 4096), bytes));
                }
            }
            crew.finish();
            crew.all_good();
            crew.donor_has(at, &all);
            reads.iter().for_each(|(read, bytes)| assert!(crew.bytes(*read) == *bytes));
            let stats = crew.shared.stats();
            let found = stats.read_ops + stats.write_ops - before.read_ops - before.write_ops;
            assert_eq!((found, stats.copied), (operations, copied), "{pieces} pieces of {pieces_max}, {is_write}");
        }
    }
}

/// The limit is the paper's MAX_CHAINING_SIZE.
pub fn a_turn_takes_as_many_as_a_chain_may_have(setup: &mut impl TestSetup) {
    for (requests, first, second) in [(8, 8, 0), (9, 8, 1)] {
        let config = EngineConfig { mode: Mode::Doorbell, chain_max: 8, ..EngineConfig::default() };
        let mut crew = EngineGroup::new(setup, 1, config);
        for number in 0..requests {
            crew.read(0, 8192 * number, 4096);
        }
        crew.turn(0);
        let stats = crew.shared.stats();
        assert_eq!((stats.read_ops, stats.doorbells, stats.chained), (first, 1, first - 1));
        crew.finish();
        crew.all_good();
        let stats = crew.shared.stats();
        assert_eq!((stats.read_ops, stats.doorbells), (first + second, 1 + second));
    }
}

/// A fragmented read arrives whole.
pub fn what_is_longer_than_an_operation_is_cut(setup: &mut impl TestSetup) {
    for (len, fragments) in [(10_000, 1), (10_001, 2), (20_000, 2), (95_003, 10)] {
        let mut crew = EngineGroup::new(setup, 1, EngineConfig { fragment_len: 10_000, ..EngineConfig::default() });
        let bytes = pattern(len as u64, len);
        crew.write(0, 77, &bytes);
        let read = crew.read(0, 77, len);
        crew.finish();
        crew.all_good();
        assert!(crew.bytes(read) == bytes);
        crew.donor_has(77, &bytes);
        let stats = crew.shared.stats();
        assert_eq!((stats.write_ops, stats.read_ops), (fragments, fragments), "{len} bytes");
    }
}

/// A request longer than the window is sent when nothing else is in flight.
pub fn the_window_admits_its_bytes_and_one_request_always(setup: &mut impl TestSetup) {
    for (window, in_flight) in [(8192, 8192), (8191, 4096), (1, 4096), (0, 4096)] {
        let config = EngineConfig { mode: Mode::Doorbell, ..EngineConfig::default() };
        let mut crew = EngineGroup::with(setup, 1, config, StaticWindow { bytes: window });
        for number in 0..3 {
            crew.read(0, 65_536 * number, 4096);
        }
        crew.turn(0);
        assert_eq!(crew.shared.in_flight_bytes(), in_flight, "a window of {window}");
        crew.finish();
        crew.all_good();
        assert!(crew.shared.stats().held_back > 0 && crew.shared.in_flight_bytes() == 0);
    }
}

/// The refusal is immediate, and returns the request.
pub fn what_cannot_be_done_is_refused(setup: &mut impl TestSetup) {
    let len = setup.len();
    let mut crew = EngineGroup::new(setup, 1, EngineConfig::default());
    let read = crew.read(0, len - 8, 8);
    for (at, bytes) in [(len - 8, 9), (len, 1), (u64::MAX, 1), (u64::MAX - 3, 8)] {
        let target = crew.buffer(bytes);
        let refused = crew.engines[0].submit(Request { tag: 99, op: Op::Read { at, target } }).unwrap_err();
        assert!(matches!(&refused, Refused::OutOfRange { .. }), "{refused:?}");
        assert_eq!((refused.into_request().tag, at), (99, at));
    }
    let mut source = sinew_fabric::verbs::Slice::from(crew.buffer(8).freeze());
    source.start = 1;
    let refused = crew.engines[0].submit(Request { tag: 98, op: Op::Write { at: 0, source } }).unwrap_err();
    assert!(matches!(refused, Refused::BadSlice { .. }));
    // Empty requests are allowed, up to the very end.
    crew.read(0, len, 0);
    crew.write(0, len, &[]);
    crew.finish();
    crew.all_good();
    assert_eq!(crew.bytes(read).len(), 8);
    drop(crew);

    let shared = Shared::new("the donor", len, Unlimited, SharedConfig { depth: 3 });
    let mut engine = Engine::new(&shared, setup.path(), EngineConfig::default());
    let arena = setup.arena().clone();
    let op = || Op::Read { at: 0, target: arena.alloc(8, 8).expect("the arena has room") };
    for tag in 0..3 {
        engine.submit(Request { tag, op: op() }).expect("there is room");
    }
    let refused = engine.submit(Request { tag: 3, op: op() }).unwrap_err();
    assert!(matches!(refused, Refused::Busy { depth: 3, .. }), "{refused:?}");
    let mut finished = Vec::new();
    while finished.len() < 3 {
        engine.turn(setup.now_ns());
        engine.poll(&mut finished, 1);
        setup.advance();
    }
    engine.submit(refused.into_request()).expect("there is room again");
}

/// The buffers are of an arena that no device has registered.
pub fn foreign_buffers_are_copied(setup: &mut impl TestSetup) {
    let foreign = Arena::private(1 << 20).expect("the arena can be mapped");
    let mut crew = EngineGroup::new(setup, 1, EngineConfig::default());
    let mut reads = Vec::new();
    for (number, len) in [(0, 1), (1, 4096), (2, 4096), (3, 100_000)] {
        let bytes = pattern(number, len);
        let mut buffer = foreign.alloc(len, len).expect("the arena has room");
        buffer.copy_from_slice(&bytes);
        let at = 200_000 * number;
        crew.submit(0, Op::Write { at, source: buffer.freeze().into() });
        let target = foreign.alloc(len, len).expect("the arena has room");
        reads.push((crew.submit(0, Op::Read { at, target }), bytes));
    }
    crew.finish();
    crew.all_good();
    for (read, bytes) in reads {
        assert!(crew.bytes(read) == bytes);
        assert!(crew.finished[&read].target.as_ref().is_some_and(|target| target.is_from(&foreign)));
    }
}
