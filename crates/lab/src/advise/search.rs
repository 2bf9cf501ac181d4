//! The search for the best settings of a design: from coarse steps to fine ones, with short runs.

use std::rc::Rc;

use sinew_sim::nic::Profile;

use super::design::{Design, Settings};
use super::plan::Plan;
use super::trial::{self, Length, Outcome};
use super::workload::{Goal, Load, Workload};

/// A design with the best settings that were found.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The plan that was run.
    pub plan: Rc<Plan>,
    /// Results of its run.
    pub outcome: Outcome,
}

/// Rates of one design that differ by less than this share count as equal; the cheaper settings win.
const RATES: f64 = 0.02;
/// The same for times.
const TIMES: f64 = 0.01;
/// The same for times of accesses of which many are in flight.
const WAITS: f64 = 0.2;
/// The same for other figures.
const COSTS: f64 = 0.05;
/// Rates and times of different designs that differ by less than this share count as equal: the model's errors are no
/// smaller. They differ from design to design, and are much alike for all settings of one design.
const DESIGNS: f64 = 0.05;
/// A design whose first runs reach less than this share of the best design's is not searched further.
const HOPELESS: f64 = 0.4;
/// Most runs for one design.
const RUNS_MAX: usize = 60;

/// A figure of each of two runs, of which less is better, and the share by which they may differ and still count as
/// equal.
type Pair = (f64, f64, f64);

/// Whether the first run is less in the first figure in which the two differ.
fn is_less(pairs: impl IntoIterator<Item = Pair>) -> bool {
    let differ = |(a, b, by): &Pair| (a - b).abs() > by * a.abs().max(b.abs());
    pairs.into_iter().find(differ).is_some_and(|(a, b, _)| a < b)
}

/// Mean, median and 99th percentile of the times, in ns.
fn times(it: &Tried) -> [f64; 3] {
    it.outcome.times.map_or([f64::MAX; 3], |it| [it.mean_ns, it.p50_ns, it.p99_ns].map(|ns| ns as f64))
}

/// Costs of two runs apart from their goal, of which less is better.
fn costs(a: &Tried, b: &Tried) -> [Pair; 3] {
    let threads = |it: &Tried| it.plan.server_threads() as f64;
    let cpu = |it: &Tried| it.outcome.cpu_ns.0 + it.outcome.cpu_ns.1;
    [(threads(a), threads(b), COSTS), (cpu(a), cpu(b), COSTS), (times(a)[2], times(b)[2], COSTS)]
}

/// Whether `a` is better than `b`, the same design with other settings.
pub fn is_better(a: &Tried, b: &Tried) -> bool {
    let (ours, theirs) = (times(a), times(b));
    let by_goal = match a.plan.workload.goal {
        Goal::Throughput => [(b.outcome.rate_mops, a.outcome.rate_mops, RATES), (ours[1], theirs[1], WAITS)],
        Goal::Latency => [(ours[0], theirs[0], TIMES), (ours[2], theirs[2], TIMES)],
    };
    is_less(by_goal.into_iter().chain(costs(a, b)))
}

/// Merit of a run by the workload's goal: more is better.
fn merit(it: &Tried) -> f64 {
    match it.plan.workload.goal {
        Goal::Throughput => it.outcome.rate_mops,
        Goal::Latency => it.outcome.times.map_or(0.0, |times| 1e3 / times.mean_ns as f64),
    }
}

