//! What an endpoint counts.

/// Why a packet that arrived was dropped, each a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PacketDrop {
    /// Shorter than a header, or than its own first packet.
    Truncated,
    /// The first byte is not ours.
    WrongMagic,
    /// Another version of the protocol.
    WrongVersion,
    /// A kind that does not exist.
    UnknownKind,
    /// No session with this key: closed, or never ours, or a wrong token.
    UnknownSession,
    /// The right key from the wrong address.
    WrongSource,
    /// An old request or response, or a duplicate of one that is done.
    Stale,
    /// Not the packet that comes next; reordered packets count as lost (nsdi19 5.3).
    OutOfOrder,
    /// The data is not as long as the message's length and the packet's number demand.
    WrongLength,
    /// The message is longer than the session allows.
    TooLong,
    /// The packet makes no sense where its call stands.
    WrongPhase,
    /// A management packet whose body makes no sense.
    Malformed,
    /// A connect whose cookie is wrong or too old.
    BadCookie,
    /// The sender took it back before it was read.
    Revoked,
    /// No memory to take it.
    NoMemory,
    /// More answers were asked for in one turn than the session has credits.
    OverCredit,
    /// While somebody guesses at a session's token: a request with the right one, but not with a number that comes next.
    Guessed,
}

impl PacketDrop {
    /// All reasons.
    pub const ALL: [Self; 17] = [
        Self::Truncated,
        Self::WrongMagic,
        Self::WrongVersion,
        Self::UnknownKind,
        Self::UnknownSession,
        Self::WrongSource,
        Self::Stale,
        Self::OutOfOrder,
        Self::WrongLength,
        Self::TooLong,
        Self::WrongPhase,
        Self::Malformed,
        Self::BadCookie,
        Self::Revoked,
        Self::NoMemory,
        Self::OverCredit,
        Self::Guessed,
    ];

    /// The reason's name, as metrics show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::WrongMagic => "wrong_magic",
            Self::WrongVersion => "wrong_version",
            Self::UnknownKind => "unknown_kind",
            Self::UnknownSession => "unknown_session",
            Self::WrongSource => "wrong_source",
            Self::Stale => "stale",
            Self::OutOfOrder => "out_of_order",
            Self::WrongLength => "wrong_length",
            Self::TooLong => "too_long",
            Self::WrongPhase => "wrong_phase",
            Self::Malformed => "malformed",
            Self::BadCookie => "bad_cookie",
            Self::Revoked => "revoked",
            Self::NoMemory => "no_memory",
            Self::OverCredit => "over_credit",
            Self::Guessed => "guessed",
        }
    }
}

/// Counters of an endpoint since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls that completed with a response, at this side as client.
    pub calls_completed: u64,
    /// Calls that completed with an error, at this side as client.
    pub calls_failed: u64,
    /// Requests given to handlers, at this side as server.
    pub requests_handled: u64,
    /// Requests that came after their callers' deadlines, at this side as server: they did not run.
    pub requests_too_late: u64,
    /// Calls whose clients said that they no longer wait, at this side as server.
    pub calls_cancelled: u64,
    /// Times a call's packets were sent again.
    pub retransmissions: u64,
    /// Duplicates of running requests that were answered `in progress`.
    pub in_progress_answers: u64,
    /// Answers of handlers whose client had gone or given up.
    pub answers_discarded: u64,
    /// Requests that stopped arriving, and lost their memory to others.
    pub requests_given_up: u64,
    /// Long responses that nobody fetched any more, and that lost their memory to others.
    pub responses_given_up: u64,
    /// Packets that named a session of ours, at this side as server, and did not know its token: late ones of a session that ended, or guesses.
    pub token_misses: u64,
    /// Peers given up.
    pub peers_lost: u64,
    dropped: [u64; PacketDrop::ALL.len()],
}

impl Stats {
    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: PacketDrop) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets dropped in all.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// How many counters move with calls that go well...
    pub(crate) const HOT: usize = 2;
    /// ... and how many do not.
    pub(crate) const RARE: usize = 10 + PacketDrop::ALL.len();

    #[inline(always)]
    pub(crate) fn hot_counters(&self) -> [u64; Self::HOT] {
        [self.calls_completed, self.requests_handled]
    }

    /// The sum of those that move rarely. None of them ever falls: with the same sum they are the same.
    #[inline(always)]
    pub(crate) fn rare_sum(&self) -> u64 {
        let of_client = self.calls_failed + self.retransmissions + self.peers_lost;
        let of_server = self.in_progress_answers + self.answers_discarded + self.token_misses;
        let given_up = self.requests_given_up + self.responses_given_up;
        let unwanted = self.requests_too_late + self.calls_cancelled;
        of_client + of_server + given_up + unwanted + self.dropped_total()
    }

    /// Those that move rarely, for [`Self::of_counters`].
    pub(crate) fn rare_counters(&self) -> [u64; Self::RARE] {
        let Self {
            calls_completed: _,
            calls_failed,
            requests_handled: _,
            requests_too_late,
            calls_cancelled,
            retransmissions,
            in_progress_answers,
            answers_discarded,
            requests_given_up,
            responses_given_up,
            token_misses,
            peers_lost,
            dropped,
        } = *self;
        let mut rare = [0; Self::RARE];
        let (others, drops) = rare.split_at_mut(Self::RARE - PacketDrop::ALL.len());
        others.copy_from_slice(&[
            calls_failed,
            requests_too_late,
            calls_cancelled,
            retransmissions,
            in_progress_answers,
            answers_discarded,
            requests_given_up,
            responses_given_up,
            token_misses,
            peers_lost,
        ]);
        drops.copy_from_slice(&dropped);
        rare
    }

    pub(crate) fn of_counters(hot: &[u64; Self::HOT], rare: &[u64; Self::RARE]) -> Self {
        let [calls_completed, requests_handled] = *hot;
        let [
            calls_failed,
            requests_too_late,
            calls_cancelled,
            retransmissions,
            in_progress_answers,
            answers_discarded,
            requests_given_up,
            responses_given_up,
            token_misses,
            peers_lost,
            dropped @ ..,
        ] = *rare;
        Self {
            calls_completed,
            calls_failed,
            requests_handled,
            requests_too_late,
            calls_cancelled,
            retransmissions,
            in_progress_answers,
            answers_discarded,
            requests_given_up,
            responses_given_up,
            token_misses,
            peers_lost,
            dropped,
        }
    }

    pub(crate) fn count_drop(&mut self, reason: PacketDrop) {
        self.dropped[reason as usize] += 1;
    }
}
