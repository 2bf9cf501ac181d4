//! Tests of the policy against made-up costs and sliced processors.

use proptest::prelude::*;

use super::super::choice::AccessMethod;
use super::*;
use crate::time::SeededGenerator;

/// Latency and spinning of each choice, in nanoseconds.
type Table = [(u64, u64); Choice::COUNT];

const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// Costs of the four choices: plausible values, after Figures 1 and 3 of apnet19. Only polling burns the processor.
///
/// With an idle server and an idle client, a READ takes 6 us, an event 10 us more, and a compound read 9 us with the
/// first access of 4, and 0.3 us for each further one. With both busy, the local processor is shared, so polling is
/// delayed as events are, and the remote one too, so an answer waits for its turn there.
fn table(is_busy: bool, len: u64, accesses: u64) -> Table {
    let wire = len * 8 / 10;
    let (event, poll_late, remote_late) = if is_busy { (9 * US, 18 * US, 45 * US) } else { (10 * US, 0, 0) };
    let one = |late: u64| accesses * (6 * US + late) + wire;
    let two = |late: u64| 9 * US + accesses * 300 + 2 * wire + remote_late + late;
    [(one(poll_late), one(0)), (two(poll_late), two(0)), (one(event), 0), (two(2 * event), 0)]
}

fn cost(config: &PolicyConfig, (latency, spun): (u64, u64)) -> u64 {
    latency + spun * u64::from(config.spin_permille) / 1000
}

fn best(config: &PolicyConfig, table: &Table) -> u64 {
    table.iter().map(|&choice| cost(config, choice)).min().unwrap()
}

/// A get that met nothing else.
fn sample(latency_ns: u64, spun_ns: u64) -> Sample {
    Sample { latency_ns, spun_ns, lost_ns: 0, is_first_sleep: false, is_pure: true }
}

struct World {
    policy: Policy,
    config: PolicyConfig,
    now_ns: u64,
    chance: SeededGenerator,
    noise: SeededGenerator,
    /// The most that a latency is off, up or down, in thousandths.
    noise_permille: u64,
    class: GetClass,
}

impl World {
    fn new(seed: u64) -> Self {
        let config = PolicyConfig::default();
        Self {
            policy: Policy::new(config),
            config,
            now_ns: 5 * MS,
            chance: SeededGenerator::new(seed),
            noise: SeededGenerator::new(!seed),
            noise_permille: 200,
            class: GetClass::of(32, 1),
        }
    }

    /// Makes gets, one at a time, for `for_ns`. Returns the average cost without noise, the gets, and the tries.
    fn run(&mut self, table: &Table, for_ns: u64) -> (u64, u64, u64) {
        let (end_ns, mut total, mut gets, mut tries) = (self.now_ns + for_ns, 0, 0, 0);
        while self.now_ns < end_ns {
            let picked = self.policy.choose(self.class, 0, self.now_ns, &mut self.chance);
            let (latency, spun_ns) = table[picked.choice.index()];
            let latency_ns =
                latency * (1000 - self.noise_permille + self.noise.below(2 * self.noise_permille + 1)) / 1000;
            self.now_ns += latency_ns;
            self.policy.record(self.class, picked.choice, Some(sample(latency_ns, spun_ns)), self.now_ns);
            total += cost(&self.config, (latency, spun_ns));
            gets += 1;
            tries += u64::from(picked.is_try);
        }
        (total / gets, gets, tries)
    }

    fn in_use(&self, table: &Table) -> u64 {
        cost(&self.config, table[self.policy.in_use(self.class).index()])
    }
}

fn tables() -> Vec<(bool, u64, u64)> {
    let mut all = Vec::new();
    for is_busy in [false, true] {
        for len in [32, 4096] {
            all.extend([1, 4].map(|accesses| (is_busy, len, accesses)));
        }
    }
    all
}

#[test]
fn a_policy_comes_within_a_tenth_of_the_best_fixed_choice() {
    let mut winners = std::collections::HashSet::new();
    for case @ (is_busy, len, accesses) in tables() {
        for seed in 0..20 {
            let table = table(is_busy, len, accesses);
            let mut world = World::new(seed);
            world.run(&table, 10 * MS);
            let (mean, gets, tries) = world.run(&table, 100 * MS);
            let best = best(&world.config, &table);
            assert!(mean * 10 <= best * 11, "seed {seed}: {case:?}: {mean} ns, the best is {best} ns: {table:?}");
            assert!(tries * 8 <= gets + 8 * 16, "seed {seed}: {tries} tries of {gets} gets");
            winners.insert(world.policy.in_use(world.class));
        }
    }
    assert!(winners.len() > 2, "the cases differ: {winners:?}");
}

