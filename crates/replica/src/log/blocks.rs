//! A queue that never moves its elements. A plain ring buffer moves all of them when it grows. For a log of 260,000
//! entries, that took 75 ms of processor time, most of it for new pages, and 400 ms while other programs kept the
//! processors busy; meanwhile the member sent no heartbeat.

use std::collections::VecDeque;

/// Elements of a block.
const BLOCK_LEN: usize = 512;

/// A queue in blocks; see [the module](self).
#[derive(Debug)]
pub struct Blocks<T> {
    /// None is empty, and all but the first and the last are full.
    blocks: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { blocks: VecDeque::new(), len: 0 }
    }
}

impl<T> Blocks<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The element at a position.
    pub fn get(&self, at: usize) -> Option<&T> {
        let first = self.blocks.front()?;
        match at.checked_sub(first.len()) {
            None => first.get(at),
            Some(at) => self.blocks.get(1 + at / BLOCK_LEN)?.get(at % BLOCK_LEN),
        }
    }

    /// Elements from a position on, up to another one, as far as there are any.
    pub fn range(&self, from: usize, to: usize) -> impl DoubleEndedIterator<Item = &T> {
        (from..to.min(self.len)).filter_map(|at| self.get(at))
    }

    /// Adds an element at the end.
    pub fn push_back(&mut self, element: T) {
        self.len += 1;
        match self.blocks.back_mut() {
            Some(last) if last.len() < BLOCK_LEN => last.push_back(element),
            _ => {
                let mut block = VecDeque::with_capacity(BLOCK_LEN);
                block.push_back(element);
                self.blocks.push_back(block);
            }
        }
    }

    /// Removes the first element.
    pub fn pop_front(&mut self) -> Option<T> {
        let first = self.blocks.front_mut()?;
        let element = first.pop_front()?;
        self.len -= 1;
        if first.is_empty() {
            self.blocks.pop_front();
        }
        Some(element)
    }

    /// Removes the last element.
    pub fn pop_back(&mut self) -> Option<T> {
        let last = self.blocks.back_mut()?;
        let element = last.pop_back()?;
        self.len -= 1;
        if last.is_empty() {
            self.blocks.pop_back();
        }
        Some(element)
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(usize),
        PopFront(usize),
        PopBack(usize),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let count = 0..2 * BLOCK_LEN;
        prop_oneof![
            8 => count.clone().prop_map(Step::Push),
            4 => count.clone().prop_map(Step::PopFront),
            2 => count.prop_map(Step::PopBack),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn a_queue_in_blocks_does_what_a_plain_one_does(steps in proptest::collection::vec(step(), 0..30)) {
            let (mut queue, mut model, mut next) = (Blocks::default(), VecDeque::new(), 0);
            for step in steps {
                match step {
                    Step::Push(count) => {
                        for _ in 0..count {
                            next += 1;
                            queue.push_back(next);
                            model.push_back(next);
                        }
                    }
                    Step::PopFront(count) => {
                        (0..count).for_each(|_| assert_eq!(queue.pop_front(), model.pop_front()));
                    }
                    Step::PopBack(count) => (0..count).for_each(|_| assert_eq!(queue.pop_back(), model.pop_back())),
                    Step::Clear => {
                        queue.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert!(queue.range(0, usize::MAX).eq(&model));
                let (from, to) = (model.len() / 3, model.len() * 2 / 3);
                prop_assert!(queue.range(from, to).rev().eq(model.range(from..to).rev()));
                prop_assert_eq!(queue.get(model.len()), None);
            }
        }
    }

    #[test]
    fn elements_stay_where_they_are_however_long_the_queue_becomes() {
        let mut queue = Blocks::default();
        queue.push_back(0_u64);
        let first = std::ptr::from_ref(queue.get(0).unwrap());
        (1..100_000).for_each(|number| queue.push_back(number));
        assert_eq!(std::ptr::from_ref(queue.get(0).unwrap()), first);
    }
}
