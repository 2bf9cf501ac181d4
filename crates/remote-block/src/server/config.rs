//! What a server allows, and why it does not begin.

use std::io;

use sinew_fabric::PollerConfig;

use crate::protocol::{BLOCK_MAX, NAME_LEN_MAX};

/// A client that has one request under way asks again after its own wake-up and two calls of the system, 30 to 55 us where processors idle deeply. Who gives up before that sleeps each time, and
/// never finds out that the next request would have come sooner.
const SPIN_MAX_NS: u64 = 100_000;

/// What a server allows.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the store is called. Clients that ask for nothing by name get it, too.
    pub name: String,
    /// What it is, for people.
    pub description: String,
    /// Connections. Further ones are closed.
    pub connections_max: usize,
    /// Requests that a connection may have under way. Further ones wait in its socket.
    pub requests_max: usize,
    /// Bytes that all connections may have under way, written or read. The store's arena has twice as many at least. Further requests wait, and who does
    /// not read or send for a second meanwhile is closed.
    pub memory: usize,
    /// Bytes that one connection may have under way.
    pub connection_memory: usize,
    /// When the thread spins: by default up to 0.1 ms, in which a client that waits for each answer asks again.
    pub poller: PollerConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "memory".to_owned(),
            description: "memory of other hosts".to_owned(),
            connections_max: 256,
            requests_max: 256,
            memory: 4 * BLOCK_MAX as usize,
            connection_memory: 2 * BLOCK_MAX as usize,
            poller: PollerConfig::Adaptive { spin_max_ns: SPIN_MAX_NS },
        }
    }
}

/// Why a server does not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name of the export is none.
    #[error("an export's name has up to {} bytes, and this has {len}", NAME_LEN_MAX)]
    Name {
        /// Bytes of it.
        len: usize,
    },
    /// The longest requests do not fit.
    #[error("{memory} bytes for requests under way are too few: each connection needs {} for the longest", BLOCK_MAX)]
    TooLittleMemory {
        /// What there is.
        memory: usize,
    },
    /// The arena does not hold what may be under way.
    #[error(
        "the store's arena has {has} bytes, and {needed} are needed for requests under way; open it larger or allow fewer"
    )]
    ArenaTooSmall {
        /// Bytes of it.
        has: usize,
        /// Bytes that it should have.
        needed: usize,
    },
    /// There are to be no connections or no requests.
    #[error("one connection and one request have to be allowed")]
    Nobody,
    /// The store has nothing to offer.
    #[error("the store is empty")]
    Empty,
    /// What the system says.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Arena bytes for each byte under way: blocks are up to one and a half times as long as what they hold.
const ARENA_FACTOR: usize = 2;

impl Config {
    /// Bytes that the store's arena needs for such a server.
    pub fn arena_bytes(&self) -> usize {
        self.memory.saturating_mul(ARENA_FACTOR)
    }

    pub(super) fn check(&self, store_len: u64, arena: usize) -> Result<(), OpenError> {
        if self.name.len() > NAME_LEN_MAX {
            return Err(OpenError::Name { len: self.name.len() });
        }
        let memory = self.memory.min(self.connection_memory);
        if memory < BLOCK_MAX as usize {
            return Err(OpenError::TooLittleMemory { memory });
        }
        if arena < self.arena_bytes() {
            return Err(OpenError::ArenaTooSmall { has: arena, needed: self.arena_bytes() });
        }
        if self.connections_max == 0 || self.requests_max == 0 {
            return Err(OpenError::Nobody);
        }
        if store_len == 0 { Err(OpenError::Empty) } else { Ok(()) }
    }
}
