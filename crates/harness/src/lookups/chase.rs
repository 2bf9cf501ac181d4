//! Chains of random places (nsdi15 2.5): the table is a permutation, which a lookup follows for a number of steps. And
//! chains of hashes, which touch no memory (2.6.2).

use sinew::mem::room_for_random_access;
use sinew_interleave::{Batch, interleave, prefetch};

use super::{Form, Lookups, WIDTH_MAX, mixed};

/// A permutation of 4-byte numbers, as in the paper: `H[i] = L[H[i]]`, D times.
#[derive(Debug)]
pub struct Chase {
    table: Vec<u32>,
    depth: usize,
}

impl Chase {
    /// A permutation of `len` numbers, a power of two up to 2^32, and chains of `depth` steps. Multiplications by odd
    /// numbers, and shifts, turn the numbers in order into the permutation.
    ///
    /// # Panics
    ///
    /// When `len` is not such a power.
    pub fn new(len: usize, depth: usize) -> Self {
        assert!(len.is_power_of_two() && len <= 1 << 32, "a permutation has a power of two numbers");
        let mut table = room_for_random_access(len);
        table.extend((0..len as u64).map(|at| Self::next_of(at, len)));
        Self { table, depth }
    }

    fn next_of(at: u64, len: usize) -> u32 {
        let (bits, mask) = (len.trailing_zeros().max(2), len as u64 - 1);
        let mut at = at;
        for multiplier in [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93, 0xC2B2_AE3D_27D4_EB4F] {
            at = at.wrapping_mul(multiplier) & mask;
            at ^= at >> (bits / 2);
        }
        at as u32
    }

    #[interleave(batch = follow_all)]
    #[inline(always)]
    fn follow(&self, #[each] start: u32) -> u32 {
        let mut at = start;
        for _ in 0..self.depth {
            let next = &self.table[at as usize];
            fetch!(next);
            at = *next;
        }
        at
    }

    /// Follows all chains of a group step by step. Without prefetching, the processor overlaps what it can by itself:
    /// that is the paper's Table 1.
    #[inline(always)]
    pub fn follow_grouped(&self, starts: &[u32], ends: &mut [u32], prefetches: bool) {
        ends.copy_from_slice(starts);
        for _ in 0..self.depth {
            for at in ends.iter_mut() {
                *at = self.table[*at as usize];
                if prefetches {
                    prefetch(&self.table[*at as usize]);
                }
            }
        }
    }
}

impl Lookups for Chase {
    type Key = u32;
    type Found = u32;

    fn draw(&self, random: u64) -> (u32, u32) {
        let start = random as u32 & (self.table.len() - 1) as u32;
        (start, (0..self.depth).fold(start, |at, _| Self::next_of(at.into(), self.table.len())))
    }

    fn bytes(&self) -> usize {
        self.table.len() * 4
    }

    fn weight(&self) -> usize {
        self.depth
    }

    fn look_up(&self, form: Form, width: usize, keys: &[u32], found: &mut [u32]) {
        match form {
            Form::Plain => keys.iter().zip(found).for_each(|(key, found)| *found = self.follow(*key)),
            Form::Interleaved => {
                let batch = Batch::<WIDTH_MAX>::of_width(width).unwrap_or_default();
                self.follow_all(batch, keys.iter().copied(), found);
            }
            Form::Grouped => {
                for (keys, found) in keys.chunks(width).zip(found.chunks_mut(width)) {
                    self.follow_grouped(keys, found, true);
                }
            }
        }
    }
}

/// Chains of hashes: work without memory accesses, for comparison (nsdi15 2.6.2).
#[derive(Debug)]
pub struct Hashes {
    depth: usize,
}

impl Hashes {
    /// Chains of `depth` hashes.
    pub fn new(depth: usize) -> Self {
        Self { depth }
    }
}

/// CityHash32 of 4 bytes.
#[inline(always)]
fn hash(number: u32) -> u32 {
    let mut hash = 9u32;
    let mut product = 0u32;
    for byte in number.to_le_bytes() {
        product = product.wrapping_mul(0xCC9E_2D51).wrapping_add(byte as i8 as u32);
        hash ^= product;
    }
    murmur_end(murmur_step(product, murmur_step(4, hash)))
}

#[inline(always)]
fn murmur_step(value: u32, hash: u32) -> u32 {
    let value = value.wrapping_mul(0xCC9E_2D51).rotate_right(17).wrapping_mul(0x1B87_3593);
    (hash ^ value).rotate_right(19).wrapping_mul(5).wrapping_add(0xE654_6B64)
}

#[inline(always)]
fn murmur_end(hash: u32) -> u32 {
    let hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    let hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}

impl Lookups for Hashes {
    type Key = u32;
    type Found = u32;

    fn draw(&self, random: u64) -> (u32, u32) {
        let start = mixed(random) as u32;
        (start, (0..self.depth).fold(start, |number, _| hash(number)))
    }

    fn bytes(&self) -> usize {
        0
    }

    fn look_up(&self, form: Form, width: usize, keys: &[u32], found: &mut [u32]) {
        if form == Form::Plain {
            for (key, found) in keys.iter().zip(found) {
                *found = (0..self.depth).fold(*key, |number, _| hash(number));
            }
            return;
        }
        // There is nothing to wait for: in groups, the processor overlaps the chains.
        for (keys, found) in keys.chunks(width).zip(found.chunks_mut(width)) {
            found.copy_from_slice(keys);
            for _ in 0..self.depth {
                found.iter_mut().for_each(|number| *number = hash(*number));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_a_chase_is_a_permutation() {
        for len in [1usize, 2, 4, 8, 1 << 10, 1 << 13] {
            let chase = Chase::new(len, 1);
            let mut seen = chase.table.clone();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..len as u32), "{len}");
        }
    }
}
