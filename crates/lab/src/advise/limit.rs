//! The bottleneck of a design.

use std::borrow::Cow;

use sinew_sim::nic::{NicStats, NicUse};

use super::design::{Design, Placement};
use super::plan::Plan;
use super::trial::Outcome;
use super::workload::{Goal, WorkloadKind};

/// Bottleneck of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The processing units of the server's NIC that handle others' requests.
    Responders,
    /// The processing units of the server's NIC that send what the server posts.
    Requesters,
    /// The same units, waiting for queue pair states that the NIC does not have in its cache.
    States,
    /// PCI Express to the server's NIC.
    PcieDown,
    /// PCI Express from the server's NIC.
    PcieUp,
    /// Lines that cores write to the NIC.
    Mmio,
    /// The server's link.
    Link,
    /// The NIC's lock that atomics on one address share, or on addresses that are alike in their low bits.
    AtomicLock,
    /// The clients' cores.
    ClientCpu,
    /// The server's cores.
    ServerCpu,
    /// The NICs of the clients' hosts.
    ClientNic,
    /// Nothing is busy: an access takes this many round trips, one after the other.
    RoundTrips(usize),
}

impl Limit {
    /// Short name, shown to people.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Responders => "NIC, responders",
            Self::Requesters => "NIC, requesters",
            Self::States => "queue pair states",
            Self::PcieDown => "PCIe to the NIC",
            Self::PcieUp => "PCIe from the NIC",
            Self::Mmio => "MMIO",
            Self::Link => "link",
            Self::AtomicLock => "atomics' lock",
            Self::ClientCpu => "client CPU",
            Self::ServerCpu => "server CPU",
            Self::ClientNic => "clients' NICs",
            Self::RoundTrips(1) => "one round trip",
            Self::RoundTrips(count) => return Cow::Owned(format!("{count} round trips")),
        })
    }
}

/// Share of time from which on a busy part is the bottleneck.
const BUSY: f64 = 0.85;
/// State misses per request from which on the units wait for states.
const MISSES: f64 = 0.2;

/// Returns what limits a run, and how busy it was, from 0 to 1.
pub fn limit(plan: &Plan, outcome: &Outcome) -> (Limit, f64) {
    let round_trips = Limit::RoundTrips(plan.steps(plan.workload.read_share == 0.0));
    if plan.workload.goal == Goal::Latency {
        return (round_trips, 0.0);
    }
    let (stats, usage): (NicStats, NicUse) = outcome.nics[1];
    let each = |count: u64| count as f64 / (outcome.rate_mops * outcome.measured_ns as f64 / 1e3).max(1.0);
    let misses = each(stats.requester_misses + stats.responder_misses);
    let of_units = |limit| if misses > MISSES { Limit::States } else { limit };
    let mmio = stats.mmio_lines as f64 * plan.profile.units.mmio_line_ns / outcome.measured_ns as f64;
    let client = outcome.nics[0].1;
    // Fetched states cross the bus, too.
    let down = if misses > MISSES { Limit::States } else { Limit::PcieDown };
    let parts = [
        (of_units(Limit::Responders), usage.responders),
        (of_units(Limit::Requesters), usage.requesters),
        (down, usage.pcie_down),
        (Limit::PcieUp, usage.pcie_up),
        (Limit::Mmio, mmio.min(1.0)),
        (Limit::Link, usage.transmit.max(usage.receive)),
        (Limit::AtomicLock, atomic_lock(plan, outcome)),
        (Limit::ServerCpu, outcome.cores.1),
        (Limit::ClientCpu, outcome.cores.0),
        (Limit::ClientNic, client.requesters.max(client.responders).max(client.pcie_down).max(client.pcie_up)),
    ];
    let busiest = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are parts");
    if busiest.1 >= BUSY { busiest } else { (round_trips, busiest.1) }
}

/// Share of time that the NIC's busiest lock of atomics is held, from 0 to 1.
fn atomic_lock(plan: &Plan, outcome: &Outcome) -> f64 {
    let Design::Atomics(placement) = plan.design else { return 0.0 };
    let units = plan.profile.units;
    // Words have 8 bytes, so the three lowest bits of an address tell no words apart.
    let words = (units.atomic_locks as usize / 8).max(1);
    let used = match (plan.workload.kind, placement) {
        (WorkloadKind::Locks, Placement::Spread) => words.min(plan.workload.locks),
        _ => 1,
    };
    (outcome.rate_mops * units.atomic_hold_ns as f64 / 1e3 / used as f64).min(1.0)
}
