//! Trust in the model's results: how far they can be believed.

use super::plan::Plan;
use super::trial::Outcome;
use super::workload::{CpuLoad, Goal, WorkloadKind};

/// Trust in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The level of trust, in a word.
    pub level: Level,
    /// Respects in which the plan lies outside what was compared.
    pub warnings: Vec<String>,
}

/// Extent to which a NIC's model was compared with published figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// It was, for workloads of this kind.
    Compared,
    /// It was, but for other workloads.
    PartlyCompared,
    /// No published figures of this NIC are known.
    NotCompared,
}

impl Level {
    /// Name, shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compared => "compared",
            Self::PartlyCompared => "partly compared",
            Self::NotCompared => "not compared",
        }
    }
}

/// Largest objects that were compared, in bytes.
const OBJECT_MAX: usize = 4096;
/// Most clients that were compared (as many as in atc16's experiments).
const PEERS_MAX: usize = 64;

/// Returns how far a plan's results can be believed.
pub fn trust(plan: &Plan, outcome: &Outcome) -> Trust {
    let Plan { workload, profile, .. } = plan;
    let mut warnings = Vec::new();
    let mut warn = |is: bool, text: String| warnings.extend(is.then_some(text));
    let size = workload.object_bytes;
    warn(size > OBJECT_MAX, format!("objects of {size} B: nothing above {OBJECT_MAX} B was compared"));
    let peers = workload.peers;
    let many = workload.goal == Goal::Throughput && peers > PEERS_MAX;
    warn(many, format!("{peers} clients: no more than {PEERS_MAX} were compared"));
    // A latency is that of one client on its own.
    let states = profile.caches.responder_states;
    let is_forgotten = workload.goal == Goal::Latency && plan.design.is_connected() && peers > states;
    let text = format!(
        "{peers} clients: only one is simulated if the goal is latency, although the NIC remembers {states} \
         connections; all are if it is throughput"
    );
    warn(is_forgotten, text);
    let is_busy = [workload.client_cpu, workload.server_cpu].contains(&CpuLoad::Busy);
    warn(is_busy, "busy processors: the model of shared cores was not compared with figures".to_owned());
    let slice_us = super::trial::SHORT_SLICE_NS / 1000;
    let text = format!(
        "times on busy processors are for time slices of {slice_us} us, not the scheduler's; rates hardly depend on that"
    );
    warn(outcome.has_short_slices, text);
    let is_chain = workload.kind == WorkloadKind::Reads && workload.accesses > 1;
    let text =
        "dependent reads: apnet19 4.1 and 4.2 order READs and calls partly in another way; docs/advise.md says where";
    warn(is_chain, text.to_owned());
    warn(workload.bulk, "bulk traffic: the way in which NICs share was not compared with figures".to_owned());
    warn(
        workload.kind == WorkloadKind::Locks,
        "locks are simulated as if none was held: nobody waits for a holder".to_owned(),
    );
    let is_known = profile.is_validated && profile.is_built_in;
    let level = match (is_known, warnings.is_empty()) {
        (false, _) => Level::NotCompared,
        (true, true) => Level::Compared,
        (true, false) => Level::PartlyCompared,
    };
    if profile.is_validated && !profile.is_built_in {
        let text = format!(
            "{}: its file says that it was compared with measurements; only its author vouches for that",
            profile.name
        );
        warnings.insert(0, text);
    } else if !profile.is_validated {
        warnings.insert(0, format!("{}: the model was compared with no published figure of this NIC", profile.name));
    }
    Trust { level, warnings }
}
