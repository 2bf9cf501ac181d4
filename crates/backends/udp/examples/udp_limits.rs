//! Prints the rates of plain UDP on the loopback device of this machine, in every mode.
//!
//! `cargo run --release -p sinew-udp --example udp_limits -- [MILLISECONDS per figure]`
use std::time::Duration;

use sinew_udp::raw::{Mode, RunConfig, echo, one_way, ping_pong};

const MODES: [Mode; 4] = [Mode::Single, Mode::List, Mode::Segments, Mode::Joined];

fn main() -> std::io::Result<()> {
    let millis = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100);
    let cpus = std::thread::available_parallelism()?.get();
    let run = RunConfig { duration: Duration::from_millis(millis), cpus: (cpus > 1).then_some([0, 1]) };
    let mut trips_ns = ping_pong(run, 56)?;
    trips_ns.sort_unstable();
    println!("round trip 56 B: p50 {} ns", trips_ns[trips_ns.len() / 2]);
    let sizes = [(56, 1), (56, 60), (1_472, 44), (3_700, 17), (8_000, 8), (16_000, 4), (60_000, 1)];
    for (packet_len, per_call) in sizes {
        print!("one way {packet_len} B x {per_call}:");
        for mode in MODES {
            let rate = one_way(run, mode, packet_len, per_call)?;
            print!("  {mode:?} {:.2} M/s {:.2} GB/s", rate.packets_per_s() / 1e6, rate.bytes_per_s() / 1e9);
        }
        println!();
    }
    for window in [1, 60, 512] {
        print!("echo 56 B, window {window}:");
        for mode in MODES {
            let rate = echo(run, mode, 56, window, 3)?;
            print!("  {mode:?} {:.2} M/s", rate.packets_per_s() / 1e6);
        }
        println!();
    }
    Ok(())
}
