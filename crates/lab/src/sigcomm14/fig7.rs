//! Figure 7: echoes with accesses to memory, and prefetching.

use sinew_harness::load::verbs::{Carrier, Form};

use super::apt;
use crate::atc16::row;
use crate::experiment::{Experiment, Row};
use crate::nics::rates;

/// See the module.
pub struct Fig7;

/// Accesses that a core has on their way: its line fill buffers.
const OVERLAPPED: u64 = 10;
const ACCESSES: [u64; 2] = [2, 8];
/// This part of the peak is taken for it.
const PEAK: f64 = 0.95;

impl Experiment for Fig7 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig7"
    }

    fn title(&self) -> &'static str {
        "Echoes with accesses to memory, and prefetching"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 4.1.1, Figure 7"
    }

    fn setup(&self) -> &'static str {
        "Threads of a host with a modelled ConnectX-3 make some accesses to memory for each message of 32 B that is written to them, and send it back. \
         Without prefetching each access takes its 90 ns; with it, as many as a core has line fill buffers overlap."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let nic = apt();
        let mut rows = Vec::new();
        for (step, accesses) in ACCESSES.into_iter().enumerate() {
            let mut needed = None;
            let mut peak = 0.0;
            for (at, cores) in (1..=nic.core.count).rev().enumerate() {
                progress((step * nic.core.count + at) as f64 / (ACCESSES.len() * nic.core.count) as f64);
                let of = |work_ns| rates::echoes(&nic, Form::Ws, Carrier::Uc, 32, (cores, work_ns)).answered_mops;
                let plain = of(accesses * nic.core.memory_ns);
                let prefetched = of(accesses * nic.core.memory_ns / OVERLAPPED);
                for (name, what, mops) in [("plain", "no prefetching", plain), ("prefetch", "prefetching", prefetched)]
                {
                    let id = format!("herd14.fig7.{name}{accesses}.{cores}");
                    let case = format!("{accesses} accesses, {what}");
                    rows.push(row(&nic, (&id, ""), &case, &format!("{cores} cores"), (None, mops), "M/s"));
                }
                if cores == nic.core.count {
                    peak = prefetched;
                }
                if prefetched >= PEAK * peak {
                    needed = Some(cores);
                }
            }
            if accesses == 8 {
                let cores = needed.unwrap_or(nic.core.count) as f64;
                let metric = "cores for the peak rate";
                let case = "8 accesses, prefetching";
                rows.push(row(&nic, ("herd14.prefetch", "4.1.1"), case, metric, (Some(5.0), cores), "cores"));
            }
        }
        rows
    }
}