/// Ranks designs, best first. Among those as good as the best that is left, it takes the one that uses least of the
/// server's processors, then the one with the shortest times, then the one that costs least otherwise.
fn rank(mut left: Vec<Tried>) -> Vec<Tried> {
    left.sort_by(|a, b| merit(b).total_cmp(&merit(a)));
    let mut ranked = Vec::new();
    while let Some(best) = left.first().map(merit) {
        let is_cheaper = |a: &Tried, b: &Tried| {
            let server = (a.outcome.cpu_ns.1, b.outcome.cpu_ns.1, COSTS);
            is_less([server, (times(a)[1], times(b)[1], WAITS)].into_iter().chain(costs(a, b)))
        };
        let near = (0..left.len()).take_while(|at| merit(&left[*at]) >= (1.0 - DESIGNS) * best);
        let first = near.reduce(|first, at| if is_cheaper(&left[at], &left[first]) { at } else { first });
        ranked.push(left.remove(first.expect("the best is as good as itself")));
    }
    ranked
}

/// Length of a run that is long enough to judge a plan, with the measurement made `times` times as long.
fn length(plan: &Plan, rate_mops: Option<f64>, times: u64) -> Length {
    const US: u64 = 1000;
    let Workload { client_cpu, server_cpu, goal, .. } = plan.workload;
    let slices = [client_cpu, server_cpu].contains(&Load::Busy);
    let slice_ns = plan.profile.core.time_slice_ns;
    match (goal, slices) {
        (Goal::Latency, true) => Length { warm_up_ns: slice_ns, measured_ns: 60 * times * slice_ns },
        (Goal::Latency, false) => Length { warm_up_ns: 50 * US, measured_ns: 200 * times * US },
        (Goal::Throughput, _) => {
            // So long that as many accesses as are in flight complete at least twice, once of them while it is
            // measured.
            let outstanding = (plan.clients() * plan.settings.window) as f64;
            let round_us = rate_mops.map_or(40.0, |rate_mops| outstanding / rate_mops.max(0.1));
            let round_ns = (round_us.clamp(20.0, 600.0) * 1e3) as u64;
            let least_ns = if slices { 8 * trial::SHORT_SLICE_NS } else { 0 };
            Length { warm_up_ns: round_ns, measured_ns: (times * round_ns).max(least_ns) }
        }
    }
}

/// Most runs of a plan until one was long enough, and the factor by which a run gets longer if too little completed.
const RUNS: usize = 4;
const LONGER: u64 = 8;

/// Runs a plan for a time that fits a supposed rate, and again if that was far off: until a run was as long as its own
/// rate requires and completed as many accesses as are in flight at once (one, if latency is the goal).
fn run_plan(plan: &Rc<Plan>, rate_mops: Option<f64>, times: u64) -> Outcome {
    let least = match plan.workload.goal {
        Goal::Throughput => (plan.clients() * plan.settings.window) as u64,
        Goal::Latency => 1,
    };
    let mut now = length(plan, rate_mops, times);
    let mut outcome = trial::run(plan, now);
    for _ in 1..RUNS {
        let wanted = length(plan, Some(outcome.rate_mops), times);
        if outcome.done < least {
            now = Length { measured_ns: wanted.measured_ns.max(LONGER * now.measured_ns), ..wanted };
        } else if 2 * wanted.measured_ns > 3 * now.measured_ns {
            now = wanted;
        } else {
            break;
        }
        outcome = trial::run(plan, now);
    }
    outcome
}

/// Runs a design with settings.
pub fn run(profile: &Profile, workload: &Workload, design: Design, settings: Settings, times: u64) -> Tried {
    let plan = Rc::new(Plan::new(profile, workload, design, settings));
    let outcome = run_plan(&plan, None, times);
    Tried { plan, outcome }
}

/// Runs a plan again, for longer.
pub fn again(tried: &Tried, times: u64) -> Tried {
    let outcome = run_plan(&tried.plan, Some(tried.outcome.rate_mops), times);
    Tried { plan: Rc::clone(&tried.plan), outcome }
}

/// The search for one design's settings.
struct Looking {
    best: Tried,
    seen: Vec<Settings>,
    /// Neighbours of the best settings that are still to be tried.
    left: Vec<Settings>,
    step: usize,
    is_improved: bool,
}

impl Looking {
    fn new(best: Tried) -> Self {
        let mut it = Self { seen: vec![best.plan.settings], best, left: Vec::new(), step: 0, is_improved: false };
        it.look_around();
        it
    }

