//! A thread's completion queues, as its engine sees them.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sinew_fabric::verbs::{Completion, QpNumber, VerbsError};
use sinew_fabric::{WakeTarget, Waker};

use super::fifo::Pool;

/// The most completions in lists that are swapped; from longer ones they are moved.
const SWAPPED_MAX: usize = 1 << 16;

/// A queue pair between two resets. Its number and, in the upper half, its epoch are one word, so that one comparison
/// covers both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life(u64);

impl Life {
    pub fn new(number: QpNumber, epoch: u32) -> Self {
        Self(u64::from(number.0) | u64::from(epoch) << 32)
    }

    #[inline(always)]
    pub fn number(self) -> QpNumber {
        QpNumber(self.0 as u32)
    }
}

/// What a completion frees in its queue pair once it is polled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub of: Life,
    pub slots: FreedSlots,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FreedSlots {
    /// All requests before this one.
    Requests(u64),
    /// A receive.
    Receive,
}

/// The completion queues of a thread.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub list: Vec<Option<Box<Queue>>>,
    /// The memory of receives and requests that is not one buffer.
    pub pool: Pool,
}

impl Queues {
    /// The queue of this index. (It exists: its queue pairs keep it.)
    #[inline(always)]
    pub fn get(&mut self, index: usize) -> &mut Queue {
        self.list[index].as_deref_mut().expect("a queue exists as long as its handle or one of its queue pairs")
    }

    /// Whether an armed queue already has completions or a wake-up, which its user would sleep through.
    pub fn has_news(&self) -> bool {
        let has_news = |queue: &Queue| !queue.is_empty() || queue.woken.load(Ordering::Relaxed);
        self.list.iter().flatten().any(|queue| queue.armed && has_news(queue))
    }

    /// Whether the user sleeps on any of the queues.
    pub fn is_any_armed(&self) -> bool {
        self.list.iter().flatten().any(|queue| queue.armed)
    }

    /// Ends one use of a queue, which is dropped with its last use.
    pub fn release(&mut self, index: usize, depth: usize) {
        let queue = self.get(index);
        queue.reserved -= depth;
        queue.users -= 1;
        if queue.users == 0 {
            self.list[index] = None;
        }
    }
}

/// A completion queue, as its thread's engine sees it.
///
/// Completions are written once, where the user will read them: a poll swaps the list in which they lie for the user's
/// empty one. While the poll receives packets, it lends that list, so that the packets' completions go there.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Completions that were not polled, and are older than those of `done`: the oldest last.
    older: Vec<Completion>,
    /// What these completions free.
    older_frees: Vec<Freed>,
    /// Completions that were not polled, oldest first.
    done: Vec<Completion>,
    /// What these completions free. (The first ones of a lent list were freed already.)
    done_frees: Vec<Freed>,
    /// Whether `done` is the list of the user who is polling.
    is_lent: bool,
    /// Completions that may be added to the lent list and are freed at once.
    room: usize,
    depth: usize,
    /// Completions that its queue pairs can have at a time.
    reserved: usize,
    /// Uses: one for each half of a queue pair, and one for the handle.
    users: usize,
    pub woken: Arc<AtomicBool>,
    /// The user sleeps on it, by the descriptor of the thread's port.
    pub armed: bool,
    /// Polls since the last one that checked for packets.
    pub polls: u32,
}

impl Queue {
    pub fn new(depth: usize, waker: Waker) -> (Self, Arc<QueueWaker>) {
        let woken = Arc::new(AtomicBool::new(false));
        let queue = Self {
            older: Vec::new(),
            older_frees: Vec::new(),
            done: Vec::new(),
            done_frees: Vec::new(),
            is_lent: false,
            room: 0,
            depth,
            reserved: 0,
            users: 1,
            woken: Arc::clone(&woken),
            armed: false,
            polls: 0,
        };
        (queue, Arc::new(QueueWaker { woken, port: waker }))
    }

