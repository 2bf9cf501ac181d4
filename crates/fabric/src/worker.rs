//! Where work too long for a dispatch thread runs.

/// A piece of work with everything it needs in it.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs away from the thread that submits them. Real threads in a process, a queue that a simulation drains in
/// virtual time.
pub trait WorkerPool: Send + Sync {
    /// Hands a job over.
    ///
    /// # Errors
    ///
    /// The job itself, when the pool is full or shut down.
    fn submit(&self, job: Job) -> Result<(), Job>;
}
