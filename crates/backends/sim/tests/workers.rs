//! Worker pools in virtual time.

use std::sync::{Arc, Mutex};

use sinew_fabric::{Clock, SeededGenerator, WorkerPool};
use sinew_sim::{
    Actor, ActorId, ActorState, Cluster, CoreTime, Network, SimClock, SimWorkers, Topology, WorkersConfig,
};

/// Numbers of jobs, and when each began and ended.
type Log = Arc<Mutex<Vec<(u64, u64, u64)>>>;

fn cluster() -> Cluster {
    Cluster::new(&Network::new(Topology::star(2, 25.0, 200, 1500), 1).unwrap())
}

/// A job that spends `spends_ns`, and notes when.
fn job(number: u64, spends_ns: u64, clock: &SimClock, log: &Log) -> sinew_fabric::Job {
    let (clock, log) = (clock.clone(), Arc::clone(log));
    Box::new(move || {
        let began_ns = clock.now_ns();
        clock.spend_ns(spends_ns);
        log.lock().unwrap().push((number, began_ns, clock.now_ns()));
    })
}

struct Turns<F>(F);

impl<F: FnMut() -> ActorState> Actor for Turns<F> {
    fn turn(&mut self) -> ActorState {
        self.0()
    }
}

fn add(cluster: &mut Cluster, turn: impl FnMut() -> ActorState + 'static) -> ActorId {
    cluster.add("actor", [], Box::new(Turns(turn)))
}

fn pool(cluster: &mut Cluster, workers: usize, capacity: usize, job_ns: u64) -> (SimWorkers, SimClock, Log) {
    let pool = cluster.workers("workers", WorkersConfig { workers, capacity, job_ns });
    (pool, cluster.clock(), Log::default())
}

#[test]
fn jobs_begin_in_order_when_a_worker_is_free_and_their_cores_are_charged() {
    let mut cluster = cluster();
    let (pool, clock, log) = pool(&mut cluster, 2, 10, 100);
    cluster.run_until(1_000);
    for (number, spends_ns) in [(0, 900), (1, 200), (2, 0), (3, 50)] {
        pool.submit(job(number, spends_ns, &clock, &log)).ok().unwrap();
    }
    cluster.run_until(1_350);
    assert_eq!(pool.waiting(), 1);
    cluster.run_until(10_000);
    let log = log.lock().unwrap().clone();
    assert_eq!(log, [(0, 1_100, 2_000), (1, 1_100, 1_300), (2, 1_400, 1_400), (3, 1_500, 1_550)]);
    let times =
        [1_000, 300 + 100 + 150].map(|worked_ns| CoreTime { worked_ns, polled_ns: 10_000 - worked_ns, slept_ns: 0 });
    assert_eq!(pool.core_times(), times);
}

#[test]
fn what_a_job_does_is_at_the_time_that_its_core_has_come_to() {
    let mut cluster = cluster();
    let (pool, clock, _) = pool(&mut cluster, 1, 10, 100);
    let (turns, effects) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    let (seen, found, time) = (Arc::clone(&turns), Arc::clone(&effects), cluster.clock());
    let actor = add(&mut cluster, move || {
        seen.lock().unwrap().push((time.now_ns(), *found.lock().unwrap()));
        ActorState::Idle
    });
    let waker = cluster.waker(actor);
    cluster.run_until(1_000);
    let (wakes, left) = (waker.clone(), Arc::clone(&effects));
    let answers = move || {
        wakes.wake();
        clock.spend_ns(700);
        wakes.wake_with(Box::new(move || *left.lock().unwrap() += 1));
        clock.spend_ns(5_000);
    };
    pool.submit(Box::new(answers)).ok().unwrap();
    cluster.run_until(1_500);
    waker.wake();
    cluster.run_until(10_000);
    assert_eq!(*turns.lock().unwrap(), [(0, 0), (1_100, 0), (1_500, 0), (1_800, 1)]);
}

#[test]
fn a_full_pool_hands_the_job_back_and_free_workers_make_room() {
    let mut cluster = cluster();
    let (pool, clock, log) = pool(&mut cluster, 2, 3, 0);
    let submit = |number| pool.submit(job(number, 1_000, &clock, &log)).is_ok();
    // Two jobs begin at once.
    assert!((0..5).all(submit) && !submit(5));
    cluster.run_until(500);
    assert!(!submit(6) && pool.waiting() == 3);
    cluster.run_until(1_000);
    assert!(submit(7) && submit(8) && !submit(9));
    cluster.run_until(9_000);
    let ran: Vec<u64> = log.lock().unwrap().iter().map(|(number, ..)| *number).collect();
    assert_eq!(ran, [0, 1, 2, 3, 4, 7, 8]);
}

