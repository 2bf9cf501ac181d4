//! A model of verbs: all queue pairs of a world behind one lock, whose work is performed a step at a time by any thread
//! that polls or waits. It exists to check the suite, so it can be told to break a rule ([`Flaw`]).

mod handles;
mod world;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sinew_fabric::verbs::{Attributes, Status};

use world::State;

/// A rule that the model breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    CorruptsMessages,
    MakesUpImmediates,
    WritesAByteMore,
    WritesToTheFirstRegion,
    WritesAfterTheReceive,
    ReadsFromElsewhere,
    AtomicsReturnTheNewWord,
    TakesReadsOnUc,
    CompletesOutOfOrder,
    FillsTheLastReceive,
    WritesLate,
    IgnoresFences,
    TakesMoreInline,
    CopiesWhenPushed,
    KeepsSources,
    ReadsThawedSources,
    GathersBackwards,
    LeavesBuffersLong,
    TakesForeignBuffers,
    KnowsArenasAlone,
    StaysRegistered,
    TakesMorePieces,
    TakesBadSlices,
    TellsEverything,
    KeepsFailuresToItself,
    KeepsTargets,
    TakesOneMore,
    FreesPlacesEarly,
    StartsWhenPushed,
    StartsOneAtATime,
    FailsWithoutReceive,
    WaitsForEver,
    KeepsUnreliableMessages,
    CutsLongMessages,
    IgnoresAccess,
    IgnoresBounds,
    IgnoresKeys,
    IgnoresDomains,
    StaysExposed,
    GoesOnAfterAFailure,
    ExposesWhatWasThere,
    TakesMisalignedAtomics,
    LosesAdditions,
    SwapsAlways,
    SplitsAtomics,
    TearsWords,
    WritesInDescendingOrder,
    TakesEverythingAlways,
    GoesAnywhere,
    ConnectsToAnything,
    IsDeafUntilReadyToSend,
    FlushesRequestsOnly,
    ForgetsWhenReset,
    HearsFormerPeers,
    ReachesPeersInError,
    NamesTheWrongQueuePair,
    CompletesReceivesWithRequests,
    Overbooks,
    PollsTooMuch,
    ForgetsSenders,
    AnswersToItself,
    IgnoresQkeys,
    SendsLongDatagrams,
    NeedsNoDestination,
    FindsAnybody,
    OverlooksDeath,
    ServesTheDead,
    FailsDatagramsToNobody,
    SleepsOn,
    Oversleeps,
    IgnoresWakes,
    LosesWakes,
    LeavesDescriptorsDark,
    ArmsWithoutALook,
    StaysReadable,
    LosesRoom,
    TellsOfTheDead,
}

/// Options of the model where fabrics differ.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub flaw: Option<Flaw>,
    /// Whether every third message over an unreliable transport is lost.
    pub is_lossy: bool,
    pub notices_death: bool,
    /// Whether a UC or UD message that does not fit is reported to its receiver, and breaks a UC queue pair.
    pub reports_misfits: bool,
    pub has_atomics: bool,
}

impl Options {
    pub const PLAIN: Self =
        Self { flaw: None, is_lossy: false, notices_death: true, reports_misfits: true, has_atomics: true };
}

/// A device of the model, and its world.
#[derive(Clone)]
pub struct Model(Arc<World>);

struct World {
    state: Mutex<State>,
    changed: Condvar,
    attributes: Attributes,
    options: Options,
}

impl Model {
    pub fn new(options: Options) -> Self {
        let attributes = Attributes {
            name: "model".into(),
            mtu: 1024,
            message_len_max: 1 << 22,
            inline_max: 128,
            gather_max: 4,
            queue_depth_max: 256,
            reads_max: 16,
            atomics: options.has_atomics,
            line_rate_bps: None,
        };
        let state = Mutex::new(State::new(options));
        Self(Arc::new(World { state, changed: Condvar::new(), attributes, options }))
    }

    /// Breaks every queue pair, as a failing device does.
    pub fn break_queue_pairs(&self) {
        let mut state = self.state();
        let numbers: Vec<u32> = state.qps.keys().copied().collect();
        numbers.into_iter().for_each(|number| state.fail(number, Status::Flushed));
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.0.options.flaw == Some(flaw)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
