//! Commands for keys that other threads own, and commands of other threads for keys that this one owns.

use std::collections::VecDeque;

use sinew_store::cache::Cache;

use super::super::connection::{Connection, LARGE_LEN, MemoryNeed};
use super::super::hand_over::{AnswerParts, Batch, Entry, Mailbox, Message};
use super::super::protocol::{HandOverTarget, Session};
use super::Door;

/// Requests handed over in one batch.
const BATCH_LEN: usize = 1024;
/// The connection memory divided by this, or `UNREAD_MAX`, limits the bytes that may wait unread at another thread:
/// above that it gets no further answers.
const UNREAD_SHARE: usize = 16;
const UNREAD_MAX: usize = 16 << 20;
/// The connection memory divided by this bounds the bytes of long values on their way to other threads; one value is
/// always allowed.
const LARGE_REQUESTS_SHARE: usize = 16;

/// Longest buffer that stays with its batch, in bytes; longer ones go to the pool.
const KEPT_LEN_MAX: usize = 6 * LARGE_LEN;
/// Most bytes of an answer besides its value.
const ANSWER_HEAD_LEN: usize = 1024;

/// Another thread.
pub(super) struct PeerThread {
    pub mailbox: Mailbox,
    /// The batch being filled.
    requests: Batch,
    /// Messages for which the mailbox had no room.
    pub unsent: VecDeque<Message>,
    /// Bytes of long values that were handed over and have not been answered.
    large_requests_len: usize,
}

/// A batch of another thread's requests, partly answered.
pub(super) struct BatchProgress {
    batch: Batch,
    /// Index of the next request, and its offset in the batch.
    next: usize,
    offset: usize,
}