#[test]
fn a_job_begins_when_its_submitter_has_come_to_it_and_may_submit_others() {
    let mut cluster = cluster();
    let (pool, clock, log) = pool(&mut cluster, 1, 10, 0);
    for (spends_ns, number) in [(900, 1), (150, 0)] {
        let (pool, clock, log, mut is_done) = (pool.clone(), clock.clone(), Arc::clone(&log), false);
        add(&mut cluster, move || {
            clock.spend_ns(spends_ns);
            if !std::mem::replace(&mut is_done, true) {
                pool.submit(job(number, 10, &clock, &log)).ok().unwrap();
            }
            ActorState::Idle
        });
    }
    cluster.run_until(1_000);
    assert_eq!(*log.lock().unwrap(), [(0, 150, 160), (1, 900, 910)]);
    log.lock().unwrap().clear();
    // A job that costs nothing still takes a nanosecond.
    let (again, time, found) = (pool.clone(), clock.clone(), Arc::clone(&log));
    pool.submit(Box::new(move || again.submit(job(2, 0, &time, &found)).ok().unwrap())).ok().unwrap();
    cluster.run_until(2_000);
    assert_eq!(*log.lock().unwrap(), [(2, 1_001, 1_001)]);
}

#[test]
fn a_panic_is_counted_and_its_worker_goes_on() {
    let mut cluster = cluster();
    let (pool, clock, log) = pool(&mut cluster, 1, 10, 100);
    pool.submit(Box::new(|| std::panic::resume_unwind(Box::new("job")))).ok().unwrap();
    pool.submit(job(1, 0, &clock, &log)).ok().unwrap();
    cluster.run_until(1_000);
    assert_eq!((pool.panics(), log.lock().unwrap().clone()), (1, vec![(1, 200, 200)]));
}

#[test]
fn workers_stand_still_and_crash_with_their_host() {
    let mut cluster = cluster();
    let (pool, clock, log) = pool(&mut cluster, 1, 10, 100);
    let submit = |number| pool.submit(job(number, 0, &clock, &log)).is_ok();
    assert!(submit(0) && submit(1));
    cluster.run_until(50);
    pool.pause(5_000);
    cluster.run_until(5_050);
    assert_eq!(*log.lock().unwrap(), [(0, 100, 100), (1, 5_100, 5_100)]);
    assert_eq!(pool.core_times(), [CoreTime { worked_ns: 150, polled_ns: 0, slept_ns: 0 }]);
    assert!(submit(2));
    pool.crash();
    assert!(!submit(3));
    cluster.run_until(9_000);
    assert_eq!((log.lock().unwrap().len(), pool.waiting()), (2, 0));
    assert_eq!(pool.core_times(), [CoreTime { worked_ns: 150, polled_ns: 0, slept_ns: 0 }]);
}

/// Lets actors submit jobs of random lengths at random times. Returns each job's time of submission and length, and
/// when it began.
fn random(seed: u64, workers: usize) -> (Vec<(u64, u64)>, Vec<u64>) {
    let mut cluster = cluster();
    let (pool, clock, log) = pool(&mut cluster, workers, usize::MAX >> 1, 0);
    let submitted = Arc::new(Mutex::new(Vec::new()));
    for actor in 0..3 {
        let (pool, clock, log, submitted) = (pool.clone(), clock.clone(), Arc::clone(&log), Arc::clone(&submitted));
        let (mut generator, mut turns) = (SeededGenerator::new(seed << 8 | actor), 0);
        add(&mut cluster, move || {
            turns += 1;
            for _ in 0..generator.below(4) {
                clock.spend_ns(generator.below(30) * 10);
                let length_ns = 1 + generator.below(40) * 10;
                let mut submitted = submitted.lock().unwrap();
                pool.submit(job(submitted.len() as u64, length_ns, &clock, &log)).ok().unwrap();
                submitted.push((clock.now_ns(), length_ns));
            }
            if turns < 50 { ActorState::IdleUntil(clock.now_ns() + generator.below(50) * 10) } else { ActorState::Done }
        });
    }
    cluster.run_until(1_000_000_000);
    let mut log = log.lock().unwrap().clone();
    log.sort_unstable();
    let submitted = submitted.lock().unwrap().clone();
    assert!(log.iter().zip(&submitted).all(|((_, began_ns, ended_ns), (_, len_ns))| ended_ns - began_ns == *len_ns));
    (submitted, log.into_iter().map(|(_, began_ns, _)| began_ns).collect())
}

#[test]
fn random_jobs_begin_as_in_a_queue_with_several_servers() {
    for seed in 0..60 {
        let workers = 1 + seed as usize % 4;
        let (submitted, began) = random(seed, workers);
        assert_eq!(random(seed, workers), (submitted.clone(), began.clone()), "equal seeds are equal runs: {seed}");
        let mut order: Vec<usize> = (0..submitted.len()).collect();
        order.sort_by_key(|at| submitted[*at].0);
        let mut free_ns = vec![0; workers];
        for at in order {
            let (time_ns, len_ns) = submitted[at];
            let first = free_ns.iter_mut().min().unwrap();
            let begin_ns = time_ns.max(*first);
            *first = begin_ns + len_ns;
            assert_eq!(began[at], begin_ns, "job {at} of seed {seed}");
        }
    }
}
