//! Configuration of a client.

use std::fmt;
use std::sync::Arc;

use sinew_remote_memory::donor::Key;
use sinew_remote_memory::engine::VerbsPathConfig;
use sinew_remote_memory::pool::PoolConfig;

use crate::protocol::Time;

/// Configuration of a client.
#[derive(Clone)]
pub struct ClientConfig {
    /// Key of the service and of the donors; `None` if they are open to all.
    pub key: Option<Key>,
    /// Time to wait for a service that does not answer, before requests fail.
    pub service_timeout_ns: u64,
    /// Time to wait for the answer to one attempt.
    pub attempt_timeout_ns: u64,
    /// Time that reads and writes of a donor's memory may take before they count as failed.
    pub donor_timeout_ns: u64,
    /// Configuration of the connections to donors. Its key is not used.
    pub pool: PoolConfig,
    /// Uncommitted bytes, at most: a write beyond that waits until some are committed.
    pub dirty_bytes_max: usize,
    /// Time after which written data is committed.
    pub dirty_age_ns: u64,
    /// Pages to reserve at once.
    pub reserve_pages: u32,
    /// Pages of one file whose places are cached, at most.
    pub layout_pages_max: u64,
    /// The time of day.
    pub wall: fn() -> Time,
    /// Log for events that no program is told of.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl ClientConfig {
    /// A configuration with the default limits.
    pub fn new(key: Option<Key>, wall: fn() -> Time, log: Arc<dyn Fn(&str) + Send + Sync>) -> Self {
        const MS: u64 = 1_000_000;
        // Each thread has queue pairs of its own, so one per path is enough.
        let path = VerbsPathConfig { queue_pairs: 1, ..VerbsPathConfig::default() };
        Self {
            key,
            service_timeout_ns: 30_000 * MS,
            attempt_timeout_ns: 2_000 * MS,
            donor_timeout_ns: 5_000 * MS,
            pool: PoolConfig { path, ..PoolConfig::default() },
            dirty_bytes_max: 64 << 20,
            dirty_age_ns: 1_000 * MS,
            reserve_pages: 4096,
            layout_pages_max: 1 << 22,
            wall,
            log,
        }
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("service_timeout_ns", &self.service_timeout_ns)
            .field("dirty_bytes_max", &self.dirty_bytes_max)
            .finish_non_exhaustive()
    }
}
