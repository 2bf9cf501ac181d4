//! Advice: which design suits a workload on a NIC, and with which settings.
//!
//! [`advise`] takes the designs that the papers know and a [`Workload`] allows, runs each on the modelled NIC in
//! virtual time, with settings searched from coarse to fine, and ranks them by their results. No recommendation is
//! hard-coded; the sections of the papers that the advice cites say why.

mod bulk;
mod client;
mod design;
mod file;
mod limit;
mod plan;
mod search;
mod server;
#[cfg(test)]
mod tests;
mod trial;
mod trust;
mod words;
mod workload;

use sinew_sim::nic::Profile;

pub use design::{Chain, Design, Placement, Settings, Wait};
pub use limit::Limit;
pub use plan::{Plan, Times};
pub use trial::Outcome;
pub use trust::{Level, Trust};
pub use words::Guideline;
pub use workload::{ACCESSES_MAX, CpuLoad, Goal, LOCKS_MAX, OBJECT_MAX, PEERS_MAX, Workload, WorkloadKind};

/// A design, and what is to be expected of it.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Name of the design, shown to people.
    pub name: String,
    /// The design with its settings.
    pub plan: Plan,
    /// Results of its run.
    pub outcome: Outcome,
    /// The bottleneck, and how busy it is, from 0 to 1.
    pub limit: (Limit, f64),
    /// Explanation of its performance.
    pub why: Guideline,
    /// Explanations of its settings.
    pub settings: Vec<Guideline>,
    /// Trust in the model for this design and workload.
    pub trust: Trust,
}

/// All designs, and whether the search ran to its end.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// The designs that a workload allows on a NIC, best first, without those that completed nothing.
    pub designs: Vec<Advice>,
    /// Whether the search for settings ran to its end. If not, the results depend on when it was cut off.
    pub is_complete: bool,
}

/// Ranks the designs that a workload allows on a NIC.
///
/// `keep_going` is called with the part that is done, from 0 to 1, and returns whether to go on looking for better
/// settings. Once it returns false, each design that was not run yet is run once, and what was found is returned. Equal
/// arguments, with a `keep_going` that returns true throughout, give equal results.
pub fn advise(profile: &Profile, workload: &Workload, keep_going: &mut dyn FnMut(f64) -> bool) -> Ranking {
    let search::SearchResult { ranked, is_complete } = search::search(profile, workload, keep_going);
    let advice =
        ranked.into_iter().filter(|tried| tried.outcome.done > 0).map(|search::Candidate { plan, outcome }| {
            let limit = limit::limit(&plan, &outcome);
            Advice {
                name: plan.design.name(workload),
                limit,
                why: words::why(&plan, limit.0),
                settings: words::settings(&plan),
                trust: trust::trust(&plan, &outcome),
                outcome,
                plan: (*plan).clone(),
            }
        });
    Ranking { designs: advice.collect(), is_complete }
}
