//! Runs a workload.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_fabric::{Address, Dropped, PortError};
use sinew_mem::{AllocError, HEADER_ROOM};
use sinew_rpc::{Config, Congestion, Nexus};
use sinew_sim::{
    Actor, ActorId, Cluster, CoreTime, Doing, HostId, LinkId, Network, NetworkStats, NodeId, PortConfig, Stuck,
    Topology, TopologyError,
};

use super::client::{CALL, Client, Tally, answer};
use super::report::{Drops, GroupReport, Percentiles, Queue, Report, Series};
use super::{Group, Workload};
use crate::programs::{Endpoint, measuring, open, turn};

/// Intervals of a series, but for one more where the warm-up ends.
const INTERVALS: u64 = 200;
/// How often `progress` is asked, in virtual time.
const STEP_NS: u64 = 100_000;
/// Packets are late by some time-outs; by so much they never come.
const SILENCE_NS: u64 = 10_000_000_000;
/// Those who wait are named up to so many.
const NAMED_MAX: usize = 8;
/// Queues that are reported, and those of them that are drawn.
const QUEUES: usize = 10;
const QUEUES_DRAWN: usize = 4;
/// Sessions of a group whose rates are looked at: of more, some.
const RATES_MAX: usize = 1000;

/// Why a workload was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The topology makes no sense.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// No port could be opened: there is no address space for it.
    #[error(transparent)]
    Port(#[from] PortError),
    /// There is no memory for the messages of a window.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// It makes no progress.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// `progress` said so.
    #[error("stopped")]
    Stopped,
}

/// What runs of a group.
struct Running {
    group: Rc<Group>,
    /// With the names of their hosts.
    clients: Vec<(String, Rc<RefCell<Client>>)>,
    servers: Vec<Rc<RefCell<Endpoint>>>,
    /// The actors of clients, and of servers.
    cores: [Vec<ActorId>; 2],
    tally: Rc<RefCell<Tally>>,
}

/// An actor that others look at, too.
struct Shared<A>(Rc<RefCell<A>>);

impl Actor for Shared<Client> {
    fn turn(&mut self) -> Doing {
        self.0.borrow_mut().turn()
    }
}

impl Actor for Shared<Endpoint> {
    fn turn(&mut self) -> Doing {
        turn(&mut self.0.borrow_mut())
    }
}

/// Runs a workload on a topology. Whatever is drawn follows from `seed`. `progress` hears how much is done, from 0 to 1, and
/// says whether to go on.
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
    run_over(&Network::new(topology.clone(), seed)?, workload, seed, progress)
}

fn run_over(
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

    let mut samples = Samples::new(&run);
    let mut before = None;
    for until_ns in boundaries(workload) {
        if until_ns > workload.warm_up_ns && before.is_none() {
            before = Some(run.totals());
            run.groups.iter().for_each(|running| *running.tally.borrow_mut() = Tally::default());
        }
        while network.now_ns() < opened_ns + until_ns {
            run.step((opened_ns + until_ns).min(network.now_ns() + STEP_NS))?;
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
        series: if workload.congestion.is_some() { series } else { Series { rates_gbps: Vec::new(), ..series } },
    })
}

/// The part of cores' time that was work: the rest is polling in vain.
fn at_work(before: &CoreTime, after: &CoreTime) -> f64 {
    let worked_ns = (after.worked_ns - before.worked_ns) as f64;
    let polled_ns = after.polled_ns.saturating_sub(before.polled_ns) as f64;
    worked_ns / (worked_ns + polled_ns).max(1.0)
}

/// The ends of intervals: of each two-hundredth part, and of the warm-up.
fn boundaries(workload: &Workload) -> Vec<u64> {
    let end_ns = workload.end_ns();
    let parts = (1..=INTERVALS).map(|part| (u128::from(end_ns) * u128::from(part) / u128::from(INTERVALS)) as u64);
    let mut boundaries: Vec<u64> = parts.chain([workload.warm_up_ns]).filter(|time_ns| *time_ns > 0).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    boundaries
}

