//! Figure 5: registering the caller's memory, against copying to registered memory.

use std::hint::black_box;

use sinew_fabric::Clock;
use sinew_host::{HostClock, pin_pages};
use sinew_sim::nic::Registration;

use super::{profile, row};
use crate::experiment::{Comparison, Experiment, Row};

/// Experiment for Figure 5.
pub struct Fig5;

const PAGE: usize = 4096;
/// Longest memory that is registered or copied, in bytes; processes may usually pin as much. Lengths are powers of two.
const LEN_MAX: usize = 4 << 20;
/// Measurements of each on this machine; the two take turns.
const ROUNDS: usize = 31;

/// Time in ns that a simulated host takes to register `len` bytes, and to copy them.
fn modelled(registration: &Registration, len: usize) -> [f64; 2] {
    let pages = len.div_ceil(PAGE) as u64;
    let registers_ns = registration.call_ns + pages * registration.page_ns;
    [registers_ns as f64, len as f64 / registration.copy_bytes_per_ns]
}

/// Least number of bytes, in whole pages, that take no longer to register than to copy.
fn threshold(takes_ns: impl Fn(usize) -> [f64; 2]) -> Option<usize> {
    (PAGE..=16 << 20).step_by(PAGE).find(|len| {
        let [registers_ns, copies_ns] = takes_ns(*len);
        registers_ns <= copies_ns
    })
}

fn sizes() -> impl Iterator<Item = usize> {
    (0..).map(|power| PAGE << power).take_while(|len| *len <= LEN_MAX)
}

/// Time in ns that this machine takes to pin and unpin the pages of `len` bytes, and to copy the bytes, all of them in
/// memory; none if it may not pin them.
fn measured(len: usize) -> Option<[f64; 2]> {
    let clock = HostClock::new();
    let source = vec![1u8; len];
    let mut target = vec![0u8; len];
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let began_ns = clock.now_ns();
        drop(pin_pages(&source).ok()?);
        let pinned_ns = clock.now_ns();
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
        times[0].push(pinned_ns - began_ns);
        times[1].push(clock.now_ns() - pinned_ns);
    }
    Some(times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2] as f64
    }))
}

impl Experiment for Fig5 {
    fn id(&self) -> &'static str {
        "rdmabox-fig5"
    }

    fn title(&self) -> &'static str {
        "Registering memory, against copying to registered memory"
    }

    fn source(&self) -> &'static str {
        "rdmabox IV-A, Figure 5b"
    }

    fn setup(&self) -> &'static str {
        "The charges of a host with a modelled ConnectX-3, in user space, for registering memory and for copying it, \
         from its profile; nothing is run. Beside them are the times that this machine takes to pin and unpin the \
         pages, which is the system's part of a registration and not the NIC's, and to copy the bytes; medians of 31. \
         The pages are in memory already."
    }

    fn remark(&self) -> &'static str {
        "That the two lines cross at 928 KB is how the profile's cost of a page was calibrated, and proves nothing. \
         For the kernel's registration by physical addresses (Figure 5a) the text has no figure; it only says that it \
         is always cheaper than a copy."
    }

    fn run(&self, _: &mut dyn FnMut(f64)) -> Vec<Row> {
        let registration = profile().registration;
        let mut rows = Vec::new();
        let kib = |len: usize| len as f64 / 1024.0;
        if let Some(at) = threshold(|len| modelled(&registration, len)) {
            let metric = "size from which registering is cheaper";
            let id = "box.reg_vs_copy.user";
            rows.push(row(id, "IV-A, Figure 5b", metric, Comparison::Calibrated, (928.0, kib(at)), "KB"));
        }
        let of_row = |id: String, metric: String, model, measured| Row {
            model,
            measured,
            ..Row::open(format!("box.fig5.{id}"), metric, "us")
        };
        for len in sizes() {
            let kib = kib(len);
            let model = modelled(&registration, len).map(|ns| Some(ns / 1e3));
            let here = measured(len).map_or([None; 2], |times| times.map(|ns| Some(ns / 1e3)));
            for (at, what) in ["registering", "copying"].into_iter().enumerate() {
                let id = format!("{what}.{kib}");
                rows.push(of_row(id, format!("{what} {kib} KB"), model[at], None).case("user space, ConnectX-3"));
            }
            for (at, (id, what)) in [("pinning", "pinning, letting go of"), ("here", "copying")].into_iter().enumerate()
            {
                let row = of_row(format!("{id}.{kib}"), format!("{what} {kib} KB"), None, here[at]);
                rows.push(row.case("this machine: the system's part alone"));
            }
        }
        rows.sort_by_key(|row| row.case.clone());
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registering_is_cheaper_from_928_kb_on_and_copying_below() {
        let registration = profile().registration;
        // "In user space, threshold that MR registration gets better is 928KB in our measurement" (IV-A).
        assert_eq!(threshold(|len| modelled(&registration, len)), Some(928 << 10));
        let [registers, copies] = modelled(&registration, 512 << 10);
        assert!(copies < registers);
    }

    #[test]
    fn what_this_machine_needs_grows_with_the_size_where_it_may_pin() {
        if let (Some([small, _]), Some([large, _])) = (measured(PAGE), measured(LEN_MAX)) {
            assert!(0.0 < small && small < large, "{small} {large}");
        }
    }
}
