//! Rings that are shared with the kernel. One side fills slots and advances the producer's index; the other empties
//! them and advances the consumer's.
//!
//! The indices run over all numbers and are reduced by a mask. The other side's index is checked: one that would make
//! the ring hold more than its entries is ignored.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

use sinew_mem::atomic::plain::{AtomicU32, Ordering};

/// Flag by which the other side says that it sleeps until it is called.
const NEED_WAKEUP: u32 = 1;

/// The memory of a ring.
pub(crate) struct RingMemory<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: Option<NonNull<AtomicU32>>,
    slots: NonNull<T>,
    entries: u32,
    /// Keeps the memory mapped.
    _keeper: Box<dyn Any + Send>,
}

// SAFETY: the pointers are to memory that `_keeper` keeps mapped, which moves along; the ring's owner is alone at its
// side of it.
unsafe impl<T: Send> Send for RingMemory<T> {}

impl<T: Copy> RingMemory<T> {
    /// # Safety
    ///
    /// - As long as `keeper` lives, the pointers are to aligned words that may be read, and to `entries` slots, a power
    ///   of two.
    /// - Any bytes are a `T`. While slots are this side's, and for the words of this side always, nothing but this ring
    ///   writes them.
    pub unsafe fn new(
        [producer, consumer]: [NonNull<AtomicU32>; 2],
        flags: Option<NonNull<AtomicU32>>,
        slots: NonNull<T>,
        entries: u32,
        keeper: Box<dyn Any + Send>,
    ) -> Self {
        assert!(entries.is_power_of_two());
        Self { producer, consumer, flags, slots, entries, _keeper: keeper }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `new`'s caller promised a word that lives as long as the ring.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        self.flags.is_none_or(|flags| unsafe { flags.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }

    fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index among the `entries` slots.
        unsafe { self.slots.add((index & (self.entries - 1)) as usize) }
    }
}

impl<T> fmt::Debug for RingMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingMemory").field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// The side that fills a ring.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    memory: RingMemory<T>,
    /// The slot that is filled next.
    next: u32,
    /// The consumer's index as last seen.
    taken: u32,
}

impl<T: Copy> Producer<T> {
    pub fn new(memory: RingMemory<T>) -> Self {
        let next = memory.producer().load(Ordering::Relaxed);
        Self { taken: next, next, memory }.with_fresh_view()
    }

    fn with_fresh_view(mut self) -> Self {
        self.refresh();
        self
    }

    fn refresh(&mut self) {
        // Acquire: the other side has read the slots up to there. Partner: its release of the consumer's index.
        let taken = self.memory.consumer().load(Ordering::Acquire);
        if self.next.wrapping_sub(taken) <= self.memory.entries {
            self.taken = taken;
        }
    }

    /// Free slots. Looks at the ring again where fewer than `wanted` are known.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> u32 {
        let known = self.memory.entries - self.next.wrapping_sub(self.taken);
        if known >= wanted {
            return known;
        }
        self.refresh();
        self.memory.entries - self.next.wrapping_sub(self.taken)
    }

    /// Fills a slot, which the other side sees once it is [published](Self::publish); returns whether one was free.
    #[inline]
    pub fn push(&mut self, value: T) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        // SAFETY: the slot is free, so it is ours to write.
        unsafe { self.memory.slot(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the filled slots to the other side.
    #[inline]
    pub fn publish(&mut self) {
        // Release: the slots were written before. Partner: the acquire of the producer's index at the other side.
        self.memory.producer().store(self.next, Ordering::Release);
    }

    /// Whether the other side wants to be called to go on.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }

    /// Filled slots that the other side has not emptied.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.refresh();
        self.next.wrapping_sub(self.taken)
    }

    /// Takes back a slot that the other side has not emptied, the newest first; for use when the other side is gone.
    pub fn take_back(&mut self) -> Option<T> {
        self.refresh();
        if self.next == self.taken {
            return None;
        }
        self.next = self.next.wrapping_sub(1);
        // SAFETY: the slot was filled and not emptied; any bytes are a `T`.
        Some(unsafe { self.memory.slot(self.next).read() })
    }
}

/// The side that empties a ring.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    memory: RingMemory<T>,
    /// The slot that is emptied next.
    next: u32,
    /// The producer's index as last seen.
    filled: u32,
}

impl<T: Copy> Consumer<T> {
    pub fn new(memory: RingMemory<T>) -> Self {
        let next = memory.consumer().load(Ordering::Relaxed);
        Self { filled: next, next, memory }
    }

    /// Filled slots that this side knows of. Looks at the ring again where there are none.
    #[inline]
    pub fn available(&mut self) -> u32 {
        if self.filled == self.next {
            // Acquire: the slots were written before. Partner: the other side's release of its index.
            let filled = self.memory.producer().load(Ordering::Acquire);
            if filled.wrapping_sub(self.next) <= self.memory.entries {
                self.filled = filled;
            }
        }
        self.filled.wrapping_sub(self.next)
    }

