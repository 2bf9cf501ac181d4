//! The policy of a reader: it decides how each get is made, from the measured costs of earlier gets.
//!
//! No access method and completion mode are always the best: that depends on the object, and on the load of both
//! processors (apnet19 4.1, 4.2). The policy is asked for a [`Choice`] when a get starts ([`Policy::choose`]), and is
//! told what the get took when it ends ([`Policy::record`]). It does no I/O, reads no clock, and draws random numbers
//! only from the generator that it is handed, so equal inputs give equal decisions.
//!
//! # Terms
//!
//! - **Class** ([`GetClass`]): gets of similar size with the same number of accesses. Each class is decided separately.
//! - **Choice** ([`Choice`]): an access method with a completion mode. The choice *in use* is the one that the gets of
//!   a class normally have.
//! - **Try**: a get with another choice than the one in use, made to measure that choice.
//! - **Sample** ([`Sample`]): the measurements of one get.
//! - **Base cost** of a choice: the moving average of what its gets cost when they meet no stall.
//! - **Known**: a choice is known once it has three samples since it was last forgotten, and *unknown* before.
//! - **Stall**: a time for which a get waits because a thread that has to run for it, here or at the server, does not.
//!   The usual cause is a **slice**: the milliseconds for which a scheduler runs a competing program instead.
//! - **Loss** of a choice: the time that its gets lose to stalls, in proportion to the time in which they run.
//! - **Shared processor**: one for which a program is believed to compete with our thread, or with the server's.
//! - **First sleep**: a get by events whose thread polled before it. On a shared processor, such a thread *pays back*:
//!   it has to wait for as long as its polling exceeded its share.
//! - **Budget** of a class: the cost that may be spent on tries now.
//!
//! # What it decides
//!
//! 1. **Cost.** A get costs its latency, without the time for which its thread should have polled but did not run, plus
//!    [`PolicyConfig::spin_permille`] thousandths of the time that the thread spun for it without finding work. So with
//!    equal latencies, the choice that burns less processor time wins.
//! 2. **Average.** The base cost of a choice is an exponentially weighted average, in which samples weigh half as much
//!    after each [`PolicyConfig::half_life_ns`]. The cost by which choices are compared is the base cost, increased by
//!    the choice's loss.
//! 3. **Unknown choices are tried**, three times each; once is enough for one that costs more than twice the choice in
//!    use.
//! 4. **A change forgets.** The other choices become unknown when the base cost of the choice in use moves by a quarter
//!    from its value when the others were measured, or when the reader reports that something changed
//!    ([`Policy::forget`]).
//! 5. **Old measurements are renewed.** A choice not measured for [`PolicyConfig::refresh_ns`], plus or minus half of
//!    it at random, is tried again, the oldest first. Its average begins anew with this try, so by rule 3 two more
//!    follow at once, unless the first one cost more than twice the choice in use.
//! 6. **Exploring is bounded.** What a try costs more than the choice in use is paid from the budget. Each get adds
//!    [`PolicyConfig::explore_permille`] of its expected cost to the budget. A try under rule 5 waits until the budget
//!    covers its expected extra cost. Tries under rule 3 may overdraw the budget by [`PolicyConfig::debt_max_ns`] and
//!    then wait; no single try can overdraw it further. On average, at most one get in eight is a try under rule 5.
//! 7. **Hysteresis.** Another choice is taken into use when its cost is lower by [`PolicyConfig::margin_permille`].
//!
//! Stalls have rules of their own:
//!
//! - **A get that met a stall is no measurement.** It met one if its thread should have polled but did not run, or if
//!   it took eight times as long as such gets usually do, and at least 20 us. The next get of each choice after a stall
//!   is no measurement either, since whatever stalled may have yet to wake up. But a stall right after another counts:
//!   gets take that long now.
//! - **Each stall is charged to its cause.** Time for which the thread should have polled but did not run is charged to
//!   the choices that poll, and so is what a first sleep pays back. Any other stall is charged to the two-sided choices
//!   if the get was two-sided, to the choices that sleep if it was one-sided and slept, and else to the one-sided ones.
//! - **First sleeps on a shared processor are no measurements.** The gets right after one sleep too, and are measured.
//!   The time that a first sleep pays back is not taken from the budget; instead, no further try sleeps until
//!   [`PolicyConfig::explore_permille`] of the time since covers it.
//! - **Tries on a shared processor wait for a slice.** If the thread polls, then tries under rule 5, and all tries that
//!   sleep, come right after it lost a slice, when neither side owes time.
//! - **An unknown server is like us.** If the server's thread has not run long enough at a time to show how its
//!   processor is shared, that processor is assumed to be shared as ours is.
//!
//! # What follows
//!
//! A reader's cost is within the margins for exploring and hysteresis, together 8 % by default, of the best choice's.
//!
//! The reader follows a change of any choice whose try the budget covers at the time. With the defaults, and without
//! debt from earlier changes, that takes at most 10 ms if the others together cost up to 300 us more than the one in
//! use. (The tests have latencies that are up to 20 % off.)
//!
//! The first slice shows that a program competes. A thread that sleeps cannot see that the program has gone: its belief
//! fades within the length of 16 slices; then it polls, and finds out. A thread that is told how long its processor was
//! idle while it slept ([`Reader::slept`](super::Reader::slept)) knows both at once ([`Policy::set_ours_shared`]).
//!
//! # Why
//!
//! - **Losses are averaged apart from base costs** (`reader::stalls`), over several slices and over all classes. Only
//!   one get in a thousand meets a slice, so an average of the last ten gets shows either no trace of it or little
//!   else.
//! - **A first sleep is no measurement**, because it pays back what polling took in excess. The gets that sleep right
//!   after it owe nothing. Measurements do not age while a slice lasts, since nothing could be measured meanwhile.
//! - **Idle time shows what a sleeping thread cannot see**: whether a program competes for its processor
//!   (`reader::sleeps`). The system counts how long a processor is idle (`sinew_host::IdleTime`). If it was idle for a
//!   quarter of the sleep, the thread is alone on it; if it was never idle (2 % at most), it is not. Until the first
//!   slice is lost, the guess is that the program takes an even share. The guess is held for a tenth of a second at
//!   most, since programs of lower priority take no slices.
//! - **The server reports the same of its own processor** in its answers ([`Policy::set_servers_shared`]).
//! - **The budget is one of cost**, not of tries: a choice that costs ten times as much is tried a tenth as often.
//! - **One thread cannot poll for one get and sleep for another.** A get by events is no measurement if another get
//!   polled while it was in flight ([`Sample::is_pure`]). So a try of the other completion mode takes as many gets in a
//!   row as it needs for those in flight to end.

