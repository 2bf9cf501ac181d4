//! The door of one thread.

mod accept;
mod memory;
mod others;
mod serve;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Poll, Token};
use sinew_fabric::{Armed, Descriptor, Readiness, Waker};
use sinew_store::cache::Cache;

use super::budget::Budget;
use super::connection::Connection;
use super::hand_over::{Batches, Inbox, mailbox};
use super::pool::Pool;
use super::protocol::{About, Counters, Limits, Service, Shared};
use crate::Partitions;
use crate::cache::seconds_of;
use memory::Hunger;
use others::{Other, Requests};
use sinew_door::{Listener, OWNER_ONLY};

/// Bytes that are read at once.
const READ_LEN: usize = 64 << 10;
/// Messages of other threads that are taken in one turn.
const MESSAGES_PER_TURN: usize = 256;
/// Events that are taken from the system at once.
const EVENTS: usize = 1024;
/// Turns beside something else between two looks at the sockets, while those have nothing.
const TURNS_BETWEEN_LOOKS: u32 = 32;
/// When there was no descriptor for a connection, it is tried again after so long at the latest.
const TRY_AGAIN_NS: u64 = 1_000_000_000;
/// While connections wait for memory, it is looked for that often: other threads do not tell when they give some back.
const LOOK_FOR_MEMORY: Duration = Duration::from_millis(10);
/// What each thread keeps of buffers that nobody needs, and of what threads hand each other: one part in so many of all memory.
const KEPT_PART: usize = 8;

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
/// Tokens of connections begin here.
const CONNECTIONS: usize = 2;

/// What the doors of a server allow.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Connections, over all threads. Further ones hear `ERROR Too many open connections`.
    pub connections_max: usize,
    /// Bytes that the buffers of all connections may take: what clients have not sent to the end, and what they have not read. When
    /// there are more, whoever wants some waits, and connections are closed that have not moved for a second: those first of which
    /// the kernel has taken no byte, or which have sent none of what they owe, for longest. It is four of the longest items at least.
    pub connection_memory: usize,
    /// The longest item, as memcached counts it: key, value, and about 60 bytes more. No more than the table takes.
    pub item_len_max: usize,
    /// Seconds after which a connection is closed that says nothing; never when 0.
    pub idle_timeout_s: u32,
    /// The mode of a Unix socket.
    pub socket_mode: u32,
    /// Whether items make way for new ones: `stats settings` tells.
    pub evicts: bool,
    /// The processor time that this process has used, for itself and in the system: `stats` tells.
    pub cpu_times: fn() -> [Duration; 2],
}

impl Default for DoorConfig {
    fn default() -> Self {
        Self {
            connections_max: 16 << 10,
            connection_memory: 64 << 20,
            item_len_max: 1 << 20,
            idle_timeout_s: 0,
            socket_mode: OWNER_ONLY,
            evicts: true,
            cpu_times: || [Duration::ZERO; 2],
        }
    }
}

