//! The adaptive reader that the paper asks for (apnet19 5), while its load and its objects change.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use sinew_fabric::reader::{Choice, Joining, Object, ObjectLimits, Reader, ReaderConfig, Region, Server, ServerConfig};
use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain, RemoteMemory};
use sinew_fabric::{Clock, PollPolicy, SeededGenerator, Step};
use sinew_harness::units::counted;
use sinew_mem::SharedMemory;
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, Competitor, CoreShare, IdleCount, SimClock, SimVerbs};

use crate::experiment::{Experiment, Row};
use crate::nics::cluster::NicCluster;

/// Experiment for the adaptive reader.
pub struct AdaptiveReader;

/// Object that is read, and whether a computing program competes for the cores of both hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    is_busy: bool,
    len: u32,
    accesses: u32,
}

/// All eight cases, each of which differs from the one before in one respect.
pub const CASES: [Case; 8] = {
    const fn case(is_busy: bool, len: u32, accesses: u32) -> Case {
        Case { is_busy, len, accesses }
    }
    [
        case(false, 32, 1),
        case(false, 4096, 1),
        case(false, 4096, 4),
        case(false, 32, 4),
        case(true, 32, 4),
        case(true, 4096, 4),
        case(true, 4096, 1),
        case(true, 32, 1),
    ]
};

/// Time after a change in which gets are not counted.
const SETTLING_NS: u64 = 10_000_000;
/// Time after that in which they are.
const MEASURED_NS: u64 = 48_000_000;
/// Time between two polls of a core that finds nothing, in ns.
const LOOKS_NS: u64 = 2_000;
/// Bytes of a hop, which is the place of the next access.
const HOP_LEN: u32 = RemoteMemory::BYTES as u32;

type Next = Box<dyn Fn(u32, &[u8]) -> Option<RemoteMemory>>;

/// Returns where the next access goes. If a clock is given, reading that costs its owner the time of a memory access.
fn next(clock: Option<SimClock>, memory_ns: u64) -> Next {
    Box::new(move |_, bytes| {
        if let Some(clock) = &clock {
            clock.spend_ns(memory_ns);
        }
        Some(RemoteMemory::from_bytes(bytes.first_chunk()?))
    })
}

/// Sleeps of a thread, and the idle time of its core, as systems count it.
#[derive(Default)]
struct Sleep {
    since_ns: Option<u64>,
    /// Set once the actor has a core.
    idle: Rc<OnceCell<IdleCount>>,
    told_ns: u64,
}

impl Sleep {
    /// Ends a sleep. Returns how long the thread slept and how long its core was idle meanwhile, in ns, if it slept.
    fn end(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let slept_ns = now_ns - self.since_ns.take()?;
        let idle_ns = self.idle.get()?.ns();
        Some((slept_ns, idle_ns - std::mem::replace(&mut self.told_ns, idle_ns)))
    }

    /// Begins a sleep.
    fn begin(&mut self, now_ns: u64) {
        self.since_ns = Some(now_ns);
    }
}

struct Reading {
    /// Time until which it sleeps, whatever arrives: the competing program's slices begin then.
    rests_until_ns: Rc<Cell<u64>>,
    sleep: Sleep,
    reader: Reader<SimVerbs, Next, SeededGenerator>,
    object: Rc<Cell<Object>>,
    clock: SimClock,
    arm_ns: u64,
    done: Rc<Cell<u64>>,
}

impl Actor for Reading {
    fn turn(&mut self) -> ActorState {
        let now_ns = self.clock.now_ns();
        if now_ns < self.rests_until_ns.get() {
            return ActorState::AsleepUntil(self.rests_until_ns.get());
        }
        if let Some((slept_ns, idle_ns)) = self.sleep.end(now_ns) {
            self.reader.slept(slept_ns, idle_ns, now_ns);
        }
        let mut ended = 0;
        let turn = self.reader.turn(now_ns, |outcome| {
            assert!(outcome.result.is_ok(), "{outcome:?}");
            ended += 1;
        });
        self.done.set(self.done.get() + ended);
        if turn.in_flight == 0 {
            let now_ns = self.clock.now_ns();
            self.reader.get(0, &self.object.get(), now_ns).expect("one at a time");
            self.reader.flush();
            return ActorState::Work;
        }
        match turn.step {
            _ if turn.found => ActorState::Work,
            Step::Block => {
                self.clock.spend_ns(self.arm_ns);
                self.sleep.begin(self.clock.now_ns());
                ActorState::Asleep
            }
            _ => ActorState::IdleUntil(now_ns + LOOKS_NS),
        }
    }
}

struct Serving {
    /// Same as the reader's.
    rests_until_ns: Rc<Cell<u64>>,
    sleep: Sleep,
    server: Server<SimVerbs, Next>,
    clock: SimClock,
    arm_ns: u64,
    memory_ns: u64,
}