use super::choice::{AccessMethod, Choice, CompletionMode, GetClass};
use super::estimate::Estimate;
use super::stalls::Stalls;
use crate::time::Generator;

/// Samples after which a choice is known.
const TRIES: u32 = 3;
/// Gets of a choice that may be in flight, unmeasured, before it is not tried any further.
const PENDING_MAX: u32 = 3;
/// Least number of gets for each try.
const GETS_PER_TRY: i64 = 8;
/// The most tries that can be saved up.
const TRIES_SAVED_MAX: i64 = 16;
/// Samples of the choice in use between two changes, so that its average has settled after the first one.
const SAMPLES_PER_CHANGE: u32 = 8;
/// A get that takes this many times as long as such gets usually do, and at least [`STALL_MIN_NS`], met a stall.
const STALL_TIMES: u64 = 8;
const STALL_MIN_NS: u64 = 20_000;
/// Largest factor by which gets are assumed to take longer with an unknown choice than with the choice in use.
const CHOICES_DIFFER: u64 = 4;

/// Weights and limits of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Cost of a nanosecond spun without finding work, in thousandths of a nanosecond of latency. With 0, only latency
    /// counts.
    pub spin_permille: u32,
    /// Share of the cost that may be spent on exploring, in thousandths.
    pub explore_permille: u32,
    /// Margin by which another choice must be better to be taken into use, in thousandths.
    pub margin_permille: u32,
    /// Time in nanoseconds after which a measurement weighs half.
    pub half_life_ns: u64,
    /// Time in nanoseconds after which, roughly, a choice is measured again.
    pub refresh_ns: u64,
    /// Overdraft in nanoseconds beyond which tries of unknown choices wait for the budget.
    pub debt_max_ns: u64,
    /// The most that the budget can save up, in nanoseconds.
    pub budget_max_ns: u64,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            spin_permille: 100,
            explore_permille: 40,
            margin_permille: 40,
            half_life_ns: 500_000,
            refresh_ns: 2_000_000,
            debt_max_ns: 2_000_000,
            budget_max_ns: 1_000_000,
        }
    }
}

