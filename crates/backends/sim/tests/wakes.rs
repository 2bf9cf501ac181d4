//! Wakes from every source: which actor's turn follows, and when.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::{
    Clock, Generator, PacketPort, PacketRx, PacketTx, RxBurst, SeededGenerator, TxData, TxPacket, Waker,
};
use sinew_sim::{Actor, ActorId, ActorState, Cluster, Costs, HostId, Network, PortConfig, SimClock, SimPort, Topology};

type Log = Rc<RefCell<Vec<(usize, u64)>>>;

/// An actor that runs a closure in each turn, and logs its turns.
struct Does<F> {
    number: usize,
    log: Log,
    clock: SimClock,
    turn: F,
}

impl<F: FnMut() -> ActorState> Actor for Does<F> {
    fn turn(&mut self) -> ActorState {
        self.log.borrow_mut().push((self.number, self.clock.now_ns()));
        (self.turn)()
    }
}

/// A cluster whose actors log their turns.
struct World {
    cluster: Cluster,
    log: Log,
    actors: usize,
}

impl World {
    fn new() -> Self {
        let network = Network::new(Topology::star(3, 25.0, 200, 1500), 1).unwrap();
        Self { cluster: Cluster::new(&network), log: Log::default(), actors: 0 }
    }

    fn add(&mut self, port: Option<&SimPort>, turn: impl FnMut() -> ActorState + 'static) -> ActorId {
        let (number, log, clock) = (self.actors, Rc::clone(&self.log), self.cluster.clock());
        self.actors += 1;
        let actor = Box::new(Does { number, log, clock, turn });
        self.cluster.add(&format!("actor{number}"), port.map(SimPort::place), actor)
    }

    fn port(&self, host: usize, name: &str) -> SimPort {
        let config = PortConfig { arena_bytes: 1 << 16, costs: Costs::FREE, ..PortConfig::default() };
        self.cluster.network().open(HostId(host), name, config).unwrap()
    }

    /// Runs until `end_ns`; returns the turns since the last call.
    fn until(&mut self, end_ns: u64) -> Vec<(usize, u64)> {
        self.cluster.run_until(end_ns);
        self.log.take()
    }
}

/// Adds an actor that runs `work` in a turn at `at_ns`.
fn at(world: &mut World, at_ns: u64, work: impl FnOnce() + 'static) {
    let (clock, mut work) = (world.cluster.clock(), Some(work));
    world.add(None, move || {
        if clock.now_ns() < at_ns {
            return ActorState::IdleUntil(at_ns);
        }
        if let Some(work) = work.take() {
            work();
        }
        ActorState::Done
    });
}

