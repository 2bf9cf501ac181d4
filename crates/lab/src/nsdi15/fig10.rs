//! Figure 10 without a network card: the lookups of the applications, and frames through them.

use std::time::Duration;

use sinew_harness::forwarding;
use sinew_harness::lookups::{Ipv4, Ipv6, Names, Stations, TRACE};

use super::{beside, forms, frames, measured, pinned, processor};
use crate::experiment::{Experiment, Row};

/// Experiment for Figure 10.
pub struct Fig10;

/// Numbers of IPv4 and IPv6 routes, of stations, of prefixes of names, and of keys.
#[derive(Clone, Copy)]
struct Sizes {
    ipv4: usize,
    ipv6: usize,
    stations: usize,
    names: usize,
    keys: usize,
}

const SIZES: Sizes = Sizes { ipv4: 527_961, ipv6: 200_000, stations: 60_000_000, names: 10_000_000, keys: TRACE };

/// Lookups: name, title, and the paper's packets per second of one core in millions, plain and with G-Opt.
const LOOKUPS: [(&str, &str, f64, f64); 4] = [
    ("ipv4", "IPv4", 16.0 / 1.59, 16.0),
    ("ipv6", "IPv6", 2.2, 8.4),
    ("l2", "layer-2 switch", 9.8 / 1.86, 9.8),
    ("ndn", "named data", 4.8, 7.3),
];

fn run_of(sizes: Sizes, slice: Duration, progress: &mut dyn FnMut(f64)) -> Vec<[Option<f64>; 3]> {
    let mut found = Vec::new();
    found.push(pinned(|| Some(forms(Ipv4::new(sizes.ipv4).ok()?, sizes.keys, slice))));
    progress(0.2);
    found.push(pinned(|| Some(forms(Ipv6::new(sizes.ipv6).ok()?, sizes.keys, slice))));
    progress(0.4);
    found.push(pinned(|| Some(forms(Stations::new(sizes.stations).ok()?, sizes.keys, slice))));
    progress(0.7);
    found.push(pinned(|| Some(forms(Names::new(sizes.names).ok()?, sizes.keys, slice))));
    progress(1.0);
    found.into_iter().map(Option::unwrap_or_default).collect()
}

/// Most frames that are drawn in advance.
const FRAMES: usize = 1 << 20;
/// Rate of the paper's echo, which looks nothing up, on one core, in M/s.
const ECHO: f64 = 17.5;

/// Rates of frames: echo, and then the applications in the order of [`LOOKUPS`].
fn frames_of(sizes: Sizes, slice: Duration, progress: &mut dyn FnMut(f64)) -> [[Option<f64>; 3]; 5] {
    let count = sizes.keys.min(FRAMES);
    let echo = pinned(|| Some(frames(forwarding::echo(count).ok()?, slice)));
    progress(0.55);
    let ipv4 = pinned(|| Some(frames(forwarding::ipv4(sizes.ipv4, count).ok()?, slice)));
    progress(0.65);
    let ipv6 = pinned(|| Some(frames(forwarding::ipv6(sizes.ipv6, count).ok()?, slice)));
    progress(0.75);
    let switch = pinned(|| Some(frames(forwarding::switch(sizes.stations, count).ok()?, slice)));
    progress(0.9);
    let names = pinned(|| Some(frames(forwarding::names(sizes.names, count).ok()?, slice)));
    progress(1.0);
    [echo, ipv4, ipv6, switch, names].map(Option::unwrap_or_default)
}

impl Experiment for Fig10 {
    fn id(&self) -> &'static str {
        "nsdi15-fig10"
    }

    fn title(&self) -> &'static str {
        "Forwarding by one core: lookups, and frames"
    }

    fn source(&self) -> &'static str {
        "nsdi15 4.4, Figure 10"
    }

    fn setup(&self) -> &'static str {
        "Measured on this machine, on one core, without a network card. Lookups are of random addresses among 527,961 \
         IPv4 routes with about the lengths of BGP's; of addresses in 200,000 random IPv6 prefixes of 48 to 64 bits; \
         of 60 million stations of a switch; and of names of 36 bytes with one of 10 million prefixes of two or three \
         components. They are made one after the other, and interleaved, 32 at once, in turn: medians of seven slices \
         of 60 ms. Then frames pass in bursts of 32 through the applications over the same tables, headers, neighbours \
         and all; each frame is written anew before it does."
    }

    fn remark(&self) -> &'static str {
        "The paper's figures are for whole packets through a NIC: they stand beside these to show the order, and the \
         differences mean nothing."
    }

    fn measures_on(&self) -> Vec<usize> {
        processor().into_iter().collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let found = run_of(SIZES, super::SLICE, &mut |part| progress(part / 2.0));
        let [echo, applications @ ..] = frames_of(SIZES, super::SLICE, progress);
        let mut rows = Vec::new();
        for ((name, case, paper_plain, paper), [plain, interleaved, _]) in LOOKUPS.into_iter().zip(found) {
            let row = measured(format!("gopt.lookup.{name}.plain"), "lookups, plain", plain, "M/s").case(case);
            rows.push(beside(row, "4.4, Figure 10", paper_plain, "packets through a NIC"));
            let row = measured(format!("gopt.lookup.{name}"), "lookups, interleaved", interleaved, "M/s").case(case);
            rows.push(beside(row, "4.4, Figure 10", paper, "packets through a NIC"));
        }
        let row = measured("gopt.forward.echo", "frames", echo[0], "M/s").case("echo");
        rows.push(beside(row, "4.4, Figure 10", ECHO, "packets through a NIC"));
        for ((name, case, paper_plain, paper), [plain, interleaved, _]) in LOOKUPS.into_iter().zip(applications) {
            let row = measured(format!("gopt.forward.{name}.plain"), "frames, plain", plain, "M/s").case(case);
            rows.push(beside(row, "4.4, Figure 10", paper_plain, "packets through a NIC"));
            let row = measured(format!("gopt.forward.{name}"), "frames, interleaved", interleaved, "M/s").case(case);
            rows.push(beside(row, "4.4, Figure 10", paper, "packets through a NIC"));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lookup_has_its_rates() {
        let sizes = Sizes { ipv4: 1000, ipv6: 100, stations: 1000, names: 1000, keys: 8192 };
        let found = run_of(sizes, Duration::from_millis(1), &mut |_| {});
        assert!(found.len() == LOOKUPS.len() && found.iter().flatten().all(Option::is_some), "{found:?}");
        let found = frames_of(sizes, Duration::from_millis(1), &mut |_| {});
        assert!(found.iter().flatten().all(Option::is_some), "{found:?}");
    }
}
