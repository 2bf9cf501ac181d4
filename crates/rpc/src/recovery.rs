//! Retransmission: the choice of packets and time-outs, and the state that both sides need for it.
//!
//! # Which packets
//!
//! Credit returns and requests-for-response are cumulative (nsdi19 5.1 suggests it where small packets are expensive);
//! `Tuning` turns that off. With go-back-N, reordered packets count as lost. With `Recovery::Selective` they are kept,
//! at their place in the message: a window of 64 bits for each slot says which packets are there, and a credit return
//! carries 32 of these bits in its length field. The client retransmits packets that later ones have overtaken, with
//! the credits that it still holds for them. A side that uses go-back-N ignores those bits, and does not answer packets
//! that it drops, so each side can choose for itself.
//!
//! # When
//!
//! A duplicate of a running request is answered `in progress`, and the client doubles its time-out. The time-out is
//! nsdi19's 5 ms where round trips are short, follows the session's round trips where they are not (RFC 6298), and
//! doubles each time it passes without an answer.
//!
//! With 5 ms for all sessions, as in the paper, a single pause of a receiver whose answers take longer could keep a
//! call from ever ending: retransmissions filled the receiver's queue, their answers brought nothing new, and each
//! batch caused the next. So a header says whether its packet is a retransmission, and an answer whether it answers
//! one, as the time stamps of RFC 3522 (Eifel) do. An answer to a first transmission measures its round trip, however
//! often the packet was retransmitted since, so a time-out that was too short is corrected as soon as the timed packet
//! is answered. An answer to a retransmission says that packets were lost. Without that bit, either round trips longer
//! than the time-out are never measured (Karn's rule), or losses are taken for long round trips.
//!
//! If retransmissions are late too, only one packet is sent at a time, and duplicate answers postpone the time-out,
//! since they show that the queues are draining. Until a round trip was measured, answers to retransmissions bound it:
//! first by the time since the packet first left, then by the time since it last left. Such a bound raises time-outs
//! eightfold at most. A session's time-out takes in a round trip at most once in 50 us, which is often enough for a
//! timer that is checked every millisecond.
//!
//! Two variants were tried and given up. When an answer ended only part of the back-off, networks that lose every
//! fourth packet waited eight times their time-out for most lost ones. When the bound did not shrink, it was as long as
//! the longest silence had been.

/// Choice of the packets that are retransmitted after a loss. Each side chooses for itself, and works with either
/// choice of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// All packets from the first unanswered one on (nsdi19 5.3). A packet out of order is dropped, as if it had been
    /// lost.
    #[default]
    GoBackN,
    /// Only the missing packets. Packets out of order are kept, at their place in the message, and the client is told
    /// which arrived. It retransmits the missing ones as soon as later ones were answered, or after the time-out. A
    /// session then has at most 64 credits.
    Selective {
        /// A packet counts as lost once one that left this many places later is answered: 1 on a network that keeps
        /// packets in order, 3 on one that may not (RFC 9002 6.1.1). Too small a number costs only needless packets.
        packet_threshold: u8,
    },
}

impl Recovery {
    /// Selective retransmission for networks that may reorder packets.
    pub const SELECTIVE: Self = Self::Selective { packet_threshold: 3 };

    /// Whether packets that come out of order are kept.
    #[inline(always)]
    pub(crate) fn keeps_ahead(self) -> bool {
        matches!(self, Self::Selective { .. })
    }
}

/// Time for which a client waits for an answer before it retransmits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// At least [`Config::retransmit_timeout_ns`](crate::Config::retransmit_timeout_ns), and longer if the session's
    /// round trips are: their smoothed value plus four times its variation (RFC 6298), or plus half of itself if that
    /// is more. Answers say whether they answer the first transmission of a packet, which measures its round trip, or a
    /// retransmission (as time stamps do in RFC 3522). This matters because a time-out that is too short fills queues
    /// with retransmissions, which delay the very answers that the next time-out waits for.
    ///
    /// The time-out doubles each time it passes without an answer, up to 64 times the configured value or twice the
    /// measured one, whichever is longer. (Of the measured one, at most a quarter of
    /// [`Config::peer_timeout_ns`](crate::Config::peer_timeout_ns) counts.) From the second time-out on, one packet is
    /// retransmitted instead of all. The back-off ends with an answer to a retransmission, or to a packet that left
    /// since.
    ///
    /// Until a round trip was measured, answers to retransmissions give an upper bound: first the time since the packet
    /// first left, then the time since it last left. Such a bound raises the time-out to at most eight times the
    /// configured value.
    #[default]
    Adaptive,
    /// Always `Config::retransmit_timeout_ns` (nsdi19 5.2.3). If round trips become longer than that, needless
    /// retransmissions fill the queues, and calls stall.
    Fixed,
}

/// Packets of a message that are there although an earlier one is missing, as a bit set. The first place is that of the
/// missing packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window(pub u64);

impl Window {
    pub const PLACES: u32 = u64::BITS;

