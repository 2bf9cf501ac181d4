//! Scenarios: everything that is drawn from a seed.

use std::fmt;

use sinew_fabric::SeededGenerator;
use sinew_harness::units::counted;
use sinew_rpc::{Algorithm, Config, Congestion, DcqcnConfig, Recovery, SwiftConfig, TimelyConfig, Timeout, Tuning};
use sinew_sim::{Buffer, Costs, Ecn, LinkFaults, LinkSpec, NodeId, Pause, PortConfig, SwitchId, SwitchSpec, Topology};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Most time that two interfaces and two cores take, in ns.
const HOSTS_NS: u64 = 1_500;

/// Beginning or end of a fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Link { link: usize, direction: usize, faults: LinkFaults },
    Down { link: usize, direction: usize, is_down: bool },
    Cut { from: usize, to: usize, both_ways: bool, is_cut: bool },
    Pause { host: usize, ns: u64 },
    Crash { host: usize },
}

/// A cluster with its limits, load and faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub topology: Topology,
    pub port: PortConfig,
    pub config: Config,
    /// Calls in flight of each host.
    pub window: usize,
    /// Longest request and answer, in bytes; most are short.
    pub len_max: usize,
    /// Faults, each with its time in ns.
    pub faults: Vec<(u64, Fault)>,
    /// Time from the last fault until all are healed.
    pub calm_ns: u64,
    /// Calls that each host makes once all faults are healed.
    pub last_calls: u32,
    /// Share of earlier calls that do not wait for ever: they have deadlines, or are cancelled.
    pub impatient_share: f64,
    /// Share of calls that servers make back to their clients; if it is 0, sessions accept none.
    pub call_back_share: f64,
    /// Share of calls that handlers keep, to be answered later by the program or by one of `workers` workers.
    pub kept_share: f64,
    pub workers: usize,
    /// Lanes of each host beside the main one.
    pub lanes: usize,
    /// Share of calls that are handed over to the endpoint, as from another thread.
    pub handed_share: f64,
}

/// Name of a host's port.
pub fn name(host: usize) -> String {
    format!("host{host}")
}

/// Draws one of the choices.
pub fn one_of<T: Copy>(generator: &mut SeededGenerator, choices: &[T]) -> T {
    choices[generator.below(choices.len() as u64) as usize]
}

impl Scenario {
    pub fn draw(seed: u64) -> Self {
        let mut generator = SeededGenerator::new(seed);
        let draw = &mut generator;
        let topology = draw_topology(draw);
        let config = draw_config(draw);
        let port = PortConfig {
            receive_packets: one_of(draw, &[64, 512, 4096]),
            burst_max: one_of(draw, &[1, 16, 32, 64]),
            arena_bytes: 64 << 20,
            costs: one_of(draw, &[Costs::default(), Costs::FREE]),
        };
        let faults = draw_faults(draw, &topology, &config);
        // Messages are no longer than what a session carries in thirty round trips with congestion control's narrowest
        // window. Otherwise dozens of longer calls that share one credit, with packets of a hundred bytes, would
        // take longer than the run waits.
        let packet = topology.links.iter().map(|link| link.mtu).min().unwrap_or(0);
        let carried = 30 * usize::from(config.credits.min(4)) * packet;
        Self {
            seed,
            port,
            window: one_of(draw, &[1, 4, 16, 40]),
            len_max: one_of(draw, &[40, 3_000, 20_000, 150_000]).min(carried),
            faults,
            calm_ns: draw.below(20 * MS),
            last_calls: 20,
            impatient_share: one_of(draw, &[0.0, 0.1, 0.5]),
            call_back_share: one_of(draw, &[0.0, 0.2, 0.6]),
            kept_share: one_of(draw, &[0.0, 0.2, 0.6]),
            workers: one_of(draw, &[1, 4]),
            lanes: one_of(draw, &[0, 1, 5]),
            handed_share: one_of(draw, &[0.0, 0.0, 0.3]),
            topology,
            config,
        }
    }

    pub fn hosts(&self) -> usize {
        self.topology.hosts.len()
    }

