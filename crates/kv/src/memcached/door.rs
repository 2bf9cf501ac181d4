//! The door of one thread.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

use mio::{Events, Poll, Token};
use sinew_fabric::{Armed, Descriptor, Readiness, Waker};
use sinew_store::cache::Cache;

use super::connection::Connection;
use super::hand_over::{Batch, Batches, Entry, Inbox, Mailbox, Message, Wants, mailbox};
use super::listener::{Listener, Stream};
use super::pool::Pool;
use super::protocol::{Counters, HandOver, Service, Session, Then};
use crate::Partitions;

/// Bytes that are read at once.
const READ_LEN: usize = 64 << 10;
/// Reads of one connection before the others have their turn.
const READS_PER_TURN: usize = 4;
/// Connections that are accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Messages of other threads that are taken in one turn.
const MESSAGES_PER_TURN: usize = 256;
/// Events that are taken from the system at once.
const EVENTS: usize = 1024;
/// Requests that are handed over at once.
const BATCH_LEN: usize = 1024;
/// Bytes of answers that may wait at another thread before further ones are made.
const UNREAD_MAX: usize = 16 << 20;
/// Turns beside something else between two looks at the sockets, while those have nothing.
const TURNS_BETWEEN_LOOKS: u32 = 32;
/// When there was no descriptor for a connection, it is tried again after so long at the latest.
const TRY_AGAIN_NS: u64 = 1_000_000_000;

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
/// Tokens of connections begin here.
const CONNECTIONS: usize = 2;

/// What a door allows.
#[derive(Clone, Copy, Debug)]
pub struct DoorConfig {
    /// Connections of each thread. Further ones hear `ERROR Too many open connections`.
    pub connections_max: usize,
    /// Bytes that each thread keeps of what clients have not sent to the end, or have not read. When there are more, values that
    /// are still coming are refused, and connections that do not read are closed, those that have not for longest first.
    pub buffer_bytes_max: usize,
    /// The longest item, as memcached counts it: key, value, and about 60 bytes more. No more than the table takes.
    pub item_len_max: usize,
}

impl Default for DoorConfig {
    fn default() -> Self {
        Self { connections_max: 16 << 10, buffer_bytes_max: 512 << 20, item_len_max: 1 << 20 }
    }
}

/// The door of one thread, which owns a partition of the keys: holds connections, and serves them whenever it is
/// [turned](Door::turn). A command for a key of another partition is handed over to the door of that one.
pub struct Door {
    poll: Poll,
    events: Events,
    /// The events were not looked at yet.
    polled: bool,
    listener: Option<Listener>,
    accepting: bool,
    /// There was no descriptor for a connection.
    accepts_later: bool,
    config: DoorConfig,
    service: Service,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    generation: u64,
    /// Connections with something to do.
    queue: std::collections::VecDeque<usize>,
    input: Box<[u8]>,
    out: Vec<u8>,
    pool: Pool,
    batches: Batches,
    /// Bytes in connections' buffers.
    buffered: usize,
    inbox: Inbox,
    /// Requests of other threads that are not answered yet.
    requests: std::collections::VecDeque<Requests>,
    others: Vec<Other>,
    next_thread: usize,
    ticked_s: u32,
    /// Of the sockets together.
    descriptor: Descriptor,
    /// Turns beside something else since there was anything to do.
    idle_turns: u32,
}

/// Another thread.
struct Other {
    mailbox: Mailbox,
    /// What is being put together.
    requests: Batch,
    /// What there was no room for.
    unsent: std::collections::VecDeque<Message>,
}

/// Requests of another thread, of which some are answered.
struct Requests {
    batch: Batch,
    /// The next one, and where it begins.
    next: usize,
    at: usize,
}