impl Actor for Serving {
    fn turn(&mut self) -> ActorState {
        let now_ns = self.clock.now_ns();
        if now_ns < self.rests_until_ns.get() {
            return ActorState::AsleepUntil(self.rests_until_ns.get());
        }
        if let Some((slept_ns, idle_ns)) = self.sleep.end(now_ns) {
            self.server.slept(slept_ns, idle_ns, now_ns);
        }
        let turn = self.server.turn(now_ns);
        // Reading the object itself, which is in no cache.
        self.clock.spend_ns(self.memory_ns * turn.requests as u64);
        match turn.step {
            _ if turn.found => ActorState::Work,
            Step::Block => {
                self.clock.spend_ns(self.arm_ns);
                self.sleep.begin(self.clock.now_ns());
                ActorState::Asleep
            }
            _ => ActorState::IdleUntil(now_ns + LOOKS_NS),
        }
    }
}

impl Case {
    fn name(&self) -> String {
        let Self { is_busy, len, accesses } = self;
        format!("{}, {len} B, {}", if *is_busy { "busy" } else { "idle" }, counted(*accesses, "access"))
    }
}

/// NIC profiles that are run.
const NICS: [&str; 2] = ["cx3-roce10", "cx3"];

/// Rates of the reader and of each fixed choice, in each case.
struct Compared {
    adaptive: Vec<f64>,
    fixed: Vec<Vec<f64>>,
}

impl Compared {
    fn of(name: &str, cases: &[Case]) -> Self {
        let profile = Profile::built_in(name).expect("it is built in");
        let fixed = Choice::ALL.into_iter().map(|choice| rates(&profile, Some(choice), cases)).collect();
        Self { adaptive: rates(&profile, None, cases), fixed }
    }

    fn best(&self, case: usize) -> f64 {
        self.fixed.iter().map(|rates| rates[case]).fold(0.0, f64::max)
    }

    fn reached(&self, case: usize) -> f64 {
        self.adaptive[case] / self.best(case)
    }
}

impl Experiment for AdaptiveReader {
    fn id(&self) -> &'static str {
        "apnet19-reader"
    }

    fn title(&self) -> &'static str {
        "A reader that chooses how to read"
    }

    fn source(&self) -> &'static str {
        "apnet19 5"
    }

    fn setup(&self) -> &'static str {
        "A reader on one host gets objects from a server on another, one at a time: of 32 B or 4 KB, after 1 or 4 \
         dependent accesses, on idle cores or with a computing program on both. After each sleep, both are told how \
         long their core was idle, as a system counts it. The cases follow each other in one run: after each change, \
         gets are counted for 48 ms, beginning after 10 ms. The reader chooses itself, or keeps to one of its four \
         choices throughout."
    }

    fn remark(&self) -> &'static str {
        "One get in a thousand loses a slice of 12 ms, so the reader accounts for these losses apart from the time of \
         a get: polling loses half of the time, so it sleeps where that takes less than twice as long. Slices fall \
         differently when the choice changes, so that 48 ms may hold a few more or fewer. A thread that sleeps learns \
         that a program comes or goes from how idle its core was meanwhile; one that is not told this polls again \
         within 200 ms. A reader that polls beside a program, and meets a class of gets that is new to it, does not \
         sleep for them before it loses the next slice, which can be 24 ms later. In some other orders of the cases it \
         stays 20 % below the best in one of them, or once 50 %."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (nth, name) in NICS.into_iter().enumerate() {
            progress(nth as f64 / NICS.len() as f64);
            let compared = Compared::of(name, &CASES);
            for (at, case) in CASES.iter().enumerate() {
                let mut push = |what: &str, metric: String, model, unit| {
                    let row = Row::model(format!("roce.reader.{name}.{at}.{what}"), metric, model, unit);
                    rows.push(row.case(format!("{name}, {}", case.name())));
                };
                for (choice, rates) in Choice::ALL.iter().zip(&compared.fixed) {
                    push(&format!("fixed{}", choice.index()), format!("always {choice}"), rates[at], "K/s");
                }
                push("adaptive", "chosen by the reader".to_owned(), compared.adaptive[at], "K/s");
                push("reached", "chosen by the reader over the best".to_owned(), compared.reached(at), "x");
            }
        }
        rows
    }
}