    /// Lists the neighbours of the best settings, in reverse, since they are taken from the end.
    fn look_around(&mut self) {
        let Plan { profile, workload, design, settings, .. } = &*self.best.plan;
        self.left = settings.neighbours(*design, workload, profile, self.step);
        self.left.reverse();
        self.is_improved = false;
    }

    /// Settings to try next; none if there are no more.
    fn next(&mut self) -> Option<Settings> {
        while self.seen.len() < RUNS_MAX {
            match self.left.pop() {
                Some(settings) if self.seen.contains(&settings) => {}
                Some(settings) => {
                    self.seen.push(settings);
                    return Some(settings);
                }
                None if self.is_improved => self.look_around(),
                None if self.step == 0 => {
                    self.step = 1;
                    self.look_around();
                }
                None => return None,
            }
        }
        None
    }

    fn try_one(&mut self, settings: Settings) {
        let Plan { profile, workload, design, .. } = &*self.best.plan;
        let plan = Rc::new(Plan::new(profile, workload, *design, settings));
        let outcome = run_plan(&plan, Some(self.best.outcome.rate_mops), 1);
        let other = Tried { plan, outcome };
        if is_better(&other, &self.best) {
            (self.best, self.is_improved) = (other, true);
        }
    }
}

/// Result of a search.
pub struct Found {
    /// The designs, best first.
    pub ranked: Vec<Tried>,
    /// Whether the search for settings ran to its end.
    pub is_complete: bool,
}

/// Ranks all designs with the best settings that were found. `goes_on` is called with the part that is done, from 0 to
/// 1, and returns whether to search further. Once it returns false, each design that was not run yet is run once, and
/// no more is tried. Designs take turns, so that none has better chances because it is searched for longer.
pub fn search(profile: &Profile, workload: &Workload, goes_on: &mut dyn FnMut(f64) -> bool) -> Found {
    const COARSE: f64 = 0.1;
    const FINAL: f64 = 0.9;
    let designs = Design::all(workload, profile);
    let count = designs.len() as f64;
    let mut is_complete = true;
    let mut all: Vec<Tried> = Vec::new();
    for (at, design) in designs.into_iter().enumerate() {
        let has_time = goes_on(COARSE * at as f64 / count);
        is_complete &= has_time;
        let starts = Settings::starts(design, workload, profile);
        let starts = starts.into_iter().take(if has_time { usize::MAX } else { 1 });
        let tried = starts.map(|settings| run(profile, workload, design, settings, 1));
        all.extend(tried.reduce(|best, other| if is_better(&other, &best) { other } else { best }));
    }
    let best = all.iter().map(merit).fold(0.0, f64::max);
    let mut looking: Vec<Looking> = all.into_iter().map(Looking::new).collect();
    let hopeful: Vec<bool> = looking.iter().map(|it| merit(&it.best) >= HOPELESS * best).collect();
    let mut goes_round = true;
    while goes_round && is_complete {
        goes_round = false;
        for at in (0..looking.len()).filter(|at| hopeful[*at]) {
            let Some(settings) = looking[at].next() else { continue };
            let tries: usize = looking.iter().map(|it| it.seen.len()).sum();
            let part = tries as f64 / (RUNS_MAX * looking.len()) as f64;
            is_complete &= goes_on(COARSE + (FINAL - COARSE) * part);
            if !is_complete {
                break;
            }
            looking[at].try_one(settings);
            goes_round = true;
        }
    }
    let finals = looking.into_iter().enumerate().map(|(at, Looking { best, .. })| {
        let has_time = goes_on(FINAL + (1.0 - FINAL) * at as f64 / count);
        is_complete &= has_time;
        if has_time { again(&best, 3) } else { best }
    });
    let finals = finals.collect();
    Found { ranked: rank(finals), is_complete }
}