    /// Most time that a short call takes when nobody else sends.
    pub fn lone_call_ns(&self) -> u64 {
        // There are at most two links to leaves and two to a spine, all alike.
        let (links, switches) = if self.topology.switches.len() > 1 { (4, 3) } else { (2, 1) };
        let link = &self.topology.links[0];
        let frame_ns = (200.0 * 8.0 / link.rate_gbps) as u64;
        2 * (links * (link.delay_ns + frame_ns) + switches * 300 + HOSTS_NS)
    }
}

fn draw_topology(draw: &mut SeededGenerator) -> Topology {
    let hosts = 2 + draw.below(6) as usize;
    let rate_gbps = one_of(draw, &[1.0, 10.0, 25.0, 100.0]);
    let delay_ns = one_of(draw, &[20, 200, 5_000, 100_000]);
    let mtu = one_of(draw, &[128, 1048, 1500, 4096]);
    let mut topology = Topology::star(hosts, rate_gbps, delay_ns, mtu);
    let buffer = match draw.below(3) {
        0 => Buffer::PerPort { bytes: one_of(draw, &[8_000, 60_000, 1 << 20]) },
        1 => Buffer::Shared { bytes: one_of(draw, &[20_000, 200_000]), alpha: one_of(draw, &[0.5, 8.0]) },
        _ => Buffer::Shared { bytes: 12_000_000, alpha: 8.0 },
    };
    let ecn = draw.chance(0.3).then_some(Ecn { min_bytes: 5_000, max_bytes: 50_000, probability: 0.5 });
    let pause = draw.chance(0.2).then_some(Pause { off_bytes: 6_000, on_bytes: 3_000 });
    let switch = |name: &str| SwitchSpec { name: name.to_owned(), latency_ns: 300, buffer, ecn, pause };
    topology.switches[0] = switch("switch0");
    if draw.chance(0.4) {
        // A second tier: half of the hosts are behind one spine or several.
        let right = NodeId::Switch(topology.switch(switch("switch1")));
        for link in hosts / 2..hosts {
            topology.links[link].ends[1] = right;
        }
        for spine in 0..1 + draw.below(3) {
            let spine = NodeId::Switch(topology.switch(switch(&format!("spine{spine}"))));
            for leaf in [NodeId::Switch(SwitchId(0)), right] {
                topology.link(LinkSpec { ends: [leaf, spine], rate_gbps, delay_ns, mtu });
            }
        }
    }
    topology
}

fn draw_config(draw: &mut SeededGenerator) -> Config {
    let timeout = one_of(draw, &[Timeout::Fixed, Timeout::Adaptive]);
    Config {
        credits: one_of(draw, &[1, 2, 8, 32]),
        slots: one_of(draw, &[1, 2, 8, 64]),
        overcommit: true,
        client_events: true,
        preallocated_response_len: one_of(draw, &[0, 64, 1472]),
        recovery: one_of(draw, &[Recovery::GoBackN, Recovery::Selective { packet_threshold: 1 }, Recovery::SELECTIVE]),
        retransmit_timeout_ns: match timeout {
            // It must be longer than any queue here.
            Timeout::Fixed => 50 * MS,
            Timeout::Adaptive => one_of(draw, &[20 * US, 500 * US, 5 * MS]),
        },
        timeout,
        probe_interval_ns: one_of(draw, &[2 * MS, 20 * MS]),
        peer_timeout_ns: one_of(draw, &[50 * MS, 200 * MS]),
        connect_timeout_ns: 500 * MS,
        connect_retry_ns: one_of(draw, &[MS, 20 * MS]),
        tuning: Tuning {
            preallocated_responses: draw.chance(0.7),
            zero_copy_requests: draw.chance(0.7),
            batched_clock: draw.chance(0.7),
            cumulative_credits: draw.chance(0.7),
            prefetch_sessions: draw.chance(0.7),
            congestion_bypass: draw.chance(0.7),
            pacing_bypass: draw.chance(0.7),
        },
        congestion: draw.chance(0.6).then(|| draw_congestion(draw)),
        ..Config::default()
    }
}

