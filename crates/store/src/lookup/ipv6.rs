//! Routes of IPv6: a trie of 24 bits and then eight at a time, laid out as DPDK's rte_lpm6 (nsdi15 3.3).

use std::net::Ipv6Addr;

use sinew_interleave::interleave;

use super::trie::{Entry, EntryExt, Trie};
use super::{GROUP_MAX, RouteError};

/// A table of routes. It belongs to one thread at a time; to serve readers elsewhere, give them a complete new table.
///
/// ```
/// use sinew_interleave::Batch;
/// use sinew_store::lookup::ipv6::Ipv6Table;
///
/// let mut table = Ipv6Table::new(1000)?;
/// table.insert("2001:db8::".parse().unwrap(), 32, 1)?;
/// table.insert("2001:db8:0:7::".parse().unwrap(), 64, 2)?;
/// let mut hops = [None; 3];
/// let addresses = ["2001:db8::1", "2001:db8:0:7::1", "2002::1"].map(|address| address.parse().unwrap());
/// table.get_all(Batch::<16>::new(), addresses, &mut hops);
/// assert_eq!(hops, [Some(1), Some(2), None]);
/// # Ok::<(), sinew_store::lookup::RouteError>(())
/// ```
#[derive(Debug)]
pub struct Ipv6Table {
    trie: Trie,
}

/// Bits of an address.
const BITS: u8 = 128;
/// Bits left after the first step.
const REST_BITS: u32 = 104;

impl Ipv6Table {
    /// Makes an empty table with at most `groups_max` groups of 256 entries (1 KB each). Prefixes of 48 bits that have
    /// nothing in common need three groups each, those of 64 bits five.
    ///
    /// # Errors
    ///
    /// [`RouteError::Groups`].
    pub fn new(groups_max: usize) -> Result<Self, RouteError> {
        Ok(Self { trie: Trie::new(BITS, groups_max)? })
    }

    /// Adds a route, or changes its next hop; returns the old next hop. Bits of `prefix` beyond the first `len` are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; then the table is unchanged.
    pub fn insert(&mut self, prefix: Ipv6Addr, len: u8, hop: u32) -> Result<Option<u32>, RouteError> {
        self.trie.insert(prefix.to_bits(), len, hop)
    }

    /// Removes a route; returns its next hop.
    ///
    /// # Errors
    ///
    /// [`RouteError::TooLong`], [`RouteError::Absent`].
    pub fn remove(&mut self, prefix: Ipv6Addr, len: u8) -> Result<u32, RouteError> {
        self.trie.remove(prefix.to_bits(), len)
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
    pub fn get(&self, #[each] address: Ipv6Addr) -> Option<u32> {
        let mut rest = Rest::new(address);
        let mut entry = self.first(&mut rest);
        loop {
            fetch!(entry);
            match entry.next() {
                Some(next) => entry = self.next(next, &mut rest),
                None => return entry.hop(),
            }
        }
    }

    #[inline(always)]
    fn first(&self, rest: &mut Rest) -> &Entry {
        &self.trie.entries[rest.first()]
    }

    #[inline(always)]
    fn next(&self, next: usize, rest: &mut Rest) -> &Entry {
        &self.trie.entries[next + rest.next()]
    }

    /// [`Self::get`] of each address, with group prefetching by hand.
    #[inline(always)]
    pub fn get_grouped(&self, addresses: &[Ipv6Addr], hops: &mut [Option<u32>]) {
        for (addresses, hops) in addresses.chunks(GROUP_MAX).zip(hops.chunks_mut(GROUP_MAX)) {
            let mut rests = [Rest(0); GROUP_MAX];
            let mut entries = [const { None }; GROUP_MAX];
            // Indices of the unfinished lookups, in the first `count` places.
            let mut live = [0u8; GROUP_MAX];
            for (at, address) in addresses.iter().enumerate() {
                rests[at] = Rest::new(*address);
                let entry = self.first(&mut rests[at]);
                sinew_interleave::prefetch(entry);
                (entries[at], live[at]) = (Some(entry), at as u8);
            }
            let mut count = addresses.len();
            while count > 0 {
                let mut still = 0;
                for turn in 0..count {
                    let at = usize::from(live[turn]) % GROUP_MAX;
                    let Some(entry) = entries[at] else { continue };
                    match entry.next() {
                        Some(next) => {
                            let entry = self.next(next, &mut rests[at]);
                            sinew_interleave::prefetch(entry);
                            entries[at] = Some(entry);
                            live[still] = at as u8;
                            still += 1;
                        }
                        None => hops[at] = entry.hop(),
                    }
                }
                count = still;
            }
        }
    }
}

/// The bits of an address that have not been used yet, from the highest on.
#[derive(Clone, Copy)]
struct Rest(u128);

impl Rest {
    #[inline(always)]
    fn new(address: Ipv6Addr) -> Self {
        Self(address.to_bits())
    }

    #[inline(always)]
    fn first(&mut self) -> usize {
        let index = (self.0 >> REST_BITS) as usize;
        self.0 <<= 24;
        index
    }

    #[inline(always)]
    fn next(&mut self) -> usize {
        let index = (self.0 >> 120) as usize;
        self.0 <<= 8;
        index
    }
}
