//! Options of a call and of a session.

use crate::lanes::LaneId;

/// Stands for a time that never comes.
const NEVER: u64 = u64::MAX;

/// A call's options: its tag, its lane, and how long its caller waits. A plain number converts to a tag alone.
///
/// ```
/// use sinew_rpc::CallOptions;
///
/// let plain: CallOptions = 7.into();
/// assert_eq!(plain, CallOptions::tag(7));
/// let patient = CallOptions::tag(7).timeout_ns(2_000_000);
/// assert_ne!(plain, patient);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    pub(crate) tag: u64,
    pub(crate) lane: LaneId,
    timeout_ns: u64,
    deadline_ns: u64,
}

impl CallOptions {
    /// A call whose completion carries `tag`, which the endpoint does not interpret.
    #[inline(always)]
    pub const fn tag(tag: u64) -> Self {
        Self { tag, lane: LaneId::MAIN, timeout_ns: NEVER, deadline_ns: NEVER }
    }

    /// Sends the completion to this [lane](LaneId).
    #[must_use]
    #[inline(always)]
    pub const fn lane(self, lane: LaneId) -> Self {
        Self { lane, ..self }
    }

    /// Limits the time for which the caller waits, in ns from when the call is enqueued. Then the call ends, at both
    /// sides, with [`Cause::DeadlinePassed`](crate::Cause::DeadlinePassed). The request carries the remaining time to
    /// the server, which need not begin a request that nobody waits for.
    #[must_use]
    #[inline(always)]
    pub const fn timeout_ns(self, timeout_ns: u64) -> Self {
        Self { timeout_ns, ..self }
    }

    /// As [`Self::timeout_ns`], but until a time on the endpoint's clock ([`crate::Rpc::now_ns`],
    /// [`crate::Call::now_ns`]): for a call that is made on behalf of another and inherits its deadline. With both, the
    /// earlier one holds.
    #[must_use]
    #[inline(always)]
    pub const fn deadline_ns(self, deadline_ns: u64) -> Self {
        Self { deadline_ns, ..self }
    }

    #[inline(always)]
    pub(crate) fn is_timed(&self) -> bool {
        self.timeout_ns & self.deadline_ns != NEVER
    }

    /// Returns the time from which on the caller no longer waits, if there is one.
    #[inline(always)]
    pub(crate) fn ends_ns(&self, now_ns: u64) -> Option<u64> {
        self.is_timed().then(|| self.deadline_ns.min(now_ns.saturating_add(self.timeout_ns)))
    }
}

impl Default for CallOptions {
    fn default() -> Self {
        Self::tag(0)
    }
}

impl From<u64> for CallOptions {
    #[inline(always)]
    fn from(tag: u64) -> Self {
        Self::tag(tag)
    }
}

/// Options of a session that is being opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    pub(crate) lane: LaneId,
    pub(crate) call_back: u16,
}

impl ConnectOptions {
    /// Options as [`crate::Rpc::begin_connect`] uses them.
    pub const fn new() -> Self {
        Self { lane: LaneId::MAIN, call_back: 0 }
    }

    /// Reports the session's events to this [lane](LaneId), and ends the session when the lane is closed. Calls of any
    /// lane may use the session.
    #[must_use]
    pub const fn lane(self, lane: LaneId) -> Self {
        Self { lane, ..self }
    }

    /// Lets the server call this endpoint over the session ([`crate::Rpc::session_to`]); the endpoint's handlers answer
    /// such calls like any others. At most `credits` packets of these calls may be in flight, in each direction. They
    /// commit receive capacity of both sides, up to half of what there is for the session, and a session that takes
    /// calls counts as two. With 0, the default, the server gets
    /// [`CallBackError::NotTaken`](crate::CallBackError::NotTaken).
    #[must_use]
    pub const fn call_back(self, credits: u16) -> Self {
        Self { call_back: credits, ..self }
    }
}
