//! The sending of a worker's answers.

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Device, PostError, ProtectionDomain, QpConfig, QpState, QueuePair, ThreadDomain,
    Transport, VerbsError,
};

use crate::queue::{Outgoing, SendError, SendQueue};
use crate::stats::WorkerStats;
use crate::{Cq, Domain, Qp, Thread};

/// Depth of a response queue pair.
const DEPTH: usize = 256;
/// Completions taken in one poll.
const BURST: usize = 32;
/// Room, in answers, at or below which completions are taken at once.
const ROOM_LOW: usize = 64;

/// Several UD queue pairs that are used in turn, and their completion queue.
pub(crate) struct Outbox<D: Device> {
    queues: Vec<SendQueue<Qp<D>>>,
    /// Index of the queue pair in use.
    current: usize,
    /// Whether it has been used since it was chosen.
    is_used: bool,
    cq: Cq<D>,
    completions: Vec<Completion>,
}

impl<D: Device> Outbox<D> {
    pub fn new(
        device: &D,
        domain: &Domain<D>,
        thread: &Thread<D>,
        queue_pairs: usize,
        inline_max: usize,
        len_max: usize,
    ) -> Result<Self, VerbsError> {
        let attributes = device.attributes();
        let depth = DEPTH.min(attributes.queue_depth_max);
        let inline_max = inline_max.min(attributes.inline_max);
        let config = QpConfig { send_depth: depth, receive_depth: 1, inline_max, ..QpConfig::new(Transport::Ud) };
        let cq = thread.completion_queue(queue_pairs * (depth + 1))?;
        let staged = if len_max > inline_max { queue_pairs * depth } else { 1 };
        let arena = domain.arena(SendQueue::<Qp<D>>::arena_bytes(staged, len_max).max(1 << 20))?;
        let queues = (0..queue_pairs)
            .map(|index| {
                let mut qp = thread.queue_pair(&config, &cq, &cq)?;
                qp.connect(None)?;
                Ok(SendQueue::new(qp, depth, inline_max, &arena, len_max, index as u64))
            })
            .collect::<Result<Vec<_>, VerbsError>>()?;
        Ok(Self { queues, current: 0, is_used: false, cq, completions: Vec::with_capacity(BURST) })
    }

    /// Answers that can be pushed before the next [`Self::ring_doorbell`].
    #[inline(always)]
    pub fn room(&mut self, stats: &mut WorkerStats) -> usize {
        let room = self.queues[self.current].room();
        if room > ROOM_LOW {
            return room;
        }
        self.process_completions(stats);
        self.queues[self.current].room()
    }

    /// Takes completions. Call it now and then even without need for room: a device may have other work to do when it
    /// is polled, such as noticing peers that came and went.
    #[inline(never)]
    pub fn process_completions(&mut self, stats: &mut WorkerStats) {
        self.cq.poll(&mut self.completions, BURST);
        for completion in self.completions.drain(..) {
            let Some(queue) = self.queues.get_mut(completion.id as usize) else { continue };
            if completion.status.is_success() {
                queue.completed();
            } else {
                stats.failed_sends += 1;
                restart(queue);
            }
        }
    }

    /// Pushes an answer.
    #[inline(always)]
    pub fn push(&mut self, answer: Outgoing<'_>) -> Result<(), SendError> {
        self.with_current(|queue| queue.push(answer))
    }

    /// Posts answers with one doorbell; see [`SendQueue::post_list`].
    #[inline(always)]
    pub fn post<'a>(&mut self, answers: impl IntoIterator<Item = Outgoing<'a>>) -> Result<(), SendError> {
        self.with_current(|queue| queue.post_list(answers))
    }

    #[inline(always)]
    fn with_current(
        &mut self,
        send: impl FnOnce(&mut SendQueue<Qp<D>>) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let queue = &mut self.queues[self.current];
        let sent = send(queue);
        if let Err(SendError::Post(PostError::State(_))) = sent {
            restart(queue);
        }
        self.is_used |= sent.is_ok();
        sent
    }

    /// Starts the answers pushed so far. With `next`, later answers go to the next queue pair (atc16 4.1,
    /// "multi-queue").
    #[inline(always)]
    pub fn ring_doorbell(&mut self, next: bool, stats: &mut WorkerStats) {
        if !std::mem::take(&mut self.is_used) {
            return;
        }
        self.queues[self.current].ring();
        stats.doorbells += 1;
        if next {
            self.current = if self.current + 1 == self.queues.len() { 0 } else { self.current + 1 };
        }
    }
}

/// Restarts a failed queue pair. Answers in flight on it are lost, and the clients will retransmit.
#[cold]
fn restart<Q: QueuePair>(queue: &mut SendQueue<Q>) {
    if queue.qp.state() == QpState::Error && queue.qp.modify(QpState::Reset, None).is_ok() {
        // A queue pair that cannot be connected stays as it is, and every answer pushed to it counts as unsent.
        let _ = queue.qp.connect(None);
        queue.restart();
    }
}