#[test]
fn a_change_is_followed_within_ten_milliseconds() {
    for before in tables() {
        for after in tables() {
            for seed in 0..10 {
                let mut world = World::new(seed);
                world.run(&table(before.0, before.1, before.2), 30 * MS);
                let table = table(after.0, after.1, after.2);
                world.run(&table, 10 * MS);
                let (in_use, best) = (world.in_use(&table), best(&world.config, &table));
                assert!(in_use * 10 <= best * 11, "seed {seed}: {before:?}, {after:?}: {in_use} ns of {best} ns");
            }
        }
    }
}

/// Only another choice changes, so no sample of the one in use shows it.
#[test]
fn a_choice_that_becomes_better_unseen_is_found_within_ten_milliseconds() {
    for seed in 0..50 {
        let mut world = World::new(seed);
        world.run(&[(20 * US, 0), (160 * US, 0), (100 * US, 0), (80 * US, 0)], 30 * MS);
        let table = [(20 * US, 0), (10 * US, 0), (100 * US, 0), (80 * US, 0)];
        world.run(&table, 10 * MS);
        assert_eq!(world.policy.in_use(world.class).method, AccessMethod::TwoSided, "seed {seed}");
    }
}

/// The others together cost far more than the budget of such a short time.
#[test]
fn a_change_of_the_choice_in_use_has_the_others_tried_at_once() {
    for seed in 0..50 {
        let mut world = World::new(seed);
        world.run(&[(20 * US, 0), (600 * US, 0), (600 * US, 0), (600 * US, 0)], 60 * MS);
        world.run(&[(60 * US, 0), (30 * US, 0), (600 * US, 0), (600 * US, 0)], 5 * MS);
        assert_eq!(world.policy.in_use(world.class), Choice::ALL[1], "seed {seed}");
    }
}

#[test]
fn with_equal_latencies_the_one_that_burns_less_wins() {
    let mut world = World::new(3);
    world.run(&[(20 * US, 20 * US), (25 * US, 20 * US), (20 * US, 0), (25 * US, 0)], 20 * MS);
    assert_eq!(
        world.policy.in_use(world.class),
        Choice { method: AccessMethod::OneSided, mode: CompletionMode::Events }
    );
}

#[test]
fn equal_inputs_have_equal_decisions_and_classes_are_apart() {
    let picks = |seed: u64| {
        let mut world = World::new(seed);
        (0..20).map(|_| world.run(&table(true, 32, 4), MS)).collect::<Vec<_>>()
    };
    assert_eq!(picks(7), picks(7));
    let mut world = World::new(1);
    world.run(&table(true, 32, 4), 20 * MS);
    let other = GetClass::of(4096, 4);
    assert_eq!(world.policy.in_use(other), Choice::ALL[0]);
    assert_eq!(world.policy.measurement(other, Choice::ALL[0]).samples, 0);
    assert!(world.policy.measurement(world.class, Choice::ALL[0]).samples > 2);
    assert!(world.policy.switches(world.class) > 0);
}

#[test]
fn what_failed_or_was_not_pure_is_no_measurement() {
    let mut world = World::new(1);
    let picked = world.policy.choose(world.class, 0, 0, &mut world.chance);
    world.policy.record(world.class, picked.choice, None, 5);
    let sample = Sample { is_pure: false, ..sample(5, 0) };
    world.policy.record(world.class, picked.choice, Some(sample), 5);
    assert_eq!(world.policy.measurement(world.class, picked.choice).samples, 0);
}

/// A thread that, when it polls beside a program, has every other slice; when it sleeps, it is not kept waiting once it
/// has paid back.
struct Sliced {
    world: World,
    /// Whether it is told after each sleep how idle its processor was.
    is_told: bool,
    /// Time that it ran more than the program did.
    lead_ns: u64,
    slice_ns: u64,
}

impl Sliced {
    fn new(slice_ns: u64) -> Self {
        Self { world: World::new(3), is_told: false, lead_ns: 0, slice_ns }
    }

