//! The programs of modelled NICs on a real fabric: two threads of this machine, with the drivers that simulated hosts
//! use.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sinew_fabric::verbs::Device;
use sinew_harness::load::Drive;
use sinew_harness::load::verbs::{LinkAddress, Requester, Responder, TransportKind, VerbsPlan, check_device};
use sinew_harness::machine;
use sinew_harness::units::counted;
use sinew_host::{HostClock, Interrupt};
use sinew_mem::atomic::{AtomicBool, Ordering};

use crate::experiment::{Comparison, Experiment, Row};

/// Length of a slice. The first slice is not counted.
const SLICE: Duration = Duration::from_millis(40);
/// Slices that count; the result is their median.
const SLICES: usize = 5;
/// Time that messages still in flight have to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures an experiment's plans on a device, with a thread that asks and one that is asked. Its rows say that `what`
/// carried the verbs, and are not held against the paper.
///
/// # Errors
///
/// The device lacks what a plan needs, or does it wrong.
pub fn run<D: Device>(
    device: &D,
    what: &'static str,
    experiment: &dyn Experiment,
    cpus: [usize; 2],
    interrupt: Interrupt,
    progress: &mut dyn FnMut(f64),
) -> anyhow::Result<Vec<Row>> {
    let plans = experiment.plans();
    let count = plans.len() as f64;
    let found = plans.into_iter().enumerate().map(|(done, (row, plan))| {
        progress(done as f64 / count);
        let mops = rate_mops(device, &plan, cpus, interrupt).with_context(|| row.name())?;
        let case = format!("{}, {what}", row.case);
        Ok(Row { case, model: None, measured: Some(mops), against: Comparison::Other("a NIC"), ..row })
    });
    found.collect()
}

/// When dropped, tells the other thread that the run is over, even after a failure.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests per second from one thread to another, in millions.
fn rate_mops<D: Device>(device: &D, plan: &VerbsPlan, cpus: [usize; 2], interrupt: Interrupt) -> anyhow::Result<f64> {
    check_device(plan, device.attributes())?;
    let domain = device.protection_domain()?;
    let (to_responder, from_requester) = mpsc::channel::<Vec<LinkAddress>>();
    let (to_requester, from_responder) = mpsc::channel::<Vec<LinkAddress>>();
    let (made_requests, made_received) = mpsc::channel::<Vec<u64>>();
    let is_over = &AtomicBool::new(false);
    let domain = &domain;
    thread::scope(|threads| {
        let responder_thread = threads.spawn(move || -> anyhow::Result<()> {
            machine::pin(Some(cpus[1]))?;
            let (mut responder, ours) = Responder::new(device, domain, plan, plan.qps)?;
            // If the other thread has gone, it reports the reason.
            let _ = to_requester.send(ours);
            let Ok(theirs) = from_requester.recv() else { return Ok(()) };
            responder.connect(&theirs)?;
            // Relaxed: what was made comes through the channel.
            while !is_over.load(Ordering::Relaxed) {
                if responder.turn()? == 0 {
                    std::hint::spin_loop();
                }
            }
            let Ok(made) = made_received.recv() else { return Ok(()) };
            let since = Instant::now();
            let found = responder.check(&made, || since.elapsed() < PATIENCE)?;
            ensure!(found.wrong == 0, "{} left, or brought back, wrong data", counted(found.wrong, "request"));
            ensure!(found.lost == 0 || plan.carrier != TransportKind::Rc, "{} lost", counted(found.lost, "message"));
            Ok(())
        });
        let requester_thread = threads.spawn(move || -> anyhow::Result<f64> {
            let stop_on_drop = StopOnDrop(is_over);
            machine::pin(Some(cpus[0]))?;
            let clock = HostClock::new();
            let (mut requester, ours) = Requester::new(device, domain, plan, plan.qps, false, HostClock::new())?;
            let _ = to_responder.send(ours);
            let theirs = from_responder.recv().context("the other thread has gone")?;
            requester.connect(&theirs)?;
            let mut rates = Vec::new();
            for _ in 0..=SLICES {
                rates.push(requester.drive(&clock, SLICE, interrupt)?.mops());
            }
            drop(stop_on_drop);
            let _ = made_requests.send(requester.made());
            let counted = &mut rates[1..];
            counted.sort_by(f64::total_cmp);
            Ok(counted[SLICES / 2])
        });
        let (rate, checked) = (requester_thread.join(), responder_thread.join());
        checked.map_err(|_| anyhow::anyhow!("the thread that is asked panicked"))??;
        rate.map_err(|_| anyhow::anyhow!("the thread that asks panicked"))?
    })
}
