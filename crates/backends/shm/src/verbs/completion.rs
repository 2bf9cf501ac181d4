//! Completion queues, as their users see them: they are polled and slept on.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinew_fabric::verbs::{Completion, CompletionQueue, Message, QueuePair, RefusedReceive, show_messages};
use sinew_fabric::{Armed, Descriptor, PacketPort, Readiness, WakeTarget, Waker};

use super::clock::clock_ns;
use super::engine::{Audience, Engine};
use super::queues::QueueWaker;

/// Number of polls after which one checks for packets even if there are completions.
const POLLS_WITHOUT_TURN: u32 = 16;

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
    /// The descriptor of the thread's port, which all queues of the thread share.
    fn descriptor(&self) -> Option<Descriptor> {
        self.engine.borrow().port.descriptor()
    }

    /// The sleep is limited where the thread waits for something that wakes nobody, such as room in a peer's ring.
    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        let engine = &mut *self.engine.borrow_mut();
        // The turn takes in packets for all of the thread's queues, of which others may be armed already.
        let packets = engine.turn_before_sleep();
        engine.queues.get(self.index).armed = true;
        let armed = if packets > 0 || engine.queues.has_news() { Armed::Ready } else { engine.port.arm(now_ns)? };
        if armed == Armed::Ready {
            let queue = engine.queues.get(self.index);
            queue.armed = false;
            queue.woken.swap(false, Ordering::Acquire);
            return Ok(Armed::Ready);
        }
        Ok(armed.min_deadline(engine.nap_ns().map(|nap_ns| now_ns.saturating_add(nap_ns))))
    }

    fn disarm(&mut self) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        let queue = engine.queues.get(self.index);
        if !std::mem::take(&mut queue.armed) {
            return false;
        }
        let was_woken = queue.woken.swap(false, Ordering::Acquire);
        if !engine.queues.is_any_armed() {
            engine.port.disarm();
        }
        was_woken
    }
}

impl ShmCompletionQueue {
    /// Polls with an audience, if there are no completions yet. Otherwise returns false, and has no effect.
    #[inline(always)]
    fn poll_showing(&mut self, audience: &mut Audience<impl FnMut(Message<'_>)>, others: &mut Vec<Completion>) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        let queue = engine.queues.get(self.index);
        let is_empty = queue.is_empty();
        if is_empty {
            queue.polls = 0;
            engine.turn_showing(Some(&mut *audience));
            if !engine.queues.get(self.index).is_empty() {
                engine.take(self.index, others, audience.max - audience.shown);
            }
        }
        is_empty
    }
}

impl CompletionQueue for ShmCompletionQueue {
    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let engine = &mut *self.engine.borrow_mut();
        let queue = engine.queues.get(self.index);
        queue.polls += 1;
        if queue.is_empty() || queue.polls >= POLLS_WITHOUT_TURN {
            queue.polls = 0;
            queue.borrow_list(completions, max);
            engine.turn();
        }
        engine.take(self.index, completions, max)
    }

    /// While the queue has no backlog of completions, datagrams are shown in the buffer of the oldest receive.
    #[inline]
    fn poll_messages<Q: QueuePair>(
        &mut self,
        qp: &mut Q,
        others: &mut Vec<Completion>,
        max: usize,
        take: impl FnMut(Message<'_>),
    ) -> Result<usize, RefusedReceive> {
        let before = others.len();
        let mut audience = Audience { of: qp.number(), queue: self.index, max, shown: 0, take };
        if !self.poll_showing(&mut audience, others) {
            self.poll(others, max);
        }
        let Audience { shown, take, .. } = audience;
        if others.len() == before {
            return Ok(shown);
        }
        Ok(shown + show_messages(qp, others, before, take)?)
    }

    /// Sleeps on the port, and goes back to sleep when nothing came for this queue.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        let engine = &mut *self.engine.borrow_mut();
        let end_ns = timeout_ns.map(|timeout_ns| clock_ns().saturating_add(timeout_ns));
        loop {
            // Packets that have arrived are taken first, a burst at a time: a port whose ring has packets does not
            // sleep.
            let packets = engine.turn_before_sleep();
            let queue = engine.queues.get(self.index);
            if queue.woken.swap(false, Ordering::Acquire) || !queue.is_empty() {
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