    /// Makes gets, one at a time, for `for_ns`. Returns the numbers that polled and that slept.
    fn run(&mut self, table: &Table, for_ns: u64) -> [u64; 2] {
        let world = &mut self.world;
        let (end_ns, mut gets, mut was_sleeping) = (world.now_ns + for_ns, [0; 2], false);
        while world.now_ns < end_ns {
            let began_ns = world.now_ns;
            let choice = world.policy.choose(world.class, 0, began_ns, &mut world.chance).choice;
            let (base_ns, spun_ns) = table[choice.index()];
            let sleeps = choice.mode == CompletionMode::Events;
            if self.slice_ns == u64::MAX {
                // There is no program to pay back.
                self.lead_ns = 0;
            }
            let stall_ns =
                if sleeps || self.lead_ns + base_ns > self.slice_ns { std::mem::take(&mut self.lead_ns) } else { 0 };
            world.now_ns += stall_ns + base_ns;
            let lost_ns = if sleeps { 0 } else { stall_ns };
            if !sleeps {
                world.policy.record_poll(began_ns, began_ns + lost_ns, true);
                world.policy.record_poll(began_ns + lost_ns, world.now_ns, false);
                self.lead_ns += base_ns;
            }
            if sleeps && self.is_told {
                // No competitor's slices have this length: it stands for no program.
                world.policy.set_ours_shared(self.slice_ns != u64::MAX, world.now_ns);
            }
            let is_first_sleep = sleeps && !std::mem::replace(&mut was_sleeping, sleeps);
            was_sleeping = sleeps;
            let taken = Sample { lost_ns, is_first_sleep, ..sample(stall_ns + base_ns, spun_ns) };
            world.policy.record(world.class, choice, Some(taken), world.now_ns);
            gets[usize::from(sleeps)] += 1;
        }
        gets
    }
}

#[test]
fn who_polls_on_a_shared_processor_is_charged_with_the_slices_and_sleeps_where_that_is_less() {
    for slice_ns in [2 * MS, 12 * MS] {
        // Polling takes 6 us, and as much again for the slices lost.
        for (sleeping_ns, is_to_sleep) in [(9 * US, true), (16 * US, false)] {
            let table = [(6 * US, 0), (7 * US, 0), (sleeping_ns, 0), (30 * US, 0)];
            let mut sliced = Sliced::new(slice_ns);
            sliced.run(&table, 2 * slice_ns + 10 * MS);
            let gets = sliced.run(&table, 40 * slice_ns);
            let best = 40 * slice_ns / sleeping_ns.min(12 * US);
            assert!((gets[0] + gets[1]) * 10 >= best * 9, "{slice_ns}, {sleeping_ns}: {gets:?} of {best}");
            assert_eq!(gets[1] > gets[0], is_to_sleep, "{slice_ns}, {sleeping_ns}: {gets:?}");
        }
    }
}

#[test]
fn a_program_that_is_gone_is_noticed_by_who_polls_at_once_and_by_who_sleeps_within_sixteen_slices() {
    for (sleeping_ns, within_ns) in [(16 * US, 10 * MS), (9 * US, 16 * 12 * MS)] {
        let table = [(6 * US, 0), (7 * US, 0), (sleeping_ns, 0), (30 * US, 0)];
        let mut sliced = Sliced::new(12 * MS);
        sliced.run(&table, 60 * MS);
        sliced.slice_ns = u64::MAX;
        sliced.run(&table, within_ns);
        let [polled, slept] = sliced.run(&table, 20 * MS);
        assert!(polled > 10 * slept, "{sleeping_ns}: {polled} polled, {slept} slept");
    }
}

#[test]
fn who_is_told_how_idle_its_processor_is_knows_at_once_that_a_program_is_there_and_that_it_is_gone() {
    let table = [(6 * US, 0), (7 * US, 0), (9 * US, 0), (30 * US, 0)];
    let mut sliced = Sliced { is_told: true, ..Sliced::new(12 * MS) };
    sliced.run(&table, 2 * MS);
    let [polled, slept] = sliced.run(&table, 20 * MS);
    assert!(slept > 10 * polled, "before it loses a slice: {polled} polled, {slept} slept");
    sliced.slice_ns = u64::MAX;
    sliced.run(&table, 2 * MS);
    let [polled, slept] = sliced.run(&table, 20 * MS);
    assert!(polled > 10 * slept, "before its belief has faded: {polled} polled, {slept} slept");
}

#[test]
fn a_program_of_a_lower_class_that_takes_no_slices_is_slept_for_no_longer_than_a_tenth_of_a_second() {
    let table = [(6 * US, 0), (7 * US, 0), (9 * US, 0), (30 * US, 0)];
    let mut world = World::new(3);
    world.run(&table, 10 * MS);
    // As for a thread that sleeps now and then.
    world.policy.set_ours_shared(true, world.now_ns);
    assert_eq!(world.policy.shared(world.now_ns), [true, true], "the server's is taken to be as ours");
    for _ in 0..200 {
        world.policy.set_ours_shared(true, world.now_ns);
        world.run(&table, MS);
    }
    assert_eq!(world.policy.shared(world.now_ns), [false, false]);
    assert_eq!(world.policy.in_use(world.class), Choice::ALL[0]);
}

