//! Peak rates of NICs, with the threads, queue pairs and windows that suit them best, as real NICs are tuned for
//! measurements.

use sinew_harness::load::verbs::{EchoForm, Op, TransportKind, VerbsPlan, WorkKind};
use sinew_sim::nic::Profile;

use super::verbs::{Threads, VerbsResult, run};

/// Measured duration of each run, in virtual time.
const MEASURED_NS: u64 = 60_000;
/// Hosts at the other end.
const OTHERS: usize = 8;

/// A plan for requests of one kind, with `doorbell` requests per doorbell.
pub fn plan(op: Op, carrier: TransportKind, size: usize, doorbell: usize) -> VerbsPlan {
    let inline = matches!(op, Op::Send | Op::Write) && size <= 256 && size > 0;
    VerbsPlan { doorbell, inline, signal: 16, window: 32, ..VerbsPlan::new(WorkKind::Load(op), carrier, size) }
}

/// A plan for datagram SENDs without payload, which carry an immediate.
pub fn header_only(doorbell: usize) -> VerbsPlan {
    VerbsPlan { header_only: true, inline: false, ..plan(Op::Send, TransportKind::Ud, 8, doorbell) }
}

/// The best run over numbers of threads, of queue pairs for each thread, and of windows.
fn best(
    of: impl Fn(usize, usize, usize) -> VerbsResult,
    threads: &[usize],
    by: fn(&VerbsResult) -> f64,
) -> VerbsResult {
    let mut best: Option<VerbsResult> = None;
    for threads in threads {
        for (qps, window) in [(1, 32), (2, 16), (4, 16), (8, 16)] {
            let found = of(*threads, qps, window);
            if best.as_ref().is_none_or(|best| by(&found) > by(best)) {
                best = Some(found);
            }
        }
    }
    best.expect("something was tried")
}

/// The run in which one host's NIC sends the most requests of a kind.
pub fn outbound(profile: &Profile, plan: &VerbsPlan) -> VerbsResult {
    let cores = profile.core.count;
    let of = |threads, qps, window| {
        run(profile, &VerbsPlan { qps, window, ..plan.clone() }, Threads::outbound(threads, OTHERS), MEASURED_NS)
    };
    best(of, &[cores, cores / 2, 4], |found| found.sent_mops)
}

/// A run in which one host's NIC takes requests of a kind from others. If requests consume the host's receives,
/// the host has one thread per core; otherwise it has one thread.
pub fn inbound(profile: &Profile, plan: &VerbsPlan) -> VerbsResult {
    let asked = if plan.takes_receives() { profile.core.count } else { 1 };
    let threads = Threads::inbound(8 * OTHERS, OTHERS, asked);
    run(profile, &VerbsPlan { window: 16, ..plan.clone() }, threads, MEASURED_NS)
}

/// A plan for short messages that the other end echoes.
pub fn echo_plan(form: EchoForm, carrier: TransportKind, size: usize) -> VerbsPlan {
    VerbsPlan { window: 4, signal: 64, inline: true, ..VerbsPlan::new(WorkKind::Echo(form), carrier, size) }
}

/// A run in which one host echoes messages: `threads` threads answer the requests of 12 threads on 12 hosts,
/// whose queue pairs fit in the NIC's cache.
pub fn echoes(profile: &Profile, form: EchoForm, carrier: TransportKind, size: usize, threads: usize) -> VerbsResult {
    run(profile, &echo_plan(form, carrier, size), Threads::inbound(12, 12, threads), MEASURED_NS)
}

/// Most requests per second that one thread sends with `qps` queue pairs, in millions.
pub fn of_one_core(profile: &Profile, plan: &VerbsPlan, qps: usize) -> f64 {
    let found = run(profile, &VerbsPlan { qps, ..plan.clone() }, Threads::outbound(1, OTHERS), MEASURED_NS);
    found.sent_mops
}