impl DoorConfig {
    /// The least memory for the connections of clients that store and read items of such a length.
    pub fn connection_memory_min(item_len_max: usize) -> usize {
        item_len_max.saturating_mul(4)
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
    service: Service,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    generation: u64,
    /// Connections with something to do.
    queue: VecDeque<usize>,
    input: Box<[u8]>,
    out: Vec<u8>,
    pool: Pool,
    batches: Batches,
    hunger: Hunger,
    inbox: Inbox,
    /// Requests of other threads that are not answered yet.
    requests: VecDeque<Requests>,
    others: Vec<Other>,
    next_thread: usize,
    now_ns: u64,
    ticked_s: u32,
    /// Of the sockets together.
    descriptor: Descriptor,
    /// Turns beside something else since there was anything to do.
    idle_turns: u32,
}

impl Door {
    /// A door for each partition, in their order; all of them share the connections that come in at `listener`. The clock that the
    /// doors are handed was 0 at `epoch_unix_s`, in seconds of Unix time.
    ///
    /// # Errors
    ///
    /// What the system says when it has no descriptors, or when the socket cannot have its mode.
    pub fn open(
        listener: Listener,
        partitions: &Partitions,
        epoch_unix_s: u64,
        config: DoorConfig,
    ) -> io::Result<Vec<Self>> {
        listener.set_mode(config.socket_mode)?;
        let threads = partitions.count();
        let memory = config.connection_memory.max(DoorConfig::connection_memory_min(config.item_len_max));
        let about = About {
            connections_max: config.connections_max,
            idle_timeout_s: config.idle_timeout_s,
            address: listener.address().to_owned(),
            socket_mode: config.socket_mode,
            evicts: config.evicts,
            cpu_times: config.cpu_times,
        };
        let shared = Arc::new(Shared::new(threads, Budget::new(memory), about));
        let kept_max = memory / KEPT_PART / threads;
        let mut listener = Some(listener);
        let mut doors = Vec::new();
        let mut mailboxes = Vec::new();
        for partition in 0..threads {
            let poll = Poll::new()?;
            let descriptor = poll.registry().as_fd().try_clone_to_owned()?.into();
            let (mailbox, inbox) = mailbox(mio::Waker::new(poll.registry(), WAKER)?);
            mailboxes.push(mailbox);
            let mut listener = listener.take();
            if let Some(listener) = &mut listener {
                listener.register(poll.registry(), LISTENER)?;
            }
            let mut service = Service::new(partitions.clone(), partition, epoch_unix_s, Arc::clone(&shared));
            service.limits = Limits { item_len_max: config.item_len_max, ..memory::limits(false) };
            service.count().accepting_conns.set(listener.is_some().into());
            doors.push(Self {
                poll,
                events: Events::with_capacity(EVENTS),
                polled: false,
                accepting: listener.is_some(),
                accepts_later: false,
                listener,
                service,
                connections: Vec::new(),
                free: Vec::new(),
                generation: 0,
                queue: VecDeque::new(),
                input: vec![0; READ_LEN].into_boxed_slice(),
                out: Vec::new(),
                pool: Pool::new(kept_max),
                batches: Batches::new(kept_max),
                hunger: Hunger::default(),
                inbox,
                requests: VecDeque::new(),
                others: Vec::new(),
                next_thread: 0,
                now_ns: 0,
                ticked_s: 0,
                descriptor,
                idle_turns: 0,
            });
        }
        for door in &mut doors {
            let partition = door.service.partition;
            door.others = mailboxes.iter().map(|mailbox| Other::new(mailbox.clone(), partition)).collect();
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
        &self.service.shared.counters
    }

    /// The memory of all connections.
    pub fn budget(&self) -> &Budget {
        &self.service.shared.budget
    }

    /// What ends a [wait](Door::wait).
    pub fn waker(&self) -> Waker {
        self.inbox.waker()
    }

    /// Does what there is to do, without waiting for more; returns whether there was anything. `cache` is the partition's table, and
    /// `now_ns` the time.
    pub fn turn(&mut self, cache: &mut Cache, now_ns: u64) -> bool {
        let now_s = seconds_of(now_ns);
        self.now_ns = now_ns;
        if now_s != self.ticked_s {
            self.ticked_s = now_s;
            self.tick(cache, now_s);
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
        if self.hunger.is_any() {
            self.feed();
        }
        for _ in 0..self.queue.len() {
            let Some(index) = self.queue.pop_front() else { break };
            found = true;
            self.serve(index, cache, now_s);
        }
        for other in 0..self.others.len() {
            self.send_to(other);
        }
        self.count_memory();
        found
    }

    /// Once in a second.
    fn tick(&mut self, cache: &mut Cache, now_s: u32) {
        self.accepting |= std::mem::take(&mut self.accepts_later);
        self.service.tick(cache, now_s);
        self.service.publish(cache);
        self.pool.trim();
        self.batches.trim();
        self.close_idle(now_s);
    }

    /// As [`Door::turn`], on a thread that does other things as well: while there is nothing to do here, most of these turns cost hardly
    /// anything, since they do not ask the system. What comes is seen some turns later, or when the thread has slept on this door.
    pub fn turn_beside(&mut self, cache: &mut Cache, now_ns: u64) -> bool {
        let is_due = self.idle_turns.is_multiple_of(TURNS_BETWEEN_LOOKS) || seconds_of(now_ns) != self.ticked_s;
        if !is_due && !self.inbox.has_messages() {
            self.idle_turns += 1;
            return false;
        }
        let found = self.turn(cache, now_ns);
        self.idle_turns = if found { 0 } else { self.idle_turns.wrapping_add(1) };
        found
    }

    /// Whether there is something to do that no socket tells of.
    fn is_busy(&self) -> bool {
        self.polled
            || self.accepting
            || !self.queue.is_empty()
            || !self.requests.is_empty()
            || self.others.iter().any(Other::has_unsent)
    }

    /// Waits until there is something to do, at most for so long.
    pub fn wait(&mut self, timeout: Duration) {
        let timeout = if self.hunger.is_any() { timeout.min(LOOK_FOR_MEMORY) } else { timeout };
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
                    connection.is_gone |= event.is_write_closed() || event.is_error();
                    if !std::mem::replace(&mut connection.queued, true) {
                        self.queue.push_back(index);
                    }
                }
            }
        }
        self.events.clear();
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
        let until_ns = |in_ns| Some(now_ns.saturating_add(in_ns));
        Ok(Armed::Sleep {
            until_ns: match self.accepts_later {
                _ if self.hunger.is_any() => until_ns(LOOK_FOR_MEMORY.as_nanos() as u64),
                true => until_ns(TRY_AGAIN_NS),
                false => None,
            },
        })
    }

    fn disarm(&mut self) -> bool {
        self.inbox.be_awake();
        // The next turn looks at the sockets.
        self.idle_turns = 0;
        false
    }
}
