//! What keeps a design from doing more.

use std::borrow::Cow;

use sinew_sim::nic::{NicStats, NicUse};

use super::design::{Design, Placement};
use super::plan::Plan;
use super::trial::Outcome;
use super::workload::{Goal, Kind};

/// What limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The processing units of the server's NIC that work on others' requests.
    Responders,
    /// Those that send what the server asks for.
    Requesters,
    /// The units wait for states of queue pairs that the NIC does not remember.
    States,
    /// PCI Express to the server's NIC.
    PcieDown,
    /// PCI Express from it.
    PcieUp,
    /// Lines that cores write to the NIC.
    Mmio,
    /// The server's link.
    Link,
    /// The lock of the NIC that atomics of one address, or of like ones, share.
    AtomicLock,
    /// The clients' cores.
    ClientCpu,
    /// The server's.
    ServerCpu,
    /// The NICs of the clients' hosts.
    ClientNic,
    /// Nothing is busy: the way there and back, so many times one after the other for an access.
    RoundTrips(usize),
}

impl Limit {
    /// A few words.
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

/// From this on a part is what limits.
const BUSY: f64 = 0.85;
/// Misses of states for a request, from which on they are what the units wait for.
const MISSES: f64 = 0.2;

/// What limits a run, and how busy it was, from 0 to 1.
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

/// How busy the NIC's lock of atomics is that is used most.
fn atomic_lock(plan: &Plan, outcome: &Outcome) -> f64 {
    let Design::Atomics(placement) = plan.design else { return 0.0 };
    let units = plan.profile.units;
    // Words have 8 bytes: of the low bits three say nothing.
    let words = (units.atomic_locks as usize / 8).max(1);
    let used = match (plan.workload.kind, placement) {
        (Kind::Locks, Placement::Spread) => words.min(plan.workload.locks),
        _ => 1,
    };
    (outcome.rate_mops * units.atomic_hold_ns as f64 / 1e3 / used as f64).min(1.0)
}
