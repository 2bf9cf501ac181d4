//! Words for a design's performance and its settings, each with the sections of the papers that say so.

use sinew_harness::units;
use sinew_sim::nic::Profile;

use super::design::{Chain, Design, Placement, Settings, Wait};
use super::limit::Limit;
use super::plan::Plan;
use super::workload::{CpuLoad, Goal, Workload, WorkloadKind};

/// A sentence, and the sections on which it rests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guideline {
    /// The sentence.
    pub text: String,
    /// Sections of the papers that say so.
    pub sections: &'static str,
}

fn says(text: impl Into<String>, sections: &'static str) -> Guideline {
    Guideline { text: text.into(), sections }
}

/// Explains the performance of a design.
pub fn why(plan: &Plan, limit: Limit) -> Guideline {
    let Plan { design, workload, profile, reads, .. } = plan;
    let of_limit = match limit {
        Limit::States => return says(format!("{}; {}", of(*design), STATES), "nsdi19 4.1.2, sigcomm14 3.3, atc16 3.5"),
        Limit::RoundTrips(_) => String::new(),
        other => format!("; the limit is {}", limit_text(other)),
    };
    match design {
        Design::Reads(Chain::Neighbourhood) => {
            says(format!("one round trip, and {} B over the link for it{of_limit}", reads[0]), "atc16 5.3.1")
        }
        Design::Reads(Chain::Pointers) if workload.accesses == 1 => {
            says(format!("one round trip without the server's processor{of_limit}"), "sigcomm14 3.2.1, apnet19 4.1")
        }
        Design::Reads(Chain::Pointers) => says(
            format!("{} round trips without the server's processor{of_limit}", workload.accesses),
            "apnet19 4.1, sigcomm14 3.2.2",
        ),
        Design::Reads(Chain::Entry | Chain::Buckets) => {
            let count = (reads.len() as f64 - 1.0 + design.first_share()).to_string();
            says(format!("{count} small READs for a GET{of_limit}"), "atc16 5.3.1, atc16 4.3")
        }
        Design::Atomics(_) if limit == Limit::AtomicLock && profile.units.atomic_locks == 1 => {
            says("this NIC has one lock for all atomics, held for a round trip of PCI Express", "atc16 3.4, atc16 5.4")
        }
        Design::Atomics(_) if limit == Limit::AtomicLock => says(
            format!(
                "atomics on addresses that agree in the {} wait for each other, for a round trip of PCI Express",
                low_bits(profile.units.atomic_locks)
            ),
            "atc16 3.4, atc16 5.4",
        ),
        Design::Atomics(_) => says(format!("no work for the server's processor{of_limit}"), "atc16 5.4"),
        other => says(format!("{}{of_limit}", of(*other)), sections_of(*other)),
    }
}

const STATES: &str = "the NIC cannot cache the states of so many connections, and fetches them";

fn of(design: Design) -> &'static str {
    match design {
        Design::Reads(_) => "READs over connections",
        Design::Atomics(_) => "atomics over connections",
        Design::WriteSend => {
            "one round trip: a WRITE is the cheapest request to take, and a datagram the cheapest answer to give"
        }
        Design::SendSend => "one round trip, and no state for each client: datagrams both ways",
        Design::HeaderOnly => "the header says everything: one DMA write for a request, one line for an answer",
        Design::Rpc => "datagrams with an RPC library's header and work, which are the price of its generality",
    }
}

fn sections_of(design: Design) -> &'static str {
    match design {
        Design::Reads(_) => "atc16 5.3.1",
        Design::Atomics(_) => "atc16 5.4",
        Design::WriteSend => "sigcomm14 3.2.2, sigcomm14 3.3",
        Design::SendSend => "sigcomm14 3.3, nsdi19 4.1.2",
        Design::HeaderOnly => "atc16 3.2, atc16 4.2.1",
        Design::Rpc => "nsdi19 4.1",
    }
}

fn limit_text(limit: Limit) -> &'static str {
    match limit {
        Limit::Responders => "what the NIC's units take from others",
        Limit::Requesters => "what the NIC's units send",
        Limit::States => "the states of queue pairs",
        Limit::PcieDown => "PCI Express to the NIC",
        Limit::PcieUp => "PCI Express from the NIC",
        Limit::Mmio => "the lines that the NIC takes by MMIO",
        Limit::Link => "the server's link",
        Limit::AtomicLock => "the lock of atomics",
        Limit::ClientCpu => "the clients' cores",
        Limit::ServerCpu => "the server's cores",
        Limit::ClientNic => "the clients' NICs",
        Limit::RoundTrips(_) => "the way there and back",
    }
}

/// A count with its noun, in the singular or the plural.
fn counted(count: usize, one: &str, several: &str) -> String {
    if count == 1 { format!("one {one}") } else { format!("{count} {several}") }
}