    /// Whether there is no completion to poll.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.older.is_empty() && self.done.is_empty()
    }

    /// The place of the next completion, which frees this.
    #[inline(always)]
    pub fn place(&mut self, frees: Freed) -> Place<'_> {
        // Those that are freed at once are the first.
        self.room = 0;
        self.done_frees.push(frees);
        if self.done.len() == self.done.capacity() {
            self.grow();
        }
        Place(&mut self.done)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.done.reserve(16);
        self.grow_frees();
    }

    /// Makes room for what the completions in the list's memory free, so that both grow together.
    fn grow_frees(&mut self) {
        self.done_frees.reserve(self.done.capacity() - self.done_frees.len());
    }

    /// Takes the empty list of the user who polls, for up to `max` completions, if the queue is empty too.
    /// [`Self::take`] must follow.
    #[inline]
    pub fn borrow_list(&mut self, completions: &mut Vec<Completion>, max: usize) {
        if self.is_empty() && self.takes_list(completions) {
            self.is_lent = true;
            self.room = max.min(completions.capacity());
            std::mem::swap(&mut self.done, completions);
        }
    }

    /// Whether the user's list may be swapped for that of this queue, which is given at least as much memory first: so
    /// neither needs more again and again.
    #[inline(always)]
    fn takes_list(&mut self, completions: &Vec<Completion>) -> bool {
        completions.is_empty()
            && (completions.capacity() <= self.done.capacity() || self.grows_to(completions.capacity()))
    }

    /// Whether the queue's list now has this capacity.
    #[cold]
    #[inline(never)]
    fn grows_to(&mut self, capacity: usize) -> bool {
        if capacity <= SWAPPED_MAX {
            self.done.reserve_exact(capacity - self.done.len());
            self.grow_frees();
        }
        capacity <= self.done.capacity()
    }

    /// Places for completions in the list of the user who is polling, which are freed at once. There are none when
    /// nobody is polling, when the list has no room, and when another completion was added.
    #[inline(always)]
    pub fn places_for_poller(&mut self) -> &mut [MaybeUninit<Completion>] {
        self.done.spare_capacity_mut().get_mut(..self.room).unwrap_or_default()
    }

    /// Adds the completions in the first `count` of [`Self::places_for_poller`].
    ///
    /// # Safety
    ///
    /// They were written.
    #[inline(always)]
    pub unsafe fn fill_for_poller(&mut self, count: usize) {
        self.room -= count;
        // SAFETY: the caller's promise; the places were those behind the list's end.
        unsafe { self.done.set_len(self.done.len() + count) };
    }

    /// Moves up to `max` completions to the user's list, and passes on what they free. Returns their number.
    #[inline]
    pub fn take(&mut self, completions: &mut Vec<Completion>, max: usize, mut free: impl FnMut(&[Freed])) -> usize {
        let count = self.done.len();
        let is_swapped = self.older.is_empty() && count <= max && (self.is_lent || self.takes_list(completions));
        self.is_lent = false;
        self.room = 0;
        if !is_swapped {
            return self.take_some(completions, max, &mut free);
        }
        free(&self.done_frees);
        self.done_frees.clear();
        std::mem::swap(&mut self.done, completions);
        count
    }

    #[inline(never)]
    fn take_some(&mut self, completions: &mut Vec<Completion>, max: usize, free: &mut dyn FnMut(&[Freed])) -> usize {
        let before = completions.len();
        while completions.len() - before < max && !self.is_empty() {
            if self.older.is_empty() {
                self.older.extend(self.done.drain(..).rev());
                self.older_frees.extend(self.done_frees.drain(..).rev());
            }
            // The oldest may have been freed already.
            if self.older.len() == self.older_frees.len() {
                free(self.older_frees.pop().as_slice());
            }
            completions.extend(self.older.pop());
        }
        completions.len() - before
    }

    /// Removes the completions of a queue pair.
    pub fn forget(&mut self, number: QpNumber) {
        let is_other = |completion: &Completion| completion.qp != number;
        self.older.retain(is_other);
        self.done.retain(is_other);
        self.older_frees.retain(|freed| freed.of.number() != number);
        self.done_frees.retain(|freed| freed.of.number() != number);
    }

    /// Reserves `depth` completions for one half of a queue pair.
    pub fn reserve(&mut self, depth: usize) -> Result<(), VerbsError> {
        let asked = self.reserved.saturating_add(depth);
        if asked > self.depth {
            let what = "completions of the queue pairs of one completion queue";
            return Err(VerbsError::Limit { what, asked, limit: self.depth });
        }
        self.reserved = asked;
        self.users += 1;
        Ok(())
    }
}

/// Place of a completion in a list with room for it.
pub(crate) struct Place<'a>(&'a mut Vec<Completion>);

