//! Commands and connections that one thread hands to another.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use sinew_fabric::{WakeTarget, Waker};
use sinew_mem::atomic::{AtomicBool, Ordering, fence};

use super::listener::Stream;

/// Messages that can wait for a thread.
const QUEUE_LEN: usize = 1024;

/// What threads tell each other.
pub(super) enum Message {
    /// A connection that the receiver is to hold.
    Connection(Stream),
    /// Requests that the receiver is to answer.
    Requests(Batch),
    /// The answers to the receiver's requests.
    Answers(Batch),
}

/// Requests, or the answers to them in the same order. It goes there and back, with its memory.
#[derive(Default)]
pub(super) struct Batch {
    /// Who asks.
    pub from: usize,
    pub entries: Vec<Entry>,
    /// Those of each entry, one after the other.
    pub bytes: Vec<u8>,
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
    let alarm = Arc::new(Alarm { waker, asleep: AtomicBool::new(false) });
    (Mailbox { sender, alarm: Arc::clone(&alarm) }, Inbox { receiver, alarm, first: None })
}

impl Mailbox {
    /// Gives the message back when there is no room for it now. A message to a thread that is gone is lost.
    pub fn send(&self, message: Message) -> Result<(), Message> {
        match self.sender.try_send(message) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(message)) => return Err(message),
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
        self.first.take().or_else(|| self.receiver.try_recv().ok())
    }

    /// Says that from now on this thread has to be woken; returns whether there is a message nevertheless.
    pub fn go_to_sleep(&mut self) -> bool {
        self.alarm.asleep.store(true, Ordering::SeqCst);
        // Partner: the fence of `send`.
        fence(Ordering::SeqCst);
        if self.first.is_none() {
            self.first = self.receiver.try_recv().ok();
        }
        self.first.is_some()
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
