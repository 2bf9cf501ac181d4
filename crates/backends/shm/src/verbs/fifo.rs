//! Queues whose elements are filled and emptied in place.
//!
//! A request passes through several queues within some tens of nanoseconds. An element that is moved as a whole is
//! written, and at once read again in pieces of other sizes. Each such read stalls, since the processor cannot forward
//! the stores to it. So elements are filled and emptied in place, a field at a time.

use sinew_fabric::verbs::Scatter;
use sinew_mem::{MessageBuffer, OwnedRange};

/// A queue that grows when it must and keeps its memory. Unused slots hold defaults, or what [`Self::drop_front`] left
/// in them.
#[derive(Debug, Default)]
pub(crate) struct Fifo<T> {
    /// Their number is a power of two, or 0.
    slots: Vec<T>,
    front: usize,
    len: usize,
}

impl<T: Default> Fifo<T> {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an element at the end, for the caller to fill: it holds what some earlier element left.
    #[inline(always)]
    pub fn push(&mut self) -> &mut T {
        if self.len == self.slots.len() {
            self.grow();
        }
        let index = (self.front + self.len) & (self.slots.len() - 1);
        self.len += 1;
        &mut self.slots[index]
    }

    #[inline(always)]
    pub fn front(&mut self) -> Option<&mut T> {
        if self.len == 0 { None } else { self.slots.get_mut(self.front) }
    }

    /// Removes the first element from the queue. Its contents stay until its slot is used again.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        debug_assert!(self.len > 0);
        self.front = (self.front + 1) & (self.slots.len() - 1);
        self.len -= 1;
    }

    /// The first elements, as many as lie side by side: all, or those before the end of the memory.
    #[inline(always)]
    pub fn front_slice(&mut self) -> &mut [T] {
        let end = (self.front + self.len).min(self.slots.len());
        &mut self.slots[self.front..end]
    }

    /// Removes the first `count` elements, as [`Self::drop_front`] does.
    #[inline(always)]
    pub fn drop_fronts(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        if count > 0 {
            self.front = (self.front + count) & (self.slots.len() - 1);
            self.len -= count;
        }
    }

    /// Slots of the next elements, as many as lie side by side, for the caller to fill from the first on. There is at
    /// least one. [`Self::push_filled`] adds those that were filled.
    #[inline(always)]
    pub fn free_slice(&mut self) -> &mut [T] {
        if self.len == self.slots.len() {
            self.grow();
        }
        let start = (self.front + self.len) & (self.slots.len() - 1);
        let end = if start < self.front { self.front } else { self.slots.len() };
        &mut self.slots[start..end]
    }

    /// Adds the first `count` elements of [`Self::free_slice`].
    #[inline(always)]
    pub fn push_filled(&mut self, count: usize) {
        debug_assert!(self.len + count <= self.slots.len());
        self.len += count;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.slots.rotate_left(self.front);
        self.front = 0;
        self.slots.resize_with((2 * self.slots.len()).max(16), T::default);
    }
}

/// The memory of a receive or of a request: nearly always one buffer, or else several, or a range, which lie in a
/// [`Pool`].
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    one: Option<MessageBuffer>,
    /// Index in the pool, plus one; 0 for none.
    pooled: u32,
}

/// Memory of [`Buffers`] that is not one buffer.
#[derive(Debug)]
enum Pooled {
    Several(Scatter),
    Range(OwnedRange),
    Free,
}

/// The memory of those [`Buffers`] that have more than one buffer, or a range.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    places: Vec<Pooled>,
    free: Vec<u32>,
}

impl Buffers {
    #[inline(always)]
    pub fn one(buffer: MessageBuffer) -> Self {
        Self { one: Some(buffer), pooled: 0 }
    }

    /// Puts a buffer in, where there is none.
    #[inline(always)]
    pub fn fill(&mut self, buffer: MessageBuffer) {
        debug_assert!(self.is_empty());
        // There is nothing to drop, which the compiler cannot know.
        std::mem::forget(self.one.replace(buffer));
    }

    /// Takes the buffers out of `scatter`.
    #[inline(always)]
    pub fn take(scatter: &mut Scatter, pool: &mut Pool) -> Self {
        match scatter.len() {
            0 => Self::default(),
            1 => Self { one: scatter.pop(), pooled: 0 },
            _ => Self { one: None, pooled: pool.put(Pooled::Several(std::mem::take(scatter))) },
        }
    }

    /// Puts a range in the pool.
    pub fn of_range(range: OwnedRange, pool: &mut Pool) -> Self {
        Self { one: None, pooled: pool.put(Pooled::Range(range)) }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.pooled == 0
    }

    /// The buffer, if there is just one.
    #[inline(always)]
    pub fn single(&mut self) -> Option<&mut MessageBuffer> {
        self.one.as_mut()
    }

