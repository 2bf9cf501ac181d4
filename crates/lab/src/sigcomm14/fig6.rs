//! Figure 6: rates with all-to-all traffic, and with many connections.

use sinew_harness::load::verbs::{Op, TransportKind, VerbsPlan};
use sinew_sim::nic::Profile;

use super::apt;
use crate::experiment::{Experiment, Row};
use crate::nics::rates;
use crate::nics::verbs::{Threads, run};

/// Experiment for Figure 6.
pub struct Fig6;

const SIDES: [usize; 5] = [1, 4, 8, 12, 16];
const MEASURED_NS: u64 = 100_000;

/// Rates of WRITEs out of one host and into it, in M/s, where `side` threads of it and as many other hosts each have a
/// connection with all of the other side.
fn all_to_all(nic: &Profile, side: usize) -> (f64, f64) {
    let plan = VerbsPlan { window: 4, signal: 4, ..rates::plan(Op::Write, TransportKind::Uc, 32, 1) };
    let outbound =
        Threads { responders: side, responder_hosts: side, all_to_all: true, ..Threads::outbound(side, side) };
    let inbound = Threads { all_to_all: true, ..Threads::inbound(side, side, side) };
    (run(nic, &plan, outbound, MEASURED_NS).sent_mops, run(nic, &plan, inbound, MEASURED_NS).received_mops)
}

impl Experiment for Fig6 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig6"
    }

    fn title(&self) -> &'static str {
        "Many connections of one NIC"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 3.3, Figure 6"
    }

    fn setup(&self) -> &'static str {
        "N threads of a host with a modelled ConnectX-3 and N other hosts each have a connection with all of the other \
         side: N times N queue pairs. In another run 1,600 clients of 16 hosts WRITE to one thread: as many of them at \
         a time as these hosts have cores, since schedulers give each some milliseconds."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let nic = apt();
        let mut rows = Vec::new();
        let peak = rates::outbound(&nic, &rates::plan(Op::Write, TransportKind::Uc, 32, 1)).sent_mops;
        for (step, side) in SIDES.into_iter().enumerate() {
            progress(step as f64 / (SIDES.len() + 1) as f64);
            let (out, into) = all_to_all(&nic, side);
            for (name, what, mops) in [("out", "outbound WRITE", out), ("in", "inbound WRITE", into)] {
                let id = format!("herd14.fig6.{name}{side}");
                rows.push(Row::model(id, format!("{side} to {side}"), mops, "M/s").case(what));
            }
            if side == 16 {
                let share = out / peak * 100.0;
                let metric = "16 to 16, share of the outbound peak";
                rows.push(
                    Row::model("herd14.uc_out_16", metric, share, "%")
                        .case("outbound WRITE")
                        .published(&nic, "3.3", 21.0),
                );
            }
        }
        let plan = VerbsPlan { window: 4, signal: 4, ..rates::plan(Op::Write, TransportKind::Uc, 32, 1) };
        let many = run(&nic, &plan, Threads::inbound(16 * nic.core.count, 16, 1), MEASURED_NS).received_mops;
        rows.push(
            Row::model("herd14.in_1600", "1,600 clients, 128 at a time", many, "M/s")
                .case("inbound WRITE")
                .published(&nic, "3.3", 30.0),
        );
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbound_writes_scale_poorly_and_inbound_ones_well() {
        let nic = apt();
        let peak = rates::outbound(&nic, &rates::plan(Op::Write, TransportKind::Uc, 32, 1)).sent_mops;
        let [(out, into), (out_1, _), (out_8, _)] = [16, 1, 8].map(|side| all_to_all(&nic, side));
        // "for N = 16, there are 256 active queue pairs at RNIC_S and the server-to-clients throughput degrades to 21%
        // of the maximum outbound WRITE throughput" (3.3).
        assert!((out / peak - 0.21).abs() < 0.05, "{out} of {peak}");
        assert!(out < out_8 && out_1 < peak, "{out_1}, {out_8}, {out}");
        // "Clients-to-server throughput is high even for N = 16" (3.3).
        assert!(into > 30.0, "{into}");
    }
}
