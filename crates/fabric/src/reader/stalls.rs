//! Time that is lost rarely and all at once, kept apart from what each get takes.
//!
//! A thread that shares its processor with a compute-bound program loses a time slice of milliseconds after each of its
//! own. Only one get in a thousand meets it, so an average of recent gets shows either no trace of it or little else.
//! [`Stalls`] keeps how much is lost for each nanosecond that something ran, over several slices.

/// The shortest run that a stall is compared with, in nanoseconds: what is lost to an interrupt is no slice.
const SLICE_MIN_NS: u64 = 1_000_000;
/// Time that is averaged over, in stalls.
const STALLS_AVERAGED: u64 = 8;
/// Duration of a fading belief, as a multiple of the stall that it came from. Learning it again takes a stall, which
/// then costs a twentieth of the time.
const BELIEVED_STALLS: u64 = 16;
/// Largest ratio of a stall to the run before it: a scheduler shares evenly, among at most this many others.
const COMPETITORS_MAX: u64 = 4;
/// Time in nanoseconds for which a competing program is believed to take an even share without a stall that shows it.
const GUESSED_NS: u64 = 100_000_000;
/// Run time without a stall, in nanoseconds, that proves that no program competes: no scheduler's slices are longer.
const PROVEN_NS: u64 = 50_000_000;

/// Time lost for each nanosecond that something ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stalls {
    /// Sums over the last stalls, which together are no more than [`STALLS_AVERAGED`] of the longest: the time lost,
    /// and the time run before.
    lost_ns: u64,
    ran_ns: u64,
    longest_ns: u64,
    /// Time run since the last stall, less the time rested: schedulers give back the time that a thread sleeps.
    run_ns: u64,
    /// Time up to which everything is accounted for.
    until_ns: u64,
    believed_until_ns: u64,
    /// Duration of the belief, in nanoseconds.
    belief_ns: u64,
    /// Whether it loses slices, so that the first stall predicts the next.
    is_sliced: bool,
    /// Time until which a competing program is, or was, assumed to take an even share, though no stall has shown it.
    guessed_until_ns: Option<u64>,
}

impl Stalls {
    /// Stalls of something from which a scheduler takes slices.
    pub fn with_slices() -> Self {
        Self { is_sliced: true, ..Self::default() }
    }

    /// Moves on to `to_ns`. Returns the part of the time from `from_ns` that was not accounted for yet; any time passed
    /// before it counts as rest.
    fn advance(&mut self, from_ns: u64, to_ns: u64) -> u64 {
        let from_ns = from_ns.max(self.until_ns);
        self.run_ns = self.run_ns.saturating_sub(from_ns - self.until_ns);
        self.until_ns = to_ns.max(self.until_ns);
        to_ns.saturating_sub(from_ns)
    }

    /// Records a run without a stall.
    pub fn record_run(&mut self, from_ns: u64, to_ns: u64) {
        self.run_ns += self.advance(from_ns, to_ns);
    }

    /// Records a stall. Times that overlap what is accounted for, as those of several gets that met the same stall,
    /// count once.
    pub fn record_stall(&mut self, from_ns: u64, to_ns: u64) {
        let lost_ns = self.advance(from_ns, to_ns);
        if lost_ns == 0 {
            return;
        }
        let is_first = to_ns >= self.believed_until_ns || self.guessed_until_ns.is_some() && lost_ns >= SLICE_MIN_NS;
        // The length of the first run shows nothing, since the program may have come in the middle of it. Even shares
        // are the best guess.
        let run_ns = match is_first && self.is_sliced {
            true => lost_ns.max(SLICE_MIN_NS),
            false => self.run_ns.max(lost_ns / COMPETITORS_MAX),
        };
        if is_first {
            (self.lost_ns, self.ran_ns, self.longest_ns) = (0, 0, 0);
            self.guessed_until_ns = None;
        }
        self.longest_ns = self.longest_ns.max(lost_ns);
        let (lost, ran) = (u128::from(self.lost_ns + lost_ns), u128::from(self.ran_ns + run_ns));
        let (all, most) = (lost + ran, u128::from(self.longest_ns) * u128::from(STALLS_AVERAGED));
        let kept = |part: u128| if all > most { part * most / all } else { part };
        (self.lost_ns, self.ran_ns) = (kept(lost) as u64, kept(ran) as u64);
        self.run_ns = 0;
        let belief_ns = lost_ns.saturating_mul(BELIEVED_STALLS);
        if to_ns.saturating_add(belief_ns) > self.believed_until_ns {
            (self.belief_ns, self.believed_until_ns) = (belief_ns, to_ns.saturating_add(belief_ns));
        }
    }

