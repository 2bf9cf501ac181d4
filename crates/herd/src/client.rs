//! The client's side.

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Device, InlineOperation, Message, Opcode, ProtectionDomain, QpConfig, QpState,
    QueuePair, RemoteMemory, ThreadDomain, Transport, VerbsError,
};
use sinew_mem::{AllocError, Arena};

use crate::hello::{Hello, Welcome};
use crate::layout::{ANSWER_HEAD_LEN, FOOT_LEN, Layout};
use crate::queue::{Outgoing, SendError, SendQueue};
use crate::slot::{self, Head};
use crate::{Cq, Domain, Qp, Thread};

/// Completions taken in one poll.
const BURST: usize = 32;
/// Receives beyond those for the outstanding answers; duplicate answers use some up.
const SPARE_RECEIVES: usize = 32;
/// Doublings of the time-out over further attempts, at most.
const DOUBLINGS_MAX: u32 = 6;
/// Checks for expired requests within one time-out.
const CHECKS_PER_TIMEOUT: u64 = 4;
/// [`ClientConfig::give_up_ns`] divided by this is the part of a pause between two polls that counts as silence, at
/// most.
const CHECKS_PER_GIVE_UP: u64 = 4;

/// Limits and time-outs of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The largest server layout that the client can work with; workers, window and lengths matter.
    pub layout: Layout,
    /// Longest request that is sent inline, in bytes, including the 16 bytes after its body.
    pub inline_max: usize,
    /// Time after which a request is retransmitted, in nanoseconds.
    pub timeout_ns: u64,
    /// Time after which a worker that answers nothing, while requests are outstanding, is given up, in nanoseconds. A
    /// pause between two polls counts as at most a quarter of this.
    pub give_up_ns: u64,
}

impl ClientConfig {
    /// Time-outs suitable for one host or one rack.
    pub fn new(layout: Layout) -> Self {
        Self { layout, inline_max: 256, timeout_ns: 5_000_000, give_up_ns: 5_000_000_000 }
    }
}

/// Reason why a client has become unusable. Requests without an answer may have been executed, at most once.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An error of the device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The server's layout is larger than this client was made for.
    #[error("the server has {theirs}; this client was made for {ours}: make it for at least as much")]
    Layout {
        /// Layout of the server.
        theirs: Layout,
        /// Layout that the client was configured for.
        ours: Layout,
    },
    /// The connection broke.
    #[error("the connection to the server broke: it is gone, or has dismissed this client; connect again")]
    Broken,
    /// A worker has stopped answering.
    #[error(
        "worker {worker} of the server has answered nothing for {silent_ns} ns: it is gone or stopped, or the fabric is cut"
    )]
    Silent {
        /// Index of the worker.
        worker: usize,
        /// Time without an answer, in nanoseconds.
        silent_ns: u64,
    },
    /// There is no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Reason why a request was not accepted. Nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A window of requests is in flight to this worker, or the send queue is full: poll.
    #[error("a full window of requests is in flight to the worker: poll for answers")]
    Full,
    /// The server has no such worker, only this many.
    #[error("the server has {0} workers")]
    NoWorker(usize),
    /// The request is too long.
    #[error("a request of {len} bytes is longer than {max}")]
    TooLong {
        /// Length of the body, in bytes.
        len: usize,
        /// Longest body, in bytes.
        max: usize,
    },
    /// The request was refused: clients of stores whose memory they READ and WRITE refuse one for a place outside it.
    /// (What the device refuses is found by [`Client::flush`], and reported by [`Client::poll`].)
    #[error("the device refused the request")]
    Refused,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Tag given with the request.
    pub tag: u64,
    /// Index of the worker that answered.
    pub worker: usize,
    /// A number of the service's choice.
    pub kind: u16,
    /// Body of the answer.
    pub body: &'a [u8],
    /// Time at which the request was made, in nanoseconds, as its maker gave it.
    pub asked_ns: u64,
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Requests answered.
    pub answered: u64,
    /// Retransmissions of requests.
    pub retried: u64,
    /// Answers to requests that had been answered already.
    pub late: u64,
    /// Datagrams that are not answers to this client.
    pub unexpected: u64,
}