/// A policy's decision for one get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Choice for the get.
    pub choice: Choice,
    /// Whether this is a try of a choice that is not in use.
    pub is_try: bool,
}

/// Measurements of one get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time from its start to its completion, in nanoseconds.
    pub latency_ns: u64,
    /// Time that the thread spun meanwhile without finding work, in nanoseconds; divided among the gets in flight.
    pub spun_ns: u64,
    /// Part of the latency, in nanoseconds, for which the thread should have polled but did not run: others had the
    /// processor.
    pub lost_ns: u64,
    /// Whether the get slept, and the thread had polled before.
    pub is_first_sleep: bool,
    /// Whether the thread learnt of the completion in the chosen mode. It did not if the get was by events and another
    /// get kept the thread polling; such a get is no measurement.
    pub is_pure: bool,
}

/// Measurements of a choice in a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Average cost in nanoseconds of gets that met no stall; `None` when unknown.
    pub cost_ns: Option<u64>,
    /// Average latency, in nanoseconds.
    pub latency_ns: Option<u64>,
    /// Average time spun without finding work, in nanoseconds.
    pub spun_ns: Option<u64>,
    /// Samples since the choice was last forgotten.
    pub samples: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct ChoiceState {
    /// Cost of gets that met no stall.
    cost: Estimate,
    /// Time at which its last get ended, if that was a stall.
    stalled_until_ns: Option<u64>,
    /// Number of stalls, of all choices and classes, when one of its gets last ended.
    stalls_seen: u64,
    latency: Estimate,
    spun: Estimate,
    /// Its gets that are not over.
    pending: u32,
    /// Tries since it was last forgotten, measured or not.
    tries: u32,
    /// Time at which it is tried again.
    due_ns: u64,
    /// Whether its next sample begins a new average.
    is_refresh_due: bool,
}

impl ChoiceState {
    fn skip(&mut self, ns: u64) {
        [&mut self.cost, &mut self.latency, &mut self.spun].into_iter().for_each(|estimate| estimate.skip(ns));
    }
}

#[derive(Clone, Debug)]
struct ClassState {
    choices: [ChoiceState; Choice::COUNT],
    in_use: usize,
    /// Cost of the choice in use when the others were measured.
    reference_ns: Option<u64>,
    /// Samples of the choice in use since the last change was noticed.
    since_change: u32,
    budget_ns: i64,
    /// Gets saved up towards tries, of which each takes [`GETS_PER_TRY`].
    tries_saved: i64,
    /// A choice that the next gets are to have, and how many of them.
    forced_next: Option<(usize, u32)>,
    switches: u64,
    /// Loss of each choice to stalls, in thousandths.
    lost_permille: [u64; Choice::COUNT],
}

impl ClassState {
    fn new() -> Self {
        Self {
            choices: [ChoiceState::default(); Choice::COUNT],
            in_use: 0,
            reference_ns: None,
            since_change: 0,
            budget_ns: 0,
            tries_saved: 0,
            forced_next: None,
            switches: 0,
            lost_permille: [0; Choice::COUNT],
        }
    }

    /// Cost of a get that meets no stall.
    fn base_cost(&self, choice: usize) -> Option<u64> {
        self.choices[choice].cost.mean()
    }

    /// Cost of a choice, including what is lost to stalls.
    fn cost(&self, choice: usize) -> Option<u64> {
        let base_ns = u128::from(self.base_cost(choice)?);
        let cost_ns = base_ns * u128::from(1000 + self.lost_permille[choice]) / 1000;
        Some(u64::try_from(cost_ns).unwrap_or(u64::MAX))
    }

    /// Expected cost of trying `choice` over that of the choice in use; 0 when either is unknown.
    fn extra_ns(&self, choice: usize) -> i64 {
        match (self.base_cost(choice), self.base_cost(self.in_use)) {
            (Some(cost), Some(in_use)) => i64::try_from(cost.saturating_sub(in_use)).unwrap_or(i64::MAX),
            _ => 0,
        }
    }

    /// Whether `choice` should be tried until it is known: it is unknown, and does not look hopeless.
    fn needs_try(&self, choice: usize) -> bool {
        let ChoiceState { cost, tries, pending, .. } = &self.choices[choice];
        if *tries >= TRIES || *pending >= PENDING_MAX || cost.samples() >= TRIES {
            return false;
        }
        let is_hopeless = match (cost.mean(), self.cost(self.in_use)) {
            (Some(cost), Some(in_use)) => cost > in_use.saturating_mul(2),
            _ => false,
        };
        !is_hopeless
    }

