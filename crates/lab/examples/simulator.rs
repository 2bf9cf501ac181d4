//! Prints how many packets the simulator delivers per second of CPU time, with small calls from all threads to all
//! others.
//!
//! `cargo run --release -p sinew-lab --example simulator -- [NODESxTHREADS:MICROSECONDS...]`
use sinew_lab::small_calls::SmallCalls;
use sinew_sim::Topology;

/// Nodes, threads per node, and microseconds that are simulated once all sessions are open.
const RUNS: [&str; 3] = ["11x1:20000", "100x1:4000", "100x10:1000"];
const WARM_UP_NS: u64 = 1_000_000;

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let runs = if given.is_empty() { RUNS.map(str::to_owned).to_vec() } else { given };
    for run in runs {
        let Some([nodes, threads, measured_us]) = parse(&run) else {
            eprintln!("{run} is not NODESxTHREADS:MICROSECONDS, such as 11x1:20000");
            std::process::exit(2);
        };
        let calls = SmallCalls {
            nodes,
            threads,
            batch: 3,
            window: 60,
            rate_gbps: Some(25.0),
            warm_up_ns: WARM_UP_NS,
            measured_ns: measured_us as u64 * 1000,
        };
        let began_ns = worked_ns();
        let mut counted_ns = began_ns;
        let outcome = calls.run(Topology::cx4(), &mut |part| {
            if part <= SmallCalls::COUNTED_FROM {
                counted_ns = worked_ns();
            }
        });
        let counted_s = (worked_ns() - counted_ns) as f64 / 1e9;
        let set_up_s = (counted_ns - began_ns) as f64 / 1e9;
        println!(
            "{run}: {:.3} M packets/s ({:.2} M in {counted_s:.2} s, after {set_up_s:.2} s), {} calls, {} retransmissions",
            outcome.delivered as f64 / counted_s / 1e6,
            outcome.delivered as f64 / 1e6,
            outcome.calls,
            outcome.retransmissions,
        );
    }
}

/// CPU time of this thread, in ns, to which other programs on the core matter less than to wall-clock time.
fn worked_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the time comes first")
}

fn parse(run: &str) -> Option<[usize; 3]> {
    let (nodes, rest) = run.split_once('x')?;
    let (threads, measured_us) = rest.split_once(':')?;
    let numbers = [nodes, threads, measured_us].map(|text| text.parse().ok().filter(|number| *number > 0));
    let [Some(nodes), Some(threads), Some(measured_us)] = numbers else { return None };
    Some([nodes, threads, measured_us])
}
