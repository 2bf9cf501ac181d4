//! The search for the best settings of a design: from coarse steps to fine ones, with short runs.

use std::rc::Rc;

use sinew_sim::nic::Profile;

use super::design::{Design, Settings};
use super::plan::Plan;
use super::trial::{self, Length, Outcome};
use super::workload::{CpuLoad, Goal, Workload};

/// A design with the best settings that were found.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The plan that was run.
    pub plan: Rc<Plan>,
    /// Results of its run.
    pub outcome: Outcome,
}

/// Rates of one design that differ by less than this share count as equal; the cheaper settings win.
const RATE_TOLERANCE: f64 = 0.02;
/// The same for times.
const TIME_TOLERANCE: f64 = 0.01;
/// The same for times of accesses of which many are in flight.
const LOADED_TIME_TOLERANCE: f64 = 0.2;
/// The same for other figures.
const COST_TOLERANCE: f64 = 0.05;
/// Rates and times of different designs that differ by less than this share count as equal: the model's errors are no
/// smaller. They differ from design to design, and are much alike for all settings of one design.
const DESIGN_TOLERANCE: f64 = 0.05;
/// A design whose first runs reach less than this share of the best design's is not searched further.
const HOPELESS_SHARE: f64 = 0.4;
/// Most runs for one design.
const RUNS_MAX: usize = 60;

/// A figure of each of two runs, of which less is better, and the share by which they may differ and still count as
/// equal.
type FigurePair = (f64, f64, f64);

/// Whether the first run is less in the first figure in which the two differ.
fn is_less(pairs: impl IntoIterator<Item = FigurePair>) -> bool {
    let differ = |(a, b, by): &FigurePair| (a - b).abs() > by * a.abs().max(b.abs());
    pairs.into_iter().find(differ).is_some_and(|(a, b, _)| a < b)
}

/// Mean, median and 99th percentile of the times, in ns.
fn times(candidate: &Candidate) -> [f64; 3] {
    candidate
        .outcome
        .times
        .map_or([f64::MAX; 3], |times| [times.mean_ns, times.p50_ns, times.p99_ns].map(|ns| ns as f64))
}

/// Costs of two runs apart from their goal, of which less is better.
fn costs(a: &Candidate, b: &Candidate) -> [FigurePair; 3] {
    let threads = |candidate: &Candidate| candidate.plan.server_threads() as f64;
    let cpu = |candidate: &Candidate| candidate.outcome.cpu_ns.0 + candidate.outcome.cpu_ns.1;
    [
        (threads(a), threads(b), COST_TOLERANCE),
        (cpu(a), cpu(b), COST_TOLERANCE),
        (times(a)[2], times(b)[2], COST_TOLERANCE),
    ]
}

/// Whether `a` is better than `b`, the same design with other settings.
pub fn is_better(a: &Candidate, b: &Candidate) -> bool {
    let (ours, theirs) = (times(a), times(b));
    let by_goal = match a.plan.workload.goal {
        Goal::Throughput => {
            [(b.outcome.rate_mops, a.outcome.rate_mops, RATE_TOLERANCE), (ours[1], theirs[1], LOADED_TIME_TOLERANCE)]
        }
        Goal::Latency => [(ours[0], theirs[0], TIME_TOLERANCE), (ours[2], theirs[2], TIME_TOLERANCE)],
    };
    is_less(by_goal.into_iter().chain(costs(a, b)))
}

/// Merit of a run by the workload's goal: more is better.
fn merit(candidate: &Candidate) -> f64 {
    match candidate.plan.workload.goal {
        Goal::Throughput => candidate.outcome.rate_mops,
        Goal::Latency => candidate.outcome.times.map_or(0.0, |times| 1e3 / times.mean_ns as f64),
    }
}

/// Ranks designs, best first. Among those as good as the best that is left, it takes the one that uses least of the
/// server's processors, then the one with the shortest times, then the one that costs least otherwise.
fn rank(mut remaining: Vec<Candidate>) -> Vec<Candidate> {
    remaining.sort_by(|a, b| merit(b).total_cmp(&merit(a)));
    let mut ranked = Vec::new();
    while let Some(best) = remaining.first().map(merit) {
        let is_cheaper = |a: &Candidate, b: &Candidate| {
            let server = (a.outcome.cpu_ns.1, b.outcome.cpu_ns.1, COST_TOLERANCE);
            is_less([server, (times(a)[1], times(b)[1], LOADED_TIME_TOLERANCE)].into_iter().chain(costs(a, b)))
        };
        let near = (0..remaining.len()).take_while(|at| merit(&remaining[*at]) >= (1.0 - DESIGN_TOLERANCE) * best);
        let first = near.reduce(|first, at| if is_cheaper(&remaining[at], &remaining[first]) { at } else { first });
        ranked.push(remaining.remove(first.expect("the best is as good as itself")));
    }
    ranked
}