    /// Makes all choices except the one in use unknown.
    fn forget_others(&mut self) {
        for (index, choice) in self.choices.iter_mut().enumerate() {
            if index != self.in_use {
                choice.cost.forget();
                choice.latency.forget();
                choice.spun.forget();
                choice.tries = 0;
                choice.is_refresh_due = false;
            }
        }
        self.reference_ns = self.base_cost(self.in_use);
        self.since_change = 0;
    }

    /// Classifies a sample. A get that takes far longer than such gets usually do met a stall, unless the previous get
    /// of its choice did so too: then that is what gets take now.
    fn classify(&mut self, choice: usize, sample: &Sample, stalls: &mut u64, now_ns: u64) -> SampleKind {
        let known = self.base_cost(choice).map(|base_ns| base_ns.saturating_mul(STALL_TIMES));
        let like_others = || Some(self.base_cost(self.in_use)?.saturating_mul(STALL_TIMES * CHOICES_DIFFER));
        let Some(most_ns) = known.or_else(like_others) else { return SampleKind::Usual };
        let asked_ns = now_ns.saturating_sub(sample.latency_ns);
        let is_long = sample.lost_ns > 0 || sample.latency_ns > most_ns.max(STALL_MIN_NS);
        let last_ns = &mut self.choices[choice].stalled_until_ns;
        if !is_long {
            *last_ns = None;
            let seen = std::mem::replace(&mut self.choices[choice].stalls_seen, *stalls);
            return if seen < *stalls { SampleKind::AfterStall } else { SampleKind::Usual };
        }
        // Gets of one window meet the same stall.
        if last_ns.is_some_and(|last_ns| asked_ns >= last_ns) {
            return SampleKind::Usual;
        }
        *last_ns = Some(last_ns.unwrap_or(now_ns));
        *stalls += 1;
        if sample.lost_ns > 0 { SampleKind::Lost } else { SampleKind::Stall }
    }
}

/// Meaning of a get's latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampleKind {
    /// The get took as long as such gets usually do.
    Usual,
    /// The get's thread did not run.
    Lost,
    /// Something else did not run.
    Stall,
    /// The latency shows nothing: whatever stalled has yet to wake up.
    AfterStall,
}

/// Losses to stalls, over all classes, by the choices to which they are charged.
#[derive(Clone, Copy, Debug)]
struct Losses {
    polling: Stalls,
    sleeping: Stalls,
    one_sided: Stalls,
    two_sided: Stalls,
}

impl Losses {
    /// Schedulers take slices from threads that poll, here and at the server.
    fn new() -> Self {
        let (slices, others) = (Stalls::with_slices(), Stalls::default());
        Self { polling: slices, sleeping: others, one_sided: others, two_sided: slices }
    }

    /// Loss of each choice, in thousandths of what its gets take, by [`Choice::index`].
    fn permille(&self, now_ns: u64) -> [u64; Choice::COUNT] {
        let polling = self.polling.permille(now_ns, 0);
        let [sleeping, one_sided] = [&self.sleeping, &self.one_sided].map(|stalls| stalls.permille(now_ns, 0));
        let two_sided = self.two_sided.permille(now_ns, polling);
        // One side waits for the other, so what both lose they lose at the same time.
        Choice::ALL.map(|choice| {
            let notice = if choice.mode == CompletionMode::Polling { polling } else { sleeping };
            notice.max(if choice.method == AccessMethod::OneSided { one_sided } else { two_sided })
        })
    }

    /// Stalls to which to charge the time that a get lost although its own thread ran.
    fn of(&mut self, choice: Choice, is_first_sleep: bool) -> &mut Stalls {
        match choice {
            _ if is_first_sleep => &mut self.polling,
            Choice { method: AccessMethod::TwoSided, .. } => &mut self.two_sided,
            Choice { mode: CompletionMode::Events, .. } => &mut self.sleeping,
            _ => &mut self.one_sided,
        }
    }
}

/// Decides for each class of gets. See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Policy {
    config: PolicyConfig,
    classes: Vec<Option<Box<ClassState>>>,
    losses: Losses,
    /// Stalls so far.
    stalls: u64,
    /// Time from which the exploring budget covers what a thread pays back when it sleeps for a try on a shared
    /// processor.
    first_sleep_due_ns: u64,
}

