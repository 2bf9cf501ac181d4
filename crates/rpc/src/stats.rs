//! Counters of an endpoint.

/// Reason why a received packet was dropped; each has its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PacketDrop {
    /// The packet is shorter than a header, or a first packet is shorter than its own length says.
    Truncated,
    /// The first byte is not that of our protocol.
    WrongMagic,
    /// The packet is of another version of the protocol.
    WrongVersion,
    /// There is no such kind of packet.
    UnknownKind,
    /// No session has this key: it was closed, is not ours, or the token is wrong.
    UnknownSession,
    /// The key is right, but the source address is wrong.
    WrongSource,
    /// An old request or response, or a duplicate of one that is done.
    Stale,
    /// The packet is not the next one; reordered packets count as lost (nsdi19 5.3).
    OutOfOrder,
    /// The length of the data does not fit the message's length and the packet's number.
    WrongLength,
    /// The message is longer than the session allows.
    TooLong,
    /// The packet is invalid in the present state of its call.
    WrongPhase,
    /// The body of a management packet is malformed.
    Malformed,
    /// The cookie of a connect is wrong or too old.
    BadCookie,
    /// The sender revoked the packet before it was read.
    Revoked,
    /// There was no memory for the packet.
    NoMemory,
    /// One turn asked for more answers than the session has credits.
    OverCredit,
    /// An attacker is guessing a session's token: the request has the right one, but its number does not come next.
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
    /// Requests that arrived after their callers' deadlines and so did not run, at this side as server.
    pub requests_too_late: u64,
    /// Calls that their clients cancelled, at this side as server.
    pub calls_cancelled: u64,
    /// Times that a call's packets were retransmitted.
    pub retransmissions: u64,
    /// Duplicates of running requests that were answered with `in progress`.
    pub in_progress_answers: u64,
    /// Answers that were discarded because the client had gone or given up.
    pub answers_discarded: u64,
    /// Requests that stopped arriving and whose memory went to others.
    pub requests_given_up: u64,
    /// Long responses that were no longer fetched and whose memory went to others.
    pub responses_given_up: u64,
    /// Packets that named a session of ours with a wrong token, at this side as server: late packets of a session that
    /// has ended, or guesses.
    pub token_misses: u64,
    /// Peers that were given up.
    pub peers_lost: u64,
    dropped: [u64; PacketDrop::ALL.len()],
}

impl Stats {
    /// Packets dropped for this reason.
    pub fn dropped(&self, reason: PacketDrop) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets dropped in all.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Number of counters that successful calls move.
    pub(crate) const HOT: usize = 2;
    /// Number of all other counters.
    pub(crate) const RARE: usize = 10 + PacketDrop::ALL.len();

    #[inline(always)]
    pub(crate) fn hot_counters(&self) -> [u64; Self::HOT] {
        [self.calls_completed, self.requests_handled]
    }

    /// Sum of the counters that move rarely. As none of them ever falls, an unchanged sum means that none has changed.
    #[inline(always)]
    pub(crate) fn rare_sum(&self) -> u64 {
        let of_client = self.calls_failed + self.retransmissions + self.peers_lost;
        let of_server = self.in_progress_answers + self.answers_discarded + self.token_misses;
        let given_up = self.requests_given_up + self.responses_given_up;
        let unwanted = self.requests_too_late + self.calls_cancelled;
        of_client + of_server + given_up + unwanted + self.dropped_total()
    }

    /// The counters that move rarely, for [`Self::of_counters`].
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
