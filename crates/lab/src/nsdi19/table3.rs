//! Table 3: gains by the optimisations for the common case.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;

use sinew_fabric::{Address, Clock};
use sinew_host::{HostClock, SystemEntropy, available_cpus, pin_current_thread};
use sinew_rpc::{
    Algorithm, Call, Config, Congestion, Nexus, RequestType, Rpc, SessionEvent, SessionId, TimelyConfig, Tuning,
};
use sinew_shm::{Hub, ShmPort};

use crate::experiment::{Comparison, Experiment, Row};
use crate::programs::nsdi19;

/// Experiment for Table 3.
pub struct Table3;

const MS: u64 = 1_000_000;
const ECHO: RequestType = RequestType::new(1);
const LEN: usize = 32;
const BATCH: usize = 3;
const WINDOW: usize = 60;
/// Each call goes to a random one of these sessions: with twice the slots that the window needs, few calls wait.
const SESSIONS: usize = 15;
/// Runs of each configuration; the configurations take turns.
const ROUNDS: usize = 15;
const WARM_UP_NS: u64 = 10 * MS;
const MEASURED_NS: u64 = 40 * MS;
/// Time in which the sessions open, or never will.
const OPEN_NS: u64 = 5_000 * MS;
/// Rate of the link that congestion control assumes, that of the CX4 cluster, in Gb/s; the real carrier is a ring.
const RATE_GBPS: f64 = 25.0;

/// A step that switches off one more optimisation: its name, its title, the paper's rate in M/s and loss in %, and the
/// change; none if there is nothing to switch.
type Step = (&'static str, &'static str, f64, f64, Option<fn(&mut Config)>);
const STEPS: [Step; 7] = [
    ("baseline", "with congestion control", 4.96, 9.0, Some(|config| config.congestion = Some(congestion()))),
    ("ts", "- batched RTT timestamps", 4.84, 2.4, Some(|config| config.tuning.batched_clock = false)),
    ("timely", "- Timely bypass", 4.52, 6.6, Some(|config| config.tuning.congestion_bypass = false)),
    ("wheel", "- rate limiter bypass", 4.30, 4.8, Some(|config| config.tuning.pacing_bypass = false)),
    ("mprq", "- multi-packet RQ (does not apply)", 4.06, 5.6, None),
    ("prealloc", "- preallocated responses", 3.55, 12.6, Some(|config| config.tuning.preallocated_responses = false)),
    ("zerocopy", "- 0-copy request processing", 3.05, 14.0, Some(|config| config.tuning.zero_copy_requests = false)),
];
/// The paper's rate without congestion control, in M/s.
const PAPER_NO_CONTROL: f64 = 5.44;

/// Timely that considers no round trip long: one that takes milliseconds met a thread that did not run, not a queue.
fn congestion() -> Congestion {
    let never = TimelyConfig { low_ns: 60_000 * MS, high_ns: 120_000 * MS, ..TimelyConfig::default() };
    Congestion::new(RATE_GBPS, Algorithm::Timely(never))
}

