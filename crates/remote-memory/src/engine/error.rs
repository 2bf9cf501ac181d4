//! Errors of requests, and the donor concerned.

use std::sync::Arc;

use sinew_fabric::verbs::{PostError, Status};
use sinew_mem::AllocError;

/// Cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailureCause {
    /// The operation completed with this status.
    #[error(transparent)]
    Status(#[from] Status),
    /// A queue pair refused the operation.
    #[error("the queue pair refused the operation: {0}")]
    Post(#[from] PostError),
    /// The call to the donor failed, or the answer could not be parsed.
    #[error("{0}")]
    Call(String),
    /// The engine that had the request in flight was dropped.
    #[error("the engine that had the request in flight was dropped before it finished")]
    Dropped,
    /// No engine is left that can reach the donor.
    #[error("no engine can reach the donor any more")]
    NotConnected,
    /// There was no registered memory to copy the bytes to.
    #[error("no registered memory to copy the bytes to: {0}")]
    Staging(#[from] AllocError),
}

#[derive(Debug, PartialEq, Eq)]
struct Failure {
    donor: Arc<str>,
    why: FailureCause,
}

/// Failure of a request: the donor and the reason. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("donor {}: {}", .0.donor, .0.why)]
pub struct EngineError(Arc<Failure>);

impl EngineError {
    pub(super) fn new(donor: &Arc<str>, why: FailureCause) -> Self {
        Self(Arc::new(Failure { donor: Arc::clone(donor), why }))
    }

    /// Name of the donor.
    pub fn donor(&self) -> &str {
        &self.0.donor
    }

    /// The reason.
    pub fn cause(&self) -> &FailureCause {
        &self.0.why
    }
}
