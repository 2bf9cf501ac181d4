//! Routes of IPv4: DIR-24-8 (nsdi15 4), one table for the first 24 bits, and groups of 256 entries for longer prefixes.

use std::net::Ipv4Addr;

use sinew_interleave::interleave;

use super::trie::{Entry, EntryExt, Trie};
use super::{GROUP_MAX, RouteError};

/// A table of routes. It belongs to one thread at a time; to serve readers elsewhere, give them a complete new table.
///
/// ```
/// use sinew_interleave::Batch;
/// use sinew_store::lookup::ipv4::Ipv4Table;
///
/// let mut table = Ipv4Table::new(1000)?;
/// table.insert([10, 0, 0, 0].into(), 8, 1)?;
/// table.insert([10, 1, 2, 128].into(), 25, 2)?;
/// let mut hops = [None; 3];
/// table.get_all(Batch::<16>::new(), [[10, 9, 9, 9], [10, 1, 2, 200], [11, 0, 0, 1]].map(Into::into), &mut hops);
/// assert_eq!(hops, [Some(1), Some(2), None]);
/// # Ok::<(), sinew_store::lookup::RouteError>(())
/// ```
#[derive(Debug)]
pub struct Ipv4Table {
    trie: Trie,
}

/// Bits of an address.
const BITS: u8 = 32;

fn bits(address: Ipv4Addr) -> u128 {
    u128::from(address.to_bits()) << 96
}

impl Ipv4Table {
    /// Makes an empty table with at most `groups_max` groups of 256 entries (1 KB each). Every 24 bits with which a
    /// prefix of more than 24 bits begins take one group.
    ///
    /// # Errors
    ///
    /// [`RouteError::Groups`].
    pub fn new(groups_max: usize) -> Result<Self, RouteError> {
        Ok(Self { trie: Trie::new(BITS, groups_max)? })
    }

    /// Makes a table of many routes: prefix, length and next hop. Of routes with the same prefix, the last counts.
    ///
    /// # Errors
    ///
    /// As [`Self::insert`], with the index of the route that cannot be stored.
    pub fn load(groups_max: usize, routes: &[(Ipv4Addr, u8, u32)]) -> Result<Self, (usize, RouteError)> {
        let mut table = Self::new(groups_max).map_err(|error| (0, error))?;
        let mut order: Vec<usize> = (0..routes.len()).collect();
        // Short prefixes first: their wide ranges have no groups yet.
        order.sort_by_key(|at| routes[*at].1);
        for at in order {
            let (prefix, len, hop) = routes[at];
            table.insert(prefix, len, hop).map_err(|error| (at, error))?;
        }
        Ok(table)
    }

    /// Adds a route, or changes its next hop; returns the old next hop. Bits of `prefix` beyond the first `len` are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; then the table is unchanged.
    pub fn insert(&mut self, prefix: Ipv4Addr, len: u8, hop: u32) -> Result<Option<u32>, RouteError> {
        self.trie.insert(bits(prefix), len, hop)
    }

    /// Removes a route; returns its next hop.
    ///
    /// # Errors
    ///
    /// [`RouteError::TooLong`], [`RouteError::Absent`].
    pub fn remove(&mut self, prefix: Ipv4Addr, len: u8) -> Result<u32, RouteError> {
        self.trie.remove(bits(prefix), len)
    }

    /// Number of routes.
    pub fn routes(&self) -> usize {
        self.trie.routes()
    }

    /// Groups in use.
    pub fn groups(&self) -> usize {
        self.trie.groups()
    }

    /// Returns the next hop of the longest matching prefix of an address.
    #[interleave(batch = get_all, lookup = look_up)]
    #[inline(always)]
    pub fn get(&self, #[each] address: Ipv4Addr) -> Option<u32> {
        let first = self.first(address);
        fetch!(first);
        match first.next() {
            None => first.hop(),
            Some(next) => {
                let second = self.second(next, address);
                fetch!(second);
                second.hop()
            }
        }
    }

    #[inline(always)]
    fn first(&self, address: Ipv4Addr) -> &Entry {
        &self.trie.entries[(address.to_bits() >> 8) as usize]
    }

    #[inline(always)]
    fn second(&self, next: usize, address: Ipv4Addr) -> &Entry {
        &self.trie.entries[next + (address.to_bits() & 0xFF) as usize]
    }

    /// [`Self::get`] of each address, with group prefetching by hand.
    #[inline(always)]
    pub fn get_grouped(&self, addresses: &[Ipv4Addr], hops: &mut [Option<u32>]) {
        for (addresses, hops) in addresses.chunks(GROUP_MAX).zip(hops.chunks_mut(GROUP_MAX)) {
            for address in addresses {
                sinew_interleave::prefetch(self.first(*address));
            }
            let mut further = [None; GROUP_MAX];
            for ((address, hop), further) in addresses.iter().zip(hops.iter_mut()).zip(&mut further) {
                let first = self.first(*address);
                *hop = first.hop();
                *further = first.next().map(|next| self.second(next, *address));
                if let Some(second) = further {
                    sinew_interleave::prefetch(*second);
                }
            }
            for (hop, further) in hops.iter_mut().zip(further) {
                if let Some(second) = further {
                    *hop = second.hop();
                }
            }
        }
    }
}