fn wait_text(side: &str, wait: Wait, load: CpuLoad, design: Design) -> Guideline {
    match wait {
        Wait::Poll if load == CpuLoad::Idle => {
            says(format!("{side} poll: they have nothing else to do"), "apnet19 4.1")
        }
        Wait::Poll if design == Design::WriteSend => {
            says(format!("{side} poll, even beside a busy program: nothing announces a WRITE"), "sigcomm14 4.2")
        }
        Wait::Poll => says(format!("{side} poll, even beside a busy program"), "apnet19 4.2"),
        Wait::Events => says(
            format!("{side} sleep until events: polling beside a busy program means waiting for time slices"),
            "apnet19 4.2",
        ),
        Wait::Adaptive => says(format!("{side} poll for as long as an interrupt takes, and then sleep"), "apnet19 5"),
    }
}

/// Time in ns that a client saves by polling the memory that a READ goes to: the completion is neither written nor
/// taken.
fn memory_poll_ns(profile: &Profile) -> f64 {
    profile.units.dma_write_ns * profile.units.requester_factor() + profile.core.completion_ns as f64
}

/// Describes the settings of a design.
pub fn settings(plan: &Plan) -> Vec<Guideline> {
    let Plan { profile, workload, design, settings, .. } = plan;
    let (profile, design) = (profile, *design);
    let Settings { window, batch, queue_pairs, signal, client_wait, server_wait, threads, mtu, .. } = *settings;
    let Workload { goal, client_cpu, server_cpu, .. } = *workload;
    let mut all = Vec::new();
    let is_served = design.is_served(workload);
    let calls = !matches!(design, Design::Atomics(_)) && is_served;
    if goal == Goal::Throughput {
        all.push(says(
            format!("{} in flight of each client", counted(window, "operation", "operations")),
            "atc16 5.3.2",
        ));
    }
    if calls && goal == Goal::Throughput {
        all.push(says(format!("{} at the server", counted(threads, "thread", "threads")), "sigcomm14 5.6"));
        match (batch, queue_pairs) {
            (1, _) => all.push(says("each answer written to the NIC at once, without batches", "atc16 3.1")),
            (_, 1) => all.push(says(format!("up to {batch} answers with one doorbell"), "atc16 3.1")),
            _ => all.push(says(
                format!("up to {batch} answers with one doorbell, on {queue_pairs} queue pairs of each thread in turn"),
                "atc16 3.1, atc16 3.3",
            )),
        }
    }
    if calls && design != Design::HeaderOnly {
        let (request, answer) = (plan.request(false), plan.answer(false));
        let text = match (request.inline, answer.inline) {
            (true, true) => "requests and answers inline".to_owned(),
            (false, false) => "requests and answers in memory, from which the NIC fetches them".to_owned(),
            (true, false) => format!("requests inline, answers of {} B in memory", answer.len),
            (false, true) => "answers inline, requests in memory".to_owned(),
        };
        all.push(says(text, "atc16 3.2, sigcomm14 3.2.1"));
    }
    if calls {
        let text = match signal {
            1 => "every message signaled".to_owned(),
            _ => format!("one message in {signal} signaled"),
        };
        all.push(says(text, "atc16 3.2"));
    }
    all.push(wait_text("clients", client_wait, client_cpu, design));
    if design == Design::Reads(Chain::Pointers) && client_wait == Wait::Poll && goal == Goal::Latency {
        let ns = memory_poll_ns(profile);
        all.push(says(
            format!(
                "if the interface allows it, poll the memory that the READ goes to: that saves its completion, \
                some {ns:.0} ns"
            ),
            "apnet19 4.1",
        ));
    }
    if is_served && !matches!(design, Design::Reads(_)) {
        all.push(wait_text("the server's threads", server_wait, server_cpu, design));
    }
    if workload.kind == WorkloadKind::Locks && workload.locks > 1 {
        all.push(placement(profile, design));
    }
    if workload.bulk || workload.object_bytes > 1024 {
        let by = if mtu > 1024 { "apnet19 4.1" } else { "apnet19 4.2" };
        all.push(says(format!("packets of {mtu} B"), by));
    }
    if workload.bulk {
        all.push(says(
            "send bulk transfers to other hosts, or cut them into small ones: NICs do not share fairly",
            "apnet19 4.3",
        ));
    }
    all
}

/// The bits of an address by which a NIC with this number of locks chooses one.
fn low_bits(locks: u32) -> String {
    units::counted(locks.ilog2(), "low bit")
}

/// Advises where locks should lie.
pub fn placement(profile: &Profile, design: Design) -> Guideline {
    let locks = profile.units.atomic_locks;
    match design {
        _ if locks == 1 => says("the place of locks does not matter: the NIC has one lock for all", "atc16 5.4"),
        Design::Atomics(Placement::Spread) => says(
            format!(
                "locks at different offsets of their records, or apart from them, so that their addresses differ in the {}",
                low_bits(locks)
            ),
            "atc16 5.4",
        ),
        Design::Atomics(Placement::SameBits) => {
            says("locks lie at one offset of page-aligned records, which serialises them", "atc16 5.4")
        }
        _ => says(
            format!(
                "if atomics replace calls, which takes no work of the server's processor: locks whose addresses differ \
                 in the {}",
                low_bits(locks)
            ),
            "atc16 5.4",
        ),
    }
}
