//! The most that NICs do: rates with the threads, queue pairs and windows that suit them best, as those who measure real ones tune them.

use sinew_harness::load::verbs::{Carrier, Form, Op, VerbsPlan, Work};
use sinew_sim::nic::Profile;

use super::verbs::{Found, Threads, run};

/// How long each is measured.
const MEASURED_NS: u64 = 60_000;
/// Hosts at the other end.
const OTHERS: usize = 8;

/// Requests of one kind, as many as a doorbell starts.
pub fn plan(op: Op, carrier: Carrier, size: usize, doorbell: usize) -> VerbsPlan {
    let inline = matches!(op, Op::Send | Op::Write) && size <= 256 && size > 0;
    VerbsPlan { doorbell, inline, signal: 16, window: 32, ..VerbsPlan::new(Work::Load(op), carrier, size) }
}

/// SENDs of datagrams without bytes, which carry an immediate.
pub fn header_only(doorbell: usize) -> VerbsPlan {
    VerbsPlan { header_only: true, inline: false, ..plan(Op::Send, Carrier::Ud, 8, doorbell) }
}

/// The best of what some queue pairs a thread, and windows, come to.
fn best(of: impl Fn(usize, usize, usize) -> Found, threads: &[usize], by: fn(&Found) -> f64) -> Found {
    let mut best: Option<Found> = None;
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

/// The most requests of a kind that one host's NIC sends, in millions a second.
pub fn outbound(profile: &Profile, plan: &VerbsPlan) -> Found {
    let cores = profile.core.count;
    let of = |threads, qps, window| {
        run(profile, &VerbsPlan { qps, window, ..plan.clone() }, Threads::outbound(threads, OTHERS), MEASURED_NS)
    };
    best(of, &[cores, cores / 2, 4], |found| found.sent_mops)
}

/// The most requests of a kind that one host's NIC takes from others, in millions a second. As many threads are asked as the host has cores, where they
/// have to do anything.
pub fn inbound(profile: &Profile, plan: &VerbsPlan) -> Found {
    let asked = if plan.takes_receives() { profile.core.count } else { 1 };
    let threads = Threads::inbound(8 * OTHERS, OTHERS, asked);
    run(profile, &VerbsPlan { window: 16, ..plan.clone() }, threads, MEASURED_NS)
}

/// Short messages that come back.
pub fn echo_plan(form: Form, carrier: Carrier, size: usize) -> VerbsPlan {
    VerbsPlan { window: 4, signal: 64, inline: true, ..VerbsPlan::new(Work::Echo(form), carrier, size) }
}

/// The most messages that one host's NIC sends back, in millions a second: so many threads answer requests of 12 threads
/// on 12 hosts, whose queue pairs the NIC remembers.
pub fn echoes(profile: &Profile, form: Form, carrier: Carrier, size: usize, threads: usize) -> Found {
    run(profile, &echo_plan(form, carrier, size), Threads::inbound(12, 12, threads), MEASURED_NS)
}

/// The most that one thread sends with so many queue pairs, in millions a second.
pub fn of_one_core(profile: &Profile, plan: &VerbsPlan, qps: usize) -> f64 {
    let found = run(profile, &VerbsPlan { qps, ..plan.clone() }, Threads::outbound(1, OTHERS), MEASURED_NS);
    found.sent_mops
}
