//! Figure 2: latencies of verbs and of echoes.

use sinew_harness::load::verbs::{EchoForm, Op, TransportKind, VerbsPlan, WorkKind};

use super::apt;
use crate::experiment::{Experiment, Row};
use crate::nics::verbs::{Threads, run};

/// Experiment for Figure 2.
pub struct Fig2;

const SIZES: [usize; 6] = [4, 16, 32, 64, 128, 256];
const KINDS: [&str; 4] = ["READ", "WRITE", "WRITE, inline", "echo by unsignaled WRITEs"];

impl Experiment for Fig2 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig2"
    }

    fn title(&self) -> &'static str {
        "Latencies of verbs and of echoes"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 3.2.1, Figure 2"
    }

    fn setup(&self) -> &'static str {
        "One thread has one request in flight to another host with a modelled ConnectX-3: a READ, a WRITE, an inline \
         WRITE, each signaled, or an echo by unsignaled WRITEs."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let nic = apt();
        let mut rows = Vec::new();
        for (step, size) in SIZES.into_iter().enumerate() {
            progress(step as f64 / SIZES.len() as f64);
            let of = |work, carrier, inline| {
                let plan = VerbsPlan { window: 1, signal: 1, inline, ..VerbsPlan::new(work, carrier, size) };
                run(&nic, &plan, Threads::outbound(1, 1), 200_000).latency.latency.mean() / 1e3
            };
            let echo = VerbsPlan {
                window: 1,
                signal: 64,
                inline: true,
                ..VerbsPlan::new(WorkKind::Echo(EchoForm::Ww), TransportKind::Uc, size)
            };
            let found = [
                of(WorkKind::Load(Op::Read), TransportKind::Rc, false),
                of(WorkKind::Load(Op::Write), TransportKind::Rc, false),
                of(WorkKind::Load(Op::Write), TransportKind::Rc, true),
                run(&nic, &echo, Threads::outbound(1, 1), 200_000).latency.latency.mean() / 1e3,
            ];
            for (kind, (what, us)) in KINDS.into_iter().zip(found).enumerate() {
                let id = format!("herd14.fig2.kind{kind}.{size}");
                rows.push(Row::model(id, format!("{size} B"), us, "us").case(what));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_of_a_short_message_takes_as_long_as_a_read_and_inlining_saves_a_dma() {
        let rows = Fig2.run(&mut |_| {});
        let of = |kind: usize, size: usize| {
            rows.iter().find(|row| row.id == format!("herd14.fig2.kind{kind}.{size}")).unwrap().model.unwrap()
        };
        for size in [4, 16, 32, 64] {
            // "For payloads up to 64 bytes, the latency of ECHOs is close to READ latency" (3.2.1).
            assert!(
                (0.75..1.25).contains(&(of(3, size) / of(0, size))),
                "{size} B: {} and {} us",
                of(3, size),
                of(0, size)
            );
            // "The latencies for READ and WRITE are similar" (3.2.1).
            assert!(
                (0.8..1.25).contains(&(of(1, size) / of(0, size))),
                "{size} B: {} and {} us",
                of(1, size),
                of(0, size)
            );
            // "By avoiding one DMA operation, inlining reduces the latency of small WRITEs significantly" (3.2.1).
            assert!(of(2, size) < 0.9 * of(1, size), "{size} B: {} and {} us", of(2, size), of(1, size));
        }
        // "For larger ECHOs, the latency increases because of the time spent in writing to the RNIC via PIO" (3.2.1).
        assert!(of(3, 256) > 1.15 * of(3, 32));
    }
}
