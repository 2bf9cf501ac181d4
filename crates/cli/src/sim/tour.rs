//! The tour's part about simulated clusters: an incast, with and without congestion control.

use anyhow::ensure;
use comfy_table::{Table, presets};
use sinew::rpc::Congestion;
use sinew_lab::incast::{Incast, Outcome, RATE_GBPS};

use sinew_harness::units;

const CLIENTS: usize = 20;
const MS: u64 = 1_000_000;

/// Outcomes of the incast without congestion control, and with it.
pub type Outcomes = [(&'static str, Outcome); 2];

/// Lets twenty hosts of nsdi19's CX4 cluster send to one, and checks that congestion control shortens the queue and
/// leaves no link idle.
///
/// # Errors
///
/// A check that failed, which does not happen.
pub fn measure(is_quick: bool) -> anyhow::Result<Outcomes> {
    let ms = if is_quick { 3 } else { 10 };
    let run =
        |congestion| Incast { warm_up_ns: ms * MS, measured_ns: ms * MS, ..Incast::of(CLIENTS, congestion) }.run();
    let [without, with] = [None, Some(Congestion::swift(RATE_GBPS))].map(run);
    let median_us = |outcome: &Outcome| outcome.rtt_p50_us.unwrap_or(f64::INFINITY);
    ensure!(median_us(&without) > 100.0, "without congestion control round trips take {} us", median_us(&without));
    ensure!(median_us(&with) < median_us(&without) / 2.0, "with it they take {} us", median_us(&with));
    for gbps in [without.gbps, with.gbps] {
        ensure!((RATE_GBPS / 2.0..RATE_GBPS).contains(&gbps), "{gbps} Gbps go over a link of {RATE_GBPS}");
    }
    Ok([("without congestion control", without), ("with Swift", with)])
}

/// Table of the outcomes.
pub fn show(seen: &Outcomes) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_width(crate::output::width() as u16).set_header([
        "simulated: 20 hosts send 8 MB to one",
        "data",
        "round trips\np50 / p99",
    ]);
    for (name, outcome) in seen {
        let times =
            [outcome.rtt_p50_us, outcome.rtt_p99_us].map(|us| us.map_or(String::new(), |us| units::time(us * 1e3)));
        table.add_row([(*name).to_owned(), format!("{} Gbps", units::figure(outcome.gbps)), times.join(" / ")]);
    }
    let note = "On a cluster of a hundred hosts in virtual time (nsdi19's CX4, links of 25 Gbps); these figures are the \
                same on every machine.";
    format!("{table}\n{}", units::wrapped(note, crate::output::width(), 2))
}