impl Policy {
    /// A policy that knows nothing. It begins with the first of [`Choice::ALL`].
    pub fn new(config: PolicyConfig) -> Self {
        Self { config, classes: vec![None; GetClass::COUNT], losses: Losses::new(), stalls: 0, first_sleep_due_ns: 0 }
    }

    /// Picks how the next get of `class` is made. The reader has `in_flight` gets: a try with the other completion mode
    /// is made for enough gets in a row for these to end, since one thread cannot poll and sleep at once.
    pub fn choose(
        &mut self,
        class: GetClass,
        in_flight: usize,
        now_ns: u64,
        generator: &mut (impl Generator + ?Sized),
    ) -> Picked {
        let config = self.config;
        let state = self.classes[class.index()].get_or_insert_with(|| Box::new(ClassState::new()));
        state.lost_permille = self.losses.permille(now_ns);
        if let Some(mean_ns) = state.cost(state.in_use) {
            let income = u128::from(mean_ns) * u128::from(config.explore_permille) / 1000;
            let most = i64::try_from(config.budget_max_ns).unwrap_or(i64::MAX);
            let income = i64::try_from(income).unwrap_or(i64::MAX);
            state.budget_ns = state.budget_ns.saturating_add(income).min(most);
        }
        state.tries_saved = (state.tries_saved + 1).min(TRIES_SAVED_MAX * GETS_PER_TRY);
        let is_shared = state.lost_permille[Choice::ALL[0].index()] > 0;
        let can_afford_try = !is_shared
            || Choice::ALL[state.in_use].mode == CompletionMode::Events
            || self.losses.polling.has_just_lost();
        let limits = TryLimits { refresh: can_afford_try, sleep: can_afford_try && now_ns >= self.first_sleep_due_ns };
        let index = next(state, &config, in_flight, limits, now_ns, generator);
        state.choices[index].pending += 1;
        Picked { choice: Choice::ALL[index], is_try: index != state.in_use }
    }

    /// Records the end of a get of `class` that was [chosen](Self::choose). `None` for a get that failed, which tells
    /// nothing.
    pub fn record(&mut self, class: GetClass, choice: Choice, sample: Option<Sample>, now_ns: u64) {
        let config = self.config;
        let Some(state) = self.classes[class.index()].as_deref_mut() else { return };
        let index = choice.index();
        state.choices[index].pending = state.choices[index].pending.saturating_sub(1);
        let Some(sample) = sample.filter(|sample| sample.is_pure) else { return };
        let taken_ns = sample.latency_ns.saturating_sub(sample.lost_ns);
        let asked_ns = now_ns.saturating_sub(sample.latency_ns);
        let spin = u128::from(sample.spun_ns) * u128::from(config.spin_permille) / 1000;
        let cost_ns = taken_ns.saturating_add(u64::try_from(spin).unwrap_or(u64::MAX));
        let kind = state.classify(index, &sample, &mut self.stalls, now_ns);
        // Time paid back has a bound of its own: `first_sleep_due_ns`.
        let has_paid_back = sample.is_first_sleep && kind == SampleKind::Stall;
        if index != state.in_use
            && !has_paid_back
            && let Some(in_use) = state.base_cost(state.in_use)
        {
            let extra = i64::try_from(cost_ns.saturating_sub(in_use)).unwrap_or(i64::MAX);
            // One unlucky try must not keep others from being tried for long.
            let debt = i64::try_from(config.debt_max_ns).unwrap_or(i64::MAX);
            state.budget_ns = state.budget_ns.saturating_sub(extra).max(-debt);
        }
        if kind == SampleKind::Stall {
            self.losses.of(choice, sample.is_first_sleep).record_stall(asked_ns, now_ns);
            if sample.is_first_sleep {
                let every = 1000 / u64::from(config.explore_permille.max(1));
                self.first_sleep_due_ns = now_ns.saturating_add(sample.latency_ns.saturating_mul(every));
            }
        } else if kind != SampleKind::Lost {
            self.losses.of(choice, false).record_run(asked_ns, now_ns);
        }
        state.lost_permille = self.losses.permille(now_ns);
        let pays_back = sample.is_first_sleep && state.lost_permille[Choice::ALL[0].index()] > 0;
        if kind != SampleKind::Usual || pays_back {
            // The choice was tried, but nothing was learnt.
            let entry = &mut state.choices[index];
            entry.tries = entry.tries.saturating_sub(1);
            if sample.is_first_sleep && entry.cost.samples() < TRIES {
                // The time paid back makes it worth learning what sleeping costs now, after the first get, whose server
                // has yet to wake.
                let left = state.forced_next.filter(|(forced, _)| *forced == index).map_or(0, |(_, left)| left);
                state.forced_next = Some((index, left.max(1 + TRIES)));
            }
            return update_choice(state, &config);
        }
        if index == state.in_use {
            state.since_change = state.since_change.saturating_add(1);
        }
        let entry = &mut state.choices[index];
        if std::mem::take(&mut entry.is_refresh_due) {
            [&mut entry.cost, &mut entry.latency, &mut entry.spun].into_iter().for_each(Estimate::forget);
            entry.tries = 1;
        }
        entry.cost.add(cost_ns, now_ns, config.half_life_ns);
        entry.latency.add(sample.latency_ns, now_ns, config.half_life_ns);
        entry.spun.add(sample.spun_ns, now_ns, config.half_life_ns);
        update_choice(state, &config);
    }

