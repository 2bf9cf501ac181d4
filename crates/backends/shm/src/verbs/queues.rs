//! A thread's completion queues, as its engine sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sinew_fabric::verbs::{Completion, Destination, Opcode, QpNumber, Status, VerbsError};
use sinew_fabric::{WakeTarget, Waker};

use super::fifo::{Buffers, Fifo, Pool};

/// A completion, and what it frees in its queue pair once it is polled.
#[derive(Debug)]
pub(crate) struct Ready {
    pub id: u64,
    pub of: Life,
    pub status: Status,
    pub opcode: Opcode,
    pub len: usize,
    pub immediate: Option<u32>,
    pub from: Option<Destination>,
    pub buffers: Buffers,
    pub frees: FreedSlots,
}

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

/// Places in its queue pair that a completion frees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FreedSlots {
    /// All requests before this one.
    Requests(u64),
    /// A receive.
    Receive,
}

impl Default for Ready {
    fn default() -> Self {
        Self {
            id: 0,
            of: Life::default(),
            status: Status::Success,
            opcode: Opcode::Send,
            len: 0,
            immediate: None,
            from: None,
            buffers: Buffers::default(),
            frees: FreedSlots::Receive,
        }
    }
}

/// The completion queues of a thread.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub list: Vec<Option<Queue>>,
    /// The buffers of completions, receives and requests that have several.
    pub pool: Pool,
    poller: Poller,
}

/// The user who polls a queue while packets are received, so that completions are written straight to the user's list.
#[derive(Debug, Default)]
struct Poller {
    /// Index of the queue.
    queue: usize,
    /// The user's list.
    list: Vec<Completion>,
    /// Completions for which the list has spare capacity.
    room: usize,
}

impl Queues {
    /// Adds a completion to the queue of this index, for the caller to fill. (The queue exists: its queue pairs keep
    /// it.)
    #[inline(always)]
    pub fn ready(&mut self, index: usize) -> &mut Ready {
        // Later completions come after this one.
        self.poller.room = 0;
        self.get(index).ready.push()
    }

    /// Lends the list of a user who polls the queue of this index. It takes up to `max` completions in place, if none
    /// is ready and it need not grow.
    #[inline]
    pub fn lend(&mut self, index: usize, completions: &mut Vec<Completion>, max: usize) {
        let is_empty = self.get(index).ready.is_empty();
        let Poller { queue, list, room } = &mut self.poller;
        *queue = index;
        *room = if is_empty { max.min(completions.capacity() - completions.len()) } else { 0 };
        // Nobody polls while another does, so the list in its place is empty.
        std::mem::swap(list, completions);
    }

    /// Gives the list back.
    #[inline]
    pub fn end_lending(&mut self, completions: &mut Vec<Completion>) {
        self.poller.room = 0;
        std::mem::swap(&mut self.poller.list, completions);
    }

    /// The place of the next completion of this queue in the list of the user who is polling it. `None` when nobody is,
    /// the list has no room, or an earlier completion waits.
    #[inline(always)]
    pub fn place_for_poller(&mut self, index: usize) -> Option<Place<'_>> {
        let poller = &mut self.poller;
        (poller.room > 0 && poller.queue == index).then_some(Place(poller))
    }

    #[inline(always)]
    pub fn get(&mut self, index: usize) -> &mut Queue {
        self.list[index].as_mut().expect("a queue exists as long as its handle or one of its queue pairs")
    }

    /// Whether an armed queue already has completions or a wake-up, which its user would sleep through.
    pub fn has_news(&self) -> bool {
        let has_news = |queue: &Queue| !queue.ready.is_empty() || queue.woken.load(Ordering::Relaxed);
        self.list.iter().flatten().any(|queue| queue.armed && has_news(queue))
    }

    /// Whether the user sleeps on any of the queues.
    pub fn is_any_armed(&self) -> bool {
        self.list.iter().flatten().any(|queue| queue.armed)
    }

    /// Removes the completions of a queue pair from a queue.
    pub fn forget(&mut self, index: usize, number: QpNumber) {
        let Self { list, pool, .. } = self;
        let Some(Some(queue)) = list.get_mut(index) else { return };
        queue.ready.retain(|ready| {
            let stays = ready.of.number() != number;
            if !stays {
                ready.buffers.take_all(pool);
            }
            stays
        });
    }

    /// Ends one use of a queue, which is dropped with its last use.
    pub fn release(&mut self, index: usize, depth: usize) {
        let queue = self.get(index);
        queue.reserved -= depth;
        queue.users -= 1;
        if queue.users == 0
            && let Some(mut queue) = self.list[index].take()
        {
            while let Some(ready) = queue.ready.front() {
                ready.buffers.take_all(&mut self.pool);
                queue.ready.drop_front();
            }
        }
    }
}

/// A completion queue, as its thread's engine sees it.
#[derive(Debug)]
pub(crate) struct Queue {
    pub ready: Fifo<Ready>,
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
            ready: Fifo::default(),
            depth,
            reserved: 0,
            users: 1,
            woken: Arc::clone(&woken),
            armed: false,
            polls: 0,
        };
        (queue, Arc::new(QueueWaker { woken, port: waker }))
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

/// Place of a completion in a user's list.
pub(crate) struct Place<'a>(&'a mut Poller);

impl<'a> Place<'a> {
    /// Adds the completion, and returns a reference to it: filling its list of buffers in place costs less.
    #[inline(always)]
    pub fn add(self, completion: Completion) -> &'a mut Completion {
        let Poller { list, room, .. } = self.0;
        *room -= 1;
        let len = list.len();
        // SAFETY: `Queues::lend` counted the list's spare capacity, and each place of it is used once. The completion
        // is written before it counts.
        unsafe {
            let place = list.as_mut_ptr().add(len);
            place.write(completion);
            list.set_len(len + 1);
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