/// The parameters are often far from what suits the network: calls are slow then, but must still be right.
fn draw_congestion(draw: &mut SeededGenerator) -> Congestion {
    let timely = TimelyConfig {
        low_ns: one_of(draw, &[US, 50 * US]),
        high_ns: one_of(draw, &[100 * US, MS]),
        is_patched: draw.chance(0.5),
        rate_min_bytes_per_s: one_of(draw, &[1e6, 15e6]),
        ..TimelyConfig::default()
    };
    let swift = SwiftConfig {
        target_ns: one_of(draw, &[US, 20 * US]),
        // A window of one packet of a hundred bytes in a round trip of a millisecond would make long calls take longer
        // than the run waits.
        window_min: one_of(draw, &[4.0, 16.0]),
        ..SwiftConfig::default()
    };
    let dcqcn = DcqcnConfig {
        raise_interval_ns: one_of(draw, &[US, 55 * US, 1500 * US]),
        rate_min_bytes_per_s: one_of(draw, &[1e6, 15e6]),
        ..DcqcnConfig::default()
    };
    let algorithms = [Algorithm::Timely(timely), Algorithm::Swift(swift), Algorithm::Dcqcn(dcqcn)];
    Congestion::new(one_of(draw, &[1.0, 25.0, 100.0]), one_of(draw, &algorithms))
}

/// Draws faults, with their ends if they have any.
pub fn draw_faults(draw: &mut SeededGenerator, topology: &Topology, config: &Config) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    let (hosts, links) = (topology.hosts.len() as u64, topology.links.len() as u64);
    for _ in 0..draw.below(12) {
        let time_ns = draw.below(300 * MS);
        // Some faults outlast the time after which a peer counts as dead.
        let ns = one_of(draw, &[100 * US, 3 * MS, 20 * MS, 3 * config.peer_timeout_ns]);
        let (link, direction) = (draw.below(links) as usize, draw.below(2) as usize);
        let (begins, ends) = match draw.below(6) {
            0 | 1 => {
                let bad = LinkFaults {
                    loss: one_of(draw, &[0.0, 0.001, 0.02, 0.3]),
                    duplication: one_of(draw, &[0.0, 0.01, 0.2]),
                    reordering: one_of(draw, &[0.0, 0.01, 0.2]),
                    reordering_ns: one_of(draw, &[US, 50 * US, 2 * MS]),
                    corruption: 0.0,
                };
                let good = Fault::Link { link, direction, faults: LinkFaults::default() };
                (Fault::Link { link, direction, faults: bad }, Some(good))
            }
            2 => {
                let down = |is_down| Fault::Down { link, direction, is_down };
                (down(true), Some(down(false)))
            }
            3 => {
                let from = draw.below(hosts) as usize;
                let to = (from + 1 + draw.below(hosts - 1) as usize) % hosts as usize;
                let both_ways = draw.chance(0.5);
                let cut = |is_cut| Fault::Cut { from, to, both_ways, is_cut };
                (cut(true), Some(cut(false)))
            }
            4 => (Fault::Pause { host: draw.below(hosts) as usize, ns }, None),
            _ => (Fault::Crash { host: draw.below(hosts) as usize }, None),
        };
        faults.push((time_ns, begins));
        faults.extend(ends.map(|ends| (time_ns + ns, ends)));
    }
    // The sort is stable: of faults at the same time, the one drawn first happens first.
    faults.sort_by_key(|(time_ns, _)| *time_ns);
    faults
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topology, config, .. } = self;
        let (hosts, switches) = (counted(topology.hosts.len(), "host"), counted(topology.switches.len(), "switch"));
        writeln!(f, "{hosts}, {switches}, {:?}, {:?}", topology.switches[0], topology.links[0])?;
        writeln!(f, "{:?}", self.port)?;
        writeln!(f, "{config:?}")?;
        let (impatient, back) = (100.0 * self.impatient_share, 100.0 * self.call_back_share);
        writeln!(f, "windows of {}, messages to {} B", self.window, self.len_max)?;
        writeln!(f, "{impatient} % impatient calls, {back} % calls back")?;
        let (kept, handed) = (100.0 * self.kept_share, 100.0 * self.handed_share);
        let (workers, lanes) = (counted(self.workers, "worker"), counted(self.lanes, "lane"));
        writeln!(f, "{kept} % kept calls, {workers}, {lanes}, {handed} % handed over")?;
        self.faults.iter().try_for_each(|(time_ns, fault)| writeln!(f, "at {} us: {fault:?}", time_ns / 1000))
    }
}