/// Thousands of gets per second in each case, one case after the other. The way of reading is `forced`, or the reader's
/// own choice.
pub fn rates(profile: &Profile, forced: Option<Choice>, cases: &[Case]) -> Vec<f64> {
    let mut nics = NicCluster::new(profile, 2, 1);
    let clock = nics.clock();
    let (near, far) = (nics.open(1), nics.open(0));
    let far_domain = far.protection_domain().expect("a domain");
    let memory = far_domain.expose(1 << 16, Access::READ).expect("memory");
    let limits = ObjectLimits { accesses_max: 8, len_max: 4096 };
    // Hops that lead to each other, and finally to the object.
    let place = |offset: usize, len: u32| RemoteMemory {
        len: len.into(),
        ..memory.remote().at(offset as u64).expect("inside")
    };
    let object = |nth: usize, case: &Case| {
        let mut start = place(0, case.len);
        for hop in 1..case.accesses as usize {
            // Each case has hops of its own, since gets of the last case are in flight.
            let at = 4096 + 64 * (8 * nth + hop);
            memory.write(at, &start.to_bytes()).expect("inside");
            start = place(at, HOP_LEN);
        }
        Object { start, accesses: case.accesses, hop_len: HOP_LEN, len: case.len }
    };
    let core = profile.core;
    let config = ServerConfig { clients: 1, window: 16, limits, poller: PollPolicy::ADAPTIVE };
    let regions = vec![Region { remote: memory.remote(), memory: SharedMemory::clone(&memory) }];
    let chase = next(Some(clock.clone()), core.memory_ns);
    let mut server = Server::new(&far, &far_domain, &config, regions, chase).expect("a server");
    let domain = near.protection_domain().expect("a domain");
    let (joining, hello) =
        Joining::prepare(&near, &domain, &ReaderConfig { limits, ..ReaderConfig::new("the server") }).expect("queues");
    let (_, welcome) = server.admit(&hello).expect("there is room");
    let mut reader = joining.join(&welcome, next(None, 0), SeededGenerator::new(1)).expect("it is welcome");
    reader.force(forced);
    let (done, wanted) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(object(0, &cases[0]))));
    let rests_until_ns = [0; 2].map(|ns| Rc::new(Cell::new(ns)));
    let arm_ns = core.doorbell_ns;
    let idle = [const { OnceCell::new() }; 2].map(Rc::new);
    let [sleep, far_sleep] = idle.each_ref().map(|idle| Sleep { idle: Rc::clone(idle), ..Sleep::default() });
    let reading = Reading {
        rests_until_ns: Rc::clone(&rests_until_ns[0]),
        sleep,
        reader,
        object: Rc::clone(&wanted),
        clock: clock.clone(),
        arm_ns,
        done: Rc::clone(&done),
    };
    let actors = [
        nics.add(&near, reading),
        nics.add(
            &far,
            Serving {
                rests_until_ns: Rc::clone(&rests_until_ns[1]),
                sleep: far_sleep,
                server,
                clock,
                arm_ns,
                memory_ns: core.memory_ns,
            },
        ),
    ];
    for (actor, idle) in actors.into_iter().zip(idle) {
        idle.set(nics.cluster.count_idle(actor)).expect("it is counted once");
    }
    let mut now_ns = 0;
    let mut rates = Vec::new();
    for (nth, case) in cases.iter().enumerate() {
        wanted.set(object(nth, case));
        if case.is_busy {
            // Slices of the two hosts begin at different times.
            rests_until_ns[0].set(now_ns + LOOKS_NS);
            rests_until_ns[1].set(now_ns + core.time_slice_ns / 2);
        }
        for actor in actors {
            let share = CoreShare {
                interrupt_ns: core.interrupt_ns,
                competitor: case.is_busy.then(|| Competitor::with_slice_ns(core.time_slice_ns)),
            };
            nics.cluster.share_core(actor, share);
        }
        nics.cluster.run_until(now_ns + SETTLING_NS);
        let before = done.get();
        now_ns += SETTLING_NS + MEASURED_NS;
        nics.cluster.run_until(now_ns);
        rates.push((done.get() - before) as f64 * 1e6 / MEASURED_NS as f64);
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_is_near_the_best_choice_soon_after_a_change_and_no_fixed_choice_is() {
        for name in NICS {
            let compared = Compared::of(name, &CASES);
            for (at, case) in CASES.iter().enumerate() {
                assert!(compared.reached(at) >= 0.9, "{name}, {}: {}", case.name(), compared.reached(at));
            }
            for (choice, rates) in Choice::ALL.iter().zip(&compared.fixed) {
                let manages = (0..CASES.len()).all(|at| rates[at] >= 0.9 * compared.best(at));
                assert!(!manages, "{name}: {choice}");
            }
        }
    }

    /// Runs cases in another order, and returns those in which the reader stayed below 90 % of the best choice.
    fn follows(order: &[usize]) -> Vec<String> {
        let cases: Vec<Case> = order.iter().map(|at| CASES[*at]).collect();
        let mut short = Vec::new();
        for name in NICS {
            let compared = Compared::of(name, &cases);
            for (at, case) in cases.iter().enumerate().filter(|(at, _)| compared.reached(*at) < 0.9) {
                short.push(format!("{name}, {order:?}, {at}: {}: {}", case.name(), compared.reached(at)));
            }
        }
        short
    }

    #[test]
    fn a_program_that_comes_and_goes_is_followed_by_who_polls_and_by_who_sleeps() {
        // The second order leads from sleep to polling and back.
        let orders: [&[usize]; 4] =
            [&[4, 3, 7, 0, 5, 2, 4, 2], &[1, 6, 1, 6, 1], &[7, 5, 4, 3, 2, 1, 0, 6], &[5, 0, 4, 1, 7, 3, 4, 1]];
        let short: Vec<String> = orders.into_iter().flat_map(follows).collect();
        assert!(short.is_empty(), "{short:#?}");
    }

    #[test]
    fn a_reader_that_begins_beside_a_program_is_near_the_best_choice_as_soon() {
        let short: Vec<String> = (0..CASES.len()).flat_map(|at| follows(&[at])).collect();
        assert!(short.is_empty(), "{short:#?}");
    }
}
