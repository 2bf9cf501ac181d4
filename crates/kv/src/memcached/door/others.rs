//! Commands for keys that other threads own, and commands of other threads for keys that this one owns.

use std::collections::VecDeque;

use sinew_store::cache::Cache;

use super::super::connection::{Connection, LONG, Want};
use super::super::hand_over::{Batch, Entry, Mailbox, Message, Wants};
use super::super::protocol::{HandOver, Session};
use super::Door;

/// Requests handed over in one batch.
const BATCH_LEN: usize = 1024;
/// The connection memory divided by this, or `UNREAD_MAX`, limits the bytes that may wait unread at another thread:
/// above that it gets no further answers.
const UNREAD_PART: usize = 16;
const UNREAD_MAX: usize = 16 << 20;
/// The connection memory divided by this bounds the bytes of long values on their way to other threads; one value is
/// always allowed.
const ASKED_PART: usize = 16;

/// Longest buffer that stays with its batch, in bytes; longer ones go to the pool.
const KEPT_LEN_MAX: usize = 6 * LONG;
/// Most bytes of an answer besides its value.
const ANSWER_HEAD_LEN: usize = 1024;

/// Another thread.
pub(super) struct Other {
    pub mailbox: Mailbox,
    /// The batch being filled.
    requests: Batch,
    /// Messages for which the mailbox had no room.
    pub unsent: VecDeque<Message>,
    /// Bytes of long values that were handed over and have not been answered.
    asked: usize,
}

/// A batch of another thread's requests, partly answered.
pub(super) struct Requests {
    batch: Batch,
    /// Index of the next request, and its offset in the batch.
    next: usize,
    at: usize,
}