#[test]
fn one_that_is_woken_from_anothers_turn_has_its_own_at_the_wakers_time() {
    let mut world = World::new();
    let (port, source) = (world.port(0, "port"), world.cluster.network().wake_source());
    let of_port = port.waker();
    let by_port = world.add(Some(&port), || ActorState::Idle);
    let by_source = world.add(None, || ActorState::Idle);
    world.cluster.listen(by_source, &source);
    let by_itself = world.cluster.waker(by_port);
    let clock = world.cluster.clock();
    at(&mut world, 1_000, move || {
        clock.spend_ns(10);
        of_port.wake();
        clock.spend_ns(20);
        source.waker().wake();
        clock.spend_ns(30);
        by_itself.wake();
        clock.spend_ns(40);
    });
    assert_eq!(world.until(999), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(world.until(9_999), [(2, 1_000), (0, 1_010), (1, 1_030), (0, 1_060)]);
}

#[test]
fn a_wake_between_steps_is_now_and_one_while_the_core_is_busy_is_when_it_is_free() {
    let mut world = World::new();
    let clock = world.cluster.clock();
    let actor = world.add(None, move || {
        clock.spend_ns(100);
        ActorState::Idle
    });
    let waker = world.cluster.waker(actor);
    assert_eq!(world.until(500), [(0, 0)]);
    waker.wake();
    waker.wake();
    assert_eq!(world.until(540), [(0, 500)], "two wakes that one turn sees are one");
    waker.wake();
    assert_eq!(world.until(999), [(0, 600)]);
    world.cluster.pause(actor, 2_000);
    waker.wake();
    assert_eq!(world.until(9_999), [(0, 2_000)], "it stands still");
    world.cluster.crash(actor);
    waker.wake();
    assert_eq!(world.until(19_999), []);
}

#[test]
fn one_that_wakes_itself_has_another_turn_and_time_passes() {
    let mut world = World::new();
    let (source, mut left) = (world.cluster.network().wake_source(), 3);
    let waker = source.waker();
    let actor = world.add(None, move || {
        left -= 1;
        if left > 0 {
            waker.wake();
        }
        ActorState::Idle
    });
    world.cluster.listen(actor, &source);
    assert_eq!(world.until(1_000), [(0, 0), (0, 1), (0, 2)]);
}

#[test]
fn of_those_woken_at_one_time_the_first_actor_has_the_first_turn() {
    let mut world = World::new();
    let actors: Vec<ActorId> = (0..4).map(|_| world.add(None, || ActorState::Idle)).collect();
    world.until(100);
    for actor in [3, 1, 2, 1, 0] {
        world.cluster.waker(actors[actor]).wake();
    }
    assert_eq!(world.until(200), [(0, 100), (1, 100), (2, 100), (3, 100)]);
}

#[test]
fn a_wake_that_nobody_listens_to_is_kept_for_the_next_who_does() {
    let mut world = World::new();
    let source = world.cluster.network().wake_source();
    let [first, second] = [(); 2].map(|()| world.add(None, || ActorState::Idle));
    world.until(10);
    source.waker().wake();
    assert_eq!(world.until(20), []);
    world.cluster.listen(first, &source);
    assert_eq!(world.until(30), [(0, 20)]);
    world.cluster.listen(second, &source);
    assert_eq!(world.until(40), [], "it was heard");
    source.waker().wake();
    world.cluster.listen(first, &source);
    assert_eq!(world.until(50), [(0, 40)], "one that is on its way goes to who listens when it is due");
}

#[test]
fn an_effect_happens_with_its_wake_and_no_turn_before_it_sees_it() {
    let mut world = World::new();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let effects = std::sync::Arc::new(std::sync::Mutex::new(0));
    let (saw, found, clock) = (Rc::clone(&seen), effects.clone(), world.cluster.clock());
    let looks = world.add(None, move || {
        saw.borrow_mut().push((clock.now_ns(), *found.lock().unwrap()));
        ActorState::IdleUntil(clock.now_ns() + 75)
    });
    let (waker, clock) = (world.cluster.waker(looks), world.cluster.clock());
    let left = effects.clone();
    at(&mut world, 100, move || {
        clock.spend_ns(50);
        waker.wake_with(Box::new(move || *left.lock().unwrap() += 1));
        clock.spend_ns(50);
    });
    world.until(180);
    assert_eq!(*effects.lock().unwrap(), 1);
    let seen = seen.take();
    assert_eq!(seen.iter().take_while(|(_, found)| *found == 0).last(), Some(&(150, 0)), "this one was due before");
    assert_eq!(seen.iter().find(|(_, found)| *found == 1), Some(&(151, 1)));
    // Outside all turns, no core is ahead of another.
    let (waker, left) = (world.cluster.waker(looks), effects.clone());
    waker.wake_with(Box::new(move || *left.lock().unwrap() += 1));
    assert_eq!(*effects.lock().unwrap(), 2);
}

#[test]
fn what_others_may_find_happens_at_its_cores_time_and_wakes_nobody() {
    let mut world = World::new();
    let happened = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let source = world.cluster.network().wake_source();
    let listens = world.add(None, || ActorState::Idle);
    world.cluster.listen(listens, &source);
    let does = |what: u64| {
        let (happened, clock) = (happened.clone(), world.cluster.clock());
        move || happened.lock().unwrap().push((what, clock.now_ns()))
    };
    let (waker, clock, first, second) = (source.waker(), world.cluster.clock(), does(1), does(2));
    at(&mut world, 1_000, move || {
        clock.spend_ns(500);
        // It is late for the listener itself too: others may look as well.
        waker.take_effect(Box::new(first));
        clock.spend_ns(500);
        waker.take_effect(Box::new(second));
    });
    assert_eq!(world.until(1_499), [(0, 0), (1, 0), (1, 1_000)]);
    assert_eq!(*happened.lock().unwrap(), []);
    assert_eq!(world.until(9_999), [], "it woke nobody");
    assert_eq!(*happened.lock().unwrap(), [(1, 1_500), (2, 2_000)]);
    // Outside all turns, it happens at once.
    let (clock, third) = (world.cluster.clock(), happened.clone());
    source.waker().take_effect(Box::new(move || third.lock().unwrap().push((3, clock.now_ns()))));
    assert_eq!(happened.lock().unwrap().last(), Some(&(3, 9_999)));
}

#[test]
fn at_one_nanosecond_timers_and_wakes_are_had_as_they_were_foreseen_and_wakes_by_actor() {
    let mut world = World::new();
    let clock = world.cluster.clock();
    let timer = |due_ns: u64| {
        let clock = clock.clone();
        move || if clock.now_ns() < due_ns { ActorState::IdleUntil(due_ns) } else { ActorState::Idle }
    };
    // Actors 0 and 1 are woken for the moment at which 2 and 3 have timers.
    let woken = [(); 2].map(|()| world.add(None, || ActorState::Idle));
    world.add(None, timer(1_000));
    let wakers = woken.map(|actor| world.cluster.waker(actor));
    let ahead = clock.clone();
    at(&mut world, 500, move || {
        ahead.spend_ns(500);
        wakers.iter().rev().for_each(Waker::wake);
    });
    world.until(900);
    world.add(None, timer(1_000));
    assert_eq!(world.until(999), [(4, 900)]);
    assert_eq!(world.until(1_000), [(2, 1_000), (0, 1_000), (1, 1_000), (4, 1_000)]);
}

#[test]
fn a_wake_from_another_thread_is_noticed_at_the_next_step() {
    let mut world = World::new();
    let actor = world.add(None, || ActorState::Idle);
    world.until(700);
    let waker = world.cluster.waker(actor);
    std::thread::spawn(move || waker.wake()).join().unwrap();
    assert_eq!(world.until(800), [(0, 700)]);
}

#[test]
fn wakers_outlive_their_cluster() {
    let mut world = World::new();
    let port = world.port(0, "port");
    let actor = world.add(Some(&port), || ActorState::Idle);
    let wakers = [world.cluster.waker(actor), port.waker()];
    drop(world);
    wakers.iter().for_each(Waker::wake);
    wakers.iter().for_each(|waker| waker.wake_with(Box::new(|| ())));
}

#[test]
fn nobody_who_waits_for_a_wake_is_said_to_wait_for_packets() {
    let mut world = World::new();
    world.add(None, || ActorState::Idle);
    let stuck = world.cluster.run_while(1_000, |_| false).unwrap_err();
    assert_eq!(stuck.to_string(), "the simulation is stuck at 0 ns: no events are left; actor0 waits for a wake");
}

#[test]
fn an_actor_at_two_ports_is_woken_by_either_and_at_the_earliest_time_it_wants() {
    let mut world = World::new();
    let (near, far) = (world.port(0, "near"), world.port(1, "far"));
    let wakers = [near.waker(), far.waker()];
    let (mut sender, peers) = (world.port(2, "sender"), [near.peer(), far.peer()]);
    let places = [near.place(), far.place()];
    let ports = Rc::new(RefCell::new([near, far]));
    let (log, clock, held) = (Rc::clone(&world.log), world.cluster.clock(), Rc::clone(&ports));
    let wants = Rc::new(RefCell::new([None, None]));
    let wanted = Rc::clone(&wants);
    let turn = move || {
        let mut ports = held.borrow_mut();
        for (port, wanted_ns) in ports.iter_mut().zip(wanted.take()) {
            let mut burst = RxBurst::new(0);
            port.split().0.receive(&mut burst);
            drop(burst);
            port.wait(wanted_ns).unwrap();
        }
        ActorState::Idle
    };
    let turns = |world: &mut World, end_ns| -> Vec<u64> {
        world.until(end_ns).into_iter().map(|(_, begin_ns)| begin_ns).collect()
    };
    let actor = Box::new(Does { number: 0, log, clock, turn });
    world.cluster.add("at two ports", places, actor);
    assert_eq!(turns(&mut world, 1_000), [0]);
    for (waker, now_ns) in wakers.iter().zip([1_000, 2_000]) {
        waker.wake();
        assert_eq!(turns(&mut world, now_ns + 1_000), [now_ns]);
    }
    for (to, now_ns) in peers.into_iter().zip([3_000, 13_000]) {
        sender.split().1.push(TxPacket { to, head: &[1; 64], data: TxData::None });
        sender.split().1.submit();
        let turns = turns(&mut world, now_ns + 10_000);
        assert!(turns.len() == 1 && turns[0] > now_ns, "{turns:?}");
    }
    assert_eq!(ports.borrow().iter().map(|port| port.stats().rx_packets).sum::<u64>(), 2);
    for (wanted, after_ns) in [([Some(500), None], 500), ([None, Some(700)], 700), ([Some(900), Some(300)], 300)] {
        *wants.borrow_mut() = wanted;
        let now_ns = world.cluster.clock().now_ns();
        wakers[0].wake();
        assert_eq!(turns(&mut world, now_ns + 5_000), [now_ns, now_ns + after_ns]);
    }
}

/// A step of an actor's turn.
#[derive(Clone, Copy, Debug)]
enum Step {
    Spend(u64),
    Wake(usize),
}

/// A random program: the steps of each actor in each of its turns, and when it wants the next one.
#[derive(Clone, Copy)]
struct Program {
    seed: u64,
    actors: usize,
    /// Whether actors have turns by themselves. If so, each wake comes after the beginning of its turn.
    has_timers: bool,
}

impl Program {
    const TURNS: u64 = 60;

    fn turn(&self, actor: usize, turn: u64) -> (Vec<Step>, Option<u64>) {
        let mut generator = SeededGenerator::new(self.seed << 32 | (actor as u64) << 16 | turn);
        generator.next_u64();
        if turn >= Self::TURNS {
            return (Vec::new(), None);
        }
        let mut steps = Vec::new();
        if self.has_timers {
            steps.push(Step::Spend(1 + generator.below(3)));
        }
        for _ in 0..generator.below(5) {
            steps.push(match generator.below(2) {
                0 => Step::Spend([0, 1, 5, 10, 10, 40, 300, 5_000][generator.below(8) as usize]),
                _ => Step::Wake(generator.below(self.actors as u64) as usize),
            });
        }
        let timer = (self.has_timers && generator.chance(0.6)).then(|| generator.below(400));
        (steps, timer)
    }

    /// Wakes from outside: the time, and the actor.
    fn outside(&self) -> Vec<(u64, usize)> {
        let mut generator = SeededGenerator::new(!self.seed);
        let mut wakes: Vec<_> =
            (0..40).map(|_| (generator.below(20) * 50, generator.below(self.actors as u64) as usize)).collect();
        wakes.sort_by_key(|(time_ns, _)| *time_ns);
        wakes
    }

    fn run(self) -> Vec<(usize, u64)> {
        let mut world = World::new();
        let wakers = Rc::new(RefCell::new(Vec::new()));
        let mut ports = Vec::new();
        for actor in 0..self.actors {
            let (clock, all, mut turns) = (world.cluster.clock(), Rc::clone(&wakers), 0);
            let turn = move || {
                let began_ns = clock.now_ns();
                let (steps, timer) = self.turn(actor, turns);
                turns += 1;
                for step in steps {
                    match step {
                        Step::Spend(ns) => clock.spend_ns(ns),
                        Step::Wake(other) => {
                            let all: std::cell::Ref<'_, Vec<Waker>> = all.borrow();
                            all[other].wake();
                        }
                    }
                }
                timer.map_or(ActorState::Idle, |ns| ActorState::IdleUntil(began_ns + ns))
            };
            // Each kind of source in turn.
            let port = (actor % 3 == 0).then(|| world.port(0, &format!("port{actor}")));
            let id = world.add(port.as_ref(), turn);
            let source = world.cluster.network().wake_source();
            world.cluster.listen(id, &source);
            wakers.borrow_mut().push(match (&port, actor % 3) {
                (Some(port), _) => port.waker(),
                (None, 1) => source.waker(),
                _ => world.cluster.waker(id),
            });
            ports.extend(port);
        }
        for (time_ns, actor) in self.outside() {
            world.cluster.run_until(time_ns);
            wakers.borrow()[actor].wake();
        }
        world.until(10_000_000)
    }

    /// The same by the rules alone: a turn is due at its wake, or when the core is free, and never twice at one time.
    /// Of the actors whose turns are due first, the first has its turn, which sees all wakes up to then.
    fn expected(self) -> Vec<(usize, u64)> {
        #[derive(Clone)]
        struct Model {
            wakes: Vec<u64>,
            timer_ns: Option<u64>,
            /// When the core is free, and a nanosecond has passed since the last turn.
            next_ns: u64,
            turns: u64,
        }
        let begin = Model { wakes: vec![0], timer_ns: None, next_ns: 0, turns: 0 };
        let (mut actors, mut log, mut outside) = (vec![begin; self.actors], Vec::new(), self.outside().into_iter());
        loop {
            let pending = outside.as_slice().first().map_or(u64::MAX, |(time_ns, _)| *time_ns);
            let due = |(number, actor): (usize, &Model)| {
                let first_ns = actor.wakes.iter().copied().chain(actor.timer_ns).min()?;
                Some((first_ns.max(actor.next_ns), number))
            };
            let next = actors.iter().enumerate().filter_map(due).min();
            let Some((now_ns, number)) = next.filter(|(time_ns, _)| *time_ns <= pending) else {
                let Some((time_ns, actor)) = outside.next() else { return log };
                actors[actor].wakes.push(time_ns);
                continue;
            };
            log.push((number, now_ns));
            let actor = &mut actors[number];
            actor.wakes.retain(|time_ns| *time_ns > now_ns);
            let (steps, timer) = self.turn(number, actor.turns);
            actor.turns += 1;
            actor.timer_ns = timer.map(|ns| now_ns + ns);
            let mut core_ns = now_ns;
            for step in steps {
                match step {
                    Step::Spend(ns) => core_ns += ns,
                    Step::Wake(other) => actors[other].wakes.push(core_ns),
                }
            }
            actors[number].next_ns = core_ns.max(now_ns + 1);
        }
    }
}

#[test]
fn random_programs_of_wakes_have_the_turns_of_a_simple_model() {
    let mut turns = 0;
    for seed in 0..200 {
        let program = Program { seed, actors: 1 + seed as usize % 7, has_timers: false };
        let log = program.run();
        assert_eq!(log, program.expected(), "seed {seed}");
        turns += log.len();
    }
    assert!(turns > 5_000, "{turns}");
}

#[test]
fn each_actor_has_the_turns_of_its_wakes_and_its_timers() {
    for seed in 0..200 {
        let program = Program { seed, actors: 1 + seed as usize % 7, has_timers: true };
        let (log, expected) = (program.run(), program.expected());
        for actor in 0..program.actors {
            let of = |log: &[(usize, u64)]| -> Vec<u64> {
                log.iter().filter(|(number, _)| *number == actor).map(|(_, begin_ns)| *begin_ns).collect()
            };
            assert_eq!(of(&log), of(&expected), "actor {actor} of seed {seed}");
        }
    }
}