impl<'a> Place<'a> {
    /// Adds the completion. It is made when its place is known, and its buffers are added there, because it costs less
    /// than to move it.
    #[inline(always)]
    pub fn write(self, completion: Completion) -> &'a mut Completion {
        let len = self.0.len();
        // SAFETY: the list has room for one more, which is written before it counts.
        unsafe {
            let place = self.0.as_mut_ptr().add(len);
            place.write(completion);
            self.0.set_len(len + 1);
            &mut *place
        }
    }
}

/// Wakes the waiter of one completion queue.
pub(crate) struct QueueWaker {
    woken: Arc<AtomicBool>,
    port: Waker,
}

impl WakeTarget for QueueWaker {
    fn wake(&self) {
        // Partner: the swaps in `wait`, `arm` and `disarm`, which come after the port's descriptor was readable.
        self.woken.store(true, Ordering::Release);
        self.port.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use sinew_fabric::verbs::{Opcode, Scatter, Status};

    use super::*;

    struct Nobody;

    impl WakeTarget for Nobody {
        fn wake(&self) {}
    }

    fn completion(id: u64) -> Completion {
        Completion {
            id,
            qp: QpNumber(1),
            status: Status::Success,
            opcode: Opcode::Send,
            len: 0,
            immediate: None,
            from: None,
            buffers: Scatter::new(),
            range: None,
        }
    }

    /// What the completion with this identifier frees.
    fn frees(id: u64) -> Freed {
        Freed { of: Life::new(QpNumber(1), 0), slots: FreedSlots::Requests(id) }
    }

    #[test]
    fn completions_leave_in_their_order_and_free_when_they_do_whatever_lists_the_user_brings() {
        let (mut queue, _waker) = Queue::new(1024, Waker::new(Arc::new(Nobody)));
        let mut step = 1u32;
        let mut below = |bound: u32| {
            step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (step >> 16) % bound
        };
        let (mut next, mut waiting, mut list) = (1, VecDeque::new(), Vec::with_capacity(8));
        for _ in 0..5000 {
            for _ in 0..below(20) {
                queue.place(frees(next)).write(completion(next));
                waiting.push_back(next);
                next += 1;
            }
            // Lists of other lengths, some of them with completions of other queues.
            if below(10) == 0 {
                list = Vec::with_capacity(below(40) as usize);
                list.extend((0..below(3)).map(|_| completion(0)));
            }
            let (max, before) = (below(30) as usize, list.len());
            queue.borrow_list(&mut list, max);
            let mut freed_at_once = 0;
            if queue.is_empty() {
                // Packets arrive during the poll: the first ones for this user, and more than were asked for.
                for place in queue.places_for_poller().iter_mut().take(below(5) as usize) {
                    place.write(completion(next));
                    (next, freed_at_once) = (next + 1, freed_at_once + 1);
                }
                // SAFETY: that many were written.
                unsafe { queue.fill_for_poller(freed_at_once) };
                waiting.extend(next - freed_at_once as u64..next);
                for _ in 0..below(40) {
                    queue.place(frees(next)).write(completion(next));
                    assert!(queue.places_for_poller().is_empty(), "later ones come after it");
                    waiting.push_back(next);
                    next += 1;
                }
            }
            let mut freed = Vec::new();
            let count = queue.take(&mut list, max, |frees| {
                freed.extend(frees.iter().map(|frees| match frees.slots {
                    FreedSlots::Requests(id) => id,
                    FreedSlots::Receive => panic!("there were no receives"),
                }));
            });
            let expected: Vec<u64> = waiting.drain(..max.min(waiting.len())).collect();
            assert_eq!(count, expected.len());
            assert!(list[before..].iter().map(|completion| completion.id).eq(expected.iter().copied()));
            assert_eq!(freed, expected[freed_at_once.min(count)..]);
            list.clear();
        }
    }

    #[test]
    fn lists_that_are_swapped_soon_have_all_the_memory_that_they_need() {
        let (mut queue, _waker) = Queue::new(1024, Waker::new(Arc::new(Nobody)));
        let mut list = Vec::with_capacity(64);
        for round in 0..10 {
            for id in 0..40 {
                queue.place(frees(id)).write(completion(id));
            }
            assert_eq!(queue.take(&mut list, 64, |_| {}), 40);
            assert!(round < 1 || (list.capacity(), queue.done.capacity()) == (64, 64));
            list.clear();
        }
    }
}