impl Other {
    pub fn new(mailbox: Mailbox, from: usize) -> Self {
        Self { mailbox, requests: Batch { from, ..Batch::default() }, unsent: VecDeque::new(), asked: 0 }
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

impl Door {
    /// Whether so much is on its way to other threads that a request of `len` bytes has to wait.
    pub(super) fn has_asked_much(&self, len: usize) -> bool {
        let asked: usize = self.others.iter().map(|other| other.asked).sum();
        len > LONG && asked > 0 && asked + len > self.service.shared.budget.max() / ASKED_PART
    }

    /// Hands a request over: `given`, or [`Service::request`](super::super::protocol::Service::request) if `given` is
    /// empty.
    pub(super) fn ask(&mut self, index: usize, connection: &mut Connection, whom: HandOver, given: &[u8]) {
        let threads = self.others.len();
        let mine = self.service.partition;
        let (range, wants) = match whom {
            HandOver::To(owner) => (owner..owner + 1, Wants::All),
            HandOver::KeyTo(owner) => (owner..owner + 1, Wants::WithoutEnd),
            HandOver::ToOthers => (0..threads, Wants::Nothing),
        };
        let request = if given.is_empty() { &self.service.request[..] } else { given };
        let len = request.len();
        let others = range.clone().filter(|other| *other != mine).count();
        let number = connection.ask(others, len);
        self.service.count().handed_over.add(others as u64);
        for owner in range.filter(|other| *other != mine) {
            let entry = Entry {
                connection: index,
                generation: connection.generation,
                number,
                len,
                wants,
                owner,
                asked_len: 0,
                room: 0,
                needs: 0,
            };
            let request = if given.is_empty() { &self.service.request[..] } else { given };
            let other = &mut self.others[owner];
            let requests = &mut other.requests.requests;
            if len > LONG && requests.capacity() - requests.len() < len {
                let mut longer = self.pool.take_short(requests.len() + len);
                longer.extend_from_slice(requests);
                self.pool.give(std::mem::replace(requests, longer));
            }
            requests.extend_from_slice(request);
            other.requests.entries.push(entry);
            if len > LONG {
                other.asked += len;
            }
            if len > LONG || other.requests.entries.len() >= BATCH_LEN {
                self.send_to(owner);
            }
        }
    }

    /// Hands a request over again, in a batch of its own, with a buffer for the answer.
    pub(super) fn ask_again(&mut self, entry: Entry, room: usize, request: &[u8]) {
        self.send_to(entry.owner);
        let requests = &mut self.others[entry.owner].requests;
        requests.answers = self.pool.take_short(room + ANSWER_HEAD_LEN);
        requests.requests.extend_from_slice(request);
        requests.entries.push(Entry { len: request.len(), room, needs: 0, ..entry });
        self.send_to(entry.owner);
    }

    /// Sends another thread the current batch and all unsent messages.
    pub(super) fn send_to(&mut self, other: usize) {
        if !self.others[other].requests.entries.is_empty() {
            let fresh = self.batches.take(self.service.partition);
            let other = &mut self.others[other];
            let requests = std::mem::replace(&mut other.requests, fresh);
            other.unsent.push_back(Message::Requests(requests));
        }
        let other = &mut self.others[other];
        while let Some(message) = other.unsent.pop_front() {
            if let Err(message) = other.mailbox.send(message) {
                other.unsent.push_front(message);
                break;
            }
        }
    }

    pub(super) fn take_message(&mut self, message: Message) {
        match message {
            Message::Connection(stream) => self.hold(stream),
            Message::Requests(batch) => self.requests.push_back(Requests { batch, next: 0, at: 0 }),
            Message::Answers(mut batch) => {
                let is_alone = batch.entries.len() == 1 && batch.answers.len() > LONG;
                let mut at = 0;
                let entries = std::mem::take(&mut batch.entries);
                for entry in &entries {
                    let answer = at..at + entry.len;
                    at += entry.len;
                    if is_alone {
                        self.take_answer(entry, Answer::Whole(std::mem::take(&mut batch.answers)));
                    } else {
                        self.take_answer(entry, Answer::Part(&batch.answers[answer]));
                    }
                }
                batch.entries = entries;
                if batch.from == self.service.partition {
                    return self.keep(batch);
                }
                let unread_max = self.unread_max();
                let maker = &mut self.others[batch.from];
                let empty = Message::Empty(batch);
                // An empty batch wakes nobody, and must not take up the room that answers need.
                if maker.mailbox.unread() + empty.len() <= unread_max / 2 {
                    maker.unsent.push_back(empty);
                }
            }
            Message::Empty(batch) => self.keep(batch),
            Message::MakeRoom => self.shed(),
        }
    }

    /// Keeps a batch for reuse, except for buffers that a long value has made long.
    fn keep(&mut self, mut batch: Batch) {
        for buffer in [&mut batch.requests, &mut batch.answers] {
            if buffer.capacity() > KEPT_LEN_MAX {
                self.pool.give(std::mem::take(buffer));
            }
        }
        self.batches.give(batch);
    }

    fn unread_max(&self) -> usize {
        UNREAD_MAX.min(self.service.shared.budget.max() / UNREAD_PART)
    }

    fn take_answer(&mut self, entry: &Entry, answer: Answer<'_>) {
        let other = &mut self.others[entry.owner];
        if entry.asked_len > LONG {
            other.asked = other.asked.saturating_sub(entry.asked_len);
        }
        let index = entry.connection;
        let is_its = |connection: &mut Box<Connection>| connection.generation == entry.generation;
        let Some(mut connection) = self.connections.get_mut(index).and_then(|it| it.take_if(is_its)) else { return };
        match answer {
            Answer::Part(request) if entry.needs > 0 => {
                let mut kept = self.pool.take_short(request.len());
                kept.extend_from_slice(request);
                self.want(index, &mut connection, Want::Others(entry.needs, *entry, kept));
            }
            answer => {
                match answer {
                    Answer::Whole(answer) => connection.answered_whole(entry.number, answer, &mut self.pool),
                    Answer::Part(answer) => connection.answered(entry.number, answer, &mut self.pool),
                }
                if entry.room > 0 {
                    connection.others_room = 0;
                    self.feed_or_queue(index, &mut connection);
                }
            }
        }
        self.count(&mut connection);
        self.connections[index] = Some(connection);
        self.enqueue(index);
    }

    /// Answers the requests of other threads, as far as they accept the answers; returns whether there were any.
    pub(super) fn answer_others(&mut self, cache: &mut Cache, now_s: u32) -> bool {
        let mut found = false;
        let unread_max = self.unread_max();
        while let Some(mut requests) = self.requests.pop_front() {
            let to = requests.batch.from;
            if self.others[to].has_unsent() || self.others[to].mailbox.unread() > unread_max {
                self.requests.push_front(requests);
                break;
            }
            found = true;
            let answered = self.answer_some(&mut requests, cache, now_s);
            let Requests { batch, next, .. } = &mut requests;
            if *next < batch.entries.len() {
                let mut some = self.batches.take(self.service.partition);
                some.entries.extend_from_slice(&batch.entries[answered..*next]);
                std::mem::swap(&mut some.answers, &mut batch.answers);
                self.requests.push_front(requests);
                self.others[to].unsent.push_back(Message::Answers(some));
            } else {
                batch.entries.drain(..answered);
                self.others[to].unsent.push_back(Message::Answers(requests.batch));
            }
            self.service.publish(cache);
            self.send_to(to);
        }
        found
    }

    /// Answers requests of a batch, up to a long answer, which is sent alone. Returns the index of the first.
    fn answer_some(&mut self, requests: &mut Requests, cache: &mut Cache, now_s: u32) -> usize {
        let Requests { batch, next, at } = requests;
        let first = *next;
        let limit = self.service.limits.answer_len_max;
        while let Some(entry) = batch.entries.get_mut(*next)
            && batch.answers.len() < self.service.limits.out_len_max
        {
            if entry.room > limit {
                if *next > first {
                    break;
                }
                self.service.limits.answer_len_max = entry.room;
            }
            let request = &batch.requests[*at..*at + entry.len];
            let start = batch.answers.len();
            let without_end = entry.wants == Wants::WithoutEnd;
            let answered = Session::answer(&mut self.service, cache, now_s, request, without_end, &mut batch.answers);
            self.service.limits.answer_len_max = limit;
            if entry.wants == Wants::Nothing {
                batch.answers.truncate(start);
            }
            entry.needs = 0;
            if let Err(needs) = answered {
                batch.answers.truncate(start);
                batch.answers.extend_from_slice(request);
                entry.needs = needs;
            }
            *next += 1;
            *at += entry.len;
            entry.asked_len = entry.len;
            entry.len = batch.answers.len() - start;
            if entry.len > LONG {
                break;
            }
        }
        first
    }
}

/// An answer from another thread.
enum Answer<'a> {
    Part(&'a [u8]),
    /// In a buffer of its own.
    Whole(Vec<u8>),
}