/// Opens a group's endpoints.
fn start(
    cluster: &mut Cluster,
    topology: &Topology,
    workload: &Workload,
    index: usize,
    group: &Group,
    origin_ns: &Rc<Cell<Option<u64>>>,
) -> Result<Running, RunError> {
    let network = cluster.network().clone();
    let group = Rc::new(group.clone());
    let name_of = |host: HostId| topology.hosts[host.0].name.clone();
    // An arena's blocks are larger than what they hold, up to twice. A session has buffers of its own for short answers.
    let call = 4 * (group.request.bounds().1 + group.response.bounds().1 + 4096);
    let clients = group.hosts.len() * group.endpoints;
    let sessions = clients.div_ceil(group.server_endpoints);
    let server_arena = (16 << 20) + clients * group.window * call + sessions * usize::from(workload.slots) * 4096;
    let port = |arena_bytes: usize| PortConfig { arena_bytes, ..PortConfig::default() };
    let server_port = |host: usize, endpoint: usize| format!("group{index}.server{host}.{endpoint}");
    let (mut servers, mut cores) = (Vec::new(), [const { Vec::new() }; 2]);
    for (at, host) in group.servers.iter().enumerate() {
        let nexus = nexus(topology, workload, &group, *host);
        for endpoint in 0..group.server_endpoints {
            let rpc = open(&network, &nexus, *host, &server_port(at, endpoint), port(server_arena))?;
            let place = rpc.port().place();
            let rpc = Rc::new(RefCell::new(rpc));
            let name = format!("{} at {}", group.name, name_of(*host));
            cores[1].push(cluster.add(&name, [place], Box::new(Shared(Rc::clone(&rpc)))));
            servers.push(rpc);
        }
    }
    let (tally, mut clients) = (Rc::default(), Vec::new());
    for (at, host) in group.hosts.iter().enumerate() {
        let nexus = nexus(topology, workload, &group, *host);
        for endpoint in 0..group.endpoints {
            let name = format!("group{index}.client{at}.{endpoint}");
            let rpc = open(&network, &nexus, *host, &name, port((16 << 20) + group.window * call))?;
            let place = rpc.port().place();
            let their_endpoint = endpoint % group.server_endpoints;
            let others = group.servers.iter().enumerate().filter(|(_, server)| *server != host);
            let ways = others.map(|(at, server)| {
                (name_of(*server), Address::new(sinew_sim::SCHEME, &server_port(at, their_endpoint)))
            });
            let client =
                Client::new(rpc, network.clock(), network.random(), &group, ways.collect(), origin_ns, &tally)?;
            let client = Rc::new(RefCell::new(client));
            let name = format!("{} ({})", name_of(*host), group.name);
            cores[0].push(cluster.add(&name, [place], Box::new(Shared(Rc::clone(&client)))));
            clients.push((name, client));
        }
    }
    Ok(Running { group, clients, servers, cores, tally })
}

/// The limits of endpoints on a host.
fn nexus(topology: &Topology, workload: &Workload, group: &Group, host: HostId) -> Nexus {
    let of_host = topology.links.iter().filter(|link| link.ends.contains(&NodeId::Host(host)));
    let rate_gbps = of_host.map(|link| link.rate_gbps).fold(f64::INFINITY, f64::min);
    let chosen = workload.congestion.map(|congestion| Congestion::new(rate_gbps, congestion.algorithm));
    let congestion = Congestion { rtts_kept: 256, ..chosen.unwrap_or(measuring(rate_gbps)) };
    let config = Config {
        credits: workload.credits,
        slots: workload.slots,
        message_len_max: group.request.bounds().1.max(group.response.bounds().1) as u32,
        overcommit: true,
        recovery: workload.recovery,
        timeout: workload.timeout,
        retransmit_timeout_ns: workload.retransmit_timeout_ns,
        congestion: Some(congestion),
        ..Config::default()
    };
    Nexus::builder().config(config).handle(CALL, answer).build().expect("the file's limits are those of endpoints")
}

/// A run that is under way.
struct Run {
    network: Network,
    cluster: Cluster,
    groups: Vec<Running>,
    links: usize,
    /// Packets that had arrived, when that was last another number, and that time.
    heard: (u64, u64),
}

/// What has been counted until some time.
struct Totals {
    network: NetworkStats,
    /// Lost at each direction of each link.
    overflowed: Vec<u64>,
    groups: Vec<GroupTotals>,
}