#[test]
fn what_a_server_says_of_its_processor_is_believed_of_it_alone() {
    let mut policy = Policy::new(PolicyConfig::default());
    assert_eq!(policy.shared(MS), [false, false]);
    policy.set_servers_shared(true, MS);
    assert_eq!(policy.shared(MS), [false, true]);
    policy.set_servers_shared(false, 2 * MS);
    assert_eq!(policy.shared(2 * MS), [false, false]);
    policy.set_ours_shared(true, 3 * MS);
    assert_eq!(policy.shared(3 * MS), [true, true], "until the server says more");
    policy.set_servers_shared(false, 4 * MS);
    assert_eq!(policy.shared(4 * MS), [true, false]);
}

#[test]
fn a_lone_long_get_is_a_stall_and_the_second_in_a_row_is_what_gets_take() {
    let mut world = World::new(1);
    world.run(&[(20 * US, 0), (90 * US, 0), (90 * US, 0), (90 * US, 0)], 20 * MS);
    let choice = Choice::ALL[0];
    let cost = |world: &World| world.policy.measurement(world.class, choice).cost_ns.unwrap();
    let before = cost(&world);
    let long = |world: &mut World| {
        world.now_ns += 2 * MS;
        world.policy.record(world.class, choice, Some(sample(2 * MS, 0)), world.now_ns);
    };
    long(&mut world);
    assert_eq!(cost(&world), before);
    // A get of the same window met the same stall.
    world.policy.record(world.class, choice, Some(sample(2 * MS + 5, 0)), world.now_ns);
    assert_eq!(cost(&world), before);
    long(&mut world);
    assert!(cost(&world) > 10 * before, "{}", cost(&world));
}

/// Gets of a window: a thread that polls for one polls for all, so a try of events takes enough gets in a row.
#[test]
fn a_full_window_measures_events_too() {
    const WINDOW: usize = 16;
    let mut world = World::new(9);
    // By completion mode: what a get takes. Events are better, as on a processor that others use.
    let latency = |choice: Choice| if choice.mode == CompletionMode::Polling { 60 * US } else { 40 * US };
    let mut flights: Vec<(u64, u64, Choice, bool)> = Vec::new();
    while world.now_ns < 15 * MS {
        while flights.len() < WINDOW {
            let now_ns = world.now_ns;
            let picked = world.policy.choose(world.class, flights.len(), now_ns, &mut world.chance);
            let polls = picked.choice.mode == CompletionMode::Polling;
            if polls {
                flights.iter_mut().for_each(|flight| flight.3 &= flight.2.mode == CompletionMode::Polling);
            }
            let is_pure = polls || flights.iter().all(|flight| flight.2.mode == CompletionMode::Events);
            let jitter = world.noise.below(2 * US);
            flights.push((now_ns + latency(picked.choice) + jitter, now_ns, picked.choice, is_pure));
        }
        let first = flights.iter().enumerate().min_by_key(|(_, flight)| flight.0).unwrap().0;
        let (end_ns, start_ns, choice, is_pure) = flights.swap_remove(first);
        world.now_ns = end_ns;
        let sample = Sample { is_pure, ..sample(end_ns - start_ns, 0) };
        world.policy.record(world.class, choice, Some(sample), end_ns);
    }
    assert_eq!(world.policy.in_use(world.class).mode, CompletionMode::Events);
}

proptest! {
    /// Any latencies up to 100 us, any spinning, any change of all of them. (With much more noise, three samples cannot
    /// resolve a tenth.)
    #[test]
    fn any_table_is_settled_for_and_any_change_followed(
        seed: u64,
        before in prop::array::uniform4((4 * US..100 * US, 0..100 * US)),
        after in prop::array::uniform4((4 * US..100 * US, 0..100 * US)),
    ) {
        let mut world = World::new(seed);
        world.noise_permille = 100;
        world.run(&before, 10 * MS);
        let (mean, ..) = world.run(&before, 60 * MS);
        let cheapest = best(&world.config, &before);
        prop_assert!(mean * 10 <= cheapest * 11, "{mean} ns of {cheapest} ns");
        world.run(&after, 10 * MS);
        let (in_use, cheapest) = (world.in_use(&after), best(&world.config, &after));
        prop_assert!(in_use * 10 <= cheapest * 11, "after the change: {in_use} ns of {cheapest} ns");
    }
}