    /// The first `places` places.
    #[inline(always)]
    pub fn first(places: u32) -> Self {
        Self(u64::MAX.checked_shr(Self::PLACES.saturating_sub(places)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn has(self, place: u32) -> bool {
        self.0.checked_shr(place).is_some_and(|rest| rest & 1 != 0)
    }

    #[inline(always)]
    pub fn mark(&mut self, place: u32) {
        debug_assert!(place < Self::PLACES);
        self.0 |= 1u64.checked_shl(place).unwrap_or(0);
    }

    /// Moves past the packets that are there to the next missing one; returns the number of places.
    #[inline(always)]
    pub fn advance(&mut self) -> u32 {
        let places = self.0.trailing_ones();
        self.skip(places);
        places
    }

    /// Moves on by `places` places.
    #[inline(always)]
    pub fn skip(&mut self, places: u32) {
        self.0 = self.0.checked_shr(places).unwrap_or(0);
    }

    /// The place after the last packet that is there.
    pub fn end(self) -> u32 {
        Self::PLACES - self.0.leading_zeros()
    }

    /// The marked places as runs: the first place of each, and its length.
    pub fn runs(self) -> impl Iterator<Item = (u32, u32)> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let first = left.trailing_zeros();
            let count = left.checked_shr(first)?.trailing_ones();
            left &= !(Self::first(count).0 << first);
            Some((first, count))
        })
    }
}

/// However short round trips are, one sample in this time is enough for time-outs, which are checked less often.
const SAMPLES_APART_MIN_NS: u64 = 50_000;
/// However long round trips are, one sample is taken this often: a long one must not stand for all that follow.
const SAMPLES_APART_MAX_NS: u64 = 1_000_000;

/// The round trips of a session, smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrips {
    /// 0 until a round trip was measured, or bounded.
    smoothed_ns: u64,
    variation_ns: u64,
    /// Time before which a further sample would tell little.
    next_ns: u64,
    is_bound: bool,
}

impl RoundTrips {
    /// Whether a round trip that ends now should be [added](Self::add): one per round trip is enough (RFC 6298 4),
    /// which spares most small calls the work.
    #[inline(always)]
    pub fn wants(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    pub fn add(&mut self, rtt_ns: u64, now_ns: u64) {
        let rtt_ns = rtt_ns.clamp(1, u64::MAX / 16);
        self.next_ns = now_ns.saturating_add(rtt_ns.clamp(SAMPLES_APART_MIN_NS, SAMPLES_APART_MAX_NS));
        if self.smoothed_ns == 0 || self.is_bound {
            (self.smoothed_ns, self.variation_ns, self.is_bound) = (rtt_ns, rtt_ns / 2, false);
            return;
        }
        self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(rtt_ns)) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + rtt_ns) / 8;
    }

    /// Whether only an upper bound is known so far.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Sets an upper bound, until a round trip is measured: round trips take at most about `longest_ns`.
    #[cold]
    pub fn bound(&mut self, longest_ns: u64) {
        if self.smoothed_ns == 0 || self.is_bound && longest_ns < self.smoothed_ns {
            *self = Self::default();
            self.add(longest_ns, 0);
            (self.is_bound, self.next_ns) = (true, 0);
        }
    }

    /// A time longer than a round trip, even if all take the same time; 0 until one was measured or bounded.
    pub fn timeout_ns(&self) -> u64 {
        self.smoothed_ns + (4 * self.variation_ns).max(self.smoothed_ns / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_moves_on_over_what_is_there() {
        let mut window = Window::default();
        window.mark(2);
        window.mark(1);
        assert_eq!((window.advance(), window.end()), (0, 3));
        assert!(window.has(1) && !window.has(0) && !window.has(3) && !window.has(64) && !window.has(u32::MAX));
        window.mark(0);
        assert_eq!((window.advance(), window), (3, Window(0)));
        let mut full = Window::first(64);
        assert_eq!((full, full.end(), full.advance(), full), (Window(u64::MAX), 64, 64, Window(0)));
        let mut last = Window(1 << 63);
        assert!(last.has(63));
        last.skip(64);
        assert_eq!(last, Window(0));
    }

    #[test]
    fn runs_are_what_lies_together() {
        let runs = |bits| Window(bits).runs().collect::<Vec<_>>();
        assert_eq!(runs(0), []);
        assert_eq!(runs(0b1100_1011), [(0, 2), (3, 1), (6, 2)]);
        assert_eq!(runs(u64::MAX), [(0, 64)]);
        assert_eq!(runs(1 << 63 | 1), [(0, 1), (63, 1)]);
        assert_eq!([0, 1, 64, 65].map(Window::first), [0, 1, u64::MAX, u64::MAX].map(Window));
    }

    #[test]
    fn the_time_out_follows_the_round_trips() {
        let mut trips = RoundTrips::default();
        assert_eq!(trips.timeout_ns(), 0);
        trips.add(1000, 0);
        assert_eq!(trips.timeout_ns(), 3000);
        (0..100).for_each(|_| trips.add(1000, 0));
        assert!((1500..1520).contains(&trips.timeout_ns()), "{trips:?}");
        trips.add(9000, 0);
        // 1/8 of the new value, and four times 1/4 of the difference.
        assert!((9_990..10_020).contains(&trips.timeout_ns()), "{trips:?}");
        (0..100).for_each(|_| trips.add(u64::MAX, 0));
        assert!(trips.timeout_ns() > 9_000);
    }
}
