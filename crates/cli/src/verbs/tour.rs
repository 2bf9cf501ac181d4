//! What the tour shows of verbs.

use std::time::Duration;

use super::device::{Carried, DeviceArgs};
use super::plan::{Carrier, Op, Plan, Work};
use super::result::{Figures, Kind};
use super::run::Measure;
use crate::limits::References;
use crate::machine;

/// A WRITE, a READ, a SEND and an atomic, each between two processes and with what it leaves or brings checked.
const SHOWN: [(Kind, Op, Carrier); 4] = [
    (Kind::Rate, Op::Write, Carrier::Rc),
    (Kind::Rate, Op::Send, Carrier::Ud),
    (Kind::Latency, Op::Read, Carrier::Rc),
    (Kind::Latency, Op::FetchAdd, Carrier::Rc),
];
/// Bytes of messages; atomics have eight.
const SIZE: usize = 32;

/// Measures each of [`SHOWN`] for a time.
pub fn measure(fabric: Carried, duration: Duration) -> anyhow::Result<Vec<Figures>> {
    let cpus = machine::cpus();
    let [client, server] = match cpus[..] {
        [client, server, ..] if machine::has_two_cpus() => [Some(client), Some(server)],
        _ => [None; 2],
    };
    let plans = SHOWN.map(|(kind, op, carrier)| {
        let plan = Plan { cpus: vec![server], ..Plan::new(Work::Load(op), carrier, SIZE) };
        let plan = match (kind, op) {
            (_, Op::FetchAdd) => Plan { size: 8, window: 1, signal: 1, ..plan },
            (Kind::Latency, _) => Plan { window: 1, signal: 1, fresh: fabric == Carried::Shm, ..plan },
            _ => Plan { doorbell: 16, inline: true, ..plan },
        };
        (kind, plan)
    });
    let device = DeviceArgs { fabric, device: None };
    device.run(Measure {
        plans: &plans,
        duration,
        client_cpus: &[client],
        references: &References::default(),
        device: &device,
        address: None,
    })
}
