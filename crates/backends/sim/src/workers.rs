//! Worker pools in virtual time.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_fabric::{Job, WakeTarget, WorkerPool};
use sinew_mem::atomic::plain::Arc;

use crate::cores::{CoreState, CoreTime};
use crate::time::{SimClock, WORKER_CORE};
use crate::wakes::Source;

/// Configuration of a pool of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// Workers, each on a core of its own; at least 1.
    pub workers: usize,
    /// Most jobs that wait for a worker, at least 1; a pool with this many waiting refuses further ones.
    pub capacity: usize,
    /// Time that each job costs its worker before it does anything, in nanoseconds: taking it from the queue, and any
    /// other cost that all jobs share. A job adds to it with [`SimClock::spend_ns`].
    pub job_ns: u64,
}

/// Workers in virtual time, from [`Cluster::workers`](crate::Cluster::workers). Clones are the same pool.
///
/// Jobs begin in the order of their submission, each as soon as a worker is free. Time that a job spends through the
/// clock is charged to its worker's core, and what it does afterwards happens at the time that the core has reached: an
/// answer to a call arrives at the endpoint once the job has paid for everything before it. Other effects, on memory
/// that the job shares with others, happen at the job's beginning.
///
/// A job runs to its end at once, so it cannot wait for others: it may begin a nested call through an endpoint's
/// handle, but waiting for the result is an error in virtual time. A handler that must ask others before it answers
/// keeps its call for later turns instead.
///
/// As with threads, a panic ends only the job that panicked, and is counted. A job takes at least a nanosecond.
#[derive(Clone)]
pub struct SimWorkers(Arc<Pool>);

struct Pool {
    name: String,
    config: WorkersConfig,
    source: Arc<Source>,
    clock: SimClock,
    state: Mutex<PoolState>,
}

struct PoolState {
    /// Keyed by time of submission, then by number: cores do not always submit in the order of their times.
    waiting: BTreeMap<(u64, u64), Job>,
    submitted: u64,
    cores: Vec<CoreState>,
    is_open: bool,
    panics: u64,
    /// Time at which the pool is next looked at, because a worker is free then.
    look_ns: Option<u64>,
}

impl SimWorkers {
    pub(crate) fn new(name: &str, config: WorkersConfig, source: Arc<Source>, clock: SimClock) -> Self {
        let config = WorkersConfig { workers: config.workers.max(1), capacity: config.capacity.max(1), ..config };
        let began_ns = clock.event_ns();
        let state = PoolState {
            waiting: BTreeMap::new(),
            submitted: 0,
            cores: (0..config.workers).map(|_| CoreState::new(began_ns)).collect(),
            is_open: true,
            panics: 0,
            look_ns: None,
        };
        Self(Arc::new(Pool { name: name.to_owned(), config, source, clock, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // No job runs under the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the jobs that can begin now. Returns when the pool must be looked at again, unless that time was returned
    /// before.
    pub(crate) fn run(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.waiting.first_key_value().is_none_or(|((time_ns, _), _)| *time_ns > now_ns) {
                return None;
            }
            let cores = state.cores.iter().enumerate();
            // The worker that has been idle longest: threads that sleep on a queue are woken in their order.
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
            // A job takes at least a nanosecond, even if it spends none.
            state.cores[worker].spend(now_ns, spent_ns.max(1));
            state.cores[worker].work(spent_ns.max(1));
            if let Err(payload) = outcome {
                state.panics += 1;
                // A payload may panic when it is dropped; leaking it is the one thing that cannot fail.
                std::mem::forget(payload);
            }
        }
    }

    /// The pool's configuration; workers and capacity are at least 1.
    pub fn config(&self) -> WorkersConfig {
        self.0.config
    }

    /// Jobs that wait for a worker.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Jobs that have panicked so far.
    pub fn panics(&self) -> u64 {
        self.lock().panics
    }

    /// The time of each worker's core so far, by use.
    pub fn core_times(&self) -> Vec<CoreTime> {
        let now_ns = self.0.clock.event_ns();
        self.lock().cores.iter().map(|core| core.time(now_ns)).collect()
    }

    /// Stalls the workers until `end_ns`: a job that has begun ends, and no other begins.
    pub fn pause(&self, end_ns: u64) {
        let now_ns = self.0.clock.event_ns();
        let mut state = self.lock();
        state.cores.iter_mut().filter(|core| !core.has_ended()).for_each(|core| core.pause(now_ns, end_ns));
    }

    /// Ends the workers at once, as when a process crashes: waiting jobs are dropped, and new ones refused.
    pub fn crash(&self) {
        let now_ns = self.0.clock.event_ns();
        let mut state = self.lock();
        state.is_open = false;
        state.cores.iter_mut().for_each(|core| core.end(now_ns));
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        // Dropping a job ends its call, which must not happen under the lock.
        drop(dropped);
    }
}

impl WorkerPool for SimWorkers {
    /// The job begins no earlier than the time that the submitting core has reached.
    ///
    /// Whether the pool is full depends on the jobs that had not begun when the submitting core's turn began, less one
    /// for each worker that is free by now.
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
