//! How donors are reached.

use crate::donor::Key;
use crate::engine::{EngineConfig, VerbsPathConfig};

/// How donors are reached.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The pool's key; none where donors are open.
    pub key: Option<Key>,
    /// How long a call is waited for.
    pub call_timeout_ns: u64,
    /// Queue pairs.
    pub path: VerbsPathConfig,
    /// What becomes of operations that gather.
    pub engine: EngineConfig,
    /// Operations on their way to one donor, at most.
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
