//! The door of one thread.

mod accept;
mod memory;
mod remote;
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
use super::hand_over::{BatchPool, Inbox, mailbox};
use super::pool::Pool;
use super::protocol::{Counters, Limits, ServerInfo, Service, Shared};
use crate::Partitions;
use crate::cache::seconds_of;
use memory::MemoryQueue;
use remote::{BatchProgress, PeerThread};
use sinew_door::{Listener, OWNER_ONLY};

/// Bytes read at once.
const READ_LEN: usize = 64 << 10;
/// Messages of other threads taken in one turn.
const MESSAGES_PER_TURN: usize = 256;
/// Events taken from the system at once.
const EVENTS: usize = 1024;
/// Calls of [`Door::turn_shared`] between two looks at the sockets, while these are idle.
const TURNS_BETWEEN_POLLS: u32 = 32;
/// Looks at the socket of a lone connection before the next one asks the poll.
const LONE_LOOKS: u32 = 3;
/// Longest wait, in nanoseconds, before accepting is tried again after descriptors ran out.
const ACCEPT_RETRY_NS: u64 = 1_000_000_000;
/// Interval at which a door looks for memory while connections wait for it, since other threads do not announce that
/// they have freed some.
const MEMORY_RETRY: Duration = Duration::from_millis(10);
/// The connection memory divided by this is the limit on the free buffers that each thread keeps, and also on its free
/// batches.
const KEPT_PART: usize = 8;

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
/// First token of a connection.
const FIRST_CONNECTION: usize = 2;

/// Limits and settings of a server's doors.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Connections over all threads. Further ones receive `ERROR Too many open connections`.
    pub connections_max: usize,
    /// Bytes for the buffers of all connections: commands not yet complete, and answers not yet read. When they run
    /// out, a connection that needs more waits, and connections that have stalled for a second are closed, the longest
    /// stalled first. A connection stalls if the kernel accepts no more of its answers, or if the rest of an incomplete
    /// command does not arrive. The least is four times the longest item.
    pub connection_memory: usize,
    /// Longest item in bytes, as memcached counts it: key, value, and about 60 bytes more. No more than the table
    /// allows.
    pub item_len_max: usize,
    /// Seconds after which a silent connection is closed; 0 means never.
    pub idle_timeout_s: u32,
    /// Permissions of a Unix socket.
    pub socket_mode: u32,
    /// Whether items are evicted to make room for new ones, for `stats settings`.
    pub evicts: bool,
    /// Returns the processor time that this process has used, in user and in system mode, for `stats`.
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
    /// The least memory for connections whose clients store and read items of this length, in bytes.
    pub fn connection_memory_min(item_len_max: usize) -> usize {
        item_len_max.saturating_mul(4)
    }
}

/// The door of one thread, which owns a partition of the keys. It holds connections, and serves them whenever it is
/// [turned](Door::turn). It hands a command for a key of another partition over to that partition's door.
pub struct Door {
    poll: Poll,
    events: Events,
    /// The events have not been processed yet.
    polled: bool,
    listener: Option<Listener>,
    accepting: bool,
    /// Accepting failed for lack of a descriptor.
    accepts_later: bool,
    service: Service,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    generation: u64,
    /// Connections to be served.
    queue: VecDeque<usize>,
    input: Box<[u8]>,
    out: Vec<u8>,
    pool: Pool,
    batches: BatchPool,
    memory_queue: MemoryQueue,
    inbox: Inbox,
    /// Requests of other threads that have not been answered yet.
    requests: VecDeque<BatchProgress>,
    peers: Vec<PeerThread>,
    next_thread: usize,
    now_ns: u64,
    ticked_s: u32,
    /// Descriptor of the poll, and thus of all sockets together.
    descriptor: Descriptor,
    /// Calls of [`Door::turn_shared`] since anything happened.
    idle_turns: u32,
    /// The connection that was served last, if no other was served in the same turn. Its client probably waits for each
    /// answer. So its socket is read without asking the poll first: a request then takes two system calls, not three.
    lone: Option<usize>,
    /// Looks at its socket since the poll was asked last.
    lone_looks: u32,
    /// The thread has slept, and some socket may have woken it.
    woken: bool,
}

