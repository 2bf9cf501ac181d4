//! Completion queues.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sinew_fabric::verbs::{Completion, CompletionQueue, Destination, Opcode, QpNumber, Status, VerbsError};
use sinew_fabric::{Armed, Descriptor, PacketPort, Readiness, WakeTarget, Waker};

use super::engine::{Engine, clock_ns};
use super::fifo::{Buffers, Fifo, Pool};

/// Polls that find completions without looking for packets, at most, before one looks all the same.
const POLLS_WITHOUT_TURN: u32 = 16;

/// A completion, and what is free once it is known.
#[derive(Debug)]
pub(crate) struct Ready {
    pub id: u64,
    pub qp: QpNumber,
    pub status: Status,
    pub opcode: Opcode,
    pub len: usize,
    pub immediate: Option<u32>,
    pub from: Option<Destination>,
    pub buffers: Buffers,
    pub frees: Frees,
    /// The queue pair's at the time: one that was reset since has forgotten.
    pub epoch: u32,
}

/// What a completion frees in its queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frees {
    /// All requests before this one.
    Requests(u64),
    /// A receive.
    Receive,
}

impl Default for Ready {
    fn default() -> Self {
        Self {
            id: 0,
            qp: QpNumber(0),
            status: Status::Success,
            opcode: Opcode::Send,
            len: 0,
            immediate: None,
            from: None,
            buffers: Buffers::default(),
            frees: Frees::Receive,
            epoch: 0,
        }
    }
}

/// The completion queues of a thread.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub list: Vec<Option<Queue>>,
    /// Where completions, receives and requests of several buffers have them.
    pub pool: Pool,
}

impl Queues {
    /// A completion of the queue of this index, to be filled. (It is there: its queue pairs keep it.)
    #[inline(always)]
    pub fn ready(&mut self, index: usize) -> &mut Ready {
        self.get(index).ready.push()
    }

    #[inline(always)]
    pub fn get(&mut self, index: usize) -> &mut Queue {
        self.list[index].as_mut().expect("a queue is there as long as its handle or a queue pair")
    }

    /// Whether somebody who sleeps on one of the queues would sleep through something that was taken in already.
    fn has_news(&self) -> bool {
        let has_news = |queue: &Queue| !queue.ready.is_empty() || queue.woken.load(Ordering::Relaxed);
        self.list.iter().flatten().any(|queue| queue.armed && has_news(queue))
    }

    /// Whether somebody sleeps on one of the queues.
    fn any_armed(&self) -> bool {
        self.list.iter().flatten().any(|queue| queue.armed)
    }

    /// Takes the completions of a queue pair out of a queue.
    pub fn forget(&mut self, index: usize, number: QpNumber) {
        let Self { list, pool } = self;
        let Some(Some(queue)) = list.get_mut(index) else { return };
        queue.ready.retain(|ready| {
            let stays = ready.qp != number;
            if !stays {
                ready.buffers.take_all(pool);
            }
            stays
        });
    }

    /// Ends one use of a queue, which goes with the last.
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

/// A completion queue, as its thread's engine has it.
#[derive(Debug)]
pub(crate) struct Queue {
    pub ready: Fifo<Ready>,
    depth: usize,
    /// Completions that its queue pairs can have at a time.
    reserved: usize,
    /// Queue pairs' halves, and the handle.
    users: usize,
    woken: Arc<AtomicBool>,
    /// Somebody sleeps on it, by the descriptor of the thread's port.
    armed: bool,
    polls: u32,
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

    /// Sets places aside for half a queue pair.
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

/// Wakes one completion queue's waiter.
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

/// A completion queue of a [`super::ShmThread`].
pub struct ShmCompletionQueue {
    engine: Rc<RefCell<Engine>>,
    index: usize,
    waker: Arc<QueueWaker>,
}

impl ShmCompletionQueue {
    pub(super) fn new(engine: Rc<RefCell<Engine>>, index: usize, waker: Arc<QueueWaker>) -> Self {
        Self { engine, index, waker }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn is_of(&self, engine: &Rc<RefCell<Engine>>) -> bool {
        Rc::ptr_eq(&self.engine, engine)
    }
}

impl std::fmt::Debug for ShmCompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmCompletionQueue").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Drop for ShmCompletionQueue {
    fn drop(&mut self) {
        self.engine.borrow_mut().queues.release(self.index, 0);
    }
}

impl Readiness for ShmCompletionQueue {
    /// That of the thread's port, which all queues of the thread share.
    fn descriptor(&self) -> Option<Descriptor> {
        self.engine.borrow().port.descriptor()
    }

    /// One may sleep no longer than for what the thread waits for that wakes nobody, such as room in a peer's ring.
    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        let engine = &mut *self.engine.borrow_mut();
        // It takes in what is on its way to all of the thread's queues, of which others may be armed already.
        let packets = engine.turn_before_sleep();
        engine.queues.get(self.index).armed = true;
        let armed = if packets > 0 || engine.queues.has_news() { Armed::Ready } else { engine.port.arm(now_ns)? };
        if armed == Armed::Ready {
            let queue = engine.queues.get(self.index);
            queue.armed = false;
            queue.woken.swap(false, Ordering::Acquire);
            return Ok(Armed::Ready);
        }
        Ok(armed.by(engine.nap_ns().map(|nap_ns| now_ns.saturating_add(nap_ns))))
    }

    fn disarm(&mut self) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        let queue = engine.queues.get(self.index);
        if !std::mem::take(&mut queue.armed) {
            return false;
        }
        let was_woken = queue.woken.swap(false, Ordering::Acquire);
        if !engine.queues.any_armed() {
            engine.port.disarm();
        }
        was_woken
    }
}

impl CompletionQueue for ShmCompletionQueue {
    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let engine = &mut *self.engine.borrow_mut();
        let queue = engine.queues.get(self.index);
        queue.polls += 1;
        if queue.ready.is_empty() || queue.polls >= POLLS_WITHOUT_TURN {
            queue.polls = 0;
            engine.turn();
        }
        engine.take(self.index, completions, max)
    }

    /// Sleeps on the port, and goes on where it brings nothing for this queue.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        let engine = &mut *self.engine.borrow_mut();
        let end_ns = timeout_ns.map(|timeout_ns| clock_ns().saturating_add(timeout_ns));
        loop {
            // What is on its way is taken first, a burst at a time: a port whose ring has packets does not sleep.
            let packets = engine.turn_before_sleep();
            let queue = engine.queues.get(self.index);
            if queue.woken.swap(false, Ordering::Acquire) || !queue.ready.is_empty() {
                return Ok(());
            }
            let left_ns = end_ns.map(|end_ns| end_ns.saturating_sub(clock_ns()));
            if left_ns == Some(0) {
                return Ok(());
            }
            if packets > 0 {
                continue;
            }
            let nap_ns = engine.nap_ns();
            engine.port.wait(left_ns.into_iter().chain(nap_ns).min())?;
        }
    }

    fn waker(&self) -> Waker {
        let target: Arc<dyn WakeTarget> = Arc::clone(&self.waker) as _;
        Waker::new(target)
    }
}
