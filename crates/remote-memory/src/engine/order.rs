//! Overlaps: the ranges of all unfinished requests, indexed by stripes of the donor's memory.
//!
//! A range is listed in each stripe that it touches, so a new one is compared only with those of its own stripes:
//! usually none, or a few. A range that touches too many stripes is *wide*: it is compared with every other range, and
//! every other range with it.

use std::ops::Range;

/// Bytes of a stripe, as a power of two.
const STRIPE_BITS: u32 = 16;
/// Hash lists that the stripes share, as a power of two.
const LISTS_BITS: u32 = 10;
/// Most stripes that a range which is not wide can touch.
const STRIPES_MAX: u64 = 64;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    key: u32,
    next: u32,
}

/// The ranges, by keys that their owner chose.
pub(crate) struct Stripes {
    lists: Box<[u32]>,
    nodes: Vec<Node>,
    free: u32,
    wide: Vec<u32>,
}

#[inline]
fn stripes(range: &Range<u64>) -> Range<u64> {
    range.start >> STRIPE_BITS..((range.end - 1) >> STRIPE_BITS) + 1
}

#[inline]
fn list_of(stripe: u64) -> usize {
    (stripe.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - LISTS_BITS)) as usize
}

impl Stripes {
    /// Makes an empty index for keys below `keys`.
    pub fn new(keys: usize) -> Self {
        Self {
            lists: vec![NONE; 1 << LISTS_BITS].into_boxed_slice(),
            nodes: vec![Node { key: NONE, next: NONE }; keys],
            free: NONE,
            wide: Vec::new(),
        }
    }

    /// Lists a range, which must not be empty. First calls `on_near` with each range that may overlap it, for some more
    /// than once.
    #[inline]
    pub fn insert(&mut self, key: u32, range: &Range<u64>, mut on_near: impl FnMut(u32)) {
        let stripes = stripes(range);
        if stripes.end - stripes.start > 1 || !self.wide.is_empty() {
            return self.insert_long(key, stripes, &mut on_near);
        }
        self.add(key, key as usize, stripes.start, &mut on_near);
    }

    /// Lists a key in a stripe, using this node.
    #[inline]
    fn add(&mut self, key: u32, node: usize, stripe: u64, near: &mut impl FnMut(u32)) {
        let list = list_of(stripe);
        let first = self.lists[list];
        let mut at = first;
        while at != NONE {
            let Node { key: other, next } = self.nodes[at as usize];
            if other != key {
                near(other);
            }
            at = next;
        }
        self.nodes[node] = Node { key, next: first };
        self.lists[list] = node as u32;
    }

    #[inline(never)]
    fn insert_long(&mut self, key: u32, stripes: Range<u64>, near: &mut impl FnMut(u32)) {
        self.wide.iter().for_each(|key| near(*key));
        if stripes.end - stripes.start > STRIPES_MAX {
            return self.insert_wide(key, near);
        }
        let first = stripes.start;
        for stripe in stripes {
            // The first stripe uses the node that belongs to the key.
            let node = if stripe == first { key as usize } else { self.spare_node() };
            self.add(key, node, stripe, near);
        }
    }

    fn spare_node(&mut self) -> usize {
        let place = self.free;
        if place == NONE {
            self.nodes.push(Node { key: NONE, next: NONE });
            return self.nodes.len() - 1;
        }
        self.free = self.nodes[place as usize].next;
        place as usize
    }

    #[inline(never)]
    fn insert_wide(&mut self, key: u32, near: &mut impl FnMut(u32)) {
        for &first in &self.lists {
            let mut at = first;
            while let Some(node) = self.nodes.get(at as usize) {
                near(node.key);
                at = node.next;
            }
        }
        self.wide.push(key);
    }

    /// Removes a listed range.
    #[inline]
    pub fn remove(&mut self, key: u32, range: &Range<u64>) {
        let stripes = stripes(range);
        let list = list_of(stripes.start);
        if stripes.end - stripes.start == 1 && self.lists[list] == key {
            self.lists[list] = self.nodes[key as usize].next;
            return;
        }
        self.remove_long(key, stripes);
    }

    #[inline(never)]
    fn remove_long(&mut self, key: u32, stripes: Range<u64>) {
        if stripes.end - stripes.start > STRIPES_MAX {
            self.wide.retain(|other| *other != key);
            return;
        }
        for stripe in stripes {
            let list = list_of(stripe);
            let (mut before, mut at) = (NONE, self.lists[list]);
            while at != NONE {
                let Node { key: other, next } = self.nodes[at as usize];
                if other == key {
                    match self.nodes.get_mut(before as usize) {
                        Some(node) => node.next = next,
                        None => self.lists[list] = next,
                    }
                    if at != key {
                        self.nodes[at as usize].next = self.free;
                        self.free = at;
                    }
                    break;
                }
                (before, at) = (at, next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_fabric::{Generator, SeededGenerator};

    use super::*;

    #[test]
    fn all_that_overlap_are_near_and_nobody_stays_behind() {
        const STRIPE: u64 = 1 << STRIPE_BITS;
        for seed in 0..50 {
            let mut random = SeededGenerator::new(seed);
            let mut listed: Vec<(u32, Range<u64>)> = Vec::new();
            let mut order = Stripes::new(200);
            for key in 0..200 {
                let start = random.below(200 * STRIPE);
                let len = match random.below(8) {
                    0 => 1 + random.below(100 * STRIPE),
                    1 => STRIPES_MAX * STRIPE + random.below(3),
                    _ => 1 + random.below(2 * STRIPE),
                };
                let range = start..start + len;
                let mut near = Vec::new();
                order.insert(key, &range, |key| near.push(key));
                for (other, theirs) in &listed {
                    let overlaps = theirs.start < range.end && range.start < theirs.end;
                    assert!(
                        !overlaps || near.contains(other),
                        "seed {seed}: {key} at {range:?}, {other} at {theirs:?}"
                    );
                }
                assert!(!near.contains(&key));
                listed.push((key, range));
                while listed.len() > 20 || random.next_u64() & 1 == 0 {
                    let index = random.below(listed.len() as u64) as usize;
                    if listed.is_empty() {
                        break;
                    }
                    let (key, range) = listed.swap_remove(index);
                    order.remove(key, &range);
                }
            }
            listed.drain(..).for_each(|(key, range)| order.remove(key, &range));
            assert!(order.lists.iter().all(|list| *list == NONE) && order.wide.is_empty(), "seed {seed}");
        }
    }

    #[test]
    fn ranges_of_as_many_stripes_as_may_be_listed_are_and_wider_ones_are_wide() {
        let mut order = Stripes::new(200);
        let listed = 0..STRIPES_MAX << STRIPE_BITS;
        let wide = 0..(STRIPES_MAX << STRIPE_BITS) + 1;
        order.insert(1, &listed, |_| {});
        assert!(order.wide.is_empty());
        let mut near = Vec::new();
        order.insert(2, &wide, |key| near.push(key));
        near.sort_unstable();
        near.dedup();
        assert_eq!((near, order.wide.len()), (vec![1], 1));
        order.remove(2, &wide);
        order.remove(1, &listed);
        assert!(order.wide.is_empty());
    }
}
