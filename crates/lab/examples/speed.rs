//! Prints how many verbs the simulator performs per second of CPU time, with a modelled NIC at both ends.
//!
//! `cargo run --release -p sinew-lab --example speed -- [NIC]`
use sinew_harness::load::verbs::{Op, TransportKind, VerbsPlan};
use sinew_lab::nics::rates;
use sinew_lab::nics::verbs::{Threads, run};
use sinew_sim::nic::Profile;

/// Virtual time that is measured, so long that the time before it counts little.
const MEASURED_NS: u64 = 10_000_000;
/// Requests in flight of each queue pair.
const WINDOW: usize = 16;
/// Queue pairs per thread, threads, and hosts that are asked.
const SHAPES: [(usize, usize, usize); 3] = [(1, 1, 1), (4, 4, 1), (4, 8, 8)];

fn main() {
    let name = std::env::args().nth(1).unwrap_or_else(|| "cx3".to_owned());
    let Some(nic) = Profile::built_in(&name) else {
        eprintln!("there is no NIC {name}");
        std::process::exit(2);
    };
    for (op, carrier, what) in [
        (Op::Write, TransportKind::Uc, "WRITE of 32 B over UC, inline"),
        (Op::Read, TransportKind::Rc, "READ of 32 B"),
        (Op::Send, TransportKind::Ud, "SEND of 32 B over UD, inline"),
    ] {
        for (qps, threads, hosts) in SHAPES {
            let plan = VerbsPlan { window: WINDOW, qps, ..rates::plan(op, carrier, 32, 1) };
            let began_ns = worked_ns();
            let found = run(&nic, &plan, Threads::outbound(threads, hosts), MEASURED_NS);
            let worked_s = (worked_ns() - began_ns) as f64 / 1e9;
            // The time before measuring has the same rate of verbs.
            let verbs = found.sent_mops * (MEASURED_NS + sinew_lab::nics::verbs::WARM_UP_NS) as f64 / 1e9;
            println!(
                "{what}, {threads} threads with {qps} queue pairs, {hosts} hosts asked: {:.3} M verbs/s ({verbs:.2} M in {worked_s:.2} s)",
                verbs / worked_s,
            );
        }
    }
}

/// CPU time of this thread, in ns, to which other programs on the core matter less than to wall-clock time.
fn worked_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the time comes first")
}