/// Length of a run that is long enough to judge a plan, with the measurement made `times` times as long.
fn length(plan: &Plan, rate_mops: Option<f64>, times: u64) -> Length {
    const US: u64 = 1000;
    let Workload { client_cpu, server_cpu, goal, .. } = plan.workload;
    let slices = [client_cpu, server_cpu].contains(&CpuLoad::Busy);
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
const PLAN_RUNS_MAX: usize = 4;
const GROWTH: u64 = 8;

/// Runs a plan for a time that fits a supposed rate, and again if that was far off: until a run was as long as its own
/// rate requires and completed as many accesses as are in flight at once (one, if latency is the goal).
fn run_plan(plan: &Rc<Plan>, rate_mops: Option<f64>, times: u64) -> Outcome {
    let least = match plan.workload.goal {
        Goal::Throughput => (plan.clients() * plan.settings.window) as u64,
        Goal::Latency => 1,
    };
    let mut current = length(plan, rate_mops, times);
    let mut outcome = trial::run(plan, current);
    for _ in 1..PLAN_RUNS_MAX {
        let wanted = length(plan, Some(outcome.rate_mops), times);
        if outcome.done < least {
            current = Length { measured_ns: wanted.measured_ns.max(GROWTH * current.measured_ns), ..wanted };
        } else if 2 * wanted.measured_ns > 3 * current.measured_ns {
            current = wanted;
        } else {
            break;
        }
        outcome = trial::run(plan, current);
    }
    outcome
}

/// Runs a design with settings.
pub fn run(profile: &Profile, workload: &Workload, design: Design, settings: Settings, times: u64) -> Candidate {
    let plan = Rc::new(Plan::new(profile, workload, design, settings));
    let outcome = run_plan(&plan, None, times);
    Candidate { plan, outcome }
}

/// Runs a plan again, for longer.
pub fn rerun(candidate: &Candidate, times: u64) -> Candidate {
    let outcome = run_plan(&candidate.plan, Some(candidate.outcome.rate_mops), times);
    Candidate { plan: Rc::clone(&candidate.plan), outcome }
}

/// The search for one design's settings.
struct Search {
    best: Candidate,
    seen: Vec<Settings>,
    /// Neighbours of the best settings that are still to be tried.
    untried: Vec<Settings>,
    step: usize,
    is_improved: bool,
}

impl Search {
    fn new(best: Candidate) -> Self {
        let mut search =
            Self { seen: vec![best.plan.settings], best, untried: Vec::new(), step: 0, is_improved: false };
        search.list_neighbours();
        search
    }

    /// Lists the neighbours of the best settings, in reverse, since they are taken from the end.
    fn list_neighbours(&mut self) {
        let Plan { profile, workload, design, settings, .. } = &*self.best.plan;
        self.untried = settings.neighbours(*design, workload, profile, self.step);
        self.untried.reverse();
        self.is_improved = false;
    }

    /// Settings to try next; none if there are no more.
    fn next(&mut self) -> Option<Settings> {
        while self.seen.len() < RUNS_MAX {
            match self.untried.pop() {
                Some(settings) if self.seen.contains(&settings) => {}
                Some(settings) => {
                    self.seen.push(settings);
                    return Some(settings);
                }
                None if self.is_improved => self.list_neighbours(),
                None if self.step == 0 => {
                    self.step = 1;
                    self.list_neighbours();
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
        let other = Candidate { plan, outcome };
        if is_better(&other, &self.best) {
            (self.best, self.is_improved) = (other, true);
        }
    }
}

/// Result of a search.
pub struct SearchResult {
    /// The designs, best first.
    pub ranked: Vec<Candidate>,
    /// Whether the search for settings ran to its end.
    pub is_complete: bool,
}

/// Ranks all designs with the best settings that were found. `keep_going` is called with the part that is done, from 0
/// to 1, and returns whether to search further. Once it returns false, each design that was not run yet is run once,
/// and no more is tried. Designs take turns, so that none has better chances because it is searched for longer.
pub fn search(profile: &Profile, workload: &Workload, keep_going: &mut dyn FnMut(f64) -> bool) -> SearchResult {
    const COARSE: f64 = 0.1;
    const FINAL: f64 = 0.9;
    let designs = Design::all(workload, profile);
    let count = designs.len() as f64;
    let mut is_complete = true;
    let mut all: Vec<Candidate> = Vec::new();
    for (at, design) in designs.into_iter().enumerate() {
        let has_time = keep_going(COARSE * at as f64 / count);
        is_complete &= has_time;
        let starts = Settings::starts(design, workload, profile);
        let starts = starts.into_iter().take(if has_time { usize::MAX } else { 1 });
        let tried = starts.map(|settings| run(profile, workload, design, settings, 1));
        all.extend(tried.reduce(|best, other| if is_better(&other, &best) { other } else { best }));
    }
    let best = all.iter().map(merit).fold(0.0, f64::max);
    let mut searches: Vec<Search> = all.into_iter().map(Search::new).collect();
    let hopeful: Vec<bool> = searches.iter().map(|search| merit(&search.best) >= HOPELESS_SHARE * best).collect();
    let mut has_progress = true;
    while has_progress && is_complete {
        has_progress = false;
        for at in (0..searches.len()).filter(|at| hopeful[*at]) {
            let Some(settings) = searches[at].next() else { continue };
            let runs: usize = searches.iter().map(|search| search.seen.len()).sum();
            let part = runs as f64 / (RUNS_MAX * searches.len()) as f64;
            is_complete &= keep_going(COARSE + (FINAL - COARSE) * part);
            if !is_complete {
                break;
            }
            searches[at].try_one(settings);
            has_progress = true;
        }
    }
    let finals = searches.into_iter().enumerate().map(|(at, Search { best, .. })| {
        let has_time = keep_going(FINAL + (1.0 - FINAL) * at as f64 / count);
        is_complete &= has_time;
        if has_time { rerun(&best, 3) } else { best }
    });
    let finals = finals.collect();
    SearchResult { ranked: rank(finals), is_complete }
}
