//! How a client goes about it.

use std::fmt;
use std::sync::Arc;

use sinew_remote_memory::donor::Key;
use sinew_remote_memory::engine::VerbsPathConfig;
use sinew_remote_memory::pool::PoolConfig;

use crate::protocol::Time;

/// How a client goes about it.
#[derive(Clone)]
pub struct ClientConfig {
    /// The key of the service and of the donors; none where they are open.
    pub key: Option<Key>,
    /// How long a service that does not answer is waited for, before requests fail.
    pub service_timeout_ns: u64,
    /// How long one attempt at a request is waited for.
    pub attempt_timeout_ns: u64,
    /// How long reads and writes of a donor's memory may take before it counts as lost.
    pub donor_timeout_ns: u64,
    /// How donors are reached. Its key is not looked at.
    pub pool: PoolConfig,
    /// Bytes that are not committed, at most: whoever writes more waits until some are.
    pub dirty_bytes_max: usize,
    /// What is written is committed after so long at the latest.
    pub dirty_age_ns: u64,
    /// Pages that are reserved at once.
    pub reserve_pages: u32,
    /// Pages of one file whose places are remembered, at most.
    pub layout_pages_max: u64,
    /// The time of the day.
    pub wall: fn() -> Time,
    /// Where is said what has to be known of and no program is told.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl ClientConfig {
    /// With usual limits.
    pub fn new(key: Option<Key>, wall: fn() -> Time, log: Arc<dyn Fn(&str) + Send + Sync>) -> Self {
        const MS: u64 = 1_000_000;
        // Each thread has queue pairs of its own, so one each is enough.
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