impl Door {
    /// A door for each partition, in their order; all of them share the connections that come in at `listener`. The clock that the
    /// doors are handed was 0 at `epoch_unix_s`, in seconds of Unix time, and is 1 or later.
    ///
    /// # Errors
    ///
    /// What the system says when it has no descriptors.
    pub fn open(
        listener: Listener,
        partitions: &Partitions,
        epoch_unix_s: u64,
        config: DoorConfig,
    ) -> io::Result<Vec<Self>> {
        let counters = Service::counters(partitions.count());
        let mut listener = Some(listener);
        let mut doors = Vec::new();
        let mut mailboxes = Vec::new();
        for partition in 0..partitions.count() {
            let poll = Poll::new()?;
            let descriptor = poll.registry().as_fd().try_clone_to_owned()?.into();
            let (mailbox, inbox) = mailbox(mio::Waker::new(poll.registry(), WAKER)?);
            mailboxes.push(mailbox);
            let mut listener = listener.take();
            if let Some(listener) = &mut listener {
                listener.register(poll.registry(), LISTENER)?;
            }
            let mut service =
                Service::new(partitions.clone(), partition, epoch_unix_s, std::sync::Arc::clone(&counters));
            service.limits.item_len_max = config.item_len_max;
            doors.push(Self {
                poll,
                events: Events::with_capacity(EVENTS),
                polled: false,
                accepting: listener.is_some(),
                accepts_later: false,
                listener,
                config,
                service,
                connections: Vec::new(),
                free: Vec::new(),
                generation: 0,
                queue: std::collections::VecDeque::new(),
                input: vec![0; READ_LEN].into_boxed_slice(),
                out: Vec::new(),
                pool: Pool::default(),
                batches: Batches::default(),
                buffered: 0,
                inbox,
                requests: std::collections::VecDeque::new(),
                others: Vec::new(),
                next_thread: 0,
                ticked_s: 0,
                descriptor,
                idle_turns: 0,
            });
        }
        for door in &mut doors {
            let other = |mailbox: &Mailbox| Other {
                mailbox: mailbox.clone(),
                requests: Batch { from: door.service.partition, ..Batch::default() },
                unsent: std::collections::VecDeque::new(),
            };
            door.others = mailboxes.iter().map(other).collect();
        }
        Ok(doors)
    }

    /// Which partition's it is.
    pub fn partition(&self) -> usize {
        self.service.partition
    }

    /// Where clients come in, if it is at this one.
    pub fn address(&self) -> Option<&str> {
        self.listener.as_ref().map(Listener::address)
    }

    /// What each thread counted.
    pub fn counters(&self) -> &[Counters] {
        &self.service.counters
    }

    /// What ends a [wait](Door::wait).
    pub fn waker(&self) -> Waker {
        self.inbox.waker()
    }

