//! What a caller says of a call beside its request, and of a session beside its address.

use crate::lanes::LaneId;

/// In place of a time: never.
const NEVER: u64 = u64::MAX;

/// A call's options: its tag, its lane, and how long its caller waits. A plain number is a tag alone.
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
    /// A call whose completion carries `tag`, which means nothing here.
    #[inline(always)]
    pub const fn tag(tag: u64) -> Self {
        Self { tag, lane: LaneId::MAIN, timeout_ns: NEVER, deadline_ns: NEVER }
    }

    /// The completion goes to this [lane](LaneId).
    #[must_use]
    #[inline(always)]
    pub const fn lane(self, lane: LaneId) -> Self {
        Self { lane, ..self }
    }

    /// The caller waits for so long, in nanoseconds from now on: then the call ends, at both sides, with
    /// [`Cause::DeadlinePassed`](crate::Cause::DeadlinePassed). The remaining time goes to the server with the request, so that it
    /// need not begin what nobody waits for.
    #[must_use]
    #[inline(always)]
    pub const fn timeout_ns(self, timeout_ns: u64) -> Self {
        Self { timeout_ns, ..self }
    }

    /// As [`Self::timeout_ns`], up to a time on the endpoint's clock ([`crate::Rpc::now_ns`], [`crate::Call::now_ns`]): for a call on behalf
    /// of another, whose deadline it inherits. With both, the earlier holds.
    #[must_use]
    #[inline(always)]
    pub const fn deadline_ns(self, deadline_ns: u64) -> Self {
        Self { deadline_ns, ..self }
    }

    #[inline(always)]
    pub(crate) fn is_timed(&self) -> bool {
        self.timeout_ns & self.deadline_ns != NEVER
    }

    /// When the caller waits no longer.
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

/// How a session is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    pub(crate) lane: LaneId,
    pub(crate) call_back: u16,
}

impl ConnectOptions {
    /// As [`crate::Rpc::begin_connect`] opens one.
    pub const fn new() -> Self {
        Self { lane: LaneId::MAIN, call_back: 0 }
    }

    /// What becomes of the session is told to this [lane](LaneId), and it ends when the lane is closed. Any lane's calls may go over it.
    #[must_use]
    pub const fn lane(self, lane: LaneId) -> Self {
        Self { lane, ..self }
    }

    /// The server may call this endpoint over the session ([`crate::Rpc::session_to`]), and the endpoint's handlers answer, as they do any
    /// call. So many packets of these calls, at most, may be on their way to either side: they commit receive capacity of both, up to
    /// half of what there is for the session, and a session that takes calls counts as two. With 0, as by default, the server gets
    /// [`CallBackError::NotTaken`](crate::CallBackError::NotTaken).
    #[must_use]
    pub const fn call_back(self, credits: u16) -> Self {
        Self { call_back: credits, ..self }
    }
}