#[derive(Clone, Debug, Default)]
struct GroupTotals {
    name: String,
    data_bytes: f64,
    retransmissions: u64,
    /// Packets that found a receive queue full, at clients and at servers.
    overflowed: [u64; 2],
    /// How their cores spent their time, all together.
    cores: [CoreTime; 2],
}

impl GroupTotals {
    fn add(&mut self, rpc: &Endpoint, side: usize) {
        let (port, stats) = (rpc.port_stats(), rpc.stats());
        let data = port.rx_bytes.saturating_sub(HEADER_ROOM as u64 * port.rx_packets) as f64;
        let in_vain = stats.dropped_total() as f64 / port.rx_packets.max(1) as f64;
        self.data_bytes += data * (1.0 - in_vain).max(0.0);
        self.retransmissions += stats.retransmissions;
        self.overflowed[side] += port.dropped(Dropped::Overflow);
    }
}

impl Running {
    fn totals(&self, cluster: &Cluster) -> GroupTotals {
        let mut totals = GroupTotals { name: self.group.name.clone(), ..GroupTotals::default() };
        self.clients.iter().for_each(|(_, client)| totals.add(client.borrow().rpc(), 0));
        self.servers.iter().for_each(|server| totals.add(&server.borrow(), 1));
        totals.cores = self.cores.each_ref().map(|cores| {
            cores.iter().map(|core| cluster.core_time(*core)).fold(CoreTime::default(), |all, core| CoreTime {
                worked_ns: all.worked_ns + core.worked_ns,
                polled_ns: all.polled_ns + core.polled_ns,
            })
        });
        totals
    }

    /// The lowest, the median and the highest.
    fn rates_gbps(&self) -> Option<[f64; 3]> {
        let sessions = self.clients.iter().map(|(_, client)| client.borrow().open()).sum::<usize>();
        let every = sessions.div_ceil(RATES_MAX).max(1);
        let mut rates: Vec<f64> = Vec::new();
        for (_, client) in self.clients.iter().step_by(every) {
            rates.extend(client.borrow().rates());
        }
        rates.sort_by(f64::total_cmp);
        let gbps = |rate: &f64| rate * 8e-9;
        Some([rates.first().map(gbps)?, gbps(&rates[rates.len() / 2]), rates.last().map(gbps)?])
    }
}

impl Run {
    fn clients(&self) -> impl Iterator<Item = &Rc<RefCell<Client>>> {
        self.groups.iter().flat_map(|running| running.clients.iter().map(|(_, client)| client))
    }

    /// Tells the clients that they may begin.
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

    /// Who waits for what.
    fn stuck(&self) -> Stuck {
        let clients = self.groups.iter().flat_map(|running| &running.clients);
        let waiting = clients.filter_map(|(name, client)| Some((name.clone(), client.borrow().waits_for()?)));
        let mut waiting: Vec<(String, String)> = waiting.collect();
        let others = waiting.len().saturating_sub(NAMED_MAX);
        if others > 0 {
            waiting.truncate(NAMED_MAX);
            waiting.push((format!("each of {others} others"), "something of the kind".to_owned()));
        }
        Stuck { time_ns: self.network.now_ns(), waiting }
    }

    fn totals(&self) -> Totals {
        let overflowed = |link| self.network.link_stats(LinkId(link)).map(|stats| stats.overflowed);
        Totals {
            network: self.network.stats(),
            overflowed: (0..self.links).flat_map(overflowed).collect(),
            groups: self.groups.iter().map(|running| running.totals(&self.cluster)).collect(),
        }
    }
}

fn drops(topology: &Topology, before: &Totals, after: &Totals) -> Vec<Drops> {
    let at_links = after.overflowed.iter().zip(&before.overflowed).enumerate();
    let at_links = at_links.map(|(lane, (after, before))| (lane_name(topology, lane), after - before));
    let at_ports = after.groups.iter().zip(&before.groups).flat_map(|(after, before)| {
        let lost = [0, 1].map(|side| after.overflowed[side] - before.overflowed[side]);
        ["clients", "servers"].map(|side| format!("receive queues of {}'s {side}", after.name)).into_iter().zip(lost)
    });
    let drops = at_links.chain(at_ports).filter(|(_, packets)| *packets > 0);
    let mut drops: Vec<Drops> = drops.map(|(place, packets)| Drops { place, packets }).collect();
    drops.sort_by_key(|drops| std::cmp::Reverse(drops.packets));
    drops
}

