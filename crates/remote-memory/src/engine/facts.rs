//! Facts about engines that hold over every path, as one suite that each path's tests instantiate: `engine_tests!(...)`
//! with a [`TestSetup`].

mod ends;
mod limits;
mod order;
mod random;
mod sharing;

use std::collections::HashMap;

use sinew_mem::atomic::Arc;
use sinew_mem::{Arena, MessageBuffer};

use super::{Admission, Engine, EngineConfig, Finished, Op, Path, Refused, Request, Shared, SharedConfig, Unlimited};

pub use ends::*;
pub use limits::*;
pub use order::*;
pub use random::*;
pub use sharing::*;

/// A donor, and paths to it, all of the calling thread.
pub trait TestSetup {
    /// The path under test.
    type Path: Path;

    /// Bytes of the donor's memory: at least 4 MB.
    fn len(&self) -> u64;

    /// Whether the donor's memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Arena whose buffers the paths use as they are.
    fn arena(&self) -> &Arena;

    /// Makes one more path to the donor.
    fn path(&mut self) -> Self::Path;

    /// The time now, in ns.
    fn now_ns(&self) -> u64;

    /// Lets the donor do its work, and some time pass.
    fn advance(&mut self);

    /// Copies the donor's memory from `at` on into `bytes`.
    fn read_donor(&self, at: u64, bytes: &mut [u8]);

    /// Kills the donor.
    fn kill_donor(&mut self);
}

/// Time within which everything must be over, in [passes](TestSetup::advance).
const TURNS_MAX: usize = 1_000_000;

/// Engines of one donor, on one setup.
pub(super) struct EngineGroup<'a, G: TestSetup> {
    pub setup: &'a mut G,
    pub shared: Arc<Shared>,
    pub engines: Vec<Engine<G::Path>>,
    pub finished: HashMap<u64, Finished>,
    tags: u64,
}

impl<'a, G: TestSetup> EngineGroup<'a, G> {
    pub fn new(setup: &'a mut G, engines: usize, config: EngineConfig) -> Self {
        Self::with(setup, engines, config, Unlimited)
    }

    pub fn with(setup: &'a mut G, engines: usize, config: EngineConfig, admission: impl Admission + 'static) -> Self {
        let shared = Shared::new("the donor", setup.len(), admission, SharedConfig::default());
        let engines = (0..engines).map(|_| Engine::new(&shared, setup.path(), config)).collect();
        Self { setup, shared, engines, finished: HashMap::new(), tags: 0 }
    }

    pub fn buffer(&self, len: usize) -> MessageBuffer {
        self.setup.arena().alloc(len, len.max(1)).expect("the setup's arena has room")
    }

    pub fn submit(&mut self, engine: usize, op: Op) -> u64 {
        self.try_submit(engine, op).expect("the request is valid")
    }

    #[allow(clippy::result_large_err)]
    pub fn try_submit(&mut self, engine: usize, op: Op) -> Result<u64, Refused> {
        self.tags += 1;
        self.engines[engine].submit(Request { tag: self.tags, op })?;
        Ok(self.tags)
    }

    pub fn write(&mut self, engine: usize, at: u64, bytes: &[u8]) -> u64 {
        let mut buffer = self.buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        self.submit(engine, Op::Write { at, source: buffer.freeze().into() })
    }

    pub fn read(&mut self, engine: usize, at: u64, len: usize) -> u64 {
        let mut target = self.buffer(len);
        target[..].fill(0xEE);
        self.submit(engine, Op::Read { at, target })
    }

    /// Turns one engine, and collects its finished requests.
    pub fn turn(&mut self, engine: usize) -> bool {
        let busy = self.engines[engine].turn(self.setup.now_ns());
        self.collect(engine);
        busy
    }

    fn collect(&mut self, engine: usize) {
        let mut finished = Vec::new();
        self.engines[engine].poll(&mut finished, usize::MAX);
        for one in finished {
            let tag = one.tag;
            assert!(self.finished.insert(tag, one).is_none(), "request {tag} is finished twice");
        }
    }

    /// Turns these engines until all requests are finished.
    pub fn finish_with(&mut self, engines: &[usize]) {
        for _ in 0..TURNS_MAX {
            engines.iter().for_each(|engine| {
                self.turn(*engine);
            });
            if self.shared.unfinished() == 0 {
                // Other engines may have finished their requests last.
                (0..self.engines.len()).for_each(|engine| {
                    self.turn(engine);
                });
                return;
            }
            self.setup.advance();
        }
        panic!("{} requests did not finish", self.shared.unfinished());
    }

    pub fn finish(&mut self) {
        let all: Vec<usize> = (0..self.engines.len()).collect();
        self.finish_with(&all);
    }

    /// Bytes of a read that succeeded.
    pub fn bytes(&self, tag: u64) -> &[u8] {
        let one = &self.finished[&tag];
        assert_eq!(one.result, Ok(()), "request {tag}");
        one.target.as_deref().expect("the request is a read")
    }

    pub fn all_good(&self) {
        for (tag, one) in &self.finished {
            assert_eq!(one.result, Ok(()), "request {tag}");
        }
        assert_eq!(self.finished.len() as u64, self.tags, "every request is finished once");
    }

    pub fn donor_has(&self, at: u64, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        self.setup.read_donor(at, &mut bytes);
        assert!(bytes == expected, "the donor's memory at {at}");
    }
}

/// Bytes that are determined by a number.
pub(super) fn pattern(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(at * 0x0101_0301) >> 13) as u8)
        .collect()
}

/// Instantiates the suite: a test for each fact, on a setup of its own.
#[macro_export]
macro_rules! engine_tests {
    ($setup:expr) => {
        $crate::engine_tests!($setup;
            bytes_come_as_they_were_written
            a_read_sees_every_write_that_was_submitted_before_it
            of_overlapping_writes_the_last_stays
            what_overlaps_nothing_passes_what_waits
            a_lone_request_is_posted_at_once
            whoever_turns_first_takes_all
            what_gathers_while_the_window_is_full_is_merged
            modes_differ_in_operations_and_doorbells
            as_many_pieces_as_a_path_takes_are_gathered_and_more_are_copied
            a_turn_takes_as_many_as_a_chain_may_have
            what_is_longer_than_an_operation_is_cut
            the_window_admits_its_bytes_and_one_request_always
            what_cannot_be_done_is_refused
            foreign_buffers_are_copied
            an_engine_that_is_dropped_loses_nobodys_requests
            what_a_dropped_engine_had_in_flight_is_over_for_everybody
            a_dead_donor_ends_every_request_with_its_name
            what_is_read_is_what_an_array_would_have
        );
    };
    ($setup:expr; $($fact:ident)*) => {
        $(
            #[test]
            fn $fact() {
                $crate::engine::facts::$fact(&mut $setup);
            }
        )*
    };
}