impl PeerThread {
    pub fn new(mailbox: Mailbox, from: usize) -> Self {
        Self { mailbox, requests: Batch { from, ..Batch::default() }, unsent: VecDeque::new(), large_requests_len: 0 }
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

impl Door {
    /// Whether a request of `len` bytes has to wait, because too much data is on its way to other threads.
    pub(super) fn is_over_request_share(&self, len: usize) -> bool {
        let asked: usize = self.peers.iter().map(|other| other.large_requests_len).sum();
        len > LARGE_LEN && asked > 0 && asked + len > self.service.shared.budget.max() / LARGE_REQUESTS_SHARE
    }

    /// Hands a request over: `request_bytes`, or [`Service::request`](super::super::protocol::Service::request) if
    /// `given` is empty.
    pub(super) fn send_remote(
        &mut self,
        index: usize,
        connection: &mut Connection,
        target: HandOverTarget,
        request_bytes: &[u8],
    ) {
        let threads = self.peers.len();
        let own = self.service.partition;
        let (range, answer_parts) = match target {
            HandOverTarget::Owner(owner) => (owner..owner + 1, AnswerParts::All),
            HandOverTarget::KeyOwner(owner) => (owner..owner + 1, AnswerParts::WithoutEnd),
            HandOverTarget::AllOthers => (0..threads, AnswerParts::Nothing),
        };
        let request = if request_bytes.is_empty() { &self.service.request[..] } else { request_bytes };
        let len = request.len();
        let threads = range.clone().filter(|other| *other != own).count();
        let number = connection.begin_remote(threads, len);
        self.service.count().handed_over.add(threads as u64);
        for owner in range.filter(|other| *other != own) {
            let entry = Entry {
                connection: index,
                generation: connection.generation,
                number,
                len,
                answer_parts,
                owner,
                request_len: 0,
                answer_room: 0,
                answer_room_needed: 0,
            };
            let request = if request_bytes.is_empty() { &self.service.request[..] } else { request_bytes };
            let other = &mut self.peers[owner];
            let requests = &mut other.requests.requests;
            if len > LARGE_LEN && requests.capacity() - requests.len() < len {
                let mut longer = self.pool.take_short(requests.len() + len);
                longer.extend_from_slice(requests);
                self.pool.put_back(std::mem::replace(requests, longer));
            }
            requests.extend_from_slice(request);
            other.requests.entries.push(entry);
            if len > LARGE_LEN {
                other.large_requests_len += len;
            }
            if len > LARGE_LEN || other.requests.entries.len() >= BATCH_LEN {
                self.flush_to(owner);
            }
        }
    }

    /// Hands a request over again, in a batch of its own, with a buffer for the answer.
    pub(super) fn repeat_remote(&mut self, entry: Entry, answer_room: usize, request: &[u8]) {
        self.flush_to(entry.owner);
        let requests = &mut self.peers[entry.owner].requests;
        requests.answers = self.pool.take_short(answer_room + ANSWER_HEAD_LEN);
        requests.requests.extend_from_slice(request);
        requests.entries.push(Entry { len: request.len(), answer_room, answer_room_needed: 0, ..entry });
        self.flush_to(entry.owner);
    }

    /// Sends another thread the current batch and all unsent messages.
    pub(super) fn flush_to(&mut self, other: usize) {
        if !self.peers[other].requests.entries.is_empty() {
            let fresh = self.batches.take(self.service.partition);
            let other = &mut self.peers[other];
            let requests = std::mem::replace(&mut other.requests, fresh);
            other.unsent.push_back(Message::Requests(requests));
        }
        let other = &mut self.peers[other];
        while let Some(message) = other.unsent.pop_front() {
            if let Err(message) = other.mailbox.send(message) {
                other.unsent.push_front(message);
                break;
            }
        }
    }

    pub(super) fn handle_message(&mut self, message: Message) {
        match message {
            Message::Connection(stream) => self.add_connection(stream),
            Message::Requests(batch) => self.requests.push_back(BatchProgress { batch, next: 0, offset: 0 }),
            Message::Answers(mut batch) => {
                let is_alone = batch.entries.len() == 1 && batch.answers.len() > LARGE_LEN;
                let mut offset = 0;
                let entries = std::mem::take(&mut batch.entries);
                for entry in &entries {
                    let answer = offset..offset + entry.len;
                    offset += entry.len;
                    if is_alone {
                        self.handle_answer(entry, Answer::Whole(std::mem::take(&mut batch.answers)));
                    } else {
                        self.handle_answer(entry, Answer::Part(&batch.answers[answer]));
                    }
                }
                batch.entries = entries;
                if batch.from == self.service.partition {
                    return self.recycle_batch(batch);
                }
                let unread_max = self.unread_max();
                let sender = &mut self.peers[batch.from];
                let empty = Message::Empty(batch);
                // An empty batch wakes nobody, and must not take up the room that answers need.
                if sender.mailbox.unread() + empty.len() <= unread_max / 2 {
                    sender.unsent.push_back(empty);
                }
            }
            Message::Empty(batch) => self.recycle_batch(batch),
            Message::MakeRoom => self.close_stalled(),
        }
    }

    /// Keeps a batch for reuse, except for buffers that a long value has made long.
    fn recycle_batch(&mut self, mut batch: Batch) {
        for buffer in [&mut batch.requests, &mut batch.answers] {
            if buffer.capacity() > KEPT_LEN_MAX {
                self.pool.put_back(std::mem::take(buffer));
            }
        }
        self.batches.give(batch);
    }

    fn unread_max(&self) -> usize {
        UNREAD_MAX.min(self.service.shared.budget.max() / UNREAD_SHARE)
    }

    fn handle_answer(&mut self, entry: &Entry, answer: Answer<'_>) {
        let other = &mut self.peers[entry.owner];
        if entry.request_len > LARGE_LEN {
            other.large_requests_len = other.large_requests_len.saturating_sub(entry.request_len);
        }
        let index = entry.connection;
        let is_same = |connection: &mut Box<Connection>| connection.generation == entry.generation;
        let Some(mut connection) = self.connections.get_mut(index).and_then(|slot| slot.take_if(is_same)) else {
            return;
        };
        match answer {
            Answer::Part(request) if entry.answer_room_needed > 0 => {
                let mut kept = self.pool.take_short(request.len());
                kept.extend_from_slice(request);
                self.need_memory(index, &mut connection, MemoryNeed::Remote(entry.answer_room_needed, *entry, kept));
            }
            answer => {
                match answer {
                    Answer::Whole(answer) => connection.complete_remote_owned(entry.number, answer, &mut self.pool),
                    Answer::Part(answer) => connection.complete_remote(entry.number, answer, &mut self.pool),
                }
                if entry.answer_room > 0 {
                    connection.remote_room = 0;
                    self.grant_or_queue(index, &mut connection);
                }
            }
        }
        self.update_memory(&mut connection);
        self.connections[index] = Some(connection);
        self.enqueue(index);
    }

    /// Answers the requests of other threads, as far as they accept the answers; returns whether there were any.
    pub(super) fn serve_remote(&mut self, cache: &mut Cache, now_s: u32) -> bool {
        let mut any = false;
        let unread_max = self.unread_max();
        while let Some(mut requests) = self.requests.pop_front() {
            let requester = requests.batch.from;
            if self.peers[requester].has_unsent() || self.peers[requester].mailbox.unread() > unread_max {
                self.requests.push_front(requests);
                break;
            }
            any = true;
            let first = self.serve_requests(&mut requests, cache, now_s);
            let BatchProgress { batch, next, .. } = &mut requests;
            if *next < batch.entries.len() {
                let mut partial = self.batches.take(self.service.partition);
                partial.entries.extend_from_slice(&batch.entries[first..*next]);
                std::mem::swap(&mut partial.answers, &mut batch.answers);
                self.requests.push_front(requests);
                self.peers[requester].unsent.push_back(Message::Answers(partial));
            } else {
                batch.entries.drain(..first);
                self.peers[requester].unsent.push_back(Message::Answers(requests.batch));
            }
            self.service.publish(cache);
            self.flush_to(requester);
        }
        any
    }

    /// Answers requests of a batch, up to a long answer, which is sent alone. Returns the index of the first.
    fn serve_requests(&mut self, requests: &mut BatchProgress, cache: &mut Cache, now_s: u32) -> usize {
        let BatchProgress { batch, next, offset } = requests;
        let first = *next;
        let limit = self.service.limits.answer_len_max;
        while let Some(entry) = batch.entries.get_mut(*next)
            && batch.answers.len() < self.service.limits.out_len_max
        {
            if entry.answer_room > limit {
                if *next > first {
                    break;
                }
                self.service.limits.answer_len_max = entry.answer_room;
            }
            let request = &batch.requests[*offset..*offset + entry.len];
            let start = batch.answers.len();
            let without_end = entry.answer_parts == AnswerParts::WithoutEnd;
            let answered = Session::answer(&mut self.service, cache, now_s, request, without_end, &mut batch.answers);
            self.service.limits.answer_len_max = limit;
            if entry.answer_parts == AnswerParts::Nothing {
                batch.answers.truncate(start);
            }
            entry.answer_room_needed = 0;
            if let Err(needs) = answered {
                batch.answers.truncate(start);
                batch.answers.extend_from_slice(request);
                entry.answer_room_needed = needs;
            }
            *next += 1;
            *offset += entry.len;
            entry.request_len = entry.len;
            entry.len = batch.answers.len() - start;
            if entry.len > LARGE_LEN {
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
