//! The settings of a design that do best: from coarse steps to fine ones, with short runs.

use std::rc::Rc;

use sinew_sim::nic::Profile;

use super::design::{Design, Settings};
use super::plan::Plan;
use super::trial::{self, Length, Outcome};
use super::workload::{Goal, Load, Workload};

/// A design with the best settings that were found.
#[derive(Clone, Debug)]
pub struct Tried {
    /// What was run.
    pub plan: Rc<Plan>,
    /// What came of it.
    pub outcome: Outcome,
}

/// Rates that are this near count as equal, and what costs less is better.
const RATES: f64 = 0.02;
/// So do times.
const TIMES: f64 = 0.01;
/// So do times of accesses of which many are on their way.
const WAITS: f64 = 0.2;
/// Others' figures.
const COSTS: f64 = 0.05;
/// A design that comes to less than this part of the best before its settings are looked at is not looked at more closely.
const HOPELESS: f64 = 0.4;
/// Runs of a design, at most.
const RUNS_MAX: usize = 60;

/// Whether `a` is better than `b`.
pub fn is_better(a: &Tried, b: &Tried) -> bool {
    let lower = |a: f64, b: f64, by: f64| (a - b).abs() > by * a.abs().max(b.abs());
    let times = |it: &Tried| {
        it.outcome.times.map_or([f64::MAX; 3], |it| [it.mean_ns, it.p50_ns, it.p99_ns].map(|ns| ns as f64))
    };
    let (ours, theirs) = (times(a), times(b));
    let cost = |it: &Tried| it.plan.settings.threads as f64;
    let cpu = |it: &Tried| it.outcome.cpu_ns.0 + it.outcome.cpu_ns.1;
    let by_goal = match a.plan.workload.goal {
        Goal::Throughput => [(b.outcome.rate_mops, a.outcome.rate_mops, RATES), (ours[1], theirs[1], WAITS)],
        Goal::Latency => [(ours[0], theirs[0], TIMES), (ours[2], theirs[2], TIMES)],
    };
    let further = [(cost(a), cost(b), COSTS), (cpu(a), cpu(b), COSTS), (ours[2], theirs[2], COSTS)];
    let differs = by_goal.into_iter().chain(further).find(|(a, b, by)| lower(*a, *b, *by));
    differs.is_some_and(|(a, b, _)| a < b)
}

/// How long a run of a plan has to be to tell, and `times` as long.
fn length(plan: &Plan, rate_mops: Option<f64>, times: u64) -> Length {
    const US: u64 = 1000;
    let Workload { client_cpu, server_cpu, goal, .. } = plan.workload;
    let slices = [client_cpu, server_cpu].contains(&Load::Busy);
    let slice_ns = plan.profile.core.time_slice_ns;
    match (goal, slices) {
        (Goal::Latency, true) => Length { warm_up_ns: slice_ns, measured_ns: 60 * times * slice_ns },
        (Goal::Latency, false) => Length { warm_up_ns: 50 * US, measured_ns: 200 * times * US },
        (Goal::Throughput, _) => {
            // So that all that is on its way was over twice.
            let outstanding = (plan.clients() * plan.settings.window) as f64;
            let round_us = rate_mops.map_or(40.0, |rate_mops| outstanding / rate_mops.max(0.1));
            let round_ns = (round_us.clamp(20.0, 600.0) * 1e3) as u64;
            let least_ns = if slices { 8 * trial::SHORT_SLICE_NS } else { 0 };
            Length { warm_up_ns: round_ns, measured_ns: (times * round_ns).max(least_ns) }
        }
    }
}

/// Runs a design with settings.
pub fn run(profile: &Profile, workload: &Workload, design: Design, settings: Settings, times: u64) -> Tried {
    let plan = Rc::new(Plan::new(profile, workload, design, settings));
    let outcome = trial::run(&plan, length(&plan, None, times));
    Tried { plan, outcome }
}

/// Runs it again, for longer.
pub fn again(tried: &Tried, times: u64) -> Tried {
    let outcome = trial::run(&tried.plan, length(&tried.plan, Some(tried.outcome.rate_mops), times));
    Tried { plan: Rc::clone(&tried.plan), outcome }
}

/// Looks for better settings, as long as `goes_on` says so.
fn improve(tried: Tried, goes_on: &mut dyn FnMut(f64) -> bool) -> Tried {
    let Plan { profile, workload, design, .. } = &*Rc::clone(&tried.plan);
    let mut best = tried;
    let mut seen = vec![best.plan.settings];
    for step in 0..2 {
        loop {
            let mut is_improved = false;
            for settings in best.plan.settings.neighbours(*design, workload, profile, step) {
                if seen.contains(&settings) || seen.len() >= RUNS_MAX {
                    continue;
                }
                if !goes_on(seen.len() as f64 / RUNS_MAX as f64) {
                    return best;
                }
                seen.push(settings);
                let plan = Rc::new(Plan::new(profile, workload, *design, settings));
                let outcome = trial::run(&plan, length(&plan, Some(best.outcome.rate_mops), 1));
                let other = Tried { plan, outcome };
                if is_better(&other, &best) {
                    (best, is_improved) = (other, true);
                }
            }
            if !is_improved {
                break;
            }
        }
    }
    best
}

/// All designs with the best settings that were found, best first. `goes_on` hears how much is done, from 0 to 1, and says whether to look further.
pub fn search(profile: &Profile, workload: &Workload, goes_on: &mut dyn FnMut(f64) -> bool) -> Vec<Tried> {
    const COARSE: f64 = 0.1;
    const FINAL: f64 = 0.9;
    let designs = Design::all(workload, profile);
    let count = designs.len() as f64;
    let mut all: Vec<Tried> = Vec::new();
    for (at, design) in designs.into_iter().enumerate() {
        goes_on(COARSE * at as f64 / count);
        let starts = Settings::starts(design, workload, profile).into_iter();
        let tried = starts.map(|settings| run(profile, workload, design, settings, 1));
        all.extend(tried.reduce(|best, other| if is_better(&other, &best) { other } else { best }));
    }
    let merit = |it: &Tried| match workload.goal {
        Goal::Throughput => it.outcome.rate_mops,
        Goal::Latency => it.outcome.times.map_or(0.0, |times| 1e3 / times.mean_ns as f64),
    };
    let best = all.iter().map(merit).fold(0.0, f64::max);
    let mut found = Vec::new();
    for (at, tried) in all.into_iter().enumerate() {
        let begin = COARSE + (FINAL - COARSE) * at as f64 / count;
        let hopes = merit(&tried) >= HOPELESS * best;
        let part = |part: f64| begin + (FINAL - COARSE) * part / count;
        found.push(if hopes { improve(tried, &mut |done| goes_on(part(done))) } else { tried });
    }
    let mut ranked: Vec<Tried> = Vec::new();
    for (at, tried) in found.into_iter().enumerate() {
        goes_on(FINAL + (1.0 - FINAL) * at as f64 / count);
        let tried = again(&tried, 3);
        let place = ranked.iter().position(|other| is_better(&tried, other)).unwrap_or(ranked.len());
        ranked.insert(place, tried);
    }
    ranked
}