    /// Records a time in which the thread should have polled, and whether it did (`is_lost` is false) or did not run.
    pub fn record_poll(&mut self, from_ns: u64, to_ns: u64, is_lost: bool) {
        if is_lost {
            if self.losses.polling.permille(to_ns, 0) == 0 {
                // The program that came to our processor may have come to the server's too.
                self.losses.two_sided.discard_evidence();
            }
            self.losses.polling.record_stall(from_ns, to_ns);
            // The samples must not age: otherwise the next get, which may meet a server that has yet to wake, would
            // replace them all.
            let choices = self.classes.iter_mut().flatten().flat_map(|state| &mut state.choices);
            choices.for_each(|choice| choice.skip(to_ns.saturating_sub(from_ns)));
        } else {
            self.losses.polling.record_run(from_ns, to_ns);
        }
    }

    /// Records whether a program competes with our thread for its processor, as found while the thread slept. This is
    /// known at once, whereas stalls show it late, or never to a thread that sleeps.
    pub fn set_ours_shared(&mut self, is_shared: bool, now_ns: u64) {
        // The cost of gets that meet no stall stays as measured.
        if self.losses.polling.set_competing(is_shared, now_ns) && is_shared {
            // The program that came to our processor may have come to the server's too.
            self.losses.two_sided.discard_evidence();
        }
    }

    /// Records the same for the server's thread, as an answer reported it.
    pub fn set_servers_shared(&mut self, is_shared: bool, now_ns: u64) {
        self.losses.two_sided.set_competing(is_shared, now_ns);
    }

    /// Whether a program is believed to take a share of our thread's processor, and of the server's.
    pub fn shared(&self, now_ns: u64) -> [bool; 2] {
        let ours = self.losses.polling.permille(now_ns, 0);
        [ours > 0, self.losses.two_sided.permille(now_ns, ours) > 0]
    }

    /// Reports that something changed, such as the load of a processor: in all classes, all choices except the one in
    /// use become unknown.
    pub fn forget(&mut self) {
        for state in self.classes.iter_mut().flatten() {
            state.forget_others();
        }
    }

    /// The choice in use.
    pub fn in_use(&self, class: GetClass) -> Choice {
        Choice::ALL[self.classes[class.index()].as_ref().map_or(0, |state| state.in_use)]
    }

    /// Number of times that another choice was taken into use.
    pub fn switches(&self, class: GetClass) -> u64 {
        self.classes[class.index()].as_ref().map_or(0, |state| state.switches)
    }

    /// Measurements of a choice.
    pub fn measurement(&self, class: GetClass, choice: Choice) -> Measured {
        let state = self.classes[class.index()]
            .as_ref()
            .map_or_else(ChoiceState::default, |state| state.choices[choice.index()]);
        Measured {
            cost_ns: state.cost.mean(),
            latency_ns: state.latency.mean(),
            spun_ns: state.spun.mean(),
            samples: state.cost.samples(),
        }
    }
}

/// Tries that are allowed now.
#[derive(Clone, Copy)]
struct TryLimits {
    /// Whether choices that were not measured for a while may be tried.
    refresh: bool,
    /// Whether sleeping may be tried while the choice in use polls.
    sleep: bool,
}