    /// Records whether a program competes for the processor, as known by other means than a stall. Returns whether this
    /// was not known before.
    ///
    /// Until a stall shows what the program takes, the guess is an even share. It is made once and held for a while
    /// only, since a program of lower priority takes nothing.
    pub fn set_competing(&mut self, is_competing: bool, now_ns: u64) -> bool {
        let is_believed = self.believed_until_ns > now_ns;
        if !is_competing {
            *self = Self { run_ns: PROVEN_NS, until_ns: self.until_ns, is_sliced: self.is_sliced, ..Self::default() };
            return is_believed;
        }
        let is_guessed = self.guessed_until_ns.is_some();
        if !is_believed && !is_guessed {
            (self.lost_ns, self.ran_ns, self.longest_ns) = (SLICE_MIN_NS, SLICE_MIN_NS, SLICE_MIN_NS);
            self.run_ns = 0;
            self.belief_ns = BELIEVED_STALLS * SLICE_MIN_NS;
            self.guessed_until_ns = Some(now_ns.saturating_add(GUESSED_NS));
        }
        let is_held = self.guessed_until_ns.map_or(is_believed, |until_ns| now_ns < until_ns);
        if is_held {
            self.believed_until_ns = self.believed_until_ns.max(now_ns.saturating_add(self.belief_ns));
        }
        is_held && !is_believed
    }

    /// Discards the evidence of a long run without a stall.
    pub fn discard_evidence(&mut self) {
        self.run_ns = 0;
    }

    /// Whether it has hardly run since the last stall.
    pub fn has_just_lost(&self) -> bool {
        self.run_ns <= self.longest_ns / 64
    }

