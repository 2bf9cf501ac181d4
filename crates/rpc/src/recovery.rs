//! What is sent again, and when: the choices, and what both sides need for them.

/// Which packets are sent again when some were lost. Each side chooses for itself, and gets on with whatever the other does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// All from the first that was not answered (nsdi19 5.3). What comes out of order is dropped, as if it had been lost.
    #[default]
    GoBackN,
    /// Those that are missing. What comes out of order is kept, in its place in the message, and the client is told which; it sends the
    /// missing ones again as soon as later ones were answered, or after the time-out. A session has at most 64 credits then.
    Selective {
        /// A packet counts as lost when one was answered that left so many packets after it: 1 on a network that keeps the order of
        /// packets, 3 on one that may not (RFC 9002 6.1.1). Too few cost needless packets, no more.
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

/// How long a client waits for an answer before it sends packets again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// [`Config::retransmit_timeout_ns`](crate::Config::retransmit_timeout_ns) at least, and longer where the session's smoothed round
    /// trip and four times its variation are (RFC 6298; half a round trip at least). Answers say whether they are to the first copy of a
    /// packet, which measures its round trip, or to a later one (as time stamps do in RFC 3522): a time-out that is too short would fill
    /// queues with copies, and these delay what the next time-out waits for. Each time that a call's passes in vain it is doubled, up to 64 times
    /// what is configured or twice what was measured (of which a quarter of
    /// [`Config::peer_timeout_ns`](crate::Config::peer_timeout_ns) counts at most), and from the second time on one packet is sent and not all.
    /// That ends with an answer to a copy or to a packet that left since. Until a round trip was measured, answers to copies tell how
    /// long one takes at most: since the packet first left, and then since it last did. The time-out is eightfold at most for that.
    #[default]
    Adaptive,
    /// `Config::retransmit_timeout_ns`, whatever the round trips are (nsdi19 5.2.3). Where they become longer than that, copies of
    /// packets that were not lost fill the queues, and calls stall.
    Fixed,
}

/// Which of the next packets of a message are there although one before them is not. The first place is that of the one that is
/// missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window(pub u64);

impl Window {
    pub const PLACES: u32 = u64::BITS;

    /// The first so many places.
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

    /// Moves on over what is there to the next that is missing, and says how far.
    #[inline(always)]
    pub fn advance(&mut self) -> u32 {
        let places = self.0.trailing_ones();
        self.skip(places);
        places
    }

    /// Moves on by so many places.
    #[inline(always)]
    pub fn skip(&mut self, places: u32) {
        self.0 = self.0.checked_shr(places).unwrap_or(0);
    }

    /// The place after the last that is there.
    pub fn end(self) -> u32 {
        Self::PLACES - self.0.leading_zeros()
    }

    /// The places, as runs: the first of each, and how many.
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

/// However short round trips are, one in this time is enough for time-outs, which are looked at less often.
const SAMPLES_APART_MIN_NS: u64 = 50_000;
/// However long they are, one is added this often: a long one must not stand for all that follow.
const SAMPLES_APART_MAX_NS: u64 = 1_000_000;

/// The round trips of a session, smoothed as RFC 6298 does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrips {
    /// 0 until one was measured, or bounded.
    smoothed_ns: u64,
    variation_ns: u64,
    /// Until then a further one tells little.
    next_ns: u64,
    is_bound: bool,
}

impl RoundTrips {
    /// Whether a round trip that ends now is to be [added](Self::add): one in the time of a round trip is enough (RFC 6298 4), so that most
    /// small calls are spared the work.
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

    /// Whether nothing is known but how long they take at most.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Until one is measured: they take about so long at most.
    #[cold]
    pub fn bound(&mut self, longest_ns: u64) {
        if self.smoothed_ns == 0 || self.is_bound && longest_ns < self.smoothed_ns {
            *self = Self::default();
            self.add(longest_ns, 0);
            (self.is_bound, self.next_ns) = (true, 0);
        }
    }

    /// Longer than a round trip, also where all take the same; 0 until one was measured.
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
        // 1/8 of what is new, and four times 1/4 of the difference.
        assert!((9_990..10_020).contains(&trips.timeout_ns()), "{trips:?}");
        (0..100).for_each(|_| trips.add(u64::MAX, 0));
        assert!(trips.timeout_ns() > 9_000);
    }
}