/// Set in [`PendingRequest::awaited`], above the number of the request.
const AWAITED: u64 = 1 << 32;

/// A request in a slot, in flight or completed.
#[derive(Clone, Copy, Debug, Default)]
struct PendingRequest {
    /// End of the slot's image among the images of all workers.
    image_end: usize,
    tag: u64,
    asked_ns: u64,
    /// Time of the last attempt, in nanoseconds.
    sent_ns: u64,
    /// [`AWAITED`] with the number of the request, while its answer is awaited; otherwise 0.
    awaited: u64,
    /// Retransmissions.
    retries: u32,
}

impl PendingRequest {
    /// Number of its latest attempt, which a slot holds in a byte: 1 for the first, and 1 again after 255.
    fn attempt(&self) -> u8 {
        (self.retries % u32::from(u8::MAX)) as u8 + 1
    }
}

/// A request that the next flush writes: its bytes among the images, and their place in the server's memory.
#[derive(Clone, Copy, Debug)]
struct UnsentRequest {
    image: usize,
    len: usize,
    offset: u64,
}

/// The requests to one worker.
struct WorkerLane {
    /// Distance from a slot's image to the slot in the server's memory.
    distance: u64,
    /// By slot.
    pending: Vec<PendingRequest>,
    next: u32,
    in_flight: usize,
    /// Time at which the worker last answered, or was first asked after it owed nothing.
    last_answer_ns: u64,
}

/// A client of a [`crate::Server`]. It belongs to one thread.
pub struct Client<D: Device> {
    requests: SendQueue<Qp<D>>,
    answers: Qp<D>,
    cq: Cq<D>,
    _thread: Thread<D>,
    _arena: Arena,
    config: ClientConfig,
    layout: Layout,
    memory: RemoteMemory,
    token: u32,
    lanes: Vec<WorkerLane>,
    /// The encoded requests, by worker and slot.
    images: Vec<u8>,
    completions: Vec<Completion>,
    last_check_ns: u64,
    next_check_ns: u64,
    unsent: Vec<UnsentRequest>,
    /// Room of the send queue, as it was when requests last were started or completed.
    unsent_max: usize,
    broken: bool,
    stats: ClientStats,
}

/// A client that is not connected yet.
pub struct Joining<D: Device> {
    client: Client<D>,
}

impl<D: Device> Client<D> {
    /// Makes the queues of a client for the calling thread, and its introduction to the server.
    ///
    /// # Errors
    ///
    /// [`ClientError::Verbs`], [`ClientError::Alloc`].
    pub fn prepare(
        device: &D,
        domain: &<D as Device>::Domain,
        config: &ClientConfig,
    ) -> Result<(Joining<D>, Hello), ClientError> {
        let (layout, attributes) = (config.layout, device.attributes());
        let window = layout.workers * layout.window;
        let limit = attributes.queue_depth_max;
        let send_depth = (2 * window).max(64).min(limit);
        let receives = (window + SPARE_RECEIVES).min(limit);
        let slot_len = layout.slot_len();
        let receive_len = layout.response_len_max + ANSWER_HEAD_LEN;
        let inline_max = config.inline_max.min(attributes.inline_max);
        let thread = Domain::<D>::thread(domain)?;
        let staged = if slot_len > inline_max { send_depth } else { 1 };
        let bytes =
            SendQueue::<Qp<D>>::arena_bytes(staged, slot_len) + SendQueue::<Qp<D>>::arena_bytes(receives, receive_len);
        let arena = domain.arena(bytes.max(1 << 20))?;
        let cq = thread.completion_queue(send_depth + receives + 2)?;
        let uc = QpConfig { send_depth, receive_depth: 1, inline_max, ..QpConfig::new(Transport::Uc) };
        let requests = thread.queue_pair(&uc, &cq, &cq)?;
        let ud = QpConfig { send_depth: 1, receive_depth: receives, ..QpConfig::new(Transport::Ud) };
        let mut answers = thread.queue_pair(&ud, &cq, &cq)?;
        answers.connect(None)?;
        let hello = Hello { requests: requests.address(), answers: answers.address() };
        let mut client = Self {
            requests: SendQueue::new(requests, send_depth, inline_max, &arena, slot_len, 0),
            answers,
            cq,
            _thread: thread,
            config: *config,
            layout,
            memory: RemoteMemory { address: 0, rkey: 0, len: 0 },
            token: 0,
            lanes: Vec::new(),
            images: Vec::new(),
            completions: Vec::with_capacity(BURST),
            last_check_ns: 0,
            next_check_ns: 0,
            unsent: Vec::with_capacity(send_depth),
            unsent_max: send_depth,
            broken: false,
            stats: ClientStats::default(),
            _arena: arena.clone(),
        };
        for _ in 0..receives {
            let buffer = arena.alloc(receive_len, receive_len)?;
            client.answers.post_buffer(0, buffer).map_err(|_| ClientError::Broken)?;
        }
        Ok((Joining { client }, hello))
    }