impl Experiment for Table3 {
    fn id(&self) -> &'static str {
        "nsdi19-table3"
    }

    fn title(&self) -> &'static str {
        "What optimisations for the common case are worth"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.2, Table 3"
    }

    fn setup(&self) -> &'static str {
        "Measured on this machine: two threads, each on a processor of its own, call each other through rings in \
         private memory, with 32 B in batches of 3 and 60 calls of each in flight; the rate is that of one thread's \
         calls. Optimisations are switched off one after the other and stay off. The configurations take turns, 15 \
         times 40 ms each; the results are medians. The rings have no multi-packet receive queue. Losses can be \
         compared with the paper's; rates are for other machines."
    }

    fn measures_on(&self) -> Vec<usize> {
        processors().map_or_else(Vec::new, Vec::from)
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut config = Config { tuning: Tuning::default(), ..nsdi19() };
        let mut configs = vec![config.clone()];
        for change in STEPS.iter().filter_map(|step| step.4) {
            change(&mut config);
            configs.push(config.clone());
        }
        let rates = rates(&configs, ROUNDS, MEASURED_NS, progress);
        let row = |id: String, case: &str, metric: &str, paper, measured, unit| Row {
            id: format!("erpc.factor.{id}"),
            place: Some("Table 3"),
            case: case.to_owned(),
            metric: metric.to_owned(),
            paper: Some(paper),
            against: if unit == "%" { Comparison::Same } else { Comparison::Other("another machine") },
            model: None,
            measured,
            unit,
            missing_because: None,
        };
        let mut rates = rates.into_iter();
        let mut before = rates.next().flatten();
        let mut rows =
            vec![row("nocc".to_owned(), "without congestion control", "rate", PAPER_NO_CONTROL, before, "M/s")];
        for (name, what, paper, paper_loss, change) in STEPS {
            let rate = change.and_then(|_| rates.next().flatten());
            let loss = rate.zip(before).map(|(rate, before)| (1.0 - rate / before) * 100.0);
            before = rate.or(before);
            rows.push(row(name.to_owned(), what, "rate", paper, rate, "M/s"));
            rows.push(row(format!("{name}.loss"), what, "loss of rate", paper_loss, loss, "%"));
        }
        rows
    }
}

/// Processors of the two threads, if there are two.
fn processors() -> Option<[usize; 2]> {
    available_cpus().first_chunk().copied()
}

/// Median rate of each configuration, in M/s; none if there are fewer than two processors, or no memory.
fn rates(configs: &[Config], rounds: usize, measured_ns: u64, progress: &mut dyn FnMut(f64)) -> Vec<Option<f64>> {
    let Some(cpus) = processors() else { return vec![None; configs.len()] };
    let mut rates = vec![Vec::new(); configs.len()];
    for round in 0..rounds {
        for (at, config) in configs.iter().enumerate() {
            progress((round * configs.len() + at) as f64 / (rounds * configs.len()) as f64);
            rates[at].extend(rate(config, cpus, measured_ns));
        }
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    };
    rates.into_iter().map(median).collect()
}

/// Calls per second of each of the two threads on average, in M/s.
fn rate(config: &Config, cpus: [usize; 2], measured_ns: u64) -> Option<f64> {
    let hub = Hub::new();
    let nexus = Nexus::builder().config(config.clone()).handle(ECHO, |call: Call| {
        let request = call.request();
        call.reply(request);
    });
    let nexus = nexus.build().expect("the limits make sense");
    let ((to_second, from_first), (to_first, from_second)) = (mpsc::channel(), mpsc::channel());
    let [a, b] = thread::scope(|threads| {
        let sides = [
            (["first", "second"], to_second, from_second, cpus[0]),
            (["second", "first"], to_first, from_first, cpus[1]),
        ];
        let threads = sides.map(|(names, to_other, from_other, cpu)| {
            let (hub, nexus) = (hub.clone(), nexus.clone());
            threads.spawn(move || {
                pin_current_thread(cpu).ok()?;
                let port = hub.port(names[0]).ok()?;
                let rpc = Rpc::new(&nexus, port, HostClock::new(), Box::new(SystemEntropy::new().ok()?));
                Side { rpc, to_other, from_other, random: 0x2545_F491_4F6C_DD1D }.run(names[1], measured_ns)
            })
        });
        threads.map(|thread| thread.join().ok().flatten())
    });
    Some((a? + b?) / 2.0)
}

/// One of the two threads.
struct Side {
    rpc: Rpc<ShmPort, HostClock>,
    /// Tells the other thread that this one has reached the meeting point. It is dropped if this thread gives up.
    to_other: Sender<()>,
    from_other: Receiver<()>,
    random: u64,
}

