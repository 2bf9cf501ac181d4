//! Memory that other hosts may reach, by key.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_fabric::verbs::{Access, RemoteMemory, Verb};
use sinew_mem::{Arena, SharedMemory};

/// Exposed memory.
#[derive(Debug)]
pub(crate) struct Region {
    pub memory: SharedMemory,
    pub remote: RemoteMemory,
    pub access: Access,
    pub domain: u32,
    /// The node whose actor is woken when the memory changes.
    pub node: usize,
}

/// Memory that is registered with a NIC.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: BTreeMap<u32, Region>,
    arenas: Vec<(u32, Arena)>,
    domains: u32,
    keys: u32,
    /// The next address to give out. Addresses are the simulation's own, and the same in every run.
    next_address: u64,
}

/// Locks the regions of a NIC. Its handles may be with other threads.
#[inline]
pub(crate) fn locked(regions: &Mutex<Regions>) -> MutexGuard<'_, Regions> {
    regions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Regions begin at multiples of a page, as mappings do: small ones lie together in one large page.
const ALIGN: u64 = 4096;
/// Address of the first region. Not 0, which must never be a valid address.
const FIRST: u64 = 2 << 20;

impl Regions {
    pub fn new_domain(&mut self) -> u32 {
        self.domains += 1;
        self.domains
    }

    pub fn add_arena(&mut self, domain: u32, arena: Arena) {
        self.arenas.push((domain, arena));
    }

    /// Ends a domain, and with it its requests' use of arenas.
    pub fn end_domain(&mut self, domain: u32) {
        self.arenas.retain(|(of, _)| *of != domain);
    }

    #[cfg(test)]
    pub fn arenas(&self) -> usize {
        self.arenas.len()
    }

    /// Whether `matches` is true of some arena of a domain.
    pub fn any_arena(&self, domain: u32, matches: impl Fn(&Arena) -> bool) -> bool {
        self.arenas.iter().any(|(of, arena)| *of == domain && matches(arena))
    }

    pub fn expose(&mut self, memory: SharedMemory, access: Access, domain: u32, node: usize) -> RemoteMemory {
        // Keys are hard to guess by accident but not on purpose, as real NICs' are.
        self.keys += 1;
        let rkey = self.keys.wrapping_mul(0x9E37_79B1) | 1 << 31;
        self.next_address = self.next_address.max(FIRST);
        let remote = RemoteMemory { address: self.next_address, rkey, len: memory.len() as u64 };
        self.next_address = (self.next_address + remote.len).next_multiple_of(ALIGN);
        self.by_key.insert(rkey, Region { memory, remote, access, domain, node });
        remote
    }

    pub fn remove(&mut self, rkey: u32) -> Option<Region> {
        self.by_key.remove(&rkey)
    }

    /// The region of a key, and the offset at which an access begins in it, if the access is allowed.
    #[inline]
    pub fn find(&self, domain: u32, verb: Verb, rkey: u32, address: u64, len: usize) -> Option<(&Region, usize)> {
        let region = self.by_key.get(&rkey)?;
        let offset = address.checked_sub(region.remote.address)?;
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= region.remote.len);
        (is_inside && region.domain == domain && region.access.allows(verb)).then_some((region, offset as usize))
    }
}