/// The choice of the next get: the one in use, or one to try.
fn next(
    state: &mut ClassState,
    config: &PolicyConfig,
    in_flight: usize,
    limits: TryLimits,
    now_ns: u64,
    generator: &mut (impl Generator + ?Sized),
) -> usize {
    if let Some((choice, left)) = state.forced_next {
        state.forced_next = (left > 1).then_some((choice, left - 1));
        return choice;
    }
    let in_use = state.in_use;
    // Candidates are unknown choices, whatever they may cost (rule 3), and those that are due (rule 5).
    let debt = i64::try_from(config.debt_max_ns).unwrap_or(i64::MAX);
    let is_unknown_tried = state.budget_ns.saturating_add(debt) > 0 || state.cost(in_use).is_none();
    let notice = |choice: usize| -> CompletionMode { Choice::ALL[choice].mode };
    let is_open = |choice: &usize| limits.sleep || notice(*choice) == CompletionMode::Polling;
    let unknown =
        (0..Choice::COUNT).filter(|_| is_unknown_tried).filter(is_open).find(|&choice| state.needs_try(choice));
    let due = || {
        let is_due = |choice: &usize| {
            *choice != in_use && now_ns >= state.choices[*choice].due_ns && state.choices[*choice].pending == 0
        };
        let is_allowed = limits.refresh && state.tries_saved >= GETS_PER_TRY && state.cost(in_use).is_some();
        (0..Choice::COUNT)
            .filter(|_| is_allowed)
            .filter(is_open)
            .filter(is_due)
            .min_by_key(|&choice| state.choices[choice].cost.last_ns())
            .filter(|&choice| state.extra_ns(choice) <= state.budget_ns)
    };
    let Some(choice) = unknown.or_else(due) else { return in_use };
    if unknown.is_none() {
        state.tries_saved -= GETS_PER_TRY;
        state.choices[choice].is_refresh_due = true;
        state.choices[choice].tries = TRIES;
    } else {
        state.choices[choice].tries += 1;
    }
    let half_ns = config.refresh_ns / 2;
    let jitter_ns = ((u128::from(generator.next_u64()) * u128::from(config.refresh_ns)) >> 64) as u64;
    state.choices[choice].due_ns = now_ns.saturating_add(half_ns).saturating_add(jitter_ns);
    // On a shared processor the first get is no measurement, since others had their turn just before.
    let (is_shared, changes_notice) = (state.lost_permille[0] > 0, notice(choice) != notice(in_use));
    let gets = match (in_flight, changes_notice, is_shared) {
        (0, _, false) | (1.., false, false) => 0,
        (_, true, _) => u32::try_from(2 * in_flight + 1).unwrap_or(u32::MAX).saturating_add(is_shared.into()),
        (_, false, true) => 1,
    };
    if gets > 0 && choice != in_use {
        state.forced_next = Some((choice, gets));
        if unknown.is_none() {
            state.tries_saved -= i64::from(gets) * GETS_PER_TRY;
        }
    }
    choice
}

/// Takes the best choice into use, and notices changes.
fn update_choice(state: &mut ClassState, config: &PolicyConfig) {
    let in_use = state.in_use;
    let (Some(current_cost), Some(base)) = (state.cost(in_use), state.base_cost(in_use)) else {
        // If the choice in use is not measured yet, any measured one is better.
        if let Some(choice) = (0..Choice::COUNT).find(|&choice| state.cost(choice).is_some()) {
            switch_to(state, choice);
        }
        return;
    };
    let known_cost = |choice: usize| state.cost(choice).filter(|_| state.choices[choice].cost.samples() >= TRIES);
    let best = (0..Choice::COUNT).filter_map(|choice| Some((known_cost(choice)?, choice))).min();
    let threshold = u128::from(current_cost) * u128::from(1000 - config.margin_permille.min(1000));
    if let Some((cost, choice)) = best
        && choice != in_use
        && u128::from(cost) * 1000 < threshold
    {
        switch_to(state, choice);
        return;
    }
    let reference = *state.reference_ns.get_or_insert(base);
    let has_moved = base > reference.saturating_add(reference / 4) || base < reference - reference / 4;
    if has_moved && state.since_change >= SAMPLES_PER_CHANGE {
        state.forget_others();
    }
}

fn switch_to(state: &mut ClassState, choice: usize) {
    state.in_use = choice;
    state.forced_next = None;
    state.switches += 1;
    state.reference_ns = state.base_cost(choice);
    state.since_change = 0;
}

#[cfg(test)]
mod tests;