impl Side {
    /// Runs this side. Returns its rate in M/s; none if it could not be measured.
    fn run(mut self, other: &str, measured_ns: u64) -> Option<f64> {
        self.wait_at_barrier()?;
        let sessions = self.connect(other)?;
        self.wait_at_barrier()?;
        let buffer = |rpc: &Rpc<ShmPort, HostClock>| Some((rpc.alloc(LEN).ok()?, rpc.alloc(LEN).ok()?));
        let mut idle = (0..WINDOW).map(|_| buffer(&self.rpc)).collect::<Option<Vec<_>>>()?;
        let clock = HostClock::new();
        let warm_ns = clock.now_ns() + WARM_UP_NS;
        // When counting began, and the number of calls by then.
        let mut counted_from: Option<(u64, u64)> = None;
        let (mut calls, mut now_ns, mut turns) = (0u64, 0, 0u32);
        // At least one call completes, however little time others leave the two.
        while counted_from.is_none_or(|(from_ns, before)| now_ns < from_ns + measured_ns || calls == before) {
            while idle.len() >= BATCH {
                for (request, response) in idle.drain(idle.len() - BATCH..) {
                    let session = sessions[self.random_below(sessions.len())];
                    self.rpc.enqueue_request(session, ECHO, request, response, 0).ok()?;
                }
            }
            self.rpc.turn();
            while let Some(completion) = self.rpc.poll_completion() {
                completion.result.ok()?;
                calls += 1;
                idle.push((completion.request, completion.response));
            }
            turns += 1;
            if turns.is_multiple_of(16) {
                now_ns = clock.now_ns();
                if now_ns >= warm_ns {
                    counted_from.get_or_insert((now_ns, calls));
                }
            }
        }
        let (from_ns, before) = counted_from?;
        let rate = (calls - before) as f64 * 1e3 / (now_ns - from_ns) as f64;
        // The other side still needs answers.
        self.wait_at_barrier()?;
        Some(rate)
    }

    /// Answers calls until the other thread has come to the same point.
    fn wait_at_barrier(&mut self) -> Option<()> {
        self.to_other.send(()).ok()?;
        loop {
            self.rpc.turn();
            while self.rpc.poll_completion().is_some() {}
            match self.from_other.try_recv() {
                Ok(()) => return Some(()),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return None,
            }
        }
    }

    fn connect(&mut self, other: &str) -> Option<Vec<SessionId>> {
        let address: Address = format!("shm://{other}").parse().expect("an address");
        for _ in 0..SESSIONS {
            self.rpc.begin_connect(&address).ok()?;
        }
        let (clock, mut open) = (HostClock::new(), Vec::new());
        let until_ns = clock.now_ns() + OPEN_NS;
        while open.len() < SESSIONS {
            self.rpc.turn();
            while let Some(event) = self.rpc.poll_event() {
                let SessionEvent::Connected(session) = event else { return None };
                open.push(session);
            }
            if clock.now_ns() > until_ns {
                return None;
            }
        }
        Some(open)
    }

    fn random_below(&mut self, bound: usize) -> usize {
        // xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * bound as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_configuration_is_measured_where_there_are_two_processors() {
        let mut config = Config::default();
        let mut configs = vec![config.clone()];
        for change in STEPS.iter().filter_map(|step| step.4) {
            change(&mut config);
            configs.push(config.clone());
        }
        assert!(configs.windows(2).all(|pair| pair[0] != pair[1]), "each step changes something");
        let rates = rates(&configs, 1, MS, &mut |_| ());
        if available_cpus().len() < 2 {
            return assert!(rates.iter().all(Option::is_none));
        }
        assert!(rates.len() == 7 && rates.iter().all(|rate| rate.is_some_and(|rate| rate > 0.0)), "{rates:?}");
    }

    #[test]
    fn the_papers_losses_follow_from_its_rates() {
        let mut before = PAPER_NO_CONTROL;
        for (name, _, rate, loss, _) in STEPS {
            assert!(((1.0 - rate / before) * 100.0 - loss).abs() < 0.3, "{name}");
            before = rate;
        }
    }
}
