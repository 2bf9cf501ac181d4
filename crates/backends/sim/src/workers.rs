//! Worker pools in virtual time.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_fabric::{Job, WakeTarget, WorkerPool};
use sinew_mem::atomic::plain::Arc;

use crate::cores::{Core, CoreTime};
use crate::time::{SimClock, WORKER_CORE};
use crate::wakes::Source;

/// What a pool of workers is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// Workers, each on a core of its own; at least one.
    pub workers: usize,
    /// Jobs that wait for a worker at most; at least one. A pool of which so many wait refuses others.
    pub capacity: usize,
    /// What each job costs its worker before it does anything, in nanoseconds: taking it from the queue, and whatever else all jobs cost. A job
    /// adds to it with [`SimClock::spend_ns`].
    pub job_ns: u64,
}

/// Workers in virtual time, from [`Cluster::workers`](crate::Cluster::workers). Clones are the same pool.
///
/// Jobs begin in the order of their submission, each when a worker is free. What a job spends through the clock its worker's core is charged
/// for, and what the job does then is at the time that the core has come to: an answer to a call arrives at the endpoint when the job has paid for all that
/// it did before. Other effects, those on memory that the job shares with others, happen at the job's beginning.
///
/// A job runs to its end at once, so it cannot wait for what others do meanwhile: a nested call through an endpoint's handle can be begun in it, but
/// not waited for, which is an error in virtual time. A handler that asks others before it answers keeps its call for later turns instead.
///
/// As with threads, a job that panics ends alone, and is counted. A job takes a nanosecond at least.
#[derive(Clone)]
pub struct SimWorkers(Arc<Pool>);

struct Pool {
    name: String,
    config: WorkersConfig,
    source: Arc<Source>,
    clock: SimClock,
    state: Mutex<State>,
}

struct State {
    /// By the time of their submission, which is not always the order in which cores come to it.
    waiting: BTreeMap<(u64, u64), Job>,
    submitted: u64,
    cores: Vec<Core>,
    is_open: bool,
    panics: u64,
    /// When the pool is to be looked at again, and a worker is free.
    look_ns: Option<u64>,
}

impl SimWorkers {
    pub(crate) fn new(name: &str, config: WorkersConfig, source: Arc<Source>, clock: SimClock) -> Self {
        let config = WorkersConfig { workers: config.workers.max(1), capacity: config.capacity.max(1), ..config };
        let began_ns = clock.event_ns();
        let state = State {
            waiting: BTreeMap::new(),
            submitted: 0,
            cores: (0..config.workers).map(|_| Core::new(began_ns)).collect(),
            is_open: true,
            panics: 0,
            look_ns: None,
        };
        Self(Arc::new(Pool { name: name.to_owned(), config, source, clock, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No job runs under the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs what can begin now. Returns when more can, and was not told before.
    pub(crate) fn run(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.waiting.first_key_value().is_none_or(|((time_ns, _), _)| *time_ns > now_ns) {
                return None;
            }
            let cores = state.cores.iter().enumerate();
            // Who was idle longest: threads that sleep on a queue are woken in their order.
            let (worker, free_ns) = cores.map(|(at, core)| (at, core.free_ns)).min_by_key(|(_, free_ns)| *free_ns)?;
            if free_ns > now_ns {
                let is_known = state.look_ns.is_some_and(|look_ns| now_ns < look_ns && look_ns <= free_ns);
                state.look_ns = if is_known { state.look_ns } else { Some(free_ns) };
                return (!is_known).then_some(free_ns);
            }
            let (_, job) = state.waiting.pop_first()?;
            drop(state);
            let clock = &self.0.clock;
            let (outcome, spent_ns) = clock.work(WORKER_CORE, || {
                clock.spend_ns(self.0.config.job_ns);
                catch_unwind(AssertUnwindSafe(job))
            });
            state = self.lock();
            // Where nothing costs anything, time passes all the same.
            state.cores[worker].spend(now_ns, spent_ns.max(1));
            state.cores[worker].work(spent_ns.max(1));
            if let Err(payload) = outcome {
                state.panics += 1;
                // A payload may panic when it is dropped; leaking it is the one thing that cannot fail.
                std::mem::forget(payload);
            }
        }
    }

    /// What it was made with; workers and capacity are at least one.
    pub fn config(&self) -> WorkersConfig {
        self.0.config
    }

    /// Jobs that wait for a worker.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Jobs that panicked so far.
    pub fn panics(&self) -> u64 {
        self.lock().panics
    }

    /// How each worker's core spent its time.
    pub fn core_times(&self) -> Vec<CoreTime> {
        let now_ns = self.0.clock.event_ns();
        self.lock().cores.iter().map(|core| core.time(now_ns)).collect()
    }

    /// Lets the workers stand still until `end_ns`: a job that has begun ends, and no other begins.
    pub fn pause(&self, end_ns: u64) {
        let now_ns = self.0.clock.event_ns();
        let mut state = self.lock();
        state.cores.iter_mut().filter(|core| !core.has_ended()).for_each(|core| core.pause(now_ns, end_ns));
    }

    /// Ends the workers at once, as a process that crashes does: jobs that wait are dropped, and others are refused.
    pub fn crash(&self) {
        let now_ns = self.0.clock.event_ns();
        let mut state = self.lock();
        state.is_open = false;
        state.cores.iter_mut().for_each(|core| core.end(now_ns));
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        // Their calls hear of it, with nothing locked.
        drop(dropped);
    }
}

impl WorkerPool for SimWorkers {
    /// The job begins at the earliest when the core at work has come to where it submits it.
    ///
    /// Whether the pool is full is judged by what has begun when the submitting core's turn does, and by workers that are free meanwhile.
    fn submit(&self, job: Job) -> Result<(), Job> {
        let now_ns = self.0.clock.core_ns();
        let mut state = self.lock();
        let later = state.waiting.range((now_ns + 1, 0)..).count();
        let free = state.cores.iter().filter(|core| core.free_ns <= now_ns).count();
        if !state.is_open || state.waiting.len() - later >= self.0.config.capacity + free {
            return Err(job);
        }
        let number = state.submitted;
        state.submitted += 1;
        state.waiting.insert((now_ns, number), job);
        drop(state);
        self.0.source.wake();
        Ok(())
    }
}

impl fmt::Debug for SimWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SimWorkers");
        debug.field("name", &self.0.name).field("config", &self.0.config).finish_non_exhaustive()
    }
}