    /// The server's layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Counters so far.
    pub fn stats(&self) -> &ClientStats {
        &self.stats
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.lanes.iter().map(|lane| lane.in_flight).sum()
    }

    /// Whether a request to the worker would be accepted. Requests to one worker use its slots in turn, so a late one
    /// holds up the one that is a window behind it.
    #[inline(always)]
    pub fn has_room(&self, worker: usize) -> bool {
        let Some(lane) = self.lanes.get(worker) else { return false };
        lane.pending[self.layout.slot_of(lane.next)].awaited == 0 && self.has_queue_room()
    }

    /// Whether a request can be made before the next completion.
    #[inline(always)]
    fn has_queue_room(&self) -> bool {
        self.unsent.len() < self.unsent_max
    }

    /// Accepts a request for a worker, to be started by the next [`Self::flush`]. `tag` comes back with the answer.
    ///
    /// # Errors
    ///
    /// [`RequestError`].
    #[inline(always)]
    pub fn request(
        &mut self,
        worker: usize,
        tag: u64,
        kind: u16,
        body: &[u8],
        now_ns: u64,
    ) -> Result<(), RequestError> {
        self.request_with(worker, tag, kind, body.len(), now_ns, |place| sinew_mem::copy_small(place, body))
    }

    /// As [`Self::request`], with a body of `len` bytes that is written by `fill`.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; `fill` was not called.
    #[inline(always)]
    pub fn request_with(
        &mut self,
        worker: usize,
        tag: u64,
        kind: u16,
        len: usize,
        now_ns: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), RequestError> {
        let max = self.layout.request_len_max;
        if len > max {
            return Err(RequestError::TooLong { len, max });
        }
        let (workers, has_queue_room) = (self.lanes.len(), self.has_queue_room());
        let Some(lane) = self.lanes.get_mut(worker) else { return Err(RequestError::NoWorker(workers)) };
        let sequence = lane.next;
        let pending = &mut lane.pending[self.layout.slot_of(sequence)];
        if pending.awaited != 0 || !has_queue_room {
            return Err(RequestError::Full);
        }
        let head = Head::new(self.token, kind, len as u16);
        let (end, start) = (pending.image_end, slot::start(pending.image_end, head));
        let image = &mut self.images[start..end];
        let (body, _) = image.split_at_mut(image.len() - FOOT_LEN);
        if let Some(last) = body.last_chunk_mut::<8>().filter(|_| !len.is_multiple_of(8)) {
            *last = [0; 8];
        }
        fill(&mut body[..len]);
        (pending.tag, pending.asked_ns, pending.sent_ns) = (tag, now_ns, now_ns);
        (pending.awaited, pending.retries) = (AWAITED | u64::from(sequence), 0);
        if lane.in_flight == 0 {
            lane.last_answer_ns = now_ns;
        }
        slot::seal(image, head, sequence, 1);
        lane.in_flight += 1;
        lane.next = sequence.wrapping_add(1);
        self.unsent.push(lane.unsent(start, end));
        Ok(())
    }

