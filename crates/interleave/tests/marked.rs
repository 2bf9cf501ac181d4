//! The functions that the attribute makes from plain ones.

use proptest::prelude::*;
use sinew_interleave::{Batch, alone, interleave};

struct Tree {
    nodes: Vec<(u64, u64, [Option<usize>; 2])>,
}

impl Tree {
    fn new(items: &[(u64, u64)]) -> Self {
        let mut tree = Self { nodes: Vec::new() };
        for (key, value) in items {
            let (mut at, new) = (0, tree.nodes.len());
            while at < new && tree.nodes[at].0 != *key {
                let side = usize::from(*key > tree.nodes[at].0);
                at = *tree.nodes[at].2[side].get_or_insert(new);
            }
            match tree.nodes.get_mut(at) {
                Some(node) => node.1 = *value,
                None => tree.nodes.push((*key, *value, [None; 2])),
            }
        }
        tree
    }

    /// Has a loop, branches and an early return.
    #[interleave(batch = get_all, width = 8, lookup = look_up)]
    pub fn get(&self, #[each] key: u64) -> Option<&u64> {
        let mut at = (!self.nodes.is_empty()).then_some(0);
        while let Some(node) = at {
            fetch!(&self.nodes[node]);
            let (found, value, sides) = &self.nodes[node];
            if *found == key {
                return Some(value);
            }
            at = sides[usize::from(key > *found)];
        }
        None
    }

    /// Fails early, by `?`.
    #[interleave(batch = sums, width = 3)]
    fn sum(&self, #[each] first: u64, scale: u64, #[each] second: u64) -> Result<u64, u64> {
        let first = self.get(first).ok_or(first)?;
        switch!(sinew_interleave::prefetch(first));
        let second = self.get(second).ok_or(second)?;
        Ok(first.wrapping_add(*second).wrapping_mul(scale))
    }
}

/// Finds a word among sorted ones; generic, with a width chosen at run time.
#[interleave(batch = places_of)]
fn place_of<'a, T>(words: &'a [T], #[each] word: &T) -> Option<&'a T>
where
    T: Ord + 'a,
{
    let (mut from, mut to) = (0, words.len());
    loop {
        if from == to {
            break None;
        }
        let middle = from + (to - from) / 2;
        fetch!(&words[middle]);
        match words[middle].cmp(word) {
            std::cmp::Ordering::Equal => break Some(&words[middle]),
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Greater => to = middle,
        }
    }
}

#[interleave(batch = count_all, width = 4)]
fn count(seen: &std::cell::Cell<u32>, #[each] mut by: u32) {
    while by > 0 {
        fetch!(seen);
        seen.set(seen.get() + 1);
        by -= 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    #[test]
    fn a_batch_finds_what_the_plain_function_finds(
        items in prop::collection::vec((0u64..40, any::<u64>()), 0..40),
        keys in prop::collection::vec(0u64..40, 0..40),
    ) {
        let tree = Tree::new(&items);
        let model: std::collections::BTreeMap<u64, u64> = items.iter().copied().collect();
        let mut found = vec![None; keys.len()];
        prop_assert_eq!(tree.get_all(keys.iter().copied(), &mut found), keys.len());
        for (key, found) in keys.iter().zip(&found) {
            prop_assert_eq!(*found, model.get(key));
            prop_assert_eq!(tree.get(*key), model.get(key));
            prop_assert_eq!(alone(tree.look_up(*key)), model.get(key));
        }
        let pairs = keys.iter().copied().zip(keys.iter().rev().copied());
        let mut sums = vec![Ok(0); keys.len()];
        tree.sums(3, pairs.clone(), &mut sums);
        for ((first, second), sum) in pairs.zip(sums) {
            prop_assert_eq!(sum, tree.sum(first, 3, second));
        }
    }

    #[test]
    fn a_width_is_chosen_at_run_time(
        mut words in prop::collection::vec("[a-c]{0,3}", 0..40),
        searched in prop::collection::vec("[a-c]{0,3}", 0..40),
        width in 1usize..=32,
    ) {
        words.sort_unstable();
        let mut found = vec![None; searched.len()];
        places_of(Batch::<32>::of_width(width).unwrap(), &words, &searched, &mut found);
        for (word, found) in searched.iter().zip(found) {
            prop_assert_eq!(found.is_some(), words.contains(word));
            prop_assert!(found.is_none_or(|found| found == word));
            prop_assert_eq!(place_of(&words, word).is_some(), words.contains(word));
        }
    }
}

#[test]
fn a_function_without_a_result_is_run_for_what_it_does() {
    let seen = std::cell::Cell::new(0);
    assert_eq!(count_all(&seen, [3, 0, 4, 1, 2], &mut [(); 5]), 5);
    assert_eq!(seen.get(), 10);
    count(&seen, 2);
    assert_eq!(seen.get(), 12);
}
