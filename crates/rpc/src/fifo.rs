//! A first-in, first-out queue that is filled in one turn and emptied in the next.

/// A queue that moves each item only once on its way in and out: `VecDeque` moves it twice, which shows in the cost of
/// a small call.
pub(crate) struct Fifo<T> {
    /// A ring whose length is a power of two: the places from `first` to `end` are full, all others are empty.
    slots: Vec<Option<T>>,
    /// Both count up until the ring is found empty; their low bits are indices into the ring.
    first: usize,
    end: usize,
}

impl<T> Fifo<T> {
    pub fn with_capacity(capacity: usize) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(capacity.next_power_of_two(), || None);
        Self { slots, first: 0, end: 0 }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.end - self.first
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn index(&self, position: usize) -> usize {
        position & (self.slots.len() - 1)
    }

    #[inline(always)]
    pub fn push(&mut self, item: T) {
        if self.len() == self.slots.len() {
            self.grow();
        }
        let index = self.index(self.end);
        // The place is empty: checking whether there is something to drop would cost as much as storing the item.
        std::mem::forget(self.slots[index].replace(item));
        self.end += 1;
    }

    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            // The next items go where the last ones were, which the caches still hold, and not all around the ring.
            (self.first, self.end) = (0, 0);
            return None;
        }
        let index = self.index(self.first);
        self.first += 1;
        self.slots[index].take()
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let index = self.index(self.first);
        self.slots.rotate_left(index);
        (self.end, self.first) = (self.len(), 0);
        self.slots.resize_with(2 * self.slots.len(), || None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_first_goes_first() {
        let mut fifo = Fifo::with_capacity(2);
        (0..5).for_each(|item| fifo.push(item));
        assert_eq!((fifo.pop(), fifo.pop(), fifo.len()), (Some(0), Some(1), 3));
        (5..10).for_each(|item| fifo.push(item));
        assert_eq!(std::iter::from_fn(|| fifo.pop()).collect::<Vec<_>>(), (2..10).collect::<Vec<_>>());
        assert!(fifo.is_empty());
    }

    #[test]
    fn a_full_queue_grows_wherever_its_first_item_lies() {
        for first in 0..8 {
            let mut fifo = Fifo::with_capacity(4);
            for item in 0..first {
                fifo.push(item);
                assert_eq!(fifo.pop(), Some(item));
            }
            (0..20).for_each(|item| fifo.push(item));
            assert_eq!(std::iter::from_fn(|| fifo.pop()).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
            assert_eq!(fifo.slots.len(), 32);
        }
    }
}