impl Door {
    /// Opens one door for each partition, in their order; they share the connections that arrive at `listener`.
    /// `epoch_unix_s` is the Unix time, in seconds, at which the clock passed to the doors was 0.
    ///
    /// # Errors
    ///
    /// An error of the system if it has no more descriptors, or if the socket's permissions cannot be set.
    pub fn open(
        listener: Listener,
        partitions: &Partitions,
        epoch_unix_s: u64,
        config: DoorConfig,
    ) -> io::Result<Vec<Self>> {
        listener.set_mode(config.socket_mode)?;
        let threads = partitions.count();
        let memory = config.connection_memory.max(DoorConfig::connection_memory_min(config.item_len_max));
        let info = ServerInfo {
            connections_max: config.connections_max,
            idle_timeout_s: config.idle_timeout_s,
            address: listener.address().to_owned(),
            socket_mode: config.socket_mode,
            evicts: config.evicts,
            cpu_times: config.cpu_times,
        };
        let shared = Arc::new(Shared::new(threads, Budget::new(memory), info));
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
                batches: BatchPool::new(kept_max),
                memory_queue: MemoryQueue::default(),
                inbox,
                requests: VecDeque::new(),
                peers: Vec::new(),
                next_thread: 0,
                now_ns: 0,
                ticked_s: 0,
                descriptor,
                idle_turns: 0,
                lone: None,
                lone_looks: 0,
                woken: false,
            });
        }
        for door in &mut doors {
            let partition = door.service.partition;
            door.peers = mailboxes.iter().map(|mailbox| PeerThread::new(mailbox.clone(), partition)).collect();
        }
        Ok(doors)
    }

    /// The partition that this door owns.
    pub fn partition(&self) -> usize {
        self.service.partition
    }

    /// Address of the listener, if this door has it.
    pub fn address(&self) -> Option<&str> {
        self.listener.as_ref().map(Listener::address)
    }

    /// The counters of each thread.
    pub fn counters(&self) -> &[Counters] {
        &self.service.shared.counters
    }

    /// The budget of all connections.
    pub fn budget(&self) -> &Budget {
        &self.service.shared.budget
    }

    /// A waker that ends a [wait](Door::wait).
    pub fn waker(&self) -> Waker {
        self.inbox.waker()
    }

    /// Does all pending work without waiting; returns whether there was any. `cache` is the partition's table, and
    /// `now_ns` the time.
    pub fn turn(&mut self, cache: &mut Cache, now_ns: u64) -> bool {
        let now_s = seconds_of(now_ns);
        self.now_ns = now_ns;
        if now_s != self.ticked_s {
            self.ticked_s = now_s;
            self.tick(cache, now_s);
        }
        let mut did_work = !std::mem::take(&mut self.polled) && self.look_at_sockets(cache, now_s);
        did_work |= self.take_events();
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.inbox.take() else { break };
            did_work = true;
            self.handle_message(message);
        }
        did_work |= self.serve_remote(cache, now_s);
        if self.accepting {
            did_work |= self.accept();
        }
        if self.memory_queue.has_waiting() {
            self.grant_waiting();
        }
        let queued = self.queue.len();
        for _ in 0..queued {
            let Some(index) = self.queue.pop_front() else { break };
            did_work = true;
            self.serve(index, cache, now_s);
            self.lone = (queued == 1).then_some(index);
        }
        for thread in 0..self.peers.len() {
            self.flush_to(thread);
        }
        self.update_thread_memory();
        did_work
    }

    /// Periodic work, done once a second.
    fn tick(&mut self, cache: &mut Cache, now_s: u32) {
        self.accepting |= std::mem::take(&mut self.accepts_later);
        self.service.tick(cache, now_s);
        self.service.publish(cache);
        self.pool.trim();
        self.batches.trim();
        self.close_idle(now_s);
    }

    /// As [`Door::turn`], for a thread that does other things as well: while the door is idle, most calls make no
    /// system call. New input is seen a few turns later, or at once after the thread has slept on this door.
    pub fn turn_shared(&mut self, cache: &mut Cache, now_ns: u64) -> bool {
        let is_due = self.idle_turns.is_multiple_of(TURNS_BETWEEN_POLLS) || seconds_of(now_ns) != self.ticked_s;
        if !is_due && !self.inbox.has_messages() {
            self.idle_turns += 1;
            return false;
        }
        let did_work = self.turn(cache, now_ns);
        self.idle_turns = if did_work { 0 } else { self.idle_turns.wrapping_add(1) };
        did_work
    }

    /// Whether there is work that no socket will announce.
    fn is_busy(&self) -> bool {
        self.polled
            || self.accepting
            || !self.queue.is_empty()
            || !self.requests.is_empty()
            || self.peers.iter().any(PeerThread::has_unsent)
    }

    /// Waits until there is work, for at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        let timeout = if self.memory_queue.has_waiting() { timeout.min(MEMORY_RETRY) } else { timeout };
        let timeout = if self.is_busy() || self.inbox.begin_sleep() { Duration::ZERO } else { timeout };
        self.poll_events(Some(timeout));
        self.inbox.end_sleep();
        self.polled = true;
    }

    /// Reads the lone connection's socket, if there is one, and serves it; else, and every few times, asks the poll.
    /// Returns whether the connection had sent anything.
    fn look_at_sockets(&mut self, cache: &mut Cache, now_s: u32) -> bool {
        let woken = std::mem::take(&mut self.woken);
        if self.lone_looks < LONE_LOOKS
            && let Some(index) = self.lone
            && let Some(Some(connection)) = self.connections.get_mut(index)
            && connection.awaits_input()
        {
            self.lone_looks += 1;
            connection.readable = true;
            let found = self.serve(index, cache, now_s);
            // Another socket may have woken the thread, and must not wait for the next look.
            if found || !woken {
                return found;
            }
        }
        self.lone_looks = 0;
        self.poll_events(Some(Duration::ZERO));
        false
    }

    fn poll_events(&mut self, timeout: Option<Duration>) {
        // It fails when a signal arrives; then there are no events.
        if self.poll.poll(&mut self.events, timeout).is_err() {
            self.events.clear();
        }
    }

    fn take_events(&mut self) -> bool {
        let mut any = false;
        for event in &self.events {
            any = true;
            match event.token() {
                WAKER => {}
                LISTENER => self.accepting = true,
                Token(token) => {
                    let index = token - FIRST_CONNECTION;
                    let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { continue };
                    connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    connection.hung_up |= event.is_read_closed() || event.is_error();
                    connection.is_broken |= event.is_write_closed() || event.is_error();
                    if !std::mem::replace(&mut connection.queued, true) {
                        self.queue.push_back(index);
                    }
                }
            }
        }
        self.events.clear();
        any
    }
}

/// Lets a thread sleep on a door together with other things, such as an endpoint.
impl Readiness for Door {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.descriptor.clone())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if self.is_busy() || self.inbox.begin_sleep() {
            self.inbox.end_sleep();
            return Ok(Armed::Ready);
        }
        // The descriptor announces the sockets.
        let until_ns = |in_ns| Some(now_ns.saturating_add(in_ns));
        Ok(Armed::Sleep {
            until_ns: match self.accepts_later {
                _ if self.memory_queue.has_waiting() => until_ns(MEMORY_RETRY.as_nanos() as u64),
                true => until_ns(ACCEPT_RETRY_NS),
                false => None,
            },
        })
    }

    fn disarm(&mut self) -> bool {
        self.inbox.end_sleep();
        // Makes the next turn look at the sockets.
        self.idle_turns = 0;
        self.woken = true;
        false
    }
}
