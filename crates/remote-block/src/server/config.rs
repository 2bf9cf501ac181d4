//! Configuration of a server, and errors of starting one.

use std::io;

use sinew_fabric::PollPolicy;

use crate::protocol::{BLOCK_MAX, NAME_LEN_MAX};

/// Longest spin, in ns. A client with one request in progress sends the next after its own wake-up and two system
/// calls: 30 to 55 us where processors idle deeply. A thread that gives up spinning before that sleeps each time, and
/// never learns that the next request would have come sooner.
const SPIN_MAX_NS: u64 = 100_000;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the export. Clients that ask for the default export get it, too.
    pub name: String,
    /// Description of the export, shown to people.
    pub description: String,
    /// Connections at a time; further ones are closed at once.
    pub connections_max: usize,
    /// Requests in progress per connection; further ones wait in its socket.
    pub requests_max: usize,
    /// Bytes that the requests in progress of all connections may use, read or written. The store's arena needs at
    /// least twice as many. Further requests wait, and a client that holds them up for a second by not reading or
    /// sending is closed.
    pub memory: usize,
    /// Bytes that the requests in progress of one connection may use.
    pub connection_memory: usize,
    /// How the thread spins: by default up to 0.1 ms, within which a client that waits for each answer sends its next
    /// request.
    pub poller: PollPolicy,
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
            poller: PollPolicy::Adaptive { spin_max_ns: SPIN_MAX_NS },
        }
    }
}

/// Reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name of the export is too long.
    #[error("the export's name has {len} bytes, but may have only {}", NAME_LEN_MAX)]
    Name {
        /// Bytes of the name.
        len: usize,
    },
    /// There is too little memory for the longest requests.
    #[error(
        "{memory} bytes for requests in progress are too few: each connection needs {} for the longest request",
        BLOCK_MAX
    )]
    TooLittleMemory {
        /// Bytes allowed.
        memory: usize,
    },
    /// The arena is smaller than what requests in progress may use.
    #[error(
        "the store's arena has {has} bytes, but requests in progress need {needed}; make it larger, or allow fewer bytes"
    )]
    ArenaTooSmall {
        /// Bytes of the arena.
        has: usize,
        /// Bytes that it needs.
        needed: usize,
    },
    /// No connections or no requests are allowed.
    #[error("at least one connection and one request must be allowed")]
    NoConnections,
    /// The store has no bytes.
    #[error("the store is empty")]
    Empty,
    /// The system failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Arena bytes per byte in use, since blocks are up to one and a half times as long as their contents.
const ARENA_FACTOR: usize = 2;

impl Config {
    /// Bytes that the store's arena needs for this configuration.
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
            return Err(OpenError::NoConnections);
        }
        if store_len == 0 { Err(OpenError::Empty) } else { Ok(()) }
    }
}