    /// Starts the requests made so far.
    #[inline(always)]
    pub fn flush(&mut self) {
        let Self { requests, unsent, images, memory, .. } = self;
        // Local copies, which need not be loaded again after each store to the server's memory.
        let (images, memory) = (&images[..], *memory);
        let write = |&UnsentRequest { image, len, offset }: &UnsentRequest| {
            // The slots lie in the memory: the welcome was checked for that.
            let remote = RemoteMemory { address: memory.address.wrapping_add(offset), len: len as u64, ..memory };
            (&images[image..][..len], remote)
        };
        let done = requests.qp.write_at_once(unsent.iter().map(write));
        let mut left = unsent[done.min(unsent.len())..].iter();
        while left.len() > 0 {
            let posted = requests.post_list(left.by_ref().map(write).map(|(bytes, remote)| Outgoing {
                bytes,
                operation: InlineOperation::Write(remote),
                immediate: None,
            }));
            // A device refuses requests once the connection is broken. One that found no memory is written again later.
            self.broken |= matches!(posted, Err(SendError::Post(_)));
        }
        unsent.clear();
        requests.ring();
        self.unsent_max = requests.room();
    }

    /// Passes the answers that have arrived to `take`, and retransmits requests that were not answered in time. Returns
    /// the number of answers. Never blocks.
    ///
    /// # Errors
    ///
    /// [`ClientError::Broken`], [`ClientError::Silent`], [`ClientError::Verbs`]; then connect again.
    #[inline]
    pub fn poll(&mut self, now_ns: u64, mut take: impl FnMut(Answer<'_>)) -> Result<usize, ClientError> {
        let mut count = 0;
        let Self { cq, answers, completions, lanes, token, stats, .. } = self;
        let (token, mut late, mut unexpected) = (*token, 0, 0);
        let polled = cq.poll_messages(answers, completions, BURST, |message| {
            match find_answered(lanes, token, message, now_ns) {
                Found::Answer(answer) => {
                    take(answer);
                    count += 1;
                }
                Found::Late => late += 1,
                Found::Unexpected => unexpected += 1,
            }
        });
        stats.answered += count as u64;
        stats.late += late;
        stats.unexpected += unexpected;
        self.broken |= polled.is_err();
        if !self.completions.is_empty() {
            self.process_completions();
        }
        if now_ns >= self.next_check_ns {
            self.check_timeouts(now_ns)?;
        }
        if self.broken { Err(ClientError::Broken) } else { Ok(count) }
    }

    /// Processes the completions of requests that were not written at once, and those of receives that failed.
    #[inline(never)]
    fn process_completions(&mut self) {
        for completion in self.completions.drain(..) {
            // A receive is here only if it failed.
            self.broken |= completion.opcode == Opcode::Receive || !completion.status.is_success();
            if completion.opcode != Opcode::Receive {
                self.requests.completed();
            }
        }
        self.unsent_max = self.requests.room();
    }

    /// Retransmits requests that were not answered in time.
    #[inline(never)]
    fn check_timeouts(&mut self, now_ns: u64) -> Result<(), ClientError> {
        // Answers that arrived during a long pause may not have been taken yet, so most of it does not count as silence
        // of a worker.
        let pause_ns =
            now_ns.saturating_sub(self.last_check_ns).saturating_sub(self.config.give_up_ns / CHECKS_PER_GIVE_UP);
        self.last_check_ns = now_ns;
        self.next_check_ns = now_ns.saturating_add(self.config.timeout_ns / CHECKS_PER_TIMEOUT);
        if self.requests.qp.state() == QpState::Error {
            self.broken = true;
        }
        for worker in 0..self.lanes.len() {
            let lane = &mut self.lanes[worker];
            lane.last_answer_ns = lane.last_answer_ns.saturating_add(pause_ns).min(now_ns);
            let silent_ns = now_ns.saturating_sub(lane.last_answer_ns);
            if lane.in_flight > 0 && silent_ns >= self.config.give_up_ns {
                return Err(ClientError::Silent { worker, silent_ns });
            }
            for slot in 0..self.layout.window {
                let pending = &mut self.lanes[worker].pending[slot];
                let timeout_ns = self.config.timeout_ns << pending.retries.min(DOUBLINGS_MAX);
                let is_due = pending.awaited != 0 && now_ns.saturating_sub(pending.sent_ns) >= timeout_ns;
                if !is_due || self.unsent.len() >= self.unsent_max {
                    continue;
                }
                pending.retries = pending.retries.saturating_add(1);
                pending.sent_ns = now_ns;
                self.stats.retried += 1;
                let PendingRequest { image_end: end, awaited, .. } = *pending;
                let head = slot::sealed_head(&self.images[..end]);
                let start = slot::start(end, head);
                slot::seal(&mut self.images[start..end], head, awaited as u32, pending.attempt());
                self.unsent.push(self.lanes[worker].unsent(start, end));
            }
        }
        self.flush();
        Ok(())
    }
}

/// What a datagram is.
enum Found<'a> {
    Answer(Answer<'a>),
    /// An answer to a request that was answered already.
    Late,
    /// No answer to this client.
    Unexpected,
}

/// Matches a datagram to the request that it answers, which is then complete.
#[inline(always)]
fn find_answered<'a>(lanes: &mut [WorkerLane], token: u32, message: Message<'a>, now_ns: u64) -> Found<'a> {
    let Some((head, body)) = message.bytes.split_first_chunk::<ANSWER_HEAD_LEN>() else { return Found::Unexpected };
    let head = u64::from_le_bytes(*head);
    let (sequence, worker, kind) = (head as u32, (head >> 32) as u16 as usize, (head >> 48) as u16);
    if message.immediate != Some(token) {
        return Found::Unexpected;
    }
    let Some(lane) = lanes.get_mut(worker) else { return Found::Unexpected };
    // The slots of a lane are a window, a power of two.
    let slot = sequence as usize & (lane.pending.len() - 1);
    let pending = &mut lane.pending[slot];
    if pending.awaited != AWAITED | u64::from(sequence) {
        return Found::Late;
    }
    pending.awaited = 0;
    lane.in_flight -= 1;
    lane.last_answer_ns = now_ns;
    Found::Answer(Answer { tag: pending.tag, worker, kind, body, asked_ns: pending.asked_ns })
}

