//! Options of a call and of a session.
//!
//! # Design
//!
//! A call with options is a message that begins with them: eight bytes, in a packet kind of their own, so that plain
//! calls stay the same to the byte (`sinew_wire::options`). The options carry a deadline as remaining time, which is
//! written when the packet leaves, and again when it is retransmitted. Both sides end the call when the deadline
//! passes, and a request whose deadline passes before it leaves is never sent. After checking the deadlines of many
//! calls, the endpoint checks none for a while, so that turns have time for other work. The server stores a deadline
//! where it is needed: with a request that is arriving, with a call that is kept, and, for the handler, with the
//! last request that came. Such calls take the fast path too.
//!
//! Cost, in batches of 8 (`cargo xtask cost`): a call of 24 B, which with its options is one line of a ring, costs 8
//! instructions more at the client and 34 at the server. One of 32 B is two lines, and costs 171 and 109 more; a plain
//! call of 40 B costs 188 and 183 more than one of 32 B. (The time could be packed into 16 bits of the header, which
//! would save the line, but leave no room for anything else.)
//!
//! When a session opens, each side says what it can take besides plain calls (`sinew_wire::management::Features`). A
//! server that knows no options gets plain calls, whose deadlines only the client enforces. So later additions need no
//! new version number, for which the header has no room left.

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

    /// Returns the time at which the caller stops waiting, if there is one.
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