/// The name of a link's direction.
fn lane_name(topology: &Topology, lane: usize) -> String {
    let [a, b] = topology.links[lane / 2].ends.map(|end| topology.name_of(end));
    let (from, to) = if lane.is_multiple_of(2) { (a, b) } else { (b, a) };
    // Of several links between two nodes each has a number.
    let is_same = |link: &&sinew_sim::LinkSpec| link.ends == topology.links[lane / 2].ends;
    let number = topology.links[..lane / 2].iter().filter(is_same).count();
    let of = topology.links.iter().filter(is_same).count();
    if of > 1 { format!("{from} to {to}, link {number}") } else { format!("{from} to {to}") }
}

/// What is looked at from time to time.
struct Samples {
    times_ns: Vec<u64>,
    /// Of each direction of each link: the most bytes that waited in each interval, and what waited at its end.
    queued: Vec<(Vec<u64>, Vec<u64>)>,
    goodput_gbps: Vec<Vec<f64>>,
    rates_gbps: Vec<Vec<[f64; 3]>>,
    data_bytes: Vec<f64>,
}

impl Samples {
    fn new(run: &Run) -> Self {
        (0..run.links).for_each(|link| _ = run.network.take_queued_max(LinkId(link)));
        let groups = run.groups.len();
        Self {
            times_ns: Vec::new(),
            queued: vec![(Vec::new(), Vec::new()); 2 * run.links],
            goodput_gbps: vec![Vec::new(); groups],
            rates_gbps: vec![Vec::new(); groups],
            data_bytes: run.groups.iter().map(|running| running.totals(&run.cluster).data_bytes).collect(),
        }
    }

    /// At the end of an interval.
    fn take(&mut self, run: &Run, time_ns: u64) {
        let took_ns = time_ns - self.times_ns.last().copied().unwrap_or(0);
        self.times_ns.push(time_ns);
        for link in 0..run.links {
            let at_end = run.network.link_stats(LinkId(link)).map(|stats| stats.queued_bytes);
            for (direction, most) in run.network.take_queued_max(LinkId(link)).into_iter().enumerate() {
                let (mosts, ends) = &mut self.queued[2 * link + direction];
                mosts.push(most);
                ends.push(at_end[direction]);
            }
        }
        for (index, running) in run.groups.iter().enumerate() {
            let data_bytes = running.totals(&run.cluster).data_bytes;
            let gbps = (data_bytes - self.data_bytes[index]).max(0.0) * 8.0 / took_ns as f64;
            self.data_bytes[index] = data_bytes;
            self.goodput_gbps[index].push(gbps);
            self.rates_gbps[index].push(running.rates_gbps().unwrap_or_default());
        }
    }

    /// The deepest queues after the warm-up, and what happened when.
    fn end(self, topology: &Topology, warm_up_ns: u64) -> (Vec<Queue>, Series) {
        let first = self.times_ns.partition_point(|time_ns| *time_ns <= warm_up_ns);
        let mut deepest: Vec<(u64, usize)> = self
            .queued
            .iter()
            .enumerate()
            .map(|(lane, (mosts, _))| (mosts[first..].iter().copied().max().unwrap_or(0), lane))
            .collect();
        deepest.sort_by_key(|(most, lane)| (u64::MAX - most, *lane));
        deepest.retain(|(most, _)| *most > 0);
        deepest.truncate(QUEUES);
        let queue = |(max_bytes, lane): &(u64, usize)| {
            let ends = &self.queued[*lane].1[first..];
            let mean_bytes = ends.iter().sum::<u64>() as f64 / ends.len().max(1) as f64;
            Queue { port: lane_name(topology, *lane), max_bytes: *max_bytes, mean_bytes }
        };
        let queues = deepest.iter().map(queue).collect();
        let drawn = deepest.iter().take(QUEUES_DRAWN);
        let series = Series {
            queues_bytes: drawn.map(|(_, lane)| self.queued[*lane].0.clone()).collect(),
            times_ns: self.times_ns,
            goodput_gbps: self.goodput_gbps,
            rates_gbps: self.rates_gbps,
        };
        (queues, series)
    }
}

#[cfg(test)]
mod tests {
    use sinew_sim::LinkFaults;

