//! Sequence numbers, which are given out in order and end in any order.

use std::collections::VecDeque;
use std::ops::Range;

pub(super) struct Sequence {
    /// Lowest number that is not over.
    base: u64,
    /// Whether each number from `base` on has ended.
    ended: VecDeque<bool>,
}

impl Sequence {
    pub fn new(first: u64) -> Self {
        Self { base: first, ended: VecDeque::new() }
    }

    /// Bound below which all numbers have ended.
    pub fn all_below(&self) -> u64 {
        self.base
    }

    /// Next number to be given out.
    pub fn next(&self) -> u64 {
        self.base + self.ended.len() as u64
    }

    /// Gives out `count` numbers, and returns the first.
    pub fn begin(&mut self, count: u64) -> u64 {
        let first = self.next();
        self.ended.extend((0..count).map(|_| false));
        first
    }

    pub fn end(&mut self, numbers: Range<u64>) {
        for number in numbers {
            if let Some(over) = number.checked_sub(self.base).and_then(|at| self.ended.get_mut(at as usize)) {
                *over = true;
            }
        }
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_below_the_first_that_is_not_over_are() {
        let mut sequence = Sequence::new(5);
        assert_eq!((sequence.begin(2), sequence.begin(1)), (5, 7));
        sequence.end(6..8);
        assert_eq!(sequence.all_below(), 5);
        sequence.end(5..6);
        assert_eq!((sequence.all_below(), sequence.next()), (8, 8));
    }
}
