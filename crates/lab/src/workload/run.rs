//! Running a workload.

mod group;
mod samples;
#[cfg(test)]
mod tests;
mod totals;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_fabric::PortError;
use sinew_mem::AllocError;
use sinew_sim::{Cluster, Network, Stuck, Topology, TopologyError};

use super::Workload;
use super::client::{LoadClient, Tally};
use super::faults::FaultPlan;
use super::report::{FaultReport, GroupReport, Percentiles, Report, Series};
use group::{Running, start};
use samples::Samples;
use totals::{Totals, at_work, drops};

/// Intervals of a series; there is one more if the warm-up ends within one.
const INTERVALS: u64 = 200;
/// Virtual time between two calls of `progress`.
const STEP_NS: u64 = 100_000;
/// Time without a packet after which none is expected any more: late packets are late by a few time-outs.
const SILENCE_NS: u64 = 10_000_000_000;
/// Most waiting clients that are named.
const NAMED_MAX: usize = 8;

/// Reason why a workload was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The topology is invalid.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A port could not be opened, since there is no address space for it.
    #[error(transparent)]
    Port(#[from] PortError),
    /// There is no memory for the messages of a window.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// The run makes no progress.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// `progress` returned false.
    #[error("stopped")]
    Stopped,
}

/// Runs a workload on a topology. Everything random follows from `seed`. `progress` is called with the part that is
/// done, from 0 to 1, and returns whether to go on.
///
/// # Errors
///
/// [`RunError`].
pub fn run(
    topology: &Topology,
    workload: &Workload,
    seed: u64,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Result<Report, RunError> {
    run_on(&Network::new(topology.clone(), seed)?, workload, seed, progress)
}

/// Same as [`run`], on a new and idle network that was made from `seed`.
///
/// # Errors
///
/// [`RunError`].
pub fn run_on(
    network: &Network,
    workload: &Workload,
    seed: u64,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Result<Report, RunError> {
    let topology = &network.topology();
    let origin_ns = Rc::new(Cell::new(None));
    let mut cluster = Cluster::new(network);
    let groups = workload.groups.iter().enumerate();
    let groups = groups.map(|(index, group)| start(&mut cluster, topology, workload, index, group, &origin_ns));
    let groups = groups.collect::<Result<Vec<_>, _>>()?;
    let mut run = Run { network: network.clone(), cluster, groups, links: topology.links.len(), heard: (0, 0) };
    let all_sessions = run.clients().map(|client| client.borrow().sessions()).sum::<usize>();
    loop {
        let open = run.clients().map(|client| client.borrow().open()).sum::<usize>();
        if open == all_sessions {
            break;
        }
        if run.clients().any(|client| client.borrow().has_lost()) {
            return Err(run.stuck().into());
        }
        run.step(network.now_ns() + STEP_NS)?;
        if !progress(0.0) {
            return Err(RunError::Stopped);
        }
    }
    let opened_ns = network.now_ns();
    origin_ns.set(Some(opened_ns));
    run.wake_clients();
    let mut plan = FaultPlan::new(&workload.faults);
    plan.apply(network, 0);

    let mut samples = Samples::new(&run);
    let mut before = None;
    for until_ns in boundaries(workload) {
        if until_ns > workload.warm_up_ns && before.is_none() {
            before = Some(run.totals());
            run.groups.iter().for_each(|running| *running.tally.borrow_mut() = Tally::default());
        }
        while network.now_ns() < opened_ns + until_ns {
            let next_ns = until_ns.min(plan.next_ns().unwrap_or(u64::MAX));
            run.step((opened_ns + next_ns).min(network.now_ns() + STEP_NS))?;
            plan.apply(network, network.now_ns() - opened_ns);
            if !progress((network.now_ns() - opened_ns) as f64 / workload.end_ns() as f64) {
                return Err(RunError::Stopped);
            }
        }
        samples.take(&run, until_ns);
    }
    let before = before.unwrap_or_else(|| run.totals());
    let (queues, series) = samples.end(topology, workload.warm_up_ns);
    let after = run.totals();
    let seconds = workload.duration_ns as f64 / 1e9;
    let groups = run.groups.iter().zip(after.groups.iter().zip(&before.groups));
    let groups = groups.map(|(running, (after, before))| {
        let tally = running.tally.borrow();
        let sessions = running.clients.iter().map(|(_, client)| client.borrow().sessions()).sum::<usize>();
        let open = running.clients.iter().map(|(_, client)| client.borrow().open()).sum::<usize>();
        GroupReport {
            name: running.group.name.clone(),
            endpoints: running.clients.len(),
            sessions,
            sessions_lost: sessions - open,
            goodput_gbps: (after.data_bytes - before.data_bytes).max(0.0) * 8e-9 / seconds,
            calls: tally.calls,
            failed: tally.failed,
            retransmissions: after.retransmissions - before.retransmissions,
            latency: Percentiles::of(&tally.latency),
            rtt: Percentiles::of(&tally.rtt),
            rates_gbps: workload.congestion.and_then(|_| running.rates_gbps()),
            cores_at_work: [0, 1].map(|side| at_work(&before.cores[side], &after.cores[side])),
        }
    });
    Ok(Report {
        seed,
        trace_hash: network.trace_hash(),
        opened_ns,
        warm_up_ns: workload.warm_up_ns,
        duration_ns: workload.duration_ns,
        delivered: after.network.delivered - before.network.delivered,
        lost: after.network.lost - before.network.lost,
        corrupted: after.network.corrupted - before.network.corrupted,
        marked: after.network.marked - before.network.marked,
        pauses: after.network.pauses - before.network.pauses,
        groups: groups.collect(),
        queues,
        drops: drops(topology, &before, &after),
        faults: workload.faults.iter().map(FaultReport::of).collect(),
        series: if workload.congestion.is_some() { series } else { Series { rates_gbps: Vec::new(), ..series } },
    })
}

/// Ends of the intervals: of each two-hundredth of the time, and of the warm-up.
fn boundaries(workload: &Workload) -> Vec<u64> {
    let end_ns = workload.end_ns();
    let parts = (1..=INTERVALS).map(|part| (u128::from(end_ns) * u128::from(part) / u128::from(INTERVALS)) as u64);
    let mut boundaries: Vec<u64> = parts.chain([workload.warm_up_ns]).filter(|time_ns| *time_ns > 0).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    boundaries
}

/// A run in progress.
struct Run {
    network: Network,
    cluster: Cluster,
    groups: Vec<Running>,
    links: usize,
    /// Packets that have arrived, and the time at which that number last changed.
    heard: (u64, u64),
}

impl Run {
    fn clients(&self) -> impl Iterator<Item = &Rc<RefCell<LoadClient>>> {
        self.groups.iter().flat_map(|running| running.clients.iter().map(|(_, client)| client))
    }

    /// Wakes the clients, since they may begin.
    fn wake_clients(&self) {
        let clients = self.groups.iter().flat_map(|running| &running.cores[0]);
        clients.for_each(|client| self.cluster.waker(*client).wake());
    }

    /// Lets time pass until `end_ns`.
    fn step(&mut self, end_ns: u64) -> Result<(), Stuck> {
        if self.cluster.run_while(end_ns, |_| false).is_err() {
            self.cluster.run_until(end_ns);
        }
        let (delivered, now_ns) = (self.network.stats().delivered, self.network.now_ns());
        if delivered != self.heard.0 || self.clients().all(|client| client.borrow().waits_for().is_none()) {
            self.heard = (delivered, now_ns);
        } else if now_ns - self.heard.1 > SILENCE_NS {
            return Err(self.stuck());
        }
        Ok(())
    }

    /// Describes which clients wait for what.
    fn stuck(&self) -> Stuck {
        let clients = self.groups.iter().flat_map(|running| &running.clients);
        let waiting = clients.filter_map(|(name, client)| Some((name.clone(), client.borrow().waits_for()?)));
        let mut waiting: Vec<(String, String)> = waiting.collect();
        let others = waiting.len().saturating_sub(NAMED_MAX);
        if others > 0 {
            waiting.truncate(NAMED_MAX);
            let who = if others == 1 { "one other".to_owned() } else { format!("each of {others} others") };
            waiting.push((who, "something of the kind".to_owned()));
        }
        Stuck { time_ns: self.network.now_ns(), waiting }
    }

    fn totals(&self) -> Totals {
        Totals::of(&self.cluster, &self.groups, self.links)
    }
}
