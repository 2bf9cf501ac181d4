//! Handing commands and connections from one thread to another.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use sinew_fabric::{WakeTarget, Waker};
use sinew_mem::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use sinew_door::Stream;

/// Messages that can be queued for a thread.
const QUEUE_LEN: usize = 1024;

/// A message from one thread to another.
pub(super) enum Message {
    /// A connection for the receiver to hold.
    Connection(Stream),
    /// Requests for the receiver to answer.
    Requests(Batch),
    /// Answers to some of the receiver's requests.
    Answers(Batch),
    /// An empty batch, returned to its maker for reuse.
    Empty(Batch),
    /// Memory for connections is short: the receiver should close stalled ones.
    MakeRoom,
}

impl Message {
    /// Bytes of clients' data that the message holds, or has room for.
    pub fn len(&self) -> usize {
        match self {
            Self::Requests(batch) => batch.requests.len(),
            Self::Answers(batch) => batch.answers.len(),
            Self::Empty(batch) => batch.memory_held(),
            Self::Connection(_) | Self::MakeRoom => 0,
        }
    }
}

/// Requests, or the answers to them in the same order. A batch travels there and back, so that its memory is reused.
#[derive(Default)]
pub(super) struct Batch {
    /// The thread that made it.
    pub from: usize,
    pub entries: Vec<Entry>,
    /// The requests of all entries, one after another; likewise the answers.
    pub requests: Vec<u8>,
    pub answers: Vec<u8>,
}

/// Batches kept for reuse.
pub(super) struct BatchPool {
    batches: Vec<Batch>,
    len_kept: usize,
    kept_max: usize,
    /// Smallest number of batches here since the last trim.
    len_min: usize,
}

impl Batch {
    fn memory_held(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.requests.capacity() + self.answers.capacity()
    }
}

impl BatchPool {
    /// Keeps up to `kept_max` bytes.
    pub fn new(kept_max: usize) -> Self {
        Self { batches: Vec::new(), len_kept: 0, kept_max, len_min: 0 }
    }

    /// Bytes of the batches kept.
    pub fn len_kept(&self) -> usize {
        self.len_kept
    }

    /// Frees the batches that have not been needed since the last call.
    pub fn trim(&mut self) {
        for batch in self.batches.drain(..self.len_min.min(self.batches.len())) {
            self.len_kept -= batch.memory_held();
        }
        self.len_min = self.batches.len();
    }

    /// Takes an empty batch for thread `from`.
    pub fn take(&mut self, from: usize) -> Batch {
        let batch = self.batches.pop().unwrap_or_default();
        self.len_min = self.len_min.min(self.batches.len());
        self.len_kept -= batch.memory_held();
        Batch { from, ..batch }
    }

    /// Gives a batch back, which is kept if there is room.
    pub fn give(&mut self, mut batch: Batch) {
        let len_kept = self.len_kept + batch.memory_held();
        if len_kept <= self.kept_max {
            self.len_kept = len_kept;
            batch.entries.clear();
            batch.requests.clear();
            batch.answers.clear();
            self.batches.push(batch);
        }
    }
}

/// One request, or its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub connection: usize,
    /// Tells the connection from a later one at the same index.
    pub generation: u64,
    /// Number of the answer on its connection.
    pub number: u64,
    pub len: usize,
    pub answer_parts: AnswerParts,
    /// The thread that owns the key.
    pub owner: usize,
    /// In an answer: length of its request, in bytes.
    pub request_len: usize,
    /// Bytes that the connection has reserved for a long answer.
    pub answer_room: usize,
    /// If not 0, the request was not answered, and stands in place of the answer: the answer needs room for this many
    /// bytes.
    pub answer_room_needed: usize,
}

/// The wanted part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerParts {
    All,
    /// The answer to one key of a list, without its `END`.
    WithoutEnd,
    /// Nothing; the request need only be executed.
    Nothing,
}

/// The sending end of a thread's messages.
#[derive(Clone)]
pub(super) struct Mailbox {
    sender: SyncSender<Message>,
    alarm: Arc<Alarm>,
}

/// Wakes a sleeping thread.
struct Alarm {
    waker: mio::Waker,
    asleep: AtomicBool,
    /// Bytes of messages that the thread has not taken yet.
    unread: AtomicUsize,
}

impl WakeTarget for Alarm {
    fn wake(&self) {
        // It fails only if there is nobody to wake.
        let _ = self.waker.wake();
    }
}

/// The receiving end of a thread's messages.
pub(super) struct Inbox {
    receiver: Receiver<Message>,
    alarm: Arc<Alarm>,
    /// A message that was already received.
    first: Option<Message>,
}

/// Returns a mailbox and its inbox; `waker` ends the wait of the inbox's owner.
pub(super) fn mailbox(waker: mio::Waker) -> (Mailbox, Inbox) {
    let (sender, receiver) = sync_channel(QUEUE_LEN);
    let alarm = Arc::new(Alarm { waker, asleep: AtomicBool::new(false), unread: AtomicUsize::new(0) });
    (Mailbox { sender, alarm: Arc::clone(&alarm) }, Inbox { receiver, alarm, first: None })
}

impl Mailbox {
    /// Bytes of messages that the thread has not taken yet.
    pub fn unread(&self) -> usize {
        self.alarm.unread.load(Ordering::Relaxed)
    }

    /// Sends a message, or returns it if the queue is full. A message to a thread that has ended is dropped.
    pub fn send(&self, message: Message) -> Result<(), Message> {
        let len = message.len();
        // An empty batch wakes nobody.
        let wakes_nobody = matches!(message, Message::Empty(_));
        // Only a measure: nothing else is published with it.
        self.alarm.unread.fetch_add(len, Ordering::Relaxed);
        match self.sender.try_send(message) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(message)) => {
                self.alarm.unread.fetch_sub(len, Ordering::Relaxed);
                return Err(message);
            }
        }
        if wakes_nobody {
            return Ok(());
        }
        // Partner: the fence of `begin_sleep`. Either it sees the message, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.alarm.asleep.swap(false, Ordering::SeqCst) {
            self.alarm.wake();
        }
        Ok(())
    }
}

impl Inbox {
    /// Returns the next message, if there is one.
    pub fn take(&mut self) -> Option<Message> {
        let message = self.first.take().or_else(|| self.receiver.try_recv().ok())?;
        self.alarm.unread.fetch_sub(message.len(), Ordering::Relaxed);
        Some(message)
    }

    /// Whether there is a message, as far as this thread knows.
    pub fn has_messages(&mut self) -> bool {
        if self.first.is_none() {
            self.first = self.receiver.try_recv().ok();
        }
        self.first.is_some()
    }

    /// Announces that this thread is about to sleep and must be woken; returns whether there is a message already.
    pub fn begin_sleep(&mut self) -> bool {
        self.alarm.asleep.store(true, Ordering::SeqCst);
        // Partner: the fence of `send`.
        fence(Ordering::SeqCst);
        self.has_messages()
    }

    /// A waker that ends a wait.
    pub fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.alarm) as _)
    }

    /// Announces that this thread is awake and need not be woken.
    pub fn end_sleep(&self) {
        self.alarm.asleep.store(false, Ordering::Relaxed);
    }
}
