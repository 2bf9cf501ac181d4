//! Commands and connections that one thread hands to another.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use sinew_fabric::{WakeTarget, Waker};
use sinew_mem::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use sinew_door::Stream;

/// Messages that can wait for a thread.
const QUEUE_LEN: usize = 1024;

/// What threads tell each other.
pub(super) enum Message {
    /// A connection that the receiver is to hold.
    Connection(Stream),
    /// Requests that the receiver is to answer.
    Requests(Batch),
    /// The answers to some of the receiver's requests.
    Answers(Batch),
    /// What the receiver made, for it to use again.
    Empty(Batch),
    /// There is no memory for connections: the receiver is to close some that do not move.
    MakeRoom,
}

impl Message {
    /// Bytes of clients' that it holds, or could.
    pub fn len(&self) -> usize {
        match self {
            Self::Requests(batch) => batch.requests.len(),
            Self::Answers(batch) => batch.answers.len(),
            Self::Empty(batch) => batch.kept(),
            Self::Connection(_) | Self::MakeRoom => 0,
        }
    }
}

/// Requests, or the answers to them in the same order. It goes there and back, with its memory.
#[derive(Default)]
pub(super) struct Batch {
    /// Who made it.
    pub from: usize,
    pub entries: Vec<Entry>,
    /// Those of each entry, one after the other.
    pub requests: Vec<u8>,
    pub answers: Vec<u8>,
}

/// Batches that were used, and will be again.
pub(super) struct Batches {
    batches: Vec<Batch>,
    kept: usize,
    kept_max: usize,
    /// The fewest there were lately.
    fewest: usize,
}

impl Batch {
    fn kept(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.requests.capacity() + self.answers.capacity()
    }
}

impl Batches {
    /// Keeps up to so many bytes.
    pub fn new(kept_max: usize) -> Self {
        Self { batches: Vec::new(), kept: 0, kept_max, fewest: 0 }
    }

    /// Bytes of those that nobody has.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Frees those that nobody has wanted since it was called last.
    pub fn trim(&mut self) {
        for batch in self.batches.drain(..self.fewest.min(self.batches.len())) {
            self.kept -= batch.kept();
        }
        self.fewest = self.batches.len();
    }

    /// An empty one, of this thread's.
    pub fn take(&mut self, from: usize) -> Batch {
        let batch = self.batches.pop().unwrap_or_default();
        self.fewest = self.fewest.min(self.batches.len());
        self.kept -= batch.kept();
        Batch { from, ..batch }
    }

    /// Keeps one that is done with, if there is room for it.
    pub fn give(&mut self, mut batch: Batch) {
        let kept = self.kept + batch.kept();
        if kept <= self.kept_max {
            self.kept = kept;
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
    /// Another connection may have its number by the time of the answer.
    pub generation: u64,
    /// Which of the connection's answers it is.
    pub number: u64,
    pub len: usize,
    pub wants: Wants,
    /// Who is to answer it.
    pub owner: usize,
    /// Of an answer: bytes of its request.
    pub asked_len: usize,
    /// Bytes that the connection has taken room for, for a long answer.
    pub room: usize,
    /// It was not answered: the answer needs room for so many bytes. What stands in its place is the request.
    pub needs: usize,
}

/// What of an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    All,
    /// That to one key of a list.
    WithoutEnd,
    /// Only that it was done.
    Nothing,
}

/// Where messages for a thread are put.
#[derive(Clone)]
pub(super) struct Mailbox {
    sender: SyncSender<Message>,
    alarm: Arc<Alarm>,
}

/// Wakes a thread that sleeps.
struct Alarm {
    waker: mio::Waker,
    asleep: AtomicBool,
    /// Bytes of messages that it has not taken.
    unread: AtomicUsize,
}

impl WakeTarget for Alarm {
    fn wake(&self) {
        // It fails only where it would have nobody to wake.
        let _ = self.waker.wake();
    }
}

/// The messages for a thread.
pub(super) struct Inbox {
    receiver: Receiver<Message>,
    alarm: Arc<Alarm>,
    /// Taken out already.
    first: Option<Message>,
}

/// A mailbox and its inbox; `waker` ends the wait of the one who has the latter.
pub(super) fn mailbox(waker: mio::Waker) -> (Mailbox, Inbox) {
    let (sender, receiver) = sync_channel(QUEUE_LEN);
    let alarm = Arc::new(Alarm { waker, asleep: AtomicBool::new(false), unread: AtomicUsize::new(0) });
    (Mailbox { sender, alarm: Arc::clone(&alarm) }, Inbox { receiver, alarm, first: None })
}

impl Mailbox {
    /// Bytes of messages that the thread has not taken.
    pub fn unread(&self) -> usize {
        self.alarm.unread.load(Ordering::Relaxed)
    }

    /// Gives the message back when there is no room for it now. A message to a thread that is gone is lost.
    pub fn send(&self, message: Message) -> Result<(), Message> {
        let len = message.len();
        // Nobody is woken for it.
        let is_of_use_only = matches!(message, Message::Empty(_));
        // Only a measure: nothing else is published with it.
        self.alarm.unread.fetch_add(len, Ordering::Relaxed);
        match self.sender.try_send(message) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(message)) => {
                self.alarm.unread.fetch_sub(len, Ordering::Relaxed);
                return Err(message);
            }
        }
        if is_of_use_only {
            return Ok(());
        }
        // Partner: the fence of `go_to_sleep`. Either it sees the message, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.alarm.asleep.swap(false, Ordering::SeqCst) {
            self.alarm.wake();
        }
        Ok(())
    }
}

impl Inbox {
    /// The next message, if there is one.
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

    /// Says that from now on this thread has to be woken; returns whether there is a message nevertheless.
    pub fn go_to_sleep(&mut self) -> bool {
        self.alarm.asleep.store(true, Ordering::SeqCst);
        // Partner: the fence of `send`.
        fence(Ordering::SeqCst);
        self.has_messages()
    }

    /// What ends a wait.
    pub fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.alarm) as _)
    }

    /// Says that it need not be woken.
    pub fn be_awake(&self) {
        self.alarm.asleep.store(false, Ordering::Relaxed);
    }
}
