//! Configuration of a pool.

use std::fmt;
use std::sync::Arc;

use crate::donor::Key;
use crate::engine::{AdaptiveWindow, Admission, EngineConfig, VerbsPathConfig};

/// Makes the admission policy of a path to a donor. Each path has a policy of its own.
#[derive(Clone)]
pub struct AdmissionMaker(Arc<dyn Fn() -> Box<dyn Admission> + Send + Sync>);

impl AdmissionMaker {
    /// Policies that `make` returns.
    pub fn new<A: Admission + 'static>(make: impl Fn() -> A + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || Box::new(make())))
    }

    pub(super) fn make(&self) -> Box<dyn Admission> {
        (self.0)()
    }
}

impl fmt::Debug for AdmissionMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionMaker").finish_non_exhaustive()
    }
}

impl Default for AdmissionMaker {
    /// An [`AdaptiveWindow`] between 64 KB and 64 MB, which starts with 1 MB.
    fn default() -> Self {
        Self::new(|| AdaptiveWindow::new(1 << 20, 64 << 10, 64 << 20))
    }
}

/// Configuration of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Key of the pool; `None` where donors require none.
    pub key: Option<Key>,
    /// Time after which a call is given up, in ns.
    pub call_timeout_ns: u64,
    /// Configuration of the queue pairs.
    pub path: VerbsPathConfig,
    /// Configuration of the engines.
    pub engine: EngineConfig,
    /// Limit on the bytes in flight to each donor, on each path: clients with several threads have one of each thread.
    pub admission: AdmissionMaker,
    /// Unfinished operations of one donor, at most.
    pub depth: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            key: None,
            call_timeout_ns: 1_000_000_000,
            path: VerbsPathConfig::default(),
            engine: EngineConfig::default(),
            admission: AdmissionMaker::default(),
            depth: 4096,
        }
    }
}
