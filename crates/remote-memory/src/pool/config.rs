//! Configuration of a pool.

use crate::donor::Key;
use crate::engine::{EngineConfig, VerbsPathConfig};

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
            depth: 4096,
        }
    }
}
