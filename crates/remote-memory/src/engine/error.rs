//! Why requests fail, and whose fault it is.

use std::sync::Arc;

use sinew_fabric::verbs::{PostError, Status};
use sinew_mem::AllocError;

/// What went wrong on the way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Why {
    /// The operation completed so.
    #[error(transparent)]
    Status(#[from] Status),
    /// A queue pair did not take it.
    #[error("the queue pair refused it: {0}")]
    Post(#[from] PostError),
    /// The call to the donor failed, or its answer made no sense.
    #[error("{0}")]
    Call(String),
    /// The engine that had it in flight was dropped.
    #[error("the engine that had it in flight was dropped before it was over")]
    Dropped,
    /// Nobody is left who could do it.
    #[error("no engine has a way to the donor any more")]
    NoWay,
    /// There was no registered memory to copy it to.
    #[error("no registered memory to copy it to: {0}")]
    Staging(#[from] AllocError),
}

#[derive(Debug, PartialEq, Eq)]
struct Failure {
    donor: Arc<str>,
    why: Why,
}

/// A request's failure: which donor, and why. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("donor {}: {}", .0.donor, .0.why)]
pub struct EngineError(Arc<Failure>);

impl EngineError {
    pub(super) fn new(donor: &Arc<str>, why: Why) -> Self {
        Self(Arc::new(Failure { donor: Arc::clone(donor), why }))
    }

    /// Which donor.
    pub fn donor(&self) -> &str {
        &self.0.donor
    }

    /// What went wrong.
    pub fn why(&self) -> &Why {
        &self.0.why
    }
}
