//! A pool for work that would take too long on a dispatch thread.

/// A piece of work, with everything it needs in it.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs away from the thread that submits them: on real threads, or from a queue that a simulation drains in
/// virtual time.
pub trait WorkerPool: Send + Sync {
    /// Hands a job over.
    ///
    /// # Errors
    ///
    /// The job itself, when the pool is full or shut down.
    fn submit(&self, job: Job) -> Result<(), Job>;
}