    use super::*;

    const SHORT: &str = r#"warm_up_ms = 0.2
duration_ms = 0.5
[congestion]
algorithm = "timely"
[[clients]]
name = "all"
hosts = { from = "node0", count = 4 }
servers = ["node0", "node3"]
request_bytes = [{ bytes = 32, weight = 3 }, { bytes = 5000, weight = 1 }]
response_bytes = { from = 0, to = 3000 }
window = 8
[[clients]]
name = "by the clock"
hosts = "node1"
endpoints = 2
servers = "node2"
server_endpoints = 2
request_bytes = 32
response_bytes = 32
window = 4
calls_per_s = 100_000
start_ms = 0.3
"#;

    fn run_on(topology: &Topology, text: &str, seed: u64) -> Result<Report, RunError> {
        run(topology, &Workload::parse(text, topology).unwrap(), seed, &mut |_| true)
    }

    #[test]
    fn equal_seeds_have_equal_reports_and_others_others() {
        let topology = Topology::star(4, 10.0, 100, 1500);
        let report = run_on(&topology, SHORT, 7).unwrap();
        assert_eq!(report, run_on(&topology, SHORT, 7).unwrap());
        assert_ne!(report.trace_hash, run_on(&topology, SHORT, 8).unwrap().trace_hash);
    }

    #[test]
    fn rates_recover_when_a_crowd_is_gone() {
        // For 10 ms thirty others send to the same host, then one is alone with the link. Timely's steps, which keep an incast's queue short,
        // take it long to have all of the link again.
        let mut topology = Topology::star(32, 25.0, 500, 1500);
        topology.switches[0].ecn = Some(sinew_sim::Ecn { min_bytes: 5_000, max_bytes: 200_000, probability: 0.1 });
        for (algorithm, alone_ms) in [("timely", 300), ("swift", 1), ("dcqcn", 60)] {
            let warm_up_ms = 10 + alone_ms;
            let text = format!(
                r#"warm_up_ms = {warm_up_ms}
duration_ms = 5
congestion = {{ algorithm = "{algorithm}" }}
[[clients]]
name = "crowd"
hosts = {{ from = "node2", count = 30 }}
servers = "node0"
request_bytes = 500_000
response_bytes = 32
window = 1
stop_ms = 10
[[clients]]
name = "lone"
hosts = "node1"
servers = "node0"
request_bytes = 500_000
response_bytes = 32
window = 2
"#
            );
            let report = run_on(&topology, &text, 1).unwrap();
            let [crowd, lone] = &report.groups[..] else { panic!("two groups") };
            assert!(lone.goodput_gbps > 0.8 * 25.0 && crowd.goodput_gbps < 1.0, "{algorithm}: {report:?}");
        }
    }

    #[test]
    fn calls_are_made_as_the_file_says() {
        let topology = Topology::star(4, 10.0, 100, 1500);
        let report = run_on(&topology, SHORT, 1).unwrap();
        let [all, clock] = &report.groups[..] else { panic!("two groups") };
        // Of servers each has the other alone.
        assert_eq!((all.endpoints, all.sessions, all.sessions_lost, all.failed), (4, 6, 0, 0));
        assert_eq!((clock.endpoints, clock.sessions, clock.failed), (2, 2, 0));
        // Two endpoints, 0.4 ms, 100,000 a second.
        assert!((50..=115).contains(&clock.calls), "{clock:?}");
        let latency = clock.latency.unwrap();
        assert!(latency.p50_ns > 1_000 && latency.p50_ns <= latency.p99_ns && latency.p999_ns <= latency.max_ns);
        // A call has (3 x 32 + 5000) / 4 + 1500 bytes in the mean.
        let by_calls = all.calls as f64 * 2774.0 * 8.0 / report.duration_ns as f64;
        assert!((all.goodput_gbps / by_calls - 1.0).abs() < 0.15, "{} and {by_calls}", all.goodput_gbps);
        let rates = all.rates_gbps.unwrap();
        assert!(rates[0] > 0.0 && rates[0] <= rates[1] && rates[1] <= rates[2] && rates[2] < 10.001, "{rates:?}");
    }