    /// Empties a slot, which goes back to the other side with [`Self::release`].
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        // SAFETY: the slot is filled, so it is ours to read; any bytes are a `T`.
        let value = unsafe { self.memory.slot(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(value)
    }

    /// Gives emptied slots back.
    #[inline]
    pub fn release(&mut self) {
        // Release: we have read the slots before. Partner: the acquire of the consumer's index at the other side.
        self.memory.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;

    struct Plain {
        words: [AtomicU32; 3],
        slots: Vec<std::cell::UnsafeCell<u64>>,
    }

    // SAFETY: only the sides of a ring touch the slots.
    unsafe impl Sync for Plain {}

    fn memory(plain: &Arc<Plain>) -> RingMemory<u64> {
        let word = |index: usize| NonNull::from(&plain.words[index]);
        let base = NonNull::new(plain.slots.as_ptr() as *mut u64).unwrap();
        // SAFETY: the share keeps the memory; the tests make one producer and one consumer.
        unsafe {
            RingMemory::new(
                [word(0), word(1)],
                Some(word(2)),
                base,
                plain.slots.len() as u32,
                Box::new(Arc::clone(plain)),
            )
        }
    }

    fn ring(entries: usize, start: u32) -> (Arc<Plain>, Producer<u64>, Consumer<u64>) {
        let plain = Arc::new(Plain {
            words: [start.into(), start.into(), 0.into()],
            slots: (0..entries).map(|_| 0.into()).collect(),
        });
        let (producer, consumer) = (Producer::new(memory(&plain)), Consumer::new(memory(&plain)));
        (plain, producer, consumer)
    }

    #[test]
    fn what_is_published_arrives_in_order_past_the_wrap_of_the_indices() {
        let (_, mut producer, mut consumer) = ring(4, u32::MAX - 5);
        for round in 0..20u64 {
            for number in 0..3 {
                assert!(producer.push(round * 3 + number));
            }
            assert_eq!(consumer.available(), 0, "nothing was published");
            producer.publish();
            assert_eq!((producer.waiting(), consumer.available()), (3, 3));
            for number in 0..3 {
                assert_eq!(consumer.take(), Some(round * 3 + number));
            }
            assert_eq!(consumer.take(), None);
            assert_eq!(producer.free(2), 1, "nothing was released");
            consumer.release();
            assert_eq!(producer.free(2), 4);
        }
    }

    #[test]
    fn an_index_that_cannot_be_is_no_news() {
        let (plain, mut producer, mut consumer) = ring(4, 0);
        plain.words[0].store(5, Ordering::Relaxed);
        assert_eq!(consumer.available(), 0, "more than there is room for");
        plain.words[0].store(4, Ordering::Relaxed);
        assert_eq!(consumer.available(), 4);
        plain.words[1].store(1, Ordering::Relaxed);
        assert_eq!(producer.free(5), 4, "more was taken than was filled");
        plain.words[1].store(0, Ordering::Relaxed);
        (0..4).for_each(|number| assert!(producer.push(number)));
        assert!(!producer.push(4));
    }

    #[test]
    fn what_was_not_taken_comes_back() {
        let (_, mut producer, mut consumer) = ring(4, 0);
        (0..4).for_each(|number| assert!(producer.push(number)));
        producer.publish();
        assert_eq!(consumer.take(), Some(0));
        consumer.release();
        assert_eq!(std::iter::from_fn(|| producer.take_back()).collect::<Vec<_>>(), [3, 2, 1]);
    }

    #[test]
    fn two_threads_pass_every_value_once() {
        let (_plain, mut producer, mut consumer) = ring(8, u32::MAX - 50);
        let count = if cfg!(miri) { 100 } else { 20_000 };
        let filling = std::thread::spawn(move || {
            let mut next = 0;
            while next < count {
                if producer.push(next) {
                    producer.publish();
                    next += 1;
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < count {
            match consumer.take() {
                Some(value) => {
                    assert_eq!(value, expected);
                    expected += 1;
                    consumer.release();
                }
                None => std::thread::yield_now(),
            }
        }
        filling.join().unwrap();
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue(steps in prop::collection::vec(0u8..4, 0..200), start in any::<u32>()) {
            let (_plain, mut producer, mut consumer) = ring(8, start);
            let (mut filled, mut published, mut held, mut next) = (VecDeque::new(), VecDeque::new(), 0, 0);
            for step in steps {
                match step {
                    0 => {
                        let fits = filled.len() + published.len() + held < 8;
                        prop_assert_eq!(producer.push(next), fits);
                        if fits {
                            filled.push_back(next);
                            next += 1;
                        }
                    }
                    1 => {
                        producer.publish();
                        published.extend(filled.drain(..));
                    }
                    2 => {
                        let got = consumer.take();
                        prop_assert_eq!(got, published.pop_front());
                        held += usize::from(got.is_some());
                    }
                    _ => {
                        consumer.release();
                        held = 0;
                    }
                }
            }
        }
    }
}