    /// Time lost, in thousandths of the time run; weighted with `unknown` to the extent that nothing has been seen for
    /// long.
    pub fn permille(&self, now_ns: u64, unknown: u64) -> u64 {
        let left_ns = self.believed_until_ns.saturating_sub(now_ns).min(self.belief_ns);
        if left_ns == 0 {
            return if self.run_ns >= PROVEN_NS { 0 } else { unknown };
        }
        let [lost_ns, longest_ns] = [self.lost_ns, self.longest_ns].map(u128::from);
        let usual_ns = u128::from(self.ran_ns) * longest_ns / lost_ns.max(1);
        // A run in progress is as good as a stall for showing how far apart stalls are.
        let ran_ns = u128::from(self.ran_ns) + u128::from(self.run_ns).saturating_sub(usual_ns);
        let seen = lost_ns * 1000 / ran_ns.max(1);
        let [left_ns, belief_ns] = [left_ns, self.belief_ns].map(u128::from);
        u64::try_from((seen * left_ns + u128::from(unknown) * (belief_ns - left_ns)) / belief_ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Alternates runs and stalls.
    fn slices(stalls: &mut Stalls, mut now_ns: u64, times: u64, ran_ns: u64, lost_ns: u64) -> u64 {
        for _ in 0..times {
            stalls.record_run(now_ns, now_ns + ran_ns);
            stalls.record_stall(now_ns + ran_ns, now_ns + ran_ns + lost_ns);
            now_ns += ran_ns + lost_ns;
        }
        now_ns
    }

    #[test]
    fn the_first_stall_is_taken_for_an_even_share_and_the_next_ones_tell() {
        let mut stalls = Stalls::with_slices();
        assert_eq!(stalls.permille(0, 7), 7, "unknown");
        let now_ns = slices(&mut stalls, 0, 1, 40 * MS, 12 * MS);
        assert_eq!(stalls.permille(now_ns, 7), 1000);
        let now_ns = slices(&mut stalls, now_ns, 8, 36 * MS, 12 * MS);
        assert!((330..=360).contains(&stalls.permille(now_ns, 7)), "{stalls:?}");
    }

    #[test]
    fn an_interrupt_is_no_slice_and_what_loses_none_is_believed_to_lose_what_it_did() {
        let mut stalls = [Stalls::with_slices(), Stalls::default()];
        let permille = stalls.each_mut().map(|stalls| {
            let now_ns = slices(stalls, 0, 1, 40 * MS, MS / 20);
            stalls.permille(now_ns, 7)
        });
        assert_eq!(permille, [49, 1]);
    }

    #[test]
    fn what_was_not_seen_for_long_is_believed_ever_less() {
        let mut stalls = Stalls::with_slices();
        let now_ns = slices(&mut stalls, 0, 4, 12 * MS, 12 * MS);
        let end_ns = now_ns + BELIEVED_STALLS * 12 * MS;
        let permille = [now_ns, (now_ns + end_ns) / 2, end_ns].map(|at_ns| stalls.permille(at_ns, 100));
        assert_eq!(permille, [1000, 550, 100]);
    }

    #[test]
    fn what_runs_on_without_a_stall_loses_less_and_then_nothing() {
        let mut stalls = Stalls::with_slices();
        let now_ns = slices(&mut stalls, 0, 4, 12 * MS, 12 * MS);
        stalls.record_run(now_ns, now_ns + 120 * MS);
        assert!(stalls.permille(now_ns, 0) < 350, "{stalls:?}");
        assert_eq!(stalls.permille(u64::MAX, 7), 0, "it ran for longer than any slice");
        stalls.discard_evidence();
        assert_eq!(stalls.permille(u64::MAX, 7), 7);
    }

    #[test]
    fn rest_is_no_run_that_proves_anything() {
        let mut stalls = Stalls::with_slices();
        for nth in 0..100 {
            stalls.record_run(24 * nth * MS, (24 * nth + 12) * MS);
        }
        assert_eq!(stalls.permille(2400 * MS, 7), 7);
    }

    #[test]
    fn a_short_stall_does_not_make_a_long_one_forgotten() {
        let mut stalls = Stalls::with_slices();
        let now_ns = slices(&mut stalls, 0, 4, 12 * MS, 12 * MS);
        let now_ns = slices(&mut stalls, now_ns, 4, 3 * MS, MS / 2);
        assert!(stalls.permille(now_ns, 0) > 700, "{stalls:?}");
    }

    #[test]
    fn a_program_that_is_known_to_have_gone_takes_nothing_and_one_that_is_known_to_stay_is_believed() {
        let mut stalls = Stalls::with_slices();
        let now_ns = slices(&mut stalls, 0, 8, 12 * MS, 4 * MS);
        let seen = stalls.permille(now_ns, 0);
        let later_ns = (1..1000).fold(now_ns, |_, nth| {
            assert!(!stalls.set_competing(true, now_ns + nth * MS), "that is no news");
            now_ns + nth * MS
        });
        assert_eq!(stalls.permille(later_ns, 0), seen, "as it was seen to be");
        assert!(stalls.set_competing(false, later_ns));
        assert!(!stalls.set_competing(false, later_ns));
        assert_eq!(stalls.permille(later_ns, 7), 0);
    }

    #[test]
    fn a_program_that_is_known_before_the_first_stall_is_taken_for_an_even_share_for_a_while() {
        let mut stalls = Stalls::with_slices();
        assert!(stalls.set_competing(true, 5 * MS));
        for ms in 6..105 {
            assert!(!stalls.set_competing(true, ms * MS));
            assert_eq!(stalls.permille(ms * MS, 0), 1000, "{ms}");
        }
        // A program of lower priority takes nothing from a thread that wants to run, so the guess is not repeated.
        for ms in 121..200 {
            assert!(!stalls.set_competing(true, ms * MS));
            assert_eq!(stalls.permille(ms * MS, 0), 0, "{ms}");
        }
        let now_ns = slices(&mut stalls, 200 * MS, 1, 3 * MS, 12 * MS);
        assert_eq!(stalls.permille(now_ns, 0), 1000, "the first stall, whenever the program came");
        stalls.set_competing(false, now_ns);
        stalls.set_competing(true, now_ns);
        stalls.record_stall(now_ns, now_ns + MS / 50);
        assert!(stalls.permille(now_ns + MS / 50, 0) > 500, "an interrupt is no slice: {stalls:?}");
        // Once it has gone, the next program may be another.
        assert!(stalls.set_competing(false, now_ns) && stalls.set_competing(true, now_ns));
        assert_eq!(stalls.permille(now_ns, 0), 1000);
    }

    #[test]
    fn gets_that_met_the_same_stall_count_once() {
        let mut stalls = Stalls::default();
        stalls.record_run(0, 10 * MS);
        for asked_ns in [10 * MS, 10 * MS + 5, 10 * MS + 7] {
            stalls.record_stall(asked_ns, 20 * MS + asked_ns % MS);
        }
        assert!((990..=1010).contains(&stalls.permille(20 * MS, 0)), "{stalls:?}");
    }
}
