//! Which design to choose for a workload on a NIC, and with which settings.
//!
//! [`advise`] makes the designs that the papers know and that a [`Workload`] allows, runs each on the modelled NIC with settings from coarse to fine, in
//! virtual time, and ranks them by what came of it. Nothing of what it recommends is written down: the papers' sections that it names say why.

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
pub use workload::{ACCESSES_MAX, Goal, Kind, LOCKS_MAX, Load, OBJECT_MAX, PEERS_MAX, Workload};

/// A design, and what is to be expected of it.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Its name.
    pub name: String,
    /// The design with its settings.
    pub plan: Plan,
    /// What came of it.
    pub outcome: Outcome,
    /// What keeps it from doing more, and how busy that is, from 0 to 1.
    pub limit: (Limit, f64),
    /// Why it does what it does.
    pub why: Guideline,
    /// Its settings, in words.
    pub settings: Vec<Guideline>,
    /// How far that can be believed.
    pub trust: Trust,
}

/// All designs, and whether there was time enough.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// The designs that a workload allows on a NIC, best first; those of which nothing was over are left out.
    pub designs: Vec<Advice>,
    /// Whether settings were looked for to the end. Where not, what was found depends on when it was cut off.
    pub is_complete: bool,
}

/// Ranks the designs that a workload allows on a NIC.
///
/// `goes_on` hears how much is done, from 0 to 1, and says whether settings are looked for any further: what was found until then is told all the same, once
/// each design was run. Equal arguments, with a `goes_on` that says yes, have equal results.
pub fn advise(profile: &Profile, workload: &Workload, goes_on: &mut dyn FnMut(f64) -> bool) -> Ranking {
    let search::Found { ranked, is_complete } = search::search(profile, workload, goes_on);
    let told = ranked.into_iter().filter(|tried| tried.outcome.done > 0).map(|search::Tried { plan, outcome }| {
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
    Ranking { designs: told.collect(), is_complete }
}
