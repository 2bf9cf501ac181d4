//! Requests that wait for memory.

use super::config::Config;
use crate::protocol::{Caller, Request};

/// What a request needs.
pub(super) enum Wanted {
    /// Up to so many pages, for anything.
    Pages(u32),
    /// Pages to overwrite others; see [`Request::ReserveOverwrite`].
    Overwrite { handle: u64, at: u64, count: u32, pages: u32, waits: bool },
    /// Room that is promised to a file: an [`Request::Allocate`].
    Allocate {
        /// The request's number, the client's settled number, and the epoch.
        numbers: (u64, u64, u32),
        caller: Caller,
        request: Request,
        /// Pages that were left when it last waited.
        room: u64,
    },
}

/// A request that waits for memory, of which there is none, but may be some soon.
pub(super) struct Waiting {
    pub id: u64,
    pub client: u64,
    pub until_ns: u64,
    pub wanted: Wanted,
    /// What there was when it last had to wait on.
    pub seen: Option<Outlook>,
}

/// What there is for requests that wait. While it is the same, they are not looked at again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Outlook {
    pub free_pages: u64,
    pub room: u64,
    pub lendable_pages: u64,
    pub may_free_pages: bool,
    pub may_grow: bool,
    pub may_grow_by_any: bool,
}

/// Requests of one client that wait at once, at most. Clients have fewer lanes, each with one request.
pub(super) const WAITING_MAX: usize = 64;

impl Wanted {
    /// How long to wait, in ns.
    pub fn wait_max_ns(&self, config: &Config) -> u64 {
        match self {
            Self::Allocate { .. } => config.allocate_wait_max_ns,
            _ => config.reserve_wait_max_ns,
        }
    }

    /// The number of a change, which is performed once, however often it is sent.
    pub fn sequence(&self) -> Option<u64> {
        match self {
            Self::Allocate { numbers, .. } => Some(numbers.0),
            _ => None,
        }
    }
}
