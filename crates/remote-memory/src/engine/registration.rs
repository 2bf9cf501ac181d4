//! Registration of callers' memory instead of copying (rdmabox IV-A: dynMR against preMR), and the cache of
//! registrations.

use std::collections::HashMap;

use sinew_fabric::verbs::{ProtectionDomain, VerbsError};
use sinew_mem::{BufferPlace, Extent};
use smallvec::SmallVec;

/// Treatment of requests whose memory is not in the path's arenas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationPolicy {
    /// All are copied (preMR).
    Never,
    /// The memory of all is registered (dynMR).
    Always,
    /// The memory of requests of at least this many bytes is registered; shorter ones are copied.
    /// [`CostCurve`](super::CostCurve) measures the threshold.
    From(usize),
}

impl RegistrationPolicy {
    /// The paper's threshold in user space, 928 KB (rdmabox IV-A, Figure 5b).
    pub const PAPER: Self = Self::From(928 << 10);

    /// Length from which on memory is registered, in bytes; `None` if it never is.
    pub fn threshold(self) -> Option<usize> {
        match self {
            Self::Never => None,
            Self::Always => Some(0),
            Self::From(len) => Some(len),
        }
    }
}

impl Default for RegistrationPolicy {
    fn default() -> Self {
        Self::PAPER
    }
}

/// Counters of a path's cache of registrations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationStats {
    /// Buffers that were registered already.
    pub hits: u64,
    /// Buffers that had to be registered.
    pub misses: u64,
    /// Registrations ended to make room for others.
    pub evictions: u64,
    /// Buffers copied instead, because all registrations allowed were in use, or the system refused.
    pub refused: u64,
}

/// Limits of a cache of registrations.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLimits {
    pub count: usize,
    pub bytes: usize,
}

struct Entry<R> {
    /// Held for as long as the entry exists.
    _registration: R,
    len: usize,
    /// Clock value of the last use.
    used: u64,
    /// The [round](RegistrationCache::next_round) of the last use.
    round: u64,
    /// Operations in flight that use it.
    in_flight: u32,
}

/// Registrations of one path, by their first address.
pub(super) struct RegistrationCache<D: ProtectionDomain> {
    domain: D,
    limits: CacheLimits,
    entries: HashMap<usize, Entry<D::Registration>>,
    bytes: usize,
    clock: u64,
    round: u64,
    /// Address of the buffer refused last in this round, which may be asked for several times.
    refused: Option<usize>,
    /// Registrations held by each operation in flight.
    held_by_op: HashMap<u32, SmallVec<[usize; 4]>>,
    pub stats: RegistrationStats,
}

impl<D: ProtectionDomain> RegistrationCache<D> {
    pub fn new(domain: D, limits: CacheLimits) -> Self {
        Self {
            domain,
            limits,
            entries: HashMap::new(),
            bytes: 0,
            clock: 0,
            round: 0,
            refused: None,
            held_by_op: HashMap::new(),
            stats: RegistrationStats::default(),
        }
    }

    /// Ensures that a buffer is registered, at least until the next round. Returns false if it cannot be, and must be
    /// copied.
    pub fn ensure_registered(&mut self, extent: Extent, place: impl FnOnce() -> BufferPlace) -> bool {
        let Extent { address, len } = extent;
        self.clock += 1;
        let (clock, round) = (self.clock, self.round);
        if let Some(entry) = self.entries.get_mut(&address).filter(|entry| entry.len == len) {
            // Several requests for one buffer within a round count once.
            self.stats.hits += u64::from(entry.round != round);
            (entry.used, entry.round) = (clock, round);
            return true;
        }
        if self.refused == Some(address) {
            return false;
        }
        match self.register(address, place()) {
            Ok(true) => {
                self.stats.misses += 1;
                true
            }
            // The system usually refuses because no more memory may be locked, which a copy does not need.
            Ok(false) | Err(_) => {
                self.stats.refused += 1;
                self.refused = Some(address);
                false
            }
        }
    }

    fn register(&mut self, address: usize, place: BufferPlace) -> Result<bool, VerbsError> {
        let len = place.len();
        // The address now belongs to another buffer than the one registered, which is gone.
        if let Some(old) = self.entries.get(&address) {
            if old.in_flight > 0 {
                return Ok(false);
            }
            self.remove(address);
        }
        while self.entries.len() >= self.limits.count || self.bytes.saturating_add(len) > self.limits.bytes {
            let idle = self.entries.iter().filter(|(_, entry)| entry.in_flight == 0 && entry.round != self.round);
            let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(address, _)| *address) else {
                return Ok(false);
            };
            self.remove(oldest);
            self.stats.evictions += 1;
        }
        let registration = self.domain.register(place)?;
        let entry = Entry { _registration: registration, len, used: self.clock, round: self.round, in_flight: 0 };
        self.entries.insert(address, entry);
        self.bytes += len;
        Ok(true)
    }

    fn remove(&mut self, address: usize) {
        if let Some(entry) = self.entries.remove(&address) {
            self.bytes -= entry.len;
        }
    }

    /// Keeps the registrations of these buffers until the operation has [landed](Self::release). Buffers of arenas have
    /// none.
    pub fn hold(&mut self, id: u32, addresses: impl Iterator<Item = usize>) {
        let mut held = SmallVec::new();
        for address in addresses {
            if let Some(entry) = self.entries.get_mut(&address) {
                entry.in_flight += 1;
                held.push(address);
            }
        }
        if !held.is_empty() {
            self.held_by_op.insert(id, held);
        }
    }

    /// Releases the registrations of a finished operation.
    pub fn release(&mut self, id: u32) {
        for address in self.held_by_op.remove(&id).into_iter().flatten() {
            if let Some(entry) = self.entries.get_mut(&address) {
                entry.in_flight -= 1;
            }
        }
    }

    /// Operations in flight that hold registrations.
    pub fn ops_in_flight(&self) -> usize {
        self.held_by_op.len()
    }

    /// Begins a round: registrations used before, and not in flight, may be evicted from now on.
    pub fn next_round(&mut self) {
        self.round += 1;
        self.refused = None;
    }

    /// Number of registrations, and their bytes.
    pub fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}