    /// Takes the buffer out, if there is just one.
    #[inline(always)]
    pub fn take_single(&mut self) -> Option<MessageBuffer> {
        self.one.take()
    }

    #[inline(always)]
    pub fn get<'a>(&'a mut self, pool: &'a mut Pool) -> &'a mut [MessageBuffer] {
        if self.pooled == 0 { self.one.as_mut_slice() } else { pool.get(self.pooled) }
    }

    /// The range, if there is one.
    #[inline(always)]
    pub fn range<'a>(&self, pool: &'a mut Pool) -> Option<&'a mut OwnedRange> {
        if self.pooled == 0 { None } else { pool.range(self.pooled) }
    }

    /// Takes everything out, a field at a time.
    #[inline(always)]
    pub fn take_out(&mut self) -> Self {
        Self { one: self.one.take(), pooled: std::mem::take(&mut self.pooled) }
    }

    /// Takes the buffers out, or the range.
    #[inline(always)]
    pub fn take_all(&mut self, pool: &mut Pool) -> (Scatter, Option<OwnedRange>) {
        let mut scatter = Scatter::new();
        if self.pooled != 0 {
            return pool.take(std::mem::take(&mut self.pooled));
        }
        if let Some(buffer) = self.one.take() {
            scatter.push(buffer);
        }
        (scatter, None)
    }
}

impl Pool {
    #[cold]
    #[inline(never)]
    fn put(&mut self, pooled: Pooled) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.places[number as usize - 1] = pooled;
                number
            }
            None => {
                self.places.push(pooled);
                self.places.len() as u32
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn get(&mut self, number: u32) -> &mut [MessageBuffer] {
        match self.places.get_mut(number as usize - 1) {
            Some(Pooled::Several(buffers)) => buffers,
            _ => &mut [],
        }
    }

    #[cold]
    #[inline(never)]
    fn range(&mut self, number: u32) -> Option<&mut OwnedRange> {
        match self.places.get_mut(number as usize - 1) {
            Some(Pooled::Range(range)) => Some(range),
            _ => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn take(&mut self, number: u32) -> (Scatter, Option<OwnedRange>) {
        self.free.push(number);
        match self.places.get_mut(number as usize - 1).map(|place| std::mem::replace(place, Pooled::Free)) {
            Some(Pooled::Several(buffers)) => (buffers, None),
            Some(Pooled::Range(range)) => (Scatter::new(), Some(range)),
            Some(Pooled::Free) | None => (Scatter::new(), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use sinew_mem::Arena;

    use super::*;

    #[test]
    fn elements_leave_in_the_order_in_which_they_came() {
        let (mut fifo, mut oracle) = (Fifo::<u32>::default(), VecDeque::new());
        let mut step = 1u32;
        for number in 0..5000 {
            step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if step >> 16 & 3 != 0 {
                *fifo.push() = number;
                oracle.push_back(number);
            } else if oracle.pop_front().is_some() {
                fifo.drop_front();
            }
            assert_eq!((fifo.front().copied(), fifo.len()), (oracle.front().copied(), oracle.len()));
            if number % 500 == 499 {
                while oracle.pop_front().is_some() {
                    fifo.drop_front();
                }
            }
        }
    }

    #[test]
    fn elements_pass_in_slices_as_they_do_alone() {
        let (mut fifo, mut oracle, mut number) = (Fifo::<u32>::default(), VecDeque::new(), 0);
        for step in 0..2000 {
            let slots = fifo.free_slice();
            let count = (step * 7 % 11).min(slots.len());
            for slot in &mut slots[..count] {
                *slot = number;
                oracle.push_back(number);
                number += 1;
            }
            fifo.push_filled(count);
            let front = fifo.front_slice();
            assert!(front.iter().eq(oracle.iter().take(front.len())) && front.is_empty() == oracle.is_empty());
            let count = (step * 5 % 13).min(front.len());
            fifo.drop_fronts(count);
            oracle.drain(..count);
            assert_eq!((fifo.front().copied(), fifo.len()), (oracle.front().copied(), oracle.len()));
        }
    }

    #[test]
    fn one_or_several_buffers_come_out_as_they_went_in() {
        let arena = Arena::private(1 << 16).unwrap();
        let mut pool = Pool::default();
        for count in [0, 1, 2, 4, 3] {
            let mut scatter: Scatter = (0..count).map(|len| arena.alloc(len + 1, 8).unwrap()).collect();
            let mut buffers = Buffers::take(&mut scatter, &mut pool);
            assert!(scatter.is_empty() && buffers.is_empty() == (count == 0));
            assert!(buffers.get(&mut pool).iter().map(|buffer| buffer.len()).eq(1..=count));
            assert!(buffers.take_all(&mut pool).0.iter().map(|buffer| buffer.len()).eq(1..=count));
            assert!(buffers.is_empty());
        }
        assert_eq!(pool.places.len(), 1, "slots are used again");
    }
}
