//! Numbers that are handed out in order, and are over in any.

use std::collections::VecDeque;
use std::ops::Range;

pub(super) struct Sequence {
    /// The lowest that is not over.
    base: u64,
    /// Of that and those behind it: whether it is over.
    over: VecDeque<bool>,
}

impl Sequence {
    pub fn new(first: u64) -> Self {
        Self { base: first, over: VecDeque::new() }
    }

    /// All below are over.
    pub fn all_below(&self) -> u64 {
        self.base
    }

    /// The next that is handed out.
    pub fn next(&self) -> u64 {
        self.base + self.over.len() as u64
    }

    /// Hands out so many; returns the first.
    pub fn begin(&mut self, count: u64) -> u64 {
        let first = self.next();
        self.over.extend((0..count).map(|_| false));
        first
    }

    pub fn end(&mut self, numbers: Range<u64>) {
        for number in numbers {
            if let Some(over) = number.checked_sub(self.base).and_then(|at| self.over.get_mut(at as usize)) {
                *over = true;
            }
        }
        while self.over.front() == Some(&true) {
            self.over.pop_front();
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