impl WorkerLane {
    /// The request in the image from `start` to `end`.
    #[inline(always)]
    fn unsent(&self, start: usize, end: usize) -> UnsentRequest {
        UnsentRequest { image: start, len: end - start, offset: self.distance.wrapping_add(start as u64) }
    }
}

impl<D: Device> Joining<D> {
    /// Returns the client, once the server has welcomed it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Layout`], [`ClientError::Verbs`].
    pub fn join(self, welcome: &Welcome) -> Result<Client<D>, ClientError> {
        let mut client = self.client;
        let (theirs, ours) = (welcome.layout, client.config.layout);
        let fits = theirs.workers * theirs.window <= ours.workers * ours.window
            && theirs.slot_len() <= ours.slot_len()
            && theirs.response_len_max <= ours.response_len_max;
        if !fits {
            return Err(ClientError::Layout { theirs, ours });
        }
        client.requests.qp.connect(Some(&welcome.requests))?;
        client.layout = theirs;
        client.memory = welcome.memory;
        client.token = welcome.token;
        let slot_len = theirs.slot_len();
        let lane_len = theirs.window * slot_len;
        client.lanes = (0..theirs.workers)
            .map(|worker| WorkerLane {
                distance: (theirs.slot_end(worker, welcome.client as usize, 0) - slot_len) as u64
                    - (worker * lane_len) as u64,
                pending: (0..theirs.window)
                    .map(|slot| PendingRequest {
                        image_end: worker * lane_len + (slot + 1) * slot_len,
                        ..PendingRequest::default()
                    })
                    .collect(),
                next: 1,
                in_flight: 0,
                last_answer_ns: 0,
            })
            .collect();
        client.images = vec![0; theirs.workers * lane_len];
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: u32 = 7;
    const KIND: u16 = 3;
    const WINDOW: u32 = 4;
    const NOW_NS: u64 = 9;

    /// The lanes of an idle worker, and of one with a full window of requests in flight, whose numbers begin with
    /// `first`. Their tags are 0, 1 and so on.
    fn lanes(first: u32) -> [WorkerLane; 2] {
        [0, WINDOW].map(|in_flight| {
            let mut pending = vec![PendingRequest::default(); WINDOW as usize];
            for nth in 0..in_flight {
                let sequence = first.wrapping_add(nth);
                let awaited = AWAITED | u64::from(sequence);
                pending[(sequence % WINDOW) as usize] =
                    PendingRequest { tag: nth.into(), awaited, ..PendingRequest::default() };
            }
            let next = first.wrapping_add(in_flight);
            WorkerLane { distance: 0, pending, next, in_flight: in_flight as usize, last_answer_ns: 0 }
        })
    }

    /// The head of a worker's answer.
    fn head(worker: u16, sequence: u32) -> [u8; ANSWER_HEAD_LEN] {
        (u64::from(sequence) | u64::from(worker) << 32 | u64::from(KIND) << 48).to_le_bytes()
    }

    /// Has a worker answer the request of this number; returns the request's tag, or `None` if the answer is late.
    fn answer(lanes: &mut [WorkerLane], worker: u16, sequence: u32) -> Option<u64> {
        let bytes = [&head(worker, sequence)[..], b"body"].concat();
        let message = Message { bytes: &bytes, immediate: Some(TOKEN), from: None };
        match find_answered(lanes, TOKEN, message, NOW_NS) {
            Found::Answer(answer) => {
                assert_eq!((answer.worker, answer.kind, answer.body), (usize::from(worker), KIND, &b"body"[..]));
                Some(answer.tag)
            }
            Found::Late => None,
            Found::Unexpected => panic!("request {sequence} to worker {worker}"),
        }
    }

    #[test]
    fn an_answer_completes_the_request_of_its_number_and_no_other() {
        // Some windows have the number 0, and some have numbers on both sides of the end.
        for first in [0, 1, u32::MAX - 4, u32::MAX - 3, u32::MAX - 1, u32::MAX] {
            let mut lanes = lanes(first);
            for nth in [2, 0, 3, 1] {
                let (sequence, before) = (first.wrapping_add(nth), lanes[1].in_flight);
                // The other requests of the same slot have other numbers.
                for other in [sequence.wrapping_sub(WINDOW), sequence.wrapping_add(WINDOW)] {
                    assert_eq!(answer(&mut lanes, 1, other), None, "{other} instead of {sequence}");
                }
                assert_eq!(lanes[1].in_flight, before);
                assert_eq!(answer(&mut lanes, 1, sequence), Some(u64::from(nth)), "{sequence}");
                assert_eq!(answer(&mut lanes, 1, sequence), None, "{sequence} again");
                assert_eq!(lanes[1].in_flight, before - 1);
            }
            assert_eq!(lanes.each_ref().map(|lane| lane.in_flight), [0, 0]);
        }
    }

    #[test]
    fn a_slot_that_awaits_no_answer_takes_none() {
        let mut lanes = lanes(0);
        for sequence in [0, 1, WINDOW - 1, WINDOW, u32::MAX] {
            assert_eq!(answer(&mut lanes, 0, sequence), None, "{sequence}");
        }
        assert_eq!(lanes.each_ref().map(|lane| lane.in_flight), [0, WINDOW as usize]);
    }

    #[test]
    fn an_answer_is_a_sign_of_life_of_its_worker_alone() {
        let mut lanes = lanes(0);
        assert_eq!(answer(&mut lanes, 1, 0), Some(0));
        assert_eq!(lanes.each_ref().map(|lane| lane.last_answer_ns), [0, NOW_NS]);
    }

    #[test]
    fn what_is_no_answer_to_this_client_is_unexpected() {
        let mut lanes = lanes(0);
        let (ours, stranger) = (head(1, 0), head(2, 0));
        for (bytes, immediate) in [
            (&ours[..ANSWER_HEAD_LEN - 1], Some(TOKEN)),
            (&ours[..], None),
            (&ours[..], Some(TOKEN + 1)),
            (&stranger[..], Some(TOKEN)),
        ] {
            let found = find_answered(&mut lanes, TOKEN, Message { bytes, immediate, from: None }, NOW_NS);
            assert!(matches!(found, Found::Unexpected), "{bytes:?}, {immediate:?}");
        }
        assert_eq!(lanes[1].in_flight, WINDOW as usize);
        let shortest = Message { bytes: &ours, immediate: Some(TOKEN), from: None };
        let found = find_answered(&mut lanes, TOKEN, shortest, NOW_NS);
        assert!(matches!(found, Found::Answer(Answer { tag: 0, worker: 1, body: [], .. })));
    }
}
