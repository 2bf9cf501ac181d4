//! A pool of worker threads.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use sinew_fabric::{Job, WorkerPool};

struct Queue {
    jobs: VecDeque<Job>,
    /// Workers that sleep. When none does, submitting a job makes no system call.
    idle: usize,
    open: bool,
    panics: u64,
}

struct Shared {
    queue: Mutex<Queue>,
    capacity: usize,
    work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No job runs under the lock, so a poisoned queue is still consistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Worker threads that share one bounded queue.
///
/// The panic of a job is caught and counted, and its thread carries on. Dropping the pool lets the accepted jobs finish
/// and joins the threads.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// Starts `threads` threads, named `name-0`, `name-1`, ..., which share a queue of at most `capacity` waiting jobs.
    /// Either number is raised to one if it is zero.
    ///
    /// # Errors
    ///
    /// The error of the system when it cannot start a thread; those already started end again.
    pub fn new(name: &str, threads: usize, capacity: usize) -> io::Result<Self> {
        let capacity = capacity.max(1);
        let shared = Arc::new(Shared {
            // The queue grows as it is used, so a generous bound costs nothing.
            queue: Mutex::new(Queue { jobs: VecDeque::new(), idle: 0, open: true, panics: 0 }),
            capacity,
            work: Condvar::new(),
        });
        let mut pool = Self { shared, threads: Vec::new() };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            // Returning early drops `pool`, which joins the threads started so far.
            let thread = std::thread::Builder::new().name(format!("{name}-{index}")).spawn(move || work(&shared))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Threads in the pool.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Jobs that panicked so far.
    pub fn panics(&self) -> u64 {
        self.shared.lock().panics
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

fn work(shared: &Shared) {
    let mut queue = shared.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            // The job is gone after its panic, and with it whatever the panic left broken.
            let outcome = catch_unwind(AssertUnwindSafe(job));
            queue = shared.lock();
            if let Err(payload) = outcome {
                queue.panics += 1;
                // A payload may panic when it is dropped, so it is leaked, which cannot fail.
                std::mem::forget(payload);
            }
        } else if queue.open {
            queue.idle += 1;
            queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        } else {
            return;
        }
    }
}

impl WorkerPool for ThreadPool {
    fn submit(&self, job: Job) -> Result<(), Job> {
        let mut queue = self.shared.lock();
        if !queue.open || queue.jobs.len() >= self.shared.capacity {
            return Err(job);
        }
        queue.jobs.push_back(job);
        let wake = queue.idle > 0;
        drop(queue);
        if wake {
            self.shared.work.notify_one();
        }
        Ok(())
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.lock().open = false;
        self.shared.work.notify_all();
        let this = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // When a job holds the pool's last handle, this is the job's own thread. A thread cannot join itself; it
            // ends once the job returns.
            if thread.thread().id() != this {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_on_the_pools_own_named_threads() {
        let pool = ThreadPool::new("worker", 1, 4).unwrap();
        let (send, receive) = mpsc::channel();
        pool.submit(Box::new(move || {
            send.send(std::thread::current().name().map(str::to_owned)).unwrap();
        }))
        .ok()
        .unwrap();
        assert_eq!(receive.recv().unwrap().as_deref(), Some("worker-0"));
    }

    #[test]
    fn a_full_queue_hands_the_job_back() {
        let pool = ThreadPool::new("worker", 1, 1).unwrap();
        let (release, blocked) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel();
        let first = Box::new(move || {
            started.send(()).unwrap();
            let _ = blocked.recv();
        });
        assert!(pool.submit(first).is_ok());
        running.recv().unwrap();
        assert!(pool.submit(Box::new(|| {})).is_ok());
        let (ran, result) = mpsc::channel();
        let refused = pool.submit(Box::new(move || ran.send(7).unwrap())).unwrap_err();
        drop(release);
        refused();
        assert_eq!(result.recv().unwrap(), 7);
    }

    #[test]
    fn a_panic_is_counted_and_its_thread_goes_on() {
        let pool = ThreadPool::new("worker", 1, 4).unwrap();
        let (send, receive) = mpsc::channel();
        assert!(pool.submit(Box::new(|| std::panic::resume_unwind(Box::new("job")))).is_ok());
        assert!(pool.submit(Box::new(move || send.send(()).unwrap())).is_ok());
        receive.recv().unwrap();
        assert_eq!((pool.panics(), pool.threads()), (1, 1));
    }

    #[test]
    fn dropping_the_pool_finishes_what_it_accepted() {
        let (send, receive) = mpsc::channel();
        let pool = ThreadPool::new("worker", 2, 100).unwrap();
        for number in 0..100 {
            let send = send.clone();
            pool.submit(Box::new(move || send.send(number).unwrap())).ok().unwrap();
        }
        drop((pool, send));
        assert_eq!(receive.iter().count(), 100);
    }

    #[test]
    fn a_job_may_hold_the_last_handle_on_its_pool() {
        let pool = Arc::new(ThreadPool::new("worker", 1, 1).unwrap());
        let (send, receive) = mpsc::channel();
        let held = Arc::clone(&pool);
        let (go, wait) = mpsc::channel::<()>();
        pool.submit(Box::new(move || {
            let _ = wait.recv();
            drop(held);
            send.send(()).unwrap();
        }))
        .ok()
        .unwrap();
        drop(pool);
        drop(go);
        receive.recv().unwrap();
    }
}