    /// Does what there is to do, without waiting for more; returns whether there was anything. `cache` is the partition's table, and
    /// `now_s` the time.
    pub fn turn(&mut self, cache: &mut Cache, now_s: u32) -> bool {
        if now_s != self.ticked_s {
            self.ticked_s = now_s;
            self.accepting |= std::mem::take(&mut self.accepts_later);
            self.service.tick(cache, now_s);
            self.service.publish(cache);
        }
        if !std::mem::take(&mut self.polled) {
            self.poll_for(Some(Duration::ZERO));
        }
        let mut found = self.take_events();
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.inbox.take() else { break };
            found = true;
            self.take_message(message);
        }
        found |= self.answer_others(cache, now_s);
        if self.accepting {
            found |= self.accept();
        }
        for _ in 0..self.queue.len() {
            let Some(index) = self.queue.pop_front() else { break };
            found = true;
            self.serve(index, cache, now_s);
        }
        for other in 0..self.others.len() {
            self.send_to(other);
        }
        found
    }

    /// As [`Door::turn`], on a thread that does other things as well: while there is nothing to do here, most of these turns cost hardly
    /// anything, since they do not ask the system. What comes is seen some turns later, or when the thread has slept on this door.
    pub fn turn_beside(&mut self, cache: &mut Cache, now_s: u32) -> bool {
        let is_due = self.idle_turns.is_multiple_of(TURNS_BETWEEN_LOOKS) || now_s != self.ticked_s;
        if !is_due && !self.inbox.has_messages() {
            self.idle_turns += 1;
            return false;
        }
        let found = self.turn(cache, now_s);
        self.idle_turns = if found { 0 } else { self.idle_turns.wrapping_add(1) };
        found
    }

    /// Whether there is something to do that no socket tells of.
    fn is_busy(&self) -> bool {
        self.polled
            || self.accepting
            || !self.queue.is_empty()
            || !self.requests.is_empty()
            || self.others.iter().any(|other| !other.unsent.is_empty())
    }

    /// Waits until there is something to do, at most for so long.
    pub fn wait(&mut self, timeout: Duration) {
        let timeout = if self.is_busy() || self.inbox.go_to_sleep() { Duration::ZERO } else { timeout };
        self.poll_for(Some(timeout));
        self.inbox.be_awake();
        self.polled = true;
    }

    fn poll_for(&mut self, timeout: Option<Duration>) {
        // It fails when a signal comes, and then there are no events.
        if self.poll.poll(&mut self.events, timeout).is_err() {
            self.events.clear();
        }
    }

    fn take_events(&mut self) -> bool {
        let mut found = false;
        for event in &self.events {
            found = true;
            match event.token() {
                WAKER => {}
                LISTENER => self.accepting = true,
                Token(token) => {
                    let index = token - CONNECTIONS;
                    let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { continue };
                    connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    connection.hung_up |= event.is_read_closed() || event.is_error();
                    if !std::mem::replace(&mut connection.queued, true) {
                        self.queue.push_back(index);
                    }
                }
            }
        }
        self.events.clear();
        found
    }

    fn accept(&mut self) -> bool {
        let Some(listener) = self.listener.take() else { return false };
        let mut found = false;
        for _ in 0..ACCEPTS_PER_TURN {
            match listener.accept() {
                Ok(stream) => {
                    found = true;
                    let to = self.next_thread;
                    self.next_thread = (to + 1) % self.others.len();
                    if to == self.service.partition {
                        self.hold(stream);
                    } else {
                        self.others[to].unsent.push_back(Message::Connection(stream));
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.accepting = false;
                    if error.kind() != ErrorKind::WouldBlock {
                        // There are no descriptors left until somebody goes.
                        self.accepts_later = true;
                        self.service.count().listen_disabled_num.add(1);
                    }
                    break;
                }
            }
        }
        self.listener = Some(listener);
        found
    }

    /// Takes a connection in.
    fn hold(&mut self, mut stream: Stream) {
        let count = self.service.count();
        count.total_connections.add(1);
        if self.connections.len() - self.free.len() >= self.config.connections_max {
            count.rejected_connections.add(1);
            let _ = stream.write(b"ERROR Too many open connections\r\n");
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if stream.register(self.poll.registry(), Token(index + CONNECTIONS)).is_err() {
            self.free.push(index);
            return;
        }
        self.generation += 1;
        let mut connection = Box::new(Connection::new(stream, self.generation));
        connection.wrote_s = self.ticked_s;
        connection.queued = true;
        self.connections[index] = Some(connection);
        self.queue.push_back(index);
        self.publish_connections();
    }

    fn publish_connections(&self) {
        self.service.count().curr_connections.set((self.connections.len() - self.free.len()) as u64);
    }

    /// Serves a connection for a while.
    fn serve(&mut self, index: usize, cache: &mut Cache, now_s: u32) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { return };
        connection.queued = false;
        let before = connection.kept();
        let goes_on = self.serve_one(index, &mut connection, cache, now_s);
        match goes_on {
            Ok(more) => {
                self.buffered += connection.kept();
                self.buffered -= before;
                if more {
                    connection.queued = true;
                    self.queue.push_back(index);
                }
                self.connections[index] = Some(connection);
            }
            Err(_) => self.let_go(index, before),
        }
    }

    /// Returns whether there is more to do at once; an error ends the connection.
    fn serve_one(
        &mut self,
        index: usize,
        connection: &mut Connection,
        cache: &mut Cache,
        now_s: u32,
    ) -> io::Result<bool> {
        if connection.failed {
            return Err(ErrorKind::OutOfMemory.into());
        }
        for _ in 0..READS_PER_TURN {
            self.send(index, connection)?;
            if connection.blocked || connection.waits() || connection.has_asked() && self.has_too_much() {
                return Ok(false);
            }
            if connection.ending {
                return if connection.is_drained() { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(false) };
            }
            if connection.input.len() >= connection.wants {
                let input = std::mem::take(&mut connection.input);
                let left = self.carry_out(index, connection, &input, cache, now_s)?;
                connection.input = input;
                connection.input.drain(..left);
                self.recycle_input(connection);
                continue;
            }
            if !connection.readable {
                return Ok(false);
            }
            let read = self.read(index, connection, cache, now_s)?;
            self.service.count().bytes_read.add(read as u64);
        }
        self.send(index, connection)?;
        let has_more = connection.readable || connection.ending || connection.input.len() >= connection.wants;
        Ok(has_more && !connection.blocked && !connection.waits())
    }

    /// Reads, and carries out what was read.
    fn read(&mut self, index: usize, connection: &mut Connection, cache: &mut Cache, now_s: u32) -> io::Result<usize> {
        let direct = connection.input.is_empty();
        let mut input = std::mem::take(&mut self.input);
        let result = if direct {
            let room = input.len();
            read_some(connection, room, |stream| stream.read(&mut input))
        } else {
            // To the rest of a command, for as much of it as is missing.
            let start = connection.input.len();
            let missing = connection.wants.saturating_sub(start).clamp(READ_LEN / 4, 4 * READ_LEN);
            let mut rest = std::mem::take(&mut connection.input);
            rest.resize(start + missing, 0);
            let result = read_some(connection, missing, |stream| stream.read(&mut rest[start..]));
            rest.truncate(start + result.as_ref().map_or(0, |read| *read));
            connection.input = rest;
            result
        };
        let read = match result {
            Ok(read) => read,
            Err(error) => {
                self.input = input;
                return Err(error);
            }
        };
        if direct && read > 0 {
            let done = self.carry_out(index, connection, &input[..read], cache, now_s);
            let rest = done.map(|done| &input[done..read]);
            if let Ok(rest) = rest
                && !rest.is_empty()
            {
                connection.input = self.pool.take(rest.len().max(READ_LEN / 16));
                connection.input.extend_from_slice(rest);
            }
        }
        self.input = input;
        Ok(read)
    }

    /// Carries out what there is of `input`; returns how much of it is done with.
    fn carry_out(
        &mut self,
        index: usize,
        connection: &mut Connection,
        input: &[u8],
        cache: &mut Cache,
        now_s: u32,
    ) -> io::Result<usize> {
        let mut done = 0;
        let mut out = std::mem::take(&mut self.out);
        loop {
            out.clear();
            let ran = connection.session.run(&mut self.service, cache, now_s, &input[done..], &mut out);
            done += ran.consumed;
            self.say(connection, &out);
            match ran.then {
                Then::Input(wants) => {
                    connection.wants = wants;
                    let more = wants.saturating_sub(connection.input.capacity());
                    if more > READ_LEN && self.buffered + more > self.config.buffer_bytes_max {
                        out.clear();
                        if !connection.session.refuse_data(&self.service, &mut out) {
                            // A list of keys without end.
                            connection.failed = true;
                            break;
                        }
                        self.say(connection, &out);
                        continue;
                    }
                    break;
                }
                Then::Output => {
                    connection.wants = 0;
                    break;
                }
                Then::Close => {
                    connection.ending = true;
                    break;
                }
                Then::HandOver(whom) => {
                    self.ask(index, connection, whom);
                    if connection.waits() {
                        connection.wants = 0;
                        break;
                    }
                }
            }
        }
        self.out = out;
        Ok(done)
    }

    /// Sends `answer`, or keeps it until it can be sent.
    fn say(&mut self, connection: &mut Connection, answer: &[u8]) {
        if answer.is_empty() {
            return;
        }
        let mut rest = answer;
        if connection.is_drained()
            && !connection.blocked
            && let Ok(sent) = connection.stream.write(answer)
        {
            self.service.count().bytes_written.add(sent as u64);
            rest = &answer[sent..];
        }
        if !rest.is_empty() {
            connection.say(rest, &mut self.pool);
        }
    }

    /// Sends what is kept.
    fn send(&mut self, index: usize, connection: &mut Connection) -> io::Result<()> {
        if connection.out.is_empty() {
            return Ok(());
        }
        let sent = connection.send()?;
        self.service.count().bytes_written.add(sent as u64);
        let blocked = !connection.out.is_empty();
        if sent > 0 {
            connection.wrote_s = self.ticked_s;
        }
        if blocked != connection.blocked {
            connection.blocked = blocked;
            connection.stream.watch_writable(self.poll.registry(), Token(index + CONNECTIONS), blocked)?;
        }
        if !blocked {
            self.pool.give(std::mem::take(&mut connection.out));
        } else if self.has_too_much() && !self.shed(connection.wrote_s) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    fn has_too_much(&self) -> bool {
        self.buffered > self.config.buffer_bytes_max
    }

    /// Closes connections whose clients have not read for longer than since `wrote_s`, those that have not for longest first, until
    /// there is not too much any more. Returns whether there is not.
    fn shed(&mut self, wrote_s: u32) -> bool {
        while self.has_too_much() {
            let held = self.connections.iter().enumerate();
            let held = held.filter_map(|(index, connection)| Some((index, connection.as_deref()?)));
            let silent = held.filter(|(_, connection)| connection.blocked && connection.wrote_s < wrote_s);
            let longest = silent.min_by_key(|(_, connection)| (connection.wrote_s, usize::MAX - connection.kept()));
            let Some((index, kept)) = longest.map(|(index, connection)| (index, connection.kept())) else {
                return false;
            };
            self.connections[index] = None;
            self.let_go(index, kept);
        }
        true
    }

    /// Of a connection that is gone.
    fn let_go(&mut self, index: usize, kept: usize) {
        self.buffered -= kept;
        self.free.push(index);
        self.publish_connections();
        // There is a descriptor again.
        self.accepting |= std::mem::take(&mut self.accepts_later);
    }

    fn recycle_input(&mut self, connection: &mut Connection) {
        if connection.input.is_empty() {
            self.pool.give(std::mem::take(&mut connection.input));
        }
    }

    /// Hands the service's request over.
    fn ask(&mut self, index: usize, connection: &mut Connection, whom: HandOver) {
        let threads = self.others.len();
        let mine = self.service.partition;
        let (range, wants) = match whom {
            HandOver::To(owner) => (owner..owner + 1, Wants::All),
            HandOver::KeyTo(owner) => (owner..owner + 1, Wants::WithoutEnd),
            HandOver::ToOthers => (0..threads, Wants::Nothing),
        };
        let others = range.clone().filter(|other| *other != mine).count();
        let number = connection.ask(others, self.service.request.len());
        self.service.count().handed_over.add(others as u64);
        for other in range.filter(|other| *other != mine) {
            let requests = &mut self.others[other].requests;
            let len = self.service.request.len();
            requests.requests.extend_from_slice(&self.service.request);
            requests.entries.push(Entry { connection: index, generation: connection.generation, number, len, wants });
            if requests.entries.len() >= BATCH_LEN {
                self.send_to(other);
            }
        }
    }

    /// Sends another thread what there is for it.
    fn send_to(&mut self, other: usize) {
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

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Connection(stream) => self.hold(stream),
            Message::Requests(batch) => self.requests.push_back(Requests { batch, next: 0, at: 0 }),
            Message::Answers(batch) => {
                let mut at = 0;
                for entry in &batch.entries {
                    let answer = &batch.answers[at..at + entry.len];
                    at += entry.len;
                    self.take_answer(entry, answer);
                }
                if batch.from == self.service.partition {
                    return self.batches.give(batch);
                }
                let maker = &mut self.others[batch.from];
                let empty = Message::Empty(batch);
                // One that sleeps is not woken for it, and what lies there keeps no answers from being made.
                if maker.mailbox.unread() + empty.len() <= UNREAD_MAX / 2 {
                    maker.unsent.push_back(empty);
                }
            }
            Message::Empty(batch) => self.batches.give(batch),
        }
    }

    fn take_answer(&mut self, entry: &Entry, answer: &[u8]) {
        let connection = self.connections.get_mut(entry.connection).and_then(Option::as_mut);
        let Some(connection) = connection.filter(|connection| connection.generation == entry.generation) else {
            return;
        };
        let before = connection.kept();
        connection.answered(entry.number, answer, &mut self.pool);
        self.buffered += connection.kept();
        self.buffered -= before;
        if !std::mem::replace(&mut connection.queued, true) {
            self.queue.push_back(entry.connection);
        }
        let (wrote_s, kept) = (connection.wrote_s, connection.kept());
        if self.has_too_much() && !self.shed(wrote_s) {
            self.connections[entry.connection] = None;
            self.let_go(entry.connection, kept);
        }
    }

    /// Answers what other threads have handed over, as far as they take the answers; returns whether there was anything.
    fn answer_others(&mut self, cache: &mut Cache, now_s: u32) -> bool {
        let mut found = false;
        while let Some(mut requests) = self.requests.pop_front() {
            let to = requests.batch.from;
            if !self.others[to].unsent.is_empty() || self.others[to].mailbox.unread() > UNREAD_MAX {
                self.requests.push_front(requests);
                break;
            }
            found = true;
            let Requests { batch, next, at } = &mut requests;
            let first = *next;
            while let Some(entry) = batch.entries.get_mut(*next)
                && batch.answers.len() < self.service.limits.out_len_max
            {
                let request = &batch.requests[*at..*at + entry.len];
                let start = batch.answers.len();
                let without_end = entry.wants == Wants::WithoutEnd;
                Session::answer(&mut self.service, cache, now_s, request, without_end, &mut batch.answers);
                if entry.wants == Wants::Nothing {
                    batch.answers.truncate(start);
                }
                *next += 1;
                *at += entry.len;
                entry.len = batch.answers.len() - start;
            }
            if *next < batch.entries.len() {
                let mut some = self.batches.take(self.service.partition);
                some.entries.extend_from_slice(&batch.entries[first..*next]);
                std::mem::swap(&mut some.answers, &mut batch.answers);
                self.requests.push_front(requests);
                self.others[to].unsent.push_back(Message::Answers(some));
            } else {
                batch.entries.drain(..first);
                self.others[to].unsent.push_back(Message::Answers(requests.batch));
            }
            self.send_to(to);
        }
        found
    }
}

/// A door beside other things that its thread sleeps on, such as an endpoint.
impl Readiness for Door {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.descriptor.clone())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if self.is_busy() || self.inbox.go_to_sleep() {
            self.inbox.be_awake();
            return Ok(Armed::Ready);
        }
        // The sockets tell by themselves.
        Ok(Armed::Sleep { until_ns: self.accepts_later.then(|| now_ns.saturating_add(TRY_AGAIN_NS)) })
    }

    fn disarm(&mut self) -> bool {
        self.inbox.be_awake();
        // The next turn looks at the sockets.
        self.idle_turns = 0;
        false
    }
}

/// Reads once; notes when there is nothing more to read. Returns how much was read.
fn read_some(
    connection: &mut Connection,
    room: usize,
    read: impl FnOnce(&mut Stream) -> io::Result<usize>,
) -> io::Result<usize> {
    match read(&mut connection.stream) {
        Ok(0) => {
            connection.ending = true;
            connection.readable = false;
            Ok(0)
        }
        Ok(len) => {
            // Less than there was room for is all there is: more would be told as an event. That there will be no more was told.
            connection.readable = len == room || connection.hung_up;
            Ok(len)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            connection.readable = false;
            Ok(0)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}