    #[test]
    fn intervals_cover_all_time_and_show_when_a_group_begins() {
        let topology = Topology::star(4, 10.0, 100, 1500);
        let Report { series, queues, .. } = run_on(&topology, SHORT, 1).unwrap();
        assert_eq!(series.times_ns.last(), Some(&700_000));
        assert!(series.times_ns.contains(&200_000) && series.times_ns.is_sorted());
        let intervals = series.times_ns.len();
        assert!(series.goodput_gbps.iter().all(|values| values.len() == intervals));
        assert!(series.queues_bytes.iter().all(|values| values.len() == intervals));
        assert!(series.rates_gbps.iter().all(|values| values.len() == intervals));
        let before = series.times_ns.partition_point(|time_ns| *time_ns < 300_000);
        assert!(series.goodput_gbps[1][..before].iter().all(|gbps| *gbps == 0.0));
        assert!(series.goodput_gbps[1][before..].iter().any(|gbps| *gbps > 0.0));
        assert!(queues.iter().is_sorted_by_key(|queue| u64::MAX - queue.max_bytes) && !queues.is_empty());
        assert!(queues.iter().all(|queue| queue.mean_bytes <= queue.max_bytes as f64), "{queues:?}");
    }

    #[test]
    fn full_buffers_are_named_as_the_place_where_packets_are_lost() {
        let mut topology = Topology::star(9, 10.0, 100, 1500);
        topology.switches[0].buffer = sinew_sim::Buffer::PerPort { bytes: 30_000 };
        let text = SHORT.split("[[clients]]").next().unwrap().replace("timely", "none").to_owned()
            + r#"[[clients]]
name = "bulk"
hosts = { from = "node1", count = 8 }
servers = "node0"
request_bytes = 100_000
response_bytes = 4
window = 1
"#;
        let report = run_on(&topology, &text.replace("duration_ms = 0.5", "duration_ms = 20"), 1).unwrap();
        let [drops] = &report.drops[..] else { panic!("{:?}", report.drops) };
        assert_eq!((&*drops.place, drops.packets), ("switch to node0", report.lost));
        let queue = report.queues.iter().find(|queue| queue.port == "switch to node0").unwrap();
        assert!((25_000..=30_000).contains(&queue.max_bytes), "{queue:?}");
        assert!(report.groups[0].retransmissions > 0 && report.groups[0].calls > 0);
        assert!(report.series.rates_gbps.is_empty() && report.groups[0].rates_gbps.is_none());
        assert!(report.groups[0].rtt.is_some());
    }

    #[test]
    fn who_cannot_go_on_says_what_it_waits_for() {
        // An answer takes eight seconds; a connect is given up after three.
        let far = Topology::star(4, 10.0, 1_000_000_000, 1500);
        let error = run_on(&far, SHORT, 1).unwrap_err();
        assert!(matches!(error, RunError::Stuck(_)));
        let text = error.to_string();
        assert!(text.contains("node0 (all) waits for a session with node3: no answer from"), "{text}");
        assert!(text.contains("node1 (by the clock) waits for a session with node2"), "{text}");
    }

    #[test]
    fn who_hears_nothing_any_more_says_what_it_waits_for() {
        let topology = Topology::star(4, 10.0, 100, 1500);
        let text = SHORT.replace("duration_ms = 0.5", "duration_ms = 30000");
        let workload = Workload::parse(&text, &topology).unwrap();
        let network = Network::new(topology, 1).unwrap();
        let error = run_over(&network, &workload, 1, &mut |part| {
            if part > 1e-5 {
                network.set_all_faults(LinkFaults { loss: 1.0, ..LinkFaults::default() });
            }
            true
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains("node0 (all) waits for a session with node3"), "{text}");
        assert!(text.contains("node1 (by the clock) waits for a session with node2"), "{text}");
    }

    #[test]
    fn a_run_ends_when_it_is_told_to() {
        let topology = Topology::star(4, 10.0, 100, 1500);
        let workload = Workload::parse(SHORT, &topology).unwrap();
        let mut parts = Vec::new();
        let stopped = run(&topology, &workload, 1, &mut |part| {
            parts.push(part);
            part < 0.5
        });
        assert!(matches!(stopped, Err(RunError::Stopped)));
        assert!(parts.is_sorted() && parts.last().is_some_and(|part| (0.5..0.8).contains(part)), "{parts:?}");
    }
}
